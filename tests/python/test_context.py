"""The runtime context as a live mapping (AC section 4.2)."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping

import pytest


def test_ac_2_reads_and_writes_reach_the_agent(calc, model):
    context = calc.runtime_context
    assert context is calc.runtime_context
    context["value"] = 10
    assert calc.value == 10
    calc.value = 11
    assert context["value"] == 11
    assert calc.increment(4).value == 15
    assert context["value"] == 15
    del context["value"]
    assert not calc.responds_to("value")
    assert model.calls == 1


def test_it_is_a_mutable_mapping(calc):
    context = calc.runtime_context
    assert isinstance(context, MutableMapping)
    context.update({"b": 2}, a=1)
    context.update([("c", 3)])
    assert list(context) == ["a", "b", "c"]
    assert list(reversed(context)) == ["c", "b", "a"]
    assert len(context) == 3
    assert "a" in context
    assert 3 not in context
    assert context.get("a") == 1
    assert context.get("zzz") is None
    assert context.get("zzz", 5) == 5
    assert context.get(3, "d") == "d"
    assert dict(context) == {"a": 1, "b": 2, "c": 3}
    assert {**context} == dict(context)
    assert list(context.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert list(context.values()) == [1, 2, 3]
    keys = context.keys()
    context["d"] = 4
    assert "d" in keys
    assert keys & {"a", "zzz"} == {"a"}
    assert context.pop("d") == 4
    assert context.pop("d", None) is None
    assert context.popitem() == ("c", 3)
    assert context.setdefault("a", 9) == 1
    assert context.setdefault("e", [1]) == [1]
    assert context == {"a": 1, "b": 2, "e": [1]}
    assert context != {"a": 1}
    assert context != 3
    assert context | {"a": 0} == {"a": 0, "b": 2, "e": [1]}
    assert {"a": 0, "z": 1} | context == {"a": 1, "b": 2, "e": [1], "z": 1}
    assert repr(context) == "RuntimeContext({'a': 1, 'b': 2, 'e': [1]})"
    context.clear()
    assert context == {}
    assert not context
    assert bool(calc.remember(a=1).runtime_context)


def test_missing_keys_and_wrong_keys(calc):
    context = calc.runtime_context
    for missing in ("nope", 3, None):
        with pytest.raises(KeyError):
            context[missing]
        with pytest.raises(KeyError):
            del context[missing]
        with pytest.raises(KeyError):
            context.pop(missing)
    with pytest.raises(KeyError):
        context.popitem()
    with pytest.raises(TypeError, match="keys of a runtime context are text, got int"):
        context[3] = 1
    with pytest.raises(TypeError):
        context.setdefault(3)
    with pytest.raises(TypeError):
        hash(context)


def test_update_writes_all_or_nothing(calc):
    with pytest.raises(TypeError):
        calc.runtime_context.update({"a": 1, "b": object()})
    with pytest.raises(TypeError):
        calc.runtime_context |= {"a": 1, 2: 3}
    assert calc.runtime_context == {}


def test_in_place_or_writes_through_the_attribute(calc):
    calc.runtime_context |= {"a": 1}
    assert calc.a == 1
    view = calc.runtime_context
    view |= [("b", 2)]
    assert view is calc.runtime_context
    assert calc.b == 2
    with pytest.raises(AttributeError, match="reserved"):
        calc.runtime_context = {}
    with pytest.raises(AttributeError, match="reserved"):
        calc.runtime_context = calc.delegate("other").runtime_context


def test_nested_values_are_copies_to_be_written_back(calc):
    calc.rows = [1]
    calc.rows.append(2)
    assert calc.rows == [1]
    rows = calc.rows
    rows.append(2)
    calc.rows = rows
    assert calc.rows == [1, 2]
    calc.runtime_context["rows"] += [3]
    assert calc.rows == [1, 2, 3]


def test_a_copy_is_a_plain_dict(calc):
    calc.remember(a=[1])
    for copied in (calc.runtime_context.copy(), copy.copy(calc.runtime_context), copy.deepcopy(calc.runtime_context)):
        assert type(copied) is dict
        assert copied == {"a": [1]}
        copied["a"].append(2)
    assert calc.a == [1]


def test_the_context_of_a_failed_attempt_vanishes(calc, model):
    model.programs["half"] = 'context.value = 99 error("no")'
    calc.value = 1
    view = calc.runtime_context
    assert not calc.half().ok
    assert view["value"] == 1
    assert calc.runtime_context is view


def test_keys_that_no_attribute_can_have(calc):
    calc.runtime_context["a key"] = 1
    calc.runtime_context["role"] = "other"
    assert calc.runtime_context["a key"] == 1
    assert calc.role == "calculator"
    assert "a key" not in dir(calc)
