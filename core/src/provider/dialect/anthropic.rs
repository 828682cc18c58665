//! Anthropic Messages (model-wire-formats.md 3).

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::{Assembly, Fault, Show, Wire, append, json_of, number_at, set, text_at};
use crate::message::{AgentMessage, MessageRole, ModelReply, RawToolCall, Usage};
use crate::provider::capability::{anthropic_version, may_be_forced};
use crate::provider::target::Params;
use crate::provider::{ModelRequest, Output, ToolSpec};
use crate::value::Value;

/// Output that is asked for when nothing bounds it: the field is required, and a program needs far less.
const DEFAULT_MAX_TOKENS: u32 = 8_192;
/// The same for models that think unasked: their thoughts count.
const THINKING_MAX_TOKENS: u32 = 32_768;
/// From this version on they do.
const THINKS_UNASKED: (u32, u32) = (5, 0);
/// The most that models before 3.5 can be asked for.
const OLD_MAX_TOKENS: u32 = 4_096;
/// The least that a model can be told to think.
const MIN_THINKING: u32 = 1_024;
/// From this version on a model thinks as long as it finds right.
const ADAPTIVE: (u32, u32) = (4, 7);

/// The newer version refuses every kind of sampling; the older one leaves it to the model.
pub(super) fn version(params: &Params) -> &'static str {
    let named = params.temperature.flatten().is_some() || params.top_p.flatten().is_some();
    // What stands in `extra` goes out too.
    let passed = |name: &&str| params.extra.get(name).is_some_and(|value| *value != Value::Null);
    if named || ["temperature", "top_p", "top_k"].iter().any(passed) { "2023-06-01" } else { "2026-10-21" }
}

/// The request on the wire.
pub(super) fn body(wire: &Wire, request: &ModelRequest) -> Json {
    let params = &wire.params;
    let version = anthropic_version(&wire.model);
    let (thinking, max_tokens) = bounds(wire, request, version);
    let mut body = json!({
        "model": wire.model,
        "max_tokens": max_tokens,
        "system": &*request.system_prompt,
        "messages": messages(request),
    });
    set(&mut body, "temperature", params.temperature.flatten());
    set(&mut body, "top_p", params.top_p.flatten());
    // What has no name here goes out as it is when it is forced.
    set(&mut body, "seed", params.seed.flatten());
    set(&mut body, "repeat_penalty", params.repeat_penalty.flatten());
    match thinking {
        Some(_) if version >= ADAPTIVE => body["thinking"] = json!({"type": "adaptive"}),
        Some(budget) => body["thinking"] = json!({"type": "enabled", "budget_tokens": budget}),
        None => {}
    }
    if let Some(effort) = params.reasoning_effort.as_ref().and_then(Option::as_ref) {
        body["output_config"] = json!({"effort": effort});
    }
    match wire.output {
        Output::Tool if !request.tools.is_empty() => {
            body["tools"] = request.tools.iter().map(tool).collect();
            body["tool_choice"] = match wire.only_tool(request) {
                // A model that thinks cannot be forced (SC-1.50), nor can some others.
                Some(only) if thinking.is_none() && may_be_forced(&wire.model) => {
                    json!({"type": "tool", "name": &*only.name})
                }
                Some(_) | None => json!({"type": "auto"}),
            };
        }
        Output::JsonSchema => {
            if let Some(only) = wire.only_tool(request) {
                let format = json!({"type": "json_schema", "schema": json_of(&only.parameters)});
                body["output_config"]["format"] = format;
            }
        }
        Output::Tool | Output::Text => {}
    }
    body
}

/// How long it may think, and how much it may say with its thoughts.
fn bounds(wire: &Wire, request: &ModelRequest, version: (u32, u32)) -> (Option<u32>, u32) {
    let usual = match version {
        old if old < (3, 5) => OLD_MAX_TOKENS,
        new if new >= THINKS_UNASKED => THINKING_MAX_TOKENS,
        _other_version => DEFAULT_MAX_TOKENS,
    };
    let limit = wire.max_output(request);
    let budget = wire.params.extended_thinking.flatten();
    let thinking = budget.and_then(|budget| thinking_within(version, budget, limit));
    (thinking, limit.unwrap_or_else(|| usual.saturating_add(thinking.unwrap_or(0))))
}

