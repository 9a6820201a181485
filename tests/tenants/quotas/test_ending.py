"""What is told of reservations that ended, over a link that the test lets fail."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tenants.limits.kinds import Amounts, Metric
from tenants.quotas import ending
from tenants.quotas.ending import Endings
from tenants.quotas.link import LinkDown, ReplyError
from tenants.quotas.plan import CompiledPlan, compile_plan
from tenants.quotas.reservation import Reservation
from tenants.quotas.scripts import UNKNOWN, Scripts
from tests.tenants.quotas.conftest import TENANT, limit

SCRIPTS = Scripts()
PLAN = compile_plan(SCRIPTS, TENANT, [limit(Metric.CONCURRENT_REQUESTS, 3)])
USED = Amounts(1, 2, 3, 4)


class Link:
    """Remembers what is called; the test answers."""

    def __init__(self) -> None:
        self.up = True
        self.lost_at = 0.0
        self.calls: list[tuple[bytes, asyncio.Future[Any]]] = []

    def call(self, packed: bytes, *, urgent: bool = False) -> asyncio.Future[Any]:
        if not self.up:
            raise LinkDown("not connected")
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
        self.up, self.lost_at = False, time.monotonic()
        await self.answer(LinkDown("lost"))

    def told(self) -> list[bytes]:
        """Ids of reservations that were told since last asked."""
        calls, self.calls = self.calls, []
        return [name for packed, _ in calls for name in (b"req-a", b"req-b") if name in packed]


class Site:
    def __init__(self) -> None:
        self.link = Link()
        self.taken_again: list[str] = []
        self.endings = Endings(self.link, SCRIPTS, self._take_again)  # type: ignore[arg-type]
        assert PLAN is not None
        self.plan: CompiledPlan = PLAN

    async def _take_again(self, reservation: Reservation) -> None:
        self.taken_again.append(reservation.request_id)

    def settle(self, name: str) -> None:
        self.endings.settle(Reservation(name, USED, USED, 1, self.plan), self.plan, USED)


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
    await site.link.answer()
    now += 2.0
    site.settle("req-b")
    await site.link.answer()
    assert site.link.told() == [b"req-a", b"req-b"]
    now += ending.FORGET_AFTER - 0.5
    await site.link.lose()
    now += 1.0
    site.link.up = True
    site.endings.tell_again()
    assert site.link.told() == [b"req-b"], "the other was on the disk by then"


async def test_all_that_redis_took_within_its_last_seconds_is_told_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for name in ("req-a", "req-b"):
        site.settle(name)
        await site.link.answer()
        now += 1.0
    site.link.told()
    await site.link.lose()
    site.link.up = True
    site.endings.tell_again()
    assert site.link.told() == [b"req-a", b"req-b"]


async def test_what_was_told_so_long_ago_that_redis_has_forgotten_it_is_not_told_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be charged a second time."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    site.settle("req-a")
    await site.link.answer()
    await site.link.lose()
    site.link.told()
    now += ending.REMEMBERED_FOR + 1
    site.link.up = True
    site.endings.tell_again()
    assert site.link.told() == []


async def test_what_ends_while_redis_is_away_is_told_when_it_is_back(site: Site) -> None:
    await site.link.lose()
    site.settle("req-a")
    assert site.link.told() == []
    site.link.up = True
    site.endings.tell_again()
    assert site.link.told() == [b"req-a"]


async def test_what_was_not_answered_is_told_again(site: Site) -> None:
    site.settle("req-a")
    await site.link.lose()
    site.link.told()
    site.link.up = True
    site.endings.tell_again()
    assert site.link.told() == [b"req-a"]


async def test_what_redis_has_lost_is_made_again_and_settled(site: Site) -> None:
    site.settle("req-a")
    await site.link.answer(UNKNOWN)
    site.link.told()
    await asyncio.sleep(0.01)
    assert site.taken_again == ["req-a"]
    assert site.link.told() == [b"req-a"]


async def test_a_repair_is_tried_once(site: Site) -> None:
    site.settle("req-a")
    await site.link.answer(UNKNOWN)
    await asyncio.sleep(0.01)
    await site.link.answer(UNKNOWN)
    await asyncio.sleep(0.01)
    assert site.taken_again == ["req-a"]


async def test_what_was_withdrawn_need_not_be_known(site: Site) -> None:
    """Whether the reservation was made is not known: where it was not, there is nothing to make again."""
    reservation = Reservation("req-a", USED, USED, 1, site.plan)
    site.endings.withdraw(reservation)
    assert reservation.ended
    (packed, _), *_ = site.link.calls
    nothing = SCRIPTS.settle(site.plan.tag, b"req-a", (0, 0, 0, 0), memory_ms=ending.MEMORY_MS)
    assert packed == nothing, "all of it is returned"
    await site.link.answer(UNKNOWN)
    await asyncio.sleep(0.01)
    assert site.taken_again == []


async def test_what_is_withdrawn_while_the_link_is_lost_is_told_when_it_is_back(site: Site) -> None:
    await site.link.lose()
    site.endings.withdraw(Reservation("req-a", USED, USED, 1, site.plan))
    site.link.up = True
    site.endings.tell_again()
    assert site.link.told() == [b"req-a"]


async def test_a_redis_that_refuses_is_asked_again_soon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "RETRY_AFTER", 0.01)
    site.settle("req-a")
    await site.link.answer(ReplyError("NOSCRIPT"))
    site.link.told()
    await asyncio.sleep(0.05)
    assert any(b"LOAD" in packed for packed, _ in site.link.calls), "its scripts may be gone"
    assert site.link.told() == [b"req-a"]


async def test_so_many_are_kept_and_the_oldest_are_left_to_the_journal(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "MAX_UNTOLD", 1)
    await site.link.lose()
    site.settle("req-a")
    site.settle("req-b")
    site.link.up = True
    site.endings.tell_again()
    assert site.link.told() == [b"req-b"]


async def test_closing_waits_for_answers(site: Site) -> None:
    site.settle("req-a")
    draining = asyncio.create_task(site.endings.drain(5.0))
    await asyncio.sleep(0.01)
    assert not draining.done()
    await site.link.answer()
    await asyncio.wait_for(draining, 1.0)
