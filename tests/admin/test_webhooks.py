"""Webhook endpoints in the console: made with a secret that is shown once, tested, told; and who may."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator

import httpx
import openai
import pytest

from billing.notifications.delivering import Deliveries
from billing.notifications.publishing import publish
from tenants.actors import OPERATOR
from tests.admin.conftest import SENDER, Site, csrf_token, sign_in
from tests.admin.test_keys import XSS, act, as_role, secret_of
from tests.support.hook_server import HookServer, hook_server

EVENT = "adapter.ready"
FACTS = {"adapter_id": "adp_1", "name": XSS, "version": 1, "model": "sapling:pirate@1"}


@pytest.fixture
async def hooks() -> AsyncIterator[HookServer]:
    async with hook_server() as server:
        yield server


async def made(site: Site, url: str) -> str:
    """The id of an endpoint."""
    endpoint, _ = await site.billing.webhooks.create(
        site.tenant_id, OPERATOR, name="robot", url=url, event_types=[EVENT]
    )
    return endpoint.id


async def happen(site: Site, key: str) -> None:
    async with site.place.database.write(site.tenant_id) as session:
        await publish(session, site.tenant_id, EVENT, FACTS, key=key, recipients=())


async def test_an_endpoint_is_made_and_its_secret_verifies(
    site: Site, visitor: httpx.AsyncClient, hooks: HookServer
) -> None:
    await sign_in(visitor)
    assert "Receive events" in (await visitor.get("/webhooks")).text
    form = {"name": f"robot {XSS}", "url": hooks.url("/204"), f"event:{EVENT}": "on"}
    for wrong_fields, field in (
        ({"url": "ftp://acme.example/"}, "url"),
        ({"name": " "}, "name"),
        ({f"event:{EVENT}": None, "event:nothing.happened": "on"}, "event_types"),
        ({f"event:{EVENT}": None}, "event_types"),
    ):
        fields = {name: value for name, value in (form | wrong_fields).items() if value is not None}
        wrong = await act(visitor, "/webhooks/new", "/webhooks", **fields)
        assert wrong.status_code == 422
        assert f'id="problem-{field}"' in wrong.text
    answer = await act(visitor, "/webhooks/new", "/webhooks", **form)
    assert answer.status_code == 201
    secret = html.unescape(secret_of(answer))
    (endpoint,) = await site.billing.webhooks.list(site.tenant_id, after=None, limit=9, newest_first=True)
    path = f"/webhooks/{endpoint.id}"
    listed, shown = (await visitor.get("/webhooks")).text, (await visitor.get(path)).text
    assert secret not in listed + shown
    assert "<img src=x" not in answer.text + listed + shown
    tested = await act(visitor, path, f"{path}/test", event_type=EVENT)
    assert tested.status_code == 303
    (heard,) = hooks.heard
    with openai.OpenAI(api_key="none", webhook_secret=secret) as client:
        assert client.webhooks.unwrap(heard.body, heard.headers).type == EVENT  # type: ignore[comparison-overlap]
    page = (await visitor.get(path)).text
    for words in (
        "Test event delivered: the endpoint responded with 204.",
        ">Test<",
        "Delivered",
        "base:pirate@1",
    ):
        assert words in page, words
    rotated = await act(visitor, path, f"{path}/rotate", keep_old="yes")
    assert rotated.status_code == 201
    assert secret_of(rotated) != secret
    assert "Old secret valid until" in (await visitor.get(path)).text
    fields = {"name": "other", "url": hooks.url("/200"), "event:spend.alert": "on"}
    assert (await act(visitor, path, f"{path}/change", **fields)).status_code == 303
    endpoint = await site.billing.webhooks.get(site.tenant_id, endpoint.id)
    assert (endpoint.name, endpoint.event_types) == ("other", ["spend.alert"])
    assert (await act(visitor, path, f"{path}/delete")).headers["location"] == "/console/webhooks"
    assert (await visitor.get(path)).status_code == 404


async def test_deliveries_are_shown_and_sent_again(
    site: Site, visitor: httpx.AsyncClient, hooks: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(visitor)
    deliveries = Deliveries(site.place.database, SENDER)
    path = f"/webhooks/{await made(site, hooks.url('/changing'))}"
    await happen(site, "first")
    page = (await visitor.get(path)).text
    assert "Sending" in page
    assert " data-pending" in page
    assert await deliveries.deliver() == 1
    page = (await visitor.get(path)).text
    for words in ("Retrying", "Status 500", "&#34;version&#34;: 1", "&lt;img src=x"):
        assert words in page, words
    assert "<img src=x" not in page
    hooks.status = 200
    resend = re.search(r'action="/console(/webhooks/[^"]+/resend)"', page)
    assert resend is not None
    assert (await act(visitor, path, resend[1])).status_code == 303
    assert await deliveries.deliver() == 1
    page = (await visitor.get(path)).text
    assert "Delivered" in page
    assert " data-pending" not in page
    first, second = hooks.heard
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    monkeypatch.setattr("admin.webhooks.page.PAGE", 1)
    await happen(site, "second")
    newest = (await visitor.get(path)).text
    assert "Status 200" not in newest
    older = re.search(r'href="/console(/webhooks/[^"]+\?after=[^"]+)">Older', newest)
    assert older is not None
    assert "Status 200" in (await visitor.get(older[1])).text
    assert (await visitor.get(f"{path}?after=x")).status_code == 404


async def test_a_test_that_fails_says_why(site: Site, visitor: httpx.AsyncClient, hooks: HookServer) -> None:
    await sign_in(visitor)
    for way, words, status in (
        ("/rude", "does not speak HTTP", 422),
        ("/500", "The endpoint responded with 500", 422),
    ):
        path = f"/webhooks/{await made(site, hooks.url(way))}"
        answer = await act(visitor, path, f"{path}/test", event_type=EVENT)
        assert answer.status_code == status
        assert re.search(rf'role="alert">[^<]*{words}', answer.text)
        assert "Failed" in answer.text
    unknown = await act(visitor, path, f"{path}/test", event_type="nothing.happened")
    assert unknown.status_code == 422


async def test_who_may(site: Site, visitor: httpx.AsyncClient, hooks: HookServer) -> None:
    endpoint_id = await made(site, hooks.url("/204"))
    path = f"/webhooks/{endpoint_id}"
    await as_role(site, visitor, "billing")  # sees endpoints and changes none
    page = await visitor.get(path)
    assert page.status_code == 200
    assert f"{path}/delete" not in page.text
    token = csrf_token(page)
    for way in ("change", "rotate", "test", "delete", "deliveries/dlv_1/resend"):
        assert (await visitor.post(f"{path}/{way}", data={"csrf_token": token})).status_code == 403, way
    assert (await visitor.post("/webhooks", data={"csrf_token": token})).status_code == 403
    async with site.visitor() as viewer:
        await as_role(site, viewer, "viewer")
        assert (await viewer.get("/webhooks")).status_code == 403
        assert "/console/webhooks" not in (await viewer.get("/keys")).text
    await site.accounts.create(site.place.tenants[1], "eve@birch.example", "correct horse battery")
    async with site.visitor() as eve:
        await sign_in(eve, "eve@birch.example")
        assert (await eve.get(path)).status_code == 404
        for way in ("rotate", "test", "delete", "deliveries/dlv_1/resend"):
            assert (await act(eve, "/webhooks/new", f"{path}/{way}")).status_code in (404, 422), way
    assert hooks.heard == []
    assert (await site.billing.webhooks.get(site.tenant_id, endpoint_id)).name == "robot"
