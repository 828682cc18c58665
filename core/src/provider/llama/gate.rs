//! The token gate: which tokens may come next, so that what has come can still become a whole reply in what is left.
//!
//! A token is allowed when its bytes stay within the grammar and when the shortest way from there to an end takes no more
//! tokens than remain. Both hold from the first token on, so a reply that is no reply cannot be written: at the limit of
//! the output the only tokens left are those that complete it. This module never asks a model.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::grammar::{Grammar, StateId};

/// A token's number in its model's vocabulary.
pub type TokenId = u32;

/// The bytes of every token that stands for text, as a tree of common beginnings.
#[derive(Debug)]
pub struct Vocabulary {
    pieces: Vec<Box<[u8]>>,
    /// The tree, each node before its children.
    nodes: Vec<Node>,
    /// Tokens in the order of their bytes; a node's own tokens stand side by side.
    sorted: Vec<TokenId>,
    deepest: usize,
    ends: Vec<TokenId>,
}

#[derive(Debug)]
struct Node {
    byte: u8,
    /// Bytes before this one.
    depth: u16,
    /// The first node behind this one and everything below it.
    behind: u32,
    /// Its own tokens, in `sorted`.
    tokens: (u32, u32),
}

/// Bytes of a token that are looked at. Longer ones are runs of spaces or the like; none is needed.
const LONGEST: usize = 256;

impl Vocabulary {
    /// `pieces[id]` holds the bytes of a token, none for those that stand for no text; `ends` are those that end a reply.
    pub fn new(pieces: Vec<Box<[u8]>>, ends: Vec<TokenId>) -> Self {
        let texts = |id: TokenId| &*pieces[id as usize];
        let mut sorted: Vec<TokenId> = (0..pieces.len() as TokenId)
            .filter(|id| !texts(*id).is_empty() && texts(*id).len() <= LONGEST && !ends.contains(id))
            .collect();
        sorted.sort_by_key(|id| (texts(*id), *id));
        let mut nodes: Vec<Node> = Vec::new();
        let mut path: Vec<usize> = Vec::new();
        let mut before: &[u8] = &[];
        for (index, id) in sorted.iter().enumerate() {
            let (index, bytes) = (index as u32, texts(*id));
            let common = before.iter().zip(bytes).take_while(|(one, other)| one == other).count();
            while path.len() > common {
                close(&mut nodes, &mut path);
            }
            for (depth, byte) in bytes.iter().enumerate().skip(common) {
                path.push(nodes.len());
                nodes.push(Node { byte: *byte, depth: depth as u16, behind: 0, tokens: (index, index) });
            }
            // A token has at least one byte, so the path is not empty.
            if let Some(own) = path.last() {
                nodes[*own].tokens.1 = index + 1;
            }
            before = bytes;
        }
        while !path.is_empty() {
            close(&mut nodes, &mut path);
        }
        let deepest = sorted.iter().map(|id| texts(*id).len()).max().unwrap_or(0);
        Self { nodes, sorted, deepest, ends, pieces }
    }

    /// Number of tokens.
    pub fn size(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes of the longest token.
    pub fn longest(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).max().unwrap_or(0)
    }

    /// The bytes of a token; none for a token that stands for no text.
    pub fn piece(&self, token: TokenId) -> &[u8] {
        &self.pieces[token as usize]
    }

    /// Whether the model says with this token that it is done.
    pub fn is_end(&self, token: TokenId) -> bool {
        self.ends.contains(&token)
    }

    /// Every token that the grammar allows behind this state, and the state behind it.
    fn followers(&self, grammar: &Grammar, state: StateId, mut found: impl FnMut(TokenId, StateId)) {
        let mut states = vec![state; self.deepest + 1];
        let mut at = 0;
        while let Some(node) = self.nodes.get(at) {
            let depth = usize::from(node.depth);
            match grammar.step(states[depth], node.byte) {
                None => at = node.behind as usize,
                Some(next) => {
                    states[depth + 1] = next;
                    for token in &self.sorted[node.tokens.0 as usize..node.tokens.1 as usize] {
                        found(*token, next);
                    }
                    at += 1;
                }
            }
        }
    }
}

