"""Reads and writes the tables of retention: one organization's, and what is unfinished of every one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import exists, func, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from db.base import new_id
from db.repository import TenantRepository
from tenants.models import Plan, Tenant
from tenants.retention.classes import DataClass
from tenants.retention.digests import MOST_LISTED, START, extended
from tenants.retention.models import (
    Deletion,
    DeletionCertificate,
    DeletionCount,
    LegalHold,
    OwedObject,
    RetentionSetting,
)

_HOLDS = "legal holds"


class RetentionTerms(NamedTuple):
    """What an organization's periods are worked out from."""

    now: datetime
    """By the database's clock."""
    plan_days: int
    """For which the plan keeps responses."""
    stores_nothing: bool
    days: dict[str, int]
    """By class, where there is a setting."""


class SettingRepository(TenantRepository):
    """The periods of one organization."""

    async def set(self, data_class: DataClass, days: int | None) -> None:
        """Sets the days of a class; None removes the setting."""
        if days is None:
            gone = self.delete_own(RetentionSetting).where(RetentionSetting.data_class == data_class)
            await self.session.execute(gone)
            return
        row = insert(RetentionSetting).values(tenant_id=self.tenant_id, data_class=data_class, days=days)
        changed = {"days": days, "changed_at": func.now()}
        await self.session.execute(
            row.on_conflict_do_update(index_elements=["tenant_id", "data_class"], set_=changed)
        )

    async def terms(self) -> RetentionTerms | None:
        """Returns what periods are worked out from; None: there is no such organization."""
        setting = RetentionSetting
        days = self.select_own(setting, func.jsonb_object_agg(setting.data_class, setting.days))
        query = (
            select(
                func.clock_timestamp(),
                Plan.response_days,
                Tenant.stores_nothing,
                func.coalesce(days.scalar_subquery(), literal({}, JSONB), type_=JSONB),
            )
            .join(Plan, Plan.id == Tenant.plan_id)
            .where(Tenant.id == self.tenant_id)
        )
        row = (await self.session.execute(query)).one_or_none()
        return None if row is None else RetentionTerms(*row)


class HoldRepository(TenantRepository):
    """The legal holds of one organization."""

    async def keep_out_new_holds(self) -> None:
        """Makes transactions that place a hold wait until this one ends."""
        lock = func.pg_advisory_xact_lock_shared(func.hashtextextended(f"{_HOLDS}:{self.tenant_id}", 0))
        await self.session.execute(select(lock))

    async def await_deletions(self) -> None:
        """Waits for transactions that are deleting, and keeps others out until this one ends."""
        await self.advisory_lock(_HOLDS)

    async def in_force(self) -> Sequence[LegalHold]:
        query = self.select_own(LegalHold).where(LegalHold.lifted_at.is_(None)).order_by(LegalHold.id)
        return (await self.session.execute(query)).scalars().all()

    async def all(self, limit: int) -> Sequence[LegalHold]:
        """Returns the holds, the newest first."""
        query = self.select_own(LegalHold).order_by(LegalHold.id.desc()).limit(limit)
        return (await self.session.execute(query)).scalars().all()

    async def lock(self, hold_id: str) -> LegalHold | None:
        query = self.select_own(LegalHold).where(LegalHold.id == hold_id).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def now(self) -> datetime:
        """Returns the database's clock."""
        moment: datetime = (await self.session.execute(select(func.clock_timestamp()))).scalar_one()
        return moment


