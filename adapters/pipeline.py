"""Runs a job: imports a version's files if they were not uploaded, inspects and packs them, measures them on
the engine, and makes the version ready or not.

Every phase may run twice, and a phase that an earlier attempt finished is skipped; every write requires the
job's lease. `steps` does the work of each phase; `jobs.execution` decides what an interruption or an error
means.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from adapters.announcer import Announcer
from adapters.inspection import Inspection, InspectionRefused
from adapters.jobs.errors import JobFailed
from adapters.jobs.execution import retry_unavailable
from adapters.jobs.lease import Lease, LeaseTransaction
from adapters.jobs.models import IMPORT, IMPORTING, Job
from adapters.jobs.service import fail, succeed
from adapters.model_names import ModelName
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.signing.notes import note_signed
from adapters.signing.signer import MadeSignature
from adapters.storage.errors import DigestMismatch, ObjectNotFound, StorageUnavailable
from adapters.versions import (
    PackedArtifact,
    finish_ready,
    locked_version,
    note_calibrated,
    note_inspected,
    note_packed,
)
from db.session import WriteSession
from tenants.repository import TenantDirectory

DTYPES = ("bfloat16", "float8_e4m3")
"""Types every adapter is packed in. Calibration decides which one serves."""

SHARES = {
    "validating": (0.0, 0.05),
    "packing": (0.05, 0.15),
    "calibrating": (0.15, 0.97),
    "gate": (0.97, 1.0),
}
"""Share of the whole work at which each phase starts and ends; after an import, of what follows it."""
IMPORT_SHARE = 0.3
"""Share of the whole work of a job that imports files which is their import."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """A job's input, read once."""

    job_id: str
    tenant_id: str
    adapter_id: str
    version: int
    model: str
    """The pinned form of the model name."""
    base: str
    base_digest: str
    sources: Mapping[str, Mapping[str, Any]]
    """By file name, its object's `key` and `sha256`."""
    artifacts: Mapping[str, PackedArtifact]
    """By dtype; empty until it is packed."""
    gate: Mapping[str, Any]
    """Thresholds of the tenant's plan."""
    samples: Mapping[str, Any] | None
    """The object of the tenant's own samples, if any."""
    dtype: str | None
    """The dtype that the tenant requested, if any."""

    @classmethod
    def of(cls, job: Job, adapter: Adapter, version: AdapterVersion, gate: Mapping[str, Any]) -> JobInput:
        return cls(
            job_id=job.id,
            tenant_id=job.tenant_id,
            adapter_id=job.adapter_id,
            version=job.version,
            model=str(ModelName(adapter.base, adapter.name, job.version)),
            base=adapter.base,
            base_digest=version.base_digest,
            sources=version.sources,
            artifacts={
                dtype: PackedArtifact(one["digest"], one["size"], version.rank or 0)
                for dtype, one in version.artifacts.items()
            },
            gate=gate,
            samples=job.parameters.get("calibration"),
            dtype=None if job.parameters.get("dtype", "auto") == "auto" else job.parameters["dtype"],
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a calibration."""

    ready: bool
    dtype: str
    why_not: str
    """Reasons for the tenant; empty when ready."""
    summary: Mapping[str, Any]
    """Stored with the version."""
    report: bytes | None = None
    """The report, as it is stored; its digest is signed."""


Progress = Callable[[int, int], None]
"""Reports (done, total) of a phase."""


class Steps(Protocol):
    """The work of each phase. Any method may raise StorageUnavailable and is then retried."""

    async def open(self) -> None:
        """Called before a job."""
        ...

    async def close(self) -> None:
        """Called after a job."""
        ...

    async def fetch(self, work: JobInput, directory: Path) -> None:
        """Downloads the version's files as they were uploaded. Raises ObjectNotFound, DigestMismatch."""
        ...

    async def inspect(self, work: JobInput, directory: Path) -> Inspection:
        """Inspects the files. Raises InspectionRefused."""
        ...

    async def pack(self, work: JobInput, directory: Path, progress: Progress) -> dict[str, PackedArtifact]:
        """Packs the files, and puts the artifacts into the store and where the engine finds them. Raises
        InspectionRefused.
        """
        ...

    async def ensure_artifacts(self, work: JobInput) -> None:
        """Puts missing artifacts where the engine finds them, and signs those that are not. Raises
        ObjectNotFound, DigestMismatch.
        """
        ...

    async def calibrate(
        self, work: JobInput, directory: Path, progress: Progress, waiting: Callable[[str], Awaitable[None]]
    ) -> Verdict:
        """Measures the adapter and stores the report. Calls `waiting` with the reason when it waits for the
        engine. Raises JobFailed.
        """
        ...

    async def sign(self, work: JobInput, report: bytes | None) -> MadeSignature | None:
        """Signs the version's files with the report. Returns None where the platform has no signing key."""
        ...

    async def forget(self, work: JobInput) -> None:
        """Removes the checkpoint of a finished calibration."""
        ...


class Importer(Protocol):
    """Imports the files of versions that were not uploaded."""

    async def run(self, lease: Lease, progress: Progress) -> None:
        """Gives the version its files, and ends the job's `IMPORT` parameter. Raises JobFailed."""
        ...


class AdapterPipeline:
    """Runs jobs in one process. A `jobs.execution.Pipeline`."""

    def __init__(
        self,
        steps: Mapping[str, Steps],
        announcer: Announcer,
        scratch: Path | None = None,
        importer: Importer | None = None,
    ) -> None:
        """`steps`: by base model. `scratch`: directory for working files; the system's temporary directory
        when None. `importer`: None where no version is imported.
        """
        self._importer = importer
        self._steps = steps
        self._announcer = announcer
        self._scratch = scratch

    def announce(self, session: WriteSession, tenant_id: str) -> None:
        """Implements `jobs.execution.Pipeline.announce`."""
        self._announcer.changed(session, tenant_id)

    async def run(self, lease: Lease) -> None:
        """Implements `jobs.execution.Pipeline.run`."""
        directory = Path(
            await asyncio.to_thread(tempfile.mkdtemp, prefix="rootstock-job-", dir=self._scratch)
        )
        try:
            await _Attempt(lease, self._steps, self._announcer, directory, self._importer).run()
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


class _Attempt:
    """One run through the phases."""

    def __init__(
        self,
        lease: Lease,
        steps: Mapping[str, Steps],
        announcer: Announcer,
        directory: Path,
        importer: Importer | None,
    ) -> None:
        self._lease = lease
        self._steps_by_base = steps
        self._announcer = announcer
        self._directory = directory
        self._importer = importer
        self._offset = 0.0
        """Share of the work that the import was."""

    async def run(self) -> None:
        await self._import()
        work = await self._load()
        steps = self._steps_by_base.get(work.base)
        if steps is None:
            raise JobFailed("base_changed", f"The base model {work.base} is no longer served.", "base_model")
        self._steps = steps
        try:
            await steps.open()
            await self._run(work)
        finally:
            await steps.close()

    async def _run(self, work: JobInput) -> None:
        try:
            await retry_unavailable(lambda: self._steps.fetch(work, self._directory))
            if not work.artifacts:
                await self._validate(work)
                work = replace(work, artifacts=await self._pack(work))
            verdict = await self._calibrate(work)
            signature = await retry_unavailable(lambda: self._steps.sign(work, verdict.report))
        except InspectionRefused as refused:
            raise JobFailed("adapter_invalid", str(refused), refused.field) from refused
        except (ObjectNotFound, DigestMismatch) as damaged:
            reason = "A stored file of the version is missing or damaged; upload it again."
            raise JobFailed("file_damaged", reason) from damaged
        await self._conclude(verdict, signature)
        with contextlib.suppress(StorageUnavailable):  # it is removed with its adapter later
            await self._steps.forget(work)

    async def _import(self) -> None:
        """Imports the version's files if they are not here yet."""
        if IMPORT not in self._lease.job.parameters:
            return
        assert self._importer is not None, "a process that runs jobs imports files"
        progress = self._enter(IMPORTING)
        importer = self._importer
        await retry_unavailable(lambda: importer.run(self._lease, progress))
        self._offset = IMPORT_SHARE

    async def _load(self) -> JobInput:
        async def once() -> JobInput:
            async with self._lease.write() as held:
                adapter, version = await locked_version(held.session, held.job)
                if version.state == VersionState.UPLOADING:
                    version.state = VersionState.VALIDATING
                plan = await TenantDirectory(held.session).plan_of(held.job.tenant_id)
                gate = plan.gate if plan is not None else {}
                return JobInput.of(held.job, adapter, version, gate)

        return await retry_unavailable(once)

    async def _validate(self, work: JobInput) -> None:
        self._enter("validating")
        inspection = await self._steps.inspect(work, self._directory)
        await self._write(
            lambda held: note_inspected(held.session, held.job, msgspec.to_builtins(inspection))
        )

    async def _pack(self, work: JobInput) -> dict[str, PackedArtifact]:
        progress = self._enter("packing")
        artifacts = await retry_unavailable(lambda: self._steps.pack(work, self._directory, progress))
        await self._write(lambda held: note_packed(held.session, held.job, artifacts))
        return artifacts

    async def _calibrate(self, work: JobInput) -> Verdict:
        progress = self._enter("calibrating")
        await retry_unavailable(lambda: self._steps.ensure_artifacts(work))
        verdict = await retry_unavailable(
            lambda: self._steps.calibrate(work, self._directory, progress, self._tell_waiting)
        )
        self._enter("gate")
        return verdict

    async def _conclude(self, verdict: Verdict, signature: MadeSignature | None) -> None:
        """Ends the job and sets its version's state, in one transaction."""

        async def write(held: LeaseTransaction) -> None:
            _, version = await locked_version(held.session, held.job)
            held.job.phase = "gate"
            await note_calibrated(held.session, held.job, verdict.summary, verdict.dtype)
            if signature is not None:
                await note_signed(held.session, version, signature, job_id=held.job.id)
            if verdict.ready or version.override_reason is not None:
                await finish_ready(held.session, held.job, self._announcer)
                succeed(held.session, held.job, dict(verdict.summary))
            else:
                held.job.result = dict(verdict.summary)
                fail(held.session, held.job, version, JobFailed("gate_failed", verdict.why_not))
                self._announcer.changed(held.session, held.job.tenant_id)

        async def once() -> None:
            async with self._lease.conclude() as held:
                await write(held)

        await retry_unavailable(once)

    # ------------------------------------------------------------------------------------------------------

    async def _write(self, write: Callable[[LeaseTransaction], Awaitable[None]]) -> None:
        async def once() -> None:
            async with self._lease.write() as held:
                await write(held)

        await retry_unavailable(once)

    async def _tell_waiting(self, reason: str) -> None:
        async def write(held: LeaseTransaction) -> None:
            held.record_event("job.waiting", reason, level="warning")

        await self._write(write)

    def _shares(self, phase: str) -> tuple[float, float]:
        if phase == IMPORTING:
            return 0.0, IMPORT_SHARE
        first, last = SHARES[phase]
        rest = 1 - self._offset
        return self._offset + rest * first, self._offset + rest * last

    def _enter(self, phase: str) -> Progress:
        """Records the start of a phase; returns the callback that reports its progress."""
        first, last = self._shares(phase)
        began = time.monotonic()
        start: list[float] = []
        self._lease.progress(phase, first)

        def progress(done: int, total: int) -> None:
            share = done / total if total else 1.0
            # The part restored from a checkpoint says nothing about the speed.
            start.append(share) if not start else None
            gained = share - start[0]
            elapsed = time.monotonic() - began
            rest = (1 - share) * elapsed / gained if gained > 0 else None
            self._lease.progress(phase, first + (last - first) * share, rest)

        return progress
