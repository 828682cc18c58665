"""The stubs: strict in themselves, true to the extension, useful to a user's program."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("mypy")

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [
        ["mypy", "--strict", "bindings/python/cadenza", "tests/python/typing_user.py"],
        ["mypy.stubtest", "cadenza", "--allowlist", "tests/python/stubtest-allow.txt"],
    ],
    ids=["mypy", "stubtest"],
)
def test_the_stubs_hold(command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
