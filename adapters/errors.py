"""What can be wrong with a model's name or an adapter. Errors carry data, not HTTP."""

from __future__ import annotations


class AdapterError(Exception):
    """Any of the below."""


class ModelNotFound(AdapterError):
    """Absent, disabled, or another tenant's: the same error with the same data, which is only what was asked
    for.
    """

    def __init__(self, model: str) -> None:
        super().__init__(f"the model {model!r} does not exist")
        self.model = model


class ModelNotReady(AdapterError):
    """The tenant's own, but not servable now: `state` says why."""

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
    """Absent, deleted, or another tenant's, which looks the same."""

    def __init__(self, adapter_id: str) -> None:
        super().__init__(f"there is no adapter {adapter_id[:80]!r}")
        self.adapter_id = adapter_id


class VersionNotReady(AdapterError):
    """The version cannot be made the active one: `state` says why."""

    def __init__(self, adapter: str, version: int, state: str) -> None:
        super().__init__(f"version {version} of the adapter {adapter!r} is not ready: {state}")
        self.adapter = adapter
        self.version = version
        self.state = state
        self.field = "version"


class NothingToRollBackTo(AdapterError):
    """No other version was active before, or the one that was cannot serve any more."""

    def __init__(self, adapter: str) -> None:
        super().__init__(f"the adapter {adapter!r} has no earlier version to go back to")
        self.adapter = adapter


class InvalidAdapter(AdapterError):
    """What was asked for cannot be: `field` is the request's."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class AdapterLimitReached(AdapterError):
    """The tenant's plan allows no more adapters."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"your plan allows {limit} adapters: delete one, or ask for a larger plan")
        self.limit = limit
