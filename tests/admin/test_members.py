"""Members, their roles, and how somebody comes in by an invitation."""

from __future__ import annotations

import html
import re
from urllib.parse import urlsplit

import httpx
import pytest

from admin.web.sessions import GRACE_S
from tenants.actors import OPERATOR
from tests.admin.conftest import EMAIL, PASSWORD, Site, csrf_token, sign_in
from tests.admin.test_keys import XSS, act, as_role


async def invited(site: Site, visitor: httpx.AsyncClient, email: str, **fields: str) -> str:
    """The code of an invitation made on the page."""
    made = await act(
        visitor, "/members/invite", "/members/invite", email=email, **{"role": "developer", **fields}
    )
    assert made.status_code == 201, made.text
    found = re.search(r'id="link" value="([^"]+)"', made.text)
    assert found is not None
    link = urlsplit(found[1])
    assert (link.path, link.query) == ("/console/join", "")
    return link.fragment


async def join(visitor: httpx.AsyncClient, code: str, **fields: str) -> httpx.Response:
    given = {"token": code, "name": "Grace", "password": PASSWORD, "again": PASSWORD, **fields}
    return await visitor.post("/join", data={"csrf_token": csrf_token(await visitor.get("/join")), **given})


async def test_an_invited_person_chooses_a_password_and_is_in(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    project = await site.account.projects.default(site.tenant_id)
    token = await invited(site, visitor, "Grace@acme.example", **{f"project:{project.id}": "on"})
    page = (await visitor.get("/members")).text
    assert "grace@acme.example" in page
    assert "Pending" in page
    assert token not in page
    async with site.visitor() as guest:
        entered = await join(guest, token)
        assert (entered.status_code, entered.headers["location"]) == (303, "/console/")
        home = (await guest.get("/")).text
        assert "Welcome to ours. Your role is developer." in home
        assert "grace@acme.example" in home
    page = (await visitor.get("/members")).text
    assert "Waiting" not in page
    assert project.name in page.partition("grace@")[2]
    async with site.visitor() as again:
        used = await join(again, token)
        assert used.status_code == 422
        assert "invalid or has expired" in used.text
        assert (await sign_in(again, "grace@acme.example")).status_code == 303


@pytest.mark.parametrize(
    ("fields", "beside", "message"),
    [
        ({"again": "something else"}, "password", "don't match"),
        ({"password": "short", "again": "short"}, "password", "must have 10 to"),
        ({"token": "rs_invite_guess"}, "token", "invalid or has expired"),
        ({"name": "a\tb"}, "name", "printable"),
    ],
)
async def test_a_wrong_form_keeps_the_invitation(
    site: Site, visitor: httpx.AsyncClient, fields: dict[str, str], beside: str, message: str
) -> None:
    made = await site.account.invites.create(site.tenant_id, "grace@acme.example", "viewer", OPERATOR)
    refused = await join(visitor, made.token, **fields)
    assert refused.status_code == 422
    told = html.unescape(refused.text).partition(f'id="problem-{beside}">')[2].partition("</p>")[0]
    assert message in told
    assert PASSWORD not in refused.text
    assert (await join(visitor, f"http://127.0.0.1/console/join#{made.token}")).status_code == 303


async def test_joining_needs_the_pages_own_form(site: Site, visitor: httpx.AsyncClient) -> None:
    made = await site.account.invites.create(site.tenant_id, "grace@acme.example", "viewer", OPERATOR)
    given = {"token": made.token, "password": PASSWORD, "again": PASSWORD}
    await visitor.get("/join")
    assert (await visitor.post("/join", data={"csrf_token": "guess", **given})).status_code == 403
    async with site.visitor("http://rootstock.example") as exposed:
        assert (await exposed.get("/join")).status_code == 403


async def test_inviting_tells_what_is_wrong(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    form = "/members/invite"
    for fields, status, message in (
        ({"email": "nobody", "role": "viewer"}, 422, "is not an email address"),
        ({"email": "a@b.example", "role": "king"}, 422, "must be one of"),
        ({"email": EMAIL, "role": "viewer"}, 409, "already exists"),
        ({"email": "a@b.example", "role": "viewer", "project:proj_x": "on"}, 404, "project"),
    ):
        refused = await act(visitor, form, form, **fields)
        assert refused.status_code == status
        assert message in html.unescape(refused.text)
        assert f'value="{fields["email"]}"' in refused.text


async def test_roles_are_changed_and_people_removed(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    her = await site.accounts.create(
        site.tenant_id, "grace@acme.example", PASSWORD, role="developer", name=f"Grace {XSS}"
    )
    here = f"/members/{her.user_id}"
    assert re.search(r'value="developer" checked', (await visitor.get(here)).text)
    assert (await act(visitor, "/members", f"{here}/role", role="admin")).status_code == 303
    page = (await visitor.get("/members")).text
    assert "grace@acme.example is now admin." in page
    assert "<img src=x" not in page
    assert (await act(visitor, "/members", f"{here}/role", role="king")).status_code == 400
    async with site.visitor() as hers:
        await sign_in(hers, "grace@acme.example")
        assert (await act(visitor, "/members", f"{here}/remove")).status_code == 303
        assert (await hers.get("/")).headers["location"] == "/console/sign-in"
    assert "was removed" in (await visitor.get("/members")).text


async def test_somebody_is_shut_out_and_let_in(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    her = await site.accounts.create(site.tenant_id, "grace@acme.example", PASSWORD, role="developer")
    here = f"/members/{her.user_id}"
    async with site.visitor() as hers:
        await sign_in(hers, "grace@acme.example")
        assert (await act(visitor, here, f"{here}/disable")).headers["location"] == f"/console{here}"
        assert (await hers.get("/")).headers["location"] == "/console/sign-in"
    page = (await visitor.get(here)).text
    assert "Suspended since" in page
    assert "grace@acme.example was suspended" in page
    assert f"{here}/password" not in page, "no way in is made for somebody who is not let in"
    assert "Suspended" in (await visitor.get("/members")).text
    assert (await act(visitor, here, f"{here}/enable")).status_code == 303
    assert "was reinstated" in (await visitor.get(here)).text
    async with site.visitor() as again:
        assert (await sign_in(again, "grace@acme.example")).status_code == 303


async def test_who_is_shut_out_is_told_what_a_wrong_password_is(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    her = await site.accounts.create(site.tenant_id, "grace@acme.example", PASSWORD, role="developer")
    await site.account.members.disable(site.tenant_id, her.user_id, OPERATOR)

    async def told(password: str) -> tuple[int, str, list[str]]:
        async with site.visitor() as one:
            answer = await sign_in(one, "grace@acme.example", password)
            text = re.sub(r'name="csrf_token" value="[^"]+"', "", answer.text)
            return answer.status_code, text, sorted(answer.headers)

    assert await told(PASSWORD) == await told("a wrong password")
    assert (await told(PASSWORD))[0] == 401


async def test_an_owner_is_not_shut_out_by_an_admin_nor_by_themselves(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    (owner,) = await site.account.members.list(site.tenant_id)
    await site.accounts.create(site.tenant_id, "second@acme.example", PASSWORD)
    await sign_in(visitor)
    here = f"/members/{owner.id}"
    assert f"{here}/disable" not in (await visitor.get(here)).text
    refused = await act(visitor, here, f"{here}/disable")
    assert refused.status_code == 409
    visitor.cookies.clear()
    await as_role(site, visitor, "admin")
    assert f"{here}/disable" not in (await visitor.get(here)).text
    assert (await act(visitor, here, f"{here}/disable")).status_code == 403


async def test_the_last_owner_stays(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    (me,) = await site.account.members.list(site.tenant_id)
    for verb, fields in (("remove", {}), ("role", {"role": "viewer"})):
        refused = await act(visitor, "/members", f"/members/{me.id}/{verb}", **fields)
        assert refused.status_code == 409
        assert "owner" in refused.text


async def test_withdrawing_makes_the_link_worthless(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    token = await invited(site, visitor, "grace@acme.example")
    (invite,) = await site.account.invites.list(site.tenant_id)
    await act(visitor, "/members", f"/members/invites/{invite.id}/withdraw")
    assert "was revoked" in (await visitor.get("/members")).text
    async with site.visitor() as guest:
        assert (await join(guest, token)).status_code == 422


async def test_who_may_not_change_members_sees_them(site: Site, visitor: httpx.AsyncClient) -> None:
    (owner,) = await site.account.members.list(site.tenant_id)
    await as_role(site, visitor, "viewer")
    page = await visitor.get("/members")
    assert EMAIL in page.text
    assert "Manage" not in page.text
    assert (await visitor.get(f"/members/{owner.id}")).status_code == 403
    assert "/members/invite" not in page.text
    token = csrf_token(page)
    for path in ("/members/invite", f"/members/{owner.id}/role", f"/members/{owner.id}/remove"):
        refused = await visitor.post(
            path, data={"csrf_token": token, "email": "x@y.example", "role": "owner"}
        )
        assert refused.status_code == 403
    visitor.cookies.clear()
    await as_role(site, visitor, "admin")
    refused = await act(visitor, "/members", f"/members/{owner.id}/role", role="viewer")
    assert refused.status_code == 403
    assert "owner" in refused.text
    theirs = await site.accounts.create(site.place.tenants[1], "far@birch.example", PASSWORD)
    assert (await visitor.get(f"/members/{theirs.user_id}")).status_code == 404
    assert (await act(visitor, "/members", f"/members/{theirs.user_id}/remove")).status_code == 404


async def test_another_role_comes_with_another_session_id(site: Site, visitor: httpx.AsyncClient) -> None:
    """Also where the change was not made here."""
    her = await site.accounts.create(site.tenant_id, "grace@acme.example", PASSWORD, role="viewer")
    await sign_in(visitor, "grace@acme.example")
    before = visitor.cookies["rootstock_console"]
    await visitor.get("/members")
    assert visitor.cookies["rootstock_console"] == before
    await site.account.members.update(site.tenant_id, her.user_id, OPERATOR, role="admin")
    assert "Invite member" in (await visitor.get("/members")).text
    after = visitor.cookies["rootstock_console"]
    assert after != before
    await visitor.get("/members")
    assert visitor.cookies["rootstock_console"] == after
    left = [await site.redis.ttl(key) async for key in site.redis.scan_iter("rootstock:console:session:*")]
    assert sorted(left)[0] <= GRACE_S  # the old id dies in seconds
