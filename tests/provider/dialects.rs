//! All dialects through the same questions: what goes out, what comes back whole and in pieces, and what happens when
//! it does not.

use std::sync::Mutex;

use cadenza_core::message::Usage;
use cadenza_core::provider::target::Params;
use cadenza_core::provider::{Piece, PieceSink};

use super::wire_server::{Counts, Said};
use super::*;

/// Every vendor, with a model that refuses nothing.
pub const ALL: [(Vendor, &str); 6] = [
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

pub fn target((vendor, model): (Vendor, &str), server: &WireServer) -> RemoteSettings {
    let name = format!("{vendor:?}:{model}").to_lowercase();
    RemoteSettings {
        key: Secret::new(KEY),
        output: Some(Output::Tool),
        ..RemoteSettings::new(vendor, name, model, address(vendor, server))
    }
}

pub fn remote(vendor: (Vendor, &str), server: &WireServer, stream: bool) -> Remote {
    Remote::new(RemoteSettings { stream: Some(stream), ..target(vendor, server) }).unwrap()
}

/// The reply, whole and in pieces.
pub fn both(vendor: (Vendor, &str), answer: &Answer) -> [Result<ModelReply, ProviderError>; 2] {
    [false, true].map(|stream| {
        let server = WireServer::always(answer.clone());
        complete(&remote(vendor, &server, stream), &request("calculator", "add"))
    })
}

/// Listens to a reply's pieces: texts, arguments, reasoning.
pub fn listening(request: ModelRequest) -> (ModelRequest, Arc<Mutex<[String; 3]>>) {
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

pub fn spoken() -> Said {
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

/// Mistral's models say lists of parts, thoughts among them.
#[test]
fn a_content_of_parts_is_the_same_whole_and_in_pieces() {
    let vendor = (Vendor::OpenAiCompatible, "magistral");
    let thought = json!([{"type": "thinking", "thinking": [{"type": "text", "text": "The sum "}]}]);
    let said = json!([{"type": "thinking", "thinking": "is wanted."}, {"type": "text", "text": "return "}]);
    let end = json!([{"type": "text", "text": "1 "}, {"type": "text", "text": "+ 2"}]);
    let deltas = [thought.clone(), said.clone(), end.clone(), json!(" -- 3"), json!("")];
    let parts = [thought, said, end, json!([{"type": "text", "text": " -- 3"}])];
    let parts: Vec<Json> = parts.iter().flat_map(|list| list.as_array().unwrap()).cloned().collect();

    let whole = WireServer::always(Answer::Message(json!({"content": parts}), "stop"));
    let whole = complete(&remote(vendor, &whole, false), &request("a", "b")).unwrap();
    assert_eq!(whole.content.as_deref(), Some("return 1 + 2 -- 3"));

    let events = deltas.map(|content| format!("data: {}\n\n", json!({"choices": [{"delta": {"content": content}}]})));
    let server = WireServer::always(Answer::typed("text/event-stream", events.concat() + "data: [DONE]\n\n"));
    let (request, heard) = listening(request("a", "b"));
    let pieces = complete(&remote(vendor, &server, true), &request).unwrap();
    assert_eq!(pieces.content, whole.content);
    assert_eq!(*heard.lock().unwrap(), ["return 1 + 2 -- 3", "", "The sum is wanted."]);
}

/// Some servers say id and name again with every piece of the arguments, and some say a name in pieces.
#[test]
fn a_name_that_is_said_again_is_said_once() {
    let vendor = (Vendor::OpenAiCompatible, "qwen");
    let (first, last) = ARGUMENTS.split_at(9);
    let said = |index: Option<u64>, id: Option<&str>, name: &str, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"index": index, "id": id, "type": "function", "function": function});
        format!("data: {}\n\n", json!({"choices": [{"delta": {"tool_calls": [call]}}]}))
    };
    let (name, id) = ("execute_program", Some("c"));
    for pieces in [
        [said(Some(0), id, name, ""), said(Some(0), id, name, first), said(Some(0), id, name, last)],
        [said(None, id, name, ""), said(None, id, name, first), said(None, id, name, last)],
        [said(Some(0), id, name, ""), said(Some(0), None, "", first), said(Some(0), id, "", last)],
        [said(Some(0), id, "execute", ""), said(Some(0), id, "_program", first), said(Some(0), None, "", last)],
        [said(Some(0), id, "execute", ""), said(Some(0), None, "_program", first), said(Some(0), None, "", last)],
    ] {
        let body = pieces.concat() + "data: [DONE]\n\n";
        let server = WireServer::always(Answer::typed("text/event-stream", body.clone()));
        let reply = complete(&remote(vendor, &server, true), &request("a", "b")).unwrap();
        let calls: Vec<_> = reply.tool_calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect();
        assert_eq!(calls, [("c", name, ARGUMENTS)], "{body}");
    }
}

/// A whole body, and the same in events.
fn answers(vendor: Vendor, whole: &Json, events: &[Json]) -> [(bool, Answer); 2] {
    let (kind, lines) = match vendor {
        Vendor::Ollama => ("application/jsonl", events.iter().map(|event| format!("{event}\n")).collect::<String>()),
        _events => ("text/event-stream", events.iter().map(|event| format!("data: {event}\n\n")).collect()),
    };
    [(false, Answer::json(whole)), (true, Answer::typed(kind, lines))]
}

/// A reply, whole and in events, of that vendor.
fn replied(vendor: (Vendor, &str), whole: &Json, events: &[Json]) -> [Result<ModelReply, ProviderError>; 2] {
    answers(vendor.0, whole, events).map(|(stream, answer)| {
        complete(&remote(vendor, &WireServer::always(answer), stream), &request("calculator", "add"))
    })
}

