//! OpenAI chat completions, and servers that speak them: vLLM, llama.cpp, gateways (model-wire-formats.md 1, 6, 7).

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::text_or_null;
use super::{Assembly, Fault, Show, Vendor, Wire, append, is_closed, json_of, number_at, piece, set, text_at};
use crate::message::{AgentMessage, MessageRole, ModelReply, RawToolCall, Usage};
use crate::provider::{ModelRequest, Output, ToolSpec};
use crate::value::Value;

/// The request on the wire.
pub(super) fn body(wire: &Wire, request: &ModelRequest, streams: bool) -> Json {
    let official = wire.vendor == Vendor::OpenAi;
    let mut messages = vec![
        json!({"role": "system", "content": &*request.system_prompt}),
        json!({"role": "user", "content": &*request.user_prompt}),
    ];
    messages.extend(request.messages.iter().map(message));
    let mut body = json!({"model": wire.model, "messages": messages});
    let params = &wire.params;
    // Compatible servers often know only the older name.
    let limit = if official { "max_completion_tokens" } else { "max_tokens" };
    set(&mut body, limit, wire.max_output(request));
    set(&mut body, "temperature", params.temperature.flatten());
    set(&mut body, "top_p", params.top_p.flatten());
    set(&mut body, "seed", params.seed.flatten());
    set(&mut body, "reasoning_effort", params.reasoning_effort.clone().flatten());
    // llama.cpp and LM Studio know the one name, vLLM and gateways the other; each ignores what it does not know.
    set(&mut body, "repeat_penalty", params.repeat_penalty.flatten());
    set(&mut body, "repetition_penalty", params.repeat_penalty.flatten());
    if streams {
        body["stream_options"] = json!({"include_usage": true});
    }
    match wire.output {
        Output::Tool if !request.tools.is_empty() => {
            body["tools"] = request.tools.iter().map(tool).collect();
            body["tool_choice"] = match wire.only_tool(request) {
                Some(only) if official => json!({"type": "function", "function": {"name": &*only.name}}),
                // LM Studio refuses a name, and llama.cpp reads it as `auto`; of one tool this says the same.
                Some(_) => "required".into(),
                None => "auto".into(),
            };
        }
        Output::JsonSchema => {
            if let Some(only) = wire.only_tool(request) {
                let schema = json_of(&only.parameters);
                let strict = is_closed(&schema);
                let described = json!({"name": &*only.name, "schema": schema, "strict": strict});
                body["response_format"] = json!({"type": "json_schema", "json_schema": described});
            }
        }
        Output::Tool | Output::Text => {}
    }
    body
}

