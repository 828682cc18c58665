//! OpenAI chat completions, and servers that speak them: vLLM, llama.cpp, gateways (model-wire-formats.md 1, 6, 7).
//!
//! Maps a request to the wire and a reply back, without interpreting either: whether a text is a program is the
//! adapter's question. Never retries, never streams, and sends a key to its own base URL only.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map as JsonMap, Value as Json, json};

use super::classify::{Refusal, classify};
use super::http::{self, Post, Reply};
use super::secret::Secret;
use super::{
    ModelReply, ModelRequest, Output, Provider, ProviderError, ProviderErrorClass, RawToolCall, ReplyFuture, Usage,
    wait,
};
use crate::cancel::CancelToken;
use crate::message::{AgentMessage, MessageRole};
use crate::value::Value;

/// Where OpenAI itself answers.
pub const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

/// How to reach one model.
#[derive(Clone, Debug)]
pub struct OpenAiSettings {
    /// Name in logs, such as `openai:gpt-5.1`.
    pub name: String,
    /// The model's name on the wire.
    pub wire_name: String,
    /// Base URL, up to and without `/chat/completions`.
    pub base_url: String,
    /// The key; compatible servers may need none.
    pub key: Option<Secret>,
    /// `OpenAI-Organization`.
    pub organization: Option<String>,
    /// `OpenAI-Project`.
    pub project: Option<String>,
    /// How a program is asked for.
    pub output: Output,
    /// True for OpenAI itself, false for compatible servers, which often know only the older field names.
    pub official: bool,
}

/// A model behind a chat completions endpoint.
pub struct OpenAi {
    settings: OpenAiSettings,
    fingerprint: Arc<str>,
    url: Url,
    headers: HeaderMap,
}

