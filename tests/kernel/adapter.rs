//! The boundary (execution-clauses EC-AD, EC-DG2, EC-IA1, EC-O7; C3).

use std::collections::BTreeSet;

use cadenza_core::adapter::{Profile, Wanted, adapt};
use cadenza_core::message::{
    AdapterDecision, AgentMessage, MessageRole, ModelReply, ProtocolAdapterResult, RawToolCall, RejectionCode,
};
use cadenza_core::value::{Map, Value};

fn text(content: &str) -> ModelReply {
    ModelReply { content: Some(content.into()), model: Some("m".into()), ..ModelReply::default() }
}

fn calls(list: &[(&str, &str, &str)]) -> ModelReply {
    let tool_calls = list
        .iter()
        .map(|(id, name, arguments)| RawToolCall {
            id: (*id).into(),
            name: (*name).into(),
            arguments: (*arguments).into(),
        })
        .collect();
    ModelReply { tool_calls, model: Some("m".into()), ..ModelReply::default() }
}

/// Compiles what starts with `return`.
fn compiles(code: &str) -> Result<(), String> {
    if code.trim_start().starts_with("return") { Ok(()) } else { Err("line 1: unexpected prose".into()) }
}

fn read(profile: Profile, strict: bool, reply: &ModelReply) -> ProtocolAdapterResult {
    adapt(profile, &Wanted { tool: "execute_program", language: "lua", compiles: &compiles }, strict, reply)
}

fn as_program(reply: &ModelReply) -> ProtocolAdapterResult {
    read(Profile::Program, false, reply)
}

fn as_stub(reply: &ModelReply, strict: bool) -> ProtocolAdapterResult {
    read(Profile::Stub, strict, reply)
}

/// Everything that `program` takes for the program `return 42`.
pub(super) fn forms_of_a_program() -> [ModelReply; 12] {
    [
        text("return 42"),
        text("```lua\nreturn 42\n```"),
        text("```\nreturn 42\n```"),
        text("Sure, here is the program:\n\n```lua\nreturn 42\n```\nIt returns 42."),
        text("{\"code\": \"return 42\"}"),
        text("{\"language\": \"lua\", \"code\": \"return 42\"}"),
        text("```json\n{\"code\": \"return 42\"}\n```"),
        text("{\"explanation\": \"it is simple\", \"code\": \"return 42\", \"language\": \"Luau\"}"),
        text("Like this: ```return 42``` as you asked"),
        text("```lua\nreturn 42\n```\nor else\n```lua\nreturn 43\n```"),
        calls(&[("x", "execute_program", "{\"code\":\"return 42\"}")]),
        calls(&[("x", "execute_program", "{\"code\":\"return 42\",\"language\":\"lua\"}")]),
    ]
}

fn message(result: ProtocolAdapterResult) -> AgentMessage {
    match result.decision {
        AdapterDecision::Native(message) | AdapterDecision::Recovered(message) => message,
        AdapterDecision::Rejected { failure, detail } => panic!("rejected {failure:?}: {detail}"),
    }
}

fn rejection(result: ProtocolAdapterResult) -> (RejectionCode, String) {
    match result.decision {
        AdapterDecision::Rejected { failure, detail } => (failure, detail),
        AdapterDecision::Native(message) | AdapterDecision::Recovered(message) => panic!("accepted {message:?}"),
    }
}

#[test]
fn ec_ad1_every_flaw_has_its_own_code() {
    let cases = [
        (calls(&[("", "t", "{oops")]), RejectionCode::ArgumentsNotJson),
        (calls(&[("", "", "{}")]), RejectionCode::MissingName),
        (calls(&[("", "t", "[1]")]), RejectionCode::ArgumentsNotObject),
        (calls(&[("", "t", "null")]), RejectionCode::ArgumentsNotObject),
        (text("<call>{\"name\":\"t\""), RejectionCode::TruncatedMarkup),
        (text("<call>{\"name\":\"t\"}</call> and more"), RejectionCode::TruncatedMarkup),
        (text("<call>{\"name\":\"t\",\"arguments\":[1]}</call>"), RejectionCode::ArgumentsNotObject),
        (calls(&[("a", "t", "{}"), ("a", "u", "{}")]), RejectionCode::DuplicateCallId),
        (text("  \n"), RejectionCode::Empty),
        (ModelReply::default(), RejectionCode::Empty),
    ];
    for (reply, code) in cases {
        assert_eq!(rejection(as_stub(&reply, false)).0, code, "{reply:?}");
    }
    let codes: BTreeSet<&str> = RejectionCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(codes.len(), RejectionCode::ALL.len());
}

#[test]
fn ec_ad1_program_flaws() {
    let cases = [
        (text("```lua\nreturn 1"), RejectionCode::TruncatedMarkup),
        (text("Here you go:\n```lua\nreturn 1"), RejectionCode::TruncatedMarkup),
        (text(""), RejectionCode::Empty),
        (text("```lua\n```"), RejectionCode::Empty),
        (text("{\"code\": \"\"}"), RejectionCode::Empty),
        (text("{\"code\": null}"), RejectionCode::Empty),
        (text("{\"code\": \"return"), RejectionCode::ArgumentsNotJson),
        (text("I think the answer is 5."), RejectionCode::Syntax),
        (calls(&[("", "execute_program", "{\"code\":\"nonsense\"}")]), RejectionCode::Syntax),
        (calls(&[("", "execute_program", "{\"code\":\" \"}")]), RejectionCode::Empty),
        (calls(&[("", "execute_program", "{}")]), RejectionCode::Empty),
        (calls(&[("", "execute_program", "{\"code\":")]), RejectionCode::ArgumentsNotJson),
        (calls(&[("", "execute_program", "{\"code\":42}")]), RejectionCode::Syntax),
        (calls(&[("", "execute_program", "{\"code\":\"return 1\",\"language\":\"python\"}")]), RejectionCode::Syntax),
        (text("{\"language\":\"python\",\"code\":\"return 1\"}"), RejectionCode::Syntax),
        (text("```"), RejectionCode::TruncatedMarkup),
        (ModelReply::default(), RejectionCode::Empty),
    ];
    for (reply, code) in cases {
        assert_eq!(rejection(as_program(&reply)).0, code, "{reply:?}");
    }
}

