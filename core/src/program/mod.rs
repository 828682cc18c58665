//! Programs: code a model wrote, and the border behind which it runs.
//!
//! [`Executor`] runs a program; [`Host`] is everything a program can reach. Both speak plain data, so that an executor
//! may live in another process (engines.md section 6): every method of [`Host`] is one message of that protocol.
//! This module never decides whether a program may run, and never keeps programs: see [`registry`].

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::Digest;
use crate::outcome::Outcome;
use crate::value::{Map, Value};

pub mod influence;
pub mod limits;
pub mod literals;
pub mod lock;
#[cfg(feature = "lua")]
pub mod lua;
pub mod registry;
#[cfg(feature = "rhai")]
pub mod rhai;
pub mod tape;

pub use limits::{Bounds, Limits};

/// Version of the program interface (product.md section 4). Part of the reuse key: a kept program never meets another.
pub const INTERFACE_VERSION: u32 = 1;

/// A language that programs are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Language {
    /// Luau.
    Lua,
    /// Rhai.
    Rhai,
}

impl Language {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Lua, Self::Rhai];

    /// `lua` or `rhai`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lua => "lua",
            Self::Rhai => "rhai",
        }
    }

    /// The language with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.as_str() == name)
    }
}

impl fmt::Display for Language {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// How much of a VM programs share (engines.md, "Settled").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// A pooled VM, a fresh sealed environment per call.
    #[default]
    Shared,
    /// A VM per call.
    Fresh,
}

/// A program that compiles. Cheap to clone; immutable.
#[derive(Clone)]
pub struct Program {
    /// Its language.
    pub language: Language,
    /// Its text, as the model wrote it.
    pub code: Arc<str>,
    /// Digest of language and text: its name in caches and in the registry.
    pub digest: Digest,
    /// What the executor made of it (bytecode, AST). Only the executor that made it looks inside.
    pub compiled: Arc<dyn Any + Send + Sync>,
}

impl Program {
    /// The digest of a program with this text.
    pub fn digest_of(language: Language, code: &str) -> Digest {
        let mut bytes = Vec::with_capacity(code.len() + 16);
        bytes.extend_from_slice(b"program/1\0");
        bytes.extend_from_slice(language.as_str().as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(code.as_bytes());
        Digest::of_bytes(&bytes)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Program").field("language", &self.language).field("code", &self.code).finish()
    }
}

/// Why a text is not a program (C3): the compiler's message, with its line when it names one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the program does not compile: {message}")]
pub struct CompileError {
    /// The compiler's words, at most 4 KiB.
    pub message: String,
    /// 1-based line, when known.
    pub line: Option<u32>,
}

/// What a program is called with.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    /// Positional arguments.
    pub args: &'a [Value],
    /// Named arguments.
    pub kwargs: &'a Map,
}

/// Runs programs of one language. Shared by all threads; nested execution on one thread must work.
pub trait Executor: Send + Sync {
    /// The language it runs.
    fn language(&self) -> Language;

    /// Checks and compiles a text without running any of it. Refuses text over `max_source_bytes`.
    fn compile(&self, code: &str, limits: &Limits) -> Result<Program, CompileError>;

    /// Runs a program to its end or to its first limit. Never panics, never outlives its bounds by more than a few
    /// milliseconds; whatever the program did, the next execution finds a clean world.
    fn execute(&self, program: &Program, arguments: Arguments<'_>, host: &dyn Host, bounds: &Bounds<'_>) -> Execution;
}

/// What came of one execution.
#[derive(Debug)]
pub struct Execution {
    /// The value, or why there is none.
    pub result: Result<Returned, ProgramFailure>,
    /// What the program looked at: the evidence for reuse (product.md section 8).
    pub reads: Reads,
    /// Safepoints used: equal for equal programs on equal inputs.
    pub instructions: u64,
    /// Calls made to the host.
    pub host_calls: u32,
    /// What it printed, at most `max_output_bytes`.
    pub output: String,
}

