//! The kernel: a machine that decides and never acts (EC-5, unified-kernel 6.1).
//!
//! One input in, one command out. Time is an argument; readiness, replies, tool results, cancellation and storage
//! failures are inputs. There is no clock, no randomness and no I/O in this module, so a run can be replayed from its
//! transcript alone. The only `match` that moves between states is in this file; `precheck`, `validate_calls` and
//! `commit` compute the verdicts.
//!
//! ```
//! # use std::sync::Arc;
//! # use cadenza_core::contract::*;
//! # use cadenza_core::kernel::*;
//! # use cadenza_core::kernel::transcript::Transcript;
//! # use cadenza_core::{adapter, value::{Map, Value}};
//! let environment = Arc::new(Environment::new(Manifest::new([ManifestTool::execute_program()]), "program", "my-model"));
//! let factory = ContractFactory {
//!     manifest: environment.manifest.clone(),
//!     profile: adapter::Profile::Program.model_profile(),
//!     grammar: None,
//!     strict_mode: false,
//!     context_window: None,
//! };
//! let call = factory::DynamicCall { attempts: 2, nudges: 1, bounds: factory::RunBounds::default() };
//! let contract = Arc::new(factory.dynamic_call(&call));
//!
//! let (mut kernel, mut step) = Kernel::start(contract, environment, Millis(0));
//! let mut transcript = Transcript::new(kernel.header());
//! let ended = loop {
//!     transcript.extend(std::mem::take(&mut step.entries)); // written down before anything happens
//!     let input = match step.command {
//!         // A kept program answers here, in place of readiness and of the model:
//!         Command::Probe => Input::Reused(Arc::new(Decision {
//!             name: manifest::EXECUTE_PROGRAM.into(),
//!             arguments: Arc::new(Map::from([
//!                 ("code".into(), "return 42".into()),
//!                 ("language".into(), "lua".into()),
//!             ])),
//!         })),
//!         Command::Infer(_ask) => Input::ProviderFailed { message: "no model here".into() },
//!         Command::Execute(_call) => Input::executed(ToolEnvelope::Ok(Arc::new(Value::Int(42)))),
//!         Command::Finish(ended) => break ended,
//!     };
//!     step = kernel.step(Millis(1), input);
//! };
//! assert_eq!(ended.value.as_deref(), Some(&Value::Int(42)));
//! assert_eq!(transcript.head(), transcript.head());
//! ```

use std::sync::Arc;

use crate::contract::manifest::ControlTool;
use crate::contract::{CompletionMode, ExecutionContract, Manifest, Millis, ModelProfile, Spent, Tokens, ToolPolicy};
use crate::ids::Digest;
use crate::message::{AdapterDecision, AgentMessage, MessageRole, RejectionCode};
use crate::outcome::{AgentOutcome, GoalStatus, Reason};
use crate::value::{Map, Value};
use crate::{adapter, canonical};

mod clock;
mod command;
mod commit;
mod digest;
mod entry;
mod explain;
mod input;
pub mod metrics;
mod observe;
mod precheck;
mod replay;
pub mod script;
mod seen;
mod stored;
pub mod transcript;
mod validate_calls;
mod verify;

pub use entry::{
    AdapterRecord, CallRef, Cut, Decision, Entry, Event, Origin, Predicate, State, Terminal, TimeLimit, ToolEnvelope,
    ToolFailure, ToolRecord,
};

pub use command::{Ask, Call, Command, Constraints, Ended, Purpose, Step};
pub use digest::StateDigest;
pub use input::{Executed, Inference, Input};
pub use replay::{ReplayError, Replayed, replay};
pub use stored::{StoredEntry, StoredError, StoredRun};
pub use verify::{Component, Divergence, compare, keyed_seal, verify};

use clock::Clock;
use commit::{Again, Facts, Next, Reply};
use seen::{BatchCall, Last, Pending, Seen};
use transcript::Header;
use validate_calls::{Asked, Fate, Sequence};

/// What an interrupted run says.
const CANCELLED: &str = "the call was cancelled";

/// Tool errors in a row that end a run (X3).
pub const MAX_TOOL_ERRORS_IN_A_ROW: u32 = 5;

