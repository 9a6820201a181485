"""Renews the leases of this process's open reservations, and registers the process as alive.

The reservations of a process that dies expire. A reservation that Redis has lost is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import structlog

from db.errors import DatabaseUnavailable
from tenants.errors import QuotaUnavailable
from tenants.quotas import scripts as lua
from tenants.quotas.local_share import LocalShare
from tenants.quotas.plan import CompiledPlan
from tenants.quotas.redis_connection import RedisConnection, RedisDown, ReplyError
from tenants.quotas.reservation import Reservation
from tenants.quotas.scripts import Scripts, command
from tenants.quotas.settlement import ReserveAgain

log = structlog.get_logger(__name__)

BATCH = 500
"""Reservations that one script call renews or expires."""
ENLIST_EVERY = 600.0
"""Seconds after which a tenant is registered again for the workers' sweep of expired reservations."""
PROCESS_GONE_AFTER = 4
"""Missed renewals after which a process no longer counts as sharing the limits."""


class LeaseRenewal:
    def __init__(
        self,
        connection: RedisConnection,
        scripts: Scripts,
        name: str,
        local: LocalShare,
        reserve_again: ReserveAgain,
    ) -> None:
        self._connection = connection
        self._scripts = scripts
        self._name = name.encode()
        self._local = local
        self._reserve_again = reserve_again
        self._open: dict[bytes, dict[bytes, Reservation]] = {}
        self._enlisted: dict[bytes, float] = {}
        self._to_sweep: set[bytes] = set()
        self._loop: asyncio.Task[None] | None = None
        self._repairs: set[asyncio.Task[None]] = set()

    @property
    def num_open(self) -> int:
        return sum(map(len, self._open.values()))

    def num_holding(self, tag: bytes, bucket_name: str) -> int:
        """Returns the number of the tenant's open reservations that hold a concurrency slot of the bucket."""
        held = Counter(reservation.plan for reservation in self._open.get(tag, {}).values())
        return sum(
            number
            for plan, number in held.items()
            if plan is not None and any(bucket.name == bucket_name for bucket in plan.buckets)
        )

    def start(self) -> None:
        self._loop = asyncio.create_task(self._keep_renewing(), name="renewal of reservations")

    async def close(self) -> None:
        """Stops renewing and unregisters the process."""
        tasks = [task for task in (self._loop, *self._repairs) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with contextlib.suppress(RedisDown, ReplyError):
            await self._connection.call(command(b"ZREM", lua.PROCESSES.encode(), self._name))

    def add(self, reservation: Reservation, plan: CompiledPlan) -> None:
        of_tenant = self._open.get(plan.tag)
        if of_tenant is None:
            of_tenant = self._open[plan.tag] = {}
            self._enlist(plan)
        of_tenant[reservation.request_id.encode()] = reservation

    def remove(self, reservation: Reservation, plan: CompiledPlan) -> None:
        of_tenant = self._open.get(plan.tag)
        if of_tenant is not None:
            of_tenant.pop(reservation.request_id.encode(), None)
            if not of_tenant:
                del self._open[plan.tag]

    def sweep_soon(self, tag: bytes) -> None:
        """Sweeps a tenant's expired reservations in further calls, because one call's bound was reached."""
        if tag not in self._to_sweep:
            self._to_sweep.add(tag)
            self._sweep(tag)

    def renew_all(self) -> None:
        """Renews all open reservations, one call per tenant and batch, without waiting. The replies name
        those that Redis has lost.
        """
        now = time.time()
        gone_after = PROCESS_GONE_AFTER * self._scripts.timing.renew_every
        processes = lua.PROCESSES.encode()
        self._call(command(b"ZADD", processes, b"%f" % now, self._name))
        self._call(command(b"ZREMRANGEBYSCORE", processes, b"-inf", b"%f" % (now - gone_after)))
        self._call(command(b"ZCARD", processes), self._counted)
        for tag, of_tenant in self._open.items():
            ids = list(of_tenant)
            for first in range(0, len(ids), BATCH):
                packed = self._scripts.renew(tag, ids[first : first + BATCH])
                self._call(packed, partial(self._renewed, tag))
        for tag in list(self._to_sweep):
            self._sweep(tag)

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._scripts.timing.renew_every)
            self.renew_all()
            stale = time.monotonic() - ENLIST_EVERY
            self._enlisted = {tag: at for tag, at in self._enlisted.items() if at > stale}

    def _enlist(self, plan: CompiledPlan) -> None:
        """Registers the tenant for the workers' sweep at once, in case this process is killed before its
        first renewal.
        """
        if plan.tag not in self._enlisted:
            self._enlisted[plan.tag] = time.monotonic()
            entry = command(b"ZADD", lua.TENANTS.encode(), b"%f" % time.time(), plan.tenant_id.encode())
            self._call(entry)

    def _sweep(self, tag: bytes) -> None:
        self._call(self._scripts.sweep(tag, BATCH), partial(self._swept, tag))

    def _swept(self, tag: bytes, left: Any) -> None:
        if left >= 0:
            self._to_sweep.discard(tag)

    def _counted(self, processes: Any) -> None:
        self._local.processes = max(1, processes)

    def _renewed(self, tag: bytes, answer: Any) -> None:
        for request_id in msgspec.msgpack.decode(answer, type=list[str]):
            reservation = self._open.get(tag, {}).get(request_id.encode())
            if reservation is not None:
                task = asyncio.create_task(self._make_again(reservation))
                self._repairs.add(task)
                task.add_done_callback(self._repairs.discard)

    async def _make_again(self, reservation: Reservation) -> None:
        try:
            await self._reserve_again(reservation)
        except (RedisDown, ReplyError, QuotaUnavailable, DatabaseUnavailable) as error:
            log.warning(
                "lost reservation was not made again", request_id=reservation.request_id, error=str(error)
            )

    def _call(self, packed: bytes, answered: Any = None) -> None:
        """Sends a call without waiting for it. If it fails, the next renewal repeats it."""
        try:
            answer = self._connection.call(packed)
        except RedisDown:
            return

        def done(answer: asyncio.Future[Any]) -> None:
            if answer.cancelled():
                return
            error = answer.exception()
            if error is not None:
                log.debug("reservation was not renewed", error=str(error))
            elif answered is not None:
                answered(answer.result())

        answer.add_done_callback(done)
