//! Which model an agent uses: from an option, the environment, the configuration file, or what can work by default.
//!
//! Decides by what it is given: the environment and the look for a local server come in as functions, so a test or a
//! host with its own rules is hermetic. Never connects by itself, never guesses a key, never picks a default that cannot work.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::absent::Absent;
use super::cassette::Cassette;
use super::library::{Library, nearest};
use super::replay::{Decided, Replay};
use super::rotation::MAX_REQUESTS;
use super::secret::keeps_keys;
use super::target::TargetOptions;
use super::targets::Targets;
use super::{Provider, Secret};
use crate::warning;

/// What a host asks for as `model`.
#[derive(Clone, Debug, Default)]
pub enum ModelSpec {
    /// Nothing: the default of product.md section 6.
    #[default]
    Default,
    /// `provider:name`, or several of them with commas between; see [`PROVIDERS`].
    Name(String),
    /// Targets that are tried in turn.
    Targets(Vec<ModelSpec>),
    /// One target by name, with options of its own.
    Target {
        /// `provider:name`.
        name: String,
        /// What is said of it alone.
        options: Box<TargetOptions>,
    },
    /// A provider that the host made.
    Provider(Arc<dyn Provider>),
}

impl From<&str> for ModelSpec {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<Arc<dyn Provider>> for ModelSpec {
    fn from(provider: Arc<dyn Provider>) -> Self {
        Self::Provider(provider)
    }
}

/// Looks up an environment variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Looks up the recorded calls of a flow, by the id of one of them.
pub type DecidedCalls<'a> = &'a dyn Fn(&str) -> Result<Vec<Decided>, String>;

/// Looks for a server of local models at an address of this machine, and gives its first model.
pub type LocalModel<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What goes with the model: the other options that a provider needs.
#[derive(Clone, Default)]
pub struct ModelSettings<'a> {
    /// How the model is reached and asked, when neither its provider's options nor its own say otherwise.
    pub options: TargetOptions,
    /// Options by provider.
    pub providers: BTreeMap<String, TargetOptions>,
    /// The model of the configuration file.
    pub configured: Option<ModelSpec>,
    /// An environment variable by name; `None` here is an empty environment.
    pub environment: Option<Environment<'a>>,
    /// No model is ever asked (`reuse = "locked"`): then one without its key will do.
    pub nobody_asks: bool,
    /// What `replay:ID` plays; `None` where nothing is recorded.
    pub recorded: Option<DecidedCalls<'a>>,
    /// Whether a local server answers, asked when nothing else is configured; `None` never looks.
    pub local: Option<LocalModel<'a>>,
}

impl fmt::Debug for ModelSettings<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ModelSettings")
            .field("options", &self.options)
            .field("providers", &self.providers)
            .field("configured", &self.configured)
            .finish_non_exhaustive()
    }
}

impl ModelSettings<'_> {
    /// How a provider's target is reached and asked: its own word first, then its provider's, then everybody's (SC-1.48).
    fn options_for(&self, kind: Kind, own: &TargetOptions) -> TargetOptions {
        let of_provider = self.providers.get(kind.as_str()).cloned().unwrap_or_default();
        own.clone().over(&of_provider.over(&self.options))
    }

    /// The same for a target whose name says its address. Where nobody else says one, it is the address that a general key
    /// is meant for; where somebody does, their key stays with theirs.
    fn options_at(&self, kind: Kind, own: &TargetOptions, address: Option<String>) -> TargetOptions {
        let Some(address) = address else { return self.options_for(kind, own) };
        let far = self.options_for(kind, &TargetOptions::default());
        if far.base_url.is_some() {
            return TargetOptions { base_url: Some(address), ..own.clone() }.over(&far);
        }
        TargetOptions { base_url: None, ..own.clone() }.over(&TargetOptions { base_url: Some(address), ..far })
    }

    /// A variable that is set and not blank.
    fn variable(&self, name: &str) -> Option<String> {
        self.environment.and_then(|environment| environment(name)).filter(|value| !value.trim().is_empty())
    }
}

/// The model that was chosen, and why.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// What decided.
    pub origin: Origin,
    /// What the user should know, such as a key that this version cannot use. No secrets.
    pub notes: Vec<String>,
}

/// What decided which model is used; `cadenza config` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The option `model`.
    Option,
    /// This environment variable.
    Environment(&'static str),
    /// The configuration file.
    ConfigurationFile,
    /// Nothing was configured: a local server that answers, or the embedded library.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option => formatter.write_str("option `model`"),
            Self::Environment(name) => write!(formatter, "environment variable {name}"),
            Self::ConfigurationFile => formatter.write_str("configuration file"),
            Self::Default => formatter.write_str("default"),
        }
    }
}

