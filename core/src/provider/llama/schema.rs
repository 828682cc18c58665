//! From a tool's JSON Schema, or from the light form of a program in text, to the grammar of a reply.
//!
//! A grammar guarantees structure: the object, its properties and their types, `enum`, `const`, `required`, nesting, and
//! lengths up to [`MAX_COUNTED`]. It does not compare numbers (`minimum`, `multipleOf`), items (`uniqueItems`) or the choices
//! of `oneOf` with each other, match `pattern` or `format`, or know a program from other text: those are judged by whoever
//! reads the call. What else the grammar cannot express is refused by name.

use super::grammar::{Grammar, Place, Sketch, TooLarge};
use crate::value::{Map, Value};

/// The largest bound of a length or a number of items that a grammar counts.
pub const MAX_COUNTED: usize = 256;

/// How deep a value may nest whose schema says nothing.
const ANY_DEPTH: usize = 2;

/// How deep a schema may nest.
const MAX_DEPTH: usize = 16;

/// Where in an object the members are separated, as most models were trained to write it.
const SEPARATOR: &str = ", ";

/// A tool whose call a reply may be.
#[derive(Clone, Copy, Debug)]
pub struct Callable<'a> {
    /// Its name.
    pub name: &'a str,
    /// JSON Schema of its arguments.
    pub parameters: &'a Value,
    /// The property that holds a program: it cannot be blank.
    pub program: Option<&'a str>,
}

