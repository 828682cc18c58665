//! `cadenza tail LOG`: of a log or of a store.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cadenza_core::cancel::CancelToken;
use cadenza_core::printable::{printable, printable_json};
use cadenza_core::store::{CallQuery, SqliteStore, Store as _};
use cadenza_core::value::Value;

use super::{say, say_json};
use crate::failure::{Exit, Failure};
use crate::logfile::{Entry, is_store, short_id};
use crate::options::default_log;
use crate::style::Style;
use crate::{Context, interrupt, options};

/// How often a followed log or store is looked at.
const TICK: Duration = Duration::from_millis(150);

/// Calls of a followed store that are read at once.
const PAGE: usize = 1_000;

/// Shows the end of a log or store.
#[derive(Debug, clap::Args)]
pub struct Tail {
    /// The log or store; the configured one when none is named
    #[arg(value_name = "LOG")]
    log: Option<PathBuf>,
    /// How many calls
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 10)]
    lines: usize,
    /// Go on with the calls to come, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Print the calls themselves, one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Tail {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let path = self.log.clone().map_or_else(default_log, Ok)?;
        let mut end = if is_store(&path) { End::of_store(&path)? } else { End::Log(Follower::open(&path)?) };
        end.last(self.lines)?.iter().for_each(|call| self.show(call, context.style));
        if !self.follow {
            return Ok(Exit::Ok);
        }
        let cancel = CancelToken::default();
        let _guard = interrupt::guard(&cancel, None);
        while !cancel.is_cancelled() {
            let new = end.since()?;
            new.iter().for_each(|call| self.show(call, context.style));
            if new.is_empty() {
                std::thread::sleep(TICK);
            }
        }
        Ok(Exit::Interrupted)
    }

    fn show(&self, call: &Call, style: Style) {
        let parsed;
        let entry: &Entry = match call {
            Call::Line(line) if self.json => return say(&printable_json(line)),
            Call::Line(line) => match Entry::parse(line) {
                Some(entry) => {
                    parsed = entry;
                    &parsed
                }
                None => return say(&style.faint(&printable(line))),
            },
            Call::Stored(entry) if self.json => return say_json(&Value::Map(entry.fields().clone())),
            Call::Stored(entry) => entry,
        };
        // The time of day, from RFC 3339.
        let time = entry.text("timestamp").get(11..19).unwrap_or_default();
        let id = short_id(entry.text("call_id"));
        let indent = "  ".repeat(entry.number("depth").clamp(0.0, 16.0) as usize);
        say(&format!(
            "{} {indent}{}  {}  {}",
            style.faint(&format!("{time} {id}")),
            entry.signature(style),
            entry.state(style),
            style.faint(&format!("{}{}", entry.cost(), entry.whose()))
        ));
    }
}

/// One call as it is shown.
enum Call {
    /// A line of a log, which may be none.
    Line(String),
    /// A call of a store.
    Stored(Box<Entry>),
}

/// Where new calls appear.
enum End {
    Log(Follower),
    Store {
        store: Arc<SqliteStore>,
        /// Place of the last call that was seen.
        after: i64,
    },
}

impl End {
    fn of_store(path: &Path) -> Result<Self, Failure> {
        Ok(Self::Store { store: options::open(path)?, after: 0 })
    }

    /// The last calls that are there, oldest first.
    fn last(&mut self, count: usize) -> Result<Vec<Call>, Failure> {
        match self {
            Self::Log(follower) => {
                let mut lines = follower.lines()?;
                let first = lines.len().saturating_sub(count);
                Ok(lines.drain(first..).map(Call::Line).collect())
            }
            Self::Store { store, after } => {
                // One at least, to know where new ones begin.
                let query = CallQuery { limit: count.max(1), ..CallQuery::default() };
                let mut calls = store.calls(&query).map_err(Failure::failed)?;
                *after = calls.first().map_or(0, |call| call.gseq);
                calls.truncate(count);
                Ok(calls.into_iter().rev().map(|call| Call::Stored(Box::new(Entry::of_stored(call)))).collect())
            }
        }
    }

    /// Calls that ended since, oldest first.
    fn since(&mut self) -> Result<Vec<Call>, Failure> {
        match self {
            Self::Log(follower) => Ok(follower.lines()?.into_iter().map(Call::Line).collect()),
            Self::Store { store, after } => {
                let query = CallQuery { after: Some(*after), limit: PAGE, ..CallQuery::default() };
                let calls = store.calls(&query).map_err(Failure::failed)?;
                *after = calls.last().map_or(*after, |call| call.gseq);
                Ok(calls.into_iter().map(|call| Call::Stored(Box::new(Entry::of_stored(call)))).collect())
            }
        }
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
