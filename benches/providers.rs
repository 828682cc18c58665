//! What the way to a model costs beside a bare client, in the same run and against the same small server.
//!
//! Wall time, medians of calls that take turns; the server answers at once with a fixed reply, so that the difference is
//! ours: the request written, the reply read, put together and handed over.

use std::future::Future;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use cadenza_core::cancel::CancelToken;
use cadenza_core::program::Language;
use cadenza_core::prompt;
use cadenza_core::provider::remote::{Remote, RemoteSettings, Vendor};
use cadenza_core::provider::targets::Targets;
use cadenza_core::provider::{ModelRequest, Output, Provider, ToolSpec};
use cadenza_core::runtime::wait;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Calls of each kind whose median counts.
const CALLS: usize = 400;
/// Bytes of the long stream.
const STREAM_BYTES: usize = 16 << 20;
/// Calls at once.
const MANY: usize = 1_000;

/// Overhead by dialect, the rate of a stream, and many calls over failing targets.
pub fn tables() {
    // The bare client is built without the core's help; when the core installed one before, that one stays.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let address = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        address
    });
    println!("\nmodels over HTTP, against a bare reqwest call in the same run (target: 5 % or 100 µs more)");
    for (vendor, name) in [
        (Vendor::OpenAi, "chat completions"),
        (Vendor::OpenAiResponses, "responses"),
        (Vendor::Anthropic, "anthropic"),
        (Vendor::Gemini, "gemini"),
        (Vendor::Ollama, "ollama"),
    ] {
        for stream in [false, true] {
            let (bare, ours) = beside_bare(&format!("http://{address}"), vendor, stream);
            let how = if stream { "in pieces" } else { "whole" };
            println!("{name:<17} {how:<10} bare {bare:>8.1} µs   ours {ours:>8.1} µs   {:>+7.1} µs", ours - bare);
        }
    }
    let settings = RemoteSettings {
        stream: Some(true),
        ..RemoteSettings::new(Vendor::OpenAi, "long", "long", format!("http://{address}/long"))
    };
    let provider = Remote::new(settings).expect("settings");
    let start = Instant::now();
    let reply = block_on(provider.complete(&request(), &CancelToken::default())).expect("a reply");
    let seconds = start.elapsed().as_secs_f64();
    assert!(reply.content.is_some_and(|text| text.len() > 1_000));
    println!("a stream of {} MiB: {:.0} MB/s", STREAM_BYTES >> 20, STREAM_BYTES as f64 / 1e6 / seconds);
    many(&format!("http://{address}"));
}

/// Medians in microseconds: a bare call, and ours, by turns.
fn beside_bare(root: &str, vendor: Vendor, stream: bool) -> (f64, f64) {
    let base = format!("{root}/{vendor:?}/{stream}");
    let settings = RemoteSettings {
        stream: Some(stream),
        output: Some(Output::Tool),
        ..RemoteSettings::new(vendor, "bench", "bench", &base)
    };
    let (provider, request, cancel) = (Remote::new(settings).expect("settings"), request(), CancelToken::default());
    let bare = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let client = reqwest::Client::builder().no_proxy().http1_only().tcp_nodelay(true).build().expect("a client");
    let sent = json!({"prompt": [&*request.system_prompt, &*request.user_prompt]}).to_string();
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let start = Instant::now();
        let url = format!("{base}/bare");
        let asked = client.post(url).header("content-type", "application/json").body(sent.clone());
        // On a worker, as ours is.
        let task = bare.spawn(async move { asked.send().await?.bytes().await });
        black_box(block_on(task).expect("a task").expect("a reply"));
        times.0.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        let reply = block_on(provider.complete(&request, &cancel)).expect("a reply");
        times.1.push(start.elapsed().as_secs_f64() * 1e6);
        assert_eq!(reply.tool_calls.len(), 1);
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[CALLS / 2]
    };
    (median(times.0), median(times.1))
}

