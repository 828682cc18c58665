//! The store on a disk that breaks: killed at every system call, cut from its power, full, failing (store.md P2, P4, P5,
//! P8, P9, P12; R2, R3, R6, R7).
//!
//! The disk is simulated under the program's own system calls ([`disk`]). Each test has a short form, and a long one that
//! `make soak` asks for with `CADENZA_LONG`.

#![cfg(target_os = "linux")]

#[path = "store_faults/cut.rs"]
mod cut;
#[path = "store_faults/disk.rs"]
mod disk;
#[path = "store_faults/mutation.rs"]
mod mutation;
#[path = "store_faults/places.rs"]
mod places;
#[path = "store_faults/sim.rs"]
mod sim;
#[path = "store_faults/workload.rs"]
mod workload;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use cadenza_core::agent::Agent;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::Options;
use cadenza_core::store::{CallQuery, SqliteStore, Store};
use cadenza_core::tools::Tool;
use cadenza_core::value::{Map, Value};
use cut::{End, Image};
use disk::{Disk, Event, Kind, Plan};
use workload::{Told, check, count};

const VICTIM: &str = "CADENZA_FAULT_VICTIM";
const KILL_AT: &str = "CADENZA_FAULT_KILL_AT";

/// Whether the long form is asked for.
fn long() -> bool {
    std::env::var_os("CADENZA_LONG").is_some()
}

/// Every one of `1..=last` in the long form; else about `some` of them, others in each run of the test.
fn ordinals(last: u64, some: u64) -> Vec<u64> {
    if long() || last <= some {
        return (1..=last).collect();
    }
    let stride = last.div_ceil(some);
    (1 + fastrand::u64(0..stride)..=last).step_by(stride as usize).collect()
}

/// A folder for a store; in memory where the system has such a place, for nothing here depends on a real disk.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// The store's own folder in it; the ledger of effects lies beside it.
fn store_in(folder: &tempfile::TempDir) -> PathBuf {
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    store
}

/// The second process: the canonical workload, or only an opening, on a disk that kills it at a call.
#[test]
fn victim() {
    let Ok(folder) = std::env::var(VICTIM) else { return };
    let kill = std::env::var(KILL_AT).unwrap();
    let (what, at) = kill.split_once(':').unwrap();
    let kill_at = at.parse().ok().filter(|at| *at > 0);
    let disk = Disk::watch(folder.as_ref(), Plan { kill_at, kill_late: what.contains("late"), ..Plan::default() });
    let tell = |line: Told| std::io::stdout().lock().write_all(format!("\n@{line}\n").as_bytes()).unwrap();
    if what.contains("open") {
        drop(SqliteStore::open(&Path::new(&folder).join("app.db")).unwrap());
    } else {
        let number = i64::from(std::process::id());
        workload::run(folder.as_ref(), number, &tell);
    }
    tell(format!("calls {}", disk.calls()));
}

