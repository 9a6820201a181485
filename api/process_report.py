"""Reports this API process for the status page: which of its checks fail, and which bases it can reach."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis.asyncio

from api.health import is_of_engines, reasons_not_ready
from api.services import Services
from sla.status.sampling import ProcessReport, report_process, withdraw_process


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
