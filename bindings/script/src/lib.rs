//! Runs users' own scripts, in Lua (Luau) and in Rhai, with the Agent surface that generated programs have.
//!
//! A user's script is trusted: it prints, takes arguments, reads and writes files through the module `fs`, and loads
//! modules of its own folder. It has no limits of its own; the agents it makes have theirs. This crate knows no options
//! and no command line: a host gives it a runtime and a place to print.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cadenza_core::cancel::CancelToken;
use cadenza_core::program::Language;
use cadenza_core::runtime::Runtime;

mod embedded;
mod files;
mod host;
mod lua;
mod rhai;
mod tools;

pub use embedded::{Embedded, Held};
pub use host::Console;
pub use lua::LuaSession;
pub use rhai::RhaiSession;

/// The runtime's name in log lines of scripts in that language.
pub fn runtime_name(language: Language) -> &'static str {
    match language {
        Language::Lua => "cadenza-lua",
        Language::Rhai => "cadenza-rhai",
    }
}

/// The language of a script, by its file name: `.lua` and `.luau`, `.rhai`.
pub fn language_of(path: &Path) -> Result<Language, ScriptError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("lua" | "luau") => Ok(Language::Lua),
        Some("rhai") => Ok(Language::Rhai),
        Some(_) | None => Err(ScriptError::UnknownLanguage { path: path.to_owned() }),
    }
}

/// Runs a script to its end. `args` are what the script sees as its arguments, `console` is where it prints and what
/// can stop it. Agents without a runtime of their own belong to `runtime`.
pub fn run_file(path: &Path, args: &[String], runtime: Runtime, console: &Console) -> Result<(), ScriptError> {
    let language = language_of(path)?;
    let source = std::fs::read_to_string(path)
        .map_err(|error| ScriptError::Unreadable { path: path.to_owned(), message: error.to_string() })?;
    let script = Script { path, source: &source, args };
    let ran = match language {
        Language::Lua => lua::run(&script, runtime, console),
        Language::Rhai => rhai::run(&script, runtime, console),
    };
    ran.map_err(|error| if console.cancel().is_cancelled() { ScriptError::Interrupted } else { error })
}

/// A script and what it is run with.
struct Script<'a> {
    path: &'a Path,
    source: &'a str,
    args: &'a [String],
}

impl Script<'_> {
    /// The folder whose modules it may load.
    fn folder(&self) -> PathBuf {
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            Some(_) | None => PathBuf::from("."),
        }
    }
}

/// What came of one input of an interactive session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluated {
    /// It ran; its value as text, if it has one.
    Value(Option<String>),
    /// It ends in the middle of something: more lines belong to it.
    Incomplete,
}

/// An interactive session: inputs share their variables.
pub enum Session {
    /// In Lua.
    Lua(LuaSession),
    /// In Rhai.
    Rhai(Box<RhaiSession>),
}

impl Session {
    /// A session whose agents belong to `runtime`. Modules are those of the working directory.
    pub fn new(language: Language, runtime: Runtime, console: &Console) -> Result<Self, ScriptError> {
        Ok(match language {
            Language::Lua => Self::Lua(LuaSession::new(runtime, console)?),
            Language::Rhai => Self::Rhai(Box::new(RhaiSession::new(runtime, console)?)),
        })
    }

    /// Its language.
    pub fn language(&self) -> Language {
        match self {
            Self::Lua(_) => Language::Lua,
            Self::Rhai(_) => Language::Rhai,
        }
    }

    /// Runs one input. `cancel` stops it, and nothing after it.
    pub fn eval(&mut self, source: &str, cancel: CancelToken) -> Result<Evaluated, ScriptError> {
        match self {
            Self::Lua(session) => session.eval(source, cancel),
            Self::Rhai(session) => session.eval(source, cancel),
        }
    }

    /// Names that an input can begin with: variables of the session and what the surface offers, in order.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Lua(session) => session.names(),
            Self::Rhai(session) => session.names(),
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Session({})", self.language())
    }
}

/// Why a script did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("{}: {message}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// The file name does not say the language.
    #[error("{}: a script's name ends in .lua, .luau or .rhai", path.display())]
    UnknownLanguage {
        /// Which file.
        path: PathBuf,
    },
    /// The script does not compile, or raised an error that nothing caught. The message has file and line.
    #[error("{message}")]
    Failed {
        /// What and where.
        message: String,
        /// The calls that led there, outermost last; empty when unknown.
        traceback: Vec<String>,
    },
    /// The console's cancel token was set.
    #[error("interrupted")]
    Interrupted,
}

impl ScriptError {
    fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), traceback: Vec::new() }
    }
}

/// Where lines that a script prints go.
pub(crate) type Print = Arc<dyn Fn(&str) + Send + Sync>;
