"""What the sandbox's processes say to each other, as JSON."""

from __future__ import annotations

import msgspec

MAX_PACKET = 1 << 16
MAX_ANSWER = 4 << 20
"""Bytes: the facts of a hundred layers take a tenth of it."""


class Order(msgspec.Struct, frozen=True, tag=True):
    """To the zygote, with the socket for the answer and the open files that the task is about."""

    number: int
    task: str
    memory: int
    cpu_s: int
    wall_s: int
    values: bool = True
    """Whether an inspection reads them."""


class Kill(msgspec.Struct, frozen=True, tag=True):
    """To the zygote: the child of an order."""

    number: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the zygote, once."""

    guards: dict[str, bool]
    """Measure -> whether the kernel permits it."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """From the zygote: an order's child is gone."""

    number: int
    status: int
    """Its exit code; negative: the signal that killed it."""


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """From a child, not to be believed beyond its own files. `result` is the task's own JSON."""

    result: msgspec.Raw


class Refused(msgspec.Struct, frozen=True, tag=True):
    """From a child: what is wrong with its files."""

    field: str
    reason: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a child: it did not come to an answer."""

    reason: str


class Unable(msgspec.Struct, frozen=True, tag=True):
    """From the zygote, for a child that it could not make: the files were not looked at."""

    reason: str


Answer = Accepted | Refused | Failed | Unable
