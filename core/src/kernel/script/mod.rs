//! Scripted runs: contract, model and tools as data go in; everything observable comes out (execution-clauses, stub
//! vocabulary).
//!
//! Kernel traces, the execution scenarios and `cadenza conform` all use this one bench. It drives the real kernel and the
//! real adapter over a simulated model, simulated tools and a simulated clock, and after every run it checks what holds
//! for all runs: the transcript verifies, replays to the same end, and follows the transition table. It reads no files and
//! parses no YAML; only the short words of the vocabulary are read here.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::transcript::{Event, State, Transcript};
use super::{
    Ask, Call, Command, Decision, Ended, Environment, Executed, Inference, Input, Kernel, Purpose, StateDigest,
    StoredEntry, ToolEnvelope, replay, verify,
};
use crate::adapter::{self, Profile, Wanted};
use crate::canonical;
use crate::contract::manifest::EXECUTE_PROGRAM;
use crate::contract::{
    ArgumentCheck, ContractDraft, ExecutionContract, Manifest, ManifestTool, Millis, ModelProfile, Tokens, ToolPolicy,
};
use crate::ids::Digest;
use crate::message::{AgentMessage, CallFormat, ModelReply, RawToolCall, Usage};
use crate::value::{Map, Value};

mod expect;
mod words;

pub use expect::{EntryExpectation, Expectation, Mismatch, outcome_named};
pub use words::{Atom, Behaviour, Said, ScriptedCall};

/// A scenario file: `version`, `profile`, `scenarios`, as in formats.md section 1.2.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// 1; other majors are refused by the reader.
    pub version: u32,
    /// Label.
    #[serde(default)]
    pub profile: Option<String>,
    /// In order; each in a fresh world.
    pub scenarios: Vec<Scenario>,
}

/// One story: data only.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Unique; names the clause.
    pub id: String,
    /// Sentences for the reader.
    #[serde(default)]
    pub verifies: Vec<String>,
    /// Fields that differ from the default contract (optional tools, 8 inferences, 1 format retry, no nudges, not
    /// strict, `on_no_call`, profile `stub`). Maps are merged. `contract_hash` is recomputed unless it is given.
    #[serde(default)]
    pub contract: Map,
    /// JSON Schemas of tools' arguments; tools without one take any object. `t`, `u`, `v`, `w` and `done` always exist.
    #[serde(default)]
    pub tools: BTreeMap<String, Option<Value>>,
    /// Whether the profile can apply a grammar.
    #[serde(default)]
    pub profile_applies_grammar: bool,
    /// Whether the profile can apply a logits mask.
    #[serde(default)]
    pub profile_applies_logits_mask: bool,
    /// The answer to the probe.
    #[serde(default)]
    pub ready: Ready,
    /// A kept program that answers the probe in place of the model.
    #[serde(default)]
    pub kept: Option<Said>,
    /// What the model says, in order; the last reply repeats.
    #[serde(default)]
    pub replies: Vec<Said>,
    /// The n-th step, from 1, whose entries cannot be stored.
    #[serde(default)]
    pub store_fails_at: Option<u32>,
    /// Bytes of the prompt before any message.
    #[serde(default)]
    pub base_prompt_bytes: u64,
    /// Why the run may not start for lack of delegation budget.
    #[serde(default)]
    pub delegation_refused: Option<String>,
    /// What must come out.
    pub expect: Expectation,
    /// What differs under another model profile, by its name; see [`Scenario::under`].
    #[serde(default)]
    pub profiles: BTreeMap<String, Variation>,
}

/// What differs from a scenario under one model profile.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variation {
    /// Further fields of the contract.
    #[serde(default)]
    pub contract: Map,
    /// What must come out there, in place of the scenario's own.
    #[serde(default)]
    pub expect: Option<Expectation>,
}

/// How the provider answers the probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// It is ready.
    #[default]
    Yes,
    /// It is not.
    No,
    /// It does not answer within the step limit.
    Slow,
    /// The user cancels meanwhile.
    Cancelled,
}