/// The variable that names a model for everything that does not say otherwise.
pub const MODEL_VARIABLE: &str = "CADENZA_MODEL";

/// The model that an `OPENAI_API_KEY` alone stands for.
pub const DEFAULT_OPENAI_MODEL: &str = "gpt-5.1";

/// The model that an `ANTHROPIC_API_KEY` alone stands for.
pub const DEFAULT_ANTHROPIC_MODEL: &str = "claude-sonnet-5-5";

/// The model that a `GEMINI_API_KEY` alone stands for.
pub const DEFAULT_GEMINI_MODEL: &str = "gemini-3.8-flash";

/// Keys that choose a default, in order, with their providers.
const KEYS: [(&str, Kind); 6] = [
    ("ANTHROPIC_API_KEY", Kind::Anthropic),
    ("ANTHROPIC_API_KEY_FILE", Kind::Anthropic),
    ("OPENAI_API_KEY", Kind::OpenAi),
    ("OPENAI_API_KEY_FILE", Kind::OpenAi),
    ("GEMINI_API_KEY", Kind::Gemini),
    ("GEMINI_API_KEY_FILE", Kind::Gemini),
];

/// The names that may stand before the colon.
pub const PROVIDERS: [&str; 10] = [
    "openai",
    "openai-responses",
    "openai-compatible",
    "anthropic",
    "gemini",
    "ollama",
    "library",
    "llama",
    "replay",
    "cassette",
];

/// A provider by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OpenAi,
    OpenAiResponses,
    OpenAiCompatible,
    Anthropic,
    Gemini,
    Ollama,
    Library,
    Llama,
    Replay,
    Cassette,
}

impl Kind {
    const ALL: [Self; PROVIDERS.len()] = [
        Self::OpenAi,
        Self::OpenAiResponses,
        Self::OpenAiCompatible,
        Self::Anthropic,
        Self::Gemini,
        Self::Ollama,
        Self::Library,
        Self::Llama,
        Self::Replay,
        Self::Cassette,
    ];

    fn as_str(self) -> &'static str {
        PROVIDERS[self as usize]
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The model that its key alone stands for.
    fn default_model(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => Some(DEFAULT_OPENAI_MODEL),
            Self::Anthropic => Some(DEFAULT_ANTHROPIC_MODEL),
            Self::Gemini => Some(DEFAULT_GEMINI_MODEL),
            Self::OpenAiResponses
            | Self::OpenAiCompatible
            | Self::Library
            | Self::Ollama
            | Self::Llama
            | Self::Replay
            | Self::Cassette => None,
        }
    }

    /// Whether it is reached over HTTP.
    fn is_remote(self) -> bool {
        match self {
            Self::OpenAi
            | Self::OpenAiResponses
            | Self::OpenAiCompatible
            | Self::Anthropic
            | Self::Gemini
            | Self::Ollama => true,
            Self::Library | Self::Llama | Self::Replay | Self::Cassette => false,
        }
    }

    /// Whether this build can reach it.
    fn works(self) -> bool {
        match self {
            Self::Library | Self::Replay | Self::Cassette => true,
            Self::OpenAi
            | Self::OpenAiResponses
            | Self::OpenAiCompatible
            | Self::Anthropic
            | Self::Gemini
            | Self::Ollama => cfg!(feature = "http"),
            Self::Llama => cfg!(feature = "llama"),
        }
    }
}

#[cfg(feature = "http")]
impl Kind {
    /// Whose wire format it speaks. Only for those that have one.
    fn vendor(self) -> super::remote::Vendor {
        use super::remote::Vendor;
        match self {
            Self::OpenAi => Vendor::OpenAi,
            Self::OpenAiResponses => Vendor::OpenAiResponses,
            Self::Anthropic => Vendor::Anthropic,
            Self::Gemini => Vendor::Gemini,
            Self::Ollama => Vendor::Ollama,
            Self::OpenAiCompatible | Self::Library | Self::Llama | Self::Replay | Self::Cassette => {
                Vendor::OpenAiCompatible
            }
        }
    }

