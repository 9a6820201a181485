"""The workload identity pages: issuers and rules, and who may change them."""

from __future__ import annotations

import json

import httpx
import pytest
from joserfc.jwk import OctKey, RSAKey

from tenants.actors import OPERATOR
from tenants.roles import Role
from tests.admin.conftest import Site, sign_in
from tests.admin.test_keys import as_role
from tests.admin.test_single_sign_on import token_of

PATH = "/settings/workload-identity"
ISSUER = {
    "name": "GitHub",
    "issuer": "https://token.actions.githubusercontent.com",
    "audience": "https://rootstock.example",
    "token_minutes": "15",
    "single_use": "on",
}


async def submit(visitor: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    return await visitor.post(f"{PATH}{path}", data={"csrf_token": await token_of(visitor), **fields})


async def test_an_issuer_and_its_rules(site: Site, visitor: httpx.AsyncClient) -> None:
    tenant, account = site.tenant_id, site.account
    await sign_in(visitor)
    assert "Keys without secrets" in (await visitor.get(PATH)).text
    made = await submit(visitor, "", **ISSUER)
    assert made.status_code == 303
    (issuer,) = await account.workload_identities.providers(tenant)
    assert (issuer.token_seconds, issuer.is_single_use, issuer.discovery_url) == (900, True, None)
    here = f"/{issuer.id}"
    assert made.headers["location"] == f"/console{PATH}{here}"
    empty = (await visitor.get(f"{PATH}{here}")).text
    assert "none of the issuer" in empty
    assert "Create one in a project" in empty

    project = await account.projects.create(tenant, "Support <b>", OPERATOR)
    robot = await account.service_accounts.create(tenant, project.id, "robot <i>", OPERATOR)
    rule = {
        "account": f"{project.id}/{robot.id}",
        "attribute_matchers": "sub = repo:acme/app:ref=refs/heads/main\r\n\r\nrepository_owner=acme*",
        "all_scopes": "no",
        "scope:model.request": "on",
    }
    assert (await submit(visitor, f"{here}/rules", **rule)).status_code == 303
    (stored,) = await account.workload_identities.rules(tenant, issuer.id)
    assert stored.matchers == {"sub": "repo:acme/app:ref=refs/heads/main", "repository_owner": "acme*"}
    assert stored.scopes == ["model.request"]
    page = (await visitor.get(f"{PATH}{here}")).text
    assert "repository_owner=acme*" in page
    assert "robot &lt;i&gt;" in page
    for changes, words in (
        ({"attribute_matchers": "sub"}, "a claim, ="),
        ({"attribute_matchers": ""}, "1 to 20 conditions"),
        ({"attribute_matchers": "sub=a\nsub=b"}, "two conditions"),
        ({"attribute_matchers": "sub=a*b"}, "at its end only"),
        ({"scope:model.request": "", "scope:admin": "on"}, "permission"),
        ({"account": f"{project.id}/svc_acct_1"}, "service account"),
        ({"account": ""}, "service account"),
    ):
        refused = await submit(visitor, f"{here}/rules", **(rule | changes))
        assert refused.status_code in (404, 422), changes
        assert words in refused.text, changes
    assert (await submit(visitor, f"{here}/rules/{stored.id}/delete")).status_code == 303
    assert await account.workload_identities.rules(tenant, issuer.id) == []
    for enabled in ("no", "yes"):
        assert (await submit(visitor, f"{here}/state", enabled=enabled)).status_code == 303
        assert (await account.workload_identities.provider(tenant, issuer.id)).is_enabled == (
            enabled == "yes"
        )
    assert (await submit(visitor, f"{here}/delete")).status_code == 303
    assert (await visitor.get(f"{PATH}{here}")).status_code == 404


async def test_what_is_wrong_with_an_issuer_is_said(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    public = RSAKey.generate_key(2048).as_dict(private=False)
    for changes, words in (
        ({"name": " "}, "printable"),
        ({"issuer": "http://ci.example"}, "https"),
        ({"issuer": ""}, "https"),
        ({"audience": ""}, "printable"),
        ({"discovery_url": "ftp://x"}, "https"),
        ({"token_minutes": "0"}, "from 1 to 720"),
        ({"token_minutes": "721"}, "from 1 to 720"),
        ({"token_minutes": "soon"}, "from 1 to 720"),
        ({"jwks": "{"}, "JSON Web Key Set"),
        ({"jwks": "[]"}, "JSON Web Key Set"),
        ({"jwks": json.dumps({"keys": [OctKey.generate_key().as_dict(private=True)]})}, "public keys"),
    ):
        refused = await submit(visitor, "", **(ISSUER | changes))
        assert refused.status_code == 422, changes
        assert words in refused.text, changes
    assert await site.account.workload_identities.providers(site.tenant_id) == []
    keys = json.dumps({"keys": [public]})
    assert (await submit(visitor, "", **(ISSUER | {"jwks": keys}))).status_code == 303
    (issuer,) = await site.account.workload_identities.providers(site.tenant_id)
    assert issuer.jwks == {"keys": [public]}
    assert "Uploaded" in (await visitor.get(f"{PATH}/{issuer.id}")).text


@pytest.mark.parametrize("role", ["viewer"])
async def test_others_only_see_them(site: Site, visitor: httpx.AsyncClient, role: Role) -> None:
    fields = {"name": "ci", "issuer": "https://ci.example", "audience": "us"}
    issuer = await site.account.workload_identities.create_provider(site.tenant_id, fields, OPERATOR)
    far = await site.account.workload_identities.create_provider(site.place.tenants[1], fields, OPERATOR)
    await as_role(site, visitor, role)
    assert "Add issuer" not in (await visitor.get(PATH)).text
    page = (await visitor.get(f"{PATH}/{issuer.id}")).text
    assert "ci.example" in page
    assert "<form" not in page.partition("<main")[2]
    assert (await visitor.get(f"{PATH}/new")).status_code == 403
    assert (await visitor.get(f"{PATH}/{far.id}")).status_code == 404
    token = await token_of(visitor)
    for path in ("", f"/{issuer.id}/state", f"/{issuer.id}/delete", f"/{issuer.id}/rules"):
        refused = await visitor.post(f"{PATH}{path}", data={"csrf_token": token, **ISSUER})
        assert refused.status_code == 403, path
