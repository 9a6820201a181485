"""Imports from an S3 server: what arrives, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools

import httpx
import pytest

from adapters.errors import InvalidAdapter
from adapters.imports.bucket import BucketRemote
from adapters.imports.client import ImportClient
from adapters.imports.policy import ImportPolicy
from adapters.imports.remote import Pinned
from adapters.imports.sources import BucketSource
from adapters.jobs.errors import JobFailed
from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from tests.adapters.imports.conftest import PIRATE, Importing, importer_of
from tests.support.s3_server import BUCKET, S3Server

_serial = itertools.count()


def put(server: S3Server, **files: bytes) -> BucketSource:
    """Objects below a prefix of their own; `__` in a name is a dot."""
    prefix = f"imports/{next(_serial)} of a test"
    for name, data in files.items():
        url = f"{server.endpoint}/{BUCKET}/{prefix}/{name.replace('__', '.')}"
        httpx.put(url, content=data).raise_for_status()
    return BucketSource(
        f"s3://{BUCKET}/{prefix}",
        endpoint=server.endpoint,
        access_key_id="test",
        secret_access_key="test",
    )


def policy_of(server: S3Server) -> ImportPolicy:
    return ImportPolicy((), (server.endpoint,), frozenset({f"127.0.0.1:{server.port}"}), timeout=5.0)


def pirate(server: S3Server) -> BucketSource:
    return put(
        server, adapter_model__safetensors=PIRATE[WEIGHTS_FILE], adapter_config__json=PIRATE[CONFIG_FILE]
    )


async def pin(server: S3Server, source: BucketSource) -> Pinned:
    return await BucketRemote(ImportClient(policy_of(server)), source).pin()


async def test_objects_become_a_version_and_keys_are_erased(
    importing: Importing, s3_server: S3Server
) -> None:
    policy = policy_of(s3_server)
    importing.place.onboarding.submission._given.imports.policy = policy
    importing.importer = importer_of(importing.place, policy, ImportClient(policy))
    source = dataclasses.replace(pirate(s3_server), secret_access_key="a-secret-of-a-test")
    lease = await importing.lease(await importing.submit(source))
    (before,) = await importing.place.column("SELECT parameters::text FROM jobs")
    await importing.run(lease)
    job, version = await importing.rows(lease)
    await importing.assert_pirate(version)
    assert version.origin is not None
    assert (version.origin["type"], version.origin["url"]) == ("s3", source.url)
    assert "a-secret-of-a-test" not in before + str(job.parameters) + str(version.origin)
    assert job.parameters == {}


async def test_an_object_that_changes_meanwhile_is_refused(s3_server: S3Server) -> None:
    source = pirate(s3_server)
    client = ImportClient(policy_of(s3_server))
    remote = BucketRemote(client, source)
    pinned = await remote.pin()
    assert [(one.name, one.size) for one in pinned.files] == [
        (CONFIG_FILE, len(PIRATE[CONFIG_FILE])),
        (WEIGHTS_FILE, len(PIRATE[WEIGHTS_FILE])),
    ]
    replaced = dataclasses.replace(pinned.files[0], etag='"of-another-time"')
    async with client.send(remote.request(replaced, pinned)) as answer:
        failure = remote.refusal(answer.status, answer.headers, CONFIG_FILE)
    assert (answer.status, failure.code) == (412, "source_changed")


async def test_what_a_prefix_lacks_is_named(s3_server: S3Server) -> None:
    cases = (
        (put(s3_server, adapter_config__json=b"{}", adapter_model__bin=b"x"), "pickle_only", WEIGHTS_FILE),
        (put(s3_server, adapter_model__safetensors=b"x"), "source_not_found", CONFIG_FILE),
        (put(s3_server, adapter_config__json=b""), "source_invalid", CONFIG_FILE),
        (dataclasses.replace(pirate(s3_server), url="s3://absent/x"), "source_not_found", CONFIG_FILE),
    )
    for source, code, param in cases:
        with pytest.raises(JobFailed) as failed:
            await pin(s3_server, source)
        assert (failed.value.code, failed.value.param) == (code, param)


async def test_a_key_that_s3_refuses_is_named(s3_server: S3Server) -> None:
    remote = BucketRemote(ImportClient(policy_of(s3_server)), pirate(s3_server))
    assert remote.refusal(403, {}, "source").code == "source_forbidden"
    moved = remote.refusal(301, {"x-amz-bucket-region": "eu-west-1"}, WEIGHTS_FILE)
    assert (moved.param, "'eu-west-1'" in moved.message) == ("source.region", True)


async def test_a_server_that_is_not_listed_is_not_contacted(importing: Importing) -> None:
    with pytest.raises(InvalidAdapter) as refused:
        await importing.submit(BucketSource("s3://bucket/a", endpoint="http://127.0.0.1:9000"))
    assert refused.value.field == "source.endpoint"
