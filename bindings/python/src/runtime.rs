//! `cadenza.Runtime`: what agents share, and the view of what happened.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use pyo3::exceptions::{PyLookupError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyType};

use cadenza_core::ids::CallId;
use cadenza_core::program::{Language, lock};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::calls::{self, CALL_FIELDS};
use cadenza_core::runtime::repertoire::{ProgramQuery, RepertoireError};
use cadenza_core::runtime::replay::LookBackError;
use cadenza_core::store::{CallQuery, StoreError};

use crate::agent::PyAgent;
use crate::async_agent::PyAsyncAgent;
use crate::convert::{fields, map_to_python, to_python};
use crate::errors::{option_error, show_warnings, store_error};
use crate::options;
use crate::program::{PyProgram, program_state, repertoire_error};
use crate::surface::closed;
use crate::tree::PyCallTree;

/// The name in log lines.
const NAME: &str = "cadenza-python";

/// Whether a runtime is still open; shared with its agents.
#[derive(Clone, Default)]
pub(crate) struct Open(Arc<AtomicBool>);

impl Open {
    /// Refuses when it was closed.
    pub(crate) fn check(&self) -> PyResult<()> {
        if self.0.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    fn close(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What agents share: model, language, log, limits, tools, kept programs and ended calls.
///
/// Options are keyword arguments, such as Runtime(model="openai:gpt-5.1", language="lua", log="calls.jsonl"); an unknown
/// one raises cadenza.OptionError. Use it as a context manager, or close() it, to have the log written out.
///
/// Which model: model, base_url, api_key, api_key_file, headers, proxy, output, stream, language, providers. How it is
/// asked: temperature, top_p, repeat_penalty, seed, max_output_tokens, reasoning_effort, extended_thinking, extra,
/// force_params; a local model also: context_size, threads, gpu_layers. What it costs: prices, max_cost. What is written:
/// log, logging, debug, store, record, name, durability. Who watches: verbose. Attempts: max_generation_attempts,
/// execution_repairs, provider_timeout_seconds. One program:
/// program_timeout_seconds, max_instructions, max_memory_bytes, isolation. One trace: call_timeout_seconds,
/// max_delegation_depth, max_calls, max_tokens. What is wanted: purpose, deliverable, acceptance, failure_policy,
/// intent_signature, delegation_contract. And: tools, reuse, namespace. The README describes each.
#[pyclass(module = "cadenza", name = "Runtime", frozen, weakref)]
pub(crate) struct PyRuntime {
    runtime: Runtime,
    open: Open,
}

impl PyRuntime {
    fn build(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let options = options::read_over_configuration(py, options)?;
        // Resolving a model may look for a local server.
        let built = py.detach(|| Runtime::builder().name(NAME).options(options).build());
        let runtime = built.map_err(|error| option_error(py, &error))?;
        show_warnings(py)?;
        Ok(Self::of(runtime))
    }

    fn default(py: Python<'_>) -> PyResult<&Bound<'_, Self>> {
        static DEFAULT: PyOnceLock<Py<PyRuntime>> = PyOnceLock::new();
        let made = DEFAULT.get_or_try_init(py, || Py::new(py, Self::build(py, None)?))?;
        Ok(made.bind(py))
    }

    /// A runtime that Rust made, for `cadenza conform`.
    pub(crate) fn of(runtime: Runtime) -> Self {
        Self { runtime, open: Open::default() }
    }

    /// The runtime of agents that name none.
    pub(crate) fn default_parts(py: Python<'_>) -> PyResult<(Runtime, Open)> {
        Ok(Self::default(py)?.get().parts())
    }

    pub(crate) fn parts(&self) -> (Runtime, Open) {
        (self.runtime.clone(), self.open.clone())
    }
}

#[pymethods]
impl PyRuntime {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Self::build(py, options)
    }

    /// A new agent with this runtime's settings, unless an option says otherwise.
    #[pyo3(signature = (role, **options))]
    fn agent<'py>(
        slf: &Bound<'py, Self>,
        role: &Bound<'py, PyString>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        make(slf, slf.py().get_type::<PyAgent>(), role, options)
    }

    /// The same, as an AsyncAgent.
    #[pyo3(signature = (role, **options))]
    fn async_agent<'py>(
        slf: &Bound<'py, Self>,
        role: &Bound<'py, PyString>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        make(slf, slf.py().get_type::<PyAsyncAgent>(), role, options)
    }

    /// The model that answers, as logged.
    #[getter]
    fn model(&self) -> &str {
        self.runtime.model()
    }

    /// The language of generated programs: "lua" or "rhai".
    #[getter]
    fn language(&self) -> &'static str {
        self.runtime.language().as_str()
    }

