//! One dynamic call, from dispatch to its record: the walk of ARCHITECTURE.md.
//!
//! This is where an agent's settings become a contract, a kept or generated program becomes the run's decision, and an
//! ended run becomes an outcome. What happens in between is the kernel's to decide and the driver's to perform.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use super::attempts::{Attempts, Start, offered_tools};
use super::host::{CallHost, DryHost, ToolCall};
use super::journal::Journal;
use super::runtime_context::Turn;
use super::{Agent, dispatch};
use crate::accounting::{AccountingEntry, Cost};
use crate::cancel::CancelToken;
use crate::contract::delegation::FailurePolicy;
use crate::contract::factory::{DynamicCall, RunBounds};
use crate::contract::{ExecutionContract, Millis, Remaining, Tokens};
use crate::ids::{CallId, TraceId};
use crate::kernel::Environment;
use crate::log::record::{CallRecord, DebugFields, rfc3339};
use crate::outcome::{AgentOutcome, Durability, ErrorType, Metadata, Outcome, OutcomeError, Reason, ReuseReason};
use crate::program::influence::{self, Observed};
use crate::program::literals::literals;
use crate::program::lock;
use crate::program::registry::{Kept, Key, Surroundings, history_digest, perturbations};
use crate::program::{Arguments, Bounds, Executor, Limits, Program, ProgramFailure};
use crate::provider::wait;
use crate::runtime::driver;
use crate::runtime::options::{Options, Reuse};
use crate::runtime::watch::Watcher;
use crate::store::{Change, StoreError};
use crate::tools::Effect;
use crate::value::{Map, Value};

/// Instructions and time of one dry run: evidence must not cost more than the call it may save.
const DRY_INSTRUCTIONS: u64 = 100_000;
const DRY_CPU_TIME: Duration = Duration::from_millis(20);
/// How often a call that waits for another process looks at its cancel token.
const TURN_SLICE: Duration = Duration::from_millis(20);

/// What all calls of one flow share; no child escapes it.
pub(super) struct Trace {
    pub(super) id: TraceId,
    pub(super) cancel: CancelToken,
    /// Who is told of its attempts, beside the agents' own.
    pub(super) watcher: Option<Arc<dyn Watcher>>,
    calls_left: AtomicU32,
    /// Model tokens used so far, by all calls.
    tokens: AtomicU64,
    max_tokens: Option<u64>,
    /// Picodollars spent so far, by all calls.
    cost: AtomicU64,
    max_cost: Option<Cost>,
    /// A target that used tokens and has no price.
    unpriced: OnceLock<String>,
}

/// Where a call stands in its flow, and who is called.
pub(super) struct Frame<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) agent: &'a Agent,
    pub(super) trace: &'a Trace,
    /// The attempt whose program made this call.
    pub(super) outer: Option<&'a CallHost<'a>>,
    pub(super) call_id: CallId,
    /// Number of calls around this one.
    pub(super) depth: u32,
    /// Levels of delegation left below this call.
    pub(super) levels: i32,
    /// When the call must be over, children included.
    pub(super) deadline: Instant,
    /// What children must stay within; known once the contract is sealed.
    pub(super) contract: Arc<ExecutionContract>,
    /// What must be on the disk before something happens.
    pub(super) journal: Journal<'a>,
}

/// A call from the host: begins a flow.
pub(super) async fn root(
    agent: &Agent,
    method: &str,
    args: Vec<Value>,
    kwargs: Map,
    cancel: CancelToken,
    watcher: Option<Arc<dyn Watcher>>,
) -> Outcome {
    let settings = &agent.0.settings;
    let trace = Trace {
        id: TraceId::fresh(),
        cancel,
        watcher,
        calls_left: AtomicU32::new(settings.max_calls),
        tokens: AtomicU64::new(0),
        max_tokens: settings.max_tokens,
        cost: AtomicU64::new(0),
        max_cost: settings.max_cost,
        unpriced: OnceLock::new(),
    };
    let call = Call::new(agent, method, args.into(), Arc::new(kwargs), &trace, None);
    let turn = call.turn().await;
    call.perform(turn.is_some()).await
}

