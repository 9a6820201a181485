"""Controls a zygote from the parent process: starts it, sends orders with open files, receives how children
ended.

A link belongs to one zygote; after its death a new link is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from adapters.inspection.errors import SandboxUnavailable
from adapters.inspection.messages import MAX_PACKET, Ended, Kill, Order, Ready

_ROOT = Path(__file__).resolve().parents[2]
_START_S = 60.0
"""Seconds; a busy machine may take ten, once."""
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
"""Variables of this process's environment that the zygote gets: never a secret."""


class ZygoteLink:
    """A started zygote; `alive` until it is closed or dies."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._numbers = 0
        self.alive = True
        self.guards: dict[str, bool] = {}

    @classmethod
    async def start(cls, program: str) -> ZygoteLink:
        """Runs `python -m program` and waits until it is ready. Raises SandboxUnavailable."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", program, str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), env=_environment(), cwd=_ROOT,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise SandboxUnavailable(str(error)) from error
        finally:
            theirs.close()
        link = cls(process, ours)
        try:
            async with asyncio.timeout(_START_S):
                packet = await asyncio.get_running_loop().sock_recv(ours, MAX_PACKET)
            link.guards = msgspec.json.decode(packet, type=Ready).guards
        except (TimeoutError, OSError, msgspec.DecodeError) as error:
            await link.close()
            raise SandboxUnavailable(f"its process did not start ({process.returncode})") from error
        except BaseException:
            await link.close()
            raise
        asyncio.get_running_loop().add_reader(ours, link._handle)
        return link

    @property
    def pid(self) -> int:
        return self._process.pid

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def send(self, order: Order, files: Sequence[int]) -> asyncio.Future[int]:
        """Has a child run `order`. Returns a future of its exit code. Raises OSError when the zygote is dead
        or does not receive.
        """
        socket.send_fds(self._channel, [msgspec.json.encode(order)], files)
        end = asyncio.get_running_loop().create_future()
        self._ends[order.number] = end
        return end

    def kill(self, number: int) -> None:
        """Kills the child of an order, if it is alive."""
        with contextlib.suppress(OSError):
            self._channel.send(msgspec.json.encode(Kill(number)))

    async def close(self) -> None:
        """Kills the zygote; its children die with it."""
        self._drop()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def _handle(self) -> None:
        try:
            packet = self._channel.recv(MAX_PACKET)
            if packet:
                ended = msgspec.json.decode(packet, type=Ended)
                end = self._ends.pop(ended.number, None)
                if end is not None and not end.done():
                    end.set_result(ended.status)
                return
        except BlockingIOError:
            return
        except (OSError, msgspec.DecodeError):
            pass
        self._drop()

    def _drop(self) -> None:
        if not self.alive:
            return
        self.alive = False
        if self._channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
        for end in self._ends.values():
            end.cancel()
        self._ends.clear()


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # The packages are imported as they stand; a single thread, because a threaded process cannot fork safely.
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return kept | threads | {"PYTHONPATH": path}
