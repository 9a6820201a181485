"""Profiles a step kernel by kernel with torch's profiler.

Lists kernels by name with their calls, time and share, and the time in which no kernel ran. On a CPU the
operators take the kernels' place.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

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
    for span in spans:
        by_name[span.name].append(span.end - span.start)
    total = sum(sum(times) for times in by_name.values())
    busy = busy_us(spans)
    window = max((span.end for span in spans), default=0.0) - min((span.start for span in spans), default=0.0)
    lines = [
        f"{num_steps} steps, {wall_us / num_steps:.1f} us each on the clock",
        f"kernels {total / num_steps:.1f} us per step; device busy {busy / num_steps:.1f} us, "
        f"idle between the first kernel and the last {(window - busy) / num_steps:.1f} us",
        "",
        f"{'us/step':>10} {'share':>7} {'calls/step':>11} {'us/call':>9}  kernel",
    ]
    ordered = sorted(by_name.items(), key=lambda item: -sum(item[1]))
    for name, times in ordered[:TOP]:
        lines.append(
            f"{sum(times) / num_steps:>10.1f} {sum(times) / total:>7.1%} {len(times) / num_steps:>11.1f} "
            f"{sum(times) / len(times):>9.2f}  {name[:120]}"
        )
    if len(ordered) > TOP:
        rest = sum(sum(times) for _, times in ordered[TOP:])
        lines.append(f"{rest / num_steps:>10.1f} {rest / total:>7.1%}  {len(ordered) - TOP} more kernels")
    return "\n".join(lines) + "\n"


def busy_us(spans: Iterable[Span]) -> float:
    """Time in which at least one ran: those that overlap, on several streams, count once."""
    busy, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        busy += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return busy
