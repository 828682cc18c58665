//! The canonical workload, what it was told, and what must then be true of the store it leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use cadenza_core::agent::{Agent, UseError};
use cadenza_core::ids::CallId;
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::{Durability, ErrorType, Outcome};
use cadenza_core::provider::{ModelSpec, Scripted};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, StoreOption};
use cadenza_core::store::{CallQuery, SqliteStore, Store, StoreError};
use cadenza_core::tools::Tool;
use cadenza_core::value::{Map, Value};

/// A line of what somebody was told; `ok`, `refused` (it did not happen), `unknown` (nobody could say), `label`.
pub type Told = String;

pub fn options(folder: &Path) -> Options {
    let model = Scripted::respond(|request| {
        Ok(ModelReply::text(match &*request.method {
            "increment" => "context.count = (context.count or 0) + 1 return context.count",
            "ring" => "context.rings = (context.rings or 0) + 1 return tools.ring{number = args[1]}",
            "fail" => "context.count = 99 error('no')",
            _ => "return args[1] + args[2]",
        }))
    });
    let ledger = folder.with_extension("ledger");
    let schema = Value::from_json(r#"{"type":"object","properties":{"number":{"type":"integer"}}}"#).unwrap();
    let ring = Tool::new("ring", "Rings once.", schema, move |arguments, _| {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&ledger).unwrap();
        writeln!(file, "{}", arguments["number"].to_json()).unwrap();
        if std::env::var(crate::KILL_AT).is_ok_and(|kill| kill.starts_with("tool")) {
            crate::disk::die();
        }
        Ok(arguments["number"].clone())
    });
    Options {
        model: Some(ModelSpec::Provider(Arc::new(model))),
        store: Some(StoreOption::Path(folder.join("app.db"))),
        durability: Some(Durability::Strict),
        tools: Some(vec![Arc::new(ring.unwrap())]),
        execution_repairs: Some(0),
        max_generation_attempts: Some(1),
        ..Options::default()
    }
}

/// Calls of every kind, with a clean end in the middle. `tell` hears of each as it is acknowledged; what cannot be opened
/// or written is told and left, and the next is tried. `number` tells one round of it from another.
pub fn run(folder: &Path, number: i64, tell: &dyn Fn(Told)) {
    for half in 0..2 {
        let runtime = match Runtime::builder().options(options(folder)).build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tell(format!("closed {error}"));
                continue;
            }
        };
        let named = Options { name: Some("tally".into()), ..Options::default() };
        match runtime.agent("counter", named) {
            Ok(tally) => {
                label(&tally, number * 2 + half, tell);
                for step in 0..2 {
                    say("increment", &call(&tally, "increment", &[]), tell);
                    say("ring", &call(&tally, "ring", &[number * 100 + half * 10 + step]), tell);
                }
                say("fail", &call(&tally, "fail", &[]), tell);
            }
            Err(error) => tell(format!("closed {error}")),
        }
        let calc = runtime.agent("calculator", Options::default()).unwrap();
        say("add", &call(&calc, "add", &[number, 1]), tell);
        let quick = Options { durability: Some(Durability::Batch), ..Options::default() };
        let quick = runtime.agent("calculator", quick).unwrap();
        let outcome = call(&quick, "add", &[number, 2]);
        if runtime.store().unwrap().sync().is_ok() {
            say("add", &outcome, tell);
        }
    }
}

fn call(agent: &Agent, method: &str, args: &[i64]) -> Outcome {
    agent.call(method, args.iter().map(|number| Value::Int(*number)).collect(), Map::new()).unwrap()
}

fn label(agent: &Agent, number: i64, tell: &dyn Fn(Told)) {
    tell(format!("labelling {number}"));
    match agent.set("label", number.into()) {
        Ok(()) => tell(format!("label {number}")),
        Err(UseError::Store(StoreError::Unanswered)) => {}
        Err(error) => tell(format!("unlabelled {number} {error}")),
    }
}

