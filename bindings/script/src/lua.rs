//! Scripts in Lua: a whole Luau VM with its own libraries, the Agent surface, `fs`, `arg` and `require`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cadenza_core::cancel::CancelToken;
use cadenza_core::program::lua::install_script_adapting;
use cadenza_core::runtime::Runtime;
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value as LuaValue, VmState};
use parking_lot::Mutex;

use crate::host::{Console, Trusted};
use crate::{Evaluated, Script, ScriptError, files, tools};

/// What a Luau module's file may be called.
const EXTENSIONS: [&str; 2] = ["lua", "luau"];

/// Runs a script to its end.
pub(crate) fn run(script: &Script<'_>, runtime: Runtime, console: &Console) -> Result<(), ScriptError> {
    let host = Arc::new(Trusted::new(runtime, console, false));
    let lua = vm(&host, &script.folder()).map_err(|error| failure(&error))?;
    let ran = (|| {
        let globals = lua.globals();
        let arg = lua.create_sequence_from(script.args.iter().map(String::as_str))?;
        globals.raw_set("args", lua.create_sequence_from(script.args.iter().map(String::as_str))?)?;
        arg.raw_set(0, script.path.display().to_string())?;
        globals.raw_set("arg", arg)?;
        let chunk = lua.load(script.source).set_name(chunk_name(script.path)).into_function()?;
        let args: MultiValue =
            script.args.iter().map(|arg| lua.create_string(arg).map(LuaValue::String)).collect::<mlua::Result<_>>()?;
        chunk.call::<()>(args)
    })();
    ran.map_err(|error| uncaught(&lua, &error))
}

/// A trusted VM whose modules lie in `folder`.
pub(crate) fn vm(host: &Arc<Trusted>, folder: &Path) -> mlua::Result<Lua> {
    let lua = Lua::new();
    let tools = lua.create_function({
        let host = host.clone();
        move |lua, (options, reachable): (LuaValue, Function)| {
            if host.is_crowded() {
                // What the script dropped has to be collected before it is known to be unreachable.
                lua.gc_collect()?;
                host.keep_only(&reachable.call::<Vec<u32>>(())?.into_iter().collect());
            }
            tools::adapted(lua, &host, options)
        }
    })?;
    install_script_adapting(&lua, host.clone(), Some(tools))?;
    interruptible(&lua, host.clone(), None);
    let globals = lua.globals();
    let remembering = lua.load(REMEMBERING).set_name("=cadenza").into_function()?;
    globals.raw_set("error", remembering.call::<Function>((globals.raw_get::<Function>("error")?, thrown(&lua)?))?)?;
    globals.raw_set("fs", fs(&lua, folder.to_owned())?)?;
    globals.raw_set("require", require(&lua, folder.to_owned())?)?;
    Ok(lua)
}

/// `error` that remembers tables: the interpreter tells the host of an uncaught one nothing but its address.
const REMEMBERING: &str = "
    local raise, thrown = ...
    return function(what, level)
        if type(what) == 'table' then thrown[1] = what end
        if level == nil then level = 1 end
        if type(level) == 'number' and level > 0 then level += 1 end
        raise(what, level)
    end";

/// Holds the table that was thrown last.
fn thrown(lua: &Lua) -> mlua::Result<Table> {
    const NAME: &str = "cadenza.thrown";
    if let LuaValue::Table(table) = lua.named_registry_value::<LuaValue>(NAME)? {
        return Ok(table);
    }
    let table = lua.create_table()?;
    lua.set_named_registry_value(NAME, &table)?;
    Ok(table)
}

/// Lets the host stop the VM at its safepoints: a function that works as a tool, and the input of a session.
fn interruptible(lua: &Lua, host: Arc<Trusted>, input: Option<Arc<Mutex<CancelToken>>>) {
    lua.set_interrupt(move |_| {
        if let Some(why) = host.out_of_bounds() {
            return Err(mlua::Error::runtime(why));
        }
        match &input {
            Some(input) if input.lock().is_cancelled() => Err(mlua::Error::runtime("interrupted")),
            Some(_) | None => Ok(VmState::Continue),
        }
    });
}

/// `@` makes Luau name the file as it is.
fn chunk_name(path: &Path) -> String {
    format!("@{}", path.display())
}

fn fs(lua: &Lua, folder: PathBuf) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let add = |name: &str, function: mlua::Result<Function>| table.raw_set(name, function?);
    add("read", lua.create_function(|lua, path: String| lua.create_string(raised(files::read(&path))?)))?;
    add("lines", lua.create_function(|lua, path: String| lua.create_sequence_from(raised(files::lines(&path))?)))?;
    add(
        "write",
        lua.create_function(|_, (path, text): (String, LuaString)| raised(files::write(&path, &text.as_bytes()))),
    )?;
    add(
        "append",
        lua.create_function(|_, (path, text): (String, LuaString)| raised(files::append(&path, &text.as_bytes()))),
    )?;
    add("exists", lua.create_function(|_, path: String| Ok(files::exists(&path))))?;
    add("list", lua.create_function(|lua, path: String| lua.create_sequence_from(raised(files::list(&path))?)))?;
    add("beside", lua.create_function(move |_, name: String| Ok(files::beside(&folder, &name))))?;
    table.set_readonly(true);
    Ok(table)
}

