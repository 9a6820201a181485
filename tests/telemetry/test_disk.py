"""Free disk space against the configured minimum."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from telemetry.disk import DiskSettings, DiskSpace, disk_space, shortage, start_problem


def test_the_space_is_the_file_systems_also_of_a_directory_to_come(tmp_path: Path) -> None:
    there, to_come = disk_space(tmp_path), disk_space(tmp_path / "a" / "b")
    found = os.statvfs(tmp_path)
    assert there.total_bytes == to_come.total_bytes == found.f_blocks * found.f_frsize
    assert 0 < there.free_bytes <= there.total_bytes
    assert not (tmp_path / "a").exists()


def test_a_shortage_says_what_is_and_what_must_be() -> None:
    assert shortage(DiskSpace(100, 1000), 100) is None
    assert shortage(DiskSpace(99_000_000, 1 << 40), 512_000_000) == "99 MB free, 512 MB required"


def test_a_process_that_should_not_start_is_given_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOTSTOCK_DISK_MIN_FREE_BYTES", str(1 << 62))
    problem = start_problem(tmp_path, DiskSettings().min_free_bytes)
    assert problem is not None
    assert str(tmp_path) in problem
    assert f"ROOTSTOCK_DISK_MIN_FREE_BYTES (now {1 << 62})" in problem
    assert start_problem(tmp_path, 0) is None
