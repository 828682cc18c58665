//! Servers that lie, break off, shout or say nothing, through every dialect, whole and in pieces: the right class, within
//! the bound, and never a key.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use super::dialects::{ALL, both, listening, remote, spoken, target};
use super::wire_server::Said;
use super::*;

/// A proxy's password.
const PROXY: &str = "hunter2-hunter2";

fn stream_type((vendor, _): (Vendor, &str)) -> &'static str {
    if vendor == Vendor::Ollama { "application/x-ndjson" } else { "text/event-stream" }
}

/// One event of a stream, as the vendor separates them.
fn event(vendor: (Vendor, &str), data: &str) -> String {
    if vendor.0 == Vendor::Ollama { format!("{data}\n") } else { format!("data: {data}\n\n") }
}

fn refused(vendor: (Vendor, &str), stream: bool, answer: Answer) -> ProviderError {
    let server = WireServer::always(answer);
    complete(&remote(vendor, &server, stream), &request("calculator", "add")).unwrap_err()
}

/// SC-3.22: what is no reply is an invalid response, in every form and from every vendor.
#[test]
fn sc_3_22_what_is_no_reply_is_an_invalid_response() {
    for vendor in ALL {
        let kind = stream_type(vendor);
        let page = "<!doctype html><html><h1>It works</h1></html>";
        for stream in [false, true] {
            for answer in [
                Answer::typed("text/html", page),
                Answer::typed("application/json", ""),
                Answer::typed("application/json", "[1, 2"),
                Answer::typed("application/json", "{}"),
                Answer::typed("application/json", "null"),
                Answer::typed("application/json", "[]"),
                Answer::typed("application/json", b"\xff\xfe{}"),
                Answer::typed("application/json", "[".repeat(100_000)),
            ] {
                let error = refused(vendor, stream, answer.clone());
                assert_eq!(error.class, ProviderErrorClass::InvalidResponse, "{vendor:?} {answer:?}: {error}");
            }
        }
        for body in [
            String::new(),
            event(vendor, "{\"half"),
            event(vendor, "[1, 2]"),
            event(vendor, "7"),
            event(vendor, &"[".repeat(100_000)),
            page.to_owned(),
            "{\"half\": ".to_owned(),
        ] {
            let error = refused(vendor, true, Answer::typed(kind, body.clone()));
            let start = &body[..body.len().min(60)];
            assert_eq!(error.class, ProviderErrorClass::InvalidResponse, "{vendor:?} {start}: {error}");
        }
        let mut broken = event(vendor, "{\"error\": \"x").into_bytes();
        broken.splice(8..8, *b"\xff\xfe");
        let error = refused(vendor, true, Answer::typed(kind, broken));
        assert_eq!(error.class, ProviderErrorClass::InvalidResponse, "{vendor:?}: {error}");
    }
}

/// A failure inside of a stream has its class, whatever status came first.
#[test]
fn a_failure_inside_of_a_stream_has_its_class() {
    use ProviderErrorClass::{Auth, ContextOverflow, ModelError, Network, Quota, RateLimit};
    let chat = |code: &str| json!({"error": {"message": "no", "type": "x", "code": code}});
    let anthropic = |kind: &str| json!({"type": "error", "error": {"type": kind, "message": "no"}});
    let responses = |code: &str| json!({"type": "error", "code": code, "message": "no", "param": null});
    let failed = |code: &str| json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": code, "message": "no"}}});
    let gemini = |code: u16, status: &str| json!({"error": {"code": code, "message": "no", "status": status}});
    let numbered = json!({"error": {"message": "no", "type": "BadRequestError", "code": 400}});
    for (vendor, event_of, class) in [
        (Vendor::OpenAi, chat("server_error"), Network),
        (Vendor::OpenAi, chat("rate_limit_exceeded"), RateLimit),
        (Vendor::OpenAiCompatible, chat("context_length_exceeded"), ContextOverflow),
        (Vendor::OpenAiCompatible, numbered, ModelError),
        (Vendor::OpenAiResponses, responses("server_error"), Network),
        (Vendor::OpenAiResponses, responses("insufficient_quota"), Quota),
        (Vendor::OpenAiResponses, failed("rate_limit_exceeded"), RateLimit),
        (Vendor::OpenAiResponses, failed("server_error"), Network),
        (Vendor::Anthropic, anthropic("overloaded_error"), Network),
        (Vendor::Anthropic, anthropic("api_error"), Network),
        (Vendor::Anthropic, anthropic("authentication_error"), Auth),
        (Vendor::Anthropic, anthropic("invalid_request_error"), ModelError),
        (Vendor::Gemini, gemini(429, "RESOURCE_EXHAUSTED"), RateLimit),
        (Vendor::Gemini, gemini(500, "INTERNAL"), Network),
        (Vendor::Ollama, json!({"error": "model runner has unexpectedly stopped"}), Network),
        (Vendor::Ollama, json!({"error": "an error was encountered while running the model"}), Network),
    ] {
        let vendor = ALL.into_iter().find(|(known, _)| *known == vendor).unwrap();
        let body = event(vendor, &event_of.to_string());
        let error = refused(vendor, true, Answer::typed(stream_type(vendor), body));
        assert_eq!(error.class, class, "{vendor:?} {event_of}: {error}");
    }
}

