//! The Agent surface in Rhai (product.md section 4): agents, outcomes, tools, JSON; the same for generated programs and
//! for users' own scripts. What differs is only how the host is reached: a program's calls are counted, bounded and
//! interruptible, a trusted script's are not.

use std::any::TypeId;
use std::sync::{Arc, OnceLock};

use rhai::{
    AST, Array, Dynamic, Engine, EvalAltResult, EvalContext, FnPtr, FuncRegistration, Map as RhaiMap, Module,
    NativeCallContext,
};

use super::call::{Call, Native, raise, terminated};
use super::context::{ArgsView, ContextView, Kept, Key, KwargsView, given, history};
use super::convert::{Caps, to_map, to_value, to_values};
use super::engine::set;
use super::rewrite::{self, AGENT, CALL, Guards, MAX_CALL_ARGUMENTS};
use crate::outcome::{ErrorType, Outcome};
use crate::program::{AgentRef, Host, HostError};
use crate::value::{Map, Value};

/// Names of agents that are not dynamic; everything else is the emergent vocabulary.
const AGENT_METHODS: [&str; 14] = [
    "role",
    "runtime_context",
    "delegate",
    "remember",
    "tool",
    "responds_to",
    "call",
    CALL,
    "to_string",
    "to_debug",
    "print",
    "debug",
    "==",
    "!=",
];

/// Names of agents that are no context keys (product.md section 1).
const NOT_SET: [&str; 9] =
    ["for_role", "for", "role", "remember", "runtime_context", "delegate", "tool", "responds_to", "call"];

/// Options that take functions in other host languages, and what a Rhai script may do.
const SCRIPT_INSTEAD: [(&str, &str); 3] = [
    ("model", "a script's function cannot be a model; name one, such as \"openai:NAME\" or \"library\""),
    ("log", "a script's function cannot take log lines; name a file, or write true for the default one"),
    ("tools", "functions of a Rhai script cannot be tools; those of Lua scripts, Python and Rust can"),
];

/// Whether it is a function, or a list or map with one in it.
fn holds_function(value: &Dynamic) -> bool {
    if let Ok(list) = value.as_array_ref() {
        return list.iter().any(Dynamic::is_fnptr);
    }
    if let Ok(map) = value.as_map_ref() {
        return map.values().any(Dynamic::is_fnptr);
    }
    value.is_fnptr()
}

/// How a function reaches its host.
#[derive(Clone)]
pub(super) enum Reach {
    /// Through the call that runs on this thread.
    Program,
    /// Directly: a trusted script's host.
    Script(Arc<dyn Host>),
}

impl Reach {
    /// One counted call to the host.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&dyn Host) -> Result<T, HostError>) -> Native<T> {
        match self {
            Self::Program => Call::here(|call| call.ask(question)),
            Self::Script(host) => question(&**host).map_err(|error| match error {
                HostError::Refused(message) => raise(message),
                HostError::Stop => terminated(),
            }),
        }
    }

    fn caps(&self) -> Caps {
        match self {
            Self::Program => Call::current(|call| call.map_or(Caps::TRUSTED, |call| Caps::of(call.limits))),
            Self::Script(_) => Caps::OF_SCRIPT,
        }
    }

    /// The options of an agent. A script that gives functions is told what is possible.
    fn options(&self, options: &RhaiMap) -> Native<Map> {
        if let Self::Script(_) = self {
            for (name, instead) in SCRIPT_INSTEAD {
                let given = options.get(name).filter(|given| holds_function(given));
                if given.is_some() {
                    return Err(raise(format!("option {name:?}: {instead}")));
                }
            }
        }
        self.map(options)
    }

    /// A value for the host, or why it has no form.
    pub(super) fn value(&self, value: &Dynamic) -> Native<Value> {
        to_value(value, self.caps()).map_err(|refusal| raise(format!("the value is refused: {refusal}")))
    }

    fn values(&self, values: &[Dynamic]) -> Native<Vec<Value>> {
        to_values(values, self.caps()).map_err(|refusal| raise(format!("an argument is refused: {refusal}")))
    }

    fn map(&self, map: &RhaiMap) -> Native<Map> {
        to_map(map, self.caps()).map_err(|refusal| raise(format!("the map is refused: {refusal}")))
    }
}

/// An agent inside Rhai.
#[derive(Clone)]
pub(super) struct AgentHandle {
    agent: AgentRef,
    reach: Reach,
}

/// An outcome inside Rhai: the real envelope, never a map that looks like one.
#[derive(Clone)]
pub(super) struct OutcomeHandle(Arc<Envelope>);

