//! The execution contract: everything that bounds a run, frozen and hashed before it starts (EC-4.1, EC-3.B).
//!
//! [`ContractDraft`] is plain data; [`ContractDraft::seal`] consumes it and returns an [`ExecutionContract`] that has no
//! setters. A contract that comes from outside is read by [`ExecutionContract::from_value`], which keeps what was wrong
//! with it, so that PRECHECK can refuse it by name (EC-P1, EC-P2, EC-O12). This module never judges feasibility: that is
//! `kernel::precheck`.

use std::sync::{Arc, OnceLock};

use crate::canonical::{self, Canonical, Writer};
use crate::ids::{ContractId, Digest};
use crate::value::{Map, Value};

pub mod budget;
pub mod delegation;
pub mod factory;
pub mod manifest;
pub mod migration;
mod read;

pub use budget::{Budget, Millis, Remaining, Spent, Tokens};
pub use factory::ContractFactory;
pub use manifest::{ArgumentCheck, ControlTool, Manifest, ManifestTool, ModelProfile};
pub use read::ContractError;

/// The version of the contract's own form; hashed.
pub const CONTRACT_FORMAT: &str = "1";

/// What a run may do with tools (EC-4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolPolicy {
    /// Success needs at least one validated and executed tool call.
    Required,
    /// Tools may be called; prose may end the run.
    Optional,
    /// Any call is a violation.
    Forbidden,
}

impl ToolPolicy {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Required, Self::Optional, Self::Forbidden];

    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
            Self::Forbidden => "forbidden",
        }
    }
}

/// When a run is finished (V42).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionMode {
    /// The model makes no further call.
    OnNoCall,
    /// The model calls a control tool.
    OnDoneTool,
    /// A required tool came back with an ok envelope.
    OnRequiredToolOk,
}

impl CompletionMode {
    /// All three.
    pub const ALL: [Self; 3] = [Self::OnNoCall, Self::OnDoneTool, Self::OnRequiredToolOk];

    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnNoCall => "on_no_call",
            Self::OnDoneTool => "on_done_tool",
            Self::OnRequiredToolOk => "on_required_tool_ok",
        }
    }
}

/// How much of the model's window may be used (V18, V19). All in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextBudget {
    /// The whole window.
    pub context_window: u64,
    /// Kept for instructions.
    pub reserved_system: u64,
    /// Kept for the last, tool-less answer; also its output cap.
    pub reserved_synthesis: u64,
    /// Least room for the loop itself.
    pub minimum_loop_margin: u64,
    /// From this share of the usable window on, the run is closed by synthesis. Per mille, 1..=1000.
    pub force_synthesis_at_permille: u32,
}

/// How much of a tool's output the model sees (V32). The caller's value is never cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutputBudget {
    /// Bytes of one observation, marker included.
    pub max_bytes_per_call: u64,
    /// Stands where the rest was cut.
    pub truncation_marker: Arc<str>,
    /// Must be null in this version (V33).
    pub summarizer_model: Option<Arc<str>>,
}

/// Two tools that must not follow one another (V28).
pub type ForbiddenPair = (Arc<str>, Arc<str>);

/// When a forbidden pair is allowed after all (V29).
///
/// For a pair of one tool with itself, `max_times` counts calls in a row: 2 allows two and refuses the third. For two
/// different tools it counts how often the pair may occur in the run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CycleException {
    /// First tool.
    pub from: Arc<str>,
    /// The tool that follows it.
    pub to: Arc<str>,
    /// See above.
    pub max_times: u32,
}

/// A contract before it is frozen. Public fields; [`ContractDraft::seal`] is the only way on.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractDraft {
    /// The contract of the run that started this one (V40).
    pub parent_contract_hash: Option<Digest>,
    /// What the run may do with tools.
    pub tool_policy: ToolPolicy,
    /// `None`: the whole manifest; empty: no tool (V30).
    pub allowed_tools: Option<Vec<Arc<str>>>,
    /// No recovery, no nudges, tight retries.
    pub strict_mode: bool,
    /// When the run is finished.
    pub completion_mode: CompletionMode,
    /// Model replies, at least 1.
    pub max_inferences: u32,
    /// Model tokens; `None` is unlimited.
    pub max_tokens_consumed: Option<Tokens>,
    /// 0..=3, strict 0..=1 (V9).
    pub max_format_retries: u32,
    /// Nudges and repairs (V10).
    pub max_semantic_retries: u32,
    /// Equal steps that count as no progress, at least 2 (X1).
    pub no_progress_window: u32,
    /// Bound of one inference or one tool call (V20).
    pub step_timeout: Millis,
    /// Bound of the run, PRECHECK to TERMINATE.
    pub total_timeout: Millis,
    /// The model's window.
    pub context_budget: ContextBudget,
    /// What the model sees of tool output.
    pub tool_output_budget: ToolOutputBudget,
    /// Version of the adapter that must read the replies.
    pub adapter_version: Arc<str>,
    /// Profile that must read the replies.
    pub model_profile_id: Arc<str>,
    /// Name of the grammar that constrains decoding.
    pub grammar_profile: Option<Arc<str>>,
    /// Digest of that grammar (V33).
    pub grammar_sha256: Option<Digest>,
    /// Digest of a logits mask (V33).
    pub logits_mask_sha256: Option<Digest>,
    /// Holds text back until a call passed validation (EC-3.F).
    pub token_gate: bool,
    /// Must be false in this version (V33).
    pub speculative_exec: bool,
    /// Forbidden pairs.
    pub cycle_forbid: Vec<ForbiddenPair>,
    /// Exceptions from them.
    pub cycle_exceptions: Vec<CycleException>,
    /// Which rule of the factory chose the policy (EC-CF3). Recorded in the first entry, not hashed here (V1).
    pub policy_rule: Option<Arc<str>>,
}

