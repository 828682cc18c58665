//! The one writer: a thread that takes what is queued, writes it as one transaction, and tells those who wait.
//!
//! One flush of the disk serves everybody who came meanwhile. A unit that cannot be written leaves the others alone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, TransactionBehavior, params};

use super::anchors::Anchors;
use super::locks::Locks;
use super::queue::{self, Job, Queue, Rested};
use super::row::{Sealed, digest, run_bytes};
use super::same_file::SameFile;
use super::shared::{Seen, Shared};
use super::{failure, schema, state};
use crate::ids::{CallId, Digest};
use crate::log::record::CallRecord;
use crate::provider::secret;
use crate::store::{Change, StoreError};
use crate::value::{Map, Value};

/// Units in one transaction at most.
const GROUP: usize = 512;
/// How long the writer rests before it looks for more; see `log`.
const REST: Duration = Duration::from_millis(1);
/// Rests without work after which it sleeps until somebody comes.
const RESTS: u32 = 20;
/// How long it waits before it tries again what could not be written.
const RETRY: Duration = Duration::from_millis(100);
/// How long it tries once nobody will send any more: a full disk must not keep a process from ending.
const LAST_TRIES: Duration = Duration::from_millis(500);
/// How long somebody whose time is up still waits for a unit that is being written.
const AT_DISK: Duration = Duration::from_secs(10);
/// What the writer remembers to be in the file already, at most.
const REMEMBERED: usize = 4_096;

/// Where somebody waits for the disk.
#[derive(Default)]
pub(super) struct Ack {
    stage: Mutex<Stage>,
    ready: Condvar,
}

/// How far a unit has come.
#[derive(Default)]
enum Stage {
    /// It waits; whoever sent it may take it back.
    #[default]
    Queued,
    /// It was taken back: it is never written.
    Withdrawn,
    /// It is part of a transaction: only the disk knows now.
    Writing,
    /// It was written, or refused.
    Done(Result<(), StoreError>),
}

impl Ack {
    /// Marks it as being written; false when it was taken back.
    fn begin(&self) -> bool {
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Withdrawn) {
            return false;
        }
        *stage = Stage::Writing;
        true
    }

    fn answer(&self, result: Result<(), StoreError>) {
        *self.stage.lock() = Stage::Done(result);
        self.ready.notify_all();
    }

    /// The writer ended without an answer.
    pub(super) fn abandon(&self) {
        self.answer(Err(StoreError::TimedOut));
    }

    /// Waits for the answer, until `deadline` if there is one. A unit that is not being written by then is taken back:
    /// what was reported as not stored is never stored later.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<(), StoreError> {
        let mut stage = self.stage.lock();
        loop {
            match &*stage {
                Stage::Done(result) => return result.clone(),
                Stage::Queued | Stage::Writing | Stage::Withdrawn => {}
            }
            let Some(deadline) = deadline else {
                self.ready.wait(&mut stage);
                continue;
            };
            let writing = matches!(*stage, Stage::Writing);
            let until = if writing { deadline + AT_DISK } else { deadline };
            if !self.ready.wait_until(&mut stage, until).timed_out() {
                continue;
            }
            match &*stage {
                Stage::Done(result) => return result.clone(),
                // It came to be written in the last moment.
                Stage::Writing if !writing => {}
                Stage::Writing => return Err(StoreError::Unanswered),
                Stage::Queued | Stage::Withdrawn => {
                    *stage = Stage::Withdrawn;
                    return Err(StoreError::TimedOut);
                }
            }
        }
    }
}

