//! The command `cadenza` from Python, and the surface that `cadenza conform --runtime python` drives: every step goes
//! through the Python objects themselves, as a user's own code would.

use std::collections::BTreeMap;
use std::ffi::OsString;

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use cadenza_cli::PythonHost;
use cadenza_cli::conform::{Seen, Surface, World};
use cadenza_core::runtime::Runtime;
use cadenza_core::value::{Map, Value};

use crate::agent::PyAgent;
use crate::convert::{map_to_python, to_python, to_value};
use crate::outcome::PyOutcome;
use crate::provider::describe;
use crate::runtime::PyRuntime;

/// Runs the command `cadenza` with these arguments (without the program's name) and returns its exit code.
#[pyfunction]
pub(crate) fn cli_main(py: Python<'_>, argv: Vec<OsString>) -> i32 {
    let arguments = std::iter::once(OsString::from("cadenza")).chain(argv).collect();
    py.detach(|| cadenza_cli::main_with(arguments, Some(&PackageHost)))
}

/// This package.
struct PackageHost;

impl PythonHost for PackageHost {
    fn surface(&self) -> Box<dyn Surface + '_> {
        Box::new(PythonSurface)
    }
}

/// Python.
struct PythonSurface;

impl Surface for PythonSurface {
    fn runtime(&self) -> &'static str {
        "python"
    }

    fn world(&self, runtime: Runtime) -> Result<Box<dyn World + '_>, String> {
        attached(|py| {
            let runtime = Py::new(py, PyRuntime::of(runtime))?;
            Ok(Box::new(PythonWorld { runtime, agents: BTreeMap::new(), returned: BTreeMap::new() }) as Box<dyn World>)
        })
    }
}

/// One scenario's Python objects.
struct PythonWorld {
    runtime: Py<PyRuntime>,
    agents: BTreeMap<String, Py<PyAny>>,
    /// What the latest step of an op returned.
    returned: BTreeMap<&'static str, Py<PyAny>>,
}

impl PythonWorld {
    fn agent<'py>(&self, py: Python<'py>, alias: &str) -> PyResult<Bound<'py, PyAny>> {
        let agent = self.agents.get(alias).map(|agent| agent.bind(py).clone());
        agent.ok_or_else(|| PyAttributeError::new_err(format!("no agent `{alias}` was constructed")))
    }

    fn keep(&mut self, op: &'static str, returned: &Bound<'_, PyAny>) {
        self.returned.insert(op, returned.clone().unbind());
    }
}

/// Runs `work` with the GIL; an exception fails the step with its words.
fn attached<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, String> {
    Python::attach(|py| work(py).map_err(|error| describe(py, &error)))
}

/// `agent.method(*args, **kwargs)`: the attribute first, then the call. A name that no attribute has goes through
/// `agent.call`, as it would have to in Python.
fn call<'py>(agent: &Bound<'py, PyAny>, method: &str, args: &[Value], kwargs: &Map) -> PyResult<Bound<'py, PyAny>> {
    let py = agent.py();
    let args = args.iter().map(|value| to_python(py, value)).collect::<PyResult<Vec<_>>>()?;
    let kwargs = map_to_python(py, kwargs)?;
    let bound = agent.getattr(method)?;
    // A name that the context backs reads as its value; calling the method of that name is then `call`'s to do.
    if bound.is_callable() && !cadenza_core::agent::dispatch::RESERVED.contains(&method) {
        return bound.call(PyTuple::new(py, args)?, Some(&kwargs));
    }
    let mut named = vec![PyString::new(py, method).into_any()];
    named.extend(args);
    agent.getattr("call")?.call(PyTuple::new(py, named)?, Some(&kwargs))
}

