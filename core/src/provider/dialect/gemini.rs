//! Gemini (model-wire-formats.md 4).

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::{Assembly, Fault, Show, Wire, append, json_of, number_at, piece, set, text_at};
use crate::message::{AgentMessage, MessageRole, ModelReply, RawToolCall, Usage};
use crate::provider::{ModelRequest, Output, ToolSpec};
use crate::value::Value;

/// What stands for the signature of a thought that is not kept: calls are sent back without it.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// The request on the wire. The model stands in the path.
pub(super) fn body(wire: &Wire, request: &ModelRequest) -> Json {
    let params = &wire.params;
    let mut config = json!({});
    set(&mut config, "maxOutputTokens", wire.max_output(request));
    set(&mut config, "temperature", params.temperature.flatten());
    set(&mut config, "topP", params.top_p.flatten());
    set(&mut config, "seed", params.seed.flatten());
    // What has no name here goes out as it is when it is forced.
    set(&mut config, "repeatPenalty", params.repeat_penalty.flatten());
    let (budget, level) = (params.extended_thinking.flatten(), params.reasoning_effort.clone().flatten());
    if budget.is_some() || level.is_some() {
        config["thinkingConfig"] = json!({"includeThoughts": request.pieces.is_some()});
        set(&mut config["thinkingConfig"], "thinkingBudget", budget);
        set(&mut config["thinkingConfig"], "thinkingLevel", level);
    }
    let mut body = json!({
        "systemInstruction": {"parts": [{"text": &*request.system_prompt}]},
        "contents": contents(request),
    });
    match wire.output {
        Output::Tool if !request.tools.is_empty() => {
            let declared: Vec<Json> = request.tools.iter().map(tool).collect();
            body["tools"] = json!([{"functionDeclarations": declared}]);
            let calling = match wire.only_tool(request) {
                Some(only) => json!({"mode": "ANY", "allowedFunctionNames": [&*only.name]}),
                None => json!({"mode": "AUTO"}),
            };
            body["toolConfig"] = json!({"functionCallingConfig": calling});
        }
        Output::JsonSchema => {
            if let Some(only) = wire.only_tool(request) {
                config["responseMimeType"] = "application/json".into();
                config["responseJsonSchema"] = json_of(&only.parameters);
            }
        }
        Output::Tool | Output::Text => {}
    }
    body["generationConfig"] = config;
    body
}

/// The conversation: roles take turns, and results are named as the calls that they answer.
fn contents(request: &ModelRequest) -> Vec<Json> {
    let mut contents: Vec<Json> = Vec::new();
    let mut put = |role: &str, parts: Vec<Json>| match contents.last_mut() {
        Some(last) if last["role"] == role => {
            if let Some(there) = last["parts"].as_array_mut() {
                there.extend(parts);
            }
        }
        _other_role if !parts.is_empty() => contents.push(json!({"role": role, "parts": parts})),
        _other_role => {}
    };
    let mut names: HashMap<&str, &str> = HashMap::new();
    put("user", vec![json!({"text": &*request.user_prompt})]);
    for message in &request.messages {
        match message.role {
            MessageRole::System | MessageRole::User => put("user", vec![json!({"text": message.content})]),
            MessageRole::Tool => {
                let id = message.tool_call_id.as_deref().unwrap_or_default();
                let name = names.get(id).copied().unwrap_or_default();
                let response = json!({"result": message.content});
                put("user", vec![json!({"functionResponse": {"id": id, "name": name, "response": response}})]);
            }
            MessageRole::Assistant => {
                names.extend(message.tool_calls.iter().map(|call| (call.id.as_str(), &*call.name)));
                put("model", model(message));
            }
        }
    }
    contents
}

fn model(message: &AgentMessage) -> Vec<Json> {
    let words = (!message.content.is_empty()).then(|| json!({"text": message.content}));
    let calls = message.tool_calls.iter().enumerate().map(|(index, call)| {
        let args = json_of(&Value::Map(call.arguments.clone()));
        let mut part = json!({"functionCall": {"id": call.id, "name": &*call.name, "args": args}});
        if index == 0 {
            part["thoughtSignature"] = NO_SIGNATURE.into();
        }
        part
    });
    words.into_iter().chain(calls).collect()
}

fn tool(tool: &ToolSpec) -> Json {
    let schema = json_of(&tool.parameters);
    json!({"name": &*tool.name, "description": &*tool.description, "parametersJsonSchema": schema})
}

