//! Programs as they are written, for Python: `verbose=True`, and the events of a call of an AsyncAgent.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyStopAsyncIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule};

use cadenza_core::agent::UseError;
use cadenza_core::cancel::CancelToken;
use cadenza_core::outcome::Outcome;
use cadenza_core::runtime::watch::{Feed, Printer, Progress, Told, Watcher};

use crate::async_agent::wake;
use crate::errors::use_error;
use crate::outcome::PyOutcome;

/// `verbose=True`: writes to `sys.stderr`, and in a notebook to the cell's output. One for the whole process, so that no
/// block stands within another.
pub(crate) fn printer() -> Arc<dyn Watcher> {
    static PRINTER: OnceLock<Arc<Printer>> = OnceLock::new();
    PRINTER.get_or_init(|| Printer::new(write)).clone()
}

/// On the printer's thread. What the stream raises is reported as unraisable and costs nothing else.
fn write(text: &str) {
    // At the very end of the process there is no interpreter, and nobody to see it.
    Python::try_attach(|py| {
        let written = PyModule::import(py, intern!(py, "sys")).and_then(|sys| {
            let name = if in_notebook(&sys)? { intern!(py, "stdout") } else { intern!(py, "stderr") };
            let stream = sys.getattr(name)?;
            // A process without a console has none.
            if !stream.is_none() {
                stream.call_method1(intern!(py, "write"), (text,))?;
                stream.call_method0(intern!(py, "flush"))?;
            }
            Ok(())
        });
        if let Err(error) = written {
            error.write_unraisable(py, None);
        }
    });
}

/// Whether this process is a notebook's kernel. That the packages of one were imported says nothing.
fn in_notebook(sys: &Bound<'_, PyModule>) -> PyResult<bool> {
    let py = sys.py();
    let modules = sys.getattr(intern!(py, "modules"))?;
    let ipython = modules.call_method1(intern!(py, "get"), (intern!(py, "IPython"),))?;
    if ipython.is_none() {
        return Ok(false);
    }
    ipython.call_method0(intern!(py, "get_ipython"))?.hasattr(intern!(py, "kernel"))
}

/// What a call that is iterated tells, on its way to the event loop.
#[derive(Default)]
pub(crate) struct Stream {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    feed: Feed,
    ended: Option<Ended>,
    /// The future that the loop waits for.
    waiter: Option<Py<PyAny>>,
    /// Somebody is on the way to the waiter already.
    woken: bool,
    /// The last event was taken.
    over: bool,
}

/// How the call ended, and what a callable raised that ends more than the call.
struct Ended {
    result: Result<Outcome, UseError>,
    raised: Option<PyErr>,
}

/// What comes next.
enum Next {
    Told(Told),
    Ended(Ended),
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Stream")
    }
}

/// What the call tells. A loop that is slow finds less of it: older pieces give way, and are counted.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) stream: Arc<Stream>,
    pub(crate) event_loop: Arc<Py<PyAny>>,
}

impl Watcher for Listener {
    fn tell(&self, told: Told) {
        // That a reply is whole is no event of its own: the outcome follows, or the failure.
        if told.what != Progress::Written {
            self.change(|state| state.feed.push(told));
        }
    }
}

impl Listener {
    /// The call is over.
    pub(crate) fn end(&self, result: Result<Outcome, UseError>, raised: Option<PyErr>) {
        self.change(|state| state.ended = Some(Ended { result, raised }));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.stream.state.lock();
        change(&mut state);
        if state.waiter.is_some() && !state.woken {
            state.woken = true;
            drop(state);
            wake(&self.event_loop, &self.stream);
        }
    }
}

impl State {
    fn next(&mut self) -> Option<Next> {
        self.feed.pop().map(Next::Told).or_else(|| {
            self.over = self.ended.is_some();
            self.ended.take().map(Next::Ended)
        })
    }
}

