"""Type hints as JSON Schema, for tools and deliverables. Imported when the first tool is given, never before.

int, float, str, bool, None, Any, list[T], tuple[T, ...], dict[str, T], Optional and unions, Literal, Annotated, Enum,
TypedDict, dataclasses, datetime, date, time and pydantic models. A parameter without a hint takes anything.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import inspect
import sys
import types
import typing
from typing import Any, Callable

from ._tools import EFFECT

Schema = dict[str, Any]
Coerce = Callable[[Any], Any]

_PLAIN: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    None: "null",
    list: "array",
    tuple: "array",
    dict: "object",
}
_TIMES: dict[Any, tuple[str, Coerce]] = {
    datetime.datetime: ("date-time", datetime.datetime.fromisoformat),
    datetime.date: ("date", datetime.date.fromisoformat),
    datetime.time: ("time", datetime.time.fromisoformat),
}
_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))
_MAX_DEPTH = 32


def describe(
    function: Callable[..., Any], name: str | None = None
) -> tuple[str, str, Schema, Callable[[dict[str, Any]], dict[str, Any]] | None, str]:
    """Name, description, parameters schema, what turns plain arguments into what the hints ask for, and the class of
    effects."""
    name = name or getattr(function, "__name__", None) or type(function).__name__
    description = (inspect.getdoc(function) or "").split("\n\n")[0].strip()
    effect = str(getattr(function, EFFECT, "effectful"))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: its parameters are not known ({error}); wrap it in a function with type hints"
        ) from None
    hints = _hints(function)
    properties: dict[str, Schema] = {}
    required: list[str] = []
    coercions: dict[str, Coerce] = {}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            schema["additionalProperties"] = True
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TypeError(
                f"{name}: parameter {parameter.name!r} is positional only, and programs call tools with named "
                "arguments; wrap it in a function with named parameters"
            )
        try:
            described, coerce = _read(hints.get(parameter.name, Any), 0)
        except TypeError as error:
            raise TypeError(f"{name}: parameter {parameter.name!r}: {error}") from None
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif isinstance(parameter.default, (int, float, str, bool)) and parameter.default == parameter.default:
            described = {**described, "default": parameter.default}
        properties[parameter.name] = described
        if coerce is not None:
            coercions[parameter.name] = coerce
    if required:
        schema["required"] = required
    if not coercions:
        return name, description, schema, None, effect

    def apply(arguments: dict[str, Any]) -> dict[str, Any]:
        return {key: coercions[key](value) if key in coercions else value for key, value in arguments.items()}

    return name, description, schema, apply, effect


def schema_of(hint: Any) -> Schema:
    """The JSON Schema of a type."""
    return _read(hint, 0)[0]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target: Any = function
    while hasattr(target, "func") and type(target).__name__ == "partial":
        target = target.func
    if not inspect.isroutine(target) and not inspect.isclass(target):
        target = type(target).__call__
    if inspect.isclass(target):
        target = target.__init__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise TypeError(f"a type hint cannot be read: {error}") from None
    except (AttributeError, TypeError):
        return {}


def _read(hint: Any, depth: int) -> tuple[Schema, Coerce | None]:
    if depth > _MAX_DEPTH:
        raise TypeError("its type refers to itself, which has no finite schema; use dict")
    if hint is Any or hint is inspect.Parameter.empty or hint is object or isinstance(hint, typing.TypeVar):
        return {}, None
    if hint in _UNIONS_PLAIN:
        return {}, None
    plain = _PLAIN.get(hint) if _hashable(hint) else None
    if plain is not None:
        return {"type": plain}, (tuple if hint is tuple else None)
    if _hashable(hint) and hint in _TIMES:
        form, parse = _TIMES[hint]
        return {"type": "string", "format": form}, parse
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is None and hasattr(hint, "__supertype__"):  # NewType
        return _read(hint.__supertype__, depth + 1)
    if origin is not None and hasattr(hint, "__metadata__"):  # Annotated: its first text describes it
        described, coerce = _read(args[0], depth + 1)
        words = next((word for word in hint.__metadata__ if isinstance(word, str)), None)
        return ({**described, "description": words} if words else described), coerce
    if origin is typing.Literal:
        return _literal(args)
    if origin in _UNIONS:
        return _union(args, depth)
    if origin in _LISTS:
        return _array(origin, args, depth)
    if origin in _MAPS:
        return _object(args, depth)
    if isinstance(hint, type):
        return _class(hint, depth)
    raise TypeError(
        f"the type {hint!r} has no JSON Schema; use None, bool, int, float, str, list, dict, a dataclass, "
        "a TypedDict, Literal or a union of them"
    )


_UNIONS_PLAIN = (typing.Union, typing.Optional)


def _hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True


def _literal(values: tuple[Any, ...]) -> tuple[Schema, Coerce | None]:
    plain = [value.value if isinstance(value, enum.Enum) else value for value in values]
    members = {value.value: value for value in values if isinstance(value, enum.Enum)}
    return {"enum": plain}, ((lambda value: members.get(value, value)) if members else None)


def _union(options: tuple[Any, ...], depth: int) -> tuple[Schema, Coerce | None]:
    read = [_read(option, depth + 1) for option in options]
    coercions = [coerce for _, coerce in read if coerce is not None]
    if len(coercions) > 1:
        raise TypeError("a union of several types that are made from plain data is ambiguous; use one of them")
    schemas = [schema for schema, _ in read]
    if all(set(schema) == {"type"} and isinstance(schema["type"], str) for schema in schemas):
        merged: Schema = {"type": [schema["type"] for schema in schemas]}
    else:
        merged = {"anyOf": schemas}
    if not coercions:
        return merged, None
    coerce = coercions[0]
    shape = {"object": dict, "array": list, "string": str}.get(
        next(schema.get("type", "") for schema, made in read if made is coerce), object
    )
    return merged, lambda value: coerce(value) if isinstance(value, shape) else value


def _array(origin: Any, args: tuple[Any, ...], depth: int) -> tuple[Schema, Coerce | None]:
    if origin is tuple and args and args[-1] is not Ellipsis:
        read = [_read(arg, depth + 1) for arg in args]
        schema: Schema = {
            "type": "array",
            "prefixItems": [item for item, _ in read],
            "minItems": len(read),
            "maxItems": len(read),
        }
        coercions = [coerce for _, coerce in read]
        return schema, lambda items: tuple(
            item if coerce is None else coerce(item) for item, coerce in zip(items, coercions)
        )
    described, coerce = _read(args[0], depth + 1) if args else ({}, None)
    schema = {"type": "array", "items": described} if described else {"type": "array"}
    if origin is tuple:
        return schema, lambda items: tuple(items if coerce is None else map(coerce, items))
    if coerce is None:
        return schema, None
    each = coerce
    return schema, lambda items: [each(item) for item in items]


def _object(args: tuple[Any, ...], depth: int) -> tuple[Schema, Coerce | None]:
    if args and args[0] not in (str, Any):
        raise TypeError(f"keys of a map are text, not {args[0]!r}")
    described, coerce = _read(args[1], depth + 1) if args else ({}, None)
    schema: Schema = {"type": "object", "additionalProperties": described} if described else {"type": "object"}
    if coerce is None:
        return schema, None
    each = coerce
    return schema, lambda items: {key: each(item) for key, item in items.items()}


def _class(hint: type, depth: int) -> tuple[Schema, Coerce | None]:
    if issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}, hint
    pydantic = sys.modules.get("pydantic.main")
    if pydantic is not None and issubclass(hint, pydantic.BaseModel):
        made: Any = hint
        if hasattr(hint, "model_json_schema"):
            return made.model_json_schema(), made.model_validate
        return made.schema(), made.parse_obj
    if typing.is_typeddict(hint) if hasattr(typing, "is_typeddict") else hasattr(hint, "__total__"):
        return _fields(typing.get_type_hints(hint), getattr(hint, "__required_keys__", frozenset()), None, depth)
    if dataclasses.is_dataclass(hint):
        resolved = typing.get_type_hints(hint, include_extras=True)
        fields = [field for field in dataclasses.fields(hint) if field.init]
        needed = frozenset(
            field.name
            for field in fields
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        return _fields({field.name: resolved[field.name] for field in fields}, needed, hint, depth)
    raise TypeError(
        f"the class {hint.__qualname__} has no JSON Schema; use a dataclass, a TypedDict or a pydantic model"
    )


def _fields(
    hints: dict[str, Any], needed: typing.AbstractSet[str], made: type | None, depth: int
) -> tuple[Schema, Coerce | None]:
    read = {name: _read(hint, depth + 1) for name, hint in hints.items()}
    schema: Schema = {
        "type": "object",
        "properties": {name: described for name, (described, _) in read.items()},
        "additionalProperties": False,
    }
    required = [name for name in hints if name in needed]
    if required:
        schema["required"] = required
    coercions = {name: coerce for name, (_, coerce) in read.items() if coerce is not None}
    if made is None and not coercions:
        return schema, None

    def build(values: dict[str, Any]) -> Any:
        fields = {name: coercions[name](value) if name in coercions else value for name, value in values.items()}
        return fields if made is None else made(**fields)

    return schema, build
