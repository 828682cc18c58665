//! HTTP for all remote providers: clients with pooled connections, one bounded POST, transport failures classed.
//!
//! It never reads what a reply means, never follows a redirect (a key goes to the host it was meant for, and to no
//! other), and never holds more than [`MAX_BODY_BYTES`] of a reply, whole or in pieces.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error as _;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hyper_util::client::proxy::matcher::Matcher;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use reqwest::header::{CONTENT_ENCODING, HeaderMap, HeaderName};
use reqwest::{Client, Proxy, Response, Url};
use serde_json::Value as Json;

use super::secret::Secret;
use super::target::Field;
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

/// What is told of a proxy that wants to know who asks.
pub(super) const PROXY_REFUSES: &str =
    "the proxy does not let it through; write its user and password into `proxy`, as http://user:password@host:port";

/// What is told of a certificate that nobody vouches for whom this machine trusts. Where the system keeps its authorities
/// itself, no variable names others.
const UNTRUSTED: &str = if cfg!(any(target_vendor = "apple", windows)) {
    "its certificate is not trusted; add its authority to the system's"
} else {
    "its certificate is not trusted; name a file with its authority in SSL_CERT_FILE"
};

/// Where requests go, and how: the same for all that a target is asked in one way.
pub(crate) struct Post {
    /// The provider's name, for messages.
    pub model: String,
    /// Where to.
    pub url: Url,
    /// All headers, the key's included.
    pub headers: HeaderMap,
    /// Through which proxy: the system's, none, or this one.
    pub proxy: Field<Secret>,
    /// The same in words; empty for none.
    pub through: String,
    /// What is removed from whatever comes back.
    pub hidden: Arc<Hidden>,
}

/// What must not come back out of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hidden {
    /// Removed from everything.
    pub keys: Vec<Secret>,
    /// Private, but maybe ordinary words: removed from what is told of a failure, not from what a model says.
    pub words: Vec<Secret>,
}

impl Hidden {
    /// Bytes of the longest of them.
    fn longest(&self) -> usize {
        self.keys.iter().chain(&self.words).map(|secret| secret.expose().len()).max().unwrap_or(0)
    }

    /// Text of a reply without keys.
    pub fn scrub<'a>(&self, text: &'a str) -> Cow<'a, str> {
        scrub(&self.keys, Cow::Borrowed(text))
    }

    /// Text of a failure without keys and private words.
    pub fn scrub_failure(&self, text: &str) -> String {
        scrub(&self.words, self.scrub(text)).into_owned()
    }

    /// The same of every text and name in a JSON value: inside of them nothing is written with escapes.
    pub fn scrub_json(&self, json: &Json) -> Json {
        match json {
            Json::String(text) => self.scrub_failure(text).into(),
            Json::Array(list) => list.iter().map(|item| self.scrub_json(item)).collect(),
            Json::Object(map) => {
                map.iter().map(|(name, item)| (self.scrub_failure(name), self.scrub_json(item))).collect()
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => json.clone(),
        }
    }

    /// The same of a text that may be broken JSON: escapes in it become what they stand for.
    pub fn scrub_raw(&self, text: &str) -> String {
        self.scrub_failure(&unescaped(&self.scrub_failure(text)))
    }

    /// The first words of what came instead of a completion, in one line. Cut last: half a key would not be found.
    pub fn start_of(&self, text: &str) -> String {
        let text = self.scrub_raw(text);
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{:?}", &line[..line.floor_char_boundary(200)])
    }
}

/// A text with the ASCII characters that its JSON escapes stand for, whether or not it is JSON.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let code = rest.strip_prefix('u').and_then(|code| u8::from_str_radix(code.get(..4)?, 16).ok());
        match (rest.chars().next(), code.filter(u8::is_ascii)) {
            (_, Some(code)) => {
                out.push(char::from(code));
                rest = &rest[5..];
            }
            (Some(plain @ ('"' | '\\' | '/')), None) => {
                out.push(plain);
                rest = &rest[1..];
            }
            (Some(_) | None, None) => out.push('\\'),
        }
    }
    out.push_str(rest);
    out.into()
}

fn scrub<'a>(secrets: &[Secret], text: Cow<'a, str>) -> Cow<'a, str> {
    secrets.iter().fold(text, |text, secret| match secret.scrub(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(scrubbed) => Cow::Owned(scrubbed),
    })
}

/// One reply, whatever its status.
pub(crate) struct Reply {
    /// HTTP status.
    pub status: u16,
    /// As they came: to be scrubbed before they are told ([`header_texts`]).
    pub headers: HeaderMap,
    /// The body, without keys. That of a refusal may be cut, and has replacement characters where it is not UTF-8.
    pub body: String,
}

