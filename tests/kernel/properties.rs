//! Random scripts under random contracts: what holds always (EC-FR1, EC-FR2, EC-S5, EC-S7, EC-X11).
//!
//! `Scenario::run` already checks the invariants of every run and replays it; here the scripts are random.

use std::sync::Arc;

use cadenza_core::contract::Millis;
use cadenza_core::kernel::script::{Said, Scenario};
use cadenza_core::kernel::transcript::Event;
use cadenza_core::kernel::{Command, Kernel, Predicate, State};
use cadenza_core::outcome::{AgentOutcome, Reason};
use cadenza_core::value::{Map, Value};
use proptest::prelude::*;

fn any_said() -> impl Strategy<Value = Said> {
    let tool = prop_oneof![
        6 => prop_oneof![Just("t"), Just("u"), Just("t=1"), Just("t=2")],
        1 => prop_oneof![
            Just("t!"), Just("t#"), Just("t~"), Just("t^"), Just("t!fuel"), Just("t!cpu_time"), Just("t!result"),
            Just("nosuch"), Just("v{\"n\":1}"), Just("u+300"), Just("done(a)"), Just("done(b)"),
        ],
    ];
    let batch = prop::collection::vec(tool, 1..4).prop_map(|tools| tools.join(","));
    let word = prop_oneof![
        5 => batch.clone().prop_map(|list| format!("C({list})")),
        1 => batch.prop_map(|list| format!("TC({list})")),
        2 => Just("T".to_owned()),
        3 => prop_oneof![Just("E"), Just("BAD"), Just("REC"), Just("X"), Just("SLOW"), Just("CANCEL")].prop_map(String::from),
    ];
    let rare = || prop_oneof![9 => Just(false), 1 => Just(true)];
    let elapsed = || prop_oneof![8 => Just(0_u64), 1 => 0..200_u64, 1 => Just(100_u64)];
    (word, prop::option::of(0..30_u64), elapsed(), elapsed(), prop::option::of(0..40_000_u64), rare(), rare(), rare())
        .prop_map(|(word, tokens, elapsed_ms, tool_elapsed_ms, prompt_bytes, cancelled, cancelled_in_tool, swap)| {
            Said {
                tokens,
                elapsed_ms,
                tool_elapsed_ms,
                prompt_bytes,
                cancelled,
                cancelled_in_tool,
                swap_contract: swap,
                ..word.parse().unwrap()
            }
        })
}

