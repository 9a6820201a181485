"""Defines custom tools, which are called with a text, and maps them to functions of one string.

Models were trained to call functions: the text is the string `input` of an object. A grammar of the text is
a pattern of that string, so that what the client reads from the JSON is of the grammar.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from api.openai.function_definition import FunctionDefinition, FunctionName
from tokenization.tools.lark_regex import lark_regex
from tokenization.tools.unicode_regex import unicode_regex

MAX_GRAMMAR = 16 * 1024
"""Characters: rewriting it blocks the event loop."""
INPUT = "input"
GRAMMAR = "custom.format.grammar.definition"
_STARTED = re.compile(r'\s*\{\s*"input"\s*:\s*("(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)')
"""The arguments of a call up to where they were cut off, or a little less."""


class CustomTextFormat(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="text"
):
    """Any text."""


class CustomGrammar(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A grammar of the text."""

    syntax: Literal["lark", "regex"]
    """`lark`: llguidance's dialect of Lark, without recursion. `regex`: Rust's, without look-around."""
    definition: Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR)]


class CustomGrammarFormat(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="grammar"
):
    """Text of a grammar."""

    grammar: CustomGrammar


class CustomDefinition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tool that is called with a text."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=100_000)] | None = None
    format: CustomTextFormat | CustomGrammarFormat | None = None

    @property
    def grammar(self) -> CustomGrammar | None:
        return self.format.grammar if isinstance(self.format, CustomGrammarFormat) else None


def as_function(tool: CustomDefinition) -> FunctionDefinition:
    """Returns the function of one string that stands for a tool. Raises ValueError for a grammar that a
    string within JSON cannot be held to.
    """
    text: dict[str, Any] = {"type": "string"}
    grammar = tool.grammar
    if grammar is not None:
        text["pattern"] = f"^(?:{_regex(grammar.syntax, grammar.definition)})$"
    return FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=_object_of(text),
        strict=None if grammar is None else True,
    )


def shown_function(tool: CustomDefinition) -> dict[str, Any]:
    """Returns the function as chat templates show it to the model: with the grammar as it was sent."""
    text, grammar = tool.description or "", tool.grammar
    if grammar is not None:
        text += (
            f"{text and chr(10)}The input is a text of this {grammar.syntax} grammar:\n{grammar.definition}"
        )
    description = {"description": text} if text else {}
    return {"name": tool.name, **description, "parameters": _object_of({"type": "string"})}


def _object_of(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }


@functools.lru_cache(maxsize=64)
def _regex(syntax: str, definition: str) -> str:
    return lark_regex(definition) if syntax == "lark" else unicode_regex(definition)


def as_arguments(text: str) -> str:
    """Returns the arguments that stand for a custom tool's text."""
    return msgspec.json.encode({INPUT: text}).decode()


def read_input(arguments: str) -> str:
    """Returns the text that a custom tool is called with, from the arguments that the model wrote; of
    arguments that were cut off, what is complete.
    """
    try:
        read = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        started = _STARTED.match(arguments)
        if started is None:
            return arguments
        try:
            return str(msgspec.json.decode(started[1] + '"'))
        except msgspec.DecodeError:
            return arguments
    text = read.get(INPUT) if isinstance(read, dict) else None
    return text if isinstance(text, str) else arguments