/// Everything below the last node of the path is there.
fn close(nodes: &mut [Node], path: &mut Vec<usize>) {
    if let Some(own) = path.pop() {
        nodes[own].behind = nodes.len() as u32;
    }
}

/// A grammar as a vocabulary can write it.
#[derive(Debug)]
pub struct Gate {
    grammar: Grammar,
    vocabulary: Arc<Vocabulary>,
    /// What every reply begins with, and the state behind it.
    opening: (Vec<u8>, StateId),
    /// Per state that tokens lead to: the tokens that are allowed there.
    allowed: Vec<Option<Mask>>,
    /// Per state: the fewest tokens to an end. [`NEVER`] where this vocabulary knows no way.
    left: Vec<u32>,
    /// The largest of them that is reached.
    most_left: u32,
}

const NEVER: u32 = u32::MAX;

/// One bit per token.
#[derive(Debug)]
struct Mask(Vec<u64>);

impl Mask {
    fn get(&self, token: TokenId) -> bool {
        self.0[token as usize / 64] >> (token % 64) & 1 == 1
    }

    fn set(&mut self, token: TokenId, to: bool) {
        self.0[token as usize / 64] |= u64::from(to) << (token % 64);
    }
}

impl Gate {
    /// Looks at every state once: some milliseconds for a program and a vocabulary of 128,000 tokens, and seconds for the
    /// largest grammars. Before each state it asks whether to `stop`.
    pub fn new(grammar: Grammar, vocabulary: Arc<Vocabulary>, stop: &dyn Fn() -> bool) -> Result<Self, NoGate> {
        let opening = grammar.forced_start();
        let mut allowed: Vec<Option<Mask>> = (0..grammar.size()).map(|_| None).collect();
        let mut before: Vec<Vec<StateId>> = vec![Vec::new(); grammar.size()];
        let mut open = vec![opening.1];
        let mut ends = Vec::new();
        // The state that last led to each, so that each is noted once.
        let mut last_from = vec![NEVER; grammar.size()];
        while let Some(state) = open.pop() {
            if allowed[state as usize].is_some() {
                continue;
            }
            if stop() {
                return Err(NoGate::Stopped);
            }
            let mut mask = Mask(vec![0; vocabulary.size().div_ceil(64)]);
            if grammar.rest(state).is_none() {
                vocabulary.followers(&grammar, state, |token, next| {
                    mask.set(token, true);
                    if last_from[next as usize] != state {
                        last_from[next as usize] = state;
                        before[next as usize].push(state);
                        open.push(next);
                    }
                });
            }
            if grammar.accepts(state) {
                vocabulary.ends.iter().for_each(|token| mask.set(*token, true));
            }
            if grammar.rest(state).is_some() || grammar.accepts(state) {
                ends.push(state);
            }
            allowed[state as usize] = Some(mask);
        }
        let mut left = vec![NEVER; grammar.size()];
        let mut distance = 0;
        while !ends.is_empty() {
            ends.retain(|state| left[*state as usize] == NEVER);
            ends.iter().for_each(|state| left[*state as usize] = distance);
            ends = ends.iter().flat_map(|state| before[*state as usize].iter().copied()).collect();
            distance += 1;
        }
        if left[opening.1 as usize] == NEVER {
            return Err(NoGate::CannotWrite);
        }
        // A token that leads where this vocabulary cannot go on is not allowed.
        let lost = before.iter().zip(&left).filter(|(_, left)| **left == NEVER);
        let leads_there: BTreeSet<StateId> = lost.flat_map(|(before, _)| before).copied().collect();
        for state in leads_there {
            if stop() {
                return Err(NoGate::Stopped);
            }
            let mut mask = Mask(vec![0; vocabulary.size().div_ceil(64)]);
            vocabulary.followers(&grammar, state, |token, next| mask.set(token, left[next as usize] != NEVER));
            if grammar.accepts(state) {
                vocabulary.ends.iter().for_each(|token| mask.set(*token, true));
            }
            allowed[state as usize] = Some(mask);
        }
        let most_left = left.iter().copied().filter(|left| *left != NEVER).max().unwrap_or(0);
        Ok(Self { grammar, vocabulary, opening, allowed, left, most_left })
    }

    /// Bytes of memory that it takes, nearly all of them.
    pub fn bytes(&self) -> usize {
        let masks = self.allowed.iter().flatten().count();
        masks * self.vocabulary.size().div_ceil(8) + self.grammar.bytes()
    }

