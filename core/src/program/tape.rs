//! What a program was told: everything that its host answered during one execution, and what it wrote (unified-kernel
//! 6.10, level 3). With the tape a program runs again without its agent, its tools and its children, and must do the same.
//!
//! A program that looks at its arguments alone has an empty tape, and most programs do. Recording is bounded: a tape that
//! grows too long says so, and its execution cannot be repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{AgentRef, Host, HostError, Reads};
use crate::outcome::{ErrorType, Outcome, OutcomeError};
use crate::value::{Map, Value};

/// Bytes of one execution's tape, as JSON, about.
const MAX_BYTES: usize = 64 << 10;

/// Keys that were written; `None` marks a removed one.
pub type Written = BTreeMap<String, Option<Value>>;

/// What one execution was told and what it wrote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tape {
    /// Context keys that it looked at, as they were before it ran; `None` for one that was not there.
    pub context: Written,
    /// Everything else that it asked its host, in order.
    pub calls: Vec<HostCall>,
    /// What it wrote into its context.
    pub writes: Written,
    /// More was asked than a tape holds, or the context changed under the program.
    pub too_long: bool,
    bytes: usize,
}

/// One question to the host and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCall {
    /// Which of the host's functions.
    pub what: HostOp,
    /// What it was asked with.
    pub asked: Vec<Value>,
    /// What it said.
    pub answer: Answer,
}

/// What a host says.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Data.
    Value(Value),
    /// What a call of an agent gave.
    Outcome(Outcome),
    /// It refused, in these words.
    Refused(String),
    /// The call around it was over.
    Stop,
}

macro_rules! host_ops {
    ($($name:ident $text:literal $doc:literal),* $(,)?) => {
        /// The host's functions, as far as they are recorded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HostOp { $(#[doc = $doc] $name),* }

        impl HostOp {
            /// The spelling on tapes.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            fn from_name(name: &str) -> Option<Self> {
                [$(Self::$name),*].into_iter().find(|op| op.as_str() == name)
            }
        }
    };
}

host_ops! {
    Get "get" "A context key of another agent.",
    Set "set" "Writing one.",
    Remove "remove" "Removing one.",
    Keys "keys" "All context keys of another agent.",
    Role "role" "The role of another agent.",
    Delegate "delegate" "A new delegate.",
    ForRole "for_role" "A new agent.",
    AgentTool "agent_tool" "The delegate for a tool name.",
    RespondsTo "responds_to" "Whether an agent knows a name.",
    Call "call" "A dynamic call.",
    Wrote "wrote" "What a call of the program's own agent left in the program's context.",
    Tool "tool" "A host tool.",
    ToolNames "tool_names" "Names of host tools.",
    History "history" "Earlier results.",
    Content "content" "The content behind a reference.",
    Now "now" "The time.",
    Random "random" "A random number.",
}

impl Tape {
    /// Whether there is nothing on it: the execution depends on its arguments alone and wrote nothing.
    pub fn is_empty(&self) -> bool {
        self.context.is_empty() && self.calls.is_empty() && self.writes.is_empty() && !self.too_long
    }

    /// Notes one question and its answer.
    pub fn push(&mut self, what: HostOp, asked: Vec<Value>, answer: Answer) {
        let said = match &answer {
            Answer::Value(value) => weight(value),
            Answer::Outcome(outcome) => weight(outcome.value()) + 64,
            Answer::Refused(message) => message.len(),
            Answer::Stop => 1,
        };
        if self.room_for(said + asked.iter().map(weight).sum::<usize>() + 16) {
            self.calls.push(HostCall { what, asked, answer });
        }
    }

    /// Notes what the execution looked at in its own context, and what it wrote there.
    pub fn finish(&mut self, reads: &Reads, context: Written, writes: Written) {
        debug_assert!(reads.all_context || context.keys().all(|key| reads.context.contains(key)));
        let weighed = |map: &Written| -> usize {
            map.iter().map(|(key, value)| key.len() + 8 + value.as_ref().map_or(0, weight)).sum()
        };
        if self.room_for(weighed(&context) + weighed(&writes)) {
            (self.context, self.writes) = (context, writes);
        }
    }

