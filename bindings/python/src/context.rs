//! `agent.runtime_context`: a live, mutable mapping over what an agent remembers.
//!
//! Reads and writes reach the agent at once. A list or dict that is read is a copy: change it and write it back
//! (`context["rows"] = rows`), for a change inside would have to reach into a map that programs read meanwhile.

use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyIterator, PyList, PyMapping, PyModule, PyString};

use cadenza_core::agent::{Agent, RuntimeContext};
use cadenza_core::store::StoreError;
use cadenza_core::value::{Map, Value};

use crate::convert::{keywords, map_to_python, to_python, to_value, utf8};
use crate::errors::store_error;

/// A live, mutable mapping over what an agent remembers.
///
/// Keys are text, values JSON-like data. A list or dict that is read is a copy; write it back to change it.
#[pyclass(module = "cadenza", name = "RuntimeContext", frozen, mapping, weakref)]
pub(crate) struct PyRuntimeContext {
    agent: Agent,
}

impl PyRuntimeContext {
    pub(crate) fn new(agent: Agent) -> Self {
        Self { agent }
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }
}

/// Makes the class count as a `collections.abc.MutableMapping`.
pub(crate) fn register(py: Python<'_>) -> PyResult<()> {
    abstract_class(py, "MutableMapping")?
        .call_method1(intern!(py, "register"), (py.get_type::<PyRuntimeContext>(),))?;
    Ok(())
}

pub(crate) fn abstract_class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    // Part of every interpreter's start; `collections.abc` itself may not be.
    PyModule::import(py, intern!(py, "_collections_abc"))?.getattr(name)
}

fn text<'a>(key: &'a Bound<'_, PyAny>) -> PyResult<std::borrow::Cow<'a, str>> {
    let text = key.cast::<PyString>().map_err(|_| {
        let found = key.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("keys of a runtime context are text, got {found}; use str(key)"))
    })?;
    utf8(text)
}

/// New entries, all converted before the first is written.
fn entries(other: Option<&Bound<'_, PyAny>>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Map> {
    let mut map = Map::new();
    if let Some(other) = other {
        let dict = PyDict::new(other.py());
        match other.cast::<PyMapping>() {
            Ok(mapping) => dict.update(mapping)?,
            Err(_) => dict.call_method1("update", (other,)).map(drop)?,
        }
        for (key, value) in dict {
            let key = text(&key)?.into_owned();
            let value = to_value(&value, &format!("key {key:?}"))?;
            map.insert(key, value);
        }
    }
    map.extend(keywords(kwargs)?);
    Ok(map)
}

/// A write of the context. That of an agent with a name waits for other processes and for the disk: without the GIL, or
/// a call that holds the agent and needs the GIL would wait for this one.
pub(crate) fn stored<R: Send>(
    py: Python<'_>,
    agent: &Agent,
    write: impl FnOnce(&RuntimeContext) -> Result<R, StoreError> + Send,
) -> PyResult<R> {
    let context = agent.runtime_context();
    let written = if agent.name().is_some() { py.detach(|| write(context)) } else { write(context) };
    written.map_err(|error| store_error(&error))
}

/// Removes a key and returns what it held.
pub(crate) fn remove(py: Python<'_>, agent: &Agent, key: &str) -> PyResult<Option<Value>> {
    stored(py, agent, |context| context.remove(key))
}

#[pymethods]
impl PyRuntimeContext {
    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let found = match key.cast::<PyString>() {
            Ok(name) => self.agent.runtime_context().get(&utf8(name)?),
            Err(_) => None,
        };
        match found {
            Some(value) => to_python(key.py(), &value),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = text(key)?;
        let py = value.py();
        let value = to_value(value, &format!("key {key:?}"))?;
        stored(py, &self.agent, |context| context.set(&key, value))
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let removed = match key.cast::<PyString>() {
            Ok(name) => remove(key.py(), &self.agent, &utf8(name)?)?,
            Err(_) => None,
        };
        removed.map(drop).ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        match key.cast::<PyString>() {
            Ok(name) => Ok(self.agent.runtime_context().contains(&utf8(name)?)),
            Err(_) => Ok(false),
        }
    }

    fn __len__(&self) -> usize {
        self.agent.runtime_context().len()
    }

