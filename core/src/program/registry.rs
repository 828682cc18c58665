//! Kept programs, and the evidence that justifies running one again (product.md section 8).
//!
//! A program is kept under a [`Key`] and reused for other inputs only where two things are known about each input:
//! the interpreter saw the program *read* it, and a dry run showed that changing it changes what the program does (see
//! [`influence`](super::influence)). An input without both is pinned to the value it had. So a program that baked an
//! input in, or that always converts in one direction, never answers for inputs it did not look at.
//!
//! What the writer of a program saw around the call can be baked in too: the agent's context and its earlier results.
//! State changes from call to call, though, and must not take their programs from methods that have nothing to do with
//! it. So, for each context key that was there when the program was written (a key that came later is no evidence):
//!
//! - A key that the program read is free: it sees the value of the moment.
//! - A program that read nothing at all is pinned to everything: its answer can only come from what its writer saw.
//! - A key that is not made of numbers alone (text and flags say what is wanted, such as a unit or a name) pins the
//!   program to its value, unless the program overwrites it and its text does not mention it.
//! - A key made of numbers pins a program with literals of its own, for a number may have become a factor or an answer.
//!   One without any (`return args[1] + args[2]`) is free.
//! - Earlier results pin a program that mentions one of their values.
//!
//! A pin of the last two kinds is lifted when a program with the same literals is written against another value of the
//! same thing: then the value did not go into it. This module decides; it runs nothing itself.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::RwLock;

use crate::canonical;
use crate::ids::{CallId, Digest};
use crate::outcome::ReuseReason;
use crate::program::literals::{Literal, literals};
use crate::program::{Arguments, INTERFACE_VERSION, Language, Program, Reads};
use crate::value::{Map, Value};

/// Failures in a row after which a kept program is no longer offered.
const QUARANTINE_AFTER: u32 = 3;
/// Programs kept under one key: variants that pin different inputs.
const MAX_VARIANTS: usize = 8;
/// Keys held at once; the oldest gives way.
const MAX_KEYS: usize = 4_096;
/// Dry runs that may fail to prove an input's influence before it stays pinned.
const MAX_PROBES: u8 = 3;
/// Letters of a text among earlier results that are worth finding inside a program's own texts.
const MENTIONED_LETTERS: usize = 3;

/// What a program is kept under. Two calls with equal keys ask for the same method in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Separates unrelated applications.
    pub namespace: Arc<str>,
    /// Agent role.
    pub role: Arc<str>,
    /// Method name.
    pub method: Arc<str>,
    /// Delegation contract and tool schemas.
    pub contract: Digest,
    /// Types of the arguments and names of the named ones; see [`shape`].
    pub shape: String,
    /// Language of the program.
    pub language: Language,
    /// Version of the program interface.
    pub interface: u32,
}

impl Key {
    /// The key of a call under the current interface version.
    pub fn new(
        namespace: Arc<str>,
        role: Arc<str>,
        method: Arc<str>,
        contract: Digest,
        language: Language,
        arguments: Arguments<'_>,
    ) -> Self {
        Self { namespace, role, method, contract, shape: shape(arguments), language, interface: INTERFACE_VERSION }
    }
}

/// The argument shape: a letter per positional argument, then `name:letter` per named one.
/// Integers and floats share a letter, for callers write `2` and `2.5` for the same thing.
pub fn shape(arguments: Arguments<'_>) -> String {
    fn letter(value: &Value) -> char {
        match value {
            Value::Null => '0',
            Value::Bool(_) => 'b',
            Value::Int(_) | Value::Float(_) => 'n',
            Value::String(_) => 's',
            Value::List(_) => 'l',
            Value::Map(_) => 'm',
        }
    }
    let mut shape: String = arguments.args.iter().map(letter).collect();
    for (name, value) in arguments.kwargs {
        shape.push('|');
        shape.push_str(name);
        shape.push(':');
        shape.push(letter(value));
    }
    shape
}

/// What is known about one input of a kept program.
#[derive(Debug)]
struct InputEvidence {
    read: bool,
    /// Digest of the value in the run that made the program.
    digest: Digest,
    influence: AtomicU8,
}

/// What a program is pinned to beside its inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Context keys, each with the digest of the value that it must have.
    pub context: BTreeMap<String, Digest>,
    /// Digest of the earlier results that must be there; `None` for any.
    pub history: Option<Digest>,
}

impl Pins {
    /// For a store or a folder; null for a program that is free.
    pub fn to_value(&self) -> Value {
        if *self == Self::default() {
            return Value::Null;
        }
        let context = self.context.iter().map(|(key, digest)| (key.clone(), digest.to_hex().into()));
        Value::Map(Map::from([
            ("context".to_owned(), Value::Map(context.collect())),
            ("history".to_owned(), self.history.map(|digest| digest.to_hex()).into()),
        ]))
    }

