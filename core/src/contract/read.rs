//! Reading contracts that come from outside: storage, another process, a scenario.
//!
//! Reading never trusts: unknown fields, wrong types and numbers out of range are kept as the contract's defect, and the
//! hash is recomputed over what really arrived. Such a contract can be started, and PRECHECK refuses it by name.

use std::sync::{Arc, OnceLock};

use super::*;

/// Text that is not a contract at all.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    /// Not JSON.
    #[error("a contract must be JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON, but no object.
    #[error("a contract must be an object, not {0}")]
    NotAnObject(&'static str),
}

impl ExecutionContract {
    /// Reads a contract from JSON text; see [`Self::from_value`].
    pub fn from_json(text: &str) -> Result<Self, ContractError> {
        Self::from_value(Value::from_json(text)?)
    }

    /// Reads a contract. What is wrong with its form is kept for PRECHECK; only a value that is no object is refused here.
    pub fn from_value(value: Value) -> Result<Self, ContractError> {
        let Value::Map(mut fields) = value else {
            return Err(ContractError::NotAnObject(value.type_name()));
        };
        let arrived = fields.clone();
        let mut reader = Reader { defect: None };
        let id = reader.provenance(&mut fields, "contract_id", ContractId::parse);
        let recorded = reader.provenance(&mut fields, "contract_hash", Digest::parse);
        let created_at = fields.remove("created_at").and_then(|at| at.as_int()).and_then(|at| u64::try_from(at).ok());
        let policy_rule = fields.remove("policy_rule").and_then(|rule| rule.as_str().map(Arc::from));
        let (mut terms, format) = reader.terms(&fields);
        terms.policy_rule = policy_rule;
        terms.sort_sets();
        let hash = match reader.defect {
            None => canonical::hash_with(|out| write_preimage(&terms, &format, out)),
            Some(_) => hash_of_fields(&fields),
        };
        Ok(Self {
            terms,
            format,
            id,
            recorded,
            hash,
            created_at: created_at.map(Millis),
            defect: reader.defect.map(|words| (words.into(), Arc::new(arrived))),
            start: OnceLock::new(),
        })
    }
}

/// Reads fields one by one and remembers the first flaw.
struct Reader {
    defect: Option<String>,
}

impl Reader {
    fn flaw(&mut self, words: String) {
        self.defect.get_or_insert(words);
    }

    /// An optional piece of provenance: missing and null are the same, and PRECHECK says so.
    fn provenance<T>(&mut self, fields: &mut Map, name: &str, parse: fn(&str) -> Option<T>) -> Option<T> {
        fields.remove(name).and_then(|value| value.as_str().and_then(parse))
    }

    fn terms(&mut self, fields: &Map) -> (ContractDraft, Arc<str>) {
        const KNOWN: [&str; 24] = [
            "adapter_version",
            "allowed_tools",
            "completion_mode",
            "context_budget",
            "contract_format",
            "cycle_exceptions",
            "cycle_forbid",
            "grammar_profile",
            "grammar_sha256",
            "logits_mask_sha256",
            "max_format_retries",
            "max_inferences",
            "max_semantic_retries",
            "max_tokens_consumed",
            "model_profile_id",
            "no_progress_window",
            "parent_contract_hash",
            "speculative_exec",
            "step_timeout_ms",
            "strict_mode",
            "token_gate",
            "tool_output_budget",
            "tool_policy",
            "total_timeout_ms",
        ];
        self.refuse_unknown(fields, &KNOWN, "the contract");
        let mut terms = ContractDraft::new(ToolPolicy::Optional, "", "");
        let format = self.text(fields, "contract_format").unwrap_or_else(|| CONTRACT_FORMAT.into());
        terms.adapter_version = self.text(fields, "adapter_version").unwrap_or_default();
        // A missing profile is a matter of provenance (EC-O12), not of structure.
        terms.model_profile_id = match fields.get("model_profile_id") {
            None | Some(Value::Null) => "".into(),
            Some(_) => self.text(fields, "model_profile_id").unwrap_or_default(),
        };
        terms.tool_policy = self.word(fields, "tool_policy", &ToolPolicy::ALL, ToolPolicy::as_str, terms.tool_policy);
        terms.completion_mode =
            self.word(fields, "completion_mode", &CompletionMode::ALL, CompletionMode::as_str, terms.completion_mode);
        terms.allowed_tools = match fields.get("allowed_tools") {
            Some(Value::Null) => None,
            _ => Some(self.texts(fields, "allowed_tools")),
        };
        terms.strict_mode = self.flag(fields, "strict_mode");
        terms.token_gate = self.flag(fields, "token_gate");
        terms.speculative_exec = self.flag(fields, "speculative_exec");
        terms.max_inferences = self.small(fields, "max_inferences");
        terms.max_format_retries = self.small(fields, "max_format_retries");
        terms.max_semantic_retries = self.small(fields, "max_semantic_retries");
        terms.no_progress_window = self.small(fields, "no_progress_window");
        terms.max_tokens_consumed = match fields.get("max_tokens_consumed") {
            Some(Value::Null) => None,
            _ => Some(Tokens(self.number(fields, "max_tokens_consumed"))),
        };
        terms.step_timeout = Millis(self.number(fields, "step_timeout_ms"));
        terms.total_timeout = Millis(self.number(fields, "total_timeout_ms"));
        terms.grammar_profile = self.optional_text(fields, "grammar_profile");
        terms.grammar_sha256 = self.digest(fields, "grammar_sha256");
        terms.logits_mask_sha256 = self.digest(fields, "logits_mask_sha256");
        terms.parent_contract_hash = self.digest(fields, "parent_contract_hash");
        self.context_budget(fields, &mut terms.context_budget);
        self.tool_output_budget(fields, &mut terms.tool_output_budget);
        self.cycles(fields, &mut terms);
        (terms, format)
    }

