//! A target behind HTTP: sends what a dialect makes of a request, bounds what comes back, and classes what fails.
//!
//! Never retries, never interprets a reply, sends a key to its own base URL only, and never gives out a part of a reply
//! as a reply (SC-3.23): a stream that breaks off is a failure, whatever was shown of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use reqwest::Url;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use serde_json::Value as Json;
use sse_stream::SseByteStream;

use super::capability;
use super::classify::{Refusal, classify};
pub use super::dialect::Vendor;
use super::dialect::{Assembly, Fault, Framing, Show, Wire};
use super::http::{self, Answered, Hidden, MAX_BODY_BYTES, Post, Reply};
use super::secret::{Secret, keeps_keys};
use super::target::{Entries, Field, Params};
use super::wait::{self, Shared};
use super::{ModelReply, ModelRequest, Output, Provider, ProviderError, ProviderErrorClass, ReplyFuture};
use crate::cancel::CancelToken;
use crate::value::Value;
use crate::warning;

/// Most bytes of a stream on the wire, where one token costs some 300. One event has at most [`MAX_BODY_BYTES`].
const MAX_STREAM_BYTES: usize = 32 << 20;

/// How long the end of a reply is waited for once the reply is complete, beside whoever has it already.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Most bytes of a failure's message that are not the server's own words: those have a bound of their own.
const MAX_MESSAGE_BYTES: usize = 2 << 10;

/// Headers by which client and server agree where a request ends, and what becomes of the connection.
const FRAMING: [&str; 7] =
    ["content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer"];

/// How to reach one model.
#[derive(Clone, Debug)]
pub struct RemoteSettings {
    /// Name in logs, such as `openai:gpt-5.1`.
    pub name: String,
    /// Whose wire format it speaks.
    pub vendor: Vendor,
    /// The model's name on the wire.
    pub wire_name: String,
    /// Base URL, up to and without the path that the vendor gives (`/chat/completions`).
    pub base_url: String,
    /// The key; compatible and local servers may need none.
    pub key: Option<Secret>,
    /// Further headers, by name; they win over the vendor's own.
    pub headers: Vec<(String, Secret)>,
    /// Through which proxy: the system's (`None`), none (`Some(None)`), or this one.
    pub proxy: Field<Secret>,
    /// How a program is asked for; `None` leaves it to what holds the model best.
    pub output: Option<Output>,
    /// Whether replies are asked for in pieces; `None` when somebody listens.
    pub stream: Option<bool>,
    /// The window that a local server is told to give the model; others have their own.
    pub context_size: Option<u32>,
    /// What the model is told beside the words.
    pub params: Params,
}

impl RemoteSettings {
    /// A model of that vendor at that address, without anything else.
    pub fn new(
        vendor: Vendor,
        name: impl Into<String>,
        wire_name: impl Into<String>,
        base_url: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            vendor,
            wire_name: wire_name.into(),
            base_url: base_url.into(),
            key: None,
            headers: Vec::new(),
            proxy: None,
            output: None,
            stream: None,
            context_size: None,
            params: Params::default(),
        }
    }
}

/// A model behind HTTP.
pub struct Remote {
    settings: RemoteSettings,
    wire: Wire,
    fingerprint: Arc<str>,
    /// How replies are asked for whole, and in pieces.
    posts: [Arc<Post>; 2],
    hidden: Arc<Hidden>,
}

impl Remote {
    /// Checks the settings; does not connect.
    pub fn new(settings: RemoteSettings) -> Result<Self, RemoteError> {
        let url = |streams| endpoint(&settings.base_url, &settings.vendor.path(&settings.wire_name, streams));
        let urls = [url(false)?, url(true)?];
        if let Some(Some(proxy)) = &settings.proxy
            && !http::is_proxy(proxy)
        {
            return Err(RemoteError::Proxy);
        }
        check_extra(&settings.params.extra)?;
        let (params, omitted) = capability::admitted(settings.vendor, &settings.wire_name, &settings.params);
        if !omitted.is_empty() {
            warning::warn(format!(
                "{} is not told {}, which it refuses; take that away, or set `force_params` to send it",
                settings.name,
                omitted.join(", ")
            ));
        }
        let usual = capability::output(settings.vendor, &settings.wire_name, &params);
        let wire = Wire {
            vendor: settings.vendor,
            model: settings.wire_name.clone(),
            output: settings.output.unwrap_or(usual),
            context_size: settings.context_size,
            params,
            omitted,
        };
        let (headers, mut hidden) = headers(&settings, &wire)?;
        let through = match &settings.proxy {
            None => http::system_proxy(&urls[0]).map(|(address, secrets)| {
                hidden.words.extend(secrets);
                format!(" through the system's proxy {address}")
            }),
            Some(proxy) => proxy.as_ref().map(|_| " through `proxy`".to_owned()),
        };
        let (through, hidden) = (through.unwrap_or_default(), Arc::new(hidden));
        let fingerprint = format!("{}@{}#{}", settings.name, urls[0], wire.output.as_str()).into();
        let posts = urls.map(|url| {
            Arc::new(Post {
                model: settings.name.clone(),
                url,
                headers: headers.clone(),
                proxy: settings.proxy.clone(),
                through: through.clone(),
                hidden: hidden.clone(),
            })
        });
        Ok(Self { settings, wire, fingerprint, posts, hidden })
    }

