//! Cassettes: what is recorded is played, to the letter and without a model; nothing secret gets there; whatever is wrong
//! with a file is told with its line.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use cadenza_core::agent::Agent;
use cadenza_core::cancel::CancelToken;
use cadenza_core::outcome::{ErrorType, Outcome};
use cadenza_core::provider::cassette::CassetteError;
use cadenza_core::provider::targets::Targets;
use cadenza_core::provider::{
    Cassette, ModelReply, ModelRequest, ModelSpec, Provider, ProviderError, ProviderErrorClass, ReplyFuture, Scripted,
    Secret, Usage, Waits,
};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::Options;
use cadenza_core::value::{Map, Value};

#[path = "support/wire_server.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod wire_server;

use wire_server::{Answer, WireServer};

fn map<const N: usize>(entries: [(&str, Value); N]) -> Map {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A runtime with this model, reuse off, and other options.
fn runtime<const N: usize>(model: impl Into<ModelSpec>, options: [(&str, Value); N]) -> Runtime {
    let mut options = Options::from_map(&map(options)).unwrap();
    options.model = Some(model.into());
    options.reuse = Some(cadenza_core::runtime::options::Reuse::Off);
    Runtime::builder().options(options).build().unwrap()
}

fn agent(runtime: &Runtime, role: &str) -> Agent {
    runtime.agent(role, Options::default()).unwrap()
}

fn call(agent: &Agent, method: &str, args: &[Value]) -> Outcome {
    agent.call(method, args.to_vec(), Map::new()).unwrap()
}

fn path_text(path: &Path) -> Value {
    path.to_str().unwrap().into()
}

fn replayed(path: &Path) -> Runtime {
    runtime(format!("cassette:{}", path.display()).as_str(), [])
}

/// A model as real ones are: usage, a routed name, a program that fails at first, a refusal now and then.
fn model() -> Arc<dyn Provider> {
    Arc::new(
        Scripted::respond(|request| {
            let code = match (&*request.method, request.attempt, request.messages.len()) {
                ("divide", 1, 0) => "return args[1] / nothing.here",
                ("divide", ..) => "return args[1] / args[2]",
                ("numbers", ..) => "local l = {} for i = 1, args[1] do l[i] = i end return l",
                ("total", ..) => "local s = 0 for _, x in content(history[1].value_ref) do s += x end return s",
                ("busy", ..) => {
                    let mut error = ProviderError::new(ProviderErrorClass::ModelError, "no such model");
                    error.retry_after = Some(Duration::from_millis(1));
                    return Err(error);
                }
                _ => "context.seen = (context.seen or 0) + 1 return args[1]",
            };
            let usage = Usage { input: 700, cached: 512, output: 30, cache_write: 1, reasoning: 2 };
            Ok(ModelReply {
                usage: Some(usage),
                stop_reason: Some("tool_calls".into()),
                model: Some("gpt-5.1-2026".into()),
                note: Some("routed".into()),
                ..ModelReply::call(
                    "c1",
                    "execute_program",
                    Value::Map(map([("code", code.into()), ("language", "lua".into())])).to_json(),
                )
            })
        })
        .named("openai:gpt-5.1"),
    )
}

/// What became of a call: its value or error, tokens, attempts, note.
type Ended = (Result<Value, String>, u64, u64, Option<String>);

/// A flow with a repair, state, a large result by its reference, and a failing provider.
fn flow(runtime: &Runtime) -> Vec<Ended> {
    let agent = agent(runtime, "calculator");
    [
        ("divide", vec![7.into(), 2.into()]),
        ("numbers", vec![300.into()]),
        ("echo", vec!["a".into()]),
        ("echo", vec!["b".into()]),
        ("busy", vec![]),
    ]
    .into_iter()
    .map(|(method, args)| call(&agent, method, &args))
    .chain([{
        let lister = self::agent(runtime, "lister");
        call(&lister, "numbers", &[200.into()]);
        call(&lister, "total", &[])
    }])
    .map(|outcome| {
        let metadata = outcome.metadata.clone().unwrap();
        let note = metadata.note.as_ref().map(ToString::to_string);
        let result = outcome.result.clone().map_err(|error| format!("{}: {}", error.error_type, error.message));
        (result, metadata.tokens, u64::from(metadata.attempts), note)
    })
    .collect()
}

#[test]
fn what_is_recorded_is_played_without_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flow.jsonl");
    let recording = runtime(model(), [("record", path_text(&path))]);
    let recorded = flow(&recording);
    assert_eq!(recorded[0].0, Ok(Value::Float(3.5)), "the repaired program answered");
    assert_eq!(recorded[5].0, Ok(20_100.into()), "a reference to a large result was followed");
    assert!(recorded[4].0.as_ref().is_err_and(|error| error.starts_with("provider: ")), "{recorded:?}");

    let playing = replayed(&path);
    assert_eq!(flow(&playing), recorded);
    assert_eq!(&**playing.model(), "openai:gpt-5.1");
    let entries = |runtime: &Runtime| -> Vec<_> {
        let calls = runtime.calls();
        let entries = calls.iter().flat_map(|call| call.metadata.accounting.iter());
        entries
            .map(|entry| (entry.usage, entry.stop_reason.clone(), entry.actual_model.clone(), entry.target.clone()))
            .collect()
    };
    assert_eq!(entries(&playing), entries(&recording));

    // Readable, in a fixed order, with the system prompt once.
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.starts_with(concat!("{\"cassette\":1,\"cadenza\":\"", env!("CARGO_PKG_VERSION"), "\"}\n{\"prompt\":\"")),
        "{text}"
    );
    assert_eq!(text.matches("You write the program behind one method").count(), 1);
    let line = text.lines().find(|line| line.contains("\"method\":\"divide\"")).unwrap();
    let (begin, end) = (
        line.find("\"role\":\"calculator\",\"method\":\"divide\",\"attempt\":1,\"language\":\"lua\""),
        line.find("\"reply\":{\"tool_calls\""),
    );
    assert!(line.starts_with("{\"request\":\"") && begin.is_some() && end > begin, "{line}");

    // The same again, from a second recording of the same flow.
    let again = folder.path().join("again.jsonl");
    flow(&runtime(model(), [("record", path_text(&again))]));
    let digests = |path: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter_map(|line| Some(line.strip_prefix("{\"request\":\"")?[..16].to_owned())).collect()
    };
    assert_eq!(digests(&path), digests(&again));
    assert!(digests(&path).len() >= 8);
}

