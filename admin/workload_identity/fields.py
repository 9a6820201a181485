"""Reads the forms of workload identity: a trusted issuer, and a rule for its tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from admin.keys.page import read_scopes
from admin.web.form_errors import FieldError
from tenants.workload_identity.key_sets import read_keys
from tenants.workload_identity.matching import check_matchers

ISSUER_FIELDS = ("name", "issuer", "audience", "jwks", "discovery_url", "token_minutes")
RULE_FIELDS = ("account", "attribute_matchers", "name", "scopes")
MAX_FORM = 300_000
"""Bytes of the issuer's form, which can have a key set."""


def read_issuer(form: Mapping[str, str], check_url: Callable[[str], object]) -> dict[str, Any]:
    """Returns the columns of a provider. Raises FieldError, ValueError naming the field."""
    columns: dict[str, Any] = {
        "name": form.get("name", ""),
        "issuer": form.get("issuer", "").strip(),
        "audience": form.get("audience", "").strip(),
        "token_seconds": _seconds(form.get("token_minutes", "")),
        "is_single_use": "single_use" in form,
    }
    _check(check_url, columns["issuer"], "issuer")
    if form.get("jwks", "").strip():
        return columns | {"jwks": _key_set(form["jwks"])}
    discovery_url = form.get("discovery_url", "").strip()
    if discovery_url:
        _check(check_url, discovery_url, "discovery_url")
    return columns | {"discovery_url": discovery_url or None}


def read_rule(form: Mapping[str, str], scopes: frozenset[str]) -> dict[str, Any]:
    """Returns the columns of a rule. Raises FieldError, ValueError naming the field."""
    matchers = _matchers(form.get("attribute_matchers", ""))
    check_matchers(matchers)
    columns: dict[str, Any] = {"matchers": matchers, "scopes": sorted(read_scopes(form, scopes))}
    return columns | ({"name": form["name"]} if form.get("name", "").strip() else {})


def matcher_lines(matchers: Mapping[str, Any]) -> list[str]:
    """Returns conditions as they are shown; JSON where a value is not text."""
    return [
        f"{claim}={wanted if isinstance(wanted, str) else json.dumps(wanted)}"
        for claim, wanted in matchers.items()
    ]


def _matchers(lines: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in filter(None, (one.strip() for one in lines.splitlines())):
        claim, sign, wanted = line.partition("=")
        if not sign:
            raise FieldError("attribute_matchers", f"Write a claim, = and its value, not {line[:80]!r}.")
        if claim.strip() in found:
            raise FieldError("attribute_matchers", f"{claim.strip()[:80]!r} has two conditions.")
        found[claim.strip()] = wanted.strip()
    return found


def _seconds(minutes: str) -> int:
    text = minutes.strip()
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 4 and 1 <= int(text) <= 720):
        raise FieldError("token_minutes", "Enter a number of minutes from 1 to 720.")
    return int(text) * 60


def _key_set(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        read_keys(found)
    except (ValueError, RecursionError) as error:
        raise FieldError("jwks", f"This isn't a JSON Web Key Set: {error}.") from error
    return found


def _check(check_url: Callable[[str], object], url: str, field: str) -> None:
    try:
        check_url(url)
    except ValueError as error:
        raise ValueError(f"{field} {str(error).removeprefix('url ')}") from error
