//! Runs one scenario in one fresh world and compares what it sees (formats.md 1.5).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cadenza_core::log::{self, LogSink, record::CallRecord};
use cadenza_core::program::Language;
use cadenza_core::provider::ModelSpec;
use cadenza_core::provider::scripted::Scripted;
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{LogOption, Options, Reuse, StoreOption};
use cadenza_core::value::{Map, Value};
use parking_lot::Mutex;

use super::StoreKind;
use super::programs::Programs;
use super::report::ScenarioResult;
use super::scenario::{Body, Call, Expectation, Op, Scenario, Step, Story};
use super::stub;
use super::surface::{Seen, Surface, World};

/// Runs one scenario. Whatever goes wrong in it is its failure, never the end of the run.
pub fn run(
    scenario: &Scenario,
    programs: &Programs,
    surface: &dyn Surface,
    language: Language,
    store: &StoreKind,
) -> ScenarioResult {
    let id = scenario.id.clone();
    let store = store.option(&id);
    let log = Arc::new(CapturedLog::default());
    let ran = match &scenario.body {
        Err(fault) => Err(fault.to_string()),
        Ok(body) => catch_unwind(AssertUnwindSafe(|| run_body(body, programs, surface, language, &log, &store)))
            .unwrap_or_else(|panic| Err(format!("panicked: {}", panic_words(&*panic)))),
    };
    let log = std::mem::take(&mut *log.lines.lock());
    match ran {
        Ok(note) => ScenarioResult { id, failure: None, note, log },
        Err(failure) => ScenarioResult { id, failure: Some(failure), note: None, log },
    }
}

fn panic_words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The note of a scenario that passed.
fn run_body(
    body: &Body,
    programs: &Programs,
    surface: &dyn Surface,
    language: Language,
    log: &Arc<CapturedLog>,
    store: &StoreOption,
) -> Result<Option<String>, String> {
    let story = match body {
        Body::Agent(story) => story,
        Body::Kernel(scenario) => return scenario.check().map(|_| None).map_err(|mismatch| mismatch.to_string()),
    };
    let model = match &story.plan {
        Some(plan) => stub::planned(plan, programs).map_err(|fault| fault.to_string())?,
        None => stub::planless(),
    };
    if matches!(store, StoreOption::Memory) && story.steps.iter().any(|step| matches!(step.op, Op::Restart)) {
        return Ok(Some("not run: what outlives a process needs a store".to_owned()));
    }
    let model = Arc::new(model);
    let new_runtime = || fresh_runtime(surface.runtime(), model.clone(), log.clone(), language, store.clone());
    let mut run = Run::begin(story, model.clone(), log.clone(), language, surface, new_runtime()?)?;
    for step in &story.steps {
        let failed = |why: String| format!("line {}, {}: {why}", step.line, step.op.name());
        if matches!(step.op, Op::Restart) {
            run = run.restarted(surface, &new_runtime).map_err(failed)?;
            continue;
        }
        run.perform(step).map_err(failed)?;
    }
    // Whatever a scenario is about: what it recorded is intact and comes to the same end again.
    run.replays()?;
    let overruns: Vec<String> = match &story.plan {
        Some(plan) => {
            let is_sequence = |method: &String| plan.iter().any(|planned| planned.method == *method && !planned.always);
            run.model.overruns().into_iter().filter(is_sequence).collect()
        }
        None => Vec::new(),
    };
    Ok((!overruns.is_empty())
        .then(|| format!("the plan was used up, and its last id repeated, for: {}", overruns.join(", "))))
}

/// A runtime that shares nothing with any other: provider calls are literal (C5), so nothing is reused or repaired
/// unless the scenario says so.
fn fresh_runtime(
    name: &str,
    model: Arc<Scripted>,
    log: Arc<CapturedLog>,
    language: Language,
    store: StoreOption,
) -> Result<Runtime, String> {
    let options = Options {
        store: Some(store),
        model: Some(ModelSpec::Provider(model)),
        language: Some(language),
        log: Some(LogOption::Sink(log)),
        execution_repairs: Some(0),
        reuse: Some(Reuse::Off),
        ..Options::default()
    };
    let name = match name {
        "python" => "cadenza-python",
        "lua" => "cadenza-lua",
        "rhai" => "cadenza-rhai",
        _ => "cadenza-rust",
    };
    Runtime::builder().name(name).options(options).build().map_err(|error| error.to_string())
}

