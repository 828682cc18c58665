//! `cadenza call ROLE METHOD [ARGS…]`.

use std::io::{IsTerminal as _, Write as _};

use cadenza_core::cancel::CancelToken;
use cadenza_core::outcome::{AgentOutcome, Metadata, Outcome, Reason};
use cadenza_core::printable::printable;
use cadenza_core::runtime::options::Options;
use cadenza_core::value::{Map, Value};

use super::{say, say_json};
use crate::failure::{Exit, Failure};
use crate::options::{AgentOptions, split};
use crate::style::Style;
use crate::{Context, interrupt};

/// Makes one dynamic call.
#[derive(Debug, clap::Args)]
pub struct Call {
    /// What the agent is for
    #[arg(value_name = "ROLE")]
    role: String,
    /// The method
    #[arg(value_name = "METHOD")]
    method: String,
    /// Positional arguments: JSON where it parses, else text
    #[arg(value_name = "ARGS", allow_negative_numbers = true)]
    args: Vec<String>,
    /// A named argument; may be repeated
    #[arg(long = "kw", value_name = "NAME=VALUE")]
    kwargs: Vec<String>,
    /// Something the agent remembers before the call; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    context: Vec<String>,
    /// The agent's name in its store, under which it lives on
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print the whole envelope as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    agents: AgentOptions,
}

impl Call {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let args = self.args.iter().map(|text| value(text)).collect();
        let kwargs = entries(&self.kwargs, "--kw")?;
        let memory = entries(&self.context, "--set")?;
        let (runtime, _) = self.agents.runtime("cadenza-rust")?;
        let options = Options { name: self.name, ..Options::default() };
        let agent = runtime.agent(&self.role, options).map_err(Failure::usage)?;
        agent.remember(memory).map_err(Failure::failed)?;
        let cancel = CancelToken::default();
        let guard = interrupt::guard(&cancel, Some(&runtime));
        let called = agent.call_with(&self.method, args, kwargs, &cancel);
        drop(guard);
        runtime.flush();
        let outcome = called.map_err(Failure::usage)?;
        if self.json {
            say_json(&Value::Map(outcome.to_map()));
        } else {
            print(&outcome, context.style);
        }
        Ok(exit(&outcome))
    }
}

/// JSON where the text parses, else the text.
fn value(text: &str) -> Value {
    Value::from_json(text).unwrap_or_else(|_| text.into())
}

fn entries(texts: &[String], flag: &str) -> Result<Map, Failure> {
    texts.iter().map(|text| split(text, flag).map(|(name, text)| (name.to_owned(), value(text)))).collect()
}

/// The value on standard output, alone, so that it can be piped on; everything else on standard error.
fn print(outcome: &Outcome, style: Style) {
    match outcome.error() {
        None => match outcome.value() {
            // A program that reads it gets it as it is; a terminal would obey it.
            Value::String(text) if std::io::stdout().is_terminal() => say(&printable(text)),
            Value::String(text) => say(text),
            other => say_json(other),
        },
        Some(error) => {
            let mut stderr = std::io::stderr().lock();
            drop(writeln!(
                stderr,
                "{} {}: {}",
                style.bad("error:"),
                printable(&error.error_type.to_string()),
                printable(&error.message)
            ));
        }
    }
    if let Some(metadata) = &outcome.metadata
        && std::io::stderr().is_terminal()
    {
        let mut stderr = std::io::stderr().lock();
        drop(writeln!(stderr, "{}", style.faint(&summary(outcome, metadata))));
    }
}

fn summary(outcome: &Outcome, metadata: &Metadata) -> String {
    let (role, method) = (printable(&outcome.role), printable(&outcome.method));
    let mut summary = format!("{role}.{method}: {} in {}", metadata.source.as_str(), metadata.language);
    if metadata.tokens > 0 {
        summary.push_str(&format!(", {} tokens", metadata.tokens));
    }
    if let Some(note) = &metadata.note {
        summary.push_str(&format!("; {}", printable(note)));
    }
    summary
}

fn exit(outcome: &Outcome) -> Exit {
    if outcome.ok() {
        return Exit::Ok;
    }
    match outcome.metadata.as_ref().map(|metadata| (metadata.agent_outcome, metadata.reason)) {
        Some((AgentOutcome::Interrupted, _)) => Exit::Interrupted,
        Some((AgentOutcome::FailedPreflight, Reason::Backend | Reason::Tools)) => Exit::Backend,
        Some(_) | None => Exit::Failed,
    }
}
