//! Ollama's own chat (model-wire-formats.md section 5).

use serde_json::{Value as Json, json};

use super::{Said, schema_program, thirds};

/// What the real server would refuse, and what it would cut in silence.
pub fn check(body: &Json) -> Result<(), String> {
    let known = ["model", "messages", "tools", "format", "think", "options", "stream", "keep_alive"];
    let fields = body.as_object().ok_or("the body must be an object")?;
    if let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("unknown field {name:?}"));
    }
    body["model"].as_str().ok_or("model is required")?;
    for message in body["messages"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or_default();
        if !["system", "user", "assistant", "tool"].contains(&role) || !message["content"].is_string() {
            return Err(format!("invalid message role {role:?}"));
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            if !call["function"]["arguments"].is_object() {
                return Err("json: cannot unmarshal string into Go struct field arguments".into());
            }
        }
    }
    for tool in body["tools"].as_array().into_iter().flatten() {
        if tool["type"] != "function" || !tool["function"]["parameters"].is_object() {
            return Err("invalid tools".into());
        }
    }
    let format_fits = body.get("format").is_none_or(|format| format == "json" || format == "" || format.is_object());
    if !format_fits {
        return Err("invalid format: expected \"json\" or a JSON schema".into());
    }
    let levels = ["low", "medium", "high"];
    let fits = |think: &Json| think.is_boolean() || think.as_str().is_some_and(|level| levels.contains(&level));
    if body.get("think").is_some_and(|think| !fits(think)) {
        return Err("invalid think value".into());
    }
    let options = ["num_ctx", "num_predict", "temperature", "top_k", "top_p", "repeat_penalty", "seed", "stop"];
    let given = body["options"].as_object();
    if let Some(name) = given.into_iter().flatten().map(|(name, _)| name).find(|name| !options.contains(&&***name)) {
        return Err(format!("invalid option provided: {name}"));
    }
    Ok(())
}

/// A program in the form that the request asks for.
pub fn program(body: &Json, code: &str) -> Said {
    if let Some(tool) = body["tools"].get(0) {
        let name = tool["function"]["name"].as_str().unwrap_or_default();
        return Said::call(name, &schema_program(&tool["function"]["parameters"], code));
    }
    match &body["format"] {
        Json::Object(_) => Said::text(&schema_program(&body["format"], code)),
        _text => Said::text(code),
    }
}

pub fn refusal(message: &str) -> Json {
    json!({"error": message})
}

fn reply(said: &Said, message: Json, done: bool) -> Json {
    let mut reply = json!({"model": said.model, "created_at": "2026-10-01T12:00:00.123456Z", "message": message});
    reply["done"] = done.into();
    if done {
        let counts = &said.counts;
        let last = json!({
            "done_reason": said.stop.as_deref().unwrap_or("stop"), "total_duration": 5_000_000, "load_duration": 1_000,
            "prompt_eval_count": counts.input, "prompt_eval_duration": 1_000, "eval_count": counts.output,
            "eval_duration": 2_000,
        });
        reply.as_object_mut().unwrap().extend(last.as_object().unwrap().clone());
    }
    reply
}

fn calls(said: &Said) -> Vec<Json> {
    let call = |(name, arguments): &(String, String)| {
        let arguments: Json = serde_json::from_str(arguments).unwrap_or_default();
        json!({"function": {"name": name, "arguments": arguments}})
    };
    said.calls.iter().map(call).collect()
}

pub fn whole(said: &Said) -> Json {
    let mut message = json!({"role": "assistant", "content": said.text.as_deref().unwrap_or_default()});
    if let Some(reasoning) = &said.reasoning {
        message["thinking"] = reasoning.as_str().into();
    }
    if !said.calls.is_empty() {
        message["tool_calls"] = calls(said).into();
    }
    reply(said, message, true)
}

pub fn events(said: &Said) -> Vec<String> {
    let mut messages = Vec::new();
    for piece in thirds(said.reasoning.as_deref()) {
        messages.push(json!({"role": "assistant", "content": "", "thinking": piece}));
    }
    for piece in thirds(said.text.as_deref()) {
        messages.push(json!({"role": "assistant", "content": piece}));
    }
    for call in calls(said) {
        messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
    }
    let mut lines: Vec<String> =
        messages.into_iter().map(|message| format!("{}\n", reply(said, message, false))).collect();
    lines.push(format!("{}\n", reply(said, json!({"role": "assistant", "content": ""}), true)));
    lines
}
