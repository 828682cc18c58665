//! `cadenza replay CALL`.

use std::path::PathBuf;

use cadenza_core::printable::{printable, printable_json};
use cadenza_core::runtime::replay::ReplayReport;
use cadenza_core::store::Store as _;
use cadenza_core::value::{Map, Value};

use super::say;
use crate::failure::{Exit, Failure};
use crate::logfile::LogFile;
use crate::options::runtime_of;
use crate::{Context, options};

/// Replays one stored call: the same kernel over the recorded inputs must come to the same end, and its programs, run again
/// on what they were told, must do the same.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The call: its id, its beginning or its end, as `cadenza calls` shows it; `last`, or `all` of them
    #[arg(value_name = "CALL")]
    call: String,
    /// The store; the configured one when none is named
    #[arg(long, value_name = "PATH")]
    store: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Replay {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let store = options::store(self.store)?;
        if self.call == "all" {
            let report = runtime_of(Some(store.location().into()))?.replay_all();
            return told(report.map_err(|error| error.to_string()), self.json, context);
        }
        let log = LogFile::read(store.location().as_ref())?;
        let entry = log.find(&self.call)?;
        let id = entry.call_id()?;
        let run = store.run(id).map_err(Failure::failed)?;
        let run = run.ok_or_else(|| Failure::usage(format!("no transcript of call {id}")))?;
        let intact = run.verify().map_err(|divergence| format!("the transcript is not intact: {divergence}"));
        let runtime = runtime_of(Some(store.location().into()))?;
        let replayed = intact.and_then(|()| runtime.replay(id).map_err(|error| error.to_string()));
        let replay = match replayed {
            Ok(replay) => replay,
            Err(detail) if self.json => {
                let fields = [("ok", false.into()), ("call_id", id.to_string().into()), ("detail", detail.into())];
                super::say_json(&Value::Map(
                    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                ));
                return Ok(Exit::Failed);
            }
            Err(detail) => return Err(Failure::failed(detail)),
        };
        let ended = replay.ended;
        let value = ended.value.as_deref().cloned().unwrap_or_default();
        if self.json {
            let fields = [
                ("ok", true.into()),
                ("agent_outcome", ended.agent_outcome.as_str().into()),
                ("reason", ended.reason.as_str().into()),
                ("head", run.head.to_hex().into()),
                ("value", value),
                ("programs", Value::Int(replay.programs as i64)),
                ("left_out", Value::List(replay.left_out.iter().map(|reason| reason.as_str().into()).collect())),
            ];
            let fields: Map = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            super::say_json(&Value::Map(fields));
        } else {
            let same = context.style.good("the same:");
            say(&format!(
                "{same} {} {} {}",
                ended.agent_outcome.as_str(),
                ended.reason.as_str(),
                printable_json(&value.to_json())
            ));
            for reason in &replay.left_out {
                say(&format!("{} {}", context.style.faint("a program did not run again:"), printable(reason)));
            }
        }
        Ok(Exit::Ok)
    }
}

/// What replaying every call found: how many there are, or the first that comes to another end.
fn told(report: Result<ReplayReport, String>, json: bool, context: &Context<'_>) -> Result<Exit, Failure> {
    let report = match report {
        Ok(report) => report,
        Err(detail) if json => {
            let fields = [("ok".to_owned(), false.into()), ("detail".to_owned(), detail.into())];
            super::say_json(&Value::Map(Map::from(fields)));
            return Ok(Exit::Failed);
        }
        Err(detail) => return Err(Failure::failed(detail)),
    };
    let ReplayReport { calls, programs, left_out, without_transcript } = report;
    if json {
        let count = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let fields = [
            ("ok", true.into()),
            ("calls", count(calls)),
            ("programs", count(programs)),
            ("left_out", count(left_out)),
            ("without_transcript", count(without_transcript)),
        ];
        super::say_json(&Value::Map(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()));
    } else {
        let same = context.style.good("the same:");
        let rest = format!("{left_out} program(s) left out, {without_transcript} call(s) without a transcript");
        say(&format!("{same} {calls} call(s), {programs} program(s); {rest}"));
    }
    Ok(Exit::Ok)
}