    async fn ask(&self, request: &ModelRequest, cancel: &CancelToken) -> Result<ModelReply, ProviderError> {
        let shared = wait::shared()?;
        let streams = self.streams(request);
        let body = self.wire.body(request, streams).to_string().into_bytes();
        let post = self.posts[usize::from(streams)].clone();
        let name = &self.settings.name;
        let came = if streams {
            let text_is_call = self.wire.text_is_call(request).is_some();
            let reading = Reading {
                assembly: self.wire.assembly(),
                framing: self.wire.vendor.framing(),
                show: Show::new(request.pieces.clone(), self.hidden.clone(), text_is_call),
                silence: request.timeout,
            };
            let work = async move { reading.exchange(shared, &post, body).await };
            wait::bounded(name, request.total, cancel, work).await?
        } else {
            let work = async move { Ok(Came::Whole(http::send(shared, &post, body).await?.whole().await?)) };
            wait::bounded(name, request.timeout.min(request.total), cancel, work).await?
        };
        let (body, headers) = match came {
            Came::Whole(reply) => (self.parsed(&reply)?, reply.headers),
            Came::Assembled(body) => (body, HeaderMap::new()),
            Came::Fault(fault, status, headers) => return Err(self.fault(fault, status, &headers)),
        };
        let mut reply = self
            .wire
            .read(request, &body)
            .map_err(|fault| ProviderError { usage: self.wire.usage(&body), ..self.fault(fault, 200, &headers) })?;
        self.scrub(&mut reply);
        Ok(reply)
    }

    /// The JSON of a whole reply, if it is one.
    fn parsed(&self, reply: &Reply) -> Result<Json, ProviderError> {
        if (300..400).contains(&reply.status) {
            let to = self.hidden.scrub_failure(http::header(&reply.headers, LOCATION).unwrap_or("another address"));
            return Err(self.invalid(format_args!(
                "the server redirects (HTTP {}) to {}; set `base_url` to where it really answers",
                reply.status,
                &to[..to.floor_char_boundary(200)]
            )));
        }
        if reply.status >= 400 {
            return Err(self.refused(reply.status, &reply.headers, &reply.body));
        }
        let content_type = http::header(&reply.headers, CONTENT_TYPE);
        if !is_json(&kind(content_type)) {
            // As the server wrote it: in lower case a private word would not be found.
            let kind = self.hidden.scrub_failure(content_type.unwrap_or_default());
            let start = self.hidden.start_of(&reply.body);
            return Err(self.invalid(format_args!("the reply is {kind}, not JSON; check `base_url`: {start}")));
        }
        if reply.body.trim().is_empty() {
            return Err(self.invalid("the reply is empty"));
        }
        let body: Json = serde_json::from_str(&reply.body).map_err(|error| {
            let start = self.hidden.start_of(&reply.body);
            self.invalid(format_args!("the reply is broken JSON ({error}): {start}"))
        })?;
        if body.get("error").is_some_and(|error| !error.is_null()) {
            return Err(self.refused(reply.status, &reply.headers, &reply.body));
        }
        Ok(body)
    }

    fn fault(&self, fault: Fault, status: u16, headers: &HeaderMap) -> ProviderError {
        match fault {
            Fault::Invalid(what, None) => self.invalid(what),
            Fault::Invalid(what, Some(came)) => {
                let text = match self.hidden.scrub_json(&came) {
                    Json::String(text) => text,
                    other => other.to_string(),
                };
                self.invalid(format_args!("{what}: {}", self.hidden.start_of(&text)))
            }
            Fault::Overflow => self.failed(
                ProviderErrorClass::ContextOverflow,
                "the model's context window is full; use a larger model or keep less in the context",
            ),
            Fault::Refused(words) => self.refused(status, headers, &words.to_string()),
        }
    }

