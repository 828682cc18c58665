//! The command `cadenza` on real files, as a person runs it: what it prints and the exit code (product.md section 7, X11).

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A folder of its own, with nothing configured around it.
struct World(tempfile::TempDir);

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl World {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> &Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cadenza"));
        command.args(arguments).current_dir(self.0.path()).env_clear().stdin(Stdio::null());
        let folders =
            [("HOME", ""), ("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config"), ("XDG_DATA_HOME", "data")];
        for (name, folder) in folders {
            command.env(name, self.path(folder));
        }
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        finished(self.command(arguments))
    }

    fn piped(&self, arguments: &[&str], input: &str) -> Ran {
        let mut command = self.command(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        ran(child.wait_with_output().unwrap())
    }
}

fn finished(mut command: Command) -> Ran {
    ran(command.output().unwrap())
}

fn ran(output: std::process::Output) -> Ran {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// Checks the exit code and what the output must contain; on standard output for 0, else on standard error.
fn check(ran: &Ran, code: i32, parts: &[&str]) {
    let text = if code == 0 { &ran.out } else { &ran.err };
    assert_eq!(ran.code, Some(code), "out: {}\nerr: {}", ran.out, ran.err);
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

fn checkout(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    path.canonicalize().unwrap().display().to_string()
}

#[test]
fn run_gives_a_script_its_arguments_and_prints_what_it_prints() {
    let world = World::new();
    world.write("a.lua", "print(arg[0], #arg, ..., Agent.for_role('calculator'):add(2, 3).value)");
    world.write("a.rhai", "print(args); print(Agent::for_role(\"calculator\").add(2, 3).value);");
    let ran = world.run(&["run", "a.lua", "x", "--flag"]);
    check(&ran, 0, &[]);
    assert_eq!(ran.out, "a.lua\t2\tx\t5\n");
    let ran = world.run(&["run", "a.rhai", "x", "--flag"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "[\"x\", \"--flag\"]\n5\n"), "{}", ran.err);
}

#[test]
fn x11_run_tells_failed_scripts_from_scripts_that_are_not_there() {
    let world = World::new();
    world.write("boom.lua", "local x = 1\nerror('boom')").write("syntax.rhai", "let x = ;");
    check(&world.run(&["run", "boom.lua"]), 1, &["boom.lua:2: boom"]);
    check(&world.run(&["run", "syntax.rhai"]), 1, &["syntax.rhai:1:9: "]);
    check(&world.run(&["run", "missing.lua"]), 4, &["missing.lua: No such file"]);
    check(&world.run(&["run", "a.py"]), 4, &["a.py: a script's name ends in .lua, .luau or .rhai"]);
    check(&world.run(&["run"]), 4, &["<FILE>"]);
}

#[test]
fn call_reads_json_where_it_parses_and_prints_the_value_alone() {
    let world = World::new();
    for (arguments, out) in [
        (vec!["call", "calculator", "add", "2", "3"], "5\n"),
        (vec!["call", "calculator", "add", "-2", "0.5"], "-1.5\n"),
        (vec!["call", "calculator", "add", "3", "--set", "memory=5"], "8\n"),
        (vec!["call", "calculator", "round", "3.14159", "--kw", "digits=2"], "3.14\n"),
        (vec!["call", "calculator", "sum", "[1, 2, 3]", "--language", "rhai"], "6\n"),
        (vec!["call", "text", "upper", "abc"], "ABC\n"),
    ] {
        let ran = world.run(&arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), out), "{arguments:?}: {}", ran.err);
    }
    let ran = world.run(&["call", "calculator", "add", "2", "3", "--json", "--store", ":memory:"]);
    let envelope: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&envelope["status"], &envelope["value"]), (&"ok".into(), &5.into()));
    assert_eq!(envelope["metadata"]["source"], "library");
}

#[test]
fn verbose_shows_programs_as_they_are_written_and_kept_ones_not() {
    let world = World::new();
    world.write("add.lua", "print(Agent.for_role('calculator'):add(2, 3).value)");
    for arguments in [&["call", "calculator", "add", "2", "3"][..], &["run", "add.lua"]] {
        let store = format!("{}.db", arguments[0]);
        let once = |flag: &str| world.run(&[arguments, &[flag, "--store", &store]].concat());
        let ran = once("--verbose");
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), "5\n"), "{}", ran.err);
        assert!(ran.err.contains("-- calculator.add (attempt 1)\n") && ran.err.contains("return "), "{}", ran.err);
        let again = once("-v");
        assert_eq!((again.out.as_str(), again.err.contains("attempt")), ("5\n", false), "{}", again.err);
    }
    let quiet = world.run(&["call", "calculator", "add", "2", "3", "--store", ":memory:"]);
    assert!(!quiet.err.contains("attempt"), "{}", quiet.err);
}

#[test]
fn x11_call_says_by_its_exit_code_how_it_ended() {
    let world = World::new();
    check(&world.run(&["call", "calculator", "divide", "1", "0"]), 1, &["error: division_by_zero: "]);
    check(&world.run(&["call", "calculator", "divide", "1", "0", "--json"]), 1, &[]);
    check(&world.run(&["call", "calculator"]), 4, &["<METHOD>"]);
    check(
        &world.run(&["call", "calculator", "add", "--kw", "nothing"]),
        4,
        &["--kw takes NAME=VALUE, got \"nothing\""],
    );
    check(&world.run(&["call", "calculator", "_private"]), 4, &["names that begin with `_` are never dynamic"]);
    check(&world.run(&["call", "", "add"]), 4, &["a role is 1 to 1024 bytes"]);
    let schema = ["call", "calculator", "add", "1", "-o", "deliverable={\"type\": 7}"];
    check(&world.run(&schema), 5, &["--option deliverable: option \"deliverable\""]);
    // Nobody listens on port 1.
    let refused = ["call", "x", "y", "--model", "openai-compatible:m", "--base-url", "http://127.0.0.1:1/v1"];
    let ran = world.run(&refused);
    assert!(matches!(ran.code, Some(1 | 3)), "{:?} {}", ran.code, ran.err);
    assert!(ran.err.contains("error: provider: "), "{}", ran.err);
}