/// What a run finds around it: descriptions and digests, nothing it could act on.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The tools that exist.
    pub manifest: Arc<Manifest>,
    /// The adapter profiles that exist.
    pub profiles: Arc<[ModelProfile]>,
    /// Version of the adapter that reads the replies.
    pub adapter_version: Arc<str>,
    /// What distinguishes this model from another behind the same name; hashed into every entry.
    pub model_fingerprint: Arc<str>,
    /// Why this run may not start for lack of delegation budget (AC-15): depth, number of calls, what is left.
    pub refusal: Option<Arc<str>>,
    /// Digest of the context snapshot the run starts from.
    pub snapshot_hash: Option<Digest>,
    /// Digest of the governance state that shaped the contract.
    pub policy_hash: Option<Digest>,
}

impl Environment {
    /// An environment with the profiles of this build, for a model whose replies are read by that one. A profile that does
    /// not exist is PRECHECK's to refuse (EC-P4a).
    pub fn new(manifest: Manifest, profile: &str, model_fingerprint: impl Into<Arc<str>>) -> Self {
        Self {
            manifest: Arc::new(manifest),
            profiles: adapter::profiles(),
            adapter_version: adapter::version_of(profile).into(),
            model_fingerprint: model_fingerprint.into(),
            refusal: None,
            snapshot_hash: None,
            policy_hash: None,
        }
    }
}

/// Which answer is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Probe,
    Inference,
    Tool,
    Nothing,
}

/// One run. Keeps only what its decisions need: nothing here grows with the history.
#[derive(Debug)]
pub struct Kernel {
    contract: Arc<ExecutionContract>,
    environment: Arc<Environment>,
    presented: Digest,
    state: State,
    waiting: Waiting,
    seq: u32,
    step: u32,
    started: Millis,
    now: Millis,
    boundary: Millis,
    spent: Spent,
    /// 1 once the model was asked before any program ran; 0 while a kept program stands in its place.
    first_generation: u32,
    pending: Pending,
    seen: Seen,
    synthesis: bool,
    attempted_call: bool,
    sequence: Sequence,
    gate_open: bool,
    held: Vec<Arc<str>>,
    context_bytes: u64,
    append: Vec<AgentMessage>,
    last: Option<Last>,
    replies_without_call: u32,
    errors_in_a_row: u32,
    tool_failed: Option<(Reason, Arc<str>)>,
    value: Option<Arc<Value>>,
    ended: Option<Box<Ended>>,
    digest: StateDigest,
    entries: Vec<Entry>,
    texts: Vec<Arc<str>>,
}

impl Kernel {
    /// Starts a run: PRECHECK, then the question whether the provider is ready. `now` is the driver's clock.
    pub fn start(contract: Arc<ExecutionContract>, environment: Arc<Environment>, now: Millis) -> (Self, Step) {
        let gated = contract.token_gate() && contract.tool_policy() == ToolPolicy::Required;
        let mut kernel = Self {
            presented: contract.contract_hash(),
            contract,
            environment,
            state: State::Init,
            waiting: Waiting::Probe,
            seq: 0,
            step: 0,
            started: now,
            now,
            boundary: now,
            spent: Spent::default(),
            first_generation: 0,
            pending: Pending::default(),
            seen: Seen::default(),
            synthesis: false,
            attempted_call: false,
            sequence: Sequence::default(),
            gate_open: !gated,
            held: Vec::new(),
            context_bytes: 0,
            append: Vec::new(),
            last: None,
            replies_without_call: 0,
            errors_in_a_row: 0,
            tool_failed: None,
            value: None,
            ended: None,
            digest: StateDigest::default(),
            entries: Vec::new(),
            texts: Vec::new(),
        };
        kernel.go_to(State::Precheck);
        let command = match precheck::check(&kernel.contract, &kernel.environment) {
            None => Command::Probe,
            Some((reason, words)) => kernel.terminate(AgentOutcome::FailedPreflight, reason, words.into()),
        };
        let step = kernel.hand_out(command);
        (kernel, step)
    }

    /// What all entries of this run's transcript share.
    pub fn header(&self) -> Header {
        Header {
            contract_hash: self.contract.contract_hash(),
            adapter_version: self.environment.adapter_version.clone(),
            model_profile_id: self.contract.model_profile_id().clone(),
            model_fingerprint: self.environment.model_fingerprint.clone(),
        }
    }

    /// Where the run stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// What the run used so far.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// The contract of the run.
    pub fn contract(&self) -> &Arc<ExecutionContract> {
        &self.contract
    }

    /// What a child run may use at most, at `now` (V40).
    pub fn remaining(&self, now: Millis) -> crate::contract::Remaining {
        self.contract.budget().remaining(&self.spent, now.since(self.started))
    }

