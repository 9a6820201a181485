"""An operator in a tenant's console: bannered, bounded, on record, and at nobody's cost."""

from __future__ import annotations

import html

import httpx
import pytest

from admin.web import authentication
from tenants.actors import OPERATOR
from tenants.audit.service import OPERATOR_CHAIN
from tenants.operators.service import OperatorAccounts
from tests.admin.conftest import EMAIL, Site, csrf_token, sign_in
from tests.admin.operators import OPERATOR_EMAIL, enter, operate, post


async def test_an_operator_changes_a_tenants_things_on_record(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor)
    before = dict(visitor.cookies)
    assert (await enter(site, visitor)).headers["location"] == "/console/"
    assert dict(visitor.cookies) != before, "another's place is another session"
    page = html.unescape((await visitor.get("/members")).text)
    assert 'class="guest"' in page
    for text in (f"as {EMAIL}", "with full access", "“ticket 4711”"):
        assert text in page
    her = await site.accounts.create(site.tenant_id, "grace@acme.example", "long enough words", role="viewer")
    changed = await post(visitor, "/members", f"/members/{her.user_id}/role", role="developer")
    assert changed.status_code == 303
    (me,) = await site.account.members.list(site.tenant_id, emails=[EMAIL])
    updated, _, began, *_ = await site.account.audit.list(site.tenant_id)
    assert (updated.type, began.type) == ("user.updated", "impersonation.began")
    for entry in (updated, began):
        assert (entry.actor["type"], entry.actor["email"]) == ("operator", OPERATOR_EMAIL)
    assert updated.actor["user_id"] == me.id
    assert began.details["reason"] == "ticket 4711"
    assert began.details["access"] == "full"
    # Members read it on their own page.
    async with site.visitor() as theirs:
        await sign_in(theirs)
        log = html.unescape((await theirs.get("/audit")).text)
        assert "ticket 4711" in log
        assert f"operator {OPERATOR_EMAIL}" in log
        assert 'class="guest"' not in log
    left = await post(visitor, "/members", "/operator/leave")
    assert left.headers["location"] == f"/console/operator/tenants/{site.tenant_id}"
    assert 'class="guest"' not in (await visitor.get(f"/operator/tenants/{site.tenant_id}")).text
    assert (await visitor.get("/members")).headers["location"] == "/console/operator"
    for chain in (site.tenant_id, OPERATOR_CHAIN):
        (ended, *_) = await site.account.audit.list(chain)
        assert ended.type == "impersonation.ended"
        assert await site.account.audit.verify(chain) is None


async def test_what_spends_or_lets_in_is_members_own(site: Site, visitor: httpx.AsyncClient) -> None:
    """Every route that does so, whatever else the form says."""
    await operate(site, visitor)
    await enter(site, visitor)
    token = csrf_token(await visitor.get("/members"))
    for path in ("/keys", "/keys/key_x/rotate", "/members/invite", "/billing/portal", "/billing/top-up"):
        refused = await visitor.post(path, data={"csrf_token": token})
        assert refused.status_code == 403, path
        assert "spends the organization's money" in html.unescape(refused.text), path
        assert 'class="guest"' in refused.text, "the banner is on every page"
    for path in ("/playground/chat", "/adapters/uploads", "/adapters/submit", "/adapters/adp_x/submit"):
        refused = await visitor.post(path, headers={"x-csrf-token": token, "accept": "application/json"})
        assert refused.status_code == 403, path
        assert "spends the organization's money" in refused.json()["error"]["message"], path
    assert not await site.keys.list(site.tenant_id)
    assert not site.engine.submitted


async def test_who_was_let_in_to_look_changes_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor, looks_on=True)
    assert (await enter(site, visitor, "read")).status_code == 303
    page = await visitor.get("/members")
    assert "read-only" in page.text
    assert "Manage" not in page.text
    project = await site.account.projects.default(site.tenant_id)
    (me,) = await site.account.members.list(site.tenant_id)
    token = csrf_token(page)
    for path in (f"/members/{me.id}/role", f"/members/{me.id}/remove", f"/projects/{project.id}/archive"):
        refused = await visitor.post(path, data={"csrf_token": token, "role": "viewer"})
        assert refused.status_code in (403, 404), path
    (still,) = await site.account.members.list(site.tenant_id)
    assert still.role == "owner"


async def test_it_ends_by_itself(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operate(site, visitor)
    await enter(site, visitor, minutes="1")
    token = csrf_token(await visitor.get("/members"))
    really = authentication.time.time
    monkeypatch.setattr(authentication.time, "time", lambda: really() + 61)
    assert (await visitor.post("/members/usr_x/remove", data={"csrf_token": token})).status_code == 403
    over = await visitor.get("/members")
    assert over.headers["location"] == f"/console/operator/tenants/{site.tenant_id}"
    shown = (await visitor.get(f"/operator/tenants/{site.tenant_id}")).text
    assert "Your access to this console has ended." in shown
    assert 'class="guest"' not in shown


async def test_it_takes_a_reason_a_bound_and_a_member(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor)
    for fields, status in (
        ({"reason": " x "}, 422),
        ({"reason": "a" * 301}, 422),
        ({"minutes": "0"}, 422),
        ({"minutes": "241"}, 422),
        ({"minutes": "soon"}, 400),
        ({"user": "usr_nobody"}, 404),
    ):
        assert (await enter(site, visitor, **fields)).status_code == status, fields
    theirs = await site.accounts.create(site.place.tenants[1], "far@birch.example", "long enough words")
    assert (await enter(site, visitor, user=theirs.user_id)).status_code == 404
    types = {entry.type for entry in await site.account.audit.list(site.tenant_id)}
    assert "impersonation.began" not in types


async def test_an_operator_who_is_none_any_more_is_out(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor)
    await enter(site, visitor)
    accounts = OperatorAccounts(site.place.database, site.redis)
    await accounts.add("second@service.example", "long enough words")
    await accounts.remove(OPERATOR_EMAIL)
    assert (await visitor.get("/members")).headers["location"] == "/console/sign-in"
    async with site.visitor() as second:
        await sign_in(second, "second@service.example", "long enough words")
        await enter(site, second)
        (me,) = await site.account.members.list(site.tenant_id)
        await site.accounts.create(site.tenant_id, "grace@acme.example", "long enough words")
        await site.account.members.remove(site.tenant_id, me.id, OPERATOR)
        assert (await second.get("/members")).headers["location"].startswith("/console/operator/tenants/")
