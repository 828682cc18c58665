//! The boundary between a model's raw words and the kernel (EC-4.2, V8): canonical message, or explicit rejection.
//!
//! Pure and deterministic by bytes: the same reply under the same profile always gives the same decision and the same raw
//! hash (EC-AD3). Nothing is coerced silently: any sign of an attempted call that does not parse completely rejects the
//! whole reply (EC-AD1, EC-AD5). This module never asks a model, never runs a program, and never sees a contract beyond
//! its strictness.

use std::sync::Arc;

use crate::canonical::{self, Canonical, Writer};
use crate::contract::ModelProfile;
use crate::ids::Digest;
use crate::message::{
    AdapterDecision, AgentMessage, CallFormat, MessageRole, ModelReply, ProtocolAdapterResult, RejectionCode,
    ToolInvocation,
};
use crate::value::{Map, Value};

/// Version of the rules in this file; hashed into contracts and transcripts. Rules of one profile that change alone get a
/// version of their own in [`Profile::version`].
pub const VERSION: &str = "a1";

/// Checks that a text compiles; `Err` holds the compiler's words.
pub type CompileCheck<'a> = &'a dyn Fn(&str) -> Result<(), String>;

/// How replies are read: which form of a call is canonical, and what else is recovered where the contract is not strict
/// (V6). Named by how a model is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Scripted models of the execution contract: native calls; `<call>…</call>` markup is recoverable; prose is prose.
    Stub,
    /// Whoever writes programs for Cadenza: the embedded library, callables, scripted models. Whatever form the program
    /// comes in, it is canonical, and every text is meant as a program.
    Program,
    /// Models that are asked for a tool call: that is canonical, and a program in text is recovered.
    Tool,
    /// Models that are asked for JSON by the tool's schema: that is canonical, and any other form is recovered.
    Json,
    /// Models that are asked for text: a program, bare or in a fence, is canonical, and any other form is recovered.
    Text,
    /// Local models behind a grammar: a native call and nothing else, strict or not.
    Gated,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Stub, Self::Program, Self::Tool, Self::Json, Self::Text, Self::Gated];

    /// The name in contracts and transcripts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stub => "stub",
            Self::Program => "program",
            Self::Tool => "tool",
            Self::Json => "json",
            Self::Text => "text",
            Self::Gated => "gated",
        }
    }

    /// The profile of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == name)
    }

    /// In which form a model is asked for a call; what prompts say and providers ask for (EC-DG2).
    pub fn format(self) -> CallFormat {
        match self {
            Self::Stub | Self::Tool | Self::Gated => CallFormat::Tool,
            Self::Program => CallFormat::Any,
            Self::Json => CallFormat::Json,
            Self::Text => CallFormat::Text,
        }
    }

    /// Version of its rules.
    pub fn version(self) -> &'static str {
        match self {
            Self::Stub => VERSION,
            // What is thought aloud before an answer is no part of it.
            Self::Program | Self::Tool | Self::Json | Self::Text | Self::Gated => "a2",
        }
    }

    /// What PRECHECK and the factory know of it (EC-P4a).
    pub fn model_profile(self) -> ModelProfile {
        let gated = self == Self::Gated;
        ModelProfile {
            id: self.as_str().into(),
            adapter_version: self.version().into(),
            format: self.format(),
            calls: true,
            grammar: gated,
            logits_mask: gated,
            strict: gated,
        }
    }
}

/// What stands behind a program in a reply: the call that it becomes, and who judges it.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The tool that runs programs.
    pub tool: &'a str,
    /// The language that was asked for: `lua` or `rhai`.
    pub language: &'a str,
    /// The compiler.
    pub compiles: CompileCheck<'a>,
}

/// Version of the rules of the profile with that name; [`VERSION`] for one that does not exist.
pub fn version_of(profile: &str) -> &'static str {
    Profile::from_name(profile).map_or(VERSION, Profile::version)
}