impl ContractDraft {
    /// A draft with the documented defaults.
    pub fn new(tool_policy: ToolPolicy, adapter_version: impl Into<Arc<str>>, profile: impl Into<Arc<str>>) -> Self {
        Self {
            parent_contract_hash: None,
            tool_policy,
            allowed_tools: None,
            strict_mode: false,
            completion_mode: CompletionMode::OnNoCall,
            max_inferences: 8,
            max_tokens_consumed: None,
            max_format_retries: 1,
            max_semantic_retries: 0,
            no_progress_window: 3,
            step_timeout: Millis(30_000),
            total_timeout: Millis(300_000),
            context_budget: ContextBudget {
                context_window: 8192,
                reserved_system: 512,
                reserved_synthesis: 256,
                minimum_loop_margin: 256,
                force_synthesis_at_permille: 850,
            },
            tool_output_budget: ToolOutputBudget {
                max_bytes_per_call: 32_768,
                truncation_marker: "[TRUNCATED]".into(),
                summarizer_model: None,
            },
            adapter_version: adapter_version.into(),
            model_profile_id: profile.into(),
            grammar_profile: None,
            grammar_sha256: None,
            logits_mask_sha256: None,
            token_gate: false,
            speculative_exec: false,
            cycle_forbid: Vec::new(),
            cycle_exceptions: Vec::new(),
            policy_rule: None,
        }
    }

    /// Freezes and hashes the draft, under a fresh id. Never fails: PRECHECK judges.
    pub fn seal(self) -> ExecutionContract {
        self.seal_as(ContractId::fresh(), None)
    }

    /// As [`Self::seal`], with an id and a creation time (milliseconds since the Unix epoch) from outside.
    pub fn seal_as(mut self, id: ContractId, created_at: Option<Millis>) -> ExecutionContract {
        self.sort_sets();
        let format: Arc<str> = CONTRACT_FORMAT.into();
        let hash = canonical::hash_with(|out| write_preimage(&self, &format, out));
        ExecutionContract {
            terms: self,
            format,
            id: Some(id),
            recorded: Some(hash),
            hash,
            created_at,
            defect: None,
            start: OnceLock::new(),
        }
    }

    /// Sets are sorted and without duplicates (V1).
    fn sort_sets(&mut self) {
        if let Some(tools) = &mut self.allowed_tools {
            tools.sort();
            tools.dedup();
        }
        self.cycle_forbid.sort();
        self.cycle_forbid.dedup();
        self.cycle_exceptions.sort();
        self.cycle_exceptions.dedup();
    }
}

/// A frozen contract. No setters; share it by `Arc`, also between runs.
///
/// Nothing in it can be changed, and none can be made without its hash (EC-3.B, EC-IB2):
///
/// ```compile_fail
/// use cadenza_core::contract::{ContractDraft, ToolPolicy};
///
/// let mut contract = ContractDraft::new(ToolPolicy::Optional, "a1", "stub").seal();
/// contract.terms.max_inferences = 9;
/// ```
///
/// ```compile_fail
/// use cadenza_core::contract::{ContractDraft, CycleException, ToolPolicy};
///
/// let contract = ContractDraft::new(ToolPolicy::Optional, "a1", "stub").seal();
/// contract.cycle_forbid().push(("t".into(), "t".into()));
/// ```
#[derive(Clone, Debug)]
pub struct ExecutionContract {
    terms: ContractDraft,
    format: Arc<str>,
    id: Option<ContractId>,
    /// The hash that came with it; `None` if none came.
    recorded: Option<Digest>,
    /// The hash of what it says.
    hash: Digest,
    created_at: Option<Millis>,
    /// The first thing that is wrong with its form, for a contract from outside, and the contract as it came.
    defect: Option<(Arc<str>, Arc<Map>)>,
    /// H_0 of its transcripts, computed once.
    start: OnceLock<Digest>,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty = $value:expr;)*) => {
        impl ExecutionContract {
            $($(#[$doc])* pub fn $name(&self) -> $kind {
                let get: fn(&Self) -> $kind = $value;
                get(self)
            })*
        }
    };
}

