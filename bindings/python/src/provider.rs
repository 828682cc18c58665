//! A Python callable as a model: `f(request) -> reply` (product.md section 6).
//!
//! It runs on a thread of its own, so that a slow one is given up in time; a coroutine function runs on the loop that
//! awaits the call. What it raises is a provider failure with its words, never a traceback on the screen.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyTimeoutError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyList, PyString, PyTuple};
use tokio::sync::oneshot;

use cadenza_core::cancel::CancelToken;
use cadenza_core::message::AgentMessage;
use cadenza_core::provider::{
    ModelReply, ModelRequest, Provider, ProviderError, ProviderErrorClass, RawToolCall, ReplyFuture, Secret, Usage,
    bounded, secret,
};
use cadenza_core::value::Value;

use crate::convert::{map_to_python, to_python, to_value, utf8};
use crate::coroutines::{self, Caller, Running, Start};
use crate::serving::{self, Serving};
use crate::workers::{self, Answer, Unanswered};

/// Bytes of an exception's text that are kept.
const MAX_MESSAGE: usize = 4_096;
/// Bytes below which a value in the environment is too ordinary to be masked everywhere.
const MIN_KEY: usize = 16;
const FORMS: &str = "return a program's text, {\"code\": ..., \"usage\": ...}, a message with \"content\" and \
                     \"tool_calls\", or None";

type Replied = Result<ModelReply, ProviderError>;

/// A model written in Python.
pub(crate) struct CallableModel {
    callable: Arc<Py<PyAny>>,
    name: String,
    is_coroutine_function: bool,
}

impl CallableModel {
    pub(crate) fn new(callable: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = callable.py();
        know_keys();
        let name = match callable.getattr(intern!(py, "__qualname__")) {
            Ok(name) => name.str()?.to_string(),
            Err(_) => callable.get_type().qualname()?.to_string(),
        };
        Ok(Self {
            name: format!("python:{name}"),
            is_coroutine_function: coroutines::is_coroutine_function(callable),
            callable: Arc::new(callable.clone().unbind()),
        })
    }

    /// Sends the question off; the answer comes from another thread.
    fn ask(&self, request: &ModelRequest) -> (Answer<Replied>, Option<Answer<Option<Running>>>) {
        let (callable, request) = (self.callable.clone(), request.clone());
        match Caller::current() {
            Some(caller) if self.is_coroutine_function => {
                let (sender, answer) = oneshot::channel();
                let started = workers::run(move |py| start(py, caller, &callable, request, sender));
                (answer.into(), Some(started))
            }
            caller => {
                let context = match caller {
                    Some(caller) => caller.context,
                    None => Python::try_attach(coroutines::copy_context).flatten(),
                };
                let serving = serving::here();
                (workers::run(move |py| run(py, &callable, request, context, serving)), None)
            }
        }
    }
}

/// Calls the callable on this thread.
fn run(
    py: Python<'_>,
    callable: &Py<PyAny>,
    request: ModelRequest,
    context: Option<Py<PyAny>>,
    serving: Option<Arc<Serving>>,
) -> Replied {
    let called = Bound::new(py, PyModelRequest { request }).and_then(|request| {
        let args = PyTuple::new(py, [request])?;
        let context = context.as_ref().map(|context| context.bind(py));
        coroutines::call_here(callable.bind(py), context, serving.as_ref(), &args, None)
    });
    replied(py, called, serving.as_ref())
}

/// Calls the coroutine function on the caller's loop.
fn start(
    py: Python<'_>,
    caller: Caller,
    callable: &Py<PyAny>,
    request: ModelRequest,
    sender: oneshot::Sender<Replied>,
) -> Option<Running> {
    let request = Bound::new(py, PyModelRequest { request }).and_then(|request| PyTuple::new(py, [request]));
    let args = match request {
        Ok(args) => args.unbind(),
        Err(error) => {
            let _ = sender.send(Err(failure(py, &error)));
            return None;
        }
    };
    let serving = caller.serving.clone();
    let start = Start { caller, callable: callable.clone_ref(py), args, kwargs: None };
    // A loop that is closed drops the sender, and the waiting side says so.
    start
        .on_loop(
            py,
            Box::new(move |py, result| {
                let _ = sender.send(replied(py, result, Some(&serving)));
            }),
        )
        .ok()
}

