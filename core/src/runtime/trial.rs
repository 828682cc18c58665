//! Trying a program before it replaces another: the method's recorded calls are its test (product.md section 8).
//!
//! A candidate runs on what the calls of the programs before it were told. Where its own evidence says that it would have
//! answered a call, it must answer as that call was answered. What is not known is no difference: a candidate that asks its
//! host something that was never recorded is not judged by that call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Runtime;
use super::repertoire::arguments_of;
use super::replay::same;
use crate::canonical;
use crate::ids::{CallId, Digest};
use crate::program::registry::{Key, Saved, shape};
use crate::program::tape::{Follow, Tape, TapeHost};
use crate::program::{Arguments, Limits, ProgramFailure, Returned};
use crate::provider::secret;
use crate::store::CallQuery;
use crate::value::{Map, Value};

/// Recorded calls that one trial looks at.
const CALLS: usize = 16;
/// Calls of the method among which they are looked for: the newest.
const RECENT: usize = 64;
/// What one of them may take: a trial must not cost more than the model's answer that led to it.
const INSTRUCTIONS: u64 = 1_000_000;
const CPU_TIME: Duration = Duration::from_millis(50);

/// A recorded call that a program answers differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The call.
    pub call: CallId,
    /// What it was, what it gave and what the program gives, in words.
    pub words: String,
}

/// One recorded call that went well.
struct Past {
    id: CallId,
    args: Vec<Value>,
    kwargs: Map,
    code: String,
    value: Value,
    /// What the program that gave the value was told.
    told: Tape,
}

impl Runtime {
    /// Runs a program on the recorded calls of the programs `used` under its key before. Empty when it gives what they
    /// gave, and when there were none.
    ///
    /// Looks at the newest of these calls: at most [`CALLS`], and at fewer where `deadline` passes first.
    pub(crate) fn trial(&self, candidate: &Saved, used: Vec<Arc<str>>, deadline: Option<Instant>) -> Vec<Difference> {
        let in_time = || deadline.is_none_or(|deadline| Instant::now() < deadline);
        if used.is_empty() || !in_time() {
            return Vec::new();
        }
        let limits = Limits { max_instructions: INSTRUCTIONS, cpu_time: CPU_TIME, ..(*self.0.settings.limits).clone() };
        self.past_calls(&candidate.key)
            .into_iter()
            .filter(|past| used.iter().any(|code| **code == *past.code))
            .take(CALLS)
            .take_while(|_| in_time())
            .filter_map(|past| self.differs(candidate, &past, &limits))
            .collect()
    }

    /// The newest calls under that key that went well, as far as it is known what their programs were told.
    fn past_calls(&self, key: &Key) -> Vec<Past> {
        let query = CallQuery {
            role: Some(key.role.to_string()),
            method: Some(key.method.to_string()),
            limit: RECENT,
            ..CallQuery::default()
        };
        let past = |(record, told): (Map, Option<Tape>)| {
            let text = |name: &str| record.get(name).and_then(Value::as_str);
            if text("outcome_status") != Some("ok") || text("language") != Some(key.language.as_str()) {
                return None;
            }
            let (args, kwargs) = arguments_of(&record);
            let of_shape = shape(Arguments { args: &args, kwargs: &kwargs }) == key.shape;
            let (id, code) = (CallId::parse(text("call_id")?)?, text("code")?.to_owned());
            let (value, told) = (record.get("value").cloned().unwrap_or_default(), told?);
            of_shape.then_some(Past { id, args, kwargs, code, value, told })
        };
        let calls = self.told_calls(&query).unwrap_or_else(|error| {
            tracing::warn!(%error, "recorded calls cannot be read; a new program is not tried against them");
            Vec::new()
        });
        calls.into_iter().filter_map(past).collect()
    }

    /// What the candidate does differently in that call, where it would have answered it.
    fn differs(&self, candidate: &Saved, past: &Past, limits: &Limits) -> Option<Difference> {
        let Past { args, kwargs, told, .. } = past;
        if secret::is_in(&past.value) || !would_answer(candidate, args, kwargs, told) {
            return None;
        }
        let host = TapeHost::new(told, Follow::AnyOrder, candidate.key.role.clone());
        let arguments = Arguments { args, kwargs };
        let execution = self.run_again(candidate.key.language, &candidate.code, arguments, limits, &host).ok()?;
        if host.strayed().is_some() {
            return None;
        }
        let found = match execution.result {
            Ok(Returned::Value(value)) if same(&value, &past.value) => {
                if host.writes() == told.writes {
                    return None;
                }
                format!("{}, and leaves something else in the context", value.shown())
            }
            Ok(Returned::Value(value)) => secret::masked(&value).shown(),
            Ok(Returned::Outcome(outcome)) if outcome.ok() && same(outcome.value(), &past.value) => return None,
            Ok(Returned::Outcome(outcome)) => secret::masked(&Value::Map(outcome.to_map())).shown(),
            Err(ProgramFailure::Raised { message } | ProgramFailure::Refused { message }) => {
                format!("the error {}", Value::from(message).shown())
            }
            // A limit of the trial says nothing about the program.
            Err(_) => return None,
        };
        let method = &candidate.key.method;
        let given: Vec<String> = args
            .iter()
            .map(|value| secret::masked(value).shown())
            .chain(kwargs.iter().map(|(name, value)| format!("{name}={}", secret::masked_entry(name, value).shown())))
            .collect();
        let words =
            format!("{method}({}) gave {}; the new program gives {found}", given.join(", "), past.value.shown());
        Some(Difference { call: past.id, words })
    }
}

/// What is said of a program that becomes a candidate, for it differs so; nothing where nothing differs.
pub(crate) fn candidate_note(differences: &[Difference]) -> Option<String> {
    let (first, more) = differences.split_first()?;
    let more = if more.is_empty() { String::new() } else { format!(" (and {} more)", more.len()) };
    Some(format!(
        "the new program is kept as a candidate, for it answers recorded calls otherwise: {}{more}; the one before it \
         stays until somebody approves the new one",
        first.words
    ))
}

/// Whether the evidence of a program covers a recorded call, as far as the record tells.
fn would_answer(candidate: &Saved, args: &[Value], kwargs: &Map, tape: &Tape) -> bool {
    let covers = |((read, digest), value): (&(bool, Digest), &Value)| *read || canonical::hash(value) == *digest;
    let pinned_key = |(key, digest): (&String, &Digest)| {
        tape.context.get(key).and_then(Option::as_ref).is_some_and(|value| canonical::hash(value) == *digest)
    };
    candidate.inputs.iter().zip(args.iter().chain(kwargs.values())).all(covers)
        && candidate.pins.context.iter().all(pinned_key)
        && candidate.pins.history.is_none()
}
