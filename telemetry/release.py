"""Names the installed release in spans, logs and records."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_release() -> str:
    """Returns the package's version; "unknown" in a checkout that is not installed."""
    try:
        return version("rootstock")
    except PackageNotFoundError:
        return "unknown"
