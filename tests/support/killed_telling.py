"""A worker that tells budgets of costs, or delivers notifications, and is killed with SIGKILL at a chosen
instant: `python -m tests.support.killed_telling DATABASE REDIS INSTANT`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime
from typing import Any, NoReturn

import redis.asyncio

from billing.notifications.delivering import Deliveries
from billing.notifications.sending import WebhookSender
from billing.spend.adjusting import SpendAdjusting
from billing.spend.repository import AdjustmentRepository
from billing.window_usage import WindowUsage
from db.session import Database
from tenants.quotas.unreserved_spend import UnreservedSpend

TELLING = ("held", "noted", "settled")
DELIVERING = ("taken", "posted")


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


async def tell(database: Database, redis_url: str, instant: str) -> None:
    outside = UnreservedSpend(redis.asyncio.Redis.from_url(redis_url), WindowUsage(database))
    if instant == "held":
        AdjustmentRepository.note = die  # type: ignore[method-assign,assignment]
    elif instant == "noted":
        outside.settle = die  # type: ignore[method-assign,assignment]
    else:
        AdjustmentRepository.note_settled = die  # type: ignore[method-assign,assignment]
    await SpendAdjusting(database, outside).report(datetime.now(UTC))


async def deliver(database: Database, instant: str) -> None:
    deliveries = Deliveries(database, WebhookSender(http_allowed=True, private_allowed=True, timeout=5))
    setattr(deliveries, "_try" if instant == "taken" else "_note", die)
    await deliveries.deliver()


async def main(database_url: str, redis_url: str, instant: str) -> None:
    database = Database(database_url)
    if instant in TELLING:
        await tell(database, redis_url, instant)
    else:
        await deliver(database, instant)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