/// Writes until nobody can send any more. Units that nobody waits for are kept until they can be written: a full disk
/// fills the queue, and a full queue is what callers then hear of, with what is wrong.
pub(super) fn write_jobs(queue: &Queue, connection: Connection, path: &Path, owner: i64, locks: &Locks, last: Last) {
    /// However this thread ends, nobody waits for it any more.
    struct Ends<'a>(&'a Queue);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.end();
        }
    }
    let _ends = Ends(queue);
    let mut state = last;
    let mut memory = Memory::default();
    let mut jobs: Vec<Job> = Vec::new();
    // After a failed flush the system may have forgotten pages: that connection is not asked again (P12).
    let mut connection = Some(connection);
    // Open, but not used, until there is another: the first to open a log alone finds in it what was refused.
    let mut failed: Vec<Connection> = Vec::new();
    let mut last_tries = None;
    loop {
        if jobs.is_empty() && !rest(queue, &mut state, path) {
            return;
        }
        // While nothing can be written, whoever waits is told so, and does not wait behind what is kept.
        queue.take(&mut jobs, if connection.is_some() { GROUP } else { queue::UNITS });
        let group = &jobs[..jobs.len().min(GROUP)];
        let written = match &mut connection {
            Some(connection) => write_group(connection, group, path, owner, &mut state, &mut memory),
            None => reopen(path, owner, &mut state)
                .and_then(|fresh| write_group(connection.insert(fresh), group, path, owner, &mut state, &mut memory)),
        };
        match written {
            Ok(results) => {
                queue.set_trouble(None);
                // Told before anybody is answered: who decided it and who hears of it next agree.
                if group.iter().any(decides_about_programs)
                    && let Err(error) = locks.revise()
                {
                    tracing::warn!(%error, "other processes do not hear what was decided about programs");
                }
                failed.drain(..).for_each(super::abandon);
                if state.anchors.due(state.gseq) {
                    state.anchor(path);
                }
                for (job, result) in jobs.drain(..results.len()).zip(results) {
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
            Err(told) => {
                memory.forget();
                queue.set_trouble(Some(told.clone()));
                if !matches!(told, StoreError::Busy { .. })
                    && let Some(asked) = connection.take()
                {
                    failed.push(asked);
                    // Before anybody is told, so that what was refused is gone even if this process dies next.
                    connection = reopen(path, owner, &mut state).ok();
                }
                if connection.is_some() {
                    failed.drain(..).for_each(super::abandon);
                }
                jobs.retain(|job| match job {
                    Job::Write(_, Some(ack)) | Job::Sync(ack) => {
                        ack.answer(Err(told.clone()));
                        false
                    }
                    Job::Write(_, None) => true,
                });
                if jobs.is_empty() {
                    continue;
                }
                if queue.is_closed() && Instant::now() > *last_tries.get_or_insert_with(|| Instant::now() + LAST_TRIES)
                {
                    tracing::error!(error = %told, units = jobs.len(), "the last calls could not be stored");
                    return;
                }
                std::thread::sleep(RETRY);
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
        | Change::Delegate { .. }
        | Change::Kept { run: Some(_), .. }
        | Change::Used { .. } => false,
    })
}

/// A connection in place of one that failed, and nothing left of what that one was refused.
fn reopen(path: &Path, owner: i64, state: &mut Last) -> Result<Connection, StoreError> {
    let failed = |error: rusqlite::Error| failure(&error, path);
    state.file.check(path)?;
    let mut fresh = super::connect(path, false)?;
    schema::configure(&mut fresh).map_err(failed)?;
    if let Err(error) = bury(&fresh, owner).map_err(failed)
        && !matches!(error, StoreError::Full { .. } | StoreError::Busy { .. })
    {
        super::abandon(fresh);
        return Err(error);
    }
    fresh.pragma_update(None, "synchronous", "full").map_err(failed)?;
    let found = Last::read(&fresh).map_err(failed)?;
    (state.gseq, state.seal) = (found.gseq, found.seal);
    Ok(fresh)
}

/// A commit whose flush failed was refused, and lies whole behind the end of the log, where the next process would find
/// it. The next commit comes to lie on top of it: this one, which needs no flush, for it says nothing.
fn bury(fresh: &Connection, owner: i64) -> rusqlite::Result<()> {
    fresh.pragma_update(None, "synchronous", "off")?;
    fresh.execute("UPDATE owners SET started = started + 1 WHERE owner = ?1", [owner]).map(drop)
}

/// Waits for work: looks for it now and then for a while, then sleeps. False when nobody can send any more.
fn rest(queue: &Queue, state: &mut Last, path: &Path) -> bool {
    for rests in 0_u32.. {
        if rests == RESTS {
            state.anchor(path);
        }
        match queue.rest((rests < RESTS).then_some(REST)) {
            Rested::Work => return true,
            Rested::Idle => {}
            Rested::Closed => break,
        }
    }
    state.anchor(path);
    false
}

/// What the writer need not ask the file again. Correct as long as nothing of it is taken back: see [`Memory::forget`].
#[derive(Default)]
struct Memory {
    /// Contracts, programs' texts and shared parts that are in the file.
    there: HashSet<Digest>,
    /// Digests of programs' texts, by the address of the text that is held here.
    codes: HashMap<usize, (Arc<str>, Digest)>,
    /// Keys that were known to be secret when those digests were made.
    secrets: usize,
    /// Calls that began and have not ended.
    open: HashSet<CallId>,
    /// Those that end in this transaction.
    closed: Vec<CallId>,
    /// What reused calls share.
    seen: Seen,
    /// Uses that are not written yet.
    uses: BTreeMap<Digest, Uses>,
    /// Versions and sums of agents that change in this transaction.
    contexts: BTreeMap<i64, (i64, Digest)>,
}

/// How a program did in some uses, one after the other.
#[derive(Clone, Copy, Default)]
struct Uses {
    count: i64,
    failures: i64,
    /// Since it last did well, or since the first of these uses.
    failures_in_a_row: i64,
    did_well: bool,
}

impl Memory {
    /// A transaction was taken back: what it wrote may not be there.
    fn forget(&mut self) {
        self.there.clear();
        self.uses.clear();
        self.closed.clear();
        self.contexts.clear();
    }

    /// A transaction is in the file.
    fn committed(&mut self, state: &mut Last) {
        state.anchors.note(std::mem::take(&mut self.contexts));
        for run in self.closed.drain(..) {
            self.open.remove(&run);
        }
    }

    /// Whether that is in the file, as far as is known. From now on it is: the caller writes it.
    fn is_there(&mut self, hash: Digest) -> bool {
        if self.there.len() >= REMEMBERED {
            self.there.clear();
        }
        !self.there.insert(hash)
    }

    /// The digest of a program's text as it is stored.
    fn code(&mut self, code: &Arc<str>) -> Digest {
        let secrets = secret::known();
        if self.secrets != secrets || self.codes.len() >= REMEMBERED {
            self.codes.clear();
            self.secrets = secrets;
        }
        let digest = || (code.clone(), Digest::of_bytes(secret::scrub(code).as_bytes()));
        self.codes.entry(code.as_ptr() as usize).or_insert_with(digest).1
    }

    fn used(&mut self, program: Digest, ok: bool) {
        let uses = self.uses.entry(program).or_default();
        uses.count += 1;
        if ok {
            (uses.did_well, uses.failures_in_a_row) = (true, 0);
        } else {
            uses.failures += 1;
            uses.failures_in_a_row += 1;
        }
    }

    /// Writes the uses that were counted, one statement per program.
    fn write_uses(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.uses.is_empty() {
            return Ok(());
        }
        let mut statement = connection.prepare_cached(
            "UPDATE programs SET uses = uses + ?2, failures = failures + ?3,
             failures_in_a_row = CASE ?4 WHEN 0 THEN failures_in_a_row + ?5 ELSE ?5 END WHERE program = ?1",
        )?;
        for (program, uses) in std::mem::take(&mut self.uses) {
            statement.execute(params![
                program.0,
                uses.count,
                uses.failures,
                i64::from(uses.did_well),
                uses.failures_in_a_row
            ])?;
        }
        Ok(())
    }
}

/// The end of the chain of calls, as this process knows it.
pub(super) struct Last {
    gseq: i64,
    seal: Digest,
    pub(super) anchors: Anchors,
    /// The file that was opened.
    pub(super) file: SameFile,
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
        Ok(Self { gseq, seal, anchors: Anchors::default(), file: SameFile::default() })
    }

    fn anchor(&mut self, path: &Path) {
        self.anchors.put(path, self.gseq, &self.seal);
    }
}

type Results = Vec<rusqlite::Result<()>>;

/// One transaction, in the file that the path names before and after it: nobody is told of what went into another.
///
/// As a rule every unit can be written; if one is refused, all are written again with a savepoint each, and the refused
/// one leaves no trace of itself.
fn write_group(
    connection: &mut Connection,
    jobs: &[Job],
    path: &Path,
    owner: i64,
    state: &mut Last,
    memory: &mut Memory,
) -> Result<Results, StoreError> {
    if jobs.iter().all(|job| matches!(job, Job::Sync(_))) {
        return Ok(jobs.iter().map(|_| Ok(())).collect());
    }
    state.file.check(path)?;
    let written = match write_at_once(connection, jobs, owner, state, memory) {
        Err(error) if !super::is_about_the_file(&error) => {
            memory.forget();
            write_one_by_one(connection, jobs, owner, state, memory)
        }
        other => other,
    };
    let results = written.map_err(|error| failure(&error, path))?;
    state.file.check(path)?;
    Ok(results)
}

fn write_at_once(
    connection: &mut Connection,
    jobs: &[Job],
    owner: i64,
    state: &mut Last,
    memory: &mut Memory,
) -> rusqlite::Result<Results> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have gone on with the chain.
    let found = Last::read(&transaction)?;
    let mut end = (found.gseq, found.seal);
    for change in jobs.iter().flat_map(changes) {
        write(&transaction, change, owner, &mut end, memory)?;
    }
    memory.write_uses(&transaction)?;
    transaction.commit()?;
    memory.committed(state);
    (state.gseq, state.seal) = end;
    Ok(jobs.iter().map(|_| Ok(())).collect())
}

