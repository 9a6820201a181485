"""Plans a deployment: how many replicas a load needs within its targets, what they do, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.model.config import ModelConfig
from engine.planner.errors import InvalidPlan, NoPlan
from engine.planner.hardware import Gpu
from engine.planner.memory_split import MemorySplit, split_memory
from engine.planner.popularity import Popularity
from engine.planner.replica_queue import AdapterMemory, QueueFigures, ReplicaQueue
from engine.planner.step_model import StepModel
from engine.planner.workload import AdapterLoad, EngineLimits, Load, Targets

LOAD_BYTES_PER_S = 83_886_080 / 0.014138
"""From page-locked host memory into a slot: an adapter of 84 MB takes 14.1 ms beside 64 rows that decode
(`cold_start` in benchmarks/results/h200/serving-llama-3.1-8b-fp8.json)."""
READ_BYTES_PER_S = 1e9
"""From disk into host memory: a reader verifies about a gigabyte per second (`engine/assembly.py`)."""
MAX_REPLICAS = 100_000
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is deployed, but for the number of replicas."""

    config: ModelConfig
    quantization: str
    kv_dtype: str
    gpu: Gpu
    tensor_parallel: int
    limits: EngineLimits
    adapters: AdapterLoad


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The answer."""

    replicas: int
    gpus: int
    memory: MemorySplit
    rows: int
    """The largest batch: what the settings and the memory for keys and values allow."""
    rows_by_memory: int
    figures: QueueFigures
    """Of one replica, with its share of the load."""
    output_tokens_per_s: float
    """Of all replicas."""
    max_requests_per_s: float
    """That they could take at the most, whatever the waiting times."""
    limit: str
    """What one replica fewer would miss; "nothing" where one is enough."""
    misses: tuple[str, ...]
    """Targets that this number of replicas misses."""
    cost_per_hour: float | None
    cost_per_million_output_tokens: float | None
    cost_per_million_tokens: float | None
    """Prompts included."""
    assumptions: tuple[str, ...]


def plan_capacity(
    deployment: Deployment, load: Load, targets: Targets, gpus: int | None, price: float | None
) -> CapacityPlan:
    """Returns a plan for `gpus` GPUs, or with as few replicas as meet the targets.

    Raises InvalidPlan for sizes that contradict each other, and NoPlan when no number of replicas meets the
    targets.
    """
    planner = _Planner(deployment, load, targets)
    if gpus is None:
        return planner.plan(planner.fewest(), price)
    if gpus < deployment.tensor_parallel:
        raise InvalidPlan(
            f"--gpus {gpus} is less than one replica's {deployment.tensor_parallel}: "
            "pass more GPUs or a smaller --tensor-parallel"
        )
    return planner.plan(gpus // deployment.tensor_parallel, price)


class _Planner:
    def __init__(self, deployment: Deployment, load: Load, targets: Targets) -> None:
        limits = deployment.limits
        self._deployment = deployment
        self._load = load
        self._targets = targets
        self._memory = split_memory(
            deployment.config, deployment.quantization, deployment.kv_dtype, deployment.gpu,
            deployment.tensor_parallel, limits, deployment.adapters,
        )  # fmt: skip
        longest = load.prompt_tokens + load.output_tokens
        if longest > deployment.config.max_position:
            raise InvalidPlan(
                f"prompts of {load.prompt_tokens:g} and outputs of {load.output_tokens:g} tokens exceed the "
                f"model's context of {deployment.config.max_position}: pass fewer"
            )
        self._rows_by_memory = int(self._memory.kv_tokens / load.mean_context)
        if not self._rows_by_memory:
            raise InvalidPlan(
                f"keys and values have room for {self._memory.kv_tokens} tokens, and one request holds "
                f"{load.mean_context:.0f} on average: pass --kv-dtype fp8, more GPUs a replica or "
                "shorter requests"
            )
        if deployment.adapters.count and not self._memory.resident_adapters:
            raise InvalidPlan(
                f"an adapter of rank {deployment.adapters.rank} takes "
                f"{self._memory.adapter_bytes / 2**20:.0f} MiB, and the GPU has "
                f"{self._memory.adapter_pool_bytes / 2**20:.0f} MiB for adapters: pass a smaller --rank or "
                "a --gpu with more memory"
            )
        self._rows = min(limits.max_rows, self._rows_by_memory, limits.max_batch_tokens - 1)
        self._known: dict[int, QueueFigures] = {}
        self._model = StepModel(
            deployment.config, deployment.quantization, deployment.kv_dtype, deployment.gpu,
            deployment.tensor_parallel,
        )  # fmt: skip

    def fewest(self) -> int:
        """Returns the least number of replicas that meets every target."""
        high = 1
        while self._missed(high):
            high *= 2
            if high > MAX_REPLICAS:
                raise NoPlan(
                    f"no number of replicas meets the targets: {'; '.join(self._missed(high))}. "
                    "Relax the targets, or pass a faster --gpu, more GPUs a replica or fewer --max-rows"
                )
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._missed(middle) else (low, middle)
        return high

    def plan(self, replicas: int, price: float | None) -> CapacityPlan:
        figures = self._figures(replicas)
        load, deployment = self._load, self._deployment
        gpus = replicas * deployment.tensor_parallel
        served = min(load.requests_per_s, figures.max_requests_per_s * replicas)
        per_hour = None if price is None else gpus * price
        fewer = self._missed(replicas - 1) if replicas > 1 else ()
        return CapacityPlan(
            replicas=replicas,
            gpus=gpus,
            memory=self._memory,
            rows=self._rows,
            rows_by_memory=self._rows_by_memory,
            figures=figures,
            output_tokens_per_s=served * load.output_tokens,
            max_requests_per_s=figures.max_requests_per_s * replicas,
            limit=fewer[0] if fewer else "nothing",
            misses=self._missed(replicas),
            cost_per_hour=per_hour,
            cost_per_million_output_tokens=_per_million(per_hour, served * load.output_tokens),
            cost_per_million_tokens=_per_million(
                per_hour, served * (load.output_tokens + load.prompt_tokens)
            ),
            assumptions=tuple(_assumptions(deployment)),
        )

    def _figures(self, replicas: int) -> QueueFigures:
        """Returns the figures of one of `replicas`, computed once: the search for the fewest and the plan ask
        for the same.
        """
        found = self._known.get(replicas)
        if found is None:
            found = self._known[replicas] = self._compute(replicas)
        return found

    def _compute(self, replicas: int) -> QueueFigures:
        """Returns the figures of one of `replicas`, each at home to its part of the adapters."""
        deployment, memory = self._deployment, self._memory
        adapters = deployment.adapters
        own = replace(adapters, count=-(-adapters.count // replicas))
        one = memory.adapter_bytes * deployment.tensor_parallel
        queue = ReplicaQueue(
            self._model, deployment.limits, self._rows, self._load, own,
            AdapterMemory(
                one, memory.resident_adapters, memory.host_adapters,
                memory.adapter_bytes / LOAD_BYTES_PER_S, one / READ_BYTES_PER_S,
            ),
        )  # fmt: skip
        return queue.figures(self._load.requests_per_s / replicas)

    def _missed(self, replicas: int) -> tuple[str, ...]:
        """Returns what `replicas` replicas miss, the cause first."""
        figures, targets = self._figures(replicas), self._targets
        found = []
        if figures.loader_utilisation >= 1:
            found.append(
                f"adapter loads: {figures.miss_share:.0%} of requests need one, "
                f"{figures.loader_utilisation:.1f} s of loading a second"
            )
        if figures.utilisation >= 1:
            what = "keys and values" if self._rows < self._deployment.limits.max_rows else "rows"
            found.append(
                f"{what}: a replica with {self._rows} rows takes {figures.max_requests_per_s:.1f} requests/s"
            )
        if found:
            return tuple(found)  # waits have no bound: they follow from these
        if figures.token_p99 > targets.token_s:
            found.append(_over("time between tokens", figures.token_p99, targets.token_s))
        if figures.ttft_p99 > targets.ttft_s:
            found.append(_over("time to first token", figures.ttft_p99, targets.ttft_s))
        return tuple(found)


def largest_share(adapters: AdapterLoad) -> float:
    """Returns the share of all requests on the most popular adapter: beyond one replica it needs copies."""
    return Popularity(adapters.count, adapters.zipf).largest_share


def _over(name: str, seconds: float, target: float) -> str:
    return f"{name}: p99 of {1e3 * seconds:.0f} ms, the target is {1e3 * target:.0f} ms"


def _per_million(per_hour: float | None, tokens_per_s: float) -> float | None:
    return None if per_hour is None else per_hour / (tokens_per_s * SECONDS_PER_HOUR) * 1e6


def _assumptions(deployment: Deployment) -> list[str]:
    found = []
    if deployment.quantization == "none":
        found.append("a bf16 base has not been measured: half the rate of arithmetic of an FP8 base")
    if "H200" not in deployment.gpu.name:
        found.append(f"constants were fitted on an NVIDIA H200, not on {deployment.gpu.name}")
    if deployment.tensor_parallel > 2:
        found.append(
            f"{deployment.tensor_parallel} GPUs share all work evenly; their sums are measured, whole steps "
            "only on one and two"
        )
    if (deployment.config.num_layers, deployment.config.hidden_size) != (32, 4096):
        found.append("constants were fitted on the shape of Llama 3.1 8B")
    return found
