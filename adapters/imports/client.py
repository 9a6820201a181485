"""Sends the requests of imports to hosts whose addresses are checked, each redirect anew.

Every connection goes to the address that was checked, so a name that resolves differently afterwards changes
nothing. Credentials go to the first host only.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import quote, urldefrag, urljoin

from adapters.imports.policy import ImportPolicy
from tenants.outbound.addresses import Resolve, Target, pinned_address, read_url, system_resolve
from tenants.outbound.errors import AddressRefused, EndpointUnreachable
from tenants.outbound.pinned import StreamedAnswer, open_pinned

USER_AGENT = "Rootstock-Import/1"
MAX_REDIRECTS = 5
MAX_URL = 8192
"""Signed URLs of content delivery networks are longer than those that people write."""
_SAFE = "%/:=&?~#+!$,;'@()*[]"
"""Characters of a redirect's location that have a meaning; others, which URLs cannot have, are escaped."""
_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 429)
"""Statuses, besides those from 500 on, of which another try may have another."""


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One request, and how far it may be redirected."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers that only the URL's own host receives."""
    method: str = "GET"
    max_redirects: int = MAX_REDIRECTS


class ImportClient:
    """Requests of one process.

    Args:
        trusted: verifies certificates; None means the system's authorities.
    """

    def __init__(
        self,
        policy: ImportPolicy,
        *,
        resolve: Resolve = system_resolve,
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        self.policy = policy
        self._resolve = resolve
        self._trusted = trusted

    @asynccontextmanager
    async def send(self, request: SourceRequest) -> AsyncIterator[StreamedAnswer]:
        """Yields the response, after redirects. Raises EndpointUnreachable, also for a status that another
        try may change; AddressRefused if a host must not be contacted.
        """
        url = request.url
        first = _read(url, http_allowed=True)
        is_private = self.policy.is_private(first)
        for _ in range(request.max_redirects + 1):
            target = _read(url, http_allowed=True)
            # Only an endpoint that the operator vouches for may send requests on to another such host.
            allowed = is_private and self.policy.is_private(target)
            if target.scheme != "https" and not allowed:
                raise AddressRefused("it redirects to a URL that does not begin with https://")
            headers = {"user-agent": USER_AGENT, "accept-encoding": "identity", **request.headers}
            if (target.scheme, target.authority) == (first.scheme, first.authority):
                headers |= request.credentials
            answer_to = open_pinned(
                request.method,
                target,
                await self._address(target, private_allowed=allowed),
                headers,
                trusted=self._trusted,
                timeout=self.policy.timeout,
            )
            async with answer_to as answer:
                location = answer.headers.get("location")
                if answer.status in _PASSING or answer.status >= 500:
                    raise EndpointUnreachable(f"it answered {answer.status}")
                if answer.status not in _REDIRECTS or location is None or not request.max_redirects:
                    yield answer
                    return
            url = urldefrag(urljoin(url, quote(location, safe=_SAFE))).url
        raise EndpointUnreachable(f"it redirects more than {request.max_redirects} times")

    async def _address(self, target: Target, *, private_allowed: bool) -> str:
        try:
            async with asyncio.timeout(self.policy.timeout):
                return await pinned_address(target, self._resolve, private_allowed=private_allowed)
        except TimeoutError as error:
            raise EndpointUnreachable("its host cannot be resolved") from error


def _read(url: str, *, http_allowed: bool) -> Target:
    try:
        return read_url(url, http_allowed=http_allowed, max_length=MAX_URL)
    except ValueError as error:
        raise AddressRefused(str(error)) from error
