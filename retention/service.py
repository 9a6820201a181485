"""Shows and sets an organization's periods and legal holds, previews what a period deletes, and lists
certificates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from db.base import new_id
from db.errors import UnknownCursor
from db.session import Database, WriteSession
from retention.audit_entries import TABLE as AUDIT_TABLE
from retention.periods import Periods, applied, periods_of
from retention.repository import Due, SweepRepository
from retention.rules import CLASS_RULES
from tenants.actors import Actor
from tenants.audit.repository import AuditRepository
from tenants.audit.service import AuditLog
from tenants.retention.classes import DEFAULT_BOUNDS, TERMS, ClassTerms, DataClass, RetentionBounds
from tenants.retention.errors import (
    CertificateNotFound,
    DeletionUnconfirmed,
    HoldLifted,
    HoldNotFound,
    TooManyHolds,
)
from tenants.retention.models import Deletion, DeletionCertificate, LegalHold
from tenants.retention.repository import (
    CertificateRepository,
    DeletionRepository,
    HoldRepository,
    SettingRepository,
)
from tenants.validation import checked_name

MAX_HOLDS = 1000
"""In force at a time."""
MAX_REASON = 500
_MOST_SHOWN = 200
_MAX_ID = 128


@dataclass(frozen=True, slots=True)
class ClassPeriod:
    """The period of one class of an organization's data."""

    data_class: DataClass
    terms: ClassTerms
    set_days: int | None
    """What the organization has set; None: the default applies."""
    days: int | None
    """What applies; None: no end."""
    default: int | None
    least: int
    most: int
    hold_id: str | None
    """A hold that covers the whole class."""


@dataclass(frozen=True, slots=True)
class TablePreview:
    """What a period deletes from one table."""

    table: str
    num_rows: int
    num_held: int
    """Rows of the same age that holds on objects keep."""
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class Preview:
    """What a period would delete now."""

    data_class: DataClass
    days: int | None
    tables: Sequence[TablePreview]
    hold_id: str | None

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables)


