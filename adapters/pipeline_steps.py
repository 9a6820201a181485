"""Implements the steps of a job with the object store, the sandbox, the packer, the calibration and the
engine.

Stores artifacts, report and checkpoint. Loads torch, so only workers that run jobs import it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import structlog

from adapters.calibration.errors import (
    SamplesInvalid,
    ServingRefused,
    ServingUnavailable,
    SourceInvalid,
)
from adapters.calibration.gate import Gate, StoredDtype
from adapters.calibration.report import CalibrationReport
from adapters.calibration.run import CalibrationRequest, CalibrationStack, calibrate
from adapters.calibration.serving import ScoringAccount
from adapters.calibration.shared import FOLDER, SharedScores
from adapters.inspection import Inspection
from adapters.inspection.sandbox import Sandbox
from adapters.jobs.errors import JobFailed
from adapters.object_keys import (
    CONFIG_FILE,
    SOURCE_FILES,
    WEIGHTS_FILE,
    artifact_key,
    checkpoint_prefix,
    report_prefix,
)
from adapters.packing import pack
from adapters.pipeline import DTYPES, JobInput, Progress, Verdict
from adapters.published_artifacts.publishing import publish_copy, publish_file, read_pieces
from adapters.signing.signer import MadeSignature, SignedFiles, VersionSigner
from adapters.storage import ObjectNotFound, ObjectStore
from adapters.versions import PackedArtifact
from engine.client import EngineClient
from engine.lora.artifact import Dtype, artifact_path
from engine.model.config import load_config
from engine.protocol import AdapterRef, EngineInfo
from routing.replica_set import ReplicaSet
from tokenization.codec import TextCodec

log = structlog.get_logger(__name__)

SAMPLES_FILE = "calibration.jsonl"
REPORT_FILE = "report.json"
QUIET = 2.0
"""Seconds an engine may be away before the job reports that it waits."""
PARTS = {"serving": 0.5, "reference": 0.5}
"""Weights of a calibration's parts in its progress; the two run at the same time."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base model on this machine."""

    name: str
    directory: Path
    codec: TextCodec
    engines: Sequence[str]
    """The endpoints of its engines; calibration measures on the first."""