/// A gateway says in the choice that the server behind it failed: whole and in pieces, with words before it and without.
#[test]
fn a_failure_inside_of_a_choice_has_its_class() {
    use ProviderErrorClass::{Network, RateLimit};
    let errors = [(502, "Upstream provider died", Network), (429, "rate limited upstream", RateLimit)];
    for vendor in ALL.into_iter().filter(|(vendor, _)| matches!(vendor, Vendor::OpenAi | Vendor::OpenAiCompatible)) {
        for ((code, words, class), said) in errors.into_iter().flat_map(|error| [(error, ""), (error, "return")]) {
            let error = json!({"code": code, "message": words});
            let choice = |part: &str| {
                let words = json!({"role": "assistant", "content": said});
                json!({"choices": [{"index": 0, part: words, "finish_reason": "error", "error": error}]})
            };
            let pieces = [event(vendor, &choice("delta").to_string()), event(vendor, "[DONE]")].concat();
            let wait = ("retry-after".to_owned(), "7".to_owned());
            for (stream, kind, body) in [
                (false, "application/json", choice("message").to_string()),
                (true, "application/json", choice("message").to_string()),
                (true, "text/event-stream", pieces),
            ] {
                let headers = vec![("content-type".to_owned(), kind.to_owned()), wait.clone()];
                let answer = Answer::Raw { status: 200, headers, body: body.into_bytes() };
                let error = refused(vendor, stream, answer);
                assert_eq!(error.class, class, "{kind}: {error}");
                assert!(error.message.ends_with(&format!("(HTTP {code}): {words}")), "{kind}: {error}");
                assert_eq!(error.retry_after, Some(Duration::from_secs(7)), "{kind}");
            }
        }
    }
}

/// A server that says that it failed is classed alike with status 200, 500 and in a stream, whatever its words.
#[test]
fn a_failed_server_is_classed_alike_in_every_place() {
    let words = ["Internal server error", "billing system unsupported", "rate limit of the model: it does not exist"];
    for (vendor, word) in ALL.into_iter().flat_map(|vendor| words.map(|word| (vendor, word))) {
        for code in ["api_error", "server_error", "internal_server_error", "internal"] {
            let error = json!({"type": code, "message": word});
            let mut bodies = vec![json!({"type": "error", "error": error}), json!({"error": error})];
            if vendor.0 == Vendor::OpenAiResponses {
                let error = json!({"code": code, "message": word});
                bodies = vec![json!({"type": "response.failed", "response": {"status": "failed", "error": error}})];
                let whole = json!({"status": "failed", "error": error});
                let answer = Answer::json(&whole);
                assert_eq!(refused(vendor, false, answer).class, ProviderErrorClass::Network, "{code} {word}");
            }
            for body in bodies {
                let failed = Answer::Raw { status: 500, headers: Vec::new(), body: body.to_string().into_bytes() };
                let mut answers = vec![failed];
                if vendor.0 != Vendor::OpenAiResponses {
                    answers.push(Answer::json(&body));
                }
                answers.push(Answer::typed(stream_type(vendor), event(vendor, &body.to_string())));
                for answer in answers {
                    let error = refused(vendor, true, answer);
                    assert_eq!(error.class, ProviderErrorClass::Network, "{vendor:?} {body}: {error}");
                }
            }
        }
    }
}

