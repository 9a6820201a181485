"""Runs an open-loop load on an in-process engine: requests arrive whether or not the last has ended.

For every number of registered adapters and every rate of arrivals: Poisson arrivals, ShareGPT-like lengths,
adapters by Zipf's law (all in `benchmarks.workload`), and the given number of slots. A request's clock starts
when it arrives, not when the engine accepts it. At the rate "inf" all arrive at once: the output while any of
them waits is the engine's throughput.

`benchmarks.load_figures` computes the figures. Called by `python -m benchmarks.serving --engine in-process`.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.cold_start import probe
from benchmarks.decode import versions
from benchmarks.in_process import InProcessEngine, Sizes, pick_device, random_prompts
from benchmarks.library_pools import resident_bytes
from benchmarks.load_figures import Notes, Slo, StepNote, Timed, summarise
from benchmarks.load_options import DEFAULT_RATES, described, lengths
from benchmarks.random_adapters import AdapterLibrary, Registered
from benchmarks.random_base import random_base
from benchmarks.shapes import shape
from benchmarks.workload import Arrival, Lengths, draw_arrivals

IDLE_S = 0.0002
"""How long the loop sleeps at most when there is nothing to run."""


def run(engine: InProcessEngine, arrivals: Sequence[Arrival], adapters: Sequence[Registered]) -> Notes:
    """Sends every request at its time and steps until all have ended. An empty `adapters` uses the base."""
    rng = np.random.default_rng(len(arrivals))
    vocab_size = engine.model.config.vocab_size
    prompts = random_prompts(rng, vocab_size, [arrival.prompt_len for arrival in arrivals])
    notes = Notes()
    before = engine.core.stats
    scheduler, slots = engine.core.scheduler, engine.core.scheduler.slot_allocator.slots
    gc.collect()
    sent = 0
    began = time.perf_counter()
    while sent < len(arrivals) or scheduler.has_requests or engine.core.has_work:
        now = time.perf_counter() - began
        while sent < len(arrivals) and arrivals[sent].at <= now:
            arrival = arrivals[sent]
            adapter = adapters[arrival.adapter] if adapters else None
            cold = adapter is not None and not engine.is_resident(adapter)
            request_id = engine.submit(prompts[sent], arrival.output_len, adapter)
            notes.requests[request_id] = Timed(arrival.at, arrival.output_len, cold)
            sent += 1
        next_at = arrivals[sent].at if sent < len(arrivals) else math.inf
        loading = slots.num_loading > 0
        chunks = engine.step(max(0.0, min(IDLE_S, next_at - now)))
        now = time.perf_counter() - began
        num_tokens = 0
        for chunk in chunks:
            count = len(chunk.token_ids)
            notes.requests[chunk.request_id].note(now, count)
            num_tokens += count
        if not num_tokens and not scheduler.num_running:
            continue  # slept
        loading = loading or slots.num_loading > 0
        notes.steps.append(StepNote(now, num_tokens, scheduler.num_running, len(scheduler.queue), loading))
    stats = engine.core.stats
    notes.loads = stats.adapter_loads - before.adapter_loads
    notes.evictions = stats.adapter_evictions - before.adapter_evictions
    notes.preemptions = stats.preemptions - before.preemptions
    for timed in notes.requests.values():
        assert timed.num_tokens == timed.output_len, "a request came short"
    return notes


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Measures everything that `--engine in-process` requests."""
    device = pick_device(asked.device)
    config = shape(asked.shape)
    prompt, output = lengths(asked)
    library = AdapterLibrary(config)
    sizes = _sizes(library, asked, prompt, output)
    began = time.perf_counter()
    model = random_base(config, asked.quantization, device)
    slo = Slo(asked.ttft_slo, asked.tpot_slo)
    setting = {
        "engine": "in-process", "shape": asked.shape, "quantization": asked.quantization,
        "kv_dtype": asked.kv_dtype, "rank": asked.rank, "adapter_dtype": asked.adapter_dtype,
        "slots": sizes.num_slots, "rows": sizes.max_rows, "max_batch_tokens": sizes.max_batch_tokens,
        "zipf": asked.zipf, "seed": asked.seed,
        "prompt_len": described(prompt), "output_len": described(output),
        "slo": {"ttft_ms": slo.ttft_ms, "tpot_ms": slo.tpot_ms}, "versions": versions(),
    }  # fmt: skip
    rows = []
    cold: dict[str, Any] | None = None
    with InProcessEngine(model, library, sizes) as engine:
        setting["startup_s"] = round(time.perf_counter() - began, 2)
        _warm_up(engine, prompt, output)
        for num_registered in asked.registered:
            adapters = library.register(num_registered, [asked.rank], asked.adapter_dtype)
            for rate in asked.rates or DEFAULT_RATES:
                # The most popular are there when the run begins, as they would be an hour into it.
                engine.make_resident(adapters[: sizes.num_slots])
                count = asked.saturating if math.isinf(rate) else max(1, round(rate * asked.seconds))
                arrivals = draw_arrivals(
                    asked.seed, rate, count, max(1, num_registered), prompt, output, asked.zipf
                )
                row = summarise(run(engine, arrivals, adapters), arrivals, slo)
                rows.append({"registered": num_registered, "rate": _rate(rate), **row})
                print(_line(rows[-1]), flush=True)
        if asked.probes and sizes.num_slots >= 4:
            cold = probe(engine, asked.rank, asked.adapter_dtype, asked.probe_rows, asked.probes)
            print("cold start", cold, flush=True)
    return setting | {"rows": rows} | ({"cold_start": cold} if cold else {})


def _warm_up(engine: InProcessEngine, prompt: Lengths, output: Lengths) -> None:
    """Whatever is compiled or allocated on first use: a batch of all rows, with and without adapters."""
    rng = np.random.default_rng(7)
    rows = engine.sizes.max_rows
    prompt_lens = prompt.draw(rng, rows).tolist()
    for adapters in ([], engine.library.register(min(2, engine.sizes.num_slots), [8])):
        if adapters:
            engine.make_resident(adapters)
        engine.answer(random_prompts(rng, engine.model.config.vocab_size, prompt_lens), 4, adapters)


def _sizes(library: AdapterLibrary, asked: argparse.Namespace, prompt: Lengths, output: Lengths) -> Sizes:
    """Returns slots as requested, at most one per adapter, and KV for rows of mean length, and a
    half more.
    """
    num_slots = min(asked.slots, max(asked.registered))
    longest = prompt.high + output.high
    mean = min(longest, 1.5 * (prompt.mean + output.mean))
    adapters = library.register(num_slots, [asked.rank], asked.adapter_dtype)
    adapter_bytes = resident_bytes(library, adapters)
    kv_tokens = max(longest, round(asked.rows * mean))
    return Sizes(
        asked.rows, longest, max(asked.max_batch_tokens, asked.rows), kv_tokens, num_slots, adapter_bytes,
        asked.kv_dtype,
    )  # fmt: skip


def _rate(rate: float) -> float | str:
    return "inf" if math.isinf(rate) else rate


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['registered']:>5} registered, {row['rate']:>6} per second: {row['output_tok_s']:>9} tok/s, "
        f"TTFT p50 {row['ttft_ms']['p50']} p99 {row['ttft_ms']['p99']} ms, "
        f"TPOT p50 {row['tpot_ms']['p50']} ms, in SLO {row['goodput']['share']:.1%}, loads {row['loads']}"
    )
