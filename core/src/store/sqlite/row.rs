//! One ended call as a row, and back: the only place that knows how a run lies in its columns.

use std::sync::Arc;

use rusqlite::Row;
use sha2::{Digest as _, Sha256};

use super::shared::{Shared, put_bytes};
use crate::canonical::{self, HASH_OF_NULL};
use crate::contract::ExecutionContract;
use crate::ids::{CallId, Digest, TraceId};
use crate::kernel::transcript::{Chain, EntryHashes, Header};
use crate::kernel::{StoredEntry, StoredError, StoredRun};
use crate::log::record::{CallRecord, Field};
use crate::outcome::Durability;
use crate::program::tape::{HostCall, HostOp, Tape};
use crate::provider::secret;
use crate::value::{Map, Value};

/// Bytes of an entry's three hashes.
pub(super) const HASHES: usize = 96;

/// The columns of one ended call that hold text or hashes; all of them are under its seal.
pub(super) struct Sealed {
    pub(super) role: String,
    pub(super) method: String,
    pub(super) status: String,
    pub(super) durability: String,
    /// The record as a JSON object; of a call that shares some of it, the rest.
    pub(super) record: String,
    /// What all entries share, as a JSON list; empty when it is in the shared part.
    pub(super) header: String,
    /// The entries as a JSON list; of a call that shares them, `{"at":[..],"results":[..]}` with what is its own. `at` is
    /// empty when all are zero.
    pub(super) entries: String,
    /// H(action), H(result) and H_n of each entry; of a call that shares them, H(result) of each result.
    pub(super) hashes: Vec<u8>,
    pub(super) contract: Digest,
    pub(super) code: Option<Digest>,
    pub(super) place: Option<InTrace>,
    pub(super) tape: Option<String>,
    /// What it has in common with other calls.
    pub(super) shared: Option<Arc<Shared>>,
}

/// Where a call stands in its flow. Runs of version 1 do not say, and their seals do not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InTrace {
    pub(super) trace: TraceId,
    pub(super) depth: u32,
}

/// Appends the fields of the record, each with a comma before it: those that differ from call to call into `own`, those
/// that calls of one program share into `common`. The code has a table of its own.
pub(super) fn render(call: &CallRecord, own: &mut String, common: &mut String) {
    let mut put = |name: &'static str, field: Field<'_>| {
        let out = match name {
            "code" => return,
            "args" | "kwargs" | "call_id" | "trace_id" | "parent_call_id" | "depth" | "duration_ms" | "timestamp"
            | "value" | "transcript_head" | "context" | "outcome_value" | "agent" => &mut *own,
            _ => &mut *common,
        };
        out.push_str(",\"");
        out.push_str(name);
        out.push_str("\":");
        field.write_masked(out);
    };
    call.fields(&mut put);
    put("value", Field::Value(call.outcome.value()));
    put("durability", Field::Text(call.metadata.durability.as_str()));
}

/// A JSON object of rendered fields.
pub(super) fn join(fields: &[&str]) -> String {
    let mut text = fields.concat();
    if text.is_empty() {
        text.push('{');
    } else {
        text.replace_range(..1, "{");
    }
    text.push('}');
    text
}

/// What all entries of a transcript share, but for the contract.
pub(super) fn header_text(header: &Header) -> String {
    Value::List(vec![
        (&*header.adapter_version).into(),
        (&*header.model_profile_id).into(),
        (&*header.model_fingerprint).into(),
    ])
    .to_json()
}

