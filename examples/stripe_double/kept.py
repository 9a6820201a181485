"""What the double was asked, kept on disk, so that it is the same after it was started again.

Owns a file of requests that change something, each with its moment. Started on it, the double is asked all of
them again, as of then: ids are drawn in the same order, and what falls due is done between the same two. So
what it told others of itself stays true. Refuses to know what they ask for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Kept:
    """One file: how ids begin, then a line for each request."""

    def __init__(self, path: Path, draws: str) -> None:
        """`draws`: how ids begin where the file is new."""
        self._path = path
        self.draws = draws
        known = path.read_text() if path.exists() else ""
        whole = known[: known.rfind("\n") + 1]
        if whole:
            self.draws = json.loads(whole.partition("\n")[0])["draws"]
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = json.dumps({"draws": draws}) + "\n"
        if whole != known:  # new, or cut off by a crash in the middle of a line
            path.write_text(whole)

    def requests(self) -> Iterator[dict[str, Any]]:
        """Each as it was noted, in order."""
        for line in self._path.read_text().splitlines()[1:]:
            yield json.loads(line)

    def note(self, at: float, method: str, path: str, form: dict[str, Any], key: str | None) -> None:
        with self._path.open("a") as file:
            noted = {"at": at, "method": method, "path": path, "form": form, "key": key}
            file.write(json.dumps(noted) + "\n")
