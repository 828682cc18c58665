//! Settings: resolved options. Immutable and shared: a delegate without options of its own shares its parent's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::accounting::{Cost, Prices, Usage};
use crate::contract::ExecutionContract;
use crate::contract::delegation::DelegationContract;
use crate::ids::Digest;
use crate::kernel::Environment;
use crate::log::{self, BackgroundLog, LogSink};
use crate::outcome::Durability;
use crate::program::lock::{self, Lock};
use crate::program::{Isolation, Language, Limits};
use crate::prompt::ToolDocs;
use crate::provider::cassette::{Cassette, CassetteError};
use crate::provider::rotation::MAX_REQUESTS;
use crate::provider::target::TargetOptions;
use crate::provider::{self, ModelSettings, ModelSpec, Provider, Resolved};
use crate::runtime::driver;
use crate::runtime::options::{LogOption, OptionError, Options, Reuse, StoreOption, VerboseOption};
use crate::runtime::replay::recorded_flow;
use crate::runtime::watch::{Printer, Watcher};
use crate::store::Store;
use crate::tools::{Tool, ToolSet};
use crate::value::{Map, Value};
use crate::warning;

/// What an agent works with. Private to the runtime's own crate: users set [`Options`].
#[derive(Debug)]
pub struct Settings {
    pub(crate) provider: Arc<dyn Provider>,
    /// What the provider was resolved from.
    chosen: Arc<Chosen>,
    pub(crate) model: Arc<str>,
    pub(crate) prices: Arc<Prices>,
    pub(crate) language: Language,
    pub(crate) log: Option<Arc<dyn LogSink>>,
    pub(crate) logging: bool,
    pub(crate) debug: bool,
    /// Who sees programs as they are written.
    pub(crate) verbose: Option<Arc<dyn Watcher>>,
    /// As it was set; see [`Self::generation_attempts`].
    max_generation_attempts: Option<u32>,
    pub(crate) execution_repairs: u32,
    pub(crate) provider_timeout: Duration,
    pub(crate) limits: Arc<Limits>,
    pub(crate) isolation: Isolation,
    pub(crate) call_timeout: Duration,
    pub(crate) max_delegation_depth: u32,
    pub(crate) max_calls: u32,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) max_cost: Option<Cost>,
    pub(crate) delegation: Arc<DelegationContract>,
    pub(crate) tools: Arc<ToolSet>,
    pub(crate) tool_docs: Arc<ToolDocs>,
    pub(crate) reuse: Reuse,
    /// The lock file, with `reuse = "locked"`.
    pub(crate) lock: Option<Arc<Lock>>,
    pub(crate) namespace: Arc<str>,
    pub(crate) store: Option<Arc<dyn Store>>,
    /// The cassette that models are recorded to.
    pub(crate) record: Option<PathBuf>,
    /// What a call promises; `None` leaves it to whether the agent has a name.
    pub(crate) durability: Option<Durability>,
    /// Delegation contract and tools together: the contract part of the reuse key.
    pub(crate) contract_fingerprint: Digest,
    /// What every run finds around it.
    pub(crate) environment: Arc<Environment>,
    /// The contract of a root call, sealed once: it depends on nothing but these settings.
    pub(crate) root_contract: Mutex<Option<Arc<ExecutionContract>>>,
}

/// A model as it was asked for, and all that was said about how to reach and ask it.
#[derive(Clone, Debug, Default)]
struct Chosen {
    model: ModelSpec,
    target: TargetOptions,
    providers: BTreeMap<String, TargetOptions>,
}

/// A model as it was asked for, and what it was resolved to.
type ChosenProvider = (Chosen, Arc<dyn Provider>);

impl Settings {
    /// The defaults of product.md section 2 around one model.
    pub(crate) fn new(provider: Arc<dyn Provider>) -> Self {
        let delegation = Arc::new(DelegationContract::default());
        let tools = Arc::new(ToolSet::default());
        Self {
            model: provider.model().into(),
            environment: driver::environment(provider.profile(), provider.fingerprint()),
            chosen: Arc::new(Chosen { model: ModelSpec::Provider(provider.clone()), ..Chosen::default() }),
            prices: Arc::default(),
            provider,
            language: Language::Lua,
            log: None,
            logging: true,
            debug: false,
            verbose: None,
            max_generation_attempts: None,
            execution_repairs: 1,
            provider_timeout: Duration::from_secs(120),
            limits: Arc::new(Limits::default()),
            isolation: Isolation::Shared,
            call_timeout: Duration::from_secs(300),
            max_delegation_depth: 8,
            max_calls: 256,
            max_tokens: None,
            max_cost: None,
            contract_fingerprint: fingerprint(&delegation, &tools),
            tool_docs: Arc::new(tool_docs(&tools)),
            delegation,
            tools,
            reuse: Reuse::Auto,
            lock: None,
            namespace: "default".into(),
            store: None,
            record: None,
            durability: None,
            root_contract: Mutex::new(None),
        }
    }

