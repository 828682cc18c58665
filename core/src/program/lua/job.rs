//! The job: one execution's inputs, meter and evidence, and the slot through which a VM's host functions find it.
//!
//! Host functions are made once per VM; making closures per call would cost more than a trivial program. The slot holds
//! the job that runs in the VM right now, if any. A trusted script has one job for the life of its VM.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use super::context::Handed;
use super::interrupt::{Meter, panic_text};
use crate::program::{Arguments, Bounds, Execution, Host, HostError, Limits, ProgramFailure, Reads, Returned};

/// One execution, or one script.
pub(super) struct Job<'a> {
    pub(super) meter: Meter<'a>,
    pub(super) limits: &'a Limits,
    pub(super) arguments: Arguments<'a>,
    pub(super) reads: RefCell<Reads>,
    pub(super) output: RefCell<String>,
    /// Tables of this agent's context that the program holds.
    pub(super) handed: Handed,
    /// The program touched a proxy that keeps state for the length of the call.
    pub(super) touched: Cell<bool>,
    host: HostHandle<'a>,
    host_calls: Cell<u32>,
}

/// The host, borrowed for one execution or shared with a script.
pub(super) enum HostHandle<'a> {
    /// For one execution.
    Borrowed(&'a dyn Host),
    /// For the life of a script's VM.
    Shared(Arc<dyn Host>),
}

impl HostHandle<'_> {
    fn get(&self) -> &dyn Host {
        match self {
            Self::Borrowed(host) => *host,
            Self::Shared(host) => &**host,
        }
    }
}

impl<'a> Job<'a> {
    /// A job that starts now.
    pub(super) fn new(
        meter: Meter<'a>,
        bounds: &'a Bounds<'a>,
        arguments: Arguments<'a>,
        host: HostHandle<'a>,
    ) -> Self {
        Self {
            meter,
            limits: bounds.limits,
            arguments,
            reads: RefCell::default(),
            output: RefCell::default(),
            handed: Handed::default(),
            touched: Cell::new(false),
            host,
            host_calls: Cell::new(0),
        }
    }

    /// The host, for methods that answer at once: context of this agent, roles, recorded time and randomness.
    pub(super) fn host(&self) -> &dyn Host {
        self.host.get()
    }

    /// The error with which an ended job is unwound. Nobody reads it after a program, whose verdict is in the meter; a
    /// script, which has nobody to read its meter, shows it to its user.
    pub(super) fn over(&self) -> mlua::Error {
        mlua::Error::runtime(self.meter.verdict_text())
    }

    /// What the execution leaves behind.
    pub(super) fn finish(self, result: Result<Returned, ProgramFailure>) -> Finished {
        Finished {
            touched: self.touched.get(),
            execution: Execution {
                result,
                reads: self.reads.into_inner(),
                instructions: self.meter.used(),
                host_calls: self.host_calls.get(),
                output: self.output.into_inner(),
            },
        }
    }

    /// One counted host call, whose time is not the program's.
    pub(super) fn ask<R>(&self, call: impl FnOnce(&dyn Host) -> Result<R, HostError>) -> Result<R, Denied> {
        let limit = self.limits.max_host_calls;
        if self.host_calls.get() >= limit {
            self.meter.end(ProgramFailure::HostCalls { limit });
            return Err(Denied::Ended);
        }
        self.host_calls.set(self.host_calls.get() + 1);
        let answer = self.meter.awaiting(|| call(self.host.get()));
        if self.meter.ended() {
            return Err(Denied::Ended);
        }
        answer.map_err(|error| self.denied(error))
    }

    /// Charges the reading or making of a value with so many parts: it has no safepoints of its own.
    pub(super) fn charge_nodes(&self, nodes: usize) -> Result<(), Denied> {
        const NODES_PER_SAFEPOINT: usize = 16;
        if nodes >= NODES_PER_SAFEPOINT {
            self.meter.charge((nodes / NODES_PER_SAFEPOINT) as u64);
        }
        if self.meter.ended() { Err(Denied::Ended) } else { Ok(()) }
    }

