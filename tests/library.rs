//! What ships in `programs/`: every library method answers its cases, the same in every program language, with and
//! without reuse; every conformance program exists in every language.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cadenza_core::outcome::Outcome;
use cadenza_core::program::limits::Limits;
use cadenza_core::program::lua::LuaExecutor;
use cadenza_core::program::rhai::RhaiExecutor;
use cadenza_core::program::{Executor, Language};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::Options;
use cadenza_core::value::{Map, Value};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// One line of `tests/library_cases.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    role: String,
    method: String,
    #[serde(default)]
    args: Vec<Value>,
    #[serde(default)]
    kwargs: Map,
    /// The memory before the call.
    #[serde(default)]
    context: Map,
    /// Calls of the same agent before this one.
    #[serde(default)]
    before: Vec<Before>,
    /// What must come; null when it is left out.
    #[serde(default)]
    value: Value,
    error_type: Option<String>,
    error_includes: Option<String>,
    /// The whole memory after the call.
    context_after: Option<Map>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Before {
    method: String,
    #[serde(default)]
    args: Vec<Value>,
}

/// One role of `programs/library.json`.
#[derive(Debug, Deserialize)]
struct Role {
    role: String,
    methods: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct ProgramsFile {
    version: u32,
    programs: Vec<Listed>,
    provider_payloads: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    id: String,
    semantics: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// YAML 1.2, as in scenarios: `y` and `no` are text.
fn yaml<T: DeserializeOwned>(path: &str) -> T {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(&read(path), options).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn cases() -> Vec<Case> {
    yaml("tests/library_cases.yaml")
}

fn index() -> Vec<Role> {
    serde_json::from_str(&read("programs/library.json")).expect("the index is readable")
}

fn runtime(language: Language, reuse: &str) -> Runtime {
    let options = Map::from([
        ("model".to_owned(), "library".into()),
        ("language".to_owned(), language.as_str().into()),
        ("reuse".to_owned(), reuse.into()),
        ("store".to_owned(), ":memory:".into()),
    ]);
    let options = Options::from_map(&options).expect("these options exist");
    Runtime::builder().options(options).build().expect("the library needs nothing")
}

/// Runs one case on a new agent; gives the outcome and the memory after it.
fn play(case: &Case, runtime: &Runtime) -> (Outcome, Map) {
    let agent = runtime.agent(&case.role, Options::default()).expect("roles of cases are roles");
    agent.remember(case.context.clone()).expect("an agent without a name remembers");
    for before in &case.before {
        agent.call(&before.method, before.args.clone(), Map::new()).expect("methods of cases are methods");
    }
    let outcome =
        agent.call(&case.method, case.args.clone(), case.kwargs.clone()).expect("methods of cases are methods");
    (outcome, agent.runtime_context().snapshot())
}

/// What is wrong with an answer, if anything.
fn check(case: &Case, outcome: &Outcome, memory: &Map) -> Result<(), String> {
    match (&case.error_type, outcome.error()) {
        (None, None) if !same(&case.value, outcome.value()) => {
            return Err(format!("wanted {}, got {}", case.value, outcome.value()));
        }
        (None, None) => {}
        (None, Some(error)) => {
            return Err(format!("wanted {}, got {}: {}", case.value, error.error_type, error.message));
        }
        (Some(wanted), None) => return Err(format!("wanted the error {wanted}, got {}", outcome.value())),
        (Some(wanted), Some(error)) => {
            if error.error_type.as_str() != wanted {
                return Err(format!("wanted the error {wanted}, got {}: {}", error.error_type, error.message));
            }
            let part = case.error_includes.as_deref().unwrap_or_default();
            if !error.message.contains(part) {
                return Err(format!("the message lacks {part:?}: {}", error.message));
            }
        }
    }
    match &case.context_after {
        Some(wanted) if !same(&Value::Map(wanted.clone()), &Value::Map(memory.clone())) => {
            Err(format!("wanted the memory {}, got {}", Value::Map(wanted.clone()), Value::Map(memory.clone())))
        }
        Some(_) | None => Ok(()),
    }
}

/// Equal as scenarios compare: numbers by what they are worth, up to the last bits of a fraction.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::List(left), Value::List(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Map(left), Value::Map(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| right.get(key).is_some_and(|other| same(value, other)))
        }
        _ => match (left.as_float(), right.as_float()) {
            (Some(left), Some(right)) => (left - right).abs() <= 1e-12 * left.abs().max(right.abs()),
            (None, None) => left == right,
            (Some(_), None) | (None, Some(_)) => false,
        },
    }
}

