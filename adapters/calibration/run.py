"""Runs a whole calibration: reads samples, scores them on the engine and on the reference, decides, reports.

A finished part (a chunk of served samples, a pass of the reference) is saved under a name that contains
everything it depends on, so that an interrupted run resumes and never uses results of another adapter, base
or file of samples. Serving and reference run at the same time. The base's own scores are shared between
calibrations on the same samples.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import structlog
import torch

from adapters.calibration.errors import ServingUnavailable
from adapters.calibration.gate import Gate, StoredDtype, decide
from adapters.calibration.measures import BASE, ModuleError, measure
from adapters.calibration.pacing import REFERENCE_SHARE, OtherTraffic, Pace
from adapters.calibration.reference import Reference, passes
from adapters.calibration.report import CalibrationReport, Cost, Data, Subject
from adapters.calibration.samples import Sample, SampleLimits, SampleSet, default_set, read_samples
from adapters.calibration.scores import Scores, decode_scores, encode_scores
from adapters.calibration.serving import EngineScorer, ScoringAccount, ScoringEngine
from adapters.calibration.shared import SharedScores
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.protocol import AdapterRef, EngineInfo
from tokenization.codec import TextCodec

log = structlog.get_logger(__name__)

CHUNK = 32
"""Samples served between two checkpoints."""
PHASES = ("samples", "serving", "reference", "report")
"""The phases that `Progress` reports."""

Progress = Callable[[str, int, int], Awaitable[None]]
"""Called now and then with (phase, done, total). An exception it raises ends the calibration and passes
through.
"""
T = TypeVar("T")


class Checkpoint(Protocol):
    """Stores finished parts between runs of one job."""

    async def load(self, name: str) -> bytes | None: ...

    async def save(self, name: str, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """The adapter to calibrate, and how."""

    asker: ScoringAccount
    peft_dir: Path
    """Folder of the adapter's two files as they were uploaded."""
    artifacts: Mapping[StoredDtype, AdapterRef]
    """Packed artifacts by dtype, stored where the engine looks for them."""
    samples: Path | None = None
    """The tenant's JSONL file; None: a default set."""
    gate: Gate = field(default_factory=Gate)
    dtype: StoredDtype | None = None
    """The dtype the tenant requested; None: chosen by the gate."""
    limits: SampleLimits = field(default_factory=SampleLimits)


@dataclass(frozen=True, slots=True)
class CalibrationStack:
    """The engine, base and devices to calibrate on."""

    engine: ScoringEngine
    codec: TextCodec
    base_dir: Path
    artifacts_dir: Path
    device: str = "cpu"
    """Device of the reference; never the one that serves."""
    patience: float = 300.0
    """Seconds a sample waits for a busy engine."""
    shared: SharedScores | None = None
    """Store of the base's own scores, shared between calibrations; None: they are computed every time."""


@dataclass(frozen=True, slots=True)
class _Referred:
    """The results of the reference's passes."""

    adapter: list[Scores]
    base: list[Scores]
    doubled: list[Scores]
    modules: list[ModuleError]
    peak_bytes: int


class _SavedPass(msgspec.Struct, array_like=True):
    adapter: list[Scores]
    base: list[Scores]
    """Empty if they were known."""
    doubled: list[Scores]
    """Empty if not measured."""
    modules: list[ModuleError]
    """Only of the first pass: it has enough tokens."""


async def calibrate(
    request: CalibrationRequest, stack: CalibrationStack, progress: Progress, checkpoint: Checkpoint
) -> CalibrationReport:
    """Measures an adapter and judges it.

    Raises:
        SamplesInvalid: the tenant's file cannot be used.
        SourceInvalid: the uploaded adapter is not what was packed.
        ServingRefused: the engine rejects scoring with it.
        ServingUnavailable: the engine was away or busy for too long; run it again later.
        ArtifactError, OSError: an artifact is damaged or missing.
        What `progress` raises: run it again to continue.
    """
    info = stack.engine.info
    if info is None:
        raise ServingUnavailable("the engine has not answered yet")
    await progress("samples", 0, 1)
    samples = await asyncio.to_thread(_read, request, stack, info)
    await progress("samples", 1, 1)
    calibration = await asyncio.to_thread(
        _Calibration, request, stack, info, samples, progress, checkpoint
    )  # hashes the adapter's files
    (served, serving_seconds), (referred, reference_seconds) = await _both(
        _timed(calibration.serve()), _timed(calibration.refer())
    )
    if (now := stack.engine.info) is None or _stack_name(now) != _stack_name(info):
        raise ServingUnavailable("the engine was replaced by a different one during the calibration")
    await progress("report", 0, 1)
    measures = await asyncio.to_thread(
        measure, samples.samples, referred.adapter, referred.base, served, referred.doubled
    )
    decision = decide(request.gate, measures, samples.origin, request.dtype)
    report = CalibrationReport(
        subject=_subject(request, info),
        data=_data(samples),
        gate=request.gate,
        decision=decision,
        measures=measures,
        modules=referred.modules,
        cost=Cost(serving_seconds, reference_seconds, referred.peak_bytes, calibration.resumed),
    )
    await progress("report", 1, 1)
    return report


