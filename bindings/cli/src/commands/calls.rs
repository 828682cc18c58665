//! `cadenza calls [LOG]`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cadenza_core::ids::{CallId, TraceId};
use cadenza_core::log::record::rfc3339;
use cadenza_core::runtime::calls::since;
use cadenza_core::store::{CallQuery, Store as _, StoredCall};
use cadenza_core::value::Value;

use super::{say, say_json};
use crate::failure::{Exit, Failure};
use crate::logfile::{Entry, LogFile, is_store};
use crate::options::default_log;
use crate::{Context, options};

/// Calls of a store that are read at once.
const PAGE: usize = 256;

/// Shows the calls of a log.
#[derive(Debug, clap::Args)]
pub struct Calls {
    /// The log; the configured one when none is named
    #[arg(value_name = "LOG")]
    log: Option<PathBuf>,
    /// Only trees with a call of this role
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Only trees with a call of this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Only trees with a failed call
    #[arg(long)]
    failed: bool,
    /// Only trees with a call that ended so
    #[arg(long, value_name = "STATUS", value_parser = CallQuery::STATUSES, conflicts_with = "failed")]
    status: Option<String>,
    /// Only trees with a call of the named agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only trees with a call of this namespace
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only trees with a call that began then or later: a time such as 2026-11-22T05:00:00Z, a day in UTC, or an age such as 90m
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only the last trees
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
    limit: usize,
    /// Print the entries themselves, one JSON object per line, callers before what they called
    #[arg(long)]
    json: bool,
}

impl Calls {
    pub(crate) fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let path = self.log.clone().map_or_else(default_log, Ok)?;
        let since = self.since.as_deref().map(|text| since(text).map_err(Failure::usage)).transpose()?;
        let log = if is_store(&path) { self.of_store(&path, since)? } else { LogFile::read(&path)? };
        let trees = log.trees();
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let since = since.map(rfc3339).unwrap_or_default();
        let fits = |entry: &Entry| {
            is(&self.role, entry.data("role"))
                && is(&self.method, entry.data("method"))
                && is(&self.agent, entry.data("agent"))
                && is(&self.namespace, entry.namespace())
                && is(&self.status, entry.status())
                && (!self.failed || !entry.ok())
                && entry.text("timestamp") >= since.as_str()
        };
        let roots: Vec<_> = trees.roots.iter().filter(|root| trees.any(root, &fits)).collect();
        let skipped = roots.len().saturating_sub(self.limit);
        for root in &roots[skipped..] {
            if !self.json {
                say(trees.text(root, context.style).trim_end());
                continue;
            }
            let mut waiting = vec![**root];
            let mut shown = 0;
            while let Some(entry) = waiting.pop().filter(|_| shown < log.entries.len()) {
                shown += 1;
                say_json(&Value::Map(entry.fields().clone()));
                waiting.extend(trees.children(entry).iter().rev());
            }
        }
        if roots.is_empty() && !self.json {
            let none = if log.entries.is_empty() && !self.asks() { "no calls" } else { "no calls fit" };
            say(&context.style.faint(none));
        }
        if skipped > 0 && !self.json {
            say(&context.style.faint(&format!("{skipped} earlier; show more with -n")));
        }
        super::complain_of(&log);
        Ok(Exit::Ok)
    }

    /// Whether only some calls are asked for.
    fn asks(&self) -> bool {
        let texts = [&self.role, &self.method, &self.status, &self.agent, &self.namespace, &self.since];
        self.failed || texts.into_iter().any(Option::is_some)
    }

    /// The newest calls of a store that fit, each with the whole tree that it belongs to: one tree more than is shown, so
    /// that it is known whether there are more.
    fn of_store(&self, path: &Path, since: Option<SystemTime>) -> Result<LogFile, Failure> {
        let store = options::open(path)?;
        let mut query = CallQuery {
            namespace: self.namespace.clone(),
            role: self.role.clone(),
            method: self.method.clone(),
            agent_name: self.agent.clone(),
            status: self.status.clone(),
            since,
            limit: PAGE,
            ..CallQuery::default()
        };
        let mut calls: BTreeMap<i64, StoredCall> = BTreeMap::new();
        let mut flows: BTreeSet<String> = BTreeSet::new();
        'pages: loop {
            let page = store.calls(&query).map_err(Failure::failed)?;
            let Some(last) = page.last() else { break };
            query.before = Some(last.gseq);
            for call in page {
                let text = |name: &str| call.record.get(name).and_then(Value::as_str).unwrap_or_default();
                if self.failed && text("outcome_status") == "ok" {
                    continue;
                }
                let (trace, parent) = (text("trace_id").to_owned(), text("parent_call_id").to_owned());
                if flows.len() > self.limit && !flows.contains(&trace) {
                    break 'pages;
                }
                calls.entry(call.gseq).or_insert(call);
                if !flows.insert(trace.clone()) {
                    continue;
                }
                if let Some(trace) = TraceId::parse(&trace) {
                    let query = CallQuery { below: Some(trace), ..CallQuery::default() };
                    let below = store.calls(&query).map_err(Failure::failed)?;
                    calls.extend(below.into_iter().map(|call| (call.gseq, call)));
                }
                // Up to the call of the host, where it has ended.
                let mut caller = CallId::parse(&parent);
                while let Some(id) = caller {
                    let Some(call) = store.call(id).map_err(Failure::failed)? else { break };
                    caller = call.record.get("parent_call_id").and_then(Value::as_str).and_then(CallId::parse);
                    if calls.insert(call.gseq, call).is_some() {
                        break;
                    }
                }
            }
        }
        Ok(LogFile::of_calls(path, calls.into_values()))
    }
}
