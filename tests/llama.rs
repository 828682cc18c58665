//! The local model: tiny files with random weights that the tests write themselves, asked through the provider.
//!
//! Such a model says noise. Behind the token gate the noise is always a whole call; without it, it never is one.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::task::Context;
use std::thread;
use std::time::{Duration, Instant};

use cadenza_core::adapter::{self, Profile, Wanted};
use cadenza_core::cancel::CancelToken;
use cadenza_core::contract::{CompletionMode, ContractDraft, Manifest, ManifestTool, Millis, ToolPolicy};
use cadenza_core::kernel::transcript::Transcript;
use cadenza_core::kernel::{Command, Environment, Inference, Input, Kernel, StoredEntry, ToolEnvelope, verify};
use cadenza_core::message::{AdapterDecision, AgentMessage, MessageRole, ToolInvocation};
use cadenza_core::outcome::AgentOutcome;
use cadenza_core::program::Language;
use cadenza_core::prompt;
use cadenza_core::provider::llama::{Llama, LlamaSettings};
use cadenza_core::provider::target::{Params, TargetOptions};
use cadenza_core::provider::{
    ModelReply, ModelRequest, ModelSettings, ModelSpec, Output, Provider, ProviderError, ProviderErrorClass, ToolSpec,
    Usage, resolve,
};
use cadenza_core::value::Value;
use tempfile::TempDir;

#[path = "support/block_on.rs"]
mod executor;

#[path = "support/tiny_gguf.rs"]
mod tiny_gguf;

use tiny_gguf::{Entry, Tiny, Tokenizer};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    executor::block_on(future, Duration::from_secs(300))
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
        timeout: Duration::from_secs(250),
        total: Duration::from_secs(250),
        max_output_tokens: None,
        hold_text: true,
        grammar: None,
        pieces: None,
    }
}

/// Tokens of a known prompt that are not evaluated again: whole pieces, and never the last token.
fn whole_pieces(prompt: u64) -> u64 {
    (prompt - 1) / 64 * 64
}

fn complete(provider: &dyn Provider, request: &ModelRequest) -> Result<ModelReply, ProviderError> {
    block_on(provider.complete(request, &CancelToken::default()))
}

/// What the adapter makes of a reply. Every program compiles: whether it does is not the gate's question.
fn adapted(reply: &ModelReply) -> AdapterDecision {
    let wanted = Wanted { tool: "execute_program", language: "lua", compiles: &|_| Ok(()) };
    if reply.tool_calls.is_empty() {
        // Nothing compiles: what is left are the signs of a program.
        let wanted = Wanted { compiles: &|_| Err("no".into()), ..wanted };
        return adapter::adapt(Profile::Gated, &wanted, true, reply).decision;
    }
    adapter::adapt(Profile::Gated, &wanted, true, reply).decision
}

