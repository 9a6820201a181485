"""Reads and writes the audit log's tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, bindparam, func, literal, or_, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from db.repository import TenantRepository
from tenants.audit.chain import START
from tenants.audit.models import AuditEntry, AuditHead


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects audit log entries; an empty field matches all."""

    types: Collection[str] = ()
    actor_ids: Collection[str] = ()
    """Ids of keys, users or service accounts."""
    actor_emails: Collection[str] = ()
    target_ids: Collection[str] = ()
    project_ids: Collection[str] = ()
    since: datetime | None = None
    """Inclusive."""
    until: datetime | None = None
    """Exclusive."""

    def conditions(self) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        actor = AuditEntry.actor
        if self.types:
            found.append(AuditEntry.type.in_(self.types))
        if self.actor_ids:
            found.append(
                or_(
                    actor["id"].astext.in_(self.actor_ids),
                    actor["user_id"].astext.in_(self.actor_ids),
                )
            )
        if self.actor_emails:
            found.append(actor["email"].astext.in_([email.lower() for email in self.actor_emails]))
        if self.target_ids:
            found.append(AuditEntry.target_id.in_(self.target_ids))
        if self.project_ids:
            found.append(AuditEntry.project_id.in_(self.project_ids))
        if self.since is not None:
            found.append(AuditEntry.at >= self.since)
        if self.until is not None:
            found.append(AuditEntry.at < self.until)
        return found


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain, locked until the transaction ends."""

    seq: int
    digest: bytes
    now: datetime
    """By the database's clock, read after the lock was taken."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The last entry according to the chain's head, and the last entry there is."""

    head_seq: int
    head_digest: bytes
    last_seq: int
    first_seq: int = 1
    """The oldest entry that there must be: those before it were deleted by the organization's retention."""
    first_previous: bytes = START


# Statements that are built once: building them takes longer than running them.
_HOLD = (
    insert(AuditHead.__table__)  # type: ignore[arg-type]
    .values(tenant_id=bindparam("new_tenant_id"), seq=0, digest=START)
    .on_conflict_do_update(index_elements=[AuditHead.tenant_id], set_={"seq": AuditHead.seq})
    .returning(AuditHead.seq, AuditHead.digest, func.clock_timestamp())
)
_COLUMNS = tuple(AuditEntry.__table__.columns.keys())
_MOVED = (
    update(AuditHead)
    .where(AuditHead.tenant_id == bindparam("new_tenant_id"))
    .values(seq=bindparam("new_seq"), digest=bindparam("new_digest"))
)
_APPEND = (
    insert(AuditEntry.__table__)  # type: ignore[arg-type]
    .values({name: bindparam(f"new_{name}") for name in _COLUMNS})
    .add_cte(_MOVED.cte("moved"))
)
"""Inserts an entry and moves the head to it."""

DELETIONS_KEPT = 10_000
"""Number of a tenant's latest entries that are searched for a deleted object: far more than a client deletes
between two pages, and few enough to read for each unknown cursor.
"""


def deleted_ids(tenant_id: str, type: str, project_id: str | None = None) -> Select[str]:
    """Selects the ids of objects that were deleted lately, by the tenant's latest audit log entries of this
    type and project. For `db.cursors.fetch_page`.
    """
    last = select(AuditHead.seq).where(AuditHead.tenant_id == tenant_id).scalar_subquery()
    return select(AuditEntry.target_id).where(
        AuditEntry.tenant_id == tenant_id,
        AuditEntry.seq > last - DELETIONS_KEPT,
        AuditEntry.type == type,
        AuditEntry.project_id.is_not_distinct_from(project_id),
    )


