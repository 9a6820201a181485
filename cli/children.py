"""Runs commands of this package in a child process, for callers that must stay small or can be stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

from cli.errors import CliError
from cli.programs import CHECKOUT


async def run_child(
    *arguments: str, environment: Mapping[str, str], given: bytes = b"", failure: str
) -> bytes:
    """Returns what `python -m ARGUMENTS` prints, given its standard input. The child ends with this call.

    Raises `CliError` with the last line of its errors; with `failure` if there is none.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        env={**os.environ, **environment},
        cwd=CHECKOUT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, problem = await process.communicate(given)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = problem.decode(errors="replace").strip().rpartition("\n")[2]
        raise CliError(last.removeprefix("rootstock: ") or failure)
    return output
