//! Looking back at an ended call, in three levels (unified-kernel 6.10): is its transcript intact, does the kernel still
//! decide the same, and do its programs still do the same?
//!
//! All work offline: no provider is asked and no tool runs (EC-RP2). Programs run again on their tapes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::canonical;
use crate::contract::manifest::EXECUTE_PROGRAM;
use crate::ids::{CallId, Digest, TraceId};
use crate::kernel::{Divergence, Ended, ReplayError, StoredEntry, StoredRun, ToolFailure, replay, verify};
use crate::log::record::CallRecord;
use crate::program::tape::{Follow, Tape, TapeHost, Written, envelope};
use crate::program::{Arguments, Bounds, Execution, Language, Limits, ProgramFailure, Returned};
use crate::provider::replay::Decided;
use crate::runtime::{Runtime, driver};
use crate::store::{CallQuery, Store, StoreError, StoredCall};
use crate::value::{Map, Value};

/// Bytes of a recorded error from which on it may have been cut.
const LONG: usize = 4_000;
/// Time of one program that runs again. The clock decided nothing that is compared: a slower machine may take longer.
const TIME: Duration = Duration::from_secs(60);

/// An intact chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Its head.
    pub head: Digest,
    /// Its number of entries.
    pub length: usize,
}

/// Why a call cannot be confirmed.
#[derive(Debug, thiserror::Error)]
pub enum LookBackError {
    /// No such call.
    #[error("no call {0}: a runtime without a store remembers its last 1,000 calls")]
    Unknown(CallId),
    /// The store says so.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The chain is broken.
    #[error("the transcript is not intact: {0}")]
    Broken(#[from] Divergence),
    /// The kernel comes to another end.
    #[error(transparent)]
    Diverges(#[from] ReplayError),
    /// The record stops before its end.
    #[error("the transcript stops before the run's end")]
    Unfinished,
    /// It could not be stored.
    #[error("the transcript was not stored, for it holds a secret")]
    Withheld,
    /// A program does something else than it did.
    #[error("entry {seq} differs: its program, run again, {what}")]
    ProgramDiffers {
        /// The entry of its execution.
        seq: u32,
        /// What differs: its value, its error, its writes, or what it asked its host.
        what: String,
    },
}

/// A replay that came to the same end.
#[derive(Debug)]
pub struct Replay {
    /// How the run ended, again.
    pub ended: Box<Ended>,
    /// Programs that ran again, and did what they did before.
    pub programs: usize,
    /// Why others did not run again, a reason each.
    pub left_out: Vec<String>,
}

/// What [`Runtime::replay_all`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Calls that came to the same end.
    pub calls: u64,
    /// Programs that ran again in them, and did the same.
    pub programs: u64,
    /// Programs that could not run again.
    pub left_out: u64,
    /// Calls without a transcript: they ended with their process, or it was withheld for a secret in it.
    pub without_transcript: u64,
}

impl ReplayReport {
    fn add(&mut self, replay: &Replay) {
        self.calls += 1;
        self.programs += replay.programs as u64;
        self.left_out += replay.left_out.len() as u64;
    }
}

/// What running a call's programs again needs.
pub(crate) struct Recorded {
    pub(crate) role: Arc<str>,
    pub(crate) args: Vec<Value>,
    pub(crate) kwargs: Map,
    pub(crate) tapes: Result<Vec<Tape>, String>,
}

impl Recorded {
    /// From a call of this process.
    pub(crate) fn of(record: &CallRecord) -> Self {
        Self {
            role: record.role.clone(),
            args: record.args.to_vec(),
            kwargs: (*record.kwargs).clone(),
            tapes: Ok(record.all_tapes().cloned().collect()),
        }
    }

    /// From a store.
    pub(crate) fn of_stored(call: StoredCall) -> Self {
        let StoredCall { mut record, tapes, .. } = call;
        Self {
            role: record.get("role").and_then(Value::as_str).unwrap_or_default().into(),
            args: record.get("args").and_then(Value::as_list).unwrap_or_default().to_vec(),
            kwargs: match record.remove("kwargs") {
                Some(Value::Map(kwargs)) => kwargs,
                _ => Map::new(),
            },
            tapes,
        }
    }
}

impl Runtime {
    /// Recomputes the hash chain of an ended call (EC-H1); of a stored one, also that it is what was written (P9).
    pub fn verify(&self, id: CallId) -> Result<Verified, LookBackError> {
        if let Some(store) = self.store()
            && let Some(run) = store.run(id)?
        {
            store.verify_call(id)?;
            return Ok(Verified { head: run.head, length: run.length });
        }
        let record = self.call(id).ok_or(LookBackError::Unknown(id))?;
        let verified = Verified { head: record.metadata.head(), length: record.metadata.length() };
        verify(&record.contract, &record.metadata.transcript.to_stored(), verified.head, verified.length)?;
        Ok(verified)
    }

