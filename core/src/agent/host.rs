//! What a program reaches: the host of one attempt, and the host of a user's own script.
//!
//! A program's host gives nothing beyond its own call: budgets and trace always continue, options that concern the host
//! machine (models, logs, tools) cannot be set, and the context is the attempt's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};

use super::call::{self, Frame};
use super::dispatch::{Dispatch, dispatch};
use super::runtime_context::{Attempt, Base};
use super::{Agent, UseError, history};
use crate::cancel::CancelToken;
use crate::outcome::Outcome;
use crate::program::registry::perturbations;
use crate::program::tape::{Answer, HostOp, Tape};
use crate::program::{AgentRef, Host, HostError, Reads};
use crate::runtime::Runtime;
use crate::runtime::options::Options;
use crate::runtime::wait::block_on_nested;
use crate::store::StoreError;
use crate::tools::{Effect, ToolBounds};
use crate::value::{Map, Value};

/// Options that a generated program may give to the agents it makes. Everything else belongs to the host machine.
const PROGRAM_OPTIONS: [&str; 8] = [
    "purpose",
    "deliverable",
    "acceptance",
    "failure_policy",
    "intent_signature",
    "delegation_contract",
    "language",
    "max_delegation_depth",
];
/// JSON bytes of a `deliverable` that a program declares. It is checked outside the limits of programs.
const MAX_SCHEMA_BYTES: usize = 4 << 10;
/// Agents that one program may make.
const MAX_AGENTS: usize = 1_000;

/// The host of one attempt.
pub(super) struct CallHost<'a> {
    pub(super) frame: &'a Frame<'a>,
    pub(super) attempt: Attempt<'a>,
    /// Agents the program made; `AgentRef(n)` is number n - 1.
    agents: Mutex<Vec<Agent>>,
    /// Delegates to keep for `tool(name)` when the attempt succeeds.
    delegates: Mutex<Vec<Agent>>,
    pub(super) reached: Reached,
    /// What the program was told beside its own context: for a replay.
    pub(super) tape: Mutex<Tape>,
}

/// How far a program reached: what decides which dry runs can show what it does.
#[derive(Default)]
pub(super) struct Reached {
    /// It looked at earlier results.
    pub(super) history: AtomicBool,
    /// It made, changed or called agents.
    pub(super) agents: AtomicBool,
    /// It called host tools, in this order.
    pub(super) tools: Mutex<Vec<ToolCall>>,
}

/// One call of a host tool and its answer.
#[derive(Clone, Debug)]
pub(super) struct ToolCall {
    name: String,
    arguments: Map,
    answer: Result<Value, String>,
}

impl<'a> CallHost<'a> {
    pub(super) fn new(frame: &'a Frame<'a>) -> Self {
        let base = match frame.outer.filter(|outer| outer.frame.agent.is(frame.agent)) {
            Some(outer) => Base::Outer(&outer.attempt),
            None => Base::Live(frame.agent.runtime_context()),
        };
        Self::above(frame, base)
    }

    fn above(frame: &'a Frame<'a>, base: Base<'a>) -> Self {
        Self {
            frame,
            attempt: Attempt::new(base),
            agents: Mutex::default(),
            delegates: Mutex::default(),
            reached: Reached::default(),
            tape: Mutex::default(),
        }
    }

    /// Makes the attempt's writes and delegates visible.
    pub(super) fn commit(&self) {
        self.attempt.commit();
        for delegate in self.delegates.lock().drain(..) {
            self.frame.agent.keep_delegate(&delegate);
        }
    }

    /// Whether this is a call of that agent, or lies within one.
    pub(super) fn within(&self, agent: &Agent) -> bool {
        self.frame.agent.is(agent) || self.frame.outer.is_some_and(|outer| outer.within(agent))
    }

    fn agent(&self, agent: AgentRef) -> Option<Agent> {
        match agent {
            AgentRef::THIS => Some(self.frame.agent.clone()),
            AgentRef(number) => self.agents.lock().get(number as usize - 1).cloned(),
        }
    }

