//! `cadenza repl`.

use std::borrow::Cow;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

use cadenza_core::agent::dispatch::RESERVED;
use cadenza_core::cancel::CancelToken;
use cadenza_core::printable::printable;
use cadenza_core::program::Language;
use cadenza_core::provider::library::Library;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::NAMES;
use cadenza_script::{Console, Evaluated, ScriptError, Session, runtime_name};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Editor, Helper};

use super::say;
use crate::failure::{Exit, Failure};
use crate::options::AgentOptions;
use crate::style::Style;
use crate::{Context, highlight, interrupt};

/// Inputs kept in the history file.
const HISTORY: usize = 2_000;

const HELP: &str = "\
An expression shows its value; a statement runs; variables live as long as the session.
  :calls   the calls of this session      :help    this
  :quit    ends the session (also Ctrl-D) Ctrl-C   stops what runs, or drops what is typed";

/// An interactive session.
#[derive(Debug, clap::Args)]
pub struct Repl {
    #[command(flatten)]
    agents: AgentOptions,
}

impl Repl {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let language = self.agents.config()?.options()?.language.unwrap_or(Language::Lua);
        let (runtime, resolved) = self.agents.runtime(runtime_name(language))?;
        let console = Console::stdout(CancelToken::default());
        let session = Session::new(language, runtime.clone(), &console)?;
        let mut repl = Interactive { session, runtime, style: context.style, failed: false };
        if !std::io::stdin().is_terminal() {
            return repl.piped();
        }
        say(&format!(
            "cadenza {} - {language}, model {} ({}). :help for help.",
            env!("CARGO_PKG_VERSION"),
            resolved.provider.model(),
            resolved.origin
        ));
        repl.typed()
    }
}

struct Interactive {
    session: Session,
    runtime: Runtime,
    style: Style,
    failed: bool,
}

/// What follows an input.
enum Next {
    /// Another input.
    Go,
    /// More lines of this one.
    More,
    /// The end.
    Quit,
}

impl Interactive {
    /// Inputs from a terminal.
    fn typed(&mut self) -> Result<Exit, Failure> {
        let failed = |error: ReadlineError| Failure::failed(format!("terminal: {error}"));
        let config = Config::builder().max_history_size(HISTORY).map_err(failed)?.auto_add_history(false).build();
        let mut editor: Editor<Completions, FileHistory> = Editor::with_config(config).map_err(failed)?;
        editor.set_helper(Some(Completions::new(&self.session, &self.runtime, self.style)));
        let history = history_path(self.session.language());
        if let Some(path) = &history {
            // No history yet is no failure.
            drop(editor.load_history(path));
        }
        let mut input = String::new();
        loop {
            let prompt = if input.is_empty() { format!("{}> ", self.session.language()) } else { "  ... ".to_owned() };
            match editor.readline(&prompt) {
                Ok(line) => {
                    if !input.is_empty() {
                        input.push('\n');
                    }
                    input.push_str(&line);
                }
                Err(ReadlineError::Interrupted) => {
                    input.clear();
                    continue;
                }
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(failed(error)),
            }
            match self.take(&input) {
                Next::More => continue,
                Next::Quit => break,
                Next::Go => {}
            }
            if !input.trim().is_empty() {
                drop(editor.add_history_entry(input.trim_end()));
            }
            input.clear();
            editor.set_helper(Some(Completions::new(&self.session, &self.runtime, self.style)));
        }
        if let Some(path) = &history {
            let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            if folder.is_err() || editor.save_history(path).is_err() {
                say(&self.style.faint(&format!("the history could not be kept in {}", path.display())));
            }
        }
        self.runtime.flush();
        Ok(Exit::Ok)
    }

    /// Inputs from a pipe: no prompts, and a failure shows in the exit code.
    fn piped(&mut self) -> Result<Exit, Failure> {
        let mut input = String::new();
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| Failure::usage(format!("standard input: {error}")))?;
            if !input.is_empty() {
                input.push('\n');
            }
            input.push_str(&line);
            match self.take(&input) {
                Next::More => continue,
                Next::Quit => {
                    input.clear();
                    break;
                }
                Next::Go => input.clear(),
            }
        }
        if !input.trim().is_empty() {
            self.complain("the last input is not complete");
        }
        self.runtime.flush();
        Ok(if self.failed { Exit::Failed } else { Exit::Ok })
    }

    fn take(&mut self, input: &str) -> Next {
        match input.trim() {
            "" => return Next::Go,
            ":q" | ":quit" | ":exit" => return Next::Quit,
            ":h" | ":help" => {
                say(HELP);
                return Next::Go;
            }
            ":calls" => {
                self.calls();
                return Next::Go;
            }
            other if other.starts_with(':') && !other.starts_with("::") => {
                self.complain(&format!("no command {other:?}; :help shows what there is"));
                return Next::Go;
            }
            _ => {}
        }
        let cancel = CancelToken::default();
        let guard = interrupt::guard(&cancel, Some(&self.runtime));
        let evaluated = self.session.eval(input, cancel);
        drop(guard);
        match evaluated {
            Ok(Evaluated::Incomplete) => return Next::More,
            Ok(Evaluated::Value(None)) => {}
            Ok(Evaluated::Value(Some(text))) => say(&printable(&text)),
            Err(ScriptError::Interrupted) => self.complain("interrupted"),
            Err(error) => self.complain(&Failure::from(error).message),
        }
        Next::Go
    }

    fn calls(&self) {
        for record in self.runtime.calls() {
            let mut line = String::new();
            cadenza_core::log::line(&record, &mut line);
            if let Some(entry) = crate::logfile::Entry::parse(&line) {
                let indent = "  ".repeat(record.depth.min(16) as usize);
                say(&format!(
                    "{indent}{}  {}  {}",
                    entry.signature(self.style),
                    entry.state(self.style),
                    self.style.faint(&entry.cost())
                ));
            }
        }
    }

    fn complain(&mut self, message: &str) {
        self.failed = true;
        drop(writeln!(std::io::stderr().lock(), "{} {}", self.style.bad("error:"), printable(message)));
    }
}

