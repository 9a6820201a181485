"""Kernels that begin while the one before them ends, and weights that are in the L2 cache when they are asked for.

Between two kernels of one stream the memory is idle for a microsecond or two: the last blocks end, the next
kernel is launched, its first loads travel. Programmatic dependent launch lets a kernel's blocks start as soon
as all blocks of the kernel before it have started or ended; it then does what needs nothing of that kernel
(read weights), waits (`gdc_wait`), and goes on.

Rules, because a mistake here is a race that shows once a week: a kernel launched with `launch_pdl=True` calls
`gdc_wait` in every block that reads or writes what an earlier kernel touches, before it does; what it reads
before the wait is never written while the engine runs; and it may call `gdc_launch_dependents` whenever it
likes, because whoever starts early waits for its end all the same.

Owns when that is possible and how bytes are fetched. Refuses to know kernels.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor


def starts_early(tensor: Tensor) -> bool:
    """Whether kernels on this tensor's device are launched as dependents: compute capability 9.0 and later."""
    return tensor.is_cuda and _has_dependent_launch(tensor.device.index)


@cache
def _has_dependent_launch(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= (9, 0)


@triton.jit
def fetch_into_l2(address_P, NUM_BYTES: tl.constexpr):
    """Semantics: cache[address[p] : address[p] + NUM_BYTES] for all p; no result, nothing waits for it.

    Args:
        address_P: int64, multiples of 16; one per thread of the block, or they are asked for more than once.
        NUM_BYTES: a multiple of 16.

    Source: PTX ISA, cp.async.bulk.prefetch.L2 (sm_90 and later).
    """
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [address_P, NUM_BYTES],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