    /// Variables that may hold its key, in order; each has a variant with `_FILE`.
    fn key_variables(self) -> &'static [&'static str] {
        match self {
            Self::OpenAi | Self::OpenAiResponses | Self::OpenAiCompatible => &["OPENAI_API_KEY"],
            Self::Anthropic => &["ANTHROPIC_API_KEY"],
            Self::Gemini => &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
            Self::Ollama => &["OLLAMA_API_KEY"],
            Self::Library | Self::Llama | Self::Replay | Self::Cassette => &[],
        }
    }

    /// The variable that may say where it answers.
    fn url_variable(self) -> &'static str {
        match self {
            Self::Anthropic => "ANTHROPIC_BASE_URL",
            Self::Gemini => "GEMINI_BASE_URL",
            Self::Ollama => "OLLAMA_HOST",
            Self::OpenAi
            | Self::OpenAiResponses
            | Self::OpenAiCompatible
            | Self::Library
            | Self::Llama
            | Self::Replay
            | Self::Cassette => "OPENAI_BASE_URL",
        }
    }

    /// Whether it answers nobody without a key.
    fn needs_key(self) -> bool {
        match self {
            Self::OpenAi | Self::OpenAiResponses | Self::Anthropic | Self::Gemini => true,
            Self::OpenAiCompatible | Self::Ollama | Self::Library | Self::Llama | Self::Replay | Self::Cassette => {
                false
            }
        }
    }

    /// An address as its variable gives it.
    ///
    /// `OLLAMA_HOST` also says where a server listens: without a scheme, and on every address of this machine.
    fn address(self, text: String) -> String {
        let text = text.trim();
        if self != Self::Ollama {
            return text.to_owned();
        }
        let (scheme, host) = text.split_once("://").unwrap_or(("http", text));
        let host = host.trim_end_matches('/').replacen("0.0.0.0", "127.0.0.1", 1);
        let host = if let Some(port) = host.strip_prefix(':') { format!("127.0.0.1:{port}") } else { host };
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if has_port || text.contains("://") { format!("{scheme}://{host}") } else { format!("{scheme}://{host}:11434") }
    }
}

/// The names that this build can reach.
fn available() -> Vec<&'static str> {
    Kind::ALL.into_iter().filter(|kind| kind.works()).map(Kind::as_str).collect()
}

/// The provider that a spec stands for.
///
/// The order of a default is: `CADENZA_MODEL`, the configuration file, the first key in the environment whose provider
/// this build can reach, the embedded library. Reads a key file; does not connect.
pub fn resolve(spec: &ModelSpec, settings: &ModelSettings<'_>) -> Result<Resolved, ResolveError> {
    let mut notes = Vec::new();
    let (spec, origin) = choose(spec, settings, &mut notes);
    match one(&spec, settings) {
        Ok(provider) => Ok(Resolved { provider, origin, notes }),
        Err(
            problem
            @ (ResolveProblem::NoKey { .. } | ResolveProblem::KeyFile { .. } | ResolveProblem::ModelFile { .. }),
        ) if settings.nobody_asks => {
            let name = match &spec {
                ModelSpec::Name(name) | ModelSpec::Target { name, .. } => short(name),
                ModelSpec::Targets(_) | ModelSpec::Provider(_) | ModelSpec::Default => "none".to_owned(),
            };
            Ok(Resolved { provider: Arc::new(Absent::new(name, problem.to_string())), origin, notes })
        }
        Err(problem) => Err(ResolveError { origin, problem }),
    }
}

fn choose(spec: &ModelSpec, settings: &ModelSettings<'_>, notes: &mut Vec<String>) -> (ModelSpec, Origin) {
    match spec {
        ModelSpec::Name(_) | ModelSpec::Target { .. } | ModelSpec::Targets(_) | ModelSpec::Provider(_) => {
            return (spec.clone(), Origin::Option);
        }
        ModelSpec::Default => {}
    }
    if let Some(name) = settings.variable(MODEL_VARIABLE) {
        return (ModelSpec::Name(name), Origin::Environment(MODEL_VARIABLE));
    }
    match &settings.configured {
        Some(ModelSpec::Default) | None => {}
        Some(configured) => return (configured.clone(), Origin::ConfigurationFile),
    }
    for (variable, kind) in KEYS {
        if settings.variable(variable).is_none() {
            continue;
        }
        if let Some(model) = kind.default_model().filter(|_| kind.works()) {
            return (ModelSpec::Name(format!("{}:{model}", kind.as_str())), Origin::Environment(variable));
        }
        notes.push(format!("{variable} is set, but this build cannot use `{}`", kind.as_str()));
    }
    if let Some((model, address)) = local_model(settings) {
        notes.push(format!("nothing is configured: using the first model of the Ollama at {address}"));
        return (ModelSpec::Name(format!("ollama:{model}")), Origin::Default);
    }
    (ModelSpec::Name("library".into()), Origin::Default)
}