impl Sealed {
    /// The columns of an ended call, whole. Computes its chain: call it off the caller's thread.
    pub(super) fn of(call: &CallRecord, code: Option<Digest>) -> Self {
        let transcript = &call.metadata.transcript;
        let mut entries = String::with_capacity(256 * transcript.len());
        let mut hashes = Vec::with_capacity(HASHES * transcript.len());
        let mut chain = Chain::new(transcript.header());
        entries.push('[');
        for (index, entry) in transcript.entries().iter().enumerate() {
            if index > 0 {
                entries.push(',');
            }
            let EntryHashes { action, result, chain } = chain.store_parts(entry, &mut entries);
            for digest in [action, result, chain] {
                hashes.extend_from_slice(&digest.0);
            }
        }
        entries.push(']');
        transcript.knows_head(chain.head());
        let (mut own, mut common) = (String::with_capacity(512), String::with_capacity(1024));
        render(call, &mut own, &mut common);
        if secret::scrub(&entries) != entries {
            // Hashed text cannot be masked. A key must not be stored: the call stays without its transcript.
            common.push_str(r#","transcript":"withheld: it holds a secret""#);
            (entries, hashes) = ("[]".to_owned(), Vec::new());
        }
        let header = header_text(transcript.header());
        Self { record: join(&[&own, &common]), header, entries, hashes, ..Self::bare(call, code) }
    }

    /// What needs no rendering.
    pub(super) fn bare(call: &CallRecord, code: Option<Digest>) -> Self {
        Self {
            role: call.role.to_string(),
            method: call.method.to_string(),
            status: call.outcome.status().to_owned(),
            durability: call.metadata.durability.as_str().to_owned(),
            record: String::new(),
            header: String::new(),
            entries: String::new(),
            hashes: Vec::new(),
            contract: call.metadata.transcript.header().contract_hash,
            code,
            place: Some(InTrace { trace: call.trace_id(), depth: call.depth }),
            tape: tape(call),
            shared: None,
        }
    }

    /// A call that ended with its process: what was known when it last spoke.
    pub(super) fn interrupted(mut record: Map, contract: Digest) -> Self {
        let trace = record.get("trace_id").and_then(Value::as_str).and_then(TraceId::parse);
        let depth = record.get("depth").and_then(Value::as_int).and_then(|depth| u32::try_from(depth).ok());
        let place = trace.zip(depth).map(|(trace, depth)| InTrace { trace, depth });
        record.insert("outcome_status".into(), "error".into());
        record.insert("outcome_error_type".into(), "interrupted".into());
        record.insert("outcome_error_message".into(), "the process ended before the call did".into());
        record.insert("agent_outcome".into(), "INTERRUPTED".into());
        record.insert("reason".into(), "cancelled".into());
        record.insert("durability".into(), Durability::Strict.as_str().into());
        let text = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            role: text("role"),
            method: text("method"),
            status: "interrupted".into(),
            durability: Durability::Strict.as_str().into(),
            record: Value::Map(record).to_json(),
            header: r#"["","",""]"#.into(),
            entries: "[]".into(),
            hashes: Vec::new(),
            contract,
            code: None,
            place,
            tape: None,
            shared: None,
        }
    }

    /// The columns of a row that holds them from column `at` on. A shared part that is missing is one without content.
    pub(super) fn read(
        row: &Row<'_>,
        at: usize,
        shared: &mut dyn FnMut(&Digest) -> rusqlite::Result<Arc<Shared>>,
    ) -> rusqlite::Result<Self> {
        let place = match row.get_ref(at + 9)?.as_blob_or_null()? {
            Some(trace) => Some(InTrace { trace: TraceId(id(trace)), depth: row.get(at + 10)? }),
            None => None,
        };
        Ok(Self {
            role: row.get(at)?,
            method: row.get(at + 1)?,
            status: row.get(at + 2)?,
            durability: row.get(at + 3)?,
            record: row.get(at + 4)?,
            header: row.get(at + 5)?,
            entries: row.get(at + 6)?,
            hashes: row.get(at + 7)?,
            contract: digest(row.get_ref(at + 8)?.as_blob()?),
            place,
            tape: row.get(at + 11)?,
            code: row.get_ref(at + 12)?.as_blob_or_null()?.map(digest),
            shared: match row.get_ref(at + 13)?.as_blob_or_null()? {
                Some(hash) => Some(shared(&digest(hash))?),
                None => None,
            },
        })
    }

    /// The names of the columns, for [`Sealed::read`].
    pub(super) const COLUMNS: &str = "role, method, status, durability, record, header, entries, hashes, contract,
        trace, depth, tape, code, shared";

    /// Seals the row behind the one before it: every byte of it, and its place.
    pub(super) fn seal(&self, previous: &Digest, gseq: i64, run: CallId, agent: Option<i64>) -> Digest {
        let Some(InTrace { trace, depth }) = self.place else { return self.first_seal(previous, gseq, run) };
        let mut sha = Sha256::new();
        sha.update(b"run/2");
        sha.update(previous.0);
        sha.update(gseq.to_be_bytes());
        sha.update(run_bytes(run));
        sha.update(trace.0.to_be_bytes());
        sha.update(depth.to_be_bytes());
        sha.update(self.contract.0);
        // What may be missing says so by its length.
        put_bytes(&mut sha, agent.map(i64::to_be_bytes).as_ref().map_or(&[], |agent| agent));
        put_bytes(&mut sha, self.code.as_ref().map_or(&[], |code| &code.0));
        put_bytes(&mut sha, self.shared.as_ref().map_or(&[], |shared| &shared.hash.0));
        put_bytes(&mut sha, self.tape.is_some().then_some(b"tape").map_or(&[], |mark| mark));
        let tape = self.tape.as_deref().unwrap_or_default();
        for text in
            [&self.role, &self.method, &self.status, &self.durability, &self.record, &self.header, &self.entries]
        {
            put_bytes(&mut sha, text.as_bytes());
        }
        put_bytes(&mut sha, tape.as_bytes());
        put_bytes(&mut sha, &self.hashes);
        Digest(sha.finalize().into())
    }