fn raised<T>(result: Result<T, String>) -> mlua::Result<T> {
    result.map_err(mlua::Error::runtime)
}

/// `require(name)`: a module of the folder, run once.
fn require(lua: &Lua, folder: PathBuf) -> mlua::Result<Function> {
    // Path to a table that holds what the module returned; while it loads, to false.
    let loaded = lua.create_table()?;
    lua.create_function(move |lua, name: String| {
        let path = raised(files::module(&folder, &name, &EXTENSIONS))?;
        let key = path.display().to_string();
        match loaded.raw_get::<LuaValue>(key.as_str())? {
            LuaValue::Table(holder) => return holder.raw_get::<LuaValue>(1),
            LuaValue::Nil => {}
            _ => return Err(mlua::Error::runtime(format!("module {name:?} requires itself in a circle"))),
        }
        let source = std::fs::read_to_string(&path).map_err(|error| mlua::Error::runtime(format!("{key}: {error}")))?;
        loaded.raw_set(key.as_str(), false)?;
        match lua.load(source).set_name(chunk_name(&path)).call::<LuaValue>(()) {
            Ok(value) => {
                // A module that returns nothing is `true`, as in Lua.
                let value = if value.is_nil() { LuaValue::Boolean(true) } else { value };
                let holder = lua.create_table()?;
                holder.raw_set(1, value.clone())?;
                loaded.raw_set(key, holder)?;
                Ok(value)
            }
            Err(error) => {
                loaded.raw_set(key, LuaValue::Nil)?;
                Err(error)
            }
        }
    })
}

/// An error of the VM, for people: the message with its place, and the calls of the script that led there.
pub(crate) fn failure(error: &mlua::Error) -> ScriptError {
    let (message, traceback) = words(error);
    // Luau's own errors carry their traceback behind the message; errors of host functions beside it.
    let (message, inline) = message.split_once("\nstack traceback:\n").unwrap_or((&message, ""));
    let traceback = if inline.is_empty() { traceback.as_str() } else { inline };
    let frames: Vec<String> =
        traceback.lines().map(str::trim).filter(|frame| is_of_script(frame)).map(str::to_owned).collect();
    let place = frames.first().and_then(|frame| frame.split_once(": ")).map(|(place, _)| place);
    let message = match (error, place) {
        // Errors of host functions have no place of their own: the innermost frame is it.
        (mlua::Error::CallbackError { .. }, Some(place)) if !has_place(message, &frames) => {
            format!("{place}: {message}")
        }
        (_, Some(_) | None) => message.to_owned(),
    };
    ScriptError::Failed { message, traceback: frames }
}

/// The failure of a script's own code. A table that nothing caught is told as JSON.
pub(crate) fn uncaught(lua: &Lua, error: &mlua::Error) -> ScriptError {
    let failure = failure(error);
    let ScriptError::Failed { message, traceback } = &failure else { return failure };
    let told = || -> mlua::Result<Option<String>> {
        let LuaValue::Table(table) = thrown(lua)?.raw_get::<LuaValue>(1)? else { return Ok(None) };
        // All that an uncaught table says of itself is its address.
        let address = message.rsplit_once("0x").and_then(|(_, digits)| usize::from_str_radix(digits, 16).ok());
        if address != Some(table.to_pointer().addr()) {
            return Ok(None);
        }
        let encode: Function = lua.globals().raw_get::<Table>("json")?.raw_get("encode")?;
        encode.call::<String>(table).map(Some)
    };
    let Ok(Some(json)) = told() else { return failure };
    let place = traceback.first().and_then(|frame| frame.split_once(": ")).map(|(place, _)| format!("{place}: "));
    ScriptError::Failed { message: format!("{}{json}", place.unwrap_or_default()), traceback: traceback.clone() }
}

/// Whether a line of a traceback is about the script, and not about native functions or the surface's own text.
fn is_of_script(frame: &str) -> bool {
    !frame.is_empty() && frame != "stack traceback:" && !frame.starts_with("[C]") && !frame.starts_with("cadenza:")
}

/// Whether a message begins with a place of the script.
fn has_place(message: &str, frames: &[String]) -> bool {
    let places = frames.iter().filter_map(|frame| frame.split_once(": "));
    places.into_iter().any(|(place, _)| message.starts_with(place))
}

