//! Values both ways, by the rules of engines.md 5.2 and 5.3.
//!
//! Reading a program's value never runs program code: tables are read raw and metatables are ignored, except that our
//! own objects (arguments, contexts, outcomes, agents) are recognised by the identity of theirs. Nothing is rounded,
//! dropped or guessed: what has no JSON form is refused with its path and a hint.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use mlua::ffi;
use mlua::{Function, Lua, Table, Value as LuaValue};

use crate::program::Limits;
use crate::value::{Map, Value};

/// Whole numbers up to this size are exact in Luau.
const EXACT: i64 = 1 << 53;

/// Nesting of a host's value that is still handed to a program; deeper ones are refused before the native stack is at
/// risk.
const MAX_DEPTH_IN: usize = 256;

/// The private metatables and tables by which a VM's own objects are known. One set per VM; programs cannot reach them.
pub(super) struct Marks {
    /// Metatable of lists: an empty one stays a list.
    pub(super) array: Table,
    /// Metatable of `object{}`: an empty one stays a map.
    pub(super) object: Table,
    /// Metatable of `kw{}`.
    pub(super) kwargs: Table,
    /// Metatable of outcomes.
    pub(super) outcome: Table,
    /// Metatable of agents.
    pub(super) agent: Table,
    /// Weak-keyed: proxy object to its table of handlers (`whole` gives a plain table).
    pub(super) proxies: Table,
    /// Weak-keyed: outcome object to the envelope that the host returned.
    pub(super) handles: Table,
    array_ptr: usize,
    object_ptr: usize,
    kwargs_ptr: usize,
    outcome_ptr: usize,
    agent_ptr: usize,
}

impl Marks {
    /// New marks in a VM.
    pub(super) fn new(lua: &Lua) -> mlua::Result<Self> {
        let weak = || -> mlua::Result<Table> {
            let (table, meta) = (lua.create_table()?, lua.create_table()?);
            meta.raw_set("__mode", "k")?;
            table.set_metatable(Some(meta))?;
            Ok(table)
        };
        let (array, object, kwargs) = (lua.create_table()?, lua.create_table()?, lua.create_table()?);
        let (outcome, agent) = (lua.create_table()?, lua.create_table()?);
        let address = |table: &Table| table.to_pointer() as usize;
        Ok(Self {
            proxies: weak()?,
            handles: weak()?,
            array_ptr: address(&array),
            object_ptr: address(&object),
            kwargs_ptr: address(&kwargs),
            outcome_ptr: address(&outcome),
            agent_ptr: address(&agent),
            array,
            object,
            kwargs,
            outcome,
            agent,
        })
    }

    /// Whether a table is an outcome object.
    pub(super) fn is_outcome(&self, table: &Table) -> bool {
        table.metatable().is_some_and(|meta| meta.to_pointer() as usize == self.outcome_ptr)
    }
}

/// Hands a host's value to a program.
pub(super) fn to_lua(lua: &Lua, marks: &Marks, value: &Value) -> mlua::Result<LuaValue> {
    hand_over(lua, marks, value, false)
}

/// The same, with all tables read-only: a copy whose changes would be lost must not look changeable.
pub(super) fn to_lua_frozen(lua: &Lua, marks: &Marks, value: &Value) -> mlua::Result<LuaValue> {
    hand_over(lua, marks, value, true)
}

fn hand_over(lua: &Lua, marks: &Marks, value: &Value, frozen: bool) -> mlua::Result<LuaValue> {
    match value {
        Value::Null => Ok(LuaValue::NULL),
        Value::Bool(value) => Ok(LuaValue::Boolean(*value)),
        Value::Int(value) if exact(*value) => Ok(LuaValue::Number(*value as f64)),
        Value::Int(value) => Ok(LuaValue::String(lua.create_string(itoa::Buffer::new().format(*value))?)),
        Value::Float(value) => Ok(LuaValue::Number(*value)),
        Value::String(value) => Ok(LuaValue::String(lua.create_string(value)?)),
        Value::List(_) | Value::Map(_) => {
            let mut fits = true;
            // SAFETY: `exec_raw` gives the state of a live VM whose lock is held, inside a protected call, with the list
            // metatable as the only value; `push` adds one value, and the metatable below it is removed.
            let table = unsafe {
                lua.exec_raw(&marks.array, |state| {
                    fits = push(state, value, frozen, 0);
                    ffi::lua_remove(state, ARRAY_MARK);
                })?
            };
            if fits { Ok(table) } else { Err(mlua::Error::runtime("a value nests too deeply for a program")) }
        }
    }
}

