"""Services of files over a real database and a directory; two tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.files.description import FileKind
from adapters.files.service import FileService, UploadService
from adapters.inspection import InspectionRefused
from adapters.storage import LocalStore
from db.session import EVERY_TENANT, Database
from tenants.models import Tenant


class Overtaken(LocalStore):
    """Something happens before its first read."""

    happens: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str) -> AsyncIterator[bytes]:
        if self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()
        async for piece in super().get(key):
            yield piece


@dataclass
class Inspector:
    """Refuses files that begin with "bad", and remembers what it was shown."""

    seen: list[tuple[FileKind, int]] = field(default_factory=list)

    async def check_file(self, path: Path, kind: FileKind, *, owner: str) -> None:
        data = await asyncio.to_thread(path.read_bytes)
        self.seen.append((kind, len(data)))
        if data.startswith(b"bad"):
            raise InspectionRefused("r", "must be positive")


@dataclass
class Place:
    database: Database
    root: Path
    store: LocalStore
    inspector: Inspector
    files: FileService
    uploads: UploadService

    async def keys(self) -> set[str]:
        return {stored.key async for stored in self.store.list("")}

    def scratch(self) -> list[Path]:
        return list(self.store.scratch.iterdir()) if self.store.scratch.exists() else []

    async def is_empty(self) -> bool:
        """Neither an object nor a beginning of one."""
        return not await self.keys() and not self.scratch()


@pytest.fixture
async def place(database: Database, tmp_path: Path) -> Place:
    async with database.write(EVERY_TENANT) as session:
        session.add_all([Tenant(id="ten_one", name="one"), Tenant(id="ten_two", name="two")])
    store, inspector = LocalStore(tmp_path / "store"), Inspector()
    return Place(
        database,
        tmp_path / "store",
        store,
        inspector,
        FileService(database, store, inspector),
        UploadService(database, store, inspector, max_pending=3),
    )
