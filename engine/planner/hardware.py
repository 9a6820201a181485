"""Lists the GPUs that capacity can be planned for, and how long several of them take for an all-reduce."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU."""

    name: str
    copy_bandwidth: float
    """Bytes per second of a copy within its memory, read plus written (`kernels.timing.copy_bandwidth`)."""
    peak_flops: float
    """Floating-point operations per second in FP8, dense, by the vendor; half as many in bf16."""
    memory_bytes: int
    """As the driver reports it."""


GPUS = {
    "h200": Gpu("NVIDIA H200", 4.256e12, 1.979e15, 143_771 << 20),
    "h100": Gpu("NVIDIA H100 80GB", 3.01e12, 1.979e15, 81_559 << 20),
}
"""By the name that `--gpu` takes. The step model's constants are fitted on an H200; for an H100 only these
figures change."""

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)

_REDUCED_BYTES = np.array([16_384, 524_288, 4_194_304, 33_554_432], dtype=np.float64)
_REDUCE_US = {
    2: np.array([3.7, 5.1, 14.0, 96.0]),
    4: np.array([6.9, 9.8, 28.5, 172.0]),
    8: np.array([9.3, 12.5, 32.9, 208.0]),
}
"""Microseconds inside a CUDA graph. 2 GPUs: what a norm takes longer that reads both parts (2 H200,
`benchmarks/results/h200-x2/peer-sums.json`). 4 and 8: a two-shot all-reduce over symmetric memory, which no
whole step has been measured with (8 H200 of one host)."""

MEETING_SECONDS = 2.6e-6
"""For the GPUs of a host to wait for one another, as measured there."""


def all_reduce_seconds(num_bytes: ArrayLike, num_gpus: int) -> NDArray[np.float64]:
    """Returns the seconds of one all-reduce of `num_bytes` over `num_gpus` GPUs of one host.

    Between measured sizes the time is interpolated on logarithmic axes; beyond the largest it grows with the
    bytes.
    """
    sizes = np.maximum(np.asarray(num_bytes, dtype=np.float64), 1.0)
    if num_gpus == 1:
        return np.zeros_like(sizes)
    times = _REDUCE_US[num_gpus]
    within = np.exp(np.interp(np.log(sizes), np.log(_REDUCED_BYTES), np.log(times)))
    return 1e-6 * within * np.maximum(1.0, sizes / _REDUCED_BYTES[-1])
