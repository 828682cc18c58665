//! OpenAI Responses (model-wire-formats.md 2), without state at the server.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::{Assembly, Fault, Show, Wire, append, is_closed, json_of, number_at, set, text_at};
use crate::message::{AgentMessage, MessageRole, ModelReply, RawToolCall, Usage};
use crate::provider::{ModelRequest, Output, ToolSpec};
use crate::value::Value;

/// The request on the wire.
pub(super) fn body(wire: &Wire, request: &ModelRequest) -> Json {
    let mut input = vec![json!({"role": "user", "content": &*request.user_prompt})];
    input.extend(request.messages.iter().flat_map(items));
    let params = &wire.params;
    let mut body = json!({
        "model": wire.model,
        "instructions": &*request.system_prompt,
        "input": input,
        "store": false,
    });
    set(&mut body, "max_output_tokens", wire.max_output(request));
    set(&mut body, "temperature", params.temperature.flatten());
    set(&mut body, "top_p", params.top_p.flatten());
    // What has no name here goes out as it is when it is forced.
    set(&mut body, "seed", params.seed.flatten());
    set(&mut body, "repeat_penalty", params.repeat_penalty.flatten());
    if let Some(effort) = params.reasoning_effort.as_ref().and_then(Option::as_ref) {
        body["reasoning"] = json!({"effort": effort});
    }
    match wire.output {
        Output::Tool if !request.tools.is_empty() => {
            body["tools"] = request.tools.iter().map(tool).collect();
            body["tool_choice"] = match wire.only_tool(request) {
                Some(only) => json!({"type": "function", "name": &*only.name}),
                None => "auto".into(),
            };
        }
        Output::JsonSchema => {
            if let Some(only) = wire.only_tool(request) {
                let schema = json_of(&only.parameters);
                let strict = is_closed(&schema);
                let format = json!({"type": "json_schema", "name": &*only.name, "schema": schema, "strict": strict});
                body["text"] = json!({"format": format});
            }
        }
        Output::Tool | Output::Text => {}
    }
    body
}

