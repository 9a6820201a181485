"""Bounds the threads that torch computes with, in processes that pack and measure adapters.

torch takes one per core unless told: several such processes side by side then fight for the same cores, and
each takes as long as all of them. Packing is bound by memory and gains nothing from a second thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

VARIABLE = "OMP_NUM_THREADS"


def bound_arithmetic_threads(threads: int | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Compute with this many threads from now on; with None as many as OMP_NUM_THREADS says, one by default.

    Raises ValueError where the variable is no positive integer.
    """
    if threads is None:
        told = environment.get(VARIABLE, "1")
        if not (told.isascii() and told.isdigit() and int(told) > 0):
            raise ValueError(
                f"{VARIABLE} is {told!r}, not a number of threads: set it to 1 or more, or unset it"
            )
        threads = int(told)
    torch.set_num_threads(threads)
