//! Runs every block of `tests/traces/*.trace`. A block is headed by its clause mark; its lines are data:
//!
//! ```text
//! EC-R2 each retry consumes retry and inference budget
//!   contract req max_format_retries=1      (req, opt, forb, strict, or field=json; a.b=json for inner fields)
//!   replies BAD C(t) T                     (words of the stub vocabulary; `reply C(t) tokens=10` adds one with details)
//!   expect WITH no_call inf=3 exe=1 rty=1  (class, reason, counters)
//!   states PRECHECK INFER COMMIT …         (all of them)
//!   commands Probe; Infer; …               (all of them; each may be a prefix)
//!   kinds retry=1                          (entries by kind)
//!   started t u | effects t | texts "a" "b"
//!   entry tool result.status="ok"          (entries that must be there, in this order)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cadenza_core::kernel::script::{EntryExpectation, Ready, Run, Said, Scenario, ScenarioFile};
use cadenza_core::value::{Map, Value};

/// All blocks of all traces.
pub fn all() -> Vec<Scenario> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/traces");
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().flat_map(|path| parse(&fs::read_to_string(path).unwrap(), path.to_str().unwrap())).collect()
}

/// Runs of the blocks with that mark.
pub fn runs(mark: &str) -> Vec<Run> {
    let blocks = all().into_iter().filter(|block| block.id.split_whitespace().next() == Some(mark));
    let runs: Vec<Run> =
        blocks.map(|block| block.check().unwrap_or_else(|error| panic!("{}: {error}", block.id))).collect();
    assert!(!runs.is_empty(), "no trace is marked {mark}");
    runs
}

#[test]
fn every_trace_runs_as_written() {
    let mut failures = Vec::new();
    let blocks = all();
    for block in &blocks {
        if let Err(error) = block.check() {
            let commands = block.run().map(|run| run.commands.join("; ")).unwrap_or_default();
            failures.push(format!("{}\n    {error}\n    {commands}", block.id));
        }
    }
    assert!(failures.is_empty(), "{} of {} traces failed:\n{}", failures.len(), blocks.len(), failures.join("\n"));
    assert!(blocks.len() > 150, "only {} traces were found", blocks.len());
}

#[test]
fn kc_s4_every_event_of_every_trace_fits_its_schema() {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/entry.schema.json");
    let schema: serde_json::Value = serde_json::from_str(&fs::read_to_string(schema).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut kinds = BTreeSet::new();
    for block in all() {
        let Ok(run) = block.run() else { continue };
        for entry in &run.stored {
            let parsed = |value: &Value| serde_json::from_str::<serde_json::Value>(&value.to_json()).unwrap();
            let json = serde_json::json!({
                "state": &*entry.state, "action": parsed(&entry.action), "result": parsed(&entry.result),
            });
            let faults: Vec<_> = validator.iter_errors(&json).map(|error| error.to_string()).collect();
            assert!(faults.is_empty(), "{}: {faults:?}\n{json}", block.id);
            kinds.insert(entry.kind().to_owned());
        }
    }
    let known: BTreeSet<String> = schema["properties"]["action"]["properties"]["kind"]["enum"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| kind.as_str().unwrap().to_owned())
        .collect();
    // A host that answers what was not asked is no scenario.
    let unseen: Vec<_> = known.difference(&kinds).filter(|kind| *kind != "illegal_input").collect();
    assert!(unseen.is_empty(), "no trace has an event of the kind {unseen:?}");
}

#[test]
fn every_trace_names_a_clause() {
    let marks: BTreeSet<String> =
        all().iter().map(|block| block.id.split_whitespace().next().unwrap().into()).collect();
    for mark in marks {
        assert!(["EC-", "KC-", "V", "X", "C"].iter().any(|prefix| mark.starts_with(prefix)), "`{mark}` is no clause");
    }
}

fn parse(text: &str, path: &str) -> Vec<Scenario> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.trim_start().starts_with("# ") {
            continue;
        }
        if !line.starts_with(' ') {
            scenarios.push(Scenario::new(line.trim(), Map::new(), Vec::new()));
            continue;
        }
        let scenario = scenarios.last_mut().expect("a block starts with its clause mark");
        read(scenario, line.trim()).unwrap_or_else(|error| panic!("{path}:{}: {error}", number + 1));
    }
    scenarios
}

