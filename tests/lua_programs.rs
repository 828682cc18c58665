//! Luau programs through the executor's own border: values, limits, evidence, the program interface, hostile programs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use cadenza_core::cancel::CancelToken;
use cadenza_core::outcome::{ErrorType, Outcome};
use cadenza_core::program::Isolation;
use cadenza_core::program::lua::{LuaExecutor, install_script};
use cadenza_core::program::{
    AgentRef, Arguments, Bounds, Execution, Executor, Host, HostError, Limits, ProgramFailure, Reads, Returned,
};
use cadenza_core::value::{Map, Value};
use proptest::prelude::*;

/// A call that reached the host: agent, method, arguments, keyword arguments.
type Call = (u32, String, Vec<Value>, Map);

/// A host in memory. Agent 0 is the program's own; children answer `add`, `echo`, `fail`, `panic`, `stop`, `run`.
struct TestHost {
    executor: Arc<LuaExecutor>,
    contexts: Mutex<BTreeMap<u32, Map>>,
    roles: Mutex<Vec<String>>,
    calls: Mutex<Vec<Call>>,
    options: Mutex<Vec<Map>>,
    history: Vec<Value>,
    printed: Mutex<Vec<String>>,
    depth: AtomicU32,
    max_depth: u32,
}

impl TestHost {
    fn new(context: Map) -> Self {
        Self {
            executor: Arc::new(LuaExecutor::new()),
            contexts: Mutex::new(BTreeMap::from([(0, context)])),
            roles: Mutex::new(vec!["calculator".to_owned()]),
            calls: Mutex::default(),
            options: Mutex::default(),
            history: Vec::new(),
            printed: Mutex::default(),
            depth: AtomicU32::new(0),
            max_depth: 8,
        }
    }

    fn context(&self) -> Map {
        self.contexts.lock().unwrap()[&0].clone()
    }

    fn new_agent(&self, role: &str, options: Map) -> Result<AgentRef, HostError> {
        if role == "forbidden" {
            return Err(HostError::Refused("no agent may have the role 'forbidden'".to_owned()));
        }
        let mut roles = self.roles.lock().unwrap();
        roles.push(role.to_owned());
        let agent = (roles.len() - 1) as u32;
        self.contexts.lock().unwrap().insert(agent, Map::new());
        self.options.lock().unwrap().push(options);
        Ok(AgentRef(agent))
    }
}

impl Host for TestHost {
    fn context_get(&self, agent: AgentRef, key: &str) -> Option<Value> {
        self.contexts.lock().unwrap().get(&agent.0)?.get(key).cloned()
    }

    fn context_set(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
        self.contexts.lock().unwrap().entry(agent.0).or_default().insert(key.to_owned(), value);
        Ok(())
    }

    fn context_remove(&self, agent: AgentRef, key: &str) -> Result<(), HostError> {
        self.contexts.lock().unwrap().entry(agent.0).or_default().remove(key);
        Ok(())
    }

    fn context_keys(&self, agent: AgentRef) -> Vec<String> {
        self.contexts.lock().unwrap().get(&agent.0).map(|map| map.keys().cloned().collect()).unwrap_or_default()
    }

    fn role(&self, agent: AgentRef) -> Arc<str> {
        self.roles.lock().unwrap()[agent.0 as usize].as_str().into()
    }

    fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError> {
        self.contexts.lock().unwrap().entry(agent.0).or_default().extend(entries);
        Ok(())
    }

    fn delegate(&self, _agent: AgentRef, role: &str, options: Map) -> Result<AgentRef, HostError> {
        self.new_agent(role, options)
    }

    fn for_role(&self, role: &str, options: Map) -> Result<AgentRef, HostError> {
        self.new_agent(role, options)
    }

    fn agent_tool(&self, _agent: AgentRef, name: &str) -> Result<AgentRef, HostError> {
        self.new_agent(name, Map::new())
    }

    fn responds_to(&self, agent: AgentRef, name: &str) -> bool {
        name.ends_with('=') || self.context_get(agent, name).is_some()
    }

    fn call(&self, agent: AgentRef, method: &str, args: Vec<Value>, kwargs: Map) -> Result<Outcome, HostError> {
        self.calls.lock().unwrap().push((agent.0, method.to_owned(), args.clone(), kwargs));
        if let Some(key) = method.strip_suffix('=') {
            self.context_set(agent, key, args[0].clone())?;
            return Ok(Outcome::of_value(args[0].clone()));
        }
        Ok(match method {
            "add" => Outcome::of_value(Value::Int(args.iter().filter_map(Value::as_int).sum())),
            "echo" => Outcome::of_value(Value::List(args)),
            "first" => Outcome::of_value(args.into_iter().next().unwrap_or_default()),
            "fail" => Outcome::of_error(ErrorType::Timeout, "too slow", true),
            "panic" => panic!("the host fell over"),
            "stop" => return Err(HostError::Stop),
            "refuse" => return Err(HostError::Refused("not like that".to_owned())),
            "touch" => {
                self.context_set(AgentRef::THIS, "touched", Value::List(vec![Value::Int(1)]))?;
                Outcome::of_value(Value::Null)
            }
            "seen" => Outcome::of_value(Value::Map(self.context())),
            "wait" => {
                std::thread::sleep(Duration::from_millis(args[0].as_int().unwrap_or(0) as u64));
                Outcome::of_value(Value::Null)
            }
            "burn" => {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(args[0].as_int().unwrap_or(0) as u64) {
                    std::hint::spin_loop();
                }
                Outcome::of_value(Value::Null)
            }
            "run" => {
                let limits = Limits { cpu_time: Duration::from_millis(100), ..Limits::default() };
                let cancel = CancelToken::default();
                let bounds = Bounds { limits: &limits, deadline: None, cancel: &cancel };
                let program = match self.executor.compile(args[0].as_str().unwrap_or_default(), &limits) {
                    Ok(program) => program,
                    Err(error) => return Ok(Outcome::of_error(ErrorType::InvalidCode, error.message, false)),
                };
                let arguments = Arguments { args: &args[1..], kwargs: &Map::new() };
                if self.depth.fetch_add(1, Ordering::Relaxed) >= self.max_depth {
                    self.depth.fetch_sub(1, Ordering::Relaxed);
                    return Ok(Outcome::of_error(ErrorType::BudgetExceeded, "too deep", false));
                }
                let execution = self.executor.execute(&program, arguments, self, &bounds);
                self.depth.fetch_sub(1, Ordering::Relaxed);
                match execution.result {
                    Ok(Returned::Value(value)) => Outcome::of_value(value),
                    Ok(Returned::Outcome(outcome)) => outcome,
                    Err(failure) => Outcome::of_error(ErrorType::Execution, failure.to_string(), false),
                }
            }
            other => Outcome::of_error(ErrorType::InvalidCode, format!("no program for {other}"), false),
        })
    }

    fn tool(&self, name: &str, arguments: Map) -> Result<Value, HostError> {
        match name {
            "fetch_url" => Ok(Value::Map(arguments)),
            "explode" => panic!("the tool fell over"),
            other => Err(HostError::Refused(format!("there is no tool '{other}'"))),
        }
    }

    fn tool_names(&self) -> Vec<String> {
        vec!["explode".to_owned(), "fetch_url".to_owned()]
    }

    fn history(&self) -> Vec<Value> {
        self.history.clone()
    }

