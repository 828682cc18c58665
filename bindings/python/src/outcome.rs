//! `cadenza.Outcome`: the envelope that every dynamic call returns, with its value converted when first asked for.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyString, PyTuple, PyType};

use cadenza_core::outcome::{ErrorType, Outcome};
use cadenza_core::value::{Map, Value};

use crate::convert::{map_to_python, to_python, to_value};
use crate::errors::OutcomeError;
use crate::notebook;

/// Bytes of a value or message in a `repr`.
const SHOWN: usize = 200;

/// What a dynamic call returned: a value, or an error.
///
/// `ok` and `error` say which; `value` is the value (None on an error); `unwrap()` returns it or raises
/// `cadenza.OutcomeError`. An Outcome has no truth value and stands for nothing but itself.
#[pyclass(module = "cadenza", name = "Outcome", frozen, weakref)]
pub(crate) struct PyOutcome {
    outcome: Outcome,
    value: PyOnceLock<Py<PyAny>>,
    /// The call's metadata; given at once for an outcome that came out of a pickle.
    metadata: PyOnceLock<Py<PyDict>>,
}

impl PyOutcome {
    pub(crate) fn new(outcome: Outcome) -> Self {
        Self { outcome, value: PyOnceLock::new(), metadata: PyOnceLock::new() }
    }

    /// Rebuilds an outcome from `to_dict()`: what `pickle` calls.
    fn from_dict(fields: &Bound<'_, PyDict>) -> PyResult<Self> {
        let Value::Map(mut map) = to_value(fields, "Outcome")? else {
            return Err(PyTypeError::new_err("expected what Outcome.to_dict() returns"));
        };
        let mut text = |name: &str| match map.remove(name) {
            Some(Value::String(text)) => text,
            Some(_) | None => String::new(),
        };
        let (status, role, method) = (text("status"), text("role"), text("method"));
        let (error_type, message) = (text("error_type"), text("error_message"));
        let retriable = map.get("retriable").and_then(Value::as_bool).unwrap_or(false);
        let mut outcome = match status.as_str() {
            "ok" => Outcome::of_value(map.remove("value").unwrap_or_default()),
            _ => Outcome::of_error(ErrorType::from_name(&error_type), message, retriable),
        };
        outcome.role = role.into();
        outcome.method = method.into();
        let metadata = map.remove("metadata").unwrap_or_default();
        let metadata = map_to_python(fields.py(), metadata.as_map().unwrap_or(&Map::new()))?;
        let py = fields.py();
        let restored = Self::new(outcome);
        restored.metadata.get_or_init(py, || metadata.unbind());
        Ok(restored)
    }
}

