//! The agent's context as a program sees it: read and written through the host, one key at a time.
//!
//! A table that was handed out is remembered with the value it was made from. Before any host call that could see the
//! context, and at the end of a program that succeeded, each such table is read back; where it changed, the key is
//! written. So `context.items[#context.items + 1] = x` works, and what was not touched keeps its exact integers.
//! Nothing here undoes anything: the host keeps the attempt's journal.

use std::cell::RefCell;
use std::collections::BTreeMap;

use mlua::{Lua, Table, Value as LuaValue};

use super::convert::{Marks, Reader, Unreadable, same, to_lua};
use super::job::{Denied, Job};
use crate::program::AgentRef;
use crate::value::Value;

/// The tables of the context that a program holds, by key, each with the value that the host has.
#[derive(Default)]
pub(super) struct Handed(RefCell<BTreeMap<String, (Table, Value)>>);

/// `context.key`: the value, and nil for a key that is absent. Recorded.
pub(super) fn get(lua: &Lua, marks: &Marks, job: &Job<'_>, key: &str) -> Result<LuaValue, Denied> {
    {
        let mut reads = job.reads.borrow_mut();
        if !reads.context.contains(key) {
            reads.context.insert(key.to_owned());
        }
    }
    if let Some((table, _)) = job.handed.0.borrow().get(key) {
        return Ok(LuaValue::Table(table.clone()));
    }
    let Some(value) = job.host().context_get(AgentRef::THIS, key) else { return Ok(LuaValue::Nil) };
    // An object's null field is an absent one (engines.md 5.2), and the context is an object.
    if value == Value::Null {
        return Ok(LuaValue::Nil);
    }
    let handed = to_lua(lua, marks, &value)?;
    if let LuaValue::Table(table) = &handed {
        job.handed.0.borrow_mut().insert(key.to_owned(), (table.clone(), value));
    }
    Ok(handed)
}

/// `context.key = value`; nil removes the key. Not a read.
pub(super) fn set(marks: &Marks, job: &Job<'_>, key: &str, value: &LuaValue) -> Result<(), Denied> {
    if value.is_nil() {
        job.handed.0.borrow_mut().remove(key);
        return job.host().context_remove(AgentRef::THIS, key).map_err(|error| job.denied(error));
    }
    // A table that is held already comes back as exactly as it went out, under whatever key.
    let before = match value {
        LuaValue::Table(table) => {
            job.handed.0.borrow().values().find(|(held, _)| held == table).map(|(_, value)| value.clone())
        }
        _scalar => None,
    };
    let mut data = Reader::new(marks, job.limits).read(value, before.as_ref()).map_err(refused(key))?;
    if data == Value::Map(Default::default())
        && let LuaValue::Table(table) = value
        && !table.has_metatable()
        && let Some(Value::List(_)) = job.host().context_get(AgentRef::THIS, key)
    {
        // An empty table without a mark takes the kind of what it replaces (engines.md 5.3).
        data = Value::List(Vec::new());
    }
    let held = match value {
        LuaValue::Table(table) if !is_proxy(marks, table)? => Some((table.clone(), data.clone())),
        _copied => None,
    };
    job.host().context_set(AgentRef::THIS, key, data).map_err(|error| job.denied(error))?;
    let mut handed = job.handed.0.borrow_mut();
    match held {
        Some(held) => handed.insert(key.to_owned(), held),
        None => handed.remove(key),
    };
    Ok(())
}

/// The keys, in order. Recorded as a look at all of them.
pub(super) fn keys(job: &Job<'_>) -> Vec<String> {
    job.reads.borrow_mut().all_context = true;
    job.host().context_keys(AgentRef::THIS)
}

/// Writes back each held table that changed.
pub(super) fn write_back(marks: &Marks, job: &Job<'_>) -> Result<(), Denied> {
    // Reading a table may reach a proxy's handlers, which come back here: no borrow is held meanwhile.
    let held: Vec<_> = job.handed.0.borrow().iter().map(|(key, (table, _))| (key.clone(), table.clone())).collect();
    for (key, table) in held {
        let before = job.handed.0.borrow().get(&key).map(|(_, value)| value.clone());
        let now = Reader::new(marks, job.limits)
            .read(&LuaValue::Table(table.clone()), before.as_ref())
            .map_err(refused(&key))?;
        if before.as_ref().is_some_and(|before| same(before, &now)) {
            continue;
        }
        job.host().context_set(AgentRef::THIS, &key, now.clone()).map_err(|error| job.denied(error))?;
        job.handed.0.borrow_mut().insert(key, (table, now));
    }
    Ok(())
}

/// After a host call: forgets each held table whose key the host changed meanwhile, so that the next read sees it.
pub(super) fn refresh(job: &Job<'_>) {
    job.handed
        .0
        .borrow_mut()
        .retain(|key, (_, value)| job.host().context_get(AgentRef::THIS, key).is_some_and(|now| same(&now, value)));
}

/// Says which key a refused value was meant for.
fn refused(key: &str) -> impl FnOnce(Unreadable) -> Denied {
    move |error| match error {
        Unreadable::Refused(why) => Denied::Refused(format!("context.{}: {why}", super::convert::cut(key, 64))),
        Unreadable::Lua(error) => Denied::Lua(error),
    }
}

fn is_proxy(marks: &Marks, table: &Table) -> mlua::Result<bool> {
    Ok(table.has_metatable() && marks.proxies.raw_get::<LuaValue>(table)?.is_table())
}