/// Everything that can be seen of a scripted run.
#[derive(Debug)]
pub struct Run {
    /// The contract it ran under.
    pub contract: Arc<ExecutionContract>,
    /// What it found around it.
    pub environment: Arc<Environment>,
    /// How it ended.
    pub ended: Ended,
    /// Its transcript.
    pub transcript: Transcript,
    /// The same as stored.
    pub stored: Vec<StoredEntry>,
    /// The digest after every step, in order.
    pub digests: Vec<StateDigest>,
    /// Every request to the model.
    pub requests: Vec<Request>,
    /// Every command, in a few words.
    pub commands: Vec<String>,
    /// Tools that started, in order.
    pub started: Vec<String>,
    /// Tools that took effect: started and not cut.
    pub effects: Vec<String>,
    /// Text that was shown, with the `seq` of the last entry before it.
    pub texts: Vec<(u32, String)>,
}

/// One request to the scripted model.
#[derive(Clone, Debug)]
pub struct Request {
    /// What the kernel asked for; `append` holds the messages since the request before.
    pub ask: Ask,
    /// The whole conversation.
    pub messages: Vec<AgentMessage>,
    /// Tools offered, by name.
    pub tools: Vec<Arc<str>>,
}

/// Steps after which a script that does not end is a fault of the kernel.
const MAX_STEPS: u32 = 100_000;

impl Scenario {
    /// A scenario with that contract and those replies, and nothing expected yet.
    pub fn new(id: impl Into<String>, contract: Map, replies: Vec<Said>) -> Self {
        Self {
            id: id.into(),
            verifies: Vec::new(),
            contract,
            tools: BTreeMap::new(),
            profile_applies_grammar: false,
            profile_applies_logits_mask: false,
            ready: Ready::default(),
            kept: None,
            replies,
            store_fails_at: None,
            base_prompt_bytes: 0,
            delegation_refused: None,
            expect: Expectation::default(),
            profiles: BTreeMap::new(),
        }
    }

    /// The scenario under a model profile: its model says the same in the form that the profile asks for, and its contract
    /// is strict where the profile's contracts are. The error says what that form cannot say.
    pub fn under(&self, profile: Profile) -> Result<Self, String> {
        let variation = self.profiles.get(profile.as_str()).cloned();
        let said: Vec<&Atom> = self.replies.iter().map(|said| &said.atom).collect();
        match profile.format() {
            CallFormat::Tool => {}
            CallFormat::Json | CallFormat::Text => {
                if said.iter().any(|atom| !is_one_program(atom)) {
                    return Err("a reply holds one program, and no other calls".to_owned());
                }
            }
            CallFormat::Any => {
                if variation.is_none() && said.iter().any(|atom| matches!(atom, Atom::Prose(_))) {
                    return Err("every text is meant as a program, so that nothing is prose".to_owned());
                }
            }
        }
        let mut scenario = self.clone();
        let contract = &mut scenario.contract;
        contract.entry("model_profile_id".into()).or_insert_with(|| profile.as_str().into());
        if profile.model_profile().strict && !contract.contains_key("strict_mode") {
            contract.insert("strict_mode".into(), true.into());
            contract.insert("token_gate".into(), true.into());
        }
        if let Some(Variation { contract, expect }) = variation {
            scenario.contract.extend(contract);
            scenario.expect = expect.unwrap_or(scenario.expect);
        }
        Ok(scenario)
    }

    /// Runs the script and compares what came out with what is expected.
    pub fn check(&self) -> Result<Run, Mismatch> {
        let run = self.run()?;
        self.expect.compare(&run)?;
        Ok(run)
    }

    /// Runs the script and checks what holds for every run.
    pub fn run(&self) -> Result<Run, Mismatch> {
        let contract = Arc::new(self.sealed_contract()?);
        let environment = Arc::new(self.environment(&contract)?);
        let run = Bench::new(self, contract, environment).run()?;
        invariants(&run)?;
        Ok(run)
    }

    /// The contract with its overrides and a hash that fits, unless the scenario gives one.
    pub fn sealed_contract(&self) -> Result<ExecutionContract, Mismatch> {
        let draft = ContractDraft::new(ToolPolicy::Optional, adapter::version_of(self.profile()), "stub");
        let mut value = draft.seal().to_value();
        merge(&mut value, &self.contract);
        let read = |value: Value| ExecutionContract::from_value(value).map_err(|error| Mismatch(error.to_string()));
        let contract = read(value.clone())?;
        if self.contract.contains_key("contract_hash") {
            return Ok(contract);
        }
        if let Value::Map(map) = &mut value {
            map.insert("contract_hash".into(), contract.contract_hash().to_hex().into());
        }
        read(value)
    }

