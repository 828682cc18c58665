"""The test server speaks the wire formats of Anthropic, Gemini and Ollama: judged by their official clients.

Each part is skipped where its client, or cargo, is missing.
"""

import json
import os

import pytest
from wire import DESCRIPTION, FIXTURES, KEY, PROGRAM, SCHEMA, SYSTEM, USER, root, wire_server  # noqa: F401

# The official clients leave sockets to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def recorded(fixture):
    """Status and body of a recorded refusal."""
    fixture = json.loads((FIXTURES / f"{fixture}.json").read_text())
    return fixture["status"], fixture["body"]


class TestAnthropic:
    """The client `anthropic`."""

    @pytest.fixture
    def client(self, root):  # noqa: F811
        anthropic = pytest.importorskip("anthropic")
        with anthropic.Anthropic(base_url=root, api_key=KEY, max_retries=0, timeout=10) as client:
            yield client

    ASKED = {
        "model": "echo",
        "max_tokens": 1_000,
        "system": SYSTEM,
        "messages": [{"role": "user", "content": USER}],
    }
    TOOLS = {
        "tools": [{"name": "execute_program", "description": DESCRIPTION, "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "execute_program"},
    }

    def test_a_forced_tool_call_comes_back(self, client):
        message = client.messages.create(**self.ASKED, **self.TOOLS)
        (block,) = message.content
        assert (block.type, block.name, block.input) == ("tool_use", "execute_program", PROGRAM)
        assert message.stop_reason == "tool_use" and message.usage.cache_read_input_tokens == 16

    def test_a_streamed_call_is_put_together(self, client):
        with client.messages.stream(**self.ASKED, **self.TOOLS) as stream:
            message = stream.get_final_message()
        assert message.content[0].input == PROGRAM
        assert message.stop_reason == "tool_use" and message.usage.output_tokens > 1

    def test_a_streamed_text_is_put_together(self, client):
        with client.messages.stream(**self.ASKED) as stream:
            assert "".join(stream.text_stream) == PROGRAM["code"]

    @pytest.mark.parametrize(
        "fixture", ["anthropic_401_authentication", "anthropic_429_rate_limit", "anthropic_529_overloaded"]
    )
    def test_recorded_refusals_are_those_of_the_real_server(self, client, fixture):
        anthropic = pytest.importorskip("anthropic")
        status, body = recorded(fixture)
        with pytest.raises(anthropic.APIStatusError) as raised:
            client.messages.create(**{**self.ASKED, "model": f"error:{fixture}"})
        assert raised.value.status_code == status
        assert raised.value.body["error"]["type"] == body["error"]["type"]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"messages": [{"role": "user", "content": ""}]},
            {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
            {"tool_choice": {"type": "any"}},
            {"thinking": {"type": "enabled", "budget_tokens": 1_000}},
            {"extra_body": {"no_such_field": 1}},
            {"extra_headers": {"anthropic-version": "1999-01-01"}},
        ],
    )
    def test_what_the_real_server_refuses_is_refused(self, client, wrong):
        anthropic = pytest.importorskip("anthropic")
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**{**self.ASKED, **wrong})


class TestGemini:
    """The client `google-genai`."""

    @pytest.fixture
    def client(self, root):  # noqa: F811
        genai = pytest.importorskip("google.genai")
        return genai.Client(api_key=KEY, http_options={"base_url": root, "api_version": "v1beta"})

    CONFIG = {
        "system_instruction": SYSTEM,
        "tools": [
            {
                "function_declarations": [
                    {"name": "execute_program", "description": DESCRIPTION, "parameters_json_schema": SCHEMA}
                ]
            }
        ],
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["execute_program"]}},
        "automatic_function_calling": {"disable": True},
    }

    def test_a_forced_call_comes_back(self, client):
        reply = client.models.generate_content(model="echo", contents=USER, config=self.CONFIG)
        (call,) = reply.function_calls
        assert (call.name, call.args) == ("execute_program", PROGRAM)
        assert reply.candidates[0].finish_reason.name == "STOP"
        assert reply.usage_metadata.cached_content_token_count == 16

    def test_a_streamed_reply_is_put_together(self, client):
        chunks = list(client.models.generate_content_stream(model="echo", contents=USER))
        assert "".join(chunk.text or "" for chunk in chunks) == PROGRAM["code"]
        calls = [
            call
            for chunk in client.models.generate_content_stream(model="echo", contents=USER, config=self.CONFIG)
            for call in chunk.function_calls or []
        ]
        assert [call.args for call in calls] == [PROGRAM]

    def test_structured_output_comes_back(self, client):
        config = {"response_mime_type": "application/json", "response_json_schema": SCHEMA}
        reply = client.models.generate_content(model="echo", contents=USER, config=config)
        assert json.loads(reply.text) == PROGRAM

    @pytest.mark.parametrize("fixture", ["gemini_400_api_key_invalid", "gemini_403_permission"])
    def test_recorded_refusals_are_those_of_the_real_server(self, client, fixture):
        errors = pytest.importorskip("google.genai.errors")
        status, _body = recorded(fixture)
        with pytest.raises(errors.APIError) as raised:
            client.models.generate_content(model=f"error:{fixture}", contents=USER)
        assert raised.value.code == status

    def test_what_the_real_server_refuses_is_refused(self, client):
        errors = pytest.importorskip("google.genai.errors")
        for config in [
            {"thinking_config": {"thinking_budget": 1, "thinking_level": "HIGH"}},
            {"tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["nobody"]}}},
        ]:
            with pytest.raises(errors.APIError) as raised:
                client.models.generate_content(model="echo", contents=USER, config=config)
            assert raised.value.code == 400


class TestOllama:
    """The client `ollama`."""

    @pytest.fixture
    def client(self, root, monkeypatch):  # noqa: F811
        monkeypatch.delitem(os.environ, "OLLAMA_API_KEY", raising=False)
        ollama = pytest.importorskip("ollama")
        return ollama.Client(host=root, headers={"Authorization": f"Bearer {KEY}"}, timeout=10)

    MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
    TOOLS = [
        {
            "type": "function",
            "function": {"name": "execute_program", "description": DESCRIPTION, "parameters": SCHEMA},
        }
    ]

    def test_a_call_comes_back(self, client):
        reply = client.chat(model="echo", messages=self.MESSAGES, tools=self.TOOLS)
        assert reply.message.tool_calls[0].function.arguments == PROGRAM
        assert reply.done and reply.done_reason == "stop" and reply.eval_count > 0

    def test_a_streamed_reply_is_put_together(self, client):
        parts = list(client.chat(model="echo", messages=self.MESSAGES, stream=True))
        assert "".join(part.message.content or "" for part in parts) == PROGRAM["code"]
        assert parts[-1].done and parts[-1].prompt_eval_count > 0

    def test_structured_output_comes_back(self, client):
        reply = client.chat(model="echo", messages=self.MESSAGES, format=SCHEMA)
        assert json.loads(reply.message.content) == PROGRAM

    def test_models_are_listed(self, client):
        assert [model.model for model in client.list().models] == ["echo:latest"]

    @pytest.mark.parametrize("fixture", ["ollama_404_model", "ollama_400_text"])
    def test_recorded_refusals_are_those_of_the_real_server(self, client, fixture):
        ollama = pytest.importorskip("ollama")
        status, body = recorded(fixture)
        with pytest.raises(ollama.ResponseError) as raised:
            client.chat(model=f"error:{fixture}", messages=self.MESSAGES)
        assert (raised.value.status_code, raised.value.error) == (status, body["error"])
