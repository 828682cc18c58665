//! The conformance runner: scenario files in, a report out (formats.md section 1).
//!
//! A scenario goes through a host language's own Agent surface ([`Surface`]); the model is scripted, the world is fresh
//! for each scenario, and every comparison happens here, in one place for all languages.

use std::path::{Path, PathBuf};

use cadenza_core::adapter::Profile;
use cadenza_core::program::Language;
use cadenza_core::runtime::options::StoreOption;

pub(crate) mod document;
mod literal;
mod programs;
mod report;
mod runner;
mod rust;
mod scenario;
mod script;
mod stub;
mod surface;

pub use document::Fault;
pub use programs::Programs;
pub use report::{ProfilesRan, Report, ScenarioResult};
pub(crate) use runner::equal;
pub use rust::RustSurface;
pub use scenario::ScenarioFile;
pub(crate) use scenario::check_version;
pub use script::ScriptSurface;
pub use surface::{Seen, Surface, World};

use scenario::Body;

/// Where the calls of scenarios are kept: the store is a dimension of the matrix. Each scenario has a fresh one.
#[derive(Clone, Debug)]
pub enum StoreKind {
    /// Nowhere.
    Memory,
    /// In a SQLite file per scenario, in this folder.
    Sqlite(PathBuf),
}

impl StoreKind {
    /// `memory` or `sqlite`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite(_) => "sqlite",
        }
    }

    /// Where a scenario's store is.
    fn option(&self, scenario: &str) -> StoreOption {
        match self {
            Self::Memory => StoreOption::Memory,
            Self::Sqlite(folder) => StoreOption::Path(folder.join(format!("{scenario}.db"))),
        }
    }
}

/// Runs every scenario of these files and folders, or of the checkout's `scenarios/agent` when there are none.
///
/// `programs` names the programs file; without it the nearest `programs/programs.yaml` above the scenarios or the
/// working directory is used, and without that what is built in.
pub fn run(
    paths: &[PathBuf],
    programs: Option<&Path>,
    surface: &dyn Surface,
    language: Language,
    store: &StoreKind,
) -> Result<Report, ConformError> {
    let files = if paths.is_empty() { in_checkout("agent")? } else { listed(paths)? };
    let places = files.iter().map(PathBuf::as_path).chain([Path::new(".")]);
    let programs = match programs.map(Path::to_owned).or_else(|| Programs::nearest(places)) {
        Some(path) => Programs::read(&path).map_err(ConformError::Programs)?,
        None => Programs::embedded(),
    };
    // Every file is read before the first scenario runs: a malformed one is found at once.
    let mut parsed = Vec::with_capacity(files.len());
    for path in files {
        parsed.push(read(&path)?);
    }
    let results = parsed
        .iter()
        .flat_map(|file| &file.scenarios)
        .map(|scenario| runner::run(scenario, &programs, surface, language, store))
        .collect();
    Ok(Report { runtime: surface.runtime(), language, store: store.name(), results, profiles: None })
}

/// Runs the scenarios of the execution contract under these model profiles: those of the files and folders, of the
/// checkout's `scenarios/execution` when there are none, and what is built in where there is no checkout.
///
/// What a profile's form cannot say is left out, and the report says so.
pub fn run_profiles(paths: &[PathBuf], profiles: &[Profile]) -> Result<Report, ConformError> {
    let files = if paths.is_empty() { in_checkout("execution").unwrap_or_default() } else { listed(paths)? };
    let mut scenarios = Vec::new();
    for path in files {
        for scenario in read(&path)?.scenarios {
            match scenario.body {
                Ok(Body::Kernel(scenario)) => scenarios.push(scenario),
                Ok(Body::Agent(_)) => return Err(ConformError::NotOfTheKernel { path, id: scenario.id }),
                Err(fault) => return Err(ConformError::Malformed { path, fault }),
            }
        }
    }
    if scenarios.is_empty() {
        let parsed = EMBEDDED.iter().flat_map(|text| ScenarioFile::parse(text).ok()).flat_map(|file| file.scenarios);
        scenarios.extend(parsed.filter_map(|scenario| match scenario.body {
            Ok(Body::Kernel(scenario)) => Some(scenario),
            Ok(Body::Agent(_)) | Err(_) => None,
        }));
    }
    let (mut results, mut left_out) = (Vec::new(), Vec::new());
    for profile in profiles {
        for scenario in &scenarios {
            let id = format!("{}/{}", profile.as_str(), scenario.id);
            match scenario.under(*profile) {
                Ok(scenario) => {
                    let failure = scenario.check().err().map(|mismatch| mismatch.to_string());
                    results.push(ScenarioResult { id, failure, note: None, log: Vec::new() });
                }
                Err(why) => left_out.push((id, why)),
            }
        }
    }
    let ran = ProfilesRan { names: profiles.iter().map(|profile| profile.as_str()).collect(), left_out };
    Ok(Report {
        runtime: "kernel",
        language: Language::Lua,
        store: StoreKind::Memory.name(),
        results,
        profiles: Some(ran),
    })
}

/// The execution scenarios of the checkout that this was built from.
const EMBEDDED: [&str; 3] = [
    include_str!("../../../../scenarios/execution/adapter.yaml"),
    include_str!("../../../../scenarios/execution/commit.yaml"),
    include_str!("../../../../scenarios/execution/corpus.yaml"),
];

fn read(path: &Path) -> Result<ScenarioFile, ConformError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConformError::Unreadable { path: path.to_owned(), message: error.to_string() })?;
    ScenarioFile::parse(&text).map_err(|fault| ConformError::Malformed { path: path.to_owned(), fault })
}

/// The scenario files of a contract, of the checkout around the working directory.
fn in_checkout(contract: &str) -> Result<Vec<PathBuf>, ConformError> {
    let here = std::path::absolute(".").unwrap_or_else(|_| PathBuf::from("."));
    let folder = here.ancestors().map(|folder| folder.join("scenarios").join(contract)).find(|folder| folder.is_dir());
    listed(&[folder.ok_or(ConformError::NoCheckout)?])
}

/// Files as they are, folders by the YAML files in them, in order.
pub(crate) fn listed(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ConformError> {
    let mut files = Vec::new();
    for path in paths {
        let unreadable =
            |error: std::io::Error| ConformError::Unreadable { path: path.clone(), message: error.to_string() };
        if !std::fs::metadata(path).map_err(unreadable)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            let file = entry.map_err(unreadable)?.path();
            if file.is_file() && file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
                inside.push(file);
            }
        }
        if inside.is_empty() {
            return Err(ConformError::Empty { path: path.clone() });
        }
        inside.sort_unstable();
        files.extend(inside);
    }
    Ok(files)
}

/// Why nothing could be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConformError {
    /// A file or folder cannot be read.
    #[error("{}: {message}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// A file is not a scenario file.
    #[error("{}:{}: {}", path.display(), fault.line, fault.message)]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Where and why.
        fault: Fault,
    },
    /// The programs file.
    #[error("{0}")]
    Programs(String),
    /// A folder without scenario files.
    #[error("{}: no .yaml files in this folder", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// An agent's scenario, where only those of the execution contract run.
    #[error("{}: `{id}` is a scenario of the agent contract; --profile runs those of the execution contract", path.display())]
    NotOfTheKernel {
        /// Which file.
        path: PathBuf,
        /// Which scenario.
        id: String,
    },
    /// No paths were given, and there is no checkout to find them in.
    #[error("no scenarios/agent folder here or above; name the scenario files: cadenza conform FILES")]
    NoCheckout,
}
