"""Kept programs and ended calls as people look at them, change them and take them along."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Model

import cadenza
from cadenza import Runtime

PROGRAMS = {
    "add": "return args[1] + args[2]",
    "label": "return `{args[1]} in {kwargs.unit or 'm'}`",
    "increment": "context.count = (context.count or 0) + args[1] return context.count",
    "rows": "return {{name = 'a', tags = {1, 2.5}}, {name = 'b', tags = array{}}}",
    "outer": "local inner = agent:delegate('calculator') inner:add(1, 2) return inner:add(3, 4).value",
    "boom": "error('<b>boom</b>')",
}


@pytest.fixture(params=["store", "memory"])
def runtime(request: pytest.FixtureRequest, path: str) -> Iterator[Runtime]:
    """A runtime on a store, and one in memory."""
    with Runtime(model=Model(PROGRAMS), store=path if request.param == "store" else ":memory:") as made:
        yield made


def command(*arguments: str, code: int = 0, **environment: str) -> str:
    """Runs the command; its standard output, or what it complains about."""
    done = subprocess.run(
        [sys.executable, "-m", "cadenza", "--color", "never", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


def test_a_program_is_read_edited_pinned_and_deleted(runtime: Runtime) -> None:
    calc = runtime.agent("calculator")
    calc.add(2, 3)
    program = runtime.program("calculator.add")
    assert program.id == runtime.program(program.id[:8]).id == runtime.program("calculator", "add").id
    assert (program.state, program.version, program.code) == ("active", 1, PROGRAMS["add"])
    assert program.created_by == runtime.calls()[0]["call_id"]
    assert datetime.datetime.fromisoformat(str(program.created).replace("Z", "+00:00")).year >= 2024
    assert [(one["name"], one["standing"], one["value"]) for one in program.inputs] == [
        ("args[1]", "unproven", 2),
        ("args[2]", "unproven", 3),
    ]
    edited = runtime.edit_program(program.id, "return args[1] + args[2] + 1000")
    assert (edited.state, edited.version, edited.model, edited.created_by) == ("pinned", 2, "edited", None)
    assert calc.add(2, 3).value == 1005
    assert "-return args[1] + args[2]\n+return args[1] + args[2] + 1000\n" in edited.diff()
    assert edited.diff(edited) == ""
    assert [one.id for one in edited.history()] == [one.id for one in runtime.history("calculator.add")]
    assert edited.quarantine().state == "quarantined"
    assert calc.add(2, 3).value == 5
    assert edited.approve().state == "active"
    assert program.pin().state == "pinned"
    assert calc.add(2, 3).value == 5
    runtime.delete_program(edited)
    assert [one.id for one in runtime.programs()] == [program.id]
    assert runtime.programs(state="pinned", method="add", language="lua", namespace="default")
    assert not runtime.programs("nobody")


def test_wrong_use_of_the_repertoire_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    runtime.agent("calculator").add(2, 3)
    program = runtime.program("calculator.add")
    with pytest.raises(LookupError, match="did you mean calculator.add"):
        runtime.program("calculator.ad")
    with pytest.raises(LookupError, match="no kept program for calculator.sub"):
        runtime.program("calculator", "sub")
    with pytest.raises(ValueError, match="does not compile"):
        program.edit("return (")
    with pytest.raises(ValueError, match="nothing changed"):
        program.edit(program.code)
    with pytest.raises(ValueError, match="active, pinned, quarantined or candidate"):
        runtime.set_program_state(program.id, "gone")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='"lua" or "rhai"'):
        runtime.programs(language="ruby")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ok, error, interrupted"):
        runtime.calls(status="fine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is no time"):
        runtime.calls(since="yesterday")
    with pytest.raises(LookupError, match="no earlier version"):
        program.diff()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        runtime.eject("calculator", tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        runtime.export(tmp_path / "file")
    with pytest.raises(LookupError, match="no program"):
        runtime.eject("nobody", tmp_path)
    with pytest.raises(LookupError):
        runtime.tree("0" * 32)
    program.edit("return 1")
    with pytest.raises(LookupError, match="means several programs"):
        runtime.program("calculator.add")
    program.delete()
    with pytest.raises(LookupError, match="deleted"):
        program.pin()


def test_pandas_reads_calls_and_programs(runtime: Runtime) -> None:
    pandas = pytest.importorskip("pandas")
    calc = runtime.agent("calculator")
    calc.add(2, 3)
    calc.boom()
    runtime.agent("counter", namespace="other").increment(1)
    calls = runtime.calls()
    assert all(list(call) == list(calls[0]) for call in calls), "the same columns in the same order"
    frame = pandas.DataFrame(calls)
    assert list(frame["method"]) == ["add", "boom", "increment"]
    assert frame["value"].tolist()[0] == 5
    assert frame["outcome_error_type"].isna().tolist() == [True, False, True]
    assert frame["namespace"].tolist() == ["default", "default", "other"]
    times = pandas.to_datetime(frame["timestamp"])
    assert str(times.dt.tz) == "UTC"
    assert times.is_monotonic_increasing
    assert frame.groupby("role")["duration_ms"].sum()["calculator"] > 0
    assert runtime.call(calls[0]["call_id"])["value"] == 5

    programs = runtime.programs()
    assert all(isinstance(program, Mapping) for program in programs)
    frame = pandas.DataFrame(programs)
    assert sorted(frame["method"]) == ["add", "increment"]
    assert list(frame.columns) == list(programs[0].to_dict()) == list(programs[0])
    assert dict(programs[0])["code"] == programs[0].code == programs[0]["code"]
    assert len(programs[0]) == len(programs[0].keys()) == len(programs[0].items())
    assert "code" in programs[0]
    assert 3 not in programs[0]
    assert programs[0].get("nothing", 7) == 7
    with pytest.raises(KeyError):
        programs[0]["nothing"]


def test_calls_are_asked_for_by_what_is_known(runtime: Runtime) -> None:
    calc = runtime.agent("calculator")
    calc.add(2, 3)
    calc.add(4, 5)
    calc.boom()
    runtime.agent("counter", namespace="other").increment(1)

    def methods(**asked: Any) -> list[str]:
        return [call["method"] for call in runtime.calls(**asked)]

    assert methods(status="error") == ["boom"]
    assert methods(role="calculator", method="add") == ["add", "add"]
    assert methods(namespace="other") == ["increment"]
    assert methods(limit=1) == ["increment"]
    now = datetime.datetime.now(datetime.timezone.utc)
    assert len(methods(since=now - datetime.timedelta(hours=1))) == 4
    assert methods(since=datetime.datetime.now() + datetime.timedelta(hours=1)) == []
    assert len(methods(since="1h")) == 4
    assert [call["reuse"] for call in runtime.calls(method="add")] == ["no_program", "reused"]
    assert json.loads(json.dumps(runtime.calls()))[0]["method"] == "add"


def test_a_call_tree_shows_itself_and_escapes_everything(runtime: Runtime) -> None:
    outcome = runtime.agent("boss").outer()
    tree = runtime.tree(outcome.metadata["call_id"])
    assert [child.call["args"] for child in tree.children] == [[1, 2], [3, 4]]
    assert str(tree).splitlines()[1].startswith("  calculator.add(1, 2)  ok 3  generated")
    assert repr(tree) == "<CallTree boss.outer: ok, 3 calls>"
    html = tree._repr_html_()
    assert html.count("<li>") == html.count("</li>") == 3
    failed = runtime.agent("<script>").boom("<img src=x>")
    html = runtime.tree(failed.metadata["call_id"])._repr_html_()
    assert "<script>" not in html
    assert "<img" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;.boom" in html
    runtime.agent("<i>").add(1, 2)
    assert "<i>" not in runtime.programs("<i>")[0]._repr_html_()


def test_namespaces_of_agents_and_calls(path: str) -> None:
    runtime = Runtime(model=Model(PROGRAMS), store=path)
    for namespace in ("default", "other"):
        runtime.agent("counter", name="tally", namespace=namespace).increment(1)
    assert [(agent["namespace"], agent["name"]) for agent in runtime.agents()] == [
        ("default", "tally"),
        ("other", "tally"),
    ]
    assert [call["namespace"] for call in runtime.calls(agent="tally")] == ["default", "other"]
    assert "of tally in other" in command("calls", path, "--namespace", "other")


def eject(path: str, folder: Path) -> None:
    with Runtime(model=Model(PROGRAMS), store=path) as runtime:
        calc = runtime.agent("calculator")
        for left, right in ((1, 2), (0.5, 0.25), (1, 2)):
            calc.add(left, right)
        calc.label(3)
        calc.label("3", unit="km")
        calc.rows()
        calc.outer()
        tally = runtime.agent("calculator", name="tally")
        tally.mode = "fast"
        tally.increment(2)
        tally.increment(3)
        written = runtime.eject("calculator", folder)
        assert all(one.is_file() for one in written)


def test_what_is_ejected_passes_its_own_tests(path: str, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    eject(path, folder)
    report = json.loads(command("conform", str(folder / "scenarios"), "--runtime", "rust", "--json"))
    assert report["passed"] == 5, report
    assert report["failed"] == 0, report
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(pytest_command, capture_output=True, text=True, timeout=120, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout

    # A recorded call that gives another value is found by both.
    program = folder / "programs" / "calculator_add.lua"
    program.write_text(program.read_text() + "\n-- more", encoding="utf-8")
    program.write_text(program.read_text().replace("args[1] + args[2]", "args[1] - args[2]"), encoding="utf-8")
    report = json.loads(command("conform", str(folder / "scenarios"), "--runtime", "rust", "--json", code=1))
    assert report["failed"] == 1, report
    done = subprocess.run(pytest_command, capture_output=True, text=True, timeout=120, cwd=folder)
    assert done.returncode == 1
    assert "3 failed, 5 passed" in done.stdout


def test_the_stub_of_a_role_is_true_for_mypy(path: str, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    folder = tmp_path / "own"
    eject(path, folder)
    stub = (folder / "calculator.pyi").read_text()
    for line in (
        "    count: int",
        "    mode: str",
        "    def add(self, arg1: float, arg2: float, /) -> Outcome[float]: ...",
        "    def label(self, arg1: int | str, /, *, unit: str = ...) -> Outcome[str]: ...",
        "    def rows(self, /) -> Outcome[list[dict[str, str | list[float]]]]: ...",
    ):
        assert line in stub
    (folder / "user.py").write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING, cast\n"
        "from cadenza import Agent\n"
        "if TYPE_CHECKING:\n"
        "    from calculator import Calculator\n"
        "calc = cast('Calculator', Agent.for_role('calculator'))\n"
        "total: float = calc.add(1, 2).unwrap()\n"
        "name: str = calc.label(1, unit='m').value\n"
        "count: int = calc.count\n"
        "calc.add('x', 2)  # type: ignore[arg-type]\n"
        "wrong: str = calc.add(1, 2).value  # type: ignore[assignment]\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "calculator.pyi", "user.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_command_changes_a_store(path: str, tmp_path: Path) -> None:
    with Runtime(model=Model(PROGRAMS), store=path) as runtime:
        runtime.agent("calculator").add(2, 3)
        running = runtime.agent("calculator")
        (tmp_path / "new.lua").write_text("return args[1] * args[2]\n")
        edited = json.loads(
            command(
                "programs", "edit", "calculator.add", "--file", str(tmp_path / "new.lua"), "--store", path, "--json"
            )
        )
        assert (edited["version"], edited["state"]) == (2, "pinned")
        # A process that knows the old one hears of it.
        assert running.add(2, 3).value == 6
        command("programs", "delete", edited["id"][:12], "--store", path)
        assert running.add(2, 3).value == 5


def test_outcomes_know_the_type_of_their_value() -> None:
    assert repr(cadenza.Outcome[int]).startswith("cadenza.Outcome[")


def test_ejected_in_rhai_runs_too(path: str, tmp_path: Path, agent_of: Callable[..., cadenza.Agent]) -> None:
    agent = agent_of({"twice": "args[0] * 2"}, language="rhai", store=path)
    assert agent.twice(4).value == 8
    written = Runtime(model="library", store=path).eject("tester", tmp_path / "own", "twice")
    assert (tmp_path / "own" / "programs" / "tester_twice.rhai") in written
    report = json.loads(
        command("conform", str(tmp_path / "own/scenarios"), "--runtime", "rust", "--language", "rhai", "--json")
    )
    assert (report["passed"], report["failed"]) == (1, 0), report


def test_an_edit_that_answers_recorded_calls_otherwise_is_refused_unless_accepted(runtime: Runtime) -> None:
    calc = runtime.agent("calculator")
    for number in range(3):
        assert calc.add(2, number).ok
    program = runtime.program("calculator.add")
    with pytest.raises(ValueError, match=r"add\(2, 2\) gave 4; the new program gives 0"):
        program.edit("return args[1] - args[2]")
    assert [one.id for one in runtime.programs()] == [program.id]
    assert program.edit("return args[1] - args[2]", accept=True).state == "pinned"
    assert calc.add(5, 3).value == 2


def test_the_replay_model_plays_a_recorded_flow(tmp_path: Path) -> None:
    store = str(tmp_path / "app.db")
    with Runtime(model=lambda request: PROGRAMS[request.method], store=store, reuse="off") as first:
        call_id = first.agent("calculator").add(2, 3).metadata["call_id"]
    with Runtime(model=f"replay:{call_id}", store=store, reuse="off") as second:
        calc = second.agent("calculator")
        assert calc.add(2, 3).value == 5
        assert "has no decision left" in calc.add(2, 3).error_message
    with pytest.raises(cadenza.OptionError, match="no call with that id"):
        Runtime(model="replay:" + "0" * 32, store=store)
