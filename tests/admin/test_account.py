"""The account of whoever is signed in: name, password, sessions; operators have one, too."""

from __future__ import annotations

import asyncio
import html
import re
import time

import httpx
import pytest

from admin.account.page import agent_words
from admin.sign_in import lockout
from admin.web.sessions import Impersonation, SessionStore
from tenants.models import OPERATOR_TENANT
from tests.admin.conftest import EMAIL, PASSWORD, Site, csrf_token, sign_in
from tests.admin.test_keys import XSS, act

OTHER = "another horse, another battery"


def handles(page: str) -> list[str]:
    return re.findall(r'action="/console/account/sessions/([0-9a-f]{64})/end"', page)


async def change_password(visitor: httpx.AsyncClient, **fields: str) -> httpx.Response:
    given = {"old": PASSWORD, "password": OTHER, "again": OTHER, **fields}
    return await act(visitor, "/account", "/account/password", **given)


async def test_a_changed_password_ends_every_other_session(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    async with site.visitor() as elsewhere:
        await sign_in(elsewhere)
        stolen, form = visitor.cookies["rootstock_console"], csrf_token(await visitor.get("/account"))
        assert (await change_password(visitor)).headers["location"] == "/console/account"
        assert visitor.cookies["rootstock_console"] != stolen
        page = await visitor.get("/account")
        assert "Password changed" in page.text
        assert csrf_token(page) != form
        assert (await elsewhere.get("/account")).headers["location"] == "/console/sign-in"
        elsewhere.cookies.set("rootstock_console", stolen)
        assert (await elsewhere.get("/account")).status_code == 303
    async with site.visitor() as anew:
        assert (await sign_in(anew)).status_code == 401
        assert (await sign_in(anew, password=OTHER)).status_code == 303
    entries = await site.account.audit.list(site.tenant_id)
    assert [one.type for one in entries][1] == "password.changed"
    assert OTHER not in str([one.details for one in entries])


async def test_sessions_end_with_the_password_though_redis_did_not_hear(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    """The row says so, whatever process changed it, and however it died then."""
    await sign_in(visitor)
    account = await site.accounts.authenticate(EMAIL, PASSWORD)
    assert account is not None
    await site.account.credentials.change(account, PASSWORD, OTHER, account.actor())
    assert (await visitor.get("/account")).status_code == 303


async def test_of_two_who_change_it_at_once_one_does(site: Site) -> None:
    account = await site.accounts.authenticate(EMAIL, PASSWORD)
    assert account is not None
    change = site.account.credentials.change
    came = await asyncio.gather(
        *(change(account, PASSWORD, f"{OTHER} {who}", account.actor()) for who in ("a", "b")),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in came) == ["NoneType", "WrongPassword"]
    winner = "a" if came[0] is None else "b"
    assert await site.accounts.authenticate(EMAIL, f"{OTHER} {winner}") is not None


async def test_nothing_of_an_account_is_kept_by_browsers(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for path in ("/account", "/account/second-factor", "/projects", "/sign-in/code", "/forgot", "/reset"):
        assert (await visitor.get(path)).headers["cache-control"] == "no-store"
    left = await act(visitor, "/account", "/sign-out")
    assert left.headers["clear-site-data"] == '"storage"'
    assert (await visitor.get("/account")).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("fields", "beside", "message"),
    [
        ({"old": "wrong password"}, "old", "Incorrect password"),
        ({"again": "something else"}, "password", "don't match"),
        ({"password": "short", "again": "short"}, "password", "must have 10 to"),
    ],
)
async def test_a_wrong_form_changes_no_password(
    site: Site, visitor: httpx.AsyncClient, fields: dict[str, str], beside: str, message: str
) -> None:
    await sign_in(visitor)
    refused = await change_password(visitor, **fields)
    assert refused.status_code == 422
    told = html.unescape(refused.text).partition(f'id="problem-{beside}">')[2].partition("</p>")[0]
    assert message in told
    assert PASSWORD not in refused.text
    assert await site.accounts.authenticate(EMAIL, PASSWORD) is not None


async def test_whoever_found_a_browser_open_cannot_guess_on(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for _ in range(lockout.MAX_PER_ACCOUNT):
        assert "Incorrect password" in (await change_password(visitor, old="wrong password")).text
    locked = await change_password(visitor)
    assert "Too many attempts" in locked.text
    assert await site.accounts.authenticate(EMAIL, PASSWORD) is not None


async def test_names_are_changed_and_escaped(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert (await act(visitor, "/account", "/account/name", name=f"Ada {XSS}")).status_code == 303
    for path in ("/account", "/members"):
        page = (await visitor.get(path)).text
        assert "<img src=x" not in page
        assert "Ada &lt;img" in page
    refused = await act(visitor, "/account", "/account/name", name="a\tb")
    assert refused.status_code == 422
    assert 'id="problem-name"' in refused.text


async def test_sessions_are_listed_and_ended(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    visitor.headers["user-agent"] = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
    async with site.visitor() as one, site.visitor() as two:
        one.headers["user-agent"] = f"Mozilla/5.0 (Windows NT 10.0) {XSS} Firefox/140.0"
        for elsewhere in (one, two):
            await sign_in(elsewhere)
        page = (await visitor.get("/account")).text
        assert "Firefox on Windows" in page
        assert "<img src=x" not in page
        assert len(handles(page)) == 2
        assert visitor.cookies["rootstock_console"] not in page
        for handle in handles((await one.get("/account")).text):  # of the others: the id opens nothing
            async with site.visitor() as thief:
                thief.cookies.set("rootstock_console", handle)
                assert (await thief.get("/account")).status_code == 303
        (hers,) = {*handles(page)} - {*handles((await one.get("/account")).text)}
        assert (await act(visitor, "/account", f"/account/sessions/{hers}/end")).status_code == 303
        assert (await one.get("/account")).status_code == 303
        assert (await two.get("/account")).status_code == 200
        assert (await act(visitor, "/account", "/account/sessions/end-others")).status_code == 303
        assert (await two.get("/account")).status_code == 303
    assert handles((await visitor.get("/account")).text) == []
    assert (await act(visitor, "/account", "/account/sessions/guess/end")).status_code == 404


async def test_nobody_ends_the_sessions_of_others(site: Site, visitor: httpx.AsyncClient) -> None:
    await site.accounts.create(site.tenant_id, "grace@acme.example", PASSWORD)
    await sign_in(visitor)
    async with site.visitor() as hers, site.visitor() as again:
        await sign_in(hers, "grace@acme.example")
        await sign_in(again, "grace@acme.example")
        (handle,) = handles((await hers.get("/account")).text)
        await act(visitor, "/account", f"/account/sessions/{handle}/end")
        assert (await again.get("/account")).status_code == 200


async def test_every_change_needs_the_pages_own_form(site: Site, visitor: httpx.AsyncClient) -> None:
    factor = "/account/second-factor"
    paths = ("/account/name", "/account/password", "/account/sessions/end-others")
    paths += tuple(f"{factor}/{verb}" for verb in ("begin", "confirm", "recovery", "remove"))
    for path in (*paths, "/account", factor):
        method = visitor.get if path in ("/account", factor) else visitor.post
        assert (await method(path)).headers["location"] == "/console/sign-in"
    await sign_in(visitor)
    for path in paths:
        assert (await visitor.post(path, data={"csrf_token": "guess"})).status_code == 403
        assert (await visitor.get(path)).status_code == 405


async def test_an_operator_has_an_account_and_none_of_whom_they_stand_in_for(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await site.accounts.create(OPERATOR_TENANT, "root@service.example", PASSWORD)
    await sign_in(visitor, "root@service.example")
    page = await visitor.get("/account")
    assert page.status_code == 200
    assert "root@service.example" in page.text
    assert (await change_password(visitor)).status_code == 303
    assert (await visitor.get("/account")).status_code == 200
    (entry,) = [
        one for one in await site.account.audit.list(OPERATOR_TENANT) if one.type == "password.changed"
    ]
    assert entry.actor["email"] == "root@service.example"
    (me,) = await site.account.members.list(site.tenant_id)
    store = SessionStore(site.redis)
    opened = await store.find(visitor.cookies["rootstock_console"])
    assert opened is not None
    taken = Impersonation(site.tenant_id, me.id, True, time.time() + 600, "to look at what they see")
    visitor.cookies.set("rootstock_console", (await store.impersonate(opened, taken)).id, path="/console")
    assert (await visitor.get("/keys")).status_code == 200
    assert (await visitor.get("/account")).status_code == 403
    assert (await visitor.get("/account/second-factor")).status_code == 403


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Safari/604.1",
            "Safari on iPhone",
        ),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0 Safari/537.36", "Chrome on Linux"),
        ("curl/8.5.0", "curl"),
        ("", "Unknown browser"),
    ],
)
def test_browsers_are_known_by_what_they_say(agent: str, words: str) -> None:
    assert agent_words(agent) == words
