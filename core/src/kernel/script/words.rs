//! The stub vocabulary of the execution clauses: what a scripted model says and how scripted tools behave.
//!
//! Replies: `T` prose · `T+500` prose of 500 bytes · `E` empty · `C(t)` one call, `C(t,u)` a batch · `TC(t)` text and a
//! call · `BAD` unparsable call · `REC` recoverable call · `X` transport failure · `SLOW` past the step limit · `CANCEL`
//! cancelled meanwhile · `done(a)` achieved, `done(b)` blocked. Tools: `t` ok · `t=7` ok with that value · `t+500` ok with
//! 500 bytes · `t!` error · `t!result` refused by its result contract · `t!fuel`, `t!cpu_time` out of it · `t#` malformed
//! envelope · `t~` past the step limit · `t^` cancelled meanwhile · `t{"x":1}` with those arguments.

use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use crate::kernel::ToolFailure;
use crate::value::{Map, Value};

/// One reply of the scripted model, and what goes with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// The reply.
    pub atom: Atom,
    /// Tokens as the provider reports them; `None` reports nothing.
    pub tokens: Option<u64>,
    /// How long the inference takes.
    pub elapsed_ms: u64,
    /// How long each of its tools takes.
    pub tool_elapsed_ms: u64,
    /// Bytes of the prompt, in place of the real count.
    pub prompt_bytes: Option<u64>,
    /// Tokens of child runs that each of its tools starts.
    pub child_tokens: u64,
    /// The cancel token is set when the reply arrives.
    pub cancelled: bool,
    /// The cancel token is set when its tools come back.
    pub cancelled_in_tool: bool,
    /// Somebody exchanges the contract meanwhile (EC-IB1).
    pub swap_contract: bool,
}

/// A word of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub enum Atom {
    /// `T`, `T+n`.
    Prose(String),
    /// `E`.
    Empty,
    /// `C(…)`, `TC(…)`, `done(…)`.
    Calls {
        /// Text beside the calls.
        text: bool,
        /// In order.
        calls: Vec<ScriptedCall>,
    },
    /// `BAD`.
    Bad,
    /// `REC`.
    Recoverable,
    /// `X`.
    TransportFailure,
    /// `BROKE`: no money is left for the request.
    Broke,
    /// `SLOW`.
    Slow,
    /// `CANCEL`.
    Cancel,
}

/// One call, and how its tool will behave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScriptedCall {
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Map,
    /// What it does.
    pub behaviour: Behaviour,
}

/// What a scripted tool does.
#[derive(Clone, Debug, PartialEq)]
pub enum Behaviour {
    /// An ok envelope with that value.
    Ok(Value),
    /// An error envelope.
    Error(ToolFailure),
    /// Not an envelope.
    Malformed,
    /// Past the step limit.
    Slow,
    /// Cancelled meanwhile.
    Cancel,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self::Ok("ok".into())
    }
}

impl Said {
    /// That reply and nothing else.
    pub fn of(atom: Atom) -> Self {
        Self {
            atom,
            tokens: None,
            elapsed_ms: 0,
            tool_elapsed_ms: 0,
            prompt_bytes: None,
            child_tokens: 0,
            cancelled: false,
            cancelled_in_tool: false,
            swap_contract: false,
        }
    }
}

impl Atom {
    /// The calls, if there are any.
    pub fn calls(&self) -> Vec<ScriptedCall> {
        match self {
            Self::Calls { calls, .. } => calls.clone(),
            Self::Recoverable => vec![ScriptedCall { name: "t".into(), ..ScriptedCall::default() }],
            Self::Prose(_)
            | Self::Empty
            | Self::Bad
            | Self::TransportFailure
            | Self::Broke
            | Self::Slow
            | Self::Cancel => Vec::new(),
        }
    }

    /// The text as it is streamed.
    pub fn chunks(&self) -> Vec<&str> {
        match self {
            Self::Prose(text) => vec![text],
            Self::Calls { text: true, .. } => vec!["I will ", "do it."],
            Self::Calls { text: false, .. }
            | Self::Empty
            | Self::Bad
            | Self::Recoverable
            | Self::TransportFailure
            | Self::Broke
            | Self::Slow
            | Self::Cancel => Vec::new(),
        }
    }
}

