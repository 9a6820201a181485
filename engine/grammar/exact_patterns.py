"""Rewrites the character classes of patterns that llguidance would hold a JSON string to too loosely.

llguidance 1.9.1 lets a class with all control characters, such as `[^"]`, match a quotation mark and a
backslash, too, if they are escaped in the string. Without U+0000 a class is followed exactly.
"""

from __future__ import annotations

from typing import Final

_WITHOUT_NUL: Final = r"&&[^\x00]]"
_BY_CODE = "xuU0pP"
"""Letters of the escapes that stand for a character by its code, or for a class by its name."""


def exact_classes(pattern: str) -> str:
    """Returns the pattern with classes that do not match U+0000, and the same otherwise. A pattern that is
    not valid stays invalid.
    """
    made: list[str] = []
    place = 0
    while place < len(pattern):
        begin, place = place, _atom_end(pattern, place)
        atom = pattern[begin:place]
        is_class = atom[0] == "[" or (atom[0] == "\\" and atom[1:2] in _BY_CODE and len(atom) > 1)
        made.append(f"[{atom}{_WITHOUT_NUL}" if is_class else atom)
    return "".join(made)


def _atom_end(pattern: str, place: int) -> int:
    """Returns where the class, escape or character at `place` ends."""
    if pattern[place] == "\\":
        return _escape_end(pattern, place)
    if pattern[place] != "[":
        return place + 1
    depth = 0
    while place < len(pattern):
        if pattern[place] == "\\":
            place += 2
            continue
        if pattern[place] == "[":
            depth += 1
            place += 2 if pattern[place + 1 : place + 2] == "^" else 1
            if pattern[place : place + 1] == "]":  # the first character of a class is never its end
                place += 1
            continue
        depth -= pattern[place] == "]"
        place += 1
        if not depth:
            return place
    return len(pattern)


def _escape_end(pattern: str, place: int) -> int:
    kind, place = pattern[place + 1 : place + 2], min(place + 2, len(pattern))
    if kind and kind in "xuUpP":
        if pattern[place : place + 1] == "{":
            end = pattern.find("}", place)
            return len(pattern) if end < 0 else end + 1
        return min(place + {"x": 2, "u": 4, "U": 8}.get(kind, 1), len(pattern))
    return place
