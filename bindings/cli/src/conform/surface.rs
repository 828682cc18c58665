//! What the runner asks of a host language: do what a step says, through that language's own Agent surface.
//!
//! A [`World`] only carries out and reports; every comparison is the runner's.

use cadenza_core::outcome::Outcome;
use cadenza_core::runtime::Runtime;
use cadenza_core::value::{Map, Value};

/// A host language.
pub trait Surface {
    /// `rust`, `python`, `lua` or `rhai`.
    fn runtime(&self) -> &'static str;

    /// A world without agents, whose agents belong to `runtime`.
    fn world(&self, runtime: Runtime) -> Result<Box<dyn World + '_>, String>;
}

/// One scenario's agents, by alias. An `Err` fails the scenario with its words.
pub trait World {
    /// `Agent.for_role(role, **options)`, kept under an alias.
    fn construct(&mut self, alias: &str, role: &str, options: &Map) -> Result<(), String>;
    /// Whether what is kept under the alias is a live Agent.
    fn is_agent(&mut self, target: &str) -> Result<bool, String>;
    /// `target.role`.
    fn role(&mut self, target: &str) -> Result<Value, String>;
    /// `target.remember(**entries)`; keeps what it returned.
    fn remember(&mut self, target: &str, entries: &Map) -> Result<(), String>;
    /// `target.runtime_context`, as data.
    fn context(&mut self, target: &str) -> Result<Map, String>;
    /// Whether what the latest step with that op returned *is* the target. `None` when no such step returned anything.
    fn returned_is(&mut self, from_op: &str, target: &str) -> Result<Option<bool>, String>;
    /// `target.key = value`.
    fn set(&mut self, target: &str, key: &str, value: &Value) -> Result<(), String>;
    /// `target.method(*args, **kwargs)`.
    fn call(&mut self, target: &str, method: &str, args: &[Value], kwargs: &Map) -> Result<Seen, String>;
    /// `target.delegate(tool_role).method(*args, **kwargs)`; a failure to obtain the child is an error Outcome too.
    fn tolerant_delegate(
        &mut self,
        target: &str,
        tool_role: &str,
        method: &str,
        args: &[Value],
        kwargs: &Map,
    ) -> Result<Seen, String>;
    /// `target.responds_to(method)`.
    fn responds_to(&mut self, target: &str, method: &str) -> Result<bool, String>;
}

/// What a host language sees of a call's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Whether it is a real Outcome object of that language.
    pub is_outcome: bool,
    /// `outcome.ok`.
    pub ok: bool,
    /// `outcome.value`.
    pub value: Value,
    /// `outcome.error_type`.
    pub error_type: Option<String>,
    /// `outcome.error_message`.
    pub error_message: Option<String>,
    /// `outcome.retriable`.
    pub retriable: Option<bool>,
}

impl Seen {
    /// An outcome as Rust sees it.
    pub fn of(outcome: &Outcome) -> Self {
        let error = outcome.error();
        Self {
            is_outcome: true,
            ok: outcome.ok(),
            value: outcome.value().clone(),
            error_type: error.map(|error| error.error_type.as_str().to_owned()),
            error_message: error.map(|error| error.message.clone()),
            retriable: error.map(|error| error.retriable),
        }
    }

    /// An outcome as a driver hands it over: a map with the fields of product.md section 3, and `is_outcome`.
    pub fn from_map(map: &Map) -> Result<Self, String> {
        let text = |name: &str| map.get(name).and_then(Value::as_str).map(str::to_owned);
        let truth = |name: &str| map.get(name).and_then(Value::as_bool);
        Ok(Self {
            is_outcome: truth("is_outcome").unwrap_or(false),
            ok: truth("ok").ok_or("the call's result has no truth value `ok`")?,
            value: map.get("value").cloned().unwrap_or_default(),
            error_type: text("error_type"),
            error_message: text("error_message"),
            retriable: truth("retriable"),
        })
    }
}
