"""PATCH operations of SCIM, as the RFC has them and as Okta and Entra ID send them."""

from __future__ import annotations

from typing import Any

import pytest

from api.errors import InvalidScim
from api.scim.patch import patched
from api.scim.resources import USER, read_group, read_user

EXTENSION = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"

WORK = {"value": "ada@acme.example", "type": "work", "primary": True}
HOME = {"value": "ada@home.example", "type": "home"}
ADA = {
    "userName": "ada",
    "displayName": "Ada",
    "name": {"givenName": "Ada", "familyName": "Byron"},
    "emails": [WORK, HOME],
    "active": True,
}


def operated(document: dict[str, Any], *operations: dict[str, Any]) -> dict[str, Any]:
    return patched(document, {"Operations": list(operations)})


@pytest.mark.parametrize(
    ("operation", "changed"),
    [
        ({"op": "replace", "path": "displayName", "value": "A."}, {"displayName": "A."}),
        ({"op": "Replace", "value": {"active": False}}, {"active": False}),
        ({"op": "add", "path": "name.givenName", "value": "A."}, {"name": ADA["name"] | {"givenName": "A."}}),
        ({"op": "replace", "value": {"name.familyName": "L."}}, {"name": ADA["name"] | {"familyName": "L."}}),
        (
            {"op": "replace", "path": "name", "value": {"familyName": "L."}},
            {"name": ADA["name"] | {"familyName": "L."}},
        ),
        ({"op": "remove", "path": "name"}, {"name": {}}),
        (
            {"op": "add", "path": "emails", "value": [HOME | {"type": "x"}]},
            {"emails": [WORK, HOME | {"type": "x"}]},
        ),
        (
            {"op": "add", "path": "emails", "value": {"value": "a@b.c", "primary": True}},
            {"emails": [WORK | {"primary": False}, HOME, {"value": "a@b.c", "primary": True}]},
        ),
        (
            {"op": "Replace", "path": 'emails[type eq "work"].value', "value": "a@b.c"},
            {"emails": [WORK | {"value": "a@b.c"}, HOME]},
        ),
        (
            {"op": "Add", "path": 'emails[type eq "other"].value', "value": "a@b.c"},
            {"emails": [WORK, HOME, {"type": "other", "value": "a@b.c"}]},
        ),
        ({"op": "remove", "path": 'emails[type eq "home"]'}, {"emails": [WORK]}),
        ({"op": "replace", "value": {"id": "other", "title": "Dr"}}, {}),
        ({"op": "add", "path": f"{EXTENSION}:department", "value": "x"}, {}),
        ({"op": "add", "path": f"{USER}:displayName", "value": "A."}, {"displayName": "A."}),
    ],
)
def test_operations_on_users(operation: dict[str, Any], changed: dict[str, Any]) -> None:
    assert operated(ADA, operation) == ADA | changed
    assert ADA["emails"] == [WORK, HOME], "the document itself is not changed"


@pytest.mark.parametrize(
    ("operation", "members"),
    [
        ({"op": "Add", "path": "members", "value": [{"value": "c"}, {"value": "a"}]}, "abc"),
        ({"op": "replace", "path": "members", "value": [{"value": "c"}]}, "c"),
        ({"op": "remove", "path": 'members[value eq "a"]'}, "b"),
        ({"op": "Remove", "path": "members", "value": [{"value": "a"}, {"value": "z"}]}, "b"),
        ({"op": "remove", "path": "members"}, ""),
    ],
)
def test_operations_on_members(operation: dict[str, Any], members: str) -> None:
    group = {"displayName": "team", "members": [{"value": "a"}, {"value": "b"}]}
    assert read_group(operated(group, operation)).member_ids == set(members)


@pytest.mark.parametrize(
    ("operation", "scim_type"),
    [
        ({"op": "move", "path": "displayName"}, "invalidSyntax"),
        ({"op": "remove"}, "noTarget"),
        ({"op": "remove", "path": "userName"}, "mutability"),
        ({"op": "replace", "path": "id", "value": "x"}, "mutability"),
        ({"op": "replace", "path": "nonsense", "value": "x"}, "invalidPath"),
        ({"op": "replace", "path": "emails[type", "value": "x"}, "invalidPath"),
        ({"op": "replace", "path": "emails[type is 1].value", "value": "x"}, "invalidFilter"),
        ({"op": "replace", "path": 'emails[type co "x"].value', "value": "x"}, "noTarget"),
        ({"op": "add", "path": "emails", "value": "x"}, "invalidValue"),
        ({"op": "add", "value": "x"}, "invalidValue"),
        ("replace", "invalidSyntax"),
    ],
)
def test_operations_that_are_refused(operation: Any, scim_type: str) -> None:
    with pytest.raises(InvalidScim) as refused:
        operated(ADA, operation)
    assert refused.value.scim_type == scim_type


def test_booleans_may_be_text() -> None:
    assert not read_user(operated(ADA, {"op": "Replace", "path": "active", "value": "False"})).active
    with pytest.raises(InvalidScim):
        read_user(ADA | {"active": "no"})
