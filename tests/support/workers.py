"""A real worker process, as `rootstock work` starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]


def start_worker(
    database_url: str,
    redis_url: str,
    log: Path,
    *,
    module: str = "worker.main",
    environment: Mapping[str, str] = MappingProxyType({}),
    **settings: str,
) -> subprocess.Popen[bytes]:
    """Start a worker; `settings` are those of WorkerSettings, `environment` any others."""
    all_settings = os.environ | {"ROOTSTOCK_DB_URL": database_url, "ROOTSTOCK_WORKER_REDIS_URL": redis_url}
    all_settings |= {f"ROOTSTOCK_WORKER_{name.upper()}": value for name, value in settings.items()}
    all_settings |= environment
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module], cwd=ROOT, env=all_settings, stdout=output, stderr=output
        )


@contextmanager
def worker(
    database_url: str, redis_url: str, log: Path, **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker for the length of a block, killed at its end if it still runs."""
    process = start_worker(database_url, redis_url, log, **settings)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