    /// The profile that the contract names.
    fn profile(&self) -> &str {
        self.contract.get("model_profile_id").and_then(Value::as_str).unwrap_or("stub")
    }

    fn environment(&self, contract: &ExecutionContract) -> Result<Environment, Mismatch> {
        let plain = |name: &str| ManifestTool { name: name.into(), arguments: ArgumentCheck::Any, control: None };
        let mut tools: Vec<ManifestTool> = ["t", "u", "v", "w"].map(plain).into();
        tools.push(ManifestTool::done());
        for (name, schema) in &self.tools {
            tools.push(match schema {
                None if name == "execute_program" => ManifestTool::execute_program(),
                None => plain(name),
                Some(schema) => {
                    ManifestTool::new(name.as_str(), schema).map_err(|error| Mismatch(format!("{name}: {error}")))?
                }
            });
        }
        let mut environment = Environment::new(Manifest::new(tools), self.profile(), "scripted");
        environment.refusal = self.delegation_refused.as_deref().map(Arc::from);
        environment.profiles = adapter::profiles()
            .iter()
            .map(|profile| match profile.id == *contract.model_profile_id() {
                false => profile.clone(),
                true => ModelProfile {
                    grammar: profile.grammar || self.profile_applies_grammar,
                    logits_mask: profile.logits_mask || self.profile_applies_logits_mask,
                    ..profile.clone()
                },
            })
            .collect();
        Ok(environment)
    }
}

/// Whether a reply can be said where it is a program and nothing else.
fn is_one_program(atom: &Atom) -> bool {
    match atom {
        Atom::Calls { text, calls } => {
            !text && matches!(calls.as_slice(), [one] if one.name != "done" && one.arguments.is_empty())
        }
        Atom::Prose(_)
        | Atom::Empty
        | Atom::Bad
        | Atom::Recoverable
        | Atom::TransportFailure
        | Atom::Slow
        | Atom::Cancel
        | Atom::Broke => true,
    }
}

/// Overrides, maps merged into maps.
fn merge(into: &mut Value, overrides: &Map) {
    let Value::Map(fields) = into else { return };
    for (key, value) in overrides {
        match (fields.get_mut(key), value) {
            (Some(old @ Value::Map(_)), Value::Map(inner)) => merge(old, inner),
            _ => {
                fields.insert(key.clone(), value.clone());
            }
        }
    }
}

/// One life of a script.
struct Bench<'a> {
    scenario: &'a Scenario,
    now: Millis,
    next_reply: usize,
    /// Calls of the current reply that were not executed yet, in order.
    calls: Vec<ScriptedCall>,
    current: Said,
    conversation: Vec<AgentMessage>,
    conversation_bytes: u64,
    run: Run,
}

impl<'a> Bench<'a> {
    fn new(scenario: &'a Scenario, contract: Arc<ExecutionContract>, environment: Arc<Environment>) -> Self {
        let ended = Ended {
            agent_outcome: crate::outcome::AgentOutcome::FailedContractViolation,
            reason: crate::outcome::Reason::IllegalInput,
            goal_status: None,
            value: None,
            message: "the script did not end".into(),
            spent: Default::default(),
            generation_attempt: 0,
        };
        let run = Run {
            contract,
            environment,
            ended,
            transcript: Transcript::default(),
            stored: Vec::new(),
            digests: Vec::new(),
            requests: Vec::new(),
            commands: Vec::new(),
            started: Vec::new(),
            effects: Vec::new(),
            texts: Vec::new(),
        };
        Self {
            scenario,
            now: Millis(0),
            next_reply: 0,
            calls: Vec::new(),
            current: Said::of(Atom::Empty),
            conversation: Vec::new(),
            conversation_bytes: scenario.base_prompt_bytes,
            run,
        }
    }