#[test]
fn unknown_commands_and_options_come_with_suggestions() {
    let world = World::new();
    check(&world.run(&["confrom"]), 4, &["unrecognized subcommand 'confrom'", "'conform'"]);
    check(&world.run(&["call", "a", "b", "--modle", "x"]), 4, &["'--modle'", "'--model'"]);
    let unknown = "--option max_cals: unknown option \"max_cals\"; did you mean \"max_calls\"?";
    check(&world.run(&["call", "a", "b", "-o", "max_cals=1"]), 4, &[unknown]);
    check(&world.run(&["call", "a", "b", "-o", "max_calls=0"]), 4, &["expected a whole number from 1"]);
    check(
        &world.run(&["call", "a", "b", "--language", "ruby"]),
        4,
        &["--language: option \"language\": expected \"lua\""],
    );
    check(&world.run(&["call", "a", "b", "--model", "opnai:x"]), 4, &["--model: ", "`openai`"]);
    check(&world.run(&[]), 4, &["Usage: cadenza"]);
    for later in ["policy", "eject"] {
        check(&world.run(&[later]), 4, &["unrecognized subcommand"]);
    }
    check(
        &world.run(&["--help"]),
        0,
        &["run", "call", "repl", "conform", "calls", "show", "tail", "programs", "eval", "config"],
    );
    check(&world.run(&["--version"]), 0, &[env!("CARGO_PKG_VERSION")]);
}

#[test]
fn kc_cf2_configuration_comes_from_flag_environment_file_default_in_this_order() {
    let world = World::new();
    world.write("cadenza.toml", "max_calls = 7\nmax_delegation_depth = 3\nnamespace = \"ours\"\n");
    let mut command = world.command(&["config", "--json", "-o", "max_calls=9", "--model", "library"]);
    command.env("CADENZA_MAX_DELEGATION_DEPTH", "4").env("CADENZA_API_KEY", "sk-very-secret");
    let ran = finished(command);
    check(&ran, 0, &[]);
    assert!(!ran.out.contains("sk-very-secret") && !ran.err.contains("sk-very-secret"));
    let config: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(config["file"], "cadenza.toml");
    for (name, value, origin) in [
        ("max_calls", serde_json::json!(9), "--option max_calls"),
        ("max_delegation_depth", 4.into(), "environment CADENZA_MAX_DELEGATION_DEPTH"),
        ("namespace", "ours".into(), "cadenza.toml:3"),
        ("call_timeout_seconds", 300.0.into(), "default"),
        ("api_key", "***".into(), "environment CADENZA_API_KEY"),
        ("model", "library".into(), "--model"),
    ] {
        assert_eq!(
            config["options"][name],
            serde_json::json!({ "value": value, "origin": origin, "used": true }),
            "{name}"
        );
    }
    check(&world.run(&["config"]), 0, &["configuration file: cadenza.toml", "max_calls", "cadenza.toml:1"]);
    // Secrets of single targets and providers are masked like those of all.
    let secret = "7f3a9c1e55aa4400beef";
    let mut command = world.command(&["config"]);
    let of_one = format!(r#"{{"proxy": "http://u:{secret}@h:1", "headers": {{"X-Tok": "{secret}"}}}}"#);
    command.env("CADENZA_PROVIDERS", format!(r#"{{"openai": {of_one}}}"#));
    let target = of_one.replacen('{', r#"{"model": "openai-compatible:m@http://127.0.0.1:1", "#, 1);
    command.env("CADENZA_MODEL", format!("[{target}]"));
    let ran = finished(command);
    check(&ran, 0, &["\"***\""]);
    assert!(!ran.out.contains(secret) && !ran.err.contains(secret), "{}", ran.out);
    // What the file says of one server is not said of another vendor's.
    world.write("cadenza.toml", "model = \"openai-compatible:m\"\nbase_url = \"http://127.0.0.1:1/v1\"\n");
    check(
        &world.run(&["config", "--model", "library"]),
        0,
        &["cadenza.toml:2; not used, because the model or its address is another"],
    );
    let config = world.run(&["config", "--json", "--model", "library"]).out;
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["options"]["base_url"]["used"], false);
    check(&world.run(&["config"]), 0, &["cadenza.toml:2\n"]);
}

/// A proxy of the environment is named when it fails, and its password is in nothing that is told or kept.
#[test]
fn the_systems_proxy_is_named_and_its_password_is_not() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 1 << 16];
            let read = stream.read(&mut bytes).unwrap();
            let head = String::from_utf8_lossy(&bytes[..read]).into_owned();
            let sent = head.lines().find(|line| line.to_lowercase().starts_with("proxy-authorization")).unwrap();
            assert!(sent.ends_with("Basic dXM6cHJAeHktcHctc2VjcmV0"), "{sent}");
            let body = format!("{sent}, pr@xy-pw-secret");
            let status = "HTTP/1.1 407 Proxy Authentication Required";
            write!(stream, "{status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        }
    });
    let world = World::new();
    let alive = format!("us:pr%40xy-pw-secret@{address}");
    for (scheme, proxy, error_type, words) in [
        ("http", alive.as_str(), "provider", "write its user and password into `proxy`"),
        ("https", alive.as_str(), "provider", "write its user and password into `proxy`"),
        ("https", "us:pr%40xy-pw-secret@127.0.0.1:1", "provider", "through the system's proxy http://127.0.0.1:1"),
    ] {
        let url = format!("{scheme}://model.invalid/v1");
        let model = ["--model", "openai-compatible:m", "--base-url", &url, "--log", "log.jsonl"];
        let mut command = world.command(&[&["call", "oracle", "answer"][..], &model].concat());
        command.env(format!("{}_PROXY", scheme.to_uppercase()), format!("http://{proxy}"));
        let ran = finished(command);
        check(&ran, 1, &[error_type, words]);
        let kept = std::fs::read_to_string(world.path("log.jsonl")).unwrap();
        for told in [&ran.out, &ran.err, &kept] {
            assert!(!told.contains("xy-pw-secret") && !told.contains("dXM6cHJAeHktcHctc2VjcmV0"), "{told}");
        }
    }
}

#[test]
fn a_broken_configuration_file_is_refused_with_file_and_line() {
    let world = World::new();
    for (text, expected) in [
        ("debug = true\nmax_calls =\n", "cadenza.toml:2:12: "),
        ("\n\nmax_cals = 3\n", "cadenza.toml:3: unknown option \"max_cals\"; did you mean \"max_calls\"?"),
        ("language = 7\n", "cadenza.toml:1: option \"language\": expected \"lua\" or \"rhai\", got 7"),
    ] {
        world.write("cadenza.toml", text);
        for arguments in [vec!["config"], vec!["call", "calculator", "add", "1"]] {
            check(&world.run(&arguments), 4, &[expected]);
        }
    }
    let mut command = world.command(&["config"]);
    command.env("CADENZA_CONFIG", "/nonexistent/c.toml");
    check(&finished(command), 4, &["configuration file /nonexistent/c.toml: "]);
    std::fs::remove_file(world.path("cadenza.toml")).unwrap();
    world.write("config/cadenza/config.toml", "max_calls = 11\n");
    check(&world.run(&["config"]), 0, &["config/cadenza/config.toml:1"]);
}

