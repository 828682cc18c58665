"""Models that play programs, and a fresh runtime per test."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cadenza

# Nothing that a test makes, or a process that it starts, may reach the user's own store.
os.environ["CADENZA_STORE"] = ":memory:"
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="cadenza-tests-")

PROGRAMS = {
    "add": "return args[1] + args[2]",
    "increment": "context.value = (context.value or 0) + args[1] return context.value",
    "set_amount": "context.value = kwargs.amount return context.value",
    "boom": 'error("boom")',
    "echo": "return args[1]",
    "named": "return kwargs",
    "compute": 'return Agent.for_role("calculator"):add(2, 3)',
    "spin": "while true do end",
    "fail_typed": 'return Outcome.error{error_type="low_utility", error_message="nothing found", retriable=true}',
}


class Model:
    """A callable model that plays a program per method and remembers every request."""

    def __init__(self, programs: dict[str, Any]) -> None:
        self.programs = programs
        self.requests: list[cadenza.ModelRequest] = []
        self.lock = threading.Lock()

    def __call__(self, request: cadenza.ModelRequest) -> Any:
        with self.lock:
            self.requests.append(request)
        reply = self.programs[request.method]
        if callable(reply):
            return reply(request)
        if isinstance(reply, list):
            return reply.pop(0)
        return reply

    @property
    def calls(self) -> int:
        """How often a model was asked."""
        return len(self.requests)


@pytest.fixture
def model() -> Model:
    """Plays the standard programs."""
    return Model(dict(PROGRAMS))


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Of a store that is not there yet."""
    return str(tmp_path / "app.db")


@pytest.fixture
def runtime(model: Model) -> Iterator[cadenza.Runtime]:
    """A runtime on that model."""
    with cadenza.Runtime(model=model) as made:
        yield made


@pytest.fixture
def calc(runtime: cadenza.Runtime) -> cadenza.Agent:
    """A calculator."""
    return cadenza.Agent.for_role("calculator", runtime=runtime)


@pytest.fixture
def agent_of() -> Callable[..., cadenza.Agent]:
    """Makes an agent on a model that plays `programs`."""

    def make(programs: dict[str, Any] | Callable[..., Any], **options: Any) -> cadenza.Agent:
        played = programs if callable(programs) else Model(programs)
        return cadenza.Agent.for_role("tester", runtime=cadenza.Runtime(model=played, **options))

    return make
