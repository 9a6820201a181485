"""Sends settlements of reservations to Redis, and resends them until they are acknowledged and durable.

Settlements of one event-loop iteration share one packet. Redis can lose its last second of writes when it
dies, so after a reconnection those acknowledged shortly before are sent again. The script is idempotent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from tenants.limits.kinds import NOTHING, Amounts
from tenants.quotas.plan import CompiledPlan
from tenants.quotas.redis_connection import RedisConnection, RedisDown, ReplyError
from tenants.quotas.reservation import Reservation
from tenants.quotas.scripts import UNKNOWN, Scripts

log = structlog.get_logger(__name__)

MAX_UNSENT = 100_000
"""Number of unsent settlements above which the oldest are dropped; the usage journal settles them."""
FORGET_AFTER = 3.0
"""Seconds after which Redis has surely written an acknowledged settlement to disk."""
REMEMBERED_FOR = 240.0
"""Seconds for which Redis surely remembers a settled reservation. Resending after that could charge it
twice.
"""
MEMORY_MS = 300_000
RETRY_AFTER = 0.5

ReserveAgain = Callable[[Reservation], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Settlement:
    reservation: Reservation
    packed: bytes
    may_not_exist: bool
    """Whether the reservation may never have reached Redis."""
    acknowledged_at: float = 0.0


class Settlements:
    def __init__(self, connection: RedisConnection, scripts: Scripts, reserve_again: ReserveAgain) -> None:
        self._connection = connection
        self._scripts = scripts
        self._reserve_again = reserve_again
        self._unsent: deque[_Settlement] = deque()
        self._acknowledged: deque[_Settlement] = deque()
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._repairs: set[asyncio.Task[None]] = set()

    def settle(self, reservation: Reservation, plan: CompiledPlan, used: Amounts) -> None:
        self._send(_Settlement(reservation, self._packed(reservation, plan, used), False))

    def withdraw(self, reservation: Reservation) -> None:
        """Returns a reservation whose outcome is unknown, in case Redis made it."""
        assert reservation.plan is not None
        reservation.ended = True
        self._send(_Settlement(reservation, self._packed(reservation, reservation.plan, NOTHING), True))

    def resend(self) -> None:
        """Resends, on a new connection, what was not acknowledged or may not have been written to disk."""
        horizon = max(self._connection.lost_at - FORGET_AFTER, time.monotonic() - REMEMBERED_FOR)
        again = [settlement for settlement in self._acknowledged if settlement.acknowledged_at > horizon]
        self._acknowledged.clear()
        again += self._unsent
        self._unsent.clear()
        for settlement in again:
            self._send(settlement)

    async def drain(self, patience: float) -> None:
        """Waits until everything is acknowledged, at most `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                while self._unsent or self._in_flight or self._repairs:
                    if self._in_flight or self._repairs:
                        await asyncio.wait([*self._in_flight, *self._repairs])
                    else:
                        await asyncio.sleep(0.01)
        except TimeoutError:
            left = len(self._unsent) + len(self._in_flight) + len(self._repairs)
            log.warning("settlements were not sent: the usage journal settles them", settlements=left)
        if self._retry is not None:
            self._retry.cancel()
        for repair in self._repairs:
            repair.cancel()

    def _packed(self, reservation: Reservation, plan: CompiledPlan, used: Amounts) -> bytes:
        amounts = (used.requests, used.input_tokens, used.output_tokens, used.spend)
        request_id = reservation.request_id.encode()
        return self._scripts.settle(plan.tag, request_id, amounts, memory_ms=MEMORY_MS)

    def _send(self, settlement: _Settlement) -> None:
        try:
            answer = self._connection.call(settlement.packed)
        except RedisDown:
            self._queue(settlement)
            return
        self._in_flight.add(answer)
        answer.add_done_callback(partial(self._on_reply, settlement))

    def _queue(self, settlement: _Settlement) -> None:
        self._unsent.append(settlement)
        if len(self._unsent) > MAX_UNSENT:
            dropped = self._unsent.popleft()
            log.error(
                "settlement is dropped, too many are unsent: the usage journal settles it",
                request_id=dropped.reservation.request_id,
            )

    def _on_reply(self, settlement: _Settlement, answer: asyncio.Future[Any]) -> None:
        self._in_flight.discard(answer)
        if answer.cancelled():
            self._queue(settlement)
            return
        error = answer.exception()
        if error is None:
            now = settlement.acknowledged_at = time.monotonic()
            acknowledged = self._acknowledged
            acknowledged.append(settlement)
            while acknowledged[0].acknowledged_at < now - FORGET_AFTER:
                acknowledged.popleft()
            if answer.result() == UNKNOWN and not settlement.may_not_exist:
                self._repair(settlement)
            return
        self._queue(settlement)
        if isinstance(error, ReplyError) and self._retry is None:
            # Redis answers with an error: its scripts are gone, it is loading, or it is a replica for now.
            self._retry = asyncio.get_running_loop().call_later(RETRY_AFTER, self._reload)

    def _reload(self) -> None:
        self._retry = None
        if not self._connection.is_up:
            return
        for load in self._scripts.load():
            self._connection.call(load).add_done_callback(_consume_error)
        self.resend()

    def _repair(self, settlement: _Settlement) -> None:
        """Reserves again what Redis has lost, so that its usage still counts."""
        settlement.may_not_exist = True  # once
        task = asyncio.create_task(self._settle_lost(settlement))
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)

    async def _settle_lost(self, settlement: _Settlement) -> None:
        try:
            await self._reserve_again(settlement.reservation)
        except Exception as error:  # noqa: BLE001  the ledger has the usage in any case
            log.warning(
                "usage counts from the ledger only",
                request_id=settlement.reservation.request_id,
                error=str(error),
            )
        else:
            self._send(settlement)


def _consume_error(answer: asyncio.Future[Any]) -> None:
    """Marks the error as seen; the next call shows whether the script was loaded."""
    if not answer.cancelled():
        answer.exception()
