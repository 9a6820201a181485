"""Defines field types and the base class that JSON bodies of several routes share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tenants.validation import INVISIBLE, PRINTABLE

FILENAME = {"pattern": rf"^[^{INVISIBLE}]*$", "not": {"pattern": r"^\.|[/\\]"}}
"""JSON Schema of a file's name: no path, and not hidden."""

Id = Annotated[str, Meta(pattern=r"^[!-~]{1,100}$")]
Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        extra_json_schema={"pattern": f"^{PRINTABLE}$", "not": {"pattern": "^ *$"}},
    ),
]


class Body(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of JSON bodies; unknown fields are refused."""
