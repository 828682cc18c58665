//! What the program was given, as live objects: `args`, `kwargs`, `context`, `history`.
//!
//! Reading through them is recorded ([`Reads`](crate::program::Reads)), so they are types of their own; where a program
//! wants a plain array or map, they become one. Lists and maps inside are handed out as shared values and kept, so
//! `args[0][i]` in a loop converts once, and `context.items.push(3)` is one step; what was handed out of the context and
//! may have changed is compared and written back before the host looks and at the program's end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use rhai::{Array, Dynamic, ImmutableString, Map as RhaiMap};

use super::call::{Call, Native, raise};
use super::convert::{Caps, to_dynamic, to_value};
use super::surface::Reach;
use crate::program::AgentRef;
use crate::value::Value;

/// `args`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArgsView;

/// `kwargs`.
#[derive(Clone, Copy, Debug)]
pub(super) struct KwargsView;

/// `context`, and the `runtime_context` of any agent.
#[derive(Clone)]
pub(super) struct ContextView {
    pub(super) agent: AgentRef,
    pub(super) reach: Reach,
}

/// What was handed out so far.
#[derive(Default)]
pub(super) struct Live {
    args: RefCell<BTreeMap<usize, Kept>>,
    kwargs: RefCell<BTreeMap<String, Kept>>,
    context: RefCell<BTreeMap<String, Held>>,
    history: RefCell<Option<Dynamic>>,
}

/// A list or map that was handed out as a shared value. Handing it out again copies nothing.
#[derive(Clone)]
pub(super) struct Kept(Arc<RwLock<Dynamic>>);

impl Kept {
    pub(super) fn new(value: Dynamic) -> Self {
        Self(Arc::new(RwLock::new(value)))
    }

    /// The shared value, unless a method is working on it: Rhai would wait for that one, in vain.
    pub(super) fn hand_out(&self) -> Option<Dynamic> {
        self.0.try_write().is_ok().then(|| Dynamic::from(self.0.clone()))
    }
}

struct Held {
    value: Kept,
    /// The program may have changed it since the host saw it.
    dirty: bool,
}

impl Live {
    /// Writes back what the program may have changed. A value that a running method holds is left for later: that
    /// method's write-back follows.
    pub(super) fn flush(call: &Call<'_>) -> Native<()> {
        let dirty: Vec<(String, Dynamic)> = {
            let context = call.live.context.borrow();
            if context.is_empty() {
                return Ok(());
            }
            let dirty = context.iter().filter(|(_, held)| held.dirty);
            dirty.filter_map(|(key, held)| Some((key.clone(), held.value.hand_out()?))).collect()
        };
        for (key, value) in dirty {
            let value = to_value(&value, Caps::of(call.limits))
                .map_err(|refusal| raise(call.cut(format!("`context.{key}` is refused: {refusal}"))))?;
            call.guarded(|| match call.host.context_get(AgentRef::THIS, &key) {
                Some(same) if same == value => Ok(()),
                Some(_) | None => call.host.context_set(AgentRef::THIS, &key, value),
            })?;
            if let Some(held) = call.live.context.borrow_mut().get_mut(&key) {
                held.dirty = false;
            }
        }
        Ok(())
    }

    /// The host may change the context: what was read is read again.
    pub(super) fn forget_context(&self) {
        self.context.borrow_mut().retain(|_, held| held.dirty);
    }
}

/// A host value inside the program.
pub(super) fn given(value: &Value) -> Native<Dynamic> {
    to_dynamic(value).map_err(|refusal| raise(refusal.to_string()))
}

/// An argument inside the program: shared when it is a list or map, else by value. While a method works on the shared
/// one, others get a copy of what the host passed.
fn handed_out<K: Ord + Clone>(kept: &RefCell<BTreeMap<K, Kept>>, key: &K, value: &Value) -> Native<Dynamic> {
    let known = kept.borrow().get(key).cloned();
    if let Some(known) = known {
        return known.hand_out().map_or_else(|| given(value), Ok);
    }
    let fresh = given(value)?;
    if !(fresh.is_array() || fresh.is_map()) {
        return Ok(fresh);
    }
    let fresh = Kept::new(fresh);
    let shared = Dynamic::from(fresh.0.clone());
    kept.borrow_mut().insert(key.clone(), fresh);
    Ok(shared)
}