/// What Python code sees of a call's result: its attributes.
fn seen(result: &Bound<'_, PyAny>) -> PyResult<Seen> {
    let text = |name: &str| result.getattr(name)?.extract::<Option<String>>();
    Ok(Seen {
        is_outcome: result.is_instance(&result.py().get_type::<PyOutcome>())?,
        ok: result.getattr("ok")?.is_truthy()?,
        value: to_value(&result.getattr("value")?, "value")?,
        error_type: text("error_type")?,
        error_message: text("error_message")?,
        retriable: match result.getattr("ok")?.is_truthy()? {
            true => None,
            false => Some(result.getattr("retriable")?.is_truthy()?),
        },
    })
}

impl World for PythonWorld {
    fn construct(&mut self, alias: &str, role: &str, options: &Map) -> Result<(), String> {
        attached(|py| {
            let keywords = map_to_python(py, options)?;
            keywords.set_item("runtime", &self.runtime)?;
            let agent = py.get_type::<PyAgent>().call_method("for_role", (role,), Some(&keywords))?;
            self.keep("construct", &agent);
            self.agents.insert(alias.to_owned(), agent.unbind());
            Ok(())
        })
    }

    fn is_agent(&mut self, target: &str) -> Result<bool, String> {
        attached(|py| self.agent(py, target)?.is_instance(&py.get_type::<PyAgent>()))
    }

    fn role(&mut self, target: &str) -> Result<Value, String> {
        attached(|py| to_value(&self.agent(py, target)?.getattr("role")?, "role"))
    }

    fn remember(&mut self, target: &str, entries: &Map) -> Result<(), String> {
        attached(|py| {
            let returned = self.agent(py, target)?.call_method("remember", (), Some(&map_to_python(py, entries)?))?;
            self.keep("remember", &returned);
            Ok(())
        })
    }

    fn context(&mut self, target: &str) -> Result<Map, String> {
        attached(|py| {
            let dict = PyDict::new(py);
            dict.call_method1("update", (self.agent(py, target)?.getattr("runtime_context")?,))?;
            match to_value(&dict, "runtime_context")? {
                Value::Map(map) => Ok(map),
                other => Err(PyAttributeError::new_err(format!("a dict became a {}", other.type_name()))),
            }
        })
    }

    fn returned_is(&mut self, from_op: &str, target: &str) -> Result<Option<bool>, String> {
        attached(|py| {
            let target = self.agent(py, target)?;
            Ok(self.returned.get(from_op).map(|returned| returned.is(&target)))
        })
    }

    fn set(&mut self, target: &str, key: &str, value: &Value) -> Result<(), String> {
        attached(|py| {
            self.agent(py, target)?.setattr(key, to_python(py, value)?)?;
            self.keep("set", py.None().bind(py));
            Ok(())
        })
    }

    fn call(&mut self, target: &str, method: &str, args: &[Value], kwargs: &Map) -> Result<Seen, String> {
        attached(|py| {
            let result = call(&self.agent(py, target)?, method, args, kwargs)?;
            self.keep("call", &result);
            seen(&result)
        })
    }

    fn tolerant_delegate(
        &mut self,
        target: &str,
        tool_role: &str,
        method: &str,
        args: &[Value],
        kwargs: &Map,
    ) -> Result<Seen, String> {
        attached(|py| {
            let child = match self.agent(py, target)?.call_method1("delegate", (tool_role,)) {
                Ok(child) => child,
                Err(error) => {
                    self.keep("tolerant_delegate", py.None().bind(py));
                    return Ok(Seen {
                        is_outcome: true,
                        ok: false,
                        value: Value::Null,
                        error_type: Some("contract_violation".to_owned()),
                        error_message: Some(describe(py, &error)),
                        retriable: Some(false),
                    });
                }
            };
            let result = call(&child, method, args, kwargs)?;
            self.keep("tolerant_delegate", &result);
            seen(&result)
        })
    }

    fn responds_to(&mut self, target: &str, method: &str) -> Result<bool, String> {
        attached(|py| self.agent(py, target)?.call_method1("responds_to", (method,))?.is_truthy())
    }
}
