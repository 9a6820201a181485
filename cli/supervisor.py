"""Keeps child processes alive: starts and watches them, restarts them with backoff, stops them in order.

Handles process groups, signals and log files. The caller decides when a child is ready and reports its
events.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from telemetry.tasks import discard

_LOG_LIMIT_BYTES = 16 << 20
_LOG_CHECK_S = 30.0
_TAIL_BYTES = 16 << 10
_PR_SET_PDEATHSIG = 1
# Loaded before any fork: the child may only call what is already loaded.
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Program:
    """A program to run. `grace_s`: seconds it may take to end after SIGTERM before it is killed."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    grace_s: float = 30.0
    pass_fds: tuple[int, ...] = ()
    cwd: Path | None = None
    reason: Path | None = None
    """A file to which the program writes why it stops, unless it stops on request."""


@dataclass(frozen=True)
class Backoff:
    """Pauses before restarts: `first_s`, doubled up to `limit_s`; reset after `steady_s` seconds of life."""

    first_s: float = 0.25
    limit_s: float = 15.0
    steady_s: float = 30.0

    def pause(self, failures_in_a_row: int) -> float:
        """Returns the seconds to wait after the given number (at least 1) of early deaths in a row."""
        return float(min(self.limit_s, self.first_s * 2 ** min(failures_in_a_row - 1, 30)))


@dataclass(frozen=True)
class Event:
    """A death, restart or kill of a child."""

    child: str
    kind: Literal["died", "restarted", "killed"]
    detail: str = ""


class ChildFailed(Exception):
    """A child ended before it was ready."""

    def __init__(self, name: str, how: str, tail: list[str], log: Path) -> None:
        super().__init__(f"{name} {how} while starting")
        self.name, self.how, self.tail, self.log = name, how, tail, log


def describe_exit(returncode: int) -> str:
    """Describes a return code: "exited with code 3", "was killed by SIGKILL"."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def how_it_ended(program: Program, returncode: int) -> str:
    """Returns the reason that the program wrote, else a description of its return code."""
    reason = ""
    if returncode > 0 and program.reason is not None:
        with contextlib.suppress(OSError):
            reason = program.reason.read_text(errors="replace").strip("\0 \n")
    return reason or describe_exit(returncode)


def tail(path: Path, num_lines: int = 12) -> list[str]:
    """Returns the last lines of a log, without reading all of it."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-num_lines:]


def rotate(log: Path, limit_bytes: int = _LOG_LIMIT_BYTES) -> bool:
    """Moves a log that grew past the limit to `<name>.1`, replacing the previous one; returns whether it did.

    The writer keeps its descriptor, so the file is copied and truncated, not renamed. Lines written in
    between are lost: the price of logs that need no cooperation from the child. A log that cannot be moved,
    as on a full disk, stays: no child may be missing because of it.
    """
    try:
        if log.stat().st_size <= limit_bytes:
            return False
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def _die_with(parent: int) -> Callable[[], None]:
    """Returns a function for the child, between fork and exec: kills it when `parent` dies, in
    whatever way.
    """

    def setup() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return setup


