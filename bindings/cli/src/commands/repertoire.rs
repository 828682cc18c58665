//! `cadenza export FOLDER`, `cadenza import FOLDER`, `cadenza lock`: what people do with kept programs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cadenza_core::program::lock;
use cadenza_core::provider::ModelSpec;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, StoreOption};

use super::say;
use crate::failure::{Exit, Failure};
use crate::options;

/// Writes the programs of a store as source files.
#[derive(Debug, clap::Args)]
pub struct Export {
    /// The folder; made when missing
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The store; the configured one when none is named
    #[arg(long, value_name = "PATH")]
    store: Option<PathBuf>,
}

/// Takes source files into a store. An edited one is pinned: it comes before all others.
#[derive(Debug, clap::Args)]
pub struct Import {
    /// The folder that `cadenza export` wrote
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The store; the configured one when none is named
    #[arg(long, value_name = "PATH")]
    store: Option<PathBuf>,
}

/// Writes the lock file of a store's programs.
#[derive(Debug, clap::Args)]
pub struct Lock {
    /// The file; `reuse="locked"` reads `cadenza.lock` in the working directory
    #[arg(value_name = "FILE", default_value = lock::FILE)]
    file: PathBuf,
    /// The store; the configured one when none is named
    #[arg(long, value_name = "PATH")]
    store: Option<PathBuf>,
}

impl Export {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let count = runtime(self.store)?.export(&self.folder).map_err(Failure::usage)?;
        told(count, "written to", &self.folder)
    }
}

impl Import {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let count = runtime(self.store)?.import(&self.folder).map_err(Failure::usage)?;
        told(count, "taken from", &self.folder)
    }
}

impl Lock {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let count = runtime(self.store)?.lock(&self.file).map_err(Failure::usage)?;
        told(count, "locked in", &self.file)
    }
}

fn told(count: usize, what: &str, path: &Path) -> Result<Exit, Failure> {
    say(&format!("{count} program(s) {what} {}", path.display()));
    Ok(Exit::Ok)
}

/// A runtime on the store, with a model that nobody asks.
fn runtime(store: Option<PathBuf>) -> Result<Runtime, Failure> {
    let store: Arc<_> = options::store(store)?;
    let options = Options {
        model: Some(ModelSpec::Name("library".to_owned())),
        store: Some(StoreOption::Store(store)),
        ..Options::default()
    };
    Runtime::builder().options(options).build().map_err(Failure::usage)
}
