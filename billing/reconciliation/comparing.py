"""Starts a reconciliation that an operator asked for in a worker, and reports its progress.

The progress is one key in Redis; the result is stored like that of every reconciliation. Only one runs at a
time: an operator who asks meanwhile watches that one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from secrets import token_hex

import msgspec
import redis.asyncio

from billing.errors import ReconciliationRunning
from billing.payments.gateway import PaymentGateway
from billing.reconciliation.differences import CHECKS, Report
from billing.reconciliation.service import ReconciliationService
from db.outbox import Outbox
from db.session import EVERY_TENANT, Database
from db.tasks import RECONCILE_NOW
from tenants.actors import Actor
from tenants.audit.service import OPERATOR_CHAIN, AuditLog

_KEY = "rootstock:billing:comparing"
KEPT_S = 24 * 3600
SILENT_S = 600.0
"""Seconds without progress after which a comparison counts as lost."""


class Comparison(msgspec.Struct, frozen=True):
    """The progress of a comparison."""

    ticket: str
    start: datetime
    end: datetime
    asked_by: str
    told_at: float
    """Unix seconds of the last progress."""
    state: str = "waiting"
    """`waiting`, `running`, `done` or `failed`."""
    check: str = ""
    """The check that is running."""
    num_done: int = 0
    reconciliation_id: str = ""
    why: str = ""
    """Why it failed."""

    @property
    def num_checks(self) -> int:
        return len(CHECKS)

    @property
    def is_lost(self) -> bool:
        return self.is_open and time.time() - self.told_at > SILENT_S

    @property
    def is_open(self) -> bool:
        return self.state in ("waiting", "running")


class Comparisons:
    """Starts comparisons and reads their progress, in the processes that serve operators."""

    def __init__(self, database: Database, client: redis.asyncio.Redis, outbox: Outbox) -> None:
        self._database = database
        self._redis = client
        self._outbox = outbox

    async def start(self, start: datetime, end: datetime, actor: Actor) -> Comparison:
        """Queues a comparison of [start, end), whole UTC days.

        Raises ReconciliationRunning, ValueError naming the field.
        """
        if start >= end:
            raise ValueError("end must be after start")
        known = await self.latest()
        if known is not None and known.is_open and not known.is_lost:
            raise ReconciliationRunning(known.ticket)
        comparison = Comparison(token_hex(8), start, end, actor.email or actor.id, time.time())
        async with self._database.write(EVERY_TENANT) as session:
            span = {"start": start.isoformat(), "end": end.isoformat()}
            self._outbox.add(session, RECONCILE_NOW, {"ticket": comparison.ticket, **span})
            # Written before the commit, so that the worker's progress cannot be overwritten.
            await self._redis.set(_KEY, msgspec.json.encode(comparison), ex=KEPT_S)
            target = ("reconciliation", comparison.ticket)
            await AuditLog.record(session, OPERATOR_CHAIN, actor, "reconciliation.started", target, span)
        return comparison

    async def latest(self) -> Comparison | None:
        return await _read(self._redis)


async def compare(
    database: Database,
    client: redis.asyncio.Redis,
    gateway: PaymentGateway | None,
    ticket: str,
    start: datetime,
    end: datetime,
    engines: Sequence[str] = (),
) -> Report | None:
    """Runs a comparison in the worker. Returns None if another was started meanwhile, or it already ran."""
    comparison = await _read(client)
    if comparison is None or comparison.ticket != ticket or not comparison.is_open:
        return None
    done = 0

    async def on_check(check: str) -> None:
        nonlocal done
        await _save_progress(client, comparison, state="running", check=check, num_done=done)
        done += 1

    try:
        service = ReconciliationService(database, client, gateway, engines=engines, on_check=on_check)
        report = await service.reconcile(start, end)
    except Exception as error:
        await _save_progress(client, comparison, state="failed", num_done=done, why=str(error)[:300])
        raise
    await _save_progress(
        client, comparison, state="done", num_done=comparison.num_checks, reconciliation_id=report.id
    )
    return report


async def _read(client: redis.asyncio.Redis) -> Comparison | None:
    raw = await client.get(_KEY)
    return None if raw is None else msgspec.json.decode(raw, type=Comparison)


async def _save_progress(client: redis.asyncio.Redis, comparison: Comparison, **changes: object) -> None:
    progress = msgspec.structs.replace(comparison, told_at=time.time(), **changes)
    await client.set(_KEY, msgspec.json.encode(progress), ex=KEPT_S)