    /// For hosts whose contract object could be exchanged behind the runtime's back: says which contract is there now.
    /// One that differs from the run's own ends the run at the next COMMIT (EC-IB1, V36).
    pub fn present_contract(&mut self, contract_hash: Digest) {
        self.presented = contract_hash;
    }

    /// Takes the answer to the last command. Pure: same state, same input, same step.
    pub fn step(&mut self, now: Millis, input: Input) -> Step {
        let clock = Clock::read(&self.contract.budget(), self.started, self.boundary, now);
        self.advance(now, clock, input)
    }

    /// [`Self::step`] with a recorded clock: replay comes in here (V39).
    pub(crate) fn advance(&mut self, now: Millis, clock: Clock, input: Input) -> Step {
        self.now = now;
        let command = match (self.waiting, input) {
            (Waiting::Nothing, _) => self.finished_already(),
            (waiting, Input::PersistenceFailed { message }) => self.persistence_failed(waiting, message),
            (Waiting::Probe, Input::Readiness(ready)) => self.readiness(ready, clock),
            (Waiting::Probe, Input::Reused(decision)) => {
                self.go_to_infer();
                self.reused(decision)
            }
            (Waiting::Probe, Input::Cancelled { .. }) => self.stop_probe(true, clock),
            (Waiting::Probe, Input::TimedOut { .. }) => self.stop_probe(false, clock),
            (Waiting::Inference, Input::Inferred(inference)) => self.inferred(*inference, clock),
            (Waiting::Inference, Input::Reused(decision)) => self.reused(decision),
            (Waiting::Inference, Input::ProviderFailed { message }) => self.provider_failed(message, clock),
            (Waiting::Inference, Input::BudgetSpent { message }) => self.budget_spent(message, clock),
            (Waiting::Inference, Input::Cancelled { raw_hash }) => self.cut_inference(Cut::Cancelled, raw_hash, clock),
            (Waiting::Inference, Input::TimedOut { raw_hash }) => self.cut_inference(Cut::TimedOut, raw_hash, clock),
            (Waiting::Tool, Input::Executed(executed)) => self.executed(executed, clock),
            (Waiting::Tool, Input::Cancelled { .. }) => self.cut_tool(Cut::Cancelled, clock),
            (Waiting::Tool, Input::TimedOut { .. }) => self.cut_tool(Cut::TimedOut, clock),
            // Every other pair of question and answer is our own fault; spelled out, so that a new input asks for a place.
            (
                waiting @ (Waiting::Probe | Waiting::Inference | Waiting::Tool),
                input @ (Input::Readiness(_)
                | Input::Inferred(_)
                | Input::ProviderFailed { .. }
                | Input::BudgetSpent { .. }
                | Input::Reused(_)
                | Input::Executed(_)),
            ) => self.illegal(waiting, input.name()),
        };
        self.hand_out(command)
    }

    // PRECHECK

    fn readiness(&mut self, ready: Result<(), Arc<str>>, clock: Clock) -> Command {
        self.note(Event::Readiness { ready: ready.clone() });
        self.verdict(false, clock.total_exceeded.then_some(TimeLimit::Total));
        if let Some((reason, words)) = self.pending.timeout.take() {
            return self.terminate(AgentOutcome::FailedTimeout, reason, words);
        }
        match ready {
            Ok(()) => self.infer(Purpose::Act),
            Err(words) => self.terminate(AgentOutcome::FailedPreflight, Reason::Backend, words),
        }
    }

    /// The probe was cut: by the user, or because it took too long.
    fn stop_probe(&mut self, cancelled: bool, clock: Clock) -> Command {
        let limit = clock.cut(Cut::TimedOut, TimeLimit::InferStep).filter(|_| !cancelled);
        self.verdict(cancelled, limit);
        match limit {
            None => self.terminate(AgentOutcome::Interrupted, Reason::Cancelled, CANCELLED.into()),
            Some(TimeLimit::Total) => {
                let words = self.limit_words(TimeLimit::Total);
                self.terminate(AgentOutcome::FailedTimeout, Reason::Total, words)
            }
            Some(TimeLimit::InferStep | TimeLimit::ToolStep) => {
                let words = "the provider's readiness took too long".into();
                self.terminate(AgentOutcome::FailedPreflight, Reason::Backend, words)
            }
        }
    }

    // INFER

