//! Log files (formats.md section 2), read back: entries, the trees they form, and how they are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use cadenza_core::ids::CallId;
use cadenza_core::printable::printable;
use cadenza_core::program::Language;
use cadenza_core::store::{CallQuery, Store as _, StoredCall};
use cadenza_core::value::{Map, Value};

use crate::failure::Failure;
use crate::style::Style;

/// Characters of arguments in one line of a tree.
const MAX_ARGUMENTS: usize = 60;
/// Calls of a store that are looked at.
const STORED_CALLS: usize = 10_000;

/// One call as logged. Fields that are missing or of another type read as empty.
#[derive(Clone, Debug)]
pub struct Entry {
    fields: Map,
    /// The same as it is shown: models and servers wrote much of it.
    shown: Map,
}

impl Entry {
    /// One line of a log.
    pub fn parse(line: &str) -> Option<Self> {
        match Value::from_json(line) {
            Ok(Value::Map(map)) if map.contains_key("call_id") || map.contains_key("method") => Some(Self::of(map)),
            Ok(_) | Err(_) => None,
        }
    }

    /// One call of a store.
    pub fn of_stored(call: StoredCall) -> Self {
        let mut fields = call.to_map();
        if let Some(value) = fields.remove("value").filter(|_| !fields.contains_key("outcome_value")) {
            fields.insert("outcome_value".into(), value);
        }
        Self::of(fields)
    }

    fn of(fields: Map) -> Self {
        Self { shown: shown(&fields), fields }
    }

    /// The fields, as data.
    pub fn fields(&self) -> &Map {
        &self.fields
    }

    /// The fields, to be shown.
    pub fn shown(&self) -> &Map {
        &self.shown
    }

    /// A field's text, as data.
    pub fn data(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A field's text, to be shown.
    pub fn text(&self, name: &str) -> &str {
        self.shown.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// The call's id.
    pub fn call_id(&self) -> Result<CallId, Failure> {
        let text = self.text("call_id");
        CallId::parse(text).ok_or_else(|| Failure::usage(format!("{text:?} is not a call id")))
    }

    /// A field's number.
    pub fn number(&self, name: &str) -> f64 {
        self.fields.get(name).and_then(Value::as_float).unwrap_or_default()
    }

    /// Where and as whom the agent lives, where that says more than its role.
    pub fn whose(&self) -> String {
        match (self.text("agent"), self.text("namespace")) {
            ("", "" | "default") => String::new(),
            ("", namespace) => format!(" in {namespace}"),
            (agent, "" | "default") => format!(" of {agent}"),
            (agent, namespace) => format!(" of {agent} in {namespace}"),
        }
    }

    /// The namespace; calls of before there were any belong to the default one.
    pub fn namespace(&self) -> &str {
        match self.data("namespace") {
            "" => "default",
            namespace => namespace,
        }
    }

    /// How it ended: `ok`, `error` or `interrupted`.
    pub fn status(&self) -> &str {
        match self.data("agent_outcome") {
            "INTERRUPTED" => "interrupted",
            _ => self.data("outcome_status"),
        }
    }

    /// Whether the call succeeded.
    pub fn ok(&self) -> bool {
        self.text("outcome_status") == "ok"
    }

    /// The program's language.
    pub fn language(&self) -> Language {
        Language::from_name(self.text("language")).unwrap_or(Language::Lua)
    }

    /// `role.method(args)`, cut to one line.
    pub fn signature(&self, style: Style) -> String {
        let mut arguments: Vec<String> = match self.shown.get("args") {
            Some(Value::List(args)) => args.iter().map(Value::to_json).collect(),
            Some(_) | None => Vec::new(),
        };
        if let Some(Value::Map(kwargs)) = self.shown.get("kwargs") {
            arguments.extend(kwargs.iter().map(|(name, value)| format!("{name}={}", value.to_json())));
        }
        let arguments = cut(&arguments.join(", "), MAX_ARGUMENTS);
        format!("{}.{}({arguments})", style.name(self.text("role")), style.strong(self.text("method")))
    }

    /// How it went, in a few words.
    pub fn state(&self, style: Style) -> String {
        if self.ok() {
            let value = self.shown.get("outcome_value").map(|value| format!(" {}", cut(&value.to_json(), 40)));
            return format!("{}{}", style.good("ok"), value.unwrap_or_default());
        }
        let message = self.text("outcome_error_message").lines().next().unwrap_or_default();
        format!("{} {}", style.bad(self.text("outcome_error_type")), cut(message, 80))
    }

    /// Where the program came from, and how long the call took.
    pub fn cost(&self) -> String {
        let mut cost = format!("{} {}", self.text("program_source"), self.text("language"));
        // That there was no program to reuse is the usual thing, and that one was reused says the source.
        let why = self.text("reuse");
        if !matches!(why, "" | "reused" | "no_program") {
            let _ = write!(cost, " ({why})");
        }
        let attempts = self.number("generation_attempt");
        if attempts > 1.0 {
            let _ = write!(cost, ", {attempts} attempts");
        }
        let tokens = self.number("tokens_in") + self.number("tokens_out");
        if tokens > 0.0 {
            let _ = write!(cost, ", {tokens} tokens");
        }
        format!("{}, {}", cost.trim(), milliseconds(self.number("duration_ms")))
    }
}

/// A copy that is safe to show.
fn shown(map: &Map) -> Map {
    map.iter().map(|(key, item)| (printable(key).into_owned(), shown_value(item))).collect()
}

fn shown_value(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(printable(text).into_owned()),
        Value::List(list) => Value::List(list.iter().map(shown_value).collect()),
        Value::Map(map) => Value::Map(shown(map)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => value.clone(),
    }
}

/// A duration that people can compare at a glance.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms >= 1_000.0 => format!("{:.2} s", ms / 1_000.0),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms if ms >= 0.1 => format!("{ms:.1} ms"),
        ms => format!("{:.0} µs", ms * 1_000.0),
    }
}