fn write_one_by_one(
    connection: &mut Connection,
    jobs: &[Job],
    owner: i64,
    state: &mut Last,
    memory: &mut Memory,
) -> rusqlite::Result<Results> {
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = Last::read(&transaction)?;
    let mut end = (found.gseq, found.seal);
    let mut results = Vec::with_capacity(jobs.len());
    for job in jobs {
        let savepoint = transaction.savepoint()?;
        let mut reached = end;
        let mut unit = changes(job).iter();
        let result = unit
            .try_for_each(|change| write(&savepoint, change, owner, &mut reached, memory))
            .and_then(|()| memory.write_uses(&savepoint));
        match &result {
            Ok(()) => {
                savepoint.commit()?;
                end = reached;
            }
            // What concerns the file concerns everybody in this transaction.
            Err(error) if super::is_about_the_file(error) => {
                return Err(result.err().unwrap_or(rusqlite::Error::InvalidQuery));
            }
            Err(_) => {
                memory.forget();
                drop(savepoint);
            }
        }
        results.push(result);
    }
    transaction.commit()?;
    memory.committed(state);
    (state.gseq, state.seal) = end;
    Ok(results)
}

/// What is to be written for a job; nothing when whoever sent it has taken it back.
fn changes(job: &Job) -> &[Change] {
    match job {
        Job::Write(unit, None) => unit,
        Job::Write(unit, Some(ack)) if ack.begin() => unit,
        Job::Write(..) | Job::Sync(_) => &[],
    }
}

