"""Keys made, shown once, rotated and revoked in the console; and who may."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from api.organization.scopes import SCOPES
from tenants.actors import OPERATOR
from tenants.errors import InvalidApiKey
from tenants.keys import well_formed
from tenants.resolver import KeyResolver
from tenants.roles import Role
from tests.admin.conftest import PASSWORD, SECRET, Site, csrf_token, sign_in

XSS = "<img src=x onerror=alert(1)>\"'"


async def act(visitor: httpx.AsyncClient, page: str, path: str, **fields: str) -> httpx.Response:
    token = csrf_token(await visitor.get(page))
    return await visitor.post(path, data={"csrf_token": token, **fields})


def secret_of(page: httpx.Response) -> str:
    found = re.search(r'id="secret" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return found[1]


async def as_role(site: Site, visitor: httpx.AsyncClient, role: Role) -> None:
    email = f"{role}@acme.example"
    await site.accounts.create(site.tenant_id, email, PASSWORD, role=role)
    await sign_in(visitor, email)


async def test_a_key_is_shown_once_and_may_what_was_asked(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    project = await site.account.projects.create(site.tenant_id, "Support", OPERATOR)
    day = (datetime.now(UTC) + timedelta(days=30)).date()
    fields = {
        "kind": "inference",
        "name": "support bot",
        "project": project.id,
        "owner": "me",
        "all_scopes": "no",
        "scope:model.request": "on",
        "models": "sapling:pirate\nsapling:*",
        "networks": "10.0.0.0/8, 203.0.113.7",
        "origins": "https://app.example\nhttp://localhost:3000",
        "expires_at": day.isoformat(),
    }
    made = await act(visitor, "/keys/new", "/keys", **fields)
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    plaintext = secret_of(made)
    assert well_formed(plaintext)
    caller = await KeyResolver(site.place.database, site.redis, SECRET).resolve(plaintext, "10.1.2.3")
    assert caller.project_id == project.id
    assert caller.scopes == {"model.request"}
    assert caller.models == {"sapling:pirate", "sapling:*"}
    listed = (await visitor.get("/keys")).text
    shown = (await visitor.get(f"/keys/{caller.key_id}")).text
    assert plaintext not in listed + shown
    for sample in (f"Bearer {plaintext}", f"api_key=&#34;{plaintext}&#34;", f"apiKey: &#34;{plaintext}&#34;"):
        assert sample in made.text
    for text in ("support bot", "Support"):
        assert text in listed
    assert caller.origins == {"https://app.example", "http://localhost:3000"}
    for text in (
        "10.0.0.0/8",
        "203.0.113.7/32",
        "sapling:pirate",
        "Send requests to models",
        day.isoformat(),
    ):
        assert text in shown
    assert "<code>https://app.example</code>" in shown


@pytest.mark.parametrize(
    ("fields", "beside", "message"),
    [
        ({"name": " "}, "name", "must have 1 to 100 printable characters"),
        ({"networks": "everywhere"}, "networks", "is not a network or address"),
        ({"origins": "app.example"}, "origins", "is not an origin"),
        ({"models": "NO/NAME"}, "models", "is not a model name"),
        ({"expires_at": "2001-01-01"}, "expires_at", "Choose today or a later date"),
        ({"expires_at": "soon"}, "expires_at", "Enter a date such as"),
        ({"all_scopes": "no"}, "scopes", "Choose at least one"),
        ({"all_scopes": "no", "scope:usage.read": "on"}, "scopes", "available for this key type"),
        ({"project": "proj_absent"}, "form", "project"),
    ],
)
async def test_what_is_wrong_is_told_beside_its_field(
    site: Site, visitor: httpx.AsyncClient, fields: dict[str, str], beside: str, message: str
) -> None:
    await sign_in(visitor)
    given = {"kind": "inference", "name": "kept name", **fields}
    refused = await act(visitor, "/keys/new", "/keys", **given)
    assert 400 <= refused.status_code < 500
    page = html.unescape(refused.text)
    where = 'role="alert">' if beside == "form" else f'id="problem-{beside}">'
    told = page.split(where)[-1].split("</p>")[0]
    assert message in told
    assert ('value="kept name"' in page) == ("name" not in fields)
    assert not await site.keys.list(site.tenant_id)


async def test_rotation_leaves_the_old_key_its_grace(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    old = await site.keys.create(site.tenant_id, "robot", OPERATOR)
    here = f"/keys/{old.id}"
    assert (await act(visitor, here, f"{here}/rotate", grace="12")).status_code == 400
    made = await act(visitor, here, f"{here}/rotate", grace="3600")
    fresh = secret_of(made)
    resolver = KeyResolver(site.place.database, site.redis, SECRET)
    assert (await resolver.resolve(fresh)).key_id != old.id
    assert (await resolver.resolve(old.plaintext)).key_id == old.id
    page = (await visitor.get(here)).text
    assert "Rotating" in page
    assert "View the new key" in page
    assert 'popovertarget="rotate"' not in page
    again = await act(visitor, here, f"{here}/rotate", grace="3600")
    assert again.status_code == 409
    assert "already rotated" in again.text


async def test_revoking_tells_so_once(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await site.keys.create(site.tenant_id, f"robot {XSS}", OPERATOR)
    here = f"/keys/{made.id}"
    assert (await act(visitor, here, f"{here}/revoke")).headers["location"] == "/console/keys"
    with pytest.raises(InvalidApiKey):
        await KeyResolver(site.place.database, site.redis, SECRET).resolve(made.plaintext)
    told = (await visitor.get("/keys")).text
    assert "was revoked" in told
    assert "<img src=x" not in told
    assert "was revoked" not in (await visitor.get("/keys")).text
    assert "robot" not in (await visitor.get("/keys")).text.partition("<main")[2]
    assert "Revoked" in (await visitor.get("/keys?show=all")).text


async def test_the_list_has_pages(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.keys.page.PAGE", 2)
    await sign_in(visitor)
    for name in ("first", "second", "third"):
        await site.keys.create(site.tenant_id, name, OPERATOR)
    page = (await visitor.get("/keys")).text
    assert ">third</a>" in page
    assert ">first</a>" not in page
    older = re.search(r'href="/console(/keys\?after=key_[0-9a-zA-Z]+)"', page)
    assert older is not None
    assert ">first</a>" in (await visitor.get(older[1])).text
    assert (await visitor.get("/keys?after='")).status_code == 404


async def test_another_tenants_keys_are_not_there(site: Site, visitor: httpx.AsyncClient) -> None:
    theirs = await site.keys.create(site.place.tenants[1], "theirs", OPERATOR)
    await sign_in(visitor)
    assert (await visitor.get(f"/keys/{theirs.id}")).status_code == 404
    for verb in ("rotate", "revoke"):
        refused = await act(visitor, "/keys/new", f"/keys/{theirs.id}/{verb}", grace="0")
        assert refused.status_code == 404
    assert (await site.keys.get(site.place.tenants[1], theirs.id))[0].revoked_at is None


async def test_roles_see_and_do_what_they_may(site: Site, visitor: httpx.AsyncClient) -> None:
    made = await site.keys.create(site.tenant_id, "robot", OPERATOR)
    await as_role(site, visitor, "developer")
    listed = await visitor.get("/keys")
    assert "robot" in listed.text
    assert "/keys/new" not in listed.text
    token = csrf_token(listed)
    for path in ("/keys", f"/keys/{made.id}/rotate", f"/keys/{made.id}/revoke"):
        refused = await visitor.post(path, data={"csrf_token": token, "name": "mine", "grace": "0"})
        assert refused.status_code == 403
        assert "Your role (developer)" in refused.text
    assert (await visitor.get("/keys/new")).status_code == 403
    visitor.cookies.clear()
    await as_role(site, visitor, "billing")
    assert (await visitor.get("/keys")).status_code == 403
    home = (await visitor.get("/")).text
    assert 'href="/console/keys"' not in home
    assert 'href="/console/members"' in home


async def test_nobody_passes_on_more_than_they_may(site: Site, visitor: httpx.AsyncClient) -> None:
    await as_role(site, visitor, "admin")
    form = (await visitor.get("/keys/new?kind=admin")).text
    assert 'name="scope:organization.keys.write"' in form
    assert 'name="scope:organization.billing.write"' not in form
    assert 'name="all_scopes" value="yes"' not in form
    taken = {"kind": "admin", "name": "mine", "all_scopes": "no", "scope:organization.billing.write": "on"}
    refused = await act(visitor, "/keys/new", "/keys", **taken)
    assert refused.status_code == 403
    assert "do not hold" in refused.text
    given = {"kind": "admin", "name": "mine", "all_scopes": "no", "scope:organization.keys.read": "on"}
    assert (await act(visitor, "/keys/new", "/keys", **given)).status_code == 201


async def test_every_scope_can_be_chosen(visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for kind, scopes in SCOPES.items():
        form = (await visitor.get(f"/keys/new?kind={kind}")).text
        assert set(re.findall(r'name="scope:([^"]+)"', form)) == scopes
    assert (await visitor.get("/keys/new?kind=master")).status_code == 404


async def test_forms_without_their_token_make_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    refused = await visitor.post("/keys", data={"csrf_token": "guess", "name": "planted"})
    assert refused.status_code == 403
    assert not await site.keys.list(site.tenant_id)


async def test_a_keys_terms_are_changed_and_its_text_stays(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = secret_of(await act(visitor, "/keys/new", "/keys", kind="inference", name="bot", all_scopes="yes"))
    ((row, *_),) = await site.keys.list(site.tenant_id)
    here = f"/keys/{row.id}"
    form = (await visitor.get(f"{here}/edit")).text
    assert 'value="bot"' in form
    day = (datetime.now(UTC) + timedelta(days=3)).date().isoformat()
    fields = {
        "name": f"bot {XSS}",
        "all_scopes": "no",
        "scope:model.request": "on",
        "models": "sapling",
        "networks": "10.0.0.0/8",
        "origins": "https://app.example",
        "expires_at": day,
    }
    assert (await act(visitor, f"{here}/edit", here, **fields)).headers["location"] == f"/console{here}"
    page = (await visitor.get(here)).text
    assert "<img src=x" not in page
    for text in ("10.0.0.0/8", "Send requests to models", day):
        assert text in page
    resolver = KeyResolver(site.place.database, site.redis, SECRET)
    caller = await resolver.resolve(made, "10.1.2.3")
    assert (caller.scopes, caller.models) == ({"model.request"}, {"sapling"})
    (entry, *_) = await site.account.audit.list(site.tenant_id)
    assert (entry.type, {*entry.details}) == (
        "api_key.updated",
        {"name", "scopes", "models", "networks", "origins", "expires_at"},
    )
    # What is as it was is not written again; and all of it can be taken back.
    assert (await act(visitor, f"{here}/edit", here, **(fields | {"name": "bot"}))).status_code == 303
    (entry, *_) = await site.account.audit.list(site.tenant_id)
    assert {*entry.details} == {"name"}
    empty = dict.fromkeys(("models", "networks", "origins", "expires_at"), "")
    freed = {"name": "bot", "all_scopes": "yes"} | empty
    assert (await act(visitor, f"{here}/edit", here, **freed)).status_code == 303
    row = (await site.keys.get(site.tenant_id, row.id))[0]
    assert (row.scopes, row.models, row.networks, row.origins, row.expires_at) == ([], [], [], [], None)


@pytest.mark.parametrize(
    ("fields", "beside", "message"),
    [
        ({"name": " "}, "name", "must have 1 to 100 printable characters"),
        ({"networks": "everywhere"}, "networks", "is not a network or address"),
        ({"expires_at": "2001-01-01"}, "expires_at", "Choose today or a later date"),
        ({"all_scopes": "no"}, "scopes", "Choose at least one"),
        ({"all_scopes": "no", "scope:billing.write": "on"}, "scopes", "available for this key type"),
    ],
)
async def test_wrong_terms_change_nothing(
    site: Site, visitor: httpx.AsyncClient, fields: dict[str, str], beside: str, message: str
) -> None:
    await sign_in(visitor)
    key = await site.keys.create(site.tenant_id, "bot", OPERATOR)
    refused = await act(visitor, "/keys", f"/keys/{key.id}", **({"name": "other"} | fields))
    assert refused.status_code == 422
    told = html.unescape(refused.text).partition(f'id="problem-{beside}">')[2].partition("</p>")[0]
    assert message in told
    assert (await site.keys.get(site.tenant_id, key.id))[0].name == "bot"


async def test_keys_that_are_over_or_of_others_are_not_changed(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    key = await site.keys.create(site.tenant_id, "bot", OPERATOR)
    theirs = await site.keys.create(site.place.tenants[1], "theirs", OPERATOR)
    await as_role(site, visitor, "developer")
    assert (await visitor.get(f"/keys/{key.id}/edit")).status_code == 403
    assert (await act(visitor, "/keys", f"/keys/{key.id}", name="mine")).status_code == 403
    visitor.cookies.clear()
    await sign_in(visitor)
    assert (await visitor.get(f"/keys/{theirs.id}/edit")).status_code == 404
    assert (await act(visitor, "/keys", f"/keys/{theirs.id}", name="mine")).status_code == 404
    rotated = await site.keys.rotate(site.tenant_id, key.id, OPERATOR)
    later = (datetime.now(UTC) + timedelta(days=300)).date().isoformat()
    refused = await act(visitor, "/keys", f"/keys/{key.id}", name="bot", expires_at=later)
    assert refused.status_code == 409
    await site.keys.revoke(site.tenant_id, rotated.id, OPERATOR)
    assert (await act(visitor, "/keys", f"/keys/{rotated.id}", name="x")).status_code == 409
