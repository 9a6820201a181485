"""Publishes packed adapters for the command line, and fetches those that a running engine needs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from adapters.published_artifacts.cache import ArtifactCache
from adapters.published_artifacts.fetcher import StoreFetcher
from adapters.published_artifacts.publishing import publish_file, publish_folder, publish_note
from adapters.published_artifacts.settings import ArtifactSource
from cli.errors import CliError
from cli.processes import settings_from_environment
from cli.service_access import environment_of, object_store, plain_errors, setting, silence_logs
from engine.lora.artifact import artifact_path
from engine.protocol import AdapterRef
from engine.settings import SchedulingSettings
from engine.signing.settings import VerificationSettings
from telemetry.disk import DiskSettings

FOLDER = "ROOTSTOCK_ENGINE_ARTIFACTS_DIR"


def publish_adapters(data: Path | None) -> tuple[int, int]:
    """Publishes what the folder of packed adapters has and the object store lacks. Returns how many those
    were, and how many there are. Raises `CliError`.
    """
    silence_logs()
    environment = environment_of(data)
    folder = Path(setting(environment, FOLDER))
    with plain_errors():
        try:
            return asyncio.run(publish_folder(object_store(environment), folder))
        except OSError as error:
            raise CliError(f"{folder}: {error.strerror}: correct {FOLDER} or its rights") from None


async def publish_packed(environment: Mapping[str, str], refs: Iterable[AdapterRef]) -> None:
    """Publishes adapters that were just packed, with the notes of their draft adapters. Without an object
    store, engines read the folder.
    """
    if not environment.get("ROOTSTOCK_STORAGE_URL"):
        return
    store, folder = object_store(environment), Path(setting(environment, FOLDER))
    for ref in refs:
        await publish_note(store, folder, ref.digest)  # an engine asks for it when it has the artifact
        await publish_file(store, artifact_path(folder, ref.digest), ref.digest)


def engine_fetcher() -> StoreFetcher:
    """Returns what fetches the packed adapters of an engine that starts. Raises `CliError`."""
    source = settings_from_environment(ArtifactSource)
    folder = source.cache_dir or Path(os.environ.get("ROOTSTOCK_ENGINE_DATA_DIR", "var")) / "adapters"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(
            f"{folder}: {error.strerror}: correct its rights or ROOTSTOCK_ADAPTERS_CACHE_DIR"
        ) from None
    min_free = settings_from_environment(DiskSettings).min_free_bytes
    store = object_store(os.environ)
    keys = settings_from_environment(VerificationSettings).keys
    drafts = settings_from_environment(SchedulingSettings).speculation
    cache = ArtifactCache(folder.absolute(), store, source.cache_bytes, min_free, keys, with_notes=drafts)
    return StoreFetcher(cache)