/// A header that is text.
pub(crate) fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// All that are text, by lower-case names and without keys.
pub(crate) fn header_texts(headers: &HeaderMap, hidden: &Hidden) -> Vec<(String, String)> {
    let texts = headers.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?)));
    texts.map(|(name, value)| (name, hidden.scrub(value).into_owned())).collect()
}

/// The clients of a process, by what they need: certificates only for `https`, and no proxy for this machine.
///
/// HTTP/1.1 on purpose: with HTTP/2 thousands of waiting requests would queue behind one connection's stream limit.
#[derive(Default)]
pub(crate) struct Clients {
    by_need: [OnceLock<Client>; 4],
    by_proxy: Mutex<HashMap<String, Client>>,
}

impl Clients {
    fn get(&self, url: &Url, proxy: &Field<Secret>) -> Result<Client, ProviderError> {
        let secure = url.scheme() == "https";
        if let Some(Some(proxy)) = proxy {
            let mut clients = self.by_proxy.lock();
            if let Some(client) = clients.get(proxy.expose()) {
                return Ok(client.clone());
            }
            // One client serves both schemes, because the way to a proxy may be secure by itself.
            let client = built(true, Some(Some(proxy)))?;
            clients.insert(proxy.expose().to_owned(), client.clone());
            return Ok(client);
        }
        let direct = is_loopback(url) || matches!(proxy, Some(None));
        let slot = &self.by_need[usize::from(secure) + 2 * usize::from(direct)];
        if let Some(client) = slot.get() {
            return Ok(client.clone());
        }
        let client = built(secure, direct.then_some(None))?;
        Ok(slot.get_or_init(|| client).clone())
    }
}

fn built(secure: bool, proxy: Option<Option<&Secret>>) -> Result<Client, ProviderError> {
    build_client(secure, proxy).map_err(|error| {
        let message = format!(
            "no HTTPS client: {}; install the system's certificate authorities (`ca-certificates`)",
            chain(&error.without_url())
        );
        ProviderError::new(ProviderErrorClass::Network, message)
    })
}

fn build_client(secure: bool, proxy: Option<Option<&Secret>>) -> Result<Client, reqwest::Error> {
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
    builder = match proxy {
        None => builder,
        Some(None) => builder.no_proxy(),
        Some(Some(url)) => builder.no_proxy().proxy(Proxy::all(url.expose())?),
    };
    builder.build()
}

/// Whether a proxy's URL can be used.
pub(crate) fn is_proxy(url: &Secret) -> bool {
    let is_http = |parsed: Url| matches!(parsed.scheme(), "http" | "https") && names_host(url.expose());
    Url::parse(url.expose()).is_ok_and(is_http) && Proxy::all(url.expose()).is_ok()
}

/// Whether a host stands where it belongs in an address that begins with http: or https:. Without one the parser takes
/// the first segment of the path for it.
pub(crate) fn names_host(url: &str) -> bool {
    let begins = |c: char| !matches!(c, '/' | '\\') && !c.is_whitespace();
    url.split_once("://").is_some_and(|(_, rest)| rest.starts_with(begins))
}

/// What of a proxy's URL must not come back beside the URL itself: its password as it is written and as it is meant, and
/// what goes out of both user and password.
pub(crate) fn proxy_secrets(proxy: &Secret) -> Vec<Secret> {
    let Ok(url) = Url::parse(proxy.expose()) else { return Vec::new() };
    let decoded = |text| percent_decode_str(text).decode_utf8_lossy();
    let (user, written) = (decoded(url.username()), url.password().unwrap_or_default());
    if user.is_empty() && written.is_empty() {
        return Vec::new();
    }
    let password = decoded(written);
    // Without the padding at the end, so that it is found with and without.
    let basic = STANDARD_NO_PAD.encode(format!("{user}:{password}"));
    [written, &password, &basic].into_iter().filter_map(Secret::unlisted).collect()
}

/// The address of the proxy through which the system sends what goes to a URL, and what of it must not come back.
pub(crate) fn system_proxy(url: &Url) -> Option<(String, Vec<Secret>)> {
    if is_loopback(url) {
        return None;
    }
    let proxy = Matcher::from_system().intercept(&url.as_str().parse().ok()?)?;
    let header = proxy.basic_auth().and_then(|header| header.to_str().ok()).unwrap_or_default();
    let basic = header.strip_prefix("Basic ").unwrap_or_default();
    let decoded = STANDARD.decode(basic).unwrap_or_default();
    let of_both = String::from_utf8_lossy(&decoded);
    let password = of_both.split_once(':').map_or("", |(_, password)| password);
    let secrets = [basic.trim_end_matches('='), password].into_iter().filter_map(Secret::unlisted);
    Some((format!("{}://{}", proxy.uri().scheme_str()?, proxy.uri().authority()?), secrets.collect()))
}

/// Whether a URL's host is this machine.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// What came first: status and headers. The body is still to be read.
pub(crate) struct Answered {
    post: Arc<Post>,
    /// HTTP status.
    pub status: u16,
    response: Response,
}

