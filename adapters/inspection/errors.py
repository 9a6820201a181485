"""Defines the errors of inspections. They quote untrusted files, so their text is truncated and made
printable.
"""

from __future__ import annotations

from adapters.errors import AdapterError

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"

MAX_FIELD = 200
MAX_REASON = 400


class InspectionRefused(AdapterError, ValueError):
    """The adapter cannot be served. `field` is a config field, a tensor's key or a file name."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = printable(field, MAX_FIELD) or "(empty)"
        self.reason = printable(reason, MAX_REASON)
        super().__init__(f"{self.field}: {self.reason}")


class SandboxUnavailable(AdapterError):
    """No process could be started for the inspection: this does not mean that the adapter is invalid."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"adapters cannot be inspected at the moment: {reason}")
        self.reason = reason


def printable(text: str, longest: int) -> str:
    """Returns `text` as one line of at most `longest` printable ASCII characters, others escaped as in
    Python.
    """
    # Truncated first: escaping can make ten characters of one.
    shown = text[: longest + 1].encode("unicode_escape").decode("ascii")
    shown = shown.replace("\\\\", "\\")
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."
