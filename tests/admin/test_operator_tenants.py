"""Operators: who is one, what they see of tenants, and what they change."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from admin.operator.engines.report import EngineReport
from admin.operator.tenants import list_page
from db.session import EVERY_TENANT
from engine.gauges import Share
from engine.protocol import Usage
from sla.measures import Counts
from sla.repository import SlaWriter
from tenants.audit.service import OPERATOR_CHAIN
from tenants.errors import InviteInvalid
from tenants.models import OPERATOR_TENANT
from tenants.operators.service import OperatorAccounts
from tests.admin.conftest import EMAIL, PASSWORD, Site, csrf_token, sign_in
from tests.admin.operators import OPERATOR_EMAIL, operate, post
from tests.admin.test_operator_engines import view
from tests.support.booked import request, write

PAGES = ("", "/tenants", "/tenants/{tenant}", "/tenants/new")
CHANGES = ("/tenants/{tenant}/plan", "/tenants/{tenant}/shut-out", "/tenants/{tenant}/open", "/leave")
XSS = "<img src=x onerror=alert(1)>"


def report(shares: list[Share], **fields: Any) -> EngineReport:
    known: dict[str, Any] = {"shares": shares, "num_shares": len(shares)}
    now = datetime.now(UTC).timestamp()
    return EngineReport(
        key="engine", state="serving", reported_at=now, since=now, view=view(now, **known | fields)
    )


async def test_operators_pages_are_nothing_to_anybody_else(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    token = csrf_token(await visitor.get("/members"))
    nothing = (await visitor.get("/no/such/page")).text
    paths = [f"/operator{path}".format(tenant=site.tenant_id) for path in (*PAGES, *CHANGES)]
    for path in paths[: len(PAGES)]:
        refused = await visitor.get(path)
        assert (refused.status_code, refused.text) == (404, nothing), path
    for path in paths[len(PAGES) :]:
        assert (await visitor.post(path, data={"csrf_token": token})).status_code == 404, path
    assert "/operator" not in (await visitor.get("/")).text
    async with site.visitor() as stranger:
        assert (await stranger.get("/operator/tenants")).headers["location"] == "/console/sign-in"


async def test_an_operator_signs_in_to_pages_of_their_own(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor)
    assert (await visitor.get("/")).headers["location"] == "/console/operator"
    assert (await visitor.get("/operator")).headers["location"] == "/console/operator/tenants"
    # A tenant's pages show a tenant, and they are in none's console.
    assert (await visitor.get("/keys")).headers["location"] == "/console/operator"
    token = csrf_token(await visitor.get("/operator/tenants"))
    assert (await visitor.post("/keys", data={"csrf_token": token})).status_code == 403
    # The service is no tenant, and its users are nobody's to find among tenants.
    assert (await visitor.get(f"/operator/tenants/{OPERATOR_TENANT}")).status_code == 404
    assert OPERATOR_TENANT not in {tenant.id for tenant in await site.tenants.list_tenants()}
    (entered, *_) = await site.account.audit.list(OPERATOR_CHAIN)
    assert (entered.type, entered.actor["email"]) == ("login.succeeded", OPERATOR_EMAIL)
    await OperatorAccounts(site.place.database, site.redis).add("second@service.example", PASSWORD)
    await OperatorAccounts(site.place.database, site.redis).remove(OPERATOR_EMAIL)
    assert (await visitor.get("/operator/tenants")).headers["location"] == "/console/sign-in"


async def test_tenants_are_found_with_what_they_use(site: Site, visitor: httpx.AsyncClient) -> None:
    now = datetime.now(UTC)
    used = (Usage(1_200_000, 0, 300), Usage(100, 0, 40))
    requests = [request(site.tenant_id, now.timestamp(), usage=usage) for usage in used]
    await write(site.place.database, requests)
    other = await site.tenants.create_tenant(f"birch {XSS}")
    await operate(site, visitor)
    page = html.unescape((await visitor.get("/operator/tenants")).text)
    assert f"birch {XSS}" in page
    assert XSS not in (await visitor.get("/operator/tenants")).text
    row = page.partition(f"/tenants/{site.tenant_id}")[2].partition("</tr>")[0]
    assert "1.2M" in row
    assert 'title="1,200,100 input, 340 output"' in row
    assert f"{now:%Y-%m-%d %H:%M}" in row
    assert row.count('class="spark"') == 1
    found = {
        search: set(re.findall(r"operator/tenants/(tnt_\w+)", (await visitor.get(search)).text))
        for search in (
            f"/operator/tenants?search={EMAIL[:5]}",
            "/operator/tenants?search=BIRCH",
            f"/operator/tenants?search={other.id}",
            "/operator/tenants?search=nobody",
            "/operator/tenants?standing=disabled",
            "/operator/tenants?plan=standard&standing=active",
        )
    }
    everybody = {tenant.id for tenant in await site.tenants.list_tenants()}
    assert [*found.values()] == [{site.tenant_id}, {other.id}, {other.id}, set(), set(), everybody]
    assert (await visitor.get("/operator/tenants?standing=rich")).status_code == 422
    one = html.unescape((await visitor.get(f"/operator/tenants/{site.tenant_id}")).text)
    assert EMAIL in one
    assert (await visitor.get("/operator/tenants/tnt_none")).status_code == 404


async def test_tenants_are_sorted_in_pages_with_errors_and_queues(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    names = ("alder", "beech", "cedar", "elm")
    alder, beech, cedar, elm = [(await site.tenants.create_tenant(name)).id for name in names]
    for tenant, tokens in ((alder, 10), (beech, 3000), (cedar, 200)):
        await write(site.place.database, [request(tenant, now.timestamp(), usage=Usage(tokens, 0, 0))])
    async with site.place.database.write(EVERY_TENANT) as session:
        counted = {
            (alder, "default", now - timedelta(days=6)): Counts(requests=8, failed=1),
            (beech, "default", now - timedelta(days=8)): Counts(requests=8, failed=8),
            (cedar, "default", now): Counts(requests=1, failed=1),
        }
        await SlaWriter(session).ensure_partitions((now - timedelta(days=8)).date(), 2)
        await SlaWriter(session).add(counted)
    await operate(site, visitor)

    async def rows(query: str) -> dict[str, str]:
        page = html.unescape((await visitor.get(f"/operator/tenants?{query}")).text)
        found = re.findall(r'tenants/tnt_\w+">(\w+)</a>(.*?)</tr>', page, re.S)
        return {name: row for name, row in found if name in names}

    assert [*await rows("sort=-tokens")] == ["beech", "cedar", "alder", "elm"]
    assert [*await rows("sort=tokens")] == ["elm", "alder", "cedar", "beech"]
    by_errors = await rows("sort=-errors")
    assert [*by_errors][:2] == ["cedar", "alder"], "beech failed earlier"
    assert "1 of 8 requests failed" in by_errors["alder"]
    assert "12.5 %" in by_errors["alder"]
    assert 'data-label="Queue">–' in by_errors["alder"], "no engine reports"
    shares = [Share(beech, None, "default", waiting=3), Share(elm, None, "flex", waiting=1)]
    site.engines.reports = [report(shares)]
    assert [*await rows("sort=-queue")][:2] == ["beech", "elm"]
    queued = await rows("")
    assert "75.0 %<small>3 waiting" in queued["beech"]
    assert 'data-label="Queue">0' in queued["cedar"]
    site.engines.reports = [report(shares, num_shares=3)]
    assert 'data-label="Queue">–' in (await rows(""))["cedar"], "the engine names only some tenants"

    monkeypatch.setattr(list_page, "PAGE", 2)
    count = len(await site.tenants.list_tenants())
    first = await visitor.get("/operator/tenants?sort=-tokens&standing=active")
    assert f"1–2 of {count}" in first.text
    (following,) = re.findall(r'href="/console/(operator/tenants\?[^"]*after=[^"]*)"', first.text)
    assert html.unescape(following) == "operator/tenants?standing=active&sort=-tokens&after=2"
    second = await visitor.get(html.unescape(f"/{following}"))
    assert f"3–4 of {count}" in second.text
    assert "alder" in second.text
    assert (await visitor.get("/operator/tenants?sort=-tokens&after=x")).status_code == 422
    assert (await visitor.get("/operator/tenants?sort=secret")).status_code == 404


async def test_a_tenant_is_created_with_its_first_owner(site: Site, visitor: httpx.AsyncClient) -> None:
    await site.account.plans.create("gold")
    await operate(site, visitor)
    new = "/operator/tenants/new"
    given = {"name": "Birch & Co", "email": "Bo@birch.example", "plan": "gold"}
    before = len(await site.tenants.list_tenants())
    for field, value, said in (
        ("name", " ", "must have 1 to"),
        ("name", "acme", "taken"),
        ("email", "bo", "is not an email address"),
        ("plan", "none", "none"),
    ):
        taken = (await site.tenants.find_tenant(site.tenant_id)).name
        refused = await post(visitor, new, new, **given | {field: taken if value == "acme" else value})
        assert refused.status_code >= 400, field
        assert said in html.unescape(refused.text), field
        assert len(await site.tenants.list_tenants()) == before
    made = await post(visitor, new, new, **given)
    assert made.status_code == 201
    tenant = await site.tenants.find_tenant("Birch & Co")
    assert (await site.account.plans.of_tenant(tenant.id)).name == "gold"
    (lost,) = re.findall(r'value="http://127.0.0.1:8000/console/join#([^"]+)"', made.text)
    here = f"/operator/tenants/{tenant.id}"
    assert (await post(visitor, here, f"{here}/invite", email="x")).status_code == 303
    assert "is not an email address" in html.unescape((await visitor.get(here)).text)
    again = await post(visitor, here, f"{here}/invite", email="bo@birch.example")
    (token,) = re.findall(r'value="http://127.0.0.1:8000/console/join#([^"]+)"', again.text)
    assert token not in (await visitor.get(here)).text
    with pytest.raises(InviteInvalid):
        await site.account.invites.accept(lost, PASSWORD)
    await site.account.invites.accept(token, PASSWORD)
    assert "Invite owner" not in (await visitor.get(here)).text
    async with site.visitor() as owner:
        assert (await sign_in(owner, "bo@birch.example")).status_code == 303
        assert "Birch &amp; Co" in (await owner.get("/members")).text
    entries = await site.account.audit.list(tenant.id, limit=20)
    assert {e.actor.get("email") for e in entries if e.type == "invite.sent"} == {OPERATOR_EMAIL}


async def test_an_operator_changes_plan_standing_and_balance(site: Site, visitor: httpx.AsyncClient) -> None:
    await site.account.plans.create("gold")
    await operate(site, visitor)
    here = f"/operator/tenants/{site.tenant_id}"
    assert (await post(visitor, here, f"{here}/plan", plan="gold")).status_code == 303
    assert "is now on the gold plan" in (await visitor.get(here)).text
    assert (await post(visitor, here, f"{here}/plan", plan="none")).status_code == 404
    once = {"amount": "25.50", "reason": "an apology", "once": "a"}
    for _ in range(2):  # sent twice by an impatient hand
        assert (await post(visitor, here, f"{here}/credit", **once)).status_code == 303
    assert (await site.billing.credits.balance(site.tenant_id)).amount == 25_500_000
    for amount in ("much", "-5", "0"):
        refused = await post(visitor, here, f"{here}/credit", amount=amount, reason="x y z", once="b")
        assert refused.status_code == 422
    async with site.visitor() as theirs:
        await sign_in(theirs)
        assert (await post(visitor, here, f"{here}/shut-out")).status_code == 303
        assert "Suspended since" in (await visitor.get(here)).text
        assert (await theirs.get("/")).headers["location"] == "/console/sign-in"
        assert (await post(visitor, here, f"{here}/let-in")).status_code == 303
        assert (await sign_in(theirs)).status_code == 303
    entries = await site.account.audit.list(site.tenant_id, limit=20)
    mine = [entry.type for entry in entries if entry.actor.get("email") == OPERATOR_EMAIL]
    assert mine == ["organization.updated", "organization.updated", "credit.created", "organization.updated"]
    assert all(entry.actor["type"] == "operator" for entry in entries if entry.type in mine)


async def test_who_looks_on_changes_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor, looks_on=True)
    here = f"/operator/tenants/{site.tenant_id}"
    page = (await visitor.get(here)).text
    assert "Suspended" not in page
    assert "Change plan" not in page
    assert "New tenant" not in (await visitor.get("/operator/tenants")).text
    refused = await post(visitor, here, "/operator/tenants/new", name="birch", email="a@b.example")
    assert refused.status_code == 403
    for verb in ("plan", "shut-out", "credit", "invite"):
        assert (await post(visitor, here, f"{here}/{verb}", plan="standard")).status_code == 403
    member = (await site.account.members.list(site.tenant_id))[0].id
    fields = {"user": member, "access": "full", "minutes": "15", "reason": "curiosity"}
    assert (await post(visitor, here, f"{here}/open", **fields)).status_code == 403


@pytest.mark.parametrize("path", ["/operator/tenants/x/plan", "/operator/leave"])
async def test_changes_need_the_pages_own_form(site: Site, visitor: httpx.AsyncClient, path: str) -> None:
    await operate(site, visitor)
    assert (await visitor.post(path, data={"csrf_token": "guess"})).status_code == 403
