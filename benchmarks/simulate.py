"""Simulates routing over many replicas in virtual time: adapter loads, first tokens, recovery after failures.

    python -m benchmarks.simulate --replicas 100 --adapters 100000 --out F

The policy `service` is the service's own router and placement (`routing/`), run as it is; `random` and
`least-open` (fewest open requests) are for comparison. All get the same requests. Engines are fluids with the
step times of `engine.planner.step_model` (`benchmarks.simulation.replica` says what that leaves out); loads
take what was measured on an H200. A host with its replicas fails, later a zone; each returns with empty
caches."""

from __future__ import annotations

import argparse
import gc
import resource
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.report import write_report
from benchmarks.simulation.cluster import Cluster, ClusterOptions, Failure
from benchmarks.simulation.policies import LeastOpenPolicy, Policy, RandomPolicy
from benchmarks.simulation.replica import FluidReplica, ReplicaSizes, StepTable
from benchmarks.simulation.service_router import ServiceRouter
from benchmarks.simulation.traffic import Traffic, TrafficOptions
from engine.planner.byte_counts import adapter_bytes
from engine.planner.hardware import GPUS
from engine.planner.plan import LOAD_BYTES_PER_S, READ_BYTES_PER_S
from engine.planner.shapes import published_shape
from engine.planner.step_model import StepModel

POLICIES = ("service", "random", "least-open")
RESTART_S = 36.0
"""Until a killed engine serves again, with its kernels compiled."""
MEAN_CONTEXT = 330.0
"""Tokens that a decoding row attends to, on average, in this traffic."""


def simulate(asked: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of every policy."""
    options = TrafficOptions(
        asked.rate * asked.replicas, asked.adapters, asked.tenants, asked.zipf, asked.tide, asked.tide_seconds
    )
    config = published_shape("llama-3.1-8b")
    one = adapter_bytes(config, asked.rank)
    table = StepTable(
        StepModel(config, "fp8", "auto", GPUS["h200"]), MEAN_CONTEXT, one, asked.rank, asked.rows
    )
    sizes = ReplicaSizes(
        asked.rows, asked.slots, asked.host_adapters, asked.cache_tokens,
        one / LOAD_BYTES_PER_S, one / READ_BYTES_PER_S,
    )  # fmt: skip
    rows = []
    for policy in asked.policies:
        replicas = [FluidReplica(f"engine-{place}", table, sizes) for place in range(asked.replicas)]
        routers = [_policy(policy, place) for place in range(asked.routers)]
        cluster = Cluster(replicas, routers, _run(asked))
        gc.collect()
        row = {"policy": policy, **cluster.run(Traffic(options, asked.seed))}
        if policy == "service":
            row["reasons"] = _reasons(routers)
        rows.append(row)
        print(row, flush=True)
    traffic = asdict(options)
    return {
        "traffic": traffic,
        "replicas": asked.replicas,
        "routers": asked.routers,
        "sizes": asdict(sizes),
        "seconds": asked.seconds,
        "rows": rows,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def _policy(name: str, place: int) -> Policy:
    if name == "service":
        return ServiceRouter(place, MEAN_OUTPUT)
    return RandomPolicy(place) if name == "random" else LeastOpenPolicy()


MEAN_OUTPUT = 300.0
"""Tokens, for the waits that engines report."""


def _run(asked: argparse.Namespace) -> ClusterOptions:
    failures = []
    if asked.fail_host_at is not None:
        host = tuple(range(min(asked.per_host, asked.replicas)))
        failures.append(Failure("host", asked.fail_host_at, host, RESTART_S))
    if asked.fail_zone_at is not None:
        # Hosts lie in zones in turn.
        zone = tuple(
            place
            for place in range(asked.replicas)
            if place // asked.per_host % asked.zones == asked.zones - 1
        )
        failures.append(Failure("zone", asked.fail_zone_at, zone, RESTART_S))
    return ClusterOptions(asked.seconds, asked.warm_up, failures=tuple(failures))


def _reasons(routers: list[Policy]) -> dict[str, int]:
    found: dict[str, int] = {}
    for router in routers:
        assert isinstance(router, ServiceRouter)
        for reason, count in router.reasons.items():
            found[reason] = found.get(reason, 0) + count
    return found


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--out", type=Path, help="JSON file to write")
    option("--policies", default=list(POLICIES), type=_policies, help=f"of {','.join(POLICIES)}")
    option("--replicas", type=int, default=10)
    option("--routers", type=int, default=4, help="API processes")
    option("--rate", type=float, default=30.0, help="requests per second and replica")
    option("--adapters", type=int, default=10_000)
    option("--tenants", type=int, default=1_000)
    option("--zipf", type=float, default=1.0, help="exponent of the adapters' popularity")
    option("--rank", type=int, default=16)
    option("--rows", type=int, default=256)
    option("--slots", type=int, default=256)
    option("--host-adapters", type=int, default=256, help="adapters in the host memory of a replica")
    option("--cache-tokens", type=int, default=300_000, help="of ended conversations, in a replica")
    option("--seconds", type=float, default=60.0, help="of virtual time")
    option("--warm-up", type=float, default=20.0, help="seconds that are left out of the figures")
    option("--tide", type=float, default=0.0, help="the rate swings by this share of itself")
    option("--tide-seconds", type=float, default=60.0, help="to which a day is shortened")
    option("--per-host", type=int, default=8, help="replicas of a host")
    option("--zones", type=int, default=3)
    option("--fail-host-at", type=float, help="seconds; default: no host fails")
    option("--fail-zone-at", type=float, help="seconds; default: no zone fails")
    option("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def _policies(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"{name}: one of {', '.join(POLICIES)}")
    return names


def main() -> None:
    asked = parse()
    figures = simulate(asked)
    if asked.out is not None:
        write_report(asked.out, figures)


if __name__ == "__main__":
    main()
