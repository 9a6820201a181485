"""Defines a function that the model may call."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class FunctionDefinition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=100_000)] | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema of the arguments, an object. None: the function takes no arguments."""
    strict: bool | None = None
    """Takes only the subset of JSON Schema that OpenAI's strict mode does, and refuses a schema that calls
    cannot be held to. Other functions are held to theirs as far as it is supported.
    """
