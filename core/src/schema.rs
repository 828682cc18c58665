//! JSON Schema as this crate uses it: compiled once, checked in bounded time.
//!
//! Schemas and the values that meet them come from models and their programs, and a check runs outside the limits of
//! programs. So patterns match in linear time (look-around and back-references are refused), and a value that is too
//! large for its schema is refused unseen. This module never changes what a schema means.

use std::fmt;

use jsonschema::PatternOptions;

use crate::value::{Map, Value};

/// Parts of a value times parts of a schema, at most.
const MAX_WORK: u64 = 100_000_000;
/// Bytes of text that count as one part of a value.
const TEXT_PART: usize = 64;
/// Bytes of one compiled pattern.
const MAX_PATTERN_BYTES: usize = 1 << 20;
/// Steps of the search for empty tables; what lies behind them is left as it is.
const MAX_STEPS: u32 = 1 << 20;
/// Nesting of schemas, references included, in that search.
const MAX_DEPTH: u32 = 64;

/// A compiled schema.
pub struct Schema {
    source: Value,
    validator: jsonschema::Validator,
    parts: u64,
}

impl Schema {
    /// Compiles a schema. The error says what is wrong with it.
    pub fn compile(source: &Value) -> Result<Self, String> {
        if let Some(pattern) = unbounded_pattern(source) {
            return Err(format!(
                "the pattern {pattern:?} uses look-around or a back-reference, which cannot be matched in bounded time; \
                 write it without"
            ));
        }
        let schema = serde_json::to_value(source).map_err(|error| error.to_string())?;
        let validator = jsonschema::options()
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN_BYTES))
            .build(&schema)
            .map_err(|error| error.to_string())?;
        Ok(Self { source: source.clone(), validator, parts: parts(source) })
    }

    /// The schema as it was given.
    pub fn source(&self) -> &Value {
        &self.source
    }

    /// `Err` names the first place that does not fit, and why.
    pub fn check(&self, value: &Value) -> Result<(), Misfit> {
        let work = parts(value).saturating_mul(self.parts);
        if work > MAX_WORK {
            let reason = format!(
                "it is too large to be checked: {} parts against {} of the schema; make one of them smaller",
                parts(value),
                self.parts
            );
            return Err(Misfit { place: String::new(), reason });
        }
        let instance =
            serde_json::to_value(value).map_err(|error| Misfit { place: String::new(), reason: error.to_string() })?;
        match self.validator.iter_errors(&instance).next() {
            None => Ok(()),
            Some(error) => Err(Misfit { place: error.instance_path().to_string(), reason: error.to_string() }),
        }
    }

    /// Makes each empty map an empty list where the schema wants a list and no map: a language with one kind of table
    /// cannot say which it means (engines.md 5.3).
    pub fn settle_empty_tables(&self, value: &mut Value) {
        Tables { root: &self.source, steps: 0 }.settle(value, &self.source, 0);
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Schema").field(&self.source).finish()
    }
}

/// Where a value does not fit, as a JSON pointer, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Misfit {
    /// JSON pointer; empty for the whole value.
    pub place: String,
    /// What is wrong there.
    pub reason: String,
}

/// Leaves, lists and maps, and long texts by their length.
fn parts(value: &Value) -> u64 {
    let text = |text: &str| 1 + (text.len() / TEXT_PART) as u64;
    match value {
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => 1,
        Value::String(value) => text(value),
        Value::List(list) => 1 + list.iter().map(parts).sum::<u64>(),
        Value::Map(map) => 1 + map.iter().map(|(key, item)| text(key) + parts(item)).sum::<u64>(),
    }
}

/// A pattern that only a backtracking engine could match.
fn unbounded_pattern(schema: &Value) -> Option<&str> {
    match schema {
        Value::Map(map) => {
            let own = map.get("pattern").and_then(Value::as_str).into_iter();
            let names = map.get("patternProperties").and_then(Value::as_map).into_iter().flat_map(Map::keys);
            let mut patterns = own.chain(names.map(String::as_str));
            patterns.find(|pattern| backtracks(pattern)).or_else(|| map.values().find_map(unbounded_pattern))
        }
        Value::List(list) => list.iter().find_map(unbounded_pattern),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => None,
    }
}

