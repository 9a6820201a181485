"""Rewrites a grammar in llguidance's dialect of Lark as one regular expression of the same texts.

Text within a JSON string can be held to a regular expression, not to a grammar with rules. A grammar without
recursion has such an expression; what has none, or none that is certain, is refused with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

MAX_REGEX = 32 * 1024
"""Characters of the expression."""
MAX_REPEATS = 10_000
MAX_NESTING = 30
"""Groups within groups, and rules within rules."""

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
_VERBOSE = re.compile(r"\(\?[A-Za-z]*x")
_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def lark_regex(source: str) -> str:
    """Returns a regular expression, in the syntax of Rust's `regex`, of the texts of a grammar that compiles.

    Raises:
        ValueError: there is none, as a rule refers to itself; it is too long; or the grammar uses what cannot
            be rewritten.
    """
    return _Flattening(_Reader(_tokens(source)).definitions()).start()


def plain_regex(source: str) -> str:
    """Returns a regular expression for a JSON Schema's `pattern`, where `\\d` and `\\w` mean ASCII only, as
    they mean all of Unicode elsewhere. Raises ValueError.
    """
    return _unicode_classes(source)


# Reading ------------------------------------------------------------------------------------------------


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


class _Definitions(NamedTuple):
    """The parts of a grammar, each as a function that returns its expression."""

    named: dict[str, _Part]
    ignored: list[_Part]


class _Text(NamedTuple):
    """The texts of a part, as an expression."""

    regex: str
    is_optional: bool = False
    """The part may also be left out. Kept apart only where text is ignored between terminals."""


_NOTHING = _Text("", is_optional=True)
"""No terminal, where text is ignored between them."""
_Part = Callable[["_Flattening", bool], _Text]
"""Called with whether the part is within a terminal."""


class _Reader:
    """Reads rules, terminals and statements."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0

    def definitions(self) -> _Definitions:
        found = _Definitions({}, [])
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

    def _statement(self, token: _Token, found: _Definitions) -> None:
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

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._take_bar():
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        return lambda flat, inside: flat.either([part(flat, inside) for part in parts], inside)

    def _take_bar(self) -> bool:
        place = self._place
        self._take("newline")
        if self._take("mark", "|"):
            return True
        self._place = place
        return False

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while (part := self._repeated()) is not None:
            parts.append(part)
        if self._take("mark", "->"):
            self._expect("name")
        return lambda flat, inside: flat.sequence([part(flat, inside) for part in parts], inside)

    def _repeated(self) -> _Part | None:
        atom = self._atom()
        if atom is None:
            return None
        if self._peek().kind == "mark" and self._peek().text in ("?", "*", "+"):
            least, most = _TIMES[self._next().text]
            return _repeat(atom, least, most)
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
        return _repeat(atom, least, most)

    def _number(self) -> int | None:
        return int(self._next().text) if self._peek().kind == "number" else None

    def _atom(self) -> _Part | None:
        token = self._peek()
        if token.kind == "string":
            return self._string()
        if token.kind == "regex":
            return _lexeme(_written_regex(self._next()))
        if token.kind == "name":
            name = self._next().text.lstrip("!?")
            return lambda flat, inside: flat.named(name, inside)
        if token.kind == "mark" and token.text in ("(", "["):
            self._place += 1
            self._depth += 1
            if self._depth > MAX_NESTING:
                raise ValueError(f"line {token.line} has more than {MAX_NESTING} groups within each other")
            part = self._alternatives()
            self._depth -= 1
            self._take("newline")
            self._expect("mark", ")" if token.text == "(" else "]")
            return part if token.text == "(" else _repeat(part, 0, 1)
        if token.kind in ("newline", "end") or token.text in ("|", ")", "]", "->"):
            return None
        raise _unexpected(token)

    def _string(self) -> _Part:
        token = self._next()
        text = _written_string(token)
        if self._take("mark", ".."):
            last = _written_string(self._expect("string"))
            if len(text) != 1 or len(last) != 1:
                raise ValueError(f"line {token.line} has a range of texts that are not single characters")
            return _lexeme(f"[{_escaped(text)}-{_escaped(last)}]")
        return _lexeme(f"(?i:{_escaped(text)})" if token.text.endswith("i") else _escaped(text))

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


