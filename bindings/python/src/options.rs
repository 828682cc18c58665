//! Options as Python passes them: callables are taken out here, everything else is plain data for the core to judge.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use cadenza_core::log::{default_path, problem, refusal};
use cadenza_core::provider::ModelSpec;
use cadenza_core::runtime::config::{Config, Origin};
use cadenza_core::runtime::options::{LogOption, OptionError, Options, VerboseOption};
use cadenza_core::value::{Map, Value};

use crate::convert::{to_value, utf8};
use crate::errors::{option_error, option_error_text, warn};
use crate::provider::CallableModel;
use crate::{log, tools, watch};

/// Reads keyword options. Unknown names, wrong types and bounds are refused by the core, before any model is asked.
pub(crate) fn read(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let (data, objects) = parts(options)?;
    let read = Options::from_map(&data).map_err(|error| option_error(py, &error))?;
    finish(py, read, objects)
}

/// The same over the configuration file and the environment, which hold for what is not said here.
pub(crate) fn read_over_configuration(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let (data, objects) = parts(options)?;
    // What is wrong with an argument is said of the argument, whatever the configuration holds.
    Options::from_map(&data).map_err(|error| option_error(py, &error))?;
    let configured = Config::load().and_then(|mut config| {
        if objects.model.is_some() {
            // What is said of a server is said of no callable.
            config.forget_server();
        }
        for (name, value) in data {
            config.set(&name, value, Origin::Flag("argument".to_owned()));
        }
        config.options()
    });
    finish(py, configured.map_err(|error| option_error_text(py, error.to_string()))?, objects)
}

/// What is data among the options, and what is not.
fn parts(options: Option<&Bound<'_, PyDict>>) -> PyResult<(Map, Options)> {
    let mut data = Map::new();
    let mut objects = Options::default();
    let Some(options) = options else { return Ok((data, objects)) };
    for (name, value) in options {
        let name = utf8(name.cast::<PyString>()?)?.into_owned();
        match name.as_str() {
            "model" if holds_provider(&value) => objects.model = Some(model(&value)?),
            "log" if value.is_callable() => objects.log = Some(LogOption::Sink(log::sink(&value))),
            "tools" if !value.is_none() => objects.tools = Some(tools::read(&value)?),
            "deliverable" if tools::is_type(&value)? => drop(data.insert(name, tools::schema_of(&value)?)),
            _ => drop(data.insert(name.clone(), option_value(&name, &value)?)),
        }
    }
    Ok((data, objects))
}

fn finish(py: Python<'_>, mut read: Options, objects: Options) -> PyResult<Options> {
    read.model = objects.model.or(read.model);
    read.log = objects.log.or(read.log);
    read.tools = objects.tools.or(read.tools);
    watch_in_python(&mut read);
    warn_of_log(py, &read)?;
    Ok(read)
}

/// Has programs shown where Python writes: what it calls standard error may be something else than the process's.
fn watch_in_python(options: &mut Options) {
    if matches!(options.verbose, Some(VerboseOption::Stderr)) {
        options.verbose = Some(VerboseOption::Watcher(watch::printer()));
    }
}

/// Says at once when the log's file could not be written to: lines are written later, on a thread that can tell nobody.
fn warn_of_log(py: Python<'_>, options: &Options) -> PyResult<()> {
    let path = match &options.log {
        Some(LogOption::Path(path)) => path.clone(),
        Some(LogOption::DefaultPath) => default_path(),
        Some(LogOption::Off | LogOption::Sink(_)) | None => return Ok(()),
    };
    // What can never be a log is refused as an option; this is about what may change.
    if refusal(&path).is_some() {
        return Ok(());
    }
    let Some(problem) = problem(&path) else { return Ok(()) };
    let message = format!(
        "log lines cannot be written to {}: {problem}; calls go on, and Runtime.dropped_log_lines counts what is lost",
        path.display()
    );
    warn(py, message)
}

/// What answers requests: a callable, or the `complete` method of a provider object.
fn provider<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    if value.is_callable() {
        return Some(value.clone());
    }
    let completes = value.get_type().hasattr("complete").unwrap_or(false);
    completes.then(|| value.getattr("complete").ok()).flatten().filter(|method| method.is_callable())
}

/// Whether a target is written in Python, or one of a list's.
fn holds_provider(value: &Bound<'_, PyAny>) -> bool {
    provider(value).is_some()
        || is_wrapped(value)
        || value.cast::<PyList>().is_ok_and(|targets| targets.iter().any(|target| holds_provider(&target)))
}

/// Whether it is a target's map around something that answers.
fn is_wrapped(value: &Bound<'_, PyAny>) -> bool {
    let named = value.cast::<PyDict>().ok().and_then(|target| target.get_item("model").ok().flatten());
    named.is_some_and(|named| provider(&named).is_some())
}

/// Something that answers, the name of a model, or a list of them.
fn model(value: &Bound<'_, PyAny>) -> PyResult<ModelSpec> {
    if let Ok(targets) = value.cast::<PyList>() {
        return targets.iter().map(|target| model(&target)).collect::<PyResult<_>>().map(ModelSpec::Targets);
    }
    if is_wrapped(value) {
        let message = "options of a target go with the name of a model; a callable has none: give it alone".to_owned();
        return Err(option_error(value.py(), &OptionError::Invalid { name: "model", message }));
    }
    match provider(value) {
        Some(callable) => Ok(ModelSpec::Provider(Arc::new(CallableModel::new(&callable)?))),
        None => {
            let data = Map::from([("model".to_owned(), option_value("model", value)?)]);
            let read = Options::from_map(&data).map_err(|error| option_error(value.py(), &error))?;
            Ok(read.model.unwrap_or_default())
        }
    }
}

/// A value that has no data form may still belong to an unknown option, and that is the more helpful error.
fn option_value(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    to_value(value, &format!("option {name:?}")).map_err(|error| {
        let probe = Map::from([(name.to_owned(), Value::Null)]);
        match Options::from_map(&probe) {
            Err(unknown @ OptionError::Unknown { .. }) => option_error(value.py(), &unknown),
            Ok(_) | Err(_) => error,
        }
    })
}
