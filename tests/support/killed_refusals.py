"""An intake of refused requests that is killed with SIGKILL at an instant of its second batch: `python -m
tests.support.killed_refusals`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any, NoReturn

import redis.asyncio
from sqlalchemy import event

from db.session import Database
from db.stream import Entry
from tenants.refusals.intake import RefusalIntake

INSTANTS = ("taken", "written", "committed")
BATCH_SIZE = 10


def die(*_: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class KilledIntake(RefusalIntake):
    instant = ""
    num_batches = 0

    async def _store(self, entries: list[Entry]) -> None:
        self.num_batches += 1
        if self.num_batches == 2 and self.instant == "taken":
            die()
        if self.num_batches == 2 and self.instant == "written":
            # The statements have run, the transaction is open.
            event.listen(self._database.engine.sync_engine, "commit", die)
        await super()._store(entries)
        if self.num_batches == 2 and self.instant == "committed":
            die()


async def main(database_url: str, redis_url: str, instant: str) -> None:
    assert instant in INSTANTS
    intake = KilledIntake(
        Database(database_url), redis.asyncio.Redis.from_url(redis_url), "killed", batch_size=BATCH_SIZE
    )
    intake.instant = instant
    await intake.drain()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
