//! The agent's context as a program sees it: read and written through the host, one key at a time.
//!
//! A table that was handed out is remembered with the value it was made from. Before any host call that could see the
//! context, and at the end of a program that succeeded, each such table is read back; where it changed, the key is
//! written. So `context.items[#context.items + 1] = x` works, and what was not touched keeps its exact integers.
//! Nothing here undoes anything: the host keeps the attempt's journal.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use mlua::{Lua, Table, Value as LuaValue};

use super::convert::{Marks, Reader, Unreadable, cut, same, to_lua};
use super::job::{Denied, Job};
use crate::program::{AgentRef, ProgramFailure};
use crate::value::{Map, Value};

/// What a program holds of the context, and how much it has put there.
#[derive(Default)]
pub(super) struct Handed {
    /// Tables by key, each with the value that the host has.
    held: RefCell<BTreeMap<String, (Table, Value)>>,
    /// Bytes that each written key takes at the host now.
    written: RefCell<BTreeMap<String, usize>>,
    /// Their sum, bounded by the memory limit.
    total: Cell<usize>,
}

impl Handed {
    /// Notes what a key takes at the host now; 0 for a removed one.
    fn account(&self, key: &str, bytes: usize) {
        let mut written = self.written.borrow_mut();
        let before = match written.get_mut(key) {
            Some(place) => std::mem::replace(place, bytes),
            None => written.insert(key.to_owned(), bytes).unwrap_or(0),
        };
        self.total.set(self.total.get() - before + bytes);
    }
}

/// `context.key`: the value, and nil for a key that is absent. Recorded.
pub(super) fn get(lua: &Lua, marks: &Marks, job: &Job<'_>, key: &str) -> Result<LuaValue, Denied> {
    job.reads.borrow_mut().saw_context(key);
    if let Some((table, _)) = job.handed.held.borrow().get(key) {
        return Ok(LuaValue::Table(table.clone()));
    }
    let Some(value) = job.host().context_get(AgentRef::THIS, key) else { return Ok(LuaValue::Nil) };
    // An object's null field is an absent one (engines.md 5.2), and the context is an object.
    if value == Value::Null {
        return Ok(LuaValue::Nil);
    }
    let handed = to_lua(lua, marks, &value)?;
    if let LuaValue::Table(table) = &handed {
        job.handed.held.borrow_mut().insert(key.to_owned(), (table.clone(), value));
    }
    Ok(handed)
}

/// `context.key = value`; nil removes the key. Not a read.
pub(super) fn set(marks: &Marks, job: &Job<'_>, key: &str, value: &LuaValue) -> Result<(), Denied> {
    if value.is_nil() {
        job.handed.held.borrow_mut().remove(key);
        job.handed.account(key, 0);
        return job.host().context_remove(AgentRef::THIS, key).map_err(|error| job.denied(error));
    }
    // A table that is held already comes back as exactly as it went out, under whatever key.
    let before = match value {
        LuaValue::Table(table) => {
            job.handed.held.borrow().values().find(|(held, _)| held == table).map(|(_, value)| value.clone())
        }
        _scalar => None,
    };
    let (mut data, bytes) = read(marks, job, key, value, before.as_ref())?;
    if data == Value::Map(Map::new())
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
    write(job, key, data, bytes)?;
    let mut handed = job.handed.held.borrow_mut();
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
    let held: Vec<_> = job.handed.held.borrow().iter().map(|(key, (table, _))| (key.clone(), table.clone())).collect();
    for (key, table) in held {
        let before = job.handed.held.borrow().get(&key).map(|(_, value)| value.clone());
        let (now, bytes) = read(marks, job, &key, &LuaValue::Table(table.clone()), before.as_ref())?;
        if before.as_ref().is_some_and(|before| same(before, &now)) {
            continue;
        }
        write(job, &key, now.clone(), bytes)?;
        job.handed.held.borrow_mut().insert(key, (table, now));
    }
    Ok(())
}

/// After a host call: forgets each held table whose key the host changed meanwhile, so that the next read sees it.
pub(super) fn refresh(job: &Job<'_>) {
    job.handed
        .held
        .borrow_mut()
        .retain(|key, (_, value)| job.host().context_get(AgentRef::THIS, key).is_some_and(|now| same(&now, value)));
}

/// Reads a value for a key: the data, and the bytes it takes.
fn read(
    marks: &Marks,
    job: &Job<'_>,
    key: &str,
    value: &LuaValue,
    before: Option<&Value>,
) -> Result<(Value, usize), Denied> {
    let mut reader = Reader::new(marks, job.limits);
    let data = reader.read(value, before).map_err(|error| match error {
        Unreadable::Refused(why) => Denied::Refused(format!("context.{}: {why}", cut(key, 64))),
        Unreadable::Lua(error) => Denied::Lua(error),
    })?;
    let (nodes, bytes) = reader.size();
    job.charge_nodes(nodes)?;
    Ok((data, nodes * size_of::<Value>() + bytes + key.len()))
}

/// Hands a value to the host. What a program puts there is memory too, outside of the interpreter's own count.
fn write(job: &Job<'_>, key: &str, data: Value, bytes: usize) -> Result<(), Denied> {
    let limit = job.limits.max_memory_bytes;
    job.handed.account(key, bytes);
    if job.handed.total.get() > limit {
        job.meter.end(ProgramFailure::Memory { limit });
        return Err(Denied::Ended);
    }
    job.host().context_set(AgentRef::THIS, key, data).map_err(|error| job.denied(error))
}

fn is_proxy(marks: &Marks, table: &Table) -> mlua::Result<bool> {
    Ok(table.has_metatable() && marks.proxies.raw_get::<LuaValue>(table)?.is_table())
}
