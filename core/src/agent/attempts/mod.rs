//! The attempts of one call: what the driver asks the agent to do between two kernel steps.
//!
//! An attempt is a generation (or a kept program) and its execution. Its context writes stay in its own host and are
//! made visible only when the run has ended well; everything else about it is forgotten with it.

mod execution;
mod requests;

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

pub(super) use self::requests::offered_tools;
use super::call::{Call, Frame};
use super::history::Remembered;
use super::host::{CallHost, ToolCall};
use super::watching::Watching;
use crate::accounting::AccountingEntry;
use crate::contract::Spent;
use crate::contract::manifest::EXECUTE_PROGRAM;
use crate::kernel::{self, Ask, Decision, Input, ToolFailure};
use crate::log::record::AttemptFailure;
use crate::message::AgentMessage;
use crate::outcome::{
    AgentOutcome, ErrorType, Metadata, Outcome, OutcomeError, ProgramSource, Reason, ReuseReason, error_type,
};
use crate::program::registry::{Kept, Origin, ProgramState, Written};
use crate::program::tape::Tape;
use crate::program::{Bounds, Executor, Program, Reads, Returned};
use crate::prompt::{self, Prompt};
use crate::provider::rotation::Rotation;
use crate::provider::{ProviderError, secret};
use crate::runtime::driver::{Ran, Work};
use crate::runtime::trial::candidate_note;
use crate::runtime::wait::aside;
use crate::store::Change;
use crate::value::{Map, Value};

/// Bytes of an error message that a caller sees.
const MAX_MESSAGE: usize = 4 << 10;

/// How a call begins.
pub(super) enum Start {
    /// With a kept program: no prompt is built, no model is asked.
    Kept(Arc<Kept>),
    /// With a question to the model.
    Ask,
    /// Not at all: it was over before the agent's turn came.
    Over,
    /// Not at all: the store of a named agent failed.
    Broken(Arc<str>),
    /// Not at all: only programs of the lock file may run, and there is none for it.
    Locked(Arc<str>),
}

/// State of one call's attempts.
pub(super) struct Attempts<'a> {
    call: &'a Call<'a>,
    frame: &'a Frame<'a>,
    start: Start,
    /// Why it begins so.
    reuse: Option<ReuseReason>,
    /// Attempts that failed.
    pub(super) failures: Vec<AttemptFailure>,
    /// Prompt tokens of this call.
    pub(super) tokens_in: u64,
    /// Completion tokens of this call.
    pub(super) tokens_out: u64,
    prompt: Option<Prompt>,
    /// The state that the prompt shows: context and earlier results.
    shown: (Map, Vec<Arc<Remembered>>),
    /// What the model is told on the next generation.
    feedback: Option<AgentMessage>,
    generations: u32,
    /// Which target is asked next; of this generation.
    rotation: Rotation,
    /// Targets that failed since the last reply.
    unanswered: Vec<(String, ProviderError)>,
    /// One entry for every request.
    pub(super) accounting: Vec<AccountingEntry>,
    watching: Watching<'a>,
    /// The model refuses this call, and will again: the account, the model's name or the window is wrong for it.
    refused: bool,
    /// Why the time of the model or of the call ran out, when it did.
    time_up: Option<String>,
    /// Tokens of this call that its flow knows of.
    charged: u64,
    program: Option<Program>,
    source: ProgramSource,
    note: Option<Cow<'static, str>>,
    success: Option<Success<'a>>,
    /// What the store is to know beside the ended call.
    changes: Vec<Change>,
    /// The attempt whose writes are to become visible.
    committing: Option<CallHost<'a>>,
    /// Programs that ran so far, and what each was told; those that were told nothing are left out.
    executions: usize,
    pub(super) tapes: Vec<(usize, Tape)>,
}

