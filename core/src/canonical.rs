//! Canonical JSON and `H(x)`: the one serialisation that is hashed (execution-clauses section 7).
//!
//! UTF-8, keys sorted by code point, no spaces, short escapes, non-ASCII raw, integers within ±(2^53−1). What does not
//! fit is written as a one-key map: a float as `{"$float":"1.5"}` (shortest text that reads back equal), an integer
//! beyond ±(2^53−1) as `{"$int":"9007199254740992"}`, and a map whose only key is one of `$float`, `$int`, `$map` as
//! `{"$map":{…}}`. So the form is total and injective: different values never share a text. [`decode`] undoes it.
//!
//! Writers go straight into a `String` or into SHA-256; no intermediate [`Value`] is built. Nothing here reads a clock,
//! and nothing here fails.

use sha2::{Digest as _, Sha256};

use crate::ids::Digest;
use crate::value::{Map, Value, non_finite_name, write_json_string};

/// The largest integer that every JSON reader keeps exact.
const MAX_EXACT: i64 = (1 << 53) - 1;

/// The one-key maps that stand for something else.
const MARKERS: [&str; 3] = ["$float", "$int", "$map"];

/// Where canonical text goes.
pub trait Sink {
    /// Takes the next piece of text.
    fn put(&mut self, text: &str);

    /// Takes a string literal, quotes and escapes included.
    fn put_string(&mut self, text: &str) {
        if text.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
            let mut quoted = String::with_capacity(text.len() + 16);
            write_json_string(text, &mut quoted);
            self.put(&quoted);
        } else {
            self.put("\"");
            self.put(text);
            self.put("\"");
        }
    }
}

impl Sink for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }

    fn put_string(&mut self, text: &str) {
        write_json_string(text, self);
    }
}

impl Sink for Sha256 {
    fn put(&mut self, text: &str) {
        self.update(text.as_bytes());
    }
}

/// Counts bytes instead of keeping them.
#[derive(Default)]
struct Length(u64);

impl Sink for Length {
    fn put(&mut self, text: &str) {
        self.0 += text.len() as u64;
    }
}

/// Something with a canonical form.
pub trait Canonical {
    /// Writes the form.
    fn write(&self, out: &mut Writer<'_>);
}

/// Writes canonical JSON piece by piece.
pub struct Writer<'a> {
    sink: &'a mut dyn Sink,
}

impl<'a> Writer<'a> {
    /// A writer into that sink.
    pub fn new(sink: &'a mut dyn Sink) -> Self {
        Self { sink }
    }

    /// `null`.
    pub fn null(&mut self) {
        self.sink.put("null");
    }

    /// `true` or `false`.
    pub fn bool(&mut self, value: bool) {
        self.sink.put(if value { "true" } else { "false" });
    }

    /// An integer.
    pub fn int(&mut self, value: i64) {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(value);
        if (-MAX_EXACT..=MAX_EXACT).contains(&value) {
            self.sink.put(digits);
        } else {
            self.marked("$int", digits);
        }
    }

    /// An unsigned integer.
    pub fn uint(&mut self, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.int(value),
            Err(_) => self.marked("$int", itoa::Buffer::new().format(value)),
        }
    }

    /// A float, NaN and infinities included.
    pub fn float(&mut self, value: f64) {
        if value.is_finite() {
            self.marked("$float", ryu::Buffer::new().format_finite(value));
        } else {
            self.marked("$float", non_finite_name(value));
        }
    }

    /// Text.
    pub fn str(&mut self, value: &str) {
        self.sink.put_string(value);
    }

    /// A digest, as its 64 digits.
    pub fn digest(&mut self, value: &Digest) {
        let mut hex = String::with_capacity(64);
        value.write_hex(&mut hex);
        self.sink.put("\"");
        self.sink.put(&hex);
        self.sink.put("\"");
    }

    /// Anything with a canonical form, or `null`.
    pub fn option<T: Canonical>(&mut self, value: Option<T>) {
        match value {
            Some(value) => value.write(self),
            None => self.null(),
        }
    }

    /// A list.
    pub fn list(&mut self, fill: impl FnOnce(&mut List<'_, 'a>)) {
        self.sink.put("[");
        fill(&mut List { writer: self, first: true });
        self.sink.put("]");
    }

    /// A map. The keys must come in code point order, each once.
    pub fn map(&mut self, fill: impl FnOnce(&mut Fields<'_, 'a>)) {
        self.sink.put("{");
        fill(&mut Fields { writer: self, last: None });
        self.sink.put("}");
    }

    /// Any value.
    pub fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.null(),
            Value::Bool(value) => self.bool(*value),
            Value::Int(value) => self.int(*value),
            Value::Float(value) => self.float(*value),
            Value::String(value) => self.str(value),
            Value::List(items) => self.list(|list| {
                for item in items {
                    list.item().value(item);
                }
            }),
            Value::Map(map) => self.value_map(map),
        }
    }

    /// Any map of values.
    pub fn value_map(&mut self, map: &Map) {
        let stands_for_something = map.len() == 1 && map.keys().all(|key| MARKERS.contains(&key.as_str()));
        if stands_for_something {
            self.sink.put("{\"$map\":");
        }
        self.sink.put("{");
        let mut first = true;
        for (key, item) in map {
            if !first {
                self.sink.put(",");
            }
            first = false;
            self.sink.put_string(key);
            self.sink.put(":");
            self.value(item);
        }
        self.sink.put("}");
        if stands_for_something {
            self.sink.put("}");
        }
    }

    fn marked(&mut self, marker: &str, text: &str) {
        self.sink.put("{\"");
        self.sink.put(marker);
        self.sink.put("\":\"");
        self.sink.put(text);
        self.sink.put("\"}");
    }
}

