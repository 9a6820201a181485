"""A real worker whose jobs do next to nothing, and stop, die or fail where a test tells them to.

The worker, its queue, the leases, the pipeline and the import are the true ones; only the steps are
stand-ins. A test speaks to them by files in ROOTSTOCK_TEST_STEPS: `hold-inspect` keeps a job in that step
while it exists, `die-pack` kills the process that comes to that step, `fail-pack` raises there. `trace` tells
who came where.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from adapters.announcer import Announcer
from adapters.inspection import Inspection
from adapters.inspection.sandbox import Sandbox
from adapters.pipeline import DTYPES, AdapterPipeline, JobInput, Progress, Verdict
from adapters.versions import PackedArtifact
from worker.imports import build_importer
from worker.main import run
from worker.runtime import Runtime
from worker.settings import JobsSettings

STEPS = ("fetch", "inspect", "pack", "calibrate", "forget")
VARIABLE = "ROOTSTOCK_TEST_STEPS"


class ToldSteps:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def _come_to(self, step: str, work: JobInput) -> None:
        with (self._directory / "trace").open("a") as trace:
            trace.write(f"{step} {work.job_id} {os.getpid()}\n")
        if (self._directory / f"die-{step}").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if (self._directory / f"fail-{step}").exists():
            raise RuntimeError("told to fail")
        while (self._directory / f"hold-{step}").exists():  # noqa: ASYNC110  another process removes it
            await asyncio.sleep(0.02)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def fetch(self, work: JobInput, directory: Path) -> None:
        await self._come_to("fetch", work)

    async def inspect(self, work: JobInput, directory: Path) -> Inspection:
        await self._come_to("inspect", work)
        return Inspection(config={}, num_tensors=2, num_bytes=8, rank=4, modules=[])

    async def pack(self, work: JobInput, directory: Path, progress: Progress) -> dict[str, PackedArtifact]:
        await self._come_to("pack", work)
        return {
            dtype: PackedArtifact(hashlib.sha256(f"{work.job_id}{dtype}".encode()).hexdigest(), 8, 4)
            for dtype in DTYPES
        }

    async def sign(self, work: JobInput, report: bytes | None) -> None:
        """There is no signing key."""

    async def ensure_artifacts(self, work: JobInput) -> None:
        assert set(work.artifacts) == set(DTYPES)

    async def calibrate(
        self, work: JobInput, directory: Path, progress: Progress, waiting: Callable[[str], Awaitable[None]]
    ) -> Verdict:
        progress(0, 10)
        await asyncio.sleep(0.02)
        progress(5, 10)
        await self._come_to("calibrate", work)
        return Verdict(True, "float8_e4m3", "", {"ready": True})

    async def forget(self, work: JobInput) -> None:
        await self._come_to("forget", work)


async def open_told(runtime: Runtime, settings: JobsSettings, opened: AsyncExitStack) -> AdapterPipeline:
    steps = ToldSteps(Path(os.environ[VARIABLE]))
    importer = None
    if "ROOTSTOCK_IMPORT_HUBS" in os.environ:
        sandbox = Sandbox()
        opened.push_async_callback(sandbox.close)
        importer = build_importer(runtime, sandbox)
    return AdapterPipeline({settings.base_name: steps}, Announcer(runtime.redis), importer=importer)


def main() -> int:
    """Run until SIGTERM; returns the exit status."""
    return run(open_pipeline=open_told)
