//! The runtime: what agents share (settings, programs, executors, ended calls) and the one loop that performs what the
//! kernel asks for.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::agent::{Agent, UseError};
use crate::ids::{CallId, Digest};
use crate::log::record::CallRecord;
use crate::outcome::Durability;
use crate::program::lock::{Lock, LockError};
use crate::program::registry::{Listed, ProgramState, Registry, Saved};
use crate::program::{Executor, Isolation, Language};
use crate::provider::ModelSpec;
use crate::store::folder::{self, FolderError};
use crate::store::{CallQuery, Change, Store, StoreError};
use crate::value::{Map, Value};

pub mod config;
pub(crate) mod driver;
pub mod options;
pub mod replay;
pub mod settings;
mod spawn;
pub mod trial;
pub mod wait;

pub use spawn::spawn;

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
    calls: Mutex<VecDeque<Arc<CallRecord>>>,
}

/// Builds a runtime.
#[derive(Debug, Default)]
pub struct RuntimeBuilder {
    name: Option<&'static str>,
    options: Options,
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

    /// Resolves the options. Without a model the default order of product.md section 6 decides.
    pub fn build(self) -> Result<Runtime, OptionError> {
        let mut options = self.options;
        if options.name.is_some() {
            let message = "belongs to one agent; give it to `Agent.for_role`".to_owned();
            return Err(OptionError::Invalid { name: "name", message });
        }
        let model = options.model.take().unwrap_or_default();
        if options.store.is_none() {
            options.store = Some(default_store(&model)?);
        }
        let settings = Settings::new(settings::resolve_model(&model, &options)?.provider);
        (options.base_url, options.api_key, options.api_key_file, options.output) = (None, None, None, None);
        Ok(Runtime(Arc::new(Inner {
            name: self.name.unwrap_or("cadenza-rust"),
            settings: Arc::new(settings.with(options)?),
            executors: Executors::default(),
            registry: Registry::default(),
            calls: Mutex::default(),
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
        ModelSpec::Default | ModelSpec::Name(_) | ModelSpec::Targets(_) => config::store_of_environment(),
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

    /// Kept programs, all or of one role; those of the store too.
    pub fn programs(&self, role: Option<&str>) -> Vec<Listed> {
        self.adopt_programs(role);
        self.0.registry.list(role)
    }

    /// Takes in the programs of the store. One that does not compile any more, or cannot be read, is left out.
    fn adopt_programs(&self, role: Option<&str>) {
        let Some(store) = self.store() else { return };
        let settings = &self.0.settings;
        let saved = store.programs(None).unwrap_or_else(|error| {
            tracing::warn!(%error, "the programs of the store cannot be read");
            Vec::new()
        });
        for saved in saved.iter().filter(|saved| role.is_none_or(|role| *saved.key.role == *role)) {
            let Some(executor) = self.executor(saved.key.language, settings.isolation) else { continue };
            if !self.0.registry.knows(&saved.key, saved.id())
                && let Ok(program) = executor.compile(&saved.code, &settings.limits)
            {
                self.0.registry.adopt(saved, program);
            }
        }
    }

    /// Writes every kept program into a folder of source files; see [`folder`].
    pub fn export(&self, folder: &Path) -> Result<usize, FolderError> {
        let saved: Vec<_> = self.programs(None).iter().map(|listed| listed.kept.saved(&listed.key)).collect();
        folder::export(&saved, folder)
    }

    /// Takes in a folder of source files. An edited one becomes a pinned program, one version later; one that does not
    /// compile is refused, and then nothing is taken in.
    pub fn import(&self, folder: &Path) -> Result<usize, FolderError> {
        let settings = &self.0.settings;
        let mut programs = Vec::new();
        for saved in folder::import(folder)? {
            let refused = |message: String| FolderError {
                path: folder.to_owned(),
                message: format!("{}.{} in {}: {message}", saved.key.role, saved.key.method, saved.key.language),
            };
            let executor = self.executor(saved.key.language, settings.isolation);
            let executor = executor.ok_or_else(|| refused("this build does not run that language".to_owned()))?;
            let program = executor.compile(&saved.code, &settings.limits).map_err(|error| refused(error.message))?;
            programs.push((saved, program));
        }
        if let Some(store) = self.store() {
            let kept = |(saved, _): &(Saved, _)| Change::Kept { program: Arc::new(saved.clone()), run: None };
            let written = store.write(programs.iter().map(kept).collect(), Durability::Strict, None);
            written.map_err(|error| FolderError { path: folder.to_owned(), message: error.to_string() })?;
        }
        let count = programs.len();
        for (saved, program) in programs {
            self.0.registry.adopt(&saved, program);
        }
        Ok(count)
    }

    /// Pins a program, puts it aside, or leaves it to its evidence again. `false` when there is no such program.
    pub fn set_program_state(&self, id: Digest, state: ProgramState) -> Result<bool, StoreError> {
        let Some(listed) = self.programs(None).into_iter().find(|listed| listed.kept.id == id) else {
            return Ok(false);
        };
        if let Some(store) = self.store() {
            store.write(vec![Change::State { program: id, state }], Durability::Strict, None)?;
        }
        let mut saved = listed.kept.saved(&listed.key);
        (saved.state, saved.failures_in_a_row, saved.note) = (state, 0, None);
        self.0.registry.adopt(&saved, listed.kept.program.clone());
        Ok(true)
    }

    /// Writes the lock file of every program that may run now.
    pub fn lock(&self, path: &Path) -> Result<usize, LockError> {
        let programs = self.programs(None);
        let active = programs.iter().filter(|listed| listed.kept.is_offered());
        Lock::write(path, active.map(|listed| (&listed.key, listed.kept.program.digest)))
    }

    /// The newest kept program of a method.
    pub fn program(&self, role: &str, method: &str) -> Option<Listed> {
        self.programs(Some(role))
            .into_iter()
            .filter(|listed| *listed.key.method == *method)
            .max_by_key(|listed| listed.kept.version)
    }

    /// Where things outlive the process; `None` when everything is in memory.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.0.settings.store.as_ref()
    }

    /// Ended calls as data, oldest first, at most `limit`: from the store if there is one, else the last ones of this
    /// runtime. Keys are those of a log line.
    pub fn call_maps(&self, limit: usize) -> Result<Vec<Map>, StoreError> {
        let Some(store) = self.store() else {
            let calls = self.calls();
            return Ok(calls[calls.len().saturating_sub(limit)..].iter().map(|record| record.to_map()).collect());
        };
        let calls = store.calls(&CallQuery { limit, ..CallQuery::default() })?;
        Ok(calls.into_iter().rev().map(|call| call.record).collect())
    }

    /// One ended call as data, with its tool calls as `effects` when it comes from the store.
    pub fn call_map(&self, id: CallId) -> Result<Option<Map>, StoreError> {
        let Some(store) = self.store() else { return Ok(self.call(id).map(|record| record.to_map())) };
        Ok(store.call(id)?.map(|mut call| {
            let effects = call.effects.into_iter().map(Value::Map).collect();
            call.record.insert("effects".into(), Value::List(effects));
            call.record
        }))
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
    }

    /// Log lines that were lost since the start.
    pub fn dropped_log_lines(&self) -> u64 {
        self.0.settings.log.as_ref().map_or(0, |log| log.dropped())
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
