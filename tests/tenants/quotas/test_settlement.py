"""What is told of reservations that ended, over a connection that the test lets fail."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tenants.limits.kinds import Amounts, Metric
from tenants.quotas import settlement
from tenants.quotas.plan import CompiledPlan, compile_plan
from tenants.quotas.redis_connection import RedisDown, ReplyError
from tenants.quotas.reservation import Reservation
from tenants.quotas.scripts import UNKNOWN, Scripts
from tenants.quotas.settlement import Settlements
from tests.tenants.quotas.conftest import TENANT, limit

SCRIPTS = Scripts()
PLAN = compile_plan(SCRIPTS, TENANT, [limit(Metric.CONCURRENT_REQUESTS, 3)])
USED = Amounts(1, 2, 3, 4)


class FakeConnection:
    """Remembers what is called; the test answers."""

    def __init__(self) -> None:
        self.is_up = True
        self.lost_at = 0.0
        self.calls: list[tuple[bytes, asyncio.Future[Any]]] = []

    def call(self, packed: bytes, *, urgent: bool = False) -> asyncio.Future[Any]:
        if not self.is_up:
            raise RedisDown("not connected")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((packed, future))
        return future

    async def answer(self, value: Any = 1) -> None:
        """To all that wait."""
        for _, future in self.calls:
            if not future.done():
                if isinstance(value, Exception):
                    future.set_exception(value)
                else:
                    future.set_result(value)
        await asyncio.sleep(0)

    async def lose(self) -> None:
        self.is_up, self.lost_at = False, time.monotonic()
        await self.answer(RedisDown("lost"))

    def told(self) -> list[bytes]:
        """Ids of reservations that were told since last asked."""
        calls, self.calls = self.calls, []
        return [name for packed, _ in calls for name in (b"req-a", b"req-b") if name in packed]


class Site:
    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.taken_again: list[str] = []
        self.settlements = Settlements(self.connection, SCRIPTS, self._reserve_again)  # type: ignore[arg-type]
        assert PLAN is not None
        self.plan: CompiledPlan = PLAN

    async def _reserve_again(self, reservation: Reservation) -> None:
        self.taken_again.append(reservation.request_id)

    def settle(self, name: str) -> None:
        self.settlements.settle(Reservation(name, USED, USED, 1, self.plan), self.plan, USED)


@pytest.fixture
async def site() -> Site:
    return Site()


async def test_what_redis_took_just_before_it_died_is_told_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have come back without its last seconds."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    site.settle("req-a")
    await site.connection.answer()
    now += 2.0
    site.settle("req-b")
    await site.connection.answer()
    assert site.connection.told() == [b"req-a", b"req-b"]
    now += settlement.FORGET_AFTER - 0.5
    await site.connection.lose()
    now += 1.0
    site.connection.is_up = True
    site.settlements.resend()
    assert site.connection.told() == [b"req-b"], "the other was on the disk by then"


async def test_all_that_redis_took_within_its_last_seconds_is_told_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for name in ("req-a", "req-b"):
        site.settle(name)
        await site.connection.answer()
        now += 1.0
    site.connection.told()
    await site.connection.lose()
    site.connection.is_up = True
    site.settlements.resend()
    assert site.connection.told() == [b"req-a", b"req-b"]


async def test_what_was_told_so_long_ago_that_redis_has_forgotten_it_is_not_told_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be charged a second time."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    site.settle("req-a")
    await site.connection.answer()
    await site.connection.lose()
    site.connection.told()
    now += settlement.REMEMBERED_FOR + 1
    site.connection.is_up = True
    site.settlements.resend()
    assert site.connection.told() == []


async def test_what_ends_while_redis_is_away_is_told_when_it_is_back(site: Site) -> None:
    await site.connection.lose()
    site.settle("req-a")
    assert site.connection.told() == []
    site.connection.is_up = True
    site.settlements.resend()
    assert site.connection.told() == [b"req-a"]


async def test_what_was_not_answered_is_told_again(site: Site) -> None:
    site.settle("req-a")
    await site.connection.lose()
    site.connection.told()
    site.connection.is_up = True
    site.settlements.resend()
    assert site.connection.told() == [b"req-a"]


async def test_what_redis_has_lost_is_made_again_and_settled(site: Site) -> None:
    site.settle("req-a")
    await site.connection.answer(UNKNOWN)
    site.connection.told()
    await asyncio.sleep(0.01)
    assert site.taken_again == ["req-a"]
    assert site.connection.told() == [b"req-a"]


async def test_a_repair_is_tried_once(site: Site) -> None:
    site.settle("req-a")
    await site.connection.answer(UNKNOWN)
    await asyncio.sleep(0.01)
    await site.connection.answer(UNKNOWN)
    await asyncio.sleep(0.01)
    assert site.taken_again == ["req-a"]


async def test_what_was_withdrawn_need_not_be_known(site: Site) -> None:
    """Whether the reservation was made is not known: where it was not, there is nothing to make again."""
    reservation = Reservation("req-a", USED, USED, 1, site.plan)
    site.settlements.withdraw(reservation)
    assert reservation.ended
    (packed, _), *_ = site.connection.calls
    nothing = SCRIPTS.settle(site.plan.tag, b"req-a", (0, 0, 0, 0), memory_ms=settlement.MEMORY_MS)
    assert packed == nothing, "all of it is returned"
    await site.connection.answer(UNKNOWN)
    await asyncio.sleep(0.01)
    assert site.taken_again == []


async def test_what_is_withdrawn_while_the_link_is_lost_is_told_when_it_is_back(site: Site) -> None:
    await site.connection.lose()
    site.settlements.withdraw(Reservation("req-a", USED, USED, 1, site.plan))
    site.connection.is_up = True
    site.settlements.resend()
    assert site.connection.told() == [b"req-a"]


async def test_a_redis_that_refuses_is_asked_again_soon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "RETRY_AFTER", 0.01)
    site.settle("req-a")
    await site.connection.answer(ReplyError("NOSCRIPT"))
    site.connection.told()
    await asyncio.sleep(0.05)
    assert any(b"LOAD" in packed for packed, _ in site.connection.calls), "its scripts may be gone"
    assert site.connection.told() == [b"req-a"]


async def test_so_many_are_kept_and_the_oldest_are_left_to_the_journal(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "MAX_UNSENT", 1)
    await site.connection.lose()
    site.settle("req-a")
    site.settle("req-b")
    site.connection.is_up = True
    site.settlements.resend()
    assert site.connection.told() == [b"req-b"]


async def test_closing_waits_for_answers(site: Site) -> None:
    site.settle("req-a")
    draining = asyncio.create_task(site.settlements.drain(5.0))
    await asyncio.sleep(0.01)
    assert not draining.done()
    await site.connection.answer()
    await asyncio.wait_for(draining, 1.0)
