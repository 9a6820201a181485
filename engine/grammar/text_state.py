"""Knows from a JSON text so far, token by token, when two texts of one schema may be continued alike.

Inside a string the tokens that may come next depend on the place of the string in the schema, on the
characters that it may still have, and on its pattern's state: not on what was written. Such a state has a
key, and texts with equal keys have equal masks.

A state has no key where that is not certain: between values, in numbers and enumerations, in an unfinished
escape or character, and where one byte only may come next: there llguidance looks at the token before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from itertools import count

from engine.grammar.pattern_states import DEAD
from engine.grammar.schema_nodes import (
    ARRAY,
    OBJECT,
    OPAQUE,
    STRING,
    ArrayNode,
    Node,
    ObjectNode,
    StringNode,
)
from engine.grammar.token_texts import TokenTexts

MaskKey = tuple[int, int, int]
"""(place in the schema, state within the string, characters that it may still have)."""
MAX_PLACES = 4_096
"""Known at a time, of one schema."""
_SPACES = re.compile(rb"[ \t\r\n]*")
_NAME = re.compile(rb'[^"\\]*')
_OPAQUE_TEXT = re.compile(rb'[^"\[\]{}]*')
_BETWEEN = re.compile(rb'[^,\[\]{}"]*')
_ASCII = re.compile(rb'[^"\\\x80-\xff]*')
(
    _VALUE,
    _AFTER,
    _BEFORE_NAME,
    _IN_NAME,
    _COLON,
    _IN_TEXT,
    _IN_PATTERN,
    _IN_OPAQUE_STRING,
    _IN_OPAQUE,
    _LOST,
) = range(10)


class _Frame:
    """An object or array that is open, at one of its values."""

    __slots__ = ("index", "node", "parent", "place")

    def __init__(self, parent: _Frame | None, node: Node, index: int, place: int) -> None:
        self.parent, self.node, self.index, self.place = parent, node, index, place


class SchemaTexts:
    """The texts of one schema."""

    _numbers = count()

    def __init__(self, root: Node, tokens: TokenTexts) -> None:
        self.root = root
        self.tokens = tokens
        self.number = next(SchemaTexts._numbers)
        """Of no other schema of this process."""
        self._places: dict[tuple[int, int, int, int], int] = {}
        self._num_places = count(1)

    def start(self) -> TextState:
        """Returns the state before the first token."""
        return TextState(self)

    def frame(self, parent: _Frame | None, node: Node, index: int) -> _Frame:
        """Returns the frame of a value of an object or array. Frames of one place have the same texts after
        them, as far as a token reaches.
        """
        first = second = index
        if isinstance(node, ArrayNode):
            # Values that end before a token does: what is allowed after later ones cannot matter.
            reach = self.tokens.longest // (node.items[0].min_bytes + 1) + 2
            first = min(reach, max(0, node.min_items - index))
            second = -1 if node.max_items is None else min(reach, node.max_items - index)
        key = (0 if parent is None else parent.place, id(node), first, second)
        place = self._places.get(key)
        if place is None:
            if len(self._places) == MAX_PLACES:
                self._places.clear()  # places are found anew, under other numbers
            place = self._places[key] = next(self._num_places)
        return _Frame(parent, node, index, place)


class TextState:
    """Where a text is. It is known to be one that the schema allows."""

    __slots__ = (
        "_buffer",
        "_depth",
        "_frame",
        "_mode",
        "_node",
        "_num_chars",
        "_pattern_state",
        "_schema",
        "_unfinished",
    )

    def __init__(self, schema: SchemaTexts) -> None:
        self._schema = schema
        self._mode = _VALUE
        self._node: Node = schema.root
        """Of the value that comes next, or that the text is in."""
        self._frame: _Frame | None = None
        self._num_chars = 0
        self._unfinished = 0
        """Bytes of a character that are to come."""
        self._buffer = b""
        """Of a property's name, or an unfinished escape."""
        self._depth = 0
        """Of brackets within an opaque value."""
        self._pattern_state = 0

    def advance(self, token_id: int) -> None:
        """Follows a token."""
        text, num_plain = self._schema.tokens.of(token_id)
        mode = self._mode
        if mode == _IN_TEXT and num_plain and not self._unfinished and not self._buffer:
            self._num_chars += num_plain
            return
        if mode == _IN_PATTERN and num_plain:
            assert isinstance(self._node, StringNode)
            assert self._node.pattern is not None
            state = self._node.pattern.after(self._pattern_state, text)
            if state != DEAD:
                self._pattern_state = state
                self._num_chars += num_plain
                return
        place, end = 0, len(text)
        while place < end:
            place = _STEPS[self._mode](self, text, place)

    def after(self, token_ids: Sequence[int]) -> TextState:
        """Returns the state after more tokens."""
        later = copy(self)
        for token_id in token_ids:
            later.advance(token_id)
        return later

    @property
    def key(self) -> MaskKey | None:
        """What the mask depends on, of the masks of this schema; None where it may depend on more."""
        mode = self._mode
        if mode not in (_IN_TEXT, _IN_PATTERN):
            return None
        node = self._node
        assert isinstance(node, StringNode)
        longest = self._schema.tokens.longest + 1
        place = 0 if self._frame is None else self._frame.place
        most, num = node.max_length, self._num_chars
        if mode == _IN_TEXT:
            if self._unfinished or self._buffer or most == num:
                return None
            room = longest if most is None else min(longest, most - num)
            return place, max(0, min(longest, node.min_length - num)), room
        assert node.pattern is not None
        reach = longest + node.pattern.longest_end
        room = reach if most is None else min(reach, most - num)
        if node.pattern.num_choices(self._pattern_state, room) < 2:
            return None
        return place, ~self._pattern_state, room

    # Each of the following reads some bytes from a place on, and returns where it stopped.

    def _value(self, text: bytes, place: int) -> int:
        place = _end(_SPACES, text, place)
        if place == len(text):
            return place
        byte = text[place]
        if byte == _QUOTE:
            self._open_string(self._node.of_kind(STRING))
        elif byte == _BRACE:
            self._open(self._node.of_kind(OBJECT), ObjectNode)
        elif byte == _BRACKET:
            self._open(self._node.of_kind(ARRAY), ArrayNode)
        elif byte == _BRACKET_END:
            self._close()
        else:
            self._mode = _AFTER  # a number or a word: its other bytes are passed over there
        return place + 1

    def _open_string(self, node: Node) -> None:
        self._num_chars = self._pattern_state = self._depth = 0
        self._node = node
        if not isinstance(node, StringNode):
            self._mode = _IN_OPAQUE_STRING
        else:
            self._mode = _IN_TEXT if node.pattern is None else _IN_PATTERN

    def _open(self, node: Node, kind: type[Node]) -> None:
        if not isinstance(node, kind):
            self._mode, self._depth = _IN_OPAQUE, 1
        elif isinstance(node, ArrayNode):
            self._frame = self._schema.frame(self._frame, node, 0)
            self._node, self._mode = node.items[0], _VALUE
        else:
            self._frame = self._schema.frame(self._frame, node, -1)
            self._mode = _BEFORE_NAME

    def _close(self) -> None:
        if self._frame is None:
            self._mode = _LOST
            return
        self._frame, self._mode = self._frame.parent, _AFTER

    def _after(self, text: bytes, place: int) -> int:
        place = _end(_BETWEEN, text, place)
        if place == len(text):
            return place
        byte, frame = text[place], self._frame
        if byte in (_BRACE_END, _BRACKET_END):
            self._close()
        elif byte != _COMMA or frame is None:
            self._mode = _LOST
        elif isinstance(frame.node, ArrayNode):
            self._frame = self._schema.frame(frame.parent, frame.node, frame.index + 1)
            self._node, self._mode = frame.node.items[0], _VALUE
        else:
            self._mode = _BEFORE_NAME
        return place + 1

    def _before_name(self, text: bytes, place: int) -> int:
        place = _end(_SPACES, text, place)
        if place == len(text):
            return place
        if text[place] == _QUOTE:
            self._mode, self._buffer = _IN_NAME, b""
        elif text[place] == _BRACE_END:
            self._close()
        else:
            self._mode = _LOST
        return place + 1

    def _in_name(self, text: bytes, place: int) -> int:
        end = _end(_NAME, text, place)
        self._buffer += text[place:end]
        if end == len(text):
            return end
        is_escaped = self._buffer.endswith(b"\\") and _num_trailing(self._buffer) % 2
        if text[end] == _QUOTE and not is_escaped:
            self._begin_property()
        else:
            self._buffer += text[end : end + 1]
        return end + 1

    def _begin_property(self) -> None:
        frame = self._frame
        assert frame is not None
        assert isinstance(frame.node, ObjectNode)
        num_listed = len(frame.node.properties)
        index, self._node = frame.node.properties.get(self._buffer, (num_listed, OPAQUE))
        if index <= frame.index and index < num_listed:
            self._mode = _LOST  # not in their order: more than the last one may matter
            return
        self._frame = self._schema.frame(frame.parent, frame.node, index)
        self._buffer, self._mode = b"", _COLON

    def _colon(self, text: bytes, place: int) -> int:
        found = text.find(b":", place)
        if found < 0:
            return len(text)
        self._mode = _VALUE
        return found + 1

    def _in_text(self, text: bytes, place: int) -> int:
        byte = text[place]
        if self._buffer:
            self._escape(byte)
        elif self._unfinished:
            self._unfinished -= 1
            self._num_chars += not self._unfinished
        elif byte >= 0x80:
            self._unfinished = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        elif byte == _QUOTE:
            self._mode = _AFTER
        elif byte == _BACKSLASH:
            self._buffer = b"\\"
        else:
            end = _end(_ASCII, text, place)
            self._num_chars += end - place
            return end
        return place + 1

    def _escape(self, byte: int) -> None:
        self._buffer += bytes((byte,))
        if self._buffer[1] != _U:
            self._buffer = b""
        elif len(self._buffer) < 6:
            return
        elif self._buffer[2:4].lower() >= b"d8" and self._buffer[2:4].lower() < b"e0":
            self._mode, self._buffer, self._depth = _IN_OPAQUE_STRING, b"", 0  # half a character
            return
        self._buffer = b""
        self._num_chars += 1

    def _in_pattern(self, text: bytes, place: int) -> int:
        byte = text[place]
        if byte == _QUOTE:
            self._mode = _AFTER
            return place + 1
        assert isinstance(self._node, StringNode)
        assert self._node.pattern is not None
        self._pattern_state = self._node.pattern.step(self._pattern_state, byte)
        if self._pattern_state == DEAD:  # an escape, or more states than are followed
            self._mode, self._depth = _IN_OPAQUE_STRING, 0
            return place
        self._num_chars += 1
        return place + 1

    def _in_opaque_string(self, text: bytes, place: int) -> int:
        if self._buffer:  # an escape
            self._buffer = b""
            return place + 1
        end = _end(_NAME, text, place)
        if end == len(text):
            return end
        if text[end] == _BACKSLASH:
            self._buffer = b"\\"
        else:
            self._mode = _IN_OPAQUE if self._depth else _AFTER
        return end + 1

    def _in_opaque(self, text: bytes, place: int) -> int:
        place = _end(_OPAQUE_TEXT, text, place)
        if place == len(text):
            return place
        byte = text[place]
        if byte == _QUOTE:
            self._mode = _IN_OPAQUE_STRING
        else:
            self._depth += 1 if byte in (_BRACE, _BRACKET) else -1
            if not self._depth:
                self._mode = _AFTER
        return place + 1

    def _lost(self, text: bytes, place: int) -> int:
        return len(text)


def _end(pattern: re.Pattern[bytes], text: bytes, place: int) -> int:
    found = pattern.match(text, place)
    assert found is not None
    return found.end()


def _num_trailing(buffer: bytes) -> int:
    return len(buffer) - len(buffer.rstrip(b"\\"))


_QUOTE, _BACKSLASH, _COMMA, _U = b'"\\,u'
_BRACE, _BRACE_END, _BRACKET, _BRACKET_END = b"{}[]"
_STEPS = (
    TextState._value,
    TextState._after,
    TextState._before_name,
    TextState._in_name,
    TextState._colon,
    TextState._in_text,
    TextState._in_pattern,
    TextState._in_opaque_string,
    TextState._in_opaque,
    TextState._lost,
)