/// The first model of a local server, and where it answers.
#[cfg(feature = "http")]
fn local_model(settings: &ModelSettings<'_>) -> Option<(String, String)> {
    let look = settings.local?;
    let of_environment = settings.variable(Kind::Ollama.url_variable()).map(|url| Kind::Ollama.address(url));
    let address = of_environment.or_else(|| Kind::Ollama.vendor().base_url().map(str::to_owned))?;
    if !super::http::is_local(&address) {
        return None;
    }
    look(&address).map(|model| (model, address))
}

#[cfg(not(feature = "http"))]
fn local_model(_settings: &ModelSettings<'_>) -> Option<(String, String)> {
    None
}

fn one(spec: &ModelSpec, settings: &ModelSettings<'_>) -> Result<Arc<dyn Provider>, ResolveProblem> {
    match spec {
        ModelSpec::Provider(provider) => Ok(provider.clone()),
        ModelSpec::Targets(specs) => several(specs, settings),
        ModelSpec::Name(name) if name.contains(',') => {
            let specs: Vec<ModelSpec> = name.split(',').map(|name| ModelSpec::Name(name.to_owned())).collect();
            several(&specs, settings)
        }
        ModelSpec::Name(name) => named(name.trim(), settings, &TargetOptions::default()),
        ModelSpec::Target { name, options } => named(name.trim(), settings, options),
        // `choose` leaves no default at the top; inside a list there is nothing that it could mean.
        ModelSpec::Default => Err(ResolveProblem::NoTargets),
    }
}

fn several(specs: &[ModelSpec], settings: &ModelSettings<'_>) -> Result<Arc<dyn Provider>, ResolveProblem> {
    if specs.iter().map(targets_in).sum::<usize>() > MAX_REQUESTS as usize {
        return Err(ResolveProblem::TooManyTargets { most: MAX_REQUESTS });
    }
    let mut named = Vec::new();
    names(specs, &mut named);
    share_nothing(&named, settings)?;
    let mut targets = Vec::with_capacity(specs.len());
    for spec in specs {
        targets.push(one(spec, settings)?);
    }
    if targets.len() == 1 {
        return Ok(targets.remove(0));
    }
    let requests = u32::try_from(targets.len()).unwrap_or(u32::MAX);
    Targets::new(targets, requests).map(|targets| Arc::new(targets) as _).ok_or(ResolveProblem::NoTargets)
}

/// Targets of a list, those of lists in it included.
fn targets_in(spec: &ModelSpec) -> usize {
    match spec {
        ModelSpec::Name(names) => names.split(',').count(),
        ModelSpec::Targets(specs) => specs.iter().map(targets_in).sum(),
        ModelSpec::Provider(provider) => provider.targets().len().max(1),
        ModelSpec::Target { .. } | ModelSpec::Default => 1,
    }
}

/// The targets of a list that are named, with what is said of each alone.
fn names<'a>(specs: &'a [ModelSpec], into: &mut Vec<(&'a str, Option<&'a TargetOptions>)>) {
    for spec in specs {
        match spec {
            ModelSpec::Name(name) => into.extend(name.split(',').map(|name| (name.trim(), None))),
            ModelSpec::Target { name, options } => into.push((name.trim(), Some(options))),
            ModelSpec::Targets(specs) => names(specs, into),
            ModelSpec::Provider(_) | ModelSpec::Default => {}
        }
    }
}

/// A key or an address that is said for everybody is one provider's: with targets of several, nobody knows whose.
fn share_nothing(
    targets: &[(&str, Option<&TargetOptions>)],
    settings: &ModelSettings<'_>,
) -> Result<(), ResolveProblem> {
    let said = &settings.options;
    let has_key = |options: &TargetOptions| options.api_key.is_some() || options.api_key_file.is_some();
    let keeps_key = |(name, value): (&String, &Option<Secret>)| value.is_some() && keeps_keys(name);
    let shared = [
        ("api_key", has_key(said)),
        ("base_url", said.base_url.is_some()),
        ("headers", said.headers.iter().any(keeps_key)),
    ];
    for (option, _) in shared.into_iter().filter(|(_, given)| *given) {
        let mut sharing: Vec<&'static str> = Vec::new();
        for (name, own) in targets {
            let provider = name.split_once(':').map_or(*name, |(provider, _)| provider).trim();
            let Some(kind) = Kind::from_name(provider).filter(|kind| kind.is_remote()) else { continue };
            // Both are OpenAI, with one key and one address.
            let kind = if kind == Kind::OpenAiResponses { Kind::OpenAi } else { kind };
            let places = [*own, settings.providers.get(provider)];
            let says_itself = places.into_iter().flatten().any(|options| match option {
                "api_key" => has_key(options) || options.base_url.is_some(),
                _address_or_headers => options.base_url.is_some(),
            });
            let inline = option == "base_url" && (name.contains("@http://") || name.contains("@https://"));
            if !says_itself && !inline && !sharing.contains(&kind.as_str()) {
                sharing.push(kind.as_str());
            }
        }
        if sharing.len() > 1 {
            return Err(ResolveProblem::Shared { option, providers: sharing.join(", ") });
        }
    }
    Ok(())
}

