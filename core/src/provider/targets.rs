//! Several targets as one provider: when one fails in a way that another may not, the next is asked.
//!
//! Every request starts with the first target. It stops at the first reply, at a fatal failure (the account is refused,
//! the call was cancelled), or when its attempts or the request's time are used up. It never waits between attempts.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{ModelReply, ModelRequest, Provider, ProviderError, ReplyFuture};
use crate::cancel::CancelToken;

/// A list of targets, in the order in which they are asked.
#[derive(Debug)]
pub struct Targets {
    name: String,
    fingerprint: String,
    targets: Vec<Arc<dyn Provider>>,
    max_attempts: usize,
}

impl Targets {
    /// A provider over these targets that makes at most `max_attempts` attempts per request, cycling through the list.
    ///
    /// `None` without targets. At least one attempt is made. Each attempt gets an equal share of what is left of the
    /// request's timeout, so that one silent server cannot use up the time of the others.
    pub fn new(targets: Vec<Arc<dyn Provider>>, max_attempts: usize) -> Option<Self> {
        if targets.is_empty() {
            return None;
        }
        let joined = |name: fn(&dyn Provider) -> &str| -> String {
            targets.iter().map(|target| name(&**target)).collect::<Vec<_>>().join(",")
        };
        let (name, fingerprint) = (joined(|target| target.model()), joined(|target| target.fingerprint()));
        Some(Self { name, fingerprint, targets, max_attempts: max_attempts.max(1) })
    }

    async fn ask(&self, request: &ModelRequest, cancel: &CancelToken) -> Result<ModelReply, ProviderError> {
        let deadline = Instant::now() + request.timeout;
        let mut failures: Vec<(&str, ProviderError)> = Vec::new();
        for attempt in 0..self.max_attempts {
            let target = &self.targets[attempt % self.targets.len()];
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let share = left / u32::try_from(self.max_attempts - attempt).unwrap_or(u32::MAX);
            let asked = ModelRequest { timeout: share.max(Duration::from_millis(1)), ..request.clone() };
            match target.complete(&asked, cancel).await {
                Ok(mut reply) => {
                    reply.model.get_or_insert_with(|| target.model().to_owned());
                    if !failures.is_empty() && reply.note.is_none() {
                        reply.note = Some(Cow::Owned(noted(target.model(), &failures)));
                    }
                    return Ok(reply);
                }
                Err(error) if error.class.is_fatal() => return Err(error),
                Err(error) => failures.push((target.model(), error)),
            }
        }
        Err(self.all_failed(request, failures))
    }

    /// The last failure's class, and everybody's words.
    fn all_failed(&self, request: &ModelRequest, mut failures: Vec<(&str, ProviderError)>) -> ProviderError {
        let Some((_, last)) = failures.pop() else {
            return ProviderError::timed_out(&self.name, request.timeout);
        };
        if failures.is_empty() {
            return last;
        }
        let mut message = format!("{} attempts failed; the last: {}", failures.len() + 1, last.message);
        for (_, error) in failures.iter().rev() {
            let _ = write!(message, "; before: {}", error.message);
        }
        // Whoever waits should wait for the target that is free first.
        let waits = failures.iter().map(|(_, error)| error.retry_after).chain([last.retry_after]);
        let retry_after = waits.flatten().min();
        ProviderError { retry_after, ..ProviderError::new(last.class, message) }
    }
}

fn noted(model: &str, failures: &[(&str, ProviderError)]) -> String {
    let failed: Vec<String> =
        failures.iter().map(|(name, error)| format!("{name} ({})", error.class.as_str())).collect();
    format!("answered by {model} after {} failed", failed.join(", "))
}

impl Provider for Targets {
    fn model(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
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
