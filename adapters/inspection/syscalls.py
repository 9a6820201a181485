"""Builds the seccomp filters that limit an inspection's system calls.

Calls that are not listed fail with EPERM: sockets, processes, signals to others, files. Opening for reading
is allowed until the sealing filter is added. Memory can never become executable.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterator

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_*: system call numbers depend on it."""

NUMBERS: dict[str, tuple[int, int]] = {
    # (x86_64, aarch64)
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "pread64": (17, 67),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "openat": (257, 56),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "getrusage": (98, 165),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getrandom": (318, 278),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
_OPENING = ("openat", "newfstatat", "statx")
_MEMORY = ("mmap", "mprotect")

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PROT_EXEC = 4

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_KILL = 0x80000000

_INSTRUCTION = struct.Struct("HBBI")
_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _THIRD_ARGUMENT = 0, 4, 32
"""Offsets in `struct seccomp_data`; for the argument, its lower half on a little-endian machine."""


def confining_filter() -> bytes | None:
    """Returns a filter that allows the listed calls, opening only for reading; None on other processors."""
    index = _column()
    if index is None:
        return None
    plain = [name for name in NUMBERS if name not in _MEMORY and name != "openat"]
    body = [
        *(step for name in plain for step in _if_called(name, index, [_give(_ALLOW)])),
        *_if_called("openat", index, _unless_bits(_WRITING)),
        *(step for name in _MEMORY for step in _if_called(name, index, _unless_bits(_PROT_EXEC))),
        _give(_REFUSE),
    ]
    return b"".join([*_preamble(), *body])


def sealing_filter() -> bytes | None:
    """Returns an additional filter that denies opening and finding files."""
    index = _column()
    if index is None:
        return None
    body = [step for name in _OPENING for step in _if_called(name, index, [_give(_REFUSE)])]
    return b"".join([*_preamble(), *body, _give(_ALLOW)])


def _column() -> int | None:
    machine = platform.machine()
    return list(_ARCHITECTURES).index(machine) if machine in _ARCHITECTURES else None


def _preamble() -> Iterator[bytes]:
    yield _INSTRUCTION.pack(_LOAD, 0, 0, _ARCHITECTURE)
    yield _INSTRUCTION.pack(_JUMP_EQUAL, 1, 0, _ARCHITECTURES[platform.machine()])
    yield _give(_KILL)
    yield _INSTRUCTION.pack(_LOAD, 0, 0, _NUMBER)


def _if_called(name: str, index: int, then: list[bytes]) -> list[bytes]:
    return [_INSTRUCTION.pack(_JUMP_EQUAL, 0, len(then), NUMBERS[name][index]), *then]


def _unless_bits(bits: int) -> list[bytes]:
    """Allows the call, unless its third argument has one of `bits`."""
    return [
        _INSTRUCTION.pack(_LOAD, 0, 0, _THIRD_ARGUMENT),
        _INSTRUCTION.pack(_JUMP_ANY_BIT, 0, 1, bits),
        _give(_REFUSE),
        _give(_ALLOW),
    ]


def _give(verdict: int) -> bytes:
    return _INSTRUCTION.pack(_RETURN, 0, 0, verdict)