struct Run<'a> {
    story: &'a Story,
    runtime: Runtime,
    model: Arc<Scripted>,
    log: Arc<CapturedLog>,
    world: Box<dyn World + 'a>,
    language: Language,
    /// Alias to role.
    roles: BTreeMap<String, String>,
    /// Alias to the language of its programs.
    languages: BTreeMap<String, Language>,
    /// How many log entries there were after each call step, and the alias it called.
    owners: Vec<(usize, String)>,
}

impl<'a> Run<'a> {
    fn begin(
        story: &'a Story,
        model: Arc<Scripted>,
        log: Arc<CapturedLog>,
        language: Language,
        surface: &'a dyn Surface,
        runtime: Runtime,
    ) -> Result<Self, String> {
        let world = surface.world(runtime.clone())?;
        let (roles, languages) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { story, runtime, model, log, world, language, roles, languages, owners: Vec::new() })
    }

    /// The same story in a new world on the same store. The old one lets go of it first.
    fn restarted(
        self,
        surface: &'a dyn Surface,
        new_runtime: &dyn Fn() -> Result<Runtime, String>,
    ) -> Result<Self, String> {
        let Self { story, runtime, model, log, world, language, owners, .. } = self;
        // A process that ends writes out what is queued; here something of the old one may live on.
        runtime.flush();
        drop((world, runtime));
        Ok(Self { owners, ..Self::begin(story, model, log, language, surface, new_runtime()?)? })
    }

    /// Every recorded call is intact, and comes to the same end without its model.
    fn replays(&self) -> Result<(), String> {
        if let Some(store) = self.runtime.store() {
            store.verify().map_err(|error| error.to_string())?;
        } else {
            for record in self.runtime.calls() {
                self.runtime.verify(record.call_id()).map_err(|error| error.to_string())?;
            }
        }
        self.runtime.replay_all().map(drop).map_err(|error| format!("replay: {error}"))
    }

    fn perform(&mut self, step: &Step) -> Result<(), String> {
        match &step.op {
            Op::Construct { alias, role, config } => self.construct(alias, role, config),
            Op::AssertAgent { target } => {
                ensure(self.world.is_agent(target)?, || format!("`{target}` is not a live Agent"))
            }
            Op::AssertRole { target, equals } => same("the role", equals, &self.world.role(target)?),
            Op::Remember { target, entries } => self.world.remember(target, entries),
            Op::AssertMemoryIncludes { target, entries } => {
                let context = self.world.context(target)?;
                entries.iter().try_for_each(|(key, expected)| memory(&context, key, expected))
            }
            Op::AssertMemoryEquals { target, key, value } => memory(&self.world.context(target)?, key, value),
            Op::AssertMemoryAbsent { target, key } => match self.world.context(target)?.get(key) {
                None => Ok(()),
                Some(value) => Err(format!("memory has `{key}`: {value}")),
            },
            Op::AssertSameInstanceReturned { target, from_op } => match self.world.returned_is(from_op, target)? {
                Some(true) => Ok(()),
                Some(false) => Err(format!("what `{from_op}` returned is not `{target}`")),
                None => Err(format!("no step with op `{from_op}` returned anything before")),
            },
            Op::Set { target, key, value } => self.world.set(target, key, value),
            Op::Call { target, call } => {
                let role = self.role(target)?;
                self.prepare(target, &role, call);
                let seen = self.world.call(target, &call.method, &call.args, &call.kwargs)?;
                self.owners.push((self.log.len(), target.clone()));
                check(call.expect.as_ref(), &seen)
            }
            Op::TolerantDelegate { target, tool_role, call } => {
                self.role(target)?;
                self.prepare(target, tool_role, call);
                let seen = self.world.tolerant_delegate(target, tool_role, &call.method, &call.args, &call.kwargs)?;
                self.owners.push((self.log.len(), String::new()));
                check(call.expect.as_ref(), &seen)
            }
            Op::AssertProviderCalls { equals } => number("provider calls", *equals, self.model.requests()),
            Op::AssertProviderCallsForMethod { method, equals } => {
                number(&format!("provider calls for `{method}`"), *equals, self.model.requests_for(method))
            }
            Op::AssertRespondTo { target, method, equals } => {
                let responds = self.world.responds_to(target, method)?;
                ensure(responds == *equals, || format!("responds_to(`{method}`) is {responds}, expected {equals}"))
            }
            Op::AssertLogFieldEquals { target, field, equals } => {
                let entry = self.latest_entry(target.as_deref())?;
                let value = entry.get(field).ok_or_else(|| format!("the log entry has no field `{field}`"))?;
                same(&format!("the log field `{field}`"), equals, value)
            }
            Op::Restart => Err("a restart is the whole run's".to_owned()),
            Op::AssertCalls { method, equals } => {
                let calls = self.runtime.call_maps(usize::MAX).map_err(|error| error.to_string())?;
                let counts = |call: &&Map| {
                    method.as_deref().is_none_or(|method| call.get("method").and_then(Value::as_str) == Some(method))
                };
                number("recorded calls", *equals, calls.iter().filter(counts).count() as u64)
            }
            Op::AssertReplays => self.replays(),
            Op::AssertLogFieldsInclude { target, fields } => {
                let entry = self.latest_entry(target.as_deref())?;
                let missing: Vec<_> = fields.iter().filter(|field| !entry.contains_key(*field)).cloned().collect();
                ensure(missing.is_empty(), || format!("the log entry has no field: {}", missing.join(", ")))
            }
        }
    }

    fn construct(&mut self, alias: &str, role: &str, config: &Map) -> Result<(), String> {
        let mut merged = self.story.config.clone();
        merged.extend(config.clone());
        let language = merged.get("language").and_then(Value::as_str).and_then(Language::from_name);
        self.world.construct(alias, role, &merged)?;
        self.roles.insert(alias.to_owned(), role.to_owned());
        self.languages.insert(alias.to_owned(), language.unwrap_or(self.language));
        Ok(())
    }

    fn role(&self, target: &str) -> Result<String, String> {
        self.roles.get(target).cloned().ok_or_else(|| format!("no agent `{target}` was constructed"))
    }

    /// Without a plan, tells the model what this step expects.
    fn prepare(&self, target: &str, role: &str, call: &Call) {
        if self.story.plan.is_none() {
            let language = self.languages.get(target).copied().unwrap_or(self.language);
            stub::expect(&self.model, role, call, language);
        }
    }

    /// The latest log entry, of the target if one is given: entries with its role, and of other agents with the same
    /// role none that a step called directly.
    fn latest_entry(&self, target: Option<&str>) -> Result<Map, String> {
        let Some(target) = target else {
            return self.log.latest(|_, _| true)?.ok_or_else(|| "the log is empty".to_owned());
        };
        let role = Value::from(self.role(target)?);
        let found = self.log.latest(|index, entry| {
            let is_root = entry.get("parent_call_id") == Some(&Value::Null);
            let called = self.owners.iter().find(|(end, _)| index < *end).map(|(_, alias)| alias.as_str());
            entry.get("role") == Some(&role) && (!is_root || called.is_none_or(|alias| alias == target))
        })?;
        found.ok_or_else(|| format!("the log has no entry of `{target}`"))
    }
}

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(message()) }
}

