"""The SAML connection over the API: how it is set, who may set it, and groups that owners add."""

from __future__ import annotations

from typing import Any

from tenants.actors import OPERATOR
from tests.api.organization.site import Party, Site
from tests.support.saml_provider import ENTITY_ID, SSO_URL, certificate, metadata

PATH = "/v1/organization/saml_connection"
GROUPS = "/v1/organization/groups"
FIELDS: dict[str, Any] = {"entity_id": ENTITY_ID, "sso_url": SSO_URL, "certificates": [certificate("idp")]}


def test_an_owners_key_sets_changes_and_deletes_it(site: Site, ours: Party) -> None:
    key = ours.admin_key
    assert site.ask("GET", PATH, key).status_code == 404
    for body, param in (
        ({"groups_attribute": "groups"}, "entity_id"),
        ({"entity_id": ENTITY_ID, "sso_url": SSO_URL}, "certificates"),
        (FIELDS | {"sso_url": "http://idp.example/"}, "sso_url"),
        (FIELDS | {"certificates": ["x"]}, "certificates"),
        (FIELDS | {"certificates": [certificate("small", bits=1024)]}, "certificates"),
        ({"metadata": "<a/>"}, "metadata"),
    ):
        refused = site.ask("POST", PATH, key, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), body
    assert site.ask("POST", PATH, key, {"metadata": metadata(certificate("idp"))}).status_code == 200
    changed = site.ask("POST", PATH, key, {"groups_attribute": "groups", "enabled": False}).json()
    assert site.ask("GET", PATH, key).json() == changed
    shown = (changed["entity_id"], changed["sso_url"], changed["groups_attribute"], changed["enabled"])
    assert shown == (ENTITY_ID, SSO_URL, "groups", False)
    assert [one["value"] for one in changed["certificates"]] == [certificate("idp")]
    assert changed["metadata_path"] == f"/console/saml/{ours.tenant_id}/metadata"
    (entry, *_) = site.do(site.accounts.audit.list(ours.tenant_id))
    assert entry.type == "saml_connection.updated"
    assert entry.details == {"groups_attribute": "groups", "is_enabled": False}
    gone = site.ask("DELETE", PATH, key)
    assert gone.json() == {"id": changed["id"], "object": f"{changed['object']}.deleted", "deleted": True}
    assert site.ask("DELETE", PATH, key).status_code == 404


def test_only_owners_set_it_and_add_groups(site: Site, ours: Party) -> None:
    account = site.do(
        site.accounts.users.create(ours.tenant_id, ours.mail("admin-saml"), "a long password", role="admin")
    )
    keys = site.accounts.keys
    of_admin = site.do(keys.create(ours.tenant_id, "theirs", OPERATOR, kind="admin", user_id=account.user_id))
    for verb, path, body in (
        ("POST", PATH, FIELDS),
        ("DELETE", PATH, None),
        ("POST", GROUPS, {"name": "Owners"}),
    ):
        refused = site.ask(verb, path, of_admin.plaintext, body)
        assert refused.status_code == 403, (verb, path, refused.text)
        assert site.ask(verb, path, ours.key, body).status_code in (401, 403)
    made = site.ask("POST", GROUPS, ours.admin_key, {"name": "Makers"}).json()
    assert made["is_scim_managed"] is False
    taken = site.ask("POST", GROUPS, ours.admin_key, {"name": "makers"})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "name_taken")
    one = f"{GROUPS}/{made['id']}"
    assert site.ask("DELETE", one, of_admin.plaintext).status_code == 403
    assert site.ask("DELETE", one, ours.admin_key).status_code == 200
    assert site.ask("DELETE", one, ours.admin_key).status_code == 404
