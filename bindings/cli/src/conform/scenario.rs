//! Scenario files (formats.md 1.2 to 1.5), read into steps. A fault inside one scenario is that scenario's failure; only
//! a file that is not a scenario file at all is refused as a whole. Scenarios of the execution contract, which have a
//! contract and replies where others have steps, are read for the kernel's own bench.

use std::collections::BTreeMap;

use cadenza_core::kernel::script;
use cadenza_core::value::{Map, Value};

use super::document::{Fault, Fields, Kind, Node, parse};

/// Major version of the format.
pub const VERSION: i64 = 1;

/// One scenario file.
#[derive(Clone, Debug)]
pub struct ScenarioFile {
    /// Optional label.
    pub profile: Option<String>,
    /// In order.
    pub scenarios: Vec<Scenario>,
}

/// One scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Unique.
    pub id: String,
    /// 1-based line in its file.
    pub line: u64,
    /// What runs, or why nothing can.
    pub body: Result<Body, Fault>,
}

/// What a scenario is about.
#[derive(Clone, Debug)]
pub enum Body {
    /// The agent contract.
    Agent(Story),
    /// The execution contract.
    Kernel(Box<script::Scenario>),
}

/// What a scenario of the agent contract does.
#[derive(Clone, Debug)]
pub struct Story {
    /// Default options of every construct.
    pub config: Map,
    /// Method to ids; `None` without a plan.
    pub plan: Option<PlanIds>,
    /// In sequence, in one fresh world.
    pub steps: Vec<Step>,
}

/// A provider plan, by method.
pub type PlanIds = Vec<PlannedMethod>;

/// What the provider answers for one method.
#[derive(Clone, Debug)]
pub struct PlannedMethod {
    /// The method.
    pub method: String,
    /// 1-based line.
    pub line: u64,
    /// The n-th request gets the n-th id.
    pub ids: Vec<String>,
    /// Whether it is one id for every request: then no request is one too many.
    pub always: bool,
}

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// 1-based line in its file.
    pub line: u64,
    /// What it does.
    pub op: Op,
}

/// The operations of formats.md 1.5.
#[derive(Clone, Debug)]
pub enum Op {
    /// `Agent.for_role(role, config)` under an alias.
    Construct { alias: String, role: String, config: Map },
    /// It is a live Agent.
    AssertAgent { target: String },
    /// Its role.
    AssertRole { target: String, equals: Value },
    /// Calls `remember`.
    Remember { target: String, entries: Map },
    /// Each listed key equals.
    AssertMemoryIncludes { target: String, entries: Map },
    /// One key equals.
    AssertMemoryEquals { target: String, key: String, value: Value },
    /// One key is absent.
    AssertMemoryAbsent { target: String, key: String },
    /// What the latest step with that op returned *is* the target.
    AssertSameInstanceReturned { target: String, from_op: String },
    /// The setter path.
    Set { target: String, key: String, value: Value },
    /// A dynamic call.
    Call { target: String, call: Call },
    /// Delegate, then a dynamic call on the child.
    TolerantDelegate { target: String, tool_role: String, call: Call },
    /// Requests so far.
    AssertProviderCalls { equals: u64 },
    /// Requests so far for one method.
    AssertProviderCallsForMethod { method: String, equals: u64 },
    /// `responds_to`.
    AssertRespondTo { target: String, method: String, equals: bool },
    /// One field of the latest log entry.
    AssertLogFieldEquals { target: Option<String>, field: String, equals: Value },
    /// Names of fields of the latest log entry.
    AssertLogFieldsInclude { target: Option<String>, fields: Vec<String> },
    /// The process ends and another one begins on the same store.
    Restart,
    /// Calls recorded so far: all, or those of one method.
    AssertCalls { method: Option<String>, equals: u64 },
    /// Every recorded call is intact, and the same again when it is replayed without a model.
    AssertReplays,
}

/// One dynamic call with what must come of it.
#[derive(Clone, Debug)]
pub struct Call {
    /// Method name.
    pub method: String,
    /// Positional arguments.
    pub args: Vec<Value>,
    /// Named arguments.
    pub kwargs: Map,
    /// What the outcome must be.
    pub expect: Option<Expectation>,
}

