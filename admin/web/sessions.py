"""Stores console sessions in Redis under the hash of a random id, so that reading Redis signs no one in."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

import msgspec
from redis.asyncio import Redis

ANONYMOUS_S = 3600
"""Life of the session behind a sign-in form: long enough to fetch a password, too short to pile up."""
PENDING_S = 600
"""To find the second factor."""
IDLE_S = 8 * 3600
ABSOLUTE_S = 24 * 3600
ROTATE_S = 15 * 60
GRACE_S = 20
"""How long a rotated id still works, for requests that were already on their way."""


class Impersonation(msgspec.Struct, frozen=True):
    """An operator is in a tenant's console, as one of its users."""

    tenant_id: str
    user_id: str
    is_full: bool
    """Not: looks on."""
    ends_at: float
    """Unix seconds."""
    reason: str


class PendingSignIn(msgspec.Struct, frozen=True):
    """A sign-in whose first factor is proved, and whose second is awaited. It is not signed in yet."""

    user_id: str
    tenant_id: str
    by: str
    """What the first was."""
    proved_at: float
    """Unix seconds."""


class Session(msgspec.Struct, frozen=True):
    """What the server remembers about a browser. No user: the sign-in form has been shown, no more."""

    csrf_token: str
    started_at: float
    """Unix seconds of the sign-in (or of the first visit): bounds the whole chain of rotations."""
    rotated_at: float
    user_id: str | None = None
    tenant_id: str | None = None
    superseded: bool = False
    """Rotated away: serves the requests that were on their way, is never extended nor rotated again."""
    flash: str = msgspec.field(default="", name="said")
    """A message that the next page shows once."""
    next_path: str = ""
    """The page that the user asked for before they were sent to sign in; "" for the first one."""
    impersonation: Impersonation | None = None
    """Of an operator alone."""
    pending: PendingSignIn | None = msgspec.field(default=None, name="half_way")
    """With no user yet."""
    role: str = ""
    """Of the user, when they were last here."""
    address: str = ""
    """Of the client, and what it calls itself: for the user to recognise the session by."""
    agent: str = ""

    def accepts(self, csrf_token: str) -> bool:
        """Whether a form came from a page of this session."""
        return hmac.compare_digest(self.csrf_token.encode(), csrf_token.encode())


class OpenSession(msgspec.Struct, frozen=True):
    """A session and the id its browser must present: new when `fresh`."""

    id: str
    session: Session
    fresh: bool = True


class SessionSummary(msgspec.Struct, frozen=True):
    """One of a user's sessions, as they are shown it."""

    handle: str
    """Tells it from others, and opens nothing."""
    session: Session
    idle_s: int
    """Since its last request."""


