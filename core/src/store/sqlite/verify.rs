//! Is everything still what was written? Every byte of a call is under its seal, every seal is in the next one, and the
//! end of the chain is anchored outside the file (P9).

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};

use super::anchors::{self, Anchor};
use super::row::{HASHES, Sealed, digest, run_bytes, run_id};
use super::shared::Shared;
use super::{failure, read, scan, state};
use crate::canonical::HASH_OF_NULL;
use crate::contract::ExecutionContract;
use crate::ids::{CallId, Digest};
use crate::kernel::StoredError;
use crate::kernel::transcript::Chain;
use crate::store::{StoreError, VerifyReport};
use crate::value::Value;

/// Contracts, programs and shared parts that are remembered as whole, of each kind.
const CHECKED: usize = 4_096;

/// At opening: the newest anchors must be in the file. A cut or rolled back file is not served silently.
pub(super) fn check_newest_anchors(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    check_anchors(connection, path, anchors::newest(path))
}

fn check_anchors(connection: &Connection, path: &Path, anchors: Vec<Anchor>) -> Result<(), StoreError> {
    anchors.into_iter().try_for_each(|anchor| match anchor {
        Anchor::Call { gseq, seal } => check_call(connection, path, gseq, &seal),
        Anchor::Context { agent, version, sum } => check_context(connection, path, agent, (version, &sum)),
    })
}

fn check_call(connection: &Connection, path: &Path, gseq: i64, seal: &Digest) -> Result<(), StoreError> {
    let found = connection
        .query_row("SELECT seal FROM runs WHERE gseq = ?1", [gseq], |row| row.get::<_, Vec<u8>>(0))
        .optional()
        .map_err(|error| failure(&error, path))?;
    match found {
        Some(found) if digest(&found) == *seal => Ok(()),
        Some(_) => Err(tampered(None, gseq, "its seal is not the one that was anchored".to_owned())),
        None => {
            let message = "it was anchored and is missing: the store was cut or rolled back".to_owned();
            Err(tampered(None, gseq, message))
        }
    }
}

fn check_context(
    connection: &Connection,
    path: &Path,
    agent: i64,
    (version, sum): (i64, &Digest),
) -> Result<(), StoreError> {
    let found = connection
        .query_row("SELECT version, sum FROM agents WHERE agent = ?1", [agent], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<Vec<u8>>>(1)?.unwrap_or_default()))
        })
        .optional()
        .map_err(|error| failure(&error, path))?;
    match found {
        Some((found, _)) if found > version => Ok(()),
        Some((found, stored)) if found == version && digest(&stored) == *sum => Ok(()),
        Some(_) | None => {
            let what = format!("agent number {agent} is not at the version {version} that was anchored");
            Err(StoreError::Corrupt {
                path: path.to_owned(),
                message: format!("{what}: the store was cut or rolled back"),
            })
        }
    }
}

/// One ended call with what its seal needs.
struct Place {
    gseq: i64,
    run: CallId,
    agent: Option<i64>,
    seal: Digest,
    sealed: Sealed,
}

impl Place {
    const SELECT: &str = "SELECT gseq, run, agent, seal";

    fn read(connection: &Connection, row: &Row<'_>, checked: &mut Checked) -> rusqlite::Result<Self> {
        Ok(Self {
            gseq: row.get(0)?,
            run: run_id(row.get_ref(1)?.as_blob()?),
            agent: row.get(2)?,
            seal: digest(row.get_ref(3)?.as_blob()?),
            sealed: Sealed::read(row, 4, &mut |hash| checked.shared(connection, hash))?,
        })
    }

