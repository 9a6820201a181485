"""Starts or fails versions that were created before their uploads were complete.

Such a version is `uploading` and its job `validating_files`, which no worker takes; the job stores the upload
ids. When the last upload is completed, the version gets its files and its job is queued, in one transaction;
when an upload can no longer be completed, the version fails. The request that completes or cancels an upload
does this at once; `settle` finds versions left waiting by a crash, and uploads that expired.

Locks are taken in the order uploads, job, adapter, version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import structlog

from adapters.announcer import Announcer
from adapters.errors import InvalidAdapter
from adapters.files.errors import FileNotFound, UploadNotFound
from adapters.files.models import Purpose, StoredFile, Upload, UploadStatus
from adapters.files.repository import FileRepository
from adapters.files.uploads import UploadService, status_of
from adapters.inspection import InspectionRefused, SandboxUnavailable
from adapters.jobs.errors import JobFailed, VersionDeleted
from adapters.jobs.models import PENDING_UPLOADS, Job, JobStatus
from adapters.jobs.repository import JobLeases, JobRepository, record_job_event
from adapters.jobs.service import enqueue, fail
from adapters.models import VersionState
from adapters.object_keys import CONFIG_FILE, SOURCE_FILES, WEIGHTS_FILE
from adapters.repository import AdapterRepository
from adapters.source_copies import Copies, SourceCopies
from adapters.storage import DigestMismatch, ObjectNotFound, StorageUnavailable
from adapters.versions import locked_version
from db.errors import DatabaseUnavailable
from db.outbox import Outbox
from db.session import EVERY_TENANT, Database, WriteSession
from engine.signing.statement import SIGNATURE_FILE

log = structlog.get_logger(__name__)

PAGE = 100
GIVE = f"give one {WEIGHTS_FILE} and one {CONFIG_FILE}, and at most one {SIGNATURE_FILE}"


def file_kind(filename: str) -> str:
    """Returns which of a version's files it is, by its suffix."""
    if filename.lower().endswith(".sig"):
        return SIGNATURE_FILE
    return CONFIG_FILE if filename.lower().endswith(".json") else WEIGHTS_FILE


def is_complete(found: Collection[str]) -> bool:
    """Returns whether the files of these kinds make a version."""
    return set(SOURCE_FILES) <= set(found)


async def find_pending(
    uploads: UploadService, tenant_id: str, upload_ids: Sequence[str]
) -> Mapping[str, str] | None:
    """Returns the upload ids by file kind if one is still pending; None if all are completed.

    Raises UploadNotFound, InvalidAdapter.
    """
    found: dict[str, str] = {}
    statuses = set()
    for upload_id in upload_ids:
        upload = (await uploads.get(tenant_id, upload_id)).upload
        _refuse_ended(upload)
        if upload.purpose != Purpose.ADAPTER:
            raise InvalidAdapter(
                "upload_ids", f"{upload_id} has the purpose '{upload.purpose}': use 'adapter'"
            )
        statuses.add(upload.status)
        found[file_kind(upload.filename)] = upload_id
    if UploadStatus.PENDING not in statuses:
        return None
    if len(found) != len(upload_ids) or not is_complete(found):
        raise InvalidAdapter("upload_ids", GIVE)
    return found


async def lock_uploads(session: WriteSession, tenant_id: str, upload_ids: Collection[str]) -> None:
    """Locks the uploads until the transaction ends, so that a request that ends one finds the version that
    waits.

    Raises UploadNotFound, InvalidAdapter.
    """
    for upload_id in sorted(upload_ids):
        upload = await FileRepository(session, tenant_id).upload(upload_id, lock=True)
        if upload is None:
            raise UploadNotFound(upload_id)
        _refuse_ended(upload)


