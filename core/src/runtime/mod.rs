//! The runtime: what agents share (settings, programs, executors, ended calls) and the one loop that performs what the
//! kernel asks for.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::accounting::{AccountingEntry, Total, Totals};
use crate::agent::{Agent, UseError};
use crate::ids::CallId;
use crate::log::record::CallRecord;
use crate::program::registry::Registry;
use crate::program::{Executor, Isolation, Language};
use crate::provider::{ModelSpec, Waits, cassette, wait_really};
use crate::store::Store;
use crate::value::Map;

pub mod calls;
pub mod config;
pub(crate) mod delegates;
pub(crate) mod driver;
mod eject;
pub mod options;
pub mod repertoire;
pub mod replay;
pub mod settings;
mod spawn;
pub mod target_options;
pub mod trial;
pub mod wait;
pub mod watch;

pub use spawn::spawn;

use delegates::Delegates;
use options::{OptionError, Options, StoreOption};
use settings::Settings;

/// Ended calls that a runtime remembers for `calls`.
const CALLS: usize = 1_000;

/// What agents share. Cheap to clone; clones are the same runtime.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    name: &'static str,
    settings: Arc<Settings>,
    executors: Executors,
    registry: Registry,
    delegates: Delegates,
    calls: Mutex<VecDeque<Arc<CallRecord>>>,
    /// What all requests to models used.
    totals: Mutex<Totals>,
    waits: Arc<dyn Waits>,
}

/// Builds a runtime.
#[derive(Debug, Default)]
pub struct RuntimeBuilder {
    name: Option<&'static str>,
    options: Options,
    waits: Option<Arc<dyn Waits>>,
}

impl RuntimeBuilder {
    /// The host's runtime name in log lines; `cadenza-rust` by default.
    pub fn name(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    /// Options of every agent of this runtime, unless it has its own.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// How calls wait between two requests to a model; tests bring their own time.
    pub fn waits(mut self, waits: Arc<dyn Waits>) -> Self {
        self.waits = Some(waits);
        self
    }

    /// Resolves the options. Without a model the default order of product.md section 6 decides.
    pub fn build(self) -> Result<Runtime, OptionError> {
        let mut options = self.options;
        if options.name.is_some() {
            let message = "belongs to one agent; give it to `Agent.for_role`".to_owned();
            return Err(OptionError::Invalid { name: "name", message });
        }
        if options.store.is_none() {
            let model = options.model.as_ref().unwrap_or(&ModelSpec::Default);
            // What is recorded, or played, is whole only when no program of an earlier day answers in the model's place.
            let whole = options.record.is_some() || cassette::is_named_by(model);
            options.store = Some(if whole { StoreOption::Memory } else { default_store(model)? });
        }
        let settings = Settings::of_model(&mut options)?;
        Ok(Runtime(Arc::new(Inner {
            name: self.name.unwrap_or("cadenza-rust"),
            settings: Arc::new(settings.with(options)?),
            executors: Executors::default(),
            registry: Registry::default(),
            delegates: Delegates::default(),
            calls: Mutex::default(),
            totals: Mutex::default(),
            waits: self.waits.unwrap_or_else(wait_really),
        })))
    }
}

/// Where a runtime without `store` keeps things. A model that a host made means nothing to the next process, which could
/// not tell its programs from another's: without a store of its own it leaves none behind.
fn default_store(model: &ModelSpec) -> Result<StoreOption, OptionError> {
    match model {
        ModelSpec::Provider(_) => Ok(StoreOption::Memory),
        ModelSpec::Targets(targets) if targets.iter().any(|target| matches!(target, ModelSpec::Provider(_))) => {
            Ok(StoreOption::Memory)
        }
        ModelSpec::Default | ModelSpec::Name(_) | ModelSpec::Target { .. } | ModelSpec::Targets(_) => {
            config::store_of_environment()
        }
    }
}

impl Runtime {
    /// A builder with the defaults.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// The process-wide runtime of agents that name none, made from the configuration file and the environment.
    pub fn default_runtime() -> Result<Self, OptionError> {
        static DEFAULT: OnceLock<Runtime> = OnceLock::new();
        if let Some(runtime) = DEFAULT.get() {
            return Ok(runtime.clone());
        }
        let runtime = Self::builder().options(config::Config::load()?.options()?).build()?;
        Ok(DEFAULT.get_or_init(|| runtime).clone())
    }

