"""Installs pinned client packages into folders of their own below `var/clients`, once for each list of pins.

Some clients need other versions of packages than the platform does, as their users may. The pins of a Python
client are `NAME.txt`, made from `NAME.in` by `make constraints`; those of the Node clients are
`package-lock.json`.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cli.programs import CHECKOUT

PINS = Path(__file__).parent
ROOT = CHECKOUT / "var/clients"
INSTALL_S = 150


def python(name: str) -> Path:
    """Returns the interpreter of an environment with the packages of `NAME.txt`."""
    pins = PINS / f"{name}.txt"
    folder = _folder(name, pins)
    interpreter = folder / "bin/python"
    uv = str(Path(sys.executable).with_name("uv"))
    _once(
        folder,
        [uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "-q", "--python", str(interpreter), "-r", str(pins)],
    )
    return interpreter


def node() -> Path:
    """Returns a folder from which programs import the packages of `package-lock.json`."""
    folder = _folder("node", PINS / "package-lock.json")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINS / name, folder / name)
    _once(folder, ["npm", "ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"])
    return folder


def _folder(name: str, pins: Path) -> Path:
    return ROOT / f"{name}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}"


def _once(folder: Path, *commands: Sequence[str]) -> None:
    """Run the commands that fill `folder`, unless they have succeeded before."""
    done = folder.with_name(f"{folder.name}.installed")
    ROOT.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return
        for command in commands:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
            assert ran.returncode == 0, f"{' '.join(command)}:\n{ran.stdout}{ran.stderr}"
        done.touch()