#[test]
fn calls_show_tail_and_programs_read_a_log() {
    let world = World::new();
    let script = r#"
        local calc = Agent.for_role("calculator", { log = "calls.jsonl" })
        calc:add(2, 3)
        calc:divide(1, 0)
        calc:add(20, 30)
    "#;
    world.write("a.lua", script);
    check(&world.run(&["run", "a.lua"]), 0, &[]);
    let log = std::fs::read_to_string(world.path("calls.jsonl")).unwrap();
    let entries: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), 3);
    assert!(entries.iter().all(|entry| entry["runtime"] == "cadenza-lua"));

    let ran = world.run(&["calls", "calls.jsonl"]);
    check(
        &ran,
        0,
        &["calculator.add(2, 3)  ok", "calculator.divide(1, 0)  division_by_zero", "library lua", "reused lua"],
    );
    assert!(!ran.out.contains('\u{1b}'), "no colours where there is no terminal");
    let ran = world.run(&["calls", "calls.jsonl", "--failed"]);
    assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    assert_eq!(world.run(&["calls", "calls.jsonl", "--json"]).out.lines().count(), 3);

    let id = entries[1]["call_id"].as_str().unwrap();
    check(
        &world.run(&["show", id, "calls.jsonl"]),
        0,
        &[id, "calculator.divide(1, 0)", "program", "return", "library, ok, "],
    );
    check(&world.run(&["show", "last", "calls.jsonl", "--color", "always"]), 0, &["\u{1b}[35mreturn\u{1b}[0m"]);
    let mut command = world.command(&["show", "last", "calls.jsonl"]);
    command.env("NO_COLOR", "1");
    assert!(!finished(command).out.contains('\u{1b}'));
    check(&world.run(&["show", "zzz", "calls.jsonl"]), 4, &["calls.jsonl: no call \"zzz\""]);

    let ran = world.run(&["tail", "calls.jsonl", "-n", "2"]);
    assert_eq!(ran.out.lines().count(), 2, "{}", ran.out);
    check(&ran, 0, &["calculator.divide(1, 0)", "calculator.add(20, 30)"]);
    check(&world.run(&["programs", "calls.jsonl"]), 0, &["calculator.add", "2 calls, 0 failed", "calculator.divide"]);
    check(&world.run(&["programs", "--library", "--role", "calculator"]), 0, &["calculator.add  rhai by library"]);

    // A line that was cut off while it was written is told and passed over.
    world.write("cut.jsonl", &format!("{}\n{{\"call_id\":", log.lines().next().unwrap()));
    let ran = world.run(&["calls", "cut.jsonl"]);
    check(&ran, 0, &["calculator.add(2, 3)"]);
    assert!(ran.err.contains("cut.jsonl: 1 unreadable line(s), the first is line 2"), "{}", ran.err);
    for command in ["calls", "tail", "programs"] {
        check(&world.run(&[command, "missing.jsonl"]), 4, &["missing.jsonl: No such file"]);
    }
    check(&world.run(&["calls"]), 0, &["calculator.add(2, 3)"]);
    let mut command = world.command(&["calls"]);
    command.env("CADENZA_STORE", ":memory:");
    check(&finished(command), 4, &["state/cadenza/calls.jsonl"]);
}

#[test]
fn the_configured_log_is_the_one_that_is_shown() {
    let world = World::new();
    world.write("cadenza.toml", "log = \"here.jsonl\"\n");
    check(&world.run(&["call", "calculator", "add", "1", "2"]), 0, &["3"]);
    check(&world.run(&["calls"]), 0, &["calculator.add(1, 2)  ok"]);
    let world = World::new();
    check(&world.run(&["call", "calculator", "add", "1", "2", "--log", "true"]), 0, &["3"]);
    check(&world.run(&["tail"]), 0, &["calculator.add(1, 2)  ok"]);
}

