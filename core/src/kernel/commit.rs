//! COMMIT: what follows? The predicates in their order (V26); exactly one fires.
//!
//! The order is part of the contract: interrupt and time, budgets, violation, protocol, validation, window, success, no
//! progress, go on. Takes facts, returns a verdict; never changes anything.

use super::Kernel;
use super::entry::Predicate;
use crate::contract::{CompletionMode, Tokens, ToolPolicy};
use crate::message::RejectionCode;
use crate::outcome::{AgentOutcome, GoalStatus, Reason};

/// What this step's reply was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reply {
    /// None crossed the boundary: cut, or the provider failed.
    #[default]
    Absent,
    /// The adapter rejected it.
    Rejected(RejectionCode),
    /// Prose without calls, or a synthesis.
    NoCall,
    /// Calls, generated or reused.
    Calls,
}

/// Everything COMMIT looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub policy: ToolPolicy,
    pub mode: CompletionMode,
    pub strict: bool,
    pub reply: Reply,
    /// This reply answered the tool-less synthesis request.
    pub synthesis: bool,
    /// Cancelled.
    pub cancelled: bool,
    /// A time limit, or the fuel of a program, was passed.
    pub timeout: Option<Reason>,
    pub tokens_exceeded: bool,
    /// No money is left for another request.
    pub budget_spent: bool,
    /// An inference and a token are left.
    pub inference_left: bool,
    pub token_left: bool,
    pub violation: Option<Reason>,
    pub provider_failed: bool,
    /// A malformed envelope, an invalid call under strict, five errors in a row.
    pub invalid: Option<Reason>,
    /// Why the last required tool failed.
    pub tool_failed: Option<Reason>,
    pub executed: u32,
    pub executed_ok: u32,
    /// The model has asked for some call during the run, valid or not.
    pub attempted_call: bool,
    pub done: Option<GoalStatus>,
    pub format_retry_left: bool,
    pub semantic_retry_left: bool,
    pub threshold_reached: bool,
    pub no_progress: bool,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Finish(AgentOutcome, Reason),
    Infer(Again),
}

/// Why the model is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Act,
    Retry(RejectionCode),
    Nudge,
    Repair,
    Synthesis,
}

pub(super) fn decide(facts: &Facts) -> (Predicate, Next) {
    let finish = |predicate, outcome, reason| (predicate, Next::Finish(outcome, reason));
    if facts.cancelled {
        return finish(Predicate::InterruptOrTime, AgentOutcome::Interrupted, Reason::Cancelled);
    }
    if let Some(reason) = facts.timeout {
        return finish(Predicate::InterruptOrTime, AgentOutcome::FailedTimeout, reason);
    }
    if facts.tokens_exceeded {
        return finish(Predicate::Budget, AgentOutcome::FailedBudgetExhausted, Reason::MaxTokens);
    }
    if facts.budget_spent {
        return finish(Predicate::Budget, AgentOutcome::FailedBudgetExhausted, Reason::MaxCost);
    }
    if let Some(reason) = facts.violation {
        return finish(Predicate::Violation, AgentOutcome::FailedContractViolation, reason);
    }
    if let Some((outcome, reason)) = protocol_failure(facts) {
        return finish(Predicate::Protocol, outcome, reason);
    }
    if let Some(reason) = validation_failure(facts) {
        return finish(Predicate::Validation, AgentOutcome::FailedValidation, reason);
    }
    let success = success(facts);
    if facts.threshold_reached
        && success.is_none()
        && let Some(next) = at_threshold(facts)
    {
        return (Predicate::ContextThreshold, next);
    }
    if let Some(reason) = success {
        return finish(Predicate::Success, facts.completed(), reason);
    }
    if facts.no_progress {
        let (outcome, reason) = if facts.lacks_proof() {
            (AgentOutcome::FailedProtocolNoTools, Reason::NoProgress)
        } else {
            (AgentOutcome::FailedBudgetExhausted, Reason::NoProgress)
        };
        return finish(Predicate::NoProgress, outcome, reason);
    }
    if !facts.inference_left {
        return finish(Predicate::Continue, AgentOutcome::FailedBudgetExhausted, Reason::MaxInferences);
    }
    (Predicate::Continue, Next::Infer(again(facts)))
}

