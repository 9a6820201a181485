"""`client.admin.organization.*` of the stock client, blocking and asynchronous, over real accounts."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest

from tests.api.conftest import wait_until
from tests.api.organization.site import Party, Site

PASSWORD = "correct horse battery"


def invite_and_accept(site: Site, organization: Any, email: str, role: str = "reader", **more: Any) -> str:
    """The user's id."""
    made = organization.invites.create(email=email, role=role, **more)
    accepted = site.ask(
        "POST", "/v1/organization/invites/accept", None, {"token": made.token, "password": PASSWORD}
    )
    assert accepted.status_code == 200, accepted.text
    return str(accepted.json()["id"])


def test_projects(site: Site, ours: Party, organization: Any) -> None:
    made = [organization.projects.create(name=f"project {number}") for number in range(5)]
    assert made[0].object == "organization.project"
    assert (made[0].status, made[0].archived_at) == ("active", None)
    assert abs(made[0].created_at - time.time()) < 60
    page = organization.projects.list(limit=2)
    assert [project.id for project in page.data] == [made[4].id, made[3].id]
    assert page.has_more
    every = [*(project.id for project in reversed(made)), ours.project_id]
    assert [project.id for project in page] == every
    rest = organization.projects.list(limit=100, after=made[1].id)
    assert [project.id for project in rest.data] == every[4:]
    renamed = organization.projects.update(made[0].id, name="renamed")
    assert organization.projects.retrieve(made[0].id).name == renamed.name == "renamed"
    key = site.ask(
        "POST", f"/v1/organization/projects/{made[0].id}/api_keys", ours.admin_key, {"name": "k"}
    ).json()["value"]
    assert not site.refused(key)
    archived = organization.projects.archive(made[0].id)
    assert archived.status == "archived"
    assert archived.archived_at is not None
    site.soon_refused(key)
    assert made[0].id not in [project.id for project in organization.projects.list(limit=100)]
    assert made[0].id in [project.id for project in organization.projects.list(include_archived=True)]
    with pytest.raises(openai.ConflictError) as kept:
        organization.projects.archive(ours.project_id)
    assert kept.value.code == "default_project"
    with pytest.raises(openai.ConflictError) as taken:
        organization.projects.create(name="project 1")
    assert taken.value.code == "name_taken"
    with pytest.raises(openai.NotFoundError):
        organization.projects.retrieve("proj_0")


def test_invitations(site: Site, ours: Party, organization: Any) -> None:
    extra = organization.projects.create(name="extra")
    places = [{"id": extra.id, "role": "owner"}]
    made = organization.invites.create(email=ours.mail("Ada").upper(), role="owner", projects=places)
    assert (made.object, made.email, made.role) == (
        "organization.invite",
        ours.mail("ada"),
        "owner",
    )
    assert (made.status, made.accepted_at) == ("pending", None)
    assert [(project.id, project.role) for project in made.projects] == [(extra.id, "owner")]
    assert made.expires_at > time.time() + 6 * 86_400
    shown = organization.invites.retrieve(made.id)
    assert not hasattr(shown, "token")
    plain = organization.invites.create(email=ours.mail("bob"), role="reader")
    assert [(project.id, project.role) for project in plain.projects] == [(ours.project_id, "member")]
    assert organization.invites.create(email=ours.mail("eve"), role="reader", projects=[]).projects == []
    body = {"token": made.token, "password": PASSWORD, "name": "Ada"}
    accepted = site.ask("POST", "/v1/organization/invites/accept", None, body).json()
    assert (accepted["email"], accepted["role"]) == (ours.mail("ada"), "owner")
    assert accepted["organization"] == {"id": ours.tenant_id, "name": ours.name}
    assert organization.invites.retrieve(made.id).status == "accepted"
    again = site.ask("POST", "/v1/organization/invites/accept", None, body)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")
    assert made.token not in again.text
    user = organization.users.retrieve(accepted["id"])
    assert (user.name, user.role) == ("Ada", "owner")
    assert [(place.id, place.role) for place in user.projects.data] == [(extra.id, "owner")]
    assert site.do(site.accounts.users.authenticate(ours.mail("ada"), PASSWORD)) is not None
    listed = organization.invites.list(limit=1)
    assert [invite.email for invite in listed] == [
        ours.mail("eve"),
        ours.mail("bob"),
        ours.mail("ada"),
    ]
    gone = organization.invites.delete(plain.id)
    assert (gone.deleted, gone.object) == (True, "organization.invite.deleted")
    late = {"token": plain.token, "password": PASSWORD}
    assert site.ask("POST", "/v1/organization/invites/accept", None, late).status_code == 404
    with pytest.raises(openai.ConflictError) as accepted_already:
        organization.invites.delete(made.id)
    assert accepted_already.value.code == "invite_accepted"


