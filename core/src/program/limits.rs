//! One vocabulary of limits for every program language. Defaults are the measured ones of design/engines.md.

use std::time::{Duration, Instant};

use crate::cancel::CancelToken;

/// What one program may use. Limits are enforced by the executor; budgets of a whole trace live in the contract.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Safepoints of the interpreter (loop edges, calls, pattern steps): the deterministic limit.
    pub max_instructions: u64,
    /// CPU time of the program itself, without the host calls it waits for.
    pub cpu_time: Duration,
    /// Heap of the interpreter, in bytes.
    pub max_memory_bytes: usize,
    /// Source text, in bytes; compiling is outside the other limits.
    pub max_source_bytes: usize,
    /// A result or one host argument, as JSON-like bytes.
    pub max_value_bytes: usize,
    /// A result or one host argument, in nodes.
    pub max_value_nodes: usize,
    /// Nesting of a result or one host argument.
    pub max_value_depth: usize,
    /// Depth of the program's own calls. An executor whose calls use the native stack may allow fewer.
    pub max_call_depth: usize,
    /// Captured `print` output, in bytes; the rest is dropped.
    pub max_output_bytes: usize,
    /// Text of one error, in bytes; the rest is cut.
    pub max_error_bytes: usize,
    /// Calls to the host: agents, tools, context of other agents.
    pub max_host_calls: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_instructions: 100_000_000,
            cpu_time: Duration::from_secs(1),
            max_memory_bytes: 64 << 20,
            max_source_bytes: 64 << 10,
            max_value_bytes: 1 << 20,
            max_value_nodes: 100_000,
            max_value_depth: 64,
            max_call_depth: 1_000,
            max_output_bytes: 64 << 10,
            max_error_bytes: 4 << 10,
            max_host_calls: 1_000,
        }
    }
}

/// The bounds of one execution: the limits, the trace's wall deadline, and the way to stop it.
#[derive(Clone, Debug)]
pub struct Bounds<'a> {
    /// Limits of this program.
    pub limits: &'a Limits,
    /// When the call must be over, host calls included; the executor ends the program within a few milliseconds of it.
    pub deadline: Option<Instant>,
    /// Watched at safepoints (`is_cancelled`) and ticked every few milliseconds (`tick`).
    pub cancel: &'a CancelToken,
}
