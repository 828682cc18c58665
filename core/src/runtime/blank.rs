//! A world with nothing in it: what a program reads when nobody is there to answer.
//!
//! A program that people bring is run here once to see which inputs it looks at. Nothing that it does leaves this place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::cancel::CancelToken;
use crate::outcome::Outcome;
use crate::program::{AgentRef, Arguments, Bounds, Executor, Host, HostError, Limits, Program, Reads, Returned};
use crate::value::{Map, Value};

/// Instructions and time of one look: as much as a dry run has.
const INSTRUCTIONS: u64 = 100_000;
const CPU_TIME: Duration = Duration::from_millis(20);

/// What one look showed.
pub(super) struct Look {
    /// What the program read until it ended.
    pub(super) reads: Reads,
    /// Its value; `None` when it gave none, which may be for want of what it would have found elsewhere.
    pub(super) value: Option<Value>,
    /// Whether it asked for anything beside its arguments: context, earlier results, agents, tools, time or chance.
    pub(super) reached: bool,
    /// Whether it asked agents or tools.
    pub(super) reached_others: bool,
}

/// Runs the program with nothing but its arguments.
pub(super) fn look(executor: &dyn Executor, program: &Program, arguments: Arguments<'_>, limits: &Limits) -> Look {
    let host = Blank::default();
    let limits = Limits {
        max_instructions: limits.max_instructions.min(INSTRUCTIONS),
        cpu_time: limits.cpu_time.min(CPU_TIME),
        ..limits.clone()
    };
    let cancel = CancelToken::default();
    let bounds = Bounds { limits: &limits, deadline: Some(Instant::now() + Duration::from_secs(1)), cancel: &cancel };
    let execution = executor.execute(program, arguments, &host, &bounds);
    let value = match execution.result {
        Ok(Returned::Value(value)) => Some(value),
        Ok(Returned::Outcome(_)) | Err(_) => None,
    };
    let Reads { context, all_context, .. } = &execution.reads;
    let reached_others = host.others.load(Ordering::Relaxed);
    Look {
        value,
        reached: reached_others || host.surroundings.load(Ordering::Relaxed) || *all_context || !context.is_empty(),
        reached_others,
        reads: execution.reads,
    }
}

/// The host of one look.
#[derive(Default)]
struct Blank {
    context: Mutex<BTreeMap<String, Value>>,
    surroundings: AtomicBool,
    others: AtomicBool,
}

impl Blank {
    fn nobody<T>(&self) -> Result<T, HostError> {
        self.others.store(true, Ordering::Relaxed);
        Err(HostError::Refused("nobody is here to answer".to_owned()))
    }

    fn asked(&self) {
        self.surroundings.store(true, Ordering::Relaxed);
    }
}

impl Host for Blank {
    fn context_get(&self, _agent: AgentRef, key: &str) -> Option<Value> {
        self.context.lock().get(key).cloned()
    }

    fn context_set(&self, _agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
        self.asked();
        self.context.lock().insert(key.to_owned(), value);
        Ok(())
    }

    fn context_remove(&self, _agent: AgentRef, key: &str) -> Result<(), HostError> {
        self.asked();
        self.context.lock().remove(key);
        Ok(())
    }

    fn context_keys(&self, _agent: AgentRef) -> Vec<String> {
        self.context.lock().keys().cloned().collect()
    }

    fn role(&self, _agent: AgentRef) -> Arc<str> {
        self.asked();
        "".into()
    }

    fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError> {
        entries.into_iter().try_for_each(|(key, value)| self.context_set(agent, &key, value))
    }

    fn delegate(&self, _agent: AgentRef, _role: &str, _options: Map) -> Result<AgentRef, HostError> {
        self.nobody()
    }

    fn for_role(&self, _role: &str, _options: Map) -> Result<AgentRef, HostError> {
        self.nobody()
    }

    fn agent_tool(&self, _agent: AgentRef, _name: &str) -> Result<AgentRef, HostError> {
        self.nobody()
    }

    fn responds_to(&self, _agent: AgentRef, _name: &str) -> bool {
        self.asked();
        false
    }

    fn call(&self, _agent: AgentRef, _method: &str, _args: Vec<Value>, _kwargs: Map) -> Result<Outcome, HostError> {
        self.nobody()
    }

    fn tool(&self, _name: &str, _arguments: Map) -> Result<Value, HostError> {
        self.nobody()
    }

    fn tool_names(&self) -> Vec<String> {
        self.asked();
        Vec::new()
    }

    fn history(&self) -> Vec<Value> {
        self.asked();
        Vec::new()
    }

    fn content(&self, _reference: &str) -> Result<Value, HostError> {
        self.nobody()
    }

    fn now(&self) -> i64 {
        self.asked();
        0
    }

    fn random(&self) -> f64 {
        self.asked();
        0.0
    }

    fn print(&self, _line: &str) {}
}
