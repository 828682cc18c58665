//! Key order: programs see maps in an order that depends on the keys alone, never on addresses or history.
//!
//! Numbers come first, by value; then strings, by bytes; then false and true. At most one key of another kind may follow;
//! two such keys have no order that could be repeated, so iterating over them is refused.

use std::cmp::Ordering;
use std::ffi::c_int;

use mlua::ffi;
use mlua::{Lua, Table};

use super::job::{Denied, Job};

/// Keys sorted at a time between two looks at the clock.
const CHUNK: usize = 4096;

/// Keys per safepoint that sorting is charged.
const KEYS_PER_SAFEPOINT: usize = 8;

/// A key's place in the order, and where the key itself waits.
struct Key {
    place: Place,
    index: c_int,
}

/// What the order looks at.
enum Place {
    Number(f64),
    /// The bytes of a string that the table keeps alive and unchanged while its keys are sorted.
    Text(&'static [u8]),
    Bool(bool),
    Other,
}

impl Key {
    fn compare(&self, other: &Self) -> Ordering {
        match (&self.place, &other.place) {
            (Place::Number(left), Place::Number(right)) => left.total_cmp(right),
            (Place::Text(left), Place::Text(right)) => left.cmp(right),
            (Place::Bool(left), Place::Bool(right)) => left.cmp(right),
            (left, right) => left.rank().cmp(&right.rank()),
        }
    }
}

impl Place {
    fn rank(&self) -> u8 {
        match self {
            Self::Number(_) => 0,
            Self::Text(_) => 1,
            Self::Bool(_) => 2,
            Self::Other => 3,
        }
    }
}

/// A new list of the table's keys, in order.
pub(super) fn sorted_keys(lua: &Lua, job: &Job<'_>, table: &Table) -> Result<Table, Denied> {
    let mut others = 0;
    // SAFETY: `exec_raw` gives the state of a live VM whose lock is held, with `table` as the only value, and takes the one
    // that `collect` leaves. `collect` asks for nothing else.
    let sorted = unsafe { lua.exec_raw::<Table>(table, |state| others = collect(state, job)) }?;
    if job.meter.ended() {
        return Err(Denied::Ended);
    }
    if others > 1 {
        return Err(Denied::Refused(
            "a table with several tables or functions as keys has no order; iterate over a list instead".to_owned(),
        ));
    }
    Ok(sorted)
}

/// Replaces the table on the stack by the list of its sorted keys; returns how many have no place of their own.
///
/// # Safety
/// `state` must be live and locked, with one table on its stack, inside a protected call.
unsafe fn collect(state: *mut ffi::lua_State, job: &Job<'_>) -> usize {
    const TABLE: c_int = 1;
    const UNSORTED: c_int = 2;
    const SORTED: c_int = 3;
    // SAFETY: positions 1 to 3 hold tables once both lists are made. Whatever can raise an error for want of memory comes
    // before the first Rust value that needs dropping; after that, only calls that neither allocate nor raise are made:
    // iteration, reads of keys that are not converted, and writes into array slots that exist already.
    unsafe {
        ffi::lua_rawcheckstack(state, 6);
        let mut count: c_int = 0;
        let mut cursor = ffi::lua_rawiter(state, TABLE, 0);
        while cursor >= 0 {
            ffi::lua_pop(state, 2);
            count += 1;
            cursor = ffi::lua_rawiter(state, TABLE, cursor);
        }
        ffi::lua_createtable(state, count, 0);
        ffi::lua_createtable(state, count, 0);
        // The count is not negative, so the cast is exact.
        let mut keys = Vec::with_capacity(count as usize);
        let mut others = 0;
        cursor = ffi::lua_rawiter(state, TABLE, 0);
        while cursor >= 0 {
            ffi::lua_pop(state, 1);
            let place = match ffi::lua_type(state, -1) {
                ffi::LUA_TNUMBER => Place::Number(ffi::lua_tonumber(state, -1)),
                ffi::LUA_TSTRING => {
                    let mut length = 0;
                    let bytes = ffi::lua_tolstring(state, -1, &mut length);
                    Place::Text(std::slice::from_raw_parts(bytes.cast(), length))
                }
                ffi::LUA_TBOOLEAN => Place::Bool(ffi::lua_toboolean(state, -1) != 0),
                _other_type => {
                    others += 1;
                    Place::Other
                }
            };
            // At most `count` keys, so the cast is exact.
            let index = keys.len() as c_int + 1;
            keys.push(Key { place, index });
            ffi::lua_rawseti(state, UNSORTED, index.into());
            cursor = ffi::lua_rawiter(state, TABLE, cursor);
        }
        for (index, key) in merge_sort(keys, job).iter().enumerate() {
            ffi::lua_rawgeti(state, UNSORTED, key.index.into());
            ffi::lua_rawseti(state, SORTED, index as ffi::lua_Integer + 1);
        }
        ffi::lua_replace(state, TABLE);
        ffi::lua_settop(state, TABLE);
        others
    }
}

/// Sorts in chunks with a look at the clock after each, so that a huge table cannot outlive its limits here. Stops early,
/// in no particular order, when the job was ended.
fn merge_sort(mut keys: Vec<Key>, job: &Job<'_>) -> Vec<Key> {
    charge(keys.len(), job);
    if keys.len() <= CHUNK {
        keys.sort_unstable_by(Key::compare);
        return keys;
    }
    let mut runs: Vec<Vec<Key>> = Vec::new();
    while !keys.is_empty() {
        let mut run = keys.split_off(keys.len().saturating_sub(CHUNK));
        run.sort_unstable_by(Key::compare);
        runs.push(run);
        charge(CHUNK, job);
    }
    while runs.len() > 1 && !job.meter.ended() {
        let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
        let mut pairs = runs.into_iter();
        while let Some(left) = pairs.next() {
            merged.push(match pairs.next() {
                Some(right) => merge(left, right, job),
                None => left,
            });
        }
        runs = merged;
    }
    runs.pop().unwrap_or_default()
}

fn merge(left: Vec<Key>, right: Vec<Key>, job: &Job<'_>) -> Vec<Key> {
    let mut out = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(one), Some(two)) = (left.peek(), right.peek()) {
        let next = if one.compare(two).is_le() { left.next() } else { right.next() };
        out.extend(next);
        if out.len() % CHUNK == 0 {
            charge(CHUNK, job);
            if job.meter.ended() {
                break;
            }
        }
    }
    out.extend(left);
    out.extend(right);
    out
}

fn charge(keys: usize, job: &Job<'_>) {
    if keys > KEYS_PER_SAFEPOINT {
        job.meter.charge((keys / KEYS_PER_SAFEPOINT) as u64);
    }
}
