"""Deletes what organizations' periods say is over, in slices of one transaction each.

A slice deletes rows, owes their objects and counts both, all or nothing: an interruption anywhere loses no
count and deletes nothing twice, and the next pass goes on. Passes at the same time share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import structlog

from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database, WriteSession
from retention.audit_entries import prune_audit_entries
from retention.periods import Periods, periods_of
from retention.repository import Due, SweepRepository, database_clock, tenants_with_expired
from retention.rules import CLASS_RULES, ORGANIZATION_RULES, Rule
from tenants.retention.classes import DataClass, RetentionBounds
from tenants.retention.repository import DeletionRepository, RetentionInventory

log = structlog.get_logger(__name__)

SLICE = 500
"""Rows of one transaction."""
MAX_SLICES = 200
"""Of one table in one pass; the rest is left to the next pass."""
CERTIFIED_AFTER = timedelta(hours=24)
"""A certificate covers what periods delete in this time, unless it is wanted soon."""
MOST_CLOCK_OFFSET = timedelta(minutes=5)


class ClocksDiffer(RuntimeError):
    """The clocks of this machine and the database differ: one of them is wrong, and nothing is deleted by
    it.
    """

    def __init__(self, offset: timedelta) -> None:
        super().__init__(
            f"this machine's clock and the database's differ by {offset.total_seconds():.0f} s: nothing is "
            "deleted by age until both are right"
        )


class RetentionSweep:
    """Passes over organizations. All methods raise DatabaseUnavailable, ClocksDiffer."""

    def __init__(
        self,
        database: Database,
        bounds: RetentionBounds,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        slice_rows: int = SLICE,
    ) -> None:
        self._database = database
        self._bounds = bounds
        self._clock = clock
        self._slice_rows = slice_rows

    async def run(self) -> int:
        """Makes a pass over every organization; returns how many rows it deleted or erased."""
        await self._require_right_clocks()
        async with self._database.read(EVERY_TENANT) as session:
            tenants = await RetentionInventory(session).tenants()
        return await self._over(tenants)

    async def run_expired(self) -> int:
        """Makes a pass over organizations that have something with a time of its own, and it is over."""
        await self._require_right_clocks()
        async with self._database.read(EVERY_TENANT) as session:
            tenants = {*await tenants_with_expired(session)}
            tenants |= {*await RetentionInventory(session).tenants_being_deleted()}
        return await self._over(sorted(tenants))

    async def _over(self, tenants: Sequence[str]) -> int:
        total = 0
        for tenant_id in tenants:
            try:
                total += await self.run_for(tenant_id)
            except DatabaseUnavailable:
                raise
            except Exception:
                # One organization's rows must not keep all others' for ever.
                log.exception("retention of an organization failed", tenant_id=tenant_id)
        return total

    async def run_for(self, tenant_id: str) -> int:
        """Makes a pass over one organization."""
        is_whole, total = True, 0
        rules, prunes_entries = await self._due_rules(tenant_id)
        for rule in rules:
            for _ in range(MAX_SLICES):
                num = await self._slice(tenant_id, rule)
                total += num
                if num < self._slice_rows:
                    break
            else:
                is_whole = False
        if prunes_entries:
            total += await prune_audit_entries(
                self._database, tenant_id, self._bounds, self._slice_rows, MAX_SLICES
            )
        await self._close(tenant_id, is_whole)
        if total:
            log.info("rows deleted by retention", tenant_id=tenant_id, count=total)
        return total

    async def _due_rules(self, tenant_id: str) -> tuple[list[Rule], bool]:
        """Returns the rules by which rows are due, and whether the audit log has a period: most passes find
        nothing, and cost one transaction.
        """
        async with self._database.write(tenant_id) as session:
            whole = await DeletionRepository(session, tenant_id).open("organization") is not None
            periods = await periods_of(session, tenant_id, self._bounds)
            rules = (*CLASS_RULES, *ORGANIZATION_RULES) if whole else CLASS_RULES
            asked = [
                (rule, due) for rule in rules if (due := _due(periods, rule, is_whole=whole)) is not None
            ]
            found = await SweepRepository(session, tenant_id).which(asked)
        return found, periods.days[DataClass.AUDIT_LOG] is not None

    async def _require_right_clocks(self) -> None:
        async with self._database.read(EVERY_TENANT) as session:
            offset = abs(self._clock() - await database_clock(session))
        if offset > MOST_CLOCK_OFFSET:
            raise ClocksDiffer(offset)

    async def _slice(self, tenant_id: str, rule: Rule) -> int:
        """Deletes a slice of a rule's rows; returns how many."""
        async with self._database.write(tenant_id) as session:
            deletions = DeletionRepository(session, tenant_id)
            whole = await deletions.open("organization")
            if whole is None and rule.data_class is None:
                return 0
            periods = await periods_of(session, tenant_id, self._bounds)
            due = _due(periods, rule, is_whole=whole is not None)
            if due is None:
                return 0
            rows = SweepRepository(session, tenant_id)
            found = await rows.due(rule, due, self._slice_rows)
            if not found.keys:
                return 0
            deletion = whole or await deletions.open_periods()
            for table, reference in rule.cascades.items():
                num = await rows.cascaded(table, reference, found.ids)
                if num:
                    await deletions.count(deletion.id, table, rule.data_class, num)
            await rows.remove(rule, found.keys)
            await deletions.count(
                deletion.id, rule.table, rule.data_class, len(found.keys), found.ids, found.span
            )
            await deletions.owe(deletion.id, rule.table, found.object_keys)
            periods.note(deletion, rule.data_class)
            return len(found.keys)

    async def _close(self, tenant_id: str, is_whole: bool) -> None:
        """Ends deletions of which nothing is left, so that they are certified."""
        if not is_whole:
            return
        async with self._database.write(tenant_id) as session:
            deletions = DeletionRepository(session, tenant_id)
            by_periods = await deletions.open("periods")
            if by_periods is not None:
                age = await database_clock(session) - by_periods.started_at
                if by_periods.is_wanted_soon or age >= CERTIFIED_AFTER:
                    await deletions.finish(by_periods)
            whole = await deletions.open("organization")
            if whole is not None and await self._is_gone(session, tenant_id):
                await deletions.finish(whole)

    async def _is_gone(self, session: WriteSession, tenant_id: str) -> bool:
        """Returns whether nothing of a deleted organization is left: others may have had rows locked."""
        periods = await periods_of(session, tenant_id, self._bounds)
        rows = SweepRepository(session, tenant_id)
        asked = [
            (rule, Due(None, periods.holds.by_object, periods.plan_days, takes_all=True))
            for rule in (*CLASS_RULES, *ORGANIZATION_RULES)
        ]
        return not await rows.which(asked) and not await rows.num_stored_versions()


def _due(periods: Periods, rule: Rule, *, is_whole: bool) -> Due | None:
    """Returns which rows of a rule are due; None: none are. `is_whole`: the organization is deleted."""
    held, plan_days = periods.holds.by_object, periods.plan_days
    if is_whole:
        return None if periods.holds.of_everything else Due(None, held, plan_days, takes_all=True)
    assert rule.data_class is not None
    if periods.holds.of_class(rule.data_class) is not None:
        return None
    if rule.goes_when_silent and periods.stores_nothing:
        return Due(None, held, plan_days, takes_all=True)
    before = periods.cutoff(rule.data_class, rule.most_days)
    return None if before is None and rule.expired is None else Due(before, held, plan_days)
