//! The safepoint: a raw Luau interrupt that charges the running program's [`Meter`] and ends the program for good.
//!
//! mlua's own interrupt closure makes hot loops 2.6 to 2.9 times slower (engines.md section 3.3); this one costs a few
//! nanoseconds. It never runs program code, never allocates, and never looks at error texts: a program that was ended
//! is ended again at each further safepoint, so that no `pcall` can swallow a limit.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::{Duration, Instant};

use mlua::ffi;

use crate::program::{Bounds, ProgramFailure};

/// Safepoints between two looks at the clock while the heap is small: one stretch between safepoints then works on at
/// most [`SMALL_HEAP`] bytes, a few milliseconds at worst.
const STRIDE: u32 = 16;

/// Above this many bytes of heap, each safepoint looks at the clock.
const SMALL_HEAP: usize = 2 << 20;

/// How often the cancel token is ticked while a program runs.
const TICK: Duration = Duration::from_millis(10);

/// How much CPU time may have passed before the thread's clock is first read; read later, it costs trivial programs
/// nothing.
const UNREAD_CPU: Duration = Duration::from_millis(1);

/// Memory that must be left after a forced collection; with less, the program is out of memory.
const LAST_REACH: usize = 128 << 10;

thread_local! {
    /// The meter of the program that runs on this thread right now. Null outside of programs.
    static CURRENT: Cell<*const Meter<'static>> = const { Cell::new(ptr::null()) };
}

/// What one execution has used, and what ends it. Lives on the stack of `execute`.
pub(super) struct Meter<'a> {
    bounds: &'a Bounds<'a>,
    started: Instant,
    used: Cell<u64>,
    until_clock: Cell<u32>,
    /// Wall time spent in awaited host calls.
    awaited: Cell<Duration>,
    /// The thread's CPU time at the start, once it was needed, plus the CPU time of awaited host calls.
    cpu_start: Cell<Option<Duration>>,
    /// The next moment at which a deadline, a tick or the CPU limit can be due.
    next_event: Cell<Instant>,
    next_tick: Cell<Instant>,
    next_cpu: Cell<Instant>,
    /// Heap at which the next collection is forced, and the hard limit; both include the VM's own base.
    soft_heap: Cell<usize>,
    hard_heap: usize,
    max_depth: c_int,
    ended: Cell<bool>,
    verdict: RefCell<Option<ProgramFailure>>,
}

impl<'a> Meter<'a> {
    /// A meter that starts now, for a VM whose own heap is `base` bytes and whose hard limit is `hard_heap` bytes.
    pub(super) fn start(bounds: &'a Bounds<'a>, base: usize, hard_heap: usize) -> Self {
        let started = Instant::now();
        let next_tick = started + TICK;
        let next_cpu = later(started, bounds.limits.cpu_time);
        let meter = Self {
            bounds,
            started,
            used: Cell::new(0),
            until_clock: Cell::new(STRIDE),
            awaited: Cell::new(Duration::ZERO),
            cpu_start: Cell::new(None),
            next_event: Cell::new(started),
            next_tick: Cell::new(next_tick),
            next_cpu: Cell::new(next_cpu),
            soft_heap: Cell::new(base + (hard_heap - base) / 4 * 3),
            hard_heap,
            max_depth: c_int::try_from(bounds.limits.max_call_depth).unwrap_or(c_int::MAX),
            ended: Cell::new(false),
            verdict: RefCell::new(None),
        };
        meter.plan();
        meter
    }

    /// A meter for a script: it only counts.
    pub(super) fn unlimited(bounds: &'a Bounds<'a>) -> Self {
        Self::start(bounds, 0, usize::MAX)
    }

    /// Safepoints used so far.
    pub(super) fn used(&self) -> u64 {
        self.used.get()
    }

    /// Whether the program was ended by a verdict.
    pub(super) fn ended(&self) -> bool {
        self.ended.get()
    }

    /// Takes the verdict, if there is one.
    pub(super) fn take_verdict(&self) -> Option<ProgramFailure> {
        self.verdict.borrow_mut().take()
    }

    /// What the verdict says.
    pub(super) fn verdict_text(&self) -> String {
        self.verdict.borrow().as_ref().map_or_else(|| "the program is over".to_owned(), ToString::to_string)
    }

    /// Ends the program. The first verdict stands.
    pub(super) fn end(&self, failure: ProgramFailure) {
        if !self.ended.replace(true) {
            *self.verdict.borrow_mut() = Some(failure);
        }
    }

    /// Ends the program because the host says so: interrupted if the token is set, else the deadline (EC-T1.4).
    pub(super) fn end_by_host(&self) {
        if self.bounds.cancel.is_cancelled() {
            self.end(ProgramFailure::Interrupted);
        } else {
            self.end(ProgramFailure::Deadline);
        }
    }

    /// Charges work that has no safepoints of its own, then looks at the clock.
    pub(super) fn charge(&self, safepoints: u64) {
        self.used.set(self.used.get().saturating_add(safepoints));
        self.check_fuel();
        self.check_clock(Instant::now());
    }

