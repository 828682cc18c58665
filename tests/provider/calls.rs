//! Targets behind HTTP through an agent: what of them reaches a call, and what does not.

use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, StoreOption};

use super::dialects::{ALL, target};
use super::wire_server::Said;
use super::*;

/// SC-3.23: a stream that is cut at its third piece is followed by the next target, and nothing of what came of it is in
/// the call, the context, the history, the accounting or the next request.
#[test]
fn sc_3_23_nothing_of_a_cut_stream_is_anywhere() {
    const PARTIAL: &str = "zebra";
    for vendor in ALL {
        let program = format!("context.{PARTIAL} = 1 {}", format!("-- {PARTIAL}\n").repeat(40));
        let said = Said { reasoning: Some(program.clone()), ..Said::text(&program) };
        let cut = WireServer::always(Answer::Pieces { said, pause: Duration::ZERO, cut: 3 });
        let working = WireServer::always(Answer::Program("return 7".into()));
        let targets = [(&cut, true), (&working, false)].map(|(server, stream)| {
            let settings = RemoteSettings { stream: Some(stream), ..target(vendor, server) };
            ModelSpec::Provider(Arc::new(Remote::new(settings).unwrap()))
        });
        let model = Some(ModelSpec::Targets(targets.into()));
        let options = Options { model, store: Some(StoreOption::Memory), ..Options::default() };
        let runtime = Runtime::builder().options(options).build().unwrap();
        let agent = runtime.agent("calculator", Options::default()).unwrap();
        let outcome = agent.call("work", Vec::new(), Map::new()).unwrap();
        assert_eq!((outcome.error(), outcome.value()), (None, &7.into()), "{vendor:?}");
        assert_eq!((cut.seen().len(), working.seen().len()), (1, 1), "{vendor:?}");

        let accounting = &outcome.metadata.as_ref().unwrap().accounting;
        let classes: Vec<_> = accounting.iter().map(|entry| entry.error.as_ref().map(|error| error.0)).collect();
        assert_eq!(classes, [Some("invalid_response"), None], "{vendor:?}");
        for place in [
            format!("{outcome:?}"),
            format!("{:?}", runtime.calls()),
            format!("{:?}", agent.runtime_context()),
            working.seen()[0].body.to_string(),
            format!("{:?}", agent.call("work", Vec::new(), Map::new()).unwrap()),
        ] {
            assert!(!place.contains(PARTIAL), "{vendor:?}: {place}");
        }
        assert_eq!(agent.runtime_context().get(PARTIAL), None);
    }
}

/// SC-3.18: a call waits for a streamed reply longer than for a whole one, as long as something comes.
#[test]
fn sc_3_18_a_call_waits_for_a_stream_that_goes_on() {
    let said = Said { reasoning: Some("The sum.".into()), ..Said::call("execute_program", r#"{"code":"return 7"}"#) };
    let pause = Duration::from_millis(250);
    let server = WireServer::always(Answer::Pieces { said, pause, cut: usize::MAX });
    let settings = RemoteSettings { stream: Some(true), ..target(ALL[0], &server) };
    let model = Some(ModelSpec::Provider(Arc::new(Remote::new(settings).unwrap())));
    let provider_timeout = Some(Duration::from_millis(1_200));
    let runtime =
        Runtime::builder().options(Options { model, provider_timeout, ..Options::default() }).build().unwrap();
    let agent = runtime.agent("calculator", Options::default()).unwrap();
    let outcome = agent.call("work", Vec::new(), Map::new()).unwrap();
    assert_eq!((outcome.error(), outcome.value()), (None, &7.into()));
    let latency = outcome.metadata.unwrap().accounting[0].latency;
    assert!(latency > Duration::from_millis(1_500), "{latency:?}");
}

/// SC-1.51: off, null and unsaid options of a call are not on the wire.
#[test]
fn sc_1_51_off_options_are_absent() {
    for said in ["{}", r#"{"extended_thinking": false, "reasoning_effort": null, "temperature": null, "seed": null}"#] {
        for (provider, model) in
            [("openai-compatible", "qwen"), ("anthropic", "claude-sonnet-4-5"), ("ollama", "qwen3")]
        {
            let server = WireServer::always(Answer::Program("return 7".into()));
            let Value::Map(map) = Value::from_json(said).unwrap() else { panic!("a map") };
            let base_url = if provider == "openai-compatible" { server.base_url() } else { server.root() };
            let mut options = Options {
                model: Some(format!("{provider}:{model}").as_str().into()),
                ..Options::from_map(&map).unwrap()
            };
            options.store = Some(StoreOption::Memory);
            options.target.base_url = Some(base_url);
            options.target.api_key = Secret::new(KEY);
            let runtime = Runtime::builder().options(options).build().unwrap();
            let agent = runtime.agent("calculator", Options::default()).unwrap();
            assert_eq!(agent.call("work", Vec::new(), Map::new()).unwrap().value(), &7.into());
            let body = server.seen()[0].body.to_string();
            for word in ["temperature", "reasoning", "effort", "think", "top_p", "seed", "repeat", "repetition"] {
                assert!(!body.contains(&format!("\"{word}")), "{provider} has {word}: {body}");
            }
        }
    }
}
