//! The durable store: what was acknowledged is there for the next process, and what was changed is found (store.md P1-P12).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cadenza_core::agent::Agent;
use cadenza_core::ids::CallId;
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::{Durability, ErrorType, Outcome};
use cadenza_core::program::lock::Lock;
use cadenza_core::program::registry::ProgramState;
use cadenza_core::provider::{ModelSpec, Scripted};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, Reuse, StoreOption};
use cadenza_core::runtime::repertoire::{Listed, ProgramQuery};
use cadenza_core::store::{CallQuery, SqliteStore, Store, StoreError};
use cadenza_core::value::{Map, Value};

/// A runtime on `path` whose model knows three methods, and a counter of how often it was asked.
fn runtime(path: &Path) -> (Runtime, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counter = asked.clone();
    let model = Scripted::respond(move |request| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(ModelReply::text(match &*request.method {
            "add" => "return args[1] + args[2]",
            "increment" => "context.count = (context.count or 0) + 1 return context.count",
            "fail" => "context.count = 99 error('no')",
            "earlier" => "return #history",
            "ask" => "return tools.ring{times = 2}",
            "greet" => "return 'Hello, Ann'",
            _ => "return nil",
        }))
    });
    let options = Options {
        model: Some(ModelSpec::Provider(Arc::new(model))),
        store: Some(StoreOption::Path(path.to_owned())),
        ..Options::default()
    };
    (Runtime::builder().options(options).build().expect("the options are valid"), asked)
}

fn named(runtime: &Runtime, name: &str) -> Agent {
    let options = Options { name: Some(name.to_owned()), ..Options::default() };
    runtime.agent("counter", options).expect("a good name")
}

fn call(agent: &Agent, method: &str, args: &[i64]) -> Outcome {
    agent.call(method, args.iter().map(|number| Value::Int(*number)).collect(), Map::new()).expect("a good name")
}

fn id(outcome: &Outcome) -> CallId {
    outcome.metadata.as_ref().expect("every call has metadata").call_id
}

fn all(runtime: &Runtime) -> Vec<Listed> {
    runtime.programs(&ProgramQuery::default()).expect("the store is read")
}

fn store(path: &Path) -> Arc<SqliteStore> {
    SqliteStore::open(path).expect("a store")
}

#[test]
fn kc_calls_programs_and_transcripts_outlive_their_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/app.db");
    let (first, asked) = runtime(&path);
    let calc = first.agent("calculator", Options::default()).unwrap();
    let outcome = call(&calc, "add", &[2, 3]);
    assert_eq!(outcome.value(), &Value::Int(5));
    assert_eq!(outcome.metadata.as_ref().unwrap().durability, Durability::Batch);
    assert_eq!(call(&calc, "add", &[4, 5]).value(), &Value::Int(9));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    drop((calc, first));

    let (second, asked) = runtime(&path);
    let calc = second.agent("calculator", Options::default()).unwrap();
    let again = call(&calc, "add", &[7, 8]);
    assert_eq!(again.value(), &Value::Int(15));
    assert_eq!(asked.load(Ordering::SeqCst), 0, "the kept program of the first process is reused, no model is asked");
    let calls = second.call_maps(10).unwrap();
    assert_eq!(calls.len(), 3);
    assert_eq!(calls[0]["value"], Value::Int(5));
    assert_eq!(calls[0]["code"].as_str(), Some("return args[1] + args[2]"));
    for record in &calls {
        let id = CallId::parse(record["call_id"].as_str().unwrap()).unwrap();
        assert_eq!(second.verify(id).unwrap().head.to_hex(), record["transcript_head"].as_str().unwrap());
        let ended = second.replay(id).unwrap();
        assert_eq!(ended.ended.value.as_deref(), Some(&record["value"]));
    }
    let report = store(&path).verify().unwrap();
    assert_eq!(report.calls, 3);
    let saved = store(&path).programs(None).unwrap();
    assert_eq!((saved.len(), saved[0].uses), (1, 2), "reuses of both processes are counted");
}

#[test]
fn what_a_program_is_pinned_to_outlives_its_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let greeted = |name: &str| {
        let (runtime, asked) = runtime(&path);
        let agent = runtime.agent("host", Options::default()).unwrap();
        agent.set("name", name.into()).unwrap();
        assert!(call(&agent, "greet", &[]).ok());
        asked.load(Ordering::SeqCst)
    };
    assert_eq!(["Ann", "Ann", "Bob"].map(greeted), [1, 0, 1], "the text holds for Ann alone");
}

