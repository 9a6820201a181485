"""The filter, run through by an interpreter of its four instructions: on processors that are not here too."""

from __future__ import annotations

import errno
import os
import platform
import struct

import pytest

from adapters.inspection.syscalls import NUMBERS, confining_filter, sealing_filter

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
FORBIDDEN = {
    # (x86_64, aarch64), from the kernel's tables
    "socket": (41, 198), "connect": (42, 203), "clone": (56, 220), "clone3": (435, 435), "execve": (59, 221),
    "kill": (62, 129), "ptrace": (101, 117), "unlinkat": (263, 35), "openat2": (437, 437),
    "setuid": (105, 146),
    "prctl": (157, 167),
    "memfd_create": (319, 279), "io_uring_setup": (425, 425), "bpf": (321, 280),
    "sendto": (44, 206), "setrlimit": (160, 164), "pwrite64": (18, 68), "seccomp": (317, 277),
}  # fmt: skip
X32 = 0x40000000


def verdict(program: bytes, number: int, architecture: int, third: int = 0) -> int:
    data = struct.pack("<iIQ6Q", number, architecture, 0, 0, 0, third, 0, 0, 0)
    steps = list(struct.iter_unpack("<HBBI", program))
    position = accumulator = 0
    while True:
        code, if_true, if_false, operand = steps[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, operand)[0]
        elif code == 0x15:
            position += if_true if accumulator == operand else if_false
        elif code == 0x45:
            position += if_true if accumulator & operand else if_false
        else:
            assert code == 0x06
            return operand


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_named_is_allowed_and_nothing_else(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    column, architecture = MACHINES[machine]
    confining, sealing = confining_filter(), sealing_filter()
    assert confining is not None
    assert sealing is not None
    numbers = {columns[column] for columns in NUMBERS.values()}
    assert len(numbers) == len(NUMBERS)
    for name, columns in NUMBERS.items():
        assert verdict(confining, columns[column], architecture) == ALLOW, name
        opening = name in ("openat", "newfstatat", "statx")
        assert verdict(sealing, columns[column], architecture) == (REFUSE if opening else ALLOW), name
    for name, columns in FORBIDDEN.items():
        assert verdict(confining, columns[column], architecture) == REFUSE, name
    for number in range(500):
        if number not in numbers:
            assert verdict(confining, number, architecture) == REFUSE
    other = next(each for each in MACHINES.values() if each[1] != architecture)
    for program in (confining, sealing):
        assert verdict(program, NUMBERS["read"][column], other[1]) == KILL
    assert verdict(confining, X32 | NUMBERS["read"][column], architecture) == REFUSE


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    column, architecture = MACHINES[machine]
    program = confining_filter()
    assert program is not None

    def called(name: str, third: int) -> int:
        return verdict(program, NUMBERS[name][column], architecture, third)

    assert called("openat", os.O_RDONLY | os.O_CLOEXEC) == ALLOW
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND, os.O_RDWR | os.O_CLOEXEC):
        assert called("openat", flags) == REFUSE
    for name in ("mmap", "mprotect"):
        assert called(name, 1 | 2) == ALLOW
        for protection in (4, 1 | 4, 1 | 2 | 4):
            assert called(name, protection) == REFUSE


def test_other_processors_have_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert confining_filter() is None
    assert sealing_filter() is None
