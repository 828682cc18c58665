"""The durable store from Python: what outlives the process, and what other processes see."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import Model

import cadenza
from cadenza import Agent, AsyncAgent, Runtime

PROGRAMS = {
    "add": "return args[1] + args[2]",
    "increment": "context.count = (context.count or 0) + 1 return context.count",
}


def test_calls_and_programs_outlive_the_runtime(path: str) -> None:
    with Runtime(model=Model(PROGRAMS), store=path) as first:
        outcome = first.agent("calculator").add(2, 3)
        assert outcome.metadata["durability"] == "batch"
        assert first.store == path
    model = Model(PROGRAMS)
    second = Runtime(model=model, store=path)
    assert second.agent("calculator").add(4, 5).value == 9
    assert model.calls == 0
    calls = second.calls()
    assert [call["value"] for call in calls] == [5, 9]
    assert calls[0]["call_id"] == outcome.metadata["call_id"]
    assert second.calls(limit=1)[0]["value"] == 9
    assert second.program("calculator", "add").code == PROGRAMS["add"]
    for call in calls:
        assert second.verify(call["call_id"])["ok"] is True
        assert second.replay(call["call_id"])["value"] == call["value"]
    assert second.verify() == {
        "ok": True,
        "calls": 2,
        "entries": sum(c["transcript_length"] for c in calls),
        "detail": None,
    }


def test_a_named_agent_is_one_agent_in_every_process(path: str) -> None:
    runtime = Runtime(model=Model(PROGRAMS), store=path)
    tally = runtime.agent("counter", name="tally")
    tally.label = "mine"
    assert tally.increment().metadata["durability"] == "strict"
    program = (
        "import sys, cadenza\n"
        "rt = cadenza.Runtime(model=lambda r: sys.exit(9), store=sys.argv[1])\n"
        "t = rt.agent('counter', name='tally')\n"
        "print(t.label, t.increment().unwrap(), dict(t.runtime_context))\n"
        "t.label = 'theirs'\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60)
    assert done.stdout == "mine 2 {'count': 2, 'label': 'mine'}\n", done.stderr
    assert tally.label == "theirs"
    assert tally.increment().value == 3
    assert runtime.agents() == [{"namespace": "default", "name": "tally", "role": "counter", "version": 5, "calls": 3}]


def test_agents_pickle_by_reference(path: str) -> None:
    runtime = Runtime(model=Model(PROGRAMS), store=path)
    tally = runtime.agent("counter", name="tally")
    tally.count = 41
    blob = pickle.dumps(tally)
    assert b"41" not in blob
    again = pickle.loads(blob)
    assert type(again) is Agent
    assert again.count == 41
    assert type(pickle.loads(pickle.dumps(runtime.async_agent("counter", name="other")))) is AsyncAgent
    with pytest.raises(TypeError, match="cannot be pickled: make the agent with Agent.for_role\\(role, name="):
        pickle.dumps(runtime.agent("counter"))


def test_wrong_use_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(cadenza.OptionError, match="needs a store to live in"):
        Runtime(model="library").agent("counter", name="x")
    with pytest.raises(cadenza.OptionError, match="give it to `Agent.for_role`"):
        Runtime(model="library", store=path, name="x")
    with pytest.raises(cadenza.OptionError, match="it is a folder"):
        Runtime(model="library", store=str(tmp_path))
    with pytest.raises(cadenza.OptionError, match='expected "strict" or "batch" or "memory"'):
        Runtime(model="library", store=path, durability="never")
    runtime = Runtime(model="library", store=path)
    runtime.agent("counter", name="x")
    with pytest.raises(cadenza.StoreError, match='has the role "counter" already'):
        runtime.agent("calculator", name="x")
    with pytest.raises(ValueError, match="no store to verify"):
        Runtime(model="library").verify()


def test_tampering_is_reported_not_raised(path: str) -> None:
    import sqlite3

    runtime = Runtime(model=Model(PROGRAMS), store=path)
    runtime.agent("calculator").add(2, 3)
    runtime.flush()
    foreign = sqlite3.connect(path)
    foreign.executescript(
        "DROP TRIGGER runs_stay_1; UPDATE runs SET record = replace(record, '\"value\":5', '\"value\":6');"
    )
    foreign.close()
    report = runtime.verify()
    assert report["ok"] is False
    assert "is not what was written" in report["detail"]


def test_another_sqlite_library_in_the_process_takes_no_locks_away(path: str) -> None:
    """Default locks lose acknowledged commits here (store.md, OFD evidence; R10)."""
    import os
    import sqlite3
    import threading

    rounds = 100_000 if "CADENZA_LONG" in os.environ else 60
    runtime = Runtime(model=Model(PROGRAMS), store=path)
    tally = runtime.agent("counter", name="tally")
    assert tally.increment().value == 1
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            foreign = sqlite3.connect(path)
            foreign.execute("SELECT count(*) FROM runs").fetchall()
            foreign.close()

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(1, rounds):
        assert tally.increment().value == number + 1
    over.set()
    looking.join()
    outside = (
        "import sqlite3,sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM runs').fetchone()[0])"
    )
    done = subprocess.run([sys.executable, "-c", outside, path], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(rounds), done.stderr
    assert runtime.verify()["ok"]
    print(f"R10: {rounds} commits beside another SQLite library, 0 lost")


def test_the_command_reads_a_store(path: str) -> None:
    with Runtime(model=Model(PROGRAMS), store=path) as runtime:
        runtime.agent("calculator").add(2, 3)

    def cadenza_command(*arguments: str) -> str:
        command = [sys.executable, "-m", "cadenza", "--color", "never", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "calculator.add(2, 3)  ok 5" in cadenza_command("calls", path)
    assert PROGRAMS["add"] in cadenza_command("show", "last", path)
    assert "calculator.add" in cadenza_command("programs", path)
    assert cadenza_command("verify", "--store", path).startswith("intact: 1 call(s)")
    assert json.loads(cadenza_command("replay", "last", "--store", path, "--json"))["value"] == 5
    assert (
        cadenza_command("call", "counter", "increment", "--store", path, "--name", "t", "--model", "library") == "1\n"
    )
    assert (
        cadenza_command("call", "counter", "increment", "--store", path, "--name", "t", "--model", "library") == "2\n"
    )


def test_programs_are_files_that_people_edit_pin_and_lock(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(PROGRAMS)
    runtime = Runtime(model=model, store=path)
    calc = runtime.agent("calculator")
    calc.add(2, 3)
    assert runtime.export(tmp_path / "programs") == 1
    (file,) = (tmp_path / "programs" / "calculator").iterdir()
    file.write_text("return args[1] + args[2] + 1000\n")
    assert runtime.import_programs(tmp_path / "programs") == 1
    assert calc.add(2, 3).value == 1005
    edited = runtime.program("calculator", "add")
    assert (edited.version, edited.state, edited.model) == (2, "pinned", "edited")
    runtime.set_program_state(edited.id, "quarantined")
    assert calc.add(2, 3).value == 5
    assert model.calls == 1
    monkeypatch.chdir(tmp_path)
    assert runtime.lock() == 1
    locked = Runtime(model=model, store=path, reuse="locked").agent("calculator")
    assert locked.add(4, 5).value == 9
    refused = locked.increment()
    assert refused.error_type == "provider"
    assert "no program for calculator.increment" in refused.error_message
    assert model.calls == 1
    with pytest.raises(LookupError, match="no program"):
        runtime.set_program_state("0" * 64, "pinned")
    with pytest.raises(ValueError, match="programs.json"):
        runtime.import_programs(tmp_path)
    (tmp_path / "cadenza.lock").unlink()
    with pytest.raises(cadenza.OptionError, match="cadenza.lock"):
        Runtime(model=model, store=path, reuse="locked")


def own_store(data: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` as a process whose user has the data folder `data` and says nothing about a store."""
    env = {name: value for name, value in os.environ.items() if name != "CADENZA_STORE"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    env["XDG_DATA_HOME"] = str(data)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, cwd=data.parent)


