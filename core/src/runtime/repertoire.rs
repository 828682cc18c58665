//! The repertoire: kept programs as people see and change them (product.md section 8).
//!
//! With a store it is what the store holds now, whoever wrote it; without one it is what this runtime kept. What people
//! bring, an edited text or a folder of files, comes in through [`Runtime::admit`] and nowhere else.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::canonical;
use crate::ids::Digest;
use crate::log::record::rfc3339;
use crate::program::lock::{Lock, LockError};
use crate::program::registry::{Input, Key, Origin, Pins, ProgramState, Saved, shape};
use crate::program::tape::{Follow, Tape, TapeHost};
use crate::program::{Arguments, CompileError, Language, Program, Reads};
use crate::runtime::Runtime;
use crate::runtime::trial::Difference;
use crate::store::folder::{self, FolderError};
use crate::store::{CallQuery, Change, Durability, StoreError};
use crate::value::{Map, Value};

/// Digits of an id that name a program at least.
const MIN_DIGITS: usize = 4;
/// Digits of an id that people see.
const SHORT_DIGITS: usize = 8;
/// How alike a name must be to be suggested.
const ALIKE: f64 = 0.75;
/// Calls of a method that are looked through for arguments of one shape.
const CALLS: usize = 1_000;

/// One program of the repertoire.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Names it under its key for ever.
    pub id: Digest,
    /// What is kept of it.
    pub saved: Saved,
    /// What is known about each input; dry runs of this process included.
    pub inputs: Vec<Input>,
}

/// Which programs to list.
#[derive(Clone, Debug, Default)]
pub struct ProgramQuery {
    /// Only of this namespace.
    pub namespace: Option<String>,
    /// Only of this role.
    pub role: Option<String>,
    /// Only of this method.
    pub method: Option<String>,
    /// Only in this language.
    pub language: Option<Language>,
    /// Only in this state; one that kept failing is quarantined.
    pub state: Option<ProgramState>,
}

/// Why the repertoire stays as it was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RepertoireError {
    /// Nothing has that name.
    #[error("no program {name:?}{}", nearest.as_ref().map(|nearest| format!("; did you mean {nearest}?")).unwrap_or_default())]
    Unknown {
        /// What was asked for.
        name: String,
        /// What comes nearest.
        nearest: Option<String>,
    },
    /// More than one has it.
    #[error("{name:?} means several programs; name one by its id:\n  {}", candidates.join("\n  "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// Each with its id and what tells it from the others.
        candidates: Vec<String>,
    },
    /// The text is no program.
    #[error("{program}: {error}")]
    Compile {
        /// Of which program.
        program: String,
        /// What is wrong, with its line.
        error: CompileError,
    },
    /// The text is the one that is there.
    #[error("{0}: nothing changed")]
    Unchanged(String),
    /// It answers recorded calls otherwise than the programs before it.
    #[error(
        "{program} answers recorded calls otherwise, and is not taken:\n  {}",
        differences.iter().map(|difference| difference.words.as_str()).collect::<Vec<_>>().join("\n  ")
    )]
    Differs {
        /// Which program.
        program: String,
        /// Each call that it answers otherwise.
        differences: Vec<Difference>,
    },
    /// This build does not run it.
    #[error("{program}: this build does not run {language}")]
    Language {
        /// Of which program.
        program: String,
        /// Its language.
        language: Language,
    },
    /// A folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The lock file.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Listed {
    fn new(saved: Saved, inputs: Vec<Input>) -> Self {
        Self { id: saved.id(), saved, inputs }
    }

    /// `role.method`.
    pub fn name(&self) -> String {
        name(&self.saved.key)
    }

    /// The first digits of its id: enough for people.
    pub fn short_id(&self) -> String {
        self.id.to_hex()[..SHORT_DIGITS].to_owned()
    }

    /// Checksum of language and text, as lock files have it.
    pub fn checksum(&self) -> Digest {
        Program::digest_of(self.saved.key.language, &self.saved.code)
    }

    /// Its state, where one that kept failing counts as quarantined.
    pub fn state(&self) -> ProgramState {
        if self.saved.quarantined() { ProgramState::Quarantined } else { self.saved.state }
    }

    /// Its inputs as its language names them, each with the type that it is kept for.
    pub fn input_names(&self) -> Vec<(String, &'static str)> {
        let Key { shape, language, .. } = &self.saved.key;
        let (first, named) = inputs_of(shape);
        let base = match language {
            Language::Lua => 1,
            Language::Rhai => 0,
        };
        let positional = first.into_iter().enumerate().map(|(index, kind)| (format!("args[{}]", index + base), kind));
        positional.chain(named.into_iter().map(|(name, kind)| (format!("kwargs.{name}"), kind))).collect()
    }

    /// As data: the same fields for every program, for `--json` and for tables.
    pub fn to_map(&self) -> Map {
        let Saved {
            key, code, model, version, pins, probeable, uses, failures, failures_in_a_row, origin, note, ..
        } = &self.saved;
        let inputs = self.input_names().into_iter().zip(&self.inputs).map(|((name, kind), input)| {
            Value::Map(Map::from([
                ("name".to_owned(), name.into()),
                ("type".to_owned(), kind.into()),
                ("read".to_owned(), input.read.into()),
                ("standing".to_owned(), input.standing.as_str().into()),
            ]))
        });
        let count = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        FIELDS
            .into_iter()
            .zip([
                self.id.to_hex().into(),
                (&*key.namespace).into(),
                (&*key.role).into(),
                (&*key.method).into(),
                key.language.as_str().into(),
                key.shape.as_str().into(),
                (*version).into(),
                self.state().as_str().into(),
                count(*uses),
                count(*failures),
                (*failures_in_a_row).into(),
                (&**model).into(),
                origin.created.map(rfc3339).into(),
                origin.call.map(|call| call.to_string()).into(),
                Value::List(inputs.collect()),
                Value::List(pins.context.keys().map(|key| key.as_str().into()).collect()),
                pins.history.is_some().into(),
                (*probeable).into(),
                key.contract.to_hex().into(),
                key.interface.into(),
                self.checksum().to_hex().into(),
                note.as_deref().into(),
                (&**code).into(),
            ])
            .map(|(name, value): (&str, Value)| (name.to_owned(), value))
            .collect()
    }

    fn label(&self) -> String {
        format!("{} version {} ({})", self.name(), self.saved.version, self.short_id())
    }
}

