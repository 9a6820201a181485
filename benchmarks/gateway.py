"""Measures what the API costs beside the engine: added latency, requests and streamed tokens per second of
CPU.

    python -m benchmarks.gateway --seconds 20 --out benchmarks/results/cpu-epyc-2-cores/gateway.json

Everything is real but the model: PostgreSQL with 10 000 tenants and 100 000 keys, Redis, an API process, a
worker that meters, an engine process whose steps take no time. Every request is authenticated, counted to
four limits (requests and tokens per minute, concurrent requests, spend per month), priced and metered; at the
end the ledger must have a row for each. First the saturating rate is measured with many requests always in
flight; then requests arrive by a Poisson process at half of it, through the API and directly at the engine.
The engine's own median at that rate is subtracted from every percentile of the API's; `by_rate` has the same
at other shares of the saturating rate. `cores_busy` shows where else requests wait: traffic, engine, Redis
and PostgreSQL share what the measured process leaves them, and other load on the machine counts there too.
`one_at_a_time` has no waiting.

`--processes 4` also measures that many API processes, with an engine each, behind a balancer that gives each
request to the one with the fewest in flight. `--compare litellm` does the same as for one process with
LiteLLM's proxy (`benchmarks.gateway_litellm`), in the same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from benchmarks.gateway_litellm import measure_litellm
from benchmarks.gateway_site import BASE, BASE_NAME, BusyCores, Site, running_site
from benchmarks.gateway_traffic import Outcome, Task, run_beside
from benchmarks.quotas import measure as measure_quotas
from benchmarks.random_llama import random_words
from benchmarks.report import write_report

PROMPT_WORDS = 48
OUTPUT_TOKENS = 4
ACTIVE_KEYS = 1_000
"""In use within half a minute, of as many tenants: each is looked up again when 30 s have passed."""
AT_ONCE = 64
LOOKING_UP = 8
"""Requests at once where each waits for the database."""
OTHER_SHARES = (0.125, 0.25, 0.375, 0.75)
"""Shares of the saturating rate at which latency is measured too."""
REPEATS = 3
"""Repeats of the run at half the saturating rate: load of other guests of the host varies."""
STREAMS = 256
STREAM_TOKENS = 256
STREAM_STEP_S = 0.016
"""Duration of the engine's step in the streaming run: every token of every stream is an event of its own."""


class Unfit(Exception):
    """The run says nothing: answers failed, or requests are missing in the ledger."""


@dataclass(frozen=True)
class Run:
    """One task's outcome."""

    outcome: Outcome
    busy: dict[str, float]
    """How busy cores were."""
    cpu: float = 0.0
    """Seconds of the API process; 0 for what went past it."""

    def row(self) -> dict[str, Any]:
        outcome = self.outcome
        row: dict[str, Any] = {
            "requests": outcome.requests,
            "per_second": outcome.per_second,
            "tok_s": outcome.tokens_per_second,
            "ms": outcome.ms,
            "traffic_cpu_share": outcome.cpu_share,
            "cores_busy": self.busy,
        }
        if outcome.late_ms:
            row["sent_late_ms"] = outcome.late_ms
        if self.cpu:
            row |= {"cpu_s": round(self.cpu, 2), "requests_per_cpu_s": _per(outcome.requests, self.cpu)}
        return row