    fn context_budget(&mut self, fields: &Map, budget: &mut ContextBudget) {
        let Some(map) = self.map(fields, "context_budget") else { return };
        const KNOWN: [&str; 5] = [
            "context_window",
            "force_synthesis_at_permille",
            "minimum_loop_margin",
            "reserved_synthesis",
            "reserved_system",
        ];
        self.refuse_unknown(map, &KNOWN, "`context_budget`");
        budget.context_window = self.number(map, "context_window");
        budget.reserved_system = self.number(map, "reserved_system");
        budget.reserved_synthesis = self.number(map, "reserved_synthesis");
        budget.minimum_loop_margin = self.number(map, "minimum_loop_margin");
        budget.force_synthesis_at_permille = self.small(map, "force_synthesis_at_permille");
    }

    fn tool_output_budget(&mut self, fields: &Map, budget: &mut ToolOutputBudget) {
        let Some(map) = self.map(fields, "tool_output_budget") else { return };
        self.refuse_unknown(
            map,
            &["max_bytes_per_call", "summarizer_model", "truncation_marker"],
            "`tool_output_budget`",
        );
        budget.max_bytes_per_call = self.number(map, "max_bytes_per_call");
        budget.truncation_marker = self.text(map, "truncation_marker").unwrap_or_default();
        budget.summarizer_model = self.optional_text(map, "summarizer_model");
    }

    fn cycles(&mut self, fields: &Map, terms: &mut ContractDraft) {
        for pair in self.list(fields, "cycle_forbid") {
            match pair.as_list() {
                Some([Value::String(from), Value::String(to)]) => {
                    terms.cycle_forbid.push((from.as_str().into(), to.as_str().into()));
                }
                _ => self.flaw("`cycle_forbid` must hold pairs of tool names".into()),
            }
        }
        for exception in self.list(fields, "cycle_exceptions") {
            match exception.as_list() {
                Some([Value::String(from), Value::String(to), Value::Int(times)]) if u32::try_from(*times).is_ok() => {
                    let max_times = *times as u32;
                    terms.cycle_exceptions.push(CycleException {
                        from: from.as_str().into(),
                        to: to.as_str().into(),
                        max_times,
                    });
                }
                _ => self.flaw("`cycle_exceptions` must hold `[from, to, max_times]`".into()),
            }
        }
    }

    fn refuse_unknown(&mut self, fields: &Map, known: &[&str], place: &str) {
        if let Some(key) = fields.keys().find(|key| !known.contains(&key.as_str())) {
            self.flaw(format!("{place} has an unknown field `{key}`"));
        }
    }

    fn text(&mut self, fields: &Map, name: &str) -> Option<Arc<str>> {
        let text = fields.get(name).and_then(Value::as_str).map(Arc::from);
        if text.is_none() {
            self.flaw(format!("`{name}` must be text"));
        }
        text
    }

    fn optional_text(&mut self, fields: &Map, name: &str) -> Option<Arc<str>> {
        match fields.get(name) {
            Some(Value::Null) => None,
            _ => self.text(fields, name),
        }
    }

    fn digest(&mut self, fields: &Map, name: &str) -> Option<Digest> {
        let digest = Digest::parse(&self.optional_text(fields, name)?);
        if digest.is_none() {
            self.flaw(format!("`{name}` must be 64 hexadecimal digits or null"));
        }
        digest
    }

    fn flag(&mut self, fields: &Map, name: &str) -> bool {
        let flag = fields.get(name).and_then(Value::as_bool);
        if flag.is_none() {
            self.flaw(format!("`{name}` must be true or false"));
        }
        flag.unwrap_or_default()
    }

    fn number(&mut self, fields: &Map, name: &str) -> u64 {
        match fields.get(name) {
            Some(Value::Int(number)) if *number >= 0 => *number as u64,
            Some(other) => {
                self.flaw(format!("`{name}` must be a whole number from 0 on, not {other}"));
                0
            }
            None => {
                self.flaw(format!("`{name}` is missing"));
                0
            }
        }
    }

    fn small(&mut self, fields: &Map, name: &str) -> u32 {
        u32::try_from(self.number(fields, name)).unwrap_or_else(|_| {
            self.flaw(format!("`{name}` is too large"));
            0
        })
    }

    fn word<T: Copy>(&mut self, fields: &Map, name: &str, all: &[T], spell: fn(T) -> &'static str, default: T) -> T {
        let found = fields
            .get(name)
            .and_then(Value::as_str)
            .and_then(|text| all.iter().copied().find(|word| spell(*word) == text));
        found.unwrap_or_else(|| {
            let words: Vec<_> = all.iter().map(|word| spell(*word)).collect();
            self.flaw(format!("`{name}` must be one of {}", words.join(", ")));
            default
        })
    }

    fn map<'m>(&mut self, fields: &'m Map, name: &str) -> Option<&'m Map> {
        let map = fields.get(name).and_then(Value::as_map);
        if map.is_none() {
            self.flaw(format!("`{name}` must be an object"));
        }
        map
    }

    fn list<'m>(&mut self, fields: &'m Map, name: &str) -> &'m [Value] {
        let list = fields.get(name).and_then(Value::as_list);
        if list.is_none() {
            self.flaw(format!("`{name}` must be a list"));
        }
        list.unwrap_or_default()
    }

    fn texts(&mut self, fields: &Map, name: &str) -> Vec<Arc<str>> {
        let list = self.list(fields, name);
        let texts: Vec<Arc<str>> = list.iter().filter_map(Value::as_str).map(Arc::from).collect();
        if texts.len() != list.len() {
            self.flaw(format!("`{name}` must hold text"));
        }
        texts
    }
}
