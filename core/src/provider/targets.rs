//! Several targets as one provider. A call's attempts ask them in rotation (`rotation`); a host may also ask the
//! list itself.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::rotation::Rotation;
use super::wait::{RealWaits, Waits};
use super::{ModelReply, ModelRequest, Provider, ProviderError, ReplyFuture, ToolSpec};
use crate::cancel::CancelToken;
use crate::message::GrammarRef;
use crate::program::Language;

/// A list of targets, in the order in which they are asked.
#[derive(Debug)]
pub struct Targets {
    name: String,
    fingerprint: String,
    targets: Vec<Arc<dyn Provider>>,
    max_requests: u32,
}

impl Targets {
    /// A provider over these targets; `None` without any. Asked as a whole, it makes at most `max_requests` requests, and at
    /// least one; an agent's calls have their own bound (`max_generation_attempts`).
    pub fn new(targets: Vec<Arc<dyn Provider>>, max_requests: u32) -> Option<Self> {
        if targets.is_empty() {
            return None;
        }
        let joined = |name: fn(&dyn Provider) -> &str| -> String {
            targets.iter().map(|target| name(&**target)).collect::<Vec<_>>().join(",")
        };
        let (name, fingerprint) = (joined(|target| target.model()), joined(|target| target.fingerprint()));
        Some(Self { name, fingerprint, targets, max_requests })
    }

    async fn ask(&self, request: &ModelRequest, cancel: &CancelToken) -> Result<ModelReply, ProviderError> {
        let deadline = Instant::now() + request.timeout;
        let mut rotation = Rotation::new(self.targets.len(), self.max_requests);
        let mut failures: Vec<(String, ProviderError)> = Vec::new();
        loop {
            let target = &self.targets[rotation.target()];
            let left = deadline.saturating_duration_since(Instant::now());
            let asked = ModelRequest { timeout: share(left, rotation.left()), ..request.clone() };
            match target.complete(&asked, cancel).await {
                Ok(mut reply) => {
                    reply.model.get_or_insert_with(|| target.model().to_owned());
                    // Who did not answer is the news, also where the library did.
                    reply.note = fallback_note(target.model(), &failures).or(reply.note);
                    return Ok(reply);
                }
                Err(error) if error.class.is_fatal() => return Err(error),
                Err(error) => {
                    let wait = rotation.failed(&error);
                    failures.push((target.model().to_owned(), error));
                    match wait {
                        Some(wait) if Instant::now() + wait < deadline => {
                            if self.waits() {
                                RealWaits.pause(wait, cancel).await;
                            }
                        }
                        Some(_) | None => return Err(all_failed(failures)),
                    }
                }
            }
        }
    }
}

/// Time of the next of so many requests: an equal share, so that one silent server cannot use up the others' time.
pub(crate) fn share(left: Duration, requests: u32) -> Duration {
    (left / requests.max(1)).max(Duration::from_millis(1))
}

/// What a caller is told when the first target did not answer.
pub(crate) fn fallback_note(answered: &str, failures: &[(String, ProviderError)]) -> Option<Cow<'static, str>> {
    let failed: Vec<String> =
        failures.iter().map(|(name, error)| format!("{name} ({})", error.class.as_str())).collect();
    (!failed.is_empty()).then(|| format!("answered by {answered} after {} failed", failed.join(", ")).into())
}

/// The last failure's class, and everybody's words.
pub(crate) fn all_failed(mut failures: Vec<(String, ProviderError)>) -> ProviderError {
    let (_, last) = failures.pop().expect("a rotation that failed has a failure");
    if failures.is_empty() {
        return last;
    }
    let mut message = format!("{} attempts failed; the last: {}", failures.len() + 1, last.message);
    // What was said again is said once.
    let mut said = vec![&last.message];
    for (_, error) in failures.iter().rev() {
        if !said.contains(&&error.message) {
            let _ = write!(message, "; before: {}", error.message);
            said.push(&error.message);
        }
    }
    // Whoever waits should wait for the target that is free first.
    let waits = failures.iter().map(|(_, error)| error.retry_after).chain([last.retry_after]);
    let retry_after = waits.flatten().min();
    ProviderError { retry_after, ..ProviderError::new(last.class, message) }
}

impl Provider for Targets {
    fn model(&self) -> &str {
        &self.name
    }

    /// The profile that all targets share; `program`, which takes every form, where they differ.
    fn profile(&self) -> &str {
        let first = self.targets[0].profile();
        if self.targets.iter().all(|target| target.profile() == first) { first } else { "program" }
    }

    /// The grammar that all targets share.
    fn grammar(&self, tools: &[ToolSpec], language: Language) -> Option<GrammarRef> {
        let first = self.targets[0].grammar(tools, language)?;
        self.targets.iter().all(|target| target.grammar(tools, language).as_ref() == Some(&first)).then_some(first)
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn targets(&self) -> &[Arc<dyn Provider>] {
        &self.targets
    }

    /// Whoever is asked in truth is waited for.
    fn waits(&self) -> bool {
        self.targets.iter().any(|target| target.waits())
    }

    fn ready(&self) -> Result<(), ProviderError> {
        let mut first = None;
        for target in &self.targets {
            match target.ready() {
                Ok(()) => return Ok(()),
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        Box::pin(self.ask(request, cancel))
    }
}