    fn known(&self, agent: AgentRef) -> Result<Agent, HostError> {
        self.reached.agents.store(true, Ordering::Relaxed);
        self.agent(agent).ok_or_else(unknown_agent)
    }

    fn add(&self, agent: Agent) -> Result<AgentRef, HostError> {
        let mut agents = self.agents.lock();
        if agents.len() >= MAX_AGENTS {
            return Err(HostError::Refused(format!("a program may make at most {MAX_AGENTS} agents")));
        }
        agents.push(agent);
        Ok(AgentRef(agents.len() as u32))
    }

    fn make(&self, maker: &Agent, levels: i32, role: &str, options: &Map) -> Result<Agent, HostError> {
        self.reached.agents.store(true, Ordering::Relaxed);
        if let Some(name) = options.keys().find(|name| !PROGRAM_OPTIONS.contains(&name.as_str())) {
            let allowed = PROGRAM_OPTIONS.join(", ");
            return Err(HostError::Refused(format!("a program cannot set the option {name:?}; it may set: {allowed}")));
        }
        let contract = options.get("delegation_contract").and_then(Value::as_map);
        for schema in [Some(options), contract].into_iter().flatten().filter_map(|map| map.get("deliverable")) {
            if schema.to_json().len() > MAX_SCHEMA_BYTES || has_reference(schema) {
                return Err(HostError::Refused(format!(
                    "a program's `deliverable` is a schema of at most {MAX_SCHEMA_BYTES} bytes without references"
                )));
            }
        }
        let options = Options::from_map(options).map_err(|error| HostError::Refused(error.to_string()))?;
        maker.make(role, options, levels).map_err(refused)
    }

    /// What is left below an agent that the program names.
    fn levels_of(&self, agent: AgentRef, named: &Agent) -> i32 {
        if agent == AgentRef::THIS { self.frame.levels } else { named.0.levels }
    }

    fn note(&self, what: HostOp, asked: Vec<Value>, answer: Answer) {
        self.tape.lock().push(what, asked, answer);
    }

    fn note_value(&self, what: HostOp, asked: Vec<Value>, answer: impl Into<Value>) {
        self.note(what, asked, Answer::Value(answer.into()));
    }

