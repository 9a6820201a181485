"""Bundles of ours and of the stock tool are verified; what is not whole, or of another key, is not."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.signing import bundle, folder
from engine.signing.errors import SignatureError
from engine.signing.keys import SigningKey, TrustedKeys, VerifyingKey, pem_blocks
from engine.signing.statement import decode_statement, encode_statement

KEY = SigningKey.make()
KEYS = TrustedKeys([KEY.public])
DIGESTS = {"base.json": folder.sha256(b"base"), "packed/bfloat16.rsa": folder.sha256(b"weights")}
STOCK_KEY = """-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAECX3zd1/jHuuc9g8w3mqwDjE63CFt
MUF4OvVWGJwhCXRBPaQIf1bArOtdqBbP1wSz+uf6zTvFuitv1uZyG5fkRA==
-----END PUBLIC KEY-----
"""
STOCK = (
    "eyJtZWRpYVR5cGUiOiJhcHBsaWNhdGlvbi92bmQuZGV2LnNpZ3N0b3JlLmJ1bmRsZS52MC4zK2pzb24iLCJ2ZXJpZmljYXRp"
    "b25NYXRlcmlhbCI6eyJwdWJsaWNLZXkiOnsiaGludCI6ImNmNzg2MTFlYzMwOTRhZTVhNzI3NDNiYzcxOTJlYjAzY2ZlMTBm"
    "MjY2NmY2M2E0YmQ0ZTY2MGY0MjVlNDdjNDIifSwidGxvZ0VudHJpZXMiOltdfSwiZHNzZUVudmVsb3BlIjp7InBheWxvYWQi"
    "OiJld29nSUNKZmRIbHdaU0k2SUNKb2RIUndjem92TDJsdUxYUnZkRzh1YVc4dlUzUmhkR1Z0Wlc1MEwzWXhJaXdLSUNBaWMz"
    "VmlhbVZqZENJNklGc0tJQ0FnSUhzS0lDQWdJQ0FnSW01aGJXVWlPaUFpYlNJc0NpQWdJQ0FnSUNKa2FXZGxjM1FpT2lCN0Np"
    "QWdJQ0FnSUNBZ0luTm9ZVEkxTmlJNklDSTJNbUpsTjJNME9ESmtNelpqT0RFME16ZzVZMk0wTmpsbE9XVXdNVE0yTmpRNVpE"
    "WXpORFUwT1dRMVlqUXdaREZqTXpGbE1qUTVaV0l3WkdJeE1EQmxJZ29nSUNBZ0lDQjlDaUFnSUNCOUNpQWdYU3dLSUNBaWNI"
    "SmxaR2xqWVhSbFZIbHdaU0k2SUNKb2RIUndjem92TDIxdlpHVnNYM05wWjI1cGJtY3ZjMmxuYm1GMGRYSmxMM1l4TGpBaUxB"
    "b2dJQ0p3Y21Wa2FXTmhkR1VpT2lCN0NpQWdJQ0FpY21WemIzVnlZMlZ6SWpvZ1d3b2dJQ0FnSUNCN0NpQWdJQ0FnSUNBZ0lt"
    "UnBaMlZ6ZENJNklDSTVPR1ZoTm1VMFpqSXhObVl5Wm1JMFlqWTVabVptT1dJellUUTBPRFF5WXpNNE5qZzJZMkUyT0RWbU0y"
    "WTFOV1JqTkRoak5XUXpabUl4TVRBM1ltVTBJaXdLSUNBZ0lDQWdJQ0FpWVd4bmIzSnBkR2h0SWpvZ0luTm9ZVEkxTmlJc0Np"
    "QWdJQ0FnSUNBZ0ltNWhiV1VpT2lBaVltRnpaUzVxYzI5dUlnb2dJQ0FnSUNCOUxBb2dJQ0FnSUNCN0NpQWdJQ0FnSUNBZ0lt"
    "UnBaMlZ6ZENJNklDSmpaamswTldJMU1qTTJaVEV3TVdSaVpUQTBOekZrTlRJd01HWXlPR0l4WVdVMk5HWXlNV014WmpNMVlt"
    "WTFOV1pqWmpRd1kyUXdabVUwTW1Oa09HVTNJaXdLSUNBZ0lDQWdJQ0FpWVd4bmIzSnBkR2h0SWpvZ0luTm9ZVEkxTmlJc0Np"
    "QWdJQ0FnSUNBZ0ltNWhiV1VpT2lBaWMyOTFjbU5sTDJGa1lYQjBaWEpmWTI5dVptbG5MbXB6YjI0aUNpQWdJQ0FnSUgwS0lD"
    "QWdJRjBzQ2lBZ0lDQWljMlZ5YVdGc2FYcGhkR2x2YmlJNklIc0tJQ0FnSUNBZ0ltMWxkR2h2WkNJNklDSm1hV3hsY3lJc0Np"
    "QWdJQ0FnSUNKcFoyNXZjbVZmY0dGMGFITWlPaUJiQ2lBZ0lDQWdJQ0FnSW0xdlpHVnNMbk5wWnlJc0NpQWdJQ0FnSUNBZ0lp"
    "NW5hWFJoZEhSeWFXSjFkR1Z6SWl3S0lDQWdJQ0FnSUNBaUxtZHBkQ0lzQ2lBZ0lDQWdJQ0FnSWk1bmFYUm9kV0lpTEFvZ0lD"
    "QWdJQ0FnSUNJdVoybDBhV2R1YjNKbElnb2dJQ0FnSUNCZExBb2dJQ0FnSUNBaVlXeHNiM2RmYzNsdGJHbHVhM01pT2lCbVlX"
    "eHpaU3dLSUNBZ0lDQWdJbWhoYzJoZmRIbHdaU0k2SUNKemFHRXlOVFlpQ2lBZ0lDQjlDaUFnZlFwOSIsInBheWxvYWRUeXBl"
    "IjoiYXBwbGljYXRpb24vdm5kLmluLXRvdG8ranNvbiIsInNpZ25hdHVyZXMiOlt7InNpZyI6Ik1FWUNJUUQ3QzUwTkh3QnFa"
    "N243WUsyM2tJYkxTY1J4RXVEbUhNUVBpdXhSSXZUczNnSWhBSTNwZVo3dndSNGF2dFEweDVLRk1xekV2TTlmSWhGWGtpQWtj"
    "VHpvUGZ3YiIsImtleWlkIjoiIn1dfX0="
)
"""What `model_signing sign key` 1.1.1 wrote over two files."""


def signed(payload: bytes | None = None) -> bytes:
    return bundle.sign(KEY, payload or encode_statement("adp@1", DIGESTS))


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A bundle whose statement was changed before it was signed."""
    statement = json.loads(encode_statement("adp@1", DIGESTS))
    change(statement)
    return signed(json.dumps(statement).encode())


