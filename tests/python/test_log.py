"""The log from Python (AC section 8, formats.md section 2)."""

from __future__ import annotations

import json
import math
import os
import pathlib
import threading
import time

import pytest

import cadenza

ALWAYS = {
    "timestamp", "runtime", "role", "model", "method", "args", "kwargs", "code", "duration_ms", "generation_attempt",
    "outcome_status", "contract_source", "trace_id", "call_id", "parent_call_id", "depth", "execution_receiver",
    "language", "program_source", "outcome_error_type", "outcome_error_message", "outcome_retriable", "agent_outcome",
    "reason", "inferences", "tokens_in", "tokens_out", "attempt_failures", "transcript_head", "transcript_length",
}  # fmt: skip
DEBUG = {"system_prompt", "user_prompt", "context", "outcome_value"}


def test_ac_17_one_line_per_call_with_the_listed_fields(model, tmp_path):
    path = tmp_path / "calls.jsonl"
    with cadenza.Runtime(model=model, log=pathlib.Path(path)) as runtime:
        calc = runtime.agent("calculator")
        calc.memory = 5
        calc.memory
        calc.add(1, 2)
        calc.boom()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["method"] for line in lines] == ["add", "boom"]
    for line in lines:
        assert set(line) >= ALWAYS
        assert not DEBUG & set(line)
        assert line["runtime"] == "cadenza-python"
    assert [line["outcome_status"] for line in lines] == ["ok", "error"]


def test_ac_17_debug_adds_prompts_and_context(model):
    seen = []
    with cadenza.Runtime(model=model, log=seen.append, debug=True) as runtime:
        runtime.agent("calculator").increment(3)
    (line,) = seen
    assert set(line) >= ALWAYS | DEBUG
    assert line["context"] == {"value": 3}
    assert "increment" in line["user_prompt"]


def test_a_callable_gets_plain_dicts(model):
    seen = []
    with cadenza.Runtime(model=model, log=seen.append) as runtime:
        calc = runtime.agent("calculator")
        calc.echo(float("nan"))
        calc.echo({"api_key": "hunter2", "deep": [1]})
    first, second = seen
    assert type(first) is dict
    assert first["args"] == ["NaN"] or math.isnan(first["args"][0])
    assert "hunter2" not in repr(second)
    assert second["args"][0]["deep"] == [1]


def test_ac_18_a_failing_log_does_not_break_the_call(model, monkeypatch):
    import sys

    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    def broken(call):
        raise RuntimeError("no disk")

    with cadenza.Runtime(model=model, log=broken) as runtime:
        assert runtime.agent("calculator").add(1, 2).value == 3
    assert [str(one.exc_value) for one in told] == ["no disk"]
    with pytest.warns(RuntimeWarning, match="/proc/nowhere/calls.jsonl"):
        runtime = cadenza.Runtime(model=model, log="/proc/nowhere/calls.jsonl")
    with runtime:
        assert runtime.agent("calculator").add(1, 2).value == 3
        runtime.flush()
        assert runtime.dropped_log_lines == 1


def test_ac_3_an_agent_may_have_its_own_log(model):
    ours, own = [], []
    with cadenza.Runtime(model=model, log=ours.append) as runtime:
        runtime.agent("calculator", log=own.append).add(1, 2)
        runtime.agent("calculator", log=False).add(1, 2)
        runtime.agent("calculator").add(1, 2)
    cadenza._core._flush_logs()
    assert (len(ours), len(own)) == (1, 1)


def test_ac_17_contract_sources(model):
    seen = []
    with cadenza.Runtime(model=model, log=seen.append) as runtime:
        calc = runtime.agent("calculator")
        calc.add(1, 2)
        calc.delegate("x", purpose="p").add(1, 2)
        calc.delegate("x", delegation_contract={"purpose": "p"}).add(1, 2)
        calc.delegate("x", delegation_contract={"purpose": "p"}, acceptance=["short"]).add(1, 2)
    assert [line["contract_source"] for line in seen] == ["none", "fields", "hash", "merged"]


def test_a_log_that_cannot_be_written_is_told_when_it_is_named(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="is not a folder"):
        cadenza.Runtime(model=model, log=tmp_path / "file" / "calls.jsonl")
    with pytest.raises(cadenza.OptionError, match='option "log": .* cannot be a log: it is a folder'):
        cadenza.Runtime(model=model, log=tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_no_log_and_holds_nobody(model, tmp_path):
    path = tmp_path / "calls.jsonl"
    runtime = cadenza.Runtime(model=model, log=path)
    os.mkfifo(path)
    assert runtime.agent("calculator").add(1, 2).value == 3
    started = time.monotonic()
    runtime.flush()
    assert runtime.dropped_log_lines == 1
    del runtime
    assert time.monotonic() - started < 3
    with pytest.raises(cadenza.OptionError, match="not a regular file"):
        cadenza.Runtime(model=model, log=path)


def test_dropping_a_runtime_waits_for_no_callback(model):
    lock, seen = threading.Lock(), []

    def log(line):
        with lock:
            seen.append(line)

    with lock:
        runtime = cadenza.Runtime(model=model, log=log)
        runtime.agent("calculator").add(1, 2)
        started = time.monotonic()
        del runtime
        assert time.monotonic() - started < 3
        assert not seen
    cadenza._core._flush_logs()
    assert len(seen) == 1


def test_a_callback_may_flush_its_own_log(model):
    seen = []

    def log(line):
        started = time.monotonic()
        runtime.flush()
        seen.append(time.monotonic() - started)

    runtime = cadenza.Runtime(model=model, log=log)
    runtime.agent("calculator").add(1, 2)
    runtime.flush()
    assert len(seen) == 1 and seen[0] < 3
