"""Outcome in Python (product.md section 3, AC section 7)."""

from __future__ import annotations

import copy
import pickle

import pytest

from cadenza import Outcome, OutcomeError


def test_ac_8_fields_of_an_ok_outcome(calc):
    outcome = calc.add(5, 3)
    assert outcome.ok is True
    assert outcome.error is False
    assert outcome.status == "ok"
    assert outcome.value == 8
    assert (outcome.error_type, outcome.error_message, outcome.retriable) == (None, None, False)
    assert (outcome.role, outcome.method) == ("calculator", "add")
    assert outcome.unwrap() == 8
    assert outcome.value_or(0) == 8
    assert repr(outcome) == "Outcome(ok, 8)"


def test_ac_8_fields_of_an_error_outcome(calc):
    outcome = calc.fail_typed()
    assert (outcome.ok, outcome.error, outcome.status) == (False, True, "error")
    assert (outcome.error_type, outcome.error_message) == ("low_utility", "nothing found")
    assert outcome.retriable is True
    assert outcome.value is None
    assert outcome.value_or("default") == "default"
    assert repr(outcome) == "Outcome(error, low_utility: nothing found)"
    with pytest.raises(OutcomeError, match="calculator.fail_typed: low_utility: nothing found") as raised:
        outcome.unwrap()
    assert raised.value.outcome is outcome


def test_metadata_has_the_published_fields(calc):
    metadata = calc.add(1, 2).metadata
    assert set(metadata) >= {
        "agent_outcome", "reason", "goal_status", "call_id", "trace_id", "head", "length", "inferences", "tokens",
        "attempts", "source", "language", "code",
    }  # fmt: skip
    assert metadata["agent_outcome"] == "COMPLETED_WITH_TOOLS"
    assert metadata["source"] == "generated"
    assert metadata["inferences"] == 1
    assert len(metadata["head"]) == 64


def test_an_outcome_has_no_truth_value(calc):
    outcome = calc.add(1, 2)
    with pytest.raises(TypeError, match=r"`\.ok`.*`\.value`"):
        bool(outcome)
    with pytest.raises(TypeError):
        if outcome:
            pass


def test_equality_compares_envelopes(calc):
    assert calc.add(1, 2) == calc.add(1, 2)
    assert calc.add(1, 2) != calc.add(1, 3)
    assert calc.add(1, 2) != 3
    with pytest.raises(TypeError):
        hash(calc.add(1, 2))
    with pytest.raises(TypeError):
        calc.add(1, 2) + 1


def test_a_value_is_converted_once(calc):
    outcome = calc.echo([1, {"a": [2]}])
    assert outcome.value is outcome.value
    assert outcome.value == [1, {"a": [2]}]


def test_outcomes_match_patterns(calc):
    namespace = {"Outcome": Outcome, "outcome": calc.add(1, 2), "failed": calc.boom()}
    code = """
match outcome:
    case Outcome("ok", value):
        found = value
match failed:
    case Outcome(status="error", error_type=kind):
        found_error = kind
"""
    try:
        exec(code, namespace)
    except SyntaxError:
        pytest.skip("match needs Python 3.10")
    assert (namespace["found"], namespace["found_error"]) == (3, "execution")


def test_to_dict_is_plain_data(calc):
    outcome = calc.add(1, 2)
    plain = outcome.to_dict()
    assert list(plain) == ["status", "value", "error_type", "error_message", "retriable", "role", "method", "metadata"]
    assert plain["metadata"] == outcome.metadata
    assert type(plain) is dict


def test_outcomes_can_be_pickled_and_copied(calc):
    for outcome in (calc.add(1, 2), calc.fail_typed()):
        restored = pickle.loads(pickle.dumps(outcome))
        assert restored == outcome
        assert restored.to_dict() == outcome.to_dict()
        assert copy.copy(outcome) is outcome
        assert copy.deepcopy(outcome) == outcome
    with pytest.raises(OutcomeError) as raised:
        calc.fail_typed().unwrap()
    assert pickle.loads(pickle.dumps(raised.value)).outcome.error_type == "low_utility"


def test_outcomes_are_made_by_calls_only():
    with pytest.raises(TypeError):
        Outcome()


def test_html_is_escaped(calc):
    html = calc.echo("<script>alert('x')</script>")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    calc.model_note = 1
    calc.runtime_context["<b>"] = "</table>"
    assert "<b>" not in calc._repr_html_()
    assert "&lt;b&gt;" in calc._repr_html_()
    assert "echo" in calc._repr_html_()
