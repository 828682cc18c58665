//! A model server on this machine that speaks the wire formats of model-wire-formats.md, whole and in pieces.
//!
//! Used by Rust tests as a module and by Python tests as the example `wire_server`. It refuses what the real servers
//! refuse, remembers what it was sent, and plays answers. It is no part of what ships.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};
use axum::serve::ListenerExt as _;
use serde_json::{Value as Json, json};

#[path = "wire/anthropic.rs"]
mod anthropic;
#[path = "wire/chat.rs"]
mod chat;
#[path = "wire/gemini.rs"]
mod gemini;
#[path = "wire/ollama.rs"]
mod ollama;
#[path = "wire/responses.rs"]
mod responses;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: Json,
}

impl Seen {
    /// The method that the user prompt names, for answers that depend on it.
    pub fn method(&self) -> Option<String> {
        let mut found = None;
        texts(&self.body, &mut |text| {
            let quoted = text.lines().filter_map(|line| line.strip_prefix("Method: ")).next();
            found = found.take().or(quoted.and_then(|quoted| serde_json::from_str(quoted).ok()));
        });
        found
    }

    /// The model that is asked for: in the body, or in the path.
    pub fn model(&self) -> String {
        match self.body["model"].as_str() {
            Some(model) => model.to_owned(),
            None => {
                let last = self.path.rsplit('/').next().unwrap_or_default();
                last.rsplit_once(':').map_or(last, |(model, _)| model).to_owned()
            }
        }
    }
}

/// Every text of a JSON value, in its order.
fn texts(json: &Json, see: &mut dyn FnMut(&str)) {
    match json {
        Json::String(text) => see(text),
        Json::Array(list) => list.iter().for_each(|item| texts(item, see)),
        Json::Object(map) => map.values().for_each(|item| texts(item, see)),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// What a model says, in no vendor's form.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub text: Option<String>,
    pub reasoning: Option<String>,
    pub refusal: Option<String>,
    /// Names and arguments.
    pub calls: Vec<(String, String)>,
    /// The vendor's word; what fits the rest when there is none.
    pub stop: Option<String>,
    pub counts: Counts,
    /// The model that answers; the one that was asked, with a date, when there is none.
    pub model: String,
    /// The provider that answers behind a gateway.
    pub provider: Option<String>,
}

impl Said {
    pub fn text(text: &str) -> Self {
        Self { text: Some(text.to_owned()), ..Self::default() }
    }

    pub fn call(name: &str, arguments: &str) -> Self {
        Self { calls: vec![(name.to_owned(), arguments.to_owned())], ..Self::default() }
    }

    pub fn stopped(self, stop: &str) -> Self {
        Self { stop: Some(stop.to_owned()), ..self }
    }
}

/// Tokens: prompt (caches included), read from and written to the cache, completion (reasoning included), reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub input: u64,
    pub cached: u64,
    pub cache_write: u64,
    pub output: u64,
    pub reasoning: u64,
}

/// A wire format, by its path.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    Chat,
    Responses,
    Anthropic,
    Gemini,
    Ollama,
}