    /// What every reply begins with: it needs no model.
    pub fn opening(&self) -> &[u8] {
        &self.opening.0
    }

    /// The state behind the opening.
    pub fn start(&self) -> StateId {
        self.opening.1
    }

    /// The fewest tokens that complete a reply from here.
    pub fn left(&self, state: StateId) -> u32 {
        self.left[state as usize]
    }

    /// What completes the reply, when there is only one way: empty when it is complete and nothing may follow.
    pub fn rest(&self, state: StateId) -> Option<&[u8]> {
        self.grammar.rest(state)
    }

    /// Whether a reply may end here.
    pub fn accepts(&self, state: StateId) -> bool {
        self.grammar.accepts(state)
    }

    /// The state behind this token when it is allowed, with so many tokens to come after it. An end keeps its state.
    pub fn after(&self, state: StateId, token: TokenId, remaining: u32) -> Option<StateId> {
        if !self.allowed[state as usize].as_ref().is_some_and(|mask| mask.get(token)) {
            return None;
        }
        if self.vocabulary.is_end(token) {
            return Some(state);
        }
        self.grammar.walk(state, self.vocabulary.piece(token)).filter(|next| self.left(*next) <= remaining)
    }

    fn allows(&self, state: StateId, token: TokenId, remaining: u32) -> bool {
        if remaining >= self.most_left {
            // From no state that tokens lead to is it further.
            return self.allowed[state as usize].as_ref().is_some_and(|mask| mask.get(token));
        }
        self.after(state, token, remaining).is_some()
    }
}

/// How a token is chosen among those that are allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest.
    pub temperature: f32,
    /// Draws from the likeliest that together are as likely as this.
    pub top_p: f32,
    /// Above 1, what was chosen lately becomes less likely.
    pub repeat_penalty: f32,
}

/// Tokens that the repeat penalty looks back on.
const LATELY: usize = 64;

/// Chooses the tokens of one reply.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: fastrand::Rng,
    lately: VecDeque<TokenId>,
}

/// A gate, the state it is in, and how many tokens may come after the one that is chosen.
pub type At<'a> = (&'a Gate, StateId, u32);

impl Sampler {
    /// A sampler whose draws follow from the seed.
    pub fn new(sampling: Sampling, seed: u64) -> Self {
        Self { sampling, random: fastrand::Rng::with_seed(seed), lately: VecDeque::new() }
    }

    /// The next token, and the state behind it (0 without a gate).
    ///
    /// `None` only when no token is allowed, which cannot be at a gate with a way to an end in what is left.
    pub fn choose(&mut self, logits: &[f32], at: Option<At<'_>>) -> Option<(TokenId, StateId)> {
        let chosen = if self.sampling.repeat_penalty == 1.0 {
            self.among(logits, at)
        } else {
            let penalised = self.penalised(logits);
            self.among(&penalised, at)
        }?;
        if self.lately.len() == LATELY {
            self.lately.pop_front();
        }
        self.lately.push_back(chosen.0);
        Some(chosen)
    }

    fn among(&mut self, logits: &[f32], at: Option<At<'_>>) -> Option<(TokenId, StateId)> {
        let after = |token| match at {
            Some((gate, state, remaining)) => gate.after(state, token, remaining),
            None => Some(0),
        };
        let allows = |token| at.is_none_or(|(gate, state, remaining)| gate.allows(state, token, remaining));
        let token = if self.sampling.temperature == 0.0 {
            // Mostly the likeliest of all is allowed.
            let best = argmax(logits, |_| true)?;
            if let Some(next) = after(best) {
                return Some((best, next));
            }
            argmax(logits, allows)?
        } else {
            drawn(logits, self.sampling, self.random.f64(), allows)?
        };
        Some((token, after(token)?))
    }

