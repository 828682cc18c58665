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
static ALLOCATOR: MeteredAllocator = MeteredAllocator(std::alloc::System);

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

/// Rhai refuses these ("data race"): the list is at work while the closure looks at it.
#[test]
fn closures_may_look_at_the_list_they_work_on() {
    check("let xs = [1, 2]; xs.map(|x| x + xs.len())", "[]", "{}", "[3, 4]");
    check("let o = #{k: 3, xs: [1, 2]}; o.xs.map(|x| x * o.k)", "[]", "{}", "[3, 6]");
    check("let xs = args; xs.filter(|x| x > xs[0])", "[1, 2]", "{}", "[2]");
    check("args.map(|x| x * args.len())", "[1, 2]", "{}", "[2, 4]");
    check("args[0].map(|x| x + args[0].len())", "[[1, 2]]", "{}", "[3, 4]");
    check("kwargs.a.filter(|x| x < kwargs.a.max())", "[]", r#"{"a": [1, 2]}"#, "[1]");
    check("let o = agent.delegate(\"c\").m(1, 2); o.value.args.map(|x| x + o.value.args.len())", "[]", "{}", "[3, 4]");
    check("context.a = [1, 2]; let a = context.a; a.map(|x| x + context.a.len())", "[]", "{}", "[3, 4]");
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
    let named = map(r#"{"unit": "m", "value": 9}"#);
    let run = |code: &str| run_on(&executor, code, &[], &named, &host);
    assert_eq!(value(run("context.mixin(kwargs); context.unit")), "m".into());
    assert_eq!(value(run("agent.remember(kwargs); context.value")), 9.into());
    assert_eq!(value(run("agent.delegate(\"c\", kwargs).m(kwargs).value.args[0].unit")), "m".into());
    assert_eq!(host.asked().iter().filter(|asked| asked.starts_with("remember")).count(), 1);
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
        ("let a = [3, 1, 2]; a.sort(); a", "[1, 2, 3]"),
        ("let a = [3, 1.5, 2]; a.sort(); a", "[1.5, 2, 3]"),
        ("let a = [\"b\", \"a\"]; a.sort_desc(); a", "[\"b\", \"a\"]"),
        ("let a = [3, 1, 2]; a.sort(|x, y| y - x); a", "[3, 2, 1]"),
        ("let a = [3, 1, 2]; a.sort(|x, y| x < y); a", "[1, 2, 3]"),
        ("let a = [2.5, 1.5]; a.sort(|x, y| x - y); a", "[1.5, 2.5]"),
        ("[3, 1, 2].order()", "[1, 2, 3]"),
        ("[3, 1, 2].order_desc()", "[3, 2, 1]"),
        ("[3, 1, 2].sorted(|x, y| y - x)", "[3, 2, 1]"),
        ("let a = [1, 1, 2]; a.dedup(); a", "[1, 2]"),
        ("let a = [1, 3, 2]; a.dedup(|x, y| x % 2 == y % 2); a", "[1, 2]"),
        ("`${[1, \"a\", 2.0, 'c', (), true, #{b: [1]}]}`", r#""[1, \"a\", 2.0, 'c', (), true, #{\"b\": [1]}]""#),
        ("\"x\" + [1] + #{a: 1}", r#""x[1]#{\"a\": 1}""#),
        ("let s = \"x\"; s += [1]; s += 2; s", "\"x[1]2\""),
        ("`${1}${\"a\"}${|| 1}`.len() > 5", "true"),
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
            cpu_time: Duration::from_millis(match expected {
                "cpu_time" => 60,
                either if either.contains("cpu_time") => 500,
                _ => 1_500,
            }),
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
        // Nested programs have budgets of their own, and one native step over a large text is long in a debug build on a
        // busy machine: this tells bounded from unbounded, and measures nothing.
        if cpu > limits.cpu_time * 2 + Duration::from_secs(3) || wall > Duration::from_secs(10) {
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

/// What the executor runs under, apart from its limits.
struct Under {
    limits: Limits,
    deadline: Option<Duration>,
    cancel: CancelToken,
}

impl Default for Under {
    fn default() -> Self {
        let limits = Limits { cpu_time: Duration::from_secs(20), ..Limits::default() };
        Self { limits, deadline: Some(Duration::from_secs(20)), cancel: CancelToken::default() }
    }
}

fn run_under(code: &str, host: &dyn Host, under: &Under) -> Execution {
    let executor = RhaiExecutor::new();
    let program = executor.compile(code, &under.limits).unwrap_or_else(|error| panic!("{error}\n{code}"));
    let deadline = under.deadline.map(|deadline| Instant::now() + deadline);
    let bounds = Bounds { limits: &under.limits, deadline, cancel: &under.cancel };
    executor.execute(&program, Arguments { args: &[], kwargs: &Map::new() }, host, &bounds)
}

/// Runs a test where programs run in place, and where they get a thread of their own.
fn on_both_stacks(test: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for size in [8 << 20, 2 << 20] {
            std::thread::Builder::new().stack_size(size).spawn_scoped(scope, &test).unwrap().join().unwrap();
        }
    });
}

#[test]
fn the_wall_deadline_ends_a_program() {
    on_both_stacks(|| {
        let under = Under { deadline: Some(Duration::from_millis(50)), ..Under::default() };
        let started = Instant::now();
        assert_eq!(run_under("loop { }", &TestHost::default(), &under).result, Err(ProgramFailure::Deadline));
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
        let under = Under { deadline: Some(Duration::ZERO), ..Under::default() };
        assert_eq!(run_under("1", &TestHost::default(), &under).result, Err(ProgramFailure::Deadline));
    });
}

#[test]
fn ec_t1_1_the_cancel_token_ends_a_program() {
    on_both_stacks(|| {
        let under = Under::default();
        let cancel = under.cancel.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                cancel.cancel();
            });
            let code = "loop { try { loop { } } catch { } }";
            assert_eq!(run_under(code, &TestHost::default(), &under).result, Err(ProgramFailure::Interrupted));
        });
    });
}

