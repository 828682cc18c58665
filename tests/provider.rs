//! Providers through their public face: the scripted model, real HTTP against a local server, lists of targets, and
//! how a model is chosen. Everything is polled by a plain `block_on` on a thread without a runtime.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use cadenza_core::cancel::CancelToken;
use cadenza_core::message::{AgentMessage, CallFormat, MessageRole, RejectionCode, ToolInvocation};
use cadenza_core::outcome::ProgramSource;
use cadenza_core::program::Language;
use cadenza_core::prompt;
use cadenza_core::provider::local;
use cadenza_core::provider::remote::{Remote, RemoteSettings, Vendor};
use cadenza_core::provider::resolve::ResolveProblem;
use cadenza_core::provider::scripted::{Plan, PlanError, PlanItem, Played};
use cadenza_core::provider::target::{Params, TargetOptions};
use cadenza_core::provider::targets::Targets;
use cadenza_core::provider::{
    ModelReply, ModelRequest, ModelSettings, ModelSpec, Origin, Output, Provider, ProviderError, ProviderErrorClass,
    ReplyFuture, Scripted, Secret, ToolSpec, resolve,
};
use cadenza_core::value::{Map, Value};
use serde_json::{Value as Json, json};

#[path = "support/block_on.rs"]
mod executor;

#[path = "support/wire_server.rs"]
#[allow(dead_code, reason = "shared with an example that uses less of it")]
mod wire_server;

#[cfg(feature = "lua")]
#[path = "provider/calls.rs"]
mod calls;
#[path = "provider/dialects.rs"]
mod dialects;
#[path = "provider/hostile.rs"]
mod hostile;

use wire_server::{Answer, WireServer, fixtures};

const KEY: &str = "sk-test-0123456789abcdef";

fn block_on<T>(future: impl Future<Output = T>) -> T {
    executor::block_on(future, Duration::from_secs(60))
}

/// Polls many futures on this one thread until all are done.
fn join_all<T>(futures: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Some).collect();
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    block_on(std::future::poll_fn(|context| {
        for (slot, out) in futures.iter_mut().zip(&mut done) {
            if let Some(future) = slot
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                (*slot, *out) = (None, Some(value));
            }
        }
        if futures.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    }));
    done.into_iter().map(Option::unwrap).collect()
}

fn request(role: &str, method: &str) -> ModelRequest {
    let (kwargs, context) = (Map::new(), Map::new());
    let tools = prompt::ToolDocs::default();
    let made = prompt::build(&prompt::PromptInput {
        role,
        method,
        args: &[],
        kwargs: &kwargs,
        language: Language::Lua,
        contract: prompt::PromptContract::default(),
        context: &context,
        history: &[],
        tools: &tools,
        delegates: &[],
        format: CallFormat::Any,
    });
    ModelRequest {
        role: role.into(),
        method: method.into(),
        args: [].into(),
        kwargs: Arc::default(),
        language: Language::Lua,
        system_prompt: made.system,
        user_prompt: made.user,
        messages: Vec::new(),
        tools: [ToolSpec {
            name: "execute_program".into(),
            description: prompt::EXECUTE_PROGRAM_DESCRIPTION.into(),
            parameters: prompt::execute_program_parameters(Language::Lua),
        }]
        .into(),
        attempt: 1,
        timeout: Duration::from_secs(10),
        total: Duration::from_secs(10),
        max_output_tokens: None,
        hold_text: true,
        grammar: None,
        pieces: None,
    }
}

fn complete(provider: &dyn Provider, request: &ModelRequest) -> Result<ModelReply, ProviderError> {
    block_on(provider.complete(request, &CancelToken::default()))
}

fn settings(vendor: Vendor, base_url: &str) -> RemoteSettings {
    RemoteSettings { key: Secret::new(KEY), ..RemoteSettings::new(vendor, "openai:test", "test", base_url) }
}

fn openai(base_url: &str) -> Remote {
    Remote::new(settings(Vendor::OpenAi, base_url)).unwrap()
}

fn asking_for(output: Output, base_url: &str) -> Remote {
    Remote::new(RemoteSettings { output: Some(output), ..settings(Vendor::OpenAi, base_url) }).unwrap()
}

fn ask(server: &WireServer) -> Result<ModelReply, ProviderError> {
    complete(&openai(&server.base_url()), &request("calculator", "add"))
}

mod scripted {
    use super::*;

    fn catalogue(id: &str) -> Option<PlanItem> {
        match id {
            "nil" => Some(PlanItem::Null),
            "blank" => Some(PlanItem::Blank),
            "return_42" => {
                let texts = [(Language::Lua, "return 42"), (Language::Rhai, "return 42;")];
                Some(PlanItem::Program(texts.map(|(language, text)| (language, text.into())).into()))
            }
            "lua_only" => Some(PlanItem::Program(BTreeMap::from([(Language::Lua, "return 1".into())]))),
            _unknown => None,
        }
    }

    #[test]
    fn a_plan_is_played_in_sequence_and_its_last_id_repeats() {
        let plan = Plan::from_ids([("add", vec!["nil", "blank", "return_42"])], catalogue).unwrap();
        let model = Scripted::plan(plan);
        let add = request("calculator", "add");
        let texts: Vec<_> = (0..4).map(|_| complete(&model, &add).unwrap().content).collect();
        assert_eq!(texts[0], None);
        assert!(texts[1].as_deref().is_some_and(|text| text.trim().is_empty()));
        assert_eq!(texts[2..], [Some("return 42".to_owned()), Some("return 42".to_owned())]);
        assert_eq!((model.requests(), model.requests_for("add")), (4, 4));
        assert_eq!(model.overruns(), ["add"]);
        assert_eq!(model.model(), "scripted");
    }

    #[test]
    fn a_plan_ignores_the_role_and_follows_the_language() {
        let model = Scripted::plan(Plan::from_ids([("add", vec!["return_42"])], catalogue).unwrap());
        let rhai = ModelRequest { language: Language::Rhai, ..request("anyone", "add") };
        assert_eq!(complete(&model, &rhai).unwrap().content.unwrap(), "return 42;");
    }

