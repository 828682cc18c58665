//! What an agent remembers of its ended calls: what programs see as `history` and `content(ref)`, and what prompts show.
//!
//! Each entry is rendered at most once, when somebody first looks at it: a reused call never does.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use crate::log::record::CallRecord;
use crate::prompt;
use crate::provider::secret;
use crate::store::{AgentId, CallQuery, Store, StoreError};
use crate::value::{Map, Value};

/// Ended calls that an agent remembers.
const ENTRIES: usize = 16;
/// Bytes of JSON up to which an entry shows a value itself rather than a reference.
const INLINE_BYTES: usize = 512;
/// What references can name.
const REFERABLE: [&str; 3] = ["args", "kwargs", "value"];

/// The last ended calls, oldest first.
#[derive(Default)]
pub(super) struct History(VecDeque<Arc<Remembered>>);

/// One ended call and its views.
pub(super) struct Remembered {
    call: EndedCall,
    value: OnceLock<Value>,
    line: OnceLock<Arc<str>>,
}

/// Where what is remembered comes from.
enum EndedCall {
    /// From this process.
    Here(Arc<CallRecord>),
    /// From the store of a named agent.
    Stored(Box<Map>),
}

impl History {
    /// Adds a call; returns the oldest one when there are too many, to be freed outside of locks.
    pub(super) fn push(&mut self, record: Arc<CallRecord>) -> Option<Arc<Remembered>> {
        let oldest = if self.0.len() == ENTRIES { self.0.pop_front() } else { None };
        self.0.push_back(Arc::new(Remembered::new(EndedCall::Here(record))));
        oldest
    }

    /// What a named agent remembers from earlier processes.
    pub(super) fn stored(store: &dyn Store, agent: AgentId) -> Result<Self, StoreError> {
        let query = CallQuery { agent: Some(agent), limit: ENTRIES, ..CallQuery::default() };
        let calls = store.calls(&query)?.into_iter().rev();
        Ok(Self(calls.map(|call| Arc::new(Remembered::new(EndedCall::Stored(Box::new(call.record))))).collect()))
    }

    /// All entries, oldest first.
    pub(super) fn entries(&self) -> Vec<Arc<Remembered>> {
        self.0.iter().cloned().collect()
    }
}

impl Remembered {
    fn new(call: EndedCall) -> Self {
        Self { call, value: OnceLock::new(), line: OnceLock::new() }
    }

    /// The record, of a call of this process.
    pub(super) fn record(&self) -> Option<&Arc<CallRecord>> {
        match &self.call {
            EndedCall::Here(record) => Some(record),
            EndedCall::Stored(_) => None,
        }
    }

    /// As programs see it: `{method, args, kwargs, ok, value, error_type, error_message}`; of what is large, only the
    /// reference, as `<name>_ref`, that `content` takes.
    pub(super) fn value(&self) -> &Value {
        self.value.get_or_init(|| match &self.call {
            EndedCall::Here(record) => of_record(record),
            EndedCall::Stored(record) => of_stored(record),
        })
    }

    /// As prompts show it: without secrets.
    pub(super) fn line(&self) -> &Arc<str> {
        self.line.get_or_init(|| prompt::history_line(&secret::masked(self.value())).into())
    }

    /// The value behind a reference, if this call is the one it names.
    fn content(&self, id: &str, name: &str) -> Option<Value> {
        match &self.call {
            EndedCall::Stored(record) if text(record, "call_id") == id => {
                REFERABLE.contains(&name).then(|| record.get(name).cloned().unwrap_or_default())
            }
            EndedCall::Here(record) if record.call_id().to_string() == id => match name {
                "args" => Some(Value::List(record.args.to_vec())),
                "kwargs" => Some(Value::Map((*record.kwargs).clone())),
                "value" => Some(record.outcome.value().clone()),
                _ => None,
            },
            EndedCall::Here(_) | EndedCall::Stored(_) => None,
        }
    }
}

/// The value behind a reference of one of these entries; `None` for one that none of them gave out.
pub(super) fn content(entries: &[Arc<Remembered>], reference: &str) -> Option<Value> {
    let (id, name) = reference.split_once('/')?;
    entries.iter().find_map(|entry| entry.content(id, name))
}

fn of_record(record: &CallRecord) -> Value {
    let id = record.call_id().to_string();
    let mut entry = Map::from([("method".into(), (&*record.method).into()), ("ok".into(), record.outcome.ok().into())]);
    put_bounded(&mut entry, "args", &id, Value::List(record.args.to_vec()));
    put_bounded(&mut entry, "kwargs", &id, Value::Map((*record.kwargs).clone()));
    match record.outcome.error() {
        None => put_bounded(&mut entry, "value", &id, record.outcome.value().clone()),
        Some(error) => {
            entry.insert("error_type".into(), error.error_type.as_str().into());
            entry.insert("error_message".into(), error.message.as_str().into());
        }
    }
    Value::Map(entry)
}

fn of_stored(record: &Map) -> Value {
    let id = text(record, "call_id");
    let ok = text(record, "outcome_status") == "ok";
    let mut entry = Map::from([("method".into(), text(record, "method").into()), ("ok".into(), ok.into())]);
    for name in REFERABLE {
        if name != "value" || ok {
            put_bounded(&mut entry, name, id, record.get(name).cloned().unwrap_or_default());
        }
    }
    if !ok {
        entry.insert("error_type".into(), text(record, "outcome_error_type").into());
        entry.insert("error_message".into(), text(record, "outcome_error_message").into());
    }
    Value::Map(entry)
}

fn text<'a>(record: &'a Map, name: &str) -> &'a str {
    record.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn put_bounded(entry: &mut Map, name: &str, call_id: &str, value: Value) {
    if value.to_json().len() <= INLINE_BYTES {
        entry.insert(name.to_owned(), value);
    } else {
        entry.insert(format!("{name}_ref"), format!("{call_id}/{name}").into());
    }
}