impl Provider for CallableModel {
    fn model(&self) -> &str {
        &self.name
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        Box::pin(async move {
            let deadline = Instant::now() + request.timeout;
            let (answer, started) = self.ask(request);
            let place = answer.place();
            if tokio::runtime::Handle::try_current().is_ok() {
                let work = async move {
                    // Held until the answer is there; dropped earlier, it cancels the coroutine.
                    let _running = match started {
                        Some(started) => started.await.ok().flatten(),
                        None => None,
                    };
                    answer.await.unwrap_or_else(|_| Err(lost()))
                };
                let replied = bounded(&self.name, request.timeout, cancel, work).await;
                return if replied.is_err() && place.never_came() && !cancel.is_cancelled() {
                    Err(busy())
                } else {
                    replied
                };
            }
            // On the synchronous path this is the caller's own thread, and nothing else is polled on it meanwhile.
            match workers::wait(answer, deadline, cancel) {
                Ok(replied) => replied,
                Err(Unanswered::Late) => Err(ProviderError::timed_out(&self.name, request.timeout)),
                Err(Unanswered::Cancelled) => Err(ProviderError::cancelled()),
                Err(Unanswered::Lost) => Err(lost()),
                Err(Unanswered::NeverBegan) => Err(busy()),
            }
        })
    }
}

impl fmt::Debug for CallableModel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

fn busy() -> ProviderError {
    ProviderError::new(ProviderErrorClass::Failed, format!("the model callable was not called: {}", workers::BUSY))
}

fn lost() -> ProviderError {
    ProviderError::new(
        ProviderErrorClass::Failed,
        "the model callable gave no answer: its event loop was closed, or no thread could be started",
    )
}

fn replied(py: Python<'_>, result: PyResult<Bound<'_, PyAny>>, serving: Option<&Arc<Serving>>) -> Replied {
    match result {
        Ok(object) => reply(&object),
        Err(error) if serving.is_some_and(|serving| serving.ends(py, &error)) => Err(ProviderError::cancelled()),
        Err(error) => Err(failure(py, &error)),
    }
}

/// An exception as a provider failure: its type and words.
fn failure(py: Python<'_>, error: &PyErr) -> ProviderError {
    let class = if is_timeout(py, error) { ProviderErrorClass::Timeout } else { ProviderErrorClass::Failed };
    ProviderError::new(class, describe(py, error))
}

/// `TimeoutError`, and those of asyncio and concurrent.futures, which were classes of their own before Python 3.11.
fn is_timeout(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyTimeoutError>(py)
        || error.get_type(py).mro().iter().any(|class| {
            class.getattr(intern!(py, "__name__")).is_ok_and(|name| name.eq("TimeoutError").unwrap_or(false))
        })
}

/// A callable brings its own client, whose errors may echo a key that this process has in its environment. Known keys
/// are masked wherever they turn up.
fn know_keys() {
    for (name, value) in std::env::vars_os() {
        if name.to_string_lossy().ends_with("_API_KEY")
            && let Some(value) = value.to_str().filter(|value| value.len() >= MIN_KEY)
        {
            Secret::new(value);
        }
    }
}