struct Envelope {
    outcome: Outcome,
    value: OnceLock<Kept>,
}

/// `tools`.
#[derive(Clone, Copy)]
struct ToolsView;

/// Named arguments in method syntax: `child.add(2, 3, kw(#{unit: "m"}))`.
#[derive(Clone)]
struct Keywords(Arc<Map>);

impl OutcomeHandle {
    pub(super) fn new(outcome: Outcome) -> Self {
        Self(Arc::new(Envelope { outcome, value: OnceLock::new() }))
    }

    pub(super) fn outcome(&self) -> &Outcome {
        &self.0.outcome
    }

    /// The value; lists and maps are converted once and shared.
    fn value(&self) -> Native<Dynamic> {
        if let Some(shared) = self.0.value.get().and_then(Kept::hand_out) {
            return Ok(shared);
        }
        let value = given(self.outcome().value())?;
        if !(value.is_array() || value.is_map()) {
            return Ok(value);
        }
        let kept = self.0.value.get_or_init(|| Kept::new(value));
        // Locked by a method at work: the next one gets a copy of its own.
        kept.hand_out().map_or_else(|| given(self.outcome().value()), Ok)
    }

    fn unwrap(&self) -> Native<Dynamic> {
        match self.outcome().error() {
            None => Ok(self.value()?.flatten_clone()),
            Some(error) => Err(raise(format!("{}: {}", error.error_type, error.message))),
        }
    }
}

/// Puts the Agent surface into a trusted engine: `Agent::for_role(role, #{...})` and everything an agent answers to.
/// Nothing is limited. The engine's own hooks (print, modules, limits) stay as they are, except the one for missing
/// functions, through which `calc.add(3)` reaches the agent. Scripts go through [`prepare_script`] before they run.
///
/// # Errors
///
/// When the engine refuses our syntax handlers; it does not.
pub fn install_script(engine: &mut Engine, host: Arc<dyn Host>) -> Result<(), String> {
    let reach = Reach::Script(host);
    let mut module = Module::new();
    register(&mut module, &reach);
    super::everyday::register(&mut module);
    engine.register_global_module(module.into());
    register_namespaces(engine, &reach);
    on_missing(engine);
    rewrite::register(engine)
}

/// A parsed script as an engine with the Agent surface runs it: `x.call("name", [...])` reaches agents, and a function
/// of the script never takes an agent's call.
///
/// # Errors
///
/// When a function of the script cannot be wrapped; the message says why.
pub fn prepare_script(ast: &AST) -> Result<AST, String> {
    rewrite::rewrite(ast, Guards::Off).map_err(|unfit| unfit.to_string())
}

/// What a program and a script have in common.
pub(super) fn register(module: &mut Module, reach: &Reach) {
    module.set_custom_type::<AgentHandle>(AGENT);
    module.set_custom_type::<OutcomeHandle>("Outcome");
    module.set_custom_type::<ContextView>("Context");
    module.set_custom_type::<Keywords>("Keywords");
    register_agents(module, reach);
    register_context(module);
    register_outcomes(module);
    register_calls(module);
    register_json(module, reach);
    let with = reach.clone();
    set(module, "kw", move |named: RhaiMap| -> Native<Keywords> { Ok(Keywords(Arc::new(with.map(&named)?))) });
    let with = reach.clone();
    set(module, "now", move || -> Native<i64> { with.ask(|host| Ok(host.now())) });
    let with = reach.clone();
    set(module, "random", move || -> Native<f64> { with.ask(|host| Ok(host.random())) });
}

/// `Agent::`, `Outcome::` and `json::`.
pub(super) fn register_namespaces(engine: &mut Engine, reach: &Reach) {
    let mut agents = Module::new();
    register_for_role(&mut agents, "for_role", reach);
    engine.register_static_module(AGENT, agents.into());

    let mut outcomes = Module::new();
    let with = reach.clone();
    own(&mut outcomes, "ok", move |value: Dynamic| -> Native<OutcomeHandle> {
        Ok(OutcomeHandle::new(Outcome::of_value(with.value(&value)?)))
    });
    own(&mut outcomes, "ok", || OutcomeHandle::new(Outcome::of_value(Value::Null)));
    let with = reach.clone();
    own(&mut outcomes, "error", move |fields: RhaiMap| outcome_error(&with.map(&fields)?));
    own(&mut outcomes, "error", |error_type: &str, message: &str| {
        OutcomeHandle::new(Outcome::of_error(ErrorType::from_name(error_type), message, false))
    });
    own(&mut outcomes, "error", |message: &str| {
        OutcomeHandle::new(Outcome::of_error(ErrorType::Execution, message, false))
    });
    engine.register_static_module("Outcome", outcomes.into());

    let mut json = Module::new();
    let with = reach.clone();
    own(&mut json, "encode", move |value: Dynamic| -> Native<String> { Ok(with.value(&value)?.to_json()) });
    own(&mut json, "decode", |text: &str| decode(text));
    engine.register_static_module("json", json.into());
}

