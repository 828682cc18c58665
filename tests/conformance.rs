//! Every scenario of the checkout, through every native host language's own Agent surface and in every program language
//! (agent contract, section 9), and every log line that they leave against its schema (formats.md section 2).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use cadenza_cli::conform::{self, Report, RustSurface, ScriptSurface, StoreKind, Surface};
use cadenza_core::program::Language;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, StoreOption};
use cadenza_core::value::Value;

fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Runs the scenarios of these folders, as far as they are there.
fn run(surface: &dyn Surface, language: Language, folders: &[&str], store: &StoreKind) -> Report {
    let paths: Vec<PathBuf> = folders.iter().map(|folder| checkout(folder)).filter(|path| path.is_dir()).collect();
    assert!(!paths.is_empty(), "no scenarios in {folders:?}");
    conform::run(&paths, Some(&checkout("programs/programs.yaml")), surface, language, store).unwrap()
}

fn check(surface: &dyn Surface, language: Language) {
    check_with(surface, language, &StoreKind::Memory);
}

fn check_with(surface: &dyn Surface, language: Language, store: &StoreKind) {
    let report = run(surface, language, &["scenarios/agent"], store);
    let failed: Vec<_> = report
        .results
        .iter()
        .filter_map(|result| result.failure.as_ref().map(|failure| format!("{}: {failure}", result.id)))
        .collect();
    assert!(failed.is_empty(), "{} with {language} programs:\n{}", surface.runtime(), failed.join("\n"));
    assert!(report.ok() && report.passed() >= 100, "only {} scenarios ran", report.passed());
    let schema: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(checkout("scenarios/log-line.schema.json")).unwrap()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let mut lines = 0;
    for result in &report.results {
        for line in &result.log {
            lines += 1;
            let entry: serde_json::Value = serde_json::from_str(line).unwrap();
            let faults: Vec<_> = schema.iter_errors(&entry).map(|error| error.to_string()).collect();
            assert!(faults.is_empty(), "{}: {faults:?}\n{line}", result.id);
            assert_eq!(entry["runtime"], format!("cadenza-{}", surface.runtime()), "{}", result.id);
        }
    }
    assert!(lines > 100, "only {lines} log lines");
}

#[test]
fn ac_scenarios_from_rust_with_lua_programs() {
    check(&RustSurface, Language::Lua);
}

#[test]
fn ac_scenarios_from_rust_with_rhai_programs() {
    check(&RustSurface, Language::Rhai);
}

#[test]
fn ac_scenarios_from_lua_scripts_with_lua_programs() {
    check(&ScriptSurface::new(Language::Lua), Language::Lua);
}

#[test]
fn ac_scenarios_from_lua_scripts_with_rhai_programs() {
    check(&ScriptSurface::new(Language::Lua), Language::Rhai);
}

#[test]
fn ac_scenarios_from_rhai_scripts_with_lua_programs() {
    check(&ScriptSurface::new(Language::Rhai), Language::Lua);
}

#[test]
fn ac_scenarios_from_rhai_scripts_with_rhai_programs() {
    check(&ScriptSurface::new(Language::Rhai), Language::Rhai);
}

/// Names the folder of stores to a second process of this test program.
const FOLDER: &str = "CADENZA_TEST_STORES";

/// Every scenario with a store (from Rust; `make conform` has the other hosts); then everything that they recorded again in two processes of their own.
fn check_stored(surface: &dyn Surface, language: Language) {
    let folder = tempfile::tempdir().unwrap();
    check_with(surface, language, &StoreKind::Sqlite(folder.path().to_owned()));
    let replayed = || {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_second_process_replays_every_store", "--ignored", "--nocapture"])
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text.lines().find(|line| line.contains("replayed")).unwrap_or_default().to_owned()
    };
    let (first, second) = (replayed(), replayed());
    assert_eq!(first, second, "two processes come to the same heads");
    assert!(first.contains("replayed"), "{first}");
}