    /// Runs an awaited host call: its wall time and CPU time are not the program's.
    pub(super) fn awaiting<R>(&self, call: impl FnOnce() -> R) -> R {
        let wall = Instant::now();
        let cpu = thread_cpu_time();
        self.note_cpu_start(wall, cpu);
        let result = call();
        let now = Instant::now();
        self.awaited.set(self.awaited.get() + (now - wall));
        let spent = thread_cpu_time().saturating_sub(cpu);
        self.cpu_start.set(self.cpu_start.get().map(|start| start + spent));
        self.next_cpu.set(self.next_cpu.get() + (now - wall));
        self.check_clock(now);
        result
    }

    /// Looks at the token, the deadline and the CPU limit, in this order (EC-5: interrupt, then time).
    pub(super) fn check_clock(&self, now: Instant) {
        self.until_clock.set(STRIDE);
        if self.bounds.cancel.is_cancelled() {
            return self.end(ProgramFailure::Interrupted);
        }
        if now < self.next_event.get() {
            return;
        }
        if now >= self.next_tick.get() {
            self.next_tick.set(now + TICK);
            // A host's poll must not unwind through the interpreter.
            let ticked = catch_unwind(AssertUnwindSafe(|| self.bounds.cancel.tick()));
            match ticked {
                Ok(false) => {}
                Ok(true) => return self.end(ProgramFailure::Interrupted),
                Err(panic) => return self.end(ProgramFailure::Internal { message: panic_text(&*panic) }),
            }
        }
        if self.bounds.deadline.is_some_and(|deadline| now >= deadline) {
            return self.end(ProgramFailure::Deadline);
        }
        if now >= self.next_cpu.get() {
            let cpu = thread_cpu_time();
            self.note_cpu_start(now, cpu);
            let used = self.cpu_start.get().map_or(Duration::ZERO, |start| cpu.saturating_sub(start));
            let limit = self.bounds.limits.cpu_time;
            if used >= limit {
                return self.end(ProgramFailure::CpuTime { limit });
            }
            self.next_cpu.set(later(now, limit - used));
        } else if self.cpu_start.get().is_none() {
            self.note_cpu_start(now, thread_cpu_time());
        }
        self.plan();
    }

    /// The first look: a call that was cancelled, or whose time is over, does not begin.
    pub(super) fn check_start(&self) {
        self.check_clock(self.started);
    }

    /// The last look, when the program has returned: it may have done so just after its time.
    pub(super) fn check_end(&self) {
        if !self.ended() {
            self.check_clock(Instant::now());
        }
    }

    /// One safepoint.
    fn safepoint(&self, heap: usize, depth: c_int) {
        self.used.set(self.used.get() + 1);
        self.check_fuel();
        if depth > self.max_depth {
            self.end(ProgramFailure::CallDepth);
        }
        let until_clock = self.until_clock.get() - 1;
        if until_clock == 0 || heap > SMALL_HEAP {
            self.check_clock(Instant::now());
        } else {
            self.until_clock.set(until_clock);
        }
    }

    fn check_fuel(&self) {
        let (limit, used) = (self.bounds.limits.max_instructions, self.used.get());
        if used > limit {
            self.end(ProgramFailure::Fuel { limit, used });
        }
    }

    /// After a forced collection that left `heap` bytes alive: allow growth half-way to the limit, or end the program.
    fn collected(&self, heap: usize) {
        let left = self.hard_heap.saturating_sub(heap);
        if left < LAST_REACH {
            return self.end(ProgramFailure::Memory { limit: self.bounds.limits.max_memory_bytes });
        }
        self.soft_heap.set(self.soft_heap.get().max(heap + left / 2));
    }

    fn note_cpu_start(&self, now: Instant, cpu: Duration) {
        if self.cpu_start.get().is_none() {
            let running = (now - self.started).saturating_sub(self.awaited.get()).min(UNREAD_CPU);
            self.cpu_start.set(Some(cpu.saturating_sub(running)));
        }
    }

    fn plan(&self) {
        let mut next = self.next_tick.get().min(self.next_cpu.get());
        if let Some(deadline) = self.bounds.deadline {
            next = next.min(deadline);
        }
        if self.cpu_start.get().is_none() {
            next = next.min(self.started + UNREAD_CPU);
        }
        self.next_event.set(next);
    }
}

