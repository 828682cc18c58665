//! Baseline metrics of recorded runs (EC-BM1, phase 1): computed from stored entries, nothing else.

use super::stored::StoredEntry;
use crate::contract::{ExecutionContract, Millis, ToolPolicy};
use crate::outcome::{AgentOutcome, Reason};
use crate::value::Value;

/// What one run contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunFacts {
    /// Whether a tool was required.
    pub required: bool,
    /// How it ended; `None` for a run without an end.
    pub outcome: Option<AgentOutcome>,
    /// Whether it stopped at its inference cap.
    pub cap_exit: bool,
    /// Adapter decisions.
    pub decisions: u32,
    /// Of those, rejections.
    pub rejections: u32,
    /// Replies.
    pub inferences: u32,
    /// From the first entry to the last.
    pub duration: Millis,
}

impl RunFacts {
    /// Reads one stored run.
    pub fn of(contract: &ExecutionContract, entries: &[StoredEntry]) -> Self {
        let decided = |entry: &&StoredEntry| entry.kind() == "adapter" && entry.result != Value::Null;
        let decisions = entries.iter().filter(decided).count() as u32;
        let rejections =
            entries.iter().filter(decided).filter(|entry| entry.text("status") == "rejected").count() as u32;
        let end = entries.last().filter(|entry| entry.kind() == "terminated");
        let word = |name: &str| end.and_then(|entry| entry.result_field(name)).and_then(Value::as_str);
        Self {
            required: contract.tool_policy() == ToolPolicy::Required,
            outcome: word("outcome").and_then(AgentOutcome::from_name),
            cap_exit: word("reason") == Some(Reason::MaxInferences.as_str()),
            decisions,
            rejections,
            inferences: decisions,
            duration: entries.last().map_or(Millis(0), |entry| entry.at),
        }
    }
}

/// The baseline of a corpus. Rates in per mille, rounded down; percentiles by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    /// Runs looked at.
    pub runs: u32,
    /// Runs that required a tool and ended without one: NO_TOOLS per required run.
    pub no_tool_permille: u32,
    /// Rejected replies per adapter decision.
    pub parse_failure_permille: u32,
    /// Mean inferences per run, in thousandths.
    pub mean_inferences_milli: u32,
    /// 95th percentile of inferences.
    pub p95_inferences: u32,
    /// Mean duration.
    pub mean_duration: Millis,
    /// 95th percentile of durations.
    pub p95_duration: Millis,
    /// Runs that stopped at their inference cap.
    pub cap_exits: u32,
}

impl Baseline {
    /// The baseline of those runs; all zero without any.
    pub fn of(runs: &[RunFacts]) -> Self {
        if runs.is_empty() {
            return Self::default();
        }
        let count = runs.len() as u64;
        let required = runs.iter().filter(|run| run.required).count() as u64;
        let no_tool = runs.iter().filter(|run| run.outcome == Some(AgentOutcome::FailedProtocolNoTools)).count() as u64;
        let sum = |of: fn(&RunFacts) -> u64| runs.iter().map(of).sum::<u64>();
        let inferences = sorted(runs, |run| u64::from(run.inferences));
        let durations = sorted(runs, |run| run.duration.0);
        Self {
            runs: count as u32,
            no_tool_permille: permille(no_tool, required),
            parse_failure_permille: permille(sum(|run| run.rejections.into()), sum(|run| run.decisions.into())),
            mean_inferences_milli: permille(sum(|run| run.inferences.into()), count),
            p95_inferences: p95(&inferences) as u32,
            mean_duration: Millis(sum(|run| run.duration.0) / count),
            p95_duration: Millis(p95(&durations)),
            cap_exits: runs.iter().filter(|run| run.cap_exit).count() as u32,
        }
    }
}

fn sorted(runs: &[RunFacts], of: fn(&RunFacts) -> u64) -> Vec<u64> {
    let mut values: Vec<u64> = runs.iter().map(of).collect();
    values.sort_unstable();
    values
}

/// Nearest rank.
fn p95(sorted: &[u64]) -> u64 {
    sorted[(sorted.len() * 95).div_ceil(100) - 1]
}

fn permille(part: u64, whole: u64) -> u32 {
    (part * 1000).checked_div(whole).unwrap_or_default() as u32
}
