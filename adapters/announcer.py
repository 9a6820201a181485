"""Announces changes of the served adapters after the commit, to the resolvers and to the engine; activates
versions.
"""

from __future__ import annotations

from collections.abc import Sequence

import redis.asyncio

from adapters import events
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.pinning import Pinning, ref_of
from adapters.repository import AdapterRepository
from adapters.resolver import publish_model_change
from db.session import WriteSession
from engine.protocol import AdapterRef


class Announcer:
    """Announces changes for one process. Without `pinning`, an engine loads an adapter at its first
    request.
    """

    def __init__(self, redis_client: redis.asyncio.Redis, pinning: Pinning | None = None) -> None:
        self._redis = redis_client
        self._pinning = pinning

    def changed(self, session: WriteSession, tenant_id: str) -> None:
        """Announces, once `session` is committed, that the tenant's adapters changed."""
        session.after_commit(lambda: publish_model_change(self._redis, tenant_id))

    def serves(
        self,
        session: WriteSession,
        adapter: Adapter,
        *,
        now: Sequence[AdapterRef] = (),
        before: Sequence[AdapterRef] = (),
    ) -> None:
        """Announces, once `session` is committed, that the adapter serves `now`, and `before` no longer."""
        tenant_id, base = adapter.tenant_id, adapter.base
        self.changed(session, tenant_id)
        pinning = self._pinning
        if pinning is not None and (now or before):
            session.after_commit(lambda: pinning.changed(tenant_id, base, now=now, before=before))

    async def activate(
        self, session: WriteSession, adapter: Adapter, version: AdapterVersion, *, job_id: str | None = None
    ) -> None:
        """Makes a ready version the active one of the adapter, which is locked. Again changes nothing."""
        assert version.state == VersionState.READY
        former = adapter.active_version
        before: list[AdapterRef] = []
        if former != version.version:
            if former is not None:
                row = await AdapterRepository(session, adapter.tenant_id).version(adapter.id, former)
                before = [ref_of(row)] if row is not None and row.digest not in (None, version.digest) else []
                adapter.previous_version = former
            adapter.active_version = version.version
            events.record(
                session,
                adapter.tenant_id,
                adapter.id,
                "version.activated",
                f"Version {version.version} is active: {adapter.name} serves it.",
                version=version.version,
                job_id=job_id,
                data={"previous_version": former},
            )
        now = [] if adapter.disabled_at is not None else [ref_of(version)]
        self.serves(session, adapter, now=now, before=before)
