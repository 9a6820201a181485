"""Finds stop strings in a stream of bytes, however the stream is cut into tokens.

Uses one Aho-Corasick automaton per set of stop strings (Aho and Corasick, CACM 1975). Works on bytes, because
a token may end inside a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    stop: str
    start: int
    """Offset of its first byte in all bytes pushed so far."""


class _Automaton:
    """Transitions over bytes. A state's depth is how many bytes of a stop string have been seen."""

    __slots__ = ("depths", "first_bytes", "matches", "transitions")

    def __init__(self, stops: Sequence[str]) -> None:
        self.transitions: list[dict[int, int]] = [{}]
        self.depths: list[int] = [0]
        self.matches: list[str | None] = [None]
        for stop in stops:
            if not stop:
                raise ValueError("a stop string may not be empty")
            self._add(stop)
        self.first_bytes = frozenset(self.transitions[0])
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for depth, byte in enumerate(stop.encode("utf-8"), start=1):
            following = self.transitions[state].get(byte)
            if following is None:
                following = len(self.transitions)
                self.transitions[state][byte] = following
                self.transitions.append({})
                self.depths.append(depth)
                self.matches.append(None)
            state = following
        self.matches[state] = stop

    def _link(self) -> None:
        """Completes each state with its fallback's transitions, breadth first: fallbacks are shallower."""
        fallbacks = [0] * len(self.transitions)
        level = list(self.transitions[0].values())
        while level:
            deeper = []
            for state in level:
                fallback = fallbacks[state]
                if self.matches[state] is None:
                    self.matches[state] = self.matches[fallback]
                for byte, following in self.transitions[state].items():
                    fallbacks[following] = self.transitions[fallback].get(byte, 0)
                    deeper.append(following)
                self.transitions[state] = {**self.transitions[fallback], **self.transitions[state]}
            level = deeper


class StopMatcher:
    """Reads a stream of bytes and reports stop strings in it, however the stream is cut."""

    __slots__ = ("_automaton", "_num_read", "_state")

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string. An empty list matches nothing."""
        self._automaton = _Automaton(stops)
        self._state = 0
        self._num_read = 0

    def fresh(self) -> StopMatcher:
        """Returns a matcher for the same stops at the start of another stream; shares the automaton."""
        twin = StopMatcher.__new__(StopMatcher)
        twin._automaton = self._automaton
        twin._state = 0
        twin._num_read = 0
        return twin

    def push(self, data: bytes) -> StopMatch | None:
        """Reads `data`. Returns the first stop string that ends in it: of several ending there, the longest.

        All of `data` is read either way, and reading may continue after a match.
        """
        state = self._state
        if not state and self._automaton.first_bytes.isdisjoint(data):
            self._num_read += len(data)
            return None  # nearly every token, at C speed
        transitions = self._automaton.transitions
        matches = self._automaton.matches
        found = None
        for position, byte in enumerate(data, start=1):
            state = transitions[state].get(byte, 0)
            if found is None and (stop := matches[state]) is not None:
                found = StopMatch(stop, self._num_read + position - len(stop.encode("utf-8")))
        self._state = state
        self._num_read += len(data)
        return found

    @property
    def held(self) -> int:
        """Number of last bytes that may begin a stop string, and so must not be shown yet."""
        return self._automaton.depths[self._state]
