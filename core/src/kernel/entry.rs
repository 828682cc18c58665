//! Transcript entries: what is written down of every step (EC-3.E, V5).
//!
//! An entry is cheap to make: numbers, shared text and shared values. Its hashed parts, the action and the result, are
//! spelled out only when somebody asks for the chain. Times stand beside them and are never hashed (V4).

use std::fmt;
use std::sync::Arc;

use crate::canonical::{Canonical, Fields, Writer};
use crate::contract::{Millis, Spent, Tokens};
use crate::ids::Digest;
use crate::message::{AdapterDecision, AgentMessage, ProtocolAdapterResult, RejectionCode, Usage};
use crate::outcome::{AgentOutcome, GoalStatus, Reason};
use crate::value::{Map, Value};

/// Where a run stands (EC-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Before the first transition.
    Init,
    /// Is the contract feasible?
    Precheck,
    /// The model is asked.
    Infer,
    /// May its calls run?
    ValidateCalls,
    /// They run, one after the other.
    Execute,
    /// Their results become observations.
    Observe,
    /// What follows?
    Commit,
    /// It is over.
    Terminate,
}

impl State {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Init,
        Self::Precheck,
        Self::Infer,
        Self::ValidateCalls,
        Self::Execute,
        Self::Observe,
        Self::Commit,
        Self::Terminate,
    ];

    /// The published spelling, as hashed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::Precheck => "PRECHECK",
            Self::Infer => "INFER",
            Self::ValidateCalls => "VALIDATE_CALLS",
            Self::Execute => "EXECUTE",
            Self::Observe => "OBSERVE",
            Self::Commit => "COMMIT",
            Self::Terminate => "TERMINATE",
        }
    }

    /// The state with that spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// The whole transition table (V25): only PRECHECK and COMMIT reach TERMINATE, and nothing leaves it.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Init => next == Self::Precheck,
            Self::Precheck => matches!(next, Self::Infer | Self::Terminate),
            Self::Infer => matches!(next, Self::ValidateCalls | Self::Commit),
            Self::ValidateCalls => matches!(next, Self::Execute | Self::Commit),
            Self::Execute => next == Self::Observe,
            Self::Observe => next == Self::Commit,
            Self::Commit => matches!(next, Self::Infer | Self::Terminate),
            Self::Terminate => false,
        }
    }
}

/// A call's derived id, `s<step>.<index>` (V4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallRef {
    /// Step of the inference that asked for it.
    pub step: u32,
    /// Its place in the batch, from 0.
    pub index: u32,
}

impl fmt::Display for CallRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "s{}.{}", self.step, self.index)
    }
}

/// Which time limit was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// One inference.
    InferStep,
    /// One tool call.
    ToolStep,
    /// The run.
    Total,
}

impl TimeLimit {
    /// The reason a run ends with.
    pub fn reason(self) -> Reason {
        match self {
            Self::InferStep => Reason::InferStep,
            Self::ToolStep => Reason::ToolStep,
            Self::Total => Reason::Total,
        }
    }
}

/// Why a boundary call was cut before it came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The cancel token was set.
    Cancelled,
    /// Its deadline passed.
    TimedOut,
}

impl Cut {
    /// The spelling in entries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timeout",
        }
    }
}

/// How a tool failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFailure {
    /// It says so: a program raised, a host tool returned an error.
    Failed,
    /// The value does not fit the declared deliverable or acceptance: the run ends VALID(result_contract).
    ResultContract,
    /// A program used up its instructions: the run ends TIME(fuel).
    Fuel,
    /// A program used up its CPU time: the run ends TIME(tool_step).
    CpuTime,
}

impl ToolFailure {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Failed, Self::ResultContract, Self::Fuel, Self::CpuTime];

    /// The failure with that spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|failure| failure.as_str() == name)
    }

    /// The spelling in entries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::ResultContract => "result_contract",
            Self::Fuel => "fuel",
            Self::CpuTime => "cpu_time",
        }
    }
}

