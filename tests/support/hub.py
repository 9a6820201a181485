"""A model hub with the HTTP API that Hugging Face's documents: repositories, commits, files by redirect.

It breaks in the ways that hubs and networks do where a test says so: connections dropped after some bytes,
other bytes than it stated, redirects elsewhere, errors.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

TOKEN = "hf_a-token-of-a-test"


@dataclass
class Repository:
    """The files of each commit, and which commit a branch is."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    is_private: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        names = json.dumps({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
        sha = hashlib.sha1(f"{len(self.commits)} {names}".encode(), usedforsecurity=False).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class FakeHub:
    """`repositories` by `owner/name`."""

    port: int = 0
    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    drop_after: list[int] = field(default_factory=list)
    """For each of the next downloads, the bytes of its body after which the connection is dropped."""
    statuses: list[int] = field(default_factory=list)
    """What the next requests are answered with instead."""
    tampered: dict[str, bytes] = field(default_factory=dict)
    """What a file is sent as, by name."""
    redirect_to: str = ""
    """Where downloads are redirected; empty: to this server's store of large files."""
    knows_ranges: bool = True
    states_lfs: bool = True
    """Whether the listing has the SHA-256 of weights."""
    stated_size: int | None = None
    holds: asyncio.Event | None = None
    """Sends the second half of the weights once it is set."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def downloads(self, name: str) -> list[Asked]:
        return [one for one in self.asked if one.path.startswith("/store/") and one.path.endswith(name)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            asked = Asked(method, path, {name.lower(): value for name, value in headers.items()})
            self.asked.append(asked)
            await self._answer(asked, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        path = asked.path.partition("?")[0]
        if self.statuses:
            await _send(writer, self.statuses.pop(0))
            return
        if path.startswith("/api/models/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            await self._listing(asked, writer, name, unquote(revision) or "main")
            return
        if path.startswith("/store/"):
            await self._file(asked, writer, *path.removeprefix("/store/").split("/", 1))
            return
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        await self._resolve(asked, writer, name, *rest.split("/", 1))

    async def _listing(self, asked: Asked, writer: asyncio.StreamWriter, name: str, revision: str) -> None:
        repository = await self._open(asked, writer, name)
        if repository is None:
            return
        sha = repository.branches.get(revision, revision)
        if sha not in repository.commits:
            await _send(writer, 404, {"x-error-code": "RevisionNotFound"})
            return
        siblings = [self._sibling(file, data) for file, data in sorted(repository.commits[sha].items())]
        body = {
            "id": name,
            "modelId": name,
            "sha": sha,
            "private": repository.is_private,
            "siblings": siblings,
        }
        await _send(writer, 200, {"content-type": "application/json"}, json.dumps(body).encode())

    def _sibling(self, name: str, data: bytes) -> dict[str, object]:
        size = len(data) if self.stated_size is None else self.stated_size
        found: dict[str, object] = {"rfilename": name, "size": size, "blobId": git_id(data)}
        if self.states_lfs and not name.endswith(".json"):
            digest = hashlib.sha256(data).hexdigest()
            found["lfs"] = {"sha256": digest, "size": size, "pointerSize": 130}
        return found

    async def _resolve(
        self, asked: Asked, writer: asyncio.StreamWriter, name: str, revision: str, file: str
    ) -> None:
        repository = await self._open(asked, writer, name)
        if repository is None:
            return
        sha = repository.branches.get(unquote(revision), revision)
        data = repository.commits.get(sha, {}).get(file)
        if data is None:
            await _send(writer, 404, {"x-error-code": "EntryNotFound"})
            return
        digest = hashlib.sha256(data).hexdigest()
        # As the real one: small files are on the same host, large ones on others.
        store = "" if file.endswith(".json") else self.url
        headers = {
            "location": self.redirect_to or f"{store}/store/{digest}/{file}",
            "x-repo-commit": sha,
            "x-linked-size": str(len(data)),
            "x-linked-etag": f'"{digest}"',
            "etag": f'"{digest}"',
        }
        await _send(writer, 302, headers)

    async def _file(self, asked: Asked, writer: asyncio.StreamWriter, digest: str, name: str) -> None:
        stored = [files for one in self.repositories.values() for files in one.commits.values()]
        (data, *_) = [
            data for files in stored for data in files.values() if hashlib.sha256(data).hexdigest() == digest
        ]
        data = self.tampered.get(name, data)
        start = int(asked.headers.get("range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        commit = next(sha for one in self.repositories.values() for sha in one.commits)
        headers, status = {"etag": f'"{digest}"', "x-repo-commit": commit}, 200
        if "range" in asked.headers and self.knows_ranges:
            headers["content-range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            status = 206
        else:
            start = 0
        body = data[start:]
        end = self.drop_after.pop(0) if self.drop_after and asked.method == "GET" else len(body)
        if asked.method == "HEAD":
            await _send(writer, status, headers | {"content-length": str(len(body))})
            return
        await _send(writer, status, headers | {"content-length": str(len(body))}, body[: end // 2])
        if self.holds is not None and not name.endswith(".json"):
            await self.holds.wait()
        writer.write(body[end // 2 : end])
        await writer.drain()

    async def _open(self, asked: Asked, writer: asyncio.StreamWriter, name: str) -> Repository | None:
        """The repository; None when the request is answered: like the real one, it does not tell those that
        are private from those that are not there.
        """
        repository = self.repositories.get(name)
        is_allowed = asked.headers.get("authorization") == f"Bearer {TOKEN}"
        if repository is None or (repository.is_private and not is_allowed):
            await _send(writer, 401, {"x-error-code": "RepoNotFound"})
            return None
        return repository


def git_id(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


async def _send(
    writer: asyncio.StreamWriter, status: int, headers: dict[str, str] | None = None, body: bytes = b""
) -> None:
    sent = {"connection": "close", "content-length": str(len(body)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)
    await writer.drain()


@asynccontextmanager
async def fake_hub() -> AsyncIterator[FakeHub]:
    hub = FakeHub()
    running: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(hub.serve(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    hub.port = server.sockets[0].getsockname()[1]
    try:
        yield hub
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
