"""Gathers the spend alert pages, and parses the form of an alert."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from admin import formatting
from admin.amounts import read_dollars
from admin.badge import Badge
from admin.keys.page import MAX_PROJECTS
from admin.limits.page import amount_written
from admin.web.form_errors import FieldError
from billing.notifications.models import Delivery, Notification
from billing.spend.alerts import SpendAlertService, Threshold
from billing.spend.models import SpendAlert
from tenants.errors import QuotaUnavailable
from tenants.limits.kinds import Limit, Metric
from tenants.object_names import NameService
from tenants.projects.service import ProjectService
from tenants.quotas import Quotas
from tenants.quotas.service import LimitService
from tenants.validation import is_email

FIELDS = ("project", "kind", "threshold_amount", "threshold_percent", "recipients", "subject_prefix")
MAX_RECIPIENTS = 20
MAX_PREFIX_LEN = 60
MAILED = 20
_PIECES = re.compile(r"[\s,;]+")
_MAIL_STATES = {
    "pending": Badge("Sending", "busy"),
    "delivered": Badge("Sent", "good"),
    "failed": Badge("Failed", "bad"),
}


@dataclass(frozen=True)
class AlertRow:
    id: str
    project_id: str | None
    whose: str
    threshold: str
    is_percent: bool
    spent: str | None
    """This month; None while it cannot be looked up."""
    share: int
    tone: str
    state: Badge
    raised_at: datetime | None
    recipients: list[str]
    """Empty: the account's."""
    subject_prefix: str
    note: str
    fields: dict[str, str]
    """As the form has them."""


@dataclass(frozen=True)
class MailRow:
    to: str
    state: Badge
    is_test: bool
    at: datetime
    error: str


@dataclass(frozen=True)
class AlertForm:
    """The form of an alert, and what is beside it."""

    alert: AlertRow | None
    """None: it is to be made."""
    projects: list[tuple[str, str]]
    """(value, words) of what it can be for; none of one that there is."""
    hears: Sequence[str]
    """The recipients of alerts that name none."""
    mailed: list[MailRow]
    """What was mailed of it in the last thirty days."""


class AlertsPage:
    """Gathers the pages."""

    def __init__(
        self,
        alerts: SpendAlertService,
        limits: LimitService,
        quotas: Quotas,
        names: NameService,
        projects: ProjectService,
    ) -> None:
        self._alerts = alerts
        self._limits = limits
        self._quotas = quotas
        self._names = names
        self._projects = projects

    async def index(self, tenant_id: str) -> list[AlertRow]:
        """All there are: a tenant has a few. Raises DatabaseUnavailable."""
        found = await self._alerts.every(tenant_id, datetime.now(UTC))
        names = await self._names.of(tenant_id, [one.project_id for one, _ in found if one.project_id])
        hard = await self._hard(tenant_id)
        spent = await self._spent(tenant_id, {_budget(alert) for alert, _ in found})
        called = {id_: named.name for id_, named in names.items()}
        return [_row(alert, raised, called, hard, spent) for alert, raised in found]

    async def form(self, tenant_id: str, alert_id: str | None) -> AlertForm:
        """Raises SpendAlertNotFound, DatabaseUnavailable."""
        if alert_id is None:
            projects = await self._projects.list(tenant_id, limit=MAX_PROJECTS, newest_first=False)
            choices = [
                ("", "Organization"),
                *((one.id, f"Project {one.name}") for one in projects),
            ]
            return AlertForm(None, choices, await self._alerts.recipients(tenant_id), [])
        found = await self._alerts.watched(tenant_id, alert_id, datetime.now(UTC), num_mailed=MAILED)
        alert = found.alert
        whose = [alert.project_id] if alert.project_id else []
        names = await self._names.of(tenant_id, whose) if whose else {}
        hard = await self._hard(tenant_id) if alert.percent is not None else {}
        spent = await self._spent(tenant_id, {_budget(alert)})
        called = {id_: named.name for id_, named in names.items()}
        row = _row(alert, found.raised_at, called, hard, spent)
        mailed = [_mail(delivery, told) for delivery, told in found.mailed]
        return AlertForm(row, [], found.default_recipients, mailed)

    async def _hard(self, tenant_id: str) -> dict[Limit, int]:
        """What can be spent at most, by budget."""
        return {
            Limit(one.scope, one.scope_id, "", one.metric, 0): one.amount
            for one in await self._limits.effective(tenant_id)
            if one.metric == Metric.SPEND_PER_MONTH and not one.model
        }

    async def _spent(self, tenant_id: str, budgets: set[Limit]) -> dict[Limit, int]:
        """What was spent this month, by budget, as far as that can be looked up now."""
        if not budgets:
            return {}
        try:
            states = await self._quotas.state(tenant_id, sorted(budgets, key=lambda one: one.scope_id))
        except QuotaUnavailable:
            return {}
        return {one.limit: one.used for one in states if one.used is not None}


