"""Which sources are admitted, and how requests to S3 are signed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from adapters.errors import InvalidAdapter
from adapters.imports.policy import ImportPolicy, bucket_url
from adapters.imports.s3_signing import signed_headers
from adapters.imports.settings import ImportSettings
from adapters.imports.sources import BucketSource, HubSource, Source, source_of


@pytest.mark.parametrize(
    ("source", "field"),
    [
        (HubSource("a/b", endpoint="https://hub.example"), "source.endpoint"),
        (HubSource("a/b", endpoint="https://huggingface.co.evil.example"), "source.endpoint"),
        (HubSource("a/b", endpoint="http://169.254.169.254"), "source.endpoint"),
        (HubSource("a/b", endpoint="aws"), "source.endpoint"),
        (BucketSource("s3://bucket/a", endpoint="https://minio.example"), "source.endpoint"),
        (BucketSource("s3://bucket/a", endpoint="http://10.0.0.1:9000"), "source.endpoint"),
        (BucketSource("s3://bucket/a", region="everywhere"), "source.region"),
    ],
)
def test_by_default_only_hugging_face_and_amazon_are_allowed(source: Source, field: str) -> None:
    with pytest.raises(InvalidAdapter) as refused:
        ImportPolicy().admitted(source)
    assert refused.value.field == field


def test_the_operator_lists_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ImportPolicy().admitted(HubSource("a/b")) == HubSource("a/b", endpoint="https://huggingface.co")
    monkeypatch.setenv("ROOTSTOCK_IMPORT_HUBS", "http://hub.internal:8080/, https://huggingface.co")
    monkeypatch.setenv("ROOTSTOCK_IMPORT_S3_ENDPOINTS", "https://minio.internal")
    policy = ImportSettings().policy()
    with pytest.raises(InvalidAdapter, match="https://"):
        policy.admitted(HubSource("a/b"))
    monkeypatch.setenv("ROOTSTOCK_IMPORT_PRIVATE_HOSTS", "hub.internal:8080, minio.internal")
    policy = ImportSettings().policy()
    assert policy.admitted(HubSource("a/b")).endpoint == "http://hub.internal:8080"
    bucket = BucketSource("s3://bucket/a", endpoint="https://minio.internal/")
    assert policy.admitted(bucket).endpoint == "https://minio.internal"
    with pytest.raises(InvalidAdapter, match="Amazon S3 is not allowed"):
        policy.admitted(BucketSource("s3://bucket/a"))
    for name, wrong in (("HUBS", "huggingface.co"), ("PRIVATE_HOSTS", "https://hub.internal")):
        monkeypatch.setenv(f"ROOTSTOCK_IMPORT_{name}", wrong)
        with pytest.raises(ValidationError):
            ImportSettings()
        monkeypatch.delenv(f"ROOTSTOCK_IMPORT_{name}")
    monkeypatch.setenv("ROOTSTOCK_IMPORT_HUBS", "")
    with pytest.raises(InvalidAdapter, match="disabled"):
        ImportSettings().policy().admitted(HubSource("a/b"))


@pytest.mark.parametrize(
    ("kind", "fields", "field"),
    [
        (HubSource, {"repository": "../../etc"}, "source.repository"),
        (HubSource, {"repository": "a/b/c"}, "source.repository"),
        (HubSource, {"repository": "a/b?x"}, "source.repository"),
        (HubSource, {"repository": "a/b", "revision": "a..b"}, "source.revision"),
        (HubSource, {"repository": "a/b", "revision": "a#b"}, "source.revision"),
        (HubSource, {"repository": "a/b", "token": "a\r\nhost: b"}, "source.token"),
        (BucketSource, {"url": "https://bucket"}, "source.url"),
        (BucketSource, {"url": "s3://Bucket/a"}, "source.url"),
        (BucketSource, {"url": "s3://bucket/a/../b"}, "source.url"),
        (BucketSource, {"url": "s3://bucket/a", "region": "evil.example/"}, "source.region"),
        (BucketSource, {"url": "s3://bucket/a", "access_key_id": "A"}, "source.secret_access_key"),
        (BucketSource, {"url": "s3://bucket/a", "session_token": "A"}, "source.session_token"),
    ],
)
def test_a_wrong_source_names_its_field(kind: type[Source], fields: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidAdapter) as refused:
        kind(**fields)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert "host: b" not in str(refused.value), "a secret is not shown"


def test_a_source_is_what_it_was_described_as() -> None:
    bucket = BucketSource("s3://bucket/a", "eu-central-1", None, "AK", "SK", "ST")
    for source in (HubSource("a/b", "v1", "https://huggingface.co", "hf_x"), bucket):
        assert source_of({**source.described(), "commit": "c"}, source.secrets()) == source
        assert not set(source.secrets().values()) & set(map(str, source.described().values()))


def test_where_buckets_are() -> None:
    assert (
        bucket_url(BucketSource("s3://b-1/x", "eu-central-1")) == "https://b-1.s3.eu-central-1.amazonaws.com"
    )
    assert (
        bucket_url(BucketSource("s3://b.c/x", "cn-north-1")) == "https://s3.cn-north-1.amazonaws.com.cn/b.c"
    )
    assert (
        bucket_url(BucketSource("s3://bucket/x", endpoint="https://s3.example"))
        == "https://s3.example/bucket"
    )


def test_requests_are_signed_as_amazons_example_is() -> None:
    """The example "GET Object" of Amazon's page on Signature Version 4."""
    source = BucketSource(
        "s3://examplebucket",
        access_key_id="AKIAIOSFODNN7EXAMPLE",
        secret_access_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    )
    signed = signed_headers(
        "GET",
        "https://examplebucket.s3.amazonaws.com/test.txt",
        {"range": "bytes=0-9"},
        source,
        datetime(2013, 5, 24, tzinfo=UTC),
    )
    assert signed["authorization"].endswith(
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )
    assert signed["x-amz-date"] == "20130524T000000Z"


def test_without_a_key_nothing_is_signed() -> None:
    """And nothing is taken from this machine's own role."""
    url = "https://bucket.s3.us-east-1.amazonaws.com/a"
    source = BucketSource("s3://bucket/a")
    headers = {"range": "bytes=1-"}
    assert signed_headers("GET", url, headers, source, datetime.now(UTC)) == headers
