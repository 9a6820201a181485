"""The way of an adapter from its files into service, over real stores; only the engine is a stand-in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis.asyncio
from sqlalchemy import text

from adapters.files.service import FileService
from adapters.files.uploads import UploadService
from adapters.imports.admission import ImportAdmission
from adapters.imports.policy import ImportPolicy
from adapters.inspection.sandbox import Sandbox
from adapters.jobs.lease import Lease, claim
from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from adapters.published_artifacts.publishing import published_key
from adapters.signing.maintenance import SignatureMaintenance
from adapters.signing.signer import VersionSigner
from adapters.signing.stored import StoredVersions
from adapters.storage import LocalStore
from adapters.submission import Calibration, Caller, Submission, SubmittedVersion
from adapters.versions import PackedArtifact, finish_ready, note_calibrated, note_inspected, note_packed
from api.assembly.adapters import open_onboarding
from api.services import Onboarding
from cli.programs import CHECKOUT
from db.session import EVERY_TENANT, Database
from engine.protocol import AdapterRef, EngineInfo
from engine.signing.keys import SigningKey, TrustedKeys
from tenants.service import TenantService
from tenants.views import STANDARD, PlanView
from tests.support.databases import SharedDatabase
from tests.support.sandboxes import KeptSandbox

SAPLING = CHECKOUT / "examples" / "sapling" / "weights"
BASE = "sapling"
BASE_DIGEST = "b" * 64
SECRET = "a server's secret of enough length"
SIGNING_KEY = SigningKey.make()
"""The platform's."""


@dataclass
class ToldEngine:
    """Remembers what it was told to load."""

    ready: bool = True
    incarnation: str = "i1"
    told: list[tuple[str, bool | None]] = field(default_factory=list)

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            "engine-0", self.incarnation, BASE, BASE_DIGEST, "none", "cpu", 512, 511, 400, "test"
        )

    def prefetch(self, adapter: AdapterRef, pinned: bool | None = None) -> None:
        self.told.append((adapter.digest, pinned))

    def take(self) -> list[tuple[str, bool | None]]:
        told, self.told = self.told, []
        return told


@dataclass
class Scene:
    """Everything of one test."""

    database: Database
    redis: redis.asyncio.Redis
    store: LocalStore
    artifacts: Path
    files: FileService
    uploads: UploadService
    sandbox: Sandbox
    engine: ToldEngine
    onboarding: Onboarding
    tenants: tuple[str, str]

    def caller(self, tenant: int = 0, plan: PlanView = STANDARD) -> Caller:
        return Caller(self.tenants[tenant], "key_test", plan)

    async def upload(self, adapter: str | Path = "pirate", tenant: int = 0) -> list[str]:
        """The files of one of sapling's adapters, or of a directory; their ids."""
        directory = adapter if isinstance(adapter, Path) else SAPLING / "adapters" / adapter
        made = [
            await self.files.create(
                self.tenants[tenant],
                None,
                "adapter",
                name,
                (directory / name).read_bytes(),
                max_bytes=1 << 30,
            )
            for name in (WEIGHTS_FILE, CONFIG_FILE)
        ]
        return [file.id for file in made]

    async def create(
        self,
        name: str,
        adapter: str | Path = "pirate",
        tenant: int = 0,
        plan: PlanView = STANDARD,
        **options: Any,
    ) -> SubmittedVersion:
        submission = Submission(file_ids=await self.upload(adapter, tenant), **options)
        return await self.onboarding.submission.create(
            self.caller(tenant, plan), name, submission, base_digest=BASE_DIGEST
        )

    async def add(
        self, adapter_id: str, adapter: str | Path, tenant: int = 0, **options: Any
    ) -> SubmittedVersion:
        submission = Submission(file_ids=await self.upload(adapter, tenant), **options)
        return await self.onboarding.submission.add_version(
            self.caller(tenant), adapter_id, submission, base_digest=BASE_DIGEST
        )

    async def lease(self, job_id: str) -> Lease:
        """As the worker takes it."""
        import asyncio

        lease = await claim(self.database, job_id, "worker", asyncio.Event())
        assert lease is not None
        return lease

    async def pack(self, lease: Lease, digit: str) -> None:
        """As the worker says it, with artifacts of made-up digests that are there."""
        packed = {
            dtype: PackedArtifact((digit + mark) * 32, 100, 8)
            for dtype, mark in (("bfloat16", "b"), ("float8_e4m3", "f"))
        }
        for one in packed.values():
            path = artifact_file(self.artifacts, one.digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"packed")
            await self.store.put(published_key(one.digest), b"packed")
        async with lease.write() as held:
            await note_inspected(held.session, held.job, {"rank": 8})
        async with lease.write() as held:
            await note_packed(held.session, held.job, packed)

    async def finish(self, lease: Lease, dtype: str = "bfloat16") -> None:
        async with lease.write() as held:
            await note_calibrated(held.session, held.job, {"samples": 3}, dtype)
            await finish_ready(held.session, held.job, self.onboarding.submission._announcer)

    async def make_ready(self, made: SubmittedVersion, digit: str) -> AdapterRef:
        assert made.job_id is not None
        lease = await self.lease(made.job_id)
        await self.pack(lease, digit)
        await self.finish(lease)
        return AdapterRef((digit + "b") * 32, 8)

    async def sign(self) -> int:
        """Signs versions in service, as the worker does; returns how many."""
        signer = VersionSigner([SIGNING_KEY], self.store, self.artifacts)
        stored = StoredVersions(self.store, self.artifacts, signer.trusted)
        changed = self.onboarding.submission._announcer.changed
        return await SignatureMaintenance(self.database, self.store, signer, stored, changed).sign_pending()

    async def column(self, query: str, **values: Any) -> list[Any]:
        async with self.database.read(EVERY_TENANT) as session:
            return list((await session.execute(text(query), values)).scalars())

    async def keys(self) -> list[str]:
        return sorted([stored.key async for stored in self.store.list("tenants")])