impl Facts {
    /// Reads them off a run.
    pub(super) fn of(kernel: &Kernel) -> Self {
        let budget = kernel.contract.budget();
        let window = kernel.contract.no_progress_window();
        let repeated = kernel.last.as_ref().is_some_and(|last| last.times >= window);
        let talked =
            kernel.contract.completion_mode() == CompletionMode::OnDoneTool && kernel.replies_without_call >= window;
        Self {
            policy: kernel.contract.tool_policy(),
            mode: kernel.contract.completion_mode(),
            strict: kernel.contract.strict_mode(),
            reply: kernel.seen.reply,
            synthesis: kernel.synthesis,
            cancelled: kernel.pending.cancelled,
            timeout: kernel.pending.timeout.as_ref().map(|(reason, _)| *reason),
            tokens_exceeded: kernel.tokens_exceeded(),
            budget_spent: kernel.pending.budget_spent.is_some(),
            inference_left: kernel.spent.inferences < budget.max_inferences,
            token_left: budget.max_tokens_consumed.is_none_or(|limit| kernel.spent.tokens < limit),
            violation: kernel.pending.violation.as_ref().map(|(reason, _)| *reason),
            provider_failed: kernel.pending.provider_failed.is_some(),
            invalid: kernel.pending.invalid.as_ref().map(|(reason, _)| *reason),
            tool_failed: kernel.tool_failed.as_ref().map(|(reason, _)| *reason),
            executed: kernel.spent.tools_executed,
            executed_ok: kernel.spent.tools_ok,
            attempted_call: kernel.attempted_call,
            done: kernel.seen.done.as_ref().map(|(status, _)| *status),
            format_retry_left: kernel.spent.format_retries < budget.max_format_retries,
            semantic_retry_left: kernel.spent.semantic_retries < budget.max_semantic_retries,
            threshold_reached: threshold_reached(kernel),
            no_progress: repeated || talked,
        }
    }

    /// Required, and nothing was executed: invariant C cannot be met (V13).
    fn lacks_proof(&self) -> bool {
        self.policy == ToolPolicy::Required && self.executed == 0
    }

    /// Required, something was executed, and none of it was ok (V14).
    fn failed_proof(&self) -> bool {
        self.policy == ToolPolicy::Required && self.executed > 0 && self.executed_ok == 0
    }

    /// The model has said its last word in this run, whether or not the policy is satisfied.
    fn is_last_word(&self) -> bool {
        match self.reply {
            Reply::Absent | Reply::Rejected(_) => self.synthesis,
            Reply::NoCall => self.synthesis || self.mode != CompletionMode::OnDoneTool,
            Reply::Calls => self.done.is_some(),
        }
    }

    fn nudge_wanted(&self) -> bool {
        self.reply == Reply::NoCall
            && !self.synthesis
            && self.mode != CompletionMode::OnDoneTool
            && self.lacks_proof()
            && !self.strict
            && self.semantic_retry_left
    }

    fn completed(&self) -> AgentOutcome {
        if self.executed > 0 { AgentOutcome::CompletedWithTools } else { AgentOutcome::CompletedChatOnly }
    }
}

/// Estimated prompt tokens against the usable window, in per mille and without rounding (V18).
fn threshold_reached(kernel: &Kernel) -> bool {
    let budget = kernel.contract.context_budget();
    let usable = budget.context_window.saturating_sub(budget.reserved_system + budget.reserved_synthesis);
    let used = u128::from(Tokens::estimate(kernel.context_bytes).0) * 1000;
    used >= u128::from(budget.force_synthesis_at_permille) * u128::from(usable)
}

