"""What keeps a calibration from being done; what it finds is in its report, not here."""

from __future__ import annotations

from adapters.errors import AdapterError


class SamplesInvalid(AdapterError):
    """The file of samples cannot be used. `line` is 0 where the file as a whole is at fault."""

    def __init__(self, line: int, field: str, reason: str) -> None:
        where = " ".join(part for part in (f"line {line}" if line else "", field) if part)
        super().__init__(f"{where}: {reason}" if where else reason)
        self.line = line
        self.field = where or None
        self.reason = reason


class ServingUnavailable(AdapterError):
    """The engine did not take, or did not finish, a request for as long as was waited. Trying again helps."""


class ServingRefused(AdapterError):
    """The engine will not score these samples with this adapter, however often it is asked."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"the engine refuses to score: {message} ({code})")
        self.code = code


class SourceInvalid(AdapterError):
    """The uploaded adapter is not what was inspected and packed. `field` is a file's name or a tensor's."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
