"""Runs just before a server program: drops root, makes the process die with its parent, and executes it.

Run as a script (`python -I child.py ...`), never imported: a fresh interpreter may change its credentials
safely, which a `preexec_fn` in a threaded parent may not. Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
LINUX_CAPABILITY_VERSION_3 = 0x20080522


def become(uid: int, gid: int) -> None:
    """Drops root for `uid`, keeping only the right to bypass file permissions.

    PostgreSQL rejects effective uid 0 and nothing else. Without CAP_DAC_OVERRIDE it could not reach a data
    directory or a virtual environment below a home that only root may enter; if the capability is not
    available, it runs without.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(uid, uid, uid)
    bits = 1 << CAP_DAC_OVERRIDE
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(bits, bits, bits, 0, 0, 0)
    if libc.capset(header, data) == 0:
        libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0)


def die_with_parent(parent: int, signal_number: int) -> None:
    """Makes the kernel send `signal_number` when the parent ends. Call it after `become`: a change of
    credentials clears it.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        sys.exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--signal", type=int, required=True)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    os.umask(0o077)
    if arguments.uid is not None:
        become(arguments.uid, arguments.gid)
    die_with_parent(arguments.parent, arguments.signal)
    os.execv(arguments.command[0], arguments.command)  # noqa: S606  a program we chose


if __name__ == "__main__":
    main()