/// Runs the second process; returns what it told before it ended, and whether it was killed.
fn kill(folder: &Path, what: &str, at: u64) -> (Vec<Told>, bool) {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture", "--test-threads", "1"])
        .env(VICTIM, folder)
        .env(KILL_AT, format!("{what}:{at}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = String::new();
    victim.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    let killed = !victim.wait().unwrap().success();
    (output.lines().filter_map(|line| line.strip_prefix('@')).map(str::to_owned).collect(), killed)
}

/// How many calls the second process makes when nobody kills it.
fn calls_of(folder: &Path, what: &str) -> u64 {
    let (told, killed) = kill(folder, what, 0);
    assert!(!killed, "{told:?}");
    told.iter().find_map(|line| line.strip_prefix("calls ")).unwrap().parse().unwrap()
}

#[test]
fn r2_p2_killed_at_every_call_of_the_system_nothing_acknowledged_is_lost() {
    let whole = folder();
    let last = calls_of(&store_in(&whole), "run");
    let (mut kills, mut acknowledged, mut ahead) = (0, 0, 0);
    for what in ["run", "run late"] {
        for at in ordinals(last, 10) {
            let place = folder();
            let store = store_in(&place);
            let (mut told, killed) = kill(&store, what, at);
            assert!(killed || at + 30 > last, "{what} {at} of {last} did not die");
            check(&store, &told).unwrap_or_else(|wrong| panic!("{what} {at} of {last}: {wrong}\n{told:#?}"));
            kills += 1;
            acknowledged += count(&told, "ok");
            ahead += usize::from(count(&told, "labelling") > count(&told, "label"));
            if long() && at % 4 != 0 {
                continue;
            }
            // Another process goes on where it died.
            let (more, killed) = kill(&store, "run", 0);
            assert!(!killed, "after {what} {at}: {more:?}");
            assert_eq!(count(&more, "refused") + count(&more, "closed"), 0, "after {what} {at}: {more:?}");
            told.extend(more);
            check(&store, &told).unwrap_or_else(|wrong| panic!("after {what} {at} of {last}: {wrong}\n{told:#?}"));
        }
    }
    println!(
        "R2: {kills} kills over {last} calls, {acknowledged} acknowledged, 0 lost, {ahead} in the middle of a write"
    );
}

/// P4: recovery may itself be killed any number of times.
#[test]
fn p4_recovery_that_is_killed_at_every_call_ends_what_died_once() {
    // A call that dies between INTENT and RESULT.
    let place = folder();
    let store = store_in(&place);
    let (told, killed) = kill(&store, "tool", 0);
    assert!(killed, "{told:?}");
    let untouched = copied(&store);
    let calls = calls_of(&copied(&untouched.path().join("store")).path().join("store"), "open");
    for at in ordinals(calls, 12) {
        let again = copied(&untouched.path().join("store"));
        let store = again.path().join("store");
        std::fs::copy(place.path().join("store.ledger"), again.path().join("store.ledger")).ok();
        for _ in 0..2 {
            kill(&store, "open", at);
        }
        kill(&store, "open late", at);
        check(&store, &told).unwrap_or_else(|wrong| panic!("recovery killed at {at} of {calls}: {wrong}"));
        let database = rusqlite::Connection::open(store.join("app.db")).unwrap();
        let number = |query: &str| database.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(number("SELECT count(*) FROM open_runs"), 0, "killed at {at}");
        assert_eq!(number("SELECT count(*) FROM runs WHERE status = 'interrupted'"), 1, "killed at {at}");
        assert_eq!(number("SELECT count(*) FROM effects WHERE status = 'unknown'"), 1, "killed at {at}");
    }
    println!("P4: recovery killed at {calls} calls, three times each, ends what died once");
}

/// A copy of a store's files in a folder of its own.
fn copied(store: &Path) -> tempfile::TempDir {
    let place = folder();
    let copy = store_in(&place);
    for file in std::fs::read_dir(store).unwrap().map(|file| file.unwrap().path()) {
        if !file.to_string_lossy().ends_with("-shm") {
            std::fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
        }
    }
    place
}

/// Everything that the canonical workload does to its disk, with what it was told in between.
fn recorded(folder: &Path) -> Vec<Event> {
    let disk = Disk::watch(folder, Plan { trace: true, ..Plan::default() });
    workload::run(folder, 1, &|line| disk.told(line));
    disk.events()
}

/// Ends the machine at events of a recorded run; returns the number of ends and what was wrong with the first few.
fn cuts(events: &[Event], ledger: &Path, ends: &dyn Fn(u64) -> Vec<End>, some: u64) -> (u64, Vec<String>) {
    let (mut image, mut told) = (Image::default(), Vec::new());
    let (mut number, mut wrong) = (0, Vec::new());
    let chosen = ordinals(events.len() as u64, some);
    let lies = ends(0).contains(&End::PowerAndLies);
    for (index, event) in events.iter().enumerate() {
        if let Event::Told(line) = event {
            told.push(line.clone());
        }
        image.see(event, lies);
        if !chosen.contains(&(index as u64 + 1)) {
            continue;
        }
        for end in ends(index as u64) {
            let place = folder();
            let store = store_in(&place);
            image.write(&store, end);
            std::fs::copy(ledger, place.path().join("store.ledger")).ok();
            number += 1;
            if let Err(found) = check(&store, &told) {
                wrong.push(format!("{end:?} after event {index} ({event:?}): {found}"));
            }
        }
    }
    (number, wrong)
}

#[test]
fn r3_p2_when_the_power_goes_nothing_acknowledged_is_lost() {
    let place = folder();
    let store = store_in(&place);
    let events = recorded(&store);
    let ledger = place.path().join("store.ledger");
    let acknowledged =
        events.iter().filter(|event| matches!(event, Event::Told(line) if line.starts_with("ok "))).count();
    assert!(acknowledged >= 12, "{acknowledged}");
    let ends = |index| vec![End::Killed, End::Power, End::PowerSome(index * 2), End::PowerSome(index * 2 + 1)];
    let (number, wrong) = cuts(&events, &ledger, &ends, 40);
    assert!(wrong.is_empty(), "{} of {number}: {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    // A disk that lies about its flushes loses: the simulation can tell.
    let (lied, lost) = cuts(&events, &ledger, &|_| vec![End::PowerAndLies], 20);
    assert!(lost.iter().any(|wrong| wrong.contains("lost")), "no loss on a lying disk: {lost:?}");
    println!(
        "R3: {number} cuts over {} events, {acknowledged} acknowledged, 0 lost; control on a lying disk: {} of {lied} lost",
        events.len(),
        lost.len(),
    );
}

/// Runs the workload on a disk that behaves like `plan`, then goes on when the disk is well again.
fn broken(plan: Plan) -> (Vec<Told>, Arc<Disk>) {
    let place = folder();
    let store = store_in(&place);
    let disk = Disk::watch(&store, plan.clone());
    let told = Mutex::new(Vec::new());
    let tell = |line| told.lock().unwrap().push(line);
    workload::run(&store, 1, &tell);
    disk.behave(Plan::default());
    let so_far = told.lock().unwrap().clone();
    check(&store, &so_far).unwrap_or_else(|wrong| panic!("{plan:?}: {wrong}\n{so_far:#?}"));
    workload::run(&store, 2, &tell);
    let told = told.into_inner().unwrap();
    let after = &told[so_far.len()..];
    assert_eq!(
        count(after, "refused") + count(after, "closed"),
        0,
        "{plan:?}: when the disk is well, all is: {after:#?}"
    );
    check(&store, &told).unwrap_or_else(|wrong| panic!("{plan:?}, and well again: {wrong}\n{told:#?}"));
    (so_far, disk)
}

#[test]
fn r7_p12_a_disk_that_fails_is_said_and_not_asked_again() {
    let place = folder();
    let disk = Disk::watch(&store_in(&place), Plan::default());
    workload::run(&place.path().join("store"), 1, &|_| {});
    let (mut failed, mut refused) = (0, 0);
    for kind in [Kind::Sync, Kind::Write, Kind::Open, Kind::Truncate, Kind::Lock] {
        let last = disk.calls_of(kind);
        // The fourth flush is the one that switches the log on: SQLite does not say when it fails.
        let also = if kind == Kind::Sync { vec![4] } else { Vec::new() };
        for at in ordinals(last, 4).into_iter().chain(also) {
            // Once, and for a while.
            for times in [1, 5] {
                let fail = (at..at + times).map(|at| (kind, at)).collect();
                let (told, disk) = broken(Plan { fail, errno: libc::EIO, ..Plan::default() });
                let mut reused = disk.reused_after_failed_sync();
                // A file that is still empty is made empty again by SQLite itself, before the opening is refused.
                reused.retain(|what| kind != Kind::Sync || at > 4 || what != "flush app.db");
                assert!(reused.is_empty(), "{kind:?} {at}: used after a flush of it failed: {reused:?}\n{told:#?}");
                failed += disk.failures();
                refused += count(&told, "refused") + count(&told, "closed");
            }
        }
    }
    assert!(refused > 0);
    println!("R7: {failed} calls of the system failed, {refused} calls were refused, 0 acknowledged lost");
}

#[test]
fn r6_p12_a_full_disk_is_said_and_left_behind() {
    let (mut full, mut steps) = (0, 0);
    let step = if long() { 4 << 10 } else { 72 << 10 };
    for space in (0..720 << 10).step_by(step) {
        let (told, disk) = broken(Plan { space: Some(space), ..Plan::default() });
        steps += 1;
        let refusals: Vec<_> =
            told.iter().filter(|line| line.starts_with("refused") || line.starts_with("closed")).collect();
        assert!(disk.failures() == 0 || !refusals.is_empty() || space > 64 << 10, "{space}: {told:?}");
        for refusal in refusals {
            assert!(refusal.contains("full") || refusal.contains("No space"), "{space}: {refusal}");
            full += 1;
        }
    }
    assert!(full > 0);
    println!(
        "R6: {steps} sizes of disk, {full} calls refused as full, 0 acknowledged lost, all go on when space returns"
    );
}

/// A unit whose time is up before the disk has it is taken back: it is not stored later either.
#[test]
fn a_call_that_was_refused_for_time_is_not_stored_later() {
    let place = folder();
    let store = store_in(&place);
    let call_timeout = Some(Duration::from_millis(300));
    let options = Options { call_timeout, ..workload::options(&store) };
    let runtime = Runtime::builder().options(options).build().unwrap();
    let foreign = rusqlite::Connection::open(store.join("app.db")).unwrap();
    let calc = runtime.agent("calculator", Default::default()).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = Instant::now();
    let outcome = calc.call("add", vec![1.into(), 2.into()], Default::default()).unwrap();
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    assert!(!outcome.ok());
    foreign.execute_batch("COMMIT").unwrap();
    let kept = runtime.store().unwrap();
    kept.sync().unwrap();
    let query = CallQuery { limit: 9, ..CallQuery::default() };
    let calls = kept.calls(&query).unwrap();
    assert!(calls.iter().all(|call| call.record["outcome_status"].as_str() != Some("ok")), "{calls:?}");
    let again = calc.call("add", vec![1.into(), 2.into()], Default::default()).unwrap();
    assert!(again.ok(), "{:?}", again.error());
    kept.verify().unwrap();
}

/// The third process: makes calls, forks in the middle of them, and both go on with what the parent had opened (R11).
#[test]
fn forking() {
    let Ok(folder) = std::env::var("CADENZA_FORKING") else { return };
    let runtime = Runtime::builder().options(workload::options(folder.as_ref())).build().unwrap();
    let named = || Options { name: Some("tally".into()), ..Options::default() };
    let tally = runtime.agent("counter", named()).unwrap();
    let calc = runtime.agent("calculator", Options::default()).unwrap();
    let rounds = || {
        for number in 0..40 {
            assert!(tally.call("increment", Vec::new(), Map::new()).unwrap().ok());
            assert!(calc.call("add", vec![number.into(), 1.into()], Map::new()).unwrap().ok());
        }
        0
    };
    rounds();
    // SAFETY: the child goes on with this thread alone, as a forked Python worker does, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        cadenza_core::fork::after_fork_in_child();
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(rounds)).unwrap_or(1);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    rounds();
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}

#[test]
fn r11_a_forked_child_shares_no_handle_and_loses_nothing() {
    for round in 0..if long() { 100 } else { 3 } {
        let place = folder();
        let store = store_in(&place);
        let done = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "forking", "--nocapture", "--test-threads", "1"])
            .env("CADENZA_FORKING", &store)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let kept = SqliteStore::open(&store.join("app.db")).unwrap_or_else(|error| panic!("{round}: {error}"));
        assert_eq!(kept.verify().unwrap().calls, 240);
        let state = kept.open_agent("default", "tally", "counter").unwrap();
        assert_eq!(state.context["count"], Value::Int(120));
    }
}

