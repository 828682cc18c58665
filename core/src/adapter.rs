//! The boundary between a model's raw words and the kernel (EC-4.2, V8): canonical message, or explicit rejection.
//!
//! Pure and deterministic by bytes: the same reply under the same profile always gives the same decision and the same raw
//! hash (EC-AD3). Nothing is coerced silently: any sign of an attempted call that does not parse completely rejects the
//! whole reply (EC-AD1, EC-AD5). This module never asks a model, never runs a program, and never sees a contract beyond
//! its strictness.

use std::sync::Arc;

use crate::canonical::{self, Canonical, Writer};
use crate::contract::ModelProfile;
use crate::contract::manifest::EXECUTE_PROGRAM;
use crate::ids::Digest;
use crate::message::{
    AdapterDecision, AgentMessage, MessageRole, ModelReply, ProtocolAdapterResult, RejectionCode, ToolInvocation,
};
use crate::value::{Map, Value};

/// Version of every rule in this file; hashed into contracts and transcripts.
pub const VERSION: &str = "a1";

/// Checks that a text compiles; `Err` holds the compiler's words.
pub type CompileCheck<'a> = &'a dyn Fn(&str) -> Result<(), String>;

/// How replies are read.
#[derive(Clone, Copy)]
pub enum Profile<'a> {
    /// Scripted models of the execution contract: native calls; `<call>…</call>` markup is recoverable; prose is prose.
    Stub,
    /// Dynamic calls: whatever form the program comes in, it becomes one `execute_program` call.
    Program {
        /// The language that was asked for: `lua` or `rhai`.
        language: &'a str,
        /// The compiler.
        compiles: CompileCheck<'a>,
    },
}

/// The profile of scripted models.
pub fn stub_profile() -> ModelProfile {
    ModelProfile { id: "stub".into(), calls: true, grammar: false, logits_mask: false }
}

/// The profile of dynamic calls.
pub fn program_profile() -> ModelProfile {
    ModelProfile { id: "program".into(), calls: true, grammar: false, logits_mask: false }
}

/// All profiles of this build (EC-P4a).
pub fn profiles() -> Arc<[ModelProfile]> {
    [stub_profile(), program_profile()].into()
}

/// Decides about one reply.
pub fn adapt(profile: Profile<'_>, strict_mode: bool, reply: &ModelReply) -> ProtocolAdapterResult {
    let decision = match profile {
        Profile::Stub => stub(reply, strict_mode),
        Profile::Program { language, compiles } => program(reply, language, compiles),
    };
    let decision = decision.unwrap_or_else(|(failure, detail)| AdapterDecision::Rejected { failure, detail });
    ProtocolAdapterResult { decision, raw_hash: raw_hash(reply), adapter_version: VERSION.into() }
}

type Rejected = (RejectionCode, String);

/// Digest of everything in a reply that is read here.
pub fn raw_hash(reply: &ModelReply) -> Digest {
    canonical::hash(reply)
}

impl Canonical for ModelReply {
    fn write(&self, out: &mut Writer<'_>) {
        out.map(|map| {
            map.field("content").option(self.content.as_deref());
            map.field("tool_calls").list(|list| {
                for call in &self.tool_calls {
                    list.item().map(|map| {
                        map.field("arguments").str(&call.arguments);
                        map.field("id").str(&call.id);
                        map.field("name").str(&call.name);
                    });
                }
            });
        });
    }
}

// The profile `stub`

fn stub(reply: &ModelReply, strict_mode: bool) -> Result<AdapterDecision, Rejected> {
    let content = reply.content.as_deref().unwrap_or_default();
    if !reply.tool_calls.is_empty() {
        return Ok(AdapterDecision::Native(message(content, native_calls(reply)?)));
    }
    if content.trim().is_empty() {
        return Err(empty());
    }
    match content.find(CALL_OPEN) {
        None => Ok(AdapterDecision::Native(message(content, Vec::new()))),
        Some(start) => recover(reply, content, start, strict_mode),
    }
}

const CALL_OPEN: &str = "<call>";
const CALL_CLOSE: &str = "</call>";

