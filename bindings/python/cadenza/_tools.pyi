from typing import Any, Callable, Literal, TypeVar, overload

EFFECT: str

_F = TypeVar("_F", bound=Callable[..., Any])

@overload
def tool(function: _F, /, *, effect: Literal["pure", "idempotent", "effectful"] = "effectful") -> _F: ...
@overload
def tool(
    function: None = None, /, *, effect: Literal["pure", "idempotent", "effectful"] = "effectful"
) -> Callable[[_F], _F]: ...
