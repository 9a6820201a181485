"""The provisioning page: tokens that are shown once, roles of groups, and who may change them."""

from __future__ import annotations

import re

import httpx
import pytest

from tenants.actors import OPERATOR
from tenants.provisioning.profiles import GroupProfile
from tenants.roles import Role
from tests.admin.conftest import Site, csrf_token, sign_in
from tests.admin.test_keys import as_role

PATH = "/settings/provisioning"


async def submit(visitor: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    token = csrf_token(await visitor.get(PATH))
    return await visitor.post(f"{PATH}{path}", data={"csrf_token": token, **fields})


async def test_an_owner_creates_and_revokes_a_token(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert "No tokens yet." in (await visitor.get(PATH)).text
    assert (await submit(visitor, "/tokens", name=" ")).status_code == 422

    made = await submit(visitor, "/tokens", name="Okta")

    assert made.status_code == 201
    found = re.search(r'value="(rs_scim_\w+)"', made.text)
    assert found is not None
    token = await site.account.scim_tokens.authenticate(found[1])
    page = (await visitor.get(PATH)).text
    assert "Okta" in page
    assert found[1] not in page
    assert "/scim/v2" in page
    assert (await submit(visitor, f"/tokens/{token.id}/revoke")).status_code == 303
    assert "Token revoked." in (await visitor.get(PATH)).text
    assert await site.account.scim_tokens.list(site.tenant_id) == []


async def test_an_owner_gives_a_group_a_role(site: Site, visitor: httpx.AsyncClient) -> None:
    groups = site.account.provisioned_groups
    group = await groups.create(site.tenant_id, GroupProfile("Makers"), OPERATOR)
    await sign_in(visitor)
    for role, stored in (("developer", "developer"), ("none", None)):
        assert (await submit(visitor, f"/groups/{group.id}", role=role)).status_code == 303
        assert (await groups.get(site.tenant_id, group.id)).role == stored
        assert "Makers" in (await visitor.get(PATH)).text
    assert (await submit(visitor, f"/groups/{group.id}", role="emperor")).status_code == 400


@pytest.mark.parametrize("role", ["admin", "viewer"])
async def test_others_only_see_it(site: Site, visitor: httpx.AsyncClient, role: Role) -> None:
    group = await site.account.provisioned_groups.create(site.tenant_id, GroupProfile("Makers"), OPERATOR)
    await as_role(site, visitor, role)
    assert "Only owners can create and revoke tokens." in (await visitor.get(PATH)).text
    for path, fields in (("/tokens", {"name": "mine"}), (f"/groups/{group.id}", {"role": "admin"})):
        assert (await submit(visitor, path, **fields)).status_code == 403
    assert await site.account.scim_tokens.list(site.tenant_id) == []