impl Format {
    fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/responses" => Some(Self::Responses),
            "/v1/messages" => Some(Self::Anthropic),
            "/api/chat" => Some(Self::Ollama),
            path if path.starts_with("/v1beta/models/") && path.contains(":") => Some(Self::Gemini),
            _other_path => None,
        }
    }

    fn streams(self, seen: &Seen) -> bool {
        match self {
            Self::Chat | Self::Responses | Self::Anthropic => seen.body["stream"] == true,
            Self::Gemini => seen.path.ends_with(":streamGenerateContent"),
            Self::Ollama => seen.body["stream"] != false,
        }
    }

    /// What says who asks.
    fn key(self, headers: &BTreeMap<String, String>) -> Option<&str> {
        let bearer = headers.get("authorization").and_then(|value| value.strip_prefix("Bearer "));
        match self {
            Self::Chat | Self::Responses | Self::Ollama => bearer,
            Self::Anthropic => headers.get("x-api-key").map(String::as_str).or(bearer),
            Self::Gemini => headers.get("x-goog-api-key").map(String::as_str),
        }
    }

    fn check(self, seen: &Seen) -> Result<(), String> {
        match self {
            Self::Chat => chat::check(&seen.body),
            Self::Responses => responses::check(&seen.body),
            Self::Anthropic => anthropic::check(&seen.body, seen.headers.get("anthropic-version").map(String::as_str)),
            Self::Gemini => gemini::check(&seen.body),
            Self::Ollama => ollama::check(&seen.body),
        }
    }

    fn unauthorized(self) -> (u16, Json) {
        match self {
            Self::Chat | Self::Responses => {
                (401, chat::refusal("invalid_request_error", "invalid_api_key", "Incorrect API key provided"))
            }
            Self::Anthropic => (401, anthropic::refusal("authentication_error", "invalid x-api-key")),
            Self::Gemini => {
                let words = "API key not valid. Please pass a valid API key.";
                (400, gemini::refusal(400, "INVALID_ARGUMENT", Some("API_KEY_INVALID"), words))
            }
            Self::Ollama => (401, ollama::refusal("unauthorized")),
        }
    }

    fn bad_request(self, problem: &str) -> (u16, Json) {
        match self {
            Self::Chat | Self::Responses => (400, chat::refusal("invalid_request_error", "invalid_request", problem)),
            Self::Anthropic => (400, anthropic::refusal("invalid_request_error", problem)),
            Self::Gemini => (400, gemini::refusal(400, "INVALID_ARGUMENT", None, problem)),
            Self::Ollama => (400, ollama::refusal(problem)),
        }
    }

    fn program(self, body: &Json, code: &str) -> Said {
        match self {
            Self::Chat => chat::program(body, code),
            Self::Responses => responses::program(body, code),
            Self::Anthropic => anthropic::program(body, code),
            Self::Gemini => gemini::program(body, code),
            Self::Ollama => ollama::program(body, code),
        }
    }

    fn whole(self, said: &Said) -> Json {
        match self {
            Self::Chat => chat::whole(said),
            Self::Responses => responses::whole(said),
            Self::Anthropic => anthropic::whole(said),
            Self::Gemini => gemini::whole(said),
            Self::Ollama => ollama::whole(said),
        }
    }

    fn events(self, seen: &Seen, said: &Said) -> Vec<String> {
        match self {
            Self::Chat => chat::events(&seen.body, said),
            Self::Responses => responses::events(said),
            Self::Anthropic => anthropic::events(said),
            Self::Gemini => gemini::events(said),
            Self::Ollama => ollama::events(said),
        }
    }

    fn stream_type(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses | Self::Anthropic | Self::Gemini => "text/event-stream",
            Self::Ollama => "application/x-ndjson",
        }
    }
}

/// One server-sent event.
fn sse(name: Option<&str>, data: &Json) -> String {
    let name = name.map_or_else(String::new, |name| format!("event: {name}\n"));
    format!("{name}data: {data}\n\n")
}

/// A text in three pieces, cut on characters.
fn thirds(text: Option<&str>) -> Vec<String> {
    let Some(text) = text else { return Vec::new() };
    let first = text.floor_char_boundary(text.len() / 3);
    let second = text.floor_char_boundary(text.len() * 2 / 3);
    vec![text[..first].into(), text[first..second].into(), text[second..].into()]
}

/// The arguments of a program in the form that a schema asks for.
fn schema_program(schema: &Json, code: &str) -> String {
    let language = &schema["properties"]["language"]["enum"][0];
    let arguments =
        if language.is_string() { json!({"code": code, "language": language}) } else { json!({"code": code}) };
    arguments.to_string()
}

