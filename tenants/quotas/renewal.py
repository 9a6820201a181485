"""Keeping this process's reservations alive, and telling that the process itself is.

Owns what is open here. A process that dies stops renewing, and its reservations expire; a reservation that
Redis lost is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from functools import partial
from typing import Any

import msgspec

from db.errors import DatabaseUnavailable
from tenants.errors import QuotaUnavailable
from tenants.quotas import scripts as lua
from tenants.quotas.ending import TakeAgain
from tenants.quotas.link import Link, LinkDown, ReplyError
from tenants.quotas.local import LocalShare
from tenants.quotas.plan import CompiledPlan
from tenants.quotas.reservation import Reservation
from tenants.quotas.scripts import Scripts, command

logger = logging.getLogger(__name__)

BATCH = 500
"""Reservations renewed, or expired, by one call of a script."""
ENLIST_EVERY = 600.0
"""Seconds after which a tenant is told again to be one whose reservations are to be looked after."""
PROCESS_GONE_AFTER = 4
"""Renewals that a process may miss before it no longer counts as one that shares the limits."""


class Renewal:
    def __init__(
        self, link: Link, scripts: Scripts, name: str, local: LocalShare, take_again: TakeAgain
    ) -> None:
        self._link = link
        self._scripts = scripts
        self._name = name.encode()
        self._local = local
        self._take_again = take_again
        self._open: dict[bytes, dict[bytes, Reservation]] = {}
        self._enlisted: dict[bytes, float] = {}
        self._to_sweep: set[bytes] = set()
        self._loop: asyncio.Task[None] | None = None
        self._repairs: set[asyncio.Task[None]] = set()

    @property
    def num_open(self) -> int:
        return sum(map(len, self._open.values()))

    def num_holding(self, tag: bytes, bucket_name: str) -> int:
        """The tenant's open reservations that hold one of the bucket's places."""
        held = Counter(reservation.plan for reservation in self._open.get(tag, {}).values())
        return sum(
            number
            for plan, number in held.items()
            if plan is not None and any(bucket.name == bucket_name for bucket in plan.buckets)
        )

    def start(self) -> None:
        self._loop = asyncio.create_task(self._keep_renewing(), name="renewal of reservations")

    async def close(self) -> None:
        """Share the limits with the others no longer."""
        tasks = [task for task in (self._loop, *self._repairs) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with contextlib.suppress(LinkDown, ReplyError):
            await self._link.call(command(b"ZREM", lua.PROCESSES.encode(), self._name))

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
        """Some of the tenant's reservations are overdue, and one call returned as many as it may."""
        if tag not in self._to_sweep:
            self._to_sweep.add(tag)
            self._sweep(tag)

    def renew_all(self) -> None:
        """One call per tenant and batch, without waiting: the answers name what has to be made again."""
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
        """Have the workers' sweep look after the tenant: of a process that is killed before its first
        renewal too.
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
            await self._take_again(reservation)
        except (LinkDown, ReplyError, QuotaUnavailable, DatabaseUnavailable) as error:
            logger.warning("%s is not reserved at the moment: %s", reservation.request_id, error)

    def _call(self, packed: bytes, answered: Any = None) -> None:
        """A call that nobody waits for: what it does not do now, the next renewal does."""
        try:
            answer = self._link.call(packed)
        except LinkDown:
            return

        def done(answer: asyncio.Future[Any]) -> None:
            if answer.cancelled():
                return
            error = answer.exception()
            if error is not None:
                logger.debug("not renewed: %s", error)
            elif answered is not None:
                answered(answer.result())

        answer.add_done_callback(done)
