"""Reports this API process for the status page: which of its checks fail, and which bases it can reach. And
what its engines say of their load, for the capacity page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import redis.asyncio

from api.health import is_of_engines, reasons_not_ready
from api.services import Services
from engine.client import EngineClient
from sla.capacity.engine_loads import EngineLoad, StoreDisk, report_loads
from sla.status.sampling import ProcessReport, report_process, withdraw_process
from telemetry.disk import disk_space


class ProcessReporting:
    """One process under the name `name`."""

    def __init__(
        self,
        services: Services,
        client: redis.asyncio.Redis,
        name: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._services = services
        self._redis = client
        self._name = name
        self._clock = clock

    async def report(self) -> None:
        """Raises RedisError."""
        reasons = await reasons_not_ready(self._services)
        failing = [name for name, reason in reasons.items() if reason is not None and not is_of_engines(name)]
        bases = {pool.name: pool.engine.ready for pool in self._services.pools}
        await report_process(
            self._redis, self._name, ProcessReport(self._clock(), tuple(sorted(failing)), bases)
        )

    async def withdraw(self) -> None:
        """Takes the report back, as the process ends. Raises RedisError."""
        await withdraw_process(self._redis, self._name)


class CapacityReporting:
    """The engines of one process."""

    def __init__(
        self,
        services: Services,
        client: redis.asyncio.Redis,
        configs: Mapping[str, Path],
        store: Path | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`configs`: the `config.json` of each base. `store`: where the object store's files are; None with a
        bucket, which has no disk.
        """
        self._services = services
        self._redis = client
        self._configs = {name: path.read_text() for name, path in configs.items() if path.is_file()}
        self._store = store
        self._clock = clock

    async def report(self) -> None:
        """Raises RedisError."""
        now, disk = self._clock(), None
        if self._store is not None:
            space = await asyncio.to_thread(disk_space, self._store)
            disk = StoreDisk(now, space.total_bytes - space.free_bytes, space.total_bytes)
        loads = [
            load
            for pool in self._services.pools
            for client in pool.engine.clients
            if (load := self._load_of(client, pool.name, now)) is not None
        ]
        await report_loads(self._redis, loads, disk)

    def _load_of(self, client: EngineClient, base: str, now: float) -> EngineLoad | None:
        info, stats = client.info, client.stats
        if info is None or stats is None or not client.ready:
            return None
        return EngineLoad(
            engine_id=info.engine_id,
            incarnation=info.incarnation,
            base=base,
            at=now,
            device=stats.device,
            memory_bandwidth=stats.memory_bandwidth,
            quantization=info.quantization,
            kv_dtype=stats.kv_dtype,
            tensor_parallel=info.tensor_parallel,
            rows_total=stats.rows_total,
            slots_total=stats.slots_total,
            slots_resident=stats.slots_resident,
            blocks_total=stats.blocks_total,
            blocks_used=stats.blocks_used,
            adapter_bytes_total=stats.adapter_bytes_total,
            adapter_bytes_used=stats.adapter_bytes_used,
            prompt_tokens=stats.prompt_tokens,
            completion_tokens=stats.completion_tokens,
            requests=sum(stats.admitted.values()),
            base_config=self._configs.get(base, ""),
        )
