"""A hub with sapling's pirate in it, and a place that imports from it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis.asyncio

from adapters.imports.admission import ImportAdmission
from adapters.imports.client import ImportClient
from adapters.imports.importing import AdapterImporter
from adapters.imports.policy import ImportPolicy
from adapters.imports.sources import HubSource, Source
from adapters.jobs.errors import JobFailed
from adapters.jobs.lease import Lease
from adapters.jobs.models import Job
from adapters.models import AdapterVersion
from adapters.object_keys import CONFIG_FILE, SOURCE_FILES, WEIGHTS_FILE
from adapters.signing.uploads import UploadSignatures
from adapters.source_copies import SourceCopies
from adapters.submission import Submission, SubmittedVersion
from db.session import EVERY_TENANT, Database
from tests.support.databases import SharedDatabase
from tests.support.hub import FakeHub, Repository, fake_hub
from tests.support.onboarding import BASE, BASE_DIGEST, SAPLING, SECRET, Scene, scene

PIRATE = {name: (SAPLING / "adapters" / "pirate" / name).read_bytes() for name in SOURCE_FILES}
NAME = "acme/pirate"


@dataclass
class Importing:
    place: Scene
    hub: FakeHub
    policy: ImportPolicy
    importer: AdapterImporter
    progress: list[tuple[int, int]] = field(default_factory=list)

    def source(self, **changes: str) -> HubSource:
        return dataclasses.replace(HubSource(NAME), **changes)

    async def submit(self, source: Source, name: str = "pirate") -> SubmittedVersion:
        return await self.place.onboarding.submission.create(
            self.place.caller(), name, Submission(source=source), base_digest=BASE_DIGEST
        )

    async def lease(self, made: SubmittedVersion) -> Lease:
        assert made.job_id is not None
        return await self.place.lease(made.job_id)

    async def run(self, lease: Lease) -> None:
        await self.importer.run(lease, lambda done, total: self.progress.append((done, total)))

    async def imported(self, source: Source) -> tuple[Job, AdapterVersion]:
        lease = await self.lease(await self.submit(source))
        await self.run(lease)
        return await self.rows(lease)

    async def refused(self, source: Source) -> JobFailed:
        """Why a job failed; its partial files are gone."""
        lease = await self.lease(await self.submit(source))
        with pytest.raises(JobFailed) as failed:
            await self.run(lease)
        assert not self.partial_files()
        return failed.value

    async def rows(self, lease: Lease) -> tuple[Job, AdapterVersion]:
        async with self.place.database.read(EVERY_TENANT) as session:
            job = await session.get_one(Job, lease.job.id)
            return job, await session.get_one(AdapterVersion, (job.adapter_id, job.version))

    def partial_files(self) -> list[Path]:
        return list(self.place.store.scratch.glob("job_*"))

    async def assert_pirate(self, version: AdapterVersion) -> None:
        assert set(version.sources) == {WEIGHTS_FILE, CONFIG_FILE}
        for name, source in version.sources.items():
            stored = b"".join([piece async for piece in self.place.store.get(source["key"])])
            assert stored == PIRATE[name]


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with fake_hub() as served:
        served.repositories[NAME] = Repository()
        served.repositories[NAME].commit({**PIRATE, "README.md": b"# Pirate"})
        yield served


@pytest.fixture
async def importing(
    shared_database: SharedDatabase,
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    tmp_path: Path,
    hub: FakeHub,
) -> AsyncIterator[Importing]:
    policy = ImportPolicy(hubs=(hub.url,), private_hosts=frozenset({hub.host}), timeout=5.0)
    async with scene(database, redis_client, redis_url, tmp_path, policy, shared=shared_database) as place:
        yield Importing(place, hub, policy, importer_of(place, policy, ImportClient(policy)))


def importer_of(place: Scene, policy: ImportPolicy, client: ImportClient) -> AdapterImporter:
    signatures = UploadSignatures(place.database, place.store)
    configs = {BASE: SAPLING / "base" / "config.json"}
    copies = SourceCopies(place.store, place.files, place.sandbox, signatures, configs)
    admission = ImportAdmission(policy, SECRET)
    return AdapterImporter(place.store, place.files, copies, admission, client, pauses=(0.0, 0.0))
