//! Looks for a server of local models: a short question to this machine, and to no other.
//!
//! Asked when nothing is configured, so it must cost nothing that anyone would notice: at most [`WITHIN`], and once for
//! an address in the life of a process.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reqwest::Url;
use serde_json::Value as Json;

/// The longest look.
const WITHIN: Duration = Duration::from_millis(200);
/// Most bytes of an answer; a list of models is short.
const MAX_BYTES: usize = 1 << 20;

/// The first model of the Ollama at that address of this machine that can be talked to, if one answers and has any.
/// Remembers the answer.
pub fn first_model(address: &str) -> Option<String> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Option<String>>>> = LazyLock::new(Mutex::default);
    // Held while one looks: others wait for the answer instead of asking again.
    let mut known = KNOWN.lock();
    if let Some(model) = known.get(address) {
        return model.clone();
    }
    let model = look(address);
    known.insert(address.to_owned(), model.clone());
    model
}

/// The same without a memory.
pub fn look(address: &str) -> Option<String> {
    let url = Url::parse(address).ok().filter(|url| url.scheme() == "http")?;
    let deadline = Instant::now() + WITHIN;
    let place = (url.host_str()?.trim_matches(['[', ']']), url.port_or_known_default()?);
    let mut places = place.to_socket_addrs().ok()?.filter(|place| place.ip().is_loopback());
    let mut stream = places.find_map(|place| TcpStream::connect_timeout(&place, left(deadline)?).ok())?;
    stream.set_write_timeout(Some(left(deadline)?)).ok()?;
    write!(stream, "GET /api/tags HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\n\r\n", place.0).ok()?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left(deadline)?)).ok()?;
        match stream.read(&mut part).ok()? {
            0 => break,
            bytes => answer.extend_from_slice(&part[..bytes]),
        }
        if answer.len() > MAX_BYTES {
            return None;
        }
    }
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let found = head.split(' ').nth(1) == Some("200");
    let body: Json = serde_json::from_str(body).ok().filter(|_| found)?;
    first_that_talks(&body).map(str::to_owned)
}

/// The first model of the list that can be talked to.
fn first_that_talks(list: &Json) -> Option<&str> {
    let models = list.get("models")?.as_array()?.iter().filter(|model| !embeds(model));
    models.filter_map(|model| model.get("name")?.as_str()).find(|name| !name.trim().is_empty())
}

/// Whether a model only turns texts into numbers, by what the list says of it.
fn embeds(model: &Json) -> bool {
    let says = |text: &Json, word: &str| text.as_str().is_some_and(|text| text.to_ascii_lowercase().contains(word));
    let of_family = |family: &Json| says(family, "bert");
    let mut families = model.pointer("/details/families").and_then(Json::as_array).into_iter().flatten();
    model.pointer("/details/family").is_some_and(of_family)
        || families.any(of_family)
        || model.get("name").is_some_and(|name| says(name, "embed"))
}

/// What is left until then; `None` when nothing is.
fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_that_only_embeds_is_no_default() {
        let bert = json!({"name": "nomic:latest", "details": {"family": "nomic-bert", "families": ["nomic-bert"]}});
        let named = json!({"name": "hf.co/Qwen/Qwen3-Embedding-0.6B-GGUF", "details": {"family": "qwen3"}});
        let several = json!({"name": "all-minilm", "details": {"families": ["bert"]}});
        let qwen = json!({"name": "qwen3:8b", "details": {"family": "qwen3", "families": ["qwen3"]}});
        let all = json!({"models": [bert, named, several, {"name": " "}, qwen]});
        assert_eq!(first_that_talks(&all), Some("qwen3:8b"));
        assert_eq!(first_that_talks(&json!({"models": [bert]})), None);
        assert_eq!(first_that_talks(&json!({"models": []})), None);
    }
}