    /// Notes what the host said, and says it.
    fn noted<T>(
        &self,
        what: HostOp,
        asked: Vec<Value>,
        said: Result<T, HostError>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> Result<T, HostError> {
        let answer = match &said {
            Ok(said) => answer(said),
            Err(HostError::Refused(message)) => Answer::Refused(message.clone()),
            Err(HostError::Stop) => Answer::Stop,
        };
        self.note(what, asked, answer);
        said
    }

    fn noted_agent(
        &self,
        what: HostOp,
        asked: Vec<Value>,
        said: Result<AgentRef, HostError>,
    ) -> Result<AgentRef, HostError> {
        self.noted(what, asked, said, |agent| Answer::Value((*agent).into()))
    }

    /// What the execution was told and what it wrote, for a replay.
    pub(super) fn take_tape(&self, reads: &Reads) -> Tape {
        let mut tape = std::mem::take(&mut *self.tape.lock());
        if self.attempt.base_changed() && (reads.all_context || !reads.context.is_empty()) {
            tape.give_up();
        }
        tape.finish(reads, self.attempt.seen(reads), self.attempt.writes());
        tape
    }

    fn write_key(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
        match self.own(agent) {
            Some(attempt) => attempt.set(key, Some(value)),
            None => self.known(agent)?.runtime_context().set(key, value).map_err(not_stored)?,
        }
        Ok(())
    }

    fn make_delegate(&self, agent: AgentRef, role: &str, options: &Map) -> Result<AgentRef, HostError> {
        let maker = self.known(agent)?;
        let delegate = self.make(&maker, self.levels_of(agent, &maker), role, options)?;
        self.add_delegate(agent, &maker, delegate)
    }

    fn add_delegate(&self, agent: AgentRef, maker: &Agent, delegate: Agent) -> Result<AgentRef, HostError> {
        if agent == AgentRef::THIS {
            self.delegates.lock().push(delegate.clone());
        } else {
            maker.keep_delegate(&delegate);
        }
        self.add(delegate)
    }

    fn find_tool(&self, agent: AgentRef, name: &str) -> Result<AgentRef, HostError> {
        let owner = self.known(agent)?;
        let pending = self
            .own(agent)
            .and_then(|_| self.delegates.lock().iter().rev().find(|delegate| **delegate.role() == *name).cloned());
        let kept = pending.or_else(|| owner.0.memory.lock().delegates.get(name).cloned());
        match kept {
            Some(delegate) => self.add(delegate),
            None => {
                // What was agreed is taken whole: the limits are for what a program declares itself.
                let agreed = owner.agreed(name).map_err(refused)?;
                let delegate = owner.make(name, agreed, self.levels_of(agent, &owner)).map_err(refused)?;
                self.add_delegate(agent, &owner, delegate)
            }
        }
    }

    fn call_agent(
        &self,
        agent: AgentRef,
        callee: &Agent,
        method: &str,
        mut args: Vec<Value>,
        kwargs: Map,
    ) -> Result<Outcome, HostError> {
        match dispatch(method).map_err(|error| HostError::Refused(error.to_string()))? {
            Dispatch::Setter(key) => {
                if args.len() != 1 || !kwargs.is_empty() {
                    return Err(refused(UseError::SetterArguments(args.len() + kwargs.len())));
                }
                let value = args.remove(0);
                self.write_key(agent, key, value.clone())?;
                Ok(Outcome::of_value(value))
            }
            Dispatch::Dynamic(method) => {
                let trace = self.frame.trace;
                let outcome = block_on_nested(call::nested(callee, method, args, kwargs, self), &trace.cancel);
                if trace.cancel.is_cancelled() || Instant::now() >= self.frame.deadline {
                    return Err(HostError::Stop);
                }
                Ok(outcome)
            }
        }
    }

    fn call_tool(&self, name: &str, arguments: Map) -> Result<Value, HostError> {
        let tools = &self.frame.agent.0.settings.tools;
        let Some(tool) = tools.get(name) else {
            let known: Vec<_> = tools.iter().map(|tool| &**tool.name()).collect();
            let known = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
            return Err(HostError::Refused(format!("no tool {name:?}; tools of this agent: {known}")));
        };
        let (trace, journal) = (self.frame.trace, &self.frame.journal);
        // Before anything happens out there, it is written down that it will (P1, P5).
        let begun = match tool.effect() {
            Effect::Pure => Ok(()),
            Effect::Idempotent | Effect::Effectful => journal.begin(|| self.frame.call.begun(), &self.frame.contract),
        };
        let call_no = begun.and_then(|()| journal.intend(tool, &arguments)).map_err(|error| {
            HostError::Refused(format!("tool {name} was not called: its intent could not be stored: {error}"))
        })?;
        let bounds = ToolBounds { deadline: self.frame.deadline, cancel: &trace.cancel };
        let result = tool.call(arguments.clone(), &bounds);
        let stored = journal.effect(call_no, tool, &arguments, &result);
        self.reached.tools.lock().push(ToolCall { name: name.to_owned(), arguments, answer: result.clone() });
        if let Err(error) = stored {
            return Err(HostError::Refused(format!(
                "tool {name} was called, but its answer could not be stored: {error}"
            )));
        }
        if self.frame.trace.cancel.is_cancelled() {
            return Err(HostError::Stop);
        }
        result.map_err(|message| HostError::Refused(format!("tool {name}: {message}")))
    }

    /// The attempt to read and write when the agent is the program's own.
    fn own(&self, agent: AgentRef) -> Option<&Attempt<'a>> {
        (agent == AgentRef::THIS).then_some(&self.attempt)
    }
}

/// Whether a schema refers to another: a few references to references make a check that never ends.
fn has_reference(schema: &Value) -> bool {
    const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
    match schema {
        Value::Map(map) => map.iter().any(|(key, item)| REFERENCES.contains(&key.as_str()) || has_reference(item)),
        Value::List(list) => list.iter().any(has_reference),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => false,
    }
}

