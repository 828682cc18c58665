//! OpenAI Responses (model-wire-formats.md section 2).

use serde_json::{Value as Json, json};

use super::{Said, schema_program, sse, thirds};

/// What the real server would refuse.
pub fn check(body: &Json) -> Result<(), String> {
    const KNOWN: [&str; 19] = [
        "model",
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_output_tokens",
        "max_tool_calls",
        "reasoning",
        "text",
        "temperature",
        "top_p",
        "truncation",
        "store",
        "previous_response_id",
        "include",
        "stream",
        "metadata",
        "user",
    ];
    let body = body.as_object().ok_or("the body must be an object")?;
    if let Some(name) = body.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(format!("Unknown parameter: '{name}'."));
    }
    body.get("model").and_then(Json::as_str).ok_or("Missing required parameter: 'model'.")?;
    match body.get("input") {
        Some(Json::String(text)) if !text.is_empty() => {}
        Some(Json::Array(items)) if !items.is_empty() => items.iter().try_for_each(item)?,
        _nothing => return Err("Missing required parameter: 'input'.".into()),
    }
    let mut names = Vec::new();
    for tool in body.get("tools").and_then(Json::as_array).into_iter().flatten() {
        if tool["type"] != "function" || !tool["parameters"].is_object() {
            return Err("Invalid value: 'tools[0].type'.".into());
        }
        if tool.get("strict").is_none() {
            return Err("Missing required parameter: 'tools[0].strict'.".into());
        }
        names.push(tool["name"].as_str().ok_or("Missing required parameter: 'tools[0].name'.")?);
    }
    match body.get("tool_choice") {
        None => {}
        Some(Json::Object(choice))
            if choice.get("type") == Some(&"function".into()) && names.iter().any(|name| choice["name"] == *name) => {}
        Some(Json::Object(_)) => return Err("Tool choice 'function' not found in 'tools' parameter.".into()),
        Some(choice) if ["none", "auto", "required"].iter().any(|known| choice == known) => {}
        Some(_) => return Err("Invalid value: 'tool_choice'.".into()),
    }
    match body.get("text").and_then(|text| text.get("format")) {
        None => Ok(()),
        Some(format) if format["type"] == "json_schema" => {
            let fits = format["schema"].is_object() && format["name"].is_string();
            if fits { Ok(()) } else { Err("Missing required parameter: 'text.format.name'.".into()) }
        }
        Some(format) if format["type"] == "text" || format["type"] == "json_object" => Ok(()),
        Some(_) => Err("Invalid value: 'text.format.type'.".into()),
    }
}

fn item(item: &Json) -> Result<(), String> {
    let text = |name: &str| item[name].is_string();
    let fits = match item["type"].as_str() {
        None | Some("message") => {
            let role = item["role"].as_str().unwrap_or_default();
            ["system", "developer", "user", "assistant"].contains(&role)
                && (text("content") || item["content"].is_array())
        }
        Some("function_call") => text("call_id") && text("name") && text("arguments"),
        Some("function_call_output") => text("call_id") && text("output"),
        Some("reasoning") => text("id") && item["summary"].is_array(),
        Some(_) => false,
    };
    if fits { Ok(()) } else { Err(format!("Invalid value: 'input': {item}")) }
}

/// A program in the form that the request asks for.
pub fn program(body: &Json, code: &str) -> Said {
    if let Some(tool) = body["tools"].get(0) {
        return Said::call(tool["name"].as_str().unwrap_or_default(), &schema_program(&tool["parameters"], code));
    }
    match &body["text"]["format"]["schema"] {
        Json::Null => Said::text(code),
        schema => Said::text(&schema_program(schema, code)),
    }
}

fn usage(said: &Said) -> Json {
    let counts = &said.counts;
    json!({
        "input_tokens": counts.input,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": counts.cache_write},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.input + counts.output,
    })
}

