//! Runs cases against a model and keeps what came of them. Counts and clocks only: what the figures mean is the report's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cadenza_core::agent::Agent;
use cadenza_core::cancel::CancelToken;
use cadenza_core::log::record::CallRecord;
use cadenza_core::outcome::ProgramSource;
use cadenza_core::program::Language;
use cadenza_core::provider::{ModelSpec, Provider};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{Options, Reuse, StoreOption};

use super::{Answer, Call, Case, check};

/// Cases in a row that end because nothing answers before the model counts as unreachable.
const UNREACHABLE_AFTER: usize = 3;

/// What is evaluated, and how.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The model.
    pub provider: Arc<dyn Provider>,
    /// Language of the programs.
    pub language: Language,
    /// Options of every case, under its own.
    pub options: Options,
    /// Runs of each case.
    pub repeat: u32,
    /// Stops the evaluation.
    pub cancel: CancelToken,
}

/// What came of one run of one case.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Why it failed; `None` when every checker took its answer.
    pub failure: Option<String>,
    /// Whether no call, nested ones included, needed a second attempt.
    pub first_attempt: bool,
    /// Attempts of all calls, nested ones included.
    pub attempts: u32,
    /// Prompt tokens, as the model reports them.
    pub tokens_in: u64,
    /// Completion tokens.
    pub tokens_out: u64,
    /// How long each call of the case took.
    pub latencies: Vec<Duration>,
    /// The prompts that the model got: system and user.
    pub prompts: Vec<(String, String)>,
    /// Why the model could not be asked, when that is what ended the run.
    pub unreachable: Option<Unreachable>,
}

/// Why a model could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The provider's words.
    pub message: String,
    /// Whether no other case can fare better.
    pub fatal: bool,
}

/// Why an evaluation ended before its last case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The model cannot be reached; the provider's words.
    Unreachable(String),
    /// The cancel token was set.
    Interrupted,
    /// A case cannot be set up; the case and why.
    Refused(String),
}

/// What is told while cases run.
pub type Progress<'a> = &'a dyn Fn(&Case, Option<&Run>);

impl Evaluation {
    /// Runs every case as often as asked, in order; the runs of each case. `progress` hears before and after each run.
    pub fn run(&self, cases: &[Case], progress: Progress<'_>) -> Result<Vec<Vec<Run>>, Stopped> {
        self.provider.ready().map_err(|error| Stopped::Unreachable(error.message))?;
        let mut results = Vec::with_capacity(cases.len());
        let mut silent = 0;
        for case in cases {
            let mut runs = Vec::new();
            for _ in 0..self.repeat.max(1) {
                progress(case, None);
                let run = self.once(case).map_err(|why| Stopped::Refused(format!("{}: {why}", case.id)))?;
                if self.cancel.is_cancelled() {
                    return Err(Stopped::Interrupted);
                }
                progress(case, Some(&run));
                silent = if run.unreachable.is_some() { silent + 1 } else { 0 };
                if let Some(Unreachable { message, fatal }) = &run.unreachable
                    && (*fatal || silent == UNREACHABLE_AFTER)
                {
                    return Err(Stopped::Unreachable(message.clone()));
                }
                runs.push(run);
            }
            results.push(runs);
        }
        // Too few cases to be sure before the end: nothing answered any of them.
        match results.iter().flatten().map(|run| run.unreachable.as_ref()).collect::<Option<Vec<_>>>() {
            Some(all) if !all.is_empty() => Err(Stopped::Unreachable(all[0].message.clone())),
            Some(_) | None => Ok(results),
        }
    }

    /// One run of one case in a fresh world.
    fn once(&self, case: &Case) -> Result<Run, String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let options = Options {
            model: Some(ModelSpec::Provider(self.provider.clone())),
            language: Some(self.language),
            store: Some(StoreOption::Memory),
            reuse: Some(Reuse::Off),
            // The prompts are measured.
            debug: Some(true),
            ..self.options.clone()
        };
        let runtime = Runtime::builder().name("cadenza-rust").options(options).build().map_err(|e| words(&e))?;
        let mut own = Options::from_map(&case.options).map_err(|e| words(&e))?;
        if !case.tools.is_empty() {
            own.tools = Some(case.tools.iter().map(|tool| tool.tool().map(Arc::new)).collect::<Result<_, _>>()?);
        }
        let agent = runtime.agent(&case.role, own).map_err(|e| words(&e))?;
        agent.remember(case.remember.clone()).map_err(|e| words(&e))?;
        let mut run = Run::default();
        for call in &case.calls {
            let before = runtime.calls().len();
            if let Err(why) = self.call(&agent, call, &runtime, before, &mut run)? {
                run.failure = Some(format!("{}: {why}", call.method));
                break;
            }
        }
        let records = runtime.calls();
        run.first_attempt = records.iter().all(|record| record.metadata.attempts <= 1);
        for record in records {
            run.attempts += record.metadata.attempts;
            run.tokens_in += record.tokens_in;
            run.tokens_out += record.tokens_out;
            if let Some(debug) = record.debug.as_ref().filter(|debug| !debug.user_prompt.is_empty()) {
                run.prompts.push((debug.system_prompt.clone(), debug.user_prompt.clone()));
            }
        }
        Ok(run)
    }

    /// Makes one call and checks it. `Err` on the outside is a case that cannot be, inside one that failed.
    fn call(
        &self,
        agent: &Agent,
        call: &Call,
        runtime: &Runtime,
        before: usize,
        run: &mut Run,
    ) -> Result<Result<(), String>, String> {
        let target = match &call.to {
            None => agent.clone(),
            Some(role) => agent.tool(role).map_err(|error| error.to_string())?,
        };
        let began = Instant::now();
        let outcome = target
            .call_with(&call.method, call.args.clone(), call.kwargs.clone(), &self.cancel)
            .map_err(|error| error.to_string())?;
        run.latencies.push(began.elapsed());
        let records = runtime.calls();
        let mut made = records.iter().skip(before);
        let checked = check(call, &Answer::of(&outcome), self.language).map_err(|why| match outcome.error() {
            Some(error) => format!("{why}: {}", error.message),
            None => why,
        });
        let nested = made.clone().filter(|record| record.parent_call_id.is_some()).count();
        if checked.is_err() {
            run.unreachable = made.find_map(|record| unreachable(record));
        }
        let reused = outcome.metadata.as_ref().is_some_and(|metadata| metadata.source == ProgramSource::Reused);
        Ok(checked.and_then(|()| {
            if nested < call.delegates {
                return Err(format!("expected {} call(s) to other agents, got {nested}", call.delegates));
            }
            if call.reused && !reused {
                return Err(
                    "expected an earlier program to run again, got one that was written for this call".to_owned()
                );
            }
            Ok(())
        }))
    }
}

/// What a call says about a model that could not be asked; `None` when it answered, or when another request may fare better.
fn unreachable(record: &CallRecord) -> Option<Unreachable> {
    let last = record.attempt_failures.last().filter(|failure| failure.stage == "provider")?;
    let fatal = match last.error_class.as_str() {
        "auth" | "quota" => true,
        "network" | "timeout" | "rate_limit" => false,
        _ => return None,
    };
    Some(Unreachable { message: last.error_message.clone(), fatal })
}
