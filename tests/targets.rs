//! The session contract's section 3 (errors, cycling, waits) and 4 (accounting) through an agent: scripted targets, and a
//! time that passes only when somebody waits.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use cadenza_core::accounting::AccountingEntry;
use cadenza_core::agent::Agent;
use cadenza_core::cancel::CancelToken;
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::{AgentOutcome, ErrorType, Outcome, ProgramSource, Reason};
use cadenza_core::provider::target::TargetOptions;
use cadenza_core::provider::{
    ModelRequest, ModelSpec, Provider, ProviderError, ProviderErrorClass, Scripted, Secret, Usage, Waits, secret,
};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::Options;
use cadenza_core::schema::Schema;
use cadenza_core::value::{Map, Value};
use parking_lot::Mutex;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};

/// What one request of a target is answered with.
#[derive(Clone)]
enum Answer {
    Program(&'static str),
    Reply(Box<ModelReply>),
    Fail(ProviderErrorClass, Option<f64>),
    Silent,
}

use Answer::{Fail, Program, Reply, Silent};
use ProviderErrorClass::{
    Auth, ContextOverflow, InvalidResponse, ModelError, Network, Quota, RateLimit, Timeout as TimedOut,
};

fn reply(reply: ModelReply) -> Answer {
    Reply(Box::new(reply))
}

/// Every wait that a call makes, in seconds; none of them takes time.
#[derive(Debug, Default)]
struct Recorded {
    slept: Mutex<Vec<f64>>,
    /// Set when a wait begins, as by a person who presses Ctrl-C meanwhile.
    cancels: bool,
}

impl Waits for Recorded {
    fn pause<'a>(&'a self, wait: Duration, cancel: &'a CancelToken) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        if !wait.is_zero() {
            self.slept.lock().push(wait.as_secs_f64());
        }
        if self.cancels {
            cancel.cancel();
        }
        Box::pin(async {})
    }
}

/// Targets that answer what they were told to, one after the other, the last answer for ever.
struct World {
    runtime: Runtime,
    asked: Arc<Mutex<String>>,
    requests: Arc<Mutex<Vec<ModelRequest>>>,
    waits: Arc<Recorded>,
}

impl World {
    fn new(targets: &[&[Answer]], options: &str) -> Self {
        Self::with_waits(targets, options, Recorded::default())
    }

    fn with_waits(targets: &[&[Answer]], options: &str, waits: Recorded) -> Self {
        let asked = Arc::new(Mutex::new(String::new()));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let target = |(index, answers): (usize, &&[Answer])| -> ModelSpec {
            let name = char::from(b'A' + u8::try_from(index).unwrap());
            let (answers, next) = (answers.to_vec(), AtomicU32::new(0));
            let (asked, requests) = (asked.clone(), requests.clone());
            let respond = move |request: &ModelRequest| {
                asked.lock().push(name);
                requests.lock().push(request.clone());
                let number = next.fetch_add(1, Ordering::SeqCst) as usize;
                match answers[number.min(answers.len() - 1)].clone() {
                    Program(code) => Ok(ModelReply::text(code)),
                    Reply(reply) => Ok(*reply),
                    Fail(class, wait) => Err(ProviderError {
                        retry_after: wait.map(Duration::from_secs_f64),
                        ..ProviderError::new(class, format!("{name} says {}", class.as_str()))
                    }),
                    Silent => {
                        std::thread::sleep(request.timeout);
                        Err(ProviderError::timed_out(&name.to_string(), request.timeout))
                    }
                }
            };
            let provider: Arc<dyn Provider> = Arc::new(Scripted::respond(respond).named(&name.to_string()));
            ModelSpec::Provider(provider)
        };
        let mut specs: Vec<ModelSpec> = targets.iter().enumerate().map(target).collect();
        let model = if specs.len() == 1 { specs.remove(0) } else { ModelSpec::Targets(specs) };
        let Value::Map(map) = Value::from_json(options).unwrap() else { panic!("a map") };
        let options = Options { model: Some(model), ..Options::from_map(&map).unwrap() };
        let waits = Arc::new(waits);
        let runtime = Runtime::builder().options(options).waits(waits.clone()).build().unwrap();
        Self { runtime, asked, requests, waits }
    }

    fn agent(&self) -> Agent {
        self.runtime.agent("calculator", Options::default()).unwrap()
    }

    fn call(&self) -> Outcome {
        self.agent().call("work", Vec::new(), Map::new()).unwrap()
    }

    /// The targets that were asked, in order.
    fn asked(&self) -> String {
        self.asked.lock().clone()
    }

    fn slept(&self) -> Vec<f64> {
        self.waits.slept.lock().clone()
    }
}

const ONE: Answer = Program("return 1");

