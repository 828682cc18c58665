//! Configuration: options from a TOML file and from the environment, each with the place it came from.
//!
//! One file is read: `$CADENZA_CONFIG`, else `./cadenza.toml`, else `cadenza/config.toml` in the user's configuration
//! folder. Its keys are option names; `CADENZA_<OPTION>` in the environment wins over it, and what the host sets
//! itself ([`Config::set`]) over both. Options are checked here with their place, so that an error says where to look.
//! This module never asks a model and never writes a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::provider::Resolved;
use crate::runtime::options::{NAMES, OptionError, Options, StoreOption};
use crate::runtime::settings;
use crate::value::{Map, Value};

/// What the names of environment variables begin with.
const PREFIX: &str = "CADENZA_";
/// Names the configuration file; not an option.
const FILE_VARIABLE: &str = "CADENZA_CONFIG";
/// Options whose environment form is text as it stands, even if it looks like a number.
const TEXT: [&str; 10] =
    ["model", "base_url", "api_key", "language", "purpose", "intent_signature", "namespace", "store", "record", "name"];

/// Where a setting was made. Ordered: a later one wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Nowhere: the built-in default.
    Default,
    /// In the configuration file.
    File {
        /// Which file.
        path: PathBuf,
        /// 1-based line.
        line: usize,
    },
    /// In this environment variable.
    Environment(String),
    /// By the host: a command-line flag, such as `--model`.
    Flag(String),
}

impl Origin {
    /// How near it is; a nearer one wins.
    fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File { .. } => 1,
            Self::Environment(_) => 2,
            Self::Flag(_) => 3,
        }
    }
}

/// The providers that a model names, or its targets.
fn providers_of(model: &Value) -> BTreeSet<String> {
    match model {
        Value::String(names) => {
            let provider = |name: &str| name.split(':').next().unwrap_or_default().trim().to_owned();
            names.split(',').map(provider).collect()
        }
        Value::List(targets) => targets.iter().flat_map(providers_of).collect(),
        Value::Map(target) => target.get("model").map(providers_of).unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => BTreeSet::new(),
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Self::Environment(variable) => write!(formatter, "environment {variable}"),
            Self::Flag(flag) => formatter.write_str(flag),
        }
    }
}

/// One option that was set, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// As given; not yet checked against the option's bounds.
    pub value: Value,
    /// Where.
    pub origin: Origin,
}

/// The options that were set, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    settings: BTreeMap<String, Setting>,
    /// Models and addresses that a nearer place replaced, by their option, the nearest last.
    replaced: BTreeMap<&'static str, Vec<Setting>>,
    file: Option<PathBuf>,
}

/// What is said of one provider's server: it goes with the model of its place.
const OF_ONE_SERVER: [&str; 5] = ["base_url", "api_key", "api_key_file", "headers", "proxy"];
/// Of these, what is for nobody at another address.
const OF_ONE_ADDRESS: [&str; 3] = ["api_key", "api_key_file", "headers"];

impl Config {
    /// The configuration of this process: its environment, its working directory, the user's configuration folder.
    pub fn load() -> Result<Self, ConfigError> {
        let user = dirs::config_dir().map(|folder| folder.join("cadenza").join("config.toml"));
        let places: Vec<PathBuf> = [Some(PathBuf::from("cadenza.toml")), user].into_iter().flatten().collect();
        Self::load_from(|name| std::env::var(name).ok(), &places)
    }

    /// The same with the environment and the places to look for a file given. The first file that exists is read; the
    /// one that `CADENZA_CONFIG` names must exist.
    pub fn load_from(environment: impl Fn(&str) -> Option<String>, places: &[PathBuf]) -> Result<Self, ConfigError> {
        let named = environment(FILE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let file = match named {
            Some(path) => Some(path),
            None => places.iter().find(|path| path.is_file()).cloned(),
        };
        let mut config = Self::default();
        if let Some(path) = file {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| ConfigError::Unreadable { path: path.clone(), message: error.to_string() })?;
            config.read_toml(&path, &text)?;
            config.file = Some(path);
        }
        for name in NAMES {
            let variable = format!("{PREFIX}{}", name.to_ascii_uppercase());
            if let Some(text) = environment(&variable).filter(|text| !text.is_empty()) {
                config.set(name, from_text(name, &text), Origin::Environment(variable));
            }
        }
        config.options()?;
        Ok(config)
    }