    /// What it would say is not known: the host wrote to the context while the program read it.
    pub fn give_up(&mut self) {
        *self = Self { too_long: true, bytes: MAX_BYTES + 1, ..Self::default() };
    }

    fn room_for(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        if self.bytes > MAX_BYTES && !self.too_long {
            *self = Self { too_long: true, bytes: self.bytes, ..Self::default() };
        }
        !self.too_long
    }

    /// As data, for a store; null for an empty tape.
    pub fn to_value(&self) -> Value {
        if self.is_empty() {
            return Value::Null;
        }
        let keys = |map: &Written| {
            let entry =
                |(key, value): (&String, &Option<Value>)| (key.clone(), Value::List(value.iter().cloned().collect()));
            Value::Map(map.iter().map(entry).collect())
        };
        let mut map = Map::new();
        if !self.context.is_empty() {
            map.insert("context".into(), keys(&self.context));
        }
        if !self.calls.is_empty() {
            map.insert("calls".into(), Value::List(self.calls.iter().map(HostCall::to_value).collect()));
        }
        if !self.writes.is_empty() {
            map.insert("writes".into(), keys(&self.writes));
        }
        if self.too_long {
            map.insert("too_long".into(), true.into());
        }
        Value::Map(map)
    }

    /// Reads [`Tape::to_value`] back; `None` for what is no tape.
    pub fn from_value(value: &Value) -> Option<Self> {
        let map = match value {
            Value::Null => return Some(Self::default()),
            Value::Map(map) => map,
            _ => return None,
        };
        let keys = |name: &str| -> Option<Written> {
            let Some(keys) = map.get(name) else { return Some(Written::new()) };
            let entry = |(key, value): (&String, &Value)| Some((key.clone(), value.as_list()?.first().cloned()));
            keys.as_map()?.iter().map(entry).collect()
        };
        let calls = match map.get("calls") {
            None => Vec::new(),
            Some(calls) => calls.as_list()?.iter().map(HostCall::from_value).collect::<Option<_>>()?,
        };
        let too_long = map.contains_key("too_long");
        Some(Self { context: keys("context")?, calls, writes: keys("writes")?, too_long, bytes: 0 })
    }
}

impl HostCall {
    /// `[function, [asked…], how, answer]`.
    fn to_value(&self) -> Value {
        let (how, answer) = match &self.answer {
            Answer::Value(value) => ("value", value.clone()),
            Answer::Outcome(outcome) => ("outcome", Value::Map(envelope(outcome))),
            Answer::Refused(message) => ("refused", message.as_str().into()),
            Answer::Stop => ("stop", Value::Null),
        };
        Value::List(vec![self.what.as_str().into(), Value::List(self.asked.clone()), how.into(), answer])
    }

    fn from_value(value: &Value) -> Option<Self> {
        let [what, asked, how, answer] = value.as_list()? else { return None };
        let answer = match how.as_str()? {
            "value" => Answer::Value(answer.clone()),
            "outcome" => Answer::Outcome(opened(answer.as_map()?)?),
            "refused" => Answer::Refused(answer.as_str()?.to_owned()),
            "stop" => Answer::Stop,
            _ => return None,
        };
        Some(Self { what: HostOp::from_name(what.as_str()?)?, asked: asked.as_list()?.to_vec(), answer })
    }
}

/// An outcome without the metadata of its call: what a program's result depends on.
pub fn envelope(outcome: &Outcome) -> Map {
    let without = Outcome { metadata: None, ..outcome.clone() };
    let mut map = without.to_map();
    map.remove("metadata");
    map
}