/// One call in markup: `<call>{"name": …, "arguments": {…}}</call>`. Legacy form, only without strict mode (V6).
fn recover(reply: &ModelReply, content: &str, start: usize, strict_mode: bool) -> Result<AdapterDecision, Rejected> {
    let mut calls = Vec::new();
    let prose = content[..start].trim();
    let mut rest = &content[start..];
    while let Some(inner) = rest.trim_start().strip_prefix(CALL_OPEN) {
        let Some(end) = inner.find(CALL_CLOSE) else {
            return Err((RejectionCode::TruncatedMarkup, format!("`{CALL_OPEN}` is never closed")));
        };
        calls.push(markup_call(reply, &inner[..end])?);
        rest = &inner[end + CALL_CLOSE.len()..];
    }
    if !rest.trim().is_empty() {
        return Err((RejectionCode::TruncatedMarkup, format!("text follows `{CALL_CLOSE}`")));
    }
    if strict_mode {
        let words = "the call stands in text; a strict contract accepts only structured calls";
        return Err((RejectionCode::RecoveryDisabled, words.to_owned()));
    }
    Ok(AdapterDecision::Recovered(message(prose, calls)))
}

fn markup_call(reply: &ModelReply, text: &str) -> Result<ToolInvocation, Rejected> {
    let Value::Map(mut fields) = parse_object(text, "the call")? else { return Err(not_an_object("the call")) };
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let arguments = match fields.remove("arguments") {
        Some(Value::Map(arguments)) => arguments,
        Some(_) => return Err(not_an_object("`arguments`")),
        None => Map::new(),
    };
    invocation(reply, String::new(), &name, arguments)
}

// The profile `program`

fn program(reply: &ModelReply, language: &str, compiles: CompileCheck<'_>) -> Result<AdapterDecision, Rejected> {
    let content = reply.content.as_deref().unwrap_or_default();
    if !reply.tool_calls.is_empty() {
        let mut calls = native_calls(reply)?;
        for call in calls.iter_mut().filter(|call| *call.name == *EXECUTE_PROGRAM) {
            complete_arguments(&mut call.arguments, language, compiles)?;
        }
        return Ok(AdapterDecision::Native(message(content, calls)));
    }
    let mut arguments = program_arguments(content, compiles)?;
    complete_arguments(&mut arguments, language, compiles)?;
    let call = invocation(reply, String::new(), EXECUTE_PROGRAM, arguments)?;
    Ok(AdapterDecision::Native(message("", vec![call])))
}

/// Arguments in canonical form: there is code, it compiles, and the language is the one that was asked for.
fn complete_arguments(arguments: &mut Map, language: &str, compiles: CompileCheck<'_>) -> Result<(), Rejected> {
    match arguments.get("code") {
        Some(Value::String(code)) if code.trim().is_empty() => return Err(empty()),
        Some(Value::String(_)) => {}
        None | Some(Value::Null) => return Err(empty()),
        Some(other) => {
            return Err((RejectionCode::Syntax, format!("`code` must be text, not {}", other.type_name())));
        }
    }
    match arguments.get("language") {
        None | Some(Value::Null) => {}
        Some(Value::String(named)) if is_language(named, language) => {}
        Some(other) => {
            return Err((RejectionCode::Syntax, format!("the program must be written in {language}, not {other}")));
        }
    }
    arguments.insert("language".to_owned(), language.into());
    let code = arguments.get("code").and_then(Value::as_str).unwrap_or_default();
    compiles(code).map_err(|words| (RejectionCode::Syntax, words))
}

/// A model may name the dialect or shout.
fn is_language(named: &str, language: &str) -> bool {
    named.eq_ignore_ascii_case(language) || (language == "lua" && named.eq_ignore_ascii_case("luau"))
}

