"""What may be asked for of a key, and by whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tenants.actors import OPERATOR, Actor
from tenants.errors import KeyNotActive, RightsNotHeld
from tenants.key_restrictions import (
    MAX_MODELS,
    KeyChanges,
    KeyRestrictions,
    changed_columns,
    checked_models,
    columns_of,
)
from tenants.models import ApiKey

LIMITED = Actor("api_key", "key_1", scopes=frozenset({"a.read", "a.write"}))


@pytest.mark.parametrize("scopes", [{"a.read"}, {"a.read", "a.write"}])
def test_an_admin_key_may_have_what_its_maker_has(scopes: set[str]) -> None:
    restrictions = KeyRestrictions(scopes=frozenset(scopes))
    assert columns_of(restrictions, "admin", LIMITED)["scopes"] == sorted(scopes)


@pytest.mark.parametrize("scopes", [{"b.read"}, {"a.read", "b.read"}, set()])
def test_an_admin_key_may_not_have_more(scopes: set[str]) -> None:
    """No scopes at all means everything."""
    restrictions = KeyRestrictions(scopes=frozenset(scopes))
    with pytest.raises(RightsNotHeld):
        columns_of(restrictions, "admin", LIMITED)
    assert columns_of(restrictions, "admin", OPERATOR)["scopes"] == sorted(scopes), (
        "whose maker may do everything"
    )
    assert columns_of(restrictions, "inference", LIMITED)["scopes"] == sorted(scopes), (
        "runs nothing of the account"
    )


@pytest.mark.parametrize("scope", ["", "A", "a b", "x" * 65])
def test_what_is_no_scope_is_refused(scope: str) -> None:
    with pytest.raises(ValueError, match="scopes"):
        columns_of(KeyRestrictions(scopes=frozenset({scope})), "inference", OPERATOR)


def test_a_key_ends_in_the_future() -> None:
    soon = datetime.now(UTC) + timedelta(minutes=1)
    assert columns_of(KeyRestrictions(expires_at=soon), "inference", OPERATOR)["expires_at"] == soon
    for moment in (datetime.now(UTC) - timedelta(seconds=1), soon.replace(tzinfo=None)):
        with pytest.raises(ValueError, match="expires_at"):
            columns_of(KeyRestrictions(expires_at=moment), "inference", OPERATOR)


def test_the_end_of_a_rotated_key_is_its_graces() -> None:
    row = ApiKey(id="key_2", kind="inference", replaced_by="key_3")
    with pytest.raises(KeyNotActive):
        changed_columns(row, KeyChanges(expires_at=None), OPERATOR)
    assert changed_columns(row, KeyChanges(name="other"), OPERATOR) == {"name": "other"}
    row.replaced_by = None
    assert changed_columns(row, KeyChanges(expires_at=None), OPERATOR) == {"expires_at": None}
    assert changed_columns(row, KeyChanges(), OPERATOR) == {}


def test_models_are_named_as_they_are_and_so_many() -> None:
    assert checked_models(["b:*", "a", "b:x@2", "a"]) == ["a", "b:*", "b:x@2"]
    for model in ("", "a:", "a:x@0", "a:*@1", "A", "a:x@"):
        with pytest.raises(ValueError, match="is not a model name"):
            checked_models([model])
    assert len(checked_models(f"m{number}" for number in range(MAX_MODELS))) == MAX_MODELS
    with pytest.raises(ValueError, match="at most"):
        checked_models(f"m{number}" for number in range(MAX_MODELS + 1))
