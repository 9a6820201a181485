"""Records which migrations were released, so that none of them is changed afterwards.

`released.txt` has a line for each: the first release with it, its file, and the SHA-256 of that file. A
database at a released migration has run exactly this file; a correction is a new migration.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import NamedTuple

VERSIONS = Path(__file__).resolve().parent / "versions"
LIST = Path(__file__).resolve().parent / "released.txt"
OLDEST_SUPPORTED = "0020"
"""The oldest schema that this release upgrades, the last of 0.1. Tested from a dump with data."""


class Released(NamedTuple):
    release: str
    file: str
    digest: str


class ChangedMigration(Exception):
    """A released migration was edited, removed or renamed."""

    def __init__(self, released: Released) -> None:
        super().__init__(
            f"{released.file} was released with {released.release} and has changed since: restore it, and "
            "correct it in a new migration"
        )


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def released(listed: Path = LIST) -> list[Released]:
    return [Released(*line.split()) for line in listed.read_text().splitlines() if line]


def verify(listed: Path = LIST, versions: Path = VERSIONS) -> None:
    """Raises ChangedMigration for the first released migration that was edited, removed or renamed."""
    for entry in released(listed):
        path = versions / entry.file
        if not path.exists() or digest(path) != entry.digest:
            raise ChangedMigration(entry)


def record(release: str, listed: Path = LIST, versions: Path = VERSIONS) -> list[str]:
    """Records the migrations that no release has yet as those of `release`; returns their files. Raises
    ChangedMigration.
    """
    verify(listed, versions)
    known = {entry.file for entry in released(listed)}
    files = sorted(path for path in versions.glob("*.py") if path.name not in known)
    with listed.open("a") as output:
        output.writelines(f"{release} {path.name} {digest(path)}\n" for path in files)
    return [path.name for path in files]


def main() -> int:
    parser = argparse.ArgumentParser(description="Record the migrations of a release.")
    parser.add_argument("release", help="its version, such as 0.2.0")
    try:
        added = record(parser.parse_args().release)
    except ChangedMigration as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    print("\n".join(added) or "no migration is new")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
