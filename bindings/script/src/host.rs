//! The host of a trusted script: the core's, with a console of its own and calls that one token can stop.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use cadenza_core::agent::{Agent, ScriptHost};
use cadenza_core::cancel::CancelToken;
use cadenza_core::outcome::Outcome;
use cadenza_core::program::{AgentRef, Host, HostError};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::Options;
use cadenza_core::tools::{Tool, ToolBounds};
use cadenza_core::value::{Map, Value};
use parking_lot::{Mutex, RwLock};

use crate::Print;

/// Where a script prints, and what stops it.
#[derive(Clone)]
pub struct Console {
    print: Print,
    cancel: CancelToken,
}

impl Console {
    /// A console that hands each printed line, without its newline, to `print`.
    pub fn new(print: impl Fn(&str) + Send + Sync + 'static, cancel: CancelToken) -> Self {
        Self { print: Arc::new(print), cancel }
    }

    /// Standard output. A reader that went away (`| head`) is not an error of the script.
    pub fn stdout(cancel: CancelToken) -> Self {
        Self::new(
            |line| {
                use std::io::Write as _;
                let mut out = std::io::stdout().lock();
                drop(writeln!(out, "{line}"));
            },
            cancel,
        )
    }

    /// What stops a script.
    pub fn cancel(&self) -> &CancelToken {
        &self.cancel
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Console").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}

/// The host of one script or one interactive session.
pub(crate) struct Trusted {
    runtime: Runtime,
    agents: ScriptHost,
    /// Functions that the script gave to agents as tools; options name them by their number here.
    tools: Mutex<Given>,
    print: Print,
    /// Stops the calls of the input that runs now.
    cancel: RwLock<CancelToken>,
    /// An interrupted input of a session is one error; an interrupted script is over.
    session: bool,
    /// How many agents are many.
    crowd: AtomicUsize,
    /// Agents whose calls are under way, outermost first. The script's one thread makes them all.
    calling: Mutex<Vec<Agent>>,
    /// What the script's own functions must stay within while they work as tools, outermost first.
    bounds: Mutex<Vec<(Instant, CancelToken)>>,
    /// Whether there are any, for an interrupt that comes at every safepoint.
    is_bounded: AtomicBool,
}

/// Tools between the options that name them and the agent that gets them.
#[derive(Default)]
struct Given {
    last: i64,
    by_number: BTreeMap<i64, Arc<Tool>>,
}

/// Agents that a script may have before the unreachable ones among them are looked for.
const CROWD: usize = 256;

/// While it lives, the script's function is a tool that must end in time.
pub(crate) struct Bounded<'a>(&'a Trusted);

impl Drop for Bounded<'_> {
    fn drop(&mut self) {
        let mut bounds = self.0.bounds.lock();
        bounds.pop();
        self.0.is_bounded.store(!bounds.is_empty(), Ordering::Release);
    }
}

/// While it lives, the agent's call is under way.
struct Calling<'a>(&'a Trusted);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.calling.lock().pop();
    }
}

impl Trusted {
    pub(crate) fn new(runtime: Runtime, console: &Console, session: bool) -> Self {
        Self {
            agents: ScriptHost::new(runtime.clone(), console.cancel.clone()),
            runtime,
            tools: Mutex::default(),
            print: console.print.clone(),
            cancel: RwLock::new(console.cancel.clone()),
            session,
            crowd: AtomicUsize::new(CROWD),
            calling: Mutex::default(),
            bounds: Mutex::default(),
            is_bounded: AtomicBool::new(false),
        }
    }

    /// Bounds the script's own function, which works as a tool until the result is dropped.
    pub(crate) fn bounded(&self, bounds: &ToolBounds<'_>) -> Bounded<'_> {
        self.bounds.lock().push((bounds.deadline, bounds.cancel.clone()));
        self.is_bounded.store(true, Ordering::Release);
        Bounded(self)
    }

    /// Why the script's function, as a tool, must stop now. Asked at every safepoint.
    pub(crate) fn out_of_bounds(&self) -> Option<&'static str> {
        if !self.is_bounded.load(Ordering::Acquire) {
            return None;
        }
        let now = Instant::now();
        let bounds = self.bounds.lock();
        if bounds.iter().any(|(_, cancel)| cancel.is_cancelled()) {
            return Some("interrupted");
        }
        let late = bounds.iter().any(|(deadline, _)| now >= *deadline);
        late.then_some("gave no answer within the call's time; raise `call_timeout_seconds`")
    }

    /// Gives the next input of a session its own token.
    pub(crate) fn renew(&self, cancel: CancelToken) {
        *self.cancel.write() = cancel;
    }

    /// Whether it is time to look for agents that the script cannot reach any more.
    pub(crate) fn is_crowded(&self) -> bool {
        self.agents.agents() >= self.crowd.load(Ordering::Relaxed)
    }