    fn content(&self, reference: &str) -> Result<Value, HostError> {
        match reference {
            "r1" => Ok(json(r#"{"text": "hello"}"#)),
            other => Err(HostError::Refused(format!("no content '{other}'"))),
        }
    }

    fn now(&self) -> i64 {
        1_700_000_000_000
    }

    fn random(&self) -> f64 {
        0.25
    }

    fn print(&self, line: &str) {
        self.printed.lock().unwrap().push(line.to_owned());
    }
}

fn json(text: &str) -> Value {
    Value::from_json(text).unwrap()
}

fn map(text: &str) -> Map {
    match json(text) {
        Value::Map(map) => map,
        other => panic!("{other} is not a map"),
    }
}

/// One execution in a world of its own.
struct World {
    host: TestHost,
    limits: Limits,
    deadline: Option<Duration>,
    cancel: CancelToken,
}

impl World {
    fn new() -> Self {
        Self::with_context("{}")
    }

    fn with_context(context: &str) -> Self {
        Self {
            host: TestHost::new(map(context)),
            limits: Limits::default(),
            deadline: None,
            cancel: CancelToken::default(),
        }
    }

    fn run_with(&self, code: &str, args: &str, kwargs: &str) -> Execution {
        let executor = Arc::clone(&self.host.executor);
        self.run_on(&executor, code, args, kwargs)
    }

    fn run_on(&self, executor: &LuaExecutor, code: &str, args: &str, kwargs: &str) -> Execution {
        let program = executor.compile(code, &self.limits).unwrap_or_else(|error| panic!("{error}\n{code}"));
        let args = json(args);
        let kwargs = map(kwargs);
        let arguments = Arguments { args: args.as_list().unwrap(), kwargs: &kwargs };
        let deadline = self.deadline.map(|span| Instant::now() + span);
        let bounds = Bounds { limits: &self.limits, deadline, cancel: &self.cancel };
        executor.execute(&program, arguments, &self.host, &bounds)
    }

    fn run(&self, code: &str) -> Execution {
        self.run_with(code, "[]", "{}")
    }

    fn value(&self, code: &str) -> Value {
        value_of(self.run(code), code)
    }
}

fn value_of(execution: Execution, code: &str) -> Value {
    match execution.result {
        Ok(Returned::Value(value)) => value,
        other => panic!("{other:?}\n{code}"),
    }
}

/// A program and the JSON of its value.
fn check(code: &str, expected: &str) {
    assert_eq!(World::new().value(code).to_json(), expected, "{code}");
}

/// A program, its arguments, and the JSON of its value.
fn check_args(code: &str, args: &str, expected: &str) {
    let value = value_of(World::new().run_with(code, args, "{}"), code);
    assert_eq!(value.to_json(), expected, "{code} with {args}");
}

/// A program and a part of the message with which it fails.
fn check_failure(code: &str, part: &str) {
    let failure = World::new().run(code).result.expect_err(code);
    assert!(failure.to_string().contains(part), "{code}\n{failure}\nlacks {part}");
}

#[test]
fn a_plain_program_computes() {
    check_args("return args[1] + args[2]", "[2, 3]", "5");
    check("local t = {} for i = 1, 3 do t[i] = i * i end return t", "[1,4,9]");
    check("return", "null");
    check("return 7 // 2, nil", "3");
}

#[test]
fn context_is_read_and_written() {
    let world = World::with_context(r#"{"value": 5, "items": [1]}"#);
    assert_eq!(world.value("context.value = context.value + 1 return context.value").to_json(), "6");
    world.value("table.insert(context.items, 2) context.items[#context.items + 1] = 3");
    world.value("context.fresh = context.fresh or {} context.fresh.a = 1");
    assert_eq!(Value::Map(world.host.context()).to_json(), r#"{"fresh":{"a":1},"items":[1,2,3],"value":6}"#);
}

#[test]
fn outcomes_pass_through() {
    let world = World::new();
    let execution = world.run(r#"return Outcome.error{error_type = "low_utility", error_message = "no"}"#);
    let expected = Outcome::of_error(ErrorType::Other("low_utility".to_owned()), "no", false);
    assert_eq!(execution.result, Ok(Returned::Outcome(expected)));
    assert_eq!(world.value("local child = agent:delegate('tutor') return child:add(2, 3).value"), Value::Int(5));
}

#[test]
fn limits_end_programs() {
    let mut world = World::new();
    world.limits.max_instructions = 100_000;
    assert!(matches!(world.run("while true do end").result, Err(ProgramFailure::Fuel { .. })));
    assert!(matches!(
        world.run("while true do pcall(function() while true do end end) end").result,
        Err(ProgramFailure::Fuel { .. })
    ));
    world.limits.max_instructions = u64::MAX;
    world.limits.cpu_time = Duration::from_millis(50);
    assert!(matches!(world.run("while true do end").result, Err(ProgramFailure::CpuTime { .. })));
    world.limits.max_memory_bytes = 8 << 20;
    assert!(matches!(
        world.run("local t = {} while true do t[#t + 1] = {} end").result,
        Err(ProgramFailure::Memory { .. } | ProgramFailure::CpuTime { .. })
    ));
    assert!(matches!(world.run("return ('x'):rep(100000000)").result, Err(ProgramFailure::Memory { .. })));
    assert!(matches!(
        world.run("local function f() return 1 + f() end return f()").result,
        Err(ProgramFailure::CallDepth)
    ));
    assert_eq!(world.value("return 1"), Value::Int(1));
}

#[test]
fn reads_are_evidence() {
    let world = World::with_context(r#"{"value": 5, "other": 6}"#);
    let reads = |code: &str| {
        let execution = world.run_with(code, "[1, 2]", r#"{"unit": "m"}"#);
        assert!(execution.result.is_ok(), "{code}: {:?}", execution.result);
        execution.reads
    };
    assert_eq!(reads("return 1"), Reads::default());
    assert_eq!(reads("return args[2]"), Reads { args: [1].into(), ..Reads::default() });
    assert_eq!(reads("return args[3]"), Reads { args: [2].into(), ..Reads::default() });
    assert_eq!(reads("return #args"), Reads { all_args: true, ..Reads::default() });
    assert_eq!(reads("return kwargs.unit"), Reads { kwargs: ["unit".to_owned()].into(), ..Reads::default() });
    assert_eq!(reads("context.value = 7"), Reads::default());
    assert_eq!(reads("return context.value"), Reads { context: ["value".to_owned()].into(), ..Reads::default() });
    for code in ["return agent.value", "return agent:responds_to('value')", "return agent:call('value').ok"] {
        assert_eq!(reads(code), Reads { context: ["value".to_owned()].into(), ..Reads::default() }, "{code}");
    }
    for code in [
        "return table.unpack(args)",
        "return (unpack(args))",
        "return (...)",
        "return select('#', ...)",
        "for i, v in ipairs(args) do end",
        "for k, v in pairs(args) do end",
        "for k, v in args do end",
        "for k, v in next, args do end",
        "return (next(args))",
        "return table.concat(args, ',')",
        "return table.find(args, 2)",
        "return rawlen(args)",
        "return args",
        "return json.encode(args)",
        "return table.clone(args)",
        "table.sort(args)",
    ] {
        let code = code.replace("return table.unpack(args)", "return (table.unpack(args))");
        assert!(reads(&code).all_args, "{code}");
    }
    assert_eq!(reads("return rawget(args, 1)"), Reads { args: [0].into(), ..Reads::default() });
    for code in
        ["for k in pairs(kwargs) do end", "for k in kwargs do end", "return next(kwargs) ~= nil", "return kwargs"]
    {
        assert!(reads(code).all_kwargs, "{code}");
    }
    for code in
        ["for k in pairs(context) do end", "for k in context do end", "return next(context) ~= nil", "return context"]
    {
        assert!(reads(code).all_context, "{code}");
    }
}

#[test]
fn failures_name_the_line() {
    check_failure("local x = 1\nerror('boom')", "program:2: boom");
    check_failure("local t = nil\n\nreturn t.x", "program:3: ");
    check_failure("return function() end", "$: a function has no JSON form");
    check_failure("return nil, 'no luck'", "no luck");
    check_failure("return 1, 2", "2 values were returned");
}

#[test]
fn a_fresh_vm_per_call_gives_the_same() {
    let world = World::new();
    let fresh = LuaExecutor::with_isolation(Isolation::Fresh);
    for code in
        ["return args[1]", "x = (x or 0) + 1 return x", "local s = 0 for k, v in {b = 1, a = 2} do s += v end return s"]
    {
        let (one, two) = (world.run_on(&fresh, code, "[3]", "{}"), world.run_with(code, "[3]", "{}"));
        assert_eq!(one.result, two.result, "{code}");
        assert_eq!(one.instructions, two.instructions, "{code}");
        assert_eq!(world.run_with(code, "[3]", "{}").result, two.result, "{code}");
    }
}

#[test]
fn agents_are_called_both_ways() {
    let world = World::new();
    let code = r#"
        local child = Agent.for_role("tutor", {purpose = "explain"})
        local a = child:add(2, 3).value
        local b = child.add(2, 3).value
        local c = child:call("add", 2, 3).value
        local d = child:first({x = 1}).value.x
        child:greet("Ada", kw{unit = "m"})
        child.nothing()
        return {a, b, c, d, child.role, tostring(child), agent.role}
    "#;
    assert_eq!(world.value(code).to_json(), r#"[5,5,5,1,"tutor","Agent(tutor)","calculator"]"#);
    let calls = world.host.calls.lock().unwrap();
    let (_, method, args, kwargs) = &calls[4];
    assert_eq!((method.as_str(), args.as_slice(), kwargs), ("greet", &["Ada".into()][..], &map(r#"{"unit": "m"}"#)));
    assert_eq!(calls[5].2, []);
    assert_eq!(*world.host.options.lock().unwrap(), [map(r#"{"purpose": "explain"}"#)]);
}

#[test]
fn every_constructor_and_every_reserved_name() {
    check(
        r#"
        local made = {}
        for i, make in {
            function() return Agent.for_role("a") end,
            function() return Agent["for"]("a") end,
            function() return Agent:for_role("a") end,
            function() return Agent("a") end,
            function() return agent:delegate("a") end,
            function() return agent.delegate("a", {}) end,
            function() return agent:tool("a") end,
            function() return agent.for_role("a") end,
            function() return agent:delegate("b").delegate("a") end,
        } do
            made[i] = make().role
        end
        return table.concat(made)
        "#,
        r#""aaaaaaaaa""#,
    );
    check("return agent:responds_to('value=') and not agent:responds_to('value')", "true");
    check(
        "local c = Agent.for_role('x') return rawequal(c:remember{mode = 1}, c) and c.remember(kw{b = 2}) == c",
        "true",
    );
    check_failure("agent:delegate('forbidden')", "program:1: no agent may have the role 'forbidden'");
    check_failure("\nreturn agent:delegate()", "program:2: delegate takes a role");
    check_failure("return Agent.for_roles('x')", "program:1: Agent has for_role");
    check_failure("return agent._secret", "program:1: names that start with an underscore");
    check_failure("agent.role = 'x'", "program:1: 'role' cannot be set");
    check_failure("Agent.for_role('x')['a b'] = 1", "program:1: a setter's name must be an identifier");
    check_failure("return Agent.for_role('x'):refuse()", "program:1: not like that");
    check_failure("return {Agent.for_role('x')}", "$[1]: an agent is not data");
    check_failure("return getmetatable(agent).x.y", "program:1:");
    check("return getmetatable(agent)", r#""locked""#);
}

#[test]
fn ac_4_setters_and_ac_5_readers() {
    let world = World::with_context(r#"{"memory": 1}"#);
    let code = r#"
        local child = agent:delegate("tutor")
        local before = type(child.memory)
        child.memory = 5
        child.list = {1, 2}
        local ok = pcall(function() child.list[3] = 3 end)
        agent.memory = agent.memory + 1
        child.runtime_context.direct = "x"
        local keys = {}
        for key in child.runtime_context do keys[#keys + 1] = key end
        agent.runtime_context.own = true
        return {before, child.memory, #child.list, ok, agent.memory, keys, child.runtime_context.direct}
    "#;
    assert_eq!(world.value(code).to_json(), r#"["function",5,2,false,2,["direct","list","memory"],"x"]"#);
    assert_eq!(Value::Map(world.host.context()).to_json(), r#"{"memory":2,"own":true}"#);
    assert_eq!(world.host.calls.lock().unwrap()[0].1, "memory=");
}

#[test]
fn ac_8_outcomes_are_envelopes() {
    check(
        r#"
        local child = agent:delegate("x")
        local good, bad = child:add(1, 2), child:fail()
        return {
            good.ok, good.value, good.status, good:unwrap(), good.value_or(7), good.error == nil, good.error_type == nil,
            bad.ok, bad.status, bad.error_type, bad.error_message, bad.retriable, bad:value_or(7), bad.error.message,
            bad.value == nil, tostring(good), tostring(bad), good == child:add(2, 1), good == bad, good.metadata,
        }
        "#,
        concat!(
            r#"[true,3,"ok",3,3,true,true,"#,
            r#"false,"error","timeout","too slow",true,7,"too slow","#,
            r#"true,"Outcome(ok, 3)","Outcome(error, timeout: too slow)",true,false,{}]"#
        ),
    );
    let world = World::new();
    let fail = Outcome::of_error(ErrorType::Timeout, "too slow", true);
    for code in ["return agent:delegate('x'):fail()", "local o = agent:delegate('x'):fail() return o"] {
        assert_eq!(world.run(code).result, Ok(Returned::Outcome(fail.clone())), "{code}");
    }
    let five = Outcome::of_value(Value::Int(5));
    assert_eq!(world.run("return Outcome.ok(5)").result, Ok(Returned::Outcome(five)));
    let changed = Outcome::of_value(json(r#"[[1,2],[3]]"#));
    let code = "local o = agent:delegate('x'):echo({1, 2}) table.insert(o.value, {3}) return o";
    assert_eq!(world.run(code).result, Ok(Returned::Outcome(changed)));
    check(
        r#"return {ok = false, error_type = "x", status = "error"}"#,
        r#"{"error_type":"x","ok":false,"status":"error"}"#,
    );
    check_failure("return agent:delegate('x'):fail():unwrap()", "program:1: timeout: too slow");
    check_failure("return agent:delegate('x'):add(1).result", "program:1: an Outcome has no field 'result'");
    check_failure("return agent:delegate('x'):add(1) + 1", "program:1: an Outcome is an envelope");
    check_failure("return {agent:delegate('x'):add(1)}", "$[1]: an Outcome is not data; use its .value");
    check_failure("agent:delegate('x'):add(1).value = 2", "program:1: attempt to modify a readonly table");
    check_failure("agent:delegate('x'):add(1).other = 2", "program:1: an Outcome cannot be changed");
    check_failure("error(Outcome.error{error_type = 'a', error_message = 'b'})", "a: b");
}

#[test]
fn tools_history_content_time_and_randomness() {
    let mut world = World::new();
    world.host.history = vec![json(r#"{"method": "add", "value": [1, 2]}"#), json(r#"{"method": "sub", "ref": "r1"}"#)];
    let code = r#"
        local names = {}
        for name in tools do names[#names + 1] = name end
        for i, entry in ipairs(history) do names[#names + 1] = entry.method end
        return {
            tools.fetch_url{url = "u"}.url, tools:fetch_url({url = "v"}).url, names, #history, history[1].value[2],
            content(history[2].ref).text, now(), random(), random(4), random(5, 8), math.random(2),
            pcall(function() history[1].method = "x" end), pcall(function() history[1] = nil end),
        }
    "#;
    assert_eq!(
        world.value(code).to_json(),
        concat!(
            r#"["u","v",["explode","fetch_url","add","sub"],2,2,"hello",1700000000000,0.25,2,6,1,"#,
            r#"false,false,"program:8: history is read-only"]"#
        )
    );
    assert_eq!(world.run("return tools.fetch_url{}").host_calls, 1);
    check_failure("return tools.fetch_urls{}", "program:1: there is no tool 'fetch_urls'");
    check_failure("return tools.fetch_url('u')", "a tool's arguments must be a table with named fields");
    check_failure("tools.x = 1", "tools is read-only");
    check_failure("return content('nope')", "program:1: no content 'nope'");
}

#[test]
fn json_null_and_kinds_of_empty_tables() {
    check(r#"return json.decode('{"a": [1, null, 2.5], "b": null, "c": {}}')"#, r#"{"a":[1,null,2.5],"c":{}}"#);
    check(r#"return json.encode({a = {1, null}, b = "x\n"})"#, r#""{\"a\":[1,null],\"b\":\"x\\n\"}""#);
    check(
        "return {array{}, object{}, {}, array(), object(), array{1, 2}, null == json.null, tostring(null)}",
        r#"[[],{},{},[],{},[1,2],true,"null"]"#,
    );
    check("return null", "null");
    check_failure("return json.decode('{')", "program:1: json.decode: ");
    check_failure("return json.encode(print)", "program:1: json.encode: $: a function has no JSON form");
}

#[test]
fn arguments_by_the_table_of_5_2() {
    check_args("return type(args[1])", "[9007199254740993]", r#""string""#);
    check_args(
        "return {args[1], args[2]}",
        "[9007199254740992, -9007199254740993]",
        r#"[9007199254740992,"-9007199254740993"]"#,
    );
    check_args(
        "return {args[1] == null, args[2].a == nil, args[2].b[1] == null, #args}",
        r#"[null, {"a": null, "b": [null]}]"#,
        "[true,true,true,2]",
    );
    check_args("return {math.floor(args[1]), args[2]}", "[2.0, 2.5]", "[2,2.5]");
    check_args("return #args[1]", r#"["a\u0000b"]"#, "3");
    check_args("return {args[1], args[2]}", "[[], {}]", "[[],{}]");
    check_args("return args[1]['1']", r#"[{"1": "x"}]"#, r#""x""#);
    check_args("args[1] = args[1] or 5 args[2] = args[2] or 6 return {args[1], args[2], #args}", "[1]", "[1,6,2]");
    check_args("table.sort(args) return args", "[3, 1, 2]", "[1,2,3]");
    check_args("return table.remove(args, 1) + #args", "[3, 1, 2]", "5");
    check_args("local a, b = ... return {a, b, select('#', ...)}", "[3, 1]", "[3,1,2]");
    check_args("local s = 0 for i = 1, #args do s += args[i] end return s", "[1, 2, 3]", "6");
    check_args("return args[0] == nil and args[1.5] == nil and args.x == nil and args[-1] == nil", "[1]", "true");
    let deep = format!("[{}1{}]", "[".repeat(100), "]".repeat(100));
    check_args("local t, n = args[1], 0 while type(t) == 'table' do t = t[1] n += 1 end return n", &deep, "100");
    let world = World::new();
    let mut deeper = Value::Int(1);
    for _ in 0..1_000 {
        deeper = Value::List(vec![deeper]);
    }
    let (nested, none) = ([deeper], Map::new());
    let program = world.host.executor.compile("return args[1]", &world.limits).unwrap();
    let bounds = Bounds { limits: &world.limits, deadline: None, cancel: &world.cancel };
    let arguments = Arguments { args: &nested, kwargs: &none };
    let failure = world.host.executor.execute(&program, arguments, &world.host, &bounds).result.unwrap_err();
    assert!(failure.to_string().contains("nests too deeply"), "{failure}");
    let floats = [Value::Float(f64::NAN), Value::Float(f64::INFINITY)];
    let program = world.host.executor.compile("return args[1] ~= args[1] and args[2] > 1e308", &world.limits).unwrap();
    let bounds = Bounds { limits: &world.limits, deadline: None, cancel: &world.cancel };
    let arguments = Arguments { args: &floats, kwargs: &Map::new() };
    let execution = world.host.executor.execute(&program, arguments, &world.host, &bounds);
    assert_eq!(execution.result, Ok(Returned::Value(Value::Bool(true))));
}

#[test]
fn results_by_the_table_of_5_3() {
    check("return -0.0", "0");
    check("return 2^53", "9007199254740992");
    check("return 2^54", "1.8014398509481984e16");
    check("return 1e300", "1e300");
    check("return 0.1 + 0.2", "0.30000000000000004");
    check("return 'a\\0b'", r#""a\u0000b""#);
    check("local t = {} t[3] = 'c' t[2] = 'b' t[1] = 'a' return t", r#"["a","b","c"]"#);
    check(
        "return setmetatable({a = 1}, {__index = function() error('no') end, __len = function() return 9 end})",
        r#"{"a":1}"#,
    );
    check("local s = {1} return {s, s, {s}}", "[[1],[1],[[1]]]");
    for (code, part) in [
        ("return 0 / 0", "$: NaN has no JSON form"),
        ("return {a = {1 / 0}}", "$.a[1]: an infinity has no JSON form"),
        ("return '\\255'", "$: text that is not valid UTF-8"),
        ("return {['\\255'] = 1}", "$: a key that is not valid UTF-8"),
        ("return {1, nil, 3}", "$[2]: a list must not have gaps"),
        ("return {[0] = 1}", "$: index 0 in a list; lists start at 1"),
        ("return {1, 2, x = 3}", "$: a table with both list items and named fields"),
        ("return {[1.5] = 1}", "$: a key of type number"),
        ("return {[true] = 1}", "$: a key of type boolean"),
        ("return {[{}] = 1}", "$: a key of type table"),
        ("local t = {} t.me = t return t", "$.me: a table that contains itself"),
        ("local t = {} for i = 1, 70 do t = {t} end return t", "values nest at most 64 deep"),
        ("return {print}", "$[1]: a function has no JSON form"),
        ("local t = {} for i = 1, 100001 do t[i] = 1 end return t", "a value has at most 100000 parts"),
        ("return ('x'):rep(1048577)", "a value has at most 1048576 bytes"),
        ("local t = {1} for i = 1, 40 do t = {t, t} end return t", "a value has at most"),
    ] {
        check_failure(code, part);
        assert!(matches!(World::new().run(code).result, Err(ProgramFailure::Refused { .. })), "{code}");
    }
}

#[test]
fn untouched_context_keeps_its_exact_form() {
    let before =
        r#"{"big":9007199254740993,"deep":{"empty":[],"f":2.0,"n":9007199254740995,"none":null},"list":[],"text":"x"}"#;
    for code in [
        "return context.deep.f + #context.deep.n",
        "for k, v in pairs(context) do local x = v end",
        "context.deep = context.deep context.list = context.list",
        "return #json.encode(context)",
        "agent:delegate('x'):seen()",
    ] {
        let world = World::with_context(before);
        assert!(world.run(code).result.is_ok(), "{code}");
        assert_eq!(Value::Map(world.host.context()).to_json(), before, "{code}");
    }
    let world = World::with_context(before);
    world.value("context.deep.f = 3 context.deep.g = true context.big = nil context.list = {}");
    assert_eq!(
        Value::Map(world.host.context()).to_json(),
        r#"{"deep":{"empty":[],"f":3,"g":true,"n":9007199254740995,"none":null},"list":[],"text":"x"}"#
    );
}

#[test]
fn context_in_all_its_ways() {
    let world = World::with_context(r#"{"a": {"b": 1}, "list": [3, 1, 2], "gone": {"x": 1}}"#);
    let code = r#"
        local same = context.a == context.a and rawequal(context.a, context.a)
        table.sort(context.list)
        local gone = context.gone
        context.gone = nil
        gone.x = 2
        context["a key"] = "v"
        rawset(context, "raw", rawget(context, "a").b)
        local keys = {}
        for key, value in pairs(context) do keys[#keys + 1] = key end
        local made = {}
        context.made = made
        made[1] = "later"
        return {same, context.gone == nil, keys, next(context), #context, context[5] == nil}
    "#;
    assert_eq!(
        world.value(code).to_json(),
        r#"[true,true,["a","a key","list","raw"],"a",{"b":1},0,true]"#.replace(",{\"b\":1},0", ",0").as_str()
    );
    assert_eq!(
        Value::Map(world.host.context()).to_json(),
        r#"{"a":{"b":1},"a key":"v","list":[1,2,3],"made":["later"],"raw":1}"#
    );
    check_failure("context.f = print", "program:1: context.f: $: a function has no JSON form");
    check_failure("context.t = {} context.t.f = print return 1", "context.t: $.f: a function has no JSON form");
    check_failure("table.insert(context, 1)", "program:1: context is not a list");
    check_failure("context = {a = 1}", "program:1: context cannot be replaced");
    check("context = context or {} context.a = 1 args = {7} return args[1] + context.a", "8");
    check_failure("context[1] = 2", "program:1: context has text keys, not number");
    check_failure("return setmetatable(context, {})", "program:1:");
}

#[test]
fn the_host_sees_changes_and_the_program_sees_the_hosts() {
    let world = World::with_context(r#"{"list": [1]}"#);
    let code = r#"
        local child = agent:delegate("x")
        table.insert(context.list, 2)
        local seen = child:seen().value.list
        local none = context.touched
        child:touch()
        agent:remember{list = {9}}
        return {seen, none == nil, context.touched, context.list}
    "#;
    assert_eq!(world.value(code).to_json(), "[[1,2],true,[1],[9]]");
}

#[test]
fn unified_kernel_6_9_iteration_is_in_key_order() {
    let keys = r#"local t = {} for _, k in {"b", "a", "c", "aa", 10, 2, 33, true, false} do t[k] = 1 end "#;
    for loop_text in [
        "for k in t do out[#out + 1] = tostring(k) end",
        "for k in pairs(t) do out[#out + 1] = tostring(k) end",
        "for k in next, t do out[#out + 1] = tostring(k) end",
        "for k, v in next, t, nil do out[#out + 1] = tostring(k) end",
        "local k = next(t) while k ~= nil do out[#out + 1] = tostring(k) k = next(t, k) end",
        "local f, s, c = pairs(t) for k in f, s, c do out[#out + 1] = tostring(k) end",
        "for k in setmetatable({}, {__iter = function() return next, t end}) do out[#out + 1] = tostring(k) end",
        "local f = pairs(t) local k = f(t) while k ~= nil do out[#out + 1] = tostring(k) k = f(t, k) end",
    ] {
        let code = format!("{keys} local out = {{}} {loop_text} return out");
        check(&code, r#"["2","10","33","a","aa","b","c","false","true"]"#);
    }
    check("local out = {} for i, v in {3, 1, 2} do out[i] = v * 10 end return out", "[30,10,20]");
    check(
        "local t, out = {}, {} t[3] = 'c' t[1] = 'a' t[2] = 'b' for i, v in t do table.insert(out, v) end return out",
        r#"["a","b","c"]"#,
    );
    check("local t = {a = 1, b = 2} for k in t do t[k] = nil end return next(t) == nil", "true");
    check("local n = 0 for w in ('a b c'):gmatch('%a') do n += 1 end return n", "3");
    check("local n = 0 for i, v in ipairs({1, 2, nil, 4}) do n += v end return n", "3");
    check("local t = {[{}] = 1, a = 2} local n = 0 for k, v in pairs(t) do n += v end return n", "3");
    check_failure(
        "for k in pairs({[{}] = 1, [print] = 2}) do end",
        "program:1: a table with several tables or functions as keys",
    );
    check_failure("for k in 5 do end", "program:1: attempt to iterate over a number value");
    check_failure("local t = nil\nfor k in pairs(t) do end", "program:2: pairs takes a table, not nil");
    check_failure("return next({a = 1, b = 2}, 'c')", "program:1: next: the key is not in the table");
}

#[test]
fn addresses_are_never_shown() {
    check(
        "return {tostring({}), tostring(print), `{ {} }`, ('%s %d'):format({}, 3), string.format('%*', print), tostring(context), tostring(args)}",
        r#"["table","function","table","table 3","function","context","args"]"#,
    );
    check("return tostring(setmetatable({}, {__tostring = function() return 'mine' end}))", r#""mine""#);
    check("return ('%s %s %5.1f'):format(nil, true, 2)", r#""nil true   2.0""#);
    let world = World::new();
    let execution = world.run("print({}, print, null, 1, nil, 'x')");
    assert_eq!(execution.output, "table\tfunction\tnull\t1\tnil\tx\n");
}

#[test]
fn output_is_capped() {
    let mut world = World::new();
    world.limits.max_output_bytes = 10;
    assert_eq!(world.run("print('123456') print('789') print('x')").output, "123456\n789");
    assert_eq!(world.run("print('éééééééé')").output, "ééééé");
}

#[test]
fn host_calls_are_counted_and_limited() {
    let mut world = World::new();
    world.limits.max_host_calls = 5;
    let code = "local c = agent:delegate('x') for i = 1, 4 do c:call('add', i) end return 1";
    let execution = world.run(code);
    assert_eq!((execution.result, execution.host_calls), (Ok(Returned::Value(Value::Int(1))), 5));
    let code = "local c = agent:delegate('x') while true do pcall(c.call, 'add', 1) end";
    assert_eq!(world.run(code).result, Err(ProgramFailure::HostCalls { limit: 5 }));
}

#[test]
fn panics_in_the_host_end_the_call_and_not_the_process() {
    let world = World::new();
    for code in [
        "agent:delegate('x'):panic()",
        "while true do pcall(function() agent:delegate('x'):panic() end) end",
        "tools.explode{}",
        "return select(2, pcall(tools.explode, {}))",
    ] {
        let failure = world.run(code).result.expect_err(code);
        assert!(
            matches!(&failure, ProgramFailure::Internal { message } if message.contains("fell over")),
            "{failure:?}"
        );
    }
    assert_eq!(world.value("return 1"), Value::Int(1));
}

#[test]
fn ec_t1_4_interrupt_beats_deadline_beats_cpu_time() {
    let mut world = World::new();
    world.limits.max_instructions = u64::MAX;
    world.deadline = Some(Duration::from_millis(30));
    assert_eq!(world.run("while true do end").result, Err(ProgramFailure::Deadline));
    assert_eq!(world.run("agent:delegate('x'):wait(40) return 1").result, Err(ProgramFailure::Deadline));
    assert_eq!(world.run("agent:delegate('x'):stop() return 1").result, Err(ProgramFailure::Deadline));
    world.cancel.cancel();
    assert_eq!(world.run("while true do end").result, Err(ProgramFailure::Interrupted));
    assert_eq!(world.run("return 1").result, Err(ProgramFailure::Interrupted));
    assert_eq!(
        world.run("pcall(agent.delegate, 'x') agent:delegate('x'):stop()").result,
        Err(ProgramFailure::Interrupted)
    );
}

#[test]
fn ec_t1_4_the_cancel_token_is_ticked_while_a_program_runs() {
    let ticks = Arc::new(Mutex::new(0));
    let mut world = World::new();
    let counted = Arc::clone(&ticks);
    world.cancel = CancelToken::with_poll(move || {
        *counted.lock().unwrap() += 1;
        *counted.lock().unwrap() >= 3
    });
    world.limits.max_instructions = u64::MAX;
    assert_eq!(world.run("while true do end").result, Err(ProgramFailure::Interrupted));
    assert_eq!(*ticks.lock().unwrap(), 3);
    world.cancel = CancelToken::with_poll(|| panic!("the poll fell over"));
    assert!(matches!(world.run("while true do end").result, Err(ProgramFailure::Internal { .. })));
}

#[test]
fn awaited_host_calls_cost_no_cpu_time_of_the_program() {
    let mut world = World::new();
    world.limits.cpu_time = Duration::from_millis(60);
    world.limits.max_instructions = u64::MAX;
    let code = "local c = agent:delegate('x') for i = 1, 5 do c:burn(30) end return 1";
    assert_eq!(world.run(code).result, Ok(Returned::Value(Value::Int(1))));
    let code = "local c = agent:delegate('x') c:burn(100) while true do end";
    assert_eq!(world.run(code).result, Err(ProgramFailure::CpuTime { limit: world.limits.cpu_time }));
}

#[test]
fn programs_nest_on_one_thread() {
    let world = World::new();
    let code = r#"
        local inner = [[
            local deeper = agent:delegate("x"):run("context.n = (context.n or 0) + 1 return args[1] * 2", args[1]).value
            return deeper + 1
        ]]
        return agent:delegate("x"):run(inner, 20).value + 1
    "#;
    assert_eq!(world.value(code), Value::Int(42));
    assert_eq!(Value::Map(world.host.context()).to_json(), r#"{"n":1}"#);
    let code = "local o = agent:delegate('x'):run('while true do end') return {o.ok, o.error_message}";
    let text = world.value(code).to_json();
    assert!(text.starts_with("[false,\"program stopped"), "{text}");
}

#[test]
fn the_same_program_costs_the_same() {
    let code = r#"
        local t = {}
        for i = 1, 50 do t["k" .. (i * 7919 % 50)] = i end
        local s = 0
        for k, v in t do s += v end
        for k, v in pairs(t) do s += #k end
        context.list = context.list or {}
        table.insert(context.list, s)
        table.sort(context.list)
        print(("%s"):format({}))
        return s + #args + (args[1] or 0) + next({5})
    "#;
    let mut seen = Vec::new();
    let shared = LuaExecutor::new();
    for round in 0..6 {
        let world = World::new();
        let fresh = LuaExecutor::with_isolation(Isolation::Fresh);
        let execution = world.run_on(if round % 2 == 0 { &shared } else { &fresh }, code, "[1, 2]", "{}");
        seen.push((execution.instructions, value_of(execution, code).to_json()));
    }
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
}

#[test]
fn globals_die_with_the_call() {
    let world = World::new();
    for code in [
        "x = (x or 0) + 1 return x",
        "local was = y y = 1 return was == nil and 1 or 0",
        "function f() return 1 end return f()",
    ] {
        for _ in 0..3 {
            assert_eq!(world.value(code), Value::Int(1), "{code}");
        }
    }
}

#[test]
fn compile_errors_name_the_line() {
    let executor = LuaExecutor::new();
    let limits = Limits::default();
    let error = |code: &str| executor.compile(code, &limits).expect_err(code);
    assert_eq!(error("local x =\nreturn ] 1").line, Some(2), "{:?}", error("local x =\nreturn ] 1"));
    assert_eq!(error("x = 1\ny = 2\nif x != y then end").line, Some(3));
    assert!(error("for k in t do").message.contains("end"));
    assert!(!error("for k in t do x = = end").message.contains("__in_key_order"));
    assert!(error(&" ".repeat(70_000)).message.contains("70000 bytes of source"));
    assert_eq!(error("\nreturn __in_key_order").message, "line 2: the name __in_key_order is reserved");
    assert_eq!(error("return 1 \0").message, "the source contains a NUL byte");
    assert_eq!(error("goto done").line, Some(1));
}

/// CPU time of this thread.
fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable timespec.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The class of a result, as the headers of the hostile programs spell it.
fn class_of(result: &Result<Returned, ProgramFailure>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(ProgramFailure::Raised { .. }) => "raised",
        Err(ProgramFailure::Fuel { .. } | ProgramFailure::CpuTime { .. }) => "time",
        Err(ProgramFailure::Deadline) => "deadline",
        Err(ProgramFailure::Memory { .. }) => "memory",
        Err(ProgramFailure::CallDepth) => "depth",
        Err(ProgramFailure::HostCalls { .. }) => "host_calls",
        Err(ProgramFailure::Refused { .. }) => "refused",
        Err(ProgramFailure::Interrupted) => "interrupted",
        Err(ProgramFailure::Internal { .. }) => "internal",
    }
}

/// A harmless program that uses most of what a hostile one could have poisoned.
const CANARY: &str = r#"
    local t = {3, 1, 2}
    table.sort(t)
    table.insert(t, #("abc"):upper())
    local keys = {}
    for k in {b = 1, a = 2} do keys[#keys + 1] = k end
    local child = agent:delegate("canary")
    print("fine")
    return {
        t, keys, math.floor(2.5), ("x"):rep(3):upper(), agent.role, child:add(args[1], kwargs.two).value, child.role,
        tostring({}), json.encode({1}), utf8.char(65), bit32.band(3, 2), select('#', args[1], 2), context.value,
        getmetatable("").__index == string, next({}) == nil, #args, type(null), Outcome.ok(4).value,
    }
"#;
const CANARY_VALUE: &str = concat!(
    r#"[[1,2,3,3],["a","b"],2,"XXX","calculator",3,"canary","table","[1]","A",2,2,5,"#,
    r#"true,true,1,"userdata",4]"#
);

/// The hostile programs are dealt out to so many tests, which run side by side.
const SHARES: usize = 4;

#[test]
fn hostile_programs_end_as_they_should_and_leave_nothing_behind_1() {
    hostile_share(0);
}

#[test]
fn hostile_programs_end_as_they_should_and_leave_nothing_behind_2() {
    hostile_share(1);
}

#[test]
fn hostile_programs_end_as_they_should_and_leave_nothing_behind_3() {
    hostile_share(2);
}

#[test]
fn hostile_programs_end_as_they_should_and_leave_nothing_behind_4() {
    hostile_share(3);
}

fn hostile_share(share: usize) {
    // The stack that threads which run programs get.
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(move || hostile_programs(share)).unwrap();
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs one hostile program, and says how it ended, with what, and what CPU time it took.
fn hostile_run(name: &str, code: &str, executor: &Arc<LuaExecutor>) -> (&'static str, String, Duration) {
    let mut world = World::with_context(r#"{"value": 5}"#);
    world.host.executor = Arc::clone(executor);
    world.limits = Limits {
        cpu_time: Duration::from_millis(100),
        max_memory_bytes: 16 << 20,
        max_host_calls: 50,
        ..Limits::default()
    };
    let began = thread_cpu_time();
    let (class, text) = match executor.compile(code, &world.limits) {
        Err(error) => ("compile", error.to_string()),
        Ok(program) => {
            let source = [Value::String(code.to_owned())];
            let kwargs = Map::new();
            let arguments = Arguments { args: &source, kwargs: &kwargs };
            let bounds = Bounds { limits: &world.limits, deadline: None, cancel: &world.cancel };
            let execution = executor.execute(&program, arguments, &world.host, &bounds);
            let text = match &execution.result {
                Ok(Returned::Value(value)) => value.to_json(),
                other => format!("{other:?}"),
            };
            assert!(text.len() < (1 << 20) + 64, "{name}");
            assert!(execution.output.len() <= world.limits.max_output_bytes, "{name}");
            (class_of(&execution.result), text)
        }
    };
    (class, text, thread_cpu_time() - began)
}

/// Panics that a program asks its test host for are not printed: finding the names of a backtrace in a debug build
/// takes more CPU time than a hostile program may use.
fn silence_wanted_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.payload_as_str().is_some_and(|text| text.contains("fell over")) {
                usual(panic);
            }
        }));
    });
}

fn hostile_programs(share: usize) {
    silence_wanted_panics();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/hostile/lua");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 120, "only {} hostile programs", files.len());
    let executor = Arc::new(LuaExecutor::new());
    let mut wrong = Vec::new();
    for file in files.iter().skip(share).step_by(SHARES) {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let code = std::fs::read_to_string(file).unwrap();
        let expect = code.lines().next().and_then(|line| line.strip_prefix("-- expect: ")).unwrap_or_default();
        let (class, text, mut cpu) = hostile_run(&name, &code, &executor);
        if std::env::var_os("SHOW_HOSTILE").is_some() {
            println!("{class:10} {:4} ms  {name}  {}", cpu.as_millis(), &text[..text.len().min(120)]);
        }
        let as_expected = match expect.strip_prefix("ok=") {
            Some(value) => class == "ok" && text == value,
            None => expect.split(" | ").any(|one| one == class),
        };
        // Inner programs of the test host have their own 100 ms each.
        let bound = Duration::from_millis(if name.contains("reentry") { 6_000 } else { 400 });
        if cpu > bound {
            // A program without bounds is so every time; a machine that was busy with its memory is not.
            cpu = cpu.min(hostile_run(&name, &code, &executor).2);
        }
        if !as_expected || cpu > bound {
            wrong.push(format!(
                "{name}: expected {expect}, got {class} after {cpu:?}: {}",
                &text[..text.len().min(200)]
            ));
        }
        let mut after = World::with_context(r#"{"value": 5}"#);
        after.host.executor = Arc::clone(&executor);
        let canary = after.run_with(CANARY, "[1]", r#"{"two": 2}"#);
        assert_eq!(canary.output, "fine\n", "after {name}");
        assert_eq!(value_of(canary, &name).to_json(), CANARY_VALUE, "after {name}");
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), files.len(), wrong.join("\n"));
}

/// What one execution costs: `cargo test -p cadenza-core --test lua_programs -- --ignored --nocapture cost`.
#[test]
#[ignore = "a measurement"]
fn cost_of_one_execution() {
    let world = World::with_context(r#"{"value": 5, "items": [1, 2, 3]}"#);
    for (code, args, kwargs) in [
        ("return 1", "[]", "{}"),
        ("return args[1] + args[2]", "[2, 3]", "{}"),
        ("local a, b = ... return a + b", "[2, 3]", "{}"),
        ("return kwargs.amount", "[]", r#"{"amount": 2}"#),
        ("context.value = context.value + 1 return context.value", "[]", "{}"),
        ("return #context.items", "[]", "{}"),
        ("total = 1 return total", "[]", "{}"),
        ("local t = {} for i = 1, 10 do t[i] = i end return t", "[]", "{}"),
        ("local s = 0 for k, v in {a = 1, b = 2, c = 3} do s += v end return s", "[]", "{}"),
        ("local s = 0 for i, v in ipairs(args[1]) do s += v end return s", "[[1,2,3,4,5,6,7,8,9,10]]", "{}"),
    ] {
        let program = world.host.executor.compile(code, &world.limits).unwrap();
        let (args, kwargs) = (json(args), map(kwargs));
        let arguments = Arguments { args: args.as_list().unwrap(), kwargs: &kwargs };
        let bounds = Bounds { limits: &world.limits, deadline: None, cancel: &world.cancel };
        let mut best = Duration::MAX;
        for _ in 0..20 {
            let start = thread_cpu_time();
            for _ in 0..1000 {
                assert!(world.host.executor.execute(&program, arguments, &world.host, &bounds).result.is_ok());
            }
            best = best.min(thread_cpu_time() - start);
        }
        println!("{:6.2} µs  {code}", best.as_nanos() as f64 / 1e6);
    }
    let lua = mlua::Lua::new();
    let bare: mlua::Function = lua.load("return function(a, b) return a + b end").eval().unwrap();
    let start = thread_cpu_time();
    for _ in 0..10_000 {
        assert_eq!(bare.call::<i64>((2, 3)).unwrap(), 5);
    }
    println!("{:6.2} µs  for scale: a bare call through mlua", (thread_cpu_time() - start).as_nanos() as f64 / 1e7);
    let fresh = LuaExecutor::with_isolation(Isolation::Fresh);
    let start = thread_cpu_time();
    for _ in 0..100 {
        assert!(world.run_on(&fresh, "return 1", "[]", "{}").result.is_ok());
    }
    println!("{:6.2} µs  a fresh VM and a compilation", (thread_cpu_time() - start).as_nanos() as f64 / 1e5);
}

#[test]
#[ignore = "a measurement"]
fn native_stack_of_nested_programs() {
    let mut world = World::new();
    world.host.max_depth = 1000;
    let code = "local n, code = args[1], args[2] if n == 0 then return 0 end local o = agent:delegate('x'):run(code, n - 1, code) return o:unwrap() + 1";
    for depth in [8, 16, 32, 64, 128] {
        let source = Value::String(code.to_owned());
        println!("{depth}");
        println!("{:?}", world.run_with(code, &Value::List(vec![Value::Int(depth), source]).to_json(), "{}").result);
    }
}

/// Runs a user's script with the surface installed in a VM that has all its libraries.
fn script(host: &Arc<TestHost>, code: &str) -> Result<String, String> {
    let lua = mlua::Lua::new();
    let shared: Arc<dyn Host> = host.clone();
    install_script(&lua, shared).unwrap();
    lua.load(code).set_name("=script").eval::<mlua::Value>().map_err(|error| error.to_string()).map(|value| match value
    {
        mlua::Value::String(text) => text.to_string_lossy(),
        other => format!("{other:?}"),
    })
}

#[test]
fn scripts_have_the_same_surface() {
    let host = Arc::new(TestHost::new(Map::new()));
    let code = r#"
        local calc = Agent.for_role("calculator", { log = "calls.jsonl" })
        calc.memory = 5
        assert(calc.memory == 5)
        assert(calc:remember{mode = "scientific"} == calc and rawequal(calc:remember{}, calc))
        assert(calc.runtime_context.mode == "scientific")
        calc.runtime_context.mode = "basic"
        calc.runtime_context["a key"] = {1, 2}
        local seen = {}
        for key, value in pairs(calc.runtime_context) do seen[#seen + 1] = key end
        for key, value in calc.runtime_context do seen[#seen + 1] = key end
        assert(table.concat(seen, ",") == "a key,memory,mode,a key,memory,mode")
        local key = next(calc.runtime_context)
        while key do seen[#seen + 1] = key key = next(calc.runtime_context, key) end
        assert(table.concat(seen, ",", 7) == "a key,memory,mode")
        calc.runtime_context.mode = nil
        assert(calc.runtime_context.mode == nil and rawequal(calc.runtime_context, calc.runtime_context))
        assert(calc:responds_to("memory=") and calc:responds_to("memory") and not calc:responds_to("integrate"))
        assert(calc.role == "calculator" and tostring(calc) == "Agent(calculator)")
        local out = calc:add(3, 4)
        assert(out.ok and out.value == 7 and out:unwrap() == 7 and out.status == "ok")
        assert(Agent["for"]("x").role == "x" and Agent("y").role == "y")
        local tutor = calc:delegate("tutor", { purpose = "explain results" })
        assert(tutor ~= calc and tutor:first(kw{a = 1}).ok and tutor:call("add", 1, 2).value == 3)
        assert(not tutor:fail().ok and tutor:fail().error_type == "timeout")
        assert(not pcall(function() tutor:fail():unwrap() end))
        local ok, message = pcall(function() return calc._private end)
        assert(not ok and message:find("underscore"))
        assert(json.decode(json.encode{a = array{}}).a[1] == nil and tostring(null) ~= nil)
        assert(type(math.floor) == "function" and type(coroutine.create) == "function")
        print(calc:add(3).value, calc.memory, null)
        return json.encode(calc.runtime_context)
    "#;
    assert_eq!(script(&host, code), Ok(r#"{"a key":[1,2],"memory":5}"#.to_owned()));
    assert_eq!(*host.printed.lock().unwrap(), ["3\t5\tnull"]);
    assert_eq!(host.calls.lock().unwrap()[0].1, "memory=");
    assert_eq!(host.options.lock().unwrap()[0], map(r#"{"log": "calls.jsonl"}"#));
}

#[test]
fn scripts_hear_of_refusals_panics_and_interrupts() {
    let host = Arc::new(TestHost::new(Map::new()));
    let error = |code: &str| script(&host, code).expect_err(code);
    assert!(error("Agent.for_role('forbidden')").contains("script:1: no agent may have the role 'forbidden'"));
    assert!(error("local c = Agent('x')\nc:panic()").contains("the host fell over"));
    assert!(error("local c = Agent('x') pcall(function() c:stop() end) c:add(1)").contains("time is over"));
    assert!(error("return Agent('x').a['b']").contains("script:1"));
    for missing in ["context", "args", "tools", "agent", "history"] {
        assert_eq!(script(&host, &format!("return tostring({missing})")), Ok("nil".to_owned()));
    }
}

#[test]
fn scripts_have_no_limits_on_host_calls() {
    let host = Arc::new(TestHost::new(Map::new()));
    let code =
        "local c = Agent('x') for i = 1, 3000 do c:add(i) end return c:echo(('x'):rep(3000000)).value[1]:sub(1, 2)";
    assert_eq!(script(&host, code), Ok("xx".to_owned()));
}

/// Values that survive the way into a program and back: what 5.2 and 5.3 keep.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        (-(1_i64 << 53)..=(1 << 53)).prop_map(Value::Int),
        any::<f64>()
            .prop_filter("finite, and not whole", |number| number.is_finite() && number.fract() != 0.0)
            .prop_map(Value::Float),
        any::<String>().prop_map(Value::String),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(prop_oneof![4 => inner.clone(), 1 => Just(Value::Null)], 0..8).prop_map(Value::List),
            prop::collection::btree_map(any::<String>(), inner, 0..8).prop_map(Value::Map),
        ]
    })
}

/// Any value at all: what the context must keep when a program only looks at it.
fn any_values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<f64>().prop_map(Value::Float),
        (-100_i32..100).prop_map(|number| Value::Float(number.into())),
        any::<String>().prop_map(Value::String),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            prop::collection::btree_map(any::<String>(), inner, 0..8).prop_map(Value::Map),
        ]
    })
}

/// Equal as JSON text, where NaN has a form too.
fn assert_same(left: &Value, right: &Value) {
    assert_eq!(left.to_json(), right.to_json());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn values_come_back_as_they_went(value in values()) {
        let world = World::new();
        let executor = &world.host.executor;
        let bounds = Bounds { limits: &world.limits, deadline: None, cancel: &world.cancel };
        let (args, kwargs) = ([value.clone()], Map::from([("k".to_owned(), value.clone())]));
        for code in [
            "return args[1]", "return (...)", "return kwargs.k", "for _, v in args do return v end",
            "context.x = args[1] return context.x", "return agent:delegate('x'):first(args[1]).value",
            "return json.decode(json.encode(args[1]))",
        ] {
            let program = executor.compile(code, &world.limits).unwrap();
            let arguments = Arguments { args: &args, kwargs: &kwargs };
            let back = value_of(executor.execute(&program, arguments, &world.host, &bounds), code);
            assert_same(&back, &value);
        }
        assert_same(&world.host.context()["x"], &value);
    }

    #[test]
    fn a_context_that_is_only_read_stays_bit_for_bit(context in prop::collection::btree_map(any::<String>(), any_values(), 0..6)) {
        let world = World::new();
        world.host.contexts.lock().unwrap().insert(0, context.clone());
        for code in [
            "local function walk(t) if type(t) == 'table' then for k, v in t do walk(v) end end end for k, v in context do walk(v) end",
            "local c = agent:delegate('x') for k, v in pairs(context) do c:add(1) end",
            "for k, v in pairs(context) do context[k] = v end",
        ] {
            let execution = world.run(code);
            prop_assert!(execution.result.is_ok(), "{code}: {:?}", execution.result);
            if !code.contains("context[k]") {
                assert_same(&Value::Map(world.host.context()), &Value::Map(context.clone()));
            }
        }
    }

    #[test]
    fn tables_iterate_in_key_order_however_they_were_made(
        numbers in prop::collection::vec(-5_i32..40, 0..60),
        removed in prop::collection::vec(-5_i32..40, 0..30),
        texts in prop::collection::vec("[a-c]{0,3}", 0..10),
    ) {
        let mut expected: std::collections::BTreeSet<i32> = numbers.iter().copied().collect();
        let mut code = String::from("local t = {}\n");
        for number in &numbers {
            code.push_str(&format!("t[{number}] = true\n"));
        }
        for number in &removed {
            code.push_str(&format!("t[{number}] = nil\n"));
            expected.remove(number);
        }
        for text in &texts {
            code.push_str(&format!("t[{text:?}] = true\n"));
        }
        let words: std::collections::BTreeSet<&String> = texts.iter().collect();
        let expected: Vec<Value> = expected.into_iter().map(|number| Value::String(number.to_string()))
            .chain(words.into_iter().map(|text| Value::String(text.clone()))).collect();
        for way in ["for k in t do", "for k in pairs(t) do", "for k in next, t do"] {
            let code = format!("{code} local out = array{{}} {way} out[#out + 1] = tostring(k) end return out");
            prop_assert_eq!(World::new().value(&code), Value::List(expected.clone()), "{}", code);
        }
        let code = format!("{code} local out, k = array{{}}, next(t) while k ~= nil do out[#out + 1] = tostring(k) k = next(t, k) end return out");
        prop_assert_eq!(World::new().value(&code), Value::List(expected), "{}", code);
    }
}

#[test]
fn running_out_of_memory_at_any_place_is_survived() {
    let world = World::new();
    let executor = &world.host.executor;
    let programs: Vec<_> = [
        "local t = {} for i = 1, 3000 do t[i] = {i} end return #t",
        "local t = {} for i = 1, 800 do t['k' .. i] = ('x'):rep(i) end local n = 0 for k, v in t do n += #v end return n",
        "return json.decode(json.encode(table.create(2000, {a = 1})))",
        "local s = '' for i = 1, 300 do s ..= ('%s,'):format({}) end return s:split(',')",
        "local c = agent:delegate('x') local t = {} for i = 1, 40 do t[i] = c:echo(args[1]).value end return t",
        "context.list = {} for i = 1, 500 do context.list[i] = {i} end return context.list",
        "for i = 1, 200 do pcall(error, {i}) print(i, {}) end return kwargs",
    ]
    .iter()
    .map(|code| executor.compile(code, &world.limits).unwrap())
    .collect();
    let (args, kwargs) = ([json("[1, [2, 3], {\"a\": \"text\"}]")], map(r#"{"a": [1, 2]}"#));
    let arguments = Arguments { args: &args, kwargs: &kwargs };
    let mut out_of_memory = 0;
    for round in 0..40_usize {
        for (index, program) in programs.iter().enumerate() {
            let limits =
                Limits { max_memory_bytes: 512 + (round * 7919 + index * 104_729) % 200_000, ..Limits::default() };
            let bounds = Bounds { limits: &limits, deadline: None, cancel: &world.cancel };
            match executor.execute(program, arguments, &world.host, &bounds).result {
                Ok(_) => {}
                Err(ProgramFailure::Memory { .. }) => out_of_memory += 1,
                Err(other) => panic!("{}: {other:?}", program.code),
            }
        }
        assert_eq!(world.value("return 1"), Value::Int(1));
    }
    assert!(out_of_memory > 50, "{out_of_memory}");
}

#[test]
fn many_threads_share_one_executor() {
    let executor = LuaExecutor::new();
    std::thread::scope(|scope| {
        for number in 0..4_i64 {
            let executor = &executor;
            scope.spawn(move || {
                let world = World::with_context(&format!(r#"{{"mine": {number}}}"#));
                for _ in 0..100 {
                    let code =
                        "total = (total or 0) + args[1] context.mine = context.mine return {total, context.mine}";
                    let execution = world.run_on(executor, code, &format!("[{number}]"), "{}");
                    assert_eq!(value_of(execution, code).to_json(), format!("[{number},{number}]"));
                }
            });
        }
    });
}

#[test]
fn the_interpreters_own_depth_limit_is_an_ordinary_error() {
    let mut world = World::new();
    world.limits.max_call_depth = usize::MAX;
    let failure = world.run("local function f() return 1 + f() end return f()").result.unwrap_err();
    assert!(
        matches!(&failure, ProgramFailure::Raised { message } if message.contains("stack overflow")),
        "{failure:?}"
    );
    world.limits.max_call_depth = 1_000;
    let code = "local function sum(n) if n == 0 then return 0 end return n + sum(n - 1) end return sum(900)";
    assert_eq!(world.value(code), Value::Int(405_450));
}
