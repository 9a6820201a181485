"""Reports the installed version: release, database schemas it works with, and Git commit if known."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from db import schema
from migrations import releases

_SOURCE = Path(__file__).resolve().parents[1]
_GIT_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class Version:
    """What is installed. Schemas are migration numbers."""

    release: str
    schema: str
    """The schema that `rootstock migrate` creates."""
    served_by: str
    """Releases with this schema or a later one may serve `schema`, so they can run beside this release."""
    migrates_from: str
    """The oldest schema that `rootstock migrate` upgrades."""
    commit: str | None


def installed_version() -> Version:
    """Returns the version of this installation. Needs no server and no settings."""
    package = distribution("rootstock")
    return Version(
        release=package.version,
        schema=schema.expected_revision(),
        served_by=schema.oldest_serving_revision(),
        migrates_from=releases.OLDEST_SUPPORTED,
        commit=_commit_installed(package.read_text("direct_url.json")) or _commit_of(_SOURCE),
    )


def _commit_installed(direct_url: str | None) -> str | None:
    """Returns the commit that pip recorded when it installed from a Git URL (PEP 610)."""
    recorded = json.loads(direct_url or "{}").get("vcs_info", {})
    return recorded.get("commit_id")


def _commit_of(source: Path) -> str | None:
    """Returns the commit of a checkout; None for an installed package, or without Git."""
    if not (source / ".git").exists():  # a package inside another project's checkout has that one's commit
        return None
    try:
        asked = subprocess.run(
            ["git", "-C", str(source), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None
