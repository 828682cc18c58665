//! Dialects: what each vendor's wire format makes of a request, and what it says in reply (model-wire-formats.md 1 to 7).
//!
//! Each dialect is two pure mappings: a request to a body, and a body to a [`ModelReply`]. What arrives in pieces is put
//! together into the body that would have come whole, so that there is one reader for both. Nothing here connects,
//! waits, retries, or interprets what a model said: whether a text is a program is the adapter's question.
//!
//! They are ours, and no client crate's (genai, async-openai), because the classes of failures need each vendor's status,
//! headers and raw words, which those crates fold into texts of their own (keys and addresses included), and because a
//! reply must have the same bytes each time for its hash. They would also bring a second HTTP stack's worth of
//! dependencies for what are some two hundred lines for a vendor here.

use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json, json};

use super::target::Params;
use super::{ModelReply, ModelRequest, Output, Piece, PieceSink, ToolSpec};
use crate::provider::http::Hidden;
use crate::value::Value;

mod anthropic;
mod chat;
mod gemini;
mod ollama;
mod responses;

/// Whose wire format a target speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// OpenAI chat completions.
    OpenAi,
    /// OpenAI Responses.
    OpenAiResponses,
    /// Servers that speak chat completions too: vLLM, llama.cpp, LM Studio, gateways.
    OpenAiCompatible,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini.
    Gemini,
    /// Ollama's own chat.
    Ollama,
}

impl Vendor {
    /// Where the vendor answers; `None` where that must be said.
    pub fn base_url(self) -> Option<&'static str> {
        match self {
            Self::OpenAi | Self::OpenAiResponses => Some("https://api.openai.com/v1"),
            Self::OpenAiCompatible => None,
            Self::Anthropic => Some("https://api.anthropic.com"),
            Self::Gemini => Some("https://generativelanguage.googleapis.com"),
            Self::Ollama => Some("http://localhost:11434"),
        }
    }

    /// What follows the base URL. A base URL that has it already is taken as it is.
    pub(super) fn path(self, model: &str, streams: bool) -> String {
        match self {
            Self::OpenAi | Self::OpenAiCompatible => "chat/completions".into(),
            Self::OpenAiResponses => "responses".into(),
            Self::Anthropic => "v1/messages".into(),
            Self::Gemini => {
                let folder = if model.contains('/') { "" } else { "models/" };
                let how = if streams { "streamGenerateContent?alt=sse" } else { "generateContent" };
                format!("v1beta/{folder}{}:{how}", in_path(model))
            }
            Self::Ollama => "api/chat".into(),
        }
    }

    /// How the key goes out: the header, and what stands before the key.
    pub(super) fn key_header(self) -> (&'static str, &'static str) {
        match self {
            Self::OpenAi | Self::OpenAiResponses | Self::OpenAiCompatible | Self::Ollama => {
                ("authorization", "Bearer ")
            }
            Self::Anthropic => ("x-api-key", ""),
            Self::Gemini => ("x-goog-api-key", ""),
        }
    }

    /// How a program is asked for when nothing is said: as the model can best be held to it. Ollama can force no tool, but
    /// holds every model to a schema.
    pub(super) fn output(self) -> Output {
        match self {
            Self::OpenAi | Self::OpenAiResponses | Self::OpenAiCompatible | Self::Anthropic | Self::Gemini => {
                Output::Tool
            }
            Self::Ollama => Output::JsonSchema,
        }
    }

    /// How a reply comes in pieces.
    pub(super) fn framing(self) -> Framing {
        match self {
            Self::OpenAi | Self::OpenAiResponses | Self::OpenAiCompatible | Self::Anthropic | Self::Gemini => {
                Framing::Events
            }
            Self::Ollama => Framing::Lines,
        }
    }
}

/// A model's name where it stands in a path.
fn in_path(model: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:@".contains(&byte);
    model.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// What separates the pieces of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON value a line.
    Lines,
}

impl Framing {
    /// Whether a content type is the stream's own.
    pub fn is_spoken_by(self, kind: &str) -> bool {
        match self {
            Self::Events => kind == "text/event-stream",
            Self::Lines => ["application/x-ndjson", "application/ndjson", "application/jsonl"].contains(&kind),
        }
    }
}

/// What is the same for all requests to a target.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    /// Whose wire format.
    pub vendor: Vendor,
    /// The model's name on the wire.
    pub model: String,
    /// How a program is asked for.
    pub output: Output,
    /// The window that a local server is told to give the model.
    pub context_size: Option<u32>,
    /// What the model is told beside the words, without what it refuses.
    pub params: Params,
    /// What it refuses.
    pub omitted: Vec<&'static str>,
}

