"""Measures what a cluster of replicas does: how routing affects it, and what many replicas give over one.

    python -m benchmarks.cluster --cpu --out benchmarks/results/cpu-epyc-2-cores/cluster.json
    python -m benchmarks.cluster --gpus 0,1,2,3 --out benchmarks/results/h100-x4/cluster.json

Routing: the router of this service, a replica at random, and the replica with the fewest requests get the
same requests, on adapters whose popularity is Zipf's. The report has adapter loads, times to the first token
and throughput. With `--cpu` the replicas are null engines, started anew for each policy: processes with the
real scheduler, adapter slots and journal, and steps of a fixed time without a model. Their adapters load at
once, so loads are counted and do not delay first tokens. With `--gpus` they compute on a random base, several
on a GPU, and keep running from one policy to the next: each begins with requests that are not measured.

Many replicas over one: with `--gpus`, a whole service over HTTP with a replica on every GPU, and with one
replica (`benchmarks.cluster_http`); with `--cpu`, null engines.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec

from benchmarks import cluster_http
from benchmarks.cluster_replicas import RANK, Engines, null_engines, random_engines, running
from benchmarks.random_adapters import reference
from benchmarks.report import write_report
from benchmarks.shapes import SHAPES
from engine.protocol import SamplingParams, Submit
from engine.transport.generation import RequestRejected
from routing.replica_set import ReplicaSet
from routing.router import Reason, Router, RoutingQuery
from routing.views import ReplicaView
from telemetry import logs

START_SECONDS = 300.0
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
    rows: int = 64
    """Requests that a replica runs at once."""
    slots: int = 24
    """Adapters that a replica holds at once."""
    adapters: int = 60
    warm_up: int = 0
    """Requests before those that are measured."""
    requests: int = 3000
    concurrency: int = 48
    clients: int = 1
    """Processes that send them, each with a router of its own, as API processes are."""
    zipf: float = 0.7
    """Exponent of the adapters' popularity: 0 is even."""
    prompt_len: int = 64
    output_len: int = 8
    seed: int = 5


ON_CPU = Load()
NULL_STEP_S = 0.02
"""Of a null engine. Where it is shorter than what the host takes for a step, requests wait for the host."""
ON_GPUS = Load(
    replicas=8, rows=128, slots=64, adapters=2000, warm_up=4000, requests=16_000, concurrency=768, clients=4,
    zipf=1.0, prompt_len=128, output_len=128,
)  # fmt: skip


@dataclass
class Figures:
    """What was measured under one policy."""

    policy: str
    loads: int = 0
    evictions: int = 0
    requests: int = 0
    refused: int = 0
    """Of the requests: their adapter got no slot for half a minute, for instance."""
    tok_s: float = 0.0
    ttft_p50_ms: float = 0.0
    ttft_p99_ms: float = 0.0
    by_reason: dict[str, int] = field(default_factory=dict)
    by_replica: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.policy:13} {self.loads:6} loads  {self.ttft_p50_ms:8.1f} ms p50  "
            f"{self.ttft_p99_ms:8.1f} ms p99  {self.tok_s:9.1f} tok/s  {self.refused} refused"
        )


def requests_of(load: Load) -> list[Submit]:
    """Returns the requests, the same for every policy."""
    random = Random(load.seed)
    weights = list(accumulate((number + 1) ** -load.zipf for number in range(load.adapters)))
    refs = [reference(RANK, "bf16", number) for number in range(load.adapters)]
    chosen = random.choices(refs, cum_weights=weights, k=load.warm_up + load.requests)
    sampling = SamplingParams(max_tokens=load.output_len, temperature=0.0, ignore_eos=True)
    return [
        Submit(
            request_id=f"request-{number}",
            tenant=f"tenant-{adapter.digest[:4]}",
            prompt_ids=[random.randrange(256) for _ in range(load.prompt_len)],
            sampling=sampling,
            adapter=adapter,
        )
        for number, adapter in enumerate(chosen)
    ]