fn read(scenario: &mut Scenario, line: &str) -> Result<(), String> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let expect = &mut scenario.expect;
    match word {
        "contract" => words(rest).iter().try_for_each(|word| contract(&mut scenario.contract, word))?,
        "replies" => {
            for word in words(rest) {
                scenario.replies.push(word.parse()?);
            }
        }
        "reply" => scenario.replies.push(said(rest)?),
        "kept" => scenario.kept = Some(said(rest)?),
        "tool" => {
            let (name, schema) = rest.split_once(' ').unwrap_or((rest, ""));
            let schema =
                (!schema.is_empty()).then(|| Value::from_json(schema)).transpose().map_err(|e| e.to_string())?;
            scenario.tools.insert(name.into(), schema);
        }
        "ready" => {
            scenario.ready = match rest {
                "no" => Ready::No,
                "slow" => Ready::Slow,
                "cancelled" => Ready::Cancelled,
                _ => return Err(format!("ready {rest}?")),
            }
        }
        "store_fails_at" => scenario.store_fails_at = Some(rest.parse().map_err(|_| "which step?")?),
        "delegation_refused" => scenario.delegation_refused = Some(rest.into()),
        "profile_applies" => match rest {
            "grammar" => scenario.profile_applies_grammar = true,
            "logits_mask" => scenario.profile_applies_logits_mask = true,
            _ => return Err(format!("profile_applies {rest}?")),
        },
        "expect" => {
            for (index, word) in words(rest).into_iter().enumerate() {
                match (index, word.split_once('=')) {
                    (0, _) => expect.outcome = Some(word),
                    (_, Some(("goal", status))) => expect.goal_status = Some(status.into()),
                    (_, Some((name, count))) => {
                        let name = match name {
                            "inf" => "inferences",
                            "exe" => "tools_executed",
                            "rty" => "format_retries",
                            "nudges" => "semantic_retries",
                            "attempt" => "generation_attempt",
                            other => other,
                        };
                        expect.counters.insert(name.into(), count.parse().map_err(|_| format!("{word}: no number"))?);
                    }
                    (_, None) => expect.reason = Some(word),
                }
            }
        }
        "states" => expect.states = Some(words(rest)),
        "commands" => expect.commands = Some(rest.split(';').map(|word| word.trim().into()).collect()),
        "kinds" => {
            for word in words(rest) {
                let (kind, count) = word.split_once('=').ok_or("kind=count")?;
                expect.kinds.insert(kind.into(), count.parse().map_err(|_| "kind=count")?);
            }
        }
        "started" => expect.started = Some(words(rest)),
        "effects" => expect.effects = Some(words(rest)),
        "texts" => {
            let list = Value::from_json(&format!("[{rest}]")).map_err(|error| error.to_string())?;
            expect.texts = Some(list.as_list().unwrap().iter().map(|text| text.as_str().unwrap().into()).collect());
        }
        "value" => expect.value = Some(Value::from_json(rest).map_err(|error| error.to_string())?),
        "message" => expect.message_includes = Some(rest.into()),
        "entry" => expect.entries.push(entry(rest)?),
        other => return Err(format!("`{other}`?")),
    }
    Ok(())
}

fn contract(fields: &mut Map, word: &str) -> Result<(), String> {
    let mut set = |name: &str, value: Value| drop(fields.insert(name.into(), value));
    match word {
        "req" => set("tool_policy", "required".into()),
        "opt" => set("tool_policy", "optional".into()),
        "forb" => set("tool_policy", "forbidden".into()),
        "gate" => set("token_gate", true.into()),
        "strict" => {
            set("strict_mode", true.into());
            set("token_gate", true.into());
        }
        _ => {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}`?"))?;
            let value = Value::from_json(value).unwrap_or_else(|_| value.into());
            match name.split_once('.') {
                None => set(name, value),
                Some((outer, inner)) => {
                    let map = fields.entry(outer.into()).or_insert_with(|| Value::Map(Map::new()));
                    if let Value::Map(map) = map {
                        map.insert(inner.into(), value);
                    }
                }
            }
        }
    }
    Ok(())
}

fn said(line: &str) -> Result<Said, String> {
    let mut words = words(line).into_iter();
    let mut said: Said = words.next().ok_or("what is said?")?.parse()?;
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((&word, "1"));
        let number: u64 = value.parse().map_err(|_| format!("{word}: no number"))?;
        match name {
            "tokens" => said.tokens = Some(number),
            "elapsed" => said.elapsed_ms = number,
            "tool_elapsed" => said.tool_elapsed_ms = number,
            "prompt" => said.prompt_bytes = Some(number),
            "child_tokens" => said.child_tokens = number,
            "cancelled" => said.cancelled = true,
            "cancelled_in_tool" => said.cancelled_in_tool = true,
            "swap" => said.swap_contract = true,
            _ => return Err(format!("`{name}`?")),
        }
    }
    Ok(said)
}

fn entry(rest: &str) -> Result<EntryExpectation, String> {
    let mut words = words(rest).into_iter();
    let mut wanted = EntryExpectation { kind: words.next().ok_or("which kind?")?, ..EntryExpectation::default() };
    let mut fields: BTreeMap<&str, &mut Map> =
        BTreeMap::from([("action", &mut wanted.action), ("result", &mut wanted.result)]);
    for word in words {
        let (name, value) = word.split_once('=').ok_or("field=json")?;
        let value = Value::from_json(value).unwrap_or_else(|_| value.into());
        match name.split_once('.') {
            None if name == "state" => wanted.state = value.as_str().map(Into::into),
            Some((part, field)) if fields.contains_key(part) => {
                fields.get_mut(part).unwrap().insert(field.into(), value);
            }
            _ => return Err(format!("`{name}`?")),
        }
    }
    Ok(wanted)
}

/// Splits at blanks outside quotes and brackets.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut depth, mut quoted) = (Vec::new(), String::new(), 0_i32, false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '{' | '[' | '(' if !quoted => depth += 1,
            '}' | ']' | ')' if !quoted => depth -= 1,
            ' ' if !quoted && depth == 0 => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[test]
fn every_execution_scenario_passes() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scenarios/execution");
    let mut scenarios = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file: ScenarioFile = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(file.version, 1);
        scenarios.extend(file.scenarios);
    }
    for scenario in &scenarios {
        scenario.check().unwrap_or_else(|error| panic!("{}: {error}", scenario.id));
    }
    let ids: BTreeSet<&str> = scenarios.iter().map(|scenario| scenario.id.as_str()).collect();
    assert_eq!(ids.len(), scenarios.len(), "two scenarios share an id");
    for case in 1..=6 {
        assert!(ids.iter().any(|id| id.starts_with(&format!("EC-K{case}."))), "the corpus lacks case {case}");
    }
}