/// A thousand calls at once over three targets, of which two fail at times.
fn many(root: &str) {
    let target = |name: &str| {
        let settings = RemoteSettings::new(Vendor::OpenAiCompatible, name, "bench", format!("{root}/faulty/{name}"));
        Arc::new(Remote::new(settings).expect("settings")) as Arc<dyn Provider>
    };
    let targets = Targets::new(vec![target("a"), target("b"), target("c")], 6).expect("targets");
    let (request, cancel) = (request(), CancelToken::default());
    let before = resident();
    let start = Instant::now();
    let mut calls: Vec<_> = (0..MANY).map(|_| Some(targets.complete(&request, &cancel))).collect();
    let (mut answered, mut most) = (0, before);
    block_on(std::future::poll_fn(|context| {
        for call in &mut calls {
            if let Some(future) = call
                && let Poll::Ready(reply) = future.as_mut().poll(context)
            {
                answered += usize::from(reply.is_ok());
                *call = None;
            }
        }
        most = most.max(resident());
        if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    }));
    let seconds = start.elapsed().as_secs_f64();
    let kib = most.saturating_sub(before) as f64 / 1024.0 / MANY as f64;
    println!("{MANY} calls at once, 3 targets, two failing: {:.0} calls/s, {answered} answered", MANY as f64 / seconds);
    println!("memory at the most: {kib:.1} KiB for each call, the server's side included");
}

/// Resident bytes of this process.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn request() -> ModelRequest {
    ModelRequest {
        role: "calculator".into(),
        method: "add".into(),
        args: [].into(),
        kwargs: Arc::default(),
        language: Language::Lua,
        system_prompt: "You write programs. ".repeat(200).into(),
        user_prompt: "Role: calculator\nMethod: add\n".repeat(20).into(),
        messages: Vec::new(),
        tools: [ToolSpec {
            name: "execute_program".into(),
            description: prompt::EXECUTE_PROGRAM_DESCRIPTION.into(),
            parameters: prompt::execute_program_parameters(Language::Lua),
        }]
        .into(),
        attempt: 1,
        timeout: Duration::from_secs(60),
        total: Duration::from_secs(60),
        max_output_tokens: None,
        hold_text: true,
        grammar: None,
        pieces: None,
    }
}

