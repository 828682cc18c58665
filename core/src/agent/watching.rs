//! What one call tells those who watch it: its attempts, and their programs as they are written.
//!
//! Text behind the token gate waits here until the kernel lets the call run, and is forgotten when it does not (EC-3.F,
//! EC-IF1 to EC-IF5).

use std::sync::Arc;

use parking_lot::Mutex;

use super::call::Call;
use super::written::CodeText;
use crate::provider::{Piece, PieceSink, secret};
use crate::runtime::watch::{Attempt, Feed, Part, Progress, Told, Watcher, tell_all};

/// Those who watch a call.
pub(super) struct Watching<'a> {
    call: &'a Call<'a>,
    depth: u32,
    watchers: Vec<Arc<dyn Watcher>>,
    open: Option<Arc<Open>>,
}

/// An attempt that is under way. Shared with the provider, which may be left behind with it.
struct Open {
    attempt: Arc<Attempt>,
    watchers: Vec<Arc<dyn Watcher>>,
    state: Mutex<State>,
}

struct State {
    /// Nobody is told any more.
    over: bool,
    /// What waits behind the gate.
    held: Option<Feed>,
    /// The model wrote something already.
    wrote: bool,
    /// Whether its text is JSON with the program in it; known from its first letter on.
    text_is_json: Option<bool>,
    text: CodeText,
    arguments: CodeText,
}

impl<'a> Watching<'a> {
    pub(super) fn new(call: &'a Call<'a>, depth: u32) -> Self {
        let own = call.agent.0.settings.verbose.iter();
        let watchers = own.chain(call.trace.watcher.iter()).cloned().collect();
        Self { call, depth, watchers, open: None }
    }

    /// The model is asked. With `hold`, nothing that it writes is told before [`Self::released`].
    pub(super) fn started(&mut self, number: u32, hold: bool) {
        if self.watchers.is_empty() {
            return;
        }
        let attempt = Arc::new(Attempt {
            role: self.call.agent.role().clone(),
            method: self.call.method.clone(),
            call_id: self.call.call_id,
            depth: self.depth,
            number,
        });
        let open = Open {
            attempt,
            watchers: self.watchers.clone(),
            state: Mutex::new(State {
                over: false,
                held: hold.then(Feed::default),
                wrote: false,
                text_is_json: None,
                text: CodeText::default(),
                arguments: CodeText::default(),
            }),
        };
        open.say(Progress::Started);
        self.open = Some(Arc::new(open));
    }

    /// Where the provider puts pieces of its reply; nowhere when nobody watches.
    pub(super) fn sink(&self) -> Option<PieceSink> {
        let open = self.open.clone()?;
        Some(PieceSink::new(move |piece| open.piece(piece)))
    }

    /// The reply was whole, and this program came of it.
    pub(super) fn written(&self, code: &str) {
        let Some(open) = &self.open else { return };
        let mut state = open.state.lock();
        // Who did not tell it piece by piece tells it now.
        if !state.wrote {
            open.put(&mut state, Part::Program, code.to_owned());
        }
        let whole = Told { attempt: open.attempt.clone(), what: Progress::Written };
        open.give(&mut state, whole);
    }

    /// The kernel lets the call run: what was held back may be seen.
    pub(super) fn released(&self) {
        let Some(open) = &self.open else { return };
        let mut state = open.state.lock();
        let Some(mut held) = state.held.take() else { return };
        while let Some(told) = held.pop() {
            open.give(&mut state, told);
        }
    }

    /// The attempt, or its program, failed. What was held back is forgotten, and so are the adapter's words about it.
    pub(super) fn failed(&mut self, stage: &'static str, error_class: &str, message: &str) {
        let Some(open) = &self.open else { return };
        let mut state = open.state.lock();
        let gated = state.held.take().is_some() && stage == "adapter";
        let message = if gated { String::new() } else { message.to_owned() };
        state.over = true;
        open.say(Progress::Failed { stage, error_class: error_class.to_owned(), message });
    }

    /// The run is over.
    pub(super) fn ended(&mut self) {
        if let Some(open) = self.open.take() {
            open.state.lock().over = true;
        }
    }
}

impl Drop for Watching<'_> {
    /// The call was given up, and its future dropped.
    fn drop(&mut self) {
        if self.open.as_ref().is_some_and(|open| !open.state.lock().over) {
            self.failed("call", "interrupted", "the call was given up");
        }
    }
}

impl Open {
    fn say(&self, what: Progress) {
        tell_all(&self.watchers, &Told { attempt: self.attempt.clone(), what });
    }

    fn piece(&self, piece: Piece<'_>) {
        let mut state = self.state.lock();
        if state.over {
            return;
        }
        let (of, text) = match piece {
            Piece::Arguments(json) => (Part::Program, state.arguments.take(json)),
            Piece::Reasoning(text) => (Part::Reasoning, text.to_owned()),
            Piece::Text(text) => {
                let first = text.trim_start().chars().next();
                let is_json = state.text_is_json.or_else(|| first.map(|first| first == '{'));
                state.text_is_json = is_json;
                if is_json == Some(true) {
                    (Part::Program, state.text.take(text))
                } else {
                    (Part::Text, text.to_owned())
                }
            }
        };
        if !text.is_empty() {
            state.wrote |= of != Part::Reasoning;
            self.put(&mut state, of, text);
        }
    }

    fn put(&self, state: &mut State, of: Part, text: String) {
        let text = secret::scrub(&text).into_owned();
        let what = Progress::Piece { of, text, dropped: 0 };
        self.give(state, Told { attempt: self.attempt.clone(), what });
    }

    /// To the watchers, or behind the gate.
    fn give(&self, state: &mut State, told: Told) {
        match &mut state.held {
            Some(held) => held.push(told),
            None => tell_all(&self.watchers, &told),
        }
    }
}
