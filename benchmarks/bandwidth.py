"""How fast a device copies memory within itself: what floors of bytes are divided by.

Owns the measurement. Refuses to know what it is compared with.
"""

from __future__ import annotations

import time
from statistics import median

import torch


def copy_bandwidth(device: torch.device, num_bytes: int | None = None, repeats: int = 9) -> float:
    """Bytes read plus bytes written per second by a copy within the device's memory; the median copy."""
    on_gpu = device.type == "cuda"
    count = num_bytes if num_bytes is not None else (4 << 30 if on_gpu else 64 << 20)
    source = torch.empty(count, dtype=torch.uint8, device=device).random_(256)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(repeats + 1):
        _wait(device)
        began = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - began)
    del source, target
    if on_gpu:
        torch.cuda.empty_cache()  # it is for weights now
    return 2 * count / median(seconds[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