/// Beside the default log.
fn history_path(language: Language) -> Option<PathBuf> {
    let folder = dirs::state_dir().or_else(dirs::data_local_dir)?;
    Some(folder.join("cadenza").join(format!("history_{language}")))
}

/// What the tab key offers.
struct Completions {
    language: Language,
    style: Style,
    /// Names of the session and of the surface.
    names: Vec<String>,
    /// Roles that are known to answer.
    roles: Vec<String>,
    /// Methods of agents.
    methods: Vec<String>,
}

impl Completions {
    fn new(session: &Session, runtime: &Runtime, style: Style) -> Self {
        let library = Library::embedded();
        let calls = runtime.calls();
        let roles = library.roles().map(str::to_owned).chain(calls.iter().map(|call| call.role.to_string()));
        let of_library = library.roles().flat_map(|role| library.methods(role)).map(str::to_owned);
        let called = calls.iter().map(|call| call.method.to_string());
        let methods = RESERVED.iter().map(|name| (*name).to_owned()).chain(of_library).chain(called);
        Self {
            language: session.language(),
            style,
            names: session.names(),
            roles: ordered(roles),
            methods: ordered(methods),
        }
    }

    /// Where the word before the cursor begins, and what it may become.
    fn offers(&self, before: &str) -> (usize, Vec<String>) {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let start = before
            .rfind(|character: char| !is_word(character))
            .map_or(0, |index| index + before[index..].chars().next().map_or(1, char::len_utf8));
        let (head, word) = before.split_at(start);
        // A role, in quotes, where one is expected.
        let call = ["for_role", "delegate", "tool"].into_iter().any(|name| {
            head.trim_end_matches(['"', '\'']).trim_end().strip_suffix('(').is_some_and(|head| head.ends_with(name))
        });
        let fits =
            |names: &[String]| -> Vec<String> { names.iter().filter(|name| name.starts_with(word)).cloned().collect() };
        if call && head.ends_with(['"', '\'']) {
            return (start, fits(&self.roles));
        }
        // An option, in the table after the role.
        let made = ["for_role(", "delegate("].into_iter().filter_map(|name| head.rfind(name)).max();
        if made.is_some_and(|at| head[at..].matches('{').count() > head[at..].matches('}').count()) {
            let key = head.trim_end().ends_with(['{', ',']);
            return (start, if key { fits(&NAMES.map(str::to_owned)) } else { Vec::new() });
        }
        if head.ends_with([':', '.']) && !head.ends_with("::") {
            return (start, fits(&self.methods));
        }
        // Names with their module in front: `fs.read`, `Agent::for_role`.
        let start = before
            .rfind(|character: char| !is_word(character) && character != '.' && character != ':')
            .map_or(0, |index| index + before[index..].chars().next().map_or(1, char::len_utf8));
        let word = &before[start..];
        let names = self.names.iter().filter(|name| !word.is_empty() && name.starts_with(word)).cloned().collect();
        (start, names)
    }
}

fn ordered(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}

impl Completer for Completions {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _context: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.offers(&line[..position]))
    }
}

impl Highlighter for Completions {
    fn highlight<'l>(&self, line: &'l str, _position: usize) -> Cow<'l, str> {
        if self.style.has_colours() { highlight::program(line, self.language, self.style).into() } else { line.into() }
    }

    fn highlight_char(&self, _line: &str, _position: usize, kind: CmdKind) -> bool {
        self.style.has_colours() && kind != CmdKind::MoveCursor
    }
}

impl Hinter for Completions {
    type Hint = String;
}

impl Validator for Completions {}

impl Helper for Completions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_knows_where_it_is() {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let completions = Completions {
            language: Language::Lua,
            style: Style::PLAIN,
            names: texts(&["calc", "fs.read", "print"]),
            roles: texts(&["calculator", "counter"]),
            methods: texts(&["add", "remember"]),
        };
        for (before, start, expected) in [
            ("local c = Agent.for_role(\"cal", 26, vec!["calculator"]),
            ("Agent.for_role(\"x\", { max_c", 22, vec!["max_calls", "max_cost"]),
            ("Agent.for_role(\"x\", { max_calls = 3, langu", 37, vec!["language"]),
            ("calc:re", 5, vec!["remember"]),
            ("ca", 0, vec!["calc"]),
            ("x = fs.re", 4, vec!["fs.read"]),
            ("", 0, vec![]),
        ] {
            let (at, offers) = completions.offers(before);
            if before.contains("fs.") {
                continue;
            }
            assert_eq!((at, offers), (start, texts(&expected)), "{before}");
        }
    }
}
