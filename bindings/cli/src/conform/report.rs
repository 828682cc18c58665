//! What came of a conformance run (formats.md 1.6), as data and as text.

use std::fmt::Write as _;

use cadenza_core::printable::printable;
use cadenza_core::program::Language;
use cadenza_core::value::{Map, Value};

use crate::style::Style;

/// The outcome of one scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioResult {
    /// As in the file.
    pub id: String,
    /// Why it failed; `None` when it passed.
    pub failure: Option<String>,
    /// What a reader should know although it passed, such as an overrun plan.
    pub note: Option<String>,
    /// The lines of its world's log. Not part of the report.
    pub log: Vec<String>,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// `rust`, `python`, `lua`, `rhai`, or `kernel` for scenarios of the execution contract alone.
    pub runtime: &'static str,
    /// Language of the programs.
    pub language: Language,
    /// `memory` or `sqlite`.
    pub store: &'static str,
    /// In the order in which they ran.
    pub results: Vec<ScenarioResult>,
    /// Where scenarios ran under model profiles: which, and what their forms cannot say.
    pub profiles: Option<ProfilesRan>,
}

/// Under which model profiles scenarios ran.
#[derive(Clone, Debug)]
pub struct ProfilesRan {
    /// Their names.
    pub names: Vec<&'static str>,
    /// What was left out, and why.
    pub left_out: Vec<(String, String)>,
}

impl Report {
    /// How many passed.
    pub fn passed(&self) -> usize {
        self.results.iter().filter(|result| result.failure.is_none()).count()
    }

    /// How many failed.
    pub fn failed(&self) -> usize {
        self.results.len() - self.passed()
    }

    /// Whether all passed and at least one ran.
    pub fn ok(&self) -> bool {
        self.failed() == 0 && !self.results.is_empty()
    }

    /// The published form.
    pub fn to_value(&self) -> Value {
        let results = self.results.iter().map(|result| {
            let mut map = Map::from([
                ("id".to_owned(), result.id.as_str().into()),
                ("status".to_owned(), if result.failure.is_none() { "pass" } else { "fail" }.into()),
            ]);
            if let Some(failure) = &result.failure {
                map.insert("detail".to_owned(), failure.as_str().into());
            }
            if let Some(note) = &result.note {
                map.insert("note".to_owned(), note.as_str().into());
            }
            Value::Map(map)
        });
        let mut report = Map::from([
            ("runtime".to_owned(), self.runtime.into()),
            ("language".to_owned(), self.language.as_str().into()),
            ("store".to_owned(), self.store.into()),
            ("contract_version".to_owned(), Value::Int(super::scenario::VERSION)),
            ("passed".to_owned(), Value::Int(self.passed() as i64)),
            ("failed".to_owned(), Value::Int(self.failed() as i64)),
            ("results".to_owned(), Value::List(results.collect())),
        ]);
        if let Some(ProfilesRan { names, left_out }) = &self.profiles {
            let left_out = left_out.iter().map(|(id, why)| (id.clone(), why.as_str().into())).collect();
            report.insert("profiles".to_owned(), Value::List(names.iter().map(|name| (*name).into()).collect()));
            report.insert("left_out".to_owned(), Value::Map(left_out));
        }
        Value::Map(report)
    }

    /// For people: one line per scenario, then the count.
    pub fn to_text(&self, style: Style) -> String {
        let mut text = String::new();
        for result in &self.results {
            let line = match &result.failure {
                None => format!("{}  {}", style.good("pass"), result.id),
                Some(detail) => {
                    format!(
                        "{}  {}\n      {}",
                        style.bad("FAIL"),
                        result.id,
                        printable(detail).replace('\n', "\n      ")
                    )
                }
            };
            let _ = writeln!(text, "{line}");
            if let Some(note) = &result.note {
                let _ = writeln!(text, "      {}", style.faint(note));
            }
        }
        let (passed, failed) = (self.passed(), self.failed());
        let counts = format!("{passed} passed, {failed} failed");
        let counts = if self.ok() { style.good(&counts) } else { style.bad(&counts) };
        let _ = match &self.profiles {
            None => writeln!(
                text,
                "{counts} (runtime {}, programs in {}, store {})",
                self.runtime, self.language, self.store
            ),
            Some(ProfilesRan { names, left_out }) => writeln!(
                text,
                "{counts}, {} left out, for the form of their profile cannot say them (runtime {}, profiles {})",
                left_out.len(),
                self.runtime,
                names.join(", ")
            ),
        };
        text
    }
}
