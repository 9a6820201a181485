"""Records a version's progress: inspected, packed, calibrated, ready.

A step is part of a transaction in which the job is locked (`jobs.lease`), so that a worker that lost its
lease changes nothing; repeating a step writes the same again. `jobs.service` records that a version failed,
with its job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from adapters import events
from adapters.announcer import Announcer
from adapters.jobs.errors import VersionDeleted
from adapters.jobs.models import Job
from adapters.jobs.repository import record_job_event
from adapters.model_names import ModelName
from adapters.models import PENDING, Adapter, AdapterVersion, VersionState
from adapters.regression import Regression, regression_of
from adapters.repository import AdapterRepository
from db.session import WriteSession


@dataclass(frozen=True, slots=True)
class PackedArtifact:
    """One packed form of a version's weights."""

    digest: str
    size: int
    rank: int


async def locked_version(session: WriteSession, job: Job) -> tuple[Adapter, AdapterVersion]:
    """Returns the job's version and its adapter, locked. Raises VersionDeleted if the adapter is."""
    repository = AdapterRepository(session, job.tenant_id)
    adapter = await repository.lock(ModelName(adapter_id=job.adapter_id))
    version = await repository.lock_version(job.adapter_id, job.version)
    if adapter is None or version is None or version.state == VersionState.DELETING:
        raise VersionDeleted(job.adapter_id, job.version)
    return adapter, version


async def note_inspected(session: WriteSession, job: Job, inspection: Mapping[str, Any]) -> None:
    """Records that the files are valid. Raises VersionDeleted."""
    _, version = await locked_version(session, job)
    if version.inspection != dict(inspection):
        version.inspection = dict(inspection)
        record_job_event(session, job, "version.inspected", "The files are valid.")


async def note_packed(session: WriteSession, job: Job, artifacts: Mapping[str, PackedArtifact]) -> None:
    """Records the packed artifacts, by dtype. Raises VersionDeleted."""
    _, version = await locked_version(session, job)
    packed = {dtype: {"digest": one.digest, "size": one.size} for dtype, one in artifacts.items()}
    version.rank = max(one.rank for one in artifacts.values())
    if version.artifacts != packed:
        version.artifacts = packed
        dtypes = ", ".join(sorted(packed))
        record_job_event(session, job, "version.packed", f"The weights are packed as {dtypes}.", data=packed)
    if version.state in (VersionState.UPLOADING, VersionState.VALIDATING):
        version.state = VersionState.CALIBRATING


async def note_calibrated(session: WriteSession, job: Job, summary: Mapping[str, Any], dtype: str) -> None:
    """Records the calibration and the dtype to serve. A version in service keeps its artifact: what it serves
    never changes. Raises VersionDeleted.
    """
    _, version = await locked_version(session, job)
    if version.calibration != dict(summary):
        version.calibration = dict(summary)
        record_job_event(
            session, job, "version.calibrated", f"The adapter was measured; {dtype} weights were chosen."
        )
    if version.state in PENDING:
        chosen = version.artifacts[dtype]
        version.dtype, version.digest, version.size = dtype, chosen["digest"], chosen["size"]


async def finish_ready(session: WriteSession, job: Job, announcer: Announcer) -> None:
    """Makes the version ready, and active if that was requested, no newer version is active, and it did not
    measure worse than the active one.

    Raises VersionDeleted.
    """
    adapter, version = await locked_version(session, job)
    if version.state not in PENDING:
        return
    await make_ready(session, adapter, version, announcer, job_id=job.id)


async def make_ready(
    session: WriteSession,
    adapter: Adapter,
    version: AdapterVersion,
    announcer: Announcer,
    *,
    job_id: str | None = None,
) -> None:
    """Makes a packed version ready, as `finish_ready` says; both rows are locked."""
    version.state, version.ready_at = VersionState.READY, datetime.now(UTC)
    version.error = version.error_field = None
    events.record(
        session,
        adapter.tenant_id,
        adapter.id,
        "version.ready",
        f"Version {version.version} is ready.",
        version=version.version,
        job_id=job_id,
    )
    if version.activate and (adapter.active_version or 0) < version.version:
        await activate_unless_worse(session, adapter, version, announcer, job_id=job_id)
    else:
        announcer.changed(session, adapter.tenant_id)


async def activate_unless_worse(
    session: WriteSession,
    adapter: Adapter,
    version: AdapterVersion,
    announcer: Announcer,
    *,
    job_id: str | None = None,
) -> bool:
    """Activates a ready version, as its upload requested. One that measured worse than the active version
    stays inactive, with an event that says so; returns whether it is active. Both rows are locked.
    """
    regression = await _regression(session, adapter, version)
    if regression is None:
        await announcer.activate(session, adapter, version, job_id=job_id)
        return True
    events.record(
        session,
        adapter.tenant_id,
        adapter.id,
        "version.not_activated",
        f"Version {version.version} is ready but not active: it gains {regression.loss:.3f} nats per token "
        f"less over the base model than version {regression.active_version}, which stays active. "
        f"{'' if regression.is_comparable else 'They were measured on different samples. '}"
        "To serve it anyway, activate it.",
        version=version.version,
        job_id=job_id,
        level="warning",
        data={"active_version": regression.active_version, "loss": regression.loss},
    )
    announcer.changed(session, adapter.tenant_id)
    return False


async def _regression(session: WriteSession, adapter: Adapter, version: AdapterVersion) -> Regression | None:
    if adapter.active_version is None:
        return None
    repository = AdapterRepository(session, adapter.tenant_id)
    return regression_of(version, await repository.version(adapter.id, adapter.active_version))
