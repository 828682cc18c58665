//! `cadenza export FOLDER`, `cadenza import FOLDER`, `cadenza lock`: kept programs as files.

use std::path::{Path, PathBuf};

use cadenza_core::printable::printable;
use cadenza_core::program::lock;
use cadenza_core::value::{Map, Value};

use super::programs::refused;
use super::{say, say_json};
use crate::failure::{Exit, Failure};
use crate::options::StoreArgs;

/// Writes the programs of a store as source files.
#[derive(Debug, clap::Args)]
pub struct Export {
    /// The folder; made when missing
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
}

/// Takes source files into a store. An edited one is pinned: it comes before all others.
#[derive(Debug, clap::Args)]
pub struct Import {
    /// The folder that `cadenza export` wrote
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Take edited programs although they answer recorded calls otherwise
    #[arg(long)]
    accept: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Writes the lock file of a store's programs.
#[derive(Debug, clap::Args)]
pub struct Lock {
    /// The file; `reuse="locked"` reads `cadenza.lock` in the working directory
    #[arg(value_name = "FILE", default_value = lock::FILE)]
    file: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
}

impl Export {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let count = self.store.runtime()?.export(&self.folder).map_err(refused)?;
        self.store.told(count, "written to", &self.folder, [])
    }
}

impl Import {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let taken = self.store.runtime()?.import(&self.folder, self.accept).map_err(refused)?;
        let ids = taken.iter().map(|listed| listed.id.to_hex().into()).collect();
        self.store.told(taken.len(), "taken from", &self.folder, [("ids", Value::List(ids))])
    }
}

impl Lock {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let count = self.store.runtime()?.lock(&self.file).map_err(refused)?;
        self.store.told(count, "locked in", &self.file, [])
    }
}

impl StoreArgs {
    fn told<const MORE: usize>(
        &self,
        count: usize,
        what: &str,
        path: &Path,
        more: [(&str, Value); MORE],
    ) -> Result<Exit, Failure> {
        let path = path.display().to_string();
        if self.json {
            let fields = [("programs", Value::Int(count as i64)), ("path", path.into())];
            let fields = fields.into_iter().chain(more);
            say_json(&Value::Map(fields.map(|(name, value)| (name.to_owned(), value)).collect::<Map>()));
        } else {
            say(&format!("{count} program(s) {what} {}", printable(&path)));
        }
        Ok(Exit::Ok)
    }
}
