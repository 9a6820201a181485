"""An engine whose runner misbehaves on cue: `python -m tests.engine.process.faulty_engine`.

Cues are seeds: RAISES raises in the step that draws its third token, HANGS never returns from it. Or names of
the base: SLOW takes a minute to load, a thread dies beside THREADLESS.
"""

from __future__ import annotations

import sys
import threading
import time

import engine.server
from engine.batch import Batch, LaunchedStep
from engine.core import EngineCore, Runner
from engine.main import serve_until_stopped
from engine.null_runner import build_null_engine
from engine.protocol import EngineInfo
from engine.server import EngineServer
from engine.settings import DeviceSettings, EngineSettings
from telemetry import logs

RAISES = 666
HANGS = 777
SLOW = "slow"
THREADLESS = "threadless"
STALL_SECONDS = 1.0


class FaultyRunner:
    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.depth = inner.depth
        self.counters = inner.counters
        self._cues: dict[int, int] = {}

    def launch(self, batch: Batch) -> LaunchedStep:
        for new in batch.new_rows:
            if new.sampling.seed in (RAISES, HANGS):
                self._cues[new.row] = new.sampling.seed
        if self._cues and batch.step >= 2:
            if RAISES in self._cues.values():
                raise RuntimeError("the device is lost")
            time.sleep(3600)
        return self._inner.launch(batch)


def main() -> int:
    logs.configure("engine")
    engine.server.STALL_SECONDS = STALL_SECONDS
    settings = EngineSettings()
    server = EngineServer(
        endpoint=settings.endpoint,
        redis_url=settings.redis_url,
        state_dir=settings.state_dir,
        engine_id=settings.engine_id,
        drain_seconds=settings.drain_seconds,
    )

    def build() -> tuple[EngineCore, EngineInfo]:
        if settings.base_name == SLOW:
            time.sleep(60)
        if settings.base_name == THREADLESS:
            threading.Thread(target=lambda: 1 / 0, name="loader").start()
        core, info = build_null_engine(settings, DeviceSettings(), server, "test")
        return EngineCore(core.scheduler, FaultyRunner(core.runner)), info

    return serve_until_stopped(server, build)


if __name__ == "__main__":
    sys.exit(main())
