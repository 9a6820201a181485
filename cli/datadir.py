"""Manages the data directory of one `rootstock up`: its lock, the paths inside it, and its secrets.

A lock allows one `up` per directory. Files that hold secrets are written atomically with mode 0600.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from cli.errors import CliError
from engine.files import replace_private

_SECRETS_FILE = "secrets.json"


def write_private_json(path: Path, document: dict[str, Any]) -> None:
    """Replaces `path` by a JSON file that only its owner may read; the file is never partial or public."""
    replace_private(path, json.dumps(document, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns the JSON object in `path`, or None when there is no such file.

    Raises `CliError` when the file holds anything else: a damaged secret must not be replaced silently.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CliError(f"{path} is damaged ({error}): restore it or remove it") from error
    if not isinstance(document, dict):
        raise CliError(f"{path} is damaged (not a JSON object): restore it or remove it")
    return document


@dataclass
class DataDir:
    """A data directory. Use it as a context manager to lock it."""

    path: Path
    _lock: int | None = field(default=None, repr=False)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def artifacts(self) -> Path:
        """Folder of packed adapters, by digest."""
        return self.path / "artifacts"

    @property
    def objects(self) -> Path:
        """Folder of the object store: tenants' uploads, and files derived from them."""
        return self.path / "objects"

    @property
    def serving_file(self) -> Path:
        """File that exists while an `up` serves: its URL, and its settings for the operator's commands."""
        return self.path / "serving.json"

    @property
    def demo_file(self) -> Path:
        return self.path / "demo.json"

    def __enter__(self) -> DataDir:
        try:
            for folder in (self.path, self.logs, self.artifacts, self.objects):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CliError(f"cannot use {self.path} as --data: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            self._release()
            raise CliError(
                f"{self.path} is in use by another rootstock up (process {owner}): "
                "stop it or pass another --data"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def previous_key_secret(self) -> str | None:
        """Returns the key secret that is accepted beside the current one during a rotation, if any."""
        return (read_json(self.path / _SECRETS_FILE) or {}).get("previous_key_secret")

    def begin_key_rotation(self) -> None:
        """Makes a new key secret and keeps the current one as the previous."""
        path = self.path / _SECRETS_FILE
        current, kept = self.secret("key_secret"), read_json(path) or {}
        write_private_json(path, kept | {"key_secret": secrets.token_hex(32), "previous_key_secret": current})

    def end_key_rotation(self) -> None:
        """Forgets the previous key secret."""
        path = self.path / _SECRETS_FILE
        kept = read_json(path) or {}
        kept.pop("previous_key_secret", None)
        write_private_json(path, kept)

    def secret(self, name: str) -> str:
        """Returns the secret called `name`: 32 random bytes in hex, generated at first use and stored."""
        path = self.path / _SECRETS_FILE
        kept = read_json(path) or {}
        if name not in kept:
            kept[name] = secrets.token_hex(32)
            write_private_json(path, kept)
        value = kept[name]
        if not isinstance(value, str) or len(value) < 32:
            raise CliError(f"{path} is damaged (`{name}` is not a secret): restore it or remove it")
        return value
