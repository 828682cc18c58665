//! Tokens of texts, where this build can count them.

/// Tokens that a text comes to: exact for OpenAI's models since GPT-4o, an estimate for all others. `None` in a build without
/// `tokens`.
pub fn count(text: &str) -> Option<usize> {
    #[cfg(feature = "tokens")]
    return Some(cadenza_core::tokens::count(text));
    #[cfg(not(feature = "tokens"))]
    {
        let _ = text;
        None
    }
}
