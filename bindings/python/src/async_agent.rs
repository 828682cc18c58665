//! `cadenza.AsyncAgent`: the same agent for asyncio. A call is a coroutine that nothing happens to before it is awaited;
//! it then runs on Cadenza's threads, and thousands may wait at once.
//!
//! Outcomes come back in batches: one wake-up of the event loop delivers everything that has ended by then.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Once};

use parking_lot::{Condvar, Mutex};
use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyString, PyTuple, PyType};

use cadenza_core::agent::{Agent, UseError};
use cadenza_core::cancel::CancelToken;
use cadenza_core::outcome::Outcome;
use cadenza_core::value::{Map, Value};

use crate::agent::{method_repr, no_attribute};
use crate::context::PyRuntimeContext;
use crate::convert::{arguments, keywords, utf8};
use crate::coroutines::{CALLER, Caller, copy_context};
use crate::errors::use_error;
use crate::notebook;
use crate::outcome::PyOutcome;
use crate::runtime::PyRuntime;
use crate::serving::Serving;
use crate::surface::{Attribute, Handle, no_copy, reduce};
use crate::watch::{CallEvents, Listener, Stream};

/// An agent for asyncio: as cadenza.Agent, but a dynamic call is awaited (`await calc.add(3)`).
///
/// Setters, readers, remember, delegate and the rest are the same and return at once. Cancelling the task that awaits a
/// call cancels the call.
#[pyclass(module = "cadenza", name = "AsyncAgent", frozen, subclass, weakref)]
pub(crate) struct PyAsyncAgent {
    handle: Handle,
}

impl PyAsyncAgent {
    fn wrap<'py>(py: Python<'py>, handle: Handle) -> PyResult<Bound<'py, Self>> {
        Bound::new(py, Self { handle })
    }

    /// A call that begins when it is awaited. Arguments are converted now, so that wrong ones are refused here.
    fn dispatch(
        &self,
        method: &Bound<'_, PyString>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<AsyncCall> {
        self.handle.check_open()?;
        let work = Work {
            agent: self.handle.agent.clone(),
            method: utf8(method)?.into_owned(),
            args: arguments(args)?,
            kwargs: keywords(kwargs)?,
        };
        Ok(AsyncCall { name: method.clone().unbind(), state: Mutex::new(State::Ready(Box::new(work))) })
    }
}

#[pymethods]
impl PyAsyncAgent {
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

    /// The same as for_role: getattr(AsyncAgent, "for")("calculator").
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

    /// Calls a dynamic method by name; also one whose name is reserved, and setters ("memory="). To be awaited.
    #[pyo3(signature = (name, /, *args, **kwargs))]
    fn call(
        &self,
        name: &Bound<'_, PyString>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<AsyncCall> {
        self.dispatch(name, args, kwargs)
    }

    fn __getattribute__<'py>(slf: &Bound<'py, Self>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        match slf.get().handle.attribute(slf.as_any(), name)? {
            Attribute::Own(found) | Attribute::Value(found) => Ok(found),
            Attribute::Method(name) => {
                let method = AsyncMethod { owner: slf.clone().unbind(), name: name.unbind() };
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
        Err(no_copy("AsyncAgent"))
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        Err(no_copy("AsyncAgent"))
    }

    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, _protocol: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        reduce(slf.as_any(), &slf.get().handle.agent, "AsyncAgent")
    }
}

/// A dynamic method of an AsyncAgent: calling it gives a call, awaiting that makes it.
#[pyclass(module = "cadenza", frozen)]
pub(crate) struct AsyncMethod {
    owner: Py<PyAsyncAgent>,
    name: Py<PyString>,
}