/// What a program returns: data, or a real envelope that passes through (product.md section 3).
#[derive(Clone, Debug, PartialEq)]
pub enum Returned {
    /// Data. A map is data whatever keys it has.
    Value(Value),
    /// An `Outcome` object.
    Outcome(Outcome),
}

/// Why a program gave nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProgramFailure {
    /// The program raised an error, or used a value wrongly.
    #[error("{message}")]
    Raised {
        /// The program's words with line, at most `max_error_bytes`.
        message: String,
    },
    /// Out of instructions.
    #[error("program stopped at {used} of {limit} instructions; raise `max_instructions` or ask for less in one call")]
    Fuel {
        /// Granted.
        limit: u64,
        /// Used.
        used: u64,
    },
    /// Out of CPU time.
    #[error("program stopped after {} ms of CPU time; raise `program_timeout_seconds` or ask for less in one call", limit.as_millis())]
    CpuTime {
        /// Granted.
        limit: Duration,
    },
    /// The call's wall deadline passed while the program ran or waited.
    #[error("program stopped: the call's time is over; raise `call_timeout_seconds` or ask for less in one call")]
    Deadline,
    /// Out of memory.
    #[error(
        "program stopped at its limit of {limit} bytes of memory; raise `max_memory_bytes` or ask for less in one call"
    )]
    Memory {
        /// Granted.
        limit: usize,
    },
    /// Too many nested calls inside the program.
    #[error("program stopped: its own calls nest too deeply (stack overflow)")]
    CallDepth,
    /// Too many calls to the host.
    #[error("program stopped after {limit} host calls")]
    HostCalls {
        /// Granted.
        limit: u32,
    },
    /// The result has no JSON-like form, or is too large.
    #[error("the program's result is refused: {message}")]
    Refused {
        /// Where and why, such as `$.rows[3]: a function has no JSON form`.
        message: String,
    },
    /// The cancel token was set.
    #[error("interrupted")]
    Interrupted,
    /// Our own fault: a panic in a host function. The VM is gone; the call fails.
    #[error("internal error in the program's host: {message}")]
    Internal {
        /// The panic's words.
        message: String,
    },
}

/// What an execution read of its inputs. Reading a missing key counts as reading that key; enumerating (`#args`,
/// `pairs(kwargs)`, `context.keys()`) counts as reading all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// 0-based positions of arguments that were read.
    pub args: BTreeSet<usize>,
    /// All arguments, or their number, were looked at.
    pub all_args: bool,
    /// Named arguments that were read.
    pub kwargs: BTreeSet<String>,
    /// All named arguments were looked at.
    pub all_kwargs: bool,
    /// Context keys that were read.
    pub context: BTreeSet<String>,
    /// All context keys were looked at.
    pub all_context: bool,
}

/// Noting is bounded: who looks at very many places, or at very long names, looked at all of them.
#[cfg(any(feature = "lua", feature = "rhai"))]
impl Reads {
    const MAX_PLACES: usize = 1_000;
    const MAX_NAME: usize = 1_024;

    /// Notes a look at one positional argument, by its 0-based position.
    pub(crate) fn saw_arg(&mut self, position: usize) {
        if self.args.len() < Self::MAX_PLACES {
            self.args.insert(position);
        } else {
            self.all_args = true;
        }
    }

    /// Notes a look at one named argument.
    pub(crate) fn saw_kwarg(&mut self, name: &str) {
        self.all_kwargs |= !Self::note(&mut self.kwargs, name);
    }

    /// Notes a look at one context key.
    pub(crate) fn saw_context(&mut self, name: &str) {
        self.all_context |= !Self::note(&mut self.context, name);
    }

    fn note(names: &mut BTreeSet<String>, name: &str) -> bool {
        if names.contains(name) {
            return true;
        }
        let room = names.len() < Self::MAX_PLACES && name.len() <= Self::MAX_NAME;
        room && names.insert(name.to_owned())
    }
}

