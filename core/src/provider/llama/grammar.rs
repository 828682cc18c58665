//! Grammars as automata over bytes: what a reply may be, byte by byte.
//!
//! Every grammar here is finite in depth, so it is a regular language: a [`Sketch`] is drawn as pieces that follow each
//! other, and becomes a [`Grammar`], whose state after any prefix is one number. Text is UTF-8 by construction: no path
//! leads through bytes that are none. This module knows neither tokens nor models.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Version of every rule that makes a grammar; part of a local model's fingerprint.
pub const VERSION: &str = "g2";

/// Most states of a grammar. `execute_program` needs about 130; a schema that needs more is refused.
const MAX_STATES: usize = 20_000;

/// Most places of a sketch: some ten times as many as a grammar of the largest size has.
const MAX_PLACES: usize = 20 * MAX_STATES;

/// A place in a [`Sketch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u32);

/// A grammar that is being drawn: places, and the bytes that lead from one to another.
#[derive(Debug, Default)]
pub struct Sketch {
    places: Vec<Exits>,
}

#[derive(Debug, Default)]
struct Exits {
    bytes: Vec<(RangeInclusive<u8>, Place)>,
    free: Vec<Place>,
}

/// The bytes of a character beyond ASCII after its first: UTF-8 without overlong forms and surrogates (RFC 3629).
const BEYOND_ASCII: [&[RangeInclusive<u8>]; 8] = [
    &[0xc2..=0xdf, 0x80..=0xbf],
    &[0xe0..=0xe0, 0xa0..=0xbf, 0x80..=0xbf],
    &[0xe1..=0xec, 0x80..=0xbf, 0x80..=0xbf],
    &[0xed..=0xed, 0x80..=0x9f, 0x80..=0xbf],
    &[0xee..=0xef, 0x80..=0xbf, 0x80..=0xbf],
    &[0xf0..=0xf0, 0x90..=0xbf, 0x80..=0xbf, 0x80..=0xbf],
    &[0xf1..=0xf3, 0x80..=0xbf, 0x80..=0xbf, 0x80..=0xbf],
    &[0xf4..=0xf4, 0x80..=0x8f, 0x80..=0xbf, 0x80..=0xbf],
];

/// The same without the 64 characters around each blank one.
const WITHOUT_BLANKS: [&[RangeInclusive<u8>]; 11] = [
    &[0xc3..=0xdf, 0x80..=0xbf],
    &[0xe0..=0xe0, 0xa0..=0xbf, 0x80..=0xbf],
    &[0xe1..=0xe1, 0x80..=0x99, 0x80..=0xbf],
    &[0xe1..=0xe1, 0x9b..=0xbf, 0x80..=0xbf],
    &[0xe2..=0xe2, 0x82..=0xbf, 0x80..=0xbf],
    &[0xe3..=0xe3, 0x81..=0xbf, 0x80..=0xbf],
    &[0xe4..=0xec, 0x80..=0xbf, 0x80..=0xbf],
    &[0xed..=0xed, 0x80..=0x9f, 0x80..=0xbf],
    &[0xee..=0xef, 0x80..=0xbf, 0x80..=0xbf],
    &[0xf0..=0xf0, 0x90..=0xbf, 0x80..=0xbf, 0x80..=0xbf],
    &[0xf1..=0xf4, 0x80..=0x8f, 0x80..=0xbf, 0x80..=0xbf],
];