/// Whether a base URL is of this machine.
pub(crate) fn is_local(base_url: &str) -> bool {
    Url::parse(base_url).is_ok_and(|url| is_loopback(&url))
}

/// Sends one request. Must run on the shared runtime.
pub(crate) async fn send(shared: &Shared, post: &Arc<Post>, body: Vec<u8>) -> Result<Answered, ProviderError> {
    let client = shared.clients.get(&post.url, &post.proxy)?;
    let sent = client.post(post.url.clone()).headers(post.headers.clone()).body(body).send();
    let response = sent.await.map_err(|error| transport_failure(post, error))?;
    Ok(Answered { post: post.clone(), status: response.status().as_u16(), response })
}

impl Answered {
    /// As they came.
    pub fn headers(&mut self) -> &mut HeaderMap {
        self.response.headers_mut()
    }

    /// How the body is encoded, when it is: it is asked for as it is, and nothing here decodes.
    pub fn encoding(&self) -> Option<String> {
        let values = self.response.headers().get_all(CONTENT_ENCODING);
        let texts: Vec<_> = values.iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        let text = self.post.hidden.scrub_failure(&texts.join(", "));
        let as_it_is = |word: &str| word.is_empty() || word.eq_ignore_ascii_case("identity");
        let encoded = !text.split(',').all(|word| as_it_is(word.trim()));
        encoded.then(|| format!("{:?}", &text[..text.floor_char_boundary(64)]))
    }

    /// A reply whose body cannot be read: what a refusal is, its status says all the same.
    fn unread(mut self, encoding: &str) -> Result<Reply, ProviderError> {
        let body = format!("the body is encoded ({encoding})");
        if (200..300).contains(&self.status) {
            let message = format!(
                "{}: {body}, which was not asked for; check the server, what stands before it, and \
                 `accept-encoding` in `headers`",
                self.post.model
            );
            return Err(ProviderError::new(ProviderErrorClass::InvalidResponse, message));
        }
        Ok(Reply { status: self.status, headers: std::mem::take(self.headers()), body })
    }

    /// Reads all of it. Of a refusal, the beginning.
    pub async fn whole(mut self) -> Result<Reply, ProviderError> {
        if let Some(encoding) = self.encoding() {
            return self.unread(&encoding);
        }
        let success = (200..300).contains(&self.status);
        let allowed = if success { MAX_BODY_BYTES } else { MAX_REFUSAL_BYTES };
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            let room = allowed - body.len();
            if chunk.len() > room && success {
                return Err(too_large(&self.post.model));
            }
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == allowed && !success {
                // Half a key at the end would not be found, and with escapes it is six times as long.
                body.truncate(allowed.saturating_sub(6 * self.post.hidden.longest()));
                break;
            }
        }
        let body = match String::from_utf8(body) {
            Ok(text) => text,
            Err(error) if success => {
                let at = error.utf8_error().valid_up_to();
                let message = format!("{}: the reply is not UTF-8 (byte {at})", self.post.model);
                return Err(ProviderError::new(ProviderErrorClass::InvalidResponse, message));
            }
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        let body = match self.post.hidden.scrub(&body) {
            Cow::Owned(scrubbed) => scrubbed,
            Cow::Borrowed(_) => body,
        };
        Ok(Reply { status: self.status, headers: std::mem::take(self.headers()), body })
    }

    /// The next bytes, as they come; `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<bytes::Bytes>, ProviderError> {
        self.response.chunk().await.map_err(|error| transport_failure(&self.post, error))
    }
}

/// The failure of a reply that is no completion by its size alone.
pub(crate) fn too_large(model: &str) -> ProviderError {
    let message = format!("{model}: the reply is larger than {MAX_BODY_BYTES} bytes; that is no completion");
    ProviderError::new(ProviderErrorClass::InvalidResponse, message)
}

fn transport_failure(post: &Post, error: reqwest::Error) -> ProviderError {
    let (model, host) = (&post.model, post.url.host_str().unwrap_or("?"));
    let port = post.url.port_or_known_default().unwrap_or_default();
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
    let through = &post.through;
    let details = chain(&error.without_url());
    let class = if timed_out { ProviderErrorClass::Timeout } else { ProviderErrorClass::Network };
    // The answer to CONNECT, of which there are only words.
    let advice = if details.contains("proxy authorization required") {
        PROXY_REFUSES
    } else if details.contains("UnknownIssuer") {
        UNTRUSTED
    } else if through.is_empty() {
        "check `base_url`, the network and the server"
    } else {
        "check the proxy, `base_url`, the network and the server"
    };
    let message = format!("{model}: {what} ({host}:{port}{through}): {details}; {advice}");
    ProviderError::new(class, post.hidden.scrub_failure(&message))
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