class SessionStore:
    """All sessions, by id. Nothing is remembered here: any API process serves any browser."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def begin(self, *, flash: str = "", next_path: str = "") -> OpenSession:
        """Starts an anonymous session for a sign-in form."""
        now = time.time()
        session = Session(secrets.token_urlsafe(32), now, now, flash=flash, next_path=next_path)
        return await self._store(session, ANONYMOUS_S)

    async def begin_second_factor(
        self, old: str | None, pending: PendingSignIn, *, next_path: str = ""
    ) -> OpenSession:
        """Starts a session that can do nothing yet but take the second factor."""
        if old:
            await self.end(old)
        now = time.time()
        session = Session(secrets.token_urlsafe(32), now, now, pending=pending, next_path=next_path)
        return await self._store(session, PENDING_S)

    async def sign_in(
        self,
        old: str | None,
        user_id: str,
        tenant_id: str,
        *,
        role: str = "",
        address: str = "",
        agent: str = "",
        proved_at: float | None = None,
    ) -> OpenSession:
        """Starts a session with a new id, so that knowing the old id is worth nothing (session fixation). It
        counts from `proved_at`: ending all sessions also ends one that was being started.
        """
        if old:
            await self.end(old)
        now = time.time()
        session = Session(
            secrets.token_urlsafe(32),
            now if proved_at is None else proved_at,
            now,
            user_id,
            tenant_id,
            role=role,
            address=address[:64],
            agent=agent[:200],
        )
        return await self._store(session, IDLE_S)

    async def renew(self, opened: OpenSession) -> OpenSession:
        """A new id and a new token for a user whose ways in have changed, counted from now: forms of pages
        that were shown before are worth nothing.
        """
        await self.end(opened.id)
        now = time.time()
        session = msgspec.structs.replace(
            opened.session, csrf_token=secrets.token_urlsafe(32), started_at=now, rotated_at=now, flash=""
        )
        return await self._store(session, IDLE_S)

    async def find(self, session_id: str | None) -> OpenSession | None:
        """The session of a request, its idle time started over; rotated when it is due."""
        session = await self._stored(session_id)
        if session_id is None or session is None:
            return None
        if session.user_id is None or session.superseded:
            return OpenSession(session_id, session, fresh=False)
        now = time.time()
        if now - session.started_at >= ABSOLUTE_S:
            await self.end(session_id)
            return None
        if now - session.rotated_at >= ROTATE_S:
            return await self._rotate(session_id, session)
        await self._redis.expire(_key(session_id), IDLE_S)
        return OpenSession(session_id, session, fresh=False)

    async def peek(self, session_id: str | None) -> OpenSession | None:
        """The session of a request that may yet be refused: nothing of it changes, it lasts no longer."""
        session = await self._stored(session_id)
        if session_id is None or session is None:
            return None
        if session.user_id is not None and time.time() - session.started_at >= ABSOLUTE_S:
            return None
        return OpenSession(session_id, session, fresh=False)

    async def _stored(self, session_id: str | None) -> Session | None:
        """As Redis has it, whatever has become of it."""
        if not session_id or len(session_id) > 64:
            return None
        raw = await self._redis.get(_key(session_id))
        if raw is None:
            return None
        assert isinstance(raw, bytes), "the client must not decode answers"
        return msgspec.msgpack.decode(raw, type=Session)

    async def with_role(self, opened: OpenSession, role: str) -> OpenSession:
        """Returns the session of a user with this role, rotated if the role has changed."""
        if opened.session.superseded or opened.session.role == role:
            return opened
        return await self._rotate(opened.id, msgspec.structs.replace(opened.session, role=role))

    async def _rotate(self, session_id: str, session: Session) -> OpenSession:
        rotated = await self._store(msgspec.structs.replace(session, rotated_at=time.time()), IDLE_S)
        old = msgspec.structs.replace(session, superseded=True)
        await self._redis.set(_key(session_id), msgspec.msgpack.encode(old), ex=GRACE_S, xx=True)
        return rotated

    async def impersonate(self, opened: OpenSession, impersonation: Impersonation | None) -> OpenSession:
        """Starts impersonation, or ends it with None, under a new id: forms of earlier pages are rejected."""
        await self.end(opened.id)
        session = msgspec.structs.replace(
            opened.session, csrf_token=secrets.token_urlsafe(32), rotated_at=time.time(), flash=""
        )
        return await self._store(msgspec.structs.replace(session, impersonation=impersonation), IDLE_S)

    async def set_flash(self, opened: OpenSession, message: str) -> None:
        """Have the next page of this session tell it; with "", have it told."""
        await self._replace(opened.id, msgspec.structs.replace(opened.session, flash=message))

    async def set_next_path(self, opened: OpenSession, path: str) -> None:
        """Has the sign-in that this session begins lead to a page."""
        await self._replace(opened.id, msgspec.structs.replace(opened.session, next_path=path))

    async def _replace(self, session_id: str, session: Session) -> None:
        await self._redis.set(_key(session_id), msgspec.msgpack.encode(session), keepttl=True, xx=True)

    async def end(self, session_id: str) -> None:
        """Forget a session, at once and everywhere."""
        await self._redis.delete(_key(session_id))

    async def of_user(self, user_id: str) -> list[SessionSummary]:
        """Their sessions, the one used last first."""
        handles = sorted(await self._handles(user_id))
        if not handles:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for handle in handles:
                pipe.get(_PREFIX + handle)
                pipe.ttl(_PREFIX + handle)
            answers = await pipe.execute()
        known, over = [], []
        for at, handle in enumerate(handles):
            raw, left = answers[2 * at], int(answers[2 * at + 1])
            session = None if raw is None else msgspec.msgpack.decode(raw, type=Session)
            if session is None or session.user_id != user_id:
                over.append(handle)
            elif not session.superseded:
                known.append(SessionSummary(handle, session, max(0, IDLE_S - left)))
        if over:
            await self._redis.srem(_index(user_id), *over)
        return sorted(known, key=lambda one: one.idle_s)

    async def end_of_user(self, user_id: str, *, handle: str | None = None, but: str | None = None) -> int:
        """Forget one of their sessions, or all but the one whose id is `but`; how many there were."""
        handles = await self._handles(user_id)
        if handle is not None:
            handles &= {handle}
        if but is not None:
            handles -= {_handle(but)}
        if not handles:
            return 0
        await self._redis.srem(_index(user_id), *handles)
        return int(await self._redis.delete(*(_PREFIX + one for one in handles)))

    async def _handles(self, user_id: str) -> set[str]:
        found = await self._redis.smembers(_index(user_id))
        return {one.decode() if isinstance(one, bytes) else one for one in found}

    async def _store(self, session: Session, seconds: int) -> OpenSession:
        session_id = secrets.token_urlsafe(32)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(_key(session_id), msgspec.msgpack.encode(session), ex=seconds)
            if session.user_id is not None:
                pipe.sadd(_index(session.user_id), _handle(session_id))
                pipe.expire(_index(session.user_id), ABSOLUTE_S)
            await pipe.execute()
        return OpenSession(session_id, session)


_PREFIX = "rootstock:console:session:"


def handle_of(opened: OpenSession) -> str:
    """What tells the session from others."""
    return _handle(opened.id)


def _handle(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()


def _key(session_id: str) -> str:
    return _PREFIX + _handle(session_id)


def _index(user_id: str) -> str:
    return f"rootstock:console:sessions-of:{user_id}"