/// The attempt that succeeded, before the run has ended.
struct Success<'a> {
    host: CallHost<'a>,
    returned: Returned,
    reads: Reads,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(call: &'a Call<'a>, frame: &'a Frame<'a>, start: Start, reuse: Option<ReuseReason>) -> Self {
        Self {
            call,
            frame,
            start,
            reuse,
            failures: Vec::new(),
            tokens_in: 0,
            tokens_out: 0,
            prompt: None,
            shown: Default::default(),
            feedback: None,
            generations: 0,
            rotation: requests::rotation(call),
            unanswered: Vec::new(),
            accounting: Vec::new(),
            refused: false,
            watching: Watching::new(call, frame.depth),
            time_up: None,
            charged: 0,
            program: None,
            source: ProgramSource::None,
            note: None,
            success: None,
            changes: Vec::new(),
            committing: None,
            executions: 0,
            tapes: Vec::new(),
        }
    }

    /// What [`Attempts::settle`] decided: changes for the store, and the attempt to commit.
    pub(super) fn take_changes(&mut self) -> (Vec<Change>, Option<CallHost<'a>>) {
        (std::mem::take(&mut self.changes), self.committing.take())
    }

    /// The context as it will be once the attempt is committed; `None` when there is none to commit.
    pub(super) fn committing_context(&self) -> Option<Map> {
        self.committing.as_ref().map(|host| host.attempt.snapshot())
    }

    /// System and user prompt of the last request; empty when no model was asked.
    pub(super) fn prompts(&self) -> (String, String) {
        self.prompt.as_ref().map(|prompt| (prompt.system.to_string(), prompt.user.to_string())).unwrap_or_default()
    }

    /// Bytes of each section of that prompt, feedback of earlier attempts included; empty when no model was asked.
    pub(super) fn prompt_bytes(&self) -> Box<[(&'static str, u32)]> {
        let Some(Prompt { system, user }) = &self.prompt else { return Box::default() };
        let feedback = self.feedback.iter().map(|message| message.content.len()).sum();
        prompt::section_bytes(system, user, feedback)
    }

    /// Turns the ended run into what the caller sees, and decides what becomes of its attempts.
    pub(super) fn settle(&mut self, ran: &Ran) -> (Outcome, Arc<Metadata>) {
        self.watching.ended();
        let (call, ended) = (self.call, &ran.ended);
        let failed = error_type(ended.agent_outcome, ended.reason, ended.goal_status);
        if let Start::Kept(kept) = &self.start {
            // Ctrl-C says nothing about the program.
            if ended.agent_outcome != AgentOutcome::Interrupted {
                let ok = self.source == ProgramSource::Reused && failed.is_none();
                kept.used(ok);
                self.changes.push(Change::Used { program: kept.id, ok });
            }
        }
        let result = match (failed, self.success.take()) {
            (Some((error_type, retriable)), _) => {
                let message = match self.timeout_words(ended.reason) {
                    Some(words) => Cow::Owned(words),
                    None if ended.message.is_empty() => ended.reason.as_str().into(),
                    None => (&*ended.message).into(),
                };
                Err(OutcomeError { error_type, message: bounded(&message), retriable: retriable && !self.refused })
            }
            (None, Some(success)) => self.conclude(success),
            // The kernel proves that a required tool ran (EC-IC1); without one there is nothing to return.
            (None, None) => Err(OutcomeError {
                error_type: ErrorType::ContractViolation,
                message: "internal error: the run succeeded without an execution".to_owned(),
                retriable: false,
            }),
        };
        (self.tokens_in, self.tokens_out) = (ended.spent.tokens_in.0, ended.spent.tokens_out.0);
        self.charge(&ended.spent);
        call.agent.runtime().count(&self.accounting);
        let metadata = Arc::new(Metadata {
            agent_outcome: ended.agent_outcome,
            reason: ended.reason,
            goal_status: ended.goal_status,
            call_id: call.call_id,
            trace_id: call.trace.id,
            transcript: ran.transcript.clone(),
            inferences: ended.spent.inferences,
            tokens: self.tokens_in.saturating_add(self.tokens_out),
            attempts: self.generations,
            source: self.source,
            reuse: self.reuse,
            language: call.agent.0.settings.language.as_str(),
            code: self.program.as_ref().map(|program| program.code.clone()),
            durability: self.frame.journal.durability,
            note: self.note.take(),
            accounting: match std::mem::take(&mut self.accounting) {
                // A reused program asked nobody, and costs no allocation for it.
                none if none.is_empty() => Arc::default(),
                entries => entries.into(),
            },
        });
        let outcome = Outcome {
            result,
            role: call.agent.role().clone(),
            method: call.method.clone(),
            metadata: Some(metadata.clone()),
        };
        (outcome, metadata)
    }

    /// What a caller is told about a limit of time: in numbers and names of options. The kernel's own words are hashed, and
    /// speak of the contract.
    fn timeout_words(&self, reason: Reason) -> Option<String> {
        // Also the reason of a program that used up its own time, whose words are its own.
        if reason == Reason::ToolStep {
            return self.time_up.clone();
        }
        matches!(reason, Reason::InferStep | Reason::Total)
            .then(|| self.time_up.clone().unwrap_or_else(|| self.call.timeout_words()))
    }

    /// A successful run: an ok value keeps its writes and its program, an error envelope leaves no trace.
    fn conclude(&mut self, success: Success<'a>) -> Result<Value, OutcomeError> {
        let value = match success.returned {
            Returned::Value(value) => value,
            Returned::Outcome(outcome) => outcome.result?,
        };
        let keep = self.source == ProgramSource::Generated || self.source == ProgramSource::Library;
        if let Some(program) = self.program.clone().filter(|_| keep && self.call.reusable()) {
            self.keep(program, &success.host, success.reads, &value);
        }
        self.committing = Some(success.host);
        Ok(value)
    }

    /// Keeps the program that succeeded, with the evidence of this run.
    fn keep(&mut self, program: Program, host: &CallHost<'_>, mut reads: Reads, value: &Value) {
        let call = self.call;
        let tools = host.reached.tools.lock().clone();
        let reached_agents = host.reached.agents.load(Ordering::Relaxed);
        if let Some(executor) = self.executor().filter(|_| !tools.is_empty() && !reached_agents) {
            self.keep_what_matters(executor, &program, &mut reads, &tools);
        }
        // The library's programs were written against no agent's state.
        let generated = self.source == ProgramSource::Generated;
        let (context, remembered) = if generated { std::mem::take(&mut self.shown) } else { Default::default() };
        let history: Vec<Value> = remembered.iter().map(|entry| entry.value().clone()).collect();
        let runtime = call.agent.runtime();
        let mut saved = runtime.registry().weigh(
            call.key(),
            &program,
            call.agent.0.settings.model.clone(),
            &Written {
                arguments: call.arguments(),
                context: &context,
                history: &history,
                reads: &reads,
                read_history: host.reached.history.load(Ordering::Relaxed),
                value,
                writes: &host.attempt.writes(),
                probeable: tools.is_empty() && !reached_agents,
                origin: Origin { created: Some(call.timestamp), call: Some(call.call_id) },
            },
        );
        let differences = runtime.trial(&saved, runtime.registry().used_beside(&saved), Some(call.deadline));
        if let Some(note) = candidate_note(&differences) {
            saved.state = ProgramState::Candidate;
            let note = bounded(&note);
            tracing::warn!(role = &**call.agent.role(), method = &*call.method, "{note}");
            saved.note = Some(note.as_str().into());
            self.note = Some(note.into());
        }
        let stored = self.frame.journal.store().is_some();
        runtime.registry().keep(&mut saved, program, stored);
        if stored {
            self.changes.push(Change::Kept { program: Arc::new(saved), run: Some(call.call_id) });
        }
    }

    /// A later dry run has no answers of tools, so a program that called some is looked at now: what it read without any
    /// influence on what it does counts as not read.
    fn keep_what_matters(&self, executor: &dyn Executor, program: &Program, reads: &mut Reads, tools: &[ToolCall]) {
        let call = self.call;
        let matters = |input| call.influences(self.frame, executor, program, input, tools);
        let positions = (0..call.args.len()).filter(|index| reads.all_args || reads.args.contains(index));
        reads.args = positions.filter(|index| matters(*index)).collect();
        let named = call.kwargs.keys().enumerate().filter(|(_, name)| reads.all_kwargs || reads.kwargs.contains(*name));
        reads.kwargs =
            named.filter(|(index, _)| matters(call.args.len() + index)).map(|(_, name)| name.clone()).collect();
        (reads.all_args, reads.all_kwargs) = (false, false);
    }

    /// Tells the flow what this call itself used so far: before its program runs, so that children share what is left.
    fn charge(&mut self, spent: &Spent) {
        let own = spent.tokens_in.0.saturating_add(spent.tokens_out.0);
        self.call.trace.charge(own.saturating_sub(self.charged));
        self.charged = own;
    }

    fn failed(&mut self, stage: &'static str, error_class: &str, error_message: &str) {
        self.watching.failed(stage, error_class, &bounded(error_message));
        self.failures.push(AttemptFailure {
            attempt_id: self.generations,
            stage,
            error_class: error_class.to_owned(),
            error_message: bounded(error_message),
            timestamp: SystemTime::now(),
        });
    }

    fn executor(&self) -> Option<&'a dyn Executor> {
        let settings = &self.call.agent.0.settings;
        self.call.agent.runtime().executor(settings.language, settings.isolation)
    }

    fn bounds(&self) -> Bounds<'a> {
        Bounds {
            limits: &self.call.agent.0.settings.limits,
            deadline: Some(self.call.deadline),
            cancel: &self.call.trace.cancel,
        }
    }
}

