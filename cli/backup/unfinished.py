"""Makes a directory that appears complete or not at all, also when the process is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapters.storage.local import sync_folder
from cli.backup.errors import TargetNotEmpty
from cli.errors import CliError


@contextmanager
def unfinished_directory(path: Path, purpose: str) -> Iterator[Path]:
    """Yields a new hidden directory beside `path`, which gets that name, durably, when the block ends without
    an error. Otherwise it is removed; if this process is killed, by the next one with the same path and
    purpose. Raises TargetNotEmpty, and `CliError` when the disk refuses.
    """
    path = path.absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise TargetNotEmpty(str(path), "it exists")
    prefix = f".{path.name}.{purpose}-"
    unfinished = path.with_name(f"{prefix}{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(f"{prefix}*"):
            _remove_unless_locked(leftover)
        unfinished.mkdir(mode=0o700)
        lock = _locked(unfinished)
    except OSError as error:
        raise CliError(f"cannot write to {path}: {error.strerror}") from error
    try:
        yield unfinished
        for folder in (*(one for one in unfinished.rglob("*") if one.is_dir()), unfinished):
            sync_folder(folder)
        unfinished.rename(path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        os.close(lock)


def _locked(folder: Path) -> int:
    """Locks a directory for this process; returns the lock's descriptor. Raises BlockingIOError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_unless_locked(leftover: Path) -> None:
    """Removes what a killed process left; the directory of one that runs stays."""
    try:
        descriptor = _locked(leftover)
    except (BlockingIOError, FileNotFoundError):
        return
    shutil.rmtree(leftover, ignore_errors=True)
    os.close(descriptor)
