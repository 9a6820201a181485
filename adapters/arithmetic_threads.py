"""Limits the threads that torch computes with, in processes that pack and measure adapters.

By default torch uses one thread per core: several such processes then compete for the same cores, and each
takes as long as all of them. Packing is bound by memory and gains nothing from a second thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

VARIABLE = "OMP_NUM_THREADS"


def bound_arithmetic_threads(threads: int | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Makes torch compute with this many threads; with None as many as OMP_NUM_THREADS says, by default one.

    Raises ValueError if the variable is not a positive integer.
    """
    if threads is None:
        given = environment.get(VARIABLE, "1")
        if not (given.isascii() and given.isdigit() and int(given) > 0):
            raise ValueError(
                f"{VARIABLE} is {given!r}, not a number of threads: set it to 1 or more, or unset it"
            )
        threads = int(given)
    torch.set_num_threads(threads)
