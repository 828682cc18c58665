//! The agent object model through its public face: dispatch, transactions, reuse, budgets, contracts, looking back.
//! Scenario files say the same for every host language; here stands what a scenario cannot express.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cadenza_core::adapter;
use cadenza_core::agent::{Agent, UseError};
use cadenza_core::cancel::CancelToken;
use cadenza_core::ids::Digest;
use cadenza_core::log::{BackgroundLog, LogSink};
use cadenza_core::message::{GrammarRef, ModelReply};
use cadenza_core::outcome::{AgentOutcome, ErrorType, Outcome, ProgramSource, Reason};
use cadenza_core::program::Language;
use cadenza_core::provider::targets::Targets;
use cadenza_core::provider::{
    ModelRequest, ModelSpec, Provider, ProviderError, ProviderErrorClass, ReplyFuture, Scripted, Secret, ToolSpec,
    Usage,
};
use cadenza_core::runtime::options::{LogOption, Options};
use cadenza_core::runtime::repertoire::ProgramQuery;
use cadenza_core::runtime::replay::replay_record;
use cadenza_core::runtime::{Runtime, spawn, wait};
use cadenza_core::tools::Tool;
use cadenza_core::value::{Map, Value};

fn runtime_with(
    respond: impl Fn(&ModelRequest) -> Result<ModelReply, ProviderError> + Send + Sync + 'static,
) -> Runtime {
    let model = Scripted::respond(respond);
    let options = Options { model: Some(ModelSpec::Provider(Arc::new(model))), ..Options::default() };
    Runtime::builder().options(options).build().unwrap()
}

/// A calculator whose model answers every request with the n-th of these programs, the last one for ever.
fn scripted(programs: &'static [&'static str]) -> (Agent, Arc<AtomicU32>) {
    scripted_with(programs, "{}")
}

fn scripted_with(programs: &'static [&'static str], options: &str) -> (Agent, Arc<AtomicU32>) {
    let requests = Arc::new(AtomicU32::new(0));
    let counter = requests.clone();
    let runtime = runtime_with(move |_| {
        let number = counter.fetch_add(1, Ordering::SeqCst) as usize;
        Ok(ModelReply::text(programs[number.min(programs.len() - 1)]))
    });
    (runtime.agent("calculator", options_of(options)).unwrap(), requests)
}

fn options_of(json: &str) -> Options {
    let Value::Map(map) = Value::from_json(json).unwrap() else { panic!("a map") };
    Options::from_map(&map).unwrap()
}

fn call(agent: &Agent, method: &str, args: &[Value]) -> Outcome {
    agent.call(method, args.to_vec(), Map::new()).unwrap()
}

fn error_type(outcome: &Outcome) -> ErrorType {
    outcome.error().unwrap_or_else(|| panic!("expected an error, got {}", outcome.value())).error_type.clone()
}

fn source(outcome: &Outcome) -> ProgramSource {
    outcome.metadata.as_ref().unwrap().source
}

