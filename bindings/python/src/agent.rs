//! `cadenza.Agent`: what people hold. Every public name that the class does not have is a key of the runtime context or
//! a dynamic method; nothing but calling such a method ever asks a model.

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use cadenza_core::agent::Agent;

use crate::context::PyRuntimeContext;
use crate::convert::{arguments, keywords, utf8};
use crate::errors::use_error;
use crate::notebook;
use crate::outcome::PyOutcome;
use crate::runtime::PyRuntime;
use crate::serving::Serving;
use crate::signals::interruptible;
use crate::surface::{Attribute, Handle, no_copy, reduce};

/// An object whose methods are written by a model when they are first called.
///
/// Make one with Agent.for_role("calculator", **options), or Agent("calculator"). Then any public name is a dynamic
/// method that returns a cadenza.Outcome (`calc.add(3)`), unless the runtime context holds a value under it
/// (`calc.memory = 5`; `calc.memory` is 5). Options are those of cadenza.Runtime.
#[pyclass(module = "cadenza", name = "Agent", frozen, subclass, weakref)]
pub(crate) struct PyAgent {
    handle: Handle,
}

impl PyAgent {
    fn wrap<'py>(py: Python<'py>, handle: Handle) -> PyResult<Bound<'py, Self>> {
        Bound::new(py, Self { handle })
    }

    /// The agent behind the Python object.
    pub(crate) fn core(&self) -> &Agent {
        &self.handle.agent
    }

    /// A dynamic call on this thread, without the GIL (AC-5).
    fn dispatch(
        &self,
        py: Python<'_>,
        method: &str,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyOutcome> {
        self.handle.check_open()?;
        let (args, kwargs) = (arguments(args)?, keywords(kwargs)?);
        let agent = &self.handle.agent;
        let begun = Serving::begin(py, agent)?;
        let (outcome, raised) =
            interruptible(py, |cancel| begun.during(cancel, || agent.call_with(method, args, kwargs, cancel)))?;
        if let Some(raised) = raised {
            return Err(raised);
        }
        outcome.map(PyOutcome::new).map_err(|error| use_error(py, &error))
    }
}

#[pymethods]
impl PyAgent {
    #[new]
    #[classmethod]
    #[pyo3(signature = (role, *, runtime=None, **options))]
    fn new(
        class: &Bound<'_, PyType>,
        role: &str,
        runtime: Option<&Bound<'_, PyRuntime>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let plain = class.is(class.py().get_type::<Self>());
        Handle::make(class.py(), role, runtime, options, plain).map(|handle| Self { handle })
    }

