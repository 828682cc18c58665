//! The contract as an object: fields, hash, reading, factory, migration (EC-IB, EC-O, EC-CF, EC-MG).

use std::collections::BTreeSet;
use std::sync::Arc;

use cadenza_core::adapter::Profile;
use cadenza_core::contract::factory::{DynamicCall, Page, RunBounds};
use cadenza_core::contract::migration::{MigrationError, migrate};
use cadenza_core::contract::*;
use cadenza_core::ids::{ContractId, Digest};
use cadenza_core::kernel::script::Scenario;
use cadenza_core::message::GrammarRef;
use cadenza_core::outcome::{AgentOutcome, Reason};
use cadenza_core::value::{Map, Value};
use proptest::prelude::*;

fn draft() -> ContractDraft {
    ContractDraft::new(ToolPolicy::Optional, "a1", "stub")
}

#[test]
fn ec_ib3_every_hashed_field_changes_the_hash() {
    type Flip = fn(&mut ContractDraft);
    let flips: [(&str, Flip); 31] = [
        ("adapter_version", |d| d.adapter_version = "a2".into()),
        ("allowed_tools", |d| d.allowed_tools = Some(Vec::new())),
        ("completion_mode", |d| d.completion_mode = CompletionMode::OnDoneTool),
        ("context_window", |d| d.context_budget.context_window += 1),
        ("force_synthesis_at_permille", |d| d.context_budget.force_synthesis_at_permille += 1),
        ("minimum_loop_margin", |d| d.context_budget.minimum_loop_margin += 1),
        ("reserved_synthesis", |d| d.context_budget.reserved_synthesis += 1),
        ("reserved_system", |d| d.context_budget.reserved_system += 1),
        ("cycle_exceptions", |d| {
            d.cycle_exceptions.push(CycleException { from: "t".into(), to: "t".into(), max_times: 2 });
        }),
        ("cycle_forbid", |d| d.cycle_forbid.push(("t".into(), "t".into()))),
        ("grammar_profile", |d| d.grammar_profile = Some("g".into())),
        ("grammar_sha256", |d| d.grammar_sha256 = Some(Digest([1; 32]))),
        ("logits_mask_sha256", |d| d.logits_mask_sha256 = Some(Digest([1; 32]))),
        ("max_format_retries", |d| d.max_format_retries += 1),
        ("max_inferences", |d| d.max_inferences += 1),
        ("max_semantic_retries", |d| d.max_semantic_retries += 1),
        ("max_tokens_consumed", |d| d.max_tokens_consumed = Some(Tokens(1))),
        ("model_profile_id", |d| d.model_profile_id = "program".into()),
        ("no_progress_window", |d| d.no_progress_window += 1),
        ("parent_contract_hash", |d| d.parent_contract_hash = Some(Digest([1; 32]))),
        ("speculative_exec", |d| d.speculative_exec = true),
        ("step_timeout_ms", |d| d.step_timeout.0 += 1),
        ("strict_mode", |d| d.strict_mode = true),
        ("token_gate", |d| d.token_gate = true),
        ("max_bytes_per_call", |d| d.tool_output_budget.max_bytes_per_call += 1),
        ("summarizer_model", |d| d.tool_output_budget.summarizer_model = Some("s".into())),
        ("truncation_marker", |d| d.tool_output_budget.truncation_marker = "…".into()),
        ("tool_policy", |d| d.tool_policy = ToolPolicy::Required),
        ("total_timeout_ms", |d| d.total_timeout.0 += 1),
        ("one tool", |d| d.allowed_tools = Some(vec!["t".into()])),
        ("two tools", |d| d.allowed_tools = Some(vec!["t".into(), "u".into()])),
    ];
    let mut hashes = BTreeSet::from([draft().seal().contract_hash()]);
    for (field, flip) in flips {
        let mut flipped = draft();
        flip(&mut flipped);
        assert!(hashes.insert(flipped.seal().contract_hash()), "`{field}` is not hashed");
    }
    let stamped = draft().seal_as(ContractId(7), Some(Millis(1)));
    assert_eq!(stamped.contract_hash(), draft().seal().contract_hash(), "id and creation time are not hashed");
    let ruled = ContractDraft { policy_rule: Some("r".into()), ..draft() }.seal();
    assert_eq!(ruled.contract_hash(), draft().seal().contract_hash(), "the factory's rule is not hashed");
}

