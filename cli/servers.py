"""Provides PostgreSQL and Redis for `rootstock up`: the operator's servers, or private ones that are
restarted.

`cli.local` starts a private server; this module decides whether one is needed and restarts it when it dies.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cli.errors import CliError
from cli.local.postgres import serving_url, start_postgres
from cli.local.redis import start_redis
from cli.local.server import LocalServer, LocalServerError
from telemetry.tasks import discard

OWNER_URL = "ROOTSTOCK_DB_OWNER_URL"
WAL_ARCHIVE = "ROOTSTOCK_WAL_ARCHIVE"
"""Directory where a private PostgreSQL keeps a copy of its log, for restores to a point in time."""
_WATCH_S = 1.0


@dataclass
class Store:
    """PostgreSQL or Redis: its URL, and the private server behind it unless the operator has one."""

    name: str
    url_variable: str
    start_private: Callable[[Path], LocalServer]
    url: str = ""
    server: LocalServer | None = None

    @property
    def given_url(self) -> str | None:
        """Returns the URL of the operator's server, from the environment."""
        return os.environ.get(self.url_variable) or None

    def start(self, data: Path) -> str:
        """Starts the server unless the operator has one; returns a short description. Blocks; call it on the
        main thread, because the server dies with the thread that started it. Raises `CliError`.
        """
        given = self.given_url
        if given:
            self.url = given
            return f"yours ({self.url_variable})"
        try:
            self.server = self.start_private(data)
        except LocalServerError as error:
            raise CliError(f"{error}; or set {self.url_variable} to the URL of a server") from error
        self.url = self.server.url
        return "private"

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None


def _start_postgres(data: Path) -> LocalServer:
    archive = os.environ.get(WAL_ARCHIVE)
    return start_postgres(data, wal_archive=Path(archive) if archive else None)


@dataclass
class Stores:
    """Both servers, in the order they stop: Redis holds the journal, whose last reader writes to
    PostgreSQL.
    """

    data: Path
    tell: Callable[[str], None]
    redis: Store = field(default_factory=lambda: Store("Redis", "ROOTSTOCK_REDIS_URL", start_redis))
    postgres: Store = field(default_factory=lambda: Store("PostgreSQL", "ROOTSTOCK_DB_URL", _start_postgres))
    restarted: Callable[[str], None] = lambda name: None
    """Called with the name of a private server that died and was restarted."""
    _watch: asyncio.Task[None] | None = None

    def database_urls(self) -> tuple[str, str]:
        """Returns the URLs of the serving role and of the tables' owner, who migrates. Raises `CliError`."""
        if self.postgres.given_url is None:
            return serving_url(self.postgres.url), self.postgres.url
        owner_url = os.environ.get(OWNER_URL)
        if not owner_url:
            raise CliError(
                f"{OWNER_URL} is not set: {self.postgres.url_variable} names the serving role; migrations "
                "need the URL of the role that owns the tables"
            )
        return self.postgres.url, owner_url

    def keep_alive(self) -> None:
        """Restarts private servers that die, from now on."""
        self._watch = asyncio.create_task(self._keep_alive(), name="watch private servers")

    async def stop(self) -> None:
        await discard(self._watch)
        self.redis.stop()
        self.postgres.stop()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            for store in (self.redis, self.postgres):
                if store.given_url or (store.server is not None and store.server.alive):
                    continue
                self.tell(f"{store.name} died, restarting it")
                store.stop()
                try:
                    store.start(self.data)
                except CliError as error:  # retried: the cause may be temporary
                    self.tell(str(error))
                    await asyncio.sleep(5 * _WATCH_S)
                else:
                    self.restarted(store.name)
