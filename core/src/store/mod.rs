//! The store: what outlives the process (design/store.md). Calls with their transcripts, named agents with their context,
//! programs with their counters.
//!
//! The rest of the core hands over [`Unit`]s and knows nothing of tables. A unit is taken whole or not at all; what it
//! says is decided elsewhere. Without a store (`:memory:`) nothing of this exists.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use crate::ids::{CallId, Digest, TraceId};
use crate::kernel::StoredRun;
use crate::log::record::CallRecord;
use crate::outcome::AgentOutcome;
pub use crate::outcome::Durability;
use crate::program::registry::{Key, ProgramState, Saved};
use crate::program::tape::Tape;
use crate::tools::Effect as ToolEffect;
use crate::value::{Map, Value};

mod default;
pub mod folder;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use default::default_path;
pub(crate) use default::open as open_default;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

/// Waits, within a bound, until every open store has everything on the disk: before the process ends.
pub fn flush_all() {
    #[cfg(feature = "sqlite")]
    sqlite::flush_all();
}

/// Number of a named agent in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentId(pub i64);

/// What must become durable together.
pub type Unit = Vec<Change>;

/// Keys that were written; `None` marks a removed one.
pub type Writes = BTreeMap<String, Option<Value>>;

/// One change of the store.
#[derive(Clone, Debug)]
pub enum Change {
    /// A call is under way and is about to do something that cannot be taken back. Before its end it has no other trace.
    Began(Arc<Began>),
    /// A tool is about to run (P5): always durable before it does.
    Intent(Arc<Intent>),
    /// It has run.
    Effect {
        /// The call.
        run: CallId,
        /// Which of its tool calls.
        call_no: u32,
        /// What the tool answered.
        result: Result<Value, String>,
    },
    /// A call has ended.
    Ended {
        /// Everything about it.
        record: Arc<CallRecord>,
        /// The agent, if it has a name.
        agent: Option<AgentId>,
    },
    /// What a named agent remembers has changed.
    Context {
        /// Which agent.
        agent: AgentId,
        /// The keys.
        writes: Writes,
    },
    /// A delegate was made, or is used more.
    Delegate {
        /// Separates unrelated applications.
        namespace: Arc<str>,
        /// The role of its maker.
        maker: Arc<str>,
        /// What is known of it.
        delegate: Arc<Delegate>,
    },
    /// A program was kept.
    Kept {
        /// The program with its evidence.
        program: Arc<Saved>,
        /// The call that made it; none when it came from a folder.
        run: Option<CallId>,
    },
    /// People decided about a program.
    State {
        /// Its id.
        program: Digest,
        /// What they decided.
        state: ProgramState,
    },
    /// People deleted a program. The calls that ran it keep its text.
    Deleted {
        /// Its id.
        program: Digest,
    },
    /// A kept program ran again.
    Used {
        /// Its id.
        program: Digest,
        /// Whether it did well.
        ok: bool,
    },
}

/// The beginning of a call.
#[derive(Clone, Debug)]
pub struct Began {
    /// The call.
    pub run: CallId,
    /// What is known of it: the fields of the log line that exist before its end.
    pub record: Map,
    /// Its contract, sealed.
    pub contract: Arc<crate::contract::ExecutionContract>,
}

/// A tool call that is about to happen.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The call whose program asked for it.
    pub run: CallId,
    /// Ordinal of the tool call within the run, from 1.
    pub call_no: u32,
    /// The tool.
    pub tool: Arc<str>,
    /// What it may leave behind.
    pub effect: ToolEffect,
    /// Its arguments.
    pub args: Map,
    /// Names this effect for ever: computed once, never again on recovery.
    pub idem_key: Digest,
}

/// A named agent as it was found.
#[derive(Clone, Debug)]
pub struct AgentState {
    /// Its number.
    pub id: AgentId,
    /// Its role.
    pub role: String,
    /// Counts changes of its context.
    pub version: i64,
    /// What it remembers.
    pub context: Map,
}

/// A delegate that an agent made, and that agents of its role may take up again by its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Delegate {
    /// Its role, which is its name for its maker.
    pub name: Arc<str>,
    /// The fields of its delegation contract.
    pub contract: Map,
    /// How often it was made or taken up, about.
    pub uses: u64,
}

