"""Resolves API keys to their callers, through a cache that is invalidated within a second.

A cache hit needs no query. Simultaneous misses share one query. Also records when keys were last used.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import redis.asyncio
import structlog
from sqlalchemy import ColumnElement, Row

from db.batch_loader import BatchLoader
from db.cache import EVERYTHING, Lifetimes, RowCache
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database, WriteSession
from engine.protocol import PriorityClass
from tenants.context import TenantContext
from tenants.errors import AddressNotAllowed, InvalidApiKey
from tenants.ip_networks import is_inside
from tenants.key_secrets import KeySecrets
from tenants.keys import KeyHasher, well_formed
from tenants.limits.repository import compiled
from tenants.models import ApiKey, Plan, Project, Tenant
from tenants.repository import LAST_USED_PRECISION, KeyRepository, TenantDirectory
from tenants.views import PlanView, plan_view

log = structlog.get_logger(__name__)

KEYS_CHANNEL = "rootstock:invalidate:keys"
NOTE_AFTER = 2.0
"""Seconds for which last uses are collected before one statement writes them."""
MOST_NOTED = 1_000
_MOST_SINGLE_INVALIDATIONS = 1_000
"""Number of changed keys above which the whole cache is invalidated instead."""


@dataclass(frozen=True, slots=True)
class _KnownKey:
    context: TenantContext
    expires_at: datetime | None


class KeyResolver:
    """Resolves keys in one process. Call `start` when the process starts and `close` when it ends."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        secret: str | KeySecrets,
        *,
        ttl: float = 30.0,
    ) -> None:
        self._database = database
        self._hasher = KeyHasher(secret)
        self._cache: RowCache[_KnownKey] = RowCache(
            redis_client, KEYS_CHANNEL, self._load, lifetimes=Lifetimes(ttl)
        )
        self._looked_up: BatchLoader[tuple[str, str], _KnownKey] = BatchLoader(self._look_up)
        self._used: set[str] = set()
        self._noting: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def start(self) -> None:
        await self._cache.start()

    async def close(self) -> None:
        await self._cache.close()
        await self._looked_up.close()
        self._closing.set()
        if self._noting is not None:
            await self._noting

    @property
    def listening(self) -> bool:
        """Whether invalidations are received; while not, cached keys expire after a second."""
        return self._cache.listening

    async def resolve(self, plaintext: str, address: str | None = None) -> TenantContext:
        """Returns the caller with this key. `address`: the client's, as seen through trusted proxies.

        Raises InvalidApiKey; AddressNotAllowed, also if the key is restricted to networks and the address is
        unknown; DatabaseUnavailable if the key is not cached.
        """
        digest_hex = self._hasher.digest(plaintext).hex()
        other = self._hasher.other_digest(plaintext)
        # Known by both digests, so that a message about either of them invalidates it.
        other_hex = "" if other is None else other.hex()
        known = self._cache.peek(digest_hex, other_hex)
        if known is None:
            if not well_formed(plaintext):  # checked only now: cached keys are well-formed
                raise InvalidApiKey
            known = await self._cache.get(digest_hex, other_hex)
        if known is None or (known.expires_at is not None and known.expires_at <= datetime.now(UTC)):
            raise InvalidApiKey
        context = known.context
        if context.networks and not is_inside(address, context.networks):
            raise AddressNotAllowed(address, context)
        return context

    async def _load(self, digest_hex: str, other_hex: str) -> _KnownKey | None:
        return await self._looked_up.get((digest_hex, other_hex))

    async def _look_up(self, both: Sequence[tuple[str, str]]) -> dict[tuple[str, str], _KnownKey]:
        """Returns those of the keys that are valid, by their digests under the current and the other secret
        (empty: there is no other).
        """
        wanted = {bytes.fromhex(digest): pair for pair in both for digest in pair if digest}
        rows = await self._rows(wanted)
        older = {
            digest: bytes.fromhex(wanted[digest][0])
            for digest in (bytes(row[0].digest) for row in rows)
            if digest.hex() != wanted[digest][0]
        }
        if older:
            await self._rehash(older)
            rows = await self._rows(wanted)  # again: a change before now may have named the digest of before
        now = datetime.now(UTC)
        known = {}
        for key, tenant, plan, project, limits in rows:
            if not is_key_valid(key, tenant, project, now):
                continue
            if key.last_used_at is None or key.last_used_at < now - LAST_USED_PRECISION:
                self._note_used(key.id)
            context = context_of(key, tenant, plan, project, limits)
            known[wanted[bytes(key.digest)]] = _KnownKey(context, key.expires_at)
        return known

    async def _rows(
        self, digests: Collection[bytes]
    ) -> Sequence[Row[ApiKey, Tenant, Plan, Project | None, Any]]:
        """Looks for both digests of a key at once: another process may change one into the other."""
        async with self._database.read(EVERY_TENANT) as session:
            return await TenantDirectory(session).keys_by_digest([*digests])

    async def _rehash(self, older: dict[bytes, bytes]) -> None:
        """Stores keys under their digests with the current secret: `older` has these by the other digest."""
        async with self._database.write(EVERY_TENANT) as session:
            directory = TenantDirectory(session)
            for digest in sorted(older):  # in the same order everywhere, so that two cannot deadlock
                await directory.rehash_key(digest, older[digest], self._hasher.secret_id)

    def _note_used(self, key_id: str) -> None:
        """Schedules recording the key's use. No request waits for it."""
        if len(self._used) < MOST_NOTED:
            self._used.add(key_id)
        if self._noting is None and not self._closing.is_set():
            self._noting = asyncio.create_task(self._note_uses(), name="last uses of keys")

    async def _note_uses(self) -> None:
        try:
            while self._used:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), NOTE_AFTER)
                used, self._used = self._used, set()
                async with self._database.write(EVERY_TENANT) as session:
                    await TenantDirectory(session).note_keys_used(used, self._hasher.secret_id)
        except DatabaseUnavailable:
            log.warning("last use of keys was not recorded: the database is unavailable", keys=len(used))
        finally:
            self._noting = None