class Bench:
    """One site under traffic."""

    def __init__(self, site: Site, prompts: list[str], seed: int) -> None:
        self._site = site
        self._prompts = prompts
        self._seed = seed
        self.num_answered = 0
        """By the engine, through the API or straight."""

    def task(self, seconds: float, **changes: Any) -> Task:
        site = self._site
        self._seed += 1
        chosen: dict[str, Any] = {
            "urls": [f"{url}/v1/chat/completions" for url in site.urls],
            "model": BASE_NAME,
            "prompts": self._prompts,
            "keys": site.keys[:ACTIVE_KEYS],
            "max_tokens": OUTPUT_TOKENS,
            "at_once": AT_ONCE,
            "base": str(BASE),
            "seed": self._seed,
        }
        return Task(seconds=seconds, **{**chosen, **changes})

    def through_api(self, task: Task) -> Run:
        before = self._site.api_cpu_seconds()
        run = self._answered(task)
        return dataclasses.replace(run, cpu=self._site.api_cpu_seconds() - before)

    def straight(self, task: Task) -> Run:
        return self._answered(msgspec.structs.replace(task, urls=self._site.engine_endpoints))

    def _answered(self, task: Task) -> Run:
        cores = BusyCores(self._site.cores)
        outcome = run_beside(task, self._site.cores.others)
        busy = cores.shares()
        if outcome.failures:
            raise Unfit(f"{outcome.failures} beside {outcome.requests} answers; {self._site.warnings()}")
        self.num_answered += outcome.requests
        return Run(outcome, busy)


def open_bench(site: Site, seed: int) -> Bench:
    """Every key is known and every budget has begun, as of a process that has served for a while."""
    rng = np.random.default_rng(seed)
    bench = Bench(site, [random_words(rng, PROMPT_WORDS) for _ in range(64)], seed)
    for url in site.urls:
        one = [f"{url}/v1/chat/completions"]
        bench.through_api(bench.task(60, urls=one, every_key=True, at_once=LOOKING_UP))
    return bench


def measure(site: Site, seconds: float, seed: int) -> dict[str, Any]:
    bench = open_bench(site, seed)
    latencies = _latencies(bench, seconds, AT_ONCE)
    one_at_a_time = bench.task(seconds / 4, at_once=1)
    one, one_alone = bench.through_api(one_at_a_time), bench.straight(one_at_a_time)
    cold_keys = site.keys[ACTIVE_KEYS:]
    cold = bench.through_api(bench.task(seconds / 4, keys=cold_keys, every_key=True, at_once=LOOKING_UP))
    streaming = _streams(bench, site, seconds / 2)
    _check_ledger(site, bench.num_answered)
    return {
        "added_ms": latencies["at_half"]["added_ms"],
        "rps_per_core": latencies["saturated"]["requests_per_cpu_s"],
        "stream_tok_s_per_core": streaming.pop("stream_tok_s_per_core"),
        **latencies,
        "one_at_a_time": {
            "added_ms": _less(one.outcome.ms, one_alone.outcome.ms["p50"]),
            **one.row(),
            "engine_alone": one_alone.row(),
        },
        "keys_never_seen": cold.row(),
        "streams": streaming,
        "ledger_rows": bench.num_answered,
    }


def measure_balanced(site: Site, seconds: float, seed: int) -> dict[str, Any]:
    """Several API processes: what they take together, and what they add at shares of that."""
    bench = open_bench(site, seed)
    latencies = _latencies(bench, seconds, AT_ONCE * len(site.urls))
    _check_ledger(site, bench.num_answered)
    return {
        "processes": len(site.urls),
        "added_ms": latencies["at_half"]["added_ms"],
        **latencies,
        "ledger_rows": bench.num_answered,
        "placement": site.cores.described(),
    }


def _latencies(bench: Bench, seconds: float, at_once: int) -> dict[str, Any]:
    """The saturating rate, with so many requests under way; what is added at half and other shares of it."""
    saturated = bench.through_api(bench.task(seconds / 2, at_once=at_once))
    saturating = saturated.outcome.per_second
    others = [_at(bench, share * saturating, seconds / 4) for share in OTHER_SHARES]
    return {
        "saturating_rps": saturating,
        "saturated": saturated.row(),
        "at_half": _middle([_at(bench, saturating / 2, seconds) for _ in range(REPEATS)]),
        "by_rate": others,
    }


