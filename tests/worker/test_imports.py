"""An import through real workers, one of which is killed in the middle of a download."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from sqlalchemy import text

from adapters.imports.admission import ImportAdmission
from adapters.imports.policy import ImportPolicy
from adapters.imports.sources import HubSource
from adapters.jobs.models import IMPORT
from adapters.jobs.repository import JobLeases
from adapters.object_keys import SOURCE_FILES, WEIGHTS_FILE
from db.outbox import Outbox
from db.session import EVERY_TENANT
from tests.support.hub import TOKEN, Repository, fake_hub
from tests.support.onboarding import SAPLING
from tests.support.waiting import eventually
from tests.worker.jobs_stack import JobsStack, kill

SECRET = "a server's secret of enough length"
NAME = "acme/pirate"


async def test_a_worker_killed_while_it_downloads_is_followed_by_one_that_goes_on(
    jobs: JobsStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: (SAPLING / "adapters" / "pirate" / name).read_bytes() for name in SOURCE_FILES}
    async with fake_hub() as hub:
        hub.repositories[NAME] = Repository(is_private=True)
        commit = hub.repositories[NAME].commit(files)
        monkeypatch.setenv("ROOTSTOCK_IMPORT_HUBS", hub.url)
        monkeypatch.setenv("ROOTSTOCK_IMPORT_PRIVATE_HOSTS", hub.host)
        monkeypatch.setenv("ROOTSTOCK_TENANTS_KEY_SECRET", SECRET)
        monkeypatch.setenv("ROOTSTOCK_JOBS_BASE_PATH", str(SAPLING / "base"))
        hub.holds = asyncio.Event()
        jobs.start(concurrency="1")
        job_id = await queue_import(jobs, ImportPolicy((hub.url,), (), frozenset({hub.host})))
        partial = jobs.directory / "objects" / ".incoming"
        await eventually(lambda: _size(partial) > 100_000, 60)
        present = _size(partial)
        await eventually(lambda: _is_importing(jobs, job_id))  # written twice a second
        kill(await holder(jobs, job_id))
        hub.holds = None
        await jobs.until(job_id, "succeeded")
        job, version = await jobs.job(job_id), await jobs.version_of(job_id)
        assert [one.headers.get("range") for one in hub.downloads(WEIGHTS_FILE)] == [
            None,
            f"bytes={present}-",
        ]
    assert {name: source["size"] for name, source in version.sources.items()} == {
        name: len(data) for name, data in files.items()
    }
    assert version.origin is not None
    assert (version.origin["commit"], version.state, IMPORT in job.parameters) == (commit, "ready", False)
    events = await jobs.events(job_id)
    assert (events.count("version.importing"), events.count("version.imported")) == (1, 1)
    assert events.count("job.started") == 2


async def queue_import(jobs: JobsStack, policy: ImportPolicy) -> str:
    """A job that imports with a token; its adapter is only known once it is made."""

    class Silent(Outbox):
        """Sends nothing: the sweep sends the message, when the credentials are in the row."""

        def add(self, *_: object, **__: object) -> None: ...

    job_id = await jobs.make_job(Silent(jobs.database, jobs.sender))
    job = await jobs.job(job_id)
    admission = ImportAdmission(policy, SECRET)
    source = admission.admitted(HubSource(NAME, token=TOKEN))
    async with jobs.database.write(EVERY_TENANT) as session:
        row = await session.get_one(type(job), job_id)
        row.parameters = {IMPORT: admission.sealed(source, job.tenant_id, job.adapter_id)}
        await session.execute(text("UPDATE jobs SET lease_until = now() - interval '1 second'"))
        await session.execute(text("UPDATE adapter_versions SET state = 'uploading'"))
    return job_id


async def holder(jobs: JobsStack, job_id: str) -> int:
    """The process that has the job's lease."""
    async with jobs.database.read(EVERY_TENANT) as session:
        owner = await JobLeases(session).owner(job_id)
    assert owner is not None
    return int(owner.rpartition(":")[2])


async def _is_importing(jobs: JobsStack, job_id: str) -> bool:
    return (await jobs.job(job_id)).phase == "importing"


def _size(scratch: Path) -> int:
    """Bytes of the weights that are here."""
    found = [entry.stat().st_size for entry in os.scandir(scratch)] if scratch.exists() else []
    return max(found, default=0)
