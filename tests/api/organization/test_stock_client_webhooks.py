"""The stock client's words for webhook endpoints and spend alerts, and what only we have."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from billing.notifications.events import EVENTS
from billing.notifications.publishing import publish
from tests.api.organization.site import Party, Site
from tests.support.hook_server import HookServer, hook_server

EVENT = "invoice.finalized"
CHANNEL = {"type": "email", "recipients": ["ann@acme.example"], "subject_prefix": "[acme]"}
MONTHLY = {"currency": "USD", "interval": "month"}


def test_webhook_endpoints(site: Site, ours: Party, sdk: Any) -> None:
    webhooks = sdk.webhooks
    assert webhooks.event_types.list().data == list(EVENTS)
    made = webhooks.create(name="hook", url="https://acme.example/hook", event_types=[EVENT])
    assert (made.object, made.name, made.event_types) == ("webhook_endpoint", "hook", [EVENT])
    assert made.signing_secret.startswith("whsec_")
    assert made.signing_secret_hint.endswith(made.signing_secret[-5:])
    shown = webhooks.retrieve(made.id)
    assert (shown.id, shown.url) == (made.id, "https://acme.example/hook")
    assert made.signing_secret not in shown.to_json()
    changed = webhooks.update(made.id, name="other", event_types=["spend.alert", EVENT])
    assert (changed.name, changed.url, changed.event_types) == ("other", shown.url, ["spend.alert", EVENT])
    rotated = webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    assert rotated.signing_secret != made.signing_secret
    second = webhooks.create(name="second", url="https://acme.example/2", event_types=[EVENT])
    assert [one.id for one in webhooks.list(limit=1)] == [second.id, made.id]
    gone = webhooks.delete(second.id)
    assert (gone.object, gone.deleted) == ("webhook_endpoint.deleted", True)
    with pytest.raises(openai.NotFoundError):
        webhooks.retrieve(second.id)
    for wrong, param in (
        ({"url": "ftp://acme.example/"}, "url"),
        ({"url": "https://user@acme.example/"}, "url"),
        ({"event_types": ["nothing.happened"]}, "event_types"),
        ({"name": ""}, "name"),
    ):
        fields: dict[str, Any] = {"name": "x", "url": "https://acme.example/", "event_types": [EVENT]}
        with pytest.raises(openai.BadRequestError) as refused:
            webhooks.create(**(fields | wrong))
        assert refused.value.param == param


def test_what_is_listed_may_be_deleted_on_the_way(ours: Party, sdk: Any) -> None:
    """The client asks for the next page after the last object of this one, which is gone by then."""
    made = [
        sdk.webhooks.create(name="hook", url="https://acme.example/", event_types=[EVENT]).id
        for _ in range(3)
    ]
    seen = []
    for endpoint in sdk.webhooks.list(limit=1):
        seen.append(endpoint.id)
        sdk.webhooks.delete(endpoint.id)
    assert seen == made[::-1]
    assert [*sdk.webhooks.list()] == []


def test_an_endpoint_is_tested_and_told(site: Site, ours: Party, sdk: Any) -> None:
    opened = hook_server()
    hooks: HookServer = site.do(opened.__aenter__())
    try:
        made = sdk.webhooks.create(name="hook", url=hooks.url("/204"), event_types=[EVENT])
        tested = sdk.webhooks.test(made.id, event_type=EVENT)  # type: ignore[arg-type]
        assert (tested.status_code, tested.success, tested.webhook_endpoint_id) == (204, True, made.id)
        (heard,) = hooks.heard
        with openai.OpenAI(api_key="none", webhook_secret=made.signing_secret) as client:
            event = client.webhooks.unwrap(heard.body, heard.headers)
        assert event.type == EVENT  # type: ignore[comparison-overlap]
        broken = sdk.webhooks.create(name="hook", url=hooks.url("/rude"), event_types=[EVENT])
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            sdk.webhooks.test(broken.id, event_type=EVENT)  # type: ignore[arg-type]
        assert (refused.value.code, refused.value.param) == ("endpoint_unreachable", "url")
    finally:
        site.do(opened.__aexit__(None, None, None))

    async def happen() -> None:
        async with site.database.write(ours.tenant_id) as session:
            await publish(session, ours.tenant_id, EVENT, {"invoice_id": "inv_1"}, key="x", recipients=())

    site.do(happen())
    path = f"/v1/webhook_endpoints/{made.id}/deliveries"
    delivery, test = site.ask("GET", path, ours.admin_key).json()["data"]
    assert (delivery["event_type"], delivery["status"]) == (EVENT, "pending")
    assert (test["status"], test["attempts"], test["status_code"]) == ("delivered", 1, 204)
    _, failed = site.ask("GET", path.replace(made.id, broken.id), ours.admin_key).json()["data"]
    assert (failed["status"], failed["error"]) == ("failed", "it does not speak HTTP")
    again = site.ask("POST", f"{path}/{delivery['id']}/retry", ours.admin_key)
    assert (again.status_code, again.json()["attempts"]) == (200, 0)


def test_spend_alerts(site: Site, ours: Party, organization: Any) -> None:
    alerts = organization.spend_alerts
    made = alerts.create(threshold_amount=12_345, notification_channel=CHANNEL, **MONTHLY)
    assert (made.object, made.threshold_amount) == ("organization.spend_alert", 12_345)
    assert made.notification_channel.recipients == ["ann@acme.example"]
    changed = alerts.update(made.id, threshold_amount=5, notification_channel=CHANNEL, **MONTHLY)
    assert alerts.retrieve(made.id).threshold_amount == changed.threshold_amount == 5
    assert [alert.id for alert in alerts.list()] == [made.id]
    project = organization.projects.spend_alerts
    of_project = project.create(ours.project_id, threshold_amount=1, notification_channel=CHANNEL, **MONTHLY)
    assert of_project.object == "project.spend_alert"
    assert [alert.id for alert in project.list(ours.project_id)] == [of_project.id]
    with pytest.raises(openai.NotFoundError):
        alerts.retrieve(of_project.id)
    assert project.delete(of_project.id, project_id=ours.project_id).deleted
    assert alerts.delete(made.id).object == "organization.spend_alert.deleted"
    with pytest.raises(openai.BadRequestError) as euros:
        alerts.create(threshold_amount=1, notification_channel=CHANNEL, currency="EUR", interval="month")
    assert euros.value.param == "currency"
    for thresholds in ({}, {"threshold_amount": 1, "threshold_percent": 1}):
        answer = site.ask("POST", "/v1/organization/spend_alerts", ours.admin_key, MONTHLY | thresholds)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "threshold_amount")
    percent = MONTHLY | {"threshold_percent": 80}
    ours_alone = site.ask("POST", "/v1/organization/spend_alerts", ours.admin_key, percent).json()
    assert (ours_alone["threshold_percent"], ours_alone["threshold_amount"]) == (80, None)
