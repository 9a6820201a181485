"""Making adapters and versions from uploaded files: copied, looked at, written down, handed to a worker.

Owns the order: the copies come first and lie where nobody looks; then they are inspected; then one
transaction makes the version, its job and the message that starts it. Whatever ends it before that leaves
copies that no row names: they are removed here, or by the sweep (`deletion`) when this process was killed or
cannot tell whether the transaction was committed. Refuses to know HTTP, and what the job does.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import structlog

from adapters import events
from adapters.announcing import Announcer
from adapters.catalogue import name_of
from adapters.errors import AdapterLimitReached, AdapterNotFound, InvalidAdapter
from adapters.files.models import Purpose, StoredFile
from adapters.files.service import FileService
from adapters.files.uploads import UploadService
from adapters.inspection import Sandbox
from adapters.jobs.service import queue_job
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.names import MAX_DESCRIPTION, ModelName, checked_part, checked_text
from adapters.objects import CONFIG_FILE, SOURCE_FILES, WEIGHTS_FILE, source_key
from adapters.repository import AdapterRepository
from adapters.storage import ObjectNotFound, ObjectStore, StorageUnavailable, StoredObject
from db.base import new_id
from db.errors import DatabaseUnavailable
from db.outbox import Outbox
from db.session import Database, WriteSession
from tenants.errors import NameTaken
from tenants.views import PlanView

log = structlog.get_logger(__name__)

WHOLE_INSPECTION = 32 << 20
"""Bytes of both files up to which all values are read before the answer; the job reads them in any case."""
HEADER_READ = (1 << 20) + 8
"""Bytes of a larger file that hold its header, or show that it has none."""
CALIBRATION_FILE = "calibration.jsonl"
DTYPES = ("auto", "bfloat16", "float8_e4m3")
Dtype = Literal["auto", "bfloat16", "float8_e4m3"]


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf, and what they may."""

    tenant_id: str
    created_by: str
    plan: PlanView


@dataclass(frozen=True, slots=True)
class Calibration:
    """How the version is to be measured."""

    file_id: str | None = None
    """The tenant's own samples; None: the default set."""
    dtype: Dtype = "auto"
    """Of the packed weights; auto: whichever does."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a version is to be made of. One of the two lists is given, with both files in any order."""

    file_ids: Sequence[str] | None = None
    upload_ids: Sequence[str] | None = None
    activate: bool = True
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A version that is on its way, or that was there already."""

    adapter: Adapter
    version: AdapterVersion
    job_id: str | None
    created: bool


@dataclass(frozen=True, slots=True)
class _Copies:
    """A version's files under their own keys."""

    sources: dict[str, dict[str, Any]]
    calibration: dict[str, Any] | None


