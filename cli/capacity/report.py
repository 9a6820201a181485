"""Prints a capacity plan, as tables or as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from cli.printing import print_rows
from engine.planner.plan import CapacityPlan


def print_json(plan: CapacityPlan) -> None:
    """Prints every figure; bytes and seconds are plain numbers, what is unbounded is null."""
    print(json.dumps(_finite(asdict(plan)), indent=2))


def print_tables(plan: CapacityPlan) -> None:
    """Prints what an operator reads."""
    print_rows(("MEMORY OF EACH GPU", "GIB"), _memory_rows(plan))
    print()
    print_rows(("REPLICAS", ""), _replica_rows(plan))
    print()
    print_rows(("LATENCY", "P50", "P99"), _latency_rows(plan))
    if plan.cost_per_hour is not None:
        print()
        print_rows(("COST", "USD"), _cost_rows(plan))
    print()
    for missed in plan.misses:
        print(f"missed: {missed}")
    if plan.limit != "nothing":
        print(f"one replica fewer would miss: {plan.limit}")
    for assumption in plan.assumptions:
        print(f"assumed: {assumption}")


def _memory_rows(plan: CapacityPlan) -> list[tuple[str, ...]]:
    memory = plan.memory
    used = memory.weight_bytes + memory.scratch_bytes + memory.adapter_pool_bytes + memory.kv_bytes
    return [
        ("weights and driver", _gib(memory.weight_bytes)),
        ("scratch", _gib(memory.scratch_bytes)),
        (f"adapters, {memory.resident_adapters} at once", _gib(memory.adapter_pool_bytes)),
        (f"keys and values, {memory.kv_tokens} tokens", _gib(memory.kv_bytes)),
        ("left", _gib(memory.total_bytes - used)),
    ]


def _replica_rows(plan: CapacityPlan) -> list[tuple[str, ...]]:
    figures = plan.figures
    return [
        ("replicas", str(plan.replicas)),
        ("GPUs", str(plan.gpus)),
        ("largest batch", f"{plan.rows} rows"),
        ("rows that run", f"{figures.rows:.0f} on {figures.distinct:.0f} adapters"),
        ("of their capacity", f"{figures.utilisation:.0%}"),
        ("output tokens/s, all replicas", f"{plan.output_tokens_per_s:.0f}"),
        ("requests/s at the most", f"{plan.max_requests_per_s:.1f}"),
        ("requests that load an adapter", f"{figures.miss_share:.1%}"),
    ]


def _latency_rows(plan: CapacityPlan) -> list[tuple[str, ...]]:
    figures = plan.figures
    return [
        ("time to first token", _ms(figures.ttft_p50), _ms(figures.ttft_p99)),
        ("time between tokens", _ms(figures.token_p50), _ms(figures.token_p99)),
    ]


def _cost_rows(plan: CapacityPlan) -> list[tuple[str, ...]]:
    assert plan.cost_per_hour is not None
    assert plan.cost_per_million_output_tokens is not None
    assert plan.cost_per_million_tokens is not None
    return [
        ("per hour", f"{plan.cost_per_hour:.2f}"),
        ("per million output tokens", f"{plan.cost_per_million_output_tokens:.3f}"),
        ("per million tokens, prompts included", f"{plan.cost_per_million_tokens:.3f}"),
    ]


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f}"


def _ms(seconds: float) -> str:
    return "unbounded" if math.isinf(seconds) else f"{1e3 * seconds:.1f} ms"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and math.isinf(value) else value