/// What a caller knows of a call from its outcome.
fn say(method: &str, outcome: &Outcome, tell: &dyn Fn(Told)) {
    let id = outcome.metadata.as_ref().unwrap().call_id;
    match outcome.error() {
        None => tell(format!("ok {method} {id} {}", outcome.value().to_json())),
        Some(error) if error.error_type == ErrorType::Other("store".into()) => {
            let known = if error.message.contains("not known") { "unknown" } else { "refused" };
            tell(format!("{known} {method} {id} {}", error.message));
        }
        Some(error) => tell(format!("ended {method} {id} {}", error.message)),
    }
}

/// How many of what was told are of a kind.
pub fn count(told: &[Told], kind: &str) -> usize {
    told.iter().filter(|line| line.split(' ').next() == Some(kind)).count()
}

/// The invariants of a store, given what was told before it was opened again. `Err` says what does not hold.
pub fn check(folder: &Path, told: &[Told]) -> Result<(), String> {
    let store = SqliteStore::open(&folder.join("app.db")).map_err(|error| format!("it does not open: {error}"))?;
    check_open(&*store, folder, told)
}

/// The invariants of an open store.
pub fn check_open(store: &dyn Store, folder: &Path, told: &[Told]) -> Result<(), String> {
    let said = |error| format!("it cannot be read: {error}");
    store.verify().map_err(said)?;
    let calls = store.calls(&CallQuery { limit: usize::MAX, ..CallQuery::default() }).map_err(said)?;
    let text = |record: &Map, name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let by_id: BTreeMap<String, &Map> =
        calls.iter().map(|call| (text(&call.record, "call_id"), &call.record)).collect();
    let mut label: Option<i64> = None;
    let mut labels: BTreeSet<Option<i64>> = BTreeSet::new();
    for line in told {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[0] {
            "ok" => {
                let record = by_id.get(words[2]).ok_or_else(|| format!("acknowledged and lost: {line}"))?;
                if record["value"].to_json() != words[3] {
                    return Err(format!("another value than acknowledged: {line}"));
                }
            }
            "refused" if by_id.get(words[2]).is_some_and(|record| text(record, "outcome_status") == "ok") => {
                return Err(format!("refused, and there all the same: {line}"));
            }
            "label" => {
                label = words[1].parse::<i64>().ok();
                labels.clear();
            }
            // What was not acknowledged may still be there, if nobody said that it is not.
            "labelling" => {
                labels.insert(words[1].parse::<i64>().ok());
            }
            "unlabelled" => {
                labels.remove(&words[1].parse::<i64>().ok());
            }
            _ => {}
        }
    }
    labels.insert(label);
    let ended_well = |method: &str| {
        let ended = calls.iter().filter(|call| call.record["method"].as_str() == Some(method));
        ended.filter(|call| text(&call.record, "outcome_status") == "ok").count() as i64
    };
    if let Some(agent) = store.agents().map_err(said)?.first() {
        let state = store.open_agent(&agent.namespace, &agent.name, &agent.role).map_err(said)?;
        let kept = |key: &str| state.context.get(key).and_then(Value::as_int);
        for (key, method) in [("count", "increment"), ("rings", "ring")] {
            if kept(key).unwrap_or(0) != ended_well(method) {
                return Err(format!("context.{key} is {:?}, {method} ended well {}", kept(key), ended_well(method)));
            }
        }
        if label.is_some() && !labels.contains(&kept("label")) {
            return Err(format!("context.label is {:?}, acknowledged was {labels:?}", kept("label")));
        }
    } else if label.is_some() {
        return Err("the agent is lost".to_owned());
    }
    // What a tool did is known or said to be unknown, and it did it once (P5).
    let ledger = std::fs::read_to_string(folder.with_extension("ledger")).unwrap_or_default();
    let rung: Vec<&str> = ledger.lines().collect();
    if rung.len() != rung.iter().collect::<BTreeSet<_>>().len() {
        return Err("an effect ran twice".to_owned());
    }
    for call in &calls {
        let id = CallId::parse(&text(&call.record, "call_id")).ok_or("no id")?;
        for effect in store.call(id).map_err(said)?.ok_or("no call")?.effects {
            let status = effect["status"].as_str().unwrap_or_default().to_owned();
            let well = text(&call.record, "outcome_status") == "ok";
            if status != "ok" && (well || status != "unknown") {
                return Err(format!("{id}: a tool is {status:?}, ended well: {well}"));
            }
        }
    }
    Ok(())
}
