//! Python functions as host tools: type hints become the JSON Schema (`cadenza._schema`), calls run bounded.
//!
//! A tool runs on a thread of its own, so that a slow one cannot hold a call beyond its time; a coroutine function runs
//! on the loop that awaits the call. What it raises is a catchable error inside the program.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyModule, PyTuple, PyType};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use cadenza_core::tools::{Tool, ToolBounds};
use cadenza_core::value::{Map, Value};

use crate::convert::{map_to_python, to_value};
use crate::coroutines::{self, Caller, Start};
use crate::errors::option_error_text;
use crate::provider::describe;
use crate::serving::{self, Serving};
use crate::workers::{self, Answer, Unanswered};

/// The option `tools`: a list of functions, or a dict from name to function.
pub(crate) fn read(value: &Bound<'_, PyAny>) -> PyResult<Vec<Arc<Tool>>> {
    if value.is_callable() {
        return Ok(vec![Arc::new(tool(value, None)?)]);
    }
    let mut tools = Vec::new();
    if let Ok(named) = value.cast::<PyMapping>() {
        for pair in named.items()?.iter() {
            let (name, function): (String, Bound<'_, PyAny>) = pair.extract()?;
            tools.push(Arc::new(tool(&function, Some(&name))?));
        }
        return Ok(tools);
    }
    let listed = value.try_iter().map_err(|_| expected(value))?;
    for function in listed {
        tools.push(Arc::new(tool(&function?, None)?));
    }
    Ok(tools)
}

fn expected(value: &Bound<'_, PyAny>) -> PyErr {
    let found = value.get_type().qualname().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    option_error_text(
        value.py(),
        format!("option \"tools\": expected functions in a list, or a dict from name to function, got {found}"),
    )
}

/// One function with its schema.
fn tool(function: &Bound<'_, PyAny>, name: Option<&str>) -> PyResult<Tool> {
    let py = function.py();
    if !function.is_callable() {
        return Err(expected(function));
    }
    let described = PyModule::import(py, "cadenza._schema")?.call_method1("describe", (function, name));
    let described =
        described.map_err(|error| option_error_text(py, format!("option \"tools\": {}", describe(py, &error))))?;
    let (name, description, parameters, coerce, effect): Described<'_> = described.extract()?;
    let parameters = to_value(&parameters, "the schema of a tool")?;
    let callable = Arc::new(Callable {
        is_coroutine_function: coroutines::is_coroutine_function(function),
        function: function.clone().unbind(),
        coerce,
    });
    let handler = move |arguments: Map, bounds: &ToolBounds<'_>| call(&callable, arguments, bounds);
    Tool::new(&name, &description, parameters, handler)
        .and_then(|tool| tool.with_effect(&effect))
        .map_err(|error| option_error_text(py, format!("option \"tools\": {error}")))
}

/// Name, description, schema, what turns plain arguments into what the hints ask for, and the class of effects.
type Described<'py> = (String, String, Bound<'py, PyAny>, Option<Py<PyAny>>, String);

struct Callable {
    function: Py<PyAny>,
    /// Turns plain data into what the hints ask for (dataclasses, enums), where they do.
    coerce: Option<Py<PyAny>>,
    is_coroutine_function: bool,
}

fn call(callable: &Arc<Callable>, arguments: Map, bounds: &ToolBounds<'_>) -> Result<Value, String> {
    match Handle::try_current() {
        // The others of the runtime go on while this thread waits.
        Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::MultiThread => {
            tokio::task::block_in_place(|| call_and_wait(callable, arguments, bounds))
        }
        Ok(_) | Err(_) => call_and_wait(callable, arguments, bounds),
    }
}

