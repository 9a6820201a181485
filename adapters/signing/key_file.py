"""Reads and writes the file with the platform's signing keys: the first signs, all are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.files import replace_private
from engine.signing.keys import SigningKey, TrustedKeys, pem_blocks

MAX_KEYS = 2


def read_keys(file: Path) -> list[SigningKey]:
    """Returns the keys, the one to use first. Raises ValueError naming the file."""
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not PEM"
        raise ValueError(f"{file}: {reason}") from error
    try:
        keys = [SigningKey.from_pem(block) for block in pem_blocks(text)]
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if not 1 <= len(keys) <= MAX_KEYS:
        raise ValueError(f"{file}: {len(keys)} keys in PEM, expected one, or two during a rotation")
    return keys


def write_keys(file: Path, keys: Sequence[SigningKey]) -> None:
    """Replaces the file, which only its owner can read. Raises OSError."""
    replace_private(file, "".join(key.pem for key in keys))


def ensure_keys(file: Path) -> list[SigningKey]:
    """Returns the keys; makes the file with a new one if there is none. Raises ValueError, OSError."""
    if not file.exists():
        write_keys(file, [SigningKey.make()])
    return read_keys(file)


def trusted(keys: Sequence[SigningKey]) -> TrustedKeys:
    return TrustedKeys(key.public for key in keys)
