//! The local model: tiny files with random weights that the tests write themselves, asked through the provider.
//!
//! Such a model says noise. Behind the token gate the noise is always a whole call; without it, it never is one.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use cadenza_core::adapter::{self, Profile};
use cadenza_core::cancel::CancelToken;
use cadenza_core::message::{AdapterDecision, AgentMessage, MessageRole, ToolInvocation};
use cadenza_core::program::Language;
use cadenza_core::prompt;
use cadenza_core::provider::llama::{Llama, LlamaSettings};
use cadenza_core::provider::target::{Params, TargetOptions};
use cadenza_core::provider::{
    ModelReply, ModelRequest, ModelSettings, ModelSpec, Output, Provider, ProviderError, ProviderErrorClass, ToolSpec,
    resolve,
};
use cadenza_core::value::Value;
use tempfile::TempDir;

#[path = "support/tiny_gguf.rs"]
mod tiny_gguf;

use tiny_gguf::{Tiny, Tokenizer};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let start = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing woke the waiter");
        thread::park_timeout(Duration::from_secs(60));
    }
}

/// A model file of these weights; one per process and kind.
fn model(seed: u64, tokenizer: Tokenizer) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap());
    let path = folder.path().join(format!("{seed}-{tokenizer:?}.gguf"));
    if !path.exists() {
        // Tests of one process run side by side: a file is there whole or not at all.
        let own = folder.path().join(format!("{seed}-{tokenizer:?}-{:?}", thread::current().id()));
        tiny_gguf::write(&own, &Tiny { seed, tokenizer, ..Tiny::default() });
        std::fs::rename(&own, &path).unwrap();
    }
    path
}

fn settings(path: &Path) -> LlamaSettings {
    LlamaSettings { context_size: Some(2048), threads: Some(1), max_output_tokens: 48, ..LlamaSettings::of(path) }
}

fn tool(name: &str, parameters: &str) -> ToolSpec {
    let parameters = Value::from_json(parameters).unwrap();
    ToolSpec { name: name.into(), description: "Does it.".into(), parameters }
}

fn execute_program() -> ToolSpec {
    ToolSpec {
        name: "execute_program".into(),
        description: prompt::EXECUTE_PROGRAM_DESCRIPTION.into(),
        parameters: prompt::execute_program_parameters(Language::Lua),
    }
}

fn request(tools: &[ToolSpec]) -> ModelRequest {
    ModelRequest {
        role: "calculator".into(),
        method: "add".into(),
        args: [].into(),
        kwargs: Arc::default(),
        language: Language::Lua,
        system_prompt: "You write programs.".into(),
        user_prompt: "Call `add` with 2 and 3.".into(),
        messages: Vec::new(),
        tools: tools.into(),
        attempt: 1,
        timeout: Duration::from_secs(50),
        total: Duration::from_secs(50),
        max_output_tokens: None,
        pieces: None,
    }
}

fn complete(provider: &dyn Provider, request: &ModelRequest) -> Result<ModelReply, ProviderError> {
    block_on(provider.complete(request, &CancelToken::default()))
}

/// What is wrong with a reply that should be one call of one of these tools.
fn flaw(reply: &ModelReply, tools: &[ToolSpec]) -> Result<(), String> {
    let decision = adapter::adapt(Profile::Stub, true, reply).decision;
    let AdapterDecision::Native(message) = decision else { return Err(format!("not native: {decision:?}")) };
    let [call] = &*message.tool_calls else { return Err(format!("no single call: {reply:?}")) };
    let Some(tool) = tools.iter().find(|tool| tool.name == call.name) else {
        return Err(format!("no tool {:?}", call.name));
    };
    if !message.content.is_empty() {
        return Err(format!("text beside the call: {:?}", message.content));
    }
    let schema = serde_json::from_str(&tool.parameters.to_json()).unwrap();
    let arguments = serde_json::from_str(&Value::Map(call.arguments.clone()).to_json()).unwrap();
    jsonschema::validate(&schema, &arguments).map_err(|error| format!("{error}: {arguments}"))?;
    if &*call.name == "execute_program" && call.arguments["code"].as_str().is_none_or(|code| code.trim().is_empty()) {
        return Err("a blank program".into());
    }
    Ok(())
}

const RICH: &str = r#"{"type": "object", "additionalProperties": false,
    "properties": {
        "mode": {"enum": ["fast", "slow", 3, null]},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "label": {"type": "string", "minLength": 2, "maxLength": 5},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "at": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
               "required": ["x"], "additionalProperties": false},
        "note": {"type": ["string", "null"]},
        "any": {}
    },
    "required": ["mode", "count", "tags", "at"]}"#;

