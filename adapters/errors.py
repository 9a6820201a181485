"""Defines the errors of model names and adapters. They carry data, not HTTP status codes."""

from __future__ import annotations


class AdapterError(Exception):
    """Base of the adapter errors."""


class ModelNotFound(AdapterError):
    """The model does not exist, is disabled, or belongs to another tenant: indistinguishable on purpose."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the model {model!r} does not exist")
        self.model = model


class ModelNotReady(AdapterError):
    """The tenant's own model, which cannot be served now: `state` says why."""

    def __init__(self, model: str, state: str) -> None:
        super().__init__(f"the model {model!r} is not ready: {state}")
        self.model = model
        self.state = state


class VersionNotFound(AdapterError):
    def __init__(self, adapter: str, version: int) -> None:
        super().__init__(f"the adapter {adapter!r} has no version {version}")
        self.adapter = adapter
        self.version = version


class AdapterNotFound(AdapterError):
    """The adapter does not exist, is deleted, or belongs to another tenant: indistinguishable on purpose."""

    def __init__(self, adapter_id: str) -> None:
        super().__init__(f"there is no adapter {adapter_id[:80]!r}")
        self.adapter_id = adapter_id


class VersionNotReady(AdapterError):
    """The version cannot be activated: `state` says why."""

    def __init__(self, adapter: str, version: int, state: str) -> None:
        super().__init__(f"version {version} of the adapter {adapter!r} is not ready: {state}")
        self.adapter = adapter
        self.version = version
        self.state = state
        self.field = "version"


class NoPreviousVersion(AdapterError):
    """No other version was active before, or the one that was can no longer be served."""

    def __init__(self, adapter: str) -> None:
        super().__init__(f"the adapter {adapter!r} has no earlier version to go back to")
        self.adapter = adapter


class InvalidAdapter(AdapterError):
    """The request is invalid: `field` names its field."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class AdapterLimitReached(AdapterError):
    """The tenant's plan allows no more adapters."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"your plan allows {limit} adapters: delete one, or ask for a larger plan")
        self.limit = limit
