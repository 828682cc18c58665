//! Corpus files (`scenarios/eval.schema.json`), read into cases. A fault refuses the whole file, with its line.

use std::collections::BTreeMap;

use cadenza_core::program::Language;
use cadenza_core::runtime::options::Options;
use cadenza_core::tools::Tool;
use cadenza_core::value::{Map, Value};
use regex::Regex;

use super::checker::{Answer, Expect};
use crate::conform::document::{Fault, Fields, Kind, Node, parse};
use crate::conform::{check_version, equal};

/// One corpus file.
#[derive(Clone, Debug)]
pub struct CorpusFile {
    /// In order.
    pub cases: Vec<Case>,
}

/// One story of one agent.
#[derive(Clone, Debug)]
pub struct Case {
    /// Unique; begins with its group and a dot.
    pub id: String,
    /// What it is about.
    pub group: String,
    /// 1-based line in its file.
    pub line: u64,
    /// Role of the agent.
    pub role: String,
    /// The agent's own options, over those of the evaluation.
    pub options: Map,
    /// What the agent remembers before the first call.
    pub remember: Map,
    /// Host tools that answer from a table.
    pub tools: Vec<TableTool>,
    /// In order.
    pub calls: Vec<Call>,
}

/// One call and what must come of it.
#[derive(Clone, Debug)]
pub struct Call {
    /// 1-based line in its file.
    pub line: u64,
    /// The delegate that is called instead of the agent itself.
    pub to: Option<String>,
    /// Method name.
    pub method: String,
    /// Positional arguments.
    pub args: Vec<Value>,
    /// Named arguments.
    pub kwargs: Map,
    /// What must come of it.
    pub expect: Expect,
    /// Fewest calls that its program makes to other agents.
    pub delegates: usize,
    /// Whether a program of an earlier call has to run again.
    pub reused: bool,
    /// Answers that the checker takes.
    pub right: Vec<Answer>,
    /// Answers that the checker refuses.
    pub wrong: Vec<Answer>,
}

/// A host tool without code: it knows its answers by heart.
#[derive(Clone, Debug)]
pub struct TableTool {
    /// Name.
    pub name: String,
    /// What it does, as models read it.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
    /// Arguments and what they are answered with.
    pub answers: Vec<(Map, Value)>,
}

impl CorpusFile {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let root = parse(text)?;
        check_version(&root, "a corpus file")?;
        let mut fields = Fields::of(&root, "a corpus file")?;
        fields.required("version")?;
        let group = fields.text("group")?;
        let items = fields.required("cases")?.list("cases")?;
        fields.finish()?;
        let cases = items.iter().map(|item| Case::read(item, &group)).collect::<Result<_, _>>()?;
        Ok(Self { cases })
    }
}

impl Case {
    fn read(node: &Node, group: &str) -> Result<Self, Fault> {
        let mut fields = Fields::of(node, "a case")?;
        let id = fields.text("id")?;
        if id.strip_prefix(group).and_then(|rest| rest.strip_prefix('.')).is_none_or(str::is_empty) {
            return Err(node.fault(format!("the id `{id}` does not begin with its group: write `{group}.NAME`")));
        }
        // For readers only.
        fields.optional("about");
        let role = fields.text("role")?;
        let options = fields.entries("options")?;
        Options::from_map(&options).map_err(|error| node.fault(error.to_string()))?;
        let remember = fields.entries("remember")?;
        let tools = match fields.optional("tools") {
            None => Vec::new(),
            Some(list) => list.list("tools")?.iter().map(TableTool::read).collect::<Result<_, _>>()?,
        };
        let calls: Vec<Call> =
            fields.required("calls")?.list("calls")?.iter().map(Call::read).collect::<Result<_, _>>()?;
        fields.finish()?;
        if calls.is_empty() {
            return Err(node.fault(format!("the case `{id}` has no calls")));
        }
        Ok(Self { id, group: group.to_owned(), line: node.line, role, options, remember, tools, calls })
    }
}

impl Call {
    fn read(node: &Node) -> Result<Self, Fault> {
        let mut fields = Fields::of(node, "a call")?;
        let call = Self {
            line: node.line,
            to: fields.optional("to").map(|node| node.text("to")).transpose()?,
            method: fields.text("method")?,
            args: fields.values("args")?,
            kwargs: fields.entries("kwargs")?,
            expect: Expect::read(fields.required("expect")?)?,
            delegates: match fields.optional("delegates") {
                None => 0,
                Some(node) => usize::try_from(node.count("delegates")?).unwrap_or(usize::MAX),
            },
            reused: fields.optional("reused").map_or(Ok(false), |node| node.truth("reused"))?,
            right: answers(&mut fields, "right", "right_errors")?,
            wrong: answers(&mut fields, "wrong", "wrong_errors")?,
        };
        fields.finish()?;
        for (name, list) in [("right", &call.right), ("wrong", &call.wrong)] {
            if list.is_empty() {
                return Err(node.fault(format!(
                    "the call of `{}` needs an answer under `{name}` or `{name}_errors`: a checker is checked, too",
                    call.method
                )));
            }
        }
        Ok(call)
    }
}

