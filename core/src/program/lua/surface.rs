//! The program interface (product.md section 4): the host's side of it, and the Luau prelude that gives it its shape.
//!
//! Rust offers primitives that take and give plain values; `surface.luau` makes `Agent`, `Outcome` and their friends of
//! them. A primitive never raises a refusal itself: it answers `false, message`, and the prelude raises the message as
//! a plain string at the program's own line. The same surface is installed in generated programs and in users' scripts.

use std::sync::{Arc, LazyLock, OnceLock};

use mlua::chunk::{ChunkMode, Compiler};
use mlua::{AnyUserData, Function, IntoLuaMulti, Lua, LuaString, MultiValue, Table, Value as LuaValue};

use super::convert::{Marks, Reader, Unreadable, cut, to_lua, to_lua_frozen};
use super::interrupt::Meter;
use super::job::{Denied, HostHandle, Job, Slot};
use super::{context, order};
use crate::cancel::CancelToken;
use crate::outcome::{ErrorType, Outcome};
use crate::program::{AgentRef, Arguments, Bounds, Host, Limits};
use crate::value::{Map, Value};

/// The prelude.
static SURFACE: Prelude = Prelude::new(include_str!("surface.luau"));

/// Source that ships with Cadenza and runs in each new VM; compiled once per process.
pub(super) struct Prelude {
    source: &'static str,
    bytecode: OnceLock<Vec<u8>>,
}

impl Prelude {
    /// A prelude with this source.
    pub(super) const fn new(source: &'static str) -> Self {
        Self { source, bytecode: OnceLock::new() }
    }

    /// Loads it into a VM.
    pub(super) fn load(&self, lua: &Lua) -> mlua::Result<Function> {
        let bytecode = match self.bytecode.get() {
            Some(bytecode) => bytecode,
            None => {
                let compiled = Compiler::new().set_optimization_level(1).set_debug_level(1).compile(self.source)?;
                self.bytecode.get_or_init(|| compiled)
            }
        };
        lua.load(&bytecode[..]).set_name("=cadenza").set_mode(ChunkMode::Binary).into_function()
    }
}

/// The envelope behind an outcome object, as the host returned it.
struct Envelope(Outcome);

/// What a primitive answers: the prelude gets `true` and the values, or `false` and a message.
type Answer<R> = Result<R, Denied>;

/// Makes primitives for one VM and collects them in a table.
struct Primitives<'a> {
    lua: &'a Lua,
    slot: &'a Arc<Slot>,
    marks: &'a Arc<Marks>,
    table: Table,
}

