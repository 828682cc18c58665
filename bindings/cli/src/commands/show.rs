//! `cadenza show CALL [LOG]`.

use std::path::PathBuf;

use cadenza_core::outcome::ReuseReason;
use cadenza_core::value::{Map, Value};

use super::{say, say_json};
use crate::failure::{Exit, Failure};
use crate::logfile::{Entry, LogFile, milliseconds};
use crate::options::default_log;
use crate::style::Style;
use crate::tokens::PromptTokens;
use crate::{Context, highlight};

/// Shows one call.
#[derive(Debug, clap::Args)]
pub struct Show {
    /// The call: its id, its beginning or its end, as `cadenza calls` shows it; or `last`
    #[arg(value_name = "CALL")]
    call: String,
    /// The log; the configured one when none is named
    #[arg(value_name = "LOG")]
    log: Option<PathBuf>,
    /// Print the entry itself as one line of JSON, with what its prompt cost
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let path = self.log.map_or_else(default_log, Ok)?;
        let log = LogFile::read(&path)?;
        let entry = log.find(&self.call)?;
        let tokens = PromptTokens::of_call(entry.fields());
        if self.json {
            let mut fields = entry.fields().clone();
            if let Some(tokens) = tokens {
                fields.insert("prompt_tokens".to_owned(), Value::Map(tokens.to_map()));
            }
            say_json(&Value::Map(fields));
            return Ok(Exit::Ok);
        }
        let style = context.style;
        say(&format!("{}  {}", entry.signature(style), entry.state(style)));
        for (name, value) in facts(entry) {
            say(&format!("{}  {value}", style.faint(&format!("{name:>11}"))));
        }
        if let Some(tokens) = tokens {
            say(&format!("{}  {}", style.faint("     prompt"), tokens.in_words()));
        }
        if let Some(Value::List(failures)) = entry.shown().get("attempt_failures") {
            for failure in failures {
                say(&format!("{}  {}", style.faint("     failed"), attempt(failure)));
            }
        }
        let trees = log.trees();
        let children = trees.children(entry);
        if !children.is_empty() {
            say(&heading("calls it made", style));
            children.iter().for_each(|child| say(trees.text(child, style).trim_end()));
        }
        if !entry.text("code").is_empty() {
            say(&heading("program", style));
            say(highlight::program(entry.text("code"), entry.language(), style).trim_end());
        }
        for (name, title) in [("context", "context after the call"), ("outcome_value", "value")] {
            if let Some(value) = entry.shown().get(name) {
                say(&heading(title, style));
                say(&value.to_json());
            }
        }
        for (name, title) in [("system_prompt", "system prompt"), ("user_prompt", "user prompt")] {
            if !entry.text(name).is_empty() {
                say(&heading(title, style));
                say(entry.text(name).trim_end());
            }
        }
        Ok(Exit::Ok)
    }
}

fn heading(title: &str, style: Style) -> String {
    format!("\n{}", style.strong(title))
}

/// The facts about a call that are worth a line, in the order in which people ask for them.
fn facts(entry: &Entry) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("call", entry.text("call_id").to_owned()),
        ("trace", entry.text("trace_id").to_owned()),
        ("caller", entry.text("parent_call_id").to_owned()),
        ("began", entry.text("timestamp").to_owned()),
        ("took", milliseconds(entry.number("duration_ms"))),
        ("runtime", entry.text("runtime").to_owned()),
        ("model", entry.text("model").to_owned()),
        ("agent", entry.text("agent").to_owned()),
        ("namespace", entry.text("namespace").to_owned()),
        ("program", format!("{} {}", entry.text("program_source"), entry.text("language")).trim().to_owned()),
        ("reuse", ReuseReason::from_name(entry.text("reuse")).map_or("", ReuseReason::words).to_owned()),
        ("ended", format!("{} {}", entry.text("agent_outcome"), entry.text("reason")).trim().to_owned()),
        ("error", entry.text("outcome_error_message").to_owned()),
        ("transcript", entry.text("transcript_head").to_owned()),
    ];
    let tokens = (entry.number("tokens_in"), entry.number("tokens_out"));
    if tokens != (0.0, 0.0) {
        facts.push(("tokens", format!("{} in, {} out", tokens.0, tokens.1)));
    }
    if let Some(Value::List(requests)) = entry.shown().get("accounting") {
        facts.extend(requests.iter().filter_map(|request| Some(("asked", asked(request.as_map()?)))));
    }
    for name in ["args", "kwargs"] {
        match entry.shown().get(name) {
            Some(Value::List(list)) if !list.is_empty() => facts.push((name, Value::List(list.clone()).to_json())),
            Some(Value::Map(map)) if !map.is_empty() => facts.push((name, Value::Map(map.clone()).to_json())),
            Some(_) | None => {}
        }
    }
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

/// A request to a model in one line: who was asked, who answered, how long it took and what it cost.
fn asked(request: &Map) -> String {
    let text = |name: &str| request.get(name).and_then(Value::as_str).unwrap_or_default();
    let number = |name: &str| request.get(name).and_then(Value::as_float);
    let (provider, model) = (text("provider"), text("model"));
    let mut line = if provider == model { model.to_owned() } else { format!("{provider}:{model}") };
    if !text("actual_model").is_empty() {
        line.push_str(&format!(" ({})", text("actual_model")));
    }
    line.push_str(&format!(", {}, {}", text("status"), milliseconds(number("latency_ms").unwrap_or_default())));
    if let Some(cost) = number("cost_usd") {
        line.push_str(&format!(", {cost} USD"));
    }
    if !text("error_class").is_empty() {
        line.push_str(&format!(", {}", text("error_class")));
    }
    line
}

fn attempt(failure: &Value) -> String {
    let Some(map) = failure.as_map() else { return failure.to_json() };
    let text = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
    let number = map.get("attempt_id").map(Value::to_json).unwrap_or_default();
    format!("attempt {number}, {} {}: {}", text("stage"), text("error_class"), text("error_message"))
}