fn attempts(number: u32) -> String {
    format!(r#"{{"max_generation_attempts": {number}}}"#)
}

/// Target letters, waits and the value (or error type) of one call.
fn play(targets: &[&[Answer]], number: u32) -> (String, Vec<f64>, String) {
    let world = World::new(targets, &attempts(number));
    let outcome = world.call();
    let end = match outcome.error() {
        None => outcome.value().to_json(),
        Some(error) => error.error_type.as_str().to_owned(),
    };
    (world.asked(), world.slept(), end)
}

fn ended(asked: &str, slept: &[f64], end: &str) -> (String, Vec<f64>, String) {
    (asked.to_owned(), slept.to_vec(), end.to_owned())
}

#[test]
fn sc_1_15_and_1_16_attempts_are_counted_over_all_targets() {
    assert_eq!(play(&[&[Fail(Network, None)]], 1), ended("A", &[], "provider"));
    assert_eq!(play(&[&[Fail(Network, None)]], 3), ended("AAA", &[], "provider"));
}

#[test]
fn sc_1_17_sc_1_45_sc_3_25_targets_go_round_in_their_order() {
    let fails = || [Fail(Network, None)];
    assert_eq!(play(&[&fails(), &fails(), &fails()], 5), ended("ABCAB", &[], "provider"));
    assert_eq!(play(&[&fails(), &fails(), &fails()], 7), ended("ABCABCA", &[], "provider"));
    // SC-3.21
    assert_eq!(play(&[&fails(), &fails()], 4), ended("ABAB", &[], "provider"));
}

#[test]
fn without_an_option_every_target_of_a_list_is_asked_once() {
    let world = World::new(&[&[Fail(Network, None)], &[Fail(Network, None)], &[ONE]], "{}");
    assert_eq!((world.call().value(), world.asked().as_str()), (&1.into(), "ABC"));
}

/// SC-1.18, SC-1.19: a repair is a generation of its own, with all its attempts. SC-3.26: and with the first target.
#[test]
fn sc_1_19_sc_3_26_a_repair_has_its_own_attempts_and_begins_with_the_first_target() {
    let options = r#"{"max_generation_attempts": 2, "execution_repairs": 2}"#;
    let fails = Program("error('no')");
    let a = [Fail(Network, None), Fail(Network, None), Fail(Network, None)];
    let world = World::new(&[&a, &[fails.clone(), fails, ONE]], options);
    let outcome = world.call();
    assert_eq!((outcome.value(), world.asked().as_str()), (&1.into(), "ABABAB"));
    // Who failed before an earlier reply is no news any more.
    assert_eq!(outcome.metadata.unwrap().note.as_deref(), Some("answered by B after A (network) failed"));
}

#[test]
fn sc_1_20_no_attempts_are_refused() {
    let map = Map::from([("max_generation_attempts".to_owned(), 0.into())]);
    assert!(Options::from_map(&map).unwrap_err().to_string().contains("from 1 to 16"));
}

#[test]
fn sc_3_01_sc_3_02_auth_and_quota_end_at_once() {
    for class in [Auth, Quota] {
        let world = World::new(&[&[Fail(class, None)], &[ONE]], &attempts(5));
        let outcome = world.call();
        let error = outcome.error().unwrap();
        assert_eq!((world.asked().as_str(), &error.error_type), ("A", &ErrorType::Provider));
        assert_eq!(error.message, format!("A says {}", class.as_str()));
        assert_eq!(outcome.metadata.as_ref().unwrap().reason, Reason::ProviderUnavailable);
    }
}

#[test]
fn sc_3_03_a_fatal_failure_on_a_later_attempt_ends_it() {
    let world = World::new(&[&[Fail(Network, None)], &[Fail(Auth, None)]], &attempts(5));
    assert_eq!((&*world.call().error().unwrap().message, &*world.asked()), ("B says auth", "AB"));
}

/// Who asks again should know whether that can help.
#[test]
fn what_will_be_refused_again_is_not_retriable() {
    for (class, retriable) in [
        (Auth, false),
        (Quota, false),
        (ModelError, false),
        (ContextOverflow, false),
        (Network, true),
        (TimedOut, true),
        (RateLimit, true),
        (InvalidResponse, true),
    ] {
        let world = World::new(&[&[Fail(class, None)]], &attempts(1));
        assert_eq!(world.call().error().unwrap().retriable, retriable, "{class:?}");
    }
}

/// SC-3.04: what earlier calls did stays.
#[test]
fn sc_3_04_what_came_before_a_fatal_failure_stays() {
    let world = World::new(&[&[Program("context.ticks = 1\nreturn 1"), Fail(Auth, None)]], "{}");
    let agent = world.agent();
    assert!(agent.call("tick", Vec::new(), Map::new()).unwrap().ok());
    assert!(!agent.call("tock", Vec::new(), Map::new()).unwrap().ok());
    assert_eq!(agent.runtime_context().get("ticks"), Some(1.into()));
}

#[test]
fn sc_3_05_to_3_13_waits() {
    let limited = |wait| Fail(RateLimit, wait);
    // SC-3.05, SC-3.07: as long as the server says.
    assert_eq!(play(&[&[limited(Some(7.0)), ONE]], 2), ended("AA", &[7.0], "1"));
    assert_eq!(play(&[&[limited(Some(1.5)), ONE]], 2), ended("AA", &[1.5], "1"));
    // SC-3.09: else doubling, up to a minute.
    let doubling = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0];
    let nine = [vec![limited(None); 8], vec![ONE]].concat();
    assert_eq!(play(&[&nine], 9), ended("AAAAAAAAA", &doubling, "1"));
    // SC-3.10: not while another target is free.
    assert_eq!(play(&[&[limited(Some(30.0))], &[ONE]], 2), ended("AB", &[], "1"));
    // SC-3.11: all are limited: the longest.
    assert_eq!(play(&[&[limited(Some(5.0)), ONE], &[limited(Some(20.0))]], 3), ended("ABA", &[20.0], "1"));
    // SC-3.12
    assert_eq!(play(&[&[limited(Some(600.0)), ONE]], 2), ended("AA", &[60.0], "1"));
    // SC-3.13: not after the last attempt.
    assert_eq!(play(&[&[limited(None)]], 2), ended("AA", &[1.0], "provider"));
    // SC-3.11: the longest is not the last, and not that of an earlier rotation.
    assert_eq!(play(&[&[limited(Some(20.0)), ONE], &[limited(Some(5.0))]], 3), ended("ABA", &[20.0], "1"));
    assert_eq!(play(&[&[limited(Some(20.0)), limited(Some(5.0)), ONE]], 3), ended("AAA", &[20.0, 5.0], "1"));
    // SC-3.09: after a rotation in which one was free, the doubling begins again.
    let free = [limited(None), limited(None), Fail(Network, None), limited(None), limited(None), ONE];
    assert_eq!(play(&[&free], 6), ended("AAAAAA", &[1.0, 2.0, 1.0, 2.0], "1"));
    // SC-3.10, SC-3.22: who answers with no program is free, whatever the others say.
    let broken = reply(ModelReply::call("", "execute_program", "{"));
    assert_eq!(play(&[&[broken, ONE], &[limited(Some(5.0))]], 3), ended("ABA", &[], "1"));
}

