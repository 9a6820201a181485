"""The single sign-on page: configuring by metadata and by fields, and who may."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import httpx
import pytest

from tenants.actors import OPERATOR
from tenants.roles import Role
from tests.admin.conftest import Site, csrf_token, sign_in
from tests.admin.test_keys import as_role
from tests.support.saml_provider import ENTITY_ID, SSO_URL, certificate, metadata

PATH = "/settings/single-sign-on"
TOKENS: WeakKeyDictionary[httpx.AsyncClient, str] = WeakKeyDictionary()
FIELDS = {"entity_id": ENTITY_ID, "sso_url": SSO_URL, "certificate": certificate("idp")}


async def submit(visitor: httpx.AsyncClient, path: str = "", **fields: str) -> httpx.Response:
    return await visitor.post(f"{PATH}{path}", data={"csrf_token": await token_of(visitor), **fields})


async def token_of(visitor: httpx.AsyncClient) -> str:
    """Asked for once by each visitor."""
    if visitor not in TOKENS:
        TOKENS[visitor] = csrf_token(await visitor.get("/account"))
    return TOKENS[visitor]


async def upload(visitor: httpx.AsyncClient, content: bytes | None, **fields: str) -> httpx.Response:
    files = {"file": ("metadata.xml", content)} if content is not None else {"file": ("", b"")}
    data = {"csrf_token": await token_of(visitor), **fields}
    return await visitor.post(f"{PATH}/metadata", data=data, files=files)


async def test_an_owner_configures_it_by_metadata(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    empty = (await visitor.get(PATH)).text
    assert f"/saml/{site.tenant_id}/acs" in empty
    assert "Your identity provider</h2>" not in empty
    document = metadata(certificate("idp"), certificate("next"))
    assert (await upload(visitor, document.encode())).status_code == 303
    row = await site.account.saml_connections.find(site.tenant_id)
    assert row is not None
    assert (row.entity_id, row.sso_url) == (ENTITY_ID, SSO_URL)
    assert row.certificates == [certificate("idp"), certificate("next")]
    shown = (await visitor.get(PATH)).text
    assert ENTITY_ID in shown
    pasted = metadata(certificate("idp"), sso_url="https://idp.acme.example/other")
    pasted = pasted.replace("<X509Certificate>", "<!-- signs --><X509Certificate><!-- in use -->")
    assert (await upload(visitor, None, metadata=pasted)).status_code == 303
    row = await site.account.saml_connections.find(site.tenant_id)
    assert row is not None
    assert (row.sso_url, len(row.certificates)) == ("https://idp.acme.example/other", 1)


async def test_what_is_wrong_with_metadata_is_said(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    good = metadata(certificate("idp"))
    wrong = {
        "": "Choose the file",
        "<a/>": "0 identity providers",
        "<!DOCTYPE a><a/>": "document type",
        good.replace("-Redirect", "-SOAP"): "HTTP-Redirect",
        good.replace("https://idp.acme.example/saml/sso", "javascript:alert(1)"): "https://",
        metadata(): "1 or 2",
        metadata(*(certificate(name) for name in ("idp", "next", "old"))): "3 signing certificates",
        metadata(certificate("small", bits=1024)): "2048 bits",
        good.replace("MII", "XXX"): "X.509",
        good.replace('entityID="', 'entityID="' + "x" * 1100): "printable",
    }
    for document, words in wrong.items():
        refused = await upload(visitor, None, metadata=document)
        assert refused.status_code == 422, document[:80]
        assert words in refused.text, (words, document[:80])
    assert "bytes" in (await upload(visitor, b"x" * 300_000)).text
    assert "UTF-8" in (await upload(visitor, b"\xff\xfe")).text
    assert await site.account.saml_connections.find(site.tenant_id) is None


async def test_an_owner_configures_it_by_fields(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for field, value, words in (
        ("sso_url", "http://idp.acme.example", "https://"),
        ("sso_url", "https://a b.example", "https://"),
        ("entity_id", " ", "printable"),
        ("certificate", "no certificate", "X.509"),
    ):
        refused = await submit(visitor, **(FIELDS | {field: value}))
        assert refused.status_code == 422, field
        assert words in refused.text
    assert (await submit(visitor, **FIELDS)).status_code == 303
    twice = FIELDS | {"next_certificate": certificate("next")}
    assert (await submit(visitor, **twice)).status_code == 303
    options = {"groups_attribute": "groups", "creates_members": "on"}
    assert (await submit(visitor, "/options", **options)).status_code == 303
    connections = site.account.saml_connections
    row = await connections.find(site.tenant_id)
    assert row is not None
    assert (row.groups_attribute, row.email_attribute) == ("groups", None)
    assert (row.creates_members, row.allows_idp_initiated) == (True, False)
    assert len(row.certificates) == 2
    assert (await submit(visitor, "/state", enabled="no")).status_code == 303
    assert await connections.enabled(site.tenant_id) is None
    assert (await submit(visitor, "/state", enabled="yes")).status_code == 303
    assert await connections.enabled(site.tenant_id) is not None
    assert (await submit(visitor, "/state", enabled="maybe")).status_code == 400
    assert (await submit(visitor, "/delete")).status_code == 303
    assert await connections.find(site.tenant_id) is None
    assert (await submit(visitor, "/delete")).status_code == 404
    kinds = [entry.type for entry in await site.account.audit.list(site.tenant_id)]
    assert kinds[0] == "saml_connection.deleted"
    assert "saml_connection.created" in kinds


async def test_expired_certificates_are_named(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    await submit(visitor, **(FIELDS | {"certificate": certificate("idp", days=-3)}))
    assert "its signatures are still accepted" in (await visitor.get(PATH)).text


@pytest.mark.parametrize("role", ["admin", "viewer"])
async def test_others_only_see_it(site: Site, visitor: httpx.AsyncClient, role: Role) -> None:
    await site.account.saml_connections.set(
        site.tenant_id, {"metadata": metadata(certificate("idp"))}, OPERATOR
    )
    await as_role(site, visitor, role)
    page = (await visitor.get(PATH)).text
    assert "Only owners can change this." in page
    token = await token_of(visitor)
    for path, fields in (("", FIELDS), ("/options", {}), ("/state", {"enabled": "no"}), ("/delete", {})):
        refused = await visitor.post(f"{PATH}{path}", data={"csrf_token": token, **fields})
        assert refused.status_code == 403, path
    files = {"file": ("metadata.xml", metadata(certificate("thief")).encode())}
    refused = await visitor.post(f"{PATH}/metadata", data={"csrf_token": token}, files=files)
    assert refused.status_code == 403
    row = await site.account.saml_connections.find(site.tenant_id)
    assert row is not None
    assert row.is_enabled
    assert row.certificates == [certificate("idp")]


async def test_an_owner_adds_a_group_by_name(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)

    async def post(path: str, **fields: str) -> httpx.Response:
        data = {"csrf_token": await token_of(visitor), **fields}
        return await visitor.post(f"/settings/provisioning/groups{path}", data=data)

    assert (await post("", group_name="Makers", role="developer")).status_code == 303
    assert "Added by hand" in (await visitor.get("/settings/provisioning")).text
    twice = await post("", group_name="makers", role="none")
    assert twice.status_code == 422
    assert (await post("", group_name=" ", role="none")).status_code == 422
    (group,) = await site.account.provisioned_groups.page(site.tenant_id)
    assert (group.role, group.is_added_by_hand) == ("developer", True)
    assert (await post(f"/{group.id}/delete")).status_code == 303
    assert await site.account.provisioned_groups.page(site.tenant_id) == []
