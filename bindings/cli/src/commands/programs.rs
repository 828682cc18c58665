//! `cadenza programs`: the repertoire, and what people do with it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use cadenza_core::log::record::rfc3339;
use cadenza_core::printable::printable;
use cadenza_core::program::Language;
use cadenza_core::program::registry::{ProgramState, Standing};
use cadenza_core::provider::library::Library;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::repertoire::{Listed, ProgramQuery, RepertoireError, diff};
use cadenza_core::value::{Map, Value};

use super::{say, say_json};
use crate::failure::{Exit, Failure};
use crate::logfile::{LogFile, cut, is_store, milliseconds};
use crate::options::{StoreArgs, default_log};
use crate::style::Style;
use crate::{Context, editor, highlight};

/// Shows programs, and changes those of a store.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Programs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: List,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List programs: of a store, a log or the embedded library
    List(List),
    /// Show one program with what is known about it
    Show(One),
    /// Show how two programs differ; with one, how it differs from the version before
    Diff(Diff),
    /// List every version of a method with its state, oldest first
    History(One),
    /// Let a program come before all others of its method
    Pin(One),
    /// Leave a program to its evidence again: neither pinned nor quarantined
    Approve(One),
    /// Put a program aside: it does not run any more
    Quarantine(One),
    /// Change a program's text: the new text is a new version, pinned
    Edit(Edit),
    /// Delete a program; the calls that ran it keep its text
    Delete(One),
    /// Write methods as documented source files, with tests made of their recorded calls and types for Python
    Eject(Eject),
}

/// Lists programs.
#[derive(Debug, clap::Args)]
struct List {
    /// The log or store; the configured one when none is named
    #[arg(value_name = "LOG", conflicts_with_all = ["library", "store"])]
    log: Option<PathBuf>,
    /// The store
    #[arg(long, value_name = "PATH", conflicts_with = "library")]
    store: Option<PathBuf>,
    /// Only of this role
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Only of this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Only of this namespace; for stores
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "library")]
    namespace: Option<String>,
    /// Only in this state; for stores
    #[arg(long, value_name = "STATE", value_parser = ProgramState::ALL.map(ProgramState::as_str), conflicts_with = "library")]
    state: Option<String>,
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

/// One program of a store.
#[derive(Debug, clap::Args)]
struct One {
    /// The program: its id, at least four digits of its beginning, or `role.method`
    #[arg(value_name = "PROGRAM")]
    program: String,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, clap::Args)]
struct Diff {
    /// The program: its id, at least four digits of its beginning, or `role.method`
    #[arg(value_name = "PROGRAM")]
    program: String,
    /// Another one; the version before the first when none is named
    #[arg(value_name = "OTHER")]
    other: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, clap::Args)]
struct Edit {
    /// The program: its id, at least four digits of its beginning, or `role.method`
    #[arg(value_name = "PROGRAM")]
    program: String,
    /// Take the new text from this file, `-` for standard input, and open no editor
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Take it although it answers recorded calls otherwise
    #[arg(long)]
    accept: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, clap::Args)]
struct Eject {
    /// The role
    #[arg(value_name = "ROLE")]
    role: String,
    /// Only this method
    #[arg(value_name = "METHOD")]
    method: Option<String>,
    /// The folder; made when missing
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
}

impl Programs {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let style = context.style;
        match self.action {
            None => self.list.run(context),
            Some(Action::List(list)) => list.run(context),
            Some(Action::Show(one)) => one.show(style),
            Some(Action::Diff(diff)) => diff.run(style),
            Some(Action::History(one)) => one.history(style),
            Some(Action::Pin(one)) => one.set_state(ProgramState::Pinned, style),
            Some(Action::Approve(one)) => one.set_state(ProgramState::Active, style),
            Some(Action::Quarantine(one)) => one.set_state(ProgramState::Quarantined, style),
            Some(Action::Edit(edit)) => edit.run(style),
            Some(Action::Delete(one)) => one.delete(),
            Some(Action::Eject(eject)) => eject.run(),
        }
    }
}

