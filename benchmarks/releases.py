"""Provides other releases than the installed one to benchmarks: their commands, run from an unpacked commit.

A clone needs no tags: the commit of a release is the one that set the version in `pyproject.toml`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.programs import CHECKOUT


class UnknownRelease(Exception):
    """The release cannot be had; the message says why."""


@dataclass(frozen=True)
class Release:
    """A release that can be run."""

    name: str
    """The start of its commit, or the interpreter that it is installed for."""
    python: Path
    folder: Path | None = None
    """Its packages; None where it is installed."""

    def command(self, *words: str) -> tuple[str, ...]:
        """Returns the command line of `rootstock` with these words."""
        return (str(self.python), "-m", "cli.main", *words)

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Returns `variables` with what makes Python import this release's packages and no other's."""
        found = {name: value for name, value in variables.items() if name != "PYTHONPATH"}
        return found if self.folder is None else {**found, "PYTHONPATH": str(self.folder)}


def head() -> Release:
    """Returns the release that runs this benchmark."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD").decode().strip()
    except UnknownRelease:
        name = "installed"
    return Release(name, Path(sys.executable), CHECKOUT)


def last_released_commit(repository: Path = CHECKOUT) -> str:
    """Returns the commit that set the present version in `pyproject.toml`. Raises UnknownRelease in a shallow
    clone, and without Git.
    """
    if _git("rev-parse", "--is-shallow-repository", repository=repository).strip() == b"true":
        raise UnknownRelease(
            "the clone is shallow and may lack the last release: run `git fetch --unshallow`"
        )
    found = _git("log", "-1", "--format=%H", "-G^version = ", "--", "pyproject.toml", repository=repository)
    if not found.strip():
        raise UnknownRelease("no commit set a version in pyproject.toml")
    return found.decode().strip()


def unpacked(commit: str, folder: Path, repository: Path = CHECKOUT) -> Release:
    """Unpacks a commit into `folder`, which is created. It runs with this interpreter and its libraries.
    Raises UnknownRelease.
    """
    name = _git("rev-parse", "--short=12", f"{commit}^{{commit}}", repository=repository).decode().strip()
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    archive.write_bytes(_git("archive", "--format=tar", name, repository=repository))
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", folder], check=True, timeout=60)
    archive.unlink()
    return Release(name, Path(sys.executable), folder)


def chosen(option: str, folder: Path) -> Release:
    """Returns the release of a command-line option: an interpreter's path, a commit, or empty for the last
    release. Raises UnknownRelease.
    """
    path = Path(option)
    if option and path.is_file():
        return Release(str(path), path.absolute())
    return unpacked(option or last_released_commit(), folder)


def _git(*arguments: str, repository: Path = CHECKOUT) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, timeout=60)
    except OSError as error:
        raise UnknownRelease(f"git cannot be run: {error.strerror}") from error
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise UnknownRelease(f"git {arguments[0]}: {reason[-1] if reason else 'failed'}")
    return done.stdout