    /// The seal of runs of version 1.
    fn first_seal(&self, previous: &Digest, gseq: i64, run: CallId) -> Digest {
        canonical::hash_with(|out| {
            out.list(|list| {
                list.item().str("run/1");
                list.item().digest(previous);
                list.item().int(gseq);
                list.item().str(&run.to_string());
                for text in [&self.status, &self.record, &self.header, &self.entries] {
                    list.item().digest(&Digest::of_bytes(text.as_bytes()));
                }
                list.item().digest(&Digest::of_bytes(&self.hashes));
                list.item().digest(&self.contract);
                match &self.code {
                    Some(code) => list.item().digest(code),
                    None => list.item().null(),
                }
            });
        })
    }

    /// Number of transcript entries.
    pub(super) fn length(&self) -> usize {
        self.shared.as_ref().map_or(self.hashes.len() / HASHES, |shared| shared.length())
    }

    /// The record as data.
    pub(super) fn record(&self) -> Map {
        record(&self.record, self.shared.as_ref().map(|shared| &*shared.record))
    }

    /// The transcript with its contract. Head and length are those of the record, which the log line has too.
    pub(super) fn run(&self, contract: ExecutionContract) -> Result<StoredRun, StoredError> {
        let header = self.header()?;
        let entries = match &self.shared {
            None => self.whole_entries(&header, contract.transcript_start())?,
            Some(shared) => self.shared_entries(shared, &header)?,
        };
        let record = self.record();
        let head = record.get("transcript_head").and_then(Value::as_str).and_then(Digest::parse);
        let length = record.get("transcript_length").and_then(Value::as_int);
        Ok(StoredRun {
            contract: contract.into(),
            entries,
            head: head.ok_or(StoredError::Field("transcript_head"))?,
            length: length
                .and_then(|length| usize::try_from(length).ok())
                .ok_or(StoredError::Field("transcript_length"))?,
        })
    }

    /// What all entries share.
    pub(super) fn header(&self) -> Result<Header, StoredError> {
        let text = self.shared.as_ref().map_or(&*self.header, |shared| &*shared.header);
        let texts = list(text, "header")?;
        let [Some(adapter), Some(profile), Some(fingerprint)] =
            [0, 1, 2].map(|index| texts.get(index).and_then(Value::as_str))
        else {
            return Err(StoredError::Field("header"));
        };
        Ok(Header {
            contract_hash: self.contract,
            adapter_version: adapter.into(),
            model_profile_id: profile.into(),
            model_fingerprint: fingerprint.into(),
        })
    }

    fn whole_entries(&self, header: &Header, mut previous: Digest) -> Result<Vec<StoredEntry>, StoredError> {
        let entries = list(&self.entries, "entries")?;
        let mut stored = Vec::with_capacity(entries.len());
        for (entry, hashes) in entries.into_iter().zip(self.hashes.chunks_exact(HASHES)) {
            let [action, result, chain] = [0, 32, 64].map(|at| digest(&hashes[at..at + 32]));
            stored.push(StoredEntry::from_parts(entry, header, previous, &EntryHashes { action, result, chain })?);
            previous = chain;
        }
        Ok(stored)
    }