/// What an outcome must be. Absent parts are not compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// `ok` or `error`.
    pub ok: bool,
    /// The value.
    pub value: Option<Value>,
    /// The kind of failure.
    pub error_type: Option<String>,
    /// Whether to try again.
    pub retriable: Option<bool>,
    /// A part of the message.
    pub error_message_includes: Option<String>,
}

/// The published operations, for messages.
const OPS: [&str; 19] = [
    "construct",
    "assert_agent",
    "assert_role",
    "remember",
    "assert_memory_includes",
    "assert_memory_equals",
    "assert_memory_absent",
    "assert_same_instance_returned",
    "set",
    "call",
    "tolerant_delegate",
    "assert_provider_calls",
    "assert_provider_calls_for_method",
    "assert_respond_to",
    "assert_log_field_equals",
    "assert_log_fields_include",
    "restart",
    "assert_calls",
    "assert_replays",
];

impl ScenarioFile {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let root = parse(text)?;
        check_version(&root, "a scenario file")?;
        let mut fields = Fields::of(&root, "a scenario file")?;
        fields.required("version")?;
        let profile = fields.optional("profile").map(|node| node.text("profile")).transpose()?;
        let items = fields.required("scenarios")?.list("scenarios")?;
        fields.finish()?;
        let mut seen = BTreeMap::new();
        let mut scenarios = Vec::with_capacity(items.len());
        for item in items {
            let mut scenario = Scenario::read(item)?;
            if let Some(first) = seen.insert(scenario.id.clone(), scenario.line) {
                let message = format!("the id `{}` is used on line {first} already", scenario.id);
                scenario.body = Err(item.fault(message));
            }
            scenarios.push(scenario);
        }
        Ok(Self { profile, scenarios })
    }
}

/// Refuses other major versions of a file's format.
pub fn check_version(root: &Node, what: &str) -> Result<(), Fault> {
    let entries = root.map(what)?;
    let Some((_, node)) = entries.iter().find(|(key, _)| key == "version") else {
        return Err(root.fault(format!("{what} begins with `version: {VERSION}`")));
    };
    match &node.kind {
        Kind::Scalar(value) if value.as_int() == Some(VERSION) => Ok(()),
        Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => {
            Err(node.fault(format!("version is {}; this version of cadenza reads version {VERSION}", node.described())))
        }
    }
}

impl Scenario {
    fn read(node: &Node) -> Result<Self, Fault> {
        let mut fields = Fields::of(node, "a scenario")?;
        let id = fields.text("id")?;
        let has = |name: &str| node.map("a scenario").is_ok_and(|entries| entries.iter().any(|(key, _)| key == name));
        let body = if !has("steps") && (has("contract") || has("replies") || has("expect")) {
            read_kernel(node).map(|scenario| Body::Kernel(Box::new(scenario)))
        } else {
            Story::read(fields).map(Body::Agent)
        };
        Ok(Self { id, line: node.line, body })
    }
}

fn read_kernel(node: &Node) -> Result<script::Scenario, Fault> {
    let refused = |error: serde_json::Error| node.fault(format!("a scenario of the execution contract: {error}"));
    serde_json::to_value(node.to_value()).and_then(serde_json::from_value).map_err(refused)
}

impl Story {
    fn read(mut fields: Fields<'_>) -> Result<Self, Fault> {
        // For readers only.
        fields.optional("verifies");
        let config = fields.entries("config")?;
        let plan = match fields.optional("provider_plan") {
            None => None,
            Some(node) if matches!(node.kind, Kind::Scalar(Value::Null)) => None,
            Some(node) => Some(read_plan(node)?),
        };
        let steps = fields.required("steps")?.list("steps")?;
        fields.finish()?;
        let steps = steps.iter().map(Step::read).collect::<Result<_, _>>()?;
        Ok(Self { config, plan, steps })
    }
}