    fn infer(&mut self, purpose: Purpose) -> Command {
        self.go_to_infer();
        if !self.attempted_call {
            self.first_generation = 1;
        }
        self.waiting = Waiting::Inference;
        let synthesis = purpose == Purpose::Synthesis;
        Command::Infer(Box::new(Ask {
            step: self.step,
            generation_attempt: self.generation_attempt(),
            purpose,
            append: std::mem::take(&mut self.append),
            offer_tools: !synthesis && self.contract.tool_policy() != ToolPolicy::Forbidden,
            max_output_tokens: synthesis.then_some(self.contract.context_budget().reserved_synthesis),
            hold_text: !self.gate_open,
            constraints: Constraints {
                grammar_profile: self.contract.grammar_profile().cloned(),
                grammar_sha256: self.contract.grammar_sha256(),
                logits_mask_sha256: self.contract.logits_mask_sha256(),
            },
            deadline: self.deadline(),
        }))
    }

    fn go_to_infer(&mut self) {
        self.step += 1;
        self.boundary = self.now;
        self.go_to(State::Infer);
    }

    fn inferred(&mut self, inference: Inference, clock: Clock) -> Command {
        let Inference { result, usage, prompt_bytes, chunks, cancelled } = inference;
        let record = Arc::new(AdapterRecord { result, usage, prompt_bytes });
        let (message, reply_bytes) = match &record.result.decision {
            AdapterDecision::Native(message) => (Ok(message), canonical::length(message)),
            // The adapter must not recover under a strict contract; if it does, that is no reply (V6).
            AdapterDecision::Recovered(message) if self.contract.strict_mode() => {
                let words = "a recovered call is not accepted under a strict contract";
                (Err((RejectionCode::RecoveryDisabled, words)), canonical::length(message))
            }
            AdapterDecision::Recovered(message) => (Ok(message), canonical::length(message)),
            AdapterDecision::Rejected { failure, detail } => (Err((*failure, detail.as_str())), detail.len() as u64),
        };
        self.spent.charge_inference(usage, prompt_bytes, reply_bytes);
        self.context_bytes = prompt_bytes;
        self.note(Event::Adapter(record.clone()));
        self.verdict(cancelled, clock.after(TimeLimit::InferStep));
        let message = match message {
            Ok(message) => message,
            Err((failure, detail)) => {
                self.seen.reply = Reply::Rejected(failure);
                self.seen.rejection = detail.into();
                return self.commit();
            }
        };
        self.context_bytes += reply_bytes;
        self.show(&message.content, chunks);
        self.seen.content = message.content.as_str().into();
        if self.synthesis {
            self.seen.reply = Reply::NoCall;
            if !message.tool_calls.is_empty() {
                let names = message.tool_calls.iter().map(|call| call.name.clone()).collect();
                self.note(Event::CallsDropped { names });
            }
            return self.commit();
        }
        if message.tool_calls.is_empty() {
            self.seen.reply = Reply::NoCall;
            self.replies_without_call += 1;
            return self.commit();
        }
        self.seen.source_model = message.tool_calls[0].source_model.clone();
        let asked = message
            .tool_calls
            .iter()
            .map(|call| Asked { name: call.name.clone(), arguments: Arc::new(call.arguments.clone()) })
            .collect();
        self.validate_calls(asked)
    }

    fn reused(&mut self, decision: Arc<Decision>) -> Command {
        let asked = vec![Asked { name: decision.name.clone(), arguments: decision.arguments.clone() }];
        self.note(Event::Reused(decision));
        if self.spent.inferences == 0 {
            self.first_generation = 0;
        }
        self.validate_calls(asked)
    }

    fn provider_failed(&mut self, message: Arc<str>, clock: Clock) -> Command {
        self.note(Event::ProviderFailed { message: message.clone() });
        self.verdict(false, clock.after(TimeLimit::InferStep));
        self.pending.provider_failed = Some(message);
        self.commit()
    }

    fn budget_spent(&mut self, message: Arc<str>, clock: Clock) -> Command {
        self.note(Event::BudgetSpent { message: message.clone() });
        self.verdict(false, clock.after(TimeLimit::InferStep));
        self.pending.budget_spent = Some(message);
        self.commit()
    }

    fn cut_inference(&mut self, cut: Cut, raw_hash: Option<Digest>, clock: Clock) -> Command {
        self.note(Event::InferenceCut { cut, raw_hash });
        self.verdict(cut == Cut::Cancelled, clock.cut(cut, TimeLimit::InferStep));
        self.commit()
    }

    /// Text is shown at once, or held back by the gate until a call passed validation (V24).
    fn show(&mut self, content: &str, chunks: Vec<Arc<str>>) {
        if content.is_empty() {
            return;
        }
        let pieces = if chunks.is_empty() { vec![Arc::from(content)] } else { chunks };
        if self.gate_open { self.texts.extend(pieces) } else { self.held.extend(pieces) }
    }

