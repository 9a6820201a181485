"""Starts the processes that `benchmarks.chaos` kills: real ones, within milliseconds, armed with where to
die.

A nursery imports what the processes need, once, and forks one for each order it reads: imports take seconds,
lives here are shorter. A process may be armed: it kills its whole group with SIGKILL before or after
the nth call of a function. An engine is watched by a witness, a file that is not one of the engine's own:
each token it generated, each it sent and each end it reported, recorded before it is sent. Processes run
unchanged, except for times that are a fraction of their usual ones, so that timeouts pass quickly.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.local.server import LocalServer, LocalServerError

PRELOADED = (
    *("engine.main", "engine.null_runner", "engine.scheduling.scheduler", "multiprocessing"),
    *("api.main", "api.openai.stream", "uvicorn.protocols.http.httptools_impl", "uvicorn.lifespan.off"),
    *("worker.main", "kombu.transport.redis", "celery.app.amqp", "celery.app.control", "celery.app.log"),
    *("celery.app.events", "celery.backends.base", "celery.concurrency.prefork", "celery.worker.consumer"),
    *("celery.worker.components", "celery.fixups.django"),
)
HOLD_S = {"lifetime": 12.0, "renew_every": 3.0, "silence": 8.0, "grace": 4.0}
"""Of reservations that are not renewed; usually a minute."""
START_S = 90.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Point:
    """Where a process dies: at the nth call of `module:Class.function`, before or after it."""

    where: str
    after: bool
    nth: int


@dataclass(frozen=True)
class Order:
    """A process to be forked."""

    kind: str
    """`engine`, `api` or `worker`."""
    environment: dict[str, str]
    log: str
    witness: str = ""
    point: Point | None = None


# The nursery ------------------------------------------------------------------------------------------------


def nursery(listener: int) -> None:
    """Read orders from stdin, say `{"pid"}` of each that is carried out and `{"ended", "status"}` of each
    process that is no more. Ends with stdin, and all its processes with it. API processes share `listener`.
    """
    gc.disable()  # imports make no garbage
    for module in PRELOADED:
        importlib.import_module(module)
    importlib.import_module("sqlalchemy.orm").configure_mappers()  # as each process would
    gc.enable()
    gc.collect()
    gc.freeze()
    _say({"ready": True})
    poll = select.poll()
    poll.register(0, select.POLLIN)
    unread = b""
    while True:
        if poll.poll(10):
            # Not through a buffered reader: a second order in its buffer would not wake the poll.
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                fields = json.loads(line)
                point = fields.pop("point")
                order = Order(**fields, point=Point(**point) if point else None)
                _say({"pid": _fork(order, listener)})
        _bury()


def written(order: Order) -> bytes:
    return json.dumps(asdict(order)).encode() + b"\n"


def _bury() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _say(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _fork(order: Order, listener: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)
        return pid
    code = 70
    try:
        _begin(parent, order.log)
        os.environ.update(order.environment)
        if order.kind != "api":
            os.close(listener)
        code = _serve(order)
    except BaseException:  # noqa: BLE001  a fork must never go on as its parent does
        importlib.import_module("traceback").print_exc()
    finally:
        os._exit(code)


def _begin(parent: int, log: str) -> None:
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _serve(order: Order) -> int:
    if order.point is not None:
        _arm(order.point)
    if order.kind == "engine":
        from engine import main as engine
        from engine.settings import DeviceSettings, EngineSettings

        _watch(Path(order.witness))
        return engine.run(EngineSettings(null=True), DeviceSettings())
    from tenants.quotas import scripts

    scripts.Timing = functools.partial(scripts.Timing, **HOLD_S)  # type: ignore[assignment,misc]
    if order.kind == "worker":
        from worker import main as worker

        return worker.run()
    from api import main as api
    from api.assembly import services
    from api.settings import ApiSettings

    services._start_sandbox = _no_sandbox  # the run uploads no files
    return api.run(ApiSettings())  # type: ignore[call-arg]


async def _no_sandbox(opened: Any, sandbox: Any) -> None: ...


# Stores -----------------------------------------------------------------------------------------------------


def keep_store(kind: str, folder: str) -> None:
    """Start a store, say `{"url"}`, and kill and start it again for each line that is read: `{"again"}` then.
    Ends with stdin, in good order.
    """
    start: Callable[[Path], LocalServer]
    if kind == "redis":
        from cli.local.redis import start_redis as start
    else:
        from cli.local.postgres import start_postgres as start
    server = start(Path(folder))
    _say({"url": server.url})
    for _ in sys.stdin.buffer:
        server.kill()
        server = _insistently(lambda: start(Path(folder)))
        _say({"again": True})
    server.stop()


def _insistently(start: Callable[[], LocalServer]) -> LocalServer:
    """Until it starts: what the dead one left, processes above all, may take a moment to go."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return start()
        except LocalServerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


# Dying ------------------------------------------------------------------------------------------------------


def _arm(point: Point) -> None:
    module, _, path = point.where.partition(":")
    owner_path, _, name = path.rpartition(".")
    owner: Any = importlib.import_module(module)
    for part in filter(None, owner_path.split(".")):
        owner = getattr(owner, part)
    setattr(owner, name, _dying(getattr(owner, name), point))


def _dying(function: Callable[..., Any], point: Point) -> Callable[..., Any]:
    num_calls = 0

    def is_due() -> bool:
        nonlocal num_calls
        num_calls += 1
        return num_calls == point.nth

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        due = is_due()
        if due and not point.after:
            _die()
        result = function(*arguments, **named)
        if due:
            _die()
        return result

    @functools.wraps(function)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        due = is_due()
        if due and not point.after:
            _die()
        result = await function(*arguments, **named)
        if due:
            _die()
        return result

    return awaited if inspect.iscoroutinefunction(function) else called


def _die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


# The witness ------------------------------------------------------------------------------------------------


def _watch(path: Path) -> None:
    """Lines: `G id tokens` generated, `S id tokens` handed to the network, `F id prompt cached completion`
    told to be all. Each step's with one write, which outlives the process.
    """
    from engine.core import EngineCore
    from engine.outputs import StepOutputs
    from engine.protocol import EngineMessage, Outputs
    from engine.transport.server_socket import Transport

    witness = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    step, send = EngineCore.step, Transport.send

    def witnessed_step(core: EngineCore) -> StepOutputs:
        outputs = step(core)
        lines = [f"G {chunk.request_id} {len(chunk.token_ids)}\n" for chunk in outputs.chunks]
        if lines:
            os.write(witness, "".join(lines).encode())
        return outputs

    def witnessed_send(transport: Transport, client: bytes, message: EngineMessage) -> None:
        if isinstance(message, Outputs):
            lines = [f"S {chunk.request_id} {len(chunk.token_ids)}\n" for chunk in message.chunks]
            for one in message.finished:
                counts = one.usage
                lines.append(
                    f"F {one.request_id} {counts.prompt_tokens} {counts.cached_tokens} "
                    f"{counts.completion_tokens}\n"
                )
            if lines:
                os.write(witness, "".join(lines).encode())
        send(transport, client, message)

    setattr(EngineCore, "step", witnessed_step)  # noqa: B010  a method cannot be assigned, for mypy
    setattr(Transport, "send", witnessed_send)  # noqa: B010
