"""Cassettes: what a model answered once, played without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cadenza
from cadenza import Runtime


def test_a_recorded_flow_is_played_without_its_model(model, tmp_path):
    path = tmp_path / "flow.jsonl"

    def flow(runtime):
        agent = runtime.agent("tester")
        return [agent.add(2, 3).value, agent.increment(4).value, agent.increment(5).value, agent.boom().error_type]

    recorded = flow(Runtime(model=model, record=str(path), reuse="off"))
    assert recorded == [5, 4, 9, "execution"]
    asked = model.calls
    played = Runtime(model=f"cassette:{path}", reuse="off")
    assert flow(played) == recorded
    assert model.calls == asked
    head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert head["cassette"] == 1
    assert [line["method"] for line in lines if "request" in line][:3] == ["add", "increment", "increment"]


def test_what_is_not_on_the_cassette_is_a_provider_error_that_names_the_nearest(model, tmp_path):
    path = tmp_path / "flow.jsonl"
    Runtime(model=model, record=str(path), reuse="off").agent("tester").add(2, 3)
    outcome = Runtime(model=f"cassette:{path}").agent("tester").add(2, 4)
    assert outcome.error_type == "provider"
    assert "has no reply for tester.add (attempt 1); the nearest is line 3" in outcome.error_message
    assert "`args: [2,3]` and now `args: [2,4]`" in outcome.error_message


def test_a_key_does_not_reach_the_file(tmp_path):
    path = tmp_path / "secrets.jsonl"
    key = "sk-python-0123456789"
    # Made, and with it the key known, and then asked by nobody.
    cadenza.Runtime(model="openai:gpt-5.1", api_key=key, store=":memory:")
    model = Runtime(model=lambda request: f"return '{key}'", record=str(path), reuse="off")
    assert model.agent("tester").tell(key, password="hunter-22").ok
    text = path.read_text()
    assert "[secret]" in text
    assert key not in text
    assert "hunter-22" not in text


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('{"cassette":9}\n', 1, "version 9"),
        ('{"cassette":1}\n{"request":\n', 2, "not a JSON object"),
        ("hello\n", 1, "not a JSON object"),
    ],
)
def test_a_file_that_is_no_cassette_is_refused_with_its_line(tmp_path, text, line, why):
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(cadenza.OptionError, match=f"line {line}: .*{why}"):
        Runtime(model=f"cassette:{path}")
    with pytest.raises(cadenza.OptionError, match="record"):
        Runtime(model="library", record=5)


def test_the_command_records_and_scores(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cadenza", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("call", "calculator", "add", "2", "3", "--model", "library", "--record", "c.jsonl").stdout == "5\n"
    assert Path(tmp_path, "c.jsonl").exists()
    assert run("call", "calculator", "add", "2", "3", "--model", "cassette:c.jsonl").stdout == "5\n"
    scored = run("eval", "--model", "library", "--only", "calculator.add", "--json")
    report = json.loads(scored.stdout)
    assert (scored.returncode, report["total"]["passed"], report["prompt_tokens"]["system"]) == (0, 1, 745)
