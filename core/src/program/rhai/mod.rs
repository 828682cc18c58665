//! Rhai programs: parsed once, checked, and run on a shared engine with a fresh scope per call.
//!
//! Isolation comes from there being nothing to share: an execution gets its own scope, its values are its own, and every
//! built-in is immutable. What the host gave is reached through live objects ([`context`]); everything a program does is
//! counted by one hook ([`call`]), which also bounds time, memory and stack. This module never decides what a program
//! may do to an agent: that is the host's part.
//!
//! What surprises in Rhai and is left as it is: `7 / 2` is `3` (write `7.0 / 2`), `"10" + 1` is `"101"`, an index
//! outside an array is an error, `trim` and `replace` change text in place, and floats are equal within one part in 10^16.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rhai::{AST, Dynamic, EvalAltResult, Position, Scope};

use crate::program::{
    Arguments, Bounds, CompileError, Execution, Executor, Host, Language, Limits, Program, ProgramFailure, Reads,
    Returned,
};
use call::{Call, panic_message, truncated};
use convert::{Caps, to_value};
pub use surface::{install_script, prepare_script};
use surface::OutcomeHandle;

mod call;
mod context;
mod convert;
mod engine;
mod everyday;
mod meter;
mod nesting;
mod rewrite;
mod stack;
pub mod surface;
mod text;

pub use meter::MeteredAllocator;

/// Runs Rhai programs. One is enough for a process; all threads share it.
#[derive(Default)]
pub struct RhaiExecutor {
    engines: engine::Engines,
}

impl RhaiExecutor {
    /// An executor. Engines are made when a program first needs them.
    pub fn new() -> Self {
        Self::default()
    }

    fn run(&self, program: &Program, call: &Call<'_>) -> Result<Returned, ProgramFailure> {
        let internal = |message: String| ProgramFailure::Internal { message };
        let ast = program.compiled.downcast_ref::<AST>();
        let ast = ast.ok_or_else(|| internal("this program was not compiled by the Rhai executor".to_owned()))?;
        let engine = self.engines.for_limits(call.limits).map_err(|error| internal(error.to_string()))?;
        let mut scope = Scope::new();
        let result = engine.eval_ast_with_scope::<Dynamic>(&mut scope, ast);
        // What a program did in its last breath counts: the reason to stop comes before its value and its error.
        if let Some(failure) = call.finish() {
            return Err(failure);
        }
        let returned = match result {
            Ok(value) => returned(value, call)?,
            Err(error) => match innermost(&error).0 {
                // `exit(value)` inside a function that a built-in called.
                EvalAltResult::Exit(value, _) => returned(value.clone(), call)?,
                _ => return Err(failure(&error, call)),
            },
        };
        context::Live::flush(call).map_err(|error| refusal(&error, call))?;
        match call.finish() {
            Some(failure) => Err(failure),
            None => Ok(returned),
        }
    }
}

impl Executor for RhaiExecutor {
    fn language(&self) -> Language {
        Language::Rhai
    }

    fn compile(&self, code: &str, limits: &Limits) -> Result<Program, CompileError> {
        if code.len() > limits.max_source_bytes {
            let message = format!("{} bytes of source; at most {} are allowed", code.len(), limits.max_source_bytes);
            return Err(CompileError { message, line: None });
        }
        let compiled = stack::with_enough(None, || catch_unwind(|| parse(code)));
        let ast = match compiled {
            Ok(Ok(parsed)) => parsed?,
            Ok(Err(panic)) => return Err(CompileError { message: panic_message(&*panic), line: None }),
            Err(error) => return Err(CompileError { message: format!("no thread to parse on: {error}"), line: None }),
        };
        let compiled: Arc<dyn Any + Send + Sync> = Arc::new(ast);
        Ok(Program {
            language: Language::Rhai,
            code: code.into(),
            digest: Program::digest_of(Language::Rhai, code),
            compiled,
        })
    }

    fn execute(&self, program: &Program, arguments: Arguments<'_>, host: &dyn Host, bounds: &Bounds<'_>) -> Execution {
        let home = std::thread::current().id();
        let work = || {
            let call = Call::new(arguments, host, bounds, std::thread::current().id() == home);
            let run = catch_unwind(AssertUnwindSafe(|| call.enter(|| self.run(program, &call))));
            let result =
                run.unwrap_or_else(|panic| Err(ProgramFailure::Internal { message: call.cut(panic_message(&*panic)) }));
            Execution {
                instructions: call.steps(),
                host_calls: call.host_calls(),
                reads: call.reads.take(),
                output: call.output.take(),
                result,
            }
        };
        stack::with_enough(Some(bounds.cancel), work).unwrap_or_else(|error| Execution {
            result: Err(ProgramFailure::Internal { message: format!("no thread to run on: {error}") }),
            reads: Reads::default(),
            instructions: 0,
            host_calls: 0,
            output: String::new(),
        })
    }
}

