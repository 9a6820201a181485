"""One owner's tasks wait behind its own; slots and queues are given back however a task ends."""

from __future__ import annotations

import asyncio

import pytest

from adapters.inspection.owner_slots import OwnerSlots


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_flood_leaves_slots_to_others() -> None:
    slots, running, ended = OwnerSlots(3, 2), [], asyncio.Event()

    async def task(owner: str) -> None:
        async with slots.of(owner):
            running.append(owner)
            await ended.wait()

    tasks = [asyncio.create_task(task("a")) for _ in range(50)]
    await settle()
    assert running == ["a", "a"]
    tasks += [asyncio.create_task(task(owner)) for owner in "bc"]
    await settle()
    assert running == ["a", "a", "b"], "and no more than three at all"
    ended.set()
    await asyncio.gather(*tasks)
    assert running[3] == "c", "a newcomer stands in front of what the flood has left"
    assert not slots._queues, "owners are forgotten once they have no task"


async def test_tasks_that_fail_or_are_cancelled_give_their_slots_back() -> None:
    slots = OwnerSlots(1, 1)

    async def failing() -> None:
        async with slots.of("a"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    async with slots.of("b"):
        waiting = asyncio.create_task(failing())
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert not slots._queues
    async with slots.of("a"):
        pass