#[test]
fn tail_follows_a_log() {
    let world = World::new();
    check(&world.run(&["call", "calculator", "add", "1", "2", "--log", "log.jsonl"]), 0, &["3"]);
    let mut command = world.command(&["tail", "log.jsonl", "-f"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    check(&world.run(&["call", "calculator", "add", "30", "40", "--log", "log.jsonl"]), 0, &["70"]);
    let mut out = child.stdout.take().unwrap();
    let mut text = Vec::new();
    let started = Instant::now();
    while !String::from_utf8_lossy(&text).contains("add(30, 40)") && started.elapsed() < Duration::from_secs(20) {
        let mut bytes = [0; 256];
        let read = out.read(&mut bytes).unwrap();
        text.extend_from_slice(&bytes[..read]);
    }
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(String::from_utf8_lossy(&text).contains("add(30, 40)"));
}

fn interrupt(child: &std::process::Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn kc_e5_ctrl_c_ends_a_waiting_call_and_logs_it() {
    // A server that takes the request and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let connections: Vec<_> = listener
            .incoming()
            .take(2)
            .filter_map(|stream| {
                let mut stream = stream.ok()?;
                let mut bytes = [0; 1024];
                if stream.read(&mut bytes).ok()? > 0 {
                    asked.send(()).ok()?;
                }
                Some(stream)
            })
            .collect();
        std::thread::sleep(Duration::from_secs(60));
        drop(connections);
    });
    let world = World::new();
    world.write("a.lua", "local o = Agent.for_role('oracle'):answer() print('not reached', o.ok)");
    let url = format!("http://{address}/v1");
    let model = ["--model", "openai-compatible:slow", "--base-url", &url, "--log", "log.jsonl"];
    for head in [vec!["call", "oracle", "answer"], vec!["run"]] {
        let mut arguments = head.clone();
        arguments.extend(model);
        if head == ["run"] {
            arguments.push("a.lua");
        }
        let mut command = world.command(&arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait.recv_timeout(Duration::from_secs(20)).unwrap();
        let started = Instant::now();
        interrupt(&child);
        let ran = ran(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(130), "{arguments:?}: {} {}", ran.out, ran.err);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(!ran.out.contains("not reached"));
    }
    let log = std::fs::read_to_string(world.path("log.jsonl")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("\"interrupted\"")).count(), 2, "{log}");
}

#[test]
fn kc_e5_ctrl_c_ends_a_scripts_own_loop() {
    let world = World::new();
    world.write("a.lua", "print('begun') while true do end").write("a.rhai", "print(\"begun\"); loop { }");
    for script in ["a.lua", "a.rhai"] {
        let mut child = world.command(&["run", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut bytes = [0; 5];
        child.stdout.take().unwrap().read_exact(&mut bytes).unwrap();
        interrupt(&child);
        assert_eq!(child.wait().unwrap().code(), Some(130), "{script}");
    }
}

#[test]
fn repl_reads_from_a_pipe_and_tells_failures_by_its_exit_code() {
    let world = World::new();
    let input = "local calc = Agent.for_role('calculator')\ncalc:add(\n  2, 3)\ncalc:add(4, 5).value\n:calls\n:quit\nnot reached\n";
    let ran = world.piped(&["repl"], input);
    check(&ran, 0, &["Outcome(ok, 5)\n9\n", "calculator.add(2, 3)  ok", "reused lua"]);
    let ran = world.piped(&["repl", "--language", "rhai"], "let x = 40;\nx + 2\nthrow \"boom\"\n\"still here\"\n");
    assert_eq!(ran.out, "42\n\"still here\"\n", "{}", ran.err);
    check(&ran, 1, &["input:1:1: boom"]);
    check(&world.piped(&["repl"], "function f()\n"), 1, &["the last input is not complete"]);
}

#[test]
fn conform_reports_as_text_and_as_json() {
    let world = World::new();
    let plain = checkout("scenarios/agent/plain.yaml");
    for runtime in ["rust", "lua", "rhai"] {
        let ran = world.run(&["conform", &plain, "--runtime", runtime, "--language", "rhai", "--json"]);
        check(&ran, 0, &[]);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["runtime"], runtime);
        assert_eq!((&report["language"], &report["contract_version"]), (&"rhai".into(), &1.into()));
        assert_eq!(report["failed"], 0);
        let results = report["results"].as_array().unwrap();
        assert_eq!(report["passed"], results.len());
        assert!(results.iter().all(|result| result["status"] == "pass" && result.get("detail").is_none()));
    }
    check(
        &world.run(&["conform", &plain]),
        0,
        &["pass  plain.calculator", "passed, 0 failed (runtime rust, programs in lua, store memory)"],
    );
}

#[test]
fn conform_runs_the_execution_scenarios_under_a_model_profile() {
    // Outside of a checkout: the scenarios that are built in.
    let world = World::new();
    for profile in ["tool", "all"] {
        let ran = world.run(&["conform", "--profile", profile, "--json"]);
        check(&ran, 0, &[]);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!((&report["runtime"], &report["failed"]), (&"kernel".into(), &0.into()), "{report}");
        let ids: Vec<&str> =
            report["results"].as_array().unwrap().iter().map(|result| result["id"].as_str().unwrap()).collect();
        assert!(ids.contains(&"tool/EC-K1.required_valid_call") && ids.len() > 30, "{ids:?}");
        assert_eq!(ids.iter().any(|id| id.starts_with("gated/")), profile == "all");
        assert_eq!(report["profiles"].as_array().unwrap().len(), if profile == "all" { 6 } else { 1 });
    }
    check(&world.run(&["conform", "--profile", "json"]), 0, &["pass  json/EC-K6.tool_timeout", "0 failed", "left out"]);
    let known = "there are stub, program, tool, json, text, gated, and `all`";
    check(&world.run(&["conform", "--profile", "gpt"]), 4, &["no model profile \"gpt\"", known]);
    let both = world.run(&["conform", "--profile", "tool", "--language", "rhai"]);
    check(&both, 4, &["cannot be used with"]);
}

#[test]
fn conform_fails_scenarios_with_details_and_refuses_files_that_are_none() {
    let world = World::new();
    world.write("bad.yaml", "version: 1\nscenarios:\n- id: a.b\n  steps:\n  - {op: constrct, as: x, role: r}\n");
    let ran = world.run(&["conform", "bad.yaml", "--json"]);
    assert_eq!(ran.code, Some(1));
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["results"][0]["detail"], "line 5: unknown op `constrct`; did you mean `construct`?");
    world.write("empty.yaml", "version: 1\nscenarios: []\n");
    let ran = world.run(&["conform", "empty.yaml"]);
    assert_eq!((ran.code, ran.out.contains("0 passed")), (Some(1), true), "nothing ran");
    world.write("broken.yaml", "version: 1\nscenarios:\n  - id: [a\n");
    check(&world.run(&["conform", "broken.yaml"]), 4, &["broken.yaml:", "error:"]);
    world.write("major.yaml", "version: 2\nscenarios: []\n");
    check(&world.run(&["conform", "major.yaml"]), 4, &["major.yaml:1: version is the number 2"]);
    check(&world.run(&["conform", "missing.yaml"]), 4, &["missing.yaml: No such file"]);
    check(&world.run(&["conform"]), 4, &["no scenarios/agent folder here or above"]);
    check(&world.run(&["conform", "bad.yaml", "--programs", "missing.yaml"]), 4, &["missing.yaml: No such file"]);
    check(&world.run(&["conform", "bad.yaml", "--runtime", "ruby"]), 4, &["possible values: rust, python, lua, rhai"]);
}

#[test]
fn conform_plays_the_programs_of_the_file_that_is_named() {
    let world = World::new();
    world.write("p/programs.yaml", "version: 1\nprograms:\n- {id: ours, semantics: one more than 41}\n");
    world.write("p/ours.lua", "return 41 + 1").write("p/ours.rhai", "41 + 1");
    let steps =
        "[{op: construct, as: x, role: r}, {op: call, target: x, method: m, expect_outcome: {status: ok, value: 42}}]";
    world.write(
        "s.yaml",
        &format!("version: 1\nscenarios:\n- {{id: a.b, provider_plan: {{m: ours}}, steps: {steps}}}\n"),
    );
    for language in ["lua", "rhai"] {
        check(
            &world.run(&["conform", "s.yaml", "--programs", "p/programs.yaml", "--language", language]),
            0,
            &["1 passed"],
        );
    }
    assert_eq!(world.run(&["conform", "s.yaml"]).code, Some(1));
}

#[test]
fn x11_conform_for_python_needs_the_package() {
    let world = World::new();
    let mut command = world.command(&["conform", &checkout("scenarios/agent/plain.yaml"), "--runtime", "python"]);
    // No interpreter in an empty folder.
    command.env("PATH", world.path("nothing"));
    check(&finished(command), 3, &["the Python package `cadenza` cannot be imported"]);
}

/// Has terminals' and writers' control characters in it, as a model may write them.
const NASTY: &str = r#"local text = string.char(27) .. "[31mred" .. "\u{9b}2J\u{202e}" return text"#;

#[test]
fn what_models_write_reaches_a_terminal_only_as_text() {
    let world = World::new();
    let entry = serde_json::json!({
        "call_id": "abcdef01234567890000000000000001", "role": "r\u{1b}[31m", "method": "m\u{9b}2J",
        "args": ["\u{202e}abc"], "kwargs": {}, "outcome_status": "error", "outcome_error_type": "provider",
        "outcome_error_message": "server: \u{1b}]0;title\u{7}", "code": "return '\u{1b}[2J'", "language": "lua",
        "model": "m\u{1b}[0m", "program_source": "generated", "duration_ms": 1, "timestamp": "2026-01-01T00:00:00Z",
        "attempt_failures": [{"attempt_id": 1, "stage": "provider", "error_class": "x", "error_message": "\u{1b}c"}],
    });
    world.write("nasty.jsonl", &format!("{entry}\n"));
    for arguments in [
        vec!["calls", "nasty.jsonl"],
        vec!["calls", "nasty.jsonl", "--json"],
        vec!["show", "last", "nasty.jsonl"],
        vec!["show", "last", "nasty.jsonl", "--json"],
        vec!["tail", "nasty.jsonl"],
        vec!["tail", "nasty.jsonl", "--json"],
        vec!["programs", "nasty.jsonl", "--code"],
        vec!["programs", "nasty.jsonl", "--json"],
    ] {
        let ran = world.run(&arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.err);
        let acts = |character: &char| character.is_control() && *character != '\n' || *character == '\u{202e}';
        assert_eq!(ran.out.chars().find(acts), None, "{arguments:?}: {:?}", ran.out);
    }
    let json = world.run(&["calls", "nasty.jsonl", "--json"]).out;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["role"], "r\u{1b}[31m");
    // A pipe gets a value as it is: a program reads it.
    let ran = world.run(&["call", "text", "reverse", "\u{1b}ab"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "ba\u{1b}\n"), "{}", ran.err);
    let ran = world.piped(&["repl"], &format!("{}\nerror(string.char(27))\n", NASTY.replace("return text", "\ntext")));
    assert!(!(ran.out + &ran.err).contains('\u{1b}'));
}