impl Wire {
    /// Bound of the reply: the contract's and the options', whichever is less.
    pub fn max_output(&self, request: &ModelRequest) -> Option<u32> {
        let bounds = [request.max_output_tokens, self.params.max_output_tokens.flatten()];
        bounds.into_iter().flatten().min()
    }

    /// The tool that the reply must call, or whose arguments it must be.
    pub fn only_tool<'a>(&self, request: &'a ModelRequest) -> Option<&'a ToolSpec> {
        match &*request.tools {
            [only] => Some(only),
            _none_or_several => None,
        }
    }

    /// The tool whose arguments the reply's text is: the schema that the text has to follow is theirs.
    pub fn text_is_call<'a>(&self, request: &'a ModelRequest) -> Option<&'a Arc<str>> {
        let only = self.only_tool(request).filter(|_| self.output == Output::JsonSchema);
        only.map(|tool| &tool.name)
    }

    /// The request on the wire.
    pub fn body(&self, request: &ModelRequest, streams: bool) -> Json {
        let mut body = match self.vendor {
            Vendor::OpenAi | Vendor::OpenAiCompatible => chat::body(self, request, streams),
            Vendor::OpenAiResponses => responses::body(self, request),
            Vendor::Anthropic => anthropic::body(self, request),
            Vendor::Gemini => gemini::body(self, request),
            Vendor::Ollama => ollama::body(self, request),
        };
        for (name, value) in self.params.extra.iter() {
            put_extra(&mut body, name, value.as_ref());
        }
        // The last word is ours: the reply is read as it was asked for.
        match self.vendor {
            Vendor::OpenAi | Vendor::OpenAiResponses | Vendor::OpenAiCompatible | Vendor::Anthropic => {
                if streams {
                    body["stream"] = true.into();
                }
            }
            // The path says it.
            Vendor::Gemini => {}
            // In pieces unless it is told otherwise.
            Vendor::Ollama => body["stream"] = streams.into(),
        }
        body
    }

    /// The headers that depend on the vendor alone, before the target's own.
    pub fn headers(&self) -> Vec<(&'static str, &'static str)> {
        match self.vendor {
            Vendor::OpenAi | Vendor::OpenAiResponses | Vendor::OpenAiCompatible | Vendor::Gemini | Vendor::Ollama => {
                Vec::new()
            }
            Vendor::Anthropic => vec![("anthropic-version", anthropic::version(&self.params))],
        }
    }

    /// A whole reply. Its text becomes the call that it stands for.
    pub fn read(&self, request: &ModelRequest, body: &Json) -> Result<ModelReply, Fault> {
        let mut reply = match self.vendor {
            Vendor::OpenAi | Vendor::OpenAiCompatible => chat::read(body)?,
            Vendor::OpenAiResponses => responses::read(body)?,
            Vendor::Anthropic => anthropic::read(body)?,
            Vendor::Gemini => gemini::read(body)?,
            Vendor::Ollama => ollama::read(self, request, body)?,
        };
        let usable = reply.content.as_deref().is_some_and(|text| !text.trim().is_empty());
        if usable
            && reply.tool_calls.is_empty()
            && let Some(name) = self.text_is_call(request)
        {
            let arguments = reply.content.take().unwrap_or_default();
            reply.tool_calls.push(super::RawToolCall { id: String::new(), name: name.to_string(), arguments });
        }
        reply.omitted.clone_from(&self.omitted);
        Ok(reply)
    }

    /// What puts a reply together that comes in pieces.
    pub fn assembly(&self) -> Box<dyn Assembly> {
        match self.vendor {
            Vendor::OpenAi | Vendor::OpenAiCompatible => Box::new(chat::Pieces::default()),
            Vendor::OpenAiResponses => Box::new(responses::Pieces::default()),
            Vendor::Anthropic => Box::new(anthropic::Pieces::default()),
            Vendor::Gemini => Box::new(gemini::Pieces::default()),
            Vendor::Ollama => Box::new(ollama::Pieces::default()),
        }
    }
}

/// Puts the pieces of a reply together.
pub(super) trait Assembly: Send {
    /// Takes one event; `true` when it was the last.
    fn take(&mut self, event: Json, show: &mut Show) -> Result<bool, Fault>;

