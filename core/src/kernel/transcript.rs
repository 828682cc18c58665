//! The transcript: what a run did, entry by entry, and the hash chain over it (EC-3.E, V2–V4).
//!
//! Appending costs nothing but a move: the chain is computed once, when somebody first asks for its head. What all
//! entries share (contract, adapter version, profile, fingerprint) is kept once. Entries cannot be changed or removed.

use std::sync::{Arc, OnceLock};

use sha2::{Digest as _, Sha256};

use crate::canonical::{self, HASH_OF_NULL, Sink, Writer};
use crate::contract;
use crate::ids::Digest;

pub use super::entry::{Entry, Event, State};

/// What all entries of a transcript share.
#[derive(Clone, Debug)]
pub struct Header {
    /// The run's contract.
    pub contract_hash: Digest,
    /// Version of the adapter that read the replies.
    pub adapter_version: Arc<str>,
    /// The profile they were read with.
    pub model_profile_id: Arc<str>,
    /// The model behind the profile.
    pub model_fingerprint: Arc<str>,
}

/// Entries of one run. Append-only: what is in cannot be changed (EC-IE2).
///
/// ```compile_fail
/// use cadenza_core::kernel::transcript::Transcript;
///
/// let mut transcript = Transcript::default();
/// transcript.entries()[0].seq = 9;
/// ```
#[derive(Clone, Debug)]
pub struct Transcript {
    header: Header,
    entries: Vec<Entry>,
    head: OnceLock<Digest>,
}

impl Transcript {
    /// An empty transcript.
    pub fn new(header: Header) -> Self {
        Self { header, entries: Vec::new(), head: OnceLock::new() }
    }

    /// Appends the entries of a step, in order.
    pub fn extend(&mut self, entries: Vec<Entry>) {
        self.head = OnceLock::new();
        if self.entries.is_empty() {
            self.entries = entries;
            // A short run has about a dozen entries: room for them at once.
            self.entries.reserve(12);
        } else {
            self.entries.extend(entries);
        }
    }

    /// What all entries share.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// All entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// No entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Head of the chain: H_n, or H_0 without entries. Computed when first asked for, then kept.
    pub fn head(&self) -> Digest {
        *self.head.get_or_init(|| {
            let mut chain = Chain::new(&self.header);
            for entry in &self.entries {
                chain.push(entry);
            }
            chain.head()
        })
    }

    /// Takes in a head that somebody computed from these entries on the way: it is not computed again.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "only stores do"))]
    pub(crate) fn knows_head(&self, head: Digest) {
        debug_assert!(self.head.get().is_none_or(|known| *known == head), "a head of other entries");
        self.head.get_or_init(|| head);
    }

    /// The states that were entered, in order.
    pub fn states(&self) -> impl Iterator<Item = State> {
        self.entries.iter().filter_map(
            |entry| {
                if let Event::Transition { to, .. } = &entry.event { Some(*to) } else { None }
            },
        )
    }
}

impl Default for Transcript {
    /// An empty transcript of no contract: for outcomes of calls that never started a run.
    fn default() -> Self {
        let header = Header {
            contract_hash: Digest([0; 32]),
            adapter_version: "".into(),
            model_profile_id: "".into(),
            model_fingerprint: "".into(),
        };
        Self::new(header)
    }
}

/// The hashes of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHashes {
    /// H(action).
    pub action: Digest,
    /// H(result).
    pub result: Digest,
    /// H_n.
    pub chain: Digest,
}

/// The running hash chain: for stores that keep each entry's hash as they write it.
pub struct Chain<'a> {
    header: &'a Header,
    /// The texts of the four shared inputs, quoted once.
    contract: String,
    tail: String,
    head: Digest,
}

impl<'a> Chain<'a> {
    /// The chain before its first entry: H_0.
    pub fn new(header: &'a Header) -> Self {
        Self::behind(header, contract::transcript_start(&header.contract_hash))
    }

    /// The chain behind an entry whose hash is known.
    pub fn behind(header: &'a Header, head: Digest) -> Self {
        let mut contract = String::with_capacity(68);
        Writer::new(&mut contract).digest(&header.contract_hash);
        let mut tail = String::with_capacity(64);
        for text in [&header.adapter_version, &header.model_profile_id, &header.model_fingerprint] {
            tail.push(',');
            tail.put_string(text);
        }
        Self { header, contract, tail, head }
    }

    /// The head so far.
    pub fn head(&self) -> Digest {
        self.head
    }

    /// What all entries share.
    pub fn header(&self) -> &Header {
        self.header
    }

    /// Takes the next entry in.
    pub fn push(&mut self, entry: &Entry) -> EntryHashes {
        let action = canonical::hash_with(|out| entry.write_action(out));
        let result =
            if entry.has_result() { canonical::hash_with(|out| entry.write_result(out)) } else { HASH_OF_NULL };
        let chain = self.push_hashes(entry.state.as_str(), &action, &result);
        EntryHashes { action, result, chain }
    }

    /// H_n = H([H_n-1, contract_hash, state, action_hash, result_hash, adapter_version, profile, fingerprint]).
    pub(crate) fn push_hashes(&mut self, state: &str, action: &Digest, result: &Digest) -> Digest {
        let mut line = String::with_capacity(4 * 67 + state.len() + self.tail.len() + 8);
        line.push_str("[\"");
        self.head.write_hex(&mut line);
        line.push_str("\",");
        line.push_str(&self.contract);
        line.push(',');
        line.put_string(state);
        line.push_str(",\"");
        action.write_hex(&mut line);
        line.push_str("\",\"");
        result.write_hex(&mut line);
        line.push('"');
        line.push_str(&self.tail);
        line.push(']');
        self.head = Digest(Sha256::digest(line.as_bytes()).into());
        self.head
    }
}