    /// Feeds the recorded inputs of an ended call to a fresh kernel, and runs its programs again on what they were told:
    /// the end must be the same, and so must each value and each write (EC-RP1).
    pub fn replay(&self, id: CallId) -> Result<Replay, LookBackError> {
        if let Some(record) = self.call(id) {
            let ended = replay_record(&record)?;
            return self.replay_programs(ended, &record.metadata.transcript.to_stored(), &Recorded::of(&record));
        }
        let store = self.store().ok_or(LookBackError::Unknown(id))?;
        let call = store.call(id)?.ok_or(LookBackError::Unknown(id))?;
        if call.record.contains_key("transcript") {
            return Err(LookBackError::Withheld);
        }
        self.replay_call(&**store, id, call)
    }

    /// [`Runtime::replay`] of a stored call that has its transcript.
    fn replay_call(&self, store: &dyn Store, id: CallId, call: StoredCall) -> Result<Replay, LookBackError> {
        let run = store.run(id)?.ok_or(LookBackError::Unknown(id))?;
        self.replay_programs(replay_stored(&run)?, &run.entries, &Recorded::of_stored(call))
    }

    /// Replays every stored call, newest first; the first found that comes to another end is the error.
    pub fn replay_all(&self) -> Result<ReplayReport, LookBackError> {
        /// Calls that are read at once.
        const PAGE: usize = 256;
        let mut report = ReplayReport::default();
        let Some(store) = self.store() else {
            for record in self.calls() {
                report.add(&self.replay(record.call_id())?);
            }
            return Ok(report);
        };
        let mut query = CallQuery { limit: PAGE, ..CallQuery::default() };
        loop {
            let calls = store.calls(&query)?;
            let Some(last) = calls.last() else { return Ok(report) };
            query.before = Some(last.gseq);
            for call in calls {
                let id =
                    call.record.get("call_id").and_then(Value::as_str).and_then(CallId::parse).unwrap_or(CallId(0));
                if call.record.contains_key("transcript_head") && !call.record.contains_key("transcript") {
                    report.add(&self.replay_call(&**store, id, call)?);
                } else {
                    report.without_transcript += 1;
                }
            }
        }
    }

    fn replay_programs(
        &self,
        ended: Box<Ended>,
        entries: &[StoredEntry],
        recorded: &Recorded,
    ) -> Result<Replay, LookBackError> {
        let mut replay = Replay { ended, programs: 0, left_out: Vec::new() };
        let is_execution = |entry: &&StoredEntry| {
            entry.kind() == "tool" && entry.field("name").and_then(Value::as_str) == Some(EXECUTE_PROGRAM)
        };
        for (number, entry) in entries.iter().filter(is_execution).enumerate() {
            match self.replay_program(entry, number, recorded) {
                Ok(None) => replay.programs += 1,
                Ok(Some(reason)) => replay.left_out.push(reason),
                Err(what) => return Err(LookBackError::ProgramDiffers { seq: entry.seq(), what }),
            }
        }
        Ok(replay)
    }

