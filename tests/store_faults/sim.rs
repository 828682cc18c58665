//! Faults at the store's border that no disk brings about: any method may fail with any error, before or after it did
//! what it was asked, or late. Agents work over it; what they say must fit what the store took (P1, P2, P5, P8, P12).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cadenza_core::agent::{Agent, UseError};
use cadenza_core::ids::CallId;
use cadenza_core::kernel::StoredRun;
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::{Durability, ErrorType, Outcome, Reason};
use cadenza_core::program::registry::{Key, Saved};
use cadenza_core::provider::{ModelSpec, Scripted};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, StoreOption};
use cadenza_core::store::{
    AgentId, AgentListed, AgentLock, AgentState, CallQuery, Change, Delegate, SqliteStore, Store, StoreError,
    StoredCall, Unit, VerifyReport,
};
use cadenza_core::tools::Tool;
use cadenza_core::value::{Map, Value};
use proptest::prelude::*;

/// A store that fails by a seeded plan.
#[derive(Debug)]
struct SimStore {
    inner: Arc<SqliteStore>,
    random: Mutex<fastrand::Rng>,
    /// Out of 100 calls, so many fail.
    rate: u8,
    well: AtomicBool,
    taken: Mutex<Taken>,
}

/// What the store has taken.
#[derive(Debug, Default)]
struct Taken {
    began: BTreeSet<CallId>,
    /// Numbers that rings were meant for.
    intents: BTreeSet<i64>,
    intents_without_beginning: u32,
    effects_refused: BTreeSet<CallId>,
    ended: BTreeMap<CallId, bool>,
    failures: u32,
}

/// How one call of the store goes.
enum Turn {
    Well,
    Refused(StoreError),
    /// It is done, and nobody hears so.
    DoneUnheard,
    Late(Duration),
}

impl SimStore {
    fn turn(&self) -> Turn {
        if self.well.load(Ordering::Relaxed) {
            return Turn::Well;
        }
        let mut random = self.random.lock().unwrap();
        if random.u8(0..100) >= self.rate {
            return Turn::Well;
        }
        self.taken.lock().unwrap().failures += 1;
        match random.u8(0..12) {
            0 => Turn::DoneUnheard,
            1 | 2 => Turn::Late(Duration::from_millis(random.u64(1..20))),
            other => Turn::Refused(error(other)),
        }
    }

    /// A read.
    fn read<R>(&self, read: impl FnOnce(&SqliteStore) -> Result<R, StoreError>) -> Result<R, StoreError> {
        match self.turn() {
            Turn::Well => read(&self.inner),
            Turn::Refused(error) => Err(error),
            Turn::DoneUnheard => read(&self.inner).and(Err(StoreError::Unanswered)),
            Turn::Late(pause) => {
                std::thread::sleep(pause);
                read(&self.inner)
            }
        }
    }
}

fn error(number: u8) -> StoreError {
    let path = PathBuf::from("sim.db");
    let message = "simulated".to_owned();
    match number % 9 {
        0 => StoreError::Full { path },
        1 => StoreError::Busy { path },
        2 => StoreError::ReadOnly { path, message },
        3 => StoreError::Corrupt { path, message },
        4 => StoreError::Io { path, message },
        5 => StoreError::Detached { path },
        6 => StoreError::Open { path, message },
        7 => StoreError::Tampered { call: String::new(), place: 1, message },
        _ => StoreError::TimedOut,
    }
}

impl Store for SimStore {
    fn location(&self) -> String {
        self.inner.location()
    }

    fn write(&self, unit: Unit, durability: Durability, deadline: Option<Instant>) -> Result<(), StoreError> {
        let turn = self.turn();
        if let Turn::Late(pause) = turn {
            std::thread::sleep(pause);
        }
        if let Turn::Refused(error) = turn {
            let mut taken = self.taken.lock().unwrap();
            for change in &unit {
                if let Change::Effect { run, .. } = change {
                    taken.effects_refused.insert(*run);
                }
            }
            return Err(error);
        }
        self.inner.write(unit.clone(), durability, deadline)?;
        let mut taken = self.taken.lock().unwrap();
        for change in &unit {
            match change {
                Change::Began(began) => drop(taken.began.insert(began.run)),
                Change::Intent(intent) => {
                    taken.intents.insert(intent.args["number"].as_int().unwrap());
                    taken.intents_without_beginning += u32::from(!taken.began.contains(&intent.run));
                }
                Change::Ended { record, .. } => drop(taken.ended.insert(record.call_id(), record.outcome.ok())),
                Change::Effect { .. }
                | Change::Context { .. }
                | Change::Delegate { .. }
                | Change::Kept { .. }
                | Change::State { .. }
                | Change::Deleted { .. }
                | Change::Used { .. } => {}
            }
        }
        if matches!(turn, Turn::DoneUnheard) { Err(StoreError::Unanswered) } else { Ok(()) }
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.read(|store| store.sync())
    }