def _at(bench: Bench, rate: float, seconds: float) -> dict[str, Any]:
    """Open-loop arrivals through the API, and the same to the engine before and after."""
    alone = [bench.straight(bench.task(seconds / 4, rate=rate))]
    through = bench.through_api(bench.task(seconds, rate=rate))
    alone.append(bench.straight(bench.task(seconds / 4, rate=rate)))
    engine_ms = min(run.outcome.ms["p50"] for run in alone)
    return {
        "rate": round(rate, 1),
        "added_ms": _less(through.outcome.ms, engine_ms),
        **through.row(),
        "engine_alone": [run.row() for run in alone],
    }


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The one of which as many added more as less, and what all of them did."""
    runs.sort(key=lambda run: run["added_ms"]["p50"])
    return {**runs[len(runs) // 2], "added_ms_of_all": [run["added_ms"] for run in runs]}


def _less(ms: dict[str, float], engine_ms: float) -> dict[str, float]:
    return {name: round(value - engine_ms, 3) for name, value in ms.items()}


def _streams(bench: Bench, site: Site, seconds: float) -> dict[str, Any]:
    """All rows of the engine streaming: a token for each in every step, then as fast as it can."""
    site.start_engines(STREAM_STEP_S)
    changes = {"stream": True, "at_once": STREAMS, "max_tokens": STREAM_TOKENS}
    paced = bench.through_api(bench.task(seconds, **changes))
    site.start_engines(0.0)
    unpaced = bench.through_api(bench.task(seconds / 2, **changes))
    return {
        "stream_tok_s_per_core": _per(paced.outcome.tokens, paced.cpu),
        "step_ms": STREAM_STEP_S * 1e3,
        "tokens_per_event": round(paced.outcome.tokens / paced.outcome.events, 2),
        **paced.row(),
        "without_pace": {
            "tok_s_per_core": _per(unpaced.outcome.tokens, unpaced.cpu),
            "tokens_per_event": round(unpaced.outcome.tokens / unpaced.outcome.events, 2),
            **unpaced.row(),
        },
    }


def _per(amount: int, seconds: float) -> float:
    return round(amount / seconds, 1)


def _check_ledger(site: Site, num_answered: int, patience: float = 60.0) -> None:
    """The meter was on: what was answered is in the ledger, each request once."""
    deadline = time.monotonic() + patience
    found = -1
    while found != num_answered:
        found = site.count("SELECT count(*) FROM usage_records")
        if time.monotonic() > deadline:
            raise Unfit(f"the ledger has {found} requests of {num_answered}")
        time.sleep(0.2)


def _arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where to write the report")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the run that latencies are from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--processes", type=int, default=1, help="more than one: so many API processes are measured, too"
    )
    parser.add_argument("--compare", choices=["litellm"], help="measure this too")
    return parser.parse_args(argv)


def main() -> None:
    arguments = _arguments()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="rs-gw-") as folder, running_site(Path(folder)) as site:
        figures = measure(site, arguments.seconds, arguments.seed)
        figures["quotas"] = uvloop.run(measure_quotas(site.redis_url, arguments.seconds / 10, 1_000))
        cores = site.cores
        settings = {
            "tenants": site.count("SELECT count(*) FROM tenants WHERE id <> 'operator'"),
            "keys": site.count("SELECT count(*) FROM api_keys"),
            "active_keys": ACTIVE_KEYS,
            "prompt_words": PROMPT_WORDS,
            "output_tokens": OUTPUT_TOKENS,
            "saturating_requests_at_once": AT_ONCE,
            "streams": STREAMS,
            "stream_output_tokens": STREAM_TOKENS,
            "placement": cores.described(),
        }
    report = {**figures, "setting": settings}
    if arguments.processes > 1:
        with (
            tempfile.TemporaryDirectory(prefix="rs-gw-") as folder,
            running_site(Path(folder), num_apis=arguments.processes) as site,
        ):
            report["balanced"] = measure_balanced(site, arguments.seconds, arguments.seed)
    if arguments.compare == "litellm":
        report["litellm"] = measure_litellm(cores, arguments.seconds, arguments.seed)
    # With the processes of this run alone it is below 3: what is above that took its time from them.
    report["load_average"] = {"before": round(load_before, 2), "after": round(os.getloadavg()[0], 2)}
    write_report(arguments.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
