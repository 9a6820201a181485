"""Defines the JSON messages between the sandbox's processes."""

from __future__ import annotations

import msgspec

MAX_PACKET = 1 << 16
MAX_ANSWER = 4 << 20
"""Bytes; the facts of a hundred layers take a tenth of it."""


class Order(msgspec.Struct, frozen=True, tag=True):
    """To the zygote, with the socket for the answer and the open files of the task."""

    number: int
    task: str
    memory: int
    cpu_s: int
    wall_s: int
    values: bool = True
    """Whether an inspection reads the tensors' values."""


class Kill(msgspec.Struct, frozen=True, tag=True):
    """To the zygote: kill the child of an order."""

    number: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the zygote, once, when it has started."""

    guards: dict[str, bool]
    """Whether the kernel permits each measure."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """From the zygote: an order's child has ended."""

    number: int
    status: int
    """Exit code; negative: the signal that killed it."""


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """From a child; only trusted about its own files. `result` is the task's JSON."""

    result: msgspec.Raw


class Refused(msgspec.Struct, frozen=True, tag=True):
    """From a child: what is wrong with its files."""

    field: str
    reason: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a child: the inspection itself failed."""

    reason: str


class Unable(msgspec.Struct, frozen=True, tag=True):
    """From the zygote: it could not fork a child, so the files were not inspected."""

    reason: str


Answer = Accepted | Refused | Failed | Unable