def test_what_was_signed_is_verified() -> None:
    verified = bundle.verify_own(signed(), KEYS)
    assert (verified.digests, verified.key.id) == (DIGESTS, KEY.public.id)
    assert bundle.key_of(signed()) == KEY.public.id


def test_a_bundle_of_the_stock_tool_is_verified() -> None:
    verified = bundle.verify(base64.b64decode(STOCK), TrustedKeys.from_pem(STOCK_KEY))
    assert set(verified.digests) == {"base.json", "source/adapter_config.json"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda one: one.update(_type="https://in-toto.io/Statement/v2"), "_type"),
        (lambda one: one.update(predicateType="https://model_signing/Digests/v0.1"), "predicateType"),
        (lambda one: one["subject"].append(one["subject"][0]), "subject"),
        (lambda one: one["subject"][0]["digest"].update(sha256="0" * 64), "subject.digest"),
        (lambda one: one["predicate"]["serialization"].update(method="shards"), "method"),
        (lambda one: one["predicate"]["serialization"].update(hash_type="blake3"), "hash_type"),
        (lambda one: one["predicate"]["resources"].append(one["predicate"]["resources"][0]), "resources"),
        (lambda one: one["predicate"]["resources"][0].update(digest="zz"), "resources"),
        (lambda one: one["predicate"].update(resources=[]), "resources"),
        (lambda one: one.pop("predicate"), "statement"),
    ],
)
def test_a_signed_statement_of_another_form_is_refused_by_its_field(
    change: Callable[[dict[str, Any]], object], field: str
) -> None:
    with pytest.raises(SignatureError) as refused:
        bundle.verify(changed(change), KEYS)
    assert field in refused.value.field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda one: one.update(mediaType="application/json"), "mediaType"),
        (lambda one: one["verificationMaterial"].pop("publicKey"), "publicKey"),
        (lambda one: one["verificationMaterial"]["publicKey"].update(hint="0" * 64), "hint"),
        (lambda one: one["dsseEnvelope"].update(payloadType="text/plain"), "payloadType"),
        (lambda one: one["dsseEnvelope"].update(payload="*"), "payload"),
        (lambda one: one["dsseEnvelope"].update(payload=base64.b64encode(b"{}").decode()), "sig"),
        (lambda one: one["dsseEnvelope"]["signatures"].clear(), "signatures"),
    ],
)
def test_a_bundle_of_another_form_is_refused_by_its_field(
    change: Callable[[dict[str, Any]], object], field: str
) -> None:
    document = json.loads(signed())
    change(document)
    with pytest.raises(SignatureError) as refused:
        bundle.verify(json.dumps(document).encode(), KEYS)
    assert field in refused.value.field


