//! Providers: the border to models. A request goes out, a raw reply or a classed failure comes back.
//!
//! A provider never interprets a reply (that is the adapter's work), never retries on its own account beyond its
//! configured targets, and never sees a contract.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::ids::Digest;
use crate::message::{AgentMessage, GrammarRef};
use crate::program::Language;
use crate::value::{Map, Value};

pub use crate::message::{ModelReply, RawToolCall, Usage};

mod absent;
#[cfg(feature = "http")]
mod capability;
pub mod cassette;
#[cfg(feature = "http")]
mod classify;
#[cfg(feature = "http")]
mod dialect;
#[cfg(feature = "http")]
mod http;
pub mod library;
#[cfg(feature = "llama")]
pub mod llama;
#[cfg(feature = "http")]
pub mod local;
#[cfg(feature = "http")]
pub mod remote;
pub mod replay;
pub mod resolve;
pub mod rotation;
pub mod scripted;
pub mod secret;
pub mod target;
pub mod targets;
pub(crate) mod wait;

pub(crate) use wait::wait_really;
pub use wait::{Waits, bounded};

pub use cassette::Cassette;
pub use resolve::{ModelSettings, ModelSpec, Origin, ResolveError, Resolved, resolve};
pub use scripted::Scripted;
pub use secret::Secret;

/// What a model is asked.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// Agent role.
    pub role: Arc<str>,
    /// The method that was called.
    pub method: Arc<str>,
    /// Its positional arguments.
    pub args: Arc<[Value]>,
    /// Its named arguments.
    pub kwargs: Arc<Map>,
    /// Language of the program that is wanted.
    pub language: Language,
    /// Stable prefix: what a program is and sees.
    pub system_prompt: Arc<str>,
    /// Role, method, contract, state: what is wanted now.
    pub user_prompt: Arc<str>,
    /// Everything after the two prompts: retry feedback, and for goal runs the conversation.
    pub messages: Vec<AgentMessage>,
    /// Tools offered to the model, sorted by name; empty for a synthesis.
    pub tools: Arc<[ToolSpec]>,
    /// 1 for the first generation attempt of this call.
    pub attempt: u32,
    /// Bound of this request, or of the silence within a streamed one (SC-3.18). The provider must give up by itself.
    pub timeout: Duration,
    /// Bound of the whole request, streamed or not: what is left of the call.
    pub total: Duration,
    /// Output cap in tokens, when the contract sets one.
    pub max_output_tokens: Option<u32>,
    /// Whether text in place of a call would be held back, because no call was validated yet (EC-3.F). A provider that can
    /// keep its model from narrating then does so.
    pub hold_text: bool,
    /// The grammar that a call must be written within, as the contract has it (EC-GR1). A provider with another must fail.
    pub grammar: Option<Digest>,
    /// Who is told what arrives before the reply is whole; `None` when nobody listens.
    pub pieces: Option<PieceSink>,
}

/// A part of a reply, as it arrives. What is shown to people before anything is checked: never run, never kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Of the reply's text.
    Text(&'a str),
    /// Of the arguments of a call: JSON text, cut anywhere.
    Arguments(&'a str),
    /// Of what the model thinks before it answers.
    Reasoning(&'a str),
}

/// Takes pieces of a reply, in their order, on whatever thread they arrive. Must return at once.
#[derive(Clone)]
pub struct PieceSink(Arc<dyn Fn(Piece<'_>) + Send + Sync>);

impl PieceSink {
    /// A sink that calls `take`.
    pub fn new(take: impl Fn(Piece<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    /// Hands one piece over; an empty one is left out.
    pub fn put(&self, piece: Piece<'_>) {
        let (Piece::Text(text) | Piece::Arguments(text) | Piece::Reasoning(text)) = piece;
        if !text.is_empty() {
            (self.0)(piece);
        }
    }
}

impl fmt::Debug for PieceSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PieceSink")
    }
}

/// How a provider asks a model for a program (option `output`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Output {
    /// As a call of the one tool that is offered, which is forced where the wire can.
    #[default]
    Tool,
    /// As JSON that follows the tool's schema: for models that refuse tools or to be forced to one, and servers with grammars.
    JsonSchema,
    /// As text: for servers with neither.
    Text,
}

impl Output {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tool, Self::JsonSchema, Self::Text];

    /// The spelling in options.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::JsonSchema => "json_schema",
            Self::Text => "text",
        }
    }

    /// The one with that spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|output| output.as_str() == name)
    }

    /// The adapter profile of a model that is asked so: what [`Provider::profile`] says.
    pub fn profile(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::JsonSchema => "json",
            Self::Text => "text",
        }
    }
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// `[A-Za-z0-9_-]{1,64}`.
    pub name: Arc<str>,
    /// What it does.
    pub description: Arc<str>,
    /// JSON Schema of its arguments object.
    pub parameters: Value,
}