/// Whether a number keeps its value in Luau.
fn exact(number: i64) -> bool {
    number.unsigned_abs() <= EXACT.unsigned_abs()
}

/// Where `push` finds the metatable of lists.
const ARRAY_MARK: c_int = 1;

/// Pushes a value; false if it nests too deeply, and is cut there.
///
/// # Safety
/// `state` must be live and locked, inside a protected call, with the list metatable at `ARRAY_MARK`. Running out of
/// memory raises an error that unwinds through this frame: nothing here may need dropping.
unsafe fn push(state: *mut ffi::lua_State, value: &Value, frozen: bool, depth: usize) -> bool {
    let size = |length: usize| c_int::try_from(length).unwrap_or(c_int::MAX);
    let mut fits = true;
    // SAFETY: the caller vouches for the state; room for the four values that one level pushes is made first. Strings are
    // copied by Luau. The tables written to are the ones just made, at the top of the stack.
    unsafe {
        ffi::lua_rawcheckstack(state, 4);
        if depth > MAX_DEPTH_IN {
            ffi::lua_pushnil(state);
            return false;
        }
        match value {
            Value::Null => ffi::lua_pushlightuserdata(state, std::ptr::null_mut()),
            Value::Bool(value) => ffi::lua_pushboolean(state, (*value).into()),
            Value::Int(value) if exact(*value) => ffi::lua_pushnumber(state, *value as f64),
            Value::Int(value) => {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(*value);
                ffi::lua_pushlstring(state, digits.as_ptr().cast(), digits.len());
            }
            Value::Float(value) => ffi::lua_pushnumber(state, *value),
            Value::String(value) => {
                ffi::lua_pushlstring(state, value.as_ptr().cast(), value.len());
            }
            Value::List(list) => {
                ffi::lua_createtable(state, size(list.len()), 0);
                for (index, item) in list.iter().enumerate() {
                    fits &= push(state, item, frozen, depth + 1);
                    ffi::lua_rawseti(state, -2, index as ffi::lua_Integer + 1);
                }
                ffi::lua_pushvalue(state, ARRAY_MARK);
                ffi::lua_setmetatable(state, -2);
                ffi::lua_setreadonly(state, -1, frozen.into());
            }
            Value::Map(map) => {
                ffi::lua_createtable(state, 0, size(map.len()));
                for (key, item) in map {
                    // A null field is an absent field; on the way back it is restored (`Reader::read`).
                    if *item != Value::Null {
                        ffi::lua_pushlstring(state, key.as_ptr().cast(), key.len());
                        fits &= push(state, item, frozen, depth + 1);
                        ffi::lua_rawset(state, -3);
                    }
                }
                ffi::lua_setreadonly(state, -1, frozen.into());
            }
        }
    }
    fits
}

/// Why a program's value was not taken.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// It has no JSON-like form, or is too large: path and hint.
    Refused(String),
    /// The interpreter itself failed while it was read.
    Lua(mlua::Error),
}

impl From<mlua::Error> for Unreadable {
    fn from(error: mlua::Error) -> Self {
        Self::Lua(error)
    }
}

/// Reads one of a program's values. One reader per value: it counts nodes and bytes.
pub(super) struct Reader<'a> {
    marks: &'a Marks,
    limits: &'a Limits,
    /// Whether NaN and infinities are taken, as from any host: a user's script is one.
    of_host: bool,
    nodes: usize,
    bytes: usize,
    path: Vec<Step>,
    ancestors: Vec<*const c_void>,
}

enum Step {
    Index(usize),
    Key(String),
}

