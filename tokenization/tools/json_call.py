"""Reads a call that is written as one JSON object: `{"name": ..., "arguments": {...}}`."""

from __future__ import annotations

from collections.abc import Callable, Generator

from tokenization.tools.parser import NotACall, Reading, ToolCallParser, after_spaces, offered_name

_KEYS = frozenset({"name", "type", "id", "arguments", "parameters"})
"""Keys that a call may have."""
_ARGUMENTS = frozenset({"arguments", "parameters"})


def read_json_call(parser: ToolCallParser, first: str, *, needs_arguments: bool = False) -> Reading:
    """Reads a call, up to its closing brace.

    Args:
        first: the first character.
        needs_arguments: an object without arguments is no call; otherwise they are `{}`.

    Raises:
        NotACall: the object is something else, or names no offered function.
    """
    if first != "{":
        raise NotACall
    name: str | None = None
    early: list[str] = []
    """Arguments that came before the name."""
    has_arguments = False
    character = yield from after_spaces()
    while True:
        if character != '"':
            raise NotACall
        key = yield from _key()
        if (yield from after_spaces()) != ":":
            raise NotACall
        character = yield from after_spaces()
        if key in _ARGUMENTS and not has_arguments:
            if character != "{":
                raise NotACall
            has_arguments = True
            if name is not None:
                parser.start_call(name)
            yield from read_object(early.append if name is None else parser.add_arguments)
        elif key == "name" and name is None:
            if character != '"':
                raise NotACall
            name, _ = yield from offered_name(parser.functions, '"')
            if has_arguments:
                parser.start_call(name)
                parser.add_arguments("".join(early))
        else:
            yield from _skip_string(character)
        character = yield from after_spaces()
        if character == "}":
            break
        if character != ",":
            raise NotACall
        character = yield from after_spaces()
    if name is None or (needs_arguments and not has_arguments):
        raise NotACall
    if not has_arguments:
        parser.start_call(name)
        parser.add_arguments("{}")
    parser.accept()


def read_object(add: Callable[[str], None]) -> Reading:
    """Reads a JSON object after its opening brace, and passes all its characters to `add`.

    Only strings and brackets are looked at: an object that is not valid JSON ends where its brackets do.
    """
    add("{")
    depth, in_string, is_escaped = 1, False, False
    while depth:
        character = yield
        add(character)
        if in_string:
            in_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            in_string = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1


def _key() -> Generator[None, str, str]:
    key, _ = yield from offered_name(_KEYS, '"')
    return key


def _skip_string(first: str) -> Reading:
    if first != '"':
        raise NotACall
    is_escaped = False
    while (character := (yield)) != '"' or is_escaped:
        is_escaped = character == "\\" and not is_escaped
