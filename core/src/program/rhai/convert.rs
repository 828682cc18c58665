//! Values across the border, both ways (engines.md 5.4): null is `()`, integers stay exact, floats stay floats, lists
//! and maps stay apart when empty. What has no JSON-like form is refused with its path; nothing is guessed or dropped.
//!
//! Both directions are bounded: in depth, because values are nested native structures; outwards also in nodes and bytes.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use rhai::{Array, Dynamic, ImmutableString, Map as RhaiMap};

use super::context::{ArgsView, ContextView, KwargsView};
use super::surface::{AgentHandle, OutcomeHandle};
use crate::program::Limits;
use crate::value::{Map, Value};

/// Nesting of a value that the host hands in. Far below what a native stack holds, far above what people write.
const MAX_DEPTH_IN: usize = 512;

/// How large a value may be when it leaves the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caps {
    pub(super) bytes: usize,
    pub(super) nodes: usize,
    pub(super) depth: usize,
    /// Whether NaN and infinities are taken, as from any host: a user's script is one.
    pub(super) of_host: bool,
}

impl Caps {
    pub(super) fn of(limits: &Limits) -> Self {
        Self {
            bytes: limits.max_value_bytes,
            nodes: limits.max_value_nodes,
            depth: limits.max_value_depth,
            of_host: false,
        }
    }

    /// For trusted scripts: only the native stack is protected.
    pub(super) const TRUSTED: Self = Self { bytes: usize::MAX, nodes: usize::MAX, depth: MAX_DEPTH_IN, of_host: false };

    /// For what a trusted script hands to its host.
    pub(super) const OF_SCRIPT: Self = Self { of_host: true, ..Self::TRUSTED };
}

/// Why a value cannot cross: where, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    path: String,
    reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.reason)
    }
}

/// A host value inside Rhai.
pub(super) fn to_dynamic(value: &Value) -> Result<Dynamic, Refusal> {
    to_dynamic_at(value, 0)
}

