//! Model profiles: each with its canonical form, what it recovers and what it refuses (EC-AD1 to EC-AD7, EC-DG2, V6, V7),
//! and the minimal corpus under each (EC-MG2).

use std::fs;
use std::path::Path;

use cadenza_core::adapter::{Profile, Wanted, adapt, profiles};
use cadenza_core::kernel::script::{Scenario, ScenarioFile};
use cadenza_core::message::{AdapterDecision, ModelReply, ProtocolAdapterResult, RawToolCall, RejectionCode};
use cadenza_core::outcome::AgentOutcome;
use cadenza_core::value::{Map, Value};
use proptest::prelude::*;

/// The profiles of models: whoever is asked for a program in one form.
const MODELS: [Profile; 4] = [Profile::Tool, Profile::Json, Profile::Text, Profile::Gated];

fn text(content: &str) -> ModelReply {
    ModelReply { content: Some(content.into()), ..ModelReply::default() }
}

fn call(arguments: &str) -> ModelReply {
    ModelReply::call("c1", "execute_program", arguments)
}

fn compiles(code: &str) -> Result<(), String> {
    if code.trim_start().starts_with("return") { Ok(()) } else { Err("line 1: unexpected prose".into()) }
}

fn read(profile: Profile, strict: bool, reply: &ModelReply) -> ProtocolAdapterResult {
    adapt(profile, &Wanted { tool: "execute_program", language: "lua", compiles: &compiles }, strict, reply)
}

/// `native`, `recovered`, `prose`, or the code of the rejection.
fn decided(profile: Profile, strict: bool, reply: &ModelReply) -> &'static str {
    match read(profile, strict, reply).decision {
        AdapterDecision::Native(message) if message.tool_calls.is_empty() => "prose",
        AdapterDecision::Native(_) => "native",
        AdapterDecision::Recovered(_) => "recovered",
        AdapterDecision::Rejected { failure, .. } => failure.as_str(),
    }
}

