//! The store of somebody who named none: one file per user, in the folder where the system keeps such things.
//!
//! It is a convenience and never a reason to fail: where it cannot be, a runtime keeps everything in memory, and says so
//! once per process. A store that somebody named is another matter: there the reason is an error.

use std::path::PathBuf;
use std::sync::{Arc, Once};

use super::Store;
use crate::warning;

/// `cadenza/store.db` in the user's data folder (`$XDG_DATA_HOME`, `~/.local/share`, or what the system has in its place);
/// `None` for a user without a home.
pub fn default_path() -> Option<PathBuf> {
    Some(dirs::data_dir()?.join("cadenza").join("store.db"))
}

/// Opens it, made when missing; `None` where it cannot be.
pub(crate) fn open() -> Option<Arc<dyn Store>> {
    match default_path() {
        Some(path) => match open_at(&path) {
            Ok(store) => Some(store),
            Err(error) => {
                warn(&error);
                None
            }
        },
        None => {
            warn("there is no home folder");
            None
        }
    }
}

#[cfg(feature = "sqlite")]
fn open_at(path: &std::path::Path) -> Result<Arc<dyn Store>, String> {
    match super::SqliteStore::open(path) {
        Ok(store) => Ok(store),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(not(feature = "sqlite"))]
fn open_at(_path: &std::path::Path) -> Result<Arc<dyn Store>, String> {
    Err("this build has no SQLite (feature `sqlite`)".to_owned())
}

fn warn(why: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        warning::warn(format!(
            "calls and programs are kept in memory only, for the default store cannot be used: {why}; set `store` to a \
             path, or to \":memory:\" to be asked no more"
        ));
    });
}
