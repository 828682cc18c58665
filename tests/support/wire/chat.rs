//! Chat completions as OpenAI serves them (model-wire-formats.md section 1).

use serde_json::{Value as Json, json};

use super::{Said, schema_program, sse, thirds};

/// What the real server would refuse.
pub fn check(body: &Json) -> Result<(), String> {
    const KNOWN: [&str; 20] = [
        "model",
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "max_completion_tokens",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "reasoning_effort",
        "verbosity",
        "n",
        "user",
        // What local servers know.
        "repeat_penalty",
        "repetition_penalty",
    ];
    let body = body.as_object().ok_or("the body must be an object")?;
    if let Some(name) = body.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(format!("Unrecognized request argument supplied: {name}"));
    }
    if body.contains_key("stream_options") && body.get("stream") != Some(&Json::Bool(true)) {
        return Err("The 'stream_options' parameter is only allowed when 'stream' is enabled.".into());
    }
    body.get("model").and_then(Json::as_str).ok_or("you must provide a model parameter")?;
    let messages = body.get("messages").and_then(Json::as_array).filter(|list| !list.is_empty());
    for message in messages.ok_or("you must provide messages")? {
        let role = message["role"].as_str().unwrap_or_default();
        if !["system", "developer", "user", "assistant", "tool"].contains(&role) {
            return Err(format!("invalid role: {role:?}"));
        }
        let may_be_null = role == "assistant" && message.get("tool_calls").is_some();
        if !message["content"].is_string() && !may_be_null {
            return Err(format!("invalid content of a {role} message"));
        }
        if role == "tool" && !message["tool_call_id"].is_string() {
            return Err("a tool message needs `tool_call_id`".into());
        }
    }
    let tools = body.get("tools").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
    let good = |name: &&str| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
    };
    if names.len() != tools.len() || !names.iter().all(good) {
        return Err("invalid tools".into());
    }
    match body.get("tool_choice") {
        None => {}
        Some(_) if names.is_empty() => return Err("`tool_choice` is only allowed when `tools` are specified".into()),
        Some(Json::Object(choice)) => {
            let name = choice.get("function").and_then(|function| function["name"].as_str());
            if !name.is_some_and(|name| names.contains(&name)) {
                return Err("`tool_choice` names no tool".into());
            }
        }
        Some(choice) if ["none", "auto", "required"].iter().any(|known| choice == known) => {}
        Some(_) => return Err("invalid tool_choice".into()),
    }
    match body.get("response_format") {
        None => Ok(()),
        Some(format) if format["type"] == "json_schema" && format["json_schema"]["schema"].is_object() => Ok(()),
        Some(format) if format["type"] == "text" || format["type"] == "json_object" => Ok(()),
        Some(_) => Err("invalid response_format".into()),
    }
}

/// A program in the form that the request asks for.
pub fn program(body: &Json, code: &str) -> Said {
    if let Some(tool) = body["tools"].get(0) {
        let name = tool["function"]["name"].as_str().unwrap_or_default();
        return Said::call(name, &schema_program(&tool["function"]["parameters"], code));
    }
    match &body["response_format"]["json_schema"]["schema"] {
        Json::Null => Said::text(code),
        schema => Said::text(&schema_program(schema, code)),
    }
}

pub fn refusal(kind: &str, code: &str, message: &str) -> Json {
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

fn stop(said: &Said) -> &str {
    said.stop.as_deref().unwrap_or(if said.calls.is_empty() { "stop" } else { "tool_calls" })
}

fn usage(said: &Said) -> Json {
    let counts = &said.counts;
    json!({
        "prompt_tokens": counts.input,
        "completion_tokens": counts.output,
        "total_tokens": counts.input + counts.output,
        "prompt_tokens_details": {
            "cached_tokens": counts.cached, "cache_write_tokens": counts.cache_write, "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning, "audio_tokens": 0},
    })
}

fn call((index, (name, arguments)): (usize, &(String, String))) -> Json {
    let function = json!({"name": name, "arguments": arguments});
    json!({"id": format!("call_{}", index + 1), "type": "function", "function": function})
}

pub fn whole(said: &Said) -> Json {
    let mut message = json!({"role": "assistant", "content": said.text, "refusal": said.refusal});
    if !said.calls.is_empty() {
        message["tool_calls"] = said.calls.iter().enumerate().map(call).collect();
    }
    if let Some(reasoning) = &said.reasoning {
        message["reasoning_content"] = reasoning.as_str().into();
    }
    let mut whole = completion(said, &message, stop(said));
    whole["usage"] = usage(said);
    whole
}

/// A completion around a message of the caller's own.
pub fn completion(said: &Said, message: &Json, finish_reason: &str) -> Json {
    let mut whole = json!({
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": said.model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason}],
        "usage": usage(said),
        "service_tier": "default",
        "system_fingerprint": "fp_1",
    });
    if let Some(provider) = &said.provider {
        whole["provider"] = provider.as_str().into();
    }
    whole
}

pub fn events(body: &Json, said: &Said) -> Vec<String> {
    let chunk = |choices: Json, usage: Json| {
        let mut chunk = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_760_000_000, "model": said.model,
            "choices": choices, "usage": usage, "obfuscation": "x7Qf",
        });
        if let Some(provider) = &said.provider {
            chunk["provider"] = provider.as_str().into();
        }
        sse(None, &chunk)
    };
    let delta = |delta: Json, finish: Json| {
        chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]), Json::Null)
    };
    let mut events = vec![delta(json!({"role": "assistant", "content": null, "refusal": null}), Json::Null)];
    for piece in thirds(said.reasoning.as_deref()) {
        events.push(delta(json!({"reasoning_content": piece}), Json::Null));
    }
    for piece in thirds(said.text.as_deref()) {
        events.push(delta(json!({"content": piece}), Json::Null));
    }
    for piece in thirds(said.refusal.as_deref()) {
        events.push(delta(json!({"refusal": piece}), Json::Null));
    }
    for (index, spoken) in said.calls.iter().enumerate() {
        let mut head = call((index, spoken));
        head["index"] = index.into();
        head["function"]["arguments"] = "".into();
        events.push(delta(json!({"tool_calls": [head]}), Json::Null));
    }
    // Calls side by side: only the index says where a piece belongs.
    let pieces: Vec<Vec<String>> = said.calls.iter().map(|(_, arguments)| thirds(Some(arguments))).collect();
    for round in 0..3 {
        for (index, pieces) in pieces.iter().enumerate() {
            if let Some(piece) = pieces.get(round) {
                let call = json!({"index": index, "function": {"arguments": piece}});
                events.push(delta(json!({"tool_calls": [call]}), Json::Null));
            }
        }
    }
    events.push(delta(json!({}), stop(said).into()));
    if body["stream_options"]["include_usage"] == true {
        events.push(chunk(json!([]), usage(said)));
    }
    events.push("data: [DONE]\n\n".into());
    events
}
