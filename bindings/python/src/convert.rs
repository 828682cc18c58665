//! Values at the border between Python and Cadenza.
//!
//! Into Cadenza, by type and without calling user code where a built-in type says it all:
//!
//! | Python | Cadenza |
//! |---|---|
//! | None, bool, int (64 bits), float, str, and their subclasses | the same |
//! | list, tuple (named tuples too) | list |
//! | dict and other mappings with str keys | map |
//! | `{"$bytes": base64}` | that map; bare bytes are refused |
//! | dataclass instance | map of its fields |
//! | pydantic model | map, by `model_dump()` |
//! | Enum member | its value |
//! | datetime, date, time, pandas.Timestamp, numpy.datetime64 | ISO 8601 text; NaT is null |
//! | timedelta, numpy.timedelta64 | seconds |
//! | Decimal | text, so that no digit is lost |
//! | UUID, Path | text |
//! | NumPy scalar, array | number or text, nested lists |
//! | pandas Series, Index | list of its values |
//! | pandas DataFrame | list of maps, one per row; column names as text; the index is left out |
//!
//! Everything else is refused with its path. A package is only looked at when the program has imported it already, an
//! object is judged by its type, and `__getattr__` of a stranger is never called. Out of Cadenza come None, bool, int,
//! float, str, list and dict, always fresh.

use std::fmt::Write as _;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMapping, PyMemoryView, PyModule,
    PySet, PyString, PyTuple, PyType,
};

use cadenza_core::value::{Map, Value};

use crate::agent::{DynamicMethod, PyAgent};
use crate::async_agent::{AsyncMethod, PyAsyncAgent};
use crate::context::PyRuntimeContext;
use crate::outcome::PyOutcome;

/// Levels of nesting; a cycle shows as one level too many.
const MAX_DEPTH: usize = 64;
/// Values in one argument: shared sub-structures count each time they are reached.
const MAX_NODES: usize = 1_000_000;

/// The UTF-8 text of a str. Fails for lone surrogates, as Python does.
#[cfg(unix)]
pub(crate) fn utf8<'a>(text: &'a Bound<'_, PyString>) -> PyResult<std::borrow::Cow<'a, str>> {
    use std::borrow::Cow;

    // The stable ABI lists this function from 3.10 on, but every CPython since 3.3 exports it. It spares each attribute
    // access a bytes object.
    unsafe extern "C" {
        fn PyUnicode_AsUTF8AndSize(
            unicode: *mut ffi::PyObject,
            size: *mut ffi::Py_ssize_t,
        ) -> *const std::os::raw::c_char;
    }
    let mut size = 0;
    // SAFETY: `text` is a str; the result is null with an exception set, or `size` bytes that live as long as the str.
    let bytes = unsafe {
        let data = PyUnicode_AsUTF8AndSize(text.as_ptr(), &raw mut size);
        if data.is_null() {
            return Err(PyErr::fetch(text.py()));
        }
        std::slice::from_raw_parts(data.cast::<u8>(), size.unsigned_abs())
    };
    // SAFETY: CPython encodes valid UTF-8 or fails.
    Ok(Cow::Borrowed(unsafe { std::str::from_utf8_unchecked(bytes) }))
}

/// The UTF-8 text of a str. Fails for lone surrogates, as Python does.
#[cfg(not(unix))]
pub(crate) fn utf8<'a>(text: &'a Bound<'_, PyString>) -> PyResult<std::borrow::Cow<'a, str>> {
    text.to_cow()
}

