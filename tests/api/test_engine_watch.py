"""Engines as all API processes together see them: who asks, how often, and what counts when they differ."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
import redis.asyncio

from api import engine_watch
from api.engine_watch import LOOKED, REPORTS, TURN, EngineWatch
from engine.gauges import EngineStats, EngineView
from engine.protocol import EngineInfo
from tests.support.waiting import eventually


class Engine:
    """What the watch asks of a client."""

    def __init__(self, engine_id: str, endpoint: str = "") -> None:
        self.endpoint = endpoint or f"ipc:///{engine_id}"
        self.stats = EngineStats(engine_id, "i1")
        self.info: EngineInfo | None = EngineInfo(
            engine_id, "i1", "sapling", "0" * 64, "none", "cpu", 512, 511, 100, "test"
        )
        self.ready = True
        self.is_starting = False
        self.num_asked = 0

    async def inspect(self, within: float) -> EngineView | None:
        if not self.ready:
            return None
        self.num_asked += 1
        now = time.time()
        return EngineView(
            self.stats, now, now, 2048, 16, 0, [0] * 3, [0] * 3, [0.0] * 3, 0.0, 0.0, [], [], [], 0, {}
        )


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


def watch(engine: Engine, cache: redis.asyncio.Redis, clock: Clock) -> EngineWatch:
    return EngineWatch(lambda: [engine], cache, clock)  # type: ignore[arg-type]


async def test_an_engine_is_asked_only_while_somebody_looks(
    redis_client: redis.asyncio.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_watch, "INTERVAL", 0.02)
    monkeypatch.setattr(engine_watch, "_TURN_MS", 10)
    engine = Engine("engine-0")
    watching = watch(engine, redis_client, clock)
    await watching.start()
    try:
        await asyncio.sleep(0.3)
        assert engine.num_asked == 0
        (report,) = await watching.look()
        assert (report.key, report.state) == ("engine-0", "serving"), "at the first look"
        assert engine.num_asked > 0
        await eventually(lambda: engine.num_asked > 3, seconds=20)
        await redis_client.delete(LOOKED)
        await asyncio.sleep(0.1)
        asked = engine.num_asked
        await asyncio.sleep(0.3)
        assert engine.num_asked <= asked + 1, "one may have been under way"
    finally:
        await watching.close()


async def test_of_several_processes_on_one_engine_one_asks(
    redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    engines = [Engine("engine-0") for _ in range(4)]
    seen = await asyncio.gather(*(watch(engine, redis_client, clock).look() for engine in engines))
    assert sum(engine.num_asked for engine in engines) == 1
    assert {report.key for reports in seen for report in reports} <= {"engine-0"}
    assert [one.key for one in await watch(engines[0], redis_client, clock).look()] == ["engine-0"]


async def test_every_process_shows_every_engine(redis_client: redis.asyncio.Redis, clock: Clock) -> None:
    first, second = Engine("engine-0"), Engine("engine-1")
    second.stats = msgspec.structs.replace(second.stats, draining=True)
    watching = [watch(engine, redis_client, clock) for engine in (first, second)]
    for one in watching:
        await one.report()
    for one in watching:
        reports = await one.look()
        assert [(report.key, report.state) for report in reports] == [
            ("engine-0", "serving"),
            ("engine-1", "draining"),
        ]


async def test_what_one_process_has_lost_another_may_still_see(
    redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    seeing, blind = Engine("engine-0"), Engine("engine-0")
    blind.ready = False
    await watch(seeing, redis_client, clock).look()
    await redis_client.delete(LOOKED)
    (report,) = await watch(blind, redis_client, clock).look()
    assert report.state == "serving"
    clock.ahead += 10  # the other process says nothing more of it
    await redis_client.delete(LOOKED)
    (report,) = await watch(blind, redis_client, clock).look()
    assert report.state == "gone"
    assert report.view is not None, "the last that was seen of it"
    lost_at = report.since
    clock.ahead += 10
    await redis_client.delete(LOOKED)
    (report,) = await watch(blind, redis_client, clock).look()
    assert report.since == lost_at


async def test_an_engine_that_no_process_tells_of_is_gone_and_after_a_day_is_none(
    redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    lonely, other = Engine("engine-0"), Engine("engine-1")
    await watch(lonely, redis_client, clock).look()
    watching = watch(other, redis_client, clock)
    clock.ahead += 60
    await redis_client.delete(LOOKED)
    states = {report.key: report.state for report in await watching.look()}
    assert states == {"engine-0": "serving", "engine-1": "serving"}, "its process has hardly been asked"
    clock.ahead += 4
    states = {report.key: report.state for report in await watching.look()}
    assert states["engine-0"] == "gone"
    clock.ahead += 25 * 3600
    await redis_client.delete(LOOKED, TURN.format("engine-1"))  # by the servers' clock they hold for a second
    assert [report.key for report in await watching.look()] == ["engine-1"]
    assert not await redis_client.hexists(REPORTS, "engine-0")


async def test_an_engine_goes_by_its_endpoint_until_it_says_who_it_is(
    redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    engine = Engine("engine-0", "tcp://10.0.0.1:5555")
    known, engine.info, engine.ready, engine.is_starting = engine.info, None, False, True
    watching = watch(engine, redis_client, clock)
    (report,) = await watching.look()
    assert (report.key, report.state, report.view) == ("tcp://10.0.0.1:5555", "starting", None)
    engine.info, engine.ready = known, True
    await redis_client.delete(LOOKED)
    (report,) = await watching.look()
    assert (report.key, report.state) == ("engine-0", "serving")


async def test_a_process_reports_all_of_its_engines(redis_client: redis.asyncio.Redis, clock: Clock) -> None:
    engines: Any = [Engine(f"engine-{number}") for number in range(3)]
    engines[1].ready = False
    reports = await EngineWatch(lambda: engines, redis_client, clock).look()
    assert [(report.key, report.state) for report in reports] == [
        ("engine-0", "serving"),
        ("engine-1", "gone"),
        ("engine-2", "serving"),
    ]


async def test_what_cannot_be_read_is_left_out(redis_client: redis.asyncio.Redis, clock: Clock) -> None:
    await redis_client.hset(REPORTS, "engine-9", b"of another release")
    assert [report.key for report in await watch(Engine("engine-0"), redis_client, clock).look()] == [
        "engine-0"
    ]
