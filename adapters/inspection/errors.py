"""What can be wrong with an uploaded adapter, and with looking at it.

Both carry text from files that nobody trusts, so that text is cut and made printable here, once.
"""

from __future__ import annotations

from adapters.errors import AdapterError

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"

MAX_FIELD = 200
MAX_REASON = 400


class InspectionRefused(AdapterError, ValueError):
    """The adapter cannot be served. `field` is a field of the config, a tensor's key or a file's name."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = printable(field, MAX_FIELD) or "(empty)"
        self.reason = printable(reason, MAX_REASON)
        super().__init__(f"{self.field}: {self.reason}")


class SandboxUnavailable(AdapterError):
    """No process could be started to inspect in: says nothing about the adapter."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"adapters cannot be inspected at the moment: {reason}")
        self.reason = reason


def printable(text: str, longest: int) -> str:
    """`text` on one line of printable ASCII, the rest escaped as Python would; `longest` characters."""
    # Cut first: escaping makes ten characters of one.
    shown = text[: longest + 1].encode("unicode_escape").decode("ascii")
    shown = shown.replace("\\\\", "\\")
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."
