//! Luau programs in this process: compiled once, run in pooled, sealed VMs under hard limits (engines.md sections 0, 2, 5).
//!
//! [`LuaExecutor`] judges an execution by its own meter, never by error texts: whatever a program catches or raises, a
//! limit that was reached is the result. This module never keeps programs and never decides whether one may run.

mod context;
mod convert;
mod interrupt;
mod iterate;
mod job;
mod order;
mod surface;
mod vm;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mlua::chunk::Compiler;
use mlua::{MultiValue, Value as LuaValue};
use parking_lot::Mutex;

use self::convert::{Reader, Unreadable, cut};
use self::interrupt::{Meter, Running, panic_text};
use self::job::{Denied, HostHandle, Job};
use self::vm::{Left, Vm};
use super::{
    Arguments, Bounds, CompileError, Execution, Executor, Host, Isolation, Language, Limits, Program, ProgramFailure,
    Reads, Returned,
};
use crate::value::Value;

pub use self::surface::{install_script, install_script_adapting};

/// VMs that wait for work; more than this many at once are dropped after use.
const MAX_IDLE: usize = 32;

/// Longest compiler message, in bytes.
const MAX_MESSAGE: usize = 4 << 10;

/// Globals whose fields change from call to call: the compiler must not resolve `context.value` when it loads a program.
/// `pairs` and `next` are here because their loops iterate in key order, which the compiler's short cut would not.
const CHANGING: [&str; 10] =
    ["context", "args", "kwargs", "agent", "tools", "history", "Agent", "pairs", "next", iterate::NAME];

/// Library functions that are wrapped, and that the compiler would otherwise call past the wrapper. (`table.insert`,
/// `rawset` and `tostring` need not be here: their short cuts give way to the wrapper for our own objects.)
const WRAPPED: [&str; 5] = ["rawget", "rawlen", "setmetatable", "unpack", "table.unpack"];

/// Runs Luau programs. Cheap to share; one execution at a time per VM, as many VMs as there are executions at once.
pub struct LuaExecutor {
    isolation: Isolation,
    idle: Mutex<Vec<Vm>>,
}

/// What [`LuaExecutor::compile`] makes of a text.
struct Compiled {
    bytecode: Box<[u8]>,
    uses_varargs: bool,
}

impl LuaExecutor {
    /// An executor with shared VMs.
    pub fn new() -> Self {
        Self::with_isolation(Isolation::Shared)
    }

    /// An executor with this isolation.
    pub fn with_isolation(isolation: Isolation) -> Self {
        Self { isolation, idle: Mutex::new(Vec::new()) }
    }

    fn take(&self) -> mlua::Result<Vm> {
        match self.idle.lock().pop() {
            Some(vm) => Ok(vm),
            None => Vm::build(),
        }
    }

    fn give_back(&self, vm: Vm) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(vm);
        }
    }
}

impl Default for LuaExecutor {
    fn default() -> Self {
        Self::new()
    }
}

impl Executor for LuaExecutor {
    fn language(&self) -> Language {
        Language::Lua
    }

    fn compile(&self, code: &str, limits: &Limits) -> Result<Program, CompileError> {
        if code.len() > limits.max_source_bytes {
            let message = format!("{} bytes of source; at most {} are taken", code.len(), limits.max_source_bytes);
            return Err(CompileError { message, line: None });
        }
        if code.contains('\0') {
            // Luau would stop reading there, and run less than what was checked.
            return Err(CompileError { message: "the source contains a NUL byte".to_owned(), line: None });
        }
        // The original first: messages must speak about what the model wrote.
        let plain = compiler().compile(code).map_err(|error| compile_error(&error))?;
        let rewritten = iterate::rewrite(code)
            .map_err(|(line, what)| CompileError { message: format!("line {line}: {what}"), line: Some(line) })?;
        let bytecode = if rewritten.code == code {
            plain
        } else {
            compiler().compile(&rewritten.code).map_err(|error| compile_error(&error))?
        };
        Ok(Program {
            language: Language::Lua,
            code: code.into(),
            digest: Program::digest_of(Language::Lua, code),
            compiled: Arc::new(Compiled { bytecode: bytecode.into(), uses_varargs: rewritten.uses_varargs }),
        })
    }

