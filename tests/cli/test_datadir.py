"""One owner per directory, and secrets that only the owner reads."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cli.datadir import DataDir, read_json, write_private_json
from cli.errors import CliError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_second_owner_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    taken = rf"in use by another rootstock up \(process {os.getpid()}\)"
    with DataDir(tmp_path / "var"), pytest.raises(CliError, match=taken), DataDir(tmp_path / "var"):
        pass
    with DataDir(tmp_path / "var"):
        pass


def test_secrets_are_kept_and_private(tmp_path: Path) -> None:
    old = os.umask(0o000)
    try:
        with DataDir(tmp_path / "var") as data:
            first, second = data.secret("keys"), data.secret("console")
        assert mode(tmp_path / "var") == 0o700
        assert mode(tmp_path / "var" / "secrets.json") == 0o600
    finally:
        os.umask(old)
    assert len(first) == 64
    assert first != second
    with DataDir(tmp_path / "var") as data:
        assert data.secret("keys") == first
        assert data.secret("console") == second


@pytest.mark.parametrize("text", ["{", "[]", '{"keys": 5}', '{"keys": "short"}'])
def test_damaged_secrets_are_never_replaced(tmp_path: Path, text: str) -> None:
    with DataDir(tmp_path) as data:
        (tmp_path / "secrets.json").write_text(text)
        with pytest.raises(CliError, match=r"secrets\.json is damaged"):
            data.secret("keys")
    assert (tmp_path / "secrets.json").read_text() == text


def test_a_private_file_replaces_a_public_one(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    path.write_text("{}")
    path.chmod(0o644)
    write_private_json(path, {"api_key": "x"})
    assert mode(path) == 0o600
    assert read_json(path) == {"api_key": "x"}
    assert os.listdir(tmp_path) == ["demo.json"]


def test_a_data_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("")
    with pytest.raises(CliError, match=r"cannot use .*var as --data"), DataDir(tmp_path / "var"):
        pass


def test_a_lock_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(CliError, match=r"cannot use .* as --data: Is a directory"), DataDir(tmp_path):
        pass
