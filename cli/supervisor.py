"""Child processes that are kept alive: started, watched, started again with growing pauses, stopped in order.

Owns: process groups, signals, restarts, log files of children. Refuses to know: what the children do, when
they are ready (the caller says so) and what is printed about them (the caller is told what happened).
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

_LOG_LIMIT_BYTES = 16 << 20
_LOG_CHECK_S = 30.0
_TAIL_BYTES = 16 << 10
_PR_SET_PDEATHSIG = 1
# Loaded before any fork: the child may only call what is already there.
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Program:
    """What to run. `grace_s` is how long it may take to end after SIGTERM before it is killed."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    grace_s: float = 30.0
    pass_fds: tuple[int, ...] = ()
    cwd: Path | None = None
    reason: Path | None = None
    """A file in which it says why it stops, where that is not as it was told to."""


@dataclass(frozen=True)
class Backoff:
    """Pauses before starts: `first_s`, doubled up to `limit_s`; the first again after `steady_s` of life."""

    first_s: float = 0.25
    limit_s: float = 15.0
    steady_s: float = 30.0

    def pause(self, failures_in_a_row: int) -> float:
        """Seconds to wait after the given number (at least 1) of early deaths."""
        return float(min(self.limit_s, self.first_s * 2 ** min(failures_in_a_row - 1, 30)))


@dataclass(frozen=True)
class Event:
    """Something that happened to a child."""

    child: str
    kind: Literal["died", "restarted", "killed"]
    detail: str = ""


class ChildFailed(Exception):
    """A child ended before it was ready."""

    def __init__(self, name: str, how: str, tail: list[str], log: Path) -> None:
        super().__init__(f"{name} {how} while starting")
        self.name, self.how, self.tail, self.log = name, how, tail, log


def describe_exit(returncode: int) -> str:
    """A return code in words: "exited with code 3", "was killed by SIGKILL"."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def how_it_ended(program: Program, returncode: int) -> str:
    """In the program's own words, where it left any."""
    told = ""
    if returncode > 0 and program.reason is not None:
        with contextlib.suppress(OSError):
            told = program.reason.read_text(errors="replace").strip("\0 \n")
    return told or describe_exit(returncode)


def tail(path: Path, num_lines: int = 12) -> list[str]:
    """The last lines of a log, without reading all of it."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-num_lines:]


def rotate(log: Path, limit_bytes: int = _LOG_LIMIT_BYTES) -> bool:
    """Move a log that grew past the limit to `<name>.1`, replacing the last one.

    The writer keeps its descriptor, so the file is copied and cut, not renamed. Lines written between the two
    are lost: the price of logs that need no cooperation from the child. A log that cannot be moved, as on a
    full disk, stays: no child shall be missing for it.
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
    """For the child, between fork and exec: be killed when `parent` dies, however it dies."""

    def setup() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return setup


@dataclass
class Child:
    """One supervised process. Dying before `settle()` is a failed start, after it a reason to start again."""

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
        """The process, or None between two lives."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Start the process and watch it. Raises `OSError` when it cannot be executed."""
        await self._spawn()
        self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.program.name}")

    def settle(self) -> None:
        """The start went well: from now on a death is followed by a restart."""
        self._settled = True

    async def failed(self) -> None:
        """Wait until the child dies unsettled, then raise `ChildFailed`."""
        await self._failed.wait()
        raise ChildFailed(self.program.name, self._how, tail(self.program.log), self.program.log)

    async def stop(self) -> None:
        """SIGTERM, time to end in good order, then SIGKILL to the whole group. Harmless when stopped."""
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
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        if process is not None:
            self._kill_group(process.pid)

    def kill(self) -> None:
        """SIGKILL to the whole group, and no restart."""
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
            self._kill_group(process.pid)  # what it started dies with it: nobody would stop it otherwise
            if self._stopping:
                return
            self._how = how_it_ended(self.program, returncode)
            if not self._settled:
                self._failed.set()
                return
            failures = 1 if time.monotonic() - born >= self.backoff.steady_s else failures + 1
            await self._revive(failures)

    async def _revive(self, failures: int) -> None:
        """Pause and start again, for as long as that takes."""
        name = self.program.name
        while True:
            pause = self.backoff.pause(failures)
            self.tell(Event(name, "died", f"{self._how}, starting it again in {pause:.2g} s"))
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
        """Start a program under its name. Raises `ValueError` when the name is taken, `OSError` from exec."""
        if program.name in self.children:
            raise ValueError(f"a child named {program.name} is already running")
        child = Child(program, self._tell, self._backoff)
        await child.start()
        self.children[program.name] = child
        if self._rotation is None:
            self._rotation = asyncio.create_task(self._rotate_logs(), name="rotate logs")
        return child

    async def stop(self, name: str) -> None:
        """Stop one child; no such child is fine: a start that failed half-way is stopped by the same code."""
        child = self.children.get(name)
        if child is not None:
            await child.stop()
            del self.children[name]

    def kill_all(self) -> None:
        """SIGKILL now: for an operator who does not want to wait for the end of a drain. Follow with
        `stop_all`.
        """
        for child in self.children.values():
            child.kill()

    async def stop_all(self) -> None:
        """Stop the children that are left, the last started first."""
        for name in reversed(list(self.children)):
            await self.stop(name)
        if self._rotation is not None:
            self._rotation.cancel()
            await asyncio.gather(self._rotation, return_exceptions=True)
            self._rotation = None

    async def _rotate_logs(self) -> None:
        while True:
            await asyncio.sleep(_LOG_CHECK_S)
            for child in self.children.values():
                await asyncio.to_thread(rotate, child.program.log)
