//! The execution of one attempt's program, and what its value must be.

use std::sync::Arc;

use super::{Attempts, Success, bounded};
use crate::agent::host::{CallHost, DryHost};
use crate::contract::Tokens;
use crate::contract::delegation::Acceptance;
use crate::kernel::{Executed, Input, ToolEnvelope, ToolFailure};
use crate::program::tape::envelope;
use crate::program::{Arguments, Execution, Executor, Language, Program, ProgramFailure, Returned, acceptance_program};
use crate::prompt;
use crate::value::{Map, Value};

impl<'a> Attempts<'a> {
    /// Runs a program over the call's arguments, and keeps what it made for the end of the run.
    pub(super) fn run(&mut self, executor: &dyn Executor, program: &Program) -> Input {
        let call = self.call;
        let host = CallHost::new(self.frame);
        let before = call.trace.tokens();
        let execution = executor.execute(program, call.arguments(), &host, &self.bounds());
        let child_tokens = Tokens(call.trace.tokens().saturating_sub(before));
        let Execution { result, reads, .. } = execution;
        let tape = host.take_tape(&reads);
        if !tape.is_empty() {
            self.tapes.push((self.executions, tape));
        }
        self.executions += 1;
        let envelope = match result {
            Ok(mut returned) => match self.check(executor, &host, &mut returned) {
                Ok(()) => {
                    let value = match &returned {
                        Returned::Value(value) => value.clone(),
                        // Without the ids of the call behind it: equal runs have equal heads (KC-D2).
                        Returned::Outcome(outcome) => Value::Map(envelope(outcome)),
                    };
                    self.success = Some(Success { host, returned, reads });
                    ToolEnvelope::Ok(Arc::new(value))
                }
                Err(message) => {
                    self.failed("contract", "contract_violation", &message);
                    self.feedback =
                        Some(prompt::repair_value(&program.code, &message, program.language, self.format()));
                    error(ToolFailure::ResultContract, &message)
                }
            },
            Err(failure) => {
                let message = failure.to_string();
                self.failed("execution", failure_class(&failure), &message);
                self.feedback = Some(prompt::repair(&program.code, &message, program.language, self.format()));
                match failure {
                    ProgramFailure::Deadline => {
                        self.time_up = Some(call.timeout_words());
                        return Input::TimedOut { raw_hash: None };
                    }
                    ProgramFailure::Interrupted => return Input::Cancelled { raw_hash: None },
                    ProgramFailure::Fuel { .. } => error(ToolFailure::Fuel, &message),
                    ProgramFailure::CpuTime { .. } => error(ToolFailure::CpuTime, &message),
                    ProgramFailure::Raised { .. }
                    | ProgramFailure::Memory { .. }
                    | ProgramFailure::CallDepth
                    | ProgramFailure::HostCalls { .. }
                    | ProgramFailure::Refused { .. }
                    | ProgramFailure::Internal { .. } => error(ToolFailure::Failed, &message),
                }
            }
        };
        let cancelled = call.trace.cancel.is_cancelled();
        Input::Executed(Executed { envelope, observation: None, child_tokens, cancelled })
    }

    /// `deliverable` and `acceptance` of the delegation contract, on ok values (AC-16).
    fn check(&self, executor: &dyn Executor, host: &CallHost<'a>, returned: &mut Returned) -> Result<(), String> {
        let delegation = &self.call.agent.0.settings.delegation;
        let value = match returned {
            Returned::Value(value) => value,
            Returned::Outcome(outcome) => match &mut outcome.result {
                Ok(value) => value,
                Err(_) => return Ok(()),
            },
        };
        match executor.language() {
            Language::Lua => delegation.settle_empty_tables(value),
            Language::Rhai => {}
        }
        delegation.check_deliverable(value)?;
        for item in delegation.acceptance() {
            match item {
                Acceptance::Prose(_) => {}
                Acceptance::Assert(expression) => self.accept(executor, host, expression, value)?,
            }
        }
        Ok(())
    }

    /// Evaluates one acceptance expression over the value, the call's arguments and the attempt's context.
    fn accept(
        &self,
        executor: &dyn Executor,
        host: &CallHost<'a>,
        expression: &str,
        value: &Value,
    ) -> Result<(), String> {
        let call = self.call;
        let source = acceptance_program(executor.language(), expression);
        let program = executor
            .compile(&source, &call.agent.0.settings.limits)
            .map_err(|error| format!("acceptance `{expression}` does not compile: {}", error.message))?;
        let args = [value.clone(), Value::List(call.args.to_vec()), Value::Map((*call.kwargs).clone())];
        let dry = DryHost::over(host);
        let arguments = Arguments { args: &args, kwargs: &Map::new() };
        match executor.execute(&program, arguments, &dry, &self.bounds()).result {
            Ok(Returned::Value(Value::Bool(true))) => Ok(()),
            Ok(Returned::Value(other)) => Err(format!(
                "the value is not accepted: `{expression}` is {} for the value {}",
                other.shown(),
                value.shown()
            )),
            Ok(Returned::Outcome(_)) => Err(format!("acceptance `{expression}` gave an outcome, not true")),
            Err(failure) => Err(format!("acceptance `{expression}` failed: {failure}")),
        }
    }
}

pub(super) fn error(failure: ToolFailure, message: &str) -> ToolEnvelope {
    ToolEnvelope::Error { failure, message: bounded(message).into() }
}

fn failure_class(failure: &ProgramFailure) -> &'static str {
    match failure {
        ProgramFailure::Raised { .. } => "raised",
        ProgramFailure::Fuel { .. } => "fuel",
        ProgramFailure::CpuTime { .. } => "cpu_time",
        ProgramFailure::Deadline => "deadline",
        ProgramFailure::Memory { .. } => "memory",
        ProgramFailure::CallDepth => "call_depth",
        ProgramFailure::HostCalls { .. } => "host_calls",
        ProgramFailure::Refused { .. } => "result_refused",
        ProgramFailure::Interrupted => "interrupted",
        ProgramFailure::Internal { .. } => "internal",
    }
}
