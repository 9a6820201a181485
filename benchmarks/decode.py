"""Measures milliseconds per decode step, by batch and number of distinct adapters, against the floor of
bytes.

    python -m benchmarks.decode --shape llama-3.1-8b --quantization fp8 --rank 16 --out F

The whole engine in one process: scheduler, runner, sampling and commit, no HTTP. Prompts of 128 random
tokens, greedy, no prefix ever reused, adapters of random weights on all seven linears:

    step_ms  = (time of 129 tokens - time of 1 token) / 128, each time the median of several runs
    floor_ms = (linears + output head + keys and values + distinct adapters, in bytes) / copy bandwidth of
               the same run; the terms are in `benchmarks.floor`
    ratio    = step_ms / floor_ms

Also measured: prefill throughput with and without adapters, and a mixed load (768 requests of 256 tokens in
and 256 out, 256 at a time). Several ranks and adapter types can be measured in one run, `--rank
8,16,32,mixed`.
"""

from __future__ import annotations

import argparse
import gc
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import floor
from benchmarks.in_process import DEFAULT_OPTIONS, InProcessEngine, Sizes, pick_device, random_prompts
from benchmarks.library_pools import resident_bytes
from benchmarks.random_adapters import MIXED_RANKS, AdapterLibrary, Registered
from benchmarks.random_base import random_base
from benchmarks.report import write_report
from benchmarks.shapes import SHAPES, shape
from benchmarks.step_profile import profile_steps
from engine.model.config import ModelConfig
from kernels.timing import copy_bandwidth

PROMPT_LEN = 128
OUTPUT_LEN = 129
ROWS = ((1, 0), (32, 0), (128, 0), (256, 0), (1, 1), (32, 32), (256, 8), (256, 64), (256, 256))
"""(batch, distinct adapters)."""
PREFILLS = ((256, 128, (0, 8, 64, 256)), (8, 1024, (0, 8)))
"""(prompts, tokens of each, distinct adapters)."""
MIXED_LOAD = (768, 256, 256, (0, 32, 256))
"""(requests, tokens in, tokens out, distinct adapters); as many at a time as there are rows."""
SECTIONS = ("rows", "prefill", "mixed")


@dataclass(frozen=True, slots=True)
class Adapters:
    """Which adapters a part of the table is measured with."""

    rank: str
    """A number or "mixed"."""
    dtype: str

    @property
    def ranks(self) -> tuple[int, ...]:
        return MIXED_RANKS if self.rank == "mixed" else (int(self.rank),)


