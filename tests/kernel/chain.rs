//! Canonical form, golden vectors, the hash chain and what finds its damage (execution-clauses 5.8 EC-H, section 7).

use std::sync::Arc;

use cadenza_core::canonical;
use cadenza_core::contract::{CompletionMode, ContractDraft, Millis, ToolPolicy};
use cadenza_core::ids::Digest;
use cadenza_core::kernel::script::Run;
use cadenza_core::kernel::transcript::{Chain, Entry, Event, Header, State, Transcript};
use cadenza_core::kernel::{
    CallRef, Component, Divergence, ReplayError, StoredEntry, StoredRun, ToolEnvelope, ToolRecord, compare, keyed_seal,
    replay, verify,
};
use cadenza_core::value::{Map, Value};
use proptest::prelude::*;

use crate::trace::runs;

/// The contract of section 7.
fn golden_draft() -> ContractDraft {
    ContractDraft {
        allowed_tools: Some(vec!["execute_program".into()]),
        completion_mode: CompletionMode::OnRequiredToolOk,
        max_inferences: 2,
        ..ContractDraft::new(ToolPolicy::Required, "a1", "stub")
    }
}

#[test]
fn golden_canonical_form_and_hashes() {
    let value = Value::from_json(r#"{"b":1,"a":"é\n","z":null,"l":[true,false]}"#).unwrap();
    assert_eq!(canonical::text(&value), "{\"a\":\"é\\n\",\"b\":1,\"l\":[true,false],\"z\":null}");
    assert_eq!(canonical::hash(&value).to_hex(), "679f23be4897ae49c99153ed8df91c5b74f0e5c9b633c80c256c25f90bfa41c7");
    assert_eq!(canonical::hash(&Value::Null), canonical::HASH_OF_NULL);
    assert_eq!(canonical::HASH_OF_NULL.to_hex(), "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b");
}

#[test]
fn golden_contract_preimage_and_hash() {
    let contract = golden_draft().seal();
    assert_eq!(
        contract.preimage(),
        r#"["contract/1",{"adapter_version":"a1","allowed_tools":["execute_program"],"completion_mode":"on_required_tool_ok","context_budget":{"context_window":8192,"force_synthesis_at_permille":850,"minimum_loop_margin":256,"reserved_synthesis":256,"reserved_system":512},"contract_format":"1","cycle_exceptions":[],"cycle_forbid":[],"grammar_profile":null,"grammar_sha256":null,"logits_mask_sha256":null,"max_format_retries":1,"max_inferences":2,"max_semantic_retries":0,"max_tokens_consumed":null,"model_profile_id":"stub","no_progress_window":3,"parent_contract_hash":null,"speculative_exec":false,"step_timeout_ms":30000,"strict_mode":false,"token_gate":false,"tool_output_budget":{"max_bytes_per_call":32768,"summarizer_model":null,"truncation_marker":"[TRUNCATED]"},"tool_policy":"required","total_timeout_ms":300000}]"#
    );
    assert_eq!(contract.contract_hash().to_hex(), "648320378b69885c0a3f684b586512715e742cb2206df8f8486bb7a5ad12198a");
    let three = ContractDraft { max_inferences: 3, ..golden_draft() }.seal();
    assert_eq!(three.contract_hash().to_hex(), "d673303070a6a6750e03f59daab55e95f899177a2831ddb3cbbb405bdd37697e");
    assert_eq!(
        contract.transcript_start().to_hex(),
        "960ba3896ae648c31fe0b43e1f4f6d8ba928ea06519663bc6aab92c8acf529a9"
    );
}

#[test]
fn golden_chain() {
    let header = Header {
        contract_hash: golden_draft().seal().contract_hash(),
        adapter_version: "a1".into(),
        model_profile_id: "stub".into(),
        model_fingerprint: "fp".into(),
    };
    let mut chain = Chain::new(&header);
    let entry = |seq, step, state, event| Entry { seq, step, state, event, at: Millis(0) };
    let moved = |from, to| Event::Transition { from, to, origin: None };

    let first = chain.push(&entry(1, 0, State::Precheck, moved(State::Init, State::Precheck)));
    assert_eq!(first.action.to_hex(), "5fca91ac856b532ce88fc4001a2761e4b25a44338cee633b70b6e3c689b1f83a");
    assert_eq!(first.chain.to_hex(), "b252f40fd13482d47f08f69a5a8346c8502a6c17566de6bcf61e5c5390e20c5d");

    let second = chain.push(&entry(2, 1, State::Infer, moved(State::Precheck, State::Infer)));
    assert_eq!(second.action.to_hex(), "32e5c3d8ba17c56596f275d24e4fe12d57e630a791a7b14ddca1a54c60c81780");
    assert_eq!(second.chain.to_hex(), "bb27e7285f691976ba1c13ab97011e7dad321952fc3574900be8c3b456cc711c");

    let tool = Event::Tool(Box::new(ToolRecord {
        call: CallRef { step: 1, index: 0 },
        name: "execute_program".into(),
        arguments: Arc::new(Map::from([("program".into(), "1+1".into())])),
        result: Ok(ToolEnvelope::Ok(Arc::new(Value::Int(2)))),
        observation: None,
        child_tokens: Default::default(),
    }));
    let third = chain.push(&entry(3, 1, State::Execute, tool));
    assert_eq!(third.action.to_hex(), "419521dc148955a65ba6855e0051783742100cd56c19cd14fad7b673a3fa71a0");
    assert_eq!(third.result.to_hex(), "9188261cf35aad91386e023ce1eb6fe7acfe39f479e4f01b3109440cf728e6fa");
    assert_eq!(third.chain.to_hex(), "e21096e94769998595294d6bc2cd68c80ac6055ea10b229ed982c12f621f8e37");
}

#[test]
fn ec_h1_a_real_run_begins_with_the_golden_entry() {
    let run = runs("V42").remove(0);
    let header = Header { model_fingerprint: "fp".into(), ..run.transcript.header().clone() };
    let mut chain = Chain::new(&header);
    let first = chain.push(&run.transcript.entries()[0]);
    assert_eq!(first.action.to_hex(), "5fca91ac856b532ce88fc4001a2761e4b25a44338cee633b70b6e3c689b1f83a");
}

#[test]
fn canonical_form_marks_what_json_cannot_hold() {
    let check = |value: Value, text: &str| {
        assert_eq!(canonical::text(&value), text);
        assert_eq!(canonical::length(&value), text.len() as u64);
        assert_eq!(canonical::decode(Value::from_json(text).unwrap()).to_json(), value.to_json());
    };
    check(Value::Float(1.5), r#"{"$float":"1.5"}"#);
    check(Value::Float(-0.0), r#"{"$float":"-0.0"}"#);
    check(Value::Float(f64::NAN), r#"{"$float":"NaN"}"#);
    check(Value::Float(f64::NEG_INFINITY), r#"{"$float":"-Infinity"}"#);
    check(Value::Int((1 << 53) - 1), "9007199254740991");
    check(Value::Int(1 << 53), r#"{"$int":"9007199254740992"}"#);
    check(Value::Int(i64::MIN), r#"{"$int":"-9223372036854775808"}"#);
    // Data that looks like a marker stays data.
    check(Map::from([("$float".into(), "1.5".into())]).into(), r#"{"$map":{"$float":"1.5"}}"#);
    check(Map::from([("$map".into(), Map::new().into())]).into(), r#"{"$map":{"$map":{}}}"#);
    check(Map::from([("$int".into(), 1.into()), ("x".into(), 2.into())]).into(), r#"{"$int":1,"x":2}"#);
    check("tab\t quote\" back\\ bell\u{7} é".into(), "\"tab\\t quote\\\" back\\\\ bell\\u0007 é\"");
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<f64>().prop_map(Value::Float),
        ".{0,8}".prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let key = prop_oneof![Just("$float".to_owned()), Just("$int".to_owned()), Just("$map".to_owned()), ".{0,4}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            prop::collection::btree_map(key, inner, 0..4).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Nothing is lost, so different values have different texts.
    #[test]
    fn canonical_form_reads_back(value in any_value()) {
        let text = canonical::text(&value);
        let back = canonical::decode(Value::from_json(&text).unwrap());
        prop_assert_eq!(&canonical::text(&back), &text);
        prop_assert_eq!(back.to_json(), value.to_json());
        prop_assert_eq!(canonical::hash(&value), Digest::of_bytes(text.as_bytes()));
        prop_assert_eq!(canonical::length(&value), text.len() as u64);
    }
}

/// A run with calls, results and retries.
fn long_run() -> Run {
    runs("EC-R2").remove(0)
}

fn check(run: &Run, entries: &[StoredEntry]) -> Result<(), Divergence> {
    verify(&run.contract, entries, run.transcript.head(), run.transcript.len())
}

fn broken(seq: usize, component: Component) -> Result<(), Divergence> {
    Err(Divergence { seq: seq as u32, component })
}

#[test]
fn ec_h1_the_formula_recomputes_every_entry() {
    let run = long_run();
    let mut previous = run.contract.transcript_start();
    for entry in &run.stored {
        let inputs: Vec<Value> = [
            previous.to_hex(),
            entry.contract_hash.to_hex(),
            entry.state.to_string(),
            canonical::hash(&entry.action).to_hex(),
            canonical::hash(&entry.result).to_hex(),
            entry.adapter_version.to_string(),
            entry.model_profile_id.to_string(),
            entry.model_fingerprint.to_string(),
        ]
        .map(Value::from)
        .into();
        previous = canonical::hash(&Value::List(inputs));
        assert_eq!(previous, entry.hash);
    }
    assert_eq!(previous, run.transcript.head());
}

#[test]
fn ec_h2_an_edit_is_found_at_its_place() {
    type Edit = fn(&mut StoredEntry);
    let edits: [(Component, Edit); 8] = [
        (Component::State, |entry| entry.state = "EXECUTE!".into()),
        (Component::Action, |entry| {
            if let Value::Map(map) = &mut entry.action {
                map.insert("extra".into(), 1.into());
            }
        }),
        (Component::Result, |entry| entry.result = "other".into()),
        (Component::Adapter, |entry| entry.adapter_version = "a9".into()),
        (Component::Profile, |entry| entry.model_profile_id = "other".into()),
        (Component::Fingerprint, |entry| entry.model_fingerprint = "other".into()),
        (Component::Contract, |entry| entry.contract_hash = Digest([1; 32])),
        (Component::Previous, |entry| entry.previous = Digest([1; 32])),
    ];
    let run = long_run();
    for (component, edit) in edits {
        for index in 0..run.stored.len() {
            let mut entries = run.stored.clone();
            edit(&mut entries[index]);
            assert_eq!(check(&run, &entries), broken(index + 1, component), "{component} at {}", index + 1);
        }
    }
}

#[test]
fn ec_h3_missing_swapped_and_doubled_entries_are_found_at_their_place() {
    let run = long_run();
    let changed = |change: &dyn Fn(&mut Vec<StoredEntry>)| {
        let mut entries = run.stored.clone();
        change(&mut entries);
        check(&run, &entries)
    };
    assert_eq!(changed(&|entries| drop(entries.remove(0))), broken(1, Component::Previous));
    assert_eq!(changed(&|entries| drop(entries.remove(5))), broken(6, Component::Previous));
    assert_eq!(changed(&|entries| entries.swap(3, 4)), broken(4, Component::Previous));
    assert_eq!(changed(&|entries| entries.insert(4, entries[7].clone())), broken(5, Component::Previous));
    assert_eq!(changed(&|entries| entries.insert(4, entries[3].clone())), broken(5, Component::Previous));
}

#[test]
fn ec_h4_a_missing_tail_is_found_by_head_and_length() {
    let run = long_run();
    let length = run.stored.len();
    for kept in 0..length {
        assert_eq!(check(&run, &run.stored[..kept]), broken(kept + 1, Component::Length));
    }
    let head = run.stored[length - 2].hash;
    let shortened = verify(&run.contract, &run.stored[..length - 1], head, length - 1);
    assert_eq!(shortened, Ok(()), "a summary that was rewritten too can only be caught by its seal (EC-H7)");
}

#[test]
fn ec_h5_renumbering_is_found() {
    let run = long_run();
    for field in ["seq", "step"] {
        let mut entries = run.stored.clone();
        if let Value::Map(map) = &mut entries[6].action {
            map.insert(field.into(), 99.into());
        }
        assert_eq!(check(&run, &entries), broken(7, Component::Action), "{field}");
    }
}

#[test]
fn ec_h6_times_are_not_part_of_the_chain() {
    let run = long_run();
    let mut entries = run.stored.clone();
    entries.iter_mut().for_each(|entry| entry.at = Millis(entry.at.0 + 12_345));
    assert_eq!(check(&run, &entries), Ok(()));
}

#[test]
fn ec_h7_a_full_rewrite_differs_from_the_summary() {
    let run = long_run();
    let mut entries = run.stored.clone();
    if let Value::Map(map) = &mut entries[6].result {
        map.insert("note".into(), "forged".into());
    } else {
        entries[6].result = "forged".into();
    }
    // The attacker recomputes everything behind the forgery.
    let mut previous = run.contract.transcript_start();
    for entry in &mut entries {
        entry.previous = previous;
        entry.action_hash = canonical::hash(&entry.action);
        entry.result_hash = canonical::hash(&entry.result);
        let inputs: [Value; 8] = [
            previous.to_hex().into(),
            entry.contract_hash.to_hex().into(),
            (&*entry.state).into(),
            entry.action_hash.to_hex().into(),
            entry.result_hash.to_hex().into(),
            (&*entry.adapter_version).into(),
            (&*entry.model_profile_id).into(),
            (&*entry.model_fingerprint).into(),
        ];
        entry.hash = canonical::hash(&Value::List(inputs.into()));
        previous = entry.hash;
    }
    assert_eq!(check(&run, &entries), broken(entries.len(), Component::Head));
    // And whoever rewrites the summary as well lacks the key of its seal.
    let seal = keyed_seal(b"key", run.transcript.head(), run.transcript.len());
    assert_ne!(seal, keyed_seal(b"key", previous, entries.len()));
    assert_ne!(seal, keyed_seal(b"guess", run.transcript.head(), run.transcript.len()));
}

#[test]
fn ec_h8_another_fingerprint_is_attributed_to_the_fingerprint() {
    let run = long_run();
    let mut other = Transcript::new(Header { model_fingerprint: "other".into(), ..run.transcript.header().clone() });
    other.extend(run.transcript.entries().to_vec());
    let stored = other.to_stored();
    assert!(run.stored.iter().zip(&stored).all(|(one, two)| one.hash != two.hash && one.state == two.state));
    assert_eq!(compare(&run.stored, &stored), Some(Divergence { seq: 1, component: Component::Fingerprint }));
}

#[test]
fn ec_h9_an_entry_of_another_run_does_not_fit() {
    let run = long_run();
    let other = runs("EC-S1").remove(0);
    let mut entries = run.stored.clone();
    entries[4] = other.stored[4].clone();
    assert!(matches!(
        check(&run, &entries),
        Err(Divergence { seq: 5, component: Component::Previous | Component::Contract })
    ));
}

#[test]
fn ec_rp3_a_changed_tool_result_is_found_and_named() {
    let run = runs("EC-S11").remove(0);
    let index = run.stored.iter().position(|entry| entry.kind() == "tool" && entry.field("name") == Some(&"u".into()));
    let index = index.unwrap();
    let mut entries = run.stored.clone();
    entries[index].result = Value::from_json(r#"{"status":"ok","value":"forged"}"#).unwrap();
    match replay(run.contract.clone(), &run.environment, &entries) {
        Err(ReplayError::Diverges(found)) => {
            assert_eq!(found, Divergence { seq: index as u32 + 1, component: Component::Result });
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn ec_rp4_clocks_are_data() {
    for mark in ["EC-T1.2", "EC-T1.3", "EC-T1.4", "EC-K6"] {
        for run in runs(mark) {
            // Replay has no clock: every input is fed at time zero.
            let replayed = replay(run.contract.clone(), &run.environment, &run.stored).unwrap();
            assert_eq!(replayed.ended.unwrap().reason, run.ended.reason, "{mark}");
        }
    }
}

#[test]
fn ec_rp5_another_adapter_version_is_named() {
    let run = long_run();
    let mut environment = (*run.environment).clone();
    environment.adapter_version = "a2".into();
    let error = replay(run.contract.clone(), &environment, &run.stored).unwrap_err();
    assert!(matches!(error, ReplayError::Diverges(Divergence { seq: 1, component: Component::Adapter })), "{error}");
}

#[test]
fn ec_rp1_a_killed_run_replays_up_to_its_last_entry() {
    let run = long_run();
    for kept in 1..run.stored.len() {
        let replayed = replay(run.contract.clone(), &run.environment, &run.stored[..kept]);
        assert!(replayed.is_ok(), "{kept} entries: {replayed:?}");
    }
}

#[test]
fn stored_json_is_the_same_with_and_without_the_detour() {
    for run in [long_run(), runs("EC-K5").remove(0), runs("EC-IF2").remove(0)] {
        let mut chain = Chain::new(run.transcript.header());
        for (entry, stored) in run.transcript.entries().iter().zip(&run.stored) {
            let mut direct = String::new();
            chain.store_json(entry, &mut direct);
            assert_eq!(direct, stored.to_json());
        }
    }
}

#[test]
fn ec_rp1_ec_rp2_a_run_read_back_from_its_json_verifies_and_replays() {
    for block in crate::trace::all() {
        let run = block.run().unwrap();
        let text = StoredRun::of(run.contract.clone(), &run.transcript).to_json();
        let back = StoredRun::from_json(&text).unwrap();
        assert_eq!(back.to_json(), text, "{}", block.id);
        assert_eq!(back.verify(), Ok(()), "{}", block.id);
        let replayed = back.replay(&run.environment).unwrap();
        assert_eq!(replayed.head, run.transcript.head(), "{}", block.id);
    }
}

#[test]
fn ec_rp6_policy_that_evolved_since_does_not_touch_an_old_run() {
    let run = long_run();
    let mut environment = (*run.environment).clone();
    environment.policy_hash = Some(Digest([9; 32]));
    environment.snapshot_hash = Some(Digest([8; 32]));
    environment.refusal = Some("depth 9 of 8".into());
    let replayed = replay(run.contract.clone(), &environment, &run.stored).unwrap();
    assert_eq!(replayed.head, run.transcript.head());
}

#[test]
fn ec_ie2_kc_s1_what_is_in_stays_byte_for_byte() {
    let run = long_run();
    let whole: Vec<String> = run.stored.iter().map(StoredEntry::to_json).collect();
    let mut growing = Transcript::new(run.transcript.header().clone());
    for entry in run.transcript.entries() {
        growing.extend(vec![entry.clone()]);
        let prefix: Vec<String> = growing.to_stored().iter().map(StoredEntry::to_json).collect();
        assert_eq!(prefix, whole[..growing.len()]);
        assert_eq!(growing.head(), run.stored[growing.len() - 1].hash, "the head follows every append");
    }
}