/// The beginning of a text, with a mark where it was cut.
pub fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// An id as people can type it: the process's first digits and the call's number.
pub fn short_id(id: &str) -> String {
    if id.len() != 32 || !id.is_ascii() {
        return id.to_owned();
    }
    let number = id[16..].trim_start_matches('0');
    format!("{}-{}", &id[..6], if number.is_empty() { "0" } else { number })
}

/// Whether a file is a store, and not a log.
pub fn is_store(path: &Path) -> bool {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let mut begin = [0; MAGIC.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == MAGIC
}

/// A log, or the last calls of a store, read.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    /// In the order in which the calls ended.
    pub entries: Vec<Entry>,
    /// 1-based lines that are no entries.
    pub unreadable: Vec<usize>,
}

impl LogFile {
    /// Reads a log. Lines that are no entries are counted, not refused: a log may have been cut off while it was written.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        if is_store(path) {
            return Self::of_store(path);
        }
        let bytes = std::fs::read(path).map_err(|error| Failure::usage(format!("log {}: {error}", path.display())))?;
        let text = String::from_utf8_lossy(&bytes);
        let mut log = Self { path: path.to_owned(), entries: Vec::new(), unreadable: Vec::new() };
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match Entry::parse(line) {
                Some(entry) => log.entries.push(entry),
                None => log.unreadable.push(number + 1),
            }
        }
        if let (true, Some(first)) = (log.entries.is_empty(), log.unreadable.first()) {
            return Err(Failure::usage(format!(
                "{}: not a log of calls: none of its lines is one, the first with text is line {first}",
                path.display()
            )));
        }
        Ok(log)
    }

    /// Reads the last calls of a store.
    fn of_store(path: &Path) -> Result<Self, Failure> {
        let store = crate::options::open(path)?;
        let query = CallQuery { limit: STORED_CALLS, ..CallQuery::default() };
        let mut calls = store.calls(&query).map_err(Failure::failed)?;
        calls.reverse();
        Ok(Self::of_calls(path, calls))
    }

    /// The calls of a store.
    pub fn of_calls(path: &Path, calls: impl IntoIterator<Item = StoredCall>) -> Self {
        let entries = calls.into_iter().map(Entry::of_stored).collect();
        Self { path: path.to_owned(), entries, unreadable: Vec::new() }
    }

    /// What to tell the reader about lines that are no entries.
    pub fn complaint(&self) -> Option<String> {
        let first = self.unreadable.first()?;
        let lines = self.unreadable.len();
        Some(format!("{}: {lines} unreadable line(s), the first is line {first}", self.path.display()))
    }

    /// The one call that an id means: whole, its short form, its beginning or its end, or `last`.
    pub fn find(&self, id: &str) -> Result<&Entry, Failure> {
        let nothing = || Failure::usage(format!("{}: no call {id:?}", self.path.display()));
        if id == "last" {
            return self.entries.last().ok_or_else(nothing);
        }
        let fits = |entry: &&Entry| {
            let known = entry.text("call_id");
            known == id || short_id(known) == id
        };
        if let Some(exact) = self.entries.iter().find(fits) {
            return Ok(exact);
        }
        let near = |entry: &&Entry| {
            let known = entry.text("call_id");
            !id.is_empty() && (known.starts_with(id) || known.ends_with(id))
        };
        let mut found = self.entries.iter().filter(near);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (Some(one), Some(other)) => {
                let (one, other) = (short_id(one.text("call_id")), short_id(other.text("call_id")));
                Err(Failure::usage(format!("{id:?} means several calls, among them {one} and {other}")))
            }
            (None, _) => Err(nothing()),
        }
    }

    /// The calls as trees.
    pub fn trees(&self) -> Trees<'_> {
        let known: BTreeSet<&str> = self.entries.iter().map(|entry| entry.text("call_id")).collect();
        let mut trees = Trees { roots: Vec::new(), children: BTreeMap::new() };
        for entry in &self.entries {
            let parent = entry.text("parent_call_id");
            if parent.is_empty() || !known.contains(parent) {
                trees.roots.push(entry);
            } else {
                trees.children.entry(parent).or_default().push(entry);
            }
        }
        // Calls are logged when they end; trees read better in the order in which they began.
        let began = |entry: &&Entry| entry.text("timestamp").to_owned();
        trees.roots.sort_by_cached_key(began);
        trees.children.values_mut().for_each(|children| children.sort_by_cached_key(began));
        trees
    }
}