/// `ValueError: what it said`, bounded, without known keys.
pub(crate) fn describe(py: Python<'_>, error: &PyErr) -> String {
    let class = error.get_type(py).name().map_or_else(|_| "Exception".to_owned(), |name| name.to_string());
    let words = error.value(py).str().map_or_else(|_| String::new(), |words| words.to_string_lossy().into_owned());
    let text = if words.is_empty() { class } else { format!("{class}: {words}") };
    let mut text = secret::scrub(&text).into_owned();
    if text.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// What the callable returned, uninterpreted.
fn reply(object: &Bound<'_, PyAny>) -> Replied {
    let wrong = |message: String| ProviderError::new(ProviderErrorClass::InvalidResponse, message);
    if object.is_none() {
        return Ok(ModelReply::default());
    }
    if let Ok(text) = object.cast::<PyString>() {
        return utf8(text).map(ModelReply::text).map_err(|_| wrong("the reply is not valid Unicode".to_owned()));
    }
    let Ok(dict) = object.cast::<PyDict>() else {
        let class = object.get_type().qualname().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        return Err(wrong(format!("the model callable returned a {class}; {FORMS}")));
    };
    message(dict).map_err(|error| wrong(format!("the model callable's reply: {}", describe(object.py(), &error))))
}

fn message(dict: &Bound<'_, PyDict>) -> PyResult<ModelReply> {
    let py = dict.py();
    let (code, content) = (dict.get_item(intern!(py, "code"))?, dict.get_item(intern!(py, "content"))?);
    let calls = dict.get_item(intern!(py, "tool_calls"))?.filter(|calls| !calls.is_none());
    if code.is_none() && content.is_none() && calls.is_none() {
        return Err(pyo3::exceptions::PyValueError::new_err(format!("neither code, content nor tool_calls; {FORMS}")));
    }
    let mut reply = ModelReply::default();
    if let Some(text) = code.or(content).filter(|text| !text.is_none()) {
        reply.content = Some(utf8(text.cast::<PyString>()?)?.into_owned());
    }
    if let Some(calls) = calls {
        for call in calls.try_iter()? {
            reply.tool_calls.push(tool_call(&call?)?);
        }
    }
    if let Some(usage) = dict.get_item(intern!(py, "usage"))?.filter(|usage| !usage.is_none()) {
        reply.usage = Some(read_usage(&usage)?);
    }
    if let Some(model) = dict.get_item(intern!(py, "model"))?.filter(|model| !model.is_none()) {
        reply.model = Some(model.str()?.to_string());
    }
    if let Some(reason) = dict.get_item(intern!(py, "stop_reason"))?.filter(|reason| !reason.is_none()) {
        reply.stop_reason = Some(reason.str()?.to_string());
    }
    Ok(reply)
}

/// `{"id", "name", "arguments"}`, or the same under `function` as chat APIs nest it. Arguments are JSON text or a dict.
fn tool_call(call: &Bound<'_, PyAny>) -> PyResult<RawToolCall> {
    let call = call.cast::<PyDict>()?;
    let nested = call.get_item("function")?;
    let function = match &nested {
        Some(function) => function.cast::<PyDict>()?,
        None => call,
    };
    let text = |value: Option<Bound<'_, PyAny>>| match value {
        Some(value) if !value.is_none() => value.str().map(|text| text.to_string()),
        Some(_) | None => Ok(String::new()),
    };
    let arguments = match function.get_item("arguments")? {
        Some(arguments) if arguments.cast::<PyString>().is_err() => to_value(&arguments, "arguments")?.to_json(),
        other => text(other)?,
    };
    Ok(RawToolCall { id: text(call.get_item("id")?)?, name: text(function.get_item("name")?)?, arguments })
}

/// Token counts under the names of the common APIs; a missing one is zero.
fn read_usage(usage: &Bound<'_, PyAny>) -> PyResult<Usage> {
    let usage = usage.cast::<PyDict>()?;
    let part = |dict: &Bound<'_, PyDict>, names: &[&str]| -> PyResult<u64> {
        for name in names {
            if let Some(count) = dict.get_item(name)?
                && count.cast::<PyInt>().is_ok()
                && count.cast::<PyBool>().is_err()
            {
                return Ok(count.extract::<u64>().unwrap_or(0));
            }
        }
        Ok(0)
    };
    let count = |names: &[&str]| part(usage, names);
    let detail = |details: &[&str], name: &str| -> PyResult<u64> {
        for details in details {
            if let Some(dict) = usage.get_item(details)?
                && let Ok(dict) = dict.cast::<PyDict>()
            {
                return part(dict, &[name]);
            }
        }
        Ok(0)
    };
    // Anthropic counts what was cached beside the input, everybody else within it.
    let (read, written) = (count(&["cache_read_input_tokens"])?, count(&["cache_creation_input_tokens"])?);
    let inputs = ["prompt_tokens_details", "input_tokens_details"];
    let outputs = ["completion_tokens_details", "output_tokens_details"];
    let input = count(&["input", "input_tokens", "prompt_tokens"])?;
    let cached = count(&["cached", "cached_tokens"])?.max(detail(&inputs, "cached_tokens")?);
    Ok(Usage {
        input: input.saturating_add(read).saturating_add(written),
        cached: cached.saturating_add(read),
        output: count(&["output", "output_tokens", "completion_tokens"])?,
        cache_write: written.max(detail(&inputs, "cache_write_tokens")?),
        reasoning: count(&["reasoning", "reasoning_tokens"])?.max(detail(&outputs, "reasoning_tokens")?),
    })
}