class Bench:
    """One engine, and the requests it runs."""

    def __init__(
        self,
        engine: InProcessEngine,
        quantization: str,
        bandwidth: float,
        repeats: int,
        seed: int = 0,
        whole: ModelConfig | None = None,
    ) -> None:
        """`whole`: the model of which the engine's is one rank's part. `bandwidth`: of all ranks together."""
        self._engine = engine
        self._config = whole or engine.model.config
        self._quantization = quantization
        self._bandwidth = bandwidth
        self._repeats = repeats
        self._rng = np.random.default_rng(seed)

    def row(self, batch: int, distinct: int, adapters: Adapters) -> dict[str, Any]:
        """One row of the table."""
        chosen = self._resident(distinct, adapters)
        self._answer(batch, PROMPT_LEN, min(OUTPUT_LEN, 9), chosen)  # whatever is made on first use
        singles = [self._answer(batch, PROMPT_LEN, 1, chosen) for _ in range(self._repeats)]
        alls = [self._answer(batch, PROMPT_LEN, OUTPUT_LEN, chosen) for _ in range(self._repeats)]
        num_steps = OUTPUT_LEN - 1
        step_ms = 1e3 * (median(alls) - median(singles)) / num_steps
        floor_ms = floor.floor_ms(
            floor.step_bytes(
                self._config,
                self._quantization,
                self._engine.sizes.kv_dtype,
                batch,
                floor.mean_context(PROMPT_LEN, num_steps),
                [self._floor_bytes(adapter) for adapter in chosen],
            ),
            self._bandwidth,
        )
        return {
            "batch": batch,
            "distinct": distinct,
            "rank": adapters.rank if distinct else None,
            "adapter_dtype": adapters.dtype if distinct else None,
            "step_ms": round(step_ms, 3),
            "floor_ms": round(floor_ms, 3),
            "ratio": round(step_ms / floor_ms, 2),
            "decode_tok_s": round(1e3 * batch / step_ms, 1),
            "first_token_s": [round(seconds, 4) for seconds in singles],
            "all_tokens_s": [round(seconds, 4) for seconds in alls],
        }

    def prefill(self, count: int, length: int, distinct: int, adapters: Adapters) -> dict[str, Any]:
        """Runs prompts alone, with one token each."""
        chosen = self._resident(distinct, adapters)
        self._answer(count, length, 1, chosen)
        seconds = [self._answer(count, length, 1, chosen) for _ in range(self._repeats)]
        return {
            "prompts": count,
            "prompt_len": length,
            "distinct": distinct,
            "rank": adapters.rank if distinct else None,
            "adapter_dtype": adapters.dtype if distinct else None,
            "seconds": round(median(seconds), 4),
            "prompt_tok_s": round(count * length / median(seconds), 1),
        }

    def mixed_load(
        self, count: int, prompt_len: int, output_len: int, distinct: int, adapters: Adapters
    ) -> dict[str, Any]:
        """More requests than rows: prompts are computed while other rows decode."""
        chosen = self._resident(distinct, adapters)
        before = self._engine.core.stats.preemptions
        seconds = self._answer(count, prompt_len, output_len, chosen)
        return {
            "requests": count,
            "prompt_len": prompt_len,
            "output_len": output_len,
            "concurrent": self._engine.sizes.max_rows,
            "distinct": distinct,
            "rank": adapters.rank if distinct else None,
            "adapter_dtype": adapters.dtype if distinct else None,
            "seconds": round(seconds, 3),
            "output_tok_s": round(count * output_len / seconds, 1),
            "preemptions": self._engine.core.stats.preemptions - before,
        }

    def profile(self, batch: int, distinct: int, adapters: Adapters, num_steps: int = 8) -> str:
        """Where the time of a decode step goes, as text."""
        chosen = self._resident(distinct, adapters)
        num_steps = min(num_steps, OUTPUT_LEN - 4)
        for index, prompt in enumerate(self._prompts(batch, PROMPT_LEN)):
            self._engine.submit(prompt, OUTPUT_LEN, chosen[index % distinct] if distinct else None)
        started: set[str] = set()
        while len(started) < batch:  # requests that began first decode during the prefill of the others
            started.update(chunk.request_id for chunk in self._engine.step())
        self._engine.step()
        text = profile_steps(self._engine.step, num_steps, self._engine.model.device)
        for _ in self._engine.drain():
            pass
        return f"batch {batch}, {distinct} distinct adapters\n{text}"

    def _resident(self, distinct: int, adapters: Adapters) -> list[Registered]:
        chosen = self._engine.library.register(distinct, adapters.ranks, adapters.dtype)
        self._engine.make_resident(chosen)
        return chosen

    def _answer(self, count: int, prompt_len: int, output_len: int, chosen: Sequence[Registered]) -> float:
        prompts = self._prompts(count, prompt_len)
        gc.collect()
        return self._engine.answer(prompts, output_len, chosen)

    def _prompts(self, count: int, length: int) -> list[list[int]]:
        return random_prompts(self._rng, self._config.vocab_size, [length] * count)

    def _floor_bytes(self, adapter: Registered) -> int:
        return floor.adapter_bytes(self._config, adapter.ref.rank, adapter.dtype)


