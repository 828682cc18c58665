//! The scripted model: plays what it was told to, at once. The model of tests, of scenarios and of examples.
//!
//! It answers on the caller's thread without a runtime, and counts every request, failed ones too. Only
//! [`Played::Block`] waits. It never looks at prompts and never compiles what it plays.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{ModelReply, ModelRequest, Provider, ProviderError, ProviderErrorClass, ReplyFuture, wait};
use crate::cancel::CancelToken;
use crate::program::Language;

/// What one request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Played {
    /// A program's text.
    Program(Arc<str>),
    /// Null where a program should be (AC-10).
    Null,
    /// An empty program (AC-10).
    Blank,
    /// A provider failure with these words (AC-9).
    Fail(Arc<str>),
    /// No answer within the request's timeout: a real wait, ended by the timeout or the cancel token (AC-14).
    Block,
}

/// What an id of a plan stands for: a program in some languages, or a bad payload (formats.md 1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanItem {
    /// A program's text in each language that has it.
    Program(BTreeMap<Language, Arc<str>>),
    /// The provider replies with null.
    Null,
    /// The provider replies with blanks only.
    Blank,
}

/// A provider plan: method name to the sequence that its requests are answered with (formats.md 1.4).
///
/// The n-th request for a method, from any role, gets the n-th id. When the ids are used up the last one repeats and
/// the overrun is noted. A method that the plan does not name is a provider failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    methods: BTreeMap<String, Vec<(Arc<str>, PlanItem)>>,
}

impl Plan {
    /// A plan without methods: every request fails.
    pub fn new() -> Self {
        Self::default()
    }

    /// Builds a plan from `(method, ids)`; `lookup` knows the ids. An unknown id or an empty sequence is an error.
    pub fn from_ids<'a, M, I>(methods: M, lookup: impl Fn(&str) -> Option<PlanItem>) -> Result<Self, PlanError>
    where
        M: IntoIterator<Item = (&'a str, I)>,
        I: IntoIterator<Item = &'a str>,
    {
        let mut plan = Self::new();
        for (method, ids) in methods {
            let mut sequence = Vec::new();
            for id in ids {
                let unknown = || PlanError::UnknownId { method: method.to_owned(), id: id.to_owned() };
                sequence.push((Arc::from(id), lookup(id).ok_or_else(unknown)?));
            }
            if sequence.is_empty() {
                return Err(PlanError::EmptySequence { method: method.to_owned() });
            }
            plan.methods.insert(method.to_owned(), sequence);
        }
        Ok(plan)
    }

    /// Appends one answer to a method's sequence. For tests; `program` is used for every language.
    #[must_use]
    pub fn then(mut self, method: &str, program: &str) -> Self {
        let texts = Language::ALL.into_iter().map(|language| (language, Arc::from(program))).collect();
        self.push(method, "inline", PlanItem::Program(texts));
        self
    }

    /// Appends one answer, under the id that failures name, to a method's sequence.
    pub fn push(&mut self, method: &str, id: &str, item: PlanItem) {
        self.methods.entry(method.to_owned()).or_default().push((id.into(), item));
    }
}

/// Answers a request by itself; see [`Scripted::respond`].
type Respond = dyn Fn(&ModelRequest) -> Result<ModelReply, ProviderError> + Send + Sync;

enum Script {
    Plan(Plan),
    Respond(Box<Respond>),
    /// No plan: by (role, method), else for every request.
    Behaviours {
        default: Option<Played>,
        by_call: Mutex<BTreeMap<(String, String), Played>>,
    },
}

/// The scripted model.
pub struct Scripted {
    model: Arc<str>,
    script: Script,
    requests: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    by_method: BTreeMap<String, u64>,
    overrun: BTreeSet<String>,
}

impl Scripted {
    /// Plays a plan.
    pub fn plan(plan: Plan) -> Self {
        Self::of(Script::Plan(plan))
    }

    /// Answers with a function of the request. Its panics are the caller's.
    pub fn respond(
        respond: impl Fn(&ModelRequest) -> Result<ModelReply, ProviderError> + Send + Sync + 'static,
    ) -> Self {
        Self::of(Script::Respond(Box::new(respond)))
    }

    /// Gives every request the same answer.
    pub fn always(played: Played) -> Self {
        Self::of(Script::Behaviours { default: Some(played), by_call: Mutex::default() })
    }

    /// Gives every request the same program.
    pub fn program(code: &str) -> Self {
        Self::always(Played::Program(code.into()))
    }

    /// Answers by role and method, as [`Self::behave`] says; anything else is a provider failure that names it.
    pub fn by_call() -> Self {
        Self::of(Script::Behaviours { default: None, by_call: Mutex::default() })
    }

