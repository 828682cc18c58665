//! The attempts of one call: what the driver asks the agent to do between two kernel steps.
//!
//! An attempt is a generation (or a kept program) and its execution. Its context writes stay in its own host and are
//! made visible only when the run has ended well; everything else about it is forgotten with it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use super::call::{self, Call, Frame};
use super::history::Remembered;
use super::host::{CallHost, DryHost, ToolCall};
use super::watching::Watching;
use crate::accounting::{AccountingEntry, Prices};
use crate::adapter::{self, Profile, Wanted};
use crate::cancel::CancelToken;
use crate::contract::delegation::Acceptance;
use crate::contract::manifest::EXECUTE_PROGRAM;
use crate::contract::{Spent, Tokens, ToolPolicy};
use crate::kernel::{self, Ask, Decision, Executed, Inference, Input, ToolEnvelope, ToolFailure};
use crate::log::record::AttemptFailure;
use crate::message::{AdapterDecision, AgentMessage, CallFormat, ModelReply, RawToolCall, Usage};
use crate::outcome::{
    AgentOutcome, ErrorType, Metadata, Outcome, OutcomeError, ProgramSource, Reason, ReuseReason, error_type,
};
use crate::program::registry::{Kept, Origin, ProgramState, Written};
use crate::program::tape::{Tape, envelope};
use crate::program::{
    Arguments, Bounds, Execution, Executor, Language, Program, ProgramFailure, Reads, Returned, acceptance_program,
};
use crate::prompt::{self, Prompt, PromptContract, PromptInput};
use crate::provider::rotation::Rotation;
use crate::provider::{ModelRequest, Provider, ProviderError, ProviderErrorClass, ToolSpec, secret, targets};
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
            rotation: rotation(call),
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

    fn run(&mut self, executor: &dyn Executor, program: &Program) -> Input {
        let call = self.call;
        let host = CallHost::new(self.frame);
        let before = call.trace.tokens();
        let execution = executor.execute(program, call.arguments(), &host, &self.bounds());
        let child_tokens = Tokens(call.trace.tokens().saturating_sub(before));
        let Execution { result, reads, .. } = execution;
        let tape = host.take_tape(&reads);
        if !tape.is_empty() {
            self.tapes.push((self.executions, tape));
        }
        self.executions += 1;
        let envelope = match result {
            Ok(mut returned) => match self.check(executor, &host, &mut returned) {
                Ok(()) => {
                    let value = match &returned {
                        Returned::Value(value) => value.clone(),
                        // Without the ids of the call behind it: equal runs have equal heads (KC-D2).
                        Returned::Outcome(outcome) => Value::Map(envelope(outcome)),
                    };
                    self.success = Some(Success { host, returned, reads });
                    ToolEnvelope::Ok(Arc::new(value))
                }
                Err(message) => {
                    self.failed("contract", "contract_violation", &message);
                    self.feedback =
                        Some(prompt::repair_value(&program.code, &message, program.language, self.format()));
                    error(ToolFailure::ResultContract, &message)
                }
            },
            Err(failure) => {
                let message = failure.to_string();
                self.failed("execution", failure_class(&failure), &message);
                self.feedback = Some(prompt::repair(&program.code, &message, program.language, self.format()));
                match failure {
                    ProgramFailure::Deadline => {
                        self.time_up = Some(call.timeout_words());
                        return Input::TimedOut { raw_hash: None };
                    }
                    ProgramFailure::Interrupted => return Input::Cancelled { raw_hash: None },
                    ProgramFailure::Fuel { .. } => error(ToolFailure::Fuel, &message),
                    ProgramFailure::CpuTime { .. } => error(ToolFailure::CpuTime, &message),
                    ProgramFailure::Raised { .. }
                    | ProgramFailure::Memory { .. }
                    | ProgramFailure::CallDepth
                    | ProgramFailure::HostCalls { .. }
                    | ProgramFailure::Refused { .. }
                    | ProgramFailure::Internal { .. } => error(ToolFailure::Failed, &message),
                }
            }
        };
        let cancelled = call.trace.cancel.is_cancelled();
        Input::Executed(Executed { envelope, observation: None, child_tokens, cancelled })
    }

    /// Requests to the model until one is answered; a failing target is followed by the next while requests are left
    /// (AC-7.7, SC-3.*).
    async fn infer(&mut self, ask: &Ask) -> Input {
        let call = self.call;
        let settings = &call.agent.0.settings;
        if self.prompt.is_none() {
            let prompt = self.build_prompt();
            self.prompt = Some(prompt);
        }
        loop {
            if let Some(end) = self.nothing_left() {
                return end;
            }
            self.generations += 1;
            let target = target_of(&settings.provider, self.rotation.target());
            self.watching.started(self.generations, ask.hold_text);
            let request = self.request(ask);
            let prompt_bytes = prompt_bytes(&request);
            // The provider gives up by itself; one that does not is left behind.
            let streams = target.streams(&request);
            let allowed = if streams { request.total } else { request.timeout };
            let began = Instant::now();
            let reply = complete(&**target, &request, &call.trace.cancel);
            let reply = call::within(reply, target.model(), allowed + PROVIDER_GRACE, &call.trace.cancel)
                .await
                .unwrap_or_else(|| Err(given_up(call, target.model(), allowed)));
            let entry = AccountingEntry::new(target.model(), SystemTime::now(), began.elapsed());
            let (mut entry, must_be_priced) = match &reply {
                Ok(reply) => (answered(entry, reply, prompt_bytes, &settings.prices), reply.source.is_none()),
                Err(error) => (refused(entry, error, &settings.prices), error.usage.is_some()),
            };
            let error = match reply.and_then(|reply| whole(reply, target.model())) {
                Ok(reply) => {
                    self.account(entry, must_be_priced);
                    return self.replied(reply, &**target, prompt_bytes);
                }
                Err(error) => error,
            };
            // The kernel never sees this reply, so its tokens are counted here.
            call.trace.charge(entry.usage.input.saturating_add(entry.usage.output));
            entry.refuse(error.class.as_str(), bounded(&error.message));
            self.account(entry, must_be_priced);
            self.failed("provider", error.class.as_str(), &error.message);
            if let Some(end) = self.unanswered(target.model(), error, allowed, streams).await {
                return end;
            }
        }
    }

    /// Why no further request may be made: none is left, or no money or tokens for it.
    fn nothing_left(&self) -> Option<Input> {
        let trace = &self.call.trace;
        if self.rotation.left() == 0 {
            // The contract would take another reply, but no request is left for it (SC-1.15, S1).
            let last = self.failures.last().map_or("", |failure| &failure.error_message);
            return Some(Input::ProviderFailed { message: bounded(last).into() });
        }
        // What the kernel saw of the tokens it bounds itself; replies that held nothing never came to it.
        let tokens = || trace.over_tokens().filter(|_| !self.unanswered.is_empty());
        let message = trace.over_cost().or_else(tokens)?;
        let message = match self.unanswered.last() {
            Some((_, error)) => bounded(&format!("{message}; the last request failed: {}", error.message)),
            None => message,
        };
        Some(Input::BudgetSpent { message: message.into() })
    }

    /// A whole reply of a target, on its way to the adapter: of a list's, it is said who answered, and after whom.
    fn replied(&mut self, mut reply: ModelReply, target: &dyn Provider, prompt_bytes: u64) -> Input {
        if !self.call.agent.0.settings.provider.targets().is_empty() {
            reply.model.get_or_insert_with(|| target.model().to_owned());
            reply.note = targets::fallback_note(target.model(), &self.unanswered).or(reply.note);
        }
        self.inferred(&reply, prompt_bytes)
    }

    /// What follows a failed request: the next one, after its wait, or the end of the inference.
    async fn unanswered(
        &mut self,
        model: &str,
        error: ProviderError,
        allowed: Duration,
        streams: bool,
    ) -> Option<Input> {
        let call = self.call;
        if error.class == ProviderErrorClass::Cancelled {
            return Some(Input::Cancelled { raw_hash: None });
        }
        if error.class == ProviderErrorClass::ContextOverflow {
            // S11: the window of a target is a matter for whoever watches over the flow, also when the next one answers.
            tracing::warn!(
                target_model = model,
                error_class = error.class.as_str(),
                "a request is too large for a model"
            );
        }
        let next = self.rotation.failed(&error).filter(|_| !error.class.is_fatal() && !call.is_over());
        // A window is too small a second time, and a name is wrong; another target's may not be (SC-3.20, SC-3.28).
        let alone = call.agent.0.settings.provider.targets().is_empty();
        let hopeless =
            alone && matches!(error.class, ProviderErrorClass::ContextOverflow | ProviderErrorClass::ModelError);
        match next {
            Some(wait) if !hopeless && wait < call.left() => {
                self.unanswered.push((model.to_owned(), error));
                let wait = if call.agent.0.settings.provider.waits() { wait } else { Duration::ZERO };
                call.agent.runtime().waits().pause(wait, &call.trace.cancel).await;
                if call.trace.cancel.is_cancelled() { Some(Input::Cancelled { raw_hash: None }) } else { None }
            }
            _ if error.class == ProviderErrorClass::Timeout => {
                self.time_up = model_timeout(call, model, &error, allowed, streams);
                Some(Input::TimedOut { raw_hash: None })
            }
            Some(_) | None => {
                let fatal = error.class.is_fatal();
                self.refused = matches!(
                    error.class,
                    ProviderErrorClass::Auth
                        | ProviderErrorClass::Quota
                        | ProviderErrorClass::ModelError
                        | ProviderErrorClass::ContextOverflow
                );
                self.unanswered.push((model.to_owned(), error));
                let failures = std::mem::take(&mut self.unanswered);
                // Who is refused by an account is told that, and nothing else.
                let message = if fatal {
                    failures.into_iter().next_back().map(|(_, error)| error.message).unwrap_or_default()
                } else {
                    targets::all_failed(failures).message
                };
                Some(Input::ProviderFailed { message: bounded(&message).into() })
            }
        }
    }

    /// Counts a request: for the caller, and for the flow.
    /// `must_be_priced`: a model answered, so a limit of money cannot hold without its price.
    fn account(&mut self, entry: AccountingEntry, must_be_priced: bool) {
        self.call.trace.charge_cost(&entry, must_be_priced);
        self.accounting.push(entry);
    }

    fn request(&self, ask: &Ask) -> ModelRequest {
        let call = self.call;
        let settings = &call.agent.0.settings;
        let total = call.left();
        let several = !settings.provider.targets().is_empty();
        let required = self.frame.contract.tool_policy() == ToolPolicy::Required;
        let fair = if several { targets::share(total, self.rotation.left()) } else { total };
        let (system_prompt, user_prompt) =
            self.prompt.as_ref().map(|prompt| (prompt.system.clone(), prompt.user.clone())).unwrap_or_default();
        ModelRequest {
            role: call.agent.role().clone(),
            method: call.method.clone(),
            args: call.args.clone(),
            kwargs: call.kwargs.clone(),
            language: settings.language,
            system_prompt,
            user_prompt,
            messages: self.feedback.iter().map(without_secrets).collect(),
            tools: if ask.offer_tools { offered_tools(settings.language) } else { Arc::new([]) },
            attempt: self.generations,
            timeout: settings.provider_timeout.min(fair),
            total,
            max_output_tokens: ask.max_output_tokens.and_then(|tokens| u32::try_from(tokens).ok()),
            // A contract without a token gate holds nothing back, but the call that it requires is required all the same: a
            // gated model that stands in for another must not narrate either.
            hold_text: ask.hold_text || required && self.program.is_none(),
            grammar: ask.constraints.grammar_sha256,
            pieces: self.watching.sink(),
        }
    }

    /// Hands a reply to the adapter, with the compiler as its judge of programs.
    fn inferred(&mut self, reply: &ModelReply, prompt_bytes: u64) -> Input {
        let settings = &self.call.agent.0.settings;
        let compiled = RefCell::new(None);
        let compile = |code: &str| {
            let executor = self.executor().ok_or_else(|| format!("this build runs no {}", settings.language))?;
            let program = executor.compile(code, &settings.limits).map_err(|error| error.message)?;
            *compiled.borrow_mut() = Some(program);
            Ok(())
        };
        let contract = &self.frame.contract;
        // PRECHECK lets no other profile pass.
        let profile = Profile::from_name(contract.model_profile_id()).unwrap_or(Profile::Program);
        let wanted = Wanted { tool: EXECUTE_PROGRAM, language: settings.language.as_str(), compiles: &compile };
        let result = adapter::adapt(profile, &wanted, contract.strict_mode(), reply);
        self.program = compiled.into_inner();
        self.source = reply.source.unwrap_or(ProgramSource::Generated);
        self.note = reply.note.clone();
        self.unanswered.clear();
        let (language, format) = (settings.language, profile.format());
        let refused = match &result.decision {
            AdapterDecision::Rejected { failure, detail } => {
                Some((failure.as_str(), detail.as_str(), prompt::rejected(*failure, detail, language, format)))
            }
            AdapterDecision::Native(message) | AdapterDecision::Recovered(message) if message.tool_calls.is_empty() => {
                let words = "the model talked, and wrote no program";
                Some((Reason::Narration.as_str(), words, prompt::nudge(language, format)))
            }
            AdapterDecision::Native(_) | AdapterDecision::Recovered(_) => None,
        };
        if let Some((code, detail, feedback)) = refused {
            if let Some(entry) = self.accounting.last_mut() {
                entry.refuse(ProviderErrorClass::InvalidResponse.as_str(), bounded(&format!("{code}: {detail}")));
            }
            self.rotation.refused();
            self.failed("adapter", code, detail);
            self.feedback = Some(feedback);
        } else if let Some(program) = &self.program {
            self.watching.written(&program.code);
        }
        let cancelled = self.call.trace.cancel.is_cancelled();
        let usage = reply.usage.map(plausible);
        Input::Inferred(Box::new(Inference { result, usage, prompt_bytes, chunks: Vec::new(), cancelled }))
    }

    /// In which form the model is asked for its program.
    fn format(&self) -> CallFormat {
        let profile = Profile::from_name(self.frame.contract.model_profile_id());
        profile.map_or(CallFormat::Any, Profile::format)
    }

    fn bounds(&self) -> Bounds<'a> {
        Bounds {
            limits: &self.call.agent.0.settings.limits,
            deadline: Some(self.call.deadline),
            cancel: &self.call.trace.cancel,
        }
    }

    /// `deliverable` and `acceptance` of the delegation contract, on ok values (AC-16).
    fn check(&self, executor: &dyn Executor, host: &CallHost<'a>, returned: &mut Returned) -> Result<(), String> {
        let delegation = &self.call.agent.0.settings.delegation;
        let value = match returned {
            Returned::Value(value) => value,
            Returned::Outcome(outcome) => match &mut outcome.result {
                Ok(value) => value,
                Err(_) => return Ok(()),
            },
        };
        match executor.language() {
            Language::Lua => delegation.settle_empty_tables(value),
            Language::Rhai => {}
        }
        delegation.check_deliverable(value)?;
        for item in delegation.acceptance() {
            match item {
                Acceptance::Prose(_) => {}
                Acceptance::Assert(expression) => self.accept(executor, host, expression, value)?,
            }
        }
        Ok(())
    }

    /// Evaluates one acceptance expression over the value, the call's arguments and the attempt's context.
    fn accept(
        &self,
        executor: &dyn Executor,
        host: &CallHost<'a>,
        expression: &str,
        value: &Value,
    ) -> Result<(), String> {
        let call = self.call;
        let source = acceptance_program(executor.language(), expression);
        let program = executor
            .compile(&source, &call.agent.0.settings.limits)
            .map_err(|error| format!("acceptance `{expression}` does not compile: {}", error.message))?;
        let args = [value.clone(), Value::List(call.args.to_vec()), Value::Map((*call.kwargs).clone())];
        let dry = DryHost::over(host);
        let arguments = Arguments { args: &args, kwargs: &Map::new() };
        match executor.execute(&program, arguments, &dry, &self.bounds()).result {
            Ok(Returned::Value(Value::Bool(true))) => Ok(()),
            Ok(Returned::Value(other)) => Err(format!(
                "the value is not accepted: `{expression}` is {} for the value {}",
                other.shown(),
                value.shown()
            )),
            Ok(Returned::Outcome(_)) => Err(format!("acceptance `{expression}` gave an outcome, not true")),
            Err(failure) => Err(format!("acceptance `{expression}` failed: {failure}")),
        }
    }

    fn build_prompt(&mut self) -> Prompt {
        let call = self.call;
        let settings = &call.agent.0.settings;
        let delegation = &settings.delegation;
        let acceptance: Vec<&str> = delegation
            .acceptance()
            .iter()
            .map(|item| match item {
                Acceptance::Prose(text) | Acceptance::Assert(text) => text.as_str(),
            })
            .collect();
        let context = CallHost::new(self.frame).attempt.snapshot();
        // Models see no secret, neither by its name nor by its value. Programs do.
        let shown =
            |map: &Map| map.iter().map(|(key, value)| (key.clone(), secret::masked_entry(key, value))).collect();
        let (args, kwargs): (Vec<_>, Map) = (call.args.iter().map(secret::masked).collect(), shown(&call.kwargs));
        let shown_context: Map = shown(&context);
        let remembered = call.agent.remembered();
        let history: Vec<_> = remembered.iter().map(|entry| entry.line().clone()).collect();
        let delegates = call.agent.runtime().delegates().of(call.agent.maker());
        let Prompt { system, user } = prompt::build(&PromptInput {
            role: call.agent.role(),
            method: &call.method,
            args: &args,
            kwargs: &kwargs,
            language: settings.language,
            contract: PromptContract {
                purpose: delegation.purpose(),
                deliverable: delegation.deliverable(),
                acceptance: &acceptance,
                failure_policy: None,
            },
            context: &shown_context,
            history: &history,
            tools: &settings.tool_docs,
            delegates: &delegates,
            format: self.format(),
        });
        self.shown = (context, remembered);
        Prompt { system: scrubbed(system), user: scrubbed(user) }
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
        self.rotation = rotation(self.call);
        self.charge(&call.spent);
        self.watching.released();
        match (self.executor(), self.program.clone()) {
            (Some(executor), Some(program)) => aside(|| self.run(executor, &program)),
            (None, _) | (_, None) => Input::executed(error(ToolFailure::Failed, "internal error: no program to run")),
        }
    }
}

