"""Python functions as host tools (product.md section 4)."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import enum
import functools
import threading
import time
from typing import Annotated, Any, Literal, Optional, TypedDict, Union

import pytest

import cadenza
from cadenza import OptionError
from cadenza._schema import describe, schema_of


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict, total=False):
    name: str


def with_tool(agent_of, tool: Any, program: str, **options: Any) -> cadenza.Outcome:
    tools = tool if isinstance(tool, (dict, list)) else [tool]
    return agent_of({"use": program}, tools=tools, **{"execution_repairs": 0, **options}).use()


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Optional[int], {"type": ["integer", "null"]}),
        (Union[int, str], {"type": ["integer", "string"]}),
        (Union[list[int], None], {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Mode, {"enum": ["fast", "slow"]}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                "additionalProperties": False,
                "required": ["x"],
            },
        ),
        (Row, {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
    ],
)
def test_hints_become_json_schema(hint, schema):
    assert schema_of(hint) == schema


def test_a_function_is_described_by_its_signature_and_docstring():
    def fetch(url: str, retries: int = 3, headers: dict[str, str] | None = None, *, strict: bool = False) -> str:
        """Fetches a page.

        Not part of the description.
        """
        return url

    name, description, schema, coerce, effect = describe(fetch)
    assert effect == "effectful"
    assert (name, description, coerce) == ("fetch", "Fetches a page.", None)
    assert schema["required"] == ["url"]
    assert schema["properties"]["retries"] == {"type": "integer", "default": 3}
    assert schema["additionalProperties"] is False


def test_a_program_calls_a_tool(agent_of):
    def area(width: float, height: float = 2) -> float:
        """The area of a rectangle."""
        return width * height

    outcome = with_tool(agent_of, area, "return tools.area{width=3, height=4} + tools.area{width=1}")
    assert outcome.value == 14, outcome


def test_rhai_programs_call_tools_too(agent_of):
    outcome = with_tool(agent_of, {"double": lambda n: n * 2}, "tools.double(#{n: 21})", language="rhai")
    assert outcome.value == 42, outcome


def test_tools_are_told_to_the_model(agent_of):
    prompts = []

    def model(request):
        prompts.append(request.system_prompt + request.user_prompt)
        return "return 1"

    def area(width: float) -> float:
        """The area of a square."""
        return width * width

    agent_of(model, tools=[area]).use()
    assert "area" in prompts[0]
    assert "The area of a square." in prompts[0]


def test_arguments_are_validated_before_the_function_runs(agent_of):
    called = []

    def area(width: float) -> float:
        called.append(width)
        return width

    outcome = with_tool(agent_of, area, 'return tools.area{width="wide"}')
    assert outcome.error_type == "execution"
    assert "width" in outcome.error_message
    assert called == []
    assert not with_tool(agent_of, area, "return tools.area{depth=1}").ok


def test_an_exception_is_a_catchable_error_with_type_and_message(agent_of):
    def fail(what: str) -> None:
        raise LookupError(f"no {what}")

    caught = 'local ok, message = pcall(function() return tools.fail{what="luck"} end) return tostring(message)'
    assert "LookupError: no luck" in with_tool(agent_of, fail, caught).value
    outcome = with_tool(agent_of, fail, 'return tools.fail{what="luck"}')
    assert outcome.error_type == "execution"
    assert "LookupError: no luck" in outcome.error_message


def test_plain_data_becomes_what_the_hints_ask_for(agent_of):
    seen = []

    def move(point: Point, mode: Mode, when: datetime.date, path: list[Point]) -> dict[str, Any]:
        seen.append((point, mode, when, path))
        return {"x": point.x, "mode": mode}

    program = 'return tools.move{point={x=1}, mode="fast", when="2026-01-02", path={{x=2, y=3}}}'
    assert with_tool(agent_of, move, program).value == {"x": 1, "mode": "fast"}
    assert seen == [(Point(1), Mode.FAST, datetime.date(2026, 1, 2), [Point(2, 3)])]


def test_pydantic_parameters_are_validated(agent_of):
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):
        amount: int

    def buy(order: Order) -> int:
        return order.amount

    buy.__annotations__ = {"order": Order, "return": int}
    assert with_tool(agent_of, buy, "return tools.buy{order={amount=7}}").value == 7


def test_results_without_a_json_form_are_errors(agent_of):
    outcome = with_tool(agent_of, {"odd": lambda: object()}, "return tools.odd{}")
    assert outcome.error_type == "execution"
    assert "no JSON form" in outcome.error_message


def test_other_callables_are_tools_too(agent_of):
    class Adder:
        """Adds."""

        def __init__(self, base: int) -> None:
            self.base = base

        def add(self, number: int) -> int:
            return self.base + number

        def __call__(self, number: int) -> int:
            return self.base + number

    assert with_tool(agent_of, [Adder(1).add], "return tools.add{number=2}").value == 3
    assert with_tool(agent_of, {"plus": Adder(1)}, "return tools.plus{number=2}").value == 3
    assert (
        with_tool(agent_of, {"plus": functools.partial(Adder.add, Adder(5))}, "return tools.plus{number=2}").value == 7
    )


def test_coroutine_functions_are_tools_too(agent_of):
    async def fetch(n: int) -> int:
        return n + 1

    assert with_tool(agent_of, fetch, "return tools.fetch{n=1}").value == 2


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([lambda n: n], "tool name"),
        (3, "expected functions in a list"),
        (["x"], "expected functions in a list"),
        ([print], "positional only"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(tools, message):
    with pytest.raises(OptionError, match=message):
        cadenza.Runtime(model="library", tools=tools)


def test_a_hint_without_a_schema_is_refused():
    class Odd:
        pass

    def use(thing: Odd) -> None: ...

    use.__annotations__ = {"thing": Odd, "return": None}
    with pytest.raises(OptionError, match="parameter 'thing': the class .*Odd has no JSON Schema"):
        cadenza.Runtime(model="library", tools=[use])


def test_delegates_inherit_tools_and_may_be_given_others(agent_of):
    agent = agent_of({"use": "return tools.one{}"}, tools={"one": lambda: 1}, execution_repairs=0)
    assert agent.delegate("child").use().value == 1
    refused = agent.delegate("child", tools=[]).use()
    assert refused.error_type == "execution"
    assert "no tool" in refused.error_message


def test_a_hanging_tool_cannot_hold_a_call(agent_of):
    let_go = threading.Event()
    start = time.monotonic()
    outcome = with_tool(agent_of, {"hang": lambda: let_go.wait(20)}, "return tools.hang{}", call_timeout_seconds=0.2)
    elapsed = time.monotonic() - start
    let_go.set()
    assert outcome.error_type == "timeout", outcome
    assert elapsed < 3


def test_a_tool_may_use_agents_itself(agent_of):
    helper = agent_of({"double": "return args[1] * 2"})
    outcome = with_tool(agent_of, {"twice": lambda n: helper.double(n).unwrap()}, "return tools.twice{n=21}")
    assert outcome.value == 42


def test_a_tool_that_calls_its_own_agent_is_refused_at_once(agent_of):
    def again() -> int:
        return agent.use().unwrap()

    agent = agent_of({"use": "return tools.again{}"}, tools=[again], execution_repairs=0)
    started = time.monotonic()
    outcome = agent.use()
    assert time.monotonic() - started < 10
    assert not outcome.ok
    assert "BusyError" in outcome.error_message and "is busy with the call" in outcome.error_message
    assert issubclass(cadenza.BusyError, RuntimeError) and issubclass(cadenza.BusyError, cadenza.CadenzaError)


def test_coroutine_tools_and_models_that_call_their_own_agent_are_refused_at_once(agent_of):
    async def again() -> int:
        return (await agent.use()).unwrap()

    model = lambda request: "return tools.again{}"  # noqa: E731
    runtime = cadenza.Runtime(model=model, tools=[again], execution_repairs=0)
    agent = cadenza.AsyncAgent.for_role("tester", runtime=runtime)

    async def main() -> cadenza.Outcome:
        return await agent.use()

    started = time.monotonic()
    assert "is busy with the call" in asyncio.run(main()).error_message

    def asks_itself(request: cadenza.ModelRequest) -> str:
        return own.use().unwrap()

    own = agent_of(asks_itself, max_generation_attempts=1)
    outcome = own.use()
    assert (outcome.error_type, "is busy with the call" in outcome.error_message) == ("provider", True)
    assert time.monotonic() - started < 10


def test_what_a_tool_leaves_behind_may_call_the_agent_later(agent_of):
    done = threading.Event()
    results = []

    def later() -> None:
        context = contextvars.copy_context()
        threading.Thread(target=lambda: (done.wait(10), results.append(context.run(agent.add, 1, 2)))).start()

    agent = agent_of({"use": "tools.later{} return 1", "add": "return args[1] + args[2]"}, tools=[later])
    assert agent.use().ok
    done.set()
    deadline = time.monotonic() + 10
    while not results and time.monotonic() < deadline:
        time.sleep(0.01)
    assert results[0].value == 3


def test_a_tool_says_what_its_calls_leave_behind(agent_of, tmp_path):
    @cadenza.tool(effect="pure")
    def look(city: str) -> str:
        """Looks."""
        return f"rain in {city}"

    @cadenza.tool
    def ring(times: int) -> int:
        return times

    assert (describe(look)[4], describe(ring)[4]) == ("pure", "effectful")
    assert look("Bonn") == "rain in Bonn"
    store = str(tmp_path / "app.db")
    program = "return {tools.look{city = 'Bonn'}, tools.ring{times = 2}}"
    outcome = with_tool(agent_of, [look, ring], program, store=store)
    assert outcome.value == ["rain in Bonn", 2]
    with cadenza.Runtime(model="library", store=store) as runtime:
        effects = runtime.call(outcome.metadata["call_id"])["effects"]
        assert [(one["tool"], one["effect"], one["status"]) for one in effects] == [
            ("look", "pure", "ok"),
            ("ring", "effectful", "ok"),
        ]
        report = runtime.replay_all()
        assert (report["ok"], report["programs"], report["detail"]) == (True, 1, None)
    with pytest.raises(ValueError, match="'pure', 'idempotent' or 'effectful'"):
        cadenza.tool(effect="harmless")  # type: ignore[call-overload]
    look.__cadenza_effect__ = "harmless"
    with pytest.raises(OptionError, match="expected pure or idempotent or effectful"):
        with_tool(agent_of, look, "return 1")
