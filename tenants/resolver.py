"""From the text of a key to who is asking: one query on a miss, none on a hit, revoked everywhere within a
second.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

import redis.asyncio

from db.cache import EVERYTHING, RowCache
from db.errors import DatabaseUnavailable
from db.session import Database
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey
from tenants.keys import KeyHasher, well_formed
from tenants.repository import LAST_USED_PRECISION, TenantAccounts, TenantDirectory
from tenants.views import plan_view

logger = logging.getLogger(__name__)

KEYS_CHANNEL = "rootstock:invalidate:keys"


@dataclass(frozen=True, slots=True)
class _KnownKey:
    context: TenantContext
    expires_at: datetime | None


class KeyResolver:
    """Resolves keys in one process. `start` it with the process, `close` it at its end."""

    def __init__(
        self, database: Database, redis_client: redis.asyncio.Redis, secret: str, *, ttl: float = 30.0
    ) -> None:
        self._database = database
        self._hasher = KeyHasher(secret)
        self._cache: RowCache[_KnownKey] = RowCache(redis_client, KEYS_CHANNEL, self._load, ttl=ttl)
        self._notes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._cache.start()

    async def close(self) -> None:
        await self._cache.close()
        await asyncio.gather(*self._notes, return_exceptions=True)

    @property
    def listening(self) -> bool:
        """Whether revocations are being heard; while not, a key is looked up again every second."""
        return self._cache.listening

    async def resolve(self, plaintext: str) -> TenantContext:
        """Who holds this key. Raises InvalidApiKey, or DatabaseUnavailable for a key not seen lately."""
        if not well_formed(plaintext):
            raise InvalidApiKey
        known = await self._cache.get(self._hasher.digest(plaintext).hex(), "")
        if known is None or (known.expires_at is not None and known.expires_at <= datetime.now(UTC)):
            raise InvalidApiKey
        return known.context

    async def _load(self, digest_hex: str, _: str) -> _KnownKey | None:
        digest = bytes.fromhex(digest_hex)
        async with self._database.read() as session:
            found = await TenantDirectory(session).key_by_digest(digest)
        if found is None:
            return None
        key, tenant, plan = found
        if (
            not hmac.compare_digest(key.digest, digest)
            or key.revoked_at is not None
            or tenant.disabled_at is not None
        ):
            return None
        now = datetime.now(UTC)
        if key.expires_at is not None and key.expires_at <= now:
            return None
        if key.last_used_at is None or key.last_used_at < now - LAST_USED_PRECISION:
            note = asyncio.create_task(self._note_used(tenant.id, key.id))  # the request does not wait for it
            self._notes.add(note)
            note.add_done_callback(self._notes.discard)
        context = TenantContext(
            tenant.id,
            tenant.name,
            key.id,
            key.kind,  # type: ignore[arg-type]
            frozenset(key.scopes),
            plan_view(plan),
        )
        return _KnownKey(context, key.expires_at)

    async def _note_used(self, tenant_id: str, key_id: str) -> None:
        try:
            async with self._database.write() as session:
                await TenantAccounts(session, tenant_id).note_key_used(key_id)
        except DatabaseUnavailable:
            logger.warning("last use of %s not noted: database unavailable", key_id)


async def publish_key_change(redis_client: redis.asyncio.Redis, digest: bytes | None) -> None:
    """Tell every resolver that a key changed, or with None that any may have."""
    await redis_client.publish(KEYS_CHANNEL, EVERYTHING if digest is None else digest.hex())