impl Stream {
    /// On the loop's thread: gives the waiting future the next event.
    pub(crate) fn resolve(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.state.lock();
        state.woken = false;
        let Some(waiter) = state.waiter.take() else { return Ok(()) };
        // Python code must not find the lock held.
        drop(state);
        let future = waiter.bind(py);
        // One that was cancelled has nobody left who waits.
        if future.call_method0(intern!(py, "done"))?.is_truthy()? {
            return Ok(());
        }
        let mut state = self.state.lock();
        let Some(next) = state.next() else {
            state.waiter = Some(waiter);
            return Ok(());
        };
        drop(state);
        match event(py, next) {
            Ok(event) => future.call_method1(intern!(py, "set_result"), (event,)),
            Err(error) => future.call_method1(intern!(py, "set_exception"), (error.into_value(py),)),
        }
        .map(drop)
    }
}

/// An event as Python sees it.
fn event(py: Python<'_>, next: Next) -> PyResult<Bound<'_, PyDict>> {
    let event = PyDict::new(py);
    let told = match next {
        Next::Told(told) => told,
        Next::Ended(Ended { raised: Some(raised), .. }) => return Err(raised),
        Next::Ended(Ended { result, raised: None }) => {
            let outcome = result.map_err(|error| use_error(py, &error))?;
            event.set_item("event", "done")?;
            event.set_item("outcome", PyOutcome::new(outcome))?;
            return Ok(event);
        }
    };
    let name = match &told.what {
        Progress::Started => "attempt_started",
        Progress::Piece { .. } => "piece",
        Progress::Written => "attempt_written",
        Progress::Failed { .. } => "attempt_failed",
    };
    let attempt = &told.attempt;
    event.set_item("event", name)?;
    event.set_item("role", &*attempt.role)?;
    event.set_item("method", &*attempt.method)?;
    event.set_item("call_id", attempt.call_id.to_string())?;
    event.set_item("depth", attempt.depth)?;
    event.set_item("attempt", attempt.number)?;
    match &told.what {
        Progress::Started | Progress::Written => {}
        Progress::Piece { of, text, dropped } => {
            event.set_item("kind", of.as_str())?;
            event.set_item("text", text)?;
            event.set_item("dropped", dropped)?;
        }
        Progress::Failed { stage, error_class, message } => {
            event.set_item("stage", stage)?;
            event.set_item("error_class", error_class)?;
            event.set_item("message", message)?;
        }
    }
    Ok(event)
}

/// The events of one call: dicts with the key "event". "attempt_started"; "piece" with "kind" ("program", "text" or
/// "reasoning"), "text" and "dropped", the number of pieces before it that nobody took in time; "attempt_failed" with "stage",
/// "error_class" and "message"; and last "done" with the "outcome".
///
/// Leaving the loop before that cancels the call.
#[pyclass(module = "cadenza", frozen)]
pub(crate) struct CallEvents {
    pub(crate) stream: Arc<Stream>,
    pub(crate) event_loop: Py<PyAny>,
    pub(crate) cancel: CancelToken,
}

#[pymethods]
impl CallEvents {
    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let future = self.event_loop.bind(py).call_method0(intern!(py, "create_future"))?;
        let mut state = self.stream.state.lock();
        if state.over {
            return Err(PyStopAsyncIteration::new_err(()));
        }
        if state.waiter.is_some() {
            return Err(PyRuntimeError::new_err("the next event of this call is awaited already"));
        }
        state.waiter = Some(future.clone().unbind());
        drop(state);
        // What is there already comes at once.
        self.stream.resolve(py)?;
        Ok(future)
    }

    /// Gives the call up.
    fn aclose<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.cancel.cancel();
        self.stream.state.lock().over = true;
        let future = self.event_loop.bind(py).call_method0(intern!(py, "create_future"))?;
        future.call_method1(intern!(py, "set_result"), (py.None(),))?;
        Ok(future)
    }
}

impl Drop for CallEvents {
    fn drop(&mut self) {
        if !self.stream.state.lock().over {
            self.cancel.cancel();
        }
    }
}
