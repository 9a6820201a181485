"""Imports a version's files in its job: looks them up, downloads them, and hands them on as an upload would.

What was looked up is stored in the job (`pinned`), so that a later attempt goes on with the same files. Each
file becomes one of the tenant's, inspected and within its storage limit, and then a copy of the version's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from adapters.errors import InvalidAdapter
from adapters.files.description import describe
from adapters.files.errors import FileError, StorageLimitReached
from adapters.files.ingestion import now
from adapters.files.models import Purpose, StoredFile
from adapters.files.repository import FileRepository
from adapters.files.service import FileService
from adapters.imports.admission import ImportAdmission
from adapters.imports.bucket import BucketRemote
from adapters.imports.client import ImportClient
from adapters.imports.download import PAUSES, FileDownload
from adapters.imports.hub import HubRemote
from adapters.imports.remote import Pinned, Remote, RemoteFile
from adapters.imports.sources import HubSource
from adapters.inspection import InspectionRefused
from adapters.jobs.errors import JobFailed
from adapters.jobs.lease import Lease
from adapters.jobs.models import IMPORT
from adapters.models import Adapter, VersionState
from adapters.object_keys import GIVEN_FILES
from adapters.source_copies import Copies, SourceCopies
from adapters.storage.errors import StorageUnavailable
from adapters.storage.locks import locked
from adapters.storage.objects import ObjectStore
from adapters.storage.receiving import Received, on_disk
from adapters.versions import locked_version
from tenants.outbound.errors import AddressRefused, EndpointUnreachable
from tenants.repository import TenantDirectory
from tenants.views import STANDARD

PINNED = "pinned"
PIN_TIMEOUTS = 4
"""Times the timeout without a byte that looking the files up may take."""
KEEP_FILES_S = 24 * 3600
"""The version has copies of its own; the tenant's files are kept for a day, to be used again."""

Progress = Callable[[int, int], None]
"""Reports (done, total) bytes."""