#[test]
fn the_cancel_token_is_ticked_on_the_callers_thread() {
    on_both_stacks(|| {
        let home = std::thread::current().id();
        let ticks = Arc::new(Mutex::new(Vec::new()));
        let seen = ticks.clone();
        let cancel = CancelToken::with_poll(move || {
            let mut seen = seen.lock();
            seen.push(std::thread::current().id());
            seen.len() >= 3
        });
        let under = Under { cancel, ..Under::default() };
        assert_eq!(run_under("loop { }", &TestHost::default(), &under).result, Err(ProgramFailure::Interrupted));
        assert!(ticks.lock().iter().all(|thread| *thread == home));
    });
}

/// Time the host takes is not the program's.
#[test]
fn host_calls_cost_no_cpu_time() {
    struct Slow(TestHost);
    impl Slow {
        fn spin() {
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(40) {}
        }
    }
    impl Host for Slow {
        fn context_get(&self, agent: AgentRef, key: &str) -> Option<Value> {
            self.0.context_get(agent, key)
        }
        fn context_set(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
            self.0.context_set(agent, key, value)
        }
        fn context_remove(&self, agent: AgentRef, key: &str) -> Result<(), HostError> {
            self.0.context_remove(agent, key)
        }
        fn context_keys(&self, agent: AgentRef) -> Vec<String> {
            self.0.context_keys(agent)
        }
        fn role(&self, agent: AgentRef) -> Arc<str> {
            self.0.role(agent)
        }
        fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError> {
            self.0.remember(agent, entries)
        }
        fn delegate(&self, agent: AgentRef, role: &str, options: Map) -> Result<AgentRef, HostError> {
            self.0.delegate(agent, role, options)
        }
        fn for_role(&self, role: &str, options: Map) -> Result<AgentRef, HostError> {
            self.0.for_role(role, options)
        }
        fn agent_tool(&self, agent: AgentRef, name: &str) -> Result<AgentRef, HostError> {
            self.0.agent_tool(agent, name)
        }
        fn responds_to(&self, agent: AgentRef, name: &str) -> bool {
            self.0.responds_to(agent, name)
        }
        fn call(&self, agent: AgentRef, method: &str, args: Vec<Value>, kwargs: Map) -> Result<Outcome, HostError> {
            Self::spin();
            self.0.call(agent, method, args, kwargs)
        }
        fn tool(&self, name: &str, arguments: Map) -> Result<Value, HostError> {
            self.0.tool(name, arguments)
        }
        fn tool_names(&self) -> Vec<String> {
            self.0.tool_names()
        }
        fn history(&self) -> Vec<Value> {
            self.0.history()
        }
        fn content(&self, reference: &str) -> Result<Value, HostError> {
            self.0.content(reference)
        }
        fn now(&self) -> i64 {
            self.0.now()
        }
        fn random(&self) -> f64 {
            self.0.random()
        }
        fn print(&self, line: &str) {
            self.0.print(line);
        }
    }
    let limits = Limits { cpu_time: Duration::from_millis(100), ..Limits::default() };
    let under = Under { limits, ..Under::default() };
    let code = "let c = agent.delegate(\"c\"); for i in 0..6 { c.m(i); } \"done\"";
    assert_eq!(value(run_under(code, &Slow(TestHost::default()), &under)), "done".into());
}