    /// Reads [`Pins::to_value`] back. A pin that cannot be read holds in no state.
    pub fn from_value(value: &Value) -> Self {
        const NOTHING: Digest = Digest([0; 32]);
        let digest = |value: &Value| value.as_str().and_then(Digest::parse).unwrap_or(NOTHING);
        match value {
            Value::Null => Self::default(),
            Value::Map(map) => {
                let context = map.get("context").and_then(Value::as_map).into_iter().flatten();
                Self {
                    context: context.map(|(key, value)| (key.clone(), digest(value))).collect(),
                    history: map.get("history").filter(|value| **value != Value::Null).map(digest),
                }
            }
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_) => {
                Self { context: BTreeMap::new(), history: Some(NOTHING) }
            }
        }
    }

    /// Whether the state of the moment is the one that the program is pinned to.
    fn hold(&self, state: Surroundings<'_>) -> bool {
        let same = |(key, digest): (&String, &Digest)| {
            (state.context)(key).is_some_and(|value| canonical::hash(&value) == *digest)
        };
        self.context.iter().all(same) && self.history.is_none_or(|digest| (state.history)() == digest)
    }
}

/// What an agent remembers as a call begins. Asked only for a program that is pinned to it.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// One key of the context.
    pub context: &'a dyn Fn(&str) -> Option<Value>,
    /// Digest of the earlier results; see [`history_digest`].
    pub history: &'a dyn Fn() -> Digest,
}

/// What programs are pinned to when earlier results may have been baked in.
pub fn history_digest(history: &[Value]) -> Digest {
    canonical::hash_with(|out| {
        out.list(|list| {
            for entry in history {
                list.item().digest(&canonical::hash(entry));
            }
        });
    })
}

/// The run that made a program: what its writer knew, and what the program did.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// What it was called with.
    pub arguments: Arguments<'a>,
    /// The context that its writer saw.
    pub context: &'a Map,
    /// The earlier results that its writer saw.
    pub history: &'a [Value],
    /// What it looked at.
    pub reads: &'a Reads,
    /// Whether it looked at earlier results.
    pub read_history: bool,
    /// What it returned.
    pub value: &'a Value,
    /// What it wrote into the context.
    pub writes: &'a BTreeMap<String, Option<Value>>,
    /// Whether dry runs can show what it does. Otherwise reading alone counts.
    pub probeable: bool,
    /// When and by which call.
    pub origin: Origin,
}

impl Written<'_> {
    fn read_nothing(&self) -> bool {
        let Reads { args, all_args, kwargs, all_kwargs, context, all_context } = self.reads;
        let any = *all_args || *all_kwargs || *all_context || self.read_history;
        !any && args.is_empty() && kwargs.is_empty() && context.is_empty()
    }

    /// Literals that may hold something its writer saw: not those that every program is full of, unless it answers so.
    fn telling<'l>(&self, literals: &'l [Literal]) -> Vec<&'l Literal> {
        let mut answer = vec![self.value];
        answer.extend(self.writes.values().flatten());
        let answered = |literal: &Literal| answer.iter().any(|value| any_leaf(value, &mut |leaf| literal.is(leaf)));
        literals.iter().filter(|literal| !literal.is_everyday() || answered(literal)).collect()
    }

    fn pins(&self, literals: &[Literal], lifted: &dyn Fn(Pinned<'_>) -> bool) -> Pins {
        let telling = self.telling(literals);
        let read_nothing = self.read_nothing();
        let mut pins = Pins::default();
        for (key, value) in self.context {
            if self.reads.all_context || self.reads.context.contains(key) {
                continue;
            }
            let digest = canonical::hash(value);
            let pinned = if read_nothing {
                true
            } else if self.writes.contains_key(key) {
                any_leaf(value, &mut |leaf| mentions(&telling, leaf))
            } else if is_numeric(value) {
                !telling.is_empty() && !lifted(Pinned::Key(key, digest))
            } else {
                true
            };
            if pinned {
                pins.context.insert(key.clone(), digest);
            }
        }
        let mut results = self.history.iter().filter_map(|entry| entry.as_map()?.get("value")).peekable();
        if !self.read_history && results.peek().is_some() {
            let digest = history_digest(self.history);
            let mentioned = results.any(|value| any_leaf(value, &mut |leaf| mentions(&telling, leaf)));
            if read_nothing || (mentioned && !lifted(Pinned::History(digest))) {
                pins.history = Some(digest);
            }
        }
        pins
    }
}

/// One thing that a program is pinned to.
#[derive(Clone, Copy)]
enum Pinned<'a> {
    Key(&'a str, Digest),
    History(Digest),
}

/// Whether it is made of numbers, and of nothing else.
fn is_numeric(value: &Value) -> bool {
    let mut some = false;
    let other = any_leaf(value, &mut |leaf| {
        some = true;
        !matches!(leaf, Value::Int(_) | Value::Float(_))
    });
    some && !other
}

/// Whether the literals name this leaf: as it is, or as words of a text.
fn mentions(literals: &[&Literal], leaf: &Value) -> bool {
    literals.iter().any(|literal| {
        literal.is(leaf)
            || match (literal, leaf) {
                (Literal::Text(text), Value::String(words)) => {
                    words.chars().filter(|letter| letter.is_alphanumeric()).count() >= MENTIONED_LETTERS
                        && has_words(text, words)
                }
                (Literal::Text(text), Value::Int(_) | Value::Float(_)) => has_words(text, &leaf.to_json()),
                (Literal::Text(_) | Literal::Number(_) | Literal::Flag(_), _) => false,
            }
    })
}

