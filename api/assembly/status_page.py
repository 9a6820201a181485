"""Builds the status page of an API process, and what the process reports for it and for the capacity page."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from secrets import token_hex

import redis.asyncio
from redis.exceptions import RedisError

from adapters.storage import ObjectStore
from adapters.storage.local import LocalStore
from api.process_report import CapacityReporting, ProcessReporting
from api.services import Services
from db.session import Database
from sla.status.board import StatusBoard


@contextlib.asynccontextmanager
async def running_status(
    services: Services,
    database: Database,
    cache: redis.asyncio.Redis,
    objects: ObjectStore,
    name: str,
    configs: Mapping[str, Path],
) -> AsyncIterator[StatusBoard]:
    """Yields what the status page shows, kept fresh; the process's report is withdrawn at the end.

    `name`: the process's; `configs`: the `config.json` of each base.
    """
    reporting = ProcessReporting(services, cache, f"{name}-{token_hex(4)}")
    store = objects.scratch if isinstance(objects, LocalStore) else None
    capacity = CapacityReporting(services, cache, configs, store)

    async def report() -> None:
        await reporting.report()
        await capacity.report()

    board = StatusBoard(database, cache, report)
    await board.start()
    try:
        yield board
    finally:
        await board.close()
        with contextlib.suppress(RedisError, OSError):
            await reporting.withdraw()
