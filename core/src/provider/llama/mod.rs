//! A local model: a GGUF file in this process, through llama.cpp, behind a token gate.
//!
//! What it replies to a request with tools is a call of one of them, whole and well-formed, whatever its weights are: the
//! grammar is made from the tools, every token is chosen within it, and nothing leaves before the call is complete. What
//! the program in the call says is the model's; whether it compiles is the adapter's question. Nothing is sent anywhere.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{Instant, SystemTime};

mod chat;
mod engine;
pub mod gate;
pub mod gguf;
pub mod grammar;
pub mod schema;
mod shared;

use engine::{Engine, Form, Loading, Wanted, Written};
use gate::Sampling;
use gguf::{Checked, GgufError};
use schema::Callable;
use shared::Shared;

use super::{
    ModelReply, ModelRequest, Output, Provider, ProviderError, ProviderErrorClass, RawToolCall, ReplyFuture, ToolSpec,
    Usage, wait,
};
use crate::cancel::CancelToken;
use crate::fork::PerProcess;
use crate::ids::Digest;
use crate::message::{AgentMessage, GrammarRef, MessageRole};
use crate::program::Language;
use crate::value::Value;
use crate::warning;

use chat::Turn;

/// Tokens of a reply where nothing else is said.
pub const DEFAULT_OUTPUT_TOKENS: u32 = 2048;

/// The tool whose argument `code` is a program.
const PROGRAM_TOOL: &str = "execute_program";

/// How to load and ask a local model.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaSettings {
    /// Name in logs, such as `llama:/models/small.gguf`.
    pub name: String,
    /// The GGUF file; of a model in several files, the first.
    pub path: PathBuf,
    /// Tokens that prompt and reply may have together; `None` takes what the model was trained for, at most 8,192.
    pub context_size: Option<u32>,
    /// Threads that compute; `None` takes all cores.
    pub threads: Option<u32>,
    /// Layers on a GPU, in a build of llama.cpp with one; `None` is llama.cpp's own choice.
    pub gpu_layers: Option<u32>,
    /// Begins the random numbers of each reply, together with the attempt. Without effect at temperature 0.
    pub seed: i64,
    /// 0 takes the likeliest token; above it, tokens are drawn.
    pub temperature: f32,
    /// Tokens are drawn from the likeliest that together are as likely as this; 1 leaves none out.
    pub top_p: f32,
    /// Above 1, what was written lately becomes less likely; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Most tokens of a reply; a request may set a smaller bound.
    pub max_output_tokens: u32,
    /// In what form a call is written: as the call, as its arguments, or as a program in a fenced block.
    pub output: Output,
    /// Whether the gate stands. Without it the model writes what it likes, as any other model does.
    pub gated: bool,
    /// Names of what was asked for and means nothing to a local model; every reply says so (S18).
    pub omitted: Vec<&'static str>,
}

impl LlamaSettings {
    /// The model in that file, with everything else by default.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            name: format!("llama:{}", path.display()),
            path,
            context_size: None,
            threads: None,
            gpu_layers: None,
            seed: 0,
            temperature: 0.0,
            top_p: 1.0,
            repeat_penalty: 1.0,
            max_output_tokens: DEFAULT_OUTPUT_TOKENS,
            output: Output::Tool,
            gated: true,
            omitted: Vec::new(),
        }
    }
}

/// A local model.
pub struct Llama {
    settings: LlamaSettings,
    fingerprint: Arc<str>,
    engine: Arc<Engine>,
    window: u32,
}

impl Llama {
    /// Checks the file, loads it and waits for that. Models that are loaded with equal settings share their memory, and
    /// are asked one after the other.
    pub fn new(settings: LlamaSettings) -> Result<Self, LlamaError> {
        let refused = |why: LlamaProblem| LlamaError { path: settings.path.display().to_string(), why };
        let LlamaSettings { output, temperature, top_p, repeat_penalty, seed, .. } = settings;
        let sampling = [temperature, top_p, repeat_penalty];
        if sampling.iter().any(|number| !number.is_finite() || *number < 0.0) || repeat_penalty == 0.0 {
            return Err(refused(LlamaProblem::Sampling));
        }
        if settings.max_output_tokens == 0 || settings.context_size == Some(0) || settings.threads == Some(0) {
            return Err(refused(LlamaProblem::Zero));
        }
        if !settings.omitted.is_empty() {
            warning::warn(format!(
                "{} is not told {}, which means nothing to a local model; take that away",
                settings.name,
                settings.omitted.join(", ")
            ));
        }
        let checked = gguf::check(&settings.path).map_err(|error| refused(LlamaProblem::File(error)))?;
        let engine = loaded(&settings, checked).map_err(|why| refused(LlamaProblem::Load(why)))?;
        let (digest, window, version) = (checked.digest, engine.facts.window, grammar::VERSION);
        let form = if settings.gated { output.as_str() } else { "free" };
        // The path is no part of it: a file that was moved is the same model.
        let fingerprint = format!("llama:{digest}#{window}#{form}#{version}#{sampling:?}#{seed}").into();
        Ok(Self { window, fingerprint, engine, settings })
    }

