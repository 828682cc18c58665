//! The cancel token: one flag per trace that every boundary call watches (EC-T1.1, KC-E5).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks the host whether the user wants to stop (Python: a pending signal). Called at ticks, never in a hot loop.
type Poll = Box<dyn Fn() -> bool + Send + Sync>;

/// Shared by a call, its children and everything they wait for. Cloning shares the flag.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Inner>);

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    poll: Option<Poll>,
}

impl CancelToken {
    /// A token that also asks `poll` at every tick; `true` cancels.
    pub fn with_poll(poll: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { cancelled: AtomicBool::new(false), poll: Some(Box::new(poll)) }))
    }

    /// Cancels for good.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
    }

    /// Whether the flag is set. A load; fit for hot loops.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Whether [`Self::tick`] asks a host. A waiter whose token has none need not be woken before it is cancelled.
    pub fn asks_host(&self) -> bool {
        self.0.poll.is_some()
    }

    /// Asks the host, then looks at the flag. Call it every few milliseconds while waiting or computing.
    pub fn tick(&self) -> bool {
        if !self.is_cancelled() && self.0.poll.as_ref().is_some_and(|poll| poll()) {
            self.cancel();
        }
        self.is_cancelled()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CancelToken({})", self.is_cancelled())
    }
}
