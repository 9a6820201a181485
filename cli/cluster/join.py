"""Runs `rootstock join`: keeps a Ray node on this host, joined to the head of a cluster, until SIGTERM.

A node whose head is lost ends itself; it is started again until the head is back.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from cli.cluster.programs import HOST_DATA, join_options, node_program, ray_environment, require_ray
from cli.datadir import DataDir
from cli.errors import CliError
from cli.supervisor import Backoff, Event, Program, Supervisor

_BACKOFF = Backoff(first_s=0.5, limit_s=5.0)


def run_join(address: str, data: Path, token: Path, cpus: int | None) -> int:
    """Returns the exit status. Raises `CliError` for what the operator can fix."""
    require_ray()
    if not token.is_file():
        raise CliError(
            f"--token {token}: there is no such file; copy ray.token from the data folder of `rootstock up`"
        )
    with DataDir(data.absolute()) as folder:
        env = {**os.environ, **ray_environment(token.absolute()), HOST_DATA: str(folder.path)}
        options = join_options(address, cpus)
        program = node_program("ray", options, env, folder.path, folder.logs / "ray.log")
        return asyncio.run(_keep_joined(Supervisor(_note, _BACKOFF), program))


async def _keep_joined(supervisor: Supervisor, program: Program) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    child = await supervisor.start(program)
    child.settle()
    try:
        await stop.wait()
    finally:
        await supervisor.stop_all()
    return 0


def _note(event: Event) -> None:
    print(f"{event.child} {event.detail or event.kind}", flush=True)
