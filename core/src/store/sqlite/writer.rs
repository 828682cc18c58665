//! The one writer: a thread that takes what is queued, writes it as one transaction, and tells those who wait.
//!
//! One flush of the disk serves everybody who came meanwhile. A unit that cannot be written leaves the others alone.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, TransactionBehavior, params};

use super::anchors::Anchors;
use super::locks::Locks;
use super::row::{Sealed, digest, run_bytes};
use super::{failure, schema};
use crate::ids::{CallId, Digest};
use crate::provider::secret;
use crate::store::{Change, Durability, StoreError, Unit};
use crate::value::{Map, Value};

/// Units in one transaction at most.
const GROUP: usize = 256;
/// How long the writer rests before it looks for more; see `log`.
const REST: Duration = Duration::from_millis(1);
/// Rests without work after which it sleeps until somebody comes.
const RESTS: u32 = 20;
/// How long it waits before it tries again what could not be written.
const RETRY: Duration = Duration::from_millis(100);

/// One unit on its way to the disk.
pub(super) enum Job {
    /// To be written.
    Write(Unit, Option<Arc<Ack>>),
    /// Everything before it is on the disk once this is answered.
    Sync(Arc<Ack>),
}

/// Where somebody waits for the disk.
#[derive(Default)]
pub(super) struct Ack {
    done: Mutex<Option<Result<(), StoreError>>>,
    ready: Condvar,
}

impl Ack {
    fn answer(&self, result: Result<(), StoreError>) {
        *self.done.lock() = Some(result);
        self.ready.notify_all();
    }

    /// Waits for the answer, until `deadline` if there is one.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<(), StoreError> {
        let mut done = self.done.lock();
        loop {
            if let Some(result) = done.take() {
                return result;
            }
            match deadline {
                None => self.ready.wait(&mut done),
                Some(deadline) => {
                    if self.ready.wait_until(&mut done, deadline).timed_out() && done.is_none() {
                        return Err(StoreError::TimedOut);
                    }
                }
            }
        }
    }
}

