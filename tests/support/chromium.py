"""The Chromium that drives the console in tests: the machine's own, or Debian's package put there at first.

Owns where it is looked for, and how a bare machine gets it: by `python -m tests.support.chromium`, as `make
test` does before the tests. No other source is asked, and a machine that has one is left alone. Where it
cannot be installed, tests that need it are skipped and say why; under CI (`CI` in the environment) they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

from tests.support import debian

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium"
MISSING = "there is no Chromium on this machine: run `make browser` as root on Debian, or install one"


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
    return debian.ensure(find, PACKAGE)


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
