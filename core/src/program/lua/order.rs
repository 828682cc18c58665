//! Key order: programs see maps in an order that depends on the keys alone, never on addresses or history.
//!
//! Numbers come first, by value; then strings, by bytes; then false and true. At most one key of another kind may follow;
//! two such keys have no order that could be repeated, so iterating over them is refused.

use mlua::{Lua, Table, Value as LuaValue};

use super::job::{Denied, Job};

/// Keys sorted at a time between two looks at the clock.
const CHUNK: usize = 4096;

/// A key that has a place in the order.
enum Key {
    Number(f64),
    Text(mlua::LuaString, Box<[u8]>),
    Bool(bool),
    Other(LuaValue),
}

impl Key {
    fn rank(&self) -> u8 {
        match self {
            Self::Number(_) => 0,
            Self::Text(..) => 1,
            Self::Bool(_) => 2,
            Self::Other(_) => 3,
        }
    }

    fn before_or_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number(left), Self::Number(right)) => left <= right,
            (Self::Text(_, left), Self::Text(_, right)) => left <= right,
            (Self::Bool(left), Self::Bool(right)) => left <= right,
            (left, right) => left.rank() <= right.rank(),
        }
    }
}

/// A new list of the table's keys, in order.
pub(super) fn sorted_keys(lua: &Lua, job: &Job<'_>, table: &Table) -> Result<Table, Denied> {
    let mut keys = Vec::new();
    let mut others = 0;
    table.for_each(|key: LuaValue, _: LuaValue| {
        keys.push(match key {
            LuaValue::Integer(number) => Key::Number(number as f64),
            LuaValue::Number(number) => Key::Number(number),
            LuaValue::String(text) => {
                let bytes = Box::from(&*text.as_bytes());
                Key::Text(text, bytes)
            }
            LuaValue::Boolean(value) => Key::Bool(value),
            other => {
                others += 1;
                Key::Other(other)
            }
        });
        if keys.len() % CHUNK == 0 {
            job.meter.charge(CHUNK as u64 / 16);
        }
        if job.meter.ended() { Err(job.over()) } else { Ok(()) }
    })?;
    if others > 1 {
        return Err(Denied::Refused(
            "a table with several tables or functions as keys has no order; iterate over a list instead".to_owned(),
        ));
    }
    let sorted = merge_sort(keys, job)?;
    let list = lua.create_table_with_capacity(sorted.len(), 0)?;
    for key in sorted {
        list.raw_push(match key {
            Key::Number(number) => LuaValue::Number(number),
            Key::Text(text, _) => LuaValue::String(text),
            Key::Bool(value) => LuaValue::Boolean(value),
            Key::Other(other) => other,
        })?;
    }
    Ok(list)
}

/// Sorts in chunks with a look at the clock after each, so that a huge table cannot outlive its limits here.
fn merge_sort(keys: Vec<Key>, job: &Job<'_>) -> Result<Vec<Key>, Denied> {
    let compare = |left: &Key, right: &Key| match (left.before_or_same(right), right.before_or_same(left)) {
        (true, true) => std::cmp::Ordering::Equal,
        (true, false) => std::cmp::Ordering::Less,
        (false, _) => std::cmp::Ordering::Greater,
    };
    let mut runs: Vec<Vec<Key>> = Vec::new();
    let mut keys = keys.into_iter().peekable();
    while keys.peek().is_some() {
        let mut run: Vec<Key> = keys.by_ref().take(CHUNK).collect();
        run.sort_unstable_by(compare);
        runs.push(run);
        if runs.len() > 1 {
            pause(job)?;
        }
    }
    while runs.len() > 1 {
        let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
        let mut pairs = runs.into_iter();
        while let Some(left) = pairs.next() {
            let Some(right) = pairs.next() else {
                merged.push(left);
                break;
            };
            let mut out = Vec::with_capacity(left.len() + right.len());
            let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
            while let (Some(one), Some(two)) = (left.peek(), right.peek()) {
                let next = if one.before_or_same(two) { left.next() } else { right.next() };
                out.extend(next);
                if out.len() % CHUNK == 0 {
                    pause(job)?;
                }
            }
            out.extend(left);
            out.extend(right);
            merged.push(out);
        }
        runs = merged;
    }
    Ok(runs.pop().unwrap_or_default())
}

fn pause(job: &Job<'_>) -> Result<(), Denied> {
    job.meter.charge(CHUNK as u64 / 16);
    if job.meter.ended() { Err(Denied::Ended) } else { Ok(()) }
}