fn items(message: &AgentMessage) -> Vec<Json> {
    match message.role {
        MessageRole::System | MessageRole::User => {
            vec![json!({"role": message.role.as_str(), "content": message.content})]
        }
        MessageRole::Tool => {
            vec![json!({"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content})]
        }
        MessageRole::Assistant => {
            let words = (!message.content.is_empty()).then(|| json!({"role": "assistant", "content": message.content}));
            let calls = message.tool_calls.iter().map(|call| {
                let arguments = Value::Map(call.arguments.clone()).to_json();
                json!({"type": "function_call", "call_id": call.id, "name": &*call.name, "arguments": arguments})
            });
            words.into_iter().chain(calls).collect()
        }
    }
}

fn tool(tool: &ToolSpec) -> Json {
    let parameters = json_of(&tool.parameters);
    // Must be there here; strict schemas know less than ours may say.
    json!({
        "type": "function", "name": &*tool.name, "description": &*tool.description, "parameters": parameters,
        "strict": false,
    })
}

/// A whole reply.
pub(super) fn read(body: &Json) -> Result<ModelReply, Fault> {
    let status = body.get("status").and_then(Json::as_str).unwrap_or_default();
    if status == "failed" {
        return Err(Fault::Refused(json!({"error": body.get("error")})));
    }
    let Some(items) = body.get("output").and_then(Json::as_array) else {
        return Err(Fault::seen("the reply has no `output`", body.clone()));
    };
    let (mut content, mut refusal, mut tool_calls) = (None::<String>, String::new(), Vec::new());
    for item in items {
        match item.get("type").and_then(Json::as_str) {
            Some("message") => {
                for part in item.get("content").and_then(Json::as_array).into_iter().flatten() {
                    match part.get("type").and_then(Json::as_str) {
                        Some("output_text" | "text") => {
                            append(content.get_or_insert_default(), part, "text");
                        }
                        Some("refusal") => {
                            append(&mut refusal, part, "refusal");
                        }
                        Some(_) | None => {}
                    }
                }
            }
            Some("function_call") => tool_calls.push(call(item)),
            // Reasoning, and what this version does not know, is no part of the answer.
            Some(_) | None => {}
        }
    }
    let reason = body.pointer("/incomplete_details/reason").and_then(Json::as_str);
    if tool_calls.is_empty() && content.as_deref().is_none_or(|text| text.trim().is_empty()) {
        if !refusal.is_empty() {
            return Err(Fault::seen("the model refused", refusal));
        }
        if reason == Some("content_filter") {
            return Err(Fault::invalid("the server's content filter left nothing of the reply"));
        }
        if !["completed", "incomplete", ""].contains(&status) {
            return Err(Fault::invalid(format!("the reply is {status}, and holds nothing")));
        }
    }
    Ok(ModelReply {
        content,
        tool_calls,
        usage: body.get("usage").and_then(usage),
        stop_reason: reason.or((!status.is_empty()).then_some(status)).map(str::to_owned),
        model: text_at(body, "model"),
        provider: text_at(body, "provider"),
        ..ModelReply::default()
    })
}

fn call(item: &Json) -> RawToolCall {
    RawToolCall {
        id: text_at(item, "call_id").or_else(|| text_at(item, "id")).unwrap_or_default(),
        name: text_at(item, "name").unwrap_or_default(),
        arguments: text_at(item, "arguments").unwrap_or_default(),
    }
}

pub(super) fn usage(usage: &Json) -> Option<Usage> {
    let number = |path: &str| number_at(usage, path);
    let (input, output) = (number("/input_tokens"), number("/output_tokens"));
    if input.is_none() && output.is_none() {
        return None;
    }
    Some(Usage {
        input: input.unwrap_or(0),
        cached: number("/input_tokens_details/cached_tokens").unwrap_or(0),
        output: output.unwrap_or(0),
        cache_write: number("/input_tokens_details/cache_write_tokens").unwrap_or(0),
        reasoning: number("/output_tokens_details/reasoning_tokens").unwrap_or(0),
    })
}

/// A response in pieces. Its last event holds it whole; items that it leaves out are taken from where they ended.
#[derive(Default)]
pub(super) struct Pieces {
    items: BTreeMap<u64, Json>,
    response: Option<Json>,
}

impl Assembly for Pieces {
    fn take(&mut self, mut event: Json, show: &mut Show) -> Result<bool, Fault> {
        let delta = event.get("delta").and_then(Json::as_str).unwrap_or_default();
        match event.get("type").and_then(Json::as_str) {
            Some("response.output_text.delta") => show.text(delta),
            Some("response.function_call_arguments.delta") => show.arguments(delta),
            Some("response.reasoning_summary_text.delta" | "response.reasoning_text.delta") => show.reasoning(delta),
            Some("response.output_item.done") => {
                let index = event.get("output_index").and_then(Json::as_u64).unwrap_or(self.items.len() as u64);
                self.items.insert(index, event["item"].take());
            }
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                self.response = Some(event["response"].take()).filter(Json::is_object);
                return Ok(true);
            }
            Some("error") => return Err(Fault::Refused(event)),
            // Beginnings, repetitions, and what this version does not know.
            Some(_) => {}
            None if event.get("error").is_some() => return Err(Fault::Refused(event)),
            None => return Err(Fault::seen("a piece has no type", event)),
        }
        Ok(false)
    }

    fn whole(self: Box<Self>, _marked: bool) -> Option<Json> {
        let mut response = self.response?;
        let empty = response.get("output").and_then(Json::as_array).is_none_or(Vec::is_empty);
        if empty && !self.items.is_empty() {
            response["output"] = self.items.into_values().collect();
        }
        Some(response)
    }
}
