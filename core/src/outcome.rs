//! How a run ended, what a caller sees of it, and the one total mapping between the two.
//!
//! [`AgentOutcome`] and [`Reason`] are closed: they are hashed, logged and matched everywhere without a catch-all.
//! [`Outcome`] is the envelope that every dynamic call returns (AC-8). Nothing here decides; nothing here does I/O.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::accounting::AccountingEntry;
use crate::ids::{CallId, Digest, TraceId};
use crate::value::{Map, Value};

/// The ten ways a run can end (EC-4.5, EC-O9). Closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AgentOutcome {
    /// Success, and at least one validated tool call ran (EC-3.C).
    CompletedWithTools,
    /// Success by prose, where the contract allows it.
    CompletedChatOnly,
    /// A set-up fault: nothing was inferred.
    FailedPreflight,
    /// A required tool was never called.
    FailedProtocolNoTools,
    /// No canonical message crossed the boundary within the retries.
    FailedProtocolMalformed,
    /// A call, its result, or the result's shape was invalid.
    FailedValidation,
    /// A budget of the contract is spent.
    FailedBudgetExhausted,
    /// A step or the whole run took too long.
    FailedTimeout,
    /// Something the contract forbids was attempted.
    FailedContractViolation,
    /// The host cancelled the run.
    Interrupted,
}

impl AgentOutcome {
    /// All ten, in the order of EC-4.5.
    pub const ALL: [Self; 10] = [
        Self::CompletedWithTools,
        Self::CompletedChatOnly,
        Self::FailedPreflight,
        Self::FailedProtocolNoTools,
        Self::FailedProtocolMalformed,
        Self::FailedValidation,
        Self::FailedBudgetExhausted,
        Self::FailedTimeout,
        Self::FailedContractViolation,
        Self::Interrupted,
    ];

    /// The outcome with that spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == name)
    }

    /// The published spelling, as hashed and logged.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CompletedWithTools => "COMPLETED_WITH_TOOLS",
            Self::CompletedChatOnly => "COMPLETED_CHAT_ONLY",
            Self::FailedPreflight => "FAILED_PREFLIGHT",
            Self::FailedProtocolNoTools => "FAILED_PROTOCOL_NO_TOOLS",
            Self::FailedProtocolMalformed => "FAILED_PROTOCOL_MALFORMED",
            Self::FailedValidation => "FAILED_VALIDATION",
            Self::FailedBudgetExhausted => "FAILED_BUDGET_EXHAUSTED",
            Self::FailedTimeout => "FAILED_TIMEOUT",
            Self::FailedContractViolation => "FAILED_CONTRACT_VIOLATION",
            Self::Interrupted => "INTERRUPTED",
        }
    }
}

