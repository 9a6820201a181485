"""Gives copies of packages the bytecode that there is of the originals.

uv compiles nothing when it installs, and neither does Git. Each of the demo's processes would compile torch,
SQLAlchemy, our own modules and all else anew, at the same time as the others.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

OURS = Path(sysconfig.get_path("purelib"))


def packages_of(environment: Path) -> Path:
    """Where a virtual environment keeps its packages."""
    return environment / OURS.relative_to(sys.prefix)


def share_bytecode(environment: Path, source: Path = OURS) -> int:
    """Links bytecode from `source` to modules that `environment` also has; returns how many files it linked.

    Python uses such a file only while the module has the time and size that it was compiled for.
    """
    packages = packages_of(environment)
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


def share_unchanged(copy: Path, source: Path) -> int:
    """Links bytecode from `source` to the modules below `copy` that have the same text; returns how many.
    They get the same time, too: Python uses bytecode only with the time it was compiled for.
    """
    shared = 0
    for module in copy.rglob("*.py"):
        original = source / module.relative_to(copy)
        compiled = Path(importlib.util.cache_from_source(str(original)))
        if not (compiled.exists() and original.exists()) or original.read_bytes() != module.read_bytes():
            continue
        shutil.copystat(original, module)
        target = Path(importlib.util.cache_from_source(str(module)))
        target.parent.mkdir(exist_ok=True)
        _link(compiled, target)
        shared += 1
    return shared


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:  # another file system
        shutil.copy2(file, target)
