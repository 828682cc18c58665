//! Threads for Python callables: what cannot be interrupted is waited for somewhere else.
//!
//! A model or tool written in Python runs on one of these threads, so that the call can give up on it in time. The
//! threads stay attached to the interpreter, and only leave the GIL while they wait: a hop costs two wake-ups. A thread
//! whose callable never returns is left behind: it no longer counts, and another takes its place.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use tokio::sync::oneshot;

use cadenza_core::cancel::CancelToken;
use cadenza_core::runtime::wait::block_on;

/// Threads at once, without those that were left behind; more work waits in line.
const MAX_THREADS: usize = 512;
/// Why a callable was not called in time.
pub(crate) const BUSY: &str =
    "512 models and tools of this process were running at once, and none of them ended in time";
/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(30);
/// Stack of a thread: what Python's own threads get.
const STACK: usize = 8 << 20;

type Job = Box<dyn FnOnce(Python<'_>) + Send>;

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    /// Without those that were left behind.
    threads: usize,
}

static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

/// The pool of this process.
fn pool() -> &'static Pool {
    let seen = POOL.load(Ordering::Acquire);
    // SAFETY: null, or from `Box::into_raw` below and never freed.
    if let Some(pool) = unsafe { seen.as_ref() } {
        return pool;
    }
    let fresh = Box::into_raw(Box::<Pool>::default());
    let pool = match POOL.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => fresh,
        Err(other) => {
            // SAFETY: `fresh` came from `Box::into_raw` above and was not published.
            drop(unsafe { Box::from_raw(fresh) });
            other
        }
    };
    // SAFETY: published, and never freed.
    unsafe { &*pool }
}

/// Forgets the parent's threads, which a forked child does not have. The old pool stays leaked: it may be locked.
pub(crate) fn after_fork_in_child() {
    POOL.store(ptr::null_mut(), Ordering::Release);
}

/// What a job sends back. Fails when the job was lost: no thread, or a panic. Dropped early, it gives the job up.
pub(crate) struct Answer<T> {
    receiver: oneshot::Receiver<T>,
    place: Place,
}

/// How far a job is. Nothing for an answer that no thread of the pool works at.
#[derive(Clone)]
pub(crate) struct Place(Option<Arc<Ticket>>);

pub(crate) struct Ticket {
    pool: &'static Pool,
    stage: Mutex<Stage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    InLine,
    Running,
    Ended,
    /// Nobody waits any more: it was still in line.
    NeverBegan,
    /// Nobody waits any more, and its thread does not count.
    LeftBehind,
}

impl<T> Answer<T> {
    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }
}

impl<T> From<oneshot::Receiver<T>> for Answer<T> {
    fn from(receiver: oneshot::Receiver<T>) -> Self {
        Self { receiver, place: Place(None) }
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(context)
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(ticket) = &self.place.0 {
            ticket.give_up();
        }
    }
}

impl Place {
    /// Whether the job is in line, or was when it was given up.
    pub(crate) fn never_came(&self) -> bool {
        self.0.as_ref().is_some_and(|ticket| matches!(*ticket.stage.lock(), Stage::InLine | Stage::NeverBegan))
    }
}

impl Ticket {
    fn give_up(&self) {
        let mut stage = self.stage.lock();
        match *stage {
            Stage::InLine => *stage = Stage::NeverBegan,
            Stage::Running => {
                *stage = Stage::LeftBehind;
                // In a forked child there is neither the thread nor the pool.
                if ptr::eq(self.pool, pool()) {
                    let mut state = self.pool.state.lock();
                    state.threads -= 1;
                    if state.jobs.len() > state.idle {
                        spawn(self.pool, &mut state);
                    }
                }
            }
            Stage::Ended | Stage::NeverBegan | Stage::LeftBehind => {}
        }
    }

    /// Whether the job is still wanted.
    fn begin(&self) -> bool {
        let mut stage = self.stage.lock();
        let wanted = *stage == Stage::InLine;
        if wanted {
            *stage = Stage::Running;
        }
        wanted
    }
}