class PendingUploads:
    """Starts or fails waiting versions. An `adapters.files.uploads.Follower`."""

    def __init__(
        self,
        database: Database,
        announcer: Announcer,
        uploads: UploadService,
        copies: SourceCopies,
        outbox: Outbox,
    ) -> None:
        self._database = database
        self._announcer = announcer
        self._uploads = uploads
        self._copies = copies
        self._outbox = outbox

    async def completed(self, tenant_id: str, upload_id: str) -> None:
        """Starts versions for which this was the last upload. After an outage, `settle` starts them."""
        try:
            async with self._database.read(tenant_id) as session:
                jobs = await JobRepository(session, tenant_id).awaiting(upload_id)
            for job in jobs:
                await self._look(job)
        except (DatabaseUnavailable, StorageUnavailable, SandboxUnavailable) as error:
            log.warning("versions still wait for an upload", upload=upload_id, error=str(error))
        except Exception:  # the upload is completed, whatever happens to waiting versions
            log.exception("versions still wait for an upload", upload=upload_id)

    async def ended(self, session: WriteSession, upload: Upload, refused: InspectionRefused | None) -> None:
        """Fails versions that wait for a locked upload which will not be completed."""
        failure = _failure(upload)
        if refused is not None:
            failure = JobFailed("adapter_invalid", f"{upload.filename}: {refused}", refused.field)
        jobs = JobRepository(session, upload.tenant_id)
        for job in await jobs.awaiting(upload.id, lock=True):
            await self._fail(session, job, failure)

    async def settle(self) -> int:
        """Checks every waiting version; returns how many no longer wait. Raises DatabaseUnavailable,
        StorageUnavailable.
        """
        num_ended, after = 0, ""
        while True:
            async with self._database.read(EVERY_TENANT) as session:
                jobs = await JobLeases(session).awaiting(after, PAGE)
            for job in jobs:
                try:
                    num_ended += await self._look(job)
                except (DatabaseUnavailable, StorageUnavailable):
                    raise
                except Exception:  # one failing version must not stop the others
                    log.exception("a version still waits for its files", job_id=job.id)
            if len(jobs) < PAGE:
                return num_ended
            after = jobs[-1].id

    async def _look(self, job: Job) -> bool:
        """Starts or fails the version if it need not wait any longer; returns whether it did."""
        try:
            files = await self._arrived(job)
            if files is None or job.status != JobStatus.VALIDATING_FILES:
                return False  # a paused job starts when it is resumed
            async with self._database.read(job.tenant_id) as session:
                adapter = await AdapterRepository(session, job.tenant_id).get(job.adapter_id)
            if adapter is None:
                return False  # deleted, and its job cancelled
            if adapter.base not in self._copies.base_configs:
                raise JobFailed("base_changed", f"The base model {adapter.base} is no longer served.")
            async with self._copies.made(adapter, files) as copies:
                async with self._database.write(job.tenant_id) as session:
                    started = await self._start(session, job, copies)
                if not started:
                    await self._copies.discard(copies)
            return started
        except InspectionRefused as refused:
            failure = JobFailed("adapter_invalid", str(refused), refused.field)
        except FileNotFound as absent:
            failure = JobFailed(
                "file_not_found", f"{absent}: it was deleted before the version was created from it"
            )
        except (ObjectNotFound, DigestMismatch):
            failure = JobFailed("file_damaged", "An uploaded file is missing or damaged; upload it again.")
        except JobFailed as ended:
            failure = ended
        async with self._database.write(job.tenant_id) as session:
            held = await self._held(session, job)
            if held is not None:
                await self._fail(session, held, failure)
        return held is not None

    async def _arrived(self, job: Job) -> dict[str, StoredFile] | None:
        """Returns the files by kind; None while one is missing. Raises JobFailed if one will never come."""
        files: dict[str, StoredFile] = {}
        for kind, upload_id in job.parameters[PENDING_UPLOADS].items():
            state = await self._uploads.get(job.tenant_id, upload_id)
            if state.upload.status in (UploadStatus.CANCELLED, UploadStatus.EXPIRED):
                raise _failure(state.upload)
            if state.file is not None:
                files[kind] = state.file
            elif state.upload.file_id is not None:
                raise FileNotFound(state.upload.file_id)
        return files if len(files) == len(job.parameters[PENDING_UPLOADS]) else None

    async def _start(self, session: WriteSession, waiting: Job, copies: Copies) -> bool:
        """Gives the version its files and queues its job; returns False if another request was first."""
        job = await self._held(session, waiting)
        if job is None or job.status != JobStatus.VALIDATING_FILES:
            return False
        try:
            _, version = await locked_version(session, job)
        except VersionDeleted:
            return False
        version.sources, version.state = copies.sources, VersionState.VALIDATING
        version.uploader_key = copies.uploader_key
        job.parameters = {name: value for name, value in job.parameters.items() if name != PENDING_UPLOADS}
        names = ", ".join(sorted(copies.sources))
        record_job_event(
            session, job, "version.uploaded", f"The files of version {version.version} are uploaded: {names}."
        )
        enqueue(session, self._outbox, job)
        self._announcer.changed(session, job.tenant_id)
        return True

    async def _held(self, session: WriteSession, waiting: Job) -> Job | None:
        """Returns the job, locked, if its version still waits."""
        job = await JobRepository(session, waiting.tenant_id).find(waiting.id, lock=True)
        waits = job is not None and job.status in (JobStatus.VALIDATING_FILES, JobStatus.PAUSED)
        return job if job is not None and waits and PENDING_UPLOADS in job.parameters else None

    async def _fail(self, session: WriteSession, job: Job, failure: JobFailed) -> None:
        version = await JobRepository(session, job.tenant_id).lock_version(job.adapter_id, job.version)
        fail(session, job, version, failure)
        self._announcer.changed(session, job.tenant_id)


def _failure(upload: Upload) -> JobFailed:
    what = "has expired" if upload.status in (UploadStatus.EXPIRED, UploadStatus.PENDING) else "was cancelled"
    message = f"The upload {upload.id} of {upload.filename} {what} before it was completed."
    return JobFailed(f"upload_{upload.status}", message, upload.filename)


def _refuse_ended(upload: Upload) -> None:
    status = status_of(upload)
    if status not in (UploadStatus.PENDING, UploadStatus.COMPLETED):
        raise InvalidAdapter("upload_ids", f"{upload.id} is {status}, not completed")