impl List {
    fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let style = context.style;
        let path = if self.library { None } else { Some(self.path()?) };
        if let Some(path) = path.as_deref().filter(|path| self.store.is_some() || is_store(path)) {
            return self.of_store(path, style);
        }
        if self.namespace.is_some() || self.state.is_some() {
            return Err(Failure::usage(
                "--namespace and --state are for programs of a store; name one with --store PATH",
            ));
        }
        let mut programs = path.map_or_else(|| Ok(of_library()), |path| of_log(&path))?;
        programs.retain(|shown| {
            self.role.as_ref().is_none_or(|role| *role == shown.role)
                && self.method.as_ref().is_none_or(|method| *method == shown.method)
        });
        for shown in &programs {
            if self.json {
                say_json(&shown.to_value());
                continue;
            }
            say(&shown.line(style));
            self.say_code(&shown.code, shown.language, style);
        }
        Ok(Exit::Ok)
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        self.store.clone().or_else(|| self.log.clone()).map_or_else(default_log, Ok)
    }

    /// Kept programs, with the counters of all processes that ran them.
    fn of_store(&self, path: &Path, style: Style) -> Result<Exit, Failure> {
        let query = ProgramQuery {
            namespace: self.namespace.clone(),
            role: self.role.clone(),
            method: self.method.clone(),
            language: None,
            state: self.state.as_deref().and_then(ProgramState::from_name),
        };
        let runtime = crate::options::runtime_of(Some(path.to_owned()))?;
        for listed in runtime.programs(&query).map_err(Failure::failed)? {
            if self.json {
                say_json(&Value::Map(listed.to_map()));
                continue;
            }
            say(&line(&listed, style));
            self.say_code(&listed.saved.code, listed.saved.key.language, style);
        }
        Ok(Exit::Ok)
    }

    fn say_code(&self, code: &str, language: Language, style: Style) {
        if self.code {
            say(highlight::program(code, language, style).trim_end());
            say("");
        }
    }
}

impl One {
    fn show(self, style: Style) -> Result<Exit, Failure> {
        let runtime = self.store.runtime()?;
        let listed = runtime.find_program(&self.program).map_err(refused)?;
        let values = runtime.input_values(&listed).map_err(Failure::failed)?;
        if self.store.json {
            say_json(&Value::Map(with_values(&listed, &values)));
            return Ok(Exit::Ok);
        }
        say(&title(&listed, style));
        for (name, value) in facts(&listed, &values) {
            say(&format!("{}  {}", style.faint(&format!("{:>12}", printable(&name))), printable(&value)));
        }
        say(&format!("\n{}", style.strong("program")));
        say(highlight::program(&listed.saved.code, listed.saved.key.language, style).trim_end());
        Ok(Exit::Ok)
    }

    fn history(self, style: Style) -> Result<Exit, Failure> {
        let runtime = self.store.runtime()?;
        for listed in runtime.history(&self.program).map_err(refused)? {
            if self.store.json {
                say_json(&Value::Map(listed.to_map()));
            } else {
                say(&line(&listed, style));
            }
        }
        Ok(Exit::Ok)
    }

    fn set_state(self, state: ProgramState, style: Style) -> Result<Exit, Failure> {
        let runtime = self.store.runtime()?;
        let listed = runtime.find_program(&self.program).map_err(refused)?;
        if !runtime.set_program_state(listed.id, state).map_err(Failure::failed)? {
            return Err(Failure::usage(format!("no program {:?}: it was deleted just now", self.program)));
        }
        let listed = runtime.find_program(&listed.id.to_hex()).map_err(refused)?;
        self.store.tell(&listed, style);
        Ok(Exit::Ok)
    }

    fn delete(self) -> Result<Exit, Failure> {
        let runtime = self.store.runtime()?;
        let listed = runtime.find_program(&self.program).map_err(refused)?;
        runtime.delete_program(&listed).map_err(Failure::failed)?;
        if self.store.json {
            say_json(&Value::Map(Map::from([("deleted".to_owned(), listed.id.to_hex().into())])));
        } else {
            let (name, version) = (listed.name(), listed.saved.version);
            say(&format!("deleted {} {} version {version}", listed.short_id(), printable(&name)));
        }
        Ok(Exit::Ok)
    }
}