    /// Runs one program again. The reason when it cannot be; the error says what differs.
    fn replay_program(
        &self,
        entry: &StoredEntry,
        number: usize,
        recorded: &Recorded,
    ) -> Result<Option<String>, String> {
        let expected = match Expected::of(entry) {
            Ok(expected) => expected,
            Err(reason) => return Ok(Some(reason)),
        };
        let no_tape = Tape::default();
        let tape = match &recorded.tapes {
            Ok(tapes) => tapes.get(number).unwrap_or(&no_tape),
            Err(reason) => return Ok(Some(reason.clone())),
        };
        if tape.too_long {
            return Ok(Some(
                "it was told more than is recorded, or the host wrote to its context meanwhile".to_owned(),
            ));
        }
        let program = entry.field("args").and_then(Value::as_map);
        let text = |name: &str| program.and_then(|program| program.get(name)).and_then(Value::as_str);
        let (Some(code), Some(language)) = (text("code"), text("language").and_then(Language::from_name)) else {
            return Err("has no text".to_owned());
        };
        let arguments = Arguments { args: &recorded.args, kwargs: &recorded.kwargs };
        let host = TapeHost::new(tape, Follow::Exactly, recorded.role.clone());
        let limits = Limits { cpu_time: TIME, ..(*self.0.settings.limits).clone() };
        let execution = self.run_again(language, code, arguments, &limits, &host)?;
        // What a program may use is this runtime's to say, and no part of the record.
        let limited = matches!(
            execution.result,
            Err(ProgramFailure::CpuTime { .. }
                | ProgramFailure::Deadline
                | ProgramFailure::Fuel { .. }
                | ProgramFailure::Memory { .. }
                | ProgramFailure::HostCalls { .. }
                | ProgramFailure::CallDepth)
        );
        let found = execution.result.map_err(|failure| failure.to_string());
        if let Some(strayed) = host.strayed() {
            return Err(strayed);
        }
        if limited {
            return Ok(Some("the limits of this runtime ended it".to_owned()));
        }
        expected.compare(&found)?;
        if canonical_writes(&host.writes()) != canonical_writes(&tape.writes) {
            return Err("writes something else into its context".to_owned());
        }
        Ok(None)
    }