/// Whether whole numbers are whole on both sides: what one language returns as 5, no other may return as 5.0.
fn same_kinds(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::List(left), Value::List(right)) => left.iter().zip(right).all(|(left, right)| same_kinds(left, right)),
        (Value::Map(left), Value::Map(right)) => {
            left.values().zip(right.values()).all(|(left, right)| same_kinds(left, right))
        }
        _ => std::mem::discriminant(left) == std::mem::discriminant(right),
    }
}

fn all_cases_answer_with(reuse: &str) {
    let runtimes = Language::ALL.map(|language| runtime(language, reuse));
    let mut problems = Vec::new();
    for case in cases() {
        let played = Language::ALL.map(|language| play(&case, &runtimes[language as usize]));
        let name = format!("{}.{}({:?}, {:?})", case.role, case.method, case.args, case.kwargs);
        for (language, (outcome, memory)) in Language::ALL.iter().zip(&played) {
            if let Err(problem) = check(&case, outcome, memory) {
                problems.push(format!("{name} in {language}: {problem}"));
            }
        }
        let [(lua, _), (rhai, _)] = &played;
        if !same_kinds(lua.value(), rhai.value()) {
            problems.push(format!("{name}: {} in lua, {} in rhai", lua.value(), rhai.value()));
        }
        let message = |outcome: &Outcome| outcome.error().map(|error| error.message.clone());
        if message(lua) != message(rhai) {
            problems.push(format!("{name}: messages differ: {:?} in lua, {:?} in rhai", message(lua), message(rhai)));
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn every_library_case_answers_the_same_in_every_language() {
    all_cases_answer_with("off");
}

#[test]
fn reuse_never_changes_what_the_library_answers() {
    all_cases_answer_with("auto");
}

/// Arguments that few methods expect. Left out is what a Lua program cannot see: an empty map is like an empty list
/// there, and a null in a map like no entry.
const ODD: &str = r#"[
    [], [null], [true], [5], [-1], [2.5], ["x"], [""], [[]], [{"a": 1}], [[1, "a", null]], [[5, [1]]], ["x", null],
    [[], {"a": 1}], [5, "x"], ["a", "b", "c"], [[{"a": 1}], "a"], [[{"a": 1}, 5], "a", true], [[1], [2], [3]],
    [[{"a": 3}, {"a": "x"}, {"b": 1}], "a", "above", 1], [{"a": 1}, {"a": 2}, "a"], ["é", 2, 3], [[1], {"a": 1}, 2]
]"#;

#[test]
fn odd_arguments_are_answered_alike_and_break_no_program() {
    let runtimes = Language::ALL.map(|language| runtime(language, "off"));
    let arguments: Vec<Vec<Value>> = serde_json::from_str(ODD).expect("the odd arguments are readable");
    let mut problems = Vec::new();
    for role in index() {
        let mut seen = BTreeSet::new();
        for (method, files) in role.methods {
            // Other names of the same program would show the same.
            if !seen.insert(files) {
                continue;
            }
            for args in &arguments {
                let outcomes = runtimes.each_ref().map(|runtime| {
                    let agent = runtime.agent(&role.role, Options::default()).expect("roles of the library are roles");
                    agent.call(&method, args.clone(), Map::new()).expect("methods of the library are methods")
                });
                let [lua, rhai] = &outcomes;
                let kind = |outcome: &Outcome| outcome.error().map(|error| error.error_type.as_str().to_owned());
                let broken = outcomes.iter().any(|outcome| kind(outcome).as_deref() == Some("execution"));
                if broken || kind(lua) != kind(rhai) || !same(lua.value(), rhai.value()) {
                    let shown = outcomes.each_ref().map(|outcome| match outcome.error() {
                        Some(error) => format!("{}: {}", error.error_type, error.message),
                        None => outcome.value().to_json(),
                    });
                    let args = Value::List(args.clone());
                    problems
                        .push(format!("{}.{method}{args}\n    lua  {}\n    rhai {}", role.role, shown[0], shown[1]));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn every_library_program_has_a_case() {
    let index = index();
    let files = |role: &str, method: &str| -> Vec<String> {
        let role = index.iter().find(|entry| entry.role == role).unwrap_or_else(|| panic!("no role {role}"));
        let files = role.methods.get(method).unwrap_or_else(|| panic!("no method {method} of {}", role.role));
        files.values().cloned().collect()
    };
    let tested: BTreeSet<String> = cases().iter().flat_map(|case| files(&case.role, &case.method)).collect();
    let listed: BTreeSet<String> =
        index.iter().flat_map(|role| role.methods.values()).flat_map(|files| files.values().cloned()).collect();
    let untested: Vec<_> = listed.difference(&tested).collect();
    assert!(untested.is_empty(), "no case for {untested:?}");
    assert_eq!(listed, found("programs/library"), "the index and the folder differ");
    for role in &index {
        for (method, files) in &role.methods {
            let languages: Vec<_> = files.keys().map(String::as_str).collect();
            assert_eq!(languages, ["lua", "rhai"], "{}.{method}", role.role);
        }
    }
}

#[test]
fn every_conformance_program_exists_and_compiles_in_every_language() {
    let file: ProgramsFile = yaml("programs/programs.yaml");
    assert_eq!(file.version, 1);
    let payloads: Vec<_> = file.provider_payloads.iter().map(|payload| payload.id.as_str()).collect();
    assert_eq!(payloads, ["invalid_nil", "invalid_blank"]);
    let ids: BTreeSet<_> = file.programs.iter().map(|program| program.id.clone()).collect();
    assert_eq!(ids.len(), file.programs.len(), "an id is listed twice");
    assert!(file.programs.iter().all(|program| !program.semantics.trim().is_empty()));
    let (lua, rhai) = (LuaExecutor::new(), RhaiExecutor::new());
    let executors: [&dyn Executor; 2] = [&lua, &rhai];
    for executor in executors {
        let language = executor.language();
        for id in &ids {
            let compiled = executor.compile(&read(&format!("programs/{id}.{language}")), &Limits::default());
            match compiled {
                Ok(_) => assert_ne!(id, "syntax_error", "{language}"),
                Err(error) => assert_eq!(id, "syntax_error", "{language}: {error}"),
            }
        }
        let there: BTreeSet<_> = stems("programs", language.as_str());
        assert_eq!(there, ids, "the list and the folder differ for {language}");
    }
}

/// Paths below a folder of the repository, relative to `programs/`.
fn found(folder: &str) -> BTreeSet<String> {
    let programs = repository().join("programs");
    let mut waiting = vec![repository().join(folder)];
    let mut found = BTreeSet::new();
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("the folder is readable").path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let relative = path.strip_prefix(&programs).expect("it lies in programs");
                found.insert(relative.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    found
}

/// Names of the files of one language that lie directly in a folder, without their extension.
fn stems(folder: &str, extension: &str) -> BTreeSet<String> {
    fs::read_dir(repository().join(folder))
        .expect("the folder is there")
        .map(|entry| entry.expect("the folder is readable").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .map(|path| path.file_stem().expect("it has a name").to_string_lossy().into_owned())
        .collect()
}
