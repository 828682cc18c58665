//! Coroutine functions as models and tools: they run on the event loop of the caller, or on one of their own when the
//! caller has none.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyTuple};

use crate::serving::Serving;
use crate::workers;

/// `CO_COROUTINE` of CPython's code flags.
const CO_COROUTINE: u32 = 0x80;

tokio::task_local! {
    /// Where the asynchronous call under way came from.
    pub(crate) static CALLER: Caller;
}

/// The event loop that waits for a call, and the context variables the call was made with.
pub(crate) struct Caller {
    pub(crate) event_loop: Py<PyAny>,
    pub(crate) context: Option<Py<PyAny>>,
    pub(crate) serving: Arc<Serving>,
}

impl Caller {
    /// The caller of the asynchronous call that is polled on this thread, if there is one.
    pub(crate) fn current() -> Option<Self> {
        let cloned = |caller: &Self| {
            Python::try_attach(|py| Self {
                event_loop: caller.event_loop.clone_ref(py),
                context: caller.context.as_ref().map(|context| context.clone_ref(py)),
                serving: caller.serving.clone(),
            })
        };
        CALLER.try_with(cloned).ok().flatten()
    }
}

/// The context variables of this thread, as a copy that another thread can run in.
pub(crate) fn copy_context(py: Python<'_>) -> Option<Py<PyAny>> {
    static COPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let copy =
        COPY.get_or_try_init(py, || PyModule::import(py, "_contextvars")?.getattr("copy_context").map(Bound::unbind));
    copy.ok()?.bind(py).call0().map(Bound::unbind).ok()
}

/// Whether calling it gives a coroutine. Judged by its code; nothing is called.
pub(crate) fn is_coroutine_function(callable: &Bound<'_, PyAny>) -> bool {
    let py = callable.py();
    let flags = |function: &Bound<'_, PyAny>| {
        let code = function.getattr(intern!(py, "__code__")).ok()?;
        code.getattr(intern!(py, "co_flags")).ok()?.extract::<u32>().ok()
    };
    let own = flags(callable).or_else(|| flags(&callable.get_type().getattr(intern!(py, "__call__")).ok()?));
    own.is_some_and(|flags| flags & CO_COROUTINE != 0)
}

/// Whether an object can be awaited. Judged by its type.
pub(crate) fn is_awaitable(object: &Bound<'_, PyAny>) -> bool {
    object.get_type().hasattr(intern!(object.py(), "__await__")).unwrap_or(false)
}

/// Awaits on an event loop of its own, on this thread and in the given context.
fn run_here<'py>(awaitable: &Bound<'py, PyAny>, context: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let event_loop = PyModule::import(awaitable.py(), "asyncio")?.call_method0("new_event_loop")?;
    let complete = event_loop.getattr("run_until_complete")?;
    let result = match context {
        None => complete.call1((awaitable,)),
        Some(context) => context.call_method1("run", (complete, awaitable)),
    };
    let closed = event_loop
        .call_method0("shutdown_asyncgens")
        .and_then(|ending| event_loop.call_method1("run_until_complete", (ending,)))
        .and_then(|_| event_loop.call_method0("close"));
    result.and_then(|result| closed.map(|_| result))
}

/// Calls a function on this thread, in the given context and for the given call, and awaits what it returns if it can be
/// awaited.
pub(crate) fn call_here<'py>(
    callable: &Bound<'py, PyAny>,
    context: Option<&Bound<'py, PyAny>>,
    serving: Option<&Arc<Serving>>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let result = match context {
        None => callable.call(args, kwargs)?,
        Some(context) => {
            if let Some(serving) = serving {
                serving.mark_in(context)?;
            }
            let args = PyTuple::new(callable.py(), [callable.clone()])?.as_sequence().concat(args.as_sequence())?;
            context.getattr(intern!(callable.py(), "run"))?.call(args.to_tuple()?, kwargs)?
        }
    };
    if is_awaitable(&result) { run_here(&result, context) } else { Ok(result) }
}