/// One value. `what` names it in the error, such as `argument 1`.
pub(crate) fn to_value(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Value> {
    let mut nodes = 0;
    convert(object, 0, &mut nodes).map_err(|refusal| refusal.into_error(what))
}

/// Positional arguments.
pub(crate) fn arguments(args: &Bound<'_, PyTuple>) -> PyResult<Vec<Value>> {
    let mut values = Vec::with_capacity(args.len());
    for (index, object) in args.iter_borrowed().enumerate() {
        let mut nodes = 0;
        match convert(&object, 0, &mut nodes) {
            Ok(value) => values.push(value),
            Err(refusal) => return Err(refusal.into_error(&format!("argument {}", index + 1))),
        }
    }
    Ok(values)
}

/// Named arguments, or the entries of a dict that Python made for `**entries`.
pub(crate) fn keywords(kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Map> {
    let mut map = Map::new();
    for (key, object) in kwargs.into_iter().flatten() {
        let key = utf8(key.cast::<PyString>()?)?.into_owned();
        let mut nodes = 0;
        match convert(&object, 0, &mut nodes) {
            Ok(value) => drop(map.insert(key, value)),
            Err(refusal) => return Err(refusal.into_error(&format!("argument {key:?}"))),
        }
    }
    Ok(map)
}

/// A value as fresh Python data.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Int(number) => number.into_pyobject(py)?.into_any(),
        Value::Float(number) => PyFloat::new(py, *number).into_any(),
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::List(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(to_python(py, item)?)?;
            }
            list.into_any()
        }
        Value::Map(map) => map_to_python(py, map)?.into_any(),
    })
}

/// These fields of a map as a dict, in this order; None where there is none.
pub(crate) fn fields<'py>(py: Python<'py>, names: &[&str], map: &Map) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for name in names {
        dict.set_item(name, map.get(*name).map(|value| to_python(py, value)).transpose()?)?;
    }
    Ok(dict)
}

/// A map as a fresh dict.
pub(crate) fn map_to_python<'py>(py: Python<'py>, map: &Map) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, item) in map {
        dict.set_item(PyString::new(py, key), to_python(py, item)?)?;
    }
    Ok(dict)
}

/// One step of a path such as `$.rows[3]`.
enum Segment {
    Index(usize),
    Key(String),
}

/// Why a value does not cross, and where. The path is collected on the way out, innermost first.
struct Refusal {
    path: Vec<Segment>,
    problem: Problem,
}

enum Problem {
    /// The type has no JSON form.
    Type(String),
    /// The type has one, this value has not.
    Value(String),
    /// User code raised (a pydantic model's `model_dump`, a dataclass's property).
    Raised(PyErr),
}

type Converted = Result<Value, Box<Refusal>>;

impl Refusal {
    fn at(mut self: Box<Self>, segment: Segment) -> Box<Self> {
        self.path.push(segment);
        self
    }

    fn into_error(self, what: &str) -> PyErr {
        let mut path = String::new();
        for segment in self.path.iter().rev() {
            // Writing to a String cannot fail.
            let _ = match segment {
                Segment::Index(index) => write!(path, "[{index}]"),
                Segment::Key(key) => write!(path, ".{key}"),
            };
        }
        // The value itself needs no path.
        let place = if path.is_empty() { what.to_owned() } else { format!("{what}: `${path}`") };
        match self.problem {
            Problem::Type(message) => PyTypeError::new_err(format!("{place}: {message}")),
            Problem::Value(message) => PyValueError::new_err(format!("{place}: {message}")),
            Problem::Raised(error) => error,
        }
    }
}

impl From<PyErr> for Box<Refusal> {
    fn from(error: PyErr) -> Self {
        Box::new(Refusal { path: Vec::new(), problem: Problem::Raised(error) })
    }
}

fn of_type<T>(message: impl Into<String>) -> Result<T, Box<Refusal>> {
    Err(Box::new(Refusal { path: Vec::new(), problem: Problem::Type(message.into()) }))
}

fn of_value<T>(message: impl Into<String>) -> Result<T, Box<Refusal>> {
    Err(Box::new(Refusal { path: Vec::new(), problem: Problem::Value(message.into()) }))
}

fn convert(object: &Bound<'_, PyAny>, depth: usize, nodes: &mut usize) -> Converted {
    if let Ok(text) = object.cast_exact::<PyString>() {
        return string(text);
    }
    if let Ok(number) = object.cast_exact::<PyInt>() {
        return integer(number);
    }
    if let Ok(number) = object.cast_exact::<PyFloat>() {
        return Ok(Value::Float(number.value()));
    }
    if object.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(value) = object.cast_exact::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    *nodes += 1;
    if *nodes > MAX_NODES {
        return of_value(format!("more than {MAX_NODES} values; pass less, or a path to a file that holds them"));
    }
    if depth >= MAX_DEPTH {
        return of_value(format!("nested deeper than {MAX_DEPTH} levels, or contains itself"));
    }
    if let Ok(dict) = object.cast::<PyDict>() {
        return entries(dict, depth, nodes);
    }
    if let Ok(list) = object.cast::<PyList>() {
        return items(list.iter(), list.len(), depth, nodes);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return items(tuple.iter(), tuple.len(), depth, nodes);
    }
    other(object, depth, nodes)
}

