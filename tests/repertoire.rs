//! The repertoire: kept programs as people find, read, change and take them away (product.md section 8).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use cadenza_core::agent::Agent;
use cadenza_core::message::ModelReply;
use cadenza_core::outcome::{Outcome, ProgramSource, ReuseReason};
use cadenza_core::program::registry::{ProgramState, Standing};
use cadenza_core::provider::{ModelSpec, Scripted};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::calls::since;
use cadenza_core::runtime::options::{Options, Reuse, StoreOption};
use cadenza_core::runtime::repertoire::{Listed, ProgramQuery, diff};
use cadenza_core::store::{CallQuery, SqliteStore, Store};
use cadenza_core::value::{Map, Value};

const ADD: &str = "return args[1] + args[2]";

/// A runtime on `path`, or in memory, and a counter of how often its model was asked.
fn runtime(path: Option<&Path>) -> (Runtime, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counter = asked.clone();
    let model = Scripted::respond(move |request| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(ModelReply::text(match &*request.method {
            "add" => ADD,
            "to_miles" if request.args.get(1).and_then(Value::as_str) == Some("km") => "return args[1] * 0.5",
            "to_miles" => "return args[1] * 2",
            "count" => "context.count = (context.count or 0) + 1 return context.count",
            "greet" => "return 'Hello, Ann'",
            "outer" => "return Agent.for_role('inner'):add(1, 2).value",
            "fail" => "error('no')",
            _ => "return nil",
        }))
    });
    let options = Options {
        model: Some(ModelSpec::Provider(Arc::new(model))),
        store: path.map(|path| StoreOption::Path(path.to_owned())),
        ..Options::default()
    };
    (Runtime::builder().options(options).build().expect("the options are valid"), asked)
}

fn agent(runtime: &Runtime, role: &str) -> Agent {
    runtime.agent(role, Options::default()).expect("a good role")
}

fn call(agent: &Agent, method: &str, args: &[Value]) -> Outcome {
    agent.call(method, args.to_vec(), Map::new()).expect("a good name")
}

fn add(agent: &Agent, left: i64, right: i64) -> Value {
    call(agent, "add", &[left.into(), right.into()]).value().clone()
}

fn why(outcome: &Outcome) -> Option<ReuseReason> {
    outcome.metadata.as_ref().expect("every call has metadata").reuse
}

fn all(runtime: &Runtime) -> Vec<Listed> {
    runtime.programs(&ProgramQuery::default()).unwrap()
}

/// Runs a check on a store and in memory.
fn on_both(check: impl Fn(&Runtime, &AtomicU32)) {
    let folder = tempfile::tempdir().unwrap();
    for path in [None, Some(folder.path().join("app.db"))] {
        let (runtime, asked) = runtime(path.as_deref());
        check(&runtime, &asked);
    }
}

#[test]
fn a_program_is_found_by_id_by_its_beginning_and_by_name() {
    on_both(|runtime, _| {
        let calc = agent(runtime, "calculator");
        add(&calc, 2, 3);
        call(&calc, "greet", &[]);
        let greet = runtime.program("calculator", "greet").unwrap().unwrap();
        for name in [&greet.id.to_hex(), &greet.id.to_hex()[..10].to_uppercase(), "calculator.greet"] {
            assert_eq!(runtime.find_program(name).unwrap().id, greet.id, "{name}");
        }
        for (name, expected) in [
            ("calculator.gret", "no program \"calculator.gret\"; did you mean calculator.greet?"),
            ("nothing.like_it", "no program \"nothing.like_it\""),
            (&greet.id.to_hex()[..3], "no program"),
            ("", "no program \"\""),
        ] {
            let error = runtime.find_program(name).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{name}: {error}");
        }
        // The last digit is another one.
        let id = greet.id.to_hex();
        let near = format!("{}{}", &id[..11], if id.as_bytes()[11] == b'0' { '1' } else { '0' });
        let error = runtime.find_program(&near).unwrap_err().to_string();
        assert!(error.ends_with(&format!("did you mean {}?", greet.short_id())), "{error}");

        runtime.edit_program(&greet, "return 'Hello'", true).unwrap();
        let error = runtime.find_program("calculator.greet").unwrap_err().to_string();
        assert!(error.contains("means several programs") && error.contains(&greet.short_id()), "{error}");
    });
}