def _common(name: str) -> _Part:
    if name not in _COMMON:
        known = ", ".join(_COMMON)
        raise ValueError(f"the terminal 'common.{name}' cannot be held within JSON, only {known}")
    return _lexeme(f"(?:{_COMMON[name]})")


def _repeat(part: _Part, least: int, most: int | None) -> _Part:
    return lambda flat, inside: flat.repeat(part(flat, inside), least, most, inside)


def _lexeme(regex: str) -> _Part:
    return lambda flat, inside: _Text(regex)


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
    body = _unicode_classes(body)
    return f"(?{flags}:{body})" if flags else f"(?:{body})"


def _escaped(text: str) -> str:
    return "".join(one if one.isalnum() or ord(one) > 127 else f"\\x{{{ord(one):x}}}" for one in text)


def _unicode_classes(regex: str) -> str:
    """Spells out classes of characters that a JSON Schema's pattern takes for ASCII only. Raises ValueError
    for expressions with comments, which could hide what follows them.
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


# Writing ------------------------------------------------------------------------------------------------


class _Flattening:
    """Puts the definitions into each other."""

    def __init__(self, definitions: _Definitions) -> None:
        self._named = definitions.named
        self._open: list[str] = []
        self._made: dict[tuple[str, bool], _Text] = {}
        self._between = ""
        """What may stand between two terminals of a rule."""
        ignored = [part(self, True).regex for part in definitions.ignored]
        self._between = f"(?:{'|'.join(ignored)})*" if ignored else ""

    def start(self) -> str:
        found = self.named("start", False)
        return f"(?:{found.regex})?" if found.is_optional else found.regex

    def named(self, name: str, inside: bool) -> _Text:
        if name not in self._named:
            raise ValueError(f"{name!r} is not defined")
        if name in self._open:
            raise ValueError(
                f"the rule {name!r} refers to itself: within JSON only grammars without recursion can be held"
            )
        if len(self._open) > MAX_NESTING:
            raise ValueError(f"more than {MAX_NESTING} rules refer to each other in a row")
        inside = inside or name.lstrip("_")[:1].isupper()
        if (name, inside) not in self._made:
            self._open.append(name)
            found = self._named[name](self, inside)
            self._made[name, inside] = found
            if found.regex:
                self._made[name, inside] = _Text(self._checked(f"(?:{found.regex})"), found.is_optional)
            self._open.pop()
        return self._made[name, inside]

    def either(self, parts: list[_Text], inside: bool) -> _Text:
        regexes = [part.regex for part in parts]
        is_optional = any(part.is_optional for part in parts)
        if self._between and not inside:
            regexes = [regex for regex in regexes if regex]
            if not regexes:
                return _NOTHING
        return _Text(f"(?:{self._joined('|', regexes)})", is_optional)

    def sequence(self, parts: list[_Text], inside: bool) -> _Text:
        if inside or not self._between:
            return _Text(self._joined("", [part.regex for part in parts]))
        parts = [part for part in parts if part.regex]
        if not parts:
            return _NOTHING
        found = parts[-1]
        for part in reversed(parts[:-1]):
            follows = f"(?:{self._between}{found.regex}){'?' if found.is_optional else ''}"
            regex = f"{part.regex}{follows}"
            if part.is_optional:  # nothing is ignored before the first terminal, or after the last
                regex = f"(?:{regex}|{found.regex})"
            found = _Text(self._checked(regex), part.is_optional and found.is_optional)
        return found

    def repeat(self, part: _Text, least: int, most: int | None, inside: bool) -> _Text:
        if inside or not self._between:
            return _Text(self._checked(f"(?:{part.regex}){_times(least, most)}"))
        if part.is_optional:
            least = 0
        if most == 0 or not part.regex:
            return _NOTHING
        more = _times(max(least - 1, 0), None if most is None else most - 1)
        regex = f"(?:{part.regex})(?:{self._between}(?:{part.regex})){more}"
        return _Text(self._checked(regex), least == 0)

    def _joined(self, between: str, regexes: list[str]) -> str:
        _check_length(sum(map(len, regexes)))
        return between.join(regexes)

    def _checked(self, regex: str) -> str:
        _check_length(len(regex))
        return regex


def _check_length(length: int) -> None:
    if length > MAX_REGEX:
        raise ValueError(f"as one regular expression it has more than {MAX_REGEX} characters")


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"
