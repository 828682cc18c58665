//! Tokens of prompts, section by section, where this build can count them (feature `tokens`).
//!
//! Counted when somebody looks, never while a call runs. Exact for OpenAI's models since GPT-4o, an estimate for all others.
//! A call keeps its prompt only with `debug`; of others the sizes are known, and the tokens are estimated from them.

use std::fmt::Write as _;

use cadenza_core::prompt::{FEEDBACK, SECTIONS, sections};
use cadenza_core::value::{Map, Value};

/// Bytes of a token, measured on our prompts: 3.8 in the words about Lua, 3.5 in those about Rhai, 3 in JSON.
const BYTES_PER_TOKEN: f64 = 3.5;

/// What a prompt costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptTokens {
    /// By section, in the order of a prompt; those that are not there are left out.
    pub sections: Vec<(&'static str, u64)>,
    /// Whether the words themselves were counted.
    pub counted: bool,
}

impl PromptTokens {
    /// Counts the words of a prompt; nothing without one, and in a build without `tokens`.
    pub fn of_texts(system: &str, user: &str) -> Self {
        let mut counts = [0; SECTIONS.len()];
        for section in sections(system, user) {
            let Some(tokens) = count(section.text) else { return Self::default() };
            // Every section has one of these names.
            if let Some(index) = SECTIONS.iter().position(|name| *name == section.name) {
                counts[index] += tokens as u64;
            }
        }
        let sections = SECTIONS.into_iter().zip(counts).filter(|(_, tokens)| *tokens > 0).collect();
        Self { sections, counted: true }
    }

    /// The same of a logged or stored call: from its words where it has them, else from their sizes; `None` when no model
    /// was asked.
    pub fn of_call(call: &Map) -> Option<Self> {
        let text = |name: &str| call.get(name).and_then(Value::as_str).unwrap_or_default();
        let mut tokens = Self::of_texts(text("system_prompt"), text("user_prompt"));
        if let Some(Value::Map(sizes)) = call.get("prompt_bytes") {
            let estimate = |name: &&str| {
                let bytes = sizes.get(*name).and_then(Value::as_float)?;
                Some((bytes / BYTES_PER_TOKEN).ceil() as u64)
            };
            if tokens.sections.is_empty() {
                tokens.counted = false;
                tokens.sections =
                    SECTIONS.iter().filter_map(|name| estimate(name).map(|tokens| (*name, tokens))).collect();
            } else if let Some(feedback) = estimate(&FEEDBACK) {
                // Its words are not kept.
                tokens.sections.push((FEEDBACK, feedback));
            }
        }
        (!tokens.sections.is_empty()).then_some(tokens)
    }

    /// All sections together.
    pub fn total(&self) -> u64 {
        self.sections.iter().map(|(_, tokens)| tokens).sum()
    }

    /// The sections by name, their `total`, and whether they were `counted`.
    pub fn to_map(&self) -> Map {
        let all = self.sections.iter().copied().chain([("total", self.total())]);
        let mut map: Map = all
            .map(|(name, tokens)| (name.to_owned(), Value::Int(i64::try_from(tokens).unwrap_or(i64::MAX))))
            .collect();
        map.insert("counted".to_owned(), self.counted.into());
        map
    }

    /// The same for people.
    pub fn in_words(&self) -> String {
        let how = if self.counted { "counted with o200k_base" } else { "from its size" };
        let mut text = format!("about {} tokens, {how}:", self.total());
        for (index, (name, tokens)) in self.sections.iter().enumerate() {
            let _ = write!(text, "{} {name} {tokens}", if index > 0 { "," } else { "" });
        }
        text
    }
}

#[cfg(feature = "tokens")]
fn count(text: &str) -> Option<usize> {
    Some(cadenza_core::tokens::count(text))
}

#[cfg(not(feature = "tokens"))]
fn count(_text: &str) -> Option<usize> {
    None
}