/// What only a program sees: its inputs by name, in functions too, and its host's tools.
pub(super) fn register_program(module: &mut Module) {
    module.set_custom_type::<ArgsView>("array");
    module.set_custom_type::<KwargsView>("map");
    module.set_custom_type::<ToolsView>("Tools");
    register_args(module);
    register_kwargs(module);
    set(module, "contains", |_: &mut ToolsView, name: &str| -> Native<bool> {
        Reach::Program.ask(|host| Ok(host.tool_names().iter().any(|known| known == name)))
    });
    set(module, "names", |_: &mut ToolsView| -> Native<Array> {
        let names = Reach::Program.ask(|host| Ok(host.tool_names()))?;
        Ok(names.into_iter().map(Dynamic::from).collect())
    });
    set(module, "content", |reference: &str| -> Native<Dynamic> {
        given(&Reach::Program.ask(|host| host.content(reference))?)
    });
}

/// The names that every program, and every function of it, sees.
pub(super) fn resolve(name: &str, context: &EvalContext) -> Native<Option<Dynamic>> {
    if !matches!(name, "args" | "kwargs" | "context" | "agent" | "tools" | "history") || context.scope().contains(name)
    {
        return Ok(None);
    }
    let reach = Reach::Program;
    Ok(Some(match name {
        "args" => Dynamic::from(ArgsView),
        "kwargs" => Dynamic::from(KwargsView),
        "context" => Dynamic::from(ContextView { agent: AgentRef::THIS, reach }),
        "agent" => Dynamic::from(AgentHandle { agent: AgentRef::THIS, reach }),
        "tools" => Dynamic::from(ToolsView),
        _ => history()?,
    }))
}

/// Calls that no registered function answers: an agent's dynamic methods, the host's tools, and array and map functions
/// on `args`, `kwargs` and `context`, which become plain values for them.
#[expect(deprecated, reason = "marked volatile, not deprecated; the version is pinned")]
pub(super) fn on_missing(engine: &mut Engine) {
    engine.on_missing_function(|name, arguments, is_method, mut context| {
        let Some((object, rest)) = arguments.split_first_mut() else { return Ok(None) };
        if is_method
            && !AGENT_METHODS.contains(&name)
            && let Some(agent) = object.read_lock::<AgentHandle>().map(|agent| agent.clone())
        {
            let values: Vec<Dynamic> = rest.iter_mut().map(|value| value.take().flatten()).collect();
            return agent.dynamic(name, &values).map(Some);
        }
        if is_method && object.is::<ToolsView>() {
            let values: Vec<Dynamic> = rest.iter_mut().map(|value| value.take().flatten()).collect();
            return call_tool(name, &values).map(Some);
        }
        as_plain_values(name, arguments, is_method, &mut context)
    });
}

/// Does again, with plain values, what no function took. `None` when there is nothing to make plain.
fn as_plain_values(
    name: &str,
    arguments: &mut [&mut Dynamic],
    is_method: bool,
    context: &mut EvalContext,
) -> Native<Option<Dynamic>> {
    let mut view = arguments[0].read_lock::<ContextView>().map(|view| view.clone());
    let answers_itself = view.is_some() && CONTEXT_METHODS.contains(&name);
    if answers_itself {
        view = None;
    }
    let mut any = false;
    // A function that was found and failed has taken its arguments: no view is left, and nothing is done twice.
    for argument in arguments.iter_mut().skip(usize::from(answers_itself)) {
        let plain = if argument.is::<ArgsView>() {
            ArgsView::all()?
        } else if argument.is::<KwargsView>() {
            KwargsView::all()?
        } else if let Some(view) = argument.read_lock::<ContextView>().map(|view| view.clone()) {
            view.all()?
        } else {
            continue;
        };
        **argument = plain;
        any = true;
    }
    if !any {
        return Ok(None);
    }
    let before = view.as_ref().map(|_| arguments[0].clone());
    let result = context.call_fn_raw(name, true, is_method, arguments).map(Dynamic::flatten);
    if let (Some(view), Some(before)) = (view, before) {
        let after = std::mem::replace(arguments[0], Dynamic::from(view.clone()));
        // The method may have changed what it believed to be the context itself; if it failed, nothing happened.
        if let (Ok(_), Ok(before), Ok(after)) = (&result, before.as_map_ref(), after.as_map_ref()) {
            view.replace(&before, &after)?;
        }
    }
    result.map(Some)
}

