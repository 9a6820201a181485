"""What a replica loads before it takes requests, and how long that is waited for."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.gauges import EngineStats, adapter_key
from engine.protocol import AdapterRef, EngineInfo
from routing.demand import AdapterDemand
from routing.placement import Placement
from routing.warming import MAX_LOADED, KnownAdapters, warm

ADAPTERS = [AdapterRef(f"{number:016x}{'0' * 48}", 8) for number in range(200)]


class Engine:
    """Loads an adapter at each look at its statistics."""

    def __init__(self, reports: bool = True, slots: int = 64, loads: bool = True) -> None:
        self.info = EngineInfo("engine-0", "i1", "sapling", "0" * 64, "none", "cpu", 512, 511, 100, "test")
        self.ready = True
        self.asked: list[str] = []
        self.num_loaded = 0
        self._reports, self._slots, self._loads = reports, slots, loads

    def prefetch(self, adapter: AdapterRef) -> None:
        self.asked.append(adapter.digest)

    @property
    def stats(self) -> EngineStats:
        self.num_loaded += self._loads and self.num_loaded < min(len(self.asked), self._slots)
        loaded = self.asked[: self.num_loaded]
        resident = b"".join(map(adapter_key, loaded)) if self._reports else None
        return EngineStats("engine-0", "i1", slots_total=self._slots, resident=resident)


async def warmed(engine: Engine, num_adapters: int, within: float = 30.0) -> float:
    """Returns the seconds that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    client: Any = engine
    await warm(client, ADAPTERS[:num_adapters], within)
    return loop.time() - began


async def test_adapters_are_waited_for_as_far_as_they_fit() -> None:
    for slots, expected in ((64, 5), (3, 3)):
        engine = Engine(slots=slots)
        await warmed(engine, 5)
        assert engine.asked == [adapter.digest for adapter in ADAPTERS[:5]]
        assert engine.num_loaded == expected


async def test_an_engine_that_reports_no_adapters_is_not_waited_for() -> None:
    engine = Engine(reports=False)
    await warmed(engine, 5)
    assert len(engine.asked) == 5
    assert engine.num_loaded < 5


async def test_an_engine_that_cannot_load_is_waited_for_so_long() -> None:
    assert await warmed(Engine(loads=False), 5, within=0.2) >= 0.2


def test_the_adapters_used_last_are_known() -> None:
    placement = Placement(AdapterDemand())
    placement.join("a")
    known = KnownAdapters(max_known=100)
    for adapter in ADAPTERS:
        known.used(adapter)
    moving = known.moving_to("b", placement)
    assert 0 < len(moving) <= MAX_LOADED
    placement.join("b")
    assert all(placement.homes(adapter.digest) == ("b",) for adapter in moving)
    positions = [ADAPTERS.index(adapter) for adapter in moving]
    assert positions == sorted(positions, reverse=True)
    assert min(positions) >= 100
