"""The Agent object model in Python (agent contract, sections 3 to 6)."""

from __future__ import annotations

import pytest

import cadenza
from cadenza import Agent, OptionError, Outcome


def test_ac_1_every_constructor_gives_a_live_agent_with_its_role(runtime):
    for made in (
        Agent.for_role("calculator", runtime=runtime),
        getattr(Agent, "for")("calculator", runtime=runtime),
        Agent("calculator", runtime=runtime),
        runtime.agent("calculator"),
    ):
        assert isinstance(made, Agent)
        assert made.role == "calculator"


def test_ac_1_each_construction_is_another_agent(runtime):
    one, other = runtime.agent("calculator"), runtime.agent("calculator")
    assert one != other
    assert one == one
    assert len({one, other}) == 2


def test_ac_1_an_impossible_role_is_refused(runtime):
    for role in ("", "  ", "x" * 2000):
        with pytest.raises(ValueError, match="role"):
            Agent(role, runtime=runtime)


def test_ac_2_remember_writes_and_returns_the_same_instance(calc, model):
    assert calc.remember(mode="scientific", value=1) is calc
    assert calc.runtime_context == {"mode": "scientific", "value": 1}
    assert model.calls == 0


def test_ac_2_remember_writes_all_or_nothing(calc):
    with pytest.raises(TypeError):
        calc.remember(a=1, b=object())
    assert calc.runtime_context == {}


def test_ac_3_a_delegate_inherits_and_may_override(calc, model):
    tutor = calc.delegate("tutor")
    assert isinstance(tutor, Agent)
    assert tutor.role == "tutor"
    assert tutor != calc
    assert tutor.runtime_context == {}
    assert tutor.add(1, 2).value == 3
    assert model.calls == 1
    rhai = calc.delegate("tutor", language="rhai")
    model.programs["double"] = "args[0] * 2"
    assert rhai.double(4).value == 8
    assert model.requests[-1].language == "rhai"
    assert calc.tool("tutor") == rhai
    assert calc.tool("poet").role == "poet"


def test_ac_4_a_setter_writes_the_context_and_asks_no_model(calc, model):
    calc.memory = 5
    assert calc.memory == 5
    assert calc.runtime_context["memory"] == 5
    calc.memory += 2
    assert calc.memory == 7
    outcome = calc.call("memory=", 9)
    assert outcome.ok
    assert outcome.value == 9
    assert calc.memory == 9
    assert model.calls == 0


def test_ac_4_deleting_an_attribute_removes_the_key(calc, model):
    calc.memory = 5
    del calc.memory
    assert "memory" not in calc.runtime_context
    with pytest.raises(AttributeError, match="memory"):
        del calc.memory
    assert model.calls == 0


def test_ac_4_reserved_and_impossible_setter_names_are_refused(calc):
    for name in ("role", "remember", "call", "delegate", "for", "runtime_context", "tool", "responds_to", "for_role"):
        with pytest.raises(AttributeError, match="reserved"):
            setattr(calc, name, 1)
        with pytest.raises(AttributeError, match="reserved"):
            delattr(calc, name)
    for name in ("a b", "2x", "a-b", ""):
        with pytest.raises(AttributeError, match="not an identifier"):
            setattr(calc, name, 1)
    with pytest.raises(AttributeError):
        calc._private = 1
    assert calc.runtime_context == {}


def test_ac_5_other_names_generate_and_execute(calc, model):
    assert calc.add(2, 3) == calc.add(2, 3)
    assert calc.increment(10).value == 10
    assert calc.increment(3).value == 13
    assert calc.value == 13
    assert calc.set_amount(amount=7).value == 7
    assert calc.value == 7
    assert model.requests[0].args == [2, 3]
    assert model.requests[-1].kwargs == {"amount": 7}


