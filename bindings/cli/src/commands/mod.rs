//! One file per command: its arguments and what it does.

use std::io::Write as _;

use cadenza_core::printable::printable_json;
use cadenza_core::value::Value;

pub mod call;
pub mod calls;
pub mod config;
pub mod conform;
pub mod eval;
pub mod programs;
pub mod repertoire;
pub mod repl;
pub mod replay;
pub mod run;
pub mod show;
pub mod tail;
pub mod verify;

/// Prints text to standard output, with a newline. A reader that went away (`| head`) is not a failure. Text that others
/// wrote goes through [`printable`](cadenza_core::printable::printable) first.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{text}"));
}

/// Prints data as one line of JSON, which means the same to a program and nothing to a terminal.
pub fn say_json(value: &Value) {
    say(&printable_json(&value.to_json()));
}

/// Tells on standard error that a log has lines which are no entries.
pub fn complain_of(log: &crate::logfile::LogFile) {
    if let Some(complaint) = log.complaint() {
        drop(writeln!(std::io::stderr().lock(), "{complaint}"));
    }
}
