//! Checkers: what an answer must be. Each takes every reasonable right answer and refuses wrong ones; the examples of a
//! case show both, and a test holds them to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cadenza_core::outcome::{ErrorType, Outcome};
use cadenza_core::program::{Language, acceptance_program};
use cadenza_core::provider::{ModelSpec, Scripted};
use cadenza_core::runtime::Runtime;
use cadenza_core::runtime::options::{LogOption, Options, Reuse, StoreOption};
use cadenza_core::value::{Map, Value};
use regex::Regex;

use super::Call;
use crate::conform::equal;

/// How far a number may be off when a case does not say, for each unit of its size and at least for one.
const DEFAULT_WITHIN: f64 = 1e-6;

/// What must come of a call.
#[derive(Clone, Debug)]
pub enum Expect {
    /// Any value: the call sets the stage for those that follow.
    Ok,
    /// This value; numbers are compared numerically.
    Value(Value),
    /// This value, in which numbers may be off by a little.
    Approx {
        /// The value, often a number.
        value: Value,
        /// The largest difference of a number; see [`DEFAULT_WITHIN`].
        within: Option<f64>,
    },
    /// A list of these items, in any order.
    Set(Vec<Value>),
    /// Text in which this is found.
    Matches(Regex),
    /// A value for which this expression of the program language, over `value`, `args` and `kwargs`, is true.
    Assert(BTreeMap<Language, String>),
    /// An error of one of these types.
    Error(Vec<String>),
    /// Any error that a program chose or raised, and none of the runtime's own.
    Refusal,
    /// One of these.
    Any(Vec<Expect>),
}

/// What came of a call, or an example of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A value.
    Value(Value),
    /// An error of this type.
    Error(String),
}

impl Answer {
    /// What an outcome says.
    pub fn of(outcome: &Outcome) -> Self {
        match outcome.error() {
            None => Self::Value(outcome.value().clone()),
            Some(error) => Self::Error(error.error_type.as_str().to_owned()),
        }
    }

    fn described(&self) -> String {
        match self {
            Self::Value(value) => {
                let text = value.to_json();
                format!("the value {}", crate::logfile::cut(&text, 200))
            }
            Self::Error(name) => format!("an error of type {name}"),
        }
    }
}

/// Why an answer is not taken; nothing when it is.
pub fn check(call: &Call, answer: &Answer, language: Language) -> Result<(), String> {
    call.expect.check(call, answer, language)
}

impl Expect {
    fn check(&self, call: &Call, answer: &Answer, language: Language) -> Result<(), String> {
        let refused = |expected: String| Err(format!("expected {expected}, got {}", answer.described()));
        let value = match (self, answer) {
            (Self::Error(names), Answer::Error(name)) if names.contains(name) => return Ok(()),
            (Self::Error(names), _) => return refused(format!("an error of type {}", names.join(" or "))),
            (Self::Refusal, Answer::Error(name)) if is_the_programs_own(name) => return Ok(()),
            (Self::Refusal, _) => return refused("an error that the program chose".to_owned()),
            (Self::Any(expects), _) => {
                let reasons: Result<Vec<String>, ()> =
                    expects.iter().map(|expect| expect.check(call, answer, language).err().ok_or(())).collect();
                return reasons.map_or(Ok(()), |reasons| Err(reasons.join("; or ")));
            }
            (_, Answer::Error(_)) => return refused("a value".to_owned()),
            (_, Answer::Value(value)) => value,
        };
        match self {
            Self::Value(expected) if equal(expected, value) => Ok(()),
            Self::Value(expected) => refused(expected.to_json()),
            Self::Approx { value: expected, within } if near(expected, value, *within) => Ok(()),
            Self::Approx { value: expected, .. } => refused(format!("about {}", expected.to_json())),
            Self::Set(items) if same_items(items, value) => Ok(()),
            Self::Set(items) => refused(format!("in any order {}", Value::List(items.clone()).to_json())),
            Self::Matches(regex) if value.as_str().is_some_and(|text| regex.is_match(text)) => Ok(()),
            Self::Matches(regex) => refused(format!("text with /{regex}/")),
            Self::Assert(texts) => accepted(&texts[&language], call, value, language),
            Self::Ok | Self::Error(_) | Self::Refusal | Self::Any(_) => Ok(()),
        }
    }
}

/// Whether an error is a program's word, and not that it was never written or never came to an end.
fn is_the_programs_own(name: &str) -> bool {
    matches!(ErrorType::from_name(name), ErrorType::Execution | ErrorType::Other(_))
}

fn near(expected: &Value, got: &Value, within: Option<f64>) -> bool {
    match (expected, got) {
        (Value::Int(_) | Value::Float(_), Value::Int(_) | Value::Float(_)) => {
            let (Some(expected), Some(got)) = (expected.as_float(), got.as_float()) else { return false };
            (expected - got).abs() <= within.unwrap_or(DEFAULT_WITHIN * expected.abs().max(1.0))
        }
        (Value::List(expected), Value::List(got)) => {
            expected.len() == got.len() && expected.iter().zip(got).all(|(one, other)| near(one, other, within))
        }
        (Value::Map(expected), Value::Map(got)) => {
            expected.len() == got.len()
                && expected.iter().zip(got).all(|((key, one), (own, other))| key == own && near(one, other, within))
        }
        (expected, got) => equal(expected, got),
    }
}

fn same_items(expected: &[Value], got: &Value) -> bool {
    let Value::List(got) = got else { return false };
    let mut left: Vec<&Value> = got.iter().collect();
    let found = expected.iter().all(|item| match left.iter().position(|other| equal(item, other)) {
        Some(index) => {
            left.swap_remove(index);
            true
        }
        None => false,
    });
    found && left.is_empty()
}

/// Evaluates an expression as the runtime evaluates acceptance items.
fn accepted(expression: &str, call: &Call, value: &Value, language: Language) -> Result<(), String> {
    let options = Options {
        model: Some(ModelSpec::Provider(Arc::new(Scripted::program(&acceptance_program(language, expression))))),
        language: Some(language),
        store: Some(StoreOption::Memory),
        log: Some(LogOption::Off),
        reuse: Some(Reuse::Off),
        execution_repairs: Some(0),
        ..Options::default()
    };
    let runtime = Runtime::builder().options(options).build().map_err(|error| error.to_string())?;
    let agent = runtime.agent("checker", Options::default()).map_err(|error| error.to_string())?;
    let given = vec![value.clone(), Value::List(call.args.clone()), Value::Map(call.kwargs.clone())];
    let outcome = agent.call("check", given, Map::new()).map_err(|error| error.to_string())?;
    match (outcome.error(), outcome.value()) {
        (None, Value::Bool(true)) => Ok(()),
        (None, other) => {
            Err(format!("`{expression}` is {} for {}", other.to_json(), Answer::Value(value.clone()).described()))
        }
        (Some(error), _) => Err(format!("`{expression}` failed: {}", error.message)),
    }
}