#[test]
fn a_request_that_is_not_there_names_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.jsonl");
    let recording = agent(&runtime(model(), [("record", path_text(&path))]), "clerk");
    call(&recording, "echo", &[1.into()]);
    call(&recording, "other", &[2.into()]);

    let playing = agent(&replayed(&path), "clerk");
    let failed = call(&playing, "other", &[3.into()]);
    let error = failed.error().unwrap();
    assert_eq!(error.error_type, ErrorType::Provider);
    for part in [
        "has no reply for clerk.other (attempt 1); the nearest is line 4, clerk.other (attempt 1)",
        "where the prompt says `args: [2]` and now `args: [3]`; record it again",
    ] {
        assert!(error.message.contains(part), "{}", error.message);
    }
    let fresh = replayed(&path);
    assert!(call(&agent(&fresh, "clerk"), "echo", &[1.into()]).ok());
    let used = call(&agent(&fresh, "clerk"), "echo", &[1.into()]);
    assert!(
        used.error().unwrap().message.contains("line 3, clerk.echo (attempt 1), which is played already"),
        "{used:?}"
    );
}

#[test]
fn equal_requests_are_answered_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("order.jsonl");
    let asked = AtomicI64::new(0);
    let model =
        Scripted::respond(move |_| Ok(ModelReply::text(format!("return {}", asked.fetch_add(1, Ordering::Relaxed)))));
    let recording = runtime(Arc::new(model) as Arc<dyn Provider>, [("record", path_text(&path))]);
    let values = |runtime: &Runtime| -> Vec<Value> {
        (0..4).map(|_| call(&agent(runtime, "dice"), "throw", &[]).value().clone()).collect()
    };
    assert_eq!(values(&recording), [0, 1, 2, 3].map(Value::from));
    assert_eq!(values(&replayed(&path)), [0, 1, 2, 3].map(Value::from));
}