def test_users_and_roles(site: Site, ours: Party, organization: Any) -> None:
    ada = invite_and_accept(site, organization, ours.mail("ada"), "owner")
    bob = invite_and_accept(site, organization, ours.mail("bob"))
    assert organization.users.retrieve(bob).role == "reader"
    page = organization.users.list(limit=2)
    assert [user.id for user in page.data] == [bob, ada]
    assert [user.id for user in page] == [bob, ada, ours.owner_id]
    found = organization.users.list(emails=[ours.mail("ADA"), ours.mail("nobody")])
    assert [user.id for user in found] == [ada]
    assert (found.data[0].object, found.data[0].user.email) == (
        "organization.user",
        ours.mail("ada"),
    )
    assert organization.users.update(bob, role="owner").role == "owner"
    assert organization.users.update(bob, role_id="role-developer").role == "developer"
    assert organization.users.update(bob, role="viewer").role == "reader"
    with pytest.raises(openai.BadRequestError) as unknown:
        organization.users.update(bob, role="emperor")
    assert unknown.value.param == "role"
    roles = list(organization.roles.list(limit=2))
    assert [role.name for role in roles] == ["owner", "admin", "developer", "billing", "viewer"]
    assert organization.roles.retrieve("role-viewer").permissions == roles[-1].permissions
    assert "members.write" in roles[0].permissions
    assert [role.id for role in organization.users.roles.list(bob)] == ["role-viewer"]
    assert organization.users.roles.retrieve("role-viewer", user_id=bob).predefined_role
    with pytest.raises(openai.NotFoundError):
        organization.users.roles.retrieve("role-owner", user_id=bob)
    gone = organization.users.delete(bob)
    assert (gone.id, gone.object, gone.deleted) == (bob, "organization.user.deleted", True)
    with pytest.raises(openai.NotFoundError):
        organization.users.retrieve(bob)
    organization.users.delete(ada)
    for change in (
        lambda: organization.users.delete(ours.owner_id),
        lambda: organization.users.update(ours.owner_id, role="reader"),
    ):
        with pytest.raises(openai.ConflictError) as last:
            change()
        assert last.value.code == "last_owner"


def test_users_of_projects(site: Site, ours: Party, organization: Any) -> None:
    users = organization.projects.users
    project = organization.projects.create(name="shared").id
    ada = invite_and_accept(site, organization, ours.mail("ada"), projects=[])
    bob = invite_and_accept(site, organization, ours.mail("bob"), projects=[])
    added = users.create(project, user_id=ada, role="member")
    assert (added.id, added.role, added.email) == (ada, "member", ours.mail("ada"))
    assert added.object == "organization.project.user"
    assert users.create(project, email=ours.mail("bob"), role="owner").id == bob
    assert [user.id for user in users.list(project, limit=1)] == [bob, ada]
    assert users.update(ada, project_id=project, role="owner").role == "owner"
    assert users.retrieve(ada, project_id=project).role == "owner"
    body = {"name": "hers", "user_id": ada}
    path = f"/v1/organization/projects/{project}/api_keys"
    key = site.ask("POST", path, ours.admin_key, body).json()
    assert (key["owner"]["type"], key["owner"]["user"]["id"]) == ("user", ada)
    assert users.delete(ada, project_id=project).deleted
    site.soon_refused(key["value"])
    assert site.ask("POST", path, ours.admin_key, body).status_code == 404, "not in the project any more"
    for user in (ada, "user_0"):
        with pytest.raises(openai.NotFoundError):
            users.retrieve(user, project_id=project)
    with pytest.raises(openai.BadRequestError) as neither:
        users.create(project, role="member")
    assert neither.value.param == "user_id"


