//! Learned methods as files of one's own: each program as a documented source file with tests made of its recorded calls,
//! and the types of all methods of a role as a Python stub.
//!
//! ```text
//! FOLDER/programs/calculator_add.lua      the program under a comment that says what is known about it
//! FOLDER/programs/programs.yaml           names the programs for `cadenza conform`
//! FOLDER/scenarios/calculator_add.yaml    recorded calls, for `cadenza conform FOLDER/scenarios`
//! FOLDER/test_calculator_add.py           the same calls, for pytest
//! FOLDER/calculator.pyi                   class Calculator(Agent), for type checkers and editors
//! ```
//!
//! A call becomes a test when its value follows from its arguments and from what the agent remembered: one that asked tools
//! or other agents does not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use crate::agent::dispatch::{RESERVED, is_identifier};
use crate::log::record::rfc3339;
use crate::printable::{printable, printable_json};
use crate::program::registry::{Key, ProgramState, Standing, shape};
use crate::program::tape::{Follow, Tape, TapeHost};
use crate::program::{Arguments, Language};
use crate::runtime::Runtime;
use crate::runtime::repertoire::{Listed, ProgramQuery, RepertoireError, arguments_of};
use crate::store::folder::FolderError;
use crate::store::{CallQuery, StoreError};
use crate::value::{Map, Value};

/// Recorded calls of one method that are looked at, the newest.
const CALLS: usize = 1_000;
/// Calls of one program that become tests.
const TESTS: usize = 50;
/// Bytes of arguments and value of a call that becomes a test.
const TEST_BYTES: usize = 4 << 10;
/// Levels of lists and maps that a type tells apart.
const TYPE_DEPTH: usize = 4;
/// Named agents whose context is looked at for types.
const AGENTS: usize = 100;

/// Words that no Python name may be.
const PYTHON_WORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// One recorded call.
struct Recorded {
    args: Vec<Value>,
    kwargs: Map,
    value: Value,
    ok: bool,
    code: String,
    /// What its program was told beside its arguments, where that is recorded.
    told: Option<Tape>,
}

impl Recorded {
    /// What the agent remembered, as far as the program looked.
    fn remembered(&self) -> Map {
        let told = self.told.iter().flat_map(|told| &told.context);
        told.filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect()
    }
}

/// What goes into the files of one program.
struct Ejected<'a> {
    /// Its name in file names and scenarios.
    file: String,
    listed: &'a Listed,
    /// Recorded calls with arguments of its shape.
    calls: Vec<&'a Recorded>,
    /// Those that became tests.
    tests: Vec<&'a Recorded>,
    /// Calls that asked for more than arguments and context.
    depending: usize,
}

impl Runtime {
    /// Writes the methods of a role, or one of them, as files into a folder; see the module. Files of the same names are
    /// written anew, others stay. Returns what was written.
    pub fn eject(&self, role: &str, method: Option<&str>, folder: &Path) -> Result<Vec<PathBuf>, RepertoireError> {
        let query = ProgramQuery { role: Some(role.to_owned()), ..ProgramQuery::default() };
        let mut learned = self.programs(&query)?;
        learned.retain(|listed| listed.saved.is_offered());
        let chosen = offered_first(&learned);
        let wanted: Vec<&Listed> = chosen
            .iter()
            .copied()
            .filter(|listed| method.is_none_or(|method| *listed.saved.key.method == *method))
            .collect();
        if wanted.is_empty() {
            let name = method.map_or_else(|| role.to_owned(), |method| format!("{role}.{method}"));
            return Err(self.find_program(&name).err().unwrap_or(RepertoireError::Unknown { name, nearest: None }));
        }
        let mut methods: BTreeMap<&str, Vec<Recorded>> = BTreeMap::new();
        for listed in &chosen {
            let method = &*listed.saved.key.method;
            if !methods.contains_key(method) {
                methods.insert(method, self.recorded(role, method)?);
            }
        }
        let mut written = Files { folder, written: Vec::new() };
        for listed in &wanted {
            let calls = methods.get(&*listed.saved.key.method).map_or(&[][..], Vec::as_slice);
            let ejected = self.ejected(listed, calls, file_name(listed, &chosen))?;
            let (file, language) = (&ejected.file, listed.saved.key.language);
            written.put(format!("programs/{file}.{language}"), &self.source(&ejected)?)?;
            // Without a test there is nothing to run.
            if !ejected.tests.is_empty() {
                written.put(format!("scenarios/{file}.yaml"), &scenario(&ejected))?;
                written.put(format!("test_{file}.py"), &pytest(&ejected))?;
            }
        }
        written.put("programs/programs.yaml".to_owned(), &index(folder)?)?;
        let stub = stub(role, &methods, &self.contexts(role)?);
        written.put(format!("{}.pyi", module(role)), &stub)?;
        Ok(written.written)
    }

