//! What a dry run proves: does a program *use* an input, or does it only hand it on beside an answer of its own?
//!
//! Two runs that differ in one input are compared. What differs beyond the input itself proves influence. Where each run
//! shows its own input verbatim and all else is equal, the program is generic only if what is equal was not written into
//! it: `return args[1]` and `return {args[1]}` are, `return {text = args[1], mood = "good"}` is not.

use std::collections::BTreeMap;

use super::literals::Literal;
use super::{ProgramFailure, Returned};
use crate::value::{Map, Value};

/// Everything that a dry run shows.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Value or failure.
    pub result: Result<Returned, ProgramFailure>,
    /// Context keys it wrote; `None` for a removed one.
    pub writes: BTreeMap<String, Option<Value>>,
    /// Host tools it called, with their arguments.
    pub tools: Vec<(String, Map)>,
}

/// Pairs of inputs that are told apart at most; a longer input is looked at by its beginning.
const MAX_PAIRS: usize = 256;

/// Whether changing an input from `original` to `other` changed what the program does, from `before` to `after`.
/// `literals` are those of its text.
pub fn matters(original: &Value, other: &Value, before: &Observed, after: &Observed, literals: &[Literal]) -> bool {
    let mut compared = Compared { inputs: Vec::new(), echoes: false, equal: Vec::new() };
    compared.pair(original, other);
    let unchanged = compared.results(&before.result, &after.result) && compared.writes(&before.writes, &after.writes);
    if !unchanged {
        return true;
    }
    // What a tool is told is no answer: it counts like an echo.
    let told = before.tools.len() == after.tools.len()
        && before
            .tools
            .iter()
            .zip(&after.tools)
            .all(|(before, after)| before.0 == after.0 && compared.maps(&before.1, &after.1));
    (compared.echoes || !told) && !compared.equal.iter().any(|leaf| literals.iter().any(|literal| literal.is(leaf)))
}

/// A comparison under way.
struct Compared<'a> {
    /// The varied input and its parts, as they were and as they became.
    inputs: Vec<(&'a Value, &'a Value)>,
    /// Both runs showed their own input somewhere.
    echoes: bool,
    /// Leaves that are equal in both runs.
    equal: Vec<&'a Value>,
}

impl<'a> Compared<'a> {
    fn pair(&mut self, original: &'a Value, other: &'a Value) {
        if self.inputs.len() >= MAX_PAIRS || alike(original, other) {
            return;
        }
        self.inputs.push((original, other));
        match (original, other) {
            (Value::List(originals), Value::List(others)) => {
                originals.iter().zip(others).for_each(|(original, other)| self.pair(original, other));
            }
            (Value::Map(originals), Value::Map(others)) => {
                for (key, original) in originals {
                    if let Some(other) = others.get(key) {
                        self.pair(original, other);
                    }
                }
            }
            _ => {}
        }
    }

    fn is_echo(&self, before: &Value, after: &Value) -> bool {
        self.inputs.iter().any(|(original, other)| alike(original, before) && alike(other, after))
    }

    fn results(
        &mut self,
        before: &'a Result<Returned, ProgramFailure>,
        after: &'a Result<Returned, ProgramFailure>,
    ) -> bool {
        match (before, after) {
            (Ok(Returned::Value(before)), Ok(Returned::Value(after))) => self.values(before, after),
            (Ok(Returned::Outcome(before)), Ok(Returned::Outcome(after))) => match (&before.result, &after.result) {
                (Ok(before), Ok(after)) => self.values(before, after),
                (before, after) => before == after,
            },
            (before, after) => before == after,
        }
    }

    fn writes(
        &mut self,
        before: &'a BTreeMap<String, Option<Value>>,
        after: &'a BTreeMap<String, Option<Value>>,
    ) -> bool {
        before.len() == after.len()
            && before.iter().zip(after).all(|((key, before), (other, after))| {
                (key == other || self.is_echoed_key(key, other))
                    && match (before, after) {
                        (Some(before), Some(after)) => self.values(before, after),
                        (before, after) => before == after,
                    }
            })
    }