fn named(name: &str, settings: &ModelSettings<'_>, own: &TargetOptions) -> Result<Arc<dyn Provider>, ResolveProblem> {
    let (provider, model) = name.split_once(':').map_or((name, ""), |(provider, model)| (provider, model.trim()));
    let Some(kind) = Kind::from_name(provider.trim()) else {
        return Err(ResolveProblem::Unknown { name: short(name), hint: hint(name) });
    };
    let idle = idle(kind, own);
    if !idle.is_empty() {
        let idle = idle.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        warning::warn(format!("{} has no use for {idle}; take that away", short(name)));
    }
    match kind {
        Kind::Library if model.is_empty() => Ok(Library::embedded()),
        Kind::Library => Err(ResolveProblem::LibraryHasNoModels { name: short(name) }),
        Kind::OpenAi
        | Kind::OpenAiResponses
        | Kind::OpenAiCompatible
        | Kind::Anthropic
        | Kind::Gemini
        | Kind::Ollama => {
            if !kind.works() {
                return Err(ResolveProblem::NotBuilt { provider: kind.as_str(), feature: "http" });
            }
            // A target may say its own address: `openai-compatible:NAME@http://host/v1`.
            let inline = ["@http://", "@https://"].into_iter().find_map(|mark| model.find(mark));
            let address = inline.map(|at| model[at + 1..].to_owned());
            let model = inline.map_or(model, |at| model[..at].trim_end());
            if model.is_empty() {
                return Err(ResolveProblem::NoModelName { provider: kind.as_str() });
            }
            remote(kind, model, settings, settings.options_at(kind, own, address))
        }
        Kind::Replay if model.is_empty() => Err(ResolveProblem::NoModelName { provider: kind.as_str() }),
        Kind::Replay => {
            let why = || "nothing is recorded here".to_owned();
            let calls = settings.recorded.map_or_else(|| Err(why()), |recorded| recorded(model));
            let calls = calls.map_err(|why| ResolveProblem::Settings { why: format!("`{}`: {why}", short(name)) })?;
            Ok(Replay::new(format!("replay:{model}"), calls))
        }
        Kind::Cassette if model.is_empty() => Err(ResolveProblem::NoModelName { provider: kind.as_str() }),
        Kind::Cassette => {
            Cassette::replay(Path::new(model)).map_err(|error| ResolveProblem::Settings { why: error.to_string() })
        }
        Kind::Llama if model.is_empty() => Err(ResolveProblem::NoModelFile),
        Kind::Llama => llama(model, settings.options_for(kind, own)),
    }
}

/// What a target says of itself alone that nothing can come of. What is said for all may be meant for others.
fn idle(kind: Kind, own: &TargetOptions) -> Vec<&'static str> {
    let given = own.given().into_iter();
    let useless: &[&str] = match kind {
        Kind::OpenAi | Kind::OpenAiResponses | Kind::OpenAiCompatible | Kind::Anthropic | Kind::Gemini => {
            &["threads", "gpu_layers", "context_size"]
        }
        Kind::Ollama => &["threads", "gpu_layers"],
        Kind::Llama => &["base_url", "api_key", "api_key_file", "headers", "proxy", "stream"],
        Kind::Library | Kind::Replay | Kind::Cassette => return given.collect(),
    };
    given.filter(|name| useless.contains(name)).collect()
}

