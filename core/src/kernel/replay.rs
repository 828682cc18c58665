//! Replay: the same kernel over the recorded inputs, without a provider and without tools (V39, EC-RP1 to EC-RP5).
//!
//! Clock verdicts, cancellation, readiness and token counts are data of the transcript; everything else is recomputed and
//! compared. Whoever changed a recorded input is found at that entry; a kernel that decides differently, at the entry
//! where it does.

use std::sync::Arc;

use super::clock::Clock;
use super::stored::StoredEntry;
use super::transcript::Transcript;
use super::verify::{Divergence, compare};
use super::{
    AdapterRecord, Command, Cut, Decision, Ended, Environment, Executed, Inference, Input, Kernel, ToolEnvelope,
    ToolFailure,
};
use crate::contract::{ExecutionContract, Millis, Tokens};
use crate::ids::Digest;
use crate::message::{
    AdapterDecision, AgentMessage, MessageRole, ProtocolAdapterResult, RejectionCode, ToolInvocation, Usage,
};
use crate::value::{Map, Value};

/// A replay that came to the same end.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// How the run ended, again; `None` for a transcript that stops before its end.
    pub ended: Option<Box<Ended>>,
    /// Head of the recomputed chain.
    pub head: Digest,
}

/// Why a replay did not come to the same end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReplayError {
    /// The recomputed run differs.
    #[error("the replayed run differs: {0}")]
    Diverges(#[from] Divergence),
    /// An entry does not hold what the kernel was told.
    #[error("entry {seq} cannot be replayed: no valid `{field}`")]
    Unreadable {
        /// The entry.
        seq: u32,
        /// What is missing.
        field: &'static str,
    },
}

/// Runs the recorded inputs through a fresh kernel and compares every entry.
///
/// `environment` must describe the same tools; its digests and refusal are taken from the record. A transcript that stops
/// early (a killed run) replays up to its last complete input.
pub fn replay(
    contract: Arc<ExecutionContract>,
    environment: &Environment,
    entries: &[StoredEntry],
) -> Result<Replayed, ReplayError> {
    let environment = Arc::new(recorded_environment(environment, entries));
    let recorded = recorded_inputs(&environment, entries)?;
    let (mut kernel, mut step) = Kernel::start(contract, environment, Millis(0));
    let mut transcript = Transcript::new(kernel.header());
    let mut ended = None;
    for Recorded { input, clock, presented } in recorded {
        transcript.extend(std::mem::take(&mut step.entries));
        if let Some(hash) = presented {
            kernel.present_contract(hash);
        }
        step = kernel.advance(Millis(0), clock, input);
    }
    transcript.extend(step.entries);
    if let Command::Finish(end) = step.command {
        ended = Some(end);
    }
    let mut replayed = transcript.to_stored();
    if entries.last().is_none_or(|entry| entry.kind() != "terminated") {
        // The record stops early, for instance after a started tool: what it lacks is no difference.
        replayed.truncate(entries.len());
        ended = None;
    }
    match compare(entries, &replayed) {
        Some(divergence) => Err(divergence.into()),
        None => Ok(Replayed { ended, head: transcript.head() }),
    }
}

/// One input as recorded.
struct Recorded {
    input: Input,
    clock: Clock,
    presented: Option<Digest>,
}

/// The digests and the refusal that the recorded run started with.
fn recorded_environment(environment: &Environment, entries: &[StoredEntry]) -> Environment {
    let mut environment = environment.clone();
    let origin = entries.first().and_then(|entry| entry.field("origin")).and_then(Value::as_map);
    let digest = |name: &str| origin.and_then(|map| map.get(name)).and_then(Value::as_str).and_then(Digest::parse);
    environment.snapshot_hash = digest("snapshot_hash");
    environment.policy_hash = digest("policy_hash");
    environment.refusal = entries
        .last()
        .filter(|entry| entry.result_field("reason").and_then(Value::as_str) == Some("delegation_budget"))
        .and_then(|entry| entry.result_field("message").and_then(Value::as_str).map(Arc::from));
    environment
}