#[test]
fn v1_sets_are_sorted_and_deduplicated() {
    let of = |tools: &[&str]| {
        let allowed_tools = Some(tools.iter().map(|name| Arc::from(*name)).collect());
        ContractDraft { allowed_tools, ..draft() }.seal().contract_hash()
    };
    assert_eq!(of(&["b", "a", "b"]), of(&["a", "b"]));
    assert_ne!(of(&[]), draft().seal().contract_hash(), "null is not the empty list");
}

#[test]
fn ec_o1_a_full_contract_survives_a_round_trip() {
    let full = ContractDraft {
        parent_contract_hash: Some(Digest([3; 32])),
        allowed_tools: Some(vec!["t".into(), "u".into()]),
        max_tokens_consumed: Some(Tokens(99)),
        grammar_profile: Some("json".into()),
        grammar_sha256: Some(Digest([4; 32])),
        logits_mask_sha256: Some(Digest([5; 32])),
        cycle_forbid: vec![("t".into(), "u".into())],
        cycle_exceptions: vec![CycleException { from: "t".into(), to: "u".into(), max_times: 3 }],
        policy_rule: Some("rule".into()),
        ..draft()
    }
    .seal_as(ContractId(9), Some(Millis(17)));
    let text = full.to_value().to_json();
    let back = ExecutionContract::from_json(&text).unwrap();
    assert_eq!(back.defect(), None);
    assert_eq!(back.to_value(), full.to_value());
    assert_eq!(back.contract_hash(), full.contract_hash());
    assert_eq!(back.recorded_hash(), Some(full.contract_hash()));
    assert_eq!((back.contract_id(), back.created_at()), (Some(ContractId(9)), Some(Millis(17))));
    assert_eq!(back.to_draft(), full.to_draft());
    assert_eq!(back.preimage(), full.preimage());
}

#[test]
fn ec_o1_every_field_has_its_type_and_nullability() {
    let nullable = [
        "allowed_tools",
        "grammar_profile",
        "grammar_sha256",
        "logits_mask_sha256",
        "max_tokens_consumed",
        "parent_contract_hash",
    ];
    let Value::Map(fields) = draft().seal().to_value() else { panic!("a contract is an object") };
    for name in fields.keys() {
        let beside = ["contract_id", "contract_hash", "created_at", "policy_rule", "model_profile_id"];
        if beside.contains(&name.as_str()) {
            continue;
        }
        let read = |value: Option<Value>| {
            let mut fields = fields.clone();
            match value {
                Some(value) => drop(fields.insert(name.clone(), value)),
                None => drop(fields.remove(name)),
            }
            ExecutionContract::from_value(fields.into()).unwrap()
        };
        assert!(read(None).defect().is_some() || nullable.contains(&name.as_str()), "`{name}` may be missing");
        assert_eq!(read(Some(Value::Null)).defect().is_none(), nullable.contains(&name.as_str()), "`{name}`: null");
        assert!(read(Some(Value::Float(0.5))).defect().is_some(), "`{name}` takes a float");
    }
}

#[test]
fn ec_o1_what_is_no_contract_at_all_is_refused_at_once() {
    assert!(matches!(ExecutionContract::from_json("[]"), Err(ContractError::NotAnObject("list"))));
    assert!(matches!(ExecutionContract::from_json("{"), Err(ContractError::Json(_))));
}