#[cfg(feature = "http")]
fn remote(
    kind: Kind,
    model: &str,
    settings: &ModelSettings<'_>,
    options: TargetOptions,
) -> Result<Arc<dyn Provider>, ResolveProblem> {
    use super::remote::{Remote, RemoteError, RemoteSettings};

    let vendor = kind.vendor();
    let of_host = options.base_url.clone();
    let of_environment = if of_host.is_none() { settings.variable(kind.url_variable()) } else { None };
    // A key from the environment is for whoever is named as its vendor, wherever the host says that it answers (a proxy of
    // the vendor's, say), and for the address that the same environment gives. A compatible server is nobody's vendor.
    let may_use_variable = vendor.base_url().is_some() || of_environment.is_some();
    let of_environment = of_environment.map(|url| kind.address(url));
    let base_url = match of_host.or(of_environment) {
        Some(url) => url,
        None => vendor.base_url().ok_or(ResolveProblem::NoBaseUrl)?.to_owned(),
    };
    let key = key(kind, settings, &options, may_use_variable)?;
    let mut headers: Vec<_> =
        options.headers.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?))).collect();
    let says_who_asks = headers.iter().any(|(name, _)| is_key_header(name));
    if kind.needs_key() && key.is_none() && !says_who_asks {
        return Err(ResolveProblem::NoKey { variable: kind.key_variables()[0], provider: kind.as_str() });
    }
    if matches!(kind, Kind::OpenAi | Kind::OpenAiResponses) {
        for (variable, header) in [("OPENAI_ORG_ID", "openai-organization"), ("OPENAI_PROJECT_ID", "openai-project")] {
            let given = settings.variable(variable).and_then(|value| Secret::unlisted(&value));
            if let Some(value) = given.filter(|_| !headers.iter().any(|(name, _)| name == header)) {
                headers.push((header.to_owned(), value));
            }
        }
    }
    let settings = RemoteSettings {
        key,
        headers,
        proxy: options.proxy,
        output: options.output,
        stream: options.stream,
        context_size: options.context_size,
        params: options.params,
        ..RemoteSettings::new(vendor, format!("{}:{model}", kind.as_str()), model, base_url)
    };
    let refused = |option, error: RemoteError| ResolveProblem::Refused { option, why: error.to_string() };
    let provider = Remote::new(settings).map_err(|error| match error {
        RemoteError::BaseUrl { why } => ResolveProblem::BaseUrl { why },
        RemoteError::Key => ResolveProblem::Key { why: error.to_string() },
        RemoteError::Header { .. } | RemoteError::Framing { .. } => refused("headers", error),
        RemoteError::Extra { .. } => refused("extra", error),
        RemoteError::Proxy => refused("proxy", error),
    })?;
    Ok(Arc::new(provider))
}

#[cfg(not(feature = "http"))]
fn remote(
    kind: Kind,
    _model: &str,
    _settings: &ModelSettings<'_>,
    _options: TargetOptions,
) -> Result<Arc<dyn Provider>, ResolveProblem> {
    Err(ResolveProblem::NotBuilt { provider: kind.as_str(), feature: "http" })
}

/// Whether a header says who asks, so that no key is needed beside it.
#[cfg(feature = "http")]
fn is_key_header(name: &str) -> bool {
    ["authorization", "x-api-key", "x-goog-api-key", "api-key"].contains(&name)
}

/// A local model. Loads it: what is wrong with the file is said here, not by the first call.
#[cfg(feature = "llama")]
fn llama(name: &str, options: TargetOptions) -> Result<Arc<dyn Provider>, ResolveProblem> {
    use super::llama::{DEFAULT_OUTPUT_TOKENS, Llama, LlamaSettings};

    let home = || dirs::home_dir().map(|home| home.join(name.trim_start_matches("~/")));
    let path = if name.starts_with("~/") { home().unwrap_or_else(|| name.into()) } else { name.into() };
    let TargetOptions { context_size, threads, gpu_layers, params, .. } = options;
    // S18: what is not done is said.
    let without_effect = ["reasoning_effort", "extended_thinking", "extra"];
    let forced = (params.force_params == Some(true)).then_some("force_params");
    let omitted = params.given().filter(|name| without_effect.contains(name)).chain(forced).collect();
    let given = LlamaSettings {
        name: format!("llama:{name}"),
        context_size,
        threads,
        gpu_layers,
        temperature: params.temperature.flatten().unwrap_or(0.0) as f32,
        top_p: params.top_p.flatten().unwrap_or(1.0) as f32,
        repeat_penalty: params.repeat_penalty.flatten().unwrap_or(1.0) as f32,
        seed: params.seed.flatten().unwrap_or(0),
        max_output_tokens: params.max_output_tokens.flatten().unwrap_or(DEFAULT_OUTPUT_TOKENS),
        output: options.output.unwrap_or_default(),
        omitted,
        ..LlamaSettings::of(path)
    };
    match Llama::new(given) {
        Ok(provider) => Ok(Arc::new(provider)),
        Err(error) => Err(ResolveProblem::ModelFile { why: error.to_string() }),
    }
}