fn texts(names: &[String]) -> Value {
    Value::List(names.iter().map(|name| name.as_str().into()).collect())
}

fn unknown_agent() -> HostError {
    HostError::Refused("this agent belongs to another call".to_owned())
}

fn not_stored(error: StoreError) -> HostError {
    refused(error.into())
}

fn refused(error: UseError) -> HostError {
    HostError::Refused(error.to_string())
}

impl Host for CallHost<'_> {
    fn context_get(&self, agent: AgentRef, key: &str) -> Option<Value> {
        if let Some(attempt) = self.own(agent) {
            return attempt.get(key);
        }
        let found = self.agent(agent).and_then(|agent| agent.runtime_context().get(key));
        self.note_value(HostOp::Get, vec![agent.into(), key.into()], Value::List(found.iter().cloned().collect()));
        found
    }

    fn context_set(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
        if agent == AgentRef::THIS {
            return self.write_key(agent, key, value);
        }
        let said = self.write_key(agent, key, value.clone());
        self.noted(HostOp::Set, vec![agent.into(), key.into(), value], said, |()| Answer::Value(Value::Null))
    }

    fn context_remove(&self, agent: AgentRef, key: &str) -> Result<(), HostError> {
        if let Some(attempt) = self.own(agent) {
            attempt.set(key, None);
            return Ok(());
        }
        let removed = |agent: Agent| agent.runtime_context().remove(key).map(drop).map_err(not_stored);
        let said = self.known(agent).and_then(removed);
        self.noted(HostOp::Remove, vec![agent.into(), key.into()], said, |()| Answer::Value(Value::Null))
    }

    fn context_keys(&self, agent: AgentRef) -> Vec<String> {
        if let Some(attempt) = self.own(agent) {
            return attempt.keys();
        }
        let keys = self.agent(agent).map(|agent| agent.runtime_context().keys()).unwrap_or_default();
        self.note_value(HostOp::Keys, vec![agent.into()], texts(&keys));
        keys
    }

    fn role(&self, agent: AgentRef) -> Arc<str> {
        let role = self.agent(agent).map_or_else(|| "".into(), |agent| agent.role().clone());
        if agent != AgentRef::THIS {
            self.note_value(HostOp::Role, vec![agent.into()], &*role);
        }
        role
    }

    fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError> {
        for (key, value) in entries {
            self.context_set(agent, &key, value)?;
        }
        Ok(())
    }

    fn delegate(&self, agent: AgentRef, role: &str, options: Map) -> Result<AgentRef, HostError> {
        let said = self.make_delegate(agent, role, &options);
        self.noted_agent(HostOp::Delegate, vec![agent.into(), role.into(), Value::Map(options)], said)
    }

    fn for_role(&self, role: &str, options: Map) -> Result<AgentRef, HostError> {
        let made = self.make(self.frame.agent, self.frame.levels, role, &options).and_then(|agent| self.add(agent));
        self.noted_agent(HostOp::ForRole, vec![role.into(), Value::Map(options)], made)
    }

    fn agent_tool(&self, agent: AgentRef, name: &str) -> Result<AgentRef, HostError> {
        let said = self.find_tool(agent, name);
        self.noted_agent(HostOp::AgentTool, vec![agent.into(), name.into()], said)
    }

    fn responds_to(&self, agent: AgentRef, name: &str) -> bool {
        let known = match dispatch(name) {
            Ok(Dispatch::Setter(_)) => true,
            Ok(Dispatch::Dynamic(key)) => match self.own(agent) {
                Some(attempt) => attempt.get(key).is_some() || super::dispatch::RESERVED.contains(&key),
                None => self.agent(agent).is_some_and(|agent| agent.responds_to(key)),
            },
            Err(_) => false,
        };
        self.note_value(HostOp::RespondsTo, vec![agent.into(), name.into()], known);
        known
    }

    fn call(&self, agent: AgentRef, method: &str, args: Vec<Value>, kwargs: Map) -> Result<Outcome, HostError> {
        let callee = self.known(agent)?;
        let asked = vec![agent.into(), method.into(), Value::List(args.clone()), Value::Map(kwargs.clone())];
        // A call of the program's own agent may write what the program sees from then on.
        let before = self.frame.agent.is(&callee).then(|| self.attempt.writes());
        let said = self.call_agent(agent, &callee, method, args, kwargs);
        let said = self.noted(HostOp::Call, asked, said, |outcome| Answer::Outcome(outcome.clone()));
        if let Some(before) = before {
            let new = |(key, value): (String, Option<Value>)| {
                (before.get(&key) != Some(&value)).then(|| (key, Value::List(value.into_iter().collect())))
            };
            let wrote: Map = self.attempt.writes().into_iter().filter_map(new).collect();
            if !wrote.is_empty() {
                self.note_value(HostOp::Wrote, vec![Value::Map(wrote)], Value::Null);
            }
        }
        said
    }

    fn tool(&self, name: &str, arguments: Map) -> Result<Value, HostError> {
        let said = self.call_tool(name, arguments.clone());
        let asked = vec![name.into(), Value::Map(arguments)];
        self.noted(HostOp::Tool, asked, said, |value| Answer::Value(value.clone()))
    }

    fn tool_names(&self) -> Vec<String> {
        let names: Vec<_> = self.frame.agent.0.settings.tools.iter().map(|tool| tool.name().to_string()).collect();
        self.note_value(HostOp::ToolNames, Vec::new(), texts(&names));
        names
    }

    fn history(&self) -> Vec<Value> {
        self.reached.history.store(true, Ordering::Relaxed);
        let results = self.frame.agent.results();
        self.note_value(HostOp::History, Vec::new(), Value::List(results.clone()));
        results
    }

    fn content(&self, reference: &str) -> Result<Value, HostError> {
        self.reached.history.store(true, Ordering::Relaxed);
        let said = content(self.frame.agent, reference);
        self.noted(HostOp::Content, vec![reference.into()], said, |value| Answer::Value(value.clone()))
    }

    fn now(&self) -> i64 {
        let now = now();
        self.note_value(HostOp::Now, Vec::new(), now);
        now
    }

    fn random(&self) -> f64 {
        let random = fastrand::f64();
        self.note_value(HostOp::Random, Vec::new(), random);
        random
    }

    fn print(&self, _line: &str) {}
}