    /// These settings with `options` laid over them. The delegation contract is not inherited: it belongs to one
    /// delegation, so without one in `options` the result has none.
    pub(crate) fn with(&self, mut options: Options) -> Result<Self, OptionError> {
        let mut limits = (*self.limits).clone();
        limits.cpu_time = options.program_timeout.unwrap_or(limits.cpu_time);
        limits.max_instructions = options.max_instructions.unwrap_or(limits.max_instructions);
        limits.max_memory_bytes = options.max_memory_bytes.unwrap_or(limits.max_memory_bytes);
        let record = options.record.take();
        let (chosen, provider) = match self.choose(&mut options)? {
            Some((chosen, provider)) => {
                (Arc::new(chosen), recorded(provider, record.as_ref().or(self.record.as_ref()))?)
            }
            None => (self.chosen.clone(), recorded(self.provider.clone(), record.as_ref())?),
        };
        let (tools, tool_docs) = match options.tools {
            None => (self.tools.clone(), self.tool_docs.clone()),
            Some(tools) => {
                if let Some(twice) = duplicate(&tools) {
                    let message = format!("{twice:?} is there twice; programs know tools by their names");
                    return Err(OptionError::Invalid { name: "tools", message });
                }
                let tools = ToolSet::new(tools);
                let docs = tool_docs(&tools);
                (Arc::new(tools), Arc::new(docs))
            }
        };
        let delegation = options.contract.unwrap_or_default();
        let prices = options.prices.unwrap_or_else(|| self.prices.clone());
        let max_cost = options.max_cost.unwrap_or(self.max_cost);
        if max_cost.is_some() && *prices == Prices::default() {
            let message = "goes together with `prices`: what a model's tokens cost".to_owned();
            return Err(OptionError::Invalid { name: "max_cost", message });
        }
        if max_cost.is_some() {
            warn_of_unpriced(&*provider, &prices);
        }
        Ok(Self {
            model: provider.model().into(),
            prices,
            environment: driver::environment(provider.profile(), provider.fingerprint()),
            chosen,
            max_generation_attempts: options.max_generation_attempts.or(self.max_generation_attempts),
            provider,
            language: options.language.unwrap_or(self.language),
            log: match options.log {
                None => self.log.clone(),
                Some(LogOption::Off) => None,
                Some(LogOption::DefaultPath) => Some(open_log(&log::default_path())?),
                Some(LogOption::Path(path)) => Some(open_log(&path)?),
                Some(LogOption::Sink(sink)) => Some(sink),
            },
            logging: options.logging.unwrap_or(self.logging),
            debug: options.debug.unwrap_or(self.debug),
            verbose: match options.verbose {
                None => self.verbose.clone(),
                Some(VerboseOption::Off) => None,
                Some(VerboseOption::Stderr) => Some(Printer::stderr()),
                Some(VerboseOption::Watcher(watcher)) => Some(watcher),
            },
            execution_repairs: options.execution_repairs.unwrap_or(self.execution_repairs),
            provider_timeout: options.provider_timeout.unwrap_or(self.provider_timeout),
            limits: if limits == *self.limits { self.limits.clone() } else { Arc::new(limits) },
            isolation: options.isolation.unwrap_or(self.isolation),
            call_timeout: options.call_timeout.unwrap_or(self.call_timeout),
            max_delegation_depth: options.max_delegation_depth.unwrap_or(self.max_delegation_depth),
            max_calls: options.max_calls.unwrap_or(self.max_calls),
            max_tokens: options.max_tokens.unwrap_or(self.max_tokens),
            max_cost,
            contract_fingerprint: fingerprint(&delegation, &tools),
            delegation,
            tools,
            tool_docs,
            reuse: options.reuse.unwrap_or(self.reuse),
            lock: match options.reuse {
                None => self.lock.clone(),
                Some(Reuse::Locked) => Some(Arc::new(read_lock()?)),
                Some(Reuse::Auto | Reuse::Off) => None,
            },
            namespace: options.namespace.unwrap_or_else(|| self.namespace.clone()),
            store: match options.store {
                None => self.store.clone(),
                Some(StoreOption::Memory) => None,
                Some(StoreOption::Default) => crate::store::open_default(),
                Some(StoreOption::Path(path)) => Some(open_store(&path)?),
                Some(StoreOption::Store(store)) => Some(store),
            },
            record: record.or_else(|| self.record.clone()),
            durability: options.durability.or(self.durability),
            root_contract: Mutex::new(None),
        })
    }