    /// AC-9: a method missing from an existing plan is a provider failure that names it; it counts all the same.
    #[test]
    fn ac_9_a_method_outside_the_plan_is_a_provider_failure() {
        let plan = Plan::from_ids([("add", vec!["return_42"]), ("one", vec!["lua_only"])], catalogue).unwrap();
        let model = Scripted::plan(plan);
        let error = complete(&model, &request("calculator", "divide")).unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::Failed);
        assert!(error.message.contains("`divide`") && error.message.contains("add, one"), "{error}");
        let rhai = ModelRequest { language: Language::Rhai, ..request("calculator", "one") };
        assert!(complete(&model, &rhai).unwrap_err().message.contains("`lua_only` has no rhai text"));
        assert_eq!((model.requests(), model.requests_for("divide")), (2, 1));
        assert!(model.overruns().is_empty());
    }

    #[test]
    fn an_unknown_id_is_an_error_of_the_plan() {
        let unknown = Plan::from_ids([("add", vec!["no_such"])], catalogue).unwrap_err();
        assert_eq!(unknown, PlanError::UnknownId { method: "add".into(), id: "no_such".into() });
        assert!(matches!(Plan::from_ids([("add", vec![])], catalogue), Err(PlanError::EmptySequence { .. })));
    }

    #[test]
    fn without_a_plan_behaviour_follows_role_and_method() {
        let model = Scripted::by_call();
        assert!(model.behave("calculator", "add", Played::Program("return 1".into())));
        assert!(model.behave("calculator", "fail", Played::Fail("out of order".into())));
        assert_eq!(complete(&model, &request("calculator", "add")).unwrap().content.unwrap(), "return 1");
        assert_eq!(complete(&model, &request("calculator", "fail")).unwrap_err().message, "out of order");
        assert!(complete(&model, &request("tutor", "add")).unwrap_err().message.contains("role `tutor`"));
        assert!(!Scripted::plan(Plan::new()).behave("calculator", "add", Played::Null));
        assert_eq!(complete(&Scripted::always(Played::Null), &request("a", "b")).unwrap(), ModelReply::default());
    }

    #[test]
    fn a_closure_answers() {
        let model = Scripted::respond(|request| {
            Ok(ModelReply::call("1", "execute_program", format!("{{\"code\":\"return {}\"}}", request.attempt)))
        })
        .named("mine");
        let reply = complete(&model, &request("a", "b")).unwrap();
        assert_eq!(reply.tool_calls[0].arguments, r#"{"code":"return 1"}"#);
        assert_eq!(model.model(), "mine");
    }

    /// AC-14: it really waits, gives up by itself within the timeout, and at once when cancelled.
    #[test]
    fn ac_14_a_block_ends_with_the_timeout_or_the_cancel() {
        let model = Scripted::always(Played::Block);
        let short = ModelRequest { timeout: Duration::from_millis(50), ..request("a", "b") };
        let start = Instant::now();
        assert_eq!(complete(&model, &short).unwrap_err().class, ProviderErrorClass::Timeout);
        assert!((50..9_000).contains(&start.elapsed().as_millis()));

        let cancel = CancelToken::default();
        let stopper = cancel.clone();
        let stop = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            stopper.cancel();
        });
        let start = Instant::now();
        let error = block_on(model.complete(&request("a", "b"), &cancel)).unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::Cancelled);
        assert!(start.elapsed() < Duration::from_secs(9));
        stop.join().unwrap();
    }

    /// EC-T1.1: a token that asks its host is asked while a request waits, on the thread that waits.
    #[test]
    fn ec_t1_1_the_host_is_asked_while_a_request_waits() {
        let me = thread::current().id();
        let start = Instant::now();
        let cancel = CancelToken::with_poll(move || {
            assert_eq!(thread::current().id(), me);
            start.elapsed() > Duration::from_millis(60)
        });
        let model = Scripted::always(Played::Block);
        let error = block_on(model.complete(&request("a", "b"), &cancel)).unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::Cancelled);
        assert!(start.elapsed() < Duration::from_secs(9));
    }

    #[test]
    fn an_instant_answer_is_cheap() {
        let model = Scripted::program("return 1");
        let add = request("a", "b");
        let cheapest = (0..200)
            .map(|_| {
                let start = Instant::now();
                complete(&model, &add).unwrap();
                start.elapsed()
            })
            .min()
            .unwrap();
        assert!(cheapest < Duration::from_micros(50), "{cheapest:?}");
    }
}

mod wire {
    use super::*;

    #[test]
    fn a_program_comes_back_as_a_forced_tool_call() {
        let server =
            WireServer::start(Some(KEY), |seen| Answer::Program(format!("return {:?}", seen.method().unwrap())));
        let mut settings = settings(Vendor::OpenAi, &server.base_url());
        settings.headers = vec![("openai-organization".into(), Secret::unlisted("org-1").unwrap())];
        let provider = Remote::new(settings).unwrap();
        let request = ModelRequest { max_output_tokens: Some(900), ..request("calculator", "add") };
        let reply = complete(&provider, &request).unwrap();

        assert_eq!(reply.content, None);
        assert_eq!(reply.tool_calls[0].name, "execute_program");
        let arguments: Json = serde_json::from_str(&reply.tool_calls[0].arguments).unwrap();
        assert_eq!(arguments, json!({"code": "return \"add\"", "language": "lua"}));
        assert_eq!(reply.stop_reason.as_deref(), Some("tool_calls"));
        assert_eq!(reply.model.as_deref(), Some("test-2026-10-01"));
        assert!(reply.usage.is_some_and(|usage| usage.input > 100 && usage.output > 0 && usage.cached == 16));
        assert_eq!(reply.source, None);

        let seen = &server.seen()[0];
        assert_eq!(seen.headers["authorization"], format!("Bearer {KEY}"));
        assert_eq!(seen.headers["openai-organization"], "org-1");
        assert_eq!(seen.body["model"], "test");
        assert_eq!(seen.body["messages"][0], json!({"role": "system", "content": &*request.system_prompt}));
        assert_eq!(seen.body["messages"][1], json!({"role": "user", "content": &*request.user_prompt}));
        assert_eq!(seen.body["tool_choice"], json!({"type": "function", "function": {"name": "execute_program"}}));
        assert_eq!(seen.body["tools"][0]["function"]["parameters"]["required"], json!(["code", "language"]));
        assert_eq!(seen.body["max_completion_tokens"], 900);
    }

    #[test]
    fn structured_output_comes_back_as_the_same_call() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let settings = settings(Vendor::OpenAiCompatible, &server.base_url());
        let provider = Remote::new(RemoteSettings { output: Some(Output::JsonSchema), ..settings }).unwrap();
        let request = ModelRequest { max_output_tokens: Some(9), ..request("calculator", "add") };
        let reply = complete(&provider, &request).unwrap();
        assert_eq!(reply.content, None);
        assert_eq!(reply.tool_calls[0].name, "execute_program");
        assert_eq!(reply.tool_calls[0].arguments, r#"{"code":"return 1","language":"lua"}"#);
        let body = &server.seen()[0].body;
        assert_eq!(body["response_format"]["json_schema"]["name"], "execute_program");
        assert_eq!(body["response_format"]["json_schema"]["strict"], true);
        assert!(body.get("tools").is_none() && body["max_tokens"] == 9);
    }