/// How long a provider may overrun its own timeout before it is left behind.
const PROVIDER_GRACE: Duration = Duration::from_millis(100);

/// The provider's reply; its panic is a failure like any other.
async fn complete(
    provider: &dyn Provider,
    request: &ModelRequest,
    cancel: &CancelToken,
) -> Result<ModelReply, ProviderError> {
    let mut reply = std::pin::pin!(async { provider.complete(request, cancel).await });
    std::future::poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| reply.as_mut().poll(context))).unwrap_or_else(|_| {
            let message = format!("the provider {} panicked", provider.model());
            Poll::Ready(Err(ProviderError::new(ProviderErrorClass::Failed, message)))
        })
    })
    .await
}

fn given_up(call: &Call<'_>, model: &str, allowed: Duration) -> ProviderError {
    if call.trace.cancel.is_cancelled() { ProviderError::cancelled() } else { ProviderError::timed_out(model, allowed) }
}

/// The entry with what a reply says about itself. Where it says nothing of tokens, its cost is estimated from the bytes, as
/// its tokens are (V18).
fn answered(mut entry: AccountingEntry, reply: &ModelReply, prompt_bytes: u64, prices: &Prices) -> AccountingEntry {
    entry.usage = reply.usage.map(plausible).unwrap_or_default();
    let calls: usize = reply.tool_calls.iter().map(|call| call.arguments.len()).sum();
    let reply_bytes = (reply.content.as_ref().map_or(0, String::len) + calls) as u64;
    let estimate = || Usage {
        input: Tokens::estimate(prompt_bytes).0,
        output: Tokens::estimate(reply_bytes).0,
        ..Usage::default()
    };
    let counted = reply.usage.map_or_else(estimate, plausible);
    entry.cost = prices.cost(&entry.target, reply.model.as_deref(), &counted);
    entry.stop_reason = reply.stop_reason.clone();
    entry.omitted_params = reply.omitted.clone();
    entry.routed(reply.provider.as_deref(), reply.model.as_deref());
    entry
}