    /// Ended calls as dicts, oldest first: the newest `limit` of the store, or of this runtime's last 1,000, that are asked
    /// for. Every dict has the same keys, None where nothing is known, so that pandas.DataFrame reads the list. `status` is
    /// "ok", "error" or "interrupted", `agent` the name of an agent, `since` a datetime, a time as text ("2026-11-22", in
    /// UTC) or an age ("90m", "2h", "7d").
    #[pyo3(signature = (limit=1000, *, role=None, method=None, status=None, agent=None, namespace=None, since=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn calls<'py>(
        &self,
        py: Python<'py>,
        limit: usize,
        role: Option<String>,
        method: Option<String>,
        status: Option<String>,
        agent: Option<String>,
        namespace: Option<String>,
        since: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        if let Some(status) = status.as_deref().filter(|status| !CallQuery::STATUSES.contains(status)) {
            let known = CallQuery::STATUSES.join(", ");
            return Err(PyValueError::new_err(format!("a status is one of {known}, got {status:?}")));
        }
        let since = since.map(moment).transpose()?;
        let query =
            CallQuery { namespace, role, method, agent_name: agent, status, since, limit, ..CallQuery::default() };
        let list = PyList::empty(py);
        for call in py.detach(|| self.runtime.find_calls(&query)).map_err(|error| store_error(&error))? {
            list.append(fields(py, &CALL_FIELDS, &call)?)?;
        }
        Ok(list)
    }

    /// One ended call as a dict; raises LookupError when it is neither in the store nor among the last 1,000.
    fn call<'py>(&self, py: Python<'py>, call_id: &str) -> PyResult<Bound<'py, PyDict>> {
        let id = parse(call_id)?;
        let call = py.detach(|| self.runtime.call_map(id)).map_err(|error| store_error(&error))?;
        fields(py, &CALL_FIELDS, &call.ok_or_else(|| unknown(&LookBackError::Unknown(id)))?)
    }

    /// One ended call with the calls that its program made, and theirs: shows itself as a tree in a notebook. Raises
    /// LookupError when it is neither in the store nor among the last 1,000.
    fn tree(&self, py: Python<'_>, call_id: &str) -> PyResult<PyCallTree> {
        let id = parse(call_id)?;
        let tree = py.detach(|| self.runtime.call_tree(id)).map_err(|error| store_error(&error))?;
        tree.map(PyCallTree::new).ok_or_else(|| unknown(&LookBackError::Unknown(id)))
    }

    /// Named agents of the store as dicts: namespace, name, role, version (changes of its context) and calls.
    fn agents<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let Some(store) = self.runtime.store() else { return Ok(list) };
        for agent in py.detach(|| store.agents()).map_err(|error| store_error(&error))? {
            let dict = PyDict::new(py);
            dict.set_item("namespace", agent.namespace)?;
            dict.set_item("name", agent.name)?;
            dict.set_item("role", agent.role)?;
            dict.set_item("version", agent.version)?;
            dict.set_item("calls", agent.calls)?;
            list.append(dict)?;
        }
        Ok(list)
    }

    /// Where calls, programs and named agents are kept: a path, or ":memory:".
    #[getter]
    fn store(&self) -> String {
        self.runtime.store().map_or_else(|| ":memory:".to_owned(), |store| store.location())
    }

    /// Recomputes the hash chain of an ended call: {"ok": True, "head": ..., "length": ..., "detail": None}, or ok False
    /// with the first place that does not fit as detail. Of a stored call, every byte and its place are checked too.
    /// Without a call, the whole store: {"ok": True, "calls": ..., "entries": ..., "detail": None}. Raises LookupError for
    /// a call that is neither in the store nor among the last 1,000.
    #[pyo3(signature = (call_id=None))]
    fn verify<'py>(&self, py: Python<'py>, call_id: Option<&str>) -> PyResult<Bound<'py, PyDict>> {
        let Some(call_id) = call_id else { return self.verify_store(py) };
        let id = parse(call_id)?;
        let looked = py.detach(|| self.runtime.verify(id));
        let dict = PyDict::new(py);
        let (verified, detail) = judged(looked)?;
        dict.set_item("ok", verified.is_some())?;
        dict.set_item("head", verified.map(|verified| verified.head.to_hex()))?;
        dict.set_item("length", verified.map(|verified| verified.length))?;
        dict.set_item("detail", detail)?;
        Ok(dict)
    }

    /// Replays an ended call offline: feeds its recorded inputs to a fresh kernel, and runs its programs again on what they
    /// were told. {"ok": True, "agent_outcome": ..., "reason": ..., "value": ..., "programs": how many ran again, "left_out":
    /// why others did not, "detail": None}, or ok False with the first difference as detail. Raises LookupError when there
    /// is no such call.
    fn replay<'py>(&self, py: Python<'py>, call_id: &str) -> PyResult<Bound<'py, PyDict>> {
        let id = parse(call_id)?;
        let looked = py.detach(|| self.runtime.replay(id));
        let dict = PyDict::new(py);
        let (replay, detail) = judged(looked)?;
        let ended = replay.as_ref().map(|replay| &replay.ended);
        dict.set_item("ok", ended.is_some())?;
        dict.set_item("agent_outcome", ended.map(|ended| ended.agent_outcome.as_str()))?;
        dict.set_item("reason", ended.map(|ended| ended.reason.as_str()))?;
        let value = ended.and_then(|ended| ended.value.as_deref());
        dict.set_item("value", value.map(|value| to_python(py, value)).transpose()?)?;
        dict.set_item("programs", replay.as_ref().map_or(0, |replay| replay.programs))?;
        dict.set_item("left_out", replay.as_ref().map_or(&[] as &[_], |replay| &replay.left_out))?;
        dict.set_item("detail", detail)?;
        Ok(dict)
    }

    /// Replays every ended call: {"ok": True, "calls": ..., "programs": ..., "left_out": ..., "without_transcript": ...,
    /// "detail": None}, or ok False with the first difference as detail.
    fn replay_all<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (report, detail) = judged(py.detach(|| self.runtime.replay_all()))?;
        let dict = PyDict::new(py);
        dict.set_item("ok", report.is_some())?;
        let report = report.unwrap_or_default();
        dict.set_item("calls", report.calls)?;
        dict.set_item("programs", report.programs)?;
        dict.set_item("left_out", report.left_out)?;
        dict.set_item("without_transcript", report.without_transcript)?;
        dict.set_item("detail", detail)?;
        Ok(dict)
    }

    /// Kept programs that are asked for, of the store if there is one. A Program is a mapping too: pandas.DataFrame reads
    /// the list. `state` is "active", "pinned", "quarantined" or "candidate".
    #[pyo3(signature = (role=None, *, method=None, namespace=None, language=None, state=None))]
    fn programs(
        &self,
        py: Python<'_>,
        role: Option<String>,
        method: Option<String>,
        namespace: Option<String>,
        language: Option<&str>,
        state: Option<&str>,
    ) -> PyResult<Vec<PyProgram>> {
        let state = state.map(program_state).transpose()?;
        let language = match language {
            None => None,
            Some(name) => Some(
                Language::from_name(name)
                    .ok_or_else(|| PyValueError::new_err(format!("a language is \"lua\" or \"rhai\", got {name:?}")))?,
            ),
        };
        let query = ProgramQuery { namespace, role, method, language, state };
        let listed = py.detach(|| self.runtime.programs(&query)).map_err(|error| store_error(&error))?;
        Ok(listed.into_iter().map(|listed| PyProgram::new(&self.runtime, listed)).collect())
    }

    /// The newest kept program of a method: program("calculator", "add"). With one argument the one program that is meant
    /// by its id, by at least four digits of its beginning, or by "calculator.add" where the method has one program. Raises
    /// LookupError when there is none, or more than one.
    #[pyo3(signature = (name, method=None))]
    fn program(&self, py: Python<'_>, name: &str, method: Option<&str>) -> PyResult<PyProgram> {
        let Some(method) = method else { return self.meant(py, name) };
        let found = py.detach(|| self.runtime.program(name, method)).map_err(|error| store_error(&error))?;
        found.map(|listed| PyProgram::new(&self.runtime, listed)).ok_or_else(|| {
            PyLookupError::new_err(format!(
                "no kept program for {name}.{method}: it was not called yet, did not succeed, or is not reused"
            ))
        })
    }

    /// Takes another text for a program: a new version, pinned. Raises ValueError for a text that does not compile, is the
    /// one that is there, or answers recorded calls otherwise (unless accept=True), and LookupError for an unknown program;
    /// then nothing changed.
    #[pyo3(signature = (program, code, *, accept=false))]
    fn edit_program(
        &self,
        py: Python<'_>,
        program: &Bound<'_, PyAny>,
        code: &str,
        accept: bool,
    ) -> PyResult<PyProgram> {
        self.named(py, program)?.edit(py, code, accept)
    }

    /// Deletes a program; the calls that ran it keep its text. Raises LookupError for an unknown one.
    fn delete_program(&self, py: Python<'_>, program: &Bound<'_, PyAny>) -> PyResult<()> {
        self.named(py, program)?.delete(py)
    }

    /// Every version of a method, oldest first: by "calculator.add", or by one of its programs.
    fn history(&self, py: Python<'_>, program: &Bound<'_, PyAny>) -> PyResult<Vec<PyProgram>> {
        if let Ok(program) = program.cast::<PyProgram>() {
            return program.get().history(py);
        }
        let name: String = program.extract()?;
        let listed = py.detach(|| self.runtime.history(&name)).map_err(|error| repertoire_error(&error))?;
        Ok(listed.into_iter().map(|listed| PyProgram::new(&self.runtime, listed)).collect())
    }

    /// Writes the methods of a role, or one of them, as documented source files with tests made of their recorded calls, and
    /// a stub with their types. Returns the paths.
    #[pyo3(signature = (role, folder, method=None))]
    fn eject(&self, py: Python<'_>, role: &str, folder: PathBuf, method: Option<&str>) -> PyResult<Vec<PathBuf>> {
        py.detach(|| self.runtime.eject(role, method, &folder)).map_err(|error| repertoire_error(&error))
    }

    /// Writes every kept program into a folder of source files, with an index. Returns their number.
    fn export(&self, py: Python<'_>, folder: PathBuf) -> PyResult<usize> {
        py.detach(|| self.runtime.export(&folder)).map_err(|error| repertoire_error(&error))
    }

    /// Takes in a folder that `export` wrote; an edited file becomes a pinned program. Returns their number. Raises
    /// ValueError, and takes nothing in, when a file or the index is wrong, or when an edited program answers recorded calls
    /// otherwise (unless accept=True).
    #[pyo3(signature = (folder, *, accept=false))]
    fn import_programs(&self, py: Python<'_>, folder: PathBuf, accept: bool) -> PyResult<usize> {
        match py.detach(|| self.runtime.import(&folder, accept)) {
            Ok(taken) => Ok(taken.len()),
            Err(RepertoireError::Folder(error)) => Err(PyValueError::new_err(error.to_string())),
            Err(error) => Err(repertoire_error(&error)),
        }
    }

    /// Writes the lock file of the programs that may run now, for reuse="locked". Returns their number.
    #[pyo3(signature = (path=None))]
    fn lock(&self, py: Python<'_>, path: Option<PathBuf>) -> PyResult<usize> {
        let path = path.unwrap_or_else(|| lock::FILE.into());
        py.detach(|| self.runtime.lock(&path)).map_err(|error| repertoire_error(&error))
    }

    /// Pins a program ("pinned": it comes before all others), puts it aside ("quarantined"), or leaves it to its evidence
    /// again ("active"). Raises LookupError for an unknown one.
    fn set_program_state(&self, py: Python<'_>, program: &Bound<'_, PyAny>, state: &str) -> PyResult<()> {
        let state = program_state(state)?;
        self.named(py, program)?.set_state(py, state).map(drop)
    }

    /// What all requests to models used since this runtime was made, a dict for each target: requests, failed,
    /// input_tokens, output_tokens, cached_tokens, total_tokens, cost_usd (with `prices`), unpriced (requests without a
    /// price), latency_ms. Sorted by target; pandas.DataFrame reads the list.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (target, total) in self.runtime.usage() {
            list.append(map_to_python(py, &total.to_map(&target))?)?;
        }
        Ok(list)
    }

    /// Log lines that were lost since the start.
    #[getter]
    fn dropped_log_lines(&self) -> u64 {
        self.runtime.dropped_log_lines()
    }

    /// Waits, for at most 5 s, until the log is out.
    fn flush(&self, py: Python<'_>) {
        py.detach(|| self.runtime.flush());
    }

    /// Writes the log out and refuses further calls and agents. Closing twice is fine.
    fn close(&self, py: Python<'_>) {
        self.open.close();
        self.flush(py);
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.check().is_err()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (exc_type=None, exc_value=None, traceback=None, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: Option<&Bound<'_, PyAny>>,
        exc_value: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) {
        // What happened inside the block does not change how the runtime ends.
        let _ = (exc_type, exc_value, traceback);
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<Runtime model={:?}, language={:?}{closed}>", self.model(), self.language())
    }
}

