"""The stock client's words for limits, models and classes of service of an organisation and its projects."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tenants.plans import PlanChanges
from tests.api.organization.site import Party, Site


def test_rate_limits(site: Site, ours: Party, organization: Any) -> None:
    limits, project = organization.projects.rate_limits, ours.project_id
    before = limits.list_rate_limits(project)
    assert [limit.id for limit in before.data] == ["rl-*", "rl-sapling", "rl-sapling:*"]
    assert before.data[0].object == "project.rate_limit"
    assert before.data[0].max_requests_per_1_minute == 10**11, "nobody limits it"
    changed = limits.update_rate_limit(
        "rl-*", project_id=project, max_requests_per_1_minute=3, max_tokens_per_1_minute=5000
    )
    assert (changed.max_requests_per_1_minute, changed.max_tokens_per_1_minute) == (3, 5000)
    assert changed.max_requests_per_1_day is None
    limits.update_rate_limit("rl-sapling:pirate", project_id=project, max_requests_per_1_day=7)
    listed = list(limits.list_rate_limits(project, limit=1))
    assert [limit.model for limit in listed] == ["*", "sapling", "sapling:*", "sapling:pirate"]
    assert listed[3].max_requests_per_1_day == 7
    back = limits.list_rate_limits(project, before="rl-sapling:*", limit=1)
    assert ([limit.id for limit in back.data], back.has_more) == (["rl-sapling"], True)
    with pytest.raises(openai.BadRequestError) as images:
        limits.update_rate_limit("rl-*", project_id=project, max_images_per_1_minute=1)
    assert images.value.param == "max_images_per_1_minute"
    with pytest.raises(openai.BadRequestError) as nonsense:
        limits.update_rate_limit("rl-No Model", project_id=project, max_requests_per_1_day=7)
    assert nonsense.value.param == "model"
    assert organization.audit_logs.list(limit=1).data[0].type == "limit.set"


def test_spend_limits(site: Site, ours: Party, organization: Any) -> None:
    dollars = {"currency": "USD", "interval": "month"}
    with pytest.raises(openai.NotFoundError):
        organization.spend_limit.retrieve()
    made = organization.spend_limit.update(threshold_amount=12_345, **dollars)
    assert (made.object, made.threshold_amount) == ("organization.spend_limit", 12_345)
    assert made.enforcement.status == "inactive"
    project = organization.projects.spend_limit
    assert project.update(ours.project_id, threshold_amount=0, **dollars).enforcement.status == "enforcing"
    assert project.retrieve(ours.project_id).object == "project.spend_limit"
    everything = site.ask("GET", "/v1/organization/limits", ours.admin_key).json()["data"]
    spent = {limit["scope"]: limit["amount"] for limit in everything}
    assert spent == {"organization": 123_450_000, "project": 0}
    assert project.delete(ours.project_id).object == "project.spend_limit.deleted"
    assert organization.spend_limit.delete().deleted
    for missing in (organization.spend_limit.delete, lambda: project.delete(ours.project_id)):
        with pytest.raises(openai.NotFoundError):
            missing()
    with pytest.raises(openai.BadRequestError) as euros:
        organization.spend_limit.update(threshold_amount=1, currency="EUR", interval="month")
    assert euros.value.param == "currency"


def test_model_permissions(site: Site, ours: Party, organization: Any) -> None:
    permissions, project = organization.projects.model_permissions, ours.project_id

    def listed() -> list[str]:
        return [model["id"] for model in site.ask("GET", "/v1/models", ours.key).json()["data"]]

    with pytest.raises(openai.NotFoundError):
        permissions.retrieve(project)
    assert listed() == ["sapling"]
    made = permissions.update(project, mode="deny_list", model_ids=["sapling"])
    assert (made.object, made.mode) == ("project.model_permissions", "deny_list")
    site.soon(lambda: listed() == [])
    chat = {"model": "sapling", "messages": [{"role": "user", "content": "hi"}]}
    refused = site.ask("POST", "/v1/chat/completions", ours.key, chat)
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "model")
    permissions.update(project, mode="allow_list", model_ids=["sapling", "sapling:*"])
    assert permissions.retrieve(project).api_model_ids == ["sapling", "sapling:*"]
    site.soon(lambda: listed() == ["sapling"])
    assert permissions.delete(project).object == "project.model_permissions.deleted"
    with pytest.raises(openai.NotFoundError):
        permissions.delete(project)
    with pytest.raises(openai.BadRequestError) as wrong:
        permissions.update(project, mode="allow_list", model_ids=["a:b:c"])
    assert wrong.value.param == "models"


def test_service_tier_settings(site: Site, ours: Party, organization: Any) -> None:
    settings, project = organization.projects.service_tier_settings, ours.project_id
    before = settings.retrieve(project)
    assert (before.object, before.enabled_tiers) == ("project.service_tier_settings", "all")
    assert before.default == "standard", "the plan has no priority"
    terms = PlanChanges(terms={"priority": {"allowed": True}})
    site.do(site.accounts.plans.create(f"fast-{ours.name}", terms))
    site.do(site.accounts.plans.set_tenant_plan(ours.tenant_id, f"fast-{ours.name}"))
    site.soon(lambda: settings.retrieve(project).default == "fast")

    def served(tier: str) -> Any:
        chat = {"model": "sapling", "messages": [{"role": "user", "content": "hi"}], "service_tier": tier}
        answer = site.ask("POST", "/v1/chat/completions", ours.key, chat).json()
        return answer.get("service_tier") or answer["error"]["param"]

    site.soon(lambda: served("auto") == "priority")
    assert settings.update(project, default="standard").default == "standard"
    site.soon(lambda: served("auto") == "default")
    assert [served("priority"), served("flex")] == ["priority", "flex"]
    changed = settings.update(project, enabled_tiers=["flex"])
    assert (changed.default, changed.enabled_tiers) == ("standard", ["flex"])
    site.soon(lambda: served("priority") == "service_tier")
    assert served("flex") == "flex"
    assert settings.update(project, enabled_tiers=[]).enabled_tiers == []
    site.soon(lambda: served("flex") == "service_tier")
    assert served("default") == "default"
    assert settings.update(project, default="fast", enabled_tiers="all").default == "fast"
    site.soon(lambda: served("auto") == "priority")
