//! Options: what users may set, per runtime, per agent and per delegate, under the names of product.md section 2.
//!
//! Every surface (Python, Lua, Rhai, scenario files, the configuration file) hands its options over as one map; the
//! names, types and bounds are known here alone. An unknown name is refused with a suggestion, and no option is
//! accepted and ignored: those that a later version will honour are refused with a sentence that says so.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::accounting::{Cost, Prices};
use crate::contract::delegation::{self, ContractFieldError, ContractSource, DelegationContract};
use crate::log::LogSink;
use crate::outcome::Durability;
use crate::program::{Isolation, Language};
use crate::provider::ModelSpec;
use crate::provider::rotation::MAX_REQUESTS;
use crate::provider::target::TargetOptions;
use crate::runtime::target_options;
use crate::runtime::watch::Watcher;
use crate::store::Store;
use crate::tools::Tool;
use crate::value::{Map, Value};

/// Where log lines go.
#[derive(Clone, Debug)]
pub enum LogOption {
    /// Nowhere.
    Off,
    /// `calls.jsonl` under the user's state directory.
    DefaultPath,
    /// This file.
    Path(PathBuf),
    /// A sink that the host made.
    Sink(Arc<dyn LogSink>),
}

/// Where things outlive the process.
#[derive(Clone, Debug)]
pub enum StoreOption {
    /// Nowhere.
    Memory,
    /// In the user's own file; in memory where that cannot be. See [`crate::store::default_path`].
    Default,
    /// In a SQLite file.
    Path(PathBuf),
    /// In a store that the host made.
    Store(Arc<dyn Store>),
}

/// Who sees programs as they are written.
#[derive(Clone, Debug)]
pub enum VerboseOption {
    /// Nobody.
    Off,
    /// Whoever reads standard error.
    Stderr,
    /// Somebody whom the host brings.
    Watcher(Arc<dyn Watcher>),
}

/// Whether kept programs run again (product.md section 8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// When the evidence says that the program generalises.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always, and nothing else: only programs of the lock file run, and no model is asked.
    Locked,
}

impl Reuse {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Off, Self::Locked];

    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Locked => "locked",
        }
    }
}

/// A set of options; `None` leaves the setting as it was.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `model`.
    pub model: Option<ModelSpec>,
    /// How a model is reached and asked: `base_url`, `api_key`, `temperature` and the others of
    /// [`target_options::NAMES`].
    pub target: TargetOptions,
    /// `providers`: the same for each provider's name; nearer than [`Self::target`], farther than a target's own.
    pub providers: BTreeMap<String, TargetOptions>,
    /// `prices`, by model.
    pub prices: Option<Arc<Prices>>,
    /// `language`.
    pub language: Option<Language>,
    /// `log`.
    pub log: Option<LogOption>,
    /// `debug`.
    pub debug: Option<bool>,
    /// `verbose`.
    pub verbose: Option<VerboseOption>,
    /// `max_generation_attempts`, 1 to 16. Of these, at most three answer a reply that was no program (V9).
    pub max_generation_attempts: Option<u32>,
    /// `execution_repairs`, 0 to 3.
    pub execution_repairs: Option<u32>,
    /// `provider_timeout_seconds`.
    pub provider_timeout: Option<Duration>,
    /// `program_timeout_seconds`: CPU time.
    pub program_timeout: Option<Duration>,
    /// `max_instructions`: safepoints.
    pub max_instructions: Option<u64>,
    /// `max_memory_bytes`.
    pub max_memory_bytes: Option<usize>,
    /// `isolation`.
    pub isolation: Option<Isolation>,
    /// `call_timeout_seconds`.
    pub call_timeout: Option<Duration>,
    /// `max_delegation_depth`, 0 to 64.
    pub max_delegation_depth: Option<u32>,
    /// `max_calls`.
    pub max_calls: Option<u32>,
    /// `max_tokens`; `Some(None)` lifts the limit.
    pub max_tokens: Option<Option<u64>>,
    /// `max_cost`; `Some(None)` lifts the limit.
    pub max_cost: Option<Option<Cost>>,
    /// The delegation contract's fields, merged.
    pub contract: Option<Arc<DelegationContract>>,
    /// `tools`.
    pub tools: Option<Vec<Arc<Tool>>>,
    /// `reuse`.
    pub reuse: Option<Reuse>,
    /// `namespace`.
    pub namespace: Option<Arc<str>>,
    /// `logging`: false switches the log off for this agent (scenario files).
    pub logging: Option<bool>,
    /// `store`.
    pub store: Option<StoreOption>,
    /// `record`: the cassette to which what the model is asked and answers is added; see [`crate::provider::cassette`].
    pub record: Option<PathBuf>,
    /// `durability`.
    pub durability: Option<Durability>,
    /// `name`: of this agent alone, never inherited.
    pub name: Option<String>,
}