/// A named agent in a list.
#[derive(Clone, Debug)]
pub struct AgentListed {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// Counts changes of its context.
    pub version: i64,
    /// Calls it has answered.
    pub calls: i64,
}

/// A stored call.
#[derive(Clone, Debug)]
pub struct StoredCall {
    /// Place among all ended calls, from 1.
    pub gseq: i64,
    /// The call as data: the fields of the log line, the value, the code and how durable it is.
    pub record: Map,
    /// Its tool calls, in order.
    pub effects: Vec<Map>,
    /// What its programs were told, by execution; those behind the last one were told nothing. The error says why that is
    /// not stored.
    pub tapes: Result<Vec<Tape>, String>,
}

impl StoredCall {
    /// The call as data, with its place as `gseq`.
    pub fn to_map(self) -> Map {
        let mut map = self.record;
        map.insert("gseq".into(), Value::Int(self.gseq));
        map
    }
}

/// Which calls to list; newest first.
#[derive(Clone, Debug)]
pub struct CallQuery {
    /// Only of this namespace.
    pub namespace: Option<String>,
    /// Only of this role.
    pub role: Option<String>,
    /// Only of this method.
    pub method: Option<String>,
    /// Only of this named agent.
    pub agent: Option<AgentId>,
    /// Only of named agents with this name.
    pub agent_name: Option<String>,
    /// Only those that ended so: `ok`, `error` or `interrupted`.
    pub status: Option<String>,
    /// Only those that programs made within this flow.
    pub below: Option<TraceId>,
    /// Only those that began then or later.
    pub since: Option<SystemTime>,
    /// Only before this place.
    pub before: Option<i64>,
    /// Only behind this place, and then the oldest first.
    pub after: Option<i64>,
    /// At most so many.
    pub limit: usize,
}

impl Default for CallQuery {
    /// All calls.
    fn default() -> Self {
        Self {
            namespace: None,
            role: None,
            method: None,
            agent: None,
            agent_name: None,
            status: None,
            below: None,
            since: None,
            before: None,
            after: None,
            limit: usize::MAX,
        }
    }
}

impl CallQuery {
    /// How calls end, as `status` names it.
    pub const STATUSES: [&str; 3] = ["ok", "error", "interrupted"];

    /// Whether a call of this process is asked for: places are the store's alone, and so is an agent's number.
    pub fn asks_for(&self, record: &CallRecord) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let interrupted = record.metadata.agent_outcome == AgentOutcome::Interrupted;
        is(&self.namespace, &record.namespace)
            && is(&self.role, &record.role)
            && is(&self.method, &record.method)
            && is(&self.agent_name, record.agent.as_deref().unwrap_or_default())
            && is(&self.status, if interrupted { "interrupted" } else { record.outcome.status() })
            && self.below.is_none_or(|trace| trace == record.trace_id() && record.depth > 0)
            && self.since.is_none_or(|since| record.timestamp >= since)
    }
}

/// What [`Store::verify`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Ended calls that were looked at.
    pub calls: i64,
    /// Their transcript entries.
    pub entries: i64,
}

/// Holds an agent for one process and one call at a time; let go when dropped, also by a process that dies.
pub trait AgentLock: Send + fmt::Debug {}

/// Where things outlive the process. All methods may block; none longer than the disk does, or its deadline.
pub trait Store: Send + Sync + fmt::Debug {
    /// Where it is.
    fn location(&self) -> String;

    /// Takes one unit, whole or not at all. With `Strict` it is on the disk when this returns; with `Batch` it is queued.
    fn write(&self, unit: Unit, durability: Durability, deadline: Option<Instant>) -> Result<(), StoreError>;

    /// Waits until everything that was queued is on the disk.
    fn sync(&self) -> Result<(), StoreError>;

    /// One call; `None` when there is no such call.
    fn call(&self, id: CallId) -> Result<Option<StoredCall>, StoreError>;

    /// Ended calls that are asked for.
    fn calls(&self, query: &CallQuery) -> Result<Vec<StoredCall>, StoreError>;

