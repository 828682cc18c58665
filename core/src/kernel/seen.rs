//! What a run remembers between its inputs: this step's batch, verdicts that wait for COMMIT, the last executed call.

use std::sync::Arc;

use super::commit::Reply;
use super::validate_calls::Fate;
use super::{CallRef, Cut, ToolEnvelope};
use crate::outcome::{GoalStatus, Reason};
use crate::value::{Map, Value};

/// A call of the current batch.
#[derive(Clone, Debug)]
pub(super) struct BatchCall {
    pub id: CallRef,
    pub name: Arc<str>,
    pub arguments: Arc<Map>,
    pub fate: Fate,
    pub result: Option<Result<ToolEnvelope, Cut>>,
    pub observation: Option<Arc<str>>,
}

/// What was seen since the last COMMIT.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub reply: Reply,
    pub rejection: Arc<str>,
    pub content: Arc<str>,
    pub source_model: Arc<str>,
    pub batch: Vec<BatchCall>,
    pub next: usize,
    pub done: Option<(GoalStatus, Arc<Value>)>,
}

/// Verdicts that wait for COMMIT; the first of each kind stays.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub cancelled: bool,
    pub timeout: Option<(Reason, Arc<str>)>,
    pub violation: Option<(Reason, Arc<str>)>,
    pub provider_failed: Option<Arc<str>>,
    pub budget_spent: Option<Arc<str>>,
    pub invalid: Option<(Reason, Arc<str>)>,
}

impl Pending {
    /// Something already ends the run: nothing more may run.
    pub(super) fn stops(&self) -> bool {
        self.cancelled
            || self.timeout.is_some()
            || self.violation.is_some()
            || self.provider_failed.is_some()
            || self.budget_spent.is_some()
            || self.invalid.is_some()
    }
}

/// The last executed call, and how often it came back the same (X1).
#[derive(Debug)]
pub(super) struct Last {
    pub name: Arc<str>,
    pub arguments: Arc<Map>,
    pub envelope: ToolEnvelope,
    pub times: u32,
}
