"""Background tasks end, whatever becomes of their first cancellation."""

import asyncio

import pytest

from telemetry import tasks
from telemetry.tasks import cancel, discard, gather_all, run_together


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_SECONDS", 0.01)


async def loses_cancellations(number: int) -> None:
    """As a client library that takes a cancellation for a lost connection, and tries again."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            number -= 1
            if number < 0:
                raise


async def fails() -> None:
    raise ValueError("broken")


async def test_a_task_that_loses_cancellations_ends() -> None:
    several = [asyncio.create_task(loses_cancellations(number)) for number in (0, 1, 3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await cancel(*several, None)
    assert all(task.cancelled() for task in several)


async def test_tasks_that_have_ended_are_left_alone() -> None:
    done = asyncio.create_task(asyncio.sleep(0, "result"))
    await done
    await cancel(done)
    assert done.result() == "result"


async def test_what_was_discarded_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    failing = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await discard(failing, asyncio.create_task(loses_cancellations(1)))
    del failing
    assert not caplog.records


async def test_the_first_failure_ends_the_rest() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await loses_cancellations(1)
        finally:
            ended.set()

    async with asyncio.timeout(5):
        with pytest.raises(ValueError, match="broken"):
            await run_together(waits(), fails())
    assert ended.is_set()


async def test_results_are_in_order() -> None:
    assert await gather_all(asyncio.sleep(0.01, 1), asyncio.sleep(0, "two")) == (1, "two")
    assert await run_together(asyncio.sleep(0.01, 1), asyncio.sleep(0, 2)) == [1, 2]


async def test_nothing_runs_on_after_a_failure_is_raised() -> None:
    ended: list[int] = []

    async def ends(number: int) -> None:
        await asyncio.sleep(0.01)
        ended.append(number)

    with pytest.raises(ValueError, match="broken"):
        await gather_all(ends(1), fails(), ends(2))
    assert ended == [1, 2]


async def test_a_cancelled_caller_cancels_all_of_it() -> None:
    waiting = [asyncio.create_task(loses_cancellations(0)) for _ in range(2)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await gather_all(*waiting)
    assert all(task.cancelled() for task in waiting)
