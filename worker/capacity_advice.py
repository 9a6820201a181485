"""Asks the planner what a base's engines can serve, and what would help where they cannot.

The load is that of the hour with the most output tokens of the last week; the deployment is that of the
engines that report. Only a worker imports this: it needs models' shapes, which API processes do not load.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from engine.model.config import parse_config
from engine.planner.errors import NoPlan
from engine.planner.hardware import GPUS, Gpu
from engine.planner.plan import CapacityPlan, Deployment, plan_capacity
from engine.planner.workload import AdapterLoad, EngineLimits, Load, Targets
from sla.capacity.engine_loads import EngineLoad
from sla.capacity.reading import Advice, Option
from sla.capacity.sampling import PeakLoad

SAME_GPU = 0.15
"""Difference of the memory's speed up to which a GPU is one that the planner knows."""
GROWTH = (1.5, 2.0)
"""Multiples of the load that are planned for."""


def advise(engines: Sequence[EngineLoad], peak: PeakLoad | None, targets: Targets | None = None) -> Advice:
    """Returns what the planner says of one base, whose engines are alike."""
    one = engines[0]
    gpu = gpu_of(one)
    if gpu is None:
        return Advice(
            f"The step model covers {_known()}; this base runs on {one.device or 'another device'}."
        )
    if peak is None or peak.requests_per_s <= 0 or peak.output_tokens <= 0:
        return Advice("There was no load to plan for in the last week.")
    try:
        deployment = deployment_of(one, gpu, max(load.slots_resident for load in engines))
        load = Load(peak.requests_per_s, max(1.0, peak.prompt_tokens), peak.output_tokens)
        return _advice(deployment, load, targets or Targets(), len(engines))
    except json.JSONDecodeError as error:
        return Advice(f"The base's config.json cannot be read: {error}.")
    except (NoPlan, ValueError) as error:
        return Advice(f"{error}.")


def _advice(deployment: Deployment, load: Load, targets: Targets, replicas: int) -> Advice:
    now = plan_capacity(deployment, load, targets, replicas * deployment.tensor_parallel, None)
    options = []
    for factor in (1.0, *GROWTH):
        wanted = replace(load, requests_per_s=load.requests_per_s * factor)
        try:
            needed = plan_capacity(deployment, wanted, targets, None, None)
        except NoPlan as error:
            options.append(Option(factor, None, str(error)))
        else:
            options.append(Option(factor, needed.replicas, needed.limit))
    return Advice(
        "",
        max_requests_per_s=now.max_requests_per_s,
        max_output_tokens_per_s=now.max_requests_per_s * load.output_tokens,
        utilisation=now.figures.utilisation,
        replicas=replicas,
        misses=now.misses,
        options=tuple(options),
        helps=tuple(_helps(deployment, now)),
        assumptions=now.assumptions,
    )


def _helps(deployment: Deployment, plan: CapacityPlan) -> list[str]:
    """Returns what binds first, and what would widen it, by the planner's own arithmetic."""
    found = []
    if plan.rows_by_memory < deployment.limits.max_rows:
        found.append(
            f"Memory for keys and values bounds a replica to {plan.rows} rows: an FP8 cache "
            "(--kv-dtype fp8) or a larger GPU gives more."
        )
    if plan.figures.miss_share > 0.01:
        found.append(
            f"{plan.figures.miss_share:.0%} of requests load their adapter first: a larger adapter pool "
            "(ROOTSTOCK_DEVICE_ADAPTER_BYTES, more slots) or another replica would keep more resident."
        )
    if plan.misses or plan.figures.utilisation > 0.8:
        each = plan.max_requests_per_s / plan.replicas
        found.append(f"Another replica takes {each:.1f} requests/s more.")
    return found


def gpu_of(one: EngineLoad) -> Gpu | None:
    """Returns the GPU whose memory is as fast as the engine's; None where the planner has none like it."""
    if not one.device.startswith("cuda") or not one.memory_bandwidth:
        return None
    near = min(GPUS.values(), key=lambda gpu: abs(gpu.copy_bandwidth / one.memory_bandwidth - 1))
    return near if abs(near.copy_bandwidth / one.memory_bandwidth - 1) <= SAME_GPU else None


def deployment_of(one: EngineLoad, gpu: Gpu, resident: int) -> Deployment:
    """Returns what the planner plans for. Raises ValueError for a base whose shape cannot be read."""
    raw = json.loads(one.base_config or "{}")
    defaults = EngineLimits()
    return Deployment(
        parse_config(raw),
        one.quantization or "none",
        one.kv_dtype if one.kv_dtype == "fp8" else "auto",
        gpu,
        one.tensor_parallel,
        replace(
            defaults,
            max_rows=one.rows_total or defaults.max_rows,
            num_slots=one.slots_total or defaults.num_slots,
        ),
        AdapterLoad(resident),
    )


def _known() -> str:
    return " and ".join(gpu.name for gpu in GPUS.values())