fn message(message: &AgentMessage) -> Json {
    match message.role {
        MessageRole::System | MessageRole::User => {
            json!({"role": message.role.as_str(), "content": message.content})
        }
        MessageRole::Tool => {
            json!({"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content})
        }
        MessageRole::Assistant => {
            let content = if message.content.is_empty() { Json::Null } else { message.content.as_str().into() };
            let mut wire = json!({"role": "assistant", "content": content});
            if !message.tool_calls.is_empty() {
                wire["tool_calls"] = message
                    .tool_calls
                    .iter()
                    .map(|call| {
                        let arguments = Value::Map(call.arguments.clone()).to_json();
                        let function = json!({"name": &*call.name, "arguments": arguments});
                        json!({"id": call.id, "type": "function", "function": function})
                    })
                    .collect();
            }
            wire
        }
    }
}

fn tool(tool: &ToolSpec) -> Json {
    let parameters = json_of(&tool.parameters);
    json!({
        "type": "function",
        "function": {"name": &*tool.name, "description": &*tool.description, "parameters": parameters},
    })
}

/// A whole reply.
pub(super) fn read(body: &Json) -> Result<ModelReply, Fault> {
    let Some(choice) = body.get("choices").and_then(|choices| choices.get(0)) else {
        return Err(Fault::seen("the reply has no `choices`", body.clone()));
    };
    refused(choice)?;
    let Some(message) = choice.get("message").filter(|message| message.is_object()) else {
        return Err(Fault::seen("the reply has no `message`", body.clone()));
    };
    let stop_reason = text_at(choice, "finish_reason");
    let content = content_text(message.get("content"));
    let tool_calls = tool_calls(message);
    if tool_calls.is_empty() && content.as_deref().is_none_or(|text| text.trim().is_empty()) {
        nothing_usable(message, stop_reason.as_deref())?;
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

/// Gateways put the failure of the server behind them into the choice, whatever came before it.
fn refused(choice: &Json) -> Result<(), Fault> {
    match choice.get("error").filter(|error| !error.is_null()) {
        Some(error) => Err(Fault::Refused(json!({"error": error}))),
        None => Ok(()),
    }
}

/// An empty reply is the adapter's to reject, unless the wire says why it is empty.
fn nothing_usable(message: &Json, stop_reason: Option<&str>) -> Result<(), Fault> {
    if let Some(refusal) = text_at(message, "refusal").filter(|refusal| !refusal.is_empty()) {
        return Err(Fault::seen("the model refused", refusal));
    }
    match stop_reason {
        Some("content_filter") => Err(Fault::invalid("the server's content filter left nothing of the reply")),
        Some("refusal") => Err(Fault::invalid("the model refused, and said nothing")),
        Some("model_context_window_exceeded") => Err(Fault::Overflow),
        Some(_) | None => Ok(()),
    }
}

/// Text, or the text parts of a list of parts; `None` for null and for what is not text.
fn content_text(content: Option<&Json>) -> Option<String> {
    let mut texts = texts(content?).peekable();
    texts.peek()?;
    Some(texts.collect())
}

/// A text itself, or those of a list of parts; nothing of anything else.
fn texts(content: &Json) -> impl Iterator<Item = &str> {
    let parts = content.as_array().into_iter().flatten();
    content.as_str().into_iter().chain(parts.filter_map(|part| part.get("text").and_then(Json::as_str)))
}

/// What a model thinks among the parts of its content, as Mistral's do.
fn thoughts(content: &Json) -> impl Iterator<Item = &str> {
    let parts = content.as_array().into_iter().flatten();
    parts.filter_map(|part| part.get("thinking")).flat_map(texts)
}

/// The calls of a message as they came; the legacy `function_call` too.
fn tool_calls(message: &Json) -> Vec<RawToolCall> {
    let call = |id: Option<&Json>, function: Option<&Json>| RawToolCall {
        id: id.and_then(Json::as_str).unwrap_or_default().to_owned(),
        name: function.and_then(|function| text_at(function, "name")).unwrap_or_default(),
        arguments: match function.and_then(|function| function.get("arguments")) {
            Some(Json::String(text)) => text.clone(),
            Some(Json::Null) | None => String::new(),
            // Some compatible servers send the object itself.
            Some(other) => other.to_string(),
        },
    };
    let calls = message.get("tool_calls").and_then(Json::as_array).into_iter().flatten();
    let mut calls: Vec<RawToolCall> = calls.map(|wire| call(wire.get("id"), wire.get("function"))).collect();
    if calls.is_empty()
        && let Some(function) = message.get("function_call").filter(|function| function.is_object())
    {
        calls.push(call(None, Some(function)));
    }
    calls
}

pub(super) fn usage(usage: &Json) -> Option<Usage> {
    let number = |path: &str| number_at(usage, path);
    let input = number("/prompt_tokens");
    let output = number("/completion_tokens");
    if input.is_none() && output.is_none() {
        return None;
    }
    let part = |path: &str| number(path).unwrap_or(0);
    Some(Usage {
        input: input.unwrap_or(0),
        cached: part("/prompt_tokens_details/cached_tokens"),
        output: output.unwrap_or(0),
        // vLLM has a name of its own.
        cache_write: number("/prompt_tokens_details/cache_write_tokens")
            .unwrap_or_else(|| part("/prompt_tokens_details/created_cache_tokens")),
        reasoning: part("/completion_tokens_details/reasoning_tokens"),
    })
}

/// The highest index that is taken for one: there is room for as many calls behind it as a stream can hold.
const MAX_INDEX: u64 = u32::MAX as u64;

/// A completion in pieces.
#[derive(Default)]
pub(super) struct Pieces {
    content: String,
    refusal: String,
    /// By index: id, name, arguments.
    calls: BTreeMap<u64, (String, String, String)>,
    finish_reason: Option<Json>,
    /// Whether there was any choice at all.
    began: bool,
    usage: Option<Json>,
    model: Option<Json>,
    provider: Option<Json>,
}

impl Assembly for Pieces {
    fn take(&mut self, event: Json, show: &mut Show) -> Result<bool, Fault> {
        let mut event = piece(event)?;
        for (name, kept) in [("usage", &mut self.usage), ("model", &mut self.model), ("provider", &mut self.provider)] {
            if let Some(value) = event.get_mut(name).filter(|value| !value.is_null()) {
                *kept = Some(value.take());
            }
        }
        let Some(choice) = event.get("choices").and_then(|choices| choices.get(0)) else { return Ok(false) };
        refused(choice)?;
        self.began = true;
        if let Some(reason) = choice.get("finish_reason").filter(|reason| !reason.is_null()) {
            self.finish_reason = Some(reason.clone());
        }
        let Some(delta) = choice.get("delta") else { return Ok(false) };
        if let Some(content) = delta.get("content") {
            thoughts(content).for_each(|thought| show.reasoning(thought));
            for text in texts(content) {
                show.text(text);
                self.content.push_str(text);
            }
        }
        append(&mut self.refusal, delta, "refusal");
        for name in ["reasoning_content", "reasoning"] {
            show.reasoning(delta.get(name).and_then(Json::as_str).unwrap_or_default());
        }
        for call in delta.get("tool_calls").and_then(Json::as_array).into_iter().flatten() {
            self.call(call, show);
        }
        Ok(false)
    }

    fn whole(self: Box<Self>, marked: bool) -> Option<Json> {
        // Some servers leave out the mark, and none leaves out why a reply ended.
        if !self.began || (!marked && self.finish_reason.is_none()) {
            return None;
        }
        let calls: Vec<Json> = self
            .calls
            .into_values()
            .map(|(id, name, arguments)| json!({"id": id, "function": {"name": name, "arguments": arguments}}))
            .collect();
        let message = json!({
            "content": text_or_null(self.content),
            "refusal": text_or_null(self.refusal),
            "tool_calls": calls,
        });
        let choice = json!({"message": message, "finish_reason": self.finish_reason});
        Some(json!({"choices": [choice], "usage": self.usage, "model": self.model, "provider": self.provider}))
    }
}

impl Pieces {
    /// Ids and names come once, or again with every piece of the arguments; all of them belong to their index.
    fn call(&mut self, wire: &Json, show: &mut Show) {
        let given = wire.get("index").and_then(Json::as_u64).filter(|index| *index <= MAX_INDEX);
        let index = given.unwrap_or_else(|| self.unnumbered(wire));
        let (id, name, arguments) = self.calls.entry(index).or_default();
        let given = wire.get("id").and_then(Json::as_str).unwrap_or_default();
        let again = !id.is_empty() && given == id;
        if id.is_empty() {
            given.clone_into(id);
        }
        let Some(function) = wire.get("function") else { return };
        // A name may itself come in pieces.
        if !again || text_at(function, "name").as_ref() != Some(name) {
            append(name, function, "name");
        }
        match function.get("arguments") {
            Some(Json::Object(whole)) => {
                let text = Json::Object(whole.clone()).to_string();
                show.arguments(&text);
                arguments.push_str(&text);
            }
            Some(_) | None => show.arguments(append(arguments, function, "arguments")),
        }
    }

    /// Some gateways leave out the index: a new id begins a new call.
    fn unnumbered(&self, wire: &Json) -> u64 {
        let last = self.calls.last_key_value();
        let begins = wire.get("id").and_then(Json::as_str).is_some_and(|id| !id.is_empty());
        match last {
            Some((index, (id, _, _))) if begins && text_at(wire, "id").as_ref() != Some(id) => index + 1,
            Some((index, _)) => *index,
            None => 0,
        }
    }
}