def test_ac_5_a_backed_reader_shadows_the_method_and_call_still_reaches_it(calc, model):
    calc.add = "a value"
    assert calc.add == "a value"
    assert calc.call("add", 2, 3).value == 5
    model.programs["role"] = "return 'dynamic role'"
    assert calc.call("role").value == "dynamic role"
    assert calc.role == "calculator"


def test_ac_6_programs_make_agents_and_the_tree_is_recorded(calc, runtime, model):
    outcome = calc.compute()
    assert outcome.value == 5
    assert model.calls == 2
    child, parent = sorted(runtime.calls(), key=lambda call: -call["depth"])
    assert child["parent_call_id"] == parent["call_id"] == outcome.metadata["call_id"]
    assert (child["depth"], parent["depth"]) == (1, 0)
    assert child["trace_id"] == parent["trace_id"]
    assert {call["runtime"] for call in runtime.calls()} == {"cadenza-python"}


def test_ac_7_responds_to_is_the_introspection(calc, model):
    assert calc.responds_to("memory=")
    assert not calc.responds_to("memory")
    calc.memory = 1
    assert calc.responds_to("memory")
    assert not calc.responds_to("integrate")
    assert calc.responds_to("remember")
    assert not calc.responds_to("_private")
    assert model.calls == 0


def test_methods_are_callables_bound_to_the_agent(calc, model):
    method = calc.add
    assert callable(method)
    assert method.__name__ == "add"
    assert method.__self__ is calc
    assert repr(method) == '<dynamic method "add" of "calculator">'
    assert model.calls == 0
    assert method(1, 2).value == 3


def test_names_with_an_underscore_are_never_dynamic(calc, model):
    for name in ("_x", "__array__", "__len__", "_ipython_canary_method_should_not_exist_", "__wrapped__"):
        with pytest.raises(AttributeError, match="never dynamic"):
            getattr(calc, name)
        assert not hasattr(calc, name)
    with pytest.raises(AttributeError):
        getattr(calc, "line\nbreak")
    with pytest.raises(AttributeError, match="never dynamic"):
        calc.call("_secret")
    assert model.calls == 0


def test_wrong_use_raises_before_a_model_is_asked(calc, runtime, model):
    with pytest.raises(TypeError, match=r"argument 2: `\$\.rows\[1\]`"):
        calc.add(1, {"rows": [0, object()]})
    with pytest.raises(TypeError, match="a setter takes exactly one value"):
        calc.call("memory=", 1, 2)
    with pytest.raises(OptionError, match='did you mean "max_calls"') as raised:
        calc.delegate("tutor", max_call=3)
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, cadenza.CadenzaError)
    with pytest.raises(OptionError, match="max_calls"):
        runtime.agent("x", max_calls=0)
    with pytest.raises(OptionError, match="a callable has none: give it alone"):
        Agent.for_role("x", model=["library", {"model": lambda request: "return 1", "seed": 1}])
    with pytest.raises(OptionError, match='did you mean "model"'):
        cadenza.Runtime(modle=object())
    with pytest.raises(TypeError):
        Agent(3)
    with pytest.raises(TypeError):
        Agent("x", runtime="y")
    assert model.calls == 0


def test_a_subclass_has_attributes_of_its_own(runtime, model):
    class Calculator(Agent):
        unit = "m"

        def twice(self, number):
            return self.add(number, number).unwrap()

    calc = Calculator.for_role("calculator", runtime=runtime)
    assert type(calc) is Calculator
    assert calc.twice(4) == 8
    assert calc.unit == "m"
    assert "twice" in dir(calc)
    calc.memory = 3
    assert calc.memory == 3
    assert type(calc.delegate("tutor")) is Agent
    assert model.calls == 1


def test_ac_8_every_failure_of_a_call_is_an_outcome(calc, model):
    model.programs.update(missing=None, blank="  ", broken="return (", raising=lambda request: 1 / 0)
    for method, error_type in {
        "boom": "execution",
        "missing": "invalid_code",
        "blank": "invalid_code",
        "broken": "invalid_code",
        "raising": "provider",
        "fail_typed": "low_utility",
        "unknown_to_the_model": "provider",
    }.items():
        outcome = getattr(calc, method)()
        assert isinstance(outcome, Outcome)
        assert (outcome.ok, outcome.error_type) == (False, error_type), outcome
        assert outcome.error_message
        assert outcome.value is None