/// Tokens of that budget that a model may think for when it may say so many; `None` where its thoughts would leave no room
/// for an answer.
pub(in crate::provider) fn thinking_within(version: (u32, u32), budget: u32, limit: Option<u32>) -> Option<u32> {
    let budget = budget.max(MIN_THINKING);
    match limit {
        // It is told no number.
        _any if version >= ADAPTIVE => Some(budget),
        Some(limit) if budget < limit => Some(budget),
        Some(limit) => (limit > 2 * MIN_THINKING).then_some(limit / 2),
        None => Some(budget),
    }
}

/// Whether this request's bound leaves no room for the thinking that was asked for.
pub(super) fn leaves_out_thinking(wire: &Wire, request: &ModelRequest) -> bool {
    let asked = wire.params.extended_thinking.flatten().is_some();
    asked && bounds(wire, request, anthropic_version(&wire.model)).0.is_none()
}

/// The conversation: all results of one assistant message go into one user message, first in it.
fn messages(request: &ModelRequest) -> Vec<Json> {
    let mut messages: Vec<Json> = Vec::new();
    let mut put = |role: &str, blocks: Vec<Json>| match messages.last_mut() {
        Some(last) if last["role"] == role => {
            if let Some(content) = last["content"].as_array_mut() {
                content.extend(blocks);
            }
        }
        _other_role if !blocks.is_empty() => messages.push(json!({"role": role, "content": blocks})),
        _other_role => {}
    };
    put("user", vec![text(&request.user_prompt)]);
    for message in &request.messages {
        match message.role {
            MessageRole::System | MessageRole::User => put("user", vec![text(&message.content)]),
            MessageRole::Tool => {
                let id = wire_id(message.tool_call_id.as_deref().unwrap_or_default());
                put("user", vec![json!({"type": "tool_result", "tool_use_id": id, "content": message.content})]);
            }
            MessageRole::Assistant => put("assistant", assistant(message)),
        }
    }
    messages
}

fn assistant(message: &AgentMessage) -> Vec<Json> {
    // Blank text is refused.
    let words = (!message.content.trim().is_empty()).then(|| text(&message.content));
    let calls = message.tool_calls.iter().map(|call| {
        let input = json_of(&Value::Map(call.arguments.clone()));
        json!({"type": "tool_use", "id": wire_id(&call.id), "name": &*call.name, "input": input})
    });
    words.into_iter().chain(calls).collect()
}

fn text(text: &str) -> Json {
    json!({"type": "text", "text": text})
}

