//! Kept programs, and the evidence that justifies running one again (product.md section 8).
//!
//! A program is kept under a [`Key`] and reused for other inputs only where two things are known about each input:
//! the interpreter saw the program *read* it, and a dry run showed that changing it changes what the program does. An
//! input without both is pinned to the value it had. So a program that baked an input in, or that always converts in
//! one direction, never answers for inputs it did not look at. This module decides; it runs nothing itself.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::canonical;
use crate::ids::Digest;
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
}

impl ProgramState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Active, Self::Pinned, Self::Quarantined];

    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Pinned => "pinned",
            Self::Quarantined => "quarantined",
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
    /// False when the program called the host: then a dry run is impossible and reading alone counts.
    probeable: bool,
    state: ProgramState,
    uses: AtomicU64,
    failures: AtomicU64,
    failures_in_a_row: AtomicU32,
}

impl Kept {
    fn new(saved: &Saved, program: Program) -> Self {
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
            probeable: saved.probeable,
            state: saved.state,
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

    fn is_pinned(&self) -> bool {
        self.state == ProgramState::Pinned
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

    /// Whether the evidence covers these inputs. `influences(i)` makes a dry run: does changing input `i` change what
    /// the program does? Inputs are the positional arguments in order, then the named ones in key order.
    fn fits(&self, arguments: Arguments<'_>, influences: &mut dyn FnMut(&Program, usize) -> bool) -> bool {
        let values = arguments.args.iter().chain(arguments.kwargs.values());
        self.inputs.iter().zip(values).enumerate().all(|(index, (input, value))| {
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
        })
    }
}

/// One line of [`Registry::list`].
#[derive(Clone, Debug)]
pub struct Listed {
    /// Under what it is kept.
    pub key: Key,
    /// The program.
    pub kept: Arc<Kept>,
}

/// Kept programs of one runtime, in memory. Lookups take a read lock and touch no history.
#[derive(Debug, Default)]
pub struct Registry {
    state: RwLock<State>,
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

impl Registry {
    /// A kept program whose evidence covers these arguments, newest first.
    pub fn find(
        &self,
        key: &Key,
        arguments: Arguments<'_>,
        influences: &mut dyn FnMut(&Program, usize) -> bool,
    ) -> Option<Arc<Kept>> {
        self.find_allowed(key, arguments, &|_| true, influences)
    }

    /// [`Registry::find`] among the programs that are allowed.
    pub fn find_allowed(
        &self,
        key: &Key,
        arguments: Arguments<'_>,
        allowed: &dyn Fn(&Kept) -> bool,
        influences: &mut dyn FnMut(&Program, usize) -> bool,
    ) -> Option<Arc<Kept>> {
        let offered = |kept: &Kept| !kept.quarantined() && allowed(kept);
        // Cloned out of the lock, for a dry run must not hold it; there are at most MAX_VARIANTS.
        let first = self.state.read().slots.get(key)?.variants.first()?.clone();
        if offered(&first) && first.fits(arguments, influences) {
            return Some(first);
        }
        let rest = self.state.read().slots.get(key)?.variants.get(1..)?.to_vec();
        rest.into_iter().find(|kept| offered(kept) && kept.fits(arguments, influences))
    }

    /// Keeps a program that succeeded, with what it read of the arguments it ran with. Returns it as data.
    pub fn keep(
        &self,
        key: Key,
        program: Program,
        model: Arc<str>,
        arguments: Arguments<'_>,
        reads: &Reads,
        host_calls: u32,
    ) -> Saved {
        let positional = arguments
            .args
            .iter()
            .enumerate()
            .map(|(index, value)| (reads.all_args || reads.args.contains(&index), canonical::hash(value)));
        let named = arguments
            .kwargs
            .iter()
            .map(|(name, value)| (reads.all_kwargs || reads.kwargs.contains(name), canonical::hash(value)));
        let mut saved = Saved {
            key,
            code: program.code.clone(),
            model,
            version: 1,
            inputs: positional.chain(named).collect(),
            probeable: host_calls == 0,
            uses: 0,
            failures: 0,
            failures_in_a_row: 0,
            state: ProgramState::Active,
        };
        let mut state = self.state.write();
        let slot = state.slot(&saved.key);
        slot.versions += 1;
        saved.version = slot.versions;
        let behind_pinned = slot.variants.iter().take_while(|kept| kept.is_pinned()).count();
        slot.variants.insert(behind_pinned, Arc::new(Kept::new(&saved, program)));
        slot.variants.truncate(MAX_VARIANTS);
        saved
    }

    /// Takes in a program that a store kept, behind those that are here already.
    pub fn adopt(&self, saved: &Saved, program: Program) {
        let mut state = self.state.write();
        let slot = state.slot(&saved.key);
        slot.versions = slot.versions.max(saved.version);
        let kept = Kept::new(saved, program);
        slot.variants.retain(|known| known.id != kept.id);
        let place = if kept.is_pinned() { 0 } else { slot.variants.len() };
        slot.variants.insert(place, Arc::new(kept));
        slot.variants.truncate(MAX_VARIANTS);
    }

    /// Whether a program with that id is here.
    pub fn knows(&self, key: &Key, id: Digest) -> bool {
        let state = self.state.read();
        state.slots.get(key).is_some_and(|slot| slot.variants.iter().any(|kept| kept.id == id))
    }

    /// Every kept program, or those of one role, ordered by role, method and version.
    pub fn list(&self, role: Option<&str>) -> Vec<Listed> {
        let state = self.state.read();
        let mut listed: Vec<_> = state
            .slots
            .iter()
            .filter(|(key, _)| role.is_none_or(|role| *key.role == *role))
            .flat_map(|(key, slot)| slot.variants.iter().map(|kept| Listed { key: key.clone(), kept: kept.clone() }))
            .collect();
        listed.sort_by(|left, right| {
            let name = |listed: &Listed| (listed.key.role.clone(), listed.key.method.clone(), listed.key.shape.clone());
            (name(left), left.kept.version).cmp(&(name(right), right.kept.version))
        });
        listed
    }

    /// Forgets every program.
    pub fn clear(&self) {
        *self.state.write() = State::default();
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

    fn keep(registry: &Registry, args: &[Value], reads: &Reads, host_calls: u32) {
        let kwargs = Map::new();
        let arguments = Arguments { args, kwargs: &kwargs };
        registry.keep(key(args), program("p"), "m".into(), arguments, reads, host_calls);
    }

    fn key(args: &[Value]) -> Key {
        let kwargs = Map::new();
        let arguments = Arguments { args, kwargs: &kwargs };
        Key::new("n".into(), "r".into(), "m".into(), Digest([0; 32]), Language::Lua, arguments)
    }

    fn found(registry: &Registry, args: &[Value], influences: bool) -> bool {
        let kwargs = Map::new();
        registry.find(&key(args), Arguments { args, kwargs: &kwargs }, &mut |_, _| influences).is_some()
    }

    fn all_read() -> Reads {
        Reads { all_args: true, ..Reads::default() }
    }

    #[test]
    fn an_ignored_argument_pins_the_program_to_its_value() {
        let registry = Registry::default();
        keep(&registry, &["km".into()], &Reads::default(), 0);
        assert!(found(&registry, &["km".into()], true));
        assert!(!found(&registry, &["mi".into()], true));
    }

    #[test]
    fn an_argument_that_is_read_but_changes_nothing_pins_too() {
        let registry = Registry::default();
        keep(&registry, &[2.into()], &all_read(), 0);
        assert!(!found(&registry, &[3.into()], false));
        assert!(found(&registry, &[3.into()], true), "one proof is enough");
        assert!(found(&registry, &[4.into()], false), "and it is remembered");
    }

    #[test]
    fn probing_stops_after_a_few_failures() {
        let registry = Registry::default();
        keep(&registry, &[2.into()], &all_read(), 0);
        for other in 3..3 + i64::from(MAX_PROBES) {
            assert!(!found(&registry, &[other.into()], false));
        }
        assert!(!found(&registry, &[99.into()], true), "it stays pinned without another dry run");
    }

    #[test]
    fn a_program_with_host_calls_is_justified_by_reading_alone() {
        let registry = Registry::default();
        keep(&registry, &[2.into()], &all_read(), 1);
        assert!(found(&registry, &[3.into()], false));
    }

    #[test]
    fn failing_in_a_row_quarantines_and_success_forgives() {
        let registry = Registry::default();
        keep(&registry, &[], &Reads::default(), 0);
        let kept = registry.list(None).remove(0).kept;
        kept.used(false);
        kept.used(false);
        kept.used(true);
        for _ in 0..QUARANTINE_AFTER {
            assert!(found(&registry, &[], true));
            kept.used(false);
        }
        assert!(!found(&registry, &[], true));
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
            keep(&registry, &[Value::Int(number)], &Reads::default(), 0);
        }
        assert_eq!(registry.list(None).len(), MAX_VARIANTS);
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
