//! The local model against the bare loop of llama-cpp-2: tokens per second, the grammar's cost, and what a known prompt
//! saves. Both sides alternate in one run, each in a process of its own, because llama.cpp's state exists once in each.
//!
//! The model is a random one of some megabytes with a vocabulary of 32,000 tokens, or the file in `CADENZA_GGUF`.

use std::hint::black_box;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cadenza_core::cancel::CancelToken;
use cadenza_core::program::Language;
use cadenza_core::prompt;
use cadenza_core::provider::llama::gate::{Gate, Sampler, Sampling, Vocabulary};
use cadenza_core::provider::llama::schema::{Callable, call_grammar, prose_grammar};
use cadenza_core::provider::llama::{Llama, LlamaSettings};
use cadenza_core::provider::{ModelReply, ModelRequest, Provider as _, ToolSpec};
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::{LogOptions, send_logs_to_tracing};

#[path = "../tests/support/tiny_gguf.rs"]
#[expect(dead_code, reason = "the tests make further kinds of models with it")]
mod tiny_gguf;

use tiny_gguf::Tiny;

/// Tokens of one round.
const TOKENS: u32 = 128;

/// Rounds of each side.
const ROUNDS: usize = 15;

const PROMPT: &str = "Write a program that adds two numbers.";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => tables(),
        ["bare", path] => bare(Path::new(path)),
        _ => panic!("usage: cadenza-bench-llama"),
    }
}

fn threads() -> i32 {
    std::thread::available_parallelism().map_or(1, |cores| i32::try_from(cores.get()).unwrap_or(1))
}

fn tables() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = match std::env::var_os("CADENZA_GGUF") {
        Some(path) => PathBuf::from(path),
        None => {
            let path = folder.path().join("bench.gguf");
            let tiny = Tiny { layers: 8, embedding: 512, more_tokens: 31_600, seed: 3, ..Tiny::default() };
            tiny_gguf::write(&path, &tiny);
            path
        }
    };
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("model {} ({} MB), load {}", path.display(), bytes(&path) >> 20, load.trim());
    speed(&path);
    reuse(&path);
    grammar();
}

fn bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn settings(path: &Path) -> LlamaSettings {
    LlamaSettings { context_size: Some(4096), max_output_tokens: TOKENS, ..LlamaSettings::of(path) }
}

fn request(user: &str, tools: &[ToolSpec]) -> ModelRequest {
    ModelRequest {
        role: "calculator".into(),
        method: "add".into(),
        args: [].into(),
        kwargs: Arc::default(),
        language: Language::Lua,
        system_prompt: "You write programs.".into(),
        user_prompt: user.into(),
        messages: Vec::new(),
        tools: tools.into(),
        attempt: 1,
        timeout: Duration::from_secs(600),
        total: Duration::from_secs(600),
        max_output_tokens: None,
        hold_text: true,
        grammar: None,
        pieces: None,
    }
}

fn tool() -> ToolSpec {
    ToolSpec {
        name: "execute_program".into(),
        description: prompt::EXECUTE_PROGRAM_DESCRIPTION.into(),
        parameters: prompt::execute_program_parameters(Language::Lua),
    }
}