/// A whole reply.
pub(super) fn read(body: &Json) -> Result<ModelReply, Fault> {
    // Some gateways wrap it in a list of one.
    let body = body.as_array().filter(|list| list.len() == 1).map_or(body, |list| &list[0]);
    let Some(candidate) = body.pointer("/candidates/0") else {
        let blocked = body.pointer("/promptFeedback/blockReason").and_then(Json::as_str);
        return Err(match blocked {
            Some(reason) => Fault::seen("the prompt was blocked", reason),
            None => Fault::seen("the reply has no `candidates`", body.clone()),
        });
    };
    let (mut content, mut tool_calls) = (None::<String>, Vec::new());
    for part in candidate.pointer("/content/parts").and_then(Json::as_array).into_iter().flatten() {
        if let Some(call) = part.get("functionCall").filter(|call| call.is_object()) {
            tool_calls.push(function_call(call, tool_calls.len()));
        } else if part.get("text").is_some() && part.get("thought") != Some(&Json::Bool(true)) {
            append(content.get_or_insert_default(), part, "text");
        }
    }
    let stop_reason = text_at(candidate, "finishReason");
    let usable = !tool_calls.is_empty() || content.as_deref().is_some_and(|text| !text.trim().is_empty());
    judge(stop_reason.as_deref(), usable, candidate)?;
    Ok(ModelReply {
        content,
        tool_calls,
        usage: body.get("usageMetadata").and_then(usage),
        stop_reason,
        model: text_at(body, "modelVersion"),
        provider: text_at(body, "provider"),
        ..ModelReply::default()
    })
}

/// Ids are younger than calls here: where there is none, we make one.
fn function_call(call: &Json, index: usize) -> RawToolCall {
    let id = text_at(call, "id").filter(|id| !id.is_empty());
    RawToolCall {
        id: id.unwrap_or_else(|| format!("call_{index}")),
        name: text_at(call, "name").unwrap_or_default(),
        arguments: call.get("args").map_or_else(|| "{}".to_owned(), Json::to_string),
    }
}

/// Some reasons to stop leave nothing that can be trusted, others nothing at all. A call says `STOP` like any text.
fn judge(stop_reason: Option<&str>, usable: bool, candidate: &Json) -> Result<(), Fault> {
    let reason = stop_reason.unwrap_or_default();
    let broken = reason.starts_with("MALFORMED_")
        || ["UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE"].contains(&reason);
    let complete = ["", "STOP", "MAX_TOKENS", "FINISH_REASON_UNSPECIFIED"].contains(&reason);
    if !broken && (usable || complete) {
        return Ok(());
    }
    let what = format!("the reply holds nothing that could be used ({reason})");
    Err(match candidate.get("finishMessage").and_then(Json::as_str) {
        Some(why) => Fault::seen(what, why),
        None => Fault::invalid(what),
    })
}

pub(super) fn usage(usage: &Json) -> Option<Usage> {
    let number = |name: &str| number_at(usage, name);
    let input = number("/promptTokenCount");
    let output = number("/candidatesTokenCount");
    if input.is_none() && output.is_none() {
        return None;
    }
    let reasoning = number("/thoughtsTokenCount").unwrap_or(0);
    let of_tools = number("/toolUsePromptTokenCount").unwrap_or(0);
    Some(Usage {
        input: input.unwrap_or(0).saturating_add(of_tools),
        cached: number("/cachedContentTokenCount").unwrap_or(0),
        output: output.unwrap_or(0).saturating_add(reasoning),
        cache_write: 0,
        reasoning,
    })
}

/// A reply in pieces: each is a whole reply with some of its parts. There is no mark at the end.
#[derive(Default)]
pub(super) struct Pieces {
    reply: Json,
    parts: Vec<Json>,
    finish_reason: Option<Json>,
    finish_message: Option<Json>,
    blocked: bool,
}

impl Assembly for Pieces {
    fn take(&mut self, event: Json, show: &mut Show) -> Result<bool, Fault> {
        let mut event = piece(event)?;
        self.blocked |= event.pointer("/promptFeedback/blockReason").is_some();
        if let Some(candidate) = event.pointer_mut("/candidates/0") {
            if let Some(reason) = candidate.get_mut("finishReason").filter(|reason| !reason.is_null()) {
                self.finish_reason = Some(reason.take());
            }
            if let Some(message) = candidate.get_mut("finishMessage").filter(|message| !message.is_null()) {
                self.finish_message = Some(message.take());
            }
            if let Some(Json::Array(parts)) = candidate.pointer_mut("/content/parts").map(Json::take) {
                parts.into_iter().for_each(|part| self.part(part, show));
            }
        }
        for name in ["promptFeedback", "usageMetadata", "modelVersion", "provider"] {
            if let Some(value) = event.get_mut(name).filter(|value| !value.is_null()) {
                self.reply[name] = value.take();
            }
        }
        Ok(false)
    }

    fn whole(self: Box<Self>, _marked: bool) -> Option<Json> {
        let mut reply = self.reply;
        if self.finish_reason.is_none() {
            return self.blocked.then_some(reply);
        }
        let content = json!({"role": "model", "parts": self.parts});
        reply["candidates"] = json!([{
            "content": content, "finishReason": self.finish_reason, "finishMessage": self.finish_message,
        }]);
        Some(reply)
    }
}

impl Pieces {
    fn part(&mut self, part: Json, show: &mut Show) {
        let text = part.get("text").and_then(Json::as_str).unwrap_or_default();
        if part.get("thought") == Some(&Json::Bool(true)) {
            show.reasoning(text);
        } else if let Some(args) = part.pointer("/functionCall/args") {
            show.arguments(&args.to_string());
        } else {
            show.text(text);
        }
        self.parts.push(part);
    }
}
