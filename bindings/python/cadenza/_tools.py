"""What a function says about itself before it becomes a tool.

Imported with the package, so it imports nothing; its types stand in the stub beside it.
"""

# Where a function says what its calls leave behind.
EFFECT = "__cadenza_effect__"


def tool(function=None, /, *, effect="effectful"):
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

    def mark(function):
        setattr(function, EFFECT, effect)
        return function

    return mark if function is None else mark(function)