#[pymethods]
impl AsyncMethod {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<AsyncCall> {
        self.owner.get().dispatch(self.name.bind(py), args, kwargs)
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
    fn __self__(&self, py: Python<'_>) -> Py<PyAsyncAgent> {
        self.owner.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        method_repr(self.name.bind(py), &self.owner.get().handle.agent)
    }
}

/// What is to be called.
struct Work {
    agent: Agent,
    method: String,
    args: Vec<Value>,
    kwargs: Map,
}

enum State {
    /// Not awaited yet.
    Ready(Box<Work>),
    /// Running; the future's iterator is what the event loop steps.
    Waiting(Py<PyAny>, CancelToken),
    /// Ended, cancelled or given up.
    Done,
}

/// A dynamic call of an AsyncAgent: a coroutine. It can be awaited once, wrapped in a task, gathered, or given a timeout; or
/// iterated once, for its events.
#[pyclass(module = "cadenza", frozen, weakref)]
pub(crate) struct AsyncCall {
    name: Py<PyString>,
    state: Mutex<State>,
}

impl AsyncCall {
    /// The iterator of the running call; starts it when it is not running yet.
    fn iterator<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut state = self.state.lock();
        match &*state {
            State::Waiting(iterator, _) => return Ok(iterator.bind(py).clone()),
            State::Done => {
                return Err(PyRuntimeError::new_err("this call was awaited already; call the method again"));
            }
            State::Ready(_) => {}
        }
        let State::Ready(work) = std::mem::replace(&mut *state, State::Done) else {
            unreachable!("the state was Ready a line ago, under the same lock")
        };
        // Starting runs Python code, which must not find the lock held.
        drop(state);
        let (iterator, cancel) = start(py, *work)?;
        *self.state.lock() = State::Waiting(iterator.clone().unbind(), cancel);
        Ok(iterator)
    }

    /// What a step of the iterator gave: goes on, or ends the call. Anything but a result cancels it.
    fn stepped<'py>(&self, py: Python<'py>, step: PyResult<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        if let Err(error) = &step {
            let before = std::mem::replace(&mut *self.state.lock(), State::Done);
            if let State::Waiting(_, cancel) = before
                && !error.is_instance_of::<PyStopIteration>(py)
            {
                cancel.cancel();
            }
        }
        step
    }
}

#[pymethods]
impl AsyncCall {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let step = self.iterator(py).and_then(|iterator| iterator.call_method0(intern!(py, "__next__")));
        self.stepped(py, step)
    }

    /// The events of the call in place of its outcome: `async for event in calc.add(3)`. The call begins here, and leaving
    /// the loop cancels it.
    fn __aiter__(&self, py: Python<'_>) -> PyResult<CallEvents> {
        let mut state = self.state.lock();
        let State::Ready(work) = std::mem::replace(&mut *state, State::Done) else {
            let words = "this call was awaited or iterated already; call the method again";
            return Err(PyRuntimeError::new_err(words));
        };
        // Starting runs Python code, which must not find the lock held.
        drop(state);
        iterate(py, *work)
    }

    /// Steps the coroutine; the event loop does that.
    fn send<'py>(&self, py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let step = self.iterator(py).and_then(|iterator| iterator.call_method1(intern!(py, "send"), (value,)));
        self.stepped(py, step)
    }

    /// Raises inside the coroutine, which cancels the call; the event loop does that.
    #[pyo3(signature = (typ, val=None, tb=None, /))]
    fn throw<'py>(
        &self,
        py: Python<'py>,
        typ: &Bound<'py, PyAny>,
        val: Option<&Bound<'py, PyAny>>,
        tb: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The forms with several arguments are deprecated, and an exception alone says it all.
        let _ = tb;
        let raised = match val {
            Some(value) if !value.is_none() => value,
            Some(_) | None => typ,
        };
        let waiting = match &*self.state.lock() {
            State::Waiting(iterator, _) => Some(iterator.clone_ref(py)),
            State::Ready(_) | State::Done => None,
        };
        match waiting {
            Some(iterator) => self.stepped(py, iterator.bind(py).call_method1(intern!(py, "throw"), (raised,))),
            None => {
                *self.state.lock() = State::Done;
                let raised = match raised.cast::<PyType>() {
                    Ok(class) => class.call0()?,
                    Err(_) => raised.clone(),
                };
                Err(PyErr::from_value(raised))
            }
        }
    }

    /// Gives the call up; a running one is cancelled.
    fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Done);
        if let State::Waiting(_, cancel) = before {
            cancel.cancel();
        }
    }

    #[getter]
    fn __name__(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    #[getter]
    fn __qualname__(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let state = match &*self.state.lock() {
            State::Ready(_) => "not awaited yet",
            State::Waiting(..) => "running",
            State::Done => "done",
        };
        Ok(format!("<call of {:?}, {state}>", &*utf8(self.name.bind(py))?))
    }
}