/// Writes until nobody can send any more. Units that nobody waits for are kept until they can be written: a full disk
/// fills the queue, and a full queue is what callers then hear of.
pub(super) fn write_jobs(
    receiver: &Receiver<Job>,
    mut connection: Connection,
    path: &Path,
    owner: i64,
    locks: &Locks,
    last: Last,
) {
    let mut state = last;
    let mut jobs: Vec<Job> = Vec::new();
    loop {
        if jobs.is_empty() {
            match next(receiver, &mut state, path) {
                Some(job) => jobs.push(job),
                None => return,
            }
        }
        while jobs.len() < GROUP {
            match receiver.try_recv() {
                Ok(job) => jobs.push(job),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        match write_group(&mut connection, &jobs, owner, &mut state) {
            Ok(results) => {
                // Told before anybody is answered: who decided it and who hears of it next agree.
                if jobs.iter().any(decides_about_programs)
                    && let Err(error) = locks.revise()
                {
                    tracing::warn!(%error, "other processes do not hear what was decided about programs");
                }
                if state.anchors.due(state.gseq) {
                    state.anchor(path);
                }
                for (job, result) in jobs.drain(..).zip(results) {
                    match job {
                        Job::Write(_, Some(ack)) => ack.answer(result.map_err(|error| failure(&error, path))),
                        Job::Write(_, None) => {
                            if let Err(error) = result {
                                tracing::error!(%error, "a call could not be stored");
                            }
                        }
                        Job::Sync(ack) => ack.answer(Ok(())),
                    }
                }
            }
            Err(error) => {
                let told = failure(&error, path);
                jobs.retain(|job| match job {
                    Job::Write(_, Some(ack)) | Job::Sync(ack) => {
                        ack.answer(Err(told.clone()));
                        false
                    }
                    Job::Write(_, None) => true,
                });
                // After a failed flush the system may have forgotten pages: this connection is not asked again (P12).
                if let Ok(mut fresh) = Connection::open(path)
                    && schema::configure(&mut fresh).is_ok()
                    && fresh.pragma_update(None, "synchronous", "full").is_ok()
                {
                    connection = fresh;
                }
                if let Ok(found) = Last::read(&connection) {
                    state = Last { anchors: state.anchors, ..found };
                }
                if !jobs.is_empty() {
                    std::thread::sleep(RETRY);
                }
            }
        }
    }
}

/// Whether people decided something about programs with it.
fn decides_about_programs(job: &Job) -> bool {
    let Job::Write(unit, _) = job else { return false };
    unit.iter().any(|change| match change {
        Change::State { .. } | Change::Deleted { .. } | Change::Kept { run: None, .. } => true,
        Change::Began(_)
        | Change::Intent(_)
        | Change::Effect { .. }
        | Change::Ended { .. }
        | Change::Context { .. }
        | Change::Kept { run: Some(_), .. }
        | Change::Used { .. } => false,
    })
}

/// The next job: looked for now and then for a while, then waited for. `None` when nobody can send one any more.
fn next(receiver: &Receiver<Job>, state: &mut Last, path: &Path) -> Option<Job> {
    for _ in 0..RESTS {
        match receiver.try_recv() {
            Ok(job) => return Some(job),
            Err(TryRecvError::Disconnected) => {
                state.anchor(path);
                return None;
            }
            Err(TryRecvError::Empty) => std::thread::park_timeout(REST),
        }
    }
    state.anchor(path);
    let job = receiver.recv().ok();
    if job.is_none() {
        state.anchor(path);
    }
    job
}

/// The end of the chain of calls, as this process knows it.
pub(super) struct Last {
    gseq: i64,
    seal: Digest,
    pub(super) anchors: Anchors,
}

impl Last {
    /// Reads it from the file.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare_cached("SELECT gseq, seal FROM runs ORDER BY gseq DESC LIMIT 1")?;
        let mut rows = statement.query([])?;
        let (gseq, seal) = match rows.next()? {
            Some(row) => (row.get(0)?, digest(row.get_ref(1)?.as_blob()?)),
            None => (0, Digest([0; 32])),
        };
        Ok(Self { gseq, seal, anchors: Anchors::default() })
    }

    fn anchor(&mut self, path: &Path) {
        self.anchors.put(path, self.gseq, &self.seal);
    }
}

type Results = Vec<rusqlite::Result<()>>;

/// One transaction. Each unit has a savepoint of its own: one that is refused leaves no trace of itself.
fn write_group(connection: &mut Connection, jobs: &[Job], owner: i64, state: &mut Last) -> rusqlite::Result<Results> {
    if jobs.iter().all(|job| matches!(job, Job::Sync(_))) {
        return Ok(jobs.iter().map(|_| Ok(())).collect());
    }
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have gone on with the chain.
    let found = Last::read(&transaction)?;
    let mut end = (found.gseq, found.seal);
    let mut results = Vec::with_capacity(jobs.len());
    for job in jobs {
        let Job::Write(unit, _) = job else {
            results.push(Ok(()));
            continue;
        };
        let savepoint = transaction.savepoint()?;
        let mut reached = end;
        let result = unit.iter().try_for_each(|change| write(&savepoint, change, owner, &mut reached));
        match &result {
            Ok(()) => {
                savepoint.commit()?;
                end = reached;
            }
            // What concerns the file concerns everybody in this transaction.
            Err(error) if super::is_about_the_file(error) => {
                return Err(result.err().unwrap_or(rusqlite::Error::InvalidQuery));
            }
            Err(_) => drop(savepoint),
        }
        results.push(result);
    }
    transaction.commit()?;
    (state.gseq, state.seal) = end;
    Ok(results)
}

fn write(connection: &Connection, change: &Change, owner: i64, end: &mut (i64, Digest)) -> rusqlite::Result<()> {
    match change {
        Change::Began(began) => {
            put_contract(connection, &began.contract)?;
            let record = crate::log::masked(&Value::Map(began.record.clone())).to_json();
            connection.prepare_cached("INSERT OR IGNORE INTO open_runs VALUES (?1, ?2, ?3, ?4)")?.execute(params![
                run_bytes(began.run),
                owner,
                record,
                began.contract.contract_hash().0
            ])?;
        }
        Change::Intent(intent) => {
            let args = crate::log::masked(&Value::Map(intent.args.clone())).to_json();
            connection
                .prepare_cached("INSERT INTO effects VALUES (?1, ?2, ?3, ?4, ?5, 'started', NULL)")?
                .execute(params![run_bytes(intent.run), intent.call_no, &*intent.tool, args, intent.idem_key.0])?;
        }
        Change::Effect { run, call_no, result } => {
            let (status, value) = match result {
                Ok(value) => ("ok", crate::log::masked(value)),
                Err(message) => ("error", secret::scrub(message).as_ref().into()),
            };
            connection
                .prepare_cached("UPDATE effects SET status = ?3, result = ?4 WHERE run = ?1 AND call_no = ?2")?
                .execute(params![run_bytes(*run), call_no, status, value.to_json()])?;
        }
        Change::Ended { record, agent } => {
            put_contract(connection, &record.contract)?;
            if let Some(code) = &record.metadata.code {
                put_code(connection, record.metadata.language, code)?;
            }
            let sealed = Sealed::of(record);
            let durability = record.metadata.durability;
            append(connection, record.call_id(), agent.map(|agent| agent.0), durability, &sealed, end)?;
        }
        Change::Context { agent, writes } => {
            for (key, value) in writes {
                match value {
                    Some(value) => connection
                        .prepare_cached("INSERT OR REPLACE INTO agent_context VALUES (?1, ?2, ?3)")?
                        .execute(params![agent.0, key, secret::scrub(&value.to_json())])?,
                    None => connection
                        .prepare_cached("DELETE FROM agent_context WHERE agent = ?1 AND key = ?2")?
                        .execute(params![agent.0, key])?,
                };
            }
            connection
                .prepare_cached("UPDATE agents SET version = version + 1 WHERE agent = ?1")?
                .execute([agent.0])?;
        }
        Change::Kept { program, run } => {
            let key = &program.key;
            let code = put_code(connection, key.language.as_str(), &program.code)?;
            let inputs = program
                .inputs
                .iter()
                .map(|(read, digest)| Value::List(vec![(*read).into(), digest.to_hex().into()]))
                .collect();
            connection
                .prepare_cached(
                    // Written again, a program has the evidence of its last run; what people decided about it stays.
                    "INSERT INTO programs(program, namespace, role, method, contract, shape, language, interface,
                     code, model, version, inputs, probeable, state, created_run, created, context)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
                     ON CONFLICT(program) DO UPDATE SET inputs = excluded.inputs, context = excluded.context,
                     probeable = excluded.probeable, created = excluded.created,
                     state = CASE excluded.state WHEN 'active' THEN programs.state ELSE excluded.state END",
                )?
                .execute(params![
                    program.id().0,
                    &*key.namespace,
                    &*key.role,
                    &*key.method,
                    key.contract.0,
                    key.shape,
                    key.language.as_str(),
                    key.interface,
                    code.0,
                    &*program.model,
                    program.version,
                    Value::List(inputs).to_json(),
                    program.probeable,
                    program.state.as_str(),
                    run.map(run_bytes),
                    now(),
                    Some(program.pins.to_value()).filter(|pins| *pins != Value::Null).map(|pins| pins.to_json()),
                ])?;
        }
        Change::State { program, state } => {
            connection
                .prepare_cached("UPDATE programs SET state = ?2, failures_in_a_row = 0 WHERE program = ?1")?
                .execute(params![program.0, state.as_str()])?;
        }
        Change::Deleted { program } => {
            connection.prepare_cached("DELETE FROM programs WHERE program = ?1")?.execute([program.0])?;
        }
        Change::Used { program, ok } => {
            connection
                .prepare_cached(
                    "UPDATE programs SET uses = uses + 1, failures = failures + ?2,
                     failures_in_a_row = CASE ?2 WHEN 0 THEN 0 ELSE failures_in_a_row + 1 END WHERE program = ?1",
                )?
                .execute(params![program.0, i64::from(!ok)])?;
        }
    }
    Ok(())
}

