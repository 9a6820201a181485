"""Sealed files give back what was written, and nothing when a byte of them differs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cli.backup.errors import DamagedBackup
from cli.backup.sealed_files import CHUNK, BackupKey, Content, SealedWriter, read_operator_key, read_sealed
from cli.errors import CliError

KEY = BackupKey(bytes(range(32)))


def write(path: Path, content: bytes, name: str = "objects/a") -> Content:
    writer = SealedWriter(path, name, KEY)
    writer.write(content[:3])
    writer.write(content[3:])
    return writer.finish()


def read(path: Path, name: str = "objects/a", key: BackupKey = KEY) -> bytes:
    return b"".join(read_sealed(path, name, key))


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_what_was_written_is_read(tmp_path: Path, size: int) -> None:
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    assert write(tmp_path / "a", content) == Content(size, hashlib.sha256(content).hexdigest())
    assert read(tmp_path / "a") == content


def test_nothing_of_it_is_in_clear(tmp_path: Path) -> None:
    write(tmp_path / "a", b"a secret of the service" * 100)
    assert b"secret" not in (tmp_path / "a").read_bytes()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    write(tmp_path / "a", b"short")
    whole = (tmp_path / "a").read_bytes()
    for place in range(len(whole)):
        (tmp_path / "a").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedBackup, match="objects/a"):
            read(tmp_path / "a")


@pytest.mark.parametrize("kept", [0, 10, 24, 24 + CHUNK + 16, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    """Also between two chunks, each of which is whole."""
    write(tmp_path / "a", bytes(2 * CHUNK))
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole[:kept])
    with pytest.raises(DamagedBackup, match="objects/a"):
        read(tmp_path / "a")


def test_a_file_cannot_take_the_place_of_another(tmp_path: Path) -> None:
    write(tmp_path / "a", b"one")
    with pytest.raises(DamagedBackup, match="objects/b: it is damaged, cut off, or of another backup"):
        read(tmp_path / "a", "objects/b")
    with pytest.raises(DamagedBackup, match="objects/a"):
        read(tmp_path / "a", key=BackupKey(bytes(32)))
    with pytest.raises(DamagedBackup, match="objects/c: it is missing"):
        read(tmp_path / "c", "objects/c")


def test_the_operators_key_is_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"0123456789abcdef\n")
    assert read_operator_key(path) == b"0123456789abcdef"
    path.write_bytes(b"short\n")
    with pytest.raises(CliError, match="holds 5 characters: use at least 16"):
        read_operator_key(path)
    with pytest.raises(CliError, match="cannot be read: No such file"):
        read_operator_key(tmp_path / "nowhere")
