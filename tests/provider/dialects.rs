//! All dialects through the same questions: what goes out, what comes back whole and in pieces, and what happens when
//! it does not.

use std::sync::Mutex;

use cadenza_core::message::Usage;
use cadenza_core::provider::target::Params;
use cadenza_core::provider::{Piece, PieceSink};

use super::wire_server::{Counts, Said};
use super::*;

/// Every vendor, with a model that refuses nothing.
const ALL: [(Vendor, &str); 6] = [
    (Vendor::OpenAi, "gpt-4.1"),
    (Vendor::OpenAiResponses, "gpt-4.1"),
    (Vendor::OpenAiCompatible, "qwen"),
    (Vendor::Anthropic, "claude-sonnet-4-0"),
    (Vendor::Gemini, "gemini-3-pro"),
    (Vendor::Ollama, "qwen3:8b"),
];

fn address(vendor: Vendor, server: &WireServer) -> String {
    match vendor {
        Vendor::OpenAi | Vendor::OpenAiResponses | Vendor::OpenAiCompatible => server.base_url(),
        Vendor::Anthropic | Vendor::Gemini | Vendor::Ollama => server.root(),
    }
}

fn target((vendor, model): (Vendor, &str), server: &WireServer) -> RemoteSettings {
    let name = format!("{vendor:?}:{model}").to_lowercase();
    RemoteSettings {
        key: Secret::new(KEY),
        output: Some(Output::Tool),
        ..RemoteSettings::new(vendor, name, model, address(vendor, server))
    }
}

fn remote(vendor: (Vendor, &str), server: &WireServer, stream: bool) -> Remote {
    Remote::new(RemoteSettings { stream: Some(stream), ..target(vendor, server) }).unwrap()
}

/// The reply, whole and in pieces.
fn both(vendor: (Vendor, &str), answer: &Answer) -> [Result<ModelReply, ProviderError>; 2] {
    [false, true].map(|stream| {
        let server = WireServer::always(answer.clone());
        complete(&remote(vendor, &server, stream), &request("calculator", "add"))
    })
}

/// Listens to a reply's pieces: texts, arguments, reasoning.
fn listening(request: ModelRequest) -> (ModelRequest, Arc<Mutex<[String; 3]>>) {
    let heard = Arc::new(Mutex::new([const { String::new() }; 3]));
    let ears = heard.clone();
    let sink = PieceSink::new(move |piece| {
        let mut heard = ears.lock().unwrap();
        match piece {
            Piece::Text(text) => heard[0].push_str(text),
            Piece::Arguments(text) => heard[1].push_str(text),
            Piece::Reasoning(text) => heard[2].push_str(text),
        }
    });
    (ModelRequest { pieces: Some(sink), ..request }, heard)
}

const ARGUMENTS: &str = r#"{"code":"return \"grün 👍\"","language":"lua"}"#;

