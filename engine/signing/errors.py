"""Defines why a signature is refused. `field` names the part of it, or the file, at fault."""

from __future__ import annotations


class SignatureError(ValueError):
    """A signature does not hold."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
