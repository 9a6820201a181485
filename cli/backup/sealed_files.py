"""Encrypts the files of a backup with the operator's key, in chunks; reading detects every change.

AES-256-GCM over chunks of 1 MiB. A chunk's nonce is its number and whether it is the last, so that chunks
cannot be reordered, repeated or cut off. Each file has a key of its own, derived from the backup's key, a
random salt and the file's name, so that a file cannot take another's place, nor come from another backup.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cli.backup.errors import DamagedBackup
from cli.errors import CliError

CHUNK = 1 << 20
"""Bytes that are encrypted at once."""
_MAGIC = b"RSBACK01"
_SALT_LEN = 16
_TAG_LEN = 16
MIN_KEY_LEN = 16
"""Characters of a key file: fewer could be guessed."""
_SCRYPT = {"n": 1 << 15, "r": 8, "p": 1, "maxmem": 1 << 26}


@dataclass(frozen=True, slots=True)
class BackupKey:
    """The key of one backup, derived from the operator's key and the backup's salt."""

    master: bytes = field(repr=False)

    @classmethod
    def derive(cls, operator_key: bytes, salt: bytes) -> BackupKey:
        return cls(hashlib.scrypt(operator_key, salt=salt, dklen=32, **_SCRYPT))

    @property
    def check(self) -> str:
        """Returns what tells this key from others, and nothing else of it."""
        return hmac.digest(self.master, b"check", hashlib.sha256)[:8].hex()

    def cipher(self, name: str, salt: bytes) -> AESGCM:
        """Returns the cipher of one file."""
        return AESGCM(hmac.digest(self.master, b"file" + salt + name.encode(), hashlib.sha256))


def read_operator_key(path: Path) -> bytes:
    """Returns the content of the operator's key file. Raises `CliError`."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise CliError(f"--key-file {path} cannot be read: {error.strerror}") from error
    if len(key) < MIN_KEY_LEN:
        raise CliError(
            f"--key-file {path} holds {len(key)} characters: use at least {MIN_KEY_LEN}, such as those of "
            "`openssl rand -hex 32`"
        )
    return key


@dataclass(frozen=True, slots=True)
class Content:
    """Size and digest of what a file holds, before encryption."""

    size: int
    sha256: str


class SealedWriter:
    """Encrypts one file. `finish` makes it complete and durable: without that, it cannot be read."""

    def __init__(self, path: Path, name: str, key: BackupKey) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        salt = os.urandom(_SALT_LEN)
        self._cipher = key.cipher(name, salt)
        self._file: BinaryIO = open(path, "wb", opener=_private)  # noqa: SIM115
        self._file.write(_MAGIC + salt)
        self._pending = bytearray()
        self._number = 0
        self._size = 0
        self._digest = hashlib.sha256()

    @property
    def size(self) -> int:
        """Returns the bytes written so far."""
        return self._size

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        self._size += len(data)
        self._pending += data
        while len(self._pending) > CHUNK:  # the last chunk is only known at the end
            self._seal(bytes(self._pending[:CHUNK]), is_last=False)
            del self._pending[:CHUNK]

    def finish(self) -> Content:
        self._seal(bytes(self._pending), is_last=True)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return Content(self._size, self._digest.hexdigest())

    def close(self) -> None:
        """Closes the file, which stays incomplete unless it was finished."""
        self._file.close()

    def _seal(self, chunk: bytes, *, is_last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, is_last), chunk, None))
        self._number += 1


def read_sealed(path: Path, name: str, key: BackupKey) -> Iterator[bytes]:
    """Yields the content of a sealed file, each chunk verified. Raises DamagedBackup, at a file that was cut
    off before its last chunk is yielded.
    """
    try:
        with path.open("rb") as file:
            header = file.read(len(_MAGIC) + _SALT_LEN)
            if len(header) != len(_MAGIC) + _SALT_LEN or not header.startswith(_MAGIC):
                raise DamagedBackup(name, "it is not a file of a backup")
            cipher = key.cipher(name, header[len(_MAGIC) :])
            chunk, number = file.read(CHUNK + _TAG_LEN), 0
            while True:
                following = file.read(CHUNK + _TAG_LEN)
                try:
                    yield cipher.decrypt(_nonce(number, is_last=not following), chunk, None)
                except InvalidTag:
                    raise DamagedBackup(name, "it is damaged, cut off, or of another backup") from None
                if not following:
                    return
                chunk, number = following, number + 1
    except FileNotFoundError:
        raise DamagedBackup(name, "it is missing") from None
    except OSError as error:
        raise DamagedBackup(name, f"it cannot be read ({error.strerror})") from error


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\1" if is_last else b"\0")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
