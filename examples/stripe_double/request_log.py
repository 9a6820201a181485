"""Records the double's requests on disk and replays them after a restart.

The file has every request that changes something, with its time. After a restart the double replays all of
them as of then: ids are generated in the same order, and due actions run at the same points. So references
that others hold to its objects stay valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class RequestLog:
    """One file: the prefix of ids, then a line for each request."""

    def __init__(self, path: Path, draws: str) -> None:
        """`draws`: the prefix of ids, if the file is new."""
        self._path = path
        self.draws = draws
        known = path.read_text() if path.exists() else ""
        whole = known[: known.rfind("\n") + 1]
        if whole:
            self.draws = json.loads(whole.partition("\n")[0])["draws"]
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = json.dumps({"draws": draws}) + "\n"
        if whole != known:  # new, or truncated by a crash in the middle of a line
            path.write_text(whole)

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yields the recorded requests in order."""
        for line in self._path.read_text().splitlines()[1:]:
            yield json.loads(line)

    def note(self, at: float, method: str, path: str, form: dict[str, Any], key: str | None) -> None:
        with self._path.open("a") as file:
            noted = {"at": at, "method": method, "path": path, "form": form, "key": key}
            file.write(json.dumps(noted) + "\n")