/// The fields of [`Listed::to_map`], in the order in which people read them.
pub const FIELDS: [&str; 23] = [
    "id",
    "namespace",
    "role",
    "method",
    "language",
    "shape",
    "version",
    "state",
    "uses",
    "failures",
    "failures_in_a_row",
    "model",
    "created",
    "created_by",
    "inputs",
    "context_pins",
    "history_pin",
    "probeable",
    "contract",
    "interface",
    "checksum",
    "note",
    "code",
];

/// The difference of two programs, line by line, in the unified format; empty for equal texts.
pub fn diff(old: &Listed, new: &Listed) -> String {
    similar::TextDiff::from_lines(&*lines(&old.saved.code), &*lines(&new.saved.code))
        .unified_diff()
        .header(&old.label(), &new.label())
        .to_string()
}

/// The text with an end to its last line: whether it has one is no difference between programs.
fn lines(code: &str) -> String {
    format!("{}\n", code.strip_suffix('\n').unwrap_or(code))
}

/// Types of the positional arguments of a shape, and names and types of the named ones; see [`shape`].
pub(super) fn inputs_of(shape: &str) -> (Vec<&'static str>, Vec<(String, &'static str)>) {
    fn kind(letter: char) -> Option<&'static str> {
        Some(match letter {
            '0' => "null",
            'b' => "bool",
            'n' => "number",
            's' => "text",
            'l' => "list",
            'm' => "map",
            _ => return None,
        })
    }
    let mut parts = shape.split('|');
    let positional = parts.next().unwrap_or_default().chars().filter_map(kind).collect();
    let mut named = Vec::new();
    let mut begun = String::new();
    for part in parts {
        // A name may have a bar or a colon of its own; it ends with a colon and one letter.
        begun.push_str(part);
        let ended = begun.rsplit_once(':').and_then(|(name, letter)| {
            let mut letters = letter.chars();
            let kind = kind(letters.next()?)?;
            letters.next().is_none().then(|| (name.to_owned(), kind))
        });
        match ended {
            Some(input) => {
                named.push(input);
                begun.clear();
            }
            None => begun.push('|'),
        }
    }
    (positional, named)
}

fn name(key: &Key) -> String {
    format!("{}.{}", key.role, key.method)
}