class AdapterSubmission:
    """Takes uploads on one base model."""

    def __init__(
        self,
        database: Database,
        announcer: Announcer,
        store: ObjectStore,
        files: FileService,
        uploads: UploadService,
        sandbox: Sandbox,
        outbox: Outbox,
        base: str,
        base_config: Path,
    ) -> None:
        """`base_config`: the base's `config.json`."""
        self._database = database
        self._announcer = announcer
        self._store = store
        self._files = files
        self._uploads = uploads
        self._sandbox = sandbox
        self._outbox = outbox
        self._base = base
        self._base_config = base_config

    async def create(
        self,
        caller: Caller,
        name: str,
        submission: Submission,
        *,
        base_digest: str,
        description: str | None = None,
    ) -> Submitted:
        """A new adapter and its first version. Raises NameTaken, AdapterLimitReached, InvalidAdapter,
        InspectionRefused, what the services of files raise, ValueError naming the field.
        """
        checked_part("name", name)
        checked_text("description", description or "", MAX_DESCRIPTION)
        async with self._database.read() as session:
            await self._refuse(AdapterRepository(session, caller.tenant_id), caller.plan, name)
        files = await self._files_of(caller.tenant_id, submission)
        adapter = Adapter(
            id=new_id("adp"),
            tenant_id=caller.tenant_id,
            base=self._base,
            name=name,
            description=description or None,
            created_by=caller.created_by,
        )
        async with (
            self._copied(caller.tenant_id, adapter.id, files) as copies,
            self._database.write() as session,
        ):
            repository = AdapterRepository(session, caller.tenant_id)
            await repository.hold_tenant()
            await self._refuse(repository, caller.plan, name)
            repository.add_own(adapter)
            await session.flush()
            events.record(session, caller.tenant_id, adapter.id, "adapter.created", f"{name} is made.")
            version, job_id = await self._add(session, caller, adapter, copies, submission, base_digest)
        return Submitted(adapter, version, job_id, created=True)

    async def add_version(
        self, caller: Caller, adapter: str, submission: Submission, *, base_digest: str
    ) -> Submitted:
        """The adapter's next version; the one it has already when that is made of the same files and has not
        failed. Raises AdapterNotFound, and what `create` does of the rest.
        """
        async with self._database.read() as session:
            repository = AdapterRepository(session, caller.tenant_id)
            found = await repository.find(self._base, name_of(self._base, adapter))
        if found is None:
            raise AdapterNotFound(adapter)
        adapter_id = found.id
        files = await self._files_of(caller.tenant_id, submission)
        wanted = {name: files[name].sha256 for name in SOURCE_FILES}
        known = await self._known(caller, adapter_id, wanted, submission.activate)
        if known is not None:
            return known
        async with self._copied(caller.tenant_id, adapter_id, files) as copies:
            async with self._database.write() as session:
                repository = AdapterRepository(session, caller.tenant_id)
                row = await repository.lock(ModelName(adapter_id=adapter_id))
                if row is None:
                    raise AdapterNotFound(adapter)
                if await repository.version_from(adapter_id, wanted) is None:
                    version, job_id = await self._add(session, caller, row, copies, submission, base_digest)
                    return Submitted(row, version, job_id, created=True)
            await self._discard(copies)  # somebody was faster with the very same files
        known = await self._known(caller, adapter_id, wanted, submission.activate)
        if known is None:
            raise AdapterNotFound(adapter)
        return known

    # The request ------------------------------------------------------------------------------------------

    async def _refuse(self, repository: AdapterRepository, plan: PlanView, name: str) -> None:
        if await repository.find(self._base, ModelName(self._base, name)) is not None:
            raise NameTaken("adapter name", name)
        if await repository.count() >= plan.max_adapters:
            raise AdapterLimitReached(plan.max_adapters)

    async def _files_of(self, tenant_id: str, submission: Submission) -> dict[str, StoredFile]:
        """The files meant, by what they are."""
        if (submission.file_ids is None) == (submission.upload_ids is None):
            raise InvalidAdapter("file_ids", "give either file_ids or upload_ids, with both files")
        param, file_ids = "file_ids", submission.file_ids
        if submission.upload_ids is not None:
            param, file_ids = "upload_ids", await self._uploaded(tenant_id, submission.upload_ids)
        assert file_ids is not None
        found: dict[str, StoredFile] = {}
        for file_id in file_ids:
            file = await self._files.get(tenant_id, file_id)
            if file.purpose != Purpose.ADAPTER:
                raise InvalidAdapter(param, f"{file_id} was uploaded for the purpose '{file.purpose}'")
            kind = CONFIG_FILE if file.filename.lower().endswith(".json") else WEIGHTS_FILE
            if kind in found:
                raise InvalidAdapter(param, f"give one {WEIGHTS_FILE} and one {CONFIG_FILE}")
            found[kind] = file
        if len(found) != len(SOURCE_FILES):
            raise InvalidAdapter(param, f"give one {WEIGHTS_FILE} and one {CONFIG_FILE}")
        calibration_id = submission.calibration.file_id
        if calibration_id is not None:
            file = await self._files.get(tenant_id, calibration_id)
            if file.purpose != Purpose.CALIBRATION:
                raise InvalidAdapter(
                    "calibration.file_id", f"{calibration_id} was uploaded for the purpose '{file.purpose}'"
                )
            found[CALIBRATION_FILE] = file
        return found

    async def _uploaded(self, tenant_id: str, upload_ids: Sequence[str]) -> list[str]:
        file_ids = []
        for upload_id in upload_ids:
            upload = (await self._uploads.get(tenant_id, upload_id)).upload
            if upload.file_id is None:
                raise InvalidAdapter("upload_ids", f"{upload_id} is {upload.status}, not completed")
            file_ids.append(upload.file_id)
        return file_ids

    async def _known(
        self, caller: Caller, adapter_id: str, wanted: Mapping[str, str], activate: bool
    ) -> Submitted | None:
        """The version that these files have become, which is active now, or will be, when that is wanted."""
        async with self._database.write() as session:
            repository = AdapterRepository(session, caller.tenant_id)
            adapter = await repository.lock(ModelName(adapter_id=adapter_id))
            found = None if adapter is None else await repository.version_from(adapter_id, wanted)
            if adapter is None or found is None:
                return None
            if activate and found.state == VersionState.READY:
                await self._announcer.activate(session, adapter, found)
            elif activate and found.state in events.PENDING:
                found.activate = True
        return Submitted(adapter, found, None, created=False)

    # Copies -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _copied(
        self, tenant_id: str, adapter_id: str, files: Mapping[str, StoredFile]
    ) -> AsyncIterator[_Copies]:
        """The files under keys of their own, inspected; gone again when the block fails."""
        source_id = new_id("src")
        keys = {name: source_key(tenant_id, adapter_id, source_id, name) for name in files}
        try:
            made = {name: await self._copy(file, keys[name]) for name, file in files.items()}
            await self._inspect(files, keys)
            described = {
                name: {
                    "key": stored.key,
                    "size": stored.size,
                    "sha256": files[name].sha256,
                    "filename": files[name].filename,
                    "file_id": files[name].id,
                }
                for name, stored in made.items()
            }
            calibration = described.pop(CALIBRATION_FILE, None)
            yield _Copies(described, calibration)
        except DatabaseUnavailable:
            raise
        except Exception:
            await self._remove(keys.values())
            raise

    async def _copy(self, file: StoredFile, key: str) -> StoredObject:
        try:
            return await self._store.copy(file.object_key, key)
        except ObjectNotFound:
            # Deleted since it was looked up: says so, unless the row is there and its object is not.
            await self._files.get(file.tenant_id, file.id)
            raise

    async def _discard(self, copies: _Copies) -> None:
        kept = [source["key"] for source in copies.sources.values()]
        await self._remove([*kept, *([copies.calibration["key"]] if copies.calibration else [])])

    async def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            with contextlib.suppress(StorageUnavailable):  # then the sweep does it
                await self._store.delete(key)

    async def _inspect(self, files: Mapping[str, StoredFile], keys: Mapping[str, str]) -> None:
        """All of it where that is quick; of a large file the header, which shows all but its values."""
        whole = sum(files[name].size for name in SOURCE_FILES) <= WHOLE_INSPECTION
        self._store.scratch.mkdir(parents=True, exist_ok=True)
        weights, config = (self._store.scratch / new_id("look") for _ in SOURCE_FILES)
        try:
            await self._store.fetch(keys[CONFIG_FILE], config, sha256=files[CONFIG_FILE].sha256)
            if whole:
                await self._store.fetch(keys[WEIGHTS_FILE], weights, sha256=files[WEIGHTS_FILE].sha256)
            else:
                with weights.open("wb") as file:
                    async for piece in self._store.get(keys[WEIGHTS_FILE], start=0, length=HEADER_READ):
                        file.write(piece)
                    file.truncate(files[WEIGHTS_FILE].size)  # the rest is a hole that takes no room
            await self._sandbox.inspect(weights, config, self._base_config, values=whole)
        finally:
            for path in (weights, config):
                path.unlink(missing_ok=True)

    # Rows -------------------------------------------------------------------------------------------------

    async def _add(
        self,
        session: WriteSession,
        caller: Caller,
        adapter: Adapter,
        copies: _Copies,
        submission: Submission,
        base_digest: str,
    ) -> tuple[AdapterVersion, str]:
        """The next version of an adapter that is locked or new, and its job."""
        repository = AdapterRepository(session, caller.tenant_id)
        version = AdapterVersion(
            adapter_id=adapter.id,
            version=await repository.latest_version(adapter.id) + 1,
            tenant_id=caller.tenant_id,
            base_digest=base_digest,
            sources=copies.sources,
            activate=submission.activate,
            state=VersionState.VALIDATING,
            created_by=caller.created_by,
        )
        repository.add_own(version)
        await session.flush()
        events.record(
            session,
            caller.tenant_id,
            adapter.id,
            "version.created",
            f"Version {version.version} is made of {', '.join(sorted(copies.sources))}.",
            version=version.version,
        )
        job = await queue_job(
            session,
            self._outbox,
            tenant_id=caller.tenant_id,
            adapter_id=adapter.id,
            version=version.version,
            parameters=_parameters(copies, submission.calibration),
            created_by=caller.created_by,
        )
        self._announcer.changed(session, caller.tenant_id)
        return version, job.id


def _parameters(copies: _Copies, calibration: Calibration) -> dict[str, Any]:
    """What the job is told: only what differs from the default."""
    parameters: dict[str, Any] = {}
    if copies.calibration is not None:
        parameters["calibration"] = copies.calibration
    if calibration.dtype != "auto":
        parameters["dtype"] = calibration.dtype
    return parameters
