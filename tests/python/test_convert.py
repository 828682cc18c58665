"""Values at the border (product.md section 1)."""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import subprocess
import sys
import types
import uuid

import pytest


@dataclasses.dataclass
class Point:
    x: int
    y: float
    tags: list[str] = dataclasses.field(default_factory=list)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


Pair = collections.namedtuple("Pair", "a b")


def crossed(calc, value):
    """What a program sees of a value, and gives back."""
    calc.held = value
    return calc.runtime_context["held"]


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -1, 2**53, 2**63 - 1, -(2**63), 1.5, "", "größe 😀", [], [1, [2]], {}, {"a": {"b": None}}],
)
def test_json_like_data_crosses_as_it_is(calc, value):
    assert crossed(calc, value) == value
    assert type(crossed(calc, value)) is type(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 2), [1, 2]),
        (Pair(1, "x"), [1, "x"]),
        (collections.OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (types.MappingProxyType({"a": (1,)}), {"a": [1]}),
        (collections.ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
        (Point(1, 2.5, ["t"]), {"x": 1, "y": 2.5, "tags": ["t"]}),
        ([Point(1, 2.0)], [{"x": 1, "y": 2.0, "tags": []}]),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc), "2026-01-02T03:04:05+00:00"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.time(3, 4), "03:04:00"),
        (datetime.timedelta(minutes=1, milliseconds=500), 60.5),
        (decimal.Decimal("0.10"), "0.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        ({"$bytes": base64.b64encode(b"hi").decode()}, {"$bytes": "aGk="}),
    ],
)
def test_documented_types_are_converted(calc, value, expected):
    assert crossed(calc, value) == expected


def test_nan_and_infinities_may_be_passed_in(calc):
    assert math.isnan(crossed(calc, float("nan")))
    assert crossed(calc, float("-inf")) == float("-inf")


class Slots:
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (object(), TypeError, ": an object has no JSON form"),
        ({"rows": [0, 0, 0, {1, 2}]}, TypeError, "`$.rows[3]`: a set has no JSON form"),
        (b"raw", TypeError, '{"$bytes": base64.b64encode(data).decode()}'),
        (bytearray(b"raw"), TypeError, "base64"),
        (2**63, ValueError, "does not fit in 64 bits"),
        ({"n": [-(2**70)]}, ValueError, "`$.n[0]`: the integer does not fit"),
        ({1: "a"}, TypeError, "map keys are text, got the int 1; use str(key)"),
        ({"a": {None: 1}}, TypeError, "`$.a`: map keys are text"),
        (1 + 2j, TypeError, "a complex has no JSON form"),
        ("\ud800", ValueError, "lone surrogate"),
        ((number for number in [1]), TypeError, "a generator has no JSON form"),
        (Slots(), TypeError, "a Slots has no JSON form"),
        (int, TypeError, "a type has no JSON form"),
        (Point, TypeError, "a type has no JSON form"),
        (len, TypeError, "has no JSON form"),
    ],
)
def test_everything_else_is_refused_with_its_path(calc, model, value, error, message):
    with pytest.raises(error) as raised:
        calc.held = value
    assert message in str(raised.value)
    with pytest.raises(error):
        calc.echo(value)
    assert model.calls == 0


def test_agents_outcomes_and_methods_come_with_a_hint(calc, model):
    outcome = calc.add(1, 2)
    for value, hint in ((outcome, r"\.value"), (calc, "runtime_context"), (calc.add, "call it")):
        with pytest.raises(TypeError, match=hint):
            calc.echo(value)
    assert model.calls == 1
    assert calc.echo(outcome.value).value == 3
    assert crossed(calc, calc.delegate("x").remember(a=1).runtime_context) == {"a": 1}


def test_cycles_and_deep_values_are_refused(calc):
    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="nested deeper than 64 levels, or contains itself"):
        calc.held = cycle
    loop: dict = {}
    loop["again"] = {"loop": loop}
    with pytest.raises(ValueError, match="contains itself"):
        calc.held = loop
    deep: list = []
    for _ in range(63):
        deep = [deep]
    calc.held = deep
    with pytest.raises(ValueError, match="64 levels"):
        calc.held = [deep]