    fn run(mut self) -> Result<Run, Mismatch> {
        let (mut kernel, mut step) = Kernel::start(self.run.contract.clone(), self.run.environment.clone(), self.now);
        let mut transcript = Transcript::new(kernel.header());
        // PRECHECK lets no other profile pass.
        let profile = Profile::from_name(self.run.contract.model_profile_id()).unwrap_or(Profile::Stub);
        for number in 1..=MAX_STEPS {
            self.run.digests.push(step.digest);
            let seq = step.digest.seq;
            self.run.texts.extend(step.texts.iter().map(|text| (seq, text.to_string())));
            transcript.extend(std::mem::take(&mut step.entries));
            self.run.commands.push(words_of(&step.command));
            let failed = self.scenario.store_fails_at == Some(number);
            let input = match step.command {
                Command::Finish(ended) => {
                    self.run.ended = *ended;
                    self.run.stored = transcript.to_stored();
                    self.run.transcript = transcript;
                    return Ok(self.run);
                }
                _ if failed => Input::PersistenceFailed { message: "disk full".into() },
                Command::Probe => self.probe(),
                Command::Infer(ask) => self.infer(*ask, profile),
                Command::Execute(call) => self.execute(&call),
            };
            if self.current.swap_contract {
                kernel.present_contract(Digest([7; 32]));
            }
            step = kernel.step(self.now, input);
        }
        Err(Mismatch(format!("the run did not end within {MAX_STEPS} steps")))
    }

    fn probe(&mut self) -> Input {
        if let Some(kept) = &self.scenario.kept {
            self.current = kept.clone();
            self.calls = kept.atom.calls();
            let call = self.calls.first().cloned().unwrap_or_default();
            let arguments = Arc::new(call.arguments);
            return Input::Reused(Arc::new(Decision { name: call.name.as_str().into(), arguments }));
        }
        match self.scenario.ready {
            Ready::Yes => Input::Readiness(Ok(())),
            Ready::No => Input::Readiness(Err("the scripted model is not there".into())),
            Ready::Slow => {
                self.now = self.now + self.run.contract.budget().step_timeout + Millis(1);
                Input::TimedOut { raw_hash: None }
            }
            Ready::Cancelled => Input::Cancelled { raw_hash: None },
        }
    }

    fn infer(&mut self, ask: Ask, profile: Profile) -> Input {
        self.conversation_bytes += ask.append.iter().map(canonical::length).sum::<u64>();
        self.conversation.extend(ask.append.iter().cloned());
        let tools = if ask.offer_tools { self.offered() } else { Vec::new() };
        let deadline = ask.deadline;
        self.run.requests.push(Request { ask, messages: self.conversation.clone(), tools });
        let last = self.scenario.replies.len().saturating_sub(1);
        let said = self.scenario.replies.get(self.next_reply.min(last)).cloned();
        let said = said.unwrap_or_else(|| Said::of(Atom::Empty));
        self.next_reply += 1;
        self.now = self.now + Millis(said.elapsed_ms);
        self.calls = said.atom.calls();
        self.current = said.clone();
        let cut = |text: &str| Some(Digest::of_bytes(text.as_bytes()));
        match &said.atom {
            Atom::TransportFailure => Input::ProviderFailed { message: "the scripted model failed".into() },
            Atom::Broke => Input::BudgetSpent { message: "the scripted money is spent".into() },
            Atom::Slow => {
                self.now = self.now + deadline + Millis(1);
                Input::TimedOut { raw_hash: cut("I wi") }
            }
            Atom::Cancel => Input::Cancelled { raw_hash: cut("I wi") },
            atom => {
                let reply = raw_reply(atom, profile);
                let compiles = |code: &str| match code.trim_start().starts_with("return") {
                    true => Ok(()),
                    false => Err("unexpected prose".to_owned()),
                };
                let strict = self.run.contract.strict_mode();
                let tool = tool_of(atom, profile);
                let wanted = Wanted { tool: &tool, language: "lua", compiles: &compiles };
                let result = adapter::adapt(profile, &wanted, strict, &reply);
                let chunks = atom.chunks().into_iter().map(Arc::from).collect();
                let usage = said.tokens.map(|tokens| Usage { output: tokens, ..Usage::default() });
                let prompt_bytes = said.prompt_bytes.unwrap_or(self.conversation_bytes);
                let cancelled = said.cancelled;
                Input::Inferred(Box::new(Inference { result, usage, prompt_bytes, chunks, cancelled }))
            }
        }
    }

