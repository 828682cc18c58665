//! The Rust surface: `cadenza_core::agent::Agent` itself.

use std::collections::BTreeMap;

use cadenza_core::agent::Agent;
use cadenza_core::outcome::{ErrorType, Outcome};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::Options;
use cadenza_core::value::{Map, Value};

use super::surface::{Seen, Surface, World};

/// Rust.
#[derive(Debug)]
pub struct RustSurface;

impl Surface for RustSurface {
    fn runtime(&self) -> &'static str {
        "rust"
    }

    fn world(&self, runtime: Runtime) -> Result<Box<dyn World + '_>, String> {
        Ok(Box::new(RustWorld { runtime, agents: BTreeMap::new(), returned: BTreeMap::new() }))
    }
}

struct RustWorld {
    runtime: Runtime,
    agents: BTreeMap<String, Agent>,
    /// What the latest step of an op returned; `None` when it was not an agent.
    returned: BTreeMap<&'static str, Option<Agent>>,
}

impl RustWorld {
    fn agent(&self, alias: &str) -> Result<&Agent, String> {
        self.agents.get(alias).ok_or_else(|| format!("no agent `{alias}` was constructed"))
    }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl World for RustWorld {
    fn construct(&mut self, alias: &str, role: &str, options: &Map) -> Result<(), String> {
        let options = Options::from_map(options).map_err(words)?;
        let agent = self.runtime.agent(role, options).map_err(words)?;
        self.returned.insert("construct", Some(agent.clone()));
        self.agents.insert(alias.to_owned(), agent);
        Ok(())
    }

    fn is_agent(&mut self, target: &str) -> Result<bool, String> {
        self.agent(target).map(|_| true)
    }

    fn role(&mut self, target: &str) -> Result<Value, String> {
        Ok((&**self.agent(target)?.role()).into())
    }

    fn remember(&mut self, target: &str, entries: &Map) -> Result<(), String> {
        let returned = self.agent(target)?.remember(entries.clone()).map_err(|error| error.to_string())?.clone();
        self.returned.insert("remember", Some(returned));
        Ok(())
    }

    fn context(&mut self, target: &str) -> Result<Map, String> {
        Ok(self.agent(target)?.runtime_context().snapshot())
    }

    fn returned_is(&mut self, from_op: &str, target: &str) -> Result<Option<bool>, String> {
        let target = self.agent(target)?;
        Ok(self.returned.get(from_op).map(|returned| returned.as_ref().is_some_and(|agent| agent.is(target))))
    }

    fn set(&mut self, target: &str, key: &str, value: &Value) -> Result<(), String> {
        self.agent(target)?.set(key, value.clone()).map_err(words)?;
        self.returned.insert("set", None);
        Ok(())
    }

    fn call(&mut self, target: &str, method: &str, args: &[Value], kwargs: &Map) -> Result<Seen, String> {
        let outcome = self.agent(target)?.call(method, args.to_vec(), kwargs.clone()).map_err(words)?;
        self.returned.insert("call", None);
        Ok(Seen::of(&outcome))
    }

    fn tolerant_delegate(
        &mut self,
        target: &str,
        tool_role: &str,
        method: &str,
        args: &[Value],
        kwargs: &Map,
    ) -> Result<Seen, String> {
        let target = self.agent(target)?;
        let outcome = target
            .delegate(tool_role, Options::default())
            .and_then(|child| child.call(method, args.to_vec(), kwargs.clone()))
            .unwrap_or_else(|error| Outcome::of_error(ErrorType::ContractViolation, error.to_string(), false));
        self.returned.insert("tolerant_delegate", None);
        Ok(Seen::of(&outcome))
    }

    fn responds_to(&mut self, target: &str, method: &str) -> Result<bool, String> {
        Ok(self.agent(target)?.responds_to(method))
    }
}
