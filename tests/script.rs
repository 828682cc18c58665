//! Users' own scripts and interactive sessions, in both languages (product.md section 5).

use std::path::Path;
use std::sync::{Arc, Mutex};

use cadenza_core::cancel::CancelToken;
use cadenza_core::program::Language;
use cadenza_core::provider::ModelSpec;
use cadenza_core::provider::library::Library;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::Options;
use cadenza_script::{Console, Evaluated, ScriptError, Session, run_file, runtime_name};

fn runtime(language: Language) -> Runtime {
    let options = Options { model: Some(ModelSpec::Provider(Library::embedded())), ..Options::default() };
    Runtime::builder().name(runtime_name(language)).options(options).build().unwrap()
}

/// Files of one folder; the first is the script. What it printed, and how it ended.
fn run(files: &[(&str, &str)], args: &[&str]) -> (Vec<String>, Result<(), ScriptError>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text.replace("FOLDER", &folder.path().display().to_string())).unwrap();
    }
    let path = folder.path().join(files[0].0);
    let language = cadenza_script::language_of(&path).unwrap();
    let printed = Arc::new(Mutex::new(Vec::new()));
    let sink = printed.clone();
    let console = Console::new(move |line| sink.lock().unwrap().push(line.to_owned()), CancelToken::default());
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let ran = run_file(&path, &args, runtime(language), &console);
    let printed = printed.lock().unwrap().clone();
    (printed, ran)
}

fn check(files: &[(&str, &str)], args: &[&str], expected: &[&str]) {
    let (printed, ran) = run(files, args);
    assert_eq!((printed.iter().map(String::as_str).collect::<Vec<_>>(), ran), (expected.to_vec(), Ok(())));
}