fn backtracks(pattern: &str) -> bool {
    let mut rest = pattern;
    while let Some(index) = rest.find(['\\', '(']) {
        let tail = &rest[index..];
        if ["(?=", "(?!", "(?<=", "(?<!", "\\k<"].iter().any(|mark| tail.starts_with(mark)) {
            return true;
        }
        let mut characters = tail.chars();
        let escaped = characters.next() == Some('\\');
        let second = characters.clone().next();
        if escaped && second.is_some_and(|digit| ('1'..='9').contains(&digit)) {
            return true;
        }
        let skipped = if escaped { 1 + second.map_or(0, char::len_utf8) } else { 1 };
        rest = &tail[skipped..];
    }
    false
}

/// The search for empty tables.
struct Tables<'a> {
    root: &'a Value,
    steps: u32,
}

impl<'a> Tables<'a> {
    fn settle(&mut self, value: &mut Value, schema: &'a Value, depth: u32) {
        self.steps += 1;
        if self.steps > MAX_STEPS || depth > MAX_DEPTH {
            return;
        }
        let Value::Map(keywords) = schema else { return };
        if matches!(value, Value::Map(map) if map.is_empty()) {
            if self.wants(schema, depth) == Wants::List {
                *value = Value::List(Vec::new());
            }
            return;
        }
        for branch in self.branches(keywords) {
            self.settle(value, branch, depth + 1);
        }
        match value {
            Value::Map(map) => {
                let properties = keywords.get("properties").and_then(Value::as_map);
                let others = keywords.get("additionalProperties");
                for (key, item) in map {
                    if let Some(schema) = properties.and_then(|properties| properties.get(key)).or(others) {
                        self.settle(item, schema, depth + 1);
                    }
                }
            }
            Value::List(list) => {
                let first = keywords.get("prefixItems").and_then(Value::as_list).unwrap_or_default();
                for (index, item) in list.iter_mut().enumerate() {
                    if let Some(schema) = first.get(index).or_else(|| keywords.get("items")) {
                        self.settle(item, schema, depth + 1);
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
        }
    }

    /// Schemas that apply to the same value.
    fn branches(&self, keywords: &'a Map) -> Vec<&'a Value> {
        let lists = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|name| keywords.get(name)?.as_list()).flatten();
        let single = ["if", "then", "else"].into_iter().filter_map(|name| keywords.get(name));
        let referred = keywords.get("$ref").and_then(Value::as_str).and_then(|reference| self.referred(reference));
        lists.chain(single).chain(referred).collect()
    }

    /// The schema behind a reference into the same document.
    fn referred(&self, reference: &str) -> Option<&'a Value> {
        let pointer = reference.strip_prefix('#')?;
        pointer.split('/').skip(1).try_fold(self.root, |place, step| match place {
            Value::Map(map) => map.get(&step.replace("~1", "/").replace("~0", "~")),
            Value::List(list) => list.get(step.parse::<usize>().ok()?),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => None,
        })
    }

    /// Which of the two an empty table must be.
    fn wants(&mut self, schema: &'a Value, depth: u32) -> Wants {
        self.steps += 1;
        let Value::Map(keywords) = schema else { return Wants::Either };
        if self.steps > MAX_STEPS || depth > MAX_DEPTH {
            return Wants::Either;
        }
        let named = |name: &str| match keywords.get("type") {
            Some(Value::String(only)) => Some(only == name),
            Some(Value::List(some)) => Some(some.iter().any(|one| one.as_str() == Some(name))),
            Some(_) | None => None,
        };
        match (named("array"), named("object")) {
            (Some(true), Some(false)) => return Wants::List,
            (Some(false), Some(true)) => return Wants::Map,
            (Some(false), Some(false)) => return Wants::Neither,
            (Some(_) | None, Some(_) | None) => {}
        }
        if let Some(values) = keywords.get("enum").and_then(Value::as_list) {
            return Wants::of(
                values.iter().any(|value| value.as_list().is_some()),
                values.iter().any(|value| value.as_map().is_some()),
            );
        }
        // All of these hold at once; of `anyOf` and `oneOf`, one does.
        let mut wants = Wants::Either;
        let all = keywords.get("allOf").and_then(Value::as_list).unwrap_or_default().iter();
        let referred = keywords.get("$ref").and_then(Value::as_str).and_then(|reference| self.referred(reference));
        for branch in all.chain(referred) {
            wants = wants.and(self.wants(branch, depth + 1));
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(branches) = keywords.get(name).and_then(Value::as_list) {
                let some = branches.iter().fold(Wants::Neither, |some, branch| some.or(self.wants(branch, depth + 1)));
                wants = wants.and(some);
            }
        }
        if wants == Wants::Either && named("array").is_none() {
            let any = |names: &[&str]| names.iter().any(|name| keywords.contains_key(*name));
            let list = any(&["items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"]);
            let map = any(&["properties", "required", "additionalProperties", "patternProperties", "minProperties"]);
            return if list && !map { Wants::List } else { Wants::Either };
        }
        wants
    }
}

/// What an empty table may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Neither,
    List,
    Map,
    Either,
}

impl Wants {
    fn of(list: bool, map: bool) -> Self {
        match (list, map) {
            (true, true) => Self::Either,
            (true, false) => Self::List,
            (false, true) => Self::Map,
            (false, false) => Self::Neither,
        }
    }

