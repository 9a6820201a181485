"""Publishes and fetches base models for the command line, and fetches the base of an engine that starts."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from adapters.errors import AdapterError
from adapters.published_bases.cache import BaseCache, FetchedBase
from adapters.published_bases.manifest import DIGEST
from adapters.published_bases.publishing import publish
from adapters.published_bases.settings import BaseSource
from cli.errors import CliError
from cli.processes import settings_from_environment
from cli.service_access import environment_of, object_store, plain_errors, silence_logs
from telemetry import logs


def publish_base(data: Path | None, folder: Path, *, verify: bool) -> str:
    """Returns the digest of the base, once it is stored. Raises `CliError`."""
    silence_logs()
    with plain_errors():
        return asyncio.run(publish(object_store(environment_of(data)), folder, verify=verify))


def fetch_base(data: Path | None, digest: str, into: Path) -> Path:
    """Returns the folder of the base, once it is complete. Raises `CliError`."""
    if not re.fullmatch(DIGEST, digest):
        raise CliError(f"{digest[:80]!r} is no digest: pass what `rootstock base publish` printed")
    silence_logs()
    with (
        plain_errors(),
        asyncio.run(BaseCache(into, object_store(environment_of(data))).fetch(digest)) as path,
    ):
        return path


def fetch_engine_base() -> FetchedBase:
    """Fetches the base that ROOTSTOCK_BASE_DIGEST names. The caller holds it while the engine runs.

    Raises `CliError`.
    """
    logs.configure("engine")
    source = settings_from_environment(BaseSource)
    if source.digest is None:
        raise CliError("ROOTSTOCK_BASE_DIGEST is not set: set it to what `rootstock base publish` printed")
    folder = source.cache_dir or Path(os.environ.get("ROOTSTOCK_ENGINE_DATA_DIR", "var")) / "bases"
    cache = BaseCache(folder, object_store(os.environ), source.cache_bytes)
    try:
        return asyncio.run(cache.fetch(source.digest))
    except AdapterError as error:
        raise CliError(str(error)) from None
    except OSError as error:
        raise CliError(
            f"{folder}: {error.strerror}: free disk space or correct its rights; what arrived is kept"
        ) from None
