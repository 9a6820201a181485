"""Profiles a step kernel by kernel with torch's profiler.

Lists kernels by name with their parts of the step, their calls and durations, and the time in which no
kernel ran. Kernels that begin before others have ended mostly wait, so that durations say little: `shares_us`
divides the time between them. On a CPU the operators take the kernels' place.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler import profile

TOP = 25


@dataclass(frozen=True, slots=True)
class Span:
    """One run of one kernel, microseconds."""

    name: str
    start: float
    end: float


def profile_steps(step: Callable[[], object], num_steps: int, device: torch.device) -> str:
    """Run `step` so many times under the profiler. Returns the table, times per step."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
    # torch.profiler would import torch's compiler, seconds of it, to ask whether it is there.
    with profile(use_kineto=True, use_cpu=not on_gpu, use_device="cuda" if on_gpu else None) as profiler:
        began = time.perf_counter()
        for _ in range(num_steps):
            step()
        if on_gpu:
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
    spans = [
        Span(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.function_events
        if (event.device_type == DeviceType.CUDA) == on_gpu and (on_gpu or event.cpu_parent is None)
    ]
    return table(spans, num_steps, 1e6 * seconds)


def table(spans: list[Span], num_steps: int, wall_us: float) -> str:
    """`wall_us`: of all steps together."""
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    parts: defaultdict[str, float] = defaultdict(float)
    for span, share in zip(spans, shares_us(spans), strict=True):
        by_name[span.name].append(span.end - span.start)
        parts[span.name] += share
    total = sum(sum(times) for times in by_name.values())
    busy = sum(parts.values())
    window = max((span.end for span in spans), default=0.0) - min((span.start for span in spans), default=0.0)
    lines = [
        f"{num_steps} steps, {wall_us / num_steps:.1f} us each on the clock",
        f"kernels {total / num_steps:.1f} us per step; device busy {busy / num_steps:.1f} us, "
        f"idle between the first kernel and the last {(window - busy) / num_steps:.1f} us",
        "",
        f"{'us/step':>10} {'share':>7} {'calls/step':>11} {'us/call':>9} {'duration':>9}  kernel",
    ]
    ordered = sorted(by_name, key=lambda name: -parts[name])
    for name in ordered[:TOP]:
        times, part = by_name[name], parts[name]
        lines.append(
            f"{part / num_steps:>10.1f} {part / busy:>7.1%} {len(times) / num_steps:>11.1f} "
            f"{part / len(times):>9.2f} {sum(times) / len(times):>9.2f}  {name[:120]}"
        )
    if len(ordered) > TOP:
        rest = sum(parts[name] for name in ordered[TOP:])
        lines.append(f"{rest / num_steps:>10.1f} {rest / busy:>7.1%}  {len(ordered) - TOP} more kernels")
    return "\n".join(lines) + "\n"


def shares_us(spans: Sequence[Span]) -> list[float]:
    """Each span's part of the time in which any ran: every moment belongs to the one that ends first of those
    that run then, for which the others may wait.
    """
    shares = [0.0] * len(spans)
    starts = sorted(range(len(spans)), key=lambda index: spans[index].start, reverse=True)
    running: list[tuple[float, int]] = []
    now = float("-inf")
    while starts or running:
        if not running:
            now = spans[starts[-1]].start
        while starts and spans[starts[-1]].start <= now:
            index = starts.pop()
            heappush(running, (spans[index].end, index))
        end, index = running[0]
        until = min(end, spans[starts[-1]].start) if starts else end
        shares[index] += max(0.0, until - now)
        now = max(now, until)
        if until == end:
            heappop(running)
    return shares