fn parse(code: &str) -> Result<AST, CompileError> {
    /// As for every error text: engines.md.
    const MAX_MESSAGE_BYTES: usize = 4 << 10;
    let ast = engine::parser().compile(code).map_err(|error| CompileError {
        message: truncated(&error.to_string(), MAX_MESSAGE_BYTES).to_owned(),
        line: line(error.position()),
    })?;
    rewrite::rewrite(&ast, rewrite::Guards::On)
        .map_err(|unfit| CompileError { message: unfit.to_string(), line: line(unfit.position()) })
}

fn line(position: Position) -> Option<u32> {
    position.line().and_then(|line| u32::try_from(line).ok())
}

/// What the program's value is to the host.
fn returned(value: Dynamic, call: &Call<'_>) -> Result<Returned, ProgramFailure> {
    let value = value.flatten();
    if let Some(outcome) = value.read_lock::<OutcomeHandle>() {
        return Ok(Returned::Outcome(outcome.outcome().clone()));
    }
    match to_value(&value, Caps::of(call.limits)) {
        Ok(value) => Ok(Returned::Value(value)),
        Err(refusal) => Err(ProgramFailure::Refused { message: call.cut(refusal.to_string()) }),
    }
}

/// A context that cannot be written back is a refused result.
fn refusal(error: &EvalAltResult, call: &Call<'_>) -> ProgramFailure {
    match call.finish() {
        Some(failure) => failure,
        None => ProgramFailure::Refused { message: call.cut(words(error, call)) },
    }
}

/// What an error of Rhai's means. Errors never say why a program was stopped: the call knows.
fn failure(error: &EvalAltResult, call: &Call<'_>) -> ProgramFailure {
    let (innermost, line) = innermost(error);
    match innermost {
        EvalAltResult::ErrorStackOverflow(_) => ProgramFailure::CallDepth,
        EvalAltResult::ErrorDataTooLarge(..) => ProgramFailure::Memory { limit: call.limits.max_memory_bytes },
        _ => {
            let mut message = call.cut(words(innermost, call));
            if let Some(line) = line {
                let suffix = format!(" (line {line})");
                message.truncate(truncated(&message, call.limits.max_error_bytes.saturating_sub(suffix.len())).len());
                message.push_str(&suffix);
            }
            ProgramFailure::Raised { message }
        }
    }
}

/// The error that began it, and the innermost line known.
fn innermost(error: &EvalAltResult) -> (&EvalAltResult, Option<u32>) {
    let mut current = error;
    let mut known = line(error.position());
    while let EvalAltResult::ErrorInFunctionCall(_, _, inner, _) | EvalAltResult::ErrorInModule(_, inner, _) = current {
        current = inner;
        known = line(current.position()).or(known);
    }
    (current, known)
}

/// An error's words without its position. What a program threw is shown as data, or by its type alone.
fn words(error: &EvalAltResult, call: &Call<'_>) -> String {
    if let EvalAltResult::ErrorRuntime(thrown, _) = error {
        let thrown = thrown.flatten_clone();
        if thrown.is_unit() {
            return "the program gave up".to_owned();
        }
        if let Some(outcome) = thrown.read_lock::<OutcomeHandle>() {
            return outcome.outcome().error().map_or_else(
                || "an ok Outcome was thrown".to_owned(),
                |error| format!("{}: {}", error.error_type, error.message),
            );
        }
        return match thrown.as_immutable_string_ref() {
            Ok(text) => truncated(&text, call.limits.max_error_bytes).to_owned(),
            Err(_) => match to_value(&thrown, Caps::of(call.limits)) {
                Ok(value) => value.to_json(),
                Err(_) => format!("a value of type {} was thrown", engine::type_name(&thrown)),
            },
        };
    }
    let text = error.to_string();
    let position = error.position();
    match text.strip_suffix(&format!(" ({position})")) {
        Some(bare) if !position.is_none() => bare.to_owned(),
        Some(_) | None => text,
    }
}
