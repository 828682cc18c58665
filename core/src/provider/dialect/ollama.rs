//! Ollama's own chat (model-wire-formats.md 5).

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::{Assembly, Fault, Show, Wire, append, json_of, number_at, piece, set, text_at};
use crate::message::{AgentMessage, MessageRole, ModelReply, RawToolCall, Usage};
use crate::provider::{ModelRequest, Output, ToolSpec};
use crate::value::Value;

/// The window that is asked for when `context_size` says none. Always sent, because the server's own default is small
/// and cuts longer prompts in silence.
const DEFAULT_WINDOW: u32 = 16_384;

/// The request on the wire.
pub(super) fn body(wire: &Wire, request: &ModelRequest) -> Json {
    let mut messages = vec![
        json!({"role": "system", "content": &*request.system_prompt}),
        json!({"role": "user", "content": &*request.user_prompt}),
    ];
    let mut names: HashMap<&str, &str> = HashMap::new();
    for said in &request.messages {
        names.extend(said.tool_calls.iter().map(|call| (call.id.as_str(), &*call.name)));
        messages.push(message(said, &names));
    }
    let params = &wire.params;
    let mut options = json!({"num_ctx": window(wire)});
    set(&mut options, "num_predict", wire.max_output(request));
    set(&mut options, "temperature", params.temperature.flatten());
    set(&mut options, "top_p", params.top_p.flatten());
    set(&mut options, "repeat_penalty", params.repeat_penalty.flatten());
    set(&mut options, "seed", params.seed.flatten());
    let mut body = json!({"model": wire.model, "messages": messages, "options": options});
    match (params.reasoning_effort.as_ref().and_then(Option::as_deref), params.extended_thinking.flatten()) {
        (Some("none"), _) => body["think"] = false.into(),
        (Some(level), _) => body["think"] = level.into(),
        (None, Some(_)) => body["think"] = true.into(),
        (None, None) => {}
    }
    match wire.output {
        Output::Tool if !request.tools.is_empty() => body["tools"] = request.tools.iter().map(tool).collect(),
        Output::JsonSchema => {
            if let Some(only) = wire.only_tool(request) {
                body["format"] = json_of(&only.parameters);
            }
        }
        Output::Tool | Output::Text => {}
    }
    body
}

/// The window that goes out; a `num_ctx` in `extra` has the last word there.
fn window(wire: &Wire) -> u32 {
    let options = wire.params.extra.get("options").and_then(Value::as_map);
    let passed = options.and_then(|options| options.get("num_ctx")).and_then(Value::as_int);
    passed.and_then(|window| u32::try_from(window).ok()).or(wire.context_size).unwrap_or(DEFAULT_WINDOW)
}

fn message(message: &AgentMessage, names: &HashMap<&str, &str>) -> Json {
    let mut wire = json!({"role": message.role.as_str(), "content": message.content});
    match message.role {
        MessageRole::System | MessageRole::User => {}
        MessageRole::Tool => {
            let id = message.tool_call_id.as_deref().unwrap_or_default();
            wire["tool_name"] = names.get(id).copied().unwrap_or_default().into();
        }
        MessageRole::Assistant => {
            if !message.tool_calls.is_empty() {
                wire["tool_calls"] = message
                    .tool_calls
                    .iter()
                    .map(|call| {
                        let arguments = json_of(&Value::Map(call.arguments.clone()));
                        json!({"function": {"name": &*call.name, "arguments": arguments}})
                    })
                    .collect();
            }
        }
    }
    wire
}

fn tool(tool: &ToolSpec) -> Json {
    let parameters = json_of(&tool.parameters);
    let function = json!({"name": &*tool.name, "description": &*tool.description, "parameters": parameters});
    json!({"type": "function", "function": function})
}

/// A whole reply to that request, which it is measured against: a prompt that does not fit is cut in silence.
pub(super) fn read(wire: &Wire, request: &ModelRequest, body: &Json) -> Result<ModelReply, Fault> {
    let Some(message) = body.get("message").filter(|message| message.is_object()) else {
        return Err(Fault::seen("the reply has no `message`", body.clone()));
    };
    if body.get("done") == Some(&Json::Bool(false)) {
        return Err(Fault::invalid("the reply is not complete"));
    }
    let usage = usage(body);
    if usage.is_some_and(|usage| was_cut(wire, request, usage.input)) {
        return Err(Fault::Overflow);
    }
    let calls = message.get("tool_calls").and_then(Json::as_array).into_iter().flatten();
    Ok(ModelReply {
        content: text_at(message, "content"),
        tool_calls: calls.enumerate().map(call).collect(),
        usage,
        stop_reason: text_at(body, "done_reason"),
        model: text_at(body, "model"),
        ..ModelReply::default()
    })
}

/// Whether far fewer tokens were read than the prompt must have, and the window is why.
fn was_cut(wire: &Wire, request: &ModelRequest, read: u64) -> bool {
    let said: usize = request.messages.iter().map(|message| message.content.len()).sum();
    let bytes = request.system_prompt.len() + request.user_prompt.len() + said;
    // Four bytes are a token more or less; half as many tokens are no estimate's error.
    let estimated = bytes as u64 / 4;
    estimated > u64::from(window(wire)) && read < estimated / 2
}

/// Calls come whole and without ids: we make them.
fn call((index, wire): (usize, &Json)) -> RawToolCall {
    let function = wire.get("function");
    let id = text_at(wire, "id").filter(|id| !id.is_empty());
    RawToolCall {
        id: id.unwrap_or_else(|| format!("call_{index}")),
        name: function.and_then(|function| text_at(function, "name")).unwrap_or_default(),
        arguments: match function.and_then(|function| function.get("arguments")) {
            Some(Json::String(text)) => text.clone(),
            Some(Json::Null) | None => "{}".to_owned(),
            Some(other) => other.to_string(),
        },
    }
}

pub(super) fn usage(body: &Json) -> Option<Usage> {
    let (input, output) = (number_at(body, "/prompt_eval_count"), number_at(body, "/eval_count"));
    if input.is_none() && output.is_none() {
        return None;
    }
    Some(Usage { input: input.unwrap_or(0), output: output.unwrap_or(0), ..Usage::default() })
}

/// A reply in lines. The last one holds the counts, and what was said stands in those before it.
#[derive(Default)]
pub(super) struct Pieces {
    content: String,
    calls: Vec<Json>,
    last: Option<Json>,
}

impl Assembly for Pieces {
    fn take(&mut self, event: Json, show: &mut Show) -> Result<bool, Fault> {
        let mut event = piece(event)?;
        if let Some(message) = event.get_mut("message") {
            show.reasoning(message.get("thinking").and_then(Json::as_str).unwrap_or_default());
            show.text(append(&mut self.content, message, "content"));
            if let Some(Json::Array(calls)) = message.get_mut("tool_calls").map(Json::take) {
                for call in calls {
                    show.arguments(&call.pointer("/function/arguments").map(Json::to_string).unwrap_or_default());
                    self.calls.push(call);
                }
            }
        }
        let done = event.get("done") == Some(&Json::Bool(true));
        if done {
            self.last = Some(event);
        }
        Ok(done)
    }

    fn whole(self: Box<Self>, _marked: bool) -> Option<Json> {
        let mut last = self.last?;
        last["message"] = json!({"role": "assistant", "content": self.content, "tool_calls": self.calls});
        Some(last)
    }
}
