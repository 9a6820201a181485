"""Parses tool calls of Qwen3-Coder, which are written as tags, one per parameter:
`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from tokenization.tools.hermes import CLOSE, OPEN
from tokenization.tools.parser import (
    NotACall,
    Reading,
    ToolCallParser,
    after_spaces,
    literal,
    offered_name,
    start_length,
)

FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_ENDS = ("\n" + END_PARAMETER, END_PARAMETER, "\n" + PARAMETER, "\n" + END_FUNCTION)
"""What may end a value: its closing tag, and at the start of a line also the next tag."""
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class QwenCoderParser(ToolCallParser):
    """Arguments are put together as a JSON object. Strings are passed on while they are written; other values
    when they are complete. A value that is not of its parameter's type is a string.

    The model often leaves out the outer opening tag, and now and then a closing one.
    """

    markers = (OPEN, FUNCTION)
    tokens = (OPEN, CLOSE)

    def _read_call(self, marker: str) -> Reading:
        if marker == OPEN:
            if (yield from after_spaces()) != FUNCTION[0]:
                raise NotACall
            yield from literal(FUNCTION[1:])
        name, _ = yield from offered_name(self.functions, ">")
        self.start_call(name)
        properties = self.functions[name].parameters.get("properties")
        num_parameters = 0
        tag = yield from _next_tag()
        while tag == PARAMETER:
            key = yield from _until(">")
            schema = properties.get(key) if isinstance(properties, dict) else None
            self.add_arguments((", " if num_parameters else "{") + json.dumps(key, ensure_ascii=False) + ": ")
            num_parameters += 1
            tag = yield from self._read_value(is_text(schema))
            if tag == END_PARAMETER:
                tag = yield from _next_tag()
        self.add_arguments("}" if num_parameters else "{}")
        if tag == CLOSE:
            return
        if (yield from after_spaces()) != CLOSE[0]:
            raise NotACall
        yield from literal(CLOSE[1:])

    def _read_value(self, is_text: bool) -> Generator[None, str, str]:
        """Reads a value and the tag behind it, which is returned."""
        value: list[str] = []
        add = self.add_arguments
        if is_text:
            add('"')
        held = ""
        """May begin the end of the value."""
        character = yield
        if character == "\n":
            character = yield
        while True:
            held += character
            if held in _ENDS:
                break
            shown = len(held) - start_length(held, _ENDS)
            if shown and is_text:
                add(json.dumps(held[:shown], ensure_ascii=False)[1:-1])
            elif shown:
                value.append(held[:shown])
                self.accept()
            held = held[shown:]
            character = yield
        add('"' if is_text else _as_json("".join(value)))
        return held.lstrip("\n")


def _next_tag() -> Generator[None, str, str]:
    """Reads white space and a tag that may follow a parameter. Raises NotACall."""
    text = yield from after_spaces()
    while text not in (tags := (PARAMETER, END_FUNCTION, CLOSE)):
        if not any(tag.startswith(text) for tag in tags):
            raise NotACall
        text += yield
    return text


def _until(end: str) -> Generator[None, str, str]:
    text = ""
    while (character := (yield)) != end:
        text += character
    return text


def is_text(schema: Any) -> bool:
    """Returns whether a parameter's value is a string as it stands. `schema`: None if it is not known."""
    types = _types(schema)
    return not types or "string" in types


def _types(schema: Any) -> set[str]:
    """Returns the JSON types that a schema names, "any" for one that refers to another schema."""
    if not isinstance(schema, dict):
        return set()
    if "$ref" in schema or "allOf" in schema:
        return {"any"}
    named = schema.get("type")
    names = [named] if isinstance(named, str) else listed(schema, "type")
    found = {name for name in names if isinstance(name, str)}
    for branch in [*listed(schema, "anyOf"), *listed(schema, "oneOf")]:
        found |= _types(branch)
    values = [schema["const"]] if "const" in schema else listed(schema, "enum")
    if not found:
        found = {"string" if isinstance(value, str) else "any" for value in values}
    return found


def listed(schema: dict[str, Any], keyword: str) -> list[Any]:
    """Returns a keyword's list; empty if it is missing or something else, which the compiler refuses."""
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _as_json(value: str) -> str:
    """Returns a value as JSON: itself, a constant of Python's, or a string."""
    value = value.strip()
    try:
        json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _PYTHON.get(value) or json.dumps(value, ensure_ascii=False)
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
