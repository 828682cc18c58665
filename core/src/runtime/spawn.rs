//! Calls that nobody's thread waits for: the tokio runtime on which asynchronous calls run.
//!
//! Apart from the provider's runtime, which only moves bytes: a program may compute for its whole CPU limit here.

use std::future::Future;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::fork;

/// Programs nest natively while they are converted and freed (engines.md, finding 10).
const STACK: usize = 8 << 20;
/// Programs and tools that may be under way at once; each holds a thread while it computes or waits. Stacks are virtual.
const BUSY: usize = 8_192;

struct Calls {
    generation: u64,
    runtime: Runtime,
}

/// Runs a call's future to its end on the shared runtime, made on first use and again in a forked child. Fails only when
/// the system gives no threads. Dropping the handle does not stop the call; its cancel token does.
pub fn spawn<F>(future: F) -> io::Result<JoinHandle<F::Output>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Ok(calls()?.runtime.spawn(future))
}

fn calls() -> io::Result<&'static Calls> {
    static CALLS: AtomicPtr<Calls> = AtomicPtr::new(ptr::null_mut());
    let mut seen = CALLS.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or from `Box::into_raw` below, published with Release and never freed.
        if let Some(calls) = unsafe { seen.as_ref() }
            && calls.generation == fork::generation()
        {
            return Ok(calls);
        }
        let runtime = Builder::new_multi_thread()
            .thread_name("cadenza-call")
            .thread_stack_size(STACK)
            .max_blocking_threads(BUSY)
            .enable_all()
            .build()?;
        let fresh = Box::into_raw(Box::new(Calls { generation: fork::generation(), runtime }));
        match CALLS.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // A parent's runtime stays leaked: its threads do not exist here, so it cannot be joined.
            Ok(_) => seen = fresh,
            Err(other) => {
                // SAFETY: `fresh` came from `Box::into_raw` above and was not published.
                unsafe { Box::from_raw(fresh) }.runtime.shutdown_background();
                seen = other;
            }
        }
    }
}
