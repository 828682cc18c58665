//! What an evaluation comes to: scores per case, per group and in all, as data and as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use cadenza_core::printable::printable;
use cadenza_core::program::Language;
use cadenza_core::prompt::SECTIONS;
use cadenza_core::value::{Map, Value};

use super::runner::Run;
use super::{Case, percentile};
use crate::logfile::{cut, milliseconds};
use crate::style::Style;
use crate::tokens::PromptTokens;

/// Version of the published form.
const VERSION: i64 = 1;

/// Characters of a reason in text; the data has it whole.
const MAX_REASON: usize = 240;

/// What came of one case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// As in the file.
    pub id: String,
    /// Its group.
    pub group: String,
    /// At least one.
    pub runs: Vec<Run>,
}

/// What some runs come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Runs.
    pub runs: usize,
    /// Those whose answers were all taken.
    pub passed: usize,
    /// Of those, the ones without a second attempt.
    pub first_attempt: usize,
    /// Attempts of all calls.
    pub attempts: u64,
    /// Prompt tokens, as the model reports them.
    pub tokens_in: u64,
    /// Completion tokens.
    pub tokens_out: u64,
    /// Median time of a call.
    pub median_ms: f64,
    /// Time that nineteen of twenty calls stay within.
    pub p95_ms: f64,
}

/// The outcome of an evaluation.
#[derive(Clone, Debug)]
pub struct Report {
    /// The model as logged.
    pub model: String,
    /// Language of the programs.
    pub language: Language,
    /// In the order of the corpus.
    pub cases: Vec<CaseResult>,
}

impl Score {
    fn of<'a>(runs: impl Iterator<Item = &'a Run>) -> Self {
        let mut score = Self::default();
        let mut times = Vec::new();
        for run in runs {
            score.runs += 1;
            score.passed += usize::from(run.failure.is_none());
            score.first_attempt += usize::from(run.failure.is_none() && run.first_attempt);
            score.attempts += u64::from(run.attempts);
            score.tokens_in += run.tokens_in;
            score.tokens_out += run.tokens_out;
            times.extend(run.latencies.iter().map(|time| time.as_secs_f64() * 1e3));
        }
        times.sort_by(f64::total_cmp);
        (score.median_ms, score.p95_ms) = (percentile(&times, 0.5), percentile(&times, 0.95));
        score
    }

    fn to_map(&self) -> Map {
        let whole = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let time = |ms: f64| Value::Float((ms * 1e3).round() / 1e3);
        Map::from([
            ("runs".to_owned(), whole(self.runs as u64)),
            ("passed".to_owned(), whole(self.passed as u64)),
            ("first_attempt".to_owned(), whole(self.first_attempt as u64)),
            ("attempts".to_owned(), whole(self.attempts)),
            ("tokens_in".to_owned(), whole(self.tokens_in)),
            ("tokens_out".to_owned(), whole(self.tokens_out)),
            ("median_ms".to_owned(), time(self.median_ms)),
            ("p95_ms".to_owned(), time(self.p95_ms)),
        ])
    }

    fn columns(&self) -> [String; 8] {
        [
            self.runs.to_string(),
            self.passed.to_string(),
            self.first_attempt.to_string(),
            self.attempts.to_string(),
            self.tokens_in.to_string(),
            self.tokens_out.to_string(),
            milliseconds(self.median_ms),
            milliseconds(self.p95_ms),
        ]
    }
}

impl CaseResult {
    /// Why it failed, the first time that it did.
    pub fn failure(&self) -> Option<&str> {
        self.runs.iter().find_map(|run| run.failure.as_deref())
    }
}

impl Report {
    /// Puts cases and their runs together.
    pub fn new(model: &str, language: Language, cases: &[Case], runs: Vec<Vec<Run>>) -> Self {
        let result =
            |(case, runs): (&Case, Vec<Run>)| CaseResult { id: case.id.clone(), group: case.group.clone(), runs };
        Self { model: model.to_owned(), language, cases: cases.iter().zip(runs).map(result).collect() }
    }

    /// Whether every run of every case passed, and there was one.
    pub fn ok(&self) -> bool {
        !self.cases.is_empty() && self.cases.iter().all(|case| case.failure().is_none())
    }

    /// The score of everything.
    pub fn total(&self) -> Score {
        Score::of(self.cases.iter().flat_map(|case| &case.runs))
    }

    /// The scores of the groups, by name.
    pub fn groups(&self) -> BTreeMap<&str, Score> {
        let names: Vec<&str> = self.cases.iter().map(|case| case.group.as_str()).collect();
        let of =
            |group: &str| Score::of(self.cases.iter().filter(|case| case.group == group).flat_map(|case| &case.runs));
        names.into_iter().map(|group| (group, of(group))).collect()
    }