impl PyRuntime {
    fn meant(&self, py: Python<'_>, name: &str) -> PyResult<PyProgram> {
        let found = py.detach(|| self.runtime.find_program(name)).map_err(|error| repertoire_error(&error))?;
        Ok(PyProgram::new(&self.runtime, found))
    }

    /// The program itself, or the one of that name.
    fn named(&self, py: Python<'_>, program: &Bound<'_, PyAny>) -> PyResult<PyProgram> {
        match program.cast::<PyProgram>() {
            Ok(program) => self.meant(py, &program.get().id()),
            Err(_) => self.meant(py, &program.extract::<String>()?),
        }
    }

    fn verify_store<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Some(store) = self.runtime.store() else {
            return Err(PyValueError::new_err("there is no store to verify; name a call, or set `store`"));
        };
        let (report, detail) = match py.detach(|| store.verify()) {
            Ok(report) => (Some(report), None),
            Err(error @ (StoreError::Tampered { .. } | StoreError::Corrupt { .. })) => (None, Some(error.to_string())),
            Err(error) => return Err(store_error(&error)),
        };
        let dict = PyDict::new(py);
        dict.set_item("ok", report.is_some())?;
        dict.set_item("calls", report.as_ref().map(|report| report.calls))?;
        dict.set_item("entries", report.map(|report| report.entries))?;
        dict.set_item("detail", detail)?;
        Ok(dict)
    }
}