/// The entry of a request that failed: what it used all the same.
fn refused(mut entry: AccountingEntry, error: &ProviderError, prices: &Prices) -> AccountingEntry {
    if let Some(usage) = error.usage.map(plausible) {
        entry.cost = prices.cost(&entry.target, None, &usage);
        entry.usage = usage;
    }
    entry
}

/// The reply, unless it ended before its end: a program in its text may lack its last lines (EC-AD1). A structured
/// call shows by its own form whether it is whole.
fn whole(reply: ModelReply, model: &str) -> Result<ModelReply, ProviderError> {
    let words = match reply.stop_reason.as_deref().unwrap_or_default().to_ascii_lowercase().as_str() {
        "length" | "max_tokens" | "max_output_tokens" => {
            "the reply was cut at its limit of tokens; raise `max_output_tokens`"
        }
        "model_context_window_exceeded" => "the reply was cut where the model's window ends",
        "content_filter" | "safety" | "recitation" | "refusal" | "prohibited_content" | "blocklist" | "spii" => {
            "a filter of the server cut the reply"
        }
        "incomplete" => "the server says that the reply was cut, and not why",
        _ => return Ok(reply),
    };
    let is_whole = |call: &RawToolCall| match Value::from_json(&call.arguments) {
        Ok(Value::Map(arguments)) => !arguments.is_empty(),
        Ok(_) | Err(_) => false,
    };
    if !reply.tool_calls.is_empty() && reply.tool_calls.iter().all(is_whole) {
        return Ok(reply);
    }
    Err(ProviderError::new(ProviderErrorClass::InvalidResponse, format!("{model}: {words}")))
}