class AuditRepository(TenantRepository):
    async def hold_head(self) -> Head:
        """Locks the chain's end, created if missing, until this transaction ends, and returns it."""
        held = await self.session.execute(_HOLD, {"new_tenant_id": self.tenant_id})
        seq, digest, now = held.one()
        return Head(seq, bytes(digest), now)

    async def add(self, entry: AuditEntry) -> None:
        """Appends an entry and moves the head, which the caller has locked with `hold_head`."""
        assert entry.tenant_id == self.tenant_id, "an entry of another tenant"
        await self.session.execute(_APPEND, {f"new_{name}": getattr(entry, name) for name in _COLUMNS})

    async def seq_of(self, entry_id: str) -> int | None:
        query = self.select_own(AuditEntry, AuditEntry.seq).where(AuditEntry.id == entry_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def page(
        self, wanted: AuditFilter, *, after: int | None, limit: int, newest_first: bool
    ) -> Sequence[AuditEntry]:
        """Returns the entries after sequence number `after`, in commit order or reversed."""
        query = self.select_own(AuditEntry).where(*wanted.conditions())
        if after is not None:
            query = query.where(AuditEntry.seq < after if newest_first else AuditEntry.seq > after)
        query = query.order_by(AuditEntry.seq.desc() if newest_first else AuditEntry.seq)
        return (await self.session.execute(query.limit(limit))).scalars().all()

    async def ends(self) -> Ends:
        """Returns both ends of the chain, read in one snapshot."""
        last = select(func.max(AuditEntry.seq)).where(AuditEntry.tenant_id == self.tenant_id)
        head = self.select_own(AuditHead).subquery()
        columns = (head.c.seq, head.c.digest, head.c.first_seq, head.c.first_previous)
        query = select(last.scalar_subquery(), *columns).select_from(
            select(literal(1)).subquery().outerjoin(head, true())
        )
        last_seq, seq, digest, first, before = (await self.session.execute(query)).one()
        if seq is None:
            return Ends(0, START, last_seq or 0)
        return Ends(
            seq, bytes(digest), last_seq or first - 1, first, START if before is None else bytes(before)
        )

    async def prune(self, through: int) -> int:
        """Deletes the entries up to this one for good; returns how many. None may be younger than 90 days:
        PostgreSQL refuses that.
        """
        return int(
            (await self.session.execute(select(func.prune_audit_log(self.tenant_id, through)))).scalar_one()
        )

    async def oldest_before(self, moment: datetime, limit: int) -> Sequence[AuditEntry]:
        """Returns up to `limit` of the oldest entries, all written before `moment`."""
        query = self.select_own(AuditEntry).where(*self._before(moment)).order_by(AuditEntry.seq)
        return (await self.session.execute(query.limit(limit))).scalars().all()

    async def count_oldest_before(self, moment: datetime) -> tuple[int, datetime | None]:
        """Returns how many of the oldest entries were all written before `moment`, and when the first was."""
        query = self.select_own(AuditEntry, func.count(), func.min(AuditEntry.at))
        num, oldest = (await self.session.execute(query.where(*self._before(moment)))).one()
        return num, oldest

    def _before(self, moment: datetime) -> tuple[ColumnElement[bool], ...]:
        """The entries before the first that is not older than `moment`."""
        young = self.select_own(AuditEntry, func.min(AuditEntry.seq)).where(AuditEntry.at >= moment)
        return (
            AuditEntry.at < moment,
            AuditEntry.seq < func.coalesce(young.scalar_subquery(), 2**62),
        )


async def entries(
    session: AsyncSession, wanted: AuditFilter, tenant_id: str | None, *, after: str | None, limit: int
) -> Sequence[AuditEntry]:
    """Returns entries of one tenant, or of all: newest first, after the entry with the id `after`."""
    query = select(AuditEntry).where(*wanted.conditions())
    if tenant_id is not None:
        query = query.where(AuditEntry.tenant_id == tenant_id)
    if after is not None:
        query = query.where(AuditEntry.id < after)
    return (await session.execute(query.order_by(AuditEntry.id.desc()).limit(limit))).scalars().all()


async def chains(session: AsyncSession) -> list[str]:
    """Returns the ids of all tenants that have a chain."""
    entries = select(AuditEntry.tenant_id).distinct()
    query = entries.union(select(AuditHead.tenant_id)).order_by("tenant_id")
    return list((await session.execute(query)).scalars())