/// SC-3.17: each target of a list has its share of the time, and no request more than a model may have.
#[test]
fn sc_3_17_a_target_of_a_list_has_its_share_of_the_time() {
    let shares = |targets: &[&[Answer]], model: u32| -> Vec<u64> {
        let options = format!(
            r#"{{"call_timeout_seconds": 60, "provider_timeout_seconds": {model}, "max_generation_attempts": 2}}"#
        );
        let world = World::new(targets, &options);
        assert_eq!(world.call().value(), &1.into());
        let requests = world.requests.lock();
        requests.iter().map(|request| request.timeout.as_secs_f64().round() as u64).collect()
    };
    let fails = || [Fail(Network, None)];
    assert_eq!(shares(&[&fails(), &[ONE]], 60), [30, 60]);
    assert_eq!(shares(&[&fails(), &[ONE]], 5), [5, 5]);
    assert_eq!(shares(&[&[Fail(Network, None), ONE]], 60), [60, 60]);
}

/// Promise 1: a wait that would outlast the call is not begun.
#[test]
fn a_wait_beyond_the_calls_time_ends_it_at_once_with_the_servers_words() {
    let world = World::new(&[&[Fail(RateLimit, Some(30.0))]], r#"{"call_timeout_seconds": 5}"#);
    let outcome = world.call();
    assert_eq!((world.asked().as_str(), world.slept()), ("A", Vec::new()));
    let message = &outcome.error().unwrap().message;
    assert!(message.starts_with("A says rate_limit; the next request would have to wait 30 s, "), "{message}");
    assert!(message.ends_with(" s left; raise `call_timeout_seconds`"), "{message}");
}

#[test]
fn sc_3_14_a_cancelled_wait_ends_at_once() {
    let waits = Recorded { cancels: true, ..Recorded::default() };
    let world = World::with_waits(&[&[Fail(RateLimit, Some(30.0)), ONE]], &attempts(2), waits);
    let outcome = world.call();
    assert_eq!(outcome.metadata.as_ref().unwrap().agent_outcome, AgentOutcome::Interrupted);
    assert_eq!(world.asked(), "A");
}

/// SC-3.14 on the real clock: the wait itself looks at the token.
#[test]
fn sc_3_14_the_machines_own_clock_is_interrupted_too() {
    let model = Scripted::respond(|_| {
        let error = ProviderError::new(RateLimit, "later");
        Err(ProviderError { retry_after: Some(Duration::from_secs(30)), ..error })
    });
    let options = Options { model: Some(ModelSpec::Provider(Arc::new(model))), ..Options::default() };
    let runtime = Runtime::builder().options(options).build().unwrap();
    let agent = runtime.agent("calculator", Options::default()).unwrap();
    let cancel = CancelToken::default();
    let stopper = std::thread::spawn({
        let cancel = cancel.clone();
        move || {
            std::thread::sleep(Duration::from_millis(100));
            cancel.cancel();
        }
    });
    let began = Instant::now();
    let outcome = agent.call_with("work", Vec::new(), Map::new(), &cancel).unwrap();
    stopper.join().unwrap();
    assert_eq!(outcome.metadata.unwrap().agent_outcome, AgentOutcome::Interrupted);
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// SC-3.15, SC-3.17, SC-3.19, SC-3.20, SC-3.28: the next target, at once, and the caller is told.
#[test]
fn sc_3_15_to_3_20_the_next_target_without_a_wait() {
    for class in [Network, TimedOut, ModelError, InvalidResponse, ContextOverflow] {
        let world = World::new(&[&[Fail(class, None)], &[ONE]], &attempts(2));
        let outcome = world.call();
        assert_eq!((outcome.value(), world.asked().as_str(), world.slept()), (&1.into(), "AB", Vec::new()));
        let metadata = outcome.metadata.unwrap();
        let told = format!("answered by B after A ({}) failed", class.as_str());
        assert_eq!(metadata.note.as_deref(), Some(told.as_str()));
        // SC-4.12: the accounting shows it.
        let seen: Vec<_> = metadata.accounting.iter().map(|entry| (&*entry.target, entry.error.is_some())).collect();
        assert_eq!(seen, [("A", true), ("B", false)]);
        assert_eq!(metadata.accounting[0].error.as_ref().unwrap().0, class.as_str());
        // S11: so does the call as it is recorded.
        let recorded = world.runtime.calls().pop().unwrap();
        let failures: Vec<_> =
            recorded.attempt_failures.iter().map(|one| (one.stage, one.error_class.as_str())).collect();
        assert_eq!(failures, [("provider", class.as_str())]);
    }
}

#[test]
fn sc_3_28_a_window_that_is_too_small_is_not_tried_twice() {
    assert_eq!(play(&[&[Fail(ContextOverflow, None)]], 4), ended("A", &[], "provider"));
    // SC-3.20: nor is a model that refuses the request.
    assert_eq!(play(&[&[Fail(ModelError, None)]], 4), ended("A", &[], "provider"));
}

/// The warnings of a thread, as their fields.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Vec::new();
        event.record(&mut |field: &Field, value: &dyn std::fmt::Debug| fields.push(format!("{field}={value:?}")));
        self.0.lock().push(fields.join(" "));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// SC-3.28, S11: whether or not another target answers, the rejection is told to those who watch.
#[test]
fn sc_3_28_a_window_that_is_too_small_is_an_event() {
    // With one listener alone, a thread without it that comes to the warning first would turn it off for all.
    let _second = tracing::Dispatch::new(Warnings::default());
    for others in [&[][..], &[&[ONE][..]][..]] {
        let targets = [&[&[Fail(ContextOverflow, None)][..]], others].concat();
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.clone(), || World::new(&targets, "{}").call());
        let told = warnings.0.lock().clone();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("target_model=\"A\"") && told[0].contains("error_class=\"context_overflow\""),
            "{told:?}"
        );
    }
}

