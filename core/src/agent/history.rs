//! What an agent remembers of its ended calls: what programs see as `history` and `content(ref)`, and what prompts show.
//!
//! Each entry is rendered at most once, when somebody first looks at it: a reused call never does.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use crate::ids::CallId;
use crate::log::record::CallRecord;
use crate::prompt;
use crate::value::{Map, Value};

/// Ended calls that an agent remembers.
const ENTRIES: usize = 16;
/// Bytes of JSON up to which an entry shows a value itself rather than a reference.
const INLINE_BYTES: usize = 512;

/// The last ended calls, oldest first.
#[derive(Default)]
pub(super) struct History(VecDeque<Arc<Remembered>>);

/// One ended call and its views.
pub(super) struct Remembered {
    pub(super) record: Arc<CallRecord>,
    value: OnceLock<Value>,
    line: OnceLock<Arc<str>>,
}

impl History {
    /// Adds a call; returns the oldest one when there are too many, to be freed outside of locks.
    pub(super) fn push(&mut self, record: Arc<CallRecord>) -> Option<Arc<Remembered>> {
        let oldest = if self.0.len() == ENTRIES { self.0.pop_front() } else { None };
        self.0.push_back(Arc::new(Remembered { record, value: OnceLock::new(), line: OnceLock::new() }));
        oldest
    }

    /// All entries, oldest first.
    pub(super) fn entries(&self) -> Vec<Arc<Remembered>> {
        self.0.iter().cloned().collect()
    }
}

impl Remembered {
    /// As programs see it: `{method, args, kwargs, ok, value, error_type, error_message}`; of what is large, only the
    /// reference, as `<name>_ref`, that `content` takes.
    pub(super) fn value(&self) -> &Value {
        self.value.get_or_init(|| entry(&self.record))
    }

    /// As prompts show it.
    pub(super) fn line(&self) -> &Arc<str> {
        self.line.get_or_init(|| prompt::history_line(self.value()).into())
    }

    /// The value behind a reference, if this call is the one it names.
    fn content(&self, id: CallId, name: &str) -> Option<Value> {
        let record = &self.record;
        if record.call_id() != id {
            return None;
        }
        match name {
            "args" => Some(Value::List(record.args.to_vec())),
            "kwargs" => Some(Value::Map((*record.kwargs).clone())),
            "value" => Some(record.outcome.value().clone()),
            _ => None,
        }
    }
}

/// The value behind a reference of one of these entries; `None` for one that none of them gave out.
pub(super) fn content(entries: &[Arc<Remembered>], reference: &str) -> Option<Value> {
    let (id, name) = reference.split_once('/')?;
    let id = CallId::parse(id)?;
    entries.iter().find_map(|entry| entry.content(id, name))
}

fn entry(record: &CallRecord) -> Value {
    let mut entry = Map::new();
    entry.insert("method".into(), (&*record.method).into());
    put_bounded(&mut entry, "args", record, Value::List(record.args.to_vec()));
    put_bounded(&mut entry, "kwargs", record, Value::Map((*record.kwargs).clone()));
    entry.insert("ok".into(), record.outcome.ok().into());
    match record.outcome.error() {
        None => put_bounded(&mut entry, "value", record, record.outcome.value().clone()),
        Some(error) => {
            entry.insert("error_type".into(), error.error_type.as_str().into());
            entry.insert("error_message".into(), error.message.as_str().into());
        }
    }
    Value::Map(entry)
}

fn put_bounded(entry: &mut Map, name: &str, record: &CallRecord, value: Value) {
    if value.to_json().len() <= INLINE_BYTES {
        entry.insert(name.to_owned(), value);
    } else {
        entry.insert(format!("{name}_ref"), format!("{}/{name}", record.call_id()).into());
    }
}
