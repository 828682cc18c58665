//! The runtime context: what an agent remembers, as one live map that is never replaced.
//!
//! Hosts read and write it directly. A program works through an [`Attempt`]: a write set above the map that becomes
//! visible as a whole when the attempt succeeds and vanishes when it fails, at the cost of the written keys only.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::fork::PerProcess;
use crate::outcome::Durability;
use crate::program::Reads;
use crate::store::{AgentId, AgentLock, AgentState, Change, Store, StoreError, Writes};
use crate::value::{Map, Value};

/// How long a host's write of a named agent waits for another process and for the disk.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The live map of one agent (AC-4.2). All methods are atomic.
///
/// For an agent without a name none blocks longer than a map access, and none fails. For one with a name each read sees
/// what other processes wrote, and each write is on the disk, in every process's order, before it is visible.
#[derive(Debug, Default)]
pub struct RuntimeContext {
    map: RwLock<Map>,
    /// Counts writes that no attempt made: what a program read before one of them may not be what is there after it.
    changes: AtomicU64,
    durable: Option<Durable>,
}

/// The stored side of a named agent's context.
#[derive(Debug)]
pub(crate) struct Durable {
    store: Arc<dyn Store>,
    id: AgentId,
    /// The version that the map shows.
    version: AtomicI64,
    /// Calls of this agent under way in this process: while there is one, this process has the agent's turn.
    held: PerProcess<AtomicU32>,
    /// Writes become visible in the order in which the store took them.
    order: PerProcess<Mutex<()>>,
}

/// The agent's turn among all processes, for one call.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    held: &'a AtomicU32,
    _lock: Box<dyn AgentLock>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A write under way, held from before the store takes it until it is visible: of two writes, the later one in the store
/// is the one that is seen.
pub(crate) struct Writing<'a> {
    durable: &'a Durable,
    before: i64,
    _order: MutexGuard<'a, ()>,
}