    /// The settings of a runtime, before its other options are laid over them: takes the model out of `options`, and all
    /// that says how to reach and ask it.
    pub(crate) fn of_model(options: &mut Options) -> Result<Self, OptionError> {
        let model = options.model.take().unwrap_or_default();
        let provider = resolve_model(&model, options, None)?.provider;
        let (target, providers) = (std::mem::take(&mut options.target), std::mem::take(&mut options.providers));
        Ok(Self { chosen: Arc::new(Chosen { model, target, providers }), ..Self::new(provider) })
    }

    /// Another model, or the same one asked otherwise; `None` when the options say nothing of either.
    fn choose(&self, options: &mut Options) -> Result<Option<ChosenProvider>, OptionError> {
        if options.model.is_none() && options.target.is_empty() && options.providers.is_empty() {
            return Ok(None);
        }
        let mut far = self.chosen.target.clone();
        if options.model.is_some() {
            // Address and keys were said of the other model.
            far = TargetOptions {
                params: far.params,
                output: far.output,
                stream: far.stream,
                ..TargetOptions::default()
            };
        }
        let mut providers = self.chosen.providers.clone();
        for (name, near) in std::mem::take(&mut options.providers) {
            let near = match providers.remove(&name) {
                Some(far) => near.over(&far),
                None => near,
            };
            providers.insert(name, near);
        }
        let chosen = Chosen {
            model: options.model.take().unwrap_or_else(|| self.chosen.model.clone()),
            target: std::mem::take(&mut options.target).over(&far),
            providers,
        };
        let asked = Options {
            target: chosen.target.clone(),
            providers: chosen.providers.clone(),
            store: options.store.clone(),
            reuse: options.reuse,
            ..Options::default()
        };
        let provider = resolve_model(&chosen.model, &asked, self.store.as_ref())?.provider;
        Ok(Some((chosen, provider)))
    }

