//! Older contract forms, brought to the current one (EC-MG1, phase 4).
//!
//! | from | to | what changes |
//! |---|---|---|
//! | `0` (V2.1 as published: no `contract_format`) | `1` | ratio becomes per mille; grammar and mask become digests; the fields of V10, V19, V29, V41 and V42 get their defaults; the hash is computed anew |
//!
//! The input is never modified. Fields that the current form does not know are kept beside the contract, not dropped.
//! A newer form is never taken down, an unknown one never guessed. An adapter version is not migrated: a contract for
//! another adapter is another contract, made from [`super::ExecutionContract::to_draft`] and sealed again.

use super::{CONTRACT_FORMAT, ContractDraft, ExecutionContract, ToolPolicy};
use crate::ids::Digest;
use crate::value::{Map, Value};

/// A contract in the current form.
#[derive(Clone, Debug, PartialEq)]
pub struct Migrated {
    /// The contract, with a hash that fits it.
    pub contract: Value,
    /// What the current form does not hold: unknown fields, the grammar's text, the old hash as `migrated_from_hash`.
    pub extra: Map,
    /// The form it came in.
    pub from: String,
}

/// Fields that only the old form has.
const OLD_ONLY: [&str; 2] = ["grammar", "logits_mask"];

/// Brings a serialised contract to the current form; one that is current already comes back as it is.
pub fn migrate(contract: &Value) -> Result<Migrated, MigrationError> {
    let fields = contract.as_map().ok_or(MigrationError::NotAnObject)?;
    let from = match fields.get("contract_format") {
        None | Some(Value::Null) => "0",
        Some(format) => format.as_str().ok_or_else(|| MigrationError::Unknown(format.to_string()))?,
    };
    match (from, from.parse::<u32>()) {
        (CONTRACT_FORMAT, _) => {
            Ok(Migrated { contract: contract.clone(), extra: Map::new(), from: CONTRACT_FORMAT.to_owned() })
        }
        ("0", _) => Ok(from_published(fields)),
        (newer, Ok(_)) => Err(MigrationError::Newer(newer.to_owned())),
        (unknown, Err(_)) => Err(MigrationError::Unknown(unknown.to_owned())),
    }
}

fn from_published(old: &Map) -> Migrated {
    // The defaults of every field, to be overlaid by what the old contract says.
    let mut new = match ContractDraft::new(ToolPolicy::Optional, "", "").seal().to_value() {
        Value::Map(map) => map,
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_) => {
            Map::new()
        }
    };
    new.insert("contract_id".into(), Value::Null);
    let mut extra = Map::new();
    for (name, value) in old {
        match (name.as_str(), value) {
            ("contract_format" | "contract_hash", _) => {}
            ("context_budget", Value::Map(budget)) => overlay(&mut new, &mut extra, name, &context_budget(budget)),
            ("tool_output_budget", Value::Map(budget)) => overlay(&mut new, &mut extra, name, budget),
            (known, _) if new.contains_key(known) => {
                new.insert(name.clone(), value.clone());
            }
            (_, _) => {
                extra.insert(name.clone(), value.clone());
            }
        }
    }
    for name in OLD_ONLY {
        if let Some(payload) = extra.get(name).filter(|payload| **payload != Value::Null) {
            new.insert(format!("{name}_sha256"), digest_of(payload).to_hex().into());
        }
    }
    if let Some(hash) = old.get("contract_hash") {
        extra.insert("migrated_from_hash".into(), hash.clone());
    }
    let mut contract = Value::Map(new);
    // A flawed contract keeps its flaw, and a hash that fits it: PRECHECK says what is wrong.
    if let Ok(read) = ExecutionContract::from_value(contract.clone())
        && let Value::Map(map) = &mut contract
    {
        map.insert("contract_hash".into(), read.contract_hash().to_hex().into());
    }
    Migrated { contract, extra, from: "0".to_owned() }
}

/// `force_synthesis_at_ratio` becomes per mille, rounded to the nearest.
fn context_budget(old: &Map) -> Map {
    let mut new = old.clone();
    if let Some(ratio) = new.remove("force_synthesis_at_ratio") {
        let permille = ratio.as_float().map(|ratio| Value::Int((ratio * 1000.0).round() as i64));
        new.insert("force_synthesis_at_permille".into(), permille.unwrap_or(ratio));
    }
    new
}

/// Fields of an inner map over its defaults; unknown ones go to `extra` under the outer name.
fn overlay(new: &mut Map, extra: &mut Map, name: &str, old: &Map) {
    let Some(Value::Map(target)) = new.get_mut(name) else { return };
    let mut unknown = Map::new();
    for (key, value) in old {
        if target.contains_key(key) {
            target.insert(key.clone(), value.clone());
        } else {
            unknown.insert(key.clone(), value.clone());
        }
    }
    if !unknown.is_empty() {
        extra.insert(name.to_owned(), Value::Map(unknown));
    }
}

/// A grammar by its bytes, a mask by its canonical form.
fn digest_of(payload: &Value) -> Digest {
    match payload {
        Value::String(text) => Digest::of_bytes(text.as_bytes()),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => {
            crate::canonical::hash(payload)
        }
    }
}

/// A contract that cannot be brought to the current form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrationError {
    /// Not an object.
    #[error("a contract must be an object")]
    NotAnObject,
    /// Newer than this build.
    #[error(
        "contract format `{0}` is newer than `{CONTRACT_FORMAT}`; contracts are never taken down: use a newer build"
    )]
    Newer(String),
    /// Never heard of.
    #[error("contract format `{0}` is unknown")]
    Unknown(String),
}
