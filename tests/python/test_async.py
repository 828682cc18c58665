"""AsyncAgent on asyncio (product.md section 1)."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import threading
import time
import warnings
from collections.abc import Coroutine

import pytest

import cadenza
from cadenza import AsyncAgent, Outcome


@pytest.fixture
def acalc(runtime):
    return AsyncAgent.for_role("calculator", runtime=runtime)


def agent_on(model, **options):
    return AsyncAgent.for_role("tester", runtime=cadenza.Runtime(model=model, **options))


def test_ac_5_a_call_is_awaited(acalc, model):
    async def main():
        acalc.memory = 5
        assert acalc.memory == 5
        assert acalc.remember(mode="x") is acalc
        assert acalc.runtime_context == {"memory": 5, "mode": "x"}
        outcome = await acalc.add(2, 3)
        assert isinstance(outcome, Outcome)
        assert outcome.value == 5
        assert (await acalc.call("increment", 4)).value == 4
        tutor = acalc.delegate("tutor")
        assert isinstance(tutor, AsyncAgent)
        assert (await tutor.add(1, 1)).value == 2
        assert isinstance(acalc.tool("tutor"), AsyncAgent)
        assert acalc.responds_to("memory")
        return await acalc.boom()

    assert asyncio.run(main()).error_type == "execution"
    assert model.calls == 5, "the failed program was repaired once"


def test_every_constructor(runtime):
    for made in (
        AsyncAgent("calculator", runtime=runtime),
        getattr(AsyncAgent, "for")("calculator", runtime=runtime),
        runtime.async_agent("calculator"),
    ):
        assert isinstance(made, AsyncAgent)
        assert made.role == "calculator"


def test_a_call_is_a_coroutine(acalc):
    async def main():
        call = acalc.add(1, 2)
        assert asyncio.iscoroutine(call)
        assert isinstance(call, Coroutine)
        assert inspect.isawaitable(call)
        assert "not awaited yet" in repr(call)
        task = asyncio.create_task(call)
        assert "add" in repr(task)
        assert (await task).value == 3
        with pytest.raises(RuntimeError, match="awaited already"):
            await call
        results = await asyncio.gather(*(acalc.add(n, 1) for n in range(5)))
        assert [outcome.value for outcome in results] == [1, 2, 3, 4, 5]
        assert (await asyncio.wait_for(acalc.add(1, 1), 5)).value == 2
        assert (await asyncio.shield(acalc.add(1, 1))).value == 2
        done, pending = await asyncio.wait([asyncio.ensure_future(acalc.add(1, 1))], timeout=5)
        assert len(done) == 1 and not pending

    asyncio.run(main())
    assert asyncio.run(acalc.add(4, 5)).value == 9


def test_nothing_happens_before_a_call_is_awaited(acalc, model):
    async def main():
        call = acalc.add(1, 2)
        await asyncio.sleep(0.01)
        assert model.calls == 0
        call.close()
        with pytest.raises(RuntimeError, match="awaited already"):
            await call

    asyncio.run(main())
    assert model.calls == 0


def test_a_call_that_is_never_awaited_is_warned_about(acalc):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        acalc.add(1, 2)
        gc.collect()
    assert any('call of "add" was never awaited' in str(warning.message) for warning in caught)


def test_wrong_arguments_are_refused_at_the_call(acalc, model):
    with pytest.raises(TypeError, match="argument 1"):
        acalc.add(object())
    assert model.calls == 0


def test_without_a_loop_there_is_a_clear_error(acalc):
    call = acalc.add(1, 2)
    with pytest.raises(RuntimeError, match="no running event loop"):
        call.send(None)


def test_a_thousand_calls_wait_at_once():
    async def model(request):
        await asyncio.sleep(0.3)
        return "return args[1]"

    async def main():
        agents = [agent_on(model, reuse="off")]
        agents += [agents[0].delegate("tester") for _ in range(999)]
        start = time.monotonic()
        outcomes = await asyncio.gather(*(agent.echo(n) for n, agent in enumerate(agents)))
        assert [outcome.value for outcome in outcomes] == list(range(1000))
        return time.monotonic() - start

    assert asyncio.run(main()) < 20


def test_the_loop_is_free_while_calls_run():
    let_go = threading.Event()

    def model(request):
        assert let_go.wait(20)
        return "return 1"

    async def main():
        task = asyncio.create_task(agent_on(model).work())
        ticks = 0
        for _ in range(20):
            await asyncio.sleep(0.005)
            ticks += 1
        assert not task.done()
        let_go.set()
        assert (await task).value == 1
        return ticks

    assert asyncio.run(main()) == 20


def test_calls_of_one_agent_are_serialised(agent_of):
    running, most = 0, 0

    async def model(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return "return 1"

    async def main():
        agent = agent_on(model, reuse="off")
        await asyncio.gather(*(agent.work() for _ in range(5)))
        assert most == 1
        await asyncio.gather(*(agent.delegate("other").work() for _ in range(5)))
        assert most > 1

    asyncio.run(main())


def test_coroutine_models_run_on_the_callers_loop_and_context():
    tenant = contextvars.ContextVar("tenant")
    seen = []

    async def model(request):
        seen.append((asyncio.get_running_loop(), tenant.get("none"), threading.current_thread()))
        await asyncio.sleep(0)
        return "return 1"

    async def main():
        tenant.set("acme")
        assert (await agent_on(model).work()).ok
        assert seen == [(asyncio.get_running_loop(), "acme", threading.current_thread())]

    asyncio.run(main())


def test_coroutine_tools_run_on_the_callers_loop():
    loops = []

    async def fetch(n: int) -> int:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0.01)
        return n + 1

    async def main():
        agent = agent_on(lambda request: "return tools.fetch{n=args[1]}", tools=[fetch])
        agents = [agent] + [agent.delegate("tester") for _ in range(9)]
        outcomes = await asyncio.gather(*(one.use(n) for n, one in enumerate(agents)))
        assert [outcome.value for outcome in outcomes] == list(range(1, 11))
        assert set(loops) == {asyncio.get_running_loop()}

    asyncio.run(main())


def test_ac_9_a_failing_coroutine_model_is_a_provider_failure():
    async def model(request):
        await asyncio.sleep(0)
        raise ValueError("no")

    outcome = asyncio.run(agent_on(model).work())
    assert outcome.error_type == "provider"
    assert "ValueError: no" in outcome.error_message


def test_ac_14_a_slow_coroutine_model_is_given_up_and_cancelled():
    cancelled = threading.Event()

    async def model(request):
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def main():
        outcome = await agent_on(model, provider_timeout_seconds=0.1, max_generation_attempts=1).work()
        await asyncio.sleep(0.1)
        return outcome

    assert asyncio.run(main()).error_type == "timeout"
    assert cancelled.is_set()


def test_cancelling_a_task_cancels_the_call_and_it_is_recorded():
    started = threading.Event()

    async def model(request):
        started.set()
        await asyncio.sleep(20)

    async def main():
        runtime = cadenza.Runtime(model=model)
        task = asyncio.create_task(runtime.async_agent("tester").work())
        while not started.is_set():
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(200):
            if runtime.calls():
                break
            await asyncio.sleep(0.01)
        (record,) = runtime.calls()
        assert record["outcome_error_type"] == "interrupted"

    asyncio.run(main())


def test_a_timeout_around_a_call_cancels_it():
    async def main():
        runtime = cadenza.Runtime(model=lambda request: "while true do end", program_timeout_seconds=20)
        start = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(runtime.async_agent("tester").spin(), 0.1)
        assert time.monotonic() - start < 10
        for _ in range(200):
            if runtime.calls():
                break
            await asyncio.sleep(0.01)
        assert runtime.calls()[0]["outcome_error_type"] == "interrupted"

    asyncio.run(main())


def test_calls_end_quietly_when_their_loop_is_gone():
    let_go = threading.Event()

    def model(request):
        let_go.wait(20)
        return "return 1"

    async def main():
        asyncio.ensure_future(agent_on(model).work())
        await asyncio.sleep(0.05)

    asyncio.run(main())
    let_go.set()
    time.sleep(0.1)


def test_loops_in_several_threads():
    results = []

    def work(n):
        async def main():
            agent = agent_on(lambda request: "return args[1]")
            outcomes = await asyncio.gather(*(agent.echo(n * 100 + i) for i in range(20)))
            results.append([outcome.value for outcome in outcomes] == [n * 100 + i for i in range(20)])

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [True] * 4


def test_the_synchronous_agent_works_inside_a_running_loop(calc):
    async def main():
        return calc.add(1, 2)

    assert asyncio.run(main()).value == 3
