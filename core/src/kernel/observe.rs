//! OBSERVE: what the model sees of a tool's answer. Deterministic; the caller's value is never touched (V32, X10).

use crate::canonical::Sink;
use crate::contract::ToolOutputBudget;
use crate::ids::Digest;
use crate::value::Value;

use super::ToolEnvelope;

/// What was cut from an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutOutput {
    pub original_bytes: u64,
    pub kept_bytes: u64,
    pub sha256: Digest,
}

/// Text is shown as it is, anything else as JSON; a failure as `{"error":…,"status":"error"}`.
pub(super) fn text(envelope: &ToolEnvelope) -> String {
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
pub(super) fn error_text(message: &str) -> String {
    let mut text = String::with_capacity(message.len() + 32);
    text.push_str("{\"error\":");
    text.put_string(message);
    text.push_str(",\"status\":\"error\"}");
    text
}

/// Cuts on a character boundary so that text and marker together stay within the limit.
pub(super) fn truncate(mut text: String, budget: &ToolOutputBudget) -> (String, Option<CutOutput>) {
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