/// A wait that costs no time.
#[derive(Debug)]
struct NoTime;

impl Waits for NoTime {
    fn pause<'a>(&'a self, _: Duration, _: &'a CancelToken) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async {})
    }
}

/// A model that fails so many times, then answers; its replies are read with its own profile.
fn failing(name: &str, class: ProviderErrorClass, times: i64) -> Arc<dyn Provider> {
    let asked = AtomicI64::new(0);
    let respond = move |_: &_| match asked.fetch_add(1, Ordering::Relaxed) < times {
        true => Err(ProviderError {
            retry_after: (class == ProviderErrorClass::RateLimit).then(|| Duration::from_secs(30)),
            usage: (class == ProviderErrorClass::InvalidResponse).then_some(Usage { output: 3, ..Usage::default() }),
            ..ProviderError::new(class, "not now")
        }),
        false => Ok(ModelReply { usage: Some(Usage { input: 9, ..Usage::default() }), ..ModelReply::text("return 7") }),
    };
    Arc::new(Scripted::respond(respond).named(name))
}

/// What one call of this model was, and what it is when it is played: value or error, attempts, entries of the accounting.
fn recorded_and_played(path: &Path, model: Arc<dyn Provider>) -> [(String, String); 2] {
    let mut options = Options::from_map(&map([("record", path_text(path))])).unwrap();
    options.model = Some(model.into());
    let recording = Runtime::builder().options(options).waits(Arc::new(NoTime)).build().unwrap();
    let facts = |runtime: Runtime| {
        let outcome = call(&agent(&runtime, "r"), "m", &[]);
        let metadata = outcome.metadata.as_ref().unwrap();
        let entries = metadata.accounting.iter();
        let entries: Vec<_> = entries
            .map(|entry| (&*entry.target, entry.error.clone(), entry.usage, entry.actual_model.clone()))
            .collect();
        let facts = (&outcome.result, metadata.attempts, metadata.note.as_deref(), runtime.model().clone(), entries);
        let usage: Vec<_> =
            runtime.usage().into_iter().map(|(name, used)| (name, used.requests, used.failed)).collect();
        (format!("{facts:?}"), format!("{usage:?}"))
    };
    [facts(recording), facts(replayed(path))]
}

#[test]
fn a_list_is_played_target_by_target() {
    use ProviderErrorClass::{ContextOverflow, ModelError, Network, RateLimit};

    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    for (number, class) in [Network, ModelError, ContextOverflow, RateLimit].into_iter().enumerate() {
        let path = folder.path().join(format!("{number}.jsonl"));
        // The second name twice: two keys of one model.
        let targets = vec![
            failing("a:one", class, 9),
            failing("b:two", class, 9),
            failing("b:two", Network, 9),
            failing("c", class, 0),
        ];
        let list: Arc<dyn Provider> = Arc::new(Targets::new(targets, 4).unwrap());
        let [recorded, played] = recorded_and_played(&path, list);
        assert!(recorded.0.contains("Ok(Int(7)), 4, Some(\"answered by c after a:one"), "{recorded:?}");
        assert_eq!(played, recorded);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(r#","targets":["a:one","b:two","b:two","c"],"#).count(), 4, "{text}");
        // Nobody answers: the same words.
        let path = folder.path().join(format!("{number}-fails.jsonl"));
        let list = Targets::new(vec![failing("a:one", class, 9), failing("b:two", class, 9)], 2).unwrap();
        let [recorded, played] = recorded_and_played(&path, Arc::new(list));
        assert!(recorded.0.contains("2 attempts failed; the last: not now"), "{recorded:?}");
        assert_eq!(played, recorded);
    }
    // A whole list that limits requests, and a single model that does.
    for (name, count) in [("list", 2), ("single", 1)] {
        let limited = |name| failing(name, RateLimit, 1);
        let targets: Vec<_> = ["a:one", "b:two"].into_iter().take(count).map(limited).collect();
        let model: Arc<dyn Provider> =
            if count == 1 { limited("a:one") } else { Arc::new(Targets::new(targets, 3).unwrap()) };
        let path = folder.path().join(format!("{name}.jsonl"));
        let mut options = Options::from_map(&map([("record", path_text(&path))])).unwrap();
        options.max_generation_attempts = Some(3);
        options.model = Some(model.into());
        let recording = Runtime::builder().options(options).waits(Arc::new(NoTime)).build().unwrap();
        let check = |runtime: Runtime| {
            let outcome = call(&agent(&runtime, "r"), "m", &[]);
            assert_eq!((outcome.value(), outcome.metadata.as_ref().unwrap().attempts), (&7.into(), count as u32 + 1));
        };
        check(recording);
        check(runtime(format!("cassette:{}", path.display()).as_str(), [("max_generation_attempts", 3.into())]));
    }
    assert!(began.elapsed() < Duration::from_secs(25), "a recorded wait of 30 s is not waited for again");
}

#[test]
fn a_list_is_read_with_its_own_profile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profiles.jsonl");
    let text = |name: &str| failing(name, ProviderErrorClass::Network, 1);
    let tool = Arc::new(Profiled(failing("b", ProviderErrorClass::Network, 0)));
    let list = Targets::new(vec![text("a"), tool], 2).unwrap();
    let [recorded, played] = recorded_and_played(&path, Arc::new(list));
    assert!(recorded.0.starts_with("(Ok(Int(7)), 2"), "{recorded:?}");
    assert_eq!(played, recorded);
}

