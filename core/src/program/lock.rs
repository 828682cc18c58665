//! The lock file: the programs that may run where nothing new may (`reuse="locked"`, for CI and production).
//!
//! `cadenza.lock` names each program by what it is kept under and by the checksum of its text. A program that is not in
//! it does not run, whatever the store holds, and no model is asked for another.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ids::Digest;
use crate::program::registry::Key;
use crate::value::{Map, Value};

/// The name under which the lock file lies in the working directory.
pub const FILE: &str = "cadenza.lock";
/// The version of the format.
const VERSION: i64 = 1;

/// A lock file, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    allowed: HashSet<(Vec<Arc<str>>, Digest)>,
}

/// Why a lock file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// It cannot be read or written.
    #[error("lock file {path:?}: {message}")]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// It is not what `cadenza lock` writes.
    #[error("lock file {path:?}: {message}; write it again with `cadenza lock`")]
    Malformed {
        /// Where.
        path: PathBuf,
        /// What is wrong, with the place.
        message: String,
    },
}

impl Lock {
    /// Reads a lock file.
    pub fn read(path: &Path) -> Result<Self, LockError> {
        let unreadable =
            |error: std::io::Error| LockError::Unreadable { path: path.to_owned(), message: error.to_string() };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let malformed = |message: String| LockError::Malformed { path: path.to_owned(), message };
        let value = Value::from_json(&text).map_err(|error| malformed(error.to_string()))?;
        let field = |map: &Map, name: &str| map.get(name).cloned().unwrap_or_default();
        let Value::Map(file) = value else { return Err(malformed("it is not a JSON object".to_owned())) };
        if field(&file, "version") != Value::Int(VERSION) {
            return Err(malformed(format!("its `version` is not {VERSION}")));
        }
        let Value::List(programs) = field(&file, "programs") else {
            return Err(malformed("it has no list `programs`".to_owned()));
        };
        let mut allowed = HashSet::new();
        for (index, program) in programs.iter().enumerate() {
            let text = |name: &str| program.as_map().and_then(|map| map.get(name)).and_then(Value::as_str);
            let parts = PARTS.map(text);
            let (Some(checksum), false) = (text("checksum").and_then(Digest::parse), parts.iter().any(Option::is_none))
            else {
                return Err(malformed(format!("entry {} of `programs` is not complete", index + 1)));
            };
            allowed.insert((parts.into_iter().flatten().map(Arc::from).collect(), checksum));
        }
        Ok(Self { allowed })
    }

    /// Writes the lock file of these programs: one line each, in order, so that version control shows what changed.
    pub fn write<'a>(path: &Path, programs: impl IntoIterator<Item = (&'a Key, Digest)>) -> Result<usize, LockError> {
        let mut lines: Vec<String> = programs
            .into_iter()
            .map(|(key, checksum)| {
                let mut entry: Map =
                    PARTS.into_iter().zip(parts(key)).map(|(name, part)| (name.to_owned(), (&*part).into())).collect();
                entry.insert("checksum".to_owned(), checksum.to_hex().into());
                format!("    {}", Value::Map(entry).to_json())
            })
            .collect();
        lines.sort();
        lines.dedup();
        let text = format!("{{\n  \"version\": {VERSION},\n  \"programs\": [\n{}\n  ]\n}}\n", lines.join(",\n"));
        std::fs::write(path, text)
            .map_err(|error| LockError::Unreadable { path: path.to_owned(), message: error.to_string() })?;
        Ok(lines.len())
    }

    /// Whether the program with that checksum may run under that key.
    pub fn allows(&self, key: &Key, checksum: Digest) -> bool {
        self.allowed.contains(&(parts(key), checksum))
    }
}

const PARTS: [&str; 7] = ["namespace", "role", "method", "shape", "language", "contract", "interface"];

fn parts(key: &Key) -> Vec<Arc<str>> {
    vec![
        key.namespace.clone(),
        key.role.clone(),
        key.method.clone(),
        key.shape.as_str().into(),
        key.language.as_str().into(),
        key.contract.to_hex().into(),
        key.interface.to_string().into(),
    ]
}
