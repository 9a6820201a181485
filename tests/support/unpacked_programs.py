"""Finds the programs that the documents put beside Rootstock, for tests: PgBouncer and nginx.

A program found on PATH is used; else Debian's packages are unpacked below `var/`, not installed, so that no
other test finds their servers. Where neither works, tests that need one are skipped and say why; under CI
they fail.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.chromium import is_required

ROOT = Path(__file__).resolve().parents[2] / "var" / "debian"
_PLACES = ("usr/sbin", "usr/bin")
PACKAGES = {
    "pgbouncer": ("pgbouncer", "libevent-2.1-7", "libc-ares2"),
    "nginx": ("nginx", "nginx-common", "libpcre2-8-0"),
}


class Unobtainable(Exception):
    """The message says why."""


def program(name: str) -> Path:
    """Its path. Skips the test, or fails it under CI, where there is none."""
    try:
        return _find(name) or _unpack(name)
    except Unobtainable as error:
        reason = f"there is no {name}: {error}"
        if is_required():
            pytest.fail(reason)
        pytest.skip(reason)


def environment() -> dict[str, str]:
    """What an unpacked program needs to find the libraries unpacked with it."""
    libraries = ROOT / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    return {**os.environ, "LD_LIBRARY_PATH": str(libraries)}


def _find(name: str) -> Path | None:
    on_path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if on_path is not None:
        return Path(on_path)
    return next((path for place in _PLACES if (path := ROOT / place / name).exists()), None)


def _unpack(name: str) -> Path:
    if shutil.which("apt-get") is None:
        raise Unobtainable("this is no Debian, and it is not on PATH")
    archives = ROOT / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    with (ROOT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := _find(name)) is not None:  # another process of tests was faster
            return found
        try:
            _run("apt-get", "-q", "download", *PACKAGES[name], cwd=archives)
        except Unobtainable:  # a new machine has no lists of packages
            _run("apt-get", "-q", "update", cwd=archives)
            _run("apt-get", "-q", "download", *PACKAGES[name], cwd=archives)
        for package in PACKAGES[name]:
            for archive in archives.glob(f"{package}_*.deb"):
                _run("dpkg", "-x", str(archive), str(ROOT), cwd=archives)
    found = _find(name)
    if found is None:
        raise Unobtainable(f"Debian's {PACKAGES[name][0]} has no {name}")
    return found


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unobtainable(
            f"{' '.join(command[:3])} ended with status {done.returncode}: {done.stderr[-400:]}"
        )
