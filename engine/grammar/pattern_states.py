"""Follows simple regular expressions character by character, by the states of a finite automaton.

Two texts in the same state can be continued by the same texts. Only expressions whose meaning no two engines
disagree about are read: printable ASCII literals and classes, `\\d`, groups, alternatives and repetitions,
anchored at both ends. The automaton is that of Glushkov (1961): one position for each character of the
expression; states are made when a text reaches them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

DEAD = -1
MAX_POSITIONS = 1_000
MAX_STATES = 2_000
MAX_REMEMBERED = 10_000
"""Steps, as dictionaries find them faster."""
MAX_DEPTH = 30
"""Of groups within groups."""
_DIGITS = sum(1 << code for code in b"0123456789")
_ESCAPED = frozenset("#$&()*+-./?@[]^{|}~")
"""Escaped, these stand for themselves everywhere. A quotation mark and a backslash have two characters in
JSON: they are not followed.
"""
_SPECIAL = frozenset("^$.|?*+()[]{}\\")


class UnsupportedPattern(ValueError):
    """The expression has parts that are not followed here."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an expression: the positions that may come first and last, and whether it may be empty."""

    first: frozenset[int]
    last: frozenset[int]
    is_nullable: bool


_EMPTY = _Part(frozenset(), frozenset(), True)


class _Reader:
    """Reads an expression into positions: the characters of each, as bits, and those that may follow it."""

    def __init__(self, source: str) -> None:
        self._source, self._place, self._depth = source, 0, 0
        self.characters: list[int] = []
        self.follow: list[set[int]] = []

    def read(self) -> _Part:
        self._expect("^")
        # An anchor binds closer than an alternative: `^a|b$` is anchored nowhere on both sides.
        whole = self._sequence()
        self._expect("$")
        if self._place < len(self._source):
            raise UnsupportedPattern(self._source)
        return whole

    def _peek(self) -> str:
        return self._source[self._place : self._place + 1]

    def _take(self) -> str:
        self._place += 1
        return self._source[self._place - 1 : self._place]

    def _expect(self, character: str) -> None:
        if self._take() != character:
            raise UnsupportedPattern(self._source)

    def _alternatives(self) -> _Part:
        made = self._sequence()
        while self._peek() == "|":
            self._take()
            other = self._sequence()
            made = _Part(
                made.first | other.first, made.last | other.last, made.is_nullable or other.is_nullable
            )
        return made

    def _sequence(self) -> _Part:
        made = _EMPTY
        while self._peek() not in ("", "|", ")", "$"):
            made = self._join(made, self._repeated())
        return made

    def _join(self, one: _Part, other: _Part) -> _Part:
        for position in one.last:
            self.follow[position] |= other.first
        return _Part(
            one.first | other.first if one.is_nullable else one.first,
            one.last | other.last if other.is_nullable else other.last,
            one.is_nullable and other.is_nullable,
        )

    def _repeated(self) -> _Part:
        begin = self._place
        part = self._atom()
        end = self._place
        least, most = self._counts()
        if self._peek() and self._peek() in "*+?{":  # lazy, possessive
            raise UnsupportedPattern(self._source)
        after = self._place
        # Each repetition has positions of its own. The first has been read.
        made = part if least else _Part(part.first, part.last, True)
        if most == 0:
            raise UnsupportedPattern(self._source)
        for number in range(1, max(least, most or 0)):
            self._place = begin
            part = self._atom()
            assert self._place == end
            if number >= least:
                part = _Part(part.first, part.last, True)
            made = self._join(made, part)
        self._place = after
        if most is None:
            for position in part.last:
                self.follow[position] |= part.first
        return made

    def _counts(self) -> tuple[int, int | None]:
        """Reads (how often at least, how often at most; None: any number)."""
        kind = self._peek()
        if kind not in ("*", "+", "?", "{"):
            return 1, 1
        self._take()
        if kind != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[kind]
        text = ""
        while (character := self._take()) != "}":
            if character not in "0123456789," or not character:
                raise UnsupportedPattern(self._source)
            text += character
        least, comma, most = text.partition(",")
        if not least.isdigit() or "," in most or int(most or least) < int(least):
            raise UnsupportedPattern(self._source)
        return int(least), (int(most) if most else None) if comma else int(least)

    def _atom(self) -> _Part:
        character = self._take()
        if character == "(":
            if self._peek() == "?":
                self._take()
                self._expect(":")
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise UnsupportedPattern(self._source)
            made = self._alternatives()
            self._depth -= 1
            self._expect(")")
            return made
        if character == "[":
            return self._position(self._class())
        if character == "\\":
            return self._position(self._escape())
        return self._position(self._literal(character, _SPECIAL))

    def _position(self, characters: int) -> _Part:
        if len(self.characters) == MAX_POSITIONS:
            raise UnsupportedPattern(self._source)
        self.characters.append(characters)
        self.follow.append(set())
        one = frozenset((len(self.characters) - 1,))
        return _Part(one, one, False)

    def _literal(self, character: str, special: Iterable[str]) -> int:
        if not " " <= character <= "~" or character == '"' or character in special:
            raise UnsupportedPattern(self._source)
        return 1 << ord(character)

    def _escape(self) -> int:
        character = self._take()
        if character == "d":
            return _DIGITS
        if not character or character not in _ESCAPED:
            raise UnsupportedPattern(self._source)
        return 1 << ord(character)

    def _class(self) -> int:
        made = 0
        while (character := self._take()) != "]":
            low = self._escape() if character == "\\" else self._literal(character, "^[" if not made else "[")
            made |= low
            if self._peek() == "-" and self._source[self._place + 1 : self._place + 2] != "]":
                self._take()
                other = self._take()
                high = self._escape() if other == "\\" else self._literal(other, "[")
                if low.bit_count() > 1 or high.bit_count() > 1 or high < low:
                    raise UnsupportedPattern(self._source)
                made |= (high << 1) - low
            if self._source[self._place : self._place + 2] in ("&&", "--", "~~"):
                raise UnsupportedPattern(self._source)  # set operations
        if not made or made & (1 << ord('"') | 1 << ord("\\")):
            raise UnsupportedPattern(self._source)
        return made