    // VALIDATE_CALLS

    fn validate_calls(&mut self, asked: Vec<Asked>) -> Command {
        self.seen.reply = Reply::Calls;
        self.attempted_call = true;
        self.replies_without_call = 0;
        self.go_to(State::ValidateCalls);
        let manifest = self.environment.manifest.clone();
        let judgement = validate_calls::judge(&self.contract, &manifest, &mut self.sequence, &asked);
        let id = |index: usize, step| CallRef { step, index: index as u32 };
        let fates = match judgement {
            Ok(fates) => fates,
            Err(violation) => {
                let detail: Arc<str> = violation.detail.into();
                let name = asked[violation.index].name.clone();
                let call = id(violation.index, self.step);
                self.reject(call, name, violation.reason, detail.clone());
                self.pending.violation.get_or_insert((violation.reason, detail));
                return self.commit();
            }
        };
        for (index, (call, fate)) in asked.into_iter().zip(fates).enumerate() {
            let call = BatchCall {
                id: id(index, self.step),
                name: call.name,
                arguments: call.arguments,
                fate,
                result: None,
                observation: None,
            };
            if let Fate::Invalid(words) = &call.fate {
                let words: Arc<str> = words.as_str().into();
                self.reject(call.id, call.name.clone(), Reason::CallInvalid, words.clone());
                if self.contract.strict_mode() {
                    self.pending.invalid.get_or_insert((Reason::CallInvalid, words.clone()));
                }
                self.tool_failed = Some((Reason::CallInvalid, words));
            }
            self.seen.batch.push(call);
        }
        let runs = self.seen.batch.iter().any(|call| !matches!(call.fate, Fate::Invalid(_)));
        if runs && !self.pending.stops() {
            self.open_gate();
        }
        // A budget that is already overrun stops the batch before its side effects; COMMIT classifies.
        if !runs || self.pending.stops() || self.tokens_exceeded() {
            self.skip_rest();
            self.observe_invalid();
            return self.commit();
        }
        self.go_to(State::Execute);
        self.execute_next()
    }

    fn reject(&mut self, call: CallRef, name: Arc<str>, reason: Reason, detail: Arc<str>) {
        self.note(Event::CallRejected { call, name, reason, detail });
    }

    /// The first call of the run passed validation: what was held back may be shown.
    fn open_gate(&mut self) {
        if !self.gate_open {
            self.gate_open = true;
            self.let_go_of_text(true);
        }
    }

    fn let_go_of_text(&mut self, released: bool) {
        if self.held.is_empty() {
            return;
        }
        let pieces = std::mem::take(&mut self.held);
        self.note(Event::Gate { released, text: pieces.concat().into() });
        if released {
            self.texts.extend(pieces);
        }
    }

    // EXECUTE

    /// The next call of the batch that may run, or OBSERVE.
    fn execute_next(&mut self) -> Command {
        while self.seen.next < self.seen.batch.len() && !self.pending.stops() && self.seen.done.is_none() {
            let call = self.seen.batch[self.seen.next].clone();
            match call.fate {
                Fate::Invalid(_) => self.seen.next += 1,
                Fate::Control(control) => self.take_control(control, &call),
                Fate::Run => {
                    let (name, arguments) = (call.name.clone(), call.arguments.clone());
                    self.note(Event::ToolStarted { call: call.id, name, arguments });
                    self.boundary = self.now;
                    self.waiting = Waiting::Tool;
                    let BatchCall { id, name, arguments, .. } = call;
                    return Command::Execute(Call {
                        id,
                        name,
                        arguments,
                        deadline: self.deadline(),
                        spent: self.spent,
                    });
                }
            }
        }
        self.skip_rest();
        self.observe()
    }

    /// Control tools have no effect outside: the kernel answers them itself (X4, X5).
    fn take_control(&mut self, control: ControlTool, call: &BatchCall) {
        let status = match (control, call.arguments.get("status").and_then(Value::as_str)) {
            (ControlTool::Done, Some("blocked")) => GoalStatus::Blocked,
            (ControlTool::Done | ControlTool::FinalReport, _) => GoalStatus::Achieved,
        };
        let envelope = ToolEnvelope::Ok(Arc::new(Value::Null));
        self.note(Event::ToolStarted { call: call.id, name: call.name.clone(), arguments: call.arguments.clone() });
        self.note(Event::Tool(Box::new(ToolRecord {
            call: call.id,
            name: call.name.clone(),
            arguments: call.arguments.clone(),
            result: Ok(envelope.clone()),
            observation: None,
            child_tokens: Tokens(0),
        })));
        self.seen.batch[self.seen.next].result = Some(Ok(envelope));
        self.seen.next += 1;
        self.seen.done = Some((status, Arc::new(Value::Map((*call.arguments).clone()))));
    }