impl Diff {
    fn run(self, style: Style) -> Result<Exit, Failure> {
        let runtime = self.store.runtime()?;
        let (old, new) = match &self.other {
            Some(other) => (
                runtime.newest_program(&self.program).map_err(refused)?,
                runtime.newest_program(other).map_err(refused)?,
            ),
            None => {
                let new = runtime.newest_program(&self.program).map_err(refused)?;
                let old = runtime.previous_version(&new).map_err(Failure::failed)?.ok_or_else(|| {
                    Failure::usage(format!("{} has no earlier version; name two programs", self.program))
                })?;
                (old, new)
            }
        };
        let diff = diff(&old, &new);
        if self.store.json {
            let fields = [("old", old.id.to_hex()), ("new", new.id.to_hex()), ("diff", diff)];
            let fields: Map = fields.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
            say_json(&Value::Map(fields));
        } else if diff.is_empty() {
            say(&style.faint("the texts are equal"));
        } else {
            for line in printable(&diff).lines() {
                say(&painted(line, style));
            }
        }
        Ok(Exit::Ok)
    }
}

impl Edit {
    fn run(self, style: Style) -> Result<Exit, Failure> {
        let runtime = self.store.runtime()?;
        let listed = runtime.find_program(&self.program).map_err(refused)?;
        let edited = match &self.file {
            Some(path) => self.take(&runtime, &listed, &read(path)?).map_err(refused),
            None => {
                let text = editor::Text::open(&listed)?;
                self.take(&runtime, &listed, text.code()).map_err(|error| match &error {
                    RepertoireError::Unchanged(_) => Failure::failed(error),
                    // What somebody wrote is not lost with the reason why it cannot be taken.
                    _ => Failure::failed(format!("{error}\nyour text is in {}; take it with --file", text.keep())),
                })
            }
        };
        self.store.tell(&edited?, style);
        Ok(Exit::Ok)
    }

    fn take(&self, runtime: &Runtime, listed: &Listed, code: &str) -> Result<Listed, RepertoireError> {
        runtime.edit_program(listed, code, self.accept)
    }
}

impl Eject {
    fn run(self) -> Result<Exit, Failure> {
        let runtime = self.store.runtime()?;
        let written = runtime.eject(&self.role, self.method.as_deref(), &self.to).map_err(refused)?;
        let paths: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
        if self.store.json {
            let files = paths.iter().map(|path| path.as_str().into()).collect();
            say_json(&Value::Map(Map::from([("files".to_owned(), Value::List(files))])));
        } else {
            paths.iter().for_each(|path| say(&printable(path)));
        }
        Ok(Exit::Ok)
    }
}

impl StoreArgs {
    /// Tells how a program is now.
    fn tell(&self, listed: &Listed, style: Style) {
        if self.json {
            say_json(&Value::Map(listed.to_map()));
        } else {
            say(&line(listed, style));
        }
    }
}

