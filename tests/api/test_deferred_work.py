"""What is put off until answers are out is done: soon, in order, all of it."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from api.deferred_work import MOST, DeferredWork
from tests.support.waiting import eventually


async def test_work_waits_for_the_next_turn_and_keeps_its_order() -> None:
    deferred_work, done = DeferredWork(), list[int]()
    for number in range(3):
        deferred_work.add(done.append, number)
    assert done == []
    await asyncio.sleep(0)
    assert done == [0, 1, 2]


async def test_work_may_be_put_off_until_there_is_enough_of_it() -> None:
    deferred_work, done = DeferredWork(60.0), list[int]()
    for number in range(MOST - 1):
        deferred_work.add(done.append, number)
    await asyncio.sleep(0.01)
    assert done == []
    deferred_work.add(done.append, MOST - 1)
    assert done == list(range(MOST))
    deferred_work.add(done.append, MOST)
    deferred_work.run()
    assert done == list(range(MOST + 1)), "whoever looks has it done first"


async def test_work_is_not_put_off_for_longer_than_said() -> None:
    deferred_work, done = DeferredWork(0.01), list[int]()
    for number in range(2):
        deferred_work.add(done.append, number)
        await eventually(lambda: len(done) == number + 1)  # noqa: B023


async def test_what_fails_takes_nothing_else_with_it() -> None:
    deferred_work, done = DeferredWork(), list[int]()

    def fail() -> None:
        raise ValueError("nobody hears")

    with capture_logs() as lines:
        deferred_work.add(fail)
        deferred_work.add(done.append, 1)
        deferred_work.run()
    assert done == [1]
    assert [(line["log_level"], "fail" in line["work"]) for line in lines] == [("error", True)]


async def test_work_that_adds_work_has_it_done_later() -> None:
    deferred_work, done = DeferredWork(), list[int]()
    deferred_work.add(lambda: deferred_work.add(done.append, 1))
    deferred_work.run()
    assert done == []
    await asyncio.sleep(0)
    assert done == [1]
