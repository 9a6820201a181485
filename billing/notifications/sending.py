"""Sends a webhook: one POST to one address that was checked before, of whose response only the status counts.

It follows no redirect, uses no proxy, reads only the beginning of the response, and takes no longer than
`timeout` in all.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from typing import Any

import httpcore2
from httpcore2 import AnyIOBackend

from billing.notifications.addresses import Resolve, Target, pinned_address, read_url, system_resolve
from billing.notifications.errors import EndpointUnreachable

MAX_BODY = 64 * 1024
"""The most bytes of a notification."""
READ_AT_MOST = 16 * 1024
"""Bytes of a response that are read; the rest is left unread."""
USER_AGENT = "Rootstock-Webhooks/1"


class WebhookSender:
    """Posts webhooks.

    Args:
        http_allowed, private_allowed: for tests, and for services whose tenants are internal.
        trusted: verifies the endpoints' certificates; None means the system's authorities.
    """

    def __init__(
        self,
        *,
        http_allowed: bool = False,
        private_allowed: bool = False,
        timeout: float = 10.0,
        resolve: Resolve = system_resolve,
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        self._http_allowed = http_allowed
        self._private_allowed = private_allowed
        self._timeout = timeout
        self._resolve = resolve
        self._trusted = trusted

    def check_url(self, url: str) -> None:
        """Raises ValueError naming the field if the URL is not allowed."""
        read_url(url, http_allowed=self._http_allowed)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """Returns the response's status. Raises EndpointUnreachable when there is no response."""
        assert len(body) <= MAX_BODY, "a notification is small"
        try:
            target = read_url(url, http_allowed=self._http_allowed)
        except ValueError as error:
            raise EndpointUnreachable(str(error)) from error
        try:
            async with asyncio.timeout(self._timeout):
                address = await pinned_address(target, self._resolve, private_allowed=self._private_allowed)
                return await self._post(target, address, headers, body)
        except TimeoutError as error:
            raise EndpointUnreachable(f"not within {self._timeout:g} s") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            raise EndpointUnreachable(_reason(error)) from error
        except (OSError, UnicodeError) as error:
            raise EndpointUnreachable("the connection cannot be made") from error

    async def _post(self, target: Target, address: str, headers: Mapping[str, str], body: bytes) -> int:
        all_headers = {
            "host": target.authority,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "user-agent": USER_AGENT,
            "connection": "close",
            **headers,
        }
        request = httpcore2.Request(
            "POST",
            httpcore2.URL(
                scheme=target.scheme, host=target.host, port=target.port, target=target.path.encode()
            ),
            headers=list(all_headers.items()),
            content=body,
        )
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=self._trusted or ssl.create_default_context(),
            max_connections=1,
            network_backend=_Pinned(address),
        )
        async with pool:
            response = await pool.handle_async_request(request)
            try:
                read = 0
                async for chunk in response.aiter_stream():
                    read += len(chunk)
                    if read > READ_AT_MOST:
                        break
            finally:
                await response.aclose()
        return response.status


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
