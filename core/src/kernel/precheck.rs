//! PRECHECK: is this contract feasible here? (EC-P1 to EC-P6, in that order; the first failing check is the reason. What
//! is left of a delegation budget comes right after provenance.)
//!
//! Looks at the contract and at what exists; asks nobody. The backend's readiness comes as an input.

use super::Environment;
use crate::contract::{CONTRACT_FORMAT, ExecutionContract, ToolPolicy};
use crate::outcome::Reason;

/// Why a run may not start.
pub(super) type Refusal = (Reason, String);

/// `None` when only the backend is left to ask.
pub(super) fn check(contract: &ExecutionContract, environment: &Environment) -> Option<Refusal> {
    provenance(contract)
        .or_else(|| delegation(contract, environment))
        .or_else(|| structure(contract))
        .or_else(|| unsupported(contract))
        .or_else(|| tools(contract, environment))
        .or_else(|| profile(contract, environment))
        .or_else(|| version(contract, environment))
        .or_else(|| context(contract))
}

/// EC-P1, EC-O12, V36.
fn provenance(contract: &ExecutionContract) -> Option<Refusal> {
    let missing = if contract.contract_id().is_none() {
        "contract_id"
    } else if contract.recorded_hash().is_none() {
        "contract_hash"
    } else if contract.model_profile_id().is_empty() {
        "model_profile_id"
    } else if contract.recorded_hash() != Some(contract.contract_hash()) {
        let words = format!("the contract's hash is not the hash of its content, {}", contract.contract_hash());
        return Some((Reason::HashMismatch, words));
    } else {
        return None;
    };
    Some((Reason::Provenance, format!("the contract has no valid `{missing}`")))
}

/// AC-15, V40: depth, number of calls, or what the parent has left.
fn delegation(contract: &ExecutionContract, environment: &Environment) -> Option<Refusal> {
    if let Some(words) = &environment.refusal {
        return Some((Reason::DelegationBudget, words.to_string()));
    }
    let budget = contract.budget();
    let nothing_left = budget.total_timeout.0 == 0 || budget.max_tokens_consumed.is_some_and(|tokens| tokens.0 == 0);
    (contract.parent_contract_hash().is_some() && nothing_left).then(|| {
        let words = "the run that started this one has no time or no tokens left for it";
        (Reason::DelegationBudget, words.to_owned())
    })
}

/// EC-P2a to EC-P2f.
fn structure(contract: &ExecutionContract) -> Option<Refusal> {
    if let Some(defect) = contract.defect() {
        return Some((Reason::Structure, defect.to_string()));
    }
    let budget = contract.budget();
    let most_retries = if contract.strict_mode() { 1 } else { 3 };
    let permille = contract.context_budget().force_synthesis_at_permille;
    let output = contract.tool_output_budget();
    let flaw = if budget.max_inferences == 0 {
        "`max_inferences` must be at least 1".to_owned()
    } else if budget.max_format_retries > most_retries {
        format!("`max_format_retries` must be 0 to {most_retries}, not {}", budget.max_format_retries)
    } else if budget.step_timeout.0 == 0 || budget.total_timeout.0 == 0 {
        "`step_timeout_ms` and `total_timeout_ms` must be at least 1".to_owned()
    } else if budget.max_tokens_consumed.is_some_and(|tokens| tokens.0 == 0) {
        "`max_tokens_consumed` must be at least 1, or null for unlimited".to_owned()
    } else if !(1..=1000).contains(&permille) {
        format!("`force_synthesis_at_permille` must be 1 to 1000, not {permille}")
    } else if contract.no_progress_window() < 2 {
        "`no_progress_window` must be at least 2".to_owned()
    } else if output.max_bytes_per_call < output.truncation_marker.len() as u64 {
        let marker = output.truncation_marker.len();
        format!("`max_bytes_per_call` must hold the truncation marker of {marker} bytes")
    } else {
        return None;
    };
    Some((Reason::Structure, flaw))
}

/// EC-P2g, V33.
fn unsupported(contract: &ExecutionContract) -> Option<Refusal> {
    let option = if contract.speculative_exec() {
        "speculative_exec"
    } else if contract.tool_output_budget().summarizer_model.is_some() {
        "summarizer_model"
    } else {
        return None;
    };
    Some((Reason::Unsupported, format!("`{option}` is not supported by this version")))
}

/// EC-P3a to EC-P3c, V30.
fn tools(contract: &ExecutionContract, environment: &Environment) -> Option<Refusal> {
    let manifest = &environment.manifest;
    let allowed = contract.allowed_tools();
    if let Some(unknown) = allowed.unwrap_or_default().iter().find(|name| manifest.get(name).is_none()) {
        return Some((Reason::Tools, format!("`allowed_tools` names `{unknown}`, which does not exist")));
    }
    match contract.tool_policy() {
        ToolPolicy::Required => {
            let usable = manifest
                .tools()
                .any(|tool| tool.control.is_none() && allowed.is_none_or(|names| names.contains(&tool.name)));
            (!usable).then(|| (Reason::Tools, "a tool is required, but none is allowed".to_owned()))
        }
        ToolPolicy::Forbidden if allowed.is_some_and(|names| !names.is_empty()) => {
            Some((Reason::Tools, "tools are forbidden, but `allowed_tools` lists some".to_owned()))
        }
        ToolPolicy::Forbidden | ToolPolicy::Optional => None,
    }
}

/// EC-P4a, EC-P4b, V24, V33.
fn profile(contract: &ExecutionContract, environment: &Environment) -> Option<Refusal> {
    let id = contract.model_profile_id();
    let Some(profile) = environment.profiles.iter().find(|profile| profile.id == *id) else {
        return Some((Reason::Profile, format!("the model profile `{id}` is unknown")));
    };
    let required = contract.tool_policy() == ToolPolicy::Required;
    let wants_grammar = contract.grammar_profile().is_some() || contract.grammar_sha256().is_some();
    let flaw = if required && !profile.calls {
        format!("a tool is required, but the profile `{id}` has no calls")
    } else if wants_grammar && !profile.grammar {
        format!("the profile `{id}` cannot apply a grammar")
    } else if contract.logits_mask_sha256().is_some() && !profile.logits_mask {
        format!("the profile `{id}` cannot apply a logits mask")
    } else if required && contract.strict_mode() && !contract.token_gate() {
        "a strict contract that requires a tool needs `token_gate`".to_owned()
    } else {
        return None;
    };
    Some((Reason::Profile, flaw))
}

/// EC-P4c.
fn version(contract: &ExecutionContract, environment: &Environment) -> Option<Refusal> {
    let format = contract.contract_format();
    let adapter = contract.adapter_version();
    if format != CONTRACT_FORMAT {
        return Some((Reason::Version, format!("contract format `{format}` is not `{CONTRACT_FORMAT}`")));
    }
    if *adapter != environment.adapter_version {
        let here = &environment.adapter_version;
        return Some((Reason::Version, format!("the contract wants adapter `{adapter}`; this is `{here}`")));
    }
    None
}

/// EC-P5, V19.
fn context(contract: &ExecutionContract) -> Option<Refusal> {
    let budget = contract.context_budget();
    let needed =
        budget.reserved_system.saturating_add(budget.reserved_synthesis).saturating_add(budget.minimum_loop_margin);
    (needed > budget.context_window).then(|| {
        let words = format!(
            "the reserves need {needed} tokens, but the window has {}; use a larger window or smaller reserves",
            budget.context_window
        );
        (Reason::Context, words)
    })
}
