//! Secrets: values that are sent to a provider and shown to nobody.
//!
//! Printing a [`Secret`] in any way prints a mask. Text that comes back from a server goes through [`Secret::scrub`],
//! because servers do echo keys.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

/// What stands where a secret was.
const MASK: &str = "[secret]";

/// A key. `Debug` and `Display` mask it; only [`Secret::expose`] shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

/// Every key that this process was given: logs and other surfaces must not show it wherever it turns up.
static KNOWN: RwLock<Vec<Secret>> = RwLock::new(Vec::new());

/// The text without any key that this process was given.
pub fn scrub(text: &str) -> Cow<'_, str> {
    KNOWN.read().iter().fold(Cow::Borrowed(text), |text, secret| match secret.scrub(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(scrubbed) => Cow::Owned(scrubbed),
    })
}

impl Secret {
    /// Shortest text that is worth masking; a local server's dummy key may be shorter, and occurs in ordinary words.
    const MIN_SCRUBBED_BYTES: usize = 4;

    /// Keeps a key. White space around it (the newline at the end of a file) is dropped; nothing left is `None`.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| {
            let secret = Self(text.into());
            let mut known = KNOWN.write();
            if text.len() >= Self::MIN_SCRUBBED_BYTES && !known.contains(&secret) {
                known.push(secret.clone());
            }
            secret
        })
    }

    /// The key itself, for the one header that carries it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The text without this key.
    pub fn scrub<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.0.len() >= Self::MIN_SCRUBBED_BYTES && text.contains(&*self.0) {
            text.replace(&*self.0, MASK).into()
        } else {
            text.into()
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_masked_however_it_is_printed() {
        let secret = Secret::new(" sk-123456\n").unwrap();
        assert_eq!(secret.expose(), "sk-123456");
        assert!(!format!("{secret} {secret:?} {:#?}", Some(&secret)).contains("sk-"));
        assert_eq!(secret.scrub("key sk-123456 is wrong"), "key [secret] is wrong");
        assert_eq!(Secret::new(" \n"), None);
    }
}
