"""Measures how routing affects replicas: adapter loads, first tokens and throughput under three policies.

    python -m benchmarks.cluster --cpu --out benchmarks/results/cpu-epyc-2-cores/cluster.json

The policies are the router of this service, a replica at random, and the replica with the fewest requests.
Each gets the same requests, on adapters whose popularity is Zipf's, and fresh replicas. With `--cpu` the
replicas are null engines: processes with the real scheduler, adapter slots and journal, and steps of a fixed
time without a model. Their adapters load at once, so loads are counted and do not delay first tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.report import write_report
from cli.local.redis import start_redis
from engine.protocol import AdapterRef, SamplingParams, Submit
from routing.replica_set import ReplicaSet
from routing.router import Reason, Router, RoutingQuery
from routing.views import ReplicaView
from telemetry import logs

START_SECONDS = 60.0
HEARTBEAT_SECONDS = 1.0
"""In which every engine has sent its counters."""


class RandomRouter(Router):
    """Chooses a replica at random."""

    def _chosen(self, query: RoutingQuery, sticky: Any, now: float) -> tuple[ReplicaView, Reason]:
        return self._random.choice(self._available), "wait"


class LeastLoadedRouter(Router):
    """Chooses the replica with the fewest requests."""

    def _chosen(self, query: RoutingQuery, sticky: Any, now: float) -> tuple[ReplicaView, Reason]:
        return min(self._available, key=lambda view: (view.occupancy, self._random.random())), "wait"


POLICIES: dict[str, type[Router]] = {
    "router": Router,
    "least loaded": LeastLoadedRouter,
    "random": RandomRouter,
}


@dataclass(frozen=True)
class Load:
    """The requests, and the replicas that serve them."""

    replicas: int = 3
    slots: int = 24
    """Adapters that a replica holds at once."""
    adapters: int = 60
    requests: int = 3000
    concurrency: int = 48
    zipf: float = 0.7
    """Exponent of the adapters' popularity: 0 is even."""
    prompt_len: int = 64
    output_len: int = 8
    seed: int = 5
    step_s: float = 0.004
    """Of a null engine. Shorter than what the host takes for a step, requests wait for the host."""


@dataclass
class Figures:
    """What was measured under one policy."""

    policy: str
    loads: int = 0
    evictions: int = 0
    requests: int = 0
    tok_s: float = 0.0
    ttft_p50_ms: float = 0.0
    ttft_p99_ms: float = 0.0
    by_reason: dict[str, int] = field(default_factory=dict)
    by_replica: dict[str, int] = field(default_factory=dict)


@contextmanager
def null_replicas(load: Load, count: int) -> Iterator[list[str]]:
    """Runs null engines with a Redis for their journal. Yields their endpoints."""
    with tempfile.TemporaryDirectory(prefix="rs-") as name:
        folder = Path(name)
        redis = start_redis(folder, ephemeral=True)
        processes: list[subprocess.Popen[bytes]] = []
        endpoints = [f"ipc://{folder}/{number}.sock" for number in range(count)]
        try:
            for number, endpoint in enumerate(endpoints):
                settings = {
                    "ENGINE_NULL": "true",
                    "ENGINE_NULL_STEP_SECONDS": str(load.step_s),
                    "ENGINE_NULL_DEPTH": "1",
                    "ENGINE_ENGINE_ID": f"engine-{number}",
                    "ENGINE_ENDPOINT": endpoint,
                    "ENGINE_REDIS_URL": redis.url,
                    "ENGINE_DATA_DIR": str(folder),
                    "ENGINE_MAX_ROWS": "64",
                    "DEVICE_NUM_SLOTS": str(load.slots),
                }
                environment = os.environ | {f"ROOTSTOCK_{key}": value for key, value in settings.items()}
                with (folder / f"{number}.log").open("wb") as log:
                    command = [sys.executable, "-m", "engine.main"]
                    processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            yield endpoints
        finally:
            for process in processes:
                process.kill()
                process.wait(30)
            redis.stop()


