//! What a trace cannot say in one line: requests, stored entries, metrics, the shape of the interface.

use std::sync::Arc;

use cadenza_core::adapter;
use cadenza_core::contract::{ContractDraft, Manifest, Millis, ToolPolicy};
use cadenza_core::ids::Digest;
use cadenza_core::kernel::metrics::{Baseline, RunFacts};
use cadenza_core::kernel::script::{Atom, Run, Said, Scenario};
use cadenza_core::kernel::{
    Command, Decision, Environment, Input, Kernel, Purpose, State, StateDigest, StoredEntry, ToolEnvelope,
};
use cadenza_core::message::MessageRole;
use cadenza_core::outcome::{AgentOutcome, Reason};
use cadenza_core::value::{Map, Value};

use crate::trace::{all, runs};

fn run(contract: &str, replies: &[&str]) -> Run {
    let Value::Map(contract) = Value::from_json(contract).unwrap() else { panic!("a contract is an object") };
    let replies = replies.iter().map(|word| word.parse().unwrap()).collect();
    Scenario::new("test", contract, replies).run().unwrap()
}

#[test]
fn ec_dg4_ec_r5_the_same_script_gives_the_same_head() {
    for block in all() {
        let (one, two) = (block.run().unwrap(), block.run().unwrap());
        assert_eq!(one.transcript.head(), two.transcript.head(), "{}", block.id);
        assert!(one.transcript.states().eq(two.transcript.states()));
    }
}

#[test]
fn ec_r6_the_rejected_reply_is_not_replayed_to_the_model() {
    for run in runs("EC-R2") {
        let retry = &run.requests[1];
        assert!(matches!(retry.ask.purpose, Purpose::Retry { .. }));
        assert!(retry.messages.is_empty(), "{:?}", retry.messages);
    }
}

#[test]
fn ec_s12_kc_a3_the_next_request_holds_one_observation_per_call_in_order() {
    let run = run("{}", &["C(t=1,nosuch,u=2)", "T"]);
    let messages = &run.requests[1].messages;
    assert_eq!(messages[0].role, MessageRole::Assistant);
    let asked: Vec<&str> = messages[0].tool_calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(asked, ["s1.0", "s1.1", "s1.2"]);
    let observed: Vec<(&str, &str)> = messages[1..]
        .iter()
        .map(|message| {
            assert_eq!(message.role, MessageRole::Tool);
            (message.tool_call_id.as_deref().unwrap(), message.content.as_str())
        })
        .collect();
    let unknown = r#"{"error":"there is no tool `nosuch`","status":"error"}"#;
    assert_eq!(observed, [("s1.0", "1"), ("s1.1", unknown), ("s1.2", "2")]);
}

#[test]
fn ec_t4_8_the_synthesis_request_offers_no_tools_and_is_capped() {
    let run = runs("EC-T4.1").remove(0);
    let synthesis = &run.requests[1];
    assert_eq!(synthesis.ask.purpose, Purpose::Synthesis);
    assert!(!synthesis.ask.offer_tools && synthesis.tools.is_empty());
    assert_eq!(synthesis.ask.max_output_tokens, Some(256));
    let normal = &run.requests[0];
    assert!(normal.ask.offer_tools && normal.ask.max_output_tokens.is_none());
    assert_eq!(normal.tools.len(), 5);
}

