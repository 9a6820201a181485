from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.context import KEY_KINDS, KeyKind
from tenants.keys import (
    BASE62,
    KeyHasher,
    generate,
    generate_invite,
    generate_reset,
    well_formed,
    well_formed_invite,
    well_formed_reset,
)

SECRET = "a server's secret of enough length"


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_a_key_names_its_kind_and_is_well_formed(kind: KeyKind) -> None:
    made = generate(kind)
    assert re.fullmatch(rf"rs_{kind}_[0-9A-Za-z]{{49}}", made.plaintext)
    assert well_formed(made.plaintext)
    assert made.plaintext.startswith(made.prefix)
    assert len(made.prefix) == len(f"rs_{kind}_") + 4


def test_keys_differ() -> None:
    assert len({generate("inference").plaintext for _ in range(1000)}) == 1000


@given(st.integers(0, 200), st.sampled_from(BASE62))
def test_any_one_character_mistyped_is_noticed(position: int, character: str) -> None:
    plaintext = generate("inference").plaintext
    position %= len(plaintext)
    mistyped = plaintext[:position] + character + plaintext[position + 1 :]
    assert well_formed(mistyped) == (mistyped == plaintext)


@pytest.mark.parametrize(
    "nonsense", ["", "sk-123", "rs_inference_", "rs_root_" + "a" * 49, "rs_admin_" + "é" * 49]
)
def test_nonsense_is_not_well_formed(nonsense: str) -> None:
    assert not well_formed(nonsense)


@given(st.text())
def test_any_text_is_answered(text: str) -> None:
    assert not well_formed(text)


def test_a_trailing_newline_is_not_part_of_a_key() -> None:
    assert not well_formed(generate("admin").plaintext + "\n")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        generate("root")  # type: ignore[arg-type]


def test_digests_depend_on_the_secret_and_show_nothing() -> None:
    plaintext = generate("inference").plaintext
    one, other = KeyHasher(SECRET), KeyHasher(SECRET[::-1])
    assert one.digest(plaintext) == KeyHasher(SECRET).digest(plaintext)
    assert one.digest(plaintext) != other.digest(plaintext)
    assert len(one.digest(plaintext)) == 32
    assert SECRET not in repr(one)


def test_a_hasher_gives_a_text_the_same_digest_each_time() -> None:
    hasher = KeyHasher(SECRET)
    texts = [generate("inference").plaintext for _ in range(3)]
    assert [hasher.digest(text) for text in texts] == [hasher.digest(text) for text in texts]


def test_a_key_an_invitation_and_a_reset_are_never_taken_for_each_other() -> None:
    made = [generate("inference"), generate("admin"), generate_invite(), generate_reset()]
    checks = (well_formed, well_formed_invite, well_formed_reset)
    assert [[check(one.plaintext) for check in checks] for one in made] == [
        [True, False, False],
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 characters"):
        KeyHasher("short")


def test_no_repr_shows_a_key() -> None:
    made = generate("inference")
    assert made.plaintext not in repr(made)
    assert made.plaintext not in str(made)
