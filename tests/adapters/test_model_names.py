from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import InvalidAdapter
from adapters.model_names import InvalidModelName, ModelName, check_new_name, checked_part, parse

ID = "adp_" + "0123456789abcdefghjkmnpqrs"
PARTS = st.from_regex(r"[a-z0-9._-]{1,64}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sapling", ModelName("sapling")),
        ("llama-3.1-8b", ModelName("llama-3.1-8b")),
        ("sapling:pirate", ModelName("sapling", "pirate")),
        ("sapling:pirate@12", ModelName("sapling", "pirate", 12)),
        ("sapling:acme/pirate", ModelName("sapling", "pirate", owner="acme")),
        ("sapling:acme/pirate@3", ModelName("sapling", "pirate", 3, owner="acme")),
        (ID, ModelName(adapter_id=ID)),
        ("adp_short", ModelName("adp_short")),
    ],
)
def test_the_grammar(text: str, name: ModelName) -> None:
    assert parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "sapling:", ":pirate", "sapling@1", "sapling:pirate@", "sapling:pirate@0",
        "sapling:pirate@01", "sapling:pirate@-1", "sapling:pirate@1@2", "sapling:a:b", "Sapling",
        "sapling:Pirate", "sap ling", "sapling\n", "sapling:pirate\n", "sapling:pirate@1\n", "a" * 65,
        "sapling:" + "a" * 65, "sapling:pirate@9999999999", "sapling:é", "sapling:pirate@٣", "../etc",
        "sapling:/b", "sapling:a/", "sapling:a/b/c", "sapling/a:b", "sapling:a@1/b", "sapling:A/b",
        "\x00", f"{ID}@1",
    ],
)  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(InvalidModelName):
        parse(text)


@given(PARTS, PARTS, st.integers(1, 999_999_999))
def test_what_is_written_is_read_again(base: str, adapter: str, version: int) -> None:
    for name in (ModelName(base), ModelName(base, adapter), ModelName(base, adapter, version)):
        if not (name.adapter is None and base.startswith("adp_") and len(base) == 30):
            assert parse(str(name)) == name


@given(st.text())
def test_any_text_is_answered(text: str) -> None:
    with contextlib.suppress(InvalidModelName):
        assert str(parse(text)) == text


def test_a_wrong_part_names_its_field() -> None:
    assert checked_part("base", "sapling") == "sapling"
    with pytest.raises(ValueError, match="base must be"):
        checked_part("base", "Sapling!")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", "removed from URLs"),
        ("..", "removed from URLs"),
        ("adp_mine", "reserved for adapter ids"),
        (ID, "reserved for adapter ids"),
    ],
)
def test_names_that_no_path_could_mean_are_refused_from_now_on(name: str, reason: str) -> None:
    with pytest.raises(InvalidAdapter, match=reason) as caught:
        check_new_name(name)
    assert caught.value.field == "name"
    assert str(parse(f"sapling:{name}")) == f"sapling:{name}", "those that there are stay reachable"


def test_other_names_are_as_free_as_they_were() -> None:
    for name in ("pirate", "...", "adp", "my-adp_x", "0", "a.b"):
        check_new_name(name)
    with pytest.raises(ValueError, match="name must be"):
        check_new_name("A b")
