//! Is the file at the store's path still the one that is open? A file that was deleted or replaced meanwhile takes every
//! write without complaint, and nobody finds it again: no such write is acknowledged (store.md, "SQLite specifics").

use std::path::Path;

use crate::store::StoreError;

/// Which files were opened: the database and its log. Empty where the system does not number its files.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SameFile {
    database: Option<Number>,
    log: Option<Number>,
}

/// Device and number of a file.
type Number = (u64, u64);

impl SameFile {
    /// The files as they are at `path` now.
    pub(super) fn at(path: &Path) -> Self {
        Self { database: number(path), log: number(&super::beside(path, "-wal")) }
    }

    /// Refuses when the path names another database, or it has another log. Two calls of the system.
    pub(super) fn check(&self, path: &Path) -> Result<(), StoreError> {
        let Self { database, log } = Self::at(path);
        if (self.database.is_some() && database != self.database) || (self.log.is_some() && log != self.log) {
            return Err(StoreError::Detached { path: path.to_owned() });
        }
        Ok(())
    }
}

#[cfg(unix)]
fn number(path: &Path) -> Option<Number> {
    use std::os::unix::fs::MetadataExt;

    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn number(_path: &Path) -> Option<Number> {
    None
}
