//! Words for the caller: what happened, by how much, and what to do. Elapsed times never appear: these words are hashed.

use std::sync::Arc;

use super::{CANCELLED, Kernel, TimeLimit};
use crate::outcome::{AgentOutcome, Reason};

impl Kernel {
    /// A limit that was passed.
    pub(super) fn limit_words(&self, limit: TimeLimit) -> Arc<str> {
        let budget = self.contract.budget();
        let words = match limit {
            TimeLimit::InferStep => {
                format!("the model took longer than {}; raise `step_timeout_ms`", budget.step_timeout)
            }
            TimeLimit::ToolStep => {
                format!("a tool took longer than {}; raise `step_timeout_ms` or ask for less", budget.step_timeout)
            }
            TimeLimit::Total => {
                format!("the run took longer than {}; raise `total_timeout_ms` or ask for less", budget.total_timeout)
            }
        };
        words.into()
    }

    /// What a run ended with.
    pub(super) fn words(&self, outcome: AgentOutcome, reason: Reason) -> Arc<str> {
        let recorded = |slot: &Option<(Reason, Arc<str>)>| slot.as_ref().map(|(_, words)| words.clone());
        let budget = self.contract.budget();
        let words: Option<Arc<str>> = match outcome {
            AgentOutcome::CompletedWithTools | AgentOutcome::CompletedChatOnly => Some(Arc::default()),
            AgentOutcome::Interrupted => Some(CANCELLED.into()),
            AgentOutcome::FailedTimeout => recorded(&self.pending.timeout),
            AgentOutcome::FailedContractViolation => recorded(&self.pending.violation),
            AgentOutcome::FailedProtocolMalformed if reason == Reason::ProviderUnavailable => {
                self.pending.provider_failed.clone()
            }
            AgentOutcome::FailedProtocolMalformed => Some(self.seen.rejection.clone()),
            AgentOutcome::FailedProtocolNoTools => {
                Some("the model ended without calling the tool that this contract requires".into())
            }
            AgentOutcome::FailedValidation => match &self.pending.invalid {
                Some((_, words)) => Some(words.clone()),
                None => recorded(&self.tool_failed),
            },
            AgentOutcome::FailedBudgetExhausted if reason == Reason::MaxTokens => {
                let limit = budget.max_tokens_consumed.unwrap_or_default();
                Some(format!("{} were used, {limit} were granted (`max_tokens_consumed`)", self.spent.tokens).into())
            }
            AgentOutcome::FailedBudgetExhausted if reason == Reason::MaxCost => self.pending.budget_spent.clone(),
            AgentOutcome::FailedBudgetExhausted if reason == Reason::NoProgress => {
                let window = self.contract.no_progress_window();
                Some(format!("{window} steps in a row made no progress").into())
            }
            AgentOutcome::FailedBudgetExhausted => {
                Some(format!("the granted {} inferences are used up (`max_inferences`)", budget.max_inferences).into())
            }
            AgentOutcome::FailedPreflight => None,
        };
        words.unwrap_or_else(|| reason.as_str().into())
    }
}
