"""A signed version: a true pipeline with a signing key, whose calibration is the test's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.jobs.execution import attempt
from adapters.models import AdapterVersion
from adapters.pipeline import AdapterPipeline, JobInput, Progress, Verdict
from adapters.pipeline_steps import REPORT_FILE, AdapterSteps, Base, _report_prefix
from adapters.signing.maintenance import SignatureMaintenance
from adapters.signing.models import AdapterSignature
from adapters.signing.signer import VersionSigner
from adapters.signing.stored import StoredVersions
from adapters.submission import SubmittedVersion
from db.session import EVERY_TENANT
from engine.signing.keys import SigningKey
from tests.support.onboarding import BASE, SAPLING, Scene
from tokenization.codec import TextCodec

REPORT = b'{"object":"calibration.report","decision":{"ready":true}}'
KEY, OTHER_KEY = SigningKey.make(), SigningKey.make()


class MeasuredSteps(AdapterSteps):
    """Everything true but the calibration, and the engine, which is none."""

    verdict = Verdict(True, "bfloat16", "", {"ready": True, "dtype": "bfloat16"}, REPORT)

    async def open(self) -> None: ...

    async def calibrate(
        self, work: JobInput, directory: Path, progress: Progress, waiting: Callable[[str], Awaitable[None]]
    ) -> Verdict:
        await self._store.put(f"{_report_prefix(work)}{REPORT_FILE}", REPORT)
        return self.verdict


@dataclass
class Platform:
    """A platform whose key is the first of `keys`."""

    place: Scene
    keys: list[SigningKey] = field(default_factory=lambda: [KEY])
    changed: list[str] = field(default_factory=list)
    """Tenants whose adapters were announced as changed."""

    @property
    def signer(self) -> VersionSigner:
        return VersionSigner(self.keys, self.place.store, self.place.artifacts)

    @property
    def maintenance(self) -> SignatureMaintenance:
        signer = self.signer
        stored = StoredVersions(self.place.store, self.place.artifacts, signer.trusted)
        announcer = self.place.onboarding.submission._announcer

        def changed(session: object, tenant_id: str) -> None:
            self.changed.append(tenant_id)
            announcer.changed(session, tenant_id)  # type: ignore[arg-type]

        return SignatureMaintenance(self.place.database, self.place.store, signer, stored, changed)

    async def serve(self, made: SubmittedVersion, *, signed: bool = True) -> AdapterVersion:
        """Runs the version's job."""
        assert made.job_id is not None
        base = Base(BASE, SAPLING / "base", TextCodec.load(SAPLING / "base"), ["ipc:///nowhere"])
        signer = self.signer if signed else None
        steps = MeasuredSteps(self.place.store, self.place.sandbox, base, self.place.artifacts, signer)
        pipeline = AdapterPipeline({BASE: steps}, self.place.onboarding.submission._announcer)
        await attempt(await self.place.lease(made.job_id), pipeline, self.place.onboarding.outbox)
        row, _ = await self.look(made)
        assert row.state == "ready", row.error
        return row

    async def look(self, made: SubmittedVersion) -> tuple[AdapterVersion, AdapterSignature | None]:
        key = (made.adapter.id, made.version.version)
        async with self.place.database.read(EVERY_TENANT) as session:
            row = await session.get_one(AdapterVersion, key)
            return row, await session.get(AdapterSignature, key)

    async def execute(self, statements: Sequence[str]) -> None:
        from sqlalchemy import text

        async with self.place.database.write(self.place.tenants[0]) as session:
            for statement in statements:
                await session.execute(text(statement))


@pytest.fixture
def platform(place: Scene) -> Platform:
    return Platform(place)