/// The message of a script that fails.
fn failure(files: &[(&str, &str)]) -> String {
    match run(files, &[]).1 {
        Err(ScriptError::Failed { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ac_1_to_7_the_whole_surface_in_lua() {
    let script = r#"
        local calc = Agent.for_role("calculator")
        calc.memory = 5
        print(calc:add(3).value, calc.memory, calc.role)
        print(rawequal(calc:remember{ mode = "scientific" }, calc), calc.runtime_context["mode"])
        calc.runtime_context.extra = { 1, 2 }
        print(calc:responds_to("memory="), calc:responds_to("memory"), calc:responds_to("integrate"))
        local tutor = calc:delegate("calculator", { purpose = "explain" })
        print(tutor:call("add", 2, 3).value, tutor.role, json.encode(calc.runtime_context))
        local failed = calc:divide(1, 0)
        print(failed.ok, failed.error_type, failed:value_or("none"), pcall(failed.unwrap, failed))
        print(Agent["for"]("counter"):call("increment").ok, json.encode(array{}), json.encode({ n = null }))
    "#;
    let (printed, ran) = run(&[("a.lua", script)], &[]);
    assert_eq!(ran, Ok(()));
    assert_eq!(printed[0], "8\t8\tcalculator");
    assert_eq!(printed[1], "true\tscientific");
    assert_eq!(printed[2], "true\ttrue\tfalse");
    assert_eq!(printed[3], "5\tcalculator\t{\"extra\":[1,2],\"memory\":8,\"mode\":\"scientific\"}");
    assert!(printed[4].starts_with("false\tdivision_by_zero\tnone\tfalse\t"), "{}", printed[4]);
    assert!(printed[5].ends_with("\t[]\t{\"n\":null}"), "{}", printed[5]);
}

#[test]
fn ac_1_to_7_the_whole_surface_in_rhai() {
    let script = r#"
        let calc = Agent::for_role("calculator");
        calc.memory = 5;
        print(`${calc.add(3).value} ${calc.memory} ${calc.role}`);
        print(`${calc.remember(#{ mode: "scientific" }) == calc} ${calc.runtime_context["mode"]}`);
        calc.runtime_context.extra = [1, 2];
        print(`${calc.responds_to("memory=")} ${calc.responds_to("memory")} ${calc.responds_to("integrate")}`);
        let tutor = calc.delegate("calculator", #{ purpose: "explain" });
        print(`${tutor.call("add", [2, 3], #{}).value} ${tutor.role} ${json::encode(calc.runtime_context)}`);
        let failed = calc.divide(1, 0);
        print(`${failed.ok} ${failed.error_type} ${failed.value_or("none")}`);
        let double = |x| x * 2;
        print(double.call(4));
    "#;
    let expected = [
        "8 8 calculator",
        "true scientific",
        "true true false",
        "5 calculator {\"extra\":[1,2],\"memory\":8,\"mode\":\"scientific\"}",
        "false division_by_zero none",
        "8",
    ];
    check(&[("a.rhai", script)], &[], &expected);
}

#[test]
fn arguments_files_and_modules_in_lua() {
    let script = r#"
        local helper, pack = require("helper"), require("./pack")
        print(arg[0]:match("[^/]+$"), arg[1], #args, ...)
        fs.write("FOLDER/out/a.txt", "one\ntwo\n")
        fs.append("FOLDER/out/a.txt", "three")
        print(table.concat(fs.lines("FOLDER/out/a.txt"), ","), #fs.read("FOLDER/out/a.txt"), fs.exists("FOLDER/nope"))
        print(table.concat(fs.list("FOLDER/out"), ","), helper.twice(4), pack, require("helper") == helper)
    "#;
    let files = [
        ("a.lua", script),
        ("helper.lua", "print('loaded once') return { twice = function(x) return x * 2 end }"),
        ("pack/init.luau", "local n: number = 7 return n"),
    ];
    check(&files, &["x", "y"], &["loaded once", "a.lua\tx\t2\tx\ty", "one,two,three\t13\tfalse", "a.txt\t8\t7\ttrue"]);
}

#[test]
fn arguments_files_and_modules_in_rhai() {
    let script = r#"
        import "helper" as helper;
        import "./helper" as again;
        print(args.len() + " " + args[1]);
        fs::write("FOLDER/out/a.txt", "one\ntwo\n");
        fs::append("FOLDER/out/a.txt", "three");
        print(`${fs::lines("FOLDER/out/a.txt")} ${fs::read("FOLDER/out/a.txt").len} ${fs::exists("FOLDER/nope")}`);
        print(`${fs::list("FOLDER/out")} ${helper::sum_of(Agent::for_role("calculator"))} ${again::SEVEN}`);
    "#;
    let helper = r#"
        print("loaded once");
        export const SEVEN = 7;
        fn sum_of(calc) { calc.call("add", [3, 4]).value }
    "#;
    let expected = ["loaded once", "2 y", r#"["one", "two", "three"] 13 false"#, r#"["a.txt"] 7 7"#];
    check(&[("a.rhai", script), ("helper.rhai", helper)], &["x", "y"], &expected);
}

#[test]
fn uncaught_errors_name_file_and_line() {
    for (name, text, expected) in [
        ("a.lua", "local function f()\n  error('boom')\nend\nf()", "a.lua:2: boom"),
        ("a.lua", "local x =\n", "a.lua:2: Expected identifier"),
        ("a.lua", "\nAgent.for_role('x', { max_cals = 1 })", "a.lua:2: unknown option \"max_cals\"; did you mean"),
        ("a.lua", "\n\nfs.read('/nonexistent')", "a.lua:3: fs.read: /nonexistent: "),
        ("a.lua", "require('../x')", "a.lua:1: module \"../x\" is refused"),
        ("a.lua", "require('a')", "a.lua:1: module \"a\" requires itself in a circle"),
        ("a.lua", "\nerror({ b = { 1 }, a = 'x' })", "a.lua:2: {\"a\":\"x\",\"b\":[1]}"),
        ("a.lua", "pcall(error, { a = 1 })\nerror('text')", "a.lua:2: text"),
        ("a.lua", "local function f() error('there', 2) end\nf()", "a.lua:2: there"),
        (
            "a.lua",
            "\nAgent.for_role('x', { model = print })",
            "a.lua:2: option \"model\": a script's function cannot be a",
        ),
        (
            "a.lua",
            "Agent.for_role('x', { log = print })",
            "a.lua:1: option \"log\": a script's function cannot take log",
        ),
        ("a.rhai", "Agent::for_role(\"x\", #{ model: |x| x });", "a.rhai:1:8: option \"model\": a script's function"),
        ("a.rhai", "Agent::for_role(\"x\", #{ log: |x| x });", "option \"log\": a script's function cannot take log"),
        ("a.rhai", "fn f() {\n  throw \"boom\";\n}\nf();", "a.rhai:2:3: boom"),
        ("a.rhai", "let x = ;", "a.rhai:1:9: "),
        (
            "a.rhai",
            "\nAgent::for_role(\"x\", #{ max_cals: 1 });",
            "a.rhai:2:8: unknown option \"max_cals\"; did you mean",
        ),
        ("a.rhai", "\n\nfs::read(\"/nonexistent\");", "a.rhai:3:5: fs.read: /nonexistent: "),
        ("a.rhai", "import \"../x\" as x;", "module \"../x\" is refused"),
        ("a.rhai", "import \"a\" as a;", "imports itself in a circle"),
    ] {
        let message = failure(&[(name, text)]);
        assert!(message.contains(expected), "{text:?}: {message}");
    }
}

/// A script whose agents' programs are these.
fn with_programs(program: &str, script: &str) -> (Vec<String>, Result<(), ScriptError>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.lua");
    std::fs::write(&path, script).unwrap();
    let printed = Arc::new(Mutex::new(Vec::new()));
    let sink = printed.clone();
    let console = Console::new(move |line| sink.lock().unwrap().push(line.to_owned()), CancelToken::default());
    let model = ModelSpec::Provider(Arc::new(cadenza_core::provider::Scripted::program(program)));
    let options = Options { model: Some(model), ..Options::default() };
    let runtime = Runtime::builder().name("cadenza-lua").options(options).build().unwrap();
    let ran = run_file(&path, &[], runtime, &console);
    let printed = printed.lock().unwrap().clone();
    (printed, ran)
}

#[test]
fn functions_of_a_lua_script_are_tools_of_its_agents() {
    let program = "return { tools.double{ n = args[1] }, tools.names{}[2], pcall(tools.fail, {}) }";
    let script = r#"
        local calls = 0
        local helper = Agent.for_role("helper")
        local agent = Agent.for_role("worker", { max_calls = 9, tools = {
            double = {
                description = "twice the number",
                parameters = { type = "object", properties = { n = { type = "number" } }, required = { "n" } },
                call = function(args)
                    calls += 1
                    -- Back into the host from inside a call that the host makes.
                    helper.seen = args.n
                    return args.n * 2
                end,
            },
            names = function() return { "a", "b" } end,
            fail = function() error("no luck") end,
        } })
        local outcome = agent:work(21)
        print(outcome.ok, json.encode(outcome.value), calls, helper.seen)
        print(agent:delegate("inherits"):work(4).value[1])
        print(select(2, pcall(Agent.for_role, "x", { tools = { 1 } })))
        print(select(2, pcall(Agent.for_role, "x", { tools = { ["a b"] = print } })))
    "#;
    let (printed, ran) = with_programs(program, script);
    assert_eq!(ran, Ok(()), "{printed:?}");
    assert!(printed[0].starts_with("true\t[42,\"b\",false,\"tool fail: "), "{}", printed[0]);
    assert!(printed[0].contains("a.lua:16: no luck") && printed[0].ends_with("\t1\t21"), "{}", printed[0]);
    assert_eq!(printed[1], "8");
    assert!(printed[2].contains("tools are named functions"), "{}", printed[2]);
    assert!(printed[3].contains("tool name \"a b\" is refused"), "{}", printed[3]);
}

#[test]
fn a_rhai_script_is_told_that_its_functions_are_no_tools() {
    let message = failure(&[("a.rhai", "Agent::for_role(\"x\", #{ tools: #{ f: |x| x } });")]);
    let expected = "a.rhai:1:8: option \"tools\": functions of a Rhai script cannot be tools; those of Lua scripts";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn a_tool_of_a_lua_script_ends_with_the_call() {
    let script = r#"
        local spin = function() while true do pcall(function() while true do end end) end end
        local agent = Agent.for_role("x", { call_timeout_seconds = 1, tools = { spin = spin } })
        local outcome = agent:work()
        print(outcome.ok, outcome.error_message)
        -- What the script does itself is not bounded.
        local total = 0
        for i = 1, 100000 do total += i end
        print(total)
    "#;
    let started = std::time::Instant::now();
    let (printed, ran) = with_programs("return tools.spin{}", script);
    assert_eq!(ran, Ok(()), "{printed:?}");
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "{printed:?}");
    assert!(printed[0].starts_with("false\t"), "{printed:?}");
    assert_eq!(printed[1], "5000050000");
}

#[test]
fn a_tool_of_a_lua_script_that_calls_its_own_agent_is_refused_at_once() {
    let script = r#"
        local agent, other
        other = Agent.for_role("other")
        agent = Agent.for_role("x", { execution_repairs = 0, tools = {
            again = function() agent.seen = 1; return agent:work().value end,
        } })
        local outcome = agent:work()
        print(outcome.ok, outcome.error_message)
        print(agent.seen)
    "#;
    let started = std::time::Instant::now();
    let (printed, ran) = with_programs("return tools.again{}", script);
    assert_eq!(ran, Ok(()), "{printed:?}");
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "{printed:?}");
    assert!(printed[0].contains("the agent \"x\" is busy with the call that this tool works for"), "{printed:?}");
}

#[test]
fn scripts_may_pass_nan_and_infinities_in() {
    let lua = r#"
        local agent = Agent.for_role("calculator")
        agent.limit = 1 / 0
        print(agent.limit, agent:add(1 / 0, 1).ok, pcall(json.encode, 0 / 0))
    "#;
    let (printed, ran) = run(&[("a.lua", lua)], &[]);
    assert_eq!(ran, Ok(()), "{printed:?}");
    assert!(printed[0].starts_with("inf\tfalse\tfalse\t"), "{printed:?}");
    let rhai = r#"
        let agent = Agent::for_role("calculator");
        let endless = 1.0 / 0.0;
        agent.limit = endless;
        print(`${agent.limit} ${agent.add(endless, 1).ok}`);
    "#;
    check(&[("a.rhai", rhai)], &[], &["inf false"]);
}

#[test]
fn a_script_finds_what_lies_beside_it() {
    let (data, expected) = (("sub/data.txt", "hello"), ["hello"]);
    check(&[("a.lua", "print(fs.read(fs.beside('sub/data.txt')))"), data], &[], &expected);
    check(&[("a.rhai", "print(fs::read(fs::beside(\"sub/data.txt\")));"), data], &[], &expected);
}

#[test]
fn the_examples_work_from_any_folder_and_take_words() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("examples").is_dir());
    let examples = folder.unwrap().join("examples");
    for name in ["csv_explorer.lua", "csv_explorer.rhai"] {
        let text = std::fs::read_to_string(examples.join(name)).unwrap();
        let csv = std::fs::read_to_string(examples.join("data/sales.csv")).unwrap();
        let (printed, ran) = run(&[(name, &text), ("data/sales.csv", &csv)], &[]);
        assert_eq!(ran, Ok(()), "{name}: {printed:?}");
    }
    for name in ["debate.lua", "debate.rhai"] {
        let text = std::fs::read_to_string(examples.join(name)).unwrap();
        let (printed, ran) = run(&[(name, &text)], &["cats", "or", "dogs"]);
        assert_eq!((printed[0].as_str(), ran), ("Topic: cats or dogs", Ok(())), "{name}");
    }
}

#[test]
fn a_scripts_own_limits_are_the_machines() {
    // More than a generated program may do: 20 million loop turns, 10 MB of text, deep recursion.
    let lua = r#"
        local n = 0
        for i = 1, 20000000 do n += 1 end
        local function deep(k) if k == 0 then return 0 end return 1 + deep(k - 1) end
        print(n, #string.rep("x", 10000000), deep(10000))
    "#;
    check(&[("a.lua", lua)], &[], &["20000000\t10000000\t10000"]);
    let rhai = r#"
        fn deep(k) { if k == 0 { 0 } else { 1 + deep(k - 1) } }
        let rows = [];
        for i in 0..200000 { rows.push([i]); }
        print(`${deep(200)} ${rows.len()}`);
    "#;
    check(&[("a.rhai", rhai)], &[], &["200 200000"]);
}

#[test]
fn kc_e5_a_cancelled_script_is_interrupted() {
    for (name, text) in [("a.lua", "print(Agent.for_role('calculator'):add(1, 2).value)"), ("a.rhai", "loop { }")] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let cancel = CancelToken::default();
        cancel.cancel();
        let console = Console::new(|_| {}, cancel);
        let language = cadenza_script::language_of(&path).unwrap();
        assert_eq!(run_file(&path, &[], runtime(language), &console), Err(ScriptError::Interrupted), "{name}");
    }
}

#[test]
fn unreadable_scripts_are_refused_before_anything_runs() {
    let console = Console::new(|_| {}, CancelToken::default());
    let run = |path: &str| run_file(Path::new(path), &[], runtime(Language::Lua), &console).unwrap_err();
    assert!(matches!(run("/nonexistent/a.lua"), ScriptError::Unreadable { .. }));
    assert!(matches!(run("/nonexistent/a.py"), ScriptError::UnknownLanguage { .. }));
}

/// Inputs of one session; `None` is a value that does not show, `Err` starts with the given words.
fn session(language: Language, inputs: &[(&str, Result<Option<&str>, &str>)]) {
    let console = Console::new(|_| {}, CancelToken::default());
    let mut session = Session::new(language, runtime(language), &console).unwrap();
    for (input, expected) in inputs {
        let evaluated = session.eval(input, CancelToken::default());
        match (evaluated, expected) {
            (Ok(Evaluated::Value(shown)), Ok(expected)) => assert_eq!(shown.as_deref(), *expected, "{input}"),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{input}: {error}"),
            (evaluated, _) => panic!("{input}: {evaluated:?}"),
        }
    }
}

#[test]
fn a_lua_session_keeps_its_variables_and_shows_values() {
    session(
        Language::Lua,
        &[
            ("local x = 5", Ok(None)),
            ("x + 1", Ok(Some("6"))),
            ("local function f(a)\n  return a * x\nend", Ok(None)),
            ("f(2), 'text', { a = 1 }", Ok(Some("10\t\"text\"\t{\"a\":1}"))),
            ("calc = Agent.for_role('calculator')", Ok(None)),
            ("calc:add(2, 3)", Ok(Some("Outcome(ok, 5)"))),
            ("calc", Ok(Some("Agent(calculator)"))),
            ("error('no')", Err("input:1: no")),
            ("nil", Ok(None)),
            ("x", Ok(Some("5"))),
        ],
    );
}

#[test]
fn a_rhai_session_keeps_its_variables_and_shows_values() {
    session(
        Language::Rhai,
        &[
            ("let x = 5;", Ok(None)),
            ("x + 1", Ok(Some("6"))),
            ("fn f(a) {\n  a * 2\n}", Ok(None)),
            ("f(x)", Ok(Some("10"))),
            ("#{ a: 1, b: \"t\" }", Ok(Some("{\"a\":1,\"b\":\"t\"}"))),
            ("let calc = Agent::for_role(\"calculator\");", Ok(None)),
            ("fn sum(c) { c.call(\"add\", [2, 3]).value }", Ok(None)),
            ("sum(calc)", Ok(Some("5"))),
            ("let g = |q| q + x;", Ok(None)),
            ("g.call(1)", Ok(Some("6"))),
            ("throw \"no\"", Err("input:1:1: no")),
            ("x", Ok(Some("5"))),
        ],
    );
}

#[test]
fn inputs_that_end_too_early_ask_for_more() {
    for (language, input, incomplete) in [
        (Language::Lua, "function f()", true),
        (Language::Lua, "if true then\n  x = 1", true),
        (Language::Lua, "x = {", true),
        (Language::Lua, "x = [[ab", true),
        (Language::Lua, "x = = 1", false),
        (Language::Lua, "x = 1 +", true),
        (Language::Lua, "1 +", true),
        (Language::Lua, "y ..", true),
        (Language::Lua, "local z = not", true),
        (Language::Rhai, "fn f() {", true),
        (Language::Rhai, "if true {\n  let x = 1;", true),
        (Language::Rhai, "let x = #{", true),
        (Language::Rhai, "let x = [1,", true),
        (Language::Rhai, "f(1,", true),
        (Language::Rhai, "let x =", true),
        (Language::Rhai, "let x = `ab", true),
        (Language::Rhai, "let x = = 1;", false),
    ] {
        let console = Console::new(|_| {}, CancelToken::default());
        let mut session = Session::new(language, runtime(language), &console).unwrap();
        let evaluated = session.eval(input, CancelToken::default());
        assert_eq!(matches!(evaluated, Ok(Evaluated::Incomplete)), incomplete, "{language} {input:?}: {evaluated:?}");
    }
}

#[test]
fn kc_e5_an_interrupted_input_is_one_error_and_the_session_goes_on() {
    for (language, endless) in [(Language::Lua, "while true do end"), (Language::Rhai, "loop { }")] {
        let console = Console::new(|_| {}, CancelToken::default());
        let mut session = Session::new(language, runtime(language), &console).unwrap();
        let cancel = CancelToken::default();
        let canceller = cancel.clone();
        let waiting = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            canceller.cancel();
        });
        assert_eq!(session.eval(endless, cancel), Err(ScriptError::Interrupted), "{language}");
        waiting.join().unwrap();
        assert_eq!(session.eval("1 + 1", CancelToken::default()), Ok(Evaluated::Value(Some("2".into()))), "{language}");
    }
}

#[test]
fn a_long_lua_script_lets_go_of_agents_that_it_cannot_reach() {
    let script = r#"
        local kept = Agent.for_role("kept")
        kept.number = 7
        local context = Agent.for_role("only its context").runtime_context
        context.number = 8
        local before
        for round = 1, 20000 do
            local agent = Agent.for_role("one of many", { tools = { noop = function() return round end } })
            agent.text = string.rep("x", 4096)
            if round == 2000 then
                before = tonumber(fs.read("/proc/self/statm"):split(" ")[2])
            end
        end
        local after = if before then tonumber(fs.read("/proc/self/statm"):split(" ")[2]) else 0
        print(kept.number, context.number, after - (before or 0) < 8000)
    "#;
    if !cfg!(target_os = "linux") {
        return;
    }
    check(&[("a.lua", &script.replace(":split(\" \")[2]", ":match(\"%d+ (%d+)\")"))], &[], &["7\t8\ttrue"]);
}
