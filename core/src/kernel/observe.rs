//! OBSERVE: what the model sees of a tool's answer. Deterministic; the caller's value is never touched (V32, X10).

use super::seen::{BatchCall, Seen};
use super::validate_calls::Fate;
use super::{CallRef, ToolEnvelope};
use crate::canonical::Sink;
use crate::contract::ToolOutputBudget;
use crate::ids::Digest;
use crate::message::{AgentMessage, MessageRole, ToolInvocation};
use crate::value::Value;

/// A batch as the model will see it.
pub(super) struct Observed {
    /// What the model said, then one observation per call that has one, in order (EC-S12).
    pub messages: Vec<AgentMessage>,
    /// What was cut from which call's output.
    pub truncated: Vec<(CallRef, CutOutput)>,
}

pub(super) fn batch(seen: &Seen, budget: &ToolOutputBudget) -> Observed {
    let said = AgentMessage {
        role: MessageRole::Assistant,
        content: seen.content.to_string(),
        tool_calls: seen.batch.iter().map(|call| invocation(seen, call)).collect(),
        tool_call_id: None,
    };
    let mut observed = Observed { messages: vec![said], truncated: Vec::new() };
    for call in &seen.batch {
        let text = match (&call.fate, &call.result, &call.observation) {
            (Fate::Invalid(words), _, _) => error_text(words),
            (_, Some(Ok(_)), Some(text)) => text.to_string(),
            (_, Some(Ok(envelope)), None) => text(envelope),
            (_, Some(Err(_)) | None, _) => continue,
        };
        let (content, cut) = truncate(text, budget);
        observed.truncated.extend(cut.map(|cut| (call.id, cut)));
        observed.messages.push(AgentMessage {
            role: MessageRole::Tool,
            content,
            tool_calls: Vec::new(),
            tool_call_id: Some(call.id.to_string()),
        });
    }
    observed
}

/// The call again, under its derived id (V4).
fn invocation(seen: &Seen, call: &BatchCall) -> ToolInvocation {
    ToolInvocation {
        id: call.id.to_string(),
        name: call.name.clone(),
        arguments: (*call.arguments).clone(),
        source_model: seen.source_model.clone(),
        raw_payload: None,
    }
}

/// What was cut from an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutOutput {
    pub original_bytes: u64,
    pub kept_bytes: u64,
    pub sha256: Digest,
}

/// Text is shown as it is, anything else as JSON; a failure as `{"error":…,"status":"error"}`.
fn text(envelope: &ToolEnvelope) -> String {
    match envelope {
        ToolEnvelope::Ok(value) => match &**value {
            Value::String(text) => text.clone(),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => {
                value.to_json()
            }
        },
        ToolEnvelope::Error { message, .. } => error_text(message),
        ToolEnvelope::Malformed { detail } => error_text(detail),
    }
}

/// A failure, as the model is told.
fn error_text(message: &str) -> String {
    let mut text = String::with_capacity(message.len() + 32);
    text.push_str("{\"error\":");
    text.put_string(message);
    text.push_str(",\"status\":\"error\"}");
    text
}

/// Cuts on a character boundary so that text and marker together stay within the limit.
fn truncate(mut text: String, budget: &ToolOutputBudget) -> (String, Option<CutOutput>) {
    let limit = usize::try_from(budget.max_bytes_per_call).unwrap_or(usize::MAX);
    if text.len() <= limit {
        return (text, None);
    }
    let sha256 = Digest::of_bytes(text.as_bytes());
    let original_bytes = text.len() as u64;
    let kept = text.floor_char_boundary(limit.saturating_sub(budget.truncation_marker.len()));
    text.truncate(kept);
    text.push_str(&budget.truncation_marker);
    (text, Some(CutOutput { original_bytes, kept_bytes: kept as u64, sha256 }))
}