/// The third process again: a tool forks in the middle of a call; the child writes, and lives on when its parent dies.
#[test]
fn forking_in_a_tool() {
    static AGENT: OnceLock<Agent> = OnceLock::new();
    let Ok(folder) = std::env::var("CADENZA_FORKING_TOOL") else { return };
    let stop = Path::new(&folder).with_extension("stop");
    let fork = Tool::new("ring", "Forks.", Value::from_json(r#"{"type":"object"}"#).unwrap(), move |_, _| {
        // SAFETY: the child goes on with this thread alone and leaves by `_exit`.
        if unsafe { libc::fork() } != 0 {
            return Ok(Value::Null);
        }
        cadenza_core::fork::after_fork_in_child();
        let set = AGENT.get().unwrap().set("child", 1.into());
        while set.is_ok() && !stop.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(set.is_err())) };
    });
    let options = Options { tools: Some(vec![Arc::new(fork.unwrap())]), ..workload::options(folder.as_ref()) };
    let runtime = Runtime::builder().options(options).build().unwrap();
    let tally = runtime.agent("counter", Options { name: Some("tally".into()), ..Options::default() }).unwrap();
    AGENT.set(tally.clone()).unwrap();
    assert!(tally.call("ring", vec![1.into()], Map::new()).unwrap().ok());
    let began = Instant::now();
    while tally.runtime_context().get("child").is_none() {
        assert!(began.elapsed() < Duration::from_secs(9), "the child did not get its turn");
        assert!(tally.call("increment", Vec::new(), Map::new()).unwrap().ok(), "its child has its turn");
    }
    // SAFETY: dies as by `kill -9`, while its child lives.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn r11_a_child_holds_nothing_of_a_parent_that_died() {
    let place = folder();
    let store = store_in(&place);
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "forking_in_a_tool", "--nocapture", "--test-threads", "1"])
        .env("CADENZA_FORKING_TOOL", &store)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = parent.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL), "{status}");
    let runtime = Runtime::builder().options(workload::options(&store)).build().unwrap();
    let tally = runtime.agent("counter", Options { name: Some("tally".into()), ..Options::default() }).unwrap();
    let outcome = tally.call("increment", Vec::new(), Map::new()).unwrap();
    assert!(outcome.ok(), "{:?}", outcome.error());
    assert_eq!(tally.runtime_context().get("child"), Some(1.into()));
    let owners = || -> i64 {
        let database = rusqlite::Connection::open(store.join("app.db")).unwrap();
        database.query_row("SELECT count(*) FROM owners", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(owners(), 2, "this process and the child; the parent is known to be dead");
    std::fs::write(store.with_extension("stop"), "").unwrap();
}