    /// Checks the call behind `previous`, the seal of the call before it. Returns its number of entries.
    fn check(
        &self,
        connection: &Connection,
        path: &Path,
        previous: &Digest,
        checked: &mut Checked,
    ) -> Result<usize, StoreError> {
        let failed = |error: rusqlite::Error| failure(&error, path);
        let wrong = |message: String| tampered(Some(self.run), self.gseq, message);
        if self.sealed.length() > 0 {
            let contract = checked.contract(connection, &self.sealed.contract).map_err(failed)?;
            let contract = contract.map_err(|error| wrong(error.to_string()))?;
            if !self.transcript_fits(&contract) {
                // A closer look names the entry and the component.
                let run = self.sealed.run((*contract).clone()).map_err(|error| wrong(error.to_string()))?;
                run.verify().map_err(|divergence| wrong(divergence.to_string()))?;
                return Err(wrong("its transcript was changed".to_owned()));
            }
        }
        if self.sealed.shared.as_ref().is_some_and(|shared| !checked.is_whole(shared)) {
            return Err(wrong("what it shares with other calls was changed".to_owned()));
        }
        if let Some(code) = &self.sealed.code
            && !checked.code(connection, code).map_err(failed)?
        {
            return Err(wrong("its program is not the one that ran".to_owned()));
        }
        if self.sealed.place.is_none() {
            // Seals of version 1 hold the record, and not what is repeated beside it.
            let record = self.sealed.record();
            let says = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default();
            if says("role") != self.sealed.role || says("method") != self.sealed.method {
                return Err(wrong("`role` or `method` does not fit its record".to_owned()));
            }
            if self.sealed.tape.is_some() || self.sealed.shared.is_some() {
                return Err(wrong("a call of version 1 has neither a tape nor a shared part".to_owned()));
            }
        }
        if self.sealed.seal(previous, self.gseq, self.run, self.agent) != self.seal {
            return Err(wrong("its record, its place or the call before it was changed".to_owned()));
        }
        Ok(self.sealed.length())
    }

    /// Whether the transcript is the one whose head and length the record has. Hashes the stored texts as they are: they
    /// are canonical, so that any other text of the same meaning is a fault too.
    fn transcript_fits(&self, contract: &ExecutionContract) -> bool {
        let Ok(header) = self.sealed.header() else { return false };
        if header.model_profile_id != *contract.model_profile_id() || contract.contract_hash() != self.sealed.contract {
            return false;
        }
        let mut chain = Chain::new(&header);
        let length = match &self.sealed.shared {
            None => self.whole_entries(&mut chain),
            Some(shared) => self.own_entries(shared, &mut chain),
        };
        let (mut head, mut recorded) = (None, None);
        for record in std::iter::once(&self.sealed.record).chain(self.sealed.shared.iter().map(|shared| &shared.record))
        {
            let read = scan::fields(record, |(name, value)| {
                match name {
                    "transcript_head" if head.is_none() => head = Some(value),
                    "transcript_length" if recorded.is_none() => recorded = Some(value),
                    _ => {}
                }
                Some(())
            });
            if read.is_none() {
                return false;
            }
        }
        let head = head.and_then(|head| Digest::parse(head.trim_matches('"')));
        let recorded = recorded.and_then(|length| length.parse::<usize>().ok());
        head == Some(chain.head()) && recorded.is_some() && recorded == length
    }

    /// Walks the chain over entries that are stored whole; returns their number if every hash is the stored one.
    fn whole_entries(&self, chain: &mut Chain<'_>) -> Option<usize> {
        let mut hashes = self.sealed.hashes.chunks_exact(HASHES);
        let mut index = 0;
        scan::items(&self.sealed.entries, |entry| {
            let (stored, mut parts) = (hashes.next()?, [""; 4]);
            scan::fields(entry, |(name, value)| {
                let part = ["action", "at_ms", "result", "state"].iter().position(|known| *known == name)?;
                parts[part] = value;
                Some(())
            })?;
            let [action, _, result, state] = parts;
            index += 1;
            let (action, result) = (action_hash(action, index)?, hash_of(result));
            let linked = chain.push_hashes(state.strip_prefix('"')?.strip_suffix('"')?, &action, &result);
            let same =
                [action, result, linked].iter().zip(stored.chunks_exact(32)).all(|(own, stored)| own.0 == *stored);
            same.then_some(())
        })?;
        (hashes.next().is_none() && self.sealed.hashes.len() == index * HASHES).then_some(index)
    }