#[test]
fn evidence_says_what_is_free_and_what_is_pinned_to_which_value() {
    on_both(|runtime, _| {
        let guide = agent(runtime, "guide");
        guide.set("unit", "metric".into()).unwrap();
        call(&guide, "to_miles", &[4.into(), "km".into()]);
        let listed = runtime.find_program("guide.to_miles").unwrap();
        let shown: Vec<_> = listed.input_names().into_iter().zip(&listed.inputs).collect();
        assert_eq!(
            (shown[0].0.0.as_str(), shown[0].0.1, shown[0].1.standing),
            ("args[1]", "number", Standing::Unproven)
        );
        assert_eq!((shown[1].0.0.as_str(), shown[1].0.1, shown[1].1.standing), ("args[2]", "text", Standing::Pinned));
        assert_eq!(runtime.input_values(&listed).unwrap(), [Some(4.into()), Some("km".into())]);
        assert_eq!(listed.saved.pins.context.keys().collect::<Vec<_>>(), ["unit"]);
        let made_by = listed.saved.origin.call.unwrap();
        assert_eq!(runtime.call_map(made_by).unwrap().unwrap()["method"], "to_miles".into());
        let age = SystemTime::now().duration_since(listed.saved.origin.created.unwrap()).unwrap();
        assert!(age < Duration::from_secs(60));
        // A dry run proves the first input, and the list knows.
        assert_eq!(call(&guide, "to_miles", &[8.into(), "km".into()]).value(), &4.into());
        assert_eq!(runtime.find_program("guide.to_miles").unwrap().inputs[0].standing, Standing::Free);
    });
}

#[test]
fn an_edited_program_is_a_new_version_that_wins_and_keeps_what_is_pinned() {
    on_both(|runtime, asked| {
        let guide = agent(runtime, "guide");
        assert_eq!(call(&guide, "to_miles", &[4.into(), "km".into()]).value(), &2.into());
        let first = runtime.find_program("guide.to_miles").unwrap();
        let second = runtime.edit_program(&first, "return args[1] * 0.625\n", true).unwrap();
        assert_eq!((second.saved.version, second.state(), &*second.saved.model), (2, ProgramState::Pinned, "edited"));
        assert_eq!(&*second.saved.code, "return args[1] * 0.625", "the old text ends without a line break");
        assert_eq!(call(&guide, "to_miles", &[8.into(), "km".into()]).value(), &5.into());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // It still ignores the unit, so other units are not its business.
        let other = call(&guide, "to_miles", &[8.into(), "mi".into()]);
        assert_eq!((other.value(), why(&other)), (&16.into(), Some(ReuseReason::PinnedInput)));

        let third = runtime.edit_program(&second, "return args[1] * (if args[2] == 'km' then 1 else 3)", true).unwrap();
        assert!(third.inputs.iter().all(|input| input.standing == Standing::Free), "{:?}", third.inputs);
        assert_eq!(call(&guide, "to_miles", &[8.into(), "ft".into()]).value(), &24.into());
        assert_eq!(call(&guide, "to_miles", &[8.into(), "km".into()]).value(), &8.into(), "the last edit wins");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        let history = runtime.history("guide.to_miles").unwrap();
        assert_eq!(history.len(), 4);
        assert_eq!(runtime.newest_program("guide.to_miles").unwrap().id, third.id);
        assert_eq!(runtime.previous_version(&second).unwrap().unwrap().id, first.id);
        assert!(runtime.previous_version(&first).unwrap().is_none());
        let shown = diff(&first, &second);
        assert!(shown.contains("-return args[1] * 0.5\n+return args[1] * 0.625\n"), "{shown}");
        assert_eq!(diff(&first, &first), "");
    });
}