fn complete(runtime: &tokio::runtime::Runtime, provider: &Llama, request: &ModelRequest) -> (ModelReply, Duration) {
    let start = Instant::now();
    let reply = runtime.block_on(provider.complete(request, &CancelToken::default())).expect("a reply");
    (reply, start.elapsed())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

/// Microseconds per written token: the provider against the bare loop, and the gate against the provider without it.
fn speed(path: &Path) {
    let runtime = runtime();
    let free = Llama::new(LlamaSettings { gated: false, ..settings(path) }).expect("the model");
    let gated = Llama::new(settings(path)).expect("the model");
    let mut bare = Bare::start(path);
    let per_token = |provider: &Llama, tools: &[ToolSpec]| {
        let timed = |most| {
            let request = ModelRequest { max_output_tokens: Some(most), ..request(PROMPT, tools) };
            let (reply, took) = complete(&runtime, provider, &request);
            (reply.usage.expect("usage").output, took.as_secs_f64() * 1e6)
        };
        timed(TOKENS);
        // The prompt is known by then but for less than a piece of it; that, and all else that a request costs once, is
        // in both of these.
        let ((few, short), (many, long)) = (timed(TOKENS / 2), timed(TOKENS));
        assert!(many > few, "replies of {few} and {many} tokens");
        ((long - short) / (many - few) as f64, many)
    };
    let none: &[ToolSpec] = &[];
    let offered = [tool()];
    let mut rows = [
        ("provider without gate, no tools", "bare", &free, none, Vec::new(), 0),
        ("provider without gate, with a tool", "", &free, &offered[..], Vec::new(), 0),
        ("provider behind the gate, with a tool", "without gate, with a tool", &gated, &offered, Vec::new(), 0),
    ];
    let mut floor = Vec::new();
    for _ in 0..ROUNDS {
        floor.push(bare.round());
        for (_, _, provider, tools, micros, tokens) in &mut rows {
            let (one, written) = per_token(provider, tools);
            micros.push(one);
            *tokens = written;
        }
    }
    println!("\n| per written token | µs | tokens per second | speed of what it is compared to |\n|---|---|---|---|");
    let floor = median(floor);
    println!("| bare llama-cpp-2 loop, greedy ({TOKENS} tokens) | {floor:.1} | {:.1} | |", 1e6 / floor);
    // Each is compared to what has the same prompt: a long one makes every token slower.
    let mut before = floor;
    for (name, compared, _, _, micros, tokens) in rows {
        let micros = median(micros);
        let ratio = match compared {
            "" => String::new(),
            other => format!("{:.1} % of {other}", 100.0 * before / micros),
        };
        println!("| {name} ({tokens} tokens) | {micros:.1} | {:.1} | {ratio} |", 1e6 / micros);
        before = micros;
    }
}

/// A second prompt that begins like the first.
fn reuse(path: &Path) {
    let runtime = runtime();
    let provider = Llama::new(LlamaSettings { max_output_tokens: 8, context_size: Some(4095), ..settings(path) })
        .expect("the model");
    let system = "You write programs and nothing else. ".repeat(60);
    let ask = |user: &str| {
        let request = ModelRequest { system_prompt: system.as_str().into(), ..request(user, &[tool()]) };
        let (reply, took) = complete(&runtime, &provider, &request);
        (reply.usage.expect("usage"), took)
    };
    println!("\n| prompt | tokens | of them known | ms |\n|---|---|---|---|");
    for (name, user) in [("first", "Add."), ("another call, same beginning", "Multiply."), ("the same", "Multiply.")] {
        let (usage, took) = ask(user);
        println!("| {name} | {} | {} | {:.1} |", usage.input, usage.cached, took.as_secs_f64() * 1e3);
    }
}

/// The gate alone, without a model, over vocabularies of several sizes.
fn grammar() {
    println!("\n| vocabulary | gate made, ms | likeliest allowed, µs | likeliest refused, µs | bare argmax, µs |");
    println!("|---|---|---|---|---|");
    let never = || false;
    let tool = tool();
    let callable = [Callable { name: &tool.name, parameters: &tool.parameters, program: Some("code") }];
    for size in [32_000, 128_000] {
        let mut random = fastrand::Rng::with_seed(1);
        let mut pieces: Vec<Box<[u8]>> = (0..=255_u8).map(|byte| Box::from([byte])).collect();
        pieces.resize_with(size, || (0..random.usize(2..10)).map(|_| random.u8(b'!'..=b'~')).collect());
        let vocabulary = Arc::new(Vocabulary::new(pieces, vec![0]));
        let start = Instant::now();
        let gate = Gate::new(call_grammar(&callable).expect("a grammar"), vocabulary.clone(), &never).expect("a gate");
        let made = start.elapsed();
        black_box(Gate::new(prose_grammar().expect("a grammar"), vocabulary, &never).expect("a gate"));
        let mut logits: Vec<f32> = (0..size).map(|_| random.f32()).collect();
        let state = gate.after(gate.start(), u32::from(b'x'), 1000).expect("x may stand in a program");
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, repeat_penalty: 1.0 };
        let mut sampler = Sampler::new(sampling, 0);
        let mut time = |logits: &[f32], gated: bool| {
            let times = (0..201).map(|_| {
                let start = Instant::now();
                black_box(sampler.choose(black_box(logits), gated.then_some((&gate, state, 1000))));
                start.elapsed().as_secs_f64() * 1e6
            });
            median(times.collect())
        };
        logits[usize::from(b'y')] = 2.0;
        let (allowed, argmax) = (time(&logits, true), time(&logits, false));
        // A byte that begins no character.
        logits[0xff] = 3.0;
        let refused = time(&logits, true);
        println!("| {size} | {:.1} | {allowed:.1} | {refused:.1} | {argmax:.1} |", made.as_secs_f64() * 1e3);
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The other process.
struct Bare {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Bare {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["bare".as_ref(), path.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    fn round(&mut self) -> f64 {
        writeln!(self.stdin, "go").expect("the second process listens");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the second process answers");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The smallest loop that writes text: one round for each line that comes in, microseconds per token go out.
fn bare(path: &Path) {
    send_logs_to_tracing(LogOptions::default());
    let backend = LlamaBackend::init().expect("llama.cpp");
    let model = LlamaModel::load_from_file(&backend, path, &LlamaModelParams::default()).expect("the model");
    let parameters = LlamaContextParams::default()
        .with_n_ctx(std::num::NonZeroU32::new(4096))
        .with_n_threads(threads())
        .with_n_threads_batch(threads())
        .with_no_perf(true);
    let mut context = model.new_context(&backend, parameters).expect("a context");
    let vocabulary = model.vocab();
    let mut batch = LlamaBatch::new(512, 1);
    for _line in std::io::stdin().lines() {
        context.clear_kv_cache();
        let prompt = vocabulary.tokenize(PROMPT.as_bytes(), true, false);
        batch.clear();
        batch.add_sequence(&prompt, 0, false).expect("room");
        context.decode(&mut batch).expect("decoded");
        let mut sampler = LlamaSampler::greedy();
        let behind = i32::try_from(prompt.len()).expect("a short prompt");
        let mut text = Vec::new();
        let start = Instant::now();
        for (position, _) in (behind..).zip(0..TOKENS) {
            let token = sampler.sample(&context, -1);
            text.extend(vocabulary.token_to_piece(token, false, None));
            batch.clear();
            batch.add(token, position, &[0], true).expect("room");
            context.decode(&mut batch).expect("decoded");
        }
        black_box(text);
        println!("{}", start.elapsed().as_secs_f64() * 1e6 / f64::from(TOKENS));
    }
}
