"""Runs the API process: reads settings, serves until SIGTERM, drains, exits 0.

/livez answers from the first moment; /readyz answers 503 until the engine has answered and the database has a
schema that this release serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType

import structlog
import uvicorn
import uvloop

from adapters.storage import StorageSettings
from api.app import create_app
from api.assembly.services import open_services
from api.connections import connections_with
from api.request_reader import DrainingState
from api.settings import ApiSettings, ConnectionSettings
from api.site.routes import SITE
from db.errors import UnusableDatabase
from db.settings import DatabaseSettings
from telemetry import logs
from tenants.settings import TenantSettings

COLLECT_AFTER = (10_000, 20, 50)
"""Thresholds of the garbage collector. Requests leave almost no cycles, and with Python's default of 700 the
collector took a twentieth of the process's time.
"""
IDLE_GRACE = 1.0
"""Seconds of a drain for which idle connections stay open: a proxy may be sending a request on one."""
_QUIET_TURNS = 3
"""Turns of the event loop without a new connection after which none waits; it accepts one in a turn."""
log = structlog.get_logger(__name__)


def run(settings: ApiSettings) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit code: 0 after the drain, 1 when it cannot start.

    The settings of connections, database and keys are read from the environment too.
    """
    logs.configure(settings.name, settings.log_level, settings.log_format)
    os.environ.setdefault(
        "TOKENIZERS_PARALLELISM", "false"
    )  # texts are encoded one at a time, so threads only add cost
    database, tenants = DatabaseSettings(), TenantSettings()  # type: ignore[call-arg]
    storage, connections = StorageSettings(), ConnectionSettings()  # type: ignore[call-arg]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(settings, connections, database, tenants, storage))
        except (OSError, ValueError, UnusableDatabase) as error:
            log.critical("api cannot start", error=str(error))
            return 1
    return 0


async def _serve(
    settings: ApiSettings,
    connections: ConnectionSettings,
    database: DatabaseSettings,
    tenants: TenantSettings,
    storage: StorageSettings,
) -> None:
    async with open_services(settings, database, tenants, storage) as (services, console):
        if not (SITE / "index.html").is_file():
            log.warning("the documentation is not built: /docs says how to build it", folder=str(SITE))
        config = uvicorn.Config(
            create_app(services, console),
            host=settings.host,
            port=settings.port,
            http=connections_with(connections.write_timeout, connections.head_timeout, IDLE_GRACE),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=bool(connections.forwarded_allow_ips),
            forwarded_allow_ips=connections.forwarded_allow_ips,
            backlog=connections.backlog,
            timeout_keep_alive=connections.keep_alive,
            timeout_graceful_shutdown=settings.drain_timeout,
        )
        # Not uvicorn's own `fd`: it treats the socket as a Unix one and does not set TCP_NODELAY.
        passed = (settings.listen_fd, settings.own_fd)
        inherited = [socket.socket(fileno=fd) for fd in passed if fd is not None] or None
        _allow_many_connections()
        # Objects that exist now stay: without them the collector scans a hundredth of the objects.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        await DrainingServer(config).serve(inherited)


def _allow_many_connections() -> None:
    """Raises the limit on open files to the hard limit: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class DrainingServer(uvicorn.Server):
    """Drains on SIGTERM and exits with 0; uvicorn would raise the signal again after the drain.

    Connections that were made before the drain are accepted: the system would reset those that still wait
    when the socket closes, with the requests that were sent on them.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def finish(number: int, frame: FrameType | None) -> None:
            log.info("draining", signal=signal.Signals(number).name)
            self.handle_exit(number, frame)

        before = {number: signal.signal(number, finish) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state: DrainingState = DrainingState()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.server_state.is_draining = True
        await self._accept_those_that_wait()
        for server in self.servers:
            server.close()
        await self._accept_those_that_wait()  # those just accepted learn of it in the next turn
        await super().shutdown(sockets)

    async def _accept_those_that_wait(self) -> None:
        known: set[object] = set()
        quiet = 0
        for _ in range(self.config.backlog):
            new = self.server_state.connections - known
            known |= new
            quiet = 0 if new else quiet + 1
            if quiet > _QUIET_TURNS:
                return
            await asyncio.sleep(0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for bound in server.sockets:
                host, port = bound.getsockname()[:2]
                log.info("listening", address=f"http://{host}:{port}")


if __name__ == "__main__":
    sys.exit(run(ApiSettings()))  # type: ignore[call-arg]