/// A text from a file or from standard input.
fn read(path: &Path) -> Result<String, Failure> {
    let read = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// What the repertoire refuses: wrong use, unless the store failed.
pub(super) fn refused(error: RepertoireError) -> Failure {
    match error {
        RepertoireError::Store(error) => Failure::failed(error),
        RepertoireError::Compile { .. } | RepertoireError::Unchanged(_) => Failure::failed(error),
        RepertoireError::Differs { .. } => Failure::failed(format!("{error}\nto take it all the same: --accept")),
        RepertoireError::Unknown { .. }
        | RepertoireError::Ambiguous { .. }
        | RepertoireError::Language { .. }
        | RepertoireError::Folder(_)
        | RepertoireError::Lock(_) => Failure::usage(error),
    }
}

/// A program in one line.
fn line(listed: &Listed, style: Style) -> String {
    let saved = &listed.saved;
    let mut about =
        format!("{} by {}, {} lines", saved.key.language, printable(&saved.model), saved.code.lines().count());
    if &*saved.key.namespace != "default" {
        about.push_str(&format!(", namespace {}", printable(&saved.key.namespace)));
    }
    if saved.uses > 0 {
        about.push_str(&format!(", {} uses, {} failed", saved.uses, saved.failures));
    }
    let bound = bound(listed);
    if !bound.is_empty() {
        about.push_str(&format!(", bound to {}", printable(&bound.join(", "))));
    }
    format!("{} {}  {}", style.faint(&listed.short_id()), title(listed, style), style.faint(&about))
}

fn title(listed: &Listed, style: Style) -> String {
    let key = &listed.saved.key;
    let state = listed.state();
    let shown = match state {
        ProgramState::Active => style.good(state.as_str()),
        ProgramState::Pinned => style.strong(state.as_str()),
        ProgramState::Quarantined | ProgramState::Candidate => style.bad(state.as_str()),
    };
    let (role, method) = (printable(&key.role), printable(&key.method));
    format!("{}.{} version {}  {shown}", style.name(&role), style.strong(&method), listed.saved.version)
}

/// What the program runs for alone: inputs, context keys, earlier results.
fn bound(listed: &Listed) -> Vec<String> {
    let inputs = listed.input_names().into_iter().zip(&listed.inputs);
    let pinned = inputs.filter(|(_, input)| input.standing == Standing::Pinned);
    let mut bound: Vec<String> = pinned.map(|((name, _), _)| name).collect();
    bound.extend(listed.saved.pins.context.keys().map(|key| format!("context.{key}")));
    bound.extend(listed.saved.pins.history.map(|_| "earlier results".to_owned()));
    bound
}

fn facts(listed: &Listed, values: &[Option<Value>]) -> Vec<(String, String)> {
    let saved = &listed.saved;
    let key = &saved.key;
    let created = saved.origin.created.map(rfc3339).unwrap_or_default();
    let made = saved.origin.call.map_or_else(String::new, |call| format!(" by call {call}"));
    let mut facts: Vec<(String, String)> = [
        ("id", listed.id.to_hex()),
        ("namespace", key.namespace.to_string()),
        ("language", key.language.to_string()),
        ("model", saved.model.to_string()),
        ("created", format!("{created}{made}")),
        ("uses", format!("{}, {} failed, {} in a row", saved.uses, saved.failures, saved.failures_in_a_row)),
        ("shape", key.shape.clone()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    let inputs = listed.input_names().into_iter().zip(&listed.inputs).enumerate();
    for (index, ((name, kind), input)) in inputs {
        let value = values.get(index).and_then(Option::as_ref).map(|value| cut(&value.to_json(), 60));
        let standing = match (input.standing, value) {
            (Standing::Free, _) => "free".to_owned(),
            (Standing::Unproven, _) => "read; free once a dry run shows that it matters".to_owned(),
            (Standing::Pinned, Some(value)) => format!("pinned to {value}"),
            (Standing::Pinned, None) => "pinned to the value that it was written for".to_owned(),
        };
        facts.push((name, format!("{kind}, {standing}")));
    }
    for name in saved.pins.context.keys() {
        facts.push((format!("context.{name}"), "pinned to the value that it was written against".to_owned()));
    }
    if saved.pins.history.is_some() {
        facts.push(("history".to_owned(), "pinned to the earlier results that it was written against".to_owned()));
    }
    facts.push(("contract".to_owned(), key.contract.to_hex()));
    facts.push(("checksum".to_owned(), listed.checksum().to_hex()));
    facts
}

/// The program as data, its inputs with the values that they had.
fn with_values(listed: &Listed, values: &[Option<Value>]) -> Map {
    let mut map = listed.to_map();
    if let Some(Value::List(inputs)) = map.get_mut("inputs") {
        for (input, value) in inputs.iter_mut().zip(values) {
            if let Value::Map(input) = input {
                input.insert("value".to_owned(), value.clone().unwrap_or_default());
            }
        }
    }
    map
}

fn painted(line: &str, style: Style) -> String {
    match line.as_bytes().first() {
        Some(b'+') => style.good(line),
        Some(b'-') => style.bad(line),
        Some(b'@') => style.faint(line),
        Some(_) | None => line.to_owned(),
    }
}

/// One program of a log or of the library, and how its calls went as far as the log tells.
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

fn of_log(path: &Path) -> Result<Vec<Shown>, Failure> {
    let log = LogFile::read(path).map_err(|failure| {
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