    /// Median tokens of each section of the prompts in which it stands, and of whole prompts as `total`. Empty in a build
    /// without `tokens`.
    pub fn sections(&self) -> Vec<(&'static str, u64)> {
        let mut counts: Vec<(&'static str, Vec<f64>)> =
            SECTIONS.into_iter().chain(["total"]).map(|name| (name, Vec::new())).collect();
        // System prompts repeat: each is counted once.
        let mut systems: BTreeMap<&str, PromptTokens> = BTreeMap::new();
        for (system, user) in self.cases.iter().flat_map(|case| &case.runs).flat_map(|run| &run.prompts) {
            let own = PromptTokens::of_texts("", user).sections;
            let shared = systems.entry(system).or_insert_with(|| PromptTokens::of_texts(system, ""));
            let mut found = shared.clone();
            for (name, tokens) in own {
                match found.sections.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => *sum += tokens,
                    None => found.sections.push((name, tokens)),
                }
            }
            let total = ("total", found.total());
            for (name, tokens) in found.sections.into_iter().chain([total]).filter(|(_, tokens)| *tokens > 0) {
                counts.iter_mut().filter(|(known, _)| *known == name).for_each(|(_, list)| list.push(tokens as f64));
            }
        }
        counts.retain(|(_, list)| !list.is_empty());
        let median = |(name, mut list): (&'static str, Vec<f64>)| {
            list.sort_by(f64::total_cmp);
            (name, percentile(&list, 0.5) as u64)
        };
        counts.into_iter().map(median).collect()
    }

    /// The published form.
    pub fn to_value(&self) -> Value {
        let cases = self.cases.iter().map(|case| {
            let mut map = Score::of(case.runs.iter()).to_map();
            map.insert("id".to_owned(), case.id.as_str().into());
            map.insert("group".to_owned(), case.group.as_str().into());
            if let Some(failure) = case.failure() {
                map.insert("failure".to_owned(), failure.into());
            }
            Value::Map(map)
        });
        let groups = self.groups().into_iter().map(|(name, score)| (name.to_owned(), Value::Map(score.to_map())));
        let sections = self.sections().into_iter().map(|(name, tokens)| (name.to_owned(), Value::Int(tokens as i64)));
        Value::Map(Map::from([
            ("version".to_owned(), Value::Int(VERSION)),
            ("model".to_owned(), self.model.as_str().into()),
            ("language".to_owned(), self.language.as_str().into()),
            ("total".to_owned(), Value::Map(self.total().to_map())),
            ("groups".to_owned(), Value::Map(groups.collect())),
            ("cases".to_owned(), Value::List(cases.collect())),
            ("prompt_tokens".to_owned(), Value::Map(sections.collect())),
        ]))
    }

    /// For people: what failed and why, one row per case, per group and in all.
    pub fn to_text(&self, style: Style) -> String {
        const HEADINGS: [&str; 9] =
            ["", "runs", "passed", "first try", "attempts", "tokens in", "tokens out", "median", "p95"];
        let row = |name: String, score: &Score| {
            let [a, b, c, d, e, f, g, h] = score.columns();
            [name, a, b, c, d, e, f, g, h]
        };
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        for (group, score) in self.groups() {
            rows.push(row(group.to_owned(), &score));
            for case in self.cases.iter().filter(|case| case.group == group) {
                let name = case.id.strip_prefix(group).unwrap_or(&case.id).trim_start_matches('.');
                rows.push(row(format!("  {name}"), &Score::of(case.runs.iter())));
            }
        }
        rows.push(row("total".to_owned(), &self.total()));
        let mut text = table(&rows, style);
        let sections = self.sections();
        if !sections.is_empty() {
            let list: Vec<String> = sections.iter().map(|(name, tokens)| format!("{name} {tokens}")).collect();
            let line = format!("prompt tokens by section, median, an estimate with o200k_base: {}", list.join(", "));
            let _ = writeln!(text, "\n{}", style.faint(&line));
        }
        for case in &self.cases {
            if let Some(failure) = case.failure() {
                let failure = printable(cut(failure, MAX_REASON).as_str()).replace('\n', "\n      ");
                let _ = writeln!(text, "{}  {}\n      {failure}", style.bad("FAIL"), case.id);
            }
        }
        let total = self.total();
        let counts = format!("{} of {} passed, {} at the first attempt", total.passed, total.runs, total.first_attempt);
        let counts = if self.ok() { style.good(&counts) } else { style.bad(&counts) };
        let _ = writeln!(text, "{counts} ({}, programs in {})", printable(&self.model), self.language);
        text
    }
}

/// Rows in columns: names to the left, numbers to the right. The first row is the heading, the last the total.
fn table(rows: &[[String; 9]], style: Style) -> String {
    let mut widths = [0; 9];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let line = match index {
            0 => style.faint(&line),
            _ if index + 1 == rows.len() || !row[0].starts_with(' ') => style.strong(&line),
            _ => line,
        };
        let _ = writeln!(text, "{line}");
    }
    text
}