class RetentionService:
    """The periods, holds and certificates of all organizations. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, bounds: RetentionBounds = DEFAULT_BOUNDS) -> None:
        self._database = database
        self.bounds = bounds

    # Periods ------------------------------------------------------------------------------------------------

    async def periods(self, tenant_id: str) -> list[ClassPeriod]:
        """Returns the periods of all classes. Raises TenantNotFound."""
        async with self._database.write(tenant_id) as session:
            found = await periods_of(session, tenant_id, self.bounds)
        return [self._shown(found, data_class) for data_class in DataClass]

    async def preview(self, tenant_id: str, data_class: DataClass, days: int | None) -> Preview:
        """Returns what a period of so many days would delete now; None: the default period. Raises
        PeriodNotAllowed, TenantNotFound.
        """
        async with self._database.write(tenant_id) as session:
            periods = await periods_of(session, tenant_id, self.bounds)
            return await self._preview(session, periods, data_class, days)

    async def set(
        self,
        tenant_id: str,
        data_class: DataClass,
        days: int | None,
        actor: Actor,
        *,
        confirms_deletions: bool = False,
    ) -> ClassPeriod:
        """Sets the days of a class; None: the default. What is older is deleted within minutes.

        Raises PeriodNotAllowed, TenantNotFound; DeletionUnconfirmed if a shorter period deletes rows
        and `confirms_deletions` is not set.
        """
        async with self._database.write(tenant_id) as session:
            periods = await periods_of(session, tenant_id, self.bounds)
            preview = await self._preview(session, periods, data_class, days)
            before = periods.days[data_class]
            after = applied(self.bounds, data_class, days, periods.plan_days)
            is_shorter = after is not None and (before is None or after < before)
            if is_shorter and preview.num_rows and not confirms_deletions:
                assert after is not None
                raise DeletionUnconfirmed(data_class, after, preview.num_rows)
            if days != periods.set_days.get(data_class):
                await SettingRepository(session, tenant_id).set(data_class, days)
                if is_shorter and preview.num_rows and preview.hold_id is None:
                    # Its certificate is issued once these rows are gone, and not after a day.
                    deletion = await DeletionRepository(session, tenant_id).open_periods()
                    deletion.is_wanted_soon = True
                details = {
                    "data_class": data_class.value,
                    "days": days,
                    "days_before": periods.set_days.get(data_class),
                    "rows_to_delete": preview.num_rows if is_shorter else 0,
                }
                target = ("retention", data_class.value)
                await AuditLog.record(session, tenant_id, actor, "retention.updated", target, details)
            periods = await periods_of(session, tenant_id, self.bounds)
        return self._shown(periods, data_class)

    def _shown(self, periods: Periods, data_class: DataClass) -> ClassPeriod:
        return ClassPeriod(
            data_class,
            TERMS[data_class],
            periods.set_days.get(data_class),
            periods.days[data_class],
            self.bounds.default(data_class, periods.plan_days),
            self.bounds.least(data_class),
            self.bounds.most(data_class, periods.plan_days),
            periods.holds.of_class(data_class),
        )

    async def _preview(
        self, session: WriteSession, periods: Periods, data_class: DataClass, days: int | None
    ) -> Preview:
        if days is not None:
            self.bounds.checked(data_class, days, periods.plan_days)
        after = applied(self.bounds, data_class, days, periods.plan_days)
        changed = replace(periods, days={**periods.days, data_class: after})
        hold_id = periods.holds.of_class(data_class)
        if data_class == DataClass.AUDIT_LOG:
            table = await self._audit_preview(session, changed)
            return Preview(data_class, after, [table], hold_id)
        rows, tables = SweepRepository(session, periods.holds.tenant_id), []
        for rule in CLASS_RULES:
            if rule.data_class != data_class:
                continue
            before = changed.cutoff(data_class, rule.most_days)
            due = Due(before, periods.holds.by_object, periods.plan_days)
            num, num_held, oldest = await rows.count(rule, due)
            if hold_id is not None:
                num, num_held = 0, num + num_held
            tables.append(TablePreview(rule.table, num, num_held, oldest))
        return Preview(data_class, after, tables, hold_id)

    async def _audit_preview(self, session: WriteSession, periods: Periods) -> TablePreview:
        before = periods.cutoff(DataClass.AUDIT_LOG)
        if before is None:
            return TablePreview(AUDIT_TABLE, 0, 0, None)
        repository = AuditRepository(session, periods.holds.tenant_id)
        num, oldest = await repository.count_oldest_before(before)
        if periods.holds.of_class(DataClass.AUDIT_LOG) or periods.holds.by_object:
            return TablePreview(AUDIT_TABLE, 0, num, oldest)
        return TablePreview(AUDIT_TABLE, num, 0, oldest)

    # Legal holds --------------------------------------------------------------------------------------------

    async def holds(self, tenant_id: str) -> Sequence[LegalHold]:
        """Returns the latest holds, lifted ones too, the newest first."""
        async with self._database.read(tenant_id) as session:
            return await HoldRepository(session, tenant_id).all(MAX_HOLDS)

    async def place_hold(
        self,
        tenant_id: str,
        reason: str,
        actor: Actor,
        *,
        data_class: DataClass | None = None,
        object_id: str | None = None,
    ) -> LegalHold:
        """Puts a class, or an object by its id, on hold: nothing deletes it from now on. The organization's
        own id holds everything. Raises ValueError naming the field, TooManyHolds.
        """
        if (data_class is None) == (object_id is None):
            raise ValueError("data_class or object_id must be given, and not both")
        if object_id is not None and not (0 < len(object_id) <= _MAX_ID and object_id.isprintable()):
            raise ValueError(f"object_id must be an id of 1 to {_MAX_ID} printable characters")
        async with self._database.write(tenant_id) as session:
            holds = HoldRepository(session, tenant_id)
            await holds.await_deletions()
            if len(await holds.in_force()) >= MAX_HOLDS:
                raise TooManyHolds(MAX_HOLDS)
            hold = LegalHold(
                id=new_id("hold"),
                tenant_id=tenant_id,
                data_class=data_class,
                object_id=object_id,
                reason=checked_name("reason", reason, MAX_REASON),
                placed_by=actor.id,
                placed_at=await holds.now(),
            )
            holds.add_own(hold)
            details = {"data_class": data_class, "object_id": object_id, "reason": hold.reason}
            target = ("legal_hold", hold.id)
            await AuditLog.record(session, tenant_id, actor, "legal_hold.placed", target, details)
        return hold

    async def lift_hold(self, tenant_id: str, hold_id: str, actor: Actor) -> LegalHold:
        """Lifts a hold: periods apply again, within minutes. Raises HoldNotFound, HoldLifted."""
        async with self._database.write(tenant_id) as session:
            holds = HoldRepository(session, tenant_id)
            hold = await holds.lock(hold_id) if _is_id(hold_id) else None
            if hold is None:
                raise HoldNotFound(hold_id)
            if hold.lifted_at is not None:
                raise HoldLifted(hold_id)
            hold.lifted_at, hold.lifted_by = await holds.now(), actor.id
            details = {"data_class": hold.data_class, "object_id": hold.object_id}
            target = ("legal_hold", hold.id)
            await AuditLog.record(session, tenant_id, actor, "legal_hold.lifted", target, details)
        return hold

    # Certificates -------------------------------------------------------------------------------------------

    async def certificates(
        self,
        tenant_id: str,
        *,
        after: str | None = None,
        object_id: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> Sequence[DeletionCertificate]:
        """Returns certificates after the one with the id `after`; with `object_id`, of requests to delete
        that object. Raises UnknownCursor.
        """
        async with self._database.read(tenant_id) as session:
            rows = CertificateRepository(session, tenant_id)
            number = None
            if after is not None:
                last = await rows.find(after) if _is_id(after) else None
                if last is None:
                    raise UnknownCursor
                number = last.number
            wanted = object_id if object_id is None or _is_id(object_id) else ""
            return await rows.page(after=number, object_id=wanted, limit=limit, newest_first=newest_first)

    async def certificate(self, tenant_id: str, certificate_id: str) -> DeletionCertificate:
        """Returns a certificate. Raises CertificateNotFound."""
        async with self._database.read(tenant_id) as session:
            rows = CertificateRepository(session, tenant_id)
            found = await rows.find(certificate_id) if _is_id(certificate_id) else None
        if found is None:
            raise CertificateNotFound(certificate_id)
        return found

    async def pending(self, tenant_id: str) -> tuple[Sequence[Deletion], int]:
        """Returns the latest deletions that have no certificate yet, and how many objects are still owed."""
        async with self._database.read(tenant_id) as session:
            deletions = DeletionRepository(session, tenant_id)
            return await deletions.pending(_MOST_SHOWN), await deletions.num_owed()


def _is_id(given: str) -> bool:
    return len(given) <= _MAX_ID and given.isascii() and given.isprintable()
