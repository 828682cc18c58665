//! `cadenza.Program`: a kept program with what is known about it, and what people do with it.

use pyo3::exceptions::{PyKeyError, PyLookupError, PyOSError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyString};

use cadenza_core::program::registry::ProgramState;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::repertoire::{self, FIELDS, Listed, RepertoireError};

use crate::context::abstract_class;
use crate::convert::{fields, to_python};
use crate::errors::store_error;
use crate::notebook;

/// A kept program as it was when it was asked for: text, evidence and counters.
///
/// It is a mapping too, with the same keys for every program: `dict(program)`, `pandas.DataFrame(runtime.programs())`.
#[pyclass(module = "cadenza", name = "Program", frozen, mapping)]
pub(crate) struct PyProgram {
    runtime: Runtime,
    listed: Listed,
}

impl PyProgram {
    pub(crate) fn new(runtime: &Runtime, listed: Listed) -> Self {
        Self { runtime: runtime.clone(), listed }
    }

    fn with(&self, listed: Listed) -> Self {
        Self::new(&self.runtime, listed)
    }

    pub(crate) fn set_state(&self, py: Python<'_>, state: ProgramState) -> PyResult<Self> {
        if state == ProgramState::Candidate {
            return Err(PyValueError::new_err("people make a program active, pinned or quarantined, and no candidate"));
        }
        let id = self.listed.id;
        let set = py.detach(|| self.runtime.set_program_state(id, state)).map_err(|error| store_error(&error))?;
        if !set {
            return Err(PyLookupError::new_err(format!("no program {id}: it was deleted")));
        }
        let found = py.detach(|| self.runtime.find_program(&id.to_hex()));
        found.map(|listed| self.with(listed)).map_err(|error| repertoire_error(&error))
    }
}

/// Makes the class count as a `collections.abc.Mapping`.
pub(crate) fn register(py: Python<'_>) -> PyResult<()> {
    abstract_class(py, "Mapping")?.call_method1(intern!(py, "register"), (py.get_type::<PyProgram>(),))?;
    Ok(())
}

pub(crate) fn program_state(name: &str) -> PyResult<ProgramState> {
    ProgramState::from_name(name).ok_or_else(|| {
        PyValueError::new_err(format!("a state is active, pinned, quarantined or candidate, got {name:?}"))
    })
}

/// What the repertoire refuses, as Python says it.
pub(crate) fn repertoire_error(error: &RepertoireError) -> PyErr {
    match error {
        RepertoireError::Unknown { .. } | RepertoireError::Ambiguous { .. } => {
            PyLookupError::new_err(error.to_string())
        }
        RepertoireError::Compile { .. }
        | RepertoireError::Unchanged(_)
        | RepertoireError::Differs { .. }
        | RepertoireError::Language { .. } => PyValueError::new_err(error.to_string()),
        RepertoireError::Folder(_) | RepertoireError::Lock(_) => PyOSError::new_err(error.to_string()),
        RepertoireError::Store(error) => store_error(error),
    }
}

#[pymethods]
impl PyProgram {
    /// Names it for ever: 64 hexadecimal digits.
    #[getter]
    pub(crate) fn id(&self) -> String {
        self.listed.id.to_hex()
    }

    /// Separates unrelated applications.
    #[getter]
    fn namespace(&self) -> &str {
        &self.listed.saved.key.namespace
    }

    /// Role of the agents that use it.
    #[getter]
    fn role(&self) -> &str {
        &self.listed.saved.key.role
    }

    /// The method it implements.
    #[getter]
    fn method(&self) -> &str {
        &self.listed.saved.key.method
    }