    /// Puts together what is shared and what is the call's own. The chain is not stored: it follows from the hashes.
    fn shared_entries(&self, shared: &Shared, header: &Header) -> Result<Vec<StoredEntry>, StoredError> {
        let Ok(Value::Map(mut own)) = Value::from_json(&self.entries) else {
            return Err(StoredError::Field("entries"));
        };
        let mut take = |name: &str| match own.remove(name) {
            Some(Value::List(items)) => Ok(items.into_iter()),
            Some(_) | None => Err(StoredError::Field("entries")),
        };
        let (mut times, mut results) = (take("at")?, take("results")?);
        let mut hashes = self.hashes.chunks_exact(32).map(digest);
        let mut chain = Chain::new(header);
        let mut stored = Vec::with_capacity(shared.length());
        for (index, entry) in list(&shared.entries, "entries")?.into_iter().enumerate() {
            let Value::Map(mut entry) = entry else { return Err(StoredError::Field("entry")) };
            let mut result_hash = HASH_OF_NULL;
            if !entry.contains_key("result") {
                entry.insert("result".into(), results.next().ok_or(StoredError::Field("result"))?);
                result_hash = hashes.next().ok_or(StoredError::Field("result"))?;
            }
            entry.insert("at_ms".into(), times.next().unwrap_or(Value::Int(0)));
            let state = entry.get("state").and_then(Value::as_str).ok_or(StoredError::Field("state"))?;
            let (previous, action) = (chain.head(), shared.action(index));
            let hashes =
                EntryHashes { action, result: result_hash, chain: chain.push_hashes(state, &action, &result_hash) };
            stored.push(StoredEntry::from_parts(Value::Map(entry), header, previous, &hashes)?);
        }
        Ok(stored)
    }
}

/// A record as data: what is the call's own, and what it shares.
pub(super) fn record(own: &str, shared: Option<&str>) -> Map {
    let read = |text: &str| match Value::from_json(text) {
        Ok(Value::Map(map)) => map,
        Ok(_) | Err(_) => Map::new(),
    };
    let mut record = shared.map(read).unwrap_or_default();
    record.append(&mut read(own));
    record
}

fn list(text: &str, name: &'static str) -> Result<Vec<Value>, StoredError> {
    match Value::from_json(text)? {
        Value::List(items) => Ok(items),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::Map(_) => {
            Err(StoredError::Field(name))
        }
    }
}

/// What the programs of a call were told; nothing for one that only looked at its arguments. What cannot be stored as it
/// was is not stored at all, but why: a text in place of the list.
fn tape(call: &CallRecord) -> Option<String> {
    let withheld = |value: &Value| {
        if secret::is_in(value) {
            Some("it was given a secret")
        } else {
            value.non_finite_path().map(|_| "it was given a number that is not finite")
        }
    };
    let named = |(key, value): (&String, &Value)| {
        let secret = secret::is_secret_name(key) && *value != Value::Null;
        if secret { Some("it was given a secret") } else { withheld(value) }
    };
    let told = (!call.tapes.is_empty()).then(|| Value::List(call.all_tapes().map(Tape::to_value).collect()));
    let by_name = || call.tapes.iter().any(|(_, tape)| tape.calls.iter().any(asks_for_a_secret));
    let given = || call.args.iter().find_map(withheld).or_else(|| call.kwargs.iter().find_map(named));
    let gave = || withheld(call.outcome.value());
    let told_secret = || by_name().then_some("it was given a secret");
    let withheld = given().or_else(gave).or_else(told_secret).or_else(|| told.as_ref().and_then(withheld));
    match withheld {
        Some(why) => Some(Value::from(why).to_json()),
        None => told.map(|told| told.to_json()),
    }
}

/// Whether a program asked another agent for something that is called like a secret, or told it.
fn asks_for_a_secret(call: &HostCall) -> bool {
    let name = call.asked.get(1).and_then(Value::as_str).unwrap_or_default();
    match call.what {
        HostOp::Get | HostOp::Set => secret::is_secret_name(name),
        HostOp::Call => name.strip_suffix('=').is_some_and(secret::is_secret_name),
        _ => false,
    }
}

/// Reads [`tape`] back; the error says why it is not there.
pub(super) fn tapes(text: Option<&str>) -> Result<Vec<Tape>, String> {
    let unreadable = || "its tape cannot be read".to_owned();
    let Some(text) = text else { return Ok(Vec::new()) };
    match Value::from_json(text).map_err(|_| unreadable())? {
        Value::List(tapes) => tapes.iter().map(Tape::from_value).collect::<Option<_>>().ok_or_else(unreadable),
        Value::String(why) => Err(why),
        _ => Err(unreadable()),
    }
}

/// 32 bytes as a digest; shorter ones are filled up with zeros, and so do not match anything.
pub(super) fn digest(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    let length = bytes.len().min(32);
    digest[..length].copy_from_slice(&bytes[..length]);
    Digest(digest)
}

/// The 16 bytes of a call's id.
pub(super) fn run_bytes(id: CallId) -> [u8; 16] {
    id.0.to_be_bytes()
}

/// The id behind 16 bytes.
pub(super) fn run_id(bytes: &[u8]) -> CallId {
    CallId(id(bytes))
}

fn id(bytes: &[u8]) -> u128 {
    bytes.try_into().map_or(0, u128::from_be_bytes)
}
