"""Manages spend alerts, and raises one when a calendar month's spend (UTC) reaches its threshold.

An alert is raised once per month and threshold. Spend is what budgets count, from the ledger. Alerts are
soft: they refuse no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row

from billing.months import begin, month_of
from billing.notifications.events import SPEND_ALERT
from billing.notifications.models import Delivery, Notification
from billing.notifications.publishing import publish
from billing.notifications.repository import NotificationRepository
from billing.spend.errors import SpendAlertNotFound, TooManyAlerts
from billing.spend.models import SpendAlert
from billing.spend.repository import AllSpendAlerts, SpendAlertRepository
from db.base import new_id
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import ProjectNotFound
from tenants.limits.kinds import MAX_AMOUNT, Limit, Metric, Scope
from tenants.limits.repository import LimitRepository
from tenants.projects.repository import ProjectRepository
from tenants.quotas import UsageReader

MAX_ALERTS = 100


@dataclass(frozen=True, slots=True)
class Threshold:
    """An amount in micro-USD, or a percentage of the hard limit, and the recipients of the mail."""

    amount: int | None
    percent: int | None
    recipients: Sequence[str] = ()
    subject_prefix: str | None = None

    def check(self) -> None:
        """Raises ValueError naming the field."""
        if (self.amount is None) == (self.percent is None):
            raise ValueError("threshold_amount: give one threshold, an amount or a percentage")
        if self.amount is not None and not 0 < self.amount <= MAX_AMOUNT:
            raise ValueError(f"threshold_amount must be from 1 to {MAX_AMOUNT} micro-USD")
        if self.percent is not None and not 0 < self.percent <= 1000:
            raise ValueError("threshold_percent must be from 1 to 1000")

    def put_into(self, alert: SpendAlert) -> None:
        alert.amount, alert.percent = self.amount, self.percent
        alert.recipients, alert.subject_prefix = list(self.recipients), self.subject_prefix


@dataclass(frozen=True, slots=True)
class Watched:
    """An alert with its state and its recent mail."""

    alert: SpendAlert
    raised_at: datetime | None
    """When it was raised this month."""
    mailed: Sequence[Row[Delivery, Notification]]
    """Mail of the last thirty days, including tests, the newest first."""
    default_recipients: Sequence[str]
    """The recipients of alerts without recipients of their own."""


class SpendAlertService:
    """Manages the alerts of every tenant. `project_id` None means the tenant as a whole."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, tenant_id: str, project_id: str | None, actor: Actor, threshold: Threshold
    ) -> SpendAlert:
        """Creates an alert. Raises ProjectNotFound, TooManyAlerts, ValueError naming the field."""
        threshold.check()
        now = datetime.now(UTC)
        alert = SpendAlert(
            id=new_id("alert"), tenant_id=tenant_id, project_id=project_id, created_at=now, updated_at=now
        )
        threshold.put_into(alert)
        async with self._database.write(tenant_id) as session:
            if (
                project_id is not None
                and await ProjectRepository(session, tenant_id).hold(project_id) is None
            ):
                raise ProjectNotFound(project_id)
            alerts = SpendAlertRepository(session, tenant_id)
            await alerts.advisory_lock("spend alerts")
            if await alerts.count() >= MAX_ALERTS:
                raise TooManyAlerts(MAX_ALERTS)
            alerts.add_own(alert)
            await _audit(session, alert, actor, "created")
        return alert

    async def list(
        self, tenant_id: str, project_id: str | None, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[SpendAlert]:
        """Returns a page of alerts. Raises ProjectNotFound."""
        async with self._database.read(tenant_id) as session:
            if (
                project_id is not None
                and await ProjectRepository(session, tenant_id).find(project_id) is None
            ):
                raise ProjectNotFound(project_id)
            alerts = SpendAlertRepository(session, tenant_id)
            return await alerts.page(project_id, after=after, limit=limit, newest_first=newest_first)

    async def get(self, tenant_id: str, project_id: str | None, alert_id: str) -> SpendAlert:
        """Returns an alert. Raises SpendAlertNotFound."""
        async with self._database.read(tenant_id) as session:
            found = await SpendAlertRepository(session, tenant_id).find(alert_id, project_id)
        if found is None:
            raise SpendAlertNotFound(alert_id)
        return found

    async def find(self, tenant_id: str, alert_id: str) -> SpendAlert:
        """Returns an alert of the tenant or of any of its projects. Raises SpendAlertNotFound."""
        async with self._database.read(tenant_id) as session:
            found = await SpendAlertRepository(session, tenant_id).one(alert_id)
        if found is None:
            raise SpendAlertNotFound(alert_id)
        return found

    async def every(self, tenant_id: str, now: datetime) -> Sequence[tuple[SpendAlert, datetime | None]]:
        """Returns all alerts, also those of projects, with when each was raised this month."""
        async with self._database.read(tenant_id) as session:
            alerts = SpendAlertRepository(session, tenant_id)
            raised = await alerts.raised(month_of(now))
            return [(alert, raised.get(alert.id)) for alert in await alerts.all()]

    async def update(
        self, tenant_id: str, project_id: str | None, alert_id: str, actor: Actor, threshold: Threshold
    ) -> SpendAlert:
        """Changes the threshold; a new one may be reached again in the same month. Raises SpendAlertNotFound,
        ValueError.
        """
        threshold.check()
        async with self._database.write(tenant_id) as session:
            alert = await _locked(session, tenant_id, project_id, alert_id)
            threshold.put_into(alert)
            alert.updated_at = datetime.now(UTC)
            await _audit(session, alert, actor, "updated")
        return alert

    async def delete(self, tenant_id: str, project_id: str | None, alert_id: str, actor: Actor) -> None:
        """Deletes an alert. Raises SpendAlertNotFound."""
        async with self._database.write(tenant_id) as session:
            alert = await _locked(session, tenant_id, project_id, alert_id)
            await session.delete(alert)
            await _audit(session, alert, actor, "deleted")

    async def test(
        self, tenant_id: str, project_id: str | None, alert_id: str, actor: Actor, *, now: datetime
    ) -> Sequence[str] | None:
        """Queues a test mail to the alert's recipients; returns their addresses. Returns None if there was a
        test in the same minute, to protect mailboxes. Webhook endpoints get no test, since a receiver could
        take it for a real alert. Raises SpendAlertNotFound.
        """
        async with self._database.write(tenant_id) as session:
            alert = await _locked(session, tenant_id, project_id, alert_id)
            limits = await LimitRepository(session, tenant_id).effective() or ()
            hard = [one for one in limits if one.metric == Metric.SPEND_PER_MONTH and not one.model]
            facts = _facts(alert, _amount(alert, hard) or 0, 0, begin(month_of(now))) | {"test": True}
            recipients = (
                list(alert.recipients) or await NotificationRepository(session, tenant_id).mail_recipients()
            )
            key = f"{SPEND_ALERT}:{alert_id}:test:{now:%Y-%m-%dT%H:%M}"
            if not await publish(
                session, tenant_id, SPEND_ALERT, facts, key=key, now=now, recipients=recipients,
                only_mailed=True,
            ):  # fmt: skip
                return None
            await _audit(session, alert, actor, "tested")
        return recipients

    async def watched(self, tenant_id: str, alert_id: str, now: datetime, *, num_mailed: int) -> Watched:
        """Returns one alert of the tenant or any of its projects. Raises SpendAlertNotFound."""
        async with self._database.read(tenant_id) as session:
            alerts = SpendAlertRepository(session, tenant_id)
            alert = await alerts.one(alert_id)
            if alert is None:
                raise SpendAlertNotFound(alert_id)
            raised = await alerts.raised(month_of(now))
            notifications = NotificationRepository(session, tenant_id)
            mailed = await notifications.mailed(f"{SPEND_ALERT}:{alert_id}:", num_mailed)
            return Watched(alert, raised.get(alert_id), mailed, await notifications.mail_recipients())

    async def recipients(self, tenant_id: str) -> Sequence[str]:
        """Returns the recipients of alerts without recipients of their own."""
        async with self._database.read(tenant_id) as session:
            return await NotificationRepository(session, tenant_id).mail_recipients()


class SpendWatch:
    """Raises alerts. `spent` returns what budgets count: see `tenants.quotas.UsageReader`."""

    def __init__(self, database: Database, spent: UsageReader) -> None:
        self._database = database
        self._spent = spent

    async def raise_due(self, now: datetime) -> int:
        """Raises the alerts whose threshold is reached; returns how many. Raises DatabaseUnavailable."""
        start = begin(month_of(now))
        async with self._database.read(EVERY_TENANT) as session:
            waiting = await AllSpendAlerts(session).waiting(start.date())
        spent: dict[Limit, int] = {}
        limits: dict[str, Sequence[Limit]] = {}
        raised = 0
        for alert in waiting:
            if alert.tenant_id not in limits:
                limits[alert.tenant_id] = await self._hard_limits(alert.tenant_id)
            threshold = _amount(alert, limits[alert.tenant_id])
            if threshold is None:
                continue
            whole = _budget(alert)
            if whole not in spent:
                spent[whole] = await self._spent(alert.tenant_id, whole, start)
            if spent[whole] >= threshold:
                raised += await self._raise(alert, threshold, spent[whole], start, now)
        return raised

    async def _hard_limits(self, tenant_id: str) -> Sequence[Limit]:
        async with self._database.read(tenant_id) as session:
            found = await LimitRepository(session, tenant_id).effective() or ()
        return [one for one in found if one.metric == Metric.SPEND_PER_MONTH and not one.model]

    async def _raise(
        self, alert: SpendAlert, threshold: int, spent: int, start: datetime, now: datetime
    ) -> bool:
        facts = _facts(alert, threshold, spent, start)
        async with self._database.write(alert.tenant_id) as session:
            alerts = SpendAlertRepository(session, alert.tenant_id)
            if await alerts.find(alert.id, alert.project_id, lock=True) is None:
                return False  # deleted meanwhile
            if not await alerts.note_raised(alert.id, start.date(), threshold, now):
                return False
            key = f"{SPEND_ALERT}:{alert.id}:{start:%Y-%m}:{threshold}"
            recipients = list(alert.recipients) or None
            return await publish(
                session, alert.tenant_id, SPEND_ALERT, facts, key=key, now=now, recipients=recipients
            )


def _facts(alert: SpendAlert, threshold: int, spent: int, start: datetime) -> dict[str, Any]:
    return {
        "alert_id": alert.id,
        "project_id": alert.project_id,
        "month": f"{start:%Y-%m}",
        "threshold_micro_usd": threshold,
        "threshold_percent": alert.percent,
        "spent_micro_usd": spent,
        "subject_prefix": alert.subject_prefix,
    }


def _budget(alert: SpendAlert) -> Limit:
    """Returns a limit that counts everything the alert counts."""
    scope: Scope = "tenant" if alert.project_id is None else "project"
    return Limit(scope, alert.project_id or alert.tenant_id, "", Metric.SPEND_PER_MONTH, 0)


def _amount(alert: SpendAlert, limits: Sequence[Limit]) -> int | None:
    """Returns micro-USD; None for a percentage of a limit that is not set."""
    if alert.amount is not None:
        return alert.amount
    assert alert.percent is not None
    whole = _budget(alert)
    for limit in limits:
        if (limit.scope, limit.scope_id) == (whole.scope, whole.scope_id):
            return max(1, -(-limit.amount * alert.percent // 100))
    return None


async def _locked(session: WriteSession, tenant_id: str, project_id: str | None, alert_id: str) -> SpendAlert:
    alert = await SpendAlertRepository(session, tenant_id).find(alert_id, project_id, lock=True)
    if alert is None:
        raise SpendAlertNotFound(alert_id)
    return alert


async def _audit(session: WriteSession, alert: SpendAlert, actor: Actor, what: str) -> None:
    threshold = {"amount": alert.amount} if alert.percent is None else {"percent": alert.percent}
    await AuditLog.record(
        session,
        alert.tenant_id,
        actor,
        f"spend_alert.{what}",
        ("spend_alert", alert.id),
        threshold,
        project_id=alert.project_id,
    )