fn to_dynamic_at(value: &Value, depth: usize) -> Result<Dynamic, Refusal> {
    Ok(match value {
        Value::Null => Dynamic::UNIT,
        Value::Bool(value) => (*value).into(),
        Value::Int(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::String(text) => text.as_str().into(),
        Value::List(_) | Value::Map(_) if depth >= MAX_DEPTH_IN => {
            let reason = format!("nests deeper than {MAX_DEPTH_IN} levels");
            return Err(Refusal { path: "$".to_owned(), reason });
        }
        Value::List(list) => {
            let mut array = Array::with_capacity(list.len());
            for item in list {
                array.push(to_dynamic_at(item, depth + 1)?);
            }
            Dynamic::from_array(array)
        }
        Value::Map(map) => Dynamic::from_map(to_map_at(map, depth)?),
    })
}

fn to_map_at(map: &Map, depth: usize) -> Result<RhaiMap, Refusal> {
    let mut out = RhaiMap::new();
    for (key, item) in map {
        out.insert(key.as_str().into(), to_dynamic_at(item, depth + 1)?);
    }
    Ok(out)
}

/// A Rhai value as host data.
pub(super) fn to_value(value: &Dynamic, caps: Caps) -> Result<Value, Refusal> {
    let mut walk = Walk { caps, nodes: 0, bytes: 0, path: Vec::new() };
    walk.value(value)
}

/// A map of named arguments or options as host data.
pub(super) fn to_map(map: &RhaiMap, caps: Caps) -> Result<Map, Refusal> {
    let mut walk = Walk { caps, nodes: 0, bytes: 0, path: Vec::new() };
    walk.map(map)
}

/// Positional arguments as host data; each is capped on its own.
pub(super) fn to_values(values: &[Dynamic], caps: Caps) -> Result<Vec<Value>, Refusal> {
    values.iter().map(|value| to_value(value, caps)).collect()
}

enum Segment {
    Key(ImmutableString),
    Index(usize),
}

struct Walk {
    caps: Caps,
    nodes: usize,
    bytes: usize,
    path: Vec<Segment>,
}

impl Walk {
    fn value(&mut self, value: &Dynamic) -> Result<Value, Refusal> {
        self.nodes += 1;
        if self.nodes > self.caps.nodes {
            return Err(self.refuse(format!("more than {} values", self.caps.nodes)));
        }
        if value.is_shared() {
            return match value.read_lock::<Dynamic>() {
                Some(inner) => {
                    self.nodes -= 1;
                    self.value(&inner)
                }
                None => Err(self.refuse("is in use by the method that called this".to_owned())),
            };
        }
        if value.is_unit() {
            self.grow(4)?;
            return Ok(Value::Null);
        }
        if let Ok(number) = value.as_int() {
            self.grow(8)?;
            return Ok(Value::Int(number));
        }
        if let Ok(text) = value.as_immutable_string_ref() {
            self.grow(text.len() + 2)?;
            return Ok(Value::String(text.as_str().to_owned()));
        }
        if let Ok(number) = value.as_float() {
            self.grow(8)?;
            return if number.is_finite() || self.caps.of_host {
                Ok(Value::Float(number))
            } else {
                Err(self.refuse(format!("{number} has no JSON form")))
            };
        }
        if let Ok(value) = value.as_bool() {
            self.grow(5)?;
            return Ok(Value::Bool(value));
        }
        if let Ok(letter) = value.as_char() {
            self.grow(letter.len_utf8() + 2)?;
            return Ok(Value::String(letter.into()));
        }
        if let Ok(array) = value.as_array_ref() {
            return self.array(&array);
        }
        if let Ok(map) = value.as_map_ref() {
            return self.map(&map).map(Value::Map);
        }
        self.other(value)
    }

    fn array(&mut self, array: &Array) -> Result<Value, Refusal> {
        self.down()?;
        let mut list = Vec::with_capacity(array.len().min(self.caps.nodes));
        for (index, item) in array.iter().enumerate() {
            self.path.push(Segment::Index(index));
            self.grow(1)?;
            list.push(self.value(item)?);
            self.path.pop();
        }
        Ok(Value::List(list))
    }

    fn map(&mut self, map: &RhaiMap) -> Result<Map, Refusal> {
        self.down()?;
        let mut out = Map::new();
        for (key, item) in map {
            self.path.push(Segment::Key(key.as_str().into()));
            self.grow(key.len() + 4)?;
            out.insert(key.as_str().to_owned(), self.value(item)?);
            self.path.pop();
        }
        Ok(out)
    }

    /// What is neither data nor a Rhai container.
    fn other(&mut self, value: &Dynamic) -> Result<Value, Refusal> {
        let view = if value.is::<ArgsView>() {
            ArgsView::all()
        } else if value.is::<KwargsView>() {
            KwargsView::all()
        } else if let Some(context) = value.read_lock::<ContextView>() {
            context.all()
        } else {
            return Err(self.refuse(no_form(value)));
        };
        match view {
            Ok(plain) => self.value(&plain),
            Err(error) => Err(self.refuse(error.to_string())),
        }
    }

    fn down(&mut self) -> Result<(), Refusal> {
        self.grow(2)?;
        if self.path.len() >= self.caps.depth {
            return Err(self.refuse(format!("nests deeper than {} levels", self.caps.depth)));
        }
        Ok(())
    }

    fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.caps.bytes {
            return Err(self.refuse(format!("larger than {} bytes", self.caps.bytes)));
        }
        Ok(())
    }

    /// The path is cut in the middle of nowhere rather than grown without bound: keys are the program's.
    fn refuse(&self, reason: String) -> Refusal {
        const MAX_SEGMENTS: usize = 16;
        const MAX_KEY_BYTES: usize = 64;
        let mut path = String::from("$");
        for segment in self.path.iter().take(MAX_SEGMENTS) {
            match segment {
                Segment::Key(key) => {
                    path.push('.');
                    path.push_str(super::call::truncated(key, MAX_KEY_BYTES));
                }
                Segment::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        if self.path.len() > MAX_SEGMENTS {
            path.push('…');
        }
        Refusal { path, reason }
    }
}

fn no_form(value: &Dynamic) -> String {
    if value.is_fnptr() {
        "a function has no JSON form".to_owned()
    } else if value.is::<OutcomeHandle>() {
        "an Outcome is no data; use its `value`".to_owned()
    } else if value.is::<AgentHandle>() {
        "an Agent has no JSON form".to_owned()
    } else if value.is::<Range<i64>>() || value.is::<RangeInclusive<i64>>() {
        "a range has no JSON form".to_owned()
    } else {
        format!("a value of type {} has no JSON form", super::engine::type_name(value))
    }
}
