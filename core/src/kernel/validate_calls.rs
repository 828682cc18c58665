//! VALIDATE_CALLS: may these calls run? The whole batch is judged before its first call runs (V28).
//!
//! Order: forbidden, out of scope, unknown tool or arguments, cycle. Takes facts, returns verdicts; runs nothing.

use std::sync::Arc;

use crate::contract::{CompletionMode, ControlTool, ExecutionContract, Manifest, ToolPolicy};
use crate::outcome::Reason;
use crate::value::Map;

/// A call as it was asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub name: Arc<str>,
    pub arguments: Arc<Map>,
}

/// What becomes of one call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fate {
    /// It runs.
    Run,
    /// It is a control tool: the kernel takes it.
    Control(ControlTool),
    /// It does not run; the model is told why.
    Invalid(String),
}

/// The judgement of a batch: one fate per call, or the violation that stops them all.
pub(super) type Judgement = Result<Vec<Fate>, Violation>;

/// A broken contract (3a).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Violation {
    pub index: usize,
    pub reason: Reason,
    pub detail: String,
}

/// Which authorised call came last, and how often pairs with an exception occurred (V28, V29).
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    last: Option<Arc<str>>,
    /// Calls of `last` in a row.
    in_a_row: u32,
    /// One counter per exception of the contract.
    occurred: Vec<u32>,
}

pub(super) fn judge(
    contract: &ExecutionContract,
    manifest: &Manifest,
    sequence: &mut Sequence,
    batch: &[Asked],
) -> Judgement {
    for (index, call) in batch.iter().enumerate() {
        if contract.tool_policy() == ToolPolicy::Forbidden {
            let detail = format!("`{}` was called, but tools are forbidden", call.name);
            return Err(Violation { index, reason: Reason::ForbiddenCall, detail });
        }
        if !in_scope(contract, manifest, &call.name) {
            let detail = format!("`{}` exists, but this contract does not allow it", call.name);
            return Err(Violation { index, reason: Reason::OutOfScope, detail });
        }
    }
    let fates: Vec<Fate> = batch.iter().map(|call| fate(manifest, call)).collect();
    for (index, call) in batch.iter().enumerate() {
        if fates[index] == Fate::Run && !sequence.allows(contract, &call.name) {
            let detail = format!("`{}` must not follow `{}`", call.name, sequence.last.as_deref().unwrap_or_default());
            return Err(Violation { index, reason: Reason::CycleForbid, detail });
        }
    }
    Ok(fates)
}

/// A name that does not exist is not out of scope: it is invalid (V31). Control tools belong to `on_done_tool` (KC-CF1).
fn in_scope(contract: &ExecutionContract, manifest: &Manifest, name: &Arc<str>) -> bool {
    let Some(allowed) = contract.allowed_tools() else { return true };
    match manifest.get(name) {
        None => true,
        Some(tool) if tool.control.is_some() && contract.completion_mode() == CompletionMode::OnDoneTool => true,
        Some(_) => allowed.contains(name),
    }
}

fn fate(manifest: &Manifest, call: &Asked) -> Fate {
    let Some(tool) = manifest.get(&call.name) else {
        return Fate::Invalid(format!("there is no tool `{}`", call.name));
    };
    match (tool.arguments.check(&call.arguments), tool.control) {
        (Err(words), _) => Fate::Invalid(words),
        (Ok(()), Some(control)) => Fate::Control(control),
        (Ok(()), None) => Fate::Run,
    }
}

impl Sequence {
    /// Takes the next authorised call in, if the cycle rules allow it.
    fn allows(&mut self, contract: &ExecutionContract, name: &Arc<str>) -> bool {
        let exceptions = contract.cycle_exceptions();
        let in_a_row = if self.last.as_ref() == Some(name) { self.in_a_row + 1 } else { 1 };
        if let Some(last) = &self.last
            && contract.cycle_forbid().iter().any(|(from, to)| from == last && to == name)
        {
            let Some(index) = exceptions.iter().position(|rule| rule.from == *last && rule.to == *name) else {
                return false;
            };
            self.occurred.resize(exceptions.len(), 0);
            self.occurred[index] += 1;
            let times = if last == name { in_a_row } else { self.occurred[index] };
            if times > exceptions[index].max_times {
                return false;
            }
        }
        self.in_a_row = in_a_row;
        self.last = Some(name.clone());
        true
    }
}
