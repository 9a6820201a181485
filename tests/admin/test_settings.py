"""The settings of an organization: storing nothing, who may decide it, and that it is audited."""

from __future__ import annotations

import httpx
import pytest

from tenants.audit.repository import AuditFilter
from tenants.roles import Role
from tests.admin.conftest import Site, csrf_token, sign_in
from tests.admin.test_keys import as_role

PATH = "/settings/data-retention"


async def choose(visitor: httpx.AsyncClient, stores_nothing: str) -> httpx.Response:
    token = csrf_token(await visitor.get("/settings"))
    return await visitor.post(PATH, data={"csrf_token": token, "stores_nothing": stores_nothing})


async def test_an_owner_has_nothing_stored_and_that_is_audited(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    before = (await visitor.get("/settings")).text
    assert "Stored on request" in before
    assert "expire after 30 days" in before
    assert "are deleted within minutes and can't be restored" in before

    for chosen, stores_nothing, words in (
        ("yes", True, "Nothing is stored from now on."),
        ("no", False, "Stored on request"),
    ):
        assert (await choose(visitor, chosen)).status_code == 303
        assert words in (await visitor.get("/settings")).text
        assert await site.account.data_retention.stores_nothing(site.tenant_id) is stores_nothing

    assert (await choose(visitor, "perhaps")).status_code == 400
    found = await site.account.audit.list(site.tenant_id, AuditFilter(types=["organization.updated"]))
    assert [one.details for one in found] == [{"stores_nothing": False}, {"stores_nothing": True}]


@pytest.mark.parametrize("role", ["admin", "viewer"])
async def test_others_only_see_it(site: Site, visitor: httpx.AsyncClient, role: Role) -> None:
    await as_role(site, visitor, role)
    assert "Only owners can change this." in (await visitor.get("/settings")).text

    refused = await choose(visitor, "yes")

    assert refused.status_code == 403
    assert f"Your role ({role})" in refused.text
    assert not await site.account.data_retention.stores_nothing(site.tenant_id)
