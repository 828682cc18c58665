"""The command from Python (product.md section 7), and the conformance scenarios on the Python surface."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

import cadenza

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "cadenza", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_version_and_help():
    assert run("--version").stdout.strip().endswith(cadenza.__version__)
    assert "conform" in run("--help").stdout
    assert run("no-such-command").returncode == 4


def test_a_call_from_the_command_line():
    done = run(
        "call",
        "calculator",
        "add",
        "2",
        "3",
        "--json",
        env={"CADENZA_MODEL": "library", "CADENZA_STORE": ":memory:", "PATH": "/usr/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["value"] == 5


@pytest.mark.parametrize("language", ["lua", "rhai"])
def test_every_scenario_passes_on_the_python_surface(language):
    done = run("conform", "--runtime", "python", "--language", language, "--json", cwd=ROOT)
    report = json.loads(done.stdout)
    failed = [result for result in report["results"] if result["status"] != "pass"]
    assert (failed, done.returncode) == ([], 0), done.stderr
    assert (report["runtime"], report["language"]) == ("python", language)
    assert report["passed"] >= 16
