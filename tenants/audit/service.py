"""The audit log: who changed what, when, from where; written with the change itself or not at all.

Owns adding to a tenant's chain, reading it and proving it whole. Refuses to know what the entries mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from db.base import new_id
from db.errors import UnknownCursor
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import Actor
from tenants.audit.chain import START, checked_details, digest_of
from tenants.audit.models import OPERATOR_CHAIN, AuditEntry
from tenants.audit.repository import AuditFilter, AuditRepository, chains, entries

__all__ = ["OPERATOR_CHAIN", "AuditEntry", "AuditFilter", "AuditLog"]

_BATCH = 1000


class AuditLog:
    """Every tenant's chain."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @staticmethod
    async def record(
        session: WriteSession,
        tenant_id: str,
        actor: Actor,
        type: str,
        target: tuple[str, str],
        details: Mapping[str, Any] | None = None,
        *,
        project_id: str | None = None,
    ) -> AuditEntry:
        """Add what this transaction does to the tenant's chain; `target` is a kind and an id.

        The last thing before the commit: it holds the end of the chain, for which every other change of the
        tenant's account waits. No secret may be in `details`.
        """
        await session.flush()
        repository = AuditRepository(session, tenant_id)
        head = await repository.hold_head()
        entry = AuditEntry(
            tenant_id=tenant_id,
            seq=head.seq + 1,
            id=new_id("audit_log").replace("audit_log_", "audit_log-"),
            at=head.now,
            type=type,
            actor=actor.described(),
            target_kind=target[0],
            target_id=target[1],
            project_id=project_id,
            details=checked_details(details or {}),
            previous=head.digest,
        )
        entry.digest = digest_of(entry)
        await repository.add(entry)
        return entry

    async def list(
        self,
        tenant_id: str,
        wanted: AuditFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> list[AuditEntry]:
        """Entries beyond the one whose id is `after`. Raises UnknownCursor."""
        async with self._database.read(tenant_id) as session:
            repository = AuditRepository(session, tenant_id)
            seq = None
            if after is not None:
                seq = None if "\x00" in after else await repository.seq_of(after)
                if seq is None:
                    raise UnknownCursor
            page = await repository.page(
                wanted or AuditFilter(), after=seq, limit=limit, newest_first=newest_first
            )
        return [*page]

    async def everywhere(
        self,
        wanted: AuditFilter | None = None,
        *,
        tenant_id: str | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> Sequence[AuditEntry]:
        """Entries of every chain, the newest first, beyond the one of that id. For the operator."""
        async with self._database.read(EVERY_TENANT) as session:
            return await entries(session, wanted or AuditFilter(), tenant_id, after=after, limit=limit)

    async def verify(self, tenant_id: str) -> int | None:
        """The number of the first entry that is not as it was written, or is missing; None when all are.

        What is written meanwhile is not looked at. An entry behind the end, which nobody here wrote, is a
        broken one too.
        """
        async with self._database.read(tenant_id) as session:
            ends = await AuditRepository(session, tenant_id).ends()
        seq, previous = 0, START
        while seq < ends.head_seq:
            async with self._database.read(tenant_id) as session:
                batch = await AuditRepository(session, tenant_id).page(
                    AuditFilter(), after=seq, limit=min(_BATCH, ends.head_seq - seq), newest_first=False
                )
            for entry in batch:
                whole = entry.seq == seq + 1 and bytes(entry.previous) == previous
                if not whole or bytes(entry.digest) != digest_of(entry):
                    return seq + 1
                seq, previous = entry.seq, bytes(entry.digest)
            if not batch:
                return seq + 1
        if previous != ends.head_digest:
            return max(seq, 1)
        return ends.head_seq + 1 if ends.last_seq != ends.head_seq else None

    async def chains(self) -> Sequence[str]:
        """Ids of the tenants that have one, and perhaps `OPERATOR_CHAIN`."""
        async with self._database.read(EVERY_TENANT) as session:
            return await chains(session)
