//! Warnings for the person at the host: what belongs to no call, and works otherwise than it was asked for.
//!
//! A host shows them where its own warnings are shown, after it made a runtime or an agent, and each text once per process.
//! Whoever listens to tracing hears every one.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::fork::PerProcess;

/// Most texts that are remembered; whoever has more of them has other troubles.
const MOST: usize = 100;

static WARNINGS: LazyLock<PerProcess<Mutex<Warnings>>> = LazyLock::new(PerProcess::default);

#[derive(Default)]
struct Warnings {
    given: BTreeSet<String>,
    waiting: Vec<String>,
}

/// Warns of something. No secret may be in it.
pub(crate) fn warn(text: String) {
    tracing::warn!("{text}");
    let mut warnings = WARNINGS.get().lock();
    if warnings.given.len() < MOST && warnings.given.insert(text.clone()) {
        warnings.waiting.push(text);
    }
}

/// The warnings that nobody has taken yet, oldest first.
pub fn take_warnings() -> Vec<String> {
    std::mem::take(&mut WARNINGS.get().lock().waiting)
}
