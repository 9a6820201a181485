"""Has hypothesis build wide character classes of regular expressions once.

A class that excludes the unprintable characters names 43 000 of them, and hypothesis collects them for every
string of every schema that has the pattern: 1.5 s of CPU each time, and most of what schemathesis took.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from hypothesis.internal.intervalsets import IntervalSet
from hypothesis.strategies import SearchStrategy
from hypothesis.strategies._internal import regex


class OnceBuilt(regex.CharactersBuilder):
    """The same characters from the same expressions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._ignores_case = bool(self._flags & re.IGNORECASE)

    def add_char(self, c: str) -> None:
        if self._ignores_case:
            super().add_char(c)
        else:
            self._whitelist_chars.add(c)

    @property
    def strategy(self) -> SearchStrategy[str]:
        if not self._ignores_case:
            self._intervals |= _intervals_of(frozenset(self._whitelist_chars))
            self._whitelist_chars.clear()
        return super().strategy


@functools.cache
def _intervals_of(characters: frozenset[str]) -> IntervalSet:
    return IntervalSet.from_string("".join(characters))


def install() -> None:
    """Use it from now on, in this process, and build each expression's strategy once."""
    regex.CharactersBuilder = OnceBuilt
    regex.regex_strategy = functools.cache(regex.regex_strategy)
