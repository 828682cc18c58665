//! The record of one dynamic call: the facts from which the log line, `Runtime::calls` and an agent's history derive.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use crate::contract::ExecutionContract;
use crate::contract::delegation::ContractSource;
use crate::ids::{CallId, TraceId};
use crate::kernel::Environment;
use crate::outcome::{Metadata, Outcome, ProgramSource, ReuseReason};
use crate::program::tape::Tape;
use crate::provider::secret;
use crate::value::{Map, Value, write_json_string};

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
    /// Bytes of each section of the prompt, by `prompt::SECTIONS`; empty when no model was asked.
    pub prompt_bytes: Box<[(&'static str, u32)]>,
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
    /// What each of its executions was told, in order; those behind the last one were told nothing.
    pub fn all_tapes(&self) -> impl Iterator<Item = &Tape> {
        static EMPTY: LazyLock<Tape> = LazyLock::new(Tape::default);
        let executions = self.tapes.last().map_or(0, |(number, _)| number + 1);
        let of = |execution: usize| self.tapes.iter().find(|(number, _)| *number == execution);
        (0..executions).map(move |execution| of(execution).map_or(&*EMPTY, |(_, tape)| tape))
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
        let mut map = Map::new();
        self.fields(&mut |name, field| {
            map.insert(name.to_owned(), field.to_value());
        });
        map
    }

    /// Gives out every field of the log line, each once.
    pub(crate) fn fields(&self, put: &mut dyn FnMut(&'static str, Field<'_>)) {
        let metadata = &self.metadata;
        let error = self.outcome.error();
        let ran = metadata.source != ProgramSource::None;
        let text = |text: Option<&'static str>| text.map_or(Field::Null, Field::Text);
        put("timestamp", Field::Text(&rfc3339(self.timestamp)));
        put("runtime", Field::Text(self.runtime));
        put("role", Field::Text(&self.role));
        put("namespace", Field::Text(&self.namespace));
        put("agent", self.agent.as_deref().map_or(Field::Null, Field::Text));
        put("model", Field::Text(&self.model));
        put("method", Field::Text(&self.method));
        put("args", Field::List(&self.args));
        put("kwargs", Field::Map(&self.kwargs));
        put("code", metadata.code.as_deref().map_or(Field::Null, Field::Text));
        put("duration_ms", Field::Float((self.duration.as_secs_f64() * 1e6).round() / 1e3));
        put("generation_attempt", Field::Int(metadata.attempts.into()));
        put("outcome_status", Field::Text(self.outcome.status()));
        put("contract_source", Field::Text(self.contract_source.as_str()));
        put("trace_id", Field::Text(&metadata.trace_id.to_string()));
        put("call_id", Field::Text(&metadata.call_id.to_string()));
        match &self.parent_call_id {
            Some(id) => put("parent_call_id", Field::Text(&id.to_string())),
            None => put("parent_call_id", Field::Null),
        }
        put("depth", Field::Int(self.depth.into()));
        put("execution_receiver", text(ran.then_some("sandbox")));
        put("language", Field::Text(metadata.language));
        put("program_source", Field::Text(metadata.source.as_str()));
        put("reuse", text(metadata.reuse.map(ReuseReason::as_str)));
        put("outcome_error_type", error.map_or(Field::Null, |error| Field::Text(error.error_type.as_str())));
        put("outcome_error_message", error.map_or(Field::Null, |error| Field::Text(&error.message)));
        put("outcome_retriable", error.map_or(Field::Null, |error| Field::Bool(error.retriable)));
        put("agent_outcome", Field::Text(metadata.agent_outcome.as_str()));
        put("reason", Field::Text(metadata.reason.as_str()));
        put("inferences", Field::Int(metadata.inferences.into()));
        put("tokens_in", Field::Int(self.tokens_in as i64));
        put("tokens_out", Field::Int(self.tokens_out as i64));
        let failures: Vec<Value> = self.attempt_failures.iter().map(|failure| failure.to_value(self)).collect();
        put("attempt_failures", Field::List(&failures));
        let accounting: Vec<Value> = metadata.accounting.iter().map(|entry| Value::Map(entry.to_map())).collect();
        put("accounting", Field::List(&accounting));
        if !self.prompt_bytes.is_empty() {
            let sizes = self.prompt_bytes.iter().map(|(name, bytes)| ((*name).to_owned(), Value::from(*bytes)));
            put("prompt_bytes", Field::Map(&sizes.collect()));
        }
        put("transcript_head", Field::Text(&metadata.head().to_hex()));
        put("transcript_length", Field::Int(metadata.length() as i64));
        if let Some(debug) = &self.debug {
            put("system_prompt", Field::Text(&debug.system_prompt));
            put("user_prompt", Field::Text(&debug.user_prompt));
            put("context", Field::Map(&debug.context));
            put("outcome_value", Field::Value(self.outcome.value()));
        }
    }
}

/// One field of a record, as it lies there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field<'a> {
    /// Nothing.
    Null,
    /// A flag.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Text.
    Text(&'a str),
    /// Several values.
    List(&'a [Value]),
    /// Named values.
    Map(&'a Map),
    /// Any value.
    Value(&'a Value),
}

impl Field<'_> {
    fn to_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(flag) => flag.into(),
            Self::Int(number) => number.into(),
            Self::Float(number) => number.into(),
            Self::Text(text) => text.into(),
            Self::List(list) => Value::List(list.to_vec()),
            Self::Map(map) => Value::Map(map.clone()),
            Self::Value(value) => value.clone(),
        }
    }

    /// Appends the field's JSON text without secrets, as [`secret::masked`] would leave it.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "only stores keep fields as text"))]
    pub(crate) fn write_masked(self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(flag) => out.push_str(if flag { "true" } else { "false" }),
            Self::Int(number) => out.push_str(itoa::Buffer::new().format(number)),
            Self::Float(number) => Value::Float(number).write_json(out),
            Self::Text(text) => write_json_string(&secret::scrub(text), out),
            Self::List(list) => {
                out.push('[');
                for (index, item) in list.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    secret::write_masked(item, out);
                }
                out.push(']');
            }
            Self::Map(map) => secret::write_masked_map(map, out),
            Self::Value(value) => secret::write_masked(value, out),
        }
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
