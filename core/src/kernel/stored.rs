//! Entries as they are stored: self-contained, with their hashes, readable without the code that made them.
//!
//! Every stored entry carries what the chain binds (EC-3.E), so that one edited byte can be found and named. `seq` and
//! `step` live inside the action, where they are hashed (V2); the time stands beside it, unhashed (V4).

use std::sync::Arc;

use super::Environment;
use super::replay::{ReplayError, Replayed, replay};
use super::transcript::{Chain, Entry, EntryHashes, Header, Transcript};
use super::verify::{Divergence, verify};
use crate::canonical::{self, Sink, Writer};
use crate::contract::{ExecutionContract, Millis};
use crate::ids::Digest;
use crate::value::{Map, Value};

/// One stored entry.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEntry {
    /// The state in which it happened.
    pub state: Arc<str>,
    /// What was done: `kind`, `seq`, `step` and what belongs to the kind.
    pub action: Value,
    /// What came of it, or null.
    pub result: Value,
    /// H(action).
    pub action_hash: Digest,
    /// H(result).
    pub result_hash: Digest,
    /// H_n−1.
    pub previous: Digest,
    /// H_n.
    pub hash: Digest,
    /// The run's contract.
    pub contract_hash: Digest,
    /// The adapter's version.
    pub adapter_version: Arc<str>,
    /// The profile.
    pub model_profile_id: Arc<str>,
    /// The model behind the profile.
    pub model_fingerprint: Arc<str>,
    /// When, since the start of the run. Not hashed.
    pub at: Millis,
}

impl StoredEntry {
    /// Its place in the run, from 1; 0 if the action has none.
    pub fn seq(&self) -> u32 {
        self.number("seq")
    }

    /// Its step; 0 in PRECHECK.
    pub fn step(&self) -> u32 {
        self.number("step")
    }

    /// What kind of event it is.
    pub fn kind(&self) -> &str {
        self.text("kind")
    }

    /// A field of the action.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.action.as_map().and_then(|map| map.get(name))
    }

    /// A field of the result.
    pub fn result_field(&self, name: &str) -> Option<&Value> {
        self.result.as_map().and_then(|map| map.get(name))
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.field(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, name: &str) -> u32 {
        self.field(name).and_then(Value::as_int).and_then(|number| u32::try_from(number).ok()).unwrap_or_default()
    }

    /// One JSON object, for storage. [`StoredEntry::from_json`] reads it back unchanged.
    pub fn to_json(&self) -> String {
        let mut out = String::with_capacity(1024);
        Writer::new(&mut out).map(|map| {
            map.field("action").value(&self.action);
            map.field("action_hash").digest(&self.action_hash);
            map.field("adapter_version").str(&self.adapter_version);
            map.field("at_ms").uint(self.at.0);
            map.field("contract_hash").digest(&self.contract_hash);
            map.field("hash").digest(&self.hash);
            map.field("model_fingerprint").str(&self.model_fingerprint);
            map.field("model_profile_id").str(&self.model_profile_id);
            map.field("previous").digest(&self.previous);
            map.field("result").value(&self.result);
            map.field("result_hash").digest(&self.result_hash);
            map.field("state").str(&self.state);
        });
        out
    }

    /// Reads one entry back from JSON.
    pub fn from_json(text: &str) -> Result<Self, StoredError> {
        Self::from_value(Value::from_json(text)?)
    }

    /// The entry that [`Chain::store_parts`] took apart.
    pub fn from_parts(
        value: Value,
        header: &Header,
        previous: Digest,
        hashes: &EntryHashes,
    ) -> Result<Self, StoredError> {
        let Value::Map(mut map) = value else { return Err(StoredError::Field("entry")) };
        Ok(Self {
            action: canonical::decode(map.remove("action").ok_or(StoredError::Field("action"))?),
            result: canonical::decode(map.remove("result").ok_or(StoredError::Field("result"))?),
            state: text_of(&map, "state")?,
            action_hash: hashes.action,
            result_hash: hashes.result,
            previous,
            hash: hashes.chain,
            contract_hash: header.contract_hash,
            adapter_version: header.adapter_version.clone(),
            model_profile_id: header.model_profile_id.clone(),
            model_fingerprint: header.model_fingerprint.clone(),
            at: millis_of(&map, "at_ms")?,
        })
    }

    /// Reads one entry back from parsed JSON.
    pub fn from_value(value: Value) -> Result<Self, StoredError> {
        let Value::Map(mut map) = value else { return Err(StoredError::Field("entry")) };
        let entry = Self {
            action: canonical::decode(map.remove("action").ok_or(StoredError::Field("action"))?),
            result: canonical::decode(map.remove("result").ok_or(StoredError::Field("result"))?),
            state: text_of(&map, "state")?,
            action_hash: digest_of(&map, "action_hash")?,
            result_hash: digest_of(&map, "result_hash")?,
            previous: digest_of(&map, "previous")?,
            hash: digest_of(&map, "hash")?,
            contract_hash: digest_of(&map, "contract_hash")?,
            adapter_version: text_of(&map, "adapter_version")?,
            model_profile_id: text_of(&map, "model_profile_id")?,
            model_fingerprint: text_of(&map, "model_fingerprint")?,
            at: millis_of(&map, "at_ms")?,
        };
        Ok(entry)
    }
}

