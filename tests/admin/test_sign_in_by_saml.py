"""Signing in by SAML: whom a response signs in, in which browser, how often, and with which role."""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from lxml import etree

from tenants.actors import OPERATOR
from tenants.provisioning.profiles import GroupProfile, UserProfile
from tenants.saml.service_provider import ServiceProvider
from tests.admin.conftest import EMAIL, Site, csrf_token, sign_in
from tests.admin.test_sign_in_second_factor import at_step, enrol, enter_code
from tests.support.saml_provider import SSO_URL, SamlProvider, Statement, certificate, metadata, new_key

ORIGIN = "http://127.0.0.1:8000"
FOREIGN = {"origin": "https://idp.acme.example", "sec-fetch-site": "cross-site"}


@dataclass
class Idp:
    """The organization's provider, and the way over it."""

    site: Site
    sp: ServiceProvider
    provider: SamlProvider = field(default_factory=SamlProvider)

    async def configure(self, **fields: Any) -> None:
        given = {"metadata": metadata(certificate("idp"))} | fields
        await self.site.account.saml_connections.set(self.sp.tenant_id, given, OPERATOR)

    def answer(self, request_id: str | None, **said: Any) -> dict[str, str]:
        """The form that a browser brings."""
        right = {"acs_url": self.sp.acs_url, "audience": self.sp.entity_id, "in_response_to": request_id}
        document = self.provider.respond(Statement(**(right | said)))
        return {"SAMLResponse": base64.b64encode(document).decode()}

    async def bring(self, visitor: httpx.AsyncClient, form: dict[str, str]) -> httpx.Response:
        """As browsers do: a form of another site comes without the cookie, the page after it has it."""
        cookies, visitor.cookies = visitor.cookies, httpx.Cookies()
        path = urlsplit(self.sp.acs_url).path.removeprefix("/console")
        posted = await visitor.post(path, data=form, headers=FOREIGN)
        visitor.cookies = cookies
        if posted.status_code != 303:
            return posted
        assert "set-cookie" not in posted.headers
        return await visitor.get(posted.headers["location"].removeprefix("/console"))

    async def begin(self, visitor: httpx.AsyncClient) -> str:
        """Starts to sign in; returns the id of the request."""
        page = await visitor.get(urlsplit(self.sp.start_url).path.removeprefix("/console"))
        return request_of(page).get("ID")

    async def sign_in(self, visitor: httpx.AsyncClient, **said: Any) -> httpx.Response:
        return await self.bring(visitor, self.answer(await self.begin(visitor), **said))


def request_of(page: httpx.Response) -> Any:
    """The AuthnRequest that a page leads on with."""
    assert page.status_code == 200, page.text
    found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', page.text)
    assert found is not None
    url = urlsplit(found[1].replace("&amp;", "&"))
    assert f"{url.scheme}://{url.netloc}{url.path}" == SSO_URL
    query = parse_qs(url.query)
    assert [*query] == ["SAMLRequest"]
    return etree.fromstring(zlib.decompress(base64.b64decode(query["SAMLRequest"][0]), -15))


@pytest.fixture
async def idp(site: Site) -> Idp:
    made = Idp(site, ServiceProvider(f"{ORIGIN}/console", site.tenant_id))
    await made.configure()
    return made


async def member(site: Site, email: str = "grace@acme.example", role: str = "developer") -> str:
    return (await site.accounts.create(site.tenant_id, email, "a long password", role=role)).user_id  # type: ignore[arg-type]


async def role_of(site: Site, user_id: str) -> str:
    found = await site.account.members.get(site.tenant_id, user_id)
    return found.role


# The way through ------------------------------------------------------------------------------------------


