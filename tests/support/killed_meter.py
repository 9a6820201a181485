"""A meter that is killed with SIGKILL at a chosen instant of its second batch: `python -m
tests.support.killed_meter`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import redis.asyncio
from sqlalchemy import event

from billing import metering
from billing.folding import Measured
from billing.metering import JournalMeter
from db.session import Database
from engine.protocol import UsageEvent

INSTANTS = ("taken", "written", "committed", "acknowledged")
BATCH_SIZE = 10


def die(*_: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class KilledMeter(JournalMeter):
    instant = ""
    num_batches = 0

    async def _settle(self, entries: Sequence[metering.Entry], drained: metering.DrainResult) -> None:
        self.num_batches += 1
        if self.num_batches == 2 and self.instant == "taken":
            die()
        await super()._settle(entries, drained)
        if self.num_batches == 2 and self.instant == "acknowledged":
            die()

    async def _write(self, good: dict[bytes, Measured], events: dict[bytes, UsageEvent]) -> dict[bytes, str]:
        if self.num_batches == 2 and self.instant == "written":
            # The statement has run, the transaction is open.
            event.listen(self._database.engine.sync_engine, "commit", die)
        refused = await super()._write(good, events)
        if self.num_batches == 2 and self.instant == "committed":
            die()
        return refused


async def main(database_url: str, redis_url: str, instant: str) -> None:
    assert instant in INSTANTS
    meter = KilledMeter(
        Database(database_url), redis.asyncio.Redis.from_url(redis_url), "killed", batch_size=BATCH_SIZE
    )
    meter.instant = instant
    await meter.drain()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
