"""What can go wrong between a client and Stripe, on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["rate_limited", "error", "unreachable", "lost", "hangs"]
"""429; 500, nothing done; the connection cut, nothing done; done, and the answer lost; done, and the answer
after longer than any client waits.
"""


@dataclass
class Fault:
    kind: Kind
    path: str = "/v1/"
    """How the paths begin that it befalls."""
    method: str = ""
    """Empty: any."""
    times: int = 1
    """Requests it befalls; -1 is all until it is taken away."""

    def befalls(self, method: str, path: str) -> bool:
        return self.times != 0 and path.startswith(self.path) and self.method in ("", method)

    def use(self) -> None:
        if self.times > 0:
            self.times -= 1