impl AgentHandle {
    fn context(&self) -> ContextView {
        ContextView { agent: self.agent, reach: self.reach.clone() }
    }

    /// A method of the emergent vocabulary; a trailing `kw(...)` holds named arguments.
    fn dynamic(&self, method: &str, values: &[Dynamic]) -> Native<Dynamic> {
        let (values, named) = match values.split_last() {
            Some((last, rest)) if last.is::<Keywords>() => {
                (rest, last.read_lock::<Keywords>().map(|named| named.clone()))
            }
            Some(_) | None => (values, None),
        };
        self.call(method, self.reach.values(values)?, named.map(|named| (*named.0).clone()).unwrap_or_default())
    }

    fn call(&self, method: &str, args: Vec<Value>, kwargs: Map) -> Native<Dynamic> {
        let outcome = self.reach.ask(|host| host.call(self.agent, method, args, kwargs))?;
        Ok(Dynamic::from(OutcomeHandle::new(outcome)))
    }

    /// `agent.call("add", [2, 3], #{unit: "m"})`; arguments may also follow one by one.
    fn call_by_name(&self, values: &[Dynamic]) -> Native<Dynamic> {
        let usage =
            || raise("use call(\"method\"), call(\"method\", [args]) or call(\"method\", [args], #{kwargs})".into());
        let (method, rest) = values.split_first().ok_or_else(usage)?;
        let method = method.as_immutable_string_ref().map_err(|_| usage())?.to_string();
        let (args, kwargs) = match rest {
            [args] if is_list(args) => (Some(args), None),
            [args, kwargs] if is_list(args) && is_named(kwargs) => (Some(args), Some(kwargs)),
            [kwargs] if is_named(kwargs) => (None, Some(kwargs)),
            rest => return self.dynamic(&method, rest),
        };
        let args = match args.map(|args| self.reach.value(args)).transpose()? {
            Some(Value::List(list)) => list,
            Some(Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::Map(_)) => {
                return Err(usage());
            }
            None => Vec::new(),
        };
        let kwargs = match kwargs.map(|kwargs| self.reach.value(kwargs)).transpose()? {
            Some(Value::Map(map)) => map,
            Some(
                Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_),
            ) => {
                return Err(usage());
            }
            None => Map::new(),
        };
        self.call(&method, args, kwargs)
    }

    /// `agent.name = value` (AC-4). For the agent that the program runs for it is part of the attempt's transaction.
    fn assign(&self, name: &str, value: Dynamic) -> Native<()> {
        // `agent.runtime_context.key = value` ends with Rhai writing the live context back to where it came from.
        if name == "runtime_context" && value.is::<ContextView>() {
            return Ok(());
        }
        if NOT_SET.contains(&name) {
            return Err(raise(format!("'{name}' cannot be set; it is a reserved name of agents")));
        }
        if self.agent == AgentRef::THIS && matches!(self.reach, Reach::Program) {
            return self.context().set(name, value);
        }
        let value = self.reach.value(&value.flatten())?;
        // Rhai writes a list or map back after every method call on it, also after one that only reads.
        let is_container = matches!(value, Value::List(_) | Value::Map(_));
        if is_container && self.reach.ask(|host| Ok(host.context_get(self.agent, name)))?.as_ref() == Some(&value) {
            return Ok(());
        }
        let outcome = self.reach.ask(|host| host.call(self.agent, &format!("{name}="), vec![value], Map::new()))?;
        OutcomeHandle::new(outcome).unwrap().map(|_| ())
    }
}

fn is_list(value: &Dynamic) -> bool {
    value.is_array() || value.is::<ArgsView>()
}

fn is_named(value: &Dynamic) -> bool {
    value.is_map() || value.is::<KwargsView>()
}

/// Registers a function of a module that is used with its name in front.
fn own<A: 'static, const N: usize, const X: bool, R, const F: bool, FUNC>(
    module: &mut Module,
    name: &str,
    function: FUNC,
) where
    R: rhai::Variant + Clone,
    FUNC: rhai::RhaiNativeFunc<A, N, X, R, F> + Send + Sync + 'static,
{
    FuncRegistration::new(name).set_into_module(module, function);
}