#[test]
fn an_edit_that_is_refused_changes_nothing() {
    on_both(|runtime, _| {
        let calc = agent(runtime, "calculator");
        add(&calc, 2, 3);
        let program = runtime.find_program("calculator.add").unwrap();
        let error = runtime.edit_program(&program, "return (", true).unwrap_err().to_string();
        assert!(error.starts_with("calculator.add: the program does not compile: line 1"), "{error}");
        let error = runtime.edit_program(&program, &format!("{ADD}\n"), true).unwrap_err().to_string();
        assert_eq!(error, "calculator.add: nothing changed");
        assert_eq!(all(runtime).len(), 1);
        assert_eq!(add(&calc, 5, 6), 11.into());
    });
}

#[test]
fn a_deleted_program_is_gone_and_its_calls_keep_their_text() {
    on_both(|runtime, asked| {
        let calc = agent(runtime, "calculator");
        add(&calc, 2, 3);
        let program = runtime.find_program("calculator.add").unwrap();
        runtime.delete_program(&program).unwrap();
        assert!(all(runtime).is_empty());
        assert_eq!(runtime.find_calls(&CallQuery::default()).unwrap()[0]["code"], ADD.into());
        let again = call(&calc, "add", &[2.into(), 3.into()]);
        assert_eq!((again.value(), why(&again)), (&5.into(), Some(ReuseReason::NoProgram)));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn what_people_decide_holds_in_runtimes_that_know_the_program_already() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (here, asked) = runtime(Some(&path));
    let (there, _) = runtime(Some(&path));
    let calc = agent(&here, "calculator");
    assert_eq!(add(&calc, 2, 3), 5.into());
    let program = there.find_program("calculator.add").unwrap();
    let edited = there.edit_program(&program, "return args[1] + args[2] + 1000", true).unwrap();
    assert_eq!(add(&calc, 2, 3), 1005.into());
    there.set_program_state(edited.id, ProgramState::Quarantined).unwrap();
    assert_eq!(add(&calc, 2, 3), 5.into());
    there.set_program_state(program.id, ProgramState::Quarantined).unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let outcome = call(&calc, "add", &[2.into(), 3.into()]);
    assert_eq!((asked.load(Ordering::SeqCst), why(&outcome)), (2, Some(ReuseReason::Quarantined)));
    there.delete_program(&edited).unwrap();
    there.set_program_state(program.id, ProgramState::Active).unwrap();
    assert_eq!(add(&calc, 7, 8), 15.into());
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert_eq!(all(&here).len(), 1);
}

#[test]
fn a_call_says_why_a_program_was_reused_or_not() {
    on_both(|runtime, _| {
        let calc = agent(runtime, "calculator");
        let two = [Value::Int(2), Value::Int(3)];
        assert_eq!(why(&call(&calc, "add", &two)), Some(ReuseReason::NoProgram));
        assert_eq!(why(&call(&calc, "add", &two)), Some(ReuseReason::Reused));
        assert_eq!(why(&call(&calc, "chat", &[])), Some(ReuseReason::NotReusable));
        let off = runtime.agent("calculator", Options { reuse: Some(Reuse::Off), ..Options::default() }).unwrap();
        assert_eq!(why(&call(&off, "add", &two)), Some(ReuseReason::Off));
        calc.set("name", "Ann".into()).unwrap();
        call(&calc, "greet", &[]);
        calc.set("name", "Bob".into()).unwrap();
        assert_eq!(why(&call(&calc, "greet", &[])), Some(ReuseReason::PinnedState));
        let words: Vec<_> =
            runtime.find_calls(&CallQuery::default()).unwrap().iter().map(|call| call["reuse"].clone()).collect();
        let expected = ["no_program", "reused", "not_reusable", "off", "no_program", "pinned_state"];
        assert_eq!(words, expected.map(Value::from));
        for reason in ReuseReason::ALL {
            assert_eq!(ReuseReason::from_name(reason.as_str()), Some(reason));
        }
    });
}

#[test]
fn calls_are_found_by_what_is_known_of_them() {
    on_both(|runtime, _| {
        let calc = agent(runtime, "calculator");
        add(&calc, 2, 3);
        call(&calc, "fail", &[]);
        let options = Options { namespace: Some("other".into()), ..Options::default() };
        add(&runtime.agent("abacus", options).unwrap(), 4, 5);
        let methods = |query: CallQuery| -> Vec<String> {
            let calls = runtime.find_calls(&query).unwrap();
            calls.iter().map(|call| call["method"].as_str().unwrap().to_owned()).collect()
        };
        let text = |text: &str| Some(text.to_owned());
        let everything = CallQuery::default;
        assert_eq!(methods(CallQuery { status: text("error"), ..everything() }), ["fail"]);
        assert_eq!(methods(CallQuery { status: text("ok"), ..everything() }), ["add", "add"]);
        assert_eq!(methods(CallQuery { namespace: text("other"), ..everything() }), ["add"]);
        assert_eq!(methods(CallQuery { namespace: text("default"), ..everything() }), ["add", "fail"]);
        assert_eq!(methods(CallQuery { role: text("abacus"), ..everything() }), ["add"]);
        assert_eq!(methods(CallQuery { limit: 1, ..everything() }), ["add"]);
        assert_eq!(methods(CallQuery { since: Some(since("1h").unwrap()), ..everything() }).len(), 3);
        let later = SystemTime::now() + Duration::from_secs(60);
        assert!(methods(CallQuery { since: Some(later), ..everything() }).is_empty());
        assert!(methods(CallQuery { agent_name: text("nobody"), ..everything() }).is_empty());
    });
    for time in ["2026-11-22T05:00:00Z", "2026-11-22T05:00:00+02:00", "2026-11-22", "2026-11-22T05:00", "90s", "7d"] {
        assert!(since(time).is_ok(), "{time}");
    }
    for time in ["", "yesterday", "5", "99999999999999999w", "-1h"] {
        assert!(since(time).unwrap_err().contains("is no time"), "{time}");
    }
}

#[test]
fn named_agents_are_found_by_name_and_new_calls_by_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (runtime, _) = runtime(Some(&path));
    let tally = runtime.agent("counter", Options { name: Some("tally".into()), ..Options::default() }).unwrap();
    add(&agent(&runtime, "calculator"), 2, 3);
    call(&tally, "count", &[]);
    let query = CallQuery { agent_name: Some("tally".into()), ..CallQuery::default() };
    let calls = runtime.find_calls(&query).unwrap();
    assert_eq!(calls.len(), 1);
    assert_eq!((&calls[0]["agent"], &calls[0]["namespace"]), (&"tally".into(), &"default".into()));
    let store = SqliteStore::open(&path).unwrap();
    let places = |after: i64| -> Vec<i64> {
        let query = CallQuery { after: Some(after), ..CallQuery::default() };
        store.calls(&query).unwrap().iter().map(|call| call.gseq).collect()
    };
    assert_eq!((places(0), places(1), places(2)), (vec![1, 2], vec![2], vec![]));
}

#[test]
fn a_tree_of_calls_is_whole() {
    on_both(|runtime, _| {
        let outcome = call(&agent(runtime, "boss"), "outer", &[]);
        let tree = runtime.call_tree(outcome.metadata.as_ref().unwrap().call_id).unwrap().unwrap();
        assert_eq!((tree.text("method"), tree.count()), ("outer", 2));
        assert_eq!((tree.children[0].text("role"), tree.children[0].text("method")), ("inner", "add"));
        assert!(runtime.call_tree(cadenza_core::ids::CallId(7)).unwrap().is_none());
    });
}

#[test]
fn a_role_is_ejected_as_files_that_say_what_is_known() {
    on_both(|runtime, _| {
        let folder = tempfile::tempdir().unwrap();
        let guide = agent(runtime, "guide");
        (1..4).for_each(|number| drop(add(&guide, number, 2)));
        call(&guide, "to_miles", &[5.into(), "km".into()]);
        call(&guide, "outer", &[]);
        call(&guide, "count", &[]);
        let written = runtime.eject("guide", None, folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(written.iter().all(|path| path.is_file()));
        let program = read("programs/guide_add.lua");
        let listed = runtime.find_program("guide.add").unwrap();
        assert!(program.starts_with("-- guide.add(args[1]: int, args[2]: int) -> int\n--\n"), "{program}");
        assert!(program.contains("Recorded calls: 3, 0 of them failed; 3 became tests."), "{program}");
        assert!(program.contains(&listed.checksum().to_hex()) && program.ends_with(&format!("\n{ADD}\n")), "{program}");
        let miles = read("programs/guide_to_miles.lua");
        assert!(miles.contains("-- args[2] is bound to \"km\"."), "{miles}");
        let outer = read("programs/guide_outer.lua");
        assert!(outer.contains("1 asked tools, other agents or earlier results"), "{outer}");
        assert!(!folder.path().join("scenarios/guide_outer.yaml").exists());
        let scenario = read("scenarios/guide_add.yaml");
        assert!(scenario.contains("args: [3,2], kwargs: {}, expect_outcome: { status: ok, value: 5 }"), "{scenario}");
        let stub = read("guide.pyi");
        for line in [
            "class Guide(Agent):",
            "    def add(self, arg1: int, arg2: int, /) -> Outcome[int]: ...",
            "    def to_miles(self, arg1: int, arg2: str, /) -> Outcome[float]: ...",
            "    def count(self, /) -> Outcome[int]: ...",
        ] {
            assert!(stub.contains(line), "{line} is not in:\n{stub}");
        }
        let index = read("programs/programs.yaml");
        assert!(index.contains("- id: guide_add\n"), "{index}");
        let error = runtime.eject("guide", Some("subtract"), folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("no program \"guide.subtract\""), "{error}");
        std::fs::write(folder.path().join("file"), "").unwrap();
        let error = runtime.eject("guide", None, &folder.path().join("file")).unwrap_err().to_string();
        assert!(error.contains("file") && error.contains("irectory"), "{error}");
    });
}

#[test]
fn names_stay_inside_of_files_and_comments() {
    let (runtime, _) = runtime(None);
    let folder = tempfile::tempdir().unwrap();
    let odd = agent(&runtime, "../od'd \"role\"");
    let kwargs = Map::from([("a\nb".to_owned(), Value::from("x\n]]")), ("class".to_owned(), 1.into())]);
    odd.call("../../etc/passwd", vec![Value::from("\"\\\u{202e}")], kwargs).unwrap();
    let written = runtime.eject("../od'd \"role\"", None, folder.path()).unwrap();
    let inside = |path: &std::path::PathBuf| {
        let path = path.strip_prefix(folder.path()).unwrap();
        path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
    };
    assert!(written.iter().all(inside), "{written:?}");
    let program = written.iter().find(|path| path.extension().is_some_and(|extension| extension == "lua")).unwrap();
    let text = std::fs::read_to_string(program).unwrap();
    assert!(text.lines().all(|line| line.starts_with("--") || line == "return nil"), "{text}");
    assert_eq!(all(&runtime).len(), 1);
    assert_eq!(
        odd.call("../../etc/passwd", vec!["y".into()], Map::new()).unwrap().metadata.unwrap().source,
        ProgramSource::Generated
    );
}

#[test]
fn what_people_put_aside_stays_aside_when_a_model_writes_it_again() {
    on_both(|runtime, asked| {
        let calc = agent(runtime, "calculator");
        call(&calc, "add", &[2.into(), 3.into()]);
        let program = runtime.find_program("calculator.add").unwrap();
        assert!(runtime.set_program_state(program.id, ProgramState::Quarantined).unwrap());
        for times in 2..4 {
            let outcome = call(&calc, "add", &[2.into(), 3.into()]);
            assert_eq!((outcome.value(), why(&outcome)), (&5.into(), Some(ReuseReason::Quarantined)));
            assert_eq!(asked.load(Ordering::SeqCst), times, "the model wrote the same text, and it is not reused");
        }
    });
}
