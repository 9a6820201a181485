"""Limits what a process that checks a grammar can use: the kernel ends it at a limit."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

WALL_S = 1.0
CPU_S = 1
MEMORY = 64 << 20
"""Bytes of address space in addition to what the process starts with."""
STACK = 2 << 20
"""Bytes; less than the engine's threads have, so that no grammar that passes here overflows them."""
_NICE = 5
"""Requests that are being answered come first."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def confine(parent: int) -> None:
    """Applies all limits but the wall clock's. The process ends when its parent does."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the line above
    os.nice(_NICE)
    with open("/proc/self/statm", "rb") as file:
        begun = int(file.read().split()[0]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_STACK, STACK),
        (resource.RLIMIT_AS, begun + MEMORY),
    ):
        _lower(limit, value, value)
    _lower(resource.RLIMIT_CPU, CPU_S, CPU_S + 1)


def start_clock(seconds: float) -> None:
    """Ends the process with SIGALRM after this time, whatever it is doing then."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _lower(limit: int, soft: int, hard: int) -> None:
    _, most = resource.getrlimit(limit)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(limit, (soft, hard))