/// Why a run ended the way it did: one word under each [`AgentOutcome`] (unified-kernel 6.6). Closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A required tool returned an ok envelope.
    RequiredToolOk,
    /// The model called `done`.
    Done,
    /// The model made no further call.
    NoCall,
    /// The window filled up and the run was closed by synthesis.
    ForcedSynthesis,
    /// The window filled up with no inference left for a synthesis (EC-T4.7).
    NoBudget,
    /// The model backend was not available before the first inference.
    Backend,
    /// The contract's recorded hash is not the hash of its content.
    HashMismatch,
    /// `contract_id`, `contract_hash` or `model_profile_id` is missing.
    Provenance,
    /// A contract field is outside its bounds.
    Structure,
    /// An option that this version cannot honour is set (V33).
    Unsupported,
    /// The tool policy and the tool list contradict each other or the manifest.
    Tools,
    /// The model profile is unknown or cannot apply what the contract asks for.
    Profile,
    /// The contract and adapter versions do not go together.
    Version,
    /// The reserves do not fit into the model's window.
    Context,
    /// Delegation depth, number of calls or the trace's remaining budget is used up (AC-15).
    DelegationBudget,
    /// The model talked instead of acting.
    Narration,
    /// The run ended without an executed tool under `required`.
    NoToolExecuted,
    /// The same call gave the same result too often (X1).
    NoProgress,
    /// The provider failed after its attempts.
    ProviderUnavailable,
    /// The reply was an unparsable call.
    Malformed,
    /// The reply was empty.
    Empty,
    /// The call could only be recovered, and the contract is strict.
    RecoveryDisabled,
    /// The program does not compile (C3).
    Syntax,
    /// No execution of the required tool succeeded.
    RequiredToolFailed,
    /// Five tool errors in a row (X3).
    RepeatedFailure,
    /// A tool answered outside the envelope's form.
    ToolEnvelope,
    /// A call names an unknown tool or its arguments do not fit the tool's schema.
    CallInvalid,
    /// The value does not fit the declared deliverable or acceptance.
    ResultContract,
    /// One inference took longer than the step limit.
    InferStep,
    /// One tool call took longer than the step limit.
    ToolStep,
    /// The run took longer than its total limit.
    Total,
    /// The program used up its instructions.
    Fuel,
    /// More inferences were needed than granted.
    MaxInferences,
    /// More tokens were used than granted.
    MaxTokens,
    /// The flow cost as much as it was granted.
    MaxCost,
    /// A tool was called under `forbidden`.
    ForbiddenCall,
    /// A tool outside `allowed_tools` was called.
    OutOfScope,
    /// A forbidden pair of calls (`cycle_forbid`).
    CycleForbid,
    /// The contract changed after the first inference.
    ContractMutated,
    /// An event could not be stored before its effect (C1).
    PersistenceFailed,
    /// The runtime answered a question that the kernel had not asked: our own fault.
    IllegalInput,
    /// The host cancelled.
    Cancelled,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 42] = [
        Self::RequiredToolOk,
        Self::Done,
        Self::NoCall,
        Self::ForcedSynthesis,
        Self::NoBudget,
        Self::Backend,
        Self::HashMismatch,
        Self::Provenance,
        Self::Structure,
        Self::Unsupported,
        Self::Tools,
        Self::Profile,
        Self::Version,
        Self::Context,
        Self::DelegationBudget,
        Self::Narration,
        Self::NoToolExecuted,
        Self::NoProgress,
        Self::ProviderUnavailable,
        Self::Malformed,
        Self::Empty,
        Self::RecoveryDisabled,
        Self::Syntax,
        Self::RequiredToolFailed,
        Self::RepeatedFailure,
        Self::ToolEnvelope,
        Self::CallInvalid,
        Self::ResultContract,
        Self::InferStep,
        Self::ToolStep,
        Self::Total,
        Self::Fuel,
        Self::MaxInferences,
        Self::MaxTokens,
        Self::MaxCost,
        Self::ForbiddenCall,
        Self::OutOfScope,
        Self::CycleForbid,
        Self::ContractMutated,
        Self::PersistenceFailed,
        Self::IllegalInput,
        Self::Cancelled,
    ];

    /// The reason with that spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }

    /// The published spelling, as hashed and logged.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequiredToolOk => "required_tool_ok",
            Self::Done => "done",
            Self::NoCall => "no_call",
            Self::ForcedSynthesis => "forced_synthesis",
            Self::NoBudget => "no_budget",
            Self::Backend => "backend",
            Self::HashMismatch => "hash_mismatch",
            Self::Provenance => "provenance",
            Self::Structure => "structure",
            Self::Unsupported => "unsupported",
            Self::Tools => "tools",
            Self::Profile => "profile",
            Self::Version => "version",
            Self::Context => "context",
            Self::DelegationBudget => "delegation_budget",
            Self::Narration => "narration",
            Self::NoToolExecuted => "no_tool_executed",
            Self::NoProgress => "no_progress",
            Self::ProviderUnavailable => "provider_unavailable",
            Self::Malformed => "malformed",
            Self::Empty => "empty",
            Self::RecoveryDisabled => "recovery_disabled",
            Self::Syntax => "syntax",
            Self::RequiredToolFailed => "required_tool_failed",
            Self::RepeatedFailure => "repeated_failure",
            Self::ToolEnvelope => "tool_envelope",
            Self::CallInvalid => "call_invalid",
            Self::ResultContract => "result_contract",
            Self::InferStep => "infer_step",
            Self::ToolStep => "tool_step",
            Self::Total => "total",
            Self::Fuel => "fuel",
            Self::MaxInferences => "max_inferences",
            Self::MaxTokens => "max_tokens",
            Self::MaxCost => "max_cost",
            Self::ForbiddenCall => "forbidden_call",
            Self::OutOfScope => "out_of_scope",
            Self::CycleForbid => "cycle_forbid",
            Self::ContractMutated => "contract_mutated",
            Self::PersistenceFailed => "persistence_failed",
            Self::IllegalInput => "illegal_input",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Whether a goal was reached; only `done` says so (X5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoalStatus {
    /// The goal is reached.
    Achieved,
    /// The goal cannot be reached; the caller sees an error.
    Blocked,
}

impl GoalStatus {
    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Achieved => "achieved",
            Self::Blocked => "blocked",
        }
    }
}

