"""Stores sign-ins that are in progress at an identity provider, in Redis, under the hash of their state.

An answer is accepted once, within ten minutes, from the browser that started the sign-in.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import Literal

import msgspec
from redis.asyncio import Redis

from admin.web.sessions import Session
from tenants.keys import DIGEST_LEN

LIFE_S = 600
Purpose = Literal["sign_in", "join", "connect"]


class Flow(msgspec.Struct, frozen=True):
    provider: str
    purpose: Purpose
    nonce: str
    verifier: str
    """Of PKCE: without it the code is worth nothing."""
    browser: bytes
    """Hash of the token of the session that asked."""
    began_at: float
    redirect_uri: str
    invite: bytes = b""
    """What an invitation's token is known by, its digests joined: the token itself is kept nowhere."""

    @property
    def invites(self) -> list[bytes]:
        """The digests, one of which the invitation is stored with."""
        return [self.invite[at : at + DIGEST_LEN] for at in range(0, len(self.invite), DIGEST_LEN)]


class Flows:
    """All that are under way."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def begin(
        self, provider: str, purpose: Purpose, session: Session, redirect_uri: str, invite: bytes = b""
    ) -> tuple[str, Flow]:
        """The state to ask with, and what is remembered of it."""
        state = secrets.token_urlsafe(32)
        flow = Flow(
            provider,
            purpose,
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(48),
            _hash(session.csrf_token),
            time.time(),
            redirect_uri,
            invite,
        )
        await self._redis.set(_key(state), msgspec.msgpack.encode(flow), ex=LIFE_S)
        return state, flow

    async def take(self, state: str, provider: str, session: Session | None) -> Flow | None:
        """What was asked with this state, once. None for a state that was never given, is used, is too old,
        is another provider's, or another browser's: that one must not spend it either, and has.
        """
        if not state or len(state) > 100:
            return None
        raw = await self._redis.getdel(_key(state))
        if raw is None or session is None:
            return None
        flow = msgspec.msgpack.decode(raw, type=Flow)  # type: ignore[arg-type]
        if flow.provider != provider or not hmac.compare_digest(flow.browser, _hash(session.csrf_token)):
            return None
        return flow


def _key(state: str) -> str:
    return f"rootstock:console:oidc:{hashlib.sha256(state.encode()).hexdigest()}"


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
