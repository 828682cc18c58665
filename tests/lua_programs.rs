//! Luau programs through the executor's own border: values, limits, evidence, the program interface, hostile programs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cadenza_core::cancel::CancelToken;
use cadenza_core::outcome::{ErrorType, Outcome};
use cadenza_core::program::lua::{Isolation, LuaExecutor};
use cadenza_core::program::{
    AgentRef, Arguments, Bounds, Execution, Executor, Host, HostError, Limits, ProgramFailure, Reads, Returned,
};
use cadenza_core::value::{Map, Value};

/// A host in memory. Agent 0 is the program's own; children answer `add`, `echo`, `fail`, `panic`, `stop`, `run`.
struct TestHost {
    executor: Arc<LuaExecutor>,
    contexts: Mutex<BTreeMap<u32, Map>>,
    roles: Mutex<Vec<String>>,
    calls: Mutex<Vec<(u32, String, Vec<Value>, Map)>>,
    options: Mutex<Vec<Map>>,
    history: Vec<Value>,
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
                let limits = Limits::default();
                let cancel = CancelToken::default();
                let bounds = Bounds { limits: &limits, deadline: None, cancel: &cancel };
                let program = match self.executor.compile(args[0].as_str().unwrap_or_default(), &limits) {
                    Ok(program) => program,
                    Err(error) => return Ok(Outcome::of_error(ErrorType::InvalidCode, error.message, false)),
                };
                let arguments = Arguments { args: &args[1..], kwargs: &Map::new() };
                match self.executor.execute(&program, arguments, self, &bounds).result {
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

    fn print(&self, _line: &str) {}
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