/// Appends an ended call behind the last one.
fn append(
    connection: &Connection,
    run: CallId,
    agent: Option<i64>,
    durability: Durability,
    sealed: &Sealed,
    end: &mut (i64, Digest),
) -> rusqlite::Result<()> {
    let gseq = end.0 + 1;
    let seal = sealed.seal(&end.1, gseq, run);
    let record = sealed.record();
    let text = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    connection
        .prepare_cached(
            "INSERT INTO runs(gseq, run, agent, role, method, durability, status, record, header, entries, hashes,
             contract, code, seal, trace, depth, tape)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
        )?
        .execute(params![
            gseq,
            run_bytes(run),
            agent,
            text("role"),
            text("method"),
            durability.as_str(),
            sealed.status,
            sealed.record,
            sealed.header,
            sealed.entries,
            sealed.hashes,
            sealed.contract.0,
            sealed.code.map(|code| code.0),
            seal.0,
            sealed.place.map(|place| place.trace.0.to_be_bytes()),
            sealed.place.map_or(0, |place| place.depth),
            sealed.tape,
        ])?;
    connection.prepare_cached("DELETE FROM open_runs WHERE run = ?1")?.execute([run_bytes(run)])?;
    *end = (gseq, seal);
    Ok(())
}

/// Ends the calls of processes that died: INTERRUPTED, and what a tool did is unknown (P4, P5). One transaction.
pub(super) fn recover(connection: &mut Connection, dead: &[i64]) -> rusqlite::Result<usize> {
    if dead.is_empty() {
        return Ok(0);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = Last::read(&transaction)?;
    let mut end = (found.gseq, found.seal);
    let mut recovered = 0;
    for owner in dead {
        let open: Vec<(Vec<u8>, String, Vec<u8>)> = transaction
            .prepare("SELECT run, record, contract FROM open_runs WHERE owner = ?1")?
            .query_map([owner], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (run, record, contract) in open {
            let record = match Value::from_json(&record) {
                Ok(Value::Map(map)) => map,
                Ok(_) | Err(_) => Map::new(),
            };
            transaction
                .execute("UPDATE effects SET status = 'unknown' WHERE run = ?1 AND status = 'started'", [&run])?;
            let sealed = Sealed::interrupted(record, digest(&contract));
            append(&transaction, super::row::run_id(&run), None, Durability::Strict, &sealed, &mut end)?;
            recovered += 1;
        }
        transaction.execute("DELETE FROM owners WHERE owner = ?1", [owner])?;
    }
    transaction.commit()?;
    Ok(recovered)
}

fn put_contract(connection: &Connection, contract: &crate::contract::ExecutionContract) -> rusqlite::Result<()> {
    let hash = contract.contract_hash();
    let mut known = connection.prepare_cached("SELECT 1 FROM contracts WHERE hash = ?1")?;
    if !known.exists([hash.0])? {
        connection
            .prepare_cached("INSERT INTO contracts VALUES (?1, ?2)")?
            .execute(params![hash.0, contract.to_value().to_json()])?;
    }
    Ok(())
}

fn put_code(connection: &Connection, language: &str, code: &str) -> rusqlite::Result<Digest> {
    let code = secret::scrub(code);
    let hash = Digest::of_bytes(code.as_bytes());
    connection
        .prepare_cached("INSERT OR IGNORE INTO codes VALUES (?1, ?2, ?3)")?
        .execute(params![hash.0, language, code])?;
    Ok(hash)
}

/// Microseconds since 1970.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_micros() as i64)
}
