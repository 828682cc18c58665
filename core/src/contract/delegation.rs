//! The delegation contract: what a caller expects of an agent, beyond the call itself.
//!
//! It is part of an agent's settings, belongs to that one delegation (delegates do not inherit it), and is checked on
//! every ok outcome: `deliverable` by JSON Schema, `acceptance` by expressions of the program language. Prose goes to
//! the prompt. Nothing here runs anything; the agent does.

use std::fmt;
use std::sync::Arc;

use crate::canonical;
use crate::ids::Digest;
use crate::schema::Schema;
use crate::value::{Map, Value};

/// How an agent's delegation contract was given; logged as `contract_source`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContractSource {
    /// There is none.
    #[default]
    None,
    /// As one map, `delegation_contract={...}`.
    Hash,
    /// As single options, `purpose=...`.
    Fields,
    /// Both; single options won per field.
    Merged,
}

impl ContractSource {
    /// The spelling in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Hash => "hash",
            Self::Fields => "fields",
            Self::Merged => "merged",
        }
    }
}

/// One acceptance item.
#[derive(Clone, Debug, PartialEq)]
pub enum Acceptance {
    /// Told to the model, not checked.
    Prose(String),
    /// An expression of the program language over `value`, `args`, `kwargs`, `context`; must be true.
    Assert(String),
}

/// What happens when a call of the agent ends in an error.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum FailurePolicy {
    /// The error is the outcome.
    #[default]
    ReturnError,
    /// The same call is made once on a delegate with this role; its outcome is the outcome.
    Fallback {
        /// Role of the delegate.
        role: Arc<str>,
    },
}

/// The delegation contract of one agent. Immutable; its fingerprint is part of the reuse key.
pub struct DelegationContract {
    purpose: Option<String>,
    deliverable: Option<Schema>,
    acceptance: Vec<Acceptance>,
    failure_policy: FailurePolicy,
    intent_signature: Option<String>,
    source: ContractSource,
    fields: Map,
    fingerprint: Digest,
}

/// The field names, as options and as keys of `delegation_contract`.
pub const FIELDS: [&str; 5] = ["purpose", "deliverable", "acceptance", "failure_policy", "intent_signature"];

/// Why a delegation contract is refused, with the field and what to write instead.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct ContractFieldError {
    /// The option.
    pub field: &'static str,
    /// What is wrong and what to write.
    pub message: String,
}

impl DelegationContract {
    /// Reads the five fields from a map of exactly those keys.
    pub fn from_map(fields: &Map, source: ContractSource) -> Result<Self, ContractFieldError> {
        let deliverable = fields.get("deliverable").filter(|value| **value != Value::Null);
        let deliverable = deliverable.map(compile_schema).transpose()?;
        Ok(Self {
            purpose: text(fields, "purpose")?,
            intent_signature: text(fields, "intent_signature")?,
            acceptance: acceptance(fields.get("acceptance"))?,
            failure_policy: failure_policy(fields.get("failure_policy"))?,
            deliverable,
            source,
            fields: fields.clone(),
            fingerprint: canonical::hash(&Value::Map(fields.clone())),
        })
    }

    /// What the agent is for.
    pub fn purpose(&self) -> Option<&str> {
        self.purpose.as_deref()
    }

    /// JSON Schema of the value.
    pub fn deliverable(&self) -> Option<&Value> {
        self.deliverable.as_ref().map(Schema::source)
    }

    /// Acceptance items, in order.
    pub fn acceptance(&self) -> &[Acceptance] {
        &self.acceptance
    }

    /// What happens on an error.
    pub fn failure_policy(&self) -> &FailurePolicy {
        &self.failure_policy
    }

    /// A caller's short name for the intent; told to the model and part of the fingerprint.
    pub fn intent_signature(&self) -> Option<&str> {
        self.intent_signature.as_deref()
    }

    /// How it was given.
    pub fn source(&self) -> ContractSource {
        self.source
    }

    /// The fields that were given: [`DelegationContract::from_map`] reads them back.
    pub fn fields(&self) -> &Map {
        &self.fields
    }

    /// Equal for equal contracts.
    pub fn fingerprint(&self) -> Digest {
        self.fingerprint
    }

    /// Checks a value against `deliverable`. The error names the place and the reason.
    pub fn check_deliverable(&self, value: &Value) -> Result<(), String> {
        let Some(schema) = &self.deliverable else { return Ok(()) };
        schema.check(value).map_err(|misfit| {
            let place = misfit.place.replace('/', ".");
            format!("the value does not fit the declared deliverable at `${place}`: {}", misfit.reason)
        })
    }

    /// Makes each empty table of a Lua program's value the list that `deliverable` wants.
    pub fn settle_empty_tables(&self, value: &mut Value) {
        if let Some(schema) = &self.deliverable {
            schema.settle_empty_tables(value);
        }
    }
}