impl Runtime {
    /// Kept programs that are asked for, ordered by name and version; with a store all that it holds, those of other
    /// processes too.
    pub fn programs(&self, query: &ProgramQuery) -> Result<Vec<Listed>, StoreError> {
        let registry = self.registry();
        let stored = match self.store() {
            Some(store) => store.programs(None)?,
            None => Vec::new(),
        };
        let known: BTreeSet<[u8; 32]> = stored.iter().map(|saved| saved.id().0).collect();
        let here = registry.list().into_iter().filter(|(_, kept)| {
            // What a store keeps too and does not have any more was deleted there.
            self.store().is_none() || (!kept.is_stored() && !known.contains(&kept.id.0))
        });
        let here = here.map(|(key, kept)| Listed::new(kept.saved(&key), kept.evidence()));
        let stored = stored.into_iter().map(|saved| {
            let inputs = registry.get(&saved.key, saved.id()).map_or_else(|| saved.evidence(), |kept| kept.evidence());
            Listed::new(saved, inputs)
        });
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let mut listed: Vec<Listed> = stored
            .chain(here)
            .filter(|listed| {
                let key = &listed.saved.key;
                is(&query.namespace, &key.namespace)
                    && is(&query.role, &key.role)
                    && is(&query.method, &key.method)
                    && query.language.is_none_or(|language| language == key.language)
                    && query.state.is_none_or(|state| state == listed.state())
            })
            .collect();
        listed.sort_by_cached_key(|listed| {
            let Key { namespace, role, method, shape, language, contract, .. } = &listed.saved.key;
            let key = (role.clone(), method.clone(), namespace.clone(), shape.clone(), *language, contract.0);
            (key, listed.saved.version, listed.saved.origin.created, listed.id.0)
        });
        Ok(listed)
    }

    /// The newest kept program of a method.
    pub fn program(&self, role: &str, method: &str) -> Result<Option<Listed>, StoreError> {
        let query = ProgramQuery { role: Some(role.into()), method: Some(method.into()), ..ProgramQuery::default() };
        let age = |listed: &Listed| (listed.saved.version, listed.saved.origin.created);
        Ok(self.programs(&query)?.into_iter().max_by_key(age))
    }

    /// The one program that is meant: by its id, by at least four digits of its beginning, or by `role.method` where the
    /// method has one program.
    pub fn find_program(&self, name: &str) -> Result<Listed, RepertoireError> {
        let all = self.programs(&ProgramQuery::default())?;
        let digits = name.to_ascii_lowercase();
        let is_id = digits.len() >= MIN_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let meant = |listed: &&Listed| (is_id && listed.id.to_hex().starts_with(&digits)) || listed.name() == name;
        let found: Vec<&Listed> = all.iter().filter(meant).collect();
        match *found {
            [one] => Ok(one.clone()),
            [] => Err(RepertoireError::Unknown { name: name.to_owned(), nearest: nearest(name, &all) }),
            _ => {
                let one = |listed: &&Listed| {
                    let Key { namespace, shape, language, .. } = &listed.saved.key;
                    let (version, state) = (listed.saved.version, listed.state().as_str());
                    let id = &listed.id.to_hex()[..digits.len().clamp(SHORT_DIGITS, 64)];
                    format!(
                        "{id}  {} version {version}, {state}, {language}, shape {shape:?}, {namespace}",
                        listed.name()
                    )
                };
                Err(RepertoireError::Ambiguous { name: name.to_owned(), candidates: found.iter().map(one).collect() })
            }
        }
    }

    /// Every version of the method that is meant, oldest first: by `role.method`, or by one of its programs.
    pub fn history(&self, name: &str) -> Result<Vec<Listed>, RepertoireError> {
        let mut named = self.programs(&ProgramQuery::default())?;
        named.retain(|listed| listed.name() == name);
        if named.is_empty() {
            return Ok(self.program_history(&self.find_program(name)?)?);
        }
        sort_by_age(&mut named);
        Ok(named)
    }

    /// The program that is meant; by `role.method` the newest of its versions.
    pub fn newest_program(&self, name: &str) -> Result<Listed, RepertoireError> {
        let by_name = self.history(name)?.into_iter().rfind(|listed| listed.name() == name);
        by_name.map_or_else(|| self.find_program(name), Ok)
    }

