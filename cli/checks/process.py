"""Names the processes of a deployment for `rootstock check --process`. Imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class Process(StrEnum):
    """Processes of a deployment."""

    API = "api"
    WORKER = "worker"
    """`rootstock work` with the queue `rootstock`."""
    JOBS = "jobs"
    """`rootstock work` with the queue `rootstock.jobs`."""
    ENGINE = "engine"