    fn recorded(&self, role: &str, method: &str) -> Result<Vec<Recorded>, StoreError> {
        let query = CallQuery {
            role: Some(role.to_owned()),
            method: Some(method.to_owned()),
            limit: CALLS,
            ..CallQuery::default()
        };
        let one = |(record, told): (Map, Option<Tape>)| {
            let (args, kwargs) = arguments_of(&record);
            let text = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let value = record.get("value").cloned().unwrap_or_default();
            Recorded { args, kwargs, value, ok: text("outcome_status") == "ok", code: text("code"), told }
        };
        Ok(self.told_calls(&query)?.into_iter().map(one).collect())
    }

    /// Which calls the program is tested with: those that it answered itself, or all where it answered none yet.
    fn ejected<'a>(
        &self,
        listed: &'a Listed,
        recorded: &'a [Recorded],
        file: String,
    ) -> Result<Ejected<'a>, RepertoireError> {
        let key = &listed.saved.key;
        let shaped = |call: &&Recorded| shape(Arguments { args: &call.args, kwargs: &call.kwargs }) == key.shape;
        let calls: Vec<&Recorded> = recorded.iter().filter(shaped).collect();
        let own = |call: &&&Recorded| call.code == *listed.saved.code;
        let some_own = calls.iter().any(|call| own(&call));
        let mut ejected = Ejected { file, listed, tests: Vec::new(), depending: 0, calls };
        let mut seen = BTreeSet::new();
        for call in ejected.calls.iter().filter(|call| call.ok && (!some_own || own(call))) {
            let given =
                [Value::List(call.args.clone()), Value::Map(call.kwargs.clone()), Value::Map(call.remembered())];
            let given: String = given.iter().map(Value::to_json).collect();
            if given.len() + call.value.to_json().len() > TEST_BYTES || !seen.insert(given) {
                continue;
            }
            let arguments = Arguments { args: &call.args, kwargs: &call.kwargs };
            let Some(told) = call.told.as_ref().filter(|told| told.calls.is_empty()) else {
                ejected.depending += 1;
                continue;
            };
            let host = TapeHost::new(told, Follow::AnyOrder, key.role.clone());
            let ran = self.run_again(key.language, &listed.saved.code, arguments, &self.0.settings.limits, &host);
            if ran.is_err() || host.strayed().is_some() {
                ejected.depending += 1;
            } else if ejected.tests.len() < TESTS {
                ejected.tests.push(call);
            }
        }
        Ok(ejected)
    }

    /// The program under a comment that says what is known about it.
    fn source(&self, ejected: &Ejected<'_>) -> Result<String, RepertoireError> {
        let Ejected { listed, calls, tests, depending, .. } = ejected;
        let saved = &listed.saved;
        let Key { namespace, role, method, contract, shape, language, .. } = &saved.key;
        let mut lines = Vec::new();
        let names = listed.input_names();
        let count = names.iter().filter(|(name, _)| name.starts_with("args[")).count();
        let seen: Vec<String> = (0..names.len())
            .map(|index| {
                let at = |call: &&Recorded| call.args.iter().chain(call.kwargs.values()).nth(index).cloned();
                let values: Vec<Value> = calls.iter().filter_map(at).collect();
                typed(&values.iter().collect::<Vec<_>>(), 0)
            })
            .collect();
        let answers: Vec<&Value> = calls.iter().filter(|call| call.ok).map(|call| &call.value).collect();
        let parameter = |(index, (name, _)): (usize, &(String, &str))| {
            let name = name.strip_prefix("kwargs.").filter(|_| index >= count).unwrap_or(name);
            format!("{name}: {}", seen[index])
        };
        let parameters: Vec<String> = names.iter().enumerate().map(parameter).collect();
        lines.push(format!("{role}.{method}({}) -> {}", parameters.join(", "), typed(&answers, 0)));
        lines.push(String::new());
        let origin = match (saved.origin.created, saved.origin.call) {
            (Some(created), Some(call)) => format!(", kept {} by call {call}", rfc3339(created)),
            (Some(created), None) => format!(", taken in {}", rfc3339(created)),
            (None, _) => String::new(),
        };
        lines.push(format!(
            "Written by {}, version {}, {}{origin}.",
            saved.model,
            saved.version,
            listed.state().as_str()
        ));
        let values = self.input_values(listed)?;
        for ((name, _), (input, value)) in names.iter().zip(listed.inputs.iter().zip(values)) {
            let standing = match (input.standing, value) {
                (Standing::Free, _) => "free: it runs for other values too".to_owned(),
                (Standing::Unproven, _) => {
                    "read: it runs for other values once a dry run shows that they matter".to_owned()
                }
                (Standing::Pinned, Some(value)) => format!("bound to {}", cut(&value.to_json())),
                (Standing::Pinned, None) => "bound to the value that it was written for".to_owned(),
            };
            lines.push(format!("{name} is {standing}."));
        }
        if !saved.pins.context.is_empty() {
            let keys: Vec<&str> = saved.pins.context.keys().map(String::as_str).collect();
            lines.push(format!("Bound to what the agent remembered under: {}.", keys.join(", ")));
        }
        if saved.pins.history.is_some() {
            lines.push("Bound to the agent's earlier results.".to_owned());
        }
        let failed = calls.iter().filter(|call| !call.ok).count();
        let (all, tests) = (calls.len(), tests.len());
        lines.push(format!("Recorded calls: {all}, {failed} of them failed; {tests} became tests."));
        if *depending > 0 {
            lines.push(format!("{depending} asked tools, other agents or earlier results and became none."));
        }
        lines.push(String::new());
        lines.push(format!("Namespace {namespace:?}, shape {shape:?}, contract {contract}."));
        lines.push(format!("Program {}, checksum {} of the text below.", listed.id, listed.checksum()));
        let mark = match language {
            Language::Lua => "--",
            Language::Rhai => "//",
        };
        let mut text = String::new();
        for line in lines {
            // A name with a line break in it must not leave the comment.
            let line = printable(&line).replace(['\n', '\t'], " ");
            let _ = writeln!(text, "{}", format!("{mark} {line}").trim_end());
        }
        text.push_str(saved.code.strip_suffix('\n').unwrap_or(&saved.code));
        text.push('\n');
        Ok(text)
    }

    /// What named agents of the role remember, by key.
    fn contexts(&self, role: &str) -> Result<BTreeMap<String, Vec<Value>>, StoreError> {
        let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let Some(store) = self.store() else { return Ok(found) };
        for agent in store.agents()?.into_iter().filter(|agent| agent.role == role).take(AGENTS) {
            for (key, value) in store.open_agent(&agent.namespace, &agent.name, role)?.context {
                found.entry(key).or_default().push(value);
            }
        }
        Ok(found)
    }
}

