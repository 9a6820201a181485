"""Stores SAML sign-ins that are in progress, in Redis: requests, verified answers, and ids of assertions.

The browser brings a response by a form of another site, and sends no session cookie with it. So the response
is verified first, and kept under a random name; the browser is led to a page here under that name, to which
it does send the cookie, and only there is the sign-in completed, in the browser that began it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from datetime import UTC, datetime

import msgspec
from redis.asyncio import Redis

from admin.web.sessions import Session
from tenants.saml.service_provider import new_request_id
from tenants.saml.statements import Assertion

LIFE_S = 600
"""To sign in at the provider."""
PROVED_S = 60
"""To be led from a response to the page that completes the sign-in."""


class SamlRequest(msgspec.Struct, frozen=True):
    """A request that was sent to a provider."""

    connection_id: str
    browser: bytes
    """Hash of the token of the session that asked."""
    began_at: float


class VerifiedResponse(msgspec.Struct, frozen=True):
    """A response that was verified, and is yet to be used in the browser that brings it."""

    connection_id: str
    assertion: Assertion
    next_path: str
    """The page of the console that the provider asked for; "" for the first one."""
    verified_at: float


class SamlFlows:
    """All that are in progress."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def begin(self, connection_id: str, session: Session) -> str:
        """Returns the id of a new request."""
        request_id = new_request_id()
        request = SamlRequest(connection_id, _hash(session.csrf_token), time.time())
        await self._redis.set(_key("request", request_id), msgspec.msgpack.encode(request), ex=LIFE_S)
        return request_id

    async def take(self, request_id: str, connection_id: str, session: Session | None) -> SamlRequest | None:
        """Returns the request with this id, once. None for one that was never made, is used, is too old, or
        is another connection's or another browser's.
        """
        raw = await self._redis.getdel(_key("request", request_id))
        if raw is None or session is None:
            return None
        request = msgspec.msgpack.decode(raw, type=SamlRequest)  # type: ignore[arg-type]
        is_same_browser = hmac.compare_digest(request.browser, _hash(session.csrf_token))
        return request if request.connection_id == connection_id and is_same_browser else None

    async def is_new(self, connection_id: str, assertion: Assertion) -> bool:
        """Notes the id of an assertion until the assertion has expired; returns whether it is the first
        time.
        """
        left = (assertion.expires_at - datetime.now(UTC)).total_seconds()
        key = _key("seen", f"{connection_id} {assertion.id}")
        return bool(await self._redis.set(key, b"", ex=max(1, int(left) + 1), nx=True))

    async def keep(self, response: VerifiedResponse) -> str:
        """Returns the name under which a verified response is kept for a minute."""
        name = secrets.token_urlsafe(32)
        await self._redis.set(_key("proved", name), msgspec.msgpack.encode(response), ex=PROVED_S)
        return name

    async def kept(self, name: str) -> VerifiedResponse | None:
        """Returns a verified response, once."""
        if not name or len(name) > 100:
            return None
        raw = await self._redis.getdel(_key("proved", name))
        return None if raw is None else msgspec.msgpack.decode(raw, type=VerifiedResponse)  # type: ignore[arg-type]


def _key(kind: str, name: str) -> str:
    return f"rootstock:console:saml:{kind}:{hashlib.sha256(name.encode()).hexdigest()}"


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
