//! `cadenza verify [CALL]`.

use std::path::PathBuf;

use cadenza_core::store::{Store as _, StoreError};
use cadenza_core::value::Value;

use super::say;
use crate::failure::{Exit, Failure};
use crate::logfile::LogFile;
use crate::{Context, options};

/// Checks a store, or one call of it.
#[derive(Debug, clap::Args)]
pub struct Verify {
    /// Only this call: its id, its beginning or its end, as `cadenza calls` shows it; or `last`
    #[arg(value_name = "CALL")]
    call: Option<String>,
    /// The store; the configured one when none is named
    #[arg(long, value_name = "PATH")]
    store: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let store = options::store(self.store)?;
        let checked = match &self.call {
            None => store.verify().map(|report| (report.calls, report.entries)),
            Some(call) => {
                let log = LogFile::read(store.location().as_ref())?;
                let entry = log.find(call)?;
                store.verify_call(entry.call_id()?).map(|()| (1, entry.number("transcript_length") as i64))
            }
        };
        match checked {
            Ok((calls, entries)) if self.json => say(&format!(r#"{{"ok":true,"calls":{calls},"entries":{entries}}}"#)),
            Ok((calls, entries)) => {
                say(&format!("{} {calls} call(s), {entries} entries", context.style.good("intact:")));
            }
            Err(StoreError::Tampered { call, place, message }) if self.json => {
                let call = Value::from((!call.is_empty()).then_some(call));
                let fields =
                    [("ok", false.into()), ("call_id", call), ("gseq", place.into()), ("detail", message.into())];
                super::say_json(&Value::Map(
                    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                ));
                return Ok(Exit::Failed);
            }
            Err(error @ StoreError::Tampered { .. }) => return Err(Failure::failed(error)),
            Err(error) => return Err(Failure::usage(error)),
        }
        Ok(Exit::Ok)
    }
}