    /// Tokens that prompt and reply may have together.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Tokens that were evaluated since the model was loaded, for everyone who asks it: prompts without what was reused,
    /// and replies. What reuse and cancellation save is measured by it.
    pub fn evaluated_tokens(&self) -> u64 {
        self.engine.evaluated.load(std::sync::atomic::Ordering::Relaxed)
    }

    async fn ask(&self, request: &ModelRequest, cancel: &CancelToken) -> Result<ModelReply, ProviderError> {
        // Without tools nothing is a call, so there is nothing that the grammar of a call would bind.
        if let Some(agreed) = request.grammar
            && !request.tools.is_empty()
            && self.grammar(&request.tools, request.language).is_none_or(|own| own.sha256 != agreed)
        {
            let message = format!("{}: the contract names another grammar than this model has", self.settings.name);
            return Err(ProviderError::new(ProviderErrorClass::ModelError, message));
        }
        let deadline = Instant::now().checked_add(request.timeout);
        let deadline = deadline.unwrap_or_else(|| Instant::now() + std::time::Duration::from_secs(1 << 30));
        // Set when the waiter gives up for any reason: the model's thread then leaves the request at the next token.
        let written = self.engine.ask(self.wanted(request), cancel.clone(), deadline)?;
        let name = self.settings.name.clone();
        let gone = move |_| ProviderError::new(ProviderErrorClass::ModelError, format!("{name}: its thread ended"));
        let work = async move { written.await.map_err(gone)? };
        let written = wait::bounded(&self.settings.name, request.timeout, cancel, work).await;
        let written = written.map_err(|error| match error.class {
            // Whichever clock was first, the words are the same.
            ProviderErrorClass::Timeout => ProviderError::timed_out(&self.settings.name, request.timeout),
            _ => error,
        });
        self.reply(request, written?)
    }

    fn wanted(&self, request: &ModelRequest) -> Wanted {
        let most = self.settings.max_output_tokens;
        Wanted {
            turns: self.turns(request),
            form: self.settings.gated.then(|| self.form(request)),
            max_output_tokens: request.max_output_tokens.map_or(most, |asked| asked.min(most)),
            sampling: Sampling {
                temperature: self.settings.temperature,
                top_p: self.settings.top_p,
                repeat_penalty: self.settings.repeat_penalty,
            },
            // Another attempt at the same call is not the same reply again.
            seed: self.settings.seed.wrapping_add(i64::from(request.attempt.saturating_sub(1))).cast_unsigned(),
        }
    }

    /// What a reply to this request may be: also text, once the kernel would hand it out (V24).
    fn shape(&self, request: &ModelRequest) -> Shape {
        match self.first_shape(&request.tools) {
            Shape::Call | Shape::Arguments | Shape::Program if !request.hold_text => Shape::CallOrProse,
            shape => shape,
        }
    }

    /// What it is before any call was validated.
    ///
    /// The forms without a tool's name fit only where one tool is offered, and text only where that runs programs.
    fn first_shape(&self, tools: &[ToolSpec]) -> Shape {
        match (self.settings.output, tools) {
            (_, []) => Shape::Prose,
            (Output::Text, [only]) if *only.name == *PROGRAM_TOOL => Shape::Program,
            (Output::JsonSchema, [_]) => Shape::Arguments,
            (Output::Tool | Output::JsonSchema | Output::Text, _) => Shape::Call,
        }
    }