fn recorded_inputs(environment: &Environment, entries: &[StoredEntry]) -> Result<Vec<Recorded>, ReplayError> {
    let mut inputs: Vec<Recorded> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if entry.kind() == "contract_mutated" {
            let presented = entry.result_field("contract_hash").and_then(Value::as_str).and_then(Digest::parse);
            if let Some(last) = inputs.last_mut() {
                last.presented = presented;
            }
            continue;
        }
        let verdict = entries.get(index + 1).filter(|next| next.kind() == "verdict");
        let answered = index > 0 && matches!(entries[index - 1].kind(), "readiness");
        let (input, verdict) = match entry.kind() {
            "verdict" if entry.text("kind") == "verdict" && &*entry.state == "PRECHECK" && !answered => {
                (cut_input(is_cancelled(entry), None), Some(entry))
            }
            _ => match input_of(environment, entry, verdict)? {
                Some(input) => (input, verdict),
                None => continue,
            },
        };
        inputs.push(Recorded { input, clock: verdict.map_or(Clock::default(), clock_of), presented: None });
    }
    Ok(inputs)
}

fn clock_of(verdict: &StoredEntry) -> Clock {
    let timeout = verdict.result_field("timeout").and_then(Value::as_str);
    let total = timeout == Some("total");
    Clock { step_exceeded: timeout.is_some() && !total, total_exceeded: total, cut_by_total: total }
}

fn is_cancelled(verdict: &StoredEntry) -> bool {
    verdict.result_field("cancelled").and_then(Value::as_bool) == Some(true)
}

fn cut_input(cancelled: bool, raw_hash: Option<Digest>) -> Input {
    if cancelled { Input::Cancelled { raw_hash } } else { Input::TimedOut { raw_hash } }
}

/// The input that an entry records, if it records one.
fn input_of(
    environment: &Environment,
    entry: &StoredEntry,
    verdict: Option<&StoredEntry>,
) -> Result<Option<Input>, ReplayError> {
    let cancelled = verdict.is_some_and(is_cancelled);
    let reader = Reader { seq: entry.seq(), entry };
    let input = match entry.kind() {
        "readiness" => {
            let ready = reader.result("ready", Value::as_bool)?;
            Input::Readiness(if ready { Ok(()) } else { Err(reader.words("message")?) })
        }
        "adapter" if entry.text("failure") == Cut::Cancelled.as_str() => cut_input(true, reader.raw_hash()),
        "adapter" if entry.text("failure") == Cut::TimedOut.as_str() => cut_input(false, reader.raw_hash()),
        "adapter" => {
            let AdapterRecord { result, usage, prompt_bytes } = reader.adapter()?;
            Input::Inferred(Box::new(Inference { result, usage, prompt_bytes, chunks: Vec::new(), cancelled }))
        }
        "provider_failed" => Input::ProviderFailed { message: reader.words("message")? },
        "budget_spent" => Input::BudgetSpent { message: reader.words("message")? },
        "persistence_failed" => Input::PersistenceFailed { message: reader.words("message")? },
        "reused" => Input::Reused(Arc::new(Decision {
            name: reader.action("name", Value::as_str)?.into(),
            arguments: Arc::new(reader.action("args", Value::as_map)?.clone()),
        })),
        // The kernel answers control tools itself.
        "tool" if environment.manifest.get(entry.text("name")).is_some_and(|tool| tool.control.is_some()) => {
            return Ok(None);
        }
        "tool" => reader.tool(cancelled)?,
        "illegal_input" => illegal_input(entry.text("input")),
        _ => return Ok(None),
    };
    Ok(Some(input))
}

/// An input of that name; it is refused by name, so its content does not matter.
fn illegal_input(name: &str) -> Input {
    let nothing: Arc<str> = "".into();
    match name {
        "readiness" => Input::Readiness(Ok(())),
        "reused" => Input::Reused(Arc::new(Decision { name: nothing, arguments: Arc::default() })),
        "executed" => Input::executed(ToolEnvelope::Malformed { detail: nothing }),
        "inferred" => Input::Inferred(Box::new(Inference {
            result: ProtocolAdapterResult {
                decision: AdapterDecision::Rejected { failure: RejectionCode::Empty, detail: String::new() },
                raw_hash: Digest([0; 32]),
                adapter_version: nothing,
            },
            usage: None,
            prompt_bytes: 0,
            chunks: Vec::new(),
            cancelled: false,
        })),
        _ => Input::ProviderFailed { message: nothing },
    }
}

/// Reads what an entry records.
struct Reader<'a> {
    seq: u32,
    entry: &'a StoredEntry,
}

impl<'a> Reader<'a> {
    fn missing(&self, field: &'static str) -> ReplayError {
        ReplayError::Unreadable { seq: self.seq, field }
    }