impl FromStr for Atom {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let inside = |prefix: &str| word.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(')'));
        match word {
            "T" => return Ok(Self::Prose("Done.".into())),
            "E" => return Ok(Self::Empty),
            "BAD" => return Ok(Self::Bad),
            "REC" => return Ok(Self::Recoverable),
            "X" => return Ok(Self::TransportFailure),
            "BROKE" => return Ok(Self::Broke),
            "SLOW" => return Ok(Self::Slow),
            "CANCEL" => return Ok(Self::Cancel),
            _ => {}
        }
        if let Some(bytes) = word.strip_prefix("T+") {
            let bytes: usize = bytes.parse().map_err(|_| format!("`{word}`: how many bytes?"))?;
            return Ok(Self::Prose("x".repeat(bytes)));
        }
        if word.starts_with("done(") {
            return Ok(Self::Calls { text: false, calls: vec![call(word)?] });
        }
        for (prefix, text) in [("TC(", true), ("C(", false)] {
            if let Some(list) = inside(prefix) {
                let calls = split(list).into_iter().map(call).collect::<Result<_, _>>()?;
                return Ok(Self::Calls { text, calls });
            }
        }
        Err(format!("`{word}` is no word of the stub vocabulary"))
    }
}

/// Splits at commas outside brackets and quotes.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut quoted, mut start) = (Vec::new(), 0_u32, false, 0);
    for (index, byte) in list.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'(' | b'{' | b'[' if !quoted => depth += 1,
            b')' | b'}' | b']' if !quoted => depth = depth.saturating_sub(1),
            b',' if !quoted && depth == 0 => {
                parts.push(list[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(list[start..].trim());
    parts
}

fn call(text: &str) -> Result<ScriptedCall, String> {
    if let Some(status) = text.strip_prefix("done(").and_then(|rest| rest.strip_suffix(')')) {
        let status = match status {
            "a" => "achieved",
            "b" => "blocked",
            _ => return Err(format!("`{text}`: achieved is `a`, blocked is `b`")),
        };
        let arguments = Map::from([("status".into(), status.into()), ("reason".into(), "because".into())]);
        return Ok(ScriptedCall { name: "done".into(), arguments, behaviour: Behaviour::default() });
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    let mut arguments = Map::new();
    if rest.starts_with('{') {
        let close = rest.rfind('}').ok_or_else(|| format!("`{text}`: the arguments are not closed"))?;
        let value = Value::from_json(&rest[..=close]).map_err(|error| format!("`{text}`: {error}"))?;
        arguments = value.as_map().cloned().unwrap_or_default();
        rest = &rest[close + 1..];
    }
    Ok(ScriptedCall { name: name.to_owned(), arguments, behaviour: behaviour(text, rest)? })
}

fn behaviour(text: &str, suffix: &str) -> Result<Behaviour, String> {
    let unknown = || format!("`{text}`: no tool behaves like `{suffix}`");
    let mut chars = suffix.chars();
    let first = chars.next();
    let rest = chars.as_str();
    Ok(match first {
        None => Behaviour::default(),
        Some('~') => Behaviour::Slow,
        Some('#') => Behaviour::Malformed,
        Some('^') => Behaviour::Cancel,
        Some('!') if rest.is_empty() => Behaviour::Error(ToolFailure::Failed),
        Some('!') if rest == "result" => Behaviour::Error(ToolFailure::ResultContract),
        Some('!') => Behaviour::Error(ToolFailure::from_name(rest).ok_or_else(unknown)?),
        Some('+') => Behaviour::Ok(Value::String("x".repeat(rest.parse().map_err(|_| unknown())?))),
        Some('=') => Behaviour::Ok(Value::from_json(rest).map_err(|error| format!("`{text}`: {error}"))?),
        Some(_) => return Err(unknown()),
    })
}

impl FromStr for Said {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        word.parse().map(Self::of)
    }
}

/// A word, or a map with `say` and what goes with it.
impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Word(String),
            Full(Full),
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Full {
            say: String,
            #[serde(default)]
            tokens: Option<u64>,
            #[serde(default)]
            elapsed_ms: u64,
            #[serde(default)]
            tool_elapsed_ms: u64,
            #[serde(default)]
            prompt_bytes: Option<u64>,
            #[serde(default)]
            child_tokens: u64,
            #[serde(default)]
            cancelled: bool,
            #[serde(default)]
            cancelled_in_tool: bool,
            #[serde(default)]
            swap_contract: bool,
        }
        let read = |word: &str| word.parse::<Atom>().map_err(serde::de::Error::custom);
        Ok(match Form::deserialize(deserializer)? {
            Form::Word(word) => Self::of(read(&word)?),
            Form::Full(full) => Self {
                atom: read(&full.say)?,
                tokens: full.tokens,
                elapsed_ms: full.elapsed_ms,
                tool_elapsed_ms: full.tool_elapsed_ms,
                prompt_bytes: full.prompt_bytes,
                child_tokens: full.child_tokens,
                cancelled: full.cancelled,
                cancelled_in_tool: full.cancelled_in_tool,
                swap_contract: full.swap_contract,
            },
        })
    }
}