/// Why an option is refused. The message says what to write instead.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("unknown option {name:?}{}", suggestion.as_ref().map(|best| format!("; did you mean {best:?}?")).unwrap_or_else(|| format!("; options are: {}", NAMES.join(", "))))]
    Unknown {
        /// As written.
        name: String,
        /// The nearest option, if one is near.
        suggestion: Option<&'static str>,
    },
    /// Wrong type or out of bounds.
    #[error("option {name:?}: {message}")]
    Invalid {
        /// Which option.
        name: &'static str,
        /// What was expected and what came.
        message: String,
    },
    /// Known, but not in this version.
    #[error("option {name:?} is not available in this version: {message}")]
    NotYet {
        /// Which option.
        name: &'static str,
        /// What to do meanwhile.
        message: &'static str,
    },
    /// The configuration that options come from; the message names the place.
    #[error("{0}")]
    Configuration(String),
}

impl From<ContractFieldError> for OptionError {
    fn from(error: ContractFieldError) -> Self {
        Self::Invalid { name: error.field, message: error.message }
    }
}

/// Every option name, for suggestions, completion and documentation.
pub const NAMES: [&str; OWN.len() + target_options::NAMES.len()] = {
    let mut names = [OWN[0]; OWN.len() + target_options::NAMES.len()];
    let of_targets = target_options::NAMES.len();
    let mut at = 1;
    while at < names.len() {
        names[at] = if at <= of_targets { target_options::NAMES[at - 1] } else { OWN[at - of_targets] };
        at += 1;
    }
    names
};

/// Those that are no target's: the model first, which the target's options follow.
const OWN: [&str; 33] = [
    "model",
    "providers",
    "prices",
    "language",
    "log",
    "logging",
    "debug",
    "verbose",
    "max_generation_attempts",
    "execution_repairs",
    "provider_timeout_seconds",
    "program_timeout_seconds",
    "max_instructions",
    "max_memory_bytes",
    "isolation",
    "call_timeout_seconds",
    "max_delegation_depth",
    "max_calls",
    "max_tokens",
    "max_cost",
    "purpose",
    "deliverable",
    "acceptance",
    "failure_policy",
    "intent_signature",
    "delegation_contract",
    "tools",
    "reuse",
    "store",
    "record",
    "name",
    "namespace",
    "durability",
];

impl Options {
    /// Whether they change nothing, so that settings can be shared.
    pub fn is_empty(&self) -> bool {
        let Self {
            model,
            target,
            providers,
            prices,
            language,
            log,
            debug,
            verbose,
            max_generation_attempts,
            execution_repairs,
            provider_timeout,
            program_timeout,
            max_instructions,
            max_memory_bytes,
            isolation,
            call_timeout,
            max_delegation_depth,
            max_calls,
            max_tokens,
            max_cost,
            contract,
            tools,
            reuse,
            namespace,
            logging,
            store,
            record,
            durability,
            name,
        } = self;
        model.is_none()
            && target.is_empty()
            && providers.is_empty()
            && prices.is_none()
            && language.is_none()
            && log.is_none()
            && debug.is_none()
            && verbose.is_none()
            && max_generation_attempts.is_none()
            && execution_repairs.is_none()
            && provider_timeout.is_none()
            && program_timeout.is_none()
            && max_instructions.is_none()
            && max_memory_bytes.is_none()
            && isolation.is_none()
            && call_timeout.is_none()
            && max_delegation_depth.is_none()
            && max_calls.is_none()
            && max_tokens.is_none()
            && max_cost.is_none()
            && contract.is_none()
            && tools.is_none()
            && reuse.is_none()
            && namespace.is_none()
            && logging.is_none()
            && store.is_none()
            && record.is_none()
            && durability.is_none()
            && name.is_none()
    }

