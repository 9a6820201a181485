"""Starts Python programs as forks of a process that has already imported their modules.

Importing what a worker needs takes two seconds of CPU, and tests start a hundred workers. A fork takes a
hundredth of that and is a process like any other: it has its own pid, environment and log, runs the program's
entry function on its main thread, and leaves its exit status. All of them end with the process that asked for
them.

The imports are done once in a run of tests, however many test processes it has: by a keeper, which the first
that needs its modules starts. Each test process has a fork of it to itself, which starts its programs.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from tests.support.forks import importing

ROOT = Path(__file__).resolve().parents[2]


class Forked:
    """A started program, with what tests use of `subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit status, minus the number of the signal that ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._nursery.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status; raises TimeoutExpired after `timeout` seconds."""
        if (status := self.poll()) is not None:
            return status
        watched = os.pidfd_open(self.pid)  # the pid is still its own: the nursery reaps it when asked
        try:
            looking = select.poll()
            looking.register(watched, select.POLLIN)
            if not looking.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        finally:
            os.close(watched)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Nothing once it has ended: the pid may be another's by then."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """A process that has imported `modules`, started when the first program is."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._channel: socket.socket | None = None
        self._answers: BinaryIO | None = None
        self._lock = threading.Lock()

    def start(
        self, entry: str, log: Path, environment: Mapping[str, str], arguments: Sequence[str] = ()
    ) -> Forked:
        """Start `module:function`, whose result is the exit status, with output appended to `log`."""
        started = self.ask(
            entry=entry, log=str(log.absolute()), environment=dict(environment), arguments=list(arguments)
        )
        return Forked(self, started)

    def ask(self, **question: Any) -> Any:
        with self._lock:
            if self._channel is None or self._answers is None:
                atexit.register(self.close)
                self._channel = _connect(self._modules)
                self._answers = self._channel.makefile("rb")
            self._channel.sendall(json.dumps(question).encode() + b"\n")
            answer = self._answers.readline()
        assert answer, "the process that forks programs has ended"
        return json.loads(answer)

    def close(self) -> None:
        """End the process, and every program of its that still runs."""
        if self._channel is not None and self._answers is not None:
            self._channel.shutdown(socket.SHUT_WR)
            self._answers.read()  # to its end: that of the process
            self._answers.close()
            self._channel.close()
            self._channel = self._answers = None


_keepers: list[subprocess.Popen[bytes]] = []
"""Those that this process started. They end with the run of tests."""


def _connect(modules: Sequence[str]) -> socket.socket:
    """To a new fork of the run's keeper of `modules`, which is started if there is none."""
    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    digest = hashlib.sha256(" ".join(modules).encode()).hexdigest()[:16]
    address = f"\0rootstock-nursery-{run}-{digest}"
    while True:
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.connect(address)
            return channel
        except ConnectionRefusedError:
            channel.close()
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(address)
            except OSError:  # another process is about to listen
                time.sleep(0.01)
                continue
            listener.listen()
            command = [sys.executable, "-m", __name__, str(listener.fileno()), str(run), *modules]
            _keepers.append(subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()]))


SERVICES = Nursery(
    "api.main",
    "sqlalchemy.dialects.postgresql.psycopg",
    "uvicorn.protocols.http.httptools_impl",
    "worker.main",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.backends.base",
    "celery.concurrency.prefork",
    "celery.fixups.django",
    "celery.worker.components",
    "celery.worker.consumer",
    "kombu.transport.redis",
    "cli.main",
    "cli.service_access",
    "cli.up",
    "cli.backup.taking",
    "cli.backup.restoring",
    "engine.main",
    "tests.support.onboarding",
    "tests.support.jobs_worker",
)
"""Of commands, and of programs that serve or work: most of what they import is the same."""


def keep(listener: socket.socket, run: int, modules: Sequence[str]) -> Callable[[], int]:
    """Fork a process that serves each connection, until the process `run` ends; returns what to run."""
    with importing():
        for module in modules:
            importlib.import_module(module)
        if "sqlalchemy.orm" in sys.modules:
            importlib.import_module("sqlalchemy.orm").configure_mappers()  # as each program would
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel may forget a fork's exit status
    waiting = select.poll()
    ends = os.pidfd_open(run)
    waiting.register(listener, select.POLLIN)
    waiting.register(ends, select.POLLIN)
    while ends not in (ready for ready, _ in waiting.poll()):
        channel, _ = listener.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(ends)
            listener.close()
            return serve(channel)
        channel.close()
    return lambda: 0


def serve(channel: socket.socket) -> Callable[[], int]:
    """Answer questions until there are no more; returns, in a fork only, the entry function to run."""
    running: set[int] = set()
    questions = channel.makefile("rb")
    while question := questions.readline():
        asked = json.loads(question)
        if "poll" in asked:
            answer = _status(asked["poll"])
            if answer is not None:
                running.discard(asked["poll"])
        else:
            answer = os.fork()
            if not answer:
                questions.close()
                channel.close()
                return _become(**asked)
            running.add(answer)
        channel.sendall(json.dumps(answer).encode() + b"\n")
    for pid in running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return lambda: 0


def _status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(entry: str, log: str, environment: dict[str, str], arguments: list[str]) -> Callable[[], int]:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for replaced, by in enumerate((nothing, output, output)):
        os.dup2(by, replaced)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    module, _, function = entry.partition(":")
    sys.argv = [module, *arguments]
    found: Callable[[], int] = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    sys.exit(keep(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:])())