    /// The same of a call that shares its entries: the shared part is checked on its own.
    fn own_entries(&self, shared: &Shared, chain: &mut Chain<'_>) -> Option<usize> {
        let mut results = Vec::with_capacity(8);
        scan::fields(&self.sealed.entries, |(name, value)| match name {
            "at" => Some(()),
            "results" => scan::items(value, |result| {
                results.push(hash_of(result));
                Some(())
            }),
            _ => None,
        })?;
        let stored = self.sealed.hashes.chunks_exact(32);
        (stored.remainder().is_empty() && stored.map(digest).eq(results.iter().copied())).then_some(())?;
        let mut results = results.iter();
        let mut index = 0;
        scan::items(&shared.entries, |entry| {
            let (mut result, mut state) = (None, None);
            scan::fields(entry, |(name, value)| {
                match name {
                    "result" => result = Some(&HASH_OF_NULL),
                    "state" => state = value.strip_prefix('"')?.strip_suffix('"'),
                    _ => {}
                }
                Some(())
            })?;
            let result = result.or_else(|| results.next())?;
            chain.push_hashes(state?, &shared.action(index), result);
            index += 1;
            Some(())
        })?;
        (results.next().is_none() && index == shared.length()).then_some(index)
    }
}

/// The hash of an action's text, if it says the place that it has.
fn action_hash(text: &str, place: usize) -> Option<Digest> {
    let mut seq = None;
    scan::fields(text, |(name, value)| {
        if name == "seq" {
            seq = value.parse::<usize>().ok();
        }
        Some(())
    })?;
    (seq == Some(place)).then(|| hash_of(text))
}

fn hash_of(text: &str) -> Digest {
    if text == "null" { HASH_OF_NULL } else { Digest::of_bytes(text.as_bytes()) }
}

/// What was found to be whole already: many calls name the same contract, program and shared part.
#[derive(Default)]
struct Checked {
    contracts: HashMap<Digest, Arc<ExecutionContract>>,
    codes: HashSet<Digest>,
    shared: HashMap<Digest, Arc<Shared>>,
    whole: HashSet<Digest>,
}

impl Checked {
    fn contract(
        &mut self,
        connection: &Connection,
        hash: &Digest,
    ) -> rusqlite::Result<Result<Arc<ExecutionContract>, StoredError>> {
        if let Some(contract) = self.contracts.get(hash) {
            return Ok(Ok(contract.clone()));
        }
        if self.contracts.len() == CHECKED {
            self.contracts.clear();
        }
        Ok(read::contract(connection, hash)?.map(|contract| {
            let contract = Arc::new(contract);
            self.contracts.insert(*hash, contract.clone());
            contract
        }))
    }

    fn code(&mut self, connection: &Connection, hash: &Digest) -> rusqlite::Result<bool> {
        if self.codes.contains(hash) {
            return Ok(true);
        }
        let text: Option<String> = connection
            .prepare_cached("SELECT code FROM codes WHERE hash = ?1")?
            .query_row([hash.0], |row| row.get(0))
            .optional()?;
        let whole = text.is_some_and(|text| Digest::of_bytes(text.as_bytes()) == *hash);
        if whole {
            if self.codes.len() == CHECKED {
                self.codes.clear();
            }
            self.codes.insert(*hash);
        }
        Ok(whole)
    }

    fn shared(&mut self, connection: &Connection, hash: &Digest) -> rusqlite::Result<Arc<Shared>> {
        if let Some(shared) = self.shared.get(hash) {
            return Ok(shared.clone());
        }
        if self.shared.len() == CHECKED {
            self.shared.clear();
            self.whole.clear();
        }
        let shared = read::shared(connection, hash)?;
        self.shared.insert(*hash, shared.clone());
        Ok(shared)
    }

    fn is_whole(&mut self, shared: &Shared) -> bool {
        self.whole.contains(&shared.hash) || (shared.is_whole() && self.actions_fit(shared))
    }