    /// Reads options from a map of plain data. `model` objects, `tools` and `log` callables have no data form: a
    /// binding takes them out of the map and sets the fields itself.
    pub fn from_map(map: &Map) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let mut fields = Map::new();
        let mut source = ContractSource::None;
        if let Some(value) = map.get("delegation_contract") {
            if let Value::Map(given) = value {
                if let Some(unknown) = given.keys().find(|key| !delegation::FIELDS.contains(&key.as_str())) {
                    return Err(OptionError::Unknown {
                        name: format!("delegation_contract.{unknown}"),
                        suggestion: nearest(unknown, &delegation::FIELDS),
                    });
                }
                fields.extend(given.clone());
                source = ContractSource::Hash;
            } else if *value != Value::Null {
                return Err(invalid("delegation_contract", "a map of its fields", value));
            }
        }
        for (name, value) in map {
            if let Some(field) = delegation::FIELDS.iter().find(|field| *field == name) {
                if *value == Value::Null {
                    continue;
                }
                fields.insert((*field).to_owned(), value.clone());
                source = match source {
                    ContractSource::None | ContractSource::Fields => ContractSource::Fields,
                    ContractSource::Hash | ContractSource::Merged => ContractSource::Merged,
                };
            } else {
                options.read(name, value)?;
            }
        }
        if source != ContractSource::None {
            options.contract = Some(Arc::new(DelegationContract::from_map(&fields, source)?));
        }
        Ok(options)
    }

    fn read(&mut self, name: &str, value: &Value) -> Result<(), OptionError> {
        match name {
            // None is what leaving it out is.
            "model" if *value == Value::Null => {}
            "model" => self.model = Some(model_spec(value)?),
            name if target_options::read(&mut self.target, name, value)? => {}
            "providers" => self.providers = target_options::providers(value)?,
            "prices" => {
                let prices =
                    Prices::from_value(value).map_err(|message| OptionError::Invalid { name: "prices", message });
                self.prices = Some(Arc::new(prices?));
            }
            "language" => {
                self.language = Some(one_of("language", value, &[("lua", Language::Lua), ("rhai", Language::Rhai)])?);
            }
            "log" => {
                self.log = Some(match value {
                    Value::Null | Value::Bool(false) => LogOption::Off,
                    Value::Bool(true) => LogOption::DefaultPath,
                    Value::String(path) if !path.is_empty() => LogOption::Path(path.into()),
                    other => return Err(invalid("log", "a path, true, false or a callable", other)),
                });
            }
            "logging" => {
                self.logging = Some(match value {
                    Value::Bool(on) => *on,
                    // The words of scenario files.
                    Value::String(word) if word == "enabled" => true,
                    Value::String(word) if word == "disabled" => false,
                    other => return Err(invalid("logging", "true or false", other)),
                });
            }
            "debug" => self.debug = Some(value.as_bool().ok_or_else(|| invalid("debug", "true or false", value))?),
            "verbose" => {
                let verbose = value.as_bool().ok_or_else(|| invalid("verbose", "true or false", value))?;
                self.verbose = Some(if verbose { VerboseOption::Stderr } else { VerboseOption::Off });
            }
            "max_generation_attempts" => {
                self.max_generation_attempts = Some(whole("max_generation_attempts", value, 1, MAX_REQUESTS.into())?)
            }
            "execution_repairs" => self.execution_repairs = Some(whole("execution_repairs", value, 0, 3)?),
            "provider_timeout_seconds" => self.provider_timeout = Some(seconds("provider_timeout_seconds", value)?),
            "program_timeout_seconds" => self.program_timeout = Some(seconds("program_timeout_seconds", value)?),
            "max_instructions" => self.max_instructions = Some(whole("max_instructions", value, 1, 1 << 50)?),
            "max_memory_bytes" => {
                self.max_memory_bytes = Some(whole("max_memory_bytes", value, 1 << 20, 1 << 34)?);
            }
            "isolation" => {
                self.isolation =
                    Some(one_of("isolation", value, &[("shared", Isolation::Shared), ("fresh", Isolation::Fresh)])?);
            }
            "call_timeout_seconds" => self.call_timeout = Some(seconds("call_timeout_seconds", value)?),
            "max_delegation_depth" => self.max_delegation_depth = Some(whole("max_delegation_depth", value, 0, 64)?),
            "max_calls" => self.max_calls = Some(whole("max_calls", value, 1, 1_000_000)?),
            "max_tokens" => {
                self.max_tokens = Some(match value {
                    Value::Null => None,
                    other => Some(whole("max_tokens", other, 1, 1 << 50)?),
                });
            }
            "max_cost" => {
                self.max_cost = Some(match value {
                    Value::Null => None,
                    other => Some(
                        other
                            .as_float()
                            .and_then(Cost::from_usd)
                            .filter(|cost| *cost > Cost::default())
                            .ok_or_else(|| invalid("max_cost", "an amount of US dollars above 0", other))?,
                    ),
                });
            }
            "delegation_contract" => {}
            "tools" if *value == Value::Null || *value == Value::List(Vec::new()) => self.tools = Some(Vec::new()),
            "tools" => return Err(invalid("tools", "a list of functions of the host language", value)),
            "reuse" => self.reuse = Some(one_of("reuse", value, &Reuse::ALL.map(|reuse| (reuse.as_str(), reuse)))?),
            "namespace" => {
                self.namespace = Some(match value {
                    Value::String(text) if !text.is_empty() && text.len() <= 128 => text.as_str().into(),
                    other => return Err(invalid("namespace", "1 to 128 bytes of text", other)),
                });
            }
            "store" => self.store = Some(store_option(value)?),
            "record" => {
                self.record = match value {
                    Value::Null => None,
                    Value::String(path) if !path.trim().is_empty() => Some(path.into()),
                    other => return Err(invalid("record", "the path of a cassette", other)),
                };
            }
            "durability" => {
                self.durability = match value {
                    Value::Null => None,
                    other => Some(one_of(
                        "durability",
                        other,
                        &[Durability::Strict, Durability::Batch, Durability::Memory]
                            .map(|level| (level.as_str(), level)),
                    )?),
                };
            }
            "name" => {
                self.name = match value {
                    Value::Null => None,
                    Value::String(name) if !name.trim().is_empty() && name.len() <= 128 => Some(name.clone()),
                    other => return Err(invalid("name", "1 to 128 bytes of text", other)),
                };
            }
            "tier" => {
                return Err(OptionError::NotYet {
                    name: "tier",
                    message: "governance tiers come with the policy contract; leave it out",
                });
            }
            unknown => {
                return Err(OptionError::Unknown { name: unknown.to_owned(), suggestion: nearest(unknown, &NAMES) });
            }
        }
        Ok(())
    }
}

