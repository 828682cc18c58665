//! Agents: what users hold. An agent has a role, a runtime context, a bounded history and the settings it works with;
//! everything else is a dynamic call (`call`), which [`call`](self::call) takes through the kernel.
//!
//! An agent never decides how a run goes on and never talks to a model itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cancel::CancelToken;
use crate::contract::delegation::Acceptance;
use crate::fork::PerProcess;
use crate::log::record::CallRecord;
use crate::outcome::{Durability, Outcome};
use crate::program::acceptance_program;
use crate::runtime::Runtime;
use crate::runtime::delegates::Maker;
use crate::runtime::options::{OptionError, Options};
use crate::runtime::settings::Settings;
use crate::runtime::wait::block_on;
use crate::runtime::watch::Watcher;
use crate::store::{Store, StoreError};
use crate::value::{Map, Value};

mod attempts;
mod call;
pub mod dispatch;
mod history;
mod host;
mod journal;
pub mod runtime_context;
mod watching;
mod written;

pub use host::ScriptHost;
pub use runtime_context::RuntimeContext;

use dispatch::{Dispatch, NameError, dispatch};
use history::{History, Remembered};

/// Delegates that an agent keeps for `tool(name)`.
const DELEGATES: usize = 64;

/// An agent. Cheap to clone; clones are the same agent. Calls of one agent are serialised, different agents run in
/// parallel.
#[derive(Clone)]
pub struct Agent(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    settings: Arc<Settings>,
    role: Arc<str>,
    name: Option<Arc<str>>,
    context: RuntimeContext,
    /// Levels of delegation that are left below this agent; -1 when it lies one level too deep.
    levels: i32,
    memory: Mutex<Memory>,
    /// Serialises calls. In a forked child nobody would ever open the parent's: there is another one.
    gate: PerProcess<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Memory {
    history: History,
    delegates: BTreeMap<Arc<str>, Agent>,
}

impl Drop for Inner {
    /// Frees delegates of delegates one by one: a long chain of them does not nest natively.
    fn drop(&mut self) {
        let mut delegates: Vec<Agent> = std::mem::take(&mut self.memory.get_mut().delegates).into_values().collect();
        while let Some(delegate) = delegates.pop() {
            if let Some(mut last) = Arc::into_inner(delegate.0) {
                delegates.extend(std::mem::take(&mut last.memory.get_mut().delegates).into_values());
            }
        }
    }
}

/// The agent of that name as its store has it: what it remembers, and its last calls.
fn reopen(settings: &Settings, role: &str, name: &str) -> Result<(RuntimeContext, History), UseError> {
    let Some(store) = &settings.store else {
        let message = "an agent with a name needs a store to live in: set `store` to a path".to_owned();
        return Err(OptionError::Invalid { name: "name", message }.into());
    };
    if settings.durability == Some(Durability::Memory) {
        let message = "an agent with a name cannot have the durability \"memory\"".to_owned();
        return Err(OptionError::Invalid { name: "durability", message }.into());
    }
    let state = store.open_agent(&settings.namespace, name, role)?;
    let history = History::stored(&**store, state.id)?;
    Ok((RuntimeContext::stored(store.clone(), state), history))
}

/// Acceptance expressions must compile in the agent's language: no call could succeed otherwise.
fn refuse_bad_acceptance(runtime: &Runtime, settings: &Settings) -> Result<(), OptionError> {
    let Some(executor) = runtime.executor(settings.language, settings.isolation) else { return Ok(()) };
    for item in settings.delegation.acceptance() {
        let Acceptance::Assert(expression) = item else { continue };
        let source = acceptance_program(settings.language, expression);
        if let Err(error) = executor.compile(&source, &settings.limits) {
            let before = source.lines().count() - expression.lines().count() - 1;
            let message = lines_of_expression(&error.message, before, expression.lines().count());
            let message = format!("`{expression}` is no expression in {}: {message}", settings.language);
            return Err(OptionError::Invalid { name: "acceptance", message });
        }
    }
    Ok(())
}

/// A compiler's message with its line numbers counted from the expression's first line.
fn lines_of_expression(message: &str, before: usize, lines: usize) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in message.split(' ') {
        let digits = word.trim_end_matches(|mark: char| !mark.is_ascii_digit());
        match digits.parse::<usize>() {
            Ok(line) if words.last().is_some_and(|last| last.trim_start_matches('(') == "line") => {
                let line = line.saturating_sub(before).clamp(1, lines.max(1));
                words.push(format!("{line}{}", &word[digits.len()..]));
            }
            Ok(_) | Err(_) => words.push(word.to_owned()),
        }
    }
    words.join(" ")
}

