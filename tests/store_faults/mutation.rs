//! Bits that flip and files that are cut: nothing altered is served silently (P9, R8).
//!
//! A mutation is found when the store refuses to open, or says at `verify` what is wrong, or refuses to read. It is
//! harmless when everything that can be read is as it was. Anything else is a fault of the store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cadenza_core::ids::CallId;
use cadenza_core::store::{CallQuery, SqliteStore, Store, StoreError};
use cadenza_core::value::Value;

use crate::workload;

/// Everything that can be read of a store, as text; what only counts or dates is left out.
fn served(store: &dyn Store) -> Result<String, StoreError> {
    let mut text = String::new();
    for call in store.calls(&CallQuery { limit: usize::MAX, ..CallQuery::default() })? {
        text += &format!("{} {}\n", call.gseq, Value::Map(call.record.clone()).to_json());
        let Some(id) = call.record["call_id"].as_str().and_then(CallId::parse) else { continue };
        if let Some(one) = store.call(id)? {
            text += &format!("{:?}\n", one.effects);
        }
        if let Some(run) = store.run(id)? {
            text += &format!("{:?} {}\n", run.head, run.length);
        }
    }
    for agent in store.agents()? {
        let state = store.open_agent(&agent.namespace, &agent.name, &agent.role)?;
        text += &format!("{agent:?} {}\n", Value::Map(state.context).to_json());
    }
    for saved in store.programs(None)? {
        text += &format!("{:?} {:?} {:?} {:?} {:?}\n", saved.key, saved.code, saved.inputs, saved.pins, saved.state);
    }
    Ok(text)
}

/// The files of a store by their names' endings.
type Files = BTreeMap<String, Vec<u8>>;

fn files(folder: &Path) -> Files {
    let endings = ["", "-wal", "-anchors"];
    let read = |ending: &str| Some((ending.to_owned(), std::fs::read(folder.join(format!("app.db{ending}"))).ok()?));
    endings.into_iter().filter_map(read).collect()
}

/// What became of one mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Refused,
    Located,
    Found,
    Harmless,
}

fn judge(files: &Files, truth: &str) -> Result<Fate, String> {
    let place = crate::folder();
    let path = place.path().join("app.db");
    for (ending, bytes) in files {
        std::fs::write(place.path().join(format!("app.db{ending}")), bytes).unwrap();
    }
    let store: Arc<SqliteStore> = match SqliteStore::open(&path) {
        Ok(store) => store,
        Err(_) => return Ok(Fate::Refused),
    };
    match store.verify() {
        Ok(_) => {}
        Err(StoreError::Tampered { .. }) => return Ok(Fate::Located),
        Err(_) => return Ok(Fate::Found),
    }
    match served(&*store) {
        Err(_) => Ok(Fate::Found),
        Ok(text) if text == truth => Ok(Fate::Harmless),
        Ok(text) => {
            let differs = truth.lines().zip(text.lines()).find(|(was, is)| was != is);
            let (was, is) = differs.unwrap_or(("", "something is missing at the end"));
            Err(format!("was: {was}\nis:  {is}"))
        }
    }
}

/// One of the files, changed in one place.
fn mutated(original: &Files, random: &mut fastrand::Rng) -> (Files, String) {
    let mut files = original.clone();
    let names: Vec<String> = files.keys().cloned().collect();
    let name = random.choice(&names).unwrap().clone();
    let bytes = files.get_mut(&name).unwrap();
    let at = random.usize(0..bytes.len());
    let what = match random.u8(0..8) {
        0 => {
            bytes.truncate(at);
            format!("app.db{name} cut at {at}")
        }
        1 => {
            let sector = at / 512 * 512;
            let end = (sector + 512).min(bytes.len());
            bytes[sector..end].fill(0);
            format!("app.db{name} zeros at {sector}")
        }
        2 => {
            bytes[at] = random.u8(..);
            format!("app.db{name} byte {at}")
        }
        _ => {
            bytes[at] ^= 1 << random.u8(0..8);
            format!("app.db{name} bit in byte {at}")
        }
    };
    (files, what)
}