fn write(
    connection: &Connection,
    change: &Change,
    owner: i64,
    end: &mut (i64, Digest),
    memory: &mut Memory,
) -> rusqlite::Result<()> {
    match change {
        Change::Began(began) => {
            put_contract(connection, &began.contract, memory)?;
            memory.open.insert(began.run);
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
                .prepare_cached("INSERT INTO effects VALUES (?1, ?2, ?3, ?4, ?5, 'started', NULL, ?6, NULL)")?
                .execute(params![
                    run_bytes(intent.run),
                    intent.call_no,
                    &*intent.tool,
                    args,
                    intent.idem_key.0,
                    intent.effect.as_str()
                ])?;
            state::seal_effect(connection, &run_bytes(intent.run), intent.call_no)?;
        }
        Change::Effect { run, call_no, result } => {
            let (status, value) = match result {
                Ok(value) => ("ok", crate::log::masked(value)),
                Err(message) => ("error", secret::scrub(message).as_ref().into()),
            };
            connection
                .prepare_cached("UPDATE effects SET status = ?3, result = ?4 WHERE run = ?1 AND call_no = ?2")?
                .execute(params![run_bytes(*run), call_no, status, value.to_json()])?;
            state::seal_effect(connection, &run_bytes(*run), *call_no)?;
        }
        Change::Ended { record, agent } => {
            let sealed = seal(connection, record, memory)?;
            append(connection, record.call_id(), agent.map(|agent| agent.0), &sealed, end)?;
            if memory.open.contains(&record.call_id()) {
                close(connection, record.call_id())?;
                memory.closed.push(record.call_id());
            }
        }
        Change::Context { agent, writes } => {
            memory.contexts.insert(agent.0, state::write_context(connection, agent.0, writes)?);
        }
        Change::Delegate { namespace, maker, delegate } => {
            let contract = Value::Map(delegate.contract.clone()).to_json();
            connection
                .prepare_cached(
                    "INSERT INTO tools(namespace, owner, name, options, created, uses, last_used)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5)
                     ON CONFLICT(namespace, owner, name) DO UPDATE SET options = excluded.options,
                     uses = max(uses, excluded.uses), last_used = excluded.last_used",
                )?
                .execute(params![
                    &**namespace,
                    &**maker,
                    &*delegate.name,
                    secret::scrub(&contract),
                    now(),
                    i64::try_from(delegate.uses).unwrap_or(i64::MAX)
                ])?;
            state::seal_delegate(connection, namespace, maker, &delegate.name)?;
        }
        // A text that holds a key cannot be stored as it is, and as another text it would do something else.
        Change::Kept { program, .. } if secret::scrub(&program.code) != *program.code => {
            tracing::warn!(
                method = &*program.key.method,
                "a program holds a secret; the next process will not have it"
            );
        }
        Change::Kept { program, run } => {
            let key = &program.key;
            let code = put_code(connection, key.language.as_str(), &program.code, memory)?;
            memory.write_uses(connection)?;
            let inputs = program
                .inputs
                .iter()
                .map(|(read, digest)| Value::List(vec![(*read).into(), digest.to_hex().into()]))
                .collect();
            connection
                .prepare_cached(
                    // Written again, a program has the evidence of its last run; what people decided about it stays.
                    "INSERT INTO programs(program, namespace, role, method, contract, shape, language, interface,
                     code, model, version, inputs, probeable, state, created_run, created, context, note)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
                     ON CONFLICT(program) DO UPDATE SET namespace = excluded.namespace, role = excluded.role,
                     method = excluded.method, contract = excluded.contract, shape = excluded.shape,
                     language = excluded.language, interface = excluded.interface, code = excluded.code,
                     failures_in_a_row = 0, inputs = excluded.inputs, context = excluded.context,
                     probeable = excluded.probeable, created = excluded.created, note = excluded.note,
                     state = CASE WHEN excluded.state IN ('active', 'candidate')
                       AND programs.state IN ('pinned', 'quarantined') THEN programs.state ELSE excluded.state END",
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
                    program.note.as_deref().map(secret::scrub),
                ])?;
            state::seal_program(connection, &program.id())?;
        }
        Change::State { program, state } => {
            memory.write_uses(connection)?;
            connection
                .prepare_cached(
                    "UPDATE programs SET state = ?2, note = NULL, failures_in_a_row = 0 WHERE program = ?1",
                )?
                .execute(params![program.0, state.as_str()])?;
            state::seal_program(connection, program)?;
        }
        Change::Deleted { program } => {
            memory.write_uses(connection)?;
            connection.prepare_cached("DELETE FROM programs WHERE program = ?1")?.execute([program.0])?;
        }
        Change::Used { program, ok } => memory.used(*program, *ok),
    }
    Ok(())
}

