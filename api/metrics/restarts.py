"""Shows on /metrics how often `rootstock up` restarted its processes, as its supervisor counts them in
Redis.
"""

from __future__ import annotations

from collections.abc import Iterator

import redis.asyncio
from prometheus_client.core import CounterMetricFamily, Metric

from api.metrics.polled import PolledCollector

RESTARTS_KEY = "rootstock:restarts"
"""Redis hash: restarts by process."""


class RestartsCollector(PolledCollector):
    """Shows nothing under other supervisors, which count restarts themselves."""

    problem = "cannot read restarts"

    def __init__(self, client: redis.asyncio.Redis) -> None:
        super().__init__()
        self._client = client
        self._counts: dict[str, int] = {}

    async def ask(self) -> None:
        counts = await self._client.hgetall(RESTARTS_KEY)
        self._counts = {
            name.decode() if isinstance(name, bytes) else name: int(count) for name, count in counts.items()
        }

    def collect(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "rootstock_process_restarts",
            "Processes that ended unasked and were started again by rootstock up.",
            labels=["process"],
        )
        for process, count in sorted(self._counts.items()):
            restarts.add_metric([process], count)
        yield restarts
