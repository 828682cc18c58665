//! The record of one dynamic call: the facts from which the log line, `Runtime::calls` and an agent's history derive.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::contract::ExecutionContract;
use crate::contract::delegation::ContractSource;
use crate::ids::{CallId, TraceId};
use crate::kernel::Environment;
use crate::outcome::{Metadata, Outcome, ProgramSource, ReuseReason};
use crate::program::tape::Tape;
use crate::value::{Map, Value};

/// One ended call. Immutable, shared by the log, the agent's history and the runtime's list of calls.
#[derive(Debug)]
pub struct CallRecord {
    /// When the call began.
    pub timestamp: SystemTime,
    /// The host's runtime name, such as `cadenza-python`.
    pub runtime: &'static str,
    /// Model name as logged.
    pub model: Arc<str>,
    /// Positional arguments.
    pub args: Arc<[Value]>,
    /// Named arguments.
    pub kwargs: Arc<Map>,
    /// What the caller got; holds role, method and metadata.
    pub outcome: Outcome,
    /// The metadata of this call. The outcome may carry another call's when a program passed one through.
    pub metadata: Arc<Metadata>,
    /// From dispatch to outcome.
    pub duration: Duration,
    /// Role of the agent that was called.
    pub role: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name, if it has one.
    pub agent: Option<Arc<str>>,
    /// Method that was called.
    pub method: Arc<str>,
    /// How the delegation contract was given.
    pub contract_source: ContractSource,
    /// The call whose program made this call.
    pub parent_call_id: Option<CallId>,
    /// 0 at the root.
    pub depth: u32,
    /// Prompt tokens.
    pub tokens_in: u64,
    /// Completion tokens.
    pub tokens_out: u64,
    /// Attempts that failed before the last one, and the last one if the call failed.
    pub attempt_failures: Vec<AttemptFailure>,
    /// Only with `debug`.
    pub debug: Option<Box<DebugFields>>,
    /// The contract that bounded the run.
    pub contract: Arc<ExecutionContract>,
    /// What the run found around it: with contract and transcript, all that a replay needs.
    pub environment: Arc<Environment>,
    /// What the call's programs were told, by the number of the execution, from 0; those that were told nothing are left
    /// out. With the transcript, all that running them again needs.
    pub tapes: Box<[(usize, Tape)]>,
}

/// One failed attempt, as logged.
#[derive(Clone, Debug)]
pub struct AttemptFailure {
    /// 1 for the first attempt.
    pub attempt_id: u32,
    /// `provider`, `adapter`, `execution` or `contract`.
    pub stage: &'static str,
    /// The class within the stage.
    pub error_class: String,
    /// What happened.
    pub error_message: String,
    /// When.
    pub timestamp: SystemTime,
}

/// What `debug` adds to a log line.
#[derive(Debug)]
pub struct DebugFields {
    /// Instructions that the model got; empty when no model was asked.
    pub system_prompt: String,
    /// The request that the model got; empty when no model was asked.
    pub user_prompt: String,
    /// Runtime context after the attempt.
    pub context: Map,
}

impl CallRecord {
    /// What its execution of that number, from 0, was told.
    pub fn tape(&self, execution: usize) -> Tape {
        self.tapes.iter().find(|(number, _)| *number == execution).map(|(_, tape)| tape.clone()).unwrap_or_default()
    }

    /// This call.
    pub fn call_id(&self) -> CallId {
        self.metadata.call_id
    }

    /// The flow it belongs to.
    pub fn trace_id(&self) -> TraceId {
        self.metadata.trace_id
    }

    /// The call as data, with the field names of the log line (formats.md section 2); values whole, nothing masked.
    pub fn to_map(&self) -> Map {
        let metadata = &self.metadata;
        let error = self.outcome.error();
        let ran = metadata.source != ProgramSource::None;
        let mut map = Map::new();
        let mut put = |name: &str, value: Value| {
            map.insert(name.to_owned(), value);
        };
        put("timestamp", rfc3339(self.timestamp).into());
        put("runtime", self.runtime.into());
        put("role", (&*self.role).into());
        put("namespace", (&*self.namespace).into());
        put("agent", self.agent.as_deref().into());
        put("model", (&*self.model).into());
        put("method", (&*self.method).into());
        put("args", Value::List(self.args.to_vec()));
        put("kwargs", Value::Map((*self.kwargs).clone()));
        put("code", metadata.code.as_deref().into());
        put("duration_ms", Value::Float((self.duration.as_secs_f64() * 1e6).round() / 1e3));
        put("generation_attempt", metadata.attempts.into());
        put("outcome_status", self.outcome.status().into());
        put("contract_source", self.contract_source.as_str().into());
        put("trace_id", metadata.trace_id.to_string().into());
        put("call_id", metadata.call_id.to_string().into());
        put("parent_call_id", self.parent_call_id.map(|id| id.to_string()).into());
        put("depth", self.depth.into());
        put("execution_receiver", ran.then_some("sandbox").into());
        put("language", metadata.language.into());
        put("program_source", metadata.source.as_str().into());
        put("reuse", metadata.reuse.map(ReuseReason::as_str).into());
        put("outcome_error_type", error.map(|error| error.error_type.as_str()).into());
        put("outcome_error_message", error.map(|error| error.message.as_str()).into());
        put("outcome_retriable", error.map(|error| error.retriable).into());
        put("agent_outcome", metadata.agent_outcome.as_str().into());
        put("reason", metadata.reason.as_str().into());
        put("inferences", metadata.inferences.into());
        put("tokens_in", Value::Int(self.tokens_in as i64));
        put("tokens_out", Value::Int(self.tokens_out as i64));
        put(
            "attempt_failures",
            Value::List(self.attempt_failures.iter().map(|failure| failure.to_value(self)).collect()),
        );
        put("transcript_head", metadata.head().to_hex().into());
        put("transcript_length", Value::Int(metadata.length() as i64));
        if let Some(debug) = &self.debug {
            put("system_prompt", debug.system_prompt.as_str().into());
            put("user_prompt", debug.user_prompt.as_str().into());
            put("context", Value::Map(debug.context.clone()));
            put("outcome_value", self.outcome.value().clone());
        }
        map
    }
}

impl AttemptFailure {
    fn to_value(&self, record: &CallRecord) -> Value {
        Value::Map(Map::from([
            ("attempt_id".to_owned(), self.attempt_id.into()),
            ("stage".to_owned(), self.stage.into()),
            ("error_class".to_owned(), self.error_class.as_str().into()),
            ("error_message".to_owned(), self.error_message.as_str().into()),
            ("timestamp".to_owned(), rfc3339(self.timestamp).into()),
            ("call_id".to_owned(), record.call_id().to_string().into()),
        ]))
    }
}

/// RFC 3339 in UTC with microseconds.
pub fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "1970-01-01T00:00:00Z".to_owned(), |stamp| format!("{stamp:.6}"))
}