    /// "lua" or "rhai".
    #[getter]
    fn language(&self) -> &'static str {
        self.listed.saved.key.language.as_str()
    }

    /// "active", "pinned" (it comes before all others), "quarantined" (by people, or because it kept failing) or "candidate":
    /// it answers recorded calls otherwise, as `note` says, and does not run until somebody approves it.
    #[getter]
    fn state(&self) -> &'static str {
        self.listed.state().as_str()
    }

    /// Its text.
    #[getter]
    fn code(&self) -> &str {
        &self.listed.saved.code
    }

    /// Checksum of language and text.
    #[getter]
    fn digest(&self) -> String {
        self.listed.checksum().to_hex()
    }

    /// The model that wrote it; "edited" for people.
    #[getter]
    fn model(&self) -> &str {
        &self.listed.saved.model
    }

    /// Types of the arguments it is kept for.
    #[getter]
    fn shape(&self) -> &str {
        &self.listed.saved.key.shape
    }

    /// 1 for the first program under its key.
    #[getter]
    fn version(&self) -> u32 {
        self.listed.saved.version
    }

    /// Times it ran again.
    #[getter]
    fn uses(&self) -> u64 {
        self.listed.saved.uses
    }

    /// Times it failed when run again.
    #[getter]
    fn failures(&self) -> u64 {
        self.listed.saved.failures
    }

    /// What speaks against it: recorded calls that it answers otherwise.
    #[getter]
    fn note(&self) -> Option<&str> {
        self.listed.saved.note.as_deref()
    }

    /// Whether it is no longer used.
    #[getter]
    fn quarantined(&self) -> bool {
        self.listed.saved.quarantined()
    }

    /// When it was kept, as text; None when nobody wrote it down.
    #[getter]
    fn created(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.field(py, "created")
    }

    /// Id of the call that made it; None when people did.
    #[getter]
    fn created_by(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.field(py, "created_by")
    }

    /// Context keys whose values it is bound to.
    #[getter]
    fn context_pins(&self) -> Vec<&str> {
        self.listed.saved.pins.context.keys().map(String::as_str).collect()
    }

    /// The evidence: a dict per input with name, type, read, standing ("free", "unproven": a dry run will decide, or
    /// "pinned") and value, the one of the call that made it, None where that is not known.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let values = py.detach(|| self.runtime.input_values(&self.listed)).map_err(|error| store_error(&error))?;
        let inputs = self.listed.input_names().into_iter().zip(&self.listed.inputs).zip(values);
        inputs
            .map(|(((name, kind), input), value)| {
                let dict = PyDict::new(py);
                dict.set_item("name", name)?;
                dict.set_item("type", kind)?;
                dict.set_item("read", input.read)?;
                dict.set_item("standing", input.standing.as_str())?;
                dict.set_item("value", value.map(|value| to_python(py, &value)).transpose()?)?;
                Ok(dict)
            })
            .collect()
    }

    /// How it differs from the version before it, or from another program, line by line; empty for equal texts. Raises
    /// LookupError when there is no version before it.
    #[pyo3(signature = (other=None))]
    fn diff(&self, py: Python<'_>, other: Option<&Bound<'_, Self>>) -> PyResult<String> {
        if let Some(other) = other {
            return Ok(repertoire::diff(&other.get().listed, &self.listed));
        }
        let before = py.detach(|| self.runtime.previous_version(&self.listed)).map_err(|error| store_error(&error))?;
        let name = self.listed.name();
        before
            .map(|before| repertoire::diff(&before, &self.listed))
            .ok_or_else(|| PyLookupError::new_err(format!("{name} has no earlier version; name another program")))
    }

    /// Every version of its method, oldest first.
    pub(crate) fn history(&self, py: Python<'_>) -> PyResult<Vec<Self>> {
        let versions = py.detach(|| self.runtime.program_history(&self.listed)).map_err(|error| store_error(&error))?;
        Ok(versions.into_iter().map(|listed| self.with(listed)).collect())
    }

    /// Lets it come before all others of its method. Returns it as it is then.
    fn pin(&self, py: Python<'_>) -> PyResult<Self> {
        self.set_state(py, ProgramState::Pinned)
    }

    /// Leaves it to its evidence again: neither pinned nor quarantined. Returns it as it is then.
    fn approve(&self, py: Python<'_>) -> PyResult<Self> {
        self.set_state(py, ProgramState::Active)
    }

    /// Puts it aside: it does not run any more. Returns it as it is then.
    fn quarantine(&self, py: Python<'_>) -> PyResult<Self> {
        self.set_state(py, ProgramState::Quarantined)
    }

    /// Takes another text for it: a new version, pinned, which is returned. Raises ValueError for a text that does not
    /// compile, is the one that is there, or answers recorded calls otherwise (unless accept=True).
    #[pyo3(signature = (code, *, accept=false))]
    pub(crate) fn edit(&self, py: Python<'_>, code: &str, accept: bool) -> PyResult<Self> {
        let edited = py.detach(|| self.runtime.edit_program(&self.listed, code, accept));
        edited.map(|listed| self.with(listed)).map_err(|error| repertoire_error(&error))
    }

    /// Deletes it; the calls that ran it keep its text.
    pub(crate) fn delete(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.runtime.delete_program(&self.listed)).map_err(|error| store_error(&error))
    }

    /// A dict with the same keys for every program.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        fields(py, &FIELDS, &self.listed.to_map())
    }

    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        match self.get(key, None)? {
            Some(value) => Ok(value),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __len__(&self) -> usize {
        FIELDS.len()
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(match key.cast::<PyString>() {
            Ok(name) => FIELDS.contains(&&*name.to_cow()?),
            Err(_) => false,
        })
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.to_dict(py)?.into_any().try_iter()
    }

    /// The value under `key`, or `default`.
    #[pyo3(signature = (key, default=None, /))]
    fn get(&self, key: &Bound<'_, PyAny>, default: Option<Py<PyAny>>) -> PyResult<Option<Py<PyAny>>> {
        if !self.__contains__(key)? {
            return Ok(default);
        }
        let name: String = key.extract()?;
        self.field(key.py(), &name).map(Some)
    }

    /// The names of what is known.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_dict(py)?.call_method0("keys")
    }

    /// What is known.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_dict(py)?.call_method0("values")
    }

    /// Names and what is known.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_dict(py)?.call_method0("items")
    }

    fn __repr__(&self) -> String {
        format!("<Program {}.{} ({}, version {})>", self.role(), self.method(), self.language(), self.version())
    }

    fn _repr_html_(&self) -> String {
        notebook::program(&self.listed)
    }
}

impl PyProgram {
    fn field(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        let value = self.listed.to_map().remove(name).unwrap_or_default();
        Ok(to_python(py, &value)?.unbind())
    }
}