    fn refused(&self, status: u16, headers: &HeaderMap, body: &str) -> ProviderError {
        let headers = http::header_texts(headers, &self.hidden);
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let header = |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let refusal = Refusal {
            status,
            header: &header,
            header_names: &names,
            body,
            hidden: &self.hidden,
            now: SystemTime::now(),
        };
        let error = classify(&self.settings.name, &refusal);
        ProviderError { message: self.hidden.scrub_failure(&error.message), ..error }
    }

    fn failed(&self, class: ProviderErrorClass, what: impl fmt::Display) -> ProviderError {
        let message = self.hidden.scrub_failure(&format!("{}: {what}", self.settings.name));
        ProviderError::new(class, message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned())
    }

    fn invalid(&self, what: impl fmt::Display) -> ProviderError {
        self.failed(ProviderErrorClass::InvalidResponse, what)
    }

    /// Takes keys out of what was put together from pieces, or written with escapes.
    fn scrub(&self, reply: &mut ModelReply) {
        let calls = reply.tool_calls.iter_mut().flat_map(|call| [&mut call.id, &mut call.name, &mut call.arguments]);
        let names = [&mut reply.stop_reason, &mut reply.model, &mut reply.provider];
        for text in reply.content.iter_mut().chain(names.into_iter().flatten()).chain(calls) {
            if let std::borrow::Cow::Owned(scrubbed) = self.hidden.scrub(text) {
                *text = scrubbed;
            }
        }
    }
}

impl Provider for Remote {
    fn model(&self) -> &str {
        &self.settings.name
    }

    fn profile(&self) -> &str {
        self.wire.output.profile()
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn streams(&self, request: &ModelRequest) -> bool {
        self.settings.stream.unwrap_or(request.pieces.is_some())
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        Box::pin(self.ask(request, cancel))
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(formatter)
    }
}

/// What came back.
enum Came {
    /// In one piece, whatever its status.
    Whole(Reply),
    /// In pieces, and complete.
    Assembled(Json),
    /// In pieces, and not usable; with the status and headers that came first.
    Fault(Fault, u16, HeaderMap),
}

/// Reads one reply that comes in pieces.
struct Reading {
    assembly: Box<dyn Assembly>,
    framing: Framing,
    show: Show,
    /// The longest time without a byte (SC-3.18).
    silence: Duration,
}

impl Reading {
    async fn exchange(mut self, shared: &Shared, post: &Arc<Post>, body: Vec<u8>) -> Result<Came, ProviderError> {
        let silence = self.silence;
        let sent = tokio::time::timeout(silence, http::send(shared, post, body));
        let mut answered = sent.await.map_err(|_| ProviderError::timed_out(&post.model, silence))??;
        let came_whole = !(200..300).contains(&answered.status) || answered.encoding().is_some() || {
            let kind = kind(http::header(answered.headers(), CONTENT_TYPE));
            // A server that cannot stream answers whole, and an error page is a whole text too.
            !kind.is_empty() && !self.framing.is_spoken_by(&kind)
        };
        if came_whole {
            let whole = tokio::time::timeout(silence, answered.whole());
            return whole.await.map_err(|_| ProviderError::timed_out(&post.model, silence))?.map(Came::Whole);
        }
        let (status, headers) = (answered.status, std::mem::take(answered.headers()));
        match self.read(answered, post).await? {
            Ok(marked) => {
                self.show.end();
                Ok(match self.assembly.whole(marked) {
                    Some(body) => Came::Assembled(body),
                    None => Came::Fault(Fault::invalid("the stream ended before the reply did"), status, headers),
                })
            }
            Err(fault) => Ok(Came::Fault(fault, status, headers)),
        }
    }

    /// Takes all events; inside, whether the stream said that it ends.
    async fn read(&mut self, answered: Answered, post: &Arc<Post>) -> Result<Result<bool, Fault>, ProviderError> {
        match self.framing {
            Framing::Events => self.events(answered, post).await,
            Framing::Lines => self.lines(answered, post).await,
        }
    }

    async fn lines(&mut self, answered: Answered, post: &Arc<Post>) -> Result<Result<bool, Fault>, ProviderError> {
        let since_event = Arc::new(AtomicUsize::new(0));
        let mut bounded = Bounded { answered, post: post.clone(), silence: self.silence, total: 0, since_event };
        let mut line = Vec::new();
        while let Some(chunk) = bounded.next().await? {
            let mut rest = &chunk[..];
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                line.extend_from_slice(&rest[..end]);
                rest = &rest[end + 1..];
                match self.line(&line) {
                    Ok(false) => {}
                    Ok(true) => {
                        read_to_end(bounded.chunks());
                        return Ok(Ok(true));
                    }
                    Err(fault) => return Ok(Err(fault)),
                }
                line.clear();
            }
            line.extend_from_slice(rest);
            bounded.since_event.store(line.len(), Ordering::Relaxed);
        }
        // The last line may come without its end.
        Ok(self.line(&line))
    }

