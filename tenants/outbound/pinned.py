"""Makes HTTP requests to one address that was checked before, whatever the host's name resolves to later.

Follows no redirect and uses no proxy; the certificate must match the name.
"""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpcore2
from httpcore2 import AnyIOBackend

from tenants.outbound.addresses import Target
from tenants.outbound.errors import EndpointUnreachable


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, or its beginning."""

    status: int
    body: bytes
    is_whole: bool


class StreamedAnswer:
    """A response whose body has not been read yet."""

    def __init__(self, response: httpcore2.Response) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
        }
        """By name in lower case."""
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the body as it arrives. Raises EndpointUnreachable."""
        stream = aiter(self._response.aiter_stream())
        while True:
            with _unreachable(protocol_error="the connection broke"):
                piece = await anext(stream, None)
            if piece is None:
                return
            yield piece


@functools.cache
def _system_authorities() -> ssl.SSLContext:
    """For HTTP alone, which marks it as its own. Reading the authorities takes 25 ms of CPU."""
    return ssl.create_default_context()


async def request_pinned(
    method: str,
    target: Target,
    address: str,
    headers: dict[str, str],
    content: bytes = b"",
    *,
    trusted: ssl.SSLContext | None = None,
    max_bytes: int,
) -> Answer:
    """Sends one request to `address` and reads at most about `max_bytes` of the response. Raises
    EndpointUnreachable.

    Args:
        trusted: verifies the certificate; None means the system's authorities.
    """
    async with open_pinned(method, target, address, headers, content, trusted=trusted) as answer:
        return await read_beginning(answer, max_bytes)


async def read_beginning(answer: StreamedAnswer, max_bytes: int) -> Answer:
    """Reads at most about `max_bytes` of a response. Raises EndpointUnreachable."""
    body = bytearray()
    async for piece in answer.pieces():
        body += piece
        if len(body) > max_bytes:
            return Answer(answer.status, bytes(body), is_whole=False)
    return Answer(answer.status, bytes(body), is_whole=True)


@asynccontextmanager
async def open_pinned(
    method: str,
    target: Target,
    address: str,
    headers: Mapping[str, str],
    content: bytes = b"",
    *,
    trusted: ssl.SSLContext | None = None,
    timeout: float | None = None,  # noqa: ASYNC109  for each operation, not for the whole
) -> AsyncIterator[StreamedAnswer]:
    """Sends one request to `address` and yields the response. Raises EndpointUnreachable.

    Args:
        trusted: verifies the certificate; None means the system's authorities.
        timeout: seconds to connect, and without a byte; None means no limit.
    """
    request = httpcore2.Request(
        method,
        httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path.encode()),
        headers=list({"host": target.authority, "connection": "close", **headers}.items()),
        content=content,
        extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), timeout)},
    )
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=trusted or _system_authorities(),
        max_connections=1,
        network_backend=_Pinned(address),
    )
    async with pool:
        with _unreachable():
            response = await pool.handle_async_request(request)
        try:
            yield StreamedAnswer(response)
        finally:
            await response.aclose()


class _Pinned(AnyIOBackend):
    """Connects to one checked address, whatever the host's name; the certificate must match the name."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  the library's parameter
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return await super().connect_tcp(self._address, port, timeout, local_address, socket_options)


@contextlib.contextmanager
def _unreachable(protocol_error: str = "it does not speak HTTP") -> Iterator[None]:
    """Raises EndpointUnreachable for what the connection raises."""
    try:
        yield
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
        raise EndpointUnreachable(_reason(error, protocol_error)) from error
    except (OSError, UnicodeError) as error:
        raise EndpointUnreachable("the connection cannot be made") from error


def _reason(error: Exception, protocol_error: str) -> str:
    if isinstance(error.__context__, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return "its certificate is not accepted"
    if isinstance(error, httpcore2.ConnectError):
        return "the connection cannot be made"
    if isinstance(error, httpcore2.TimeoutException):
        return "it sent nothing for too long"
    if isinstance(error, httpcore2.ProtocolError):
        return protocol_error
    return "the connection broke"
