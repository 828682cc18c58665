//! The synchronous face: polls a future on the caller's thread, so that a reused call costs no thread hop.
//!
//! While it waits it ticks the cancel token (Python asks for pending signals there), never more often than needed.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::cancel::CancelToken;

/// How often a waiting thread looks at its cancel token.
const TICK: Duration = Duration::from_millis(20);
/// Stack that must be left before a nested call; below it, the call runs on a new segment.
const RED_ZONE: usize = 1 << 20;
/// Size of such a segment.
const SEGMENT: usize = 8 << 20;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls `future` to its end on this thread.
pub fn block_on<F: Future>(future: F, cancel: &CancelToken) -> F::Output {
    thread_local! {
        static WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    }
    let mut future = pin!(future);
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            std::thread::park_timeout(TICK);
            cancel.tick();
        }
    })
}

/// [`block_on`] from inside a program: on a stack that is large enough for one more level, and without starving the
/// tokio runtime whose worker this thread may be.
pub(crate) fn block_on_nested<F: Future + Send>(future: F, cancel: &CancelToken) -> F::Output
where
    F::Output: Send,
{
    stacker::maybe_grow(RED_ZONE, SEGMENT, || aside(|| block_on(future, cancel)))
}

/// Runs what may take long on this thread; if it is a tokio runtime's worker, the runtime's other tasks go on elsewhere
/// meanwhile. A program may compute for its whole limit, and the calls beside it must still end in time.
pub(crate) fn aside<R>(work: impl FnOnce() -> R) -> R {
    match tokio::runtime::Handle::try_current() {
        Ok(handle) if handle.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread => {
            tokio::task::block_in_place(work)
        }
        Ok(_) | Err(_) => work(),
    }
}