/// A call that a program makes: continues its flow. Boxed, for calls nest.
pub(super) fn nested<'a>(
    callee: &'a Agent,
    method: &'a str,
    args: Vec<Value>,
    kwargs: Map,
    outer: &'a CallHost<'a>,
) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>> {
    Box::pin(async move {
        let call = Call::new(callee, method, args.into(), Arc::new(kwargs), outer.frame.trace, Some(outer));
        // An agent that calls itself holds its own gate already.
        if outer.frame.agent.is(callee) {
            return call.perform(true).await;
        }
        let turn = call.turn().await;
        call.perform(turn.is_some()).await
    })
}

/// The future's output, or `None` once `left` has passed or the flow is cancelled. Costs nothing extra when the future
/// is ready at once.
pub(super) async fn within<F: Future>(
    future: F,
    what: &str,
    left: Duration,
    cancel: &CancelToken,
) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    if let Poll::Ready(output) = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
        return Some(output);
    }
    let mut over = std::pin::pin!(wait::never(what, left, cancel));
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => over.as_mut().poll(context).map(|_| None),
    })
    .await
}

impl Trace {
    /// Model tokens that all calls of this flow used so far.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Acquire)
    }

    /// Adds what one request cost.
    pub(super) fn charge_cost(&self, entry: &AccountingEntry, must_be_priced: bool) {
        let Some(cost) = entry.cost else {
            if must_be_priced {
                self.unpriced.get_or_init(|| entry.target.clone());
            }
            return;
        };
        let sum = |before: u64| Some(Cost(before).plus(cost).0);
        let _always_some = self.cost.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum);
    }

    /// Why no further request may be made, once the flow has cost as much as it may.
    pub(super) fn over_cost(&self) -> Option<String> {
        let (spent, limit) = (Cost(self.cost.load(Ordering::Acquire)), self.max_cost?);
        if let Some(target) = self.unpriced.get() {
            return Some(format!("{target} has no price, so `max_cost` cannot hold; add it to `prices`"));
        }
        (spent >= limit).then(|| format!("{spent} of {limit} of this flow are spent; raise `max_cost` or ask less"))
    }

    /// Why no further tokens may be used.
    pub(super) fn over_tokens(&self) -> Option<String> {
        let (used, limit) = (self.tokens(), self.max_tokens?);
        let words = || format!("{used} of {limit} model tokens of this flow are used; raise `max_tokens` or call less");
        (used >= limit).then(words)
    }

    /// Adds what one call used.
    pub(super) fn charge(&self, tokens: u64) {
        let sum = |before: u64| Some(before.saturating_add(tokens));
        let _always_some = self.tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum);
    }
}

/// One dynamic call under way.
pub(super) struct Call<'a> {
    pub(super) agent: &'a Agent,
    pub(super) method: Arc<str>,
    pub(super) args: Arc<[Value]>,
    pub(super) kwargs: Arc<Map>,
    pub(super) trace: &'a Trace,
    outer: Option<&'a CallHost<'a>>,
    pub(super) call_id: CallId,
    depth: u32,
    levels: i32,
    began: Instant,
    /// Its own timeout, within its caller's.
    pub(super) deadline: Instant,
    /// The timeout that the deadline comes from: its own, or that of a call around it.
    pub(super) allowed: Duration,
    pub(super) timestamp: SystemTime,
}

