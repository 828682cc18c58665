//! The options that every command that makes agents takes, and the runtime that comes of them.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use cadenza_core::printable::printable;
use cadenza_core::provider::{ModelSpec, Resolved, cassette};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::config::{Config, Origin, from_text};
use cadenza_core::runtime::options::{LogOption, NAMES, Options, StoreOption, VerboseOption, nearest};
use cadenza_core::store::{SqliteStore, StoreError, default_path};
use cadenza_core::warning::take_warnings;

use crate::failure::Failure;
use crate::progress;

/// What the names of environment variables begin with.
const PREFIX: &str = "CADENZA_";

/// Options of agents. Each wins over the environment and over the configuration file.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Agents")]
pub struct AgentOptions {
    /// The model: `provider:name`, several with commas between, or `library`
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Where an `openai-compatible` server answers
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// Language of generated programs: `lua` or `rhai`
    #[arg(long, value_name = "LANGUAGE")]
    pub language: Option<String>,
    /// Write one JSON line per call to this file; `true` for the default place
    #[arg(long, value_name = "PATH")]
    pub log: Option<String>,
    /// Keep calls, programs and named agents in this file
    #[arg(long, value_name = "PATH")]
    pub store: Option<String>,
    /// Add what the model is asked and answers to this cassette; `--model cassette:PATH` plays it
    #[arg(long, value_name = "PATH")]
    pub record: Option<String>,
    /// Add prompts and context to log lines
    #[arg(long)]
    pub debug: bool,
    /// Show programs on standard error as they are written
    #[arg(short, long)]
    pub verbose: bool,
    /// Any other option, such as `max_calls=16`; may be repeated
    #[arg(short, long = "option", value_name = "NAME=VALUE")]
    pub options: Vec<String>,
}

impl AgentOptions {
    /// The configuration of this process with these options over it.
    pub fn config(&self) -> Result<Config, Failure> {
        warn_of_variables();
        let mut config = Config::load()?;
        let flags = [
            ("model", &self.model),
            ("base_url", &self.base_url),
            ("language", &self.language),
            ("log", &self.log),
            ("store", &self.store),
            ("record", &self.record),
        ];
        for (name, value) in flags {
            if let Some(text) = value {
                config.set(name, from_text(name, text), Origin::Flag(format!("--{}", name.replace('_', "-"))));
            }
        }
        if self.debug {
            config.set("debug", true.into(), Origin::Flag("--debug".into()));
        }
        if self.verbose {
            config.set("verbose", true.into(), Origin::Flag("--verbose".into()));
        }
        for option in &self.options {
            let (name, text) = split(option, "--option")?;
            config.set(name, from_text(name, text), Origin::Flag(format!("--option {name}")));
        }
        config.options()?;
        Ok(config)
    }

    /// A runtime with that name in its log lines, and the model that it asks.
    pub fn runtime(&self, name: &'static str) -> Result<(Runtime, Resolved), Failure> {
        let config = self.config()?;
        let mut options = config.options()?;
        // As in a runtime that is given the model's name: what is recorded or played has nothing kept before it.
        let whole = options.record.is_some() || options.model.as_ref().is_some_and(cassette::is_named_by);
        options.store.get_or_insert(if whole { StoreOption::Memory } else { StoreOption::Default });
        let resolved = config.resolve_model()?;
        // Who sees the program needs no line that says that it is awaited.
        let verbose = matches!(options.verbose, Some(VerboseOption::Stderr | VerboseOption::Watcher(_)));
        let provider = resolved.provider.clone();
        options.model = Some(ModelSpec::Provider(if verbose { provider } else { progress::shown(provider) }));
        (options.target, options.providers) = Default::default();
        let runtime = Runtime::builder().name(name).options(options).build().map_err(Failure::usage)?;
        for warning in take_warnings() {
            drop(writeln!(std::io::stderr().lock(), "warning: {}", printable(&warning)));
        }
        Ok((runtime, resolved))
    }
}