/// What the table of model-wire-formats.md section 8 says in words, and what no recorded body shows.
#[test]
fn a_refusal_is_classed_by_code_status_and_words() {
    use ProviderErrorClass::{Auth, ContextOverflow, ModelError, Network, Quota, RateLimit, Timeout};
    let says = |words: &str| json!({"error": {"message": words}});
    let coded = |code: &str, words: &str| json!({"error": {"code": code, "message": words}});
    for (status, body, class) in [
        (403, says("Your country is not supported"), ModelError),
        (403, says("Not available in your region"), ModelError),
        (403, says("Blocked for reasons of safety"), ModelError),
        (403, says("The model requires moderation"), ModelError),
        (403, says("Your input was flagged"), ModelError),
        (403, coded("unsupported_country_region_territory", "no"), ModelError),
        (403, says("no"), Auth),
        (401, coded("invalid_api_key", "The key of this region is wrong"), Auth),
        (400, coded("organization_spend_limit_exceeded", "no"), Quota),
        (500, coded("server_error", "the prompt is too long"), ContextOverflow),
        (503, coded("slow_down", "no"), Network),
        (429, coded("slow_down", "no"), RateLimit),
        (400, json!({"error": {"code": 502, "message": "no"}}), ModelError),
        (200, json!({"error": {"code": 502, "message": "no"}}), Network),
        (400, json!([{"error": {"status": "RESOURCE_EXHAUSTED", "message": "no"}}]), RateLimit),
        (400, coded("DEADLINE_EXCEEDED", "no"), Timeout),
        (200, says("the model timed out"), Timeout),
        (200, says("Incorrect API key provided"), Auth),
        (200, says("The model is overloaded"), Network),
        (200, says("Too many requests"), RateLimit),
        (200, says("Your billing is not active"), Quota),
    ] {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        let answer = Answer::Raw { status, headers, body: body.to_string().into_bytes() };
        let error = refused((Vendor::OpenAiCompatible, "qwen"), false, answer);
        assert_eq!(error.class, class, "{status} {body}: {error}");
    }
}

/// A type that is JSON by another name, or no type at all, is taken at its word.
#[test]
fn json_has_several_types() {
    let completion = json!({"choices": [{"message": {"content": "return 1"}, "finish_reason": "stop"}]}).to_string();
    for kind in [None, Some("application/vnd.api+json"), Some("Application/JSON; charset=utf-8")] {
        let headers = kind.map(|kind| ("content-type".to_owned(), kind.to_owned())).into_iter().collect();
        let answer = Answer::Raw { status: 200, headers, body: completion.clone().into_bytes() };
        let server = WireServer::always(answer);
        let reply = complete(&remote((Vendor::OpenAi, "gpt-4.1"), &server, false), &request("a", "b"));
        assert_eq!(reply.unwrap().content.as_deref(), Some("return 1"), "{kind:?}");
    }
}

/// A reply that is compressed all the same is named, and a refusal is what its status says; none of its bytes are shown.
#[test]
fn an_encoded_reply_is_named() {
    const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xcbH\xcd\xc9\xc9\x07\x00\x86\xa6\x106\x05";
    let answer = |status, kind: &str, encoding: &str, body: &[u8]| {
        let headers = [("content-type", kind), ("content-encoding", encoding)];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Answer::Raw { status, headers, body: body.to_vec() }
    };
    for vendor in ALL {
        for (stream, kind) in [(false, "application/json"), (true, "application/json"), (true, stream_type(vendor))] {
            for encoding in ["gzip", "BR", "identity, gzip", KEY] {
                for (status, class) in [
                    (200, ProviderErrorClass::InvalidResponse),
                    (401, ProviderErrorClass::Auth),
                    (502, ProviderErrorClass::Network),
                ] {
                    let error = refused(vendor, stream, answer(status, kind, encoding, GZIP));
                    assert_eq!(error.class, class, "{vendor:?} {kind} {encoding}: {error}");
                    let named = format!("the body is encoded (\"{}\")", encoding.replace(KEY, "[secret]"));
                    assert!(error.message.contains(&named) && error.message.is_ascii(), "{error}");
                }
            }
        }
        // As it is asked for: not at all, unless the target's own headers say otherwise.
        let server = WireServer::always(Answer::Said(spoken()));
        let own = ("accept-encoding".to_owned(), Secret::unlisted("br").unwrap());
        for (headers, asked) in [(Vec::new(), "identity"), (vec![own], "br")] {
            let provider = Remote::new(RemoteSettings { headers, ..target(vendor, &server) }).unwrap();
            complete(&provider, &request("a", "b")).unwrap();
            assert_eq!(server.seen().last().unwrap().headers["accept-encoding"], asked);
        }
        let plain = answer(200, "application/json", "Identity", record(&server, vendor).to_string().as_bytes());
        let server = WireServer::always(plain);
        assert!(complete(&remote(vendor, &server, true), &request("a", "b")).is_ok(), "{vendor:?}");
    }
}

/// 50 MB in any form are not read to their end, and what is read is not kept.
#[test]
fn fifty_megabytes_are_not_read_in_any_form() {
    thread::scope(|scope| ALL.iter().for_each(|vendor| drop(scope.spawn(|| flood(*vendor)))));
}