fn items(said: &Said) -> Vec<Json> {
    let mut items = Vec::new();
    if let Some(text) = &said.reasoning {
        items.push(json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}));
    }
    let mut content = Vec::new();
    if let Some(text) = &said.text {
        content.push(json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}));
    }
    if let Some(refusal) = &said.refusal {
        content.push(json!({"type": "refusal", "refusal": refusal}));
    }
    if !content.is_empty() {
        let message = json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"});
        items.push(with(message, "content", content.into()));
    }
    for (index, (name, arguments)) in said.calls.iter().enumerate() {
        items.push(json!({
            "type": "function_call", "id": format!("fc_{}", index + 1), "call_id": format!("call_{}", index + 1),
            "name": name, "arguments": arguments, "status": "completed",
        }));
    }
    items
}

fn with(mut json: Json, name: &str, value: Json) -> Json {
    json[name] = value;
    json
}

/// `incomplete` and `failed` by the words that Responses has for them.
fn status(said: &Said) -> (&str, Json, Json) {
    match said.stop.as_deref() {
        None | Some("completed") => ("completed", Json::Null, Json::Null),
        Some(reason @ ("max_output_tokens" | "content_filter")) => {
            ("incomplete", json!({"reason": reason}), Json::Null)
        }
        Some(code) => ("failed", Json::Null, json!({"code": code, "message": "The server had an error."})),
    }
}

pub fn whole(said: &Said) -> Json {
    let (status, incomplete, error) = status(said);
    json!({
        "id": "resp_1", "object": "response", "created_at": 1_760_000_000, "status": status, "error": error,
        "incomplete_details": incomplete, "instructions": null, "max_output_tokens": null, "model": said.model,
        "output": items(said), "parallel_tool_calls": true, "previous_response_id": null, "store": false,
        "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": 1.0,
        "truncation": "disabled", "usage": usage(said), "metadata": {}, "provider": said.provider,
    })
}

pub fn events(said: &Said) -> Vec<String> {
    let mut events = Vec::new();
    let mut put = |kind: &str, mut event: Json| {
        event["type"] = kind.into();
        event["sequence_number"] = events.len().into();
        events.push(sse(Some(kind), &event));
    };
    let mut begun = whole(said);
    (begun["status"], begun["output"], begun["usage"]) = ("in_progress".into(), json!([]), Json::Null);
    put("response.created", json!({"response": begun}));
    put("response.in_progress", json!({"response": begun}));
    for (index, item) in items(said).into_iter().enumerate() {
        let id = item["id"].clone();
        let mut begun = item.clone();
        for empty in ["content", "summary"] {
            if begun.get(empty).is_some() {
                begun[empty] = json!([]);
            }
        }
        if begun.get("arguments").is_some() {
            begun["arguments"] = "".into();
        }
        put("response.output_item.added", json!({"output_index": index, "item": begun}));
        let (kind, part, text) = match item["type"].as_str() {
            Some("reasoning") => ("response.reasoning_summary_text", "summary_index", said.reasoning.as_deref()),
            Some("message") if said.text.is_none() => ("response.refusal", "content_index", said.refusal.as_deref()),
            Some("message") => ("response.output_text", "content_index", said.text.as_deref()),
            _call => ("response.function_call_arguments", "", item["arguments"].as_str()),
        };
        let place = |mut event: Json| {
            event["item_id"] = id.clone();
            event["output_index"] = index.into();
            if !part.is_empty() {
                event[part] = 0.into();
            }
            if kind == "response.output_text" {
                event["logprobs"] = json!([]);
            }
            event
        };
        if kind == "response.output_text" {
            let empty = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
            put("response.content_part.added", place(json!({"part": empty})));
        }
        for piece in thirds(text) {
            put(&format!("{kind}.delta"), place(json!({"delta": piece})));
        }
        let done = if part.is_empty() { "arguments" } else { "text" };
        put(&format!("{kind}.done"), place(json!({done: text, "name": item["name"]})));
        put("response.output_item.done", json!({"output_index": index, "item": item}));
    }
    let (status, ..) = status(said);
    put(&format!("response.{status}"), json!({"response": whole(said)}));
    events
}