impl Work for Attempts<'_> {
    fn probe(&mut self) -> Input {
        match &self.start {
            Start::Kept(kept) => {
                self.program = Some(kept.program.clone());
                self.source = ProgramSource::Reused;
                Input::Reused(Arc::new(Decision { name: EXECUTE_PROGRAM.into(), arguments: kept.arguments.clone() }))
            }
            Start::Ask => Input::Readiness(self.call.agent.0.settings.provider.ready().map_err(|error| {
                self.failed("provider", error.class.as_str(), &error.message);
                error.message.into()
            })),
            Start::Locked(message) => Input::Readiness(Err(message.clone())),
            Start::Broken(message) => Input::PersistenceFailed { message: message.clone() },
            Start::Over if self.call.trace.cancel.is_cancelled() => Input::Cancelled { raw_hash: None },
            Start::Over => Input::TimedOut { raw_hash: None },
        }
    }

    fn gate(&mut self) -> Result<(), Arc<str>> {
        let (call, frame) = (self.call, self.frame);
        frame.journal.begin(|| call.begun(), &frame.contract).map_err(|error| error.to_string().into())
    }

    fn ask<'s>(&'s mut self, ask: Box<Ask>) -> Pin<Box<dyn Future<Output = Input> + Send + 's>> {
        Box::pin(async move { self.infer(&ask).await })
    }

    fn execute(&mut self, call: kernel::Call) -> Input {
        // A program that fails is repaired in a generation of its own (SC-1.19, SC-3.26).
        self.rotation = requests::rotation(self.call);
        self.charge(&call.spent);
        self.watching.released();
        match (self.executor(), self.program.clone()) {
            (Some(executor), Some(program)) => aside(|| self.run(executor, &program)),
            (None, _) | (_, None) => {
                Input::executed(execution::error(ToolFailure::Failed, "internal error: no program to run"))
            }
        }
    }
}

/// Without secrets, and at most 4 KiB, cut between characters.
fn bounded(message: &str) -> String {
    let message = secret::scrub(message);
    message[..message.floor_char_boundary(MAX_MESSAGE)].to_owned()
}
