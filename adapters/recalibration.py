"""Queues a new calibration of a version: with other samples, another dtype, other thresholds or another
engine.

A version in service stays in service and keeps its weights, whatever the result; one that the gate rejected
is judged again.
"""

from __future__ import annotations

from dataclasses import dataclass

from adapters.announcer import Announcer
from adapters.bases import Bases
from adapters.errors import AdapterNotFound, InvalidAdapter, VersionNotFound, VersionNotReady
from adapters.files.service import FileService
from adapters.jobs.models import Job
from adapters.jobs.service import queue_job
from adapters.model_names import InvalidModelName, ModelName, parse
from adapters.models import PENDING, AdapterVersion, VersionState
from adapters.object_keys import SOURCE_FILES
from adapters.repository import AdapterRepository
from adapters.source_copies import SourceCopies
from adapters.submitted_files import Calibration, samples_of
from db.outbox import Outbox
from db.session import Database
from tenants.actors import SYSTEM, Actor
from tenants.audit.service import AuditLog

AGAIN = (VersionState.READY, VersionState.DISABLED, VersionState.FAILED)


@dataclass(frozen=True, slots=True)
class StartedCalibration:
    """A queued job and the model it is about."""

    job: Job
    model: str


class Recalibration:
    """Calibrates versions again."""

    def __init__(
        self,
        database: Database,
        announcer: Announcer,
        files: FileService,
        copies: SourceCopies,
        outbox: Outbox,
        bases: Bases,
    ) -> None:
        self._database = database
        self._announcer = announcer
        self._files = files
        self._copies = copies
        self._outbox = outbox
        self._bases = bases

    async def start(
        self,
        tenant_id: str,
        created_by: str,
        model: str,
        version: int | None,
        calibration: Calibration,
        *,
        by: Actor = SYSTEM,
    ) -> StartedCalibration:
        """Queues a job. `model`: as requests name it; without a version, there or in `version`, it is the
        active one, or else the latest.

        Raises AdapterNotFound, VersionNotFound, VersionNotReady, InvalidAdapter, JobUnfinished, FileNotFound.
        """
        name = self._name_of(model, version)
        async with self._database.read(tenant_id) as session:
            found = await AdapterRepository(session, tenant_id).find_with_version(self._bases, name)
        if found is None:
            raise AdapterNotFound(model)
        adapter, meant = found
        if meant is None:
            raise VersionNotFound(adapter.name, name.version or 0)
        _refuse(adapter.name, meant)
        samples = await samples_of(self._files, tenant_id, calibration, "file_id")
        async with (
            self._copies.made(adapter, samples) as copies,
            self._database.write(tenant_id) as session,
        ):
            repository = AdapterRepository(session, tenant_id)
            if await repository.lock(ModelName(adapter_id=adapter.id)) is None:
                raise AdapterNotFound(model)
            row = await repository.lock_version(adapter.id, meant.version)
            if row is None:
                raise VersionNotFound(adapter.name, meant.version)
            _refuse(adapter.name, row)
            job = await queue_job(
                session,
                self._outbox,
                tenant_id=tenant_id,
                adapter_id=adapter.id,
                version=row.version,
                parameters={"calibration": copies.calibration, "dtype": calibration.dtype},
                created_by=created_by,
            )
            if row.state == VersionState.FAILED:
                row.state = VersionState.CALIBRATING
                row.error = row.error_field = None
                self._announcer.changed(session, tenant_id)
            await session.flush()
            await session.refresh(job)
            named = str(ModelName(adapter.base, adapter.name, row.version))
            await AuditLog.record(
                session, tenant_id, by, "calibration_job.created", ("job", job.id), {"model": named}
            )
        return StartedCalibration(job, named)

    def _name_of(self, model: str, version: int | None) -> ModelName:
        try:
            name = parse(model)
        except InvalidModelName:
            raise AdapterNotFound(model) from None
        if not self._bases.has_adapter(name):
            raise AdapterNotFound(model)
        if version is None:
            return name
        if name.version not in (None, version):
            raise InvalidAdapter("version", f"{version}, but the model's name says {name.version}")
        return ModelName(name.base, name.adapter, version, name.adapter_id)


def _refuse(adapter: str, version: AdapterVersion) -> None:
    if version.state in PENDING:
        return  # it has a job already: `queue_job` raises JobUnfinished with its id
    if version.state not in AGAIN or not version.artifacts:
        if version.state == VersionState.READY:
            raise InvalidAdapter("model", "the operator packed this version; its files are not stored")
        raise VersionNotReady(adapter, version.version, version.state)
    if not set(SOURCE_FILES) <= set(version.sources):
        raise InvalidAdapter("model", "this version's files are not stored: add them as a new version")
