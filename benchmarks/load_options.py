"""Defines the command-line options of an open-loop load.

The options of `python -m benchmarks.serving` that its two forms share, and those of the in-process engine.
Imports no torch, which a client over HTTP does not need.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict

from benchmarks.floor import KV_BYTES
from benchmarks.random_adapters import STORED
from benchmarks.shapes import SHAPES
from benchmarks.workload import SHAREGPT_OUTPUT, SHAREGPT_PROMPT, Lengths

DEFAULT_RATES = (10.0, 30.0, math.inf)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of an open-loop load; `python -m benchmarks.serving` adds its own."""
    option = parser.add_argument_group("open-loop load").add_argument
    option("--rates", type=_rates, default=[], help="arrivals per second, such as 10,20,inf")
    option("--seconds", type=float, default=10.0, help="of arrivals, at each rate")
    option("--saturating", type=int, default=1024, help='requests at the rate "inf"')
    option("--zipf", type=float, default=1.0, help="exponent of the adapters' popularity")
    option("--mean-prompt", type=float, default=SHAREGPT_PROMPT.mean)
    option("--mean-output", type=float, default=SHAREGPT_OUTPUT.mean)
    option("--max-prompt", type=int, default=SHAREGPT_PROMPT.high)
    option("--max-output", type=int, default=SHAREGPT_OUTPUT.high)
    option("--ttft-slo", type=float, default=500.0, help="milliseconds")
    option("--tpot-slo", type=float, default=50.0, help="milliseconds")
    option = parser.add_argument_group("in-process engine").add_argument
    option("--shape", default="llama-3.1-8b", choices=list(SHAPES))
    option("--kv-dtype", default="auto", choices=list(KV_BYTES))
    option("--adapter-dtype", default="bf16", choices=list(STORED))
    option("--registered", type=_counts, default=[8, 64, 256, 1000], help="numbers of adapters")
    option("--slots", type=int, default=256, help="adapters resident at once")
    option("--rows", type=int, default=256, help="requests running at once")
    option("--max-batch-tokens", type=int, default=2048)
    option("--probes", type=int, default=50, help="pairs of cold and warm requests; 0: none")
    option("--probe-rows", type=int, default=64, help="rows that decode beside the probes")
    option("--device", default="auto")


def lengths(asked: argparse.Namespace) -> tuple[Lengths, Lengths]:
    """Of prompts and of answers."""
    return (
        Lengths(asked.mean_prompt, SHAREGPT_PROMPT.sigma, SHAREGPT_PROMPT.low, asked.max_prompt),
        Lengths(asked.mean_output, SHAREGPT_OUTPUT.sigma, SHAREGPT_OUTPUT.low, asked.max_output),
    )


def described(distribution: Lengths) -> dict[str, float]:
    """For a report."""
    return asdict(distribution)


def _rates(text: str) -> list[float]:
    rates = [float(part) for part in text.split(",")]
    if not all(rate > 0 for rate in rates):
        raise argparse.ArgumentTypeError(f"{text}: rates are positive, or inf")
    return rates


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if not all(count > 0 for count in counts):
        raise argparse.ArgumentTypeError(f"{text}: numbers of adapters are positive")
    return counts