fn parse(call_id: &str) -> PyResult<CallId> {
    CallId::parse(call_id)
        .ok_or_else(|| PyValueError::new_err(format!("{call_id:?} is not a call id: 32 hexadecimal digits")))
}

/// A datetime, or a moment as text.
fn moment(since: &Bound<'_, PyAny>) -> PyResult<SystemTime> {
    let text: String = match since.cast::<PyString>() {
        Ok(text) => text.extract()?,
        // A naive datetime is local time, as everywhere in Python.
        Err(_) => since.call_method0("astimezone")?.call_method0("isoformat")?.extract()?,
    };
    calls::since(&text).map_err(PyValueError::new_err)
}

fn unknown(error: &LookBackError) -> PyErr {
    PyLookupError::new_err(error.to_string())
}

/// What looking back found, or why it is not confirmed. Only an unknown call is the host's fault.
fn judged<T>(looked: Result<T, LookBackError>) -> PyResult<(Option<T>, Option<String>)> {
    match looked {
        Ok(found) => Ok((Some(found), None)),
        Err(error @ LookBackError::Unknown(_)) => Err(unknown(&error)),
        Err(error) => Ok((None, Some(error.to_string()))),
    }
}

fn make<'py>(
    runtime: &Bound<'py, PyRuntime>,
    class: Bound<'py, PyType>,
    role: &Bound<'py, PyString>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let keywords = options.map_or_else(|| Ok(PyDict::new(runtime.py())), |options| options.copy())?;
    keywords.set_item("runtime", runtime)?;
    class.call((role,), Some(&keywords))
}

/// The runtime of agents that name none; made from the configuration file and the environment when first needed.
#[pyfunction]
pub(crate) fn default_runtime(py: Python<'_>) -> PyResult<Py<PyRuntime>> {
    Ok(PyRuntime::default(py)?.clone().unbind())
}
