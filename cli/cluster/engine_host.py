"""Runs one engine on the node where Ray placed it, as a child process that is started again when it dies.

The engine is a process of its own, as on one machine: if it is killed, the actor starts it again on the same
node, without Ray. If the actor or its node dies, the kernel ends the engine with it, and Ray starts the actor
elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from cli.cluster.programs import HOST_DATA
from cli.supervisor import Child, Event, Program

_DRAIN_MARGIN_S = 15.0


class EngineHost:
    """The Ray actor of one engine."""

    def __init__(self, engine_id: str, environment: Mapping[str, str], host: str) -> None:
        """`environment`: the engine's settings; `host`: this node's address, as clients reach it."""
        self._program = _program(engine_id, environment, host)
        self._description = describe(environment)
        self._stopping = asyncio.Event()
        self._stopped = threading.Event()
        self._loop = asyncio.new_event_loop()
        # A thread of its own, which outlives every call: the kernel ends the engine with the thread.
        self._thread = threading.Thread(target=self._run, name="engine host")
        self._thread.start()

    def description(self) -> str:
        """Returns what the engine was started with: a controller replaces one of other settings."""
        return self._description

    def stop(self) -> None:
        """Drains the engine and waits for its end."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._keep_alive())

    async def _keep_alive(self) -> None:
        child = Child(self._program, _note)
        child.settle()  # whatever ends it, it is started again
        await child.start()
        await self._stopping.wait()
        await child.stop()


def describe(environment: Mapping[str, str]) -> str:
    """Returns the settings in one line, to compare."""
    return "\n".join(f"{name}={value}" for name, value in sorted(environment.items()))


def _program(engine_id: str, environment: Mapping[str, str], host: str) -> Program:
    own = {
        "ROOTSTOCK_ENGINE_ENGINE_ID": engine_id,
        "ROOTSTOCK_ENGINE_ENDPOINT": f"tcp://{host}:0",
        "ROOTSTOCK_CLUSTER_HOST": host,
        "PYTHONUNBUFFERED": "1",
    }
    if HOST_DATA in os.environ:
        own["ROOTSTOCK_ENGINE_DATA_DIR"] = os.environ[HOST_DATA]
    env = {**os.environ, **environment, **own}
    drain_s = float(env.get("ROOTSTOCK_ENGINE_DRAIN_SECONDS", "30"))
    return Program(
        name=engine_id,
        argv=(sys.executable, "-m", "cli.main", "serve-engine"),
        env=env,
        log=Path(env["ROOTSTOCK_ENGINE_DATA_DIR"]) / "logs" / f"{engine_id}.log",
        grace_s=drain_s + _DRAIN_MARGIN_S,
    )


def _note(event: Event) -> None:
    print(f"{event.child} {event.detail or event.kind}", flush=True)
