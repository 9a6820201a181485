"""Measures milliseconds per decode step of one model on 1, 2, 4 and 8 GPUs of a host, by batch and number of
distinct adapters.

    python -m benchmarks.tensor_parallel --shape llama-3.1-70b --gpus 1,2 --out F

As `benchmarks.decode`, with the engine's own ranks: the other GPUs' processes follow rank 0's messages.
Weights are random, and different on each rank: the figures are of speed alone.

    floor_ms = (linears + output head + keys and values + distinct adapters, in bytes)
               / (copy bandwidth of the same run * GPUs), without the sums over the GPUs, which
               `benchmarks.peer_sums` measures
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import floor
from benchmarks.decode import OUTPUT_LEN, PROMPT_LEN, Adapters, Bench, batches, versions
from benchmarks.in_process import DEFAULT_OPTIONS, InProcessEngine, Sizes
from benchmarks.library_pools import resident_bytes
from benchmarks.random_adapters import AdapterLibrary
from benchmarks.random_base import random_base
from benchmarks.report import write_report
from benchmarks.shapes import SHAPES, shape
from engine.parallel.leader import Leader
from kernels.timing import copy_bandwidth

ROWS = ((1, 0), (32, 0), (256, 0), (32, 32), (256, 64))
"""(batch, distinct adapters)."""
RANK_PROGRAM = ("-m", "benchmarks.tensor_parallel_rank")


def measure(asked: argparse.Namespace, gpus: int, before: dict[str, Any]) -> dict[str, Any]:
    """One group of GPUs, in a process of its own.

    Each row is in the report as soon as it is measured, behind the figures `before`: a time limit or a group
    that does not end loses none.
    """
    torch.cuda.set_device(0)
    device = torch.device("cuda", 0)
    config = shape(asked.shape)
    bandwidth = copy_bandwidth(device)
    began = time.perf_counter()
    library = AdapterLibrary(config)
    num_slots = max(distinct for _, distinct in asked.batches)
    adapters = Adapters(str(asked.rank), "bf16")
    max_rows = max(batch for batch, _ in asked.batches)
    max_len = PROMPT_LEN + OUTPUT_LEN
    sizes = Sizes(
        max_rows,
        max_len,
        max(asked.max_batch_tokens, max_rows),
        max_rows * max_len,
        num_slots,
        resident_bytes(library, library.register(num_slots, adapters.ranks)),
        asked.kv_dtype,
    )
    leader = None
    if gpus > 1:
        leader = Leader(
            config,
            [f"cuda:{rank}" for rank in range(gpus)],
            Path(asked.shape),
            asked.quantization,
            Path(),
            threads=2,
            program=(*RANK_PROGRAM, "--rank", str(asked.rank)),
        )
    group = None if leader is None else leader.group
    rows: list[dict[str, Any]] = []
    try:
        model = random_base(config, asked.quantization, device, group=group)
        options = replace(DEFAULT_OPTIONS, cuda_graphs=not asked.no_graphs)
        with InProcessEngine(model, library, sizes, options, leader=leader) as engine:
            start_s = time.perf_counter() - began
            bench = Bench(engine, asked.quantization, bandwidth * gpus, asked.repeats, whole=config)
            for batch, distinct in asked.batches:
                row = {"gpus": gpus} | bench.row(batch, distinct, adapters)
                rows.append(row)
                write_report(asked.out, before | {"rows": [*before["rows"], *rows]})
                seen = {name: value for name, value in row.items() if not isinstance(value, list)}
                print(f"after {time.perf_counter() - began:.0f} s: {seen}", flush=True)
            if asked.profile is not None:
                batch, distinct = asked.batches[-1]
                asked.profile.with_suffix(f".{gpus}.txt").write_text(bench.profile(batch, distinct, adapters))
    finally:
        if leader is not None:
            leader.close()
    reads = group is not None and group.peers is not None
    return {
        "rows": rows,
        "group": {
            "gpus": gpus,
            "sums": "none" if group is None else "read from peers" if reads else "nccl",
            "start_s": round(start_s, 1),
            "copy_tb_s": round(bandwidth / 1e12, 3),
            "weight_gib": round(model.weight_bytes / 2**30, 2),
        },
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--out", type=Path, required=True, help="JSON file to write")
    option("--shape", default="llama-3.1-70b", choices=list(SHAPES))
    option("--quantization", default="fp8", choices=list(floor.WEIGHT_BYTES))
    option("--kv-dtype", default="auto", choices=list(floor.KV_BYTES))
    option("--gpus", default="1,2", help="sizes of the group, such as 1,2,4")
    option("--rank", type=int, default=16, help="of the adapters")
    option("--batches", type=batches, default=list(ROWS), help="BATCH:DISTINCT,...")
    option("--repeats", type=int, default=3, help="timed runs of each kind, of which the median counts")
    option("--max-batch-tokens", type=int, default=8192)
    option("--no-graphs", action="store_true", help="launch kernel by kernel")
    option("--profile", type=Path, help="text files: the last of --batches by kernel, on rank 0")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    asked = parse(arguments)
    figures: dict[str, Any] = {
        "shape": asked.shape,
        "quantization": asked.quantization,
        "kv_dtype": asked.kv_dtype,
        "prompt_len": PROMPT_LEN,
        "output_len": OUTPUT_LEN,
        "versions": versions(),
        "groups": [],
        "rows": [],
    }
    spawning = multiprocessing.get_context("spawn")
    for gpus in (int(number) for number in asked.gpus.split(",")):
        with ProcessPoolExecutor(1, spawning) as process:  # whose end gives all memory back
            found = process.submit(measure, asked, gpus, figures).result()
        figures["groups"].append(found["group"])
        figures["rows"] += found["rows"]
        print(json.dumps(found["group"]), flush=True)
    write_report(asked.out, figures)


if __name__ == "__main__":
    main()