    fn penalised(&self, logits: &[f32]) -> Vec<f32> {
        let mut penalised = logits.to_vec();
        let mut tokens: Vec<TokenId> = self.lately.iter().copied().collect();
        tokens.sort_unstable();
        tokens.dedup();
        let penalty = self.sampling.repeat_penalty;
        for token in tokens {
            let Some(logit) = penalised.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        penalised
    }
}

/// The most likely of some tokens. Of equals, the first; what is not a number is never likely.
fn argmax(logits: &[f32], allowed: impl Fn(TokenId) -> bool) -> Option<TokenId> {
    let mut best: Option<(TokenId, f32)> = None;
    for (token, logit) in (0..).zip(logits) {
        if !logit.is_nan() && best.is_none_or(|(_, most)| *logit > most) && allowed(token) {
            best = Some((token, *logit));
        }
    }
    best.map(|(token, _)| token)
}

/// One of some tokens, each as likely as the model finds it. `draw` is a number from 0 to 1, 1 excluded.
fn drawn(logits: &[f32], sampling: Sampling, draw: f64, allowed: impl Fn(TokenId) -> bool) -> Option<TokenId> {
    let candidates = (0..).zip(logits.iter().copied()).filter(|(token, logit)| !logit.is_nan() && allowed(*token));
    let mut kept: Vec<(TokenId, f64)> = candidates.map(|(token, logit)| (token, f64::from(logit))).collect();
    let most = kept.iter().map(|(_, logit)| *logit).fold(f64::NEG_INFINITY, f64::max);
    let temperature = f64::from(sampling.temperature);
    kept.iter_mut().for_each(|(_, weight)| *weight = ((*weight - most) / temperature).exp());
    let mut sum: f64 = kept.iter().map(|(_, weight)| weight).sum();
    if sampling.top_p < 1.0 {
        kept.sort_by(|one, other| other.1.total_cmp(&one.1));
        let wanted = sum * f64::from(sampling.top_p);
        let mut together = 0.0;
        // The first is kept in any case.
        let enough = kept.iter().position(|(_, weight)| {
            together += weight;
            together >= wanted
        });
        kept.truncate(enough.map_or(kept.len(), |last| last + 1));
        sum = kept.iter().map(|(_, weight)| weight).sum();
    }
    let mut still = draw * sum;
    for (token, weight) in &kept {
        still -= weight;
        if still < 0.0 {
            return Some(*token);
        }
    }
    kept.last().map(|(token, _)| *token)
}

/// Why there is no gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGate {
    /// No sequence of this vocabulary's tokens is a reply.
    #[error("the model's vocabulary has no tokens that write it")]
    CannotWrite,
    /// Nobody waits for it any more.
    #[error("nobody waits for it")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::super::schema::{Callable, arguments_grammar, call_grammar, prose_grammar, text_grammar};
    use super::*;
    use crate::value::Value;

    const PLAIN: Sampling = Sampling { temperature: 0.0, top_p: 1.0, repeat_penalty: 1.0 };

    /// Every byte, and some words; the last token ends a reply.
    fn vocabulary(words: &[&str]) -> Arc<Vocabulary> {
        let mut pieces: Vec<Box<[u8]>> = (0..=255_u8).map(|byte| Box::from([byte])).collect();
        pieces.extend(words.iter().map(|word| word.as_bytes().into()));
        pieces.push(Box::default());
        let end = pieces.len() as TokenId - 1;
        Arc::new(Vocabulary::new(pieces, vec![end]))
    }

    fn made(grammar: Grammar, vocabulary: &Arc<Vocabulary>) -> Result<Gate, NoGate> {
        Gate::new(grammar, vocabulary.clone(), &|| false)
    }

    /// A reply of at most `limit` tokens by a model that says noise.
    fn written(gate: &Gate, vocabulary: &Vocabulary, limit: u32, sampling: Sampling, seed: u64) -> String {
        assert!(gate.left(gate.start()) <= limit);
        let (mut noise, mut sampler) = (fastrand::Rng::with_seed(seed), Sampler::new(sampling, seed));
        let (mut bytes, mut state) = (gate.opening().to_vec(), gate.start());
        for count in 0..limit {
            if gate.rest(state).is_some() {
                break;
            }
            let logits: Vec<f32> = (0..vocabulary.size()).map(|_| noise.f32() * 8.0).collect();
            let (token, next) = sampler.choose(&logits, Some((gate, state, limit - count - 1))).unwrap();
            if vocabulary.is_end(token) {
                break;
            }
            bytes.extend_from_slice(vocabulary.piece(token));
            state = next;
        }
        assert!(gate.rest(state).is_some() || gate.accepts(state), "cut short: {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(gate.rest(state).unwrap_or_default());
        String::from_utf8(bytes).unwrap()
    }

    const SCHEMA: &str = r#"{"type": "object", "additionalProperties": false, "properties": {
        "kind": {"const": "x"}, "n": {"type": "number"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
        "s": {"type": "string", "minLength": 1, "maxLength": 3}, "l": {"type": "array", "items": {"type": "integer"}},
        "o": {"type": "object", "properties": {"q": {"enum": ["é", "\"", 1.5]}}}, "m": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        "a": {}}, "required": ["kind", "s"]}"#;