    fn offered(&self) -> Vec<Arc<str>> {
        let allowed = self.run.contract.allowed_tools();
        let tools = self.run.environment.manifest.tools();
        tools.map(|tool| tool.name.clone()).filter(|name| allowed.is_none_or(|names| names.contains(name))).collect()
    }

    fn execute(&mut self, call: &Call) -> Input {
        let name = call.name.to_string();
        self.run.started.push(name.clone());
        let index = call.id.index as usize;
        let behaviour = self.calls.get(index).map(|call| call.behaviour.clone()).unwrap_or_default();
        self.now = self.now + Millis(self.current.tool_elapsed_ms);
        let envelope = match behaviour {
            Behaviour::Slow => {
                self.now = self.now + call.deadline + Millis(1);
                return Input::TimedOut { raw_hash: None };
            }
            Behaviour::Cancel => return Input::Cancelled { raw_hash: None },
            Behaviour::Ok(value) => ToolEnvelope::Ok(Arc::new(value)),
            Behaviour::Malformed => ToolEnvelope::Malformed { detail: "no status".into() },
            Behaviour::Error(failure) => {
                ToolEnvelope::Error { failure, message: format!("{name} failed: {}", failure.as_str()).into() }
            }
        };
        self.run.effects.push(name);
        Input::Executed(Executed {
            envelope,
            observation: None,
            child_tokens: Tokens(self.current.child_tokens),
            cancelled: self.current.cancelled_in_tool,
        })
    }
}

/// The tool that a program in a reply calls. Where calls are native they name it themselves.
fn tool_of(atom: &Atom, profile: Profile) -> String {
    let called = match profile.format() {
        CallFormat::Tool | CallFormat::Any => None,
        CallFormat::Json | CallFormat::Text => atom.calls().first().map(|call| call.name.clone()),
    };
    match atom {
        Atom::Recoverable => "t".to_owned(),
        _ => called.unwrap_or_else(|| EXECUTE_PROGRAM.to_owned()),
    }
}