    fn action<T>(&self, field: &'static str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T, ReplayError> {
        self.entry.field(field).and_then(read).ok_or_else(|| self.missing(field))
    }

    fn result<T>(&self, field: &'static str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T, ReplayError> {
        self.entry.result_field(field).and_then(read).ok_or_else(|| self.missing(field))
    }

    fn words(&self, field: &'static str) -> Result<Arc<str>, ReplayError> {
        self.result(field, Value::as_str).map(Arc::from)
    }

    fn raw_hash(&self) -> Option<Digest> {
        self.entry.field("raw_hash").and_then(Value::as_str).and_then(Digest::parse)
    }

    fn adapter(&self) -> Result<AdapterRecord, ReplayError> {
        let decision = match self.action("status", Value::as_str)? {
            "native" => AdapterDecision::Native(self.message()?),
            "recovered" => AdapterDecision::Recovered(self.message()?),
            "rejected" => AdapterDecision::Rejected {
                failure: RejectionCode::from_name(self.action("failure", Value::as_str)?)
                    .ok_or_else(|| self.missing("failure"))?,
                detail: self.words("detail")?.to_string(),
            },
            _ => return Err(self.missing("status")),
        };
        let usage = match self.entry.result_field("usage") {
            Some(Value::Map(usage)) => Some(Usage {
                input: number(usage, "input"),
                cached: number(usage, "cached"),
                output: number(usage, "output"),
                // What accounting alone is told.
                ..Usage::default()
            }),
            _ => None,
        };
        let raw_hash = self.raw_hash().ok_or_else(|| self.missing("raw_hash"))?;
        let adapter_version = self.action("version", Value::as_str)?.into();
        let result = ProtocolAdapterResult { decision, raw_hash, adapter_version };
        let prompt_bytes = self.result("prompt_bytes", whole)?;
        Ok(AdapterRecord { result, usage, prompt_bytes })
    }

    fn message(&self) -> Result<AgentMessage, ReplayError> {
        let map = self.result("message", Value::as_map)?;
        let calls = map.get("tool_calls").and_then(Value::as_list).ok_or_else(|| self.missing("tool_calls"))?;
        Ok(AgentMessage {
            role: MessageRole::Assistant,
            content: map.get("content").and_then(Value::as_str).ok_or_else(|| self.missing("content"))?.to_owned(),
            tool_calls: calls.iter().map(|call| self.invocation(call)).collect::<Result<_, _>>()?,
            tool_call_id: None,
        })
    }

    fn invocation(&self, call: &Value) -> Result<ToolInvocation, ReplayError> {
        let map = call.as_map().ok_or_else(|| self.missing("tool_calls"))?;
        let text = |name: &'static str| map.get(name).and_then(Value::as_str).ok_or_else(|| self.missing(name));
        Ok(ToolInvocation {
            id: text("id")?.to_owned(),
            name: text("name")?.into(),
            arguments: map.get("arguments").and_then(Value::as_map).ok_or_else(|| self.missing("arguments"))?.clone(),
            source_model: text("source_model")?.into(),
            raw_payload: map.get("raw_payload").filter(|raw| **raw != Value::Null).cloned(),
        })
    }

    fn tool(&self, cancelled: bool) -> Result<Input, ReplayError> {
        let envelope = match self.result("status", Value::as_str)? {
            "ok" => ToolEnvelope::Ok(Arc::new(self.result("value", Some)?.clone())),
            "error" => ToolEnvelope::Error {
                failure: ToolFailure::from_name(self.result("failure", Value::as_str)?)
                    .ok_or_else(|| self.missing("failure"))?,
                message: self.words("message")?,
            },
            "malformed" => ToolEnvelope::Malformed { detail: self.words("detail")? },
            "cancelled" => return Ok(cut_input(true, None)),
            "timeout" => return Ok(cut_input(false, None)),
            _ => return Err(self.missing("status")),
        };
        let observation = self.entry.result_field("observation").and_then(Value::as_str).map(Arc::from);
        let child_tokens = Tokens(self.entry.result_field("child_tokens").and_then(whole).unwrap_or_default());
        Ok(Input::Executed(Executed { envelope, observation, child_tokens, cancelled }))
    }
}

fn whole(value: &Value) -> Option<u64> {
    value.as_int().and_then(|number| u64::try_from(number).ok())
}

fn number(map: &Map, name: &str) -> u64 {
    map.get(name).and_then(whole).unwrap_or_default()
}