/// Whether `words` stands in the text with no letter or digit right before or behind it.
fn has_words(text: &str, words: &str) -> bool {
    let outside = |character: Option<char>| !character.is_some_and(char::is_alphanumeric);
    text.match_indices(words).any(|(index, _)| {
        outside(text[..index].chars().next_back()) && outside(text[index + words.len()..].chars().next())
    })
}

/// Whether some leaf of the value is like that. Empty lists and maps have none.
fn any_leaf(value: &Value, is: &mut dyn FnMut(&Value) -> bool) -> bool {
    match value {
        Value::List(list) => list.iter().any(|item| any_leaf(item, is)),
        Value::Map(map) => map.values().any(|item| any_leaf(item, is)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => is(value),
    }
}

/// Where a kept program comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// When it was kept; `None` when nobody wrote it down.
    pub created: Option<SystemTime>,
    /// The call that made it; `None` when people did.
    pub call: Option<CallId>,
}

/// A kept program as plain data: what a store keeps of it.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Under what it is kept.
    pub key: Key,
    /// Its text.
    pub code: Arc<str>,
    /// The model that wrote it.
    pub model: Arc<str>,
    /// 1 for the first program under its key.
    pub version: u32,
    /// What is known about each input: whether it was read, and the digest of its value in the run that made the program.
    pub inputs: Vec<(bool, Digest)>,
    /// What it is pinned to beside them.
    pub pins: Pins,
    /// See [`Kept`].
    pub probeable: bool,
    /// Times it ran again.
    pub uses: u64,
    /// Times it failed when run again.
    pub failures: u64,
    /// Failures since it last did well.
    pub failures_in_a_row: u32,
    /// What people decided about it.
    pub state: ProgramState,
    /// What speaks against a candidate.
    pub note: Option<Arc<str>>,
    /// Where it comes from.
    pub origin: Origin,
}

/// What is known about one input of a kept program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Whether the program looked at it.
    pub read: bool,
    /// Digest of its value in the run that made the program.
    pub digest: Digest,
    /// What that means for other values of it.
    pub standing: Standing,
}

/// Whether a kept program runs for other values of an input than the one it was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does: a dry run showed that the input matters, or the program reached others and reading alone counts.
    Free,
    /// It read the input; a dry run will decide when another value comes.
    Unproven,
    /// It does not.
    Pinned,
}

impl Standing {
    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Unproven => "unproven",
            Self::Pinned => "pinned",
        }
    }

    fn of(read: bool, probeable: bool, influence: u8) -> Self {
        match influence {
            PROVEN => Self::Free,
            _ if !read => Self::Pinned,
            _ if !probeable => Self::Free,
            failed if failed >= MAX_PROBES => Self::Pinned,
            _ => Self::Unproven,
        }
    }
}

/// What people decided about a kept program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgramState {
    /// Nothing: it runs while its evidence fits and it does well.
    #[default]
    Active,
    /// It comes before all others under its key; a program that somebody edited is pinned.
    Pinned,
    /// It does not run any more.
    Quarantined,
    /// It does not run before somebody approves it: it answers recorded calls otherwise than the program that it would
    /// replace.
    Candidate,
}

impl ProgramState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Active, Self::Pinned, Self::Quarantined, Self::Candidate];

    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Pinned => "pinned",
            Self::Quarantined => "quarantined",
            Self::Candidate => "candidate",
        }
    }

    /// The state with that spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

impl Saved {
    /// Names this program under this key for ever.
    pub fn id(&self) -> Digest {
        program_id(&self.key, &self.code)
    }

    /// Whether it is no longer offered; see [`Kept::quarantined`].
    pub fn quarantined(&self) -> bool {
        self.state == ProgramState::Quarantined || self.failures_in_a_row >= QUARANTINE_AFTER
    }

    /// Whether it may run where its evidence fits.
    pub fn is_offered(&self) -> bool {
        self.state != ProgramState::Candidate && !self.quarantined()
    }

    /// What is known about each input where no dry run was made yet.
    pub fn evidence(&self) -> Vec<Input> {
        let input = |(read, digest): &(bool, Digest)| Input {
            read: *read,
            digest: *digest,
            standing: Standing::of(*read, self.probeable, 0),
        };
        self.inputs.iter().map(input).collect()
    }
}

fn program_id(key: &Key, code: &str) -> Digest {
    let Key { namespace, role, method, contract, shape, language, interface } = key;
    canonical::hash_with(|out| {
        out.list(|list| {
            for text in ["program/1", namespace, role, method, shape, language.as_str(), code] {
                list.item().str(text);
            }
            list.item().digest(contract);
            list.item().uint(u64::from(*interface));
        });
    })
}

fn literals_digest(literals: &[Literal]) -> Digest {
    canonical::hash_with(|out| {
        out.list(|list| {
            for literal in literals {
                list.item().str(&format!("{literal:?}"));
            }
        });
    })
}

/// `influence` counts failed probes from zero; this marks a successful one.
const PROVEN: u8 = u8::MAX;

