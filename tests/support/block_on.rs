//! The smallest executor there is: what a provider must be content with.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Wakes the thread that made it.
pub struct Unpark(Thread);

impl Unpark {
    /// A waker of this thread.
    pub fn waker() -> Waker {
        Waker::from(Arc::new(Self(thread::current())))
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls the future to its end on this thread, and only when somebody woke it. Fails a test that waits for longer.
pub fn block_on<T>(future: impl Future<Output = T>, longest: Duration) -> T {
    let mut future = pin!(future);
    let waker = Unpark::waker();
    let mut context = Context::from_waker(&waker);
    let start = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        assert!(start.elapsed() < longest, "nothing woke the waiter");
        thread::park_timeout(Duration::from_secs(60));
    }
}