/// Answers every request on a connection, by its path.
async fn serve(mut stream: TcpStream) {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let mut buffer = Vec::new();
    loop {
        let Some(path) = read_request(&mut stream, &mut buffer).await else { return };
        let answer = if path.starts_with("/faulty/c") {
            tokio::time::sleep(Duration::from_millis(50)).await;
            http(200, "application/json", &reply("OpenAi", false))
        } else if path.starts_with("/faulty/") && ASKED.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            http(503, "application/json", r#"{"error":{"message":"overloaded","code":"server_is_overloaded"}}"#)
        } else if path.starts_with("/faulty/") {
            http(200, "application/json", &reply("OpenAi", false))
        } else if path.starts_with("/long/") {
            http(200, "text/event-stream", &long())
        } else {
            let mut parts = path.split('/').skip(1);
            let (vendor, stream) = (parts.next().unwrap_or_default(), parts.next() == Some("true"));
            let kind = match (stream, vendor) {
                (false, _) => "application/json",
                (true, "Ollama") => "application/x-ndjson",
                (true, _) => "text/event-stream",
            };
            http(200, kind, &reply(vendor, stream))
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The path of the next request; its body is passed over.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    buffer.clear();
    let head = loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8_lossy(&buffer[..head]).to_lowercase();
    let length: usize = text.split("content-length:").nth(1)?.split("\r\n").next()?.trim().parse().ok()?;
    let path = String::from_utf8_lossy(&buffer[..head]).split(' ').nth(1)?.to_owned();
    while buffer.len() < head + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some(path)
}

fn http(status: u16, kind: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A call of some 300 bytes in each vendor's form.
fn reply(vendor: &str, stream: bool) -> String {
    let arguments = json!({"code": "return args[1] + args[2] -- ".repeat(8), "language": "lua"});
    let text = arguments.to_string();
    let sse = |event: serde_json::Value| format!("data: {event}\n\n");
    let usage = json!({"prompt_tokens": 900, "completion_tokens": 80});
    let function = json!({"name": "execute_program", "arguments": text});
    match (vendor, stream) {
        ("OpenAiResponses", _) => {
            let item = json!({"type": "function_call", "call_id": "c", "name": "execute_program", "arguments": text});
            let usage = json!({"input_tokens": 900, "output_tokens": 80});
            let whole = json!({"status": "completed", "model": "m", "output": [item], "usage": usage});
            if !stream {
                return whole.to_string();
            }
            let deltas = cut(&text).map(|piece| {
                sse(json!({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": piece}))
            });
            deltas.collect::<String>() + &*sse(json!({"type": "response.completed", "response": whole}))
        }
        ("Anthropic", false) => json!({
            "content": [{"type": "tool_use", "id": "t", "name": "execute_program", "input": arguments}],
            "stop_reason": "tool_use", "model": "m", "usage": {"input_tokens": 900, "output_tokens": 80},
        })
        .to_string(),
        ("Anthropic", true) => {
            let block = json!({"type": "tool_use", "id": "t", "name": "execute_program", "input": {}});
            let mut events =
                sse(json!({"type": "message_start", "message": {"content": [], "model": "m", "usage": {}}}));
            events += &sse(json!({"type": "content_block_start", "index": 0, "content_block": block}));
            for piece in cut(&text) {
                let delta = json!({"type": "input_json_delta", "partial_json": piece});
                events += &sse(json!({"type": "content_block_delta", "index": 0, "delta": delta}));
            }
            events += &sse(json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}));
            events + &*sse(json!({"type": "message_stop"}))
        }
        ("Gemini", _) => {
            let part = json!({"functionCall": {"name": "execute_program", "args": arguments}});
            let candidate = json!({"content": {"parts": [part]}, "finishReason": "STOP"});
            let whole =
                json!({"candidates": [candidate], "modelVersion": "m", "usageMetadata": {"promptTokenCount": 9}});
            if stream { sse(whole) } else { whole.to_string() }
        }
        ("Ollama", _) => {
            let call = json!({"function": {"name": "execute_program", "arguments": arguments}});
            let message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
            json!({"model": "m", "message": message, "done": true, "done_reason": "stop", "eval_count": 80}).to_string()
                + "\n"
        }
        (_chat, false) => {
            let message = json!({"content": null, "tool_calls": [{"id": "c", "function": function}]});
            let choice = json!({"message": message, "finish_reason": "tool_calls"});
            json!({"choices": [choice], "model": "m", "usage": usage}).to_string()
        }
        (_chat, true) => {
            let delta = |delta| sse(json!({"model": "m", "choices": [{"index": 0, "delta": delta}]}));
            let head = json!({"index": 0, "id": "c", "function": {"name": "execute_program", "arguments": ""}});
            let mut events = delta(json!({"role": "assistant", "tool_calls": [head]}));
            for piece in cut(&text) {
                events += &delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}));
            }
            events += &sse(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}));
            events += &sse(json!({"choices": [], "usage": usage}));
            events + "data: [DONE]\n\n"
        }
    }
}

/// A text in pieces of some tokens.
fn cut(text: &str) -> impl Iterator<Item = &str> {
    text.as_bytes().chunks(12).map(|bytes| std::str::from_utf8(bytes).expect("ASCII"))
}

/// A chat completion in very many pieces.
fn long() -> String {
    let piece = json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_760_000_000, "model": "long",
        "system_fingerprint": "fp_1", "service_tier": "default",
        "choices": [{"index": 0, "delta": {"content": " and then"}, "logprobs": null, "finish_reason": null}],
        "usage": null, "obfuscation": "x7Qf2mVbA9",
    });
    let event = format!("data: {piece}\n\n");
    let mut body = event.repeat(STREAM_BYTES / event.len());
    body.push_str("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
    body
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    wait::block_on(future, &CancelToken::default())
}
