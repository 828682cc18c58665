//! The command `cadenza`, as a library: the native binary and the Python entry point run the same code.
//!
//! Commands read options, call the core or the script runner, and print. They decide nothing about agents.

use std::ffi::OsString;
use std::io::Write as _;

use cadenza_core::printable::printable;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

mod commands;
pub mod conform;
mod editor;
pub mod eval;
mod failure;
mod highlight;
mod interrupt;
mod logfile;
mod options;
mod progress;
mod style;
mod tokens;

use conform::Surface;
use failure::{Exit, Failure};
use style::{Style, When};

/// What the Python package gives the command: its own Agent surface, for `cadenza conform --runtime python`.
pub trait PythonHost {
    /// The Python surface.
    fn surface(&self) -> Box<dyn Surface + '_>;
}

/// Objects whose methods are written by a model when they are first called.
#[derive(Debug, Parser)]
#[command(name = "cadenza", version, max_term_width = 100, propagate_version = true, subcommand_required = true)]
struct Cli {
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: When,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a script in Lua or Rhai
    Run(commands::run::Run),
    /// Make one call and print its outcome
    Call(commands::call::Call),
    /// An interactive session
    Repl(commands::repl::Repl),
    /// Run scenario files and report which pass
    Conform(commands::conform::Conform),
    /// Score a model with a corpus of everyday calls
    Eval(commands::eval::Eval),
    /// Show the calls of a log or store as trees
    Calls(commands::calls::Calls),
    /// Show one call of a log or store with its program
    Show(commands::show::Show),
    /// Show the last calls of a log or store, and with -f those to come
    Tail(commands::tail::Tail),
    /// Show programs, of a log, a store or the embedded library; pin, edit, put aside, eject those of a store
    Programs(commands::programs::Programs),
    /// Write the programs of a store as source files
    Export(commands::repertoire::Export),
    /// Take edited source files into a store
    Import(commands::repertoire::Import),
    /// Write the lock file of a store's programs
    Lock(commands::repertoire::Lock),
    /// Check that a store holds what was written, every byte
    Verify(commands::verify::Verify),
    /// Run the recorded inputs of a stored call through the kernel again, offline
    Replay(commands::replay::Replay),
    /// Show the configuration and where each part comes from
    Config(commands::config::ConfigCommand),
}

/// What commands are given besides their own arguments.
struct Context<'a> {
    /// How standard output is painted.
    style: Style,
    /// The Python package, when it runs the command.
    python: Option<&'a dyn PythonHost>,
    /// The arguments as they came, for a command that hands itself over.
    arguments: &'a [OsString],
}

/// Runs the command with these arguments, the program's name first. Prints what it has to say and returns the exit
/// code: 0 success, 1 a failed run, 3 something could not start, 4 bad arguments or configuration, 5 a schema that does not
/// compile, 130 interrupted.
pub fn main_with(arguments: Vec<OsString>, python: Option<&dyn PythonHost>) -> i32 {
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    let context =
        Context { style: Style::of_stdout(cli.color), python, arguments: arguments.get(1..).unwrap_or_default() };
    let ran = match cli.command {
        Command::Run(command) => command.run(&context),
        Command::Call(command) => command.run(&context),
        Command::Repl(command) => command.run(&context),
        Command::Conform(command) => command.run(&context),
        Command::Eval(command) => command.run(&context),
        Command::Calls(command) => command.run(&context),
        Command::Show(command) => command.run(&context),
        Command::Tail(command) => command.run(&context),
        Command::Programs(command) => command.run(&context),
        Command::Export(command) => command.run(),
        Command::Import(command) => command.run(),
        Command::Lock(command) => command.run(),
        Command::Verify(command) => command.run(&context),
        Command::Replay(command) => command.run(&context),
        Command::Config(command) => command.run(&context),
    };
    let exit = ran.unwrap_or_else(|failure| {
        complain(&failure, Style::of_stderr(cli.color));
        failure.exit
    });
    drop(std::io::stdout().flush());
    tell_lost_lines();
    exit as i32
}

/// A log that cannot be written costs no call, but whoever asked for it hears of it.
fn tell_lost_lines() {
    cadenza_core::store::flush_all();
    cadenza_core::log::flush_all();
    let mut stderr = std::io::stderr().lock();
    for lost in cadenza_core::log::lost() {
        let plural = if lost.lines == 1 { "line" } else { "lines" };
        drop(writeln!(
            stderr,
            "warning: {} log {plural} could not be written to {}: {}",
            lost.lines,
            printable(&lost.path),
            lost.reason
        ));
    }
}

fn complain(failure: &Failure, style: Style) {
    let mut stderr = std::io::stderr().lock();
    // Nobody reads it if this fails.
    drop(writeln!(stderr, "{} {}", style.bad("error:"), printable(&failure.message)));
}

/// Help and version are answers; everything else that the parser says is bad arguments.
fn refused(error: &clap::Error) -> i32 {
    drop(error.print());
    let exit = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Ok,
        _ => Exit::Usage,
    };
    exit as i32
}