fn any_contract() -> impl Strategy<Value = Map> {
    let policy = prop_oneof![Just("required"), Just("optional"), Just("forbidden")];
    let mode = prop_oneof![Just("on_no_call"), Just("on_done_tool"), Just("on_required_tool_ok")];
    let numbers = (0..6_i64, -1..5_i64, 0..3_i64, prop::option::of(1..100_i64), 2..4_i64);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (policy, mode, numbers, flags).prop_map(|(policy, mode, numbers, (strict, gate, cycles, scope))| {
        let (inferences, retries, nudges, tokens, window) = numbers;
        let mut map = Map::from([
            ("tool_policy".into(), policy.into()),
            ("completion_mode".into(), mode.into()),
            ("max_inferences".into(), inferences.into()),
            ("max_format_retries".into(), retries.into()),
            ("max_semantic_retries".into(), nudges.into()),
            ("max_tokens_consumed".into(), tokens.into()),
            ("no_progress_window".into(), window.into()),
            ("strict_mode".into(), strict.into()),
            ("token_gate".into(), gate.into()),
            ("step_timeout_ms".into(), 100.into()),
            ("total_timeout_ms".into(), 400.into()),
        ]);
        if cycles {
            map.insert("cycle_forbid".into(), Value::from_json(r#"[["t","t"],["t","u"]]"#).unwrap());
            map.insert("cycle_exceptions".into(), Value::from_json(r#"[["t","t",2]]"#).unwrap());
        }
        if scope {
            map.insert("allowed_tools".into(), Value::from_json(r#"["t","v"]"#).unwrap());
        }
        map
    })
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let replies = prop::collection::vec(any_said(), 1..8);
    (any_contract(), replies, prop::option::of(any_said()), prop::option::weighted(0.1, 1..9_u32)).prop_map(
        |(contract, replies, kept, store_fails_at)| {
            let mut scenario = Scenario::new("random", contract, replies);
            scenario.kept = kept.filter(|kept| !kept.atom.calls().is_empty());
            scenario.store_fails_at = store_fails_at;
            scenario
        },
    )
}

/// Which predicate may give which class (V26): the classes are disjoint by predicate.
fn may_give(predicate: Predicate, outcome: AgentOutcome, reason: Reason) -> bool {
    use AgentOutcome::*;
    match predicate {
        Predicate::InterruptOrTime => matches!(outcome, Interrupted | FailedTimeout),
        Predicate::Budget => outcome == FailedBudgetExhausted && reason == Reason::MaxTokens,
        Predicate::Violation => outcome == FailedContractViolation,
        Predicate::Protocol => matches!(outcome, FailedProtocolMalformed | FailedProtocolNoTools),
        Predicate::Validation => outcome == FailedValidation,
        Predicate::ContextThreshold => {
            matches!(outcome, CompletedWithTools | CompletedChatOnly | FailedProtocolNoTools | FailedValidation)
        }
        Predicate::Success => matches!(outcome, CompletedWithTools | CompletedChatOnly),
        Predicate::NoProgress => reason == Reason::NoProgress,
        Predicate::Continue => outcome == FailedBudgetExhausted && reason == Reason::MaxInferences,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// EC-FR2, EC-S5, EC-S7, EC-H1, EC-RP1, EC-ID1 inside `run`; EC-X11 here.
    #[test]
    fn ec_fr2_ec_s5_ec_x11_invariants_hold_over_random_scripts(scenario in any_scenario()) {
        let run = scenario.run().map_err(|error| TestCaseError::fail(error.to_string()))?;
        let entries = run.transcript.entries();
        let commits = entries.iter().filter(|entry| matches!(entry.event, Event::Transition { to: State::Commit, .. }));
        let fired: Vec<Predicate> = entries
            .iter()
            .filter_map(|entry| match entry.event {
                Event::Committed { predicate } => Some(predicate),
                _ => None,
            })
            .collect();
        prop_assert_eq!(commits.count(), fired.len(), "exactly one predicate fires per COMMIT");
        if let Some(last) = fired.last() {
            let ended = &run.ended;
            prop_assert!(may_give(*last, ended.agent_outcome, ended.reason), "{:?} gave {:?}", last, ended);
        } else {
            let before_commit = [
                AgentOutcome::FailedPreflight,
                AgentOutcome::Interrupted,
                AgentOutcome::FailedTimeout,
                AgentOutcome::FailedContractViolation,
            ];
            prop_assert!(before_commit.contains(&run.ended.agent_outcome));
        }
        // C2: the attempt number is what the counters say.
        let spent = run.ended.spent;
        let first = run.ended.generation_attempt - spent.format_retries - spent.semantic_retries;
        prop_assert!(first <= 1);
        // V24: what was shown under a closed gate came after the first validation.
        if run.contract.token_gate() && run.contract.tool_policy().as_str() == "required" && !run.texts.is_empty() {
            let opened = run.stored.iter().find(|entry| &*entry.state == "VALIDATE_CALLS").map(|entry| entry.seq());
            prop_assert!(opened.is_some_and(|seq| run.texts.iter().all(|(at, _)| *at > seq)));
        }
    }

    /// EC-FR1: the same state and input give the same state and step.
    #[test]
    fn ec_fr1_steps_are_a_function(scenario in any_scenario()) {
        let (one, two) = (scenario.run(), scenario.run());
        let (one, two) = (one.unwrap(), two.unwrap());
        prop_assert_eq!(one.transcript.head(), two.transcript.head());
        prop_assert_eq!(one.commands, two.commands);
        prop_assert_eq!(one.digests, two.digests);
        prop_assert_eq!(one.ended.message, two.ended.message);
    }

    /// EC-S7: whatever answer comes to whatever question, the machine ends legally.
    #[test]
    fn ec_s7_any_answer_to_any_question_is_defined(
        scenario in any_scenario(),
        inputs in prop::collection::vec(0..8_u8, 1..40),
    ) {
        use cadenza_core::kernel::{Decision, Input, ToolEnvelope};
        use cadenza_core::kernel::transcript::Transcript;
        let contract = Arc::new(scenario.sealed_contract().unwrap());
        let environment = Arc::new((*scenario.run().unwrap().environment).clone());
        let (mut kernel, step) = Kernel::start(contract, environment, Millis(0));
        let mut transcript = Transcript::new(kernel.header());
        transcript.extend(step.entries);
        for input in inputs {
            let input = match input {
                0 => Input::Readiness(Ok(())),
                1 => Input::ProviderFailed { message: "x".into() },
                2 => Input::Reused(Arc::new(Decision { name: "t".into(), arguments: Arc::default() })),
                3 => Input::executed(ToolEnvelope::Ok(Arc::new(Value::Null))),
                4 => Input::executed(ToolEnvelope::Malformed { detail: "x".into() }),
                5 => Input::TimedOut { raw_hash: None },
                6 => Input::Cancelled { raw_hash: None },
                _ => Input::PersistenceFailed { message: "x".into() },
            };
            let step = kernel.step(Millis(0), input);
            transcript.extend(step.entries);
            if let Command::Finish(_) = step.command {
                break;
            }
        }
        let states: Vec<State> = std::iter::once(State::Init).chain(transcript.states()).collect();
        prop_assert!(states.windows(2).all(|pair| pair[0].may_become(pair[1])));
    }
}