    /// Every version of the method that the program is one of, oldest first: of its namespace, for all kinds of arguments.
    pub fn program_history(&self, program: &Listed) -> Result<Vec<Listed>, StoreError> {
        let Key { namespace, role, method, .. } = &program.saved.key;
        let text = |text: &Arc<str>| Some(text.to_string());
        let query = ProgramQuery {
            namespace: text(namespace),
            role: text(role),
            method: text(method),
            ..ProgramQuery::default()
        };
        let mut versions = self.programs(&query)?;
        sort_by_age(&mut versions);
        Ok(versions)
    }

    /// The version before this one under the same key.
    pub fn previous_version(&self, program: &Listed) -> Result<Option<Listed>, StoreError> {
        let age = |listed: &Listed| (listed.saved.version, listed.saved.origin.created);
        let earlier = |listed: &Listed| listed.saved.key == program.saved.key && age(listed) < age(program);
        Ok(self.program_history(program)?.into_iter().filter(earlier).max_by_key(age))
    }

    /// The values of the inputs in the call that made the program, where that call is still known.
    pub fn input_values(&self, program: &Listed) -> Result<Vec<Option<Value>>, StoreError> {
        let made = program.saved.origin.call.map(|call| self.call_map(call)).transpose()?.flatten();
        let values = made.as_ref().map(arguments_of);
        let values: Vec<Value> =
            values.map_or_else(Vec::new, |(args, kwargs)| args.into_iter().chain(kwargs.into_values()).collect());
        let same = |(index, input): (usize, &Input)| {
            values.get(index).filter(|value| canonical::hash(value) == input.digest).cloned()
        };
        Ok(program.inputs.iter().enumerate().map(same).collect())
    }

    /// Pins a program, puts it aside, or leaves it to its evidence again. `false` when there is no such program.
    pub fn set_program_state(&self, id: Digest, state: ProgramState) -> Result<bool, StoreError> {
        let Some(listed) = self.programs(&ProgramQuery::default())?.into_iter().find(|listed| listed.id == id) else {
            return Ok(false);
        };
        if let Some(store) = self.store() {
            store.write(vec![Change::State { program: id, state }], Durability::Strict, None)?;
        }
        if let Some(kept) = self.registry().get(&listed.saved.key, id) {
            let mut saved = kept.saved(&listed.saved.key);
            (saved.state, saved.failures_in_a_row, saved.note) = (state, 0, None);
            self.registry().adopt(&saved, kept.program.clone());
        }
        Ok(true)
    }

    /// Takes another text for a program: a new version of it, pinned, so that it comes before all others. What does not
    /// compile changes nothing, and neither does what answers recorded calls otherwise, unless `accept` says that it may.
    pub fn edit_program(&self, program: &Listed, code: &str, accept: bool) -> Result<Listed, RepertoireError> {
        let old = &program.saved.code;
        // Editors end the last line.
        let code = if old.ends_with('\n') { code } else { code.strip_suffix('\n').unwrap_or(code) };
        if *code == **old {
            return Err(RepertoireError::Unchanged(program.name()));
        }
        let versions = self.program_history(program)?;
        let versions = versions.iter().filter(|listed| listed.saved.key == program.saved.key);
        let newest = versions.map(|listed| listed.saved.version).max().unwrap_or_default();
        let saved = Saved { code: code.into(), version: newest + 1, ..program.saved.clone() };
        let mut admitted = self.admit(vec![Brought { saved, edited: true }], accept)?;
        // One came in, so one comes out.
        admitted.pop().ok_or_else(|| RepertoireError::Unchanged(program.name()))
    }

    /// Deletes a program, from the store and from this runtime; other processes find it no more when they next look. The
    /// calls that ran it keep its text.
    pub fn delete_program(&self, program: &Listed) -> Result<(), StoreError> {
        if let Some(store) = self.store() {
            store.write(vec![Change::Deleted { program: program.id }], Durability::Strict, None)?;
        }
        self.registry().forget(&program.saved.key, program.id);
        Ok(())
    }

    /// Writes every kept program into a folder of source files; see [`folder`].
    pub fn export(&self, folder: &Path) -> Result<usize, RepertoireError> {
        let saved: Vec<Saved> =
            self.programs(&ProgramQuery::default())?.into_iter().map(|listed| listed.saved).collect();
        Ok(folder::export(&saved, folder)?)
    }

