"""Measures the free disk space of a directory and compares it with the configured minimum."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MIN_FREE_BYTES = 512 * 1024**2
"""The default minimum."""


class DiskSettings(BaseSettings):
    """The minimum of every process, read from ROOTSTOCK_DISK_*. Built by process mains only."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_DISK_")

    min_free_bytes: int = Field(default=MIN_FREE_BYTES, ge=0)
    """With less free space `rootstock up` and engines refuse to start, and /readyz reports the API as not
    ready. 0 turns the check off."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Space on the file system of a directory."""

    free_bytes: int
    """Available to this account."""
    total_bytes: int


def disk_space(directory: Path) -> DiskSpace:
    """Returns the space for `directory`, which need not exist yet: then its nearest existing parent counts.

    Raises OSError when the file system does not answer.
    """
    existing = directory.absolute()
    while True:
        try:
            found = os.statvfs(existing)
        except (FileNotFoundError, NotADirectoryError):
            existing = existing.parent
            continue
        return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def shortage(space: DiskSpace, min_free_bytes: int) -> str | None:
    """Returns how much is free and how much must be, when that is less; else None. Contains no path."""
    if space.free_bytes >= min_free_bytes:
        return None
    return f"{_megabytes(space.free_bytes)} free, {_megabytes(min_free_bytes)} required"


def start_problem(directory: Path, min_free_bytes: int) -> str | None:
    """Returns why a process that writes to `directory` should not start, with the remedy; None
    when it may.
    """
    try:
        found = shortage(disk_space(directory), min_free_bytes)
    except OSError:
        return None  # opening the directory will report what is wrong with it
    if found is None:
        return None
    return (
        f"too little disk space in {directory}: {found}. Free some, or lower "
        f"ROOTSTOCK_DISK_MIN_FREE_BYTES (now {min_free_bytes})"
    )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
