"""Serves the console's styles, scripts and images under URLs that contain a digest of their content.

A browser keeps such a file for a year without asking again. A module that a script imports by its plain name
is revalidated by its ETag.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from admin.web.static_files import REVALIDATED, UNCHANGING, StaticFiles, respond

FOLDER: Final = Path(__file__).parent.parent / "static"
_DIGEST_LENGTH: Final = 12
_HASHED: Final = re.compile(rf"(?P<stem>.+)\.[0-9a-f]{{{_DIGEST_LENGTH}}}(?P<suffix>\.[a-z]+)")


class Assets:
    """The files of one folder, as they were when the process started."""

    def __init__(self, folder: Path) -> None:
        self._files = StaticFiles(folder)
        self._hashed_names = {path.name: _hashed_name(path) for path in folder.iterdir() if path.is_file()}

    def name_in_url(self, name: str) -> str:
        """Returns `console.<digest>.css` for `console.css`. Raises KeyError if there is no such file."""
        return self._hashed_names[name]

    def routes(self) -> Mount:
        return Mount("/static", routes=[Route("/{name}", self.serve, methods=["GET"])])

    async def serve(self, request: Request) -> Response:
        requested = request.path_params["name"]
        found = _HASHED.fullmatch(requested)
        name = requested if found is None else found["stem"] + found["suffix"]
        if name not in self._hashed_names:
            raise HTTPException(404)
        # A page of another release asks for its own digest: it gets this release's file, but may not keep it.
        may_keep = requested == self._hashed_names[name]
        file = await self._files.get(name)
        return respond(
            request, replace(file, cache_control=UNCHANGING if may_keep else REVALIDATED), headers={}
        )


@functools.cache
def console_assets() -> Assets:
    """Returns the console's own, read once in a process however many consoles it has."""
    return Assets(FOLDER)


def _hashed_name(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGEST_LENGTH]
    return f"{path.stem}.{digest}{path.suffix}"