async def test_a_member_signs_in(site: Site, visitor: httpx.AsyncClient, idp: Idp) -> None:
    user_id = await member(site)
    asked = await visitor.get("/keys")  # leads to the sign-in page, which remembers it
    assert asked.status_code == 303
    planted = visitor.cookies["rootstock_console"]
    assert (await idp.sign_in(visitor)).headers["location"] == "/console/keys"
    assert visitor.cookies["rootstock_console"] != planted
    assert "grace@acme.example" in (await visitor.get("/")).text
    (entry, linked, *_) = await site.account.audit.list(site.tenant_id)
    assert (entry.type, entry.details) == ("login.succeeded", {"by": "saml"})
    assert (linked.type, linked.target_id, linked.actor["type"]) == (
        "identity.added",
        user_id,
        "saml_connection",
    )
    assert "Single sign-on (SAML)" in (await visitor.get("/account")).text
    # Known by the provider's id from now on, whatever the address becomes.
    async with site.visitor() as anew:
        changed = await idp.sign_in(anew, attributes={"email": [EMAIL]})
        assert changed.status_code == 303
        assert "grace@acme.example" in (await anew.get("/")).text


async def test_the_request_names_this_service(visitor: httpx.AsyncClient, idp: Idp) -> None:
    request = request_of(await visitor.get(urlsplit(idp.sp.start_url).path.removeprefix("/console")))
    assert request.get("AssertionConsumerServiceURL") == idp.sp.acs_url
    assert request.get("Destination") == SSO_URL
    assert request[0].text == idp.sp.entity_id
    described = etree.fromstring((await visitor.get(f"/saml/{idp.sp.tenant_id}/metadata")).content)
    assert described.get("entityID") == idp.sp.entity_id
    (service,) = described.iter("{*}AssertionConsumerService")
    assert service.get("Location") == idp.sp.acs_url


async def test_the_sign_in_page_finds_a_members_provider(
    site: Site, visitor: httpx.AsyncClient, idp: Idp
) -> None:
    async def ask(email: str) -> httpx.Response:
        token = csrf_token(await visitor.get("/sign-in/sso"))
        return await visitor.post("/sign-in/sso", data={"csrf_token": token, "email": email})

    assert "/sign-in/sso" in (await visitor.get("/sign-in")).text
    asked = request_of(await ask(EMAIL))
    signed = await idp.bring(visitor, idp.answer(asked.get("ID"), attributes={"email": [EMAIL]}))
    assert signed.status_code == 303
    async with site.visitor() as visitor:
        await site.accounts.create(site.place.tenants[1], "far@birch.example", "a long password")
        for email in ("far@birch.example", "nobody@acme.example", "\x00"):
            assert (await ask(email)).status_code == 404
        await idp.configure(is_enabled=False)
        assert (await ask(EMAIL)).status_code == 404
        assert [(await ask("guess@acme.example")).status_code for _ in range(6)][-1] == 429
        forged = await visitor.post("/sign-in/sso", data={"csrf_token": "guess", "email": EMAIL})
        assert forged.status_code == 403


async def test_a_second_factor_is_asked_for_all_the_same(
    site: Site, visitor: httpx.AsyncClient, idp: Idp
) -> None:
    await sign_in(visitor)
    secret, _ = await enrol(visitor)
    async with site.visitor() as anew:
        answered = await idp.sign_in(anew, attributes={"email": [EMAIL]})
        assert answered.headers["location"] == "/console/sign-in/code"
        assert (await anew.get("/")).status_code == 303
        assert (await enter_code(anew, at_step(secret))).headers["location"] == "/console/"


# Once, and in the browser that asked ----------------------------------------------------------------------


async def test_a_response_is_good_once(site: Site, visitor: httpx.AsyncClient, idp: Idp) -> None:
    await member(site)
    form = idp.answer(await idp.begin(visitor))
    assert (await idp.bring(visitor, form)).status_code == 303
    again = await idp.bring(visitor, form)
    assert again.status_code == 403
    assert "used already" in again.text
    # Another assertion that answers the same request.
    request_id = await idp.begin(anew := site.visitor())
    assert (await idp.bring(anew, idp.answer(request_id))).status_code == 303
    assert (await idp.bring(anew, idp.answer(request_id))).status_code == 400
    await anew.aclose()


