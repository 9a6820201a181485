"""Keeps a base's digest, so that a start does not read the whole base once more to name it.

Hashing reads 16 GB in 15 seconds, longer than loading takes. Files that were replaced or written since have
another inode, size or time of change, which no program can set.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import structlog

from engine.files import replace_private
from engine.model.weights import base_digest, base_files

log = structlog.get_logger(__name__)

FILE = "base-digest.json"


def known_base_digest(base_dir: Path, kept: Path) -> str:
    """Returns `base_digest(base_dir)`: the one in `kept`, if the base's files are those it was computed from.
    Raises ValueError, OSError for a base that cannot be read.
    """
    files = _files(base_dir)
    known = _read(kept)
    if known.get("files") == files and isinstance(known.get("digest"), str):
        return str(known["digest"])
    digest = base_digest(base_dir)
    if _files(base_dir) == files:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            replace_private(kept, json.dumps({"digest": digest, "files": files}))
        except OSError as error:
            log.warning("the base's digest is not kept; the next start hashes it again", reason=str(error))
    return digest


def _files(base_dir: Path) -> dict[str, list[int]]:
    """Returns what changes when a file does, by its path."""
    found = {}
    for path in base_files(base_dir):
        seen = path.stat()
        found[str(path.resolve())] = [
            seen.st_dev,
            seen.st_ino,
            seen.st_size,
            seen.st_mtime_ns,
            seen.st_ctime_ns,
        ]
    return found


def _read(kept: Path) -> dict[str, Any]:
    try:
        known = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is none, or it is damaged
        return {}
    return known if isinstance(known, dict) else {}