impl Drop for AsyncCall {
    fn drop(&mut self) {
        match self.state.get_mut() {
            State::Waiting(_, cancel) => cancel.cancel(),
            State::Done => {}
            State::Ready(work) => {
                let method = std::mem::take(&mut work.method).replace('\0', "");
                Python::try_attach(|py| warn_never_awaited(py, &method));
            }
        }
    }
}

/// As Python does for its own coroutines. An exception that is under way stays under way.
fn warn_never_awaited(py: Python<'_>, method: &str) {
    let under_way = PyErr::take(py);
    if let Ok(message) = std::ffi::CString::new(format!("call of {method:?} was never awaited")) {
        let warned = PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1);
        if let Err(error) = warned {
            error.write_unraisable(py, None);
        }
    }
    if let Some(error) = under_way {
        error.restore(py);
    }
}

/// Starts the call; its outcome resolves a future of the running loop, whose iterator comes back.
fn start(py: Python<'_>, work: Work) -> PyResult<(Bound<'_, PyAny>, CancelToken)> {
    let begun = Serving::begin(py, &work.agent)?;
    let event_loop = running_loop(py)?;
    let future = event_loop.call_method0(intern!(py, "create_future"))?;
    let iterator = future.call_method0(intern!(py, "__await__"))?;
    let cancel = CancelToken::default();
    let serving = begun.serving(&cancel);
    let caller =
        Caller { event_loop: event_loop.clone().unbind(), context: copy_context(py), serving: serving.clone() };
    let (event_loop, future, token) = (event_loop.unbind(), future.unbind(), cancel.clone());
    let call = async move {
        let Work { agent, method, args, kwargs } = work;
        let result = agent.call_async(&method, args, kwargs, token).await;
        let raised = serving.end();
        deliver(Message::Ended(Ended { event_loop, future, result, raised }));
    };
    cadenza_core::runtime::spawn(CALLER.scope(caller, call))
        .map_err(|error| PyRuntimeError::new_err(format!("the call threads did not start: {error}")))?;
    Ok((iterator, cancel))
}

/// Starts the call, for a loop that takes its events.
fn iterate(py: Python<'_>, work: Work) -> PyResult<CallEvents> {
    let begun = Serving::begin(py, &work.agent)?;
    let event_loop = running_loop(py)?;
    let cancel = CancelToken::default();
    let serving = begun.serving(&cancel);
    let caller =
        Caller { event_loop: event_loop.clone().unbind(), context: copy_context(py), serving: serving.clone() };
    let stream = Arc::new(Stream::default());
    let listener = Arc::new(Listener { stream: stream.clone(), event_loop: event_loop.clone().unbind() });
    let token = cancel.clone();
    let call = async move {
        let Work { agent, method, args, kwargs } = work;
        let result = agent.call_watched(&method, args, kwargs, token, Some(listener.clone())).await;
        listener.end(result, serving.end());
    };
    cadenza_core::runtime::spawn(CALLER.scope(caller, call))
        .map_err(|error| PyRuntimeError::new_err(format!("the call threads did not start: {error}")))?;
    Ok(CallEvents { stream, event_loop: event_loop.unbind(), cancel })
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get =
        GET.get_or_try_init(py, || PyModule::import(py, "asyncio")?.getattr("get_running_loop").map(Bound::unbind))?;
    get.bind(py).call0().map_err(|_| {
        PyRuntimeError::new_err(
            "no running event loop: await calls of an AsyncAgent inside asyncio, or use cadenza.Agent",
        )
    })
}

/// What a loop is brought.
enum Message {
    /// A call that is over.
    Ended(Ended),
    /// A call that has something to tell.
    Wake(Py<PyAny>, Arc<Stream>),
}

impl Message {
    fn event_loop(&self) -> &Py<PyAny> {
        match self {
            Self::Ended(ended) => &ended.event_loop,
            Self::Wake(event_loop, _) => event_loop,
        }
    }
}

/// A call that is over.
struct Ended {
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
    result: Result<Outcome, UseError>,
    /// What a model or tool raised that ends more than the call.
    raised: Option<PyErr>,
}