impl Primitives<'_> {
    /// Adds a primitive that can be refused.
    fn add<A, R, F>(&self, name: &str, f: F) -> mlua::Result<()>
    where
        A: mlua::FromLuaMulti,
        R: IntoLuaMulti,
        F: Fn(&Lua, &Marks, &Job<'_>, A) -> Answer<R> + Send + Sync + 'static,
    {
        let (slot, marks) = (Arc::clone(self.slot), Arc::clone(self.marks));
        let function = self.lua.create_function(move |lua, arguments: A| {
            slot.with(|job| match f(lua, &marks, job, arguments) {
                Ok(result) => {
                    let mut values = result.into_lua_multi(lua)?;
                    values.push_front(LuaValue::Boolean(true));
                    Ok(values)
                }
                Err(Denied::Refused(message)) => {
                    let message = lua.create_string(cut(&message, job.limits.max_error_bytes))?;
                    Ok(MultiValue::from_vec(vec![LuaValue::Boolean(false), LuaValue::String(message)]))
                }
                Err(Denied::Ended) => Err(job.over()),
                Err(Denied::Lua(error)) => Err(error),
            })
        })?;
        self.table.raw_set(name, function)
    }

    /// Adds a primitive on the fast road: it always has an answer.
    fn add_sure<A, R, F>(&self, name: &str, f: F) -> mlua::Result<()>
    where
        A: mlua::FromLuaMulti,
        R: IntoLuaMulti,
        F: Fn(&Lua, &Marks, &Job<'_>, A) -> mlua::Result<R> + Send + Sync + 'static,
    {
        let (slot, marks) = (Arc::clone(self.slot), Arc::clone(self.marks));
        let function =
            self.lua.create_function(move |lua, arguments: A| slot.with(|job| f(lua, &marks, job, arguments)))?;
        self.table.raw_set(name, function)
    }
}

/// The surface of one VM: its globals by name, and what the program guard builds on.
pub(super) struct Surface {
    /// `Agent`, `Outcome`, `kw`, `json`, `null`, `array`, `object`, …
    pub(super) globals: Table,
    /// Functions of the prelude that the guard uses.
    pub(super) inner: Table,
    /// The primitives.
    pub(super) host: Table,
}

/// Puts the surface into a VM. `own` says whether the VM runs programs of an agent (`AgentRef::THIS`).
pub(super) fn install(lua: &Lua, slot: &Arc<Slot>, marks: &Arc<Marks>, own: bool) -> mlua::Result<Surface> {
    let host = Primitives { lua, slot, marks, table: lua.create_table()? };
    agents(&host)?;
    values(&host)?;
    program(&host)?;
    let mark_table = lua.create_table()?;
    mark_table.raw_set("array", &marks.array)?;
    mark_table.raw_set("object", &marks.object)?;
    mark_table.raw_set("kwargs", &marks.kwargs)?;
    mark_table.raw_set("outcome", &marks.outcome)?;
    mark_table.raw_set("agent", &marks.agent)?;
    mark_table.raw_set("proxies", &marks.proxies)?;
    mark_table.raw_set("handles", &marks.handles)?;
    mark_table.raw_set("null", LuaValue::NULL)?;
    // Unlike `table.freeze`, this also takes tables whose metatable is locked.
    let freeze = lua.create_function(|_, table: Table| {
        table.set_readonly(true);
        Ok(table)
    })?;
    mark_table.raw_set("freeze", freeze)?;
    let (globals, inner): (Table, Table) = SURFACE.load(lua)?.call((&host.table, mark_table, own))?;
    Ok(Surface { globals, inner, host: host.table })
}

/// Primitives about agents.
fn agents(host: &Primitives<'_>) -> mlua::Result<()> {
    host.add("call", |lua, marks, job, (agent, method, count, args, kwargs): CallShape| {
        let mut list = Vec::with_capacity(count);
        for index in 1..=count {
            let place = format!("argument {index}");
            list.push(read(marks, job, &args.raw_get::<LuaValue>(index)?, &place)?);
        }
        let kwargs = read_map(marks, job, &kwargs, "keyword arguments")?;
        let method = name(&method)?;
        if AgentRef(agent) == AgentRef::THIS && !method.ends_with('=') {
            // The agent may answer its own call by a reader.
            job.reads.borrow_mut().saw_context(&method);
        }
        let outcome = ask_seen(marks, job, |host| host.call(AgentRef(agent), &method, list, kwargs))?;
        outcome_fields(lua, marks, outcome)
    })?;
    host.add("role", |lua, _, job, agent: u32| Ok(lua.create_string(&*job.host().role(AgentRef(agent)))?))?;
    host.add("delegate", |_, marks, job, (agent, role, options): (u32, LuaString, LuaValue)| {
        let (role, options) = (name(&role)?, read_map(marks, job, &options, "options")?);
        Ok(ask_seen(marks, job, |host| host.delegate(AgentRef(agent), &role, options))?.0)
    })?;
    host.add("for_role", |_, marks, job, (role, options): (LuaString, LuaValue)| {
        let (role, options) = (name(&role)?, read_map(marks, job, &options, "options")?);
        Ok(ask_seen(marks, job, |host| host.for_role(&role, options))?.0)
    })?;
    host.add("agent_tool", |_, marks, job, (agent, tool): (u32, LuaString)| {
        let tool = name(&tool)?;
        Ok(ask_seen(marks, job, |host| host.agent_tool(AgentRef(agent), &tool))?.0)
    })?;
    host.add("responds_to", |_, _, job, (agent, method): (u32, LuaString)| {
        let method = name(&method)?;
        if AgentRef(agent) == AgentRef::THIS {
            // Whether a reader exists depends on the context.
            job.reads.borrow_mut().saw_context(&method);
        }
        Ok(job.host().responds_to(AgentRef(agent), &method))
    })?;
    host.add("remember", |_, marks, job, (agent, entries): (u32, LuaValue)| {
        let entries = read_map(marks, job, &entries, "entries")?;
        ask_seen(marks, job, |host| host.remember(AgentRef(agent), entries))
    })?;
    // The context of another agent: copies, read-only so that a change that would be lost cannot be made.
    host.add("child_get", |lua, marks, job, (agent, key): (u32, LuaString)| {
        let key = name(&key)?;
        match job.ask(|host| Ok(host.context_get(AgentRef(agent), &key)))? {
            Some(Value::Null) => Ok((true, LuaValue::Nil)),
            Some(value) => Ok((true, to_lua_frozen(lua, marks, &value)?)),
            None => Ok((false, LuaValue::Nil)),
        }
    })?;
    host.add("child_set", |_, marks, job, (agent, key, value): (u32, LuaString, LuaValue)| {
        let key = name(&key)?;
        if value.is_nil() {
            return job.ask(|host| host.context_remove(AgentRef(agent), &key));
        }
        let value = read(marks, job, &value, cut(&key, 64))?;
        job.ask(|host| host.context_set(AgentRef(agent), &key, value))
    })?;
    host.add("child_keys", |lua, _, job, agent: u32| {
        let keys = job.ask(|host| Ok(host.context_keys(AgentRef(agent))))?;
        Ok(lua.create_sequence_from(keys)?)
    })
}

/// What the primitive `call` takes: agent, method, number of arguments, arguments, keyword arguments.
type CallShape = (u32, LuaString, usize, Table, LuaValue);

/// Primitives about values and outcomes.
fn values(host: &Primitives<'_>) -> mlua::Result<()> {
    host.add("metadata", |lua, marks, _, outcome: Table| {
        let handle: Option<AnyUserData> = marks.handles.raw_get(outcome)?;
        let Some(handle) = handle else { return Ok(LuaValue::Nil) };
        let metadata = handle.borrow::<Envelope>()?.0.metadata.as_ref().map(|metadata| metadata.to_map());
        Ok(to_lua_frozen(lua, marks, &Value::Map(metadata.unwrap_or_default()))?)
    })?;
    host.add("outcome_equal", |_, marks, job, (left, right): (Table, Table)| {
        Ok(outcome_from(marks, job.limits, &left)? == outcome_from(marks, job.limits, &right)?)
    })?;
    host.add("outcome_map", |lua, marks, job, outcome: Table| {
        Ok(to_lua(lua, marks, &Value::Map(outcome_from(marks, job.limits, &outcome)?.to_map()))?)
    })?;
    host.add("encode", |lua, marks, job, value: LuaValue| {
        let value = read_with(Reader::new(marks, job.limits), job, &value, "json.encode")?;
        Ok(lua.create_string(value.to_json())?)
    })?;
    host.add("decode", |lua, marks, job, text: LuaString| {
        if text.as_bytes().len() > job.limits.max_value_bytes {
            return Err(Denied::Refused(format!("json.decode takes at most {} bytes", job.limits.max_value_bytes)));
        }
        job.charge_nodes(text.as_bytes().len() / 8)?;
        let value: Value = serde_json::from_slice(&text.as_bytes())
            .map_err(|error| Denied::Refused(format!("json.decode: {error}")))?;
        Ok(to_lua(lua, marks, &value)?)
    })?;
    host.add_sure("metatable", |_, _, _, table: Table| Ok(table.metatable()))?;
    host.add("sorted_keys", |lua, _, job, table: Table| order::sorted_keys(lua, job, &table))
}

/// Primitives that only a program has: its arguments, its own context, tools, history, recorded time and randomness.
fn program(host: &Primitives<'_>) -> mlua::Result<()> {
    host.add_sure("arg", |lua, marks, job, index: f64| {
        job.touched.set(true);
        // Whole and positive, so the cast is exact; anything else is no position.
        if index < 1.0 || index.fract() != 0.0 || index > u32::MAX.into() {
            return Ok(LuaValue::Nil);
        }
        let position = index as usize - 1;
        job.reads.borrow_mut().saw_arg(position);
        job.arguments.args.get(position).map_or(Ok(LuaValue::Nil), |value| to_lua(lua, marks, value))
    })?;
    host.add_sure("arg_count", |_, _, job, ()| {
        job.touched.set(true);
        job.reads.borrow_mut().all_args = true;
        Ok(job.arguments.args.len())
    })?;
    host.add_sure("args", |lua, marks, job, ()| {
        job.touched.set(true);
        all_args(lua, marks, job)
    })?;
    host.add_sure("kwarg", |lua, marks, job, key: LuaString| {
        job.touched.set(true);
        let bytes = key.as_bytes();
        let Ok(key) = std::str::from_utf8(&bytes) else { return Ok(LuaValue::Nil) };
        job.reads.borrow_mut().saw_kwarg(key);
        match job.arguments.kwargs.get(key) {
            None | Some(Value::Null) => Ok(LuaValue::Nil),
            Some(value) => to_lua(lua, marks, value),
        }
    })?;
    host.add_sure("saw_kwargs", |_, _, job, ()| {
        job.reads.borrow_mut().all_kwargs = true;
        Ok(())
    })?;
    host.add_sure("kwargs", |lua, marks, job, ()| {
        job.touched.set(true);
        let table = lua.create_table()?;
        for (key, value) in job.arguments.kwargs {
            if *value != Value::Null {
                table.raw_set(key.as_str(), to_lua(lua, marks, value)?)?;
            }
        }
        Ok(table)
    })?;
    host.add("context_get", |lua, marks, job, key: LuaString| {
        let bytes = key.as_bytes();
        match std::str::from_utf8(&bytes) {
            Ok(key) => context::get(lua, marks, job, key),
            Err(_) => Ok(LuaValue::Nil),
        }
    })?;
    host.add("context_set", |_, marks, job, (key, value): (LuaString, LuaValue)| {
        context::set(marks, job, &name(&key)?, &value)
    })?;
    host.add("context_keys", |lua, _, job, ()| Ok(lua.create_sequence_from(context::keys(job))?))?;
    host.add("tool", |lua, marks, job, (tool, arguments): (LuaString, LuaValue)| {
        let tool = name(&tool)?;
        let arguments = read_map(marks, job, &arguments, "a tool's arguments")?;
        let value = ask_seen(marks, job, |host| host.tool(&tool, arguments))?;
        Ok(to_lua(lua, marks, &value)?)
    })?;
    host.add("tool_names", |lua, _, job, ()| Ok(lua.create_sequence_from(job.ask(|host| Ok(host.tool_names()))?)?))?;
    host.add("history", |lua, marks, job, ()| {
        job.touched.set(true);
        let history = job.ask(|host| Ok(host.history()))?;
        Ok(to_lua_frozen(lua, marks, &Value::List(history))?)
    })?;
    host.add("content", |lua, marks, job, reference: LuaString| {
        let reference = name(&reference)?;
        let content = job.ask(|host| host.content(&reference))?;
        Ok(to_lua(lua, marks, &content)?)
    })?;
    host.add_sure("now", |_, _, job, ()| Ok(job.host().now() as f64))?;
    host.add_sure("random", |_, _, job, ()| Ok(job.host().random()))?;
    host.add_sure("write", |_, _, job, line: LuaString| {
        let mut output = job.output.borrow_mut();
        let room = job.limits.max_output_bytes.saturating_sub(output.len());
        let line = line.as_bytes();
        // What has no room is not even looked at.
        output.push_str(cut(&String::from_utf8_lossy(&line[..line.len().min(room)]), room));
        output.push_str(if line.len() < room { "\n" } else { "" });
        Ok(())
    })?;
    host.add_sure("print", |_, _, job, line: LuaString| {
        job.host().print(&line.to_string_lossy());
        Ok(())
    })?;
    host.add_sure("touch", |_, _, job, ()| {
        job.touched.set(true);
        Ok(())
    })?;
    host.add_sure("charge", |_, _, job, safepoints: f64| {
        job.meter.charge(safepoints as u64);
        if job.meter.ended() { Err(job.over()) } else { Ok(()) }
    })
}

/// All positional arguments as a fresh list.
pub(super) fn all_args(lua: &Lua, marks: &Marks, job: &Job<'_>) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(job.arguments.args.len(), 0)?;
    for value in job.arguments.args {
        table.raw_push(to_lua(lua, marks, value)?)?;
    }
    table.set_metatable(Some(marks.array.clone()))?;
    Ok(table)
}

/// A host call that may see this agent's context, or change it.
fn ask_seen<R>(
    marks: &Marks,
    job: &Job<'_>,
    call: impl FnOnce(&dyn Host) -> Result<R, crate::program::HostError>,
) -> Answer<R> {
    context::write_back(marks, job)?;
    let answer = job.ask(call);
    context::refresh(job);
    answer
}

fn read(marks: &Marks, job: &Job<'_>, value: &LuaValue, place: &str) -> Answer<Value> {
    let of_script = job.limits.max_value_bytes == usize::MAX;
    let reader = if of_script { Reader::of_host } else { Reader::new };
    read_with(reader(marks, job.limits), job, value, place)
}

fn read_with(mut reader: Reader<'_>, job: &Job<'_>, value: &LuaValue, place: &str) -> Answer<Value> {
    let data = reader.read(value, None).map_err(|error| match error {
        Unreadable::Refused(why) => Denied::Refused(format!("{place}: {why}")),
        Unreadable::Lua(error) => Denied::Lua(error),
    })?;
    job.charge_nodes(reader.size().0)?;
    Ok(data)
}

/// A name that a program chose: of a role, a method, a tool, a context key.
fn name(text: &LuaString) -> Answer<String> {
    const MAX_NAME: usize = 1_024;
    let bytes = text.as_bytes();
    if bytes.len() > MAX_NAME {
        return Err(Denied::Refused(format!("a name of {} bytes; at most {MAX_NAME} are taken", bytes.len())));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Denied::Refused("a name must be valid UTF-8 text".to_owned())),
    }
}