/// What a tool answered, as far as the kernel cares.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolEnvelope {
    /// Status ok. A tool's own soft timeout or a non-zero exit code is still ok (V14, V20).
    Ok(Arc<Value>),
    /// Status error.
    Error {
        /// What kind of failure.
        failure: ToolFailure,
        /// What happened, as the model and the caller are told.
        message: Arc<str>,
    },
    /// Not an envelope (EC-T3.6).
    Malformed {
        /// What is wrong with it.
        detail: Arc<str>,
    },
}

/// One entry: where the run stood, and what happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// 1 for the first; no gaps.
    pub seq: u32,
    /// 0 in PRECHECK, then one more per INFER (V38).
    pub step: u32,
    /// The state in which it happened; for a transition, the state that was entered.
    pub state: State,
    /// What happened.
    pub event: Event,
    /// When, since the start of the run. Not hashed (V4).
    pub at: Millis,
}

/// What happened. Closed.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// One state was left and another entered.
    Transition {
        /// Left.
        from: State,
        /// Entered.
        to: State,
        /// Only in the first entry, and only if there is something to say.
        origin: Option<Arc<Origin>>,
    },
    /// The provider's readiness (V37).
    Readiness {
        /// `Err` says why not.
        ready: Result<(), Arc<str>>,
    },
    /// The adapter decided about a reply.
    Adapter(Arc<AdapterRecord>),
    /// The model did not answer in time, or was not waited for.
    InferenceCut {
        /// Why.
        cut: Cut,
        /// Digest of what had arrived by then, and was thrown away (V23).
        raw_hash: Option<Digest>,
    },
    /// The provider failed after its attempts (V34).
    ProviderFailed {
        /// Its words.
        message: Arc<str>,
    },
    /// The flow's money is spent; no request was made (`max_cost`).
    BudgetSpent {
        /// How much of what.
        message: Arc<str>,
    },
    /// A kept program is the run's decision; no model was asked.
    Reused(Arc<Decision>),
    /// A rejected reply is asked again (EC-R8).
    Retry {
        /// Which one, from 1.
        n: u32,
        /// What was wrong.
        failure: RejectionCode,
    },
    /// Prose where a call is required is asked again (V10).
    Nudge {
        /// Which one, from 1, repairs included.
        n: u32,
    },
    /// A failed execution is asked again.
    Repair {
        /// Which one, from 1, nudges included.
        n: u32,
    },
    /// A call was not allowed to run.
    CallRejected {
        /// The call.
        call: CallRef,
        /// Its tool.
        name: Arc<str>,
        /// Why.
        reason: Reason,
        /// In words.
        detail: Arc<str>,
    },
    /// A tool is about to run; written down before its effect (X7).
    ToolStarted {
        /// The call.
        call: CallRef,
        /// The tool.
        name: Arc<str>,
        /// Its arguments.
        arguments: Arc<Map>,
    },
    /// A tool came back, or was cut.
    Tool(Box<ToolRecord>),
    /// A call was not reached (EC-S13, X6).
    ToolSkipped {
        /// The call.
        call: CallRef,
        /// The tool.
        name: Arc<str>,
    },
    /// The model sees less than the tool gave (V32).
    Truncated {
        /// The call.
        call: CallRef,
        /// Bytes of the whole output.
        original_bytes: u64,
        /// Bytes of it that the model sees, without the marker.
        kept_bytes: u64,
        /// Digest of the whole output.
        sha256: Digest,
    },
    /// Text was held back by the token gate, and is now shown or thrown away (V23, V24).
    Gate {
        /// Shown, or thrown away.
        released: bool,
        /// The text.
        text: Arc<str>,
    },
    /// The window is nearly full: the next inference is the last and has no tools (V17).
    Synthesis,
    /// Calls in a synthesis reply, which never run (EC-T4.6).
    CallsDropped {
        /// Their tools, in order.
        names: Vec<Arc<str>>,
    },
    /// The clock or the cancel token had something to say (V39). Absent when they had not.
    Verdict {
        /// The run was cancelled.
        cancelled: bool,
        /// A limit was passed.
        timeout: Option<TimeLimit>,
    },
    /// The contract is not the one the run started with (V36).
    ContractMutated {
        /// Hash of the contract that was presented.
        presented: Digest,
    },
    /// Entries could not be stored before their effect (C1).
    PersistenceFailed {
        /// The store's words.
        message: Arc<str>,
    },
    /// The driver answered a question that was not asked: our own fault.
    IllegalInput {
        /// What it answered.
        input: &'static str,
    },
    /// COMMIT decided.
    Committed {
        /// The predicate that fired: the only one, and the first in order.
        predicate: Predicate,
    },
    /// The last entry.
    Terminated(Box<Terminal>),
}

