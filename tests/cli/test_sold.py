"""What the demo sells, and the commands that set prices and terms."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import text

from billing.folding import measure
from billing.rates import RATE_LABEL, Rate
from billing.repository import LedgerWriter
from billing.request_ids import new_request_id
from cli import demo, service_access
from db.session import EVERY_TENANT
from engine.protocol import PriorityClass
from tenants.actors import OPERATOR
from tests.cli.commands import refusal, run
from tests.support.journal import usage_event


def test_prices_are_set_and_listed(environment: Mapping[str, str]) -> None:
    run("price", "set", "--input", "150000", "--output", "600000")
    later = run(
        *("price", "set", "--input", "1", "--output", "2", "--cached-input", "0"),
        *("--adapter-surcharge", "3", "--adapter-gb-day", "4", "--calibration-job", "5"),
        *("--from", "2999-01-01T00:00Z"),
    )
    header, first, second = run("price", "list").splitlines()
    assert header.split()[0] == "FROM"
    assert first.split()[1:7] == ["150000", "150000", "600000", "0", "0", "0"]
    assert second.split() == ["2999-01-01T00:00:00+00:00", "1", "0", "2", "3", "4", "5", later.strip()]


def test_terms_are_set_and_shown(environment: Mapping[str, str]) -> None:
    run("plan", "create", "gold", "--term", "priority.allowed=true")
    run(
        "plan",
        "set",
        "gold",
        "--term",
        "priority.contracted_tokens_per_minute=5000",
        "--term",
        "flex.credits=[[990000,10]]",
    )
    lines = {line.split()[0]: line for line in run("plan", "terms", "gold").splitlines()}
    assert lines["priority"].split()[1:5] == ["yes", "175", "%", "5000"]
    assert "10 % below 990000" in lines["flex"]


async def test_the_demo_sells_every_class_once(environment: Mapping[str, str]) -> None:
    from billing.pricing import PriceService

    async with service_access.open_services(environment) as services:
        tenants = [await services.accounts.tenants.create_tenant(name) for name in ("acme", "birch")]
        await services.accounts.plans.create("own")
        for _ in range(2):
            await demo.sell(services, tuple(tenants))
            await services.accounts.plans.set_tenant_plan(tenants[1].id, "own")
        plans = [await services.accounts.plans.of_tenant(tenant.id) for tenant in tenants]
        assert [plan.name for plan in plans] == ["demo", "own"], "what the operator chose stays"
        assert all(plans[0].terms[tier].allowed for tier in PriorityClass)
        assert len(await PriceService(services.database, services.redis).list()) == 1


async def test_the_demo_serves_as_default_unless_asked(environment: Mapping[str, str]) -> None:
    """Whoever tries the demo without naming a tier pays the listed price; a choice made later stays."""
    async with service_access.open_services(environment) as services:
        tenant = await services.accounts.tenants.create_tenant("acme")
        await demo.sell(services, (tenant,))
        projects = services.accounts.projects
        project = await projects.default(tenant.id)
        assert project.auto_tier == PriorityClass.DEFAULT
        await projects.set_service_tiers(tenant.id, project.id, OPERATOR, auto=PriorityClass.PRIORITY)
        await demo.sell(services, (tenant,))
        assert (await projects.default(tenant.id)).auto_tier == PriorityClass.PRIORITY


async def test_sums_are_checked_and_mended_and_errors_taken_back(environment: Mapping[str, str]) -> None:
    at = datetime(2025, 10, 31, 23, 59, tzinfo=UTC).timestamp()
    request = new_request_id("chatcmpl", at)
    async with service_access.open_services(environment) as services:
        tenant = await services.accounts.tenants.create_tenant("acme")
        event = usage_event(request, tenant=tenant.id, submitted_at=at, finish_reason="stop", completion=5)
        event.labels[RATE_LABEL] = Rate("prc_1", 0, 0, 2_000_000).label
        async with services.database.write(EVERY_TENANT) as session:
            await LedgerWriter(session).upsert([measure(event)])
            await session.execute(text("UPDATE usage_rollup_hours SET cost = 7"))
    found = await asyncio.to_thread(run, "billing", "rederive", "--month", "2025-10", code=1)
    assert found.splitlines()[1].split()[-2:] == ["cost=10", "cost=7"]
    await asyncio.to_thread(run, "billing", "rederive", "--month", "2025-10", "--fix")
    assert "every sum" in await asyncio.to_thread(run, "billing", "rederive", "--month", "2025-10")
    assert "2027-01" in await asyncio.to_thread(refusal, "billing", "rederive", "--month", "October")
    reverse = ("billing", "reverse", "acme", request, "--reason", "garbled")
    reversal_id, amount, _ = (await asyncio.to_thread(run, *reverse)).split()
    assert (reversal_id.partition("_")[0], amount) == ("rev", "10")
    assert reversal_id in await asyncio.to_thread(refusal, *reverse)
    unknown = ("billing", "reverse", "acme", "storage:2025-10-31:adp_x@1", "--reason", "none")
    assert "the ledger has no" in await asyncio.to_thread(refusal, *unknown)
