//! Why a command fails, and the exit code that says so (X11).

use std::fmt;

use cadenza_core::runtime::config::ConfigError;
use cadenza_core::runtime::options::OptionError;
use cadenza_script::ScriptError;

/// Exit codes of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything went well.
    Ok = 0,
    /// A run failed.
    Failed = 1,
    /// A tool server or a model's backend could not start.
    Backend = 3,
    /// Bad arguments or configuration.
    Usage = 4,
    /// A schema that does not compile.
    Schema = 5,
    /// Ctrl-C.
    Interrupted = 130,
}

/// Why a command fails. The message says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What happened; may have several lines.
    pub message: String,
}

impl Failure {
    /// Bad arguments or configuration.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { exit: Exit::Usage, message: message.to_string() }
    }

    /// A failed run.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self { exit: Exit::Failed, message: message.to_string() }
    }

    /// Something that had to start and did not.
    pub fn backend(message: impl fmt::Display) -> Self {
        Self { exit: Exit::Backend, message: message.to_string() }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let exit = match &error {
            ConfigError::Option { error: OptionError::Invalid { name: "deliverable", .. }, .. } => Exit::Schema,
            ConfigError::Unreadable { .. } | ConfigError::Malformed { .. } | ConfigError::Option { .. } => Exit::Usage,
        };
        Self { exit, message: error.to_string() }
    }
}

impl From<ScriptError> for Failure {
    fn from(error: ScriptError) -> Self {
        match error {
            ScriptError::Unreadable { .. } | ScriptError::UnknownLanguage { .. } => Self::usage(error),
            ScriptError::Failed { message, traceback } => {
                let calls: String = traceback.iter().map(|call| format!("\n  {call}")).collect();
                Self::failed(format!("{message}{calls}"))
            }
            ScriptError::Interrupted => Self { exit: Exit::Interrupted, message: "interrupted".to_owned() },
        }
    }
}