fn words(error: &mlua::Error) -> (String, String) {
    match error {
        mlua::Error::CallbackError { traceback, cause } => (words(cause).0, traceback.clone()),
        mlua::Error::WithContext { context, cause } => (format!("{context}: {}", words(cause).0), String::new()),
        mlua::Error::SyntaxError { message, .. } | mlua::Error::RuntimeError(message) => {
            (message.clone(), String::new())
        }
        other => (other.to_string(), String::new()),
    }
}

/// An interactive session in Lua.
pub struct LuaSession {
    lua: Lua,
    host: Arc<Trusted>,
    /// What stops the input that runs now; looked at by the VM at each of its safepoints.
    cancel: Arc<Mutex<CancelToken>>,
    /// Names that were there before the first input.
    builtin: Vec<String>,
}

impl LuaSession {
    /// A session whose agents belong to `runtime`.
    pub fn new(runtime: Runtime, console: &Console) -> Result<Self, ScriptError> {
        let host = Arc::new(Trusted::new(runtime, console, true));
        let lua = vm(&host, Path::new(".")).map_err(|error| failure(&error))?;
        let cancel = Arc::new(Mutex::new(console.cancel().clone()));
        interruptible(&lua, host.clone(), Some(cancel.clone()));
        let mut session = Self { lua, host, cancel, builtin: Vec::new() };
        session.builtin = session.names();
        Ok(session)
    }

    /// Runs one input: an expression's value comes back as text, statements run. `local` at the beginning of an input
    /// makes a variable of the session, because the input is all that a local of it would live for.
    pub fn eval(&mut self, source: &str, cancel: CancelToken) -> Result<Evaluated, ScriptError> {
        *self.cancel.lock() = cancel.clone();
        self.host.renew(cancel);
        let source = session_variables(source);
        let as_expression = self.lua.load(format!("return {source}")).set_name("=input").into_function();
        let chunk = match as_expression {
            Ok(chunk) => chunk,
            // It ends in an operator, say: no statement does.
            Err(error) if is_incomplete(&error, &source) => return Ok(Evaluated::Incomplete),
            Err(_) => match self.lua.load(source.as_str()).set_name("=input").into_function() {
                Ok(chunk) => chunk,
                Err(error) if is_incomplete(&error, &source) => return Ok(Evaluated::Incomplete),
                Err(error) => return Err(failure(&error)),
            },
        };
        let result = chunk.call::<MultiValue>(());
        match result {
            Ok(values) => self.shown(values).map(Evaluated::Value).map_err(|error| failure(&error)),
            Err(_) if self.host.is_cancelled() => Err(ScriptError::Interrupted),
            Err(error) => Err(uncaught(&self.lua, &error)),
        }
    }

    /// Variables and functions of the session, in order.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .lua
            .globals()
            .pairs::<LuaString, LuaValue>()
            .filter_map(Result::ok)
            .map(|(name, _)| name.to_string_lossy())
            .chain(files::NAMES.iter().map(|name| format!("fs.{name}")))
            .collect();
        names.sort_unstable();
        names
    }

    /// The values as text, as `print` would show them, text in quotes and tables with their entries.
    fn shown(&self, values: MultiValue) -> mlua::Result<Option<String>> {
        if values.is_empty() || values.iter().all(LuaValue::is_nil) {
            return Ok(None);
        }
        let json: Function = self.lua.globals().raw_get::<Table>("json")?.raw_get("encode")?;
        let to_text: Function = self.lua.globals().raw_get("tostring")?;
        let mut shown = Vec::with_capacity(values.len());
        for value in values {
            let plain = matches!(value, LuaValue::String(_) | LuaValue::Table(_));
            let data = if plain { json.call::<String>(value.clone()).ok() } else { None };
            shown.push(match data {
                Some(text) => text,
                None => to_text.call::<LuaString>(value)?.to_string_lossy(),
            });
        }
        Ok(Some(shown.join("\t")))
    }
}

impl std::fmt::Debug for LuaSession {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LuaSession").field("builtin", &self.builtin.len()).finish_non_exhaustive()
    }
}

/// Whether an input fails to parse only because it ends too early.
fn is_incomplete(error: &mlua::Error, source: &str) -> bool {
    match error {
        mlua::Error::SyntaxError { incomplete_input: true, .. } => true,
        // Text and comments in long brackets may go on; those in quotes end with their line.
        mlua::Error::SyntaxError { message, .. } => {
            let unfinished = message.contains("did you forget to finish it") || message.contains("unfinished");
            unfinished
                && source.rfind("[[").or_else(|| source.rfind("[=")) > source.rfind("]]").or_else(|| source.rfind("=]"))
        }
        _ => false,
    }
}

/// An input without the `local` at its beginning.
fn session_variables(source: &str) -> String {
    let trimmed = source.trim_start();
    match trimmed.strip_prefix("local") {
        Some(rest) if rest.starts_with(char::is_whitespace) => rest.trim_start().to_owned(),
        Some(_) | None => source.to_owned(),
    }
}