    fn call(&self, id: CallId) -> Result<Option<StoredCall>, StoreError> {
        self.read(|store| store.call(id))
    }

    fn calls(&self, query: &CallQuery) -> Result<Vec<StoredCall>, StoreError> {
        self.read(|store| store.calls(query))
    }

    fn run(&self, id: CallId) -> Result<Option<StoredRun>, StoreError> {
        self.read(|store| store.run(id))
    }

    fn open_agent(&self, namespace: &str, name: &str, role: &str) -> Result<AgentState, StoreError> {
        self.read(|store| store.open_agent(namespace, name, role))
    }

    fn changed_agent(&self, id: AgentId, version: i64) -> Result<Option<AgentState>, StoreError> {
        self.read(|store| store.changed_agent(id, version))
    }

    fn lock_agent(&self, id: AgentId, deadline: Instant) -> Result<Box<dyn AgentLock>, StoreError> {
        self.read(|store| store.lock_agent(id, deadline))
    }

    fn agents(&self) -> Result<Vec<AgentListed>, StoreError> {
        self.read(|store| store.agents())
    }

    fn delegates(&self, namespace: &str, maker: &str, name: Option<&str>) -> Result<Vec<Delegate>, StoreError> {
        self.read(|store| store.delegates(namespace, maker, name))
    }

    fn programs(&self, key: Option<&Key>) -> Result<Vec<Saved>, StoreError> {
        self.read(|store| store.programs(key))
    }

    fn revision(&self) -> u64 {
        self.inner.revision()
    }

    fn verify_call(&self, id: CallId) -> Result<(), StoreError> {
        self.read(|store| store.verify_call(id))
    }

    fn verify(&self) -> Result<VerifyReport, StoreError> {
        self.read(|store| store.verify())
    }
}

/// What a caller knows of one call.
fn is_refused(outcome: &Outcome) -> bool {
    outcome.error().is_some_and(|error| error.error_type == ErrorType::Other("store".into()))
}

/// The numbers that a tool was asked to ring.
type Rung = Arc<Mutex<Vec<i64>>>;