    /// A new agent with that role (AC-1). Options are those of cadenza.Runtime, for this agent alone.
    #[classmethod]
    #[pyo3(signature = (role, *, runtime=None, **options))]
    fn for_role<'py>(
        class: &Bound<'py, PyType>,
        role: &Bound<'py, PyString>,
        runtime: Option<&Bound<'py, PyRuntime>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = class.py();
        if class.is(py.get_type::<Self>()) {
            let handle = Handle::make(py, &utf8(role)?, runtime, options, true)?;
            return Self::wrap(py, handle).map(Bound::into_any);
        }
        let keywords = options.map_or_else(|| Ok(PyDict::new(py)), |options| options.copy())?;
        keywords.set_item("runtime", runtime)?;
        class.call((role,), Some(&keywords))
    }

    /// The same as for_role: getattr(Agent, "for")("calculator").
    #[classmethod]
    #[pyo3(name = "for", signature = (role, *, runtime=None, **options))]
    fn for_<'py>(
        class: &Bound<'py, PyType>,
        role: &Bound<'py, PyString>,
        runtime: Option<&Bound<'py, PyRuntime>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::for_role(class, role, runtime, options)
    }

    /// What the agent is for.
    #[getter]
    fn role(&self) -> &str {
        self.handle.agent.role()
    }

    /// What the agent remembers: a live, mutable mapping.
    #[getter]
    fn runtime_context<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyRuntimeContext>> {
        self.handle.runtime_context(py)
    }

    /// Writes each entry into the runtime context and returns this agent.
    #[pyo3(signature = (**entries))]
    fn remember<'py>(slf: &Bound<'py, Self>, entries: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, Self>> {
        slf.get().handle.remember(entries)?;
        Ok(slf.clone())
    }

    /// A new agent with that role and with this agent's settings, unless an option says otherwise.
    #[pyo3(signature = (role, **options))]
    fn delegate<'py>(
        &self,
        py: Python<'py>,
        role: &str,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, Self>> {
        Self::wrap(py, self.handle.delegate(py, role, options)?)
    }

    /// The delegate that was last made with that role; makes one when there is none.
    fn tool<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, Self>> {
        Self::wrap(py, self.handle.tool(py, name)?)
    }

    /// Whether the name is a setter ("memory="), a reserved name or a key of the runtime context. Never asks a model.
    fn responds_to(&self, name: &str) -> bool {
        self.handle.agent.responds_to(name)
    }

    /// Calls a dynamic method by name; also one whose name is reserved, and setters ("memory=").
    #[pyo3(signature = (name, /, *args, **kwargs))]
    fn call(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyOutcome> {
        self.dispatch(py, &utf8(name)?, args, kwargs)
    }

    fn __getattribute__<'py>(slf: &Bound<'py, Self>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        match slf.get().handle.attribute(slf.as_any(), name)? {
            Attribute::Own(found) | Attribute::Value(found) => Ok(found),
            Attribute::Method(name) => {
                let method = DynamicMethod { owner: slf.clone().unbind(), name: name.unbind() };
                Ok(Bound::new(slf.py(), method)?.into_any())
            }
        }
    }

    fn __getattr__(slf: &Bound<'_, Self>, name: &Bound<'_, PyString>) -> PyResult<Py<PyAny>> {
        Err(no_attribute(slf.as_any(), name))
    }

    fn __setattr__<'py>(
        slf: &Bound<'py, Self>,
        name: &Bound<'py, PyString>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        slf.get().handle.set_attribute(slf.as_any(), name, value)
    }

    fn __delattr__<'py>(slf: &Bound<'py, Self>, name: &Bound<'py, PyString>) -> PyResult<()> {
        slf.get().handle.delete_attribute(slf.as_any(), name)
    }

    fn __dir__(slf: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        slf.get().handle.dir(slf.as_any())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.handle.agent.is(&other.get().handle.agent))
    }

    fn __hash__(&self) -> isize {
        self.handle.identity()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(slf.get().handle.repr(&slf.get_type().name()?.to_string()))
    }

    fn _repr_html_(&self) -> String {
        notebook::agent(&self.handle.agent)
    }

    fn __copy__(&self) -> PyResult<Py<PyAny>> {
        Err(no_copy("Agent"))
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        Err(no_copy("Agent"))
    }

    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, _protocol: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reduce(slf.as_any(), &slf.get().handle.agent, "Agent")
    }
}

/// A dynamic method of an agent: calling it makes the call, nothing else does.
#[pyclass(module = "cadenza", frozen)]
pub(crate) struct DynamicMethod {
    owner: Py<PyAgent>,
    name: Py<PyString>,
}

#[pymethods]
impl DynamicMethod {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<PyOutcome> {
        self.owner.get().dispatch(py, &utf8(self.name.bind(py))?, args, kwargs)
    }

    #[getter]
    fn __name__(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    #[getter]
    fn __qualname__(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    #[getter]
    fn __self__(&self, py: Python<'_>) -> Py<PyAgent> {
        self.owner.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        method_repr(self.name.bind(py), self.owner.get().core())
    }
}

/// `<dynamic method 'add' of 'calculator'>`.
pub(crate) fn method_repr(name: &Bound<'_, PyString>, agent: &Agent) -> PyResult<String> {
    Ok(format!("<dynamic method {:?} of {:?}>", &*utf8(name)?, &**agent.role()))
}

/// What reading a private or impossible name raises.
pub(crate) fn no_attribute(slf: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> PyErr {
    let class = slf.get_type().name().map_or_else(|_| "Agent".to_owned(), |name| name.to_string());
    let name = name.to_string_lossy();
    let why = if name.starts_with('_') {
        "names that begin with `_` are never dynamic"
    } else {
        "a method name is 1 to 256 bytes of text without control characters"
    };
    PyAttributeError::new_err(format!("{class:?} object has no attribute {name:?}: {why}"))
}
