"""Defines the errors that prevent a calibration; its findings are in its report."""

from __future__ import annotations

from adapters.errors import AdapterError


class SamplesInvalid(AdapterError):
    """The file of samples cannot be used. `line` is 0 if no single line is wrong."""

    def __init__(self, line: int, field: str, reason: str) -> None:
        where = " ".join(part for part in (f"line {line}" if line else "", field) if part)
        super().__init__(f"{where}: {reason}" if where else reason)
        self.line = line
        self.field = where or None
        self.reason = reason


class ServingUnavailable(AdapterError):
    """The engine did not accept or finish a request in time. A retry may succeed."""


class ServingRefused(AdapterError):
    """The engine rejects scoring these samples with this adapter; a retry would not help."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"the engine refuses to score: {message} ({code})")
        self.code = code


class SourceInvalid(AdapterError):
    """The uploaded adapter differs from what was inspected and packed. `field` names a file or a tensor."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