/// A job that runs. Its thread counts again when it ends after all.
struct Running<'a>(&'a Ticket);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.stage.lock(), Stage::Ended);
        if before == Stage::LeftBehind {
            self.0.pool.state.lock().threads += 1;
        }
    }
}

/// Runs `work` on a thread of the pool.
pub(crate) fn run<T: Send + 'static>(work: impl FnOnce(Python<'_>) -> T + Send + 'static) -> Answer<T> {
    let (sender, receiver) = oneshot::channel();
    let ticket = Arc::new(Ticket { pool: pool(), stage: Mutex::new(Stage::InLine) });
    let place = Place(Some(ticket.clone()));
    submit(Box::new(move |py| {
        // Nobody waits any more when the call gave up; the work may then as well not begin.
        if ticket.begin() {
            let running = Running(&ticket);
            let done = work(py);
            drop(running);
            // The one who gave up meanwhile does not want it.
            let _ = sender.send(done);
        }
    }));
    Answer { receiver, place }
}

/// Runs `job` on a thread of the pool; nobody waits for it. A job that finds no thread is dropped.
pub(crate) fn submit(job: Job) {
    let pool = pool();
    let mut state = pool.state.lock();
    state.jobs.push_back(job);
    if state.idle >= state.jobs.len() {
        drop(state);
        pool.ready.notify_one();
        return;
    }
    spawn(pool, &mut state);
}

/// One more thread, if there may be one.
fn spawn(pool: &'static Pool, state: &mut State) {
    if state.threads >= MAX_THREADS {
        return;
    }
    state.threads += 1;
    let spawned = std::thread::Builder::new().name("cadenza-python".into()).stack_size(STACK).spawn(move || work(pool));
    if spawned.is_err() {
        state.threads -= 1;
        if state.threads == 0 {
            // Nobody will ever take it; whoever waits for its answer learns that now.
            state.jobs.clear();
        }
    }
}

fn work(pool: &'static Pool) {
    // Attached for the life of the thread: the interpreter's state for a thread is not cheap to make.
    let ended = Python::try_attach(|py| {
        while let Some(job) = py.detach(|| next(pool)) {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(py))).is_err();
            if panicked {
                // The answer's sender went with the job, so the waiting side knows.
                continue;
            }
        }
    });
    if ended.is_none() {
        pool.state.lock().threads -= 1;
    }
}

/// The next job; `None` when there was none for a while, and the thread is signed off.
fn next(pool: &Pool) -> Option<Job> {
    let mut state = pool.state.lock();
    let deadline = Instant::now() + IDLE;
    // One that was left behind and came back, while another took its place.
    if state.threads > MAX_THREADS {
        state.threads -= 1;
        return None;
    }
    loop {
        if let Some(job) = state.jobs.pop_front() {
            return Some(job);
        }
        state.idle += 1;
        let waited = pool.ready.wait_until(&mut state, deadline);
        state.idle -= 1;
        if waited.timed_out() && state.jobs.is_empty() {
            state.threads -= 1;
            return None;
        }
    }
}

/// Why an answer did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Too late.
    Late,
    /// Too late, and the job was still in line.
    NeverBegan,
    /// The cancel token was set.
    Cancelled,
    /// The job was lost.
    Lost,
}

/// Waits on this thread, without the GIL, until the answer is there, `deadline` has passed or `cancel` is set.
pub(crate) fn wait<T>(mut answer: Answer<T>, deadline: Instant, cancel: &CancelToken) -> Result<T, Unanswered> {
    // `block_on` polls again at every tick, so that neither a timer nor a waker is needed for the last two.
    let polling = std::future::poll_fn(|context| {
        if let Poll::Ready(answer) = Pin::new(&mut answer).poll(context) {
            return Poll::Ready(answer.map_err(|_| Unanswered::Lost));
        }
        if cancel.is_cancelled() {
            return Poll::Ready(Err(Unanswered::Cancelled));
        }
        if Instant::now() >= deadline {
            let late = if answer.place.never_came() { Unanswered::NeverBegan } else { Unanswered::Late };
            return Poll::Ready(Err(late));
        }
        Poll::Pending
    });
    block_on(polling, cancel)
}