fn register_for_role(module: &mut Module, name: &str, reach: &Reach) {
    let with = reach.clone();
    own(module, name, move |context: NativeCallContext, role: &str| {
        for_role(&with, role, &RhaiMap::new()).map_err(|error| placed(error, &context))
    });
    let with = reach.clone();
    own(module, name, move |context: NativeCallContext, role: &str, options: RhaiMap| {
        for_role(&with, role, &options).map_err(|error| placed(error, &context))
    });
}

/// The error with the place of the call: Rhai gives it to functions with a module's name in front only when they ask.
fn placed(mut error: Box<EvalAltResult>, context: &NativeCallContext) -> Box<EvalAltResult> {
    if error.position().is_none() {
        error.set_position(context.call_position());
    }
    error
}

fn for_role(reach: &Reach, role: &str, options: &RhaiMap) -> Native<AgentHandle> {
    let options = reach.options(options)?;
    let agent = reach.ask(|host| host.for_role(role, options))?;
    Ok(AgentHandle { agent, reach: reach.clone() })
}

fn delegate(agent: &AgentHandle, role: &str, options: &RhaiMap) -> Native<AgentHandle> {
    let options = agent.reach.options(options)?;
    let child = agent.reach.ask(|host| host.delegate(agent.agent, role, options))?;
    Ok(AgentHandle { agent: child, reach: agent.reach.clone() })
}

fn register_agents(module: &mut Module, reach: &Reach) {
    let with = reach.clone();
    set(module, "agent_for_role", move |role: &str| for_role(&with, role, &RhaiMap::new()));
    let with = reach.clone();
    set(module, "agent_for_role", move |role: &str, options: RhaiMap| for_role(&with, role, &options));

    set(module, "get$role", |agent: &mut AgentHandle| role_of(agent));
    set(module, "role", |agent: &mut AgentHandle| role_of(agent));
    set(module, "get$runtime_context", |agent: &mut AgentHandle| agent.context());
    // Rhai answers `tag` for every type; here it is a name like any other.
    set(module, "get$tag", |agent: &mut AgentHandle| agent.context().index("tag"));
    set(module, "set$tag", |agent: &mut AgentHandle, value: Dynamic| agent.assign("tag", value));
    set(module, "index$get$", |agent: &mut AgentHandle, name: Key| agent.context().index(&name));
    set(module, "index$set$", |agent: &mut AgentHandle, name: Key, value: Dynamic| agent.assign(&name, value));
    set(module, "delegate", |agent: &mut AgentHandle, role: &str| delegate(agent, role, &RhaiMap::new()));
    set(module, "delegate", |agent: &mut AgentHandle, role: &str, options: RhaiMap| delegate(agent, role, &options));
    set(module, "remember", |agent: &mut AgentHandle, entries: RhaiMap| -> Native<AgentHandle> {
        let entries = agent.reach.map(&entries)?;
        agent.reach.ask(|host| host.remember(agent.agent, entries))?;
        Ok(agent.clone())
    });
    set(module, "tool", |agent: &mut AgentHandle, name: &str| -> Native<AgentHandle> {
        let child = agent.reach.ask(|host| host.agent_tool(agent.agent, name))?;
        Ok(AgentHandle { agent: child, reach: agent.reach.clone() })
    });
    set(module, "responds_to", |agent: &mut AgentHandle, name: &str| -> Native<bool> {
        agent.reach.ask(|host| Ok(host.responds_to(agent.agent, name)))
    });
    for name in ["to_string", "to_debug", "print", "debug"] {
        set(module, name, |agent: &mut AgentHandle| -> Native<String> { Ok(format!("Agent({})", role_of(agent)?)) });
    }
    set(module, "==", |one: &mut AgentHandle, other: AgentHandle| one.agent == other.agent);
    set(module, "!=", |one: &mut AgentHandle, other: AgentHandle| one.agent != other.agent);
}

fn role_of(agent: &AgentHandle) -> Native<String> {
    // Not counted: it is a name, and costs nothing.
    match &agent.reach {
        Reach::Program => Call::here(|call| call.guarded(|| Ok(call.host.role(agent.agent).to_string()))),
        Reach::Script(host) => Ok(host.role(agent.agent).to_string()),
    }
}

/// Functions that the context answers itself; anything else is done on a plain map and written back.
const CONTEXT_METHODS: [&str; 13] = [
    "get",
    "set",
    "contains",
    "keys",
    "values",
    "len",
    "is_empty",
    "remove",
    "clear",
    "mixin",
    "fill_with",
    "to_string",
    "+=",
];