/// A kept program with its evidence and counters.
#[derive(Debug)]
pub struct Kept {
    /// Names it under its key for ever.
    pub id: Digest,
    /// The program.
    pub program: Program,
    /// It as arguments of `execute_program`, made once: the recorded decision of every run that reuses it.
    pub arguments: Arc<Map>,
    /// The model that wrote it.
    pub model: Arc<str>,
    /// 1 for the first program under its key.
    pub version: u32,
    inputs: Vec<InputEvidence>,
    pins: Pins,
    /// Names the literals of its text.
    literals: Digest,
    /// False when the program reached other agents or tools: then a later dry run is impossible and reading alone counts.
    probeable: bool,
    state: ProgramState,
    note: Option<Arc<str>>,
    origin: Origin,
    /// Whether a store keeps it too: then what people decide there holds here.
    stored: bool,
    uses: AtomicU64,
    failures: AtomicU64,
    failures_in_a_row: AtomicU32,
}

impl Kept {
    fn new(saved: &Saved, program: Program, stored: bool) -> Self {
        let arguments = Map::from([
            ("code".to_owned(), (&*program.code).into()),
            ("language".to_owned(), program.language.as_str().into()),
        ]);
        let inputs = saved.inputs.iter().map(|(read, digest)| InputEvidence {
            read: *read,
            digest: *digest,
            influence: AtomicU8::new(0),
        });
        Self {
            id: saved.id(),
            program,
            arguments: Arc::new(arguments),
            model: saved.model.clone(),
            version: saved.version,
            inputs: inputs.collect(),
            pins: saved.pins.clone(),
            literals: literals_digest(&literals(saved.key.language, &saved.code)),
            probeable: saved.probeable,
            state: saved.state,
            note: saved.note.clone(),
            origin: saved.origin,
            stored,
            uses: AtomicU64::new(saved.uses),
            failures: AtomicU64::new(saved.failures),
            failures_in_a_row: AtomicU32::new(saved.failures_in_a_row),
        }
    }

    /// Times it ran again.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Times it failed when run again.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// What people decided about it.
    pub fn state(&self) -> ProgramState {
        self.state
    }

    /// Whether a store keeps it too.
    pub fn is_stored(&self) -> bool {
        self.stored
    }

    fn is_pinned(&self) -> bool {
        self.state == ProgramState::Pinned
    }

    /// What speaks against a candidate.
    pub fn note(&self) -> Option<&Arc<str>> {
        self.note.as_ref()
    }

    /// Whether it may run where its evidence fits.
    pub fn is_offered(&self) -> bool {
        self.state != ProgramState::Candidate && !self.quarantined()
    }

    /// What is known about each input.
    pub fn evidence(&self) -> Vec<Input> {
        let input = |input: &InputEvidence| Input {
            read: input.read,
            digest: input.digest,
            standing: Standing::of(input.read, self.probeable, input.influence.load(Ordering::Relaxed)),
        };
        self.inputs.iter().map(input).collect()
    }

    /// As data, for a store or a folder.
    pub fn saved(&self, key: &Key) -> Saved {
        Saved {
            key: key.clone(),
            code: self.program.code.clone(),
            model: self.model.clone(),
            version: self.version,
            inputs: self.inputs.iter().map(|input| (input.read, input.digest)).collect(),
            probeable: self.probeable,
            uses: self.uses(),
            failures: self.failures(),
            failures_in_a_row: self.failures_in_a_row.load(Ordering::Relaxed),
            state: self.state,
            note: self.note.clone(),
            origin: self.origin,
            pins: self.pins.clone(),
        }
    }

    /// Whether somebody put it aside, or it failed so often that it is no longer offered.
    pub fn quarantined(&self) -> bool {
        if self.state == ProgramState::Quarantined {
            return true;
        }
        self.failures_in_a_row.load(Ordering::Relaxed) >= QUARANTINE_AFTER
    }

