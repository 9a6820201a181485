"""Makes and rotates the key that the platform signs adapters with, with two of them valid for a time.

The file has one private key in PEM, or two: the first signs, signatures of both are accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adapters.signing.key_file import MAX_KEYS, ensure_keys, read_keys, trusted, write_keys
from cli.errors import CliError
from engine.signing.keys import SigningKey, TrustedKeys

KEY_FILE = "ROOTSTOCK_SIGNING_KEY_FILE"
PUBLIC_KEYS = "ROOTSTOCK_SIGNING_PUBLIC_KEYS"
FILE_NAME = "signing.key"
"""In the data folder of `rootstock up`."""


def check_signing_key(file: Path | None) -> None:
    """Raises `CliError` unless the file can be read, if one is set."""
    if file is not None:
        keys_of(file)


def keys_of(file: Path) -> list[SigningKey]:
    """Returns the keys in the file. Raises `CliError`."""
    try:
        return read_keys(file)
    except ValueError as error:
        raise CliError(f"{KEY_FILE}: {error}") from None


def public_keys(file: Path) -> TrustedKeys:
    """Returns the public halves, the current one first. Raises `CliError`."""
    return trusted(keys_of(file))


def make_key(file: Path) -> TrustedKeys:
    """Makes the file unless it exists; returns the public keys. Raises `CliError`."""
    try:
        return trusted(ensure_keys(file))
    except ValueError as error:
        raise CliError(f"{KEY_FILE}: {error}") from None
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}: name a file in a folder that can be written") from None


def add_key(file: Path) -> TrustedKeys:
    """Adds a new key, which is accepted and does not sign yet. Raises `CliError`."""
    keys = keys_of(file)
    if len(keys) == MAX_KEYS:
        raise CliError(f"{file} has {MAX_KEYS} keys already: finish the rotation that was begun first")
    return _replace(file, [*keys, SigningKey.make()])


def switch_key(file: Path) -> TrustedKeys:
    """Makes the other key the one that signs. Raises `CliError`."""
    return _replace(file, _two(file)[::-1])


def drop_key(file: Path) -> TrustedKeys:
    """Removes the key that does not sign. Raises `CliError`."""
    return _replace(file, _two(file)[:1])


def _two(file: Path) -> list[SigningKey]:
    keys = keys_of(file)
    if len(keys) != MAX_KEYS:
        raise CliError(f"{file} has one key: begin the rotation with `rootstock rotate signing-key add`")
    return keys


def _replace(file: Path, keys: Sequence[SigningKey]) -> TrustedKeys:
    try:
        write_keys(file, keys)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}: name a file in a folder that can be written") from None
    return trusted(keys)
