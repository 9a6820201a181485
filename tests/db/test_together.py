from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from db.batch_loader import MAX_KEYS, MAX_QUERIES, BatchLoader
from tests.support.waiting import eventually


class Table:
    """What is looked up, and by which queries. `gate` holds them up."""

    def __init__(self) -> None:
        self.rows = {number: f"row {number}" for number in range(0, 1000, 2)}
        self.queries: list[list[int]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def look_up(self, keys: Sequence[int]) -> dict[int, str]:
        self.queries.append(list(keys))
        found = {key: self.rows[key] for key in keys if key in self.rows}
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return found


@pytest.fixture
def table() -> Table:
    return Table()


async def test_what_is_asked_in_one_turn_is_one_query(table: Table) -> None:
    table.gate.set()
    together = BatchLoader(table.look_up)
    assert await asyncio.gather(*map(together.get, (2, 3, 4, 2))) == ["row 2", None, "row 4", "row 2"]
    assert table.queries == [[2, 3, 4]]


async def test_what_comes_meanwhile_goes_with_the_next(table: Table) -> None:
    together = BatchLoader(table.look_up)
    asked = []
    for number in range(MAX_QUERIES + 10):
        asked.append(asyncio.create_task(together.get(2 * number)))
        await asyncio.sleep(0.002)
    assert len(table.queries) == MAX_QUERIES, "so many at once"
    table.gate.set()
    assert await asyncio.gather(*asked) == [f"row {2 * number}" for number in range(MAX_QUERIES + 10)]
    assert len(table.queries) == MAX_QUERIES + 1
    assert len(table.queries[-1]) == 10


async def test_nobody_is_answered_by_a_query_that_began_before(table: Table) -> None:
    together = BatchLoader(table.look_up)
    early = asyncio.create_task(together.get(2))
    await eventually(lambda: len(table.queries) == 1)
    table.rows[2] = "new"
    late = asyncio.create_task(together.get(2))
    await eventually(lambda: len(table.queries) == 2)
    table.gate.set()
    assert (await early, await late) == ("row 2", "new")


async def test_a_query_has_a_bound(table: Table) -> None:
    table.gate.set()
    together = BatchLoader(table.look_up)
    await asyncio.gather(*map(together.get, range(MAX_KEYS + 5)))
    assert [len(query) for query in table.queries] == [MAX_KEYS, 5]


async def test_a_failure_is_told_to_all_it_concerns(table: Table) -> None:
    table.gate.set()
    table.error = RuntimeError("no table")
    together = BatchLoader(table.look_up)
    asked = await asyncio.gather(together.get(2), together.get(4), return_exceptions=True)
    assert asked == [table.error, table.error]
    table.error = None
    assert await together.get(2) == "row 2"


async def test_those_who_have_gone_are_not_looked_up(table: Table) -> None:
    together = BatchLoader(table.look_up)
    running = [asyncio.create_task(together.get(2 * number)) for number in range(MAX_QUERIES)]
    await eventually(lambda: table.queries != [])
    waiting = [asyncio.create_task(together.get(number)) for number in (10, 12)]
    gone = asyncio.create_task(together.get(99))
    await asyncio.sleep(0)
    gone.cancel()
    running[0].cancel()
    table.gate.set()
    assert await asyncio.gather(*waiting) == ["row 10", "row 12"]
    assert all(99 not in query for query in table.queries)


async def test_a_crowd_that_has_gone_hides_nobody(table: Table) -> None:
    table.gate.set()
    together = BatchLoader(table.look_up)
    crowd = [asyncio.create_task(together.get(number)) for number in range(1, 2 * MAX_KEYS, 2)]
    last = asyncio.create_task(together.get(2))
    for one in crowd:
        asyncio.get_running_loop().call_soon(one.cancel)
    assert await asyncio.wait_for(last, 5) == "row 2"


async def test_closing_leaves_nobody_waiting(table: Table) -> None:
    together = BatchLoader(table.look_up)
    asked = [asyncio.create_task(together.get(number)) for number in range(10)]
    await eventually(lambda: table.queries != [])
    asked.append(asyncio.create_task(together.get(11)))
    await asyncio.sleep(0)
    await together.close()
    await asyncio.wait(asked, timeout=5)
    assert all(one.cancelled() for one in asked)
