"""Splits a message into text and tool calls while it is generated, however it is cut into pieces.

A format says where a call may begin (`markers`) and reads it one character at a time (`_read_call`). Until
the name of an offered function and the start of its arguments have been read, the characters are held back;
if they turn out not to be a call, they are text. From then on the call stands: arguments are passed on as
they are written, valid JSON or not, and what does not belong to the call is text again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Sequence

from tokenization.tools.deltas import ArgumentsDelta, CallStart, Delta, TextDelta, ToolFunction

Reading = Generator[None, str, None]
"""Reads one character per `yield`; returns after the last one."""
WHITESPACE = " \t\r\n"
MAX_HELD_SPACES = 64
"""Characters of white space before a marker that are dropped if a call follows."""
MAX_UNDECIDED = 512
"""Characters after which text that could still become a call is shown as text."""


class NotACall(Exception):
    """The last character does not continue a call."""


class ToolCallParser(ABC):
    """Parses one message.

    Args:
        functions: what the request offers; calls of other names are text.
    """

    markers: tuple[str, ...]
    """Strings that may begin a call."""
    tokens: tuple[str, ...]
    """Strings of the format that are special tokens in some vocabularies."""
    call_id_length: int | None = None
    """The length that chat templates require of the ids of calls, in letters and digits; None: any."""

    def __init__(self, functions: Sequence[ToolFunction]) -> None:
        self.functions = {function.name: function for function in functions}
        self._deltas: list[Delta] = []
        self._reading: Reading | None = None
        self._undecided: list[str] = []
        """Characters that were read and are neither text nor part of a call yet."""
        self._num_opening = 0
        """How many of them opened the call: text if it is none."""
        self._has_begun = False
        """Whether the call that is being read stands."""
        self._held = ""
        """Text that may be the start of a marker, with the white space before it."""
        self._arguments: list[str] = []
        self.num_calls = 0
        """Calls that have begun."""

    def push(self, text: str) -> list[Delta]:
        """Returns the text and pieces of calls that are certain once `text` has been generated."""
        while text:
            text = self._read_text(text) if self._reading is None else self._continue_call(text)
        return self._take()

    def finish(self) -> list[Delta]:
        """Returns the rest, at the end of the message."""
        while self._undecided and not self._has_begun:
            rest = self._give_up()
            while rest:
                rest = self._read_text(rest) if self._reading is None else self._continue_call(rest)
        if self._held.strip(WHITESPACE) or not self.num_calls:
            self._show(self._held)
        self._held = ""
        return self._take()

    @abstractmethod
    def _read_call(self, marker: str) -> Reading:
        """Reads what follows a marker, up to the end of the call. Raises NotACall."""

    # For formats ----------------------------------------------------------------------------------------

    def start_call(self, name: str) -> None:
        """Begins a call, which from now on stands."""
        self._flush_arguments()
        self._deltas.append(CallStart(self.num_calls, name))
        self.num_calls += 1
        self.accept()

    def add_arguments(self, text: str) -> None:
        self._arguments.append(text)
        self.accept()

    def accept(self) -> None:
        """Makes all that was read a part of the call."""
        self._undecided.clear()
        self._num_opening = 0
        self._has_begun = True

    def await_call(self) -> None:
        """Ends a call which another may follow without a marker."""
        self.accept()
        self._has_begun = False

    def _open(self, marker: str, opening: str) -> None:
        """Begins to read a call that `opening`, white space and a marker, may introduce."""
        self._undecided = list(opening)
        self._num_opening = len(opening)
        self._has_begun = False
        self._reading = self._read_call(marker)
        next(self._reading)

    # Reading --------------------------------------------------------------------------------------------

    def _read_text(self, text: str) -> str:
        """Shows text up to a marker, and returns what follows it."""
        text, self._held = self._held + text, ""
        found = [(place, marker) for marker in self.markers if (place := text.find(marker)) >= 0]
        if found:
            place, marker = min(found)
            begin, end = _before_spaces(text, place), place + len(marker)
            self._show(text[:begin])
            self._open(marker, text[begin:end])
            return text[end:]
        begin = _before_spaces(text, len(text) - start_length(text, self.markers))
        self._show(text[:begin])
        self._held = text[begin:]
        return ""

    def _continue_call(self, text: str) -> str:
        """Reads on in a call, and returns what is left to read."""
        assert self._reading is not None
        send = self._reading.send
        for place, character in enumerate(text):
            self._undecided.append(character)
            try:
                send(character)
            except StopIteration:
                self.accept()
                self._reading = None
                return text[place + 1 :]
            except NotACall:
                return self._give_up() + text[place + 1 :]
            if len(self._undecided) > MAX_UNDECIDED:
                return self._give_up() + text[place + 1 :]
        return ""

    def _give_up(self) -> str:
        """Leaves the call: returns what must be read again as text."""
        read = "".join(self._undecided)
        num_opening = self._num_opening
        self._reading = None
        self._undecided = []
        self._show(read[:num_opening])
        return read[num_opening:]

    # Results --------------------------------------------------------------------------------------------

    def _show(self, text: str) -> None:
        if not text:
            return
        self._flush_arguments()
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, TextDelta):
            self._deltas[-1] = TextDelta(last.text + text)
        else:
            self._deltas.append(TextDelta(text))

    def _flush_arguments(self) -> None:
        if self._arguments:
            self._deltas.append(ArgumentsDelta(self.num_calls - 1, "".join(self._arguments)))
            self._arguments = []

    def _take(self) -> list[Delta]:
        self._flush_arguments()
        deltas, self._deltas = self._deltas, []
        return deltas


def after_spaces() -> Generator[None, str, str]:
    """Skips white space and returns the first other character."""
    character = yield
    while character in WHITESPACE:
        character = yield
    return character


def literal(text: str) -> Reading:
    """Reads exactly `text`. Raises NotACall."""
    for expected in text:
        if (yield) != expected:
            raise NotACall


def offered_name(names: Collection[str], ends: str) -> Generator[None, str, tuple[str, str]]:
    """Reads one of `names` up to a character of `ends`, and returns both. Raises NotACall at the first
    character that no name has.
    """
    name = ""
    while (character := (yield)) not in ends:
        name += character
        if not any(offered.startswith(name) for offered in names):
            raise NotACall
    if name not in names:
        raise NotACall
    return name, character


def _before_spaces(text: str, place: int) -> int:
    """Returns where the white space that ends at `place` begins, `MAX_HELD_SPACES` before it at most."""
    least = max(0, place - MAX_HELD_SPACES)
    while place > least and text[place - 1] in WHITESPACE:
        place -= 1
    return place


def start_length(text: str, markers: Sequence[str]) -> int:
    """Returns how many of the last characters of `text` begin a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        ending = text[-length:]
        if any(len(marker) > length and marker.startswith(ending) for marker in markers):
            return length
    return 0
