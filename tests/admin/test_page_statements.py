"""How many statements and transactions the pages ask that show most: as many for many things as for one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx

from billing.spend.alerts import Threshold
from tenants.actors import OPERATOR
from tenants.limits.kinds import Limit, Metric
from tests.admin.conftest import Site, sign_in
from tests.admin.every_page import OPERATORS, furnish
from tests.admin.operators import operate
from tests.admin.test_billing import business
from tests.support.statements import Statements

MORE = 4
"""Of each thing: a statement for each would be more than `SPARE` ones."""
SPARE = 2
"""A process looks for open incidents every few seconds, with whatever page comes then."""
MOST = {
    "/usage": (6, 3),
    "/billing": (9, 2),
    "/operator/tenants/{tenant}": (12, 5),
    "/": (8, 5),
    "/invoices/preview": (6, 2),
    "/invoices/preview.json": (6, 2),
    "/limits/alerts/{alert}": (7, 4),
}
"""Statements, and transactions."""


async def have_more(site: Site) -> None:
    """Of all that these pages list or add up."""
    tenant, account = site.tenant_id, site.account
    now = datetime.now(UTC)
    for number in range(MORE):
        project = await account.projects.create(tenant, f"more {number}", OPERATOR)
        await account.keys.create(tenant, f"more {number}", OPERATOR, project_id=project.id)
        await account.limits.set(
            tenant, OPERATOR, Limit("project", project.id, "", Metric.SPEND_PER_MONTH, 10**9)
        )
        await account.invites.create(tenant, f"more{number}@x.example", "developer", OPERATOR)
        threshold = Threshold(1_000_000, None, ["a@b.example"])
        await site.billing.alerts.create(tenant, project.id, OPERATOR, threshold)
        await site.place.create(f"more-{number}")
        await site.billing.credits.add(tenant, "grant", 10**6, f"more {number}", OPERATOR, now=now)
        used_at = now - timedelta(minutes=number + 2)
        await business(site).use(tenant, used_at, 1000, completion=9, model=f"sapling:more-{number}@1")


async def test_pages_ask_few_statements_however_much_there_is(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    furnished = await furnish(site, lambda kind: kind)
    await have_more(site)
    found = {}
    async with site.visitor() as operator:
        await operate(site, operator)
        for template in MOST:
            asker, path = operator if template.startswith(OPERATORS) else visitor, furnished.path(template)
            assert (await asker.get(path)).status_code == 200, path
            with Statements(site.place.database) as statements:
                await asker.get(path)
            found[template] = (len(statements.seen), statements.num_transactions)
    too_many = {
        template: asked
        for template, asked in found.items()
        if any(one > most + SPARE for one, most in zip(asked, MOST[template], strict=True))
    }
    assert not too_many, f"(statements, transactions), of all: {found}"