    fn form(&self, request: &ModelRequest) -> Form {
        let shape = self.shape(request);
        let key = grammar_source(shape, &request.tools, request.language);
        let (tools, opening, name) = (request.tools.clone(), opening(request.language), self.settings.name.clone());
        let draw = move || {
            let tools: Vec<Callable<'_>> = tools.iter().map(callable).collect();
            let drawn = match shape {
                Shape::Prose => schema::prose_grammar().map_err(|error| error.to_string()),
                Shape::CallOrProse => schema::call_or_prose_grammar(&tools).map_err(|error| error.to_string()),
                Shape::Call => schema::call_grammar(&tools).map_err(|error| error.to_string()),
                Shape::Arguments => schema::arguments_grammar(&tools).map_err(|error| error.to_string()),
                Shape::Program => schema::text_grammar(&opening).map_err(|error| error.to_string()),
            };
            drawn.map_err(|why| ProviderError::new(ProviderErrorClass::ModelError, format!("{name}: {why}")))
        };
        Form { key, draw: Box::new(draw) }
    }

    fn turns(&self, request: &ModelRequest) -> Vec<Turn> {
        let mut system = request.system_prompt.to_string();
        match self.shape(request) {
            Shape::Call | Shape::CallOrProse => system.push_str(&described(&request.tools)),
            Shape::Arguments => {
                let schemas: Vec<String> = request.tools.iter().map(|tool| tool.parameters.to_json()).collect();
                system.push_str("\n\nAnswer with one JSON object that follows this schema: ");
                system.push_str(&schemas.concat());
            }
            Shape::Program => {
                let language = request.language;
                system.push_str(&format!("\n\nAnswer with the program alone, in one ```{language} block."));
            }
            Shape::Prose => {}
        }
        let mut turns =
            vec![Turn { role: "system", text: system }, Turn { role: "user", text: request.user_prompt.to_string() }];
        for message in &request.messages {
            let turn = turn(message);
            // Templates expect that user and assistant take turns.
            match turns.last_mut() {
                Some(last) if last.role == turn.role => {
                    last.text.push_str("\n\n");
                    last.text.push_str(&turn.text);
                }
                Some(_) | None => turns.push(turn),
            }
        }
        turns
    }

    fn reply(&self, request: &ModelRequest, written: Written) -> Result<ModelReply, ProviderError> {
        let usage = Usage {
            input: written.prompt_tokens,
            cached: written.reused_tokens,
            output: written.output_tokens,
            ..Usage::default()
        };
        let reason = if written.ended { "stop" } else { "length" };
        let mut reply = ModelReply {
            usage: Some(usage),
            stop_reason: Some(reason.into()),
            model: Some(self.settings.name.clone()),
            omitted: self.settings.omitted.clone(),
            ..ModelReply::default()
        };
        let shape = self.shape(request);
        let text = written.text;
        if !self.settings.gated || shape == Shape::Prose || (shape == Shape::CallOrProse && !text.starts_with('{')) {
            reply.content = Some(text);
            return Ok(reply);
        }
        let of_only = |arguments| {
            let name = request.tools.first()?.name.to_string();
            Some(RawToolCall { id: String::new(), name, arguments })
        };
        let call = match shape {
            Shape::Prose => None,
            Shape::Call | Shape::CallOrProse => called(&text),
            Shape::Arguments => of_only(text),
            Shape::Program => {
                let code = text.strip_prefix(&opening(request.language)).and_then(|text| text.strip_suffix("```"));
                code.and_then(|code| of_only(Value::Map([("code".to_owned(), code.into())].into()).to_json()))
            }
        };
        // Cannot fire: the gate lets nothing else through.
        let call = call.ok_or_else(|| {
            let message = format!("{}: internal error: a gated reply is no call", self.settings.name);
            ProviderError::new(ProviderErrorClass::InvalidResponse, message)
        })?;
        reply.stop_reason = Some("tool_calls".into());
        reply.tool_calls.push(call);
        Ok(reply)
    }
}

/// What a reply is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Text: no tool is offered.
    Prose,
    /// A call of one of the tools.
    Call,
    /// The same, or text.
    CallOrProse,
    /// The arguments of the only tool.
    Arguments,
    /// A program in a fenced block.
    Program,
}

impl Shape {
    /// The name in contracts.
    fn as_str(self) -> &'static str {
        match self {
            Self::Prose => "prose",
            Self::Call => "call",
            Self::CallOrProse => "call_or_prose",
            Self::Arguments => "arguments",
            Self::Program => "program",
        }
    }
}

impl Provider for Llama {
    fn model(&self) -> &str {
        &self.settings.name
    }

    fn profile(&self) -> &str {
        if self.settings.gated { "gated" } else { self.settings.output.profile() }
    }

