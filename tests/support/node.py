"""Finds the Node.js that runs the examples of JavaScript clients, or installs Debian's package.

`python -m tests.support.node` installs it, as `make test` does before the tests. Where it cannot be
installed, tests that need it are skipped and say why; under CI they fail.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache

from tests.support import chromium, debian

PACKAGE = "npm"  # which brings nodejs
OLDEST = 18
"""The first major version that the clients work with."""
MISSING = "there is no Node.js on this machine: run `make node` as root on Debian, or install it with npm"


def find() -> str | None:
    """Returns the path of `node`; None without npm beside it, or when it is too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    return node if node is not None and npm is not None and _major(node) >= OLDEST else None


def is_required() -> bool:
    """Whether tests fail for want of it."""
    return chromium.is_required()


@cache
def _major(node: str) -> int:
    """0 if it does not start."""
    try:
        done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60)
        return int(done.stdout.removeprefix("v").partition(".")[0])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0


def main() -> int:
    try:
        path = debian.ensure(find, PACKAGE)
    except debian.CannotInstall as error:
        print(f"no Node.js for the tests of JavaScript clients: {error}", file=sys.stderr)
        return 1 if is_required() else 0
    print(f"the tests of JavaScript clients use {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
