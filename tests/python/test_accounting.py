"""Accounting entries, sums by target, prices and budgets of money, options of single targets (SC-1.46, SC-4)."""

import warnings

import pytest

import cadenza


class Counting:
    """A model that answers every request with the same program, and what that is said to have used."""

    def __init__(self, code="return 1", **usage):
        self.code, self.usage, self.requests = code, usage, 0

    def __call__(self, request):
        self.requests += 1
        return {"code": self.code, "usage": self.usage, "stop_reason": "stop"}


def test_every_request_has_an_entry_on_the_outcome_and_on_the_recorded_call():
    model = Counting(input_tokens=90, output_tokens=10)
    with cadenza.Runtime(model=model, prices={"Counting": {"input": 1, "output": 5}}) as runtime:
        calc = runtime.agent("calculator")
        outcome = calc.one()
        (entry,) = outcome.metadata["accounting"]
        assert (entry["status"], entry["stop_reason"], entry["tokens"]["total_tokens"]) == ("ok", "stop", 100)
        assert "error" not in entry
        assert runtime.calls()[-1]["accounting"] == [entry]
        assert calc.one().metadata["accounting"] == []  # reused: nobody was asked
        (total,) = runtime.usage()
        assert (total["requests"], total["failed"], total["total_tokens"]) == (1, 0, 100)
        assert (total["target"], total["model"]) == ("python:Counting", entry["model"])


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input": 10, "cached": 4, "output": 2}, (6, 4, 2)),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 2}, (6, 4, 2)),
        ({"input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 2}, (6, 4, 2)),
        ({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}, (6, 4, 2)),
    ],
)
def test_sc_4_03_usage_as_the_vendors_write_it_comes_to_the_same_numbers(usage, tokens):
    with cadenza.Runtime(model=Counting(**usage)) as runtime:
        counted = runtime.agent("calculator").one().metadata["accounting"][0]["tokens"]
    assert (counted["input_tokens"], counted["cached_tokens"], counted["output_tokens"]) == tokens
    assert counted["total_tokens"] == sum(tokens)


def test_a_flow_ends_when_its_money_is_spent():
    model = Counting("error('no')", input_tokens=1_000_000)
    name = cadenza.Runtime(model=model).model
    options = {"prices": {name: {"input": 1, "output": 1}}, "max_cost": 1.5, "execution_repairs": 3}
    with cadenza.Runtime(model=model, **options) as runtime:
        outcome = runtime.agent("calculator").one()
    assert (outcome.error_type, outcome.metadata["reason"], model.requests) == ("budget_exceeded", "max_cost", 2)
    assert "`max_cost`" in outcome.error_message
    assert sum(entry["cost_usd"] for entry in outcome.metadata["accounting"]) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prices": {"m": {"input": 1}}}, "`input` and `output` are needed"),
        ({"max_cost": 0}, "US dollars above 0"),
        ({"temperature": "hot"}, "a number from 0 to 10"),
        ({"headers": {"x": 5}}, 'the value of "x" must be text'),
        ({"providers": {"openai": {"temprature": 1}}}, 'did you mean "temperature"'),
        ({"providers": {"opnai": {}}}, 'did you mean "openai"'),
        ({"model": [{"temperature": 1}]}, "names its model"),
        ({"model": [{"model": "library", "temprature": 1}]}, 'did you mean "temperature"'),
        ({"max_generation_attempts": 17}, "from 1 to 16"),
    ],
)
def test_wrong_options_say_what_to_write(options, words):
    with pytest.raises(cadenza.OptionError, match=words.replace("`", "\\`")):
        cadenza.Runtime(**{"model": "library", **options})


def test_a_list_may_mix_callables_and_targets_with_options():
    def fails(request):
        raise RuntimeError("down")

    with cadenza.Runtime(model=[fails, {"model": "library"}]) as runtime:
        outcome = runtime.agent("calculator").add(2, 3)
    assert outcome.value == 5
    assert [entry["status"] for entry in outcome.metadata["accounting"]] == ["failed", "ok"]


def test_what_does_not_work_as_it_was_asked_for_is_warned_of_once():
    asked = {"api_key": "sk-of-a-test-1", "base_url": "http://127.0.0.1:1/v1", "temperature": 0.2}
    with pytest.warns(RuntimeWarning, match="openai:o3-mini is not told temperature, which it refuses"):
        cadenza.Runtime(model="openai:o3-mini", **asked)
    free = cadenza.Runtime(model="library")
    with pytest.warns(RuntimeWarning, match="openai:o4-mini is not told temperature"):
        agent = free.agent("calculator", model="openai:o4-mini", **asked)
    with pytest.warns(RuntimeWarning, match="openai:o1-mini is not told temperature"):
        agent.delegate("tutor", model="openai:o1-mini", **asked)
    with pytest.warns(RuntimeWarning, match="`max_cost` cannot hold for openai:gpt-4.1, which has no price"):
        cadenza.Runtime(model="openai:gpt-4.1", prices={"gpt-4": {"input": 1, "output": 1}}, max_cost=1, **asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cadenza.Runtime(model="openai:o3-mini", **asked)
        cadenza.Runtime(model="openai:gpt-4.1", prices={"gpt-4.1": {"input": 1, "output": 1}}, max_cost=1, **asked)
