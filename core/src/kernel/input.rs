//! Inputs: everything a run is told. Facts only; nothing here decides.
//!
//! Only what the adapter decided about a reply comes in here; a raw reply has no way into the kernel (EC-3.A, EC-IA1):
//!
//! ```compile_fail
//! use cadenza_core::kernel::Inference;
//! use cadenza_core::message::ModelReply;
//!
//! let reply = ModelReply::default();
//! Inference { result: reply, usage: None, prompt_bytes: 0, chunks: Vec::new(), cancelled: false };
//! ```

use std::sync::Arc;

use super::{Decision, ToolEnvelope};
use crate::contract::Tokens;
use crate::ids::Digest;
use crate::message::{ProtocolAdapterResult, Usage};

/// What the kernel is told. Each is the answer to the last command, or says why there is none.
#[derive(Clone, Debug)]
pub enum Input {
    /// The provider's readiness; answers [`Command::Probe`]. `Err` says why not.
    Readiness(Result<(), Arc<str>>),
    /// A reply, made canonical or rejected by the adapter; answers [`Command::Infer`].
    Inferred(Box<Inference>),
    /// No reply after the configured provider attempts (V34); answers [`Command::Infer`].
    ProviderFailed {
        /// Its words, without secrets.
        message: Arc<str>,
    },
    /// The flow's money is spent, so no further request was made (`max_cost`); answers [`Command::Infer`].
    BudgetSpent {
        /// How much of what, and what to do.
        message: Arc<str>,
    },
    /// A kept program in place of a reply: answers [`Command::Probe`] or [`Command::Infer`]. Not an inference.
    Reused(Arc<Decision>),
    /// A tool came back; answers [`Command::Execute`].
    Executed(Executed),
    /// The boundary call was cut because its deadline passed. `raw_hash`: digest of a partial reply.
    TimedOut {
        /// Digest of what had arrived, for an inference.
        raw_hash: Option<Digest>,
    },
    /// The boundary call was cut, or not made, because the cancel token is set.
    Cancelled {
        /// Digest of what had arrived, for an inference.
        raw_hash: Option<Digest>,
    },
    /// The step's entries could not be stored, so its command was not performed (C1).
    PersistenceFailed {
        /// The store's words.
        message: Arc<str>,
    },
}

impl Input {
    /// A tool came back with that envelope, nothing else to say.
    pub fn executed(envelope: ToolEnvelope) -> Self {
        Self::Executed(Executed { envelope, observation: None, child_tokens: Tokens(0), cancelled: false })
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Readiness(_) => "readiness",
            Self::Inferred(_) => "inferred",
            Self::ProviderFailed { .. } => "provider_failed",
            Self::BudgetSpent { .. } => "budget_spent",
            Self::Reused(_) => "reused",
            Self::Executed(_) => "executed",
            Self::TimedOut { .. } => "timed_out",
            Self::Cancelled { .. } => "cancelled",
            Self::PersistenceFailed { .. } => "persistence_failed",
        }
    }
}

/// A reply with what it cost.
#[derive(Clone, Debug)]
pub struct Inference {
    /// The adapter's decision.
    pub result: ProtocolAdapterResult,
    /// Tokens as the provider reported them; `None` is estimated.
    pub usage: Option<Usage>,
    /// Canonical bytes of the prompt that was sent (V18).
    pub prompt_bytes: u64,
    /// The text as it was streamed, in pieces; empty when it came whole. Shown again by [`Step::texts`] if the gate held it.
    pub chunks: Vec<Arc<str>>,
    /// The cancel token was set when the reply arrived.
    pub cancelled: bool,
}

/// A tool's answer.
#[derive(Clone, Debug)]
pub struct Executed {
    /// The envelope.
    pub envelope: ToolEnvelope,
    /// What the model is shown instead of the value's own text, before truncation.
    pub observation: Option<Arc<str>>,
    /// Tokens of child runs that this call started (V40).
    pub child_tokens: Tokens,
    /// The cancel token was set when the tool came back.
    pub cancelled: bool,
}