def test_admin_keys(site: Site, ours: Party, organization: Any) -> None:
    keys = organization.admin_api_keys
    made = keys.create(name="second", expires_in_seconds=3600)
    assert made.object == "organization.admin_api_key"
    assert made.value.startswith("rs_admin_")
    assert made.redacted_value == f"{made.value[:13]}..."
    assert 3500 < made.expires_at - time.time() < 3700
    assert site.ask("GET", "/v1/organization/projects", made.value).status_code == 200
    shown = keys.retrieve(made.id)
    assert not hasattr(shown, "value")
    assert made.value not in shown.model_dump_json()
    third = keys.create(name="third")
    assert [key.name for key in keys.list(limit=1)] == ["third", "second", "first"]
    assert [key.name for key in keys.list(order="asc", after=made.id)] == ["third"]
    gone = keys.delete(third.id)
    assert (gone.deleted, gone.object) == (True, "organization.admin_api_key.deleted")
    site.soon_refused(third.value)
    with pytest.raises(openai.NotFoundError):
        keys.retrieve(third.id)
    assert [key.name for key in keys.list()] == ["second", "first"]
    inference = site.ask("POST", "/v1/organization/admin_api_keys", ours.key, {"name": "no"})
    assert inference.status_code == 403


def test_service_accounts(site: Site, ours: Party, organization: Any) -> None:
    accounts, project = organization.projects.service_accounts, ours.project_id
    made = accounts.create(project, name="ci", expires_in_seconds=600)
    assert (made.object, made.role) == ("organization.project.service_account", "member")
    assert made.api_key.object == "organization.project.service_account.api_key"
    assert 500 < made.api_key.expires_at - time.time() < 700
    assert not site.refused(made.api_key.value)
    bare = accounts.create(project, name="bare", create_service_account_only=True)
    assert bare.api_key is None
    another = accounts.api_keys.create(bare.id, project_id=project, name="n", scopes=["models.read"])
    assert (another.name, another.expires_at) == ("n", None)
    assert not site.refused(another.value)
    assert site.ask("GET", "/v1/files", another.value).status_code == 403
    assert [account.id for account in accounts.list(project, limit=1)] == [bare.id, made.id]
    assert accounts.update(made.id, project_id=project, name="build", role="owner").role == "owner"
    assert accounts.retrieve(made.id, project_id=project).name == "build"
    listed = organization.projects.api_keys.list(project)
    owners = {key.id: key.owner for key in listed}
    assert owners[another.id].type == "service_account"
    assert owners[another.id].service_account.id == bare.id
    gone = accounts.delete(made.id, project_id=project)
    assert gone.object == "organization.project.service_account.deleted"
    site.soon_refused(made.api_key.value)
    with pytest.raises(openai.NotFoundError):
        accounts.retrieve(made.id, project_id=project)
    with pytest.raises(openai.BadRequestError) as senseless:
        accounts.create(project, name="x", create_service_account_only=True, expires_in_seconds=5)
    assert senseless.value.param == "expires_in_seconds"


def test_a_user_is_shut_out_and_let_in(site: Site, ours: Party, organization: Any) -> None:
    ada = invite_and_accept(site, organization, ours.mail("ada"), "owner")
    keys = f"/v1/organization/projects/{ours.project_id}/api_keys"
    own = site.ask("POST", keys, ours.admin_key, {"name": "hers", "user_id": ada}).json()
    assert not site.refused(own["value"])
    out = organization.users.update(ada, extra_body={"enabled": False})
    assert (out.object, out.user.enabled, out.user.banned) == ("organization.user", False, True)
    assert abs(out.user.banned_at - time.time()) < 60
    site.soon_refused(own["value"])
    seen = organization.projects.api_keys.retrieve(own["id"], project_id=ours.project_id)
    assert seen.owner_project_access == "inactive"
    assert site.do(site.accounts.users.authenticate(ours.mail("ada"), PASSWORD)) is None
    back = organization.users.update(ada, extra_body={"enabled": True})
    assert (back.user.enabled, back.user.banned, back.user.banned_at) == (True, False, None)
    site.soon(lambda: not site.refused(own["value"]))
    types = ["user.disabled", "user.enabled"]
    entries = organization.audit_logs.list(event_types=types, limit=5).data
    assert [(entry.type, entry.target["id"]) for entry in entries] == [
        ("user.enabled", ada),
        ("user.disabled", ada),
    ]
    with pytest.raises(openai.BadRequestError) as mixed:
        organization.users.update(ada, role="reader", extra_body={"enabled": False})
    assert mixed.value.param == "enabled"
    organization.users.update(ada, extra_body={"enabled": False})
    with pytest.raises(openai.ConflictError) as last:
        organization.users.update(ours.owner_id, extra_body={"enabled": False})
    assert last.value.code == "last_owner"


