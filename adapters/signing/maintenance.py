"""Signs versions that lack a signature of the platform's key, and checks the stored files of others.

For workers: both go on where an interruption left off, and do a bounded part at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.jobs.repository import JobRepository
from adapters.models import AdapterVersion
from adapters.object_keys import report_prefix
from adapters.repository import AdapterRepository
from adapters.signing.models import AdapterSignature
from adapters.signing.notes import note_checked, note_signed
from adapters.signing.repository import SignatureDirectory, SignatureRepository
from adapters.signing.signer import SignedFiles, VersionSigner
from adapters.signing.stored import StoredVersions, signs_deleted_sources, verify_row
from adapters.storage import DigestMismatch, ObjectNotFound, ObjectStore
from db.session import EVERY_TENANT, Database, WriteSession
from engine.signing import folder
from engine.signing.errors import SignatureError

log = structlog.get_logger(__name__)

PAGE = 20
"""Versions of one run."""
CHECK_EVERY = timedelta(days=7)
"""A version's stored files are read that often."""
_REPORTS_TRIED = 5

OnChanged = Callable[[WriteSession, str], None]
"""Announces after the commit that a version of the tenant has changed."""


class SignatureMaintenance:
    def __init__(
        self,
        database: Database,
        store: ObjectStore,
        signer: VersionSigner,
        stored: StoredVersions,
        on_changed: OnChanged,
    ) -> None:
        self._database = database
        self._store = store
        self._signer = signer
        self._stored = stored
        self._on_changed = on_changed

    async def sign_pending(self, limit: int = PAGE) -> int:
        """Signs versions in service that have no signature, or one of another key; returns how many. Raises
        StorageUnavailable, DatabaseUnavailable.
        """
        async with self._database.read(EVERY_TENANT) as session:
            found = await SignatureDirectory(session).to_sign(self._signer.key_id, limit)
        return sum([await self.sign(*row) for row in found])

    async def sign(self, tenant_id: str, adapter_id: str, version: int, *, anyway: bool = False) -> bool:
        """Signs one version as its row describes it; returns whether it did. A signature that it has must
        hold, or the version is refused instead: damage is not signed. `anyway`: the operator vouches for
        the row.
        """
        async with self._database.read(tenant_id) as session:
            row, earlier = await _read(session, tenant_id, adapter_id, version)
        if row is None:
            return False
        files = SignedFiles.of_version(row)
        try:
            report, key = await self._report(row, None if anyway else earlier)
        except SignatureError as error:
            await self._note(row, str(error), datetime.now(UTC))
            return False
        made = await self._signer.sign(files, report, key)
        async with self._database.write(tenant_id) as session:
            locked = await _locked(session, tenant_id, adapter_id, version)
            now = await SignatureRepository(session, tenant_id).find(adapter_id, version)
            is_signed = (None if now is None else now.bundle) != (None if earlier is None else earlier.bundle)
            if locked is None or is_signed or SignedFiles.of_version(locked) != files:
                return False  # it changed meanwhile, or its job has signed it
            await note_signed(session, locked, made)
            self._on_changed(session, tenant_id)
        return True

    async def check_due(self, now: datetime, limit: int = PAGE) -> int:
        """Compares the stored files of versions that were not compared for `CHECK_EVERY` with their
        signatures; returns how many are refused from now on. Raises StorageUnavailable, DatabaseUnavailable.
        """
        async with self._database.read(EVERY_TENANT) as session:
            found = await SignatureDirectory(session).to_check(now - CHECK_EVERY, limit)
        return sum([await self.check(*row, now) is not None for row in found])

    async def check(self, tenant_id: str, adapter_id: str, version: int, now: datetime) -> str | None:
        """Compares the stored files of one signed version; returns what is wrong. The version is refused, or
        served again, from within a second on. One whose sources were deleted by a period is signed anew
        without them, so that what is exported of it verifies.
        """
        async with self._database.read(tenant_id) as session:
            row, signature = await _read(session, tenant_id, adapter_id, version)
        if row is None or signature is None:
            return None
        problem, has_lost_sources = None, False
        try:
            verified = await self._stored.check(row, signature)
            has_lost_sources = signs_deleted_sources(row, verified)
            if await self._stored.lacks_signature(row):
                report, _ = await self._report(row, signature)
                await self._signer.place(SignedFiles.of_version(row), signature.bundle, report)
        except SignatureError as error:
            problem = str(error)
            log.error("version is not what was signed", adapter_id=adapter_id, version=version, why=problem)
        await self._note(row, problem, now)
        if has_lost_sources:
            await self.sign(tenant_id, adapter_id, version)
        return problem

    async def _note(self, row: AdapterVersion, problem: str | None, now: datetime) -> None:
        async with self._database.write(row.tenant_id) as session:
            locked = await _locked(session, row.tenant_id, row.adapter_id, row.version)
            if locked is not None and await note_checked(session, locked, problem, now):
                self._on_changed(session, row.tenant_id)

    async def _report(
        self, row: AdapterVersion, earlier: AdapterSignature | None
    ) -> tuple[bytes | None, str | None]:
        """Returns the version's calibration report and its key, both None without one. Raises SignatureError
        when an earlier signature, or the report that it covers, does not hold.
        """
        if earlier is not None:
            verified = verify_row(row, earlier, self._signer.trusted)
            if earlier.report_key is None:
                return None, None
            report = await self._read_report(earlier.report_key)
            if report is None:
                raise SignatureError(folder.REPORT, "the stored file is missing or damaged")
            folder.check_content(verified, folder.REPORT, report)
            return report, earlier.report_key
        async with self._database.read(row.tenant_id) as session:
            jobs = await JobRepository(session, row.tenant_id).page(
                adapter_id=row.adapter_id, after=None, limit=100, newest_first=True
            )
        measured = [job for job in jobs if job.version == row.version and job.result is not None]
        for job in measured[:_REPORTS_TRIED]:
            key = f"{report_prefix(row.tenant_id, row.adapter_id, job.id)}report.json"
            report = await self._read_report(key)
            if report is not None:
                return report, key
        return None, None

    async def _read_report(self, key: str) -> bytes | None:
        try:
            return b"".join([piece async for piece in self._store.get(key)])
        except (ObjectNotFound, DigestMismatch):
            return None


async def _read(
    session: AsyncSession, tenant_id: str, adapter_id: str, version: int
) -> tuple[AdapterVersion | None, AdapterSignature | None]:
    row = await AdapterRepository(session, tenant_id).version(adapter_id, version)
    return row, await SignatureRepository(session, tenant_id).find(adapter_id, version)


async def _locked(
    session: WriteSession, tenant_id: str, adapter_id: str, version: int
) -> AdapterVersion | None:
    return await AdapterRepository(session, tenant_id).lock_version(adapter_id, version)
