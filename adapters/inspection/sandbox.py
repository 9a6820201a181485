"""Runs inspections in sandboxed processes, from an asyncio process that no file can harm.

A zygote waits with everything loaded (`zygote`); each inspection is a fork of it that has dropped its
privileges (`confinement`), gets files already open, and answers once. A child that crashes, hangs or answers
nonsense rejects its file; SandboxUnavailable is raised only if no process can be started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import structlog

from adapters.inspection.errors import CONFIG_FILE, WEIGHTS_FILE, InspectionRefused, SandboxUnavailable
from adapters.inspection.findings import Inspection
from adapters.inspection.messages import MAX_ANSWER, Accepted, Answer, Failed, Order, Refused, Unable
from adapters.inspection.owner_slots import OwnerSlots
from adapters.inspection.zygote_link import ZygoteLink

log = structlog.get_logger(__name__)

_ZYGOTE = "adapters.inspection.zygote"
_LAST_WORDS_S = 2.0
"""Seconds the zygote may take to report how a child ended; after that it is considered dead."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resource limits of one inspection."""

    memory: int = 192 << 20
    """Bytes of address space, in addition to the zygote's and the file's length."""
    cpu_s: int = 20
    wall_s: float = 30.0
    bytes_per_s: int = 32 << 20
    """Both times grow with the file: an inspection at this speed is not an attack."""
    concurrency: int = 4
    """Concurrent inspections; more wait."""
    owner_concurrency: int = 2
    """Concurrent inspections of one owner; its others wait behind these, not in front of other owners'."""


class _Outcome(NamedTuple):
    answer: bytes
    status: int | None
    """None: its end was not reported."""
    timed_out: bool = False