def artifact_file(directory: Path, digest: str) -> Path:
    from engine.lora.artifact import artifact_path

    return artifact_path(directory, digest)


@asynccontextmanager
async def scene(
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    directory: Path,
    policy: ImportPolicy = ImportPolicy(),
    *,
    shared: SharedDatabase | None = None,
) -> AsyncIterator[Scene]:
    """A new one, with two tenants: in an empty `shared` database those that were made first."""
    if shared is None:
        tenants = await create_tenants(database, redis_client)
    else:
        tenants = await shared.once(create_tenants, database, redis_client)
    async with reopened(database, redis_client, redis_url, directory, tenants, policy) as place:
        yield place


async def create_tenants(database: Database, redis_client: redis.asyncio.Redis) -> tuple[str, str]:
    service = TenantService(database, redis_client)
    ours, theirs = [await service.create_tenant(name) for name in ("ours", "theirs")]
    return ours.id, theirs.id


@asynccontextmanager
async def reopened(
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    directory: Path,
    tenants: tuple[str, str],
    policy: ImportPolicy = ImportPolicy(),
) -> AsyncIterator[Scene]:
    """The same as another process has it."""
    store, sandbox, engine = LocalStore(directory / "objects"), KeptSandbox(), ToldEngine()
    files, uploads = FileService(database, store, sandbox), UploadService(database, store, sandbox)
    try:
        async with open_onboarding(
            *(database, redis_client, store, files, uploads, sandbox, {BASE: engine}),
            redis_url=redis_url,
            base_configs={BASE: SAPLING / "base" / "config.json"},
            imports=ImportAdmission(policy, SECRET),
            signing_keys=TrustedKeys([SIGNING_KEY.public]),
        ) as onboarding:
            yield Scene(
                *(database, redis_client, store, directory / "artifacts", files, uploads, sandbox, engine),
                onboarding=onboarding,
                tenants=tenants,
            )
    finally:
        await sandbox.close()


def samples() -> bytes:
    return b"".join(json.dumps({"prompt": "a", "completion": "b"}).encode() + b"\n" for _ in range(3))


__all__ = ["Calibration", "Scene", "Submission", "ToldEngine", "samples", "scene"]