getters! {
    /// What the run may do with tools.
    tool_policy: ToolPolicy = |contract| contract.terms.tool_policy;
    /// Tools in scope; `None` is the whole manifest.
    allowed_tools: Option<&[Arc<str>]> = |contract| contract.terms.allowed_tools.as_deref();
    /// No recovery, no nudges, tight retries.
    strict_mode: bool = |contract| contract.terms.strict_mode;
    /// When the run is finished.
    completion_mode: CompletionMode = |contract| contract.terms.completion_mode;
    /// Equal steps that count as no progress.
    no_progress_window: u32 = |contract| contract.terms.no_progress_window;
    /// The model's window.
    context_budget: &ContextBudget = |contract| &contract.terms.context_budget;
    /// What the model sees of tool output.
    tool_output_budget: &ToolOutputBudget = |contract| &contract.terms.tool_output_budget;
    /// Version of the adapter that must read the replies.
    adapter_version: &Arc<str> = |contract| &contract.terms.adapter_version;
    /// Profile that must read the replies.
    model_profile_id: &Arc<str> = |contract| &contract.terms.model_profile_id;
    /// Name of the grammar that constrains decoding.
    grammar_profile: Option<&Arc<str>> = |contract| contract.terms.grammar_profile.as_ref();
    /// Digest of that grammar.
    grammar_sha256: Option<Digest> = |contract| contract.terms.grammar_sha256;
    /// Digest of a logits mask.
    logits_mask_sha256: Option<Digest> = |contract| contract.terms.logits_mask_sha256;
    /// Holds text back until a call passed validation.
    token_gate: bool = |contract| contract.terms.token_gate;
    /// Must be false in this version.
    speculative_exec: bool = |contract| contract.terms.speculative_exec;
    /// Forbidden pairs, sorted.
    cycle_forbid: &[ForbiddenPair] = |contract| &contract.terms.cycle_forbid;
    /// Exceptions from them, sorted.
    cycle_exceptions: &[CycleException] = |contract| &contract.terms.cycle_exceptions;
    /// Which rule of the factory chose the policy.
    policy_rule: Option<&Arc<str>> = |contract| contract.terms.policy_rule.as_ref();
    /// The contract of the run that started this one.
    parent_contract_hash: Option<Digest> = |contract| contract.terms.parent_contract_hash;
    /// Version of the contract's form.
    contract_format: &str = |contract| &contract.format;
    /// Its id; `None` if it came without one (EC-O12).
    contract_id: Option<ContractId> = |contract| contract.id;
    /// When it was made, in milliseconds since the Unix epoch.
    created_at: Option<Millis> = |contract| contract.created_at;
    /// The hash that came with it: [`Self::contract_hash`] for every contract sealed here.
    recorded_hash: Option<Digest> = |contract| contract.recorded;
    /// Hash of what it says (V1).
    contract_hash: Digest = |contract| contract.hash;
    /// What is wrong with its form; only for a contract from outside.
    defect: Option<&Arc<str>> = |contract| contract.defect.as_ref().map(|(words, _)| words);
    /// All budgets in one piece.
    budget: Budget = |contract| Budget {
        max_inferences: contract.terms.max_inferences,
        max_tokens_consumed: contract.terms.max_tokens_consumed,
        max_format_retries: contract.terms.max_format_retries,
        max_semantic_retries: contract.terms.max_semantic_retries,
        step_timeout: contract.terms.step_timeout,
        total_timeout: contract.terms.total_timeout,
    };
}

impl ExecutionContract {
    /// The terms again as a draft, for a contract that differs from this one.
    pub fn to_draft(&self) -> ContractDraft {
        self.terms.clone()
    }

    /// H_0 of the transcripts of its runs (V2).
    pub fn transcript_start(&self) -> Digest {
        *self.start.get_or_init(|| transcript_start(&self.hash))
    }

    /// The line that is hashed: canonical JSON of `["contract/1", {…}]` (V1).
    pub fn preimage(&self) -> String {
        let mut text = String::new();
        write_preimage(&self.terms, &self.format, &mut Writer::new(&mut text));
        text
    }