/// All profiles of this build (EC-P4a).
pub fn profiles() -> Arc<[ModelProfile]> {
    Profile::ALL.map(Profile::model_profile).into()
}

/// Decides about one reply.
pub fn adapt(profile: Profile, wanted: &Wanted<'_>, strict_mode: bool, reply: &ModelReply) -> ProtocolAdapterResult {
    let decision = match profile {
        Profile::Stub => stub(reply, strict_mode),
        Profile::Program => program(reply, wanted),
        Profile::Tool => tool(reply, wanted, strict_mode),
        Profile::Json => json(reply, wanted, strict_mode),
        Profile::Text => text(reply, wanted, strict_mode),
        Profile::Gated => gated(reply, wanted),
    };
    let decision = decision.unwrap_or_else(|(failure, detail)| AdapterDecision::Rejected { failure, detail });
    ProtocolAdapterResult { decision, raw_hash: raw_hash(reply), adapter_version: profile.version().into() }
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

fn program(reply: &ModelReply, wanted: &Wanted<'_>) -> Result<AdapterDecision, Rejected> {
    if !reply.tool_calls.is_empty() {
        return Ok(AdapterDecision::Native(called(reply, wanted)?));
    }
    let answer = answer(reply.content.as_deref().unwrap_or_default(), wanted.compiles);
    written(answer, reply, wanted).map(|(_, message)| AdapterDecision::Native(message))
}

// The profiles of models

fn tool(reply: &ModelReply, wanted: &Wanted<'_>, strict_mode: bool) -> Result<AdapterDecision, Rejected> {
    if !reply.tool_calls.is_empty() {
        return Ok(AdapterDecision::Native(called(reply, wanted)?));
    }
    from_text(reply, wanted, strict_mode, &[])
}

fn json(reply: &ModelReply, wanted: &Wanted<'_>, strict_mode: bool) -> Result<AdapterDecision, Rejected> {
    if !reply.tool_calls.is_empty() {
        // The schema is that of the tool's arguments: a provider may hand the text over as the call that it is.
        return Ok(AdapterDecision::Native(called(reply, wanted)?));
    }
    from_text(reply, wanted, strict_mode, &[Form::Json])
}

fn text(reply: &ModelReply, wanted: &Wanted<'_>, strict_mode: bool) -> Result<AdapterDecision, Rejected> {
    if !reply.tool_calls.is_empty() {
        let message = called(reply, wanted)?;
        return if strict_mode { Err(recovery_disabled()) } else { Ok(AdapterDecision::Recovered(message)) };
    }
    from_text(reply, wanted, strict_mode, &[Form::Bare, Form::Fenced])
}

fn gated(reply: &ModelReply, wanted: &Wanted<'_>) -> Result<AdapterDecision, Rejected> {
    if !reply.tool_calls.is_empty() {
        return Ok(AdapterDecision::Native(called(reply, wanted)?));
    }
    from_text(reply, wanted, true, &[])
}

/// What a text without native calls is: a call in a canonical form, one to recover, a broken one, or prose (V8).
fn from_text(
    reply: &ModelReply,
    wanted: &Wanted<'_>,
    strict_mode: bool,
    canonical: &[Form],
) -> Result<AdapterDecision, Rejected> {
    let content = reply.content.as_deref().unwrap_or_default();
    let answer = answer(content, wanted.compiles);
    match written(answer, reply, wanted) {
        Ok((form, message)) if canonical.contains(&form) => Ok(AdapterDecision::Native(message)),
        Ok(_) if strict_mode => Err(recovery_disabled()),
        Ok((_, message)) => Ok(AdapterDecision::Recovered(message)),
        Err(rejected) if answer.trim().is_empty() || looks_like_a_program(answer) => Err(rejected),
        Err(_) => Ok(AdapterDecision::Native(message(content, Vec::new()))),
    }
}

/// Whether anything in a text says that it is meant as a program or as a call. Rather too often than not: who is told what
/// does not compile can mend it.
fn looks_like_a_program(text: &str) -> bool {
    const SIGNS: [&str; 9] = ["```", "{", "=", "return ", "args[", "kwargs", "context.", "<call", "<tool"];
    SIGNS.iter().any(|sign| text.contains(sign))
}

fn recovery_disabled() -> Rejected {
    let words = "the program is not in the form that was asked for; a strict contract accepts no other";
    (RejectionCode::RecoveryDisabled, words.to_owned())
}

// Programs in replies

/// The form in which a program stands in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The text is the program.
    Bare,
    /// In a fence.
    Fenced,
    /// The JSON that the tool's schema asks for, alone.
    Json,
    /// JSON with more in it, or in a fence.
    LooseJson,
}

