from __future__ import annotations

from dataclasses import replace

import pytest

from tenants.actors import OPERATOR, Actor
from tenants.context import TenantContext
from tenants.ip_networks import is_inside, parse_networks
from tenants.roles import RIGHTS, RIGHTS_OF, ROLES, admin_scopes, may
from tenants.web_origins import parse_origins


def holder(*models: str) -> TenantContext:
    return TenantContext("ten_1", "acme", "key_1", "inference", models=frozenset(models))


@pytest.mark.parametrize(
    ("models", "may_use", "may_not"),
    [
        ((), ("base", "base:one", "base:one@3", "other"), ()),
        (("base",), ("base",), ("base:one", "base:one@1", "basement", "other")),
        (("base:*",), ("base:one", "base:one@2"), ("base", "other:one", "base2:one")),
        (("base:one",), ("base:one", "base:one@7"), ("base", "base:two", "base:one2", "base:on")),
        (("base:one@7",), ("base:one@7",), ("base:one", "base:one@8", "base:one@70", "base")),
        (("base", "base:two"), ("base", "base:two"), ("base:one", "adp_0123456789abcdefghjkmnpqrs")),
    ],
)
def test_a_list_of_models(
    models: tuple[str, ...], may_use: tuple[str, ...], may_not: tuple[str, ...]
) -> None:
    key = holder(*models)
    assert [name for name in may_use if not key.may_use(name)] == []
    assert [name for name in may_not if key.may_use(name)] == []


def test_the_rule_of_a_project() -> None:
    def key(*models: str, project: tuple[str, ...], denies: bool) -> TenantContext:
        return replace(holder(*models), project_models=frozenset(project), project_denies=denies)

    allowing = key("base", "base:one", project=("base:*",), denies=False)
    assert [allowing.may_use(name) for name in ("base", "base:one", "base:two")] == [False, True, False]
    denying = key(project=("base:one", "base:two@3"), denies=True)
    asked = ("base", "base:one", "base:one@2", "base:two", "base:two@3", "base:two@4")
    assert [denying.may_use(name) for name in asked] == [True, False, False, True, False, True]


@pytest.mark.parametrize(
    ("written", "inside", "outside"),
    [
        ((), ("203.0.113.9", "::1", None, "unix"), ()),
        (("192.0.2.7",), ("192.0.2.7", "::ffff:192.0.2.7"), ("192.0.2.8", "::1", None, "unix", "")),
        (("10.0.0.0/8", "2001:db8::/32"), ("10.255.0.1", "2001:db8:1::2"), ("11.0.0.1", "2001:db9::1")),
        (("fe80::/10",), ("fe80::1%eth0",), ("10.0.0.1",)),
        (("::ffff:10.0.0.0/104",), ("10.1.2.3",), ("11.1.2.3",)),
        (("0.0.0.0/0",), ("8.8.8.8",), ("2001:db8::1",)),
    ],
)
def test_networks(
    written: tuple[str, ...], inside: tuple[str | None, ...], outside: tuple[str | None, ...]
) -> None:
    networks = parse_networks(written)
    assert [address for address in inside if not is_inside(address, networks)] == []
    assert [address for address in outside if is_inside(address, networks)] == []


@pytest.mark.parametrize(
    "written", ["10.0.0.1/8", "example.com", "", "10.0.0.0/33", "1.2.3", "10.0.0.0/8\x00"]
)
def test_what_is_no_network_is_refused_by_name(written: str) -> None:
    with pytest.raises(ValueError, match="networks"):
        parse_networks([written])


def test_origins_are_written_as_browsers_send_them() -> None:
    written = ["https://App.Example:443", "https://app.example", "http://[::1]:80", "tauri://localhost"]
    assert parse_origins(written) == ["http://[::1]", "https://app.example", "tauri://localhost"]
    with pytest.raises(ValueError, match="at most"):
        parse_origins(f"https://app-{n}.example" for n in range(33))


@pytest.mark.parametrize(
    "written", ["*", "null", "app.example", "https://", "https://app.example/", "https://a b", "https://a:x"]
)
def test_what_is_no_origin_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="origins"):
        parse_origins([written])


def test_networks_are_few_and_each_is_there_once() -> None:
    assert len(parse_networks(["10.0.0.0/8", "10.0.0.0/8", "::/0"])) == 2
    with pytest.raises(ValueError, match="at most"):
        parse_networks(f"10.0.{n}.0/24" for n in range(65))


def test_every_role_has_rights_and_owners_have_all() -> None:
    assert set(RIGHTS_OF) == set(ROLES)
    assert RIGHTS_OF["owner"] == RIGHTS
    assert all(rights <= RIGHTS for rights in RIGHTS_OF.values())
    changing = {right for right in RIGHTS if right.endswith(".write")}
    assert RIGHTS_OF["viewer"] & changing == set()
    assert RIGHTS_OF["developer"] & changing == {"adapters.write"}
    assert RIGHTS_OF["billing"] & changing == {"billing.write"}
    assert not may("admin", "billing.write")
    assert not any(may(role, "audit.read") for role in ("developer", "billing", "viewer"))


def test_scopes_of_a_role_are_everything_for_owners_alone() -> None:
    assert [role for role in ROLES if not admin_scopes(role)] == ["owner"]
    assert "usage.read" in admin_scopes("billing")
    assert "usage.read" not in admin_scopes("viewer")


def test_the_log_names_who_it_was_and_nothing_else() -> None:
    caller = TenantContext("ten_1", "acme", "key_1", "admin", frozenset({"usage.read"}), user_id="usr_1")
    actor = Actor.of_key(caller, "192.0.2.7", "req_1")
    assert actor.scopes == {"usage.read"}
    assert actor.audit_fields() == {
        "type": "api_key",
        "id": "key_1",
        "user_id": "usr_1",
        "address": "192.0.2.7",
        "request_id": "req_1",
    }
    assert OPERATOR.audit_fields() == {"type": "operator", "id": "operator"}