    fn line(&mut self, line: &[u8]) -> Result<bool, Fault> {
        match std::str::from_utf8(line) {
            Ok(text) if text.trim().is_empty() => Ok(false),
            Ok(text) => self.take(text),
            Err(error) => Err(Fault::invalid(format!("the stream is broken: {error}"))),
        }
    }

    async fn events(&mut self, answered: Answered, post: &Arc<Post>) -> Result<Result<bool, Fault>, ProviderError> {
        let since_event = Arc::new(AtomicUsize::new(0));
        let bounded =
            Bounded { answered, post: post.clone(), silence: self.silence, total: 0, since_event: since_event.clone() };
        let mut events = Box::pin(SseByteStream::new(Box::pin(bounded.chunks())));
        while let Some(event) = events.next().await {
            since_event.store(0, Ordering::Relaxed);
            let event = match event {
                Ok(event) => event,
                Err(sse_stream::Error::Body(error)) => match error.downcast::<Broken>() {
                    Ok(broken) => return Err(broken.0),
                    Err(other) => return Ok(Err(Fault::invalid(format!("the stream broke: {other}")))),
                },
                Err(error) => return Ok(Err(Fault::invalid(format!("the stream is broken: {error}")))),
            };
            let Some(data) = event.data.filter(|data| !data.trim().is_empty()) else { continue };
            let ended = if data.trim() == "[DONE]" { Ok(true) } else { self.take(&data) };
            match ended {
                Ok(false) => {}
                Ok(true) => {
                    read_to_end(events);
                    return Ok(Ok(true));
                }
                Err(fault) => return Ok(Err(fault)),
            }
        }
        Ok(Ok(false))
    }

    fn take(&mut self, data: &str) -> Result<bool, Fault> {
        let event = serde_json::from_str(data)
            .map_err(|error| Fault::seen(format!("a piece is broken JSON ({error})"), data))?;
        self.assembly.take(event, &mut self.show)
    }
}

/// The bytes of a stream, within its bounds.
struct Bounded {
    answered: Answered,
    post: Arc<Post>,
    silence: Duration,
    total: usize,
    since_event: Arc<AtomicUsize>,
}

impl Bounded {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ProviderError> {
        let model = &self.post.model;
        let chunk = tokio::time::timeout(self.silence, self.answered.chunk()).await;
        let chunk = chunk.map_err(|_| silent(model, self.silence))??;
        let bytes = chunk.as_ref().map_or(0, Bytes::len);
        self.total += bytes;
        let since_event = self.since_event.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.total > MAX_STREAM_BYTES || since_event > MAX_BODY_BYTES {
            return Err(http::too_large(model));
        }
        Ok(chunk)
    }

    /// All of them.
    fn chunks(self) -> impl Stream<Item = Result<Bytes, Broken>> + Send {
        futures_util::stream::try_unfold(self, |mut bounded| async move {
            let chunk = bounded.next().await.map_err(Broken)?;
            Ok(chunk.map(|chunk| (chunk, bounded)))
        })
    }
}

/// Reads what still comes behind a complete reply, and drops it: a connection is used again only when nothing is left on it.
fn read_to_end(rest: impl Stream<Item: Send> + Send + 'static) {
    tokio::spawn(tokio::time::timeout(END_WITHIN, rest.for_each(|_| std::future::ready(()))));
}

/// Carries a failure through the parser.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Broken(ProviderError);

fn silent(model: &str, silence: Duration) -> ProviderError {
    let message = format!(
        "{model} sent nothing for {} s in the middle of a reply; raise `provider_timeout_seconds` or ask a faster model",
        silence.as_secs_f64()
    );
    ProviderError::new(ProviderErrorClass::Timeout, message)
}