#[test]
fn ec_o9_the_outcome_enumeration_is_closed() {
    let names: BTreeSet<&str> = AgentOutcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    let published = [
        "COMPLETED_WITH_TOOLS",
        "COMPLETED_CHAT_ONLY",
        "FAILED_PREFLIGHT",
        "FAILED_PROTOCOL_NO_TOOLS",
        "FAILED_PROTOCOL_MALFORMED",
        "FAILED_VALIDATION",
        "FAILED_BUDGET_EXHAUSTED",
        "FAILED_TIMEOUT",
        "FAILED_CONTRACT_VIOLATION",
        "INTERRUPTED",
    ];
    assert_eq!(names, BTreeSet::from(published));
    let reasons: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(reasons.len(), Reason::ALL.len(), "two reasons share a spelling");
}

// The factory

fn factory() -> ContractFactory {
    let plain = |name: &str| ManifestTool { name: name.into(), arguments: ArgumentCheck::Any, control: None };
    ContractFactory {
        manifest: Arc::new(Manifest::new([ManifestTool::execute_program(), plain("read"), plain("write")])),
        profile: Profile::Program.model_profile(),
        grammar: None,
        strict_mode: false,
        context_window: None,
    }
}

#[test]
fn ec_cf1_same_inputs_same_hash() {
    let call = DynamicCall { attempts: 2, nudges: 1, bounds: RunBounds::default() };
    assert_eq!(factory().dynamic_call(&call).contract_hash(), factory().dynamic_call(&call).contract_hash());
}

#[test]
fn ec_gr1_a_contract_names_a_grammar_only_where_a_call_may_come() {
    let named = GrammarRef { profile: "call-g2".into(), sha256: Digest([7; 32]) };
    let factory = ContractFactory { grammar: Some(named.clone()), ..factory() };
    let bounds = RunBounds::default();
    let call = factory.dynamic_call(&DynamicCall { attempts: 1, nudges: 0, bounds: bounds.clone() });
    for with in [call, factory.goal_run(&[], 3, &bounds), factory.request(Page::Code, "why?", &[], &bounds)] {
        assert_eq!((with.grammar_profile(), with.grammar_sha256()), (Some(&named.profile), Some(named.sha256)));
    }
    for without in [factory.chat(&bounds), factory.request(Page::Chat, "hello", &[], &bounds)] {
        assert_eq!((without.grammar_profile(), without.grammar_sha256()), (None, None));
    }
}

#[test]
fn ec_cf2_defaults_and_v43_mixed_prompts() {
    let tools = ["read".into(), "write".into()];
    let check = |page, text: &str, policy, rule: &str| {
        let contract = factory().request(page, text, &tools, &RunBounds::default());
        assert_eq!(
            (contract.tool_policy(), contract.policy_rule().map(|rule| &**rule)),
            (policy, Some(rule)),
            "{text}"
        );
    };
    check(Page::Chat, "run the tests in this repository", ToolPolicy::Forbidden, "page.chat");
    check(Page::Code, "run the tests in this repository", ToolPolicy::Required, "page.code.tool_intent");
    check(Page::Code, "edit src/main.rs", ToolPolicy::Required, "page.code.tool_intent");
    check(Page::Code, "explain what a monad is", ToolPolicy::Optional, "page.code.explanatory");
    check(Page::Code, "explain main.rs and rename the function", ToolPolicy::Required, "page.code.tool_intent");
    check(Page::Code, "hello", ToolPolicy::Optional, "page.code.default");
    assert_eq!(factory().goal_run(&tools, 50, &RunBounds::default()).tool_policy(), ToolPolicy::Required);
    assert_eq!(factory().chat(&RunBounds::default()).tool_policy(), ToolPolicy::Forbidden);
}