    /// A new agent with this runtime's settings and `options` over them (AC-1).
    pub fn agent(&self, role: &str, mut options: Options) -> Result<Agent, UseError> {
        let name = options.name.take();
        let settings = if options.is_empty() {
            self.0.settings.clone()
        } else {
            options.contract.get_or_insert_with(|| self.0.settings.delegation.clone());
            Arc::new(self.0.settings.with(options)?)
        };
        let levels = i32::try_from(settings.max_delegation_depth).unwrap_or(i32::MAX);
        Agent::new(self.clone(), settings, role, levels, name.as_deref())
    }

    /// The host's runtime name.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// The model that answers by default, as logged.
    pub fn model(&self) -> &Arc<str> {
        &self.0.settings.model
    }

    /// The program language by default.
    pub fn language(&self) -> Language {
        self.0.settings.language
    }

    /// What is in force where an agent sets nothing itself: option names and values. Options without a data form and
    /// those of one delegation are left out.
    pub fn settings(&self) -> Map {
        self.0.settings.to_map()
    }

    /// Ended calls, oldest first; the last 1,000.
    pub fn calls(&self) -> Vec<Arc<CallRecord>> {
        self.0.calls.lock().iter().cloned().collect()
    }

    /// The ended call with that id, if it is among the last 1,000.
    pub fn call(&self, id: CallId) -> Option<Arc<CallRecord>> {
        self.0.calls.lock().iter().rev().find(|record| record.call_id() == id).cloned()
    }

    /// Where things outlive the process; `None` when everything is in memory.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.0.settings.store.as_ref()
    }

    /// Waits, within a bound, until the log and the store are out.
    pub fn flush(&self) {
        if let Some(store) = self.store()
            && let Err(error) = store.sync()
        {
            tracing::warn!(%error, "the store could not be flushed");
        }
        if let Some(log) = &self.0.settings.log {
            log.flush();
        }
        if let Some(verbose) = &self.0.settings.verbose {
            verbose.flush();
        }
    }

    /// Log lines that were lost since the start.
    pub fn dropped_log_lines(&self) -> u64 {
        self.0.settings.log.as_ref().map_or(0, |log| log.dropped())
    }

    /// What ended calls asked of models since the runtime was made, by target (SC-4.01).
    pub fn usage(&self) -> Vec<(String, Total)> {
        self.0.totals.lock().by_target().into_iter().map(|(target, total)| (target.to_owned(), total)).collect()
    }

    /// Counts what an ended call asked of models.
    pub(crate) fn count(&self, entries: &[AccountingEntry]) {
        if !entries.is_empty() {
            let mut totals = self.0.totals.lock();
            entries.iter().for_each(|entry| totals.add(entry));
        }
    }

    pub(crate) fn waits(&self) -> &dyn Waits {
        &*self.0.waits
    }

    pub(crate) fn delegates(&self) -> &Delegates {
        &self.0.delegates
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub(crate) fn executor(&self, language: Language, isolation: Isolation) -> Option<&dyn Executor> {
        self.0.executors.get(language, isolation)
    }

    pub(crate) fn record(&self, record: Arc<CallRecord>) {
        let mut calls = self.0.calls.lock();
        let oldest = if calls.len() == CALLS { calls.pop_front() } else { None };
        calls.push_back(record);
        drop(calls);
        // Freed outside the lock: a record may hold large values.
        drop(oldest);
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Runtime")
            .field("name", &self.0.name)
            .field("model", &self.0.settings.model)
            .field("language", &self.0.settings.language)
            .finish_non_exhaustive()
    }
}

/// The executors of one runtime, made when first used.
#[derive(Default)]
struct Executors {
    #[cfg(feature = "lua")]
    lua: [OnceLock<crate::program::lua::LuaExecutor>; 2],
    #[cfg(feature = "rhai")]
    rhai: OnceLock<crate::program::rhai::RhaiExecutor>,
}

impl Executors {
    /// `None` when the language was left out of this build. Rhai makes every call a world of its own either way.
    #[cfg_attr(not(feature = "lua"), expect(unused_variables, reason = "only Lua shares VMs"))]
    fn get(&self, language: Language, isolation: Isolation) -> Option<&dyn Executor> {
        match language {
            #[cfg(feature = "lua")]
            Language::Lua => {
                let executor = self.lua[isolation as usize]
                    .get_or_init(|| crate::program::lua::LuaExecutor::with_isolation(isolation));
                Some(executor as &dyn Executor)
            }
            #[cfg(not(feature = "lua"))]
            Language::Lua => None,
            #[cfg(feature = "rhai")]
            Language::Rhai => Some(self.rhai.get_or_init(crate::program::rhai::RhaiExecutor::new) as &dyn Executor),
            #[cfg(not(feature = "rhai"))]
            Language::Rhai => None,
        }
    }
}
