//! What reused calls have in common is stored once.
//!
//! Two calls that run the same kept program differ in their arguments, their times and what came of them; the rest of
//! record and transcript is the same text again. So a reused call's row holds what is its own and names, by its digest,
//! the part that it shares. A shared part depends on nothing that differs between two processes: they store it once.
//! Nothing is lost by it: every byte of a shared part is under its digest, and its digest under the seal of every call.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use sha2::{Digest as _, Sha256};

use super::row::{Sealed, digest, header_text, join, render};
use crate::canonical::{HASH_OF_NULL, Writer};
use crate::ids::Digest;
use crate::kernel::transcript::{Chain, Entry, Transcript};
use crate::log::record::CallRecord;
use crate::outcome::ProgramSource;
use crate::provider::secret;

/// Programs whose shared parts the writer remembers.
const PROGRAMS: usize = 128;
/// Shared parts of one program: other roles, other models, other ends.
const VARIANTS: usize = 4;
/// Bytes of a transcript up to which it is remembered: larger ones are stored whole.
const LARGE: usize = 32 << 10;

/// What many calls share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Names it: the digest of everything in it.
    pub(super) hash: Digest,
    /// The fields of the record that are the same in all of them, as one JSON object.
    pub(super) record: String,
    /// See [`Sealed`].
    pub(super) header: Arc<str>,
    /// A JSON list of entries without their times; where a `result` is missing, each call has its own.
    pub(super) entries: Arc<str>,
    /// H(action) of each entry.
    pub(super) hashes: Arc<[u8]>,
}

impl Shared {
    fn new(record: String, header: Arc<str>, entries: Arc<str>, hashes: Arc<[u8]>) -> Self {
        let hash = name(&record, &header, &entries, &hashes);
        Self { hash, record, header, entries, hashes }
    }

    /// Stands for one that is not in the file: it is not whole.
    pub(super) fn missing(hash: Digest) -> Self {
        Self { hash, record: String::new(), header: "".into(), entries: "".into(), hashes: Arc::new([]) }
    }

    /// The one with that name, as the file has it; `None` when there is none.
    pub(super) fn read(connection: &Connection, hash: &Digest) -> rusqlite::Result<Option<Self>> {
        let read = |row: &rusqlite::Row<'_>| {
            let hashes: Vec<u8> = row.get(3)?;
            let (header, entries): (String, String) = (row.get(1)?, row.get(2)?);
            Ok(Self {
                hash: *hash,
                record: row.get(0)?,
                header: header.into(),
                entries: entries.into(),
                hashes: hashes.into(),
            })
        };
        connection
            .prepare_cached("SELECT record, header, entries, hashes FROM shared WHERE hash = ?1")?
            .query_row([hash.0], read)
            .optional()
    }

    /// Stores it, unless it is there already.
    pub(super) fn put(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection
            .prepare_cached(
                "INSERT OR IGNORE INTO shared(hash, record, header, entries, hashes) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![self.hash.0, self.record, &*self.header, &*self.entries, &*self.hashes])?;
        Ok(())
    }

    /// Whether it is what its name says.
    pub(super) fn is_whole(&self) -> bool {
        name(&self.record, &self.header, &self.entries, &self.hashes) == self.hash
    }

    /// H(action) of an entry.
    pub(super) fn action(&self, index: usize) -> Digest {
        self.hashes.get(index * 32..index * 32 + 32).map_or(Digest([0; 32]), digest)
    }

    /// Number of entries.
    pub(super) fn length(&self) -> usize {
        self.hashes.len() / 32
    }
}

fn name(record: &str, header: &str, entries: &str, hashes: &[u8]) -> Digest {
    let mut sha = Sha256::new();
    sha.update(b"shared/1");
    for part in [record.as_bytes(), header.as_bytes(), entries.as_bytes(), hashes] {
        put_bytes(&mut sha, part);
    }
    Digest(sha.finalize().into())
}

/// Takes in bytes with their length, so that nothing can move from one part to the next.
pub(super) fn put_bytes(sha: &mut Sha256, bytes: &[u8]) {
    sha.update((bytes.len() as u64).to_be_bytes());
    sha.update(bytes);
}

/// The shared parts that a writer has seen, by program and number of entries.
#[derive(Default)]
pub(super) struct Seen {
    programs: HashMap<(Digest, usize), Vec<Variant>>,
    order: VecDeque<(Digest, usize)>,
    /// Keys that were known to be secret when the texts were made.
    secrets: usize,
}

struct Variant {
    shared: Arc<Shared>,
    shape: Rc<Shape>,
}

/// The transcript of a call without times and results.
struct Shape {
    transcript: Arc<Transcript>,
    header: Arc<str>,
    entries: Arc<str>,
    hashes: Arc<[u8]>,
    actions: Vec<Digest>,
    /// The first entry that has a result of its own.
    first_result: usize,
    /// The chain before it, under the contract of the last call.
    before: Cell<(Digest, Digest)>,
}