/// The host of a dry run: reads are real, writes stay here, and everything that would reach further is refused. Such a
/// program did not reach further before, so refusing it is itself a change of behaviour.
///
/// Tools are answered from what they answered before. Where a program asks otherwise than it did, so does the answer
/// differ, for a program that works with the answers shows it then.
pub(super) struct DryHost<'a> {
    host: CallHost<'a>,
    answers: &'a [ToolCall],
    asked: AtomicUsize,
    /// Which of the possible other answers is given.
    variant: usize,
}

impl<'a> DryHost<'a> {
    pub(super) fn new(frame: &'a Frame<'a>, answers: &'a [ToolCall], variant: usize) -> Self {
        Self { host: CallHost::new(frame), answers, asked: AtomicUsize::new(0), variant }
    }

    /// Sees what an attempt wrote so far.
    pub(super) fn over(host: &'a CallHost<'a>) -> Self {
        let above = CallHost::above(host.frame, Base::Outer(&host.attempt));
        Self { host: above, answers: &[], asked: AtomicUsize::new(0), variant: 0 }
    }

    /// Tools it called, with their arguments: told to the outside, and no part of its answer.
    pub(super) fn tools(&self) -> Vec<(String, Map)> {
        let calls = self.host.reached.tools.lock();
        calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect()
    }

    /// What the program wrote: an observable beside its value.
    pub(super) fn writes(&self) -> std::collections::BTreeMap<String, Option<Value>> {
        self.host.attempt.writes()
    }
}

fn dry() -> HostError {
    HostError::Refused("not in a dry run".to_owned())
}

