"""Rewrites a grammar in llguidance's dialect of Lark as one regular expression of the same texts.

Text within a JSON string can be held to a regular expression, not to a grammar with rules. A grammar without
recursion has such an expression; what has none, or none that is certain, is refused with the reason.
"""

from __future__ import annotations

from typing import NamedTuple

from tokenization.tools.lark_grammar import (
    Alternatives,
    Grammar,
    Lexeme,
    Part,
    Reference,
    Repetition,
    Sequence,
    read_grammar,
)

MAX_REGEX = 32 * 1024
"""Characters of the expression."""
MAX_NESTING = 30
"""Rules within rules."""
MAX_DEPTH = 200
"""Parts within parts, over all rules: as deep as the recursion of Python surely goes."""


def lark_regex(source: str) -> str:
    """Returns a regular expression, in the syntax of Rust's `regex`, of the texts of a grammar that compiles.

    Raises:
        ValueError: there is none, as a rule refers to itself; it is too long; or the grammar uses what cannot
            be rewritten.
    """
    return _RegexWriter(read_grammar(source)).start()


class _Text(NamedTuple):
    """The texts of a part, as an expression."""

    regex: str
    is_optional: bool = False
    """The part may also be left out. Kept apart only where text is ignored between terminals."""


_NOTHING = _Text("", is_optional=True)
"""No terminal, where text is ignored between them."""


class _RegexWriter:
    """Puts the parts of a grammar into each other."""

    def __init__(self, grammar: Grammar) -> None:
        self._named = grammar.named
        self._open: list[str] = []
        self._depth = 0
        self._made: dict[tuple[str, bool], _Text] = {}
        self._between = ""
        """What may stand between two terminals of a rule."""
        ignored = [self._written(part, True).regex for part in grammar.ignored]
        self._between = f"(?:{'|'.join(ignored)})*" if ignored else ""

    def start(self) -> str:
        found = self._reference("start", False)
        return f"(?:{found.regex})?" if found.is_optional else found.regex

    def _written(self, part: Part, inside: bool) -> _Text:
        """Returns the texts of a part. `inside`: it is within a terminal, where nothing is ignored."""
        if self._depth == MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} parts are within each other")
        self._depth += 1
        found = self._of_kind(part, inside)
        self._depth -= 1
        return found

    def _of_kind(self, part: Part, inside: bool) -> _Text:
        match part:
            case Lexeme(regex):
                return _Text(regex)
            case Reference(name):
                return self._reference(name, inside)
            case Alternatives(parts):
                return self._alternatives([self._written(one, inside) for one in parts], inside)
            case Sequence(parts):
                return self._sequence([self._written(one, inside) for one in parts], inside)
            case Repetition(repeated, least, most):
                return self._repetition(self._written(repeated, inside), least, most, inside)

    def _reference(self, name: str, inside: bool) -> _Text:
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
            found = self._written(self._named[name], inside)
            self._made[name, inside] = found
            if found.regex:
                self._made[name, inside] = _Text(self._checked(f"(?:{found.regex})"), found.is_optional)
            self._open.pop()
        return self._made[name, inside]

    def _alternatives(self, parts: list[_Text], inside: bool) -> _Text:
        regexes = [part.regex for part in parts]
        is_optional = any(part.is_optional for part in parts)
        if self._between and not inside:
            regexes = [regex for regex in regexes if regex]
            if not regexes:
                return _NOTHING
        return _Text(f"(?:{self._joined('|', regexes)})", is_optional)

    def _sequence(self, parts: list[_Text], inside: bool) -> _Text:
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

    def _repetition(self, part: _Text, least: int, most: int | None, inside: bool) -> _Text:
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
