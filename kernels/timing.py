"""Times kernels, and measures what the device could do at best.

CUDA graph replays on a GPU, so that launches cost nothing, plain calls on a CPU; and the measured ceilings
that floors are made of.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

GRAPH_CALLS = 20
"""Calls in one graph: enough for the graph's own launch, some 5 us, to disappear in them."""
REPLAYS = 25
MIN_SECONDS = 0.02
"""At least this long per figure on a CPU, whose clock and caches need it."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured on the device at hand, not read from its data sheet."""

    copy: float
    """Bytes per second, read and written, of a copy that no cache holds."""
    peak: dict[str, float]
    """Floating-point operations per second of a large matrix product, by precision."""

    def floor_us(self, num_bytes: int, flops: int, precision: str = "bf16") -> float:
        """Returns what bytes or operations take at the ceilings, whichever is longer."""
        if precision not in self.peak:
            raise ValueError(f"no ceiling measured for {precision}: one of {', '.join(self.peak)} expected")
        return 1e6 * max(num_bytes / self.copy, flops / self.peak[precision])


def time_us(run: Callable[[], None], device: torch.device) -> float:
    """Returns the median microseconds of a call. `run` is called many times, some of them inside a graph's
    capture.
    """
    return _time_gpu(run) if device.type == "cuda" else _time_cpu(run)


def _time_gpu(run: Callable[[], None]) -> float:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm: compile, tune, allocate
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            run()
    for _ in range(3):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    spans = [before.elapsed_time(after) for before, after in itertools.pairwise(marks)]
    return 1e3 * statistics.median(spans) / GRAPH_CALLS


def _time_cpu(run: Callable[[], None]) -> float:
    run()
    spans: list[float] = []
    begin = time.perf_counter()
    while len(spans) < 5 or time.perf_counter() - begin < MIN_SECONDS:
        start = time.perf_counter()
        run()
        spans.append(time.perf_counter() - start)
    return 1e6 * statistics.median(spans)


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measures a copy and matrix products, both large for the device."""
    on_gpu = device.type == "cuda"
    peak = {"bf16": _product_speed(device, 8192 if on_gpu else 512)}
    if on_gpu and torch.cuda.get_device_capability(device) >= (8, 9):
        peak["fp8"] = _fp8_product_speed(device, 8192)
    return Ceilings(copy_bandwidth(device), peak)


def copy_bandwidth(device: torch.device, num_bytes: int | None = None, repeats: int = 9) -> float:
    """Bytes read plus bytes written per second by a copy within the device's memory; the median copy.

    Outside a graph: there a copy is a node of the driver's own, which on an H200 reaches two thirds of this.
    """
    count = num_bytes if num_bytes is not None else (4 << 30 if device.type == "cuda" else 64 << 20)
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
    if device.type == "cuda":
        torch.cuda.empty_cache()  # it is for what is measured now
    return 2 * count / statistics.median(seconds[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _product_speed(device: torch.device, size: int) -> float:
    """In bf16; on a CPU in fp32, its engine's type."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a = torch.randn(size, size, device=device, dtype=dtype)
    out = torch.empty_like(a)

    def run() -> None:
        torch.mm(a, a, out=out)

    return 1e6 * 2 * size**3 / time_us(run, device)


def _fp8_product_speed(device: torch.device, size: int) -> float:
    a = torch.randn(size, size, device=device).to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)

    def run() -> None:
        torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return 1e6 * 2 * size**3 / time_us(run, device)
