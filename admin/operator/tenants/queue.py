"""Computes each tenant's share of the requests that wait in the engines' queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from redis.exceptions import RedisError

from admin.operator.engines.report import EngineReport, Engines

log = structlog.get_logger(__name__)
PATIENCE_S = 0.02
"""The page doesn't wait longer for an engine: a report that comes later is there at the next view."""


@dataclass(frozen=True, slots=True)
class QueueShares:
    """The requests that wait now, by tenant."""

    waiting: Mapping[str, int] = field(default_factory=dict)
    is_complete: bool = True
    """Whether the engines named all tenants that have requests."""

    def of(self, tenant_id: str) -> tuple[int, int] | None:
        """Returns (waiting, waiting of all tenants); None if it isn't known."""
        if tenant_id not in self.waiting and not self.is_complete:
            return None
        return self.waiting.get(tenant_id, 0), sum(self.waiting.values())


UNKNOWN = QueueShares(is_complete=False)


class QueueWatch:
    """Reads the engines' reports."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._asking: asyncio.Task[list[EngineReport]] | None = None

    async def now(self) -> QueueShares:
        """Returns `UNKNOWN` if no engine serves, or none has reported yet."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._engines.look(), name="queue shares")
        asking = self._asking
        await asyncio.wait({asking}, timeout=PATIENCE_S)
        if not asking.done():
            return UNKNOWN
        try:
            return shares_of(asking.result())
        except RedisError as error:
            log.warning("could not read the engines' reports", reason=str(error))
            return UNKNOWN


def shares_of(reports: Sequence[EngineReport]) -> QueueShares:
    """Adds up the queues of the engines that serve."""
    views = [one.view for one in reports if one.state in ("serving", "draining")]
    known = [view for view in views if view is not None]
    waiting: Counter[str] = Counter()
    for view in known:
        for share in view.shares:
            waiting[share.tenant] += share.waiting
    is_complete = bool(known) and all(len(view.shares) >= view.num_shares for view in known)
    return QueueShares(+waiting, is_complete and len(known) == len(views))