#[test]
fn ec_dg2_each_profile_has_its_form_and_recovers_the_others_where_it_is_not_strict() {
    let native = call(r#"{"code":"return 42","language":"lua"}"#);
    let (json, loose) =
        (text(r#"{"code":"return 42","language":"lua"}"#), text(r#"{"code":"return 42","why":"simple"}"#));
    let (bare, fenced) = (text("return 42"), text("Here it is:\n```lua\nreturn 42\n```"));
    let fenced_json = text("```json\n{\"code\":\"return 42\"}\n```");
    let all = [&native, &json, &loose, &bare, &fenced, &fenced_json];
    let (ok, rec, no) = ("native", "recovered", "RECOVERY_DISABLED");
    let table = [
        (Profile::Tool, [ok, rec, rec, rec, rec, rec]),
        // A provider may hand the JSON over as the call that it is.
        (Profile::Json, [ok, ok, rec, rec, rec, rec]),
        (Profile::Text, [rec, rec, rec, ok, ok, rec]),
        (Profile::Gated, [ok, no, no, no, no, no]),
        (Profile::Program, [ok; 6]),
    ];
    for (profile, expected) in table {
        assert_eq!(all.map(|reply| decided(profile, false, reply)), expected, "{profile:?}");
        // EC-AD2, V6: strict, what would be recovered is refused.
        let strict = expected.map(|decision| if decision == rec { no } else { decision });
        assert_eq!(all.map(|reply| decided(profile, true, reply)), strict, "{profile:?}, strict");
    }
}

/// What worked while every provider was read by `program` works with each of its profiles.
#[test]
fn nothing_that_program_takes_is_lost_with_a_models_own_profile() {
    for reply in super::adapter::forms_of_a_program() {
        let canonical = |profile| match read(profile, false, &reply).decision {
            AdapterDecision::Native(message) | AdapterDecision::Recovered(message) => {
                let [call] = message.tool_calls.as_slice() else { panic!("{profile:?}: {reply:?}") };
                (call.name.clone(), call.arguments.clone())
            }
            AdapterDecision::Rejected { failure, detail } => panic!("{profile:?}: {failure:?} {detail}: {reply:?}"),
        };
        for profile in [Profile::Tool, Profile::Json, Profile::Text] {
            assert_eq!(canonical(profile), canonical(Profile::Program), "{profile:?}: {reply:?}");
        }
    }
}

#[test]
fn ec_ad1_ec_ad5_ec_ad6_every_flaw_has_its_code_under_every_profile() {
    let two = |first: &str, second: &str| {
        let call = |id: &str, arguments: &str| RawToolCall {
            id: id.into(),
            name: "execute_program".into(),
            arguments: arguments.into(),
        };
        ModelReply { tool_calls: vec![call("a", first), call("a", second)], ..ModelReply::default() }
    };
    let good = r#"{"code":"return 1"}"#;
    let flaws = [
        (call("{oops"), "ARGUMENTS_NOT_JSON"),
        (call("[1]"), "ARGUMENTS_NOT_OBJECT"),
        (ModelReply::call("", " ", "{}"), "MISSING_NAME"),
        (two(good, "{oops"), "ARGUMENTS_NOT_JSON"),
        (two(good, good), "DUPLICATE_CALL_ID"),
        (call(r#"{"code":"no program"}"#), "SYNTAX"),
        (call(r#"{"code":"return 1","language":"python"}"#), "SYNTAX"),
        (call("{}"), "EMPTY"),
        (text(" \n"), "EMPTY"),
        (ModelReply::default(), "EMPTY"),
        (text("```lua\nreturn 1"), "TRUNCATED_MARKUP"),
        (text(r#"{"code": "return"#), "ARGUMENTS_NOT_JSON"),
        (text("x = = 1"), "SYNTAX"),
    ];
    for profile in MODELS {
        for (reply, code) in &flaws {
            for strict in [false, true] {
                assert_eq!(decided(profile, strict, reply), *code, "{profile:?} {strict}: {reply:?}");
            }
        }
    }
}

#[test]
fn ec_ad4_prose_stays_prose_and_is_told_from_a_broken_program() {
    for profile in MODELS {
        for strict in [false, true] {
            let words = "I am sorry, but I have no idea what you want.";
            let AdapterDecision::Native(message) = read(profile, strict, &text(words)).decision else {
                panic!("{profile:?}")
            };
            assert_eq!((message.content.as_str(), message.tool_calls.len()), (words, 0));
            for broken in [
                "local x = args[1",
                "<call>{\"name\":\"t\"}</call>",
                "<call>execute_program",
                "<tool_call>execute_program",
                "The program:\nsum(args[1])",
            ] {
                assert_eq!(decided(profile, strict, &text(broken)), "SYNTAX", "{profile:?}: {broken}");
            }
        }
    }
}

/// A draft in what a model thinks aloud is no program, whichever form the answer behind it has.
#[test]
fn ec_ad1_what_is_thought_aloud_is_no_program() {
    let draft = "first try: ```lua\nreturn 0\n``` or {\"code\": \"return 0\"}, no: it must be five\n";
    let answers = ["return 5", "```lua\nreturn 5\n```", r#"{"code": "return 5"}"#];
    for profile in MODELS.into_iter().filter(|profile| *profile != Profile::Gated) {
        for answer in answers {
            for thought in [format!("\n<think>\n{draft}</think>\n\n"), format!("{draft}</think>\n")] {
                let content = format!("{thought}{answer}");
                let decision = read(profile, false, &text(&content)).decision;
                let (AdapterDecision::Native(message) | AdapterDecision::Recovered(message)) = &decision else {
                    panic!("{profile:?}: {content}: {decision:?}")
                };
                let code = message.tool_calls[0].arguments["code"].as_str().unwrap();
                assert_eq!(code.trim(), "return 5", "{profile:?}: {content}");
            }
        }
        assert_eq!(decided(profile, false, &text(&format!("<think>{draft}"))), "EMPTY", "{profile:?}");
        assert_eq!(decided(profile, false, &text(&format!("<think>{draft}</think> \n"))), "EMPTY", "{profile:?}");
        // A program may hold the mark, also behind what was thought aloud.
        for before in ["", "<think>hm</think>"] {
            let decision = read(profile, false, &text(&format!("{before}return '</think>'"))).decision;
            let (AdapterDecision::Native(message) | AdapterDecision::Recovered(message)) = &decision else {
                panic!("{profile:?}: {decision:?}")
            };
            assert_eq!(message.tool_calls.len(), 1, "{profile:?}: {decision:?}");
            assert_eq!(message.tool_calls[0].arguments["code"], "return '</think>'".into(), "{profile:?}");
        }
    }
}

#[test]
fn ec_ad3_ec_p4a_profiles_name_themselves_their_version_and_what_they_can_apply() {
    let known = profiles();
    assert_eq!(known.len(), Profile::ALL.len());
    for (profile, known) in Profile::ALL.into_iter().zip(known.iter()) {
        assert_eq!(Profile::from_name(&known.id), Some(profile));
        assert_eq!(*known, profile.model_profile());
        // What is recorded was read by these rules: who changes them changes the version.
        assert_eq!(profile.version(), if profile == Profile::Stub { "a1" } else { "a2" });
        assert_eq!(&*read(profile, false, &text("return 1")).adapter_version, &*known.adapter_version);
        let gated = profile == Profile::Gated;
        assert_eq!((known.grammar, known.logits_mask, known.strict), (gated, gated, gated));
    }
    assert_eq!(Profile::from_name("gpt"), None);
}

/// EC-GR1, EC-P4a: a grammar is for a profile that applies it.
#[test]
fn ec_gr1_a_grammar_needs_a_profile_that_applies_it() {
    for profile in Profile::ALL {
        let contract = Map::from([
            ("grammar_profile".into(), "execute_program".into()),
            ("model_profile_id".into(), profile.as_str().into()),
        ]);
        let run = Scenario::new("EC-GR1", contract, vec!["C(t)".parse().unwrap(), "T".parse().unwrap()]).run().unwrap();
        let refused = run.ended.agent_outcome == AgentOutcome::FailedPreflight;
        assert_eq!(refused, profile != Profile::Gated, "{profile:?}: {:?}", run.ended);
        for request in &run.requests {
            assert_eq!(request.ask.constraints.grammar_profile.as_deref(), Some("execute_program"));
        }
    }
}

fn scenarios() -> Vec<Scenario> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/execution");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &std::path::PathBuf| -> ScenarioFile {
        serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap_or_else(|error| panic!("{path:?}: {error}"))
    };
    files.iter().flat_map(|path| read(path).scenarios).collect()
}

/// The table of EC-MG2. Under `program` every text is meant as a program, so that its corpus ends with the first ok call,
/// and narration is malformed (V8, C3).
#[test]
fn ec_mg2_every_profile_passes_the_corpus() {
    let cases = ["EC-K1.", "EC-K2.", "EC-K3.", "EC-K4.", "EC-K5.", "EC-K6."];
    for profile in Profile::ALL {
        let mut seen = [0; 6];
        let mut ran = 0;
        for scenario in scenarios() {
            let case = cases.iter().position(|case| scenario.id.starts_with(case));
            let under = match scenario.under(profile) {
                Ok(under) => under,
                Err(why) => {
                    assert_eq!(case, None, "{} under {profile:?}: {why}", scenario.id);
                    continue;
                }
            };
            let run = under.check().unwrap_or_else(|error| panic!("{} under {profile:?}: {error}", scenario.id));
            // EC-AD7 and issue item: every entry names adapter, profile and model.
            for entry in &run.stored {
                assert_eq!((&*entry.model_profile_id, &*entry.adapter_version), (profile.as_str(), profile.version()));
                assert_eq!(&*entry.model_fingerprint, "scripted");
            }
            ran += 1;
            if let Some(case) = case {
                seen[case] += 1;
            }
        }
        assert_eq!(seen, [1, 2, 1, 1, 1, 1], "{profile:?}");
        assert!(ran > 20, "{profile:?} ran {ran} scenarios");
    }
}

/// What the corpus says where the class is not the same everywhere.
#[test]
fn ec_k3_narration_is_no_success_anywhere() {
    for profile in Profile::ALL {
        let narration = scenarios().into_iter().find(|scenario| scenario.id == "EC-K3.required_narration").unwrap();
        let run = narration.under(profile).unwrap().run().unwrap();
        let expected = match profile {
            Profile::Program => AgentOutcome::FailedProtocolMalformed,
            Profile::Stub | Profile::Tool | Profile::Json | Profile::Text | Profile::Gated => {
                AgentOutcome::FailedProtocolNoTools
            }
        };
        assert_eq!((run.ended.agent_outcome, run.ended.spent.tools_executed), (expected, 0), "{profile:?}");
    }
}

fn any_reply() -> impl Strategy<Value = ModelReply> {
    let sign = prop_oneof![
        Just("```"),
        Just("```lua\n"),
        Just("\n```"),
        Just("{\"code\":"),
        Just("\"return 1\""),
        Just("}"),
        Just("<call>"),
        Just("</call>"),
        Just("return 1"),
        Just("execute_program"),
        Just("\0"),
        Just("{\"name\":\"t\"}"),
        Just(" "),
    ];
    let content = prop_oneof![
        prop::collection::vec(sign, 0..8).prop_map(|parts| parts.concat()),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
    ];
    let name = prop_oneof![Just("execute_program".to_owned()), Just(String::new()), ".{0,8}"];
    let calls = prop::collection::vec((".{0,3}", name, content.clone()), 0..3);
    (prop::option::of(content), calls).prop_map(|(content, calls)| ModelReply {
        content,
        tool_calls: calls.into_iter().map(|(id, name, arguments)| RawToolCall { id, name, arguments }).collect(),
        ..ModelReply::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// EC-AD3: the same bytes give the same decision and hash, whatever they are; EC-AD1: and never a panic. A strict
    /// profile never recovers, and a gated one accepts nothing but native calls.
    #[test]
    fn ec_ad3_any_bytes_have_one_decision(reply in any_reply(), strict in any::<bool>()) {
        for profile in Profile::ALL {
            let result = read(profile, strict, &reply);
            prop_assert_eq!(&result, &read(profile, strict, &reply.clone()));
            let recovered = matches!(result.decision, AdapterDecision::Recovered(_));
            prop_assert!(!recovered || (!strict && profile != Profile::Gated && profile != Profile::Program));
            if let AdapterDecision::Native(message) = &result.decision
                && profile == Profile::Gated
                && reply.tool_calls.is_empty()
            {
                prop_assert!(message.tool_calls.is_empty());
            }
            if let AdapterDecision::Rejected { failure, .. } = result.decision {
                prop_assert!(RejectionCode::ALL.contains(&failure));
            }
        }
    }

    /// Nothing that `program` accepts is refused by a profile of models without strict mode.
    #[test]
    fn no_profile_takes_less_than_program(reply in any_reply()) {
        let accepted = |profile| match read(profile, false, &reply).decision {
            AdapterDecision::Native(message) | AdapterDecision::Recovered(message) => {
                Some(message.tool_calls.iter().map(|call| Value::Map(call.arguments.clone())).collect::<Vec<_>>())
            }
            AdapterDecision::Rejected { .. } => None,
        };
        if let Some(calls) = accepted(Profile::Program) {
            for profile in [Profile::Tool, Profile::Json, Profile::Text] {
                prop_assert_eq!(accepted(profile), Some(calls.clone()), "{:?}", profile);
            }
        }
    }
}
