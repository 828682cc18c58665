//! `cadenza run FILE [ARGS…]`.

use std::path::PathBuf;

use cadenza_core::cancel::CancelToken;
use cadenza_script::{Console, language_of, run_file, runtime_name};

use crate::failure::{Exit, Failure};
use crate::options::AgentOptions;
use crate::{Context, interrupt};

/// Runs a script.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// The script: a .lua, .luau or .rhai file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What the script sees as its arguments: `args` and, in Lua, `arg` and `...`. Everything behind FILE is the
    /// script's; options of cadenza stand before it
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
    #[command(flatten)]
    agents: AgentOptions,
}

impl Run {
    pub(crate) fn run(self, _context: &Context<'_>) -> Result<Exit, Failure> {
        let language = language_of(&self.file)?;
        // Before anything else is done: a misspelt name needs no model.
        if let Err(error) = std::fs::metadata(&self.file) {
            return Err(Failure::usage(format!("{}: {error}", self.file.display())));
        }
        let (runtime, _) = self.agents.runtime(runtime_name(language))?;
        let cancel = CancelToken::default();
        let guard = interrupt::guard(&cancel, Some(&runtime));
        let ran = run_file(&self.file, &self.args, runtime.clone(), &Console::stdout(cancel));
        drop(guard);
        runtime.flush();
        ran.map(|()| Exit::Ok).map_err(Failure::from)
    }
}
