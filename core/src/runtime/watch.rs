//! Watching programs being written: what a call tells while its model is at work, who is told, and the printer behind the
//! option `verbose`.
//!
//! Whoever watches can neither hold up a call nor break it: what is told goes into a bounded feed, and somebody else's
//! thread takes it out. What is told was not checked by anybody; it is for eyes alone.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::fork::PerProcess;
use crate::ids::CallId;
use crate::printable::printable;

/// Bytes of text that wait in a feed; older pieces give way.
const MAX_BYTES: usize = 1 << 20;
/// Things told that wait in a feed.
const MAX_WAITING: usize = 4_096;
/// Bytes up to which pieces that nobody has taken yet become one.
const MAX_JOINED: usize = 4 << 10;
/// How long a printer's thread waits for more before it ends.
const IDLE: Duration = Duration::from_millis(500);
/// How long the end of a call waits for its printer.
const FLUSH: Duration = Duration::from_millis(200);

/// One generation attempt of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Role of the agent.
    pub role: Arc<str>,
    /// The method.
    pub method: Arc<str>,
    /// The call.
    pub call_id: CallId,
    /// Number of calls around it.
    pub depth: u32,
    /// 1 for the first attempt of the call.
    pub number: u32,
}

/// What a call tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Of which attempt.
    pub attempt: Arc<Attempt>,
    /// What.
    pub what: Progress,
}

/// What happens in an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The model is asked.
    Started,
    /// It wrote something.
    Piece {
        /// What it is a part of.
        of: Part,
        /// The part, as far as it goes.
        text: String,
        /// Pieces before it that nobody took in time.
        dropped: u64,
    },
    /// The reply is whole, and a program came of it.
    Written,
    /// The attempt failed: its request, its reply, or its program.
    Failed {
        /// `provider`, `adapter`, `execution` or `contract`; `call` when the call was given up meanwhile.
        stage: &'static str,
        /// The class within the stage.
        error_class: String,
        /// What happened.
        message: String,
    },
}

/// What a piece is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The program.
    Program,
    /// Text, which may be the program or words around it.
    Text,
    /// What the model thinks before it answers.
    Reasoning,
}

impl Part {
    /// The spelling in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Text => "text",
            Self::Reasoning => "reasoning",
        }
    }
}

/// Whoever is told. Must return at once, on whatever thread it is told.
pub trait Watcher: Send + Sync + fmt::Debug {
    /// Takes what a call tells.
    fn tell(&self, told: Told);

    /// Waits, within a bound, until what was told is out.
    fn flush(&self) {}
}

/// Tells all of them. One that panics is no part of the call.
pub(crate) fn tell_all(watchers: &[Arc<dyn Watcher>], told: &Told) {
    for watcher in watchers {
        drop(catch_unwind(AssertUnwindSafe(|| watcher.tell(told.clone()))));
    }
}

/// Things told that wait for somebody to take them, within bounds.
#[derive(Debug, Default)]
pub struct Feed {
    waiting: VecDeque<Told>,
    bytes: usize,
    dropped: u64,
}

impl Feed {
    /// Puts one more behind the others. Pieces that belong together become one; when there are too many, the oldest pieces
    /// give way and are counted.
    pub fn push(&mut self, told: Told) {
        if let Progress::Piece { of, text, .. } = &told.what {
            self.bytes += text.len();
            if let Some(Told { attempt, what: Progress::Piece { of: last, text: before, .. } }) =
                self.waiting.back_mut()
                && *last == *of
                && *attempt == told.attempt
                && before.len() + text.len() <= MAX_JOINED
            {
                before.push_str(text);
                return self.bound();
            }
        }
        self.waiting.push_back(told);
        self.bound();
    }

    fn bound(&mut self) {
        while self.bytes > MAX_BYTES || self.waiting.len() > MAX_WAITING {
            let is_piece = |told: &Told| matches!(told.what, Progress::Piece { .. });
            let oldest = self.waiting.iter().position(is_piece).unwrap_or_default();
            let Some(Told { what, .. }) = self.waiting.remove(oldest) else { return };
            if let Progress::Piece { text, dropped, .. } = what {
                self.bytes -= text.len();
                self.dropped += dropped + 1;
            }
        }
    }

    /// The oldest. A piece says how many before it were dropped.
    pub fn pop(&mut self) -> Option<Told> {
        let mut told = self.waiting.pop_front()?;
        if let Progress::Piece { text, dropped, .. } = &mut told.what {
            self.bytes -= text.len();
            *dropped += std::mem::take(&mut self.dropped);
        }
        Some(told)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Writes text out for a printer; may be slow.
type Write = Box<dyn Fn(&str) + Send + Sync>;

/// Shows programs as they are written: plain text, one block for each attempt. One block is shown at a time; those of calls
/// beside it follow when it ends.
#[derive(Debug)]
pub struct Printer(Arc<Printing>);

struct Printing {
    write: Write,
    state: PerProcess<State>,
}

#[derive(Debug, Default)]
struct State {
    page: Mutex<Page>,
    /// Something was told, or everything is out.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Page {
    feed: Feed,
    blocks: Blocks,
    /// There is a thread that prints.
    running: bool,
    /// It has text in its hands.
    writing: bool,
    /// It was not done in time, and nobody waits for it until it is.
    stuck: bool,
}

impl fmt::Debug for Printing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Printing")
    }
}