/// The program in a text: the text itself, the first fenced block, or JSON with `code`, also inside a fence.
fn program_arguments(content: &str, compiles: CompileCheck<'_>) -> Result<Map, Rejected> {
    let text = content.trim();
    if text.is_empty() {
        return Err(empty());
    }
    let of_code = |code: &str| Map::from([("code".to_owned(), code.into())]);
    // A program may hold a fence in a string; only a text that does not compile is searched for one.
    if text.contains("```") && compiles(content).is_err() {
        let code = fenced(text)?;
        return Ok(structured(code)?.unwrap_or_else(|| of_code(code)));
    }
    Ok(structured(text)?.unwrap_or_else(|| of_code(content)))
}

/// `{"code": "…"}` and what a model may put beside it. `None`: the text is no such object.
fn structured(text: &str) -> Result<Option<Map>, Rejected> {
    let Some(inner) = text.trim().strip_prefix('{') else { return Ok(None) };
    let inner = inner.trim_start();
    let attempted = inner.starts_with("\"code\"") || inner.starts_with("\"language\"");
    match Value::from_json(text) {
        Ok(Value::Map(mut map)) if attempted || map.contains_key("code") => {
            map.retain(|key, _| key == "code" || key == "language");
            Ok(Some(map))
        }
        Err(error) if attempted => {
            Err((RejectionCode::ArgumentsNotJson, format!("the reply is not valid JSON: {error}")))
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

/// The first fenced block, without its info word. A fence that is opened and never closed is a truncated reply.
fn fenced(text: &str) -> Result<&str, Rejected> {
    let unclosed = || (RejectionCode::TruncatedMarkup, "the code block is never closed".to_owned());
    let (_, block) = text.split_once("```").ok_or_else(unclosed)?;
    let first_line = block.split('\n').next().unwrap_or_default();
    if let Some((code, _)) = first_line.split_once("```") {
        return Ok(code);
    }
    let (_, body) = block.split_once('\n').ok_or_else(unclosed)?;
    let mut end = 0;
    for line in body.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            return Ok(&body[..end]);
        }
        end += line.len();
    }
    Err(unclosed())
}

// Shared

/// All structured calls, or the rejection of the whole reply (EC-AD5).
fn native_calls(reply: &ModelReply) -> Result<Vec<ToolInvocation>, Rejected> {
    let mut calls: Vec<ToolInvocation> = Vec::with_capacity(reply.tool_calls.len());
    for raw in &reply.tool_calls {
        let arguments = match raw.arguments.trim() {
            "" => Map::new(),
            text => match parse_object(text, "the call's arguments")? {
                Value::Map(arguments) => arguments,
                Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_) => {
                    return Err(not_an_object("the call's arguments"));
                }
            },
        };
        if !raw.id.is_empty() && calls.iter().any(|call| call.id == raw.id) {
            return Err((RejectionCode::DuplicateCallId, format!("two calls have the id `{}`", raw.id)));
        }
        calls.push(invocation(reply, raw.id.clone(), &raw.name, arguments)?);
    }
    Ok(calls)
}

fn invocation(reply: &ModelReply, id: String, name: &str, arguments: Map) -> Result<ToolInvocation, Rejected> {
    let name = name.trim();
    if name.is_empty() {
        return Err((RejectionCode::MissingName, "a call has no tool name".to_owned()));
    }
    let source_model = reply.model.as_deref().unwrap_or_default().into();
    Ok(ToolInvocation { id, name: name.into(), arguments, source_model, raw_payload: None })
}

fn parse_object(text: &str, what: &str) -> Result<Value, Rejected> {
    let value = Value::from_json(text)
        .map_err(|error| (RejectionCode::ArgumentsNotJson, format!("{what} are not valid JSON: {error}")))?;
    if value.as_map().is_none() {
        return Err(not_an_object(what));
    }
    Ok(value)
}

fn not_an_object(what: &str) -> Rejected {
    (RejectionCode::ArgumentsNotObject, format!("{what} must be a JSON object"))
}

fn empty() -> Rejected {
    (RejectionCode::Empty, "the reply holds no program and no text".to_owned())
}

fn message(content: &str, tool_calls: Vec<ToolInvocation>) -> AgentMessage {
    AgentMessage { role: MessageRole::Assistant, content: content.to_owned(), tool_calls, tool_call_id: None }
}