#[cfg(not(feature = "llama"))]
fn llama(_name: &str, _options: TargetOptions) -> Result<Arc<dyn Provider>, ResolveProblem> {
    Err(ResolveProblem::NotBuilt { provider: Kind::Llama.as_str(), feature: "llama" })
}

/// The key: the option, the file, then the environment.
#[cfg(feature = "http")]
fn key(
    kind: Kind,
    settings: &ModelSettings<'_>,
    options: &TargetOptions,
    may_use_variable: bool,
) -> Result<Option<Secret>, ResolveProblem> {
    if let Some(key) = &options.api_key {
        return Ok(Some(key.clone()));
    }
    if let Some(path) = &options.api_key_file {
        return read_key(path).map(Some);
    }
    if !may_use_variable {
        return Ok(None);
    }
    for variable in kind.key_variables() {
        if let Some(key) = settings.variable(variable) {
            return Ok(Secret::new(&key));
        }
        if let Some(path) = settings.variable(&format!("{variable}_FILE")) {
            return read_key(std::path::Path::new(path.trim())).map(Some);
        }
    }
    Ok(None)
}

/// A path in a message; the beginning of what looks like the key itself in the wrong place.
#[cfg(feature = "http")]
fn shown_path(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let is_path = text.contains(['/', '\\', '.']) || text.len() < 16;
    if is_path { text } else { format!("{}…", &text[..text.floor_char_boundary(6)]) }
}

#[cfg(feature = "http")]
fn read_key(path: &std::path::Path) -> Result<Secret, ResolveProblem> {
    let unreadable = |why: String| ResolveProblem::KeyFile { path: shown_path(path), why };
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    Secret::new(&text).ok_or_else(|| unreadable("it is empty".to_owned()))
}

/// What was meant: a provider as others call it, a model's name without its provider, or a provider with a typing mistake.
fn hint(name: &str) -> String {
    let (provider, model) = name.split_once(':').unwrap_or((name, ""));
    let spelled = provider.trim().to_ascii_lowercase().replace('_', "-");
    let meant = match (Kind::from_name(&spelled).or_else(|| known_as(&spelled)), whose(name)) {
        (Some(kind), _) if model.is_empty() => kind.as_str().to_owned(),
        (Some(kind), _) => format!("{}:{}", kind.as_str(), short(model)),
        (None, Some(kind)) => format!("{}:{}", kind.as_str(), short(name)),
        (None, None) => return nearest(provider.trim(), PROVIDERS.into_iter()),
    };
    format!(", did you mean `{meant}`?")
}

/// The provider that others call so.
fn known_as(provider: &str) -> Option<Kind> {
    Some(match provider {
        "gpt" | "chatgpt" => Kind::OpenAi,
        "claude" => Kind::Anthropic,
        "google" | "google-genai" | "vertex" | "vertexai" => Kind::Gemini,
        "llama-cpp" | "llama.cpp" | "lm-studio" | "lmstudio" | "openrouter" | "vllm" => Kind::OpenAiCompatible,
        _ => return None,
    })
}

/// Who has a model of that name: what its first word says, when more follows.
fn whose(model: &str) -> Option<Kind> {
    if model.to_ascii_lowercase().ends_with(".gguf") {
        return Some(Kind::Llama);
    }
    // Its weights are open: who writes its name alone runs it on this machine.
    if model.starts_with("gpt-oss") {
        return Some(Kind::Ollama);
    }
    let (family, _) = model.split_at_checked(model.find(|letter: char| !letter.is_ascii_alphabetic())?)?;
    Some(match &*family.to_ascii_lowercase() {
        "chatgpt" | "gpt" | "o" => Kind::OpenAi,
        "claude" => Kind::Anthropic,
        "gemini" => Kind::Gemini,
        "codellama" | "deepseek" | "gemma" | "llama" | "mistral" | "mixtral" | "phi" | "qwen" => Kind::Ollama,
        _ => return None,
    })
}

/// A name from outside in a message. It is cut, because a key may be pasted in the wrong place.
fn short(name: &str) -> String {
    let name = name.trim();
    let cut = name.floor_char_boundary(60);
    if cut < name.len() || name.starts_with("sk-") {
        format!("{}…", &name[..name.floor_char_boundary(6)])
    } else {
        name.to_owned()
    }
}

/// Why there is no such model, and whose word it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {problem}")]
pub struct ResolveError {
    /// What named the model.
    pub origin: Origin,
    /// What is wrong.
    pub problem: ResolveProblem,
}

