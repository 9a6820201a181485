"""Compiles the kernels that a piece of code launches in several threads, before any of them runs.

Triton compiles a kernel when it is first launched: one after the other, on one core. A process that knows
what it will launch has its kernels compiled side by side here. Compiled kernels are kept on disk by Triton,
as always, so that the next process only reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton
from triton import knobs


@contextmanager
def compiled_in_parallel(num_threads: int | None = None) -> Iterator[None]:
    """Compiles, at the end of the block, every kernel that was to be launched in it.

    Within the block a kernel that is not compiled yet is not launched: nothing that the block computes may be
    used. A kernel that cannot be compiled raises Triton's error when it is launched later.

    Args:
        num_threads: None: one for each core that this process may use. Much of a compilation holds no lock
            of the interpreter.
    """
    wanted: dict[tuple[str, str], Any] = {}

    def note(*, key: str, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        """Triton's hook for a kernel that is not compiled; True: do not go on."""
        wanted[fn.name, compile["specialization_data"]] = fn.jit_function
        return True

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = note
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before
    threads = num_threads or len(os.sched_getaffinity(0))
    # Errors raised at the end of Triton's mode would leave it switched on.
    with (
        ThreadPoolExecutor(threads, "kernels") as executor,
        triton.AsyncCompileMode(executor, ignore_errors=True),
    ):
        for (_, specialization), function in wanted.items():
            function.preload(specialization)