impl<'a> Call<'a> {
    fn new(
        agent: &'a Agent,
        method: &str,
        args: Arc<[Value]>,
        kwargs: Arc<Map>,
        trace: &'a Trace,
        outer: Option<&'a CallHost<'a>>,
    ) -> Self {
        let (depth, levels) = match outer {
            None => (0, agent.0.levels),
            Some(outer) => (outer.frame.depth + 1, agent.0.levels.min(outer.frame.levels - 1)),
        };
        let call_id = CallId::fresh();
        let (began, timestamp) = (Instant::now(), SystemTime::now());
        let own = began + agent.0.settings.call_timeout;
        let around = outer.filter(|outer| outer.frame.deadline < own);
        let deadline = around.map_or(own, |outer| outer.frame.deadline);
        let allowed = around.map_or(agent.0.settings.call_timeout, |outer| outer.frame.call.allowed);
        let method = method.into();
        Self { agent, method, args, kwargs, trace, outer, call_id, depth, levels, began, deadline, allowed, timestamp }
    }

    /// Time left for this call and everything in it.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// What a caller is told when the time of the call ran out.
    pub(super) fn timeout_words(&self) -> String {
        let allowed = self.allowed.as_millis();
        format!("the call took longer than {allowed} ms; raise `call_timeout_seconds` or ask for less")
    }

    /// Whether nobody waits for it any more, or its time has passed.
    pub(super) fn is_over(&self) -> bool {
        self.trace.cancel.is_cancelled() || self.left().is_zero()
    }

