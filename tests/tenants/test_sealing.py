"""Secrets sealed under the server's."""

from __future__ import annotations

import pytest

from tenants.identities.sealing import Sealer

SECRET = "s" * 32


def test_what_was_sealed_is_opened_by_the_same_secret_purpose_and_owner_alone() -> None:
    sealer = Sealer(SECRET, "second factors")
    sealed = sealer.seal(b"text", "usr_1")
    assert sealer.open(sealed, "usr_1") == b"text"
    for other, whose in (
        (sealer, "usr_2"),
        (Sealer(SECRET, "webhooks"), "usr_1"),
        (Sealer("t" * 32, "second factors"), "usr_1"),
    ):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            other.open(sealed, whose)
    with pytest.raises(ValueError, match="cannot be decrypted"):
        sealer.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), "usr_1")


def test_the_same_text_is_never_sealed_alike() -> None:
    sealer = Sealer(SECRET, "second factors")
    assert sealer.seal(b"text", "usr_1") != sealer.seal(b"text", "usr_1")
    assert SECRET not in repr(sealer)
