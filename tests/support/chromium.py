"""The Chromium that drives the console in tests: Debian's headless shell, or the machine's own.

The shell is the same browser without windows: a page costs a third of the CPU that it costs in one.
`python -m tests.support.chromium` installs it, as `make test` does before the tests; no other source is
asked. Where it cannot be installed, the tests use the Chromium that there is; where there is none, tests that
need it are skipped and say why, and under CI (`CI` in the environment) they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

from tests.support import debian

SHELL = "chromium-headless-shell"
PROGRAMS = (SHELL, "chromium", "chromium-browser", "google-chrome")
PACKAGE = SHELL
MISSING = "there is no Chromium on this machine: run `make browser` as root on Debian, or install one"


def find(programs: tuple[str, ...] = PROGRAMS) -> str | None:
    """Its path: the first on PATH that starts at all. Some distributions have a stub in its place."""
    for name in programs:
        path = shutil.which(name)
        if path is not None and _starts(path):
            return path
    return None


def is_required() -> bool:
    """Whether tests fail for want of it."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def ensure() -> str:
    """Find the shell or install it, or find another. Raises CannotInstall."""
    try:
        return debian.ensure(lambda: find((SHELL,)), PACKAGE)
    except debian.CannotInstall:
        other = find()
        if other is None:
            raise
        return other


@cache
def _starts(path: str) -> bool:
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def main() -> int:
    try:
        path = ensure()
    except debian.CannotInstall as error:
        print(f"no Chromium for the tests of the console: {error}", file=sys.stderr)
        return 1 if is_required() else 0
    print(f"the tests of the console use {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