def with_ratios(prefills: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds each prefill's throughput over that of the same prompts without adapters, where measured."""
    plain = {(row["prompts"], row["prompt_len"]): row for row in prefills if not row["distinct"]}
    return [
        row | {"ratio_to_base": round(row["prompt_tok_s"] / base["prompt_tok_s"], 3)}
        if (base := plain.get((row["prompts"], row["prompt_len"])))
        else row
        for row in prefills
    ]


def sizes_for(library: AdapterLibrary, asked: argparse.Namespace, kinds: Sequence[Adapters]) -> Sizes:
    """Returns room for the largest section requested."""
    max_rows = max([batch for batch, _ in asked.batches], default=1)
    num_slots = max([distinct for _, distinct in asked.batches], default=0)
    kv_tokens = max_rows * (PROMPT_LEN + OUTPUT_LEN)
    max_len = PROMPT_LEN + OUTPUT_LEN
    if "prefill" in asked.sections:
        for count, length, _ in PREFILLS:
            kv_tokens = max(kv_tokens, min(count, max_rows) * (length + 1))
            max_len = max(max_len, length + 1)
    if "mixed" in asked.sections:
        _, prompt_len, output_len, _ = MIXED_LOAD
        kv_tokens = max(kv_tokens, max_rows * (prompt_len + output_len))
        max_len = max(max_len, prompt_len + output_len)
    adapter_bytes = max(
        resident_bytes(library, library.register(num_slots, kind.ranks, kind.dtype)) for kind in kinds
    )
    return Sizes(
        max_rows, max_len, max(asked.max_batch_tokens, max_rows), kv_tokens, num_slots, adapter_bytes,
        asked.kv_dtype,
    )  # fmt: skip


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    device = pick_device(asked.device)
    config = shape(asked.shape)
    kinds = [Adapters(rank, dtype) for dtype in asked.adapter_dtypes for rank in asked.ranks]
    library = AdapterLibrary(config)
    sizes = sizes_for(library, asked, kinds)
    bandwidth = copy_bandwidth(device)
    began = time.perf_counter()
    model = random_base(config, asked.quantization, device)
    _synchronize(device)
    weights_at = time.perf_counter()
    figures: dict[str, Any] = {
        "shape": asked.shape,
        "quantization": asked.quantization,
        "kv_dtype": asked.kv_dtype,
        "dtype": str(model.dtype).removeprefix("torch."),
        "prompt_len": PROMPT_LEN,
        "output_len": OUTPUT_LEN,
        "max_batch_tokens": sizes.max_batch_tokens,
        "batch_invariant": asked.batch_invariant,
        "versions": versions(),
        "copy_tb_s": round(bandwidth / 1e12, 3),
    }
    options = replace(DEFAULT_OPTIONS, cuda_graphs=not asked.no_graphs, batch_invariant=asked.batch_invariant)
    with InProcessEngine(model, library, sizes, options) as engine:
        _synchronize(device)
        figures["startup"] = {
            "weights_s": round(weights_at - began, 2),
            "engine_s": round(time.perf_counter() - weights_at, 2),
            "capture_s": round(engine.capture_s, 2),
        }
        bench = Bench(engine, asked.quantization, bandwidth, asked.repeats)
        _sections(bench, asked, kinds, sizes, figures)
        if asked.profile is not None:
            batch, distinct = asked.batches[-1]
            asked.profile.parent.mkdir(parents=True, exist_ok=True)
            asked.profile.write_text(bench.profile(batch, distinct, kinds[0]), encoding="utf-8")
        stats = engine.core.stats
        figures["steps"] = {
            "all": stats.steps, "replayed": stats.graph_replays, "eager": stats.eager_steps,
            "gap_s": round(stats.step_gap_seconds, 4),
        }  # fmt: skip
    return figures


def _sections(
    bench: Bench,
    asked: argparse.Namespace,
    kinds: Sequence[Adapters],
    sizes: Sizes,
    figures: dict[str, Any],
) -> None:
    """Adds rows to the figures. Each is in the report as soon as it is measured: a time limit loses none."""

    def note(section: str, row: dict[str, Any]) -> None:
        figures.setdefault(section, []).append(row)
        write_report(asked.out, figures)
        print(
            section, {name: value for name, value in row.items() if not isinstance(value, list)}, flush=True
        )

    def of(numbers: Sequence[int]) -> list[tuple[int, Adapters]]:
        """Every number of adapters with every kind of them; none at all only once."""
        usable = [number for number in numbers if number <= sizes.num_slots]
        return [(number, kind) for kind in kinds for number in usable if number or kind is kinds[0]]

    if "rows" in asked.sections:
        for kind in kinds:
            for batch, distinct in asked.batches:
                if distinct or kind is kinds[0]:
                    note("rows", bench.row(batch, distinct, kind))
    if "prefill" in asked.sections:
        for count, length, numbers in PREFILLS:
            for distinct, kind in of([min(number, count) for number in numbers]):
                note("prefill", bench.prefill(min(count, sizes.max_rows), length, distinct, kind))
        figures["prefill"] = with_ratios(figures["prefill"])
    if "mixed" in asked.sections:
        requests, prompt_len, output_len, mixes = MIXED_LOAD
        requests = min(requests, 3 * sizes.max_rows)
        for distinct, kind in of(mixes):
            note("mixed_load", bench.mixed_load(requests, prompt_len, output_len, distinct, kind))


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    try:
        found["triton"] = version("triton")
    except PackageNotFoundError:
        found["triton"] = "none"
    return found


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def batches(text: str) -> list[tuple[int, int]]:
    pairs = [tuple(int(part) for part in pair.split(":")) for pair in text.split(",")]
    for pair in pairs:
        if len(pair) != 2 or not 0 <= pair[1] <= pair[0]:
            raise argparse.ArgumentTypeError(f"{text}: BATCH:DISTINCT, as in 1:0,32:32")
    return pairs  # type: ignore[return-value]


def _list(known: Sequence[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name}: one of {', '.join(known)}")
        return names

    return parse


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ranks = [*(str(rank) for rank in range(1, 257)), "mixed"]
    option = parser.add_argument
    option("--out", type=Path, required=True, help="JSON file to write")
    option("--shape", default="llama-3.1-8b", choices=list(SHAPES))
    option("--quantization", default="fp8", choices=list(floor.WEIGHT_BYTES))
    option("--kv-dtype", default="auto", choices=list(floor.KV_BYTES))
    option("--rank", "--ranks", dest="ranks", default=["16"], type=_list(ranks), help="such as 8,16,mixed")
    option("--adapter-dtype", dest="adapter_dtypes", default=["bf16"], type=_list(["bf16", "fp8"]))
    option("--batches", type=batches, default=list(ROWS), help="BATCH:DISTINCT,...")
    option("--sections", type=_list(SECTIONS), default=list(SECTIONS), help=f"of {','.join(SECTIONS)}")
    option("--repeats", type=int, default=3, help="timed runs of each kind, of which the median counts")
    option("--max-batch-tokens", type=int, default=8192)
    option("--device", default="auto")
    option("--no-graphs", action="store_true", help="launch kernel by kernel")
    option("--batch-invariant", action="store_true", help="one size of step per product")
    option("--profile", type=Path, help="text file: the last of --batches by kernel")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    asked = parse(arguments)
    write_report(asked.out, measure(asked))


if __name__ == "__main__":
    main()