class _Calibration:
    """The two halves of one run."""

    def __init__(
        self,
        request: CalibrationRequest,
        stack: CalibrationStack,
        info: EngineInfo,
        samples: SampleSet,
        progress: Progress,
        checkpoint: Checkpoint,
    ) -> None:
        self.resumed = False
        self._request, self._stack = request, stack
        self._samples = samples.samples
        self._progress, self._checkpoint = progress, checkpoint
        # Scores depend on how the base is served.
        self._served_by = _name(_stack_name(info), _digest(samples))
        # A tenant's own samples are not shared: a cache hit must not reveal that another tenant has them.
        whose = request.asker.tenant if samples.origin == "tenant" else ""
        arithmetic = f"{torch.__version__} {stack.device}"
        self._base_served = f"served-{_name(self._served_by, whose)}"
        self._base_referred = f"reference-{_name(info.base_digest, arithmetic, _digest(samples), whose)}"
        # On the cores of a busy engine, the reference disturbs it more than thread priorities can prevent.
        share = REFERENCE_SHARE if info.device == stack.device else 1.0
        self._pace = Pace(OtherTraffic(lambda: stack.engine.stats), share, longest=math.inf)
        source = [_file_digest(path) for path in sorted(request.peft_dir.iterdir()) if path.is_file()]
        artifacts = [f"{dtype}:{ref.digest}" for dtype, ref in sorted(request.artifacts.items())]
        self._referred_by = _name(info.base_digest, *source, *artifacts, _digest(samples))

    async def serve(self) -> dict[str, list[Scores]]:
        """Returns the scores of all samples, by dtype and for the base alone."""
        served = EngineScorer(self._stack.engine, self._request.asker, patience=self._stack.patience)
        ways: dict[str, AdapterRef | None] = {BASE: None} | dict(self._request.artifacts)
        total = len(ways) * len(self._samples)
        found: dict[str, list[Scores]] = {name: [] for name in ways}
        done = 0
        for name, ref in ways.items():
            known = await self._known(self._base_served) if ref is None else None
            if known is not None:
                found[name] = known
                done += len(known)
                continue
            for first in range(0, len(self._samples), CHUNK):
                chunk = self._samples[first : first + CHUNK]
                key = f"served-{_name(self._served_by, ref.digest if ref else '')}-{first}"
                scores = await self._saved(key, decode_scores)
                if scores is None:
                    scores = await served.scores(chunk, ref)
                    await self._checkpoint.save(key, encode_scores(scores))
                found[name] += scores
                done += len(chunk)
                await self._progress("serving", done, total)
            if ref is None:
                await self._share(self._base_served, found[name])
        return found

    async def refer(self) -> _Referred:
        """Runs the reference's passes."""
        stack, request = self._stack, self._request
        packed: dict[str, PackedAdapter] = {
            dtype: await asyncio.to_thread(
                PackedAdapter.read, artifact_path(stack.artifacts_dir, ref.digest), ref.digest
            )
            for dtype, ref in request.artifacts.items()
        }
        known = await self._known(self._base_referred)
        reference = Reference(
            stack.base_dir,
            request.peft_dir,
            packed,
            stack.device,
            # The best scale on samples that are not the adapter's own means nothing.
            doubled=request.samples is not None,
            base=known is None,
        )
        found = _Referred([], [], [], [], 0)
        with reference:
            ranges = passes(self._samples, reference.config)
            total, done = len(ranges) * reference.num_steps, 0
            for place, rows in enumerate(ranges):
                key = f"reference-{self._referred_by}-{place}"
                saved = await self._saved(key, _decode_pass)
                if saved is None or (known is None and not saved.base):
                    saved = await self._pass(reference, [self._samples[row] for row in rows], done, total)
                    await self._checkpoint.save(key, msgspec.msgpack.encode(saved))
                found.adapter.extend(saved.adapter)
                found.base.extend(saved.base)
                found.doubled.extend(saved.doubled)
                if not place:
                    found.modules.extend(saved.modules)
                done += reference.num_steps
                await self._progress("reference", done, total)
        if known is None:
            await self._share(self._base_referred, found.base)
        return replace(found, base=known or found.base, peak_bytes=reference.memory.peak_bytes)

    async def _pass(self, reference: Reference, samples: list[Sample], done: int, total: int) -> _SavedPass:
        """Runs one pass in steps of a layer, so that it can be interrupted between them."""
        states = await self._computed(lambda: reference.begin(samples))
        for index in range(reference.config.num_layers):
            await self._computed(lambda index=index: reference.layer(states, index))  # type: ignore[misc]
            await self._progress("reference", done + index + 1, total)
        scores = await self._computed(lambda: reference.scores(states))
        return _SavedPass(
            scores["adapter"],
            scores.get("base", []),
            scores.get("doubled", []),
            reference.contribution.modules(),
        )

    async def _computed(self, work: Callable[[], T]) -> T:
        """Runs a step of a pass, and rests after it as the pace requires."""
        began = time.monotonic()
        found = await _in_thread(work)
        await self._pace.rest(time.monotonic() - began)
        return found

    async def _known(self, name: str) -> list[Scores] | None:
        """Returns the base's own scores from another calibration, if known."""
        shared = self._stack.shared
        return None if shared is None else await asyncio.to_thread(shared.load, name, self._samples)

    async def _share(self, name: str, scores: list[Scores]) -> None:
        if self._stack.shared is not None:
            await asyncio.to_thread(self._stack.shared.save, name, scores)

    async def _saved(self, key: str, decode: Callable[[bytes], T]) -> T | None:
        """Returns what an earlier run finished; None also for what cannot be read, which is computed
        again.
        """
        data = await self._checkpoint.load(key)
        if data is None:
            return None
        try:
            found = decode(data)
        except msgspec.DecodeError as error:
            log.warning("a saved part of a calibration cannot be read", key=key, error=str(error))
            return None
        self.resumed = True
        return found


