//! Canonical messages: the only form in which a model's words reach the kernel (EC-3.A).
//!
//! [`ModelReply`] is what came over the wire, uninterpreted; only the adapter reads it, and only what the adapter makes of
//! it, a [`ProtocolAdapterResult`], goes further.

use std::borrow::Cow;
use std::sync::Arc;

pub use crate::accounting::Usage;
use crate::ids::Digest;
use crate::outcome::ProgramSource;
use crate::value::{Map, Value};

/// Who speaks in a message (EC-O7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageRole {
    /// Instructions of the runtime.
    System,
    /// The caller, or the runtime on its behalf.
    User,
    /// The model.
    Assistant,
    /// A tool's observation.
    Tool,
}

impl MessageRole {
    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A canonical message (EC-4.3).
#[derive(Clone, Debug, PartialEq)]
pub struct AgentMessage {
    /// Who speaks.
    pub role: MessageRole,
    /// Text; empty when there is none.
    pub content: String,
    /// Structured calls, in order.
    pub tool_calls: Vec<ToolInvocation>,
    /// For a tool's observation: the call it answers.
    pub tool_call_id: Option<String>,
}

/// What holds a model to a form while it writes, by name and digest: contracts hold no more of it (EC-GR1, V33).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarRef {
    /// Its name, with the version of the rules that make it.
    pub profile: Arc<str>,
    /// Digest of what it is made from.
    pub sha256: Digest,
}

/// A structured call (EC-4.4, EC-O8).
#[derive(Clone, Debug, PartialEq)]
pub struct ToolInvocation {
    /// Derived id `s<step>.<index>` once the kernel took it in (V4); the provider's id stays in the raw payload.
    pub id: String,
    /// Tool name.
    pub name: Arc<str>,
    /// Arguments object.
    pub arguments: Map,
    /// The model that asked for it.
    pub source_model: Arc<str>,
    /// What the provider sent, if kept.
    pub raw_payload: Option<Value>,
}

/// In which form a model is asked for a call and hands it over: prompt, provider and adapter agree on it (EC-DG2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFormat {
    /// As a native tool call.
    Tool,
    /// As JSON that follows the tool's schema.
    Json,
    /// As text: the program, bare or in one fence.
    Text,
    /// In whichever of these it likes.
    Any,
}

/// The adapter's decision about one raw reply (EC-4.2, EC-O6).
#[derive(Clone, Debug, PartialEq)]
pub struct ProtocolAdapterResult {
    /// The decision, with the message or the failure it carries.
    pub decision: AdapterDecision,
    /// Digest of the raw reply.
    pub raw_hash: Digest,
    /// Version of the adapter that decided.
    pub adapter_version: Arc<str>,
}

/// native, recovered or rejected: a rejected reply has no message, and a native one no failure code.
#[derive(Clone, Debug, PartialEq)]
pub enum AdapterDecision {
    /// The reply was in canonical form.
    Native(AgentMessage),
    /// A call was recovered from text; only without `strict_mode` (V6).
    Recovered(AgentMessage),
    /// Nothing usable.
    Rejected {
        /// Why, for entries and retries.
        failure: RejectionCode,
        /// What was wrong, as the model is told on a retry.
        detail: String,
    },
}

impl AdapterDecision {
    /// `native`, `recovered` or `rejected`.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Native(_) => "native",
            Self::Recovered(_) => "recovered",
            Self::Rejected { .. } => "rejected",
        }
    }
}

/// Failure codes of the adapter boundary. Closed: each has its own test (EC-AD1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectionCode {
    /// The reply was null, empty or blank (V35, AC-10).
    Empty,
    /// Arguments are not JSON.
    ArgumentsNotJson,
    /// Arguments are not an object.
    ArgumentsNotObject,
    /// A call has no tool name.
    MissingName,
    /// Call markup or a fence was opened and never closed.
    TruncatedMarkup,
    /// Two calls of one reply share an id.
    DuplicateCallId,
    /// Only recoverable, and the contract is strict (V6).
    RecoveryDisabled,
    /// The program does not compile (C3).
    Syntax,
}

impl RejectionCode {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Empty,
        Self::ArgumentsNotJson,
        Self::ArgumentsNotObject,
        Self::MissingName,
        Self::TruncatedMarkup,
        Self::DuplicateCallId,
        Self::RecoveryDisabled,
        Self::Syntax,
    ];

    /// The code with that spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == name)
    }

    /// The spelling in entries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "EMPTY",
            Self::ArgumentsNotJson => "ARGUMENTS_NOT_JSON",
            Self::ArgumentsNotObject => "ARGUMENTS_NOT_OBJECT",
            Self::MissingName => "MISSING_NAME",
            Self::TruncatedMarkup => "TRUNCATED_MARKUP",
            Self::DuplicateCallId => "DUPLICATE_CALL_ID",
            Self::RecoveryDisabled => "RECOVERY_DISABLED",
            Self::Syntax => "SYNTAX",
        }
    }
}

/// What came back, uninterpreted. All fields as the wire gave them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelReply {
    /// Text of the reply; `None` when the wire gave null.
    pub content: Option<String>,
    /// Structured calls, in order.
    pub tool_calls: Vec<RawToolCall>,
    /// Token usage as reported.
    pub usage: Option<Usage>,
    /// Why the model stopped, as reported.
    pub stop_reason: Option<String>,
    /// The model that really answered, when the wire says so.
    pub model: Option<String>,
    /// The provider that really answered, when a gateway says so.
    pub provider: Option<String>,
    /// Parameters that were left out because the model refuses them (S18).
    pub omitted: Vec<&'static str>,
    /// `Some` when the reply is not a model's: the embedded library says so.
    pub source: Option<ProgramSource>,
    /// Something the caller should know; shown in the outcome's metadata.
    pub note: Option<Cow<'static, str>>,
}

impl ModelReply {
    /// A reply that is text and nothing else: a program, as far as the adapter is concerned.
    pub fn text(content: impl Into<String>) -> Self {
        Self { content: Some(content.into()), ..Self::default() }
    }

    /// A reply that is one structured call. `arguments` is JSON text and is not checked here.
    pub fn call(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        let call = RawToolCall { id: id.into(), name: name.into(), arguments: arguments.into() };
        Self { tool_calls: vec![call], ..Self::default() }
    }
}

/// One structured call as the wire gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct RawToolCall {
    /// Provider's id; may be empty.
    pub id: String,
    /// Tool name; may be wrong.
    pub name: String,
    /// JSON text of the arguments; may be broken.
    pub arguments: String,
}
