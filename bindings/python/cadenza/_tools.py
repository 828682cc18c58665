"""What a function says about itself before it becomes a tool."""

from __future__ import annotations

from typing import Any, Callable, Literal, TypeVar, overload

from ._schema import EFFECT

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F, /, *, effect: Literal["pure", "idempotent", "effectful"] = "effectful") -> F: ...
@overload
def tool(
    function: None = None, /, *, effect: Literal["pure", "idempotent", "effectful"] = "effectful"
) -> Callable[[F], F]: ...
def tool(function: Any = None, /, *, effect: Literal["pure", "idempotent", "effectful"] = "effectful") -> Any:
    """Says what calls of a tool leave behind in the world, and returns the function itself.

    ``effect`` is ``"pure"`` (nothing: nobody waits for the disk before a call), ``"idempotent"`` (calling it again with
    the same arguments changes nothing more) or ``"effectful"`` (the default: at most once; a call that died with its
    process is recorded as unknown and never made again). Raises ValueError for any other word.

        @cadenza.tool(effect="pure")
        def population(city: str) -> int: ...

        Runtime(tools=[population])
    """
    if effect not in ("pure", "idempotent", "effectful"):
        raise ValueError(f"effect: expected 'pure', 'idempotent' or 'effectful', got {effect!r}")

    def mark(function: F) -> F:
        setattr(function, EFFECT, effect)
        return function

    return mark if function is None else mark(function)
