"""Marks in a file of the engine's folder that its base is loaded, for readiness probes that start no Python.

The file holds the process id and the time of the process's start, as /proc/PID/stat has it in field 22: a
file that an ended process left behind says nothing about the next one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NAME = "serving"


def write_serving_mark(folder: Path) -> None:
    """Writes the mark of this process. Without /proc, or on a full disk, there is none."""
    with contextlib.suppress(OSError):
        fields_after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        being_written = folder / f"{NAME}.new"
        being_written.write_text(f"{os.getpid()} {fields_after_name[19]}\n")
        being_written.replace(folder / NAME)
