//! Options that say how a model is reached and asked, under the names of product.md section 2: for a runtime, for a
//! provider (`providers`), or for one target of a list.

use std::collections::BTreeMap;

use super::options::{OptionError, invalid, nearest, one_of, text, whole};
use crate::provider::resolve::PROVIDERS;
use crate::provider::secret::keeps_keys;
use crate::provider::target::{DEFAULT_THINKING_TOKENS, Entries, Field, TargetOptions};
use crate::provider::{ModelSpec, Output, Secret};
use crate::value::{Map, Value};

/// Their names.
pub const NAMES: [&str; 19] = [
    "base_url",
    "api_key",
    "api_key_file",
    "output",
    "stream",
    "headers",
    "proxy",
    "context_size",
    "threads",
    "gpu_layers",
    "temperature",
    "top_p",
    "repeat_penalty",
    "seed",
    "max_output_tokens",
    "reasoning_effort",
    "extended_thinking",
    "extra",
    "force_params",
];

/// Those of them for which null is no word at all. For the others it takes away what a farther place says.
const UNSET_BY_NULL: [&str; 9] = [
    "base_url",
    "api_key",
    "api_key_file",
    "output",
    "stream",
    "context_size",
    "threads",
    "gpu_layers",
    "force_params",
];

/// Reads one of [`NAMES`]; false for any other name.
pub(super) fn read(options: &mut TargetOptions, name: &str, value: &Value) -> Result<bool, OptionError> {
    // Whoever passes on what may be unset, such as a variable of the environment, says nothing with it.
    if *value == Value::Null && UNSET_BY_NULL.contains(&name) {
        return Ok(true);
    }
    let params = &mut options.params;
    match name {
        "base_url" => options.base_url = Some(text("base_url", value)?),
        "api_key" => {
            let key = Secret::new(&text("api_key", value)?);
            options.api_key = Some(key.ok_or_else(|| invalid("api_key", "a key that is not blank", value))?);
        }
        "api_key_file" => options.api_key_file = Some(text("api_key_file", value)?.into()),
        "output" => {
            options.output = Some(one_of("output", value, &Output::ALL.map(|output| (output.as_str(), output)))?);
        }
        "stream" => options.stream = Some(flag("stream", value)?),
        "headers" => options.headers = headers(value)?,
        "proxy" => {
            options.proxy = match value {
                Value::Null | Value::Bool(false) => Some(None),
                other => Some(Secret::unlisted(&text("proxy", other)?)),
            };
        }
        "context_size" => options.context_size = Some(whole("context_size", value, 1, 1 << 24)?),
        "threads" => options.threads = Some(whole("threads", value, 1, 1024)?),
        "gpu_layers" => options.gpu_layers = Some(whole("gpu_layers", value, 0, 9999)?),
        "temperature" => params.temperature = number("temperature", value, 0.0, 10.0)?,
        "top_p" => params.top_p = number("top_p", value, 0.0, 1.0)?,
        "repeat_penalty" => params.repeat_penalty = number("repeat_penalty", value, 0.0, 10.0)?,
        "seed" => params.seed = or_null(value, |value| whole("seed", value, i64::MIN, i64::MAX))?,
        "max_output_tokens" => {
            params.max_output_tokens = or_null(value, |value| whole("max_output_tokens", value, 1, 1 << 30))?;
        }
        "reasoning_effort" => params.reasoning_effort = or_null(value, |value| text("reasoning_effort", value))?,
        "extended_thinking" => {
            params.extended_thinking = match value {
                Value::Null | Value::Bool(false) => Some(None),
                Value::Bool(true) => Some(Some(DEFAULT_THINKING_TOKENS)),
                other => Some(Some(whole("extended_thinking", other, 1, 1 << 30)?)),
            };
        }
        "extra" => match value {
            Value::Null => params.extra = Entries::none(),
            Value::Map(fields) => {
                let given = |value: &Value| (*value != Value::Null).then(|| value.clone());
                let entries: BTreeMap<_, _> = fields.iter().map(|(name, value)| (name.clone(), given(value))).collect();
                params.extra = entries.into();
            }
            other => return Err(invalid("extra", "a map of fields for the wire", other)),
        },
        "force_params" => params.force_params = Some(flag("force_params", value)?),
        _other_option => return Ok(false),
    }
    Ok(true)
}

