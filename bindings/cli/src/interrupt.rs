//! Ctrl-C: stops the call that runs, then, if that does not end the command, the command.

use std::sync::OnceLock;
use std::time::Duration;

use cadenza_core::cancel::CancelToken;
use cadenza_core::runtime::Runtime;
use parking_lot::Mutex;

/// How long work has to end by itself after its calls were stopped. A call notices within milliseconds; what takes
/// longer is a script's own loop.
const GRACE: Duration = Duration::from_millis(700);

/// What Ctrl-C stops now.
struct Work {
    number: u64,
    cancel: CancelToken,
    /// Its log is written out before the process ends.
    runtime: Option<Runtime>,
}

static WORK: Mutex<Option<Work>> = Mutex::new(None);

/// While this lives, Ctrl-C cancels its token. If the work then goes on for too long, or at the second Ctrl-C, the
/// process ends with status 130.
pub struct Guard(());

/// Begins work that Ctrl-C can stop.
pub fn guard(cancel: &CancelToken, runtime: Option<&Runtime>) -> Guard {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    *WORK.lock() = Some(Work { number, cancel: cancel.clone(), runtime: runtime.cloned() });
    // Without a handler Ctrl-C ends the process as usual, which is what it is for.
    INSTALLED.get_or_init(|| ctrlc::set_handler(interrupted).is_ok());
    Guard(())
}

impl Drop for Guard {
    fn drop(&mut self) {
        *WORK.lock() = None;
    }
}

/// Runs on the handler's own thread.
fn interrupted() {
    let Some((number, again)) = WORK.lock().as_ref().map(|work| {
        let again = work.cancel.is_cancelled();
        work.cancel.cancel();
        (work.number, again)
    }) else {
        std::process::exit(130)
    };
    if again {
        leave();
    }
    std::thread::spawn(move || {
        std::thread::sleep(GRACE);
        if WORK.lock().as_ref().is_some_and(|work| work.number == number) {
            leave();
        }
    });
}

fn leave() -> ! {
    let runtime = WORK.lock().as_ref().and_then(|work| work.runtime.clone());
    if let Some(runtime) = runtime {
        runtime.flush();
    }
    std::process::exit(130)
}
