//! The state digest: what a user interface may show, as a function of the entries alone (EC-3.D, EC-ID1, EC-ID2).
//!
//! Every step carries the digest of the machine after it. The same digest is the fold of the stored entries up to that
//! place, so an interface can be rebuilt from storage, and digests that arrive out of order are put right by `seq`.

use super::stored::StoredEntry;
use super::{Entry, Event, State};
use crate::canonical::{self, Canonical, Writer};
use crate::ids::Digest;
use crate::outcome::{AgentOutcome, Reason};

/// Where a run stands, in a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDigest {
    /// The last entry.
    pub seq: u32,
    /// Its step.
    pub step: u32,
    /// The state.
    pub state: State,
    /// Replies that arrived.
    pub inferences: u32,
    /// Tools that were started, control tools included.
    pub tools_started: u32,
    /// Tools that came back or were cut.
    pub tools_finished: u32,
    /// Retries, nudges and repairs.
    pub retries: u32,
    /// Only after the last entry.
    pub outcome: Option<(AgentOutcome, Reason)>,
}

impl Default for StateDigest {
    fn default() -> Self {
        Self {
            seq: 0,
            step: 0,
            state: State::Init,
            inferences: 0,
            tools_started: 0,
            tools_finished: 0,
            retries: 0,
            outcome: None,
        }
    }
}

impl StateDigest {
    /// Takes the next entry in, live.
    pub fn take(&mut self, entry: &Entry) {
        self.seq = entry.seq;
        self.step = entry.step;
        self.state = entry.state;
        match &entry.event {
            Event::Adapter(_) => self.inferences += 1,
            Event::ToolStarted { .. } => self.tools_started += 1,
            Event::Tool(_) => self.tools_finished += 1,
            Event::Retry { .. } | Event::Nudge { .. } | Event::Repair { .. } => self.retries += 1,
            Event::Terminated(terminal) => self.outcome = Some((terminal.agent_outcome, terminal.reason)),
            Event::Transition { .. }
            | Event::Readiness { .. }
            | Event::InferenceCut { .. }
            | Event::ProviderFailed { .. }
            | Event::BudgetSpent { .. }
            | Event::Reused(_)
            | Event::CallRejected { .. }
            | Event::ToolSkipped { .. }
            | Event::Truncated { .. }
            | Event::Gate { .. }
            | Event::Synthesis
            | Event::CallsDropped { .. }
            | Event::Verdict { .. }
            | Event::ContractMutated { .. }
            | Event::PersistenceFailed { .. }
            | Event::IllegalInput { .. }
            | Event::Committed { .. } => {}
        }
    }

    /// The digest after those stored entries.
    pub fn fold<'a>(entries: impl IntoIterator<Item = &'a StoredEntry>) -> Self {
        let mut digest = Self::default();
        for entry in entries {
            digest.seq = entry.seq();
            digest.step = entry.step();
            digest.state = State::from_name(&entry.state).unwrap_or(digest.state);
            match entry.kind() {
                "adapter" if entry.result != crate::value::Value::Null => digest.inferences += 1,
                "tool_started" => digest.tools_started += 1,
                "tool" => digest.tools_finished += 1,
                "retry" | "nudge" | "repair" => digest.retries += 1,
                "terminated" => {
                    let word = |name: &str| entry.result_field(name).and_then(|value| value.as_str());
                    let outcome = word("outcome").and_then(AgentOutcome::from_name);
                    digest.outcome = outcome.zip(word("reason").and_then(Reason::from_name));
                }
                _ => {}
            }
        }
        digest
    }

    /// The state to show out of digests in any order: the one with the highest `seq`.
    pub fn latest(digests: impl IntoIterator<Item = Self>) -> Option<Self> {
        digests.into_iter().max_by_key(|digest| digest.seq)
    }

    /// `H` of it, for comparing without looking inside.
    pub fn hash(&self) -> Digest {
        canonical::hash(self)
    }
}

impl Canonical for StateDigest {
    fn write(&self, out: &mut Writer<'_>) {
        out.map(|map| {
            map.field("inferences").uint(u64::from(self.inferences));
            map.field("outcome").option(self.outcome.map(|(outcome, _)| outcome.as_str()));
            map.field("reason").option(self.outcome.map(|(_, reason)| reason.as_str()));
            map.field("retries").uint(u64::from(self.retries));
            map.field("seq").uint(u64::from(self.seq));
            map.field("state").str(self.state.as_str());
            map.field("step").uint(u64::from(self.step));
            map.field("tools_finished").uint(u64::from(self.tools_finished));
            map.field("tools_started").uint(u64::from(self.tools_started));
        });
    }
}