fn text_of(map: &Map, name: &'static str) -> Result<Arc<str>, StoredError> {
    map.get(name).and_then(Value::as_str).map(Arc::from).ok_or(StoredError::Field(name))
}

fn digest_of(map: &Map, name: &'static str) -> Result<Digest, StoredError> {
    map.get(name).and_then(Value::as_str).and_then(Digest::parse).ok_or(StoredError::Field(name))
}

fn millis_of(map: &Map, name: &'static str) -> Result<Millis, StoredError> {
    let number = map.get(name).and_then(Value::as_int).and_then(|number| u64::try_from(number).ok());
    number.map(Millis).ok_or(StoredError::Field(name))
}

impl Chain<'_> {
    /// Takes the next entry in and returns it as stored. `action` and `result` are read back from what was hashed.
    pub fn store(&mut self, entry: &Entry) -> StoredEntry {
        let previous = self.head();
        let hashes = self.push(entry);
        let header = self.header();
        StoredEntry {
            state: entry.state.as_str().into(),
            action: readable(|out| entry.write_action(out)),
            result: if entry.has_result() { readable(|out| entry.write_result(out)) } else { Value::Null },
            action_hash: hashes.action,
            result_hash: hashes.result,
            previous,
            hash: hashes.chain,
            contract_hash: header.contract_hash,
            adapter_version: header.adapter_version.clone(),
            model_profile_id: header.model_profile_id.clone(),
            model_fingerprint: header.model_fingerprint.clone(),
            at: entry.at,
        }
    }

    /// Takes the next entry in and appends to `out`, as one JSON object, what is its own: `action`, `at_ms`, `result`,
    /// `state`. With the header and the returned hashes, [`StoredEntry::from_parts`] makes it whole again.
    pub fn store_parts(&mut self, entry: &Entry, out: &mut String) -> EntryHashes {
        Writer::new(out as &mut dyn Sink).map(|map| {
            entry.write_action(map.field("action"));
            map.field("at_ms").uint(entry.at.0);
            entry.write_result(map.field("result"));
            map.field("state").str(entry.state.as_str());
        });
        self.push(entry)
    }

    /// Takes the next entry in and appends it to `out` as one JSON object: [`StoredEntry::to_json`] without the detour.
    pub fn store_json(&mut self, entry: &Entry, out: &mut String) {
        let previous = self.head();
        let hashes = self.push(entry);
        let header = self.header();
        let (contract_hash, at) = (header.contract_hash, entry.at);
        let texts = [&header.adapter_version, &header.model_fingerprint, &header.model_profile_id].map(Arc::clone);
        let [adapter_version, fingerprint, profile] = texts;
        Writer::new(out as &mut dyn Sink).map(|map| {
            entry.write_action(map.field("action"));
            map.field("action_hash").digest(&hashes.action);
            map.field("adapter_version").str(&adapter_version);
            map.field("at_ms").uint(at.0);
            map.field("contract_hash").digest(&contract_hash);
            map.field("hash").digest(&hashes.chain);
            map.field("model_fingerprint").str(&fingerprint);
            map.field("model_profile_id").str(&profile);
            map.field("previous").digest(&previous);
            entry.write_result(map.field("result"));
            map.field("result_hash").digest(&hashes.result);
            map.field("state").str(entry.state.as_str());
        });
    }
}