fn read_map(marks: &Marks, job: &Job<'_>, value: &LuaValue, place: &str) -> Answer<Map> {
    match read(marks, job, value, place)? {
        Value::Null => Ok(Map::new()),
        Value::Map(map) => Ok(map),
        Value::List(list) if list.is_empty() => Ok(Map::new()),
        other => Err(Denied::Refused(format!(
            "{place} must be a table with named fields such as {{name = value}}, not a {}",
            other.type_name()
        ))),
    }
}

/// An outcome of the host, in the order in which the prelude takes it.
fn outcome_fields(lua: &Lua, marks: &Marks, outcome: Outcome) -> Answer<MultiValue> {
    let text = |text: &str| -> mlua::Result<LuaValue> { Ok(LuaValue::String(lua.create_string(text)?)) };
    let (value, error_type, message, retriable) = match &outcome.result {
        Ok(Value::Null) => (LuaValue::Nil, LuaValue::Nil, LuaValue::Nil, false),
        Ok(value) => (to_lua(lua, marks, value)?, LuaValue::Nil, LuaValue::Nil, false),
        Err(error) => (LuaValue::Nil, text(error.error_type.as_str())?, text(&error.message)?, error.retriable),
    };
    let (role, method) = (text(&outcome.role)?, text(&outcome.method)?);
    let ok = outcome.ok();
    let handle = LuaValue::UserData(lua.create_any_userdata(Envelope(outcome))?);
    Ok(MultiValue::from_vec(vec![
        LuaValue::Boolean(ok),
        value,
        error_type,
        message,
        LuaValue::Boolean(retriable),
        role,
        method,
        handle,
    ]))
}