    #[test]
    fn plain_text_comes_back_as_text() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let provider = asking_for(Output::Text, &server.base_url());
        let reply = complete(&provider, &request("calculator", "add")).unwrap();
        assert_eq!((reply.content.as_deref(), reply.tool_calls.len()), (Some("return 1"), 0));
        let body = &server.seen()[0].body;
        assert!(body.get("tools").is_none() && body.get("tool_choice").is_none());
    }

    /// EC-T4.8: a synthesis offers no tools.
    #[test]
    fn ec_t4_8_no_tools_are_offered_when_there_are_none() {
        let server = WireServer::always(Answer::Program("done".into()));
        for output in Output::ALL {
            let provider = asking_for(output, &server.base_url());
            let synthesis = ModelRequest { tools: [].into(), ..request("a", "b") };
            assert_eq!(complete(&provider, &synthesis).unwrap().content.as_deref(), Some("done"));
        }
        for seen in server.seen() {
            assert!(["tools", "tool_choice", "response_format"].iter().all(|name| seen.body.get(name).is_none()));
        }
    }

    /// EC-R6: what goes out after a rejected reply is the feedback, without the reply as assistant text.
    #[test]
    fn ec_r6_feedback_goes_out_as_a_user_message() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let feedback = prompt::rejected(RejectionCode::Syntax, "line 1: oops", Language::Lua, CallFormat::Any);
        let again = ModelRequest { messages: vec![feedback], attempt: 2, ..request("a", "b") };
        complete(&openai(&server.base_url()), &again).unwrap();
        let messages = server.seen()[0].body["messages"].as_array().unwrap().clone();
        let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "user"]);
        assert!(messages[2]["content"].as_str().unwrap().contains("line 1: oops"));
    }

    /// EC-S12: a conversation keeps its order and ids on the wire.
    #[test]
    fn ec_s12_observations_follow_their_calls() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let call = ToolInvocation {
            id: "s1.0".into(),
            name: "execute_program".into(),
            arguments: Map::from([("code".into(), "return 1".into())]),
            source_model: "test".into(),
            raw_payload: None,
        };
        let messages = vec![
            AgentMessage {
                role: MessageRole::Assistant,
                content: String::new(),
                tool_calls: vec![call],
                tool_call_id: None,
            },
            AgentMessage {
                role: MessageRole::Tool,
                content: "1".into(),
                tool_calls: Vec::new(),
                tool_call_id: Some("s1.0".into()),
            },
        ];
        complete(&openai(&server.base_url()), &ModelRequest { messages, ..request("a", "b") }).unwrap();
        let body = &server.seen()[0].body;
        let wire = json!({"id": "s1.0", "type": "function",
            "function": {"name": "execute_program", "arguments": "{\"code\":\"return 1\"}"}});
        assert_eq!(body["messages"][2], json!({"role": "assistant", "content": null, "tool_calls": [wire]}));
        assert_eq!(body["messages"][3], json!({"role": "tool", "tool_call_id": "s1.0", "content": "1"}));
    }

    #[test]
    fn unusual_replies_are_mapped_as_they_came() {
        let reply = |message: Json, finish| ask(&WireServer::always(Answer::Message(message, finish))).unwrap();
        let parts = json!({"content": [{"type": "text", "text": "return "}, {"type": "text", "text": "1"}]});
        assert_eq!(reply(parts, "stop").content.as_deref(), Some("return 1"));
        let object = json!({"tool_calls": [{"function": {"name": "execute_program", "arguments": {"code": "x"}}}]});
        let call = reply(object, "tool_calls").tool_calls.remove(0);
        assert_eq!((call.id.as_str(), call.arguments.as_str()), ("", r#"{"code":"x"}"#));
        let nothing = json!({"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": null}}]});
        assert_eq!(reply(nothing, "tool_calls").tool_calls[0].arguments, "");
        let legacy = json!({"content": null, "function_call": {"name": "f", "arguments": "{"}});
        assert_eq!(reply(legacy, "function_call").tool_calls[0].arguments, "{");
        // V35: an empty reply is the adapter's to reject.
        let empty = reply(json!({"content": ""}), "length");
        assert_eq!((empty.content.as_deref(), empty.stop_reason.as_deref()), (Some(""), Some("length")));
        assert_eq!(reply(json!({"content": null}), "stop").content, None);
    }

    /// SC-3.05 to 3.08: seconds, dates, milliseconds; the delay of a body is in the recorded refusals.
    #[test]
    fn sc_3_05_waits_in_every_form_are_understood() {
        let wait = |headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let refusal = Answer::Raw { status: 429, headers, body: b"{}".to_vec() };
            ask(&WireServer::always(refusal)).unwrap_err().retry_after
        };
        let soon = httpdate_in(Duration::from_secs(9));
        let near = |wait: Option<Duration>, seconds: u64| {
            let wait = wait.unwrap();
            assert!(
                wait <= Duration::from_secs(seconds) && wait + Duration::from_secs(2) >= Duration::from_secs(seconds),
                "{wait:?}"
            );
        };
        near(wait(&[("retry-after", &soon)]), 9);
        let reset = jiff::Timestamp::now() + Duration::from_secs(20);
        near(wait(&[("anthropic-ratelimit-tokens-reset", &reset.to_string())]), 20);
        near(wait(&[("x-ratelimit-reset", &reset.as_second().to_string())]), 20);
        assert_eq!(wait(&[("retry-after-ms", "250")]), Some(Duration::from_millis(250)));
        assert_eq!(wait(&[("retry-after", "nonsense")]), None);
        assert_eq!(wait(&[("retry-after", "-5")]), Some(Duration::ZERO));
        assert_eq!(wait(&[("retry-after", "1e300")]), Some(Duration::from_secs(24 * 60 * 60)));
        assert_eq!(wait(&[("retry-after", "NaN")]), None);
        // The limit that is used up decides, not the longest.
        let limits = [
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "2s"),
            ("x-ratelimit-remaining-tokens", "10"),
            ("x-ratelimit-reset-tokens", "9s"),
        ];
        assert_eq!(wait(&limits), Some(Duration::from_secs(2)));
        let later = reset + Duration::from_secs(30);
        let limits = [
            ("anthropic-ratelimit-requests-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", &*reset.to_string()),
            ("anthropic-ratelimit-tokens-remaining", "10"),
            ("anthropic-ratelimit-tokens-reset", &*later.to_string()),
        ];
        near(wait(&limits), 20);
        // Of several, the longest.
        let (requests, tokens) = ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens");
        let used_up = [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-remaining-tokens", "0")];
        for limits in [[(requests, "2s"), (tokens, "9s")], [(requests, "9s"), (tokens, "2s")]] {
            assert_eq!(wait(&limits), Some(Duration::from_secs(9)));
            assert_eq!(wait(&[used_up, limits].concat()), Some(Duration::from_secs(9)));
        }
        for (text, seconds) in [("1h2m", 3_720), ("0.5d", 43_200), ("1500ms2.5s", 4)] {
            assert_eq!(wait(&[(tokens, text)]), Some(Duration::from_secs(seconds)), "{text}");
        }
        near(wait(&[("x-ratelimit-reset", &reset.as_millisecond().to_string())]), 20);
        // What is left of a limit says nothing of a server that failed.
        let failed = vec![(tokens.to_owned(), "9s".to_owned())];
        let failed = Answer::Raw { status: 500, headers: failed, body: b"{}".to_vec() };
        assert_eq!(ask(&WireServer::always(failed)).unwrap_err().retry_after, None);
    }

    fn httpdate_in(wait: Duration) -> String {
        let stamp = jiff::Timestamp::now() + wait;
        stamp.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
    }
}

mod lying_servers {
    use super::*;

