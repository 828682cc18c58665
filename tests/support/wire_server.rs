//! A model server on this machine that speaks the chat completions wire format (model-wire-formats.md section 1).
//!
//! Used by Rust tests as a module and by Python tests as the example `wire_server`. It refuses what the real server
//! refuses, remembers what it was sent, and plays answers. It is no part of what ships.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use axum::routing::{get, post};
use serde_json::{Value as Json, json};

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub headers: BTreeMap<String, String>,
    pub body: Json,
}

impl Seen {
    /// The method that the user prompt names, for answers that depend on it.
    pub fn method(&self) -> Option<String> {
        let messages = self.body["messages"].as_array()?;
        let lines = messages.iter().filter_map(|message| message["content"].as_str()).flat_map(str::lines);
        let quoted = lines.filter_map(|line| line.strip_prefix("Method: ")).next()?;
        serde_json::from_str(quoted).ok()
    }
}

/// What one request is answered with.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A completion: through the tool when one is offered, as schema JSON when that is asked for, else as text.
    Program(String),
    /// A completion with this message and finish reason.
    Message(Json, &'static str),
    /// Exactly this.
    Raw { status: u16, headers: Vec<(String, String)>, body: Vec<u8> },
    /// This body, sent in pieces with a pause before each.
    Drip { pieces: Vec<Vec<u8>>, pause: Duration },
    /// The same, later.
    After(Duration, Box<Answer>),
    /// Nothing, for as long as the client waits.
    Hang,
}

impl Answer {
    /// JSON with status 200.
    pub fn json(body: &Json) -> Self {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        Self::Raw { status: 200, headers, body: body.to_string().into_bytes() }
    }

    /// A recorded refusal.
    pub fn fixture(path: &Path) -> Self {
        let fixture: Json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut headers: Vec<(String, String)> = fixture["headers"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
            .collect();
        if !headers.iter().any(|(name, _)| name == "content-type") {
            headers.push(("content-type".into(), "application/json".into()));
        }
        let body = match &fixture["body"] {
            Json::String(text) => text.clone(),
            other => other.to_string(),
        };
        Self::Raw { status: fixture["status"].as_u64().unwrap() as u16, headers, body: body.into_bytes() }
    }
}

/// The folder of recorded refusals.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/provider")
}

type Play = dyn Fn(&Seen) -> Answer + Send + Sync;

struct Shared {
    play: Box<Play>,
    key: Option<String>,
    seen: Mutex<Vec<Seen>>,
    waiting: AtomicUsize,
    most_waiting: AtomicUsize,
}

/// A running server; stops when dropped.
pub struct WireServer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _runtime: tokio::runtime::Runtime,
}

impl WireServer {
    /// Starts a server on a free port of 127.0.0.1. With a key, requests without it are refused.
    pub fn start(key: Option<&str>, play: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            play: Box::new(play),
            key: key.map(str::to_owned),
            seen: Mutex::default(),
            waiting: AtomicUsize::new(0),
            most_waiting: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/models", get(models))
            .with_state(shared.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, shared, _runtime: runtime }
    }

    /// A server that gives every request the same answer.
    pub fn always(answer: Answer) -> Self {
        Self::start(None, move |_| answer.clone())
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// What arrived so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Requests that are being answered now.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::SeqCst)
    }

    /// The most requests that were being answered at once.
    pub fn most_waiting(&self) -> usize {
        self.shared.most_waiting.load(Ordering::SeqCst)
    }
}

/// Counts a request for as long as its answer is not there, also when the client goes away.
struct Waiting(Arc<Shared>);