/// The columns of an ended call; what it shares with others is in the file when this returns.
fn seal(connection: &Connection, record: &CallRecord, memory: &mut Memory) -> rusqlite::Result<Sealed> {
    put_contract(connection, &record.contract, memory)?;
    let code = match &record.metadata.code {
        Some(code) => Some(put_code(connection, record.metadata.language, code, memory)?),
        None => None,
    };
    let sealed = memory.seen.seal(record, code).unwrap_or_else(|| Sealed::of(record, code));
    if let Some(shared) = &sealed.shared {
        put_shared(connection, shared, memory)?;
    }
    Ok(sealed)
}

/// Appends an ended call behind the last one.
fn append(
    connection: &Connection,
    run: CallId,
    agent: Option<i64>,
    sealed: &Sealed,
    end: &mut (i64, Digest),
) -> rusqlite::Result<()> {
    let gseq = end.0 + 1;
    let seal = sealed.seal(&end.1, gseq, run, agent);
    connection
        .prepare_cached(
            "INSERT INTO runs(gseq, run, agent, role, method, durability, status, record, header, entries, hashes,
             contract, code, seal, trace, depth, tape, shared)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
        )?
        .execute(params![
            gseq,
            run_bytes(run),
            agent,
            sealed.role,
            sealed.method,
            sealed.durability,
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
            sealed.shared.as_ref().map(|shared| shared.hash.0),
        ])?;
    *end = (gseq, seal);
    Ok(())
}