#[test]
fn c3_the_compilers_words_reach_the_retry() {
    assert_eq!(rejection(as_program(&text("nonsense"))).1, "line 1: unexpected prose");
}

#[test]
fn ec_dg2_every_form_of_a_program_becomes_the_one_canonical_call() {
    for reply in forms_of_a_program() {
        let result = as_program(&reply);
        assert!(matches!(result.decision, AdapterDecision::Native(_)), "{reply:?}");
        let message = message(result);
        let [call] = message.tool_calls.as_slice() else { panic!("{message:?}") };
        assert_eq!((&*call.name, &*call.source_model), ("execute_program", "m"));
        let code = call.arguments.get("code").and_then(Value::as_str).unwrap().trim_end();
        assert_eq!(code, "return 42", "{reply:?}");
        assert_eq!(call.arguments.get("language"), Some(&"lua".into()));
        assert_eq!(call.arguments.len(), 2);
    }
}

#[test]
fn ec_dg2_another_profiles_format_is_rejected_or_recovered() {
    let markup = text("<call>{\"name\":\"t\",\"arguments\":{}}</call>");
    assert!(matches!(as_stub(&markup, false).decision, AdapterDecision::Recovered(_)));
    assert_eq!(rejection(as_stub(&markup, true)).0, RejectionCode::RecoveryDisabled);
    assert_eq!(rejection(as_program(&markup)).0, RejectionCode::Syntax);
}

#[test]
fn ec_ad3_versioned_and_deterministic_by_bytes() {
    let reply = text("```lua\nreturn 1\n```");
    let (one, two) = (as_program(&reply), as_program(&reply.clone()));
    assert_eq!(one, two);
    assert_eq!(&*one.adapter_version, Profile::Program.version());
    assert_ne!(one.raw_hash, as_program(&text("```lua\nreturn 2\n```")).raw_hash);
    // Everything that is read does.
    let hashes: BTreeSet<_> = [("a", "t", "{}"), ("b", "t", "{}"), ("a", "u", "{}"), ("a", "t", "{ }")]
        .map(|call| as_stub(&calls(&[call]), false).raw_hash.to_string())
        .into();
    assert_eq!(hashes.len(), 4);
    // What is not read does not change the hash: usage and the model's name are facts beside the reply.
    let other = ModelReply { model: Some("other".into()), ..reply };
    assert_eq!(as_program(&other).raw_hash, one.raw_hash);
}

#[test]
fn ec_ad4_prose_stays_prose() {
    for words in ["tool_calls: [] is what I would write", "{\"name\": \"t\"}", "execute_program(1)", "done(a)"] {
        let message = message(as_stub(&text(words), false));
        assert_eq!((message.content.as_str(), message.tool_calls.len()), (words, 0));
    }
}

#[test]
fn ec_ad5_one_bad_call_rejects_the_whole_reply() {
    let reply = calls(&[("", "t", "{}"), ("", "u", "{oops"), ("", "v", "{}")]);
    assert_eq!(rejection(as_stub(&reply, false)).0, RejectionCode::ArgumentsNotJson);
    let markup = text("<call>{\"name\":\"t\"}</call><call>{\"name\":</call>");
    assert_eq!(rejection(as_stub(&markup, false)).0, RejectionCode::ArgumentsNotJson);
}

#[test]
fn ec_ad6_duplicate_ids_are_rejected_and_missing_ones_are_not_duplicates() {
    assert_eq!(
        rejection(as_stub(&calls(&[("a", "t", "{}"), ("a", "t", "{}")]), false)).0,
        RejectionCode::DuplicateCallId
    );
    assert_eq!(message(as_stub(&calls(&[("", "t", "{}"), ("", "t", "{}")]), false)).tool_calls.len(), 2);
}

#[test]
fn ec_o7_canonical_messages_have_one_shape() {
    let roles = [MessageRole::System, MessageRole::User, MessageRole::Assistant, MessageRole::Tool];
    assert_eq!(roles.map(MessageRole::as_str), ["system", "user", "assistant", "tool"]);
    for reply in [text("hello"), calls(&[("", "t", "{}")])] {
        let message = message(as_stub(&reply, false));
        assert_eq!((message.role, message.tool_call_id), (MessageRole::Assistant, None));
    }
}

#[test]
fn ec_o8_arguments_are_an_object_and_no_arguments_are_the_empty_one() {
    let message = message(as_stub(&calls(&[("p1", "t", " ")]), false));
    assert_eq!(message.tool_calls[0].arguments, Map::new());
    assert_eq!(message.tool_calls[0].id, "p1");
}

#[test]
fn v8_a_program_that_only_looks_like_json_or_a_fence_is_a_program() {
    let table = "return {\"code\"}";
    assert_eq!(message(as_program(&text(table))).tool_calls[0].arguments.get("code"), Some(&table.into()));
    let inner = "return [[\n```\n]]";
    assert_eq!(message(as_program(&text(inner))).tool_calls[0].arguments.get("code"), Some(&inner.into()));
}
