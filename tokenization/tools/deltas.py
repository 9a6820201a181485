"""Defines what parsers of tool calls are given and return: functions, and pieces of text and calls."""

from __future__ import annotations

from typing import Any, NamedTuple


class ToolFunction(NamedTuple):
    """A function that a request offers to the model."""

    name: str
    parameters: dict[str, Any]
    """The JSON Schema of its arguments, an object. Empty: any object."""


class TextDelta(NamedTuple):
    """Text of the message outside calls. Never empty."""

    text: str


class CallStart(NamedTuple):
    """A call begins."""

    call: int
    """0 for the message's first call, and so on."""
    name: str
    """The name of an offered function."""


class ArgumentsDelta(NamedTuple):
    """A piece of the JSON text of a call's arguments. Never empty."""

    call: int
    text: str


Delta = TextDelta | CallStart | ArgumentsDelta
