//! What exists: the tools a run could use and the profiles its model's replies can be read with.
//!
//! The factory checks scope against it, PRECHECK checks the contract against it, VALIDATE_CALLS checks arguments with
//! it. It holds descriptions only: nothing here can run a tool or ask a model.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::message::CallFormat;
use crate::schema::Schema;
use crate::value::{Map, Value};

/// A tool that ends or reports on a run instead of touching the world. Never proof of work (X4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTool {
    /// `done{status, reason}`: ends the run (X5).
    Done,
    /// `final_report{…}`: ends the run with its report as the value.
    FinalReport,
}

/// A tool as the kernel knows it.
#[derive(Clone, Debug)]
pub struct ManifestTool {
    /// Its name.
    pub name: Arc<str>,
    /// Which arguments it takes.
    pub arguments: ArgumentCheck,
    /// `None` for an ordinary tool.
    pub control: Option<ControlTool>,
}

/// All tools that exist for a run, by name.
#[derive(Clone, Debug, Default)]
pub struct Manifest(BTreeMap<Arc<str>, ManifestTool>);

impl Manifest {
    /// A manifest of those tools; a later one of the same name wins.
    pub fn new(tools: impl IntoIterator<Item = ManifestTool>) -> Self {
        Self(tools.into_iter().map(|tool| (tool.name.clone(), tool)).collect())
    }

    /// The tool with that name.
    pub fn get(&self, name: &str) -> Option<&ManifestTool> {
        self.0.get(name)
    }

    /// All tools, by name.
    pub fn tools(&self) -> impl Iterator<Item = &ManifestTool> {
        self.0.values()
    }
}

impl ManifestTool {
    /// An ordinary tool whose arguments follow a JSON Schema.
    pub fn new(name: impl Into<Arc<str>>, parameters: &Value) -> Result<Self, SchemaError> {
        Ok(Self { name: name.into(), arguments: ArgumentCheck::compile(parameters)?, control: None })
    }

    /// `execute_program{code, language}`: the one tool of a dynamic call (formats.md section 3).
    pub fn execute_program() -> Self {
        let required = |name: &str| Field { name: name.into(), kind: FieldKind::String, required: true };
        Self {
            name: EXECUTE_PROGRAM.into(),
            arguments: ArgumentCheck::Flat(vec![required("code"), required("language")].into()),
            control: None,
        }
    }

    /// `done{status: achieved|blocked, reason}` (X5). Only `status` is checked; it defaults to achieved.
    pub fn done() -> Self {
        let optional = |name: &str| Field { name: name.into(), kind: FieldKind::String, required: false };
        Self {
            name: DONE.into(),
            arguments: ArgumentCheck::Flat(vec![optional("reason"), optional("status"), optional("details")].into()),
            control: Some(ControlTool::Done),
        }
    }
}

/// The one tool of a dynamic call.
pub const EXECUTE_PROGRAM: &str = "execute_program";

/// The control tool that ends a goal run.
pub const DONE: &str = "done";

/// How a tool's arguments are checked. Pure; the same arguments always give the same words.
#[derive(Clone)]
pub enum ArgumentCheck {
    /// Any object.
    Any,
    /// Flat objects of plain fields, nothing else allowed: checked without leaving [`Value`].
    Flat(Arc<[Field]>),
    /// Any other JSON Schema.
    Schema(Arc<Schema>),
}

/// One field of a flat object.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: Arc<str>,
    /// Its type.
    pub kind: FieldKind,
    /// Whether it must be there.
    pub required: bool,
}

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Any value.
    Any,
    /// `string`.
    String,
    /// `integer`.
    Integer,
    /// `number`.
    Number,
    /// `boolean`.
    Boolean,
    /// `array`.
    Array,
    /// `object`.
    Object,
}

impl ArgumentCheck {
    /// Compiles a JSON Schema. Schemas of plain fields take the fast form.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        if let Some(fields) = flat_fields(schema) {
            return Ok(Self::Flat(fields.into()));
        }
        Ok(Self::Schema(Arc::new(Schema::compile(schema).map_err(SchemaError)?)))
    }

    /// `Err` names the first thing that is wrong, as the model is told.
    pub fn check(&self, arguments: &Map) -> Result<(), String> {
        match self {
            Self::Any => Ok(()),
            Self::Flat(fields) => check_flat(fields, arguments),
            Self::Schema(schema) => schema
                .check(&Value::Map(arguments.clone()))
                .map_err(|misfit| format!("{} (at `{}`)", misfit.reason, misfit.place)),
        }
    }
}

