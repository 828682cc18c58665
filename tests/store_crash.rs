//! kill -9 in a second process: nothing that was acknowledged is lost, nothing is half applied, nothing runs twice
//! (store.md P1, P2, P4, P5, P8, P9; R1, R13).
//!
//! The test starts itself again as the victim. `CADENZA_KILLS` sets the number of kills; `make soak` kills thousands.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cadenza_core::ids::CallId;
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::Durability;
use cadenza_core::provider::{ModelSpec, Scripted};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, StoreOption};
use cadenza_core::store::{CallQuery, SqliteStore, Store};
use cadenza_core::tools::Tool;
use cadenza_core::value::{Map, Value};

const VICTIM: &str = "CADENZA_CRASH_VICTIM";

fn kills() -> u32 {
    std::env::var("CADENZA_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

fn runtime(folder: &Path) -> Runtime {
    let model = Scripted::respond(|request| {
        Ok(ModelReply::text(match &*request.method {
            "increment" => "context.count = (context.count or 0) + 1 return context.count",
            "ring" => "context.rings = (context.rings or 0) + 1 return tools.ring{number = args[1]}",
            _ => "return args[1] + args[2]",
        }))
    });
    let ledger = folder.join("ledger");
    let schema = Value::from_json(r#"{"type":"object","properties":{"number":{"type":"integer"}}}"#).unwrap();
    let ring = Tool::new("ring", "Rings once.", schema, move |arguments, _| {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&ledger).unwrap();
        writeln!(file, "{}", arguments["number"].to_json()).unwrap();
        Ok(arguments["number"].clone())
    });
    let options = Options {
        model: Some(ModelSpec::Provider(Arc::new(model))),
        store: Some(StoreOption::Path(folder.join("app.db"))),
        durability: Some(Durability::Strict),
        tools: Some(vec![Arc::new(ring.unwrap())]),
        ..Options::default()
    };
    Runtime::builder().options(options).build().unwrap()
}

/// What the second process does until it is killed: calls of every kind, each acknowledged on standard output.
#[test]
fn victim() {
    let Ok(folder) = std::env::var(VICTIM) else { return };
    let runtime = runtime(folder.as_ref());
    let named = Options { name: Some("tally".into()), ..Options::default() };
    let tally = runtime.agent("counter", named).unwrap();
    let start = runtime.call_maps(1).unwrap().len() as i64 + i64::from(std::process::id()) * 1_000_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let calc = runtime.agent("calculator", Options::default()).unwrap();
            for number in 0.. {
                acknowledge("add", &calc.call("add", vec![Value::Int(number), 1.into()], Map::new()).unwrap());
            }
        });
        for number in start.. {
            acknowledge("increment", &tally.call("increment", Vec::new(), Map::new()).unwrap());
            acknowledge("ring", &tally.call("ring", vec![Value::Int(number)], Map::new()).unwrap());
        }
    });
}

fn acknowledge(what: &str, outcome: &cadenza_core::outcome::Outcome) {
    let id = outcome.metadata.as_ref().unwrap().call_id;
    let line = format!("{what} {id} {}\n", outcome.value().to_json());
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    assert!(outcome.ok(), "{:?}", outcome.error());
}

#[test]
fn p2_nothing_acknowledged_is_lost_by_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged: BTreeMap<CallId, (String, String)> = BTreeMap::new();
    for round in 0..kills() {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture", "--test-threads", "1"])
            .env(VICTIM, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = victim.stdout.take().unwrap();
        let (first, started) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut first = Some(first);
            let keep = |line: String| {
                if line.contains("add ") || line.contains("increment ") {
                    assert!(first.take().is_none_or(|first| first.send(()).is_ok()));
                }
                line
            };
            BufReader::new(output).lines().map_while(Result::ok).map(keep).collect::<Vec<String>>()
        });
        // Most die in the middle of their calls, some while they open the store.
        let pause = Duration::from_micros(u64::from(round) * 7_919 % 20_000);
        if round % 6 != 5 {
            assert!(started.recv_timeout(Duration::from_secs(60)).is_ok(), "the victim never made a call");
        }
        std::thread::sleep(pause);
        victim.kill().unwrap();
        victim.wait().unwrap();
        for line in reader.join().unwrap() {
            // The last line may be torn; the harness prints lines of its own.
            let mut words = line.split(' ');
            if let (Some(what), Some(id), Some(value)) =
                (words.next(), words.next().and_then(CallId::parse), words.next())
            {
                acknowledged.insert(id, (what.rsplit("... ").next().unwrap_or(what).to_owned(), value.to_owned()));
            }
        }
        check(folder.path(), &acknowledged);
    }
    // A loaded machine gets less far between two kills.
    assert!(acknowledged.len() > kills() as usize / 4, "only {} calls were acknowledged", acknowledged.len());
}

/// The invariants, after the store was opened again.
fn check(folder: &Path, acknowledged: &BTreeMap<CallId, (String, String)>) {
    let path = folder.join("app.db");
    if !path.exists() {
        assert!(acknowledged.is_empty());
        return;
    }
    let store = SqliteStore::open(&path).unwrap();
    store.verify().unwrap();
    let calls = store.calls(&CallQuery { limit: usize::MAX, ..CallQuery::default() }).unwrap();
    let by_id: BTreeMap<&str, &Map> =
        calls.iter().map(|call| (call.record["call_id"].as_str().unwrap(), &call.record)).collect();
    for (id, (what, value)) in acknowledged {
        let id = id.to_string();
        let record = by_id.get(id.as_str()).unwrap_or_else(|| panic!("acknowledged {what} {id} is lost"));
        assert_eq!(record["value"].to_json(), *value, "{what} {id}");
    }
    // The context is the fold of the calls that ended well: nothing half applied, nothing twice.
    let ended_well = |method: &str| {
        let ended = calls.iter().filter(|call| call.record["method"].as_str() == Some(method));
        ended.filter(|call| call.record["outcome_status"].as_str() == Some("ok")).count() as i64
    };
    if let Some(agent) = store.agents().unwrap().first() {
        let state = store.open_agent(&agent.namespace, &agent.name, &agent.role).unwrap();
        let kept = |key: &str| state.context.get(key).and_then(Value::as_int).unwrap_or(0);
        assert_eq!(kept("count"), ended_well("increment"));
        assert_eq!(kept("rings"), ended_well("ring"));
    }
    // What a tool did is known or said to be unknown, and it did it once.
    let ledger = std::fs::read_to_string(folder.join("ledger")).unwrap_or_default();
    let rung: Vec<&str> = ledger.lines().collect();
    assert_eq!(rung.len(), rung.iter().collect::<BTreeSet<_>>().len(), "an effect ran twice");
    for call in calls.iter().filter(|call| call.record["method"].as_str() == Some("ring")) {
        let id = CallId::parse(call.record["call_id"].as_str().unwrap()).unwrap();
        for effect in store.call(id).unwrap().unwrap().effects {
            let status = effect["status"].as_str().unwrap().to_owned();
            assert!(["ok", "unknown"].contains(&&*status), "{id}: {status}");
            let interrupted = call.record["outcome_status"].as_str() != Some("ok");
            assert!(status == "ok" || interrupted, "{id}: a call that ended well knows what its tool did");
        }
    }
}