#[test]
fn c2_attempts_and_nudges_become_budgets() {
    for (attempts, nudges) in [(1, 0), (2, 0), (2, 1), (4, 2)] {
        let contract = factory().dynamic_call(&DynamicCall { attempts, nudges, bounds: RunBounds::default() });
        let budget = contract.budget();
        assert_eq!(budget.max_format_retries, attempts - 1);
        assert_eq!(budget.max_semantic_retries, nudges);
        assert_eq!(budget.max_inferences, attempts + nudges);
        assert_eq!(contract.tool_policy(), ToolPolicy::Required);
        assert_eq!(contract.completion_mode(), CompletionMode::OnRequiredToolOk);
        assert_eq!(contract.allowed_tools().unwrap(), ["execute_program".into()]);
    }
}

#[test]
fn ec_o11_v40_a_child_is_linked_and_never_gets_more_than_is_left() {
    let parent = factory().dynamic_call(&DynamicCall {
        attempts: 2,
        nudges: 0,
        bounds: RunBounds { max_tokens: Some(Tokens(1000)), ..RunBounds::default() },
    });
    let spent = Spent { tokens: Tokens(400), ..Spent::default() };
    let left = parent.budget().remaining(&spent, Millis(290_000));
    let bounds = RunBounds { parent: Some((parent.contract_hash(), left)), ..RunBounds::default() };
    let child = factory().dynamic_call(&DynamicCall { attempts: 2, nudges: 0, bounds });
    assert_eq!(child.parent_contract_hash(), Some(parent.contract_hash()));
    assert_eq!(child.budget().max_tokens_consumed, Some(Tokens(600)));
    assert_eq!((child.budget().total_timeout, child.budget().step_timeout), (Millis(10_000), Millis(10_000)));
    assert_ne!(child.contract_hash(), parent.contract_hash());
}

#[test]
fn v7_a_strict_factory_makes_contracts_that_pass_precheck() {
    let strict = ContractFactory { strict_mode: true, ..factory() };
    let contract = strict.dynamic_call(&DynamicCall { attempts: 2, nudges: 0, bounds: RunBounds::default() });
    assert!(contract.strict_mode() && contract.token_gate());
}

#[test]
fn v7_a_profile_raises_the_default_in_the_factory_and_never_lowers_it() {
    let call = |attempts| DynamicCall { attempts, nudges: 1, bounds: RunBounds::default() };
    for profile in Profile::ALL {
        let of = |strict_mode| ContractFactory { profile: profile.model_profile(), strict_mode, ..factory() };
        let contract = of(false).dynamic_call(&call(4));
        assert_eq!(contract.strict_mode(), profile == Profile::Gated, "{profile:?}");
        assert_eq!(contract.token_gate(), contract.strict_mode());
        assert_eq!(
            (&**contract.model_profile_id(), &**contract.adapter_version()),
            (profile.as_str(), profile.version())
        );
        // V9: a strict contract retries once at most, whatever an agent's options say.
        assert_eq!(contract.budget().max_format_retries, if contract.strict_mode() { 1 } else { 3 });
        assert!(of(true).dynamic_call(&call(2)).strict_mode());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// EC-CF4: scope is always within the manifest. EC-CF1 on the way.
    #[test]
    fn ec_cf4_scope_is_within_the_manifest(
        text in ".{0,40}",
        names in prop::collection::vec(prop_oneof![Just("read"), Just("write"), Just("nosuch"), Just("execute_program")], 0..5),
        chat in any::<bool>(),
    ) {
        let tools: Vec<Arc<str>> = names.iter().map(|name| Arc::from(*name)).collect();
        let page = if chat { Page::Chat } else { Page::Code };
        let make = || factory().request(page, &text, &tools, &RunBounds::default());
        let contract = make();
        prop_assert_eq!(contract.contract_hash(), make().contract_hash());
        for name in contract.allowed_tools().unwrap_or_default() {
            prop_assert!(factory().manifest.get(name).is_some());
        }
    }
}

#[test]
fn ec_cf3_the_first_entry_names_the_rule() {
    let mut scenario = Scenario::new("EC-CF3", Map::from([("policy_rule".into(), "page.chat".into())]), Vec::new());
    scenario.replies = vec!["T".parse().unwrap()];
    let run = scenario.run().unwrap();
    let origin = run.stored[0].field("origin").and_then(Value::as_map).unwrap();
    assert_eq!(origin.get("policy_rule"), Some(&"page.chat".into()));
}

// Migration

fn published() -> Value {
    Value::from_json(
        r#"{
        "contract_id": "000000000000000000000000000000ff", "contract_hash": "old", "parent_contract_hash": null,
        "tool_policy": "required", "allowed_tools": ["t"], "strict_mode": false, "max_inferences": 5,
        "max_tokens_consumed": 1000, "max_format_retries": 1, "step_timeout_ms": 1000, "total_timeout_ms": 5000,
        "context_budget": {"context_window": 4096, "reserved_system": 1, "reserved_synthesis": 2,
                           "force_synthesis_at_ratio": 0.85, "colour": "blue"},
        "tool_output_budget": {"max_bytes_per_call": 100, "truncation_marker": "...", "summarizer_model": null},
        "adapter_version": "a1", "model_profile_id": "stub", "grammar_profile": "json", "grammar": "root ::= x",
        "logits_mask": null, "token_gate": false, "speculative_exec": false, "cycle_forbid": [["t", "t"]],
        "owner": "somebody"}"#,
    )
    .unwrap()
}

