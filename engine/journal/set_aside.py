"""Keeps damaged files of the journal beside the engine's own, for an operator to examine.

While there are any, the engine reports them; `rootstock billing import-spool` reads what can be read of one.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from engine.journal.records import write_private
from engine.protocol import SetAside

_NAMES = re.compile(r".+\.(damaged|tail|corrupt)-\d+")
"""Includes the names of earlier releases."""


def set_aside_path(path: Path) -> Path:
    """Returns where damage of `path` is kept."""
    return path.with_name(f"{path.name}.damaged-{time.time_ns()}")


def set_aside(path: Path, content: bytes) -> Path:
    """Keeps damaged bytes of `path`, readable by their owner alone, and returns where. Raises OSError."""
    aside = set_aside_path(path)
    write_private(aside, [content])
    return aside


def files_set_aside(folder: Path) -> list[SetAside]:
    """Returns all such files in an engine's folder, by name. Raises OSError."""
    return [
        SetAside(one.name, one.stat().st_size)
        for one in sorted(folder.iterdir())
        if _NAMES.fullmatch(one.name)
    ]