impl ResolveError {
    /// The option that has to change.
    pub fn option(&self) -> &'static str {
        match &self.problem {
            ResolveProblem::BaseUrl { .. } => "base_url",
            ResolveProblem::Key { .. } => "api_key",
            ResolveProblem::KeyFile { .. } => "api_key_file",
            ResolveProblem::Shared { option, .. } | ResolveProblem::Refused { option, .. } => option,
            ResolveProblem::Unknown { .. }
            | ResolveProblem::NotBuilt { .. }
            | ResolveProblem::NoModelName { .. }
            | ResolveProblem::NoModelFile
            | ResolveProblem::ModelFile { .. }
            | ResolveProblem::LibraryHasNoModels { .. }
            | ResolveProblem::NoBaseUrl
            | ResolveProblem::NoKey { .. }
            | ResolveProblem::NoTargets
            | ResolveProblem::TooManyTargets { .. }
            | ResolveProblem::Settings { .. } => "model",
        }
    }

    /// The message for a host that names the option itself.
    pub fn message(&self) -> String {
        match (self.origin, &self.problem) {
            (_, ResolveProblem::BaseUrl { why }) => format!("the address cannot be used: {why}"),
            // What named the model says nothing about how it is reached.
            (Origin::Option, problem)
            | (
                _,
                problem
                @ (ResolveProblem::Key { .. } | ResolveProblem::KeyFile { .. } | ResolveProblem::Refused { .. }),
            ) => problem.to_string(),
            (Origin::Environment(_) | Origin::ConfigurationFile | Origin::Default, _) => self.to_string(),
        }
    }
}

/// What is wrong with a model's name or settings. No secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveProblem {
    /// No such provider.
    #[error("no provider `{name}`{hint} (write `provider:name`; providers: {})", available().join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The nearest, if near enough.
        hint: String,
    },
    /// Left out of this build.
    #[error("`{provider}` is not in this build; build with the feature `{feature}`")]
    NotBuilt {
        /// The provider.
        provider: &'static str,
        /// What to build with.
        feature: &'static str,
    },
    /// A provider without a model.
    #[error("`{provider}` needs a model's name: `{provider}:NAME`")]
    NoModelName {
        /// The provider.
        provider: &'static str,
    },
    /// A local model without its file.
    #[error("`llama` needs a model's file: `llama:/path/to/model.gguf`")]
    NoModelFile,
    /// A file that is no model.
    #[error("{why}")]
    ModelFile {
        /// Which, and what is wrong.
        why: String,
    },
    /// The library with a model.
    #[error("`{name}`: the library has no models; write `library`")]
    LibraryHasNoModels {
        /// What was asked for.
        name: String,
    },
    /// No address.
    #[error(
        "`openai-compatible` needs an address: pass `base_url=\"http://host:port/v1\"`, set OPENAI_BASE_URL, or write \
         `openai-compatible:NAME@http://host:port/v1`"
    )]
    NoBaseUrl,
    /// No key.
    #[error("`{provider}` needs a key: set {variable}, or pass `api_key=` or `api_key_file=`")]
    NoKey {
        /// The variable that is missing.
        variable: &'static str,
        /// The provider.
        provider: &'static str,
    },
    /// One key or address for several providers.
    #[error(
        "`{option}` is given for targets of different providers ({providers}); give each target its own: {{\"model\": …, \
         \"{option}\": …}}, or providers={{\"…\": {{\"{option}\": …}}}}"
    )]
    Shared {
        /// The option.
        option: &'static str,
        /// The providers that would share it.
        providers: String,
    },
    /// A key file that gives no key.
    #[error("the key file `{path}` cannot be used: {why}")]
    KeyFile {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A list without targets, or with a target that is not named.
    #[error("a list of models names each of its models, and at least one")]
    NoTargets,
    /// More targets than a call may ask.
    #[error("a list has at most {most} models: a call asks no more of them")]
    TooManyTargets {
        /// So many.
        most: u32,
    },
    /// An address that cannot be one.
    #[error("`base_url` cannot be used: {why}")]
    BaseUrl {
        /// What is wrong with it.
        why: String,
    },
    /// A key that cannot be one.
    #[error("{why}")]
    Key {
        /// What is wrong with it.
        why: String,
    },
    /// One option that cannot be sent as it is.
    #[error("{why}")]
    Refused {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Settings that the provider refuses.
    #[error("{why}")]
    Settings {
        /// What is wrong.
        why: String,
    },
}