    /// Whether the stored hashes are those of the shared actions, and each action says its place.
    fn actions_fit(&mut self, shared: &Shared) -> bool {
        let mut index = 0;
        let fit = scan::items(&shared.entries, |entry| {
            let mut action = None;
            scan::fields(entry, |(name, value)| {
                if name == "action" {
                    action = Some(value);
                }
                Some(())
            })?;
            let same = action_hash(action?, index + 1)? == shared.action(index);
            index += 1;
            same.then_some(())
        });
        if fit.is_some() {
            self.whole.insert(shared.hash);
        }
        fit.is_some()
    }
}

/// One call and its place behind the one before it.
pub(super) fn call(connection: &Connection, path: &Path, id: CallId) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| failure(&error, path);
    let mut checked = Checked::default();
    let place = connection
        .prepare_cached(&format!("{}, {} FROM runs WHERE run = ?1", Place::SELECT, Sealed::COLUMNS))
        .and_then(|mut statement| {
            statement.query_row([run_bytes(id)], |row| Place::read(connection, row, &mut checked)).optional()
        })
        .map_err(failed)?;
    let Some(place) = place else { return Err(tampered(Some(id), 0, "there is no such call".to_owned())) };
    let previous = connection
        .prepare_cached("SELECT seal FROM runs WHERE gseq = ?1")
        .and_then(|mut statement| statement.query_row([place.gseq - 1], |row| row.get::<_, Vec<u8>>(0)).optional())
        .map_err(failed)?;
    let previous = previous.map_or(Digest([0; 32]), |bytes| digest(&bytes));
    place.check(connection, path, &previous, &mut checked).map(drop)
}

/// Everything, from the first call to the last anchor.
pub(super) fn everything(connection: &Connection, path: &Path) -> Result<VerifyReport, StoreError> {
    let failed = |error: rusqlite::Error| failure(&error, path);
    let mut report = VerifyReport { calls: 0, entries: 0 };
    let mut previous = Digest([0; 32]);
    let mut checked = Checked::default();
    let anchors = anchors::read(path).map_err(|line| StoreError::Corrupt {
        path: path.to_owned(),
        message: format!("line {line} of its anchors was changed"),
    })?;
    let contexts = anchors.iter().filter(|anchor| matches!(anchor, Anchor::Context { .. })).cloned().collect();
    let mut calls: Vec<(i64, Digest)> = anchors
        .into_iter()
        .filter_map(|anchor| match anchor {
            Anchor::Call { gseq, seal } => Some((gseq, seal)),
            Anchor::Context { .. } => None,
        })
        .collect();
    // Processes write them when they come to it.
    calls.sort_unstable_by_key(|(gseq, _)| *gseq);
    let mut anchors = calls.into_iter().peekable();
    let query = format!("{}, {} FROM runs ORDER BY gseq", Place::SELECT, Sealed::COLUMNS);
    let mut statement = connection.prepare_cached(&query).map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let place = Place::read(connection, row, &mut checked).map_err(failed)?;
        if place.gseq != report.calls + 1 {
            return Err(tampered(None, report.calls + 1, "it is missing".to_owned()));
        }
        report.entries += place.check(connection, path, &previous, &mut checked)? as i64;
        while let Some((_, anchored)) = anchors.next_if(|(gseq, _)| *gseq == place.gseq) {
            if anchored != place.seal {
                return Err(tampered(Some(place.run), place.gseq, "it is not the call that was anchored".to_owned()));
            }
        }
        previous = place.seal;
        report.calls = place.gseq;
    }
    match anchors.next() {
        Some((gseq, _)) if gseq > report.calls => {
            let message = format!("calls up to {gseq} were anchored: the end of the store is missing");
            Err(tampered(None, report.calls + 1, message))
        }
        Some(_) | None => {
            check_anchors(connection, path, anchors::newest_of(contexts))?;
            state::check_everything(connection, path)?;
            Ok(report)
        }
    }
}

fn tampered(call: Option<CallId>, place: i64, message: String) -> StoreError {
    StoreError::Tampered { call: call.map(|id| id.to_string()).unwrap_or_default(), place, message }
}