def is_key_valid(key: ApiKey, tenant: Tenant, project: Project | None, now: datetime) -> bool:
    return (
        key.revoked_at is None
        and (key.expires_at is None or key.expires_at > now)
        and tenant.disabled_at is None
        and (project is None or project.archived_at is None)
    )


def context_of(
    key: ApiKey, tenant: Tenant, plan: Plan, project: Project | None, limits: Any
) -> TenantContext:
    """Returns the caller for requests with the key. Replaced as a whole when any of it changes."""
    return TenantContext(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        key_id=key.id,
        kind=key.kind,  # type: ignore[arg-type]
        scopes=frozenset(key.scopes),
        plan=_plan_of(plan, project),
        project_id=key.project_id,
        user_id=key.user_id or key.service_account_id,
        models=frozenset(key.models),
        project_models=frozenset() if project is None else frozenset(project.models),
        project_denies=project is not None and project.models_denied,
        auto_tier=None if project is None or project.auto_tier is None else PriorityClass(project.auto_tier),
        networks=tuple(key.networks),
        origins=frozenset(key.origins),
        billing_state=tenant.billing_state,  # type: ignore[arg-type]
        stores_nothing=bool(tenant.stores_nothing),
        limits=compiled(tenant.id, plan.limits, limits),
    )


def _plan_of(plan: Plan, project: Project | None) -> PlanView:
    """Returns the plan with the service tiers that the project allows."""
    view = plan_view(plan)
    if project is None or project.service_tiers is None:
        return view
    open_to = {PriorityClass.DEFAULT, *map(PriorityClass, project.service_tiers)}
    terms = {
        tier: terms if tier in open_to else dataclasses.replace(terms, allowed=False)
        for tier, terms in view.terms.items()
    }
    return dataclasses.replace(view, terms=MappingProxyType(terms))


async def publish_key_change(redis_client: redis.asyncio.Redis, digest: bytes | None) -> None:
    """Invalidates a key in every process's cache, or with None all keys."""
    await redis_client.publish(KEYS_CHANNEL, EVERYTHING if digest is None else digest.hex())


async def revoke_keys(
    session: WriteSession,
    redis_client: redis.asyncio.Redis,
    tenant_id: str,
    *conditions: ColumnElement[bool],
) -> list[str]:
    """Revokes a tenant's keys that match, and invalidates them in all caches after the commit. Returns their
    ids.
    """
    revoked = await KeyRepository(session, tenant_id).revoke(*conditions)
    digests = [row.digest for row in revoked]
    session.after_commit(lambda: publish_key_changes(redis_client, digests))
    return sorted(row.id for row in revoked)


async def publish_key_changes(redis_client: redis.asyncio.Redis, digests: Collection[bytes]) -> None:
    """Invalidates these keys in every process's cache."""
    if len(digests) > _MOST_SINGLE_INVALIDATIONS:
        await publish_key_change(redis_client, None)
        return
    async with redis_client.pipeline(transaction=False) as pipeline:
        for digest in digests:
            pipeline.publish(KEYS_CHANNEL, digest.hex())
        await pipeline.execute()