impl Host for DryHost<'_> {
    fn context_get(&self, agent: AgentRef, key: &str) -> Option<Value> {
        self.host.context_get(agent, key)
    }

    fn context_set(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
        self.host.own(agent).ok_or_else(dry)?.set(key, Some(value));
        Ok(())
    }

    fn context_remove(&self, agent: AgentRef, key: &str) -> Result<(), HostError> {
        self.host.own(agent).ok_or_else(dry)?.set(key, None);
        Ok(())
    }

    fn context_keys(&self, agent: AgentRef) -> Vec<String> {
        self.host.context_keys(agent)
    }

    fn role(&self, agent: AgentRef) -> Arc<str> {
        self.host.role(agent)
    }

    fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError> {
        entries.into_iter().try_for_each(|(key, value)| self.context_set(agent, &key, value))
    }

    fn delegate(&self, _agent: AgentRef, _role: &str, _options: Map) -> Result<AgentRef, HostError> {
        Err(dry())
    }

    fn for_role(&self, _role: &str, _options: Map) -> Result<AgentRef, HostError> {
        Err(dry())
    }

    fn agent_tool(&self, _agent: AgentRef, _name: &str) -> Result<AgentRef, HostError> {
        Err(dry())
    }

    fn responds_to(&self, agent: AgentRef, name: &str) -> bool {
        self.host.responds_to(agent, name)
    }

    fn call(&self, _agent: AgentRef, _method: &str, _args: Vec<Value>, _kwargs: Map) -> Result<Outcome, HostError> {
        Err(dry())
    }

    fn tool(&self, name: &str, arguments: Map) -> Result<Value, HostError> {
        let before = self.answers.get(self.asked.fetch_add(1, Ordering::Relaxed)).filter(|before| before.name == name);
        let before = before.ok_or_else(dry)?;
        let answer = match &before.answer {
            Ok(answer) if before.arguments == arguments => Ok(answer.clone()),
            Ok(answer) => {
                let others = perturbations(answer);
                Ok(others.get(self.variant % others.len().max(1)).unwrap_or(answer).clone())
            }
            Err(message) => Err(message.clone()),
        };
        self.host.reached.tools.lock().push(ToolCall { name: name.to_owned(), arguments, answer: answer.clone() });
        answer.map_err(|message| HostError::Refused(format!("tool {name}: {message}")))
    }

    fn tool_names(&self) -> Vec<String> {
        self.host.tool_names()
    }

    fn history(&self) -> Vec<Value> {
        self.host.history()
    }

    fn content(&self, reference: &str) -> Result<Value, HostError> {
        self.host.content(reference)
    }

    fn now(&self) -> i64 {
        0
    }

    fn random(&self) -> f64 {
        0.5
    }

    fn print(&self, _line: &str) {}
}

/// The value behind a reference of `history`.
fn content(agent: &Agent, reference: &str) -> Result<Value, HostError> {
    history::content(&agent.remembered(), reference).ok_or_else(|| {
        HostError::Refused(format!(
            "no content {reference:?}: references come from `history` and live as long as its entries"
        ))
    })
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as i64)
}

/// The host of a user's own script: trusted, with every option, and with agents that live as long as the script, or until
/// [`ScriptHost::keep_only`] says that it has no use for them any more.
pub struct ScriptHost {
    runtime: Runtime,
    cancel: CancelToken,
    agents: RwLock<Adopted>,
}

/// The agents of a script by their references. A script has no agent of its own: the first is number 1.
#[derive(Default)]
struct Adopted {
    last: u32,
    known: BTreeMap<u32, Agent>,
}

impl ScriptHost {
    /// A host whose agents belong to `runtime`.
    pub fn new(runtime: Runtime, cancel: CancelToken) -> Self {
        Self { runtime, cancel, agents: RwLock::default() }
    }

    /// The agent behind a reference; for surfaces that hold both.
    pub fn agent(&self, agent: AgentRef) -> Option<Agent> {
        self.agents.read().known.get(&agent.0).cloned()
    }

    fn known(&self, agent: AgentRef) -> Result<Agent, HostError> {
        self.agent(agent).ok_or_else(unknown_agent)
    }