#[test]
fn a_named_agent_lives_on_with_context_history_and_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (first, _) = runtime(&path);
    let agent = named(&first, "tally");
    agent.set("label", "mine".into()).unwrap();
    let outcome = call(&agent, "increment", &[]);
    assert_eq!(outcome.metadata.as_ref().unwrap().durability, Durability::Strict);
    assert!(!call(&agent, "fail", &[]).ok());
    drop((agent, first));

    let (second, _) = runtime(&path);
    let agent = named(&second, "tally");
    assert_eq!(agent.runtime_context().get("count"), Some(1.into()), "a failed call leaves no trace");
    assert_eq!(agent.runtime_context().get("label"), Some("mine".into()));
    assert_eq!(call(&agent, "increment", &[]).value(), &Value::Int(2));
    assert_eq!(call(&agent, "earlier", &[]).value(), &Value::Int(3), "history reaches back into the first process");
    let listed = store(&path).agents().unwrap();
    assert_eq!((&*listed[0].name, &*listed[0].role, listed[0].calls), ("tally", "counter", 4));
    agent.runtime_context().remove("label").unwrap();
    agent.runtime_context().clear().unwrap();
    drop((agent, second));
    let (third, _) = runtime(&path);
    assert!(named(&third, "tally").runtime_context().is_empty());
    let wrong = third.agent("calculator", Options { name: Some("tally".into()), ..Options::default() });
    assert!(wrong.unwrap_err().to_string().contains("has the role \"counter\" already"));
}

#[test]
fn two_handles_of_one_named_agent_lose_no_update() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (runtime, _) = runtime(&path);
    let handles: Vec<Agent> = (0..4).map(|_| named(&runtime, "shared")).collect();
    std::thread::scope(|scope| {
        for handle in &handles {
            scope.spawn(|| {
                for _ in 0..25 {
                    let outcome = call(handle, "increment", &[]);
                    assert!(outcome.ok(), "{:?}", outcome.error());
                }
            });
        }
    });
    assert_eq!(handles[0].runtime_context().get("count"), Some(100.into()));
    store(&path).verify().unwrap();
}

#[test]
fn memory_keeps_nothing_and_names_need_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (runtime, _) = runtime(&path);
    let quiet = runtime.agent("calculator", Options { durability: Some(Durability::Memory), ..Options::default() });
    let outcome = call(&quiet.unwrap(), "add", &[1, 2]);
    assert_eq!(outcome.metadata.as_ref().unwrap().durability, Durability::Memory);
    assert!(runtime.call_maps(10).unwrap().is_empty());
    let bare = Options { name: Some("x".into()), store: Some(StoreOption::Memory), ..Options::default() };
    assert!(runtime.agent("calculator", bare).unwrap_err().to_string().contains("needs a store"));
}

