"""Nothing but calling a dynamic method reaches a model (product.md section 1, AC section 6)."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import pprint
import re
import unittest.mock
import weakref

import pytest

import cadenza


@pytest.fixture(params=[cadenza.Agent, cadenza.AsyncAgent])
def agent(request, runtime):
    made = request.param.for_role("calculator", runtime=runtime)
    made.memory = 5
    return made


def test_looking_at_an_agent_asks_no_model(agent, model):
    looks = [
        repr, str, dir, hash, id, type, callable, inspect.getmembers, inspect.isclass, inspect.iscoroutinefunction,
        inspect.isawaitable, inspect.getdoc, inspect.signature, inspect.unwrap, pprint.pformat, weakref.ref, format,
        lambda it: it._repr_html_(),
        lambda it: hasattr(it, "add"),
        lambda it: hasattr(it, "__array__"),
        lambda it: getattr(it, "_repr_png_", None),
        lambda it: getattr(it, "add"),
        lambda it: repr(it.add),
        lambda it: [getattr(it, name) for name in dir(it)],
        lambda it: it == it,
        lambda it: it in [1, it],
        lambda it: isinstance(it, cadenza.Agent),
        lambda it: vars(it),
        len, iter, bool, list, int, float,
        copy.copy, copy.deepcopy, pickle.dumps,
        unittest.mock.create_autospec,
    ]  # fmt: skip
    for look in looks:
        with contextlib.suppress(TypeError, ValueError):
            look(agent)
    assert model.calls == 0


def test_repr_is_local_and_shows_no_value(agent):
    agent.password = "hunter2"
    assert repr(agent) == f'<{type(agent).__name__} "calculator" context=[memory, password]>'
    agent.remember(**{f"key{number}": number for number in range(20)})
    assert len(repr(agent)) < 200


def test_dir_gives_reserved_names_and_context_keys(agent):
    assert dir(agent) == sorted(
        ["for_role", "for", "role", "remember", "runtime_context", "delegate", "tool", "responds_to", "call", "memory"]
    )


def test_agents_are_neither_copied_nor_pickled(agent):
    for look in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied: make another with .*for_role"):
            look(agent)
    with pytest.raises(TypeError, match="cannot be pickled: make the agent with"):
        pickle.dumps(agent)


def test_equality_and_hash_are_those_of_the_agent(agent):
    tutor = agent.delegate("tutor")
    same = agent.tool("tutor")
    assert same == tutor
    assert hash(same) == hash(tutor)
    assert tutor != agent
    assert agent != "calculator"
    same.remember(x=1)
    assert tutor.x == 1


def test_ipython_probes_find_nothing(agent, model):
    for name in (
        "_ipython_canary_method_should_not_exist_",
        "_ipython_display_",
        "_repr_mimebundle_",
        "_repr_json_",
        "__wrapped__",
        "__array_interface__",
        "__dataclass_fields__",
        "__fspath__",
    ):
        assert not hasattr(agent, name)
    assert agent._repr_html_().startswith("<div")
    assert model.calls == 0


def test_the_runtime_names_its_options():
    with pytest.raises(cadenza.OptionError) as refused:
        cadenza.Runtime(zzz=1)
    names = str(refused.value).split("options are: ")[1].split(", ")
    assert len(names) > 20
    documented = set(re.findall(r"[a-z_]+", cadenza.Runtime.__doc__))
    assert [name for name in names if name not in documented] == []
