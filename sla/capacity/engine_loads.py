"""Passes what engines report of their load from API processes to the worker that samples it, through Redis.

API processes know the engines and what they report twice a second; a worker samples every few minutes. Rates
are differences of counters: a counter that began anew says nothing of the time before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import redis.asyncio

from sla.capacity import resources
from sla.capacity.repository import Measured

LOADS = "rootstock:capacity:engines"
"""Redis hash: the latest load of each engine, by its id."""
STORE = "rootstock:capacity:store"
"""Redis key: the disk of the object store."""
BEFORE = "rootstock:capacity:before"
"""Redis key: the loads of the last sample, from which rates are computed."""
FRESH_S = 120.0
_encode = msgspec.msgpack.encode


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine reported. It goes between processes of two releases: fields are added with defaults."""

    engine_id: str
    incarnation: str
    base: str
    at: float
    """Unix seconds."""
    device: str = ""
    memory_bandwidth: float = 0.0
    """Bytes per second of a copy within the device's memory, as the engine measured it; 0: not known."""
    quantization: str = ""
    kv_dtype: str = ""
    tensor_parallel: int = 1
    rows_total: int = 0
    slots_total: int = 0
    slots_resident: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    adapter_bytes_total: int = 0
    adapter_bytes_used: int = 0
    prompt_tokens: int = 0
    """Counted since the engine's start, as the next two."""
    completion_tokens: int = 0
    requests: int = 0
    base_config: str = ""
    """The base's `config.json`."""


class StoreDisk(msgspec.Struct, frozen=True):
    """The file system that the object store is on."""

    at: float
    used: int
    total: int


_loads = msgspec.msgpack.Decoder(EngineLoad)
_many = msgspec.msgpack.Decoder(dict[str, EngineLoad])
_disk = msgspec.msgpack.Decoder(StoreDisk)


async def report_loads(
    client: redis.asyncio.Redis, loads: Iterable[EngineLoad], disk: StoreDisk | None
) -> None:
    """Stores the latest loads. Raises RedisError."""
    async with client.pipeline(transaction=False) as pipe:
        for load in loads:
            pipe.hset(LOADS, load.engine_id, _encode(load))
        if disk is not None:
            pipe.set(STORE, _encode(disk))
        await pipe.execute()


class LoadReader:
    """Reads loads, and computes rates against those of the last time. Its keys are of one worker's task."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._redis = client

    async def fresh(self, now: float) -> dict[str, EngineLoad]:
        """Returns the loads that are not older than `FRESH_S`; others are removed. Raises RedisError."""
        kept: dict[bytes, bytes] = await self._redis.hgetall(LOADS)  # type: ignore[assignment]
        loads = {name.decode(): _loads.decode(value) for name, value in kept.items()}
        for name, load in loads.items():
            if now - load.at > FRESH_S:
                await self._redis.hdel(LOADS, name)
        return {name: load for name, load in loads.items() if now - load.at <= FRESH_S}

    async def before(self) -> dict[str, EngineLoad]:
        kept: Any = await self._redis.get(BEFORE)
        return {} if kept is None else _many.decode(kept)

    async def keep(self, loads: Mapping[str, EngineLoad]) -> None:
        await self._redis.set(BEFORE, _encode(dict(loads)), ex=3600)

    async def disk(self, now: float) -> StoreDisk | None:
        kept: Any = await self._redis.get(STORE)
        found = None if kept is None else _disk.decode(kept)
        return found if found is not None and now - found.at <= FRESH_S else None


def measured(now: Mapping[str, EngineLoad], before: Mapping[str, EngineLoad]) -> list[Measured]:
    """Returns the samples of each base. Those of rates are of the time between the two."""
    found = []
    for base in sorted({load.base for load in now.values()}):
        loads = [load for load in now.values() if load.base == base]
        for resource, used, total in (
            (resources.BLOCKS, "blocks_used", "blocks_total"),
            (resources.ADAPTERS, "slots_resident", "slots_total"),
            (resources.ADAPTER_BYTES, "adapter_bytes_used", "adapter_bytes_total"),
        ):
            limit = sum(getattr(load, total) for load in loads)
            if limit:
                value = sum(getattr(load, used) for load in loads)
                found.append(Measured(base, resource.id, float(value), float(limit)))
        rates = [rate for load in loads if (rate := _rates(load, before.get(load.engine_id))) is not None]
        if len(rates) == len(loads):
            for place, resource in enumerate(
                (resources.PROMPT_RATE, resources.OUTPUT_RATE, resources.REQUEST_RATE)
            ):
                found.append(Measured(base, resource.id, sum(rate[place] for rate in rates), None))
    return found


def _rates(now: EngineLoad, before: EngineLoad | None) -> tuple[float, float, float] | None:
    """Returns prompt tokens, output tokens and requests per second; None for an engine that is new."""
    if before is None or before.incarnation != now.incarnation or now.at <= before.at:
        return None
    seconds = now.at - before.at
    return (
        (now.prompt_tokens - before.prompt_tokens) / seconds,
        (now.completion_tokens - before.completion_tokens) / seconds,
        (now.requests - before.requests) / seconds,
    )