/// Why an agent cannot be made or used: wrong use by the host, refused before any model is asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UseError {
    /// An option.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A role.
    #[error("a role is 1 to 1024 bytes of text without control characters, got {0:?}")]
    Role(String),
    /// Arguments.
    #[error("a setter takes exactly one value, got {0}")]
    SetterArguments(usize),
    /// Values.
    #[error("{0}")]
    Value(String),
    /// The store of a named agent.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Agent {
    /// A new agent of the default runtime (AC-1); `Agent.for(role)` of the contract.
    pub fn for_role(role: &str, options: Options) -> Result<Self, UseError> {
        Runtime::default_runtime().map_err(UseError::Option)?.agent(role, options)
    }

    pub(crate) fn new(
        runtime: Runtime,
        settings: Arc<Settings>,
        role: &str,
        levels: i32,
        name: Option<&str>,
    ) -> Result<Self, UseError> {
        if role.trim().is_empty() || role.len() > 1024 || role.chars().any(char::is_control) {
            return Err(UseError::Role(role.chars().take(40).collect()));
        }
        refuse_bad_acceptance(&runtime, &settings)?;
        let (context, history) = match name {
            None => (RuntimeContext::default(), History::default()),
            Some(name) => reopen(&settings, role, name)?,
        };
        Ok(Self(Arc::new(Inner {
            runtime,
            settings,
            role: role.into(),
            name: name.map(Arc::from),
            context,
            levels,
            memory: Mutex::new(Memory { history, delegates: BTreeMap::new() }),
            gate: PerProcess::default(),
        })))
    }

    /// What the agent is for.
    pub fn role(&self) -> &Arc<str> {
        &self.0.role
    }

    /// Its name, under which its store keeps it.
    pub fn name(&self) -> Option<&Arc<str>> {
        self.0.name.as_ref()
    }

    /// Where it lives on, if it has a name; where its calls are kept.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.0.settings.store.as_ref()
    }

    /// What separates its programs and its name from those of other applications.
    pub fn namespace(&self) -> &Arc<str> {
        &self.0.settings.namespace
    }

    /// What it shares with others.
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// The live context map (AC-2).
    pub fn runtime_context(&self) -> &RuntimeContext {
        &self.0.context
    }

    /// Writes entries into the context and returns this agent (AC-2).
    pub fn remember(&self, entries: Map) -> Result<&Self, UseError> {
        self.0.context.extend(entries)?;
        Ok(self)
    }

    /// A new agent with this one's settings, except where `options` says otherwise (AC-3). One level deeper.
    pub fn delegate(&self, role: &str, options: Options) -> Result<Self, UseError> {
        let delegate = self.make(role, options, self.0.levels)?;
        self.keep_delegate(&delegate);
        Ok(delegate)
    }

    /// A delegate or a nested agent, `levels` being what is left at its maker.
    pub(crate) fn make(&self, role: &str, mut options: Options, levels: i32) -> Result<Self, UseError> {
        let name = options.name.take();
        let unchanged = options.is_empty() && self.0.settings.shared_with_delegates();
        let own = options.max_delegation_depth;
        let settings = if unchanged { self.0.settings.clone() } else { Arc::new(self.0.settings.with(options)?) };
        let below = (levels - 1).max(-1);
        let levels = own.map_or(below, |own| below.min(i32::try_from(own).unwrap_or(i32::MAX)));
        Self::new(self.0.runtime.clone(), settings, role, levels, name.as_deref())
    }

    /// Who this agent is to its delegates.
    pub(crate) fn maker(&self) -> Maker<'_> {
        let settings = &self.0.settings;
        Maker { namespace: &settings.namespace, role: &self.0.role, store: settings.store.as_ref() }
    }

    fn keep_delegate(&self, delegate: &Self) {
        let contract = delegate.0.settings.delegation.fields();
        self.0.runtime.delegates().note(self.maker(), &delegate.0.role, contract);
        let mut memory = self.0.memory.lock();
        if memory.delegates.len() < DELEGATES || memory.delegates.contains_key(&delegate.0.role) {
            memory.delegates.insert(delegate.0.role.clone(), delegate.clone());
        }
    }

    /// The delegate last made with this role: by this agent, or by another one of its own role, in whichever process on the
    /// store; then as it was agreed with that one. Makes a new one when there is none.
    pub fn tool(&self, name: &str) -> Result<Self, UseError> {
        let kept = self.0.memory.lock().delegates.get(name).cloned();
        kept.map_or_else(|| self.delegate(name, self.agreed(name)?), Ok)
    }

    /// The options that a delegate of that name was made with before.
    pub(crate) fn agreed(&self, name: &str) -> Result<Options, UseError> {
        let contract = self.0.runtime.delegates().find(self.maker(), name);
        Ok(contract.map_or_else(|| Ok(Options::default()), |contract| Options::from_map(&contract))?)
    }

    /// Whether the name is a setter or is backed by the context (AC-7). Never asks a model.
    pub fn responds_to(&self, name: &str) -> bool {
        match dispatch(name) {
            Ok(Dispatch::Setter(_)) => true,
            Ok(Dispatch::Dynamic(name)) => dispatch::RESERVED.contains(&name) || self.0.context.contains(name),
            Err(_) => false,
        }
    }

    /// Writes one context key: the setter path, which never asks a model (AC-4).
    pub fn set(&self, key: &str, value: Value) -> Result<(), UseError> {
        if !dispatch::is_identifier(key) {
            return Err(NameError::Setter(key.to_owned()).into());
        }
        self.0.context.set(key, value)?;
        Ok(())
    }

    /// A dynamic call (AC-5), or a setter when the name ends in `=`. Runs on this thread and always returns within the
    /// call's timeout; a failure of the call is an error outcome, and only wrong use is an `Err`.
    pub fn call(&self, method: &str, args: Vec<Value>, kwargs: Map) -> Result<Outcome, UseError> {
        self.call_with(method, args, kwargs, &CancelToken::default())
    }

    /// [`Agent::call`] that ends early, as `interrupted`, when `cancel` is set.
    pub fn call_with(
        &self,
        method: &str,
        args: Vec<Value>,
        kwargs: Map,
        cancel: &CancelToken,
    ) -> Result<Outcome, UseError> {
        let outcome = block_on(self.call_async(method, args, kwargs, cancel.clone()), cancel);
        // Whoever reads the outcome has seen the program before.
        if let Some(verbose) = &self.0.settings.verbose {
            verbose.flush();
        }
        outcome
    }

    /// [`Agent::call`] as a future that may be polled on any executor; dropping it cancels the call.
    pub async fn call_async(
        &self,
        method: &str,
        args: Vec<Value>,
        kwargs: Map,
        cancel: CancelToken,
    ) -> Result<Outcome, UseError> {
        self.call_watched(method, args, kwargs, cancel, None).await
    }

    /// [`Agent::call_async`] with somebody who is told of its attempts and those of the calls in it.
    pub async fn call_watched(
        &self,
        method: &str,
        mut args: Vec<Value>,
        kwargs: Map,
        cancel: CancelToken,
        watcher: Option<Arc<dyn Watcher>>,
    ) -> Result<Outcome, UseError> {
        match dispatch(method)? {
            Dispatch::Setter(key) => {
                if args.len() != 1 || !kwargs.is_empty() {
                    return Err(UseError::SetterArguments(args.len() + kwargs.len()));
                }
                let value = args.remove(0);
                self.set(key, value.clone())?;
                Ok(Outcome::of_value(value))
            }
            Dispatch::Dynamic(method) => Ok(call::root(self, method, args, kwargs, cancel, watcher).await),
        }
    }

    /// The last ended calls of this process, oldest first.
    pub fn history(&self) -> Vec<Arc<CallRecord>> {
        self.remembered().iter().filter_map(|entry| entry.record().cloned()).collect()
    }

    fn remembered(&self) -> Vec<Arc<Remembered>> {
        self.0.memory.lock().history.entries()
    }

    /// Its earlier results, as programs see them.
    fn results(&self) -> Vec<Value> {
        self.remembered().iter().map(|entry| entry.value().clone()).collect()
    }

    fn record(&self, record: Arc<CallRecord>) {
        let oldest = self.0.memory.lock().history.push(record);
        // Freed outside the lock: a record may hold large values.
        drop(oldest);
    }

    /// Whether two handles are the same agent.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Agent {
    /// Local and cheap: role and context keys, never a value.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Agent").field("role", &self.0.role).field("context", &self.0.context.keys()).finish()
    }
}
