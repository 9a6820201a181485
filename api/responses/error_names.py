"""Names fields in errors of the shared chat steps as the Responses API calls them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from api.errors import ApiError

_NAMES = (
    (re.compile(r"response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"tool_choice\.allowed_tools(\.tools\[\d+\])\.(function|custom)"), r"tool_choice\1"),
    (re.compile(r"tool_choice\.allowed_tools"), "tool_choice"),
    (re.compile(r"(tools\[\d+\])\.custom\.format\.grammar"), r"\1.format"),
    (re.compile(r"(tool_choice|tools\[\d+\])\.(function|custom)"), r"\1"),
    (re.compile(r"max_completion_tokens|max_tokens"), "max_output_tokens"),
    (re.compile(r"reasoning_effort"), "reasoning.effort"),
    (re.compile(r"messages(\[\d+\](\.\w+|\[\d+\])*)?"), "input"),
)
"""Beginnings of names, of which the first that matches is replaced. What follows may be the client's: names
of properties in a schema.
"""
_QUOTED = re.compile(r"'([a-z_]+[a-zA-Z0-9_.\[\]]*)'")


@contextmanager
def response_names() -> Iterator[None]:
    """Raises errors of the block again with the names of a response's fields, in `param` and in quotes."""
    try:
        yield
    except ApiError as error:
        if error.param is None:
            raise
        renamed = type(error)(
            _QUOTED.sub(lambda match: f"'{_renamed(match[1])}'", error.message), error.param
        )
        renamed.param = _renamed(error.param)
        raise renamed from error


def _renamed(name: str) -> str:
    for pattern, replacement in _NAMES:
        match = pattern.match(name)
        if match is not None and name[match.end() : match.end() + 1] in ("", ".", "["):
            return match.expand(replacement) + name[match.end() :]
    return name
