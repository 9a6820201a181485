"""Lowers the CPU priority of the processes that run tasks, in favour of others on the same cores.

It sets the niceness of a process and its group, and the policy of threads that compute. Where the system does
not support or allow one of these, the others still apply.

On Linux niceness counts only among the tasks of one group, and a session is a group (`sched_autogroup`): a
process that is nice in a session of its own gets as large a share of a core as the engine in its own. So the
process starts a session of its own, and sets the group's niceness as well. Threads that compute use the
policy SCHED_IDLE: anything else in the group runs before them, above all the process's event loop with its
leases and transactions. The cgroups of containers are the operator's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_AUTOGROUP = Path("/proc/self/autogroup")
_TRIES, _PAUSE = 20, 0.06
"""The kernel accepts one change of a group's niceness in a tenth of a second, from all processes."""


def lower_priority(nice: int) -> None:
    """Lowers the priority of this process and of all it starts from now on. It leaves its session, so it must
    not lead a group of other processes.
    """
    if not nice:
        return
    os.nice(nice)
    with contextlib.suppress(PermissionError):  # it already leads a group of its own
        os.setsid()
    try:
        _nice_group(nice)
    except OSError as error:
        if _AUTOGROUP.exists():
            log.warning("priority of this process's group cannot be lowered", error=str(error))


def computing_threads(max_workers: int | None = None) -> ThreadPoolExecutor:
    """Returns a pool of threads that run when nothing else of their group needs the core."""
    return ThreadPoolExecutor(max_workers, thread_name_prefix="computing", initializer=idle_thread)


def idle_thread() -> None:
    """Lets the calling thread, and those it starts, run only when nothing else does."""
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _nice_group(nice: int) -> None:
    for _ in range(_TRIES):
        try:
            _AUTOGROUP.write_text(f"{nice}\n")
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
        time.sleep(_PAUSE)
    raise OSError(errno.EAGAIN, "other processes keep changing their groups")