impl Printer {
    /// A printer that writes with `write`, on a thread of its own.
    pub fn new(write: impl Fn(&str) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self(Arc::new(Printing { write: Box::new(write), state: PerProcess::default() })))
    }

    /// The one that writes to standard error: one for the whole process, so that no block stands within another.
    pub fn stderr() -> Arc<Self> {
        static STDERR: OnceLock<Arc<Printer>> = OnceLock::new();
        let write = |text: &str| {
            let mut stderr = std::io::stderr().lock();
            // Nobody sees what cannot be written there.
            drop(stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()));
        };
        STDERR.get_or_init(|| Self::new(write)).clone()
    }
}

impl Watcher for Printer {
    fn tell(&self, told: Told) {
        let state = self.0.state.get();
        let mut page = state.page.lock();
        page.feed.push(told);
        if page.running {
            state.changed.notify_all();
            return;
        }
        let printing = self.0.clone();
        let spawned = std::thread::Builder::new().name("cadenza-verbose".into()).spawn(move || printing.run());
        // Without a thread nothing is shown; the feed stays within its bounds.
        page.running = spawned.is_ok();
    }

    fn flush(&self) {
        let state = self.0.state.get();
        let mut page = state.page.lock();
        let until = Instant::now() + FLUSH;
        while page.running && !page.stuck && (page.writing || !page.feed.is_empty()) {
            if state.changed.wait_until(&mut page, until).timed_out() {
                page.stuck = true;
            }
        }
    }
}

impl Printing {
    fn run(&self) {
        let state = self.state.get();
        let mut page = state.page.lock();
        loop {
            while let Some(told) = page.feed.pop() {
                let text = page.blocks.take(&told);
                if !text.is_empty() {
                    page.writing = true;
                    // What goes wrong with the writing is the writer's own.
                    let write = || drop(catch_unwind(AssertUnwindSafe(|| (self.write)(&printable(&text)))));
                    parking_lot::MutexGuard::unlocked(&mut page, write);
                    page.writing = false;
                }
            }
            page.stuck = false;
            state.changed.notify_all();
            if state.changed.wait_for(&mut page, IDLE).timed_out() && page.feed.is_empty() {
                page.running = false;
                return;
            }
        }
    }
}

/// The text of what is told, block by block.
#[derive(Debug, Default)]
struct Blocks {
    /// The attempt whose block is shown as it grows.
    shown: Option<Arc<Attempt>>,
    /// Blocks that wait until it ends, and whether each is whole.
    held: VecDeque<(Arc<Attempt>, String, bool)>,
}

impl Blocks {
    /// What is to be written now.
    fn take(&mut self, told: &Told) -> String {
        let attempt = &told.attempt;
        let name = || format!("{}.{}", attempt.role, attempt.method);
        let number = attempt.number;
        let is_open = self.shown.as_ref() == Some(attempt) || self.held.iter().any(|(held, ..)| held == attempt);
        match &told.what {
            Progress::Started => {
                let title = format!("-- {} (attempt {number})\n", name());
                if self.shown.is_some() {
                    self.held.push_back((attempt.clone(), title, false));
                    return String::new();
                }
                self.shown = Some(attempt.clone());
                title
            }
            Progress::Piece { of: Part::Reasoning, .. } => String::new(),
            Progress::Piece { text, dropped: 0, .. } => self.put(attempt, text, false),
            Progress::Piece { text, dropped, .. } => {
                self.put(attempt, &format!("\n-- ({dropped} pieces were left out)\n{text}"), false)
            }
            Progress::Written => self.put(attempt, "\n", true),
            Progress::Failed { stage, error_class, message } => {
                let words = format!("-- {} (attempt {number}) failed: {stage}, {error_class}: {message}\n", name());
                if is_open {
                    return self.put(attempt, &format!("\n{words}"), true);
                }
                // A program that was written and then failed has its block behind it.
                words
            }
        }
    }

    fn put(&mut self, attempt: &Arc<Attempt>, text: &str, ends: bool) -> String {
        if self.shown.as_ref() != Some(attempt) {
            if let Some((_, block, whole)) = self.held.iter_mut().find(|(held, ..)| held == attempt) {
                if block.len() + text.len() <= MAX_BYTES {
                    block.push_str(text);
                }
                *whole |= ends;
            }
            return String::new();
        }
        let mut out = text.to_owned();
        if ends {
            self.shown = None;
            // Whole blocks first to last; the first that still grows is shown from now on.
            while let Some((attempt, block, whole)) = self.held.pop_front() {
                out.push_str(&block);
                if !whole {
                    self.shown = Some(attempt);
                    break;
                }
            }
        }
        out
    }
}