/// Classes of provider failure (model-wire-formats.md section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProviderErrorClass {
    /// The key is missing, wrong or not allowed. Fatal.
    Auth,
    /// The account has no credit left. Fatal.
    Quota,
    /// Too many requests.
    RateLimit,
    /// The window is too small for the request.
    ContextOverflow,
    /// Too slow.
    Timeout,
    /// No connection, or the server broke it.
    Network,
    /// The model or a parameter is refused.
    ModelError,
    /// The answer is not in the wire format.
    InvalidResponse,
    /// The host's own provider failed (a Python callable raised, a plan names no method).
    Failed,
    /// The cancel token was set.
    Cancelled,
}

impl ProviderErrorClass {
    /// Whether no other attempt and no other target can help: the account itself is refused.
    pub fn is_fatal(self) -> bool {
        match self {
            Self::Auth | Self::Quota | Self::Cancelled => true,
            Self::RateLimit
            | Self::ContextOverflow
            | Self::Timeout
            | Self::Network
            | Self::ModelError
            | Self::InvalidResponse
            | Self::Failed => false,
        }
    }

    /// The spelling in logs (`attempt_failures[].error_class`).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Quota => "quota",
            Self::RateLimit => "rate_limit",
            Self::ContextOverflow => "context_overflow",
            Self::Timeout => "timeout",
            Self::Network => "network",
            Self::ModelError => "model_error",
            Self::InvalidResponse => "invalid_response",
            Self::Failed => "provider",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A provider failure: no reply crossed the border.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// Its class.
    pub class: ProviderErrorClass,
    /// What happened and what to do, without secrets, at most 4 KiB.
    pub message: String,
    /// How long the server asked to wait.
    pub retry_after: Option<Duration>,
    /// What was used all the same, where the server counted: a reply that holds nothing is paid for like any other.
    pub usage: Option<Usage>,
}

impl ProviderError {
    /// Most bytes of a message; the rest is cut.
    pub const MAX_MESSAGE_BYTES: usize = 4 << 10;

    /// A failure of that class. The message is cut at [`Self::MAX_MESSAGE_BYTES`], on a character.
    pub fn new(class: ProviderErrorClass, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(Self::MAX_MESSAGE_BYTES));
        Self { class, message, retry_after: None, usage: None }
    }

    /// The failure of a request whose cancel token was set.
    pub fn cancelled() -> Self {
        Self::new(ProviderErrorClass::Cancelled, "the request was cancelled")
    }

    /// The failure of a request that took longer than it was allowed.
    pub fn timed_out(model: &str, allowed: Duration) -> Self {
        let message = format!(
            "{model} gave no complete reply within {} s; raise `provider_timeout_seconds` or ask a faster model",
            allowed.as_secs_f64()
        );
        Self::new(ProviderErrorClass::Timeout, message)
    }
}

/// A reply to come. Independent of any executor: it may be polled on a plain thread without a tokio context.
pub type ReplyFuture<'a> = Pin<Box<dyn Future<Output = Result<ModelReply, ProviderError>> + Send + 'a>>;

/// A model. Shared by all agents of a runtime and by all threads.
pub trait Provider: Send + Sync + fmt::Debug {
    /// The model's name as logged, such as `openai:gpt-5.1` or `scripted`.
    fn model(&self) -> &str;

    /// Which adapter profile reads this provider's replies (`adapter::Profile`): how its model is asked for a program.
    /// `program`, which takes every form, for one that knows no better. Hashed into contract and transcript.
    fn profile(&self) -> &str {
        "program"
    }

    /// What distinguishes this model from another behind the same name; hashed into every transcript entry.
    fn fingerprint(&self) -> &str {
        self.model()
    }

    /// The grammar that holds this model to a call of these tools, where one does; recorded in the contract (EC-GR1).
    fn grammar(&self, _tools: &[ToolSpec], _language: Language) -> Option<GrammarRef> {
        None
    }

    /// Whether asking makes sense at all (V37). Must be quick: no network round trip on the hot path.
    fn ready(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Whether this request's reply comes piece by piece, so that `request.timeout` bounds the silence between pieces.
    fn streams(&self, _request: &ModelRequest) -> bool {
        false
    }

    /// Whether its rate limits are waited for. Not when nobody stands behind them, as in a recording.
    fn waits(&self) -> bool {
        true
    }

    /// Its targets, when it is a list of several; asked in turn by the call's attempts (SC-3.10 to 3.26).
    fn targets(&self) -> &[Arc<dyn Provider>] {
        &[]
    }

    /// One completion within `request.timeout`; gives up early when `cancel` is set.
    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a>;
}