/// Makes a meter, or none, the current one of this thread until it is dropped; then the former one is again.
pub(super) struct Running(*const Meter<'static>);

impl Running {
    /// Safepoints on this thread charge `meter` until the result is dropped, which must happen before the meter dies.
    ///
    /// # Safety
    /// The result must be dropped before `meter` is, and on this thread.
    pub(super) unsafe fn metered(meter: &Meter<'_>) -> Self {
        Self(CURRENT.replace(ptr::from_ref(meter).cast()))
    }

    /// Safepoints on this thread charge nobody: the runtime itself works in a VM.
    pub(super) fn unmetered() -> Self {
        Self(CURRENT.replace(ptr::null()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Installs the safepoint in a VM.
pub(super) fn install(lua: &mlua::Lua) -> mlua::Result<()> {
    // SAFETY: `exec_raw` gives the state of a live VM whose lock is held, and the callbacks structure lives as long as
    // the VM. mlua uses the `interrupt` field only when `set_interrupt` is called, which nobody here does.
    unsafe { lua.exec_raw::<()>((), |state| (*ffi::lua_callbacks(state)).interrupt = Some(on_interrupt)) }
}

/// The interrupt. `gc` is negative at safepoints; other values come from the collector, where nothing may be raised.
///
/// # Safety
/// Called by Luau only, with the running state.
unsafe extern "C-unwind" fn on_interrupt(state: *mut ffi::lua_State, gc: c_int) {
    if gc >= 0 {
        return;
    }
    let current = CURRENT.get();
    // SAFETY: `CURRENT` is either null or points to the meter of the execution that is on this thread's stack below
    // us: `Running` sets it and takes it back before the meter is dropped, and Luau calls us on that same thread.
    let Some(meter) = (unsafe { current.as_ref() }) else { return };
    // SAFETY: both only read counters of the live state that Luau handed us.
    let (heap, depth) = unsafe { (ffi::lua_totalbytes(state, -1), ffi::lua_stackdepth(state)) };
    meter.safepoint(heap, depth);
    if heap > meter.soft_heap.get() && !meter.ended() {
        // SAFETY: a full collection is allowed at a safepoint (Luau's own `collectgarbage` is a call like any other);
        // it runs no program code, for Luau has no finalisers, and calls us back only with `gc >= 0`.
        let alive = unsafe {
            ffi::lua_gc(state, ffi::LUA_GCCOLLECT, 0);
            ffi::lua_totalbytes(state, -1)
        };
        meter.collected(alive);
        meter.check_clock(Instant::now());
    }
    if meter.ended() {
        // SAFETY: raising is allowed at a safepoint (`gc < 0`). The error unwinds as a C++ exception through this frame
        // and Luau's own; this frame owns nothing that needs dropping. One stack slot is made sure of first.
        unsafe {
            ffi::lua_rawcheckstack(state, 1);
            ffi::lua_pushnil(state);
            ffi::lua_error(state);
        }
    }
}

/// The message handler of a program's outermost call: an error that a library function raised inside one of our wrappers
/// names the wrapper's line; the program's own line is what its author can use.
///
/// # Safety
/// Called by Luau only, with the error value as its one argument.
pub(super) unsafe extern "C-unwind" fn on_error(state: *mut ffi::lua_State) -> c_int {
    const OURS: &[u8] = b"cadenza:";
    let mut length = 0;
    // SAFETY: the argument is on the stack, and only a string is asked for its bytes (a number would be changed). They
    // stay alive and unmoved as long as it is there, which is until this function returns.
    let text = unsafe {
        if ffi::lua_type(state, 1) != ffi::LUA_TSTRING {
            return 1;
        }
        let bytes = ffi::lua_tolstring(state, 1, &mut length);
        std::slice::from_raw_parts(bytes.cast::<u8>(), length)
    };
    let Some(rest) = text.strip_prefix(OURS) else { return 1 };
    let Some(colon) = rest.iter().position(|byte| *byte == b':') else { return 1 };
    let rest = &rest[colon + 1..];
    for level in 1.. {
        let mut frame = std::mem::MaybeUninit::<ffi::lua_Debug>::zeroed();
        // SAFETY: all-zero bytes are a valid `lua_Debug` (pointers, integers and bytes). `lua_getinfo` says with 0 that
        // there is no such level, else fills the fields that "sl" names; `short_src` is then a live C string.
        let (source, line) = unsafe {
            if ffi::lua_getinfo(state, level, c"sl".as_ptr(), frame.as_mut_ptr()) == 0 {
                return 1;
            }
            let frame = frame.assume_init_ref();
            (std::ffi::CStr::from_ptr(frame.short_src), frame.currentline)
        };
        if source == c"program" {
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(line);
            // SAFETY: pushes five strings, for which room is made first, and joins them. Running out of memory raises
            // an error, which unwinds through this frame; it owns nothing that needs dropping.
            unsafe {
                ffi::lua_rawcheckstack(state, 5);
                ffi::lua_pushlstring(state, c"program:".as_ptr(), 8);
                ffi::lua_pushlstring(state, digits.as_ptr().cast(), digits.len());
                ffi::lua_pushlstring(state, c":".as_ptr(), 1);
                ffi::lua_pushlstring(state, rest.as_ptr().cast(), rest.len());
                ffi::lua_concat(state, 4);
            }
            return 1;
        }
    }
    1
}

/// A moment later by `span`, or as late as clocks go.
fn later(moment: Instant, span: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    moment + span.min(YEARS)
}

/// What a caught panic said.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without words".to_owned()
    }
}

/// CPU time that this thread has used.
#[cfg(unix)]
fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable timespec; the call has no other requirement.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    if status != 0 {
        return wall_time();
    }
    // The kernel keeps both fields non-negative and the nanoseconds below one second.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(unix))]
fn thread_cpu_time() -> Duration {
    wall_time()
}

/// Where a thread's CPU clock cannot be read, wall time stands in for it: stricter, never laxer.
fn wall_time() -> Duration {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed()
}
