"""Manages one private server process: its directory's lock, its socket, its start and its end.

`cli.local.postgres` and `cli.local.redis` know how to start their server and when it is up.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("child.py")
MAX_SOCKET_PATH = 100
"""Bytes: sun_path holds 108 on Linux and 104 on macOS, with a terminating zero."""


class LocalServerError(RuntimeError):
    """A private server could not be found, started or stopped; the message says which and why."""


@dataclass(frozen=True)
class ServerUser:
    """The account a server runs as, when the parent is root and the server rejects root."""

    uid: int
    gid: int


@dataclass
class LocalServer:
    """A running private server; `url` is for its clients. Stopping it twice does nothing."""

    name: str
    url: str
    directory: Path
    sockets: Path
    process: subprocess.Popen[bytes]
    stop_signal: signal.Signals
    _lock_fd: int
    stop_timeout: float = 20.0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Stops the server gracefully; kills it after `stop_timeout` seconds. Frees its directory."""
        if self.alive:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(self.stop_timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._release()

    def kill(self) -> None:
        """Kills the server, as a crash would."""
        self.process.kill()
        self.process.wait()
        self._release()

    def _release(self) -> None:
        if self._lock_fd >= 0:
            if not self.sockets.is_relative_to(self.directory):
                shutil.rmtree(self.sockets, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def lock_directory(directory: Path, name: str) -> int:
    """Locks the directory for this process: two owners would each stop the other's server. Returns the lock's
    fd.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fd = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise LocalServerError(
            f"{directory} is in use by another rootstock's {name}: stop that, or use another directory"
        ) from None
    return fd


def socket_directory(directory: Path, name: str, socket_name: str, owner: ServerUser | None) -> Path:
    """Returns the directory of the server's socket: inside `directory`, or a short path derived from it.

    The same directory always gives the same path. Only `owner` (or this account) may enter: the servers trust
    every client that can connect.
    """
    place = directory.absolute() / f"{name}-run"
    if len(os.fsencode(place / socket_name)) > MAX_SOCKET_PATH:
        digest = hashlib.sha256(os.fsencode(directory.absolute())).hexdigest()[:16]
        place = Path(tempfile.gettempdir()) / f"rootstock-{name}-{os.getuid()}-{digest}"
        if len(os.fsencode(place / socket_name)) > MAX_SOCKET_PATH:
            place = Path("/tmp") / place.name  # noqa: S108  TMPDIR may be too long itself; the checks below hold
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        found = place.lstat()
        ours = {os.getuid(), owner.uid if owner else os.getuid()}
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in ours:
            raise LocalServerError(f"{place} exists and belongs to another account: remove it") from None
    place.chmod(0o700)
    if owner is not None:
        os.chown(place, owner.uid, owner.gid)
    return place


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    stop_signal: signal.Signals,
    account: ServerUser | None = None,
) -> subprocess.Popen[bytes]:
    """Starts `command` so that it gets `stop_signal` when the calling thread ends; appends its output to
    `log`.

    Call it on the main thread: for the kernel, the thread that started a child is its parent.
    """
    launch: list[str | Path] = [
        *(sys.executable, "-I", "-S", CHILD),
        *("--parent", str(os.getpid()), "--signal", str(int(stop_signal))),
    ]
    if account is not None:
        launch += ["--uid", str(account.uid), "--gid", str(account.gid)]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*launch, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for the supervisor, which stops servers last
            cwd="/",
        )


def wait_until_up(
    process: subprocess.Popen[bytes], name: str, log: Path, is_up: Callable[[], bool], seconds: float
) -> None:
    """Returns once `is_up()`; raises LocalServerError with the end of the log when the process ends or time
    is up.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_up():
            return
        if process.poll() is not None:
            raise LocalServerError(
                f"{name} ended with status {process.returncode} at start:\n{log_tail(log)}"
            )
        time.sleep(0.02)
    process.kill()
    process.wait()
    raise LocalServerError(f"{name} did not answer within {seconds:.0f} s:\n{log_tail(log)}")


def log_tail(log: Path, num_lines: int = 12) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-num_lines:])


def process_directory(pid: int) -> Path | None:
    """Returns the working directory of a live process (for a server, its data directory); None when the
    process is gone or belongs to another account.
    """
    try:
        if sys.platform.startswith("linux"):
            return Path(os.readlink(f"/proc/{pid}/cwd"))
        listed = subprocess.run(
            ["lsof", "-a", "-p", str(pid), "-d", "cwd", "-Fn"], capture_output=True, text=True
        )
        return next((Path(line[1:]) for line in listed.stdout.splitlines() if line.startswith("n")), None)
    except OSError:
        return None


def end_leftover(
    pid: int, directory: Path, name: str, stop_signal: signal.Signals, seconds: float = 20.0
) -> None:
    """Ends a server that outlived its parent, if process `pid` works in `directory`; a reused pid is left
    alone.
    """
    deadline = time.monotonic() + seconds
    asked = False
    while process_directory(pid) == directory.resolve():
        if not asked:
            os.kill(pid, stop_signal)
            asked = True
        if time.monotonic() > deadline:
            raise LocalServerError(
                f"{name} left over from an earlier run (pid {pid}) does not end: kill that process"
            )
        time.sleep(0.05)


def find_program(name: str) -> Path | None:
    """Returns the program on PATH under the name it was found by. Links are not resolved: some programs look
    at their own name to decide what to do.
    """
    found = shutil.which(name)
    return Path(found).absolute() if found else None
