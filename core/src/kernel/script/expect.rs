//! What a script expects, compared with what came out. Every field that is given must fit; the rest is free.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Run;
use crate::kernel::StoredEntry;
use crate::outcome::{AgentOutcome, GoalStatus};
use crate::value::{Map, Value};

/// What must come out of a script.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The class: its published spelling, or the short form of the clause tables (`WITH`, `CHAT`, `PRE`, …).
    #[serde(default)]
    pub outcome: Option<String>,
    /// The reason.
    #[serde(default)]
    pub reason: Option<String>,
    /// `achieved` or `blocked`.
    #[serde(default)]
    pub goal_status: Option<String>,
    /// Counters by name: `inferences`, `tools_executed`, `tools_ok`, `format_retries`, `semantic_retries`, `tokens`,
    /// `child_tokens`, `generation_attempt`, `length`.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// All states, in order.
    #[serde(default)]
    pub states: Option<Vec<String>>,
    /// All commands, in order, as far as each given text goes (`Infer` fits `Infer retry EMPTY`).
    #[serde(default)]
    pub commands: Option<Vec<String>>,
    /// Number of entries by kind.
    #[serde(default)]
    pub kinds: BTreeMap<String, u64>,
    /// Tools that started, in order.
    #[serde(default)]
    pub started: Option<Vec<String>>,
    /// Tools that took effect, in order.
    #[serde(default)]
    pub effects: Option<Vec<String>>,
    /// Texts that were shown, in order.
    #[serde(default)]
    pub texts: Option<Vec<String>>,
    /// The value.
    #[serde(default)]
    pub value: Option<Value>,
    /// Part of the message.
    #[serde(default)]
    pub message_includes: Option<String>,
    /// Entries that must be there, in this order.
    #[serde(default)]
    pub entries: Vec<EntryExpectation>,
}

/// An entry that must be there.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryExpectation {
    /// Its kind.
    pub kind: String,
    /// The state it was made in.
    #[serde(default)]
    pub state: Option<String>,
    /// Fields of the action that must fit.
    #[serde(default)]
    pub action: Map,
    /// Fields of the result that must fit.
    #[serde(default)]
    pub result: Map,
}

/// What did not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(pub String);

/// The class with that spelling, short or published.
pub fn outcome_named(name: &str) -> Option<AgentOutcome> {
    AgentOutcome::from_name(name).or(match name {
        "WITH" => Some(AgentOutcome::CompletedWithTools),
        "CHAT" => Some(AgentOutcome::CompletedChatOnly),
        "PRE" => Some(AgentOutcome::FailedPreflight),
        "NOTOOL" => Some(AgentOutcome::FailedProtocolNoTools),
        "MALF" => Some(AgentOutcome::FailedProtocolMalformed),
        "VALID" => Some(AgentOutcome::FailedValidation),
        "BUDGET" => Some(AgentOutcome::FailedBudgetExhausted),
        "TIME" => Some(AgentOutcome::FailedTimeout),
        "VIOL" => Some(AgentOutcome::FailedContractViolation),
        "INTR" => Some(AgentOutcome::Interrupted),
        _ => None,
    })
}

impl Expectation {
    /// `Err` names the first thing that does not fit.
    pub fn compare(&self, run: &Run) -> Result<(), Mismatch> {
        let ended = &run.ended;
        if let Some(name) = &self.outcome {
            let wanted = outcome_named(name).ok_or_else(|| Mismatch(format!("`{name}` is no outcome")))?;
            same("outcome", wanted.as_str(), ended.agent_outcome.as_str())?;
        }
        if let Some(reason) = &self.reason {
            same("reason", reason.as_str(), ended.reason.as_str())?;
        }
        if let Some(status) = &self.goal_status {
            same("goal_status", status.as_str(), ended.goal_status.map_or("none", GoalStatus::as_str))?;
        }
        for (name, wanted) in &self.counters {
            same(name, *wanted, counter(run, name)?)?;
        }
        if let Some(states) = &self.states {
            same(
                "states",
                states.join(" "),
                run.transcript.states().map(|state| state.as_str()).collect::<Vec<_>>().join(" "),
            )?;
        }
        if let Some(commands) = &self.commands {
            let fits = commands.len() == run.commands.len()
                && commands.iter().zip(&run.commands).all(|(wanted, got)| got.starts_with(wanted.as_str()));
            if !fits {
                return Err(Mismatch(format!("commands: expected {commands:?}, got {:?}", run.commands)));
            }
        }
        for (kind, wanted) in &self.kinds {
            let got = run.stored.iter().filter(|entry| entry.kind() == kind).count() as u64;
            same(&format!("entries of kind {kind}"), *wanted, got)?;
        }
        list("started", &self.started, &run.started)?;
        list("effects", &self.effects, &run.effects)?;
        list("texts", &self.texts, &run.texts.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>())?;
        if let Some(value) = &self.value {
            same("value", value.clone(), ended.value.as_deref().cloned().unwrap_or_default())?;
        }
        if let Some(part) = &self.message_includes
            && !ended.message.contains(part.as_str())
        {
            return Err(Mismatch(format!("message: expected `{part}` in `{}`", ended.message)));
        }
        self.compare_entries(&run.stored)
    }

    fn compare_entries(&self, stored: &[StoredEntry]) -> Result<(), Mismatch> {
        let mut rest = stored.iter();
        for wanted in &self.entries {
            if !rest.any(|entry| wanted.fits(entry)) {
                return Err(Mismatch(format!("no entry {wanted:?} (in this order)")));
            }
        }
        Ok(())
    }
}

impl EntryExpectation {
    fn fits(&self, entry: &StoredEntry) -> bool {
        let holds = |fields: &Map, of: &Value| {
            fields.iter().all(|(key, wanted)| of.as_map().and_then(|map| map.get(key)) == Some(wanted))
        };
        entry.kind() == self.kind
            && self.state.as_ref().is_none_or(|state| **state == *entry.state)
            && holds(&self.action, &entry.action)
            && holds(&self.result, &entry.result)
    }
}

fn counter(run: &Run, name: &str) -> Result<u64, Mismatch> {
    let spent = &run.ended.spent;
    Ok(match name {
        "inferences" => spent.inferences.into(),
        "tools_executed" => spent.tools_executed.into(),
        "tools_ok" => spent.tools_ok.into(),
        "format_retries" => spent.format_retries.into(),
        "semantic_retries" => spent.semantic_retries.into(),
        "tokens" => spent.tokens.0,
        "child_tokens" => spent.child_tokens.0,
        "generation_attempt" => run.ended.generation_attempt.into(),
        "requests" => run.requests.len() as u64,
        "length" => run.transcript.len() as u64,
        _ => return Err(Mismatch(format!("`{name}` is no counter"))),
    })
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, wanted: T, got: T) -> Result<(), Mismatch> {
    if wanted == got { Ok(()) } else { Err(Mismatch(format!("{what}: expected {wanted:?}, got {got:?}"))) }
}

fn list(what: &str, wanted: &Option<Vec<String>>, got: &[String]) -> Result<(), Mismatch> {
    match wanted {
        Some(wanted) if wanted != got => Err(Mismatch(format!("{what}: expected {wanted:?}, got {got:?}"))),
        Some(_) | None => Ok(()),
    }
}
