//! Tokens of texts (feature `tokens`): what a prompt costs, section by section.
//!
//! One vocabulary for all: OpenAI's o200k_base, of GPT-4o and everything since. For those models the count is exact; other
//! vendors' differ by a tenth or two, so that it is an estimate of their costs and a sure comparison of two texts. Nothing
//! on the way of a call counts tokens: the vocabulary takes most of a second and 50 MB to unfold, once, when first asked.

/// Tokens that a text comes to.
pub fn count(text: &str) -> usize {
    tiktoken_rs::o200k_base_singleton().count_ordinary(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Language;
    use crate::prompt::ToolDocs;

    /// What the words of every prompt cost. A change of the words shows here by how much.
    #[test]
    fn the_system_prompts_cost_this_much() {
        let tokens = Language::ALL.map(|language| count(&ToolDocs::default().system_prompt(language)));
        assert_eq!(tokens, [745, 905]);
        assert_eq!((count(""), count("a b"), count("<|endoftext|>") > 1), (0, 2, true));
    }
}
