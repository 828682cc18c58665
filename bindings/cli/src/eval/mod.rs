//! The golden corpus: everyday calls with a checker each, run against any model and scored.
//!
//! A case is a story of one agent: what it remembers, which tools it has, and the calls that are made one after the other.
//! Every case runs in a fresh runtime in memory, without reuse unless the case is about reuse, so that each call is asked
//! of the model. What a model's value is worth is decided by the case's checkers alone; nothing here looks at programs.

use std::path::PathBuf;

mod case;
mod checker;
mod report;
mod runner;

pub use case::{Call, Case, CorpusFile, TableTool};
pub use checker::{Answer, Expect, check};
pub use report::{CaseResult, Report, Score};
pub use runner::{Evaluation, Progress, Run, Stopped};

use crate::conform::document::Fault;

macro_rules! corpus {
    ($($group:literal),* $(,)?) => {
        [$((concat!($group, ".yaml"), include_str!(concat!("../../../../scenarios/eval/", $group, ".yaml")))),*]
    };
}

/// The corpus of this build: file names and texts.
pub const CORPUS: [(&str, &str); 10] =
    corpus!["calculator", "csv", "dates", "delegation", "follow_ups", "lists", "state", "text", "tools", "units",];

/// The cases of these files and folders, or of the corpus that is built in when there are none. Ids are unique in all.
pub fn cases(paths: &[PathBuf]) -> Result<Vec<Case>, CorpusError> {
    let mut files = Vec::new();
    if paths.is_empty() {
        files.extend(CORPUS.iter().map(|(name, text)| (PathBuf::from(name), (*text).to_owned())));
    }
    for path in crate::conform::listed(paths).map_err(|error| CorpusError::Unreadable(error.to_string()))? {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| CorpusError::Unreadable(format!("{}: {error}", path.display())))?;
        files.push((path, text));
    }
    let mut cases: Vec<Case> = Vec::new();
    for (path, text) in files {
        let malformed = |fault| CorpusError::Malformed { path: path.clone(), fault };
        for case in CorpusFile::parse(&text).map_err(malformed)?.cases {
            if cases.iter().any(|other| other.id == case.id) {
                return Err(malformed(Fault::new(case.line, format!("the id `{}` is there twice", case.id))));
            }
            cases.push(case);
        }
    }
    Ok(cases)
}

/// Those whose id or group is asked for; all when nothing is.
pub fn only(cases: Vec<Case>, asked: &[String]) -> Result<Vec<Case>, CorpusError> {
    let fits = |case: &Case, name: &String| case.id == *name || case.group == *name;
    if let Some(nothing) = asked.iter().find(|name| !cases.iter().any(|case| fits(case, name))) {
        let mut groups: Vec<&str> = cases.iter().map(|case| case.group.as_str()).collect();
        groups.dedup();
        return Err(CorpusError::NoSuchCase { asked: nothing.clone(), groups: groups.join(", ") });
    }
    Ok(cases.into_iter().filter(|case| asked.is_empty() || asked.iter().any(|name| fits(case, name))).collect())
}

/// Why there is no corpus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CorpusError {
    /// A file or folder cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// A file is not a corpus file.
    #[error("{}:{}: {}", path.display(), fault.line, fault.message)]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Where and why.
        fault: Fault,
    },
    /// `--only` names nothing.
    #[error("no case and no group is called {asked:?}; groups are: {groups}")]
    NoSuchCase {
        /// As written.
        asked: String,
        /// Those that exist.
        groups: String,
    },
}

/// The nearest rank of a share of sorted numbers; 0 of none.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank.min(sorted.len()).wrapping_sub(1)).copied().unwrap_or_default()
}
