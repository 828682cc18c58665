//! The embedded library: programs that ship with Cadenza, chosen by role and method. No network, no key.
//!
//! The default when no model is configured. It never pretends to be a model: a reply says that it comes from the
//! library, and a missing method says what there is and how to configure a model.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::{fmt, future};

use serde::Deserialize;

use super::{ModelReply, ModelRequest, Provider, ProviderError, ProviderErrorClass, ReplyFuture, Usage};
use crate::cancel::CancelToken;
use crate::outcome::ProgramSource;
use crate::program::Language;

include!(concat!(env!("OUT_DIR"), "/library.rs"));

/// How to get a real model, as every message of the library says it.
const CONFIGURE: &str =
    "to have a model write it, pass `model=\"openai:NAME\"`, set CADENZA_MODEL, or set OPENAI_API_KEY";

/// The library.
pub struct Library {
    roles: BTreeMap<String, Role>,
    /// Normalised name or alias to the key in `roles`.
    names: BTreeMap<String, String>,
}

struct Role {
    methods: BTreeMap<String, BTreeMap<Language, &'static str>>,
}

/// One entry of `programs/library.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexEntry {
    role: String,
    #[serde(default)]
    aliases: Vec<String>,
    methods: BTreeMap<String, BTreeMap<String, String>>,
}

impl Library {
    /// The library that is embedded in this build; read once.
    pub fn embedded() -> Arc<Self> {
        static EMBEDDED: OnceLock<Arc<Library>> = OnceLock::new();
        EMBEDDED
            .get_or_init(|| {
                let lookup = |path: &str| {
                    FILES.binary_search_by(|(known, _)| (*known).cmp(path)).ok().map(|index| FILES[index].1)
                };
                let library = Self::from_index(INDEX, lookup);
                // Cannot fire: the test `the_embedded_library_is_whole` reads the same constants.
                Arc::new(library.expect("the embedded library is whole"))
            })
            .clone()
    }

    /// Builds a library from an index and the texts it names.
    fn from_index(index: &str, text: impl Fn(&str) -> Option<&'static str>) -> Result<Self, String> {
        let entries: Vec<IndexEntry> = serde_json::from_str(index).map_err(|error| error.to_string())?;
        let mut library = Self { roles: BTreeMap::new(), names: BTreeMap::new() };
        for entry in entries {
            let mut methods = BTreeMap::new();
            for (method, files) in entry.methods {
                let mut texts = BTreeMap::new();
                for (language, path) in files {
                    let language = Language::from_name(&language).ok_or(format!("unknown language `{language}`"))?;
                    texts.insert(language, text(&path).ok_or(format!("no file `{path}`"))?);
                }
                methods.insert(method, texts);
            }
            for name in entry.aliases.iter().chain([&entry.role]) {
                if let Some(other) = library.names.insert(normalised(name), entry.role.clone())
                    && other != entry.role
                {
                    return Err(format!("`{name}` names both `{other}` and `{}`", entry.role));
                }
            }
            if library.roles.insert(entry.role.clone(), Role { methods }).is_some() {
                return Err(format!("the role `{}` is there twice", entry.role));
            }
        }
        Ok(library)
    }

    /// The roles, in order.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// The methods of a role, in order; empty when there is no such role.
    pub fn methods(&self, role: &str) -> impl Iterator<Item = &str> {
        self.role(role).into_iter().flat_map(|role| role.methods.keys().map(String::as_str))
    }

    /// The program of a method in one language.
    pub fn program(&self, role: &str, method: &str, language: Language) -> Option<&'static str> {
        self.role(role)?.method(method)?.get(&language).copied()
    }

    fn role(&self, role: &str) -> Option<&Role> {
        self.roles.get(role).or_else(|| self.roles.get(self.names.get(&normalised(role))?))
    }

    /// What is missing, what there is, and what to do.
    fn missing(&self, role: &str, method: &str, language: Language) -> ProviderError {
        let mut message = match self.role(role) {
            None => format!("the embedded library has no role `{}` (it has: {})", shown(role), listed(self.roles())),
            Some(known) if known.method(method).is_some() => {
                format!("the embedded library has `{}` of `{}`, but not in {language}", shown(method), shown(role))
            }
            Some(known) => format!(
                "the embedded library has no method `{}` for `{}`{} (it has: {})",
                shown(method),
                shown(role),
                nearest(method, known.methods.keys().map(String::as_str)),
                listed(known.methods.keys().map(String::as_str))
            ),
        };
        message.push_str("; ");
        message.push_str(CONFIGURE);
        ProviderError::new(ProviderErrorClass::Failed, message)
    }
}