fn read_plan(node: &Node) -> Result<PlanIds, Fault> {
    let mut plan = Vec::new();
    for (method, node) in node.map("provider_plan")? {
        let always = !matches!(node.kind, Kind::Map(_));
        let ids = match &node.kind {
            Kind::Map(_) => {
                let mut fields = Fields::of(node, format!("the plan of `{method}`"))?;
                let sequence = fields.required("sequence")?.list("sequence")?;
                fields.finish()?;
                sequence.iter().map(|id| id.text("sequence")).collect::<Result<Vec<_>, _>>()?
            }
            Kind::Scalar(_) | Kind::List(_) => vec![node.text(method)?],
        };
        plan.push(PlannedMethod { method: method.clone(), line: node.line, ids, always });
    }
    Ok(plan)
}

impl Step {
    fn read(node: &Node) -> Result<Self, Fault> {
        let mut fields = Fields::of(node, "a step")?;
        let name = fields.text("op")?;
        Ok(Self { line: node.line, op: Op::read(&name, node)? })
    }
}

impl Op {
    /// The published name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Construct { .. } => "construct",
            Self::AssertAgent { .. } => "assert_agent",
            Self::AssertRole { .. } => "assert_role",
            Self::Remember { .. } => "remember",
            Self::AssertMemoryIncludes { .. } => "assert_memory_includes",
            Self::AssertMemoryEquals { .. } => "assert_memory_equals",
            Self::AssertMemoryAbsent { .. } => "assert_memory_absent",
            Self::AssertSameInstanceReturned { .. } => "assert_same_instance_returned",
            Self::Set { .. } => "set",
            Self::Call { .. } => "call",
            Self::TolerantDelegate { .. } => "tolerant_delegate",
            Self::AssertProviderCalls { .. } => "assert_provider_calls",
            Self::AssertProviderCallsForMethod { .. } => "assert_provider_calls_for_method",
            Self::AssertRespondTo { .. } => "assert_respond_to",
            Self::AssertLogFieldEquals { .. } => "assert_log_field_equals",
            Self::AssertLogFieldsInclude { .. } => "assert_log_fields_include",
            Self::Restart => "restart",
            Self::AssertCalls { .. } => "assert_calls",
            Self::AssertReplays => "assert_replays",
        }
    }

    fn read(name: &str, node: &Node) -> Result<Self, Fault> {
        let mut fields = Fields::of(node, format!("op `{name}`"))?;
        fields.optional("op");
        let op = match name {
            "construct" => Self::Construct {
                alias: fields.text("as")?,
                role: fields.text("role")?,
                config: fields.entries("config")?,
            },
            "assert_agent" => Self::AssertAgent { target: fields.text("target")? },
            "assert_role" => {
                Self::AssertRole { target: fields.text("target")?, equals: fields.required("equals")?.to_value() }
            }
            "remember" => Self::Remember { target: fields.text("target")?, entries: required_map(&mut fields)? },
            "assert_memory_includes" => {
                Self::AssertMemoryIncludes { target: fields.text("target")?, entries: required_map(&mut fields)? }
            }
            "assert_memory_equals" => Self::AssertMemoryEquals {
                target: fields.text("target")?,
                key: fields.text("key")?,
                value: fields.required("value")?.to_value(),
            },
            "assert_memory_absent" => {
                Self::AssertMemoryAbsent { target: fields.text("target")?, key: fields.text("key")? }
            }
            "assert_same_instance_returned" => {
                Self::AssertSameInstanceReturned { target: fields.text("target")?, from_op: fields.text("from_op")? }
            }
            "set" => Self::Set {
                target: fields.text("target")?,
                key: fields.text("key")?,
                value: fields.required("value")?.to_value(),
            },
            "call" => Self::Call { target: fields.text("target")?, call: Call::read(&mut fields)? },
            "tolerant_delegate" => Self::TolerantDelegate {
                target: fields.text("target")?,
                tool_role: fields.text("tool_role")?,
                call: Call::read(&mut fields)?,
            },
            "assert_provider_calls" => {
                Self::AssertProviderCalls { equals: fields.required("equals")?.count("equals")? }
            }
            "assert_provider_calls_for_method" => Self::AssertProviderCallsForMethod {
                method: fields.text("method")?,
                equals: fields.required("equals")?.count("equals")?,
            },
            "assert_respond_to" => Self::AssertRespondTo {
                target: fields.text("target")?,
                method: fields.text("method")?,
                equals: fields.required("equals")?.truth("equals")?,
            },
            "assert_log_field_equals" => Self::AssertLogFieldEquals {
                target: fields.optional("target").map(|node| node.text("target")).transpose()?,
                field: fields.text("field")?,
                equals: fields.required("equals")?.to_value(),
            },
            "restart" => Self::Restart,
            "assert_calls" => Self::AssertCalls {
                method: fields.optional("method").map(|node| node.text("method")).transpose()?,
                equals: fields.required("equals")?.count("equals")?,
            },
            "assert_replays" => Self::AssertReplays,
            "assert_log_fields_include" => Self::AssertLogFieldsInclude {
                target: fields.optional("target").map(|node| node.text("target")).transpose()?,
                fields: fields
                    .required("fields")?
                    .list("fields")?
                    .iter()
                    .map(|field| field.text("fields"))
                    .collect::<Result<_, _>>()?,
            },
            unknown => return Err(node.fault(format!("unknown op `{unknown}`{}", suggestion(unknown)))),
        };
        fields.finish()?;
        Ok(op)
    }
}