impl ArgsView {
    /// `args[index]`, negative from the end; an error outside, as for an array.
    pub(super) fn index(index: i64) -> Native<Dynamic> {
        Self::at(index)?.ok_or_else(|| {
            let count = Call::current(|call| call.map_or(0, |call| call.arguments.args.len()));
            rhai::EvalAltResult::ErrorArrayBounds(count, index, rhai::Position::NONE).into()
        })
    }

    /// `args.get(index)`: `()` outside.
    pub(super) fn get(index: i64) -> Native<Dynamic> {
        Ok(Self::at(index)?.map(|value| value.flatten_clone()).unwrap_or_default())
    }

    fn at(index: i64) -> Native<Option<Dynamic>> {
        Call::here(|call| {
            let args = call.arguments.args;
            let position = if index < 0 {
                // From the end: the answer depends on how many there are.
                call.reads.borrow_mut().all_args = true;
                usize::try_from(index.unsigned_abs()).ok().and_then(|back| args.len().checked_sub(back))
            } else {
                usize::try_from(index).ok()
            };
            let Some((position, value)) = position.and_then(|position| Some((position, args.get(position)?))) else {
                call.reads.borrow_mut().all_args = true;
                return Ok(None);
            };
            call.reads.borrow_mut().saw_arg(position);
            handed_out(&call.live.args, &position, value).map(Some)
        })
    }

    pub(super) fn len() -> Native<i64> {
        Call::here(|call| {
            call.reads.borrow_mut().all_args = true;
            Ok(call.arguments.args.len() as i64)
        })
    }

    /// All of them as a plain array.
    pub(super) fn all() -> Native<Dynamic> {
        let count = Self::len()?;
        (0..count).map(Self::get).collect::<Native<Array>>().map(Dynamic::from_array)
    }
}

impl KwargsView {
    /// `kwargs.name`: `()` when missing.
    pub(super) fn index(key: &str) -> Native<Dynamic> {
        Call::here(|call| {
            call.reads.borrow_mut().saw_kwarg(key);
            let Some(value) = call.arguments.kwargs.get(key) else { return Ok(Dynamic::UNIT) };
            handed_out(&call.live.kwargs, &key.to_owned(), value)
        })
    }

    pub(super) fn contains(key: &str) -> Native<bool> {
        Call::here(|call| {
            call.reads.borrow_mut().saw_kwarg(key);
            Ok(call.arguments.kwargs.contains_key(key))
        })
    }

    pub(super) fn keys() -> Native<Array> {
        Call::here(|call| {
            call.reads.borrow_mut().all_kwargs = true;
            Ok(call.arguments.kwargs.keys().map(|key| key.as_str().into()).collect())
        })
    }

    /// All of them as a plain map.
    pub(super) fn all() -> Native<Dynamic> {
        let mut map = RhaiMap::new();
        for key in Self::keys()? {
            let key = key.into_immutable_string().unwrap_or_default();
            map.insert(key.as_str().into(), Self::index(&key)?.flatten_clone());
        }
        Ok(Dynamic::from_map(map))
    }
}

impl ContextView {
    /// The context of the agent that the program runs for goes through the kept values; others go straight to the host.
    fn is_own(&self) -> bool {
        self.agent == AgentRef::THIS && matches!(self.reach, Reach::Program)
    }

    /// `context.key`: `()` when missing.
    pub(super) fn index(&self, key: &str) -> Native<Dynamic> {
        if !self.is_own() {
            let found = self.reach.ask(|host| Ok(host.context_get(self.agent, key)))?;
            return found.as_ref().map_or(Ok(Dynamic::UNIT), given);
        }
        Call::here(|call| {
            call.reads.borrow_mut().saw_context(key);
            if let Some(held) = call.live.context.borrow().get(key) {
                if let Some(shared) = held.value.hand_out() {
                    return Ok(shared);
                }
                if held.dirty {
                    let message = format!("`context.{key}` is in use by the method that called this; copy it first");
                    return Err(raise(call.cut(message)));
                }
            }
            let found = call.guarded(|| Ok(call.host.context_get(AgentRef::THIS, key)))?;
            let Some(value) = found else { return Ok(Dynamic::UNIT) };
            let fresh = given(&value)?;
            if !(fresh.is_array() || fresh.is_map()) || call.live.context.borrow().contains_key(key) {
                return Ok(fresh);
            }
            let fresh = Kept::new(fresh);
            let shared = Dynamic::from(fresh.0.clone());
            call.live.context.borrow_mut().insert(key.to_owned(), Held { value: fresh, dirty: false });
            Ok(shared)
        })
    }