class Sandbox:
    """Start it with the process, close it at its end; it restarts its zygote when that was killed."""

    def __init__(self, limits: SandboxLimits | None = None, *, program: str = _ZYGOTE) -> None:
        self.limits = limits or SandboxLimits()
        self._program = program
        self._room = OwnerSlots(self.limits.concurrency, self.limits.owner_concurrency)
        self._starting = asyncio.Lock()
        self._link: ZygoteLink | None = None
        self._told_guards = False

    async def start(self) -> None:
        """Starts the zygote. Raises SandboxUnavailable."""
        await self._living()

    async def close(self) -> None:
        async with self._starting:
            if self._link is not None:
                await self._link.close()
                self._link = None

    @property
    def pid(self) -> int | None:
        """Returns the zygote's process id."""
        return self._link.pid if self._link is not None and self._link.alive else None

    async def check_file(self, path: Path, kind: Literal["weights", "config"], *, owner: str) -> None:
        """Checks the form of one file on its own; `owner` is its tenant. Raises InspectionRefused,
        SandboxUnavailable, OSError when it cannot be opened.
        """
        with _opened(path) as files:
            await self.run(kind, files, WEIGHTS_FILE if kind == "weights" else CONFIG_FILE, owner=owner)

    async def inspect(
        self, weights: Path, config: Path, base_config: Path, *, owner: str, values: bool = True
    ) -> Inspection:
        """Inspects both files against the base of `base_config` (its `config.json`); `values`: read all
        values. Raises as `check_file` does.
        """
        with _opened(weights, config, base_config) as files:
            result = await self.run("inspect", files, WEIGHTS_FILE, owner=owner, values=values)
        try:
            return msgspec.json.decode(result, type=Inspection)
        except msgspec.DecodeError:
            raise InspectionRefused(WEIGHTS_FILE, "could not be inspected: no valid answer") from None

    async def run(
        self, task: str, files: Sequence[int], name: str, *, owner: str, values: bool = True
    ) -> msgspec.Raw:
        """Runs a task on open files, the first of which is called `name`; returns its result."""
        async with self._room.of(owner):
            # Retried once if the zygote died meanwhile, which may not be the file's fault.
            for _ in range(2):
                link = await self._living()
                outcome = await self._attempt(link, task, files, values)
                if outcome.answer or link.alive:
                    return self._result(outcome, name)
            raise InspectionRefused(name, "could not be inspected: the inspecting process died")

    async def _living(self) -> ZygoteLink:
        async with self._starting:
            if self._link is None or not self._link.alive:
                if self._link is not None:
                    log.warning("sandbox restarted", pid=self._link.pid)
                    await self._link.close()
                    self._link = None
                self._link = await ZygoteLink.start(self._program)
                self._tell_guards(self._link.guards)
            return self._link

    def _tell_guards(self, guards: dict[str, bool]) -> None:
        missing = sorted(name for name, holds in guards.items() if not holds)
        if missing and not self._told_guards:
            self._told_guards = True
            log.warning("sandbox lacks protections", missing=missing)

    async def _attempt(self, link: ZygoteLink, task: str, files: Sequence[int], values: bool) -> _Outcome:
        limits = self.limits
        size = os.fstat(files[0]).st_size
        wall_s = limits.wall_s + size // limits.bytes_per_s
        order = Order(
            number=link.next_number(),
            task=task,
            memory=limits.memory + size,
            cpu_s=limits.cpu_s + size // limits.bytes_per_s,
            wall_s=int(wall_s) + 2,  # its own alarm, in case this process dies and cannot end it
            values=values,
        )
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    end = link.send(order, [theirs.fileno(), *files])
                except OSError:
                    await link.close()
                    return _Outcome(b"", None)
            try:
                async with asyncio.timeout(wall_s):
                    answer = await _read_all(ours)
            except TimeoutError:
                return _Outcome(b"", await self._ended(link, order.number, end), timed_out=True)
            except BaseException:
                link.kill(order.number)  # the caller was cancelled
                raise
            return _Outcome(answer, await self._ended(link, order.number, end))

    async def _ended(self, link: ZygoteLink, number: int, end: asyncio.Future[int]) -> int | None:
        """Returns how the child ended, after making sure that it has."""
        link.kill(number)
        await asyncio.wait([end], timeout=_LAST_WORDS_S)
        if end.done():
            return None if end.cancelled() else end.result()
        await link.close()
        return None

    def _result(self, outcome: _Outcome, name: str) -> msgspec.Raw:
        if outcome.timed_out:
            reason = "took too long"
        else:
            answer = _understood(outcome)
            if isinstance(answer, Accepted):
                return answer.result
            if isinstance(answer, Refused):
                raise InspectionRefused(answer.field, answer.reason)
            if isinstance(answer, Unable):
                raise SandboxUnavailable(answer.reason)
            reason = answer.reason
        log.warning("inspection failed in the sandbox", file=name, reason=reason, status=outcome.status)
        raise InspectionRefused(name, f"could not be inspected: {reason}")


def _understood(outcome: _Outcome) -> Answer:
    if not outcome.answer:
        return Failed(_cause_of_death(outcome.status))
    try:
        answer: Answer = msgspec.json.decode(outcome.answer, type=Answer)
    except msgspec.DecodeError:
        return Failed("no valid answer")
    return answer


def _cause_of_death(status: int | None) -> str:
    if status == -signal.SIGXCPU:
        return "took too much processor time"
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return f"its process was ended by {signal.Signals(-status).name}"
    return "no valid answer"


async def _read_all(channel: socket.socket) -> bytes:
    """Reads until the child ends; an answer that is too long is replaced by an invalid one."""
    loop = asyncio.get_running_loop()
    answer = bytearray()
    while piece := await loop.sock_recv(channel, 1 << 16):
        answer += piece
        if len(answer) > MAX_ANSWER:
            return b"{"
    return bytes(answer)


@contextmanager
def _opened(*paths: Path) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        files = []
        for path in paths:
            files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            stack.callback(os.close, files[-1])
        yield files


__all__ = ["Sandbox", "SandboxLimits", "SandboxUnavailable"]
