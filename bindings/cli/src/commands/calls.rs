//! `cadenza calls [LOG]`.

use std::path::PathBuf;

use cadenza_core::value::Value;

use super::{say, say_json};
use crate::Context;
use crate::failure::{Exit, Failure};
use crate::logfile::{Entry, LogFile};
use crate::options::default_log;

/// Shows the calls of a log.
#[derive(Debug, clap::Args)]
pub struct Calls {
    /// The log; the configured one when none is named
    #[arg(value_name = "LOG")]
    log: Option<PathBuf>,
    /// Only trees with a call of this role
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Only trees with a call of this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Only trees with a failed call
    #[arg(long)]
    failed: bool,
    /// Only the last trees
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
    limit: usize,
    /// Print the entries themselves, one JSON object per line, callers before what they called
    #[arg(long)]
    json: bool,
}

impl Calls {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let path = self.log.clone().map_or_else(default_log, Ok)?;
        let log = LogFile::read(&path)?;
        let trees = log.trees();
        let fits = |entry: &Entry| {
            self.role.as_ref().is_none_or(|role| entry.text("role") == role)
                && self.method.as_ref().is_none_or(|method| entry.text("method") == method)
                && (!self.failed || !entry.ok())
        };
        let roots: Vec<_> = trees.roots.iter().filter(|root| trees.any(root, &fits)).collect();
        let skipped = roots.len().saturating_sub(self.limit);
        for root in &roots[skipped..] {
            if !self.json {
                say(trees.text(root, context.style).trim_end());
                continue;
            }
            let mut waiting = vec![**root];
            let mut shown = 0;
            while let Some(entry) = waiting.pop().filter(|_| shown < log.entries.len()) {
                shown += 1;
                say_json(&Value::Map(entry.fields().clone()));
                waiting.extend(trees.children(entry).iter().rev());
            }
        }
        if roots.is_empty() && !self.json {
            let none = if log.entries.is_empty() { "no calls" } else { "no calls fit" };
            say(&context.style.faint(none));
        }
        if skipped > 0 && !self.json {
            say(&context.style.faint(&format!("{skipped} earlier; show more with -n")));
        }
        super::complain_of(&log);
        Ok(Exit::Ok)
    }
}
