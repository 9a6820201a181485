"""Service accounts made, listed, given keys and deleted in the console; and who may."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tenants.actors import OPERATOR
from tenants.errors import InvalidApiKey, ServiceAccountNotFound
from tenants.resolver import KeyResolver
from tests.admin.conftest import SECRET, Site, csrf_token, sign_in
from tests.admin.test_keys import XSS, act, as_role, secret_of


async def path_of(site: Site) -> str:
    project = await site.account.projects.default(site.tenant_id)
    return f"/projects/{project.id}/service-accounts"


async def test_one_is_made_with_a_key_that_is_shown_once(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    every = await path_of(site)
    day = (datetime.now(UTC) + timedelta(days=30)).date()
    made = await act(visitor, f"{every}/new", every, name=f"nightly {XSS}", expires_at=day.isoformat())
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    assert "<img src=x" not in made.text
    plaintext = secret_of(made)
    resolver = KeyResolver(site.place.database, site.redis, SECRET)
    caller = await resolver.resolve(plaintext)
    [(key, _, account)] = await site.keys.list(site.tenant_id, service_account_id=caller.user_id)
    assert account is not None
    assert (account.name, account.id) == (f"nightly {XSS}", caller.user_id)
    assert key.expires_at is not None
    assert key.expires_at.date() == day
    here = f"{every}/{account.id}"
    for page in (here, every, every.removesuffix("/service-accounts")):
        shown = (await visitor.get(page)).text
        assert plaintext not in shown
        assert "<img src=x" not in shown
        assert f'href="/console{here}"' in shown or page == here
    assert re.search(r'data-label="API keys">1<', (await visitor.get(every)).text)
    again = await act(visitor, here, f"{here}/keys", key_name="staging")
    assert again.status_code == 201
    assert (await resolver.resolve(secret_of(again))).user_id == account.id
    assert "staging" in (await visitor.get(here)).text
    assert re.search(r'data-label="API keys">2<', (await visitor.get(every)).text)
    assert (await act(visitor, here, f"{here}/name", name="hourly")).status_code == 303
    assert "renamed to hourly" in (await visitor.get(here)).text
    assert (await act(visitor, here, f"{here}/delete")).headers["location"].endswith(every.rpartition("/")[0])
    assert (await visitor.get(here)).status_code == 404
    fresh = KeyResolver(site.place.database, site.redis, SECRET)
    for one in (plaintext, secret_of(again)):
        with pytest.raises(InvalidApiKey):
            await fresh.resolve(one)


async def test_its_keys_are_revoked_one_by_one(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    every = await path_of(site)
    project_id = every.split("/")[2]
    account = await site.account.service_accounts.create(site.tenant_id, project_id, "robot", OPERATOR)
    here = f"{every}/{account.id}"
    assert "No active keys" in (await visitor.get(here)).text
    one, other = [
        await site.keys.create(site.tenant_id, name, OPERATOR, service_account_id=account.id)
        for name in ("first", "second")
    ]
    page = (await visitor.get(here)).text
    assert f"/keys/{one.id}/revoke" in page
    assert (await act(visitor, here, f"/keys/{one.id}/revoke")).status_code == 303
    page = (await visitor.get(here)).text
    assert f"/keys/{one.id}/revoke" not in page
    assert f"/keys/{other.id}/revoke" in page


async def test_what_is_wrong_stands_beside_its_field_and_makes_nothing(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    every = await path_of(site)
    project_id = every.split("/")[2]
    account = await site.account.service_accounts.create(site.tenant_id, project_id, "robot", OPERATOR)
    here = f"{every}/{account.id}"
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    for page, path, fields, beside, message in (
        (f"{every}/new", every, {"name": " "}, "name", "printable"),
        (f"{every}/new", every, {"name": "a", "expires_at": "soon"}, "expires_at", "2030-12-31"),
        (
            f"{every}/new",
            every,
            {"name": "a", "expires_at": yesterday},
            "expires_at",
            "Choose today or a later date",
        ),
        (here, f"{here}/name", {"name": "\t"}, "name", "printable"),
        (here, f"{here}/keys", {"key_name": " "}, "key_name", "printable"),
        (
            here,
            f"{here}/keys",
            {"key_name": "a", "expires_at": yesterday},
            "expires_at",
            "Choose today or a later date",
        ),
    ):
        refused = await act(visitor, page, path, **fields)
        assert refused.status_code == 422, (path, fields)
        told = html.unescape(refused.text).partition(f'id="problem-{beside}">')[2].partition("</p>")[0]
        assert message in told, (path, fields)
    [left] = await site.account.service_accounts.list(site.tenant_id, project_id)
    assert left.name == "robot"
    assert await site.keys.list(site.tenant_id, service_account_id=account.id) == []


async def test_of_an_archived_project_there_is_nothing_to_make(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    project = await site.account.projects.create(site.tenant_id, "Old", OPERATOR)
    await site.account.projects.archive(site.tenant_id, project.id, OPERATOR)
    every = f"/projects/{project.id}/service-accounts"
    assert "Deleted with the project" in (await visitor.get(every)).text
    assert (await act(visitor, "/projects", every, name="late")).status_code == 409


async def test_who_may_and_whose_they_are(site: Site, visitor: httpx.AsyncClient) -> None:
    every = await path_of(site)
    project_id = every.split("/")[2]
    account = await site.account.service_accounts.create(site.tenant_id, project_id, "robot", OPERATOR)
    here = f"{every}/{account.id}"
    await as_role(site, visitor, "viewer")
    page = await visitor.get(here)
    assert page.status_code == 200
    assert "Delete service account" not in page.text
    assert "Create key" not in page.text
    assert (await visitor.get(f"{every}/new")).status_code == 403
    changes = (every, f"{here}/name", f"{here}/keys", f"{here}/delete")
    for path in changes:
        refused = await visitor.post(path, data={"csrf_token": csrf_token(page), "name": "x"})
        assert refused.status_code == 403, path
    visitor.cookies.clear()
    await sign_in(visitor)
    other = site.place.tenants[1]
    theirs = await site.account.projects.default(other)
    foreign = await site.account.service_accounts.create(other, theirs.id, "theirs", OPERATOR)
    strange = f"/projects/{theirs.id}/service-accounts"
    for path in (strange, f"{strange}/new", f"{strange}/{foreign.id}", f"{every}/{foreign.id}"):
        assert (await visitor.get(path)).status_code == 404, path
    for path in (strange, *(f"{every}/{foreign.id}/{verb}" for verb in ("name", "keys", "delete"))):
        answer = await act(visitor, "/projects", path, name="x", key_name="x")
        assert answer.status_code == 404, path
    assert (await site.account.service_accounts.get(other, theirs.id, foreign.id)).name == "theirs"
    with pytest.raises(ServiceAccountNotFound):
        await site.account.service_accounts.get(site.tenant_id, project_id, foreign.id)
