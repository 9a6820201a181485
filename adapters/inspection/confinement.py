"""Removes privileges from the sandbox's processes: from the zygote, and more from each child that reads a
file.

Every measure is independent, because the kernel, a container or a missing privilege may deny any of them:
resource limits always apply; seccomp, Landlock, an empty network namespace and another user where permitted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import struct
from dataclasses import dataclass

from adapters.inspection.syscalls import confining_filter, sealing_filter

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""Version of the interface -> all file rights that it knows; later versions as 5."""
_LANDLOCK_FILES_5 = (1 << 16) - 1
_LANDLOCK_TCP = 3
_CAPABILITIES_VERSION = 0x20080522

NOBODY = 65534
_OPEN_FILES = 64


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Resource limits of one child."""

    memory: int
    """Bytes of address space in addition to what it starts with."""
    cpu_s: int
    wall_s: int


def isolate() -> dict[str, bool]:
    """Removes network access and the user's rights from the zygote, once it has loaded everything. Returns
    which measures apply to it and its children.
    """
    network = _unshare(_CLONE_NEWNET | _CLONE_NEWIPC)
    harmless = _become_nobody() if os.geteuid() == 0 else True
    # Without privileges, a user namespace has to come first, where those are permitted.
    network = network or _unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC)
    _drop_capabilities()
    no_new_privileges = _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    return {
        "network": network,
        "user": harmless,
        "seccomp": no_new_privileges and confining_filter() is not None and _has_seccomp(),
        "landlock": no_new_privileges and _landlock_version() > 0,
    }


def confine(bounds: Bounds, parent: int) -> None:
    """Confines a child before it reads untrusted data: it keeps its memory, its open files and the right to
    open files for reading, until `seal`.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the line above
    signal.alarm(bounds.wall_s)
    with open("/proc/self/statm", "rb") as file:
        begun = int(file.read().split()[0]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_AS, begun + bounds.memory),
    ):
        _lower(limit, value, value)
    # The soft limit's signal distinguishes it from other causes of death.
    _lower(resource.RLIMIT_CPU, bounds.cpu_s, bounds.cpu_s + 1)
    _restrict_files()
    _install(confining_filter())


def seal() -> None:
    """Takes from a confined child the right to open files."""
    _install(sealing_filter())


def _lower(limit: int, soft: int, hard: int) -> None:
    _, most = resource.getrlimit(limit)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(limit, (soft, hard))


def _unshare(what: int) -> bool:
    return bool(_libc.unshare(what) == 0)


def _become_nobody() -> bool:
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except PermissionError:
        return False  # root of a container that may not change users
    return True


def _drop_capabilities() -> None:
    header = struct.pack("Ii", _CAPABILITIES_VERSION, 0)
    _libc.capset(header, bytes(24))


def _has_seccomp() -> bool:
    # Without a program the kernel fails with EFAULT; without seccomp support, with EINVAL.
    _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def _install(program: bytes | None) -> None:
    if program is not None:
        filter_ = _Program(len(program) // 8, program)
        _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0)


def _landlock_version() -> int:
    return int(_libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION))


def _restrict_files() -> None:
    """Installs a Landlock ruleset that allows nothing: no file on any disk can be opened."""
    version = _landlock_version()
    if version < 1:
        return
    files = _LANDLOCK_FILES.get(version, _LANDLOCK_FILES_5)
    rights = struct.pack("QQ", files, _LANDLOCK_TCP) if version >= 4 else struct.pack("Q", files)
    ruleset = _libc.syscall(_LANDLOCK_CREATE_RULESET, rights, len(rights), 0)
    if ruleset >= 0:
        _libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