def test_without_a_store_of_its_own_a_process_leaves_its_calls_to_the_next_one(tmp_path: Path) -> None:
    # It ends right after its call: what was acknowledged is on the disk all the same.
    code = """
        import cadenza
        out = cadenza.Runtime(model="library").agent("calculator").add(2, 3)
        print(out.value, out.metadata["source"], out.metadata["durability"])
    """
    ran = [own_store(tmp_path / "data", code) for _ in range(3)]
    assert [run.stdout for run in ran] == ["5 library batch\n", "5 reused batch\n", "5 reused batch\n"], ran
    path = tmp_path / "data" / "cadenza" / "store.db"
    assert path.is_file()
    assert [call["value"] for call in Runtime(model="library", store=str(path)).calls()] == [5, 5, 5]


def test_a_model_of_this_process_leaves_nothing_behind(tmp_path: Path) -> None:
    code = """
        import cadenza
        out = cadenza.Runtime(model=lambda request: "return args[1] + args[2]").agent("calculator").add(2, 3)
        print(out.value, out.metadata["durability"])
    """
    ran = own_store(tmp_path / "data", code)
    assert ran.stdout == "5 memory\n", ran.stderr
    assert not (tmp_path / "data").exists()


def test_where_the_default_store_cannot_be_calls_go_on_and_one_warning_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    code = """
        import warnings
        import cadenza
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2):
                out = cadenza.Runtime(model="library").agent("calculator").add(2, 3)
                print(out.value, out.metadata["durability"])
        print([str(warning.message).split(",")[0] for warning in told])
        try:
            cadenza.Runtime(model="library", store="data/app.db")
        except cadenza.OptionError as error:
            print("store" in str(error))
    """
    ran = own_store(tmp_path / "data", code)
    told = "['calls and programs are kept in memory only']"
    assert ran.stdout.splitlines() == ["5 memory", "5 memory", told, "True"], ran