/// Every single-byte change of a stored call is found, and the call is named.
#[test]
fn tampering_with_one_byte_is_found_and_located() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (runtime, _) = runtime(&path);
    let calc = runtime.agent("calculator", Options::default()).unwrap();
    let ids: Vec<CallId> = (0..3).map(|number| id(&call(&calc, "add", &[number, 1]))).collect();
    runtime.flush();
    let store = store(&path);
    store.verify().unwrap();
    let foreign = rusqlite::Connection::open(&path).unwrap();
    // The triggers stop an honest program, not an attacker.
    foreign.execute("UPDATE runs SET role = 'x'", []).unwrap_err();
    foreign.execute_batch("DROP TRIGGER runs_stay_1; DROP TRIGGER runs_stay_2;").unwrap();
    let key = ids[1].0.to_be_bytes();
    let columns = ["record", "entries", "hashes", "contract", "code", "seal", "role", "method", "status", "durability"];
    let of_run = columns.iter().chain(&["shared", "trace"]).map(|column| (*column, "runs", "run = ?1"));
    // What the second call shares with the third one.
    let shared = "hash = (SELECT shared FROM runs WHERE run = ?1)";
    let of_shared = ["record", "header", "entries", "hashes"].map(|column| (column, "shared", shared));
    for (column, table, which) in of_run.chain(of_shared) {
        let select = format!("SELECT {column} FROM {table} WHERE {which}");
        let original: rusqlite::types::Value = foreign.query_row(&select, [key], |row| row.get(0)).unwrap();
        let update = format!("UPDATE {table} SET {column} = ?2 WHERE {which}");
        let (bytes, text) = match &original {
            rusqlite::types::Value::Text(text) => (text.clone().into_bytes(), true),
            rusqlite::types::Value::Blob(bytes) => (bytes.clone(), false),
            other => panic!("{column} is {other:?}"),
        };
        assert!(!bytes.is_empty(), "{table}.{column}");
        for index in (0..bytes.len()).step_by(1 + bytes.len() / 200) {
            let mut changed = bytes.clone();
            changed[index] = if changed[index] == b'7' { b'8' } else { b'7' };
            let changed = if text {
                rusqlite::types::Value::Text(String::from_utf8(changed).unwrap())
            } else {
                rusqlite::types::Value::Blob(changed)
            };
            foreign.execute(&update, rusqlite::params![key, changed]).unwrap();
            let found = store.verify_call(ids[1]).unwrap_err();
            let place = |found: &StoreError| matches!(found, StoreError::Tampered { place: 2, .. });
            assert!(place(&found), "{table}.{column} byte {index}: {found}");
            assert!(place(&store.verify().unwrap_err()), "{table}.{column} byte {index}");
        }
        foreign.execute(&update, rusqlite::params![key, original]).unwrap();
    }
    for (column, value) in [("agent", 7), ("depth", 7)] {
        foreign
            .execute(&format!("UPDATE runs SET {column} = ?2 WHERE run = ?1"), rusqlite::params![key, value])
            .unwrap();
        assert!(matches!(store.verify(), Err(StoreError::Tampered { place: 2, .. })), "{column}");
        let original = if column == "agent" { "NULL" } else { "0" };
        foreign.execute(&format!("UPDATE runs SET {column} = {original} WHERE run = ?1"), [key]).unwrap();
    }
    store.verify().unwrap();
    // A call in the middle, and then the last one, is taken away.
    foreign.execute("DELETE FROM runs WHERE gseq = 2", []).unwrap();
    assert!(matches!(store.verify(), Err(StoreError::Tampered { place: 2, .. })));
}

#[test]
fn a_store_that_was_cut_is_refused_at_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    {
        let (runtime, _) = runtime(&path);
        let calc = runtime.agent("calculator", Options::default()).unwrap();
        (0..3).for_each(|number| drop(call(&calc, "add", &[number, 1])));
    }
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("DROP TRIGGER runs_stay_2; DELETE FROM runs WHERE gseq = 3;").unwrap();
    drop(foreign);
    let error = SqliteStore::open(&path).unwrap_err();
    assert!(matches!(&error, StoreError::Tampered { place: 3, .. }), "{error}");
    assert!(error.to_string().contains("cut or rolled back"), "{error}");
}

#[test]
fn wrong_files_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let refused = |path: &Path| SqliteStore::open(path).unwrap_err().to_string();
    assert!(refused(folder.path()).contains("it is a folder; name a file in it"));
    std::fs::write(at("text.db"), "hello, this is no database at all").unwrap();
    assert!(refused(&at("text.db")).contains("it is not a database"), "{}", refused(&at("text.db")));
    assert_eq!(std::fs::read_to_string(at("text.db")).unwrap(), "hello, this is no database at all");
    rusqlite::Connection::open(at("other.db")).unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
    assert!(refused(&at("other.db")).contains("a database of another program"));
    drop(store(&at("future.db")));
    rusqlite::Connection::open(at("future.db")).unwrap().pragma_update(None, "user_version", 7).unwrap();
    assert!(refused(&at("future.db")).contains("has version 7, this Cadenza knows versions up to 3; update Cadenza"));
    std::fs::write(at("file"), "").unwrap();
    assert!(refused(&at("file/app.db")).contains("cannot"), "{}", refused(&at("file/app.db")));
}

#[test]
fn calls_can_be_listed_by_role_method_and_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (runtime, _) = runtime(&path);
    let calc = runtime.agent("calculator", Options::default()).unwrap();
    (0..4).for_each(|number| drop(call(&calc, "add", &[number, 1])));
    call(&calc, "fail", &[]);
    let store = store(&path);
    let places = |query: CallQuery| -> Vec<i64> { store.calls(&query).unwrap().iter().map(|call| call.gseq).collect() };
    assert_eq!(places(CallQuery { limit: 2, ..CallQuery::default() }), [5, 4]);
    assert_eq!(places(CallQuery { limit: 9, before: Some(3), ..CallQuery::default() }), [2, 1]);
    assert_eq!(places(CallQuery { limit: 9, method: Some("fail".into()), ..CallQuery::default() }), [5]);
    assert!(places(CallQuery { limit: 9, role: Some("nobody".into()), ..CallQuery::default() }).is_empty());
}