/// The same program spends the same steps and fails the same way wherever it runs.
#[test]
fn steps_and_depth_are_the_same_on_every_stack() {
    let results = Mutex::new(Vec::new());
    on_both_stacks(|| {
        let under = Under::default();
        let run = |code: &str| {
            let execution = run_under(code, &TestHost::default(), &under);
            (execution.instructions, execution.result)
        };
        results.lock().push([
            run("fn f(n) { if n == 0 { 0 } else { 1 + f(n - 1) } } f(150)"),
            run("fn f(n) { f(n + 1) } f(0)"),
            run("fn f(n) { [n].map(|x| f(x + 1)) } f(0)"),
            run("fn f(n) { for i in 0..1 { switch n { _ => { let x = [1, #{a: [`${f(n + 1)}`]}]; } } } } f(0)"),
            run("let l = (); for i in 0..350 { l = [l]; } l == l; `${l}`.len()"),
        ]);
    });
    let results = results.into_inner();
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0][0].1, Ok(Returned::Value(150.into())));
    for (_, result) in &results[0][1..4] {
        assert_eq!(*result, Err(ProgramFailure::CallDepth));
    }
}

/// Whatever programs do with closures, nothing stays behind: not one byte.
#[test]
fn hostile_programs_leave_no_memory_behind() {
    // Where programs run in place, what they hold is held by this thread.
    let on = std::thread::Builder::new().stack_size(16 << 20);
    on.spawn(leave_no_memory_behind).unwrap().join().unwrap();
}

fn leave_no_memory_behind() {
    let executor = RhaiExecutor::new();
    let limits = Limits { cpu_time: Duration::from_secs(2), ..Limits::default() };
    let big = "let a = []; a.pad(20000, 1);";
    let programs: Vec<_> = [
        "let f = 0; let g = || f; f = [a]; try { f = || g; } catch { } 1",
        "let o = #{a: a}; try { o.get = || o.a; } catch { } 1",
        "let l = [a]; try { l.push(|| l); } catch { } 1",
        "let fs = []; for i in 0..3 { fs.push(|| a.len() + i); } for h in fs { let g = || h; try { fs.push(g); } catch { } } 1",
        "context.a = a; let c = agent.delegate(\"c\"); c.m(context.a); 1",
        "fn keep(f) { this.push(f); } let l = [a]; try { l.keep(|| l); } catch { } 1",
        "let f = |me| me; let g = || f; try { f = [|| g]; } catch { } 1",
    ]
    .iter()
    .map(|code| executor.compile(&format!("{big} {code}"), &limits).expect("compiles"))
    .collect();
    let round = |count: usize| {
        for _ in 0..count {
            for program in &programs {
                let (host, cancel) = (TestHost::default(), CancelToken::default());
                let bounds = Bounds { limits: &limits, deadline: None, cancel: &cancel };
                let arguments = Arguments { args: &[], kwargs: &Map::new() };
                let execution = executor.execute(program, arguments, &host, &bounds);
                assert_eq!(execution.result, Ok(Returned::Value(1.into())), "{program:?}");
            }
        }
    };
    round(2);
    let before = MeteredAllocator::held();
    round(10);
    assert_eq!(MeteredAllocator::held() - before, 0);
}

