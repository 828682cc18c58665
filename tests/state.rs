//! State, termination, determinism and logging of the kernel contract, seen from outside: what is on record, when it is
//! there, and that nothing changes beside it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cadenza_core::agent::Agent;
use cadenza_core::ids::{CallId, Digest};
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::{Durability, Outcome};
use cadenza_core::provider::{ModelSpec, Scripted};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, Reuse, StoreOption};
use cadenza_core::runtime::repertoire::ProgramQuery;
use cadenza_core::tools::{Tool, ToolError};
use cadenza_core::value::{Map, Value};

const PROGRAMS: [(&str, &str); 8] = [
    ("add", "return args[1] + args[2]"),
    ("count", "context.n = (context.n or 0) + 1; return context.n"),
    ("spoil", "context.n = 99; error('no')"),
    ("spin", "while true do end"),
    ("ring", "return tools.bell{times = args[1]}"),
    ("look", "return tools.weather{}"),
    ("misuse", "local ok, why = pcall(function() return tools.bell{times = 'x'} end); return {ok, why}"),
    ("child", "return agent:delegate('helper'):add(1, 2)"),
];

/// How often each tool ran.
#[derive(Default)]
struct Ran {
    bell: AtomicU32,
    weather: AtomicU32,
}

fn runtime(store: StoreOption, more: Options) -> (Runtime, Arc<Ran>) {
    let model = Scripted::respond(|request| {
        let program = PROGRAMS.iter().find(|(method, _)| *method == &*request.method);
        Ok(ModelReply::text(program.map_or("not a program (", |(_, program)| *program)))
    });
    let ran = Arc::new(Ran::default());
    let (bell, weather) = (ran.clone(), ran.clone());
    let schema = |text: &str| Value::from_json(text).unwrap();
    let bell = Tool::new(
        "bell",
        "rings",
        schema(r#"{"type":"object","properties":{"times":{"type":"integer"}},"required":["times"]}"#),
        move |arguments, _| {
            bell.bell.fetch_add(1, Ordering::SeqCst);
            if arguments["times"] == Value::Int(13) { Err("not thirteen".to_owned()) } else { Ok("ding".into()) }
        },
    );
    let weather = Tool::new("weather", "says it", schema(r#"{"type":"object"}"#), move |_, _| {
        weather.weather.fetch_add(1, Ordering::SeqCst);
        Ok("rain".into())
    });
    let options = Options {
        model: Some(ModelSpec::Provider(Arc::new(model))),
        store: Some(store),
        tools: Some(vec![Arc::new(bell.unwrap()), Arc::new(weather.unwrap().with_effect("pure").unwrap())]),
        reuse: Some(Reuse::Off),
        execution_repairs: Some(0),
        max_instructions: Some(200_000),
        ..more
    };
    (Runtime::builder().options(options).build().unwrap(), ran)
}

fn stored(path: &Path) -> (Runtime, Arc<Ran>) {
    runtime(StoreOption::Path(path.to_owned()), Options::default())
}

fn named(runtime: &Runtime) -> Agent {
    runtime.agent("worker", Options { name: Some("w".to_owned()), ..Options::default() }).unwrap()
}

fn call(agent: &Agent, method: &str) -> Outcome {
    agent.call(method, vec![2.into(), 3.into()], Map::new()).unwrap()
}

/// Every column of every ended run, as text.
fn rows(path: &Path) -> Vec<String> {
    let connection = rusqlite::Connection::open(path).unwrap();
    let mut statement = connection.prepare("SELECT * FROM runs ORDER BY gseq").unwrap();
    let columns = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| {
        let column = |index| row.get::<_, rusqlite::types::Value>(index).map(|value| format!("{value:?}"));
        Ok((0..columns).map(column).collect::<rusqlite::Result<Vec<_>>>()?.join("|"))
    };
    statement.query_map([], row).unwrap().collect::<rusqlite::Result<_>>().unwrap()
}

#[test]
fn kc_s1_what_is_on_record_stays_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (runtime, _) = stored(&path);
    let agent = named(&runtime);
    ["add", "count", "spoil"].iter().for_each(|method| drop(call(&agent, method)));
    let before = rows(&path);
    ["ring", "child", "count", "spin"].iter().for_each(|method| drop(call(&agent, method)));
    runtime.flush();
    let after = rows(&path);
    assert_eq!((before.len(), after.len()), (3, 8));
    assert_eq!(after[..3], before[..]);
    let connection = rusqlite::Connection::open(&path).unwrap();
    for change in ["UPDATE runs SET status = 'ok'", "DELETE FROM runs"] {
        assert!(connection.execute(change, []).unwrap_err().to_string().contains("ended runs are never"));
    }
}

