"""A real worker process, as `rootstock work` starts it, but for its imports (`tests.support.nursery`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.support.nursery import ROOT, SERVICES, Forked

__all__ = ["ROOT", "start_worker", "worker"]


def start_worker(
    database_url: str,
    redis_url: str,
    log: Path,
    *,
    entry: str = "worker.main:run",
    environment: Mapping[str, str] = MappingProxyType({}),
    **settings: str,
) -> Forked:
    """Start a worker; `settings` are those of WorkerSettings, `environment` any others."""
    all_settings = os.environ | {"ROOTSTOCK_DB_URL": database_url, "ROOTSTOCK_WORKER_REDIS_URL": redis_url}
    all_settings |= {f"ROOTSTOCK_WORKER_{name.upper()}": value for name, value in settings.items()}
    all_settings |= environment
    return SERVICES.start(entry, log, all_settings)


@contextmanager
def worker(database_url: str, redis_url: str, log: Path, **settings: str) -> Iterator[Forked]:
    """A worker for the length of a block, killed at its end if it still runs."""
    process = start_worker(database_url, redis_url, log, **settings)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
