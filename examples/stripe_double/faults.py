"""Describes faults between a client and Stripe, to be injected on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["rate_limited", "error", "unreachable", "lost", "hangs"]
"""429; 500 without effect; connection cut without effect; done but the response lost; done, and the response
later than any client waits.
"""


@dataclass
class Fault:
    kind: Kind
    path: str = "/v1/"
    """Prefix of the affected paths."""
    method: str = ""
    """Empty: any method."""
    times: int = 1
    """Number of affected requests; -1: all until the fault is removed."""

    def befalls(self, method: str, path: str) -> bool:
        return self.times != 0 and path.startswith(self.path) and self.method in ("", method)

    def use(self) -> None:
        if self.times > 0:
            self.times -= 1
