//! A trusted VM that a Rust host drives line by line: each line sees the values that it is given, by name.

use std::path::Path;
use std::sync::Arc;

use ::rhai::{Dynamic, Engine, Scope};
use cadenza_core::program::Language;
use cadenza_core::runtime::Runtime;
use cadenza_core::value::Value;
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value as LuaValue};

use crate::host::{Console, Trusted};
use crate::{ScriptError, lua, rhai};

/// A value of the VM: data, an agent, an outcome. Belongs to the VM that it came from.
#[derive(Clone)]
pub struct Held(Inner);

#[derive(Clone)]
enum Inner {
    Lua(LuaValue),
    Rhai(Dynamic),
}

/// The VM.
pub struct Embedded(Vm);

enum Vm {
    Lua(Lua),
    Rhai(Box<Engine>),
}

/// Words of Luau that no name after a dot can be.
const LUA_WORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or",
    "repeat", "return", "then", "true", "until", "while",
];

impl Embedded {
    /// A VM with the surface of scripts, whose agents belong to `runtime`.
    pub fn new(language: Language, runtime: Runtime, console: &Console) -> Result<Self, ScriptError> {
        let host = Arc::new(Trusted::new(runtime, console, true));
        Ok(Self(match language {
            Language::Lua => Vm::Lua(lua::vm(&host, Path::new(".")).map_err(|error| lua::failure(&error))?),
            Language::Rhai => Vm::Rhai(Box::new(rhai::engine(&host, Path::new("."))?)),
        }))
    }

    /// Runs a piece of source text. In Lua it says `return` for its value.
    pub fn eval(&self, source: &str, inputs: Vec<(&str, Held)>) -> Result<Held, ScriptError> {
        match &self.0 {
            Vm::Lua(vm) => {
                let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
                let head = if names.is_empty() { String::new() } else { format!("local {} = ...; ", names.join(", ")) };
                let values: MultiValue = inputs.into_iter().map(|(_, held)| held.into_lua()).collect();
                let value = vm.load(format!("{head}{source}")).set_name("=input").call::<LuaValue>(values);
                value.map(|value| Held(Inner::Lua(value))).map_err(|error| lua::failure(&error))
            }
            Vm::Rhai(engine) => {
                let mut scope = Scope::new();
                for (name, held) in inputs {
                    scope.push_dynamic(name, held.into_rhai());
                }
                rhai::on_large_stack(|| {
                    let ast = rhai::compile(engine, source, "input")?;
                    let value = engine.eval_ast_with_scope::<Dynamic>(&mut scope, &ast);
                    value.map(|value| Held(Inner::Rhai(value))).map_err(|error| rhai::failure(*error, "input"))
                })
            }
        }
    }

    /// The value as data, by the rules of the surface's own `json`.
    pub fn data(&self, held: &Held) -> Result<Value, ScriptError> {
        let text = match (&self.0, held.clone().0) {
            (_, Inner::Lua(LuaValue::Nil)) => return Ok(Value::Null),
            (Vm::Lua(vm), held) => {
                let encode = || -> mlua::Result<LuaString> {
                    let encode: Function = vm.globals().raw_get::<Table>("json")?.raw_get("encode")?;
                    encode.call(Held(held).into_lua())
                };
                encode().map_err(|error| lua::failure(&error))?.to_string_lossy()
            }
            (Vm::Rhai(engine), held) => {
                let mut scope = Scope::new();
                scope.push_dynamic("it", Held(held).into_rhai());
                let text = engine.eval_with_scope::<String>(&mut scope, "json::encode(it)");
                text.map_err(|error| rhai::failure(*error, "input"))?
            }
        };
        Value::from_json(&text).map_err(|error| ScriptError::failed(format!("{text}: {error}")))
    }

    /// Whether the language can write this name after a dot or colon.
    pub fn is_method_name(&self, name: &str) -> bool {
        let mut bytes = name.bytes();
        let plain = bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        plain
            && match &self.0 {
                Vm::Lua(_) => !LUA_WORDS.contains(&name),
                Vm::Rhai(engine) => engine.compile(format!("x.{name}()")).is_ok(),
            }
    }
}

impl Held {
    /// Values of another language's VM have no meaning here.
    fn into_lua(self) -> LuaValue {
        match self.0 {
            Inner::Lua(value) => value,
            Inner::Rhai(_) => LuaValue::Nil,
        }
    }

    fn into_rhai(self) -> Dynamic {
        match self.0 {
            Inner::Rhai(value) => value,
            Inner::Lua(_) => Dynamic::UNIT,
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match &self.0 {
            Inner::Lua(_) => "Held(lua)",
            Inner::Rhai(_) => "Held(rhai)",
        })
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match &self.0 {
            Vm::Lua(_) => "Embedded(lua)",
            Vm::Rhai(_) => "Embedded(rhai)",
        })
    }
}
