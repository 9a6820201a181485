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