    fn execute(&self, program: &Program, arguments: Arguments<'_>, host: &dyn Host, bounds: &Bounds<'_>) -> Execution {
        let _unmetered = Running::unmetered();
        let Some(compiled) = program.compiled.downcast_ref::<Compiled>() else {
            return failed("the program was not compiled by this executor");
        };
        let mut vm = match self.take() {
            Ok(vm) => vm,
            Err(error) => return failed(&error.to_string()),
        };
        let hard_heap = match vm.set_memory(bounds.limits.max_memory_bytes) {
            Ok(bytes) => bytes,
            Err(error) => return failed(&error.to_string()),
        };
        let meter = Meter::start(bounds, vm.base(), hard_heap);
        let job = Job::new(meter, bounds, arguments, HostHandle::Borrowed(host));
        let result = catch_unwind(AssertUnwindSafe(|| run(&mut vm, program, compiled, &job)))
            .unwrap_or_else(|panic| Err(ProgramFailure::Internal { message: panic_text(&*panic) }));
        let may_stay = match &result {
            Ok(_) | Err(ProgramFailure::Raised { .. } | ProgramFailure::Refused { .. }) => true,
            Err(
                ProgramFailure::Fuel { .. }
                | ProgramFailure::CpuTime { .. }
                | ProgramFailure::Deadline
                | ProgramFailure::Memory { .. }
                | ProgramFailure::CallDepth
                | ProgramFailure::HostCalls { .. }
                | ProgramFailure::Interrupted
                | ProgramFailure::Internal { .. },
            ) => false,
        };
        let execution = job.finish(result);
        let shared = match self.isolation {
            Isolation::Shared => true,
            Isolation::Fresh => false,
        };
        if shared && may_stay && vm.is_fresh_enough() && vm.tidy(program.digest, execution.touched) {
            self.give_back(vm);
        }
        execution.execution
    }
}

/// Runs a program and judges it: the meter first, then what the interpreter says.
fn run(vm: &mut Vm, program: &Program, compiled: &Compiled, job: &Job<'_>) -> Result<Returned, ProgramFailure> {
    job.meter.check_start();
    if let Some(verdict) = job.meter.take_verdict() {
        return Err(verdict);
    }
    let left = {
        // SAFETY: the guard is dropped at the end of this block, before the job and its meter, on this thread.
        let _metered = unsafe { Running::metered(&job.meter) };
        vm.run(program.digest, compiled, job)
    };
    job.meter.check_end();
    if let Some(verdict) = job.meter.take_verdict() {
        return Err(verdict);
    }
    let result = match left {
        Ok(Left::Returned(values)) => vm.after(job, || returned(vm, job, values)),
        Ok(Left::Raised(value)) => Err(vm.after(job, || raised(vm, job, &value))),
        Ok(Left::OutOfMemory) => Err(ProgramFailure::Memory { limit: job.limits.max_memory_bytes }),
        Err(error) => Err(interpreter_failed(job, &error)),
    };
    // Writing back and reading proxies may have reached the host, and so a limit or a panic.
    match job.meter.take_verdict() {
        Some(verdict) => Err(verdict),
        None => result,
    }
}

