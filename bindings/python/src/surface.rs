//! What `Agent` and `AsyncAgent` share: names, context, settings. The two differ only in what a dynamic method returns.

use std::ffi::c_int;

use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyString};

use cadenza_core::agent::dispatch::{self, RESERVED};
use cadenza_core::agent::{Agent, UseError};

use crate::context::{ContextView, PyRuntimeContext, remove, stored};
use crate::convert::{keywords, to_python, to_value, utf8};
use crate::errors::{show_warnings, store_error, use_error};
use crate::options;
use crate::runtime::{Open, PyRuntime};

/// An agent as a Python object holds it.
pub(crate) struct Handle {
    pub(crate) agent: Agent,
    view: ContextView,
    /// Says no once the runtime is closed.
    open: Open,
    /// Whether the Python class is ours and not a subclass, which may have attributes of its own.
    plain: bool,
}

/// What a public name on an agent means when it is read.
pub(crate) enum Attribute<'py> {
    /// An attribute of the class.
    Own(Bound<'py, PyAny>),
    /// A value that the context holds.
    Value(Bound<'py, PyAny>),
    /// A dynamic method with that name.
    Method(Bound<'py, PyString>),
}

impl Handle {
    /// A new agent of `runtime`, or of the default one.
    pub(crate) fn make(
        py: Python<'_>,
        role: &str,
        runtime: Option<&Bound<'_, PyRuntime>>,
        options: Option<&Bound<'_, PyDict>>,
        plain: bool,
    ) -> PyResult<Self> {
        let options = options::read(py, options)?;
        let (core, open) = match runtime {
            Some(runtime) => runtime.get().parts(),
            None => PyRuntime::default_parts(py)?,
        };
        open.check()?;
        let agent = core.agent(role, options).map_err(|error| use_error(py, &error))?;
        show_warnings(py)?;
        Ok(Self { agent, view: ContextView::new(), open, plain })
    }

    fn of(&self, agent: Agent) -> Self {
        Self { agent, view: ContextView::new(), open: self.open.clone(), plain: true }
    }

    /// Refuses work once the runtime is closed.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        self.open.check()
    }

    /// Reads a name: the class first for reserved names, names that begin with `_` and subclasses; then the context;
    /// everything else is a dynamic method.
    pub(crate) fn attribute<'py>(
        &self,
        slf: &Bound<'py, PyAny>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Attribute<'py>> {
        let text = utf8(name)?;
        if text.starts_with('_') || RESERVED.contains(&&*text) {
            return generic_get(slf, name).map(Attribute::Own);
        }
        if !self.plain {
            match generic_get(slf, name) {
                Err(error) if error.is_instance_of::<PyAttributeError>(slf.py()) => {}
                found => return found.map(Attribute::Own),
            }
        }
        if let Some(value) = self.agent.runtime_context().get(&text) {
            return to_python(slf.py(), &value).map(Attribute::Value);
        }
        match dispatch::dispatch(&text) {
            Ok(_) => Ok(Attribute::Method(name.clone())),
            Err(error) => Err(PyAttributeError::new_err(error.to_string())),
        }
    }

    /// Writes a name: the setter path, which never asks a model (AC-4).
    pub(crate) fn set_attribute(
        &self,
        slf: &Bound<'_, PyAny>,
        name: &Bound<'_, PyString>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let text = utf8(name)?;
        if self.settable(slf, name, &text, Some(value))? {
            let value = to_value(value, &text)?;
            let py = name.py();
            let set = || self.agent.set(&text, value);
            let written = if self.agent.name().is_some() { py.detach(set) } else { set() };
            written.map_err(|error| match error {
                UseError::Store(error) => store_error(&error),
                other => PyAttributeError::new_err(other.to_string()),
            })?;
        }
        Ok(())
    }

    /// Removes a key from the context.
    pub(crate) fn delete_attribute(&self, slf: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> PyResult<()> {
        let text = utf8(name)?;
        if self.settable(slf, name, &text, None)? && remove(name.py(), &self.agent, &text)?.is_none() {
            return Err(PyAttributeError::new_err(format!("the runtime context holds no {text:?}")));
        }
        Ok(())
    }

    /// Whether the name belongs to the context. Reserved names are refused; those of a subclass are written there.
    fn settable(
        &self,
        slf: &Bound<'_, PyAny>,
        name: &Bound<'_, PyString>,
        text: &str,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        if RESERVED.contains(&text) {
            // `agent.runtime_context |= {...}` ends with this assignment of the view to itself.
            let same = value.and_then(|value| value.cast::<PyRuntimeContext>().ok());
            if text == "runtime_context" && same.is_some_and(|view| view.get().agent().is(&self.agent)) {
                return Ok(false);
            }
            return Err(PyAttributeError::new_err(format!(
                "{text:?} is a reserved name of agents; agent.runtime_context[{text:?}] = ... writes a key of that name"
            )));
        }
        let of_class = text.starts_with('_') || (!self.plain && slf.get_type().hasattr(name)?);
        if of_class {
            generic_set(slf, name, value)?;
        }
        Ok(!of_class)
    }

    /// Reserved names and context keys: what completion shows. Never asks a model.
    pub(crate) fn dir(&self, slf: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
        let mut names: Vec<String> = RESERVED.iter().map(|name| (*name).to_owned()).collect();
        names.extend(self.agent.runtime_context().keys().into_iter().filter(|key| dispatch::is_identifier(key)));
        if !self.plain {
            names.extend(slf.get_type().dir()?.extract::<Vec<String>>()?);
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Writes entries into the context, all or none (AC-2).
    pub(crate) fn remember(&self, entries: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let map = keywords(entries)?;
        match entries {
            Some(entries) => stored(entries.py(), &self.agent, |context| context.extend(map)),
            None => Ok(()),
        }
    }

    /// The live view of the context, the same object each time (AC-2).
    pub(crate) fn runtime_context<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyRuntimeContext>> {
        self.view.of(py, &self.agent)
    }

    /// A new agent that inherits this one's settings (AC-3).
    pub(crate) fn delegate(&self, py: Python<'_>, role: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let options = options::read(py, options)?;
        let agent = self.agent.delegate(role, options).map_err(|error| use_error(py, &error))?;
        show_warnings(py)?;
        Ok(self.of(agent))
    }

    /// The delegate last made with this role; makes one when there is none.
    pub(crate) fn tool(&self, py: Python<'_>, name: &str) -> PyResult<Self> {
        self.agent.tool(name).map(|agent| self.of(agent)).map_err(|error| use_error(py, &error))
    }

    /// One number per agent, equal for all its handles.
    pub(crate) fn identity(&self) -> isize {
        std::ptr::from_ref(self.agent.runtime_context()).addr().cast_signed() >> 4
    }

    /// Local and cheap: role and context keys, never a value.
    pub(crate) fn repr(&self, class: &str) -> String {
        let keys = self.agent.runtime_context().keys();
        let shown = keys.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if keys.len() > 8 { ", …" } else { "" };
        format!("<{class} {:?} context=[{shown}{more}]>", &**self.agent.role())
    }
}

/// Agents are alive: there is no second one to copy, and nothing to write down before the durable store is there.
pub(crate) fn no_copy(class: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "{class} objects cannot be copied: make another with {class}.for_role(agent.role) and \
         .remember(**agent.runtime_context)"
    ))
}

/// See [`no_copy`].
/// How an agent is pickled: by reference, `cadenza._attach(class, role, name, namespace, store)`. Only what lives in a
/// store can be taken up by another process; no key, no context and no model goes along.
pub(crate) fn reduce<'py>(slf: &Bound<'py, PyAny>, agent: &Agent, class: &str) -> PyResult<Bound<'py, PyAny>> {
    let py = slf.py();
    let (Some(name), Some(store)) = (agent.name(), agent.store()) else {
        return Err(PyTypeError::new_err(format!(
            "{class} objects without a name live in this process alone and cannot be pickled: make the agent with \
             {class}.for_role(role, name=..., store=...)"
        )));
    };
    let attach = py.import("cadenza")?.getattr("_attach")?;
    let parts = (slf.get_type(), &**agent.role(), &**name, &**agent.namespace(), store.location());
    Ok((attach, parts).into_pyobject(py)?.into_any())
}

/// A closed runtime.
pub(crate) fn closed() -> PyErr {
    PyRuntimeError::new_err("this runtime is closed; make a new cadenza.Runtime")
}

fn generic_get<'py>(slf: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: both are live objects; the result is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(slf.py(), ffi::PyObject_GenericGetAttr(slf.as_ptr(), name.as_ptr())) }
}

fn generic_set(slf: &Bound<'_, PyAny>, name: &Bound<'_, PyString>, value: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let value = value.map_or(std::ptr::null_mut(), Bound::as_ptr);
    // SAFETY: all are live objects or, for a deletion, null; the result is 0, or -1 with an exception set.
    let done: c_int = unsafe { ffi::PyObject_GenericSetAttr(slf.as_ptr(), name.as_ptr(), value) };
    if done == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
}
