"""Makes HTTP requests to one address that was checked before, whatever the host's name resolves to later.

Follows no redirect and uses no proxy; the certificate must match the name.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpcore2
from httpcore2 import AnyIOBackend

from billing.notifications.addresses import Target
from billing.notifications.errors import EndpointUnreachable


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, or its beginning."""

    status: int
    body: bytes
    is_whole: bool


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
    request = httpcore2.Request(
        method,
        httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path.encode()),
        headers=list({"host": target.authority, "connection": "close", **headers}.items()),
        content=content,
    )
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=trusted or _system_authorities(),
        max_connections=1,
        network_backend=_Pinned(address),
    )
    try:
        async with pool:
            response = await pool.handle_async_request(request)
            body, is_whole = bytearray(), True
            try:
                async for chunk in response.aiter_stream():
                    body += chunk
                    if len(body) > max_bytes:
                        is_whole = False
                        break
            finally:
                await response.aclose()
        return Answer(response.status, bytes(body), is_whole)
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
        raise EndpointUnreachable(_reason(error)) from error
    except (OSError, UnicodeError) as error:
        raise EndpointUnreachable("the connection cannot be made") from error


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


def _reason(error: Exception) -> str:
    if isinstance(error.__context__, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return "its certificate is not accepted"
    if isinstance(error, httpcore2.ConnectError):
        return "the connection cannot be made"
    if isinstance(error, httpcore2.ProtocolError):
        return "it does not speak HTTP"
    return "the connection broke"