async def test_a_response_is_good_in_the_browser_that_asked(
    site: Site, visitor: httpx.AsyncClient, idp: Idp
) -> None:
    await member(site)
    async with site.visitor() as thief, site.visitor() as bare:
        await thief.get("/sign-in")
        form = idp.answer(await idp.begin(visitor))
        assert (await idp.bring(thief, form)).status_code == 400
        assert (await thief.get("/")).status_code == 303
        assert (await idp.bring(bare, idp.answer(await idp.begin(visitor)))).status_code == 400
        for request_id in ("id-made-up", "", "x" * 5000):
            assert (await idp.bring(thief, idp.answer(request_id))).status_code in (400, 403)
        # A signed-in user is not made another one by a page that posts to us.
        await sign_in(visitor)
        bait = idp.answer(await idp.begin(thief))
        assert (await idp.bring(visitor, bait)).status_code == 400
        assert EMAIL in (await visitor.get("/account")).text
    for proof in ("", "guess", "x" * 200):
        gone = await visitor.get(f"/saml/{site.tenant_id}/finish", params={"proof": proof})
        assert gone.status_code == 400


async def test_the_page_after_a_response_is_good_once_and_for_its_organization(
    site: Site, visitor: httpx.AsyncClient, idp: Idp
) -> None:
    await member(site)
    form = idp.answer(await idp.begin(visitor))
    posted = await visitor.post(f"/saml/{site.tenant_id}/acs", data=form)
    where = posted.headers["location"].removeprefix("/console")
    assert (await visitor.get(where)).status_code == 303
    assert (await visitor.get(where)).status_code == 400
    other = site.place.tenants[1]
    far = Idp(site, ServiceProvider(f"{ORIGIN}/console", other))
    await far.configure()
    async with site.visitor() as anew:
        posted = await anew.post(f"/saml/{site.tenant_id}/acs", data=idp.answer(await idp.begin(anew)))
        moved = posted.headers["location"].removeprefix("/console").replace(site.tenant_id, other)
        assert (await anew.get(moved)).status_code == 400


async def test_a_sign_in_that_begins_at_the_provider(
    site: Site, visitor: httpx.AsyncClient, idp: Idp
) -> None:
    await member(site)
    refused = await idp.bring(visitor, idp.answer(None))
    assert refused.status_code == 403
    assert "only accepts sign-ins that begin here" in refused.text
    await idp.configure(allows_idp_initiated=True)
    await sign_in(visitor)
    began = visitor.cookies["rootstock_console"]
    form = idp.answer(None)
    assert (await idp.bring(visitor, form)).headers["location"] == "/console/"
    assert "grace@acme.example" in (await visitor.get("/account")).text
    assert visitor.cookies["rootstock_console"] != began
    assert (await idp.bring(visitor, form)).status_code == 403
    # What answers a request stays bound to its browser.
    async with site.visitor() as thief:
        assert (await idp.bring(thief, idp.answer(await idp.begin(site.visitor())))).status_code == 400


RELAY_STATES = {
    "/console/keys?after=x": "/console/keys?after=x",
    f"{ORIGIN}/console/usage": "/console/usage",
    "": "/console/",
    "https://evil.example/console/keys": "/console/",
    f"{ORIGIN}.evil.example/console/keys": "/console/",
    "//evil.example/console/": "/console/",
    "/console//evil.example": "/console/",
    "/console/\\evil.example": "/console/",
    "/console/../v1/models": "/console/",
    "/v1/models": "/console/",
    "javascript:alert(1)": "/console/",
    "/console/keys\r\nset-cookie: a=b": "/console/",
    "/console/" + "x" * 3000: "/console/",
}


async def test_relay_state_leads_to_our_own_pages_only(
    site: Site, visitor: httpx.AsyncClient, idp: Idp
) -> None:
    await member(site)
    await idp.configure(allows_idp_initiated=True)
    for relay_state, page in RELAY_STATES.items():
        form = idp.answer(None) | {"RelayState": relay_state}
        assert (await idp.bring(visitor, form)).headers["location"] == page, relay_state
    # Of a request, the page that was asked for here counts, not what the provider sends.
    async with site.visitor() as anew:
        form = idp.answer(await idp.begin(anew)) | {"RelayState": "/console/keys"}
        assert (await idp.bring(anew, form)).headers["location"] == "/console/"


# Whom ------------------------------------------------------------------------------------------------------