/// 3b.
fn protocol_failure(facts: &Facts) -> Option<(AgentOutcome, Reason)> {
    if facts.provider_failed {
        return Some((AgentOutcome::FailedProtocolMalformed, Reason::ProviderUnavailable));
    }
    if let Reply::Rejected(code) = facts.reply {
        let out_of_retries = if facts.synthesis { facts.executed == 0 } else { !facts.format_retry_left };
        return out_of_retries.then(|| (AgentOutcome::FailedProtocolMalformed, reason_of(code)));
    }
    if facts.is_last_word() && facts.lacks_proof() && !facts.nudge_wanted() {
        let talked = facts.reply == Reply::NoCall && !facts.attempted_call;
        let reason = if talked { Reason::Narration } else { Reason::NoToolExecuted };
        return Some((AgentOutcome::FailedProtocolNoTools, reason));
    }
    None
}

fn reason_of(code: RejectionCode) -> Reason {
    match code {
        RejectionCode::Empty => Reason::Empty,
        RejectionCode::RecoveryDisabled => Reason::RecoveryDisabled,
        RejectionCode::Syntax => Reason::Syntax,
        RejectionCode::ArgumentsNotJson
        | RejectionCode::ArgumentsNotObject
        | RejectionCode::MissingName
        | RejectionCode::TruncatedMarkup
        | RejectionCode::DuplicateCallId => Reason::Malformed,
    }
}

/// 3c.
fn validation_failure(facts: &Facts) -> Option<Reason> {
    if facts.invalid.is_some() {
        return facts.invalid;
    }
    let failed = || Some(facts.tool_failed.unwrap_or(Reason::RequiredToolFailed));
    if facts.is_last_word() && facts.failed_proof() {
        return failed();
    }
    // Where one ok call completes the run, every further attempt is a repair, and repairs are counted (C2).
    let wants_repair = repair_wanted(facts);
    if wants_repair && !facts.semantic_retry_left {
        return if facts.executed == 0 { Some(Reason::CallInvalid) } else { failed() };
    }
    None
}

fn repair_wanted(facts: &Facts) -> bool {
    facts.mode == CompletionMode::OnRequiredToolOk
        && facts.reply == Reply::Calls
        && facts.executed_ok == 0
        && facts.done.is_none()
}

/// 4. The window is nearly full and this is no success: close the run (V16, V17).
fn at_threshold(facts: &Facts) -> Option<Next> {
    let finish = |outcome, reason| Some(Next::Finish(outcome, reason));
    if facts.lacks_proof() {
        return finish(AgentOutcome::FailedProtocolNoTools, Reason::NoToolExecuted);
    }
    if facts.failed_proof() {
        let reason = facts.tool_failed.unwrap_or(Reason::RequiredToolFailed);
        return finish(AgentOutcome::FailedValidation, reason);
    }
    if facts.executed == 0 && facts.reply == Reply::NoCall {
        return finish(AgentOutcome::CompletedChatOnly, Reason::ForcedSynthesis);
    }
    if facts.inference_left && facts.token_left {
        return Some(Next::Infer(Again::Synthesis));
    }
    // Without an inference left, work that was done still counts; without any, the budget is what failed (V27).
    if facts.executed > 0 { finish(AgentOutcome::CompletedWithTools, Reason::NoBudget) } else { None }
}

/// 5. The reason of success, if this is one. Proof was checked before.
fn success(facts: &Facts) -> Option<Reason> {
    if facts.done.is_some() {
        return Some(Reason::Done);
    }
    if facts.synthesis {
        return Some(Reason::ForcedSynthesis);
    }
    match facts.mode {
        CompletionMode::OnRequiredToolOk if facts.executed_ok > 0 => Some(Reason::RequiredToolOk),
        CompletionMode::OnRequiredToolOk | CompletionMode::OnNoCall => {
            (facts.reply == Reply::NoCall && !facts.lacks_proof()).then_some(Reason::NoCall)
        }
        CompletionMode::OnDoneTool => None,
    }
}

/// 6.
fn again(facts: &Facts) -> Again {
    match facts.reply {
        Reply::Rejected(code) => Again::Retry(code),
        Reply::NoCall if facts.nudge_wanted() => Again::Nudge,
        Reply::Calls if repair_wanted(facts) => Again::Repair,
        Reply::Absent | Reply::NoCall | Reply::Calls => Again::Act,
    }
}