#[test]
fn ec_mg1_an_old_contract_is_migrated_and_nothing_is_lost() {
    let old = published();
    let before = old.clone();
    let migrated = migrate(&old).unwrap();
    assert_eq!(old, before, "the input is not modified");
    let contract = ExecutionContract::from_value(migrated.contract.clone()).unwrap();
    assert_eq!(contract.defect(), None);
    assert_eq!(contract.recorded_hash(), Some(contract.contract_hash()), "the hash fits the new form");
    assert_eq!(contract.contract_id(), Some(ContractId(255)));
    assert_eq!(contract.context_budget().force_synthesis_at_permille, 850);
    assert_eq!(contract.context_budget().minimum_loop_margin, 256);
    assert_eq!(contract.grammar_sha256(), Some(Digest::of_bytes(b"root ::= x")));
    assert_eq!(contract.logits_mask_sha256(), None);
    assert_eq!(contract.cycle_forbid(), [("t".into(), "t".into())]);
    assert_eq!(contract.completion_mode(), CompletionMode::OnNoCall);
    let extra = migrated.extra;
    assert_eq!(extra.get("owner"), Some(&"somebody".into()));
    assert_eq!(extra.get("grammar"), Some(&"root ::= x".into()));
    assert_eq!(extra.get("migrated_from_hash"), Some(&"old".into()));
    assert_eq!(extra.get("context_budget"), Some(&Map::from([("colour".into(), "blue".into())]).into()));
}

#[test]
fn ec_mg1_migration_is_idempotent_and_never_goes_down_or_guesses() {
    let current = draft().seal().to_value();
    let again = migrate(&current).unwrap();
    assert_eq!((again.contract, again.extra), (current.clone(), Map::new()));
    let with_format = |format: &str| {
        let Value::Map(mut map) = current.clone() else { panic!("a contract is an object") };
        map.insert("contract_format".into(), format.into());
        migrate(&map.into())
    };
    assert_eq!(with_format("2"), Err(MigrationError::Newer("2".into())));
    assert_eq!(with_format("x"), Err(MigrationError::Unknown("x".into())));
    assert_eq!(migrate(&Value::Null), Err(MigrationError::NotAnObject));
}

#[test]
fn ec_mg1_a_flaw_survives_migration_and_is_named_by_precheck() {
    let Value::Map(mut old) = published() else { panic!("a contract is an object") };
    old.insert("max_inferences".into(), Value::Int(-1));
    let migrated = migrate(&old.into()).unwrap();
    let contract = ExecutionContract::from_value(migrated.contract).unwrap();
    assert!(contract.defect().is_some_and(|words| words.contains("max_inferences")));
    assert_eq!(contract.recorded_hash(), Some(contract.contract_hash()));
}