    /// What a host's refusal means for the program.
    pub(super) fn denied(&self, error: HostError) -> Denied {
        match error {
            HostError::Refused(message) => Denied::Refused(message),
            HostError::Stop => {
                self.meter.end_by_host();
                Denied::Ended
            }
        }
    }
}

/// An ended job.
pub(super) struct Finished {
    /// What the caller of the executor gets.
    pub(super) execution: Execution,
    /// The VM's proxies keep state of this call.
    pub(super) touched: bool,
}

/// Why a host function has no answer.
#[derive(Debug)]
pub(super) enum Denied {
    /// A catchable error with this message.
    Refused(String),
    /// The program is over.
    Ended,
    /// The interpreter failed.
    Lua(mlua::Error),
}

impl From<mlua::Error> for Denied {
    fn from(error: mlua::Error) -> Self {
        Self::Lua(error)
    }
}

/// Where a VM's host functions find the running job.
#[derive(Default)]
pub(super) struct Slot {
    job: AtomicPtr<Job<'static>>,
    script: OnceLock<ScriptJob>,
}

/// The job of a script, owned by its VM's slot.
struct ScriptJob(Box<Job<'static>>);

// SAFETY: a `Job` is not `Sync` because of its cells, and not `Send` because of the Lua handles in them. A script's job
// is only reached through `Slot::with`, from host functions of its VM, and mlua (feature `send`) runs those only while
// it holds the VM's reentrant lock: never from two threads at once, and every hand-over between threads goes through
// that lock. Its host is `Send + Sync`; Lua handles may move between threads under the same feature.
unsafe impl Send for ScriptJob {}
// SAFETY: as above.
unsafe impl Sync for ScriptJob {}

impl Slot {
    /// Makes `job` the running one until the guard is dropped.
    ///
    /// # Safety
    /// The guard must be dropped before `job` is, and the VM must not be used by another thread in between.
    pub(super) unsafe fn occupy(&self, job: &Job<'_>) -> Occupied<'_> {
        self.job.store(ptr::from_ref(job).cast_mut().cast(), Ordering::Release);
        Occupied(self)
    }

    /// Gives a script's VM its job for good.
    pub(super) fn settle(&self, job: Job<'static>) {
        self.script.get_or_init(|| ScriptJob(Box::new(job)));
    }

    /// Calls `f` with the running job. A panic ends the job as an internal error; without a job, or after its end, the
    /// answer is an error that no program can make use of.
    pub(super) fn with<R>(&self, f: impl FnOnce(&Job<'_>) -> mlua::Result<R>) -> mlua::Result<R> {
        let job = self.job.load(Ordering::Acquire);
        // SAFETY: the pointer is null or was set by `occupy`, whose guard clears it before the job dies; host functions
        // run only inside the guarded call, on the thread that made it.
        let job = unsafe { job.as_ref() }.or_else(|| self.script.get().map(|script| &*script.0));
        let Some(job) = job else {
            return Err(mlua::Error::runtime("no program is running here"));
        };
        if job.meter.ended() {
            return Err(job.over());
        }
        match catch_unwind(AssertUnwindSafe(|| f(job))) {
            Ok(Err(error)) if is_memory_error(&error) => {
                job.meter.end(ProgramFailure::Memory { limit: job.limits.max_memory_bytes });
                Err(error)
            }
            Ok(result) => result,
            Err(panic) => {
                job.meter.end(ProgramFailure::Internal { message: panic_text(&*panic) });
                Err(job.over())
            }
        }
    }
}

/// While this lives, a job runs in the VM.
pub(super) struct Occupied<'a>(&'a Slot);

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        self.0.job.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Whether an error says that the interpreter's memory limit was reached.
pub(super) fn is_memory_error(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } => is_memory_error(cause),
        mlua::Error::WithContext { cause, .. } | mlua::Error::BadArgument { cause, .. } => is_memory_error(cause),
        _other_kind => false,
    }
}