impl Sketch {
    /// A new place that nothing leads to yet.
    pub fn place(&mut self) -> Place {
        self.places.push(Exits::default());
        Place(u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX))
    }

    /// Refuses a sketch that has grown too large. To be asked before each part that stands in a loop, because places are
    /// memory, and loops in loops make more of them than there is.
    pub fn has_room(&self) -> Result<(), TooLarge> {
        if self.places.len() > MAX_PLACES { Err(TooLarge) } else { Ok(()) }
    }

    /// One byte of the range leads from one place to the other.
    pub fn byte(&mut self, from: Place, bytes: RangeInclusive<u8>, to: Place) {
        self.places[from.0 as usize].bytes.push((bytes, to));
    }

    /// Nothing is needed to get from one place to the other.
    pub fn free(&mut self, from: Place, to: Place) {
        self.places[from.0 as usize].free.push(to);
    }

    /// Any one of these ASCII characters.
    pub fn any_of(&mut self, from: Place, characters: &str, to: Place) {
        for byte in characters.bytes() {
            self.byte(from, byte..=byte, to);
        }
    }

    /// Exactly this text; gives the place behind it.
    pub fn text(&mut self, from: Place, text: &str) -> Place {
        text.bytes().fold(from, |from, byte| {
            let to = self.place();
            self.byte(from, byte..=byte, to);
            to
        })
    }

    /// Any one character beyond ASCII.
    pub fn beyond_ascii(&mut self, from: Place, to: Place) {
        self.forms(&BEYOND_ASCII, from, to);
    }

    /// Any one character beyond ASCII outside the blocks that hold a blank one.
    pub fn letter_beyond_ascii(&mut self, from: Place, to: Place) {
        self.forms(&WITHOUT_BLANKS, from, to);
    }

    fn forms(&mut self, forms: &[&[RangeInclusive<u8>]], from: Place, to: Place) {
        for form in forms {
            let Some((last, first)) = form.split_last() else { continue };
            let before = first.iter().fold(from, |from, bytes| {
                let next = self.place();
                self.byte(from, bytes.clone(), next);
                next
            });
            self.byte(before, last.clone(), to);
        }
    }

    /// The grammar of everything that leads from `start` to `end`.
    pub fn finish(self, start: Place, end: Place) -> Result<Grammar, TooLarge> {
        let mut numbers: BTreeMap<BTreeSet<Place>, u32> = BTreeMap::new();
        let mut open = vec![self.reached([start])];
        let mut states: Vec<State> = Vec::new();
        numbers.insert(open[0].clone(), 0);
        let mut next = 0;
        while next < open.len() {
            let here = open[next].clone();
            next += 1;
            let mut state = State { next: Box::new([DEAD; 256]), accepts: here.contains(&end) };
            let exits: Vec<&(RangeInclusive<u8>, Place)> =
                here.iter().flat_map(|place| &self.places[place.0 as usize].bytes).collect();
            // Between two of these bytes, every byte leads to the same places.
            let mut borders: Vec<u16> =
                exits.iter().flat_map(|(bytes, _)| [u16::from(*bytes.start()), u16::from(*bytes.end()) + 1]).collect();
            borders.sort_unstable();
            borders.dedup();
            for pair in borders.windows(2) {
                let bytes = usize::from(pair[0])..usize::from(pair[1]);
                let leads = |own: &RangeInclusive<u8>| own.contains(&(bytes.start as u8));
                let places = exits.iter().filter(|(own, _)| leads(own)).map(|(_, to)| *to);
                let reached = self.reached(places);
                if reached.is_empty() {
                    continue;
                }
                let fresh = u32::try_from(open.len()).map_err(|_| TooLarge)?;
                let number = *numbers.entry(reached).or_insert_with_key(|reached| {
                    open.push(reached.clone());
                    fresh
                });
                state.next[bytes].fill(number);
            }
            states.push(state);
            if open.len() > MAX_STATES {
                return Err(TooLarge);
            }
        }
        Ok(Grammar::of(states))
    }

    /// These places, and all that are reached from them for nothing.
    fn reached(&self, places: impl IntoIterator<Item = Place>) -> BTreeSet<Place> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<Place> = places.into_iter().collect();
        while let Some(place) = open.pop() {
            if reached.insert(place) {
                open.extend(&self.places[place.0 as usize].free);
            }
        }
        reached
    }
}

/// The state of a grammar after some bytes.
pub type StateId = u32;

const DEAD: StateId = StateId::MAX;

#[derive(Debug)]
struct State {
    next: Box<[StateId; 256]>,
    accepts: bool,
}

/// A finished grammar.
#[derive(Debug)]
pub struct Grammar {
    states: Vec<State>,
    /// Per state: what must follow, to the end, when there is only one way; `None` where the model has a choice.
    rest: Vec<Option<Box<[u8]>>>,
}

impl Grammar {
    /// Where every reply begins.
    pub const START: StateId = 0;

    fn of(states: Vec<State>) -> Self {
        let mut grammar = Self { rest: Vec::new(), states };
        grammar.rest = (0..grammar.states.len()).map(|state| grammar.only_way(state as StateId)).collect();
        grammar
    }

    /// The bytes of the only way to an end that nothing can follow.
    fn only_way(&self, state: StateId) -> Option<Box<[u8]>> {
        let mut bytes = Vec::new();
        let mut state = state;
        loop {
            let here = &self.states[state as usize];
            let mut exits = here.next.iter().enumerate().filter(|(_, next)| **next != DEAD);
            match (exits.next(), exits.next(), here.accepts) {
                (None, _, true) => return Some(bytes.into()),
                // A circle of forced bytes has no end; no grammar that can end has more steps than states.
                (Some((byte, next)), None, false) if bytes.len() <= self.states.len() => {
                    bytes.push(byte as u8);
                    state = *next;
                }
                (Some(_), _, _) | (None, _, false) => return None,
            }
        }
    }

