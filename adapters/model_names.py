"""Parses and checks model names: `base`, `base:adapter`, `base:adapter@version`, `adp_...`; adapters that
another organization shares are `base:owner/adapter` and `base:owner/adapter@version`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from adapters.errors import InvalidAdapter

PART = re.compile(r"[a-z0-9._-]{1,64}")
_ID_PREFIX = "adp_"
ADAPTER_ID = re.compile(rf"{_ID_PREFIX}[0-9a-hjkmnp-tv-z]{{26}}")
MAX_DESCRIPTION = 2000
"""Characters of an adapter's description."""
_VERSION = re.compile(r"[1-9][0-9]{0,8}")


class InvalidModelName(ValueError):
    """The name does not match the grammar, so no model has it."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed name. Either `adapter_id` is set and nothing else, or `base` is."""

    base: str | None = None
    adapter: str | None = None
    version: int | None = None
    adapter_id: str | None = None
    owner: str | None = None
    """The handle of the organization that shares it; None for one of the tenant's own."""

    def __str__(self) -> str:
        if self.adapter_id is not None:
            return self.adapter_id
        assert self.base is not None
        name = self.base
        if self.adapter is not None:
            name += f":{self.owner}/{self.adapter}" if self.owner is not None else f":{self.adapter}"
        if self.version is not None:
            name += f"@{self.version}"
        return name


def parse(name: str) -> ModelName:
    """Parses a name. Raises InvalidModelName. `adp_` and 26 characters is always an id: no base may have that
    name.
    """
    if ADAPTER_ID.fullmatch(name):
        return ModelName(adapter_id=name)
    base, colon, rest = name.partition(":")
    path, at, version = rest.partition("@")
    owner, slash, adapter = path.rpartition("/")
    if (
        (slash and PART.fullmatch(owner) is None)
        or PART.fullmatch(base) is None
        or (colon and PART.fullmatch(adapter) is None)
        or (at and _VERSION.fullmatch(version) is None)
    ):
        raise InvalidModelName(f"{name[:200]!r} is not a model name")
    return ModelName(base, adapter or None, int(version) if version else None, owner=owner or None)


def base_of(name: str) -> str:
    """Returns the base model in a valid name that is not an adapter's id."""
    return name.partition(":")[0]


def checked_part(field_name: str, part: str) -> str:
    """Returns `part` if it may be part of a name. Raises ValueError naming the field."""
    if PART.fullmatch(part) is None:
        raise ValueError(f"{field_name} must be 1 to 64 of a-z, 0-9, '.', '_' and '-', not {part[:80]!r}")
    return part


def check_new_name(name: str) -> None:
    """Checks a name for a new or renamed adapter. Raises ValueError naming the field, and InvalidAdapter for
    a grammatical name that would be ambiguous in the API's paths.
    """
    checked_part("name", name)
    if name in (".", ".."):
        reason = (
            f"{name!r} is removed from URLs by clients and proxies: choose a name with a letter or a digit"
        )
        raise InvalidAdapter("name", reason)
    if name.startswith(_ID_PREFIX):
        reason = (
            f"{name!r} starts with {_ID_PREFIX!r}, which is reserved for adapter ids: choose another name"
        )
        raise InvalidAdapter("name", reason)


def checked_text(field_name: str, text: str, longest: int) -> str:
    """Returns `text` if it can be stored and displayed. Raises ValueError naming the field."""
    if len(text) > longest or "\x00" in text:
        raise ValueError(f"{field_name} must have at most {longest} characters, none of them NUL")
    return text