fn flood(vendor: (Vendor, &str)) {
    let kind = stream_type(vendor);
    let blank = vec![vec![b' '; 1 << 20]; 50];
    let line = std::iter::once(b"data: \"".to_vec()).chain(vec![vec![b'x'; 1 << 20]; 50]).collect();
    let comments = vec![b": keep alive\n\n".repeat(75_000); 50];
    let mut answers = vec![("application/json", blank), (kind, line)];
    if vendor.0 != Vendor::Ollama {
        answers.push((kind, comments));
    }
    for (kind, pieces) in answers {
        let server = WireServer::always(Answer::Drip { kind, pieces, pause: Duration::ZERO });
        // A busy machine takes its time; what counts is that the end is not waited for.
        let patient = ModelRequest {
            timeout: Duration::from_secs(50),
            total: Duration::from_secs(50),
            ..request("calculator", "add")
        };
        let error = complete(&remote(vendor, &server, true), &patient).unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::InvalidResponse, "{vendor:?}: {error}");
        assert!(error.message.contains("larger than"), "{error}");
    }
}

/// A stream may be longer than an event may, and has a bound of its own.
#[test]
fn a_long_stream_is_read_and_an_endless_one_is_not() {
    thread::scope(|scope| {
        for vendor in [(Vendor::OpenAiCompatible, "qwen"), (Vendor::Ollama, "qwen3:8b")] {
            scope.spawn(move || long(vendor));
        }
    });
}

fn long(vendor: (Vendor, &str)) {
    let text = "x".repeat(256 << 10);
    let (said, end) = if vendor.0 == Vendor::Ollama {
        (json!({"message": {"content": text}, "done": false}), json!({"message": {"content": ""}, "done": true}))
    } else {
        let choice =
            |delta: Json, reason: Option<&str>| json!({"choices": [{"delta": delta, "finish_reason": reason}]});
        (choice(json!({"content": text}), None), choice(json!({}), Some("stop")))
    };
    let said = event(vendor, &said.to_string()).into_bytes();
    for (number, fits) in [(40, true), (140, false)] {
        let mut pieces = vec![said.clone(); number];
        pieces.push(event(vendor, &end.to_string()).into_bytes());
        let server = WireServer::always(Answer::Drip { kind: stream_type(vendor), pieces, pause: Duration::ZERO });
        let patient = ModelRequest {
            timeout: Duration::from_secs(50),
            total: Duration::from_secs(50),
            ..request("calculator", "add")
        };
        match complete(&remote(vendor, &server, true), &patient) {
            Ok(reply) => assert!(fits && reply.content.unwrap().len() == number * text.len(), "{vendor:?}"),
            Err(error) => assert!(!fits && error.message.contains("larger than"), "{vendor:?}: {error}"),
        }
    }
}

/// SC-3.17: nothing, and bytes that come too slowly, end with a bound: of the request, or of the whole.
#[test]
fn sc_3_17_nothing_and_slow_bytes_end_with_a_bound() {
    thread::scope(|scope| ALL.iter().for_each(|vendor| drop(scope.spawn(|| slow(*vendor)))));
}

fn slow(vendor: (Vendor, &str)) {
    const LONG: u64 = 30_000;
    let drip = |kind| Answer::Drip { kind, pieces: vec![b"data: ".to_vec(); 10_000], pause: Duration::from_millis(50) };
    for (stream, timeout, total, answer) in [
        (false, 400, LONG, Answer::Hang),
        (false, LONG, 400, Answer::Hang),
        (true, 400, LONG, Answer::Hang),
        (false, 400, LONG, drip("application/json")),
        (true, 400, LONG, drip("application/json")),
        (true, 400, 800, drip(stream_type(vendor))),
    ] {
        let server = WireServer::always(answer);
        let short = ModelRequest {
            timeout: Duration::from_millis(timeout),
            total: Duration::from_millis(total),
            ..request("calculator", "add")
        };
        let start = Instant::now();
        let error = complete(&remote(vendor, &server, stream), &short).unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::Timeout, "{vendor:?}: {error}");
        assert!((400..9_000).contains(&start.elapsed().as_millis()), "{vendor:?}: {:?}", start.elapsed());
    }
}

/// A server that cannot stream answers whole, and is understood.
#[test]
fn a_whole_answer_to_a_streaming_request_is_understood() {
    for vendor in ALL {
        let whole = WireServer::always(Answer::Said(spoken()));
        let asked = request("calculator", "add");
        let body = complete(&remote(vendor, &whole, false), &asked).unwrap();
        // What the same server says when it is not asked to stream, played to one who asked.
        let recorded = record(&whole, vendor);
        let server = WireServer::always(Answer::json(&recorded));
        assert_eq!(complete(&remote(vendor, &server, true), &asked).unwrap(), body, "{vendor:?}");
    }
}