fn register_context(module: &mut Module) {
    set(module, "index$get$", |context: &mut ContextView, key: Key| context.index(&key));
    set(module, "index$set$", |context: &mut ContextView, key: Key, value: Dynamic| context.set(&key, value));
    set(module, "get$tag", |context: &mut ContextView| context.index("tag"));
    set(module, "set$tag", |context: &mut ContextView, value: Dynamic| context.set("tag", value));
    set(module, "get", |context: &mut ContextView, key: &str| -> Native<Dynamic> {
        Ok(context.index(key)?.flatten_clone())
    });
    set(module, "set", |context: &mut ContextView, key: &str, value: Dynamic| context.set(key, value));
    set(module, "remove", |context: &mut ContextView, key: &str| context.remove(key));
    set(module, "contains", |context: &mut ContextView, key: &str| context.contains(key));
    set(module, "keys", |context: &mut ContextView| context.keys());
    set(module, "values", |context: &mut ContextView| -> Native<Array> {
        let keys = context.key_list()?;
        keys.iter().map(|key| Ok(context.index(key)?.flatten_clone())).collect()
    });
    set(module, "len", |context: &mut ContextView| -> Native<i64> { Ok(context.key_list()?.len() as i64) });
    set(module, "is_empty", |context: &mut ContextView| -> Native<bool> { Ok(context.key_list()?.is_empty()) });
    set(module, "clear", |context: &mut ContextView| -> Native<()> {
        context.key_list()?.iter().try_for_each(|key| context.remove(key).map(|_| ()))
    });
    for name in ["mixin", "+="] {
        set(module, name, |context: &mut ContextView, entries: RhaiMap| -> Native<()> {
            entries.into_iter().try_for_each(|(key, value)| context.set(&key, value))
        });
    }
    set(module, "fill_with", |context: &mut ContextView, entries: RhaiMap| -> Native<()> {
        entries.into_iter().try_for_each(
            |(key, value)| {
                if context.contains(&key)? { Ok(()) } else { context.set(&key, value) }
            },
        )
    });
    for name in ["to_string", "print", "to_debug", "debug"] {
        set(module, name, |context: &mut ContextView| -> Native<String> {
            Ok(context.reach.value(&context.all()?)?.to_json())
        });
    }
    module.set_iter_result(TypeId::of::<ContextView>(), |value| match value.read_lock::<ContextView>() {
        Some(view) => iterate(view.keys()),
        None => iterate(Ok(Array::new())),
    });
}

type Items = Box<dyn Iterator<Item = Native<Dynamic>>>;

fn iterate(items: Native<Array>) -> Items {
    match items {
        Ok(items) => Box::new(items.into_iter().map(Ok)),
        Err(error) => Box::new(std::iter::once(Err(error))),
    }
}

fn register_args(module: &mut Module) {
    set(module, "index$get$", |_: &mut ArgsView, index: i64| ArgsView::index(index));
    set(module, "get", |_: &mut ArgsView, index: i64| ArgsView::get(index));
    set(module, "len", |_: &mut ArgsView| ArgsView::len());
    set(module, "get$len", |_: &mut ArgsView| ArgsView::len());
    set(module, "is_empty", |_: &mut ArgsView| -> Native<bool> { Ok(ArgsView::len()? == 0) });
    set(module, "get$is_empty", |_: &mut ArgsView| -> Native<bool> { Ok(ArgsView::len()? == 0) });
    for name in ["to_string", "print", "to_debug", "debug"] {
        set(module, name, |_: &mut ArgsView| -> Native<String> {
            Ok(Reach::Program.value(&ArgsView::all()?)?.to_json())
        });
    }
    register_equality(module, |_: ArgsView| ArgsView::all(), TypeId::of::<Array>());
    module.set_iter_result(TypeId::of::<ArgsView>(), |_| iterate(ArgsView::all().map(Dynamic::cast::<Array>)));
}

fn register_kwargs(module: &mut Module) {
    set(module, "index$get$", |_: &mut KwargsView, key: Key| KwargsView::index(&key));
    set(module, "get$tag", |_: &mut KwargsView| KwargsView::index("tag"));
    set(module, "get", |_: &mut KwargsView, key: &str| -> Native<Dynamic> {
        Ok(KwargsView::index(key)?.flatten_clone())
    });
    set(module, "contains", |_: &mut KwargsView, key: &str| KwargsView::contains(key));
    set(module, "keys", |_: &mut KwargsView| KwargsView::keys());
    set(module, "len", |_: &mut KwargsView| -> Native<i64> { Ok(KwargsView::keys()?.len() as i64) });
    set(module, "is_empty", |_: &mut KwargsView| -> Native<bool> { Ok(KwargsView::keys()?.is_empty()) });
    for name in ["to_string", "print", "to_debug", "debug"] {
        set(module, name, |_: &mut KwargsView| -> Native<String> {
            Ok(Reach::Program.value(&KwargsView::all()?)?.to_json())
        });
    }
    register_equality(module, |_: KwargsView| KwargsView::all(), TypeId::of::<RhaiMap>());
    module.set_iter_result(TypeId::of::<KwargsView>(), |_| iterate(KwargsView::keys()));
}