/// A model whose replies are text.
#[derive(Debug)]
struct Profiled(Arc<dyn Provider>);

impl Provider for Profiled {
    fn model(&self) -> &str {
        self.0.model()
    }

    fn profile(&self) -> &str {
        "text"
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        self.0.complete(request, cancel)
    }
}

#[test]
fn a_file_is_opened_without_reading_it_and_has_each_prompt_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.jsonl");
    let prompts = |path: &Path| std::fs::read_to_string(path).unwrap().matches("You write the program behind").count();
    // One after the other: the prompt was written by a runtime that is gone.
    for number in 0..3 {
        call(&agent(&runtime(model(), [("record", path_text(&path))]), "clerk"), "echo", &[number.into()]);
    }
    assert_eq!(prompts(&path), 1);
    // And several at once, of one runtime.
    let plain = runtime(model(), []);
    let record = || Options::from_map(&map([("record", path_text(&path))])).unwrap();
    let agents: Vec<Agent> = (0..3).map(|_| plain.agent("clerk", record()).unwrap()).collect();
    agents.iter().for_each(|agent| assert!(call(agent, "echo", &[9.into()]).ok()));
    assert_eq!(prompts(&path), 1);
    assert_eq!(std::fs::read_to_string(&path).unwrap().matches("{\"request\":").count(), 6);
    drop(agents);

    let mut text = std::fs::read_to_string(&path).unwrap();
    let line = text.lines().find(|line| line.starts_with("{\"request\":")).unwrap().to_owned() + "\n";
    text.push_str(&line.repeat((8 << 20) / line.len()));
    std::fs::write(&path, &text).unwrap();
    let began = Instant::now();
    for _ in 0..100 {
        plain.agent("clerk", record()).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?} for 100 agents", began.elapsed());

    // Another file of that name, and the same one emptied, begin anew.
    let kept = plain.agent("clerk", record()).unwrap();
    std::fs::remove_file(&path).unwrap();
    for number in 0..2 {
        call(&plain.agent("clerk", record()).unwrap(), "echo", &[number.into()]);
        assert_eq!((prompts(&path), std::fs::read_to_string(&path).unwrap().matches("{\"cassette\":").count()), (1, 1));
        std::fs::write(&path, "").unwrap();
    }
    drop(kept);
}

