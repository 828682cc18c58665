//! Host tools: functions of the host that programs may call, each with a JSON Schema for its arguments.
//!
//! A tool sees only its arguments. Calls are validated here, bounded and recorded by the caller; which agent may call
//! which tool is decided by the agent's [`ToolSet`], inherited by its delegates.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::cancel::CancelToken;
use crate::canonical;
use crate::ids::Digest;
use crate::schema::Schema;
use crate::value::{Map, Value};

/// What a tool does: arguments object in, value or message out, within the bounds of the call it works for.
type Handler = Box<dyn Fn(Map, &ToolBounds<'_>) -> Result<Value, String> + Send + Sync>;

/// What one call of a tool must stay within. A tool that can wait gives up by itself.
#[derive(Clone, Copy, Debug)]
pub struct ToolBounds<'a> {
    /// When the call it works for is over.
    pub deadline: Instant,
    /// Set when nobody waits any more.
    pub cancel: &'a CancelToken,
}

/// What a call of a tool leaves behind in the world (store.md P5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it may be asked again at any time, and nothing is written down before it is.
    Pure,
    /// The same as one call of it does, however often it is called with the same arguments.
    Idempotent,
    /// Something that cannot be taken back: at most once. What is not declared is this.
    #[default]
    Effectful,
}

impl Effect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pure, Self::Idempotent, Self::Effectful];

    /// The published spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Idempotent => "idempotent",
            Self::Effectful => "effectful",
        }
    }

    /// The class with that spelling.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.as_str() == name)
    }
}

/// One host tool. Immutable.
pub struct Tool {
    name: Arc<str>,
    description: Arc<str>,
    parameters: Schema,
    effect: Effect,
    handler: Handler,
}

/// Why a tool cannot be registered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ToolError {
    /// Names are what models and wire formats accept.
    #[error("tool name {0:?} is refused: use 1 to 64 letters, digits, `_` or `-`, beginning with a letter or `_`")]
    Name(String),
    /// No such class of effects.
    #[error("effect {effect:?} of tool {name:?}: expected {}", Effect::ALL.map(Effect::as_str).join(" or "))]
    Effect {
        /// Which tool.
        name: String,
        /// What was given.
        effect: String,
    },
    /// The schema does not compile.
    #[error("the parameters of tool {name:?} are not a JSON Schema: {message}")]
    Schema {
        /// Which tool.
        name: String,
        /// The schema compiler's words.
        message: String,
    },
}

impl Tool {
    /// A tool with a JSON Schema for its arguments object.
    pub fn new(
        name: &str,
        description: &str,
        parameters: Value,
        handler: impl Fn(Map, &ToolBounds<'_>) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Result<Self, ToolError> {
        if !is_tool_name(name) {
            return Err(ToolError::Name(name.to_owned()));
        }
        let refused = |message: String| ToolError::Schema { name: name.to_owned(), message };
        Ok(Self {
            name: name.into(),
            description: description.into(),
            parameters: Schema::compile(&parameters).map_err(refused)?,
            effect: Effect::default(),
            handler: Box::new(handler),
        })
    }

    /// The same tool with that class of effects, by its spelling.
    pub fn with_effect(self, effect: &str) -> Result<Self, ToolError> {
        let refused = || ToolError::Effect { name: self.name.to_string(), effect: effect.to_owned() };
        Ok(Self { effect: Effect::from_name(effect).ok_or_else(refused)?, ..self })
    }

    /// What a call leaves behind.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// The name programs use: `tools.<name>`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What it does, as the model reads it.
    pub fn description(&self) -> &Arc<str> {
        &self.description
    }

    /// JSON Schema of the arguments object.
    pub fn parameters(&self) -> &Value {
        self.parameters.source()
    }

    /// Validates and calls. A panic in the handler is an error, not the end of the process.
    pub fn call(&self, arguments: Map, bounds: &ToolBounds<'_>) -> Result<Value, String> {
        let arguments = Value::Map(arguments);
        if let Err(misfit) = self.parameters.check(&arguments) {
            return Err(format!("arguments of tool {} at {:?}: {misfit}", self.name, misfit.place));
        }
        let Value::Map(arguments) = arguments else { unreachable!("it was made a map above") };
        catch_unwind(AssertUnwindSafe(|| (self.handler)(arguments, bounds)))
            .unwrap_or_else(|_| Err(format!("tool {} panicked", self.name)))
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Tool({})", self.name)
    }
}

/// Whether wire formats and both program languages accept the name.
pub fn is_tool_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 64
        && bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// The tools that one agent and its delegates may call, by name, with one fingerprint over their schemas.
#[derive(Clone, Debug)]
pub struct ToolSet {
    tools: BTreeMap<Arc<str>, Arc<Tool>>,
    fingerprint: Digest,
}

impl ToolSet {
    /// The set of these tools; a later one replaces an earlier one of the same name.
    pub fn new(tools: impl IntoIterator<Item = Arc<Tool>>) -> Self {
        let tools: BTreeMap<_, _> = tools.into_iter().map(|tool| (tool.name.clone(), tool)).collect();
        let described = tools
            .values()
            .map(|tool| Value::List(vec![(&*tool.name).into(), tool.parameters().clone()]))
            .collect::<Vec<_>>();
        let fingerprint = canonical::hash(&Value::List(described));
        Self { tools, fingerprint }
    }

    /// The tool with that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Tool>> {
        self.tools.get(name)
    }

    /// All tools, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Equal for equal names and schemas; part of the reuse key.
    pub fn fingerprint(&self) -> Digest {
        self.fingerprint
    }
}

impl Default for ToolSet {
    fn default() -> Self {
        Self::new([])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &Tool, arguments: Map) -> Result<Value, String> {
        tool.call(arguments, &ToolBounds { deadline: Instant::now(), cancel: &CancelToken::default() })
    }

    fn schema() -> Value {
        Value::from_json(r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#).unwrap()
    }

    #[test]
    fn arguments_are_validated_before_the_handler_runs() {
        let tool = Tool::new("double", "", schema(), |arguments, _| {
            Ok(Value::Int(arguments["n"].as_int().unwrap_or_default() * 2))
        })
        .unwrap();
        assert_eq!(call(&tool, Map::from([("n".into(), 4.into())])), Ok(8.into()));
        assert!(call(&tool, Map::new()).unwrap_err().contains("\"n\" is a required property"));
    }

    #[test]
    fn a_panicking_handler_is_an_error() {
        let tool = Tool::new("boom", "", Value::Map(Map::new()), |_, _| panic!("no")).unwrap();
        assert_eq!(call(&tool, Map::new()), Err("tool boom panicked".into()));
    }

    #[test]
    fn bad_names_and_schemas_are_refused() {
        assert!(matches!(Tool::new("a b", "", schema(), |_, _| Ok(Value::Null)), Err(ToolError::Name(_))));
        let bad = Value::from_json(r#"{"type": 7}"#).unwrap();
        assert!(matches!(Tool::new("a", "", bad, |_, _| Ok(Value::Null)), Err(ToolError::Schema { .. })));
    }
}