fn string(text: &Bound<'_, PyString>) -> Converted {
    match utf8(text) {
        Ok(text) => Ok(Value::String(text.into_owned())),
        Err(_) => of_value("the text holds a lone surrogate and has no UTF-8 form"),
    }
}

fn integer(number: &Bound<'_, PyInt>) -> Converted {
    match number.extract::<i64>() {
        Ok(number) => Ok(Value::Int(number)),
        Err(_) => of_value("the integer does not fit in 64 bits; pass it as text, or as a float if digits may be lost"),
    }
}

fn items<'py>(
    objects: impl Iterator<Item = Bound<'py, PyAny>>,
    length: usize,
    depth: usize,
    nodes: &mut usize,
) -> Converted {
    *nodes += length;
    let mut list = Vec::with_capacity(length.min(MAX_NODES));
    for (index, object) in objects.enumerate() {
        match convert(&object, depth + 1, nodes) {
            Ok(value) => list.push(value),
            Err(refusal) => return Err(refusal.at(Segment::Index(index))),
        }
    }
    Ok(Value::List(list))
}

fn entries(dict: &Bound<'_, PyDict>, depth: usize, nodes: &mut usize) -> Converted {
    *nodes += dict.len();
    // Taken out first: converting a value may run user code, and that may change the dict.
    let taken: Vec<_> = dict.iter().collect();
    let mut map = Map::new();
    for (key, object) in taken {
        let key = key_text(&key)?;
        match convert(&object, depth + 1, nodes) {
            Ok(value) => drop(map.insert(key, value)),
            Err(refusal) => return Err(refusal.at(Segment::Key(key))),
        }
    }
    Ok(Value::Map(map))
}

fn key_text(key: &Bound<'_, PyAny>) -> Result<String, Box<Refusal>> {
    let Ok(text) = key.cast::<PyString>() else {
        let shown = if key.cast::<PyInt>().is_ok() { key.str()?.to_string() } else { type_name(key) };
        return of_type(format!("map keys are text, got the {} {shown}; use str(key)", type_name(key)));
    };
    match utf8(text) {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => of_value("a map key holds a lone surrogate and has no UTF-8 form"),
    }
}

/// Everything that is not exactly a built-in type: subclasses, standard classes, guests, strangers.
fn other(object: &Bound<'_, PyAny>, depth: usize, nodes: &mut usize) -> Converted {
    let py = object.py();
    // Subclasses of the built-in types, IntEnum and StrEnum among them, are what they extend.
    if let Ok(text) = object.cast::<PyString>() {
        return string(text);
    }
    if let Ok(number) = object.cast::<PyInt>() {
        return integer(number);
    }
    if let Ok(number) = object.cast::<PyFloat>() {
        return Ok(Value::Float(number.value()));
    }
    if let Some(hint) = hint(object) {
        return of_type(hint);
    }
    if let Ok(context) = object.cast::<PyRuntimeContext>() {
        return Ok(Value::Map(context.get().agent().runtime_context().snapshot()));
    }
    let known = Known { py, object, class: object.get_type() };
    if known.is("enum", "Enum")? {
        return convert(&object.getattr(intern!(py, "value"))?, depth + 1, nodes);
    }
    if let Some(value) = pandas(&known, depth, nodes)? {
        return Ok(value);
    }
    if let Some(value) = numpy(&known, depth, nodes)? {
        return Ok(value);
    }
    if known.is("datetime", "date")? || known.is("datetime", "time")? {
        return convert(&object.call_method0(intern!(py, "isoformat"))?, depth + 1, nodes);
    }
    if known.is("datetime", "timedelta")? {
        return convert(&object.call_method0(intern!(py, "total_seconds"))?, depth + 1, nodes);
    }
    if known.is("decimal", "Decimal")? || known.is("uuid", "UUID")? || known.is("pathlib", "PurePath")? {
        return convert(object.str()?.as_any(), depth + 1, nodes);
    }
    if known.is("pydantic.main", "BaseModel")? || known.is("pydantic.v1.main", "BaseModel")? {
        let dump = if known.class.hasattr("model_dump")? { "model_dump" } else { "dict" };
        return convert(&object.call_method0(dump)?, depth + 1, nodes);
    }
    if object.cast::<PyType>().is_err() && known.class.hasattr(intern!(py, "__dataclass_fields__"))? {
        return dataclass(object, depth, nodes);
    }
    if known.class.is_subclass(&mapping_class(py)?)? {
        let dict = PyDict::new(py);
        dict.update(object.cast::<PyMapping>().map_err(PyErr::from)?)?;
        return entries(&dict, depth, nodes);
    }
    let class = type_name(object);
    let article = if class.starts_with(['a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O', 'U']) { "an" } else { "a" };
    of_type(format!(
        "{article} {class} has no JSON form; pass None, a bool, a number, text, a list or a dict (dataclasses, pydantic models, \
         datetime, Decimal, NumPy and pandas objects are converted)"
    ))
}

