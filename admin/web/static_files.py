"""Serves a folder of static files: compressed, with ETags, and under a Content-Security-Policy of their own.

The files are those that were there when the process started. Each is read and compressed once, in a thread,
so that no stream of tokens waits for it.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

UNCHANGING: Final = "public, max-age=31536000, immutable"
REVALIDATED: Final = "no-cache"
_FINGERPRINTED = re.compile(r"\.[0-9a-f]{8}\.")
"""Zensical puts a digest of the content into the names of its own scripts and styles."""
_INLINE_SCRIPT = re.compile(rb"<script(?P<attributes>[^>]*)>(?P<code>.*?)</script>", re.DOTALL)
_COMPRESSED: Final = (
    "text/",
    "application/json",
    "application/javascript",
    "image/svg+xml",
    "application/xml",
)
_TYPES: Final = {".js": "text/javascript", ".md": "text/plain", ".yml": "text/plain", ".conf": "text/plain"}


@dataclass(frozen=True, slots=True)
class File:
    """A file's bytes as they are sent."""

    body: bytes
    compressed: bytes | None
    """By gzip; None where that saves nothing."""
    etag: str
    media_type: str
    cache_control: str


class StaticFiles:
    """The files of one folder, by their path below it. A folder's page is its `index.html`."""

    def __init__(self, folder: Path) -> None:
        found = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
        self._paths = {path.relative_to(folder).as_posix(): path for path in sorted(found)}
        self._read: dict[str, File] = {}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def name_of(self, path: str) -> str | None:
        """Returns the name of the file that a path asks for; None if there is none."""
        name = f"{path}index.html" if path == "" or path.endswith("/") else path
        return name if name in self._paths else None

    def is_folder(self, path: str) -> bool:
        """Whether the path is a page's, but for the slash at its end."""
        return f"{path}/index.html" in self._paths

    async def get(self, name: str) -> File:
        """Returns a file by its name, as `name_of` returned it."""
        if name not in self._read:
            self._read[name] = await asyncio.to_thread(read, self._paths[name])
        return self._read[name]

    def script_hashes(self) -> list[str]:
        """Returns what a Content-Security-Policy must allow for the scripts in the pages, by digest."""
        found = set()
        for name, path in self._paths.items():
            if name.endswith(".html"):
                for script in _INLINE_SCRIPT.finditer(path.read_bytes()):
                    if b"src=" not in script["attributes"] and b"json" not in script["attributes"]:
                        digest = base64.b64encode(hashlib.sha256(script["code"]).digest()).decode()
                        found.add(f"'sha256-{digest}'")
        return sorted(found)


def read(path: Path) -> File:
    """Reads and compresses a file."""
    media_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return make_file(
        path.read_bytes(), media_type, UNCHANGING if _FINGERPRINTED.search(path.name) else REVALIDATED
    )


def make_file(body: bytes, media_type: str, cache_control: str) -> File:
    """Compresses what would be sent as a file."""
    smaller = gzip.compress(body, 6, mtime=0) if media_type.startswith(_COMPRESSED) else body
    return File(
        body,
        smaller if len(smaller) < len(body) else None,
        f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        f"{media_type}; charset=utf-8" if media_type.startswith("text/") else media_type,
        cache_control,
    )


def respond(request: Request, file: File, headers: Mapping[str, str], status: int = 200) -> Response:
    """Returns the file: compressed where the client takes that, and 304 where it has the file already."""
    sent = {"etag": file.etag, "cache-control": file.cache_control, "vary": "accept-encoding", **headers}
    if status == 200 and file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    body = file.body
    if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        body, sent["content-encoding"] = file.compressed, "gzip"
    return Response(body, status, sent, file.media_type)
