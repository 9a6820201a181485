"""Checks a client's description of a file: purpose, name and lifetime decide whether it is accepted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Literal

from adapters.files.errors import InvalidFile, UnsupportedFile
from adapters.files.models import UPLOADED, Purpose
from tenants.validation import INVISIBLE

FileKind = Literal["weights", "config"]

MAX_FILENAME = 255
MIN_LIFETIME, MAX_LIFETIME = 3600, 30 * 24 * 3600
"""Seconds, as in OpenAI's API."""

_KINDS: dict[str, FileKind] = {".safetensors": "weights", ".json": "config"}
_SIGNATURE = ".sig"
_LINES = frozenset({".jsonl"})
_INVISIBLE = re.compile(rf"[{INVISIBLE}\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class FileDescription:
    purpose: Purpose
    filename: str
    lifetime: int | None = None
    """Seconds; None: until it is deleted."""

    @property
    def kind(self) -> FileKind | None:
        """Returns how the sandbox inspects an adapter's file; None for its signature and other purposes."""
        return _KINDS.get(_suffix(self.filename)) if self.purpose is Purpose.ADAPTER else None

    def expires_at(self, created_at: datetime) -> datetime | None:
        return None if self.lifetime is None else created_at + timedelta(seconds=self.lifetime)


def describe(
    purpose: str, filename: str, lifetime: int | None = None, *, filename_field: str = "filename"
) -> FileDescription:
    """Checks a description; `filename_field` is the request's field for the name.

    Raises:
        InvalidFile: naming the field.
        UnsupportedFile: the name's suffix is not accepted for the purpose.
    """
    if purpose not in UPLOADED:
        allowed = ", ".join(repr(str(each)) for each in UPLOADED)
        raise InvalidFile("purpose", f"must be one of {allowed}, not {purpose[:80]!r}")
    _check_filename(filename, filename_field)
    if lifetime is not None and not MIN_LIFETIME <= lifetime <= MAX_LIFETIME:
        raise InvalidFile("expires_after", f"must be from {MIN_LIFETIME} to {MAX_LIFETIME} seconds")
    if purpose == Purpose.ADAPTER and _suffix(filename) not in (*_KINDS, _SIGNATURE):
        wanted = "'.safetensors' for weights, '.json' for the configuration and '.sig' for a signature"
        raise UnsupportedFile(filename_field, filename, wanted)
    if purpose in (Purpose.CALIBRATION, Purpose.BATCH) and _suffix(filename) not in _LINES:
        raise UnsupportedFile(filename_field, filename, "'.jsonl'")
    return FileDescription(Purpose(purpose), filename, lifetime)


def _check_filename(filename: str, field: str) -> None:
    if not 1 <= len(filename) <= MAX_FILENAME:
        raise InvalidFile(field, f"a file's name must have 1 to {MAX_FILENAME} characters")
    if filename.startswith(".") or any(character in "/\\" for character in filename):
        raise InvalidFile(field, "a file's name must not contain a slash or start with a dot")
    if _INVISIBLE.search(filename) is not None:
        raise InvalidFile(field, "a file's name must not contain control or invisible characters")


def _suffix(filename: str) -> str:
    return PurePosixPath(filename).suffix.lower()