    /// Lets go of every agent but these. The next look comes when there are twice as many, so that looking costs little.
    pub(crate) fn keep_only(&self, references: &BTreeSet<u32>) {
        self.agents.keep_only(references);
        self.crowd.store(CROWD.max(2 * self.agents.agents()), Ordering::Relaxed);
    }

    /// Keeps a tool until the options are read that name it as the value that comes back.
    pub(crate) fn keep_tool(&self, tool: Tool) -> i64 {
        let mut tools = self.tools.lock();
        tools.last += 1;
        let number = tools.last;
        tools.by_number.insert(number, Arc::new(tool));
        number
    }

    /// Options as the script wrote them, with its own functions in the place of their numbers.
    fn options(&self, mut map: Map) -> Result<Options, HostError> {
        let kept = match map.get("tools") {
            Some(Value::List(numbers)) if !numbers.is_empty() => {
                let mut given = self.tools.lock();
                let of = |number: &Value| given.by_number.remove(&number.as_int()?);
                numbers.iter().map(of).collect::<Option<Vec<_>>>()
            }
            Some(_) | None => None,
        };
        if kept.is_some() {
            map.remove("tools");
        }
        let mut options = Options::from_map(&map).map_err(|error| HostError::Refused(error.to_string()))?;
        options.tools = kept.or(options.tools);
        Ok(options)
    }

    /// Whether what runs now was told to stop.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.read().tick()
    }
}

fn elsewhere() -> HostError {
    HostError::Refused("this agent belongs to another script".to_owned())
}

impl Host for Trusted {
    fn context_get(&self, agent: AgentRef, key: &str) -> Option<Value> {
        self.agents.context_get(agent, key)
    }

    fn context_set(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
        self.agents.context_set(agent, key, value)
    }

    fn context_remove(&self, agent: AgentRef, key: &str) -> Result<(), HostError> {
        self.agents.context_remove(agent, key)
    }

    fn context_keys(&self, agent: AgentRef) -> Vec<String> {
        self.agents.context_keys(agent)
    }

    fn role(&self, agent: AgentRef) -> Arc<str> {
        self.agents.role(agent)
    }

    fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError> {
        self.agents.remember(agent, entries)
    }

    fn delegate(&self, agent: AgentRef, role: &str, options: Map) -> Result<AgentRef, HostError> {
        let options = self.options(options)?;
        let maker = self.agents.agent(agent).ok_or_else(elsewhere)?;
        let delegate = maker.delegate(role, options).map_err(|error| HostError::Refused(error.to_string()))?;
        Ok(self.agents.adopt(delegate))
    }

    fn for_role(&self, role: &str, options: Map) -> Result<AgentRef, HostError> {
        let options = self.options(options)?;
        let agent = self.runtime.agent(role, options).map_err(|error| HostError::Refused(error.to_string()))?;
        Ok(self.agents.adopt(agent))
    }

    fn agent_tool(&self, agent: AgentRef, name: &str) -> Result<AgentRef, HostError> {
        self.agents.agent_tool(agent, name)
    }

    fn responds_to(&self, agent: AgentRef, name: &str) -> bool {
        self.agents.responds_to(agent, name)
    }

    fn call(&self, agent: AgentRef, method: &str, args: Vec<Value>, kwargs: Map) -> Result<Outcome, HostError> {
        let refused = |message: String| HostError::Refused(message);
        let callee = self.agents.agent(agent).ok_or_else(elsewhere)?;
        // Setters are no calls, and wait for none.
        if !method.ends_with('=') && self.calling.lock().iter().any(|calling| calling.is(&callee)) {
            return Err(refused(format!(
                "the agent {:?} is busy with the call that this tool works for, and takes one call at a time; call \
                 another agent, or read its runtime_context",
                &**callee.role()
            )));
        }
        self.calling.lock().push(callee.clone());
        let _calling = Calling(self);
        let cancel = self.cancel.read().clone();
        let called = callee.call_with(method, args, kwargs, &cancel);
        match called {
            Ok(_) if cancel.is_cancelled() && self.session => Err(refused("interrupted".into())),
            Ok(_) if cancel.is_cancelled() => Err(HostError::Stop),
            Ok(outcome) => Ok(outcome),
            Err(error) => Err(refused(error.to_string())),
        }
    }

    fn tool(&self, name: &str, arguments: Map) -> Result<Value, HostError> {
        self.agents.tool(name, arguments)
    }

    fn tool_names(&self) -> Vec<String> {
        self.agents.tool_names()
    }

    fn history(&self) -> Vec<Value> {
        self.agents.history()
    }

    fn content(&self, reference: &str) -> Result<Value, HostError> {
        self.agents.content(reference)
    }

    fn now(&self) -> i64 {
        self.agents.now()
    }

    fn random(&self) -> f64 {
        self.agents.random()
    }

    fn print(&self, line: &str) {
        (self.print)(line);
    }
}
