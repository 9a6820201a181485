"""Errors of identity providers. None leaves the console."""

from __future__ import annotations


class ProviderUnavailable(Exception):
    """The provider does not answer, or not as a provider does."""

    def __init__(self, provider: str, reason: str) -> None:
        super().__init__(f"{provider}: {reason}")
        self.provider = provider
        self.reason = reason


class IdentityRejected(Exception):
    """What came does not prove who somebody is. The reason is for the log: it would help nobody else."""

    def __init__(self, provider: str, reason: str) -> None:
        super().__init__(f"{provider}: {reason}")
        self.provider = provider
        self.reason = reason