impl Writing<'_> {
    /// The store took it. Somebody who read meanwhile has seen it, and the version with it, already.
    pub(crate) fn taken(&self) {
        let (before, after) = (self.before, self.before + 1);
        let _seen_already = self.durable.version.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl RuntimeContext {
    /// The context of a named agent as it was found in its store.
    pub(crate) fn stored(store: Arc<dyn Store>, state: AgentState) -> Self {
        let version = AtomicI64::new(state.version);
        let durable =
            Durable { store, id: state.id, version, held: PerProcess::default(), order: PerProcess::default() };
        Self { map: RwLock::new(state.context), changes: AtomicU64::new(0), durable: Some(durable) }
    }

    /// The agent's number, if it has a name.
    pub(crate) fn agent_id(&self) -> Option<AgentId> {
        self.durable.as_ref().map(|durable| durable.id)
    }

    /// Waits for the turn of a named agent among all processes, and sees what they wrote; `None` for one without a name.
    pub(crate) fn turn(&self, deadline: Instant) -> Result<Option<Turn<'_>>, StoreError> {
        let Some(durable) = &self.durable else { return Ok(None) };
        let lock = durable.store.lock_agent(durable.id, deadline)?;
        let held = durable.held.get();
        held.fetch_add(1, Ordering::AcqRel);
        let turn = Turn { held, _lock: lock };
        self.refresh()?;
        Ok(Some(turn))
    }

    /// Begins a write of a named agent; `None` for one without a name.
    pub(crate) fn writing(&self) -> Option<Writing<'_>> {
        let durable = self.durable.as_ref()?;
        let order = durable.order.get().lock();
        Some(Writing { durable, before: durable.version.load(Ordering::Acquire), _order: order })
    }

    /// Takes over what other processes wrote.
    fn refresh(&self) -> Result<(), StoreError> {
        let Some(durable) = &self.durable else { return Ok(()) };
        if let Some(state) = durable.store.changed_agent(durable.id, durable.version.load(Ordering::Acquire))? {
            let mut map = self.map.write();
            *map = state.context;
            durable.version.store(state.version, Ordering::Release);
        }
        Ok(())
    }

    /// Makes writes durable, where the agent has a name, and then visible.
    fn write(&self, writes: Writes) -> Result<(), StoreError> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        let turn = match &self.durable {
            Some(durable) if durable.held.get().load(Ordering::Acquire) == 0 => {
                self.turn(Instant::now() + WRITE_TIMEOUT)?
            }
            Some(_) | None => None,
        };
        let writing = self.writing();
        if let Some(durable) = &self.durable {
            let unit = vec![Change::Context { agent: durable.id, writes: writes.clone() }];
            durable.store.write(unit, Durability::Strict, Some(Instant::now() + WRITE_TIMEOUT))?;
        }
        if let Some(writing) = &writing {
            writing.taken();
        }
        apply(&mut self.map.write(), writes);
        drop(turn);
        Ok(())
    }

    /// The map as other processes left it. A store that cannot be read costs freshness, not the read.
    fn fresh(&self) -> parking_lot::RwLockReadGuard<'_, Map> {
        if let Err(error) = self.refresh() {
            tracing::warn!(%error, "the context of a named agent may be out of date");
        }
        self.map.read()
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.fresh().get(key).cloned()
    }

    /// Whether `key` is present.
    pub fn contains(&self, key: &str) -> bool {
        self.fresh().contains_key(key)
    }

    /// Writes one key.
    pub fn set(&self, key: &str, value: Value) -> Result<(), StoreError> {
        if self.durable.is_some() {
            return self.write(Writes::from([(key.to_owned(), Some(value))]));
        }
        let mut map = self.map.write();
        self.changes.fetch_add(1, Ordering::Relaxed);
        match map.get_mut(key) {
            Some(slot) => *slot = value,
            None => {
                map.insert(key.to_owned(), value);
            }
        }
        Ok(())
    }

    /// Writes several keys at once.
    pub fn extend(&self, entries: Map) -> Result<(), StoreError> {
        self.write(entries.into_iter().map(|(key, value)| (key, Some(value))).collect())
    }

    /// Removes one key and returns what it held.
    pub fn remove(&self, key: &str) -> Result<Option<Value>, StoreError> {
        if self.durable.is_none() {
            self.changes.fetch_add(1, Ordering::Relaxed);
            return Ok(self.map.write().remove(key));
        }
        let held = self.get(key);
        if held.is_some() {
            self.write(Writes::from([(key.to_owned(), None)]))?;
        }
        Ok(held)
    }

    /// Removes every key.
    pub fn clear(&self) -> Result<(), StoreError> {
        let keys = self.keys();
        self.write(keys.into_iter().map(|key| (key, None)).collect())
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<String> {
        self.fresh().keys().cloned().collect()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.fresh().len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.fresh().is_empty()
    }

    /// A copy of the whole map, for logs and prompts.
    pub fn snapshot(&self) -> Map {
        self.fresh().clone()
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
    writes: Mutex<Writes>,
    /// Writes of the host to the live map before it began.
    changes: u64,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(base: Base<'a>) -> Self {
        Self { base, writes: Mutex::default(), changes: changes_of(base) }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        if let Some(written) = self.writes.lock().get(key) {
            return written.clone();
        }
        match self.base {
            Base::Live(context) => context.map.read().get(key).cloned(),
            Base::Outer(attempt) => attempt.get(key),
        }
    }

    pub(crate) fn set(&self, key: &str, value: Option<Value>) {
        self.writes.lock().insert(key.to_owned(), value);
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys = match self.base {
            Base::Live(context) => context.map.read().keys().cloned().collect(),
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
            Base::Live(context) => context.map.read().clone(),
            Base::Outer(attempt) => attempt.snapshot(),
        };
        apply(&mut map, self.writes.lock().clone());
        map
    }

    /// The write set so far, as data: an observable of a dry run.
    pub(crate) fn writes(&self) -> Writes {
        self.writes.lock().clone()
    }

    /// Whether the host wrote to the map below while the program ran.
    pub(crate) fn base_changed(&self) -> bool {
        changes_of(self.base) != self.changes
    }

    /// What a program that read these keys saw below its own writes; `None` for a key that was not there.
    pub(crate) fn seen(&self, reads: &Reads) -> Writes {
        if reads.context.is_empty() && !reads.all_context {
            return Writes::new();
        }
        let below = |key: &String| match self.base {
            Base::Live(context) => context.map.read().get(key).cloned(),
            Base::Outer(attempt) => attempt.get(key),
        };
        let mut seen: Writes = match self.base {
            _ if !reads.all_context => Writes::new(),
            Base::Live(context) => {
                context.map.read().iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect()
            }
            Base::Outer(attempt) => attempt.snapshot().into_iter().map(|(key, value)| (key, Some(value))).collect(),
        };
        for key in &reads.context {
            seen.entry(key.clone()).or_insert_with(|| below(key));
        }
        seen
    }

    /// Whether the writes go to the agent's own map, and not to an attempt around this one.
    pub(crate) fn is_outermost(&self) -> bool {
        matches!(self.base, Base::Live(_))
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

fn changes_of(base: Base<'_>) -> u64 {
    match base {
        Base::Live(context) => context.changes.load(Ordering::Relaxed),
        Base::Outer(attempt) => changes_of(attempt.base),
    }
}

fn apply(map: &mut Map, writes: Writes) {
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
        context.set("kept", 1.into()).unwrap();
        context.set("gone", 2.into()).unwrap();
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
