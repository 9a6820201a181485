"""Defines the result of one check: a name, a status and one sentence for the operator."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Status of a check. Missing and failed ones keep the service from working; the others do not."""

    OK = "ok"
    OFF = "off"
    """An optional feature that is not configured."""
    WARNING = "warning"
    MISSING = "missing"
    """A required setting is not set."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: Status
    detail: str
    """Problem, value and remedy; or what was found to be in order. Contains no secret."""

    @property
    def is_blocking(self) -> bool:
        return self.status in (Status.MISSING, Status.FAILED)