#[test]
fn programs_travel_as_source_files_and_an_edited_one_wins() {
    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("programs");
    let (first, _) = runtime(&folder.path().join("first.db"));
    let calc = first.agent("calculator", Options::default()).unwrap();
    call(&calc, "add", &[2, 3]);
    assert_eq!(first.export(&programs).unwrap(), 1);
    let file = std::fs::read_dir(programs.join("calculator")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "return args[1] + args[2]\n");

    let (second, asked) = runtime(&folder.path().join("second.db"));
    assert_eq!(second.import(&programs, true).unwrap().len(), 1);
    let calc = second.agent("calculator", Options::default()).unwrap();
    assert_eq!(call(&calc, "add", &[4, 5]).value(), &Value::Int(9));
    std::fs::write(&file, "return args[1] + args[2] + 1000\n").unwrap();
    second.import(&programs, true).unwrap();
    assert_eq!(call(&calc, "add", &[4, 5]).value(), &Value::Int(1009));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let newest = second.program("calculator", "add").unwrap().unwrap();
    assert_eq!((newest.saved.version, newest.state()), (2, ProgramState::Pinned));
    // Put aside, it gives way to the first one again; in this process and in the next.
    assert!(second.set_program_state(newest.id, ProgramState::Quarantined).unwrap());
    assert_eq!(call(&calc, "add", &[4, 5]).value(), &Value::Int(9));
    drop((calc, second, newest));
    let (third, asked) = runtime(&folder.path().join("second.db"));
    let calc = third.agent("calculator", Options::default()).unwrap();
    assert_eq!(call(&calc, "add", &[6, 5]).value(), &Value::Int(11));
    assert_eq!(asked.load(Ordering::SeqCst), 0);

    std::fs::write(&file, "return (").unwrap();
    let refused = third.import(&programs, true).unwrap_err().to_string();
    assert!(refused.contains("calculator.add: the program does not compile: line 1"), "{refused}");
    let index = programs.join("programs.json");
    let text = std::fs::read_to_string(&index).unwrap().replace("\"file\":\"", "\"file\":\"../");
    std::fs::write(&index, text).unwrap();
    assert!(third.import(&programs, true).unwrap_err().to_string().contains("entry 1: no valid `file`"));
}

#[test]
fn where_programs_are_locked_nothing_else_runs_and_no_model_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (first, asked) = runtime(&path);
    let calc = first.agent("calculator", Options::default()).unwrap();
    call(&calc, "add", &[2, 3]);
    call(&calc, "increment", &[]);
    let lock = folder.path().join("cadenza.lock");
    assert_eq!(first.lock(&lock).unwrap(), 2);
    let text = std::fs::read_to_string(&lock).unwrap();
    assert_eq!(text.lines().count(), 7, "one line per program: {text}");
    let read = Lock::read(&lock).unwrap();
    let listed = all(&first);
    assert!(listed.iter().all(|listed| read.allows(&listed.saved.key, listed.checksum())));
    // A lock file is read from the working directory, which tests share: this one runs in a process of its own.
    let fewer: String =
        text.lines().filter(|line| !line.contains("increment")).map(|line| line.to_owned() + "\n").collect();
    std::fs::write(&lock, fewer.replace("},\n  ]", "}\n  ]")).unwrap();
    drop((calc, first, listed));
    let done = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "locked_child", "--nocapture", "--include-ignored"])
        .current_dir(folder.path())
        .env("CADENZA_LOCKED_CHILD", &path)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    std::fs::write(&lock, "{}").unwrap();
    assert!(Lock::read(&lock).unwrap_err().to_string().contains("write it again with `cadenza lock`"));
}

