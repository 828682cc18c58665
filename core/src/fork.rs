//! Forked children: what a copy of this process must not share with its parent.
//!
//! A forked child has one thread and a copy of everything else. Threads that Cadenza keeps (log writers, requests, calls)
//! are started again there when they are next needed, and ids and randomness begin anew. A host that can fork calls
//! [`after_fork_in_child`] (Python: `os.register_at_fork`); without it, a child must not use what its parent made.

use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Number of forks between the first process and this one.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Call it in a forked child, before anything else of this crate.
pub fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
    crate::ids::forget_prefix();
    let mut seed = [0; 8];
    if getrandom::fill(&mut seed).is_ok() {
        fastrand::seed(u64::from_le_bytes(seed));
    }
}