/// The structured calls of a reply, those of the wanted tool with a program that compiles.
fn called(reply: &ModelReply, wanted: &Wanted<'_>) -> Result<AgentMessage, Rejected> {
    let mut calls = native_calls(reply)?;
    for call in calls.iter_mut().filter(|call| *call.name == *wanted.tool) {
        complete_arguments(&mut call.arguments, wanted)?;
    }
    Ok(message(reply.content.as_deref().unwrap_or_default(), calls))
}

/// A text without what was thought aloud before it: servers that do not know a model's marks leave them in its text, and
/// a draft in there is no program. Prompts may end with the opening mark; then only the closing one comes.
fn answer<'a>(content: &'a str, compiles: CompileCheck<'_>) -> &'a str {
    const OPEN: &str = "<think>";
    const CLOSE: &str = "</think>";
    let opened = content.trim_start().starts_with(OPEN);
    let end = content.find(CLOSE).map(|at| at + CLOSE.len());
    match end {
        None if opened => "",
        // A program may hold the mark in a string.
        Some(end) if opened || compiles(content).is_err() => &content[end..],
        Some(_) | None => content,
    }
}

/// The program in a text as a call of the wanted tool.
fn written(answer: &str, reply: &ModelReply, wanted: &Wanted<'_>) -> Result<(Form, AgentMessage), Rejected> {
    let (form, mut arguments) = program_arguments(answer, wanted.compiles)?;
    complete_arguments(&mut arguments, wanted)?;
    let call = invocation(reply, String::new(), wanted.tool, arguments)?;
    Ok((form, message("", vec![call])))
}

/// Arguments in canonical form: there is code, it compiles, and the language is the one that was asked for.
fn complete_arguments(arguments: &mut Map, wanted: &Wanted<'_>) -> Result<(), Rejected> {
    let Wanted { language, compiles, .. } = *wanted;
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
fn program_arguments(content: &str, compiles: CompileCheck<'_>) -> Result<(Form, Map), Rejected> {
    let text = content.trim();
    if text.is_empty() {
        return Err(empty());
    }
    let of_code = |code: &str| Map::from([("code".to_owned(), code.into())]);
    // A program may hold a fence in a string; only a text that does not compile is searched for one.
    if text.contains("```") && compiles(content).is_err() {
        let code = fenced(text)?;
        let inside = structured(code)?.map(|(_, arguments)| (Form::LooseJson, arguments));
        return Ok(inside.unwrap_or_else(|| (Form::Fenced, of_code(code))));
    }
    Ok(structured(text)?.unwrap_or_else(|| (Form::Bare, of_code(content))))
}

/// `{"code": "…"}` and what a model may put beside it. `None`: the text is no such object.
fn structured(text: &str) -> Result<Option<(Form, Map)>, Rejected> {
    let Some(inner) = text.trim().strip_prefix('{') else { return Ok(None) };
    let inner = inner.trim_start();
    let attempted = inner.starts_with("\"code\"") || inner.starts_with("\"language\"");
    match Value::from_json(text) {
        Ok(Value::Map(mut map)) if attempted || map.contains_key("code") => {
            let fields = map.len();
            map.retain(|key, _| key == "code" || key == "language");
            let form = if map.len() == fields { Form::Json } else { Form::LooseJson };
            Ok(Some((form, map)))
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