/// The requests of one generation.
fn rotation(call: &Call<'_>) -> Rotation {
    let settings = &call.agent.0.settings;
    Rotation::new(settings.provider.targets().len(), settings.generation_attempts())
}

/// One of a list's targets; a provider that is no list is its only one.
fn target_of(provider: &Arc<dyn Provider>, index: usize) -> &Arc<dyn Provider> {
    provider.targets().get(index).unwrap_or(provider)
}

/// What a caller is told when the model's time ran out; nothing when it was the call's.
fn model_timeout(
    call: &Call<'_>,
    model: &str,
    error: &ProviderError,
    allowed: Duration,
    streams: bool,
) -> Option<String> {
    let settings = &call.agent.0.settings;
    // A host's own provider may have given up earlier, for its own reasons.
    let own_words = *error != ProviderError::timed_out(model, allowed);
    if streams {
        // Bounded by its silence, of which the provider tells, and as a whole by the call.
        return own_words.then(|| error.message.clone());
    }
    if allowed < settings.provider_timeout {
        return None;
    }
    let allowed_ms = allowed.as_millis();
    let words = format!("the model took longer than {allowed_ms} ms; raise `provider_timeout_seconds`");
    Some(if own_words { format!("{words} ({})", error.message) } else { words })
}

/// Token counts come from a server or from a host's function. What no model ever used in one reply is cut.
fn plausible(usage: Usage) -> Usage {
    const MOST: u64 = 1 << 40;
    let [input, cached, output, cache_write, reasoning] =
        [usage.input, usage.cached, usage.output, usage.cache_write, usage.reasoning].map(|count| count.min(MOST));
    Usage { input, cached, output, cache_write, reasoning }
}