    /// The transcript of an ended call with its contract; what it says is not believed yet.
    fn run(&self, id: CallId) -> Result<Option<StoredRun>, StoreError>;

    /// The agent of that name; made when there is none.
    fn open_agent(&self, namespace: &str, name: &str, role: &str) -> Result<AgentState, StoreError>;

    /// What it remembers now, if that changed since `version`.
    fn changed_agent(&self, id: AgentId, version: i64) -> Result<Option<AgentState>, StoreError>;

    /// Waits for the agent's turn among all processes on this store.
    fn lock_agent(&self, id: AgentId, deadline: Instant) -> Result<Box<dyn AgentLock>, StoreError>;

    /// All named agents.
    fn agents(&self) -> Result<Vec<AgentListed>, StoreError>;

    /// The delegates that agents of a role made: the one of that name, or the 64 that are used most.
    fn delegates(&self, namespace: &str, maker: &str, name: Option<&str>) -> Result<Vec<Delegate>, StoreError>;

    /// Kept programs: those under one key, newest first, or all.
    fn programs(&self, key: Option<&Key>) -> Result<Vec<Saved>, StoreError>;

    /// Changes whenever people decided something about programs, in this process or in another: then what was read of them
    /// before is old. Costs no disk.
    fn revision(&self) -> u64;

    /// Checks one call (level 1 of unified-kernel 6.10): every byte that is stored of it, and its place.
    fn verify_call(&self, id: CallId) -> Result<(), StoreError>;

    /// Checks everything, from the first call to the last anchor.
    fn verify(&self) -> Result<VerifyReport, StoreError>;
}

/// Why the store could not do it. Nothing that was acknowledged is lost by any of these.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// The path cannot be a store.
    #[error("cannot open the store {path:?}: {message}")]
    Open {
        /// Where.
        path: PathBuf,
        /// Why, and what to do.
        message: String,
    },
    /// Another program's file.
    #[error("{path:?} is a database of another program; choose another path for `store`")]
    Foreign {
        /// Where.
        path: PathBuf,
    },
    /// A newer Cadenza wrote it.
    #[error("the store {path:?} has version {version}, this Cadenza knows versions up to {known}; update Cadenza")]
    Future {
        /// Where.
        path: PathBuf,
        /// Its version.
        version: i32,
        /// The newest version this build knows.
        known: i32,
    },
    /// No space left.
    #[error("the disk of the store {path:?} is full; nothing was written")]
    Full {
        /// Where.
        path: PathBuf,
    },
    /// Somebody holds the file for too long.
    #[error("the store {path:?} is locked by another program")]
    Busy {
        /// Where.
        path: PathBuf,
    },
    /// The file may not be written.
    #[error("the store {path:?} cannot be written: {message}")]
    ReadOnly {
        /// Where.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// The file is damaged.
    #[error("the store {path:?} is damaged: {message}")]
    Corrupt {
        /// Where.
        path: PathBuf,
        /// What was found.
        message: String,
    },
    /// A stored call does not fit its seal.
    #[error("call {call} ({place}) is not what was written: {message}")]
    Tampered {
        /// The first call that does not fit; empty when it is missing.
        call: String,
        /// Its place among all calls.
        place: i64,
        /// What does not fit, with the entry where there is one.
        message: String,
    },
    /// Reading or writing failed.
    #[error("the store {path:?} failed: {message}")]
    Io {
        /// Where.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// It took too long. What was to be written is not written later either.
    #[error("the store did not answer in time")]
    TimedOut,
    /// It took too long while the disk was at it: only here it is not known whether the unit was taken.
    #[error("the disk of the store has not answered; whether it took the last write shows when it answers again")]
    Unanswered,
    /// Another file, or none, has the store's name.
    #[error("the store {path:?} was moved, deleted or replaced while it was open; put it back, or open it again")]
    Detached {
        /// Where.
        path: PathBuf,
    },
    /// The agent has another role.
    #[error("agent {name:?} has the role {role:?} already; ask for it with that role, or choose another name")]
    Role {
        /// Its name.
        name: String,
        /// Its role.
        role: String,
    },
}