impl Role {
    fn method(&self, method: &str) -> Option<&BTreeMap<Language, &'static str>> {
        self.methods.get(method).or_else(|| {
            let wanted = normalised(method);
            self.methods.iter().find(|(name, _)| normalised(name) == wanted).map(|(_, texts)| texts)
        })
    }
}

impl Provider for Library {
    fn model(&self) -> &str {
        "library"
    }

    fn fingerprint(&self) -> &str {
        concat!("library@", env!("CARGO_PKG_VERSION"))
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, _cancel: &'a CancelToken) -> ReplyFuture<'a> {
        let found = self.program(&request.role, &request.method, request.language);
        let result = match found {
            Some(code) => Ok(ModelReply {
                content: Some(code.to_owned()),
                source: Some(ProgramSource::Library),
                // No model was asked: nothing to charge, nothing to estimate.
                usage: Some(Usage::default()),
                note: Some(Cow::Borrowed(
                    "the program comes from the embedded library, not from a model (CADENZA_MODEL or `model` names one)",
                )),
                ..ModelReply::default()
            }),
            None => Err(self.missing(&request.role, &request.method, request.language)),
        };
        Box::pin(future::ready(result))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Library({} roles)", self.roles.len())
    }
}

/// `CSV Explorer`, `csv_explorer` and `csv-explorer` are one name.
fn normalised(name: &str) -> String {
    name.chars().filter(|character| character.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// A name of the caller in a message: short.
fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(100)]
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// `, did you mean ...?` when a name is close enough.
pub(super) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    let scored = names.map(|name| (strsim::jaro_winkler(wanted, name), name));
    let best = scored.filter(|(score, _)| *score > 0.75).max_by(|one, other| one.0.total_cmp(&other.0));
    best.map(|(_, name)| format!(", did you mean `{name}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"[{"role": "calculator", "aliases": ["pocket calculator", "calc"],
        "methods": {"add": {"lua": "a.lua", "rhai": "a.rhai"}, "is_even": {"lua": "e.lua"}}}]"#;

    fn small() -> Library {
        let texts = |path: &str| match path {
            "a.lua" => Some("return args[1] + args[2]"),
            "a.rhai" => Some("return args[0] + args[1];"),
            "e.lua" => Some("return args[1] % 2 == 0"),
            _unknown => None,
        };
        Library::from_index(SMALL, texts).unwrap()
    }

    #[test]
    fn roles_and_methods_are_found_however_they_are_written() {
        let library = small();
        for role in ["calculator", "Calculator", "Pocket Calculator", "pocket_calculator", "calc"] {
            assert!(library.program(role, "add", Language::Lua).is_some(), "{role}");
        }
        assert!(library.program("calc", "isEven", Language::Lua).is_some());
        assert!(library.program("calc", "is_even", Language::Rhai).is_none());
    }

    #[test]
    fn what_is_missing_is_named_with_what_there_is() {
        let library = small();
        let message = |role, method, language| library.missing(role, method, language).message;
        let text = message("calculator", "ad", Language::Lua);
        assert!(text.contains("no method `ad`") && text.contains("did you mean `add`?"), "{text}");
        assert!(text.contains("add, is_even") && text.contains("CADENZA_MODEL") && text.contains("OPENAI_API_KEY"));
        assert!(message("tutor", "explain", Language::Lua).contains("no role `tutor` (it has: calculator)"));
        assert!(message("calculator", "is_even", Language::Rhai).contains("not in rhai"));
    }

    #[test]
    fn a_broken_index_says_what_is_broken() {
        let none = |_: &str| None;
        assert!(Library::from_index("{", none).is_err());
        assert_eq!(Library::from_index(SMALL, none).unwrap_err(), "no file `a.lua`");
        let twice = r#"[{"role": "a", "methods": {}}, {"role": "b", "aliases": ["A"], "methods": {}}]"#;
        assert_eq!(Library::from_index(twice, none).unwrap_err(), "`A` names both `a` and `b`");
    }

    /// Reads the constants of this build: what `embedded` relies on.
    #[test]
    fn the_embedded_library_is_whole() {
        let library = Library::embedded();
        assert!(FILES.is_sorted());
        for role in library.roles() {
            for method in library.methods(role) {
                for language in Language::ALL {
                    let code = library.program(role, method, language);
                    assert!(code.is_some_and(|code| !code.trim().is_empty()), "{role}.{method} in {language}");
                }
            }
        }
    }
}