    /// Sets one option; it is checked by [`Self::options`].
    pub fn set(&mut self, name: &str, value: Value, origin: Origin) {
        if name == "model" && value == Value::Null {
            // None is what leaving it out is.
            return;
        }
        let before = self.settings.insert(name.to_owned(), Setting { value, origin });
        if let Some(known) = ["model", "base_url"].into_iter().find(|known| *known == name) {
            self.replaced.entry(known).or_default().extend(before);
        }
    }

    /// Takes away the model and what is said of its server: for a host that brings a model of its own.
    pub fn forget_server(&mut self) {
        self.settings.retain(|name, _| name != "model" && !OF_ONE_SERVER.contains(&name.as_str()));
    }

    /// Whether an option was said of a model of another provider, which a nearer place has replaced: a key of the
    /// configuration file is not sent to the vendor that a flag names.
    fn is_of_another_provider(&self, name: &str, setting: &Setting) -> bool {
        let Some(model) = self.settings.get("model").filter(|_| OF_ONE_SERVER.contains(&name)) else { return false };
        let is_nearer = model.origin.rank() > setting.origin.rank();
        // The model that held where the option was said, or came next.
        let mut models = self.replaced.get("model").into_iter().flatten();
        let theirs = models.find(|replaced| replaced.origin.rank() >= setting.origin.rank());
        is_nearer && theirs.is_some_and(|theirs| providers_of(&theirs.value) != providers_of(&model.value))
    }

    /// Whether an option was given together with an address that a nearer place has replaced: a key belongs to the
    /// address that it was given with. One that stands alone is for any.
    fn is_of_another_address(&self, name: &str, setting: &Setting) -> bool {
        let Some(address) = self.settings.get("base_url").filter(|_| OF_ONE_ADDRESS.contains(&name)) else {
            return false;
        };
        let mut addresses = self.replaced.get("base_url").into_iter().flatten();
        let theirs = addresses.find(|replaced| replaced.origin.rank() == setting.origin.rank());
        let bare = |address: &Value| address.as_str().map(|text| text.trim().trim_end_matches('/').to_owned());
        theirs.is_some_and(|theirs| bare(&theirs.value) != bare(&address.value))
    }

    /// The file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Where an option was set.
    pub fn origin(&self, name: &str) -> Origin {
        self.settings.get(name).map_or(Origin::Default, |setting| setting.origin.clone())
    }

    /// Everything that was set, by name.
    pub fn settings(&self) -> &BTreeMap<String, Setting> {
        &self.settings
    }

    /// Whether an option was set and holds: not when it was said of another provider or address than a nearer place then
    /// named.
    pub fn holds(&self, name: &str) -> bool {
        let elsewhere =
            |setting| self.is_of_another_provider(name, setting) || self.is_of_another_address(name, setting);
        self.settings.get(name).is_some_and(|setting| !elsewhere(setting))
    }

    /// Everything that holds, as one map of options.
    pub fn to_map(&self) -> Map {
        let held = self.settings.iter().filter(|(name, _)| self.holds(name));
        held.map(|(name, setting)| (name.clone(), setting.value.clone())).collect()
    }

    /// The options, checked; an error names the place.
    pub fn options(&self) -> Result<Options, ConfigError> {
        Options::from_map(&self.to_map()).map_err(|error| self.located(error))
    }

    /// An option's error with the place where the option was set.
    pub fn located(&self, error: OptionError) -> ConfigError {
        let name = match &error {
            OptionError::Unknown { name, .. } => name.split('.').next().unwrap_or_default(),
            OptionError::Invalid { name, .. } | OptionError::NotYet { name, .. } => name,
            OptionError::Configuration(_) => "",
        };
        ConfigError::Option { origin: self.origin(name), error }
    }

    /// The model that these options name, or that the defaults choose, and what decided it.
    pub fn resolve_model(&self) -> Result<Resolved, ConfigError> {
        let mut options = self.options()?;
        let model = options.model.take().unwrap_or_default();
        settings::resolve_model(&model, &options, None).map_err(|error| self.located(error))
    }

    fn read_toml(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let malformed = |at: usize, message: String| {
            let (line, column) = position(text, at);
            ConfigError::Malformed { path: path.to_owned(), line, column, message }
        };
        let table = DeTable::parse(text).map_err(|error| {
            malformed(error.span().map_or(0, |span| span.start), error.message().trim().replace('\n', "; "))
        })?;
        for (key, value) in table.get_ref() {
            let line = position(text, key.span().start).0;
            let value = from_toml(value).map_err(|(at, message)| malformed(at, message))?;
            self.set(key.get_ref(), value, Origin::File { path: path.to_owned(), line });
        }
        Ok(())
    }
}

