"""A worker that charges and is killed with SIGKILL as it commits its Nth transaction: `python -m
tests.support.killed_charges URL N`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import event

from billing.charges import ChargeService
from db.session import Database

UNTIL = datetime(2025, 11, 1, 1, tzinfo=UTC)


async def main(database_url: str, survives: int) -> None:
    database = Database(database_url)
    num_commits = 0

    def die(*_: Any) -> None:
        nonlocal num_commits
        num_commits += 1
        if num_commits == survives:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(database.engine.sync_engine, "commit", die)
    service = ChargeService(database)
    await service.charge_calibrations()
    await service.charge_storage(UNTIL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