impl fmt::Debug for ArgumentCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => formatter.write_str("Any"),
            Self::Flat(fields) => formatter.debug_tuple("Flat").field(fields).finish(),
            Self::Schema(_) => formatter.write_str("Schema"),
        }
    }
}

/// The fields, if the schema says no more than flat fields without extras.
fn flat_fields(schema: &Value) -> Option<Vec<Field>> {
    let schema = schema.as_map()?;
    let known = ["$schema", "additionalProperties", "description", "properties", "required", "title", "type"];
    let plain = schema.keys().all(|key| known.contains(&key.as_str()))
        && schema.get("type").and_then(Value::as_str) == Some("object")
        && schema.get("additionalProperties").and_then(Value::as_bool) == Some(false);
    if !plain {
        return None;
    }
    let empty = Map::new();
    let properties = schema.get("properties").map_or(Some(&empty), Value::as_map)?;
    let required: Vec<&str> = match schema.get("required") {
        None => Vec::new(),
        Some(names) => names.as_list()?.iter().map(Value::as_str).collect::<Option<_>>()?,
    };
    if !required.iter().all(|name| properties.contains_key(*name)) {
        return None;
    }
    properties
        .iter()
        .map(|(name, property)| {
            let kind = flat_kind(property)?;
            Some(Field { name: name.as_str().into(), kind, required: required.contains(&name.as_str()) })
        })
        .collect()
}

fn flat_kind(property: &Value) -> Option<FieldKind> {
    let property = property.as_map()?;
    if !property.keys().all(|key| ["description", "title", "type", "default"].contains(&key.as_str())) {
        return None;
    }
    match property.get("type") {
        None => Some(FieldKind::Any),
        Some(kind) => match kind.as_str()? {
            "string" => Some(FieldKind::String),
            "integer" => Some(FieldKind::Integer),
            "number" => Some(FieldKind::Number),
            "boolean" => Some(FieldKind::Boolean),
            "array" => Some(FieldKind::Array),
            "object" => Some(FieldKind::Object),
            _ => None,
        },
    }
}

fn check_flat(fields: &[Field], arguments: &Map) -> Result<(), String> {
    for field in fields {
        match arguments.get(&*field.name) {
            None if field.required => return Err(format!("`{}` is missing", field.name)),
            None => {}
            Some(value) if !field.kind.admits(value) => {
                return Err(format!("`{}` must be {}, not {}", field.name, field.kind.name(), value.type_name()));
            }
            Some(_) => {}
        }
    }
    match arguments.keys().find(|key| !fields.iter().any(|field| *field.name == **key)) {
        Some(unknown) => Err(format!("`{unknown}` is not an argument of this tool")),
        None => Ok(()),
    }
}

impl FieldKind {
    fn admits(self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::String => value.as_str().is_some(),
            Self::Integer => value.as_int().is_some(),
            Self::Number => value.as_float().is_some(),
            Self::Boolean => value.as_bool().is_some(),
            Self::Array => value.as_list().is_some(),
            Self::Object => value.as_map().is_some(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Any => "any value",
            Self::String => "a string",
            Self::Integer => "an integer",
            Self::Number => "a number",
            Self::Boolean => "a boolean",
            Self::Array => "a list",
            Self::Object => "a map",
        }
    }
}

/// What an adapter profile can do, as PRECHECK needs to know it (EC-P4a).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelProfile {
    /// Its id, as `model_profile_id` names it.
    pub id: Arc<str>,
    /// Version of the rules by which its replies are read.
    pub adapter_version: Arc<str>,
    /// In which form its models are asked for calls.
    pub format: CallFormat,
    /// Whether replies can carry calls at all.
    pub calls: bool,
    /// Whether it can apply a grammar while decoding.
    pub grammar: bool,
    /// Whether it can apply a logits mask while decoding.
    pub logits_mask: bool,
    /// Whether its contracts are strict unless somebody says otherwise: it raises the factory's default, and nothing else
    /// reads it (V7).
    pub strict: bool,
}

/// A JSON Schema that does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schema does not compile: {0}")]
pub struct SchemaError(pub String);