    fn list(self) -> bool {
        matches!(self, Self::List | Self::Either)
    }

    fn map(self) -> bool {
        matches!(self, Self::Map | Self::Either)
    }

    fn and(self, other: Self) -> Self {
        Self::of(self.list() && other.list(), self.map() && other.map())
    }

    fn or(self, other: Self) -> Self {
        Self::of(self.list() || other.list(), self.map() || other.map())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        Value::from_json(json).unwrap()
    }

    #[test]
    fn patterns_that_need_backtracking_are_refused_by_name() {
        for schema in [
            r#"{"pattern":"(?=a)(a*)*c"}"#,
            r#"{"items":{"pattern":"(a)\\1"}}"#,
            r#"{"patternProperties":{"^(?!x)":true}}"#,
        ] {
            assert!(Schema::compile(&value(schema)).unwrap_err().contains("look-around"), "{schema}");
        }
        for schema in [r#"{"pattern":"^(a|b)\\\\1[(]?$"}"#, r#"{"pattern":"^\\d{4}-\\w+$"}"#] {
            Schema::compile(&value(schema)).unwrap();
        }
    }

    #[test]
    fn a_check_ends_soon_whatever_the_pattern_and_the_text() {
        let schema = Schema::compile(&value(r#"{"items":{"pattern":"(a|aa)+c$"}}"#)).unwrap();
        let texts = Value::List(vec!["a".repeat(5_000).into(); 1_000]);
        let began = std::time::Instant::now();
        assert!(schema.check(&texts).is_err());
        assert!(began.elapsed().as_secs() < 5, "took {:?}", began.elapsed());
        let wide: Vec<String> = (0..2_000).map(|number| format!(r#"{{"const":{number}}}"#)).collect();
        let schema = Schema::compile(&value(&format!(r#"{{"items":{{"anyOf":[{}]}}}}"#, wide.join(",")))).unwrap();
        let misfit = schema.check(&Value::List(vec![Value::Int(-1); 100_000])).unwrap_err();
        assert!(misfit.reason.contains("too large to be checked"), "{misfit}");
    }

    #[test]
    fn an_empty_table_is_a_list_where_the_schema_wants_a_list_and_no_map() {
        for (schema, before, after) in [
            (r#"{"type":"array"}"#, "{}", "[]"),
            (r#"{"type":["array","null"]}"#, "{}", "[]"),
            (r#"{"type":["array","object"]}"#, "{}", "{}"),
            (r#"{"type":"object"}"#, "{}", "{}"),
            (
                r#"{"properties":{"a":{"type":"array"},"b":{"type":"object"}}}"#,
                r#"{"a":{},"b":{}}"#,
                r#"{"a":[],"b":{}}"#,
            ),
            (r#"{"additionalProperties":{"items":{"type":"array"}}}"#, r#"{"a":[{},{}]}"#, r#"{"a":[[],[]]}"#),
            (r#"{"prefixItems":[true,{"type":"array"}],"items":{"type":"object"}}"#, "[{},{},{}]", "[{},[],{}]"),
            (r#"{"anyOf":[{"type":"array"},{"type":"null"}]}"#, "{}", "[]"),
            (r#"{"anyOf":[{"type":"array"},{"type":"object"}]}"#, "{}", "{}"),
            (
                r##"{"$defs":{"l":{"type":"array"}},"properties":{"a":{"$ref":"#/$defs/l"}}}"##,
                r#"{"a":{}}"#,
                r#"{"a":[]}"#,
            ),
            (r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}"##, "{}", "{}"),
            (r#"{"items":{"type":"number"}}"#, "{}", "[]"),
            ("true", "{}", "{}"),
        ] {
            let mut settled = value(before);
            Schema::compile(&value(schema)).unwrap().settle_empty_tables(&mut settled);
            assert_eq!(settled, value(after), "{schema}");
        }
    }
}