/// What is done with a coroutine's result, on the loop's thread.
type Finish = Box<dyn FnOnce(Python<'_>, PyResult<Bound<'_, PyAny>>) + Send>;

/// A coroutine function to be called on an event loop.
pub(crate) struct Start {
    pub(crate) caller: Caller,
    pub(crate) callable: Py<PyAny>,
    pub(crate) args: Py<PyTuple>,
    pub(crate) kwargs: Option<Py<PyDict>>,
}

/// The running coroutine. Dropping it before its end cancels it.
pub(crate) struct Running {
    event_loop: Arc<Py<PyAny>>,
    task: Arc<Mutex<Option<Py<PyAny>>>>,
}

impl Start {
    /// Schedules the call on the caller's loop. `finish` is dropped uncalled when the loop is closed.
    pub(crate) fn on_loop(self, py: Python<'_>, finish: Finish) -> PyResult<Running> {
        let task = Arc::new(Mutex::new(None));
        let event_loop = Arc::new(self.caller.event_loop);
        let starter = Starter {
            event_loop: event_loop.clone(),
            serving: self.caller.serving,
            work: Mutex::new(Some((self.callable, self.args, self.kwargs, finish))),
            task: task.clone(),
        };
        let options = PyDict::new(py);
        if let Some(context) = self.caller.context {
            options.set_item(intern!(py, "context"), context)?;
        }
        event_loop.bind(py).call_method(intern!(py, "call_soon_threadsafe"), (starter,), Some(&options))?;
        Ok(Running { event_loop, task })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (event_loop, task) = (self.event_loop.clone(), self.task.clone());
        if task.lock().is_none() {
            return;
        }
        // Elsewhere: the one who drops may hold locks or be a thread that must not wait for the GIL.
        workers::submit(Box::new(move |py| {
            let task = task.lock().take();
            if let Some(cancel) = task.and_then(|task| task.bind(py).getattr(intern!(py, "cancel")).ok()) {
                // A closed loop has no tasks to cancel.
                let _ = event_loop.bind(py).call_method1(intern!(py, "call_soon_threadsafe"), (cancel,));
            }
        }));
    }
}

type Work = (Py<PyAny>, Py<PyTuple>, Option<Py<PyDict>>, Finish);

/// Runs on the loop's thread: calls the function and makes a task of its coroutine.
#[pyclass(frozen)]
struct Starter {
    event_loop: Arc<Py<PyAny>>,
    serving: Arc<Serving>,
    work: Mutex<Option<Work>>,
    task: Arc<Mutex<Option<Py<PyAny>>>>,
}

#[pymethods]
impl Starter {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let Some((callable, args, kwargs, finish)) = self.work.lock().take() else { return Ok(()) };
        // The context is a copy: nothing of the caller's own changes.
        self.serving.mark(py)?;
        let called = callable.bind(py).call(args.bind(py), kwargs.as_ref().map(|kwargs| kwargs.bind(py)));
        let coroutine = match called {
            Ok(result) if is_awaitable(&result) => result,
            other => {
                finish(py, other);
                return Ok(());
            }
        };
        let options = PyDict::new(py);
        options.set_item(intern!(py, "loop"), &*self.event_loop)?;
        let task = PyModule::import(py, "asyncio")?.call_method("ensure_future", (coroutine,), Some(&options))?;
        *self.task.lock() = Some(task.clone().unbind());
        let finished = Finished { finish: Mutex::new(Some(finish)), task: self.task.clone() };
        task.call_method1(intern!(py, "add_done_callback"), (finished,))?;
        Ok(())
    }
}

/// The task's done callback.
#[pyclass(frozen)]
struct Finished {
    finish: Mutex<Option<Finish>>,
    task: Arc<Mutex<Option<Py<PyAny>>>>,
}

#[pymethods]
impl Finished {
    fn __call__(&self, task: &Bound<'_, PyAny>) {
        let Some(finish) = self.finish.lock().take() else { return };
        drop(self.task.lock().take());
        // A cancelled task raises CancelledError here.
        finish(task.py(), task.call_method0(intern!(task.py(), "result")));
    }
}