/// Ended calls and events on their way to their loops. A thread of its own takes them there, because it needs the GIL and the
/// threads that run calls must not wait for that.
struct Messenger {
    waiting: Mutex<Vec<Message>>,
    ready: Condvar,
    started: Once,
}

static MESSENGER: AtomicPtr<Messenger> = AtomicPtr::new(std::ptr::null_mut());

fn messenger() -> &'static Messenger {
    let seen = MESSENGER.load(Ordering::Acquire);
    // SAFETY: null, or from `Box::into_raw` below and never freed.
    if let Some(messenger) = unsafe { seen.as_ref() } {
        return messenger;
    }
    let fresh =
        Box::into_raw(Box::new(Messenger { waiting: Mutex::default(), ready: Condvar::new(), started: Once::new() }));
    let messenger = match MESSENGER.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => fresh,
        Err(other) => {
            // SAFETY: `fresh` came from `Box::into_raw` above and was not published.
            drop(unsafe { Box::from_raw(fresh) });
            other
        }
    };
    // SAFETY: published, and never freed.
    unsafe { &*messenger }
}

/// Forgets the parent's messenger, whose thread a forked child does not have.
pub(crate) fn after_fork_in_child() {
    MESSENGER.store(std::ptr::null_mut(), Ordering::Release);
}

/// Has a stream's waiter resolved on its loop.
pub(crate) fn wake(event_loop: &Py<PyAny>, stream: &Arc<Stream>) {
    // Counting a reference needs the interpreter; without one nobody waits.
    let Some(event_loop) = Python::try_attach(|py| event_loop.clone_ref(py)) else { return };
    deliver(Message::Wake(event_loop, stream.clone()));
}

fn deliver(message: Message) {
    let messenger = messenger();
    messenger.started.call_once(|| {
        // Without a thread the waiting tasks time out by their own means; there is nobody to tell.
        let _ = std::thread::Builder::new().name("cadenza-asyncio".into()).spawn(move || carry(messenger));
    });
    let mut waiting = messenger.waiting.lock();
    waiting.push(message);
    if waiting.len() == 1 {
        messenger.ready.notify_one();
    }
}

fn carry(messenger: &'static Messenger) {
    let next = || {
        let mut waiting = messenger.waiting.lock();
        while waiting.is_empty() {
            messenger.ready.wait(&mut waiting);
        }
        std::mem::take(&mut *waiting)
    };
    Python::try_attach(|py| {
        loop {
            let mut batch = py.detach(next);
            while let Some(last) = batch.last() {
                let event_loop = last.event_loop().clone_ref(py);
                let (same, others): (Vec<_>, Vec<_>) =
                    batch.into_iter().partition(|message| message.event_loop().is(&event_loop));
                batch = others;
                let delivery = Delivery { messages: Arc::new(Mutex::new(same)) };
                // A loop that was closed meanwhile has nobody left who waits.
                let _ = event_loop.bind(py).call_method1(intern!(py, "call_soon_threadsafe"), (delivery,));
            }
        }
    });
}

/// Runs on the loop's thread: resolves the futures of a batch.
#[pyclass(frozen)]
struct Delivery {
    messages: Arc<Mutex<Vec<Message>>>,
}

#[pymethods]
impl Delivery {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let batch = std::mem::take(&mut *self.messages.lock());
        for message in batch {
            let Ended { event_loop: _, future, result, raised } = match message {
                Message::Ended(ended) => ended,
                Message::Wake(_, stream) => {
                    stream.resolve(py)?;
                    continue;
                }
            };
            let future = future.bind(py);
            // A cancelled future is done already.
            if future.call_method0(intern!(py, "done"))?.is_truthy()? {
                continue;
            }
            if let Some(raised) = raised {
                future.call_method1(intern!(py, "set_exception"), (raised.into_value(py),))?;
                continue;
            }
            match result {
                Ok(outcome) => future.call_method1(intern!(py, "set_result"), (PyOutcome::new(outcome),))?,
                Err(error) => {
                    future.call_method1(intern!(py, "set_exception"), (use_error(py, &error).into_value(py),))?
                }
            };
        }
        Ok(())
    }
}