fn memory(context: &Map, key: &str, expected: &Value) -> Result<(), String> {
    match context.get(key) {
        Some(value) => same(&format!("memory `{key}`"), expected, value),
        None => Err(format!("memory has no `{key}`, expected {expected}")),
    }
}

fn number(what: &str, expected: u64, got: u64) -> Result<(), String> {
    ensure(expected == got, || format!("{what}: {got}, expected {expected}"))
}

fn same(what: &str, expected: &Value, got: &Value) -> Result<(), String> {
    ensure(equal(expected, got), || format!("{what} is {got}, expected {expected}"))
}

/// Equality of the format: numbers numerically, everything else strictly, lists and maps by element.
pub fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Int(left), Value::Int(right)) => left == right,
        (Value::Int(whole), Value::Float(float)) | (Value::Float(float), Value::Int(whole)) => {
            // Both ways: a float beyond 2^53 must not equal a neighbour of the integer.
            *whole as f64 == *float && *float as i128 == i128::from(*whole)
        }
        (Value::Float(left), Value::Float(right)) => left == right || (left.is_nan() && right.is_nan()),
        (Value::List(left), Value::List(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right))
        }
        (Value::Map(left), Value::Map(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|((key, left), (other, right))| key == other && equal(left, right))
        }
        (
            Value::Null
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::String(_)
            | Value::List(_)
            | Value::Map(_),
            _,
        ) => left == right,
    }
}

