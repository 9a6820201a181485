"""SCIM 2.0 over HTTP: scim2-tester, what identity providers send, isolation, users out in time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import pytest
from pydantic._internal import _fields

from tenants.actors import OPERATOR
from tenants.audit.repository import AuditFilter
from tenants.external_identity import ExternalIdentity
from tests.api.organization.site import Party, Site

TOKENS = "/v1/organization/scim_tokens"
PATCH_OP = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
_serial = itertools.count()


@dataclass
class Provider:
    """The identity provider of one organization."""

    site: Site
    party: Party
    token: str
    token_id: str

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/scim+json"}
        return self.site.http.request(method, f"/scim/v2{path}", json=body, headers=headers)

    def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        made = self.ask("POST", f"/{kind}", body)
        assert made.status_code == 201, made.text
        found: dict[str, Any] = made.json()
        assert made.headers["location"] == found["meta"]["location"]
        return found

    def user(self, name: str, /, **more: Any) -> dict[str, Any]:
        return self.create("Users", {"userName": self.party.mail(name), **more})

    def group(self, name: str, *users: dict[str, Any]) -> dict[str, Any]:
        members = [{"value": one["id"]} for one in users]
        return self.create("Groups", {"displayName": name, "members": members})

    def patch(self, path: str, *operations: dict[str, Any]) -> httpx.Response:
        return self.ask("PATCH", path, {"schemas": [PATCH_OP], "Operations": list(operations)})

    def names(self, kind: str, condition: str, **query: Any) -> list[str]:
        params = httpx.QueryParams({"filter": condition} | query)
        found = self.ask("GET", f"/{kind}?{params}")
        assert found.status_code == 200, found.text
        return [one.get("userName") or one["displayName"] for one in found.json()["Resources"]]

    def role_of(self, user: dict[str, Any]) -> str:
        return self.site.do(self.site.accounts.members.get(self.party.tenant_id, user["id"])).role

    def map(self, group: dict[str, Any], role: str) -> httpx.Response:
        path = f"/v1/organization/groups/{group['id']}/roles"
        return self.site.ask("POST", path, self.party.admin_key, {"role_id": f"role-{role}"})

    def entries(self, type: str) -> list[Any]:
        wanted = AuditFilter(types=[type])
        return self.site.do(self.site.accounts.audit.list(self.party.tenant_id, wanted, limit=100))


def provider_of(site: Site, party: Party) -> Provider:
    made = site.ask("POST", TOKENS, party.admin_key, {"name": "Okta"}).json()
    return Provider(site, party, made["value"], made["id"])


@pytest.fixture
def provider(site: Site, ours: Party) -> Provider:
    return provider_of(site, ours)


@pytest.fixture
def other(site: Site) -> Provider:
    return provider_of(site, site.party(f"theirs-{next(_serial)}"))


def test_scim2_tester_finds_nothing(site: Site, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pydantic would read descriptions of fields out of its source, for schemas not used here: 7 s.
    monkeypatch.setattr(_fields, "_update_fields_from_docstrings", lambda *_, **__: None)
    # Here, since loading it takes long, in each process that collects tests.
    from scim2_client.engines.httpx2 import SyncSCIMClient
    from scim2_tester import Status, check_server
    from scim2_tester.utils import ResourceManager

    # After each check it deletes what all checks before have made, too: most of its requests.
    monkeypatch.setattr(ResourceManager, "cleanup", lambda self: None)
    headers = {"authorization": f"Bearer {provider.token}"}
    with httpx2.Client(base_url=f"{site.url}/scim/v2", headers=headers, timeout=30) as client:
        results = check_server(SyncSCIMClient(client))
    failed = (Status.ERROR, Status.CRITICAL, Status.DEVIATION)
    assert [f"{one.title}: {one.reason}" for one in results if one.status in failed] == []
    skipped = {one.title for one in results if one.status == Status.SKIPPED}
    assert skipped <= {"search_with_attributes"}, "of both types at once"
    assert sum(one.status == Status.SUCCESS for one in results) > 60


def test_a_token_is_shown_once_hashed_at_rest_and_refused_at_once_when_revoked(
    site: Site, provider: Provider
) -> None:
    key = provider.party.admin_key
    (listed,) = site.ask("GET", TOKENS, key).json()["data"]
    assert provider.token.startswith(listed["redacted_value"].removesuffix("..."))
    assert provider.token not in str(listed)
    assert provider.ask("GET", "/Users").status_code == 200
    assert site.ask("GET", TOKENS, key).json()["data"][0]["last_used_at"] is not None
    assert site.refused(provider.token), "it is no API key"

    assert site.ask("DELETE", f"{TOKENS}/{provider.token_id}", key).status_code == 200

    refused = provider.ask("GET", "/Users")
    assert (refused.status_code, refused.json()["status"]) == (401, "401")
    assert refused.headers["content-type"] == "application/scim+json"
    assert site.ask("GET", TOKENS, key).json()["data"] == []
    assert site.ask("DELETE", f"{TOKENS}/{provider.token_id}", key).status_code == 404
    for entry in provider.entries("scim_token.created"):
        assert provider.token not in str(entry.details)


@pytest.mark.parametrize("token", ["", "rs_scim_", "rs_admin_x"])
def test_without_a_token_nothing_is_told(site: Site, token: str) -> None:
    for path in ("/Users", "/ServiceProviderConfig", "/nonsense"):
        answer = site.ask("GET", f"/scim/v2{path}", token or None)
        assert answer.status_code == 401
        assert answer.json()["schemas"] == ["urn:ietf:params:scim:api:messages:2.0:Error"]


def test_only_owners_create_and_revoke_tokens_and_map_groups(site: Site, provider: Provider) -> None:
    party, keys = provider.party, site.accounts.keys
    admin = provider.user("admin")
    site.do(site.accounts.members.update(party.tenant_id, admin["id"], OPERATOR, role="admin"))
    key = site.do(keys.create(party.tenant_id, "a", OPERATOR, kind="admin", user_id=admin["id"])).plaintext
    group = provider.group("team")
    path = f"/v1/organization/groups/{group['id']}/roles"
    for method, where, body in (
        ("POST", TOKENS, {"name": "mine"}),
        ("DELETE", f"{TOKENS}/{provider.token_id}", None),
        ("POST", path, {"role_id": "role-viewer"}),
    ):
        assert site.ask(method, where, key, body).status_code == 403, where


def test_a_deactivated_user_is_out_within_a_second_and_back_later(site: Site, provider: Provider) -> None:
    party, accounts = provider.party, site.accounts
    user = provider.user("ada", name={"givenName": "Ada", "familyName": "Byron"})
    assert (user["active"], user["name"]["givenName"]) == (True, "Ada")
    personal = site.do(accounts.keys.create(party.tenant_id, "p", OPERATOR, user_id=user["id"])).plaintext
    assert not site.refused(personal)

    off = provider.patch(f"/Users/{user['id']}", {"op": "replace", "value": {"active": False}})

    assert off.json()["active"] is False
    site.soon_refused(personal)
    assert site.do(accounts.users.find(user["id"], party.tenant_id)) is None, "the console's sessions end"
    stored = site.do(accounts.members.get(party.tenant_id, user["id"]))
    assert stored.sessions_from is not None
    (entry,) = provider.entries("user.disabled")
    assert (entry.actor["type"], entry.actor["id"]) == ("scim_token", provider.token_id)

    provider.patch(f"/Users/{user['id']}", {"op": "Replace", "path": "active", "value": "True"})
    site.soon(lambda: not site.refused(personal))
    assert provider.ask("DELETE", f"/Users/{user['id']}").status_code == 204
    site.soon_refused(personal)
    (entry,) = provider.entries("user.deleted")
    assert len(entry.details["revoked_keys"]) == 1
    assert provider.ask("GET", f"/Users/{user['id']}").status_code == 404
    assert provider.user("ada")["id"] != user["id"], "the address and the name are free again"


def test_the_last_owner_stays(site: Site, provider: Provider) -> None:
    owner = f"/Users/{provider.party.owner_id}"
    group = provider.group("everybody")
    provider.map(group, "viewer")
    joining = {"op": "add", "path": "members", "value": [{"value": provider.party.owner_id}]}
    for refused in (
        provider.patch(owner, {"op": "replace", "path": "active", "value": False}),
        provider.ask("DELETE", owner),
        provider.patch(f"/Groups/{group['id']}", joining),
    ):
        assert refused.status_code == 409, refused.text
        assert "last owner" in refused.json()["detail"]
    shown = provider.ask("GET", owner).json()
    assert (shown["active"], shown.get("groups")) == (True, None)

    second = provider.user("second")
    owners = provider.group("owners", second)
    assert provider.map(owners, "owner").status_code == 200
    assert provider.ask("DELETE", owner).status_code == 204


def test_groups_give_roles(site: Site, provider: Provider) -> None:
    party, accounts = provider.party, site.accounts
    ada, bob = provider.user("ada"), provider.user("bob")
    makers, bosses = provider.group("makers", ada, bob), provider.group("bosses", ada)
    assert (provider.role_of(ada), provider.role_of(bob)) == ("viewer", "viewer")

    assert provider.map(makers, "developer").json()["role"]["id"] == "role-developer"
    provider.map(bosses, "admin")

    assert (provider.role_of(ada), provider.role_of(bob)) == ("admin", "developer")
    key = site.do(
        accounts.keys.create(party.tenant_id, "k", OPERATOR, kind="admin", user_id=ada["id"])
    ).plaintext
    leaving = {"op": "remove", "path": f'members[value eq "{ada["id"]}"]'}
    assert provider.patch(f"/Groups/{bosses['id']}", leaving).status_code == 200
    assert provider.role_of(ada) == "developer"
    site.soon_refused(key)  # an admin key outlives no role
    site.do(accounts.members.update(party.tenant_id, bob["id"], OPERATOR, role="billing"))
    assert provider.patch(f"/Groups/{makers['id']}", {"op": "replace", "path": "displayName", "value": "m"})
    assert provider.role_of(bob) == "billing", "set by hand, it stays until his groups change"
    assert provider.ask("DELETE", f"/Groups/{makers['id']}").status_code == 204
    assert (provider.role_of(ada), provider.role_of(bob)) == ("viewer", "viewer")
    listed = site.ask("GET", "/v1/organization/groups", party.admin_key).json()["data"]
    assert [(one["name"], one["role"], one["num_members"]) for one in listed] == [("bosses", "admin", 0)]


def test_filters_and_pages(provider: Provider) -> None:
    provider.user("ada", externalId="A-1", displayName="Ada", name={"familyName": "Byron"})
    provider.user("bob", emails=[{"value": "b@b.example", "type": "work", "primary": True}], active=False)
    ada, bob, owner = (provider.party.mail(name) for name in ("ada", "bob", "owner"))
    group = provider.group("Makers", *provider.ask("GET", "/Users").json()["Resources"][1:2])
    for condition, names in (
        (f'userName eq "{ada.upper()}"', [ada]),
        ('externalId eq "A-1"', [ada]),
        ('externalId eq "a-1"', []),
        ('name.familyName sw "by" and displayName pr', [ada]),
        ("active eq false", [bob]),
        ("not (active eq true) or externalId pr", [ada, bob]),
        ('emails[type eq "work" and value ew "B.example"]', [bob]),
        (f'emails.value eq "{owner}"', [owner]),
        ('meta.created gt "2020-01-01T00:00:00Z" and active ne true', [bob]),
        (f'groups.value eq "{group["id"]}"', [ada]),
        ('userName co "%"', []),
    ):
        assert provider.names("Users", condition) == names, condition
    assert provider.names("Groups", 'displayName eq "makers"', excludedAttributes="members") == ["Makers"]
    assert provider.names("Groups", f'members.value eq "{provider.party.owner_id}"') == []
    for condition in ("userName", 'nonsense eq "x"', "active gt true", "meta.created eq 1", 'name eq "x"'):
        refused = provider.ask("GET", f"/Users?{httpx.QueryParams({'filter': condition})}")
        assert (refused.status_code, refused.json()["scimType"]) == (400, "invalidFilter"), condition

    page = provider.ask("GET", "/Users?startIndex=2&count=1&attributes=userName").json()
    assert (page["totalResults"], page["startIndex"], page["itemsPerPage"]) == (3, 2, 1)
    (only,) = page["Resources"]
    assert only.keys() == {"schemas", "id", "userName"}
    assert provider.ask("GET", "/Users?count=0").json()["Resources"] == []
    found = provider.ask("POST", "/Users/.search", {"filter": 'externalId eq "A-1"', "count": 5}).json()
    assert found["totalResults"] == 1


def test_a_name_is_taken_once_and_bodies_are_judged(provider: Provider, other: Provider) -> None:
    user = provider.user("ada")
    mail = provider.party.mail("ada")
    for body in ({"userName": mail.upper()}, {"userName": "x", "emails": [{"value": mail}]}):
        taken = provider.ask("POST", "/Users", body)
        assert (taken.status_code, taken.json()["scimType"]) == (409, "uniqueness")
    assert other.ask("POST", "/Users", {"userName": mail}).status_code == 409, "addresses are one person's"
    for body in (
        {"userName": "no address"},
        {"emails": [{"value": "a@b.example"}]},
        {"userName": 7},
        {"userName": "a@b.example", "emails": [{"value": "no address"}]},
        {"userName": "a@b.example", "displayName": "a\u202eb"},
        {"userName": "a@b.example", "displayName": "a\x00b"},
        [],
    ):
        refused = provider.ask("POST", "/Users", body)
        assert refused.status_code == 400, refused.text
    changed = provider.ask("PUT", f"/Users/{user['id']}", {"userName": mail, "displayName": "Countess"})
    assert (changed.json()["displayName"], changed.json()["id"]) == ("Countess", user["id"])
    assert provider.ask("POST", "/Bulk", {}).status_code == 404
    assert provider.ask("PUT", "/Users", {}).status_code == 405


def test_what_is_anothers_is_not_there(provider: Provider, other: Provider) -> None:
    user = other.user("ada")
    group, mine = other.group("theirs", user), provider.group("ours")
    patch = {"schemas": [PATCH_OP], "Operations": [{"op": "replace", "path": "displayName", "value": "x"}]}
    before = [other.ask("GET", path).text for path in ("/Users", "/Groups")]
    for kind, foreign in (("Users", user["id"]), ("Groups", group["id"])):
        absent = foreign[:-6] + "000000"
        replacement = {"userName": "a@b.c", "displayName": "x"}
        bodies = {"GET": None, "PUT": replacement, "PATCH": patch, "DELETE": None}
        for method, body in bodies.items():
            answers = [provider.ask(method, f"/{kind}/{one}", body) for one in (foreign, absent)]
            assert [one.status_code for one in answers] == [404, 404], (method, kind)
            assert answers[0].text.replace(foreign, "ID") == answers[1].text.replace(absent, "ID")
    for one in (user["id"], user["id"][:-6] + "000000"):
        joined = provider.patch(
            f"/Groups/{mine['id']}", {"op": "add", "path": "members", "value": [{"value": one}]}
        )
        assert joined.status_code == 400
        assert joined.json()["detail"] == f"members: there is no user {one!r}"
    assert provider.names("Users", f'id eq "{user["id"]}"') == []
    assert [other.ask("GET", path).text for path in ("/Users", "/Groups")] == before
    assert provider.map(group, "viewer").status_code == 404


def test_a_provisioned_user_signs_in_with_the_verified_address_once(site: Site, provider: Provider) -> None:
    identities, mail = site.accounts.identities, provider.party.mail("ada")
    user = provider.user("ada")
    unverified = ExternalIdentity("https://issuer.example", "subject-1", mail)
    assert site.do(identities.link_provisioned(unverified, None)) is None
    for invited in (provider.party.mail("owner"), "nobody@else.example"):
        claims = ExternalIdentity("https://issuer.example", "subject-1", invited, email_verified=True)
        assert site.do(identities.link_provisioned(claims, None)) is None, "only users whom SCIM created"
    ada = ExternalIdentity("https://issuer.example", provider.token_id, mail.upper(), email_verified=True)
    linked = site.do(identities.link_provisioned(ada, None))
    assert linked is not None
    assert linked.user_id == user["id"]
    found = site.do(identities.find(ada))
    assert found is not None
    another = ExternalIdentity("https://issuer.example", "subject-2", mail, email_verified=True)
    assert site.do(identities.link_provisioned(another, None)) is None, "it has a way to sign in now"
