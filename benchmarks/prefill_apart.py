"""Measures the time between tokens of decoding streams beside long prompts, computed in place and apart.

    python -m benchmarks.prefill_apart --out F

Two engines in two processes, each on a GPU of its own, on one random base. The first decodes 64 streams. In
three windows of equal length it has nothing else to do, or computes one prompt of 32 768 tokens after another
itself, or has them computed by the second. Reported for each window: time between tokens p50, p99 and longest
over all streams, long prompts answered and their time to the first token; and the p99 of each relative to the
first. The bar: at most 1.1 apart. Results are printed as they come.

`--transport bytes` moves keys and values through host memory and a socket instead of from GPU to GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.in_process import InProcessEngine, Sizes, pick_device, random_prompts
from benchmarks.prefill_engine import cache_copies, cache_format, compute_prompts, make_engine
from benchmarks.report import write_report
from benchmarks.shapes import SHAPES
from engine.main import THREAD_SWITCH_SECONDS
from engine.prefill.messages import Greeting
from engine.prefill.sources import PromptSources
from engine.transport.curve import Address

STREAM_PROMPT = 128
LONG_OUTPUT = 8
STREAM_TOKENS_PER_SECOND = 400
"""More than a stream gets: it outlasts its window."""
READY_S = 240.0


@dataclass
class Window:
    """What happened in one window."""

    gaps_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    """Of the long prompts."""

    def figures(self) -> dict[str, Any]:
        gaps_ms = 1e3 * np.array(self.gaps_s)
        return {
            "tokens": len(self.gaps_s),
            "between_tokens_ms_p50": round(float(np.percentile(gaps_ms, 50)), 3),
            "between_tokens_ms_p99": round(float(np.percentile(gaps_ms, 99)), 3),
            "between_tokens_ms_max": round(float(gaps_ms.max()), 3),
            "long_prompts": len(self.first_token_s),
            "long_first_token_s_p50": _median(self.first_token_s),
        }


class Bench:
    """The engine that decodes, and its load."""

    def __init__(self, engine: InProcessEngine, asked: argparse.Namespace) -> None:
        self._engine = engine
        self._asked = asked
        self._rng = np.random.default_rng(1)

    def window(self, with_long: bool) -> Window:
        """Runs the streams for the window's length, with one long prompt after another if asked."""
        asked, engine = self._asked, self._engine
        length = int(asked.seconds * STREAM_TOKENS_PER_SECOND)
        streams = {engine.submit(one, length) for one in self._prompts(asked.streams, STREAM_PROMPT)}
        last: dict[str, float] = {}
        while len(last) < len(streams):
            for chunk in engine.step():
                last[chunk.request_id] = time.perf_counter()
        found = Window()
        long_id, long_at = "", 0.0
        end = time.perf_counter() + asked.seconds
        while (now := time.perf_counter()) < end:
            if with_long and not long_id:
                [prompt] = self._prompts(1, asked.prompt_tokens)
                long_id, long_at = engine.submit(prompt, LONG_OUTPUT), now
            chunks = engine.step()
            now = time.perf_counter()
            for chunk in chunks:
                name = chunk.request_id
                if name in last:
                    found.gaps_s.append(now - last[name])
                    last[name] = now
                elif name == long_id and long_at:
                    found.first_token_s.append(now - long_at)
                    long_at = 0.0
                if name == long_id and chunk.finish_reason is not None:
                    long_id = ""
        for name in (*streams, long_id):
            engine.core.abort(name)
        while engine.core.scheduler.has_requests or engine.core.has_work:
            engine.core.step()
        return found

    def _prompts(self, count: int, length: int) -> list[list[int]]:
        return random_prompts(self._rng, self._engine.model.config.vocab_size, [length] * count)