    const WORDS: [&str; 12] =
        ["\"}", "\"}}", "\", ", "\": ", "\\u", "\\ud8", "é", "ab", "}}\n", "```", "<call>", "{\"name\": "];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn noise_is_always_a_reply_of_its_grammar(seed: u64, more in 0_u32..60, hot: bool, words in 0..=WORDS.len()) {
            let vocabulary = vocabulary(&WORDS[..words]);
            let sampling = Sampling { temperature: if hot { 1.0 } else { 0.0 }, ..PLAIN };
            let parameters = Value::from_json(SCHEMA).unwrap();
            let tool = [Callable { name: "t\"ool", parameters: &parameters, program: None }];
            let gate = made(arguments_grammar(&tool).unwrap(), &vocabulary).unwrap();
            let text = written(&gate, &vocabulary, gate.left(gate.start()) + more, sampling, seed);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
            prop_assert!(jsonschema::is_valid(&schema, &value), "{}", text);
            let gate = made(call_grammar(&tool).unwrap(), &vocabulary).unwrap();
            let text = written(&gate, &vocabulary, gate.left(gate.start()) + more, sampling, seed);
            let call: serde_json::Value = serde_json::from_str(&text).unwrap();
            prop_assert!(call["name"] == "t\"ool" && jsonschema::is_valid(&schema, &call["arguments"]), "{}", text);
        }