#[test]
fn a_panic_or_a_limit_never_poisons_the_executor() {
    let executor = Arc::new(RhaiExecutor::new());
    let host = TestHost { nested: Some(executor.clone()), ..TestHost::with([("value", 5.into())]) };
    let run = |code: &str| run_on(&executor, code, &[1.into()], &Map::new(), &host);
    for _ in 0..3 {
        assert!(
            matches!(run("agent.delegate(\"c\").boom()").result, Err(ProgramFailure::Internal { message }) if message == "the host broke")
        );
        assert!(matches!(run("fn f() { f() } f()").result, Err(ProgramFailure::CallDepth)));
        assert_eq!(value(run("context.value + args[0]")), 6.into());
    }
}

#[test]
fn programs_run_in_parallel_without_meeting() {
    let executor = RhaiExecutor::new();
    std::thread::scope(|scope| {
        for number in 0..4_i64 {
            let executor = &executor;
            scope.spawn(move || {
                let host = TestHost::with([("value", number.into())]);
                for _ in 0..50 {
                    let code = "context.value += args[0]; context.list = [context.value]; context.list";
                    value(run_on(executor, code, &[1.into()], &Map::new(), &host));
                }
                assert_eq!(host.context()["list"], Value::List(vec![(number + 50).into()]));
            });
        }
    });
}

/// Values survive the way into a program and back (engines.md 5.4).
mod round_trip {
    use proptest::prelude::*;