/// `args == [1, 2]`: Rhai calls values of different types unequal without asking.
fn register_equality<T: Clone + 'static>(module: &mut Module, plain: fn(T) -> Native<Dynamic>, with: TypeId) {
    let view = TypeId::of::<T>();
    for (name, wanted) in [("==", true), ("!=", false)] {
        for types in [[view, with], [with, view], [view, view]] {
            let compare =
                move |context: Option<NativeCallContext>, arguments: &mut [&mut Dynamic]| -> Native<Dynamic> {
                    let [one, other] = arguments else { return Ok(Dynamic::FALSE) };
                    let mut sides = [one.clone(), other.clone()];
                    for side in &mut sides {
                        if let Some(view) = side.clone().try_cast::<T>() {
                            *side = plain(view)?;
                        }
                    }
                    let [one, other] = &mut sides;
                    match context {
                        Some(context) => {
                            context.call_native_fn_raw(if wanted { "==" } else { "!=" }, true, &mut [one, other])
                        }
                        None => Ok(Dynamic::FALSE),
                    }
                };
            let raw =
                rhai::RhaiFunc::Pure { func: Arc::new(compare), has_context: true, is_pure: true, is_volatile: false };
            FuncRegistration::new(name).in_global_namespace().set_into_module_raw(module, types, raw);
        }
    }
}

/// `x.call(...)` for agents, tools and function pointers alike.
fn register_calls(module: &mut Module) {
    for count in 0..=MAX_CALL_ARGUMENTS {
        for object in [TypeId::of::<AgentHandle>(), TypeId::of::<FnPtr>(), TypeId::of::<ToolsView>()] {
            let types: Vec<TypeId> =
                std::iter::once(object).chain(std::iter::repeat_n(TypeId::of::<Dynamic>(), count)).collect();
            let raw = rhai::RhaiFunc::Method {
                func: Arc::new(|context, arguments: &mut [&mut Dynamic]| call(context, arguments)),
                has_context: true,
                is_pure: true,
                is_volatile: true,
            };
            FuncRegistration::new(CALL).in_global_namespace().set_into_module_raw(module, types, raw);
        }
    }
}

fn call(context: Option<NativeCallContext>, arguments: &mut [&mut Dynamic]) -> Native<Dynamic> {
    let Some((object, rest)) = arguments.split_first_mut() else { return Ok(Dynamic::UNIT) };
    let mut values: Vec<Dynamic> = rest.iter_mut().map(|value| value.take().flatten()).collect();
    if let Some(agent) = object.read_lock::<AgentHandle>().map(|agent| agent.clone()) {
        return agent.call_by_name(&values);
    }
    if object.is::<ToolsView>() {
        let (name, rest) = values.split_first().ok_or_else(|| raise("use tools.call(\"name\", #{...})".to_owned()))?;
        let name = name.clone().into_string().map_err(|_| raise("a tool's name is text".to_owned()))?;
        return call_tool(&name, rest);
    }
    let function = object.read_lock::<FnPtr>().map(|function| function.clone());
    match (function, context) {
        (Some(function), Some(context)) => function.call_raw(&context, None, &mut values),
        (Some(_) | None, Some(_) | None) => Err(raise("only agents and functions can be called".to_owned())),
    }
}

/// `tools.name(#{...})`.
fn call_tool(name: &str, values: &[Dynamic]) -> Native<Dynamic> {
    let reach = Reach::Program;
    let arguments = match values {
        [] => Map::new(),
        [named] => match named.read_lock::<Keywords>() {
            Some(named) => (*named.0).clone(),
            None => match reach.value(named)? {
                Value::Map(map) => map,
                Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_) => {
                    return Err(raise(format!(
                        "tools.{name} takes one map of named arguments: tools.{name}(#{{...}})"
                    )));
                }
            },
        },
        _ => return Err(raise(format!("tools.{name} takes one map of named arguments: tools.{name}(#{{...}})"))),
    };
    given(&reach.ask(|host| host.tool(name, arguments))?)
}

