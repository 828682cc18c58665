//! The runtime context: what an agent remembers, as one live map that is never replaced.
//!
//! Hosts read and write it directly. A program works through an [`Attempt`]: a write set above the map that becomes
//! visible as a whole when the attempt succeeds and vanishes when it fails, at the cost of the written keys only.

use std::collections::BTreeMap;

use parking_lot::{Mutex, RwLock};

use crate::value::{Map, Value};

/// The live map of one agent (AC-4.2). All methods are atomic; none blocks longer than a map access.
#[derive(Debug, Default)]
pub struct RuntimeContext {
    map: RwLock<Map>,
}

impl RuntimeContext {
    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.map.read().get(key).cloned()
    }

    /// Whether `key` is present.
    pub fn contains(&self, key: &str) -> bool {
        self.map.read().contains_key(key)
    }

    /// Writes one key.
    pub fn set(&self, key: &str, value: Value) {
        let mut map = self.map.write();
        match map.get_mut(key) {
            Some(slot) => *slot = value,
            None => {
                map.insert(key.to_owned(), value);
            }
        }
    }

    /// Writes several keys at once.
    pub fn extend(&self, entries: Map) {
        self.map.write().extend(entries);
    }

    /// Removes one key and returns what it held.
    pub fn remove(&self, key: &str) -> Option<Value> {
        self.map.write().remove(key)
    }

    /// Removes every key.
    pub fn clear(&self) {
        self.map.write().clear();
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<String> {
        self.map.read().keys().cloned().collect()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.map.read().len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.map.read().is_empty()
    }

    /// A copy of the whole map, for logs and prompts.
    pub fn snapshot(&self) -> Map {
        self.map.read().clone()
    }
}

/// What an attempt reads through to: the agent's map, or the attempt of the call around it when an agent calls itself.
#[derive(Clone, Copy)]
pub(crate) enum Base<'a> {
    /// The agent's live map.
    Live(&'a RuntimeContext),
    /// The enclosing attempt on the same agent.
    Outer(&'a Attempt<'a>),
}

/// One attempt's view: reads fall through to the base, writes stay here until [`Attempt::commit`].
pub(crate) struct Attempt<'a> {
    base: Base<'a>,
    /// `None` marks a removed key.
    writes: Mutex<BTreeMap<String, Option<Value>>>,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(base: Base<'a>) -> Self {
        Self { base, writes: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        if let Some(written) = self.writes.lock().get(key) {
            return written.clone();
        }
        match self.base {
            Base::Live(context) => context.get(key),
            Base::Outer(attempt) => attempt.get(key),
        }
    }

    pub(crate) fn set(&self, key: &str, value: Option<Value>) {
        self.writes.lock().insert(key.to_owned(), value);
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys = match self.base {
            Base::Live(context) => context.keys(),
            Base::Outer(attempt) => attempt.keys(),
        };
        for (key, written) in &*self.writes.lock() {
            match (keys.binary_search(key), written) {
                (Ok(index), None) => {
                    keys.remove(index);
                }
                (Err(index), Some(_)) => keys.insert(index, key.clone()),
                (Ok(_), Some(_)) | (Err(_), None) => {}
            }
        }
        keys
    }

    pub(crate) fn snapshot(&self) -> Map {
        let mut map = match self.base {
            Base::Live(context) => context.snapshot(),
            Base::Outer(attempt) => attempt.snapshot(),
        };
        apply(&mut map, self.writes.lock().clone());
        map
    }

    /// The write set so far, as data: an observable of a dry run.
    pub(crate) fn writes(&self) -> BTreeMap<String, Option<Value>> {
        self.writes.lock().clone()
    }

    /// Makes every write visible in the base, all at once.
    pub(crate) fn commit(&self) {
        let writes = std::mem::take(&mut *self.writes.lock());
        if writes.is_empty() {
            return;
        }
        match self.base {
            Base::Live(context) => apply(&mut context.map.write(), writes),
            Base::Outer(attempt) => attempt.writes.lock().extend(writes),
        }
    }
}

fn apply(map: &mut Map, writes: BTreeMap<String, Option<Value>>) {
    for (key, written) in writes {
        match written {
            Some(value) => {
                map.insert(key, value);
            }
            None => {
                map.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_show_their_writes_only_after_commit() {
        let context = RuntimeContext::default();
        context.set("kept", 1.into());
        context.set("gone", 2.into());
        let attempt = Attempt::new(Base::Live(&context));
        attempt.set("new", Some(3.into()));
        attempt.set("gone", None);
        assert_eq!(attempt.keys(), ["kept", "new"]);
        assert_eq!(context.keys(), ["gone", "kept"]);
        drop(attempt);
        assert_eq!(context.keys(), ["gone", "kept"], "an attempt that is dropped leaves no trace");
        let attempt = Attempt::new(Base::Live(&context));
        attempt.set("gone", None);
        attempt.commit();
        assert_eq!(context.keys(), ["kept"]);
    }

    #[test]
    fn an_inner_attempt_commits_into_the_outer_one() {
        let context = RuntimeContext::default();
        let outer = Attempt::new(Base::Live(&context));
        outer.set("a", Some(1.into()));
        let inner = Attempt::new(Base::Outer(&outer));
        inner.set("b", inner.get("a"));
        inner.commit();
        assert_eq!(outer.get("b"), Some(1.into()));
        assert!(context.is_empty(), "nothing is visible before the outer attempt commits");
    }
}