def test_ac_14_an_endless_program_times_out(agent_of):
    outcome = agent_of({"spin": "while true do end"}, program_timeout_seconds=0.05, execution_repairs=0).spin()
    assert outcome.error_type == "timeout"
    assert outcome.retriable


def test_ac_15_a_delegation_limit_is_a_budget_error_and_the_parent_goes_on(agent_of):
    programs = {"outer": 'local o = agent:delegate("deep"):inner() return o.error_type', "inner": "return 1"}
    outcome = agent_of(programs, max_delegation_depth=0).outer()
    assert outcome.value == "budget_exceeded"


def test_ac_16_a_value_outside_the_deliverable_is_a_contract_violation(agent_of):
    outcome = agent_of({"count": "return 'many'"}).delegate("counter", deliverable={"type": "integer"}).count()
    assert outcome.error_type == "contract_violation"
    typed = agent_of({"count": "return {1, 2}"}).delegate("counter", deliverable=list[int]).count()
    assert typed.value == [1, 2]


def test_a_closed_runtime_refuses_calls_and_agents(model):
    with cadenza.Runtime(model=model) as runtime:
        calc = runtime.agent("calculator")
        assert calc.add(1, 2).ok
        assert not runtime.closed
    assert runtime.closed
    runtime.close()
    for use in (lambda: calc.add(1, 2), lambda: runtime.agent("x"), lambda: Agent("x", runtime=runtime)):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def test_programs_can_be_looked_at(calc, runtime, model):
    calc.add(1, 2)
    calc.add(1, 2)
    program = runtime.program("calculator", "add")
    assert program.code == model.programs["add"]
    assert (program.language, program.version, program.quarantined) == ("lua", 1, False)
    assert program.model.startswith("python:")
    assert [kept.method for kept in runtime.programs("calculator")] == ["add"]
    assert runtime.programs("nobody") == []
    with pytest.raises(LookupError, match="calculator.nothing"):
        runtime.program("calculator", "nothing")


def test_ended_calls_can_be_looked_at(calc, runtime):
    outcome = calc.add(1, 2)
    record = runtime.call(outcome.metadata["call_id"])
    assert record in runtime.calls()
    assert (record["role"], record["method"], record["args"], record["kwargs"]) == ("calculator", "add", [1, 2], {})
    with pytest.raises(LookupError):
        runtime.call("0" * 32)
    with pytest.raises(ValueError, match="call id"):
        runtime.call("nonsense")


def test_ended_calls_can_be_verified_and_replayed_offline(calc, runtime, model):
    outcome = calc.add(1, 2)
    call_id = outcome.metadata["call_id"]
    asked = model.calls
    assert runtime.verify(call_id) == {
        "ok": True,
        "head": outcome.metadata["head"],
        "length": outcome.metadata["length"],
        "detail": None,
    }
    replayed = runtime.replay(call_id)
    assert (replayed["ok"], replayed["agent_outcome"], replayed["detail"]) == (True, "COMPLETED_WITH_TOOLS", None)
    failed = runtime.replay(calc.boom().metadata["call_id"])
    assert (failed["ok"], failed["agent_outcome"]) == (True, "FAILED_VALIDATION")
    assert model.calls - asked == 2, "the failing call and its repair; looking back asks nobody"
    for look in (runtime.verify, runtime.replay):
        with pytest.raises(LookupError, match="1,000"):
            look("0" * 32)
        with pytest.raises(ValueError, match="call id"):
            look("x")


def test_the_library_answers_without_any_model():
    calc = cadenza.Runtime(model="library").agent("calculator")
    outcome = calc.add(2, 3)
    assert outcome.value == 5
    assert outcome.metadata["source"] == "library"
