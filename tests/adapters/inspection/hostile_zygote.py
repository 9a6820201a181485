"""A waiting process whose children do harm: what would happen if a file took an inspection over.

    python -m tests.adapters.inspection.hostile_zygote DESCRIPTOR

It is the real one with more tasks, confined as the real one is.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from adapters.inspection import inspector, zygote
from adapters.inspection.confinement import seal

_libc = ctypes.CDLL(None, use_errno=True)


def attempts(only: Sequence[str] = ()) -> dict[str, str]:
    """Every way out that comes to mind -> how it failed, or "done"."""
    ways: dict[str, Callable[[], Any]] = {
        "tcp": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "udp": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
        "unix": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        "pair": socket.socketpair,
        "fork": os.fork,
        "thread": lambda: threading.Thread(target=time.sleep, args=(0,)).start(),
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "read a file": lambda: os.open("/etc/passwd", os.O_RDONLY),
        "read our source": lambda: os.open(__file__, os.O_RDONLY),
        "read the parent": lambda: os.open(f"/proc/{os.getppid()}/maps", os.O_RDONLY),
        "write a file": lambda: os.open("/tmp/escaped", os.O_WRONLY | os.O_CREAT),
        "append": lambda: os.open("/dev/null", os.O_RDWR | os.O_APPEND),
        "list": lambda: os.listdir("/"),
        "delete": lambda: os.unlink("/tmp/escaped"),
        "make a folder": lambda: os.mkdir("/tmp/escaped-folder"),
        "signal": lambda: os.kill(os.getppid(), signal.SIGKILL),
        "ptrace": lambda: _call("ptrace", 16, os.getppid(), 0, 0),
        "unshare": lambda: _call("unshare", 0x10000000),
        "mount": lambda: _call("mount", b"none", b"/mnt", b"tmpfs", 0, None),
        "setuid": lambda: os.setuid(0),
        "raise a limit": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999)),
        "new memory file": lambda: os.memfd_create("escaped"),
        "executable memory": lambda: mmap.mmap(
            -1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        ),
        "keyring": lambda: _call("syscall", 248, b"user", b"x", b"y", 1, -4),
        "bpf": lambda: _call("syscall", 321, 0, 0, 0),
        "io_uring": lambda: _call("syscall", 425, 1, 0),
    }
    found = {}
    for way, attempt in ways.items():
        if only and way not in only:
            continue
        try:
            attempt()
            found[way] = "done"
        except (OSError, RuntimeError, ValueError) as error:
            found[way] = type(error).__name__
    return found


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def spin() -> None:
    while True:
        pass


def hoard() -> int:
    """Python asks politely, and hears of it."""
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


def hoard_quietly() -> int:
    """The kernel is asked, page by page, past every refusal."""
    taken = 0
    while True:
        with contextlib.suppress(OSError, ValueError):
            mapped = mmap.mmap(-1, 1 << 20)
            mapped[:: mmap.PAGESIZE] = b"x" * (len(mapped) // mmap.PAGESIZE)
            _kept.append(mapped)
            taken += 1
            continue
        return taken


_kept: list[mmap.mmap] = []


def speak(words: bytes) -> None:
    """Write into every socket there is, then leave."""
    for descriptor in range(64):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                view = memoryview(words)
                while view:
                    view = view[os.write(descriptor, view) :]
    os._exit(0)


def slow_inspection(files: Any, shadow: Any, order: Any) -> Any:
    time.sleep(0.5)
    return inspector.inspect(files[0], files[1], files[2], shadow, seal, values=order.values)


HARM: dict[str, Callable[[], Any]] = {
    "attempts": attempts,
    "attempts when sealed": lambda: (seal(), attempts())[1],
    "environment": lambda: dict(os.environ),
    "attempts without exec": lambda: attempts(("fork", "raise a limit", "setuid")),
    "stderr": lambda: [os.fstat(descriptor).st_rdev for descriptor in (1, 2)],
    "spin": spin,
    "sleep": lambda: time.sleep(600),
    "doze": lambda: time.sleep(0.3),
    "hoard": hoard,
    "hoard quietly": hoard_quietly,
    "crash": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "vanish": lambda: os._exit(0),
    "garbage": lambda: speak(b"\xff\x00{]"),
    "flood": lambda: speak(b'{"type": "Accepted", "result": "' + b"a" * (16 << 20)),
    "raise": lambda: 1 // 0,
    "recurse": lambda: _recurse(),
    "nonsense": lambda: {"num_tensors": "many"},
}


def _recurse() -> None:
    _recurse()


if __name__ == "__main__":
    harm = {name: zygote.Task(lambda _files, _, _order, do=do: do()) for name, do in HARM.items()}
    zygote.main(
        sys.argv[1:],
        {**zygote.TASKS, **harm, "slow": zygote.Task(slow_inspection, zygote.TASKS["inspect"].prepare)},
    )