#[pymethods]
impl PyOutcome {
    /// `Outcome[int]`, for annotations: the type of the value.
    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, item: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyModule::import(class.py(), "types")?.getattr("GenericAlias")?.call1((class, item))
    }

    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("status", "value")
    }

    /// "ok" or "error".
    #[getter]
    fn status(&self, py: Python<'_>) -> Py<PyString> {
        let status = if self.outcome.ok() { intern!(py, "ok") } else { intern!(py, "error") };
        status.clone().unbind()
    }

    /// True for a value.
    #[getter]
    fn ok(&self) -> bool {
        self.outcome.ok()
    }

    /// True for an error.
    #[getter]
    fn error(&self) -> bool {
        !self.outcome.ok()
    }

    /// The value; None on an error. Converted when first read, and the same object from then on.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let value = self.value.get_or_try_init(py, || to_python(py, self.outcome.value()).map(Bound::unbind))?;
        Ok(value.bind(py).clone())
    }

    /// The kind of failure, such as "provider", "timeout", or a name that the program chose; None on ok.
    #[getter]
    fn error_type(&self) -> Option<&str> {
        self.outcome.error().map(|error| error.error_type.as_str())
    }

    /// What happened and what to do; None on ok.
    #[getter]
    fn error_message(&self) -> Option<&str> {
        self.outcome.error().map(|error| error.message.as_str())
    }

    /// Whether the same call may succeed when it is made again.
    #[getter]
    fn retriable(&self) -> bool {
        self.outcome.error().is_some_and(|error| error.retriable)
    }

    /// Role of the agent that answered.
    #[getter]
    fn role(&self) -> &str {
        &self.outcome.role
    }

    /// The method that was called.
    #[getter]
    fn method(&self) -> &str {
        &self.outcome.method
    }

    /// How the call went: agent_outcome, reason, call_id, trace_id, head, length, inferences, tokens, attempts, source,
    /// reuse, language, code, durability, accounting (an entry for every request to a model), and note where there is one.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metadata = self.metadata.get_or_try_init(py, || {
            let map = self.outcome.metadata.as_ref().map(|metadata| metadata.to_map()).unwrap_or_default();
            map_to_python(py, &map).map(Bound::unbind)
        })?;
        Ok(metadata.bind(py).clone())
    }

    /// The value, or `default` on an error.
    fn value_or<'py>(&self, py: Python<'py>, default: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if self.outcome.ok() { self.value(py) } else { Ok(default) }
    }

    /// The value; raises `cadenza.OutcomeError`, which carries this outcome, on an error.
    fn unwrap<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        let Some(error) = this.outcome.error() else { return this.value(slf.py()) };
        let call = if this.outcome.role.is_empty() {
            String::new()
        } else {
            format!("{}.{}: ", this.outcome.role, this.outcome.method)
        };
        let raised = OutcomeError::new_err(format!("{call}{}: {}", error.error_type, error.message));
        raised.value(slf.py()).setattr(intern!(slf.py(), "outcome"), slf)?;
        Err(raised)
    }

    /// The envelope as plain data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("status", self.status(py))?;
        dict.set_item("value", to_python(py, self.outcome.value())?)?;
        dict.set_item("error_type", self.error_type())?;
        dict.set_item("error_message", self.error_message())?;
        dict.set_item("retriable", self.retriable())?;
        dict.set_item("role", self.role())?;
        dict.set_item("method", self.method())?;
        dict.set_item("metadata", self.metadata(py)?.copy()?)?;
        Ok(dict)
    }

    fn __bool__(&self) -> PyResult<bool> {
        Err(PyTypeError::new_err(
            "an Outcome has no truth value: use `.ok` to ask whether the call succeeded, or `.value` for what it returned",
        ))
    }

    fn __eq__<'py>(&self, py: Python<'py>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match other.cast::<Self>() {
            Ok(other) => Ok((self.outcome == other.get().outcome).into_pyobject(py)?.to_owned().into_any()),
            Err(_) => Ok(py.NotImplemented().into_bound(py)),
        }
    }

    fn __repr__(&self) -> String {
        match self.outcome.error() {
            None => format!("Outcome(ok, {})", cut(&self.outcome.value().to_json())),
            Some(error) => format!("Outcome(error, {}: {})", error.error_type, cut(&error.message)),
        }
    }

    fn _repr_html_(&self) -> String {
        notebook::outcome(&self.outcome)
    }

    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        let copied = Self::new(self.outcome.clone());
        let metadata = self.metadata(py)?.copy()?.unbind();
        copied.metadata.get_or_init(py, || metadata);
        Ok(copied)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let restore = PyModule::import(py, "cadenza._core")?.getattr("_outcome_from_dict")?;
        Ok((restore, PyTuple::new(py, [self.to_dict(py)?])?))
    }
}

/// What `pickle` calls to rebuild an Outcome.
#[pyfunction]
pub(crate) fn _outcome_from_dict(fields: &Bound<'_, PyDict>) -> PyResult<PyOutcome> {
    PyOutcome::from_dict(fields)
}

/// At most [`SHOWN`] bytes, with a sign when something was cut off.
pub(crate) fn cut(text: &str) -> String {
    if text.len() <= SHOWN {
        return text.to_owned();
    }
    let end = (0..=SHOWN).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0);
    format!("{}…", &text[..end])
}