class AdapterSteps:
    """The steps of one process for adapters of one base. A `pipeline.Steps`."""

    def __init__(
        self,
        store: ObjectStore,
        sandbox: Sandbox,
        base: Base,
        artifacts_dir: Path,
        signer: VersionSigner | None = None,
    ) -> None:
        """`signer`: None where the platform has no signing key."""
        self._store = store
        self._signer = signer
        self._sandbox = sandbox
        self._base = base
        self._artifacts_dir = artifacts_dir
        self._shared = SharedScores(artifacts_dir / FOLDER)
        self._config = load_config(base.directory)
        self._engines: ReplicaSet | None = None

    # The engines are connected for the length of a job: between jobs their messages would go unread ---------

    async def open(self) -> None:
        self._engines = ReplicaSet(self._base.engines, "jobs", base=self._base.name)
        await self._engines.start()

    async def close(self) -> None:
        engines, self._engines = self._engines, None
        if engines is not None:
            await engines.close()

    @property
    def _engine(self) -> EngineClient | None:
        """The engine that calibration measures on: the first that serves, else the first."""
        clients = [] if self._engines is None else self._engines.clients
        return next((one for one in clients if one.ready), clients[0] if clients else None)

    @property
    def ready(self) -> bool:
        """Whether an engine answers. This, `info` and `prefetch` implement `pinning.Engine`."""
        return self._engines is not None and self._engines.ready

    @property
    def info(self) -> EngineInfo | None:
        return None if self._engines is None else self._engines.info

    def prefetch(self, adapter: AdapterRef, pinned: bool | None = None) -> None:
        if self._engines is not None:
            self._engines.prefetch(adapter, pinned)

    # Inspecting ---------------------------------------------------------------------------------------------

    async def fetch(self, work: JobInput, directory: Path) -> None:
        for name in SOURCE_FILES:
            source = work.sources[name]
            await self._store.fetch(source["key"], _source_dir(directory) / name, sha256=source["sha256"])
        if work.samples is not None:
            target = directory / SAMPLES_FILE
            await self._store.fetch(work.samples["key"], target, sha256=work.samples["sha256"])

    async def inspect(self, work: JobInput, directory: Path) -> Inspection:
        source = _source_dir(directory)
        base_config = self._base.directory / "config.json"
        return await self._sandbox.inspect(
            source / WEIGHTS_FILE, source / CONFIG_FILE, base_config, owner=work.tenant_id
        )

    # Packing ------------------------------------------------------------------------------------------------

    async def pack(self, work: JobInput, directory: Path, progress: Progress) -> dict[str, PackedArtifact]:
        packed: dict[str, PackedArtifact] = {}
        for index, dtype in enumerate(DTYPES):
            progress(index, len(DTYPES))
            packed[dtype] = await self._pack(work, directory, cast(Dtype, dtype))
        return packed

    async def _pack(self, work: JobInput, directory: Path, dtype: Dtype) -> PackedArtifact:
        ref = await asyncio.to_thread(
            pack, _source_dir(directory), self._config, work.base_digest, self._artifacts_dir, dtype
        )
        path = artifact_path(self._artifacts_dir, ref.digest)
        key = artifact_key(work.tenant_id, work.adapter_id, work.version, dtype)
        stored = await self._store.head(key)
        if stored is None or stored.sha256 != ref.digest:
            stored = await self._store.put(key, read_pieces(path), sha256=ref.digest)
        await publish_copy(self._store, key, ref.digest)
        return PackedArtifact(ref.digest, stored.size, ref.rank)

    async def ensure_artifacts(self, work: JobInput) -> None:
        for dtype, artifact in work.artifacts.items():
            key = artifact_key(work.tenant_id, work.adapter_id, work.version, dtype)
            await ensure_artifact(self._store, key, self._artifacts_dir, artifact.digest)
            # A release that published none may have packed it.
            path = artifact_path(self._artifacts_dir, artifact.digest)
            await publish_file(self._store, path, artifact.digest)
        if self._signer is not None:
            await self._signer.ensure(_signed_files(work))

    # Calibrating --------------------------------------------------------------------------------------------

    async def calibrate(
        self, work: JobInput, directory: Path, progress: Progress, waiting: Callable[[str], Awaitable[None]]
    ) -> Verdict:
        request = self._request(work, directory)
        checkpoint = self._checkpoint(work)
        report = await self._measure(work, request, checkpoint, progress, waiting)
        await self._keep_report(work, report)
        return Verdict(
            ready=report.decision.ready,
            dtype=report.decision.dtype,
            why_not=" ".join(report.decision.why_not),
            summary=report.summary(),
            report=report.to_json(),
        )

    async def sign(self, work: JobInput, report: bytes | None) -> MadeSignature | None:
        if self._signer is None:
            return None
        key = None if report is None else f"{_report_prefix(work)}{REPORT_FILE}"
        return await self._signer.sign(_signed_files(work), report, key)

    async def forget(self, work: JobInput) -> None:
        await self._checkpoint(work).forget()

    def _checkpoint(self, work: JobInput) -> _StoredCheckpoint:
        return _StoredCheckpoint(self._store, checkpoint_prefix(work.tenant_id, work.adapter_id, work.job_id))

    def _request(self, work: JobInput, directory: Path) -> CalibrationRequest:
        artifacts = {
            cast(StoredDtype, dtype): AdapterRef(one.digest, one.rank)
            for dtype, one in work.artifacts.items()
        }
        try:
            gate = Gate.of_plan(work.gate)
        except ValueError as error:
            log.error("the plan's gate is invalid, using the defaults", error=str(error))
            gate = Gate()
        return CalibrationRequest(
            asker=ScoringAccount(work.tenant_id, work.model, work.adapter_id, work.version),
            peft_dir=_source_dir(directory),
            artifacts=artifacts,
            samples=directory / SAMPLES_FILE if work.samples is not None else None,
            gate=gate,
            dtype=cast(StoredDtype | None, work.dtype),
        )

    async def _measure(
        self,
        work: JobInput,
        request: CalibrationRequest,
        checkpoint: _StoredCheckpoint,
        progress: Progress,
        waiting: Callable[[str], Awaitable[None]],
    ) -> CalibrationReport:
        """Measures the adapter; waits for the engine without limit, since nothing can be measured
        without it.
        """
        engine = self._engine
        assert engine is not None, "opened with the job"
        stack = CalibrationStack(
            engine, self._base.codec, self._base.directory, self._artifacts_dir, shared=self._shared
        )
        done = dict.fromkeys(PARTS, 0.0)

        async def note(phase: str, part: int, total: int) -> None:
            if phase in done and total:
                done[phase] = part / total
                progress(round(1000 * sum(done[name] * weight for name, weight in PARTS.items())), 1000)

        while True:
            _check_base(await _ready(engine, waiting), work)
            try:
                return await calibrate(request, stack, note, checkpoint)
            except ServingUnavailable as error:
                log.warning("calibration waits for the engine", job_id=work.job_id, error=str(error))
            except SamplesInvalid as error:
                raise JobFailed("samples_invalid", str(error), "calibration.file_id") from error
            except SourceInvalid as error:
                raise JobFailed("adapter_invalid", str(error), error.field) from error
            except ServingRefused as error:
                raise JobFailed("not_servable", str(error)) from error

    async def _keep_report(self, work: JobInput, report: CalibrationReport) -> None:
        """Stores document, page and charts under the job that made them."""
        prefix = _report_prefix(work)
        page, plots = await asyncio.to_thread(lambda: (report.to_html(), report.to_plots()))
        for name, svg in plots.items():
            await self._store.put(f"{prefix}{name}.svg", svg.encode())
        await self._store.put(f"{prefix}report.html", page.encode())
        await self._store.put(f"{prefix}{REPORT_FILE}", report.to_json())


