"""The test server speaks the real wire format: checked with the official client, which knows nothing of Cadenza.

What Cadenza's provider is tested against is only worth something if the server is right. Skipped where the client or
cargo is missing.
"""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

openai = pytest.importorskip("openai")

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "provider"
KEY = "sk-test-0123456789abcdef"
TOOL = {
    "type": "function",
    "function": {
        "name": "execute_program",
        "description": "Runs the program of the called method and returns its value.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "language": {"type": "string", "enum": ["lua"]}},
            "required": ["code", "language"],
            "additionalProperties": False,
        },
    },
}
MESSAGES = [
    {"role": "system", "content": "You write programs."},
    {"role": "user", "content": 'Role: "calculator"\nMethod: "add"\n'},
]


# The official client leaves the socket of a reply that timed out to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="session")
def wire_server():
    """The base URL of a running server."""
    program = os.environ.get("CADENZA_WIRE_SERVER")
    if not program:
        cargo = shutil.which("cargo")
        if cargo is None:
            pytest.skip("cargo is not installed")
        build = [cargo, "build", "-q", "-p", "cadenza-core", "--example", "wire_server", "--message-format=json"]
        built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=900, check=True)
        messages = [json.loads(line) for line in built.stdout.splitlines()]
        program = next(message["executable"] for message in messages if message.get("executable"))
    server = subprocess.Popen(
        [program, "--key", KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait(timeout=10)


@pytest.fixture
def client(wire_server):
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
    schema = {"name": "execute_program", "schema": TOOL["function"]["parameters"], "strict": True}
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


def test_a_wrong_key_is_refused(wire_server):
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
