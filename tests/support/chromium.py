"""The Chromium that drives the console in tests: the machine's own, or Debian's package put there at first.

Owns where it is looked for, and how a bare machine gets it: by `python -m tests.support.chromium`, as `make
test` does before the tests. No other source is asked, and a machine that has one is left alone. Where it
cannot be installed, tests that need it are skipped and say why; under CI (`CI` in the environment) they fail.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium"
MISSING = "there is no Chromium on this machine: run `make browser` as root on Debian, or install one"
_QUIETLY = ("-q", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")


class CannotInstall(Exception):
    """The message says why."""


def find() -> str | None:
    """Its path: the first on PATH that starts at all. Some distributions have a stub in its place."""
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is not None and _starts(path):
            return path
    return None


def is_required() -> bool:
    """Whether tests fail for want of it."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def ensure() -> str:
    """Find it, or install it. Raises CannotInstall."""
    found = find()
    if found is not None:
        return found
    with (Path(tempfile.gettempdir()) / f"rootstock-chromium-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find() is None:  # nobody else did while we waited
            _install()
    found = find()
    if found is None:
        raise CannotInstall(f"the package `{PACKAGE}` was installed, and brought none that starts")
    return found


def _install() -> None:
    apt = shutil.which("apt-get")
    if apt is None:
        raise CannotInstall("this is no Debian: install Chromium by your system's own means")
    root = _as_root()
    for arguments in (("update",), ("install", "-y", "--no-install-recommends", PACKAGE)):
        _run([*root, "env", "DEBIAN_FRONTEND=noninteractive", apt, *_QUIETLY, *arguments])


def _as_root() -> list[str]:
    """What stands before a command that only root may run."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None or subprocess.run([sudo, "-n", "true"], capture_output=True).returncode != 0:
        raise CannotInstall(f"only root may install it: run `apt-get install {PACKAGE}` as root")
    return [sudo, "-n"]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise CannotInstall(f"{' '.join(command)} ended with status {done.returncode}:\n{said}")


@cache
def _starts(path: str) -> bool:
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def main() -> int:
    try:
        path = ensure()
    except CannotInstall as error:
        print(f"no Chromium for the tests of the console: {error}", file=sys.stderr)
        return 1 if is_required() else 0
    print(f"the tests of the console use {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
