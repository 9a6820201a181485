"""Runs short programs that end in a kill, as forks of a process that has imported what they need.

Each would spend a second of CPU on imports, to do a few milliseconds' work.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import sys
import tempfile
from pathlib import Path

from tests.support.nursery import SERVICES


async def end_killed(program: str, *arguments: str) -> None:
    """Run a program, and assert that it ends by SIGKILL.

    Args:
        program: Python source, or the name of a module that is run as `python -m` does.
    """
    with tempfile.NamedTemporaryFile("r") as log:
        place = Path(log.name)
        started = SERVICES.start("tests.support.programs:run", place, os.environ, [program, *arguments])
        status = await asyncio.to_thread(started.wait, 100)
        assert status == -signal.SIGKILL, log.read()


def run() -> int:
    program = sys.argv.pop(1)
    if "\n" in program:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    return 0
