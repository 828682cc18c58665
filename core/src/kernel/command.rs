//! Commands: everything a run asks for, and how it ends. Orders only; nothing here performs them.

use std::sync::Arc;

use super::{CallRef, Entry, StateDigest};
use crate::contract::{Millis, Spent};
use crate::ids::Digest;
use crate::message::{AgentMessage, RejectionCode};
use crate::outcome::{AgentOutcome, GoalStatus, Reason};
use crate::value::{Map, Value};

/// What the kernel asks for.
#[derive(Clone, Debug)]
pub enum Command {
    /// Is the provider ready (V37)? Or: here is a kept program.
    Probe,
    /// Ask the model.
    Infer(Box<Ask>),
    /// Run one tool.
    Execute(Call),
    /// The run is over. Any further input is answered with the same command and no entries.
    Finish(Box<Ended>),
}

/// What to ask the model.
#[derive(Clone, Debug)]
pub struct Ask {
    /// 1 for the first inference of the run (V38).
    pub step: u32,
    /// 1 + format retries + nudges and repairs (C2); without the 1 if a kept program went first.
    pub generation_attempt: u32,
    /// Why.
    pub purpose: Purpose,
    /// Canonical messages since the last inference: what the model said, and one observation per call, in order. To be
    /// appended to the conversation. A rejected reply is never among them (EC-R6).
    pub append: Vec<AgentMessage>,
    /// Whether tools are offered; false for a synthesis.
    pub offer_tools: bool,
    /// Output cap in tokens: `reserved_synthesis` for a synthesis (EC-T4.8).
    pub max_output_tokens: Option<u64>,
    /// Text must be held back until the kernel hands it out in [`Step::texts`] (EC-3.F).
    pub hold_text: bool,
    /// Decoding constraints that the adapter must apply, by name and digest (EC-GR1, V33).
    pub constraints: Constraints,
    /// How long the inference may take.
    pub deadline: Millis,
}

/// Decoding constraints: derived by the runtime, applied at the boundary. The contract holds digests, the host the
/// payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    /// Name of the grammar.
    pub grammar_profile: Option<Arc<str>>,
    /// Digest of the grammar.
    pub grammar_sha256: Option<Digest>,
    /// Digest of the logits mask.
    pub logits_mask_sha256: Option<Digest>,
}

/// Why the model is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Purpose {
    /// To decide what to do.
    Act,
    /// Its last reply was rejected.
    Retry {
        /// Why.
        failure: RejectionCode,
        /// In words, for the model.
        detail: Arc<str>,
    },
    /// It talked where a call is required.
    Nudge,
    /// Its program or call failed.
    Repair {
        /// What the tool said.
        message: Arc<str>,
    },
    /// To close the run without tools: the window is nearly full.
    Synthesis,
}

/// A tool call to perform.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its derived id.
    pub id: CallRef,
    /// The tool.
    pub name: Arc<str>,
    /// Its arguments, valid by the manifest.
    pub arguments: Arc<Map>,
    /// How long it may take, child runs included.
    pub deadline: Millis,
    /// What the run used before it.
    pub spent: Spent,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The class.
    pub agent_outcome: AgentOutcome,
    /// The cause.
    pub reason: Reason,
    /// Only after `done`.
    pub goal_status: Option<GoalStatus>,
    /// The program's value, the arguments of `done`, or the text; also beside a failure, if there is one (V44).
    pub value: Option<Arc<Value>>,
    /// What happened and what to do, for the caller.
    pub message: Arc<str>,
    /// What it took.
    pub spent: Spent,
    /// Generations made: 0 for a kept program that needed none (C2).
    pub generation_attempt: u32,
}

/// What one input led to.
#[derive(Debug)]
pub struct Step {
    /// To be stored before the command is performed.
    pub entries: Vec<Entry>,
    /// Text that may be shown now, in order. Never text the gate holds back.
    pub texts: Vec<Arc<str>>,
    /// Where the run stands after the last of the entries.
    pub digest: StateDigest,
    /// What to do.
    pub command: Command,
}