/// The JSON of a whole reply, fetched by hand.
fn record(server: &WireServer, vendor: (Vendor, &str)) -> Json {
    let seen = server.seen().pop().unwrap();
    let body = seen.body.to_string();
    let version = if vendor.0 == Vendor::Anthropic { "anthropic-version: 2023-06-01\r\n" } else { "" };
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {} HTTP/1.0\r\ncontent-type: application/json\r\n{version}content-length: {length}\r\n\r\n{body}",
        seen.path
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// Promise 5: whatever a server sends back of what it was sent, no key is in an error, a reply or a piece.
#[test]
fn keys_never_come_back() {
    const HEADER: &str = "tok-9f8e7d6c5b4a";
    for vendor in ALL {
        let kinds = ["application/json", "text/html", stream_type(vendor), "text/plain; charset=latin1"];
        for (status, stream) in [200, 301, 400, 401, 429, 500].map(|status| [(status, false), (status, true)]).concat()
        {
            for kind in kinds {
                let server = WireServer::always(Answer::Echo { status, kind });
                let settings = RemoteSettings {
                    stream: Some(stream),
                    headers: vec![("x-team-token".into(), Secret::unlisted(HEADER).unwrap())],
                    ..target(vendor, &server)
                };
                let provider = Remote::new(settings).unwrap();
                let (request, heard) = listening(request("calculator", "add"));
                let told = match complete(&provider, &request) {
                    Ok(reply) => format!("{reply:?}"),
                    Err(error) => format!("{error} {error:?}"),
                };
                let told = format!("{told} {provider:?} {} {:?}", provider.fingerprint(), heard.lock().unwrap());
                assert!(!told.contains(KEY) && !told.contains(HEADER), "{vendor:?} {status} {kind}: {told}");
                let sent = &server.seen()[0].headers;
                assert!(sent.values().any(|value| value.contains(KEY)) && sent["x-team-token"] == HEADER);
            }
        }
        // A model that was told the key says it, whole, in pieces, and with escapes.
        let words = format!("the key is {KEY}, {KEY}{KEY}; not sk-test-01234");
        let said = Said { text: Some(words), reasoning: Some(KEY.into()), ..Said::default() };
        for reply in both(vendor, &Answer::Said(said.clone())) {
            let text = reply.unwrap().content.unwrap();
            assert_eq!(text, "the key is [secret], [secret][secret]; not sk-test-01234", "{vendor:?}");
        }
        let server = WireServer::always(Answer::Said(said));
        let (request, heard) = listening(request("calculator", "add"));
        complete(&remote(vendor, &server, true), &request).unwrap();
        let heard = heard.lock().unwrap().clone();
        assert_eq!(heard[0], "the key is [secret], [secret][secret]; not sk-test-01234", "{vendor:?}");
        assert_eq!(heard[2], "[secret]", "{vendor:?}");
        // So does one that was told what stands behind `Bearer ` in a header, or in a header of a key's name.
        let header = |name: &str, value: &str| (name.to_owned(), Secret::unlisted(value).unwrap());
        for (stream, given) in [
            (false, header("x-proxy-auth", &format!("Bearer {HEADER}"))),
            (true, header("x-proxy-auth", &format!("Bearer {HEADER}"))),
            (false, header("x-team-token", HEADER)),
            (true, header("x-team-token", HEADER)),
        ] {
            let server = WireServer::always(Answer::Said(Said::text(&format!("it is {HEADER}"))));
            let settings = RemoteSettings { headers: vec![given], stream: Some(stream), ..target(vendor, &server) };
            let reply = complete(&Remote::new(settings).unwrap(), &request).unwrap();
            assert_eq!(reply.content.as_deref(), Some("it is [secret]"), "{vendor:?}");
        }
        // A proxy's password is private too.
        let server = WireServer::always(Answer::Hang);
        let proxy = Secret::unlisted(&format!("http://user:{PROXY}@127.0.0.1:1")).unwrap();
        let settings = RemoteSettings { proxy: Some(Some(proxy)), ..target(vendor, &server) };
        let error = complete(&Remote::new(settings.clone()).unwrap(), &request).unwrap_err();
        assert!(!format!("{error:?} {settings:?}").contains(PROXY), "{error:?}");
        assert_eq!(error.class, ProviderErrorClass::Network, "{error}");
        assert!(server.seen().is_empty());
    }
}

/// A proxy that lets nobody through is told by its own option, and its password is in no form in what it sends back.
#[test]
fn a_proxy_that_wants_a_password_is_told_by_its_option_and_keeps_it() {
    // "us:pr@xy-pw-secret", and the same user without a password.
    for (user, basic) in [("us:pr%40xy-pw-secret", "dXM6cHJAeHktcHctc2VjcmV0"), ("us-token", "dXMtdG9rZW46")] {
        for (vendor, stream) in ALL.into_iter().flat_map(|vendor| [(vendor, false), (vendor, true)]) {
            // What came back of the last request.
            let sent = Arc::new(std::sync::Mutex::new(String::new()));
            let heard = sent.clone();
            let server = WireServer::start(None, move |seen| {
                let header = seen.headers["proxy-authorization"].clone();
                let body = format!("Proxy-Authorization: {header}, pr@xy-pw-secret, pr%40xy-pw-secret");
                *heard.lock().unwrap() = header;
                Answer::Raw { status: 407, headers: Vec::new(), body: body.into_bytes() }
            });
            let near = target(vendor, &server);
            let settings = RemoteSettings {
                base_url: near.base_url.replace("127.0.0.1", "model.invalid"),
                proxy: Some(Secret::unlisted(&server.root().replace("//", &format!("//{user}@")))),
                stream: Some(stream),
                ..near
            };
            let error = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap_err();
            // The proxy's word says nothing of the target behind it, nor of the next one.
            assert_eq!(error.class, ProviderErrorClass::Network, "{vendor:?}: {error}");
            assert!(error.message.contains("`proxy`") && !error.message.contains("model's name"), "{error}");
            assert!(sent.lock().unwrap().contains(basic), "{sent:?}");
            assert!(error.message.contains("Proxy-Authorization: Basic [secret]"), "{error}");
            let password = user.contains(':') && error.message.contains("xy-pw-secret");
            assert!(!password && !error.message.contains(basic), "{error}");
        }
    }
}

/// A proxy on the way to an `https` server is asked for a tunnel, and its refusal is told as its own.
#[test]
fn a_proxy_that_refuses_a_tunnel_is_told_by_its_option() {
    for (status, words) in [
        ("407 Proxy Authentication Required", "write its user and password into `proxy`"),
        ("403 Forbidden", "check the proxy"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Secret::unlisted(&format!("http://us:{PROXY}@{}", listener.local_addr().unwrap()));
        let asked = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
            String::from_utf8(head).unwrap()
        });
        let settings = RemoteSettings {
            proxy: Some(proxy),
            ..RemoteSettings::new(Vendor::OpenAi, "openai:m", "m", "https://model.invalid/v1")
        };
        let error = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap_err();
        assert!(asked.join().unwrap().starts_with("CONNECT model.invalid:443 HTTP/1.1\r\n"));
        assert_eq!(error.class, ProviderErrorClass::Network, "{error}");
        assert!(error.message.contains(words) && error.message.contains("through `proxy`"), "{error}");
        assert!(!error.message.contains(PROXY), "{error}");
    }
}