    /// The settings as options: what `Options::from_map` reads, by name.
    pub(crate) fn to_map(&self) -> Map {
        let seconds = |duration: Duration| Value::Float(duration.as_secs_f64());
        let whole = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let isolation = match self.isolation {
            Isolation::Shared => "shared",
            Isolation::Fresh => "fresh",
        };
        let store = self.store.as_ref().map_or_else(|| ":memory:".to_owned(), |store| store.location());
        let entries: [(&str, Value); 23] = [
            ("model", (&*self.model).into()),
            ("language", self.language.as_str().into()),
            ("log", self.log.is_some().into()),
            ("logging", self.logging.into()),
            ("debug", self.debug.into()),
            ("verbose", self.verbose.is_some().into()),
            ("max_generation_attempts", self.generation_attempts().into()),
            ("execution_repairs", self.execution_repairs.into()),
            ("provider_timeout_seconds", seconds(self.provider_timeout)),
            ("program_timeout_seconds", seconds(self.limits.cpu_time)),
            ("max_instructions", whole(self.limits.max_instructions)),
            ("max_memory_bytes", whole(self.limits.max_memory_bytes as u64)),
            ("isolation", isolation.into()),
            ("call_timeout_seconds", seconds(self.call_timeout)),
            ("max_delegation_depth", self.max_delegation_depth.into()),
            ("max_calls", self.max_calls.into()),
            ("max_tokens", self.max_tokens.map(whole).into()),
            ("max_cost", self.max_cost.map(|cost| Value::Float(cost.usd())).into()),
            ("reuse", self.reuse.as_str().into()),
            ("namespace", (&*self.namespace).into()),
            ("store", store.as_str().into()),
            ("record", self.record.as_ref().map(|path| path.to_string_lossy().into_owned()).into()),
            ("durability", self.durability.map(Durability::as_str).into()),
        ];
        entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Requests that one generation may make (AC-7.7, SC-1.15 to 1.19): as set, else two, and each target of a list once.
    pub(crate) fn generation_attempts(&self) -> u32 {
        let targets = u32::try_from(self.provider.targets().len()).unwrap_or(u32::MAX);
        self.max_generation_attempts.unwrap_or_else(|| targets.clamp(2, MAX_REQUESTS))
    }

    /// Whether a delegate of an agent with these settings can share them as they are.
    pub(crate) fn shared_with_delegates(&self) -> bool {
        self.delegation.fingerprint() == DelegationContract::default().fingerprint()
    }
}

/// The provider, with what it is asked and answers added to a cassette if there is one.
fn recorded(provider: Arc<dyn Provider>, record: Option<&PathBuf>) -> Result<Arc<dyn Provider>, OptionError> {
    let Some(path) = record else { return Ok(provider) };
    let refused = |error: CassetteError| OptionError::Invalid { name: "record", message: error.to_string() };
    Cassette::record(path, provider).map_err(refused)
}

/// The lock file of the working directory.
fn read_lock() -> Result<Lock, OptionError> {
    Lock::read(Path::new(lock::FILE))
        .map_err(|error| OptionError::Invalid { name: "reuse", message: error.to_string() })
}

/// A name that two tools have.
fn duplicate(tools: &[Arc<Tool>]) -> Option<&str> {
    let mut names: Vec<&str> = tools.iter().map(|tool| &**tool.name()).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn open_log(path: &Path) -> Result<Arc<dyn LogSink>, OptionError> {
    match log::refusal(path) {
        None => Ok(BackgroundLog::shared(path)),
        Some(why) => {
            let message =
                format!("{} cannot be a log: {why}; name a file, which is made when it is missing", path.display());
            Err(OptionError::Invalid { name: "log", message })
        }
    }
}

#[cfg(feature = "sqlite")]
fn open_store(path: &Path) -> Result<Arc<dyn Store>, OptionError> {
    match crate::store::SqliteStore::open(path) {
        Ok(store) => Ok(store),
        Err(error) => Err(OptionError::Invalid { name: "store", message: error.to_string() }),
    }
}

#[cfg(not(feature = "sqlite"))]
fn open_store(_path: &Path) -> Result<Arc<dyn Store>, OptionError> {
    Err(OptionError::NotYet { name: "store", message: "this build has no SQLite (feature `sqlite`)" })
}

/// The provider of a model, with the process's environment.
/// `store` is where recorded calls are when the options name none.
pub(crate) fn resolve_model(
    model: &ModelSpec,
    options: &Options,
    store: Option<&Arc<dyn Store>>,
) -> Result<Resolved, OptionError> {
    let environment = |name: &str| std::env::var(name).ok();
    let recorded = |id: &str| {
        let store = match &options.store {
            None => store.cloned(),
            Some(StoreOption::Memory) => None,
            Some(StoreOption::Default) => crate::store::open_default(),
            Some(StoreOption::Path(path)) => Some(open_store(path).map_err(|error| error.to_string())?),
            Some(StoreOption::Store(store)) => Some(store.clone()),
        };
        recorded_flow(&*store.ok_or("it needs the store in which the call is recorded: set `store` to its path")?, id)
    };
    let settings = ModelSettings {
        options: options.target.clone(),
        providers: options.providers.clone(),
        configured: None,
        environment: Some(&environment),
        nobody_asks: options.reuse == Some(Reuse::Locked),
        recorded: Some(&recorded),
        #[cfg(feature = "http")]
        local: Some(&provider::local::first_model),
        #[cfg(not(feature = "http"))]
        local: None,
    };
    provider::resolve(model, &settings)
        .map_err(|error| OptionError::Invalid { name: error.option(), message: error.message() })
}

fn fingerprint(delegation: &DelegationContract, tools: &ToolSet) -> Digest {
    let mut bytes = [0; 64];
    bytes[..32].copy_from_slice(&delegation.fingerprint().0);
    bytes[32..].copy_from_slice(&tools.fingerprint().0);
    Digest::of_bytes(&bytes)
}

/// A reply that nobody can price is the last one of its flow; better to know that before.
fn warn_of_unpriced(provider: &dyn Provider, prices: &Prices) {
    let targets: Vec<&str> = match provider.targets() {
        [] => vec![provider.model()],
        targets => targets.iter().map(|target| target.model()).collect(),
    };
    for target in targets.into_iter().filter(|target| prices.cost(target, None, &Usage::default()).is_none()) {
        warning::warn(format!(
            "`max_cost` cannot hold for {target}, which has no price: its first reply is the last of a call, unless it \
             answers under a name that has one; add it to `prices`"
        ));
    }
}

fn tool_docs(tools: &ToolSet) -> ToolDocs {
    ToolDocs::new(tools.iter().map(|tool| (&**tool.name(), &**tool.description(), tool.parameters())))
}
