"""Looks up and requests files of a model hub, over the HTTP API that Hugging Face's documents.

`GET /api/models/REPOSITORY/revision/REVISION?blobs=true` resolves a revision to its commit and lists the
files with sizes and digests; `GET /REPOSITORY/resolve/COMMIT/FILE` downloads one, often by a redirect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from adapters.imports.client import ImportClient, SourceRequest
from adapters.imports.remote import Pinned, RemoteFile, check_present, is_pickle
from adapters.imports.sources import HubSource
from adapters.jobs.errors import JobFailed
from adapters.object_keys import GIVEN_FILES
from tenants.outbound.pinned import read_beginning

MAX_LISTING = 8 << 20
"""Bytes of a repository's description: tens of thousands of files."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA1, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")


class _Lfs(msgspec.Struct):
    sha256: str | None = None
    size: int | None = None


class _File(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blob_id: str | None = msgspec.field(default=None, name="blobId")
    lfs: _Lfs | None = None


class _Listing(msgspec.Struct):
    sha: str
    siblings: list[_File] = []


class HubRemote:
    """One repository at one revision. A `remote.Remote`."""

    def __init__(self, client: ImportClient, source: HubSource) -> None:
        self._client = client
        self._source = source
        self._where = f"{source.repository} at {source.revision}"
        self._credentials: dict[str, str] = {}
        if source.token is not None:
            self._credentials["authorization"] = f"Bearer {source.token}"

    async def pin(self) -> Pinned:
        source = self._source
        url = (
            f"{source.endpoint}/api/models/{source.repository}/revision/"
            f"{quote(source.revision, safe='')}?blobs=true"
        )
        request = SourceRequest(url, {"accept": "application/json"}, self._credentials)
        async with self._client.send(request) as answer:
            if answer.status != 200:
                raise self.refusal(answer.status, answer.headers, "source")
            read = await read_beginning(answer, MAX_LISTING)
        if not read.is_whole:
            raise JobFailed(
                "source_invalid", f"The listing of {self._where} is larger than {MAX_LISTING} bytes."
            )
        return self._pinned(read.body)

    def request(self, file: RemoteFile, pinned: Pinned) -> SourceRequest:
        url = f"{self._source.endpoint}/{self._source.repository}/resolve/{pinned.commit}/{file.name}"
        return SourceRequest(url, credentials=self._credentials)

    def refusal(self, status: int, headers: Mapping[str, str], name: str) -> JobFailed:
        code = headers.get("x-error-code", "")
        if code == "GatedRepo":
            message = (
                f"The hub grants no access to {self._source.repository}, which is gated: accept its terms on "
                "the hub, and give a token of that account."
            )
            return JobFailed("source_forbidden", message, "source.token")
        if code == "RevisionNotFound":
            message = f"{self._source.repository} has no revision {self._source.revision!r}."
            return JobFailed("source_not_found", message, "source.revision")
        if status in (401, 403):
            remedy = "check its token" if self._credentials else "if it is private, give a token"
            message = f"The hub grants no access to {self._where}: check the repository's name, and {remedy}."
            return JobFailed("source_forbidden", message, "source.token")
        if status == 404:
            what = self._where if name == "source" else f"{name} of {self._where}"
            return JobFailed("source_not_found", f"The hub does not know {what}.", "source.repository")
        return JobFailed("source_invalid", f"The hub answered {status} for {self._where}.", "source")

    def _pinned(self, body: bytes) -> Pinned:
        try:
            listing = msgspec.json.decode(body, type=_Listing)
        except msgspec.DecodeError as error:
            message = f"The hub's description of {self._where} cannot be read: {error}"
            raise JobFailed("source_invalid", message, "source.endpoint") from error
        if _COMMIT.fullmatch(listing.sha) is None:
            message = f"The hub names no commit for {self._where}, but {listing.sha[:80]!r}."
            raise JobFailed("source_invalid", message, "source.revision")
        names = [file.rfilename for file in listing.siblings]
        check_present(names, filter(is_pickle, names), self._where)
        wanted = {file.rfilename: file for file in listing.siblings if file.rfilename in GIVEN_FILES}
        return Pinned(tuple(self._file(wanted[name]) for name in sorted(wanted)), listing.sha)

    def _file(self, file: _File) -> RemoteFile:
        lfs = file.lfs or _Lfs()
        size = file.size if lfs.size is None else lfs.size
        sha256 = _matching(_SHA256, lfs.sha256)
        git_sha1 = None if file.lfs is not None else _matching(_SHA1, file.blob_id)
        if size is None or size < 1 or (sha256 is None and git_sha1 is None):
            message = f"The hub states no size and digest of {file.rfilename}, so it cannot be checked."
            raise JobFailed("source_invalid", message, file.rfilename)
        return RemoteFile(file.rfilename, size, sha256, git_sha1)


def _matching(pattern: re.Pattern[str], digest: Any) -> str | None:
    return digest if isinstance(digest, str) and pattern.fullmatch(digest) else None
