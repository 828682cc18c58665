"""Objects whose methods are written by a model when they are first called.

    from cadenza import Agent

    calc = Agent.for_role("calculator")
    calc.memory = 5
    calc.add(3).value

Values cross as JSON-like data: None, bool, int (64 bits), float, str, list or tuple, dict with str keys. Also converted
on their way in: dataclasses, pydantic models, Enum members, datetime, date and time (ISO 8601), timedelta (seconds),
Decimal (text), UUID, Path, NumPy scalars and arrays, pandas Series (list of values) and DataFrame (list of rows).
Bytes cross as ``{"$bytes": base64}``.
"""

from ._core import (
    Agent,
    AsyncAgent,
    AsyncCall,
    BusyError,
    CadenzaError,
    CallEvents,
    CallTree,
    ModelRequest,
    OptionError,
    Outcome,
    OutcomeError,
    Program,
    Runtime,
    RuntimeContext,
    StoreError,
    __version__,
    default_runtime,
)
from ._tools import tool

__all__ = [
    "Agent",
    "AsyncAgent",
    "AsyncCall",
    "BusyError",
    "CadenzaError",
    "CallEvents",
    "CallTree",
    "ModelRequest",
    "OptionError",
    "Outcome",
    "OutcomeError",
    "Program",
    "Runtime",
    "RuntimeContext",
    "StoreError",
    "__version__",
    "default_runtime",
    "tool",
]


def _attach(
    cls: "type[Agent] | type[AsyncAgent]", role: str, name: str, namespace: str, store: str
) -> "Agent | AsyncAgent":
    """Takes up a pickled agent: the one of that name in that store, with this process's own model and settings."""
    return cls.for_role(role, name=name, namespace=namespace, store=store)
