//! Rhai programs in a process that does not run on the memory meter: Rhai's own size limits take its place.

use std::sync::Arc;
use std::time::Duration;

use cadenza_core::cancel::CancelToken;
use cadenza_core::outcome::Outcome;
use cadenza_core::program::rhai::RhaiExecutor;
use cadenza_core::program::{AgentRef, Arguments, Bounds, Executor, Host, HostError, Limits, ProgramFailure, Returned};
use cadenza_core::value::{Map, Value};

/// A host that has nothing.
struct NoHost;

fn refused<T>() -> Result<T, HostError> {
    Err(HostError::Refused("this host has nothing".into()))
}

impl Host for NoHost {
    fn context_get(&self, _: AgentRef, _: &str) -> Option<Value> {
        None
    }
    fn context_set(&self, _: AgentRef, _: &str, _: Value) -> Result<(), HostError> {
        refused()
    }
    fn context_remove(&self, _: AgentRef, _: &str) -> Result<(), HostError> {
        refused()
    }
    fn context_keys(&self, _: AgentRef) -> Vec<String> {
        Vec::new()
    }
    fn role(&self, _: AgentRef) -> Arc<str> {
        "none".into()
    }
    fn remember(&self, _: AgentRef, _: Map) -> Result<(), HostError> {
        refused()
    }
    fn delegate(&self, _: AgentRef, _: &str, _: Map) -> Result<AgentRef, HostError> {
        refused()
    }
    fn for_role(&self, _: &str, _: Map) -> Result<AgentRef, HostError> {
        refused()
    }
    fn agent_tool(&self, _: AgentRef, _: &str) -> Result<AgentRef, HostError> {
        refused()
    }
    fn responds_to(&self, _: AgentRef, _: &str) -> bool {
        false
    }
    fn call(&self, _: AgentRef, _: &str, _: Vec<Value>, _: Map) -> Result<Outcome, HostError> {
        refused()
    }
    fn tool(&self, _: &str, _: Map) -> Result<Value, HostError> {
        refused()
    }
    fn tool_names(&self) -> Vec<String> {
        Vec::new()
    }
    fn history(&self) -> Vec<Value> {
        Vec::new()
    }
    fn content(&self, _: &str) -> Result<Value, HostError> {
        refused()
    }
    fn now(&self) -> i64 {
        0
    }
    fn random(&self) -> f64 {
        0.0
    }
    fn print(&self, _: &str) {}
}

fn run(code: &str) -> Result<Returned, ProgramFailure> {
    let executor = RhaiExecutor::new();
    let limits = Limits { cpu_time: Duration::from_millis(400), max_memory_bytes: 32 << 20, ..Limits::default() };
    let program = executor.compile(code, &limits).unwrap_or_else(|error| panic!("{error}\n{code}"));
    let cancel = CancelToken::default();
    let bounds = Bounds { limits: &limits, deadline: None, cancel: &cancel };
    executor.execute(&program, Arguments { args: &[], kwargs: &Map::new() }, &NoHost, &bounds).result
}

#[test]
fn single_values_are_bounded() {
    for code in [
        "let s = \"x\"; loop { s += s; }",
        "let s = \"x\"; loop { s = `${s}${s}`; }",
        "let a = [1]; loop { a += a; }",
        "let a = [1]; loop { a = [a, a]; }",
        "let m = #{a: 1}; loop { m = #{l: m, r: m}; }",
        "let s = \"\"; s.pad(9223372036854775807, 'x');",
        "let a = []; a.pad(9223372036854775807, 1);",
        "\"x\".repeat(9223372036854775807)",
        "let s = \"a\".repeat(1000000); s.replace(\"a\", s);",
        "let s = \"x\".repeat(1000000); let a = []; a.pad(1000, s); a.join(s)",
        "let s = \"x\".repeat(1000000); let a = []; a.pad(1000, s); a.to_string()",
        "json::decode(\"[\" + \"0,\".repeat(1900000) + \"0]\")",
    ] {
        let result = run(code);
        let bounded = matches!(result, Err(ProgramFailure::Memory { .. } | ProgramFailure::CpuTime { .. }));
        assert!(bounded, "{code}: {result:?}");
    }
}

#[test]
fn programs_run_as_with_the_meter() {
    assert_eq!(run("let a = []; for i in 0..1000 { a.push([i, `n${i}`]); } a.len()"), Ok(Returned::Value(1000.into())));
    assert_eq!(run("[1, 2, 3].map(|x| #{x: x}).map(|m| m.x).sum()"), Ok(Returned::Value(6.into())));
    assert_eq!(run("let f = 2; [1, 2].map(|x| [x * f]).join(\"-\")"), Ok(Returned::Value("[2]-[4]".into())));
}