def test_project_keys(site: Site, ours: Party, organization: Any) -> None:
    keys, project = organization.projects.api_keys, ours.project_id
    path = f"/v1/organization/projects/{project}/api_keys"
    made = site.ask("POST", path, ours.admin_key, {"name": "app", "models": ["sapling:*"]}).json()
    shown = keys.retrieve(made["id"], project_id=project)
    assert (shown.object, shown.name) == ("organization.project.api_key", "app")
    assert (shown.owner_project_access, shown.models) == ("active", ["sapling:*"])
    assert made["value"] not in shown.model_dump_json()
    assert [key.name for key in keys.list(project, limit=1)] == ["app", "main"]
    assert [key.name for key in keys.list(project, owner_project_access="inactive")] == []
    assert site.ask("GET", "/v1/models", made["value"]).status_code == 200
    changed = keys.update(made["id"], project_id=project, scopes=["files.read"], expires_in_seconds=60)
    assert (changed.scopes, changed.expires_at is not None) == (["files.read"], True)

    def restricted() -> bool:
        return site.ask("GET", "/v1/models", made["value"]).status_code == 403

    site.soon(restricted)
    with pytest.raises(openai.BadRequestError) as unknown:
        keys.update(made["id"], project_id=project, scopes=["api.all.read"])
    assert unknown.value.param == "scopes"
    unlimited = site.ask("POST", f"{path}/{made['id']}", ours.admin_key, {"expires_in_seconds": None})
    assert unlimited.json()["expires_at"] is None
    gone = keys.delete(made["id"], project_id=project)
    assert gone.object == "organization.project.api_key.deleted"
    site.soon_refused(made["value"])
    with pytest.raises(openai.NotFoundError):
        keys.retrieve(made["id"], project_id=project)
    other = organization.projects.create(name="other").id
    main = keys.list(project).data[0].id
    for ask in (keys.retrieve, keys.delete):
        with pytest.raises(openai.NotFoundError):
            ask(main, project_id=other)


def test_the_audit_log(site: Site, ours: Party, organization: Any) -> None:
    project = organization.projects.create(name="watched")
    organization.projects.update(project.id, name="seen")
    invite = organization.invites.create(email=ours.mail("ada"), role="reader")
    page = organization.audit_logs.list(limit=2)
    newest = page.data[0]
    assert (newest.type, newest.invite_sent.id) == ("invite.sent", invite.id)
    assert newest.invite_sent.data.email == ours.mail("ada")
    assert newest.actor.type == "api_key"
    admin = organization.admin_api_keys.list().data[0].id
    assert newest.actor.api_key.id == admin
    assert abs(newest.effective_at - time.time()) < 60
    every = list(page)
    assert [entry.seq for entry in every] == list(range(len(every), 0, -1))
    assert every[-1].type == "organization.created"
    updated = organization.audit_logs.list(event_types=["project.updated", "project.created"], limit=2)
    assert [entry.type for entry in updated.data] == ["project.updated", "project.created"]
    assert updated.data[0].project_updated.changes_requested.name == "seen"
    assert updated.data[0].project.id == project.id
    logs = organization.audit_logs
    assert {entry.target["id"] for entry in logs.list(resource_ids=[invite.id])} == {invite.id}
    assert len(list(logs.list(project_ids=[project.id]))) == 2
    assert len(list(logs.list(actor_ids=[admin]))) == 3
    assert list(logs.list(actor_emails=[ours.mail("nobody")])) == []
    behind = logs.list(after=every[1].id, limit=1)
    assert behind.data[0].id == every[2].id
    ahead = logs.list(before=every[3].id, limit=2)
    assert [entry.id for entry in ahead.data] == [every[1].id, every[2].id]
    assert ahead.has_more
    now = newest.effective_at
    assert list(logs.list(effective_at={"gt": now + 1})) == []
    assert len(list(logs.list(effective_at={"gte": every[-1].effective_at, "lte": now}))) == len(every)
    assert list(logs.list(effective_at={"lt": every[-1].effective_at})) == []
    with pytest.raises(openai.BadRequestError) as absent:
        logs.list(after="audit_log-0")
    assert absent.value.param == "after"
    proof = site.ask("GET", "/v1/organization/audit_logs/verification", ours.admin_key).json()
    assert (proof["intact"], proof["last_id"]) == (True, newest.id)
    assert proof["digest"] == newest.digest


def test_data_retention(site: Site, ours: Party, organization: Any) -> None:
    retention = organization.data_retention
    assert retention.retrieve().type == "modified_abuse_monitoring"
    for kind in ("zero_data_retention", "modified_abuse_monitoring"):
        assert retention.update(retention_type=kind).type == kind
        wait_until(lambda kind=kind: retention.retrieve().type == kind, 30)
    with pytest.raises(openai.BadRequestError):
        retention.update(retention_type="enhanced_zero_data_retention")
