//! Looking back at an ended call: is its transcript intact, and does the kernel still decide the same?
//!
//! Both work offline: no provider is asked and no tool runs (EC-RP2).

use crate::ids::{CallId, Digest};
use crate::kernel::{Divergence, Ended, ReplayError, StoredRun, replay, verify};
use crate::log::record::CallRecord;
use crate::runtime::{Runtime, driver};
use crate::store::StoreError;

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

    /// Feeds the recorded inputs of an ended call to a fresh kernel; the end must be the same (EC-RP1).
    pub fn replay(&self, id: CallId) -> Result<Box<Ended>, LookBackError> {
        if let Some(record) = self.call(id) {
            return replay_record(&record);
        }
        let stored = self.store().map(|store| store.run(id)).transpose()?.flatten();
        replay_stored(&stored.ok_or(LookBackError::Unknown(id))?)
    }
}

/// [`Runtime::replay`] of a stored run.
pub fn replay_stored(run: &StoredRun) -> Result<Box<Ended>, LookBackError> {
    let fingerprint = run.entries.first().map_or("", |entry| &*entry.model_fingerprint);
    let replayed = run.replay(&driver::environment(fingerprint))?;
    replayed.ended.ok_or(LookBackError::Unfinished)
}

/// [`Runtime::replay`] of a record at hand.
pub fn replay_record(record: &CallRecord) -> Result<Box<Ended>, LookBackError> {
    let entries = record.metadata.transcript.to_stored();
    let replayed = replay(record.contract.clone(), &record.environment, &entries)?;
    replayed.ended.ok_or(LookBackError::Unfinished)
}