impl Default for DelegationContract {
    fn default() -> Self {
        Self {
            purpose: None,
            deliverable: None,
            acceptance: Vec::new(),
            failure_policy: FailurePolicy::ReturnError,
            intent_signature: None,
            source: ContractSource::None,
            fields: Map::new(),
            fingerprint: canonical::hash(&Value::Map(Map::new())),
        }
    }
}

impl fmt::Debug for DelegationContract {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DelegationContract")
            .field("purpose", &self.purpose)
            .field("deliverable", &self.deliverable)
            .field("acceptance", &self.acceptance)
            .field("failure_policy", &self.failure_policy)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

fn text(fields: &Map, field: &'static str) -> Result<Option<String>, ContractFieldError> {
    match fields.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => {
            Err(ContractFieldError { field, message: format!("expected text, got a {}", other.type_name()) })
        }
    }
}

fn compile_schema(schema: &Value) -> Result<Schema, ContractFieldError> {
    let refused = |message: String| ContractFieldError { field: "deliverable", message };
    if !matches!(schema, Value::Map(_) | Value::Bool(_)) {
        return Err(refused(format!("expected a JSON Schema as a map, got a {}", schema.type_name())));
    }
    Schema::compile(schema).map_err(|error| refused(format!("not a JSON Schema: {error}")))
}

fn acceptance(value: Option<&Value>) -> Result<Vec<Acceptance>, ContractFieldError> {
    let refused = |message: String| ContractFieldError { field: "acceptance", message };
    let items = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::List(items)) => items.as_slice(),
        Some(other) => {
            return Err(refused(format!(
                "expected a list of texts and {{assert: \"...\"}}, got a {}",
                other.type_name()
            )));
        }
    };
    items
        .iter()
        .map(|item| match item {
            Value::String(prose) => Ok(Acceptance::Prose(prose.clone())),
            Value::Map(map) => match map.get("assert") {
                Some(Value::String(expression)) if map.len() == 1 => Ok(Acceptance::Assert(expression.clone())),
                _ => {
                    Err(refused("an item is text, or a map with the one key `assert` that holds an expression".into()))
                }
            },
            other => Err(refused(format!("an item is text or {{assert: ...}}, got a {}", other.type_name()))),
        })
        .collect()
}

fn failure_policy(value: Option<&Value>) -> Result<FailurePolicy, ContractFieldError> {
    let refused = |message: &str| ContractFieldError { field: "failure_policy", message: message.into() };
    const FORM: &str = "expected {on_error: \"return_error\"} or {on_error: \"fallback\", fallback_role: \"...\"}";
    let map = match value {
        None | Some(Value::Null) => return Ok(FailurePolicy::ReturnError),
        Some(Value::Map(map)) => map,
        Some(_) => return Err(refused(FORM)),
    };
    if map.keys().any(|key| key != "on_error" && key != "fallback_role") {
        return Err(refused(FORM));
    }
    match (map.get("on_error").and_then(Value::as_str), map.get("fallback_role").and_then(Value::as_str)) {
        (Some("return_error"), None) => Ok(FailurePolicy::ReturnError),
        (Some("fallback"), Some(role)) if !role.trim().is_empty() => Ok(FailurePolicy::Fallback { role: role.into() }),
        _ => Err(refused(FORM)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contract(json: &str) -> Result<DelegationContract, ContractFieldError> {
        let Value::Map(fields) = Value::from_json(json).unwrap() else { panic!("a map") };
        DelegationContract::from_map(&fields, ContractSource::Fields)
    }

    #[test]
    fn ac_16_a_value_outside_the_deliverable_is_named_with_its_place() {
        let contract = contract(r#"{"deliverable":{"type":"object","properties":{"n":{"type":"integer"}}}}"#).unwrap();
        let good = Value::from_json(r#"{"n":1}"#).unwrap();
        let bad = Value::from_json(r#"{"n":"x"}"#).unwrap();
        assert_eq!(contract.check_deliverable(&good), Ok(()));
        assert!(contract.check_deliverable(&bad).unwrap_err().contains("`$.n`"));
    }

    #[test]
    fn malformed_fields_say_what_to_write() {
        for (json, expected) in [
            (r#"{"purpose":1}"#, "purpose: expected text, got a number"),
            (r#"{"acceptance":"short"}"#, "acceptance: expected a list of texts and {assert: \"...\"}, got a string"),
            (r#"{"acceptance":[1]}"#, "acceptance: an item is text or {assert: ...}, got a number"),
            (r#"{"deliverable":"x"}"#, "deliverable: expected a JSON Schema as a map, got a string"),
        ] {
            assert_eq!(contract(json).unwrap_err().to_string(), expected);
        }
        assert!(
            contract(r#"{"failure_policy":{"on_error":"shrug"}}"#).unwrap_err().message.starts_with("expected {on_")
        );
    }
}
