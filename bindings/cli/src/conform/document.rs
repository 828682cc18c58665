//! YAML as a tree in which every node knows its line, so that each message about a scenario can name one.
//!
//! YAML 1.2: only `true` and `false` are truth values. Duplicate keys are refused. Nothing is included or executed.

use std::fmt;

use cadenza_core::value::{Map, Value};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

/// One node and the line it begins on.
#[derive(Clone, Debug)]
pub struct Node {
    /// 1-based.
    pub line: u64,
    /// What it is.
    pub kind: Kind,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A scalar: never a list or a map.
    Scalar(Value),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order of the file.
    Map(Vec<(String, Node)>),
}

/// A complaint about one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct Fault {
    /// 1-based; 0 when unknown.
    pub line: u64,
    /// What is wrong.
    pub message: String,
}

impl Fault {
    /// A complaint about this line.
    pub fn new(line: u64, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// Reads one document.
pub fn parse(text: &str) -> Result<Node, Fault> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        Fault::new(line, first_line(&error.without_snippet().to_string()))
    })
}

/// The parser's words without their own mention of the place, which [`Fault`] gives.
fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default().trim();
    line.to_owned()
}

impl Node {
    /// The node as plain data.
    pub fn to_value(&self) -> Value {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::List(items) => Value::List(items.iter().map(Self::to_value).collect()),
            Kind::Map(entries) => {
                Value::Map(entries.iter().map(|(key, item)| (key.clone(), item.to_value())).collect::<Map>())
            }
        }
    }

    /// A complaint about this node.
    pub fn fault(&self, message: impl Into<String>) -> Fault {
        Fault::new(self.line, message)
    }

    /// What it is, in words.
    pub fn described(&self) -> String {
        match &self.kind {
            Kind::Scalar(Value::Null) => "nothing".to_owned(),
            Kind::Scalar(value) => format!("the {} {}", value.type_name(), value.to_json()),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
        }
    }

    /// The items of a list.
    pub fn list(&self, what: &str) -> Result<&[Self], Fault> {
        match &self.kind {
            Kind::List(items) => Ok(items),
            Kind::Scalar(_) | Kind::Map(_) => Err(self.expected(what, "a list")),
        }
    }

    /// The entries of a map.
    pub fn map(&self, what: &str) -> Result<&[(String, Self)], Fault> {
        match &self.kind {
            Kind::Map(entries) => Ok(entries),
            Kind::Scalar(_) | Kind::List(_) => Err(self.expected(what, "a map")),
        }
    }

    /// Text that is not empty. A number or truth value is taken as it is written.
    pub fn text(&self, what: &str) -> Result<String, Fault> {
        match &self.kind {
            Kind::Scalar(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
            Kind::Scalar(value @ (Value::Int(_) | Value::Float(_) | Value::Bool(_))) => Ok(value.to_json()),
            Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => Err(self.expected(what, "text")),
        }
    }

    /// A whole number that is not negative.
    pub fn count(&self, what: &str) -> Result<u64, Fault> {
        match &self.kind {
            Kind::Scalar(value) => value.as_int().and_then(|number| u64::try_from(number).ok()),
            Kind::List(_) | Kind::Map(_) => None,
        }
        .ok_or_else(|| self.expected(what, "a whole number"))
    }

    /// A truth value.
    pub fn truth(&self, what: &str) -> Result<bool, Fault> {
        match &self.kind {
            Kind::Scalar(value) => value.as_bool(),
            Kind::List(_) | Kind::Map(_) => None,
        }
        .ok_or_else(|| self.expected(what, "true or false"))
    }

    fn expected(&self, what: &str, expected: &str) -> Fault {
        self.fault(format!("`{what}` is {}; expected {expected}", self.described()))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), kind: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("null, a boolean, a number within 64 bits, text, a list, or a map")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Int(value)))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Kind, E> {
        i64::try_from(value)
            .map(|value| Kind::Scalar(Value::Int(value)))
            .map_err(|_| E::custom(format!("{value} does not fit in 64 bits with a sign")))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Kind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry::<String, Node>()? {
            entries.push(entry);
        }
        Ok(Kind::Map(entries))
    }
}

