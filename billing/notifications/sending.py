"""Sends a webhook: one POST to one address that was checked before, of whose response only the status counts.

It follows no redirect, uses no proxy, reads only the beginning of the response, and takes no longer than
`timeout` in all.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from tenants.outbound.addresses import Resolve, pinned_address, read_url, system_resolve
from tenants.outbound.errors import EndpointUnreachable
from tenants.outbound.pinned import request_pinned

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
        all_headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "user-agent": USER_AGENT,
            **headers,
        }
        try:
            async with asyncio.timeout(self._timeout):
                address = await pinned_address(target, self._resolve, private_allowed=self._private_allowed)
                answer = await request_pinned(
                    *("POST", target, address, all_headers, body),
                    trusted=self._trusted,
                    max_bytes=READ_AT_MOST,
                )
        except TimeoutError as error:
            raise EndpointUnreachable(f"not within {self._timeout:g} s") from error
        return answer.status