/// The items of a list being written.
pub struct List<'w, 'a> {
    writer: &'w mut Writer<'a>,
    first: bool,
}

impl<'a> List<'_, 'a> {
    /// The place of the next item: exactly one thing must be written into it.
    pub fn item(&mut self) -> &mut Writer<'a> {
        if !self.first {
            self.writer.sink.put(",");
        }
        self.first = false;
        self.writer
    }
}

/// The fields of a map being written.
pub struct Fields<'w, 'a> {
    writer: &'w mut Writer<'a>,
    last: Option<&'static str>,
}

impl<'a> Fields<'_, 'a> {
    /// The place of that field's value: exactly one thing must be written into it.
    pub fn field(&mut self, key: &'static str) -> &mut Writer<'a> {
        debug_assert!(self.last.is_none_or(|last| last < key), "canonical keys out of order: {:?}, {key}", self.last);
        if self.last.is_some() {
            self.writer.sink.put(",");
        }
        self.last = Some(key);
        self.writer.sink.put("\"");
        self.writer.sink.put(key);
        self.writer.sink.put("\":");
        self.writer
    }
}

impl Canonical for Value {
    fn write(&self, out: &mut Writer<'_>) {
        out.value(self);
    }
}

impl Canonical for Map {
    fn write(&self, out: &mut Writer<'_>) {
        out.value_map(self);
    }
}

impl Canonical for str {
    fn write(&self, out: &mut Writer<'_>) {
        out.str(self);
    }
}

impl Canonical for Digest {
    fn write(&self, out: &mut Writer<'_>) {
        out.digest(self);
    }
}

impl Canonical for u64 {
    fn write(&self, out: &mut Writer<'_>) {
        out.uint(*self);
    }
}

impl Canonical for u32 {
    fn write(&self, out: &mut Writer<'_>) {
        out.uint(u64::from(*self));
    }
}

impl<T: Canonical + ?Sized> Canonical for &T {
    fn write(&self, out: &mut Writer<'_>) {
        (**self).write(out);
    }
}

/// Canonical text of `value`.
pub fn text(value: &(impl Canonical + ?Sized)) -> String {
    let mut out = String::new();
    value.write(&mut Writer::new(&mut out));
    out
}

/// Bytes of the canonical text of `value`, without building it.
pub fn length(value: &(impl Canonical + ?Sized)) -> u64 {
    let mut out = Length::default();
    value.write(&mut Writer::new(&mut out));
    out.0
}

/// `H(x)`: SHA-256 of the canonical text.
pub fn hash(value: &(impl Canonical + ?Sized)) -> Digest {
    hash_with(|out| value.write(out))
}

/// `H` of whatever `fill` writes.
pub fn hash_with(fill: impl FnOnce(&mut Writer<'_>)) -> Digest {
    let mut sha = Sha256::new();
    fill(&mut Writer::new(&mut sha));
    Digest(sha.finalize().into())
}

/// `H(null)`.
pub const HASH_OF_NULL: Digest = Digest([
    0x74, 0x23, 0x4e, 0x98, 0xaf, 0xe7, 0x49, 0x8f, 0xb5, 0xda, 0xf1, 0xf3, 0x6a, 0xc2, 0xd7, 0x8a, 0xcc, 0x33, 0x94,
    0x64, 0xf9, 0x50, 0x70, 0x3b, 0x8c, 0x01, 0x98, 0x92, 0xf9, 0x82, 0xb9, 0x0b,
]);

/// Turns a value that was read from canonical text back into what was written. Unknown markers stay as they are.
pub fn decode(value: Value) -> Value {
    match value {
        Value::List(items) => Value::List(items.into_iter().map(decode).collect()),
        Value::Map(map) => decode_map(map),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => value,
    }
}

fn decode_map(mut map: Map) -> Value {
    if map.len() == 1 {
        let number = match map.first_key_value() {
            Some((key, Value::String(text))) if key == "$float" => read_float(text).map(Value::Float),
            Some((key, Value::String(text))) if key == "$int" => text.parse().ok().map(Value::Int),
            _ => None,
        };
        if let Some(number) = number {
            return number;
        }
        if let Some(Value::Map(inner)) = map.get_mut("$map") {
            let inner = std::mem::take(inner);
            return Value::Map(inner.into_iter().map(|(key, item)| (key, decode(item))).collect());
        }
    }
    Value::Map(map.into_iter().map(|(key, item)| (key, decode(item))).collect())
}

fn read_float(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok(),
    }
}