    fn maps(&mut self, before: &'a Map, after: &'a Map) -> bool {
        before.len() == after.len()
            && before.iter().zip(after).all(|((key, before), (other, after))| {
                let same_key = key == other || self.is_echoed_key(key, other);
                same_key && self.values(before, after)
            })
    }

    fn is_echoed_key(&mut self, before: &str, after: &str) -> bool {
        let echo = self
            .inputs
            .iter()
            .any(|(original, other)| original.as_str() == Some(before) && other.as_str() == Some(after));
        self.echoes |= echo;
        echo
    }

    fn values(&mut self, before: &'a Value, after: &'a Value) -> bool {
        if self.is_echo(before, after) {
            self.echoes = true;
            return true;
        }
        match (before, after) {
            (Value::List(before), Value::List(after)) => {
                before.len() == after.len()
                    && before.iter().zip(after).all(|(before, after)| self.values(before, after))
            }
            (Value::Map(before), Value::Map(after)) => self.maps(before, after),
            (before, after) => {
                self.equal.push(before);
                alike(before, after)
            }
        }
    }
}

/// Equal, with numbers by what they are worth: a program may hand `2.0` on as `2`.
fn alike(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Int(_) | Value::Float(_), Value::Int(_) | Value::Float(_)) => left.as_float() == right.as_float(),
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Language;
    use crate::program::literals::literals;

    fn observed(value: &str, writes: &str) -> Observed {
        let Value::Map(writes) = Value::from_json(writes).unwrap() else { panic!("a map") };
        Observed {
            result: Ok(Returned::Value(Value::from_json(value).unwrap())),
            writes: writes.into_iter().map(|(key, value)| (key, Some(value))).collect(),
            tools: Vec::new(),
        }
    }

    /// Inputs `"a"` and `"b"`, and what a program with that text returned and wrote.
    fn check(code: &str, before: (&str, &str), after: (&str, &str)) -> bool {
        let literals = literals(Language::Lua, code);
        matters(&"a".into(), &"b".into(), &observed(before.0, before.1), &observed(after.0, after.1), &literals)
    }

    #[test]
    fn an_echo_beside_an_answer_of_the_programs_own_proves_nothing() {
        let text = "return {text = args[1], mood = 'good'}";
        assert!(!check(text, (r#"{"text":"a","mood":"good"}"#, "{}"), (r#"{"text":"b","mood":"good"}"#, "{}")));
        assert!(check(text, (r#"{"text":"a","mood":"good"}"#, "{}"), (r#"{"text":"b","mood":"bad"}"#, "{}")));
        let text = "context.last = args[1]; return 'good'";
        assert!(!check(text, (r#""good""#, r#"{"last":"a"}"#), (r#""good""#, r#"{"last":"b"}"#)));
        assert!(!check("return 'good'", (r#""good""#, "{}"), (r#""good""#, "{}")));
    }

    #[test]
    fn an_echo_alone_is_generic() {
        assert!(check("return args[1]", (r#""a""#, "{}"), (r#""b""#, "{}")));
        assert!(check("return {args[1]}", (r#"["a"]"#, "{}"), (r#"["b"]"#, "{}")));
        let text = "table.insert(context.l, args[1]); return #context.l";
        assert!(check(text, ("3", r#"{"l":["x","y","a"]}"#), ("3", r#"{"l":["x","y","b"]}"#)));
    }

    #[test]
    fn a_flag_that_happens_to_equal_the_input_is_no_echo() {
        let run = |first: bool, second: bool| Observed {
            result: Ok(Returned::Value(vec![first.into(), second.into()].into())),
            writes: BTreeMap::new(),
            tools: Vec::new(),
        };
        let literals = literals(Language::Lua, "return {args[1], true}");
        assert!(!matters(&true.into(), &false.into(), &run(true, true), &run(false, true), &literals));
    }
}