/// The entries of a map that has known keys. Each is taken once; [`Fields::finish`] refuses the rest.
pub struct Fields<'a> {
    node: &'a Node,
    what: String,
    entries: Vec<(&'a str, &'a Node)>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The fields of a node that `what` names in messages.
    pub fn of(node: &'a Node, what: impl Into<String>) -> Result<Self, Fault> {
        let what = what.into();
        let entries = node.map(&what)?.iter().map(|(key, item)| (key.as_str(), item)).collect();
        Ok(Self { node, what, entries, known: Vec::new() })
    }

    /// A field that may be missing.
    pub fn optional(&mut self, name: &'static str) -> Option<&'a Node> {
        self.known.push(name);
        let index = self.entries.iter().position(|(key, _)| *key == name)?;
        Some(self.entries.swap_remove(index).1)
    }

    /// A field that must be there.
    pub fn required(&mut self, name: &'static str) -> Result<&'a Node, Fault> {
        let (node, what) = (self.node, self.what.clone());
        self.optional(name).ok_or_else(|| node.fault(format!("{what} needs the field `{name}`")))
    }

    /// Text that must be there.
    pub fn text(&mut self, name: &'static str) -> Result<String, Fault> {
        self.required(name)?.text(name)
    }

    /// A map that may be missing; null counts as missing.
    pub fn entries(&mut self, name: &'static str) -> Result<Map, Fault> {
        match self.optional(name) {
            None => Ok(Map::new()),
            Some(node) => match node.to_value() {
                Value::Null => Ok(Map::new()),
                Value::Map(map) => Ok(map),
                Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_) => {
                    Err(node.expected(name, "a map"))
                }
            },
        }
    }

    /// A list that may be missing; null counts as missing.
    pub fn values(&mut self, name: &'static str) -> Result<Vec<Value>, Fault> {
        match self.optional(name) {
            None => Ok(Vec::new()),
            Some(node) => match node.to_value() {
                Value::Null => Ok(Vec::new()),
                Value::List(list) => Ok(list),
                Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::Map(_) => {
                    Err(node.expected(name, "a list"))
                }
            },
        }
    }

    /// Refuses fields that nobody asked for.
    pub fn finish(self) -> Result<(), Fault> {
        match self.entries.first() {
            None => Ok(()),
            Some((name, node)) => {
                let known = self.known.join(", ");
                Err(node.fault(format!("{} has no field `{name}`; its fields are: {known}", self.what)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_knows_its_line() {
        let node = parse("a: 1\nb:\n  - x: yes\n  - [1.5, null, true]\n").unwrap();
        let entries = node.map("file").unwrap();
        assert_eq!((entries[0].1.line, entries[1].0.as_str()), (1, "b"));
        let items = entries[1].1.list("b").unwrap();
        assert_eq!((items[0].line, items[1].line), (3, 4));
        assert_eq!(node.to_value().to_json(), r#"{"a":1,"b":[{"x":"yes"},[1.5,null,true]]}"#);
    }

    #[test]
    fn malformed_text_is_refused_with_its_line() {
        for (text, line) in [("a: 1\nb: [1, 2\nc: 3\n", 3), ("a: 1\na: 2\n", 2), ("x: !!int y\n", 1)] {
            let fault = parse(text).unwrap_err();
            assert_eq!(fault.line, line, "{text:?}: {fault}");
        }
    }

    #[test]
    fn unknown_fields_are_refused_with_the_known_ones() {
        let node = parse("op: call\ntarget: x\nmetod: y\n").unwrap();
        let mut fields = Fields::of(&node, "op `call`").unwrap();
        fields.text("op").unwrap();
        fields.text("target").unwrap();
        assert_eq!(fields.required("method").unwrap_err().to_string(), "line 1: op `call` needs the field `method`");
        let message = fields.finish().unwrap_err().to_string();
        assert_eq!(message, "line 3: op `call` has no field `metod`; its fields are: op, target, method");
    }
}
