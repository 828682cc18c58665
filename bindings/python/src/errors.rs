//! Python exceptions. Errors in *use* are exceptions; errors of a *call* are Outcomes and only raise in `unwrap`.

use pyo3::create_exception;
use pyo3::exceptions::{PyAttributeError, PyException, PyRuntimeError, PyRuntimeWarning, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyTuple, PyType};

use cadenza_core::agent::UseError;
use cadenza_core::agent::dispatch::NameError;
use cadenza_core::runtime::options::OptionError;
use cadenza_core::store::StoreError;
use cadenza_core::warning::take_warnings;

create_exception!(cadenza, CadenzaError, PyException, "Base class of the exceptions that Cadenza itself raises.");
create_exception!(
    cadenza,
    OutcomeError,
    CadenzaError,
    "Raised by `Outcome.unwrap()` on an error outcome, which it carries as `.outcome`."
);
create_exception!(
    cadenza,
    PyStoreError,
    CadenzaError,
    "The store of a named agent, or of a runtime, could not be read or written."
);

/// `cadenza.OptionError`: a `CadenzaError` that is both a `TypeError` (an unknown name, as for any unknown keyword
/// argument) and a `ValueError` (a value out of bounds).
pub(crate) fn option_error_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let made = TYPE.get_or_try_init(py, || {
        let bases = PyTuple::new(
            py,
            [py.get_type::<CadenzaError>(), py.get_type::<PyTypeError>(), py.get_type::<PyValueError>()],
        )?;
        let body = PyDict::new(py);
        body.set_item("__module__", "cadenza")?;
        body.set_item("__doc__", "An option that is unknown, out of bounds, or not available in this version.")?;
        let made = py.get_type::<PyType>().call1(("OptionError", bases, body))?;
        PyResult::Ok(made.cast_into::<PyType>()?.unbind())
    })?;
    Ok(made.bind(py))
}

/// `cadenza.BusyError`: a `CadenzaError` that is a `RuntimeError` too.
pub(crate) fn busy_error_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let made = TYPE.get_or_try_init(py, || {
        let bases = PyTuple::new(py, [py.get_type::<CadenzaError>(), py.get_type::<PyRuntimeError>()])?;
        let body = PyDict::new(py);
        body.set_item("__module__", "cadenza")?;
        body.set_item("__doc__", "A model or tool called the agent whose call it works for.")?;
        let made = py.get_type::<PyType>().call1(("BusyError", bases, body))?;
        PyResult::Ok(made.cast_into::<PyType>()?.unbind())
    })?;
    Ok(made.bind(py))
}

/// A callable wants to call the agent that waits for it.
pub(crate) fn busy(py: Python<'_>, role: &str) -> PyErr {
    let message = format!(
        "the agent {role:?} is busy with the call that this model or tool works for, and takes one call at a time; call \
         another agent, or read its runtime_context"
    );
    match busy_error_type(py) {
        Ok(class) => PyErr::from_type(class.clone(), message),
        Err(error) => error,
    }
}

/// An option error as a Python exception.
pub(crate) fn option_error(py: Python<'_>, error: &OptionError) -> PyErr {
    option_error_text(py, error.to_string())
}

/// An option error that only this binding can see, such as a tool without type hints.
pub(crate) fn option_error_text(py: Python<'_>, message: String) -> PyErr {
    match option_error_type(py) {
        Ok(class) => PyErr::from_type(class.clone(), message),
        Err(error) => error,
    }
}

/// Wrong use as a Python exception.
pub(crate) fn use_error(py: Python<'_>, error: &UseError) -> PyErr {
    match error {
        UseError::Option(error) => option_error(py, error),
        UseError::Name(NameError::Private(_)) => PyAttributeError::new_err(error.to_string()),
        UseError::Name(_) | UseError::Role(_) | UseError::Value(_) => PyValueError::new_err(error.to_string()),
        UseError::SetterArguments(_) => PyTypeError::new_err(error.to_string()),
        UseError::Store(error) => store_error(error),
    }
}

/// What the store could not do, as a Python exception.
pub(crate) fn store_error(error: &StoreError) -> PyErr {
    PyStoreError::new_err(error.to_string())
}

/// Shows what the core warns of.
pub(crate) fn show_warnings(py: Python<'_>) -> PyResult<()> {
    take_warnings().into_iter().try_for_each(|warning| warn(py, warning))
}

/// Shows a text as Python shows warnings; `2` is the line that made the runtime or the agent.
pub(crate) fn warn(py: Python<'_>, text: String) -> PyResult<()> {
    let warnings = PyModule::import(py, intern!(py, "warnings"))?;
    warnings.call_method1(intern!(py, "warn"), (text, py.get_type::<PyRuntimeWarning>(), 2)).map(drop)
}