/// The nearest of `names`, if it is near enough to be meant.
pub fn nearest(name: &str, names: &[&'static str]) -> Option<&'static str> {
    names
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .filter(|(similarity, _)| *similarity > 0.82)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

fn store_option(value: &Value) -> Result<StoreOption, OptionError> {
    match value {
        Value::Null => Ok(StoreOption::Memory),
        Value::String(text) if text == ":memory:" => Ok(StoreOption::Memory),
        Value::String(text) if text.contains("://") => Err(OptionError::NotYet {
            name: "store",
            message: "stores are SQLite files so far; name a path, or write \":memory:\"",
        }),
        Value::String(path) if !path.trim().is_empty() => Ok(StoreOption::Path(path.into())),
        other => Err(invalid("store", "a path or \":memory:\"", other)),
    }
}

fn model_spec(value: &Value) -> Result<ModelSpec, OptionError> {
    let expected = || invalid("model", "\"provider:name\", a list of them, or a callable", value);
    match value {
        Value::String(name) if !name.trim().is_empty() => Ok(ModelSpec::Name(name.clone())),
        Value::List(targets) if !targets.is_empty() => {
            targets.iter().map(target_options::target).collect::<Result<_, _>>().map(ModelSpec::Targets)
        }
        Value::Map(_) => target_options::target(value),
        Value::Null | Value::String(_) | Value::List(_) | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
            Err(expected())
        }
    }
}

pub(super) fn text(name: &'static str, value: &Value) -> Result<String, OptionError> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned).ok_or_else(|| invalid(name, "text", value))
}

pub(super) fn invalid(name: &'static str, expected: &str, value: &Value) -> OptionError {
    let mut shown = value.to_json();
    if shown.len() > 80 {
        let cut = (0..=80).rev().find(|index| shown.is_char_boundary(*index)).unwrap_or(0);
        shown.truncate(cut);
        shown.push('…');
    }
    let shown = if matches!(name, "api_key" | "proxy" | "headers") { "something else".to_owned() } else { shown };
    OptionError::Invalid { name, message: format!("expected {expected}, got {shown}") }
}

pub(super) fn one_of<T: Copy>(name: &'static str, value: &Value, choices: &[(&str, T)]) -> Result<T, OptionError> {
    let chosen = value.as_str().and_then(|text| choices.iter().find(|(choice, _)| *choice == text));
    chosen.map(|(_, chosen)| *chosen).ok_or_else(|| {
        let choices: Vec<_> = choices.iter().map(|(choice, _)| format!("{choice:?}")).collect();
        invalid(name, &choices.join(" or "), value)
    })
}

pub(super) fn whole<T: TryFrom<i64>>(
    name: &'static str,
    value: &Value,
    least: i64,
    most: i64,
) -> Result<T, OptionError> {
    let number = match value {
        Value::Int(_) | Value::Float(_) => value.as_int(),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::List(_) | Value::Map(_) => None,
    };
    number
        .filter(|number| (least..=most).contains(number))
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| invalid(name, &format!("a whole number from {least} to {most}"), value))
}

fn seconds(name: &'static str, value: &Value) -> Result<Duration, OptionError> {
    value
        .as_float()
        .filter(|number| *number > 0.0 && *number <= 86_400.0)
        .map(Duration::from_secs_f64)
        .filter(|duration| *duration >= Duration::from_millis(1))
        .ok_or_else(|| invalid(name, "a number of seconds from 0.001 to 86400", value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Options, OptionError> {
        let Value::Map(map) = Value::from_json(json).unwrap() else { panic!("a map") };
        Options::from_map(&map)
    }

    #[test]
    fn unknown_names_come_with_a_suggestion() {
        let error = read(r#"{"max_generation_attempt": 2}"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown option \"max_generation_attempt\"; did you mean \"max_generation_attempts\"?"
        );
        assert!(read(r#"{"zzz": 2}"#).unwrap_err().to_string().contains("options are: model, base_url"));
    }

    #[test]
    fn types_and_bounds_are_checked_with_what_came() {
        for (json, expected) in [
            (r#"{"language":"ruby"}"#, r#"option "language": expected "lua" or "rhai", got "ruby""#),
            (r#"{"max_calls":0}"#, r#"option "max_calls": expected a whole number from 1 to 1000000, got 0"#),
            (r#"{"logging":0}"#, r#"option "logging": expected true or false, got 0"#),
            (r#"{"debug":"yes"}"#, r#"option "debug": expected true or false, got "yes""#),
            (r#"{"provider_timeout_seconds":0}"#, "expected a number of seconds from 0.001 to 86400, got 0"),
            (r#"{"store":"postgres://x"}"#, r#"option "store" is not available in this version"#),
            (r#"{"store":5}"#, r#"option "store": expected a path or ":memory:", got 5"#),
            (r#"{"durability":"sometimes"}"#, r#"expected "strict" or "batch" or "memory", got "sometimes""#),
            (r#"{"name":" "}"#, r#"option "name": expected 1 to 128 bytes of text"#),
        ] {
            let message = read(json).unwrap_err().to_string();
            assert!(message.contains(expected), "{json}: {message}");
        }
    }

    #[test]
    fn ac_17_the_contract_source_says_how_it_was_given() {
        for (json, expected) in [
            (r#"{"purpose":"x"}"#, Some(ContractSource::Fields)),
            (r#"{"delegation_contract":{"purpose":"x"}}"#, Some(ContractSource::Hash)),
            (r#"{"delegation_contract":{"purpose":"x"},"acceptance":["short"]}"#, Some(ContractSource::Merged)),
            (r#"{"purpose":null}"#, None),
        ] {
            assert_eq!(read(json).unwrap().contract.map(|contract| contract.source()), expected, "{json}");
        }
    }

    #[test]
    fn every_published_name_is_read() {
        for name in NAMES {
            let map = Map::from([(name.to_owned(), Value::Null)]);
            assert!(!matches!(Options::from_map(&map), Err(OptionError::Unknown { .. })), "{name}");
        }
    }
}
