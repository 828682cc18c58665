//! For whom Python code runs: the calls that a model or tool callable serves, as it sees them from inside.
//!
//! A callable that calls the agent whose call it serves would wait for its own end; this is refused at once. What ends
//! programs rather than calls (`KeyboardInterrupt`, `SystemExit`) goes from a callable to whoever made the call. Both
//! follow context variables, so that they also hold in tasks and threads that a callable starts with its own context.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

use cadenza_core::agent::Agent;
use cadenza_core::cancel::CancelToken;

use crate::coroutines::CALLER;
use crate::errors::busy;

thread_local! {
    /// The synchronous call that this thread makes.
    static HERE: RefCell<Option<Arc<Serving>>> = const { RefCell::new(None) };
}

/// Whether any callable was ever run: before that, nobody is served and no context variable need be looked at.
static USED: AtomicBool = AtomicBool::new(false);

/// A call by Python that is under way.
pub(crate) struct Serving {
    agent: usize,
    cancel: CancelToken,
    /// A callable may leave tasks behind that outlive the call.
    over: AtomicBool,
    raised: Mutex<Option<PyErr>>,
    /// The call whose callable made this one.
    outer: Option<Arc<Serving>>,
}

impl Serving {
    /// A call of this agent that is about to begin. Refused when the code that makes it serves a call of the same agent.
    pub(crate) fn begin(py: Python<'_>, agent: &Agent) -> PyResult<Begun> {
        let outer = served(py)?;
        let mut next = outer.as_ref();
        while let Some(serving) = next {
            if serving.agent == identity(agent) && !serving.over.load(Ordering::Acquire) {
                return Err(busy(py, agent.role()));
            }
            next = serving.outer.as_ref();
        }
        Ok(Begun { agent: identity(agent), outer })
    }

    /// Whether this exception ends more than the callable; then it is kept for the caller, and the call ends.
    pub(crate) fn ends(self: &Arc<Self>, py: Python<'_>, error: &PyErr) -> bool {
        let ends = error.is_instance_of::<PyKeyboardInterrupt>(py) || error.is_instance_of::<PySystemExit>(py);
        if ends && !self.over.load(Ordering::Acquire) {
            self.raised.lock().get_or_insert_with(|| error.clone_ref(py));
            self.cancel.cancel();
        }
        ends
    }

    /// The call is over; what a callable raised for its caller.
    pub(crate) fn end(&self) -> Option<PyErr> {
        self.over.store(true, Ordering::Release);
        self.raised.lock().take()
    }

    /// Lets the code of the current context know for whom it runs.
    pub(crate) fn mark(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        USED.store(true, Ordering::Release);
        variable(py)?.call_method1(intern!(py, "set"), (Served(self.clone()),)).map(drop)
    }

    /// The same for code that runs in this context later.
    pub(crate) fn mark_in(self: &Arc<Self>, context: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = context.py();
        USED.store(true, Ordering::Release);
        let set = variable(py)?.getattr(intern!(py, "set"))?;
        context.call_method1(intern!(py, "run"), (set, Served(self.clone()))).map(drop)
    }
}

/// A call that may begin.
pub(crate) struct Begun {
    agent: usize,
    outer: Option<Arc<Serving>>,
}

impl Begun {
    /// The call, stopped by this token.
    pub(crate) fn serving(self, cancel: &CancelToken) -> Arc<Serving> {
        let Self { agent, outer } = self;
        Arc::new(Serving {
            agent,
            cancel: cancel.clone(),
            over: AtomicBool::new(false),
            raised: Mutex::new(None),
            outer,
        })
    }

    /// Makes the call on this thread; what a callable raised for the caller comes back beside what the call gave.
    pub(crate) fn during<T>(self, cancel: &CancelToken, call: impl FnOnce() -> T) -> (T, Option<PyErr>) {
        let serving = self.serving(cancel);
        let before = HERE.replace(Some(serving.clone()));
        let done = call();
        HERE.set(before);
        (done, serving.end())
    }
}

/// The call that is polled on this thread.
pub(crate) fn here() -> Option<Arc<Serving>> {
    CALLER.try_with(|caller| caller.serving.clone()).ok().or_else(|| HERE.with_borrow(Clone::clone))
}

/// The call that the current Python code serves; of those that are over, nothing is remembered.
fn served(py: Python<'_>) -> PyResult<Option<Arc<Serving>>> {
    if !USED.load(Ordering::Acquire) {
        return Ok(None);
    }
    let found = variable(py)?.call_method1(intern!(py, "get"), (py.None(),))?;
    let mut serving = found.cast::<Served>().ok().map(|served| served.get().0.clone());
    while let Some(over) = serving.as_ref().filter(|serving| serving.over.load(Ordering::Acquire)) {
        serving = over.outer.clone();
    }
    Ok(serving)
}

fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = VARIABLE.get_or_try_init(py, || {
        let class = PyModule::import(py, "_contextvars")?.getattr("ContextVar")?;
        class.call1(("cadenza_serving",)).map(Bound::unbind)
    })?;
    Ok(made.bind(py))
}

/// One number per agent, equal for all its handles; means nothing once the agent is gone.
fn identity(agent: &Agent) -> usize {
    std::ptr::from_ref(agent.runtime_context()).addr()
}

/// What the context variable holds.
#[pyclass(frozen)]
struct Served(Arc<Serving>);
