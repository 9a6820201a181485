"""Runs `rootstock` commands in processes forked from one that has imported what commands import.

Most of what a short command takes is imports: a second of CPU, and four for the API process's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.nursery import SERVICES


def rootstock(
    *arguments: str, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with no settings of the service but `env`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROOTSTOCK_")}
    with tempfile.TemporaryDirectory() as directory:
        output, errors = Path(directory) / "output", Path(directory) / "errors"
        process = SERVICES.start(
            "tests.support.commands:run", output, environment | env, [str(errors), *arguments]
        )
        status = process.wait(60)
        return subprocess.CompletedProcess(arguments, status, output.read_text(), errors.read_text())


def run() -> int:
    """In the fork: the console script, with standard error in the file that the first argument names."""
    from cli.main import main

    errors = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(errors, 2)
    os.close(errors)
    main()
    return 0
