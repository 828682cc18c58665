//! The data others rely on: scenario files fit their schema, name programs that exist and cover every clause of the
//! agent contract; log lines fit theirs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cadenza_core::program::Language;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::Options;
use cadenza_core::value::{Map, Value};
use serde_json::Value as Json;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// YAML 1.2: `y` and `no` are text.
fn yaml(path: &Path) -> Json {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(&read(path), options)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn schema(name: &str) -> jsonschema::Validator {
    let path = repository().join("scenarios").join(name);
    let schema: Json = serde_json::from_str(&read(&path)).unwrap_or_else(|error| panic!("{name}: {error}"));
    jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What does not fit, with its place.
fn misfits(schema: &jsonschema::Validator, data: &Json) -> Vec<String> {
    schema.iter_errors(data).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// The scenario files of the agent contract, by name.
fn files() -> Vec<(String, Json)> {
    let folder = repository().join("scenarios/agent");
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("the folder is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();
    let name = |path: &Path| path.file_stem().expect("it has a name").to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), yaml(path))).collect()
}

fn scenarios(file: &Json) -> &[Json] {
    file["scenarios"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn every_scenario_file_fits_the_schema() {
    let schema = schema("scenario.schema.json");
    for (name, file) in files() {
        assert_eq!(misfits(&schema, &file), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn the_schema_refuses_what_the_format_refuses() {
    let schema = schema("scenario.schema.json");
    let step = |step: &str| {
        let step: Json = serde_json::from_str(step).expect("the step is readable");
        serde_json::json!({ "version": 1, "scenarios": [{ "id": "a.b", "steps": [step] }] })
    };
    assert!(misfits(&schema, &step(r#"{"op": "call", "target": "x", "method": "m"}"#)).is_empty());
    for wrong in [
        r#"{"op": "dance", "target": "x"}"#,
        r#"{"op": "call", "target": "x"}"#,
        r#"{"op": "call", "target": "x", "method": "m", "expect_outcome": {"value": 1}}"#,
        r#"{"op": "call", "target": "x", "method": "m", "expect_outcome": {"status": "ok", "colour": "blue"}}"#,
        r#"{"op": "assert_provider_calls", "equals": -1}"#,
        r#"{"op": "construct", "as": "x", "role": "r", "config": {"max_generation_attempts": 0}}"#,
    ] {
        assert!(!misfits(&schema, &step(wrong)).is_empty(), "{wrong}");
    }
    assert!(!misfits(&schema, &serde_json::json!({ "version": 2, "scenarios": [] })).is_empty());
}

#[test]
fn every_clause_of_the_agent_contract_has_a_scenario() {
    let (mut ids, mut clauses) = (BTreeSet::new(), BTreeSet::new());
    for (name, file) in files() {
        for scenario in scenarios(&file) {
            let id = text(&scenario["id"]);
            assert!(id.starts_with(&format!("{name}.")), "{id} lies in {name}.yaml");
            assert!(ids.insert(id.to_owned()), "{id} is there twice");
            let sentences = scenario["verifies"].as_array().map(Vec::as_slice).unwrap_or_default();
            assert!(!sentences.is_empty(), "{id} verifies nothing");
            for sentence in sentences {
                let mark = text(sentence).split(' ').next().unwrap_or_default();
                let known = include_str!("clauses.txt").split_whitespace().any(|clause| clause == mark);
                assert!(known, "{id}: {sentence} begins with no clause");
                clauses.extend(mark.strip_prefix("AC-").and_then(|number| number.parse::<u32>().ok()));
            }
        }
    }
    assert_eq!(clauses, (1..=20).collect());
}

#[test]
fn every_plan_names_programs_that_exist_and_every_program_is_used() {
    let list = yaml(&repository().join("programs/programs.yaml"));
    let ids = |key: &str| -> BTreeSet<String> {
        let listed = list[key].as_array().map(Vec::as_slice).unwrap_or_default();
        listed.iter().map(|entry| text(&entry["id"]).to_owned()).collect()
    };
    let known: BTreeSet<_> = ids("programs").union(&ids("provider_payloads")).cloned().collect();
    let mut used = BTreeSet::new();
    for (_, file) in files() {
        for scenario in scenarios(&file) {
            for plan in scenario["provider_plan"].as_object().into_iter().flat_map(|plan| plan.values()) {
                let sequence = plan["sequence"].as_array().cloned().unwrap_or_else(|| vec![plan.clone()]);
                used.extend(sequence.iter().map(|id| text(id).to_owned()));
            }
        }
    }
    assert_eq!(used, known);
}

#[test]
fn ac_17_log_lines_fit_the_schema() {
    let schema = schema("log-line.schema.json");
    let folder = tempfile::tempdir().expect("a temporary folder");
    for language in Language::ALL {
        for debug in [false, true] {
            let path = folder.path().join(format!("{language}-{debug}.jsonl"));
            let lines = logged(language, debug, &path);
            // Four calls by the host; `load` makes two more, and the fitting `explain` one.
            assert_eq!(lines.len(), 7, "{language}");
            for line in &lines {
                assert_eq!(misfits(&schema, line), Vec::<String>::new(), "{language}: {line}");
                assert_eq!(line.get("user_prompt").is_some(), debug, "{language}: {line}");
            }
            let depths: Vec<_> = lines.iter().map(|line| line["depth"].as_u64()).collect();
            assert_eq!(depths, [Some(1), Some(1), Some(0), Some(1), Some(0), Some(0), Some(0)], "{language}");
            // AC-19: the children name their parent, in the same trace.
            for child in &lines[..2] {
                assert_eq!(child["parent_call_id"], lines[2]["call_id"]);
                assert_eq!(child["trace_id"], lines[2]["trace_id"]);
            }
        }
    }
}

/// The log of a few calls: with children, fine, failing by type, without a program.
fn logged(language: Language, debug: bool, path: &Path) -> Vec<Json> {
    let options = Map::from([
        ("model".to_owned(), "library".into()),
        ("language".to_owned(), language.as_str().into()),
        ("log".to_owned(), path.to_string_lossy().into_owned().into()),
        ("debug".to_owned(), debug.into()),
        ("store".to_owned(), ":memory:".into()),
    ]);
    let options = Options::from_map(&options).expect("these options exist");
    let runtime = Runtime::builder().options(options).build().expect("the library needs nothing");
    let call = |role: &str, method: &str, args: Vec<Value>| {
        let agent = runtime.agent(role, Options::default()).expect("a role");
        agent.call(method, args, Map::new()).expect("a method");
    };
    call("csv explorer", "load", vec!["a,b\n1,2\n".into()]);
    call("tutor", "explain", vec!["1 + 1".into()]);
    call("calculator", "divide", vec![1.into(), 0.into()]);
    call("calculator", "levitate", vec![f64::NAN.into(), "\u{0}\"\n".into()]);
    runtime.flush();
    read(path).lines().map(|line| serde_json::from_str(line).expect("a line is one JSON object")).collect()
}