#[test]
fn no_secret_and_no_header_gets_to_the_file() {
    const KEY: &str = "sk-cassette-0123456789";
    const HEADER: &str = "header-value-98765";
    const OTHER: &str = "a\"quoted\\secret";
    Secret::new(OTHER).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secrets.jsonl");
    // A server that echoes keys, as servers do.
    let server = WireServer::start(Some(KEY), |seen| {
        let echo = format!("-- {:?}\nreturn '{KEY}' -- {OTHER}", seen.headers["authorization"]);
        match seen.method().as_deref() {
            Some("refuse") => {
                let body = serde_json::json!({"error": {"message": format!("bad key {:?} {OTHER}", seen.headers["authorization"])}});
                Answer::Raw { status: 400, headers: Vec::new(), body: body.to_string().into_bytes() }
            }
            _ => Answer::Program(echo),
        }
    });
    let model = ModelSpec::from("openai-compatible:tiny");
    let recording = runtime(
        model,
        [
            ("record", path_text(&path)),
            ("base_url", server.base_url().as_str().into()),
            ("api_key", KEY.into()),
            ("headers", Value::Map(map([("x-team", HEADER.into())]))),
        ],
    );
    let agent = agent(&recording, &format!("clerk of {KEY}"));
    agent.remember(map([("note", format!("the key is {KEY}").into()), ("password", "hunter-22".into())])).unwrap();
    let kwargs = map([("token", "tok-1234567".into()), ("text", format!("{OTHER} and {KEY}").into())]);
    for method in ["tell", "refuse"] {
        agent.call(method, vec![format!("{KEY} {OTHER}").into()], kwargs.clone()).unwrap();
    }
    assert!(server.seen().iter().all(|seen| seen.headers["authorization"].ends_with(KEY)), "the key was sent");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"method\":\"tell\"") && text.contains("[secret]") && text.contains("\"error\""), "{text}");
    let quoted = Value::from(OTHER).to_json();
    let twice = Value::from(&quoted[1..quoted.len() - 1]).to_json();
    let forms = [KEY, HEADER, OTHER, quoted.trim_matches('"'), twice.trim_matches('"'), "hunter-22", "tok-1234567"];
    for secret in forms {
        assert!(!text.contains(secret), "{secret} in:\n{text}");
    }
}

