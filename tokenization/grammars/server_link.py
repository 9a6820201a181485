"""Controls a fork server from an asyncio process: starts it, has it check grammars, ends it.

A link belongs to one fork server; after its death a new link is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokenization.grammars.errors import GrammarsUnavailable, GrammarsUnsupported
from tokenization.grammars.messages import LENGTH_BYTES, Accepted, Answer, Check, Ended, Ready, Refused

_PROGRAM = "tokenization.grammars.fork_server"
_ROOT = Path(__file__).resolve().parents[2]
_START_S = 60.0
"""Seconds; a busy machine may take ten, once."""
_ANSWER_S = 15.0
"""Seconds after which the fork server is considered dead: its children end after one."""
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
"""Variables of this process's environment that the fork server gets: never a secret."""


class Outcome(NamedTuple):
    """What came of one check."""

    answer: Answer | None
    status: int | None
    """How the checking process ended; None: not reported, because the fork server died or could not fork."""


class ServerLink:
    """A started fork server."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel

    @classmethod
    async def start(cls, base_dir: Path) -> ServerLink:
        """Starts a fork server and waits until it is ready.

        `base_dir` is absolute. Raises GrammarsUnavailable, GrammarsUnsupported.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", _PROGRAM, str(theirs.fileno()), str(base_dir),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), env=_environment(), cwd=_ROOT,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise GrammarsUnavailable(str(error)) from error
        finally:
            theirs.close()
        link = cls(process, ours)
        try:
            async with asyncio.timeout(_START_S):
                packet = await asyncio.get_running_loop().sock_recv(ours, 1 << 16)
            ready = msgspec.json.decode(packet, type=Ready)
        except (TimeoutError, OSError, msgspec.DecodeError) as error:
            await link.close()
            raise GrammarsUnavailable(f"its process did not start ({process.returncode})") from error
        except BaseException:
            await link.close()
            raise
        if ready.problem:
            await link.close()
            raise GrammarsUnsupported(ready.problem)
        return link

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and self._channel.fileno() >= 0

    async def check(self, order: Check) -> Outcome:
        """Has a process of its own check a grammar."""
        body = msgspec.json.encode(order)
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    socket.send_fds(self._channel, [b"c"], [theirs.fileno()])
                except OSError:
                    await self.close()
                    return Outcome(None, None)
            try:
                async with asyncio.timeout(_ANSWER_S):
                    # A process that was ended early reads nothing: how it ended is read all the same.
                    with contextlib.suppress(OSError):
                        await loop.sock_sendall(ours, len(body).to_bytes(LENGTH_BYTES, "big") + body)
                    lines = await _read_lines(ours)
            except TimeoutError:
                await self.close()
                return Outcome(None, None)
        return _outcome(lines)

    async def close(self) -> None:
        """Kills the fork server; its children die with it."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def _outcome(lines: list[bytes]) -> Outcome:
    answer: Answer | None = None
    status: int | None = None
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            message = msgspec.json.decode(line, type=Accepted | Refused | Ended)
            if isinstance(message, Ended):
                status = message.status
            else:
                answer = message
    return Outcome(answer, status)


async def _read_lines(channel: socket.socket) -> list[bytes]:
    loop = asyncio.get_running_loop()
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := await loop.sock_recv(channel, 1 << 16):
            found += piece
    return bytes(found).splitlines()


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # The packages are imported as they stand; a single thread, because a threaded process cannot fork safely.
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    return kept | threads | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