/// `{"name": …, "arguments": {…}}` of one of these tools.
pub fn call_grammar(tools: &[Callable<'_>]) -> Result<Grammar, SchemaError> {
    of_tools(tools, call, |_, _, _| {})
}

fn call(sketch: &mut Sketch, from: Place, tool: &Callable<'_>) -> Result<Place, SchemaProblem> {
    let name = sketch.text(from, &format!("{{\"name\": {}, \"arguments\": ", json_text(tool.name)));
    let arguments = arguments(sketch, name, tool)?;
    Ok(sketch.text(arguments, "}"))
}

/// The arguments object of one of these tools.
pub fn arguments_grammar(tools: &[Callable<'_>]) -> Result<Grammar, SchemaError> {
    of_tools(tools, arguments, |_, _, _| {})
}

fn of_tools(
    tools: &[Callable<'_>],
    draw: impl Fn(&mut Sketch, Place, &Callable<'_>) -> Result<Place, SchemaProblem>,
    beside: impl FnOnce(&mut Sketch, Place, Place),
) -> Result<Grammar, SchemaError> {
    let mut sketch = Sketch::default();
    let (start, end) = (sketch.place(), sketch.place());
    for tool in tools {
        let of_tool = |problem| SchemaError { tool: tool.name.to_owned(), problem };
        let last = draw(&mut sketch, start, tool).map_err(of_tool)?;
        sketch.free(last, end);
    }
    beside(&mut sketch, start, end);
    let names: Vec<_> = tools.iter().map(|tool| tool.name).collect();
    sketch
        .finish(start, end)
        .map_err(|too_large| SchemaError { tool: names.join(", "), problem: SchemaProblem::TooLarge(too_large) })
}

/// A program in a fenced block: some text that is not blank, in which no three backticks follow each other.
pub fn text_grammar(opening: &str) -> Result<Grammar, TooLarge> {
    let mut sketch = Sketch::default();
    let start = sketch.place();
    let blank = sketch.text(start, opening);
    let [line, middle, one, two, line_one, line_two, end] = std::array::from_fn(|_| sketch.place());
    sketch.any_of(blank, " \t\n", blank);
    visible(&mut sketch, blank, "`", middle);
    // At the start of a line, three backticks close the block; anywhere else they cannot stand.
    for place in [line, middle, one, two, line_one, line_two] {
        visible(&mut sketch, place, "`", middle);
        sketch.any_of(place, " \t", middle);
        sketch.any_of(place, "\n", line);
        sketch.beyond_ascii(place, middle);
    }
    for (from, to) in [(line, line_one), (line_one, line_two), (line_two, end), (middle, one), (one, two)] {
        sketch.any_of(from, "`", to);
    }
    sketch.finish(start, end)
}

/// What a model may say when no call is asked of it: text that is not blank and holds no sign of one.
pub fn prose_grammar() -> Result<Grammar, TooLarge> {
    let mut sketch = Sketch::default();
    let (start, end) = (sketch.place(), sketch.place());
    prose(&mut sketch, start, end);
    sketch.finish(start, end)
}

/// A call of one of these tools, or text: what may come once a call was made.
pub fn call_or_prose_grammar(tools: &[Callable<'_>]) -> Result<Grammar, SchemaError> {
    of_tools(tools, call, prose)
}

/// What the adapter takes for the sign of a program or a call in text: no text that is not one may hold it.
const SIGNS: [&str; 9] = ["```", "{", "=", "return ", "args[", "kwargs", "context.", "<call", "<tool"];

/// Text that begins with something visible and holds none of [`SIGNS`].
fn prose(sketch: &mut Sketch, start: Place, end: Place) {
    // A place for everything that a sign may begin with: the text so far ends with it, and with nothing longer of them.
    let mut begun: Vec<&str> = SIGNS.iter().flat_map(|sign| (0..sign.len()).map(|end| &sign[..end])).collect();
    begun.sort_unstable_by_key(|begin| (begin.len(), *begin));
    begun.dedup();
    let places: Vec<Place> = begun.iter().map(|_| sketch.place()).collect();
    let blank = sketch.place();
    sketch.free(start, blank);
    sketch.any_of(blank, " \t\n\r", blank);
    sketch.letter_beyond_ascii(blank, places[0]);
    let letters: Vec<char> = (' '..='~').chain(['\t', '\n', '\r']).collect();
    for (begin, place) in begun.iter().zip(&places) {
        for letter in &letters {
            let text = format!("{begin}{letter}");
            if SIGNS.iter().any(|sign| text.ends_with(sign)) {
                continue;
            }
            // The longest end of the text that begins a sign; at least the empty one, which is the first.
            let longest = begun.iter().rposition(|begin| text.ends_with(begin)).unwrap_or(0);
            let letter = letter.to_string();
            sketch.any_of(*place, &letter, places[longest]);
            if begin.is_empty() && !letter.trim().is_empty() {
                sketch.any_of(blank, &letter, places[longest]);
            }
        }
        sketch.beyond_ascii(*place, places[0]);
        sketch.free(*place, end);
    }
}

/// A character of ASCII that prints, except some.
fn visible(sketch: &mut Sketch, from: Place, except: &str, to: Place) {
    let mut start = b'!';
    for byte in (b'!'..=b'~').filter(|byte| except.as_bytes().contains(byte)) {
        if start < byte {
            sketch.byte(from, start..=byte - 1, to);
        }
        start = byte + 1;
    }
    sketch.byte(from, start..=b'~', to);
}

// Values by schema

/// What describes a value and does not bind it.
const REMARKS: [&str; 12] = [
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// What no grammar here follows: a reply without regard to it may not be valid.
const REFUSED: [&str; 18] = [
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "additionalItems",
    "allOf",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "maxProperties",
    "minProperties",
    "not",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];

fn arguments(sketch: &mut Sketch, from: Place, tool: &Callable<'_>) -> Result<Place, SchemaProblem> {
    let schema = tool.parameters.as_map().ok_or(SchemaProblem::NotASchema)?;
    arguments_object(sketch, from, schema, tool.program, 0)
}

/// The arguments: an object, or one of several.
fn arguments_object(
    sketch: &mut Sketch,
    from: Place,
    schema: &Map,
    program: Option<&str>,
    depth: usize,
) -> Result<Place, SchemaProblem> {
    judge(schema, depth)?;
    if let Some(word) = ["const", "enum"].into_iter().find(|word| schema.contains_key(*word)) {
        return Err(SchemaProblem::Word(word));
    }
    if let Some(choices) = choices(schema)? {
        return one_of(sketch, &choices, |sketch, choice| {
            let choice = choice.as_map().ok_or(SchemaProblem::NotAnObject)?;
            arguments_object(sketch, from, choice, program, depth + 1)
        });
    }
    match schema.get("type") {
        None => {}
        Some(kind) if kind.as_str() == Some("object") => {}
        Some(_) => return Err(SchemaProblem::NotAnObject),
    }
    // What a tool does not name is no argument of it, unless it says so.
    let mut closed = schema.clone();
    closed.entry("additionalProperties".to_owned()).or_insert(Value::Bool(false));
    object(sketch, from, &closed, program, depth)
}

/// A value that follows the schema; gives the place behind it.
fn value(sketch: &mut Sketch, from: Place, schema: &Value, depth: usize) -> Result<Place, SchemaProblem> {
    sketch.has_room().map_err(SchemaProblem::TooLarge)?;
    let schema = match schema {
        Value::Bool(true) => return Ok(any(sketch, from, ANY_DEPTH)),
        Value::Map(schema) => schema,
        _ => return Err(SchemaProblem::NotASchema),
    };
    judge(schema, depth)?;
    let choices = choices(schema)?;
    if let Some(constant) = schema.get("const") {
        return Ok(sketch.text(from, &constant.to_json()));
    }
    if let Some(choices) = schema.get("enum") {
        let choices = choices.as_list().filter(|list| !list.is_empty()).ok_or(SchemaProblem::NoChoice("enum"))?;
        return one_of(sketch, choices, |sketch, choice| Ok(sketch.text(from, &choice.to_json())));
    }
    if let Some(choices) = choices {
        return one_of(sketch, &choices, |sketch, choice| value(sketch, from, choice, depth + 1));
    }
    match schema.get("type") {
        Some(Value::String(kind)) => of_type(sketch, from, kind, schema, depth),
        Some(Value::List(kinds)) if !kinds.is_empty() => one_of(sketch, kinds, |sketch, kind| {
            of_type(sketch, from, kind.as_str().unwrap_or_default(), schema, depth)
        }),
        Some(_) => Err(SchemaProblem::NotASchema),
        None if schema.contains_key("properties") => object(sketch, from, schema, None, depth),
        None => Ok(any(sketch, from, ANY_DEPTH)),
    }
}

/// Whether a grammar can follow this part of a schema.
fn judge(schema: &Map, depth: usize) -> Result<(), SchemaProblem> {
    if depth > MAX_DEPTH {
        return Err(SchemaProblem::TooDeep);
    }
    match REFUSED.into_iter().find(|word| schema.contains_key(*word)) {
        Some(word) => Err(SchemaProblem::Word(word)),
        None => Ok(()),
    }
}

/// The choices of `anyOf` or `oneOf`, each with what the schema says beside them.
fn choices(schema: &Map) -> Result<Option<Vec<Value>>, SchemaProblem> {
    let Some(word) = ["anyOf", "oneOf"].into_iter().find(|word| schema.contains_key(*word)) else { return Ok(None) };
    let choices = schema.get(word).and_then(Value::as_list).filter(|list| !list.is_empty());
    let choices = choices.ok_or(SchemaProblem::NoChoice(word))?;
    let beside: Map = schema
        .iter()
        .filter(|(name, _)| *name != word && !REMARKS.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if beside.is_empty() {
        return Ok(Some(choices.to_vec()));
    }
    // Two choices of `oneOf` that differ in little but what stands beside them would both hold.
    let joined = choices.iter().map(|choice| joined(choice, &beside).filter(|_| word == "anyOf"));
    joined.collect::<Option<_>>().map(Some).ok_or(SchemaProblem::Beside(word))
}

/// A schema that says what both say; `None` where that would take more than putting them together.
fn joined(choice: &Value, beside: &Map) -> Option<Value> {
    let mut joined = match choice {
        Value::Bool(true) => Map::new(),
        Value::Map(choice) => choice.clone(),
        _ => return None,
    };
    // What is additional depends on the properties of the same schema.
    let closes = |one: &Map, other: &Map| {
        let of_other = other.get("properties");
        one.contains_key("additionalProperties") && of_other.is_some() && one.get("properties") != of_other
    };
    if closes(&joined, beside) || closes(beside, &joined) {
        return None;
    }
    for (name, value) in beside {
        match joined.get(name) {
            None => drop(joined.insert(name.clone(), value.clone())),
            Some(own) if own == value => {}
            Some(Value::List(own)) if name == "required" => {
                let both = own.iter().chain(value.as_list()?).cloned().collect();
                joined.insert(name.clone(), Value::List(both));
            }
            Some(_) => return None,
        }
    }
    Some(Value::Map(joined))
}

fn of_type(sketch: &mut Sketch, from: Place, kind: &str, schema: &Map, depth: usize) -> Result<Place, SchemaProblem> {
    Ok(match kind {
        "object" => object(sketch, from, schema, None, depth)?,
        "array" => {
            let anything = Value::Bool(true);
            let items = schema.get("items").unwrap_or(&anything);
            let (least, most) = bounds(schema, "minItems", "maxItems")?;
            list(sketch, from, least, most, |sketch, from| value(sketch, from, items, depth + 1))?
        }
        "string" => {
            let (least, most) = bounds(schema, "minLength", "maxLength")?;
            let open = sketch.text(from, "\"");
            let inside = repeated(sketch, open, least, most, character);
            sketch.text(inside, "\"")
        }
        "integer" => integer(sketch, from),
        "number" => number(sketch, from),
        "boolean" => one_of(sketch, &["true", "false"], |sketch, word| Ok(sketch.text(from, word)))?,
        "null" => sketch.text(from, "null"),
        _ => return Err(SchemaProblem::NotASchema),
    })
}

fn one_of<T>(
    sketch: &mut Sketch,
    choices: &[T],
    mut draw: impl FnMut(&mut Sketch, &T) -> Result<Place, SchemaProblem>,
) -> Result<Place, SchemaProblem> {
    let end = sketch.place();
    for choice in choices {
        let last = draw(sketch, choice)?;
        sketch.free(last, end);
    }
    Ok(end)
}

/// Properties in a fixed order: those with one possible value first, so that a model begins with what it has to write.
fn object(
    sketch: &mut Sketch,
    from: Place,
    schema: &Map,
    program: Option<&str>,
    depth: usize,
) -> Result<Place, SchemaProblem> {
    let nothing = Map::new();
    let properties = match schema.get("properties") {
        None => &nothing,
        Some(properties) => properties.as_map().ok_or(SchemaProblem::NotASchema)?,
    };
    let required = schema.get("required").and_then(Value::as_list).unwrap_or_default();
    if let Some(unknown) = required.iter().filter_map(Value::as_str).find(|name| !properties.contains_key(*name)) {
        return Err(SchemaProblem::Required(unknown.to_owned()));
    }
    let is_required = |name: &str| required.iter().any(|required| required.as_str() == Some(name));
    if properties.is_empty() {
        return match schema.get("additionalProperties") {
            Some(Value::Bool(false)) => Ok(sketch.text(from, "{}")),
            None | Some(Value::Bool(true)) => Ok(any_object(sketch, from, ANY_DEPTH)),
            Some(members) => object_of(sketch, from, |sketch, from| value(sketch, from, members, depth + 1)),
        };
    }
    let mut ordered: Vec<(&String, &Value)> = properties.iter().collect();
    ordered.sort_by_key(|(name, schema)| (!is_constant(schema), Some(name.as_str()) == program));
    // Two lanes: nothing was written yet, and something was. An optional property may be passed by in either.
    let mut empty = Some(sketch.text(from, "{"));
    let mut written: Option<Place> = None;
    for (name, schema) in ordered {
        let begun = sketch.place();
        if let Some(empty) = empty {
            sketch.free(empty, begun);
        }
        if let Some(written) = written {
            let separated = sketch.text(written, SEPARATOR);
            sketch.free(separated, begun);
        }
        let key = sketch.text(begun, &format!("{}: ", json_text(name)));
        let last = if Some(name.as_str()) == program {
            program_text(sketch, key)
        } else {
            value(sketch, key, schema, depth + 1)?
        };
        let behind = sketch.place();
        sketch.free(last, behind);
        if is_required(name) {
            empty = None;
        } else if let Some(written) = written {
            sketch.free(written, behind);
        }
        written = Some(behind);
    }
    let end = sketch.place();
    for last in [empty, written].into_iter().flatten() {
        let closed = sketch.text(last, "}");
        sketch.free(closed, end);
    }
    Ok(end)
}

/// Whether a property has one possible value.
fn is_constant(schema: &Value) -> bool {
    let Some(schema) = schema.as_map() else { return false };
    schema.contains_key("const") || schema.get("enum").and_then(Value::as_list).is_some_and(|list| list.len() == 1)
}

fn list(
    sketch: &mut Sketch,
    from: Place,
    least: usize,
    most: Option<usize>,
    mut item: impl FnMut(&mut Sketch, Place) -> Result<Place, SchemaProblem>,
) -> Result<Place, SchemaProblem> {
    let open = sketch.text(from, "[");
    let end = sketch.place();
    let mut last = open;
    if least == 0 {
        let closed = sketch.text(open, "]");
        sketch.free(closed, end);
    }
    // Without an upper bound the last counted item repeats.
    let counted = most.unwrap_or(least.max(1));
    for index in 0..counted {
        let begun = if index == 0 { last } else { sketch.text(last, SEPARATOR) };
        let own = sketch.place();
        sketch.free(begun, own);
        last = item(sketch, own)?;
        if index + 1 >= least {
            let closed = sketch.text(last, "]");
            sketch.free(closed, end);
        }
        if most.is_none() && index + 1 == counted {
            let again = sketch.text(last, SEPARATOR);
            sketch.free(again, own);
        }
    }
    Ok(end)
}

/// Between `least` and `most` times one step.
fn repeated(
    sketch: &mut Sketch,
    from: Place,
    least: usize,
    most: Option<usize>,
    step: impl Fn(&mut Sketch, Place, Place),
) -> Place {
    let end = sketch.place();
    let mut here = from;
    for _ in 0..least {
        let next = sketch.place();
        step(sketch, here, next);
        here = next;
    }
    match most {
        None => {
            let circle = sketch.place();
            sketch.free(here, circle);
            step(sketch, circle, circle);
            sketch.free(circle, end);
        }
        Some(most) => {
            sketch.free(here, end);
            for _ in least..most {
                let next = sketch.place();
                step(sketch, here, next);
                sketch.free(next, end);
                here = next;
            }
        }
    }
    end
}

/// One character of a JSON string, as itself or escaped. No escape stands for half a character (a surrogate).
fn character(sketch: &mut Sketch, from: Place, to: Place) {
    sketch.byte(from, b' '..=b' ', to);
    visible(sketch, from, "\"\\", to);
    sketch.beyond_ascii(from, to);
    let escape = sketch.text(from, "\\");
    sketch.any_of(escape, "\"\\/bfnrt", to);
    let unicode = sketch.text(escape, "u");
    let [any_first, after_d, two, one] = std::array::from_fn(|_| sketch.place());
    sketch.any_of(unicode, "0123456789abcefABCEF", any_first);
    sketch.any_of(unicode, "dD", after_d);
    hex(sketch, any_first, two);
    sketch.any_of(after_d, "01234567", two);
    hex(sketch, two, one);
    hex(sketch, one, to);
}

fn hex(sketch: &mut Sketch, from: Place, to: Place) {
    sketch.any_of(from, "0123456789abcdefABCDEF", to);
}

/// A JSON string that is not blank: a program needs at least one visible character.
fn program_text(sketch: &mut Sketch, from: Place) -> Place {
    let blank = sketch.text(from, "\"");
    let escape = sketch.text(blank, "\\");
    let inside = sketch.place();
    sketch.any_of(blank, " ", blank);
    sketch.any_of(escape, "nrt", blank);
    sketch.any_of(escape, "\"\\/", inside);
    visible(sketch, blank, "\"\\", inside);
    character(sketch, inside, inside);
    sketch.text(inside, "\"")
}

/// A whole number that 64 bits hold: at most 18 digits.
fn integer(sketch: &mut Sketch, from: Place) -> Place {
    let end = sketch.place();
    let (sign, first) = (sketch.place(), sketch.place());
    sketch.free(from, sign);
    sketch.any_of(from, "-", sign);
    sketch.any_of(sign, "0", end);
    sketch.byte(sign, b'1'..=b'9', first);
    let more = repeated(sketch, first, 0, Some(17), |sketch, from, to| sketch.byte(from, b'0'..=b'9', to));
    sketch.free(more, end);
    end
}

/// A number that a float holds: an integer, then perhaps a fraction and an exponent of two digits.
fn number(sketch: &mut Sketch, from: Place) -> Place {
    let end = sketch.place();
    let whole = integer(sketch, from);
    let point = sketch.text(whole, ".");
    let digits = repeated(sketch, point, 1, Some(18), |sketch, from, to| sketch.byte(from, b'0'..=b'9', to));
    for mantissa in [whole, digits] {
        sketch.free(mantissa, end);
        let (exponent, signed, tens) = (sketch.place(), sketch.place(), sketch.place());
        sketch.any_of(mantissa, "eE", exponent);
        sketch.any_of(exponent, "+-", signed);
        sketch.free(exponent, signed);
        sketch.byte(signed, b'0'..=b'9', tens);
        sketch.byte(tens, b'0'..=b'9', end);
        sketch.free(tens, end);
    }
    end
}

/// Any JSON value, so deep.
fn any(sketch: &mut Sketch, from: Place, depth: usize) -> Place {
    let end = sketch.place();
    let open = sketch.text(from, "\"");
    character(sketch, open, open);
    let string = sketch.text(open, "\"");
    let mut choices = vec![string, number(sketch, from)];
    choices.extend(["true", "false", "null"].map(|word| sketch.text(from, word)));
    if depth > 0 {
        let drawn = list(sketch, from, 0, None, |sketch, from| Ok(any(sketch, from, depth - 1)));
        choices.extend(drawn);
        choices.push(any_object(sketch, from, depth));
    }
    for choice in choices {
        sketch.free(choice, end);
    }
    end
}

/// Any JSON object, so deep.
fn any_object(sketch: &mut Sketch, from: Place, depth: usize) -> Place {
    // Cannot fire: nothing that draws any value fails.
    object_of(sketch, from, |sketch, from| Ok(any(sketch, from, depth.saturating_sub(1)))).unwrap_or(from)
}

/// A JSON object with any keys and members of one kind.
fn object_of(
    sketch: &mut Sketch,
    from: Place,
    member: impl FnOnce(&mut Sketch, Place) -> Result<Place, SchemaProblem>,
) -> Result<Place, SchemaProblem> {
    let open = sketch.text(from, "{");
    let (key, end) = (sketch.place(), sketch.place());
    sketch.free(open, key);
    let quoted = sketch.text(key, "\"");
    character(sketch, quoted, quoted);
    let colon = sketch.text(quoted, "\": ");
    let member = member(sketch, colon)?;
    let again = sketch.text(member, SEPARATOR);
    sketch.free(again, key);
    for last in [open, member] {
        let closed = sketch.text(last, "}");
        sketch.free(closed, end);
    }
    Ok(end)
}

/// The two bounds of a length, where a grammar can count so far.
fn bounds(schema: &Map, least: &'static str, most: &'static str) -> Result<(usize, Option<usize>), SchemaProblem> {
    let bound = |name: &str| schema.get(name).and_then(Value::as_int).and_then(|bound| usize::try_from(bound).ok());
    let (lower, upper) = (bound(least).unwrap_or(0), bound(most));
    if lower > MAX_COUNTED {
        return Err(SchemaProblem::Bound(least));
    }
    if upper.is_some_and(|upper| upper < lower) {
        return Err(SchemaProblem::NoChoice(most));
    }
    // A reply is seldom that long; whoever reads the call checks it.
    Ok((lower, upper.filter(|upper| *upper <= MAX_COUNTED)))
}

/// A text as JSON.
fn json_text(text: &str) -> String {
    Value::from(text).to_json()
}

/// A tool that a local model cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no grammar can be made for the tool `{tool}`: {problem}")]
pub struct SchemaError {
    /// The tool.
    pub tool: String,
    /// What is in the way.
    pub problem: SchemaProblem,
}

/// What a grammar cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaProblem {
    /// Neither a map nor `true`, or with a type that JSON does not have.
    #[error("a part of its schema is no JSON Schema")]
    NotASchema,
    /// Arguments are an object.
    #[error("its arguments must be an object")]
    NotAnObject,
    /// A keyword that is not known here.
    #[error("its schema uses `{0}`; write the value's type out")]
    Word(&'static str),
    /// Choices, and beside them what each of them would have to be joined with.
    #[error("its schema has `{0}` beside words that its choices do not go together with; write each choice out")]
    Beside(&'static str),
    /// Nothing can be written.
    #[error("`{0}` leaves no value that would be allowed")]
    NoChoice(&'static str),
    /// Required and not described.
    #[error("`{0}` is required but is not among its properties")]
    Required(String),
    /// A bound that is too large to count.
    #[error("`{0}` is above {MAX_COUNTED}")]
    Bound(&'static str),
    /// Nested too deep.
    #[error("its schema nests deeper than {MAX_DEPTH}")]
    TooDeep,
    /// Too many states.
    #[error(transparent)]
    TooLarge(TooLarge),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammar(schema: &str) -> Result<Grammar, SchemaError> {
        let schema = format!(r#"{{"properties": {{"v": {schema}}}, "required": ["v"]}}"#);
        let parameters = Value::from_json(&schema).unwrap();
        arguments_grammar(&[Callable { name: "t", parameters: &parameters, program: None }])
    }

    /// Which of these values the grammar allows.
    fn allowed<'a>(schema: &str, values: &[&'a str]) -> Vec<&'a str> {
        let grammar = grammar(schema).unwrap();
        let fits = |value: &&&str| grammar.matches(format!("{{\"v\": {value}}}").as_bytes());
        values.iter().filter(fits).copied().collect()
    }

    #[test]
    fn a_value_is_of_its_type() {
        let values = [
            "0",
            "-1",
            "12",
            "01",
            "1.5",
            "-0.25e+10",
            "1.",
            ".5",
            "true",
            "null",
            "\"\"",
            "\"a\"",
            "\"é\\n\\u00e9\"",
            "\"\\ud800\"",
            "\"\\x\"",
            "\"\n\"",
            "[]",
            "[1]",
            "[1, 2]",
            "[1,2]",
            "{}",
            "{\"a\": 1}",
            "",
        ];
        assert_eq!(allowed(r#"{"type": "integer"}"#, &values), ["0", "-1", "12"]);
        assert_eq!(allowed(r#"{"type": "number"}"#, &values), ["0", "-1", "12", "1.5", "-0.25e+10"]);
        assert_eq!(allowed(r#"{"type": "boolean"}"#, &values), ["true"]);
        assert_eq!(allowed(r#"{"type": "string"}"#, &values), ["\"\"", "\"a\"", "\"é\\n\\u00e9\""]);
        assert_eq!(allowed(r#"{"type": "array", "items": {"type": "integer"}}"#, &values), ["[]", "[1]", "[1, 2]"]);
        assert_eq!(allowed(r#"{"type": "object"}"#, &values), ["{}", "{\"a\": 1}"]);
        assert_eq!(allowed(r#"{"type": ["null", "boolean"]}"#, &values), ["true", "null"]);
        assert_eq!(allowed(r#"{"enum": [1.5, "a", null]}"#, &values), ["1.5", "null", "\"a\""]);
        assert_eq!(
            allowed(r#"{"anyOf": [{"const": 0}, {"type": "string", "minLength": 2}]}"#, &values),
            ["0", "\"é\\n\\u00e9\""]
        );
        let any =
            ["0", "-1", "12", "1.5", "-0.25e+10", "true", "null", "\"\"", "\"a\"", "\"é\\n\\u00e9\"", "[]", "[1]"];
        assert_eq!(allowed("{}", &values)[..12], any);
    }

    #[test]
    fn lengths_are_counted_up_to_a_bound() {
        let texts = ["\"\"", "\"a\"", "\"ab\"", "\"abc\"", "\"éé\""];
        assert_eq!(
            allowed(r#"{"type": "string", "minLength": 1, "maxLength": 2}"#, &texts),
            ["\"a\"", "\"ab\"", "\"éé\""]
        );
        let lists = ["[]", "[1]", "[1, 1]", "[1, 1, 1]"];
        assert_eq!(allowed(r#"{"type": "array", "items": {"const": 1}, "maxItems": 1}"#, &lists), ["[]", "[1]"]);
        assert_eq!(
            allowed(r#"{"type": "array", "items": {"const": 1}, "minItems": 2}"#, &lists),
            ["[1, 1]", "[1, 1, 1]"]
        );
        // Longer bounds are left to whoever reads the call.
        assert_eq!(allowed(r#"{"type": "string", "maxLength": 9000}"#, &texts).len(), 5);
    }

    #[test]
    fn optional_properties_keep_their_order() {
        let schema = r#"{"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
            "required": ["b"]}"#;
        let values = [
            r#"{"b": 2}"#,
            r#"{"a": 1, "b": 2}"#,
            r#"{"b": 2, "c": 3}"#,
            r#"{"a": 1, "b": 2, "c": 3}"#,
            r#"{}"#,
            r#"{"a": 1}"#,
            r#"{"b": 2, "a": 1}"#,
            r#"{"a": 1, "c": 3}"#,
            r#"{"b": 2, }"#,
            r#"{, "b": 2}"#,
        ];
        assert_eq!(allowed(schema, &values), values[..4]);
        let free = r#"{"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}}"#;
        assert_eq!(allowed(free, &[r#"{}"#, r#"{"a": 1}"#, r#"{"b": 2}"#, r#"{"a": 1, "b": 2}"#]).len(), 4);
    }

    #[test]
    fn a_schema_that_no_grammar_follows_is_named() {
        for (schema, words) in [
            (r##"{"$ref": "#/$defs/x"}"##, "`$ref`"),
            (r#"{"allOf": []}"#, "`allOf`"),
            (r#"{"enum": []}"#, "`enum` leaves no value"),
            (r#"{"type": "date"}"#, "no JSON Schema"),
            ("3", "no JSON Schema"),
            (r#"{"type": "string", "minLength": 300}"#, "`minLength` is above 256"),
            (r#"{"type": "string", "minLength": 3, "maxLength": 2}"#, "`maxLength` leaves no value"),
            (r#"{"type": "object", "required": ["x"]}"#, "`x` is required"),
            (r#"{"uniqueItems": true, "type": "array", "contains": {}}"#, "`contains`"),
            (r#"{"type": "object", "propertyNames": {"maxLength": 3}}"#, "`propertyNames`"),
            (r#"{"type": "object", "minProperties": 1}"#, "`minProperties`"),
            (r#"{"type": "string", "anyOf": [{"type": "integer"}]}"#, "`anyOf` beside"),
            (r#"{"required": ["a"], "oneOf": [{"type": "object"}]}"#, "`oneOf` beside"),
            (
                r#"{"properties": {"a": {}}, "anyOf": [{"properties": {}, "additionalProperties": false}]}"#,
                "`anyOf` beside",
            ),
            (r#"{"type": "array", "minItems": 200, "items": {"type": "string", "minLength": 200}}"#, "states"),
        ] {
            let message = grammar(schema).unwrap_err().to_string();
            assert!(
                message.starts_with("no grammar can be made for the tool `t`") && message.contains(words),
                "{message}"
            );
        }
        // Three lists in each other are more places than there is memory for.
        let counted = |items: &str| format!(r#"{{"type": "array", "maxItems": 256, "items": {items}}}"#);
        let nested = counted(&counted(&counted(r#"{"type": "string", "maxLength": 256}"#)));
        assert!(grammar(&nested).unwrap_err().to_string().contains("states"));
        let deep = format!("{}{{}}{}", r#"{"type": "array", "items": "#.repeat(20), "}".repeat(20));
        assert!(grammar(&deep).unwrap_err().to_string().contains("deeper than 16"));
        for (parameters, problem) in [
            (r#"{"type": "array"}"#, SchemaProblem::NotAnObject),
            (r##"{"$ref": "#/$defs/x", "$defs": {"x": {"type": "object"}}}"##, SchemaProblem::Word("$ref")),
            (r#"{"allOf": [{"type": "object"}]}"#, SchemaProblem::Word("allOf")),
            (r#"{"enum": [{}]}"#, SchemaProblem::Word("enum")),
            (r#"{"anyOf": []}"#, SchemaProblem::NoChoice("anyOf")),
            (r#"{"anyOf": [{"type": "string"}]}"#, SchemaProblem::NotAnObject),
        ] {
            assert_eq!(of_arguments(parameters).unwrap_err().problem, problem, "{parameters}");
        }
    }

    fn of_arguments(parameters: &str) -> Result<Grammar, SchemaError> {
        let parameters = Value::from_json(parameters).unwrap();
        arguments_grammar(&[Callable { name: "t", parameters: &parameters, program: None }])
    }

    #[test]
    fn arguments_are_one_object_or_one_of_several() {
        let fits = |parameters: &str, arguments: &[&'static str]| -> Vec<&'static str> {
            let grammar = of_arguments(parameters).unwrap();
            arguments.iter().filter(|arguments| grammar.matches(arguments.as_bytes())).copied().collect()
        };
        let arguments = ["{}", r#"{"a": 1}"#, r#"{"b": 2}"#, r#"{"a": 1, "b": 2}"#, r#"{"c": "x"}"#];
        // A tool that names no arguments has none; one that takes any says so.
        for silent in [r#"{}"#, r#"{"type": "object", "properties": {}}"#] {
            assert_eq!(fits(silent, &arguments), arguments[..1]);
        }
        assert_eq!(fits(r#"{"additionalProperties": true}"#, &arguments), arguments);
        assert_eq!(fits(r#"{"additionalProperties": {"type": "integer"}}"#, &arguments), arguments[..4]);
        let beside = r#"{"type": "object", "additionalProperties": false,
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"], "title": "The other"}]}"#;
        assert_eq!(fits(beside, &arguments), arguments[1..4]);
        let apart = r#"{"oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]},
            {"properties": {"c": {"type": "string"}}, "required": ["c"]}], "description": "Either."}"#;
        assert_eq!(fits(apart, &arguments), [arguments[1], arguments[4]]);
    }

    #[test]
    fn members_without_a_name_follow_their_schema() {
        let values = ["{}", r#"{"x": 1}"#, r#"{"x": 1, "y": 2}"#, r#"{"x": "1"}"#, r#"{"x": 1.5}"#];
        let schema = r#"{"type": "object", "additionalProperties": {"type": "integer"}}"#;
        assert_eq!(allowed(schema, &values), values[..3]);
        assert_eq!(allowed(r#"{"type": "object", "additionalProperties": false}"#, &values), values[..1]);
        let both = r#"{"anyOf": [{"minLength": 1}, {"maxLength": 3}], "type": "string"}"#;
        assert_eq!(allowed(both, &["1", "\"\"", "\"abcd\""]), ["\"\"", "\"abcd\""]);
    }

    #[test]
    fn a_program_is_not_blank_in_either_form() {
        let parameters = Value::from_json(
            r#"{"properties": {"code": {"type": "string"}, "language": {"enum": ["lua"]}}, "required": ["code", "language"]}"#,
        )
        .unwrap();
        let tool = [Callable { name: "execute_program", parameters: &parameters, program: Some("code") }];
        let call = call_grammar(&tool).unwrap();
        let fenced = text_grammar("```lua\n").unwrap();
        for (code, is_program) in
            [("return 1", true), (" x", true), ("-- a\nreturn \"é\"", true), ("", false), (" \n\t", false)]
        {
            let text = format!(
                r#"{{"name": "execute_program", "arguments": {{"language": "lua", "code": {}}}}}"#,
                Value::from(code).to_json()
            );
            assert_eq!(call.matches(text.as_bytes()), is_program, "{text}");
            assert_eq!(fenced.matches(format!("```lua\n{code}\n```").as_bytes()), is_program, "{code:?}");
        }
        for broken in ["```lua\nx", "```lua\nx```", "```lua\nx\n```\n", "```lua\nx\n```\n```", "x", "```lua\n`a`\n```"]
        {
            assert!(!fenced.matches(broken.as_bytes()), "{broken:?}");
        }
        assert!(fenced.matches(b"```lua\nx = `a` .. ``\n```"));
    }

    #[test]
    fn prose_is_visible_and_holds_no_sign_of_a_call() {
        let prose = prose_grammar().unwrap();
        for text in ["I will.", " x", "日本", "ünd", "a < b", "<calm", "returns", "return", "context", "``", "a\nb"]
        {
            assert!(prose.matches(text.as_bytes()), "{text:?}");
        }
        for text in [
            "",
            " \n",
            "\u{3000}",
            "\u{a0} ",
            "{",
            "x = 1",
            "a <call",
            "<<call",
            "return 1",
            "rreturn 1",
            "args[1]",
            "```",
        ] {
            assert!(!prose.matches(text.as_bytes()), "{text:?}");
        }
    }
}
