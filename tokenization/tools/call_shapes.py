"""Defines the text around tool calls in each format, as models were trained to write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenization.tools import hermes, llama, mistral, qwen_coder


class Opening(NamedTuple):
    """A marker after which a message consists of calls."""

    marker: str
    lead: str = ""
    """Between the marker and the first call."""


class CallShape(NamedTuple):
    """The text around calls. A message of calls is `begin`, the calls with `between`, and `end`."""

    openings: tuple[Opening, ...]
    """The parser begins a call at each of these markers, wherever they stand."""
    before: str
    """Before the arguments of a call; NAME stands for the function."""
    after: str
    between: str
    end: str = ""
    is_bare: bool = False
    """A call may begin a message without a marker, as a JSON object."""

    @property
    def begin(self) -> str:
        """What a message of calls begins with: the first opening, unless calls need none."""
        return "" if self.is_bare else "".join(self.openings[0])


SHAPES = {
    "hermes": CallShape(
        (Opening(hermes.OPEN),),
        '\n{"name": "NAME", "arguments": ',
        f"}}\n{hermes.CLOSE}",
        f"\n{hermes.OPEN}",
    ),
    "llama": CallShape((Opening(llama.TAG),), '{"name": "NAME", "parameters": ', "}", "; ", is_bare=True),
    "mistral": CallShape(
        (Opening(mistral.OPEN, " ["),), '{"name": "NAME", "arguments": ', "}", ", ", end="]"
    ),
    "mistral_args": CallShape((Opening(mistral.OPEN),), "NAME[ARGS]", "", mistral.OPEN),
    "qwen_coder": CallShape(
        (Opening(hermes.OPEN, f"\n{qwen_coder.FUNCTION}"), Opening(qwen_coder.FUNCTION)),
        "NAME>\n",
        f"{qwen_coder.END_FUNCTION}\n{hermes.CLOSE}",
        f"\n{hermes.OPEN}\n{qwen_coder.FUNCTION}",
    ),
}
"""By the name of the format."""

_SPACE = r"[ \t\r\n]*"
_STRING = r'"([^"\\]|\\.)*"'
_OTHER_KEYS = rf'("(type|id)"{_SPACE}:{_SPACE}{_STRING}{_SPACE},{_SPACE})*'
_TO_ARGUMENTS = rf'{_SPACE},{_SPACE}{_OTHER_KEYS}"(arguments|parameters)"{_SPACE}:{_SPACE}'
BARE_END = rf"{_SPACE}\}}"
ARGUMENTS_FIRST = rf'{_SPACE}\{{{_SPACE}{_OTHER_KEYS}"(arguments|parameters)"{_SPACE}:{_SPACE}\{{'
"""A regular expression of objects that the parser may take for calls although no name has come yet."""


def bare_begin(names: Sequence[str]) -> str:
    """Returns a regular expression of the text up to the arguments of a call that begins a message."""
    return rf'{_SPACE}\{{{_SPACE}{_OTHER_KEYS}"name"{_SPACE}:{_SPACE}"({"|".join(names)})"{_TO_ARGUMENTS}'
