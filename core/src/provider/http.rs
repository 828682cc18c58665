//! HTTP for all remote providers: clients with pooled connections, one bounded POST, transport failures classed.
//!
//! It never reads what a reply means, never follows a redirect (a key goes to the host it was meant for, and to no
//! other), and never holds more than [`MAX_BODY_BYTES`] of a reply.

use std::error::Error as _;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, Url};

use super::secret::Secret;
use super::wait::Shared;
use super::{ProviderError, ProviderErrorClass};

/// Most bytes of a reply; a program has at most 64 KiB, so more is not a completion.
pub(crate) const MAX_BODY_BYTES: usize = 8 << 20;
/// Most bytes of a refusal that are read; its first words are enough.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// Most time for a connection. A dead address must leave time for the next target.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long an unused connection is kept.
const KEEP_IDLE: Duration = Duration::from_secs(90);

/// One request.
pub(crate) struct Post {
    /// Where to.
    pub url: Url,
    /// All headers, the key's included.
    pub headers: HeaderMap,
    /// JSON.
    pub body: Vec<u8>,
    /// The key, so that it can be removed from what comes back.
    pub key: Option<Secret>,
}

/// One reply, whatever its status. No secret in it.
pub(crate) struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Names lower-case; values that are not text are left out.
    pub headers: Vec<(String, String)>,
    /// The body. That of a refusal may be cut, and has replacement characters where it is not UTF-8.
    pub body: String,
}

impl Reply {
    /// A header by lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The clients of a process, by what they need: certificates only for `https`, and no proxy for this machine.
///
/// HTTP/1.1 on purpose: with HTTP/2 thousands of waiting requests would queue behind one connection's stream limit.
#[derive(Default)]
pub(crate) struct Clients {
    by_need: [OnceLock<Client>; 4],
}

impl Clients {
    fn get(&self, url: &Url) -> Result<&Client, ProviderError> {
        let secure = url.scheme() == "https";
        let local = is_loopback(url);
        let slot = &self.by_need[usize::from(secure) + 2 * usize::from(local)];
        if let Some(client) = slot.get() {
            return Ok(client);
        }
        let client = build_client(secure, local).map_err(|error| {
            let message = format!(
                "no HTTPS client: {}; install the system's certificate authorities (`ca-certificates`)",
                chain(&error)
            );
            ProviderError::new(ProviderErrorClass::Network, message)
        })?;
        Ok(slot.get_or_init(|| client))
    }
}

fn build_client(secure: bool, local: bool) -> Result<Client, reqwest::Error> {
    static CRYPTO: OnceLock<()> = OnceLock::new();
    // A host program that installed its own provider before keeps it; then this is refused, and that is fine.
    CRYPTO.get_or_init(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let mut builder = Client::builder()
        .user_agent(concat!("cadenza/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_WITHIN)
        .pool_idle_timeout(KEEP_IDLE)
        .tcp_keepalive(KEEP_IDLE)
        .tcp_nodelay(true)
        .http1_only();
    if !secure {
        builder = builder.tls_certs_only([]);
    }
    if local {
        builder = builder.no_proxy();
    }
    builder.build()
}

/// Whether a URL's host is this machine.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Sends one request and reads its reply. Must run on the shared runtime; `model` names the provider in messages.
pub(crate) async fn post(shared: &Shared, model: &str, post: Post) -> Result<Reply, ProviderError> {
    let host = post.url.host_str().unwrap_or("?").to_owned();
    let failed = |error: reqwest::Error| transport_failure(model, &host, post.key.as_ref(), error);
    let client = shared.clients.get(&post.url)?;
    let sent = client.post(post.url.clone()).headers(post.headers.clone()).body(post.body).send();
    let mut response = sent.await.map_err(failed)?;

    let status = response.status();
    let allowed = if status.is_success() { MAX_BODY_BYTES } else { MAX_REFUSAL_BYTES };
    let headers = header_texts(response.headers(), post.key.as_ref());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        let room = allowed - body.len();
        if chunk.len() > room && status.is_success() {
            let message = format!("{model}: the reply is larger than {MAX_BODY_BYTES} bytes; that is no completion");
            return Err(ProviderError::new(ProviderErrorClass::InvalidResponse, message));
        }
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == allowed && !status.is_success() {
            break;
        }
    }
    let body = match String::from_utf8(body) {
        Ok(text) => text,
        Err(error) if status.is_success() => {
            let at = error.utf8_error().valid_up_to();
            let message = format!("{model}: the reply is not UTF-8 (byte {at})");
            return Err(ProviderError::new(ProviderErrorClass::InvalidResponse, message));
        }
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    };
    let body = match post.key.as_ref().map(|key| key.scrub(&body)) {
        Some(std::borrow::Cow::Owned(scrubbed)) => scrubbed,
        Some(std::borrow::Cow::Borrowed(_)) | None => body,
    };
    Ok(Reply { status: status.as_u16(), headers, body })
}

fn header_texts(headers: &HeaderMap, key: Option<&Secret>) -> Vec<(String, String)> {
    let texts = headers.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?)));
    texts.map(|(name, value)| (name, scrubbed(key, value))).collect()
}

fn transport_failure(model: &str, host: &str, key: Option<&Secret>, error: reqwest::Error) -> ProviderError {
    let timed_out = error.is_timeout();
    let what = if error.is_dns() {
        "the name is unknown"
    } else if error.is_connect() && timed_out {
        "no connection in time"
    } else if error.is_connect() {
        "no connection"
    } else if error.is_body() || error.is_decode() {
        "the reply broke off"
    } else {
        "the exchange broke"
    };
    let class = if timed_out { ProviderErrorClass::Timeout } else { ProviderErrorClass::Network };
    let details = chain(&error.without_url());
    let message = format!("{model}: {what} ({host}): {details}; check `base_url`, the network and the server");
    ProviderError::new(class, scrubbed(key, &message))
}

fn scrubbed(key: Option<&Secret>, text: &str) -> String {
    key.map_or_else(|| text.to_owned(), |key| key.scrub(text).into_owned())
}

/// An error and its causes, in one line, each said once.
fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}
