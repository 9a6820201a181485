"""Gives a new virtual environment the bytecode that this one has of the same packages.

uv compiles nothing when it installs. Each of the demo's processes would compile torch, SQLAlchemy and all
else anew, at the same time as the others.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

OURS = Path(sysconfig.get_path("purelib"))


def share_bytecode(environment: Path, source: Path = OURS) -> int:
    """Links bytecode from `source` to modules that `environment` also has; returns how many files it linked.

    Python uses such a file only while the module has the time and size that it was compiled for.
    """
    packages = environment / source.relative_to(sys.prefix)
    shared = 0
    for folder in source.rglob("__pycache__"):
        target = packages / folder.relative_to(source)
        if not target.parent.is_dir():
            continue
        target.mkdir(exist_ok=True)
        for file in folder.glob("*.pyc"):
            if not (target / file.name).exists():
                _link(file, target / file.name)
                shared += 1
    return shared


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:  # another file system
        shutil.copy2(file, target)
