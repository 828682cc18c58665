//! One ended call as a row, and back: the only place that knows how a run lies in its columns.

use rusqlite::Row;

use crate::canonical;
use crate::contract::ExecutionContract;
use crate::ids::{CallId, Digest, TraceId};
use crate::kernel::transcript::{Chain, EntryHashes, Header};
use crate::kernel::{StoredEntry, StoredError, StoredRun};
use crate::log::{masked, record::CallRecord};
use crate::program::tape::Tape;
use crate::provider::secret;
use crate::value::{Map, Value};

/// Bytes of an entry's three hashes.
const HASHES: usize = 96;

/// The columns of one ended call that hold text or hashes; all of them are under its seal.
pub(super) struct Sealed {
    pub(super) status: String,
    pub(super) record: String,
    pub(super) header: String,
    pub(super) entries: String,
    pub(super) hashes: Vec<u8>,
    pub(super) contract: Digest,
    pub(super) code: Option<Digest>,
    pub(super) place: Option<InTrace>,
    pub(super) tape: Option<String>,
}

/// Where a call stands in its flow. Runs of version 1 do not say, and their seals do not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InTrace {
    pub(super) trace: TraceId,
    pub(super) depth: u32,
}

impl Sealed {
    /// The columns of an ended call. Computes its chain: call it off the caller's thread.
    pub(super) fn of(call: &CallRecord) -> Self {
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
        let mut record = call.to_map();
        record.remove("code");
        record.insert("value".into(), call.outcome.value().clone());
        record.insert("durability".into(), call.metadata.durability.as_str().into());
        if secret::scrub(&entries) != entries {
            // Hashed text cannot be masked. A key must not be stored: the call stays without its transcript.
            record.insert("transcript".into(), "withheld: it holds a secret".into());
            (entries, hashes) = ("[]".to_owned(), Vec::new());
        }
        let header = transcript.header();
        Self {
            status: call.outcome.status().to_owned(),
            record: masked(&Value::Map(record)).to_json(),
            header: Value::List(vec![
                (&*header.adapter_version).into(),
                (&*header.model_profile_id).into(),
                (&*header.model_fingerprint).into(),
            ])
            .to_json(),
            entries,
            hashes,
            contract: header.contract_hash,
            code: call.metadata.code.as_deref().map(|code| Digest::of_bytes(secret::scrub(code).as_bytes())),
            place: Some(InTrace { trace: call.trace_id(), depth: call.depth }),
            tape: tape(call),
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
        Self {
            status: "interrupted".into(),
            record: Value::Map(record).to_json(),
            header: r#"["","",""]"#.into(),
            entries: "[]".into(),
            hashes: Vec::new(),
            contract,
            code: None,
            place,
            tape: None,
        }
    }

    /// The columns of a row that holds them from column `at` on.
    pub(super) fn read(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
        Ok(Self {
            status: row.get(at)?,
            record: row.get(at + 1)?,
            header: row.get(at + 2)?,
            entries: row.get(at + 3)?,
            hashes: row.get(at + 4)?,
            contract: digest(&row.get::<_, Vec<u8>>(at + 5)?),
            code: row.get::<_, Option<Vec<u8>>>(at + 6)?.map(|bytes| digest(&bytes)),
            place: match row.get::<_, Option<Vec<u8>>>(at + 7)? {
                Some(trace) => Some(InTrace { trace: TraceId(id(&trace)), depth: row.get(at + 8)? }),
                None => None,
            },
            tape: row.get(at + 9)?,
        })
    }

    /// The names of the columns, for [`Sealed::read`].
    pub(super) const COLUMNS: &str = "status, record, header, entries, hashes, contract, code, trace, depth, tape";

    /// Seals the row behind the one before it: every byte of it, and its place.
    pub(super) fn seal(&self, previous: &Digest, gseq: i64, run: CallId) -> Digest {
        canonical::hash_with(|out| {
            out.list(|list| {
                list.item().str(if self.place.is_some() { "run/2" } else { "run/1" });
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
                if let Some(InTrace { trace, depth }) = &self.place {
                    list.item().str(&trace.to_string());
                    list.item().uint(u64::from(*depth));
                    list.item().digest(&Digest::of_bytes(self.tape.as_deref().unwrap_or_default().as_bytes()));
                }
            });
        })
    }

    /// Number of transcript entries.
    pub(super) fn length(&self) -> usize {
        self.hashes.len() / HASHES
    }

    /// The record as data.
    pub(super) fn record(&self) -> Map {
        match Value::from_json(&self.record) {
            Ok(Value::Map(map)) => map,
            Ok(_) | Err(_) => Map::new(),
        }
    }

    /// The transcript with its contract. Head and length are those of the record, which the log line has too.
    pub(super) fn run(&self, contract: ExecutionContract) -> Result<StoredRun, StoredError> {
        let Ok(Value::List(entries)) = Value::from_json(&self.entries) else {
            return Err(StoredError::Field("entries"));
        };
        let texts = match Value::from_json(&self.header)? {
            Value::List(texts) => texts,
            _ => return Err(StoredError::Field("header")),
        };
        let [Some(adapter), Some(profile), Some(fingerprint)] =
            [0, 1, 2].map(|index| texts.get(index).and_then(Value::as_str))
        else {
            return Err(StoredError::Field("header"));
        };
        let header = Header {
            contract_hash: self.contract,
            adapter_version: adapter.into(),
            model_profile_id: profile.into(),
            model_fingerprint: fingerprint.into(),
        };
        let mut previous = contract.transcript_start();
        let mut stored = Vec::with_capacity(entries.len());
        for (entry, hashes) in entries.into_iter().zip(self.hashes.chunks_exact(HASHES)) {
            let [action, result, chain] = [0, 32, 64].map(|at| digest(&hashes[at..at + 32]));
            stored.push(StoredEntry::from_parts(entry, &header, previous, &EntryHashes { action, result, chain })?);
            previous = chain;
        }
        let record = self.record();
        let head = record.get("transcript_head").and_then(Value::as_str).and_then(Digest::parse);
        let length = record.get("transcript_length").and_then(Value::as_int);
        Ok(StoredRun {
            contract: contract.into(),
            entries: stored,
            head: head.ok_or(StoredError::Field("transcript_head"))?,
            length: length
                .and_then(|length| usize::try_from(length).ok())
                .ok_or(StoredError::Field("transcript_length"))?,
        })
    }
}

/// What the programs of a call were told; nothing for one that only looked at its arguments. What cannot be stored as it
/// was is not stored at all, but why: a text in place of the list.
fn tape(call: &CallRecord) -> Option<String> {
    let kwargs = call.kwargs.iter().map(|(key, value)| Value::Map(Map::from([(key.clone(), value.clone())])));
    let inputs = call.args.iter().cloned().chain(kwargs);
    let tapes = (0..call.tapes.last().map_or(0, |(number, _)| number + 1)).map(|number| call.tape(number).to_value());
    let told = Value::List(tapes.collect());
    let mut all = inputs.chain([told.clone()]).peekable();
    let mut withheld = None;
    while let (None, Some(value)) = (withheld, all.next()) {
        if secret::is_in(&value) {
            withheld = Some("it was given a secret");
        } else if value.non_finite_path().is_some() {
            withheld = Some("it was given a number that is not finite");
        }
    }
    match withheld {
        Some(why) => Some(Value::from(why).to_json()),
        None if call.tapes.is_empty() => None,
        None => Some(told.to_json()),
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
