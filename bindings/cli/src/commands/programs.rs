//! `cadenza programs [LOG]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cadenza_core::printable::printable;
use cadenza_core::program::Language;
use cadenza_core::program::registry::Saved;
use cadenza_core::provider::library::Library;
use cadenza_core::store::Store as _;
use cadenza_core::value::{Map, Value};

use super::say;
use crate::failure::{Exit, Failure};
use crate::logfile::{LogFile, is_store, milliseconds};
use crate::options::default_log;
use crate::style::Style;
use crate::{Context, highlight, options};

/// Shows programs.
#[derive(Debug, clap::Args)]
pub struct Programs {
    /// The log; the configured one when none is named
    #[arg(value_name = "LOG", conflicts_with = "library")]
    log: Option<PathBuf>,
    /// Only of this role
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Only of this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Print the texts too
    #[arg(long)]
    code: bool,
    /// Show the programs that ship with Cadenza, not those of a log
    #[arg(long)]
    library: bool,
    /// Print one JSON object per program
    #[arg(long)]
    json: bool,
}

/// One program, and how its calls went as far as the log tells.
struct Shown {
    role: String,
    method: String,
    language: Language,
    code: String,
    model: String,
    calls: u64,
    failed: u64,
    /// Time of all calls, where it is known.
    total_ms: Option<f64>,
}

impl Programs {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let mut programs = if self.library { of_library() } else { self.of_log()? };
        programs.retain(|shown| {
            self.role.as_ref().is_none_or(|role| *role == shown.role)
                && self.method.as_ref().is_none_or(|method| *method == shown.method)
        });
        for shown in &programs {
            if self.json {
                super::say_json(&shown.to_value());
                continue;
            }
            say(&shown.line(context.style));
            if self.code {
                say(highlight::program(&shown.code, shown.language, context.style).trim_end());
                say("");
            }
        }
        Ok(Exit::Ok)
    }

    fn of_log(&self) -> Result<Vec<Shown>, Failure> {
        let path = self.log.clone().map_or_else(default_log, Ok)?;
        if is_store(&path) {
            return of_store(&path);
        }
        let log = LogFile::read(&path).map_err(|failure| {
            let hint = "programs that ship with Cadenza are shown by --library";
            Failure { message: format!("{}; {hint}", failure.message), ..failure }
        })?;
        let mut programs: BTreeMap<(String, String, Language, String), Shown> = BTreeMap::new();
        for entry in log.entries.iter().filter(|entry| !entry.text("code").is_empty()) {
            let text = |name: &str| entry.data(name).to_owned();
            let key = (text("role"), text("method"), entry.language(), text("code"));
            let shown = programs.entry(key).or_insert_with_key(|(role, method, language, code)| Shown {
                role: role.clone(),
                method: method.clone(),
                language: *language,
                code: code.clone(),
                model: text("model"),
                calls: 0,
                failed: 0,
                total_ms: Some(0.0),
            });
            shown.calls += 1;
            shown.failed += u64::from(!entry.ok());
            shown.total_ms = shown.total_ms.map(|total| total + entry.number("duration_ms"));
        }
        super::complain_of(&log);
        Ok(programs.into_values().collect())
    }
}

/// Kept programs, with the counters of all processes that ran them.
fn of_store(path: &Path) -> Result<Vec<Shown>, Failure> {
    let saved = options::open(path)?.programs(None).map_err(Failure::failed)?;
    let shown = |saved: Saved| Shown {
        role: saved.key.role.to_string(),
        method: saved.key.method.to_string(),
        language: saved.key.language,
        code: saved.code.to_string(),
        model: saved.model.to_string(),
        calls: saved.uses,
        failed: saved.failures,
        total_ms: None,
    };
    Ok(saved.into_iter().map(shown).collect())
}

fn of_library() -> Vec<Shown> {
    let library = Library::embedded();
    let mut programs = Vec::new();
    for role in library.roles() {
        for method in library.methods(role) {
            for language in Language::ALL {
                let Some(code) = library.program(role, method, language) else { continue };
                programs.push(Shown {
                    role: role.to_owned(),
                    method: method.to_owned(),
                    language,
                    code: code.to_owned(),
                    model: "library".to_owned(),
                    calls: 0,
                    failed: 0,
                    total_ms: None,
                });
            }
        }
    }
    programs
}

impl Shown {
    fn line(&self, style: Style) -> String {
        let (role, method, model) = (printable(&self.role), printable(&self.method), printable(&self.model));
        let name = format!("{}.{}", style.name(&role), style.strong(&method));
        let mut about = format!("{} by {}, {} lines", self.language, model, self.code.lines().count());
        if self.calls > 0 {
            about.push_str(&format!(", {} calls, {} failed", self.calls, self.failed));
            if let Some(total_ms) = self.total_ms {
                about.push_str(&format!(", {} each", milliseconds(total_ms / self.calls as f64)));
            }
        }
        format!("{name}  {}", style.faint(&about))
    }

    fn to_value(&self) -> Value {
        Value::Map(Map::from([
            ("role".to_owned(), self.role.as_str().into()),
            ("method".to_owned(), self.method.as_str().into()),
            ("language".to_owned(), self.language.as_str().into()),
            ("model".to_owned(), self.model.as_str().into()),
            ("code".to_owned(), self.code.as_str().into()),
            ("calls".to_owned(), Value::Int(self.calls as i64)),
            ("failed".to_owned(), Value::Int(self.failed as i64)),
        ]))
    }
}
