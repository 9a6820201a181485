"""Writes and reads a backup's directory: sealed files, and a manifest with the digest of each.

backup.json       format, id, what the key is derived with; in clear
manifest.sealed   `Manifest`: written last
database.sealed   PostgreSQL, as pg_dump writes it
base.sealed       a base backup of the whole server, as tar; on request
usage.sealed      usage events that were not in the database yet
in-flight.sealed  the same of requests that had not ended
secrets.sealed    settings and key files
objects/          the object store, by key
artifacts/        packed adapters, by path
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from cli.backup.errors import DamagedBackup
from cli.backup.sealed_files import BackupKey, Content, SealedWriter, read_sealed
from cli.datadir import read_json, write_private_json
from cli.errors import CliError
from db.base import new_id

HEADER = "backup.json"
MANIFEST = "manifest.sealed"
DATABASE = "database.sealed"
BASE = "base.sealed"
USAGE = "usage.sealed"
IN_FLIGHT = "in-flight.sealed"
SECRETS = "secrets.sealed"
OBJECTS = "objects/"
ARTIFACTS = "artifacts/"
FORMAT = 1
"""Changes when older releases cannot read a backup."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds."""

    id: str
    release: str
    schema: str
    """Revision of the database."""
    server_version: int
    """Of PostgreSQL, as 150004."""
    moment: datetime
    """The time up to which the backup has every acknowledged request: when it began to read."""
    finished_at: datetime
    wal_position: str
    """PostgreSQL's log position of the snapshot."""
    source: str
    """URL of the database, without its password: whose role and name a recovered server has too."""
    rows: dict[str, int]
    """Rows of each table in the snapshot."""
    files: dict[str, Content]
    """What each sealed file holds, by path in the backup."""
    named: dict[str, str]
    """Objects that the database names, and their SHA-256 by its rows; empty where it has none."""
    deleted: list[str]
    """Of these, those that were deleted while the backup was made."""
    unavailable: dict[str, str]
    """Of these, those that the store did not have or could not give, with the reason."""
    notes: list[str]
    """What else the backup lacks."""


class BackupWriter:
    """Writes a backup into an empty directory."""

    def __init__(self, folder: Path, operator_key: bytes) -> None:
        self._folder = folder
        salt = os.urandom(32)
        self.id = new_id("bkp")
        self._key = BackupKey.derive(operator_key, salt)
        self.files: dict[str, Content] = {}
        self._num_opened = 0
        header = {"format": FORMAT, "id": self.id, "salt": salt.hex(), "check": self._key.check}
        write_private_json(folder / HEADER, header)

    @contextmanager
    def writing(self, name: str) -> Iterator[SealedWriter]:
        """Opens a file, which replaces any of that name when the block ends without an error."""
        self._num_opened += 1
        partial = self._folder / f".{self._num_opened}"
        writer = SealedWriter(partial, name, self._key)
        try:
            yield writer
            content = writer.finish()
        except BaseException:
            writer.close()
            partial.unlink()
            raise
        path = self._folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.rename(path)
        self.files[name] = content

    def add(self, name: str, data: bytes) -> None:
        """Writes a whole file."""
        with self.writing(name) as file:
            file.write(data)

    def finish(self, manifest: Manifest) -> None:
        """Writes the manifest: without it, the directory is no backup."""
        self.add(MANIFEST, msgspec.json.encode(manifest))


class Backup:
    """A finished backup. Raises DamagedBackup naming the file, and `CliError` for another key."""

    def __init__(self, path: Path, operator_key: bytes) -> None:
        self.path = path
        header = read_json(path / HEADER)
        if header is None:
            raise CliError(f"{path} is not a backup: it has no {HEADER}")
        try:
            if header["format"] != FORMAT:
                raise CliError(f"{path} has format {header['format']!r}, this release reads {FORMAT}")
            salt = bytes.fromhex(header["salt"])
        except (KeyError, TypeError, ValueError):
            raise DamagedBackup(HEADER, "it is damaged") from None
        self._key = BackupKey.derive(operator_key, salt)
        if self._key.check != header.get("check"):
            raise CliError(f"{path} was made with another key: give the --key-file that it was made with")
        encoded = b"".join(self._chunks(MANIFEST))
        self.manifest_sha256 = hashlib.sha256(encoded).hexdigest()
        self.manifest = msgspec.json.decode(encoded, type=Manifest)
        if self.manifest.id != header.get("id"):
            raise DamagedBackup(HEADER, "it is of another backup")

    @property
    def size(self) -> int:
        """Returns the bytes that its files hold."""
        return sum(content.size for content in self.manifest.files.values())

    def read(self, name: str) -> Iterator[bytes]:
        """Yields what a file holds; the last bytes only if all of it is as the manifest says."""
        expected = self.manifest.files.get(name)
        if expected is None:
            raise DamagedBackup(name, "the manifest does not name it")
        digest, size = hashlib.sha256(), 0
        held: bytes | None = None
        for chunk in self._chunks(name):
            digest.update(chunk)
            size += len(chunk)
            if held is not None:
                yield held
            held = chunk
        if size != expected.size or digest.hexdigest() != expected.sha256:
            raise DamagedBackup(name, "its content is not what the manifest says")
        if held:
            yield held

    def secrets(self) -> dict[str, dict[str, str]]:
        """Returns `settings`, and `files` in Base64, by name."""
        document: dict[str, dict[str, str]] = json.loads(b"".join(self.read(SECRETS)))
        return document

    def verify(self) -> Iterator[int]:
        """Reads every file; yields the bytes of each chunk. Raises DamagedBackup, also for files that the
        manifest does not name.
        """
        known = {*self.manifest.files, HEADER, MANIFEST}
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            if not path.is_dir() and name not in known:
                raise DamagedBackup(name, "the manifest does not name it: it is not of this backup")
        for name in self.manifest.files:
            for chunk in self.read(name):
                yield len(chunk)

    def _chunks(self, name: str) -> Iterator[bytes]:
        return read_sealed(self.path / name, name, self._key)


__all__ = [
    "ARTIFACTS",
    "BASE",
    "DATABASE",
    "IN_FLIGHT",
    "OBJECTS",
    "SECRETS",
    "USAGE",
    "Backup",
    "BackupWriter",
    "Content",
    "Manifest",
]
