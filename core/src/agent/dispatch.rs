//! Dispatch: what a name means on an agent (AC section 5 and 6). Pure; no I/O, no agent in sight.

/// Names on an agent that are not dynamic (product.md section 1). Any of them is reached by `call("name", ...)`.
pub const RESERVED: [&str; 9] =
    ["for_role", "for", "role", "remember", "runtime_context", "delegate", "tool", "responds_to", "call"];

/// Methods that converse: their programs are never reused (product.md section 8).
const CONVERSATIONAL: [&str; 4] = ["ask", "chat", "discuss", "host"];

/// What a call by name does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch<'a> {
    /// `name=`: writes the context key `name`, never asks a model (AC-5.1, AC-5.2).
    Setter(&'a str),
    /// Everything else: a dynamic call.
    Dynamic(&'a str),
}

/// Why a name cannot be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Setter names must be identifiers.
    #[error(
        "setter name {0:?} is not an identifier: use letters, digits and `_`, not beginning with a digit; \
         `runtime_context[...]` takes any key"
    )]
    Setter(String),
    /// An empty or unprintable method name.
    #[error("method name {0:?} is refused: use 1 to 256 bytes without control characters")]
    Method(String),
    /// Names that begin with `_` belong to the host language.
    #[error("method name {0:?} is refused: names that begin with `_` are never dynamic")]
    Private(String),
}

/// Reads a method name.
pub fn dispatch(name: &str) -> Result<Dispatch<'_>, NameError> {
    if let Some(key) = name.strip_suffix('=') {
        return if is_identifier(key) { Ok(Dispatch::Setter(key)) } else { Err(NameError::Setter(key.to_owned())) };
    }
    if name.trim().is_empty() || name.len() > 256 || name.chars().any(char::is_control) {
        return Err(NameError::Method(name.to_owned()));
    }
    if name.starts_with('_') {
        return Err(NameError::Private(name.to_owned()));
    }
    Ok(Dispatch::Dynamic(name))
}

/// A name that every host language can write after a dot. Not beginning with `_`.
pub fn is_identifier(name: &str) -> bool {
    let mut characters = name.chars();
    name.len() <= 256
        && characters.next().is_some_and(char::is_alphabetic)
        && characters.all(|character| character.is_alphanumeric() || character == '_')
}

/// Whether programs of this method are kept at all.
pub fn is_conversational(method: &str) -> bool {
    CONVERSATIONAL.contains(&method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ac_4_setter_like_names_are_told_apart_from_dynamic_ones() {
        assert_eq!(dispatch("memory="), Ok(Dispatch::Setter("memory")));
        assert_eq!(dispatch("add"), Ok(Dispatch::Dynamic("add")));
        assert_eq!(dispatch("größe="), Ok(Dispatch::Setter("größe")));
    }

    #[test]
    fn names_that_no_language_can_write_are_refused() {
        for name in ["=", "a b=", "2x=", "_x="] {
            assert!(matches!(dispatch(name), Err(NameError::Setter(_))), "{name}");
        }
        for name in ["", "  ", "a\nb"] {
            assert!(matches!(dispatch(name), Err(NameError::Method(_))), "{name:?}");
        }
        assert!(matches!(dispatch("__class__"), Err(NameError::Private(_))));
    }
}
