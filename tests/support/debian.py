"""Installs programs that tests need from Debian's packages, by apt-get, as root or through sudo."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

_QUIETLY = ("-q", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")


class CannotInstall(Exception):
    """The message says why."""


def ensure(find: Callable[[], str | None], package: str) -> str:
    """Return what `find` finds, after installing `package` if it finds nothing. Raises CannotInstall."""
    found = find()
    if found is not None:
        return found
    with (Path(tempfile.gettempdir()) / f"rootstock-apt-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find() is None:  # another process may have installed it meanwhile
            _install(package)
    found = find()
    if found is None:
        raise CannotInstall(f"the package `{package}` was installed, and brought none that starts")
    return found


def _install(package: str) -> None:
    apt = shutil.which("apt-get")
    if apt is None:
        raise CannotInstall(f"this is no Debian: install {package} by your system's own means")
    root = _as_root(package)
    for arguments in (("update",), ("install", "-y", "--no-install-recommends", package)):
        _run([*root, "env", "DEBIAN_FRONTEND=noninteractive", apt, *_QUIETLY, *arguments])


def _as_root(package: str) -> list[str]:
    """What stands before a command that only root may run."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None or subprocess.run([sudo, "-n", "true"], capture_output=True).returncode != 0:
        raise CannotInstall(f"only root may install it: run `apt-get install {package}` as root")
    return [sudo, "-n"]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise CannotInstall(f"{' '.join(command)} ended with status {done.returncode}:\n{said}")
