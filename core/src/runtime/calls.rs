//! What happened, as data: ended calls in one shape, whether a store holds them or this runtime remembers them.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::ids::{CallId, TraceId};
use crate::log::record::CallRecord;
use crate::program::tape::Tape;
use crate::runtime::Runtime;
use crate::runtime::replay::Recorded;
use crate::store::{CallQuery, StoreError, StoredCall};
use crate::value::{Map, Value};

/// Calls around a call that a tree shows.
const MAX_NESTED: usize = 256;

/// The fields of every call of [`Runtime::find_calls`], in the order in which people read them; null where nothing is known.
pub const CALL_FIELDS: [&str; 43] = [
    "call_id",
    "trace_id",
    "parent_call_id",
    "depth",
    "timestamp",
    "duration_ms",
    "namespace",
    "agent",
    "role",
    "method",
    "args",
    "kwargs",
    "outcome_status",
    "value",
    "outcome_error_type",
    "outcome_error_message",
    "outcome_retriable",
    "program_source",
    "reuse",
    "language",
    "model",
    "code",
    "generation_attempt",
    "inferences",
    "tokens_in",
    "tokens_out",
    "attempt_failures",
    "accounting",
    "prompt_bytes",
    "agent_outcome",
    "reason",
    "contract_source",
    "execution_receiver",
    "runtime",
    "durability",
    "gseq",
    "transcript",
    "transcript_head",
    "transcript_length",
    "system_prompt",
    "user_prompt",
    "context",
    "effects",
];

/// A call with the calls that its program made.
#[derive(Clone, Debug, PartialEq)]
pub struct CallTree {
    /// The call; see [`CALL_FIELDS`].
    pub call: Map,
    /// What it called, in the order in which that began.
    pub children: Vec<CallTree>,
}

impl CallTree {
    /// A field's text; empty when it has none.
    pub fn text(&self, name: &str) -> &str {
        text(&self.call, name)
    }

    /// Number of its calls, itself included.
    pub fn count(&self) -> usize {
        1 + self.children.iter().map(Self::count).sum::<usize>()
    }
}

impl Runtime {
    /// Ended calls that are asked for, as data with [`CALL_FIELDS`], oldest first, at most `limit` of the newest: from the
    /// store if there is one, else from what this runtime remembers. `effects` stay null here.
    pub fn find_calls(&self, query: &CallQuery) -> Result<Vec<Map>, StoreError> {
        let Some(store) = self.store() else {
            let calls = self.calls();
            let asked: Vec<_> = calls.iter().rev().filter(|call| query.asks_for(call)).take(query.limit).collect();
            return Ok(asked.into_iter().rev().map(|call| whole(of_record(call))).collect());
        };
        let mut calls = store.calls(query)?;
        if query.after.is_none() {
            calls.reverse();
        }
        Ok(calls.into_iter().map(|call| whole(call.to_map())).collect())
    }

    /// The newest ended calls, at most `limit`, oldest first; see [`Runtime::find_calls`].
    pub fn call_maps(&self, limit: usize) -> Result<Vec<Map>, StoreError> {
        self.find_calls(&CallQuery { limit, ..CallQuery::default() })
    }

    /// Ended calls that are asked for, newest first, each with what its last program was told; nothing where that is not
    /// recorded.
    pub(super) fn told_calls(&self, query: &CallQuery) -> Result<Vec<(Map, Option<Tape>)>, StoreError> {
        let last = |map: &Map, tapes: Result<Vec<Tape>, String>| {
            let failures = map.get("attempt_failures").and_then(Value::as_list).unwrap_or_default();
            let stage = |failure: &&Value| failure.as_map().map_or("", |failure| text(failure, "stage")).to_owned();
            // Programs that failed before it ran too.
            let earlier =
                failures.iter().filter(|failure| ["execution", "contract"].contains(&stage(failure).as_str()));
            let tape = tapes.ok()?.into_iter().nth(earlier.count()).unwrap_or_default();
            (!tape.too_long).then_some(tape)
        };
        let Some(store) = self.store() else {
            let calls = self.calls();
            let asked = calls.iter().rev().filter(|call| query.asks_for(call)).take(query.limit);
            return Ok(asked
                .map(|call| {
                    let map = of_record(call);
                    let told = last(&map, Recorded::of(call).tapes);
                    (map, told)
                })
                .collect());
        };
        let told = |mut call: StoredCall| {
            let tapes = std::mem::replace(&mut call.tapes, Ok(Vec::new()));
            let told = last(&call.record, tapes);
            (call.to_map(), told)
        };
        Ok(store.calls(query)?.into_iter().map(told).collect())
    }