async def test_only_members_sign_in(site: Site, visitor: httpx.AsyncClient, idp: Idp) -> None:
    stranger = await idp.sign_in(visitor)
    assert stranger.status_code == 403
    assert "You are not a member" in stranger.text
    assert "grace@acme.example" in stranger.text
    nameless = await idp.sign_in(visitor, attributes={})
    assert "no email address" in nameless.text
    evil = await idp.sign_in(visitor, attributes={"email": ["<b>@x.example"]})
    assert "<b>@x" not in evil.text


async def test_a_provider_names_members_of_its_own_organization_only(
    site: Site, visitor: httpx.AsyncClient, idp: Idp
) -> None:
    await member(site)
    other = site.place.tenants[1]
    await site.accounts.create(other, "far@birch.example", "a long password")
    await idp.configure(creates_members=True)
    taken = await idp.sign_in(visitor, subject="far", attributes={"email": ["far@birch.example"]})
    assert taken.status_code == 403
    assert "in use in another organization" in taken.text
    # The other organization's provider has the same entity id and key, and names the same subject.
    assert (await idp.sign_in(visitor)).status_code == 303
    far = Idp(site, ServiceProvider(f"{ORIGIN}/console", other))
    await far.configure(creates_members=True)
    async with site.visitor() as anew:
        assert (await far.sign_in(anew)).status_code == 403
        # An assertion for one organization is nothing to another.
        form = far.answer(await far.begin(anew))
        assert (await idp.bring(anew, form)).status_code == 403
        operator = await site.accounts.create("operator", "root@service.example", "a long password")
        answered = await far.sign_in(anew, subject="r", attributes={"email": [operator.email]})
        assert answered.status_code == 403


async def test_an_address_is_linked_once(site: Site, visitor: httpx.AsyncClient, idp: Idp) -> None:
    await member(site)
    assert (await idp.sign_in(visitor)).status_code == 303
    async with site.visitor() as anew:
        again = await idp.sign_in(anew, subject="u-2")  # the address has become another person's
        assert again.status_code == 403
        assert "connected to another user of the identity provider" in again.text
        # Another provider, whose ids are others: the address decides anew.
        await idp.configure(metadata=metadata(certificate("idp"), entity_id="https://new.example"))
        assert (await idp.sign_in(anew, subject="u-2", issuer="https://new.example")).status_code == 303


async def test_deprovisioned_members_stay_out(site: Site, visitor: httpx.AsyncClient, idp: Idp) -> None:
    await idp.configure(creates_members=True)
    user_id = await member(site)
    assert (await idp.sign_in(visitor)).status_code == 303
    users = site.account.provisioned_users
    await users.update(
        site.tenant_id,
        user_id,
        lambda before: UserProfile(before.user_name, emails=before.emails, active=False),
        OPERATOR,
    )
    assert (await visitor.get("/")).status_code == 303
    off = await idp.sign_in(visitor)
    assert off.status_code == 403
    assert "deactivated" in off.text
    assert "deactivated" in (await idp.sign_in(visitor, subject="u-9")).text
    await users.delete(site.tenant_id, user_id, OPERATOR)
    gone = await idp.sign_in(visitor)
    assert gone.status_code == 403
    assert "was removed from this organization" in gone.text
    # SCIM brings them back; a sign-in does not.
    await users.create(site.tenant_id, UserProfile("grace@acme.example"), OPERATOR)
    assert (await idp.sign_in(visitor)).status_code == 303
    await site.tenants.set_tenant_disabled(site.tenant_id, True)
    assert (await visitor.get(f"/saml/{site.tenant_id}/start")).status_code == 404


async def test_members_are_created_where_that_is_allowed(
    site: Site, visitor: httpx.AsyncClient, idp: Idp
) -> None:
    await idp.configure(creates_members=True)
    said = {"email": ["new@acme.example"], "displayName": ["New <b>Person</b>"]}
    assert (await idp.sign_in(visitor, attributes=said)).status_code == 303
    (found,) = [
        one for one in await site.account.members.list(site.tenant_id) if one.email == "new@acme.example"
    ]
    assert (found.role, found.name, found.password_hash) == ("viewer", "New <b>Person</b>", None)
    (entry,) = [one for one in await site.account.audit.list(site.tenant_id) if one.type == "user.added"][:1]
    assert entry.actor["type"] == "saml_connection"
    assert "<b>Person" not in (await visitor.get("/account")).text