    /// Runs a program on a tape.
    pub(crate) fn run_again(
        &self,
        language: Language,
        code: &str,
        arguments: Arguments<'_>,
        limits: &Limits,
        host: &TapeHost<'_>,
    ) -> Result<Execution, String> {
        let executor = self.executor(language, self.0.settings.isolation);
        let executor = executor.ok_or_else(|| format!("cannot: this build runs no {language}"))?;
        let program = executor.compile(code, limits).map_err(|error| error.to_string())?;
        let cancel = CancelToken::default();
        let bounds = Bounds { limits, deadline: Some(Instant::now() + TIME), cancel: &cancel };
        Ok(executor.execute(&program, arguments, host, &bounds))
    }
}

/// What an execution gave.
enum Expected<'a> {
    Value(&'a Value),
    Error(&'a str),
}

impl<'a> Expected<'a> {
    /// What the entry of an execution says; the error says why the program need not do it again.
    fn of(entry: &'a StoredEntry) -> Result<Self, String> {
        let text = |name: &str| entry.result_field(name).and_then(Value::as_str).unwrap_or_default();
        match text("status") {
            "ok" => Ok(Self::Value(entry.result_field("value").unwrap_or(&Value::Null))),
            "error" => match ToolFailure::from_name(text("failure")) {
                // Limits of time and space are recorded verdicts, and no work of the program's.
                Some(ToolFailure::Failed) if !text("message").starts_with("program stopped") => {
                    Ok(Self::Error(text("message")))
                }
                Some(ToolFailure::ResultContract) => Err("its value was not accepted".to_owned()),
                Some(_) | None => Err("a limit ended it".to_owned()),
            },
            status => Err(format!("it was ended: {status}")),
        }
    }

    fn compare(&self, found: &Result<Returned, String>) -> Result<(), String> {
        match (self, found) {
            (Self::Value(expected), Ok(Returned::Value(value))) if same(expected, value) => Ok(()),
            (Self::Value(Value::Map(expected)), Ok(Returned::Outcome(outcome))) => {
                let mut expected = expected.clone();
                // Stores of version 1 have it.
                expected.remove("metadata");
                let again = Value::Map(envelope(outcome));
                if same(&Value::Map(expected), &again) { Ok(()) } else { Err(format!("gives {}", again.shown())) }
            }
            // A recorded message is cut where it is long.
            (Self::Error(expected), Err(message))
                if message == expected || (expected.len() >= LONG && message.starts_with(expected)) =>
            {
                Ok(())
            }
            (_, Ok(Returned::Value(value))) => Err(format!("gives {}", value.shown())),
            (_, Ok(Returned::Outcome(outcome))) => Err(format!("gives {}", Value::Map(envelope(outcome)).shown())),
            (_, Err(message)) => Err(format!("fails: {}", message.chars().take(200).collect::<String>())),
        }
    }
}

fn canonical_writes(writes: &Written) -> Vec<(&String, Option<Digest>)> {
    writes.iter().map(|(key, value)| (key, value.as_ref().map(|value| canonical::hash(&settled(value))))).collect()
}

/// Whether two values are one. Luau does not tell an empty list from an empty map; a declared deliverable may have.
pub(crate) fn same(left: &Value, right: &Value) -> bool {
    left == right || canonical::hash(&settled(left)) == canonical::hash(&settled(right))
}

fn settled(value: &Value) -> Value {
    match value {
        Value::List(list) if list.is_empty() => Value::Map(Map::new()),
        Value::List(list) => Value::List(list.iter().map(settled).collect()),
        Value::Map(map) => Value::Map(map.iter().map(|(key, value)| (key.clone(), settled(value))).collect()),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => value.clone(),
    }
}

/// What models decided in a flow, by the id of its first call or of any other: for the model `replay:ID`.
pub(crate) fn recorded_flow(store: &dyn Store, id: &str) -> Result<Vec<Decided>, String> {
    let words = |error: StoreError| error.to_string();
    let parsed =
        CallId::parse(id.trim()).ok_or("it takes the whole id of a recorded call, as `cadenza show` prints it")?;
    let text = |record: &Map, name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut root = store.call(parsed).map_err(words)?.ok_or("the store has no call with that id")?;
    let mut nested = root.record.get("depth").and_then(Value::as_int).unwrap_or_default();
    while let Some(parent) = CallId::parse(&text(&root.record, "parent_call_id")).filter(|_| nested > 0) {
        nested -= 1;
        match store.call(parent).map_err(words)? {
            Some(call) => root = call,
            // The calls around it ended with their process.
            None => break,
        }
    }
    let mut calls = match TraceId::parse(&text(&root.record, "trace_id")) {
        Some(trace) => {
            let query = CallQuery { below: Some(trace), ..CallQuery::default() };
            store.calls(&query).map_err(words)?
        }
        None => Vec::new(),
    };
    calls.retain(|call| call.gseq != root.gseq);
    calls.push(root);
    calls.sort_by_key(|call| (text(&call.record, "timestamp"), call.gseq));
    let mut flow = Vec::with_capacity(calls.len());
    for call in calls {
        let id = CallId::parse(&text(&call.record, "call_id")).unwrap_or(parsed);
        let decisions = store.run(id).map_err(words)?.map(|run| run.entries.iter().filter_map(decision).collect());
        let (role, method) = (text(&call.record, "role"), text(&call.record, "method"));
        let Recorded { args, kwargs, .. } = Recorded::of_stored(call);
        flow.push(Decided { role, method, args, kwargs, decisions: decisions.unwrap_or_default() });
    }
    Ok(flow)
}

/// What an entry says that a model decided, if it says so.
fn decision(entry: &StoredEntry) -> Option<Result<(String, Map), String>> {
    let call = |map: &Map, arguments: &str| {
        let name = map.get("name").and_then(Value::as_str)?;
        Some(Ok((name.to_owned(), map.get(arguments)?.as_map()?.clone())))
    };
    match entry.kind() {
        "adapter" => {
            let message = entry.result_field("message")?.as_map()?;
            call(message.get("tool_calls")?.as_list()?.first()?.as_map()?, "arguments")
        }
        "reused" => call(entry.action.as_map()?, "args"),
        "provider_failed" => Some(Err(entry.result_field("message")?.as_str()?.to_owned())),
        _ => None,
    }
}

/// The kernel's part of [`Runtime::replay`], of a stored run.
pub fn replay_stored(run: &StoredRun) -> Result<Box<Ended>, LookBackError> {
    let fingerprint = run.entries.first().map_or("", |entry| &*entry.model_fingerprint);
    let replayed = run.replay(&driver::environment(run.contract.model_profile_id(), fingerprint))?;
    replayed.ended.ok_or(LookBackError::Unfinished)
}

/// The kernel's part of [`Runtime::replay`], of a record at hand.
pub fn replay_record(record: &CallRecord) -> Result<Box<Ended>, LookBackError> {
    let entries = record.metadata.transcript.to_stored();
    let replayed = replay(record.contract.clone(), &record.environment, &entries)?;
    replayed.ended.ok_or(LookBackError::Unfinished)
}
