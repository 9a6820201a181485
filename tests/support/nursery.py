"""Starts Python programs as forks of a process that has already imported their modules.

Importing what a worker needs takes two seconds of CPU, and tests start a hundred workers. A fork takes a
hundredth of that and is a process like any other: it has its own pid, environment and log, runs the program's
entry function on its main thread, and leaves its exit status. All of them end with the process that asked for
them.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

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
        self._process: subprocess.Popen[bytes] | None = None
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
            process = self._process = self._process or self._open()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        assert answer, f"the process that forks programs ended with status {process.wait()}"
        return json.loads(answer)

    def close(self) -> None:
        """End the process, and every program of its that still runs."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _open(self) -> subprocess.Popen[bytes]:
        atexit.register(self.close)
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *self._modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


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


def serve(modules: list[str]) -> Callable[[], object]:
    """Answer questions until there are no more; returns, in a fork only, the entry function to run."""
    with importing():
        for module in modules:
            importlib.import_module(module)
        if "sqlalchemy.orm" in sys.modules:
            importlib.import_module("sqlalchemy.orm").configure_mappers()  # as each program would
    running: set[int] = set()
    while question := sys.stdin.buffer.readline():
        asked = json.loads(question)
        if "poll" in asked:
            answer = _status(asked["poll"])
            if answer is not None:
                running.discard(asked["poll"])
        else:
            answer = os.fork()
            if not answer:
                return _become(**asked)
            running.add(answer)
        os.write(1, json.dumps(answer).encode() + b"\n")
    for pid in running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return lambda: 0


def _status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(entry: str, log: str, environment: dict[str, str], arguments: list[str]) -> Callable[[], object]:
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
    found: Callable[[], object] = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:])())
