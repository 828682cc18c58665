//! Delegates that can be taken up again: what was agreed when an agent made one, by the role of its maker.
//!
//! `agent.tool("tutor")` finds the delegate that an agent of the same role made before, in this process or in another one
//! on the same store. Models are shown those that come nearest to the call. Only the delegation contract is kept: models,
//! limits and tools are the maker's.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::store::{Change, Delegate, Durability, Store};
use crate::value::{Map, Value};

/// Delegates of one maker; the one that was used least gives way.
const PER_MAKER: usize = 64;
/// Makers that are remembered at once.
const MAKERS: usize = 1_024;
/// Bytes of a contract that is kept.
const CONTRACT_BYTES: usize = 16 << 10;

/// The delegates that the agents of a runtime made, by namespace and role of the maker.
#[derive(Debug, Default)]
pub(crate) struct Delegates {
    makers: Mutex<HashMap<MakerKey, ByName>>,
}

/// Namespace and role of a maker.
type MakerKey = (Arc<str>, Arc<str>);

/// Delegates of one maker.
type ByName = BTreeMap<Arc<str>, Delegate>;

/// Who made a delegate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker<'a> {
    pub(crate) namespace: &'a Arc<str>,
    pub(crate) role: &'a Arc<str>,
    pub(crate) store: Option<&'a Arc<dyn Store>>,
}

impl Delegates {
    /// Notes that a delegate was made or taken up. The store hears of a new one, of another contract, and then ever more
    /// rarely, so that a delegate that is used all the time costs it nothing.
    pub(crate) fn note(&self, maker: Maker<'_>, name: &Arc<str>, contract: &Map) {
        let noted = self.with(maker, |delegates| {
            if let Some(known) = delegates.get_mut(name).filter(|known| known.contract == *contract) {
                known.uses += 1;
                return known.uses.is_power_of_two().then(|| known.clone());
            }
            if Value::Map(contract.clone()).to_json().len() > CONTRACT_BYTES {
                return None;
            }
            let delegate = Delegate { name: name.clone(), contract: contract.clone(), uses: 1 };
            delegates.insert(name.clone(), delegate.clone());
            if delegates.len() > PER_MAKER
                && let Some(least) =
                    delegates.values().filter(|other| other.name != *name).min_by_key(|other| other.uses)
            {
                let least = least.name.clone();
                delegates.remove(&least);
            }
            Some(delegate)
        });
        if let (Some(delegate), Some(store)) = (noted, maker.store) {
            let (namespace, role) = (maker.namespace.clone(), maker.role.clone());
            let change = Change::Delegate { namespace, maker: role, delegate: Arc::new(delegate) };
            if let Err(error) = store.write(vec![change], Durability::Batch, None) {
                tracing::warn!(%error, "a delegate cannot be kept: the next process will not find it by its name");
            }
        }
    }

    /// What was agreed with the delegate of that name; asks the store for one that another process made since.
    pub(crate) fn find(&self, maker: Maker<'_>, name: &str) -> Option<Map> {
        let known = self.with(maker, |delegates| delegates.get(name).map(|known| known.contract.clone()));
        known.or_else(|| {
            let stored = stored(maker, Some(name)).pop()?;
            let contract = stored.contract.clone();
            self.with(maker, |delegates| drop(delegates.insert(stored.name.clone(), stored)));
            Some(contract)
        })
    }

    /// Name and purpose of all of one maker, the most used first.
    pub(crate) fn of(&self, maker: Maker<'_>) -> Vec<(Arc<str>, Option<String>)> {
        self.with(maker, |delegates| {
            let mut ranked: Vec<&Delegate> = delegates.values().collect();
            ranked.sort_by_key(|delegate| std::cmp::Reverse(delegate.uses));
            let purpose = |delegate: &Delegate| Some(delegate.contract.get("purpose")?.as_str()?.to_owned());
            ranked.into_iter().map(|delegate| (delegate.name.clone(), purpose(delegate))).collect()
        })
    }

    /// Those of the role, read from the store when they are first asked for.
    fn with<R>(&self, maker: Maker<'_>, with: impl FnOnce(&mut ByName) -> R) -> R {
        let key = (maker.namespace.clone(), maker.role.clone());
        if let Some(delegates) = self.makers.lock().get_mut(&key) {
            return with(delegates);
        }
        // Read outside the lock: a store may be slow.
        let read = stored(maker, None);
        let mut makers = self.makers.lock();
        if makers.len() >= MAKERS {
            makers.clear();
        }
        let named = |delegate: Delegate| (delegate.name.clone(), delegate);
        with(makers.entry(key).or_insert_with(|| read.into_iter().map(named).collect()))
    }
}

fn stored(maker: Maker<'_>, name: Option<&str>) -> Vec<Delegate> {
    let Some(store) = maker.store else { return Vec::new() };
    store.delegates(maker.namespace, maker.role, name).unwrap_or_else(|error| {
        tracing::warn!(%error, "the delegates of the store cannot be read");
        Vec::new()
    })
}
