"""Rewrites a regular expression for a JSON Schema's `pattern`, whose classes of characters are ASCII only."""

from __future__ import annotations

import re

_VERBOSE = re.compile(r"\(\?[A-Za-z]*x")
_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"


def unicode_regex(regex: str) -> str:
    """Returns the expression with `\\d` and `\\w` spelled out: elsewhere they mean all of Unicode, in a
    pattern ASCII only. Raises ValueError for expressions with comments, which could hide what follows them.
    """
    if _VERBOSE.search(regex):
        raise ValueError("the flag 'x' of a regular expression cannot be held within JSON")
    made: list[str] = []
    place = 0
    while place < len(regex):
        one = regex[place : place + 2] if regex[place] == "\\" else regex[place]
        place += len(one)
        if one == r"\d":
            one = r"\p{Nd}"
        elif one == r"\D":
            one = r"\P{Nd}"
        elif one in (r"\w", r"\W"):
            one = f"[{'^' if one[1] == 'W' else ''}{_WORD}]"
        made.append(one)
    return "".join(made)
