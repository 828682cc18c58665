//! Program replay, level 3 of unified-kernel 6.10: a program that runs again on what it was told does the same, without its
//! agent, its tools, its children and its model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cadenza_core::agent::Agent;
use cadenza_core::ids::CallId;
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::Outcome;
use cadenza_core::program::Language;
use cadenza_core::provider::{ModelSpec, Scripted};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, Reuse, StoreOption};
use cadenza_core::store::{SqliteStore, Store};
use cadenza_core::tools::Tool;
use cadenza_core::value::{Map, Value};

/// Method, program in Lua, program in Rhai. What they ask their host differs each time, so only a tape gives it again.
const PROGRAMS: [(&str, &str, &str); 14] = [
    (
        "sum_of_children",
        "local h = agent:delegate('helper'); return h:add(1, 2).value + h:add(3, 4).value + h:add(2, 2).value",
        r#"let h = agent.delegate("helper", #{}); h.call("add", [1, 2]).value + h.call("add", [3, 4]).value + h.call("add", [2, 2]).value"#,
    ),
    ("add", "return args[1] + args[2]", "args[0] + args[1]"),
    (
        "count",
        "context.n = (context.n or 0) + 1; context.gone = nil; return context.n",
        "if context.n == () { context.n = 0; } context.n += 1; context.n",
    ),
    (
        "keys",
        "local k = {} for key in pairs(context) do table.insert(k, key) end return k",
        "let k = []; for key in context.keys() { k.push(key); } k",
    ),
    ("draw", "return {random(), now()}", "[random(), now()]"),
    ("ring", "return tools.bell{times = args[1]}", "tools.bell(#{times: args[0]})"),
    (
        "child",
        "local c = agent:delegate('helper'); c.memory = 4; local o = c:draw(); return {o.value, c.memory, c.role}",
        r#"let c = agent.delegate("helper", #{}); c.memory = 4; [c.call("draw", []).value, c.memory, c.role]"#,
    ),
    ("pass", "return agent:delegate('helper'):draw()", r#"agent.delegate("helper", #{}).call("draw", [])"#),
    (
        "failing_child",
        "return agent:delegate('helper'):boom().error_message",
        r#"agent.delegate("helper", #{}).call("boom", []).error_message"#,
    ),
    ("itself", "agent:count(); return context.n", r#"agent.call("count", []); context.n"#),
    ("earlier", "return #history", "history.len()"),
    ("boom", "context.n = 99; error('no ' .. random())", "context.n = 99; throw `no ${random()}`"),
    ("knows", "return {agent:responds_to('n'), agent.role}", r#"[agent.responds_to("n"), agent.role]"#),
    (
        "refused",
        "return Outcome.error{error_type = 'low_utility', error_message = 'x'}",
        r#"Outcome::error(#{error_type: "low_utility", error_message: "x"})"#,
    ),
];

struct World {
    runtime: Runtime,
    rings: Arc<AtomicU32>,
}

fn world(language: Language, store: Option<&Path>) -> World {
    let model = Scripted::respond(move |request| {
        let found = PROGRAMS.iter().find(|(method, ..)| *method == &*request.method);
        let (_, lua, rhai) = found.unwrap_or_else(|| panic!("no program for {}", request.method));
        Ok(ModelReply::text(match language {
            Language::Lua => *lua,
            Language::Rhai => *rhai,
        }))
    });
    let rings = Arc::new(AtomicU32::new(0));
    let count = rings.clone();
    let bell = Tool::new("bell", "rings", Value::from_json(r#"{"type":"object"}"#).unwrap(), move |_, _| {
        Ok(Value::Int(i64::from(count.fetch_add(1, Ordering::SeqCst))))
    });
    let options = Options {
        model: Some(ModelSpec::Provider(Arc::new(model))),
        language: Some(language),
        store: Some(store.map_or(StoreOption::Memory, |path| StoreOption::Path(path.to_owned()))),
        tools: Some(vec![Arc::new(bell.unwrap())]),
        execution_repairs: Some(1),
        ..Options::default()
    };
    World { runtime: Runtime::builder().options(options).build().unwrap(), rings }
}

/// Calls every method twice, so that programs are generated and reused.
fn play(runtime: &Runtime) -> Vec<CallId> {
    let agent = runtime.agent("player", Options::default()).unwrap();
    for (method, ..) in PROGRAMS.iter().chain(&PROGRAMS) {
        let outcome = call(&agent, method);
        assert_eq!(outcome.ok(), !["boom", "refused"].contains(method), "{method}: {:?}", outcome.result);
    }
    runtime.calls().iter().map(|record| record.call_id()).collect()
}

fn call(agent: &Agent, method: &str) -> Outcome {
    agent.call(method, vec![2.into(), 3.into()], Map::new()).unwrap()
}

fn check(runtime: &Runtime, calls: &[CallId], language: Language) {
    assert!(calls.len() > 2 * PROGRAMS.len(), "children are calls too, {} are too few", calls.len());
    for id in calls {
        let method = runtime.call_map(*id).unwrap().unwrap()["method"].to_json();
        let replay = runtime.replay(*id).unwrap_or_else(|error| panic!("{language} {method}: {error}"));
        assert!(replay.left_out.is_empty(), "{language} {method}: {:?}", replay.left_out);
        assert!(replay.programs > 0, "{language} {method}");
    }
}

#[test]
fn kc_s3_programs_do_the_same_again_in_the_process_that_ran_them() {
    for language in Language::ALL {
        let world = world(language, None);
        let calls = play(&world.runtime);
        let rings = world.rings.load(Ordering::SeqCst);
        check(&world.runtime, &calls, language);
        assert_eq!(world.rings.load(Ordering::SeqCst), rings, "no tool runs again");
    }
}

#[test]
fn kc_s3_ec_rp2_programs_do_the_same_again_from_the_store_without_model_and_tools() {
    for language in Language::ALL {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.db");
        let calls = play(&world(language, Some(&path)).runtime);
        let options = Options {
            model: Some("library".into()),
            store: Some(StoreOption::Path(path.clone())),
            ..Options::default()
        };
        let second = Runtime::builder().options(options).build().unwrap();
        check(&second, &calls, language);
        let report = second.replay_all().unwrap();
        assert_eq!((report.calls, report.left_out), (calls.len() as u64, 0));
        assert!(report.programs >= report.calls);
    }
}

#[test]
fn the_replay_model_plays_a_recorded_flow_without_the_model_that_wrote_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let flow = {
        let world = world(Language::Lua, Some(&path));
        let agent = world.runtime.agent("player", Options { reuse: Some(Reuse::Off), ..Options::default() }).unwrap();
        let outcome = agent.call("sum_of_children", Vec::new(), Map::new()).unwrap();
        assert_eq!(outcome.value(), &Value::Int(14));
        outcome.metadata.unwrap().call_id
    };
    let replaying = |id: &str, store: StoreOption| {
        let options = Options {
            model: Some(format!("replay:{id}").as_str().into()),
            store: Some(store),
            reuse: Some(Reuse::Off),
            ..Options::default()
        };
        Runtime::builder().options(options).build()
    };
    let second = replaying(&flow.to_string(), StoreOption::Path(path.clone())).unwrap();
    let agent = second.agent("player", Options::default()).unwrap();
    let again = agent.call("sum_of_children", Vec::new(), Map::new()).unwrap();
    assert_eq!(again.value(), &Value::Int(14), "{:?}", again.error());
    assert_eq!(second.calls().len(), 4);
    let over = agent.call("sum_of_children", Vec::new(), Map::new()).unwrap();
    let message = &over.error().unwrap().message;
    assert!(message.contains("has no decision left for player.sum_of_children"), "{message}");

    let refused = |id: &str, store| replaying(id, store).unwrap_err().to_string();
    let there = || StoreOption::Path(path.clone());
    assert!(refused("last", there()).contains("takes the whole id of a recorded call"));
    assert!(refused(&"0".repeat(32), there()).contains("the store has no call with that id"));
    assert!(refused(&flow.to_string(), StoreOption::Memory).contains("needs the store in which the call is recorded"));
}

/// Changes one stored call behind the store's back, with a fresh seal: what only running its program can find.
fn rewritten(path: &Path, method: &str, from: &str, to: &str) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch("DROP TRIGGER IF EXISTS runs_stay_1").unwrap();
    let changed = connection
        .execute("UPDATE runs SET tape = replace(tape, ?1, ?2) WHERE method = ?3", [from, to, method])
        .unwrap();
    assert!(changed > 0);
}

#[test]
fn kc_s3_a_program_that_does_something_else_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    {
        let world = world(Language::Lua, Some(&path));
        let agent = world.runtime.agent("player", Options::default()).unwrap();
        agent.set("n", 5.into()).unwrap();
        assert_eq!(call(&agent, "count").value(), &Value::Int(6));
        assert_eq!(call(&agent, "ring").value(), &Value::Int(0));
    }
    let differs = |method: &str, from: &str, to: &str| {
        rewritten(&path, method, from, to);
        let world = world(Language::Lua, Some(&path));
        let calls = world.runtime.call_maps(10).unwrap();
        let call = calls.iter().find(|call| call["method"].as_str() == Some(method)).unwrap();
        let id = CallId::parse(call["call_id"].as_str().unwrap()).unwrap();
        assert!(world.runtime.verify(id).is_err(), "a tape is under its call's seal");
        let error = world.runtime.replay(id).unwrap_err().to_string();
        rewritten(&path, method, to, from);
        error
    };
    assert!(differs("count", r#""n":[5]"#, r#""n":[7]"#).ends_with("its program, run again, gives 8"));
    assert!(differs("count", r#""n":[6]"#, r#""n":[9]"#).ends_with("writes something else into its context"));
    let error = differs("ring", r#"{"times":2}"#, r#"{"times":3}"#);
    assert!(error.contains("entry 8 differs") && error.contains("asked its host for `tool`"), "{error}");
    assert!(SqliteStore::open(&path).unwrap().verify().is_ok(), "as it was");
}

#[test]
fn what_cannot_be_told_again_is_left_out_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let secret = {
        let world = world(Language::Lua, Some(&path));
        let agent = world.runtime.agent("player", Options::default()).unwrap();
        let kwargs = Map::from([("password".to_owned(), "hunter2".into())]);
        let outcome = agent.call("add", vec![1.into(), 2.into()], kwargs).unwrap();
        outcome.metadata.unwrap().call_id
    };
    let replay = world(Language::Lua, Some(&path)).runtime.replay(secret).unwrap();
    assert_eq!((replay.programs, replay.left_out), (0, vec!["it was given a secret".to_owned()]));
}