impl OpenAi {
    /// Checks the settings; does not connect.
    pub fn new(settings: OpenAiSettings) -> Result<Self, OpenAiError> {
        let url = endpoint(&settings.base_url)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = &settings.key {
            let mut bearer =
                HeaderValue::from_str(&format!("Bearer {}", key.expose())).map_err(|_| OpenAiError::Key)?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        let names = [("openai-organization", &settings.organization), ("openai-project", &settings.project)];
        for (name, value) in names {
            if let Some(value) = value {
                let value = HeaderValue::from_str(value.trim()).map_err(|_| OpenAiError::Header { name })?;
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        let fingerprint = format!("{}@{url}#{}", settings.name, settings.output.as_str()).into();
        Ok(Self { settings, fingerprint, url, headers })
    }

    fn failed(&self, class: ProviderErrorClass, what: impl fmt::Display) -> ProviderError {
        ProviderError::new(class, format!("{}: {what}", self.settings.name))
    }

    fn invalid(&self, what: impl fmt::Display) -> ProviderError {
        self.failed(ProviderErrorClass::InvalidResponse, what)
    }

    async fn ask(&self, request: &ModelRequest, cancel: &CancelToken) -> Result<ModelReply, ProviderError> {
        let shared = wait::shared()?;
        let post = Post {
            url: self.url.clone(),
            headers: self.headers.clone(),
            body: self.body(request).to_string().into_bytes(),
            key: self.settings.key.clone(),
        };
        let name = self.settings.name.clone();
        let work = async move { http::post(shared, &name, post).await };
        let reply = wait::bounded(&self.settings.name, request.timeout, cancel, work).await?;
        self.read(request, &reply)
    }

    /// The request on the wire.
    fn body(&self, request: &ModelRequest) -> Json {
        let mut messages = vec![
            json!({"role": "system", "content": &*request.system_prompt}),
            json!({"role": "user", "content": &*request.user_prompt}),
        ];
        messages.extend(request.messages.iter().map(message));
        let mut body = json!({"model": self.settings.wire_name, "messages": messages});
        if let Some(limit) = request.max_output_tokens {
            let field = if self.settings.official { "max_completion_tokens" } else { "max_tokens" };
            body[field] = limit.into();
        }
        match self.settings.output {
            Output::Tool if !request.tools.is_empty() => {
                body["tools"] = request.tools.iter().map(tool).collect();
                body["tool_choice"] = match &*request.tools {
                    [only] => json!({"type": "function", "function": {"name": &*only.name}}),
                    _several => "auto".into(),
                };
            }
            Output::JsonSchema => {
                if let [only] = &*request.tools {
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

    fn read(&self, request: &ModelRequest, reply: &Reply) -> Result<ModelReply, ProviderError> {
        if (300..400).contains(&reply.status) {
            let to = reply.header("location").unwrap_or("another address");
            return Err(self.invalid(format_args!(
                "the server redirects (HTTP {}) to {}; set `base_url` to where it really answers",
                reply.status,
                &to[..to.floor_char_boundary(200)]
            )));
        }
        if reply.status >= 400 {
            return Err(self.refused(reply));
        }
        if !has_json_type(reply) {
            return Err(self.invalid(format_args!(
                "the reply is {}, not JSON; check `base_url`: {}",
                reply.header("content-type").unwrap_or_default(),
                start_of(&reply.body)
            )));
        }
        if reply.body.trim().is_empty() {
            return Err(self.invalid("the reply is empty"));
        }
        let body: Json = serde_json::from_str(&reply.body).map_err(|error| {
            self.invalid(format_args!("the reply is broken JSON ({error}): {}", start_of(&reply.body)))
        })?;
        if body.get("error").is_some_and(|error| !error.is_null()) {
            return Err(self.refused(reply));
        }
        self.completion(request, &body)
    }

    fn refused(&self, reply: &Reply) -> ProviderError {
        let names: Vec<&str> = reply.headers.iter().map(|(name, _)| name.as_str()).collect();
        classify(
            &self.settings.name,
            &Refusal {
                status: reply.status,
                header: &|name| reply.header(name),
                header_names: &names,
                body: &reply.body,
                now: SystemTime::now(),
            },
        )
    }

    fn completion(&self, request: &ModelRequest, body: &Json) -> Result<ModelReply, ProviderError> {
        let Some(choice) = body.get("choices").and_then(|choices| choices.get(0)) else {
            return Err(self.invalid(format_args!("the reply has no `choices`: {}", start_of(&body.to_string()))));
        };
        let Some(message) = choice.get("message").filter(|message| message.is_object()) else {
            return Err(self.invalid(format_args!("the reply has no `message`: {}", start_of(&body.to_string()))));
        };
        let stop_reason = text_at(choice, "finish_reason");
        let mut content = content_text(message.get("content"));
        let mut tool_calls = tool_calls(message);
        let usable = !tool_calls.is_empty() || content.as_deref().is_some_and(|text| !text.trim().is_empty());
        if !usable {
            self.nothing_usable(message, stop_reason.as_deref())?;
        }
        if self.settings.output == Output::JsonSchema
            && tool_calls.is_empty()
            && usable
            && let [only] = &*request.tools
        {
            // The schema that the text had to follow is that of the tool's arguments: the text is the call.
            let arguments = content.take().unwrap_or_default();
            tool_calls.push(RawToolCall { id: String::new(), name: only.name.to_string(), arguments });
        }
        Ok(ModelReply {
            content,
            tool_calls,
            usage: body.get("usage").and_then(usage),
            stop_reason,
            model: text_at(body, "model"),
            provider: text_at(body, "provider"),
            omitted: Vec::new(),
            source: None,
            note: None,
        })
    }

    /// An empty reply is the adapter's to reject, unless the wire says why it is empty.
    fn nothing_usable(&self, message: &Json, stop_reason: Option<&str>) -> Result<(), ProviderError> {
        if let Some(refusal) = text_at(message, "refusal").filter(|refusal| !refusal.is_empty()) {
            return Err(self.invalid(format_args!("the model refused: {}", start_of(&refusal))));
        }
        match stop_reason {
            Some("content_filter") => Err(self.invalid("the server's content filter left nothing of the reply")),
            Some("model_context_window_exceeded") => Err(self.failed(
                ProviderErrorClass::ContextOverflow,
                "the model's context window is full; use a larger model or keep less in the context",
            )),
            Some(_) | None => Ok(()),
        }
    }
}

impl Provider for OpenAi {
    fn model(&self) -> &str {
        &self.settings.name
    }

    fn profile(&self) -> &str {
        self.settings.output.profile()
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        Box::pin(self.ask(request, cancel))
    }
}

impl fmt::Debug for OpenAi {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(formatter)
    }
}

fn endpoint(base_url: &str) -> Result<Url, OpenAiError> {
    let wrong = |why: &str| OpenAiError::BaseUrl { why: why.to_owned() };
    let base = base_url.trim().trim_end_matches('/');
    let base = base.strip_suffix("/chat/completions").unwrap_or(base);
    let url = Url::parse(&format!("{base}/chat/completions")).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("it must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("it holds a password; pass the key as `api_key`"));
    }
    // Before the path is added to it: a question mark makes the path part of the query.
    if base_url.contains(['?', '#']) {
        return Err(wrong(
            "it has a query (`?`) or a fragment (`#`); write the address alone, and the key as `api_key`",
        ));
    }
    Ok(url)
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

fn tool(tool: &super::ToolSpec) -> Json {
    let parameters = json_of(&tool.parameters);
    json!({
        "type": "function",
        "function": {"name": &*tool.name, "description": &*tool.description, "parameters": parameters},
    })
}

/// A value as the JSON type of the wire.
fn json_of(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        // What has no JSON form is written as the rest of the system writes it.
        Value::Float(value) if !value.is_finite() => crate::value::non_finite_name(*value).into(),
        Value::Float(value) => (*value).into(),
        Value::String(value) => value.as_str().into(),
        Value::List(list) => list.iter().map(json_of).collect(),
        Value::Map(map) => {
            map.iter().map(|(key, value)| (key.clone(), json_of(value))).collect::<JsonMap<_, _>>().into()
        }
    }
}

/// Whether an object schema fits `strict`: every property required, no others allowed.
fn is_closed(schema: &Json) -> bool {
    let Some(properties) = schema.get("properties").and_then(Json::as_object) else { return false };
    let required: Vec<&str> =
        schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str).collect();
    schema.get("additionalProperties") == Some(&Json::Bool(false))
        && properties.keys().all(|name| required.contains(&name.as_str()))
}

/// A reply without a type is taken at its word; one with another type is not.
fn has_json_type(reply: &Reply) -> bool {
    let Some(kind) = reply.header("content-type") else { return true };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.is_empty() || kind == "application/json" || kind.ends_with("+json")
}

fn text_at(json: &Json, key: &str) -> Option<String> {
    json.get(key).and_then(Json::as_str).map(str::to_owned)
}

/// Text, or the text parts of a list of parts; `None` for null and for what is not text.
fn content_text(content: Option<&Json>) -> Option<String> {
    match content? {
        Json::String(text) => Some(text.clone()),
        Json::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text").and_then(Json::as_str)).collect();
            (!texts.is_empty()).then(|| texts.concat())
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_) => None,
    }
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

fn usage(usage: &Json) -> Option<Usage> {
    let number = |path: &str| usage.pointer(path).and_then(Json::as_u64);
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
        cache_write: part("/prompt_tokens_details/cache_write_tokens"),
        reasoning: part("/completion_tokens_details/reasoning_tokens"),
    })
}

/// The first words of what came instead of a completion, in one line.
fn start_of(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{:?}", &line[..line.floor_char_boundary(200)])
}

/// Settings that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenAiError {
    /// Not a base URL. The URL itself is not repeated: it may hold a password.
    #[error("`base_url` cannot be used: {why}")]
    BaseUrl {
        /// What is wrong with it.
        why: String,
    },
    /// A key with characters that no header can carry.
    #[error("the API key has characters that no HTTP header can carry; copy it again")]
    Key,
    /// An organisation or project with such characters.
    #[error("the value of `{name}` has characters that no HTTP header can carry")]
    Header {
        /// The header.
        name: &'static str,
    },
}
