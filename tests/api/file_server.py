"""The API behind uvicorn with real files: a database, a directory, the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openai
import psycopg
from sqlalchemy import make_url

from adapters.files.service import FileService, UploadService
from adapters.inspection.sandbox import Sandbox
from adapters.storage import LocalStore, ObjectStore
from api.services import RequestLimits
from cli.local.postgres import OWNER
from db.session import Database
from tests.api.conftest import Served, build, serving
from tests.api.fakes import KEY
from tokenization.codec import TextCodec

LIMITS = RequestLimits(
    max_body_bytes=1024 * 1024,
    body_timeout=20,
    max_file_bytes=200 * 1024 * 1024,
    min_file_rate=100_000,
    ping_interval=0.1,
)
IMPATIENT = replace(LIMITS, body_timeout=0.5)


@dataclass
class FileServer(Served):
    database: Database
    store: ObjectStore
    root: Path
    _clients: dict[str, openai.OpenAI] = field(default_factory=dict)

    def client(self, key: str = KEY) -> openai.OpenAI:
        """The stock client, closed with the server."""
        if key not in self._clients:
            url = f"{self.url}/v1"
            self._clients[key] = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)
        return self._clients[key]

    def close_clients(self) -> None:
        for client in self._clients.values():
            client.close()

    def left(self) -> list[Path]:
        """Files of the directory, whole and not."""
        return [path for path in self.root.rglob("*") if path.is_file()]


@contextmanager
def file_server(
    codec: TextCodec,
    database_url: str,
    root: Path,
    store: ObjectStore | None = None,
    *,
    tenants: bool = True,
    limits: RequestLimits = LIMITS,
    **changes: Any,
) -> Iterator[FileServer]:
    """The tenants `ten_one` and `ten_two` are made, unless they are there; `changes` to uploads."""
    if tenants:
        url = make_url(database_url).set(drivername="postgresql", username=OWNER)
        with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
            for name in ("one", "two"):
                connection.execute("INSERT INTO tenants (id, name) VALUES (%s, %s)", (f"ten_{name}", name))
    database, sandbox = Database(database_url), Sandbox()
    store = store or LocalStore(root)
    parts = {
        "files": FileService(database, store, sandbox),
        "uploads": UploadService(database, store, sandbox, **changes),
    }

    async def close() -> None:
        await sandbox.close()
        await database.close()

    with serving(build(codec, limits, **parts), close) as served:
        running = FileServer(served.world, served.host, served.port, database, store, root)
        try:
            yield running
        finally:
            running.close_clients()
