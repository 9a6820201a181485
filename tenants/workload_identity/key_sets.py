"""Reads JSON Web Key Sets of token issuers: public keys for signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import KeySet

MAX_KEYS = 50
_KINDS = ("RSA", "EC", "OKP")
"""Kinds of keys that have a public half; with a shared secret, the tenant could sign tokens itself."""


def read_keys(jwks: Mapping[str, Any]) -> KeySet:
    """Returns the keys of a JSON Web Key Set: public ones. Raises ValueError."""
    listed = jwks.get("keys")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_KEYS:
        raise ValueError(f"keys must be a list of 1 to {MAX_KEYS} keys")
    if not all(isinstance(one, dict) for one in listed):
        raise ValueError("keys must be objects")
    signing = [one for one in listed if one.get("use", "sig") == "sig"]
    if not signing or any(one.get("kty") not in _KINDS or "d" in one for one in signing):
        raise ValueError("keys must be public keys for signatures")
    try:
        return KeySet.import_key_set({"keys": signing})
    except (JoseError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"not a JSON Web Key Set: {error}") from error
