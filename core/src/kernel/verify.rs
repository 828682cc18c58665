//! Verification: is this transcript whole and unchanged, and where not? (V3, EC-H1 to EC-H9, unified-kernel 6.10 level 1)
//!
//! Needs no code of the run: it recomputes hashes from stored fields. A chain proves order and content; that nothing is
//! missing at the end and that nobody rewrote everything is proved by head and length from the run's summary.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::stored::StoredEntry;
use super::transcript::{Chain, Header};
use crate::canonical;
use crate::contract::ExecutionContract;
use crate::ids::Digest;

/// The part of an entry, or of the whole, that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The link to the entry before.
    Previous,
    /// The contract hash.
    Contract,
    /// The state, or the entry's own hash.
    State,
    /// The action, `seq` and `step` included.
    Action,
    /// The result.
    Result,
    /// The adapter's version.
    Adapter,
    /// The profile.
    Profile,
    /// The model's fingerprint.
    Fingerprint,
    /// The number of entries.
    Length,
    /// The head of the chain.
    Head,
}

impl Component {
    /// The spelling in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Previous => "previous",
            Self::Contract => "contract_hash",
            Self::State => "state",
            Self::Action => "action_hash",
            Self::Result => "result_hash",
            Self::Adapter => "adapter_version",
            Self::Profile => "model_profile_id",
            Self::Fingerprint => "model_fingerprint",
            Self::Length => "length",
            Self::Head => "head",
        }
    }
}

/// The first place that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {seq}: `{component}` does not fit")]
pub struct Divergence {
    /// 1-based place in the stored order.
    pub seq: u32,
    /// What does not fit there.
    pub component: Component,
}

impl fmt::Display for Component {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Recomputes the whole chain. `head` and `length` come from the run's summary. O(n) hashing, nothing else.
pub fn verify(
    contract: &ExecutionContract,
    entries: &[StoredEntry],
    head: Digest,
    length: usize,
) -> Result<(), Divergence> {
    let Some(first) = entries.first() else {
        let component = if length == 0 { Component::Head } else { Component::Length };
        let whole = length == 0 && head == contract.transcript_start();
        return if whole { Ok(()) } else { Err(Divergence { seq: 1, component }) };
    };
    // What all entries share has no witness outside them: where one of three was edited, the other two agree.
    let second = entries.get(1).unwrap_or(first);
    let last = entries.last().unwrap_or(first);
    let agreed = |read: fn(&StoredEntry) -> &Arc<str>| {
        if read(second) == read(last) { read(second).clone() } else { read(first).clone() }
    };
    let header = Header {
        contract_hash: contract.contract_hash(),
        adapter_version: agreed(|entry| &entry.adapter_version),
        model_profile_id: contract.model_profile_id().clone(),
        model_fingerprint: agreed(|entry| &entry.model_fingerprint),
    };
    let mut chain = Chain::new(&header);
    for (index, entry) in entries.iter().enumerate() {
        let seq = index as u32 + 1;
        if let Some(component) = first_flaw(&mut chain, entry, seq) {
            return Err(Divergence { seq, component });
        }
    }
    let last = entries.len() as u32;
    if entries.len() != length {
        return Err(Divergence { seq: last.min(length as u32) + 1, component: Component::Length });
    }
    if chain.head() != head {
        return Err(Divergence { seq: last, component: Component::Head });
    }
    Ok(())
}

fn first_flaw(chain: &mut Chain<'_>, entry: &StoredEntry, seq: u32) -> Option<Component> {
    let header = chain.header();
    if entry.previous != chain.head() {
        Some(Component::Previous)
    } else if entry.contract_hash != header.contract_hash {
        Some(Component::Contract)
    } else if entry.adapter_version != header.adapter_version {
        Some(Component::Adapter)
    } else if entry.model_profile_id != header.model_profile_id {
        Some(Component::Profile)
    } else if entry.model_fingerprint != header.model_fingerprint {
        Some(Component::Fingerprint)
    } else if entry.seq() != seq || canonical::hash(&entry.action) != entry.action_hash {
        Some(Component::Action)
    } else if canonical::hash(&entry.result) != entry.result_hash {
        Some(Component::Result)
    } else if chain.push_hashes(&entry.state, &entry.action_hash, &entry.result_hash) != entry.hash {
        // Everything else was checked: the state, or the hash itself, was edited.
        Some(Component::State)
    } else {
        None
    }
}

/// The first difference between two transcripts of the same run (unified-kernel 6.10 level 2).
pub fn compare(recorded: &[StoredEntry], replayed: &[StoredEntry]) -> Option<Divergence> {
    for (index, (old, new)) in recorded.iter().zip(replayed).enumerate() {
        if let Some(component) = difference(old, new) {
            return Some(Divergence { seq: index as u32 + 1, component });
        }
    }
    let seq = recorded.len().min(replayed.len()) as u32 + 1;
    (recorded.len() != replayed.len()).then_some(Divergence { seq, component: Component::Length })
}

fn difference(old: &StoredEntry, new: &StoredEntry) -> Option<Component> {
    if old.contract_hash != new.contract_hash {
        Some(Component::Contract)
    } else if old.adapter_version != new.adapter_version {
        Some(Component::Adapter)
    } else if old.model_profile_id != new.model_profile_id {
        Some(Component::Profile)
    } else if old.model_fingerprint != new.model_fingerprint {
        Some(Component::Fingerprint)
    } else if old.state != new.state {
        Some(Component::State)
    } else if old.action_hash != new.action_hash {
        Some(Component::Action)
    } else if old.result_hash != new.result_hash {
        Some(Component::Result)
    } else if old.hash != new.hash {
        Some(Component::Head)
    } else {
        None
    }
}

/// A keyed seal over head and length (HMAC-SHA-256), for summaries that an attacker could rewrite (V3, EC-H7).
pub fn keyed_seal(key: &[u8], head: Digest, length: usize) -> Digest {
    let mut block = [0_u8; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Digest::of_bytes(key).0);
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let pad = |byte: u8| block.map(|own| own ^ byte);
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(head.0).chain_update((length as u64).to_be_bytes());
    let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner.finalize());
    Digest(outer.finalize().into())
}