#[test]
fn a_base_url_is_an_address_and_nothing_else() {
    let world = World::new();
    for (url, words) in [
        ("http://127.0.0.1:1/v1?key=hunter2", "it has a query"),
        ("http://127.0.0.1:1/v1#hunter2", "it has a query (`?`) or a fragment"),
        ("ftp://127.0.0.1/v1", "it must begin with http"),
    ] {
        let arguments = ["config", "--model", "openai-compatible:x", "--base-url", url];
        let ran = world.run(&arguments);
        check(&ran, 4, &["--base-url: option \"base_url\": the address cannot be used: ", words]);
        assert!(!(ran.out + &ran.err).contains("hunter2"), "{url}");
    }
    let ran = world.run(&["config", "--model", "opanai:x"]);
    check(
        &ran,
        4,
        &[
            "--model: option \"model\": no provider",
            "providers: openai, openai-responses, openai-compatible, anthropic, gemini, ollama, library, replay, cassette)",
        ],
    );
}

#[test]
fn a_file_without_calls_is_no_log_and_an_empty_one_has_none() {
    let world = World::new();
    world.write("notes.txt", "\nhello\nworld\n").write("empty.jsonl", "");
    for command in ["calls", "programs"] {
        check(&world.run(&[command, "notes.txt"]), 4, &["notes.txt: not a log of calls", "line 2"]);
    }
    check(&world.run(&["calls", "empty.jsonl"]), 0, &["no calls"]);
    check(&world.run(&["call", "calculator", "add", "1", "2", "--log", "log.jsonl"]), 0, &["3"]);
    check(&world.run(&["calls", "log.jsonl", "--role", "nobody"]), 0, &["no calls fit"]);
}

#[test]
fn a_misspelt_variable_is_told() {
    let world = World::new();
    for arguments in [vec!["config"], vec!["call", "calculator", "add", "1", "2"]] {
        let mut command = world.command(&arguments);
        command.env("CADENZA_MODLE", "library").env("CADENZA_CONFIG", "").env("CADENZA_WHATEVER", "1");
        let ran = finished(command);
        check(&ran, 0, &[]);
        let expected = "warning: CADENZA_MODLE in the environment is no option; did you mean CADENZA_MODEL?\n";
        assert_eq!(ran.err, expected, "{arguments:?}");
    }
}

#[test]
fn lost_log_lines_are_told() {
    let world = World::new();
    world.write("file", "");
    let ran = world.run(&["call", "calculator", "add", "1", "2", "--log", "file/calls.jsonl"]);
    check(&ran, 0, &["3"]);
    assert!(
        ran.err.contains("warning: 1 log line could not be written to ") && ran.err.contains("calls.jsonl: "),
        "{}",
        ran.err
    );
    let folder = world.run(&["call", "calculator", "add", "1", "2", "--log", "."]);
    check(&folder, 4, &["option \"log\": . cannot be a log: it is a folder"]);
}

#[test]
fn a_configuration_that_is_not_text_is_named() {
    let world = World::new();
    std::fs::write(world.path("cadenza.toml"), b"model = \"\xff\"\n").unwrap();
    check(&world.run(&["config"]), 4, &["configuration file cadenza.toml: ", "UTF-8"]);
}

#[test]
fn without_a_store_of_its_own_a_call_is_kept_in_the_users() {
    let world = World::new();
    let arguments = ["call", "calculator", "add", "2", "3", "--json"];
    let sources = [(), ()].map(|()| {
        let ran = world.run(&arguments);
        check(&ran, 0, &[]);
        assert_eq!(ran.err, "");
        ["library", "reused"].map(|source| ran.out.contains(&format!("\"source\":\"{source}\"")))
    });
    assert_eq!(sources, [[true, false], [false, true]], "the next process has the program");
    assert!(world.path("data/cadenza/store.db").is_file());
    check(&world.run(&["calls"]), 0, &["calculator.add(2, 3)"]);
    check(&world.run(&["programs"]), 0, &["calculator.add"]);
    check(&world.run(&["show", "last"]), 0, &["reused"]);
    check(&world.run(&["verify"]), 0, &["intact: 2 call(s)"]);
    let mut command = world.command(&arguments);
    command.env("CADENZA_STORE", ":memory:");
    check(&finished(command), 0, &["library"]);
    check(&world.run(&["verify"]), 0, &["intact: 2 call(s)"]);
}

#[test]
fn a_default_store_that_cannot_be_is_told_once_and_a_named_one_is_refused() {
    let world = World::new();
    world.write("data", "a file where the folder should be");
    let ran = world.run(&["call", "calculator", "add", "2", "3"]);
    check(&ran, 0, &["5"]);
    let words = ["warning: calls and programs are kept in memory only", "set `store` to a path"];
    assert!(words.iter().all(|words| ran.err.contains(words)) && ran.err.lines().count() == 1, "{}", ran.err);
    check(&world.run(&["verify"]), 4, &["there is no store yet"]);
    check(&world.run(&["call", "calculator", "add", "2", "3", "--store", "data/app.db"]), 4, &["option \"store\""]);
}