/// Ids have letters, digits, `_` and `-` here; ours have dots.
fn wire_id(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

fn tool(tool: &ToolSpec) -> Json {
    json!({"name": &*tool.name, "description": &*tool.description, "input_schema": json_of(&tool.parameters)})
}

/// A whole reply.
pub(super) fn read(body: &Json) -> Result<ModelReply, Fault> {
    let Some(blocks) = body.get("content").and_then(Json::as_array) else {
        return Err(Fault::seen("the reply has no `content`", body.clone()));
    };
    let (mut content, mut tool_calls) = (None::<String>, Vec::new());
    for block in blocks {
        match block.get("type").and_then(Json::as_str) {
            Some("text") => {
                append(content.get_or_insert_default(), block, "text");
            }
            Some("tool_use") => tool_calls.push(call(block)),
            // Thoughts, and what this version does not know, are no part of the answer.
            Some(_) | None => {}
        }
    }
    let stop_reason = text_at(body, "stop_reason");
    if tool_calls.is_empty() && content.as_deref().is_none_or(|text| text.trim().is_empty()) {
        match stop_reason.as_deref() {
            Some("refusal") => return Err(Fault::invalid("the model refused, and said nothing that could be used")),
            Some("model_context_window_exceeded") => return Err(Fault::Overflow),
            Some(_) | None => {}
        }
    }
    Ok(ModelReply {
        content,
        tool_calls,
        usage: body.get("usage").and_then(usage),
        stop_reason,
        model: text_at(body, "model"),
        provider: text_at(body, "provider"),
        ..ModelReply::default()
    })
}

fn call(block: &Json) -> RawToolCall {
    RawToolCall {
        id: text_at(block, "id").unwrap_or_default(),
        name: text_at(block, "name").unwrap_or_default(),
        arguments: match (block.get(RAW_INPUT).and_then(Json::as_str), block.get("input")) {
            (Some(raw), _) if !raw.is_empty() => raw.to_owned(),
            (_, Some(input)) => input.to_string(),
            (_, None) => String::new(),
        },
    }
}

/// The three kinds of input are counted apart here.
pub(super) fn usage(usage: &Json) -> Option<Usage> {
    let number = |path: &str| number_at(usage, path);
    let (input, output) = (number("/input_tokens"), number("/output_tokens"));
    if input.is_none() && output.is_none() {
        return None;
    }
    let cached = number("/cache_read_input_tokens").unwrap_or(0);
    let cache_write = number("/cache_creation_input_tokens").unwrap_or(0);
    let reasoning = ["thinking_tokens", "reasoning_tokens"]
        .iter()
        .find_map(|name| number(&format!("/output_tokens_details/{name}")));
    Some(Usage {
        input: input.unwrap_or(0).saturating_add(cached).saturating_add(cache_write),
        cached,
        output: output.unwrap_or(0),
        cache_write,
        reasoning: reasoning.unwrap_or(0),
    })
}

/// Where a stream's arguments stand until they are read: as they came, also when they are no JSON.
const RAW_INPUT: &str = "raw_input";

/// A message in pieces.
#[derive(Default)]
pub(super) struct Pieces {
    message: Json,
    blocks: BTreeMap<u64, Json>,
}

impl Assembly for Pieces {
    fn take(&mut self, mut event: Json, show: &mut Show) -> Result<bool, Fault> {
        let index = event.get("index").and_then(Json::as_u64).unwrap_or(0);
        match event.get("type").and_then(Json::as_str) {
            Some("message_start") => self.message = event["message"].take(),
            Some("content_block_start") => {
                let block = event["content_block"].take();
                show.text(block.get("text").and_then(Json::as_str).unwrap_or_default());
                if block.is_object() {
                    self.blocks.insert(index, block);
                }
            }
            Some("content_block_delta") => {
                let Some(block) = self.blocks.get_mut(&index) else {
                    return Err(Fault::seen("a piece belongs to no block", event));
                };
                delta(block, &event["delta"], show);
            }
            Some("message_delta") => self.end(&mut event),
            Some("message_stop") => return Ok(true),
            Some("error") => return Err(Fault::Refused(event)),
            // `ping`, `content_block_stop`, and what this version does not know.
            Some(_) => {}
            None if event.get("error").is_some() => return Err(Fault::Refused(event)),
            None => return Err(Fault::seen("a piece has no type", event)),
        }
        Ok(false)
    }

    fn whole(self: Box<Self>, marked: bool) -> Option<Json> {
        let Self { mut message, blocks } = *self;
        if !marked || !message.is_object() {
            return None;
        }
        message["content"] = blocks.into_values().collect();
        Some(message)
    }
}

impl Pieces {
    /// Counts are those of the whole message so far, and only those that are given.
    fn end(&mut self, event: &mut Json) {
        if !self.message.is_object() {
            return;
        }
        if let Some(reason) = event.pointer_mut("/delta/stop_reason") {
            self.message["stop_reason"] = reason.take();
        }
        let Some(Json::Object(counts)) = event.get_mut("usage").map(Json::take) else { return };
        let usage = &mut self.message["usage"];
        if !usage.is_object() {
            *usage = json!({});
        }
        for (name, count) in counts.into_iter().filter(|(_, count)| !count.is_null()) {
            usage[name] = count;
        }
    }
}

fn delta(block: &mut Json, delta: &Json, show: &mut Show) {
    let mut grow = |key: &str, text: &str| match &mut block[key] {
        Json::String(whole) => whole.push_str(text),
        other => *other = text.into(),
    };
    let text = |key: &str| delta.get(key).and_then(Json::as_str).unwrap_or_default();
    match delta.get("type").and_then(Json::as_str) {
        Some("text_delta") => {
            show.text(text("text"));
            grow("text", text("text"));
        }
        Some("input_json_delta") => {
            show.arguments(text("partial_json"));
            grow(RAW_INPUT, text("partial_json"));
        }
        Some("thinking_delta") => show.reasoning(text("thinking")),
        // Signatures and citations are no part of the answer.
        Some(_) | None => {}
    }
}
