"""Defines the errors of signatures of versions."""

from __future__ import annotations

from adapters.errors import AdapterError


class SignatureNotFound(AdapterError):
    """The version has no signature yet."""

    def __init__(self, adapter: str, version: int) -> None:
        super().__init__(f"version {version} of the adapter {adapter!r} is not signed yet")
        self.adapter = adapter
        self.version = version