    fn executed(&mut self, executed: Executed, clock: Clock) -> Command {
        let Executed { envelope, observation, child_tokens, cancelled } = executed;
        let call = &self.seen.batch[self.seen.next];
        let (id, name, arguments) = (call.id, call.name.clone(), call.arguments.clone());
        self.note(Event::Tool(Box::new(ToolRecord {
            call: id,
            name: name.clone(),
            arguments: arguments.clone(),
            result: Ok(envelope.clone()),
            observation: observation.clone(),
            child_tokens,
        })));
        self.verdict(cancelled, clock.after(TimeLimit::ToolStep));
        self.spent.charge_child(child_tokens);
        match &envelope {
            ToolEnvelope::Ok(value) => {
                self.spent.tools_executed += 1;
                self.spent.tools_ok += 1;
                self.errors_in_a_row = 0;
                self.value = Some(value.clone());
            }
            ToolEnvelope::Error { failure, message } => {
                self.spent.tools_executed += 1;
                self.errors_in_a_row += 1;
                self.tool_error(*failure, message);
            }
            ToolEnvelope::Malformed { detail } => {
                let words = format!("`{name}` answered outside the form of a tool result: {detail}");
                self.pending.invalid.get_or_insert((Reason::ToolEnvelope, words.into()));
            }
        }
        self.count_repeats(name, arguments, &envelope);
        let call = &mut self.seen.batch[self.seen.next];
        call.result = Some(Ok(envelope));
        call.observation = observation;
        self.seen.next += 1;
        self.execute_next()
    }

    fn tool_error(&mut self, failure: ToolFailure, message: &Arc<str>) {
        match failure {
            ToolFailure::Failed => self.tool_failed = Some((Reason::RequiredToolFailed, message.clone())),
            ToolFailure::ResultContract => self.tool_failed = Some((Reason::ResultContract, message.clone())),
            ToolFailure::Fuel => {
                self.pending.timeout.get_or_insert((Reason::Fuel, message.clone()));
            }
            ToolFailure::CpuTime => {
                self.pending.timeout.get_or_insert((Reason::ToolStep, message.clone()));
            }
        }
        if self.errors_in_a_row >= MAX_TOOL_ERRORS_IN_A_ROW {
            let words = format!("{MAX_TOOL_ERRORS_IN_A_ROW} tool calls in a row failed; the last one: {message}");
            self.pending.invalid.get_or_insert((Reason::RepeatedFailure, words.into()));
        }
    }

    fn count_repeats(&mut self, name: Arc<str>, arguments: Arc<Map>, envelope: &ToolEnvelope) {
        match &mut self.last {
            Some(last) if last.name == name && last.arguments == arguments && last.envelope == *envelope => {
                last.times += 1;
            }
            last => *last = Some(Last { name, arguments, envelope: envelope.clone(), times: 1 }),
        }
    }

    fn cut_tool(&mut self, cut: Cut, clock: Clock) -> Command {
        let call = &self.seen.batch[self.seen.next];
        let record = ToolRecord {
            call: call.id,
            name: call.name.clone(),
            arguments: call.arguments.clone(),
            result: Err(cut),
            observation: None,
            child_tokens: Tokens(0),
        };
        self.note(Event::Tool(Box::new(record)));
        self.verdict(cut == Cut::Cancelled, clock.cut(cut, TimeLimit::ToolStep));
        self.seen.next += 1;
        self.execute_next()
    }

    /// What was not reached is recorded (EC-S13, X6).
    fn skip_rest(&mut self) {
        for index in self.seen.next..self.seen.batch.len() {
            let call = &self.seen.batch[index];
            if !matches!(call.fate, Fate::Invalid(_)) {
                let (call, name) = (call.id, call.name.clone());
                self.note(Event::ToolSkipped { call, name });
            }
        }
        self.seen.next = self.seen.batch.len();
    }

    // OBSERVE

    fn observe(&mut self) -> Command {
        self.go_to(State::Observe);
        if !self.is_certain_to_end() {
            self.observe_batch();
        }
        self.commit()
    }