fn register_outcomes(module: &mut Module) {
    macro_rules! field {
        ($($name:literal => $get:expr;)*) => {
            $(
                set(module, concat!("get$", $name), $get);
                set(module, $name, $get);
            )*
        };
    }
    field! {
        "ok" => |o: &mut OutcomeHandle| o.outcome().ok();
        "status" => |o: &mut OutcomeHandle| o.outcome().status().to_owned();
        "error_type" => |o: &mut OutcomeHandle| text(o.outcome().error().map(|error| error.error_type.as_str()));
        "error_message" => |o: &mut OutcomeHandle| text(o.outcome().error().map(|error| error.message.as_str()));
        "retriable" => |o: &mut OutcomeHandle| o.outcome().error().is_some_and(|error| error.retriable);
        "role" => |o: &mut OutcomeHandle| o.outcome().role.to_string();
        "method" => |o: &mut OutcomeHandle| o.outcome().method.to_string();
    }
    set(module, "get$value", |o: &mut OutcomeHandle| o.value());
    set(module, "value", |o: &mut OutcomeHandle| -> Native<Dynamic> { Ok(o.value()?.flatten_clone()) });
    set(module, "get$metadata", |o: &mut OutcomeHandle| -> Native<Dynamic> {
        match &o.outcome().metadata {
            Some(metadata) => given(&Value::Map(metadata.to_map())),
            None => Ok(Dynamic::from_map(RhaiMap::new())),
        }
    });
    set(module, "unwrap", |o: &mut OutcomeHandle| o.unwrap());
    for name in ["value_or", "unwrap_or"] {
        set(module, name, |o: &mut OutcomeHandle, default: Dynamic| -> Native<Dynamic> {
            if o.outcome().ok() { Ok(o.value()?.flatten_clone()) } else { Ok(default) }
        });
    }
    set(module, "to_map", |o: &mut OutcomeHandle| given(&Value::Map(o.outcome().to_map())));
    for name in ["to_string", "to_debug", "print", "debug"] {
        set(module, name, |o: &mut OutcomeHandle| describe(o.outcome()));
    }
    set(module, "==", |one: &mut OutcomeHandle, other: OutcomeHandle| one.outcome() == other.outcome());
    set(module, "!=", |one: &mut OutcomeHandle, other: OutcomeHandle| one.outcome() != other.outcome());
}

fn text(text: Option<&str>) -> Dynamic {
    text.map_or(Dynamic::UNIT, |text| text.to_owned().into())
}

fn describe(outcome: &Outcome) -> String {
    match &outcome.result {
        Ok(value) => format!("Outcome(ok, {value})"),
        Err(error) => format!("Outcome(error, {}: {})", error.error_type, error.message),
    }
}

/// `Outcome::error(#{error_type: "...", error_message: "...", retriable: false})`.
fn outcome_error(fields: &Map) -> Native<OutcomeHandle> {
    let wrong = |name: &str, wanted: &str| raise(format!("Outcome::error: `{name}` must be {wanted}"));
    let mut error_type = ErrorType::Execution;
    let mut message = "";
    let mut retriable = false;
    for (name, value) in fields {
        match name.as_str() {
            "error_type" => {
                let text = value.as_str().filter(|text| !text.is_empty());
                error_type = ErrorType::from_name(text.ok_or_else(|| wrong(name, "text"))?);
            }
            "error_message" | "message" => message = value.as_str().ok_or_else(|| wrong(name, "text"))?,
            "retriable" => retriable = value.as_bool().ok_or_else(|| wrong(name, "true or false"))?,
            other => {
                let message = format!("Outcome::error knows error_type, error_message and retriable, not `{other}`");
                return Err(raise(message));
            }
        }
    }
    Ok(OutcomeHandle::new(Outcome::of_error(error_type, message, retriable)))
}

fn register_json(module: &mut Module, reach: &Reach) {
    for name in ["json_encode", "to_json"] {
        let with = reach.clone();
        set(module, name, move |value: Dynamic| -> Native<String> { Ok(with.value(&value)?.to_json()) });
        let with = reach.clone();
        set(module, name, move |value: RhaiMap| -> Native<String> { Ok(with.value(&value.into())?.to_json()) });
    }
    for name in ["json_decode", "parse_json"] {
        set(module, name, |text: &str| decode(text));
    }
}

fn decode(text: &str) -> Native<Dynamic> {
    /// A value of a JSON text takes at most this many bytes per byte of text while it is read.
    const GROWTH: usize = 32;
    Call::current(|call| call.map_or(Ok(()), |call| call.reserve(text.len().saturating_mul(GROWTH))))?;
    let value = Value::from_json(text).map_err(|error| raise(format!("no JSON: {error}")))?;
    given(&value)
}