/// A whole run as stored: the contract it ran under, its entries, and the summary's head and length (V3).
#[derive(Clone, Debug)]
pub struct StoredRun {
    /// The contract.
    pub contract: Arc<ExecutionContract>,
    /// All entries, in order.
    pub entries: Vec<StoredEntry>,
    /// Head of the chain.
    pub head: Digest,
    /// Number of entries.
    pub length: usize,
}

impl StoredRun {
    /// The run of a finished transcript.
    pub fn of(contract: Arc<ExecutionContract>, transcript: &Transcript) -> Self {
        Self { contract, entries: transcript.to_stored(), head: transcript.head(), length: transcript.len() }
    }

    /// One JSON object: `contract`, `entries`, `head`, `length`.
    pub fn to_json(&self) -> String {
        let mut out = String::with_capacity(1024 * (self.entries.len() + 1));
        out.push_str("{\"contract\":");
        Writer::new(&mut out).value(&self.contract.to_value());
        out.push_str(",\"entries\":[");
        for (index, entry) in self.entries.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push_str(&entry.to_json());
        }
        out.push_str("],\"head\":\"");
        self.head.write_hex(&mut out);
        out.push_str("\",\"length\":");
        out.push_str(itoa::Buffer::new().format(self.length));
        out.push('}');
        out
    }

    /// Reads a run back. What it says is not believed yet: see [`StoredRun::verify`].
    pub fn from_json(text: &str) -> Result<Self, StoredError> {
        let Value::Map(mut map) = Value::from_json(text)? else { return Err(StoredError::Field("run")) };
        let contract = canonical::decode(map.remove("contract").unwrap_or_default());
        let Some(Value::List(entries)) = map.remove("entries") else { return Err(StoredError::Field("entries")) };
        let length = map.get("length").and_then(Value::as_int).and_then(|length| usize::try_from(length).ok());
        Ok(Self {
            contract: ExecutionContract::from_value(contract).map_err(|_| StoredError::Field("contract"))?.into(),
            entries: entries.into_iter().map(StoredEntry::from_value).collect::<Result<_, _>>()?,
            head: digest_of(&map, "head")?,
            length: length.ok_or(StoredError::Field("length"))?,
        })
    }

    /// Recomputes the whole chain (unified-kernel 6.10, level 1).
    pub fn verify(&self) -> Result<(), Divergence> {
        verify(&self.contract, &self.entries, self.head, self.length)
    }

    /// Runs the recorded inputs through a fresh kernel (level 2).
    pub fn replay(&self, environment: &Environment) -> Result<Replayed, ReplayError> {
        replay(self.contract.clone(), environment, &self.entries)
    }
}

/// Canonical text is JSON with integers that fit, so reading it back cannot fail.
fn readable(write: impl FnOnce(&mut Writer<'_>)) -> Value {
    let mut text = String::new();
    write(&mut Writer::new(&mut text));
    Value::from_json(&text).map(canonical::decode).unwrap_or_default()
}

impl Transcript {
    /// All entries as stored.
    pub fn to_stored(&self) -> Vec<StoredEntry> {
        let mut chain = Chain::new(self.header());
        self.entries().iter().map(|entry| chain.store(entry)).collect()
    }
}

/// A stored entry that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// Not JSON.
    #[error("a stored entry must be JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A part is missing or has the wrong form.
    #[error("a stored entry has no valid `{0}`")]
    Field(&'static str),
}