def measure(asked: argparse.Namespace, prompts_at: str, is_ready: Event) -> dict[str, Any]:
    """Measures the three windows."""
    device = pick_device(asked.device)
    max_len = asked.prompt_tokens + 64
    stream_len = STREAM_PROMPT + int(asked.seconds * STREAM_TOKENS_PER_SECOND) + 1
    kv_tokens = asked.streams * stream_len + 4 * max_len
    rows = asked.streams + 4
    sizes = Sizes(rows, max(max_len, stream_len), asked.max_batch_tokens, kv_tokens, 1, 1 << 28)
    figures: dict[str, Any] = {}
    with make_engine(asked, sizes, device) as engine:
        print(f"decoding engine ready, capture {engine.capture_s:.0f} s", flush=True)
        bench = Bench(engine, asked)
        bench.window(with_long=False)  # whatever is made on first use
        for name, with_long in (("alone", False), ("in_place", True)):
            figures[name] = bench.window(with_long).figures()
            print(name, figures[name], flush=True)
        if not is_ready.wait(READY_S):
            raise SystemExit("the engine that computes prompts did not start")
        copies = cache_copies(engine, shares=asked.transport == "gpu")

        def deliver(event: Any) -> None:
            engine.core.prompt_event(event)
            engine.wake()

        greeting = Greeting("engine-0", cache_format(engine))
        sources = PromptSources([Address(prompts_at)], greeting, copies, deliver, 60.0)
        fetches = engine.core.scheduler.fetches
        fetches.connect(sources, copies, asked.prompt_tokens // 2, 60.0)
        try:
            deadline = time.monotonic() + READY_S
            while not sources.num_connected:
                if time.monotonic() > deadline:
                    raise SystemExit(f"no connection to the other engine: {sources.refusals}")
                time.sleep(0.05)
            bench.window(with_long=True)
            fetched, tokens = fetches.counters.fetched, fetches.counters.fetched_tokens
            figures["apart"] = bench.window(with_long=True).figures() | {
                "fetched": fetches.counters.fetched - fetched,
                "gigabytes": round(
                    (fetches.counters.fetched_tokens - tokens) * copies.block_bytes / 16 / 1e9, 2
                ),
                "fallbacks": fetches.counters.fallbacks,
                "gpu_to_gpu": sources.is_shared,
            }
            print("apart", figures["apart"], flush=True)
        finally:
            sources.close()
        engine.core.check_integrity()
    alone = figures["alone"]["between_tokens_ms_p99"]
    for name in ("in_place", "apart"):
        figures[name]["p99_ratio"] = round(figures[name]["between_tokens_ms_p99"] / alone, 3)
        print(f"{name}: p99 {figures[name]['p99_ratio']} times that without long prompts", flush=True)
    return figures


def _median(values: list[float]) -> float | None:
    return round(float(np.median(values)), 3) if values else None


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefill_apart", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--quantization", default="fp8")
    parser.add_argument("--kv-dtype", choices=("auto", "fp8"), default="fp8")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=32_768)
    parser.add_argument("--max-batch-tokens", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each window")
    parser.add_argument("--transport", choices=("gpu", "bytes"), default="gpu")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    asked = parse(argv)
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    context = multiprocessing.get_context("spawn")
    is_ready, is_over = context.Event(), context.Event()
    with tempfile.TemporaryDirectory(prefix="prefill-apart-") as folder:
        prompts_at = f"ipc://{folder}/prompts.sock"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = [one for one in (visible or "0,1").split(",") if one]
        os.environ["CUDA_VISIBLE_DEVICES"] = names[1] if len(names) > 1 else names[0]
        child = context.Process(target=compute_prompts, args=(asked, prompts_at, is_ready, is_over))
        child.start()
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        try:
            figures = measure(asked, prompts_at, is_ready)
        finally:
            is_over.set()
            child.join(20)
            child.kill()
    options = {name: getattr(asked, name) for name in vars(asked) if name != "out"}
    write_report(asked.out, {"options": options, **figures})


if __name__ == "__main__":
    main()