/// Of each method and kind of arguments the program that is offered first, and those behind it that serve what it does not.
fn offered_first(learned: &[Listed]) -> Vec<&Listed> {
    let mut by_key: Vec<(&Key, Vec<&Listed>)> = Vec::new();
    for listed in learned {
        match by_key.iter_mut().find(|(key, _)| **key == listed.saved.key) {
            Some((_, programs)) => programs.push(listed),
            None => by_key.push((&listed.saved.key, vec![listed])),
        }
    }
    let mut chosen = Vec::new();
    for (_, mut programs) in by_key {
        let rank = |listed: &Listed| {
            (listed.saved.state == ProgramState::Pinned, listed.saved.version, listed.saved.origin.created)
        };
        programs.sort_by_key(|listed| std::cmp::Reverse(rank(listed)));
        for listed in programs {
            chosen.push(listed);
            let bound = listed.inputs.iter().any(|input| input.standing == Standing::Pinned);
            if !bound && listed.saved.pins == Default::default() {
                break;
            }
        }
    }
    chosen
}

/// `role_method`, with the program's id where that does not tell it from another.
fn file_name(listed: &Listed, chosen: &[&Listed]) -> String {
    let plain = |listed: &Listed| format!("{}_{}", module(&listed.saved.key.role), slug(&listed.saved.key.method));
    let name = plain(listed);
    let others = chosen.iter().filter(|other| plain(other) == name).count();
    let told = slug(&listed.saved.key.method) == *listed.saved.key.method
        && module(&listed.saved.key.role) == *listed.saved.key.role;
    if others > 1 || !told { format!("{name}_{}", listed.short_id()) } else { name }
}

