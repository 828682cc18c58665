"""The test server speaks the real wire format: checked with the official client, which knows nothing of Cadenza.

What Cadenza's provider is tested against is only worth something if the server is right. Skipped where the client or
cargo is missing.
"""

import json

import pytest
from wire import DESCRIPTION, FIXTURES, KEY, SCHEMA, SYSTEM, USER, wire_server  # noqa: F401

openai = pytest.importorskip("openai")

FUNCTION = {"name": "execute_program", "description": DESCRIPTION, "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]

# The official client leaves the socket of a reply that timed out to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def client(wire_server):  # noqa: F811
    with openai.OpenAI(base_url=wire_server, api_key=KEY, max_retries=0, timeout=10) as client:
        yield client


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["echo"]


def test_a_forced_tool_call_comes_back(client):
    completion = client.chat.completions.create(
        model="echo",
        messages=MESSAGES,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "execute_program"}},
        max_completion_tokens=100,
    )
    choice = completion.choices[0]
    call = choice.message.tool_calls[0]
    assert choice.finish_reason == "tool_calls"
    assert call.id and call.type == "function" and call.function.name == "execute_program"
    assert json.loads(call.function.arguments) == {"code": 'return "add"', "language": "lua"}
    assert completion.object == "chat.completion" and completion.model == "echo-2026-10-01"
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert completion.usage.prompt_tokens_details.cached_tokens == 16


def test_structured_output_and_text_come_back(client):
    schema = {"name": "execute_program", "schema": SCHEMA, "strict": True}
    structured = client.chat.completions.create(
        model="echo", messages=MESSAGES, response_format={"type": "json_schema", "json_schema": schema}
    )
    assert json.loads(structured.choices[0].message.content)["code"] == 'return "add"'
    text = client.chat.completions.create(model="echo", messages=MESSAGES)
    assert text.choices[0].message.content == 'return "add"'
    assert text.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "fixture, error",
    [
        ("openai_401_invalid_api_key", openai.AuthenticationError),
        ("openai_403_plain", openai.PermissionDeniedError),
        ("openai_404_model_not_found", openai.NotFoundError),
        ("openai_400_context_length", openai.BadRequestError),
        ("openai_409_conflict", openai.ConflictError),
        ("openai_422_unprocessable", openai.UnprocessableEntityError),
        ("openai_429_rate_limit_requests", openai.RateLimitError),
        ("openai_500_server_error", openai.InternalServerError),
    ],
)
def test_recorded_refusals_are_those_of_the_real_server(client, fixture, error):
    recorded = json.loads((FIXTURES / f"{fixture}.json").read_text())
    with pytest.raises(error) as raised:
        client.chat.completions.create(model=f"error:{fixture}", messages=MESSAGES)
    assert raised.value.status_code == recorded["status"]
    assert raised.value.code == recorded["body"]["error"]["code"]
    assert recorded["body"]["error"]["message"] in str(raised.value)


def test_a_wrong_key_is_refused(wire_server):  # noqa: F811
    stranger = openai.OpenAI(base_url=wire_server, api_key="sk-wrong", max_retries=0, timeout=10)
    with pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(model="echo", messages=MESSAGES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool_choice": "required"},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"response_format": {"type": "json_schema"}},
        {"extra_body": {"no_such_field": 1}},
    ],
)
def test_what_the_real_server_refuses_is_refused(client, wrong):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**{"model": "echo", "messages": MESSAGES, **wrong})


def test_a_slow_reply_runs_into_the_clients_timeout(client):
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="delay:5000", messages=MESSAGES, timeout=0.3)
    assert client.chat.completions.create(model="delay:50", messages=MESSAGES).choices


def test_a_streamed_tool_call_is_put_together(client):
    with client.chat.completions.stream(
        model="echo",
        messages=MESSAGES,
        tools=[{"type": "function", "function": {**FUNCTION, "strict": True}}],
        stream_options={"include_usage": True},
    ) as stream:
        completion = stream.get_final_completion()
    call = completion.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"code": 'return "add"', "language": "lua"}
    assert completion.usage.prompt_tokens_details.cached_tokens == 16


def test_a_streamed_text_is_put_together(client):
    chunks = list(client.chat.completions.create(model="echo", messages=MESSAGES, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == 'return "add"'
    assert chunks[-1].choices[0].finish_reason == "stop"


RESPONSES_TOOL = {"type": "function", **FUNCTION, "strict": True}


@pytest.mark.parametrize("streamed", [False, True])
def test_responses_call_a_tool(client, streamed):
    asked = {
        "model": "echo",
        "instructions": SYSTEM,
        "input": [{"role": "user", "content": USER}],
        "tools": [RESPONSES_TOOL],
        "tool_choice": {"type": "function", "name": "execute_program"},
        "store": False,
    }
    if streamed:
        with client.responses.stream(**asked) as stream:
            response = stream.get_final_response()
    else:
        response = client.responses.create(**asked)
    call = next(item for item in response.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"code": 'return "add"', "language": "lua"}
    assert response.status == "completed" and response.usage.input_tokens_details.cached_tokens == 16


def test_responses_say_text(client):
    events = list(client.responses.create(model="echo", input=USER, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == 'return "add"'
    assert events[-1].response.output_text == 'return "add"'
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="echo", input=USER, extra_body={"messages": []})