def requests_of(load: Load) -> list[Submit]:
    """Returns the requests, the same for every policy."""
    random = Random(load.seed)
    weights = list(accumulate((number + 1) ** -load.zipf for number in range(load.adapters)))
    refs = [AdapterRef(f"{random.getrandbits(256):064x}", 16) for _ in range(load.adapters)]
    chosen = random.choices(refs, cum_weights=weights, k=load.requests)
    sampling = SamplingParams(max_tokens=load.output_len, temperature=0.0, ignore_eos=True)
    return [
        Submit(
            request_id=f"request-{number}",
            tenant=f"tenant-{adapter.digest[:4]}",
            prompt_ids=[random.randrange(256) for _ in range(load.prompt_len)],
            sampling=sampling,
            adapter=adapter,
            submitted_at=time.time(),
        )
        for number, adapter in enumerate(chosen)
    ]


async def measure(policy: str, load: Load, endpoints: Sequence[str]) -> Figures:
    """Sends the requests to the replicas, `concurrency` at a time."""
    engines = ReplicaSet(endpoints, "bench", router=POLICIES[policy](load.seed))
    await engines.start()
    try:
        async with asyncio.timeout(START_SECONDS):
            while engines.num_serving < len(endpoints):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        await asyncio.sleep(HEARTBEAT_SECONDS)
        waits: list[float] = []
        waiting = iter(requests_of(load))
        began = time.perf_counter()
        await asyncio.gather(*(_send(engines, waiting, waits) for _ in range(load.concurrency)))
        seconds = time.perf_counter() - began
        await asyncio.sleep(HEARTBEAT_SECONDS)
        return _figures(policy, engines, load, waits, seconds)
    finally:
        await engines.close()


async def _send(engines: ReplicaSet, waiting: Iterator[Submit], waits: list[float]) -> None:
    for submit in waiting:
        began = time.perf_counter()
        first: float | None = None
        async for _ in engines.submit(submit):
            if first is None:
                first = time.perf_counter() - began
        assert first is not None
        waits.append(first)


def _figures(policy: str, engines: ReplicaSet, load: Load, waits: list[float], seconds: float) -> Figures:
    stats = engines.latest_stats()
    waits.sort()
    figures = Figures(
        policy=policy,
        loads=sum(one.adapter_loads for one in stats),
        evictions=sum(one.adapter_evictions for one in stats),
        requests=len(waits),
        tok_s=round(load.output_len * len(waits) / seconds, 1),
        ttft_p50_ms=round(1000 * waits[len(waits) // 2], 2),
        ttft_p99_ms=round(1000 * waits[len(waits) * 99 // 100], 2),
    )
    for (replica, reason), number in engines.counts.chosen.items():
        figures.by_replica[replica] = figures.by_replica.get(replica, 0) + number
        figures.by_reason[reason] = figures.by_reason.get(reason, 0) + number
    return figures


def compare(load: Load, policies: Sequence[str] = tuple(POLICIES)) -> list[Figures]:
    """Measures each policy on fresh replicas."""
    found = []
    for policy in policies:
        with null_replicas(load, load.replicas) as endpoints:
            found.append(asyncio.run(measure(policy, load, endpoints)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cpu", action="store_true", required=True, help="null engines on this machine")
    parser.add_argument("--requests", type=int, default=Load.requests)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logs.configure("bench", level="error")
    load = Load(requests=options.requests)
    routing = compare(load)
    with null_replicas(load, 1) as endpoints:
        one = asyncio.run(measure("router", load, endpoints))
    router = routing[0]
    write_report(
        options.out,
        {
            "engines": f"null, 64 rows, steps of {1000 * load.step_s:g} ms, adapters load at once",
            "load": asdict(load),
            "replicas": load.replicas,
            "tok_s": router.tok_s,
            "tok_s_one": one.tok_s,
            "ttft_ms": {"p50": router.ttft_p50_ms, "p99": router.ttft_p99_ms},
            "routing": [asdict(figures) for figures in routing],
        },
    )
    for figures in routing:
        print(f"{figures.policy:13} {figures.loads:6} loads  {figures.ttft_p99_ms:8.1f} ms p99")


if __name__ == "__main__":
    main()
