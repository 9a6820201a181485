"""The pipeline over true rows, objects, sandbox and packer; calibration's word is the test's."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adapters.jobs.execution import attempt
from adapters.jobs.models import Job
from adapters.models import AdapterVersion
from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE, artifact_key
from adapters.pipeline import DTYPES, AdapterPipeline, JobInput, Progress, Verdict
from adapters.pipeline_steps import AdapterSteps, Base, ensure_artifact
from adapters.published_artifacts.publishing import published_key
from adapters.storage import DigestMismatch, ObjectNotFound
from adapters.submission import SubmittedVersion
from db.session import EVERY_TENANT
from engine.lora.artifact import PackedAdapter, artifact_path, read_manifest
from tests.support.onboarding import BASE, BASE_DIGEST, SAPLING, Scene, samples
from tokenization.codec import TextCodec

GOOD = Verdict(True, "float8_e4m3", "", {"ready": True, "dtype": "float8_e4m3"})
BAD = Verdict(False, "bfloat16", "It is worse than the base alone.", {"ready": False, "dtype": "bfloat16"})


class JudgedSteps(AdapterSteps):
    """Everything true but the calibration, and the engine, which is none."""

    verdict = GOOD
    seen: list[JobInput]
    samples: bytes | None = None

    async def open(self) -> None: ...

    async def calibrate(
        self, work: JobInput, directory: Path, progress: Progress, waiting: Callable[[str], Awaitable[None]]
    ) -> Verdict:
        self.seen.append(work)
        own = directory / "calibration.jsonl"
        self.samples = own.read_bytes() if own.exists() else None
        assert {path.name for path in (directory / "source").iterdir()} == {CONFIG_FILE, WEIGHTS_FILE}
        for one in work.artifacts.values():
            read_manifest(artifact_path(self._artifacts_dir, one.digest))
        return self.verdict


@dataclass
class Shop:
    place: Scene
    steps: JudgedSteps
    pipeline: AdapterPipeline
    log: list[str] = field(default_factory=list)

    async def run(self, job_id: str) -> tuple[Job, AdapterVersion]:
        """One attempt, and what came of it."""
        await attempt(await self.place.lease(job_id), self.pipeline, self.place.onboarding.outbox)
        return await self.look(job_id)

    async def look(self, job_id: str) -> tuple[Job, AdapterVersion]:
        async with self.place.database.read(EVERY_TENANT) as session:
            job = await session.get_one(Job, job_id)
            return job, await session.get_one(AdapterVersion, (job.adapter_id, job.version))

    async def events(self, job_id: str) -> list[str]:
        return await self.place.column(
            "SELECT type FROM adapter_events WHERE job_id = :job ORDER BY id", job=job_id
        )


@pytest.fixture
def shop(place: Scene, tmp_path: Path) -> Iterator[Shop]:
    base = Base(BASE, SAPLING / "base", TextCodec.load(SAPLING / "base"), ["ipc:///nowhere"])
    steps = JudgedSteps(place.store, place.sandbox, base, place.artifacts)
    steps.seen = []
    announcer = place.onboarding.submission._announcer
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    yield Shop(place, steps, AdapterPipeline({BASE: steps}, announcer, scratch))
    assert list(scratch.iterdir()) == [], "files of jobs are removed"


def job_of(made: SubmittedVersion) -> str:
    assert made.job_id is not None
    return made.job_id


async def test_an_upload_is_inspected_packed_kept_and_put_into_service(shop: Shop) -> None:
    made = await shop.place.create("pirate")
    job, version = await shop.run(job_of(made))
    assert (job.status, job.error, job.result) == ("succeeded", None, dict(GOOD.summary))
    assert (version.state, version.dtype, version.rank) == ("ready", "float8_e4m3", 4)
    assert version.inspection is not None
    assert version.inspection["num_tensors"] == 2 * len(version.inspection["modules"])
    assert set(version.artifacts) == set(DTYPES)
    for dtype, packed in version.artifacts.items():
        here = PackedAdapter.read(artifact_path(shop.place.artifacts, packed["digest"]), packed["digest"])
        assert (here.manifest.dtype, here.manifest.base_digest) == (dtype, BASE_DIGEST)
        stored = await shop.place.store.head(artifact_key(job.tenant_id, job.adapter_id, job.version, dtype))
        assert stored is not None
        assert (stored.sha256, stored.size) == (packed["digest"], packed["size"])
        published = await shop.place.store.head(published_key(packed["digest"]))
        assert published is not None
        assert (published.sha256, published.size) == (packed["digest"], packed["size"])
    assert version.digest == version.artifacts["float8_e4m3"]["digest"]
    (work,) = shop.steps.seen
    assert (work.model, work.samples, work.dtype) == ("sapling:pirate@1", None, None)
    assert await shop.place.column("SELECT active_version FROM adapters") == [1]


async def test_a_job_that_was_interrupted_skips_what_is_done(shop: Shop) -> None:
    """Packed already, with one artifact gone from this machine meanwhile."""
    made = await shop.place.create("pirate")
    lease = await shop.place.lease(job_of(made))

    async def stops(*_: Any) -> Verdict:
        raise asyncio.CancelledError

    shop.steps.calibrate = stops  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await shop.pipeline.run(lease)
    del shop.steps.calibrate
    _, version = await shop.look(job_of(made))
    assert version.state == "calibrating"
    gone = artifact_path(shop.place.artifacts, version.artifacts["bfloat16"]["digest"])
    gone.unlink()
    published = published_key(version.artifacts["bfloat16"]["digest"])
    await shop.place.store.delete(published)  # as if an earlier release had packed it
    shop.steps._sandbox = None  # type: ignore[assignment]  # it would be an error to inspect again
    await shop.pipeline.run(lease)
    job, version = await shop.look(job_of(made))
    assert (job.status, version.state) == ("succeeded", "ready")
    assert gone.is_file()
    assert await shop.place.store.head(published) is not None
    events = await shop.events(job_of(made))
    assert events.count("version.inspected") == events.count("version.packed") == 1


async def test_the_gate_refuses_and_the_measures_are_kept(shop: Shop) -> None:
    shop.steps.verdict = BAD
    made = await shop.place.create("pirate")
    job, version = await shop.run(job_of(made))
    assert job.status == "failed"
    assert job.error == {"code": "gate_failed", "message": BAD.why_not, "param": None}
    assert job.result == version.calibration == dict(BAD.summary)
    assert (version.state, version.error) == ("failed", BAD.why_not)
    assert await shop.place.column("SELECT active_version FROM adapters") == [None]


async def test_the_operators_word_outweighs_the_gate(shop: Shop) -> None:
    shop.steps.verdict = BAD
    made = await shop.place.create("pirate")
    await shop.place.onboarding.adapters.override(
        shop.place.tenants[0], made.adapter.id, 1, "It is for a test."
    )
    job, version = await shop.run(job_of(made))
    assert (job.status, version.state, version.dtype) == ("succeeded", "ready", "bfloat16")


async def test_ones_own_samples_are_there_even_when_their_file_is_deleted(shop: Shop) -> None:
    from tests.support.onboarding import Calibration

    files, tenant = shop.place.files, shop.place.tenants[0]
    file = await files.create(tenant, None, "calibration", "own.jsonl", samples(), max_bytes=1 << 20)
    made = await shop.place.create("pirate", calibration=Calibration(file.id, "bfloat16"))
    await files.delete(tenant, file.id)
    job, _ = await shop.run(job_of(made))
    assert job.status == "succeeded"
    assert shop.steps.samples == samples()
    assert shop.steps.seen[0].dtype == "bfloat16"


async def test_a_stored_file_that_is_damaged_fails_the_job(shop: Shop) -> None:
    made = await shop.place.create("pirate")
    _, version = await shop.look(job_of(made))
    await shop.place.store.put(version.sources[WEIGHTS_FILE]["key"], b"something else")
    job, version = await shop.run(job_of(made))
    assert job.error is not None
    assert (job.status, job.error["code"]) == ("failed", "file_damaged")
    assert version.state == "failed"


async def test_values_that_the_answer_did_not_look_at_are_refused_by_the_job(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large upload only the header is read before the answer."""
    import torch
    from safetensors.torch import load_file, save_file

    monkeypatch.setattr("adapters.source_copies.WHOLE_INSPECTION", 0)
    folder = tmp_path / "broken"
    shutil.copytree(SAPLING / "adapters" / "pirate", folder)
    tensors = load_file(folder / WEIGHTS_FILE)
    key = max(tensors)
    tensors[key] = torch.full_like(tensors[key], torch.nan)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    made = await shop.place.create("pirate", folder)
    job, version = await shop.run(job_of(made))
    assert job.error is not None
    assert (job.status, job.error["code"], job.error["param"]) == ("failed", "adapter_invalid", key)
    assert (version.state, version.error_field) == ("failed", key)
    assert not list(shop.place.artifacts.rglob("*.rsa"))