/// The envelope that an outcome object stands for.
pub(super) fn outcome_from(marks: &Marks, limits: &Limits, table: &Table) -> Answer<Outcome> {
    let handle: Option<AnyUserData> = marks.handles.raw_get(table)?;
    let original = match handle {
        Some(handle) => Some(handle.borrow::<Envelope>()?.0.clone()),
        None => None,
    };
    if table.raw_get::<bool>("ok")? {
        let before = original.as_ref().and_then(|outcome| outcome.result.as_ref().ok());
        let value = Reader::new(marks, limits).read(&table.raw_get("value")?, before).map_err(|error| match error {
            Unreadable::Refused(why) => Denied::Refused(why),
            Unreadable::Lua(error) => Denied::Lua(error),
        })?;
        return Ok(match original {
            Some(outcome) => Outcome { result: Ok(value), ..outcome },
            None => Outcome::of_value(value),
        });
    }
    if let Some(original) = original {
        return Ok(original);
    }
    let (error_type, message): (LuaString, LuaString) = (table.raw_get("error_type")?, table.raw_get("error_message")?);
    let error_type = ErrorType::from_name(cut(&error_type.to_string_lossy(), 256));
    let message = message.to_string_lossy();
    Ok(Outcome::of_error(error_type, cut(&message, limits.max_error_bytes), table.raw_get("retriable")?))
}