    /// Counts one reuse and how it went.
    pub fn used(&self, ok: bool) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        if ok {
            self.failures_in_a_row.store(0, Ordering::Relaxed);
        } else {
            self.failures.fetch_add(1, Ordering::Relaxed);
            self.failures_in_a_row.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the evidence covers these inputs in this state, or what does not. `influences(i)` makes a dry run: does
    /// changing input `i` change what the program does? Inputs are the positional arguments in order, then the named ones
    /// in key order.
    fn fits(
        &self,
        arguments: Arguments<'_>,
        state: Surroundings<'_>,
        influences: &mut dyn FnMut(&Program, usize) -> bool,
    ) -> Result<(), ReuseReason> {
        if !self.pins.hold(state) {
            return Err(ReuseReason::PinnedState);
        }
        let values = arguments.args.iter().chain(arguments.kwargs.values());
        let fit = self.inputs.iter().zip(values).enumerate().all(|(index, (input, value))| {
            let failed_probes = input.influence.load(Ordering::Relaxed);
            if failed_probes == PROVEN || canonical::hash(value) == input.digest {
                return true;
            }
            if !input.read {
                return false;
            }
            if !self.probeable {
                return true;
            }
            if failed_probes >= MAX_PROBES {
                return false;
            }
            let influential = influences(&self.program, index);
            input.influence.store(if influential { PROVEN } else { failed_probes + 1 }, Ordering::Relaxed);
            influential
        });
        if fit { Ok(()) } else { Err(ReuseReason::PinnedInput) }
    }
}

/// Kept programs of one runtime, in memory. Lookups take a read lock and touch no history.
#[derive(Debug, Default)]
pub struct Registry {
    state: RwLock<State>,
    /// What the store's count of people's decisions was when it was last looked at.
    revision: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<Key, Slot>,
    order: VecDeque<Key>,
}

impl State {
    /// The slot of a key; a new one may push out the oldest.
    fn slot(&mut self, key: &Key) -> &mut Slot {
        if !self.slots.contains_key(key) {
            if self.slots.len() >= MAX_KEYS
                && let Some(oldest) = self.order.pop_front()
            {
                self.slots.remove(&oldest);
            }
            self.order.push_back(key.clone());
        }
        self.slots.entry(key.clone()).or_default()
    }
}

#[derive(Debug, Default)]
struct Slot {
    /// Newest first.
    variants: Vec<Arc<Kept>>,
    versions: u32,
}

impl Slot {
    /// Puts a program in its place. Where there are too many, the last one goes that people did not pin, and not this one.
    fn insert(&mut self, place: usize, kept: Arc<Kept>) {
        let kept_now = kept.clone();
        self.variants.insert(place, kept);
        while self.variants.len() > MAX_VARIANTS {
            let goes = self.variants.iter().rposition(|other| !other.is_pinned() && !Arc::ptr_eq(other, &kept_now));
            self.variants.remove(goes.unwrap_or(self.variants.len() - 1));
        }
    }
}

impl Registry {
    /// A kept program that is allowed and whose evidence covers these arguments in this state, newest first; else what
    /// stood in the way of the one that came nearest.
    pub fn find_allowed(
        &self,
        key: &Key,
        arguments: Arguments<'_>,
        state: Surroundings<'_>,
        allowed: &dyn Fn(&Kept) -> bool,
        influences: &mut dyn FnMut(&Program, usize) -> bool,
    ) -> Result<Arc<Kept>, ReuseReason> {
        let mut try_one = |kept: &Kept| {
            if kept.quarantined() {
                return Err(ReuseReason::Quarantined);
            }
            if kept.state == ProgramState::Candidate {
                return Err(ReuseReason::Candidate);
            }
            if !allowed(kept) {
                return Err(ReuseReason::NotLocked);
            }
            kept.fits(arguments, state, influences)
        };
        // Cloned out of the lock, for a dry run must not hold it; there are at most MAX_VARIANTS.
        let first = self.state.read().slots.get(key).and_then(|slot| slot.variants.first().cloned());
        let Some(first) = first else { return Err(ReuseReason::NoProgram) };
        let mut nearest = match try_one(&first) {
            Ok(()) => return Ok(first),
            Err(why) => why,
        };
        let rest = self.state.read().slots.get(key).and_then(|slot| slot.variants.get(1..).map(<[_]>::to_vec));
        for kept in rest.unwrap_or_default() {
            match try_one(&kept) {
                Ok(()) => return Ok(kept),
                Err(why) if nearness(why) > nearness(nearest) => nearest = why,
                Err(_) => {}
            }
        }
        Err(nearest)
    }

    /// Forgets what a store keeps too, once people decided something there: it is read again when it is next needed.
    pub fn follow(&self, revision: u64) {
        if self.revision.load(Ordering::Acquire) == revision {
            return;
        }
        let mut state = self.state.write();
        if self.revision.swap(revision, Ordering::AcqRel) != revision {
            state.slots.values_mut().for_each(|slot| slot.variants.retain(|kept| !kept.stored));
        }
    }

    /// Forgets one program.
    pub fn forget(&self, key: &Key, id: Digest) {
        if let Some(slot) = self.state.write().slots.get_mut(key) {
            slot.variants.retain(|kept| kept.id != id);
        }
    }

    /// A program that succeeded as data, with what is known of the run that made it; not kept yet.
    pub fn weigh(&self, key: Key, program: &Program, model: Arc<str>, written: &Written<'_>) -> Saved {
        let (arguments, reads) = (written.arguments, written.reads);
        let positional = arguments
            .args
            .iter()
            .enumerate()
            .map(|(index, value)| (reads.all_args || reads.args.contains(&index), canonical::hash(value)));
        let named = arguments
            .kwargs
            .iter()
            .map(|(name, value)| (reads.all_kwargs || reads.kwargs.contains(name), canonical::hash(value)));
        let literals = literals(key.language, &program.code);
        let telling = literals_digest(&literals);
        let earlier = self.state.read().slots.get(&key).map(|slot| slot.variants.clone()).unwrap_or_default();
        // A program with the same literals that was written against another value of the same thing.
        let lifted = |pinned: Pinned<'_>| {
            earlier.iter().filter(|kept| kept.literals == telling).any(|kept| match pinned {
                Pinned::Key(key, digest) => kept.pins.context.get(key).is_some_and(|other| *other != digest),
                Pinned::History(digest) => kept.pins.history.is_some_and(|other| other != digest),
            })
        };
        Saved {
            code: program.code.clone(),
            model,
            version: 0,
            inputs: positional.chain(named).collect(),
            pins: written.pins(&literals, &lifted),
            probeable: written.probeable,
            uses: 0,
            failures: 0,
            failures_in_a_row: 0,
            state: ProgramState::Active,
            note: None,
            origin: written.origin,
            key,
        }
    }

