"""Creates adapters and versions from uploaded files: copies and inspects them, adds the rows, queues the job.

Inspected copies (`copies`) come first; then one transaction creates the version, its job and the message that
starts it. A version whose uploads are still pending is created at once and waits for them (`awaiting`); one
whose files are to be imported is created at once, and its job imports them (`imports`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapters import events
from adapters.announcer import Announcer
from adapters.bases import Bases
from adapters.errors import AdapterLimitReached, AdapterNotFound, InvalidAdapter
from adapters.jobs.models import IMPORT, PENDING_UPLOADS
from adapters.jobs.repository import JobRepository
from adapters.jobs.service import queue_job
from adapters.model_names import MAX_DESCRIPTION, ModelName, check_new_name, checked_text
from adapters.models import PENDING, Adapter, AdapterVersion, VersionState
from adapters.object_keys import GIVEN_FILES, SOURCE_FILES, WEIGHTS_FILE
from adapters.pending_uploads import PendingUploads, lock_uploads
from adapters.repository import AdapterRepository
from adapters.source_copies import Copies, SourceCopies
from adapters.submitted_files import (
    DTYPES,
    Calibration,
    Dtype,
    GivenFiles,
    Meant,
    Submission,
)
from adapters.versions import activate_unless_worse
from db.base import new_id
from db.outbox import Outbox
from db.session import Database, WriteSession
from tenants.actors import SYSTEM, Actor
from tenants.audit.service import AuditLog
from tenants.errors import NameTaken
from tenants.limits.kinds import Metric
from tenants.limits.repository import LimitRepository
from tenants.views import PlanView

__all__ = [
    "DTYPES",
    "AdapterSubmission",
    "Calibration",
    "Caller",
    "Dtype",
    "GivenFiles",
    "Submission",
    "SubmittedVersion",
]


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant, user and plan on whose behalf a version is created."""

    tenant_id: str
    created_by: str
    plan: PlanView
    actor: Actor = SYSTEM


@dataclass(frozen=True, slots=True)
class SubmittedVersion:
    """A version that was created, or that existed already."""

    adapter: Adapter
    version: AdapterVersion
    job_id: str | None
    created: bool


