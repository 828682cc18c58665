//! Secrets: values that are sent to a provider and shown to nobody.
//!
//! Printing a [`Secret`] in any way prints a mask. Text that comes back from a server goes through [`Secret::scrub`],
//! because servers do echo keys.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::value::{Map, Value, write_json_string};

/// What stands where a secret was.
const MASK: &str = "[secret]";

/// What stands where a value with a secret's name was.
pub(crate) const NAMED_MASK: &str = "***";

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

/// The value without secrets: those that this process was given, and those that are called so. For logs, stores, prompts
/// and other surfaces that show calls.
pub fn masked(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(scrub(text).into_owned()),
        Value::List(list) => Value::List(list.iter().map(masked).collect()),
        Value::Map(map) => {
            Value::Map(map.iter().map(|(key, item)| (key.clone(), masked_entry(key, item))).collect::<Map>())
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => value.clone(),
    }
}

/// Appends the JSON text of [`masked`], without the detour over a value.
pub(crate) fn write_masked(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => write_json_string(&scrub(text), out),
        Value::List(list) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_masked(item, out);
            }
            out.push(']');
        }
        Value::Map(map) => write_masked_map(map, out),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => value.write_json(out),
    }
}

/// The same of a map.
pub(crate) fn write_masked_map(map: &Map, out: &mut String) {
    out.push('{');
    for (index, (key, item)) in map.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_json_string(key, out);
        out.push(':');
        if is_secret_name(key) && *item != Value::Null {
            write_json_string(NAMED_MASK, out);
        } else {
            write_masked(item, out);
        }
    }
    out.push('}');
}

/// Number of keys that this process was given: what was masked before may have to be masked again when there are more.
#[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "only stores remember masked text"))]
pub(crate) fn known() -> usize {
    KNOWN.read().len()
}

/// Whether [`masked`] would change the value.
pub(crate) fn is_in(value: &Value) -> bool {
    match value {
        Value::String(text) => matches!(scrub(text), Cow::Owned(_)),
        Value::List(list) => list.iter().any(is_in),
        Value::Map(map) => map.iter().any(|(key, item)| (is_secret_name(key) && *item != Value::Null) || is_in(item)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => false,
    }
}

/// The value under that key without secrets. That there is none is no secret.
pub(crate) fn masked_entry(key: &str, value: &Value) -> Value {
    if is_secret_name(key) && *value != Value::Null { NAMED_MASK.into() } else { masked(value) }
}

/// Names under which people keep secrets. Exact words, so that `max_tokens` and `keyboard` stay readable.
pub(crate) fn is_secret_name(name: &str) -> bool {
    const SECRET: [&str; 12] = [
        "api_key",
        "apikey",
        "authorization",
        "password",
        "passwd",
        "secret",
        "token",
        "access_token",
        "refresh_token",
        "private_key",
        "client_secret",
        "credentials",
    ];
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRET.contains(&name.as_str())
        || ["_api_key", "_password", "_secret", "_token"].iter().any(|end| name.ends_with(end))
}

/// Whether a header of that name keeps a key; other headers say who asks, in ordinary words.
pub fn keeps_keys(header: &str) -> bool {
    let name = header.to_ascii_lowercase();
    ["auth", "key", "token", "secret", "cookie"].iter().any(|word| name.contains(word))
}

/// How often a text is quoted at most where a secret is looked for: arguments, in a reply, in a line of a cassette.
const MOST_QUOTED: usize = 3;

impl Secret {
    /// Shortest text that is worth masking; a local server's dummy key may be shorter, and occurs in ordinary words.
    const MIN_SCRUBBED_BYTES: usize = 4;

    /// Keeps a key. White space around it (the newline at the end of a file) and the byte order mark that
    /// some editors begin a file with are dropped; nothing left is `None`.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim_start_matches('\u{feff}').trim();
        (!text.is_empty()).then(|| {
            let secret = Self(text.into());
            // Arguments, prompts and cassettes hold texts as JSON in JSON: there a quotation mark or a backslash in it looks
            // otherwise each time.
            let quoted = |form: &Self| {
                let mut quoted = String::new();
                write_json_string(&form.0, &mut quoted);
                Some(Self(quoted[1..quoted.len() - 1].into())).filter(|quoted| quoted != form)
            };
            let mut forms: Vec<_> = std::iter::successors(Some(secret.clone()), quoted).take(MOST_QUOTED + 1).collect();
            let mut known = KNOWN.write();
            // The longest first: a shorter one may be a part of it.
            while let Some(form) = forms.pop().filter(|_| text.len() >= Self::MIN_SCRUBBED_BYTES) {
                if !known.contains(&form) {
                    known.push(form);
                }
            }
            secret
        })
    }

    /// Keeps a text that is not shown but may be an ordinary word, such as a header's: it is masked here, and not
    /// looked for elsewhere.
    pub fn unlisted(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.into()))
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

    #[test]
    fn a_secret_is_masked_inside_of_json_too() {
        Secret::new(r#"pass"word\1"#).unwrap();
        let value = Value::from(r#"it is pass"word\1"#);
        assert_eq!(scrub(&value.to_json()), "\"it is [secret]\"");
        assert_eq!(masked(&value), "it is [secret]".into());
    }

    #[test]
    fn text_and_value_are_masked_alike() {
        Secret::new("sk-654321");
        let value = Value::Map(Map::from([
            ("token".to_owned(), "abc".into()),
            ("none".to_owned(), Value::Null),
            ("password".to_owned(), Value::Null),
            ("list".to_owned(), Value::List(vec![1.into(), 2.5.into(), f64::NAN.into(), "a \"sk-654321\"\n".into()])),
            ("deep".to_owned(), Value::Map(Map::from([("my_api_key".to_owned(), Value::Map(Map::new()))]))),
        ]));
        let mut text = String::new();
        write_masked(&value, &mut text);
        assert_eq!(text, masked(&value).to_json());
        assert!(!text.contains("sk-654321") && !text.contains("abc"));
    }
}