async def ensure_artifact(store: ObjectStore, key: str, artifacts_dir: Path, digest: str) -> bool:
    """Puts a packed artifact where the engine finds it, if it is missing; returns whether it was.

    Raises ObjectNotFound, DigestMismatch.
    """
    path = artifact_path(artifacts_dir, digest)
    if await asyncio.to_thread(path.is_file):
        return False
    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
    await store.fetch(key, path, sha256=digest)
    return True


class _StoredCheckpoint:
    """A calibration's finished parts, stored as objects of its job."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    async def load(self, name: str) -> bytes | None:
        try:
            return b"".join([piece async for piece in self._store.get(self._prefix + name)])
        except ObjectNotFound:
            return None

    async def save(self, name: str, data: bytes) -> None:
        await self._store.put(self._prefix + name, data)

    async def forget(self) -> None:
        async for stored in self._store.list(self._prefix.rstrip("/")):
            await self._store.delete(stored.key)


def _report_prefix(work: JobInput) -> str:
    return report_prefix(work.tenant_id, work.adapter_id, work.job_id)


def _signed_files(work: JobInput) -> SignedFiles:
    artifacts: dict[str | None, str] = {dtype: one.digest for dtype, one in work.artifacts.items()}
    return SignedFiles.of(work.adapter_id, work.version, work.base_digest, work.sources, artifacts)


def _source_dir(directory: Path) -> Path:
    """Returns the folder with only the two files that PEFT saves."""
    source = directory / "source"
    source.mkdir(exist_ok=True)
    return source


async def _ready(engine: EngineClient, waiting: Callable[[str], Awaitable[None]]) -> EngineInfo:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(QUIET):
            return await engine.wait_ready()
    await waiting("The engine does not answer. Calibration starts when it does.")
    return await engine.wait_ready()


def _check_base(info: EngineInfo, work: JobInput) -> None:
    if info.base != work.base or info.base_digest != work.base_digest:
        raise JobFailed(
            "base_changed",
            "The base model has changed since this version was made; add it again as a new version.",
            "base_model",
        )
