"""The wire server as a fixture, and what its tests ask for."""

import gc
import json
import os
import pathlib
import shutil
import subprocess
import warnings

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "provider"
KEY = "sk-test-0123456789abcdef"
SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string"}, "language": {"type": "string", "enum": ["lua"]}},
    "required": ["code", "language"],
    "additionalProperties": False,
}
DESCRIPTION = "Runs the program of the called method and returns its value."
SYSTEM = "You write programs."
USER = 'Role: "calculator"\nMethod: "add"\n'
PROGRAM = {"code": 'return "add"', "language": "lua"}


@pytest.fixture(scope="session")
def wire_server():
    """The base URL of a running server, with `/v1` at its end."""
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
        # The official clients leave sockets to the collector.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        server.stdin.close()
        server.stdout.close()
        server.wait(timeout=10)


@pytest.fixture
def root(wire_server):
    """The server's address without a path."""
    return wire_server.removesuffix("/v1")