fn suggestion(unknown: &str) -> String {
    match cadenza_core::runtime::options::nearest(unknown, &OPS) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => format!("; ops are: {}", OPS.join(", ")),
    }
}

fn required_map(fields: &mut Fields<'_>) -> Result<Map, Fault> {
    let node = fields.required("entries")?;
    match node.to_value() {
        Value::Map(map) => Ok(map),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::List(_) => {
            Err(node.fault(format!("`entries` is {}; expected a map", node.described())))
        }
    }
}

impl Call {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Fault> {
        Ok(Self {
            method: fields.text("method")?,
            args: fields.values("args")?,
            kwargs: fields.entries("kwargs")?,
            expect: fields.optional("expect_outcome").map(Expectation::read).transpose()?,
        })
    }
}

impl Expectation {
    fn read(node: &Node) -> Result<Self, Fault> {
        let mut fields = Fields::of(node, "expect_outcome")?;
        let status = fields.required("status")?;
        let ok = match status.text("status")?.as_str() {
            "ok" => true,
            "error" => false,
            other => return Err(status.fault(format!("`status` is `{other}`; expected `ok` or `error`"))),
        };
        let expectation = Self {
            ok,
            value: fields.optional("value").map(Node::to_value),
            error_type: fields.optional("error_type").map(|node| node.text("error_type")).transpose()?,
            retriable: fields.optional("retriable").map(|node| node.truth("retriable")).transpose()?,
            error_message_includes: fields
                .optional("error_message_includes")
                .map(|node| node.text("error_message_includes"))
                .transpose()?,
        };
        fields.finish()?;
        Ok(expectation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_in_one_scenario_leaves_the_others_alone() {
        let text = "version: 1\nscenarios:\n  - id: a\n    steps:\n      - {op: cal, target: x}\n  - id: b\n    steps: []\n  - id: a\n    steps: []\n";
        let file = ScenarioFile::parse(text).unwrap();
        let faults: Vec<_> = file.scenarios.iter().map(|scenario| scenario.body.as_ref().err().cloned()).collect();
        assert_eq!(faults[0], Some(Fault::new(5, "unknown op `cal`; did you mean `call`?")));
        assert_eq!(faults[1], None);
        assert_eq!(faults[2], Some(Fault::new(8, "the id `a` is used on line 3 already")));
    }

    #[test]
    fn unknown_expectation_keys_and_other_versions_are_refused() {
        let text = "version: 1\nscenarios:\n- id: a\n  steps:\n  - op: call\n    target: x\n    method: m\n    expect_outcome: {status: ok, valu: 3}\n";
        let file = ScenarioFile::parse(text).unwrap();
        let fault = file.scenarios[0].body.as_ref().unwrap_err().to_string();
        assert!(
            fault.starts_with("line 8: expect_outcome has no field `valu`; its fields are: status, value"),
            "{fault}"
        );
        let fault = ScenarioFile::parse("version: 2\nscenarios: []\n").unwrap_err().to_string();
        assert_eq!(fault, "line 1: version is the number 2; this version of cadenza reads version 1");
        assert!(ScenarioFile::parse("scenarios: []\n").is_err());
    }
}