/// COMMIT's predicates in their order (V26).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Predicate {
    /// Interrupt and time.
    InterruptOrTime,
    /// Tokens.
    Budget,
    /// The contract was broken.
    Violation,
    /// No canonical call crossed the boundary.
    Protocol,
    /// A call or its result was invalid.
    Validation,
    /// The window is nearly full.
    ContextThreshold,
    /// Success.
    Success,
    /// The same over and over.
    NoProgress,
    /// Go on, if an inference is left.
    Continue,
}

impl Predicate {
    /// Its number in V26.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InterruptOrTime => "1",
            Self::Budget => "2",
            Self::Violation => "3a",
            Self::Protocol => "3b",
            Self::Validation => "3c",
            Self::ContextThreshold => "4",
            Self::Success => "5",
            Self::NoProgress => "5'",
            Self::Continue => "6",
        }
    }
}

/// Where a run comes from: what the first entry says beside its transition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The factory's rule (EC-CF3).
    pub policy_rule: Option<Arc<str>>,
    /// Digest of the context snapshot the run starts from.
    pub snapshot_hash: Option<Digest>,
    /// Digest of the governance state that shaped the contract.
    pub policy_hash: Option<Digest>,
}

/// The adapter's decision with what the run is charged for it.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterRecord {
    /// The decision.
    pub result: ProtocolAdapterResult,
    /// Tokens as the provider reported them.
    pub usage: Option<Usage>,
    /// Canonical bytes of the prompt that was sent (V18).
    pub prompt_bytes: u64,
}

/// A decision that was made earlier: the program of the registry.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The tool.
    pub name: Arc<str>,
    /// Its arguments; shared with the registry.
    pub arguments: Arc<Map>,
}

/// How one tool call went.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRecord {
    /// The call.
    pub call: CallRef,
    /// The tool.
    pub name: Arc<str>,
    /// Its arguments.
    pub arguments: Arc<Map>,
    /// What came back, or why it was cut.
    pub result: Result<ToolEnvelope, Cut>,
    /// What the model is shown instead of the value's own text.
    pub observation: Option<Arc<str>>,
    /// Tokens of child runs.
    pub child_tokens: Tokens,
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Terminal {
    /// The class.
    pub agent_outcome: AgentOutcome,
    /// The cause.
    pub reason: Reason,
    /// Only after `done`.
    pub goal_status: Option<GoalStatus>,
    /// In words.
    pub message: Arc<str>,
    /// What it took.
    pub spent: Spent,
}

impl Event {
    /// The spelling in entries.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Transition { .. } => "transition",
            Self::Readiness { .. } => "readiness",
            Self::Adapter(_) | Self::InferenceCut { .. } => "adapter",
            Self::ProviderFailed { .. } => "provider_failed",
            Self::BudgetSpent { .. } => "budget_spent",
            Self::Reused(_) => "reused",
            Self::Retry { .. } => "retry",
            Self::Nudge { .. } => "nudge",
            Self::Repair { .. } => "repair",
            Self::CallRejected { .. } => "call_rejected",
            Self::ToolStarted { .. } => "tool_started",
            Self::Tool(_) => "tool",
            Self::ToolSkipped { .. } => "tool_skipped",
            Self::Truncated { .. } => "truncation",
            Self::Gate { .. } => "gate",
            Self::Synthesis => "synthesis",
            Self::CallsDropped { .. } => "calls_dropped",
            Self::Verdict { .. } => "verdict",
            Self::ContractMutated { .. } => "contract_mutated",
            Self::PersistenceFailed { .. } => "persistence_failed",
            Self::IllegalInput { .. } => "illegal_input",
            Self::Committed { .. } => "commit",
            Self::Terminated(_) => "terminated",
        }
    }
}