async def test_groups_of_an_assertion_give_roles(site: Site, visitor: httpx.AsyncClient, idp: Idp) -> None:
    user_id = await member(site, role="viewer")
    groups, tenant = site.account.provisioned_groups, site.tenant_id
    makers = await groups.create(tenant, GroupProfile("Makers"), OPERATOR, by_hand=True)
    admins = await groups.create(tenant, GroupProfile("Admins", "guid-of-admins"), OPERATOR)
    owners = await groups.create(tenant, GroupProfile("Owners"), OPERATOR, by_hand=True)
    for group, role in ((makers, "developer"), (admins, "admin"), (owners, "owner")):
        await groups.set_role(tenant, group.id, role, OPERATOR)

    async def signed_in_with(*names: str) -> str:
        said = {"email": ["grace@acme.example"]} | ({"groups": names} if names else {})
        assert (await idp.sign_in(site.visitor(), attributes=said)).status_code == 303
        return await role_of(site, user_id)

    assert await signed_in_with("Makers") == "viewer"  # groups are not read yet
    await idp.configure(groups_attribute="groups")
    assert await signed_in_with("makers", "unknown") == "developer"
    assert await signed_in_with("Makers", "guid-of-admins") == "admin"
    assert (await groups.get(tenant, admins.id)).num_members == 1
    assert await signed_in_with("Owners") == "owner"
    assert await signed_in_with() == "viewer"  # the attribute is not sent for none
    assert (await groups.get(tenant, makers.id)).num_members == 0
    # The last owner stays one, and signs in all the same.
    assert await signed_in_with("Owners") == "owner"
    (me,) = [one for one in await site.account.members.list(tenant) if one.email == EMAIL]
    await site.account.members.remove(tenant, me.id, OPERATOR)
    assert await signed_in_with("Makers") == "owner"


# What else is posted --------------------------------------------------------------------------------------


async def test_forged_and_odd_posts(site: Site, visitor: httpx.AsyncClient, idp: Idp) -> None:
    await member(site)
    request_id = await idp.begin(visitor)
    thief = Idp(site, idp.sp, SamlProvider(new_key("thief")))
    forged = await idp.bring(visitor, thief.answer(request_id))
    assert forged.status_code == 403
    assert "not made with a certificate" in forged.text
    for form in ({"SAMLResponse": ""}, {"SAMLResponse": "!"}, {"SAMLResponse": "PGEvPg=="}):
        assert (await idp.bring(visitor, form)).status_code == 403
    large = await idp.bring(visitor, {"SAMLResponse": "A" * (1 << 20)})
    assert large.status_code == 413
    path = f"/saml/{site.tenant_id}/acs"
    assert (await visitor.post(path, json={})).status_code == 415
    assert (await visitor.get(path)).status_code == 405
    assert (await idp.bring(visitor, idp.answer(request_id))).status_code == 303  # which none of it spent


async def test_organizations_without_saml(site: Site, visitor: httpx.AsyncClient) -> None:
    far = Idp(site, ServiceProvider(f"{ORIGIN}/console", site.place.tenants[1]))
    for tenant in (far.sp.tenant_id, "tnt_unknown", "operator", "..%2f", "tnt_1%00"):
        for path in ("start", "metadata"):
            found = (await visitor.get(f"/saml/{tenant}/{path}")).status_code
            assert found == (
                200 if path == "metadata" and tenant.isidentifier() and tenant != "operator" else 404
            )
    assert (await visitor.post(f"/saml/{far.sp.tenant_id}/acs", data=far.answer(None))).status_code == 404


async def test_the_configured_address_is_the_services_name(
    site: Site, visitor: httpx.AsyncClient, idp: Idp
) -> None:
    # A response for this service under another name is not for it.
    elsewhere = Idp(site, ServiceProvider("http://localhost:8000/console", site.tenant_id))
    await member(site)
    form = elsewhere.answer(await idp.begin(visitor))
    assert (await idp.bring(visitor, form)).status_code == 403
