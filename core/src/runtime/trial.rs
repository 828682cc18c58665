//! Trying a program before it replaces another: the method's recorded calls are its test (product.md section 8).
//!
//! A candidate runs on what the calls of the programs before it were told. Where its own evidence says that it would have
//! answered a call, it must answer as that call was answered. What is not known is no difference: a candidate that asks its
//! host something that was never recorded is not judged by that call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Runtime;
use super::replay::{Recorded, same, shown};
use crate::canonical;
use crate::ids::{CallId, Digest};
use crate::log::record::CallRecord;
use crate::program::registry::{Key, Saved, shape};
use crate::program::tape::{Follow, Tape, TapeHost};
use crate::program::{Arguments, Limits, ProgramFailure, Returned};
use crate::provider::secret;
use crate::store::{CallQuery, StoredCall};
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

/// One recorded call.
struct Past {
    id: CallId,
    code: Arc<str>,
    value: Value,
    /// Programs that failed in it before the last one.
    failed: usize,
    recorded: Recorded,
}

impl Runtime {
    /// Runs a program on the recorded calls of the programs `used` under its key before. Empty when it gives what they
    /// gave, and when there were none.
    /// Looks at as many as there is time for until `deadline`.
    pub(crate) fn trial(&self, candidate: &Saved, used: Vec<Arc<str>>, deadline: Option<Instant>) -> Vec<Difference> {
        let in_time = || deadline.is_none_or(|deadline| Instant::now() < deadline);
        if used.is_empty() || !in_time() {
            return Vec::new();
        }
        let limits = Limits { max_instructions: INSTRUCTIONS, cpu_time: CPU_TIME, ..(*self.0.settings.limits).clone() };
        self.past_calls(&candidate.key)
            .into_iter()
            .filter(|past| used.contains(&past.code))
            .take(CALLS)
            .take_while(|_| in_time())
            .filter_map(|past| self.differs(candidate, &past, &limits))
            .collect()
    }

    /// The newest calls under that key that went well.
    fn past_calls(&self, key: &Key) -> Vec<Past> {
        let Some(store) = self.store() else {
            let of_key = |record: &Arc<CallRecord>| {
                record.role == key.role
                    && record.method == key.method
                    && record.metadata.language == key.language.as_str()
                    && shape(Arguments { args: &record.args, kwargs: &record.kwargs }) == key.shape
            };
            let past = |record: Arc<CallRecord>| {
                let code = record.metadata.code.clone().filter(|_| record.outcome.ok())?;
                let value = record.outcome.value().clone();
                let failed = record.attempt_failures.iter().filter(|failure| ran_and_failed(failure.stage)).count();
                Some(Past { id: record.call_id(), code, value, failed, recorded: Recorded::of(&record) })
            };
            return self.calls().into_iter().rev().filter(of_key).take(RECENT).filter_map(past).collect();
        };
        let query = CallQuery {
            role: Some(key.role.to_string()),
            method: Some(key.method.to_string()),
            limit: RECENT,
            ..CallQuery::default()
        };
        let calls = store.calls(&query).unwrap_or_else(|error| {
            tracing::warn!(%error, "recorded calls cannot be read; a new program is not tried against them");
            Vec::new()
        });
        let past = |call: StoredCall| {
            let text = |name: &str| call.record.get(name).and_then(Value::as_str);
            if text("outcome_status") != Some("ok") || text("language") != Some(key.language.as_str()) {
                return None;
            }
            let (id, code) = (CallId::parse(text("call_id")?)?, text("code")?.into());
            let value = call.record.get("value").cloned().unwrap_or_default();
            let failures = call.record.get("attempt_failures").and_then(Value::as_list).unwrap_or_default();
            let stage = |failure: &Value| {
                let stage = failure.as_map().and_then(|failure| failure.get("stage"));
                stage.and_then(Value::as_str).is_some_and(ran_and_failed)
            };
            let failed = failures.iter().filter(|failure| stage(failure)).count();
            let recorded = Recorded::of_stored(call);
            let arguments = Arguments { args: &recorded.args, kwargs: &recorded.kwargs };
            (shape(arguments) == key.shape).then_some(Past { id, code, value, failed, recorded })
        };
        calls.into_iter().filter_map(past).collect()
    }

    /// What the candidate does differently in that call, where it would have answered it.
    fn differs(&self, candidate: &Saved, past: &Past, limits: &Limits) -> Option<Difference> {
        let Recorded { role, args, kwargs, tapes } = &past.recorded;
        let no_tape = Tape::default();
        // The last execution gave the value; before it there may have been others that failed.
        let tape = tapes.as_ref().ok()?.get(past.failed).unwrap_or(&no_tape);
        if tape.too_long || secret::is_in(&past.value) || !would_answer(candidate, args, kwargs, tape) {
            return None;
        }
        let host = TapeHost::new(tape, Follow::AnyOrder, role.clone());
        let arguments = Arguments { args, kwargs };
        let execution = self.run_again(candidate.key.language, &candidate.code, arguments, limits, &host).ok()?;
        if host.strayed().is_some() {
            return None;
        }
        let found = match execution.result {
            Ok(Returned::Value(value)) if same(&value, &past.value) => {
                if host.writes() == tape.writes {
                    return None;
                }
                format!("{}, and leaves something else in the context", shown(&value))
            }
            Ok(Returned::Value(value)) => shown(&secret::masked(&value)),
            Ok(Returned::Outcome(outcome)) if outcome.ok() && same(outcome.value(), &past.value) => return None,
            Ok(Returned::Outcome(outcome)) => shown(&secret::masked(&Value::Map(outcome.to_map()))),
            Err(ProgramFailure::Raised { message } | ProgramFailure::Refused { message }) => {
                format!("the error {}", shown(&message.as_str().into()))
            }
            // A limit of the trial says nothing about the program.
            Err(_) => return None,
        };
        let method = &candidate.key.method;
        let given: Vec<String> = args
            .iter()
            .map(|value| shown(&secret::masked(value)))
            .chain(kwargs.iter().map(|(name, value)| format!("{name}={}", shown(&secret::masked_entry(name, value)))))
            .collect();
        let words =
            format!("{method}({}) gave {}; the new program gives {found}", given.join(", "), shown(&past.value));
        Some(Difference { call: past.id, words })
    }
}

/// Whether a program ran in an attempt that failed at that stage.
fn ran_and_failed(stage: &str) -> bool {
    ["execution", "contract"].contains(&stage)
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