fn opened(map: &Map) -> Option<Outcome> {
    let text = |name: &str| map.get(name).and_then(Value::as_str);
    let result = match text("status")? {
        "ok" => Ok(map.get("value")?.clone()),
        _ => Err(OutcomeError {
            error_type: ErrorType::from_name(text("error_type")?),
            message: text("error_message")?.to_owned(),
            retriable: map.get("retriable").and_then(Value::as_bool)?,
        }),
    };
    Some(Outcome { result, role: text("role")?.into(), method: text("method")?.into(), metadata: None })
}

/// Bytes of a value as JSON, about.
fn weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::List(list) => 2 + list.iter().map(weight).sum::<usize>(),
        Value::Map(map) => 2 + map.iter().map(|(key, value)| key.len() + 4 + weight(value)).sum::<usize>(),
    }
}

/// How strictly a program must ask what is on the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The same questions in the same order: the program that was recorded.
    Exactly,
    /// Questions whose answers are on the tape, in any order: another program for the same call.
    AnyOrder,
}

/// The host of a program that runs again: it answers from the tape and reaches nothing.
#[derive(Debug)]
pub struct TapeHost<'a> {
    tape: &'a Tape,
    follow: Follow,
    role: Arc<str>,
    state: Mutex<Playing>,
}

#[derive(Debug, Default)]
struct Playing {
    /// The next entry, or how many were used.
    next: usize,
    used: BTreeSet<usize>,
    writes: Written,
    strayed: Option<String>,
}

impl<'a> TapeHost<'a> {
    /// A host for the agent of that role.
    pub fn new(tape: &'a Tape, follow: Follow, role: Arc<str>) -> Self {
        Self { tape, follow, role, state: Mutex::default() }
    }

    /// What the program wrote into its context.
    pub fn writes(&self) -> Written {
        self.state.lock().writes.clone()
    }

    /// What it asked that is not on the tape, or what it did not ask.
    pub fn strayed(&self) -> Option<String> {
        let state = self.state.lock();
        let left = self.follow == Follow::Exactly && state.next < self.tape.calls.len();
        state.strayed.clone().or_else(|| {
            left.then(|| format!("it did not ask its host for `{}`", self.tape.calls[state.next].what.as_str()))
        })
    }

    /// The recorded answer.
    fn answer(&self, what: HostOp, asked: Vec<Value>) -> Result<Answer, HostError> {
        let mut state = self.state.lock();
        let fits = |call: &HostCall| call.what == what && call.asked == asked;
        let found = match self.follow {
            Follow::Exactly => Some(state.next).filter(|next| self.tape.calls.get(*next).is_some_and(&fits)),
            Follow::AnyOrder => {
                let fresh = |(index, call): &(usize, &HostCall)| !state.used.contains(index) && fits(call);
                self.tape.calls.iter().enumerate().find(fresh).map(|(index, _)| index)
            }
        };
        let Some(index) = found else {
            let asked = Value::List(asked).shown();
            state.strayed.get_or_insert_with(|| format!("it asked its host for `{}` with {asked}", what.as_str()));
            return Err(HostError::Stop);
        };
        (state.next, _) = (index + 1, state.used.insert(index));
        // What a call of its own agent left behind is part of that call.
        if let Some(HostCall { what: HostOp::Wrote, asked, .. }) = self.tape.calls.get(index + 1) {
            (state.next, _) = (index + 2, state.used.insert(index + 1));
            for (key, value) in asked.first().and_then(Value::as_map).into_iter().flatten() {
                state.writes.insert(key.clone(), value.as_list().and_then(|value| value.first().cloned()));
            }
        }
        Ok(self.tape.calls[index].answer.clone())
    }

    fn value(&self, what: HostOp, asked: Vec<Value>) -> Result<Value, HostError> {
        match self.answer(what, asked)? {
            Answer::Value(value) => Ok(value),
            Answer::Outcome(outcome) => Ok(outcome.value().clone()),
            Answer::Refused(message) => Err(HostError::Refused(message)),
            Answer::Stop => Err(HostError::Stop),
        }
    }

