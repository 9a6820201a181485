"""Operators for tests of their pages."""

from __future__ import annotations

import httpx

from tenants.operators.service import OperatorAccounts
from tests.admin.conftest import PASSWORD, Site, csrf_token, sign_in

OPERATOR_EMAIL = "op@service.example"


async def operate(
    site: Site, visitor: httpx.AsyncClient, email: str = OPERATOR_EMAIL, *, looks_on: bool = False
) -> None:
    """Make an operator and sign them in."""
    await OperatorAccounts(site.place.database, site.redis).add(email, PASSWORD, looks_on=looks_on)
    entered = await sign_in(visitor, email)
    assert entered.status_code == 303


async def post(visitor: httpx.AsyncClient, page: str, path: str, **fields: str) -> httpx.Response:
    """The form of a page."""
    token = csrf_token(await visitor.get(page))
    return await visitor.post(path, data={"csrf_token": token, **fields})


async def enter(
    site: Site, visitor: httpx.AsyncClient, access: str = "full", **fields: str
) -> httpx.Response:
    """Open the first tenant's console in its first member's place."""
    (member, *_) = await site.account.members.list(site.tenant_id, newest_first=False)
    here = f"/operator/tenants/{site.tenant_id}"
    given = {"user": member.id, "access": access, "minutes": "15", "reason": "ticket 4711", **fields}
    return await post(visitor, here, f"{here}/open", **given)
