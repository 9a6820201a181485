"""Programs that start with `python -m` as forks of a process that has already imported their modules.

`rootstock up` starts five of them, and each spends two to three seconds of CPU on its imports. Within
`forked_programs()`, and in every `up` that was started there, such a start is a fork and costs a hundredth.
What it starts is a process like any other: a child of who started it, with its own pid, session, environment,
log and inherited descriptors, which runs the module as `__main__`. Only its command line is not its own.

Who starts programs has a zygote, which holds the modules and nothing else. A fork of a fork of it becomes the
starter's child when the one between ends, since the starter adopts orphans for that long.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
import functools
import gc
import importlib
import marshal
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("up", "migrate", "serve-api", "serve-engine", "work", "tenant", "key")
"""Of the command line. Others start, and end, as usual."""
PROGRAMS = ("cli.packing", "engine.parallel.rank", "examples.stripe_double")
STARTING = ("up", "serve-engine")
"""Commands that start programs in turn."""
MODULES = (
    *("cli.main", "cli.up", "cli.processes", *PROGRAMS),
    *("api.main", "engine.main", "engine.assembly", "worker.main"),
    # What they import later, while they start.
    *("cli.signatures", "migrations.metadata", "worker.assembly"),
    *("adapters.packing", "adapters.pipeline", "adapters.pipeline_steps"),
    *("anyio._backends._asyncio", "httpcore", "typer._adapters", "typer._click.decorators"),
    *("stripe._stripe_client", "stripe._v1_services", "stripe._v2_services"),
    *("sqlalchemy.dialects.postgresql.psycopg", "cryptography.hazmat.backends.openssl.backend"),
    *("uvicorn.lifespan.off", "uvicorn.loops.auto"),
    *("uvicorn.protocols.http.httptools_impl", "uvicorn.protocols.websockets.auto"),
    *("celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log", "celery.backends.base"),
    *("celery.concurrency.prefork", "celery.fixups.django", "celery.worker.components"),
    *("celery.worker.consumer", "kombu.transport.redis"),
)
ZYGOTE = "zygote"
"""The name of a process that only waits for programs to start; see /proc/PID/comm."""
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_MESSAGE_BYTES = 128 << 10
_FIRST_FREE = 200
"""No program is given descriptors from this number on."""
_START_S = 900.0
"""Before the first program, a zygote imports: for minutes, from a cold disk on a busy machine. Its end is
noticed at once.
"""
_SLOW_S = 240.0
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def forked_programs(modules: tuple[str, ...] = MODULES) -> Iterator[None]:
    """Programs that this process starts, and those of an `up` among them, are forks.

    Those that start in the folder of another checkout have the modules of that one.
    """
    restore = Starter(lambda root: _zygote(root, modules)).install()
    try:
        yield
    finally:
        restore()


@functools.cache
def _zygote(root: Path, modules: tuple[str, ...]) -> socket.socket:
    """To a zygote of this process, which ends with it."""
    return start_zygote(root, [__file__], modules)


def start_zygote(root: Path, program: list[str], arguments: Sequence[str]) -> socket.socket:
    """Starts a process that imports what it will need and calls `serve`, with the number of its end of the
    channel before the arguments. It ends with this process.
    """
    ours, theirs = _pair()
    with theirs:
        command = [sys.executable, *program, str(theirs.fileno()), *arguments]
        environment = os.environ | {"PYTHONPATH": str(root)}
        zygote = subprocess.Popen(command, cwd=root, env=environment, pass_fds=[theirs.fileno()])

    def end() -> None:
        ours.close()
        zygote.wait()

    atexit.register(end)
    return ours


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


# Who starts programs ----------------------------------------------------------------------------------------


class Starter:
    def __init__(
        self,
        zygote: Callable[[Path], socket.socket],
        is_forked: Callable[[Sequence[str]], bool] | None = None,
    ) -> None:
        """`zygote`: the one with the modules of a checkout. `is_forked`: which commands are."""
        self._zygote = zygote
        self._is_forked = is_forked or _is_forked
        self._lock = threading.Lock()

    def install(self) -> Callable[[], None]:
        """Takes the place of fork and exec in this process; returns what undoes that."""
        fork_exec: Any = subprocess._fork_exec  # type: ignore[attr-defined]

        def fork(arguments: Sequence[Any], *rest: Any) -> int:
            words = [os.fsdecode(word) for word in arguments]
            return self._fork(words, *rest) if self._is_forked(words) else fork_exec(arguments, *rest)

        subprocess._fork_exec = fork  # type: ignore[attr-defined]
        return functools.partial(setattr, subprocess, "_fork_exec", fork_exec)

    def _fork(
        self,
        words: list[str],
        _executables: object,
        _close_fds: object,
        kept: tuple[int, ...],
        cwd: str | None,
        environment: list[bytes] | None,
        *more: Any,
    ) -> int:
        """With the arguments of `fork_exec`."""
        standard, problem, new_session, before = (more[0], more[3], more[5]), more[7], more[9], more[15]
        descriptors = {number: fd if fd >= 0 else number for number, fd in enumerate(standard)}
        descriptors |= {fd: fd for fd in kept if fd != problem}
        if environment is None:
            environment = [name + b"=" + value for name, value in os.environb.items()]
        question = {
            "parent": os.getpid(),
            "words": words,
            "cwd": os.fspath(cwd or Path.cwd()),
            "environment": environment,
            "descriptors": list(descriptors),
            "new_session": bool(new_session),
            "before": before and _sent(before),
        }
        root = Path(cwd) if cwd is not None and (Path(cwd) / "cli" / "main.py").exists() else ROOT
        with self._lock, _adopting_orphans():
            channel = self._zygote(root)
            channel.settimeout(_START_S)
            socket.send_fds(channel, [marshal.dumps(question)], list(descriptors.values()))
            answer = channel.recv(100)
        assert answer, "the process that forks programs has ended"
        return int(answer)


def _is_forked(words: Sequence[str]) -> bool:
    if tuple(words[:2]) != (sys.executable, "-m"):
        return False
    return words[2] in PROGRAMS or (words[2] == "cli.main" and words[3] in COMMANDS)


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _sent(function: Any) -> tuple[str, Any, tuple[Any, ...]]:
    """A function for the child, between fork and exec, and what it has to know."""
    return function.__module__, function.__code__, tuple(c.cell_contents for c in function.__closure__ or ())


def _received(module: str, code: Any, known: tuple[Any, ...]) -> FunctionType:
    names = vars(importlib.import_module(module))
    return FunctionType(code, names, closure=tuple(map(CellType, known)))


# The zygote -------------------------------------------------------------------------------------------------


def serve(channel: socket.socket) -> Callable[[], object]:
    """Starts programs until who starts them is gone; returns, in a program's process only, what it runs."""
    _libc.prctl(_PR_SET_NAME, ZYGOTE.encode(), 0, 0, 0)
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 64)
        if not message:
            os._exit(0)
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)
            return _become(channel, descriptors, **marshal.loads(message))  # noqa: S302  from our own other end
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(
    channel: socket.socket,
    received: list[int],
    *,
    parent: int,
    words: list[str],
    cwd: str,
    environment: list[bytes],
    descriptors: list[int],
    new_session: bool,
    before: tuple[str, Any, tuple[Any, ...]] | None,
) -> Callable[[], object]:
    deadline = time.monotonic() + _START_S
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.0005)
    if new_session:
        os.setsid()
    if before is not None:
        _received(*before)()
    os.chdir(cwd)
    os.environb.clear()
    os.environb.update(dict(_named(one) for one in environment))
    told, *aside = (
        fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for fd in (channel.detach(), *received)
    )
    for fd, number in zip(aside, descriptors, strict=True):
        os.dup2(fd, number)
    for listed in os.listdir("/proc/self/fd"):
        if int(listed) not in {0, 1, 2, told, *descriptors}:
            _close(int(listed))
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    name, run = _program(words)
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    os.write(told, str(os.getpid()).encode())
    os.close(told)
    if name in STARTING:
        ours, theirs = _pair()
        if not os.fork():
            ours.close()
            return serve(theirs)
        theirs.close()
        Starter(lambda root: ours).install()
    return run