@dataclass
class Answered:
    """What became of requests."""

    waits: list[float] = field(default_factory=list)
    """Seconds to the first token of each that was answered."""
    refused: int = 0


@dataclass(frozen=True)
class Sent:
    """What one client measured. Times are `time.perf_counter()`."""

    answered: Answered
    began: float
    ended: float
    loads: int
    """On all replicas."""
    evictions: int
    chosen: dict[tuple[str, Reason], int]
    """This client's requests, by replica and the reason for it."""


class Line(Protocol):
    """Where clients wait for one another."""

    def wait(self) -> int: ...


def measure(policy: str, load: Load, endpoints: Sequence[str]) -> Figures:
    """Sends the requests to the replicas, `concurrency` at a time."""
    if load.clients == 1:
        sent = [asyncio.run(send(policy, load, endpoints, 0, threading.Barrier(1)))]
    else:
        sent = _send_from_processes(policy, load, endpoints)
    waits = sorted(wait for one in sent for wait in one.answered.waits)
    refused = sum(one.answered.refused for one in sent)
    seconds = max(one.ended for one in sent) - min(one.began for one in sent)
    figures = Figures(
        policy=policy,
        loads=sent[0].loads,
        evictions=sent[0].evictions,
        requests=len(waits) + refused,
        refused=refused,
        tok_s=round(load.output_len * len(waits) / seconds, 1),
        ttft_p50_ms=round(1000 * waits[len(waits) // 2], 2),
        ttft_p99_ms=round(1000 * waits[len(waits) * 99 // 100], 2),
    )
    for one in sent:
        for (replica, reason), number in one.chosen.items():
            figures.by_replica[replica] = figures.by_replica.get(replica, 0) + number
            figures.by_reason[reason] = figures.by_reason.get(reason, 0) + number
    return figures


def _send_from_processes(policy: str, load: Load, endpoints: Sequence[str]) -> list[Sent]:
    context = multiprocessing.get_context("spawn")
    line = context.Barrier(load.clients)
    results: multiprocessing.SimpleQueue[Sent] = context.SimpleQueue()
    clients = [
        context.Process(target=_client, args=(policy, load, list(endpoints), number, line, results))
        for number in range(load.clients)
    ]
    for client in clients:
        client.start()
    sent = [results.get() for _ in clients]
    for client in clients:
        client.join()
    return sent


def _client(policy: str, load: Load, endpoints: list[str], number: int, line: Line, results: Any) -> None:
    logs.configure("bench", level="error")
    results.put(asyncio.run(send(policy, load, endpoints, number, line)))


async def send(policy: str, load: Load, endpoints: Sequence[str], number: int, line: Line) -> Sent:
    """Sends one client's share of the requests: those that are not measured, then those that are."""
    engines = ReplicaSet(endpoints, f"bench-{number}", router=POLICIES[policy](load.seed + number))
    await engines.start()
    try:
        async with asyncio.timeout(START_SECONDS):
            while engines.num_serving < len(endpoints):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        requests = requests_of(load)
        places = load.concurrency // load.clients
        await _send_all(engines, requests[: load.warm_up][number :: load.clients], places)
        await asyncio.sleep(HEARTBEAT_SECONDS)
        before, before_chosen = _counters(engines), dict(engines.counts.chosen)
        await asyncio.to_thread(line.wait)
        began = time.perf_counter()
        answered = await _send_all(engines, requests[load.warm_up :][number :: load.clients], places)
        ended = time.perf_counter()
        await asyncio.to_thread(line.wait)
        await asyncio.sleep(HEARTBEAT_SECONDS)
        after = _counters(engines)
    finally:
        await engines.close()
    chosen = {key: count - before_chosen.get(key, 0) for key, count in engines.counts.chosen.items()}
    return Sent(answered, began, ended, after[0] - before[0], after[1] - before[1], chosen)


def _counters(engines: ReplicaSet) -> tuple[int, int]:
    """Returns the loads and evictions of all replicas since their start."""
    stats = engines.latest_stats()
    return sum(one.adapter_loads for one in stats), sum(one.adapter_evictions for one in stats)


async def _send_all(engines: ReplicaSet, requests: Sequence[Submit], places: int) -> Answered:
    """Sends as many at a time as there are `places`."""
    answered = Answered()
    waiting = iter(requests)
    await asyncio.gather(*(_send(engines, waiting, answered) for _ in range(places)))
    return answered


async def _send(engines: ReplicaSet, waiting: Iterator[Submit], answered: Answered) -> None:
    for submit in waiting:
        now = msgspec.structs.replace(submit, submitted_at=time.time())
        began = time.perf_counter()
        first: float | None = None
        try:
            async for _ in engines.submit(now):
                if first is None:
                    first = time.perf_counter() - began
        except RequestRejected:
            answered.refused += 1
            continue
        assert first is not None
        answered.waits.append(first)


def compare(
    load: Load, engines: Engines, policies: Sequence[str] = tuple(POLICIES), *, anew: bool = True
) -> list[Figures]:
    """Measures each policy, on replicas that are started `anew` for it or on the same ones."""
    with ExitStack() as opened:
        found: list[Figures] = []
        for policy in policies:
            if anew or not found:
                opened.close()
                endpoints = opened.enter_context(running(engines, load.replicas))
            found.append(measure(policy, load, endpoints))
            print(found[-1], found[-1].by_replica, flush=True)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--cpu", action="store_true", help="null engines on this machine")
    where.add_argument("--gpus", type=lambda text: text.split(","), help="their numbers, such as 0,1,2,3")
    option = parser.add_argument
    option("--requests", type=int, help="that are measured under each policy")
    option("--parts", choices=("all", "routing", "http"), default="all", help="with --gpus")
    option("--shape", choices=SHAPES, default="llama-3.1-8b")
    option("--quantization", default="fp8")
    option("--out", type=Path, required=True)
    asked = parser.parse_args()
    logs.configure("bench", level="error")
    write_report(asked.out, _on_cpu(asked) if asked.cpu else _on_gpus(asked))


def _on_cpu(asked: argparse.Namespace) -> dict[str, Any]:
    load = replace(ON_CPU, requests=asked.requests or ON_CPU.requests)
    engines = null_engines(NULL_STEP_S, load.rows, load.slots)
    routing = compare(load, engines)
    with running(engines, 1) as endpoints:
        one = measure("router", load, endpoints)
    router = routing[0]
    return {
        "replicas": load.replicas,
        "tok_s": router.tok_s,
        "tok_s_one": one.tok_s,
        "ttft_ms": {"p50": router.ttft_p50_ms, "p99": router.ttft_p99_ms},
        **_described(load, engines, routing),
    }


def _on_gpus(asked: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if asked.parts != "http":
        load = replace(ON_GPUS, requests=asked.requests or ON_GPUS.requests)
        max_len = load.prompt_len + load.output_len + 1
        engines = random_engines(
            asked.shape, asked.quantization, asked.gpus, load.rows, load.slots, load.adapters, max_len
        )
        figures |= _described(load, engines, compare(load, engines, anew=False))
        write_report(asked.out, figures)  # what follows takes longer
    if asked.parts != "routing":
        service = cluster_http.ServiceLoad(asked.shape, asked.quantization, replicas=len(asked.gpus))
        figures |= cluster_http.measure(service)
    return figures


def _described(load: Load, engines: Engines, found: Sequence[Figures]) -> dict[str, Any]:
    return {
        "engines": engines.described,
        "load": asdict(load),
        "routing": [asdict(figures) for figures in found],
    }


if __name__ == "__main__":
    main()
