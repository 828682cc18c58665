//! One execution: its host, its arguments, what it used so far, and why it must stop.
//!
//! Rhai's hooks (progress, print) carry no state, so the running call is found through a slot of its thread. Calls nest:
//! a host call may run another program on the same thread, and the slot is given back when that one ends.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rhai::{Dynamic, EvalAltResult, Position};

use super::context::Live;
use super::{meter, stack};
use crate::cancel::CancelToken;
use crate::program::{Arguments, Bounds, Host, HostError, Limits, ProgramFailure, Reads};

/// What a native function returns to Rhai.
pub(super) type Native<T> = Result<T, Box<EvalAltResult>>;

/// Steps between two looks at the clock. A look costs as much as half a step.
const LOOK_EVERY: u64 = 16;

/// With more than this in memory, single steps may take long, and every step looks at the clock.
const HEAVY_BYTES: isize = 1 << 20;

/// When so much time passed between two looks, the steps are heavy, and the next one looks again.
const HEAVY_TIME: Duration = Duration::from_millis(1);

/// How often the host is asked whether the user wants to stop.
const TICK: Duration = Duration::from_millis(10);

/// A program may also wait (Rhai sleeps on a locked value), which costs no CPU time: its own wall time is bounded by
/// this many times its CPU time.
const WALL_FACTOR: u32 = 8;

/// The state of one execution. Lives on the executor's stack frame; natives reach it through [`Call::current`].
pub(super) struct Call<'a> {
    pub(super) host: &'a dyn Host,
    pub(super) limits: &'a Limits,
    pub(super) arguments: Arguments<'a>,
    pub(super) reads: RefCell<Reads>,
    pub(super) live: Live,
    pub(super) output: RefCell<String>,
    deadline: Option<Instant>,
    cancel: &'a CancelToken,
    /// Whether this thread may ask the host about signals; false on a thread made for the program.
    ticks: bool,
    steps: Cell<u64>,
    next_look: Cell<u64>,
    last_look: Cell<Option<Instant>>,
    next_tick: Cell<Option<Instant>>,
    host_calls: Cell<u32>,
    clock: Clock,
    lowest_stack: usize,
    held_at_start: isize,
    held_limit: isize,
    stopped: RefCell<Option<ProgramFailure>>,
}

thread_local! {
    static CURRENT: Cell<*const Call<'static>> = const { Cell::new(std::ptr::null()) };
}

