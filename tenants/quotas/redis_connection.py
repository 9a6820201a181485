"""Implements a minimal pipelined Redis connection for quota calls, which requests wait for.

An urgent call is written at once, all others of an event-loop iteration in one packet; replies are matched by
order. Reconnects by itself and detects within the timeout that Redis is unreachable. Parses only integers,
strings and errors. redis-py takes several times as much CPU per call.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import redis.asyncio
import structlog
from redis.asyncio import SSLConnection, UnixDomainSocketConnection

from telemetry.tasks import cancel, gather_all
from tenants.quotas.scripts import command

log = structlog.get_logger(__name__)

LOOKS = 5
"""Checks for a reply per timeout. A single late timer says nothing about Redis: this process may have
stalled.
"""
CONNECT_TIMEOUT = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Shortest and longest pause between connection attempts, in seconds."""


class RedisDown(Exception):
    """Redis is unreachable or did not reply in time. Whether the call was executed is unknown."""


class ReplyError(Exception):
    """Redis replied with an error; carries its message."""


class RedisConnection:
    """A Redis connection that reconnects when it is lost. `prologue`: commands to send first on each
    connection.

    `on_connected` is called at every connection made, after the prologue was answered and before other calls.
    """

    def __init__(
        self, url: str, prologue: Sequence[bytes], *, timeout: float, on_connected: Callable[[], None]
    ) -> None:
        self._where = _RedisAddress.parse(url)
        self._prologue = [*self._where.greeting(), *prologue]
        self._timeout = timeout
        self._on_connected = on_connected
        self._protocol: _RedisProtocol | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self.lost_at = 0.0
        """`time.monotonic()` when the connection was last lost."""

    @property
    def is_up(self) -> bool:
        return self._protocol is not None

    def start(self) -> None:
        """Starts connecting, without waiting for it."""
        self._keeper = asyncio.create_task(self._keep_connected(), name="quotas' protocol to redis")

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        await cancel(keeper)
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.drop("closed")

    def call(self, packed: bytes, *, urgent: bool = False) -> asyncio.Future[Any]:
        """Sends a command as packed by `scripts.command`, in one packet with the others of this event-loop
        iteration; an `urgent` one at once, unless others wait already. Raises RedisDown at once while there
        is no protocol; the future raises RedisDown if the connection is lost, or ReplyError.
        """
        if self._protocol is None:
            raise RedisDown("not connected")
        return self._protocol.call(packed, urgent)

    async def _keep_connected(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._lost.clear()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    protocol = await self._connect()
            except (OSError, ReplyError, RedisDown, TimeoutError) as error:
                log.debug("quotas cannot reach redis", error=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            self._protocol = protocol
            self._on_connected()
            await self._lost.wait()

    async def _connect(self) -> _RedisProtocol:
        loop = asyncio.get_running_loop()

        def made() -> _RedisProtocol:
            return _RedisProtocol(loop, self._timeout, self._on_lost)

        where = self._where
        if where.path is not None:
            _, protocol = await loop.create_unix_connection(made, where.path)
        else:
            _, protocol = await loop.create_connection(made, where.host, where.port, ssl=where.tls)
        try:
            await gather_all(*(protocol.call(each) for each in self._prologue))
        except BaseException:
            protocol.drop("not greeted")
            raise
        return protocol

    def _on_lost(self, protocol: _RedisProtocol, reason: str) -> None:
        if protocol is self._protocol:
            self._protocol = None
            self.lost_at = time.monotonic()
            log.warning("quotas lost the connection to redis", error=reason)
            self._lost.set()


class _RedisAddress:
    """Address and credentials from a Redis URL, parsed as redis-py does."""

    def __init__(self, arguments: dict[str, Any], over_tls: bool) -> None:
        self.path: str | None = arguments.get("path")
        self.host: str = arguments.get("host", "localhost")
        self.port: int = arguments.get("port", 6379)
        self.tls: ssl.SSLContext | None = None
        if over_tls:
            self.tls = ssl.create_default_context(cafile=arguments.get("ssl_ca_certs"))
            if arguments.get("ssl_certfile"):
                self.tls.load_cert_chain(arguments["ssl_certfile"], arguments.get("ssl_keyfile"))
            if arguments.get("ssl_cert_reqs") == "none":
                self.tls.check_hostname = False
                self.tls.verify_mode = ssl.CERT_NONE
        self._database = arguments.get("db") or 0
        self._username: str | None = arguments.get("username")
        self._password: str | None = arguments.get("password")

    @classmethod
    def parse(cls, url: str) -> _RedisAddress:
        pool = redis.asyncio.ConnectionPool.from_url(url)
        kind = pool.connection_class
        arguments = dict(pool.connection_kwargs)
        if not issubclass(kind, UnixDomainSocketConnection):
            arguments.pop("path", None)
        return cls(arguments, issubclass(kind, SSLConnection))

    def greeting(self) -> list[bytes]:
        commands = []
        if self._password is not None:
            name = (self._username.encode(),) if self._username else ()
            commands.append(command(b"AUTH", *name, self._password.encode()))
        if self._database:
            commands.append(command(b"SELECT", b"%d" % int(self._database)))
        return commands


class _RedisProtocol(asyncio.Protocol):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        on_lost: Callable[[_RedisProtocol, str], None],
    ) -> None:
        self._loop = loop
        self._timeout = timeout
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._is_gathering = False
        """Whether a flush is scheduled at the end of this event-loop iteration."""
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._incoming = b""
        self._answers_seen = 0
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def connection_lost(self, error: Exception | None) -> None:
        self.drop(str(error or "closed by the server"))

    def call(self, packed: bytes, urgent: bool = False) -> asyncio.Future[Any]:
        if self._transport is None:
            raise RedisDown("not connected")
        future = self._loop.create_future()
        if urgent and not self._is_gathering:
            self._transport.write(packed)
        else:
            self._outgoing.append(packed)
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._flush)
        self._waiting.append(future)
        if self._watch is None:
            self._look_later(0)
        return future

    def drop(self, reason: str) -> None:
        """Closes the connection; pending calls raise RedisDown."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        transport.abort()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        waiting, self._waiting = self._waiting, deque()
        self._outgoing.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(RedisDown(reason))
        self._on_lost(self, reason)

    def _flush(self) -> None:
        self._is_gathering = False
        if self._transport is not None and self._outgoing:
            self._transport.write(b"".join(self._outgoing))
            self._outgoing.clear()

    def _look_later(self, num_silent: int) -> None:
        self._watch = self._loop.call_later(self._timeout / LOOKS, self._look, self._answers_seen, num_silent)

    def _look(self, answers_seen: int, num_silent: int) -> None:
        """Checks several times per `timeout`, while calls are pending, whether any reply has come, and drops
        the connection after a whole timeout without one. Time in which this process stalled counts as one
        check.
        """
        self._watch = None
        if not self._waiting:
            return
        num_silent = num_silent + 1 if answers_seen == self._answers_seen else 0
        if num_silent >= LOOKS:
            self.drop(f"no answer within {self._timeout} s")
        else:
            self._look_later(num_silent)

    def data_received(self, data: bytes) -> None:
        if self._incoming:
            data = self._incoming + data
        position, end = 0, len(data)
        while position < end:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                break
            kind = data[position]
            answer: Any
            if kind == 36:  # $, a string
                length = int(data[position + 1 : line_end])
                start = line_end + 2
                if length < 0:
                    answer, position = None, start
                elif start + length + 2 > end:
                    break
                else:
                    answer, position = data[start : start + length], start + length + 2
            else:
                line, position = data[position + 1 : line_end], line_end + 2
                if kind == 58:  # :, an integer
                    answer = int(line)
                elif kind == 43:  # +, a word
                    answer = line
                elif kind == 45:  # -, an error
                    answer = ReplyError(line.decode("utf-8", "replace"))
                else:
                    self.drop(f"an unexpected kind of reply: {data[:20]!r}")
                    return
            self._answer(answer)
            if self._transport is None:
                return
        self._incoming = data[position:] if position < end else b""

    def _answer(self, answer: Any) -> None:
        if not self._waiting:
            self.drop("a reply without a pending call")
            return
        self._answers_seen += 1
        future = self._waiting.popleft()
        if future.done():  # the caller was cancelled
            return
        if isinstance(answer, ReplyError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