#[test]
fn ec_gr1_the_request_carries_the_constraint_and_the_contract_only_its_digest() {
    let digest = Digest::of_bytes(b"root ::= x");
    let contract = format!(r#"{{"grammar_profile":"json","grammar_sha256":"{digest}"}}"#);
    let Value::Map(contract) = Value::from_json(&contract).unwrap() else { panic!("a contract is an object") };
    let mut scenario = Scenario::new("EC-GR1", contract, vec!["T".parse().unwrap()]);
    scenario.profile_applies_grammar = true;
    let run = scenario.run().unwrap();
    assert_eq!(run.requests[0].ask.constraints.grammar_sha256, Some(digest));
    assert_eq!(run.requests[0].ask.constraints.grammar_profile.as_deref(), Some("json"));
    assert!(!run.contract.preimage().contains("root"));
}

#[test]
fn ec_if2_text_comes_only_after_the_validation_entry() {
    let run = runs("EC-IF2").remove(0);
    let validated = run.stored.iter().find(|entry| &*entry.state == "VALIDATE_CALLS").unwrap().seq();
    assert!(run.texts.iter().all(|(seq, _)| *seq > validated), "{:?}", run.texts);
    assert!(run.requests[0].ask.hold_text && !run.requests[1].ask.hold_text);
}

#[test]
fn ec_k5_ec_to1_truncation_is_deterministic_and_keeps_characters_whole() {
    let cut = |output: &str| {
        let contract = r#"{"tool_output_budget":{"max_bytes_per_call":32}}"#;
        let Value::Map(contract) = Value::from_json(contract).unwrap() else { panic!("a contract is an object") };
        let call = format!("C(t={})", Value::from(output));
        let run = Scenario::new("EC-TO1", contract, vec![call.parse().unwrap(), "T".parse().unwrap()]).run().unwrap();
        let seen = run.requests[1].messages[1].content.clone();
        let entry = run.stored.iter().find(|entry| entry.kind() == "truncation").unwrap().result.clone();
        (seen, entry)
    };
    let output = "é".repeat(50);
    let (seen, entry) = cut(&output);
    assert_eq!((seen.clone(), entry.clone()), cut(&output));
    // 32 bytes less the marker's 11 are 21: ten characters of two bytes fit.
    assert_eq!(seen, format!("{}[TRUNCATED]", "é".repeat(10)));
    assert!(seen.len() <= 32);
    let field = |name: &str| entry.as_map().unwrap().get(name).cloned().unwrap();
    assert_eq!((field("original_bytes"), field("kept_bytes")), (100.into(), 20.into()));
    assert_eq!(field("sha256"), Digest::of_bytes(output.as_bytes()).to_hex().into());
}

#[test]
fn ec_s6_terminate_is_final_and_a_second_run_starts_a_new_transcript() {
    let contract = Arc::new(ContractDraft::new(ToolPolicy::Optional, adapter::VERSION, "stub").seal());
    let environment = Arc::new(Environment::new(Manifest::default(), "stub", "m"));
    let (mut kernel, _) = Kernel::start(contract.clone(), environment.clone(), Millis(0));
    let step = kernel.step(Millis(0), Input::Readiness(Err("no".into())));
    assert!(matches!(step.command, Command::Finish(_)) && kernel.state() == State::Terminate);
    for input in [Input::Readiness(Ok(())), Input::Cancelled { raw_hash: None }] {
        let after = kernel.step(Millis(9), input);
        assert!(after.entries.is_empty() && matches!(after.command, Command::Finish(_)));
    }
    let (second, step) = Kernel::start(contract, environment, Millis(0));
    assert_eq!((step.entries[0].seq, second.state()), (1, State::Precheck));
}

#[test]
fn ec_s7_an_answer_that_was_not_asked_for_ends_the_run_along_the_legal_way() {
    let start = || {
        let contract = Arc::new(ContractDraft::new(ToolPolicy::Optional, adapter::VERSION, "stub").seal());
        Kernel::start(contract, Arc::new(Environment::new(Manifest::default(), "stub", "m")), Millis(0))
    };
    let wrong =
        [Input::executed(ToolEnvelope::Ok(Arc::new(Value::Null))), Input::ProviderFailed { message: "x".into() }];
    for input in wrong {
        let (mut kernel, _) = start();
        let Command::Finish(ended) = kernel.step(Millis(0), input.clone()).command else { panic!("not ended") };
        assert_eq!((ended.agent_outcome, ended.reason), (AgentOutcome::FailedContractViolation, Reason::IllegalInput));
    }
    let (mut kernel, _) = start();
    kernel.step(Millis(0), Input::Readiness(Ok(())));
    let step = kernel.step(Millis(0), Input::Readiness(Ok(())));
    let Command::Finish(ended) = step.command else { panic!("not ended") };
    assert_eq!(ended.reason, Reason::IllegalInput);
}

#[test]
fn ec_s7_the_transition_table_is_exactly_v25() {
    let legal = [
        ("INIT", "PRECHECK"),
        ("PRECHECK", "INFER"),
        ("PRECHECK", "TERMINATE"),
        ("INFER", "VALIDATE_CALLS"),
        ("INFER", "COMMIT"),
        ("VALIDATE_CALLS", "EXECUTE"),
        ("VALIDATE_CALLS", "COMMIT"),
        ("EXECUTE", "OBSERVE"),
        ("OBSERVE", "COMMIT"),
        ("COMMIT", "INFER"),
        ("COMMIT", "TERMINATE"),
    ];
    for from in State::ALL {
        assert_eq!(State::from_name(from.as_str()), Some(from));
        for to in State::ALL {
            assert_eq!(from.may_become(to), legal.contains(&(from.as_str(), to.as_str())), "{from:?} -> {to:?}");
        }
    }
}

#[test]
fn ec_id2_digests_in_any_order_give_the_same_state() {
    let run = runs("EC-S1").remove(0);
    let last = *run.digests.last().unwrap();
    let mut shuffled = run.digests.clone();
    shuffled.reverse();
    shuffled.swap(0, 2);
    assert_eq!(StateDigest::latest(shuffled), Some(last));
    assert_eq!(StateDigest::fold(&run.stored), last);
    assert_eq!(last.outcome, Some((AgentOutcome::CompletedWithTools, Reason::NoCall)));
    assert_ne!(last.hash(), run.digests[0].hash());
}

#[test]
fn ec_ie1_ec_ia1_every_entry_is_complete_and_canonical() {
    for block in all() {
        let run = block.run().unwrap();
        let transitions = run.stored.iter().filter(|entry| entry.kind() == "transition").count();
        assert_eq!(transitions, run.transcript.states().count());
        for entry in &run.stored {
            assert!(entry.seq() > 0 && !entry.kind().is_empty() && State::from_name(&entry.state).is_some());
            assert_eq!(entry.contract_hash, run.contract.contract_hash());
            assert_eq!(&*entry.adapter_version, adapter::VERSION);
            if let Some(Value::Map(message)) = entry.result_field("message").filter(|_| entry.kind() == "adapter") {
                let keys: Vec<&str> = message.keys().map(String::as_str).collect();
                assert_eq!(keys, ["content", "role", "tool_calls"], "only canonical messages pass the boundary");
                assert_eq!(message.get("role"), Some(&"assistant".into()));
            }
        }
        // V38: the step grows by one with each INFER, and with nothing else.
        let mut step = 0;
        for entry in &run.stored {
            if entry.kind() == "transition" && entry.field("to") == Some(&"INFER".into()) {
                step += 1;
            }
            assert_eq!(entry.step(), step);
        }
    }
}

#[test]
fn kc_s2_ec_id1_every_prefix_folds_to_the_digest_of_that_moment() {
    for block in all() {
        let run = block.run().unwrap();
        for digest in &run.digests {
            let prefix: Vec<StoredEntry> = run.stored[..digest.seq as usize].to_vec();
            assert_eq!(StateDigest::fold(&prefix), *digest, "{}", block.id);
        }
    }
}

#[test]
fn kc_d1_the_same_history_gives_the_same_next_request() {
    let (one, two) = (run("{}", &["C(t,u)", "C(v)", "T"]), run("{}", &["C(t,u)", "C(v)", "T"]));
    for (left, right) in one.requests.iter().zip(&two.requests) {
        assert_eq!(left.messages, right.messages);
        assert_eq!(left.tools, right.tools);
    }
}

#[test]
fn v4_times_never_reach_the_chain() {
    let slow = |elapsed_ms| {
        let said = Said { elapsed_ms, ..Said::of("C(t)".parse().unwrap()) };
        Scenario::new("V4", Map::new(), vec![said, Said::of(Atom::Prose("Done.".into()))]).run().unwrap()
    };
    let (fast, slow) = (slow(0), slow(700));
    assert_eq!(fast.transcript.head(), slow.transcript.head());
    assert_eq!(slow.stored.last().unwrap().at, Millis(700));
}

#[test]
fn v38_a_kept_program_is_the_runs_decision_and_is_recorded() {
    let contract = Arc::new(
        ContractDraft {
            allowed_tools: Some(vec!["execute_program".into()]),
            completion_mode: cadenza_core::contract::CompletionMode::OnRequiredToolOk,
            ..ContractDraft::new(ToolPolicy::Required, adapter::Profile::Program.version(), "program")
        }
        .seal(),
    );
    let manifest = Manifest::new([cadenza_core::contract::ManifestTool::execute_program()]);
    let environment = Arc::new(Environment::new(manifest, "program", "m"));
    let (mut kernel, step) = Kernel::start(contract, environment, Millis(0));
    assert!(matches!(step.command, Command::Probe));
    let arguments = Map::from([("code".into(), "return 1".into()), ("language".into(), "lua".into())]);
    let decision = Decision { name: "execute_program".into(), arguments: Arc::new(arguments) };
    let step = kernel.step(Millis(0), Input::Reused(Arc::new(decision)));
    let Command::Execute(call) = step.command else { panic!("{:?}", step.command) };
    assert_eq!((call.id.to_string().as_str(), &*call.name), ("s1.0", "execute_program"));
    let step = kernel.step(Millis(0), Input::executed(ToolEnvelope::Ok(Arc::new(Value::Int(1)))));
    let Command::Finish(ended) = step.command else { panic!("{:?}", step.command) };
    assert_eq!((ended.reason, ended.spent.inferences, ended.generation_attempt), (Reason::RequiredToolOk, 0, 0));
    assert_eq!(ended.value.as_deref(), Some(&Value::Int(1)));
}

#[test]
fn ec_bm1_baseline_metrics_equal_the_hand_counted_ones() {
    let required = r#"{"tool_policy":"required"}"#;
    let corpus = [
        run(required, &["T"]),                             // no tool, 1 inference
        run(required, &["C(t)", "T"]),                     // 2 inferences
        run(required, &["BAD", "C(t)", "T"]),              // 1 rejection, 3 inferences
        run(r#"{"max_inferences":2}"#, &["C(t)", "C(u)"]), // cap exit, 2 inferences
        Scenario::new("slow", Map::new(), vec![Said { elapsed_ms: 100, ..Said::of("T".parse().unwrap()) }])
            .run()
            .unwrap(), // 100 ms, 1 inference
    ];
    let facts: Vec<RunFacts> = corpus.iter().map(|run| RunFacts::of(&run.contract, &run.stored)).collect();
    let expected = Baseline {
        runs: 5,
        no_tool_permille: 333,
        parse_failure_permille: 111,
        mean_inferences_milli: 1800,
        p95_inferences: 3,
        mean_duration: Millis(20),
        p95_duration: Millis(100),
        cap_exits: 1,
    };
    assert_eq!(Baseline::of(&facts), expected);
    assert_eq!(Baseline::of(&[]), Baseline::default());
}

/// The pure modules, without their tests and comments.
fn sources() -> Vec<(String, String)> {
    let root = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![root.join("adapter.rs"), root.join("canonical.rs")];
    for folder in ["kernel", "contract", "kernel/script"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    let code = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
    };
    files.iter().map(|path| (path.display().to_string(), code(path))).collect()
}

#[test]
fn ec_fr1_kc_g1_no_clock_no_randomness_no_io_and_no_border_in_the_decisions() {
    let forbidden = [
        "std::time",
        "Instant",
        "SystemTime",
        "fastrand",
        "getrandom",
        "rand::",
        "std::fs",
        "std::net",
        "std::env",
        "std::process",
        "std::thread",
        "HashMap",
        "HashSet",
        "crate::provider",
        "crate::program",
        "crate::store",
        "crate::tools",
        "crate::runtime",
        "crate::agent",
        "crate::log",
        "tokio",
        "unsafe",
    ];
    for (path, code) in sources() {
        for word in forbidden {
            assert!(!code.contains(word), "{path} contains `{word}`");
        }
    }
}

#[test]
fn ec_rm1_removed_behaviours_stay_removed() {
    let kernel: Vec<_> = sources().into_iter().filter(|(path, _)| path.contains("kernel")).collect();
    for (path, code) in &kernel {
        // No boolean success: a run ends with a class and a reason.
        assert!(!code.contains("fn success(&self) -> bool") && !code.contains("fn is_success"), "{path}");
    }
    for (path, code) in sources().iter().filter(|(path, _)| path.ends_with("contract/mod.rs")) {
        // No hidden mutation: nothing takes an ExecutionContract by exclusive reference.
        let contract = code.split("impl ExecutionContract").skip(1).collect::<String>();
        assert!(!contract.contains("&mut self"), "{path}");
    }
    // No unbounded retry: a thousand bad replies end after the granted ones (EC-R4), whatever the contract says.
    for retries in 0..=3 {
        let run = run(&format!(r#"{{"max_format_retries":{retries},"max_inferences":1000}}"#), &["BAD"]);
        assert_eq!(run.ended.spent.inferences, retries + 1);
    }
}
