"""Runs background responses in this API process: claims them, generates, and stores how they ended.

Every API process has a runner. The response of a process that dies is generated again by another, under the
same id and time of submission, so that the ledger has it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry

from api.metrics.background_work import BackgroundResponseMetrics
from api.responses.attempt import BackgroundAttempt
from api.responses.turns import state_of
from api.services import Services
from conversations.background.service import ClaimedResponse
from conversations.errors import LeaseLost
from db.errors import DatabaseUnavailable
from tenants.key_contexts import KeyContexts

TICK = 1.0
"""Seconds between two looks at the queue, and between two renewals of leases."""
MAX_RUNNING = 32
"""Background responses that a process runs at once."""

log = structlog.get_logger(__name__)


@dataclass
class _Running:
    claimed: ClaimedResponse
    task: asyncio.Task[None] = field(init=False)


class BackgroundRunner:
    """The background responses that one process runs. Call `start`, and `close` when the process ends.

    Args:
        process: a name that no other process has.
        clock: Unix seconds.
        metrics: of this process; None: they are not shown.
    """

    def __init__(
        self,
        services: Services,
        callers: KeyContexts,
        process: str,
        *,
        tick: float = TICK,
        clock: Callable[[], float] = time.time,
        metrics: BackgroundResponseMetrics | None = None,
    ) -> None:
        self._metrics = metrics or BackgroundResponseMetrics(CollectorRegistry())
        self._services = services
        self._queue = state_of(services).background
        self._callers = callers
        self._process = process
        self._tick = tick
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._woken = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    @property
    def num_running(self) -> int:
        return len(self._running)

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name="background responses")

    def wake(self) -> None:
        """Makes the runner look at the queue at once."""
        self._woken.set()

    async def close(self) -> None:
        """Stops all running responses and gives them back: another process generates them."""
        if self._loop is None:
            return
        self._loop.cancel()
        ids, tasks = list(self._running), [one.task for one in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait([self._loop, *tasks])
        if ids:
            with contextlib.suppress(DatabaseUnavailable):
                await self._queue.release(self._process, ids)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._tick)
            self._woken.clear()
            try:
                await self._renew()
                await self._claim()
            except DatabaseUnavailable as error:
                log.warning("background responses cannot be claimed at the moment", error=str(error))
            except Exception:
                log.exception("claiming background responses failed")

    async def _renew(self) -> None:
        held = {response_id: one.claimed.fence for response_id, one in self._running.items()}
        if not held:
            return
        for response_id in await self._queue.beat(self._process, held):
            one = self._running.get(response_id)
            if one is not None and one.claimed.fence == held[response_id]:
                one.task.cancel()

    async def _claim(self) -> None:
        room = MAX_RUNNING - len(self._running)
        if room <= 0 or not self._services.pools.ready:
            return
        for claimed in await self._queue.claim(self._process, room):
            if claimed.fence > 1:
                self._metrics.resumed.inc()
            one = _Running(claimed)
            one.task = asyncio.create_task(self._work(claimed), name=f"response {claimed.record.id}")
            self._running[claimed.record.id] = one

    async def _work(self, claimed: ClaimedResponse) -> None:
        response_id = claimed.record.id
        try:
            outcome = await BackgroundAttempt(self._services, self._callers, claimed, self._clock).run()
            self._metrics.ended(outcome)
        except LeaseLost:
            log.info("a background response is no longer this process's", id=response_id)
        except DatabaseUnavailable:
            log.warning("the end of a background response cannot be stored: it is run again", id=response_id)
        except Exception:
            log.exception("a background response failed", id=response_id)
        finally:
            self._running.pop(response_id, None)
            self._woken.set()
