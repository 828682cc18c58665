//! What a contract grants, and what a run has used of it.
//!
//! Limits are inclusive: a limit of N permits N, and "exceeded" means strictly more (V11). Nothing here decides how a run
//! ends; it only counts.

use std::fmt;
use std::ops::{Add, AddAssign};

use crate::message::Usage;

/// A time span or a point on the driver's monotonic clock, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// The time from `earlier` to this point; zero when the clock ran backwards.
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Millis {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ms", self.0)
    }
}

/// Model tokens, prompt and completion together (EC-4.1 `max_tokens_consumed`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tokens(pub u64);

impl Tokens {
    /// The provider-independent estimate: a quarter of the bytes, rounded up (V18).
    pub fn estimate(bytes: u64) -> Self {
        Self(bytes.div_ceil(4))
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} tokens", self.0)
    }
}

/// The budgets of a contract in one piece. `None` is unlimited; zero is refused by PRECHECK (V12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Model replies.
    pub max_inferences: u32,
    /// Model tokens, children included.
    pub max_tokens_consumed: Option<Tokens>,
    /// Rejected replies that may be asked again.
    pub max_format_retries: u32,
    /// Nudges and repairs.
    pub max_semantic_retries: u32,
    /// Bound of one boundary call.
    pub step_timeout: Millis,
    /// Bound of the run.
    pub total_timeout: Millis,
}

/// What a run has left to give to a child (V40).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Tokens left; `None` is unlimited.
    pub tokens: Option<Tokens>,
    /// Time left.
    pub time: Millis,
}

impl Budget {
    /// What is left after `spent` and `elapsed`.
    pub fn remaining(&self, spent: &Spent, elapsed: Millis) -> Remaining {
        Remaining {
            tokens: self.max_tokens_consumed.map(|limit| Tokens(limit.0.saturating_sub(spent.tokens.0))),
            time: self.total_timeout.since(elapsed),
        }
    }
}

/// What a run used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Model replies, rejected ones included. Provider failures and reused programs are none.
    pub inferences: u32,
    /// All tokens, children included: what the budget is compared with.
    pub tokens: Tokens,
    /// Prompt tokens of this run's own replies.
    pub tokens_in: Tokens,
    /// Completion tokens of this run's own replies.
    pub tokens_out: Tokens,
    /// Tokens of child runs, charged at OBSERVE (V40).
    pub child_tokens: Tokens,
    /// Whether any count is an estimate because the provider reported none (V18).
    pub estimated: bool,
    /// Calls of ordinary tools that came back with a well-formed envelope (V14).
    pub tools_executed: u32,
    /// Of those, with status ok.
    pub tools_ok: u32,
    /// Rejected replies that were asked again.
    pub format_retries: u32,
    /// Nudges and repairs.
    pub semantic_retries: u32,
}

impl Spent {
    /// Adds one model reply: its reported usage, or the estimate from its bytes.
    pub(crate) fn charge_inference(&mut self, usage: Option<Usage>, prompt_bytes: u64, reply_bytes: u64) {
        self.inferences += 1;
        let (input, output) = match usage {
            Some(usage) => (Tokens(usage.input), Tokens(usage.output)),
            None => {
                self.estimated = true;
                (Tokens::estimate(prompt_bytes), Tokens::estimate(reply_bytes))
            }
        };
        self.tokens_in += input;
        self.tokens_out += output;
        self.tokens += input;
        self.tokens += output;
    }

    /// Adds what a child run used.
    pub(crate) fn charge_child(&mut self, tokens: Tokens) {
        self.child_tokens += tokens;
        self.tokens += tokens;
    }
}
