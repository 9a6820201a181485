"""Reads a grammar in llguidance's dialect of Lark into a tree of its rules and terminals."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from tokenization.tools.unicode_regex import unicode_regex

MAX_REPEATS = 10_000
MAX_NESTING = 30
"""Groups within groups."""

_NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "NUMBER": _NUMBER,
    "SIGNED_NUMBER": f"[+-]?{_NUMBER}",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][0-9A-Za-z_]*",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "WS_INLINE": r"[\t ]+",
    "WS": r"[\t\n\f\r ]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
}
"""Terminals that a grammar can import from `common`."""

_TOKENS = re.compile(
    r"""
      (?P<space>[ \t]+|(\#|//)[^\n]*)
    | (?P<newline>(\r?\n)+)
    | (?P<string>"(\\.|[^"\\\n])*"i?)
    | (?P<regex>/(\\.|[^/\\])+/[a-z]*)
    | (?P<statement>%[a-z]+)
    | (?P<name>[!?]*_?[a-z][a-z0-9_-]*|_?[A-Z][A-Z0-9_-]*)
    | (?P<number>[0-9]+)
    | (?P<mark>->|\.\.|::|[:|()\[\]{}?*+~,.&=<>@])
    """,
    re.VERBOSE,
)
_TIMES: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}


class Lexeme(NamedTuple):
    """A regular expression."""

    regex: str


class Reference(NamedTuple):
    """A rule or terminal, by its name."""

    name: str


class Alternatives(NamedTuple):
    """One of several parts."""

    parts: list[Part]


class Sequence(NamedTuple):
    """Several parts, one after the other."""

    parts: list[Part]


class Repetition(NamedTuple):
    """A part, `least` to `most` times; None means without a bound."""

    part: Part
    least: int
    most: int | None


Part = Lexeme | Reference | Alternatives | Sequence | Repetition


class Grammar(NamedTuple):
    """The parts of a grammar."""

    named: dict[str, Part]
    """Rules and terminals by name."""
    ignored: list[Part]
    """What may stand between two terminals of a rule."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def read_grammar(source: str) -> Grammar:
    """Raises ValueError for what cannot be rewritten as one regular expression."""
    return _Reader(_tokens(source)).grammar()


def _tokens(source: str) -> list[_Token]:
    found: list[_Token] = []
    place, line = 0, 1
    while place < len(source):
        match = _TOKENS.match(source, place)
        if match is None or match.lastgroup is None:
            raise ValueError(
                f"line {line} has {source[place : place + 20]!r}, which cannot be held within JSON"
            )
        kind = match.lastgroup
        if kind != "space":
            found.append(_Token(kind, match[0], line))
        line += match[0].count("\n")
        place = match.end()
    return [*found, _Token("end", "", line)]


class _Reader:
    """Reads rules, terminals and statements."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0

    def grammar(self) -> Grammar:
        found = Grammar({}, [])
        while True:
            while self._take("newline"):
                pass
            token = self._next()
            if token.kind == "end":
                return found
            if token.kind == "statement":
                self._statement(token, found)
            elif token.kind == "name":
                name = token.text.lstrip("!?")
                if self._take("mark", "."):
                    self._expect("number")
                self._expect("mark", ":")
                if name in found.named:
                    raise ValueError(f"{name!r} is defined twice, on line {token.line} again")
                found.named[name] = self._alternatives()
            else:
                raise _unexpected(token)

    def _statement(self, token: _Token, found: Grammar) -> None:
        if token.text == "%ignore":
            found.ignored.append(self._alternatives())
        elif token.text == "%import":
            if self._expect("name").text != "common":
                raise ValueError(f"line {token.line} imports from another library than 'common'")
            if self._take("mark", "("):
                names = [self._expect("name").text]
                while self._take("mark", ","):
                    names.append(self._expect("name").text)
                self._expect("mark", ")")
                found.named.update({name: _common(name) for name in names})
                return
            self._expect("mark", ".")
            name = self._expect("name").text
            alias = self._expect("name").text if self._take("mark", "->") else name
            found.named[alias] = _common(name)
        else:
            raise ValueError(f"line {token.line} has {token.text!r}, which cannot be held within JSON")

    def _alternatives(self) -> Part:
        parts = [self._sequence()]
        while self._take_bar():
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alternatives(parts)

    def _take_bar(self) -> bool:
        place = self._place
        self._take("newline")
        if self._take("mark", "|"):
            return True
        self._place = place
        return False

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while (part := self._repeated()) is not None:
            parts.append(part)
        if self._take("mark", "->"):
            self._expect("name")
        return Sequence(parts)

    def _repeated(self) -> Part | None:
        atom = self._atom()
        if atom is None:
            return None
        if self._peek().kind == "mark" and self._peek().text in ("?", "*", "+"):
            least, most = _TIMES[self._next().text]
            return Repetition(atom, least, most)
        if self._take("mark", "{"):
            least = self._number() or 0
            most = self._number() if self._take("mark", ",") else least
            self._expect("mark", "}")
        elif self._take("mark", "~"):
            least = most = int(self._expect("number").text)
            if self._take("mark", ".."):
                most = int(self._expect("number").text)
        else:
            return atom
        if max(least, most or 0) > MAX_REPEATS:
            raise ValueError(f"a repetition of more than {MAX_REPEATS} times")
        return Repetition(atom, least, most)

    def _number(self) -> int | None:
        return int(self._next().text) if self._peek().kind == "number" else None

    def _atom(self) -> Part | None:
        token = self._peek()
        if token.kind == "string":
            return self._string()
        if token.kind == "regex":
            return Lexeme(_written_regex(self._next()))
        if token.kind == "name":
            return Reference(self._next().text.lstrip("!?"))
        if token.kind == "mark" and token.text in ("(", "["):
            self._place += 1
            self._depth += 1
            if self._depth > MAX_NESTING:
                raise ValueError(f"line {token.line} has more than {MAX_NESTING} groups within each other")
            part = self._alternatives()
            self._depth -= 1
            self._take("newline")
            self._expect("mark", ")" if token.text == "(" else "]")
            return part if token.text == "(" else Repetition(part, 0, 1)
        if token.kind in ("newline", "end") or token.text in ("|", ")", "]", "->"):
            return None
        raise _unexpected(token)

    def _string(self) -> Part:
        token = self._next()
        text = _written_string(token)
        if self._take("mark", ".."):
            last = _written_string(self._expect("string"))
            if len(text) != 1 or len(last) != 1:
                raise ValueError(f"line {token.line} has a range of texts that are not single characters")
            return Lexeme(f"[{_escaped(text)}-{_escaped(last)}]")
        return Lexeme(f"(?i:{_escaped(text)})" if token.text.endswith("i") else _escaped(text))

    def _peek(self) -> _Token:
        return self._tokens[self._place]

    def _next(self) -> _Token:
        token = self._peek()
        self._place += token.kind != "end"
        return token

    def _take(self, kind: str, text: str | None = None) -> bool:
        token = self._peek()
        found = token.kind == kind and text in (None, token.text)
        self._place += found
        return found

    def _expect(self, kind: str, text: str | None = None) -> _Token:
        token = self._peek()
        if token.kind != kind or text not in (None, token.text):
            raise _unexpected(token)
        return self._next()


def _unexpected(token: _Token) -> ValueError:
    if token.kind == "end":
        return ValueError("the grammar ends within a rule")
    return ValueError(f"line {token.line} has {token.text!r}, which cannot be held within JSON")


def _common(name: str) -> Part:
    if name not in _COMMON:
        known = ", ".join(_COMMON)
        raise ValueError(f"the terminal 'common.{name}' cannot be held within JSON, only {known}")
    return Lexeme(f"(?:{_COMMON[name]})")


def _written_string(token: _Token) -> str:
    text = re.sub(r"\\x([0-9A-Fa-f]{2})", r"\\u00\1", token.text.removesuffix("i"))
    try:
        found: str = json.loads(text)
    except ValueError:
        raise ValueError(
            f"the text {token.text[:40]} on line {token.line} is not written as in JSON"
        ) from None
    return found


def _written_regex(token: _Token) -> str:
    body, _, flags = token.text[1:].rpartition("/")
    if set(flags) - set("imsu"):
        raise ValueError(f"the flags {flags!r} of a regular expression on line {token.line}")
    body = unicode_regex(body)
    return f"(?{flags}:{body})" if flags else f"(?:{body})"


def _escaped(text: str) -> str:
    return "".join(one if one.isalnum() or ord(one) > 127 else f"\\x{{{ord(one):x}}}" for one in text)
