//! Starts the local model server of the tests, prints its base URL as one line, and serves until its input ends.
//!
//! `wire_server [--key KEY] [PLAN.json]`. The plan maps a method to a program's text, or to
//! `{"code": ..., "delay_ms": ...}` or `{"fixture": ...}`. A request for the model `error:NAME` gets the recorded
//! refusal `tests/fixtures/provider/NAME.json`, one for `delay:MS` waits. A method without a plan gets a program that
//! returns the method's name.

#[path = "../../tests/support/wire_server.rs"]
#[allow(dead_code, missing_docs, reason = "shared with tests that use more of it")]
mod wire_server;

use std::io::Read as _;
use std::time::Duration;

use serde_json::Value as Json;
use wire_server::{Answer, Seen, WireServer, fixtures};

fn main() {
    let mut key = None;
    let mut plan = Json::Null;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--key" {
            key = arguments.next();
        } else {
            let text = std::fs::read_to_string(&argument).unwrap_or_else(|error| panic!("{argument}: {error}"));
            plan = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{argument}: {error}"));
        }
    }
    let server = WireServer::start(key.as_deref(), move |seen| answer(&plan, seen));
    println!("{}", server.base_url());
    // Whoever started this closes its end of the pipe, or dies: both end the server.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn answer(plan: &Json, seen: &Seen) -> Answer {
    let model = seen.model();
    if let Some(name) = model.strip_prefix("error:") {
        return refusal(name);
    }
    let method = seen.method().unwrap_or_default();
    let planned = &plan[&method];
    if let Some(name) = planned["fixture"].as_str() {
        return refusal(name);
    }
    let code = match planned.as_str().or(planned["code"].as_str()) {
        Some(code) => code.to_owned(),
        None => format!("return {method:?}"),
    };
    let from_model = model.strip_prefix("delay:").and_then(|text| text.parse().ok());
    match from_model.or(planned["delay_ms"].as_u64()) {
        Some(delay) => Answer::After(Duration::from_millis(delay), Box::new(Answer::Program(code))),
        None => Answer::Program(code),
    }
}

fn refusal(name: &str) -> Answer {
    // A name, not a path: it came over the wire.
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let path = fixtures().join(format!("{name}.json"));
    if plain && path.is_file() {
        return Answer::fixture(&path);
    }
    Answer::Raw { status: 404, headers: Vec::new(), body: format!("no fixture {name:?}").into_bytes() }
}