/// What to write instead, for the objects that people do pass.
fn hint(object: &Bound<'_, PyAny>) -> Option<String> {
    if object.cast::<PyBytes>().is_ok() || object.cast::<PyByteArray>().is_ok() || object.cast::<PyMemoryView>().is_ok()
    {
        return Some(
            "bytes cross only as {\"$bytes\": base64.b64encode(data).decode()}, or decode them to text".to_owned(),
        );
    }
    if object.cast::<PySet>().is_ok() || object.cast::<PyFrozenSet>().is_ok() {
        return Some("a set has no JSON form; pass sorted(...) or list(...) of it".to_owned());
    }
    if object.cast::<PyOutcome>().is_ok() {
        return Some("an Outcome is not a value; pass its `.value`, or `.unwrap()` to stop on an error".to_owned());
    }
    if object.cast::<PyAgent>().is_ok() || object.cast::<PyAsyncAgent>().is_ok() {
        return Some(
            "an agent has no JSON form; pass `dict(agent.runtime_context)` or the outcome of a call".to_owned(),
        );
    }
    if object.cast::<DynamicMethod>().is_ok() || object.cast::<AsyncMethod>().is_ok() {
        return Some("this is a method of an agent, not its outcome; call it".to_owned());
    }
    None
}

/// An object and its class, asked about modules that may not be loaded.
struct Known<'a, 'py> {
    py: Python<'py>,
    object: &'a Bound<'py, PyAny>,
    class: Bound<'py, PyType>,
}

impl<'py> Known<'_, 'py> {
    /// The module, if the program has imported it.
    fn module(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let modules = PyModule::import(self.py, intern!(self.py, "sys"))?.getattr(intern!(self.py, "modules"))?;
        let modules = modules.cast_into::<PyDict>()?;
        modules.get_item(name)
    }

    /// Whether the object's class is or extends `class` of a module that the program has imported.
    fn is(&self, module: &str, class: &str) -> PyResult<bool> {
        let Some(module) = self.module(module)? else { return Ok(false) };
        match module.getattr(class) {
            Ok(class) => Ok(self.extends(&class)),
            Err(_) => Ok(false),
        }
    }

    /// By the method resolution order alone: no `__instancecheck__`, no `__class__`.
    fn extends(&self, class: &Bound<'py, PyAny>) -> bool {
        class.cast::<PyType>().is_ok_and(|class| {
            // SAFETY: both are type objects, held by us.
            unsafe { ffi::PyType_IsSubtype(self.class.as_type_ptr(), class.as_type_ptr()) != 0 }
        })
    }
}