@dataclass
class Child:
    """One supervised process. A death before `settle()` is a failed start; after it, the child is
    restarted.
    """

    program: Program
    tell: Callable[[Event], None]
    backoff: Backoff = field(default_factory=Backoff)
    num_starts: int = 0
    _process: asyncio.subprocess.Process | None = None
    _watcher: asyncio.Task[None] | None = None
    _stopping: bool = False
    _settled: bool = False
    _failed: asyncio.Event = field(default_factory=asyncio.Event)
    _how: str = ""

    @property
    def pid(self) -> int | None:
        """Returns the process id, or None between a death and the restart."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Starts the process and watches it. Raises `OSError` when it cannot be executed."""
        await self._spawn()
        self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.program.name}")

    def settle(self) -> None:
        """Marks the start as successful: from now on a death is followed by a restart."""
        self._settled = True

    async def failed(self) -> None:
        """Waits until the child dies before `settle()`, then raises `ChildFailed`."""
        await self._failed.wait()
        raise ChildFailed(self.program.name, self._how, tail(self.program.log), self.program.log)

    async def stop(self) -> None:
        """Sends SIGTERM, waits `grace_s`, then sends SIGKILL to the whole group. Does nothing if stopped."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), self.program.grace_s)
            except TimeoutError:
                self.tell(
                    Event(self.program.name, "killed", f"did not end within {self.program.grace_s:.0f} s")
                )
                self._kill_group(process.pid)
                await process.wait()
        watcher, self._watcher = self._watcher, None
        await discard(watcher)
        if process is not None:
            self._kill_group(process.pid)

    def kill(self) -> None:
        """Sends SIGKILL to the whole group; the child is not restarted."""
        self._stopping = True
        if self.pid is not None:
            self._kill_group(self.pid)

    async def _spawn(self) -> None:
        program = self.program
        program.log.parent.mkdir(parents=True, exist_ok=True)
        rotate(program.log)
        with program.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *program.argv,
                env=dict(program.env),
                cwd=program.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=program.pass_fds,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        self.num_starts += 1

    async def _watch(self) -> None:
        failures = 0
        while True:
            process = self._process
            assert process is not None
            born = time.monotonic()
            returncode = await process.wait()
            self._kill_group(process.pid)  # its own children would otherwise never be stopped
            if self._stopping:
                return
            self._how = how_it_ended(self.program, returncode)
            if not self._settled:
                self._failed.set()
                return
            failures = 1 if time.monotonic() - born >= self.backoff.steady_s else failures + 1
            await self._revive(failures)

    async def _revive(self, failures: int) -> None:
        """Pauses and restarts the child until that succeeds."""
        name = self.program.name
        while True:
            pause = self.backoff.pause(failures)
            self.tell(Event(name, "died", f"{self._how}, restarting it in {pause:.2g} s"))
            await asyncio.sleep(pause)
            try:
                await self._spawn()
            except OSError as error:
                self._how = f"cannot be executed ({error.strerror})"
                failures += 1
                continue
            self.tell(Event(name, "restarted"))
            return

    @staticmethod
    def _kill_group(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


class Supervisor:
    """The children of one `up`, in the order they were started."""

    def __init__(self, tell: Callable[[Event], None], backoff: Backoff | None = None) -> None:
        self._tell = tell
        self._backoff = backoff or Backoff()
        self._rotation: asyncio.Task[None] | None = None
        self.children: dict[str, Child] = {}

    async def start(self, program: Program) -> Child:
        """Starts a program under its name. Raises `ValueError` if the name is in use, `OSError` from exec."""
        if program.name in self.children:
            raise ValueError(f"a child named {program.name} is already running")
        child = Child(program, self._tell, self._backoff)
        await child.start()
        self.children[program.name] = child
        if self._rotation is None:
            self._rotation = asyncio.create_task(self._rotate_logs(), name="rotate logs")
        return child

    async def stop(self, name: str) -> None:
        """Stops one child, if there is one: a start that failed half-way is stopped by the same code."""
        child = self.children.get(name)
        if child is not None:
            await child.stop()
            del self.children[name]

    def kill_all(self) -> None:
        """Sends SIGKILL to all: for an operator who does not wait for the end of a drain. Call `stop_all`
        next.
        """
        for child in self.children.values():
            child.kill()

    async def stop_all(self) -> None:
        """Stops the children that are left, last started first."""
        for name in reversed(list(self.children)):
            await self.stop(name)
        rotation, self._rotation = self._rotation, None
        await discard(rotation)

    async def _rotate_logs(self) -> None:
        while True:
            await asyncio.sleep(_LOG_CHECK_S)
            for child in self.children.values():
                await asyncio.to_thread(rotate, child.program.log)
