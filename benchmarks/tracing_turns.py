"""Runs an API process that records spans in every second turn of requests, and counts the CPU time of each.

    python -m benchmarks.tracing_turns FILE

Turns follow each other in the same process, so that what differs between two processes (the addresses of
their objects, their seeds) and what else runs on the machine are in both kinds alike. The exporter works for
earlier turns: its thread's time is counted apart. `benchmarks.tracing` starts it, and reads FILE when it has
ended.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

import api.app
import api.main
from api.edge import Edge, Receive, Scope, Send
from api.settings import ApiSettings

REQUESTS_A_TURN = 400
MEASURED = "/v1/chat/completions"
_EXPORTER = "OtelBatchSpanRecordProcessor"
"""The name that the SDK gives its thread."""


class Turns(msgspec.Struct):
    """What a process wrote: seconds of CPU by request of each turn; turns with the same place are a pair."""

    off: list[float] = []
    on: list[float] = []
    exporter_cpu: float = 0.0
    """Seconds of the exporter's thread."""
    requests_on: int = 0
    """In the turns that recorded spans, those of the last, unfinished pair among them."""


class TurningEdge(Edge):
    """Begins a turn every `REQUESTS_A_TURN` requests. The first request measured begins the first pair."""

    turns = Turns()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._recorder = self._tracing
        self._rng = random.Random(0)
        self._order: list[bool] = []
        self._pair: dict[bool, float] = {}
        self._left = 0
        self._began = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == MEASURED:
            if not self._left:
                self._turn()
            self._left -= 1
            self.turns.requests_on += self._tracing is not None
        await super().__call__(scope, receive, send)

    def _turn(self) -> None:
        now = self._spent()
        if self._order:
            self._pair[self._order.pop(0)] = (now - self._began) / REQUESTS_A_TURN
        if not self._order:
            if self._pair:
                self.turns.off.append(self._pair.pop(False))
                self.turns.on.append(self._pair.pop(True))
            self._order = self._rng.sample([False, True], 2)
        self._tracing = self._recorder if self._order[0] else None
        self._left, self._began = REQUESTS_A_TURN, now

    def _spent(self) -> float:
        """Returns the CPU seconds of all threads but the exporter's."""
        exporter = exporter_cpu()
        self.turns.exporter_cpu = exporter
        return time.process_time() - exporter


def exporter_cpu() -> float:
    """Returns the CPU seconds of the thread that exports spans."""
    (thread,) = [one for one in threading.enumerate() if one.name == _EXPORTER]
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def main() -> int:
    api.app.Edge = TurningEdge  # type: ignore[assignment, misc]
    status = api.main.run(ApiSettings())  # type: ignore[call-arg]
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(TurningEdge.turns))
    return status


if __name__ == "__main__":
    sys.exit(main())
