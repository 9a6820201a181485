"""Works out an organization's periods: its settings within the bounds of plan and operator, and its holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from db.session import WriteSession
from tenants.errors import TenantNotFound
from tenants.retention.classes import DataClass, RetentionBounds
from tenants.retention.holds import Holds, holds_of
from tenants.retention.models import Deletion
from tenants.retention.repository import SettingRepository


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods of one organization, as they are in one transaction."""

    now: datetime
    """By the database's clock."""
    days: Mapping[DataClass, int | None]
    """What applies, by class; None: no end."""
    set_days: Mapping[str, int]
    """What the organization has set."""
    holds: Holds
    plan_days: int
    stores_nothing: bool

    def cutoff(self, data_class: DataClass, most_days: int | None = None) -> datetime | None:
        """Returns the time before which rows are due; None: they have no end. `most_days`: of the table."""
        days = self.days[data_class]
        if most_days is not None:
            days = most_days if days is None else min(days, most_days)
        return None if days is None else self.now - timedelta(days=days)

    def note(self, deletion: Deletion, data_class: DataClass | None) -> None:
        """Notes in a deletion which period of a class it went by."""
        days = None if data_class is None else self.days[data_class]
        if data_class is not None and days is not None and deletion.periods.get(data_class) != days:
            deletion.periods = {**deletion.periods, data_class: days}


async def periods_of(session: WriteSession, tenant_id: str, bounds: RetentionBounds) -> Periods:
    """Returns the periods; no hold is placed until the transaction ends. Raises TenantNotFound."""
    holds = await holds_of(session, tenant_id)
    terms = await SettingRepository(session, tenant_id).terms()
    if terms is None:
        raise TenantNotFound(tenant_id)
    days = {one: applied(bounds, one, terms.days.get(one), terms.plan_days) for one in DataClass}
    return Periods(terms.now, days, terms.days, holds, terms.plan_days, terms.stores_nothing)


def applied(bounds: RetentionBounds, data_class: DataClass, days: int | None, plan_days: int) -> int | None:
    """Returns the days that apply: the bounds may have changed since the setting was made. The operator's
    minimum is above all.
    """
    chosen = bounds.default(data_class, plan_days) if days is None else days
    if chosen is None:
        return None
    return max(bounds.least(data_class), min(chosen, bounds.most(data_class, plan_days)))