/// The program's result, with its context written back (engines.md 5.3).
fn returned(vm: &Vm, job: &Job<'_>, values: MultiValue) -> Result<Returned, ProgramFailure> {
    let mut values: Vec<LuaValue> = values.into_iter().collect();
    while values.len() > 1 && values.last().is_some_and(LuaValue::is_nil) {
        values.pop();
    }
    let result = match values.as_slice() {
        [] => Returned::Value(Value::Null),
        [LuaValue::Table(table)] if vm.marks.is_outcome(table) => {
            Returned::Outcome(surface::outcome_from(&vm.marks, job.limits, table).map_err(|error| denied(job, error))?)
        }
        [value] => {
            Returned::Value(Reader::new(&vm.marks, job.limits).read(value, None).map_err(|error| match error {
                Unreadable::Refused(message) => ProgramFailure::Refused { message },
                Unreadable::Lua(error) => interpreter_failed(job, &error),
            })?)
        }
        [LuaValue::Nil, LuaValue::String(message)] => {
            return Err(raised_text(job, &message.to_string_lossy()));
        }
        [_, _, ..] => {
            let message = format!("{} values were returned; return one, or a table", values.len());
            return Err(ProgramFailure::Refused { message });
        }
    };
    context::write_back(&vm.marks, job).map_err(|error| match error {
        Denied::Refused(message) => ProgramFailure::Refused { message },
        other => denied(job, other),
    })?;
    Ok(result)
}

/// What an error value says, without running any of the program's code.
fn raised(vm: &Vm, job: &Job<'_>, value: &LuaValue) -> ProgramFailure {
    match value {
        LuaValue::String(text) => raised_text(job, &text.to_string_lossy()),
        LuaValue::Error(error) if job::is_memory_error(error) => {
            ProgramFailure::Memory { limit: job.limits.max_memory_bytes }
        }
        LuaValue::Error(error) => raised_text(job, &error.to_string()),
        LuaValue::Table(table) => {
            if vm.marks.is_outcome(table) {
                return match surface::outcome_from(&vm.marks, job.limits, table) {
                    Ok(outcome) => match outcome.error() {
                        Some(error) => raised_text(job, &format!("{}: {}", error.error_type, error.message)),
                        None => raised_text(job, "an ok Outcome was raised as an error"),
                    },
                    Err(error) => denied(job, error),
                };
            }
            for field in ["message", "error_message"] {
                if let Ok(LuaValue::String(text)) = table.raw_get(field) {
                    return raised_text(job, &text.to_string_lossy());
                }
            }
            match Reader::new(&vm.marks, job.limits).read(value, None) {
                Ok(value) => raised_text(job, &value.to_json()),
                Err(_) => raised_text(job, "an error value of type table"),
            }
        }
        other => raised_text(job, &format!("an error value of type {}", other.type_name())),
    }
}

fn raised_text(job: &Job<'_>, text: &str) -> ProgramFailure {
    ProgramFailure::Raised { message: cut(text, job.limits.max_error_bytes).to_owned() }
}

fn denied(job: &Job<'_>, error: Denied) -> ProgramFailure {
    match error {
        Denied::Refused(message) => ProgramFailure::Refused { message },
        Denied::Ended => job.meter.take_verdict().unwrap_or(ProgramFailure::Deadline),
        Denied::Lua(error) => interpreter_failed(job, &error),
    }
}

fn interpreter_failed(job: &Job<'_>, error: &mlua::Error) -> ProgramFailure {
    if job::is_memory_error(error) {
        return ProgramFailure::Memory { limit: job.limits.max_memory_bytes };
    }
    raised_text(job, &error.to_string())
}

fn failed(message: &str) -> Execution {
    Execution {
        result: Err(ProgramFailure::Internal { message: cut(message, MAX_MESSAGE).to_owned() }),
        reads: Reads::default(),
        instructions: 0,
        host_calls: 0,
        output: String::new(),
    }
}

fn compiler() -> Compiler {
    Compiler::new()
        .set_optimization_level(1)
        .set_debug_level(1)
        .set_mutable_globals(CHANGING)
        .set_disabled_builtins(WRAPPED)
}

/// The compiler's message and line; it writes `LINE: MESSAGE`.
fn compile_error(error: &mlua::Error) -> CompileError {
    let text = match error {
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let text = text.trim().trim_start_matches(':');
    let (line, message) = match text.split_once(':').map(|(line, message)| (line.trim().parse(), message.trim())) {
        Some((Ok(line), message)) => (Some(line), format!("line {line}: {message}")),
        Some((Err(_), _)) | None => (None, text.to_owned()),
    };
    CompileError { message: cut(&message, MAX_MESSAGE).to_owned(), line }
}
