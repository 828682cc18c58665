//! The one value that crosses every border: JSON-like data with 64-bit integers kept apart from floats.
//!
//! Maps iterate in key order, so equal values serialise equally in every language. A float may be NaN or infinite
//! (a host may pass one in); canonical form, logs and program results each say what they do with it.
//! This module never converts to or from a host language: each binding does that at its own border.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map with string keys, in key order.
pub type Map = BTreeMap<String, Value>;

/// JSON-like data. Integers are exact in 64 bits; larger ones are refused at the border.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`, `None`, `nil`, `()`.
    #[default]
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number, exact in 64 bits.
    Int(i64),
    /// Any other number; NaN and infinities may be passed in, never returned by a program.
    Float(f64),
    /// Text, always valid UTF-8.
    String(String),
    /// An ordered list.
    List(Vec<Value>),
    /// A map with string keys, in key order.
    Map(Map),
}

impl Value {
    /// The name of this value's type, as error messages and argument shapes spell it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Float(_) => "number",
            Self::String(_) => "string",
            Self::List(_) => "list",
            Self::Map(_) => "map",
        }
    }

    /// The text, if this is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// The map, if this is a map.
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Self::Map(map) => Some(map),
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::String(_) | Self::List(_) => None,
        }
    }

    /// The list, if this is a list.
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Self::List(list) => Some(list),
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::String(_) | Self::Map(_) => None,
        }
    }

    /// The number as an integer, if it is a whole number that 64 bits hold.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Float(number) if number.fract() == 0.0 && number.abs() < 9.2e18 => Some(*number as i64),
            Self::Null | Self::Bool(_) | Self::Float(_) | Self::String(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// The number as a float, if it is a number.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
            Self::Null | Self::Bool(_) | Self::String(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// The truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            Self::Null | Self::Int(_) | Self::Float(_) | Self::String(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// The first place, as a path such as `$.rows[3]`, that holds a NaN or an infinity.
    pub fn non_finite_path(&self) -> Option<String> {
        fn walk(value: &Value, path: &mut String) -> bool {
            let length = path.len();
            match value {
                Value::Float(number) => return !number.is_finite(),
                Value::List(list) => {
                    for (index, item) in list.iter().enumerate() {
                        path.push_str(&format!("[{index}]"));
                        if walk(item, path) {
                            return true;
                        }
                        path.truncate(length);
                    }
                }
                Value::Map(map) => {
                    for (key, item) in map {
                        path.push('.');
                        path.push_str(key);
                        if walk(item, path) {
                            return true;
                        }
                        path.truncate(length);
                    }
                }
                Value::Null | Value::Bool(_) | Value::Int(_) | Value::String(_) => {}
            }
            false
        }
        let mut path = String::from("$");
        walk(self, &mut path).then_some(path)
    }

    /// Compact JSON. NaN and infinities appear as the strings `"NaN"`, `"Infinity"`, `"-Infinity"`. Never fails.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write_json(&mut out);
        out
    }

    /// The value in a sentence: its JSON, at most 120 characters of it.
    pub fn shown(&self) -> String {
        let json = self.to_json();
        match json.char_indices().nth(120) {
            None => json,
            Some((cut, _)) => format!("{}…", &json[..cut]),
        }
    }

    /// Appends compact JSON to `out`; see [`Value::to_json`].
    pub fn write_json(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Int(number) => out.push_str(itoa::Buffer::new().format(*number)),
            Self::Float(number) if number.is_finite() => out.push_str(ryu::Buffer::new().format_finite(*number)),
            Self::Float(number) => {
                out.push('"');
                out.push_str(non_finite_name(*number));
                out.push('"');
            }
            Self::String(text) => write_json_string(text, out),
            Self::List(list) => {
                out.push('[');
                for (index, item) in list.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write_json(out);
                }
                out.push(']');
            }
            Self::Map(map) => {
                out.push('{');
                for (index, (key, item)) in map.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_json_string(key, out);
                    out.push(':');
                    item.write_json(out);
                }
                out.push('}');
            }
        }
    }

    /// Reads JSON text. Integers outside 64 bits are refused rather than rounded.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// How a float without a JSON form is spelled where it must be written down.
pub(crate) fn non_finite_name(number: f64) -> &'static str {
    if number.is_nan() {
        "NaN"
    } else if number > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    }
}

/// Appends a JSON string literal: RFC 8259 short escapes, other control characters as `\u00xx`, non-ASCII raw.
pub(crate) fn write_json_string(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    // Most texts have nothing to escape: they are looked through once and copied once.
    while let Some(index) = rest.bytes().position(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        out.push_str(&rest[..index]);
        match rest.as_bytes()[index] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            control => out.push_str(&format!("\\u{control:04x}")),
        }
        rest = &rest[index + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.to_json())
    }
}

macro_rules! from {
    ($($source:ty => |$name:ident| $value:expr;)*) => {
        $(impl From<$source> for Value {
            fn from($name: $source) -> Self {
                $value
            }
        })*
    };
}

from! {
    () => |_unit| Value::Null;
    bool => |value| Value::Bool(value);
    i64 => |value| Value::Int(value);
    i32 => |value| Value::Int(value.into());
    u32 => |value| Value::Int(value.into());
    f64 => |value| Value::Float(value);
    &str => |value| Value::String(value.to_owned());
    String => |value| Value::String(value);
    Vec<Value> => |value| Value::List(value);
    Map => |value| Value::Map(value);
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::Float(value) if value.is_finite() => serializer.serialize_f64(*value),
            Self::Float(value) => serializer.serialize_str(non_finite_name(*value)),
            Self::String(value) => serializer.serialize_str(value),
            Self::List(value) => value.serialize(serializer),
            Self::Map(value) => value.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("null, a boolean, a number within 64 bits, text, a list, or a map with text keys")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        i64::try_from(value)
            .map(Value::Int)
            .map_err(|_| E::custom(format!("{value} does not fit in 64 bits with a sign")))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::with_capacity(access.size_hint().unwrap_or(0).min(4096));
        while let Some(item) = access.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, item)) = access.next_entry::<String, Value>()? {
            map.insert(key, item);
        }
        Ok(Value::Map(map))
    }
}
