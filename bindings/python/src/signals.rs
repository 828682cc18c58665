//! Ctrl-C: how a pending Python signal ends a running call.
//!
//! While a call runs, its cancel token asks Python for pending signals at every tick, on the main thread alone. What a
//! signal handler raises is kept, the call ends as `interrupted` and is recorded, and then the exception goes on.

use std::cell::{Cell, RefCell};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule};

use cadenza_core::cancel::CancelToken;

thread_local! {
    /// What a signal handler raised while a call of this thread was running.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// Whether Python delivers signals to this thread; `None` before the first question.
    static DELIVERS: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Runs `work` without the GIL, under a token that pending signals set. An exception of a signal handler is raised when
/// `work` is done, whatever came of it.
pub(crate) fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce(&CancelToken) -> T + Send) -> PyResult<T> {
    let done = py.detach(|| work(&CancelToken::with_poll(poll)));
    match RAISED.take() {
        None => Ok(done),
        Some(error) => Err(error),
    }
}

/// The thread that forked is the main thread of the child.
pub(crate) fn after_fork_in_child() {
    DELIVERS.set(None);
}

fn poll() -> bool {
    if DELIVERS.get() == Some(false) {
        return false;
    }
    // Without an interpreter, at the very end of the process, there are no signals to ask for.
    Python::try_attach(|py| {
        if !delivers(py) {
            return false;
        }
        match py.check_signals() {
            Ok(()) => false,
            Err(error) => {
                RAISED.set(Some(error));
                true
            }
        }
    })
    .unwrap_or(false)
}

/// Signals come to Python's main thread only.
fn delivers(py: Python<'_>) -> bool {
    if let Some(known) = DELIVERS.get() {
        return known;
    }
    let answer = is_main_thread(py).unwrap_or(true);
    DELIVERS.set(Some(answer));
    answer
}

/// Without `threading` in use there is no second thread, and importing it here would make this thread the main one.
fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let modules = PyModule::import(py, intern!(py, "sys"))?.getattr(intern!(py, "modules"))?.cast_into::<PyDict>()?;
    let Some(threading) = modules.get_item(intern!(py, "threading"))? else { return Ok(true) };
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    main.eq(threading.call_method0("get_ident")?)
}