fn answers(fields: &mut Fields<'_>, values: &'static str, errors: &'static str) -> Result<Vec<Answer>, Fault> {
    let mut answers: Vec<Answer> = fields.values(values)?.into_iter().map(Answer::Value).collect();
    if let Some(list) = fields.optional(errors) {
        for item in list.list(errors)? {
            answers.push(Answer::Error(item.text(errors)?));
        }
    }
    Ok(answers)
}

impl Expect {
    fn read(node: &Node) -> Result<Self, Fault> {
        let mut fields = Fields::of(node, "an expectation")?;
        let mut found = Vec::new();
        if let Some(ok) = fields.optional("ok") {
            if !ok.truth("ok")? {
                return Err(ok.fault("`ok` is true or left out; an error is expected with `error`"));
            }
            found.push(Self::Ok);
        }
        if let Some(value) = fields.optional("value") {
            found.push(Self::Value(value.to_value()));
        }
        let within = fields.optional("within");
        if let Some(value) = fields.optional("approx") {
            let within = match within.map(Node::to_value) {
                None => None,
                Some(value) => Some(
                    value
                        .as_float()
                        .filter(|within| within.is_finite() && *within > 0.0)
                        .ok_or_else(|| node.fault("`within` is a number above 0"))?,
                ),
            };
            found.push(Self::Approx { value: value.to_value(), within });
        } else if within.is_some() {
            return Err(node.fault("`within` goes with `approx`"));
        }
        if let Some(list) = fields.optional("set") {
            found.push(Self::Set(list.list("set")?.iter().map(Node::to_value).collect()));
        }
        if let Some(pattern) = fields.optional("matches") {
            let pattern = pattern.text("matches")?;
            let regex = Regex::new(&pattern).map_err(|error| node.fault(format!("`matches`: {error}")))?;
            found.push(Self::Matches(regex));
        }
        if let Some(expressions) = fields.optional("assert") {
            let mut expressions = Fields::of(expressions, "an assert")?;
            let mut texts = BTreeMap::new();
            for (language, name) in [(Language::Lua, "lua"), (Language::Rhai, "rhai")] {
                texts.insert(language, expressions.text(name)?);
            }
            expressions.finish()?;
            found.push(Self::Assert(texts));
        }
        if let Some(error) = fields.optional("error") {
            found.push(match &error.kind {
                Kind::List(items) => {
                    Self::Error(items.iter().map(|item| item.text("error")).collect::<Result<_, _>>()?)
                }
                Kind::Scalar(Value::String(word)) if word == "any" => Self::Refusal,
                Kind::Scalar(_) | Kind::Map(_) => Self::Error(vec![error.text("error")?]),
            });
        }
        if let Some(list) = fields.optional("any") {
            found.push(Self::Any(list.list("any")?.iter().map(Self::read).collect::<Result<_, _>>()?));
        }
        fields.finish()?;
        match <[Self; 1]>::try_from(found) {
            Ok([expect]) => Ok(expect),
            Err(_) => Err(node.fault("an expectation is one of: ok, value, approx, set, matches, assert, error, any")),
        }
    }
}

impl TableTool {
    fn read(node: &Node) -> Result<Self, Fault> {
        let mut fields = Fields::of(node, "a tool")?;
        let mut tool = Self {
            name: fields.text("name")?,
            description: fields.text("description")?,
            parameters: fields.required("parameters")?.to_value(),
            answers: Vec::new(),
        };
        for answer in fields.required("answers")?.list("answers")? {
            let mut entry = Fields::of(answer, "an answer")?;
            tool.answers.push((entry.entries("args")?, entry.required("value")?.to_value()));
            entry.finish()?;
        }
        fields.finish()?;
        tool.tool().map_err(|error| node.fault(error))?;
        Ok(tool)
    }

    /// The tool itself. What its table does not hold is an error that the program can catch.
    pub fn tool(&self) -> Result<Tool, String> {
        let (name, answers) = (self.name.clone(), self.answers.clone());
        Tool::new(&self.name, &self.description, self.parameters.clone(), move |given, _| {
            let given = Value::Map(given);
            let known = answers.iter().find(|(args, _)| equal(&Value::Map(args.clone()), &given));
            known.map(|(_, value)| value.clone()).ok_or_else(|| format!("{name} knows nothing about {given}"))
        })
        .and_then(|tool| tool.with_effect("pure"))
        .map_err(|error| error.to_string())
    }
}