/// Limits of a user's own script: only nesting is bounded, because the native stack is.
fn script_limits() -> Limits {
    Limits {
        max_instructions: u64::MAX,
        cpu_time: std::time::Duration::MAX,
        max_memory_bytes: usize::MAX,
        max_source_bytes: usize::MAX,
        max_value_bytes: usize::MAX,
        max_value_nodes: usize::MAX,
        max_value_depth: 128,
        max_call_depth: usize::MAX,
        max_output_bytes: usize::MAX,
        max_error_bytes: 64 << 10,
        max_host_calls: u32::MAX,
    }
}

/// Puts the `Agent` surface, word for word that of generated programs, into a trusted VM with its own libraries.
///
/// Adds the globals `Agent`, `Outcome`, `kw`, `json`, `null`, `array`, `object`, and makes `print` write through
/// [`Host::print`] and `pairs`, `ipairs` and `next` understand live contexts. Agents are made by [`Host::for_role`];
/// `AgentRef::THIS` is never used. There are no limits, host methods may take their time, and a panic in one ends the
/// script's access to the host with an error. Errors: whatever the VM reports. Call it once per VM, before any sandbox.
pub fn install_script(lua: &Lua, host: Arc<dyn Host>) -> mlua::Result<()> {
    install_script_adapting(lua, host, None)
}