/// The kind of failure that a caller sees (AC section 7). Programs may add their own names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorType {
    /// The model could not be reached or failed.
    Provider,
    /// The model gave no program that compiles.
    InvalidCode,
    /// The program failed while it ran.
    Execution,
    /// A time or instruction limit was reached.
    Timeout,
    /// A budget of the trace is used up.
    BudgetExceeded,
    /// The call or its result breaks the contract.
    ContractViolation,
    /// The host cancelled the call.
    Interrupted,
    /// A name that a program chose with `Outcome.error{...}`.
    Other(String),
}

impl ErrorType {
    /// The published spelling.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Provider => "provider",
            Self::InvalidCode => "invalid_code",
            Self::Execution => "execution",
            Self::Timeout => "timeout",
            Self::BudgetExceeded => "budget_exceeded",
            Self::ContractViolation => "contract_violation",
            Self::Interrupted => "interrupted",
            Self::Other(name) => name,
        }
    }

    /// The kind with that spelling; any other text is a program's own name.
    pub fn from_name(name: &str) -> Self {
        match name {
            "provider" => Self::Provider,
            "invalid_code" => Self::InvalidCode,
            "execution" => Self::Execution,
            "timeout" => Self::Timeout,
            "budget_exceeded" => Self::BudgetExceeded,
            "contract_violation" => Self::ContractViolation,
            "interrupted" => Self::Interrupted,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for ErrorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// What a caller sees of an ended run: `None` for success, else the error type and whether to try again.
///
/// Total and functional over (class, reason, goal status) (unified-kernel 6.6); the table test enumerates it.
pub fn error_type(
    agent_outcome: AgentOutcome,
    reason: Reason,
    goal_status: Option<GoalStatus>,
) -> Option<(ErrorType, bool)> {
    match agent_outcome {
        AgentOutcome::CompletedWithTools | AgentOutcome::CompletedChatOnly => match goal_status {
            Some(GoalStatus::Blocked) => Some((ErrorType::Execution, false)),
            Some(GoalStatus::Achieved) | None => None,
        },
        AgentOutcome::FailedPreflight if reason == Reason::Backend => Some((ErrorType::Provider, true)),
        AgentOutcome::FailedPreflight if reason == Reason::DelegationBudget => Some((ErrorType::BudgetExceeded, false)),
        AgentOutcome::FailedPreflight => Some((ErrorType::ContractViolation, false)),
        AgentOutcome::FailedProtocolNoTools => Some((ErrorType::InvalidCode, true)),
        AgentOutcome::FailedProtocolMalformed if reason == Reason::ProviderUnavailable => {
            Some((ErrorType::Provider, true))
        }
        AgentOutcome::FailedProtocolMalformed => Some((ErrorType::InvalidCode, true)),
        AgentOutcome::FailedValidation if reason == Reason::ResultContract => {
            Some((ErrorType::ContractViolation, false))
        }
        AgentOutcome::FailedValidation => Some((ErrorType::Execution, false)),
        AgentOutcome::FailedTimeout => Some((ErrorType::Timeout, true)),
        AgentOutcome::FailedBudgetExhausted => Some((ErrorType::BudgetExceeded, false)),
        AgentOutcome::FailedContractViolation => Some((ErrorType::ContractViolation, false)),
        AgentOutcome::Interrupted => Some((ErrorType::Interrupted, true)),
    }
}

/// What went wrong, as the caller sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct OutcomeError {
    /// The kind of failure.
    pub error_type: ErrorType,
    /// What happened, by how much, and what to do. At most 4 KiB.
    pub message: String,
    /// Whether the same call may succeed when it is made again.
    pub retriable: bool,
}

/// Where a call's program came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramSource {
    /// A model wrote it for this call.
    Generated,
    /// It was kept from an earlier call.
    Reused,
    /// It ships with Cadenza, in `programs/`.
    Library,
    /// No program ran.
    None,
}