impl Waiting {
    fn begin(shared: &Arc<Shared>) -> Self {
        let now = shared.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most_waiting.fetch_max(now, Ordering::SeqCst);
        Self(shared.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn models() -> Response<Body> {
    let model = json!({"id": "echo", "object": "model", "created": 1_760_000_000, "owned_by": "cadenza"});
    respond(
        200,
        &[("content-type".into(), "application/json".into())],
        Bytes::from(json!({"object": "list", "data": [model]}).to_string()).into(),
    )
}

async fn complete(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let _waiting = Waiting::begin(&shared);
    if let Some(key) = &shared.key
        && headers.get("authorization").and_then(|value| value.to_str().ok()) != Some(&format!("Bearer {key}"))
    {
        return refusal(401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided");
    }
    let Ok(body) = serde_json::from_slice::<Json>(&body) else {
        return refusal(
            400,
            "invalid_request_error",
            "invalid_json",
            "We could not parse the JSON body of your request",
        );
    };
    if let Err(problem) = check(&body) {
        return refusal(400, "invalid_request_error", "invalid_request", &problem);
    }
    let texts = headers.iter().filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
    let seen = Seen { headers: texts.collect(), body };
    shared.seen.lock().unwrap().push(seen.clone());
    let mut answer = (shared.play)(&seen);
    while let Answer::After(pause, then) = answer {
        tokio::time::sleep(pause).await;
        answer = *then;
    }
    match answer {
        Answer::Program(code) => completion(&seen.body, program(&seen.body, &code)),
        Answer::Message(message, finish_reason) => completion(&seen.body, (message, finish_reason)),
        Answer::Raw { status, headers, body } => respond(status, &headers, body.into()),
        Answer::Drip { pieces, pause } => {
            let (send, receive) = tokio::sync::mpsc::channel::<Vec<u8>>(1);
            tokio::spawn(async move {
                for piece in pieces {
                    tokio::time::sleep(pause).await;
                    if send.send(piece).await.is_err() {
                        return;
                    }
                }
            });
            let stream = futures_util::stream::unfold(receive, |mut receive| async move {
                receive.recv().await.map(|piece| (Ok::<_, std::convert::Infallible>(Bytes::from(piece)), receive))
            });
            respond(200, &[("content-type".into(), "application/json".into())], Body::from_stream(stream))
        }
        Answer::Hang | Answer::After(..) => std::future::pending().await,
    }
}

/// What the real server would refuse.
fn check(body: &Json) -> Result<(), String> {
    const KNOWN: [&str; 12] = [
        "model",
        "messages",
        "tools",
        "tool_choice",
        "response_format",
        "max_completion_tokens",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stream",
        "n",
    ];
    let body = body.as_object().ok_or("the body must be an object")?;
    if let Some(name) = body.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(format!("Unrecognized request argument supplied: {name}"));
    }
    if body.get("stream") == Some(&Json::Bool(true)) {
        return Err("streaming is not served here".into());
    }
    body.get("model").and_then(Json::as_str).ok_or("you must provide a model parameter")?;
    let messages = body.get("messages").and_then(Json::as_array).filter(|list| !list.is_empty());
    for message in messages.ok_or("you must provide messages")? {
        let role = message["role"].as_str().unwrap_or_default();
        if !["system", "developer", "user", "assistant", "tool"].contains(&role) {
            return Err(format!("invalid role: {role:?}"));
        }
        let may_be_null = role == "assistant" && message.get("tool_calls").is_some();
        if !message["content"].is_string() && !may_be_null {
            return Err(format!("invalid content of a {role} message"));
        }
        if role == "tool" && !message["tool_call_id"].is_string() {
            return Err("a tool message needs `tool_call_id`".into());
        }
    }
    let names: Vec<&str> = tools(body).iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
    let good = |name: &&str| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
    };
    if names.len() != tools(body).len() || !names.iter().all(good) {
        return Err("invalid tools".into());
    }
    match body.get("tool_choice") {
        None => {}
        Some(_) if names.is_empty() => return Err("`tool_choice` is only allowed when `tools` are specified".into()),
        Some(Json::Object(choice)) => {
            let name = choice.get("function").and_then(|function| function["name"].as_str());
            if !name.is_some_and(|name| names.contains(&name)) {
                return Err("`tool_choice` names no tool".into());
            }
        }
        Some(choice) if ["none", "auto", "required"].iter().any(|known| choice == known) => {}
        Some(_) => return Err("invalid tool_choice".into()),
    }
    match body.get("response_format") {
        None => Ok(()),
        Some(format) if format["type"] == "json_schema" && format["json_schema"]["schema"].is_object() => Ok(()),
        Some(format) if format["type"] == "text" || format["type"] == "json_object" => Ok(()),
        Some(_) => Err("invalid response_format".into()),
    }
}

fn tools(body: &serde_json::Map<String, Json>) -> &[Json] {
    body.get("tools").and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// A program in the form that the request asks for.
fn program(body: &Json, code: &str) -> (Json, &'static str) {
    let schema_of = |parameters: &Json| {
        let language = &parameters["properties"]["language"]["enum"][0];
        if language.is_string() { json!({"code": code, "language": language}) } else { json!({"code": code}) }
    };
    if let Some(tool) = body["tools"].get(0) {
        let arguments = schema_of(&tool["function"]["parameters"]).to_string();
        let function = json!({"name": tool["function"]["name"], "arguments": arguments});
        let call = json!({"id": "call_1", "type": "function", "function": function});
        return (json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [call]}), "tool_calls");
    }
    let content = match &body["response_format"]["json_schema"]["schema"] {
        Json::Null => code.to_owned(),
        schema => schema_of(schema).to_string(),
    };
    (json!({"role": "assistant", "content": content, "refusal": null}), "stop")
}

fn completion(body: &Json, (message, finish_reason): (Json, &str)) -> Response<Body> {
    let prompt_tokens = body["messages"].to_string().len().div_ceil(4);
    let completion_tokens = message.to_string().len().div_ceil(4);
    let completion = json!({
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": format!("{}-2026-10-01", body["model"].as_str().unwrap_or_default()),
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 16, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        },
        "service_tier": "default",
        "system_fingerprint": "fp_1",
    });
    respond(200, &[("content-type".into(), "application/json".into())], completion.to_string().into())
}

fn refusal(status: u16, kind: &str, code: &str, message: &str) -> Response<Body> {
    let body = json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
    respond(status, &[("content-type".into(), "application/json".into())], body.to_string().into())
}

fn respond(status: u16, headers: &[(String, String)], body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    for (name, value) in headers {
        let name: HeaderName = name.parse().expect("a header name");
        response.headers_mut().append(name, HeaderValue::from_str(value).expect("a header value"));
    }
    response
}