/// What is wrong with a reply that should be one call of one of these tools.
fn flaw(reply: &ModelReply, tools: &[ToolSpec]) -> Result<(), String> {
    let decision = adapted(reply);
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

/// 216 replies; `CADENZA_GATED=20` asks for 20 seeds of each kind, which are 1,080.
#[test]
fn random_weights_behind_the_gate_always_give_a_whole_call() {
    let offers: [&[ToolSpec]; 3] =
        [&[execute_program()], &[tool("rich", RICH)], &[tool("one", r#"{"type":"object"}"#), tool("rich", RICH)]];
    let mut replies = 0;
    let mut shortest = u64::MAX;
    let mut longest = 0;
    let seeds: u8 = std::env::var("CADENZA_GATED").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(4);
    for tokenizer in [Tokenizer::Pieces, Tokenizer::Merges] {
        for weights in 0..3 {
            // Keeps the model loaded, and its gates made.
            let _anchor = Llama::new(settings(&model(weights, tokenizer))).unwrap();
            for seed in 0..i64::from(seeds) {
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
    assert_eq!(replies, 2 * 3 * u32::from(seeds) * 3 * 3);
    // Some ended by themselves, and some were brought to an end by the gate.
    assert!(shortest < 10 && longest == 48, "{shortest} to {longest} tokens");
}

#[test]
fn without_the_gate_the_same_weights_narrate() {
    let tools = [execute_program()];
    let (mut calls, mut narrations) = (0, 0);
    for tokenizer in [Tokenizer::Pieces, Tokenizer::Merges] {
        for weights in 0..3 {
            let _anchor = Llama::new(settings(&model(weights, tokenizer))).unwrap();
            for seed in 0..20 {
                let temperature = [0.0, 0.7, 1.0, 3.0][seed as usize % 4];
                let settings =
                    LlamaSettings { seed, temperature, gated: false, ..settings(&model(weights, tokenizer)) };
                let provider = Llama::new(settings).unwrap();
                assert_eq!(provider.profile(), "tool");
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

/// Each of these would end the process in llama.cpp, or answer with noise.
#[test]
fn a_header_that_llama_cpp_does_not_survive_is_refused() {
    use Entry::{Number, Numbers, Text, Truth};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let said = |tiny: &Tiny| {
        tiny_gguf::write(&path, tiny);
        reason(&format!("llama:{}", path.display()))
    };
    let layers = said(&Tiny { layers: 513, embedding: 4, ..Tiny::default() });
    assert!(layers.contains("its number of layers"), "{layers}");
    let cases: [(&str, &'static [(&'static str, Entry)]); 15] = [
        ("layers", &[("nextn_predict_layers", Number(2))]),
        ("scaled", &[("rope.scaling.type", Text("su"))]),
        ("experts", &[("expert_used_count", Number(1))]),
        ("experts", &[("expert_used_count", Numbers(&[1]))]),
        ("experts", &[("expert_group_count", Number(1))]),
        ("experts", &[("expert_count", Number(4))]),
        ("experts", &[("expert_count", Number(4)), ("expert_used_count", Number(5))]),
        ("experts", &[("expert_count", Number(4)), ("expert_used_count", Numbers(&[5]))]),
        ("experts", &[("expert_count", Number(1025)), ("expert_used_count", Number(1))]),
        (
            "experts",
            &[("expert_count", Number(4)), ("expert_used_count", Number(1)), ("expert_group_count", Number(4))],
        ),
        (
            "experts",
            &[("expert_count", Number(4)), ("expert_used_count", Number(1)), ("expert_group_count", Number(3))],
        ),
        (
            "experts",
            &[("expert_count", Number(4)), ("expert_used_count", Number(1)), ("expert_group_count", Number(2))],
        ),
        ("embeddings", &[("pooling_type", Number(1))]),
        ("embeddings", &[("attention.causal", Truth(false))]),
        ("embeddings", &[("pooling_type", Number(u32::MAX))]),
    ];
    for (words, entries) in cases {
        let message = said(&Tiny { entries, ..Tiny::default() });
        assert!(message.contains(words), "{entries:?}: {message}");
    }
    let message = said(&Tiny { architecture: "llada", ..Tiny::default() });
    assert!(message.contains("embeddings"), "{message}");
    // What is as it should be is loaded.
    let fine: &[(&str, Entry)] = &[
        ("pooling_type", Number(0)),
        ("attention.causal", Truth(true)),
        ("rope.scaling.type", Text("yarn")),
        ("nextn_predict_layers", Number(0)),
        ("expert_count", Number(0)),
        ("expert_used_count", Numbers(&[0])),
    ];
    tiny_gguf::write(&path, &Tiny { entries: fine, ..Tiny::default() });
    flaw(
        &complete(&Llama::new(settings(&path)).unwrap(), &request(&[execute_program()])).unwrap(),
        &[execute_program()],
    )
    .unwrap();
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

/// S18: what a local model has no use for is named with every reply; null asks for nothing.
#[test]
fn s18_what_means_nothing_to_a_local_model_is_named() {
    let path = model(0, Tokenizer::Pieces);
    let omitted = |params: Params| {
        let options = TargetOptions { context_size: Some(512), threads: Some(1), params, ..TargetOptions::default() };
        let spec = ModelSpec::Name(format!("llama:{}", path.display()));
        let provider = resolve(&spec, &ModelSettings { options, ..ModelSettings::default() }).unwrap().provider;
        let tools = [execute_program()];
        complete(&*provider, &ModelRequest { max_output_tokens: Some(20), ..request(&tools) }).unwrap().omitted
    };
    let extra = |value| BTreeMap::from([("mirostat".to_owned(), value)]).into();
    let all = Params {
        reasoning_effort: Some(Some("high".to_owned())),
        extended_thinking: Some(Some(1_024)),
        extra: extra(Some(1.into())),
        force_params: Some(true),
        ..Params::default()
    };
    assert_eq!(omitted(all), ["reasoning_effort", "extended_thinking", "extra", "force_params"]);
    let nothing = Params {
        reasoning_effort: Some(None),
        extended_thinking: Some(None),
        extra: extra(None),
        force_params: Some(false),
        temperature: Some(Some(0.5)),
        ..Params::default()
    };
    assert_eq!(omitted(nothing), Vec::<&str>::new());
}

/// The setting and the request both bound a reply: the smaller one counts.
#[test]
fn a_reply_keeps_to_the_smaller_of_two_bounds() {
    let path = model(0, Tokenizer::Pieces);
    for (set, asked, most) in [(12, Some(400), 12), (400, Some(12), 12), (12, None, 12)] {
        let provider = Llama::new(LlamaSettings { max_output_tokens: set, gated: false, ..settings(&path) }).unwrap();
        let reply = complete(&provider, &ModelRequest { max_output_tokens: asked, ..request(&[]) }).unwrap();
        let written = reply.usage.unwrap().output;
        assert!(written <= most, "{written} tokens of {set} and {asked:?}");
    }
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
    assert!(one.contains("#2048#tool#g2#"), "{one}");
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
fn ec_gr1_another_grammar_than_the_contracts_is_refused() {
    let tools = [execute_program()];
    let names = |output, gated| {
        let settings = LlamaSettings { output, gated, ..settings(&model(0, Tokenizer::Pieces)) };
        let provider = Llama::new(settings).unwrap();
        let own = provider.grammar(&tools, Language::Lua);
        let ask = |grammar| complete(&provider, &ModelRequest { grammar, ..request(&tools) });
        let Some(own) = own else {
            assert!(!gated);
            return None;
        };
        flaw(&ask(Some(own.sha256)).unwrap(), &tools).unwrap();
        // The same tool for programs in another language, or another tool, is another grammar.
        let rich = [tool("rich", RICH)];
        for other in [provider.grammar(&tools, Language::Rhai), provider.grammar(&rich, Language::Lua)] {
            let error = ask(other.map(|other| other.sha256)).unwrap_err();
            assert_eq!(error.class, ProviderErrorClass::ModelError);
            assert!(error.message.contains("the contract names another grammar"), "{error}");
        }
        assert_eq!(provider.grammar(&[], Language::Lua), None);
        // A synthesis under the same contract offers no tools.
        let synthesis = complete(&provider, &ModelRequest { grammar: Some(own.sha256), ..request(&[]) }).unwrap();
        assert!(synthesis.content.is_some() && synthesis.tool_calls.is_empty());
        Some(own.profile.to_string())
    };
    let gated = Output::ALL.map(|output| names(output, true));
    assert_eq!(gated.map(Option::unwrap), ["call-g2", "arguments-g2", "program-g2"]);
    assert_eq!(names(Output::Tool, false), None);
}

#[test]
fn at_every_limit_the_call_is_whole() {
    let tools = [tool("rich", RICH)];
    for tokenizer in [Tokenizer::Pieces, Tokenizer::Merges] {
        let wide = LlamaSettings { temperature: 1.0, max_output_tokens: 140, ..settings(&model(1, tokenizer)) };
        let provider = Llama::new(wide).unwrap();
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
            // One token may hold a visible character and the closing quote; the rest needs no model.
            0 => {
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
    assert_eq!(again.usage.unwrap().cached, whole_pieces(first.usage.unwrap().input));
}

/// Such runs of alike characters cost llama.cpp stack: they once ended the process.
#[test]
fn a_text_of_one_letter_is_answered_or_refused_however_long_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recursive.gguf");
    tiny_gguf::write(&path, &Tiny { tokenizer: Tokenizer::Merges, splitter: "tekken", ..Tiny::default() });
    let ask = |window: u32, letters: usize| {
        let provider = Llama::new(LlamaSettings { context_size: Some(window), ..settings(&path) }).unwrap();
        let request = ModelRequest { user_prompt: "a".repeat(letters).into(), ..request(&[execute_program()]) };
        complete(&provider, &request).unwrap_err()
    };
    // On the model's thread, on a thread of its own, and not taken apart at all.
    for (window, letters, words) in [
        (2_048, 12_000, "tokens and the shortest reply"),
        (65_536, 300_000, "tokens and the shortest reply"),
        (2_048, 300_000, "bytes, and no"),
    ] {
        let error = ask(window, letters);
        assert_eq!(error.class, ProviderErrorClass::ContextOverflow);
        assert!(error.message.contains(words) && error.message.contains("`context_size`"), "{error}");
    }
}

#[test]
fn a_prompt_without_tokens_is_refused() {
    let path = model(0, Tokenizer::Digits);
    let provider = Llama::new(LlamaSettings { gated: false, ..settings(&path) }).unwrap();
    let ask = |user: &str| {
        complete(&provider, &ModelRequest { user_prompt: user.into(), system_prompt: "".into(), ..request(&[]) })
    };
    assert_eq!(ask("789").unwrap().usage.unwrap().input, 3);
    let error = ask("no digits").unwrap_err();
    assert_eq!((error.class, error.message.contains("no token for anything")), (ProviderErrorClass::ModelError, true));
}

/// A model slow enough to be interrupted: some milliseconds per token, and a call of some hundred tokens.
fn slow() -> (LlamaSettings, [ToolSpec; 1]) {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let tiny = Tiny { layers: 6, embedding: 384, ..Tiny::default() };
        tiny_gguf::write(&folder.path().join("slow.gguf"), &tiny);
        folder
    });
    // Many small items: the gate of long strings takes longer to make than the reply.
    let flags = r#"{"type": "object", "properties": {"flags": {"type": "array", "minItems": 250, "maxItems": 250,
        "items": {"type": "boolean"}}}, "required": ["flags"], "additionalProperties": false}"#;
    let path = folder.path().join("slow.gguf");
    (LlamaSettings { max_output_tokens: 1500, temperature: 1.0, ..settings(&path) }, [tool("write", flags)])
}

/// Waits until the model has evaluated so many tokens.
fn wait_for(provider: &Llama, tokens: u64) {
    let start = Instant::now();
    while provider.evaluated_tokens() < tokens {
        assert!(start.elapsed() < Duration::from_secs(250), "{} tokens", provider.evaluated_tokens());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the model does nothing any more; gives what it has evaluated.
fn settled(provider: &Llama) -> u64 {
    loop {
        let before = provider.evaluated_tokens();
        thread::sleep(Duration::from_millis(200));
        if provider.evaluated_tokens() == before {
            return before;
        }
    }
}

#[test]
fn a_cancelled_forgotten_or_late_request_stops_within_a_few_tokens() {
    let (settings, tools) = slow();
    let provider = Llama::new(settings.clone()).unwrap();
    let request = request(&tools);
    // What the same model says that was never interrupted: a window of its own is an engine of its own.
    let short = [execute_program()];
    let next = ModelRequest { tools: short.clone().into(), max_output_tokens: Some(20), ..request.clone() };
    let fresh = || {
        let window = settings.context_size.map(|window| window + 1);
        let fresh = Llama::new(LlamaSettings { context_size: window, ..settings.clone() }).unwrap();
        complete(&fresh, &next).unwrap().tool_calls
    };
    let expected = fresh();
    // Its pieces of the prompt are shared with the request that is interrupted, and its logits follow from all of them.
    let as_if_nothing_had_been = || {
        let reply = complete(&provider, &next).unwrap();
        flaw(&reply, &short).unwrap();
        assert_eq!(reply.tool_calls, expected);
    };

    let cancel = CancelToken::default();
    let long = ModelRequest { user_prompt: "x ".repeat(400).into(), ..request.clone() };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| block_on(provider.complete(&long, &cancel)));
        // In the midst of the prompt, of more than 1,000 tokens.
        wait_for(&provider, 64);
        cancel.cancel();
        assert_eq!(waiting.join().unwrap().unwrap_err().class, ProviderErrorClass::Cancelled);
        let evaluated = settled(&provider);
        assert!(evaluated.is_multiple_of(64) && evaluated < 1_000, "{evaluated} tokens of the prompt");
    });
    as_if_nothing_had_been();
    let begun = settled(&provider);

    let cancel = CancelToken::default();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| block_on(provider.complete(&request, &cancel)));
        // The prompt has less than 600 tokens, so this is in the midst of the reply.
        wait_for(&provider, begun + 660);
        cancel.cancel();
        let seen = provider.evaluated_tokens();
        assert_eq!(waiting.join().unwrap().unwrap_err().class, ProviderErrorClass::Cancelled);
        let after = settled(&provider) - seen;
        assert!(after <= 3, "{after} more tokens after the cancellation");
    });
    as_if_nothing_had_been();

    let before = provider.evaluated_tokens();
    let never = CancelToken::default();
    let mut forgotten = provider.complete(&request, &never);
    let waker = executor::Unpark::waker();
    assert!(forgotten.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    wait_for(&provider, before + 660);
    drop(forgotten);
    let seen = provider.evaluated_tokens();
    let after = settled(&provider) - seen;
    assert!(after <= 20, "{after} more tokens after nobody waited");

    // The prompt is known by now, so this is in the midst of the reply as well.
    let late = ModelRequest { timeout: Duration::from_millis(250), ..request.clone() };
    let start = Instant::now();
    let error = complete(&provider, &late).unwrap_err();
    assert_eq!(error.class, ProviderErrorClass::Timeout);
    assert!(error.message.contains("provider_timeout_seconds"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    let seen = provider.evaluated_tokens();
    let after = settled(&provider) - seen;
    assert!(after <= 3, "{after} more tokens after the deadline");

    as_if_nothing_had_been();
    let set = CancelToken::default();
    set.cancel();
    assert_eq!(block_on(provider.complete(&request, &set)).unwrap_err().class, ProviderErrorClass::Cancelled);
}

/// In a process of its own, because a fork is told to everything in one.
#[test]
fn in_a_forked_child_a_request_waits_for_its_model_and_for_nothing_else() {
    let ran = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "forked_victim", "--ignored", "--nocapture"])
        .env("CADENZA_FORKED", "1")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn forked_victim() {
    if std::env::var_os("CADENZA_FORKED").is_none() {
        return;
    }
    let (slow, _) = slow();
    let tools = [execute_program()];
    let request = ModelRequest { max_output_tokens: Some(20), ..request(&tools) };
    let provider = Llama::new(slow.clone()).unwrap();
    let own = complete(&provider, &request).unwrap().tool_calls;
    cadenza_core::fork::after_fork_in_child();
    // The model is loaded beside the future, which only waits.
    let never = CancelToken::default();
    let mut asked = provider.complete(&request, &never);
    let waker = executor::Unpark::waker();
    assert!(asked.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(block_on(asked).unwrap().tool_calls, own);
    // What goes wrong is told to the one who asked, and the next one tries again.
    cadenza_core::fork::after_fork_in_child();
    let hidden = slow.path.with_extension("hidden");
    std::fs::rename(&slow.path, &hidden).unwrap();
    std::fs::write(&slow.path, b"GGUF").unwrap();
    let error = complete(&provider, &request).unwrap_err();
    assert!(error.class == ProviderErrorClass::ModelError && error.message.contains("cannot load it"), "{error}");
    std::fs::rename(&hidden, &slow.path).unwrap();
    assert_eq!(complete(&provider, &request).unwrap().tool_calls, own);
}

#[test]
fn those_who_ask_at_once_are_answered_one_after_the_other_as_if_alone() {
    let tools = [execute_program()];
    let settings = LlamaSettings { temperature: 1.0, seed: 3, ..settings(&model(0, Tokenizer::Merges)) };
    let provider = Llama::new(settings.clone()).unwrap();
    let other = Llama::new(LlamaSettings { seed: 4, ..settings }).unwrap();
    let ask = |provider: &Llama, number: usize| {
        let request = ModelRequest { user_prompt: format!("Call number {number}.").into(), ..request(&tools) };
        complete(provider, &request).unwrap().tool_calls
    };
    let alone: Vec<_> = (0..6).map(|number| (ask(&provider, number), ask(&other, number))).collect();
    let together: Vec<_> = thread::scope(|scope| {
        let askers: Vec<_> = (0..6)
            .map(|number| {
                let (provider, other) = (&provider, &other);
                (scope.spawn(move || ask(provider, number)), scope.spawn(move || ask(other, number)))
            })
            .collect();
        askers.into_iter().map(|(one, other)| (one.join().unwrap(), other.join().unwrap())).collect()
    });
    assert_eq!(alone, together);
    assert!(alone.iter().any(|(one, other)| one != other));
}

#[test]
fn what_two_prompts_begin_with_alike_is_evaluated_once() {
    let tools = [execute_program()];
    // A context of its own, for the numbers.
    let settings = LlamaSettings { context_size: Some(2000), ..settings(&model(0, Tokenizer::Pieces)) };
    let provider = Llama::new(settings).unwrap();
    let system = "You write programs. ".repeat(20);
    let ask = |user: &str| {
        let before = provider.evaluated_tokens();
        let request =
            ModelRequest { system_prompt: system.as_str().into(), user_prompt: user.into(), ..request(&tools) };
        let usage = complete(&provider, &request).unwrap().usage.unwrap();
        let evaluated = provider.evaluated_tokens() - before;
        // The last token of a reply needs no evaluation, and one that the grammar completes neither.
        let expected = usage.input - usage.cached + usage.output - 1;
        assert!((expected..=expected + 1).contains(&evaluated), "{evaluated} evaluated, {usage:?}");
        usage
    };
    let first = ask("Add two numbers.");
    assert_eq!(first.cached, 0);
    let second = ask("Multiply three numbers.");
    // All of the system prompt, which is most of it.
    assert!(second.cached * 10 > second.input * 7, "{second:?}");
    let again = ask("Multiply three numbers.");
    assert_eq!(again.cached, whole_pieces(again.input));
}

/// Tokens of a prompt with this message in it.
fn prompt_tokens(provider: &Llama, user: &str) -> u64 {
    let request = ModelRequest { user_prompt: user.into(), ..request(&[execute_program()]) };
    complete(provider, &request).unwrap().usage.unwrap().input
}

#[test]
fn the_words_of_a_message_steer_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for tokenizer in [Tokenizer::Pieces, Tokenizer::Merges] {
        for steers_anywhere in [false, true] {
            let path = folder.path().join(format!("{tokenizer:?}{steers_anywhere}.gguf"));
            tiny_gguf::write(&path, &Tiny { tokenizer, steers_anywhere, ..Tiny::default() });
            let provider = Llama::new(settings(&path)).unwrap();
            // As tokens that steer they would be two; as text they are as many as other text of that kind.
            let (steering, plain) = ("x<|im_end|><|im_start|><|im_start|>", "x<|im.end|><|im.start|><|im.start|>");
            let (steering, plain) = (prompt_tokens(&provider, steering), prompt_tokens(&provider, plain));
            assert_eq!(steering, plain, "{tokenizer:?} {steers_anywhere}");
            assert!(plain > prompt_tokens(&provider, "x") + 6);
        }
    }
}

/// The space that one kind of tokenizer sets before a text is none of the message's.
#[test]
fn a_message_is_its_own_tokens_and_no_space() {
    let provider = Llama::new(settings(&model(0, Tokenizer::Pieces))).unwrap();
    let none = prompt_tokens(&provider, "");
    // With a space before it, `==` would be ` =` and `=`.
    for (text, tokens) in [("==", 1), ("x", 1), (" x", 2), ("  ", 1), ("x=", 2)] {
        assert_eq!(prompt_tokens(&provider, text) - none, tokens, "{text:?}");
    }
}

#[test]
fn a_model_with_its_own_template_or_an_unknown_one_is_asked_all_the_same() {
    let tools = [execute_program()];
    let folder = tempfile::tempdir().unwrap();
    let llama2 = "{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}";
    let unknown = "{{ messages | some_filter }}";
    let chatml = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>{% endfor %}";
    let mut lengths = Vec::new();
    for (index, template) in [None, Some(chatml), Some(unknown), Some(llama2)].into_iter().enumerate() {
        let path = folder.path().join(format!("{index}.gguf"));
        tiny_gguf::write(&path, &Tiny { chat_template: template, ..Tiny::default() });
        let provider = Llama::new(settings(&path)).unwrap();
        let reply = complete(&provider, &request(&tools)).unwrap();
        flaw(&reply, &tools).unwrap();
        lengths.push(reply.usage.unwrap().input);
    }
    assert!(lengths[0] == lengths[1] && lengths[0] == lengths[2] && lengths[0] != lengths[3], "{lengths:?}");
}

#[test]
fn without_tools_it_speaks_text_that_is_one_and_never_a_call() {
    for tokenizer in [Tokenizer::Pieces, Tokenizer::Merges] {
        let _anchor = Llama::new(settings(&model(2, tokenizer))).unwrap();
        for seed in 0..60 {
            let settings = LlamaSettings { temperature: 1.5, seed, ..settings(&model(2, tokenizer)) };
            let provider = Llama::new(settings).unwrap();
            let limit = 1 + seed as u32 % 40;
            let reply = complete(&provider, &ModelRequest { max_output_tokens: Some(limit), ..request(&[]) }).unwrap();
            let text = reply.content.clone().unwrap();
            assert!(!text.trim().is_empty() && !text.contains("<call>") && !text.contains('\u{fffd}'), "{text:?}");
            assert!(matches!(adapted(&reply), AdapterDecision::Native(message) if message.tool_calls.is_empty()));
        }
    }
}

#[test]
fn once_a_call_was_validated_text_is_allowed_and_a_broken_call_is_not() {
    let tools = [tool("look_up", r#"{"type": "object", "properties": {"key": {"type": "string"}}}"#)];
    let call = ToolInvocation {
        id: "s1.0".into(),
        name: "look_up".into(),
        arguments: [("key".to_owned(), "x".into())].into(),
        source_model: "m".into(),
        raw_payload: None,
    };
    let message = |role, content: &str, tool_calls: &[ToolInvocation]| AgentMessage {
        role,
        content: content.into(),
        tool_calls: tool_calls.into(),
        tool_call_id: None,
    };
    let messages = vec![message(MessageRole::Assistant, "", &[call]), message(MessageRole::Tool, "{\"x\": 1}", &[])];
    let (mut texts, mut calls) = (0, 0);
    let _anchor = Llama::new(settings(&model(1, Tokenizer::Pieces))).unwrap();
    for seed in 0..60 {
        let settings = LlamaSettings { temperature: 3.0, seed, ..settings(&model(1, Tokenizer::Pieces)) };
        let provider = Llama::new(settings).unwrap();
        let opened = ModelRequest { messages: messages.clone(), hold_text: false, ..request(&tools) };
        let reply = complete(&provider, &opened).unwrap();
        match &reply.content {
            Some(text) => {
                assert!(!text.starts_with('{') && !text.trim().is_empty());
                texts += 1;
            }
            None => {
                flaw(&reply, &tools).unwrap();
                calls += 1;
            }
        }
        // A result alone opens nothing: it may be that of a call that was none.
        let closed = ModelRequest { messages: messages.clone(), ..request(&tools) };
        flaw(&complete(&provider, &closed).unwrap(), &tools).unwrap();
    }
    assert!(texts > 0 && texts + calls == 60, "{texts} texts, {calls} calls");
}

/// How a tool answers in a run.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Text(&'static str, usize),
    TooLate,
}

/// A run of the kernel with this model, and tools `t` and `rich` that always answer alike.
struct Ran {
    outcome: AgentOutcome,
    started: u32,
    stored: Vec<StoredEntry>,
}

impl Ran {
    fn count(&self, kind: &str) -> usize {
        self.stored.iter().filter(|entry| entry.kind() == kind).count()
    }
}

/// Drives the kernel as the runtime does.
fn run(mut draft: ContractDraft, provider: &Llama, answer: Answer) -> Ran {
    let tools = [tool("rich", RICH), tool("t", r#"{"type": "object", "properties": {"x": {"type": "string"}}}"#)];
    let profile = Profile::from_name(provider.profile()).unwrap();
    draft.adapter_version = profile.version().into();
    draft.model_profile_id = profile.as_str().into();
    let manifest = Manifest::new(tools.iter().map(|tool| ManifestTool::new(&*tool.name, &tool.parameters).unwrap()));
    let contract = Arc::new(draft.seal());
    let environment = Arc::new(Environment::new(manifest, provider.profile(), provider.fingerprint()));
    let (mut kernel, mut step) = Kernel::start(contract.clone(), environment, Millis(0));
    let mut transcript = Transcript::new(kernel.header());
    let (mut conversation, mut now, mut started) = (Vec::new(), Millis(0), 0);
    for _ in 0..100 {
        transcript.extend(std::mem::take(&mut step.entries));
        let input = match step.command {
            Command::Finish(ended) => {
                let stored = transcript.to_stored();
                verify(&contract, &stored, transcript.head(), transcript.len()).unwrap();
                return Ran { outcome: ended.agent_outcome, started, stored };
            }
            Command::Probe => Input::Readiness(Ok(())),
            Command::Infer(ask) => {
                conversation.extend(ask.append.iter().cloned());
                let offered: &[ToolSpec] = if ask.offer_tools { &tools } else { &[] };
                let hold_text = ask.hold_text;
                let request = ModelRequest { messages: conversation.clone(), hold_text, ..request(offered) };
                let reply = complete(provider, &request).unwrap();
                let wanted = Wanted { tool: "execute_program", language: "lua", compiles: &|_| Err("no".into()) };
                Input::Inferred(Box::new(Inference {
                    result: adapter::adapt(profile, &wanted, contract.strict_mode(), &reply),
                    usage: Some(Usage::default()),
                    prompt_bytes: 0,
                    chunks: Vec::new(),
                    cancelled: false,
                }))
            }
            Command::Execute(call) => {
                started += 1;
                match answer {
                    Answer::Text(text, times) => {
                        Input::executed(ToolEnvelope::Ok(Arc::new(Value::from(text.repeat(times)))))
                    }
                    Answer::TooLate => {
                        now = now + call.deadline + Millis(1);
                        Input::TimedOut { raw_hash: None }
                    }
                }
            }
        };
        step = kernel.step(now, input);
    }
    panic!("the run did not end");
}

fn strict(policy: ToolPolicy) -> ContractDraft {
    ContractDraft {
        strict_mode: true,
        token_gate: true,
        max_format_retries: 0,
        max_inferences: 4,
        completion_mode: CompletionMode::OnRequiredToolOk,
        ..ContractDraft::new(policy, "", "")
    }
}

/// The six cases of the corpus (EC-K1 to EC-K6). Where a scripted model narrates or sends a broken call, this one cannot:
/// those cases end as the first one does. The control is the same model without its gate.
#[test]
fn ec_mg2_the_corpus_with_random_weights_behind_the_gate() {
    let short = Answer::Text("fine", 1);
    let (mut narrated, mut spoke, mut chatted) = (0, 0, 0);
    for tokenizer in [Tokenizer::Pieces, Tokenizer::Merges] {
        let _anchors = [0, 1, 2].map(|weights| Llama::new(settings(&model(weights, tokenizer))).unwrap());
        for seed in 0..12 {
            let settings = LlamaSettings { seed, temperature: 1.0, ..settings(&model(seed as u64 % 3, tokenizer)) };
            let gated = Llama::new(settings.clone()).unwrap();
            // EC-K1, and with the same words EC-K2 and EC-K3: nothing is rejected, asked again or narrated.
            let ran = run(strict(ToolPolicy::Required), &gated, short);
            assert_eq!((ran.outcome, ran.started), (AgentOutcome::CompletedWithTools, 1));
            assert_eq!((ran.count("adapter"), ran.count("retry"), ran.count("nudge")), (1, 0, 0));
            let free = Llama::new(LlamaSettings { gated: false, ..settings }).unwrap();
            let control = run(strict(ToolPolicy::Required), &free, short);
            assert_eq!(control.started, 0);
            match control.outcome {
                AgentOutcome::FailedProtocolNoTools => narrated += 1,
                other => assert_eq!(other, AgentOutcome::FailedProtocolMalformed),
            }
            // EC-K4: no tool is offered, and what the model says is no call.
            let ran = run(strict(ToolPolicy::Forbidden), &gated, short);
            assert_eq!((ran.outcome, ran.started), (AgentOutcome::CompletedChatOnly, 0));
            // EC-IF6: where a call may come but need not, text is possible before the first.
            let ran = run(ContractDraft { token_gate: false, ..strict(ToolPolicy::Optional) }, &gated, short);
            match ran.outcome {
                AgentOutcome::CompletedChatOnly => chatted += 1,
                other => assert_eq!(other, AgentOutcome::CompletedWithTools),
            }
            // EC-K5: an oversized result is cut, and its run ends well.
            let mut oversized =
                ContractDraft { completion_mode: CompletionMode::OnNoCall, ..strict(ToolPolicy::Required) };
            oversized.tool_output_budget.max_bytes_per_call = 64;
            let ran = run(oversized, &gated, Answer::Text("x", 500));
            assert_eq!(
                (ran.outcome, ran.count("truncation")),
                (AgentOutcome::CompletedWithTools, ran.started as usize)
            );
            // EC-K6: the tool's time runs out.
            let ran = run(strict(ToolPolicy::Required), &gated, Answer::TooLate);
            assert_eq!((ran.outcome, ran.started), (AgentOutcome::FailedTimeout, 1));
            // After its call the model may speak, and does, unless it calls until its inferences are used up.
            let until_it_speaks =
                ContractDraft { completion_mode: CompletionMode::OnNoCall, ..strict(ToolPolicy::Required) };
            let ran = run(until_it_speaks, &gated, short);
            assert_eq!(ran.outcome, AgentOutcome::CompletedWithTools);
            assert_eq!(ran.count("retry"), 0);
            spoke += u32::from(ran.started == 1);
        }
    }
    assert!(narrated > 0 && spoke > 0 && chatted > 0, "{narrated} narrated, {spoke} spoke, {chatted} only chatted");
}

/// Damaged headers: numbers and letters of a whole file changed at random. Every one is refused or loaded, in a process of
/// its own. Of the first 200, three have a token twice in their vocabulary or a byte without one. `CADENZA_DAMAGED` asks
/// for another number of files.
#[test]
fn a_damaged_header_is_refused_or_loaded_and_never_ends_the_process() {
    let whole = tiny_gguf::bytes(&Tiny::default());
    // The header ends behind the last tensor's name.
    let last = b"ffn_down.weight";
    let header = whole.windows(last.len()).rposition(|window| window == last).unwrap() + 60;
    let folder = tempfile::tempdir().unwrap();
    let rounds: u64 = std::env::var("CADENZA_DAMAGED").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(200);
    for round in 0..rounds {
        let mut random = fastrand::Rng::with_seed(round);
        let mut damaged = whole.clone();
        for _ in 0..random.usize(1..4) {
            // Most of a header is vocabulary; what comes before it and behind it decides more.
            let at = if random.bool() { random.usize(4..700) } else { random.usize(4..header) };
            let any = random.u8(..);
            damaged[at] = random.choice([0, 1, 0x7f, 0x80, 0xff, any]).unwrap();
        }
        std::fs::write(folder.path().join(format!("{round}.gguf")), damaged).unwrap();
    }
    let mut from = 0;
    let mut ended = Vec::new();
    while from < rounds {
        let ran = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "damaged_victim", "--ignored", "--nocapture"])
            .env("CADENZA_DAMAGED_FILES", folder.path())
            .env("CADENZA_DAMAGED_FROM", from.to_string())
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&ran.stdout).into_owned();
        if ran.status.success() {
            break;
        }
        let last = words.lines().filter_map(|line| line.rsplit("file ").next()?.parse::<u64>().ok()).max().unwrap();
        ended.push((last, String::from_utf8_lossy(&ran.stderr).lines().last().unwrap_or_default().to_owned()));
        from = last + 1;
    }
    assert!(ended.is_empty(), "{} of {rounds} ended the process: {ended:#?}", ended.len());
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn damaged_victim() {
    let Some(folder) = std::env::var_os("CADENZA_DAMAGED_FILES") else { return };
    let from: u64 = std::env::var("CADENZA_DAMAGED_FROM").unwrap().parse().unwrap();
    for number in from.. {
        let path = Path::new(&folder).join(format!("{number}.gguf"));
        if !path.exists() {
            return;
        }
        println!("file {number}");
        if let Ok(provider) =
            Llama::new(LlamaSettings { context_size: Some(256), max_output_tokens: 8, ..settings(&path) })
        {
            let reply = complete(&provider, &request(&[execute_program()]));
            println!("loaded: {}", reply.is_ok());
        }
    }
}