/// Calls by the call that made them.
#[derive(Debug)]
pub struct Trees<'a> {
    /// Calls by hosts, and calls whose caller is not in the log.
    pub roots: Vec<&'a Entry>,
    children: BTreeMap<&'a str, Vec<&'a Entry>>,
}

impl<'a> Trees<'a> {
    /// The calls that a call's program made.
    pub fn children(&self, entry: &Entry) -> &[&'a Entry] {
        self.children.get(entry.text("call_id")).map_or(&[], Vec::as_slice)
    }

    /// Whether the call or any below it fits.
    pub fn any(&self, entry: &Entry, fits: &dyn Fn(&Entry) -> bool) -> bool {
        let mut waiting = vec![entry];
        let mut seen = 0;
        while let Some(entry) = waiting.pop() {
            seen += 1;
            // A log that was tampered with may go in circles.
            if fits(entry) || seen > 1_000_000 {
                return true;
            }
            waiting.extend(self.children(entry));
        }
        false
    }

    /// One line per call, children below their callers.
    pub fn text(&self, root: &Entry, style: Style) -> String {
        let mut text = String::new();
        self.write(root, "", "", 0, style, &mut text);
        text
    }

    fn write(&self, entry: &Entry, first: &str, rest: &str, depth: usize, style: Style, text: &mut String) {
        let id = style.faint(&short_id(entry.text("call_id")));
        let (signature, state) = (entry.signature(style), entry.state(style));
        let cost = style.faint(&format!("{}{}", entry.cost(), entry.whose()));
        let _ = writeln!(text, "{}{id} {signature}  {state}  {cost}", style.faint(first));
        let children = self.children(entry);
        // Deeper than any delegation can go: a log in circles.
        if depth > 256 {
            return;
        }
        for (index, child) in children.iter().enumerate() {
            let (branch, below) = if index + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.write(child, &format!("{rest}{branch}"), &format!("{rest}{below}"), depth + 1, style, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ac_19_the_tree_is_rebuilt_from_parents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls.jsonl");
        let line = |number: u32, parent: Option<u32>, time: &str| {
            let id = |number: u32| format!("abcdef0123456789{number:016x}");
            let parent = parent.map_or("null".to_owned(), |parent| format!("\"{}\"", id(parent)));
            format!(
                r#"{{"call_id":"{}","parent_call_id":{parent},"timestamp":"{time}","role":"r{number}","method":"m","args":[1,"x"],"kwargs":{{"k":true}},"outcome_status":"ok","duration_ms":1.5,"program_source":"generated","language":"lua"}}"#,
                id(number)
            )
        };
        let lines = [line(2, Some(1), "b"), "not json".to_owned(), line(3, Some(1), "c"), line(1, None, "a")];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let log = LogFile::read(&path).unwrap();
        assert_eq!(log.unreadable, [2]);
        let trees = log.trees();
        assert_eq!(trees.roots.len(), 1);
        let text = trees.text(trees.roots[0], Style::PLAIN);
        assert_eq!(
            text,
            "abcdef-1 r1.m(1, \"x\", k=true)  ok  generated lua, 1.5 ms\n\
             ├─ abcdef-2 r2.m(1, \"x\", k=true)  ok  generated lua, 1.5 ms\n\
             └─ abcdef-3 r3.m(1, \"x\", k=true)  ok  generated lua, 1.5 ms\n"
        );
        for id in ["abcdef-3", "abcdef01234567890000000000000003", "3"] {
            assert_eq!(log.find(id).unwrap().text("role"), "r3", "{id}");
        }
        assert!(log.find("abcdef").unwrap_err().message.contains("means several calls"));
        assert!(log.find("zz").unwrap_err().message.ends_with("no call \"zz\""));
        assert_eq!(log.find("last").unwrap().text("role"), "r1");
    }
}
