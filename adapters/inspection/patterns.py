"""Matches the regular expressions of an `adapter_config.json` against module paths, in bounded time.

PEFT matches them with Python's `re`, which backtracks: 25 repetitions of `(?:\\S|.)` keep it busy for hours.
RE2 takes time proportional to the size of the pattern times the length of the path; the steps of all patterns
of one config are counted and bounded together. Only syntax that both libraries read alike is accepted, so
that a pattern selects here exactly the modules that it selects in PEFT.
"""

from __future__ import annotations

import re

import re2

from adapters.inspection.errors import InspectionRefused

MAX_PATTERN = 1024
"""Characters of one pattern."""
MAX_REPEATS = 6
MAX_GROUPS = 100
MAX_STEPS = 1 << 28
"""Steps of one config: about two seconds with the slowest known patterns, and far more than real configs need
(two patterns for each of 560 modules, as for 70B models, take 30 million).
"""

_COMPILE_STEPS = 500
"""Compiling takes about this many times as long, per instruction, as matching a character."""
_MEMORY = 1 << 17
"""Bytes of one compiled pattern and of RE2's state cache for it."""

_PLAIN = r"[A-Za-z0-9_\-/ :=<>,!@#%&~;'\"`]"
_MEMBER = r"(?:[^\\\[\]\-^]|\\[^A-Za-z0-9])"
_TOKENS = re.compile(
    rf"""(?P<atom>{_PLAIN} | \. | \\(?:[dDwWsS]|[^A-Za-z0-9])
        | \[\^?-?(?:\\[dDwWsS]|{_MEMBER}(?:-{_MEMBER})?)+-?\] | \))
    | (?P<repeat>(?:[*+?]|\{{[0-9]{{1,3}}(?:,[0-9]{{0,3}})?\}})\??)
    | (?P<other>\^ | \$ | \\[bB] | \((?:\?:|(?!\?)) | \|)""",
    re.VERBOSE | re.ASCII,
)
_LITERAL = re.compile(r"(?:[A-Za-z0-9_\-]|\\?\.)*")
_READ = r"letters, digits, . | ^ $ * + ? {n,m} [...] (...) (?:...) \d \w \s \b and escaped punctuation"


class Steps:
    """The remaining steps of all patterns of one config."""

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self._limit = limit
        self._taken = 0

    def take(self, steps: int, field: str) -> None:
        """Counts steps. Raises InspectionRefused naming `field` when there are none left."""
        self._taken += steps
        if self._taken > self._limit:
            raise InspectionRefused(
                field,
                f"matching the patterns takes more than {self._limit} steps: use fewer or simpler patterns, "
                "or the names of the modules",
            )


class Pattern:
    """A pattern of a config field, in the form that PEFT uses for that field."""

    def __init__(self, field: str, pattern: str, steps: Steps, form: str = "{}") -> None:
        """Raises InspectionRefused if the pattern is malformed, too complex or not supported."""
        _check(field, pattern)
        self._field = field
        self._steps = steps
        try:
            self._compiled = re2.compile(form.replace("{}", pattern).encode(), _options())
        except re2.error as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
            raise InspectionRefused(
                field, f"{pattern!r} is not a regular expression that can be matched: {reason}"
            ) from None
        size = self._compiled.programsize
        # A literal has few states, which RE2 caches: a step per character.
        self._width = 1 if _LITERAL.fullmatch(pattern) else size
        steps.take(_COMPILE_STEPS * size, field)

    def matches(self, path: str) -> bool:
        """Returns whether it matches the whole path."""
        self._steps.take(self._width * len(path), self._field)
        return self._compiled.fullmatch(path.encode()) is not None

    def layer_index(self, path: str) -> tuple[bool, int | None]:
        """Returns whether it matches the start of the path, and the number that its group `index` matched."""
        self._steps.take(self._width * len(path), self._field)
        found = self._compiled.match(path.encode())
        if found is None:
            return False, None
        digits = found.group(self._compiled.groupindex[b"index"])
        return True, None if digits is None else int(digits)


def _options() -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # paths and patterns are ASCII: one byte per character
    options.max_mem = _MEMORY
    options.log_errors = False
    return options


def _check(field: str, pattern: str) -> None:
    if len(pattern) > MAX_PATTERN:
        raise InspectionRefused(field, f"a pattern is longer than {MAX_PATTERN} characters")
    repeats, groups = len(re.findall(r"[*+{]", pattern)), pattern.count("(")
    if re.search(r"\)[*+{]", pattern) or repeats > MAX_REPEATS or groups > MAX_GROUPS:
        raise InspectionRefused(
            field,
            f"{pattern[:80]!r} is too complex: no repeated groups, at most {MAX_REPEATS} repetitions and "
            f"{MAX_GROUPS} groups",
        )
    if not pattern.isascii() or not pattern.isprintable():
        raise InspectionRefused(field, f"{pattern[:80]!r} has characters that no module's path has")
    position, repeatable = 0, False
    while position < len(pattern):
        token = _TOKENS.match(pattern, position)
        if token is None or (token.lastgroup == "repeat" and not repeatable):
            raise InspectionRefused(
                field,
                f"{pattern[position : position + 20]!r} in the pattern is not supported (supported are "
                f"{_READ}); name the modules in a list instead",
            )
        repeatable = token.lastgroup == "atom"
        position = token.end()