async def test_a_base_that_is_served_no_more_ends_the_job(shop: Shop) -> None:
    made = await shop.place.create("pirate")
    shop.pipeline._steps = {"oak": shop.steps}
    job, version = await shop.run(job_of(made))
    assert job.error is not None
    assert (job.error["code"], version.state) == ("base_changed", "failed")


async def test_an_artifact_is_restored_whole_or_not_at_all(shop: Shop, tmp_path: Path) -> None:
    made = await shop.place.create("pirate")
    job, version = await shop.run(job_of(made))
    digest = version.artifacts["bfloat16"]["digest"]
    key = artifact_key(job.tenant_id, job.adapter_id, job.version, "bfloat16")
    elsewhere = tmp_path / "elsewhere"
    assert await ensure_artifact(shop.place.store, key, elsewhere, digest)
    PackedAdapter.read(artifact_path(elsewhere, digest), digest)
    assert not await ensure_artifact(shop.place.store, key, elsewhere, digest)
    await shop.place.store.put(key, b"something else")
    artifact_path(elsewhere, digest).unlink()
    with pytest.raises(DigestMismatch):
        await ensure_artifact(shop.place.store, key, elsewhere, digest)
    await shop.place.store.delete(key)
    with pytest.raises(ObjectNotFound):
        await ensure_artifact(shop.place.store, key, elsewhere, digest)
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == []
