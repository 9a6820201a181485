"""Imports from a hub: what arrives, what is refused, what goes on after an interruption."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download

from adapters.errors import InvalidAdapter
from adapters.jobs.errors import JobFinished
from adapters.jobs.execution import attempt
from adapters.jobs.models import CREDENTIALS, IMPORT
from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from adapters.pipeline import AdapterPipeline
from adapters.storage import StorageUnavailable
from engine.signing.bundle import sign
from engine.signing.keys import SigningKey
from engine.signing.statement import SIGNATURE_FILE, encode_statement
from tenants.actors import OPERATOR
from tenants.limits.kinds import Limit, Metric
from tenants.quotas.service import LimitService
from tenants.signing_keys.service import SigningKeys
from tests.adapters.imports.conftest import NAME, PIRATE, Importing
from tests.support.hub import TOKEN, FakeHub

SIZE = sum(map(len, PIRATE.values()))


async def test_files_arrive_at_the_commit_that_the_branch_was(importing: Importing) -> None:
    repository = importing.hub.repositories[NAME]
    first = repository.branches["main"]
    made = await importing.submit(importing.source())
    assert (made.version.state, made.version.sources) == ("uploading", {})
    assert made.version.origin == {
        "type": "hub",
        "endpoint": importing.hub.url,
        "repository": NAME,
        "revision": "main",
    }
    lease = await importing.lease(made)
    await importing.run(lease)
    job, version = await importing.rows(lease)
    await importing.assert_pirate(version)
    assert version.state == "validating"
    assert version.origin is not None
    assert version.origin["commit"] == first
    assert IMPORT not in job.parameters
    assert importing.progress[-1] == (SIZE, SIZE)
    events = await importing.place.column("SELECT type FROM adapter_events ORDER BY id")
    assert events[-2:] == ["version.importing", "version.imported"]
    query = "SELECT data FROM adapter_events WHERE type = 'version.importing'"
    (facts,) = await importing.place.column(query)
    assert facts["commit"] == first
    files = await importing.place.column("SELECT filename FROM files ORDER BY filename")
    assert files == [CONFIG_FILE, WEIGHTS_FILE], "as an upload has them, and nothing else"
    assert not importing.hub.downloads("README.md")
    await importing.run(lease)
    assert len(importing.hub.downloads(WEIGHTS_FILE)) == 1, "a second run has nothing to do"


async def test_the_stock_client_reads_the_same_from_this_hub(hub: FakeHub, tmp_path: Path) -> None:
    """So the tests' hub speaks what the real one does."""
    info = await asyncio.to_thread(HfApi(endpoint=hub.url).model_info, NAME, files_metadata=True)
    assert info.sha == hub.repositories[NAME].branches["main"]
    (weights,) = [one for one in info.siblings or [] if one.rfilename == WEIGHTS_FILE]
    assert weights.lfs is not None
    assert weights.lfs.sha256 == hashlib.sha256(PIRATE[WEIGHTS_FILE]).hexdigest()
    for name in PIRATE:
        path = await asyncio.to_thread(
            hf_hub_download, NAME, name, endpoint=hub.url, cache_dir=tmp_path, token=False
        )
        assert await asyncio.to_thread(Path(path).read_bytes) == PIRATE[name]


async def test_a_token_is_sealed_sent_to_the_hub_alone_and_erased(importing: Importing) -> None:
    importing.hub.repositories[NAME].is_private = True
    lease = await importing.lease(await importing.submit(importing.source(token=TOKEN)))
    (stored,) = await importing.place.column("SELECT parameters::text FROM jobs")
    assert CREDENTIALS in stored
    rows = await importing.place.column("SELECT to_jsonb(v)::text FROM adapter_versions v")
    rows += await importing.place.column("SELECT to_jsonb(e)::text FROM adapter_events e")
    rows += await importing.place.column("SELECT to_jsonb(o)::text FROM outbox o")
    assert TOKEN not in stored + "".join(rows)
    await importing.run(lease)
    _, version = await importing.rows(lease)
    await importing.assert_pirate(version)
    (stored,) = await importing.place.column("SELECT parameters::text FROM jobs")
    assert CREDENTIALS not in stored
    listing = importing.hub.asked[0]
    assert listing.headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("ends", ["fails", "is cancelled", "is deleted"])