fn call_and_wait(callable: &Arc<Callable>, arguments: Map, bounds: &ToolBounds<'_>) -> Result<Value, String> {
    let caller = Caller::current();
    let callable = callable.clone();
    let (answer, running): (Answer<Result<Value, String>>, _) = match caller {
        Some(caller) if callable.is_coroutine_function => {
            let (sender, answer) = oneshot::channel();
            let serving = caller.serving.clone();
            let running = workers::run(move |py| {
                let kwargs = callable.kwargs(py, &arguments)?.unbind();
                let function = callable.function.clone_ref(py);
                let start =
                    Start { caller, callable: function, args: PyTuple::empty(py).unbind(), kwargs: Some(kwargs) };
                start.on_loop(
                    py,
                    Box::new(move |py, result| {
                        let _ = sender.send(returned(py, result, Some(&serving)));
                    }),
                )
            });
            (answer.into(), Some(running))
        }
        caller => {
            let context = match caller {
                Some(caller) => caller.context,
                None => Python::try_attach(coroutines::copy_context).flatten(),
            };
            let serving = serving::here();
            let answer = workers::run(move |py| {
                let result = callable.kwargs(py, &arguments).and_then(|kwargs| {
                    let context = context.as_ref().map(|context| context.bind(py));
                    let function = callable.function.bind(py);
                    coroutines::call_here(function, context, serving.as_ref(), &PyTuple::empty(py), Some(&kwargs))
                });
                returned(py, result, serving.as_ref())
            });
            (answer, None)
        }
    };
    // Held until the answer is there; dropped earlier, it cancels the coroutine.
    let _running = match running {
        None => None,
        Some(started) => match workers::wait(started, bounds.deadline, bounds.cancel).map_err(unanswered)? {
            Ok(running) => Some(running),
            Err(error) => return Err(Python::attach(|py| describe(py, &error))),
        },
    };
    workers::wait(answer, bounds.deadline, bounds.cancel).map_err(unanswered)?
}

fn unanswered(why: Unanswered) -> String {
    match why {
        Unanswered::Late => "gave no answer within the call's time; raise `call_timeout_seconds`".to_owned(),
        Unanswered::Cancelled => "interrupted".to_owned(),
        Unanswered::NeverBegan => format!("was not called: {}", workers::BUSY),
        Unanswered::Lost => "gave no answer: its event loop was closed, or no thread could be started".to_owned(),
    }
}

fn returned(
    py: Python<'_>,
    result: PyResult<Bound<'_, PyAny>>,
    serving: Option<&Arc<Serving>>,
) -> Result<Value, String> {
    result.and_then(|object| to_value(&object, "the tool's result")).map_err(|error| {
        // What ends the program is for the caller; the call itself ends as interrupted.
        let ends = serving.is_some_and(|serving| serving.ends(py, &error));
        if ends { "interrupted".to_owned() } else { describe(py, &error) }
    })
}

impl Callable {
    fn kwargs<'py>(&self, py: Python<'py>, arguments: &Map) -> PyResult<Bound<'py, PyDict>> {
        let plain = map_to_python(py, arguments)?;
        match &self.coerce {
            None => Ok(plain),
            Some(coerce) => Ok(coerce.bind(py).call1((plain,))?.cast_into::<PyDict>()?),
        }
    }
}

/// Whether a `deliverable` is a type or a typing form rather than a JSON Schema.
pub(crate) fn is_type(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if value.cast::<PyType>().is_ok() {
        return Ok(true);
    }
    if value.is_none() || value.cast::<PyDict>().is_ok() || value.cast::<PyList>().is_ok() {
        return Ok(false);
    }
    // `list[int]`, `int | None`, `typing.Optional[int]`: all have their own class and arguments.
    value.get_type().hasattr("__args__").map(|own| own || value.hasattr("__args__").unwrap_or(false))
}

/// The JSON Schema of a type.
pub(crate) fn schema_of(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let schema = PyModule::import(value.py(), "cadenza._schema")?.call_method1("schema_of", (value,));
    let schema = schema.map_err(|error| {
        option_error_text(value.py(), format!("option \"deliverable\": {}", describe(value.py(), &error)))
    })?;
    to_value(&schema, "the schema of a deliverable")
}
