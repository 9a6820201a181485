"""Runs buildah on a store of images that belongs to the tests, and makes the base image where none is there.

As root buildah needs no daemon and no right to mount with `vfs` and `chroot`. `vfs` keeps a whole copy of
every layer: each stage is built as one layer, and only the base image is kept for the next run of the tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.shipping.checkout import ROOT
from tests.support import debian

BASE = "docker.io/library/python:3.11-slim-bookworm"
"""What deploy/Dockerfile begins with."""
_PACKAGES = "python3.11,python3.11-venv,python3-pip,ca-certificates"
_LIKE_THE_BASE = """
ln -sf python3.11 /usr/bin/python
rm /usr/lib/python3.11/EXTERNALLY-MANAGED
"""


@dataclass(frozen=True)
class Buildah:
    store: Path

    @property
    def command(self) -> list[str]:
        folders = ("--root", str(self.store / "storage"), "--runroot", str(self.store / "run"))
        return ["buildah", "--storage-driver", "vfs", *folders]

    def __call__(self, *arguments: str) -> str:
        """Run a subcommand and return what it prints."""
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, f"buildah {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        listed: list[dict[str, Any]] = json.loads(self("images", "--json") or "null") or []
        return any(image in (name or ()) for name in (one.get("names") for one in listed))

    def config(self, image: str) -> dict[str, Any]:
        """The image's configuration: its user, entry point and command."""
        inspected = json.loads(self("inspect", "--type", "image", image))
        config: dict[str, Any] = inspected["OCIv1"]["config"]
        return config


def prepare(store: Path) -> Buildah:
    """Install what is missing and make the base image. Raises debian.CannotInstall."""
    for program in ("buildah", "mmdebstrap"):
        debian.ensure(lambda name=program: shutil.which(name), program)  # type: ignore[misc]
    store.mkdir(parents=True, exist_ok=True)
    buildah = Buildah(store)
    if not buildah.has(BASE):
        _make_base(buildah)
    return buildah


def _make_base(buildah: Buildah) -> None:
    """Stand in for the base image: no registry is asked. Debian's own Python, called as there."""
    archive = buildah.store / "base.tar"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", archive],
        check=True,
    )
    container = buildah("from", "scratch")
    buildah("add", container, str(archive), "/")
    buildah("run", "--isolation", "chroot", container, "--", "sh", "-euc", _LIKE_THE_BASE)
    buildah("commit", "--rm", container, BASE)
    archive.unlink()


def build(buildah: Buildah, image: str) -> None:
    """`make image`, in that store."""
    flags = "--isolation chroot --pull-never"
    done = subprocess.run(
        ["make", "image", f"IMAGE={image}", f"BUILDAH={' '.join(buildah.command)}", f"BUILD_FLAGS={flags}"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def remove(buildah: Buildah, image: str) -> None:
    """Remove it, and what was left of its stages."""
    buildah("rmi", image)
    buildah("rmi", "--prune")