    /// Nobody will read the observations: the run ends at this COMMIT whatever else is true.
    fn is_certain_to_end(&self) -> bool {
        let completed = self.contract.completion_mode() == CompletionMode::OnRequiredToolOk && self.spent.tools_ok > 0;
        completed || self.pending.stops() || self.seen.done.is_some()
    }

    /// A batch in which nothing could run: the model is told why.
    fn observe_invalid(&mut self) {
        if !self.pending.stops() && !self.tokens_exceeded() {
            self.observe_batch();
        }
    }

    fn observe_batch(&mut self) {
        let observed = observe::batch(&self.seen, self.contract.tool_output_budget());
        for (call, cut) in observed.truncated {
            let observe::CutOutput { original_bytes, kept_bytes, sha256 } = cut;
            self.note(Event::Truncated { call, original_bytes, kept_bytes, sha256 });
        }
        self.context_bytes += observed.messages[1..].iter().map(canonical::length).sum::<u64>();
        self.append.extend(observed.messages);
    }

    // COMMIT

    fn commit(&mut self) -> Command {
        self.go_to(State::Commit);
        if self.presented != self.contract.contract_hash() {
            self.note(Event::ContractMutated { presented: self.presented });
            let words = "the contract was exchanged while the run was under way";
            self.pending.violation.get_or_insert((Reason::ContractMutated, words.into()));
        }
        let facts = Facts::of(self);
        let (predicate, next) = commit::decide(&facts);
        self.note(Event::Committed { predicate });
        match next {
            Next::Finish(outcome, reason) => {
                let words = self.words(outcome, reason);
                self.terminate(outcome, reason, words)
            }
            Next::Infer(again) => self.again(again),
        }
    }

    fn tokens_exceeded(&self) -> bool {
        self.contract.budget().max_tokens_consumed.is_some_and(|limit| self.spent.tokens > limit)
    }

    /// The model is asked again: counted and recorded before it is.
    fn again(&mut self, again: Again) -> Command {
        let seen = std::mem::take(&mut self.seen);
        let purpose = match again {
            Again::Act => {
                self.remember_prose(&seen);
                Purpose::Act
            }
            Again::Retry(failure) => {
                self.spent.format_retries += 1;
                self.note(Event::Retry { n: self.spent.format_retries, failure });
                Purpose::Retry { failure, detail: seen.rejection }
            }
            Again::Nudge => {
                self.spent.semantic_retries += 1;
                self.note(Event::Nudge { n: self.spent.semantic_retries });
                self.let_go_of_text(false);
                self.remember_prose(&seen);
                Purpose::Nudge
            }
            Again::Repair => {
                self.spent.semantic_retries += 1;
                self.note(Event::Repair { n: self.spent.semantic_retries });
                let message = self.tool_failed.as_ref().map(|(_, words)| words.clone()).unwrap_or_default();
                Purpose::Repair { message }
            }
            Again::Synthesis => {
                self.note(Event::Synthesis);
                self.remember_prose(&seen);
                self.synthesis = true;
                Purpose::Synthesis
            }
        };
        self.infer(purpose)
    }

    /// Prose that does not end the run stays in the conversation (X2).
    fn remember_prose(&mut self, seen: &Seen) {
        if seen.reply == Reply::NoCall {
            self.append.push(AgentMessage {
                role: MessageRole::Assistant,
                content: seen.content.to_string(),
                tool_calls: Vec::new(),
                tool_call_id: None,
            });
        }
    }

    // TERMINATE

    fn terminate(&mut self, agent_outcome: AgentOutcome, reason: Reason, message: Arc<str>) -> Command {
        self.let_go_of_text(false);
        self.go_to(State::Terminate);
        let done = self.seen.done.take();
        let goal_status = match agent_outcome {
            AgentOutcome::CompletedWithTools | AgentOutcome::CompletedChatOnly => {
                done.as_ref().map(|(status, _)| *status)
            }
            AgentOutcome::FailedPreflight
            | AgentOutcome::FailedProtocolNoTools
            | AgentOutcome::FailedProtocolMalformed
            | AgentOutcome::FailedValidation
            | AgentOutcome::FailedBudgetExhausted
            | AgentOutcome::FailedTimeout
            | AgentOutcome::FailedContractViolation
            | AgentOutcome::Interrupted => None,
        };
        let terminal = Terminal { agent_outcome, reason, goal_status, message: message.clone(), spent: self.spent };
        self.note(Event::Terminated(Box::new(terminal)));
        self.waiting = Waiting::Nothing;
        let ended = Box::new(Ended {
            agent_outcome,
            reason,
            goal_status,
            value: done.map(|(_, value)| value).or_else(|| self.final_value()),
            message,
            spent: self.spent,
            generation_attempt: self.generation_attempt(),
        });
        self.ended = Some(ended.clone());
        Command::Finish(ended)
    }