fn check(expected: Option<&Expectation>, seen: &Seen) -> Result<(), String> {
    ensure(seen.is_outcome, || "the call returned something that is no Outcome".to_owned())?;
    let Some(expected) = expected else { return Ok(()) };
    let got = || match seen.ok {
        true => format!("an ok outcome with the value {}", seen.value),
        false => format!(
            "an error outcome of type {}: {}",
            seen.error_type.as_deref().unwrap_or("?"),
            seen.error_message.as_deref().unwrap_or_default()
        ),
    };
    ensure(expected.ok == seen.ok, || {
        format!("expected an {} outcome, got {}", if expected.ok { "ok" } else { "error" }, got())
    })?;
    if let Some(value) = &expected.value {
        ensure(equal(value, &seen.value), || format!("expected the value {value}, got {}", got()))?;
    }
    if let Some(error_type) = &expected.error_type {
        ensure(Some(error_type) == seen.error_type.as_ref(), || {
            format!("expected the error type {error_type}, got {}", got())
        })?;
    }
    if let Some(retriable) = expected.retriable {
        ensure(seen.retriable.unwrap_or(false) == retriable, || {
            format!("expected retriable to be {retriable}, got {}", got())
        })?;
    }
    if let Some(part) = &expected.error_message_includes {
        let message = seen.error_message.as_deref().unwrap_or_default();
        ensure(message.contains(part.as_str()), || format!("expected a message with {part:?}, got {}", got()))?;
    }
    Ok(())
}

/// Keeps the log's lines as they are written.
#[derive(Debug, Default)]
struct CapturedLog {
    lines: Mutex<Vec<String>>,
}

impl CapturedLog {
    fn len(&self) -> usize {
        self.lines.lock().len()
    }

    /// The last line that fits, read back as JSON.
    fn latest(&self, fits: impl Fn(usize, &Map) -> bool) -> Result<Option<Map>, String> {
        for (index, line) in self.lines.lock().iter().enumerate().rev() {
            match Value::from_json(line) {
                Ok(Value::Map(entry)) if fits(index, &entry) => return Ok(Some(entry)),
                Ok(Value::Map(_)) => {}
                Ok(other) => return Err(format!("a log line is no object: {other}")),
                Err(error) => return Err(format!("a log line is no JSON: {error}")),
            }
        }
        Ok(None)
    }
}

impl LogSink for CapturedLog {
    fn write(&self, record: &Arc<CallRecord>) {
        let mut line = String::new();
        log::line(record, &mut line);
        self.lines.lock().push(line);
    }

    fn flush(&self) {}

    fn dropped(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_follows_the_format() {
        for (left, right, expected) in [
            ("10", "10.0", true),
            ("9007199254740993", "9007199254740992.0", false),
            ("1", "true", false),
            ("0", "false", false),
            ("null", "false", false),
            ("\"1\"", "1", false),
            (r#"[1,{"a":2.0}]"#, r#"[1.0,{"a":2}]"#, true),
            (r#"{"a":1}"#, r#"{"a":1,"b":null}"#, false),
            ("[]", "{}", false),
        ] {
            let (left, right) = (Value::from_json(left).unwrap(), Value::from_json(right).unwrap());
            assert_eq!(equal(&left, &right), expected, "{left} {right}");
            assert_eq!(equal(&right, &left), expected, "{right} {left}");
        }
    }
}
