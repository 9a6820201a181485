"""Sandboxes that take over the zygote of an earlier one, as all inspections of a service share one.

A zygote costs a tenth of a second of CPU to start, and hundreds of tests upload an adapter. How zygotes start
and die is tested with those of `Sandbox` itself.
"""

from __future__ import annotations

import asyncio
import atexit
import socket
import subprocess
import sys

import msgspec

from adapters.inspection import zygote_link
from adapters.inspection.messages import MAX_PACKET, Ready
from adapters.inspection.sandbox import Sandbox
from adapters.inspection.zygote_link import ZygoteLink

_kept: list[_Link] = []


class _Process:
    """What links use of `asyncio.subprocess.Process`, which ends with its event loop."""

    def __init__(self, started: subprocess.Popen[bytes]) -> None:
        self._started = started
        self.pid = started.pid
        self.kill = started.kill

    @property
    def returncode(self) -> int | None:
        return self._started.poll()

    async def wait(self) -> int:
        return await asyncio.to_thread(self._started.wait)


class _Link(ZygoteLink):
    @classmethod
    async def start(cls, program: str) -> _Link:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220  asyncio's would end with its loop
                [sys.executable, "-m", program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=zygote_link._environment(),
                cwd=zygote_link._ROOT,
            )
        made = cls(_Process(process), ours)  # type: ignore[arg-type]
        packet = await asyncio.get_running_loop().sock_recv(ours, MAX_PACKET)
        made.guards = msgspec.json.decode(packet, type=Ready).guards
        return made

    @property
    def is_idle(self) -> bool:
        return self.alive and not self._ends and self._process.returncode is None

    def listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._channel, self._handle)

    def end(self) -> None:
        self._channel.close()
        self._process.kill()

    def pause(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel)


def _left_behind() -> _Link | None:
    while _kept:
        link = _kept.pop()
        if link.is_idle:
            return link
        link.end()
    return None


@atexit.register
def _end_all() -> None:
    while _kept:
        _kept.pop().end()


class KeptSandbox(Sandbox):
    async def _living(self) -> ZygoteLink:
        async with self._starting:
            if self._link is None or not self._link.alive:
                link = _left_behind() or await _Link.start(self._program)
                link.listen()
                self._link = link
            return self._link

    async def close(self) -> None:
        async with self._starting:
            link, self._link = self._link, None
            if isinstance(link, _Link) and link.is_idle:
                link.pause()
                _kept.append(link)
            elif link is not None:
                await link.close()
