//! The Lua and Rhai surfaces: each step becomes the line that a user would write in a script, and runs in a trusted VM.

use std::collections::BTreeMap;

use cadenza_core::cancel::CancelToken;
use cadenza_core::program::Language;
use cadenza_core::runtime::Runtime;
use cadenza_core::value::{Map, Value};
use cadenza_script::{Console, Embedded, Held};

use super::literal::{literal, quoted};
use super::surface::{Seen, Surface, World};

/// Scripts in one language.
#[derive(Debug)]
pub struct ScriptSurface {
    language: Language,
}

impl ScriptSurface {
    /// The surface of scripts in this language.
    pub fn new(language: Language) -> Self {
        Self { language }
    }
}

impl Surface for ScriptSurface {
    fn runtime(&self) -> &'static str {
        self.language.as_str()
    }

    fn world(&self, runtime: Runtime) -> Result<Box<dyn World + '_>, String> {
        let console = Console::new(|_| {}, CancelToken::default());
        let vm = Embedded::new(self.language, runtime, &console).map_err(|error| error.to_string())?;
        Ok(Box::new(ScriptWorld { language: self.language, vm, agents: BTreeMap::new(), returned: BTreeMap::new() }))
    }
}

struct ScriptWorld {
    language: Language,
    vm: Embedded,
    agents: BTreeMap<String, Held>,
    /// What the latest step of an op returned.
    returned: BTreeMap<&'static str, Held>,
}

impl ScriptWorld {
    fn agent(&self, alias: &str) -> Result<Held, String> {
        self.agents.get(alias).cloned().ok_or_else(|| format!("no agent `{alias}` was constructed"))
    }

    /// Runs the line of this world's language. `agent` in it is the target.
    fn run(&mut self, agent: Option<Held>, lua: &str, rhai: &str) -> Result<Held, String> {
        let (name, source) = match self.language {
            Language::Lua => ("agent", lua),
            Language::Rhai => ("agent", rhai),
        };
        let inputs: Vec<_> = agent.into_iter().map(|agent| (name, agent)).collect();
        self.vm.eval(source, inputs).map_err(|error| error.to_string())
    }

    fn data(&mut self, agent: Option<Held>, lua: &str, rhai: &str) -> Result<Value, String> {
        let held = self.run(agent, lua, rhai)?;
        self.vm.data(&held).map_err(|error| error.to_string())
    }

    fn truth(&mut self, agent: Option<Held>, lua: &str, rhai: &str) -> Result<bool, String> {
        let value = self.data(agent, lua, rhai)?;
        value.as_bool().ok_or_else(|| format!("expected true or false, got {value}"))
    }

    fn say(&self, value: &Value) -> String {
        literal(value, self.language)
    }

    fn say_map(&self, map: &Map) -> String {
        literal(&Value::Map(map.clone()), self.language)
    }

    fn quote(&self, text: &str) -> String {
        quoted(text, self.language)
    }

    /// `agent.method(args, kw)` where the language can write it and the name means a dynamic method; else by name.
    fn call_text(&mut self, agent: &Held, method: &str, args: &[Value], kwargs: &Map) -> Result<String, String> {
        let quoted_method = self.quote(method);
        let taken = self.truth(
            Some(agent.clone()),
            &format!("return agent:responds_to({quoted_method})"),
            &format!("agent.responds_to({quoted_method})"),
        )?;
        let mut written: Vec<String> = args.iter().map(|value| self.say(value)).collect();
        if !kwargs.is_empty() {
            written.push(format!("kw({})", self.say_map(kwargs)));
        }
        let by_syntax = !taken && self.vm.is_method_name(method);
        if !by_syntax {
            written.insert(0, quoted_method);
        }
        let written = written.join(", ");
        let name = if by_syntax { method } else { "call" };
        Ok(match self.language {
            Language::Lua => format!("agent:{name}({written})"),
            Language::Rhai => format!("agent.{name}({written})"),
        })
    }

    fn seen(&mut self, outcome: Held) -> Result<Seen, String> {
        let inputs = vec![("o", outcome)];
        let source = match self.language {
            Language::Lua => SEEN_LUA,
            Language::Rhai => SEEN_RHAI,
        };
        let held = self.vm.eval(source, inputs).map_err(|error| error.to_string())?;
        match self.vm.data(&held).map_err(|error| error.to_string())? {
            Value::Map(map) => Seen::from_map(&map),
            other => Err(format!("the call's result reads as {other}")),
        }
    }
}

/// Reads an outcome as a script does. Only a real one has its printed form and its methods.
const SEEN_LUA: &str = r#"
if type(o) ~= "table" or string.sub(tostring(o), 1, 8) ~= "Outcome(" or type(o.unwrap) ~= "function" then
    return object{ is_outcome = false, ok = false }