#[test]
fn r8_p9_nothing_altered_is_served_silently() {
    let place = crate::folder();
    let folder = crate::store_in(&place);
    workload::run(&folder, 1, &|_| {});
    let closed = files(&folder);
    // As a killed process leaves it: with a log. Everything is anchored once nothing more happens.
    let store = SqliteStore::open(&folder.join("app.db")).unwrap();
    workload::run(&folder, 2, &|_| {});
    std::thread::sleep(std::time::Duration::from_millis(300));
    let killed = files(&folder);
    assert!(killed["-wal"].len() > 100_000, "{}", killed["-wal"].len());
    let truth = |files: &Files| {
        let place = crate::folder();
        for (ending, bytes) in files {
            std::fs::write(place.path().join(format!("app.db{ending}")), bytes).unwrap();
        }
        served(&*SqliteStore::open(&place.path().join("app.db")).unwrap()).unwrap()
    };
    drop(store);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut fates: BTreeMap<Fate, u32> = BTreeMap::new();
    let mut silent = Vec::new();
    let number = if crate::long() { 5_000 } else { 90 };
    for original in [&closed, &killed] {
        let truth = truth(original);
        for _ in 0..number {
            let (files, what) = mutated(original, &mut random);
            match judge(&files, &truth) {
                Ok(fate) => *fates.entry(fate).or_default() += 1,
                Err(how) => silent.push(format!("{what}\n{how}")),
            }
        }
    }
    println!("R8: {} mutations, seed {seed}: {fates:?}, {} silent", 2 * number, silent.len());
    assert!(
        silent.is_empty(),
        "seed {seed}: {} silent:\n{}",
        silent.len(),
        silent[..silent.len().min(12)].join("\n\n")
    );
}

/// What is no part of the chain of calls has seals of its own.
#[test]
fn p9_context_programs_and_tool_calls_are_served_as_written_or_not_at_all() {
    for (change, what) in [
        ("UPDATE agent_context SET value = '7' WHERE key = 'count'", "the context of agent number 1 was changed"),
        ("DELETE FROM agent_context WHERE key = 'count'", "the context of agent number 1 was changed"),
        ("INSERT INTO agent_context VALUES (1, 'rich', 'true')", "the context of agent number 1 was changed"),
        ("UPDATE agents SET version = version + 1", "the context of agent number 1 was changed"),
        ("UPDATE agents SET sum = NULL", "the context of agent number 1 was changed"),
        ("UPDATE programs SET state = 'pinned'", "was changed"),
        ("UPDATE programs SET inputs = '[1]'", "was changed"),
        ("UPDATE programs SET seal = NULL", "was changed"),
        ("UPDATE codes SET code = 'return 7'", "was changed"),
        ("UPDATE effects SET result = '7'", "was changed"),
        ("UPDATE effects SET status = 'ok', args = '{}'", "was changed"),
        ("UPDATE effects SET seal = NULL", "was changed"),
    ] {
        let place = crate::folder();
        let folder = crate::store_in(&place);
        let path = folder.join("app.db");
        workload::run(&folder, 1, &|_| {});
        let database = rusqlite::Connection::open(&path).unwrap();
        assert!(database.execute(change, []).unwrap() > 0, "{change}");
        drop(database);
        // An agent that went back to an earlier state is refused at once; everything else when it is looked at.
        let store = match SqliteStore::open(&path) {
            Ok(store) => store,
            Err(StoreError::Corrupt { .. }) => continue,
            Err(other) => panic!("{change}: {other}"),
        };
        let found = store.verify().unwrap_err();
        let said = found.to_string();
        assert!(matches!(found, StoreError::Corrupt { .. } | StoreError::Tampered { .. }), "{change}: {found:?}");
        assert!(said.contains(what) || said.contains("not the one that ran"), "{change}: {said}");
        match change.split(' ').find(|word| ["agent_context", "agents", "programs", "codes", "effects"].contains(word))
        {
            Some("agent_context" | "agents") => {
                assert!(matches!(store.open_agent("default", "tally", "counter"), Err(StoreError::Corrupt { .. })));
            }
            Some("programs" | "codes") => assert!(store.programs(None).unwrap().is_empty(), "{change}"),
            Some(_) | None => {
                let query = CallQuery { limit: 99, method: Some("ring".into()), ..CallQuery::default() };
                let id = store.calls(&query).unwrap()[0].record["call_id"].as_str().and_then(CallId::parse).unwrap();
                assert!(matches!(store.call(id), Err(StoreError::Corrupt { .. })), "{change}");
            }
        }
    }
}

#[test]
fn p9_an_agent_that_was_rolled_back_is_refused() {
    let place = crate::folder();
    let folder = crate::store_in(&place);
    workload::run(&folder, 1, &|_| {});
    let before = std::fs::read(folder.join("app.db")).unwrap();
    {
        let runtime = cadenza_core::runtime::Runtime::builder().options(workload::options(&folder)).build().unwrap();
        let named = cadenza_core::runtime::options::Options { name: Some("tally".into()), ..Default::default() };
        runtime.agent("counter", named).unwrap().set("label", 99.into()).unwrap();
    }
    SqliteStore::open(&folder.join("app.db")).unwrap().verify().unwrap();
    assert!(!folder.join("app.db-wal").exists(), "a closed store is one file, beside its locks and anchors");
    std::fs::write(folder.join("app.db"), before).unwrap();
    let refused = SqliteStore::open(&folder.join("app.db")).unwrap_err();
    assert!(refused.to_string().contains("agent number 1 is not at the version"), "{refused}");
}