    fn grammar(&self, tools: &[ToolSpec], language: Language) -> Option<GrammarRef> {
        let shape = self.first_shape(tools);
        if !self.settings.gated || shape == Shape::Prose {
            return None;
        }
        let profile: Arc<str> = format!("{}-{}", shape.as_str(), grammar::VERSION).into();
        let source = format!("{profile}\n{}", grammar_source(shape, tools, language));
        Some(GrammarRef { sha256: Digest::of_bytes(source.as_bytes()), profile })
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        Box::pin(self.ask(request, cancel))
    }
}

impl fmt::Debug for Llama {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(formatter)
    }
}

/// A file as it was when it was loaded, and how.
#[derive(PartialEq)]
struct Known {
    loading: Loading,
    checked: Checked,
    modified: Option<SystemTime>,
}

/// The engine of this file with these settings, if there is one; otherwise a new one.
fn loaded(settings: &LlamaSettings, checked: Checked) -> Result<Arc<Engine>, String> {
    /// Every model that is in memory. A forked child finds none: those that its parent was loading never come.
    static LOADED: LazyLock<PerProcess<Shared<Known, Engine>>> = LazyLock::new(PerProcess::default);
    let path = settings.path.canonicalize().unwrap_or_else(|_| settings.path.clone());
    let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
    let LlamaSettings { context_size, threads, gpu_layers, .. } = *settings;
    let loading = Loading { path, context_size, threads, gpu_layers };
    let known = Known { loading: loading.clone(), checked, modified };
    LOADED.get().get(known, || Engine::start(loading, settings.name.as_str().into()))
}

fn callable(tool: &ToolSpec) -> Callable<'_> {
    Callable {
        name: &tool.name,
        parameters: &tool.parameters,
        program: (*tool.name == *PROGRAM_TOOL).then_some("code"),
    }
}

/// How a program in text begins.
fn opening(language: Language) -> String {
    format!("```{language}\n")
}

/// Everything that decides which grammar is drawn, under [`grammar::VERSION`].
fn grammar_source(shape: Shape, tools: &[ToolSpec], language: Language) -> String {
    let mut source = format!("{} {}", shape.as_str(), opening(language));
    for tool in tools {
        source.push_str(&format!("\n{} {}", tool.name, tool.parameters.to_json()));
    }
    source
}

fn described(tools: &[ToolSpec]) -> String {
    let mut text = "\n\n# Tools\nAnswer with one JSON object and nothing else: {\"name\": TOOL, \"arguments\": {…}}. \
                    Tools:"
        .to_owned();
    for tool in tools {
        text.push_str(&format!("\n- {}: {} Arguments: {}", tool.name, tool.description, tool.parameters.to_json()));
    }
    text
}

fn turn(message: &AgentMessage) -> Turn {
    let role = match message.role {
        MessageRole::Assistant => "assistant",
        // Few templates know the role of a tool, or a second system message.
        MessageRole::System | MessageRole::User | MessageRole::Tool => "user",
    };
    let mut text = match message.role {
        MessageRole::Tool => format!("Result of your call:\n{}", message.content),
        MessageRole::System | MessageRole::User | MessageRole::Assistant => message.content.clone(),
    };
    for call in &message.tool_calls {
        let arguments = Value::Map(call.arguments.clone()).to_json();
        text.push_str(&format!("{{\"name\": {}, \"arguments\": {arguments}}}", Value::from(&*call.name).to_json()));
    }
    Turn { role, text }
}

/// The call that a gated text is.
fn called(text: &str) -> Option<RawToolCall> {
    let Ok(Value::Map(mut call)) = Value::from_json(text) else { return None };
    let name = call.get("name")?.as_str()?.to_owned();
    let arguments = call.remove("arguments").filter(|arguments| arguments.as_map().is_some())?;
    Some(RawToolCall { id: String::new(), name, arguments: arguments.to_json() })
}

/// A local model that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model file `{path}` cannot be used: {why}")]
pub struct LlamaError {
    /// The file.
    pub path: String,
    /// What is wrong.
    pub why: LlamaProblem,
}

/// What is wrong with a local model or its settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LlamaProblem {
    /// The file itself.
    #[error(transparent)]
    File(GgufError),
    /// llama.cpp does not take it.
    #[error("{0}; is it a model that this version of llama.cpp knows, and is there memory for it?")]
    Load(String),
    /// A number for sampling that is none.
    #[error("`temperature` and `top_p` must be 0 or more, and `repeat_penalty` above 0")]
    Sampling,
    /// A size of nothing.
    #[error("context size, threads and output tokens must be at least 1")]
    Zero,
}
