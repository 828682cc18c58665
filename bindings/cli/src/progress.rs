//! A line on the terminal while a model is awaited: role, method and the time so far.
//!
//! It wraps the provider and its targets, so it sees every request and nothing else. A reply that is there at once costs one poll and
//! no line; the line is drawn by a thread of its own and never delays the reply.

use std::future::Future;
use std::io::IsTerminal as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cadenza_core::cancel::CancelToken;
use cadenza_core::message::GrammarRef;
use cadenza_core::printable::printable;
use cadenza_core::program::Language;
use cadenza_core::provider::{ModelReply, ModelRequest, Provider, ProviderError, ReplyFuture, ToolSpec};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two drawings; also how long a request may take before it is shown at all.
const TICK: Duration = Duration::from_millis(120);

/// A provider that shows its requests.
#[derive(Debug)]
pub struct Shown {
    inner: Arc<dyn Provider>,
    /// Its targets, each shown in turn.
    targets: Vec<Arc<dyn Provider>>,
    lines: MultiProgress,
}

/// The provider with a progress line, if standard error is a terminal; else the provider itself.
pub fn shown(provider: Arc<dyn Provider>) -> Arc<dyn Provider> {
    if !std::io::stderr().is_terminal() || std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return provider;
    }
    with_lines(provider, &MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
}

fn with_lines(inner: Arc<dyn Provider>, lines: &MultiProgress) -> Arc<dyn Provider> {
    let targets = inner.targets().iter().map(|target| with_lines(target.clone(), lines)).collect();
    Arc::new(Shown { inner, targets, lines: lines.clone() })
}

impl Provider for Shown {
    fn model(&self) -> &str {
        self.inner.model()
    }

    fn profile(&self) -> &str {
        self.inner.profile()
    }

    fn grammar(&self, tools: &[ToolSpec], language: Language) -> Option<GrammarRef> {
        self.inner.grammar(tools, language)
    }

    fn fingerprint(&self) -> &str {
        self.inner.fingerprint()
    }

    fn streams(&self, request: &ModelRequest) -> bool {
        self.inner.streams(request)
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn targets(&self) -> &[Arc<dyn Provider>] {
        &self.targets
    }

    fn ready(&self) -> Result<(), ProviderError> {
        self.inner.ready()
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        Box::pin(Awaited { reply: self.inner.complete(request, cancel), request, lines: &self.lines, line: None })
    }
}

/// A reply to come, and its line once it is awaited.
struct Awaited<'a> {
    reply: ReplyFuture<'a>,
    request: &'a ModelRequest,
    lines: &'a MultiProgress,
    line: Option<ProgressBar>,
}

impl Future for Awaited<'_> {
    type Output = Result<ModelReply, ProviderError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.reply.as_mut().poll(context);
        if polled.is_pending() && self.line.is_none() {
            let line = self.lines.add(ProgressBar::new_spinner());
            line.set_style(style());
            line.set_message(message(self.request));
            line.enable_steady_tick(TICK);
            self.line = Some(line);
        }
        polled
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}

fn message(request: &ModelRequest) -> String {
    let again = if request.attempt > 1 { format!(" (attempt {})", request.attempt) } else { String::new() };
    format!("{}.{}{again}", printable(&request.role), printable(&request.method))
}

fn style() -> ProgressStyle {
    // A template that does not parse would be our own mistake; the default spinner says the same, less well.
    ProgressStyle::with_template("{spinner:.cyan} {msg} {elapsed:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}