class DeletionRepository(TenantRepository):
    """The deletions of one organization."""

    async def open_periods(self) -> Deletion:
        """Returns the open deletion by periods, locked until this transaction ends; starts it if there is
        none.
        """
        started = insert(Deletion).values(id=new_id("del"), tenant_id=self.tenant_id, cause="periods")
        await self.session.execute(started.on_conflict_do_nothing())
        query = self.select_own(Deletion).where(Deletion.state == "open", Deletion.cause == "periods")
        return (await self.session.execute(query.with_for_update())).scalar_one()

    async def open(self, cause: str, object_id: str | None = None) -> Deletion | None:
        """Returns an open deletion, locked until this transaction ends."""
        query = self.select_own(Deletion).where(Deletion.state == "open", Deletion.cause == cause)
        if object_id is not None:
            query = query.where(Deletion.object_id == object_id)
        locked = query.order_by(Deletion.id).limit(1).with_for_update()
        return (await self.session.execute(locked)).scalar_one_or_none()

    async def any(self, cause: str) -> bool:
        """Returns whether there is a deletion of this cause, also one that is certified."""
        found = self.select_own(Deletion, Deletion.id).where(Deletion.cause == cause).limit(1)
        return (await self.session.execute(found)).first() is not None

    async def add_request(
        self,
        target: tuple[str, str],
        requested_by: dict[str, str],
        *,
        is_done: bool,
        cause: str = "request",
    ) -> str:
        """Adds a deletion that was requested; returns its id."""
        deletion_id = new_id("del")
        row = insert(Deletion).values(
            id=deletion_id,
            tenant_id=self.tenant_id,
            cause=cause,
            object_kind=target[0],
            object_id=target[1],
            requested_by=requested_by,
            state="deleted" if is_done else "open",
            ended_at=func.clock_timestamp() if is_done else None,
        )
        await self.session.execute(row)
        return deletion_id

    async def count(
        self,
        deletion_id: str,
        table: str,
        data_class: DataClass | None,
        num_rows: int,
        ids: Sequence[str] = (),
        span: tuple[datetime, datetime] | None = None,
    ) -> None:
        """Adds rows to what a deletion, which is locked or new, removed from a table. `span`: of their times.
        With `ids`, all rows have one.
        """
        row = await self._count(deletion_id, table)
        if row is None:
            row = DeletionCount(
                deletion_id=deletion_id,
                table_name=table,
                tenant_id=self.tenant_id,
                data_class=data_class,
                num_rows=0,
                num_objects=0,
                ids=[] if ids else None,
                ids_digest=START if ids else None,
            )
            self.add_own(row)
        row.num_rows += num_rows
        if ids:
            row.ids_digest = extended(bytes(row.ids_digest or START), ids)
            whole = None if row.ids is None else [*row.ids, *ids]
            row.ids = whole if whole is not None and len(whole) <= MOST_LISTED else None
        if span is not None:
            row.oldest = min(row.oldest or span[0], span[0])
            row.newest = max(row.newest or span[1], span[1])
        await self.session.flush()

    async def add_objects(self, deletion_id: str, table: str, num: int) -> None:
        """Adds objects that were removed from the object store."""
        row = await self._count(deletion_id, table)
        if row is None:
            await self.count(deletion_id, table, None, 0)
            row = await self._count(deletion_id, table)
        assert row is not None
        row.num_objects += num

    async def owe(self, deletion_id: str, table: str, object_keys: Collection[str]) -> None:
        """Leaves objects to be deleted. One that is owed already stays with its first deletion."""
        rows = [
            {
                "id": new_id("owed"),
                "tenant_id": self.tenant_id,
                "object_key": key,
                "deletion_id": deletion_id,
                "table_name": table,
            }
            for key in object_keys
        ]
        if rows:
            await self.session.execute(insert(OwedObject).on_conflict_do_nothing(), rows)

    async def settle(self, owed_ids: Collection[str]) -> None:
        """Counts objects that are gone from the object store, and owes them no more. Another worker may have
        done so already.
        """
        query = self.select_own(OwedObject).where(OwedObject.id.in_(owed_ids)).order_by(OwedObject.id)
        for owed in (await self.session.execute(query.with_for_update())).scalars():
            locked = self.select_own(Deletion).where(Deletion.id == owed.deletion_id).with_for_update()
            await self.session.execute(locked)
            await self.add_objects(owed.deletion_id, owed.table_name, 1)
            await self.session.delete(owed)
            await self.session.flush()

    async def finish(self, deletion: Deletion) -> None:
        """Marks that every row of a deletion is gone."""
        deletion.state = "deleted"
        deletion.ended_at = (await self.session.execute(select(func.clock_timestamp()))).scalar_one()

    async def certifiable(self, limit: int) -> Sequence[Deletion]:
        """Returns deletions without a certificate that nothing is owed of, locked until this transaction
        ends.
        """
        owed = exists().where(OwedObject.deletion_id == Deletion.id)
        query = self.select_own(Deletion).where(Deletion.state == "deleted", ~owed)
        locked = query.order_by(Deletion.id).limit(limit).with_for_update()
        return (await self.session.execute(locked)).scalars().all()

    async def counts(self, deletion_ids: Collection[str]) -> Sequence[DeletionCount]:
        query = self.select_own(DeletionCount).where(DeletionCount.deletion_id.in_(deletion_ids))
        ordered = query.order_by(DeletionCount.deletion_id, DeletionCount.table_name)
        return (await self.session.execute(ordered)).scalars().all()

    async def forget_counts(self, deletion_ids: Collection[str]) -> None:
        """Deletes counts that a certificate has."""
        await self.session.execute(
            self.delete_own(DeletionCount).where(DeletionCount.deletion_id.in_(deletion_ids))
        )

    async def pending(self, limit: int) -> Sequence[Deletion]:
        """Returns deletions without a certificate, the newest first."""
        query = self.select_own(Deletion).where(Deletion.state != "certified")
        return (await self.session.execute(query.order_by(Deletion.id.desc()).limit(limit))).scalars().all()

    async def num_owed(self) -> int:
        """Returns how many objects the object store still has to delete."""
        return int((await self.session.execute(self.select_own(OwedObject, func.count()))).scalar_one())

    async def num_owed_of(self, object_keys: Collection[str]) -> int:
        """Returns how many of these objects are owed."""
        query = self.select_own(OwedObject, func.count()).where(OwedObject.object_key.in_(object_keys))
        return int((await self.session.execute(query)).scalar_one())

    async def _count(self, deletion_id: str, table: str) -> DeletionCount | None:
        query = self.select_own(DeletionCount).where(
            DeletionCount.deletion_id == deletion_id, DeletionCount.table_name == table
        )
        return (await self.session.execute(query)).scalar_one_or_none()


