"""Parses SCIM filters (RFC 7644, 3.4.2.2), and evaluates them on values of a resource.

Attribute names are compared without case, and may have the URN of their schema before them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tenants.provisioning.errors import InvalidFilter

Operator = Literal["eq", "ne", "co", "sw", "ew", "gt", "ge", "lt", "le"]
Value = str | bool | int | float | None
MAX_LEN = 2000
MAX_COMPARISONS = 50
MAX_DEPTH = 20
CASE_EXACT = frozenset({"id", "externalid"})
"""Attributes whose case matters."""
_OPERATORS: frozenset[str] = frozenset(get_args(Operator))
_TOKEN = re.compile(r'\s*(?:([()\[\]])|("(?:[^"\\]|\\.)*")|([^\s()\[\]"]+))')
_SCHEMA = re.compile(r"urn:ietf:params:scim:schemas:core:2\.0:\w+:", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"\$?[a-z][\w-]*(\.\$?[a-z][\w-]*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Comparison:
    attribute: str
    """In lower case, such as `name.givenname`."""
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class Present:
    """The attribute has a value that is not empty."""

    attribute: str


@dataclass(frozen=True, slots=True)
class Not:
    part: Filter


@dataclass(frozen=True, slots=True)
class Junction:
    kind: Literal["and", "or"]
    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """One value of the attribute matches, such as `emails[type eq "work"]`."""

    attribute: str
    part: Filter


Filter = Comparison | Present | Not | Junction | Within


def parse_filter(text: str) -> Filter:
    """Raises InvalidFilter."""
    parser = _Parser(text)
    found = parser.alternatives(0)
    parser.expect_end()
    return found


def attribute_name(text: str) -> str:
    """Returns an attribute's name in lower case and without its schema. Raises InvalidFilter."""
    name = _SCHEMA.sub("", text, count=1)
    if _ATTRIBUTE.fullmatch(name) is None:
        raise InvalidFilter(f"{text[:80]!r} is not the name of an attribute")
    return name.lower()


class _Parser:
    """Parses by recursive descent: `or` binds less than `and`, `and` less than `not`."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LEN:
            raise InvalidFilter(f"the filter is longer than {MAX_LEN} characters")
        self._tokens = _tokens(text)
        self._at = 0
        self._num_comparisons = 0

    def alternatives(self, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise InvalidFilter(f"the filter is nested deeper than {MAX_DEPTH} levels")
        parts = [self._conjunction(depth)]
        while self._take_word("or"):
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else Junction("or", tuple(parts))

    def expect_end(self) -> None:
        if self._at < len(self._tokens):
            raise InvalidFilter(f"the filter does not end before {self._tokens[self._at][:80]!r}")

    def _conjunction(self, depth: int) -> Filter:
        parts = [self._term(depth)]
        while self._take_word("and"):
            parts.append(self._term(depth))
        return parts[0] if len(parts) == 1 else Junction("and", tuple(parts))

    def _term(self, depth: int) -> Filter:
        if self._peek().lower() == "not" and self._peek(1) == "(":
            self._at += 1
            return Not(self._term(depth + 1))
        if self._peek() == "(":
            self._at += 1
            inner = self.alternatives(depth + 1)
            self._expect(")")
            return inner
        attribute = attribute_name(self._next())
        if self._peek() == "[":
            self._at += 1
            inner = self.alternatives(depth + 1)
            self._expect("]")
            return Within(attribute, inner)
        return self._comparison(attribute)

    def _comparison(self, attribute: str) -> Filter:
        self._num_comparisons += 1
        if self._num_comparisons > MAX_COMPARISONS:
            raise InvalidFilter(f"the filter has more than {MAX_COMPARISONS} comparisons")
        operator = self._next().lower()
        if operator == "pr":
            return Present(attribute)
        if operator not in _OPERATORS:
            raise InvalidFilter(f"{operator[:80]!r} is not an operator: use pr, {', '.join(_OPERATORS)}")
        try:
            value = json.loads(self._next())
        except ValueError as error:
            raise InvalidFilter(f"the value of {attribute} must be JSON: text is in double quotes") from error
        if isinstance(value, str) and "\x00" in value:
            raise InvalidFilter("a value cannot contain U+0000")
        return Comparison(attribute, operator, value)  # type: ignore[arg-type]

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise InvalidFilter("the filter ends too early")
        self._at += 1
        return token

    def _take_word(self, word: str) -> bool:
        found = self._peek().lower() == word
        self._at += found
        return found

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise InvalidFilter(f"the filter lacks {token!r}")


def _tokens(text: str) -> list[str]:
    text, found, at = text.rstrip(), [], 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise InvalidFilter(f"the filter cannot be read from {text[at : at + 80]!r} on")
        found.append(token[0].strip())
        at = token.end()
    return found


def matches(condition: Filter, value: Mapping[str, Any]) -> bool:
    """Whether one value of a multi-valued attribute, such as an email address, matches."""
    match condition:
        case Junction("and", parts):
            return all(matches(part, value) for part in parts)
        case Junction(_, parts):
            return any(matches(part, value) for part in parts)
        case Not(part):
            return not matches(part, value)
        case Present(attribute):
            return _lookup(value, attribute) not in (None, "", [], {})
        case Comparison(attribute, operator, wanted):
            return _compares(_lookup(value, attribute), operator, wanted)
        case Within():
            raise InvalidFilter("a filter in brackets cannot have brackets")


def _lookup(value: Mapping[str, Any], attribute: str) -> Any:
    return next((found for name, found in value.items() if name.lower() == attribute), None)


def _compares(found: Any, operator: Operator, wanted: Value) -> bool:
    if isinstance(found, str) and isinstance(wanted, str):
        found, wanted = found.lower(), wanted.lower()
    if operator in ("eq", "ne"):
        return (found == wanted) == (operator == "eq")
    if not (isinstance(found, str) and isinstance(wanted, str)):
        return False
    return {
        "co": wanted in found,
        "sw": found.startswith(wanted),
        "ew": found.endswith(wanted),
        "gt": found > wanted,
        "ge": found >= wanted,
        "lt": found < wanted,
        "le": found <= wanted,
    }[operator]
