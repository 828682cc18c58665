//! The scripted model of a scenario: its plan, or, without one, what each step expects (formats.md 1.4).

use std::sync::Arc;

use cadenza_core::program::Language;
use cadenza_core::provider::scripted::{Plan, Played, Scripted};
use cadenza_core::value::{Map, Value};

use super::document::Fault;
use super::literal::literal;
use super::programs::Programs;
use super::scenario::{Call, Expectation, PlanIds, PlannedMethod};

/// Role and method with which the program for `budget_exceeded` goes down one level further.
const DEEPER: (&str, &str) = ("conformance level below", "go_one_level_further");
/// What a raised error says when nothing is expected of its words.
const BOOM: &str = "boom";

/// The model that plays a plan.
pub fn planned(plan: &PlanIds, programs: &Programs) -> Result<Scripted, Fault> {
    let mut built = Plan::new();
    for PlannedMethod { method, line, ids, .. } in plan {
        if ids.is_empty() {
            return Err(Fault::new(*line, format!("the plan of `{method}` is an empty sequence")));
        }
        for id in ids {
            let item = programs.get(id).ok_or_else(|| {
                let message = format!("the plan of `{method}` names `{id}`, which is neither a program nor a payload");
                Fault::new(*line, message)
            })?;
            built.push(method, id, item);
        }
    }
    Ok(Scripted::plan(built))
}

/// A model that answers each call as its step expects; [`expect`] tells it what that is.
pub fn planless() -> Scripted {
    Scripted::by_call()
}

/// Makes a plan-less model answer the next call of a role's method as the step expects.
pub fn expect(model: &Scripted, role: &str, call: &Call, language: Language) {
    let played = played(call, language);
    if matches!(&call.expect, Some(expected) if expected.error_type.as_deref() == Some("budget_exceeded")) {
        model.behave(DEEPER.0, DEEPER.1, played.clone());
    }
    model.behave(role, &call.method, played);
}

fn played(call: &Call, language: Language) -> Played {
    let Some(expected) = &call.expect else { return Played::Program(returning(&Value::Int(42), language)) };
    if expected.ok {
        return Played::Program(match &expected.value {
            Some(value) if is_sum(call, value) => sum(language),
            Some(value) => returning(value, language),
            None => returning(&Value::Int(42), language),
        });
    }
    let words = expected.error_message_includes.as_deref().unwrap_or(BOOM);
    match expected.error_type.as_deref() {
        Some("provider") => Played::Fail(words.into()),
        Some("invalid_code") => Played::Null,
        Some("timeout") => Played::Block,
        Some("budget_exceeded") => Played::Program(deeper(language)),
        Some("execution") | None => Played::Program(raising(words, language)),
        Some(own) => Played::Program(failing(own, words, expected, language)),
    }
}

/// Whether the expected value is the sum of the call's two numbers.
fn is_sum(call: &Call, value: &Value) -> bool {
    let [left, right] = call.args.as_slice() else { return false };
    let sum = left.as_float().zip(right.as_float()).map(|(left, right)| left + right);
    sum.is_some() && sum == value.as_float()
}

fn sum(language: Language) -> Arc<str> {
    match language {
        Language::Lua => "return args[1] + args[2]".into(),
        Language::Rhai => "args[0] + args[1]".into(),
    }
}

fn returning(value: &Value, language: Language) -> Arc<str> {
    match language {
        Language::Lua => format!("return {}", literal(value, language)).into(),
        Language::Rhai => literal(value, language).into(),
    }
}

fn raising(words: &str, language: Language) -> Arc<str> {
    let words = literal(&words.into(), language);
    match language {
        Language::Lua => format!("error({words})").into(),
        Language::Rhai => format!("throw {words}").into(),
    }
}

fn failing(error_type: &str, words: &str, expected: &Expectation, language: Language) -> Arc<str> {
    let fields = Map::from([
        ("error_type".to_owned(), error_type.into()),
        ("error_message".to_owned(), words.into()),
        ("retriable".to_owned(), expected.retriable.unwrap_or(false).into()),
    ]);
    let fields = literal(&fields.into(), language);
    match language {
        Language::Lua => format!("return Outcome.error({fields})").into(),
        Language::Rhai => format!("Outcome::error({fields})").into(),
    }
}

fn deeper(language: Language) -> Arc<str> {
    let (role, method) = DEEPER;
    match language {
        Language::Lua => format!("return agent:delegate(\"{role}\"):{method}()").into(),
        Language::Rhai => format!("agent.delegate(\"{role}\", #{{}}).call(\"{method}\", [], #{{}})").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stub_follows_the_expectation() {
        let call = |json: &str, args: Vec<Value>| {
            let read = |name: &str| Value::from_json(json).unwrap().as_map().and_then(|map| map.get(name).cloned());
            Call {
                method: "m".into(),
                args,
                kwargs: Map::new(),
                expect: Some(Expectation {
                    ok: read("ok") == Some(true.into()),
                    value: read("value"),
                    error_type: read("error_type").and_then(|value| value.as_str().map(str::to_owned)),
                    retriable: None,
                    error_message_includes: None,
                }),
            }
        };
        for (json, args, expected) in [
            (r#"{"ok":true,"value":5}"#, vec![2.into(), 3.into()], "return args[1] + args[2]"),
            (r#"{"ok":true,"value":7}"#, vec![2.into(), 3.into()], "return 7"),
            (r#"{"ok":true}"#, vec![], "return 42"),
            (r#"{"ok":false,"error_type":"execution"}"#, vec![], "error(\"boom\")"),
        ] {
            assert_eq!(played(&call(json, args), Language::Lua), Played::Program(expected.into()), "{json}");
        }
        let provider = call(r#"{"ok":false,"error_type":"provider"}"#, vec![]);
        assert_eq!(played(&provider, Language::Lua), Played::Fail("boom".into()));
    }
}