KeyT = TypeVar("KeyT")


def _remember(known: dict[KeyT, int], key: KeyT, value: int) -> None:
    if len(known) == MAX_REMEMBERED:
        known.clear()
    known[key] = value


class Pattern:
    """An expression's automaton. State 0 is before the first character."""

    def __init__(self, source: str) -> None:
        """Raises UnsupportedPattern."""
        reader = _Reader(source)
        whole = reader.read()
        self._characters = reader.characters
        self._follow = [frozenset(one) for one in reader.follow]
        self._last = whole.last
        self._lengths = self._shortest_ends()
        self.longest_end = 1 + max(self._lengths, default=0)
        """No text needs more characters to its end than this, if it goes the shortest way."""
        self._states: list[tuple[frozenset[int], bool]] = [(whole.first, whole.is_nullable)]
        self._numbers = {self._states[0]: 0}
        self._next: dict[int, int] = {}
        self._after: dict[tuple[int, bytes], int] = {}
        self._choices: dict[tuple[int, int], int] = {}

    def after(self, state: int, text: bytes) -> int:
        """Returns the state after more characters; `DEAD` if one of them does not belong to the text."""
        key = state, text
        found = self._after.get(key)
        if found is None:
            found = state
            for code in text:
                found = self.step(found, code)
                if found == DEAD:
                    break
            _remember(self._after, key, found)
        return found

    def step(self, state: int, code: int) -> int:
        """Returns the state after one more character, a byte; `DEAD` if there is none, or one too many."""
        place = state << 8 | code
        found = self._next.get(place)
        if found is None:
            found = self._next[place] = self._make(state, code)
        return found

    def num_choices(self, state: int, room: int) -> int:
        """Returns how many different bytes may come next if at most `room` characters follow; the quotation
        mark that ends the string counts as one.
        """
        key = state, room
        found = self._choices.get(key)
        if found is None:
            follow, is_end = self._states[state]
            allowed = 0
            for position in follow:
                if self._lengths[position] < room:
                    allowed |= self._characters[position]
            found = allowed.bit_count() + is_end
            _remember(self._choices, key, found)
        return found

    def _make(self, state: int, code: int) -> int:
        reached = [position for position in self._states[state][0] if self._characters[position] >> code & 1]
        if not reached or len(self._states) == MAX_STATES:
            return DEAD
        follow = frozenset().union(*(self._follow[position] for position in reached))
        made = follow, not self._last.isdisjoint(reached)
        if made not in self._numbers:
            self._numbers[made] = len(self._states)
            self._states.append(made)
        return self._numbers[made]

    def _shortest_ends(self) -> list[int]:
        """Returns, by position, the fewest characters after it to an end."""
        before: list[list[int]] = [[] for _ in self._follow]
        for position, follow in enumerate(self._follow):
            for other in follow:
                before[other].append(position)
        lengths = [MAX_POSITIONS] * len(self._follow)
        reached, length = list(self._last), 0
        while reached:
            for position in reached:
                lengths[position] = min(lengths[position], length)
            length += 1
            reached = [
                one
                for one in {one for position in reached for one in before[position]}
                if lengths[one] > length
            ]
        return lengths
