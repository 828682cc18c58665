//! Where a store lies and who else is there: read-only places, links, files that are moved or replaced while they are
//! open, other processes that open, make and write the same store (P7, P11, P12; R9, R14).

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cadenza_core::agent::{Agent, UseError};
use cadenza_core::outcome::Outcome;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, StoreOption};
use cadenza_core::store::{CallQuery, SqliteStore, Store, StoreError};
use cadenza_core::value::{Map, Value};

use crate::disk::{Disk, Kind, Plan};
use crate::{folder, long, store_in, workload};

const TOGETHER: &str = "CADENZA_TOGETHER";

fn runtime(store: &Path) -> Runtime {
    let options =
        Options { store: Some(StoreOption::Path(store.to_owned())), ..workload::options(store.parent().unwrap()) };
    Runtime::builder().options(options).build().unwrap()
}

fn tally(runtime: &Runtime) -> Agent {
    runtime.agent("counter", Options { name: Some("tally".into()), ..Options::default() }).unwrap()
}

fn increment(agent: &Agent) -> Outcome {
    agent.call("increment", Vec::new(), Map::new()).unwrap()
}

fn store_error(outcome: &Outcome) -> &str {
    let error = outcome.error().expect("it cannot be stored");
    &error.message
}

#[test]
fn p12_a_store_that_may_not_be_written_is_said_to_be_so() {
    let place = folder();
    let store = store_in(&place);
    drop(SqliteStore::open(&store.join("app.db")).unwrap());
    let fail = (1..=60).map(|at| (Kind::Open, at)).collect();
    let disk = Disk::watch(&store, Plan { fail, errno: libc::EACCES, ..Plan::default() });
    let error = SqliteStore::open(&store.join("app.db")).unwrap_err();
    assert!(disk.failures() > 0);
    assert!(matches!(error, StoreError::ReadOnly { .. } | StoreError::Open { .. }), "{error:?}");
    disk.behave(Plan::default());
    SqliteStore::open(&store.join("app.db")).unwrap().verify().unwrap();
}

#[test]
fn a_store_is_a_file_and_says_so() {
    let place = folder();
    let refused = |path: &Path| SqliteStore::open(path).unwrap_err().to_string();
    assert!(refused(Path::new("/dev/null")).contains("it is no file"), "{}", refused(Path::new("/dev/null")));
    std::fs::create_dir(place.path().join("app.db")).unwrap();
    assert!(refused(&place.path().join("app.db")).contains("it is a folder"));
}

/// Two names of one file are one store: one log, one lock per agent, one file of anchors.
#[test]
fn p7_links_and_other_spellings_lead_to_the_same_store() {
    let place = folder();
    let store = store_in(&place);
    let path = store.join("app.db");
    let first = SqliteStore::open(&path).unwrap();
    let link = place.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let folder_link = place.path().join("elsewhere");
    std::os::unix::fs::symlink(&store, &folder_link).unwrap();
    let spellings: [PathBuf; 4] =
        [path.clone(), store.join("../store/./app.db"), link.clone(), folder_link.join("app.db")];
    for spelling in &spellings {
        assert!(Arc::ptr_eq(&first, &SqliteStore::open(spelling).unwrap()), "{}", spelling.display());
    }
    assert!(!place.path().join("link.db-locks").exists());
    // A link that leads nowhere yet makes the file that it names.
    let dangling = place.path().join("dangling.db");
    std::os::unix::fs::symlink(place.path().join("made.db"), &dangling).unwrap();
    drop(SqliteStore::open(&dangling).unwrap());
    assert!(place.path().join("made.db").is_file());
}

#[test]
fn p12_a_file_that_was_moved_or_replaced_takes_no_write() {
    for what in ["deleted", "moved", "replaced", "log deleted"] {
        let place = folder();
        let store = store_in(&place);
        let path = store.join("app.db");
        let runtime = runtime(&path);
        let agent = tally(&runtime);
        assert!(increment(&agent).ok());
        let (aside, log) = (store.join("aside.db"), store.join("app.db-wal"));
        match what {
            "deleted" => std::fs::remove_file(&path).unwrap(),
            "moved" => std::fs::rename(&path, &aside).unwrap(),
            "replaced" => {
                std::fs::copy(&path, &aside).unwrap();
                std::fs::rename(&aside, &path).unwrap();
            }
            _ => std::fs::remove_file(&log).unwrap(),
        }
        let refused = increment(&agent);
        assert!(store_error(&refused).contains("was moved, deleted or replaced"), "{what}: {:?}", refused.error());
        let set = agent.set("label", 1.into()).unwrap_err();
        assert!(matches!(set, UseError::Store(StoreError::Detached { .. })), "{what}: {set}");
        assert!(matches!(runtime.store().unwrap().verify(), Err(StoreError::Detached { .. })), "{what}");
        assert_eq!(agent.runtime_context().get("label"), None, "{what}");
        if what == "moved" {
            // Put back, it is the same store again.
            std::fs::rename(&aside, &path).unwrap();
            assert!(increment(&agent).ok());
            assert_eq!(agent.runtime_context().get("count"), Some(2.into()));
        }
        drop((agent, runtime));
        match SqliteStore::open(&path) {
            Ok(again) => drop(again.verify().unwrap()),
            // What the anchors speak of is not there.
            Err(StoreError::Tampered { .. } | StoreError::Corrupt { .. }) => assert_ne!(what, "moved"),
            Err(other) => panic!("{what}: {other}"),
        }
    }
}

