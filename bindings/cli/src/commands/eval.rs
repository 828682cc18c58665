//! `cadenza eval [PATHS]`.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use cadenza_core::cancel::CancelToken;
use cadenza_core::runtime::options::LogOption;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{say, say_json};
use crate::eval::{self, Evaluation, Report, Run, Stopped};
use crate::failure::{Exit, Failure};
use crate::options::AgentOptions;
use crate::{Context, interrupt};

/// Scores a model with everyday calls.
#[derive(Debug, clap::Args)]
pub struct Eval {
    /// Corpus files, or folders of them; the corpus of this command when none is named
    #[arg(value_name = "PATHS")]
    paths: Vec<PathBuf>,
    /// Runs of each case
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// A case or a group of cases; may be repeated
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    agents: AgentOptions,
}

impl Eval {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        if self.agents.store.is_some() {
            return Err(Failure::usage(
                "every case runs in memory; to look at its calls, write them down with --log PATH",
            ));
        }
        let cases = eval::cases(&self.paths).and_then(|cases| eval::only(cases, &self.only)).map_err(Failure::usage)?;
        let config = self.agents.config()?;
        let mut options = config.options()?;
        let resolved = config.resolve_model()?;
        (options.target, options.providers) = Default::default();
        if self.agents.log.is_none() {
            options.log = Some(LogOption::Off);
        }
        let language = options.language.unwrap_or(cadenza_core::program::Language::Lua);
        let cancel = CancelToken::default();
        let model = resolved.provider.model().to_owned();
        let evaluation =
            Evaluation { provider: resolved.provider, language, options, repeat: self.repeat, cancel: cancel.clone() };
        let guard = interrupt::guard(&cancel, None);
        let bar = bar(cases.len() as u64 * u64::from(self.repeat));
        let ran = evaluation.run(&cases, &|case, run: Option<&Run>| match run {
            None => bar.set_message(case.id.clone()),
            Some(_) => bar.inc(1),
        });
        bar.finish_and_clear();
        drop(guard);
        let runs = ran.map_err(|stopped| match stopped {
            Stopped::Unreachable(why) => Failure::backend(format!("{model} cannot be reached: {why}")),
            Stopped::Interrupted => Failure { exit: Exit::Interrupted, message: "interrupted".to_owned() },
            Stopped::Refused(why) => Failure::usage(why),
        })?;
        let report = Report::new(&model, language, &cases, runs);
        if self.json {
            say_json(&report.to_value());
        } else {
            say(report.to_text(context.style).trim_end());
        }
        Ok(if report.ok() { Exit::Ok } else { Exit::Failed })
    }
}

/// On standard error, and only for a terminal that can show it.
fn bar(runs: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() || std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(runs), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30.cyan/dim} {pos}/{len} {msg} {elapsed:.dim}");
    // A template that does not parse would be our own mistake; the default bar says the same, less well.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