/// SC-3.22, SC-3.24: what is no program goes to the next target, which is told what was wrong.
#[test]
fn sc_3_22_sc_3_24_a_malformed_answer_goes_to_the_next_target_with_its_fault() {
    let broken = reply(ModelReply::call("", "execute_program", "{\"code\": "));
    let world = World::new(&[&[broken], &[ONE]], &attempts(2));
    let outcome = world.call();
    assert_eq!((outcome.value(), world.asked().as_str()), (&1.into(), "AB"));
    let told = &world.requests.lock()[1].messages;
    assert!(told.iter().any(|message| message.content.contains("not valid JSON")), "{told:?}");
    let entries = &outcome.metadata.as_ref().unwrap().accounting;
    assert_eq!(entries[0].error.as_ref().unwrap().0, "invalid_response");
}

/// SC-1.15, S1: one counter, whatever goes wrong.
#[test]
fn sc_1_15_failures_and_malformed_answers_share_one_counter() {
    let broken = reply(ModelReply::call("", "execute_program", "{"));
    let world = World::new(&[&[Fail(Network, None), broken, ONE]], &attempts(2));
    let outcome = world.call();
    assert_eq!(world.asked(), "AA");
    let message = &outcome.error().unwrap().message;
    assert!(message.contains("not valid JSON"), "{message}");
}

