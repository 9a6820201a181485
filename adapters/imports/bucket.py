"""Looks up and requests objects of an S3 bucket below a prefix.

The object store's client (`adapters.storage.s3`) is not used: it resolves names itself, and takes what it is
not given, such as a role's keys, from this machine.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote

from adapters.imports.client import ImportClient, SourceRequest
from adapters.imports.policy import bucket_url
from adapters.imports.remote import PICKLED, Pinned, RemoteFile, check_present
from adapters.imports.s3_signing import signed_headers
from adapters.imports.sources import BucketSource
from adapters.jobs.errors import JobFailed
from adapters.object_keys import GIVEN_FILES, SOURCE_FILES

_ABSENT = (403, 404)
"""A key that may not list the bucket gets 403 for an object that is not there."""


class BucketRemote:
    """The objects below one prefix. A `remote.Remote`."""

    def __init__(self, client: ImportClient, source: BucketSource) -> None:
        self._client = client
        self._source = source

    async def pin(self) -> Pinned:
        found, statuses = {}, {}
        for name in GIVEN_FILES:
            status, headers, file = await self._look_at(name)
            if file is not None:
                found[name] = file
            elif status not in _ABSENT:
                raise self.refusal(status, headers, name)
            statuses[name] = status
        pickles = []
        if not set(SOURCE_FILES) <= set(found):
            pickles = [PICKLED] if (await self._look_at(PICKLED))[2] is not None else []
        if not found and not pickles and 403 in statuses.values():
            raise self.refusal(403, {}, "source")
        check_present(found, pickles, self._source.url)
        return Pinned(tuple(found[name] for name in sorted(found)))

    def request(self, file: RemoteFile, pinned: Pinned) -> SourceRequest:
        headers = {} if file.etag is None else {"if-match": file.etag}
        return self._request("GET", file.name, headers)

    def refusal(self, status: int, headers: Mapping[str, str], name: str) -> JobFailed:
        url = self._source.url
        region = headers.get("x-amz-bucket-region")
        if region is not None and region != self._source.region:
            message = f"The bucket of {url} is in the region {region!r}, not {self._source.region!r}."
            return JobFailed("source_invalid", message, "source.region")
        if status == 412:
            message = f"{name} at {url} was changed during the import: add the version again."
            return JobFailed("source_changed", message, name)
        if status in (401, 403):
            remedy = (
                "check the key and its rights" if self._source.secrets() else "give a key that may read it"
            )
            return JobFailed("source_forbidden", f"S3 grants no access to {url}: {remedy}.", "source.url")
        if status == 404:
            return JobFailed("source_not_found", f"There is no {name} at {url}.", "source.url")
        return JobFailed("source_invalid", f"S3 answered {status} for {name} at {url}.", "source.url")

    async def _look_at(self, name: str) -> tuple[int, Mapping[str, str], RemoteFile | None]:
        """Returns the status, the headers, and the object if it is there."""
        request = self._request("HEAD", name, {"x-amz-checksum-mode": "ENABLED"})
        async with self._client.send(request) as answer:
            if answer.status != 200:
                return answer.status, answer.headers, None
            headers = answer.headers
        size = headers.get("content-length", "")
        if not size.isdigit() or not int(size):
            raise JobFailed("source_invalid", f"{name} at {self._source.url} is empty.", name)
        checksum = _sha256(headers.get("x-amz-checksum-sha256"))
        return 200, headers, RemoteFile(name, int(size), checksum, etag=headers.get("etag"))

    def _request(self, method: str, name: str, headers: Mapping[str, str]) -> SourceRequest:
        key = f"{self._source.prefix}/{name}" if self._source.prefix else name
        url = f"{bucket_url(self._source)}/{quote(key)}"
        signed = signed_headers(method, url, headers, self._source, datetime.now(UTC))
        # No redirect is followed: it would be to another region's endpoint, and the signature names the host.
        return SourceRequest(url, credentials=signed, method=method, max_redirects=0)


def _sha256(checksum: str | None) -> str | None:
    """Returns the hex digest of an object's checksum; None for one of parts, which ends with their number."""
    try:
        digest = base64.b64decode(checksum or "", validate=True)
    except binascii.Error:
        return None
    return digest.hex() if len(digest) == 32 else None
