//! What the clock says when a boundary call ends. A recorded verdict in replay (V39); never an elapsed time (V4).

use super::{Cut, TimeLimit};
use crate::contract::{Budget, Millis};

/// What the clock says about the boundary call that just ended (V39).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    pub step_exceeded: bool,
    pub total_exceeded: bool,
    /// For a call that was cut: its deadline was what was left of the total.
    pub cut_by_total: bool,
}

impl Clock {
    /// Reads the clock. Elapsed equal to a limit is not exceeded (V11, EC-T1.7).
    pub(super) fn read(budget: &Budget, started: Millis, boundary: Millis, now: Millis) -> Self {
        let left = budget.total_timeout.since(boundary.since(started));
        Self {
            step_exceeded: now.since(boundary) > budget.step_timeout,
            total_exceeded: now.since(started) > budget.total_timeout,
            cut_by_total: left <= budget.step_timeout,
        }
    }

    /// The limit that was passed by a call that came back by itself; `step` is its step limit.
    pub(super) fn after(self, step: TimeLimit) -> Option<TimeLimit> {
        if self.total_exceeded { Some(TimeLimit::Total) } else { self.step_exceeded.then_some(step) }
    }

    /// The limit that was passed by a call that was cut.
    pub(super) fn cut(self, cut: Cut, step: TimeLimit) -> Option<TimeLimit> {
        match cut {
            Cut::TimedOut if self.total_exceeded || self.cut_by_total => Some(TimeLimit::Total),
            Cut::TimedOut => Some(step),
            Cut::Cancelled => self.after(step),
        }
    }
}