impl Entry {
    /// Writes the action: what was done, with `kind`, `seq` and `step` inside (V2).
    pub fn write_action(&self, out: &mut Writer<'_>) {
        out.map(|map| match &self.event {
            Event::Transition { from, to, origin } => {
                map.field("from").str(from.as_str());
                self.kind(map);
                if let Some(origin) = origin {
                    map.field("origin").map(|map| origin.write(map));
                }
                self.place(map);
                map.field("to").str(to.as_str());
            }
            Event::Adapter(record) => {
                let failure = match &record.result.decision {
                    AdapterDecision::Native(_) | AdapterDecision::Recovered(_) => None,
                    AdapterDecision::Rejected { failure, .. } => Some(failure.as_str()),
                };
                map.field("failure").option(failure);
                self.kind(map);
                map.field("raw_hash").digest(&record.result.raw_hash);
                self.seq(map);
                map.field("status").str(record.result.decision.status());
                self.step(map);
                map.field("version").str(&record.result.adapter_version);
            }
            Event::InferenceCut { cut, raw_hash } => {
                map.field("failure").str(cut.as_str());
                self.kind(map);
                map.field("raw_hash").option(raw_hash.as_ref());
                self.seq(map);
                map.field("status").str("rejected");
                self.step(map);
            }
            Event::Reused(decision) => {
                map.field("args").value_map(&decision.arguments);
                self.kind(map);
                map.field("name").str(&decision.name);
                self.place(map);
            }
            Event::Retry { n, failure } => {
                map.field("failure").str(failure.as_str());
                self.kind(map);
                map.field("n").uint(u64::from(*n));
                self.place(map);
            }
            Event::Nudge { n } | Event::Repair { n } => {
                self.kind(map);
                map.field("n").uint(u64::from(*n));
                self.place(map);
            }
            Event::CallRejected { call, name, reason, .. } => {
                map.field("call").str(&call.to_string());
                self.kind(map);
                map.field("name").str(name);
                map.field("reason").str(reason.as_str());
                self.place(map);
            }
            Event::ToolStarted { call, name, arguments } => self.call_action(map, *call, name, arguments),
            Event::Tool(record) => self.call_action(map, record.call, &record.name, &record.arguments),
            Event::ToolSkipped { call, name } => {
                map.field("call").str(&call.to_string());
                self.kind(map);
                map.field("name").str(name);
                self.place(map);
            }
            Event::Truncated { call, .. } => {
                map.field("call").str(&call.to_string());
                self.kind(map);
                self.place(map);
            }
            Event::Gate { released, .. } => {
                map.field("action").str(if *released { "released" } else { "discarded" });
                self.kind(map);
                self.place(map);
            }
            Event::CallsDropped { names } => {
                self.kind(map);
                map.field("names").list(|list| names.iter().for_each(|name| list.item().str(name)));
                self.place(map);
            }
            Event::IllegalInput { input } => {
                map.field("input").str(input);
                self.kind(map);
                self.place(map);
            }
            Event::Committed { predicate } => {
                self.kind(map);
                map.field("predicate").str(predicate.as_str());
                self.place(map);
            }
            Event::Readiness { .. }
            | Event::ProviderFailed { .. }
            | Event::BudgetSpent { .. }
            | Event::Synthesis
            | Event::Verdict { .. }
            | Event::ContractMutated { .. }
            | Event::PersistenceFailed { .. }
            | Event::Terminated(_) => {
                self.kind(map);
                self.place(map);
            }
        });
    }

    /// Whether the other entry has the same place, state and action: then they differ at most in their results and in
    /// when they happened.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "only stores ask"))]
    pub(crate) fn acts_like(&self, other: &Self) -> bool {
        let same = |left: &Arc<Map>, right: &Arc<Map>| Arc::ptr_eq(left, right) || left == right;
        let place = |entry: &Self| (entry.seq, entry.step, entry.state);
        place(self) == place(other)
            && match (&self.event, &other.event) {
                (Event::Reused(left), Event::Reused(right)) => {
                    left.name == right.name && same(&left.arguments, &right.arguments)
                }
                (
                    Event::ToolStarted { call, name, arguments },
                    Event::ToolStarted { call: other_call, name: other_name, arguments: other_arguments },
                ) => call == other_call && name == other_name && same(arguments, other_arguments),
                (Event::Tool(left), Event::Tool(right)) => {
                    left.call == right.call && left.name == right.name && same(&left.arguments, &right.arguments)
                }
                (Event::Terminated(_), Event::Terminated(_)) => true,
                (left, right) => left == right,
            }
    }