    /// Serves `count` connections by hand: reads the request, writes these bytes, closes.
    fn raw_server(count: usize, reply: &'static [u8]) -> (String, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            for _ in 0..count {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let _ = stream.read(&mut [0; 64 << 10]);
                let _ = stream.write_all(reply);
            }
        });
        (base_url, server)
    }

    fn expect(answer: Answer, class: ProviderErrorClass, words: &str) {
        let error = ask(&WireServer::always(answer)).unwrap_err();
        assert_eq!(error.class, class, "{error}");
        assert!(error.message.contains(words), "{words:?} is not in: {error}");
    }

    fn typed(kind: &str, body: &[u8]) -> Answer {
        Answer::Raw { status: 200, headers: vec![("content-type".into(), kind.into())], body: body.to_vec() }
    }

    #[test]
    fn sc_3_22_what_is_no_completion_is_an_invalid_response() {
        let invalid = ProviderErrorClass::InvalidResponse;
        expect(typed("text/html", b"<html><h1>It works</h1></html>"), invalid, "the reply is text/html, not JSON");
        expect(typed("text/event-stream", b"data: {}\n\n"), invalid, "text/event-stream");
        expect(typed("application/json", b"{\"choices\": [{\"mess"), invalid, "broken JSON");
        expect(typed("application/json", b""), invalid, "the reply is empty");
        expect(typed("application/json", b"\xff\xfe{}"), invalid, "not UTF-8 (byte 0)");
        expect(typed("application/json", b"[1,2]"), invalid, "no `choices`");
        expect(typed("application/json", b"null"), invalid, "no `choices`");
        expect(Answer::json(&json!({"id": "x"})), invalid, "no `choices`");
        expect(Answer::json(&json!({"choices": []})), invalid, "no `choices`");
        expect(Answer::json(&json!({"choices": [{"finish_reason": "stop"}]})), invalid, "no `message`");
        let deep = "[".repeat(100_000);
        expect(typed("application/json", deep.as_bytes()), invalid, "broken JSON");
        let refused = json!({"content": null, "refusal": "I cannot help with that."});
        expect(Answer::Message(refused, "stop"), invalid, "I cannot help with that.");
        expect(Answer::Message(json!({"content": ""}), "content_filter"), invalid, "content filter");
        let full = Answer::Message(json!({"content": ""}), "model_context_window_exceeded");
        expect(full, ProviderErrorClass::ContextOverflow, "context window is full");
        let elsewhere = vec![("location".into(), "https://elsewhere.invalid/".into())];
        expect(Answer::Raw { status: 307, headers: elsewhere, body: Vec::new() }, invalid, "elsewhere.invalid");
    }

    #[test]
    fn fifty_megabytes_are_not_read() {
        let start = Instant::now();
        let piece = vec![b' '; 1 << 20];
        let flood = Answer::Drip { kind: "application/json", pieces: vec![piece; 50], pause: Duration::ZERO };
        expect(flood, ProviderErrorClass::InvalidResponse, "larger than 8388608 bytes");
        let refusal = Answer::Raw { status: 500, headers: Vec::new(), body: vec![b'x'; 50 << 20] };
        expect(refusal, ProviderErrorClass::Network, "HTTP 500");
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_connection_that_breaks_is_a_network_failure() {
        let replies: [(&'static [u8], &str); 4] = [
            (b"", "the exchange broke"),
            (b"\x00\x01\x02 nonsense\r\n\r\n", "the exchange broke"),
            (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"cho", "broke"),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "broke"),
        ];
        for (reply, words) in replies {
            let (base_url, server) = raw_server(1, reply);
            let error = complete(&openai(&base_url), &request("a", "b")).unwrap_err();
            assert_eq!(error.class, ProviderErrorClass::Network, "{error}");
            assert!(error.message.contains(words), "{error}");
            server.join().unwrap();
        }
    }

    #[test]
    fn sc_3_16_nobody_there_is_a_network_failure() {
        // A port that was free a moment ago may be another test's by now.
        let closed = "127.0.0.1:1";
        for (base_url, words) in [
            (format!("http://{closed}/v1"), "no connection (127.0.0.1:"),
            (format!("https://{closed}/v1"), "no connection (127.0.0.1:"),
            ("http://no-such-host.invalid/v1".to_owned(), "no-such-host.invalid"),
        ] {
            let error = complete(&openai(&base_url), &request("a", "b")).unwrap_err();
            assert_eq!(error.class, ProviderErrorClass::Network, "{error}");
            assert!(error.message.contains(words), "{error}");
        }
        // TLS against a server that does not speak it.
        let server = WireServer::always(Answer::Hang);
        let base_url = server.base_url().replace("http:", "https:");
        let error = complete(&openai(&base_url), &request("a", "b")).unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::Network, "{error}");
    }

    /// EC-T1.2: silence, and bytes that come too slowly, end with the request's own timeout.
    #[test]
    fn ec_t1_2_silence_ends_with_the_timeout() {
        let body = json!({"choices": [{"message": {"content": "return 1"}}]}).to_string();
        let slow = Answer::Drip {
            kind: "application/json",
            pieces: body.bytes().map(|byte| vec![byte]).collect(),
            pause: Duration::from_millis(20),
        };
        for answer in [Answer::Hang, slow] {
            let server = WireServer::always(answer);
            let short = ModelRequest { timeout: Duration::from_millis(150), ..request("a", "b") };
            let start = Instant::now();
            let error = complete(&openai(&server.base_url()), &short).unwrap_err();
            assert_eq!(error.class, ProviderErrorClass::Timeout);
            assert!(error.message.contains("within 0.15 s"), "{error}");
            assert!((150..9_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        }
    }

    /// Promise 5: a key never comes back out, whatever the server does with it.
    #[test]
    fn a_key_that_a_server_echoes_is_masked() {
        let echo = json!({"error": {"message": format!("Incorrect API key: {KEY}"), "code": KEY}});
        let refusals = [
            Answer::Raw {
                status: 401,
                headers: vec![("content-type".into(), "application/json".into())],
                body: echo.to_string().into_bytes(),
            },
            Answer::Raw { status: 500, headers: Vec::new(), body: format!("Authorization: Bearer {KEY}").into_bytes() },
            Answer::Raw { status: 302, headers: vec![("location".into(), format!("/?{KEY}"))], body: Vec::new() },
            Answer::Raw { status: 200, headers: vec![("content-type".into(), KEY.into())], body: KEY.into() },
            typed("application/json", KEY.as_bytes()),
        ];
        for refusal in refusals {
            let error = ask(&WireServer::always(refusal)).unwrap_err();
            assert!(!format!("{error} {error:?}").contains(KEY), "{error}");
        }
        let echo = Answer::Message(json!({"content": format!("return '{KEY}'")}), "stop");
        let reply = ask(&WireServer::always(echo)).unwrap();
        assert_eq!(reply.content.as_deref(), Some("return '[secret]'"));
        let provider = openai("http://127.0.0.1:1/v1");
        assert!(!format!("{provider:?} {} {}", provider.model(), provider.fingerprint()).contains(KEY));
    }
}

mod waiting {
    use super::*;

    /// EC-T1.1: a cancelled request gives up at once, and its connection is closed.
    #[test]
    fn ec_t1_1_cancel_and_drop_end_the_request_at_the_server() {
        let server = WireServer::always(Answer::Hang);
        let provider = openai(&server.base_url());
        let request = request("a", "b");
        let cancel = CancelToken::default();
        let stopper = cancel.clone();
        thread::scope(|scope| {
            let server = &server;
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(100));
                arrived(server);
                stopper.cancel();
            });
            let start = Instant::now();
            let error = block_on(provider.complete(&request, &cancel)).unwrap_err();
            assert_eq!(error.class, ProviderErrorClass::Cancelled);
            assert!((100..9_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        });
        gone(&server);
        // Already cancelled: nothing is sent.
        assert!(block_on(provider.complete(&request, &cancel)).is_err());
        assert_eq!(server.seen().len(), 1);

        let cancel = CancelToken::default();
        let mut future = provider.complete(&request, &cancel);
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        arrived(&server);
        drop(future);
        gone(&server);
    }

    fn arrived(server: &WireServer) {
        let start = Instant::now();
        while server.waiting() == 0 && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn gone(server: &WireServer) {
        let start = Instant::now();
        while server.waiting() > 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "the connection is still open");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn many_requests_wait_at_once_on_one_thread() {
        const MANY: usize = 500;
        let later = Answer::After(Duration::from_secs(5), Box::new(Answer::Program("return 1".into())));
        let server = WireServer::always(later);
        let provider = openai(&server.base_url());
        let request =
            ModelRequest { timeout: Duration::from_secs(50), total: Duration::from_secs(50), ..request("a", "b") };
        let cancel = CancelToken::default();
        let start = Instant::now();
        let replies = join_all((0..MANY).map(|_| provider.complete(&request, &cancel)).collect());
        assert!(replies.iter().all(Result::is_ok), "{:?}", replies.iter().find(|reply| reply.is_err()));
        assert!(server.most_waiting() > MANY / 2, "{} at once", server.most_waiting());
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }

    /// A host that has its own runtime may poll there too, on any flavour.
    #[test]
    fn a_future_may_be_polled_inside_a_runtime() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let provider = openai(&server.base_url());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let reply = runtime.block_on(provider.complete(&request("a", "b"), &CancelToken::default()));
        assert!(reply.is_ok());
    }

    /// A forked child has none of its parent's threads (Python's multiprocessing): it makes its own.
    #[cfg(unix)]
    #[test]
    fn a_forked_child_can_ask_too() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let provider = openai(&server.base_url());
        complete(&provider, &request("a", "b")).unwrap();
        // SAFETY: the child only asks the provider, which must work there, and leaves by `_exit`; an alarm ends it if
        // it hangs.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: plain system calls without memory.
            unsafe { libc::alarm(20) };
            let asked = complete(&provider, &request("a", "b")).is_ok();
            // SAFETY: as above; no destructor of the parent's runtime runs here.
            unsafe { libc::_exit(if asked { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above, and writes to a live integer.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
        assert!(complete(&provider, &request("a", "b")).is_ok());
    }

    #[test]
    fn connections_are_kept() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let provider = openai(&server.base_url());
        let request = request("a", "b");
        complete(&provider, &request).unwrap();
        let cheapest = (0..20)
            .map(|_| {
                let start = Instant::now();
                complete(&provider, &request).unwrap();
                start.elapsed()
            })
            .min()
            .unwrap();
        assert!(cheapest < Duration::from_millis(20), "{cheapest:?}");
    }
}

mod targets {
    use super::*;

    fn failing(class: ProviderErrorClass, wait: Option<u64>) -> Arc<Scripted> {
        let error = ProviderError {
            retry_after: wait.map(Duration::from_secs),
            ..ProviderError::new(class, format!("{} here", class.as_str()))
        };
        Arc::new(Scripted::respond(move |_| Err(error.clone())).named("a"))
    }

    fn working() -> Arc<Scripted> {
        Arc::new(Scripted::program("return 1").named("b"))
    }

    fn list(targets: &[Arc<Scripted>], attempts: u32) -> Targets {
        Targets::new(targets.iter().map(|target| target.clone() as _).collect(), attempts).unwrap()
    }

    /// SC-3.15, SC-3.19, SC-3.20, SC-3.22: the next target answers, and the reply says who did.
    #[test]
    fn sc_3_the_next_target_answers_for_failures_that_allow_it() {
        for class in [
            ProviderErrorClass::RateLimit,
            ProviderErrorClass::ContextOverflow,
            ProviderErrorClass::Timeout,
            ProviderErrorClass::Network,
            ProviderErrorClass::ModelError,
            ProviderErrorClass::InvalidResponse,
            ProviderErrorClass::Failed,
        ] {
            let (a, b) = (failing(class, None), working());
            let reply = complete(&list(&[a.clone(), b.clone()], 2), &request("x", "y")).unwrap();
            assert_eq!((a.requests(), b.requests()), (1, 1), "{class:?}");
            assert_eq!(reply.model.as_deref(), Some("b"));
            assert!(reply.note.unwrap().contains(&format!("after a ({})", class.as_str())));
        }
    }

    /// SC-3.01, SC-3.02: authentication and quota end at once.
    #[test]
    fn sc_3_01_fatal_failures_end_at_once() {
        for class in [ProviderErrorClass::Auth, ProviderErrorClass::Quota, ProviderErrorClass::Cancelled] {
            let (a, b) = (failing(class, None), working());
            let error = complete(&list(&[a, b.clone()], 9), &request("x", "y")).unwrap_err();
            assert_eq!((error.class, b.requests()), (class, 0));
        }
    }

    /// SC-3.21, SC-3.25, SC-3.26: round robin, bounded, from the first target each time.
    #[test]
    fn sc_3_21_attempts_cycle_and_end() {
        let (a, b) = (failing(ProviderErrorClass::Network, Some(9)), failing(ProviderErrorClass::RateLimit, Some(4)));
        let both = list(&[a.clone(), b.clone()], 5);
        let error = complete(&both, &request("x", "y")).unwrap_err();
        assert_eq!((a.requests(), b.requests()), (3, 2));
        assert_eq!(error.class, ProviderErrorClass::Network);
        assert_eq!(error.retry_after, Some(Duration::from_secs(4)));
        assert!(error.message.contains("5 attempts failed") && error.message.contains("rate_limit here"));
        let _ = complete(&both, &request("x", "y"));
        assert_eq!((a.requests(), b.requests()), (6, 4));
        assert!(Targets::new(Vec::new(), 1).is_none());
        assert_eq!(both.model(), "a,a");
    }

    /// A target that cannot be asked now, and behind which nobody stands.
    #[derive(Debug)]
    struct Resting(&'static str);

    impl Provider for Resting {
        fn model(&self) -> &str {
            "resting"
        }

        fn profile(&self) -> &str {
            self.0
        }

        fn fingerprint(&self) -> &str {
            "resting#1"
        }

        fn ready(&self) -> Result<(), ProviderError> {
            Err(ProviderError::new(ProviderErrorClass::Failed, "it rests"))
        }

        fn waits(&self) -> bool {
            false
        }

        fn complete<'a>(&'a self, _: &'a ModelRequest, _: &'a CancelToken) -> ReplyFuture<'a> {
            Box::pin(async { Ok(ModelReply { note: Some("its own".into()), ..ModelReply::text("return 1") }) })
        }
    }

    /// What a list is, one target of it is enough for, or all of them are needed for.
    #[test]
    fn a_list_is_what_its_targets_are() {
        let list = |targets: Vec<Arc<dyn Provider>>| Targets::new(targets, 2).unwrap();
        let resting = |profile| -> Arc<dyn Provider> { Arc::new(Resting(profile)) };
        let (alone, mixed) = (list(vec![resting("text"), resting("text")]), list(vec![resting("text"), working()]));
        assert_eq!((alone.profile(), mixed.profile()), ("text", "program"));
        assert_eq!((alone.fingerprint(), mixed.fingerprint()), ("resting#1,resting#1", "resting#1,b"));
        assert_eq!((alone.ready().unwrap_err().message.as_str(), mixed.ready()), ("it rests", Ok(())));
        assert_eq!((alone.waits(), mixed.waits()), (false, true));
    }

    /// SC-3.21: the last failure's class; SC-4.12: who did not answer is told before anything else.
    #[test]
    fn sc_3_21_the_last_failure_is_the_lists() {
        let network = || failing(ProviderErrorClass::Network, None);
        let error = complete(&list(&[network(), failing(ProviderErrorClass::RateLimit, None)], 2), &request("x", "y"));
        assert_eq!(error.unwrap_err().class, ProviderErrorClass::RateLimit);
        let answered = Targets::new(vec![network(), Arc::new(Resting("text"))], 2).unwrap();
        let note = complete(&answered, &request("x", "y")).unwrap().note.unwrap();
        assert_eq!(note, "answered by resting after a (network) failed");
    }

    /// SC-3.17: a silent target leaves time for the next one, within the request's timeout.
    #[test]
    fn sc_3_17_a_silent_target_leaves_time_for_the_next() {
        let silent = Arc::new(Scripted::always(Played::Block).named("a"));
        let short = ModelRequest { timeout: Duration::from_millis(1_000), ..request("x", "y") };
        let start = Instant::now();
        assert!(complete(&list(&[silent.clone(), working()], 2), &short).is_ok());
        assert!((500..9_000).contains(&start.elapsed().as_millis()));
        let start = Instant::now();
        let error = complete(&list(&[silent.clone(), silent], 4), &short).unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::Timeout);
        assert!(start.elapsed() < Duration::from_secs(9));
    }
}