    /// The value of the program, or the last text where text is the result.
    fn final_value(&mut self) -> Option<Arc<Value>> {
        match self.contract.completion_mode() {
            CompletionMode::OnRequiredToolOk if self.value.is_some() => self.value.take(),
            CompletionMode::OnRequiredToolOk | CompletionMode::OnNoCall | CompletionMode::OnDoneTool => {
                let text = &self.seen.content;
                (self.seen.reply == Reply::NoCall && self.gate_open).then(|| Arc::new(Value::from(&**text)))
            }
        }
    }

    fn finished_already(&mut self) -> Command {
        match &self.ended {
            Some(ended) => Command::Finish(ended.clone()),
            // `waiting` is `Nothing` only after `terminate`, which sets `ended`.
            None => unreachable!("a kernel that waits for nothing has ended"),
        }
    }

    // Faults of the runtime

    fn persistence_failed(&mut self, waiting: Waiting, message: Arc<str>) -> Command {
        self.note(Event::PersistenceFailed { message: message.clone() });
        let words: Arc<str> = format!("an event could not be stored before its effect: {message}").into();
        self.violate(waiting, Reason::PersistenceFailed, words)
    }

    fn illegal(&mut self, waiting: Waiting, input: &'static str) -> Command {
        self.note(Event::IllegalInput { input });
        let words = format!("internal error: the kernel was told `{input}` while it waited for {waiting:?}");
        self.violate(waiting, Reason::IllegalInput, words.into())
    }

    /// Ends the run as a violation along the legal way from wherever it stands (V25).
    fn violate(&mut self, waiting: Waiting, reason: Reason, words: Arc<str>) -> Command {
        match waiting {
            Waiting::Probe | Waiting::Nothing => self.terminate(AgentOutcome::FailedContractViolation, reason, words),
            Waiting::Inference => {
                self.pending.violation.get_or_insert((reason, words));
                self.commit()
            }
            Waiting::Tool => {
                self.pending.violation.get_or_insert((reason, words));
                self.execute_next()
            }
        }
    }

    // Verdicts of clock and cancel token

    fn verdict(&mut self, cancelled: bool, timeout: Option<TimeLimit>) {
        if !cancelled && timeout.is_none() {
            return;
        }
        self.note(Event::Verdict { cancelled, timeout });
        self.pending.cancelled |= cancelled;
        if let Some(limit) = timeout {
            let words = self.limit_words(limit);
            self.pending.timeout.get_or_insert((limit.reason(), words));
        }
    }

    // Small things

    /// 1 + format retries + nudges and repairs used; without the 1 for a kept program (C2).
    fn generation_attempt(&self) -> u32 {
        self.first_generation + self.spent.format_retries + self.spent.semantic_retries
    }

    /// min(step, what is left of the total), at least 1 ms so that an equal limit is not exceeded (V20, EC-T1.7).
    fn deadline(&self) -> Millis {
        let budget = self.contract.budget();
        let left = budget.total_timeout.since(self.now.since(self.started));
        budget.step_timeout.min(left).max(Millis(1))
    }

    fn go_to(&mut self, next: State) {
        debug_assert!(self.state.may_become(next), "illegal transition {:?} -> {next:?}", self.state);
        let origin = if self.state == State::Init { self.origin() } else { None };
        let from = self.state;
        self.state = next;
        self.note(Event::Transition { from, to: next, origin });
    }

    fn origin(&self) -> Option<Arc<Origin>> {
        let origin = Origin {
            policy_rule: self.contract.policy_rule().cloned(),
            snapshot_hash: self.environment.snapshot_hash,
            policy_hash: self.environment.policy_hash,
        };
        (origin != Origin::default()).then(|| Arc::new(origin))
    }

    fn note(&mut self, event: Event) {
        self.seq += 1;
        let at = self.now.since(self.started);
        let entry = Entry { seq: self.seq, step: self.step, state: self.state, event, at };
        self.digest.take(&entry);
        self.entries.push(entry);
    }

    fn hand_out(&mut self, command: Command) -> Step {
        let (entries, texts) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.texts));
        Step { entries, texts, digest: self.digest, command }
    }
}