impl Seen {
    /// The columns of a reused call in terms of what it shares with others; `None` when it is to be stored whole.
    pub(super) fn seal(&mut self, call: &CallRecord, code: Option<Digest>) -> Option<Sealed> {
        let transcript = &call.metadata.transcript;
        if call.metadata.source != ProgramSource::Reused {
            return None;
        }
        let secrets = secret::known();
        if self.secrets != secrets {
            *self = Self { secrets, ..Self::default() };
        }
        let key = (code?, transcript.len());
        if !self.programs.contains_key(&key) {
            if self.programs.len() == PROGRAMS
                && let Some(oldest) = self.order.pop_front()
            {
                self.programs.remove(&oldest);
            }
            self.order.push_back(key);
        }
        let variants = self.programs.entry(key).or_default();
        let shape = match variants.iter().find(|variant| variant.shape.fits(transcript)) {
            Some(variant) => variant.shape.clone(),
            None => Rc::new(Shape::of(transcript)?),
        };
        let (entries, hashes) = shape.results(transcript)?;
        let (mut own, mut record) = (String::with_capacity(512), String::with_capacity(1024));
        render(call, &mut own, &mut record);
        let own = join(&[&own]);
        let record = join(&[&record]);
        let same = |variant: &&Variant| Rc::ptr_eq(&variant.shape, &shape) && variant.shared.record == record;
        let shared = match variants.iter().find(same) {
            Some(variant) => variant.shared.clone(),
            None => {
                let Shape { header, entries, hashes, .. } = &*shape;
                let shared = Arc::new(Shared::new(record, header.clone(), entries.clone(), hashes.clone()));
                if variants.len() == VARIANTS {
                    variants.remove(0);
                }
                variants.push(Variant { shared: shared.clone(), shape });
                shared
            }
        };
        Some(Sealed { record: own, entries, hashes, shared: Some(shared), ..Sealed::bare(call, code) })
    }
}

impl Shape {
    /// `None` for a transcript that is too large to remember or holds a secret.
    fn of(transcript: &Arc<Transcript>) -> Option<Self> {
        let mut entries = String::with_capacity(192 * transcript.len());
        let mut actions = Vec::with_capacity(transcript.len());
        entries.push('[');
        for (index, entry) in transcript.entries().iter().enumerate() {
            entries.push_str(if index > 0 { ",{\"action\":" } else { "{\"action\":" });
            let start = entries.len();
            entry.write_action(&mut Writer::new(&mut entries));
            actions.push(Digest::of_bytes(&entries.as_bytes()[start..]));
            entries.push_str(if entry.has_result() { ",\"state\":\"" } else { ",\"result\":null,\"state\":\"" });
            entries.push_str(entry.state.as_str());
            entries.push_str("\"}");
        }
        entries.push(']');
        let keeps_no_secret = secret::scrub(&entries) == entries;
        (keeps_no_secret && entries.len() <= LARGE).then(|| Self {
            transcript: transcript.clone(),
            header: header_text(transcript.header()).into(),
            entries: entries.into(),
            hashes: actions.iter().flat_map(|action| action.0).collect(),
            first_result: transcript.entries().iter().position(Entry::has_result).unwrap_or(transcript.len()),
            actions,
            before: Cell::new((Digest([0; 32]), Digest([0; 32]))),
        })
    }

    fn fits(&self, transcript: &Transcript) -> bool {
        let (own, other) = (self.transcript.header(), transcript.header());
        let same_header = own.adapter_version == other.adapter_version
            && own.model_profile_id == other.model_profile_id
            && own.model_fingerprint == other.model_fingerprint;
        let mut pairs = self.transcript.entries().iter().zip(transcript.entries());
        same_header && self.transcript.len() == transcript.len() && pairs.all(|(own, other)| own.acts_like(other))
    }

    /// Times and results of a transcript of this shape, with the results' hashes; its head is known afterwards. `None` when
    /// it is too large, or when a result holds a secret.
    fn results(&self, transcript: &Transcript) -> Option<(String, Vec<u8>)> {
        let mut text = String::with_capacity(256);
        text.push_str("{\"at\":[");
        if transcript.entries().iter().any(|entry| entry.at.0 != 0) {
            for (index, entry) in transcript.entries().iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                text.push_str(itoa::Buffer::new().format(entry.at.0));
            }
        }
        text.push_str("],\"results\":[");
        let mut hashes = Vec::with_capacity(128);
        let mut chain = Chain::behind(transcript.header(), self.before_results(transcript));
        for (index, entry) in transcript.entries().iter().enumerate().skip(self.first_result) {
            let result = if entry.has_result() {
                text.push_str(if hashes.is_empty() { "" } else { "," });
                let start = text.len();
                entry.write_result(&mut Writer::new(&mut text));
                let hash = Digest::of_bytes(&text.as_bytes()[start..]);
                hashes.extend_from_slice(&hash.0);
                hash
            } else {
                HASH_OF_NULL
            };
            chain.push_hashes(entry.state.as_str(), &self.actions[index], &result);
        }
        text.push_str("]}");
        transcript.knows_head(chain.head());
        (text.len() <= LARGE && secret::scrub(&text) == text).then_some((text, hashes))
    }

    /// The chain before the first result: the same for every transcript of this shape and contract.
    fn before_results(&self, transcript: &Transcript) -> Digest {
        let header = transcript.header();
        let (contract, head) = self.before.get();
        if contract == header.contract_hash {
            return head;
        }
        let mut chain = Chain::new(header);
        for (entry, action) in transcript.entries()[..self.first_result].iter().zip(&self.actions) {
            chain.push_hashes(entry.state.as_str(), action, &HASH_OF_NULL);
        }
        self.before.set((header.contract_hash, chain.head()));
        chain.head()
    }
}