    /// Keeps what [`Registry::weigh`] made, as the newest version: before the others, or behind them if it is a candidate.
    /// What people decided about a text holds when it is written again. `stored` says whether a store keeps it too.
    pub fn keep(&self, saved: &mut Saved, program: Program, stored: bool) {
        let mut state = self.state.write();
        let slot = state.slot(&saved.key);
        let id = saved.id();
        // One text may be kept more than once, for other values of what it is pinned to.
        let decided =
            |kept: &&Arc<Kept>| kept.id == id && matches!(kept.state, ProgramState::Quarantined | ProgramState::Pinned);
        if let Some(known) = slot.variants.iter().find(decided) {
            saved.state = known.state;
        }
        slot.versions += 1;
        saved.version = slot.versions;
        let place = match saved.state {
            ProgramState::Candidate => slot.variants.len(),
            ProgramState::Active | ProgramState::Pinned | ProgramState::Quarantined => {
                slot.variants.iter().take_while(|kept| kept.is_pinned()).count()
            }
        };
        slot.insert(place, Arc::new(Kept::new(saved, program, stored)));
    }

    /// The other programs under its key that ran again and did well.
    pub fn used_beside(&self, candidate: &Saved) -> Vec<Arc<str>> {
        let id = candidate.id();
        let state = self.state.read();
        let variants = state.slots.get(&candidate.key).map(|slot| &slot.variants[..]).unwrap_or_default();
        let used = |kept: &&Arc<Kept>| kept.is_offered() && kept.uses() > kept.failures() && kept.id != id;
        variants.iter().filter(used).map(|kept| kept.program.code.clone()).collect()
    }

    /// Takes in a program that a store or people kept, in the place of one with the same id: newer versions come first.
    pub fn adopt(&self, saved: &Saved, program: Program) {
        let mut state = self.state.write();
        let slot = state.slot(&saved.key);
        slot.versions = slot.versions.max(saved.version);
        let kept = Kept::new(saved, program, true);
        slot.variants.retain(|known| known.id != kept.id);
        let before = |other: &&Arc<Kept>| {
            other.is_pinned() || (other.state != ProgramState::Candidate && other.version > kept.version)
        };
        let later_pin = |other: &&Arc<Kept>| other.is_pinned() && other.version > kept.version;
        let place = match kept.state {
            ProgramState::Pinned => slot.variants.iter().take_while(later_pin).count(),
            ProgramState::Candidate => slot.variants.len(),
            ProgramState::Active | ProgramState::Quarantined => slot.variants.iter().take_while(before).count(),
        };
        slot.insert(place, Arc::new(kept));
    }

    /// Whether a program with that id is here.
    pub fn knows(&self, key: &Key, id: Digest) -> bool {
        let state = self.state.read();
        state.slots.get(key).is_some_and(|slot| slot.variants.iter().any(|kept| kept.id == id))
    }

    /// The program with that id, if it is here.
    pub fn get(&self, key: &Key, id: Digest) -> Option<Arc<Kept>> {
        let state = self.state.read();
        state.slots.get(key)?.variants.iter().find(|kept| kept.id == id).cloned()
    }

    /// Every kept program with its key, in no order.
    pub fn list(&self) -> Vec<(Key, Arc<Kept>)> {
        let state = self.state.read();
        let all = state.slots.iter();
        all.flat_map(|(key, slot)| slot.variants.iter().map(|kept| (key.clone(), kept.clone()))).collect()
    }

    /// Forgets every program.
    pub fn clear(&self) {
        *self.state.write() = State::default();
    }
}

/// How near a program came to running, by what stood in its way.
fn nearness(why: ReuseReason) -> u8 {
    match why {
        ReuseReason::NoProgram | ReuseReason::Off | ReuseReason::NotReusable => 0,
        ReuseReason::Quarantined | ReuseReason::Candidate => 1,
        ReuseReason::NotLocked => 2,
        ReuseReason::PinnedState => 3,
        ReuseReason::PinnedInput => 4,
        ReuseReason::Reused => 5,
    }
}

