//! Forked children: what a copy of this process must not share with its parent.
//!
//! A forked child has one thread and a copy of everything else. Threads that Cadenza keeps (log writers, requests, calls)
//! are started again there when they are next needed, and ids and randomness begin anew. A host that can fork calls
//! [`after_fork_in_child`] (Python: `os.register_at_fork`); without it, a child must not use what its parent made.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
/// What lets go of the parent's descriptors, once there are any.
static LET_GO: OnceLock<fn()> = OnceLock::new();

/// Number of forks between the first process and this one.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Call it in a forked child, before anything else of this crate.
pub fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
    if let Some(let_go) = LET_GO.get() {
        let_go();
    }
    crate::ids::forget_prefix();
    let mut seed = [0; 8];
    if getrandom::fill(&mut seed).is_ok() {
        fastrand::seed(u64::from_le_bytes(seed));
    }
}

/// What each process has for itself: a forked child finds a new one, whatever its parent was doing with its own.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    generation: u64,
    own: T,
    childs: OnceLock<Box<Self>>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) fn get(&self) -> &T {
        let mut found = self;
        while found.generation != generation() {
            found = found.childs.get_or_init(Box::default);
        }
        &found.own
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self { generation: generation(), own: T::default(), childs: OnceLock::new() }
    }
}

/// Names what lets go of descriptors that a child must not keep; one for the whole process.
#[cfg_attr(not(all(feature = "sqlite", unix)), expect(dead_code, reason = "only stores keep such descriptors"))]
pub(crate) fn let_go_with(let_go: fn()) {
    let _first_one_stays = LET_GO.get_or_init(|| let_go);
}