    fn kind(&self, map: &mut Fields<'_, '_>) {
        map.field("kind").str(self.event.kind());
    }

    fn seq(&self, map: &mut Fields<'_, '_>) {
        map.field("seq").uint(u64::from(self.seq));
    }

    fn step(&self, map: &mut Fields<'_, '_>) {
        map.field("step").uint(u64::from(self.step));
    }

    fn place(&self, map: &mut Fields<'_, '_>) {
        self.seq(map);
        self.step(map);
    }

    fn call_action(&self, map: &mut Fields<'_, '_>, call: CallRef, name: &str, arguments: &Map) {
        map.field("args").value_map(arguments);
        map.field("call").str(&call.to_string());
        self.kind(map);
        map.field("name").str(name);
        self.place(map);
    }

    /// Writes the result: what came of it, or null.
    pub fn write_result(&self, out: &mut Writer<'_>) {
        match &self.event {
            Event::Readiness { ready } => out.map(|map| {
                if let Err(message) = ready {
                    map.field("message").str(message);
                }
                map.field("ready").bool(ready.is_ok());
            }),
            Event::Adapter(record) => record.write_result(out),
            Event::ProviderFailed { message }
            | Event::BudgetSpent { message }
            | Event::PersistenceFailed { message } => {
                out.map(|map| map.field("message").str(message));
            }
            Event::CallRejected { detail, .. } => out.map(|map| map.field("detail").str(detail)),
            Event::Tool(record) => record.write_result(out),
            Event::Truncated { original_bytes, kept_bytes, sha256, .. } => out.map(|map| {
                map.field("kept_bytes").uint(*kept_bytes);
                map.field("original_bytes").uint(*original_bytes);
                map.field("sha256").digest(sha256);
            }),
            Event::Gate { text, .. } => out.map(|map| {
                map.field("bytes").uint(text.len() as u64);
                map.field("sha256").digest(&Digest::of_bytes(text.as_bytes()));
            }),
            Event::Verdict { cancelled, timeout } => out.map(|map| {
                map.field("cancelled").bool(*cancelled);
                map.field("timeout").option(timeout.map(|limit| limit.reason().as_str()));
            }),
            Event::ContractMutated { presented } => {
                out.map(|map| map.field("contract_hash").digest(presented));
            }
            Event::Terminated(terminal) => terminal.write_result(out),
            Event::Transition { .. }
            | Event::InferenceCut { .. }
            | Event::Reused(_)
            | Event::Retry { .. }
            | Event::Nudge { .. }
            | Event::Repair { .. }
            | Event::ToolStarted { .. }
            | Event::ToolSkipped { .. }
            | Event::Synthesis
            | Event::CallsDropped { .. }
            | Event::IllegalInput { .. }
            | Event::Committed { .. } => out.null(),
        }
    }

    /// Whether the result is null, whose hash is a constant.
    pub(crate) fn has_result(&self) -> bool {
        match &self.event {
            Event::Readiness { .. }
            | Event::Adapter(_)
            | Event::ProviderFailed { .. }
            | Event::BudgetSpent { .. }
            | Event::PersistenceFailed { .. }
            | Event::CallRejected { .. }
            | Event::Tool(_)
            | Event::Truncated { .. }
            | Event::Gate { .. }
            | Event::Verdict { .. }
            | Event::ContractMutated { .. }
            | Event::Terminated(_) => true,
            Event::Transition { .. }
            | Event::InferenceCut { .. }
            | Event::Reused(_)
            | Event::Retry { .. }
            | Event::Nudge { .. }
            | Event::Repair { .. }
            | Event::ToolStarted { .. }
            | Event::ToolSkipped { .. }
            | Event::Synthesis
            | Event::CallsDropped { .. }
            | Event::IllegalInput { .. }
            | Event::Committed { .. } => false,
        }
    }
}