impl ProgramSource {
    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Generated => "generated",
            Self::Reused => "reused",
            Self::Library => "library",
            Self::None => "none",
        }
    }
}

/// Why a kept program ran for a call, or why none did (product.md section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReuseReason {
    /// One whose evidence covers the call.
    Reused,
    /// Nothing is kept for this method and these kinds of arguments.
    NoProgram,
    /// What is kept is bound to other values of an argument.
    PinnedInput,
    /// What is kept is bound to something else that the agent remembers.
    PinnedState,
    /// What is kept was put aside, by people or because it kept failing.
    Quarantined,
    /// What is kept waits for approval: it answers recorded calls otherwise than the program before it.
    Candidate,
    /// What is kept does not stand in the lock file.
    NotLocked,
    /// The method is a conversation: it always asks.
    NotReusable,
    /// `reuse="off"`.
    Off,
}

impl ReuseReason {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Reused,
        Self::NoProgram,
        Self::PinnedInput,
        Self::PinnedState,
        Self::Quarantined,
        Self::Candidate,
        Self::NotLocked,
        Self::NotReusable,
        Self::Off,
    ];

    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reused => "reused",
            Self::NoProgram => "no_program",
            Self::PinnedInput => "pinned_input",
            Self::PinnedState => "pinned_state",
            Self::Quarantined => "quarantined",
            Self::Candidate => "candidate",
            Self::NotLocked => "not_locked",
            Self::NotReusable => "not_reusable",
            Self::Off => "off",
        }
    }

    /// The one with that spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reuse| reuse.as_str() == name)
    }

    /// It in a few words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Reused => "a kept program ran",
            Self::NoProgram => "no program was kept for this method and these kinds of arguments",
            Self::PinnedInput => "what was kept is bound to other values of an argument",
            Self::PinnedState => "what was kept is bound to something else that the agent remembered",
            Self::Quarantined => "what was kept is quarantined",
            Self::Candidate => "what was kept waits for approval",
            Self::NotLocked => "what was kept does not stand in the lock file",
            Self::NotReusable => "this method is a conversation and always asks",
            Self::Off => "reuse was off",
        }
    }
}

/// When a call counts as acknowledged (product.md section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the disk: survives a killed process and a power cut. The default of agents with a name.
    Strict,
    /// At once, and on the disk within milliseconds, together with others. The default of agents without a name.
    Batch,
    /// Never on the disk: without a store.
    Memory,
}

impl Durability {
    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Batch => "batch",
            Self::Memory => "memory",
        }
    }
}

/// How the call went, beside its value. Absent on an outcome that a program made itself and that no call returned yet.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// How the run ended.
    pub agent_outcome: AgentOutcome,
    /// Why.
    pub reason: Reason,
    /// Only for goal runs.
    pub goal_status: Option<GoalStatus>,
    /// This call.
    pub call_id: CallId,
    /// The flow it belongs to.
    pub trace_id: TraceId,
    /// The run's hash-chained transcript; its head is computed when first asked for.
    pub transcript: Arc<crate::kernel::transcript::Transcript>,
    /// Model replies used.
    pub inferences: u32,
    /// Model tokens, prompt and completion, of this call without its children.
    pub tokens: u64,
    /// Generation attempts made; 0 for a reused program.
    pub attempts: u32,
    /// Where the program came from.
    pub source: ProgramSource,
    /// Why a kept program ran, or why none did; `None` for a call that ended before anything was looked for.
    pub reuse: Option<ReuseReason>,
    /// The program's language: `lua` or `rhai`.
    pub language: &'static str,
    /// The program, if one was chosen.
    pub code: Option<Arc<str>>,
    /// What its acknowledgement promises.
    pub durability: Durability,
    /// What the library or the provider wants the caller to know.
    pub note: Option<Cow<'static, str>>,
    /// One entry for every request to a model, in their order (SC-4.01, SC-4.15); empty for a reused program. Where the
    /// failure policy asked another role, those of the call that failed stand before those of the call that answered, which
    /// everything else here is about.
    pub accounting: Arc<[AccountingEntry]>,
}

