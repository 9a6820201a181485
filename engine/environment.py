"""Describes what a scheduler receives from its process: the engine's identity, clocks and random seeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from secrets import randbits


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """One start of one engine. Tests replace the clocks and the seeds."""

    engine_id: str
    """Name of the deployment slot, across restarts."""
    incarnation: str
    """Unique to this start."""
    clock: Callable[[], float] = time.time
    """Returns Unix seconds."""
    monotonic: Callable[[], float] = time.monotonic
    """Returns seconds by which waits are measured."""
    draw_seed: Callable[[], int] = lambda: randbits(63)
    """Returns a seed for a request that has none."""