mod resolving {
    use super::*;

    fn of_options(options: TargetOptions) -> ModelSettings<'static> {
        ModelSettings { options, ..ModelSettings::default() }
    }

    fn in_environment<T>(variables: &[(&str, &str)], check: impl FnOnce(&ModelSettings<'_>) -> T) -> T {
        let environment =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        check(&ModelSettings { environment: Some(&environment), ..ModelSettings::default() })
    }

    fn chosen(spec: impl Into<ModelSpec>, variables: &[(&str, &str)]) -> Result<(String, Origin), String> {
        let spec = spec.into();
        in_environment(variables, |settings| {
            let resolved = resolve(&spec, settings).map_err(|error| error.to_string())?;
            Ok((resolved.provider.model().to_owned(), resolved.origin))
        })
    }

    fn problem(spec: impl Into<ModelSpec>, variables: &[(&str, &str)]) -> String {
        chosen(spec, variables).unwrap_err()
    }

    #[test]
    fn the_default_is_the_first_that_is_configured_and_works() {
        let key = ("OPENAI_API_KEY", KEY);
        let library = ("library".to_owned(), Origin::Default);
        assert_eq!(chosen(ModelSpec::Default, &[]).unwrap(), library);
        assert_eq!(chosen(ModelSpec::Default, &[("OPENAI_API_KEY", " ")]).unwrap(), library);
        let by_key = ("openai:gpt-5.1".to_owned(), Origin::Environment("OPENAI_API_KEY"));
        assert_eq!(chosen(ModelSpec::Default, &[key]).unwrap(), by_key);
        let by_name = chosen(ModelSpec::Default, &[("CADENZA_MODEL", "openai:other"), key]).unwrap();
        assert_eq!(by_name, ("openai:other".to_owned(), Origin::Environment("CADENZA_MODEL")));
        let by_option = chosen("library", &[("CADENZA_MODEL", "openai:other"), key]).unwrap();
        assert_eq!(by_option, ("library".to_owned(), Origin::Option));
    }

    #[test]
    fn the_configuration_file_stands_between_the_variable_and_the_keys() {
        let environment = |name: &str| (name == "OPENAI_API_KEY").then(|| KEY.to_owned());
        let configured = ModelSettings {
            configured: Some("library".into()),
            environment: Some(&environment),
            ..ModelSettings::default()
        };
        let resolved = resolve(&ModelSpec::Default, &configured).unwrap();
        assert_eq!((resolved.provider.model(), resolved.origin), ("library", Origin::ConfigurationFile));
        assert_eq!(resolved.origin.to_string(), "configuration file");
    }

    /// The first key in the environment chooses, in the order of product.md section 6.
    #[test]
    fn the_first_key_chooses() {
        let keys = [("GEMINI_API_KEY", KEY), ("OPENAI_API_KEY_FILE", "/no/such/file"), ("ANTHROPIC_API_KEY", KEY)];
        let default = |keys: &[(&str, &str)]| chosen(ModelSpec::Default, keys);
        let anthropic = ("anthropic:claude-sonnet-5-5".to_owned(), Origin::Environment("ANTHROPIC_API_KEY"));
        assert_eq!(default(&keys).unwrap(), anthropic);
        // A file that is not there is a mistake, and no reason to ask somebody else.
        assert!(default(&keys[..2]).unwrap_err().contains("/no/such/file"));
        let gemini = ("gemini:gemini-3.8-flash".to_owned(), Origin::Environment("GEMINI_API_KEY"));
        assert_eq!(default(&keys[..1]).unwrap(), gemini);
        // Other programs have such a key too: it is used where Gemini is asked for, and chooses nothing.
        let google = [("GOOGLE_API_KEY", KEY)];
        assert_eq!(default(&google).unwrap().0, "library");
        assert_eq!(chosen("gemini:x", &google).unwrap().0, "gemini:x");
    }

    /// A local model that answers comes after all that is configured, and before the library.
    #[test]
    fn a_local_model_comes_before_the_library() {
        let asked = std::sync::Mutex::new(Vec::new());
        let local = |address: &str| {
            asked.lock().unwrap().push(address.to_owned());
            Some("qwen3:8b".to_owned())
        };
        let resolved = |variables: &[(&str, &str)]| {
            in_environment(variables, |settings| {
                let settings = ModelSettings { local: Some(&local), ..settings.clone() };
                resolve(&ModelSpec::Default, &settings).unwrap()
            })
        };
        let by_default = resolved(&[]);
        assert_eq!((by_default.provider.model(), by_default.origin), ("ollama:qwen3:8b", Origin::Default));
        assert!(by_default.notes[0].contains("http://localhost:11434"), "{:?}", by_default.notes);
        assert_eq!(resolved(&[("OLLAMA_HOST", "0.0.0.0:9999")]).provider.model(), "ollama:qwen3:8b");
        assert_eq!(resolved(&[("GEMINI_API_KEY", KEY)]).provider.model(), "gemini:gemini-3.8-flash");
        // Nobody looks in the network for a model that nobody named.
        assert_eq!(resolved(&[("OLLAMA_HOST", "http://gpu.invalid:11434")]).provider.model(), "library");
        assert_eq!(*asked.lock().unwrap(), ["http://localhost:11434", "http://127.0.0.1:9999"]);
    }

    /// The look for a local server is short, and content with whatever answers.
    #[test]
    fn a_local_server_is_found_or_not() {
        let server = WireServer::always(Answer::Hang);
        let found = (0..10).find_map(|_| local::look(&server.root()));
        assert_eq!(found.as_deref(), Some("echo:latest"));
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(local::look(&format!("http://{closed}")), None);
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let start = Instant::now();
        assert_eq!(local::look(&format!("http://{}", silent.local_addr().unwrap())), None);
        assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
        assert_eq!(local::look("http://192.0.2.1:11434"), None);
    }

    /// A key or an address for everybody goes to nobody when the targets are of different providers.
    #[test]
    fn one_key_for_different_providers_is_refused() {
        let key = || TargetOptions { api_key: Secret::new(KEY), ..TargetOptions::default() };
        let with = |name: &str, options: TargetOptions| {
            let resolved = resolve(&name.into(), &of_options(options));
            resolved.map(drop).map_err(|error| (error.option(), error.to_string()))
        };
        let (option, text) = with("openai:a, anthropic:b", key()).unwrap_err();
        assert_eq!(option, "api_key");
        assert!(text.contains("openai, anthropic") && text.contains("providers="), "{text}");
        let address = TargetOptions { base_url: Some("http://127.0.0.1:1".into()), ..key() };
        assert!(with("gemini:a, ollama:b", address).is_err());
        let header = BTreeMap::from([("authorization".to_owned(), Secret::new(KEY))]);
        let headers = TargetOptions { headers: header.into(), ..TargetOptions::default() };
        assert_eq!(with("gemini:a, anthropic:b", headers).unwrap_err().0, "headers");
        assert!(with("openai:a, openai-responses:b, library", key()).is_ok());
        let own = |name: &str| ModelSpec::Target { name: name.into(), options: Box::new(key()) };
        let both = ModelSpec::Targets(vec![own("openai:a"), own("anthropic:b")]);
        assert!(resolve(&both, &ModelSettings::default()).is_ok());
        // Who has a key of its own does not share.
        let mixed = ModelSpec::Targets(vec!["openai:a".into(), own("anthropic:b")]);
        assert!(resolve(&mixed, &of_options(key())).is_ok());
    }

    /// A key of the environment goes to its vendor, and a missing one is named.
    #[test]
    fn each_vendor_has_its_variables() {
        for (name, variable, url_variable) in [
            ("openai:m", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
            ("openai-responses:m", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
            ("anthropic:m", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
            ("gemini:m", "GEMINI_API_KEY", "GEMINI_BASE_URL"),
        ] {
            assert!(problem(name, &[]).contains(&format!("set {variable}")), "{name}");
            let server = WireServer::start(Some(KEY), |_| Answer::Program("return 1".into()));
            let address = if name.starts_with("openai") { server.base_url() } else { server.root() };
            in_environment(&[(variable, KEY), (url_variable, &address)], |settings| {
                let provider = resolve(&name.into(), settings).unwrap().provider;
                assert!(complete(&*provider, &request("a", "b")).is_ok(), "{name}");
            });
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), format!("{KEY}\n")).unwrap();
            let path = file.path().display().to_string();
            in_environment(&[(&format!("{variable}_FILE"), &path), (url_variable, &address)], |settings| {
                let provider = resolve(&name.into(), settings).unwrap().provider;
                assert!(complete(&*provider, &request("a", "b")).is_ok(), "{name}");
            });
        }
        let server = WireServer::always(Answer::Program("return 1".into()));
        in_environment(&[("OLLAMA_HOST", &server.address.to_string())], |settings| {
            let provider = resolve(&"ollama:m".into(), settings).unwrap().provider;
            let reply = complete(&*provider, &request("a", "b")).unwrap();
            assert_eq!(reply.tool_calls[0].name, "execute_program");
        });
        // Who asks by a header of its own needs no key.
        let header = BTreeMap::from([("authorization".to_owned(), Secret::new(&format!("Bearer {KEY}")))]);
        let headers = TargetOptions { headers: header.into(), ..TargetOptions::default() };
        assert!(resolve(&"anthropic:m".into(), &of_options(headers)).is_ok());
    }

    #[test]
    fn errors_say_what_to_do() {
        assert!(problem("replay:x", &[]).contains("`replay:x`: nothing is recorded here"));
        let text = problem("opnai:gpt-5.1", &[]);
        assert!(text.contains("did you mean `openai`?") && text.contains("openai-compatible, anthropic"), "{text}");
        for (name, meant) in [
            ("gpt-5.1", "openai:gpt-5.1"),
            ("o3-mini", "openai:o3-mini"),
            ("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
            ("gemini-2.5-pro", "gemini:gemini-2.5-pro"),
            ("qwen3:8b", "ollama:qwen3:8b"),
            ("gpt-oss:20b", "ollama:gpt-oss:20b"),
            ("./llama-3.gguf", "llama:./llama-3.gguf"),
            ("OpenAI:gpt-5.1", "openai:gpt-5.1"),
            ("google:gemini-2.5-pro", "gemini:gemini-2.5-pro"),
            ("openai_compatible:m@http://h/v1", "openai-compatible:m@http://h/v1"),
            ("vllm", "openai-compatible"),
            ("ollam:qwen3", "ollama"),
        ] {
            let text = problem(name, &[]);
            assert!(text.contains(&format!("did you mean `{meant}`?")), "{name}: {text}");
        }
        assert!(!problem("foo:bar", &[]).contains("did you mean"));
        assert!(problem("openai:", &[]).contains("`openai:NAME`"));
        assert!(problem("openai-compatible:@http://h/v1", &[]).contains("`openai-compatible:NAME`"));
        assert!(problem("openai:x", &[]).contains("set OPENAI_API_KEY"));
        assert!(problem("library:x", &[]).contains("write `library`"));
        assert!(problem("openai-compatible:x", &[]).contains("base_url="));
        assert!(problem(ModelSpec::Targets(vec![]), &[]).contains("at least one"));
        assert!(problem(ModelSpec::Targets(vec!["library".into(); 17]), &[]).contains("at most 16 models"));
        let nested = ModelSpec::Targets(vec!["library,library,library".into(); 6]);
        assert!(problem(nested, &[]).contains("at most 16 models"));
        let text = problem(ModelSpec::Default, &[("CADENZA_MODEL", "nonsense")]);
        assert!(text.starts_with("environment variable CADENZA_MODEL: "), "{text}");
        assert!(!problem(KEY, &[]).contains(KEY));
        let text = problem("openai:x", &[("OPENAI_API_KEY_FILE", "sk-verysecret-123456")]);
        assert!(text.contains("the key file `sk-ver…`") && !text.contains("verysecret"), "{text}");
    }

    #[test]
    fn a_key_comes_from_the_option_the_file_or_the_environment() {
        let server = WireServer::start(Some(KEY), |_| Answer::Program("return 1".into()));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, format!("{KEY}\n")).unwrap();
        let base_url = Some(server.base_url());
        let path = file.display().to_string();
        let by_variable = |name: &str| (name == "OPENAI_API_KEY").then(|| KEY.to_owned());
        let by_file_variable = |name: &str| (name == "OPENAI_API_KEY_FILE").then(|| path.clone());
        let works = |name: &str, settings: ModelSettings<'_>| {
            let settings =
                ModelSettings { options: TargetOptions { base_url: base_url.clone(), ..settings.options }, ..settings };
            let resolved = resolve(&name.into(), &settings).unwrap();
            complete(&*resolved.provider, &request("a", "b"))
        };
        let nothing = ModelSettings::default;
        let key = || TargetOptions { api_key: Secret::new(KEY), ..TargetOptions::default() };
        let key_file = || TargetOptions { api_key_file: Some(file.clone()), ..TargetOptions::default() };
        assert!(works("openai:x", of_options(key())).is_ok());
        assert!(works("openai:x", of_options(key_file())).is_ok());
        assert!(works("openai:x", ModelSettings { environment: Some(&by_variable), ..nothing() }).is_ok());
        assert!(works("openai:x", ModelSettings { environment: Some(&by_file_variable), ..nothing() }).is_ok());
        assert!(works("openai-compatible:x", of_options(key())).is_ok());
        // A key of the environment is OpenAI's: it does not go to an address that the host gave.
        let withheld = works("openai-compatible:x", ModelSettings { environment: Some(&by_variable), ..nothing() });
        assert_eq!(withheld.unwrap_err().class, ProviderErrorClass::Auth);

        // Some editors begin a file so; what else is no ASCII can be in no key.
        std::fs::write(&file, format!("\u{feff}{KEY}\r\n")).unwrap();
        assert!(works("openai:x", of_options(key_file())).is_ok());
        std::fs::write(&file, format!("{KEY}“")).unwrap();
        let error = resolve(&"openai:x".into(), &of_options(key_file())).unwrap_err();
        assert!(error.to_string().contains("characters that no HTTP header can carry"), "{error}");

        std::fs::write(&file, " \n").unwrap();
        let empty = of_options(key_file());
        let error = resolve(&"openai:x".into(), &empty).unwrap_err();
        assert!(matches!(error.problem, ResolveProblem::KeyFile { .. }), "{error}");
    }

    #[test]
    fn an_organisation_of_the_environment_goes_to_openai() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let (url, root) = (server.base_url(), server.root());
        let variables = [
            ("OPENAI_API_KEY", KEY),
            ("ANTHROPIC_API_KEY", KEY),
            ("OPENAI_BASE_URL", &*url),
            ("ANTHROPIC_BASE_URL", &*root),
            ("OPENAI_ORG_ID", "org-1"),
            ("OPENAI_PROJECT_ID", "proj-1"),
        ];
        for (name, expected) in [("openai:m", Some("org-1, proj-1")), ("anthropic:m", None)] {
            in_environment(&variables, |settings| {
                complete(&*resolve(&name.into(), settings).unwrap().provider, &request("a", "b")).unwrap();
            });
            let headers = server.seen().pop().unwrap().headers;
            let sent = ["openai-organization", "openai-project"].map(|name| headers.get(name).map(String::as_str));
            assert_eq!(sent.into_iter().collect::<Option<Vec<_>>>().map(|sent| sent.join(", ")).as_deref(), expected);
        }
    }

    #[test]
    fn a_list_of_names_is_a_list_of_targets() {
        let refusing = WireServer::always(Answer::fixture(&fixtures().join("openai_500_server_error.json")));
        let working = WireServer::always(Answer::Program("return 1".into()));
        let name =
            format!("openai-compatible:a:7b@{}, openai-compatible:b@{}", refusing.base_url(), working.base_url());
        let resolved = resolve(&name.as_str().into(), &ModelSettings::default()).unwrap();
        assert_eq!(resolved.provider.model(), "openai-compatible:a:7b,openai-compatible:b");
        let reply = complete(&*resolved.provider, &request("x", "y")).unwrap();
        assert_eq!(reply.tool_calls[0].name, "execute_program");
        assert_eq!((refusing.seen().len(), working.seen().len()), (1, 1));
        assert!(!refusing.seen()[0].headers.contains_key("authorization"));
    }

    /// SC-1.46: each target is told what is said of it.
    #[test]
    fn sc_1_46_targets_have_options_of_their_own() {
        let refusing = WireServer::always(Answer::fixture(&fixtures().join("openai_500_server_error.json")));
        let working = WireServer::always(Answer::Program("return 1".into()));
        let own = |server: &WireServer, temperature| {
            let options = TargetOptions {
                base_url: Some(server.base_url()),
                params: Params { temperature: Some(Some(temperature)), ..Params::default() },
                ..TargetOptions::default()
            };
            ModelSpec::Target { name: "openai-compatible:m".into(), options: Box::new(options) }
        };
        let both = ModelSpec::Targets(vec![own(&refusing, 0.1), own(&working, 0.9)]);
        let resolved = resolve(&both, &ModelSettings::default()).unwrap();
        complete(&*resolved.provider, &request("x", "y")).unwrap();
        let told = [&refusing, &working].map(|server| server.seen()[0].body["temperature"].as_f64());
        assert_eq!(told, [Some(0.1), Some(0.9)]);
    }

    /// SC-1.48: the target's word, then its provider's, then everybody's; an explicit null takes away. Each place says
    /// something or nothing (8 combinations), and with nulls there are 27.
    #[test]
    fn sc_1_48_the_nearest_word_wins_and_null_takes_away() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let told = |temperature| TargetOptions {
            params: Params { temperature, ..Params::default() },
            ..TargetOptions::default()
        };
        let words = |word: f64| [None, Some(Some(word)), Some(None)];
        let mut seen = 0;
        for all in words(0.1) {
            for provider in words(0.2) {
                for own in words(0.3) {
                    let options = TargetOptions { base_url: Some(server.base_url()), ..told(all) };
                    let providers = BTreeMap::from([("openai-compatible".to_owned(), told(provider))]);
                    let settings = ModelSettings { options, providers, ..ModelSettings::default() };
                    let spec = ModelSpec::Target { name: "openai-compatible:m".into(), options: Box::new(told(own)) };
                    complete(&*resolve(&spec, &settings).unwrap().provider, &request("x", "y")).unwrap();
                    let sent = server.seen()[seen].body.get("temperature").cloned();
                    seen += 1;
                    let nearest = [own, provider, all].into_iter().flatten().next().flatten();
                    assert_eq!(sent, nearest.map(Json::from), "{all:?} {provider:?} {own:?}");
                }
            }
        }
        assert_eq!(seen, 27);
    }

    /// SC-1.48: so do all other words, and headers go to the address that they were given with.
    #[test]
    fn sc_1_48_every_option_of_the_nearest_place_wins() {
        let says = |word: &str, number: u32| TargetOptions {
            output: Output::from_name(if number == 1 { "text" } else { "tool" }),
            proxy: Some(Secret::unlisted(word)),
            stream: Some(number == 1),
            context_size: Some(number),
            params: Params {
                top_p: Some(Some(number.into())),
                repeat_penalty: Some(Some(number.into())),
                seed: Some(Some(number.into())),
                max_output_tokens: Some(Some(number)),
                reasoning_effort: Some(Some(word.into())),
                extended_thinking: Some(Some(number)),
                extra: BTreeMap::from([("x".to_owned(), Some(Value::from(word)))]).into(),
                force_params: Some(number == 1),
                ..Params::default()
            },
            ..TargetOptions::default()
        };
        let (near, far) = (says("near", 1), says("far", 2));
        assert_eq!(near.clone().over(&far), near);
        assert_eq!(TargetOptions::default().over(&far), far);

        let key = || BTreeMap::from([("x-key".to_owned(), Secret::new(KEY))]).into();
        let far = TargetOptions { base_url: Some("http://far".into()), headers: key(), ..TargetOptions::default() };
        let elsewhere = TargetOptions { base_url: Some("http://near".into()), ..TargetOptions::default() };
        assert_eq!(elsewhere.over(&far).headers.get("x-key"), None);
        assert!(TargetOptions::default().over(&far).headers.get("x-key").is_some());
    }

    /// A key belongs to the address that it was given with, also where the name says another address.
    #[test]
    fn an_address_in_the_name_does_not_get_another_addresss_key() {
        let (near, far) = (WireServer::always(Answer::Program("return 1".into())), "http://127.0.0.1:9/v1");
        let name = format!("openai-compatible:m@{}", near.base_url());
        let given = |base_url: Option<&str>| {
            of_options(TargetOptions {
                base_url: base_url.map(str::to_owned),
                api_key: Secret::new(KEY),
                ..TargetOptions::default()
            })
        };
        let ask = |settings: &ModelSettings<'_>| {
            let resolved = resolve(&name.as_str().into(), settings).unwrap();
            drop(complete(&*resolved.provider, &request("a", "b")));
            near.seen().last().unwrap().headers.contains_key("authorization")
        };
        assert!(!ask(&given(Some(far))), "the key of the far address");
        assert!(ask(&given(None)), "a key that no other address was said for");
    }

    #[test]
    fn an_address_is_checked_before_anything_is_sent() {
        let at = |model: &str, base_url: &str| {
            let options = TargetOptions {
                base_url: Some(base_url.into()),
                api_key: Secret::new(KEY),
                ..TargetOptions::default()
            };
            resolve(&model.into(), &of_options(options)).map(drop).map_err(|error| error.to_string())
        };
        let with = |base_url: &str| at("openai-compatible:x", base_url);
        for no_scheme in ["localhost:8000", "127.0.0.1:8000/v1", "h/v1", "ftp://h", "//h/v1"] {
            assert!(with(no_scheme).unwrap_err().contains("it must begin with http:// or https://"), "{no_scheme}");
        }
        assert!(with("nonsense").unwrap_err().contains("base_url"));
        let text = with("http://user:hunter2@host/v1").unwrap_err();
        assert!(text.contains("api_key") && !text.contains("hunter2"), "{text}");
        // The first segment of a path is no host: a key would go there.
        for nowhere in
            ["http:///v1", "http://", "https:///openai/v1", "http:/v1", "http:v1", "http:\\\\v1", "http://\t/v1"]
        {
            for provider in ["openai:x", "anthropic:x", "gemini:x", "ollama:x"] {
                let text = at(provider, nowhere).unwrap_err();
                assert!(text.contains("`base_url` cannot be used: it has no host"), "{provider} {nowhere}: {text}");
            }
            let proxy = Some(Secret::unlisted(nowhere));
            let options = TargetOptions { proxy, base_url: Some("http://h".into()), ..TargetOptions::default() };
            assert!(resolve(&"openai-compatible:x".into(), &of_options(options)).is_err(), "{nowhere}");
        }
        for query in ["http://127.0.0.1:8000/v1?key=1", "http://127.0.0.1:8000/v1#x"] {
            assert!(with(query).unwrap_err().contains("write the address alone"), "{query}");
        }
        assert!(with(" http://127.0.0.1:8000/v1/ ").is_ok());
        assert!(with("http://127.0.0.1:8000/v1/").is_ok());
        assert!(with("http://127.0.0.1:8000/v1/chat/completions").is_ok());
    }

    /// What would break the wire is refused before anything is sent, under the name of its own option.
    #[test]
    fn headers_extra_and_proxy_are_checked_before_anything_is_sent() {
        let at = |options: TargetOptions| TargetOptions { base_url: Some("http://127.0.0.1:1/v1".into()), ..options };
        let with_header = |name: &str| {
            let headers = BTreeMap::from([(name.to_owned(), Secret::unlisted("3"))]);
            TargetOptions { headers: headers.into(), ..TargetOptions::default() }
        };
        let with_extra = |name: &str, value: Option<Value>| {
            let extra = BTreeMap::from([(name.to_owned(), value)]);
            let params = Params { extra: extra.into(), ..Params::default() };
            TargetOptions { params, ..TargetOptions::default() }
        };
        let with_proxy = |url: &str| TargetOptions { proxy: Some(Secret::unlisted(url)), ..TargetOptions::default() };
        let deep = |number: f64| Value::List(vec![1.into(), number.into()]);
        let mut refused = vec![
            (with_header("bad name"), "headers", "`bad name`"),
            (with_proxy("::::"), "proxy", "`proxy` cannot be used"),
            (with_extra("stream", Some(true.into())), "extra", "set `stream` beside `extra`"),
            (with_extra("x", Some(f64::NAN.into())), "extra", "`x` is a NaN"),
            (with_extra("x", Some(deep(f64::INFINITY))), "extra", "`x[1]` is a NaN or an infinity"),
        ];
        for name in ["content-length", "Transfer-Encoding", "connection", "keep-alive", "upgrade", "te", "trailer"] {
            refused.push((with_header(name), "headers", name));
        }
        for (options, option, words) in refused {
            for origin in [Origin::Option, Origin::Environment("CADENZA_MODEL")] {
                let name = "openai-compatible:x";
                let environment = move |variable: &str| (variable == "CADENZA_MODEL").then(|| name.to_owned());
                let settings = ModelSettings { environment: Some(&environment), ..of_options(at(options.clone())) };
                let spec = if origin == Origin::Option { name.into() } else { ModelSpec::Default };
                let error = resolve(&spec, &settings).unwrap_err();
                assert_eq!((error.option(), error.origin), (option, origin), "{error}");
                assert!(error.message().contains(words) && !error.message().contains("CADENZA_MODEL"), "{error}");
            }
        }
        for accepted in [
            with_header("host"),
            with_extra("stream", None),
            with_extra("x", Some(deep(1.5))),
            with_proxy("http://127.0.0.1:1"),
        ] {
            assert!(resolve(&"openai-compatible:x".into(), &of_options(at(accepted))).is_ok());
        }
    }

    #[test]
    fn the_library_says_so() {
        let resolved = resolve(&ModelSpec::Default, &ModelSettings::default()).unwrap();
        let error = complete(&*resolved.provider, &request("no such role", "add")).unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::Failed);
        assert!(error.message.contains("no role `no such role`") && error.message.contains("CADENZA_MODEL"));
        let reply = complete(&*resolved.provider, &request("Calculator", "add")).unwrap();
        assert_eq!(reply.source, Some(ProgramSource::Library));
        assert!(reply.note.is_some() && reply.content.is_some());
        let error = complete(&*resolved.provider, &request("calculator", "ad")).unwrap_err();
        assert!(error.message.contains("did you mean `add`?") && error.message.contains("gcd"), "{error}");
    }

    #[test]
    fn values_cross_as_json() {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let mut request = request("a", "b");
        let schema = Value::from_json(r#"{"type":"object","properties":{"n":{"maximum":9007199254740993,"x":0.5}}}"#);
        request.tools = [ToolSpec { name: "t".into(), description: "d".into(), parameters: schema.unwrap() }].into();
        complete(&openai(&server.base_url()), &request).unwrap();
        let sent = &server.seen()[0].body["tools"][0]["function"]["parameters"]["properties"]["n"];
        assert_eq!(sent, &json!({"maximum": 9007199254740993_i64, "x": 0.5}));
    }
}