def test_shared_structures_do_not_explode(calc):
    shared: list = [0]
    for _ in range(40):
        shared = [shared, shared]
    with pytest.raises(ValueError, match="more than 1000000 values"):
        calc.held = shared


def test_a_stranger_is_never_probed(calc):
    class Monster:
        def __getattribute__(self, name):
            raise AssertionError(f"probed for {name}")

    class Everything:
        def __getattr__(self, name):
            raise AssertionError(f"probed for {name}")

    for value in (Monster(), Everything(), [Everything()]):
        with pytest.raises(TypeError, match="has no JSON form"):
            calc.held = value


def test_a_dict_that_changes_while_it_is_converted_does_no_harm(calc):
    rows: dict = {}

    @dataclasses.dataclass
    class Sneaky:
        @property
        def x(self):
            return 1

    class Changing(enum.Enum):
        A = 1

        @property
        def value(self):
            rows["more"] = 1
            return 7

    rows["a"] = Changing.A
    assert crossed(calc, rows) == {"a": 7}


def test_numpy_objects_are_converted(calc):
    numpy = pytest.importorskip("numpy")
    for value, expected in (
        (numpy.int64(3), 3),
        (numpy.uint8(3), 3),
        (numpy.float32(0.5), 0.5),
        (numpy.float64(0.5), 0.5),
        (numpy.longdouble(0.5), 0.5),
        (numpy.bool_(True), True),
        (numpy.str_("x"), "x"),
        (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (numpy.array(7), 7),
        (numpy.array(["a", None], dtype=object), ["a", None]),
        (numpy.datetime64("2026-01-02T03:04:05"), "2026-01-02T03:04:05"),
        (numpy.datetime64("NaT"), None),
        (numpy.timedelta64(1500, "ms"), 1.5),
        (numpy.array(["2026-01-02", "NaT"], dtype="datetime64[D]"), ["2026-01-02", None]),
    ):
        assert crossed(calc, value) == expected, repr(value)
    with pytest.raises(ValueError, match="array of 2000000 values"):
        calc.held = numpy.zeros(2_000_000)
    with pytest.raises(TypeError, match=r"`\$\.a\[0\]`"):
        calc.held = {"a": numpy.array([1j])}


def test_pandas_objects_are_converted(calc):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": [1, 2], 7: ["a", "b"]}, index=["r1", "r2"])
    for value, expected in (
        (frame, [{"n": 1, "7": "a"}, {"n": 2, "7": "b"}]),
        (frame["n"], [1, 2]),
        (frame.index, ["r1", "r2"]),
        (pandas.Timestamp("2026-01-02T03:04:05"), "2026-01-02T03:04:05"),
        (pandas.NaT, None),
        (pandas.NA, None),
        (pandas.Timedelta(seconds=2), 2.0),
        (pandas.Series(pandas.to_datetime(["2026-01-02", None])), ["2026-01-02T00:00:00", None]),
    ):
        assert crossed(calc, value) == expected, repr(value)


def test_pydantic_models_are_converted(calc):
    pydantic = pytest.importorskip("pydantic")

    class Inner(pydantic.BaseModel):
        when: datetime.date

    class Outer(pydantic.BaseModel):
        name: str
        inner: Inner

    value = Outer(name="x", inner=Inner(when=datetime.date(2026, 1, 2)))
    assert crossed(calc, value) == {"name": "x", "inner": {"when": "2026-01-02"}}


def test_no_package_is_imported_for_a_conversion():
    code = """
import sys, cadenza
agent = cadenza.Runtime(model="library").agent("calculator")
before = set(sys.modules)
for value in (object(), {1, 2}, lambda: 1):
    try:
        agent.held = value
    except TypeError:
        pass
agent.held = {"a": (1, 2.5, None, "x")}
assert agent.held == {"a": [1, 2.5, None, "x"]}
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