fn runtime(store: Arc<SimStore>, rung: &Rung) -> Runtime {
    let model = Scripted::respond(|request| {
        Ok(ModelReply::text(match &*request.method {
            "increment" => "context.count = (context.count or 0) + 1 return context.count",
            "ring" => "context.rings = (context.rings or 0) + 1 return tools.ring{number = args[1]}",
            // Goes on where the tool was refused, and asks once more.
            "insist" => {
                "local ok, got = pcall(tools.ring, {number = args[1]}) \
                 if not ok then ok, got = pcall(tools.ring, {number = args[1] + 500}) end return ok"
            }
            _ => "return args[1] + args[2]",
        }))
    });
    let schema = Value::from_json(r#"{"type":"object","properties":{"number":{"type":"integer"}}}"#).unwrap();
    let rung = rung.clone();
    let ring = Tool::new("ring", "Rings once.", schema, move |arguments, _| {
        rung.lock().unwrap().push(arguments["number"].as_int().unwrap());
        Ok(arguments["number"].clone())
    });
    let options = Options {
        model: Some(ModelSpec::Provider(Arc::new(model))),
        store: Some(StoreOption::Store(store)),
        tools: Some(vec![Arc::new(ring.unwrap())]),
        call_timeout: Some(Duration::from_secs(5)),
        execution_repairs: Some(0),
        max_generation_attempts: Some(1),
        ..Options::default()
    };
    Runtime::builder().options(options).build().unwrap()
}

/// One round: agents work over a store that fails by `seed`, then over the same store when it is well.
fn round(seed: u64, rate: u8) -> u32 {
    let place = crate::folder();
    let inner = SqliteStore::open(&place.path().join("app.db")).unwrap();
    let random = Mutex::new(fastrand::Rng::with_seed(seed));
    let store = Arc::new(SimStore { inner, random, rate, well: true.into(), taken: Mutex::default() });
    let rung = Rung::default();
    let runtime = runtime(store.clone(), &rung);
    let named = Options { name: Some("tally".into()), ..Options::default() };
    let tally = runtime.agent("counter", named).unwrap();
    let calc = runtime.agent("calculator", Options::default()).unwrap();
    let mut script = fastrand::Rng::with_seed(!seed);
    let (mut counted, mut set) = (0, None);
    let mut unsure = false;
    store.well.store(false, Ordering::Relaxed);
    for number in 0..30 {
        if number == 24 {
            store.well.store(true, Ordering::Relaxed);
        }
        let began = Instant::now();
        let call = |agent: &Agent, method: &str, args: Vec<Value>| agent.call(method, args, Map::new()).unwrap();
        let (increments, outcome) = match script.u8(0..6) {
            0 | 1 => (1, call(&tally, "increment", Vec::new())),
            2 => (0, call(&tally, "ring", vec![number.into()])),
            3 => (0, call(&tally, "insist", vec![number.into()])),
            4 => (0, call(&calc, "add", vec![number.into(), 1.into()])),
            _ => {
                match tally.set("label", number.into()) {
                    Ok(()) => set = Some(number),
                    Err(UseError::Store(StoreError::Unanswered)) => unsure = true,
                    Err(UseError::Store(_)) => {}
                    Err(other) => panic!("seed {seed}: {other}"),
                }
                continue;
            }
        };
        assert!(began.elapsed() < Duration::from_secs(6), "seed {seed}: a call took {:?}", began.elapsed());
        let metadata = outcome.metadata.as_ref().unwrap();
        let taken = store.taken.lock().unwrap();
        let stored = taken.ended.get(&metadata.call_id).copied();
        if outcome.ok() {
            assert_eq!(stored, Some(true), "seed {seed}: a call is ok and was not stored");
            assert!(
                !taken.effects_refused.contains(&metadata.call_id) || &*outcome.method == "insist",
                "seed {seed}: a tool's answer was refused, and served as done"
            );
            counted += increments;
        } else if is_refused(&outcome) {
            assert_eq!(metadata.reason, Reason::PersistenceFailed);
            assert_eq!(metadata.durability, Durability::Memory);
            let unknown = outcome.error().unwrap().message.contains("not known");
            assert!(stored.is_none() || unknown, "seed {seed}: refused, and taken all the same");
            unsure |= unknown;
            if stored == Some(true) {
                counted += increments;
            }
        }
        assert_eq!(taken.intents_without_beginning, 0, "seed {seed}: an intent without its beginning");
    }
    let taken = store.taken.lock().unwrap();
    for number in rung.lock().unwrap().iter() {
        assert!(taken.intents.contains(number), "seed {seed}: a tool ran without its intent: {number}");
    }
    drop(taken);
    // What is remembered here is what the store has, and that is what was said.
    let listed = store.inner.agents().unwrap();
    let kept = store.inner.open_agent(&listed[0].namespace, "tally", "counter").unwrap().context;
    assert_eq!(tally.runtime_context().snapshot(), kept, "seed {seed}: memory and store differ");
    assert_eq!(kept.get("count").and_then(Value::as_int).unwrap_or(0), counted, "seed {seed}");
    assert!(unsure || kept.get("label").and_then(Value::as_int) == set, "seed {seed}: {kept:?}, set {set:?}");
    store.inner.verify().unwrap();
    for call in store.inner.calls(&CallQuery { limit: usize::MAX, ..CallQuery::default() }).unwrap() {
        let id = CallId::parse(call.record["call_id"].as_str().unwrap()).unwrap();
        for effect in store.inner.call(id).unwrap().unwrap().effects {
            let status = effect["status"].as_str().unwrap();
            assert!(["ok", "unknown"].contains(&status), "seed {seed}: a tool of an ended call is {status:?}");
        }
    }
    store.taken.lock().unwrap().failures
}

#[test]
fn p8_p12_agents_over_a_store_that_fails_say_what_it_took() {
    let cases = if crate::long() { 3_000 } else { 32 };
    let failures = Mutex::new(0);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let seeds = (any::<u64>(), prop_oneof![Just(5_u8), Just(30), Just(80)]);
    proptest::test_runner::TestRunner::new(config)
        .run(&seeds, |(seed, rate)| {
            *failures.lock().unwrap() += round(seed, rate);
            Ok(())
        })
        .unwrap();
    println!(
        "store trait: {cases} seeds, {} failures of its methods, 0 broken promises",
        failures.into_inner().unwrap()
    );
}