/// All headers of a target's requests, and what of them must not come back.
fn headers(settings: &RemoteSettings, wire: &Wire) -> Result<(HeaderMap, Hidden), RemoteError> {
    let mut headers = HeaderMap::new();
    let mut hidden = Hidden::default();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Unsaid, a server may choose.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    for (name, value) in wire.headers() {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if let Some(key) = &settings.key {
        let (name, before) = settings.vendor.key_header();
        let text = Some(format!("{before}{}", key.expose())).filter(|text| text.is_ascii()).ok_or(RemoteError::Key)?;
        let mut value = HeaderValue::try_from(text).map_err(|_| RemoteError::Key)?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_static(name), value);
        hidden.keys.push(key.clone());
    }
    for (name, value) in &settings.headers {
        let wrong = || RemoteError::Header { name: name.clone() };
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        if FRAMING.contains(&known.as_str()) {
            return Err(RemoteError::Framing { name: name.clone() });
        }
        let mut text = HeaderValue::from_str(value.expose()).map_err(|_| wrong())?;
        text.set_sensitive(true);
        headers.insert(known, text);
        if keeps_keys(name) { &mut hidden.keys } else { &mut hidden.words }.push(value.clone());
        // `Bearer KEY` is a key too where only the key is repeated.
        if let Some((_, key)) = value.expose().split_once(' ').filter(|_| keeps_keys(name)) {
            hidden.keys.extend(Secret::unlisted(key));
        }
    }
    if let Some(Some(proxy)) = &settings.proxy {
        hidden.words.push(proxy.clone());
        hidden.words.extend(http::proxy_secrets(proxy));
    }
    Ok((headers, hidden))
}

/// What is passed on must be what was meant: JSON has no word for some numbers, and the form of a reply has an option.
fn check_extra(extra: &Entries<Value>) -> Result<(), RemoteError> {
    for (name, value) in extra.iter() {
        let Some(value) = value else { continue };
        if name == "stream" {
            let why = "`stream` has an option of its own; set `stream` beside `extra`, not in it";
            return Err(RemoteError::Extra { why: why.to_owned() });
        }
        if let Some(path) = value.non_finite_path() {
            let place = path.replacen('$', name, 1);
            return Err(RemoteError::Extra {
                why: format!("`{place}` is a NaN or an infinity, which JSON cannot say"),
            });
        }
    }
    Ok(())
}

fn endpoint(base_url: &str, path: &str) -> Result<Url, RemoteError> {
    let wrong = |why: &str| RemoteError::BaseUrl { why: why.to_owned() };
    let base = base_url.trim().trim_end_matches('/');
    // Whoever copies an address copies it whole, or with the version that its page shows.
    let base = base.strip_suffix(path).map_or(base, |base| base.trim_end_matches('/'));
    let (version, _) = path.split_once('/').unwrap_or_default();
    let repeated = !version.is_empty() && version.starts_with('v') && base.ends_with(&format!("/{version}"));
    let path = if repeated { &path[version.len() + 1..] } else { path };
    // An address without a scheme is no address to the parser, or has its host for a scheme.
    let scheme = base.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    if !matches!(&*scheme, "http" | "https") {
        return Err(wrong("it must begin with http:// or https://"));
    }
    let url = Url::parse(&format!("{base}/{path}")).map_err(|error| wrong(&error.to_string()))?;
    if !http::names_host(base_url) {
        return Err(wrong("it has no host; write http://host:port, and the path behind it"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("it holds a password; pass the key as `api_key`"));
    }
    // Before the path is added to it: a question mark makes the path part of the query.
    if base_url.contains(['?', '#']) {
        return Err(wrong(
            "it has a query (`?`) or a fragment (`#`); write the address alone, and the key as `api_key`",
        ));
    }
    Ok(url)
}

/// A content type without its parameters, lower-case; empty when there is none.
fn kind(header: Option<&str>) -> String {
    header.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A reply without a type is taken at its word; one with another type is not.
fn is_json(kind: &str) -> bool {
    kind.is_empty() || kind == "application/json" || kind.ends_with("+json")
}

/// Settings that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// Not a base URL. The URL itself is not repeated: it may hold a password.
    #[error("`base_url` cannot be used: {why}")]
    BaseUrl {
        /// What is wrong with it.
        why: String,
    },
    /// A key with characters that no header can carry.
    #[error("the API key has characters that no HTTP header can carry; copy it again")]
    Key,
    /// A header with such characters in its name or value.
    #[error("the header `{name}` has characters that no HTTP header can carry")]
    Header {
        /// The header.
        name: String,
    },
    /// A header that is the wire's own.
    #[error("the header `{name}` says where a request ends or how its connection is used; leave it out")]
    Framing {
        /// The header.
        name: String,
    },
    /// Further fields that cannot be passed on.
    #[error("`extra` cannot be sent: {why}")]
    Extra {
        /// What is wrong with them.
        why: String,
    },
    /// Not a proxy. Its URL is not repeated: it may hold a password.
    #[error("`proxy` cannot be used: write http://host:port, with user and password before the host if it wants them")]
    Proxy,
}
