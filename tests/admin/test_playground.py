"""Asking models from the console: who may, under which limits, on whose bill."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tenants.actors import OPERATOR
from tenants.limits.kinds import Limit, Metric
from tenants.repository import TenantDirectory
from tests.admin.conftest import Site, csrf_token, sign_in
from tests.admin.test_keys import as_role
from tests.api.fakes import Script
from tests.support.serving import served
from tests.support.waiting import eventually

ASK = {
    "model": "sapling",
    "messages": [{"role": "user", "content": "Hello"}],
    "stream": True,
    "max_tokens": 8,
}


async def ask(visitor: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    token = csrf_token(await visitor.get("/playground"))
    headers = {"accept": "application/json", "x-csrf-token": token}
    return await visitor.post("/playground/chat", json={**ASK, **fields}, headers=headers)


def told(answer: httpx.Response) -> str:
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(one["delta"].get("content", "") for chunk in chunks for one in chunk["choices"])


async def test_the_page_offers_what_can_be_asked(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    page = (await visitor.get("/playground")).text
    assert "Upload an adapter" in page
    await site.place.make_ready(await site.place.create("pirate"), "1")
    await site.place.create("theirs", tenant=1)
    page = (await visitor.get("/playground")).text
    assert '<option value="sapling:pirate" selected>' in page
    assert "theirs" not in page
    page = (await visitor.get("/playground?model=sapling")).text
    assert '<option value="sapling" selected>' in page
    assert '<option value="sapling:pirate" selected>' in (await visitor.get("/playground?model='")).text


async def test_the_page_tells_the_service_tier_and_its_price(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    page = (await visitor.get("/playground")).text
    assert "Service tier <code>default</code>" in page
    assert "$1.00 per million input tokens, $2.00 per million output tokens." in page


async def test_an_answer_streams_and_is_the_users(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    ready = await site.place.make_ready(await site.place.create("pirate"), "1")
    answer = await ask(visitor, model="sapling:pirate")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "authorization" not in answer.request.headers
    assert told(answer) == "Hello world"
    (submit,) = site.engine.submitted
    (me,) = await site.account.members.list(site.tenant_id)
    project = await site.account.projects.default(site.tenant_id)
    assert submit.tenant == site.tenant_id
    assert submit.adapter == ready
    assert submit.labels["key_id"] == submit.labels["user_id"] == me.id
    assert submit.labels["project_id"] == project.id
    assert submit.labels["model"] == "sapling:pirate@1"


async def test_limits_hold_as_for_keys(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    limit = Limit("tenant", site.tenant_id, "", Metric("requests_per_minute"), 1)
    await site.account.limits.set(site.tenant_id, OPERATOR, limit)
    await eventually(lambda: not site.quotas.away, seconds=20)
    assert (await ask(visitor)).status_code == 200
    refused = await ask(visitor)
    assert refused.status_code == 429
    assert "requests" in refused.json()["error"]["message"]
    assert len(site.engine.submitted) == 1


async def test_what_cannot_be_asked_is_told_as_json(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for fields, status, message in (
        ({"model": "sapling:absent"}, 404, "absent"),
        ({"messages": []}, 400, "messages"),
        ({"temperature": 9}, 400, "temperature"),
        ({"tools": [1]}, 400, "tools"),
    ):
        refused = await ask(visitor, **fields)
        assert refused.status_code == status
        assert message in refused.json()["error"]["message"]
    site.engine.script = lambda submit: Script(reject=("overloaded", "full"))
    assert (await ask(visitor)).status_code == 503
    site.engine.ready = False
    assert (await ask(visitor)).status_code == 503


async def test_only_our_own_script_asks(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    json_ = {"accept": "application/json"}
    assert (await visitor.post("/playground/chat", json=ASK, headers=json_)).status_code == 403
    token = csrf_token(await visitor.get("/playground"))
    foreign = {**json_, "x-csrf-token": token, "origin": "https://evil.example"}
    assert (await visitor.post("/playground/chat", json=ASK, headers=foreign)).status_code == 403
    async with site.visitor() as stranger:
        headers = {**json_, "x-csrf-token": token}
        assert (await stranger.post("/playground/chat", json=ASK, headers=headers)).status_code == 401
    assert not site.engine.submitted


async def test_who_only_looks_on_asks_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    await as_role(site, visitor, "viewer")
    home = await visitor.get("/")
    assert "/playground" not in home.text
    headers = {"accept": "application/json", "x-csrf-token": csrf_token(home)}
    refused = await visitor.post("/playground/chat", json=ASK, headers=headers)
    assert refused.status_code == 403
    assert "Your role (viewer)" in refused.json()["error"]["message"]
    assert (await visitor.get("/playground")).status_code == 403


async def test_a_suspended_account_asks_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    async with site.place.database.write(site.tenant_id) as session:
        tenant = await TenantDirectory(session).tenant(site.tenant_id)
        assert tenant is not None
        tenant.billing_state = "suspended"
    refused = await ask(visitor)
    assert refused.status_code == 429
    assert not site.engine.submitted


async def test_a_reader_who_leaves_stops_the_engine(site: Site, visitor: httpx.AsyncClient) -> None:
    site.engine.script = lambda submit: site.engine.says(submit, "Hello world " * 30, delay=0.05)
    async with served(site.whole) as origin, httpx.AsyncClient(base_url=f"{origin}/console") as real:
        await sign_in(real)
        headers = {"accept": "application/json", "x-csrf-token": csrf_token(await real.get("/playground"))}
        async with real.stream("POST", "/playground/chat", json=ASK, headers=headers) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if "Hello" in line:
                    break
        await eventually(lambda: bool(site.engine.aborted), seconds=20)