    /// Waits for the agent's turn; `None` when the call was over first.
    async fn turn(&self) -> Option<tokio::sync::MutexGuard<'a, ()>> {
        let gate = self.agent.0.gate.get();
        if let Ok(turn) = gate.try_lock() {
            return Some(turn);
        }
        within(gate.lock(), "another call of this agent", self.left(), &self.trace.cancel).await
    }

    pub(super) fn arguments(&self) -> Arguments<'_> {
        Arguments { args: &self.args, kwargs: &self.kwargs }
    }

    /// Waits for the turn of an agent with a name among all processes. A call within the agent's own call has it already.
    fn stored_turn(&self) -> Result<Option<Turn<'a>>, StoreError> {
        let context = self.agent.runtime_context();
        if context.agent_id().is_none() || self.outer.is_some_and(|outer| outer.within(self.agent)) {
            return Ok(None);
        }
        loop {
            let slice = self.deadline.min(Instant::now() + TURN_SLICE);
            match context.turn(slice) {
                Err(StoreError::TimedOut) if !self.is_over() => {}
                other => return other,
            }
        }
    }

    /// Runs the call to its outcome, and records it. Without its turn it ends as the clock or the cancel token says.
    async fn perform(&self, has_turn: bool) -> Outcome {
        let settings = &self.agent.0.settings;
        let contract = self.contract();
        let stored_turn = if has_turn { self.stored_turn() } else { Ok(None) };
        let named = self.agent.runtime_context().agent_id().is_some();
        let level = if named { Durability::Strict } else { Durability::Batch };
        // What a tool may leave behind is on record, whatever was asked for (KC-KN3).
        let lasting = || settings.tools.iter().any(|tool| tool.effect() != Effect::Pure);
        let level = match settings.durability.unwrap_or(level) {
            Durability::Memory if lasting() => Durability::Batch,
            level => level,
        };
        let frame = Frame {
            call: self,
            agent: self.agent,
            trace: self.trace,
            outer: self.outer,
            call_id: self.call_id,
            depth: self.depth,
            levels: self.levels,
            deadline: self.deadline,
            contract: contract.clone(),
            journal: Journal::new(settings.store.as_ref(), level, self.call_id, self.deadline),
        };
        let mut environment = settings.environment.clone();
        let mut reuse = None;
        let start = if !has_turn || self.is_over() {
            Start::Over
        } else if let Err(error) = &stored_turn {
            Start::Broken(error.to_string().into())
        } else if let Some(refusal) = self.refusal() {
            environment = Arc::new(Environment { refusal: Some(refusal.into()), ..(*environment).clone() });
            Start::Ask
        } else {
            let found = self.find_kept(&frame);
            reuse = Some(found.as_ref().err().copied().unwrap_or(ReuseReason::Reused));
            match found {
                Ok(kept) => Start::Kept(kept),
                Err(why) if settings.lock.is_some() => Start::Locked(self.not_locked(why)),
                Err(_) => Start::Ask,
            }
        };
        let mut attempts = Attempts::new(self, &frame, start, reuse);
        let ran = driver::drive(contract, environment, &mut attempts).await;
        let (mut outcome, mut metadata) = attempts.settle(&ran);
        if let (Err(_), FailurePolicy::Fallback { role }) = (&outcome.result, settings.delegation.failure_policy())
            && !self.is_over()
        {
            // The caller sees the call that answered, and what was paid before; the record stays this call's.
            let answered = self.fall_back(role, &frame).await;
            outcome.result = answered.result;
            if let Some(theirs) = answered.metadata {
                let asked = format!("the role {role} was asked after {} failed", self.agent.role());
                let note = theirs.note.as_ref().map_or_else(|| asked.clone(), |theirs| format!("{asked}; {theirs}"));
                outcome.metadata = Some(Arc::new(Metadata {
                    accounting: metadata.accounting.iter().chain(&*theirs.accounting).cloned().collect(),
                    note: Some(note.into()),
                    ..(*theirs).clone()
                }));
            }
        }
        let mut record = self.record(&frame, &outcome, &metadata, &mut attempts);
        if let Some(failed) = self.store(&frame, &record, &mut attempts) {
            (outcome, metadata) = failed;
            record = self.record(&frame, &outcome, &metadata, &mut attempts);
        }
        drop(stored_turn);
        self.show(record);
        outcome
    }

    /// Makes the ended call durable, and then its writes visible (P1, P8). What cannot be stored did not happen: then the
    /// writes are forgotten, and this is the outcome.
    fn store(
        &self,
        frame: &Frame<'_>,
        record: &Arc<CallRecord>,
        attempts: &mut Attempts<'_>,
    ) -> Option<(Outcome, Arc<Metadata>)> {
        let context = self.agent.runtime_context();
        let (changes, host) = attempts.take_changes();
        if frame.journal.store().is_some() {
            let mut unit = changes;
            let mut wrote = false;
            // The writes of a call within the agent's own call belong to the call around it.
            if let (Some(agent), Some(host)) =
                (context.agent_id(), host.as_ref().filter(|host| host.attempt.is_outermost()))
            {
                let writes = host.attempt.writes();
                wrote = !writes.is_empty();
                if wrote {
                    unit.push(Change::Context { agent, writes });
                }
            }
            unit.push(Change::Ended { record: record.clone(), agent: context.agent_id() });
            let writing = if wrote { context.writing() } else { None };
            let kept = unit.iter().find_map(|change| {
                if let Change::Kept { program, .. } = change { Some(program.clone()) } else { None }
            });
            if let Err(error) = frame.journal.write(unit) {
                if let Some(kept) = kept {
                    self.agent.runtime().registry().forget(&kept.key, kept.id());
                }
                let retriable =
                    matches!(error, StoreError::Full { .. } | StoreError::Busy { .. } | StoreError::TimedOut);
                let what = if error == StoreError::Unanswered {
                    "it is not known whether the call was stored"
                } else {
                    "the call is undone, for it could not be stored"
                };
                let mut outcome = record.outcome.clone();
                let metadata = Metadata {
                    agent_outcome: AgentOutcome::FailedContractViolation,
                    reason: Reason::PersistenceFailed,
                    durability: Durability::Memory,
                    ..(*record.metadata).clone()
                };
                outcome.result = Err(OutcomeError {
                    error_type: ErrorType::Other("store".to_owned()),
                    message: format!("{what}: {error}"),
                    retriable,
                });
                let metadata = Arc::new(metadata);
                outcome.metadata = Some(metadata.clone());
                return Some((outcome, metadata));
            }
            if let Some(writing) = &writing {
                writing.taken();
            }
            if let Some(host) = host {
                host.commit();
            }
        } else if let Some(host) = host {
            host.commit();
        }
        None
    }

    /// Why the flow's budgets do not allow this call, if they do not (AC-15).
    fn refusal(&self) -> Option<String> {
        let trace = self.trace;
        let settings = &self.agent.0.settings;
        if self.levels < 0 {
            return Some(format!(
                "delegation is nested too deeply: `max_delegation_depth` allows {} levels below the first agent",
                settings.max_delegation_depth
            ));
        }
        let took = trace.calls_left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        if took.is_err() {
            return Some("the calls of this flow are used up; raise `max_calls` or call less".to_owned());
        }
        trace.over_tokens().filter(|_| self.outer.is_some())
    }

    /// The immutable contract of this run. A root call's depends on the settings alone and is sealed once.
    fn contract(&self) -> Arc<ExecutionContract> {
        let settings = &self.agent.0.settings;
        let seal = |parent| {
            let bounds = RunBounds {
                step_timeout: millis(settings.call_timeout),
                total_timeout: millis(settings.call_timeout),
                max_tokens: settings.max_tokens.map(Tokens),
                parent,
            };
            // V9: more requests may be made, for servers fail; but not more replies may be wrong.
            let attempts = settings.generation_attempts().min(4);
            let (provider, language) = (&settings.provider, settings.language);
            let grammar = provider.grammar(&offered_tools(language), language);
            Arc::new(driver::factory(provider.profile(), grammar).dynamic_call(&DynamicCall {
                attempts,
                // Where no model may be asked, nothing can be repaired.
                nudges: if settings.lock.is_some() { 0 } else { settings.execution_repairs },
                bounds,
            }))
        };
        let Some(outer) = self.outer else {
            return settings.root_contract.lock().get_or_insert_with(|| seal(None)).clone();
        };
        let parent = &outer.frame.contract;
        // The wall clock stays out of the child's contract, so that equal flows have equal hashes; the deadline of the
        // call around it binds the child as a recorded verdict.
        let used = self.trace.tokens();
        let tokens = self.trace.max_tokens.map(|limit| Tokens(limit.saturating_sub(used).max(1)));
        seal(Some((parent.contract_hash(), Remaining { tokens, time: parent.budget().total_timeout })))
    }

    /// A kept program whose evidence covers this call, or why there is none.
    fn find_kept(&self, frame: &Frame<'_>) -> Result<Arc<Kept>, ReuseReason> {
        let settings = &self.agent.0.settings;
        if settings.reuse == Reuse::Off {
            return Err(ReuseReason::Off);
        }
        if !self.reusable() {
            return Err(ReuseReason::NotReusable);
        }
        let executor = self.agent.runtime().executor(settings.language, settings.isolation);
        let Some(executor) = executor else { return Err(ReuseReason::NoProgram) };
        let mut influences = |program: &Program, input: usize| self.influences(frame, executor, program, input, &[]);
        let registry = self.agent.runtime().registry();
        if let Some(store) = frame.journal.store() {
            registry.follow(store.revision());
        }
        let key = self.key();
        let context = |key: &str| CallHost::new(frame).attempt.get(key);
        let history = || history_digest(&self.agent.results());
        let state = Surroundings { context: &context, history: &history };
        let allowed = |kept: &Kept| settings.lock.as_ref().is_none_or(|lock| lock.allows(&key, kept.program.digest));
        let found = registry.find_allowed(&key, self.arguments(), state, &allowed, &mut influences);
        if found.is_ok() || !self.adopt_stored(frame, executor, &key) {
            return found;
        }
        registry.find_allowed(&key, self.arguments(), state, &allowed, &mut influences)
    }

    /// What is missing where only locked programs may run.
    fn not_locked(&self, why: ReuseReason) -> Arc<str> {
        let key = self.key();
        let why = why.words();
        let (role, method, shape, language) = (&key.role, &key.method, &key.shape, key.language);
        format!(
            "`{}` has no program for {role}.{method} with arguments of the shape {shape:?} in {language} that fits this \
             call ({why}), and no model is asked under reuse=\"locked\"; make the call with reuse=\"auto\" and write the \
             lock file again with `cadenza lock`",
            lock::FILE
        )
        .into()
    }

    /// Takes in the programs that the store has under that key; says whether there were new ones.
    fn adopt_stored(&self, frame: &Frame<'_>, executor: &dyn Executor, key: &Key) -> bool {
        let Some(store) = frame.journal.store() else { return false };
        let saved = match store.programs(Some(key)) {
            Ok(saved) => saved,
            Err(error) => {
                tracing::warn!(%error, "kept programs cannot be read; a model is asked instead");
                return false;
            }
        };
        let registry = self.agent.runtime().registry();
        let mut adopted = false;
        for saved in saved {
            if registry.knows(key, saved.id()) {
                continue;
            }
            match executor.compile(&saved.code, &self.agent.0.settings.limits) {
                Ok(program) => {
                    registry.adopt(&saved, program);
                    adopted = true;
                }
                Err(error) => tracing::warn!(error = %error.message, "a kept program does not compile any more"),
            }
        }
        adopted
    }

    pub(super) fn reusable(&self) -> bool {
        match self.agent.0.settings.reuse {
            Reuse::Auto | Reuse::Locked => !dispatch::is_conversational(&self.method),
            Reuse::Off => false,
        }
    }

    pub(super) fn key(&self) -> Key {
        let settings = &self.agent.0.settings;
        Key::new(
            settings.namespace.clone(),
            self.agent.role().clone(),
            self.method.clone(),
            settings.contract_fingerprint,
            settings.language,
            self.arguments(),
        )
    }

    /// A dry run: does changing input number `input` change what the program does? `answers` are those of host tools.
    pub(super) fn influences(
        &self,
        frame: &Frame<'_>,
        executor: &dyn Executor,
        program: &Program,
        input: usize,
        answers: &[ToolCall],
    ) -> bool {
        let Some(original) = self.args.iter().chain(self.kwargs.values()).nth(input) else { return false };
        let observe = |args: &[Value], kwargs: &Map, variant: usize| {
            self.observe(executor, program, Arguments { args, kwargs }, &DryHost::new(frame, answers, variant))
        };
        let Some(baseline) = observe(&self.args, &self.kwargs, 0) else { return false };
        let literals = literals(program.language, &program.code);
        perturbations(original).into_iter().enumerate().any(|(variant, other)| {
            let (mut args, mut kwargs) = (self.args.to_vec(), (*self.kwargs).clone());
            let slot = match args.get_mut(input) {
                Some(argument) => Some(argument),
                None => kwargs.values_mut().nth(input - self.args.len()),
            };
            let Some(slot) = slot else { return false };
            slot.clone_from(&other);
            let observed = observe(&args, &kwargs, variant);
            observed.is_some_and(|observed| influence::matters(original, &other, &baseline, &observed, &literals))
        })
    }

    /// Everything a dry run shows. `None` when a limit ended it, which shows how long the program takes and not what it
    /// does.
    fn observe(
        &self,
        executor: &dyn Executor,
        program: &Program,
        arguments: Arguments<'_>,
        host: &DryHost<'_>,
    ) -> Option<Observed> {
        let limits = Limits {
            max_instructions: DRY_INSTRUCTIONS,
            cpu_time: DRY_CPU_TIME,
            ..(*self.agent.0.settings.limits).clone()
        };
        let bounds = Bounds { limits: &limits, deadline: Some(self.deadline), cancel: &self.trace.cancel };
        let execution = executor.execute(program, arguments, host, &bounds);
        match &execution.result {
            Ok(_) | Err(ProgramFailure::Raised { .. } | ProgramFailure::Refused { .. }) => {
                Some(Observed { result: execution.result, writes: host.writes(), tools: host.tools() })
            }
            Err(
                ProgramFailure::Fuel { .. }
                | ProgramFailure::CpuTime { .. }
                | ProgramFailure::Deadline
                | ProgramFailure::Memory { .. }
                | ProgramFailure::CallDepth
                | ProgramFailure::HostCalls { .. }
                | ProgramFailure::Interrupted
                | ProgramFailure::Internal { .. },
            ) => None,
        }
    }

    /// The same call, once, on a delegate with the fallback role.
    async fn fall_back(&self, role: &str, frame: &Frame<'_>) -> Outcome {
        let host = CallHost::new(frame);
        match self.agent.make(role, Options::default(), self.levels) {
            Ok(delegate) => nested(&delegate, &self.method, self.args.to_vec(), (*self.kwargs).clone(), &host).await,
            Err(error) => Outcome::of_error(ErrorType::ContractViolation, error.to_string(), false),
        }
    }

    /// What is known of the call before its end, by the names of the log line.
    pub(super) fn begun(&self) -> Map {
        let settings = &self.agent.0.settings;
        Map::from([
            ("timestamp".to_owned(), rfc3339(self.timestamp).into()),
            ("runtime".to_owned(), self.agent.runtime().name().into()),
            ("role".to_owned(), (&**self.agent.role()).into()),
            ("namespace".to_owned(), (&*settings.namespace).into()),
            ("agent".to_owned(), self.agent.0.name.as_deref().into()),
            ("model".to_owned(), (&*settings.model).into()),
            ("method".to_owned(), (&*self.method).into()),
            ("args".to_owned(), Value::List(self.args.to_vec())),
            ("kwargs".to_owned(), Value::Map((*self.kwargs).clone())),
            ("trace_id".to_owned(), self.trace.id.to_string().into()),
            ("call_id".to_owned(), self.call_id.to_string().into()),
            ("parent_call_id".to_owned(), self.outer.map(|outer| outer.frame.call_id.to_string()).into()),
            ("depth".to_owned(), self.depth.into()),
            ("language".to_owned(), settings.language.as_str().into()),
        ])
    }

    /// Everything about the ended call.
    fn record(
        &self,
        frame: &Frame<'_>,
        outcome: &Outcome,
        metadata: &Arc<Metadata>,
        attempts: &mut Attempts<'_>,
    ) -> Arc<CallRecord> {
        let settings = &self.agent.0.settings;
        let debug = settings.debug.then(|| {
            let (system_prompt, user_prompt) = attempts.prompts();
            // The attempt that is about to be committed counts: the line shows what the call left behind.
            let context = attempts.committing_context().unwrap_or_else(|| CallHost::new(frame).attempt.snapshot());
            Box::new(DebugFields { system_prompt, user_prompt, context })
        });
        Arc::new(CallRecord {
            timestamp: self.timestamp,
            runtime: self.agent.runtime().name(),
            model: settings.model.clone(),
            args: self.args.clone(),
            kwargs: self.kwargs.clone(),
            outcome: outcome.clone(),
            metadata: metadata.clone(),
            duration: self.began.elapsed(),
            role: self.agent.role().clone(),
            namespace: settings.namespace.clone(),
            agent: self.agent.0.name.clone(),
            method: self.method.clone(),
            contract_source: settings.delegation.source(),
            parent_call_id: self.outer.map(|outer| outer.frame.call_id),
            depth: self.depth,
            tokens_in: attempts.tokens_in,
            tokens_out: attempts.tokens_out,
            prompt_bytes: attempts.prompt_bytes(),
            attempt_failures: attempts.failures.clone(),
            debug,
            contract: frame.contract.clone(),
            environment: settings.environment.clone(),
            tapes: attempts.tapes.clone().into(),
        })
    }

    /// Shows the ended call to the log, the agent's history and the runtime.
    fn show(&self, record: Arc<CallRecord>) {
        let settings = &self.agent.0.settings;
        if let Some(log) = settings.log.as_ref().filter(|_| settings.logging) {
            log.write(&record);
        }
        self.agent.record(record.clone());
        self.agent.runtime().record(record);
    }
}

fn millis(duration: Duration) -> Millis {
    Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1))
}
