"""Writes files that are found whole or not at all, and files that only this account reads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Yields a file that takes the place of `path` at the end, with the permissions `mode`: opening `path`,
    even after a crash, finds the whole file or what was there before. Raises OSError.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes new names in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_private(path: Path, text: str) -> None:
    """Replaces a file by one that only this account reads; it is never partial or public. Raises OSError."""
    with replacing(path, 0o600) as file:
        file.write(text.encode())


def write_secret(path: Path, secret: str) -> None:
    """Writes a file that only this account reads, unless it exists. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(secret)
