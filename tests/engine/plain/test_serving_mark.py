"""The mark of an engine that serves names a process, and no other one with the same id."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from engine.serving_mark import NAME, write_serving_mark


def test_it_names_this_process_as_proc_does(tmp_path: Path) -> None:
    write_serving_mark(tmp_path)
    pid, began = (tmp_path / NAME).read_text().split()
    assert int(pid) == os.getpid()
    asked = subprocess.run(
        ["cut", "-d", " ", "-f", "22", f"/proc/{pid}/stat"], capture_output=True, text=True
    )
    assert asked.stdout.strip() == began  # as the chart's probe asks
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_another_process_replaces_it(tmp_path: Path) -> None:
    write_serving_mark(tmp_path)
    before = (tmp_path / NAME).read_text()
    code = (
        "import sys; from pathlib import Path; from engine.serving_mark import write_serving_mark;"
        "write_serving_mark(Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / NAME).read_text() != before


def test_a_folder_that_is_not_there_stops_no_engine(tmp_path: Path) -> None:
    write_serving_mark(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
