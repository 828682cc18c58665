//! Gemini (model-wire-formats.md section 4).

use serde_json::{Value as Json, json};

use super::{Said, schema_program, sse, thirds};

/// What the real server would refuse.
pub fn check(body: &Json) -> Result<(), String> {
    let unknown = |place: &str, json: &Json, known: &[&str]| match json.as_object() {
        None => Err(format!("Invalid value at '{place}'")),
        Some(fields) => match fields.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => Err(format!("Invalid JSON payload received. Unknown name \"{name}\" at '{place}'")),
        },
    };
    let known =
        ["contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent"];
    unknown("", body, &known)?;
    if let Some(config) = body.get("generationConfig") {
        let known = [
            "temperature",
            "topP",
            "topK",
            "maxOutputTokens",
            "stopSequences",
            "seed",
            "presencePenalty",
            "frequencyPenalty",
            "responseMimeType",
            "responseSchema",
            "responseJsonSchema",
            "thinkingConfig",
            "candidateCount",
        ];
        unknown("generation_config", config, &known)?;
        if let Some(thinking) = config.get("thinkingConfig") {
            unknown("thinking_config", thinking, &["includeThoughts", "thinkingBudget", "thinkingLevel"])?;
            if thinking.get("thinkingBudget").is_some() && thinking.get("thinkingLevel").is_some() {
                return Err("You can only set one of thinking budget and thinking level.".into());
            }
        }
        if config.get("responseJsonSchema").is_some() && config["responseMimeType"] != "application/json" {
            return Err("responseJsonSchema needs the response MIME type application/json".into());
        }
    }
    contents(body)?;
    let mut names = Vec::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        for declared in tool["functionDeclarations"].as_array().into_iter().flatten() {
            // Both spellings of a field are read, and the official client sends both.
            let known = ["name", "description", "parameters", "parametersJsonSchema", "parameters_json_schema"];
            unknown("function_declarations", declared, &known)?;
            names.push(declared["name"].as_str().ok_or("a function declaration needs a name")?);
        }
    }
    let calling = &body["toolConfig"]["functionCallingConfig"];
    if let Some(mode) = calling["mode"].as_str() {
        if !["AUTO", "ANY", "NONE", "VALIDATED"].contains(&mode) {
            return Err(format!("Invalid value at 'mode': {mode}"));
        }
        let allowed: Vec<&str> =
            calling["allowedFunctionNames"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
        if !allowed.is_empty() && mode == "AUTO" {
            return Err("allowed_function_names needs the mode ANY".into());
        }
        if names.is_empty() || allowed.iter().any(|name| !names.contains(name)) {
            return Err("a function that is allowed is not declared".into());
        }
    }
    Ok(())
}

fn contents(body: &Json) -> Result<(), String> {
    let contents = body["contents"].as_array().filter(|list| !list.is_empty());
    for content in contents.ok_or("* GenerateContentRequest.contents: contents is not specified")? {
        let role = content.get("role").map_or("user", |role| role.as_str().unwrap_or_default());
        if !["user", "model"].contains(&role) {
            return Err("Please use a valid role: user, model.".into());
        }
        for part in content["parts"].as_array().filter(|parts| !parts.is_empty()).ok_or("parts must not be empty")? {
            let fits = if let Some(call) = part.get("functionCall") {
                role == "model" && call["name"].is_string() && call["args"].is_object()
            } else if let Some(response) = part.get("functionResponse") {
                let named = response["name"].as_str().is_some_and(|name| !name.is_empty());
                role == "user" && named && response["response"].is_object()
            } else {
                part["text"].is_string()
            };
            if !fits {
                return Err(format!("Invalid value at 'contents.parts': {part}"));
            }
        }
    }
    Ok(())
}

/// A program in the form that the request asks for.
pub fn program(body: &Json, code: &str) -> Said {
    let tool = &body["tools"][0]["functionDeclarations"][0];
    if tool.is_object() {
        let spellings = ["parametersJsonSchema", "parameters_json_schema"];
        let schema = spellings.iter().find_map(|name| tool.get(name)).unwrap_or(&tool["parameters"]);
        return Said::call(tool["name"].as_str().unwrap_or_default(), &schema_program(schema, code));
    }
    match &body["generationConfig"]["responseJsonSchema"] {
        Json::Null => Said::text(code),
        schema => Said::text(&schema_program(schema, code)),
    }
}

pub fn refusal(code: u16, status: &str, reason: Option<&str>, message: &str) -> Json {
    let details = reason.map(|reason| json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}));
    json!({"error": {"code": code, "message": message, "status": status, "details": Vec::from_iter(details)}})
}

fn usage(said: &Said) -> Json {
    let counts = &said.counts;
    json!({
        "promptTokenCount": counts.input,
        "cachedContentTokenCount": counts.cached,
        "candidatesTokenCount": counts.output - counts.reasoning,
        "thoughtsTokenCount": counts.reasoning,
        "totalTokenCount": counts.input + counts.output,
    })
}

fn calls(said: &Said) -> impl Iterator<Item = Json> + '_ {
    said.calls.iter().map(|(name, arguments)| {
        let args: Json = serde_json::from_str(arguments).unwrap_or_default();
        json!({"functionCall": {"name": name, "args": args}, "thoughtSignature": "c2ln"})
    })
}

fn reply(said: &Said, parts: Vec<Json>, finish: Json) -> Json {
    let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
    if !finish.is_null() {
        candidate["finishReason"] = finish;
    }
    let mut reply = json!({
        "candidates": [candidate], "usageMetadata": usage(said), "modelVersion": said.model, "responseId": "r1",
    });
    if let Some(reason) = said.stop.as_deref().and_then(|stop| stop.strip_prefix("BLOCKED:")) {
        (reply["candidates"], reply["promptFeedback"]) = (json!([]), json!({"blockReason": reason}));
    }
    reply
}

fn finish(said: &Said) -> Json {
    said.stop.as_deref().unwrap_or("STOP").into()
}

pub fn whole(said: &Said) -> Json {
    let thoughts = said.reasoning.iter().map(|text| json!({"text": text, "thought": true}));
    let text = said.text.iter().map(|text| json!({"text": text}));
    reply(said, thoughts.chain(text).chain(calls(said)).collect(), finish(said))
}

pub fn events(said: &Said) -> Vec<String> {
    let mut parts: Vec<Json> =
        thirds(said.reasoning.as_deref()).iter().map(|text| json!({"text": text, "thought": true})).collect();
    parts.extend(thirds(said.text.as_deref()).iter().map(|text| json!({"text": text})));
    parts.extend(calls(said));
    let mut events: Vec<String> =
        parts.into_iter().map(|part| sse(None, &reply(said, vec![part], Json::Null))).collect();
    events.push(sse(None, &reply(said, vec![json!({"text": ""})], finish(said))));
    events
}