    /// The body that would have come whole; `None` when the stream broke off. `marked` is whether it said that it ends.
    fn whole(self: Box<Self>, marked: bool) -> Option<Json>;
}

/// Why a reply is none.
#[derive(Debug)]
pub(super) enum Fault {
    /// Not in the wire format, or with nothing that could be used: what is wrong, and what shows it. That is whole here,
    /// because a key that is cut is not found any more.
    Invalid(String, Option<Json>),
    /// The window is full.
    Overflow,
    /// The server says in the middle of a reply that it failed: its words.
    Refused(Json),
}

impl Fault {
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into(), None)
    }

    /// The same, with what came.
    pub fn seen(what: impl Into<String>, came: impl Into<Json>) -> Self {
        Self::Invalid(what.into(), Some(came.into()))
    }
}

/// Shows pieces to whoever listens, without keys, also where a key comes in several pieces.
pub(super) struct Show {
    sink: Option<PieceSink>,
    hidden: Hidden,
    text_is_call: bool,
    held: [String; 3],
}

impl Show {
    pub fn new(sink: Option<PieceSink>, hidden: Hidden, text_is_call: bool) -> Self {
        Self { sink, hidden, text_is_call, held: Default::default() }
    }

    /// Of the reply's text.
    pub fn text(&mut self, text: &str) {
        self.put(if self.text_is_call { 1 } else { 0 }, text);
    }

    /// Of a call's arguments.
    pub fn arguments(&mut self, text: &str) {
        self.put(1, text);
    }

    /// Of what the model thinks.
    pub fn reasoning(&mut self, text: &str) {
        self.put(2, text);
    }

    /// Everything that was held back: the reply is whole.
    pub fn end(&mut self) {
        for kind in 0..3 {
            let held = std::mem::take(&mut self.held[kind]);
            self.hand_over(kind, &held);
        }
    }

    fn put(&mut self, kind: usize, text: &str) {
        if self.sink.is_none() || text.is_empty() {
            return;
        }
        let mut held = std::mem::take(&mut self.held[kind]);
        held.push_str(text);
        let text = self.hidden.scrub(&held).into_owned();
        // What may be the beginning of a key waits for what follows.
        let begins = |at: usize| self.hidden.keys.iter().any(|key| key.expose().starts_with(&text[at..]));
        let longest = self.hidden.keys.iter().map(|key| key.expose().len()).max().unwrap_or(0);
        let near_end = text.len().saturating_sub(longest)..text.len();
        let keep = near_end.filter(|at| text.is_char_boundary(*at)).find(|at| begins(*at)).unwrap_or(text.len());
        self.hand_over(kind, &text[..keep]);
        self.held[kind] = text[keep..].to_owned();
    }

    fn hand_over(&self, kind: usize, text: &str) {
        let Some(sink) = &self.sink else { return };
        sink.put(match kind {
            0 => Piece::Text(text),
            1 => Piece::Arguments(text),
            _ => Piece::Reasoning(text),
        });
    }
}

/// A field that has no name in the options: set, merged into what is there, or taken away.
fn put_extra(body: &mut Json, name: &str, value: Option<&Value>) {
    let Some(fields) = body.as_object_mut() else { return };
    match (fields.get_mut(name), value) {
        (_, None | Some(Value::Null)) => {
            fields.remove(name);
        }
        (Some(there @ Json::Object(_)), Some(Value::Map(inner))) => {
            for (name, value) in inner {
                put_extra(there, name, Some(value));
            }
        }
        (_, Some(value)) => {
            fields.insert(name.to_owned(), json_of(value));
        }
    }
}

/// A value as the JSON type of the wire.
pub(super) fn json_of(value: &Value) -> Json {
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

/// Sets a field that was given.
fn set<T: Into<Json>>(body: &mut Json, name: &str, value: Option<T>) {
    if let Some(value) = value {
        body[name] = value.into();
    }
}

fn text_at(json: &Json, key: &str) -> Option<String> {
    json.get(key).and_then(Json::as_str).map(str::to_owned)
}

fn number_at(json: &Json, path: &str) -> Option<u64> {
    json.pointer(path).and_then(Json::as_u64)
}

/// Appends the text at `key`, and says which it was.
fn append<'a>(to: &mut String, from: &'a Json, key: &str) -> &'a str {
    let text = from.get(key).and_then(Json::as_str).unwrap_or_default();
    to.push_str(text);
    text
}

/// Text that is not blank, as JSON; null otherwise.
fn text_or_null(text: String) -> Json {
    if text.is_empty() { Json::Null } else { json!(text) }
}