impl Origin {
    fn write(&self, map: &mut Fields<'_, '_>) {
        if let Some(hash) = &self.policy_hash {
            map.field("policy_hash").digest(hash);
        }
        if let Some(rule) = &self.policy_rule {
            map.field("policy_rule").str(rule);
        }
        if let Some(hash) = &self.snapshot_hash {
            map.field("snapshot_hash").digest(hash);
        }
    }
}

impl AdapterRecord {
    fn write_result(&self, out: &mut Writer<'_>) {
        out.map(|map| {
            match &self.result.decision {
                AdapterDecision::Native(message) | AdapterDecision::Recovered(message) => {
                    map.field("detail").null();
                    map.field("message").option(Some(message));
                }
                AdapterDecision::Rejected { detail, .. } => {
                    map.field("detail").str(detail);
                    map.field("message").null();
                }
            }
            map.field("prompt_bytes").uint(self.prompt_bytes);
            match self.usage {
                None => map.field("usage").null(),
                Some(usage) => map.field("usage").map(|map| {
                    map.field("cached").uint(usage.cached);
                    map.field("input").uint(usage.input);
                    map.field("output").uint(usage.output);
                }),
            }
        });
    }
}

impl Canonical for AgentMessage {
    fn write(&self, out: &mut Writer<'_>) {
        out.map(|map| {
            map.field("content").str(&self.content);
            map.field("role").str(self.role.as_str());
            if let Some(call) = &self.tool_call_id {
                map.field("tool_call_id").str(call);
            }
            map.field("tool_calls").list(|list| {
                for call in &self.tool_calls {
                    list.item().map(|map| {
                        map.field("arguments").value_map(&call.arguments);
                        map.field("id").str(&call.id);
                        map.field("name").str(&call.name);
                        map.field("raw_payload").option(call.raw_payload.as_ref());
                        map.field("source_model").str(&call.source_model);
                    });
                }
            });
        });
    }
}

impl ToolRecord {
    /// `{status: ok, value}`, `{status: error, …}`, `{status: malformed, …}`, `{status: timeout | cancelled}`.
    fn write_result(&self, out: &mut Writer<'_>) {
        out.map(|map| {
            if self.child_tokens != Tokens(0) {
                map.field("child_tokens").uint(self.child_tokens.0);
            }
            if let Ok(ToolEnvelope::Malformed { detail }) = &self.result {
                map.field("detail").str(detail);
            }
            if let Ok(ToolEnvelope::Error { failure, message }) = &self.result {
                map.field("failure").str(failure.as_str());
                map.field("message").str(message);
            }
            if let Some(text) = &self.observation {
                map.field("observation").str(text);
            }
            map.field("status").str(self.status());
            if let Ok(ToolEnvelope::Ok(value)) = &self.result {
                map.field("value").value(value);
            }
        });
    }

    /// The spelling in entries.
    pub fn status(&self) -> &'static str {
        match &self.result {
            Ok(ToolEnvelope::Ok(_)) => "ok",
            Ok(ToolEnvelope::Error { .. }) => "error",
            Ok(ToolEnvelope::Malformed { .. }) => "malformed",
            Err(cut) => cut.as_str(),
        }
    }
}

impl Terminal {
    fn write_result(&self, out: &mut Writer<'_>) {
        out.map(|map| {
            map.field("child_tokens").uint(self.spent.child_tokens.0);
            map.field("format_retries").uint(u64::from(self.spent.format_retries));
            map.field("goal_status").option(self.goal_status.map(GoalStatus::as_str));
            map.field("inferences").uint(u64::from(self.spent.inferences));
            map.field("message").str(&self.message);
            map.field("outcome").str(self.agent_outcome.as_str());
            map.field("reason").str(self.reason.as_str());
            map.field("semantic_retries").uint(u64::from(self.spent.semantic_retries));
            map.field("tokens").uint(self.spent.tokens.0);
            map.field("tokens_estimated").bool(self.spent.estimated);
            map.field("tokens_in").uint(self.spent.tokens_in.0);
            map.field("tokens_out").uint(self.spent.tokens_out.0);
            map.field("tools_executed").uint(u64::from(self.spent.tools_executed));
            map.field("tools_ok").uint(u64::from(self.spent.tools_ok));
        });
    }
}