#[test]
fn kc_s4_kc_s5_kc_k6_every_event_fits_its_schema_and_every_run_ends_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (runtime, _) = stored(&folder.path().join("app.db"));
    let agent = named(&runtime);
    for (method, _) in PROGRAMS {
        call(&agent, method);
    }
    call(&agent, "nonsense");
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/entry.schema.json");
    let schema: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(schema).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let store = runtime.store().unwrap();
    let calls = runtime.call_maps(usize::MAX).unwrap();
    assert_eq!(calls.len(), PROGRAMS.len() + 2);
    let mut kinds = BTreeMap::new();
    for record in &calls {
        let run = store.run(CallId::parse(record["call_id"].as_str().unwrap()).unwrap()).unwrap().unwrap();
        for entry in &run.entries {
            *kinds.entry(entry.kind().to_owned()).or_insert(0) += 1;
            let json = serde_json::json!({
                "state": &*entry.state,
                "action": serde_json::from_str::<serde_json::Value>(&entry.action.to_json()).unwrap(),
                "result": serde_json::from_str::<serde_json::Value>(&entry.result.to_json()).unwrap(),
            });
            let faults: Vec<_> = validator.iter_errors(&json).map(|error| error.to_string()).collect();
            assert!(faults.is_empty(), "{faults:?}\n{json}");
        }
        let last = run.entries.last().unwrap();
        assert_eq!(last.kind(), "terminated");
        assert_eq!(last.result_field("reason").and_then(Value::as_str), record["reason"].as_str());
        assert!(record["trace_id"].as_str().is_some() && record["timestamp"].as_str().is_some());
    }
    for kind in ["transition", "readiness", "adapter", "tool_started", "tool", "commit", "terminated", "retry"] {
        assert!(kinds.contains_key(kind), "no {kind} in {kinds:?}");
    }
}

/// What can change without a record: the agent's context and its version, as they lie in the store.
fn context(path: &Path) -> (i64, Vec<(String, String)>) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let version = connection.query_row("SELECT version FROM agents", [], |row| row.get(0)).unwrap();
    let mut statement = connection.prepare("SELECT key, value FROM agent_context ORDER BY key").unwrap();
    let keys = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    (version, keys.collect::<rusqlite::Result<_>>().unwrap())
}

#[test]
fn kc_s6_no_use_changes_state_without_a_record() {
    type Use<'a> = (&'a str, bool, &'a dyn Fn(&Runtime, &Agent));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (runtime, _) = stored(&path);
    let agent = named(&runtime);
    let uses: [Use<'_>; 14] = [
        ("set", true, &|_, agent| agent.set("n", 5.into()).unwrap()),
        ("remember", true, &|_, agent| assert!(agent.remember(Map::from([("m".into(), 1.into())])).is_ok())),
        ("a call that writes", true, &|_, agent| drop(call(agent, "count"))),
        ("remove", true, &|_, agent| drop(agent.runtime_context().remove("m").unwrap())),
        ("a call that fails", false, &|_, agent| drop(call(agent, "spoil"))),
        ("a call that reads", false, &|_, agent| drop(call(agent, "add"))),
        ("a call that never ends", false, &|_, agent| drop(call(agent, "spin"))),
        ("a reply that is no program", false, &|_, agent| drop(call(agent, "nonsense"))),
        ("a delegate", false, &|_, agent| drop(agent.delegate("helper", Options::default()).unwrap())),
        ("reading", false, &|_, agent| drop((agent.runtime_context().snapshot(), agent.responds_to("n")))),
        ("history", false, &|_, agent| drop((agent.history(), format!("{agent:?}")))),
        ("listing", false, &|runtime, _| {
            drop((runtime.call_maps(10), runtime.programs(&ProgramQuery::default()).unwrap()))
        }),
        ("verifying", false, &|runtime, _| assert!(runtime.store().unwrap().verify().is_ok())),
        ("replaying", false, &|runtime, _| assert!(runtime.replay_all().unwrap().calls > 0)),
    ];
    let mut live = agent.runtime_context().snapshot();
    for (name, changes, act) in uses {
        let (before, recorded) = (context(&path), rows(&path).len());
        act(&runtime, &agent);
        runtime.flush();
        let after = context(&path);
        assert_eq!(before != after, changes, "{name}");
        assert_eq!(before.0 + i64::from(changes), after.0, "{name}: each change is counted once");
        assert_eq!(
            name.starts_with("a call") || name.starts_with("a reply"),
            rows(&path).len() == recorded + 1,
            "{name}"
        );
        let now = agent.runtime_context().snapshot();
        assert_eq!(live != now, changes, "{name}: what the host sees is what is stored");
        let shown: Vec<_> = now.iter().map(|(key, value)| (key.clone(), value.to_json())).collect();
        assert_eq!(shown, after.1, "{name}");
        live = now;
    }
}