    /// Number of states.
    pub fn size(&self) -> usize {
        self.states.len()
    }

    /// Bytes of memory that it takes, nearly all of them.
    pub fn bytes(&self) -> usize {
        let rest: usize = self.rest.iter().flatten().map(|rest| rest.len()).sum();
        rest + self.states.len() * size_of::<[StateId; 256]>()
    }

    /// The state behind one more byte; `None` where no reply goes on like that.
    pub fn step(&self, state: StateId, byte: u8) -> Option<StateId> {
        let next = self.states[state as usize].next[usize::from(byte)];
        (next != DEAD).then_some(next)
    }

    /// The state behind more bytes.
    pub fn walk(&self, state: StateId, bytes: &[u8]) -> Option<StateId> {
        bytes.iter().try_fold(state, |state, byte| self.step(state, *byte))
    }

    /// Whether a reply may end here.
    pub fn accepts(&self, state: StateId) -> bool {
        self.states[state as usize].accepts
    }

    /// What must follow to the end, when nothing else can: empty at an end. `None` while there is a choice.
    pub fn rest(&self, state: StateId) -> Option<&[u8]> {
        self.rest[state as usize].as_deref()
    }

    /// The bytes that every reply begins with: what needs no model.
    pub fn forced_start(&self) -> (Vec<u8>, StateId) {
        let mut bytes = Vec::new();
        let mut state = Self::START;
        while bytes.len() <= self.states.len() && !self.accepts(state) {
            let mut exits = self.states[state as usize].next.iter().enumerate().filter(|(_, next)| **next != DEAD);
            let (Some((byte, next)), None) = (exits.next(), exits.next()) else { break };
            bytes.push(byte as u8);
            state = *next;
        }
        (bytes, state)
    }

    /// Whether exactly these bytes are a reply.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        self.walk(Self::START, bytes).is_some_and(|state| self.accepts(state))
    }
}

/// A grammar of more states than are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its grammar is too large, of more than {MAX_STATES} states; use fewer or smaller nested objects, lists and lengths"
)]
pub struct TooLarge;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_character_beyond_ascii_is_one_step_and_nothing_else_is() {
        let mut sketch = Sketch::default();
        let (start, end) = (sketch.place(), sketch.place());
        sketch.beyond_ascii(start, end);
        let grammar = sketch.finish(start, end).unwrap();
        for code in (0..=0x0011_0000).step_by(7).chain([0x80, 0x7ff, 0x800, 0xffff, 0x10000, 0x0010_ffff]) {
            if let Some(character) = char::from_u32(code) {
                let text = character.to_string();
                assert_eq!(grammar.matches(text.as_bytes()), !character.is_ascii(), "{code:x}");
            }
        }
        for wrong in [&[0xc0, 0x80][..], &[0xed, 0xa0, 0x80], &[0xf4, 0x90, 0x80, 0x80], &[0xe0, 0x80, 0x80], &[0xc3]] {
            assert!(!grammar.matches(wrong), "{wrong:x?}");
        }
    }

    #[test]
    fn what_needs_no_model_is_known_at_both_ends() {
        let mut sketch = Sketch::default();
        let start = sketch.place();
        let open = sketch.text(start, "say \"");
        let close = sketch.place();
        sketch.byte(open, b'a'..=b'z', open);
        sketch.byte(open, b'"'..=b'"', close);
        let end = sketch.text(close, "}}");
        let grammar = sketch.finish(start, end).unwrap();
        let (forced, state) = grammar.forced_start();
        assert_eq!(forced, b"say \"");
        assert_eq!(grammar.rest(state), None);
        let closed = grammar.walk(state, b"hello\"").unwrap();
        assert_eq!(grammar.rest(closed), Some(&b"}}"[..]));
        assert_eq!(grammar.rest(grammar.walk(closed, b"}}").unwrap()), Some(&b""[..]));
        assert!(grammar.matches(b"say \"x\"}}") && !grammar.matches(b"say \"x\"}"));
    }

    #[test]
    fn a_grammar_that_grows_too_large_is_refused() {
        let mut sketch = Sketch::default();
        let start = sketch.place();
        let end = sketch.text(start, &"x".repeat(MAX_STATES + 1));
        assert_eq!(sketch.finish(start, end).unwrap_err(), TooLarge);
    }
}