/// [`install_script`] with a say in options: `adapt` is called with what a script wrote as options of an agent, and
/// answers `true` and what to read in its place, or `false` and a message that is raised at the script's own line. Its
/// second argument is a function that gives the numbers of the agents that the script can still reach.
pub fn install_script_adapting(lua: &Lua, host: Arc<dyn Host>, adapt: Option<Function>) -> mlua::Result<()> {
    static LIMITS: LazyLock<Limits> = LazyLock::new(script_limits);
    static CANCEL: LazyLock<CancelToken> = LazyLock::new(CancelToken::default);
    static BOUNDS: LazyLock<Bounds<'static>> =
        LazyLock::new(|| Bounds { limits: &LIMITS, deadline: None, cancel: &CANCEL });
    static NONE: Map = Map::new();
    let slot = Arc::new(Slot::default());
    let marks = Arc::new(Marks::new(lua)?);
    let arguments = Arguments { args: &[], kwargs: &NONE };
    slot.settle(Job::new(Meter::unlimited(&BOUNDS), &BOUNDS, arguments, HostHandle::Shared(host)));
    let surface = install(lua, &slot, &marks, false)?;
    let globals = lua.globals();
    for pair in surface.globals.pairs::<LuaString, LuaValue>() {
        let (name, value) = pair?;
        globals.raw_set(name, value)?;
    }
    if let Some(adapt) = adapt {
        surface.inner.raw_get::<Function>("set_adapt")?.call::<()>(adapt)?;
    }
    let script_globals: Function = surface.inner.raw_get("script_globals")?;
    let changed: Table = script_globals.call(())?;
    for pair in changed.pairs::<LuaString, LuaValue>() {
        let (name, value) = pair?;
        globals.raw_set(name, value)?;
    }
    Ok(())
}