#[test]
fn opening_waits_for_a_foreign_writer() {
    let place = folder();
    let path = store_in(&place).join("app.db");
    drop(SqliteStore::open(&path).unwrap());
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let opened = std::thread::spawn(move || SqliteStore::open(&path).map(drop));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!opened.is_finished());
    foreign.execute_batch("COMMIT").unwrap();
    opened.join().unwrap().unwrap();
}

/// One of several processes: opens the store and makes its calls.
#[test]
fn together() {
    let Ok(path) = std::env::var(TOGETHER) else { return };
    let number: i64 = std::env::var("CADENZA_NUMBER").unwrap().parse().unwrap();
    let runtime = runtime(path.as_ref());
    let (agent, calc) = (tally(&runtime), runtime.agent("calculator", Options::default()).unwrap());
    for step in 0..number {
        assert!(increment(&agent).ok());
        // Few keys: everybody reads all of them whenever somebody wrote one.
        agent.set(&format!("key_{}_{}", std::process::id(), step % 4), step.into()).unwrap();
        assert!(calc.call("add", vec![step.into(), 1.into()], Map::new()).unwrap().ok());
    }
}

fn start_together(path: &Path, number: i64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "places::together", "--nocapture", "--test-threads", "1"])
        .env(TOGETHER, path)
        .env("CADENZA_NUMBER", number.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn end_together(children: Vec<Child>) {
    for child in children {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// R9: no update is lost, of context, counters or calls, by any number of processes.
#[test]
fn r9_p11_processes_on_one_agent_lose_no_update() {
    let (processes, number) = if long() { (16, 600) } else { (4, 12) };
    let place = folder();
    let path = store_in(&place).join("app.db");
    let began = Instant::now();
    end_together((0..processes).map(|_| start_together(&path, number)).collect());
    let elapsed = began.elapsed();
    let store = SqliteStore::open(&path).unwrap();
    let calls = store.verify().unwrap().calls;
    assert_eq!(calls, 2 * processes * number);
    let state = store.open_agent("default", "tally", "counter").unwrap();
    assert_eq!(state.context["count"], Value::Int(processes * number));
    assert_eq!(state.context.len() as i64, 1 + 4 * processes);
    let last = |step: i64| state.context.values().filter(|value| **value == Value::Int(step)).count() as i64;
    assert!((number - 4..number).all(|step| last(step) >= processes), "the last write of each process to each key");
    assert_eq!(state.version, 2 * processes * number);
    let listed = store.calls(&CallQuery { limit: usize::MAX, ..CallQuery::default() }).unwrap();
    let reused = listed.iter().filter(|call| call.record["program_source"].as_str() == Some("reused")).count() as u64;
    let uses: u64 = store.programs(None).unwrap().iter().map(|saved| saved.uses).sum();
    assert_eq!(uses, reused, "every use is counted once");
    println!("R9: {processes} processes, {} increments and {calls} calls in {elapsed:.1?}, 0 lost", processes * number);
}

/// Processes that make the store, or take it over from an older version, at the same moment.
#[test]
fn processes_that_make_a_store_at_once_agree() {
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/store/version_1.db");
    for round in 0..if long() { 60 } else { 4 } {
        let place = folder();
        let path = store_in(&place).join("app.db");
        let before = if round % 2 == 0 {
            std::fs::copy(&old, &path).unwrap();
            7
        } else {
            0
        };
        end_together((0..5).map(|_| start_together(&path, 1)).collect());
        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(store.verify().unwrap().calls, before + 10);
        let state = store.open_agent("default", "tally", "counter").unwrap();
        assert_eq!(state.context["count"], Value::Int(5));
    }
}

/// R14: many calls that died with their process.
#[test]
fn r14_p4_a_thousand_open_runs_are_ended_at_once() {
    let place = folder();
    let path = store_in(&place).join("app.db");
    drop(SqliteStore::open(&path).unwrap());
    let database = rusqlite::Connection::open(&path).unwrap();
    database
        .execute_batch(
            "INSERT INTO owners(owner, pid, started) VALUES (1000, 1, 1);
             WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 1000)
             INSERT INTO open_runs SELECT randomblob(16), 1000, '{\"role\":\"counter\",\"method\":\"count\"}', zeroblob(32) FROM number;",
        )
        .unwrap();
    drop(database);
    let began = Instant::now();
    let store = SqliteStore::open(&path).unwrap();
    let elapsed = began.elapsed();
    let calls = store.calls(&CallQuery { limit: usize::MAX, ..CallQuery::default() }).unwrap();
    assert_eq!(calls.len(), 1_000);
    assert!(calls.iter().all(|call| call.record["agent_outcome"].as_str() == Some("INTERRUPTED")));
    assert_eq!(store.verify().unwrap().calls, 1_000);
    drop(store);
    assert_eq!(SqliteStore::open(&path).unwrap().verify().unwrap().calls, 1_000, "once, and not again");
    println!("R14: opened with 1,000 open runs in {elapsed:.1?}");
}
