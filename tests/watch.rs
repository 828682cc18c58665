//! Programs as they are written: what a call tells those who watch it, what the token gate holds back (EC-IF1 to EC-IF5),
//! and that nobody who watches can hold up a call or break it.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use cadenza_core::agent::Agent;
use cadenza_core::cancel::CancelToken;
use cadenza_core::ids::CallId;
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::{ErrorType, Outcome};
use cadenza_core::provider::{
    ModelRequest, ModelSpec, Piece, PieceSink, Provider, ProviderError, ProviderErrorClass, ReplyFuture,
};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, VerboseOption};
use cadenza_core::runtime::watch::{Attempt, Feed, Part, Printer, Progress, Told, Watcher};
use cadenza_core::value::{Map, Value};

/// Remembers what it is told.
#[derive(Debug, Default)]
struct Seen(Mutex<Vec<Told>>);

impl Watcher for Seen {
    fn tell(&self, told: Told) {
        self.0.lock().unwrap().push(told);
    }
}

impl Seen {
    /// In a few words each; pieces that follow one another are one.
    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut piece_before = None;
        for Told { attempt, what } in self.0.lock().unwrap().iter() {
            let (method, number) = (&attempt.method, attempt.number);
            let piece = match what {
                Progress::Piece { of, text, dropped: 0 } => {
                    if piece_before == Some(*of) {
                        words.last_mut().unwrap().push_str(text);
                    } else {
                        words.push(format!("{} {text}", of.as_str()));
                    }
                    Some(*of)
                }
                Progress::Piece { dropped, .. } => panic!("{dropped} pieces were dropped"),
                Progress::Started => {
                    words.push(format!("started {method} {number}"));
                    None
                }
                Progress::Written => {
                    words.push("written".to_owned());
                    None
                }
                Progress::Failed { stage, error_class, message } => {
                    words.push(format!("failed {stage} {error_class} {message}"));
                    None
                }
            };
            piece_before = piece;
        }
        words
    }

    fn pieces(&self) -> usize {
        self.0.lock().unwrap().iter().filter(|told| matches!(told.what, Progress::Piece { .. })).count()
    }
}