/// What one request is answered with.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A completion: through the tool when one is offered, as schema JSON when that is asked for, else as text.
    Program(String),
    /// A chat completion with this message and finish reason.
    Message(Json, &'static str),
    /// A completion in the vendor's form.
    Said(Said),
    /// The same, in pieces with a pause before each, and after so many events nothing more.
    Pieces { said: Said, pause: Duration, cut: usize },
    /// Exactly this.
    Raw { status: u16, headers: Vec<(String, String)>, body: Vec<u8> },
    /// This body, sent in pieces with a pause before each.
    Drip { kind: &'static str, pieces: Vec<Vec<u8>>, pause: Duration },
    /// Everything that was sent, headers too, with this status and type.
    Echo { status: u16, kind: &'static str },
    /// The same, later.
    After(Duration, Box<Answer>),
    /// Nothing, for as long as the client waits.
    Hang,
}

impl Answer {
    /// JSON with status 200.
    pub fn json(body: &Json) -> Self {
        Self::typed("application/json", body.to_string())
    }

    /// A body with status 200.
    pub fn typed(kind: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::Raw { status: 200, headers: vec![("content-type".into(), kind.into())], body: body.into() }
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
    connections: AtomicUsize,
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
            connections: AtomicUsize::new(0),
        });
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let counted = shared.clone();
        let listener = listener.tap_io(move |_| {
            counted.connections.fetch_add(1, Ordering::SeqCst);
        });
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, shared, _runtime: runtime }
    }

    /// A server that gives every request the same answer.
    pub fn always(answer: Answer) -> Self {
        Self::start(None, move |_| answer.clone())
    }

    pub fn base_url(&self) -> String {
        format!("{}/v1", self.root())
    }

    /// The address without a path.
    pub fn root(&self) -> String {
        format!("http://{}", self.address)
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

    /// Connections that were made so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
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

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let _waiting = Waiting::begin(&shared);
    if method == Method::GET {
        return listed(uri.path());
    }
    let Some(format) = Format::of(uri.path()) else {
        return as_json(
            404,
            &json!({"error": {"message": format!("no such path: {}", uri.path()), "type": "not_found"}}),
        );
    };
    let texts = headers.iter().filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
    let headers: BTreeMap<String, String> = texts.collect();
    if let Some(key) = &shared.key
        && format.key(&headers) != Some(key)
    {
        let (status, body) = format.unauthorized();
        return as_json(status, &body);
    }
    let parsed = serde_json::from_slice::<Json>(&body).map_err(|error| format!("the body is no JSON: {error}"));
    let checked = parsed.and_then(|body| {
        let seen = Seen { path: uri.path().to_owned(), headers, body };
        format.check(&seen).map(|()| seen)
    });
    let seen = match checked {
        Ok(seen) => seen,
        Err(problem) => {
            let (status, body) = format.bad_request(&problem);
            return as_json(status, &body);
        }
    };
    shared.seen.lock().unwrap().push(seen.clone());
    let mut answer = (shared.play)(&seen);
    while let Answer::After(pause, then) = answer {
        tokio::time::sleep(pause).await;
        answer = *then;
    }
    match answer {
        Answer::Program(code) => said(format, &seen, format.program(&seen.body, &code)),
        Answer::Message(message, finish_reason) => {
            let said = with_counts(&seen, Said { text: Some(message.to_string()), ..Said::default() });
            as_json(200, &chat::completion(&said, &message, finish_reason))
        }
        Answer::Said(what) => said(format, &seen, what),
        Answer::Pieces { said, pause, cut } => {
            let events = format.events(&seen, &with_counts(&seen, said)).into_iter().take(cut).map(String::into_bytes);
            drip(format.stream_type(), events.collect(), pause)
        }
        Answer::Raw { status, headers, body } => respond(status, &headers, body.into()),
        Answer::Drip { kind, pieces, pause } => drip(kind, pieces, pause),
        Answer::Echo { status, kind } => {
            let sent = json!({"headers": seen.headers, "body": seen.body, "path": seen.path});
            let headers = seen.headers.iter().filter(|(name, _)| !["content-length", "host"].contains(&name.as_str()));
            let mut headers: Vec<_> = headers.map(|(name, value)| (format!("x-echo-{name}"), value.clone())).collect();
            headers.push(("content-type".into(), kind.into()));
            let body = if kind == "text/event-stream" { sse(Some("error"), &sent) } else { format!("{sent}\n") };
            respond(status, &headers, body.into())
        }
        Answer::Hang | Answer::After(..) => std::future::pending().await,
    }
}

/// What a server lists of its models.
fn listed(path: &str) -> Response<Body> {
    let model = json!({"id": "echo", "object": "model", "created": 1_760_000_000, "owned_by": "cadenza"});
    match path {
        "/v1/models" => as_json(200, &json!({"object": "list", "data": [model]})),
        "/api/tags" => as_json(200, &json!({"models": [{"name": "echo:latest", "model": "echo:latest", "size": 1}]})),
        _other_path => as_json(404, &json!({"error": "not found"})),
    }
}

/// Counts and the answering model where an answer says nothing of them.
fn with_counts(seen: &Seen, mut said: Said) -> Said {
    if said.model.is_empty() {
        said.model = format!("{}-2026-10-01", seen.model());
    }
    if said.counts == Counts::default() {
        let words = said.calls.iter().map(|(_, arguments)| arguments.len()).sum::<usize>();
        let output = words + said.text.as_deref().map_or(0, str::len);
        let input = seen.body.to_string().len().div_ceil(4) as u64;
        said.counts = Counts { input, cached: 16, output: output.div_ceil(4) as u64, ..Counts::default() };
    }
    said
}

fn said(format: Format, seen: &Seen, said: Said) -> Response<Body> {
    let said = with_counts(seen, said);
    if format.streams(seen) {
        let kind = vec![("content-type".to_owned(), format.stream_type().to_owned())];
        return respond(200, &kind, format.events(seen, &said).concat().into());
    }
    as_json(200, &format.whole(&said))
}

fn drip(kind: &str, pieces: Vec<Vec<u8>>, pause: Duration) -> Response<Body> {
    let (send, receive) = tokio::sync::mpsc::channel::<Vec<u8>>(1);
    tokio::spawn(async move {
        for piece in pieces {
            tokio::time::sleep(pause).await;
            if send.send(piece).await.is_err() {
                return;
            }
        }
        // A server knows a little later than its client that a reply is over.
        tokio::time::sleep(pause).await;
    });
    let stream = futures_util::stream::unfold(receive, |mut receive| async move {
        receive.recv().await.map(|piece| (Ok::<_, std::convert::Infallible>(Bytes::from(piece)), receive))
    });
    respond(200, &[("content-type".into(), kind.into())], Body::from_stream(stream))
}

fn as_json(status: u16, body: &Json) -> Response<Body> {
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
