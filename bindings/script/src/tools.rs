//! Functions of a Lua script as tools of its agents: `Agent.for_role("x", { tools = { name = function(args) ... end } })`.
//!
//! A tool may also be a table: `{ call = function, description = "...", parameters = { JSON Schema }, effect = "pure" }`.
//!
//! A generated program runs on the script's own thread, below the script's call; its tool call comes back into the
//! script's VM on that same thread, which the VM allows. On any other thread a tool answers with an error, because the
//! script's thread holds the VM while it waits.

use std::sync::Arc;
use std::thread::ThreadId;

use cadenza_core::tools::{Effect, Tool, ToolBounds};
use cadenza_core::value::{Map, Value};
use mlua::{Function, Lua, LuaString, Table, Value as LuaValue};

use crate::ScriptError;
use crate::host::Trusted;
use crate::lua::failure;

/// What a tool without words of its own is described as.
const DESCRIPTION: &str = "a function of the user's script";

/// What may stand in the place of a function, for options that take one in other languages.
const INSTEAD: [(&str, &str); 2] = [
    ("model", "a script's function cannot be a model; name one, such as \"openai:NAME\" or \"library\""),
    ("log", "a script's function cannot take log lines; name a file, or write true for the default one"),
];

/// `true` and the options as data, or `false` and why not.
pub(crate) fn adapted(lua: &Lua, host: &Arc<Trusted>, options: LuaValue) -> mlua::Result<(bool, LuaValue)> {
    let LuaValue::Table(given) = &options else { return Ok((true, options)) };
    for (name, instead) in INSTEAD {
        if given.raw_get::<LuaValue>(name)?.is_function() {
            let message = format!("option {name:?}: {instead}");
            return Ok((false, LuaValue::String(lua.create_string(message)?)));
        }
    }
    let LuaValue::Table(tools) = given.raw_get::<LuaValue>("tools")? else { return Ok((true, options)) };
    let numbers = lua.create_table()?;
    for pair in tools.pairs::<LuaValue, LuaValue>() {
        let (name, tool) = pair?;
        match kept(lua, host, &name, tool)? {
            Ok(number) => numbers.raw_push(number)?,
            Err(message) => return Ok((false, LuaValue::String(lua.create_string(message)?))),
        }
    }
    let copy = lua.create_table()?;
    for pair in given.pairs::<LuaValue, LuaValue>() {
        let (key, value) = pair?;
        copy.raw_set(key, value)?;
    }
    copy.raw_set("tools", if numbers.raw_len() == 0 { LuaValue::Nil } else { LuaValue::Table(numbers) })?;
    Ok((true, LuaValue::Table(copy)))
}

/// The number under which the tool is kept, or why it is refused.
fn kept(lua: &Lua, host: &Arc<Trusted>, name: &LuaValue, tool: LuaValue) -> mlua::Result<Result<i64, String>> {
    let usage = "tools are named functions: tools = { fetch = function(args) ... end }";
    let LuaValue::String(name) = name else { return Ok(Err(usage.to_owned())) };
    let name = name.to_string_lossy();
    let (function, description, parameters, effect) = match tool {
        LuaValue::Function(function) => (function, None, None, None),
        LuaValue::Table(fields) => {
            let LuaValue::Function(function) = fields.raw_get::<LuaValue>("call")? else {
                return Ok(Err(format!("tool {name:?} has no function `call`; {usage}")));
            };
            let parameters = match fields.raw_get::<LuaValue>("parameters")? {
                LuaValue::Nil => None,
                schema => match data(lua, schema) {
                    Ok(schema) => Some(schema),
                    Err(error) => return Ok(Err(format!("the parameters of tool {name:?}: {error}"))),
                },
            };
            let text = |name: &str| fields.raw_get::<Option<LuaString>>(name);
            (function, text("description")?, parameters, text("effect")?)
        }
        other => return Ok(Err(format!("tool {name:?} is a {}; {usage}", other.type_name()))),
    };
    let description = description.map_or_else(|| DESCRIPTION.to_owned(), |text| text.to_string_lossy());
    let parameters = parameters.unwrap_or_else(|| Map::from([("type".to_owned(), "object".into())]).into());
    let handler = handler(lua.clone(), host, function, std::thread::current().id());
    let effect = effect.map_or_else(|| Effect::default().as_str().to_owned(), |text| text.to_string_lossy());
    Ok(Tool::new(&name, &description, parameters, move |arguments, bounds| handler(arguments, bounds))
        .and_then(|tool| tool.with_effect(&effect))
        .map(|tool| host.keep_tool(tool))
        .map_err(|error| error.to_string()))
}

type Handler = Arc<dyn Fn(Map, &ToolBounds<'_>) -> Result<Value, String> + Send + Sync>;

fn handler(lua: Lua, host: &Arc<Trusted>, function: Function, thread: ThreadId) -> Handler {
    // Weak, or the VM and its host would keep themselves alive through their own tools.
    let (lua, host) = (lua.weak(), Arc::downgrade(host));
    Arc::new(move |arguments: Map, bounds: &ToolBounds<'_>| -> Result<Value, String> {
        if std::thread::current().id() != thread {
            return Err("a script's function can only be called on the script's own thread".to_owned());
        }
        let (lua, host) = lua.try_upgrade().zip(host.upgrade()).ok_or("the script is over")?;
        // The VM's interrupt looks at the bounds while the function runs.
        let _bounded = host.bounded(bounds);
        let called = || -> mlua::Result<LuaValue> {
            let decode: Function = lua.globals().raw_get::<Table>("json")?.raw_get("decode")?;
            function.call(decode.call::<LuaValue>(Value::Map(arguments).to_json())?)
        };
        data(&lua, called().map_err(|error| failure(&error).to_string())?).map_err(|error| error.to_string())
    })
}

/// A Lua value as data, by the rules of the surface's own `json`.
fn data(lua: &Lua, value: LuaValue) -> Result<Value, ScriptError> {
    if value.is_nil() {
        return Ok(Value::Null);
    }
    let encode = || -> mlua::Result<LuaString> {
        let encode: Function = lua.globals().raw_get::<Table>("json")?.raw_get("encode")?;
        encode.call(value)
    };
    let text = encode().map_err(|error| failure(&error))?.to_string_lossy();
    Value::from_json(&text).map_err(|error| ScriptError::failed(error.to_string()))
}