    /// The same model under another name in logs and transcripts; `scripted` otherwise.
    #[must_use]
    pub fn named(mut self, model: &str) -> Self {
        self.model = model.into();
        self
    }

    /// From now on, requests for this role and method are answered like this.
    ///
    /// Returns false, and changes nothing, when this model plays a plan or a function.
    pub fn behave(&self, role: &str, method: &str, played: Played) -> bool {
        match &self.script {
            Script::Behaviours { by_call, .. } => {
                by_call.lock().insert((role.to_owned(), method.to_owned()), played);
                true
            }
            Script::Plan(_) | Script::Respond(_) => false,
        }
    }

    /// Requests so far, failed ones included.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Acquire)
    }

    /// Requests so far for one method, from any role, failed ones included.
    pub fn requests_for(&self, method: &str) -> u64 {
        self.counts.lock().by_method.get(method).copied().unwrap_or(0)
    }

    /// Methods that were asked for more often than their plan has ids, in order.
    pub fn overruns(&self) -> Vec<String> {
        self.counts.lock().overrun.iter().cloned().collect()
    }

    fn of(script: Script) -> Self {
        Self { model: "scripted".into(), script, requests: AtomicU64::new(0), counts: Mutex::default() }
    }

    /// Counts a request; returns how many there were before for the same method.
    fn count(&self, method: &str) -> u64 {
        self.requests.fetch_add(1, Ordering::AcqRel);
        let mut counts = self.counts.lock();
        match counts.by_method.get_mut(method) {
            Some(count) => {
                *count += 1;
                *count - 1
            }
            None => {
                counts.by_method.insert(method.to_owned(), 1);
                0
            }
        }
    }

    fn play(&self, plan: &Plan, request: &ModelRequest, before: u64) -> Played {
        let Some((last, _)) = plan.methods.get(&*request.method).and_then(|sequence| sequence.split_last()) else {
            let planned: Vec<&str> = plan.methods.keys().map(String::as_str).collect();
            return Played::Fail(
                format!("the provider plan has no method `{}`; it has: {}", request.method, listed(&planned)).into(),
            );
        };
        let sequence = &plan.methods[&*request.method];
        let index = usize::try_from(before).unwrap_or(usize::MAX);
        if index >= sequence.len() {
            self.counts.lock().overrun.insert(request.method.to_string());
        }
        let (id, item) = sequence.get(index).unwrap_or(last);
        match item {
            PlanItem::Null => Played::Null,
            PlanItem::Blank => Played::Blank,
            PlanItem::Program(texts) => match texts.get(&request.language) {
                Some(text) => Played::Program(text.clone()),
                None => Played::Fail(format!("the program `{id}` has no {} text", request.language).into()),
            },
        }
    }

    /// What a request is answered with; `None` for a model that never answers.
    fn answer(&self, request: &ModelRequest) -> Option<Result<ModelReply, ProviderError>> {
        let before = self.count(&request.method);
        let played = match &self.script {
            Script::Respond(respond) => return Some(respond(request)),
            Script::Plan(plan) => self.play(plan, request, before),
            Script::Behaviours { default, by_call } => {
                let own = by_call.lock().get(&(request.role.to_string(), request.method.to_string())).cloned();
                own.or_else(|| default.clone()).unwrap_or_else(|| {
                    let message = format!("nothing is scripted for `{}` of role `{}`", request.method, request.role);
                    Played::Fail(message.into())
                })
            }
        };
        match played {
            Played::Program(text) => Some(Ok(ModelReply::text(&*text))),
            Played::Null => Some(Ok(ModelReply::default())),
            Played::Blank => Some(Ok(ModelReply::text(" \n"))),
            Played::Fail(message) => Some(Err(ProviderError::new(ProviderErrorClass::Failed, message.to_string()))),
            Played::Block => None,
        }
    }
}

impl Provider for Scripted {
    fn model(&self) -> &str {
        &self.model
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        match self.answer(request) {
            Some(result) => Box::pin(future::ready(result)),
            None => Box::pin(async { Err(wait::never(&self.model, request.timeout, cancel).await) }),
        }
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Scripted").field("model", &self.model).field("requests", &self.requests()).finish()
    }
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Why a plan cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No program and no payload has that id.
    #[error("the plan of method `{method}` names `{id}`, which is neither a program nor a payload")]
    UnknownId {
        /// The method.
        method: String,
        /// The unknown id.
        id: String,
    },
    /// A sequence without ids.
    #[error("the plan of method `{method}` is an empty sequence; give it at least one id")]
    EmptySequence {
        /// The method.
        method: String,
    },
}