/// Gives the slot back to the outer call, also when the inner one panics.
struct Slot(*const Call<'static>);

impl Drop for Slot {
    fn drop(&mut self) {
        CURRENT.with(|slot| slot.set(self.0));
    }
}

impl<'a> Call<'a> {
    pub(super) fn new(arguments: Arguments<'a>, host: &'a dyn Host, bounds: &'a Bounds<'a>, ticks: bool) -> Self {
        let held = meter::held();
        let limit = isize::try_from(bounds.limits.max_memory_bytes).unwrap_or(isize::MAX);
        let lowest = stack::lowest();
        Self {
            host,
            limits: bounds.limits,
            arguments,
            reads: RefCell::default(),
            live: Live::default(),
            output: RefCell::default(),
            deadline: bounds.deadline,
            cancel: bounds.cancel,
            ticks,
            steps: Cell::new(0),
            next_look: Cell::new(1),
            last_look: Cell::new(None),
            next_tick: Cell::new(None),
            host_calls: Cell::new(0),
            clock: Clock::start(bounds.limits.cpu_time),
            lowest_stack: if lowest == 0 { 0 } else { lowest + stack::RESERVE_BYTES },
            held_at_start: held,
            held_limit: held.saturating_add(limit),
            stopped: RefCell::default(),
        }
    }

    /// Runs `work` with this call as the thread's current one.
    pub(super) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let this: *const Self = self;
        let outer = CURRENT.with(|slot| slot.replace(this.cast()));
        let _slot = Slot(outer);
        work()
    }

    /// The call that runs on this thread, if any.
    pub(super) fn current<T>(work: impl FnOnce(Option<&Call<'_>>) -> T) -> T {
        let current = CURRENT.with(Cell::get);
        // SAFETY: the slot is null or holds a call that `enter` borrows further down this very stack; `Slot` takes it
        // out before that borrow ends, and the reference cannot leave `work`.
        work(unsafe { current.as_ref() })
    }

    /// The call that runs on this thread, or an error inside the program when there is none (a script's engine).
    pub(super) fn here<T>(work: impl FnOnce(&Call<'_>) -> Native<T>) -> Native<T> {
        Self::current(|call| match call {
            Some(call) => work(call),
            None => Err(raise("this exists only inside a program".to_owned())),
        })
    }

    /// One step of the interpreter. `Some` ends the program.
    #[inline]
    pub(super) fn step() -> Option<Dynamic> {
        Self::current(|call| {
            let call = call?;
            let steps = call.steps.get() + 1;
            call.steps.set(steps);
            let held = meter::held();
            if steps < call.next_look.get() && held <= call.held_limit && stack::here() >= call.lowest_stack {
                return None;
            }
            call.look(steps, held);
            call.is_stopped().then_some(Dynamic::UNIT)
        })
    }

    fn look(&self, steps: u64, held: isize) {
        if self.is_stopped() {
            return;
        }
        if steps > self.limits.max_instructions {
            let limit = self.limits.max_instructions;
            return self.stop(ProgramFailure::Fuel { limit, used: limit });
        }
        if held > self.held_limit {
            return self.stop(ProgramFailure::Memory { limit: self.limits.max_memory_bytes });
        }
        if stack::here() < self.lowest_stack {
            return self.stop(ProgramFailure::CallDepth);
        }
        if self.cancel.is_cancelled() {
            return self.stop(ProgramFailure::Interrupted);
        }
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return self.stop(ProgramFailure::Deadline);
        }
        if self.ticks {
            match self.next_tick.get() {
                Some(next) if now < next => {}
                Some(_) if self.cancel.tick() => return self.stop(ProgramFailure::Interrupted),
                Some(_) | None => self.next_tick.set(Some(now + TICK)),
            }
        }
        if self.clock.is_over(now) {
            return self.stop(ProgramFailure::CpuTime { limit: self.limits.cpu_time });
        }
        let since = self.last_look.replace(Some(now)).map_or(Duration::ZERO, |last| now.duration_since(last));
        let is_heavy = held - self.held_at_start > HEAVY_BYTES || since > HEAVY_TIME;
        let pause = if is_heavy { 1 } else { LOOK_EVERY };
        self.next_look.set((steps + pause).min(self.limits.max_instructions.saturating_add(1)));
    }

    /// Ends the program for good: no `try` of the program catches what follows. The first reason stays.
    pub(super) fn stop(&self, failure: ProgramFailure) {
        self.stopped.borrow_mut().get_or_insert(failure);
        self.next_look.set(0);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.borrow().is_some()
    }

    /// Takes one more look after the program ended: what overran in its last breath is not a success.
    pub(super) fn finish(&self) -> Option<ProgramFailure> {
        if !self.is_stopped() {
            self.look(self.steps.get(), meter::held());
        }
        self.stopped.borrow().clone()
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.get().min(self.limits.max_instructions)
    }

    pub(super) fn host_calls(&self) -> u32 {
        self.host_calls.get()
    }

    /// Fails when `bytes` more do not fit: for natives that would allocate them at once.
    pub(super) fn reserve(&self, bytes: usize) -> Native<()> {
        let held = meter::held().saturating_sub(self.held_at_start).max(0) as usize;
        if held.saturating_add(bytes) > self.limits.max_memory_bytes {
            self.stop(ProgramFailure::Memory { limit: self.limits.max_memory_bytes });
            return Err(terminated());
        }
        Ok(())
    }

    /// One counted call to the host: agents, tools, content. The program's clock stands still meanwhile; a panic of the
    /// host ends the program as [`ProgramFailure::Internal`].
    pub(super) fn ask<T>(&self, question: impl FnOnce(&dyn Host) -> Result<T, HostError>) -> Native<T> {
        if self.is_stopped() {
            return Err(terminated());
        }
        if self.host_calls.get() >= self.limits.max_host_calls {
            self.stop(ProgramFailure::HostCalls { limit: self.limits.max_host_calls });
            return Err(terminated());
        }
        self.host_calls.set(self.host_calls.get() + 1);
        // The host must see what the program wrote, and may change what the program has read.
        Live::flush(self)?;
        self.live.forget_context();
        self.clock.pause();
        let answer = self.guarded(|| question(self.host));
        self.clock.resume();
        self.next_look.set(0);
        answer
    }

    /// A call to the host that is part of reading or writing the context: not counted, not timed apart.
    pub(super) fn guarded<T>(&self, question: impl FnOnce() -> Result<T, HostError>) -> Native<T> {
        match catch_unwind(AssertUnwindSafe(question)) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(HostError::Refused(message))) => Err(raise(self.cut(message))),
            Ok(Err(HostError::Stop)) => {
                let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
                let failure = if late && !self.cancel.is_cancelled() {
                    ProgramFailure::Deadline
                } else {
                    ProgramFailure::Interrupted
                };
                self.stop(failure);
                Err(terminated())
            }
            Err(panic) => {
                self.stop(ProgramFailure::Internal { message: self.cut(panic_message(&*panic)) });
                Err(terminated())
            }
        }
    }

    /// Captures one printed line.
    pub(super) fn print(&self, line: &str) {
        let mut output = self.output.borrow_mut();
        let room = self.limits.max_output_bytes.saturating_sub(output.len());
        output.push_str(truncated(line, room));
        if output.len() < self.limits.max_output_bytes {
            output.push('\n');
        }
    }

    /// At most `max_error_bytes` of a message.
    pub(super) fn cut(&self, mut message: String) -> String {
        let length = truncated(&message, self.limits.max_error_bytes).len();
        message.truncate(length);
        message
    }
}