/// Runs only when [`check_stored`] asks for it.
#[test]
#[ignore = "the second process of kc_s3"]
fn a_second_process_replays_every_store() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "db"));
    paths.sort();
    let (mut calls, mut programs, mut heads) = (0, 0, DefaultHasher::new());
    for path in &paths {
        let options = Options {
            model: Some("library".into()),
            store: Some(StoreOption::Path(path.clone())),
            ..Options::default()
        };
        let runtime = Runtime::builder().options(options).build().unwrap();
        let report = runtime.replay_all().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (calls, programs) = (calls + report.calls, programs + report.programs);
        for call in runtime.call_maps(usize::MAX).unwrap() {
            call.get("transcript_head").and_then(Value::as_str).hash(&mut heads);
        }
    }
    assert!(calls > 250 && programs > 200, "{calls} calls and {programs} programs in {} stores", paths.len());
    println!("replayed {calls} calls, {programs} programs, heads {:x}", heads.finish());
}

#[test]
fn kc_s3_ec_rp1_scenarios_from_rust_with_a_store_and_lua_programs() {
    check_stored(&RustSurface, Language::Lua);
}

#[test]
fn kc_s3_ec_rp1_scenarios_from_rust_with_a_store_and_rhai_programs() {
    check_stored(&RustSurface, Language::Rhai);
}

#[test]
fn ec_scenarios_of_the_execution_contract() {
    if !checkout("scenarios/execution").is_dir() {
        return;
    }
    let report = run(&RustSurface, Language::Lua, &["scenarios/execution"], &StoreKind::Memory);
    let failed: Vec<_> = report.results.iter().filter(|result| result.failure.is_some()).collect();
    assert!(report.ok(), "{failed:#?}");
}

/// A scenario file that none of our own resembles: whatever is wrong in a scenario is told and stays in it.
#[test]
fn faults_are_the_scenarios_own_and_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faults.yaml");
    let text = r#"
version: 1
scenarios:
  - { id: a.unknown_op, steps: [{ op: cal, target: x }] }
  - { id: a.unknown_id, provider_plan: { m: no_such_program }, steps: [{ op: construct, as: x, role: r }] }
  - { id: a.refused_option, config: { max_cals: 3 }, steps: [{ op: construct, as: x, role: r }] }
  - { id: a.no_agent, steps: [{ op: call, target: nobody, method: m }] }
  - { id: a.not_planned, provider_plan: { m: return_42 }, steps: [
      { op: construct, as: x, role: r },
      { op: call, target: x, method: other, expect_outcome: { status: ok } } ] }
  - { id: a.wrong_value, provider_plan: { m: return_42 }, steps: [
      { op: construct, as: x, role: r },
      { op: call, target: x, method: m, expect_outcome: { status: ok, value: "42" } } ] }
  - { id: a.overrun, provider_plan: { m: { sequence: [return_42] } }, steps: [
      { op: construct, as: x, role: r },
      { op: call, target: x, method: m },
      { op: call, target: x, method: m, args: [1], expect_outcome: { status: ok, value: 42.0 } } ] }
  - { id: a.empty_log, steps: [{ op: assert_log_field_equals, field: role, equals: r }] }
"#;
    std::fs::write(&path, text).unwrap();
    for surface in
        [&RustSurface as &dyn Surface, &ScriptSurface::new(Language::Lua), &ScriptSurface::new(Language::Rhai)]
    {
        let report =
            conform::run(std::slice::from_ref(&path), None, surface, Language::Lua, &StoreKind::Memory).unwrap();
        let found: Vec<_> = report
            .results
            .iter()
            .map(|result| result.failure.clone().or_else(|| result.note.clone()).unwrap_or_default())
            .collect();
        let expected = [
            "line 4: unknown op `cal`; did you mean `call`?",
            "line 5: the plan of `m` names `no_such_program`, which is neither a program nor a payload",
            "unknown option \"max_cals\"; did you mean \"max_calls\"?",
            "line 7, call: no agent `nobody` was constructed",
            "the provider plan has no method `other`; it has: m",
            "line 13, call: expected the value \"42\", got an ok outcome with the value 42",
            "the plan was used up, and its last id repeated, for: m",
            "line 18, assert_log_field_equals: the log is empty",
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{}: {found:?} is not {expected:?}", surface.runtime());
        }
        assert_eq!((found.len(), report.passed(), report.ok()), (8, 1, false));
    }
}