/// `execute_program`, as it is offered to a model.
pub(super) fn offered_tools(language: Language) -> Arc<[ToolSpec]> {
    static OFFERED: [OnceLock<Arc<[ToolSpec]>>; Language::ALL.len()] = [const { OnceLock::new() }; Language::ALL.len()];
    let offered = OFFERED[language as usize].get_or_init(|| {
        [ToolSpec {
            name: EXECUTE_PROGRAM.into(),
            description: prompt::EXECUTE_PROGRAM_DESCRIPTION.into(),
            parameters: prompt::execute_program_parameters(language),
        }]
        .into()
    });
    offered.clone()
}

fn without_secrets(message: &AgentMessage) -> AgentMessage {
    AgentMessage { content: secret::scrub(&message.content).into_owned(), ..message.clone() }
}

fn prompt_bytes(request: &ModelRequest) -> u64 {
    let messages: usize = request.messages.iter().map(|message| message.content.len()).sum();
    (request.system_prompt.len() + request.user_prompt.len() + messages) as u64
}

fn error(failure: ToolFailure, message: &str) -> ToolEnvelope {
    ToolEnvelope::Error { failure, message: bounded(message).into() }
}

fn failure_class(failure: &ProgramFailure) -> &'static str {
    match failure {
        ProgramFailure::Raised { .. } => "raised",
        ProgramFailure::Fuel { .. } => "fuel",
        ProgramFailure::CpuTime { .. } => "cpu_time",
        ProgramFailure::Deadline => "deadline",
        ProgramFailure::Memory { .. } => "memory",
        ProgramFailure::CallDepth => "call_depth",
        ProgramFailure::HostCalls { .. } => "host_calls",
        ProgramFailure::Refused { .. } => "result_refused",
        ProgramFailure::Interrupted => "interrupted",
        ProgramFailure::Internal { .. } => "internal",
    }
}

/// Without secrets, and at most 4 KiB, cut between characters.
fn bounded(message: &str) -> String {
    let message = secret::scrub(message);
    message[..message.floor_char_boundary(MAX_MESSAGE)].to_owned()
}

/// The text without secrets; the same text when there are none.
fn scrubbed(text: Arc<str>) -> Arc<str> {
    match secret::scrub(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(scrubbed) => scrubbed.into(),
    }
}
