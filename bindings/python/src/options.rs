//! Options as Python passes them: callables are taken out here, everything else is plain data for the core to judge.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyModule, PyString};

use cadenza_core::log::{default_path, problem, refusal};
use cadenza_core::provider::ModelSpec;
use cadenza_core::runtime::options::{LogOption, OptionError, Options, VerboseOption};
use cadenza_core::value::{Map, Value};

use crate::convert::{to_value, utf8};
use crate::errors::option_error;
use crate::provider::CallableModel;
use crate::{log, tools, watch};

/// Reads keyword options. Unknown names, wrong types and bounds are refused by the core, before any model is asked.
pub(crate) fn read(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let Some(options) = options.filter(|options| !options.is_empty()) else { return Ok(Options::default()) };
    let mut data = Map::new();
    let mut objects = Options::default();
    for (name, value) in options {
        let name = utf8(name.cast::<PyString>()?)?.into_owned();
        match name.as_str() {
            "model" if provider(&value).is_some() || holds_provider(&value) => {
                // The name stays in the data, for options that go together with it.
                data.insert(name, Value::Null);
                objects.model = Some(model(&value)?);
            }
            "log" if value.is_callable() => objects.log = Some(LogOption::Sink(log::sink(&value))),
            "tools" if !value.is_none() => objects.tools = Some(tools::read(&value)?),
            "deliverable" if tools::is_type(&value)? => drop(data.insert(name, tools::schema_of(&value)?)),
            _ => drop(data.insert(name.clone(), option_value(&name, &value)?)),
        }
    }
    let mut read = Options::from_map(&data).map_err(|error| option_error(py, &error))?;
    read.model = objects.model.or(read.model);
    read.log = objects.log.or(read.log);
    read.tools = objects.tools.or(read.tools);
    watch_in_python(&mut read);
    warn_of_log(py, &read)?;
    Ok(read)
}

/// Has programs shown where Python writes: what it calls standard error may be something else than the process's.
pub(crate) fn watch_in_python(options: &mut Options) {
    if matches!(options.verbose, Some(VerboseOption::Stderr)) {
        options.verbose = Some(VerboseOption::Watcher(watch::printer()));
    }
}

/// Says at once when the log's file could not be written to: lines are written later, on a thread that can tell nobody.
pub(crate) fn warn_of_log(py: Python<'_>, options: &Options) -> PyResult<()> {
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
    let warnings = PyModule::import(py, intern!(py, "warnings"))?;
    warnings.call_method1(intern!(py, "warn"), (message, py.get_type::<PyRuntimeWarning>(), 2))?;
    Ok(())
}

/// What answers requests: a callable, or the `complete` method of a provider object.
fn provider<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    if value.is_callable() {
        return Some(value.clone());
    }
    let completes = value.get_type().hasattr("complete").unwrap_or(false);
    completes.then(|| value.getattr("complete").ok()).flatten().filter(|method| method.is_callable())
}

/// Whether it is a list of targets with one written in Python among them.
fn holds_provider(value: &Bound<'_, PyAny>) -> bool {
    value.cast::<PyList>().is_ok_and(|targets| targets.iter().any(|target| provider(&target).is_some()))
}

/// Something that answers, the name of a model, or a list of them.
fn model(value: &Bound<'_, PyAny>) -> PyResult<ModelSpec> {
    if let Ok(targets) = value.cast::<PyList>() {
        return targets.iter().map(|target| model(&target)).collect::<PyResult<_>>().map(ModelSpec::Targets);
    }
    if let Ok(target) = value.cast::<PyDict>()
        && target.get_item("model")?.is_some_and(|named| provider(&named).is_some())
    {
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