class AdapterImporter:
    """The imports of one process. A `pipeline.Importer`.

    Args:
        pauses: seconds before each retry, see `download.PAUSES`.
    """

    def __init__(
        self,
        store: ObjectStore,
        files: FileService,
        copies: SourceCopies,
        admission: ImportAdmission,
        client: ImportClient,
        *,
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        self._store = store
        self._files = files
        self._copies = copies
        self._admission = admission
        self._client = client
        self._pauses = pauses

    async def run(self, lease: Lease, progress: Progress) -> None:
        """Imports the files of the job's version, if it still waits for them. Raises JobFailed, LeaseLost,
        Interrupted, VersionDeleted, StorageUnavailable, DatabaseUnavailable, SandboxUnavailable.
        """
        async with lease.write() as held:
            stored = held.job.parameters.get(IMPORT)
        if stored is None:
            return
        try:
            await self._run(lease, stored, progress)
        except JobFailed:
            for name in GIVEN_FILES:
                await on_disk(partial_path(self._store, lease.job.id, name).unlink, True)
            raise
        except OSError as error:
            raise StorageUnavailable(f"scratch: {error.strerror or error}") from error

    async def _run(self, lease: Lease, stored: dict[str, Any], progress: Progress) -> None:
        remote = self._remote(lease, stored)
        pinned = await self._pinned(lease, stored, remote)
        adapter = await self._check_room(lease, pinned)
        received = await self._download(lease, remote, pinned, progress)
        try:
            files = {name: await self._keep(lease, name, one) for name, one in received.items()}
            async with self._copies.made(adapter, files) as copies:
                await self._finish(lease, copies)
        except InspectionRefused as refused:
            raise JobFailed("adapter_invalid", str(refused), refused.field) from refused
        except FileError as refused:
            raise _refused(refused) from refused

    # Looking up -------------------------------------------------------------------------------------------

    def _remote(self, lease: Lease, stored: dict[str, Any]) -> Remote:
        try:
            source = self._admission.opened(stored, lease.job.tenant_id, lease.job.adapter_id)
        except InvalidAdapter as refused:
            raise JobFailed("source_refused", f"{refused}", refused.field) from refused
        except ValueError as error:
            message = "The credentials of the import cannot be decrypted any more: add the version again."
            raise JobFailed("source_forbidden", message, "source") from error
        if isinstance(source, HubSource):
            return HubRemote(self._client, source)
        return BucketRemote(self._client, source)

    async def _pinned(self, lease: Lease, stored: dict[str, Any], remote: Remote) -> Pinned:
        if PINNED in stored:
            return Pinned.of(stored[PINNED])
        try:
            pinned = await _retried(remote.pin, self._pauses, PIN_TIMEOUTS * self._client.policy.timeout)
        except AddressRefused as error:
            raise JobFailed("source_refused", f"The source is refused: {error.reason}.", "source") from error
        except EndpointUnreachable as error:
            message = f"The source did not answer: {error.reason}. Add the version again."
            raise JobFailed("source_unavailable", message, "source") from error
        async with lease.write() as held:
            _, version = await locked_version(held.session, held.job)
            held.job.parameters = {
                **held.job.parameters,
                IMPORT: {**held.job.parameters[IMPORT], PINNED: pinned.stored()},
            }
            version.origin = {**(version.origin or {}), "commit": pinned.commit}
            at = f" at commit {pinned.commit}" if pinned.commit else ""
            names = ", ".join(file.name for file in pinned.files)
            message = f"Importing {names}{at}, {pinned.size} bytes."
            held.record_event("version.importing", message, data=pinned.stored())
        return pinned

    async def _check_room(self, lease: Lease, pinned: Pinned) -> Adapter:
        """Returns the version's adapter. Raises JobFailed if the files exceed the tenant's limits."""
        async with lease.write() as held:
            adapter, _ = await locked_version(held.session, held.job)
            plan = await TenantDirectory(held.session).plan_of(held.job.tenant_id)
            largest = STANDARD.max_file_bytes if plan is None else plan.max_file_bytes
            for file in pinned.files:
                if file.size > largest:
                    message = (
                        f"{file.name} has {file.size} bytes; your plan allows files of up to {largest} bytes."
                    )
                    raise JobFailed("file_too_large", message, file.name)
            try:
                files = FileRepository(held.session, held.job.tenant_id)
                await files.require_room(pinned.size, now())
            except StorageLimitReached as refused:
                raise _refused(refused) from refused
        return adapter

    # Downloading ------------------------------------------------------------------------------------------

    async def _download(
        self, lease: Lease, remote: Remote, pinned: Pinned, progress: Progress
    ) -> dict[str, Received]:
        done = dict.fromkeys((file.name for file in pinned.files), 0)
        received = {}
        for file in pinned.files:

            def note(present: int, name: str = file.name) -> None:
                done[name] = present
                progress(sum(done.values()), pinned.size)

            received[file.name] = await self._file(lease.job.id, remote, file, pinned, note)
        return received

    async def _file(
        self, job_id: str, remote: Remote, file: RemoteFile, pinned: Pinned, note: Callable[[int], None]
    ) -> Received:
        path = partial_path(self._store, job_id, file.name)
        await on_disk(lambda: path.parent.mkdir(parents=True, exist_ok=True))
        try:
            opened = await on_disk(locked, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageUnavailable(
                "another worker on this machine still writes the import's file"
            ) from None
        with contextlib.closing(opened):
            download = FileDownload(self._client, remote, file, pinned, opened, note, self._pauses)
            sha256 = await download.run()
        return Received(path, file.size, sha256, md5="")

    async def _keep(self, lease: Lease, name: str, received: Received) -> StoredFile:
        """Makes a downloaded file one of the tenant's, as an upload does."""
        job = lease.job
        said = describe(Purpose.ADAPTER, name, KEEP_FILES_S)
        return await self._files.keep(job.tenant_id, job.created_by, said, received)

    async def _finish(self, lease: Lease, copies: Copies) -> None:
        """Gives the version its files; the credentials are removed in the same transaction."""
        async with lease.write() as held:
            _, version = await locked_version(held.session, held.job)
            version.sources, version.state = copies.sources, VersionState.VALIDATING
            version.uploader_key = copies.uploader_key
            held.job.parameters = {
                name: value for name, value in held.job.parameters.items() if name != IMPORT
            }
            names = ", ".join(sorted(copies.sources))
            held.record_event(
                "version.imported", f"The files of version {version.version} are imported: {names}."
            )


def partial_path(store: ObjectStore, job_id: str, name: str) -> Path:
    """Returns where a file is downloaded to. The clean-up of the scratch directory removes abandoned ones."""
    return store.scratch / f"{job_id}.{name}.partial"


async def _retried(
    action: Callable[[], Awaitable[Pinned]], pauses: tuple[float, ...], seconds: float
) -> Pinned:
    """Returns what `action` returns, within so many seconds; tries again after each pause."""
    for pause in (*pauses, None):
        try:
            async with asyncio.timeout(seconds):
                return await action()
        except AddressRefused:
            raise
        except (EndpointUnreachable, TimeoutError) as error:
            if pause is None:
                reason = (
                    error.reason if isinstance(error, EndpointUnreachable) else f"not within {seconds:g} s"
                )
                raise EndpointUnreachable(reason) from error
        await asyncio.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _refused(error: FileError) -> JobFailed:
    code = "storage_limit_reached" if isinstance(error, StorageLimitReached) else "adapter_invalid"
    return JobFailed(code, f"{error}", error.field)