    /// Over the keys as they are now, in order.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.agent.runtime_context().keys())?.try_iter()
    }

    fn __reversed__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.agent.runtime_context().keys().into_iter().rev())?.try_iter()
    }

    /// The value under `key`, or `default`.
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(name) = key.cast::<PyString>() else { return Ok(default) };
        match self.agent.runtime_context().get(&utf8(name)?) {
            Some(value) => to_python(key.py(), &value).map(Some),
            None => Ok(default),
        }
    }

    /// Removes `key` and returns its value, or `default`; raises KeyError without one.
    #[pyo3(signature = (key, *default))]
    fn pop<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, pyo3::types::PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if default.len() > 1 {
            return Err(PyTypeError::new_err(format!("pop takes at most 2 arguments, got {}", default.len() + 1)));
        }
        let removed = match key.cast::<PyString>() {
            Ok(name) => remove(key.py(), &self.agent, &utf8(name)?)?,
            Err(_) => None,
        };
        match removed {
            Some(value) => to_python(key.py(), &value),
            None => default.get_item(0).map_err(|_| PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// Removes the last key in order and returns it with its value; raises KeyError when there is none.
    fn popitem<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyAny>)> {
        let context = self.agent.runtime_context();
        while let Some(key) = context.keys().pop() {
            if let Some(value) = remove(py, &self.agent, &key)? {
                return Ok((key, to_python(py, &value)?));
            }
        }
        Err(PyKeyError::new_err("the runtime context is empty"))
    }

    /// The value under `key`; writes and returns `default` when there is none.
    #[pyo3(signature = (key, default=None, /))]
    fn setdefault<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let name = text(key)?;
        if let Some(value) = self.agent.runtime_context().get(&name) {
            return to_python(py, &value);
        }
        let default = default.unwrap_or_else(|| py.None().into_bound(py));
        let value = to_value(&default, &format!("key {name:?}"))?;
        stored(py, &self.agent, |context| context.set(&name, value))?;
        self.__getitem__(key)
    }

    /// Writes the entries of a mapping, of pairs, and of keyword arguments, all or none.
    #[pyo3(signature = (other=None, /, **kwargs))]
    fn update(
        &self,
        py: Python<'_>,
        other: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let entries = entries(other, kwargs)?;
        stored(py, &self.agent, |context| context.extend(entries))
    }

    fn __ior__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let entries = entries(Some(other), None)?;
        stored(other.py(), &self.agent, |context| context.extend(entries))
    }

    fn __or__<'py>(&self, py: Python<'py>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Ok(other) = other.cast::<PyMapping>() else { return Ok(py.NotImplemented().into_bound(py)) };
        let dict = self.copy(py)?;
        dict.update(other)?;
        Ok(dict.into_any())
    }

    fn __ror__<'py>(&self, py: Python<'py>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Ok(other) = other.cast::<PyMapping>() else { return Ok(py.NotImplemented().into_bound(py)) };
        let dict = PyDict::new(py);
        dict.update(other)?;
        dict.update(self.copy(py)?.as_mapping())?;
        Ok(dict.into_any())
    }

    /// Removes every key.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        stored(py, &self.agent, RuntimeContext::clear)
    }

    /// A plain dict with what is there now.
    fn copy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        map_to_python(py, &self.agent.runtime_context().snapshot())
    }

    fn __copy__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.copy(py)
    }

    fn __deepcopy__<'py>(&self, py: Python<'py>, _memo: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        self.copy(py)
    }

    /// A live view of the keys.
    fn keys<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        abstract_class(slf.py(), "KeysView")?.call1((slf,))
    }

    /// A live view of the values.
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        abstract_class(slf.py(), "ValuesView")?.call1((slf,))
    }

    /// A live view of the pairs.
    fn items<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        abstract_class(slf.py(), "ItemsView")?.call1((slf,))
    }

    fn __eq__<'py>(&self, py: Python<'py>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(other) = other.cast::<Self>() {
            let same = self.agent.runtime_context().snapshot() == other.get().agent.runtime_context().snapshot();
            return Ok(same.into_pyobject(py)?.to_owned().into_any());
        }
        let Ok(other) = other.cast::<PyMapping>() else { return Ok(py.NotImplemented().into_bound(py)) };
        let dict = PyDict::new(py);
        dict.update(other)?;
        let same = self.copy(py)?.eq(dict)?;
        Ok(same.into_pyobject(py)?.to_owned().into_any())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("RuntimeContext({})", self.copy(py)?.repr()?))
    }
}

/// Where an agent keeps its view, so that it is the same object each time.
pub(crate) struct ContextView(PyOnceLock<Py<PyRuntimeContext>>);

impl ContextView {
    pub(crate) fn new() -> Self {
        Self(PyOnceLock::new())
    }

    pub(crate) fn of<'py>(&self, py: Python<'py>, agent: &Agent) -> PyResult<Bound<'py, PyRuntimeContext>> {
        let view = self.0.get_or_try_init(py, || Py::new(py, PyRuntimeContext::new(agent.clone())))?;
        Ok(view.bind(py).clone())
    }
}