/// What a streaming model does with one request.
#[derive(Clone, Debug)]
enum Turn {
    /// Puts these pieces of JSON arguments, and replies with them whole.
    Call(Vec<&'static str>),
    /// The same with text.
    Text(Vec<&'static str>),
    /// Thinks, and replies at once with this text.
    Thinks(&'static str),
    /// Replies with this text, without pieces.
    Whole(&'static str),
    /// Puts these pieces of arguments and says no more.
    Hangs(Vec<&'static str>),
    /// Puts these pieces of arguments, and the user cancels.
    Cancelled(Vec<&'static str>),
    /// The connection breaks.
    Breaks,
    /// The same, but its sink is kept.
    BreaksLate,
}

#[derive(Debug)]
struct Streaming {
    profile: &'static str,
    turns: Mutex<Vec<Turn>>,
    /// How many pieces watchers had seen when the reply was whole.
    seen: Arc<Seen>,
    seen_before: Mutex<Vec<usize>>,
    /// Where a model that was given up may still put pieces.
    late: Mutex<Option<PieceSink>>,
}

impl Provider for Streaming {
    fn model(&self) -> &str {
        "streaming"
    }

    fn profile(&self) -> &str {
        self.profile
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        let turn = self.turns.lock().unwrap().remove(0);
        Box::pin(async move {
            let put = |piece: Piece<'_>| {
                if let Some(pieces) = &request.pieces {
                    pieces.put(piece);
                }
            };
            let reply = match turn {
                Turn::Call(pieces) => {
                    pieces.iter().for_each(|piece| put(Piece::Arguments(piece)));
                    ModelReply::call("1", "execute_program", pieces.concat())
                }
                Turn::Text(pieces) => {
                    pieces.iter().for_each(|piece| put(Piece::Text(piece)));
                    ModelReply::text(pieces.concat())
                }
                Turn::Thinks(text) => {
                    put(Piece::Reasoning("let me see"));
                    ModelReply::text(text)
                }
                Turn::Whole(text) => ModelReply::text(text),
                Turn::Hangs(pieces) => {
                    pieces.iter().for_each(|piece| put(Piece::Arguments(piece)));
                    pending().await
                }
                Turn::Cancelled(pieces) => {
                    pieces.iter().for_each(|piece| put(Piece::Arguments(piece)));
                    cancel.cancel();
                    return Err(ProviderError::cancelled());
                }
                Turn::BreaksLate => {
                    self.late.lock().unwrap().clone_from(&request.pieces);
                    return Err(ProviderError::new(ProviderErrorClass::Network, "it broke"));
                }
                Turn::Breaks => return Err(ProviderError::new(ProviderErrorClass::Network, "it broke")),
            };
            self.seen_before.lock().unwrap().push(self.seen.pieces());
            Ok(reply)
        })
    }
}

struct World {
    agent: Agent,
    seen: Arc<Seen>,
    model: Arc<Streaming>,
}

fn world(profile: &'static str, turns: Vec<Turn>) -> World {
    world_with(profile, turns, Options::default())
}

fn world_with(profile: &'static str, turns: Vec<Turn>, options: Options) -> World {
    let seen = Arc::new(Seen::default());
    let model = Arc::new(Streaming {
        profile,
        turns: Mutex::new(turns),
        seen: seen.clone(),
        seen_before: Mutex::default(),
        late: Mutex::default(),
    });
    let options = Options {
        model: Some(ModelSpec::Provider(model.clone())),
        verbose: Some(VerboseOption::Watcher(seen.clone())),
        ..options
    };
    let runtime = Runtime::builder().options(options).build().unwrap();
    World { agent: runtime.agent("calculator", Options::default()).unwrap(), seen, model }
}

impl World {
    fn call(&self, args: &[Value]) -> Outcome {
        self.agent.call("add", args.to_vec(), Map::new()).unwrap()
    }
}

const CALL: [&str; 3] = [r#"{"language":"lua","co"#, r#"de":"return args[1]"#, r#" + \n1"}"#];

#[test]
fn a_program_is_told_as_it_is_written_and_a_kept_one_is_not() {
    let world = world("tool", vec![Turn::Call(CALL.to_vec())]);
    assert_eq!(world.call(&[2.into()]).value(), &Value::Int(3));
    let expected = ["started add 1", "program return args[1] + \n1", "written"];
    assert_eq!(world.seen.words(), expected);
    assert_eq!(*world.model.seen_before.lock().unwrap(), [2], "before the reply was whole");
    assert_eq!(world.call(&[5.into()]).value(), &Value::Int(6));
    assert_eq!(world.seen.words(), expected, "nothing is written where a kept program runs");
}

#[test]
fn every_form_shows_its_program() {
    for (profile, turn, told) in [
        ("program", Turn::Whole("return 5"), vec!["program return 5"]),
        ("text", Turn::Text(vec!["```lua\n", "return 5\n", "```"]), vec!["text ```lua\nreturn 5\n```"]),
        ("json", Turn::Text(vec![" {\"code\":\"retu", "rn 5\",\"language\":\"lua\"}"]), vec!["program return 5"]),
        ("tool", Turn::Thinks("return 5"), vec!["reasoning let me see", "program return 5"]),
    ] {
        let world = world(profile, vec![turn]);
        assert_eq!(world.call(&[]).value(), &Value::Int(5));
        let mut expected = vec!["started add 1"];
        expected.extend(told);
        expected.push("written");
        assert_eq!(world.seen.words(), expected, "{profile}");
    }
}

#[test]
fn every_attempt_begins_and_ends() {
    let turns = vec![
        Turn::Breaks,
        Turn::Text(vec!["return ("]),
        Turn::Call(vec![r#"{"code":"error('no')"}"#]),
        Turn::Call(vec![r#"{"code":"return 5"}"#]),
    ];
    let options = Options { max_generation_attempts: Some(3), ..Options::default() };
    let world = world_with("tool", turns, options);
    assert_eq!(world.call(&[]).value(), &Value::Int(5));
    let words = world.seen.words();
    let begins: Vec<String> =
        words.iter().map(|words| words.split(' ').take(3).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        begins,
        [
            "started add 1",
            "failed provider network",
            "started add 2",
            "text return (",
            "failed adapter SYNTAX",
            "started add 3",
            "program error('no')",
            "written",
            "failed execution raised",
            "started add 4",
            "program return 5",
            "written",
        ],
        "{words:#?}"
    );
}

#[test]
fn what_comes_after_a_failure_is_not_told() {
    let world = world("tool", vec![Turn::BreaksLate, Turn::Call(CALL.to_vec())]);
    assert_eq!(world.call(&[2.into()]).value(), &Value::Int(3));
    let words = world.seen.words();
    world.model.late.lock().unwrap().as_ref().unwrap().put(Piece::Text("too late"));
    assert_eq!(world.seen.words(), words);
}

#[test]
fn who_watches_a_call_sees_the_calls_in_it() {
    let world = world(
        "program",
        vec![Turn::Whole("return agent:delegate('tutor'):explain().value"), Turn::Whole("return 'so'")],
    );
    let seen = Arc::new(Seen::default());
    let call = world.agent.call_watched("add", Vec::new(), Map::new(), CancelToken::default(), Some(seen.clone()));
    let outcome = cadenza_core::runtime::wait::block_on(call, &CancelToken::default()).unwrap();
    assert_eq!(outcome.value(), &"so".into());
    assert_eq!(seen.words(), world.seen.words());
    let told = seen.0.lock().unwrap();
    let nested: Vec<_> = told.iter().filter(|told| told.attempt.depth == 1).collect();
    assert_eq!((&*nested[0].attempt.role, &*nested[0].attempt.method), ("tutor", "explain"));
    assert_eq!(nested.len(), 3);
}

#[test]
fn ec_if2_ec_if3_gated_pieces_wait_until_the_call_is_validated() {
    let world = world("gated", vec![Turn::Call(CALL.to_vec())]);
    assert_eq!(world.call(&[2.into()]).value(), &Value::Int(3));
    assert_eq!(*world.model.seen_before.lock().unwrap(), [0], "while the model wrote, nobody saw it");
    assert_eq!(world.seen.words(), ["started add 1", "program return args[1] + \n1", "written"]);
}

#[test]
fn ec_if1_gated_text_that_is_no_call_is_never_seen() {
    for text in ["return 5", "I would rather talk."] {
        let world = world("gated", vec![Turn::Text(vec![text]); 2]);
        assert!(!world.call(&[]).ok());
        assert_eq!(world.seen.pieces(), 0);
        for told in world.seen.0.lock().unwrap().iter() {
            assert!(!format!("{told:?}").contains(text), "{told:?}");
            if let Progress::Failed { message, .. } = &told.what {
                assert_eq!(message, "", "words about gated text may hold it");
            }
        }
    }
}

#[test]
fn ec_if4_ec_if5_gated_pieces_are_dropped_on_interrupt_and_timeout() {
    let pieces = vec![r#"{"code":"return 5"#];
    let world_ = world("gated", vec![Turn::Cancelled(pieces.clone())]);
    let outcome = world_.call(&[]);
    assert_eq!(outcome.error().unwrap().error_type, ErrorType::Interrupted);
    assert_eq!(world_.seen.pieces(), 0);

    let options = Options {
        provider_timeout: Some(Duration::from_millis(50)),
        max_generation_attempts: Some(1),
        ..Options::default()
    };
    let world = world_with("gated", vec![Turn::Hangs(pieces)], options);
    let outcome = world.call(&[]);
    assert_eq!(outcome.error().unwrap().error_type, ErrorType::Timeout);
    assert_eq!(world.seen.pieces(), 0);
    assert_eq!(world.seen.words().len(), 2, "it began, and it failed: {:?}", world.seen.words());
}

#[test]
fn a_call_that_is_dropped_ends_its_attempt() {
    let world = world("tool", vec![Turn::Hangs(vec![r#"{"code":"return"#])]);
    let call = world.agent.call_async("add", Vec::new(), Map::new(), CancelToken::default());
    let bounded = async {
        let mut call = std::pin::pin!(call);
        std::future::poll_fn(|context| {
            assert!(call.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
    };
    use std::future::Future as _;
    cadenza_core::runtime::wait::block_on(bounded, &CancelToken::default());
    let words = world.seen.words();
    assert_eq!(words, ["started add 1", "program return", "failed call interrupted the call was given up"]);
}

#[test]
fn a_watcher_that_panics_is_no_part_of_the_call() {
    #[derive(Debug)]
    struct Panics;
    impl Watcher for Panics {
        fn tell(&self, _told: Told) {
            panic!("no");
        }
    }
    let options = Options { verbose: Some(VerboseOption::Watcher(Arc::new(Panics))), ..Options::default() };
    let world = world("tool", vec![Turn::Call(CALL.to_vec())]);
    let agent = world.agent.runtime().agent("calculator", options).unwrap();
    assert_eq!(agent.call("add", vec![2.into()], Map::new()).unwrap().value(), &Value::Int(3));
}

fn attempt(method: &str, number: u32) -> Arc<Attempt> {
    Arc::new(Attempt { role: "calculator".into(), method: method.into(), call_id: CallId(1), depth: 0, number })
}

fn piece(attempt: &Arc<Attempt>, text: &str) -> Told {
    let what = Progress::Piece { of: Part::Program, text: text.to_owned(), dropped: 0 };
    Told { attempt: attempt.clone(), what }
}

#[test]
fn a_feed_that_nobody_empties_stays_within_its_bounds_and_counts_what_it_drops() {
    let (mut feed, attempt) = (Feed::default(), attempt("add", 1));
    feed.push(Told { attempt: attempt.clone(), what: Progress::Started });
    let text = "x".repeat(3_000);
    for _ in 0..1_000 {
        feed.push(piece(&attempt, &text));
    }
    feed.push(Told { attempt, what: Progress::Written });
    let mut told = std::iter::from_fn(|| feed.pop());
    assert_eq!(told.next().unwrap().what, Progress::Started, "only pieces give way");
    let (mut kept, mut dropped) = (0, 0);
    for told in told {
        if let Progress::Piece { text, dropped: before, .. } = told.what {
            kept += text.len() / 3_000;
            dropped += before as usize;
        }
    }
    assert!(kept * 3_000 <= 1 << 20, "{kept} pieces were kept");
    assert_eq!(kept + dropped, 1_000);
    assert!(feed.is_empty());
}

/// What a printer wrote.
fn printed(tell: impl FnOnce(&dyn Watcher)) -> String {
    let written = Arc::new(Mutex::new(String::new()));
    let out = written.clone();
    let printer = Printer::new(move |text| out.lock().unwrap().push_str(text));
    tell(&*printer);
    printer.flush();
    written.lock().unwrap().clone()
}

#[test]
fn a_printer_shows_one_block_at_a_time() {
    let (one, two, three) = (attempt("add", 1), attempt("sum", 1), attempt("add", 2));
    let told = |attempt: &Arc<Attempt>, what| Told { attempt: attempt.clone(), what };
    let failed =
        Progress::Failed { stage: "adapter", error_class: "SYNTAX".into(), message: "line 1: oops\u{1b}[2J".into() };
    let text = printed(|printer| {
        printer.tell(told(&one, Progress::Started));
        printer.tell(piece(&one, "return "));
        printer.tell(told(&two, Progress::Started));
        printer.tell(piece(&two, "return 2"));
        printer.tell(piece(&one, "("));
        printer.tell(told(&one, failed));
        printer.tell(piece(&two, " + 2"));
        printer.tell(told(&three, Progress::Started));
        printer.tell(piece(&three, "return 3"));
        printer.tell(told(&three, Progress::Written));
        printer.tell(told(&two, Progress::Written));
    });
    insta::assert_snapshot!(text, @r"
    -- calculator.add (attempt 1)
    return (
    -- calculator.add (attempt 1) failed: adapter, SYNTAX: line 1: oops\u{1b}[2J
    -- calculator.sum (attempt 1)
    return 2 + 2
    -- calculator.add (attempt 2)
    return 3
    ");
}

#[test]
fn a_printer_that_is_stuck_or_panics_holds_up_no_call() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let opened = gate.clone();
    let stuck = Printer::new(move |_| {
        let open = opened.0.lock().unwrap();
        drop(opened.1.wait_while(open, |open| !*open).unwrap());
    });
    let wrote = Arc::new(AtomicBool::new(false));
    let again = wrote.clone();
    let panics = Printer::new(move |_| {
        if !again.swap(true, Ordering::SeqCst) {
            panic!("no");
        }
    });
    for printer in [stuck as Arc<dyn Watcher>, panics] {
        let options = Options { verbose: Some(VerboseOption::Watcher(printer)), ..Options::default() };
        let world = world("tool", vec![Turn::Call(CALL.to_vec()), Turn::Call(CALL.to_vec())]);
        let agent = world.agent.runtime().agent("calculator", options).unwrap();
        let began = Instant::now();
        for argument in [Value::Int(2), "3".into()] {
            assert_eq!(agent.call("add", vec![argument], Map::new()).unwrap().error(), None);
        }
        // The first call waits a moment for its program to be shown, and the second one not at all.
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
    assert!(wrote.load(Ordering::SeqCst));
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
}