def test_another_spelling_is_accepted_from_tenants_and_not_from_the_platform() -> None:
    spaced = json.dumps(json.loads(signed()), indent=1).encode()
    assert bundle.verify(spaced, KEYS).digests == DIGESTS
    with pytest.raises(SignatureError, match="spelled"):
        bundle.verify_own(spaced, KEYS)


def test_a_bundle_that_names_no_key_is_tried_with_all() -> None:
    document = json.loads(signed())
    document["verificationMaterial"]["publicKey"] = {}
    both = TrustedKeys([SigningKey.make().public, KEY.public])
    assert bundle.verify(json.dumps(document).encode(), both).key.id == KEY.public.id


def test_two_keys_are_accepted_and_a_third_is_not() -> None:
    other = SigningKey.make()
    both = TrustedKeys([other.public, KEY.public])
    assert bundle.verify_own(signed(), both).key.id == KEY.public.id
    with pytest.raises(SignatureError, match="none that is accepted"):
        bundle.verify_own(signed(), TrustedKeys([other.public]))


def test_keys_are_read_back() -> None:
    other = SigningKey.make()
    assert SigningKey.from_pem(KEY.pem).public.id == KEY.public.id
    both = TrustedKeys([KEY.public, other.public])
    for read in (TrustedKeys.from_setting(both.setting), TrustedKeys.from_pem(both.pem)):
        assert [key.id for key in read] == [KEY.public.id, other.public.id]
    assert len(pem_blocks(KEY.pem + other.pem)) == 2
    assert KEY.public.algorithm == "ECDSA P-256"
    for wrong in (KEY.pem, "", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"):
        with pytest.raises(ValueError, match="public key"):
            VerifyingKey.from_pem(wrong)
    with pytest.raises(ValueError, match="public key"):
        TrustedKeys.from_setting("AAAA")


def test_names_are_sorted_as_the_stock_tool_sorts_them() -> None:
    """By the parts of a path, not by its characters: `-` sorts before `/`."""
    names = ("packed/a.rsa", "packed-a", "packed.a")
    statement = encode_statement("m", dict.fromkeys(names, "0" * 64))
    assert list(decode_statement(statement)) == ["packed/a.rsa", "packed-a", "packed.a"]