fn spoken() -> Said {
    Said {
        text: Some("Here it is: 👍".into()),
        reasoning: Some("The sum is wanted.".into()),
        calls: vec![("execute_program".into(), ARGUMENTS.into()), ("other".into(), r#"{"n":1}"#.into())],
        counts: Counts { input: 100, cached: 30, cache_write: 0, output: 7, reasoning: 3 },
        ..Said::default()
    }
}

#[test]
fn a_reply_is_the_same_whole_and_in_pieces() {
    for vendor in ALL {
        let [whole, pieces] = both(vendor, &Answer::Said(spoken())).map(Result::unwrap);
        assert_eq!(whole, pieces, "{vendor:?}");
        assert_eq!(whole.content.as_deref(), Some("Here it is: 👍"), "{vendor:?}");
        let calls: Vec<_> = whole.tool_calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
        assert_eq!(calls, [("execute_program", ARGUMENTS), ("other", r#"{"n":1}"#)], "{vendor:?}");
        let ids: Vec<_> = whole.tool_calls.iter().map(|call| call.id.clone()).collect();
        assert!(ids.iter().all(|id| !id.is_empty()) && ids[0] != ids[1], "{vendor:?}: {ids:?}");
        assert!(whole.stop_reason.is_some(), "{vendor:?}");
    }
}

/// Pieces are shown as they come, reasoning apart, and the reply is the same as without a listener.
#[test]
fn pieces_are_shown_as_they_come() {
    for vendor in ALL {
        let server = WireServer::always(Answer::Said(spoken()));
        let provider = Remote::new(target(vendor, &server)).unwrap();
        let (request, heard) = listening(request("calculator", "add"));
        assert!(provider.streams(&request), "{vendor:?}");
        let reply = complete(&provider, &request).unwrap();
        let [text, arguments, reasoning] = heard.lock().unwrap().clone();
        assert_eq!(reply.content.as_deref(), Some(&*text), "{vendor:?}");
        assert_eq!(reasoning, "The sum is wanted.", "{vendor:?}");
        assert_eq!(arguments.len(), ARGUMENTS.len() + r#"{"n":1}"#.len(), "{vendor:?}: {arguments}");
        let refused = Remote::new(RemoteSettings { stream: Some(false), ..target(vendor, &server) }).unwrap();
        assert!(!refused.streams(&request), "{vendor:?}");
    }
}

/// SC-4.03: the same tokens are the same numbers, whoever counts them.
#[test]
fn sc_4_03_the_same_tokens_are_the_same_numbers() {
    let all = Usage { input: 100, cached: 30, output: 7, cache_write: 0, reasoning: 3 };
    for vendor in ALL {
        for reply in both(vendor, &Answer::Said(spoken())) {
            // Ollama counts neither caches nor thoughts apart.
            let plain = Usage { input: 100, output: 7, ..Usage::default() };
            let expected = if vendor.0 == Vendor::Ollama { plain } else { all };
            assert_eq!(reply.unwrap().usage, Some(expected), "{vendor:?}");
        }
        let writing = Said { counts: Counts { cache_write: 20, ..spoken().counts }, ..spoken() };
        for reply in both(vendor, &Answer::Said(writing)) {
            let usage = reply.unwrap().usage.unwrap();
            // Two have no such count, and what is written stays a part of the input everywhere.
            let counted = !matches!(vendor.0, Vendor::Gemini | Vendor::Ollama);
            assert_eq!((usage.input, usage.cache_write), (100, if counted { 20 } else { 0 }), "{vendor:?}");
        }
    }
}

/// SC-4.07: who really answered is told.
#[test]
fn sc_4_07_who_really_answered_is_told() {
    for vendor in ALL {
        let said = Said { model: "routed-1".into(), provider: Some("backend".into()), ..spoken() };
        for reply in both(vendor, &Answer::Said(said)) {
            let reply = reply.unwrap();
            assert_eq!(reply.model.as_deref(), Some("routed-1"), "{vendor:?}");
            let gateway = matches!(vendor.0, Vendor::OpenAi | Vendor::OpenAiResponses | Vendor::OpenAiCompatible);
            assert_eq!(reply.provider.as_deref(), gateway.then_some("backend"), "{vendor:?}");
        }
    }
}

/// SC-3.23: nothing of a stream that breaks off is a reply, wherever it breaks off.
#[test]
fn sc_3_23_a_stream_that_breaks_off_is_no_reply() {
    for vendor in ALL {
        for cut in 0.. {
            let server = WireServer::always(Answer::Pieces { said: spoken(), pause: Duration::ZERO, cut });
            let reply = complete(&remote(vendor, &server, true), &request("calculator", "add"));
            match reply {
                Err(error) => {
                    assert_eq!(error.class, ProviderErrorClass::InvalidResponse, "{vendor:?} cut at {cut}: {error}");
                    assert!(error.message.contains("the stream ended before the reply did"), "{error}");
                }
                // Only what was complete before the mark is taken: chat completions say first why they end.
                Ok(reply) => {
                    assert_eq!(reply.tool_calls.len(), 2, "{vendor:?} cut at {cut}");
                    assert!(cut > 8, "{vendor:?} cut at {cut}");
                    break;
                }
            }
        }
    }
}

/// SC-3.18: silence is measured from the last bytes, and the whole has a bound of its own.
#[test]
fn sc_3_18_silence_is_measured_from_the_last_bytes() {
    thread::scope(|scope| ALL.iter().for_each(|vendor| drop(scope.spawn(|| silence(*vendor)))));
}

fn silence(vendor: (Vendor, &str)) {
    let pause = Duration::from_millis(250);
    let server = WireServer::always(Answer::Pieces { said: spoken(), pause, cut: usize::MAX });
    let provider = remote(vendor, &server, true);
    let patient = ModelRequest { timeout: Duration::from_millis(1_500), ..request("calculator", "add") };
    let start = Instant::now();
    complete(&provider, &patient).unwrap();
    assert!(start.elapsed() > patient.timeout, "{vendor:?}: {:?}", start.elapsed());
    let hasty = ModelRequest { total: Duration::from_millis(600), ..patient };
    let error = complete(&provider, &hasty).unwrap_err();
    assert_eq!(error.class, ProviderErrorClass::Timeout, "{vendor:?}: {error}");

    let silent = WireServer::always(Answer::Pieces { said: spoken(), pause: Duration::from_secs(6), cut: 3 });
    let start = Instant::now();
    let short = ModelRequest { timeout: Duration::from_millis(300), ..request("calculator", "add") };
    let error = complete(&remote(vendor, &silent, true), &short).unwrap_err();
    assert_eq!(error.class, ProviderErrorClass::Timeout, "{vendor:?}: {error}");
    assert!((300..5_500).contains(&start.elapsed().as_millis()), "{vendor:?}: {:?}", start.elapsed());
}

/// SC-1.46, SC-1.47: sampling goes out under the vendor's names.
#[test]
fn sc_1_47_sampling_goes_out_under_the_vendors_names() {
    let params = Params {
        temperature: Some(Some(0.5)),
        top_p: Some(Some(0.8)),
        repeat_penalty: Some(Some(1.5)),
        ..Params::default()
    };
    for vendor in ALL {
        for stream in [false, true] {
            let server = WireServer::always(Answer::Program("return 1".into()));
            let settings = RemoteSettings { params: params.clone(), stream: Some(stream), ..target(vendor, &server) };
            let reply = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
            let body = &server.seen()[0].body;
            let (temperature, top_p, penalty) = match vendor.0 {
                Vendor::Gemini => ("/generationConfig/temperature", "/generationConfig/topP", ""),
                Vendor::Ollama => ("/options/temperature", "/options/top_p", "/options/repeat_penalty"),
                Vendor::OpenAiCompatible => ("/temperature", "/top_p", "/repeat_penalty"),
                Vendor::OpenAi | Vendor::OpenAiResponses | Vendor::Anthropic => ("/temperature", "/top_p", ""),
            };
            assert_eq!(body.pointer(temperature), Some(&json!(0.5)), "{vendor:?}");
            assert_eq!(body.pointer(top_p), Some(&json!(0.8)), "{vendor:?}");
            if penalty.is_empty() {
                assert_eq!(reply.omitted, ["repeat_penalty"], "{vendor:?}");
                assert!(!body.to_string().contains("1.5"), "{vendor:?}: {body}");
            } else {
                assert_eq!(body.pointer(penalty), Some(&json!(1.5)), "{vendor:?}");
                assert!(reply.omitted.is_empty(), "{vendor:?}");
            }
        }
    }
}
