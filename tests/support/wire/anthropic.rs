//! Anthropic Messages (model-wire-formats.md section 3).

use serde_json::{Value as Json, json};

use super::{Said, schema_program, sse, thirds};

/// What the real server would refuse.
pub fn check(body: &Json, version: Option<&str>) -> Result<(), String> {
    const KNOWN: [&str; 17] = [
        "model",
        "max_tokens",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "stop_sequences",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "metadata",
        "service_tier",
        "cache_control",
        "container",
    ];
    let version = version.ok_or("anthropic-version: header is required")?;
    if !["2023-06-01", "2026-10-21"].contains(&version) {
        return Err(format!("anthropic-version: {version} is not a valid version"));
    }
    let body = body.as_object().ok_or("the body must be an object")?;
    if let Some(name) = body.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(format!("{name}: Extra inputs are not permitted"));
    }
    body.get("model").and_then(Json::as_str).ok_or("model: Field required")?;
    let max_tokens = body.get("max_tokens").and_then(Json::as_u64).ok_or("max_tokens: Field required")?;
    let samples = ["temperature", "top_p", "top_k"].iter().any(|name| body.contains_key(*name));
    if version == "2026-10-21" && samples {
        return Err("temperature, top_p and top_k are not supported with this version".into());
    }
    let system_fits = body.get("system").is_none_or(|system| system.is_string() || system.is_array());
    if !system_fits {
        return Err("system: Input should be a valid string or list".into());
    }
    messages(body.get("messages"))?;
    let names = tools(body.get("tools"))?;
    let thinking = body.get("thinking").map_or("disabled", |thinking| thinking["type"].as_str().unwrap_or_default());
    match thinking {
        "enabled" => {
            let budget = body["thinking"]["budget_tokens"].as_u64().ok_or("thinking.budget_tokens: Field required")?;
            if budget < 1_024 || budget >= max_tokens {
                return Err("thinking.budget_tokens: must be at least 1024 and less than `max_tokens`".into());
            }
        }
        "disabled" | "adaptive" | "between_tools" => {}
        other => return Err(format!("thinking.type: {other:?} is not known")),
    }
    let choice = body.get("tool_choice").map_or("auto", |choice| choice["type"].as_str().unwrap_or_default());
    if thinking != "disabled" && ["any", "tool"].contains(&choice) {
        return Err("Thinking may not be enabled when tool_choice forces tool use.".into());
    }
    match choice {
        "tool" if !names.iter().any(|name| body["tool_choice"]["name"] == **name) => {
            Err("tool_choice: no such tool".into())
        }
        "auto" | "any" | "tool" | "none" if body.contains_key("tool_choice") && names.is_empty() => {
            Err("tool_choice may only be specified while providing tools".into())
        }
        "auto" | "any" | "tool" | "none" => format(body.get("output_config")),
        other => Err(format!("tool_choice.type: {other:?} is not known")),
    }
}

fn messages(messages: Option<&Json>) -> Result<(), String> {
    let messages = messages.and_then(Json::as_array).filter(|list| !list.is_empty());
    let mut last_role = "assistant";
    for message in messages.ok_or("messages: at least one message is required")? {
        let role = message["role"].as_str().unwrap_or_default();
        if !["user", "assistant"].contains(&role) {
            return Err(format!("messages: Unexpected role {role:?}"));
        }
        if role == last_role {
            return Err("messages: roles must alternate between \"user\" and \"assistant\"".into());
        }
        last_role = if role == "user" { "user" } else { "assistant" };
        let blocks = match &message["content"] {
            Json::String(text) if !text.is_empty() => continue,
            Json::Array(blocks) if !blocks.is_empty() => blocks,
            _nothing => return Err("messages: content must be non-empty".into()),
        };
        for (index, block) in blocks.iter().enumerate() {
            let fits = match block["type"].as_str() {
                Some("text") => block["text"].as_str().is_some_and(|text| !text.trim().is_empty()),
                Some("tool_use") => role == "assistant" && is_id(&block["id"]) && block["input"].is_object(),
                Some("tool_result") => {
                    let first = blocks[..index].iter().all(|before| before["type"] == "tool_result");
                    role == "user" && first && is_id(&block["tool_use_id"])
                }
                _unknown => false,
            };
            if !fits {
                return Err(format!("messages: invalid block {block}"));
            }
        }
    }
    Ok(())
}

fn is_id(id: &Json) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    id.as_str().is_some_and(|id| !id.is_empty() && id.bytes().all(fits))
}