/// An agent that a program or a script can name. [`AgentRef::THIS`] is the agent the program runs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentRef(pub u32);

impl AgentRef {
    /// The agent that the program runs for.
    pub const THIS: Self = Self(0);
}

impl From<AgentRef> for Value {
    /// Its number, as tapes have it.
    fn from(agent: AgentRef) -> Self {
        Self::Int(agent.0.into())
    }
}

/// Why the host refused. Becomes a catchable error inside the program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HostError {
    /// Wrong use: unknown option, bad name, unknown tool, bad tool arguments.
    #[error("{0}")]
    Refused(String),
    /// The trace was cancelled or its deadline passed: the program must end now, uncatchably.
    #[error("interrupted")]
    Stop,
}

/// Everything that a program can reach. Implemented by `agent::host`; each method is one plain-data message.
///
/// All methods take `&self` and may be called while an outer call of the same host is on the stack: a program that
/// delegates is just another call. Agent calls never fail: they return error Outcomes (AC-20).
pub trait Host: Send + Sync {
    /// One key of an agent's runtime context.
    fn context_get(&self, agent: AgentRef, key: &str) -> Option<Value>;
    /// Writes one key. For [`AgentRef::THIS`] within the attempt's transaction.
    fn context_set(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError>;
    /// Removes one key.
    fn context_remove(&self, agent: AgentRef, key: &str) -> Result<(), HostError>;
    /// All keys in order.
    fn context_keys(&self, agent: AgentRef) -> Vec<String>;
    /// The agent's role.
    fn role(&self, agent: AgentRef) -> Arc<str>;
    /// `agent:remember{...}`.
    fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError>;
    /// `agent:delegate(role, options)`.
    fn delegate(&self, agent: AgentRef, role: &str, options: Map) -> Result<AgentRef, HostError>;
    /// `Agent.for_role(role, options)`: inherits budgets and trace all the same.
    fn for_role(&self, role: &str, options: Map) -> Result<AgentRef, HostError>;
    /// `agent:tool(name)`: the agent registered for that tool name; created as a delegate when there is none.
    fn agent_tool(&self, agent: AgentRef, name: &str) -> Result<AgentRef, HostError>;
    /// `agent:responds_to(name)` (AC-7).
    fn responds_to(&self, agent: AgentRef, name: &str) -> bool;
    /// A dynamic call. `method` ending in `=` is a setter (AC-4) and bypasses the provider.
    fn call(&self, agent: AgentRef, method: &str, args: Vec<Value>, kwargs: Map) -> Result<Outcome, HostError>;
    /// `tools.name{...}`: a host tool; arguments are validated against its schema.
    fn tool(&self, name: &str, arguments: Map) -> Result<Value, HostError>;
    /// Names of the host tools this agent may call.
    fn tool_names(&self) -> Vec<String>;
    /// Earlier results of this agent: bounded, oldest first, read-only maps.
    fn history(&self) -> Vec<Value>;
    /// The content behind a reference in `history`.
    fn content(&self, reference: &str) -> Result<Value, HostError>;
    /// Recorded time: milliseconds since the Unix epoch.
    fn now(&self) -> i64;
    /// Recorded randomness in [0, 1).
    fn random(&self) -> f64;
    /// One line of `print`. Generated programs: captured by the executor instead. Scripts: written out.
    fn print(&self, line: &str);
}

/// The program that evaluates an acceptance expression: over `value`, `args`, `kwargs` and `context`. Runs with the value,
/// the list of arguments and the map of named ones as its arguments.
pub fn acceptance_program(language: Language, expression: &str) -> String {
    match language {
        Language::Lua => format!(
            "local given = args\nlocal value, args, kwargs = given[1], given[2], given[3]\nreturn (\n{expression}\n)"
        ),
        Language::Rhai => format!(
            "let given = args;\nlet value = given[0];\nlet args = given[1];\nlet kwargs = given[2];\n(\n{expression}\n)"
        ),
    }
}
