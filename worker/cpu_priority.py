"""How the processes that run tasks stand behind others on the same cores.

Owns what the operating system is told: niceness of a process, the policy of the threads that compute. Where
the system has no such thing, or does not allow it, the rest stands. Refuses to know what is computed, and
what others are doing: that is for whoever asks an engine about it.

On Linux niceness counts among the tasks of one group alone, and a session is a group (`sched_autogroup`): a
process that is nice in a session of its own has as large a share of a core as the engine in its own. So the
process takes a session of its own, and the group's niceness is set as well. Threads that compute are of the
policy SCHED_IDLE: anything else in the group, the process's event loop with its leases and transactions
first of all, runs before them. The cgroups of containers are the operator's.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

logger = logging.getLogger(__name__)

_AUTOGROUP = Path("/proc/self/autogroup")
_TRIES, _PAUSE = 20, 0.06
"""The system takes one change of a group's niceness in a tenth of a second, from whomever."""


def lower_priority(nice: int) -> None:
    """Have this process, and all it starts from now on, give way. Leaves its session: not for one that leads
    a group of others.
    """
    if not nice:
        return
    os.nice(nice)
    with contextlib.suppress(PermissionError):  # it leads its group already, and so has it to itself
        os.setsid()
    try:
        _nice_group(nice)
    except OSError as error:
        if _AUTOGROUP.exists():
            logger.warning("this process's group does not give way: %s", error)


def computing_threads(max_workers: int | None = None) -> ThreadPoolExecutor:
    """Threads that run when nothing else of their group wants the core, and never starve altogether."""
    return ThreadPoolExecutor(max_workers, thread_name_prefix="computing", initializer=idle_thread)


def idle_thread() -> None:
    """Have the calling thread, and those it starts, run when nothing else does."""
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
    raise OSError(errno.EAGAIN, "others change theirs all the time")