#[test]
fn kc_e6_the_end_is_on_the_disk_before_the_call_returns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (runtime, _) = stored(&path);
    let agent = named(&runtime);
    for (number, method) in ["add", "spoil", "spin", "nonsense", "ring"].into_iter().enumerate() {
        let outcome = call(&agent, method);
        assert_eq!(outcome.metadata.as_ref().unwrap().durability, Durability::Strict);
        // Another connection, as another process has it: nothing waits in this one.
        let rows = rows(&path);
        assert_eq!(rows.len(), number + 1, "{method}");
        assert!(rows[number].contains("TERMINATE"), "{method}");
    }
}

#[test]
fn kc_tl_every_tool_call_is_on_record_with_its_result_also_when_it_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (runtime, ran) = stored(&folder.path().join("app.db"));
    let agent = named(&runtime);
    let ring = |times: i64| agent.call("ring", vec![times.into()], Map::new()).unwrap();
    assert!(ring(1).ok());
    assert!(!ring(13).ok());
    assert!(call(&agent, "look").ok());
    assert!(call(&agent, "misuse").ok());
    let effects: Vec<(String, String, String)> = runtime
        .call_maps(usize::MAX)
        .unwrap()
        .iter()
        .flat_map(|record| {
            let id = CallId::parse(record["call_id"].as_str().unwrap()).unwrap();
            runtime.call_map(id).unwrap().unwrap()["effects"].as_list().unwrap().to_vec()
        })
        .map(|effect| {
            let text = |name: &str| effect.as_map().unwrap()[name].as_str().unwrap().to_owned();
            (text("tool"), text("effect"), text("status"))
        })
        .collect();
    let row = |tool: &str, effect: &str, status: &str| (tool.to_owned(), effect.to_owned(), status.to_owned());
    assert_eq!(
        effects,
        [
            row("bell", "effectful", "ok"),
            row("bell", "effectful", "error"),
            row("weather", "pure", "ok"),
            row("bell", "effectful", "error"),
        ]
    );
    assert_eq!(
        (ran.bell.load(Ordering::SeqCst), ran.weather.load(Ordering::SeqCst)),
        (2, 1),
        "bad arguments never ran"
    );
}

#[test]
fn kc_kn3_no_option_keeps_what_a_tool_may_have_done_off_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let memory = || Options { durability: Some(Durability::Memory), ..Options::default() };
    let (runtime, _) = runtime(StoreOption::Path(folder.path().join("app.db")), memory());
    let agent = runtime.agent("worker", Options::default()).unwrap();
    let outcome = call(&agent, "ring");
    assert_eq!(outcome.metadata.unwrap().durability, Durability::Batch, "and the outcome says so");
    assert_eq!(runtime.call_maps(10).unwrap().len(), 1);
    let bare = runtime.agent("worker", Options { tools: Some(Vec::new()), ..memory() }).unwrap();
    assert_eq!(call(&bare, "add").metadata.unwrap().durability, Durability::Memory);
    assert_eq!(runtime.call_maps(10).unwrap().len(), 1);
}

#[test]
fn p5_an_unknown_class_of_effects_is_refused() {
    let tool = Tool::new("bell", "", Value::Map(Map::new()), |_, _| Ok(Value::Null)).unwrap();
    let error = tool.with_effect("mostly harmless").unwrap_err();
    assert!(matches!(error, ToolError::Effect { .. }));
    assert!(error.to_string().ends_with("expected pure or idempotent or effectful"), "{error}");
}

/// Names the second processes' task.
const TASK: &str = "CADENZA_TEST_STATE";

/// Runs only when [`kc_d2_five_processes_ask_and_decide_alike`] asks for it.
#[test]
#[ignore = "one of the processes of kc_d2"]
fn one_of_five_processes() {
    assert!(std::env::var_os(TASK).is_some());
    let (runtime, _) = runtime(StoreOption::Memory, Options { debug: Some(true), ..Options::default() });
    let agent = runtime.agent("worker", Options::default()).unwrap();
    agent.remember(Map::from([("z".into(), 1.into()), ("a".into(), 2.into()), ("m".into(), 3.into())])).unwrap();
    for (method, _) in PROGRAMS {
        call(&agent, method);
    }
    for record in runtime.calls() {
        let debug = record.debug.as_ref().unwrap();
        let asked = Digest::of_bytes(format!("{}\0{}", debug.system_prompt, debug.user_prompt).as_bytes());
        println!("seen {} {} {}", record.method, asked, record.metadata.head());
    }
}

#[test]
fn kc_d2_five_processes_ask_and_decide_alike() {
    let seen = || {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_of_five_processes", "--ignored", "--nocapture"])
            .env(TASK, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<_> = text.lines().filter(|line| line.contains("seen ")).map(str::to_owned).collect();
        assert_eq!(lines.len(), PROGRAMS.len() + 1, "{text}{}", String::from_utf8_lossy(&output.stderr));
        lines
    };
    let first = seen();
    for _ in 1..5 {
        assert_eq!(seen(), first);
    }
}