/// What a gateway quotes of the server behind it is a body of its own, with escapes of its own.
#[test]
fn a_key_in_what_a_gateway_quotes_is_masked() {
    for stream in [false, true] {
        for quoted in ["{\"sent\": \"sk\\/slashed-key-01\"}", "{\"sent\": \"\\u0073k/slashed-key-01\"}"] {
            let raw = json!({"raw": quoted, "provider_name": "Azure"});
            let body = json!({"error": {"message": "Provider returned error", "code": 400, "metadata": raw}});
            let server = WireServer::always(Answer::Raw {
                status: 400,
                headers: Vec::new(),
                body: body.to_string().into_bytes(),
            });
            let near = target((Vendor::OpenAiCompatible, "m"), &server);
            let settings = RemoteSettings { key: Secret::new("sk/slashed-key-01"), stream: Some(stream), ..near };
            let error = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap_err();
            assert!(error.message.ends_with("Provider returned error: {\"sent\": \"[secret]\"}"), "{error}");
        }
    }
}

/// A recorded refusal, and the vendors whose servers say it, each with a model.
type Refused = (PathBuf, Json, Vec<(Vendor, &'static str)>);

fn recorded() -> Vec<Refused> {
    let mut paths: Vec<_> = std::fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 79, "{} fixtures", paths.len());
    let vendors = |fixture: &Json| -> &[Vendor] {
        match fixture["vendor"].as_str().unwrap() {
            "openai" => &[Vendor::OpenAi, Vendor::OpenAiResponses],
            "anthropic" => &[Vendor::Anthropic],
            "gemini" => &[Vendor::Gemini],
            "ollama" => &[Vendor::Ollama],
            _compatible => &[Vendor::OpenAiCompatible],
        }
    };
    let with_vendors = |path: PathBuf| {
        let fixture: Json = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let own = ALL.into_iter().filter(|(vendor, _)| vendors(&fixture).contains(vendor)).collect();
        (path, fixture, own)
    };
    paths.into_iter().map(with_vendors).collect()
}

/// Each recorded refusal through the dialect of its vendor, asked for whole and in pieces.
#[test]
fn every_recorded_refusal_has_its_class() {
    let mut seen = BTreeMap::new();
    for (path, fixture, vendors) in recorded() {
        let name = path.file_stem().unwrap().to_string_lossy();
        let expect = &fixture["expect"];
        for (vendor, stream) in vendors.into_iter().flat_map(|vendor| [(vendor, false), (vendor, true)]) {
            let error = refused(vendor, stream, Answer::fixture(&path));
            assert_eq!(error.class.as_str(), expect["class"], "{name} {stream}: {error}");
            let wait = error.retry_after.map(|wait| wait.as_millis() as u64);
            assert_eq!(wait, expect["retry_after_ms"].as_u64(), "{name} {stream}");
            for part in expect["message_includes"].as_array().into_iter().flatten() {
                assert!(error.message.contains(part.as_str().unwrap()), "{name}: {error}");
            }
            let target = format!("{:?}:{}: ", vendor.0, vendor.1).to_lowercase();
            assert!(error.message.starts_with(&target), "{name}: {error}");
            *seen.entry(format!("{:?}", vendor.0)).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.len(), ALL.len(), "{seen:?}");
}

/// The same bodies as an event in the middle of a reply: without a status and headers the body alone says what it is.
#[test]
fn every_recorded_refusal_has_its_class_in_a_stream() {
    // Where only the status or a header said it.
    let without_status = BTreeMap::from([
        ("anthropic_529_overloaded_retry_after", "network"),
        ("openai_401_no_code", "model_error"),
        ("openai_403_plain", "invalid_response"),
        ("openai_403_region", "invalid_response"),
        ("openai_409_conflict", "invalid_response"),
        ("ollama_400_text", "invalid_response"),
        ("ollama_404_model", "invalid_response"),
    ]);
    let (mut played, mut wrong) = (0, Vec::new());
    for (path, fixture, vendors) in recorded() {
        let name = path.file_stem().unwrap().to_string_lossy();
        let body = fixture["body"].as_array().map_or(&fixture["body"], |list| &list[0]);
        // Pages and bodies without an error are no events of any stream.
        let Some(error) = body.get("error") else { continue };
        let class = without_status.get(&*name).copied().unwrap_or(fixture["expect"]["class"].as_str().unwrap());
        for vendor in vendors {
            let events = match vendor.0 {
                Vendor::OpenAiResponses => {
                    // It has one code, and a type of its own.
                    let code = ["code", "type"].iter().map(|name| &error[*name]).find(|code| !code.is_null());
                    let top = json!({"type": "error", "code": code, "message": error["message"], "param": null});
                    let failed = json!({"type": "response.failed", "response": {"status": "failed", "error": error}});
                    vec![top, failed]
                }
                _other_vendor => vec![body.clone()],
            };
            for data in events {
                let data = event(vendor, &data.to_string());
                let error = refused(vendor, true, Answer::typed(stream_type(vendor), data));
                if error.class.as_str() != class {
                    wrong.push(format!("{vendor:?} {name}, not {class}: {error:?}"));
                }
                played += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(played >= 80, "{played} events");
}

/// Promise 5: also where a message is cut, no part of a key is left; with escapes, without, in JSON and in none.
#[test]
fn no_part_of_a_key_is_left_where_a_message_is_cut() {
    let escaped: String = KEY.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
    for vendor in ALL {
        for (key, before) in [KEY, &escaped].into_iter().flat_map(|key| (140..210).step_by(7).map(move |at| (key, at)))
        {
            let words = format!("{}{key}", "a".repeat(before));
            let long = format!("{}{key}", "a".repeat(before + 850));
            let bodies = [
                (200, "application/json", format!(r#"{{"x":"{words}"}}"#)),
                (200, "application/json", format!(r#"{{"{words}":1}}"#)),
                (200, "application/json", format!(r#"{{"x":"{words}"#)),
                (200, "application/json", format!(r#"{{"error":{{"message":"{long}"}}}}"#)),
                (200, "application/json", format!(r#"{{"error":{{"message":{{"{long}":"{key}"}}}}}}"#)),
                (200, "text/html", format!("<p>{words}")),
                (500, "application/json", format!(r#"{{"error":{{"message":"{long}"}}}}"#)),
                (500, "application/json", format!(r#"{{"strange":"{long}"}}"#)),
                (500, "application/json", format!(r#"{{"strange":"{long}"#)),
                (500, "text/html", format!("<html>{}{key}", "a ".repeat((before + 850) / 2))),
            ];
            let wholes = bodies.into_iter().map(|(status, kind, body)| (status, kind, body, false));
            let events = [
                format!(r#"{{"type":5,"x":"{words}"}}"#),
                format!(r#"{{"type":"content_block_delta","index":7,"x":"{words}"}}"#),
                format!(r#"["{words}"]"#),
                format!(r#"{{"x":"{words}"#),
                format!(r#"{{"type":"error","error":{{"message":"{long}"}}}}"#),
                format!(r#"{{"error":"{long}"}}"#),
            ];
            let kind = stream_type(vendor);
            let streams = events.map(|data| (200, kind, event(vendor, &data), true));
            // All of them from one server, one after the other.
            let answers: Vec<_> = wholes.chain(streams).collect();
            let next = std::sync::atomic::AtomicUsize::new(0);
            let played = answers.clone();
            let server = WireServer::start(None, move |_| {
                let (status, kind, body, _) = &played[next.fetch_add(1, std::sync::atomic::Ordering::SeqCst)];
                let headers = vec![("content-type".to_owned(), (*kind).to_owned())];
                Answer::Raw { status: *status, headers, body: body.clone().into_bytes() }
            });
            for (_, _, body, stream) in answers {
                let error = complete(&remote(vendor, &server, stream), &request("a", "b")).unwrap_err();
                let told = format!("{error:?}").to_lowercase();
                assert!(!told.contains(&KEY[..8]), "{vendor:?} {before} {body}: {error}");
                assert!(!told.contains("\\u00"), "{vendor:?} {before} {body}: {error}");
            }
        }
    }
}

/// Promise 5: a key in any name of a reply is masked, also where escapes hide it from who looks at the bytes.
#[test]
fn a_key_in_a_name_is_masked() {
    let escaped: String = KEY.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
    let call = r#"{"id":"KEY","type":"function","function":{"name":"KEY","arguments":"{\"KEY\":1}"}}"#;
    let body = format!(
        r#"{{"model":"KEY","provider":"KEY","choices":[{{"message":{{"content":"KEY","tool_calls":[{call}]}},
        "finish_reason":"KEY"}}]}}"#
    );
    let server = WireServer::always(Answer::typed("application/json", body.replace("KEY", &escaped)));
    let reply = complete(&remote((Vendor::OpenAi, "gpt-4.1"), &server, false), &request("a", "b")).unwrap();
    assert_eq!(format!("{reply:?}").matches("[secret]").count(), 7, "{reply:?}");
    assert!(!format!("{reply:?}").contains(KEY), "{reply:?}");
}

/// Promise 5: a refusal that is too long is cut before a key, and not within it.
#[test]
fn no_part_of_a_key_is_left_where_a_refusal_is_cut() {
    const READ: usize = 64 << 10;
    for shown in 8..KEY.len() {
        // One tag up to the key: nothing before it is shown.
        let page = format!("<{}>{KEY} is wrong", "a".repeat(READ - shown - 2));
        let answer = Answer::Raw { status: 500, headers: Vec::new(), body: page.into_bytes() };
        let error = refused((Vendor::OpenAi, "gpt-4.1"), false, answer);
        assert!(!error.message.contains(&KEY[..8]), "{shown}: {error}");
    }
}

/// A header that is cut, or told in lower case, shows no part of a private word or a key either.
#[test]
fn a_header_shows_no_part_of_a_private_word() {
    const WORD: &str = "ORG-Upper-0123456789";
    for vendor in ALL {
        let ask = |status, name: &str, value: String| {
            let headers = vec![(name.to_owned(), value)];
            let server = WireServer::always(Answer::Raw { status, headers, body: b"x".to_vec() });
            let headers = vec![("x-organization".into(), Secret::unlisted(WORD).unwrap())];
            let provider = Remote::new(RemoteSettings { headers, ..target(vendor, &server) }).unwrap();
            complete(&provider, &request("a", "b")).unwrap_err().to_string().to_lowercase()
        };
        for secret in [WORD, KEY] {
            let location = ask(302, "location", format!("http://x/{}{secret}", "a".repeat(180)));
            let kind = ask(200, "content-type", format!("text/{secret}"));
            for told in [location, kind] {
                assert!(!told.contains(&secret.to_lowercase()[..6]), "{vendor:?}: {told}");
            }
        }
    }
}