    fn agent(&self, what: HostOp, asked: Vec<Value>) -> Result<AgentRef, HostError> {
        let number = self.value(what, asked)?;
        Ok(AgentRef(number.as_int().and_then(|number| u32::try_from(number).ok()).unwrap_or_default()))
    }

    /// A key of the program's own context.
    fn own(&self, key: &str) -> Option<Value> {
        let mut state = self.state.lock();
        if let Some(written) = state.writes.get(key) {
            return written.clone();
        }
        match self.tape.context.get(key) {
            Some(value) => value.clone(),
            None => {
                state.strayed.get_or_insert_with(|| format!("it looked at the context key `{key}`"));
                None
            }
        }
    }
}

impl Host for TapeHost<'_> {
    fn context_get(&self, agent: AgentRef, key: &str) -> Option<Value> {
        if agent == AgentRef::THIS {
            return self.own(key);
        }
        let found = self.value(HostOp::Get, vec![agent.into(), key.into()]).ok()?;
        found.as_list()?.first().cloned()
    }

    fn context_set(&self, agent: AgentRef, key: &str, value: Value) -> Result<(), HostError> {
        if agent == AgentRef::THIS {
            self.state.lock().writes.insert(key.to_owned(), Some(value));
            return Ok(());
        }
        self.value(HostOp::Set, vec![agent.into(), key.into(), value]).map(drop)
    }

    fn context_remove(&self, agent: AgentRef, key: &str) -> Result<(), HostError> {
        if agent == AgentRef::THIS {
            self.state.lock().writes.insert(key.to_owned(), None);
            return Ok(());
        }
        self.value(HostOp::Remove, vec![agent.into(), key.into()]).map(drop)
    }

    fn context_keys(&self, agent: AgentRef) -> Vec<String> {
        if agent == AgentRef::THIS {
            let writes = self.writes();
            let before = self.tape.context.iter().filter(|(key, value)| value.is_some() && !writes.contains_key(*key));
            let written = writes.iter().filter(|(_, value)| value.is_some());
            let keys: BTreeSet<&String> = before.chain(written).map(|(key, _)| key).collect();
            return keys.into_iter().cloned().collect();
        }
        texts(self.value(HostOp::Keys, vec![agent.into()]))
    }

    fn role(&self, agent: AgentRef) -> Arc<str> {
        if agent == AgentRef::THIS {
            return self.role.clone();
        }
        self.value(HostOp::Role, vec![agent.into()]).ok().as_ref().and_then(Value::as_str).unwrap_or_default().into()
    }

    fn remember(&self, agent: AgentRef, entries: Map) -> Result<(), HostError> {
        entries.into_iter().try_for_each(|(key, value)| self.context_set(agent, &key, value))
    }

    fn delegate(&self, agent: AgentRef, role: &str, options: Map) -> Result<AgentRef, HostError> {
        self.agent(HostOp::Delegate, vec![agent.into(), role.into(), Value::Map(options)])
    }

    fn for_role(&self, role: &str, options: Map) -> Result<AgentRef, HostError> {
        self.agent(HostOp::ForRole, vec![role.into(), Value::Map(options)])
    }

    fn agent_tool(&self, agent: AgentRef, name: &str) -> Result<AgentRef, HostError> {
        self.agent(HostOp::AgentTool, vec![agent.into(), name.into()])
    }

    fn responds_to(&self, agent: AgentRef, name: &str) -> bool {
        self.value(HostOp::RespondsTo, vec![agent.into(), name.into()]) == Ok(Value::Bool(true))
    }

    fn call(&self, agent: AgentRef, method: &str, args: Vec<Value>, kwargs: Map) -> Result<Outcome, HostError> {
        match self.answer(HostOp::Call, vec![agent.into(), method.into(), Value::List(args), Value::Map(kwargs)])? {
            Answer::Outcome(outcome) => Ok(outcome),
            Answer::Value(value) => Ok(Outcome::of_value(value)),
            Answer::Refused(message) => Err(HostError::Refused(message)),
            Answer::Stop => Err(HostError::Stop),
        }
    }

    fn tool(&self, name: &str, arguments: Map) -> Result<Value, HostError> {
        self.value(HostOp::Tool, vec![name.into(), Value::Map(arguments)])
    }

    fn tool_names(&self) -> Vec<String> {
        texts(self.value(HostOp::ToolNames, Vec::new()))
    }

    fn history(&self) -> Vec<Value> {
        match self.value(HostOp::History, Vec::new()) {
            Ok(Value::List(entries)) => entries,
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    fn content(&self, reference: &str) -> Result<Value, HostError> {
        self.value(HostOp::Content, vec![reference.into()])
    }

    fn now(&self) -> i64 {
        self.value(HostOp::Now, Vec::new()).ok().and_then(|value| value.as_int()).unwrap_or_default()
    }

    fn random(&self) -> f64 {
        self.value(HostOp::Random, Vec::new()).ok().and_then(|value| value.as_float()).unwrap_or_default()
    }

    fn print(&self, _line: &str) {}
}

fn texts(value: Result<Value, HostError>) -> Vec<String> {
    let Ok(Value::List(list)) = value else { return Vec::new() };
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tape() -> Tape {
        let mut tape = Tape::default();
        tape.push(HostOp::Now, Vec::new(), Answer::Value(7.into()));
        let failed = Outcome::of_error(ErrorType::Timeout, "slow", true);
        tape.push(HostOp::Call, vec![1.into(), "add".into()], Answer::Outcome(failed));
        tape.push(HostOp::Tool, vec!["t".into()], Answer::Refused("no".into()));
        let reads = Reads { context: BTreeSet::from(["n".to_owned(), "m".to_owned()]), ..Reads::default() };
        let context = Written::from([("n".to_owned(), Some(1.into())), ("m".to_owned(), None)]);
        tape.finish(&reads, context, Written::from([("n".to_owned(), None)]));
        tape
    }

    #[test]
    fn a_tape_is_read_back_unchanged() {
        let stored = Value::from_json(&tape().to_value().to_json()).unwrap();
        assert_eq!(Tape::from_value(&stored).unwrap(), Tape { bytes: 0, ..tape() });
        assert_eq!(Tape::from_value(&Value::Null), Some(Tape::default()));
        assert_eq!(Tape::from_value(&Value::from_json(r#"{"calls":[["now",[]]]}"#).unwrap()), None);
    }

    #[test]
    fn a_program_must_ask_what_was_recorded() {
        let tape = tape();
        let host = TapeHost::new(&tape, Follow::Exactly, "r".into());
        assert_eq!((host.now(), host.strayed().is_some()), (7, true), "two questions are left");
        assert_eq!(host.tool("t", Map::new()), Err(HostError::Stop), "a call comes first");
        assert!(host.strayed().unwrap().contains("`tool`"));
        let host = TapeHost::new(&tape, Follow::AnyOrder, "r".into());
        assert_eq!((host.now(), host.strayed()), (7, None));
        assert_eq!(host.context_get(AgentRef::THIS, "n"), Some(1.into()));
        assert_eq!(host.context_keys(AgentRef::THIS), ["n"]);
        assert_eq!((host.context_get(AgentRef::THIS, "x"), host.strayed().is_some()), (None, true));
    }

    #[test]
    fn what_grows_too_long_is_forgotten_as_a_whole() {
        let mut tape = tape();
        tape.push(HostOp::Content, vec!["x".into()], Answer::Value("y".repeat(MAX_BYTES).into()));
        tape.push(HostOp::Now, Vec::new(), Answer::Value(7.into()));
        assert!(tape.too_long && tape.calls.is_empty() && tape.context.is_empty());
    }
}