def read_threshold(form: Mapping[str, str]) -> Threshold:
    """Raises Refused."""
    amount = percent = None
    if form.get("kind") == "percent":
        written = form.get("threshold_percent", "").strip().removesuffix("%").strip()
        if not (written.isascii() and written.isdecimal()) or not 1 <= int(written[:6]) <= 1000:
            raise FieldError("threshold_percent", "Enter a percentage from 1 to 1000.")
        percent = int(written)
    else:
        amount = read_dollars(form.get("threshold_amount", ""), "threshold_amount")
        if not amount:
            raise FieldError("threshold_amount", "Enter an amount greater than 0.")
    recipients = list(dict.fromkeys(one for one in _PIECES.split(form.get("recipients", "")) if one))
    for one in recipients:
        if not (is_email(one) and one.isascii()):
            raise FieldError("recipients", f"{one[:80]} is not a valid email address.")
    if len(recipients) > MAX_RECIPIENTS:
        raise FieldError("recipients", f"Enter at most {MAX_RECIPIENTS} recipients.")
    prefix = form.get("subject_prefix", "").strip()
    if len(prefix) > MAX_PREFIX_LEN or not prefix.isprintable():
        raise FieldError("subject_prefix", f"Use at most {MAX_PREFIX_LEN} printable characters.")
    return Threshold(amount, percent, recipients, prefix or None)


def _budget(alert: SpendAlert) -> Limit:
    if alert.project_id is None:
        return Limit("tenant", alert.tenant_id, "", Metric.SPEND_PER_MONTH, 0)
    return Limit("project", alert.project_id, "", Metric.SPEND_PER_MONTH, 0)


def _row(
    alert: SpendAlert,
    raised_at: datetime | None,
    names: Mapping[str, str],
    hard: Mapping[Limit, int],
    spent: Mapping[Limit, int],
) -> AlertRow:
    budget = _budget(alert)
    most = hard.get(budget)
    amount, note = alert.amount, ""
    if alert.percent is not None:
        amount = None if most is None else max(1, -(-most * alert.percent // 100))
        note = "No monthly limit set" if amount is None else f"Currently {formatting.usd(amount)}"
    used = spent.get(budget)
    share = min(100, 100 * used // amount) if amount and used is not None else 0
    return AlertRow(
        id=alert.id,
        project_id=alert.project_id,
        whose="Organization" if alert.project_id is None else names.get(alert.project_id, alert.project_id),
        threshold=formatting.usd(amount) if alert.percent is None else f"{alert.percent} % of the limit",
        is_percent=alert.percent is not None,
        spent=None if used is None else formatting.usd(used),
        share=share,
        tone="over" if share >= 100 else "near" if share >= 80 else "",
        state=Badge("Reached", "warn")
        if raised_at
        else Badge("Not reached" if amount else "Inactive", "off"),
        raised_at=raised_at,
        recipients=[*alert.recipients],
        subject_prefix=alert.subject_prefix or "",
        note=note,
        fields=_fields(alert),
    )


def _fields(alert: SpendAlert) -> dict[str, str]:
    amount = alert.amount
    return {
        "project": alert.project_id or "",
        "kind": "amount" if alert.percent is None else "percent",
        "threshold_amount": "" if amount is None else amount_written(Metric.SPEND_PER_MONTH, amount),
        "threshold_percent": "" if alert.percent is None else str(alert.percent),
        "recipients": "\n".join(alert.recipients),
        "subject_prefix": alert.subject_prefix or "",
    }


def _mail(delivery: Delivery, told: Notification) -> MailRow:
    return MailRow(
        delivery.recipient or "",
        _MAIL_STATES.get(delivery.state, Badge(delivery.state, "off")),
        bool(told.data.get("test")),
        delivery.created_at,
        delivery.error or "",
    )
