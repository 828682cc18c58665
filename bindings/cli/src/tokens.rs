//! Tokens of prompts, section by section, where this build can count them (feature `tokens`).
//!
//! Counted when somebody looks, never while a call runs. Exact for OpenAI's models since GPT-4o, an estimate for all others.

use cadenza_core::prompt::{SECTIONS, sections};
use cadenza_core::value::{Map, Value};

/// Tokens of the sections of a prompt, in the order of [`SECTIONS`], those that are not there left out. Empty without a
/// prompt, and in a build without `tokens`.
pub fn of_prompt(system: &str, user: &str) -> Vec<(&'static str, usize)> {
    let mut counts = [0; SECTIONS.len()];
    for section in sections(system, user) {
        let Some(tokens) = count(section.text) else { return Vec::new() };
        // Every section has one of these names.
        if let Some(index) = SECTIONS.iter().position(|name| *name == section.name) {
            counts[index] += tokens;
        }
    }
    SECTIONS.into_iter().zip(counts).filter(|(_, tokens)| *tokens > 0).collect()
}

/// The sections by name, and their `total`.
pub fn to_map(tokens: &[(&'static str, usize)]) -> Map {
    let total = tokens.iter().map(|(_, tokens)| tokens).sum();
    let all = tokens.iter().copied().chain([("total", total)]);
    all.map(|(name, tokens)| (name.to_owned(), Value::Int(i64::try_from(tokens).unwrap_or(i64::MAX)))).collect()
}

/// The same for people.
pub fn in_words(tokens: &[(&'static str, usize)]) -> String {
    let total: usize = tokens.iter().map(|(_, tokens)| tokens).sum();
    let list: Vec<String> = tokens.iter().map(|(name, tokens)| format!("{name} {tokens}")).collect();
    format!("about {total} tokens (o200k_base): {}", list.join(", "))
}

#[cfg(feature = "tokens")]
fn count(text: &str) -> Option<usize> {
    Some(cadenza_core::tokens::count(text))
}

#[cfg(not(feature = "tokens"))]
fn count(_text: &str) -> Option<usize> {
    None
}