class CertificateRepository(TenantRepository):
    """The certificates of one organization."""

    async def last(self) -> DeletionCertificate | None:
        """Returns the last certificate; no other is issued until this transaction ends."""
        await self.advisory_lock("certificates of deletion")
        query = self.select_own(DeletionCertificate).order_by(DeletionCertificate.number.desc()).limit(1)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def find(self, certificate_id: str) -> DeletionCertificate | None:
        query = self.select_own(DeletionCertificate).where(DeletionCertificate.id == certificate_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def page(
        self, *, after: int | None, object_id: str | None, limit: int, newest_first: bool
    ) -> Sequence[DeletionCertificate]:
        """Returns certificates beyond the one with the number `after`; with `object_id`, those that name it
        as what was asked to be deleted.
        """
        row = DeletionCertificate
        query = self.select_own(row)
        if object_id is not None:
            named = self.select_own(Deletion, Deletion.certificate_id).where(Deletion.object_id == object_id)
            query = query.where(row.id.in_(named))
        if after is not None:
            query = query.where(row.number < after if newest_first else row.number > after)
        ordered = query.order_by(row.number.desc() if newest_first else row.number)
        return (await self.session.execute(ordered.limit(limit))).scalars().all()


class RetentionInventory:
    """What is unfinished, of every organization."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def tenants(self) -> Sequence[str]:
        """Returns all organizations, in order of their ids."""
        return (await self._session.execute(select(Tenant.id).order_by(Tenant.id))).scalars().all()

    async def tenants_to_certify(self) -> Sequence[str]:
        """Returns organizations with deletions whose rows are gone and that have no certificate."""
        query = select(Deletion.tenant_id).where(Deletion.state == "deleted").distinct()
        return (await self._session.execute(query.order_by(Deletion.tenant_id))).scalars().all()

    async def tenants_being_deleted(self) -> Sequence[str]:
        """Returns organizations whose deletion has begun."""
        open_ones = (Deletion.state == "open", Deletion.cause == "organization")
        return (await self._session.execute(select(Deletion.tenant_id).where(*open_ones))).scalars().all()

    async def due_objects(self, limit: int) -> Sequence[OwedObject]:
        """Returns objects whose deletion may be tried now, the longest owed first."""
        query = select(OwedObject).where(OwedObject.next_at <= func.now())
        ordered = query.order_by(OwedObject.next_at, OwedObject.id).limit(limit)
        return (await self._session.execute(ordered)).scalars().all()

    async def put_off(self, owed_ids: Collection[str], error: str, most: timedelta) -> None:
        """Notes that objects could not be deleted: they are tried again after a minute, then after twice as
        long each time, up to `most`.
        """
        wait = func.least(timedelta(minutes=1) * func.power(2, func.least(OwedObject.attempts, 20)), most)
        noted = update(OwedObject).where(OwedObject.id.in_(owed_ids))
        await self._session.execute(
            noted.values(attempts=OwedObject.attempts + 1, error=error[:500], next_at=func.now() + wait),
            execution_options={"synchronize_session": False},
        )

    async def owed_before(self, moment: datetime, limit: int) -> Sequence[OwedObject]:
        """Returns objects that have been owed since before `moment`, the longest owed first."""
        query = select(OwedObject).where(OwedObject.owed_since < moment).order_by(OwedObject.owed_since)
        return (await self._session.execute(query.limit(limit))).scalars().all()

    async def is_anything_held(self, data_class: DataClass) -> bool:
        """Returns whether a hold covers this class, or one object that may be in it, in any organization."""
        held = exists().where(
            LegalHold.lifted_at.is_(None),
            (LegalHold.data_class == data_class) | LegalHold.object_id.is_not(None),
        )
        return bool((await self._session.execute(select(held))).scalar())

    async def certificates(self) -> Sequence[DeletionCertificate]:
        """Returns all certificates, by organization."""
        row = DeletionCertificate
        query = select(row).order_by(row.tenant_id, row.number)
        return (await self._session.execute(query)).scalars().all()

    async def holds(self) -> Sequence[Any]:
        """Returns all legal holds, by organization."""
        hold = LegalHold
        columns = (hold.tenant_id, hold.id, func.coalesce(hold.data_class, hold.object_id), hold.reason)
        when = (hold.placed_by, hold.placed_at, hold.lifted_by, hold.lifted_at)
        return (await self._session.execute(select(*columns, *when).order_by(hold.tenant_id, hold.id))).all()