class AdapterSubmission:
    """Creates adapters and their versions."""

    def __init__(
        self,
        database: Database,
        announcer: Announcer,
        given: GivenFiles,
        copies: SourceCopies,
        waiting: PendingUploads,
        outbox: Outbox,
        bases: Bases,
    ) -> None:
        self._database = database
        self._announcer = announcer
        self._given = given
        self._copies = copies
        self._waiting = waiting
        self._outbox = outbox
        self._bases = bases

    async def create(
        self,
        caller: Caller,
        name: str,
        submission: Submission,
        *,
        base_digest: str,
        base: str | None = None,
        description: str | None = None,
    ) -> SubmittedVersion:
        """Creates an adapter on `base` (default: the default base) with its first version. Raises NameTaken,
        AdapterLimitReached, InvalidAdapter, InspectionRefused, the errors of the file services, ValueError
        naming the field.
        """
        check_new_name(name)
        base = self._bases.default if base is None else base
        if base not in self._bases:
            raise InvalidAdapter("base_model", f"it must be one of: {', '.join(self._bases)}")
        checked_text("description", description or "", MAX_DESCRIPTION)
        model = ModelName(base, name)
        async with self._database.read(caller.tenant_id) as session:
            await self._refuse(AdapterRepository(session, caller.tenant_id), caller.plan, model)
        meant = await self._given.find(caller.tenant_id, submission)
        adapter = Adapter(
            id=new_id("adp"),
            tenant_id=caller.tenant_id,
            base=base,
            name=name,
            description=description or None,
            created_by=caller.created_by,
        )
        async with (
            self._copies.made(adapter, meant.files) as copies,
            self._database.write(caller.tenant_id) as session,
        ):
            await lock_uploads(session, caller.tenant_id, meant.uploads.values())
            repository = AdapterRepository(session, caller.tenant_id)
            await repository.advisory_lock("adapters")
            await self._refuse(repository, caller.plan, model)
            repository.add_own(adapter)
            await session.flush()
            events.record(session, caller.tenant_id, adapter.id, "adapter.created", f"{name} created.")
            version, job_id = await self._add(
                session, caller, adapter, copies, meant, submission, base_digest
            )
            await _audit(session, caller, "adapter.created", adapter, version)
        await self._arrived_meanwhile(caller.tenant_id, meant)
        return SubmittedVersion(adapter, version, job_id, created=True)

    async def add_version(
        self, caller: Caller, adapter: str, submission: Submission, *, base_digest: str
    ) -> SubmittedVersion:
        """Adds the adapter's next version; returns the existing one if that was made from the same files and
        has not failed. Raises AdapterNotFound, and otherwise what `create` raises.
        """
        async with self._database.read(caller.tenant_id) as session:
            repository = AdapterRepository(session, caller.tenant_id)
            found = await repository.find(self._bases, self._bases.reference(adapter))
        if found is None:
            raise AdapterNotFound(adapter)
        adapter_id = found.id
        meant = await self._given.find(caller.tenant_id, submission)
        if meant.uploads or meant.source is not None:
            return await self._add_waiting(caller, found, meant, submission, base_digest)
        wanted = {name: meant.files[name].sha256 for name in GIVEN_FILES if name in meant.files}
        known = await self._known(caller, adapter_id, wanted, submission.activate)
        if known is not None:
            return known
        async with self._copies.made(found, meant.files) as copies:
            async with self._database.write(caller.tenant_id) as session:
                repository = AdapterRepository(session, caller.tenant_id)
                row = await repository.lock(ModelName(adapter_id=adapter_id))
                if row is None:
                    raise AdapterNotFound(adapter)
                if await repository.version_from(adapter_id, wanted) is None:
                    version, job_id = await self._add(
                        session, caller, row, copies, meant, submission, base_digest
                    )
                    await _audit(session, caller, "adapter_version.created", row, version)
                    return SubmittedVersion(row, version, job_id, created=True)
            await self._copies.discard(copies)  # another request was first with the same files
        known = await self._known(caller, adapter_id, wanted, submission.activate)
        if known is None:
            raise AdapterNotFound(adapter)
        return known

    async def _add_waiting(
        self,
        caller: Caller,
        adapter: Adapter,
        meant: Meant,
        submission: Submission,
        base_digest: str,
    ) -> SubmittedVersion:
        """Adds the adapter's next version, which waits for its uploads, unless one waits for them already, or
        whose files its job imports.
        """
        async with self._copies.made(adapter, meant.files) as copies:
            async with self._database.write(caller.tenant_id) as session:
                await lock_uploads(session, caller.tenant_id, meant.uploads.values())
                repository = AdapterRepository(session, caller.tenant_id)
                row = await repository.lock(ModelName(adapter_id=adapter.id))
                if row is None:
                    raise AdapterNotFound(adapter.name)
                known = await self._waiting_for(session, row, meant.uploads) if meant.uploads else None
                if known is None:
                    version, job_id = await self._add(
                        session, caller, row, copies, meant, submission, base_digest
                    )
                    await _audit(session, caller, "adapter_version.created", row, version)
                else:
                    version, job_id = known, None
                    known.activate = known.activate or submission.activate
            if known is not None:
                await self._copies.discard(copies)
        await self._arrived_meanwhile(caller.tenant_id, meant)
        return SubmittedVersion(row, version, job_id, created=known is None)

    async def _waiting_for(
        self, session: WriteSession, adapter: Adapter, uploads: Mapping[str, str]
    ) -> AdapterVersion | None:
        """Returns the version of a locked adapter that waits for exactly these uploads."""
        for job in await JobRepository(session, adapter.tenant_id).awaiting(uploads[WEIGHTS_FILE]):
            if job.adapter_id == adapter.id and job.parameters[PENDING_UPLOADS] == uploads:
                return await AdapterRepository(session, adapter.tenant_id).version(adapter.id, job.version)
        return None

    async def _arrived_meanwhile(self, tenant_id: str, meant: Meant) -> None:
        """Starts the version if its uploads were completed before they could find it."""
        if meant.uploads:
            await self._waiting.completed(tenant_id, meant.uploads[WEIGHTS_FILE])

    # The request ------------------------------------------------------------------------------------------

    async def _refuse(self, repository: AdapterRepository, plan: PlanView, name: ModelName) -> None:
        if await repository.find(self._bases, name) is not None:
            raise NameTaken("adapter name", name.adapter or "")
        set_for_it = await LimitRepository(repository.session, repository.tenant_id).stored(Metric.ADAPTERS)
        most = plan.max_adapters if set_for_it is None else set_for_it
        if await repository.count() >= most:
            raise AdapterLimitReached(most)

    async def _known(
        self, caller: Caller, adapter_id: str, wanted: Mapping[str, str], activate: bool
    ) -> SubmittedVersion | None:
        """Returns the version made from these files, if any; activates it, now or when ready, if wanted and
        it did not measure worse than the active one.
        """
        async with self._database.write(caller.tenant_id) as session:
            repository = AdapterRepository(session, caller.tenant_id)
            adapter = await repository.lock(ModelName(adapter_id=adapter_id))
            found = None if adapter is None else await repository.version_from(adapter_id, wanted)
            if adapter is None or found is None:
                return None
            if activate and found.state == VersionState.READY:
                served = adapter.active_version
                is_active = await activate_unless_worse(session, adapter, found, self._announcer)
                if is_active and served != found.version:
                    await _audit(session, caller, "adapter.activated", adapter, found)
            elif activate and found.state in PENDING:
                found.activate = True
        return SubmittedVersion(adapter, found, None, created=False)

    # Rows -------------------------------------------------------------------------------------------------

    async def _add(
        self,
        session: WriteSession,
        caller: Caller,
        adapter: Adapter,
        copies: Copies,
        meant: Meant,
        submission: Submission,
        base_digest: str,
    ) -> tuple[AdapterVersion, str]:
        """Adds the next version of an adapter that is locked or new, and its job. With uploads, both wait;
        with a source, the job imports the files.
        """
        uploads, source = meant.uploads, meant.source
        repository = AdapterRepository(session, caller.tenant_id)
        version = AdapterVersion(
            adapter_id=adapter.id,
            version=await repository.latest_version(adapter.id) + 1,
            tenant_id=caller.tenant_id,
            base_digest=base_digest,
            sources=copies.sources,
            activate=submission.activate,
            uploader_key=copies.uploader_key,
            origin=None if source is None else source.described(),
            state=VersionState.UPLOADING if uploads or source is not None else VersionState.VALIDATING,
            created_by=caller.created_by,
        )
        repository.add_own(version)
        await session.flush()
        files = ", ".join(sorted(copies.sources or uploads or SOURCE_FILES))
        how = "waiting for" if uploads else "created from" if source is None else "importing"
        events.record(
            session,
            caller.tenant_id,
            adapter.id,
            "version.created",
            f"Version {version.version} {how} {files}.",
            version=version.version,
        )
        parameters = _parameters(copies, submission.calibration)
        if uploads:
            parameters[PENDING_UPLOADS] = uploads
        if source is not None:
            parameters[IMPORT] = self._given.imports.sealed(source, caller.tenant_id, adapter.id)
        job = await queue_job(
            session,
            self._outbox,
            tenant_id=caller.tenant_id,
            adapter_id=adapter.id,
            version=version.version,
            parameters=parameters,
            created_by=caller.created_by,
        )
        self._announcer.changed(session, caller.tenant_id)
        return version, job.id


async def _audit(
    session: WriteSession, caller: Caller, event_type: str, adapter: Adapter, version: AdapterVersion
) -> None:
    details = {"name": adapter.name, "version": version.version, "activate": version.activate}
    await AuditLog.record(
        session, caller.tenant_id, caller.actor, event_type, ("adapter", adapter.id), details
    )


def _parameters(copies: Copies, calibration: Calibration) -> dict[str, Any]:
    """Returns the job's parameters: only those that differ from the default."""
    parameters: dict[str, Any] = {}
    if copies.calibration is not None:
        parameters["calibration"] = copies.calibration
    if calibration.dtype != "auto":
        parameters["dtype"] = calibration.dtype
    return parameters