def _subject(request: CalibrationRequest, info: EngineInfo) -> Subject:
    return Subject(
        model=request.asker.model,
        adapter_id=request.asker.adapter_id,
        version=request.asker.version,
        base_digest=info.base_digest,
        quantization=info.quantization,
        device=info.device,
        build=info.build,
        artifacts={dtype: ref.digest for dtype, ref in request.artifacts.items()},
    )


def _data(samples: SampleSet) -> Data:
    return Data(
        origin=samples.origin,
        digest=_digest(samples),
        num_lines=samples.num_lines,
        num_samples=len(samples.samples),
        num_tokens=samples.num_tokens,
        num_scored=samples.num_scored,
        cut=samples.cut,
        left_out=samples.left_out,
    )


def _read(request: CalibrationRequest, stack: CalibrationStack, info: EngineInfo) -> SampleSet:
    longest = min(info.max_prompt_tokens, info.context_length)
    if request.samples is not None:
        return read_samples(request.samples, "tenant", stack.codec, longest, request.limits)
    path, origin = default_set(stack.base_dir)
    return read_samples(path, origin, stack.codec, longest, request.limits)


def _stack_name(info: EngineInfo) -> str:
    """Returns a name for everything that an engine's scores depend on."""
    return f"{info.base_digest} {info.quantization} {info.device} {info.build}"


def _decode_pass(data: bytes) -> _SavedPass:
    return msgspec.msgpack.decode(data, type=_SavedPass)


def _digest(samples: SampleSet) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(samples.samples)).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _name(*parts: str) -> str:
    """Returns a hash short enough for an object's key."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


async def _timed(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    began = time.monotonic()
    found = await work
    return found, round(time.monotonic() - began, 3)


async def _both(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, Any]) -> tuple[T, Any]:
    """Runs both at the same time; when one fails, cancels the other, waits for it and raises the failure.

    Unlike `telemetry.tasks.run_together` it cancels once: a thread may take long, and is waited for.
    """
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for result in ended:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
    return ended[0], ended[1]


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs `work` like `asyncio.to_thread`, but returns only after the thread has ended: files are closed
    next.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