/// Takes an ended call from those that are under way.
fn close(connection: &Connection, run: CallId) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM open_runs WHERE run = ?1")?.execute([run_bytes(run)])?;
    // A tool whose answer was never stored: nobody knows what it did (P5).
    let unknown = connection
        .prepare_cached("UPDATE effects SET status = 'unknown' WHERE run = ?1 AND status = 'started'")?
        .execute([run_bytes(run)])?;
    if unknown > 0 {
        state::seal_effects(connection, &run_bytes(run))?;
    }
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
            let sealed = Sealed::interrupted(record, digest(&contract));
            let run = super::row::run_id(&run);
            // One that has ended all the same only needs to be closed.
            if !transaction.prepare_cached("SELECT 1 FROM runs WHERE run = ?1")?.exists([run_bytes(run)])? {
                append(&transaction, run, None, &sealed, &mut end)?;
                recovered += 1;
            }
            close(&transaction, run)?;
        }
        transaction.execute("DELETE FROM owners WHERE owner = ?1", [owner])?;
    }
    transaction.commit()?;
    Ok(recovered)
}

fn put_contract(
    connection: &Connection,
    contract: &crate::contract::ExecutionContract,
    memory: &mut Memory,
) -> rusqlite::Result<()> {
    let hash = contract.contract_hash();
    if memory.is_there(hash) {
        return Ok(());
    }
    let mut known = connection.prepare_cached("SELECT 1 FROM contracts WHERE hash = ?1")?;
    if !known.exists([hash.0])? {
        connection
            .prepare_cached("INSERT INTO contracts VALUES (?1, ?2)")?
            .execute(params![hash.0, contract.to_value().to_json()])?;
    }
    Ok(())
}

fn put_code(connection: &Connection, language: &str, code: &Arc<str>, memory: &mut Memory) -> rusqlite::Result<Digest> {
    let hash = memory.code(code);
    if !memory.is_there(hash) {
        connection.prepare_cached("INSERT OR IGNORE INTO codes VALUES (?1, ?2, ?3)")?.execute(params![
            hash.0,
            language,
            secret::scrub(code)
        ])?;
    }
    Ok(hash)
}

fn put_shared(connection: &Connection, shared: &Shared, memory: &mut Memory) -> rusqlite::Result<()> {
    if memory.is_there(shared.hash) { Ok(()) } else { shared.put(connection) }
}

/// Microseconds since 1970.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_micros() as i64)
}