fn tools(tools: Option<&Json>) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for tool in tools.and_then(Json::as_array).into_iter().flatten() {
        let fields = tool.as_object().ok_or("tools: an object is expected")?;
        let known = ["name", "description", "input_schema", "strict", "cache_control", "type"];
        if let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("tools.{name}: Extra inputs are not permitted"));
        }
        if tool["input_schema"]["type"] != "object" {
            return Err("tools.input_schema.type: Field required".into());
        }
        names.push(tool["name"].as_str().ok_or("tools.name: Field required")?.to_owned());
    }
    Ok(names)
}

fn format(output: Option<&Json>) -> Result<(), String> {
    let Some(output) = output else { return Ok(()) };
    let effort = output["effort"].as_str();
    if output.get("effort").is_some() && !effort.is_some_and(|e| ["low", "medium", "high", "xhigh", "max"].contains(&e))
    {
        return Err("output_config.effort: not a level".into());
    }
    match output.get("format") {
        None => Ok(()),
        Some(format) if format["type"] == "json_schema" && format["schema"].is_object() => Ok(()),
        Some(_) => Err("output_config.format: a JSON schema is expected".into()),
    }
}

/// A program in the form that the request asks for.
pub fn program(body: &Json, code: &str) -> Said {
    if let Some(tool) = body["tools"].get(0) {
        let name = tool["name"].as_str().unwrap_or_default();
        return Said::call(name, &schema_program(&tool["input_schema"], code));
    }
    match &body["output_config"]["format"]["schema"] {
        Json::Null => Said::text(code),
        schema => Said::text(&schema_program(schema, code)),
    }
}

pub fn refusal(kind: &str, message: &str) -> Json {
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"})
}

fn stop(said: &Said) -> &str {
    said.stop.as_deref().unwrap_or(if said.calls.is_empty() { "end_turn" } else { "tool_use" })
}

fn usage(said: &Said) -> Json {
    let counts = &said.counts;
    json!({
        "input_tokens": counts.input - counts.cached - counts.cache_write,
        "cache_read_input_tokens": counts.cached,
        "cache_creation_input_tokens": counts.cache_write,
        "cache_creation": {"ephemeral_5m_input_tokens": counts.cache_write, "ephemeral_1h_input_tokens": 0},
        "output_tokens": counts.output,
        "output_tokens_details": {"thinking_tokens": counts.reasoning},
        "service_tier": "standard",
    })
}

fn blocks(said: &Said) -> Vec<Json> {
    let thinking = said.reasoning.iter().map(|text| json!({"type": "thinking", "thinking": text, "signature": "c2ln"}));
    let text = said.text.iter().map(|text| json!({"type": "text", "text": text, "citations": null}));
    let calls = said.calls.iter().enumerate().map(|(index, (name, arguments))| {
        let input: Json = serde_json::from_str(arguments).unwrap_or_default();
        json!({"type": "tool_use", "id": format!("toolu_{}", index + 1), "name": name, "input": input})
    });
    thinking.chain(text).chain(calls).collect()
}

pub fn whole(said: &Said) -> Json {
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": said.model, "content": blocks(said),
        "stop_reason": stop(said), "stop_sequence": null, "usage": usage(said), "container": null,
    })
}

pub fn events(said: &Said) -> Vec<String> {
    let mut events = Vec::new();
    let mut put = |kind: &str, mut event: Json| {
        event["type"] = kind.into();
        events.push(sse(Some(kind), &event));
    };
    let mut message = whole(said);
    (message["content"], message["stop_reason"]) = (json!([]), Json::Null);
    message["usage"]["output_tokens"] = 1.into();
    put("message_start", json!({"message": message}));
    put("ping", json!({}));
    for (index, mut block) in blocks(said).into_iter().enumerate() {
        let (field, delta, text) = match block["type"].as_str() {
            Some("thinking") => ("thinking", "thinking_delta", said.reasoning.clone()),
            Some("text") => ("text", "text_delta", said.text.clone()),
            _call => {
                block["input"] = json!({});
                let call = index - usize::from(said.reasoning.is_some()) - usize::from(said.text.is_some());
                ("partial_json", "input_json_delta", Some(said.calls[call].1.clone()))
            }
        };
        if field != "partial_json" {
            block[field] = "".into();
        }
        if field == "thinking" {
            block["signature"] = "".into();
        }
        put("content_block_start", json!({"index": index, "content_block": block}));
        for piece in thirds(text.as_deref()) {
            put("content_block_delta", json!({"index": index, "delta": {"type": delta, field: piece}}));
        }
        if field == "thinking" {
            let signature = json!({"type": "signature_delta", "signature": "c2ln"});
            put("content_block_delta", json!({"index": index, "delta": signature}));
        }
        put("content_block_stop", json!({"index": index}));
    }
    let end = json!({"stop_reason": stop(said), "stop_sequence": null});
    put("message_delta", json!({"delta": end, "usage": usage(said)}));
    put("message_stop", json!({}));
    events
}