    /// The whole contract as data: the hashed fields, `contract_id`, `contract_hash`, `created_at`, `policy_rule`. A flawed
    /// contract from outside comes back as it came.
    pub fn to_value(&self) -> Value {
        if let Some((_, arrived)) = &self.defect {
            return Value::Map((**arrived).clone());
        }
        let mut text = String::new();
        write_terms(&self.terms, &self.format, &mut Writer::new(&mut text));
        // Canonical text is JSON and its integers fit, so reading it back cannot fail.
        let mut value = Value::from_json(&text).map(canonical::decode).unwrap_or_default();
        if let Value::Map(map) = &mut value {
            map.insert("contract_id".into(), self.id.map(|id| id.to_string()).into());
            map.insert("contract_hash".into(), self.recorded.map(|hash| hash.to_hex()).into());
            map.insert("created_at".into(), self.created_at.map(|at| Value::Int(at.0 as i64)).into());
            map.insert("policy_rule".into(), self.terms.policy_rule.as_deref().into());
        }
        value
    }
}

/// H_0 = H(["transcript/1", contract_hash]).
pub(crate) fn transcript_start(contract_hash: &Digest) -> Digest {
    canonical::hash_with(|out| {
        out.list(|list| {
            list.item().str("transcript/1");
            list.item().digest(contract_hash);
        });
    })
}

fn write_preimage(terms: &ContractDraft, format: &str, out: &mut Writer<'_>) {
    out.list(|list| {
        list.item().str("contract/1");
        write_terms(terms, format, list.item());
    });
}

/// Every field but id, hash, creation time and the factory's rule, in canonical order.
fn write_terms(terms: &ContractDraft, format: &str, out: &mut Writer<'_>) {
    out.map(|map| {
        map.field("adapter_version").str(&terms.adapter_version);
        match &terms.allowed_tools {
            None => map.field("allowed_tools").null(),
            Some(tools) => map.field("allowed_tools").list(|list| {
                for tool in tools {
                    list.item().str(tool);
                }
            }),
        }
        map.field("completion_mode").str(terms.completion_mode.as_str());
        map.field("context_budget").map(|map| {
            map.field("context_window").uint(terms.context_budget.context_window);
            map.field("force_synthesis_at_permille").uint(u64::from(terms.context_budget.force_synthesis_at_permille));
            map.field("minimum_loop_margin").uint(terms.context_budget.minimum_loop_margin);
            map.field("reserved_synthesis").uint(terms.context_budget.reserved_synthesis);
            map.field("reserved_system").uint(terms.context_budget.reserved_system);
        });
        map.field("contract_format").str(format);
        map.field("cycle_exceptions").list(|list| {
            for exception in &terms.cycle_exceptions {
                list.item().list(|list| {
                    list.item().str(&exception.from);
                    list.item().str(&exception.to);
                    list.item().uint(u64::from(exception.max_times));
                });
            }
        });
        map.field("cycle_forbid").list(|list| {
            for (from, to) in &terms.cycle_forbid {
                list.item().list(|list| {
                    list.item().str(from);
                    list.item().str(to);
                });
            }
        });
        map.field("grammar_profile").option(terms.grammar_profile.as_deref());
        map.field("grammar_sha256").option(terms.grammar_sha256.as_ref());
        map.field("logits_mask_sha256").option(terms.logits_mask_sha256.as_ref());
        map.field("max_format_retries").uint(u64::from(terms.max_format_retries));
        map.field("max_inferences").uint(u64::from(terms.max_inferences));
        map.field("max_semantic_retries").uint(u64::from(terms.max_semantic_retries));
        map.field("max_tokens_consumed").option(terms.max_tokens_consumed.map(|tokens| tokens.0));
        map.field("model_profile_id").str(&terms.model_profile_id);
        map.field("no_progress_window").uint(u64::from(terms.no_progress_window));
        map.field("parent_contract_hash").option(terms.parent_contract_hash.as_ref());
        map.field("speculative_exec").bool(terms.speculative_exec);
        map.field("step_timeout_ms").uint(terms.step_timeout.0);
        map.field("strict_mode").bool(terms.strict_mode);
        map.field("token_gate").bool(terms.token_gate);
        map.field("tool_output_budget").map(|map| {
            map.field("max_bytes_per_call").uint(terms.tool_output_budget.max_bytes_per_call);
            map.field("summarizer_model").option(terms.tool_output_budget.summarizer_model.as_deref());
            map.field("truncation_marker").str(&terms.tool_output_budget.truncation_marker);
        });
        map.field("tool_policy").str(terms.tool_policy.as_str());
        map.field("total_timeout_ms").uint(terms.total_timeout.0);
    });
}

/// The hash of a contract from outside that has a flaw: of its own fields, sets sorted, whatever they are.
fn hash_of_fields(fields: &Map) -> Digest {
    canonical::hash_with(|out| {
        out.list(|list| {
            list.item().str("contract/1");
            fields.write(list.item());
        });
    })
}
