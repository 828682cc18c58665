"""Python callables as models (product.md section 6; AC sections 7.2, 7.3, 7.5, 7.7)."""

from __future__ import annotations

import concurrent.futures
import contextvars
import threading
import time

import pytest

from cadenza import Runtime


def test_the_request_has_the_published_attributes(agent_of):
    seen = []

    def model(request):
        seen.append(request)
        return "return args[1]"

    agent_of(model).shout([1, {"a": None}], loud=True)
    (request,) = seen
    assert (request.role, request.method, request.language, request.attempt) == ("tester", "shout", "lua", 1)
    assert request.args == [[1, {"a": None}]]
    assert request.kwargs == {"loud": True}
    assert "args[1]" in request.system_prompt
    assert "shout" in request.user_prompt
    assert [message["role"] for message in request.messages][:2] == ["system", "user"]
    assert request.messages[0]["content"] == request.system_prompt
    (tool,) = request.tools
    assert tool["name"] == "execute_program"
    assert tool["parameters"]["required"] == ["code", "language"]
    assert request.timeout == 120
    assert repr(request) == "<ModelRequest tester.shout attempt 1>"


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        ("return 42", None),
        ("```lua\nreturn 42\n```", None),
        ({"code": "return 42"}, None),
        ({"code": "return 42", "usage": {"prompt_tokens": 10, "completion_tokens": 5}}, 15),
        ({"code": "return 42", "usage": {"input": 1, "output": 2}}, 3),
        ({"content": "return 42", "tool_calls": None}, None),
        (
            {
                "content": None,
                "tool_calls": [
                    {"id": "1", "name": "execute_program", "arguments": {"code": "return 42", "language": "lua"}}
                ],
                "usage": {"input_tokens": 3, "output_tokens": 4},
            },
            7,
        ),
        (
            {
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {
                            "name": "execute_program",
                            "arguments": '{"code": "return 42", "language": "lua"}',
                        },
                    }
                ]
            },
            None,
        ),
    ],
)
def test_replies_in_every_form(agent_of, reply, tokens):
    outcome = agent_of(lambda request: reply).answer()
    assert outcome.value == 42, outcome
    if tokens is None:
        assert outcome.metadata["tokens"] > 0, "estimated when the callable does not say"
    else:
        assert outcome.metadata["tokens"] == tokens


@pytest.mark.parametrize("reply", [None, "", " \n", {"code": None}, {"code": ""}, {"content": " "}])
def test_ac_10_an_empty_reply_is_invalid_code_after_all_attempts(agent_of, reply):
    asked = []
    outcome = agent_of(lambda request: asked.append(request.attempt) or reply).answer()
    assert outcome.error_type == "invalid_code"
    assert asked == [1, 2]


def test_ac_11_a_second_attempt_can_succeed_and_is_told_why(agent_of):
    replies, seen = [None, "return 42"], []

    def model(request):
        seen.append(request)
        return replies.pop(0)

    outcome = agent_of(model).answer()
    assert outcome.value == 42
    assert outcome.metadata["attempts"] == 2
    assert [request.attempt for request in seen] == [1, 2]
    assert len(seen[1].messages) > 2


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (42, "returned a int"),
        (["return 42"], "returned a list"),
        ({}, "neither code, content nor tool_calls"),
        ({"code": 42}, "TypeError"),
        ({"tool_calls": ["x"]}, "TypeError"),
    ],
)
def test_a_reply_in_no_form_is_a_provider_failure(agent_of, reply, words):
    outcome = agent_of(lambda request: reply).answer()
    assert outcome.error_type == "provider"
    assert words in outcome.error_message


def test_ac_9_an_exception_is_a_provider_failure_with_its_words(agent_of, capfd):
    def model(request):
        raise RuntimeError("the backend is on fire")

    outcome = agent_of(model).answer()
    assert outcome.error_type == "provider"
    assert outcome.retriable
    assert "RuntimeError: the backend is on fire" in outcome.error_message
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.parametrize("error", [TimeoutError("slow"), concurrent.futures.TimeoutError()])
def test_a_timeout_error_is_a_timeout(agent_of, error):
    def model(request):
        raise error

    outcome = agent_of(model, max_generation_attempts=1).answer()
    assert outcome.error_type == "timeout"


def test_ac_14_a_slow_callable_is_given_up_in_time(agent_of):
    let_go = threading.Event()
    agent = agent_of(
        lambda request: let_go.wait(20) and "return 1", provider_timeout_seconds=0.1, max_generation_attempts=1
    )
    start = time.monotonic()
    outcome = agent.answer()
    elapsed = time.monotonic() - start
    let_go.set()
    assert outcome.error_type == "timeout", outcome
    assert 0.1 <= elapsed < 10


def test_the_call_timeout_bounds_a_slow_callable(agent_of):
    let_go = threading.Event()
    agent = agent_of(lambda request: let_go.wait(20) and "return 1", call_timeout_seconds=0.1)
    start = time.monotonic()
    outcome = agent.answer()
    let_go.set()
    assert outcome.error_type == "timeout", outcome
    assert time.monotonic() - start < 10


def test_context_variables_reach_the_callable(agent_of):
    tenant = contextvars.ContextVar("tenant")
    seen = []

    def model(request):
        seen.append(tenant.get("none"))
        return "return 1"

    agent = agent_of(model, reuse="off")
    tenant.set("acme")
    agent.answer()
    assert seen == ["acme"]


def test_a_coroutine_function_works_without_a_loop(agent_of):
    async def model(request):
        return "return 42"

    class AsyncModel:
        async def __call__(self, request):
            return "return 43"

    assert agent_of(model).answer().value == 42
    assert agent_of(AsyncModel()).answer().value == 43


def test_a_model_may_use_agents_itself(agent_of):
    helper = agent_of({"double": "return args[1] * 2"})
    outcome = agent_of(lambda request: f"return {helper.double(21).value}").answer()
    assert outcome.value == 42


def test_a_provider_object_and_a_list_of_targets(agent_of):
    class Provider:
        def complete(self, request):
            return "return 42"

    def broken(request):
        raise RuntimeError("down")

    assert Runtime(model=Provider()).agent("x").answer().value == 42
    assert Runtime(model=[broken, Provider().complete]).agent("x").answer().value == 42


def test_the_model_is_named_in_calls():
    def my_model(request):
        return "return 1"

    class Backend:
        def __call__(self, request):
            return "return 1"

    runtime = Runtime(model=my_model)
    assert runtime.model == f"python:{my_model.__qualname__}"
    runtime.agent("x").answer()
    assert runtime.calls()[0]["model"] == runtime.model
    assert "Backend" in Runtime(model=Backend()).model


def test_keys_of_the_environment_reach_neither_outcome_nor_log(monkeypatch, tmp_path):
    key = "sk-test-0123456789abcdef0123456789"
    monkeypatch.setenv("SOME_API_KEY", key)

    def model(request):
        raise RuntimeError(f"denied for {key}")

    path = tmp_path / "calls.jsonl"
    runtime = Runtime(model=model, log=path)
    outcome = runtime.agent("x").answer()
    runtime.flush()
    assert "denied for [secret]" in outcome.error_message
    assert key not in path.read_text()