    /// `context.key = value`. Lists and maps are kept and written back later, anything else at once.
    pub(super) fn set(&self, key: &str, value: Dynamic) -> Native<()> {
        if !self.is_own() {
            let value = self.reach.value(&value.flatten())?;
            return self.reach.ask(|host| match host.context_get(self.agent, key) {
                // Rhai writes back after every method call, also after one that only reads.
                Some(same) if same == value => Ok(()),
                Some(_) | None => host.context_set(self.agent, key, value),
            });
        }
        Call::here(|call| {
            // The kept value goes first: then flattening moves instead of copying.
            call.live.context.borrow_mut().remove(key);
            let value = value.flatten();
            if value.is_array() || value.is_map() {
                let held = Held { value: Kept::new(value), dirty: true };
                call.live.context.borrow_mut().insert(key.to_owned(), held);
                return Ok(());
            }
            let value = to_value(&value, Caps::of(call.limits))
                .map_err(|refusal| raise(call.cut(format!("`context.{key}` is refused: {refusal}"))))?;
            call.guarded(|| call.host.context_set(AgentRef::THIS, key, value))
        })
    }

    /// Removes a key and returns what it held.
    pub(super) fn remove(&self, key: &str) -> Native<Dynamic> {
        let before = self.index(key)?.flatten_clone();
        if self.is_own() {
            Call::here(|call| {
                call.live.context.borrow_mut().remove(key);
                call.guarded(|| call.host.context_remove(AgentRef::THIS, key))
            })?;
        } else {
            self.reach.ask(|host| host.context_remove(self.agent, key))?;
        }
        Ok(before)
    }

    pub(super) fn contains(&self, key: &str) -> Native<bool> {
        if !self.is_own() {
            return self.reach.ask(|host| Ok(host.context_get(self.agent, key).is_some()));
        }
        Call::here(|call| {
            call.reads.borrow_mut().saw_context(key);
            if call.live.context.borrow().contains_key(key) {
                return Ok(true);
            }
            call.guarded(|| Ok(call.host.context_get(AgentRef::THIS, key).is_some()))
        })
    }

    /// All keys in order.
    pub(super) fn key_list(&self) -> Native<Vec<String>> {
        if !self.is_own() {
            return self.reach.ask(|host| Ok(host.context_keys(self.agent)));
        }
        Call::here(|call| {
            call.reads.borrow_mut().all_context = true;
            Live::flush(call)?;
            call.guarded(|| Ok(call.host.context_keys(AgentRef::THIS)))
        })
    }

    pub(super) fn keys(&self) -> Native<Array> {
        Ok(self.key_list()?.iter().map(|key| key.as_str().into()).collect())
    }

    /// All of it as a plain map.
    pub(super) fn all(&self) -> Native<Dynamic> {
        let mut map = RhaiMap::new();
        for key in self.key_list()? {
            map.insert(key.as_str().into(), self.index(&key)?.flatten_clone());
        }
        Ok(Dynamic::from_map(map))
    }

    /// Makes the context hold exactly `map`: after a method that changes maps in place.
    pub(super) fn replace(&self, before: &RhaiMap, after: &RhaiMap) -> Native<()> {
        for key in before.keys().filter(|key| !after.contains_key(*key)) {
            let _ = self.remove(key)?;
        }
        for (key, value) in after {
            let same = before.get(key).is_some_and(|old| match (self.reach.value(old), self.reach.value(value)) {
                (Ok(old), Ok(new)) => old == new,
                (Ok(_), Err(_)) | (Err(_), Ok(_)) | (Err(_), Err(_)) => false,
            });
            if !same {
                self.set(key, value.clone())?;
            }
        }
        Ok(())
    }
}

/// `history`: this agent's earlier results, oldest first; asked for once.
pub(super) fn history() -> Native<Dynamic> {
    Call::here(|call| {
        if let Some(kept) = &*call.live.history.borrow() {
            return Ok(kept.clone());
        }
        let list = Value::List(call.guarded(|| Ok(call.host.history()))?);
        let fresh = given(&list)?.into_shared();
        *call.live.history.borrow_mut() = Some(fresh.clone());
        Ok(fresh)
    })
}

/// A key as Rhai hands it over.
pub(super) type Key = ImmutableString;