#[test]
fn processes_that_begin_at_once_share_a_fresh_default_store() {
    let world = World::new();
    let start = |number: usize| {
        let mut command = world.command(&["call", "calculator", "add", "1", &number.to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..6).map(start).collect();
    for (number, child) in started.into_iter().enumerate() {
        let ran = ran(child.wait_with_output().unwrap());
        check(&ran, 0, &[&(number + 1).to_string()]);
        assert_eq!(ran.err, "");
    }
    check(&world.run(&["verify"]), 0, &["intact: 6 call(s)"]);
}

/// A store with two programs: `calculator.add` and `counter.increment` of the agent `tally`.
fn with_store() -> World {
    let world = World::new();
    check(&world.run(&["call", "calculator", "add", "2", "3", "--store", "app.db"]), 0, &["5"]);
    check(&world.run(&["call", "counter", "increment", "--store", "app.db", "--name", "tally"]), 0, &["1"]);
    world.write("cadenza.toml", "store = \"app.db\"\n");
    world
}

fn json(ran: &Ran) -> Vec<serde_json::Value> {
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn programs_of_a_store_are_listed_shown_and_changed() {
    let world = with_store();
    let listed = json(&world.run(&["programs", "app.db", "--json"]));
    assert_eq!(listed.len(), 2);
    let id = listed[0]["id"].as_str().unwrap();
    assert_eq!((&listed[0]["method"], &listed[0]["state"]), (&"add".into(), &"active".into()));
    assert_eq!(json(&world.run(&["programs", "list", "--json"])), listed);
    assert_eq!(json(&world.run(&["programs", "--store", "app.db", "--role", "counter", "--json"])).len(), 1);
    check(&world.run(&["programs", "app.db", "--code"]), 0, &[&id[..8], "calculator.add version 1  active", "return"]);
    let shown = world.run(&["programs", "show", &id[..6]]);
    check(&shown, 0, &[id, "by call", "args[1]", "number", "checksum", "program\n"]);
    check(&world.run(&["programs", "show", "calculator.add", "--color", "always"]), 0, &["\u{1b}[35mreturn\u{1b}[0m"]);
    assert_eq!(json(&world.run(&["programs", "show", "calculator.add", "--json"]))[0]["inputs"][0]["value"], 2);

    world.write("new.lua", "return args[1] * args[2]\n");
    let edited = json(&world.run(&["programs", "edit", "calculator.add", "--file", "new.lua", "--json"]));
    assert_eq!((&edited[0]["version"], &edited[0]["state"]), (&2.into(), &"pinned".into()));
    let second = edited[0]["id"].as_str().unwrap();
    let call = ["call", "calculator", "add", "4", "5", "--store", "app.db"];
    assert_eq!(world.run(&call).out, "20\n");
    check(&world.run(&["programs", "history", "calculator.add"]), 0, &["version 1  active", "version 2  pinned"]);
    check(&world.run(&["programs", "diff", second]), 0, &["+return args[1] * args[2]", "--- calculator.add version 1"]);
    let diff = json(&world.run(&["programs", "diff", second, id, "--json"]));
    assert!(diff[0]["diff"].as_str().unwrap().contains("-") && diff[0]["old"] == second, "{diff:?}");
    check(&world.run(&["programs", "diff", id, id]), 0, &["the texts are equal"]);
    check(&world.run(&["programs", "quarantine", second]), 0, &["version 2  quarantined"]);
    assert_eq!(world.run(&call).out, "9\n");
    check(&world.run(&["programs", "approve", second]), 0, &["version 2  active"]);
    check(&world.run(&["programs", "pin", id]), 0, &["version 1  pinned"]);
    check(&world.run(&["programs", "--state", "pinned"]), 0, &["version 1  pinned"]);
    assert_eq!(json(&world.run(&["programs", "delete", second, "--json"]))[0]["deleted"], second);
    check(&world.run(&["programs", "history", id]), 0, &["version 1"]);
    let shown = world.run(&["show", "last"]);
    check(&shown, 0, &["a kept program ran"]);
    check(&world.run(&["verify"]), 0, &["intact"]);
}

#[test]
fn an_editor_changes_a_program_and_one_that_fails_loses_nothing() {
    let world = with_store();
    let edit = |editor: &str| {
        let mut command = world.command(&["programs", "edit", "calculator.add"]);
        command.env("EDITOR", editor).env("TMPDIR", world.path(""));
        finished(command)
    };
    check(&edit("false"), 1, &["the editor `false` failed", "nothing changed"]);
    check(&edit("no_such_editor"), 1, &["the editor `no_such_editor` failed", "nothing changed"]);
    check(&edit("true"), 1, &["calculator.add: nothing changed"]);
    let broken = edit("printf 'return (' >");
    check(&broken, 1, &["does not compile", "your text is in", "take it with --file"]);
    let kept = broken.err.split("your text is in ").nth(1).unwrap().split(';').next().unwrap();
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "return (");
    assert_eq!(json(&world.run(&["programs", "--json"])).len(), 2);
    check(&edit("printf 'return 7\\n' >"), 0, &["version 2  pinned"]);
    let left =
        std::fs::read_dir(world.path("")).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let left: Vec<_> = left.filter(|name| name.starts_with("cadenza-")).collect();
    assert_eq!(left.len(), 1, "only the text that could not be taken stays: {left:?}");
    check(&world.run(&["programs", "edit", "counter.increment"]), 4, &["no editor is set; set EDITOR"]);
    let piped = world.piped(&["programs", "edit", "counter.increment", "--file", "-"], "return 9");
    check(&piped, 0, &["version 2  pinned"]);
}

#[test]
fn x11_what_is_no_store_and_no_program_is_told() {
    let world = with_store();
    world.write("text", "hello").write("folder/x", "");
    for command in ["show", "history", "diff", "pin", "edit", "delete"] {
        let ran = world.run(&["programs", command, "calculator.ad", "--store", "app.db"]);
        check(&ran, 4, &["no program \"calculator.ad\"; did you mean calculator.add?"]);
        check(&world.run(&["programs", command, "x", "--store", "missing.db"]), 4, &["there is no such file"]);
        check(&world.run(&["programs", command, "x", "--store", "text"]), 4, &["it is not a database"]);
        check(&world.run(&["programs", command, "x", "--store", "folder"]), 4, &["it is a folder"]);
    }
    check(&world.run(&["programs", "diff", "calculator.add"]), 4, &["has no earlier version; name two programs"]);
    check(&world.run(&["programs", "edit", "calculator.add", "--file", "missing"]), 4, &["missing: No such file"]);
    world.write("new.lua", "return 1");
    check(&world.run(&["programs", "edit", "calculator.add", "--file", "new.lua"]), 0, &["version 2"]);
    check(&world.run(&["programs", "pin", "calculator.add"]), 4, &["means several programs", "version 1, active"]);
    check(&world.run(&["programs", "eject", "calculator", "--to", "text"]), 4, &["text/programs"]);
    check(&world.run(&["programs", "eject", "nobody", "--to", "own"]), 4, &["no program \"nobody\""]);
    check(&world.run(&["export", "text"]), 4, &["text"]);
    check(&world.run(&["import", "folder"]), 4, &["programs.json"]);
    check(&world.run(&["lock", "folder/x/y"]), 4, &["lock file"]);
    check(&world.run(&["calls", "--since", "yesterday"]), 4, &["\"yesterday\" is no time"]);
    check(&world.run(&["calls", "--status", "fine"]), 4, &["interrupted"]);
    check(&world.run(&["programs", "--library", "--state", "pinned"]), 4, &["--library"]);
    world.write("log.jsonl", "");
    check(&world.run(&["programs", "log.jsonl", "--state", "pinned"]), 4, &["for programs of a store"]);
    assert!(!world.path("missing.db").exists() && !world.path("own").exists());
}

#[test]
fn calls_of_a_store_are_filtered_and_say_whose_they_are() {
    let world = with_store();
    check(&world.run(&["call", "calculator", "divide", "1", "0", "--store", "app.db"]), 1, &[]);
    check(&world.run(&["call", "calculator", "add", "5", "6", "--store", "app.db"]), 0, &["11"]);
    let mut other = vec!["call", "calculator", "add", "5", "6", "--store", "app.db"];
    other.extend(["--option", "namespace=other"]);
    check(&world.run(&other), 0, &["11"]);
    let lines = |arguments: &[&str]| {
        let ran = world.run(&[&["calls", "app.db"], arguments].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(&[]).len(), 5);
    assert_eq!(lines(&["--status", "error"]), lines(&["--failed"]));
    assert_eq!(lines(&["--failed"]).len(), 1);
    assert_eq!(lines(&["--namespace", "other"]).len(), 1);
    assert!(lines(&["--namespace", "other"])[0].ends_with(" in other"));
    assert!(lines(&["--agent", "tally"])[0].ends_with(" of tally"));
    assert_eq!(lines(&["--role", "calculator", "--method", "add", "--since", "1h"]).len(), 3);
    assert_eq!(lines(&["--since", "2999-01-01"]), ["no calls fit"]);
    let last = lines(&["-n", "2"]);
    assert_eq!((last.len(), last[2 - 1].contains("add(5, 6)")), (3, true), "{last:?}");
    assert_eq!(json(&world.run(&["calls", "app.db", "--json"])).len(), 5);
}

#[test]
fn tail_follows_a_store() {
    let world = with_store();
    assert_eq!(world.run(&["tail", "app.db", "-n", "1"]).out.lines().count(), 1);
    let tailed = json(&world.run(&["tail", "app.db", "--json"]));
    assert_eq!((tailed.len(), &tailed[1]["gseq"]), (2, &2.into()));
    let mut command = world.command(&["tail", "app.db", "-f", "-n", "0"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut text = Vec::new();
    let started = Instant::now();
    // Until it follows, new calls may come before it looks; then one is seen.
    while !String::from_utf8_lossy(&text).contains("add(30, 40)") && started.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(300));
        check(&world.run(&["call", "calculator", "add", "30", "40", "--store", "app.db"]), 0, &["70"]);
        let mut bytes = [0; 256];
        let read = out.read(&mut bytes).unwrap();
        text.extend_from_slice(&bytes[..read]);
    }
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(String::from_utf8_lossy(&text).contains("add(30, 40)"));
}

#[test]
fn everything_that_answers_answers_in_json() {
    let world = with_store();
    let one = |arguments: &[&str]| json(&world.run(arguments)).remove(0);
    assert_eq!(one(&["verify", "--json"])["ok"], true);
    assert_eq!(one(&["replay", "last", "--json"])["ok"], true);
    let all = one(&["replay", "all", "--json"]);
    assert_eq!((&all["ok"], &all["calls"], &all["left_out"]), (&true.into(), &2.into(), &0.into()));
    assert_eq!(one(&["show", "last", "app.db", "--json"])["method"], "increment");
    assert_eq!(one(&["export", "folder", "--json"])["programs"], 2);
    let imported = one(&["import", "folder", "--json"]);
    assert_eq!((&imported["programs"], imported["ids"].as_array().unwrap().len()), (&2.into(), 2));
    let locked = one(&["lock", "--json"]);
    assert_eq!((&locked["programs"], &locked["path"]), (&2.into(), &"cadenza.lock".into()));
    let ejected = one(&["programs", "eject", "calculator", "--to", "own", "--json"]);
    let files = ejected["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file == "own/programs/calculator_add.lua"), "{files:?}");
    check(&world.run(&["conform", "own/scenarios"]), 0, &["1 passed"]);
}

#[test]
fn where_programs_are_locked_the_outcome_names_what_is_missing() {
    let world = with_store();
    check(&world.run(&["lock"]), 0, &["2 program(s) locked in cadenza.lock"]);
    let locked = |arguments: &[&str]| {
        let mut all = vec!["call"];
        all.extend(arguments);
        // A model that needs a key, and none is there: nobody asks it.
        all.extend(["--store", "app.db", "--option", "reuse=locked", "--model", "openai:gpt-5.1"]);
        world.run(&all)
    };
    assert_eq!(locked(&["calculator", "add", "20", "30"]).out, "50\n");
    let missing = locked(&["calculator", "multiply", "2", "3"]);
    check(&missing, 3, &["no program for calculator.multiply", "no program was kept", "cadenza lock"]);
    let shape = locked(&["calculator", "add", "x"]);
    check(&shape, 3, &["with arguments of the shape \"s\""]);
    // What people change is not locked until they say so.
    world.write("new.lua", "return 7");
    check(&world.run(&["programs", "edit", "calculator.add", "--file", "new.lua", "--accept"]), 0, &[]);
    assert_eq!(locked(&["calculator", "add", "20", "30"]).out, "50\n");
    check(&world.run(&["programs", "quarantine", &newest(&world, "add")]), 0, &[]);
    check(&world.run(&["programs", "delete", "calculator.add"]), 4, &["means several programs"]);
    std::fs::remove_file(world.path("cadenza.lock")).unwrap();
    check(&locked(&["calculator", "add", "20", "30"]), 4, &["cadenza.lock"]);
}

fn newest(world: &World, method: &str) -> String {
    let listed = json(&world.run(&["programs", "history", &format!("calculator.{method}"), "--json"]));
    listed.last().unwrap()["id"].as_str().unwrap().to_owned()
}

#[test]
fn eval_scores_a_model_and_says_by_its_exit_code_how_it_went() {
    let world = World::new();
    let ran = world.run(&["eval", "--model", "library", "--only", "calculator.add", "--only", "units.speed"]);
    check(
        &ran,
        0,
        &["calculator", "  add", "units", "total", "2 of 2 passed, 2 at the first attempt (library, programs in lua)"],
    );
    assert!(ran.err.is_empty() && !ran.out.contains('\u{1b}'), "{}{}", ran.out, ran.err);
    let ran = world.run(&["eval", "--only", "calculator", "--json", "--language", "rhai", "--repeat", "2"]);
    let report: &serde_json::Value = &serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &report["language"], &report["model"]), (Some(1), &"rhai".into(), &"library".into()));
    let (total, cases) = (&report["total"], report["cases"].as_array().unwrap());
    assert_eq!((&total["runs"], &total["passed"], cases.len()), (&24.into(), &20.into(), 12));
    let failed: Vec<_> =
        cases.iter().filter(|case| !case["failure"].is_null()).map(|case| case["id"].clone()).collect();
    assert_eq!(failed, ["calculator.compound_interest", "calculator.quadratic"]);
    assert_eq!(report["prompt_tokens"]["system"], 905);
    assert!(total["median_ms"].as_f64().unwrap() > 0.0 && total["p95_ms"].as_f64() >= total["median_ms"].as_f64());

    let nobody = ["-o", "call_timeout_seconds=5", "--base-url", "http://127.0.0.1:1/v1"];
    let ran = world.run(&[&["eval", "--model", "openai-compatible:m", "--only", "text"], &nobody[..]].concat());
    check(&ran, 3, &["openai-compatible:m cannot be reached: "]);
    check(&world.run(&["eval", "--only", "calculator.ad"]), 4, &["no case and no group is called \"calculator.ad\""]);
    check(&world.run(&["eval", "missing.yaml"]), 4, &["missing.yaml: No such file"]);
    check(&world.run(&["eval", "--store", "x.db"]), 4, &["every case runs in memory", "--log PATH"]);
    check(&world.run(&["eval", "--repeat", "0"]), 4, &["0 is not in 1..=1000"]);
    check(&world.run(&["eval", "--model", "nobody:x"]), 4, &["nobody"]);
    let text = "version: 1\ngroup: mine\ncases:\n- id: mine.one\n  role: calculator\n  calls:\n  - { method: add, args: [1, 1], expect: { value: 3 }, right: [3], wrong: [2] }\n";
    world.write("mine/one.yaml", text).write("bad.yaml", "version: 1\ngroup: x\ncases: 5\n");
    let ran = world.run(&["eval", "mine", "--log", "eval.jsonl"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("FAIL  mine.one\n      add: expected 3, got the value 2\n0 of 1 passed"), "{}", ran.out);
    check(&world.run(&["calls", "eval.jsonl"]), 0, &["calculator.add(1, 1)  ok 2"]);
    check(&world.run(&["eval", "bad.yaml"]), 4, &["bad.yaml:3: `cases` is the number 5; expected a list"]);
}

#[test]
fn show_says_what_a_prompt_costs() {
    let world = World::new();
    let add = ["call", "calculator", "add", "2", "3", "--model", "library", "-o", "reuse=off", "--log", "log.jsonl"];
    check(&world.run(&[&add[..], &["--debug"]].concat()), 0, &["5"]);
    let ran = world.run(&["show", "last", "log.jsonl"]);
    check(&ran, 0, &["tokens, counted with o200k_base: system 745, role ", "arguments ", "context "]);
    let tokens = json(&world.run(&["show", "last", "log.jsonl", "--json"]))[0]["prompt_tokens"].clone();
    assert_eq!((&tokens["system"], &tokens["counted"]), (&745.into(), &true.into()));
    let total = tokens["total"].as_u64().unwrap();
    assert!((800..830).contains(&total), "{tokens}");
    // Without the words, their sizes are known.
    check(&world.run(&add), 0, &["5"]);
    let shown = json(&world.run(&["show", "last", "log.jsonl", "--json"]))[0].clone();
    assert_eq!(
        (&shown["system_prompt"], &shown["prompt_tokens"]["counted"]),
        (&serde_json::Value::Null, &false.into())
    );
    let estimate = shown["prompt_tokens"]["total"].as_u64().unwrap();
    assert!(estimate.abs_diff(total) < total / 5, "{estimate} for {total}");
    assert!(shown["prompt_bytes"]["system"].as_u64().unwrap() > 2_000, "{shown}");
    check(&world.run(&["show", "last", "log.jsonl"]), 0, &["tokens, from its size: system "]);
    // A call that asked nobody has no prompt.
    check(
        &world.run(&[
            "run",
            world
                .write("a.lua", "local c = Agent.for_role('calculator', {log = 'r.jsonl'}) c:add(1, 2) c:add(4, 5)")
                .path("a.lua")
                .to_str()
                .unwrap(),
        ]),
        0,
        &[],
    );
    let reused = json(&world.run(&["show", "last", "r.jsonl", "--json"]))[0].clone();
    assert_eq!(
        (&reused["program_source"], reused.get("prompt_bytes"), reused.get("prompt_tokens")),
        (&"reused".into(), None, None)
    );
}

#[test]
fn a_recorded_call_is_played_without_its_model() {
    let world = World::new();
    let call = |options: &[&str]| world.run(&[&["call", "calculator", "divide", "7", "2"], options].concat());
    check(&call(&["--model", "library", "--record", "c.jsonl"]), 0, &["3.5"]);
    check(&call(&["--model", "cassette:c.jsonl"]), 0, &["3.5"]);
    assert!(!world.path("data").exists(), "what is recorded and what is played is kept nowhere else");
    let ran = world.run(&["call", "calculator", "divide", "9", "2", "--model", "cassette:c.jsonl"]);
    check(
        &ran,
        1,
        &["has no reply for calculator.divide", "the nearest is line 3", "says `args: [7,2]` and now `args: [9,2]`"],
    );
    check(&call(&["--model", "cassette:missing.jsonl"]), 4, &["cassette missing.jsonl: No such file"]);
    let eval = ["eval", "--only", "calculator", "--json"];
    let scored = world.run(&[&eval[..], &["--model", "library", "--record", "eval.jsonl"]].concat());
    let played = world.run(&[&eval[..], &["--model", "cassette:eval.jsonl"]].concat());
    assert_eq!((scored.code, played.code), (Some(1), Some(1)), "{}{}", scored.err, played.err);
    let passed = |ran: &Ran| {
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        report["total"]["passed"].as_u64()
    };
    assert_eq!((passed(&scored), passed(&played)), (Some(10), Some(10)));
}