impl<'a> Reader<'a> {
    /// A reader with the limits of one value.
    pub(super) fn new(marks: &'a Marks, limits: &'a Limits) -> Self {
        Self { marks, limits, of_host: false, nodes: 0, bytes: 0, path: Vec::new(), ancestors: Vec::new() }
    }

    /// A reader of what a user's script hands in.
    pub(super) fn of_host(marks: &'a Marks, limits: &'a Limits) -> Self {
        Self { of_host: true, ..Self::new(marks, limits) }
    }

    /// What was read so far, in parts and bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.nodes, self.bytes)
    }

    /// Reads a value. `before` is what the host had in this place: where the program left a part as it was handed out,
    /// the original comes back exactly (integers beyond 2^53, null fields, `2.0`, empty lists).
    pub(super) fn read(&mut self, value: &LuaValue, before: Option<&Value>) -> Result<Value, Unreadable> {
        self.count(2)?;
        Ok(match value {
            LuaValue::Nil => Value::Null,
            LuaValue::LightUserData(pointer) if pointer.0.is_null() => Value::Null,
            LuaValue::Boolean(value) => Value::Bool(*value),
            LuaValue::Integer(value) => self.number(*value as f64, before)?,
            LuaValue::Number(value) => self.number(*value, before)?,
            LuaValue::String(value) => {
                self.count_bytes(value.as_bytes().len())?;
                let bytes = value.as_bytes();
                let Ok(text) = std::str::from_utf8(&bytes) else {
                    return Err(self.refuse("text that is not valid UTF-8 has no JSON form"));
                };
                match before {
                    Some(Value::Int(number)) if !exact(*number) && number.to_string() == text => Value::Int(*number),
                    Some(_) | None => Value::String(text.to_owned()),
                }
            }
            LuaValue::Table(table) => self.table(table, before)?,
            LuaValue::Function(_) => return Err(self.refuse("a function has no JSON form")),
            LuaValue::Thread(_) => return Err(self.refuse("a coroutine has no JSON form")),
            other => return Err(self.refuse(&format!("a value of type {} has no JSON form", other.type_name()))),
        })
    }

    fn number(&self, number: f64, before: Option<&Value>) -> Result<Value, Unreadable> {
        if let Some(Value::Float(original)) = before
            && (*original == number || (original.is_nan() && number.is_nan()))
        {
            return Ok(Value::Float(*original));
        }
        if !number.is_finite() {
            if self.of_host {
                return Ok(Value::Float(number));
            }
            let name = if number.is_nan() { "NaN" } else { "an infinity" };
            return Err(self.refuse(&format!("{name} has no JSON form")));
        }
        if number.fract() == 0.0 && number.abs() <= EXACT as f64 {
            return Ok(Value::Int(number as i64));
        }
        Ok(Value::Float(number))
    }

    fn table(&mut self, table: &Table, before: Option<&Value>) -> Result<Value, Unreadable> {
        if self.path.len() >= self.limits.max_value_depth {
            return Err(self.refuse(&format!("values nest at most {} deep", self.limits.max_value_depth)));
        }
        let pointer = table.to_pointer();
        if self.ancestors.contains(&pointer) {
            return Err(self.refuse("a table that contains itself has no JSON form"));
        }
        let mut marked_list = None;
        let mut plain = None;
        if let Some(meta) = table.metatable() {
            let meta = meta.to_pointer() as usize;
            if meta == self.marks.array_ptr {
                marked_list = Some(true);
            } else if meta == self.marks.object_ptr || meta == self.marks.kwargs_ptr {
                marked_list = Some(false);
            } else if meta == self.marks.outcome_ptr {
                return Err(self.refuse("an Outcome is not data; use its .value, or return it alone"));
            } else if meta == self.marks.agent_ptr {
                return Err(self.refuse("an agent is not data"));
            } else if let Some(handlers) = self.marks.proxies.raw_get::<Option<Table>>(table)? {
                let whole: Table = handlers.raw_get::<Function>("whole")?.call(())?;
                if whole.metatable().is_some_and(|meta| meta.to_pointer() as usize == self.marks.array_ptr) {
                    marked_list = Some(true);
                }
                plain = Some(whole);
            }
        }
        self.ancestors.push(pointer);
        let result = self.entries(plain.as_ref().unwrap_or(table), marked_list, before);
        self.ancestors.pop();
        result
    }

    fn entries(
        &mut self,
        table: &Table,
        marked_list: Option<bool>,
        before: Option<&Value>,
    ) -> Result<Value, Unreadable> {
        let (list_before, map_before) = (before.and_then(Value::as_list), before.and_then(Value::as_map));
        let mut map = Map::new();
        let mut items: BTreeMap<usize, Value> = BTreeMap::new();
        let mut list: Vec<Value> = Vec::new();
        for pair in table.pairs::<LuaValue, LuaValue>() {
            let (key, value) = pair?;
            match key {
                LuaValue::String(key) => {
                    self.count_bytes(key.as_bytes().len())?;
                    let bytes = key.as_bytes();
                    let Ok(key) = std::str::from_utf8(&bytes) else {
                        return Err(self.refuse("a key that is not valid UTF-8 has no JSON form"));
                    };
                    let original = map_before.and_then(|map| map.get(key));
                    self.path.push(Step::Key(key.to_owned()));
                    let value = self.read(&value, original)?;
                    self.path.pop();
                    map.insert(key.to_owned(), value);
                }
                LuaValue::Integer(index) if index >= 1 => {
                    let index = index as usize - 1;
                    let original = list_before.and_then(|list| list.get(index));
                    self.path.push(Step::Index(index + 1));
                    let value = self.read(&value, original)?;
                    self.path.pop();
                    // The array part comes in order; what is left over arrives in any order.
                    if items.is_empty() && index == list.len() {
                        list.push(value)
                    } else {
                        drop(items.insert(index, value))
                    }
                }
                LuaValue::Integer(index) => {
                    return Err(self.refuse(&format!("index {index} in a list; lists start at 1")));
                }
                other => {
                    return Err(self.refuse(&format!("a key of type {} has no JSON form", other.type_name())));
                }
            }
        }
        for (index, value) in items {
            if index != list.len() {
                self.path.push(Step::Index(list.len() + 1));
                return Err(self.refuse("a list must not have gaps; use `null` for them"));
            }
            list.push(value);
        }
        if !list.is_empty() && !map.is_empty() {
            return Err(self.refuse("a table with both list items and named fields has no JSON form"));
        }
        if let Some(original) = map_before {
            for (key, value) in original {
                if *value == Value::Null && list.is_empty() {
                    map.entry(key.clone()).or_default();
                }
            }
        }
        if !list.is_empty() {
            return Ok(Value::List(list));
        }
        if map.is_empty() && marked_list.unwrap_or(list_before.is_some()) {
            return Ok(Value::List(list));
        }
        Ok(Value::Map(map))
    }

    fn count(&mut self, bytes: usize) -> Result<(), Unreadable> {
        self.nodes += 1;
        if self.nodes > self.limits.max_value_nodes {
            return Err(self.refuse(&format!("a value has at most {} parts", self.limits.max_value_nodes)));
        }
        self.count_bytes(bytes)
    }

    fn count_bytes(&mut self, bytes: usize) -> Result<(), Unreadable> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limits.max_value_bytes {
            return Err(self.refuse(&format!("a value has at most {} bytes", self.limits.max_value_bytes)));
        }
        Ok(())
    }

    fn refuse(&self, why: &str) -> Unreadable {
        let mut text = String::from("$");
        for step in &self.path {
            match step {
                Step::Index(index) => text.push_str(&format!("[{index}]")),
                Step::Key(key) => {
                    text.push('.');
                    text.push_str(cut(key, 64));
                }
            }
        }
        Unreadable::Refused(format!("{}: {why}", cut(&text, 512)))
    }
}

/// The beginning of a text, at most `bytes` long, never in the middle of a character.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Whether two values are the same to the last bit; unlike `==`, NaN is the same as NaN.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Float(left), Value::Float(right)) => left.to_bits() == right.to_bits() || left == right,
        (Value::List(left), Value::List(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Map(left), Value::Map(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|((key, left), (other, right))| key == other && same(left, right))
        }
        (left, right) => left == right,
    }
}
