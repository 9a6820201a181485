"""Defines the errors of identity providers. None leaves the console."""

from __future__ import annotations


class ProviderUnavailable(Exception):
    """The provider does not answer, or not as a provider does."""

    def __init__(self, provider: str, reason: str) -> None:
        super().__init__(f"{provider}: {reason}")
        self.provider = provider
        self.reason = reason


class IdentityRejected(Exception):
    """The provider's answer does not prove an identity. The reason is only logged."""

    def __init__(self, provider: str, reason: str) -> None:
        super().__init__(f"{provider}: {reason}")
        self.provider = provider
        self.reason = reason
