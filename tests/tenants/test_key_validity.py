"""Whether a key lets its holder in, and to which classes of service, by the rows it is made of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.protocol import PriorityClass
from tenants.models import ApiKey, Plan, Project, Tenant
from tenants.resolver import _plan_of, is_key_valid
from tenants.views import plan_view

NOW = datetime(2026, 11, 30, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("key", "tenant", "project", "let_in"),
    [
        ({}, {}, {}, True),
        ({}, {}, None, True),
        ({"revoked_at": NOW - SECOND}, {}, {}, False),
        ({"expires_at": NOW + SECOND}, {}, {}, True),
        ({"expires_at": NOW}, {}, {}, False),
        ({"expires_at": NOW - SECOND}, {}, {}, False),
        ({}, {"disabled_at": NOW - SECOND}, {}, False),
        ({}, {}, {"archived_at": NOW - SECOND}, False),
    ],
)
def test_a_key_lets_in(
    key: dict[str, Any], tenant: dict[str, Any], project: dict[str, Any] | None, let_in: bool
) -> None:
    rows = ApiKey(**key), Tenant(**tenant), None if project is None else Project(**project)
    assert is_key_valid(*rows, NOW) is let_in


def test_a_project_closes_classes_of_service_and_never_the_default() -> None:
    plan = Plan(name="team", limits={}, max_adapters=1, gate={}, terms={})
    whole = {tier: terms.allowed for tier, terms in plan_view(plan).terms.items()}

    def allowed(tiers: list[str] | None) -> dict[PriorityClass, bool]:
        return {
            tier: terms.allowed for tier, terms in _plan_of(plan, Project(service_tiers=tiers)).terms.items()
        }

    assert allowed(None) == whole
    assert allowed([]) == whole | {PriorityClass.PRIORITY: False, PriorityClass.FLEX: False}
    assert allowed(["flex"]) == whole | {PriorityClass.PRIORITY: False}
    assert {tier: terms.allowed for tier, terms in _plan_of(plan, None).terms.items()} == whole
