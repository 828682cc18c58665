"""Programs as they are written: verbose=True, and the events of a call of an AsyncAgent."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
from conftest import Model

import cadenza
from cadenza import AsyncAgent, Runtime


def names(events):
    return [event["event"] for event in events]


async def collected(call):
    return [event async for event in call]


def err_with(capsys, words):
    """What stands on standard error once `words` stand there: a loaded machine prints a moment later."""
    shown, until = "", time.monotonic() + 10
    while words not in shown and time.monotonic() < until:
        shown += capsys.readouterr().err
        time.sleep(0.01)
    return shown + capsys.readouterr().err


def test_verbose_shows_programs_and_no_kept_ones(model, capsys):
    with Runtime(model=model, verbose=True) as runtime:
        calc = runtime.agent("calculator")
        assert calc.add(2, 3).value == 5
        program = "return args[1] + args[2]\n"
        assert err_with(capsys, program) == "-- calculator.add (attempt 1)\n" + program
        assert calc.add(4, 5).value == 9
        calc.boom()
        shown = err_with(capsys, "failed: execution, raised: ")
    assert "calculator.add" not in shown, "a kept program ran"
    assert shown.count('-- calculator.boom (attempt 1)\nerror("boom")\n') == 1
    assert "-- calculator.boom (attempt 1) failed: execution, raised: " in shown


def test_verbose_belongs_to_whom_it_is_given(model, capsys):
    with Runtime(model=model) as runtime:
        runtime.agent("quiet").add(2, 3)
        loud = runtime.agent("loud", verbose=True)
        loud.delegate("child").add(2, 3)
        loud.delegate("silent", verbose=False).add(2, 3)
        loud.last()
    shown = err_with(capsys, "loud.last")
    assert "child.add" in shown
    assert "quiet" not in shown
    assert "silent" not in shown


def test_a_bad_verbose_is_refused(model):
    with pytest.raises(cadenza.OptionError, match="verbose"):
        Runtime(model=model, verbose="loudly")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stream_that_raises_breaks_no_call(model, monkeypatch):
    class Broken:
        def write(self, text):
            raise OSError("no")

        def flush(self):
            raise OSError("no")

    with Runtime(model=model, verbose=True) as runtime:
        monkeypatch.setattr(sys, "stderr", Broken())
        assert runtime.agent("calculator").add(2, 3).value == 5
        monkeypatch.setattr(sys, "stderr", None)
        assert runtime.agent("calculator").echo(2).value == 2


def test_a_call_is_iterated_for_its_events(runtime):
    async def main():
        return await collected(AsyncAgent.for_role("calculator", runtime=runtime).add(2, 3))

    started, piece, done = asyncio.run(main())
    assert started["event"] == "attempt_started"
    assert (started["role"], started["method"], started["depth"], started["attempt"]) == ("calculator", "add", 0, 1)
    assert piece["event"] == "piece"
    assert (piece["kind"], piece["text"], piece["dropped"]) == ("program", "return args[1] + args[2]", 0)
    assert done["event"] == "done"
    assert done["outcome"].value == 5
    assert done["outcome"].metadata["call_id"] == started["call_id"] == piece["call_id"]


def test_a_kept_program_has_only_its_outcome(runtime):
    async def main():
        agent = AsyncAgent.for_role("calculator", runtime=runtime)
        await agent.add(2, 3)
        return await collected(agent.call("add", 4, 5))

    (done,) = asyncio.run(main())
    assert done["outcome"].value == 9


def test_failed_attempts_and_nested_calls_are_events():
    replies = {
        "work": ["return (", "return Agent.for_role('helper'):assist().value"],
        "assist": "return 'done'",
    }

    async def main():
        with Runtime(model=Model(replies)) as runtime:
            return await collected(AsyncAgent.for_role("tester", runtime=runtime).work())

    events = asyncio.run(main())
    attempt, failed = ["attempt_started", "piece"], "attempt_failed"
    # A callable tells a program when it is whole: one that does not compile is never told.
    assert names(events) == ["attempt_started", failed, *attempt, *attempt, "done"]
    assert (events[1]["stage"], events[1]["error_class"], events[1]["attempt"]) == ("adapter", "SYNTAX", 1)
    nested = [event for event in events if event.get("depth") == 1]
    assert [event["role"] for event in nested] == ["helper", "helper"]
    assert events[-1]["outcome"].value == "done"


def test_leaving_the_loop_cancels_the_call():
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def model(request):
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def main():
        with Runtime(model=model) as runtime:
            async for event in AsyncAgent.for_role("calculator", runtime=runtime).add(2, 3):
                assert event["event"] == "attempt_started"
                # The model is told of the call and of its end by the loop: let it begin.
                await asyncio.wait_for(started.wait(), 5)
                break
            await asyncio.wait_for(cancelled.wait(), 5)
            until = time.monotonic() + 5
            while not (calls := runtime.calls()) and time.monotonic() < until:
                await asyncio.sleep(0.01)
            return calls

    (call,) = asyncio.run(main())
    assert call["agent_outcome"] == "INTERRUPTED"


def test_cancelling_the_task_that_iterates_cancels_the_call():
    async def model(request):
        await asyncio.sleep(60)

    async def main():
        with Runtime(model=model) as runtime:
            agent = AsyncAgent.for_role("calculator", runtime=runtime)
            task = asyncio.ensure_future(collected(agent.add(2, 3)))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            until = time.monotonic() + 5
            while not (calls := runtime.calls()) and time.monotonic() < until:
                await asyncio.sleep(0.01)
            return calls

    (call,) = asyncio.run(main())
    assert call["agent_outcome"] == "INTERRUPTED"


def test_a_call_is_awaited_or_iterated_and_once(runtime):
    async def main():
        agent = AsyncAgent.for_role("calculator", runtime=runtime)
        call = agent.add(2, 3)
        assert (await call).value == 5
        with pytest.raises(RuntimeError, match="awaited or iterated already"):
            call.__aiter__()
        call = agent.add(2, 3)
        events = call.__aiter__()
        with pytest.raises(RuntimeError, match="already"):
            await call
        assert names([event async for event in events])[-1] == "done"
        with pytest.raises(StopAsyncIteration):
            await events.__anext__()

    asyncio.run(main())


def test_a_slow_consumer_holds_up_no_call(runtime):
    async def main():
        agent = AsyncAgent.for_role("calculator", runtime=runtime)
        events = agent.add(2, 3).__aiter__()
        first = await events.__anext__()
        assert first["event"] == "attempt_started"
        # Nobody takes the others, and the call ends all the same.
        until = time.monotonic() + 5
        while not runtime.calls() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert runtime.calls()[0]["value"] == 5
        return [event async for event in events]

    assert names(asyncio.run(main())) == ["piece", "done"]


def test_what_ends_programs_ends_the_iteration():
    def model(request):
        raise KeyboardInterrupt

    async def main():
        with Runtime(model=model) as runtime:
            await collected(AsyncAgent.for_role("calculator", runtime=runtime).add(2, 3))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


def test_many_calls_are_iterated_at_once(runtime):
    async def main():
        agents = [AsyncAgent.for_role(f"calculator{n}", runtime=runtime) for n in range(50)]
        return await asyncio.gather(*(collected(agent.add(n, 1)) for n, agent in enumerate(agents)))

    for n, events in enumerate(asyncio.run(main())):
        assert names(events) == ["attempt_started", "piece", "done"]
        assert events[-1]["outcome"].value == n + 1
        assert {event["role"] for event in events[:-1]} == {f"calculator{n}"}