def _program(words: Sequence[str]) -> tuple[str, Callable[[], object]]:
    """Its name, and what runs it, with its arguments in `sys.argv`."""
    if "-c" in words:
        sys.argv = ["-c"]
        return "python", functools.partial(_run_code, words[-1])
    module, *arguments = sys.argv = list(words[2:])
    return arguments[0] if module == "cli.main" else module, functools.partial(_run, module)


def _named(setting: bytes) -> tuple[bytes, bytes]:
    name, _, value = setting.partition(b"=")
    return name, value


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:  # the one that listed them
        return


def _run(module: str) -> NoReturn:
    sys.modules.pop(module, None)  # it is `__main__` now
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _run_code(code: str) -> NoReturn:
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(code, vars(main))
    sys.exit()


def _hold(modules: Sequence[str]) -> None:
    sys.path[0] = str(Path.cwd())  # instead of this file's folder
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            if Path.cwd() == ROOT:  # an older release has not all of them
                raise


@contextmanager
def importing() -> Iterator[None]:
    """Around all that a zygote imports, before its first fork. Shows where it is when that takes minutes."""
    faulthandler.dump_traceback_later(_SLOW_S, repeat=True)
    gc.disable()  # imports make no garbage
    try:
        yield
    finally:
        gc.enable()
        faulthandler.cancel_dump_traceback_later()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages it looks at


if __name__ == "__main__":
    with importing():
        _hold(sys.argv[2:])
    serve(socket.socket(fileno=int(sys.argv[1])))()
