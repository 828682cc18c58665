//! The native stack: how much is left, and how to get more.
//!
//! Rhai evaluates, clones and frees values by native recursion. Programs therefore run only where enough stack is left,
//! else on a thread made for the purpose; and every step checks that the reserve is untouched.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::cancel::CancelToken;

/// Stack that must be left to run a program where we are. Below it a thread is made.
pub(super) const NEEDED_BYTES: usize = 5 << 20;

/// Stack of a thread that is made for a program; only touched pages cost memory.
const MADE_BYTES: usize = 64 << 20;

/// What no program step may use up: natives that recurse over bounded values run below it.
pub(super) const RESERVE_BYTES: usize = 2 << 20;

/// How often a waiting caller asks its host whether the user wants to stop.
const TICK: Duration = Duration::from_millis(10);

thread_local! {
    static LOWEST: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The lowest address of this thread's stack; 0 where the platform does not say.
pub(super) fn lowest() -> usize {
    LOWEST.with(|cell| {
        cell.get().unwrap_or_else(|| {
            let found = ask();
            cell.set(Some(found));
            found
        })
    })
}

/// An address in the current stack frame.
#[inline(always)]
pub(super) fn here() -> usize {
    let marker = 0_u8;
    std::hint::black_box(&raw const marker) as usize
}

/// Bytes left below this frame; everything when the platform does not say.
pub(super) fn left() -> usize {
    match lowest() {
        0 => usize::MAX,
        lowest => here().saturating_sub(lowest),
    }
}

#[cfg(target_os = "linux")]
fn ask() -> usize {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut address = std::ptr::null_mut();
    let mut size = 0;
    // SAFETY: `pthread_getattr_np` initialises the attributes when it returns 0; they are read once and destroyed.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return 0;
        }
        let found = libc::pthread_attr_getstack(attributes.as_ptr(), &mut address, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if found != 0 {
            return 0;
        }
    }
    address as usize
}

#[cfg(target_os = "macos")]
fn ask() -> usize {
    // SAFETY: both functions only read the calling thread's own description.
    unsafe {
        let thread = libc::pthread_self();
        (libc::pthread_get_stackaddr_np(thread) as usize).saturating_sub(libc::pthread_get_stacksize_np(thread))
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn ask() -> usize {
    0
}

/// Runs `work` where enough stack is left: here, or on a thread made for it while this one waits.
///
/// While waiting, this thread ticks `cancel`: a host such as Python answers only on its own thread. A panic in `work`
/// continues here. `Err` when the system gives no thread.
pub(super) fn with_enough<T: Send>(
    cancel: Option<&CancelToken>,
    work: impl FnOnce() -> T + Send,
) -> std::io::Result<T> {
    // A platform that does not tell its stack's bounds gets a thread every time.
    if lowest() != 0 && left() >= NEEDED_BYTES {
        return Ok(work());
    }
    thread::scope(|scope| {
        let (done, wait) = mpsc::sync_channel::<()>(1);
        let made = thread::Builder::new().name("cadenza-rhai".into()).stack_size(MADE_BYTES).spawn_scoped(
            scope,
            move || {
                let result = work();
                let _ = done.send(());
                drop(done);
                result
            },
        )?;
        if let Some(cancel) = cancel {
            // Ends with a message, or when a panic drops the sender.
            while let Err(mpsc::RecvTimeoutError::Timeout) = wait.recv_timeout(TICK) {
                cancel.tick();
            }
        }
        Ok(made.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