    /// Takes in a folder of source files. An edited one becomes a pinned program, one version later. One that does not
    /// compile is refused, and so is one that is new here and answers recorded calls otherwise than the programs that
    /// answered them, unless `accept` says that it may; then nothing is taken in.
    pub fn import(&self, folder: &Path, accept: bool) -> Result<Vec<Listed>, RepertoireError> {
        let brought = folder::import(folder)?.into_iter().map(|(saved, edited)| Brought { saved, edited }).collect();
        self.admit(brought, accept)
    }

    /// Writes the lock file of every program that may run now.
    pub fn lock(&self, path: &Path) -> Result<usize, RepertoireError> {
        let programs = self.programs(&ProgramQuery::default())?;
        let active = programs.iter().filter(|listed| listed.saved.is_offered());
        Ok(Lock::write(path, active.map(|listed| (&listed.saved.key, listed.checksum())))?)
    }

    /// The one way in for programs that people bring: every one is compiled and looked at, and then all are taken or none.
    fn admit(&self, brought: Vec<Brought>, accept: bool) -> Result<Vec<Listed>, RepertoireError> {
        let known = if accept { Vec::new() } else { self.programs(&ProgramQuery::default())? };
        let mut programs = Vec::with_capacity(brought.len());
        for Brought { saved, edited } in brought {
            let program = self.compiled(&saved)?;
            let saved = if edited { self.edited(saved)? } else { saved };
            if !accept && saved.is_offered() {
                self.refuse_differences(&saved, &known)?;
            }
            programs.push((saved, program));
        }
        if let Some(store) = self.store() {
            let kept = |(saved, _): &(Saved, _)| Change::Kept { program: Arc::new(saved.clone()), run: None };
            store.write(programs.iter().map(kept).collect(), Durability::Strict, None)?;
        }
        let mut admitted = Vec::with_capacity(programs.len());
        for (saved, program) in programs {
            self.registry().adopt(&saved, program);
            let inputs = saved.evidence();
            admitted.push(Listed::new(saved, inputs));
        }
        Ok(admitted)
    }

    /// A text that answers recorded calls otherwise than the `known` programs before it is not taken silently.
    fn refuse_differences(&self, saved: &Saved, known: &[Listed]) -> Result<(), RepertoireError> {
        let (key, id) = (&saved.key, saved.id());
        if known.iter().any(|listed| listed.id == id) {
            return Ok(());
        }
        let used = |listed: &&Listed| {
            let before = &listed.saved;
            let used = before.uses > before.failures && before.is_offered();
            used && before.key == *key && before.code != saved.code
        };
        let before: Vec<_> = known.iter().filter(used).map(|listed| listed.saved.code.clone()).collect();
        let differences = self.trial(saved, before, None);
        if differences.is_empty() {
            return Ok(());
        }
        Err(RepertoireError::Differs { program: name(key), differences })
    }

    /// The program of what is kept, compiled now.
    fn compiled(&self, saved: &Saved) -> Result<Program, RepertoireError> {
        let (program, language) = (name(&saved.key), saved.key.language);
        let Some(executor) = self.executor(language, self.0.settings.isolation) else {
            return Err(RepertoireError::Language { program, language });
        };
        executor
            .compile(&saved.code, &self.0.settings.limits)
            .map_err(|error| RepertoireError::Compile { program, error })
    }

    /// A program as its editor made it: pinned, and free of the state that the old one was written against, for who edits a
    /// program answers for what it takes from its surroundings. It is run once to see which inputs it looks at: those are
    /// free, and one that it ignores stays bound to the value that it had.
    fn edited(&self, saved: Saved) -> Result<Saved, StoreError> {
        let Sample { args, kwargs, tape } = self.sample(&saved)?;
        let arguments = Arguments { args: &args, kwargs: &kwargs };
        let host = TapeHost::new(&tape, Follow::AnyOrder, saved.key.role.clone());
        let ran = self.run_again(saved.key.language, &saved.code, arguments, &self.0.settings.limits, &host).ok();
        let whole = ran.as_ref().is_some_and(|ran| ran.result.is_ok());
        let reads = ran.map(|ran| ran.reads).unwrap_or_default();
        let inputs = read_inputs(&reads, arguments).into_iter().enumerate().map(|(index, (read, digest))| {
            // A run that came to no end saw only a part: what the old text read, this one may read too.
            let old = saved.inputs.get(index);
            (read || (!whole && old.is_some_and(|(read, _)| *read)), old.map_or(digest, |(_, digest)| *digest))
        });
        Ok(Saved {
            inputs: inputs.collect(),
            pins: Pins::default(),
            // No dry run has to prove what a person wrote: reading alone counts.
            probeable: false,
            model: "edited".into(),
            uses: 0,
            failures: 0,
            failures_in_a_row: 0,
            state: ProgramState::Pinned,
            origin: Origin { created: Some(SystemTime::now()), call: None },
            ..saved
        })
    }

