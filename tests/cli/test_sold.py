"""What the demo sells, and the commands that set prices and terms."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from cli import demo, operator
from cli.main import app
from engine.protocol import PriorityClass


@pytest.fixture
def environment(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    settings = {
        "ROOTSTOCK_DB_URL": database_url,
        "ROOTSTOCK_REDIS_URL": redis_url,
        "ROOTSTOCK_TENANTS_KEY_SECRET": "a secret of at least thirty-two characters",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ROOTSTOCK_DATA", raising=False)
    return settings


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_prices_are_set_and_listed(environment: Mapping[str, str]) -> None:
    run("price", "set", "--input", "150000", "--output", "600000")
    later = run(
        "price", "set", "--input", "1", "--output", "2", "--cached-input", "0", "--from", "2999-01-01T00:00Z"
    )
    header, first, second = run("price", "list").splitlines()
    assert header.split()[0] == "FROM"
    assert first.split()[1:4] == ["150000", "150000", "600000"]
    assert second.split() == ["2999-01-01T00:00:00+00:00", "1", "0", "2", later.strip()]


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

    async with operator.open_services(environment) as services:
        tenants = [await services.accounts.tenants.create_tenant(name) for name in ("acme", "birch")]
        await services.accounts.plans.create("own")
        for _ in range(2):
            await demo.sell(services, tuple(tenants))
            await services.accounts.plans.set_tenant_plan(tenants[1].id, "own")
        plans = [await services.accounts.plans.of_tenant(tenant.id) for tenant in tenants]
        assert [plan.name for plan in plans] == ["demo", "own"], "what the operator chose stays"
        assert all(plans[0].terms[tier].allowed for tier in PriorityClass)
        assert len(await PriceService(services.database, services.redis).list()) == 1