/// The store that the environment names; else the user's own.
pub(crate) fn store_of_environment() -> Result<StoreOption, OptionError> {
    let Some(text) = std::env::var("CADENZA_STORE").ok().filter(|text| !text.is_empty()) else {
        return Ok(StoreOption::Default);
    };
    let named = Options::from_map(&Map::from([("store".to_owned(), text.into())]))?.store;
    Ok(named.unwrap_or(StoreOption::Default))
}

/// The value that a text stands for on the command line and in the environment: JSON where the option is not text
/// itself and the text parses, else the text.
pub fn from_text(name: &str, text: &str) -> Value {
    let structured = text.starts_with(['[', '{']);
    let plain = match name {
        // A path, unless it is one of the two words.
        "log" => !matches!(text, "true" | "false" | "null"),
        name => TEXT.contains(&name) && !structured,
    };
    if plain {
        return text.into();
    }
    Value::from_json(text).unwrap_or_else(|_| text.into())
}

/// A value, or the offset and the reason why it has none.
fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Value, (usize, String)> {
    let refused = |message: String| (value.span().start, message);
    Ok(match value.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(Value::Int)
            .map_err(|_| refused(format!("{} does not fit in 64 bits with a sign", number.as_str())))?,
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .map(Value::Float)
            .map_err(|_| refused(format!("{} is not a number", number.as_str())))?,
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(_) => return Err(refused("no option takes a date; write it as text, in quotes".to_owned())),
        DeValue::Array(items) => Value::List(items.iter().map(from_toml).collect::<Result<_, _>>()?),
        DeValue::Table(table) => Value::Map(
            table
                .iter()
                .map(|(key, item)| Ok((key.get_ref().to_string(), from_toml(item)?)))
                .collect::<Result<_, _>>()?,
        ),
    })
}

/// 1-based line and column, in characters, of a byte offset.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(at.min(text.len()))];
    let line_start = before.rfind('\n').map_or(0, |index| index + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Why there is no configuration. Every message names the file and line, the variable or the flag.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration file {}: {message}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// The file is not TOML.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// 1-based.
        line: usize,
        /// 1-based, in characters.
        column: usize,
        /// The parser's words.
        message: String,
    },
    /// An option is unknown or out of bounds.
    #[error("{origin}: {error}")]
    Option {
        /// Where it was set.
        origin: Origin,
        /// What is wrong with it.
        #[source]
        error: OptionError,
    },
}