/// `providers`: a map of these options for each provider's name.
pub(super) fn providers(value: &Value) -> Result<BTreeMap<String, TargetOptions>, OptionError> {
    let expected = || OptionError::Invalid {
        name: "providers",
        message: "expected a map of options for each provider, such as {\"openai\": {\"temperature\": 0}}".to_owned(),
    };
    match value {
        Value::Null => Ok(BTreeMap::new()),
        Value::Map(providers) => {
            let mut read = BTreeMap::new();
            for (provider, options) in providers {
                let Value::Map(options) = options else { return Err(expected()) };
                if !PROVIDERS.contains(&provider.as_str()) {
                    let message = format!("no provider {provider:?}; {}", meant(provider, &PROVIDERS));
                    return Err(OptionError::Invalid { name: "providers", message });
                }
                read.insert(provider.clone(), of_map("providers", options, &[])?);
            }
            Ok(read)
        }
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_) => Err(expected()),
    }
}

/// One target of a list: its name, or a map with `model` and options of its own.
pub(super) fn target(value: &Value) -> Result<ModelSpec, OptionError> {
    match value {
        Value::String(name) if !name.trim().is_empty() => Ok(ModelSpec::Name(name.clone())),
        Value::Map(fields) => {
            let model = fields.get("model").and_then(Value::as_str).filter(|name| !name.trim().is_empty());
            let model = model.ok_or_else(|| OptionError::Invalid {
                name: "model",
                message: "a target that is a map names its model: {\"model\": \"provider:name\", …}".to_owned(),
            })?;
            let options = of_map("model", fields, &["model"])?;
            Ok(ModelSpec::Target { name: model.to_owned(), options: Box::new(options) })
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_) => {
            Err(invalid("model", "\"provider:name\", a map with `model`, a list of them, or a callable", value))
        }
    }
}

fn of_map(of: &'static str, fields: &Map, besides: &[&str]) -> Result<TargetOptions, OptionError> {
    let mut options = TargetOptions::default();
    for (name, value) in fields.iter().filter(|(name, _)| !besides.contains(&name.as_str())) {
        if !read(&mut options, name, value)? {
            let message = format!("a target has no option {name:?}; {}", meant(name, &NAMES));
            return Err(OptionError::Invalid { name: of, message });
        }
    }
    Ok(options)
}

/// What was meant, if something near is there; else all there is.
fn meant(name: &str, known: &[&'static str]) -> String {
    let all = || format!("there are {}", known.join(", "));
    nearest(name, known).map_or_else(all, |near| format!("did you mean {near:?}?"))
}

fn headers(value: &Value) -> Result<Entries<Secret>, OptionError> {
    // Values may be keys, so none is repeated in a message.
    let refused = |why: &str| OptionError::Invalid { name: "headers", message: why.to_owned() };
    match value {
        Value::Null => Ok(Entries::none()),
        Value::Map(headers) => headers
            .iter()
            .map(|(name, value)| match value {
                Value::Null => Ok((name.to_ascii_lowercase(), None)),
                Value::String(text) => match header_text(name, text) {
                    Some(secret) => Ok((name.to_ascii_lowercase(), Some(secret))),
                    None => Err(refused(&format!("the value of {name:?} is blank; write null to leave it out"))),
                },
                Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => {
                    Err(refused(&format!("the value of {name:?} must be text")))
                }
            })
            .collect::<Result<BTreeMap<_, _>, _>>()
            .map(Entries::from),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_) => {
            Err(refused("expected a map of names and texts"))
        }
    }
}

/// What may be a key is looked for in everything that is written; what says who asks is an ordinary word.
fn header_text(name: &str, text: &str) -> Option<Secret> {
    if !keeps_keys(name) {
        return Secret::unlisted(text);
    }
    // `Bearer KEY`: the key is looked for also where it stands alone.
    if let Some((_scheme, key)) = text.trim().split_once(' ') {
        Secret::new(key);
    }
    Secret::new(text)
}

fn flag(name: &'static str, value: &Value) -> Result<bool, OptionError> {
    value.as_bool().ok_or_else(|| invalid(name, "true or false", value))
}

fn number(name: &'static str, value: &Value, least: f64, most: f64) -> Result<Field<f64>, OptionError> {
    or_null(value, |value| {
        let number = value.as_float().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| invalid(name, &format!("a number from {least} to {most}"), value))
    })
}

fn or_null<T>(value: &Value, read: impl FnOnce(&Value) -> Result<T, OptionError>) -> Result<Field<T>, OptionError> {
    if *value == Value::Null { Ok(Some(None)) } else { read(value).map(|value| Some(Some(value))) }
}
