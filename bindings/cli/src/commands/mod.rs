//! One file per command: its arguments and what it does.

use std::io::Write as _;

pub mod call;
pub mod calls;
pub mod config;
pub mod conform;
pub mod programs;
pub mod repertoire;
pub mod repl;
pub mod replay;
pub mod run;
pub mod show;
pub mod tail;
pub mod verify;

/// Prints text to standard output, with a newline. A reader that went away (`| head`) is not a failure.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{text}"));
}

/// Tells on standard error that a log has lines which are no entries.
pub fn complain_of(log: &crate::logfile::LogFile) {
    if let Some(complaint) = log.complaint() {
        drop(writeln!(std::io::stderr().lock(), "{complaint}"));
    }
}