/// Other values to try in place of `value` when probing its influence: near, far, and of another character, but of
/// the same type. Empty text and lists are left out: rejecting them is validation, not use.
pub fn perturbations(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => Vec::new(),
        Value::Bool(flag) => vec![Value::Bool(!flag)],
        Value::Int(number) => [
            number.wrapping_add(1),
            number.wrapping_neg().wrapping_sub(1),
            number.wrapping_mul(2).wrapping_add(3),
            number.wrapping_add(1_000_003),
        ]
        .into_iter()
        .filter(|other| other.unsigned_abs() <= (1 << 53))
        .map(Value::Int)
        .collect(),
        Value::Float(number) => {
            [number + 1.0, -number - 1.0, number * 2.0 + 3.5, number + 1_000_003.0].map(Value::Float).into()
        }
        Value::String(text) => {
            let reversed: String = text.chars().rev().collect();
            [
                format!("{text}x"),
                format!("{text}{reversed}"),
                reversed,
                text.to_uppercase(),
                "7".into(),
                format!("{text} {text}"),
            ]
            .into_iter()
            .filter(|other| other != text && !other.is_empty())
            .map(Value::String)
            .collect()
        }
        Value::List(items) => {
            let mut others = Vec::new();
            let mut longer = items.clone();
            longer.push(items.first().cloned().unwrap_or(Value::Int(1)));
            others.push(longer);
            if items.len() > 1 {
                others.push(items[1..].to_vec());
                others.push(items.iter().rev().cloned().collect());
            }
            if let Some(first) = items.first() {
                for other in perturbations(first) {
                    let mut changed = items.clone();
                    changed[0] = other;
                    others.push(changed);
                }
            }
            others.into_iter().filter(|other| other != items).map(Value::List).collect()
        }
        Value::Map(map) => {
            let mut others = Vec::new();
            for (key, item) in map.iter().take(4) {
                for other in perturbations(item).into_iter().take(2) {
                    let mut changed = map.clone();
                    changed.insert(key.clone(), other);
                    others.push(Value::Map(changed));
                }
                let mut without = map.clone();
                without.remove(key);
                others.push(Value::Map(without));
            }
            others
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(code: &str) -> Program {
        Program {
            language: Language::Lua,
            code: code.into(),
            digest: Program::digest_of(Language::Lua, code),
            compiled: Arc::new(()),
        }
    }

    fn keep(registry: &Registry, args: &[Value], reads: &Reads, probeable: bool) {
        keep_within(registry, "return args[1]", args, &Map::new(), &Written { probeable, ..written(args, reads) });
    }

    fn keep_within(registry: &Registry, code: &str, args: &[Value], context: &Map, written: &Written<'_>) {
        keep_written(registry, code, args, &Written { context, ..*written });
    }

    fn keep_written(registry: &Registry, code: &str, args: &[Value], written: &Written<'_>) -> Saved {
        let program = program(code);
        let mut saved = registry.weigh(key(args), &program, "m".into(), written);
        registry.keep(&mut saved, program, false);
        saved
    }

    fn written<'a>(args: &'a [Value], reads: &'a Reads) -> Written<'a> {
        static NONE: (Map, Value, BTreeMap<String, Option<Value>>) = (Map::new(), Value::Null, BTreeMap::new());
        Written {
            arguments: Arguments { args, kwargs: &NONE.0 },
            context: &NONE.0,
            history: &[],
            reads,
            read_history: false,
            value: &NONE.1,
            writes: &NONE.2,
            probeable: true,
            origin: Origin::default(),
        }
    }

    fn find(registry: &Registry, args: &[Value], context: &Map, influences: bool) -> bool {
        let kwargs = Map::new();
        let state = Surroundings { context: &|key| context.get(key).cloned(), history: &|| history_digest(&[]) };
        let arguments = Arguments { args, kwargs: &kwargs };
        registry.find_allowed(&key(args), arguments, state, &|_| true, &mut |_, _| influences).is_ok()
    }

    fn key(args: &[Value]) -> Key {
        let kwargs = Map::new();
        let arguments = Arguments { args, kwargs: &kwargs };
        Key::new("n".into(), "r".into(), "m".into(), Digest([0; 32]), Language::Lua, arguments)
    }

    fn found(registry: &Registry, args: &[Value], influences: bool) -> bool {
        find(registry, args, &Map::new(), influences)
    }

    fn all_read() -> Reads {
        Reads { all_args: true, ..Reads::default() }
    }

    #[test]
    fn an_ignored_argument_pins_the_program_to_its_value() {
        let registry = Registry::default();
        keep(&registry, &["km".into()], &Reads::default(), true);
        assert!(found(&registry, &["km".into()], true));
        assert!(!found(&registry, &["mi".into()], true));
    }

    #[test]
    fn an_argument_that_is_read_but_changes_nothing_pins_too() {
        let registry = Registry::default();
        keep(&registry, &[2.into()], &all_read(), true);
        assert!(!found(&registry, &[3.into()], false));
        assert!(found(&registry, &[3.into()], true), "one proof is enough");
        assert!(found(&registry, &[4.into()], false), "and it is remembered");
    }

    #[test]
    fn probing_stops_after_a_few_failures() {
        let registry = Registry::default();
        keep(&registry, &[2.into()], &all_read(), true);
        for other in 3..3 + i64::from(MAX_PROBES) {
            assert!(!found(&registry, &[other.into()], false));
        }
        assert!(!found(&registry, &[99.into()], true), "it stays pinned without another dry run");
    }

    #[test]
    fn a_program_that_reaches_others_is_justified_by_reading_alone() {
        let registry = Registry::default();
        keep(&registry, &[2.into()], &all_read(), false);
        assert!(found(&registry, &[3.into()], false));
    }

    #[test]
    fn failing_in_a_row_quarantines_and_success_forgives() {
        let registry = Registry::default();
        keep(&registry, &[], &Reads::default(), true);
        let kept = registry.list().remove(0).1;
        kept.used(false);
        kept.used(false);
        kept.used(true);
        for _ in 0..QUARANTINE_AFTER {
            assert!(found(&registry, &[], true));
            kept.used(false);
        }
        assert!(!found(&registry, &[], true));
    }

    /// Whether a program with that text, called with 2 and written against `context`, serves `later`.
    fn serves(code: &str, reads: &Reads, value: Value, context: &str, later: &str) -> bool {
        let map = |json: &str| match Value::from_json(json).unwrap() {
            Value::Map(map) => map,
            other => panic!("a map, not {other}"),
        };
        let (registry, args) = (Registry::default(), [Value::Int(2)]);
        keep_within(&registry, code, &args, &map(context), &Written { value: &value, ..written(&args, reads) });
        find(&registry, &args, &map(later), true)
    }

    #[test]
    fn state_that_may_be_baked_in_pins_and_state_that_merely_changes_does_not() {
        let unit = ("return args[1] * 0.62", r#"{"to":"mi"}"#);
        assert!(serves(unit.0, &all_read(), 1.24.into(), unit.1, r#"{"to":"mi","more":1}"#));
        assert!(!serves(unit.0, &all_read(), 1.24.into(), unit.1, r#"{"to":"ft"}"#), "text says what is wanted");
        assert!(!serves(unit.0, &all_read(), 1.24.into(), unit.1, "{}"));
        let read = Reads { all_context: true, ..all_read() };
        assert!(serves(unit.0, &read, 1.24.into(), unit.1, r#"{"to":"ft"}"#), "what is read is seen afresh");
        let memory = (r#"{"memory":5}"#, r#"{"memory":6}"#);
        assert!(serves("return args[1] + args[2]", &all_read(), 5.into(), memory.0, memory.1));
        assert!(!serves("return args[1] * 5", &all_read(), 10.into(), memory.0, memory.1));
        assert!(!serves("return 10", &Reads::default(), 10.into(), memory.0, memory.1));
        assert!(!serves("local a = args[1]; return true", &all_read(), true.into(), memory.0, memory.1));
        assert!(serves("local l = 0; return l + args[1]", &all_read(), 2.into(), memory.0, memory.1));
    }

    #[test]
    fn pins_are_read_back_and_what_cannot_be_read_holds_in_no_state() {
        let context = BTreeMap::from([("to".to_owned(), Digest([3; 32]))]);
        for pins in [Pins::default(), Pins { context, history: Some(Digest([4; 32])) }] {
            let stored = Value::from_json(&pins.to_value().to_json()).unwrap();
            assert_eq!(Pins::from_value(&stored), pins);
        }
        assert_ne!(Pins::from_value(&"x".into()), Pins::default());
    }

    #[test]
    fn a_number_pins_no_more_once_the_same_literals_were_written_against_another() {
        let (registry, args, reads) = (Registry::default(), [Value::Int(2)], all_read());
        let state = |count: i64| Map::from([("count".to_owned(), count.into())]);
        let found = |count: i64| find(&registry, &args, &state(count), true);
        let keep = |code: &str, count: i64| keep_within(&registry, code, &args, &state(count), &written(&args, &reads));
        keep("return args[1] % 7", 3);
        assert!(found(3) && !found(4));
        keep("local x = args[1]; return x % 7", 4);
        assert!(found(5), "the 7 has nothing to do with the count");
    }

    #[test]
    fn earlier_results_pin_a_program_that_mentions_one() {
        let (args, reads) = ([Value::Int(2)], all_read());
        let entry = Value::from_json(r#"{"method":"add","args":[1,2],"ok":true,"value":"Ann Lee"}"#).unwrap();
        for (code, reads, pinned) in [
            ("return 'Hello, Ann Lee!'", &reads, true),
            ("return 'Hello, Ann Leeds'", &reads, false),
            ("return args[1]", &reads, false),
            ("return 3", &Reads::default(), true),
        ] {
            let registry = Registry::default();
            let written = Written { history: std::slice::from_ref(&entry), ..written(&args, reads) };
            let saved = keep_written(&registry, code, &args, &written);
            assert_eq!(saved.pins.history.is_some(), pinned, "{code}");
        }
    }

    #[test]
    fn shapes_tell_types_and_names_apart_but_not_kinds_of_number() {
        let named = Map::from([("unit".to_owned(), Value::from("m"))]);
        let shaped = |args: &[Value], kwargs: &Map| shape(Arguments { args, kwargs });
        assert_eq!(shaped(&[1.into(), "x".into()], &named), "ns|unit:s");
        assert_eq!(shaped(&[1.5.into(), "y".into()], &named), "ns|unit:s");
        assert_ne!(shaped(&["1".into()], &Map::new()), shaped(&[1.into()], &Map::new()));
    }

    #[test]
    fn the_number_of_keys_and_variants_is_bounded() {
        let registry = Registry::default();
        for number in 0..20 {
            keep(&registry, &[Value::Int(number)], &Reads::default(), true);
        }
        assert_eq!(registry.list().len(), MAX_VARIANTS);
    }

    #[test]
    fn perturbations_keep_the_type_and_never_repeat_the_value() {
        for value in [Value::Int(4), 2.5.into(), "abc".into(), true.into(), Value::List(vec![1.into(), 2.into()])] {
            let others = perturbations(&value);
            assert!(!others.is_empty());
            assert!(others.iter().all(|other| *other != value && other.type_name() == value.type_name()));
        }
    }
}
