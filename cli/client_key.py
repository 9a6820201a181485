"""Makes the key pair that all clients of encrypted engines share, and rotates it with two of them valid.

The file has one secret key a line. Clients use the first; engines accept all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.errors import CliError
from engine.files import replace_private
from engine.transport.curve import MAX_KEYS, KeyPair


def make_client_key(file: Path) -> str:
    """Returns the public key, in hexadecimal, of the secret key in the file, which is made unless it exists.

    Raises `CliError`.
    """
    try:
        KeyPair.make().write(file)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}: name a file in a folder that can be written") from None
    return _read(file)[0].public.hex()


def public_keys(file: Path) -> str:
    """Returns the public keys that engines accept, as ROOTSTOCK_CLUSTER_CLIENT_KEYS has them. Raises
    `CliError`.
    """
    return ",".join(pair.public.hex() for pair in _read(file))


def add_key(file: Path) -> str:
    """Adds a new key, which is accepted and not used yet; returns the public keys. Raises `CliError`."""
    pairs = _read(file)
    if len(pairs) == MAX_KEYS:
        raise CliError(f"{file} has {MAX_KEYS} keys already: finish the rotation that was begun first")
    return _replace(file, [*pairs, KeyPair.make()])


def switch_key(file: Path) -> str:
    """Makes the other key the one that is used; returns the public keys. Raises `CliError`."""
    return _replace(file, _two(file)[::-1])


def drop_key(file: Path) -> str:
    """Removes the key that is not used; returns the public key that is left. Raises `CliError`."""
    return _replace(file, _two(file)[:1])


def _two(file: Path) -> list[KeyPair]:
    pairs = _read(file)
    if len(pairs) != MAX_KEYS:
        raise CliError(
            f"{file} has one key: begin the rotation with `rootstock rotate client-key add {file}`"
        )
    return pairs


def _read(file: Path) -> list[KeyPair]:
    try:
        return KeyPair.read_all(file)
    except ValueError as error:
        raise CliError(str(error)) from None


def _replace(file: Path, pairs: Sequence[KeyPair]) -> str:
    try:
        replace_private(file, "".join(f"{pair.secret.hex()}\n" for pair in pairs))
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}: name a file in a folder that can be written") from None
    return public_keys(file)
