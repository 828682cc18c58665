//! `cadenza tail LOG`.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cadenza_core::cancel::CancelToken;
use cadenza_core::printable::{printable, printable_json};

use super::say;
use crate::failure::{Exit, Failure};
use crate::logfile::{Entry, short_id};
use crate::options::default_log;
use crate::style::Style;
use crate::{Context, interrupt};

/// How often a followed log is looked at.
const TICK: Duration = Duration::from_millis(150);

/// Shows the end of a log.
#[derive(Debug, clap::Args)]
pub struct Tail {
    /// The log; the configured one when none is named
    #[arg(value_name = "LOG")]
    log: Option<PathBuf>,
    /// How many calls
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 10)]
    lines: usize,
    /// Go on with the calls to come, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Print the lines as they are
    #[arg(long)]
    json: bool,
}

impl Tail {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let path = self.log.clone().map_or_else(default_log, Ok)?;
        let mut follower = Follower::open(&path)?;
        let lines = follower.lines()?;
        for line in &lines[lines.len().saturating_sub(self.lines)..] {
            self.show(line, context.style);
        }
        if !self.follow {
            return Ok(Exit::Ok);
        }
        let cancel = CancelToken::default();
        let _guard = interrupt::guard(&cancel, None);
        while !cancel.is_cancelled() {
            for line in follower.lines()? {
                self.show(&line, context.style);
            }
            std::thread::sleep(TICK);
        }
        Ok(Exit::Interrupted)
    }

    fn show(&self, line: &str, style: Style) {
        if self.json {
            return say(&printable_json(line));
        }
        let Some(entry) = Entry::parse(line) else { return say(&style.faint(&printable(line))) };
        // The time of day, from RFC 3339.
        let time = entry.text("timestamp").get(11..19).unwrap_or_default();
        let id = short_id(entry.text("call_id"));
        let indent = "  ".repeat(entry.number("depth").clamp(0.0, 16.0) as usize);
        say(&format!(
            "{} {indent}{}  {}  {}",
            style.faint(&format!("{time} {id}")),
            entry.signature(style),
            entry.state(style),
            style.faint(&entry.cost())
        ));
    }
}

/// Reads what was added to a file since it last looked. A file that became shorter is read from its beginning.
struct Follower {
    path: PathBuf,
    at: u64,
    /// A line without its end.
    rest: Vec<u8>,
}

impl Follower {
    fn open(path: &Path) -> Result<Self, Failure> {
        let follower = Self { path: path.to_owned(), at: 0, rest: Vec::new() };
        File::open(path).map_err(|error| follower.failed(&error))?;
        Ok(follower)
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::usage(format!("log {}: {error}", self.path.display()))
    }

    /// Whole lines that are new.
    fn lines(&mut self) -> Result<Vec<String>, Failure> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            // Between two files while a log is rotated.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.failed(&error)),
        };
        let length = file.metadata().map_err(|error| self.failed(&error))?.len();
        if length < self.at {
            (self.at, self.rest) = (0, Vec::new());
        }
        let read = file.seek(SeekFrom::Start(self.at)).and_then(|_| file.read_to_end(&mut self.rest));
        self.at += read.map_err(|error| self.failed(&error))? as u64;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
        let rest = self.rest.split_off(end + 1);
        let whole = std::mem::replace(&mut self.rest, rest);
        let text = String::from_utf8_lossy(&whole);
        Ok(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_new_lines_come_and_a_shorter_file_starts_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "one\ntw").unwrap();
        let mut follower = Follower::open(&path).unwrap();
        assert_eq!(follower.lines().unwrap(), ["one"]);
        assert!(follower.lines().unwrap().is_empty());
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(follower.lines().unwrap(), ["two", "three"]);
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(follower.lines().unwrap(), ["new"]);
        std::fs::remove_file(&path).unwrap();
        assert!(follower.lines().unwrap().is_empty());
    }
}