#[test]
fn random_weights_behind_the_gate_always_give_a_whole_call() {
    let offers: [&[ToolSpec]; 3] =
        [&[execute_program()], &[tool("rich", RICH)], &[tool("one", r#"{"type":"object"}"#), tool("rich", RICH)]];
    let mut replies = 0;
    let mut shortest = u64::MAX;
    let mut longest = 0;
    for tokenizer in [Tokenizer::Pieces, Tokenizer::Merges] {
        for weights in 0..3 {
            for seed in 0..20 {
                for output in Output::ALL {
                    let temperature = [0.0, 0.7, 1.0, 3.0][seed as usize % 4];
                    let settings = LlamaSettings { seed, temperature, output, ..settings(&model(weights, tokenizer)) };
                    let provider = Llama::new(settings).unwrap();
                    for tools in offers {
                        let reply = complete(&provider, &request(tools)).unwrap();
                        flaw(&reply, tools)
                            .unwrap_or_else(|why| panic!("{tokenizer:?} {weights} {seed} {output:?}: {why}"));
                        replies += 1;
                        let output = reply.usage.unwrap().output;
                        (shortest, longest) = (shortest.min(output), longest.max(output));
                    }
                }
            }
        }
    }
    assert_eq!(replies, 2 * 3 * 20 * 3 * 3);
    // Some ended by themselves, and some were brought to an end by the gate.
    assert!(shortest < 10 && longest == 48, "{shortest} to {longest} tokens");
}

#[test]
fn without_the_gate_the_same_weights_narrate() {
    let tools = [execute_program()];
    let (mut calls, mut narrations) = (0, 0);
    for tokenizer in [Tokenizer::Pieces, Tokenizer::Merges] {
        for weights in 0..3 {
            for seed in 0..20 {
                let temperature = [0.0, 0.7, 1.0, 3.0][seed as usize % 4];
                let settings =
                    LlamaSettings { seed, temperature, gated: false, ..settings(&model(weights, tokenizer)) };
                let provider = Llama::new(settings).unwrap();
                assert_eq!(provider.profile(), "program");
                match flaw(&complete(&provider, &request(&tools)).unwrap(), &tools) {
                    Ok(()) => calls += 1,
                    Err(_) => narrations += 1,
                }
            }
        }
    }
    assert_eq!((calls, narrations), (0, 120));
}

fn reason(name: &str) -> String {
    let spec = ModelSpec::Name(name.into());
    let error = resolve(&spec, &ModelSettings::default()).unwrap_err();
    assert_eq!(error.option(), "model");
    error.message()
}

#[test]
fn a_file_that_is_no_model_is_refused_when_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let whole = tiny_gguf::bytes(&Tiny::default());
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    std::fs::create_dir(path("folder")).unwrap();
    let files: BTreeMap<&str, (Vec<u8>, &str)> = BTreeMap::from([
        ("empty", (Vec::new(), "it is empty")),
        ("text", (b"This is no model, it is a letter.".to_vec(), "it is no GGUF file")),
        ("short", (b"GG".to_vec(), "it is no GGUF file")),
        ("noise", ((0..5000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect(), "it is no GGUF file")),
        ("magic", (b"GGUF".to_vec(), "it ends too soon")),
        ("version1", (with(4, &1_u32.to_le_bytes()), "GGUF version 1")),
        ("version99", (with(4, &99_u32.to_le_bytes()), "GGUF version 99")),
        ("swapped", (with(4, &3_u32.to_be_bytes()), "the other byte order")),
        ("entries", (with(16, &u64::MAX.to_le_bytes()), "its header is damaged")),
        ("tensors", (with(8, &u64::MAX.to_le_bytes()), "its header is damaged")),
        ("key", (with(24, &u64::MAX.to_le_bytes()), "it ends too soon")),
        ("half", (whole[..whole.len() / 2].to_vec(), "it ends too soon")),
        ("cut", (whole[..whole.len() - 1].to_vec(), "it ends too soon")),
        ("header", (whole[..300].to_vec(), "it ends too soon")),
    ]);
    for (name, (bytes, words)) in &files {
        std::fs::write(path(name), bytes).unwrap();
        let message = reason(&format!("llama:{}", path(name).display()));
        assert!(message.contains(words) && message.contains(name), "{name}: {message}");
    }
    for (name, words) in [("folder", "it is a folder"), ("nowhere", "it cannot be read: No such file")] {
        let message = reason(&format!("llama:{}", path(name).display()));
        assert!(message.contains(words), "{name}: {message}");
    }
    assert!(reason("llama").contains("`llama:/path/to/model.gguf`"));
    assert!(reason("llama:").contains("`llama:/path/to/model.gguf`"));
}

#[test]
fn a_model_is_named_by_its_path_and_asked() {
    let path = model(0, Tokenizer::Pieces);
    let spec = ModelSpec::Name(format!("llama:{}", path.display()));
    let params = Params { seed: Some(Some(4)), temperature: Some(Some(0.5)), ..Params::default() };
    let options = TargetOptions {
        context_size: Some(512),
        threads: Some(1),
        gpu_layers: Some(0),
        params,
        ..TargetOptions::default()
    };
    let provider = resolve(&spec, &ModelSettings { options, ..ModelSettings::default() }).unwrap().provider;
    assert_eq!(provider.model(), format!("llama:{}", path.display()));
    assert_eq!(provider.profile(), "gated");
    let tools = [execute_program()];
    let reply = complete(&*provider, &ModelRequest { max_output_tokens: Some(20), ..request(&tools) }).unwrap();
    flaw(&reply, &tools).unwrap();
}

#[test]
fn the_fingerprint_knows_the_weights_and_the_window_and_not_the_path() {
    let fingerprint = |settings: LlamaSettings| Llama::new(settings).unwrap().fingerprint().to_owned();
    let path = model(0, Tokenizer::Pieces);
    let one = fingerprint(settings(&path));
    let folder = tempfile::tempdir().unwrap();
    let moved = folder.path().join("moved.gguf");
    std::fs::copy(&path, &moved).unwrap();
    assert_eq!(one, fingerprint(settings(&moved)));
    for other in [
        settings(&model(1, Tokenizer::Pieces)),
        LlamaSettings { context_size: Some(1024), ..settings(&path) },
        LlamaSettings { output: Output::Text, ..settings(&path) },
        LlamaSettings { gated: false, ..settings(&path) },
        LlamaSettings { seed: 5, ..settings(&path) },
    ] {
        assert_ne!(one, fingerprint(other));
    }
    assert!(one.contains("#2048#tool#g1#"), "{one}");
}

#[test]
fn the_same_question_has_the_same_reply() {
    let tools = [execute_program()];
    for temperature in [0.0, 1.0] {
        let settings = LlamaSettings { temperature, seed: 11, ..settings(&model(2, Tokenizer::Merges)) };
        let provider = Llama::new(settings).unwrap();
        let one = complete(&provider, &request(&tools)).unwrap();
        assert_eq!(one.tool_calls, complete(&provider, &request(&tools)).unwrap().tool_calls);
        let again = complete(&provider, &ModelRequest { attempt: 2, ..request(&tools) }).unwrap();
        // Drawn anew for another attempt; the likeliest tokens stay the likeliest.
        assert_eq!(one.tool_calls == again.tool_calls, temperature == 0.0);
    }
}

#[test]
fn at_every_limit_the_call_is_whole() {
    let tools = [tool("rich", RICH)];
    for tokenizer in [Tokenizer::Pieces, Tokenizer::Merges] {
        let provider = Llama::new(LlamaSettings { temperature: 1.0, ..settings(&model(1, tokenizer)) }).unwrap();
        let ask = |limit| complete(&provider, &ModelRequest { max_output_tokens: Some(limit), ..request(&tools) });
        let mut least = None;
        for limit in 0..140 {
            match ask(limit) {
                Ok(reply) => {
                    flaw(&reply, &tools).unwrap();
                    assert!(reply.usage.unwrap().output <= u64::from(limit));
                    least.get_or_insert(limit);
                }
                Err(error) => {
                    assert_eq!((error.class, least), (ProviderErrorClass::ModelError, None), "{error}");
                    assert!(error.message.contains("output tokens are too few"), "{error}");
                }
            }
        }
        assert!(least.is_some_and(|least| (10..90).contains(&least)), "{least:?}");
    }
}

#[test]
fn at_the_end_of_the_window_the_call_is_whole_and_behind_it_nothing_is_evaluated() {
    let tools = [execute_program()];
    let path = model(1, Tokenizer::Pieces);
    let provider =
        |window| Llama::new(LlamaSettings { context_size: Some(window), temperature: 1.0, ..settings(&path) });
    let prompt = complete(&provider(2048).unwrap(), &request(&tools)).unwrap().usage.unwrap().input as u32;
    for room in 0..20 {
        let reply = complete(&provider(prompt + room).unwrap(), &request(&tools));
        match room {
            // One visible character and the closing quote; the rest needs no model.
            0 | 1 => {
                let error = reply.unwrap_err();
                assert_eq!(error.class, ProviderErrorClass::ContextOverflow);
                let words = format!("the prompt has {prompt} tokens");
                assert!(error.message.contains(&words) && error.message.contains("`context_size`"), "{error}");
            }
            _ => {
                let reply = reply.unwrap();
                flaw(&reply, &tools).unwrap();
                assert!(reply.usage.unwrap().output <= u64::from(room));
            }
        }
    }
    // Nothing was evaluated for the one that did not fit: the next finds the context of the one before.
    let provider = provider(1024).unwrap();
    let first = complete(&provider, &request(&tools)).unwrap();
    let large = ModelRequest { user_prompt: "x ".repeat(4000).into(), ..request(&tools) };
    assert_eq!(complete(&provider, &large).unwrap_err().class, ProviderErrorClass::ContextOverflow);
    let again = complete(&provider, &request(&tools)).unwrap();
    assert_eq!(again.usage.unwrap().cached + 1, first.usage.unwrap().input);
}