/// What the scripted model puts on the wire, in the form that its profile asks for.
fn raw_reply(atom: &Atom, profile: Profile) -> ModelReply {
    let text = |content: &str| ModelReply { content: Some(content.into()), ..native_reply(atom) };
    let native = || native_reply(atom);
    let (call, broken, other) = match profile {
        Profile::Stub => return native(),
        Profile::Program | Profile::Tool | Profile::Gated => (None, None, "return 1"),
        Profile::Json => {
            (Some(r#"{"code":"return 1","language":"lua"}"#), Some(r#"{"code":"return"#), "```lua\nreturn 1\n```")
        }
        Profile::Text => (Some("return 1"), Some("```lua\nreturn 1"), r#"{"code":"return 1"}"#),
    };
    let in_text = |content: Option<&str>| {
        content.map_or_else(native, |content| ModelReply { tool_calls: Vec::new(), ..text(content) })
    };
    match atom {
        Atom::Calls { .. } => in_text(call),
        Atom::Bad => in_text(broken),
        Atom::Recoverable => in_text(Some(other)),
        Atom::Prose(_) | Atom::Empty | Atom::TransportFailure | Atom::Slow | Atom::Cancel | Atom::Broke => native(),
    }
}

/// The same as native calls and prose, and as markup where it is to be recovered.
fn native_reply(atom: &Atom) -> ModelReply {
    let mut reply = ModelReply { model: Some("scripted".into()), ..ModelReply::default() };
    let text = atom.chunks().concat();
    reply.content = (!text.is_empty()).then_some(text);
    match atom {
        Atom::Calls { calls, .. } => {
            reply.tool_calls = calls
                .iter()
                .enumerate()
                .map(|(index, call)| RawToolCall {
                    id: format!("call_{index}"),
                    name: call.name.clone(),
                    arguments: Value::Map(call.arguments.clone()).to_json(),
                })
                .collect();
        }
        Atom::Bad => {
            reply.tool_calls = vec![RawToolCall { id: String::new(), name: "t".into(), arguments: "{oops".into() }];
        }
        Atom::Recoverable => reply.content = Some("<call>{\"name\":\"t\",\"arguments\":{}}</call>".into()),
        Atom::Prose(_) | Atom::Empty | Atom::TransportFailure | Atom::Broke | Atom::Slow | Atom::Cancel => {}
    }
    reply
}

fn words_of(command: &Command) -> String {
    match command {
        Command::Probe => "Probe".into(),
        Command::Infer(ask) => match &ask.purpose {
            Purpose::Act => "Infer".into(),
            Purpose::Retry { failure, .. } => format!("Infer retry {}", failure.as_str()),
            Purpose::Nudge => "Infer nudge".into(),
            Purpose::Repair { .. } => "Infer repair".into(),
            Purpose::Synthesis => "Infer synthesis".into(),
        },
        Command::Execute(call) => format!("Execute {}", call.name),
        Command::Finish(ended) => format!("Finish {} {}", ended.agent_outcome.as_str(), ended.reason.as_str()),
    }
}

/// What holds for every run, whatever its script.
pub fn invariants(run: &Run) -> Result<(), Mismatch> {
    let fail = |words: String| Err(Mismatch(words));
    let entries = run.transcript.entries();
    // EC-DG1, EC-S6, EC-S14: one terminal entry, the last; no outcome before it.
    let terminals = entries.iter().filter(|entry| matches!(entry.event, Event::Terminated(_))).count();
    if terminals != 1 || !matches!(entries.last().map(|entry| &entry.event), Some(Event::Terminated(_))) {
        return fail(format!("{terminals} terminal entries, or one that is not the last"));
    }
    let early = &run.digests[..run.digests.len() - 1];
    if early.iter().any(|digest| digest.outcome.is_some()) {
        return fail("an outcome was announced before the run had ended".into());
    }
    // EC-S5, EC-S7, EC-IE1: every move is in the table, and each is an entry.
    let states: Vec<State> = std::iter::once(State::Init).chain(run.transcript.states()).collect();
    if let Some(pair) = states.windows(2).find(|pair| !pair[0].may_become(pair[1])) {
        return fail(format!("illegal transition {:?} -> {:?}", pair[0], pair[1]));
    }
    // V38: seq without gaps.
    if entries.iter().zip(1..).any(|(entry, seq)| entry.seq != seq) {
        return fail("`seq` has a gap".into());
    }
    // EC-FR2: proof under required, nothing under forbidden, caps.
    let ended = &run.ended;
    let success = crate::outcome::error_type(ended.agent_outcome, ended.reason, None).is_none();
    let required = run.contract.tool_policy() == ToolPolicy::Required;
    if success && required && ended.spent.tools_ok == 0 {
        return fail("success under `required` without an ok tool".into());
    }
    if run.contract.tool_policy() == ToolPolicy::Forbidden && !run.started.is_empty() {
        return fail("a tool ran under `forbidden`".into());
    }
    if ended.spent.inferences > run.contract.budget().max_inferences {
        return fail("more inferences than granted".into());
    }
    // KC-TL: every start has its end.
    let count = |kind: &str| entries.iter().filter(|entry| entry.event.kind() == kind).count();
    let unfinished = count("persistence_failed") + count("illegal_input");
    if count("tool_started") > count("tool") + unfinished {
        return fail("a tool started and left no result".into());
    }
    // EC-ID1: the digest after a step is the fold of the entries up to it.
    for digest in &run.digests {
        if StateDigest::fold(&run.stored[..digest.seq as usize]) != *digest {
            return fail(format!("the digest at {} is not the fold of the entries", digest.seq));
        }
    }
    // EC-H1, EC-RP1, EC-RP2: verifies, and replays to the same end from stored JSON.
    let read_back: Result<Vec<_>, _> =
        run.stored.iter().map(|entry| StoredEntry::from_json(&entry.to_json())).collect();
    let read_back = read_back.map_err(|error| Mismatch(error.to_string()))?;
    if read_back != run.stored {
        return fail("stored entries do not read back unchanged".into());
    }
    verify(&run.contract, &read_back, run.transcript.head(), run.transcript.len())
        .map_err(|error| Mismatch(format!("verify: {error}")))?;
    let replayed = replay(run.contract.clone(), &run.environment, &read_back)
        .map_err(|error| Mismatch(format!("replay: {error}")))?;
    let same = replayed.ended.is_some_and(|end| end.agent_outcome == ended.agent_outcome && end.reason == ended.reason);
    if !same || replayed.head != run.transcript.head() {
        return fail("the replay ended differently".into());
    }
    Ok(())
}