/// What a model callable is asked. Every attribute is fresh, plain data.
#[pyclass(module = "cadenza", name = "ModelRequest", frozen)]
pub(crate) struct PyModelRequest {
    request: ModelRequest,
}

#[pymethods]
impl PyModelRequest {
    /// Role of the agent.
    #[getter]
    fn role(&self) -> &str {
        &self.request.role
    }

    /// The method that was called.
    #[getter]
    fn method(&self) -> &str {
        &self.request.method
    }

    /// Its positional arguments.
    #[getter]
    fn args<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for value in self.request.args.iter() {
            list.append(to_python(py, value)?)?;
        }
        Ok(list)
    }

    /// Its named arguments.
    #[getter]
    fn kwargs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        map_to_python(py, &self.request.kwargs)
    }

    /// Language of the program that is wanted: "lua" or "rhai".
    #[getter]
    fn language(&self) -> &'static str {
        self.request.language.as_str()
    }

    /// What a program is and sees: the same for every call.
    #[getter]
    fn system_prompt(&self) -> &str {
        &self.request.system_prompt
    }

    /// What is wanted now.
    #[getter]
    fn user_prompt(&self) -> &str {
        &self.request.user_prompt
    }

    /// The whole conversation as chat messages: both prompts, then what followed in earlier attempts.
    #[getter]
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (role, content) in [("system", &self.request.system_prompt), ("user", &self.request.user_prompt)] {
            let message = PyDict::new(py);
            message.set_item("role", role)?;
            message.set_item("content", &**content)?;
            list.append(message)?;
        }
        for message in &self.request.messages {
            list.append(chat_message(py, message)?)?;
        }
        Ok(list)
    }

    /// Tools offered to the model: dicts with name, description and parameters.
    #[getter]
    fn tools<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for tool in self.request.tools.iter() {
            let described = PyDict::new(py);
            described.set_item("name", &*tool.name)?;
            described.set_item("description", &*tool.description)?;
            described.set_item("parameters", to_python(py, &tool.parameters)?)?;
            list.append(described)?;
        }
        Ok(list)
    }

    /// 1 for the first generation attempt of this call.
    #[getter]
    fn attempt(&self) -> u32 {
        self.request.attempt
    }

    /// Seconds after which the reply comes too late.
    #[getter]
    fn timeout(&self) -> f64 {
        self.request.timeout.as_secs_f64()
    }

    fn __repr__(&self) -> String {
        let request = &self.request;
        format!("<ModelRequest {}.{} attempt {}>", request.role, request.method, request.attempt)
    }
}

fn chat_message<'py>(py: Python<'py>, message: &AgentMessage) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("role", message.role.as_str())?;
    dict.set_item("content", &message.content)?;
    if !message.tool_calls.is_empty() {
        let calls = PyList::empty(py);
        for call in &message.tool_calls {
            let described = PyDict::new(py);
            described.set_item("id", &call.id)?;
            described.set_item("name", &*call.name)?;
            described.set_item("arguments", to_python(py, &Value::Map(call.arguments.clone()))?)?;
            calls.append(described)?;
        }
        dict.set_item("tool_calls", calls)?;
    }
    if let Some(id) = &message.tool_call_id {
        dict.set_item("tool_call_id", id)?;
    }
    Ok(dict)
}