    /// One ended call as data with [`CALL_FIELDS`]; its tool calls are `effects` when it comes from the store.
    pub fn call_map(&self, id: CallId) -> Result<Option<Map>, StoreError> {
        let Some(store) = self.store() else { return Ok(self.call(id).map(|call| whole(of_record(&call)))) };
        Ok(store.call(id)?.map(|mut call| {
            let effects = std::mem::take(&mut call.effects).into_iter().map(Value::Map).collect();
            let mut map = call.to_map();
            map.insert("effects".into(), Value::List(effects));
            whole(map)
        }))
    }

    /// A call with everything that it led to.
    pub fn call_tree(&self, id: CallId) -> Result<Option<CallTree>, StoreError> {
        let Some(call) = self.call_map(id)? else { return Ok(None) };
        let mut below = match TraceId::parse(text(&call, "trace_id")) {
            Some(trace) => self.find_calls(&CallQuery { below: Some(trace), ..CallQuery::default() })?,
            None => Vec::new(),
        };
        // Calls end before their callers; trees read better in the order in which they began.
        below.sort_by_cached_key(|call| text(call, "timestamp").to_owned());
        Ok(Some(CallTree { children: children(&call, &mut below, MAX_NESTED), call }))
    }
}

/// Takes the calls of one caller out of all calls of a flow, with what they called in turn, down to a bound: a record may
/// have been changed.
fn children(call: &Map, below: &mut Vec<Map>, left: usize) -> Vec<CallTree> {
    let id = text(call, "call_id");
    let (own, rest) = std::mem::take(below).into_iter().partition(|other| text(other, "parent_call_id") == id);
    *below = rest;
    let own: Vec<Map> = own;
    let mut trees = Vec::with_capacity(own.len());
    for call in own {
        let children = if left == 0 { Vec::new() } else { children(&call, below, left - 1) };
        trees.push(CallTree { children, call });
    }
    trees
}

fn text<'a>(call: &'a Map, name: &str) -> &'a str {
    call.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn of_record(record: &CallRecord) -> Map {
    let mut map = record.to_map();
    map.insert("value".into(), record.outcome.value().clone());
    map.insert("durability".into(), record.metadata.durability.as_str().into());
    map
}

/// A moment as people write it: RFC 3339, a day or a time of day in UTC, or an age such as `90m`, `2h` or `7d`.
pub fn since(text: &str) -> Result<SystemTime, String> {
    let text = text.trim();
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time.into());
    }
    if let Ok(time) = text.parse::<DateTime>()
        && let Ok(zoned) = time.to_zoned(TimeZone::UTC)
    {
        return Ok(zoned.timestamp().into());
    }
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(60 * 60),
        "d" => Some(24 * 60 * 60),
        "w" => Some(7 * 24 * 60 * 60),
        _ => None,
    };
    let seconds = digits.trim_end().parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    let began = seconds.and_then(|seconds| SystemTime::now().checked_sub(Duration::from_secs(seconds)));
    began.ok_or_else(|| {
        format!("{text:?} is no time; write 2026-11-22T05:00:00Z, 2026-11-22, or an age such as 90m, 2h or 7d")
    })
}

/// Exactly the published fields.
fn whole(mut map: Map) -> Map {
    let field = |name: &str| (name.to_owned(), map.remove(name).unwrap_or_default());
    CALL_FIELDS.into_iter().map(field).collect()
}