        #[test]
        fn noise_is_always_text_or_a_fenced_block(seed: u64, more in 0_u32..60, top_p in 0.0_f32..=1.0) {
            let vocabulary = vocabulary(&WORDS);
            let sampling = Sampling { temperature: 1.0, top_p, repeat_penalty: 1.3 };
            let gate = made(text_grammar("```lua\n").unwrap(), &vocabulary).unwrap();
            let text = written(&gate, &vocabulary, gate.left(gate.start()) + more, sampling, seed);
            let code = text.strip_prefix("```lua\n").and_then(|text| text.strip_suffix("\n```")).unwrap();
            prop_assert!(!code.trim().is_empty() && !code.contains("```"), "{}", text);
            let gate = made(prose_grammar().unwrap(), &vocabulary).unwrap();
            let text = written(&gate, &vocabulary, gate.left(gate.start()).max(1) + more, sampling, seed);
            prop_assert!(!text.trim().is_empty(), "{:?}", text);
            prop_assert!(["```", "{", "=", "<call", "<tool"].iter().all(|sign| !text.contains(sign)), "{}", text);
        }
    }

    #[test]
    fn the_shortest_reply_is_known_in_tokens() {
        let parameters =
            Value::from_json(r#"{"properties": {"code": {"type": "string"}}, "required": ["code"]}"#).unwrap();
        let tool = [Callable { name: "t", parameters: &parameters, program: Some("code") }];
        let gate = |words: &[&str]| made(call_grammar(&tool).unwrap(), &vocabulary(words)).unwrap();
        // One letter and the closing quote; what follows needs no model. One token may hold both.
        let plain = gate(&[]);
        assert_eq!(
            (plain.opening(), plain.left(plain.start())),
            (&b"{\"name\": \"t\", \"arguments\": {\"code\": \""[..], 2)
        );
        let with_word = gate(&["x\"}"]);
        assert_eq!(with_word.left(with_word.start()), 1);
        let state = plain.after(plain.start(), u32::from(b'x'), 5).unwrap();
        assert_eq!(plain.after(state, u32::from(b'"'), 0).and_then(|state| plain.rest(state)), Some(&b"}}"[..]));
        // With one token left, nothing but the quote is allowed.
        let left: Vec<u32> = (0..256).filter(|byte| plain.after(state, *byte, 0).is_some()).collect();
        assert_eq!(left, [u32::from(b'"')]);
    }

    #[test]
    fn a_vocabulary_that_cannot_write_the_reply_is_refused() {
        let pieces = vec![Box::from(*b"x"), Box::from(*b"yy")];
        let vocabulary = Arc::new(Vocabulary::new(pieces, Vec::new()));
        assert_eq!(made(text_grammar("``` ").unwrap(), &vocabulary).unwrap_err(), NoGate::CannotWrite);
    }

    #[test]
    fn a_token_that_leads_nowhere_is_not_allowed() {
        // `"` is there only as part of a word, and `\u` begins an escape that these tokens cannot end.
        let pieces: Vec<Box<[u8]>> = ["x", "c\"}}", "\\u"].map(|piece| piece.as_bytes().into()).into();
        let vocabulary = Arc::new(Vocabulary::new(pieces, Vec::new()));
        let parameters = Value::from_json(r#"{"properties": {"s": {"type": "string"}}, "required": ["s"]}"#).unwrap();
        let tool = [Callable { name: "t", parameters: &parameters, program: None }];
        let gate = made(call_grammar(&tool).unwrap(), &vocabulary).unwrap();
        let allowed: Vec<u32> = (0..3).filter(|token| gate.after(gate.start(), *token, 9).is_some()).collect();
        assert_eq!(allowed, [0, 1]);
        let logits = [0.0, 0.0, 9.0];
        for temperature in [0.0, 1.0] {
            let mut sampler = Sampler::new(Sampling { temperature, ..PLAIN }, 1);
            assert_ne!(sampler.choose(&logits, Some((&gate, gate.start(), 9))).unwrap().0, 2);
        }
    }

    /// Every state is looked at once, and once more where a token leads nowhere; each time it can be left.
    #[test]
    fn making_a_gate_can_be_stopped_at_every_state() {
        // No `0`: behind each of the many beginnings of an escape, four ways are lost.
        let pieces = (0..=255_u8).filter(|byte| *byte != b'0').map(|byte| Box::from([byte]));
        let vocabulary = Arc::new(Vocabulary::new(pieces.collect(), Vec::new()));
        let schema = r#"{"properties": {"s": {"enum": ["0", "a0", "b0", "ab0", "c"]}}, "required": ["s"]}"#;
        let parameters = Value::from_json(schema).unwrap();
        let tool = [Callable { name: "t", parameters: &parameters, program: None }];
        let grammar = || arguments_grammar(&tool).unwrap();
        let ends_after = |states: usize| {
            let asked = Cell::new(0);
            let stop = || asked.replace(asked.get() + 1) == states;
            (Gate::new(grammar(), vocabulary.clone(), &stop).map(|_| ()), asked.get())
        };
        let (whole, states) = ends_after(usize::MAX);
        whole.unwrap();
        assert!(states <= 2 * grammar().size(), "{states} of {}", grammar().size());
        for stopped in 0..states {
            assert_eq!(ends_after(stopped), (Err(NoGate::Stopped), stopped + 1));
        }
    }

    #[test]
    fn the_numbers_of_sampling_do_what_they_say() {
        let logits = [1.0, 3.0, 2.9, f32::NAN];
        let drawn = |sampling: Sampling| {
            let mut sampler = Sampler::new(sampling, 5);
            let tokens: Vec<TokenId> = (0..200).map(|_| sampler.choose(&logits, None).unwrap().0).collect();
            [0, 1, 2, 3].map(|token| tokens.iter().filter(|drawn| **drawn == token).count())
        };
        assert_eq!(drawn(PLAIN), [0, 200, 0, 0]);
        let [few, many, some, none] = drawn(Sampling { temperature: 1.0, ..PLAIN });
        assert!(few > 0 && few < some && many > 60 && some > 60 && none == 0);
        assert_eq!(drawn(Sampling { temperature: 1.0, top_p: 0.3, ..PLAIN }), [0, 200, 0, 0]);
        // The likeliest two take turns, until both are as unlikely as the third.
        let [_, many, some, _] = drawn(Sampling { repeat_penalty: 1.2, ..PLAIN });
        assert!(many > 0 && some > 0);
    }
}