fn numpy(known: &Known<'_, '_>, depth: usize, nodes: &mut usize) -> Result<Option<Value>, Box<Refusal>> {
    let Some(numpy) = known.module("numpy")? else { return Ok(None) };
    let is = |class: &str| numpy.getattr(class).is_ok_and(|class| known.extends(&class));
    let object = known.object;
    if is("ndarray") {
        let size: usize = object.getattr("size")?.extract()?;
        if size > MAX_NODES {
            return of_value(format!("an array of {size} values; at most {MAX_NODES} cross, so pass less"));
        }
        let kind: String = object.getattr("dtype")?.getattr("kind")?.extract()?;
        let plain = match kind.as_str() {
            "M" => numpy.call_method1("datetime_as_string", (object,))?,
            "m" => object.call_method1("__truediv__", (numpy.call_method1("timedelta64", (1, "s"))?,))?,
            _ => object.clone(),
        };
        let list = plain.call_method0("tolist")?;
        return convert(&list, depth + 1, nodes)
            .map(|value| Some(if kind == "M" { without_nat(value) } else { value }));
    }
    if is("datetime64") {
        return convert(object.str()?.as_any(), depth + 1, nodes).map(|value| Some(without_nat(value)));
    }
    if is("timedelta64") {
        let seconds = object.call_method1("__truediv__", (numpy.call_method1("timedelta64", (1, "s"))?,))?;
        return Ok(Some(Value::Float(seconds.extract()?)));
    }
    if is("generic") {
        let item = object.call_method0("item")?;
        // A long double's `item` is itself.
        let item = if item.get_type().is(&known.class) { item.call_method0("__float__")? } else { item };
        return convert(&item, depth + 1, nodes).map(Some);
    }
    Ok(None)
}

/// NumPy writes a missing time as `NaT`.
fn without_nat(value: Value) -> Value {
    match value {
        Value::String(text) if text == "NaT" => Value::Null,
        Value::List(items) => Value::List(items.into_iter().map(without_nat).collect()),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) | Value::Map(_) => value,
    }
}

fn pandas(known: &Known<'_, '_>, depth: usize, nodes: &mut usize) -> Result<Option<Value>, Box<Refusal>> {
    let Some(pandas) = known.module("pandas")? else { return Ok(None) };
    let is = |class: &str| pandas.getattr(class).is_ok_and(|class| known.extends(&class));
    let same = |name: &str| pandas.getattr(name).is_ok_and(|single| single.is(known.object));
    let object = known.object;
    if same("NaT") || same("NA") {
        return Ok(Some(Value::Null));
    }
    let (frame, series) = (is("DataFrame"), is("Series") || is("Index"));
    if !frame && !series {
        return Ok(None);
    }
    let size: usize = object.getattr("size")?.extract()?;
    if size > MAX_NODES {
        return of_value(format!("{size} cells; at most {MAX_NODES} cross, so pass less, such as .head(100)"));
    }
    let plain = if frame {
        let named = PyDict::new(known.py);
        named.set_item("columns", known.py.get_type::<PyString>())?;
        object.call_method("rename", (), Some(&named))?.call_method1("to_dict", ("records",))?
    } else {
        object.call_method0("tolist")?
    };
    convert(&plain, depth + 1, nodes).map(Some)
}

fn dataclass(object: &Bound<'_, PyAny>, depth: usize, nodes: &mut usize) -> Converted {
    let fields = PyModule::import(object.py(), "dataclasses")?.call_method1("fields", (object,))?;
    let mut map = Map::new();
    for field in fields.try_iter()? {
        let name = field?.getattr(intern!(object.py(), "name"))?.cast_into::<PyString>().map_err(PyErr::from)?;
        let value = object.getattr(&name)?;
        let name = utf8(&name)?.into_owned();
        match convert(&value, depth + 1, nodes) {
            Ok(value) => drop(map.insert(name, value)),
            Err(refusal) => return Err(refusal.at(Segment::Key(name))),
        }
    }
    Ok(Value::Map(map))
}

/// `collections.abc.Mapping`; its module is part of every interpreter's start.
fn mapping_class(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS
        .get_or_try_init(py, || PyModule::import(py, "_collections_abc")?.getattr("Mapping").map(Bound::unbind))?;
    Ok(class.bind(py).clone())
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().qualname().map_or_else(|_| "object".to_owned(), |name| name.to_string())
}