impl From<ConfigError> for OptionError {
    /// For hosts that build a runtime from the configuration: the place becomes part of the message.
    fn from(error: ConfigError) -> Self {
        Self::Configuration(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cadenza.toml");
        std::fs::write(&path, text).unwrap();
        let lookup =
            |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Config::load_from(lookup, &[folder.path().join("missing.toml"), path])
    }

    fn message(text: &str, environment: &[(&str, &str)]) -> String {
        load(text, environment).unwrap_err().to_string()
    }

    #[test]
    fn kc_cf2_a_flag_beats_the_environment_and_that_the_file() {
        let file = "max_calls = 7\ndebug = true\n\n[failure_policy]\non_error = \"return_error\"\n";
        let mut config = load(file, &[("CADENZA_MAX_CALLS", "9"), ("CADENZA_LOG", "calls.jsonl")]).unwrap();
        assert_eq!(config.settings()["max_calls"].value, Value::Int(9));
        assert_eq!(config.origin("max_calls").to_string(), "environment CADENZA_MAX_CALLS");
        assert!(config.origin("debug").to_string().ends_with("cadenza.toml:2"));
        assert!(config.origin("failure_policy").to_string().ends_with("cadenza.toml:4"));
        assert_eq!(config.origin("language"), Origin::Default);
        config.set("max_calls", 3.into(), Origin::Flag("--option max_calls".into()));
        assert_eq!(config.options().unwrap().max_calls, Some(3));
    }

    #[test]
    fn a_key_stays_with_the_provider_that_it_was_given_for() {
        let file = "model = \"openai:a\"\napi_key = \"sk-of-the-file\"\nbase_url = \"http://a/v1\"\n";
        let key = |config: &Config| {
            let target = config.options().unwrap().target;
            (target.api_key.map(|key| key.expose().to_owned()), target.base_url)
        };
        let given = (Some("sk-of-the-file".to_owned()), Some("http://a/v1".to_owned()));
        assert_eq!(key(&load(file, &[]).unwrap()), given);
        assert_eq!(key(&load(file, &[("CADENZA_MODEL", "openai:b")]).unwrap()), given);
        assert_eq!(key(&load(file, &[("CADENZA_MODEL", "anthropic:b")]).unwrap()), (None, None));
        // Said nearer, or of no model at all: it is meant.
        let nearer = [("CADENZA_MODEL", "anthropic:b"), ("CADENZA_API_KEY", "sk-nearer")];
        assert_eq!(key(&load(file, &nearer).unwrap()).0.as_deref(), Some("sk-nearer"));
        let mut config = load("api_key = \"sk-of-the-file\"\n", &[]).unwrap();
        config.set("model", "anthropic:b".into(), Origin::Flag("--model".into()));
        assert_eq!(key(&config).0.as_deref(), Some("sk-of-the-file"));
    }

    #[test]
    fn a_key_stays_with_the_address_that_it_was_given_with() {
        let file = "model = \"openai-compatible:m\"\nbase_url = \"http://a/v1\"\napi_key = \"sk-of-the-file\"\n\
                    [headers]\nx-team = \"t\"\n";
        let held = |config: &Config| (config.holds("api_key"), config.holds("headers"));
        assert_eq!(held(&load(file, &[]).unwrap()), (true, true));
        assert_eq!(held(&load(file, &[("CADENZA_BASE_URL", "http://a/v1/")]).unwrap()), (true, true));
        let elsewhere = [("CADENZA_BASE_URL", "http://b/v1")];
        assert_eq!(held(&load(file, &elsewhere).unwrap()), (false, false));
        let mut config = load(file, &[]).unwrap();
        config.set("base_url", "http://b/v1".into(), Origin::Flag("--base-url".into()));
        assert_eq!(held(&config), (false, false));
        // Said nearer than the address that was replaced, or without one: it is meant.
        config.set("api_key", "sk-nearer".into(), Origin::Flag("argument".into()));
        assert_eq!(held(&config), (true, false));
        let alone = "model = \"openai-compatible:m\"\napi_key = \"sk-of-the-file\"\n";
        assert_eq!(held(&load(alone, &elsewhere).unwrap()), (true, false));
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        for (text, expected) in [
            ("debug = true\nmax_calls =\n", "cadenza.toml:2:12: "),
            ("\nmax_cals = 3\n", "cadenza.toml:2: unknown option \"max_cals\"; did you mean \"max_calls\"?"),
            ("max_calls = 0\n", "cadenza.toml:1: option \"max_calls\": expected a whole number from 1"),
            ("a = 1\na = 2\n", "cadenza.toml:2:1: "),
            ("purpose = 1979-05-27\n", "cadenza.toml:1:11: no option takes a date"),
            ("max_calls = 99999999999999999999\n", "cadenza.toml:1:13: 99999999999999999999 does not fit in 64 bits"),
        ] {
            let message = message(text, &[]);
            assert!(message.contains(expected), "{text:?}: {message}");
        }
        assert!(message("", &[("CADENZA_MAX_CALLS", "many")]).starts_with("environment CADENZA_MAX_CALLS: option"));
    }

    #[test]
    fn the_named_file_must_exist_and_the_others_need_not() {
        let lookup = |name: &str| (name == "CADENZA_CONFIG").then(|| "/nonexistent/c.toml".to_owned());
        let error = Config::load_from(lookup, &[]).unwrap_err().to_string();
        assert!(error.starts_with("configuration file /nonexistent/c.toml: "), "{error}");
        let none = Config::load_from(|_| None, &["/nonexistent/c.toml".into()]).unwrap();
        assert_eq!((none.file(), none.to_map()), (None, Map::new()));
    }

    #[test]
    fn text_options_stay_text_and_others_are_read_as_json() {
        for (name, text, expected) in [
            ("name", "123", Value::from("123")),
            ("model", "openai:gpt", "openai:gpt".into()),
            ("model", r#"["a:b","c:d"]"#, Value::List(vec!["a:b".into(), "c:d".into()])),
            ("log", "true", true.into()),
            ("log", "17", "17".into()),
            ("max_calls", "17", 17.into()),
            ("debug", "yes", "yes".into()),
        ] {
            assert_eq!(from_text(name, text), expected, "{name}={text}");
        }
    }
}