/// Says that a variable of the environment is nearly an option's, and therefore does nothing.
fn warn_of_variables() {
    // Commands read their options more than once.
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut stderr = std::io::stderr().lock();
        for (name, suggestion) in misspelt(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())) {
            let name = printable(&name);
            drop(writeln!(stderr, "warning: {name} in the environment is no option; did you mean {suggestion}?"));
        }
    });
}

/// Variables with our prefix that are no options, and the ones that were meant.
fn misspelt(variables: impl Iterator<Item = String>) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = variables
        .filter_map(|variable| {
            let name = variable.strip_prefix(PREFIX)?.to_ascii_lowercase();
            let names = [&NAMES[..], &["config"]].concat();
            if names.contains(&name.as_str()) {
                return None;
            }
            let meant = nearest(&name, &names)?;
            Some((variable, format!("{PREFIX}{}", meant.to_ascii_uppercase())))
        })
        .collect();
    found.sort();
    found
}

/// `name=value`.
pub fn split<'a>(text: &'a str, flag: &str) -> Result<(&'a str, &'a str), Failure> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim(), value)),
        Some(_) | None => Err(Failure::usage(format!("{flag} takes NAME=VALUE, got {text:?}"))),
    }
}

/// The log or store that is looked at when no file is named: the configured log, else the configured store or the user's
/// own, else the log in its default place.
pub fn default_log() -> Result<PathBuf, Failure> {
    let options: Options = Config::load()?.options()?;
    Ok(match (options.log, options.store) {
        (Some(LogOption::Path(path)), _) | (_, Some(StoreOption::Path(path))) => path,
        (Some(LogOption::Off | LogOption::Sink(_)) | None, Some(StoreOption::Default) | None) => {
            let log = Some(cadenza_core::log::default_path()).filter(|path| path.exists());
            users_own().or(log).ok_or_else(|| {
                Failure::usage("nothing is recorded yet: the first call makes a store; or name a log or a store")
            })?
        }
        (Some(LogOption::Off | LogOption::DefaultPath | LogOption::Sink(_)) | None, _) => {
            cadenza_core::log::default_path()
        }
    })
}

/// The default store, if this user has one.
fn users_own() -> Option<PathBuf> {
    default_path().filter(|path| path.exists())
}

/// The store that a command works on: the one that is named, else the configured one, else the user's own.
pub fn store(named: Option<PathBuf>) -> Result<Arc<SqliteStore>, Failure> {
    let path = match (named, Config::load()?.options()?.store) {
        (Some(path), _) | (None, Some(StoreOption::Path(path))) => path,
        (None, Some(StoreOption::Default) | None) => users_own().ok_or_else(|| {
            Failure::usage("there is no store yet: the first call makes one; or name one with --store PATH")
        })?,
        (None, Some(StoreOption::Memory | StoreOption::Store(_))) => {
            return Err(Failure::usage("no store is configured; name one with --store PATH"));
        }
    };
    open(&path)
}

/// The store that a command works on, and how it answers.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreArgs {
    /// The store; the configured one when none is named
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

impl StoreArgs {
    /// A runtime on the store, with a model that nobody asks.
    pub fn runtime(&self) -> Result<Runtime, Failure> {
        runtime_of(self.store.clone())
    }
}

/// A runtime on a store, the configured one when none is named, that asks no model and keeps no log.
pub fn runtime_of(named: Option<PathBuf>) -> Result<Runtime, Failure> {
    let options = Options {
        model: Some(ModelSpec::Name("library".to_owned())),
        store: Some(StoreOption::Store(store(named)?)),
        log: Some(LogOption::Off),
        ..Options::default()
    };
    Runtime::builder().name("cadenza-cli").options(options).build().map_err(Failure::usage)
}

/// An existing store. Looking at one must not make one.
pub fn open(path: &Path) -> Result<Arc<SqliteStore>, Failure> {
    if !path.exists() {
        return Err(Failure::usage(format!("store {}: there is no such file", path.display())));
    }
    SqliteStore::open(path).map_err(|error| match error {
        StoreError::Tampered { .. } | StoreError::Corrupt { .. } => Failure::failed(error),
        other => Failure::usage(other),
    })
}
