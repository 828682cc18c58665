//! Programs as a folder of plain source files, for people and for version control: one file per program, and
//! `programs.json`, which says what each file is kept under and what is known about it.
//!
//! Names of roles and methods never become paths as they are: a file name is made of their letters and of the program's id.

use std::path::{Component, Path, PathBuf};

use crate::ids::Digest;
use crate::program::Language;
use crate::program::registry::{Key, Origin, Pins, ProgramState, Saved};
use crate::value::{Map, Value};

/// The index of the folder.
const INDEX: &str = "programs.json";
/// Letters of a role or method in a file name.
const MAX_NAME: usize = 40;

/// Why a folder of programs cannot be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?}: {message}")]
pub struct FolderError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong, and what to do.
    pub message: String,
}

/// Writes each program into a file of its own. Files that are there already and are no programs of these stay.
pub fn export(programs: &[Saved], folder: &Path) -> Result<usize, FolderError> {
    let mut lines = Vec::with_capacity(programs.len());
    for saved in programs {
        let file = file_name(saved);
        let path = folder.join(&file);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let mut code = saved.code.to_string();
        if !code.ends_with('\n') {
            code.push('\n');
        }
        made.and_then(|()| std::fs::write(&path, code)).map_err(|error| failed(&path, error))?;
        lines.push(format!("  {}", Value::Map(entry(saved, &file)).to_json()));
    }
    lines.sort();
    let index = folder.join(INDEX);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&index, format!("[\n{}\n]\n", lines.join(",\n"))))
        .map_err(|error| failed(&index, error))?;
    Ok(programs.len())
}

/// Reads a folder back: each program, and whether its file was edited. Then it is a new program, one version later, whose
/// evidence is still that of the old one.
pub fn import(folder: &Path) -> Result<Vec<(Saved, bool)>, FolderError> {
    let index = folder.join(INDEX);
    let wrong = |message: String| FolderError { path: index.clone(), message };
    let text = std::fs::read_to_string(&index).map_err(|error| failed(&index, error))?;
    let value = Value::from_json(&text).map_err(|error| wrong(error.to_string()))?;
    let Value::List(entries) = value else { return Err(wrong("it is not a list of programs".to_owned())) };
    let read = |(number, entry): (usize, &Value)| {
        let incomplete = |name: &str| wrong(format!("entry {}: no valid `{name}`", number + 1));
        let map = entry.as_map().ok_or_else(|| incomplete("file"))?;
        let text = |name: &str| map.get(name).and_then(Value::as_str).ok_or_else(|| incomplete(name));
        let number = |name: &str| {
            let number = map.get(name).and_then(Value::as_int).and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| incomplete(name))
        };
        let digest = |name: &str| text(name).and_then(|text| Digest::parse(text).ok_or_else(|| incomplete(name)));
        let file = Path::new(text("file")?);
        // An index may come from anybody: it must not name files outside of its folder.
        if !file.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(incomplete("file"));
        }
        let path = folder.join(file);
        let code = std::fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
        let original = digest("checksum")?;
        let code = [code.as_str(), code.strip_suffix('\n').unwrap_or(&code)]
            .into_iter()
            .find(|code| Digest::of_bytes(code.as_bytes()) == original)
            .map_or_else(|| (code.clone(), true), |same| (same.to_owned(), false));
        let inputs = match map.get("inputs") {
            Some(Value::List(inputs)) => inputs.iter().map(input).collect::<Option<_>>(),
            Some(_) | None => None,
        };
        let (code, edited) = code;
        let saved = Saved {
            key: Key {
                namespace: text("namespace")?.into(),
                role: text("role")?.into(),
                method: text("method")?.into(),
                contract: digest("contract")?,
                shape: text("shape")?.to_owned(),
                language: Language::from_name(text("language")?).ok_or_else(|| incomplete("language"))?,
                interface: number("interface")?,
            },
            code: code.into(),
            model: text("model")?.into(),
            version: number("version")? + u32::from(edited),
            inputs: inputs.ok_or_else(|| incomplete("inputs"))?,
            probeable: map.get("probeable").and_then(Value::as_bool).ok_or_else(|| incomplete("probeable"))?,
            pins: map.get("pins").map(Pins::from_value).unwrap_or_default(),
            uses: 0,
            failures: 0,
            failures_in_a_row: 0,
            note: None,
            state: ProgramState::from_name(text("state")?).ok_or_else(|| incomplete("state"))?,
            origin: Origin::default(),
        };
        Ok((saved, edited))
    };
    entries.iter().enumerate().map(read).collect()
}

fn entry(saved: &Saved, file: &str) -> Map {
    let Key { namespace, role, method, contract, shape, language, interface } = &saved.key;
    let inputs = saved.inputs.iter().map(|(read, digest)| Value::List(vec![(*read).into(), digest.to_hex().into()]));
    [
        ("file", file.into()),
        ("namespace", (&**namespace).into()),
        ("role", (&**role).into()),
        ("method", (&**method).into()),
        ("shape", shape.as_str().into()),
        ("language", language.as_str().into()),
        ("contract", contract.to_hex().into()),
        ("interface", (*interface).into()),
        ("model", (&*saved.model).into()),
        ("version", saved.version.into()),
        ("probeable", saved.probeable.into()),
        ("state", if saved.quarantined() { ProgramState::Quarantined } else { saved.state }.as_str().into()),
        ("inputs", Value::List(inputs.collect())),
        ("pins", saved.pins.to_value()),
        ("checksum", Digest::of_bytes(saved.code.as_bytes()).to_hex().into()),
    ]
    .into_iter()
    .map(|(name, value): (&str, Value)| (name.to_owned(), value))
    .collect()
}

fn input(input: &Value) -> Option<(bool, Digest)> {
    match input {
        Value::List(pair) => Some((pair.first()?.as_bool()?, Digest::parse(pair.get(1)?.as_str()?)?)),
        _ => None,
    }
}

fn file_name(saved: &Saved) -> String {
    let plain = |text: &str| -> String {
        let letters = text.chars().take(MAX_NAME);
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' };
        letters.map(plain).collect()
    };
    let id = &saved.id().to_hex()[..8];
    format!("{}/{}-{id}.{}", plain(&saved.key.role), plain(&saved.key.method), saved.key.language)
}

fn failed(path: &Path, error: std::io::Error) -> FolderError {
    FolderError { path: path.to_owned(), message: error.to_string() }
}