async def test_a_token_is_erased_however_the_job_ends(importing: Importing, ends: str) -> None:
    made = await importing.submit(importing.source(token="hf_wrong", repository="acme/absent"))
    onboarding, tenant = importing.place.onboarding, importing.place.tenants[0]
    assert made.job_id is not None
    if ends == "fails":
        pipeline = AdapterPipeline({}, onboarding.submission._announcer, importer=importing.importer)
        await attempt(await importing.lease(made), pipeline, onboarding.outbox)
        job = await onboarding.jobs.get(tenant, made.job_id)
        assert job.error is not None
        assert (job.status, job.error["code"], job.error["param"]) == (
            "failed",
            "source_forbidden",
            "source.token",
        )
        assert await importing.place.column("SELECT state FROM adapter_versions") == ["failed"]
        with pytest.raises(JobFinished):
            await onboarding.jobs.retry(tenant, made.job_id, by=OPERATOR)
    elif ends == "is cancelled":
        await onboarding.jobs.cancel(tenant, made.job_id)
    else:
        await onboarding.deletion.delete(tenant, made.adapter.id)
    (parameters,) = await importing.place.column("SELECT parameters FROM jobs")
    assert CREDENTIALS not in parameters[IMPORT]


async def test_an_interrupted_import_goes_on_at_its_byte_with_its_commit(importing: Importing) -> None:
    """The branch moves meanwhile, and the next attempt is another process's."""
    importing.hub.holds = asyncio.Event()
    made = await importing.submit(importing.source())
    lease = await importing.lease(made)
    doing = asyncio.create_task(importing.run(lease))
    async with asyncio.timeout(20):
        while not any(path.stat().st_size > 100_000 for path in importing.partial_files()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    (present,) = [path.stat().st_size for path in importing.partial_files() if WEIGHTS_FILE in path.name]
    commit = importing.hub.repositories[NAME].branches["main"]
    importing.hub.repositories[NAME].commit({**PIRATE, CONFIG_FILE: b"{}"})
    importing.hub.holds = None
    await importing.run(lease)
    _, version = await importing.rows(lease)
    await importing.assert_pirate(version)
    assert version.origin is not None
    assert version.origin["commit"] == commit
    again = [one.headers.get("range") for one in importing.hub.downloads(WEIGHTS_FILE)]
    assert again == [None, f"bytes={present}-"]
    assert sum(one.path.startswith("/api/") for one in importing.hub.asked) == 1


async def test_a_hub_that_cannot_answer_now_is_asked_again(importing: Importing) -> None:
    importing.hub.statuses = [429, 408]
    _, version = await importing.imported(importing.source())
    await importing.assert_pirate(version)


async def test_a_hub_that_keeps_failing_ends_the_import(importing: Importing) -> None:
    importing.hub.statuses = [503] * 3
    refused = await importing.refused(importing.source())
    assert refused.code == "source_unavailable"
    assert "it answered 503" in str(refused)


async def test_sizes_are_bounded_before_and_during_the_download(importing: Importing) -> None:
    place, hub = importing.place, importing.hub
    limit = Limit("tenant", place.tenants[0], "", Metric.STORAGE_BYTES, SIZE - 1)
    await LimitService(place.database, place.redis).set(place.tenants[0], OPERATOR, limit)
    failure = await importing.refused(importing.source())
    assert failure.code == "storage_limit_reached"
    assert not any("/resolve/" in one.path for one in hub.asked), "before a byte is fetched"
    await LimitService(place.database, place.redis).set(
        place.tenants[0], OPERATOR, Limit("tenant", place.tenants[0], "", Metric.STORAGE_BYTES, 10 * SIZE)
    )
    hub.stated_size = 1 << 60
    lease = await importing.lease(await importing.submit(importing.source(), "huge"))
    with pytest.raises(Exception, match=r"your plan allows files of up to"):
        await importing.run(lease)
    hub.stated_size = 1000
    lease = await importing.lease(await importing.submit(importing.source(), "longer"))
    with pytest.raises(Exception, match=r"bytes or more, not 1000 as its source stated"):
        await importing.run(lease)


async def test_what_inspection_refuses_fails_as_an_upload_does(importing: Importing) -> None:
    config = json.dumps(json.loads(PIRATE[CONFIG_FILE]) | {"r": 3}).encode()
    importing.hub.repositories[NAME].commit({**PIRATE, CONFIG_FILE: config})
    failure = await importing.refused(importing.source())
    assert failure.code == "adapter_invalid"
    assert failure.param
    assert not [key for key in await importing.place.keys() if "/adapters/" in key]


async def test_only_listed_endpoints_are_admitted(importing: Importing) -> None:
    for endpoint in ("https://huggingface.co", "http://169.254.169.254", f"{importing.hub.url}/other"):
        with pytest.raises(InvalidAdapter) as refused:
            await importing.submit(importing.source(endpoint=endpoint))
        assert refused.value.field == "source.endpoint"
    for changes in ({"repository": "../../etc"}, {"revision": "a..b"}, {"token": "two words"}):
        with pytest.raises(InvalidAdapter):
            importing.source(**changes)
    assert await importing.place.column("SELECT count(*) FROM jobs") == [0]


async def test_two_workers_do_not_write_one_file(importing: Importing) -> None:
    importing.hub.holds = asyncio.Event()
    lease = await importing.lease(await importing.submit(importing.source()))
    doing = asyncio.create_task(importing.run(lease))
    async with asyncio.timeout(20):
        while not importing.hub.downloads(WEIGHTS_FILE):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(StorageUnavailable, match="another worker"):
        await importing.run(lease)
    importing.hub.holds.set()
    await doing
    _, version = await importing.rows(lease)
    await importing.assert_pirate(version)


async def test_an_import_that_failed_without_credentials_can_be_retried(importing: Importing) -> None:
    onboarding, tenant = importing.place.onboarding, importing.place.tenants[0]
    lease = await importing.lease(await importing.submit(importing.source(revision="v1")))
    pipeline = AdapterPipeline({}, onboarding.submission._announcer, importer=importing.importer)
    await attempt(lease, pipeline, onboarding.outbox)
    job, version = await importing.rows(lease)
    assert job.error is not None
    assert (job.error["param"], version.state) == ("source.revision", "failed")
    importing.hub.repositories[NAME].commit(PIRATE, "v1")
    again = await onboarding.jobs.retry(tenant, job.id, by=OPERATOR)
    assert await importing.place.column("SELECT state FROM adapter_versions") == ["uploading"]
    lease = await importing.place.lease(again.id)
    await importing.run(lease)
    _, version = await importing.rows(lease)
    await importing.assert_pirate(version)


async def test_a_repositorys_signature_is_imported_and_verified(importing: Importing) -> None:
    key, tenant = SigningKey.make(), importing.place.tenants[0]
    keys = SigningKeys(importing.place.database)
    registered = await keys.add(tenant, "release", key.public.pem, OPERATOR)
    await keys.accept_signed_only(tenant, True, OPERATOR)
    unsigned = await importing.refused(importing.source())
    assert (unsigned.code, unsigned.param) == ("adapter_invalid", SIGNATURE_FILE)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in PIRATE.items()}
    signature = sign(key, encode_statement("pirate", digests))
    importing.hub.repositories[NAME].commit({**PIRATE, SIGNATURE_FILE: signature})
    made = await importing.submit(importing.source(), "signed")
    lease = await importing.lease(made)
    await importing.run(lease)
    _, version = await importing.rows(lease)
    assert set(version.sources) == {*PIRATE, SIGNATURE_FILE}
    assert version.uploader_key == {"id": registered.id, "name": "release", "key_id": key.public.id}