/// The other half of the test above.
#[test]
fn locked_child() {
    let Ok(path) = std::env::var("CADENZA_LOCKED_CHILD") else { return };
    let (runtime, asked) = runtime(Path::new(&path));
    let options = Options { reuse: Some(Reuse::Locked), ..Options::default() };
    let calc = runtime.agent("calculator", options).unwrap();
    assert_eq!(call(&calc, "add", &[7, 8]).value(), &Value::Int(15));
    for method in ["increment", "fail", "ask"] {
        let refused = call(&calc, method, &[]);
        let error = refused.error().unwrap();
        assert_eq!(error.error_type, ErrorType::Provider);
        assert!(error.message.contains(&format!("no program for calculator.{method}")), "{}", error.message);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

fn listed(runtime: &Runtime) -> Vec<Listed> {
    runtime.programs(&ProgramQuery::default()).unwrap()
}

/// A runtime whose model writes `half` twice, the second time otherwise.
fn halving(store: StoreOption) -> Runtime {
    let answers = AtomicU32::new(0);
    let model = Scripted::respond(move |_| {
        Ok(ModelReply::text(match answers.fetch_add(1, Ordering::SeqCst) {
            0 => "if args[1] % 2 == 1 then error('odd') end return args[1] // 2",
            _ => "return args[1] // 2 + 1",
        }))
    });
    let options =
        Options { model: Some(ModelSpec::Provider(Arc::new(model))), store: Some(store), ..Options::default() };
    Runtime::builder().options(options).build().unwrap()
}

#[test]
fn a_candidate_that_answers_recorded_calls_otherwise_waits_for_approval() {
    let folder = tempfile::tempdir().unwrap();
    for store in [StoreOption::Memory, StoreOption::Path(folder.path().join("app.db"))] {
        let runtime = halving(store);
        let agent = runtime.agent("calculator", Options::default()).unwrap();
        let half = |number: i64| call(&agent, "half", &[number]);
        assert_eq!([40, 60, 100].map(|number| half(number).value().clone()), [20, 30, 50].map(Value::Int));
        let repaired = half(7);
        assert_eq!(repaired.value(), &Value::Int(4), "the call itself is answered");
        let note = repaired.metadata.unwrap().note.clone().unwrap();
        assert!(note.contains("half(100) gave 50; the new program gives 51 (and 2 more)"), "{note}");
        let states: Vec<_> = listed(&runtime).iter().map(Listed::state).collect();
        assert_eq!(states, [ProgramState::Active, ProgramState::Candidate]);
        assert_eq!(half(40).value(), &Value::Int(20), "the old program stays");
        let candidate = listed(&runtime).remove(1);
        assert_eq!(candidate.saved.note.as_ref().map(|text| text.contains("half(100)")), Some(true));
        assert!(runtime.set_program_state(candidate.id, ProgramState::Active).unwrap());
        assert_eq!(half(40).value(), &Value::Int(21), "approved, it comes first");
    }
}

#[test]
fn a_candidate_is_judged_only_by_calls_that_it_would_answer() {
    let model = Scripted::respond(|request| {
        Ok(ModelReply::text(match request.args[0].as_str() {
            Some("km") => "if args[1] == 'km' then return args[2] * 0.62 end error('unit')",
            _ => "return args[2] * 3.28",
        }))
    });
    let options = Options { model: Some(ModelSpec::Provider(Arc::new(model))), ..Options::default() };
    let agent = Runtime::builder().options(options).build().unwrap().agent("converter", Options::default()).unwrap();
    let convert =
        |unit: &str, number: i64| agent.call("convert", vec![unit.into(), number.into()], Map::new()).unwrap();
    for number in 1..4 {
        assert!(convert("km", number).ok());
    }
    let metres = convert("m", 1);
    assert_eq!(metres.value(), &Value::Float(3.28));
    assert!(metres.metadata.unwrap().note.is_none());
    assert_eq!(listed(agent.runtime())[1].state(), ProgramState::Active, "the unit was not read: no call of it");
    assert_eq!(convert("km", 100).value(), &Value::Int(62));
}

#[test]
fn ec_mg1_a_store_of_version_1_is_taken_over_and_its_seals_still_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    // Written by the first build that had a store.
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/store/version_1.db");
    std::fs::copy(old, &path).unwrap();
    let (runtime, asked) = runtime(&path);
    assert_eq!(runtime.store().unwrap().verify().unwrap().calls, 7);
    assert_eq!(named(&runtime, "clicks").runtime_context().get("count"), Some(Value::Int(2)));
    let calc = runtime.agent("calculator", Options::default()).unwrap();
    assert_eq!(call(&calc, "add", &[20, 3]).value(), &Value::Int(23));
    assert_eq!(asked.load(Ordering::SeqCst), 0, "its programs are there");
    let report = runtime.store().unwrap().verify().unwrap();
    assert_eq!(report.calls, 8, "old seals and new ones are one chain");
    let version = |path: &Path| -> i32 {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    assert_eq!(version(&path), 3);
}

#[test]
fn a_delegate_is_found_again_by_its_name_and_shown_to_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let prompts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let open = |namespace: &str| {
        let prompts = prompts.clone();
        let model = Scripted::respond(move |request| {
            prompts.lock().unwrap().push(request.user_prompt.to_string());
            Ok(ModelReply::text(match &*request.method {
                "compute" => "return agent:tool('tutor'):explain().value",
                _ => "return 'because'",
            }))
        });
        let options = Options {
            model: Some(ModelSpec::Provider(Arc::new(model))),
            store: Some(StoreOption::Path(path.clone())),
            namespace: Some(namespace.into()),
            reuse: Some(Reuse::Off),
            ..Options::default()
        };
        Runtime::builder().options(options).build().unwrap()
    };
    let purpose = "explain results to beginners";
    {
        let boss = open("one").agent("boss", Options::default()).unwrap();
        let contract =
            Value::from_json(&format!(r#"{{"purpose":"{purpose}","deliverable":{{"type":"string"}}}}"#)).unwrap();
        boss.delegate("tutor", Options::from_map(contract.as_map().unwrap()).unwrap()).unwrap();
    }
    let second = open("one");
    let boss = second.agent("boss", Options::default()).unwrap();
    assert_eq!(call(&boss, "compute", &[]).value(), &"because".into());
    let seen = std::mem::take(&mut *prompts.lock().unwrap());
    assert!(seen[0].contains(&format!("- \"tutor\": \"{purpose}\"")), "{}", seen[0]);
    assert!(seen[1].contains(&format!("Purpose: \"{purpose}\"")), "{}", seen[1]);
    let tutor = boss.tool("tutor").unwrap();
    assert!(call(&tutor, "explain", &[]).ok());
    assert!(second.store().unwrap().verify().is_ok());

    let stranger = open("two").agent("boss", Options::default()).unwrap();
    prompts.lock().unwrap().clear();
    assert!(call(&stranger, "compute", &[]).ok());
    assert!(!prompts.lock().unwrap()[0].contains("tutor"), "another application");
    drop((boss, second, stranger, tutor));

    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute("UPDATE tools SET options = replace(options, 'beginners', 'everybody')", []).unwrap();
    drop(connection);
    let third = open("one");
    assert!(third.store().unwrap().verify().unwrap_err().to_string().contains("the delegate \"tutor\" was changed"));
    prompts.lock().unwrap().clear();
    assert!(call(&third.agent("boss", Options::default()).unwrap(), "compute", &[]).ok());
    assert!(
        !prompts.lock().unwrap().iter().any(|prompt| prompt.contains("everybody")),
        "what was changed is not served"
    );
}

#[test]
fn a_good_repair_is_no_candidate_after_a_repaired_call_or_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    // The answers of the model in turn: the first one may fail and be repaired at once.
    let stories: [(&str, &[&str]); 2] = [
        (
            "repaired",
            &[
                "context.x = 1; error('no')",
                "if args[1] == 13 then error('unlucky') end return 5 * args[1]",
                "return 5 * args[1]",
            ],
        ),
        (
            "secret",
            &[
                "if args[1] == 13 then error('unlucky') end return {token = 'abcdef', n = args[1] * 2}",
                "return {token = 'abcdef', n = args[1] * 2}",
            ],
        ),
    ];
    for (name, answers) in stories {
        let left = std::sync::Mutex::new(answers.iter());
        let next = move || ModelReply::text(*left.lock().unwrap().next().expect("asked too often"));
        let options = Options {
            model: Some(ModelSpec::Provider(Arc::new(Scripted::respond(move |_| Ok(next()))))),
            store: Some(StoreOption::Path(folder.path().join(name))),
            ..Options::default()
        };
        let runtime = Runtime::builder().options(options).build().unwrap();
        let agent = runtime.agent("worker", Options::default()).unwrap();
        for number in [100, 200, 300, 13] {
            let outcome = call(&agent, "work", &[number]);
            assert!(outcome.ok(), "{name} {number}: {:?}", outcome.error());
            assert!(outcome.metadata.unwrap().note.is_none(), "{name} {number}");
        }
        assert!(listed(&runtime).iter().all(|program| program.state() == ProgramState::Active), "{name}");
    }
}