impl Metadata {
    /// Head of the transcript's hash chain (V2, V3).
    pub fn head(&self) -> Digest {
        self.transcript.head()
    }

    /// Number of transcript entries (V3).
    pub fn length(&self) -> usize {
        self.transcript.len()
    }
}

/// The envelope that every dynamic call returns (AC-8): a value, or an error, with the call's metadata.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The value, or why there is none.
    pub result: Result<Value, OutcomeError>,
    /// Role of the agent that answered; empty on an outcome that a program made itself.
    pub role: Arc<str>,
    /// The method that was called; empty on an outcome that a program made itself.
    pub method: Arc<str>,
    /// How the call went; `None` on an outcome that a program made itself.
    pub metadata: Option<Arc<Metadata>>,
}

impl Outcome {
    /// An ok envelope without a call behind it.
    pub fn of_value(value: Value) -> Self {
        Self { result: Ok(value), role: "".into(), method: "".into(), metadata: None }
    }

    /// An error envelope without a call behind it.
    pub fn of_error(error_type: ErrorType, message: impl Into<String>, retriable: bool) -> Self {
        let error = OutcomeError { error_type, message: message.into(), retriable };
        Self { result: Err(error), role: "".into(), method: "".into(), metadata: None }
    }

    /// True for a value, false for an error.
    pub fn ok(&self) -> bool {
        self.result.is_ok()
    }

    /// `ok` or `error`, as logged.
    pub fn status(&self) -> &'static str {
        if self.ok() { "ok" } else { "error" }
    }

    /// The value; `null` on an error.
    pub fn value(&self) -> &Value {
        static NULL: Value = Value::Null;
        self.result.as_ref().unwrap_or(&NULL)
    }

    /// The error, if it is one.
    pub fn error(&self) -> Option<&OutcomeError> {
        self.result.as_ref().err()
    }

    /// The envelope as data, with the field names of product.md section 3. Used by `to_dict`, logs and `--json`.
    pub fn to_map(&self) -> Map {
        let error = self.error();
        let mut map = Map::new();
        map.insert("status".into(), self.status().into());
        map.insert("value".into(), self.value().clone());
        map.insert("error_type".into(), error.map(|error| error.error_type.as_str()).into());
        map.insert("error_message".into(), error.map(|error| error.message.as_str()).into());
        map.insert("retriable".into(), error.is_some_and(|error| error.retriable).into());
        map.insert("role".into(), (&*self.role).into());
        map.insert("method".into(), (&*self.method).into());
        map.insert(
            "metadata".into(),
            self.metadata.as_ref().map(|metadata| metadata.to_map()).unwrap_or_default().into(),
        );
        map
    }
}

impl PartialEq for Outcome {
    /// Compares envelopes: status, value, error, role and method; not the metadata of the call.
    fn eq(&self, other: &Self) -> bool {
        self.result == other.result && self.role == other.role && self.method == other.method
    }
}

impl Metadata {
    /// The metadata as data, with the field names of product.md section 3.
    pub fn to_map(&self) -> Map {
        let mut map = Map::new();
        map.insert("agent_outcome".into(), self.agent_outcome.as_str().into());
        map.insert("reason".into(), self.reason.as_str().into());
        map.insert("goal_status".into(), self.goal_status.map(GoalStatus::as_str).into());
        map.insert("call_id".into(), self.call_id.to_string().into());
        map.insert("trace_id".into(), self.trace_id.to_string().into());
        map.insert("head".into(), self.head().to_hex().into());
        map.insert("length".into(), Value::Int(self.length() as i64));
        map.insert("inferences".into(), self.inferences.into());
        map.insert("tokens".into(), Value::Int(self.tokens as i64));
        map.insert("attempts".into(), self.attempts.into());
        map.insert("source".into(), self.source.as_str().into());
        map.insert("reuse".into(), self.reuse.map(ReuseReason::as_str).into());
        map.insert("language".into(), self.language.into());
        map.insert("code".into(), self.code.as_deref().into());
        map.insert("durability".into(), self.durability.as_str().into());
        let accounting = self.accounting.iter().map(|entry| Value::Map(entry.to_map())).collect();
        map.insert("accounting".into(), Value::List(accounting));
        if let Some(note) = &self.note {
            map.insert("note".into(), note.as_ref().into());
        }
        map
    }
}
