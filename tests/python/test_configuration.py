"""The configuration file and the environment, below what a runtime is told."""

from __future__ import annotations

import pytest

from cadenza import OptionError, Runtime


@pytest.fixture
def configured(tmp_path, monkeypatch):
    def write(text):
        path = tmp_path / "cadenza.toml"
        path.write_text(text)
        monkeypatch.setenv("CADENZA_CONFIG", str(path))

    return write


def test_a_runtime_takes_from_the_configuration_what_it_is_not_told(model, configured, monkeypatch):
    configured('language = "rhai"\nmax_calls = 1\n')
    assert Runtime(model=model).language == "rhai"
    assert Runtime(model=model, language="lua").language == "lua"
    monkeypatch.setenv("CADENZA_LANGUAGE", "lua")
    assert Runtime(model=model).language == "lua"
    outer = Runtime(model=lambda request: "return agent:delegate('x'):work()").agent("a").work()
    assert outer.error_type == "budget_exceeded"


def test_a_servers_address_goes_with_its_model(model, configured, monkeypatch):
    configured('model = "openai-compatible:m"\nbase_url = "http://127.0.0.1:1/v1"\napi_key = "sk-of-the-file-1"\n')
    assert Runtime().model == "openai-compatible:m"
    assert Runtime(model=None).model == "openai-compatible:m"
    refused = Runtime(reuse="off").agent("x", model=None).work()
    assert refused.error_type == "provider" and "openai-compatible:m" in refused.error_message
    assert Runtime(model="library").model == "library"
    assert Runtime(model=model).agent("calculator").add(2, 3).value == 5
    with pytest.raises(OptionError, match="needs a key: set ANTHROPIC_API_KEY"):
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        Runtime(model="anthropic:claude-sonnet-4-5")


def test_what_is_wrong_is_said_where_it_stands(model, configured):
    configured("\nmax_cals = 3\n")
    with pytest.raises(OptionError, match=r'cadenza\.toml:2: unknown option "max_cals"; did you mean "max_calls"'):
        Runtime(model=model)
    configured("max_calls = 3\n")
    with pytest.raises(OptionError, match='^option "max_calls": expected'):
        Runtime(model=model, max_calls=0)
