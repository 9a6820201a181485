"""Where servers of tests keep their data."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.scratch import PREFIX, put_temporary_directories_in_memory, scratch_directory

ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import os, pathlib, signal, sys
from tests.support.scratch import scratch_directory
with scratch_directory(pathlib.Path(sys.argv[1]), 0) as directory:
    (directory / "data").write_text("of somebody who ends at once")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_directory_is_ones_own_and_gone_afterwards(tmp_path: Path) -> None:
    with scratch_directory(tmp_path, 0) as mine, scratch_directory(tmp_path, 0) as another:
        assert mine.parent == another.parent == tmp_path
        assert mine != another
        (mine / "file").touch()
    assert not list(tmp_path.glob(f"{PREFIX}*/"))


def test_what_a_killed_process_left_is_taken_away_and_nothing_else(tmp_path: Path) -> None:
    other = tmp_path / f"{PREFIX}others"
    other.mkdir()
    with scratch_directory(tmp_path, 0) as held:
        ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
        assert ended.returncode == -signal.SIGKILL
        (left,) = set(tmp_path.glob(f"{PREFIX}*/")) - {held, other}
        assert os.listdir(left)
        with scratch_directory(tmp_path, 0) as mine:
            assert set(tmp_path.glob(f"{PREFIX}*/")) == {held, other, mine}


@pytest.mark.parametrize("place", ["absent", "too small"])
def test_without_room_in_memory_it_is_on_disk(place: str, tmp_path: Path) -> None:
    memory, room_bytes = (tmp_path / "absent", 0) if place == "absent" else (tmp_path, 1 << 62)
    with scratch_directory(memory, room_bytes) as directory:
        assert directory.parent == Path(tempfile.gettempdir())


def test_temporary_directories_are_in_memory_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", "")  # so that it is put back
    del os.environ["PYTEST_DEBUG_TEMPROOT"]
    put_temporary_directories_in_memory(tmp_path, 1 << 60)
    assert "PYTEST_DEBUG_TEMPROOT" not in os.environ
    put_temporary_directories_in_memory(tmp_path, 0)
    assert os.environ["PYTEST_DEBUG_TEMPROOT"] == str(tmp_path)
    (tmp_path / "other").mkdir()
    put_temporary_directories_in_memory(tmp_path / "other", 0)
    assert os.environ["PYTEST_DEBUG_TEMPROOT"] == str(tmp_path)
