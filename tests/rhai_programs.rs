//! Rhai programs through the public border: the program interface of product.md section 4, values, evidence, limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cadenza_core::cancel::CancelToken;
use cadenza_core::outcome::{ErrorType, Outcome};
use cadenza_core::program::rhai::{MeteredAllocator, RhaiExecutor};
use cadenza_core::program::{
    AgentRef, Arguments, Bounds, Execution, Executor, Host, HostError, Language, Limits, ProgramFailure, Reads,
    Returned,
};
use cadenza_core::value::{Map, Value};
use parking_lot::Mutex;

#[global_allocator]
static ALLOCATOR: MeteredAllocator = MeteredAllocator;

/// A host that remembers what it was asked. Agents answer by echoing; `boom` panics, `stop` stops, `nest` runs a
/// program on the same thread.
#[derive(Default)]
struct TestHost {
    context: Mutex<BTreeMap<u32, Map>>,
    roles: Mutex<Vec<String>>,
    asked: Mutex<Vec<String>>,
    sets: Mutex<u32>,
    nested: Option<Arc<RhaiExecutor>>,
}

impl TestHost {
    fn with(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        let host = Self::default();
        host.context.lock().insert(0, entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
        host
    }

    fn context(&self) -> Map {
        self.context.lock().get(&0).cloned().unwrap_or_default()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }

    fn note(&self, text: String) {
        self.asked.lock().push(text);
    }

    fn add(&self, role: &str) -> AgentRef {
        let mut roles = self.roles.lock();
        roles.push(role.to_owned());
        AgentRef(roles.len() as u32)
    }
}

impl Host for TestHost {
    fn context_get(&self, agent: AgentRef, key: &str) -> Option<Value> {
        self.context.lock().get(&agent.0)?.get(key).cloned()
    }
    fn context_set(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
        if key == "forbidden" {
            return Err(HostError::Refused("the key `forbidden` is refused".into()));
        }
        *self.sets.lock() += 1;
        self.context.lock().entry(agent.0).or_default().insert(key.to_owned(), value);
        Ok(())
    }
    fn context_remove(&self, agent: AgentRef, key: &str) -> Result<(), HostError> {
        self.context.lock().entry(agent.0).or_default().remove(key);
        Ok(())
    }
    fn context_keys(&self, agent: AgentRef) -> Vec<String> {
        self.context.lock().get(&agent.0).map(|map| map.keys().cloned().collect()).unwrap_or_default()
    }
    fn role(&self, agent: AgentRef) -> Arc<str> {
        match agent {
            AgentRef::THIS => "calculator".into(),
            AgentRef(number) => self.roles.lock()[number as usize - 1].as_str().into(),
        }
    }
    fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError> {
        self.note(format!("remember {} {}", agent.0, Value::Map(entries.clone())));
        self.context.lock().entry(agent.0).or_default().extend(entries);
        Ok(())
    }
    fn delegate(&self, agent: AgentRef, role: &str, options: Map) -> Result<AgentRef, HostError> {
        if options.contains_key("colour") {
            return Err(HostError::Refused("unknown option `colour`".into()));
        }
        self.note(format!("delegate {} {role} {}", agent.0, Value::Map(options)));
        Ok(self.add(role))
    }
    fn for_role(&self, role: &str, options: Map) -> Result<AgentRef, HostError> {
        self.note(format!("for_role {role} {}", Value::Map(options)));
        Ok(self.add(role))
    }
    fn agent_tool(&self, agent: AgentRef, name: &str) -> Result<AgentRef, HostError> {
        self.note(format!("agent_tool {} {name}", agent.0));
        Ok(self.add(name))
    }
    fn responds_to(&self, _: AgentRef, name: &str) -> bool {
        name.ends_with('=')
    }
    fn call(&self, agent: AgentRef, method: &str, args: Vec<Value>, kwargs: Map) -> Result<Outcome, HostError> {
        self.note(format!("call {} {method} {} {}", agent.0, Value::List(args.clone()), Value::Map(kwargs.clone())));
        match method {
            "boom" => std::panic::resume_unwind(Box::new("the host broke")),
            "stop" => Err(HostError::Stop),
            "refuse" => Err(HostError::Refused("x".repeat(100_000))),
            "fail" => Ok(Outcome::of_error(ErrorType::Other("low_utility".into()), "not worth it", true)),
            "add" => Ok(Outcome::of_value(Value::Int(args.iter().filter_map(Value::as_int).sum()))),
            "nest" => {
                let executor = self.nested.as_ref().expect("a nested executor");
                let code = args[0].as_str().expect("code");
                Ok(match run_on(executor, code, &args[1..], &kwargs, self).result {
                    Ok(Returned::Value(value)) => Outcome::of_value(value),
                    Ok(Returned::Outcome(outcome)) => outcome,
                    Err(failure) => Outcome::of_error(ErrorType::Execution, failure.to_string(), false),
                })
            }
            setter if setter.ends_with('=') => {
                let key = setter.trim_end_matches('=').to_owned();
                self.context.lock().entry(agent.0).or_default().insert(key, args[0].clone());
                Ok(Outcome::of_value(args[0].clone()))
            }
            _ => Ok(Outcome::of_value(Value::Map(
                [
                    ("method".to_owned(), method.into()),
                    ("args".to_owned(), args.into()),
                    ("kwargs".to_owned(), kwargs.into()),
                ]
                .into(),
            ))),
        }
    }
    fn tool(&self, name: &str, arguments: Map) -> Result<Value, HostError> {
        self.note(format!("tool {name} {}", Value::Map(arguments.clone())));
        match name {
            "fetch_url" => Ok(Value::Map(arguments)),
            _ => Err(HostError::Refused(format!("there is no tool `{name}`"))),
        }
    }
    fn tool_names(&self) -> Vec<String> {
        vec!["fetch_url".into()]
    }
    fn history(&self) -> Vec<Value> {
        vec![json(r#"{"method":"add","value":5}"#), json(r#"{"method":"sub","value":[1,2]}"#)]
    }
    fn content(&self, reference: &str) -> Result<Value, HostError> {
        Ok(format!("content of {reference}").into())
    }
    fn now(&self) -> i64 {
        1_700_000_000_000
    }
    fn random(&self) -> f64 {
        0.25
    }
    fn print(&self, _: &str) {
        panic!("programs print into their execution");
    }
}

fn json(text: &str) -> Value {
    Value::from_json(text).expect("valid JSON in a test")
}

fn list(text: &str) -> Vec<Value> {
    json(text).as_list().expect("a list").to_vec()
}

fn map(text: &str) -> Map {
    json(text).as_map().expect("a map").clone()
}

fn small_limits() -> Limits {
    Limits { cpu_time: Duration::from_millis(500), ..Limits::default() }
}

fn run_on(executor: &RhaiExecutor, code: &str, args: &[Value], kwargs: &Map, host: &dyn Host) -> Execution {
    run_limited(executor, code, Arguments { args, kwargs }, host, &small_limits())
}

fn run_limited(
    executor: &RhaiExecutor,
    code: &str,
    arguments: Arguments<'_>,
    host: &dyn Host,
    limits: &Limits,
) -> Execution {
    let program = executor.compile(code, limits).unwrap_or_else(|error| panic!("{error}\n{code}"));
    let cancel = CancelToken::default();
    let deadline = Some(Instant::now() + Duration::from_secs(20));
    executor.execute(&program, arguments, host, &Bounds { limits, deadline, cancel: &cancel })
}

/// Runs a program with arguments on a fresh host.
fn run(code: &str, args: &str, kwargs: &str) -> Execution {
    run_on(&RhaiExecutor::new(), code, &list(args), &map(kwargs), &TestHost::default())
}

#[track_caller]
fn value(execution: Execution) -> Value {
    match execution.result {
        Ok(Returned::Value(value)) => value,
        other => panic!("no value: {other:?}"),
    }
}

#[track_caller]
fn check(code: &str, args: &str, kwargs: &str, expected: &str) {
    assert_eq!(value(run(code, args, kwargs)), json(expected), "{code}");
}

#[track_caller]
fn raised(execution: Execution) -> String {
    match execution.result {
        Err(ProgramFailure::Raised { message }) => message,
        other => panic!("nothing was raised: {other:?}"),
    }
}

#[test]
fn a_program_adds() {
    check("args[0] + args[1]", "[2, 3]", "{}", "5");
    check("return args[0] - kwargs.amount;", "[2]", r#"{"amount": 3}"#, "-1");
}

#[test]
fn arguments_work_as_arrays_and_maps() {
    check("args.len()", "[1, 2, 3]", "{}", "3");
    check("args.len", "[1, 2, 3]", "{}", "3");
    check("let t = 0; for x in args { t += x; } t", "[1, 2, 3]", "{}", "6");
    check("args.map(|x| x * 2)", "[1, 2]", "{}", "[2, 4]");
    check("args.reduce(|sum, x| sum + x, 0)", "[1, 2, 3]", "{}", "6");
    check("args.sum()", "[1, 2, 3]", "{}", "6");
    check("args.filter(|x| x > 1)", "[1, 2]", "{}", "[2]");
    check("args.contains(2)", "[1, 2]", "{}", "true");
    check("2 in args", "[1, 2]", "{}", "true");
    check("args[-1]", "[1, 2]", "{}", "2");
    check("args + [9]", "[1]", "{}", "[1, 9]");
    check("let a = args; a.push(3); a", "[1]", "{}", "[1, 3]");
    check("args == [1, 2]", "[1, 2]", "{}", "true");
    check("[1, 2] == args", "[1, 2]", "{}", "true");
    check("args != [1, 2]", "[1, 2]", "{}", "false");
    check("args", "[1, [2], {\"a\": null}]", "{}", "[1, [2], {\"a\": null}]");
    check("type_of(args)", "[]", "{}", "\"array\"");
    check("`${args} ${kwargs}`", "[1]", r#"{"a": 2}"#, r#""[1] {\"a\":2}""#);
    check("args[0].name", r#"[{"name": "Ann"}]"#, "{}", "\"Ann\"");
    check("args[0][1]", "[[1, 2]]", "{}", "2");
    check("let s = 0; for i in 0..args[0].len() { s += args[0][i]; } s", "[[1, 2, 3]]", "{}", "6");
    check("args.get(5)", "[]", "{}", "null");
    check("args.is_empty()", "[]", "{}", "true");
    check("max(args[0], args[1])", "[3, 4]", "{}", "4");
    check("kwargs.missing", "[]", "{}", "null");
    check("\"unit\" in kwargs", "[]", r#"{"unit": "m"}"#, "true");
    check("kwargs.contains(\"x\")", "[]", "{}", "false");
    check("kwargs.get(\"unit\")", "[]", r#"{"unit": "m"}"#, "\"m\"");
    check("kwargs[\"a key\"]", "[]", r#"{"a key": 1}"#, "1");
    check("kwargs.keys()", "[]", r#"{"b": 1, "a": 2}"#, "[\"a\", \"b\"]");
    check("kwargs.values()", "[]", r#"{"b": 1, "a": 2}"#, "[2, 1]");
    check("kwargs.tag", "[]", r#"{"tag": "t"}"#, "\"t\"");
    check("kwargs", "[]", r#"{"a": {"b": []}}"#, r#"{"a": {"b": []}}"#);
    check("kwargs.unit ?? \"none\"", "[]", "{}", "\"none\"");
    assert!(raised(run("args[3]", "[1]", "{}")).contains("out of bounds"));
}

#[test]
fn functions_and_closures_see_the_programs_names() {
    check("fn f() { args[0] + kwargs.b } f()", "[1]", r#"{"b": 2}"#, "3");
    check("fn f(args) { args } f(7)", "[1]", "{}", "7");
    check("let args = 5; args", "[1]", "{}", "5");
    check("[1, 2].map(|x| x * args[0])", "[3]", "{}", "[3, 6]");
    check("let k = 2; fn twice(f) { f.call(3) } twice(|x| x * k)", "[]", "{}", "6");
    check("let f = |x| x + 1; f.call(\"a\")", "[]", "{}", "\"a1\"");
    check("let c = 0; let add = || { c += 1; }; add.call(); add.call(); c", "[]", "{}", "2");
}

#[test]
fn the_context_is_live() {
    let host = TestHost::with([("value", 5.into()), ("items", json("[1, 2]")), ("deep", json(r#"{"a": {"b": 1}}"#))]);
    let executor = RhaiExecutor::new();
    let run = |code: &str| run_on(&executor, code, &[3.into()], &Map::new(), &host);
    assert_eq!(value(run("context.value")), 5.into());
    assert_eq!(value(run("context.value += args[0]; context.value")), 8.into());
    assert_eq!(value(run("context[\"a key\"] = 1; context[\"a key\"]")), 1.into());
    assert_eq!(value(run("context.missing")), Value::Null);
    assert_eq!(value(run("context.items.push(3); context.items.len()")), 3.into());
    assert_eq!(host.context()["items"], json("[1, 2, 3]"));
    assert_eq!(value(run("context[\"items\"].push(4); context.items[3]")), 4.into());
    assert_eq!(value(run("context.items[0] = 9; context.items")), json("[9, 2, 3, 4]"));
    assert_eq!(
        value(run("context.deep.a.b += 1; context.deep.a.c = [1]; context.deep")),
        json(r#"{"a":{"b":2,"c":[1]}}"#)
    );
    assert_eq!(host.context()["deep"], json(r#"{"a":{"b":2,"c":[1]}}"#));
    assert_eq!(value(run("\"value\" in context")), true.into());
    assert_eq!(value(run("context.keys()")), json(r#"["a key", "deep", "items", "value"]"#));
    assert_eq!(
        value(run("let k = []; for key in context { k.push(key); } k")),
        json(r#"["a key", "deep", "items", "value"]"#)
    );
    assert_eq!(value(run("context.remove(\"a key\")")), 1.into());
    assert_eq!(value(run("fn f() { context.value = 1; } f(); context.value")), 1.into());
    assert_eq!(value(run("context.mixin(#{x: 1, y: [2]}); context.y[0]")), 2.into());
    assert_eq!(value(run("context.drain(|k, v| k == \"x\" || k == \"y\").len()")), 2.into());
    assert_eq!(value(run("context.keys().len()")), 3.into());
    assert_eq!(value(run("context.tag = 3; context.tag")), 3.into());
    assert_eq!(value(run("context.items = args; context.items")), json("[3]"));
    assert_eq!(
        value(run("context.list = []; for i in 0..5 { context.list += [i]; } context.list")),
        json("[0,1,2,3,4]")
    );
    assert_eq!(value(run("context.get(\"value\")")), 1.into());
    assert!(raised(run("context.forbidden = 1")).contains("`forbidden` is refused"));
}

#[test]
fn reading_the_context_writes_nothing() {
    let host = TestHost::with([("items", json("[1, 2]"))]);
    let executor = RhaiExecutor::new();
    let code = "let s = context.items.len() + context.items[0]; for x in context.items { s += x; } context.items.contains(2); s";
    assert_eq!(value(run_on(&executor, code, &[], &Map::new(), &host)), 6.into());
    assert_eq!(*host.sets.lock(), 0);
}

#[test]
fn agents_delegate_and_answer() {
    let host = TestHost::default();
    let executor = RhaiExecutor::new();
    let run = |code: &str| run_on(&executor, code, &[2.into(), 3.into()], &map(r#"{"unit": "m"}"#), &host);
    assert_eq!(value(run("agent.role")), "calculator".into());
    assert_eq!(value(run("agent.delegate(\"tutor\").role")), "tutor".into());
    assert_eq!(value(run("agent.delegate(\"tutor\", #{purpose: \"p\"}).call(\"add\", [2, 3]).value")), 5.into());
    assert_eq!(value(run("agent.delegate(\"t\").add(2, 3).value")), 5.into());
    assert_eq!(value(run("let c = agent_for_role(\"calculator\"); c.add(1).unwrap()")), 1.into());
    assert_eq!(value(run("Agent::for_role(\"x\", #{language: \"lua\"}).add().value")), 0.into());
    for (code, expected) in [
        ("child.call(\"m\")", r#"{"method":"m","args":[],"kwargs":{}}"#),
        ("child.call(\"m\", [1])", r#"{"method":"m","args":[1],"kwargs":{}}"#),
        ("child.call(\"m\", [1], #{u: 2})", r#"{"method":"m","args":[1],"kwargs":{"u":2}}"#),
        ("child.call(\"m\", #{u: 2})", r#"{"method":"m","args":[],"kwargs":{"u":2}}"#),
        ("child.call(\"m\", args, kwargs)", r#"{"method":"m","args":[2,3],"kwargs":{"unit":"m"}}"#),
        ("child.call(\"m\", 1, 2, kw(#{u: 3}))", r#"{"method":"m","args":[1,2],"kwargs":{"u":3}}"#),
        ("child.m()", r#"{"method":"m","args":[],"kwargs":{}}"#),
        ("child.m(1, [2], #{x: 3})", r#"{"method":"m","args":[1,[2],{"x":3}],"kwargs":{}}"#),
        ("child.m(1, kw(#{u: 3}))", r#"{"method":"m","args":[1],"kwargs":{"u":3}}"#),
        ("child.m(1,2,3,4,5,6,7,8)", r#"{"method":"m","args":[1,2,3,4,5,6,7,8],"kwargs":{}}"#),
        ("child.m(args)", r#"{"method":"m","args":[[2,3]],"kwargs":{}}"#),
        ("child.sum([1])", r#"{"method":"sum","args":[[1]],"kwargs":{}}"#),
        ("child.map(1)", r#"{"method":"map","args":[1],"kwargs":{}}"#),
        ("child.len()", r#"{"method":"len","args":[],"kwargs":{}}"#),
    ] {
        let code = format!("let child = agent.delegate(\"c\"); {code}.value");
        assert_eq!(value(run(&code)), json(expected), "{code}");
    }
    assert_eq!(value(run("agent.remember(#{mode: \"x\"}) == agent")), true.into());
    assert_eq!(host.context()["mode"], "x".into());
    assert_eq!(value(run("agent.tool(\"sum\").role")), "sum".into());
    assert_eq!(value(run("agent.responds_to(\"memory=\")")), true.into());
    assert_eq!(value(run("let c = agent.delegate(\"c\"); c.memory = 5; c.memory += 1; c.memory")), 6.into());
    assert_eq!(value(run("let c = agent.delegate(\"c\"); c.list = [1]; c.list.push(2); c.list")), json("[1, 2]"));
    assert_eq!(
        value(run("let c = agent.delegate(\"c\"); c.runtime_context.mode = 1; c.runtime_context[\"mode\"]")),
        1.into()
    );
    assert_eq!(value(run("agent.value = 4; context.value")), 4.into());
    assert!(raised(run("agent.delegate(\"x\", #{colour: 1})")).contains("unknown option `colour`"));
    assert!(host.asked().contains(&"call 2 add [2,3] {}".to_owned()), "{:?}", host.asked());
}

#[test]
fn a_programs_own_function_never_takes_an_agents_call() {
    let code = "fn add(a, b) { throw \"mine\" } let child = agent.delegate(\"c\"); child.add(2, 3).value";
    check(code, "[]", "{}", "5");
    check("fn add(a, b) { a * b } add(2, 3)", "[]", "{}", "6");
    check("fn twice() { this * 2 } let x = 4; x.twice()", "[]", "{}", "8");
}

#[test]
fn outcomes_are_envelopes_and_maps_are_data() {
    let agent = "let o = agent.delegate(\"c\")";
    check(
        &format!("{agent}.add(1); [o.ok, o.status, o.value, o.error_type, o.retriable]"),
        "[]",
        "{}",
        r#"[true, "ok", 1, null, false]"#,
    );
    check(
        &format!(
            "{agent}.fail(); [o.ok, o.status, o.value, o.error_type, o.error_message, o.retriable, o.value_or(7)]"
        ),
        "[]",
        "{}",
        r#"[false, "error", null, "low_utility", "not worth it", true, 7]"#,
    );
    assert_eq!(raised(run(&format!("{agent}.fail(); o.unwrap()"), "[]", "{}")), "low_utility: not worth it (line 1)");
    check(
        &format!("{agent}.fail(); try {{ o.unwrap() }} catch (e) {{ return e; }}"),
        "[]",
        "{}",
        "\"low_utility: not worth it\"",
    );
    let Ok(Returned::Outcome(outcome)) = run(&format!("{agent}.fail(); return o;"), "[]", "{}").result else {
        panic!()
    };
    assert_eq!(outcome.error().unwrap().error_type, ErrorType::Other("low_utility".into()));
    let code = "Outcome::error(#{error_type: \"low_utility\", error_message: \"no\", retriable: true})";
    let Ok(Returned::Outcome(outcome)) = run(code, "[]", "{}").result else { panic!() };
    assert_eq!(outcome, Outcome::of_error(ErrorType::Other("low_utility".into()), "no", true));
    let Ok(Returned::Outcome(outcome)) = run("Outcome::ok([1])", "[]", "{}").result else { panic!() };
    assert_eq!(outcome, Outcome::of_value(json("[1]")));
    check(
        "#{status: \"error\", ok: false, error_type: \"x\"}",
        "[]",
        "{}",
        r#"{"status":"error","ok":false,"error_type":"x"}"#,
    );
    assert!(raised(run("Outcome::error(#{error_typ: \"x\"})", "[]", "{}")).contains("not `error_typ`"));
    let refused = run("[Outcome::ok(1)]", "[]", "{}").result;
    assert_eq!(
        refused,
        Err(ProgramFailure::Refused { message: "$[0]: an Outcome is no data; use its `value`".into() })
    );
    assert!(raised(run("if Outcome::ok(true) { 1 }", "[]", "{}")).contains("bool"));
    check(&format!("{agent}.m([1, 2]); let t = 0; for i in 0..2 {{ t += o.value.args[0][i]; }} t"), "[]", "{}", "3");
}

#[test]
fn tools_history_json_time_and_randomness() {
    check("tools.fetch_url(#{url: \"u\"}).url", "[]", "{}", "\"u\"");
    check("tools.call(\"fetch_url\", #{url: \"u\"}).url", "[]", "{}", "\"u\"");
    check("\"fetch_url\" in tools && !(\"other\" in tools)", "[]", "{}", "true");
    assert!(raised(run("tools.nothing(#{})", "[]", "{}")).contains("there is no tool `nothing`"));
    assert!(raised(run("tools.fetch_url(1)", "[]", "{}")).contains("one map of named arguments"));
    check("history.len()", "[]", "{}", "2");
    check("history[0].value + history[1].value[1]", "[]", "{}", "7");
    check("let n = 0; for h in history { n += 1; } n", "[]", "{}", "2");
    check("content(\"c1\")", "[]", "{}", "\"content of c1\"");
    check("json::encode(#{b: [1, 2.5, ()], a: \"x\"})", "[]", "{}", r#""{\"a\":\"x\",\"b\":[1,2.5,null]}""#);
    check(
        "json::decode(`{\"a\": [1, 2.0, null, 9007199254740993]}`)",
        "[]",
        "{}",
        r#"{"a": [1, 2.0, null, 9007199254740993]}"#,
    );
    check("json_decode(json_encode(args))", "[1, \"a\"]", "{}", "[1, \"a\"]");
    check("now()", "[]", "{}", "1700000000000");
    check("random()", "[]", "{}", "0.25");
    assert!(raised(run("json::decode(\"{\")", "[]", "{}")).contains("no JSON"));
}

#[test]
fn print_is_captured_and_bounded() {
    let execution = run("print(\"a\"); print(args); debug(1); print(#{b: 2}); 1", "[1]", "{}");
    assert_eq!(execution.output, "a\n[1]\n1\n#{\"b\": 2}\n");
    let limits = Limits { max_output_bytes: 10, ..small_limits() };
    let arguments = Arguments { args: &[], kwargs: &Map::new() };
    let code = "for i in 0..100 { print(\"äöü\"); }";
    let execution = run_limited(&RhaiExecutor::new(), code, arguments, &TestHost::default(), &limits);
    assert!(execution.output.len() <= 10, "{}", execution.output);
}

#[test]
fn reads_are_evidence() {
    let reads = |code: &str| {
        let host = TestHost::with([("value", 5.into())]);
        run_on(&RhaiExecutor::new(), code, &list("[1, 2, [3]]"), &map(r#"{"a": 1, "b": 2}"#), &host).reads
    };
    let args = |args: &[usize]| Reads { args: args.iter().copied().collect(), ..Reads::default() };
    assert_eq!(reads("1"), Reads::default());
    assert_eq!(reads("args[0] + args[1]"), args(&[0, 1]));
    assert_eq!(reads("args[2][0]"), args(&[2]));
    assert!(reads("args.len()").all_args);
    assert!(reads("args[-1]").all_args);
    assert!(reads("for x in args {}").all_args);
    assert!(reads("args.map(|x| x)").all_args);
    assert!(reads("let a = args; 1") == Reads::default());
    assert!(reads("args.get(9)").all_args);
    let kwargs = reads("kwargs.a; \"zz\" in kwargs");
    assert_eq!(kwargs.kwargs, ["a".to_owned(), "zz".to_owned()].into());
    assert!(!kwargs.all_kwargs && kwargs.args.is_empty());
    assert!(reads("kwargs.keys()").all_kwargs);
    assert!(reads("kwargs").all_kwargs);
    let context = reads("context.value = context.other; \"third\" in context");
    assert_eq!(context.context, ["other".to_owned(), "third".to_owned()].into());
    assert!(!context.all_context);
    assert!(reads("context.keys()").all_context);
    assert!(reads("agent.delegate(\"c\").m(args)").all_args);
}

#[test]
fn errors_name_their_line_and_nothing_else() {
    assert_eq!(raised(run("\n\nthrow \"boom\";", "[]", "{}")), "boom (line 3)");
    assert_eq!(raised(run("fn f() {\n throw \"boom\" }\n\nf();", "[]", "{}")), "boom (line 2)");
    assert_eq!(raised(run("throw #{code: 7}", "[]", "{}")), "{\"code\":7} (line 1)");
    assert_eq!(raised(run("throw || 1", "[]", "{}")), "a value of type Fn was thrown (line 1)");
    assert_eq!(
        raised(run("let x = 1;\nx.nothing_like_this()", "[]", "{}")),
        "Function not found: nothing_like_this (i64) (line 2)"
    );
    assert!(raised(run("throw args", "[1]", "{}")).starts_with("[1]"));
    let long = raised(run("throw \"x\".repeat(100000)", "[]", "{}"));
    assert!(long.len() <= 4096 && long.ends_with(" (line 1)"), "{}", long.len());
    let error = RhaiExecutor::new().compile("let x = 1;\nlet = 2;", &small_limits()).unwrap_err();
    assert_eq!(error.line, Some(2));
    let error = RhaiExecutor::new().compile(&"1;".repeat(40_000), &small_limits()).unwrap_err();
    assert!(error.message.contains("80000 bytes of source"), "{}", error.message);
    check("try { throw \"boom\" } catch (e) { e }", "[]", "{}", "null");
    check("let got = 0; try { throw \"boom\" } catch (e) { got = e; } got", "[]", "{}", "\"boom\"");
}

#[test]
fn everyday_functions() {
    for (code, expected) in [
        ("[1, 2, 3].join(\", \")", r#""1, 2, 3""#),
        ("[\"a\", 1, 2.5, true].join()", r#""a12.5true""#),
        ("[1, 2.5].sum()", "3.5"),
        ("[].sum()", "0"),
        ("[2, 3].product()", "6"),
        ("[1, 2].mean()", "1.5"),
        ("[3, 1, 2].min()", "1"),
        ("[3, 1, 2].max()", "3"),
        ("[\"b\", \"a\"].min()", "\"a\""),
        ("[].max()", "null"),
        ("[3, 1].sorted()", "[1, 3]"),
        ("let a = [3, 1]; a.sorted(); a", "[3, 1]"),
        ("[3, 1].reversed()", "[1, 3]"),
        ("[1, 2, 1].unique()", "[1, 2]"),
        ("[[1], 2, [[3]]].flatten()", "[1, 2, [3]]"),
        ("[\"a\"].enumerate()", r#"[[0, "a"]]"#),
        ("[1, 2].first() + [1, 2].last()", "3"),
        ("3.14159.round(2)", "3.14"),
        ("2.5.round()", "3.0"),
        ("1234.round(-2)", "1200.0"),
        ("3.14159.to_fixed(2)", "\"3.14\""),
        ("\" a \".trimmed()", "\"a\""),
        ("\"aXb\".replaced(\"X\", \"-\")", "\"a-b\""),
        ("\"ab\".repeat(2)", "\"abab\""),
        ("\"a,b\".split(\",\")", r#"["a", "b"]"#),
        ("\"a b\".split()", r#"["a", "b"]"#),
        ("\"a\\nb\".lines()", r#"["a", "b"]"#),
        ("let s = \"a\"; s.pad(3, '-'); s", "\"a--\""),
        ("let s = \"a\"; s.pad(4, \"xy\"); s", "\"axyx\""),
        ("let a = [1]; a.pad(3, 0); a", "[1, 0, 0]"),
        ("let a = [1, 3]; a.insert(1, 2); a.insert(-1, 9); a", "[1, 2, 9, 3]"),
        ("let s = \"banana\"; s.replace(\"an\", \"-\"); s", "\"b--a\""),
        ("type_name(1.5)", "\"number\""),
        ("7 / 2", "3"),
        ("#{b: 1, a: 2}.keys()", r#"["a", "b"]"#),
        ("9223372036854775807", "9223372036854775807"),
        ("1.0", "1.0"),
        ("'x'", "\"x\""),
        ("()", "null"),
        ("[]", "[]"),
        ("#{}", "{}"),
        ("exit(4)", "4"),
    ] {
        check(code, "[]", "{}", expected);
    }
}

#[test]
fn nested_execution_on_one_thread_works() {
    let executor = Arc::new(RhaiExecutor::new());
    let host = TestHost { nested: Some(executor.clone()), ..TestHost::default() };
    let code =
        "let c = agent.delegate(\"c\"); let x = args[0]; let y = c.nest(\"args[0] * 2\", 21).unwrap(); [x, y, args[0]]";
    assert_eq!(value(run_on(&executor, code, &[7.into()], &Map::new(), &host)), json("[7, 42, 7]"));
}

#[test]
fn a_reused_program_is_cheap_and_counts_the_same() {
    let executor = RhaiExecutor::new();
    let limits = Limits::default();
    let program = executor.compile("args[0] + args[1]", &limits).expect("compiles");
    let (args, kwargs, host, cancel) = (list("[2, 3]"), Map::new(), TestHost::default(), CancelToken::default());
    let bounds = Bounds { limits: &limits, deadline: None, cancel: &cancel };
    let run = || executor.execute(&program, Arguments { args: &args, kwargs: &kwargs }, &host, &bounds);
    let first = run().instructions;
    let started = Instant::now();
    for _ in 0..1_000 {
        let execution = run();
        assert_eq!(execution.instructions, first);
        assert_eq!(execution.result, Ok(Returned::Value(5.into())));
    }
    eprintln!("a reused program: {:?} per call", started.elapsed() / 1_000);
    assert_eq!(executor.language(), Language::Rhai);
}

/// What an attack must come to, as its header says: `cpu_time`, `raised`, `ok 5`, `refused $.a`, ...; `|` separates
/// alternatives.
fn outcome_class(result: &Result<Returned, ProgramFailure>) -> String {
    match result {
        Ok(Returned::Value(value)) => format!("ok {value}"),
        Ok(Returned::Outcome(_)) => "outcome".into(),
        Err(ProgramFailure::Raised { .. }) => "raised".into(),
        Err(ProgramFailure::Fuel { .. }) => "fuel".into(),
        Err(ProgramFailure::CpuTime { .. }) => "cpu_time".into(),
        Err(ProgramFailure::Deadline) => "deadline".into(),
        Err(ProgramFailure::Memory { .. }) => "memory".into(),
        Err(ProgramFailure::CallDepth) => "call_depth".into(),
        Err(ProgramFailure::HostCalls { .. }) => "host_calls".into(),
        Err(ProgramFailure::Refused { message }) => {
            format!("refused {}", message.split(": ").next().unwrap_or_default())
        }
        Err(ProgramFailure::Interrupted) => "interrupted".into(),
        Err(ProgramFailure::Internal { .. }) => "internal".into(),
    }
}

fn matches_class(expected: &str, found: &str) -> bool {
    expected.split('|').map(str::trim).any(|class| match class {
        "refused" | "ok" => found.starts_with(class),
        class => class == found,
    })
}

/// CPU time of this process.
fn process_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live `timespec`.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A number of `/proc/self/status`, in MiB.
fn status_mib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or("x 0");
    line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn header<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix("// ")?.strip_prefix(name)?.strip_prefix(": "))
}

/// Every attack ends in its class, within its bounds, and the next call on the same executor works.
fn run_corpus() {
    let executor = Arc::new(RhaiExecutor::new());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/hostile/rhai");
    let mut files: Vec<_> = std::fs::read_dir(folder).expect("the corpus").map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 80, "{}", files.len());
    let only = std::env::var("ATTACK").ok();
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("an attack");
        let expected = header(&text, "expect").unwrap_or_else(|| panic!("{name} states no expectation"));
        let mut limits = Limits {
            // Only what nothing else stops is worth waiting for, and not for long.
            cpu_time: Duration::from_millis(if expected == "cpu_time" { 60 } else { 1_500 }),
            max_memory_bytes: 32 << 20,
            max_host_calls: 200,
            ..Limits::default()
        };
        if let Some(instructions) = header(&text, "instructions") {
            limits.max_instructions = instructions.parse().expect("a number");
        }
        let host = TestHost { nested: Some(executor.clone()), ..TestHost::with([("value", 5.into())]) };
        let (started, cpu) = (Instant::now(), process_cpu());
        let found = match executor.compile(&text, &limits) {
            Err(error) => {
                assert!(error.message.len() <= 4096);
                format!("compile: {}", error.message)
            }
            Ok(program) => {
                let cancel = CancelToken::default();
                let deadline = Some(Instant::now() + Duration::from_secs(15));
                let bounds = Bounds { limits: &limits, deadline, cancel: &cancel };
                let arguments = Arguments { args: &[], kwargs: &Map::new() };
                let execution = executor.execute(&program, arguments, &host, &bounds);
                if let Err(failure) = &execution.result {
                    assert!(failure.to_string().len() <= 4096 + 200, "{name}: {}", failure.to_string().len());
                }
                assert!(execution.output.len() <= limits.max_output_bytes, "{name}");
                let class = outcome_class(&execution.result);
                if matches_class(expected, &class) { class } else { format!("{class}: {:?}", execution.result) }
            }
        };
        let (wall, cpu) = (started.elapsed(), process_cpu() - cpu);
        if only.is_some() {
            eprintln!("{name}: {found} in {wall:?}, CPU {cpu:?}, peak {} MiB", status_mib("VmHWM"));
        }
        let class = if found.starts_with("compile") { "compile" } else { &found };
        if !matches_class(expected, class) {
            wrong.push(format!("{name}: expected {expected}, found {}", &found[..found.len().min(300)]));
        }
        // Nested programs have budgets of their own.
        if cpu > limits.cpu_time * 2 + Duration::from_millis(500) || wall > Duration::from_secs(10) {
            wrong.push(format!("{name}: took {wall:?}, CPU {cpu:?}"));
        }
        let after = run_on(&executor, "args[0] + args[1]", &list("[2, 3]"), &Map::new(), &host);
        assert_eq!(after.result, Ok(Returned::Value(5.into())), "after {name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let peak = status_mib("VmHWM");
    assert!(peak < 400, "peak of {peak} MiB at a limit of 32 MiB per program");
}

#[test]
fn hostile_programs_on_a_small_stack() {
    std::thread::Builder::new().stack_size(2 << 20).spawn(run_corpus).unwrap().join().unwrap();
}

#[test]
fn hostile_programs_on_a_large_stack() {
    std::thread::Builder::new().stack_size(8 << 20).spawn(run_corpus).unwrap().join().unwrap();
}
