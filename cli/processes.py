"""Starts API, engine and worker: reads their settings from the environment and runs their mains.

Each function imports only what its process needs: the API never loads torch.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from cli.errors import CliError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_settings import BaseSettings

    from engine.assembly import PackDrafter
    from engine.lora.draft_adapters import DraftAdapter
    from engine.settings import EngineSettings

S = TypeVar("S", bound="BaseSettings")


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disables the garbage collector: imports create no garbage, and collections make them slower."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def settings_from_environment(kind: type[S], environment: Mapping[str, str] | None = None) -> S:
    """Returns the settings of a process, from `environment` where that is given and else from this process's
    own. Raises `CliError` naming every variable that is missing or wrong.
    """
    from pydantic import ValidationError

    prefix = kind.model_config.get("env_prefix", "")
    variables = {name: f"{prefix}{name.upper()}" for name in kind.model_fields}
    named = environment or {}
    given: dict[str, Any] = {name: named[of] for name, of in variables.items() if named.get(of)}
    try:
        return kind(**given)
    except ValidationError as error:
        faults = (f"{prefix}{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in error.errors())
        raise CliError("; ".join(faults)) from None


def serve_api() -> None:
    with no_garbage_collection():
        from api.main import run
        from api.settings import ApiSettings, ConnectionSettings
        from db.settings import DatabaseSettings
        from telemetry.disk import DiskSettings
        from tenants.settings import TenantSettings

    # Checked here for a clear message; the process builds its own.
    for kind in (DatabaseSettings, TenantSettings, ConnectionSettings, DiskSettings):
        settings_from_environment(kind)
    sys.exit(run(settings_from_environment(ApiSettings)))


def serve_engine() -> None:
    with no_garbage_collection():
        from adapters.published_artifacts.settings import ArtifactSource
        from engine.main import run
        from engine.settings import DeviceSettings, EngineSettings
        from telemetry.disk import DiskSettings

    settings_from_environment(DiskSettings)  # checked here for a clear message; the process builds its own
    with ExitStack() as held:
        if os.environ.get("ROOTSTOCK_BASE_DIGEST"):  # the engine reads a folder: it knows no store
            from cli.bases import fetch_engine_base

            os.environ["ROOTSTOCK_ENGINE_BASE"] = str(held.enter_context(fetch_engine_base()))
        settings, fetcher = settings_from_environment(EngineSettings), None
        if settings_from_environment(ArtifactSource).fetch:
            from cli.packed_adapters import engine_fetcher

            fetcher = engine_fetcher()
            settings = settings.model_copy(update={"artifacts_dir": fetcher.directory})
        status = run(settings, settings_from_environment(DeviceSettings), fetcher, _packer(settings))
    sys.exit(status)


def _packer(settings: EngineSettings) -> PackDrafter:
    """Returns what packs the engine's draft adapter, if it has one, once the base's digest is known."""
    base, artifacts_dir = settings.base, settings.artifacts_dir

    def pack(folder: Path, base_digest: str) -> DraftAdapter:
        from cli.draft_adapters import pack_drafter

        assert base is not None
        return pack_drafter(folder, base, base_digest, artifacts_dir)

    return pack


def work(queues: str | None, beat: bool | None, nice: int | None) -> None:
    """Runs a worker. None: as the environment says."""
    with no_garbage_collection():
        from db.settings import DatabaseSettings
        from db.tasks import JOBS_QUEUE
        from worker.main import run
        from worker.settings import JobsSettings, WorkerSettings

    given = {"QUEUES": queues, "BEAT": beat, "NICE": nice}
    os.environ |= {
        f"ROOTSTOCK_WORKER_{name}": str(value) for name, value in given.items() if value is not None
    }
    settings = settings_from_environment(WorkerSettings)
    # Checked here for a clear message; the worker builds its own.
    settings_from_environment(DatabaseSettings)
    if JOBS_QUEUE in settings.queue_names:
        from adapters.imports.settings import ImportSettings
        from adapters.signing.settings import SigningSettings
        from adapters.storage import StorageSettings
        from cli.signing_key import check_signing_key
        from tenants.settings import TenantSettings

        jobs = settings_from_environment(JobsSettings)
        if not (jobs.base_path / "config.json").is_file():
            raise CliError(
                f"ROOTSTOCK_JOBS_BASE_PATH: {jobs.base_path} holds no config.json: name a directory in "
                "Hugging Face layout"
            )
        for kind in (StorageSettings, ImportSettings, TenantSettings):
            settings_from_environment(kind)
        check_signing_key(settings_from_environment(SigningSettings).key_file)
    sys.exit(run(settings))