/// Promise 1 holds for asynchronous calls too: a program may compute for its whole limit beside others.
#[test]
fn busy_programs_do_not_hold_up_the_calls_beside_them() {
    let runtime = runtime_with(|request| {
        Ok(ModelReply::text(if &*request.method == "spin" { "while true do end" } else { "return 3" }))
    });
    let begin = |method: &'static str| {
        let agent = runtime.agent("calculator", options_of(r#"{"execution_repairs": 0}"#)).unwrap();
        spawn(async move { agent.call_async(method, Vec::new(), Map::new(), CancelToken::default()).await }).unwrap()
    };
    let busy: Vec<_> = (0..16).map(|_| begin("spin")).collect();
    let light = wait::block_on(begin("add"), &CancelToken::default()).unwrap().unwrap();
    assert_eq!(light.value(), &Value::Int(3));
    assert!(busy.iter().all(|call| !call.is_finished()), "the light call waited for a busy one");
    for call in busy {
        let spun = wait::block_on(call, &CancelToken::default()).unwrap().unwrap();
        assert_eq!(error_type(&spun), ErrorType::Timeout);
    }
}

#[test]
fn ac_5_a_method_changes_the_context_across_calls() {
    let (calc, _) = scripted(&["context.value = (context.value or 0) + args[1]; return context.value"]);
    calc.set("value", 10.into()).unwrap();
    assert_eq!(call(&calc, "increment", &[3.into()]).value(), &13.into());
    assert_eq!(calc.runtime_context().get("value"), Some(13.into()));
}

#[test]
fn ac_4_setters_bypass_the_provider_and_refuse_bad_names() {
    let (calc, requests) = scripted(&["return 1"]);
    assert_eq!(calc.call("memory=", vec![5.into()], Map::new()).unwrap().value(), &5.into());
    assert!(calc.responds_to("memory=") && calc.responds_to("memory") && !calc.responds_to("integrate"));
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    assert!(matches!(calc.set("a b", 1.into()), Err(UseError::Name(_))));
    assert!(matches!(calc.call("x=", vec![], Map::new()), Err(UseError::SetterArguments(0))));
}

#[test]
fn a_failed_attempt_leaves_no_trace_in_the_context_and_a_repair_sees_none() {
    let (calc, requests) = scripted(&[
        "context.value = 99; context.extra = true; error('boom')",
        "return {value = context.value, extra = context.extra}",
    ]);
    calc.set("value", 1.into()).unwrap();
    let outcome = call(&calc, "work", &[]);
    assert_eq!(outcome.value(), &Value::from_json(r#"{"value":1}"#).unwrap(), "{:?}", outcome.error());
    assert_eq!(requests.load(Ordering::SeqCst), 2, "one execution repair");
    assert_eq!(calc.runtime_context().keys(), ["value"]);
    assert_eq!(calc.history()[0].attempt_failures[0].stage, "execution");
}

#[test]
fn ac_13_without_repairs_a_raising_program_is_one_request_and_an_execution_error() {
    let (calc, requests) = scripted_with(&["error('boom')"], r#"{"execution_repairs": 0}"#);
    let outcome = call(&calc, "work", &[]);
    assert_eq!(error_type(&outcome), ErrorType::Execution);
    assert!(outcome.error().unwrap().message.contains("boom"));
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    assert_eq!(outcome.metadata.unwrap().reason, Reason::RequiredToolFailed);
}

#[test]
fn a_typed_failure_is_the_callers_and_leaves_the_context_as_it_was() {
    let (calc, requests) = scripted(&[
        "context.x = 1; return Outcome.error{error_type='low_utility', error_message='no', retriable=true}",
    ]);
    let outcome = call(&calc, "work", &[]);
    assert_eq!(error_type(&outcome), ErrorType::Other("low_utility".into()));
    assert!(outcome.error().unwrap().retriable);
    assert!(calc.runtime_context().is_empty());
    assert_eq!(requests.load(Ordering::SeqCst), 1, "a chosen failure is not repaired");
    assert_eq!(outcome.metadata.unwrap().agent_outcome, AgentOutcome::CompletedWithTools);
}

#[test]
fn a_map_with_envelope_keys_is_data() {
    let (calc, _) = scripted(&["return {status='error', error_type='execution', ok=false}"]);
    assert!(call(&calc, "work", &[]).ok());
}

#[test]
fn reuse_asks_no_model_and_builds_no_prompt() {
    let (calc, requests) = scripted(&["return args[1] + args[2]"]);
    assert_eq!(source(&call(&calc, "add", &[2.into(), 3.into()])), ProgramSource::Generated);
    let again = call(&calc, "add", &[20.into(), 1.5.into()]);
    assert_eq!((again.value(), source(&again)), (&21.5.into(), ProgramSource::Reused));
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    assert_eq!(again.metadata.unwrap().attempts, 0);
}

#[test]
fn reuse_holds_across_agents_of_a_runtime_but_not_across_roles_or_shapes() {
    let (calc, requests) = scripted(&["return #args"]);
    call(&calc, "count", &[1.into()]);
    let twin = calc.runtime().agent("calculator", Options::default()).unwrap();
    assert_eq!(source(&call(&twin, "count", &[1.into()])), ProgramSource::Reused);
    let other = calc.runtime().agent("counter", Options::default()).unwrap();
    assert_eq!(source(&call(&other, "count", &[1.into()])), ProgramSource::Generated);
    assert_eq!(source(&call(&calc, "count", &["1".into()])), ProgramSource::Generated);
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}

#[test]
fn a_program_that_baked_an_input_in_never_answers_for_another_input() {
    // The first program ignores its argument, the second reads it and still answers with a constant.
    for program in ["return 5", "local a = args[1]; local b = args[2]; return 5"] {
        let programs: &'static [&'static str] = Box::leak(Box::new([program, "return args[1] + args[2]"]));
        let (calc, requests) = scripted(programs);
        assert_eq!(call(&calc, "add", &[2.into(), 3.into()]).value(), &5.into());
        assert_eq!(
            call(&calc, "add", &[2.into(), 3.into()]).value(),
            &5.into(),
            "the same question has the same answer"
        );
        assert_eq!(requests.load(Ordering::SeqCst), 1);
        assert_eq!(call(&calc, "add", &[20.into(), 30.into()]).value(), &50.into(), "{program}");
        assert_eq!(requests.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_dry_run_that_a_limit_ends_proves_nothing() {
    let (calc, requests) = scripted(&["for i = 1, args[1] do end; return 5", "return args[1] + 3"]);
    assert_eq!(call(&calc, "add", &[2.into()]).value(), &5.into());
    assert_eq!(call(&calc, "add", &[7.into()]).value(), &10.into(), "a longer loop is no other answer");
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}

#[test]
fn the_opposite_unit_conversion_is_not_answered_by_the_one_way_program() {
    let one_way = "local v, from, to = args[1], args[2], args[3]; return v * 0.5";
    let programs: &'static [&'static str] = Box::leak(Box::new([one_way, "return args[1] * 2"]));
    let (calc, requests) = scripted(programs);
    let convert = |value: i64, from: &str, to: &str| call(&calc, "convert", &[value.into(), from.into(), to.into()]);
    assert_eq!(convert(10, "km", "mi").value(), &5.into());
    assert_eq!(convert(30, "km", "mi").value(), &15.into(), "the number is free");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    assert_eq!(convert(10, "mi", "km").value(), &20.into(), "the units are not");
    assert_eq!(requests.load(Ordering::SeqCst), 2);
    assert_eq!(convert(40, "km", "mi").value(), &20.into(), "and the first program still serves its own direction");
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}

#[test]
fn an_honest_converter_serves_both_directions() {
    let (calc, requests) = scripted(&[
        "local f = {km = 2, mi = 1}; local a, b = f[args[2]], f[args[3]]; if not a or not b then error('unit') end; return args[1] * b / a",
    ]);
    call(&calc, "convert", &[10.into(), "km".into(), "mi".into()]);
    assert_eq!(call(&calc, "convert", &[10.into(), "mi".into(), "km".into()]).value(), &20.into());
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[test]
fn a_program_that_baked_the_state_around_a_call_in_never_answers_for_another_state() {
    let (ann, requests) = scripted(&["return 'Hello, Ann'"]);
    ann.set("name", "Ann".into()).unwrap();
    assert_eq!(source(&call(&ann, "greet", &[])), ProgramSource::Generated);
    assert_eq!(source(&call(&ann, "again", &[])), ProgramSource::Generated);
    let bob = ann.runtime().agent("calculator", Options::default()).unwrap();
    bob.set("name", "Bob".into()).unwrap();
    assert_eq!(source(&call(&bob, "greet", &[])), ProgramSource::Generated);
    assert_eq!(requests.load(Ordering::SeqCst), 3);

    let (units, requests) = scripted(&["return args[1] * 0.5", "return args[1] * 2", "return args[1] * 3"]);
    for (to, expected) in [("mi", 5), ("ft", 20), ("mi", 5)] {
        units.set("to", to.into()).unwrap();
        assert_eq!(call(&units, "convert", &[10.into()]).value(), &expected.into(), "{to}");
    }
    assert_eq!(requests.load(Ordering::SeqCst), 2);

    let (calc, requests) = scripted(&["return args[1] + args[2]", "return 3"]);
    call(&calc, "add", &[1.into(), 2.into()]);
    call(&calc, "last_result", &[]);
    call(&calc, "add", &[5.into(), 2.into()]);
    assert_eq!(source(&call(&calc, "last_result", &[])), ProgramSource::Generated);
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}

#[test]
fn state_that_merely_changes_takes_no_programs_away() {
    let (calc, requests) = scripted(&["return args[1] + args[2]"]);
    for memory in 5..9 {
        calc.set("memory", memory.into()).unwrap();
        assert_eq!(call(&calc, "add", &[memory.into(), 3.into()]).value(), &(memory + 3).into());
    }
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[test]
fn handing_an_input_on_beside_an_answer_is_no_use_of_it() {
    for program in [
        "local t = args[1]; return {text = t, mood = 'good'}",
        "context.last = args[1]; return 'good'",
        "tools.note{x = args[1]}; return 'good'",
    ] {
        let (agent, requests) = noting(program);
        call(&agent, "mood", &["I love it".into()]);
        call(&agent, "mood", &["I hate it".into()]);
        assert_eq!(requests.load(Ordering::SeqCst), 2, "{program}");
    }
    for program in [
        "return args[1]",
        "return {args[1]}",
        "local l = context.list or {}; table.insert(l, args[1]); context.list = l; return l",
        "return #tools.note{x = args[1]}",
        "tools.note{x = args[1]}",
    ] {
        let (agent, requests) = noting(program);
        for text in ["I love it", "I hate it", "whatever"] {
            assert!(call(&agent, "mood", &[text.into()]).ok(), "{program}");
        }
        assert_eq!(requests.load(Ordering::SeqCst), 1, "{program}");
    }
}

/// An agent whose model answers with that program, and whose tool `note` hands back what it was told.
fn noting(program: &'static str) -> (Agent, Arc<AtomicU32>) {
    let requests = Arc::new(AtomicU32::new(0));
    let counter = requests.clone();
    let runtime = runtime_with(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(ModelReply::text(program))
    });
    let note = Tool::new("note", "", Value::Map(Map::new()), |arguments, _| Ok(arguments["x"].clone())).unwrap();
    let options = Options { tools: Some(vec![Arc::new(note)]), ..Options::default() };
    (runtime.agent("a", options).unwrap(), requests)
}

#[test]
fn a_dry_run_changes_nothing() {
    let (calc, _) = scripted(&["context.sum = (context.sum or 0) + args[1]; return context.sum"]);
    call(&calc, "add", &[1.into()]);
    call(&calc, "add", &[2.into()]);
    assert_eq!(calc.runtime_context().get("sum"), Some(3.into()));
}

#[test]
fn conversational_methods_and_reuse_off_always_ask() {
    let (calc, requests) = scripted(&["return 'hello'"]);
    for _ in 0..2 {
        call(&calc, "chat", &[]);
    }
    assert_eq!(requests.load(Ordering::SeqCst), 2);
    let (calc, requests) = scripted_with(&["return 1"], r#"{"reuse": "off"}"#);
    for _ in 0..2 {
        call(&calc, "work", &[]);
    }
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}

#[test]
fn a_reused_program_that_fails_is_rolled_back_repaired_once_and_counted() {
    let (calc, requests) = scripted(&[
        "context.n = (context.n or 0) + 1; if context.n > 1 then error('worn out') end; return context.n",
        "context.n = 10 + 0 * context.n; return context.n",
    ]);
    assert_eq!(call(&calc, "work", &[]).value(), &1.into());
    let repaired = call(&calc, "work", &[]);
    assert_eq!((repaired.value(), source(&repaired)), (&10.into(), ProgramSource::Generated));
    assert_eq!(requests.load(Ordering::SeqCst), 2);
    let kept = calc.runtime().programs(&ProgramQuery::default()).unwrap();
    let failures: Vec<_> = kept.iter().map(|listed| (listed.saved.version, listed.saved.failures)).collect();
    assert_eq!(failures, [(1, 1), (2, 0)]);
    assert_eq!(source(&call(&calc, "work", &[])), ProgramSource::Reused, "the repaired program is the newest");
}

#[test]
fn a_program_that_keeps_failing_is_quarantined() {
    let (calc, requests) =
        scripted_with(&["if context.broken then error('boom') end; return 1"], r#"{"execution_repairs": 0}"#);
    call(&calc, "work", &[]);
    calc.set("broken", true.into()).unwrap();
    for _ in 0..3 {
        assert_eq!(source(&call(&calc, "work", &[])), ProgramSource::Reused);
    }
    assert_eq!(source(&call(&calc, "work", &[])), ProgramSource::Generated);
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}

#[test]
fn ac_6_ac_19_a_nested_call_links_to_its_parent_and_shares_its_trace() {
    let runtime = runtime_with(|request| {
        Ok(ModelReply::text(match &*request.method {
            "compute" => "return agent:delegate('calculator'):add(2, 3)",
            _ => "return args[1] + args[2]",
        }))
    });
    let agent = runtime.agent("boss", Options::default()).unwrap();
    let outcome = call(&agent, "compute", &[]);
    assert_eq!(outcome.value(), &5.into(), "{:?}", outcome.error());
    let calls = runtime.calls();
    let (child, parent) = (&calls[0], &calls[1]);
    assert_eq!(child.parent_call_id, Some(parent.call_id()));
    assert_eq!((child.depth, parent.depth), (1, 0));
    assert_eq!(child.trace_id(), parent.trace_id());
    assert_eq!(child.contract.parent_contract_hash(), Some(parent.contract.contract_hash()));
}

#[test]
fn ac_15_delegation_depth_and_call_count_end_in_budget_exceeded_and_the_parent_continues() {
    for (language, program) in [
        ("lua", "local o = Agent.for_role('deeper'):work(); return {deeper = o.value, error = o.error_type}"),
        ("rhai", "let o = agent_for_role(\"deeper\").call(\"work\"); #{deeper: o.value, error: o.error_type}"),
    ] {
        let runtime = runtime_with(move |_| Ok(ModelReply::text(program)));
        let options = format!(r#"{{"max_delegation_depth": 3, "language": "{language}"}}"#);
        let agent = runtime.agent("deep", options_of(&options)).unwrap();
        let outcome = call(&agent, "work", &[]);
        assert!(outcome.ok(), "{:?}", outcome.error());
        assert!(outcome.value().to_json().contains(r#""error":"budget_exceeded""#), "{}", outcome.value());
        assert_eq!(runtime.calls().len(), 5, "three levels below the first, and the refused one");
        assert_eq!(runtime.calls()[0].metadata.reason, Reason::DelegationBudget);
    }
    let (agent, _) = scripted_with(
        &["local n = 0; for i = 1, 10 do if agent:delegate('x'):ping().ok then n = n + 1 end end; return n"],
        r#"{"max_calls": 4, "max_delegation_depth": 1}"#,
    );
    let outcome = call(&agent, "work", &[]);
    assert_eq!(outcome.value(), &3.into(), "the root is one of four");
}

#[test]
fn an_agent_may_call_itself_within_its_own_transaction() {
    let (agent, _) = scripted(&[
        "if args[1] <= 1 then context.depth = (context.depth or 0) + 1; return 1 end; return args[1] * agent:factorial(args[1] - 1).value",
    ]);
    let outcome = call(&agent, "factorial", &[6.into()]);
    assert_eq!(outcome.value(), &720.into(), "{:?}", outcome.error());
    assert_eq!(agent.runtime_context().get("depth"), Some(1.into()));
}

#[test]
fn nested_calls_reach_any_depth_that_the_budget_allows_also_on_small_stacks() {
    for language in Language::ALL {
        let program = match language {
            Language::Lua => {
                "if args[1] == 0 then return 0 end; return 1 + agent:delegate('d'):down(args[1] - 1).value"
            }
            Language::Rhai => {
                "if args[0] == 0 { return 0; } 1 + agent.delegate(\"d\").call(\"down\", [args[0] - 1]).value"
            }
        };
        let runtime = runtime_with(move |_| Ok(ModelReply::text(program)));
        let options = format!(r#"{{"max_delegation_depth": 64, "language": "{language}"}}"#);
        let agent = runtime.agent("d", options_of(&options)).unwrap();
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || call(&agent, "down", &[60.into()]));
        let outcome = thread.unwrap().join().unwrap();
        assert_eq!(outcome.value(), &60.into(), "{language}: {:?}", outcome.error());
    }
}

#[test]
fn ac_16_deliverable_and_acceptance_are_checked_and_repaired_once() {
    let (agent, requests) = scripted_with(
        &["return 'five'", "return 5"],
        r#"{"deliverable": {"type": "integer"}, "acceptance": [{"assert": "value > 3"}, "be brief"]}"#,
    );
    let outcome = call(&agent, "work", &[]);
    assert_eq!(outcome.value(), &5.into(), "{:?}", outcome.error());
    assert_eq!(requests.load(Ordering::SeqCst), 2);
    for language in ["lua", "rhai"] {
        let options = format!(
            r#"{{"acceptance": [{{"assert": "value > 3"}}], "execution_repairs": 0, "language": "{language}"}}"#
        );
        let (agent, _) = scripted_with(&["return 2;"], &options);
        let outcome = call(&agent, "work", &[]);
        assert_eq!(error_type(&outcome), ErrorType::ContractViolation);
        assert!(outcome.error().unwrap().message.contains("value > 3"), "{:?}", outcome.error());
        assert_eq!(outcome.metadata.unwrap().reason, Reason::ResultContract);
    }
}

#[test]
fn a_failure_policy_falls_back_once_to_another_role() {
    let runtime = runtime_with(|request| {
        Ok(ModelReply::text(if &*request.role == "careful" { "return 'safe'" } else { "error('no')" }))
    });
    let options = r#"{"failure_policy": {"on_error": "fallback", "fallback_role": "careful"}, "execution_repairs": 0}"#;
    let agent = runtime.agent("bold", options_of(options)).unwrap();
    let outcome = call(&agent, "work", &[]);
    assert_eq!((outcome.value(), &*outcome.role), (&"safe".into(), "bold"));
    assert_eq!(runtime.calls().len(), 2);
    assert_eq!(runtime.calls()[0].parent_call_id, Some(runtime.calls()[1].call_id()));
    let answered = outcome.metadata.unwrap();
    assert_eq!(answered.agent_outcome, AgentOutcome::CompletedWithTools);
    assert_eq!(answered.call_id, runtime.calls()[0].call_id(), "the call that answered");
    // SC-4.12: who was asked before, and what for.
    assert_eq!(answered.note.as_deref(), Some("the role careful was asked after bold failed"));
    assert_eq!(answered.accounting.len(), 2);
    assert_eq!(runtime.calls()[1].to_map()["accounting"].as_list().map(<[_]>::len), Some(1));
}

#[test]
fn ac_3_delegates_inherit_settings_but_not_the_delegation_contract() {
    let (agent, _) = scripted_with(
        &["return 'text'"],
        r#"{"purpose": "numbers", "deliverable": {"type": "integer"}, "execution_repairs": 0, "debug": true}"#,
    );
    let child = agent.delegate("writer", Options::default()).unwrap();
    assert!(call(&child, "work", &[]).ok(), "the contract belongs to the parent's delegation");
    assert!(agent.runtime().calls()[0].debug.is_some(), "debug is inherited");
    assert!(agent.tool("writer").unwrap().is(&child));
}

#[test]
fn what_a_host_agreed_is_found_again_whole() {
    let runtime = runtime_with(|request| {
        Ok(ModelReply::text(match &*request.method {
            "ask" => "local said = agent:tool('tutor'):explain() return said.error_type or said.value",
            "declare" => "return agent:delegate('own', {deliverable = {description = string.rep('x', 5000)}}).role",
            _ => "return 3",
        }))
    });
    let words = "a text ".repeat(800);
    let contract = format!(
        r##"{{"deliverable": {{"$ref": "#/$defs/text", "$defs": {{"text": {{"type": "string", "description": "{words}"}}}}}}}}"##
    );
    let host = runtime.agent("boss", options_of(r#"{"execution_repairs": 0}"#)).unwrap();
    host.delegate("tutor", options_of(&contract)).unwrap();
    // Another agent of the same role finds the tutor with its contract, and the contract holds.
    let other = runtime.agent("boss", options_of(r#"{"execution_repairs": 0}"#)).unwrap();
    assert_eq!(call(&other, "ask", &[]).value(), &"contract_violation".into());
    // What a program declares itself is bounded as ever.
    let declared = call(&other, "declare", &[]);
    assert!(declared.error().unwrap().message.contains("at most 4096 bytes"), "{:?}", declared.error());
}

/// A scripted model that is read by another profile.
#[derive(Debug)]
struct Profiled {
    profile: &'static str,
    /// The text of its grammar, where it has one.
    grammar: Option<&'static str>,
    model: Scripted,
}

impl Provider for Profiled {
    fn model(&self) -> &str {
        "profiled"
    }

    fn profile(&self) -> &str {
        self.profile
    }

    fn grammar(&self, tools: &[ToolSpec], language: Language) -> Option<GrammarRef> {
        let source = format!("{} {language} {}", self.grammar?, tools[0].name);
        Some(GrammarRef { profile: "call".into(), sha256: Digest::of_bytes(source.as_bytes()) })
    }

    fn fingerprint(&self) -> &str {
        "profiled#1"
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        self.model.complete(request, cancel)
    }
}

/// One call of a model with that profile that answers in turn with these; what it was told on its second request.
fn profiled(profile: &'static str, replies: Vec<ModelReply>) -> (Outcome, Runtime, String) {
    let told = Arc::new(Mutex::new(String::new()));
    let seen = told.clone();
    let replies = Mutex::new(replies.into_iter());
    let model = Scripted::respond(move |request| {
        if let Some(message) = request.messages.last() {
            seen.lock().unwrap().clone_from(&message.content);
        }
        Ok(replies.lock().unwrap().next().unwrap_or_default())
    });
    let model = ModelSpec::Provider(Arc::new(Profiled { profile, grammar: None, model }));
    let runtime = Runtime::builder().options(Options { model: Some(model), ..Options::default() }).build().unwrap();
    let outcome = call(&runtime.agent("calculator", Options::default()).unwrap(), "add", &[]);
    let told = told.lock().unwrap().clone();
    (outcome, runtime, told)
}

#[test]
fn v7_the_providers_profile_decides_how_its_replies_are_read() {
    let native = || ModelReply::call("1", "execute_program", r#"{"code":"return 5","language":"lua"}"#);
    let (bare, prose) = (|| ModelReply::text("return 5"), || ModelReply::text("Gladly!"));
    // What the model is told in between names the one form that is asked for.
    let (tool, fence) = ("by calling `execute_program`.", "in one ```lua block.");
    for (profile, replies, told) in [
        ("tool", vec![native()], ""),
        ("tool", vec![bare()], ""),
        ("tool", vec![prose(), native()], tool),
        ("json", vec![prose(), ModelReply::text(r#"{"code":"return 5","language":"lua"}"#)], "one JSON object"),
        ("text", vec![prose(), bare()], fence),
        ("gated", vec![native()], ""),
        ("gated", vec![bare(), native()], tool),
        ("program", vec![prose(), bare()], "or, without tools,"),
    ] {
        let asked = replies.len() as u32;
        let (outcome, runtime, seen) = profiled(profile, replies);
        assert_eq!(outcome.value(), &Value::Int(5), "{profile}: {:?}", outcome.error());
        assert!(seen.contains(told) && seen.is_empty() == told.is_empty(), "{profile}: {seen}");
        let record = runtime.calls().pop().unwrap();
        assert_eq!(record.metadata.inferences, asked);
        assert_eq!(record.contract.strict_mode(), profile == "gated");
        // EC-AD3, EC-AD7: whose words these were, and by which rules they were read, is in every entry.
        for entry in record.metadata.transcript.to_stored() {
            let names = (&*entry.model_profile_id, &*entry.adapter_version, &*entry.model_fingerprint);
            assert_eq!(names, (profile, adapter::Profile::from_name(profile).unwrap().version(), "profiled#1"));
        }
        runtime.replay(record.call_id()).unwrap();
    }
}

/// V24: a model is told whether text may come in place of a call, also where the contract has no token gate.
#[test]
fn v24_a_request_says_whether_text_may_come() {
    for profile in ["program", "gated"] {
        let held = Arc::new(Mutex::new(Vec::new()));
        let asked = held.clone();
        let model = Scripted::respond(move |request| {
            let mut asked = asked.lock().unwrap();
            asked.push(request.hold_text);
            let code = if asked.len() == 1 { "error('no')" } else { "return 5" };
            let arguments = format!(r#"{{"code":"{code}","language":"lua"}}"#);
            Ok(ModelReply::call("1", "execute_program", arguments))
        });
        let model = ModelSpec::Provider(Arc::new(Profiled { profile, grammar: None, model }));
        let runtime = Runtime::builder().options(Options { model: Some(model), ..Options::default() }).build().unwrap();
        let outcome = call(&runtime.agent("calculator", Options::default()).unwrap(), "add", &[]);
        assert_eq!(outcome.value(), &Value::Int(5), "{profile}: {:?}", outcome.error());
        // The first program failed, but it was a call.
        assert_eq!(*held.lock().unwrap(), [true, false], "{profile}");
    }
}

#[test]
fn v6_v10_a_gated_profile_takes_no_words_for_a_call() {
    // A program in text is not recovered, and who talks is not asked again.
    let (outcome, ..) = profiled("gated", vec![ModelReply::text("return 5"); 2]);
    let record = outcome.metadata.as_ref().unwrap();
    assert_eq!((error_type(&outcome), record.reason), (ErrorType::InvalidCode, Reason::RecoveryDisabled));
    let (outcome, ..) = profiled("gated", vec![ModelReply::text("Gladly!")]);
    let record = outcome.metadata.as_ref().unwrap();
    assert_eq!((record.agent_outcome, record.inferences), (AgentOutcome::FailedProtocolNoTools, 1));
    // EC-P4a: a profile that nobody knows is refused before its model is asked.
    let (outcome, ..) = profiled("gpt", vec![ModelReply::text("return 5")]);
    let record = outcome.metadata.as_ref().unwrap();
    assert_eq!((record.agent_outcome, record.inferences), (AgentOutcome::FailedPreflight, 0));
}

#[test]
fn ec_gr1_the_contract_of_a_call_holds_its_models_grammar_by_digest_alone() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let model = |grammar| -> Arc<dyn Provider> {
        let asked = asked.clone();
        let model = Scripted::respond(move |request| {
            asked.lock().unwrap().push(request.grammar);
            Ok(ModelReply::call("1", "execute_program", r#"{"code":"return 5","language":"rhai"}"#))
        });
        Arc::new(Profiled { profile: "gated", grammar, model })
    };
    let digest = Digest::of_bytes(b"root ::= x rhai execute_program");
    let twice = |other| Arc::new(Targets::new(vec![model(Some("root ::= x")), model(other)], 2).unwrap());
    for (provider, expected) in [
        (model(Some("root ::= x")), Some(digest)),
        (model(None), None),
        (twice(Some("root ::= x")), Some(digest)),
        // A list has no grammar where one of its targets has another.
        (twice(Some("root ::= y")), None),
        (twice(None), None),
    ] {
        let options = options_of(r#"{"language": "rhai"}"#);
        let options = Options { model: Some(ModelSpec::Provider(provider)), ..options };
        let runtime = Runtime::builder().options(options).build().unwrap();
        let outcome = call(&runtime.agent("calculator", Options::default()).unwrap(), "add", &[]);
        assert_eq!(outcome.value(), &5.into(), "{:?}", outcome.error());
        let record = runtime.calls().remove(0);
        let contract = &record.contract;
        assert_eq!(contract.grammar_sha256(), expected);
        assert_eq!(contract.grammar_profile().map(|name| &**name), expected.map(|_| "call"));
        assert!(!contract.preimage().contains("root"), "{}", contract.preimage());
        assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), [expected]);
        runtime.replay(record.call_id()).unwrap();
    }
}

#[test]
fn ac_16_a_runtimes_contract_holds_for_agents_with_other_options_of_their_own() {
    let model = Scripted::respond(|_| Ok(ModelReply::text("return 'text'")));
    let mut options = options_of(r#"{"deliverable": {"type": "integer"}, "execution_repairs": 0}"#);
    options.model = Some(ModelSpec::Provider(Arc::new(model)));
    let runtime = Runtime::builder().options(options).build().unwrap();
    for own in ["{}", r#"{"debug": true}"#] {
        let agent = runtime.agent("a", options_of(own)).unwrap();
        assert_eq!(error_type(&call(&agent, "work", &[])), ErrorType::ContractViolation, "{own}");
    }
}

#[test]
fn a_key_that_this_process_was_given_reaches_no_prompt_and_no_error() {
    let key = "sk-test-7f3a9c";
    Secret::new(key).unwrap();
    let (prompts, seen) = std::sync::mpsc::channel();
    let runtime = runtime_with(move |request| {
        let feedback = request.messages.iter().map(|message| message.content.as_str());
        let texts: String = [&*request.user_prompt].into_iter().chain(feedback).collect();
        prompts.send(texts).unwrap();
        match &*request.method {
            "refuse" => Err(ProviderError::new(ProviderErrorClass::Auth, format!("denied for {key}"))),
            _ => Ok(ModelReply::text("error('key ' .. context.key)")),
        }
    });
    let agent = runtime.agent("a", Options::default()).unwrap();
    agent.set("key", key.into()).unwrap();
    let errors: Vec<_> = ["refuse", "raise"].map(|method| call(&agent, method, &[]).error().cloned()).into();
    let shown =
        format!("{errors:?} {:?}", runtime.calls().iter().map(|call| &call.attempt_failures).collect::<Vec<_>>());
    assert!(!shown.contains(key), "{shown}");
    let prompts: Vec<String> = seen.try_iter().collect();
    assert_eq!(prompts.len(), 3, "one refused, one generation and its repair");
    assert!(prompts.iter().all(|prompt| !prompt.contains(key)), "{prompts:?}");
}

#[test]
fn a_long_chain_of_delegates_is_freed_without_nesting() {
    let (agent, _) = scripted(&["return 1"]);
    let mut last = agent.clone();
    for _ in 0..100_000 {
        last = last.delegate("next", Options::default()).unwrap();
    }
    drop((last, agent));
}

#[test]
fn programs_cannot_set_options_of_the_host_machine() {
    let (agent, _) = scripted_with(&["agent:delegate('x', {log = '/tmp/evil'})"], r#"{"execution_repairs": 0}"#);
    let outcome = call(&agent, "work", &[]);
    assert!(outcome.error().unwrap().message.contains("cannot set the option \"log\""), "{:?}", outcome.error());
}

#[test]
fn a_program_cannot_declare_a_deliverable_that_takes_for_ever_to_check() {
    let double = "local defs = {n40 = true}; for i = 0, 39 do local next = {['$ref'] = '#/$defs/n' .. i + 1}; \
        defs['n' .. i] = {allOf = {next, next}} end; \
        return agent:delegate('x', {deliverable = {['$defs'] = defs, ['$ref'] = '#/$defs/n0'}}):work()";
    let wide =
        "return agent:delegate('x', {delegation_contract = {deliverable = {title = string.rep('x', 5000)}}}):work()";
    for program in [double, wide] {
        let programs: &'static [&'static str] = Box::leak(Box::new([program, "return 1"]));
        let (agent, _) = scripted_with(programs, r#"{"execution_repairs": 0}"#);
        let outcome = call(&agent, "work", &[]);
        assert_eq!(error_type(&outcome), ErrorType::Execution);
        assert!(outcome.error().unwrap().message.contains("without references"), "{:?}", outcome.error());
    }
    let texts = "local t = {}; for i = 1, 5000 do t[i] = string.rep('a', 60) .. 'c' end; return t";
    let deliverable = r#"{"deliverable": {"items": {"pattern": "^(a|aa)+$"}}, "execution_repairs": 0}"#;
    let programs: &'static [&'static str] = Box::leak(Box::new([texts]));
    let (agent, _) = scripted_with(programs, deliverable);
    let began = Instant::now();
    assert_eq!(error_type(&call(&agent, "work", &[])), ErrorType::ContractViolation);
    assert!(began.elapsed() < Duration::from_secs(20), "took {:?}", began.elapsed());
}

#[test]
fn ac_16_a_deliverable_is_checked_in_bounded_time_or_refused() {
    let Value::Map(options) = Value::from_json(r#"{"deliverable": {"items": {"pattern": "(?=a)(a*)*c"}}}"#).unwrap()
    else {
        panic!("a map")
    };
    let refused = Options::from_map(&options).unwrap_err().to_string();
    assert!(refused.contains("look-around or a back-reference"), "{refused}");
}

#[test]
fn ac_16_an_empty_lua_table_is_a_list_where_the_deliverable_wants_one() {
    let deliverable =
        r#"{"deliverable": {"properties": {"rows": {"type": ["array", "null"]}, "by": {"type": "object"}}}}"#;
    let (agent, requests) = scripted_with(&["return {rows = {}, by = {}}"], deliverable);
    for _ in 0..2 {
        assert_eq!(call(&agent, "work", &[]).value().to_json(), r#"{"by":{},"rows":[]}"#);
    }
    assert_eq!(requests.load(Ordering::SeqCst), 1, "neither a repair nor a second question");
    let rhai = r#"{"deliverable": {"type": "array"}, "language": "rhai", "execution_repairs": 0}"#;
    let (agent, _) = scripted_with(&["#{}"], rhai);
    assert_eq!(error_type(&call(&agent, "work", &[])), ErrorType::ContractViolation, "Rhai says which it means");
}

#[test]
fn ac_16_an_acceptance_that_cannot_hold_is_refused_when_the_agent_is_made() {
    let (agent, _) = scripted(&["return 1"]);
    for (options, expected) in [
        (r#"{"acceptance": [{"assert": "value >"}]}"#, "`value >` is no expression in lua: line 1: "),
        (r#"{"acceptance": [{"assert": "value >"}], "language": "rhai"}"#, "`value >` is no expression in rhai: "),
    ] {
        let Err(error) = agent.delegate("x", options_of(options)) else { panic!("{options} is taken") };
        let error = error.to_string();
        assert!(error.contains("option \"acceptance\"") && error.contains(expected), "{error}");
        assert!(!error.contains("line 4") && !error.contains("line 5") && !error.contains("line 6"), "{error}");
    }
    agent.delegate("x", options_of(r#"{"acceptance": [{"assert": "value > 1"}, "be brief"]}"#)).unwrap();
}

/// What a call says whose model answers only after its request is over, and how often it was asked.
fn late(options: &str, message: Option<&'static str>) -> (String, u32) {
    let requests = Arc::new(AtomicU32::new(0));
    let counter = requests.clone();
    let runtime = runtime_with(move |request| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(request.timeout);
        Err(match message {
            Some(message) => ProviderError::new(ProviderErrorClass::Timeout, message),
            None => ProviderError::timed_out("scripted", request.timeout),
        })
    });
    let outcome = call(&runtime.agent("a", options_of(options)).unwrap(), "work", &[]);
    assert_eq!(error_type(&outcome), ErrorType::Timeout);
    (outcome.error().unwrap().message.clone(), requests.load(Ordering::SeqCst))
}

/// A model whose replies come in pieces.
#[derive(Debug)]
struct Streamed(Scripted);

impl Provider for Streamed {
    fn model(&self) -> &str {
        "streamed"
    }

    fn streams(&self, _request: &ModelRequest) -> bool {
        true
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        self.0.complete(request, cancel)
    }
}

/// SC-3.18: of a stream the silence is bounded, and the whole by the call alone.
#[test]
fn sc_3_18_a_streams_timeout_says_which_bound_it_was() {
    let silent = "streamed sent nothing for 0.05 s in the middle of a reply; raise `provider_timeout_seconds`";
    for (own_words, expected) in
        [(true, silent), (false, "the call took longer than 200 ms; raise `call_timeout_seconds` or ask for less")]
    {
        let model = Scripted::respond(move |request| {
            if own_words {
                return Err(ProviderError::new(ProviderErrorClass::Timeout, silent));
            }
            std::thread::sleep(request.total);
            Err(ProviderError::timed_out("streamed", request.total))
        });
        let options = options_of(
            r#"{"provider_timeout_seconds": 0.05, "call_timeout_seconds": 0.2, "max_generation_attempts": 1}"#,
        );
        let model = ModelSpec::Provider(Arc::new(Streamed(model)));
        let runtime = Runtime::builder().options(Options { model: Some(model), ..options }).build().unwrap();
        let outcome = call(&runtime.agent("a", Options::default()).unwrap(), "work", &[]);
        assert_eq!((error_type(&outcome), &*outcome.error().unwrap().message), (ErrorType::Timeout, expected));
    }
}

#[test]
fn ac_14_a_timeout_names_the_time_that_passed_and_the_option_that_raises_it() {
    let short = r#"{"provider_timeout_seconds": 0.1, "max_generation_attempts": 1}"#;
    assert_eq!(late(short, None).0, "scripted took longer than 100 ms; raise `provider_timeout_seconds`");
    assert_eq!(
        late(short, Some("TimeoutError: too slow")).0,
        "scripted took longer than 100 ms; raise `provider_timeout_seconds` (TimeoutError: too slow)"
    );
    let words = "the call took longer than 200 ms; raise `call_timeout_seconds` or ask for less";
    assert_eq!(late(r#"{"call_timeout_seconds": 0.2}"#, None).0, words);
    assert_eq!(
        late(r#"{"provider_timeout_seconds": 0.1, "max_generation_attempts": 2}"#, None).0,
        "2 attempts failed; the last: scripted took longer than 100 ms; raise `provider_timeout_seconds`; before: \
         scripted gave no complete reply within 0.1 s; raise `provider_timeout_seconds` or ask a faster model"
    );
    let (agent, _) =
        scripted_with(&["while true do end"], r#"{"call_timeout_seconds": 0.2, "program_timeout_seconds": 10}"#);
    assert_eq!(call(&agent, "work", &[]).error().unwrap().message, words);
    let (agent, _) = scripted_with(&["while true do end"], r#"{"program_timeout_seconds": 0.2}"#);
    assert!(call(&agent, "work", &[]).error().unwrap().message.contains("`program_timeout_seconds`"));
}

#[test]
fn ac_7_7_a_model_that_is_too_slow_is_asked_again_while_time_is_left() {
    assert_eq!(late(r#"{"provider_timeout_seconds": 0.05, "max_generation_attempts": 3}"#, None).1, 3);
    assert_eq!(late(r#"{"call_timeout_seconds": 0.1, "max_generation_attempts": 3}"#, None).1, 1, "no time is left");
}

#[test]
fn implausible_token_counts_are_cut_and_never_lower_a_flows_count() {
    let runtime = runtime_with(|_| {
        let usage = Some(Usage { input: u64::MAX, output: u64::MAX - 1, cached: u64::MAX, ..Usage::default() });
        Ok(ModelReply { usage, ..ModelReply::text("return agent:delegate('x'):work().error_type") })
    });
    let agent = runtime.agent("a", options_of(r#"{"max_delegation_depth": 2}"#)).unwrap();
    let outcome = call(&agent, "work", &[]);
    assert!(outcome.ok(), "{:?}", outcome.error());
    let records = runtime.calls();
    assert!(records.iter().all(|record| record.metadata.tokens <= 1 << 41), "{:?}", outcome.metadata);
    let line = records.last().unwrap().to_map();
    assert!(line.values().all(|value| value.as_int().is_none_or(|number| number >= 0)), "{line:?}");
}

#[test]
fn a_forked_child_can_use_an_agent_whose_call_was_under_way() {
    let (ready, started) = std::sync::mpsc::channel();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let runtime = runtime_with(move |request| {
        if &*request.method == "slow" {
            ready.send(()).unwrap();
            let _ = held.lock().unwrap().recv();
        }
        Ok(ModelReply::text("return 1"))
    });
    let agent = runtime.agent("a", options_of(r#"{"call_timeout_seconds": 5}"#)).unwrap();
    let parents = agent.clone();
    let slow = std::thread::spawn(move || call(&parents, "slow", &[]));
    started.recv().unwrap();
    // What a child finds: the parent's call is under way, and its thread is not here.
    cadenza_core::fork::after_fork_in_child();
    assert!(call(&agent, "work", &[]).ok());
    release.send(()).unwrap();
    assert!(slow.join().unwrap().ok());
}

#[test]
fn a_secret_by_name_reaches_the_program_and_no_prompt() {
    let (prompts, seen) = std::sync::mpsc::channel();
    let runtime = runtime_with(move |request| {
        prompts.send(request.user_prompt.to_string()).unwrap();
        Ok(ModelReply::text("return kwargs.password .. args[1].token .. context.api_key"))
    });
    let agent = runtime.agent("a", options_of(r#"{"reuse": "off"}"#)).unwrap();
    agent.set("api_key", "hush-3".into()).unwrap();
    let kwargs = Map::from([("password".to_owned(), "hush-1".into())]);
    let token = Value::Map(Map::from([("token".to_owned(), "hush-2".into())]));
    for _ in 0..2 {
        let outcome = agent.call("login", vec![token.clone()], kwargs.clone()).unwrap();
        assert_eq!(outcome.value(), &"hush-1hush-2hush-3".into());
    }
    let prompts: Vec<String> = seen.try_iter().collect();
    let named = |prompt: &str, name: &str| prompt.contains(&format!(r#""{name}":"***""#));
    assert!(prompts.iter().all(|prompt| ["password", "token", "api_key"].iter().all(|name| named(prompt, name))));
    assert!(!prompts[0].contains("hush"), "{prompts:?}");
}

#[test]
fn ac_7_7_a_failing_provider_is_asked_again_within_the_attempts() {
    for (attempts, expected) in [(1, None), (2, Some(2))] {
        let requests = Arc::new(AtomicU32::new(0));
        let counter = requests.clone();
        let runtime = runtime_with(move |_| match counter.fetch_add(1, Ordering::SeqCst) {
            0 => Err(ProviderError::new(ProviderErrorClass::Network, "broken pipe")),
            _ => Ok(ModelReply::text("return 42")),
        });
        let options = format!(r#"{{"max_generation_attempts": {attempts}}}"#);
        let outcome = call(&runtime.agent("a", options_of(&options)).unwrap(), "work", &[]);
        match expected {
            Some(attempts) => assert_eq!(outcome.metadata.unwrap().attempts, attempts),
            None => assert_eq!(error_type(&outcome), ErrorType::Provider),
        }
        assert_eq!(requests.load(Ordering::SeqCst), attempts);
    }
}

#[test]
fn ac_9_a_provider_that_panics_is_a_provider_failure() {
    let agent = runtime_with(|_| panic!("no")).agent("a", Options::default()).unwrap();
    assert_eq!(error_type(&call(&agent, "work", &[])), ErrorType::Provider);
    assert_eq!(agent.history()[0].attempt_failures.len(), 2, "and is asked again within the attempts");
}

#[test]
fn ac_14_an_endless_program_times_out_within_its_limit() {
    for language in Language::ALL {
        let program = match language {
            Language::Lua => "while true do end",
            Language::Rhai => "loop {}",
        };
        let runtime = runtime_with(move |_| Ok(ModelReply::text(program)));
        let options = format!(r#"{{"program_timeout_seconds": 0.2, "language": "{language}"}}"#);
        let agent = runtime.agent("a", options_of(&options)).unwrap();
        let began = Instant::now();
        assert_eq!(error_type(&call(&agent, "work", &[])), ErrorType::Timeout);
        assert!(began.elapsed() < Duration::from_secs(20), "bounded");
    }
}

#[test]
fn interrupting_ends_a_running_program_and_is_recorded() {
    let (agent, _) = scripted(&["while true do end"]);
    let cancel = CancelToken::default();
    let trigger = cancel.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        trigger.cancel();
    });
    let outcome = agent.call_with("work", Vec::new(), Map::new(), &cancel).unwrap();
    assert_eq!(error_type(&outcome), ErrorType::Interrupted);
    assert_eq!(agent.history()[0].metadata.agent_outcome, AgentOutcome::Interrupted);
}

#[test]
fn a_call_that_is_cancelled_before_it_begins_asks_no_model_and_does_not_fall_back() {
    let fallback = r#"{"failure_policy": {"on_error": "fallback", "fallback_role": "careful"}}"#;
    let (agent, requests) = scripted_with(&["return 1"], fallback);
    let cancel = CancelToken::default();
    cancel.cancel();
    let outcome = agent.call_with("work", Vec::new(), Map::new(), &cancel).unwrap();
    assert_eq!(error_type(&outcome), ErrorType::Interrupted);
    assert_eq!((requests.load(Ordering::SeqCst), agent.runtime().calls().len()), (0, 1));
}

#[test]
fn interrupting_a_kept_program_does_not_count_against_it() {
    let (agent, _) = scripted(&["while context.slow do end; return 1"]);
    call(&agent, "work", &[]);
    agent.set("slow", true.into()).unwrap();
    for _ in 0..3 {
        let cancel = CancelToken::default();
        let trigger = cancel.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            trigger.cancel();
        });
        let outcome = agent.call_with("work", Vec::new(), Map::new(), &cancel).unwrap();
        assert_eq!(error_type(&outcome), ErrorType::Interrupted);
    }
    agent.set("slow", false.into()).unwrap();
    assert_eq!(source(&call(&agent, "work", &[])), ProgramSource::Reused, "not quarantined");
}

#[test]
fn a_call_that_waits_for_its_turn_ends_with_its_own_deadline() {
    let (agent, _) =
        scripted_with(&["while true do end"], r#"{"call_timeout_seconds": 0.3, "program_timeout_seconds": 10}"#);
    let began = Instant::now();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(|| call(&agent, "work", &[]))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(outcomes.iter().all(|outcome| error_type(outcome) == ErrorType::Timeout));
    assert!(began.elapsed() < Duration::from_secs(20), "bounded");
}

#[test]
fn a_delegates_own_call_timeout_ends_its_call_and_the_parent_continues() {
    let runtime = runtime_with(|request| {
        Ok(ModelReply::text(match &*request.role {
            "slow" => "while true do end",
            _ => "return agent:tool('slow'):work().error_type",
        }))
    });
    let parent = runtime.agent("boss", options_of(r#"{"program_timeout_seconds": 10}"#)).unwrap();
    parent.delegate("slow", options_of(r#"{"call_timeout_seconds": 0.3}"#)).unwrap();
    let began = Instant::now();
    assert_eq!(call(&parent, "work", &[]).value(), &"timeout".into());
    assert!(began.elapsed() < Duration::from_secs(9), "bounded by the delegate's timeout, not by the program's");
}

#[test]
fn tools_are_validated_and_their_errors_are_catchable() {
    let schema =
        Value::from_json(r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#).unwrap();
    let double = Tool::new("double", "Doubles n.", schema, |arguments, _| match arguments["n"].as_int() {
        Some(13) => Err("unlucky".into()),
        number => Ok(Value::Int(number.unwrap_or_default() * 2)),
    });
    let runtime = runtime_with(|_| {
        Ok(ModelReply::text(
            "local ok, err = pcall(function() return tools.double{n = 13} end)\nlocal bad = pcall(function() return tools.double{} end)\nreturn {tools.double{n = 4}, ok, tostring(err), bad}",
        ))
    });
    let options = Options { tools: Some(vec![Arc::new(double.unwrap())]), ..Options::default() };
    let agent = runtime.agent("a", options).unwrap();
    let outcome = call(&agent, "work", &[]);
    let list = outcome.value().as_list().unwrap_or_else(|| panic!("{:?}", outcome.error()));
    assert_eq!((&list[0], &list[1], &list[3]), (&8.into(), &false.into(), &false.into()));
    assert!(list[2].as_str().unwrap().contains("unlucky"));
}

#[test]
fn history_is_bounded_and_large_values_are_reached_by_reference() {
    let (agent, _) = scripted(&[
        "return string.rep('x', 2000)",
        "local h = history[#history]; return {n = #history, inline = h.value ~= nil, size = #content(h.value_ref)}",
    ]);
    for _ in 0..20 {
        call(&agent, "big", &[]);
    }
    let outcome = call(&agent, "look", &[]);
    assert_eq!(
        outcome.value(),
        &Value::from_json(r#"{"n":16,"inline":false,"size":2000}"#).unwrap(),
        "{:?}",
        outcome.error()
    );
}

#[test]
fn ec_rp1_every_ended_call_verifies_and_replays_without_the_model() {
    let (agent, _) = scripted_with(&["return 1", "error('x')", "not a program (", "return 2"], r#"{"reuse": "off"}"#);
    for _ in 0..3 {
        call(&agent, "work", &[]);
    }
    for record in agent.runtime().calls() {
        let verified = agent.runtime().verify(record.call_id()).unwrap();
        assert_eq!(verified.head, record.metadata.head());
        let ended = replay_record(&record).unwrap();
        assert_eq!((ended.agent_outcome, ended.reason), (record.metadata.agent_outcome, record.metadata.reason));
    }
}

#[test]
fn ac_18_a_failing_log_does_not_break_the_call_and_is_counted() {
    let (agent, _) = scripted(&["return 1"]);
    let log = Arc::new(BackgroundLog::to_file("/proc/none/calls.jsonl".as_ref()));
    let options = Options { log: Some(LogOption::Sink(log.clone())), ..Options::default() };
    let agent = agent.runtime().agent("a", options).unwrap();
    assert!(call(&agent, "work", &[]).ok());
    log.flush();
    assert_eq!(log.dropped(), 1);
}

#[test]
fn calls_of_one_agent_are_serialised_and_different_agents_run_in_parallel() {
    let (agent, _) = scripted(&["context.n = (context.n or 0) + 1; return context.n"]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..25).for_each(|_| assert!(call(&agent, "tick", &[]).ok())));
        }
    });
    assert_eq!(agent.runtime_context().get("n"), Some(200.into()));
}

#[test]
fn a_call_is_a_future_that_any_executor_can_poll() {
    let (agent, _) = scripted(&["return 7"]);
    let outcome = wait::block_on(
        agent.call_async("work", Vec::new(), Map::new(), CancelToken::default()),
        &CancelToken::default(),
    );
    assert_eq!(outcome.unwrap().value(), &7.into());
}

#[test]
fn children_share_what_the_calls_around_them_left_of_the_tokens() {
    let requests = Arc::new(AtomicU32::new(0));
    let counter = requests.clone();
    let runtime = runtime_with(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        let usage = Some(Usage { input: 250, output: 250, ..Usage::default() });
        Ok(ModelReply { usage, ..ModelReply::text("return agent:delegate('x'):work()") })
    });
    let agent = runtime.agent("boss", options_of(r#"{"max_tokens": 600, "execution_repairs": 0}"#)).unwrap();
    assert_eq!(error_type(&call(&agent, "work", &[])), ErrorType::BudgetExceeded);
    assert_eq!(requests.load(Ordering::SeqCst), 2, "the second request of 500 tokens ends the flow of 600");
}

#[test]
fn max_tokens_bounds_the_whole_flow() {
    let (agent, _) = scripted_with(&["return agent:delegate('x'):work().error_type"], r#"{"max_tokens": 600}"#);
    assert_eq!(error_type(&call(&agent, "work", &[])), ErrorType::BudgetExceeded);
}
