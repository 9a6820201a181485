"""Describes where an adapter's files are imported from: a repository of a hub, or a prefix of a bucket."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.errors import InvalidAdapter

DEFAULT_REVISION = "main"
DEFAULT_REGION = "us-east-1"
MAX_SECRET = 4096
MAX_ENDPOINT = 500

REPOSITORY = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?"
REVISION = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}"
REGION = r"[a-z0-9][a-z0-9-]{0,39}"
BUCKET_URL = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()=+@,:/ -]{0,500})?"
SECRET = rf"[!-~]{{1,{MAX_SECRET}}}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of a hub that speaks the HTTP API of Hugging Face's.

    Raises InvalidAdapter naming the field.
    """

    repository: str
    revision: str = DEFAULT_REVISION
    """A branch, a tag or a commit."""
    endpoint: str | None = None
    """The hub's URL; None: the first that the operator allows."""
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check("repository", self.repository, REPOSITORY, "it must be 'name' or 'owner/name'")
        _check("revision", self.revision, REVISION, "it must be a branch, a tag or a commit")
        if ".." in self.revision or ".." in self.repository:
            raise InvalidAdapter("source.revision", "it must not contain '..'")
        if self.token is not None:
            _check("token", self.token, SECRET, "it must be printable ASCII without spaces", shown=False)

    def described(self) -> dict[str, Any]:
        """Returns all but the secret."""
        return {
            "type": "hub",
            "endpoint": self.endpoint,
            "repository": self.repository,
            "revision": self.revision,
        }

    def secrets(self) -> dict[str, str]:
        return {} if self.token is None else {"token": self.token}


@dataclass(frozen=True, slots=True)
class BucketSource:
    """The objects below a prefix of an S3 bucket. Without keys, requests are not signed: it is public.

    Raises InvalidAdapter naming the field.
    """

    url: str
    """`s3://bucket/prefix`."""
    region: str = DEFAULT_REGION
    endpoint: str | None = None
    """The URL of an S3-compatible server; None: Amazon's of the region."""
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    """Of temporary keys."""

    def __post_init__(self) -> None:
        _check("url", self.url, BUCKET_URL, "it must be 's3://bucket/prefix'")
        _check("region", self.region, REGION, "it must be a region such as 'eu-central-1'")
        if any(part in (".", "..") for part in self.prefix.split("/")):
            raise InvalidAdapter("source.url", "its prefix must not contain '.' or '..'")
        for name, secret in self.secrets().items():
            _check(name, secret, SECRET, "it must be printable ASCII without spaces", shown=False)
        if (self.access_key_id is None) != (self.secret_access_key is None):
            missing = "access_key_id" if self.access_key_id is None else "secret_access_key"
            raise InvalidAdapter(
                f"source.{missing}", "give both parts of the key, or none for a public bucket"
            )
        if self.session_token is not None and self.access_key_id is None:
            raise InvalidAdapter("source.session_token", "it belongs to a key: give access_key_id as well")

    @property
    def bucket(self) -> str:
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """Returns the prefix without slashes at its ends."""
        return self.url.removeprefix("s3://").partition("/")[2].strip("/")

    def described(self) -> dict[str, Any]:
        """Returns all but the secrets."""
        return {"type": "s3", "url": self.url, "region": self.region, "endpoint": self.endpoint}

    def secrets(self) -> dict[str, str]:
        named = {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "session_token": self.session_token,
        }
        return {name: value for name, value in named.items() if value is not None}


Source = HubSource | BucketSource


def source_of(described: Mapping[str, Any], secrets: Mapping[str, str]) -> Source:
    """Returns the source that has this description and these secrets."""
    fields = {name: value for name, value in described.items() if name not in ("type", "commit")}
    kind = HubSource if described["type"] == "hub" else BucketSource
    return kind(**fields, **secrets)


def _check(name: str, value: str, pattern: str, rule: str, *, shown: bool = True) -> None:
    if re.fullmatch(pattern, value) is None:
        raise InvalidAdapter(f"source.{name}", f"{rule}, not {value[:80]!r}" if shown else rule)
