//! Waiting that works on any thread: one small tokio runtime per process, shared by all providers.
//!
//! A provider's future may be polled by a plain `block_on`, by asyncio's loop through the Python binding, or by a tokio
//! task of the host. Whatever needs a reactor or a timer is therefore spawned here, and only its handle is awaited.
//! This module never holds a caller's thread: it only wakes wakers.

use std::future::Future;
use std::pin::Pin;
use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::{ProviderError, ProviderErrorClass};
use crate::cancel::CancelToken;

/// How soon a cancelled request gives up, at the latest.
const SWEEP_EVERY: Duration = Duration::from_millis(10);

/// Threads of the shared runtime. They only move bytes; two serve thousands of waiting requests.
const WORKERS: usize = 2;

/// Programs of asynchronous calls run here too (engines.md 2.5).
const STACK: usize = 8 << 20;

/// What all providers of this process share. Made on first use, and again in a forked child, whose copy of the
/// parent's runtime has no threads.
pub(crate) struct Shared {
    process: u32,
    runtime: Runtime,
    watched: Mutex<Watched>,
    #[cfg(feature = "http")]
    pub(crate) clients: super::http::Clients,
}

/// The shared runtime of this process; starts it when needed. Fails only when the system gives no threads.
pub(crate) fn shared() -> Result<&'static Shared, ProviderError> {
    static SHARED: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());
    let mut seen = SHARED.load(Ordering::Acquire);
    loop {
        // SAFETY: the pointer is null or came from `Box::into_raw` below, was published with Release, and what it
        // points to is never freed once it was published.
        if let Some(shared) = unsafe { seen.as_ref() }
            && shared.process == process::id()
        {
            return Ok(shared);
        }
        let fresh = Box::into_raw(Box::new(Shared::start()?));
        match SHARED.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // The runtime of a parent process stays leaked: its threads do not exist here, so it cannot be joined.
            Ok(_) => seen = fresh,
            Err(other) => {
                // SAFETY: `fresh` came from `Box::into_raw` above and was not published.
                unsafe { Box::from_raw(fresh) }.runtime.shutdown_background();
                seen = other;
            }
        }
    }
}

impl Shared {
    fn start() -> Result<Self, ProviderError> {
        static WORKER: AtomicU64 = AtomicU64::new(0);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_stack_size(STACK)
            .thread_name_fn(|| format!("cadenza-io-{}", WORKER.fetch_add(1, Ordering::Relaxed)))
            .enable_all()
            .build()
            .map_err(|error| {
                ProviderError::new(ProviderErrorClass::Failed, format!("the request threads did not start: {error}"))
            })?;
        Ok(Self {
            process: process::id(),
            runtime,
            watched: Mutex::default(),
            #[cfg(feature = "http")]
            clients: super::http::Clients::default(),
        })
    }

    /// Wakes those whose token is set, and those whose token asks its host, until nobody waits any more.
    async fn sweep(&'static self) {
        let mut wakers = Vec::new();
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            {
                let mut watched = self.watched.lock();
                if watched.waiting == 0 {
                    watched.sweeping = false;
                    return;
                }
                let due = watched.slots.iter().flatten().filter(|(token, _)| token.asks_host() || token.is_cancelled());
                wakers.extend(due.map(|(_, waker)| waker.clone()));
            }
            wakers.drain(..).for_each(Waker::wake);
        }
    }
}

/// Those who wait for a token. Slots are reused, so that a waiter knows its place without searching.
#[derive(Default)]
struct Watched {
    slots: Vec<Option<(CancelToken, Waker)>>,
    free: Vec<usize>,
    waiting: usize,
    sweeping: bool,
}

/// Resolves when the token is set, within 10 ms. Asks the token's host on the thread that polls.
struct Cancelled<'a> {
    cancel: &'a CancelToken,
    shared: &'static Shared,
    slot: Option<usize>,
}

impl Future for Cancelled<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.cancel.tick() {
            return Poll::Ready(());
        }
        let shared = self.shared;
        // Cloned before the lock and dropped after it: a waker's code is not ours, and may end another waiter.
        let entry = Some((self.cancel.clone(), context.waker().clone()));
        let mut watched = shared.watched.lock();
        let slot = match self.slot {
            Some(slot) => slot,
            None => {
                watched.waiting += 1;
                watched.free.pop().unwrap_or_else(|| {
                    watched.slots.push(None);
                    watched.slots.len() - 1
                })
            }
        };
        let before = std::mem::replace(&mut watched.slots[slot], entry);
        if !watched.sweeping {
            watched.sweeping = true;
            shared.runtime.spawn(shared.sweep());
        }
        drop(watched);
        drop(before);
        self.slot = Some(slot);
        Poll::Pending
    }
}

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let mut watched = self.shared.watched.lock();
            let before = watched.slots[slot].take();
            watched.free.push(slot);
            watched.waiting -= 1;
            drop(watched);
            drop(before);
        }
    }
}

/// Stops the work when the one who waits for it goes away.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `work` on the shared runtime, for at most `allowed`, and until `cancel` is set or the future is dropped.
///
/// `model` names the provider in the messages. The work is stopped, and its connection closed, when it is given up.
pub async fn bounded<T: Send + 'static>(
    model: &str,
    allowed: Duration,
    cancel: &CancelToken,
    work: impl Future<Output = Result<T, ProviderError>> + Send + 'static,
) -> Result<T, ProviderError> {
    if cancel.tick() {
        return Err(ProviderError::cancelled());
    }
    let shared = shared()?;
    let timed = async move { tokio::time::timeout(allowed, work).await };
    let mut task = AbortOnDrop(shared.runtime.spawn(timed));
    let mut cancelled = Cancelled { cancel, shared, slot: None };
    let finished = std::future::poll_fn(|context| {
        // A reply that is already there wins over a cancellation that nobody has seen yet: it was paid for.
        if let Poll::Ready(joined) = Pin::new(&mut task.0).poll(context) {
            return Poll::Ready(Some(joined));
        }
        Pin::new(&mut cancelled).poll(context).map(|()| None)
    });
    match finished.await {
        None => Err(ProviderError::cancelled()),
        Some(Ok(Ok(result))) => result,
        Some(Ok(Err(_elapsed))) => Err(ProviderError::timed_out(model, allowed)),
        Some(Err(join)) => {
            let message = format!("internal error while waiting for {model}: {join}");
            Err(ProviderError::new(ProviderErrorClass::Failed, message))
        }
    }
}

/// How long calls wait between two requests. Tests bring their own time.
pub trait Waits: Send + Sync + std::fmt::Debug {
    /// Resolves after `wait`, or as soon as `cancel` is set.
    fn pause<'a>(&'a self, wait: Duration, cancel: &'a CancelToken) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

/// The clock of this machine.
#[derive(Debug)]
pub(crate) struct RealWaits;

/// Waits as long as it is told to.
pub(crate) fn wait_really() -> Arc<dyn Waits> {
    Arc::new(RealWaits)
}

impl Waits for RealWaits {
    fn pause<'a>(&'a self, wait: Duration, cancel: &'a CancelToken) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if !wait.is_zero() {
                never("a pause", wait, cancel).await;
            }
        })
    }
}

/// Waits until `allowed` has passed or `cancel` is set; always a failure. What a model that never answers looks like.
pub(crate) async fn never(model: &str, allowed: Duration, cancel: &CancelToken) -> ProviderError {
    match bounded(model, allowed, cancel, std::future::pending::<Result<(), ProviderError>>()).await {
        Ok(()) => unreachable!("a pending future has no end"),
        Err(error) => error,
    }
}
