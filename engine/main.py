"""Starts the engine process: builds it from settings, serves, and turns signals and failures into an exit
code.

`python -m engine.main` reads ROOTSTOCK_ENGINE_* and ROOTSTOCK_DEVICE_* from the environment. Exit codes: 0
after a drain (or SIGTERM while loading), 1 when something failed (the log says what; a supervisor starts the
engine again), 70 when a step hung or a thread died.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import structlog
import zmq

from engine.core import EngineCore
from engine.journal.left_behind import start_billing_left_behind
from engine.journal.usage_journal import JournalError
from engine.lora.fetching import ArtifactFetcher
from engine.observation_setup import open_observers
from engine.protocol import EngineInfo
from engine.registry import Registrar, Registration
from engine.server import STALL_EXIT_CODE, EngineServer
from engine.serving_mark import write_serving_mark
from engine.settings import DeviceSettings, EngineSettings, moved_settings
from engine.stop_reason import StopReason
from engine.transport.curve import KeyPair, ServerKeys
from telemetry import logs
from telemetry.disk import DiskSettings, start_problem
from telemetry.release import installed_release

if TYPE_CHECKING:
    from engine.assembly import PackDrafter

log = structlog.get_logger(__name__)

THREAD_SWITCH_SECONDS = 0.0001
"""The transport's thread shares the interpreter with the step loop: at Python's default of 5 ms a chunk could
wait longer for its turn than its step took."""


def run(
    settings: EngineSettings,
    device: DeviceSettings,
    fetcher: ArtifactFetcher | None = None,
    pack_drafter: PackDrafter | None = None,
) -> int:
    """Serves until stopped. Returns the process's exit code. `fetcher`, `pack_drafter`: see
    `build_engine`.
    """
    logs.configure("engine")
    began = time.monotonic()
    moved = moved_settings(os.environ)
    if moved:
        # Ignoring them would start an engine of other sizes than intended.
        log.critical(
            "settings were renamed: " + ", ".join(f"set {new} instead of {old}" for old, new in moved.items())
        )
        return 1
    if settings.base is None and not settings.null:
        log.critical("ROOTSTOCK_ENGINE_BASE is not set; set it to the base model's folder")
        return 1
    problem = start_problem(settings.state_dir, DiskSettings().min_free_bytes)
    if problem is not None:
        log.critical("engine cannot start", reason=problem)
        if settings.state_dir.exists():  # a first start leaves nothing behind
            StopReason(settings.state_dir).write(problem)
        return 1
    with ExitStack() as opened:
        return _run_in(opened, settings, device, fetcher, pack_drafter, began)


def _run_in(
    opened: ExitStack,
    settings: EngineSettings,
    device: DeviceSettings,
    fetcher: ArtifactFetcher | None,
    pack_drafter: PackDrafter | None,
    began: float,
) -> int:
    """Serves until stopped. `began`: when the process started; `opened` closes what outlives the server."""
    reason = StopReason(settings.state_dir)
    clients = settings.cluster.keys
    keys = ServerKeys(KeyPair.make(), clients) if clients else None
    try:
        server = EngineServer(
            endpoint=settings.endpoint,
            redis_url=settings.redis_url,
            state_dir=settings.state_dir,
            engine_id=settings.engine_id,
            drain_seconds=settings.drain_seconds,
            keys=keys,
            observers=open_observers(settings, opened),
        )
    except (OSError, ValueError, zmq.ZMQError, JournalError) as error:
        log.critical("engine cannot start", reason=str(error))
        reason.write(error)
        return 1

    def build() -> tuple[EngineCore, EngineInfo]:
        core, info = _build(settings, device, server, fetcher, pack_drafter)
        seconds = time.monotonic() - began
        log.info(
            "engine ready",
            seconds=round(seconds, 2),
            endpoint=server.endpoint,
            base=info.base,
            device=info.device,
            quantization=info.quantization,
            context_length=info.context_length,
        )
        write_serving_mark(settings.state_dir)
        if keys is not None:  # on a cluster: the others of this host have locked their folders by now
            start_billing_left_behind(settings.state_dir.parent, settings.engine_id, settings.redis_url)
        return core, msgspec.structs.replace(info, start_seconds=seconds)

    if keys is None:
        return serve_until_stopped(server, build, reason.write)
    registrar = Registrar(settings.redis_url, _registration(settings, server, keys))
    try:
        return serve_until_stopped(server, build, reason.write)
    finally:
        registrar.close()


def _registration(settings: EngineSettings, server: EngineServer, keys: ServerKeys) -> Registration:
    address = urlsplit(server.endpoint)
    return Registration(
        engine_id=server.engine_id,
        incarnation=server.incarnation,
        endpoint=f"tcp://{settings.cluster.host or address.hostname}:{address.port}",
        key=keys.own.public.hex(),
        base=settings.base_name,
    )


def serve_until_stopped(
    server: EngineServer,
    build: Callable[[], tuple[EngineCore, EngineInfo]],
    on_failed: Callable[[Exception], None] = lambda _: None,
) -> int:
    """Builds the core, serves until SIGTERM or SIGINT, then closes. Returns the exit code.

    The first signal drains, the second cuts the drain short. During the build, either ends the process at
    once. `on_failed` receives the exception that ended it otherwise.
    """
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    threading.excepthook = _end_process
    built = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not built:
            raise SystemExit(0)
        server.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    code = 0
    try:
        core, info = build()
        built = True
        gc.collect()
        gc.freeze()  # these objects live as long as the process: collections between steps skip them
        server.serve(core, info)
        log.info("drained")
    except SystemExit:
        log.info("stopped while loading")
    except Exception as error:
        log.exception("engine failed", reason=str(error))
        on_failed(error)
        code = 1
    try:
        server.close()
    except JournalError as error:
        log.critical("usage could not be written; the next start bills it", reason=str(error))
        code = 1
    return code


def _build(
    settings: EngineSettings,
    device: DeviceSettings,
    server: EngineServer,
    fetcher: ArtifactFetcher | None,
    pack_drafter: PackDrafter | None,
) -> tuple[EngineCore, EngineInfo]:
    build = installed_release()
    # Imported here: only one of the two is needed, and the model's half takes seconds to load torch.
    if settings.null:
        from engine.null_runner import build_null_engine

        return build_null_engine(settings, device, server, build)
    log.info("loading torch")
    from engine.assembly import build_engine

    return build_engine(settings, device, server, build, fetcher, pack_drafter)


def _end_process(failure: threading.ExceptHookArgs) -> None:
    """Ends the process when a thread dies, so that a supervisor starts a new one.

    The in-flight table has the bill.
    """
    name = failure.thread.name if failure.thread is not None else ""
    log.critical("a thread died; the engine ends itself", thread=name, exc_info=failure.exc_value)
    os._exit(STALL_EXIT_CODE)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.main", description=__doc__)
    parser.add_argument("--null", action="store_true", help="serve made-up tokens without a model or torch")
    options = parser.parse_args(argv)
    return run(EngineSettings(null=True) if options.null else EngineSettings(), DeviceSettings())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