#[test]
fn a_file_that_is_no_cassette_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.jsonl");
    let head = "{\"cassette\":1,\"cadenza\":\"0.1.0\"}\n";
    let one = r#"{"request":"0123456789abcdef","role":"r","method":"m","attempt":1,"language":"lua","model":"x","profile":"program","system":"s","user":"u","messages":[],"reply":{"content":"return 1"}}"#;
    let other = one.replace("\"profile\":\"program\"", "\"profile\":\"strict\"");
    let listed = one.replace("\"system\"", "\"targets\":[\"x\",\"y\"],\"system\"");
    let no_list = one.replace("\"system\"", "\"targets\":[\"x\",5],\"system\"");
    let cases: Vec<(Vec<u8>, usize, &str)> = vec![
        (b"{\"cassette\":2}\n".to_vec(), 1, "a cassette of version 2; this version of cadenza reads version 1"),
        (b"{\"call_id\":\"x\"}\n".to_vec(), 1, "no cassette"),
        (b"plain words\n".to_vec(), 1, "not a JSON object"),
        (format!("{head}{one}\n{{\"request\":\n").into_bytes(), 3, "not a JSON object"),
        (format!("{head}{one}\n[1]\n").into_bytes(), 3, "not a JSON object"),
        (format!("{head}{{\"what\":1}}\n").into_bytes(), 2, "neither a request nor a prompt"),
        (
            format!("{head}{}\n", one.replace("\"attempt\":1", "\"attempt\":-1")).into_bytes(),
            2,
            "`attempt` is not a whole number",
        ),
        (format!("{head}{}\n", one.replace("\"reply\"", "\"answer\"")).into_bytes(), 2, "one of `reply` and `error`"),
        (
            format!(
                "{head}{}\n",
                one.replace(r#""reply":{"content":"return 1"}"#, r#""error":{"class":"odd","message":"x"}"#)
            )
            .into_bytes(),
            2,
            "unknown error class `odd`",
        ),
        (
            format!("{head}{one}\n{other}\n").into_bytes(),
            3,
            "recorded with the profile strict, line 2 with the profile program",
        ),
        (
            format!("{head}{one}\n{listed}\n").into_bytes(),
            3,
            "recorded with the models x, y, line 2 with a single model; record each in a file of its own",
        ),
        (format!("{head}{no_list}\n").into_bytes(), 2, "`targets` is not a list of texts"),
        ([head.as_bytes(), b"\xff\xfe\n"].concat(), 2, "not UTF-8"),
    ];
    for (bytes, line, why) in cases {
        std::fs::write(&path, &bytes).unwrap();
        let error = Cassette::replay(&path).unwrap_err();
        assert!(matches!(&error, CassetteError::Line { line: found, .. } if *found == line), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    std::fs::write(&path, head).unwrap();
    assert!(matches!(Cassette::replay(&path), Err(CassetteError::Empty { .. })));
    // What is no cassette is not recorded over either.
    std::fs::write(&path, "my notes").unwrap();
    assert!(Cassette::record(&path, model()).unwrap_err().to_string().contains("line 1: not a JSON object"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "my notes");
}

#[test]
fn options_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    let build = |entries: &[(&str, Value)]| {
        let options = entries.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Options::from_map(&options).and_then(|options| Runtime::builder().options(options).build())
    };
    let refused = |entries: &[(&str, Value)]| build(entries).map(drop).unwrap_err().to_string();
    let missing = format!("cassette:{}", path.display());
    assert!(refused(&[("model", missing.as_str().into())]).contains("x.jsonl: "));
    assert!(refused(&[("model", "cassette:".into())]).contains("cassette"));
    assert!(refused(&[("record", 5.into())]).contains("the path of a cassette"));
    let nowhere = folder.path().join("no/such/folder.jsonl");
    assert!(refused(&[("model", "library".into()), ("record", path_text(&nowhere))]).contains("folder.jsonl"));
    let library = [("model", "library".into()), ("record", path_text(&path))];
    let recording = build(&library).unwrap();
    assert!(recording.store().is_none(), "nothing kept earlier answers in the model's place");
    assert_eq!(call(&agent(&recording, "calculator"), "add", &[2.into(), 3.into()]).value(), &5.into());
    let played = build(&[("model", missing.as_str().into())]).unwrap();
    assert!(played.store().is_none());
    let outcome = call(&agent(&played, "calculator"), "add", &[2.into(), 3.into()]);
    let source = outcome.metadata.as_ref().unwrap().source.as_str();
    assert_eq!((outcome.value(), source), (&5.into(), "library"));
    let copy = folder.path().join("copy.jsonl");
    let twice = refused(&[("model", missing.as_str().into()), ("record", path_text(&copy))]);
    assert!(twice.contains("played from a cassette already"), "{twice}");
}

/// Names the file to a second process of this test program, and which of them it is.
const FILE: &str = "CADENZA_TEST_CASSETTE";
const REQUESTS: i64 = 120;

/// Runs only when the next test asks for it.
#[test]
#[ignore = "a process of its own"]
fn records_for_another_process() {
    let path = PathBuf::from(std::env::var_os(FILE).unwrap());
    let recording = runtime(model(), [("record", path_text(&path))]);
    // Long enough that no buffer writes it at once by chance.
    let long = "x".repeat(3_000);
    for number in 0..REQUESTS {
        call(&agent(&recording, "clerk"), "echo", &[number.into(), long.as_str().into()]);
    }
}

#[test]
fn processes_that_record_to_one_file_write_whole_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared.jsonl");
    let children: Vec<_> = (0..3)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "records_for_another_process", "--ignored"])
                .env(FILE, &path)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("{\"cassette\":").count(), 1);
    assert_eq!(text.lines().filter(|line| line.starts_with("{\"request\":")).count(), 3 * REQUESTS as usize);
    let playing = replayed(&path);
    for _ in 0..3 {
        let long = "x".repeat(3_000);
        assert!(call(&agent(&playing, "clerk"), "echo", &[0.into(), long.as_str().into()]).ok());
    }
}

#[test]
fn half_a_line_of_a_killed_process_is_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("torn.jsonl");
    call(&agent(&runtime(model(), [("record", path_text(&path))]), "clerk"), "echo", &[1.into()]);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], b"{\"request\":\"0123"].concat()).unwrap();
    let torn = Cassette::replay(&path).unwrap_err().to_string();
    assert!(torn.contains("line 4"), "{torn}");
    call(&agent(&runtime(model(), [("record", path_text(&path))]), "clerk"), "echo", &[2.into()]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.as_bytes().starts_with(&whole) && !text.contains("0123\n"), "{text}");
    let playing = agent(&replayed(&path), "clerk");
    assert!(call(&playing, "echo", &[1.into()]).ok());
}