    use super::*;

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::Float),
            Just(Value::Float(-0.0)),
            Just(Value::Int(9_007_199_254_740_993)),
            any::<String>().prop_map(Value::String),
        ];
        leaf.prop_recursive(5, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::List),
                prop::collection::btree_map(any::<String>(), inner, 0..6).prop_map(Value::Map),
            ]
        })
    }

    /// Bit for bit, so that `0.0` and `-0.0`, `1` and `1.0` stay apart.
    fn same(one: &Value, other: &Value) -> bool {
        match (one, other) {
            (Value::Float(one), Value::Float(other)) => one.to_bits() == other.to_bits(),
            (Value::List(one), Value::List(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
            }
            (Value::Map(one), Value::Map(other)) => {
                one.len() == other.len()
                    && one.iter().zip(other).all(|((key, one), (name, other))| key == name && same(one, other))
            }
            (Value::Float(_), _) | (_, Value::Float(_)) => false,
            (one, other) => one == other,
        }
    }

    const PIECES: [&str; 72] = [
        "let a = ",
        "let b = ",
        "a",
        "b",
        "1",
        "2.5",
        "\"s\"",
        "`${a}`",
        "[",
        "]",
        "#{",
        "}",
        "x: ",
        ", ",
        "(",
        ")",
        ";",
        "\n",
        " = ",
        " += ",
        " == ",
        " + ",
        " - ",
        " && ",
        " ?? ",
        "!",
        "-",
        ".",
        ".x",
        ".a",
        "[0]",
        "[-1]",
        ".len()",
        ".map(",
        ".push(",
        ".filter(",
        ".call(",
        ".insert(0, ",
        "|x| ",
        "|| ",
        "x",
        "this",
        "fn f(x) { ",
        "fn g() { ",
        "{ ",
        " }",
        "if ",
        " else ",
        "for x in ",
        "while ",
        "loop { ",
        "break;",
        "return ",
        "throw ",
        "try { ",
        " catch (e) { ",
        "switch ",
        " => ",
        "_",
        "args",
        "kwargs",
        "context",
        "agent",
        "tools",
        "history",
        ".delegate(\"c\")",
        ".m(",
        "Outcome::ok(",
        "json::encode(",
        "f(",
        "print(",
        "Fn(\"f\")",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

        #[test]
        fn every_way_in_and_out_keeps_values(given in any_value()) {
            let executor = RhaiExecutor::new();
            let host = TestHost::with([("given", given.clone())]);
            let kwargs: Map = [("given".to_owned(), given.clone())].into();
            for code in [
                "args[0]",
                "kwargs.given",
                "context.given",
                "let x = args[0]; [x, #{k: x}][1].k",
                "context.copy = args[0]; context.copy",
                "Outcome::ok(args[0]).value",
                "agent.delegate(\"c\").m(args[0]).value.args[0]",
                "agent.delegate(\"c\").call(\"m\", [], kwargs).value.kwargs.given",
                "tools.fetch_url(kwargs).given",
                "json::decode(json::encode(args[0]))",
            ] {
                let execution = run_on(&executor, code, std::slice::from_ref(&given), &kwargs, &host);
                let Ok(Returned::Value(back)) = &execution.result else {
                    panic!("{code}: {:?}", execution.result);
                };
                prop_assert!(same(back, &given), "{code}: {back} from {given}");
            }
            let stored = host.context();
            prop_assert!(same(&stored["copy"], &given));
        }

        /// Whatever a model puts together: it parses or it does not, and it ends, and nothing in it is our fault.
        #[test]
        fn any_program_ends(pieces in prop::collection::vec(0..PIECES.len(), 1..24)) {
            let text: String = pieces.iter().map(|index| PIECES[*index]).collect();
            let limits = Limits { cpu_time: Duration::from_millis(50), ..Limits::default() };
            let executor = RhaiExecutor::new();
            if let Ok(program) = executor.compile(&text, &limits) {
                let cancel = CancelToken::default();
                let bounds = Bounds { limits: &limits, deadline: None, cancel: &cancel };
                let (args, kwargs) = (list("[[1, [2]], 3]"), map(r#"{"a": [1]}"#));
                let arguments = Arguments { args: &args, kwargs: &kwargs };
                let host = TestHost::with([("a", json("[1, {\"b\": 2}]"))]);
                let result = executor.execute(&program, arguments, &host, &bounds).result;
                prop_assert!(!matches!(result, Err(ProgramFailure::Internal { .. })), "{text}: {result:?}");
            }
        }

        /// Whatever text a model sends: it parses or it does not, and it ends.
        #[test]
        fn any_text_ends(text in "[a-c(){}\\[\\]#:;,.|&+*=<>!\"'`$ 0-9\\n]{0,80}") {
            let limits = Limits { cpu_time: Duration::from_millis(50), ..Limits::default() };
            let executor = RhaiExecutor::new();
            if let Ok(program) = executor.compile(&text, &limits) {
                let cancel = CancelToken::default();
                let bounds = Bounds { limits: &limits, deadline: None, cancel: &cancel };
                let arguments = Arguments { args: &[], kwargs: &Map::new() };
                let result = executor.execute(&program, arguments, &TestHost::default(), &bounds).result;
                prop_assert!(!matches!(result, Err(ProgramFailure::Internal { .. })), "{text}: {result:?}");
            }
        }
    }
}

#[test]
fn numbers_without_a_json_form_come_in_and_never_go_out() {
    let run = |code: &str| run_on(&RhaiExecutor::new(), code, &[f64::NAN.into()], &Map::new(), &TestHost::default());
    assert_eq!(value(run("args[0] == args[0]")), false.into());
    assert_eq!(
        run("[1, args[0]]").result,
        Err(ProgramFailure::Refused { message: "$[1]: NaN has no JSON form".into() })
    );
    assert!(raised(run("context.x = args[0]")).contains("`context.x` is refused: $: NaN"));
    let message = "`context.x` is refused: $[0]: NaN has no JSON form".to_owned();
    assert_eq!(run("context.x = [args[0]]; 1").result, Err(ProgramFailure::Refused { message }));
}

/// What people write without thinking of it as nesting.
#[test]
fn long_chains_compile() {
    let branches: String = (0..30).map(|n| format!(" else if x == {n} {{ \"{n}\" }}")).collect();
    check(&format!("let x = 29; if x < 0 {{ () }}{branches}"), "[]", "{}", "\"29\"");
    let cases: String = (0..500).map(|n| format!("{n} => {}, ", n * 2)).collect();
    check(&format!("switch 400 {{ {cases} _ => () }}"), "[]", "{}", "800");
    check(
        &format!("fn f(x) {{ for i in 0..1 {{ if x {{ return 0{}; }} }} }} f(true)", " + 1".repeat(60)),
        "[]",
        "{}",
        "60",
    );
    check(&format!("[{}].len()", "1,".repeat(5_000)), "[]", "{}", "5000");
}

#[test]
fn what_is_noted_of_a_programs_looks_is_bounded() {
    let looks = "let long = \"x\"; long.pad(5_000, 'y'); kwargs[long]; for i in 0..2_000 { context[`key${i}`]; } 1";
    let reads = run(looks, "[]", "{}").reads;
    assert!(reads.kwargs.is_empty() && reads.all_kwargs, "a very long name stands for all of them");
    assert!(reads.context.len() == 1_000 && reads.all_context, "and so do very many: {}", reads.context.len());
}

/// Sources that attack the parser: each is refused or runs, and nothing overflows.
#[test]
fn parser_bombs() {
    on_both_stacks(|| {
        let executor = RhaiExecutor::new();
        let limits = Limits { cpu_time: Duration::from_secs(5), ..Limits::default() };
        let fill = |piece: &str| piece.repeat(60_000 / piece.len());
        let sources = [
            format!("{}1{}", "(".repeat(30_000), ")".repeat(30_000)),
            format!("{}{}", "[".repeat(30_000), "]".repeat(30_000)),
            format!("{}{}", "#{a:".repeat(14_000), "}".repeat(3_000)),
            format!("{}{}", "{".repeat(30_000), "}".repeat(30_000)),
            format!("1{}", fill("+1")),
            format!("1{}", fill("**1")),
            format!("true{}", fill("||true")),
            format!("true{}", fill("&&true")),
            format!("1{}", fill("??1")),
            format!("{}1", fill("-")),
            format!("{}true", fill("!")),
            format!("let a = 1; a{}", fill(".b")),
            format!("let a = 1; a{}", fill("[0]")),
            format!("let a = 1; a{}", fill(".f()")),
            format!("{}1{}", "f(".repeat(20_000), ")".repeat(20_000)),
            format!("{}1", fill("|x|")),
            format!("{}1{}", "`${".repeat(10_000), "}`".repeat(10_000)),
            format!("if true {{ 1 }}{}", fill(" else if true { 1 }")),
            format!("{}1{}", "if true {".repeat(6_000), "}".repeat(6_000)),
            format!("{}1{}", "while true {".repeat(4_500), "}".repeat(4_500)),
            format!("{}1{}", "switch 1 { _ => ".repeat(3_500), "}".repeat(3_500)),
            format!("switch 1 {{ {} _ => 2 }}", (0..5_000).map(|n| format!("{n} => 1,")).collect::<String>()),
            format!("{}1{}", "try {".repeat(3_000), "} catch {}".repeat(3_000)),
            fill("let x = 1;"),
            fill("fn f() {}"),
            (0..4_000).map(|n| format!("fn f{n}(){{}}")).collect(),
            format!("\"{}\"", fill("a")),
            format!("/*{}", fill("/*")),
            format!("1{}", "0".repeat(60_000)),
            format!("0x{}", "f".repeat(60_000)),
            fill("\u{0}"),
            fill("\u{202e}"),
            format!("let {} = 1;", "x".repeat(60_000)),
            format!("[{}]", fill("1,")),
            format!("f({})", fill("1,")),
            format!("fn f({}) {{}}", (0..8_000).map(|n| format!("a{n},")).collect::<String>()),
            "`${`${`".into(),
            "\"unterminated".into(),
            String::new(),
        ];
        for source in &sources {
            let started = process_cpu();
            if let Ok(program) = executor.compile(source, &limits) {
                let cancel = CancelToken::default();
                let bounds = Bounds { limits: &limits, deadline: None, cancel: &cancel };
                let arguments = Arguments { args: &[], kwargs: &Map::new() };
                let execution = executor.execute(&program, arguments, &TestHost::default(), &bounds);
                let head: String = source.chars().take(40).collect();
                assert!(
                    !matches!(execution.result, Err(ProgramFailure::Internal { .. })),
                    "{head}: {:?}",
                    execution.result
                );
            }
            let head: String = source.chars().take(40).collect();
            assert!(process_cpu() - started < Duration::from_secs(8), "{head}");
        }
    });
}

/// The same surface inside a user's own trusted script (product.md section 5).
mod scripts {
    use cadenza_core::program::rhai::surface::{install_script, prepare_script};
    use rhai::{Dynamic, Engine};

    use super::*;

    fn run(code: &str) -> (Result<String, String>, Arc<TestHost>) {
        let host = Arc::new(TestHost::default());
        let mut engine = Engine::new();
        install_script(&mut engine, host.clone()).expect("installs");
        let ast = prepare_script(&engine.compile(code).expect("parses")).expect("prepares");
        let result = engine.eval_ast::<Dynamic>(&ast);
        (result.map(|value| value.to_string()).map_err(|error| error.to_string()), host)
    }

    #[track_caller]
    fn check(code: &str, expected: &str) {
        assert_eq!(run(code).0, Ok(expected.to_owned()), "{code}");
    }

    #[test]
    fn agents_answer_as_in_python() {
        let calc = "let calc = Agent::for_role(\"calculator\", #{log: \"calls.jsonl\"});";
        check(&format!("{calc} calc.memory = 5; calc.memory"), "5");
        check(&format!("{calc} calc.add(3, 4).value"), "7");
        check(&format!("{calc} calc.call(\"add\", [3, 4]).value"), "7");
        check(&format!("{calc} calc.remember(#{{mode: \"x\"}}) == calc"), "true");
        check(&format!("{calc} calc.remember(#{{mode: \"x\"}}); calc.runtime_context.mode"), "x");
        check(&format!("{calc} calc.runtime_context[\"mode\"] = 1; calc.runtime_context.mode += 1; calc.mode"), "2");
        check(
            &format!(
                "{calc} calc.items = [1]; calc.items.push(2); calc.runtime_context.items.push(3); calc.items.len()"
            ),
            "3",
        );
        check(&format!("{calc} calc.role"), "calculator");
        check(&format!("{calc} calc.delegate(\"tutor\", #{{purpose: \"p\"}}).role"), "tutor");
        check(&format!("{calc} calc.responds_to(\"memory=\")"), "true");
        check(&format!("{calc} calc.m(1, kw(#{{u: 2}})).value.kwargs.u"), "2");
        check(&format!("{calc} calc.fail().error_type"), "low_utility");
        check(&format!("fn add(a, b) {{ 0 }} {calc} calc.add(3, 4).value"), "7");
        check(&format!("{calc} let f = |x| x * 2; f.call(4)"), "8");
        check(&format!("fn ask(c) {{ c.call(\"add\", [1, 1]).value }} {calc} ask(calc)"), "2");
        check("Outcome::ok(3).value", "3");
        check("[1, 2].join(\"-\")", "1-2");
        check("let l = (); for i in 0..1000 { l = [l]; } 1", "1");
        assert!(run(&format!("{calc} calc.stop()")).0.is_err());
        let (result, host) = run(&format!("{calc} calc.memory = 5;"));
        assert_eq!(result, Ok(String::new()));
        assert_eq!(host.asked(), [r#"for_role calculator {"log":"calls.jsonl"}"#, "call 1 memory= [5] {}"]);
    }

    #[test]
    fn what_only_programs_have_is_absent() {
        assert!(run("args").0.unwrap_err().contains("Variable not found"));
        assert!(run("context").0.unwrap_err().contains("Variable not found"));
    }
}
