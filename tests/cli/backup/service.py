"""A small service to back up, without processes: tenant, key, ledger, invoice, file, packed adapter."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import redis.asyncio
from sqlalchemy import text

from adapters.bases import Bases
from adapters.files.description import FileKind
from adapters.files.models import StoredFile
from adapters.files.service import FileService
from adapters.service import AdapterService
from adapters.storage import LocalStore
from billing.invoices.settings import InvoiceSettings
from billing.models import Price
from cli.backup.archive import Backup, BackupWriter, Manifest
from cli.backup.restoring import Target
from cli.backup.taking import BackupRun
from cli.backup.unfinished import unfinished_directory
from cli.display import PlainDisplay, Step
from cli.local.postgres import serving_url
from db.session import EVERY_TENANT, Database
from engine.lora.artifact import artifact_path
from engine.protocol import AdapterRef
from tenants.actors import OPERATOR
from tenants.key_service import KeyService
from tenants.service import TenantService
from tests.billing.invoices.conftest import MICRO_A_TOKEN, NOVEMBER, OCTOBER, Business, at

SECRET = "a secret of at least thirty-two characters"
KEY = b"the operator's own key of a backup"
WEIGHTS = b"weights" * 1000


class Accepting:
    """Finds every file good."""

    async def check_file(self, path: Path, kind: FileKind, *, owner: str) -> None:
        pass


class Watched(PlainDisplay):
    """Calls what a test wants to happen when a step begins."""

    def __init__(self, at_step: Mapping[str, Callable[[], None]] | None = None) -> None:
        self.shown = io.StringIO()
        super().__init__(self.shown)
        self._at_step = at_step or {}

    @contextmanager
    def step(self, title: str, done: str = "ready") -> Iterator[Step]:
        self._at_step.get(title, lambda: None)()
        with super().step(title, done) as step:
            yield step


@dataclass
class Service:
    """`populate` it first."""

    database: Database
    owner_database: Database
    redis_url: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    tenant_id: str = ""
    api_key: str = ""
    file: StoredFile | None = None
    digest: str = hashlib.sha256(WEIGHTS).hexdigest()

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.folder / "objects")

    @property
    def files(self) -> FileService:
        return FileService(self.database, self.store, Accepting())

    async def populate(self) -> None:
        client = redis.asyncio.Redis.from_url(self.redis_url)
        business = Business(self.database, client, InvoiceSettings(seller_name="Acorn Serving Ltd"))
        async with self.database.write(EVERY_TENANT) as session:
            price = MICRO_A_TOKEN.input
            session.add(
                Price(
                    id=MICRO_A_TOKEN.price_id,
                    effective_from=at(OCTOBER),
                    input=price,
                    cached_input=price,
                    output=price,
                )
            )
        tenant = await TenantService(self.database, client).create_tenant("acme")
        async with self.owner_database.write(EVERY_TENANT) as session:
            await session.execute(text("UPDATE tenants SET created_at = :at"), {"at": at(OCTOBER, 1)})
        self.tenant_id = tenant.id
        for day in (11, 12):
            await business.use(tenant.id, at(OCTOBER, day), 1000, cached=100, completion=500)
        await business.close(at(NOVEMBER, 5))
        await business.use(tenant.id, at(NOVEMBER, 6), 70, completion=7)
        keys = KeyService(self.database, client, SECRET)
        self.api_key = (await keys.create(tenant.id, "first", OPERATOR)).plaintext
        self.file = await self.upload(b'{"text": "to calibrate on"}\n')
        path = artifact_path(self.folder / "artifacts", self.digest)
        path.parent.mkdir(parents=True)
        path.write_bytes(WEIGHTS)
        adapters = AdapterService(self.database, client, Bases("sapling"))
        await adapters.register_version(
            tenant.id, "pirate", AdapterRef(self.digest, 8), base_digest=hashlib.sha256(b"base").hexdigest()
        )
        await client.aclose()

    async def upload(self, content: bytes) -> StoredFile:
        return await self.files.create(
            self.tenant_id, None, "calibration", "samples.jsonl", content, max_bytes=1 << 20
        )

    async def back_up(self, to: Path, display: Watched | None = None, key: bytes = KEY) -> Manifest:
        with unfinished_directory(to, "unfinished") as folder:
            run = BackupRun(self.environment, None, BackupWriter(folder, key), display or Watched())
            return await run.run()

    async def close(self) -> None:
        await self.database.close()
        await self.owner_database.close()


def opened(path: Path, key: bytes = KEY) -> Backup:
    return Backup(path, key)


def target(owner_url: str, folder: Path) -> Target:
    """An empty place to restore into."""
    store = LocalStore(folder / "objects")
    return Target(owner_url, serving_url(owner_url), store, str(folder / "objects"), folder / "artifacts")


def today() -> datetime:
    return datetime.now(UTC)