end
return object{
    is_outcome = true, ok = o.ok, value = o.value, error_type = o.error_type, error_message = o.error_message,
    retriable = o.retriable,
}
"#;
const SEEN_RHAI: &str = r#"
if type_of(o) != "Outcome" {
    return #{ is_outcome: false, ok: false };
}
#{
    is_outcome: true, ok: o.ok, value: o.value, error_type: o.error_type, error_message: o.error_message,
    retriable: o.retriable,
}
"#;

impl World for ScriptWorld {
    fn construct(&mut self, alias: &str, role: &str, options: &Map) -> Result<(), String> {
        let (role, options) = (self.quote(role), self.say_map(options));
        let agent = self.run(
            None,
            &format!("return Agent.for_role({role}, {options})"),
            &format!("Agent::for_role({role}, {options})"),
        )?;
        self.returned.insert("construct", agent.clone());
        self.agents.insert(alias.to_owned(), agent);
        Ok(())
    }

    fn is_agent(&mut self, target: &str) -> Result<bool, String> {
        let agent = self.agent(target)?;
        self.truth(
            Some(agent),
            r#"return string.sub(tostring(agent), 1, 6) == "Agent(" and type(agent.remember) == "function""#,
            r#"type_of(agent) == "Agent""#,
        )
    }

    fn role(&mut self, target: &str) -> Result<Value, String> {
        let agent = self.agent(target)?;
        self.data(Some(agent), "return agent.role", "agent.role")
    }

    fn remember(&mut self, target: &str, entries: &Map) -> Result<(), String> {
        let (agent, entries) = (self.agent(target)?, self.say_map(entries));
        let returned =
            self.run(Some(agent), &format!("return agent:remember({entries})"), &format!("agent.remember({entries})"))?;
        self.returned.insert("remember", returned);
        Ok(())
    }

    fn context(&mut self, target: &str) -> Result<Map, String> {
        let agent = self.agent(target)?;
        match self.data(Some(agent), "return agent.runtime_context", "agent.runtime_context")? {
            Value::Map(map) => Ok(map),
            other => Err(format!("runtime_context reads as {other}")),
        }
    }

    fn returned_is(&mut self, from_op: &str, target: &str) -> Result<Option<bool>, String> {
        let target = self.agent(target)?;
        let Some(returned) = self.returned.get(from_op).cloned() else { return Ok(None) };
        let source = match self.language {
            Language::Lua => "return rawequal(agent, returned)",
            Language::Rhai => r#"type_of(returned) == "Agent" && agent == returned"#,
        };
        let held = self.vm.eval(source, vec![("agent", target), ("returned", returned)]);
        let held = held.map_err(|error| error.to_string())?;
        let same = self.vm.data(&held).map_err(|error| error.to_string())?;
        Ok(Some(same.as_bool().unwrap_or(false)))
    }

    fn set(&mut self, target: &str, key: &str, value: &Value) -> Result<(), String> {
        let (agent, value) = (self.agent(target)?, self.say(value));
        let line = if self.vm.is_method_name(key) {
            format!("agent.{key} = {value}")
        } else {
            format!("agent[{}] = {value}", self.quote(key))
        };
        let returned = self.run(Some(agent), &line, &format!("{line};"))?;
        self.returned.insert("set", returned);
        Ok(())
    }

    fn call(&mut self, target: &str, method: &str, args: &[Value], kwargs: &Map) -> Result<Seen, String> {
        let agent = self.agent(target)?;
        let line = self.call_text(&agent, method, args, kwargs)?;
        let outcome = self.run(Some(agent), &format!("return {line}"), &line)?;
        self.returned.insert("call", outcome.clone());
        self.seen(outcome)
    }

    fn tolerant_delegate(
        &mut self,
        target: &str,
        tool_role: &str,
        method: &str,
        args: &[Value],
        kwargs: &Map,
    ) -> Result<Seen, String> {
        let (agent, role) = (self.agent(target)?, self.quote(tool_role));
        let child =
            self.run(Some(agent), &format!("return agent:delegate({role})"), &format!("agent.delegate({role})"));
        let called = child.and_then(|child| {
            let line = self.call_text(&child, method, args, kwargs)?;
            self.run(Some(child), &format!("return {line}"), &line)
        });
        let outcome = match called {
            Ok(outcome) => outcome,
            Err(message) => {
                let fields = Map::from([
                    ("error_type".to_owned(), "contract_violation".into()),
                    ("error_message".to_owned(), message.into()),
                ]);
                let fields = self.say_map(&fields);
                self.run(None, &format!("return Outcome.error({fields})"), &format!("Outcome::error({fields})"))?
            }
        };
        self.returned.insert("tolerant_delegate", outcome.clone());
        self.seen(outcome)
    }

    fn responds_to(&mut self, target: &str, method: &str) -> Result<bool, String> {
        let (agent, method) = (self.agent(target)?, self.quote(method));
        self.truth(Some(agent), &format!("return agent:responds_to({method})"), &format!("agent.responds_to({method})"))
    }
}
