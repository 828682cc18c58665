//! `cadenza conform [PATHS]`.

use std::path::PathBuf;
use std::process::Command;

use cadenza_core::adapter::Profile;
use cadenza_core::program::Language;

use super::say;
use crate::conform::{self, Report, RustSurface, ScriptSurface, StoreKind, Surface};
use crate::failure::{Exit, Failure};
use crate::{Context, interrupt};

/// Whose Agent surface the scenarios go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HostLanguage {
    /// Rust itself
    Rust,
    /// The Python package
    Python,
    /// Scripts in Lua
    Lua,
    /// Scripts in Rhai
    Rhai,
}

/// Language of the programs that the scripted model answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ProgramLanguage {
    /// Luau
    Lua,
    /// Rhai
    Rhai,
}

/// Where the calls of a scenario are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StoreName {
    /// Nowhere
    Memory,
    /// In a SQLite file
    Sqlite,
}

/// Runs scenario files.
#[derive(Debug, clap::Args)]
pub struct Conform {
    /// Scenario files, or folders of them; those of the checkout when none is named
    #[arg(value_name = "PATHS")]
    paths: Vec<PathBuf>,
    /// The host language whose Agent surface is used; `python` in the Python package's command, else `rust`
    #[arg(long, value_name = "RUNTIME")]
    runtime: Option<HostLanguage>,
    /// Language of the programs
    #[arg(long, value_name = "LANGUAGE", default_value = "lua")]
    language: ProgramLanguage,
    /// The programs file; `programs/programs.yaml` of the checkout when none is named
    #[arg(long, value_name = "FILE")]
    programs: Option<PathBuf>,
    /// Where calls are kept: `memory`, or `sqlite` for a fresh file per scenario
    #[arg(long, value_name = "STORE", default_value = "memory")]
    store: StoreName,
    /// Run the scenarios of the execution contract under a model profile: `all`, or one of `stub`, `program`, `tool`, `json`,
    /// `text` and `gated`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["runtime", "language", "programs", "store"])]
    profile: Option<String>,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Conform {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        if let Some(name) = &self.profile {
            let profiles = profiles(name).map_err(Failure::usage)?;
            return self.report(&conform::run_profiles(&self.paths, &profiles).map_err(Failure::usage)?, context);
        }
        let language = match self.language {
            ProgramLanguage::Lua => Language::Lua,
            ProgramLanguage::Rhai => Language::Rhai,
        };
        let default = if context.python.is_some() { HostLanguage::Python } else { HostLanguage::Rust };
        let surface: Box<dyn Surface + '_> = match (self.runtime.unwrap_or(default), context.python) {
            (HostLanguage::Rust, _) => Box::new(RustSurface),
            (HostLanguage::Lua, _) => Box::new(ScriptSurface::new(Language::Lua)),
            (HostLanguage::Rhai, _) => Box::new(ScriptSurface::new(Language::Rhai)),
            (HostLanguage::Python, Some(python)) => python.surface(),
            (HostLanguage::Python, None) => return hand_over(context),
        };
        // Scenarios make their own calls with their own tokens; Ctrl-C just ends the command.
        let _guard = interrupt::guard(&cadenza_core::cancel::CancelToken::default(), None);
        let folder = tempfile::tempdir().map_err(|error| Failure::failed(format!("no temporary folder: {error}")))?;
        let store = match self.store {
            StoreName::Memory => StoreKind::Memory,
            StoreName::Sqlite => StoreKind::Sqlite(folder.path().to_owned()),
        };
        let report =
            conform::run(&self.paths, self.programs.as_deref(), &*surface, language, &store).map_err(Failure::usage)?;
        self.report(&report, context)
    }

    fn report(&self, report: &Report, context: &Context<'_>) -> Result<Exit, Failure> {
        if self.json {
            super::say_json(&report.to_value());
        } else {
            say(report.to_text(context.style).trim_end());
        }
        Ok(if report.ok() { Exit::Ok } else { Exit::Failed })
    }
}

/// The profiles that are meant.
fn profiles(name: &str) -> Result<Vec<Profile>, String> {
    if name == "all" {
        return Ok(Profile::ALL.to_vec());
    }
    Profile::from_name(name).map(|profile| vec![profile]).ok_or_else(|| {
        let known: Vec<&str> = Profile::ALL.iter().map(|profile| profile.as_str()).collect();
        format!("no model profile {name:?}; there are {}, and `all`", known.join(", "))
    })
}

/// Lets the Python package run this same command.
fn hand_over(context: &Context<'_>) -> Result<Exit, Failure> {
    let python = ["python3", "python"].into_iter().find(|python| {
        let probe = Command::new(python).args(["-c", "import cadenza"]).output();
        probe.is_ok_and(|output| output.status.success())
    });
    let Some(python) = python else {
        return Err(Failure::backend(
            "the Python package `cadenza` cannot be imported by `python3`; install it (pip install), or use \
             --runtime rust, lua or rhai",
        ));
    };
    let status = Command::new(python).args(["-m", "cadenza"]).args(context.arguments).status();
    let status = status.map_err(|error| Failure::backend(format!("{python}: {error}")))?;
    match status.code() {
        Some(0) => Ok(Exit::Ok),
        Some(1) => Ok(Exit::Failed),
        Some(3) => Ok(Exit::Backend),
        Some(4) => Ok(Exit::Usage),
        Some(5) => Ok(Exit::Schema),
        Some(130) | None => Ok(Exit::Interrupted),
        Some(other) => Err(Failure::failed(format!("{python} -m cadenza ended with status {other}"))),
    }
}
