//! Programs files (formats.md 1.1): what the ids of a provider plan stand for.
//!
//! A programs file lists ids; each language's text lies beside it as `<id>.lua` and `<id>.rhai`. Where a text is
//! missing there, the one that is built into this command is used, so that a programs file with nothing but words runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cadenza_core::program::Language;
use cadenza_core::provider::scripted::PlanItem;

use super::document::{Fault, Fields, Kind, Node, parse};
use super::scenario::check_version;

macro_rules! embedded {
    ($id:literal) => {
        (
            $id,
            include_str!(concat!("../../../../programs/", $id, ".lua")),
            include_str!(concat!("../../../../programs/", $id, ".rhai")),
        )
    };
}

/// The agreed ids of the contract, in both languages.
const EMBEDDED: [(&str, &str, &str); 6] = [
    embedded!("return_42"),
    embedded!("increment_value_by_arg0"),
    embedded!("set_value_from_amount_kwarg"),
    embedded!("raise_boom"),
    embedded!("delegate_compute_add_2_3"),
    embedded!("add_args_0_1"),
];

/// The agreed payloads of the contract.
const PAYLOADS: [(&str, PlanItem); 2] = [("invalid_nil", PlanItem::Null), ("invalid_blank", PlanItem::Blank)];

/// What ids stand for.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    items: BTreeMap<String, PlanItem>,
}

impl Programs {
    /// The programs of a file, with the texts beside it, over those that are built in.
    pub fn read(path: &Path) -> Result<Self, String> {
        let at = |fault: Fault| format!("{}:{}: {}", path.display(), fault.line, fault.message);
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let root = parse(&text).map_err(at)?;
        let mut programs = Self::embedded();
        programs.add(&root, path.parent().unwrap_or(Path::new("."))).map_err(at)?;
        Ok(programs)
    }

    /// Those that are built in.
    pub fn embedded() -> Self {
        let programs = EMBEDDED.iter().map(|(id, lua, rhai)| {
            let texts = BTreeMap::from([(Language::Lua, Arc::from(*lua)), (Language::Rhai, Arc::from(*rhai))]);
            ((*id).to_owned(), PlanItem::Program(texts))
        });
        let payloads = PAYLOADS.into_iter().map(|(id, item)| (id.to_owned(), item));
        Self { items: programs.chain(payloads).collect() }
    }

    /// The programs file of a checkout: the nearest `programs/programs.yaml` above one of these places.
    pub fn nearest<'a>(places: impl IntoIterator<Item = &'a Path>) -> Option<PathBuf> {
        places
            .into_iter()
            .filter_map(|place| std::path::absolute(place).ok())
            .flat_map(|place| place.ancestors().map(Path::to_owned).collect::<Vec<_>>())
            .map(|folder| folder.join("programs").join("programs.yaml"))
            .find(|path| path.is_file())
    }

    /// What an id stands for.
    pub fn get(&self, id: &str) -> Option<PlanItem> {
        self.items.get(id).cloned()
    }

    fn add(&mut self, root: &Node, folder: &Path) -> Result<(), Fault> {
        check_version(root, "a programs file")?;
        let mut fields = Fields::of(root, "a programs file")?;
        fields.required("version")?;
        let mut seen = BTreeSet::new();
        if let Some(list) = fields.optional("programs") {
            for node in list.list("programs")? {
                let id = read_id(node, &mut seen)?;
                self.add_program(node, id, folder)?;
            }
        }
        if let Some(list) = fields.optional("provider_payloads") {
            for node in list.list("provider_payloads")? {
                let id = read_id(node, &mut seen)?;
                if !self.items.contains_key(&id) {
                    let known: Vec<_> = PAYLOADS.iter().map(|(id, _)| *id).collect();
                    let message = format!("payload `{id}` is unknown; payloads are: {}", known.join(", "));
                    return Err(node.fault(message));
                }
            }
        }
        fields.finish()
    }

    fn add_program(&mut self, node: &Node, id: String, folder: &Path) -> Result<(), Fault> {
        let mut texts = BTreeMap::new();
        for language in Language::ALL {
            let path = folder.join(format!("{id}.{language}"));
            match std::fs::read_to_string(&path) {
                Ok(text) => drop(texts.insert(language, Arc::from(text))),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(node.fault(format!("{}: {error}", path.display()))),
            }
        }
        match self.items.get_mut(&id) {
            Some(PlanItem::Program(known)) => known.extend(texts),
            Some(PlanItem::Null | PlanItem::Blank) => return Err(node.fault(format!("`{id}` is a payload's id"))),
            // Only named: a scenario that plays it in a language without a text fails, and says so.
            None => drop(self.items.insert(id, PlanItem::Program(texts))),
        }
        Ok(())
    }
}

fn read_id(node: &Node, seen: &mut BTreeSet<String>) -> Result<String, Fault> {
    let id = match &node.kind {
        Kind::Map(_) => {
            let mut fields = Fields::of(node, "a program")?;
            let id = fields.text("id")?;
            // For readers only.
            fields.optional("semantics");
            fields.optional("description");
            fields.finish()?;
            id
        }
        Kind::Scalar(_) | Kind::List(_) => return Err(node.fault("a program is a map with `id` and `semantics`")),
    };
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if !plain {
        return Err(node.fault(format!("the id `{id}` is refused: use letters, digits, `_` and `-`")));
    }
    if !seen.insert(id.clone()) {
        return Err(node.fault(format!("the id `{id}` is there twice")));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_nothing_but_words_still_runs_the_agreed_ids() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("programs.yaml");
        std::fs::write(&path, "version: 1\nprograms:\n- {id: return_42, semantics: x}\n- {id: mine}\n").unwrap();
        std::fs::write(folder.path().join("mine.lua"), "return 1").unwrap();
        let programs = Programs::read(&path).unwrap();
        let texts = |id| match programs.get(id) {
            Some(PlanItem::Program(texts)) => texts.into_keys().collect::<Vec<_>>(),
            other => panic!("{id}: {other:?}"),
        };
        assert_eq!(texts("return_42"), Language::ALL);
        assert_eq!(texts("mine"), [Language::Lua]);
        assert_eq!(programs.get("invalid_nil"), Some(PlanItem::Null));
        assert_eq!(programs.get("nobody"), None);
    }

    #[test]
    fn faults_name_the_file_and_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("programs.yaml");
        std::fs::write(&path, "version: 1\nprograms:\n- {id: ../x}\n").unwrap();
        let message = Programs::read(&path).unwrap_err();
        assert!(
            message.ends_with("programs.yaml:3: the id `../x` is refused: use letters, digits, `_` and `-`"),
            "{message}"
        );
    }
}
