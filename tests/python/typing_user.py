"""A user's program under `mypy --strict`: what the stubs promise, and what they refuse. Checked, never run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import cadenza
from cadenza import Agent, AsyncAgent, ModelRequest, Outcome, Program, Runtime


def model(request: ModelRequest) -> str | dict[str, Any] | None:
    role: str = request.role
    arguments: list[Any] = request.args
    return None if not arguments else f"return {role!r}"


def search(query: str, limit: int = 3) -> list[str]:
    return [query] * limit


runtime: Runtime = cadenza.Runtime(model=model, language="lua", log="calls.jsonl", tools=[search], max_calls=3)
calc: Agent = Agent.for_role("calculator", runtime=runtime, max_tokens=None)
calc.memory = 5
memory: int = calc.memory
outcome: Outcome = calc.call("add", 2, unit="m")
dynamic: Outcome = calc.add(2, 3)
value: Any = outcome.unwrap() if outcome.ok else outcome.value_or(0)
status: str = outcome.status
problem: str | None = outcome.error_type
same: Agent = calc.remember(mode="scientific")
tutor: Agent = calc.delegate("tutor", purpose="explain", language="rhai")
context: MutableMapping[str, Any] = calc.runtime_context
context["a"] = 1
merged: Mapping[str, Any] = calc.runtime_context | {"b": 2}
programs: list[Program] = runtime.programs("calculator")
code: str = runtime.program("calculator", "add").code
calls: list[dict[str, Any]] = runtime.calls()


spent: float = sum(used["cost_usd"] for used in runtime.usage())
priced = Runtime(prices={"openai:gpt-5.1": {"input": 1.25, "output": 10}}, max_cost=0.5, record=Path("calls.cassette"))
Runtime(prices={"openai:gpt-5.1": {"input": 1.25}})  # type: ignore[typeddict-item]


class Calculator(Agent):
    def twice(self, number: int) -> int:
        result: int = self.add(number, number).unwrap()
        return result


special: Calculator = Calculator.for_role("calculator", runtime=runtime).remember(a=1)


async def main() -> None:
    agent: AsyncAgent = AsyncAgent.for_role("calculator", runtime=runtime)
    awaited: Outcome = await agent.call("add", 2, 3)
    both: tuple[Outcome, Outcome] = await asyncio.gather(agent.call("add", 1, 2), agent.call("add", 3, 4))
    task: asyncio.Task[Outcome] = asyncio.create_task(agent.call("add", 1, 2))
    print(awaited, both, await task, await agent.sub(1, 2))
    async for event in agent.call("add", 2, 3):
        name: str = event["event"]
        if event["event"] == "piece":
            print(name, event["kind"], event["text"])
        elif event["event"] == "done":
            print(event["outcome"].value)


once: Outcome = asyncio.run(AsyncAgent.for_role("calculator", runtime=runtime).call("add", 2, 3))

with cadenza.Runtime(model="library") as opened:
    opened.agent("calculator").add(1, 2)

calc.role = "x"  # type: ignore[misc]
outcome.value = 3  # type: ignore[misc]
Agent(3)  # type: ignore[arg-type]
runtime.program()  # type: ignore[call-arg]
Runtime(language="cobol")  # type: ignore[arg-type]
Runtime(modle="library")  # type: ignore[call-arg]
Outcome()
try:
    outcome.unwrap()
except cadenza.OutcomeError as error:
    print(error.outcome.error_message)
