"""Spend alerts over a real ledger: raised once a month and threshold, of all that costs something."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from billing.rates import Rate
from billing.spend.alerts import SpendAlertService, SpendWatch, Threshold
from billing.spend.errors import SpendAlertNotFound, TooManyAlerts
from billing.spend.models import SpendAlert
from billing.window_usage import WindowUsage
from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR
from tenants.errors import ProjectNotFound
from tenants.limits.kinds import Limit, Metric
from tenants.models import Tenant
from tenants.service import AccountServices
from tests.billing.spend.test_prepaid import charge, used, write

NOW = datetime.now(UTC)
RATE = Rate("p", 0, 0, 1_000_000)
"""One micro-USD a token."""
MONTH_START = NOW.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


@pytest.fixture
def alerts(database: Database) -> SpendAlertService:
    return SpendAlertService(database)


@pytest.fixture
def watch(database: Database) -> SpendWatch:
    return SpendWatch(database, WindowUsage(database))


async def told(database: Database) -> list[tuple[int, str]]:
    """(spent, who was mailed), in order."""
    query = (
        "SELECT (n.data->>'spent_micro_usd')::bigint, d.recipient FROM notifications n "
        "JOIN deliveries d ON d.notification_id = n.id WHERE n.type = 'spend.alert' ORDER BY d.id"
    )
    async with database.read(EVERY_TENANT) as session:
        return [(row[0], row[1]) for row in await session.execute(text(query))]


async def test_an_alert_is_raised_once_a_month(
    database: Database, alerts: SpendAlertService, watch: SpendWatch, tenant: Tenant
) -> None:
    made = await alerts.create(tenant.id, None, OPERATOR, Threshold(100, None, ["ann@acme.example"]))
    await write(database, used("before", tenant.id, RATE, 10_000, MONTH_START - timedelta(seconds=1)))
    await write(database, used("a", tenant.id, RATE, 99))
    assert await watch.raise_due(NOW) == 0
    await write(database, used("b", tenant.id, RATE, 1))
    assert [await watch.raise_due(NOW) for _ in range(3)] == [1, 0, 0]
    assert await told(database) == [(100, "ann@acme.example")]
    await alerts.update(tenant.id, None, made.id, OPERATOR, Threshold(150, None, ["ann@acme.example"]))
    assert await watch.raise_due(NOW) == 0
    await charge(database, tenant, "calibration:one", 60)
    # Costs that are no tokens count from when budgets know of them.
    async with database.write(tenant.id) as session:
        await session.execute(
            text(
                "INSERT INTO spend_adjustments (id, tenant_id, at, amount, settled_at) "
                "VALUES ('calibration:one', :tenant, now(), 60, now())"
            ),
            {"tenant": tenant.id},
        )
    assert await watch.raise_due(NOW) == 1
    assert (await told(database))[1:] == [(160, "ann@acme.example")]
    next_month = MONTH_START + timedelta(days=40)
    assert await watch.raise_due(next_month) == 0, "nothing was spent in it"


async def test_a_percentage_is_of_the_hard_limit_of_the_same_scope(
    database: Database,
    alerts: SpendAlertService,
    watch: SpendWatch,
    accounts: AccountServices,
    tenant: Tenant,
) -> None:
    owner = await accounts.users.create(tenant.id, "own@acme.example", "a long password", role="owner")
    project = await accounts.projects.default(tenant.id)
    key = await accounts.keys.create(tenant.id, "mine", OPERATOR)
    for whose in (None, project.id):
        await alerts.create(tenant.id, whose, OPERATOR, Threshold(None, 80))
    event = used("a", tenant.id, RATE, 160)
    event.labels.update(key_id=key.id, project_id=project.id)
    await write(database, event)
    assert owner.tenant_id == tenant.id
    assert await watch.raise_due(NOW) == 0, "there is no limit to have a percentage of"
    for scope, scope_id, amount in (("tenant", tenant.id, 201), ("project", project.id, 200)):
        limit = Limit(scope, scope_id, "", Metric.SPEND_PER_MONTH, amount)  # type: ignore[arg-type]
        await accounts.limits.set(tenant.id, OPERATOR, limit)
    assert await watch.raise_due(NOW) == 1
    assert await told(database) == [(160, "own@acme.example")], "the project's, to the owner"
    await write(database, used("b", tenant.id, RATE, 1))
    assert await watch.raise_due(NOW) == 1


async def test_what_is_wrong_is_named(alerts: SpendAlertService, tenant: Tenant) -> None:
    for wrong in (Threshold(None, None), Threshold(1, 1), Threshold(0, None), Threshold(None, 1001)):
        with pytest.raises(ValueError, match=r"^threshold_"):
            await alerts.create(tenant.id, None, OPERATOR, wrong)
    with pytest.raises(ProjectNotFound):
        await alerts.create(tenant.id, "proj_nobodys", OPERATOR, Threshold(1, None))


async def test_alerts_are_the_scopes_they_are_of(
    alerts: SpendAlertService, accounts: AccountServices, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = await accounts.projects.default(tenant.id)
    of_tenant = await alerts.create(tenant.id, None, OPERATOR, Threshold(1, None))
    of_project = await alerts.create(tenant.id, project.id, OPERATOR, Threshold(1, None))

    async def listed(whose: str | None) -> list[str]:
        page = await alerts.list(tenant.id, whose, after=None, limit=9, newest_first=True)
        return [alert.id for alert in page]

    assert await listed(None) == [of_tenant.id]
    assert await listed(project.id) == [of_project.id]
    with pytest.raises(SpendAlertNotFound):
        await alerts.get(tenant.id, None, of_project.id)
    await alerts.delete(tenant.id, project.id, of_project.id, OPERATOR)
    assert await listed(project.id) == []
    monkeypatch.setattr("billing.spend.alerts.MAX_ALERTS", 1)
    with pytest.raises(TooManyAlerts):
        await alerts.create(tenant.id, None, OPERATOR, Threshold(2, None))
    assert isinstance(of_tenant, SpendAlert)
