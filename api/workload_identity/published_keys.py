"""Fetches and caches the public keys of token issuers, from addresses that are checked as those of webhooks.

A token signed with an unknown key has the keys fetched again, so that issuers can rotate them, but at most
once every half minute: forged tokens cannot cause a flood of requests.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from joserfc.jwk import KeySet

from api.errors import IssuerUnavailable
from tenants.outbound.addresses import Resolve, pinned_address, read_url, system_resolve
from tenants.outbound.errors import EndpointUnreachable
from tenants.outbound.pinned import request_pinned
from tenants.workload_identity.key_sets import read_keys

KEEP_S = 3600.0
ASK_AGAIN_S = 30.0
"""Least time between two fetches of the same issuer's keys, also after a failure."""
MAX_BYTES = 256 * 1024
MAX_ISSUERS = 1000
"""Of which keys are cached; the ones used longest ago are dropped."""


@dataclass(slots=True)
class _Known:
    keys: KeySet | None = None
    tried_at: float = float("-inf")
    fetched_at: float = float("-inf")
    failure: str = ""
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)


class PublishedKeys:
    """The published keys of all issuers, in one process.

    Args:
        http_allowed, private_allowed: as for webhooks.
        timeout: seconds for each request.
    """

    def __init__(
        self,
        *,
        http_allowed: bool = False,
        private_allowed: bool = False,
        timeout: float = 5.0,
        resolve: Resolve = system_resolve,
    ) -> None:
        self._http_allowed = http_allowed
        self._private_allowed = private_allowed
        self._timeout = timeout
        self._resolve = resolve
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def check_url(self, url: str) -> None:
        """Raises ValueError naming the field if the URL is not one of an issuer."""
        read_url(url, http_allowed=self._http_allowed)

    async def of(self, issuer: str, discovery_url: str | None, *, anew: bool = False) -> KeySet:
        """Returns the issuer's keys. `anew`: a key is missing. Raises IssuerUnavailable."""
        url = discovery_url or f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        known = self._known.setdefault((issuer, url), _Known())
        self._known.move_to_end((issuer, url))
        while len(self._known) > MAX_ISSUERS:
            self._known.popitem(last=False)
        async with known.fetching:
            now = time.monotonic()
            is_due = anew or known.keys is None or now - known.fetched_at >= KEEP_S
            if is_due and now - known.tried_at >= ASK_AGAIN_S:
                known.tried_at = now
                try:
                    known.keys, known.failure = await self._fetch(issuer, url), ""
                    known.fetched_at = now
                except EndpointUnreachable as error:
                    known.failure = str(error).removeprefix("the endpoint did not answer: ")
        if known.keys is None:
            raise IssuerUnavailable(f"The keys of the token's issuer cannot be fetched: {known.failure}.")
        return known.keys

    async def _fetch(self, issuer: str, url: str) -> KeySet:
        configuration = await self._get(url)
        if configuration.get("issuer") != issuer:
            raise EndpointUnreachable("its configuration names another issuer")
        jwks_uri = configuration.get("jwks_uri")
        if not isinstance(jwks_uri, str):
            raise EndpointUnreachable("its configuration names no keys")
        try:
            return read_keys(await self._get(jwks_uri))
        except ValueError as error:
            raise EndpointUnreachable(f"its keys cannot be read: {error}") from error

    async def _get(self, url: str) -> dict[str, Any]:
        """Returns a JSON object. Raises EndpointUnreachable."""
        try:
            target = read_url(url, http_allowed=self._http_allowed)
        except ValueError as error:
            raise EndpointUnreachable(str(error)) from error
        try:
            async with asyncio.timeout(self._timeout):
                address = await pinned_address(target, self._resolve, private_allowed=self._private_allowed)
                headers = {"accept": "application/json", "user-agent": "Rootstock"}
                answer = await request_pinned("GET", target, address, headers, max_bytes=MAX_BYTES)
        except TimeoutError as error:
            raise EndpointUnreachable(f"not within {self._timeout:g} s") from error
        if answer.status != 200 or not answer.is_whole:
            raise EndpointUnreachable(f"it answered {answer.status} or more than {MAX_BYTES} bytes")
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise EndpointUnreachable("it did not answer in JSON") from error
        if not isinstance(found, dict):
            raise EndpointUnreachable("it did not answer with an object")
        return found
