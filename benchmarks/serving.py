"""Measures tokens per second over HTTP, with several adapters in one batch, keys, quotas and metering.

    python -m benchmarks.serving --out benchmarks/results/cpu/serving.json

Starts `rootstock up` on a random 4-layer Llama of width 256 with 4 random adapters, opens 32 streams at once,
each as soon as the last one on its place ended, and reports output tokens per second, time to the first token
and time per output token. Figures are printed and written only after every answer was checked: all tokens
asked for, counted alike by the stream and its usage. `--base-url`, `--api-key` and `--models` measure a
running service instead. With `--rates` requests come by a Poisson process at those rates, of lengths and over
adapters as `benchmarks.workload` draws them, and goodput against a service level objective is reported.

    python -m benchmarks.serving --engine in-process --shape llama-3.1-8b --quantization fp8 \\
        --registered 8,64,256,1000 --out benchmarks/results/h200/serving-llama-3.1-8b-fp8.json

measures the engine alone, without HTTP, on a random base and any number of adapters: `benchmarks.load`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.floor import WEIGHT_BYTES
from benchmarks.load_figures import Slo, Timed, of_requests, of_work
from benchmarks.load_options import add_options, described, lengths
from benchmarks.local_service import local_service
from benchmarks.random_llama import Shape, random_words, write_adapter, write_base
from benchmarks.report import write_report
from benchmarks.sse_client import post_for_events
from benchmarks.workload import Arrival, draw_arrivals


@dataclass(frozen=True)
class Target:
    """What to measure."""

    base_url: str
    api_key: str
    models: tuple[str, ...]


@dataclass(frozen=True)
class Stream:
    """One finished answer. Times are `time.perf_counter()`."""

    model: str
    tokens: int
    prompt_tokens: int
    sent_at: float
    first_at: float
    last_at: float


@dataclass(frozen=True)
class Load:
    """How many requests to send."""

    concurrency: int
    rounds: int
    prompt_words: int
    output_tokens: int


async def one_stream(target: Target, model: str, prompt: str, output_tokens: int) -> Stream:
    """Sends a request and reads to the end. Raises `AssertionError` when the response is not as requested."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {target.api_key}"}
    sent_at = time.perf_counter()
    first_at = last_at = 0.0
    usage: dict[str, Any] = {}
    async with post_for_events(f"{target.base_url}/chat/completions", body, headers) as events:
        async for event in events:
            # Parsing every chunk would cost the server's cores: only the last two say more than "a token
            # came".
            if b'"usage":{' in event.data or b'"usage": {' in event.data:
                usage = json.loads(event.data)["usage"]
                continue
            assert not event.data.startswith(b'{"error"'), event.data.decode()
            if b'"content":""' in event.data and not first_at:
                continue  # the role, sent before any token
            first_at = first_at or event.at
            last_at = event.at
    assert usage.get("completion_tokens") == output_tokens, f"{model} answered {usage}"
    return Stream(model, output_tokens, usage["prompt_tokens"], sent_at, first_at, last_at)


async def measure(target: Target, load: Load, seed: int) -> list[Stream]:
    """Run the load: `concurrency` places, each asking `rounds` times, models in turn."""
    rng = np.random.default_rng(seed)
    prompts = [random_words(rng, load.prompt_words) for _ in range(load.concurrency * load.rounds)]

    async def place(index: int) -> list[Stream]:
        streams = []
        for turn in range(load.rounds):
            number = turn * load.concurrency + index
            model = target.models[number % len(target.models)]
            streams.append(await one_stream(target, model, prompts[number], load.output_tokens))
        return streams

    places = await asyncio.gather(*(place(index) for index in range(load.concurrency)))
    return [stream for streams in places for stream in streams]


async def measure_open(target: Target, arrivals: Sequence[Arrival], seed: int) -> list[Timed]:
    """Send every request at its time, whatever the others do. Prompts have as many words as drawn tokens."""
    rng = np.random.default_rng(seed)
    prompts = [random_words(rng, arrival.prompt_len) for arrival in arrivals]
    began = time.perf_counter()

    async def one(arrival: Arrival, prompt: str) -> Timed:
        await asyncio.sleep(arrival.at - (time.perf_counter() - began))
        stream = await one_stream(target, target.models[arrival.adapter], prompt, arrival.output_len)
        chunk_times = [stream.first_at - began, stream.last_at - began]
        return Timed(arrival.at, arrival.output_len, False, stream.tokens, chunk_times)

    return await asyncio.gather(*map(one, arrivals, prompts))


def summarise(streams: Sequence[Stream]) -> dict[str, Any]:
    """Figures of one run; times in milliseconds."""
    seconds = max(stream.last_at for stream in streams) - min(stream.sent_at for stream in streams)
    ttft = [(stream.first_at - stream.sent_at) * 1000 for stream in streams]
    tpot = [(s.last_at - s.first_at) * 1000 / (s.tokens - 1) for s in streams]
    return {
        "requests": len(streams),
        "seconds": round(seconds, 3),
        "output_tok_s": round(sum(stream.tokens for stream in streams) / seconds, 1),
        "prompt_tok_s": round(sum(stream.prompt_tokens for stream in streams) / seconds, 1),
        "ttft_ms": _percentiles(ttft),
        "tpot_ms": _percentiles(tpot),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(values, q)), 2) for q in (50, 90, 95, 99)}


