"""Defines the JSON messages between an API process, the fork server and the processes that check grammars."""

from __future__ import annotations

import msgspec

from engine.protocol import Grammar

LENGTH_BYTES = 4
"""A check is preceded by its length, big-endian."""
SchemaPath = tuple[str | int, ...]
"""A place in a schema: keywords and property names, and positions in lists."""


class Check(msgspec.Struct, frozen=True):
    """To a checking process: the grammar to check, after four bytes with its length."""

    grammar: Grammar
    strict: bool
    """The schema must be of the subset that OpenAI's strict mode takes."""


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """From a checking process: the grammar compiles, and was followed for some tokens."""

    compiled_bytes: int = 0
    """Memory that it took."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """From a checking process: what is wrong with the grammar."""

    path: SchemaPath
    reason: str
    is_final: bool = True
    """A repeated check comes to the same result: it does not depend on how busy the machine is."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """From the fork server, on the same socket: the checking process has ended."""

    status: int
    """Exit code; negative: the signal that ended it."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the fork server, once, when it has started."""

    problem: str = ""
    """Why no grammar can be checked with this base's tokenizer."""


Answer = Accepted | Refused
