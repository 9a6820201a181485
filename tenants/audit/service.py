"""Writes and reads the audit log: who changed what, when and from where. Verifies its hash chain.

An entry is written in the transaction of the change itself, so that neither exists without the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.base import new_id
from db.errors import UnknownCursor
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import Actor
from tenants.audit.chain import checked_details, digest_of
from tenants.audit.models import OPERATOR_CHAIN, AuditEntry
from tenants.audit.repository import AuditFilter, AuditRepository, Ends, chains, entries

__all__ = ["OPERATOR_CHAIN", "AuditEntry", "AuditFilter", "AuditLog"]

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class ChainProof:
    """What a chain's verification found."""

    tenant_id: str
    num_entries: int
    head: bytes
    """Digest of the last entry: kept elsewhere, it proves later that none of these was changed."""
    broken_from: int | None
    """Sequence number of the first entry that was changed or is missing; None: the chain is intact."""


class AuditLog:
    """The audit logs of all tenants, one hash chain each."""

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
        """Appends an entry for this transaction's change; `target` is a kind and an id.

        Call it last before the commit: it locks the end of the chain, and every other change of the tenant's
        account waits for that lock. `details` must not contain secrets.
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
            actor=actor.audit_fields(),
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
        """Returns the entries after the one with the id `after`. Raises UnknownCursor."""
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
        """Returns entries of all chains for the operator, newest first, after the one with the id `after`."""
        async with self._database.read(EVERY_TENANT) as session:
            return await entries(session, wanted or AuditFilter(), tenant_id, after=after, limit=limit)

    async def verify(self, tenant_id: str) -> int | None:
        """Returns the sequence number of the first entry that was changed or is missing; None if the chain is
        intact.

        Entries written meanwhile are not checked. An entry after the chain's head counts as broken too.
        """
        return (await self.prove(tenant_id)).broken_from

    async def prove(self, tenant_id: str) -> ChainProof:
        """Verifies a chain, and returns what it was verified up to."""
        async with self._database.read(tenant_id) as session:
            ends = await AuditRepository(session, tenant_id).ends()
        return ChainProof(
            tenant_id, ends.head_seq, ends.head_digest, await self._first_broken(tenant_id, ends)
        )

    async def _first_broken(self, tenant_id: str, ends: Ends) -> int | None:
        seq, previous = ends.first_seq - 1, ends.first_previous
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
        """Returns the ids of the tenants that have a chain, `OPERATOR_CHAIN` among them if it exists."""
        async with self._database.read(EVERY_TENANT) as session:
            return await chains(session)