@contextmanager
def own_service(shape: Shape, num_adapters: int, rank: int, quantization: str) -> Iterator[Target]:
    """Runs `rootstock up` in a temporary directory, with a tenant, a key and adapters of its own."""
    with tempfile.TemporaryDirectory(prefix="rootstock-bench-") as name:
        folder = Path(name)
        write_base(folder / "base", shape)
        options = ("--base", str(folder / "base"), "--base-name", "bench", "--quantization", quantization)
        with local_service(folder, *options) as service:
            service.operate("tenant", "create", "bench")
            api_key = service.operate("key", "create", "bench")
            models = []
            for index in range(num_adapters):
                adapter = folder / f"adapter-{index}"
                write_adapter(adapter, shape, rank, seed=index + 1)
                models.append(service.operate("adapter", "add", "bench", f"random-{index}", str(adapter)))
            yield Target(service.base_url, api_key, tuple(models) or ("bench",))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where to write the report")
    parser.add_argument("--engine", default="http", choices=["http", "in-process"])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--quantization", choices=list(WEIGHT_BYTES), help="default: int8, in process fp8")
    parser.add_argument("--seed", type=int, default=0)
    option = parser.add_argument_group("over HTTP").add_argument
    option("--concurrency", type=int, default=32)
    option("--rounds", type=int, default=4, help="answers per stream place")
    option("--prompt-words", type=int, default=24)
    option("--output-tokens", type=int, default=128)
    option("--adapters", type=int, default=4)
    option("--base-url", help="measure this service (ends in /v1) instead of starting one")
    option("--api-key", default=os.environ.get("ROOTSTOCK_API_KEY"))
    option("--models", help="comma-separated, with --base-url")
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.base_url and not (arguments.api_key and arguments.models):
        parser.error("--base-url needs --api-key (or ROOTSTOCK_API_KEY) and --models")
    if arguments.quantization is None:
        arguments.quantization = "int8" if arguments.engine == "http" else "fp8"
    return arguments


def over_http(arguments: argparse.Namespace) -> dict[str, Any]:
    """A closed loop of `concurrency` streams, or an open loop at each of `rates`."""
    load = Load(arguments.concurrency, arguments.rounds, arguments.prompt_words, arguments.output_tokens)
    shape = Shape()
    setting: dict[str, Any] = {
        "concurrency": load.concurrency,
        "prompt_words": load.prompt_words,
        "output_tokens": load.output_tokens,
    }
    if arguments.rates:
        prompt, output = lengths(arguments)
        setting = {
            "prompt_words": described(prompt), "output_tokens": described(output), "zipf": arguments.zipf,
            "slo": {"ttft_ms": arguments.ttft_slo, "tpot_ms": arguments.tpot_slo},
        }  # fmt: skip

    def run(target: Target) -> dict[str, Any]:
        warm = Load(load.concurrency, 1, load.prompt_words, min(16, load.output_tokens))
        asyncio.run(measure(target, warm, arguments.seed + 1))
        if arguments.rates:
            return {"rows": [_open_row(target, arguments, rate) for rate in arguments.rates]}
        return summarise(asyncio.run(measure(target, load, arguments.seed)))

    if arguments.base_url:
        models = tuple(arguments.models.split(","))
        figures = run(Target(arguments.base_url.rstrip("/"), arguments.api_key, models))
        return {**setting, "models": len(models), **figures}
    with own_service(shape, arguments.adapters, arguments.rank, arguments.quantization) as target:
        figures = run(target)
    setting |= {
        "adapters": arguments.adapters, "rank": arguments.rank, "quantization": arguments.quantization,
        "layers": shape.num_layers, "hidden": shape.hidden, "intermediate": shape.intermediate,
        "vocab": shape.vocab,
    }  # fmt: skip
    return {**setting, **figures}


def _open_row(target: Target, arguments: argparse.Namespace, rate: float) -> dict[str, Any]:
    prompt, output = lengths(arguments)
    count = arguments.saturating if math.isinf(rate) else max(1, round(rate * arguments.seconds))
    arrivals = draw_arrivals(arguments.seed, rate, count, len(target.models), prompt, output, arguments.zipf)
    requests = asyncio.run(measure_open(target, arrivals, arguments.seed))
    slo = Slo(arguments.ttft_slo, arguments.tpot_slo)
    described_rate = "inf" if math.isinf(rate) else rate
    return {"rate": described_rate, **of_work(arrivals), **of_requests(requests, slo)}


def main() -> None:
    arguments = _arguments()
    figures = over_http(arguments) if arguments.engine == "http" else _in_process(arguments)
    write_report(arguments.out, figures)
    print(json.dumps(figures, indent=2))


def _in_process(arguments: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import load  # brings torch, which a client over HTTP needs nothing of

    return load.measure(arguments)


if __name__ == "__main__":
    main()