/// What compatible servers say beside the rest: fields that are null, other names, and counts that are not all there.
#[test]
fn null_fields_and_other_names_are_understood() {
    let compatible = (Vendor::OpenAiCompatible, "qwen");
    let usage = json!({"prompt_tokens": 9, "prompt_tokens_details": {"created_cache_tokens": 4}});
    let message = json!({"content": "return 1", "refusal": null, "tool_calls": null});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop", "error": null});
    let whole = json!({"choices": [choice], "usage": usage, "error": null});
    let said = |delta: Json, reason: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason, "error": null});
        json!({"choices": [choice], "usage": null, "error": null})
    };
    let counted = json!({"choices": [], "usage": usage});
    let events = [counted, said(json!({"content": "return 1"}), None), said(json!({}), Some("stop"))];
    for reply in replied(compatible, &whole, &events).map(Result::unwrap) {
        assert_eq!((reply.content.as_deref(), reply.stop_reason.as_deref()), (Some("return 1"), Some("stop")));
        assert_eq!(reply.usage, Some(Usage { input: 9, cache_write: 4, ..Usage::default() }));
    }

    let events: String = [json!({"reasoning_content": "The "}), json!({"reasoning": "sum."}), json!({"content": "x"})]
        .map(|delta| format!("data: {}\n\n", said(delta, None)))
        .concat();
    let server = WireServer::always(Answer::typed("text/event-stream", events + "data: [DONE]\n\n"));
    let (request, heard) = listening(request("a", "b"));
    complete(&remote(compatible, &server, true), &request).unwrap();
    assert_eq!(*heard.lock().unwrap(), ["x", "", "The sum."]);

    let function = json!({"name": "execute_program", "arguments": {"code": "x"}});
    let delta = json!({"tool_calls": [{"index": 0, "id": "c", "function": function}]});
    let message = json!({"content": null, "tool_calls": [{"id": "c", "function": function}]});
    let whole = json!({"choices": [{"message": message, "finish_reason": "tool_calls"}]});
    for reply in replied(compatible, &whole, &[said(delta, Some("tool_calls"))]).map(Result::unwrap) {
        assert_eq!((reply.content, &*reply.tool_calls[0].arguments), (None, r#"{"code":"x"}"#));
    }

    let refused = json!({"choices": [{"message": {"content": null}, "finish_reason": "refusal"}]});
    let events = [said(json!({}), Some("refusal"))];
    for error in replied(compatible, &refused, &events).map(Result::unwrap_err) {
        assert_eq!(error.class, ProviderErrorClass::InvalidResponse);
        assert!(error.message.contains("the model refused"), "{error}");
    }
}

/// A response that is not complete says why, and is read for what it holds.
#[test]
fn an_incomplete_response_says_why() {
    let vendor = (Vendor::OpenAiResponses, "gpt-4.1");
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"});
    let response = |status: &str, output: Json, reason: Option<&str>| {
        let details = reason.map(|reason| json!({"reason": reason}));
        json!({"status": status, "output": output, "incomplete_details": details})
    };
    let whole = response("incomplete", json!([call]), Some("max_output_tokens"));
    // The last event may leave out the items that came before it.
    let last = response("incomplete", json!([]), Some("max_output_tokens"));
    let events = [
        json!({"type": "response.output_item.done", "output_index": 0, "item": call}),
        json!({"type": "response.incomplete", "response": last}),
    ];
    for reply in replied(vendor, &whole, &events).map(Result::unwrap) {
        assert_eq!(reply.stop_reason.as_deref(), Some("max_output_tokens"));
        assert_eq!((reply.tool_calls.len(), &*reply.tool_calls[0].id), (1, "call_1"));
    }
    let nothing = response("cancelled", json!([]), None);
    let events = [json!({"type": "response.completed", "response": nothing})];
    for error in replied(vendor, &nothing, &events).map(Result::unwrap_err) {
        assert_eq!(error.class, ProviderErrorClass::InvalidResponse);
        assert!(error.message.contains("the reply is cancelled"), "{error}");
    }
}

/// Counts that come again may come without a number, and a block may begin with its first words.
#[test]
fn anthropics_pieces_add_up() {
    let vendor = (Vendor::Anthropic, "claude-sonnet-4-0");
    let usage = json!({"input_tokens": 5, "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 2}});
    let events = [
        json!({"type": "message_start", "message": {"model": "m", "content": [], "usage": usage}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "return "}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "1"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": null, "output_tokens": 7}}),
        json!({"type": "message_stop"}),
    ];
    let [_, (_, streamed)] = answers(vendor.0, &json!({}), &events);
    let (request, heard) = listening(request("a", "b"));
    let reply = complete(&remote(vendor, &WireServer::always(streamed), true), &request).unwrap();
    assert_eq!((reply.content.as_deref(), &*heard.lock().unwrap()[0]), (Some("return 1"), "return 1"));
    assert_eq!(reply.usage, Some(Usage { input: 5, output: 7, reasoning: 2, ..Usage::default() }));
}

/// Gemini's reply may stand in a list, counts the tokens of its tools apart, and says in words why it holds nothing.
#[test]
fn geminis_own_ways_are_understood() {
    let vendor = (Vendor::Gemini, "gemini-3-pro");
    let call = |name: &str| json!({"functionCall": {"name": name, "args": {}}});
    let usage = json!({"promptTokenCount": 5, "toolUsePromptTokenCount": 3, "candidatesTokenCount": 2});
    let reply = |parts: Json, reason: &str| {
        let candidate = json!({"content": {"parts": parts}, "finishReason": reason, "finishMessage": "No such tool."});
        json!({"candidates": [candidate], "usageMetadata": usage})
    };
    let good = reply(json!([call("f"), call("g")]), "STOP");
    let wrapped = json!([good]);
    for reply in replied(vendor, &wrapped, &[good]).map(Result::unwrap) {
        let ids: Vec<_> = reply.tool_calls.iter().map(|call| &*call.id).collect();
        assert_eq!((ids, reply.usage.unwrap().input), (vec!["call_0", "call_1"], 8));
    }
    // An empty reply that was only too long is the adapter's to judge.
    let long = reply(json!([]), "MAX_TOKENS");
    for reply in replied(vendor, &long, std::slice::from_ref(&long)).map(Result::unwrap) {
        assert_eq!((reply.content, reply.stop_reason.as_deref()), (None, Some("MAX_TOKENS")));
    }
    for reason in ["TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE"] {
        let broken = reply(json!([call("f")]), reason);
        for error in replied(vendor, &broken, std::slice::from_ref(&broken)).map(Result::unwrap_err) {
            assert_eq!(error.class, ProviderErrorClass::InvalidResponse, "{reason}");
            assert!(error.message.contains(reason) && error.message.contains("No such tool."), "{error}");
        }
    }
    let fingerprint = |model| {
        let server = WireServer::always(Answer::Hang);
        remote((Vendor::Gemini, model), &server, false).fingerprint().to_owned()
    };
    assert!(fingerprint("tunedModels/mine").contains("/v1beta/tunedModels/mine:generateContent"));
    assert!(fingerprint("a b?c").contains("/v1beta/models/a%20b%3Fc:generateContent"));
}

/// Ollama says in each line whether it is the last, may count one side alone, and may say arguments as text.
#[test]
fn ollamas_own_ways_are_understood() {
    let vendor = (Vendor::Ollama, "qwen3:8b");
    let call = json!({"function": {"name": "f", "arguments": "{\"n\": 1}"}});
    let message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let done = json!({"message": message, "done": true, "done_reason": "stop", "eval_count": 4});
    for reply in replied(vendor, &done, std::slice::from_ref(&done)).map(Result::unwrap) {
        assert_eq!(&*reply.tool_calls[0].arguments, r#"{"n": 1}"#);
        assert_eq!(reply.usage, Some(Usage { output: 4, ..Usage::default() }));
    }
    for kind in ["application/x-ndjson", "application/ndjson", "application/jsonl; charset=utf-8"] {
        // Without the end of its line.
        let server = WireServer::always(Answer::typed(kind, done.to_string()));
        assert!(complete(&remote(vendor, &server, true), &request("a", "b")).is_ok(), "{kind}");
    }
    let half = json!({"message": {"role": "assistant", "content": "return 1"}, "done": false});
    for error in replied(vendor, &half, std::slice::from_ref(&half)).map(Result::unwrap_err) {
        assert_eq!(error.class, ProviderErrorClass::InvalidResponse, "{error}");
    }
}

/// Whoever listens to thoughts asks for them, where every account may. OpenAI gives summaries to verified ones alone: those
/// say so in `extra`.
#[test]
fn thoughts_are_asked_for_by_who_listens() {
    let sent = |vendor, params: Params, listens: bool| {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let provider = Remote::new(RemoteSettings { params, ..target(vendor, &server) }).unwrap();
        let asked = request("a", "b");
        complete(&provider, &if listens { listening(asked).0 } else { asked }).unwrap();
        server.seen().remove(0).body
    };
    let effort = Params { reasoning_effort: Some(Some("high".into())), ..Params::default() };
    for listens in [true, false] {
        let body = sent((Vendor::Gemini, "gemini-3-pro"), effort.clone(), listens);
        assert_eq!(body["generationConfig"]["thinkingConfig"]["includeThoughts"], listens);
        let body = sent((Vendor::OpenAiResponses, "gpt-5.1"), effort.clone(), listens);
        assert_eq!(body["reasoning"], json!({"effort": "high"}));
        let summary = Value::Map(Map::from([("summary".to_owned(), "auto".into())]));
        let extra = BTreeMap::from([("reasoning".to_owned(), Some(summary))]).into();
        let body = sent((Vendor::OpenAiResponses, "gpt-5.1"), Params { extra, ..effort.clone() }, listens);
        assert_eq!(body["reasoning"], json!({"effort": "high", "summary": "auto"}));
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

/// A connection is used again although a reply is complete before its stream ends.
#[test]
fn streamed_replies_share_a_connection() {
    thread::scope(|scope| ALL.iter().for_each(|vendor| drop(scope.spawn(|| connections(*vendor)))));
}

fn connections(vendor: (Vendor, &str)) {
    let server =
        WireServer::always(Answer::Pieces { said: spoken(), pause: Duration::from_millis(5), cut: usize::MAX });
    let provider = remote(vendor, &server, true);
    for _ in 0..10 {
        complete(&provider, &request("calculator", "add")).unwrap();
        // The stream's end is awaited beside the call.
        thread::sleep(Duration::from_millis(40));
    }
    assert!(server.connections() <= 5, "{vendor:?}: {} connections for 10 calls", server.connections());
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

    let silent = WireServer::always(Answer::Pieces { said: spoken(), pause: Duration::from_secs(30), cut: 3 });
    let start = Instant::now();
    let short = ModelRequest { timeout: Duration::from_millis(300), ..request("calculator", "add") };
    let error = complete(&remote(vendor, &silent, true), &short).unwrap_err();
    assert_eq!(error.class, ProviderErrorClass::Timeout, "{vendor:?}: {error}");
    assert!((300..9_000).contains(&start.elapsed().as_millis()), "{vendor:?}: {:?}", start.elapsed());
}

/// SC-1.46, SC-1.47: sampling goes out under the vendor's names.
#[test]
fn sc_1_47_sampling_goes_out_under_the_vendors_names() {
    let params = Params {
        temperature: Some(Some(0.5)),
        top_p: Some(Some(0.8)),
        repeat_penalty: Some(Some(1.5)),
        seed: Some(Some(77_777)),
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
            let mut omitted = Vec::new();
            if penalty.is_empty() {
                omitted.push("repeat_penalty");
                assert!(!body.to_string().contains("1.5"), "{vendor:?}: {body}");
            } else {
                assert_eq!(body.pointer(penalty), Some(&json!(1.5)), "{vendor:?}");
            }
            // vLLM's name, beside llama.cpp's.
            let other_name = (vendor.0 == Vendor::OpenAiCompatible).then(|| json!(1.5));
            assert_eq!(body.get("repetition_penalty"), other_name.as_ref(), "{vendor:?}");
            let seed = match vendor.0 {
                Vendor::OpenAi | Vendor::OpenAiCompatible => "/seed",
                Vendor::Gemini => "/generationConfig/seed",
                Vendor::Ollama => "/options/seed",
                Vendor::OpenAiResponses | Vendor::Anthropic => "",
            };
            if seed.is_empty() {
                omitted.push("seed");
                assert!(!body.to_string().contains("77777"), "{vendor:?}: {body}");
            } else {
                assert_eq!(body.pointer(seed), Some(&json!(77_777)), "{vendor:?}");
            }
            assert_eq!(reply.omitted, omitted, "{vendor:?}");
        }
    }
}

/// The bound of a reply goes out under the vendor's name: the request's or the target's, whichever is less.
#[test]
fn the_bound_of_a_reply_goes_out_under_the_vendors_name() {
    for vendor in ALL {
        let place = match vendor.0 {
            Vendor::OpenAi => "/max_completion_tokens",
            Vendor::OpenAiCompatible | Vendor::Anthropic => "/max_tokens",
            Vendor::OpenAiResponses => "/max_output_tokens",
            Vendor::Gemini => "/generationConfig/maxOutputTokens",
            Vendor::Ollama => "/options/num_predict",
        };
        for (of_request, of_target, sent) in
            [(Some(900), Some(700), 700), (Some(700), Some(900), 700), (Some(900), None, 900), (None, Some(700), 700)]
        {
            let server = WireServer::always(Answer::Program("return 1".into()));
            let params = Params { max_output_tokens: of_target.map(Some), ..Params::default() };
            let settings = RemoteSettings { params, ..target(vendor, &server) };
            let asked = ModelRequest { max_output_tokens: of_request, ..request("a", "b") };
            complete(&Remote::new(settings).unwrap(), &asked).unwrap();
            assert_eq!(server.seen()[0].body.pointer(place), Some(&json!(sent)), "{vendor:?}");
        }
    }
}

/// Anthropic wants a bound in every request: one that the model can have, with room for an answer behind its thoughts.
#[test]
fn anthropics_own_bound_fits_the_model_and_its_thoughts() {
    for (model, thinking, max_tokens, budget) in [
        ("claude-3-haiku", None, 4_096, Json::Null),
        ("claude-3-5-sonnet-latest", None, 8_192, Json::Null),
        ("claude-sonnet-4-5", Some(2_048), 8_192 + 2_048, json!(2_048)),
        ("claude-sonnet-4-5", Some(16_000), 8_192 + 16_000, json!(16_000)),
        ("claude-sonnet-4-5", Some(100), 8_192 + 1_024, json!(1_024)),
    ] {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let params = Params { extended_thinking: thinking.map(Some), ..Params::default() };
        let settings = RemoteSettings { params, ..target((Vendor::Anthropic, model), &server) };
        complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
        let body = &server.seen()[0].body;
        let sent = (&body["max_tokens"], body.pointer("/thinking/budget_tokens").unwrap_or(&Json::Null));
        assert_eq!(sent, (&json!(max_tokens), &budget), "{model}");
    }
}

/// SC-1.48, SC-1.51: what is off, or taken away, is not on the wire.
#[test]
fn sc_1_51_off_means_off() {
    let off = Params {
        temperature: Some(None),
        reasoning_effort: Some(None),
        extended_thinking: Some(None),
        extra: BTreeMap::from([("tool_choice".to_owned(), None), ("toolConfig".to_owned(), None)]).into(),
        ..Params::default()
    };
    for vendor in ALL {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let settings = RemoteSettings { params: off.clone(), ..target(vendor, &server) };
        let reply = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
        assert!(reply.omitted.is_empty(), "{vendor:?}: {:?}", reply.omitted);
        let body = server.seen()[0].body.to_string();
        let words =
            ["temperature", "reasoning", "effort", "thinking", "think", "top_p", "seed", "tool_choice", "toolConfig"];
        for word in words {
            assert!(!body.contains(&format!("\"{word}")), "{vendor:?} has {word}: {body}");
        }
    }
}

/// SC-1.49: effort is on the wire of every OpenAI-style target that knows it; one that does not has no such key, and answers.
#[test]
fn sc_1_49_effort_is_passed_where_it_is_supported() {
    let params = Params { reasoning_effort: Some(Some("high".into())), ..Params::default() };
    for (vendor, model, known) in [
        (Vendor::OpenAi, "gpt-5.1", true),
        (Vendor::OpenAiResponses, "gpt-5.1", true),
        (Vendor::OpenAiCompatible, "qwen", true),
        (Vendor::OpenAi, "gpt-4.1", false),
        (Vendor::OpenAiResponses, "gpt-4.1", false),
        (Vendor::Anthropic, "claude-3-haiku", false),
        (Vendor::Gemini, "gemini-2.0-flash", false),
    ] {
        for stream in [false, true] {
            let server = WireServer::always(Answer::Program("return 1".into()));
            let settings =
                RemoteSettings { params: params.clone(), stream: Some(stream), ..target((vendor, model), &server) };
            let reply = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
            let body = &server.seen()[0].body;
            let place = if vendor == Vendor::OpenAiResponses { "/reasoning/effort" } else { "/reasoning_effort" };
            assert_eq!(body.pointer(place), known.then(|| json!("high")).as_ref(), "{vendor:?} {model}: {body}");
            assert_eq!(body.to_string().contains("\"high\""), known, "{vendor:?} {model}: {body}");
            assert_eq!(reply.omitted.is_empty(), known, "{vendor:?} {model}");
            assert_eq!(reply.tool_calls.len(), 1, "{vendor:?} {model}");
        }
    }
}

/// SC-1.50: thinking is sent to a target that thinks, and its choice of tool is not forced then; without, it is.
#[test]
fn sc_1_50_who_thinks_is_not_forced_to_a_tool() {
    for model in ["claude-3-7-sonnet", "claude-sonnet-4-5", "claude-opus-4-7"] {
        for budget in [None, Some(2_048)] {
            let params = Params { extended_thinking: Some(budget), ..Params::default() };
            let server = WireServer::always(Answer::Program("return 1".into()));
            let settings = RemoteSettings { params, ..target((Vendor::Anthropic, model), &server) };
            let reply = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
            let body = &server.seen()[0].body;
            assert_eq!(body["tools"][0]["name"], "execute_program", "{model}");
            assert_eq!(reply.tool_calls[0].name, "execute_program", "{model}");
            if budget.is_some() {
                assert!(body["thinking"].is_object(), "{model}: {body}");
                assert_eq!(body["tool_choice"], json!({"type": "auto"}), "{model}");
            } else {
                assert!(body.get("thinking").is_none(), "{model}: {body}");
                assert_eq!(body["tool_choice"], json!({"type": "tool", "name": "execute_program"}), "{model}");
            }
        }
    }
}

/// One tool is required by its name where the vendor knows names, and else by the word: LM Studio refuses an object there,
/// and llama.cpp reads it as `auto` (model-wire-formats.md 6).
#[test]
fn the_tool_is_required_in_the_words_of_the_server() {
    for (vendor, choice) in [
        (Vendor::OpenAi, json!({"type": "function", "function": {"name": "execute_program"}})),
        (Vendor::OpenAiCompatible, json!("required")),
    ] {
        for stream in [false, true] {
            let server = WireServer::always(Answer::Program("return 1".into()));
            let reply = complete(&remote((vendor, "m"), &server, stream), &request("a", "b")).unwrap();
            assert_eq!(reply.tool_calls.len(), 1, "{vendor:?}");
            assert_eq!(server.seen()[0].body["tool_choice"], choice, "{vendor:?}");
        }
    }
}

/// Models that refuse tools, or to be forced to one, are held by a schema; whoever asks for the tool all the same gets it,
/// unforced where it must be.
#[test]
fn who_refuses_the_tool_is_held_by_a_schema() {
    for (vendor, model, schema) in [
        (Vendor::OpenAi, "gpt-6-luna", "/response_format/json_schema/schema/properties/code"),
        (Vendor::Anthropic, "claude-sonnet-5-5", "/output_config/format/schema/properties/code"),
    ] {
        for output in [None, Some(Output::Tool)] {
            let server = WireServer::always(Answer::Program("return 1".into()));
            let settings = RemoteSettings { output, ..target((vendor, model), &server) };
            let provider = Remote::new(settings).unwrap();
            complete(&provider, &request("a", "b")).unwrap();
            let body = &server.seen()[0].body;
            assert_eq!(body.pointer(schema).is_some(), output.is_none(), "{model}: {body}");
            assert_eq!(body.get("tools").is_some(), output.is_some(), "{model}: {body}");
            let forced = body.pointer("/tool_choice/name").is_some();
            assert!(!forced, "{model}: {body}");
            assert_eq!(provider.profile(), if output.is_none() { "json" } else { "tool" }, "{model}");
        }
    }
}

/// SC-1.49, SC-1.50: effort and thinking under the vendors' names, where the model knows them.
#[test]
fn sc_1_50_thinking_is_asked_for_where_it_exists() {
    let effort = Params { reasoning_effort: Some(Some("high".into())), ..Params::default() };
    let thinking = Params { extended_thinking: Some(Some(2_048)), ..Params::default() };
    let none = Params { reasoning_effort: Some(Some("none".into())), ..Params::default() };
    let no: &[&str] = &[];
    for (vendor, model, params, place, value, omitted) in [
        (Vendor::OpenAi, "gpt-5.1", &effort, "/reasoning_effort", json!("high"), no),
        (Vendor::OpenAi, "gpt-4.1", &effort, "/reasoning_effort", Json::Null, &["reasoning_effort"]),
        (Vendor::OpenAiResponses, "o3", &effort, "/reasoning/effort", json!("high"), no),
        (Vendor::OpenAiCompatible, "m", &effort, "/reasoning_effort", json!("high"), no),
        (Vendor::Anthropic, "claude-opus-4-6", &effort, "/output_config/effort", json!("high"), no),
        (Vendor::Anthropic, "claude-3-haiku", &effort, "/output_config", Json::Null, &["reasoning_effort"]),
        (Vendor::Gemini, "gemini-3-pro", &effort, "/generationConfig/thinkingConfig/thinkingLevel", json!("high"), no),
        (Vendor::Ollama, "gpt-oss:20b", &effort, "/think", json!("high"), no),
        (Vendor::OpenAi, "gpt-5.1", &thinking, "/thinking", Json::Null, &["extended_thinking"]),
        (Vendor::Anthropic, "claude-sonnet-4-5", &thinking, "/thinking/budget_tokens", json!(2_048), no),
        (Vendor::Anthropic, "claude-sonnet-4-5", &thinking, "/tool_choice/type", json!("auto"), no),
        (Vendor::Anthropic, "claude-opus-4-7", &thinking, "/thinking", json!({"type": "adaptive"}), no),
        (
            Vendor::Gemini,
            "gemini-2.5-pro",
            &thinking,
            "/generationConfig/thinkingConfig/thinkingBudget",
            json!(2_048),
            no,
        ),
        (Vendor::Ollama, "qwen3", &thinking, "/think", json!(true), no),
        (Vendor::Ollama, "qwen3", &none, "/think", json!(false), no),
    ] {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let settings = RemoteSettings { params: params.clone(), ..target((vendor, model), &server) };
        let reply = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
        let body = &server.seen()[0].body;
        assert_eq!(body.pointer(place).unwrap_or(&Json::Null), &value, "{vendor:?} {model}: {body}");
        assert_eq!(reply.omitted, omitted, "{vendor:?} {model}");
    }
}

/// S18: thinking that a bound leaves no room for is said to be left out, whoever set the bound.
#[test]
fn s18_thinking_without_room_is_named() {
    let sonnet = (Vendor::Anthropic, "claude-sonnet-4-5");
    let adaptive = (Vendor::Anthropic, "claude-opus-4-7");
    for (vendor, of_target, of_request, thinking, omitted) in [
        (sonnet, Some(2_000), None, Json::Null, &["extended_thinking"][..]),
        (sonnet, None, Some(2_000), Json::Null, &["extended_thinking"]),
        (sonnet, Some(3_000), None, json!({"type": "enabled", "budget_tokens": 1_500}), &[]),
        (sonnet, None, None, json!({"type": "enabled", "budget_tokens": 4_096}), &[]),
        (adaptive, Some(2_000), None, json!({"type": "adaptive"}), &[]),
    ] {
        let params = Params {
            extended_thinking: Some(Some(4_096)),
            max_output_tokens: of_target.map(Some),
            ..Params::default()
        };
        for stream in [false, true] {
            let server = WireServer::always(Answer::Program("return 1".into()));
            let settings = RemoteSettings { params: params.clone(), stream: Some(stream), ..target(vendor, &server) };
            let asked = ModelRequest { max_output_tokens: of_request, ..request("a", "b") };
            let reply = complete(&Remote::new(settings).unwrap(), &asked).unwrap();
            let body = &server.seen()[0].body;
            assert_eq!((body.get("thinking").unwrap_or(&Json::Null), &*reply.omitted), (&thinking, omitted), "{body}");
        }
    }
    // A model that does not think for want of room is told the sampling that thinking would forbid.
    let params = Params {
        extended_thinking: Some(Some(4_096)),
        max_output_tokens: Some(Some(2_000)),
        temperature: Some(Some(0.5)),
        ..Params::default()
    };
    let server = WireServer::always(Answer::Program("return 1".into()));
    let settings = RemoteSettings { params, ..target(sonnet, &server) };
    let reply = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
    assert_eq!((&server.seen()[0].body["temperature"], &*reply.omitted), (&json!(0.5), &["extended_thinking"][..]));
}

/// S18: what each model refuses beside the table's first rows is left out and named.
#[test]
fn s18_each_model_is_told_what_it_knows() {
    let all = Params {
        temperature: Some(Some(0.5)),
        top_p: Some(Some(0.8)),
        seed: Some(Some(7)),
        reasoning_effort: Some(Some("high".into())),
        ..Params::default()
    };
    let odd = Params { reasoning_effort: Some(Some("xhigh".into())), ..Params::default() };
    let thinking = Params { extended_thinking: Some(Some(2_048)), ..all.clone() };
    let (effort, sampling): (&[_], &[_]) = (&["reasoning_effort"], &["temperature", "top_p"]);
    for (vendor, model, params, omitted) in [
        (Vendor::OpenAi, "gpt-5-chat-latest", &all, effort),
        (Vendor::OpenAi, "o1", &all, sampling),
        (Vendor::OpenAi, "o4-mini", &all, sampling),
        (Vendor::Gemini, "gemini-1.5-pro", &all, effort),
        (Vendor::Gemini, "models/gemini-2.0-flash", &all, effort),
        (Vendor::Ollama, "qwen3", &odd, effort),
        (Vendor::Anthropic, "claude-opus-4-1", &all, &["top_p", "seed", "reasoning_effort"]),
        (Vendor::Anthropic, "claude-opus-4-20250514", &all, &["seed", "reasoning_effort"]),
        // It does not think, so it may be told how to choose.
        (Vendor::Anthropic, "claude-3-5-sonnet-latest", &thinking, &["seed", "reasoning_effort", "extended_thinking"]),
    ] {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let settings = RemoteSettings { params: params.clone(), ..target((vendor, model), &server) };
        let reply = complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
        assert_eq!(reply.omitted, omitted, "{model}");
    }
}

/// Keeps the warnings of this thread, as text.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Warnings {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().last_mut().unwrap().push_str(&format!("{field}={value:?} "));
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        self.0.lock().unwrap().push(String::new());
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// S18: one warning for a target, with the names of what it is not told; none where nothing is left out.
#[test]
fn s18_a_target_warns_once_of_what_it_is_not_told() {
    let server = WireServer::always(Answer::Program("return 1".into()));
    let params = Params { temperature: Some(Some(0.5)), top_p: Some(Some(0.8)), ..Params::default() };
    // With one listener alone, a thread without it that comes to the warning first would turn it off for all.
    let _second = tracing::Dispatch::new(Warnings::default());
    for (model, force_params, expected) in
        [("o3", None, 1), ("o3", Some(true), 0), ("gpt-4.1", None, 0), ("gpt-4.1", Some(false), 0)]
    {
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.clone(), || {
            let params = Params { force_params, ..params.clone() };
            let provider = Remote::new(RemoteSettings { params, ..target((Vendor::OpenAi, model), &server) }).unwrap();
            for _ in 0..3 {
                complete(&provider, &request("a", "b")).unwrap();
            }
        });
        let warned = warnings.0.lock().unwrap().clone();
        assert_eq!(warned.len(), expected, "{model}: {warned:?}");
        for warning in warned {
            assert!(warning.contains("openai:o3") && warning.contains("temperature, top_p"), "{warning}");
            assert!(!warning.contains(KEY), "{warning}");
        }
    }
}

/// S18: what a target says of itself alone and has no use for is said.
#[test]
fn s18_a_target_is_told_what_it_has_no_use_for() {
    let _second = tracing::Dispatch::new(Warnings::default());
    let of_server = "`base_url`, `api_key`, `headers`, `proxy`, `stream`";
    let of_machine = "`threads`, `gpu_layers`";
    let of_words = "`output`, `temperature`, `seed`, `extra`";
    for (name, expected) in [
        ("openai:m", format!("openai:m has no use for {of_machine}, `context_size`; take that away")),
        ("ollama:m", format!("ollama:m has no use for {of_machine}; take that away")),
        (
            "library",
            format!("library has no use for {of_server}, {of_machine}, `context_size`, {of_words}; take that away"),
        ),
    ] {
        let options = TargetOptions {
            base_url: Some("http://127.0.0.1:1".into()),
            api_key: Secret::new(KEY),
            headers: BTreeMap::from([("x-team".to_owned(), Secret::unlisted("t"))]).into(),
            proxy: Some(Secret::unlisted("http://127.0.0.1:1")),
            stream: Some(true),
            output: Some(Output::Tool),
            context_size: Some(4_096),
            threads: Some(4),
            gpu_layers: Some(3),
            params: Params {
                temperature: Some(Some(0.5)),
                top_p: Some(None),
                seed: Some(Some(7)),
                extra: BTreeMap::from([("user".to_owned(), Some("u".into()))]).into(),
                ..Params::default()
            },
            ..TargetOptions::default()
        };
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.clone(), || {
            let spec = ModelSpec::Target { name: name.into(), options: Box::new(options) };
            resolve(&spec, &ModelSettings::default()).unwrap();
            // What is said for all may be meant for others.
            let of_all = TargetOptions { threads: Some(4), ..TargetOptions::default() };
            resolve(&"library".into(), &ModelSettings { options: of_all, ..ModelSettings::default() }).unwrap();
        });
        let warned = warnings.0.lock().unwrap().clone();
        assert!(warned.len() == 1 && warned[0].contains(&expected), "{expected}: {warned:?}");
    }
}

/// S18: what is forced goes out though the model is known to refuse it.
#[test]
fn s18_what_is_forced_goes_out() {
    let server = WireServer::always(Answer::Program("return 1".into()));
    let params = Params { temperature: Some(Some(0.5)), force_params: Some(true), ..Params::default() };
    let forced = RemoteSettings { params: params.clone(), ..target((Vendor::OpenAi, "o3"), &server) };
    assert!(complete(&Remote::new(forced).unwrap(), &request("a", "b")).unwrap().omitted.is_empty());
    assert_eq!(server.seen()[0].body["temperature"], 0.5);
    let anthropic = RemoteSettings { params, ..target((Vendor::Anthropic, "claude-opus-4-7"), &server) };
    complete(&Remote::new(anthropic).unwrap(), &request("a", "b")).unwrap();
    let seen = &server.seen()[1];
    assert_eq!((&seen.body["temperature"], &*seen.headers["anthropic-version"]), (&json!(0.5), "2023-06-01"));
}

/// Whoever samples by a field that has no name in the options samples too: Anthropic's newer version refuses it.
#[test]
fn sampling_in_extra_asks_for_the_version_that_allows_it() {
    let anthropic = (Vendor::Anthropic, "claude-sonnet-4-0");
    for (name, value, version) in [
        ("top_k", Some(40.into()), "2023-06-01"),
        ("top_p", Some(0.5.into()), "2023-06-01"),
        ("temperature", Some(1.0.into()), "2023-06-01"),
        ("top_k", Some(Value::Null), "2026-10-21"),
        ("top_k", None, "2026-10-21"),
        ("service_tier", Some("auto".into()), "2026-10-21"),
    ] {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let given = value.clone().filter(|value| *value != Value::Null);
        let params = Params { extra: BTreeMap::from([(name.to_owned(), value)]).into(), ..Params::default() };
        let settings = RemoteSettings { params, ..target(anthropic, &server) };
        complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
        let seen = &server.seen()[0];
        assert_eq!((seen.body.get(name).is_some(), &*seen.headers["anthropic-version"]), (given.is_some(), version));
    }
}

/// A program is asked for in each form by each vendor, and comes back as the same call or text.
#[test]
fn each_form_of_output_comes_back() {
    for vendor in ALL {
        for output in Output::ALL {
            let server = WireServer::start(None, |_| Answer::Program("return 1".into()));
            for stream in [false, true] {
                let settings = RemoteSettings { output: Some(output), stream: Some(stream), ..target(vendor, &server) };
                let provider = Remote::new(settings).unwrap();
                assert_eq!(provider.profile(), output.profile());
                let (request, heard) = listening(request("calculator", "add"));
                let reply = complete(&provider, &request).unwrap();
                if output == Output::Text {
                    assert_eq!(reply.content.as_deref(), Some("return 1"), "{vendor:?}");
                    assert_eq!(reply.tool_calls, [], "{vendor:?}");
                } else {
                    let call = &reply.tool_calls[0];
                    let expected = r#"{"code":"return 1","language":"lua"}"#;
                    assert_eq!((&*call.name, &*call.arguments), ("execute_program", expected), "{vendor:?} {output:?}");
                    if stream {
                        assert_eq!(heard.lock().unwrap()[1], expected, "{vendor:?} {output:?}");
                    }
                }
            }
        }
    }
}

/// EC-S12: a conversation with calls and results is one that the real servers accept, in its order.
#[test]
fn ec_s12_a_conversation_is_one_that_each_vendor_accepts() {
    let call = |id: &str| ToolInvocation {
        id: id.into(),
        name: "execute_program".into(),
        arguments: Map::from([("code".into(), "return 1".into())]),
        source_model: "test".into(),
        raw_payload: None,
    };
    let said = |role, content: &str, tool_calls, tool_call_id: Option<&str>| AgentMessage {
        role,
        content: content.into(),
        tool_calls,
        tool_call_id: tool_call_id.map(str::to_owned),
    };
    let messages = vec![
        said(MessageRole::Assistant, " \n", vec![call("s0.0")], None),
        said(MessageRole::Tool, "a result before", vec![], Some("s0.0")),
        said(MessageRole::Assistant, "Two calls.", vec![call("s1.0"), call("s1.1")], None),
        said(MessageRole::Tool, "first result", vec![], Some("s1.0")),
        said(MessageRole::Tool, "second result", vec![], Some("s1.1")),
        said(MessageRole::User, "Go on.", vec![], None),
    ];
    for vendor in ALL {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let request = ModelRequest { messages: messages.clone(), ..request("a", "b") };
        complete(&remote(vendor, &server, false), &request).unwrap();
        let body = server.seen()[0].body.to_string();
        let places: Vec<_> = ["Two calls.", "first result", "second result", "Go on."]
            .iter()
            .map(|words| body.find(words).unwrap_or_else(|| panic!("{vendor:?} without {words:?}: {body}")))
            .collect();
        assert!(places.is_sorted(), "{vendor:?}: {body}");
        if vendor.0 == Vendor::Gemini {
            // A signature stands for the thoughts before each turn's first call.
            assert_eq!(body.matches("thoughtSignature").count(), 2, "{body}");
        }
        if vendor.0 == Vendor::OpenAiResponses {
            // Without state at the server, and by a schema that need not be strict.
            assert!(body.contains("\"store\":false") && body.contains("\"strict\":false"), "{body}");
        }
    }
}

/// A schema that leaves something open is not strict.
#[test]
fn an_open_schema_is_not_strict() {
    let open = r#"{"type":"object","properties":{"code":{"type":"string"}},"required":["code"]}"#;
    for (vendor, place) in
        [(Vendor::OpenAi, "/response_format/json_schema/strict"), (Vendor::OpenAiResponses, "/text/format/strict")]
    {
        let server = WireServer::always(Answer::Program("return 1".into()));
        let settings = RemoteSettings { output: Some(Output::JsonSchema), ..target((vendor, "gpt-4.1"), &server) };
        let provider = Remote::new(settings).unwrap();
        complete(&provider, &request("a", "b")).unwrap();
        let parameters = Value::from_json(open).unwrap();
        let tools = [ToolSpec { name: "t".into(), description: "d".into(), parameters }].into();
        complete(&provider, &ModelRequest { tools, ..request("a", "b") }).unwrap();
        let strict = [0, 1].map(|at| server.seen()[at].body.pointer(place).cloned());
        assert_eq!(strict, [Some(json!(true)), Some(json!(false))], "{vendor:?}");
    }
}

/// SC-3.29: a refusal or a filter with nothing usable is an invalid response; a full window is an overflow.
#[test]
fn sc_3_29_nothing_usable_is_an_invalid_response() {
    let empty = |stop: &str| Said::default().stopped(stop);
    let refusal = Said { refusal: Some("I cannot help with that.".into()), ..Said::default() };
    for (vendor, said, words) in [
        (Vendor::OpenAi, refusal.clone(), "I cannot help with that."),
        (Vendor::OpenAi, empty("content_filter"), "content filter"),
        (Vendor::OpenAiResponses, refusal, "I cannot help with that."),
        (Vendor::OpenAiResponses, empty("content_filter"), "content filter"),
        (Vendor::Anthropic, empty("refusal"), "refused"),
        (Vendor::Gemini, empty("SAFETY"), "SAFETY"),
        (Vendor::Gemini, empty("MALFORMED_FUNCTION_CALL"), "MALFORMED_FUNCTION_CALL"),
        (Vendor::Gemini, empty("BLOCKED:PROHIBITED_CONTENT"), "PROHIBITED_CONTENT"),
        (Vendor::Gemini, Said::text("half").stopped("UNEXPECTED_TOOL_CALL"), "UNEXPECTED_TOOL_CALL"),
    ] {
        let vendor = ALL.into_iter().find(|(known, _)| *known == vendor).unwrap();
        for reply in both(vendor, &Answer::Said(said.clone())) {
            let error = reply.unwrap_err();
            assert_eq!(error.class, ProviderErrorClass::InvalidResponse, "{vendor:?}: {error}");
            assert!(error.message.contains(words), "{vendor:?}: {error}");
            // SC-4.02: it is paid for all the same.
            assert!(error.usage.is_some_and(|usage| usage.input > 0), "{vendor:?}: {error:?}");
        }
    }
    let anthropic = (Vendor::Anthropic, "claude-sonnet-4-0");
    for reply in both(anthropic, &Answer::Said(empty("model_context_window_exceeded"))) {
        assert_eq!(reply.unwrap_err().class, ProviderErrorClass::ContextOverflow);
    }
    // What was said before the filter struck is the adapter's to judge.
    for reply in both((Vendor::OpenAi, "gpt-4.1"), &Answer::Said(Said::text("return 1").stopped("content_filter"))) {
        assert_eq!(reply.unwrap().content.as_deref(), Some("return 1"));
    }
}

/// A prompt that Ollama's window cuts is an overflow, though the server says nothing of it.
#[test]
fn ollama_is_told_its_window_and_believed_no_cut_prompt() {
    let server = WireServer::always(Answer::Program("return 1".into()));
    let ollama = (Vendor::Ollama, "qwen3:8b");
    complete(&remote(ollama, &server, false), &request("a", "b")).unwrap();
    assert_eq!(server.seen()[0].body["options"]["num_ctx"], 16_384);
    let settings = RemoteSettings { context_size: Some(32_768), ..target(ollama, &server) };
    complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
    assert_eq!(server.seen()[1].body["options"]["num_ctx"], 32_768);
    // What has no name in the options goes beside what has one.
    let keep = Value::Map(Map::from([("top_k".to_owned(), 20.into())]));
    let params = Params { extra: BTreeMap::from([("options".to_owned(), Some(keep))]).into(), ..Params::default() };
    let settings = RemoteSettings { params, ..target(ollama, &server) };
    complete(&Remote::new(settings).unwrap(), &request("a", "b")).unwrap();
    assert_eq!(server.seen()[2].body["options"], json!({"num_ctx": 16_384, "top_k": 20}));

    // As a target's option, by its name.
    let options =
        TargetOptions { base_url: Some(server.root()), context_size: Some(24_576), ..TargetOptions::default() };
    let spec = ModelSpec::Target { name: "ollama:qwen3:8b".into(), options: Box::new(options) };
    let resolved = resolve(&spec, &ModelSettings::default()).unwrap();
    complete(&*resolved.provider, &request("a", "b")).unwrap();
    assert_eq!(server.seen()[3].body["options"]["num_ctx"], 24_576);

    // A wider window of its own cuts nothing, though few tokens were counted: neither option is taken for the usual one.
    let few = Said { counts: Counts { input: 9_000, output: 5, ..Counts::default() }, ..Said::text("return 1") };
    let long = ModelRequest { user_prompt: "x".repeat(100_000).into(), ..request("a", "b") };
    let passed = Value::Map(Map::from([("num_ctx".to_owned(), 65_536.into())]));
    let extra = Params { extra: BTreeMap::from([("options".to_owned(), Some(passed))]).into(), ..Params::default() };
    for (context_size, params, fits) in
        [(None, Params::default(), false), (Some(65_536), Params::default(), true), (None, extra, true)]
    {
        let server = WireServer::always(Answer::Said(few.clone()));
        let settings = RemoteSettings { context_size, params, ..target(ollama, &server) };
        let reply = complete(&Remote::new(settings).unwrap(), &long);
        assert_eq!(reply.is_ok(), fits, "{context_size:?}: {reply:?}");
    }

    // A prompt whose tokens are a little longer than the estimate says is whole.
    let dense = Said { counts: Counts { input: 16_000, output: 5, ..Counts::default() }, ..Said::text("return 1") };
    let server = WireServer::always(Answer::Said(dense));
    assert!(complete(&remote(ollama, &server, false), &long).is_ok());

    let cut = Said { counts: Counts { input: 16_000, output: 5, ..Counts::default() }, ..Said::text("return 1") };
    let long = ModelRequest { user_prompt: "x".repeat(400_000).into(), ..request("a", "b") };
    let server = WireServer::always(Answer::Said(cut));
    let error = complete(&remote(ollama, &server, true), &long).unwrap_err();
    assert_eq!(error.class, ProviderErrorClass::ContextOverflow, "{error}");
}

/// Base URLs with a path in front, custom headers, and a proxy for one target alone.
#[test]
fn addresses_headers_and_proxies_are_the_targets_own() {
    for vendor in ALL {
        let server = WireServer::always(Answer::Program("return 1".into()));
        // The proxy is asked for the whole address; the wire server takes it for its own.
        let proxy = Secret::unlisted(&server.root());
        let elsewhere = RemoteSettings {
            base_url: address(vendor.0, &server).replace("127.0.0.1", "model.invalid"),
            proxy: Some(proxy),
            headers: vec![("x-title".into(), Secret::unlisted("calculator").unwrap())],
            ..target(vendor, &server)
        };
        complete(&Remote::new(elsewhere).unwrap(), &request("a", "b")).unwrap();
        let seen = &server.seen()[0];
        assert_eq!(seen.headers["x-title"], "calculator", "{vendor:?}");
        assert!(seen.headers["host"].starts_with("model.invalid"), "{vendor:?}: {:?}", seen.headers);
        // A version that the base URL ends with is not said twice.
        let versioned = RemoteSettings {
            base_url: match vendor.0 {
                Vendor::Anthropic => format!("{}/v1/", server.root()),
                Vendor::Gemini => format!("{}/v1beta", server.root()),
                _other_vendor => address(vendor.0, &server),
            },
            ..target(vendor, &server)
        };
        assert!(complete(&Remote::new(versioned).unwrap(), &request("a", "b")).is_ok(), "{vendor:?}");
        let prefixed = RemoteSettings { base_url: "http://127.0.0.1:1/gateway/x".into(), ..target(vendor, &server) };
        assert!(Remote::new(prefixed).unwrap().fingerprint().contains("/gateway/x/"), "{vendor:?}");
        let broken = RemoteSettings { proxy: Some(Secret::unlisted("nonsense")), ..target(vendor, &server) };
        assert!(Remote::new(broken).unwrap_err().to_string().contains("`proxy`"));
    }
}
