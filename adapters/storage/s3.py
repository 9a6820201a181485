"""Stores objects in an S3 bucket, or on a compatible server.

The digest is stored beside each object (`x-amz-meta-sha256`). Bytes are sent only after all of them are on
this machine and their digest is known; the store's own checksum covers the transfer. Parts of interrupted
transfers stay in the bucket, invisible: configure a lifecycle rule that aborts incomplete multipart uploads.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import S3Store as Bucket

from adapters.storage.errors import DigestMismatch, ObjectNotFound, StorageUnavailable
from adapters.storage.local import remove_older
from adapters.storage.objects import StoredObject, checked_key, joined, put_stream
from adapters.storage.receiving import CHUNK, on_disk, replace_with_stream, verified

_PART = 8 * 1024 * 1024
_DIGEST = "sha256"


@dataclass(frozen=True, slots=True)
class AccessKey:
    """What signs requests. What is None comes from the environment or the machine's role."""

    id: str | None = None
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a request to the bucket may take, and how it is retried. Durations are in seconds."""

    timeout: float = 60.0
    """For one request."""
    connect_timeout: float = 5.0
    retries: int = 4
    """Of a request that failed on the server's side or on the way."""
    retry_timeout: float = 20.0
    """After which a request is not retried."""


class S3Store:
    """An ObjectStore in `bucket`, below `prefix`.

    Args:
        scratch: a directory of this machine for files on their way.
        endpoint: of the server, None for Amazon's.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        scratch: Path,
        endpoint: str | None = None,
        region: str = "us-east-1",
        access_key: AccessKey = AccessKey(),
        retry_policy: RetryPolicy = RetryPolicy(),
    ) -> None:
        self.scratch = scratch
        named: dict[str, Any] = {
            "endpoint": endpoint,
            "access_key_id": access_key.id,
            "secret_access_key": access_key.secret,
        }
        self._bucket = Bucket(
            bucket,
            prefix=prefix or None,
            region=region,
            virtual_hosted_style_request=endpoint is None,
            checksum_algorithm="SHA256",
            client_options={
                "timeout": timedelta(seconds=retry_policy.timeout),
                "connect_timeout": timedelta(seconds=retry_policy.connect_timeout),
                "allow_http": endpoint is not None and endpoint.startswith("http://"),
            },
            retry_config={
                "max_retries": retry_policy.retries,
                "retry_timeout": timedelta(seconds=retry_policy.retry_timeout),
                "backoff": {
                    "base": 2,
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=3),
                },
            },
            **{name: value for name, value in named.items() if value is not None},
        )

    async def put(
        self, key: str, data: AsyncIterator[bytes] | bytes, *, sha256: str | None = None
    ) -> StoredObject:
        return await put_stream(self, key, data, sha256)

    async def put_file(self, key: str, path: Path, *, sha256: str) -> StoredObject:
        checked_key(key)
        try:
            with _store_errors(key):
                await obstore.put_async(
                    self._bucket, key, path, attributes={_DIGEST: sha256}, chunk_size=_PART, max_concurrency=4
                )
        finally:
            await on_disk(path.unlink, True)
        return await self._known(key)

    async def get(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        checked_key(key)
        if start < 0 or (length is not None and length < 0):
            raise ValueError(f"no range of an object: {length} bytes from {start}")
        whole = start == 0 and length is None
        with _store_errors(key):
            if whole:
                result = await obstore.get_async(self._bucket, key)
            else:
                size = (await obstore.head_async(self._bucket, key))["size"]
                end = size if length is None else min(size, start + length)
                if start >= end:  # S3 answers an empty range with an error
                    return
                result = await obstore.get_async(self._bucket, key, options={"range": (start, end)})
            pieces = _pieces(result.stream(CHUNK))
            expected = result.attributes.get(_DIGEST)
            if whole and expected:
                pieces = verified(pieces, key, expected)
            async for piece in pieces:
                yield piece

    async def head(self, key: str) -> StoredObject | None:
        try:
            return await self._known(key)
        except ObjectNotFound:
            return None

    async def copy(self, source: str, target: str) -> StoredObject:
        checked_key(source)
        checked_key(target)
        with _store_errors(source):
            await obstore.copy_async(self._bucket, source, target)
        return await self._known(target)

    async def concatenate(self, sources: Sequence[str], target: str) -> StoredObject:
        return await self.put(target, joined(self, sources))

    async def delete(self, key: str) -> None:
        checked_key(key)
        with contextlib.suppress(ObjectNotFound), _store_errors(key):
            await obstore.delete_async(self._bucket, key)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        prefix = prefix.removesuffix("/")
        if prefix:
            checked_key(prefix)
        with _store_errors(prefix):
            async for batch in obstore.list(self._bucket, prefix or None, chunk_size=500):
                for meta in batch:
                    yield StoredObject(meta["path"], meta["size"], "", meta["last_modified"])

    async def fetch(self, key: str, path: Path, *, sha256: str | None = None) -> None:
        if sha256 is not None:
            found = await self._known(key)
            if found.sha256 != sha256:
                raise DigestMismatch(key, sha256, found.sha256)
        with _store_errors(key):
            await replace_with_stream(self.get(key), path)

    async def sweep(self, before: datetime) -> int:
        with _store_errors(""):
            return await on_disk(remove_older, self.scratch, before)

    async def _known(self, key: str) -> StoredObject:
        checked_key(key)
        with _store_errors(key):
            result = await obstore.get_async(self._bucket, key, options={"head": True})
        meta = result.meta
        return StoredObject(key, meta["size"], result.attributes.get(_DIGEST, ""), meta["last_modified"])


async def _pieces(stream: Any) -> AsyncIterator[bytes]:
    async for piece in stream:
        yield bytes(piece)


@contextlib.contextmanager
def _store_errors(key: str) -> Iterator[None]:
    try:
        yield
    except (exceptions.BaseError, OSError) as error:
        absent = isinstance(error, exceptions.NotFoundError | FileNotFoundError)
        if absent and "NoSuchBucket" not in str(error):
            raise ObjectNotFound(key) from None
        raise StorageUnavailable(f"{key}: {type(error).__name__}: {error}"[:500]) from error