    /// Arguments of the shape that the program is kept for, with what else it was told: of the newest recorded call that has
    /// it, or made up.
    fn sample(&self, saved: &Saved) -> Result<Sample, StoreError> {
        let query = CallQuery {
            namespace: Some(saved.key.namespace.to_string()),
            role: Some(saved.key.role.to_string()),
            method: Some(saved.key.method.to_string()),
            limit: CALLS,
            ..CallQuery::default()
        };
        for (record, tape) in self.told_calls(&query)? {
            let (args, kwargs) = arguments_of(&record);
            if shape(Arguments { args: &args, kwargs: &kwargs }) == saved.key.shape {
                return Ok(Sample { args, kwargs, tape: tape.unwrap_or_default() });
            }
        }
        let (positional, named) = inputs_of(&saved.key.shape);
        let named = named.into_iter().map(|(name, kind)| (name, made_up(kind)));
        let args = positional.into_iter().map(made_up).collect();
        Ok(Sample { args, kwargs: named.collect(), tape: Tape::default() })
    }
}

/// One call that a program can be run on.
struct Sample {
    args: Vec<Value>,
    kwargs: Map,
    tape: Tape,
}

/// Of each input whether it was read, and the digest of its value.
fn read_inputs(reads: &Reads, arguments: Arguments<'_>) -> Vec<(bool, Digest)> {
    let positional = arguments.args.iter().enumerate();
    let positional = positional.map(|(index, value)| (reads.all_args || reads.args.contains(&index), value));
    let named = arguments.kwargs.iter();
    let named = named.map(|(name, value)| (reads.all_kwargs || reads.kwargs.contains(name), value));
    positional.chain(named).map(|(read, value)| (read, canonical::hash(value))).collect()
}

fn sort_by_age(programs: &mut [Listed]) {
    programs.sort_by_key(|listed| (listed.saved.origin.created, listed.saved.version));
}

/// What people bring.
struct Brought {
    saved: Saved,
    /// Whether its text is theirs; else it comes back as it went.
    edited: bool,
}

/// Positional and named arguments of a recorded call.
pub(super) fn arguments_of(record: &Map) -> (Vec<Value>, Map) {
    let args = match record.get("args") {
        Some(Value::List(args)) => args.clone(),
        Some(_) | None => Vec::new(),
    };
    let kwargs = record.get("kwargs").and_then(Value::as_map).cloned().unwrap_or_default();
    (args, kwargs)
}

fn made_up(kind: &str) -> Value {
    match kind {
        "bool" => true.into(),
        "number" => 1.into(),
        "text" => "x".into(),
        "list" => Value::List(Vec::new()),
        "map" => Value::Map(Map::new()),
        _ => Value::Null,
    }
}

/// The program that was probably meant: by name, or by id where digits were given.
fn nearest(name: &str, all: &[Listed]) -> Option<String> {
    let by_name = all.iter().map(|listed| (listed.name(), listed.name()));
    let by_id = all.iter().map(|listed| {
        let id = listed.id.to_hex();
        (id[..name.len().min(id.len())].to_owned(), listed.short_id())
    });
    let is_id = name.len() >= MIN_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let candidates: Vec<(String, String)> = if is_id { by_id.collect() } else { by_name.collect() };
    candidates
        .into_iter()
        .map(|(compared, shown)| (strsim::jaro_winkler(name, &compared), shown))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, shown)| shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inputs_of_a_shape_are_read_back() {
        let named = Map::from([("a|b:c".to_owned(), 1.into()), ("unit".to_owned(), "m".into())]);
        let args = [Value::Int(1), Value::Null, Value::List(Vec::new())];
        let (positional, names) = inputs_of(&shape(Arguments { args: &args, kwargs: &named }));
        assert_eq!(positional, ["number", "null", "list"]);
        assert_eq!(names, [("a|b:c".to_owned(), "number"), ("unit".to_owned(), "text")]);
        assert_eq!(inputs_of(""), (Vec::new(), Vec::new()));
    }
}
