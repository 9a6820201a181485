"""The checkout as git sees it: which files belong to it, and a copy of them to build from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked_files() -> list[str]:
    """Paths of all files that git tracks, or would if they were added, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return sorted(name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())


def copy_to(folder: Path) -> None:
    """Copy those files, and nothing that a build has left in the checkout."""
    for name in tracked_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
