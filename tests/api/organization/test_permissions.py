"""What keys may do: by kind, scopes, networks, end; and that nobody gives away more than they hold."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tenants import keys
from tests.api.everything import Operation
from tests.api.organization.site import Party, Site

ACCOUNT = "/v1/organization"
VALUES = {"version": "1", "role_id": "role-viewer", "rate_limit_id": "rl-*"}
OF_USAGE = {"usageCompletions", "costs", "usageExport"}
"""What the scope `usage.read` is for."""


def operations(site: Site) -> list[Operation]:
    document = site.ask("GET", "/openapi.json", None).json()
    return [
        Operation(verb, path, said["operationId"], said, document)
        for path, verbs in document["paths"].items()
        for verb, said in verbs.items()
        if path.startswith(ACCOUNT)
    ]


def url(operation: Operation) -> str:
    values = {name: VALUES.get(name, "nobodys_0") for name in operation.path_parameters}
    start = "?start_time=0" if "start_time" in operation.query_parameters else ""
    return operation.url(values) + start


def test_every_route_asks_for_an_admin_key_with_its_scope(site: Site, ours: Party) -> None:
    made = site.ask(
        "POST", f"{ACCOUNT}/admin_api_keys", ours.admin_key, {"name": "few", "scopes": ["usage.read"]}
    ).json()["value"]
    scopes = set()
    open_to_all = [operation.name for operation in operations(site) if not operation.said["security"]]
    assert open_to_all == ["acceptInvite"], "by the token of an invitation"
    asked = [operation for operation in operations(site) if operation.name not in open_to_all]
    for operation in asked:
        for key, status in ((None, 401), ("rs_admin_made_up", 401), (ours.key, 403), (made, 403)):
            answer = site.ask(operation.verb.upper(), url(operation), key, {})
            if operation.name in OF_USAGE and key == made:
                assert answer.status_code == 200
                continue
            assert answer.status_code == status, (operation.name, answer.text)
            if key == made:
                message = answer.json()["error"]["message"]
                assert "lacks the scope 'organization." in message, operation.name
                scopes.add(message.split("'")[1])
    assert len(asked) >= 50
    assert scopes == {
        f"organization.{what}"
        for what in (
            *("members.read", "members.write", "projects.read", "projects.write", "keys.read", "keys.write"),
            *("limits.read", "limits.write", "audit.read", "billing.read", "billing.write"),
        )
    }


def test_every_body_refuses_what_it_does_not_know_by_its_name(site: Site, ours: Party) -> None:
    asked = 0
    for operation in operations(site):
        if "requestBody" not in operation.said:
            continue
        answer = site.ask(operation.verb.upper(), url(operation), ours.admin_key, {"colour": "red"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "colour"), (operation.name, answer.text)
        assert error["code"] == "unsupported_parameter"
        asked += 1
    assert asked >= 20


def test_every_list_refuses_a_query_it_does_not_know(site: Site, ours: Party) -> None:
    for operation in operations(site):
        if "limit" in operation.query_parameters:
            path = url(operation) + ("&" if "?" in url(operation) else "?") + "colour=red"
            answer = site.ask("GET", path, ours.admin_key)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "colour"), operation.name


def test_values_that_are_wrong_are_named(site: Site, ours: Party) -> None:
    project = f"{ACCOUNT}/projects/{ours.project_id}"
    for verb, path, body, param in (
        ("POST", f"{ACCOUNT}/projects", {}, "name"),
        ("POST", f"{ACCOUNT}/projects", {"name": " "}, "name"),
        ("POST", f"{ACCOUNT}/projects", {"name": "a\u202eb"}, "name"),
        ("POST", f"{ACCOUNT}/invites", {"email": "nobody", "role": "reader"}, "email"),
        ("POST", f"{ACCOUNT}/invites", {"email": "a@b", "role": "emperor"}, "role"),
        ("POST", f"{ACCOUNT}/admin_api_keys", {"name": "k", "networks": ["10.0.0.1/8"]}, "networks"),
        ("POST", f"{ACCOUNT}/admin_api_keys", {"name": "k", "scopes": ["everything"]}, "scopes"),
        ("POST", f"{project}/api_keys", {"name": "k", "origins": ["https://a.example/"]}, "origins"),
        ("POST", f"{project}/api_keys", {"name": "k", "models": ["sapling:a:b"]}, "models"),
        ("POST", f"{project}/api_keys", {"name": "k", "scopes": ["usage.read"]}, "scopes"),
        ("POST", f"{project}/api_keys", {"name": "k", "expires_in_seconds": 0}, "expires_in_seconds"),
        ("PUT", f"{ACCOUNT}/limits", {"metric": "smiles", "amount": 1}, "metric"),
        ("PUT", f"{ACCOUNT}/limits", {"metric": "tokens_per_day", "amount": -1}, "amount"),
        ("PUT", f"{ACCOUNT}/limits", {"metric": "adapters", "amount": 1, "model": "sapling"}, "metric"),
        ("PUT", f"{ACCOUNT}/limits", {"metric": "adapters", "amount": 101}, "amount"),
    ):
        answer = site.ask(verb, path, ours.admin_key, body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_restricted_key_gives_away_no_more_than_it_holds(site: Site, ours: Party) -> None:
    held = ["organization.keys.write", "organization.keys.read", "organization.members.write"]

    def make(key: str, scopes: list[str]) -> Any:
        return site.ask("POST", f"{ACCOUNT}/admin_api_keys", key, {"name": "k", "scopes": scopes})

    restricted = make(ours.admin_key, held).json()["value"]
    for scopes in ([], ["usage.read"], [*held, "usage.read"]):
        answer = make(restricted, scopes)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_permissions")
    narrower = make(restricted, held[:1])
    assert narrower.status_code == 200
    path = f"{ACCOUNT}/admin_api_keys/{narrower.json()['id']}"
    assert site.ask("POST", path, restricted, {"scopes": []}).status_code == 403
    everything = site.ask("GET", f"{ACCOUNT}/admin_api_keys?order=asc&limit=1", ours.admin_key)
    rotate = f"{ACCOUNT}/admin_api_keys/{everything.json()['data'][0]['id']}/rotate"
    assert site.ask("POST", rotate, restricted, {}).status_code == 403
    for role in ("owner", "admin", "developer", "reader"):
        invite = site.ask(
            "POST", f"{ACCOUNT}/invites", restricted, {"email": "a@b.example", "role": role, "projects": []}
        )
        assert (invite.status_code, invite.json()["error"]["param"]) == (403, "role"), role
    promoted = site.ask("POST", f"{ACCOUNT}/users/{ours.owner_id}", restricted, {"role": "reader"})
    assert promoted.status_code == 403


def test_rotation_lets_the_old_key_work_until_its_grace_ends(site: Site, ours: Party) -> None:
    path = f"{ACCOUNT}/projects/{ours.project_id}/api_keys"
    terms = {
        "name": "k",
        "scopes": ["models.read"],
        "models": ["sapling"],
        "networks": ["127.0.0.0/8"],
        "origins": ["https://app.example"],
    }
    old = site.ask("POST", path, ours.admin_key, terms).json()
    new = site.ask("POST", f"{path}/{old['id']}/rotate", ours.admin_key, {"grace_seconds": 60}).json()
    assert {name: new[name] for name in terms} == terms
    assert new["value"] != old["value"]
    assert not site.refused(new["value"])
    assert not site.refused(old["value"])
    shown = site.ask("GET", f"{path}/{old['id']}", ours.admin_key).json()
    assert shown["replaced_by"] == new["id"]
    assert shown["rotated_at"] <= shown["expires_at"] <= shown["rotated_at"] + 60
    again = site.ask("POST", f"{path}/{old['id']}/rotate", ours.admin_key, {})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "key_not_active")
    last = site.ask("POST", f"{path}/{new['id']}/rotate", ours.admin_key, {"grace_seconds": 0}).json()
    site.soon_refused(new["value"])
    assert not site.refused(last["value"])


def test_a_key_is_good_in_its_networks_alone(site: Site, ours: Party) -> None:
    path = f"{ACCOUNT}/projects/{ours.project_id}/api_keys"
    body = {"name": "k", "networks": ["192.0.2.0/24"]}
    made = site.ask("POST", path, ours.admin_key, body).json()
    refused = site.ask("GET", "/v1/models", made["value"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
    assert "127.0.0.1" in refused.json()["error"]["message"]
    site.ask("POST", f"{path}/{made['id']}", ours.admin_key, {"networks": ["192.0.2.0/24", "127.0.0.1"]})
    site.soon(lambda: site.ask("GET", "/v1/models", made["value"]).status_code == 200)


def test_pages_may_use_a_key_once_it_has_their_origin(site: Site, ours: Party) -> None:
    path = f"{ACCOUNT}/projects/{ours.project_id}/api_keys"
    made = site.ask("POST", path, ours.admin_key, {"name": "k"}).json()
    assert made["origins"] == []
    page = {
        "authorization": f"Bearer {made['value']}",
        "origin": "https://app.example",
        "sec-fetch-site": "cross-site",
    }

    def ask() -> httpx.Response:
        return httpx.get(f"{site.url}/v1/models", headers=page, trust_env=False)

    assert ask().status_code == 403
    changed = site.ask("POST", f"{path}/{made['id']}", ours.admin_key, {"origins": ["https://APP.example"]})
    assert changed.json()["origins"] == ["https://app.example"]
    site.soon(lambda: ask().status_code == 200)
    assert ask().headers["access-control-allow-origin"] == "https://app.example"


def test_what_a_plan_sets_can_only_be_lowered(site: Site, ours: Party) -> None:
    limits = f"{ACCOUNT}/limits"
    plan = site.ask("GET", ACCOUNT, ours.admin_key).json()["plan"]
    assert (plan["name"], plan["service_tiers"]["flex"]["allowed"]) == ("standard", True)
    made = site.ask("PUT", limits, ours.admin_key, {"metric": "adapters", "amount": 3}).json()
    assert (made["scope"], made["amount"], made["used"]) == ("organization", 3, None)
    key = site.ask(
        "POST", f"{ACCOUNT}/projects/{ours.project_id}/api_keys", ours.admin_key, {"name": "k"}
    ).json()
    body = {"metric": "tokens_per_day", "amount": 10, "api_key_id": key["id"], "model": "sapling:*"}
    of_key = site.ask("PUT", limits, ours.admin_key, body).json()
    assert (of_key["scope"], of_key["api_key_id"], of_key["model"]) == ("key", key["id"], "sapling:*")
    assert (of_key["used"], of_key["held"], of_key["remaining"]) == (0, 0, 10)
    assert of_key["resets_at"] % 86_400 == 0
    assert site.ask("GET", f"{limits}/{of_key['id']}", ours.admin_key).json() == of_key
    listed = site.ask("GET", f"{limits}?limit=1", ours.admin_key).json()
    rest = site.ask("GET", f"{limits}?after={listed['last_id']}", ours.admin_key).json()
    assert {listed["last_id"], rest["last_id"]} == {made["id"], of_key["id"]}
    assert (listed["has_more"], rest["has_more"]) == (True, False)
    again = site.ask("PUT", limits, ours.admin_key, body | {"amount": 20}).json()
    assert (again["id"], again["amount"]) == (of_key["id"], 20)
    assert site.ask("DELETE", f"{limits}/{of_key['id']}", ours.admin_key).json()["deleted"]
    assert site.ask("DELETE", f"{limits}/{of_key['id']}", ours.admin_key).status_code == 404
    entries = site.ask("GET", f"{ACCOUNT}/audit_logs?limit=2", ours.admin_key).json()["data"]
    assert [entry["type"] for entry in entries] == ["limit.deleted", "limit.set"]
    assert entries[1]["details"]["amount_before"] == 10


@pytest.mark.parametrize("token", ["rs_invite_made_up", "q7", ""])
def test_a_token_that_is_none_makes_nobody(site: Site, ours: Party, token: str) -> None:
    body = {"token": token, "password": "correct horse battery"}
    answer = site.ask("POST", f"{ACCOUNT}/invites/accept", None, body)
    assert answer.status_code in (400, 404)
    assert token == "" or token not in answer.text


def test_a_made_up_token_is_refused_before_its_password_is_hashed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hash_password(password: str) -> str:
        raise AssertionError("work for somebody who was given no token")

    monkeypatch.setattr("tenants.passwords.hash_password", hash_password)
    token = keys.generate_invite().plaintext
    body = {"token": token, "password": "correct horse battery"}
    assert site.ask("POST", f"{ACCOUNT}/invites/accept", None, body).status_code == 404