    /// The reference of an agent that a host made for the script: with tools, which have no data form.
    pub fn adopt(&self, agent: Agent) -> AgentRef {
        let mut agents = self.agents.write();
        agents.last += 1;
        let reference = agents.last;
        agents.known.insert(reference, agent);
        AgentRef(reference)
    }

    /// How many agents the script has references to, as far as this host knows.
    pub fn agents(&self) -> usize {
        self.agents.read().known.len()
    }

    /// Lets go of every agent but these: the script cannot reach the others any more.
    pub fn keep_only(&self, references: &BTreeSet<u32>) {
        let unreachable = |number: &u32, _: &mut Agent| !references.contains(number);
        let gone: Vec<Agent> = self.agents.write().known.extract_if(.., unreachable).map(|(_, agent)| agent).collect();
        // Freed outside the lock: tools of the script go with them.
        drop(gone);
    }

    /// The reference of an agent that may have one already.
    fn find_or_adopt(&self, agent: Agent) -> AgentRef {
        let known = self.agents.read().known.iter().find(|(_, other)| other.is(&agent)).map(|(number, _)| *number);
        known.map_or_else(|| self.adopt(agent), AgentRef)
    }
}

fn options(map: &Map) -> Result<Options, HostError> {
    Options::from_map(map).map_err(|error| HostError::Refused(error.to_string()))
}

impl Host for ScriptHost {
    fn context_get(&self, agent: AgentRef, key: &str) -> Option<Value> {
        self.agent(agent)?.runtime_context().get(key)
    }

    fn context_set(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
        self.known(agent)?.runtime_context().set(key, value).map_err(not_stored)
    }

    fn context_remove(&self, agent: AgentRef, key: &str) -> Result<(), HostError> {
        self.known(agent)?.runtime_context().remove(key).map(drop).map_err(not_stored)
    }

    fn context_keys(&self, agent: AgentRef) -> Vec<String> {
        self.agent(agent).map(|agent| agent.runtime_context().keys()).unwrap_or_default()
    }

    fn role(&self, agent: AgentRef) -> Arc<str> {
        self.agent(agent).map_or_else(|| "".into(), |agent| agent.role().clone())
    }

    fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError> {
        self.known(agent)?.remember(entries).map(drop).map_err(refused)
    }

    fn delegate(&self, agent: AgentRef, role: &str, map: Map) -> Result<AgentRef, HostError> {
        let delegate = self.known(agent)?.delegate(role, options(&map)?).map_err(refused)?;
        Ok(self.adopt(delegate))
    }

    fn for_role(&self, role: &str, map: Map) -> Result<AgentRef, HostError> {
        let agent = self.runtime.agent(role, options(&map)?).map_err(refused)?;
        Ok(self.adopt(agent))
    }

    fn agent_tool(&self, agent: AgentRef, name: &str) -> Result<AgentRef, HostError> {
        let delegate = self.known(agent)?.tool(name).map_err(refused)?;
        Ok(self.find_or_adopt(delegate))
    }

    fn responds_to(&self, agent: AgentRef, name: &str) -> bool {
        self.agent(agent).is_some_and(|agent| agent.responds_to(name))
    }

    fn call(&self, agent: AgentRef, method: &str, args: Vec<Value>, kwargs: Map) -> Result<Outcome, HostError> {
        let outcome = self.known(agent)?.call_with(method, args, kwargs, &self.cancel).map_err(refused)?;
        if self.cancel.is_cancelled() { Err(HostError::Stop) } else { Ok(outcome) }
    }

    fn tool(&self, name: &str, _arguments: Map) -> Result<Value, HostError> {
        Err(HostError::Refused(format!("no tool {name:?}: a script calls its own functions")))
    }

    fn tool_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn history(&self) -> Vec<Value> {
        Vec::new()
    }

    fn content(&self, reference: &str) -> Result<Value, HostError> {
        Err(HostError::Refused(format!("no content {reference:?}: a script has no history of its own")))
    }

    fn now(&self) -> i64 {
        now()
    }

    fn random(&self) -> f64 {
        fastrand::f64()
    }

    fn print(&self, line: &str) {
        println!("{line}");
    }
}