/// The longest prefix of `text` with at most `bytes` bytes that ends between characters.
pub(super) fn truncated(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// An error that the program may catch.
pub(super) fn raise(message: String) -> Box<EvalAltResult> {
    EvalAltResult::ErrorRuntime(message.into(), Position::NONE).into()
}

/// The error that nothing catches; the reason is in the call.
pub(super) fn terminated() -> Box<EvalAltResult> {
    EvalAltResult::ErrorTerminated(Dynamic::UNIT, Position::NONE).into()
}

/// The words of a panic.
pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without words".to_owned()
    }
}

/// CPU time of the program itself. A thread's CPU time never runs faster than the wall, so the expensive clock is asked
/// only when the cheap one says that the limit may have been reached.
struct Clock {
    limit: Duration,
    /// CPU time of the thread when the program began, later moved on by what the host used.
    cpu_base: Cell<Duration>,
    wall_base: Cell<Instant>,
    /// No need to ask the CPU clock before this.
    ask_after: Cell<Instant>,
    paused: Cell<(Duration, Option<Instant>)>,
}

impl Clock {
    fn start(limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            limit,
            cpu_base: Cell::new(thread_cpu()),
            wall_base: Cell::new(now),
            ask_after: Cell::new(later(now, limit)),
            paused: Cell::new((Duration::ZERO, None)),
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        if now < self.ask_after.get() {
            return false;
        }
        let used = thread_cpu().saturating_sub(self.cpu_base.get());
        match self.limit.checked_sub(used) {
            None | Some(Duration::ZERO) => true,
            Some(left) => {
                self.ask_after.set(later(now, left));
                now.duration_since(self.wall_base.get()) > self.limit.saturating_mul(WALL_FACTOR)
            }
        }
    }

    fn pause(&self) {
        self.paused.set((thread_cpu(), Some(Instant::now())));
    }

    fn resume(&self) {
        let (cpu, wall) = self.paused.replace((Duration::ZERO, None));
        let Some(wall) = wall else { return };
        let waited = wall.elapsed();
        self.cpu_base.set(self.cpu_base.get() + thread_cpu().saturating_sub(cpu));
        self.wall_base.set(self.wall_base.get() + waited);
        self.ask_after.set(later(self.ask_after.get(), waited));
    }
}

/// A limit so large that the clock cannot say it is no limit.
fn later(from: Instant, by: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(10 * 365 * 86_400);
    from + by.min(LONG)
}

/// CPU time of this thread.
#[cfg(unix)]
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live `timespec`; the clock id is a constant of the platform.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } != 0;
    if failed { wall_since_start() } else { Duration::new(time.tv_sec as u64, time.tv_nsec as u32) }
}

#[cfg(not(unix))]
fn thread_cpu() -> Duration {
    wall_since_start()
}

/// Wall time stands in for CPU time where there is no such clock: programs are then stopped early, never late.
fn wall_since_start() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