/// EC-AD1: what was cut is not run, and nothing of it is committed.
#[test]
fn ec_ad1_a_reply_that_was_cut_is_no_program() {
    for reason in [
        "length",
        "MAX_TOKENS",
        "max_output_tokens",
        "model_context_window_exceeded",
        "content_filter",
        "refusal",
        "SAFETY",
        "RECITATION",
        "PROHIBITED_CONTENT",
        "BLOCKLIST",
        "SPII",
        "incomplete",
    ] {
        let usage = Some(Usage { input: 5, output: 5, ..Usage::default() });
        let stop_reason = Some(reason.to_owned());
        let cut = reply(ModelReply { usage, stop_reason, ..ModelReply::text("context.step = 1\n") });
        let world = World::new(&[&[cut]], &attempts(2));
        let agent = world.agent();
        let outcome = agent.call("work", Vec::new(), Map::new()).unwrap();
        assert!(outcome.error().unwrap().message.contains("cut"), "{reason}: {outcome:?}");
        assert_eq!((world.asked().as_str(), agent.runtime_context().get("step")), ("AA", None));
        let entries = &outcome.metadata.as_ref().unwrap().accounting;
        assert_eq!((entries[0].usage.output, entries[0].error.as_ref().unwrap().0), (5, "invalid_response"));
    }
    // A call that was cut says so too, and not that its JSON is broken.
    for (reason, arguments) in [("length", r#"{"code": "retu"#), ("max_tokens", "{}"), ("max_tokens", "")] {
        let stop_reason = Some(reason.to_owned());
        let cut = ModelReply { stop_reason, ..ModelReply::call("", "execute_program", arguments) };
        let outcome = World::new(&[&[reply(cut)]], &attempts(1)).call();
        assert_eq!(outcome.error().unwrap().error_type, ErrorType::Provider);
        assert!(outcome.error().unwrap().message.contains("raise `max_output_tokens`"), "{:?}", outcome.error());
    }
    // One whole call makes no whole reply.
    let stop_reason = Some("length".to_owned());
    let mut cut = ModelReply { stop_reason, ..ModelReply::call("a", "execute_program", r#"{"code": "return 1"}"#) };
    cut.tool_calls.extend(ModelReply::call("b", "execute_program", r#"{"code": "retu"#).tool_calls);
    let outcome = World::new(&[&[reply(cut)]], &attempts(1)).call();
    assert!(outcome.error().unwrap().message.contains("raise `max_output_tokens`"), "{:?}", outcome.error());
    // A whole call is a whole call.
    let stop_reason = Some("length".to_owned());
    let whole = ModelReply { stop_reason, ..ModelReply::call("", "execute_program", r#"{"code": "return 1"}"#) };
    assert_eq!(play(&[&[reply(whole)]], 1), ended("A", &[], "1"));
}

#[test]
fn an_entrys_error_is_scrubbed_and_bounded() {
    let key = Secret::new("sk-accounting-0123456789").unwrap();
    let arguments = format!(r#"{{"code": "return 1", "language": "{}{}"}}"#, key.expose(), "x".repeat(200_000));
    let world = World::new(&[&[reply(ModelReply::call("", "execute_program", arguments))]], &attempts(1));
    let outcome = world.call();
    let error = &outcome.metadata.unwrap().accounting[0].error.as_ref().unwrap().1.clone();
    assert!(error.len() <= 4 << 10 && !error.contains(key.expose()), "{} bytes", error.len());
}

/// SC-3.27: nothing is asked after an answer.
#[test]
fn sc_3_27_an_answer_ends_the_turn() {
    assert_eq!(play(&[&[ONE, Fail(Network, None)], &[Fail(Network, None)]], 9), ended("A", &[], "1"));
}

#[test]
fn when_all_fail_the_error_holds_everybodys_words() {
    let world = World::new(&[&[Fail(Network, None)], &[Fail(ModelError, None)]], &attempts(2));
    let outcome = world.call();
    let message = &outcome.error().unwrap().message;
    assert_eq!(message, "2 attempts failed; the last: B says model_error; before: A says network");
}

/// SC-3.17: when the last target is still silent at the end of the call, those that failed before are told too.
#[test]
fn sc_3_17_the_calls_end_is_told_beside_earlier_failures() {
    let world = World::new(&[&[Fail(Network, None)], &[Silent]], r#"{"call_timeout_seconds": 0.3}"#);
    let outcome = world.call();
    let error = outcome.error().unwrap();
    assert_eq!(error.error_type, ErrorType::Timeout);
    let (last, before) = error.message.split_once("; before: ").unwrap();
    assert!(last.contains("the last: the call took longer than 300 ms"), "{last}");
    assert_eq!(before, "A says network");
}

fn reply_with(usage: Usage) -> Answer {
    reply(ModelReply {
        usage: Some(usage),
        stop_reason: Some("stop".to_owned()),
        model: Some("m-2026".to_owned()),
        provider: Some("routed".to_owned()),
        ..ModelReply::text("return 1")
    })
}

/// SC-4.01, SC-4.02, SC-4.05, SC-4.06: every entry has the fields and types of the schema, and no others.
#[test]
fn sc_4_01_every_request_has_a_typed_entry() {
    let usage = Usage { input: 100, cached: 30, output: 7, cache_write: 10, reasoning: 2 };
    let options = r#"{"max_generation_attempts": 3, "prices": {"C": {"input": 1, "output": 2, "cached": 0.5}}}"#;
    let broken = reply(ModelReply::call("", "execute_program", "{"));
    let Reply(answer) = reply_with(usage) else { unreachable!() };
    let answer = reply(ModelReply { omitted: vec!["top_p"], ..*answer });
    let world = World::new(&[&[Fail(RateLimit, None)], &[broken], &[answer]], options);
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
    let outcome = world.call();
    assert!(outcome.ok(), "{:?}", outcome.error());
    let Value::Map(map) = Value::Map(outcome.metadata.as_ref().unwrap().to_map()) else { unreachable!() };
    let entries = map["accounting"].as_list().unwrap();
    let schema = Value::from_json(include_str!("../scenarios/accounting.schema.json")).unwrap();
    let schema = Schema::compile(&schema).unwrap();
    for entry in entries {
        schema.check(entry).unwrap_or_else(|error| panic!("{entry}: {error:?}"));
    }
    let last = entries[2].as_map().unwrap();
    // (100 - 30 - 10) + 10 written, 30 read, 7 out: 70 + 15 + 14 millionths.
    assert_eq!(last["cost_usd"], Value::Float(0.000_099));
    assert_eq!((last["actual_model"].as_str(), last["actual_provider"].as_str()), (Some("m-2026"), Some("routed")));
    let tokens = r#"{"input_tokens": 70, "output_tokens": 7, "cached_tokens": 30, "total_tokens": 107,
        "cache_write_tokens": 10, "reasoning_tokens": 2}"#;
    assert_eq!(last["tokens"], Value::from_json(tokens).unwrap());
    assert_eq!(last["stop_reason"].as_str(), Some("stop"));
    // S18
    assert_eq!(last["omitted_params"], Value::List(vec!["top_p".into()]));
    let first = entries[0].as_map().unwrap();
    // Absent, not null.
    assert!(["cost_usd", "stop_reason", "actual_model"].iter().all(|name| !first.contains_key(*name)));
    assert_eq!((first["status"].as_str(), first["error"].as_str()), (Some("failed"), Some("A says rate_limit")));
    // SC-4.05
    let times: Vec<i64> =
        entries.iter().map(|entry| entry.as_map().unwrap()["timestamp_ms"].as_int().unwrap()).collect();
    assert!(times.is_sorted());
    // S38: the end of the request, as its latency reaches back.
    assert!(entries.iter().all(|entry| entry.as_map().unwrap()["timestamp_ms"].as_int() >= Some(began)));
    // SC-4.15: the call as recorded says the same.
    let recorded = world.runtime.calls().pop().unwrap().to_map();
    assert_eq!(recorded["accounting"].as_list().unwrap(), entries);
}

/// A server's names are names, however long they are.
#[test]
fn sc_4_07_a_name_is_kept_as_far_as_a_name_goes() {
    let long = "é".repeat(100_000);
    let words = || Some(long.clone());
    let named = ModelReply { stop_reason: words(), model: words(), provider: words(), ..ModelReply::text("return 1") };
    let outcome = World::new(&[&[reply(named)]], "{}").call();
    let entry = &outcome.metadata.as_ref().unwrap().accounting[0];
    for name in [&entry.stop_reason, &entry.actual_model, &entry.actual_provider] {
        assert_eq!(name.as_deref(), Some(&*"é".repeat(128)));
    }
}

/// SC-4.06: each kind of token has its price, by the name of who was asked or of who answered.
#[test]
fn sc_4_06_each_kind_of_token_has_its_price() {
    let usage = Usage { input: 100, cached: 30, output: 7, cache_write: 10, reasoning: 2 };
    for (prices, expected) in [
        // 60 + 10 written at 3, 30 read at 0.5, 7 out at 2.
        (r#""A": {"input": 1, "output": 2, "cached": 0.5, "cache_write": 3}"#, Some(0.000_119)),
        (r#""A": {"input": 1, "output": 2}"#, Some(0.000_114)),
        (r#""m-2026": {"input": 1, "output": 2}"#, Some(0.000_114)),
        (r#""B": {"input": 1, "output": 2}"#, None),
    ] {
        let world = World::new(&[&[reply_with(usage)]], &format!(r#"{{"prices": {{{prices}}}}}"#));
        let cost = world.call().metadata.unwrap().accounting[0].cost;
        assert_eq!(cost.map(|cost| cost.usd()), expected, "{prices}");
    }
    // V18: where nobody counts, the bytes are the measure, those of a call too.
    let silent = reply(ModelReply::call("", "execute_program", r#"{"code": "return 1"}"#));
    let world = World::new(&[&[silent]], r#"{"prices": {"A": {"input": 0, "output": 1}}}"#);
    let cost = world.call().metadata.unwrap().accounting[0].cost.unwrap();
    assert!(cost.usd() > 0.0, "{cost}");
}

/// SC-4.07: whoever was asked and answered is not said twice.
#[test]
fn sc_4_07_only_another_than_was_asked_is_told() {
    let entry = |provider, model| {
        let mut entry = AccountingEntry::new("gateway:m", SystemTime::now(), Duration::ZERO);
        entry.routed(Some(provider), Some(model));
        (entry.actual_provider, entry.actual_model)
    };
    assert_eq!(entry("gateway", "m"), (None, None));
    assert_eq!(entry("gateway", "gateway:m"), (None, None));
    assert_eq!(entry("backend", "m-2026"), (Some("backend".to_owned()), Some("m-2026".to_owned())));
}

/// SC-4.04: the latency is the request's own.
#[test]
fn sc_4_04_latency_is_the_time_of_the_request() {
    let model = Scripted::respond(|_| {
        std::thread::sleep(Duration::from_millis(120));
        Ok(ModelReply::text("return 1"))
    });
    let options = Options { model: Some(ModelSpec::Provider(Arc::new(model))), ..Options::default() };
    let runtime = Runtime::builder().options(options).build().unwrap();
    let outcome = runtime.agent("a", Options::default()).unwrap().call("work", Vec::new(), Map::new()).unwrap();
    let entry = outcome.metadata.unwrap().accounting[0].clone();
    for latency in [entry.latency, runtime.usage()[0].1.latency] {
        assert!(latency >= Duration::from_millis(120) && latency < Duration::from_secs(5), "{latency:?}");
    }
    let latency_ms = entry.to_map()["latency_ms"].as_float().unwrap();
    assert!((120.0..5_000.0).contains(&latency_ms), "{latency_ms}");
}

/// SC-4.13: turns and retries can be told from the entries alone.
#[test]
fn sc_4_13_attempts_can_be_counted_from_the_entries() {
    let options = r#"{"max_generation_attempts": 2, "execution_repairs": 1}"#;
    let world = World::new(&[&[Fail(Network, None), Program("error('no')"), Fail(Network, None), ONE]], options);
    let outcome = world.call();
    let states: Vec<bool> = outcome.metadata.as_ref().unwrap().accounting.iter().map(|e| e.error.is_none()).collect();
    // One answered request for each generation, its failures before it.
    assert_eq!(states, [false, true, false, true]);
    assert_eq!(outcome.metadata.unwrap().attempts, 4);
}

#[test]
fn a_runtime_counts_what_its_models_used_by_target() {
    let usage = Usage { input: 10, output: 5, ..Usage::default() };
    let prices = r#"{"max_generation_attempts": 2, "prices": {"B": {"input": 1, "output": 1}}, "reuse": "off"}"#;
    let world = World::new(&[&[Fail(Network, None)], &[reply_with(usage)]], prices);
    for _ in 0..3 {
        assert!(world.call().ok());
    }
    let used = world.runtime.usage();
    assert_eq!(used.iter().map(|(target, _)| target.as_str()).collect::<Vec<_>>(), ["A", "B"]);
    assert_eq!((used[0].1.requests, used[0].1.failed, used[0].1.tokens.total()), (3, 3, 0));
    assert_eq!((used[1].1.requests, used[1].1.failed, used[1].1.tokens.total()), (3, 0, 45));
    assert_eq!((used[1].1.cost.usd(), used[1].1.unpriced), (0.000_045, 0));

    // What no model ever used is cut before it is counted.
    let most = Usage { input: u64::MAX, output: u64::MAX, ..Usage::default() };
    let world = World::new(&[&[reply_with(most)]], "{}");
    assert_eq!(world.call().metadata.unwrap().accounting[0].usage.output, 1 << 40);

    // A reply that is no program counts as failed, with what it used.
    let broken = reply(ModelReply { usage: Some(usage), ..ModelReply::call("", "execute_program", "{") });
    let world = World::new(&[&[broken, ONE]], &attempts(2));
    assert!(world.call().ok());
    let used = world.runtime.usage();
    assert_eq!((used[0].1.requests, used[0].1.failed, used[0].1.tokens.total(), used[0].1.unpriced), (2, 1, 15, 1));
}

/// SC-4.02: a reply that holds nothing is paid for like any other, and bounded like any other.
#[test]
fn sc_4_02_what_a_failed_request_used_is_counted() {
    let usage = Usage { input: 1_000_000, output: 7, ..Usage::default() };
    let refused = || {
        let respond = move |_: &ModelRequest| {
            Err(ProviderError { usage: Some(usage), ..ProviderError::new(InvalidResponse, "the model refused") })
        };
        ModelSpec::Provider(Arc::new(Scripted::respond(respond).named("A")))
    };
    let cost = (r#""max_cost": 1.5"#, "2.000014 USD of 1.5 USD of this flow are spent");
    let tokens = (r#""max_tokens": 1500000"#, "2000014 of 1500000 model tokens of this flow are used");
    // Also where the request that goes over it is the last one anyway.
    for ((bound, words), attempts) in [(cost, 8), (cost, 2), (tokens, 8), (tokens, 2)] {
        let options = format!(
            r#"{{"max_generation_attempts": {attempts}, "prices": {{"A": {{"input": 1, "output": 1}}}}, {bound}}}"#
        );
        let Value::Map(map) = Value::from_json(&options).unwrap() else { panic!("a map") };
        let options = Options { model: Some(refused()), ..Options::from_map(&map).unwrap() };
        let waits = Arc::new(Recorded::default());
        let runtime = Runtime::builder().options(options).waits(waits).build().unwrap();
        let agent = runtime.agent("calculator", Options::default()).unwrap();
        let outcome = agent.call("work", Vec::new(), Map::new()).unwrap();
        let error = outcome.error().unwrap();
        assert_eq!(error.error_type, ErrorType::BudgetExceeded, "{bound}: {}", error.message);
        assert!(error.message.contains(words), "{bound}: {}", error.message);
        assert!(error.message.ends_with("the model refused"), "{bound}: {}", error.message);
        let used = runtime.usage().remove(0).1;
        assert_eq!((used.requests, used.failed, used.tokens.input, used.tokens.output), (2, 2, 2_000_000, 14));
        assert!((used.cost.usd() - 2.000_014).abs() < 1e-9 && used.unpriced == 0, "{used:?}");
    }
}

/// Money is a budget of the whole flow: the request that goes over it is the last one.
#[test]
fn max_cost_bounds_the_whole_flow() {
    let usage = Usage { input: 1_000_000, ..Usage::default() };
    let delegating = reply(ModelReply { usage: Some(usage), ..ModelReply::text("return agent:delegate('x'):work()") });
    let prices = r#""prices": {"A": {"input": 1, "output": 1}}, "execution_repairs": 0"#;
    let world = World::new(&[&[delegating]], &format!(r#"{{"max_cost": 2.5, {prices}}}"#));
    let outcome = world.call();
    assert_eq!(outcome.error().unwrap().error_type, ErrorType::BudgetExceeded);
    assert!(outcome.error().unwrap().message.contains("`max_cost`"), "{:?}", outcome.error());
    assert_eq!(world.asked(), "AAA");

    // What is spent to the last cent is spent.
    let failing = reply(ModelReply { usage: Some(usage), ..ModelReply::text("error('no')") });
    let exactly = r#"{"max_cost": 1, "prices": {"A": {"input": 1, "output": 1}}, "execution_repairs": 3}"#;
    let world = World::new(&[&[failing]], exactly);
    assert_eq!((world.call().error().unwrap().error_type.clone(), &*world.asked()), (ErrorType::BudgetExceeded, "A"));

    // Within one call: a repair that nobody can pay for is not asked for.
    let failing = reply(ModelReply { usage: Some(usage), ..ModelReply::text("error('no')") });
    let prices = r#""prices": {"A": {"input": 1, "output": 1}}, "execution_repairs": 3"#;
    let world = World::new(&[&[failing]], &format!(r#"{{"max_cost": 1.5, {prices}}}"#));
    let outcome = world.call();
    let metadata = outcome.metadata.as_ref().unwrap();
    assert_eq!((metadata.agent_outcome, metadata.reason), (AgentOutcome::FailedBudgetExhausted, Reason::MaxCost));
    assert_eq!(
        outcome.error().unwrap().message,
        "2 USD of 1.5 USD of this flow are spent; raise `max_cost` or ask less"
    );
    assert_eq!(world.asked(), "AA");
    // Such a run replays like any other.
    let replay = world.runtime.replay(metadata.call_id).unwrap();
    assert_eq!((replay.ended.reason, replay.programs), (Reason::MaxCost, 2));
}

/// Tokens are a budget of the whole flow: a child gets what is left, and nothing is counted twice.
#[test]
fn max_tokens_are_counted_once() {
    let said = |code| {
        let usage = Some(Usage { input: 60, output: 40, ..Usage::default() });
        reply(ModelReply { usage, ..ModelReply::text(code) })
    };
    let program = "return agent:delegate('x'):one().value + agent:delegate('x'):two().value";
    let answers = [said(program), said("return 1"), said("return 2")];
    let play = |max_tokens| {
        let options = format!(r#"{{"max_tokens": {max_tokens}, "execution_repairs": 0}}"#);
        let world = World::new(&[&answers], &options);
        let outcome = world.call();
        (outcome.ok(), outcome.error().map(|error| error.error_type.clone()), world.asked())
    };
    assert_eq!(play(300), (true, None, "AAA".to_owned()));
    for too_few in [100, 200] {
        let asked = "A".repeat(too_few / 100);
        assert_eq!((play(too_few).0, play(too_few).2), (false, asked), "{too_few}");
    }
}

#[test]
fn max_cost_without_prices_is_refused_and_a_target_without_one_ends_the_flow() {
    let model = ModelSpec::Provider(Arc::new(Scripted::program("return 1")));
    let map = Map::from([("max_cost".to_owned(), 1.into())]);
    let options = Options { model: Some(model), ..Options::from_map(&map).unwrap() };
    let error = Runtime::builder().options(options).build().unwrap_err().to_string();
    assert!(error.contains("goes together with `prices`"), "{error}");

    let usage = Usage { input: 10, ..Usage::default() };
    let failing = reply(ModelReply { usage: Some(usage), ..ModelReply::text("error('no')") });
    let prices = r#"{"max_cost": 1, "prices": {"B": {"input": 1, "output": 1}}}"#;
    let world = World::new(&[&[failing]], prices);
    let outcome = world.call();
    let words = "A has no price, so `max_cost` cannot hold; add it to `prices`";
    assert_eq!((outcome.error().unwrap().message.as_str(), world.asked().as_str()), (words, "A"));

    // A reply that held nothing is paid for too; a library's programs are not.
    let respond = move |_: &ModelRequest| {
        Err(ProviderError { usage: Some(usage), ..ProviderError::new(InvalidResponse, "the model refused") })
    };
    let Value::Map(map) = Value::from_json(prices).unwrap() else { panic!("a map") };
    let model = ModelSpec::Provider(Arc::new(Scripted::respond(respond).named("A")));
    let options = Options { model: Some(model), ..Options::from_map(&map).unwrap() };
    let runtime = Runtime::builder().options(options).build().unwrap();
    let outcome = runtime.agent("a", Options::default()).unwrap().call("work", Vec::new(), Map::new()).unwrap();
    assert!(outcome.error().unwrap().message.contains(words), "{:?}", outcome.error());
    let library = |code| reply(ModelReply { source: Some(ProgramSource::Library), ..ModelReply::text(code) });
    let world = World::new(&[&[library("error('no')"), library("return 1")]], prices);
    assert_eq!((world.call().value(), &*world.asked()), (&1.into(), "AA"));

    // A model that does not count its tokens: with a price they are estimated, without one the flow ends.
    let silent = [Program("error('no')")];
    let world = World::new(&[&silent], prices);
    assert_eq!((world.call().error().unwrap().message.as_str(), world.asked().as_str()), (words, "A"));
    let dear = r#"{"max_cost": 0.000001, "prices": {"A": {"input": 1000000, "output": 1}}}"#;
    let world = World::new(&[&silent], dear);
    assert_eq!(
        (world.call().error().unwrap().error_type.clone(), world.asked()),
        (ErrorType::BudgetExceeded, "A".into())
    );
}

/// SC-1.50: thinking is on or off, or so many tokens long.
#[test]
fn sc_1_50_thinking_may_be_switched_on() {
    for (said, read) in [("true", Some(4_096)), ("false", None), ("null", None), ("2048", Some(2_048))] {
        let Value::Map(map) = Value::from_json(&format!(r#"{{"extended_thinking": {said}}}"#)).unwrap() else {
            panic!("a map")
        };
        assert_eq!(Options::from_map(&map).unwrap().target.params.extended_thinking, Some(read), "{said}");
    }
}

/// Promise 5: what stands behind `Bearer ` in a header is a key wherever it turns up, and so is what is called one.
#[test]
fn keys_of_headers_and_of_names_are_masked() {
    let header = |name: &str, value: &str| {
        let headers = Value::Map(Map::from([(name.to_owned(), value.into())]));
        drop(Options::from_map(&Map::from([("headers".to_owned(), headers)])).unwrap());
    };
    header("authorization", "Bearer tok-bearer-4711");
    header("cookie", "session-4711");
    header("x-title", "calculator-4711");
    let told = secret::scrub("tok-bearer-4711, session-4711, calculator-4711").into_owned();
    assert_eq!(told, "[secret], [secret], calculator-4711");
    for name in ["api-key", "My_Api_Key", "db_password", "client-secret", "jira_token", "app_secret"] {
        let value = Value::Map(Map::from([(name.to_owned(), "hush".into())]));
        assert!(!secret::masked(&value).to_json().contains("hush"), "{name}");
    }
    for name in ["max_tokens", "keyboard", "secretary"] {
        let value = Value::Map(Map::from([(name.to_owned(), "plain".into())]));
        assert_eq!(secret::masked(&value), value, "{name}");
    }
}

/// SC-1.48 for maps: they are laid over each other by entry, and null takes all of them away.
#[test]
fn sc_1_48_null_takes_maps_away() {
    let read = |json: &str| {
        let Value::Map(map) = Value::from_json(json).unwrap() else { panic!("a map") };
        Options::from_map(&map).unwrap().target
    };
    let names = |options: &TargetOptions| -> Vec<String> {
        let present = options.params.extra.iter().filter(|(_, value)| value.is_some());
        present.map(|(name, _)| name.clone()).collect()
    };
    let far = read(r#"{"extra": {"a": 1, "b": 2}, "headers": {"x-team": "t"}, "temperature": 1}"#);
    assert_eq!(names(&read(r#"{"extra": {"b": null, "c": 3}}"#).over(&far)), ["a", "c"]);
    let nothing = read(r#"{"extra": null, "headers": null, "temperature": null}"#).over(&far);
    assert_eq!(
        (names(&nothing), nothing.headers.get("x-team"), nothing.params.temperature),
        (Vec::new(), None, Some(None))
    );
}