/// Letters, digits and `_` alone: no name becomes a path as it is.
fn slug(text: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' };
    text.chars().take(40).map(plain).collect()
}

/// The role as the name of a Python module.
fn module(role: &str) -> String {
    let slug = slug(role);
    let begins = slug.starts_with(|letter: char| letter.is_ascii_lowercase());
    if begins && !PYTHON_WORDS.contains(&slug.as_str()) { slug } else { format!("role_{slug}") }
}

/// The role as the name of a Python class.
fn class(role: &str) -> String {
    let words = role.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name: String = words.map(|word| word[..1].to_ascii_uppercase() + &word[1..]).collect();
    let taken = ["Any", "Agent", "Outcome"].contains(&name.as_str()) || PYTHON_WORDS.contains(&name.as_str());
    let begins = name.starts_with(|letter: char| letter.is_ascii_alphabetic());
    if begins && !taken { name } else { format!("Role{name}") }
}

fn is_python_name(name: &str) -> bool {
    is_identifier(name) && name.is_ascii() && !PYTHON_WORDS.contains(&name)
}

/// The Python type of all these values.
fn typed(values: &[&Value], depth: usize) -> String {
    let (mut names, mut items, mut entries) = (BTreeSet::new(), Vec::new(), Vec::new());
    let (mut lists, mut maps) = (false, false);
    for value in values {
        match value {
            Value::Null => drop(names.insert("None")),
            Value::Bool(_) => drop(names.insert("bool")),
            Value::Int(_) => drop(names.insert("int")),
            Value::Float(_) => drop(names.insert("float")),
            Value::String(_) => drop(names.insert("str")),
            Value::List(list) => {
                lists = true;
                items.extend(list);
            }
            Value::Map(map) => {
                maps = true;
                entries.extend(map.values());
            }
        }
    }
    // Who takes a float takes an int.
    if names.contains("float") {
        names.remove("int");
    }
    let nothing = names.remove("None");
    let inner = |values: &[&Value]| if depth < TYPE_DEPTH { typed(values, depth + 1) } else { "Any".to_owned() };
    let mut types: Vec<String> = names.into_iter().map(str::to_owned).collect();
    if lists {
        types.push(format!("list[{}]", inner(&items)));
    }
    if maps {
        types.push(format!("dict[str, {}]", inner(&entries)));
    }
    if nothing {
        types.push("None".to_owned());
    }
    if types.is_empty() { "Any".to_owned() } else { types.join(" | ") }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(80) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// JSON, which YAML reads as it is.
fn json(value: &Value) -> String {
    printable_json(&value.to_json()).into_owned()
}

fn scenario(ejected: &Ejected<'_>) -> String {
    let Ejected { file, listed, tests, .. } = ejected;
    let Key { role, method, language, .. } = &listed.saved.key;
    let text = |text: &str| json(&text.into());
    let mut yaml = format!(
        "# Recorded calls of one learned method. Run them with: cadenza conform scenarios --language {language}\n\
         version: 1\nprofile: {}\nscenarios:\n  - id: ejected.{file}\n    config: {{ reuse: \"off\" }}\n    \
         provider_plan: {{ {}: {file} }}\n    steps:\n",
        text(&format!("recorded calls of {role}.{method}")),
        text(method),
    );
    for call in tests {
        let _ = writeln!(yaml, "      - {{ op: construct, as: agent, role: {} }}", text(role));
        let remembered = call.remembered();
        if !remembered.is_empty() {
            let entries = json(&Value::Map(remembered));
            let _ = writeln!(yaml, "      - {{ op: remember, target: agent, entries: {entries} }}");
        }
        let _ = writeln!(
            yaml,
            "      - {{ op: call, target: agent, method: {}, args: {}, kwargs: {}, expect_outcome: {{ status: ok, value: {} }} }}",
            text(method),
            json(&Value::List(call.args.clone())),
            json(&Value::Map(call.kwargs.clone())),
            json(&call.value),
        );
    }
    yaml
}

fn pytest(ejected: &Ejected<'_>) -> String {
    let Ejected { file, listed, tests, .. } = ejected;
    let Key { role, method, language, .. } = &listed.saved.key;
    // JSON text as JSON text again is text that Python reads.
    let quoted = |value: &Value| json(&json(value).into());
    let text = |text: &str| json(&text.into());
    let mut calls = String::new();
    for call in tests {
        let (args, kwargs) = (Value::List(call.args.clone()), Value::Map(call.kwargs.clone()));
        let remembered = Value::Map(call.remembered());
        let _ = writeln!(
            calls,
            "    ({}, {}, {}, {}),",
            quoted(&remembered),
            quoted(&args),
            quoted(&kwargs),
            quoted(&call.value)
        );
    }
    format!(
        r#"# Recorded calls of one learned method: what the agent remembered, arguments, named arguments, and the value.
import json
import pathlib

import pytest

from cadenza import Runtime

PROGRAM = pathlib.Path(__file__).parent / "programs" / "{file}.{language}"
CALLS = [
{calls}]


@pytest.mark.parametrize(("remembered", "args", "kwargs", "value"), CALLS)
def test_a_recorded_call_gives_the_same_value(remembered, args, kwargs, value):
    code = PROGRAM.read_text(encoding="utf-8")
    with Runtime(model=lambda request: {{"code": code}}, language="{language}", reuse="off", store=":memory:") as runtime:
        agent = runtime.agent({})
        agent.runtime_context.update(json.loads(remembered))
        outcome = agent.call({}, *json.loads(args), **json.loads(kwargs))
    assert outcome.unwrap() == json.loads(value)
"#,
        text(role),
        text(method),
    )
}

/// Every program of the folder by name, for `cadenza conform`.
fn index(folder: &Path) -> Result<String, FolderError> {
    let folder = folder.join("programs");
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(&folder).map_err(|error| failed(&folder, &error))? {
        let path = entry.map_err(|error| failed(&folder, &error))?.path();
        let language = path.extension().and_then(|extension| Language::from_name(extension.to_str()?));
        if let (Some(_), Some(name)) = (language, path.file_stem().and_then(|name| name.to_str())) {
            names.insert(name.to_owned());
        }
    }
    let mut yaml =
        "# Written by `cadenza programs eject`: the programs beside this file.\nversion: 1\nprograms:\n".to_owned();
    let plain = |name: &&String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    for name in names.iter().filter(plain) {
        let _ = writeln!(yaml, "  - id: {name}");
    }
    Ok(yaml)
}

/// The class of a role with its learned methods, and with what its named agents remember.
fn stub(role: &str, methods: &BTreeMap<&str, Vec<Recorded>>, contexts: &BTreeMap<String, Vec<Value>>) -> String {
    let (class, module) = (class(role), module(role));
    let usable = |name: &str| is_python_name(name) && !RESERVED.contains(&name);
    let mut body = String::new();
    let mut left_out = Vec::new();
    for (key, values) in contexts.iter().filter(|(key, _)| !methods.contains_key(key.as_str())) {
        if usable(key) {
            let _ = writeln!(body, "    {key}: {}", typed(&values.iter().collect::<Vec<_>>(), 0));
        }
    }
    for (method, calls) in methods {
        if !usable(method) {
            left_out.push(cut(&json(&(*method).into())));
            continue;
        }
        let _ = writeln!(body, "    {}", signature(method, calls));
    }
    if !left_out.is_empty() {
        let _ = writeln!(body, "    # Only by call(name, ...): {}", left_out.join(", "));
    }
    let any = if body.contains("Any") { "from typing import Any\n\n" } else { "" };
    let role = printable(role).replace(['\n', '\t'], " ");
    format!(
        "# Learned methods of the role {role:?}, with the types of their recorded calls. At run time there is no such module:\n\
         #     if TYPE_CHECKING:\n\
         #         from {module} import {class}\n\
         #     agent = cast(\"{class}\", Agent.for_role({role:?}))\n\
         {any}from cadenza import Agent, Outcome\n\n\
         class {class}(Agent):\n{body}"
    )
}

fn signature(method: &str, calls: &[Recorded]) -> String {
    let some_ok = calls.iter().any(|call| call.ok);
    let calls: Vec<&Recorded> = calls.iter().filter(|call| call.ok || !some_ok).collect();
    let most = calls.iter().map(|call| call.args.len()).max().unwrap_or_default();
    let mut parameters = vec!["self".to_owned()];
    let optional = |there: usize| if there < calls.len() { " = ..." } else { "" };
    for index in 0..most {
        let values: Vec<&Value> = calls.iter().filter_map(|call| call.args.get(index)).collect();
        parameters.push(format!("arg{}: {}{}", index + 1, typed(&values, 0), optional(values.len())));
    }
    parameters.push("/".to_owned());
    let names: BTreeSet<&String> = calls.iter().flat_map(|call| call.kwargs.keys()).collect();
    // Names that the stub itself takes go the long way.
    let taken = |name: &str| parameters.iter().any(|parameter| parameter.split(':').next() == Some(name));
    if names.iter().all(|name| is_python_name(name) && !taken(name)) {
        if !names.is_empty() {
            parameters.push("*".to_owned());
        }
        for name in names {
            let values: Vec<&Value> = calls.iter().filter_map(|call| call.kwargs.get(name)).collect();
            parameters.push(format!("{name}: {}{}", typed(&values, 0), optional(values.len())));
        }
    } else {
        parameters.push("**kwargs: Any".to_owned());
    }
    let values: Vec<&Value> = calls.iter().filter(|call| call.ok).map(|call| &call.value).collect();
    format!("def {method}({}) -> Outcome[{}]: ...", parameters.join(", "), typed(&values, 0))
}

/// Files as they are written.
struct Files<'a> {
    folder: &'a Path,
    written: Vec<PathBuf>,
}

impl Files<'_> {
    fn put(&mut self, name: String, text: &str) -> Result<(), FolderError> {
        let path = self.folder.join(name);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, text)).map_err(|error| failed(&path, &error))?;
        self.written.push(path);
        Ok(())
    }
}

fn failed(path: &Path, error: &io::Error) -> FolderError {
    FolderError { path: path.to_owned(), message: error.to_string() }
}
