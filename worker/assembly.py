"""Builds the pipeline that runs jobs, from settings. Imports torch: see `worker.main`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from adapters.announcer import Announcer
from adapters.arithmetic_threads import bound_arithmetic_threads
from adapters.inspection.sandbox import Sandbox
from adapters.pinning import Pinning
from adapters.pipeline import AdapterPipeline
from adapters.pipeline_steps import AdapterSteps, Base
from tokenization.codec import TextCodec
from worker.cpu_priority import computing_threads
from worker.imports import build_importer
from worker.runtime import Runtime
from worker.settings import JobsSettings
from worker.signing import build_signer


async def open_pipeline(runtime: Runtime, settings: JobsSettings, opened: AsyncExitStack) -> AdapterPipeline:
    """Builds the pipeline. Used as `worker.runtime.OpenPipeline`."""
    bound_arithmetic_threads(settings.threads)
    asyncio.get_running_loop().set_default_executor(computing_threads())
    sandbox = Sandbox()
    await sandbox.start()
    opened.push_async_callback(sandbox.close)
    signer = build_signer(runtime)
    steps = {}
    for served in runtime.bases:
        codec = await asyncio.to_thread(TextCodec.load, served.path)
        base = Base(served.name, served.path, codec, served.engines)
        steps[served.name] = AdapterSteps(runtime.store, sandbox, base, settings.artifacts_dir, signer)
    announcer = Announcer(runtime.redis, Pinning(runtime.database, steps))
    return AdapterPipeline(steps, announcer, settings.scratch_dir, build_importer(runtime, sandbox))
